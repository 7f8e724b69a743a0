"""Columns and Ledger: the two objects through which every estimate goes.

`Columns` holds the question: name → scalar or one value per row. `Ledger` holds the answer:
path → value, in the order in which it was computed, and (when asked to trace) how.

The verbs take *references*: a `str` is the path of a stored term or the name of a column. What is referred to
is recorded, so every number of an explanation can be followed to the columns that it comes from.

Terms that depend on few columns are evaluated on the distinct combinations of those columns
(`Ledger.on`) and gathered when a term of all rows reads them: the same formula on fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant, FormulaInfo, argument_unit, info_of
from gpucalc.core.units import NUMBER, Array, Unit

DENSE_CODES = 1 << 16  # up to here distinct codes are found by a table instead of a sort


def any_row(condition: Any) -> bool:
    """Whether a condition holds in some row.

    >>> any_row(2.0 > 1), any_row(np.array([False, False]))
    (True, False)
    """
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)


def distinct(column: Any) -> list[int]:
    """The codes that a column of codes holds.

    >>> distinct(2.0), distinct(np.array([3.0, 1.0, 3.0]))
    ([2], [1, 3])
    """
    return [int(code) for code in np.unique(column)] if isinstance(column, np.ndarray) else [int(column)]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _compress(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes below `size` as consecutive integers, the first row of each, and how many there are."""
    if size > DENSE_CODES:
        _, first, index = np.unique(codes, return_index=True, return_inverse=True)
        return index, first, len(first)
    first = np.full(size, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    present = first >= 0
    first = first[present]
    return (np.cumsum(present) - 1)[codes], first, len(first)


class Columns(Mapping[str, Any]):
    """name → scalar, or 1-D array with one value per row.

    `codes` may give, for a column, (codes, levels): small integers that stand for its values;
    an enumerator has them for nothing, otherwise they are found by sorting.
    """

    def __init__(self, values: Mapping[str, Any], codes: Mapping[str, tuple[np.ndarray, int]] | None = None) -> None:
        self._values = dict(values)
        self._codes = dict(codes or {})
        self._arrays = {name: None for name, value in values.items() if _is_array(value)}  # an ordered set of names
        self.terms: dict[str, str] = {}  # name → path, of the columns that a ledger computed
        lengths = {len(self._values[name]) for name in self._arrays}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self.rows: int | None = lengths.pop() if lengths else None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def define(self, name: str, value: Any, term: str = "") -> None:
        """Add a column; one that exists is replaced. `term` is the path under which a ledger stored it."""
        self._values[name] = value
        self._codes.pop(name, None)
        self._arrays.pop(name, None)
        self.terms.pop(name, None)
        if _is_array(value):
            self._arrays[name] = None
        if term:
            self.terms[name] = term

    def _coded(self, name: str) -> tuple[np.ndarray, int]:
        if name not in self._codes:
            levels, codes = np.unique(self._values[name], return_inverse=True)
            self._codes[name] = (codes.astype(np.int64), len(levels))
        return self._codes[name]

    def reduce(self, names: Sequence[str]) -> tuple[Columns, np.ndarray | None]:
        """The distinct combinations of the columns `names`, and for each row the index of its own.

        The result holds only those columns and the scalars, so a term that reads another
        column fails instead of being wrong. The index is None when all of `names` are scalars.
        """
        varying = [name for name in names if name in self._arrays]
        if not varying:
            return self._narrowed({}, {}), None
        combined, size = self._coded(varying[0])
        seen = {id(combined)}  # columns that vary together share their codes
        for name in varying[1:]:
            codes, levels = self._coded(name)
            if id(codes) in seen:
                continue
            seen.add(id(codes))
            if size * levels > DENSE_CODES:
                combined, _, size = _compress(combined, size)
            combined, size = combined * levels + codes, size * levels
        index, first, _ = _compress(combined, size)
        reduced = {n: self._values[n][first] for n in varying}
        kept = {n: (self._codes[n][0][first], self._codes[n][1]) for n in varying}
        return self._narrowed(reduced, kept), index

    def _narrowed(self, reduced: dict[str, np.ndarray], codes: dict[str, tuple[np.ndarray, int]]) -> Columns:
        """The scalars, and some of the arrays with fewer rows."""
        columns = Columns(reduced, codes)
        values = self._values.copy()
        for name in self._arrays:
            del values[name]
        values.update(reduced)
        columns._values = values
        columns.terms = {name: path for name, path in self.terms.items() if name in values}
        return columns

    def arrays(self) -> tuple[str, ...]:
        """Names of the columns that are arrays."""
        return tuple(self._arrays)

    def row(self, index: int) -> dict[str, Any]:
        """One row as plain values."""
        return {name: value[index] if name in self._arrays else value for name, value in self._values.items()}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a traced entry, and where its value came from.

    kind: "term" (`name` is its path), "column" or "default" (its name), "constant" (its name or that of the
    argument). A value that was computed on the way is of the kind "computed": nothing can be said of it.
    """

    value: Any
    kind: str
    name: str
    unit: Unit | None = None


NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Entry:
    """One stored term: its value on the rows of its scope, and how it came about.

    verb: formula, product, total, maximum, choose or value. `arguments` are kept only by a tracing ledger: those of
    a formula by name, the factors of a product and the parts of a sum by reference, the "selector" of a choice.
    """

    __slots__ = ("arguments", "cases", "info", "otherwise", "parts", "scope", "value", "verb")

    def __init__(
        self,
        value: Any,
        scope: Ledger,
        verb: str,
        info: FormulaInfo | None = None,
        parts: tuple[str | Constant, ...] = (),
        cases: Mapping[int, str] = NOTHING,
        otherwise: str = "",
    ) -> None:
        self.value, self.scope, self.verb, self.info = value, scope, verb, info
        self.parts, self.cases, self.otherwise = parts, cases, otherwise
        self.arguments: Mapping[str, Argument] = NOTHING

    @property
    def unit(self) -> Unit | None:
        """The unit of the value; None for one that was kept as it is."""
        if self.info is not None:
            return self.info.units.get("return")
        if self.verb == "product":
            unit = NUMBER
            for part in self.parts:
                unit = unit * (self._unit_of(part) or NUMBER)
            return unit
        known = (self._unit_of(part) for part in self.parts)  # a column that no formula names has no known unit
        return next((unit for unit in known if unit is not None), None)

    def _unit_of(self, part: str | Constant) -> Unit | None:
        """The unit of a part as it was when it was read: a later term may have replaced a column of its name."""
        if isinstance(part, Constant):
            return part.unit
        return self.arguments[part].unit if part in self.arguments else self.scope.unit(part)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts as they are written: paths, and names of columns and constants."""
        return tuple(part.name if isinstance(part, Constant) else part for part in self.parts)


class Ledger:
    """An ordered mapping path → value; everything an estimate computes goes through its verbs.

    Arguments of a formula that are not given are taken, by name, from the columns of the scope.
    """

    def __init__(self, columns: Columns, *, trace: bool = False) -> None:
        self.columns = columns
        self.trace = trace
        self.entries: dict[str, Entry] = {}
        self._parent: Ledger | None = None
        self._index: np.ndarray | None = None
        self._gathered: dict[str, Any] = {}

    def on(self, *names: str) -> Ledger:
        """A scope in which terms are computed once per distinct combination of the columns `names`."""
        columns, index = self.columns.reduce(names)
        child = Ledger(columns, trace=self.trace)
        child.entries, child._parent, child._index = self.entries, self, index
        return child

    def without(self, *names: str) -> Ledger:
        """A scope of all columns but `names`."""
        return self.on(*[name for name in self.columns.arrays() if name not in names])

    def __contains__(self, path: str) -> bool:
        return path in self.entries

    def __getitem__(self, path: str) -> Any:
        """The value of `path` on the rows of this scope.

        Raises KeyError for a path that was never stored or belongs to a scope with more columns.
        """
        entry = self.entries[path]
        if entry.scope is self:
            return entry.value
        if path not in self._gathered:
            self._gathered[path] = self._gather(entry.value, entry.scope)
        return self._gathered[path]

    def _gather(self, value: Any, scope: Ledger | None) -> Any:
        while scope is not self:
            if scope is None:
                raise KeyError("a term of a wider scope cannot be read in a narrower one")
            if scope._index is not None and isinstance(value, np.ndarray) and value.ndim:
                value = value[scope._index]
            scope = scope._parent
        return value

    def value(self, reference: str | Constant) -> Any:
        """What a reference means in this scope: the stored term of that path, else the column of that name.

        Raises KeyError where there is neither.
        """
        if isinstance(reference, Constant):
            return reference.value
        entry = self.entries.get(reference)
        if entry is not None:
            return entry.value if entry.scope is self else self[reference]
        try:
            return self.columns._values[reference]
        except KeyError:
            raise KeyError(f"no term or column {reference!r} in this scope") from None

    def unit(self, reference: str | Constant) -> Unit | None:
        """The unit of what a reference means; a column has that of the formulas' arguments of its name."""
        if isinstance(reference, Constant):
            return reference.unit
        path = reference if reference in self.entries else self.columns.terms.get(reference, "")
        return self.entries[path].unit if path else argument_unit(reference)

    def source(self, reference: str | Constant) -> Argument:
        """The value of a reference with where it came from; a column that a term defined counts as that term."""
        if isinstance(reference, Constant):
            return Argument(reference.value, "constant", reference.name, reference.unit)
        path = reference if reference in self.entries else self.columns.terms.get(reference, "")
        value = self.value(reference)
        return Argument(value, "term" if path else "column", path or reference, self.unit(reference))

    def share(self, *paths: str) -> None:
        """Make stored terms columns of this scope, under the last part of their path.

        Formulas of this scope then find them by name.
        """
        for path in paths:
            self.columns.define(path.rsplit("/", 1)[-1], self[path], path)

    def _store(self, path: str, entry: Entry) -> Any:
        if path in self.entries:
            raise ValueError(f"{path} is stored twice")
        self.entries[path] = entry
        return entry.value

    def add(self, path: str, function: Callable[..., Any], **given: Any) -> Array:
        """Evaluate a formula and store its value under `path`.

        An argument that is a `str` is a reference; a number or a `Constant` is a constant. Arguments not given are
        the columns of their names, then the formula's defaults.
        """
        info = info_of(function)
        columns = self.columns._values
        values: dict[str, Any] = {}
        for name in info.parameters:
            if name in given:
                value = given[name]
                kind = value.__class__
                values[name] = self.value(value) if kind is str or kind is Constant else value
            elif name in columns:
                values[name] = columns[name]
            elif name not in info.defaults:
                raise KeyError(f"{info.name}: no argument or column {name!r} in this scope")
        entry = Entry(function(**values), self, "formula", info)
        if self.trace:
            if unknown := given.keys() - info.names:
                raise TypeError(f"{info.name} has no argument {', '.join(sorted(unknown))}")
            entry.arguments = {name: self._argument(info, name, given) for name in info.parameters}
        stored: Array = self._store(path, entry)
        return stored

    def apply(self, path: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Array:
        """As `add`, with what `given` has of the formula's arguments: several formulas share one set of them."""
        names = info_of(function).names
        return self.add(path, function, **{name: value for name, value in given.items() if name in names})

    def _argument(self, info: FormulaInfo, name: str, given: Mapping[str, Any]) -> Argument:
        """Where the argument `name` of a formula came from."""
        unit = info.units.get(name)
        if name not in given and name not in self.columns:
            return Argument(info.defaults[name], "default", name, unit)
        value = given.get(name, name)
        if isinstance(value, str):
            source = self.source(value)
            return Argument(source.value, source.kind, source.name, unit)
        if isinstance(value, Constant):
            return Argument(value.value, "constant", value.name, unit)
        kind = "computed" if hasattr(value, "dtype") else "constant"
        return Argument(value, kind, name, unit)

    def adopt(self, prefix: str, other: Ledger) -> None:
        """Store all terms of another ledger below `prefix`, with what they refer to; its rows are those of this one.

        >>> part, whole = Ledger(Columns({"layers": 4.0})), Ledger(Columns({}))
        >>> _ = part.keep("layer/time", 3.0), part.product("time", "layer/time", "layers")
        >>> whole.adopt("prefill", part)
        >>> float(whole["prefill/time"]), whole.entries["prefill/time"].names
        (12.0, ('prefill/layer/time', 'layers'))
        """

        def renamed(part: str | Constant) -> Any:
            return f"{prefix}/{part}" if isinstance(part, str) and part in other.entries else part

        for path, entry in other.entries.items():
            cases = {key: renamed(part) for key, part in entry.cases.items()}
            parts = tuple(renamed(part) for part in entry.parts)
            copy = Entry(other[path], self, entry.verb, entry.info, parts, cases, renamed(entry.otherwise))
            copy.arguments = {
                renamed(name): replace(value, name=renamed(value.name)) if value.kind == "term" else value
                for name, value in entry.arguments.items()
            }
            self._store(f"{prefix}/{path}", copy)

    def keep(self, path: str, value: Any) -> Array:
        """Store a value that is chosen, not computed: a flag, a selector or a coefficient of the row's schedule."""
        kept: Array = self._store(path, Entry(value, self, "value"))
        return kept

    def define(self, name: str, function: Callable[..., Any], **given: Any) -> Array:
        """Evaluate a formula and make it a column of this scope, for later formulas to find by name."""
        value = self.add(f"symbol/{name}", function, **given)
        self.columns.define(name, value, f"symbol/{name}")
        return value

    def product(self, path: str, *factors: str | Constant) -> Array:
        """Store the product of terms, columns and constants; its unit is the product of theirs.

        >>> ledger = Ledger(Columns({"share": 0.25, "layers": 4.0}))
        >>> _ = ledger.keep("layer/time", 3.0)
        >>> float(ledger.product("time/exposed", "layer/time", "layers", "share"))
        3.0
        """
        value = self.value(factors[0])
        for factor in factors[1:]:
            value = value * self.value(factor)
        return self._joined(path, "product", value, factors)

    def total(self, path: str, *parts: str) -> Array:
        """Store the sum of terms and columns."""
        value = self.value(parts[0])
        for part in parts[1:]:
            value = value + self.value(part)
        return self._joined(path, "total", value, parts)

    def maximum(self, path: str, *parts: str) -> Array:
        """Store the largest of terms and columns: a roofline, or an overlap bound."""
        value = self.value(parts[0])
        for part in parts[1:]:
            value = np.maximum(value, self.value(part))
        return self._joined(path, "maximum", value, parts)

    def minimum(self, path: str, *parts: str) -> Array:
        """Store the least of terms and columns: the fastest of what a library chooses from."""
        value = self.value(parts[0])
        for part in parts[1:]:
            value = np.minimum(value, self.value(part))
        return self._joined(path, "minimum", value, parts)

    def _joined(self, path: str, verb: str, value: Any, parts: tuple[str | Constant, ...]) -> Array:
        entry = Entry(value, self, verb, parts=parts)
        if self.trace:
            entry.arguments = {name: self.source(part) for name, part in zip(entry.names, parts, strict=True)}
        stored: Array = self._store(path, entry)
        return stored

    def choose(self, path: str, selector: Any, cases: Mapping[int, str], otherwise: str = "") -> Array:
        """Store, row by row, the term whose key equals the selector: ZeRO stage, recompute, schedule.

        The selector is a reference, or an array of keys; a row with a key that is not among the cases has the term
        `otherwise`. Where there is none, the keys are all that a row can have.
        """
        code = self.value(selector) if isinstance(selector, str) else selector
        parts = tuple(dict.fromkeys((*cases.values(), *([otherwise] if otherwise else []))))
        if isinstance(code, np.ndarray) and code.ndim:
            last = otherwise or list(cases.values())[-1]
            value = self.value(last)
            for key, part in cases.items():
                if part != last:
                    value = np.where(code == key, self.value(part), value)
        else:
            chosen = next((part for key, part in cases.items() if key == code), otherwise)
            if not chosen:
                raise KeyError(f"{path}: no case {code!r}")
            value = self.value(chosen)
        entry = Entry(value, self, "choose", parts=parts, cases=dict(cases), otherwise=otherwise)
        if self.trace:
            computed = Argument(code, "computed", "selector")
            entry.arguments = {"selector": self.source(selector) if isinstance(selector, str) else computed}
        stored: Array = self._store(path, entry)
        return stored

    def active(self, path: str) -> str:
        """The term that a choice of a ledger of one row stands for."""
        entry = self.entries[path]
        code = int(np.asarray(entry.arguments["selector"].value).item())
        return entry.cases.get(code, entry.otherwise)
