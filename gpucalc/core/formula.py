"""`@formula`: a pure function with units in its signature, a symbol, a citation and a validity range.

Marking costs nothing at run time: the function itself is returned. What `explain` prints is read
from the function's own source, so it cannot differ from what ran.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from gpucalc.core.units import NUMBER, Unit

F = TypeVar("F", bound=Callable[..., Any])

BASES = ("definition", "published", "measured", "assumed")


@dataclass(frozen=True)
class Constant:
    """A number of the model that is not an argument of a question: its value, name, meaning and where it comes from.

    basis: definition (it could not be otherwise), published, measured or assumed; `cite` is a key of
    `hardware_db/references.toml`. Given as an argument it is shown by its name.
    """

    name: str
    value: float
    meaning: str
    basis: str
    cite: str = ""
    unit: Unit = NUMBER

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise ValueError(f"{self.name}: the basis is one of {', '.join(BASES)}, not {self.basis!r}")


@dataclass(frozen=True)
class FormulaInfo:
    """What is known of one formula: its function, symbol, citation key and validity range.

    `bounds` names the arguments of which the largest decides (a roofline, an overlap), so that an explanation
    can say which; `math` is the equation as a paper writes it, where the function's text is far from it.
    """

    function: Callable[..., Any]
    symbol: str
    cite: str
    valid: str
    bounds: tuple[str, ...] = ()
    math: str = ""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return tuple(inspect.signature(self.function).parameters)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of the arguments, as a set."""
        return frozenset(self.parameters)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Arguments that may be left out, and their values."""
        found = inspect.signature(self.function).parameters.items()
        return {n: p.default for n, p in found if p.default is not inspect.Parameter.empty}

    @functools.cached_property
    def units(self) -> dict[str, Unit]:
        """Unit of each argument and of "return"."""
        known = self.function.__globals__
        # An annotation is nearly always the bare name of a quantity: looking it up is far cheaper than evaluating it.
        hints = {n: known.get(a) if isinstance(a, str) else a for n, a in self.function.__annotations__.items()}
        if None in hints.values():
            hints = get_type_hints(self.function, include_extras=True)
        return {n: u for n, h in hints.items() for u in get_args(h)[1:] if isinstance(u, Unit)}

    @functools.cached_property
    def expression(self) -> str:
        """The body as text: named intermediates, then the returned expression."""
        tree = ast.parse(_source(self.function)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        steps = [ast.unparse(s) for s in tree.body if isinstance(s, ast.Assign | ast.AnnAssign)]
        last = tree.body[-1]
        assert isinstance(last, ast.Return), f"{self.name} must end in a return"
        result = ast.unparse(last.value) if last.value else ""
        return "; ".join([*steps, result]).replace("np.", "")

    @property
    def summary(self) -> str:
        """First sentence of the docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]


def _source(function: Callable[..., Any]) -> str:
    """The text of a function: its lines until the first that is indented no further.

    `inspect.getsource` reads token by token to allow for code that no formula holds; an explanation prints a hundred.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    indent = len(lines[0]) - len(lines[0].lstrip())
    kept, inside = [], False
    for line in lines:
        text = line[indent:] if line.strip() else "\n"
        if inside and not text.startswith((" ", ")", "\n")):
            break
        inside = inside or text.startswith("def ")
        kept.append(text)
    return "".join(kept)


FORMULAS: dict[str, FormulaInfo] = {}
_ARGUMENT_UNITS: dict[str, set[Unit]] = {}  # found when first asked for; a new formula empties it


def argument_unit(name: str) -> Unit | None:
    """The unit that all formulas with an argument of this name give it; None where none has or two differ."""
    if not _ARGUMENT_UNITS:
        for info in FORMULAS.values():
            for argument, unit in info.units.items():
                _ARGUMENT_UNITS.setdefault(argument, set()).add(unit)
    found = _ARGUMENT_UNITS.get(name, set())
    return next(iter(found)) if len(found) == 1 else None


def formula(*, symbol: str, cite: str, valid: str, bounds: tuple[str, ...] = (), math: str = "") -> Callable[[F], F]:
    """Register a pure function as a formula of the model.

    symbol: as a paper would write the result; cite: key of `hardware_db/references.toml`;
    valid: the range in which it holds, as text; bounds: arguments of which the largest decides;
    math: the equation as a paper writes it.
    """

    def mark(function: F) -> F:
        info = FormulaInfo(function, symbol, cite, valid, bounds, math)
        FORMULAS[function.__name__] = info
        _ARGUMENT_UNITS.clear()
        function.info = info  # type: ignore[attr-defined]
        return function

    return mark


def info_of(function: Callable[..., Any]) -> FormulaInfo:
    """The registration of a formula.

    Raises TypeError when `function` was never marked with `@formula`.
    """
    info = getattr(function, "info", None)
    if not isinstance(info, FormulaInfo):
        raise TypeError(f"{getattr(function, '__name__', function)!r} is not a @formula")
    return info
