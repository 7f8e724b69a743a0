"""Columns and Ledger: the two objects through which every estimate goes.

`Columns` holds the question: name → scalar or one value per row. `Ledger` holds the answer:
path → value, in the order in which it was computed, and (when asked to trace) how.

Terms that depend on few columns are evaluated on the distinct combinations of those columns
(`Ledger.on`) and gathered when a term of all rows reads them: the same formula on fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.formula import FormulaInfo, info_of
from gpucalc.core.units import Unit

DENSE_CODES = 1 << 16  # up to here distinct codes are found by a table instead of a sort


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
        lengths = {len(v) for v in self._values.values() if isinstance(v, np.ndarray) and v.ndim}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self.rows: int | None = lengths.pop() if lengths else None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def define(self, name: str, value: Any) -> None:
        """Add a column; one that exists is replaced."""
        self._values[name] = value
        self._codes.pop(name, None)

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
        varying = [n for n in names if isinstance(self._values.get(n), np.ndarray) and self._values[n].ndim]
        scalars = {n: v for n, v in self._values.items() if not (isinstance(v, np.ndarray) and v.ndim)}
        if not varying:
            return Columns(scalars), None
        combined, size = self._coded(varying[0])
        for name in varying[1:]:
            codes, levels = self._coded(name)
            if size * levels > DENSE_CODES:
                combined, _, size = _compress(combined, size)
            combined, size = combined * levels + codes, size * levels
        index, first, _ = _compress(combined, size)
        reduced = {n: self._values[n][first] for n in varying}
        kept = {n: (self._codes[n][0][first], self._codes[n][1]) for n in varying}
        return Columns({**scalars, **reduced}, kept), index

    def row(self, index: int) -> dict[str, Any]:
        """One row as plain values."""
        return {n: v[index] if isinstance(v, np.ndarray) and v.ndim else v for n, v in self._values.items()}


@dataclass
class Entry:
    """One stored term: its value on the rows of its scope, and how it came about."""

    value: Any
    scope: Ledger
    verb: str
    info: FormulaInfo | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    unit: Unit | None = None


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
        return self.on(*[name for name in self.columns if name not in names])

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

    def share(self, *paths: str) -> None:
        """Make stored terms columns of this scope, under the last part of their path.

        Formulas of this scope then find them by name.
        """
        for path in paths:
            self.columns.define(path.rsplit("/", 1)[-1], self[path])

    def _store(self, path: str, entry: Entry) -> Any:
        if path in self.entries:
            raise ValueError(f"{path} is stored twice")
        self.entries[path] = entry
        return entry.value

    def arguments(self, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a formula: those given, then columns of the scope, then defaults."""
        info = info_of(function)
        result = {}
        for name in info.parameters:
            if name in given:
                result[name] = given[name]
            elif name in self.columns:
                result[name] = self.columns[name]
            elif name not in info.defaults:
                raise KeyError(f"{info.name}: no argument or column {name!r} in this scope")
        return result

    def add(self, path: str, function: Callable[..., Any], **given: Any) -> Any:
        """Evaluate a formula and store its value under `path`."""
        arguments = self.arguments(function, given)
        value = function(**arguments)
        info = info_of(function)
        kept = arguments if self.trace else {}
        return self._store(path, Entry(value, self, "formula", info, kept, unit=info.units.get("return")))

    def keep(self, path: str, value: Any) -> Any:
        """Store a value that is chosen, not computed: a coefficient of the row's schedule."""
        return self._store(path, Entry(value, self, "value"))

    def define(self, name: str, function: Callable[..., Any], **given: Any) -> Any:
        """Evaluate a formula and make it a column of this scope, for later formulas to find by name."""
        value = self.add(f"symbol/{name}", function, **given)
        self.columns.define(name, value)
        return value

    def total(self, path: str, *parts: str) -> Any:
        """Store the sum of stored terms."""
        value = self[parts[0]]
        for part in parts[1:]:
            value = value + self[part]
        return self._store(path, Entry(value, self, "total", parts=parts, unit=self._unit(parts)))

    def maximum(self, path: str, *parts: str) -> Any:
        """Store the largest of stored terms: a roofline, or an overlap bound."""
        value = self[parts[0]]
        for part in parts[1:]:
            value = np.maximum(value, self[part])
        return self._store(path, Entry(value, self, "maximum", parts=parts, unit=self._unit(parts)))

    def choose(self, path: str, selector: Any, cases: Mapping[int, str]) -> Any:
        """Store, row by row, the term whose key equals the selector: ZeRO stage, recompute, schedule."""
        values = [self[part] for part in cases.values()]
        if isinstance(selector, np.ndarray) and selector.ndim:
            value = np.select([selector == key for key in cases], values)
        else:
            chosen = next((part for key, part in cases.items() if key == selector), None)
            if chosen is None:
                raise KeyError(f"{path}: no case {selector!r}")
            value = self[chosen]
        arguments = {"selector": selector, "cases": dict(cases)} if self.trace else {}
        parts = tuple(cases.values())
        return self._store(path, Entry(value, self, "choose", arguments=arguments, parts=parts, unit=self._unit(parts)))

    def _unit(self, parts: Sequence[str]) -> Unit | None:
        return self.entries[parts[0]].unit
