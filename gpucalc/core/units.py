"""Units: the aliases that annotate formulas, and the one parser of quantities with units.

Inside gpucalc everything is SI: bytes (B), seconds (s), floating-point operations (FLOP)
and their rates. Conversion happens here, at the edge.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = float | NDArray[np.floating[Any]]
else:
    Array = object


@dataclass(frozen=True)
class Unit:
    """A unit as exponents of byte, second, FLOP, watt, dollar and gram; `symbol` is what a person reads.

    A pure number has all exponents zero.
    """

    symbol: str
    byte: int = 0
    second: int = 0
    flop: int = 0
    watt: int = 0
    dollar: int = 0
    gram: int = 0

    @property
    def exponents(self) -> tuple[int, ...]:
        """The exponents in the order of `BASES`; two units with the same ones measure the same quantity."""
        return (self.byte, self.second, self.flop, self.watt, self.dollar, self.gram)

    def __mul__(self, other: Unit) -> Unit:
        """The unit of a product, under its usual name where it has one.

        >>> seconds = Unit("s", second=1)
        >>> (Unit("B/s", byte=1, second=-1) * seconds).symbol, (Unit("B", byte=1) * seconds).symbol
        ('B', 'B·s')
        """
        return unit_of(tuple(a + b for a, b in zip(self.exponents, other.exponents, strict=True)))


BASES = ("B", "s", "FLOP", "W", "USD", "g")


def unit_of(exponents: tuple[int, ...]) -> Unit:
    """The unit with these exponents of `BASES`: one of those below, or one written out from its bases."""
    known = _KNOWN.get(exponents)
    if known is not None:
        return known
    powers = {base: power for base, power in zip(BASES, exponents, strict=True) if power}
    above = "·".join(base + (f"^{power}" if power > 1 else "") for base, power in powers.items() if power > 0)
    below = "".join(f"/{base}" + (f"^{-power}" if power < -1 else "") for base, power in powers.items() if power < 0)
    return Unit((above or "1") + below, *exponents)


Bytes = Annotated[Array, Unit("B", byte=1)]
Seconds = Annotated[Array, Unit("s", second=1)]
Flop = Annotated[Array, Unit("FLOP", flop=1)]
BytesPerSecond = Annotated[Array, Unit("B/s", byte=1, second=-1)]
FlopPerSecond = Annotated[Array, Unit("FLOP/s", flop=1, second=-1)]
PerSecond = Annotated[Array, Unit("1/s", second=-1)]
FlopPerByte = Annotated[Array, Unit("FLOP/B", flop=1, byte=-1)]
Count = Annotated[Array, Unit("")]  # of anything
Tokens = Annotated[Array, Unit("")]
Ranks = Annotated[Array, Unit("")]  # processes of a parallel group, one a GPU
Elements = Annotated[Array, Unit("")]  # entries of a tensor; a width or depth of a matrix
Ratio = Annotated[Array, Unit("")]  # a share or factor
Flag = Annotated[Array, Unit("")]  # 0 or 1
Watts = Annotated[Array, Unit("W", watt=1)]
Joules = Annotated[Array, Unit("J", watt=1, second=1)]
FlopPerJoule = Annotated[Array, Unit("FLOP/J", flop=1, watt=-1, second=-1)]
Dollars = Annotated[Array, Unit("USD", dollar=1)]
DollarsPerSecond = Annotated[Array, Unit("USD/s", dollar=1, second=-1)]
DollarsPerJoule = Annotated[Array, Unit("USD/J", dollar=1, watt=-1, second=-1)]
Grams = Annotated[Array, Unit("g", gram=1)]
GramsPerJoule = Annotated[Array, Unit("g/J", gram=1, watt=-1, second=-1)]

NUMBER = Unit("")
_ALIASES = (
    Bytes, Seconds, Flop, BytesPerSecond, FlopPerSecond, PerSecond, FlopPerByte, Count,
    Watts, Joules, Dollars, DollarsPerSecond, DollarsPerJoule, Grams, GramsPerJoule,
)  # fmt: skip
_KNOWN: dict[tuple[int, ...], Unit] = {get_args(alias)[1].exponents: get_args(alias)[1] for alias in _ALIASES}

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _units() -> dict[str, tuple[str, float]]:
    """spelling → (dimension, factor to SI); a closed list, so that Gb/s and GB/s cannot be confused."""
    table: dict[str, tuple[str, float]] = {}
    for prefix, factor in _PREFIX.items():
        table[f"{prefix}B"] = ("B", factor)
        table[f"{prefix}B/s"] = ("B/s", factor)
        table[f"{prefix}b/s"] = ("B/s", factor / 8)
        table[f"{prefix}bit/s"] = ("B/s", factor / 8)
        if prefix != "k":
            table[f"{prefix}bps"] = ("B/s", factor / 8)
        table[f"{prefix}FLOP"] = ("FLOP", factor)
        table[f"{prefix}FLOP/s"] = ("FLOP/s", factor)
        table[f"{prefix}OP/s"] = ("FLOP/s", factor)
        table[f"{prefix}Hz"] = ("1/s", factor)
        table[f"{prefix}W"] = ("W", factor)
    for prefix, factor in _BINARY.items():
        table[f"{prefix}B"] = ("B", factor)
        table[f"{prefix}B/s"] = ("B/s", factor)
    for name, factor in _TIME.items():
        table[name] = ("s", factor)
    return table


UNITS = _units()
GIB = 2.0**30  # bytes: how memory is shown
GIGABIT = 1e9 / 8  # bytes: how networks are rated
LARGEST, SMALLEST = 1e36, 1e-36  # in SI; beyond them products of a few quantities overflow
_QUANTITY = re.compile(r"^\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*$")


def parse_quantity(text: str, dimension: str, *, positive: bool = True) -> float:
    """The SI value of a quantity such as "3.35 TB/s" in `dimension` (B, s, B/s, FLOP, FLOP/s, 1/s, W).

    Raises UsageError for a bare number, an unknown unit, another dimension, a non-finite or
    (with `positive`) non-positive value.

    >>> parse_quantity("400 Gb/s", "B/s")
    50000000000.0
    >>> parse_quantity("1GiB", "B")
    1073741824.0
    """
    match = _QUANTITY.match(text)
    examples = {"B": "80 GB", "s": "12.3s", "B/s": "400 Gb/s", "FLOP/s": "989.4 TFLOP/s", "FLOP": "1 TFLOP"}
    example = examples.get(dimension, f"1 {dimension}")
    if not match:
        raise UsageError(f"{text!r} is not a quantity; write a number and a unit, such as {example!r}")
    number, unit = match.groups()
    if not unit:
        raise UsageError(f"{text!r} has no unit; write for example {example!r}")
    if unit not in UNITS:
        near = [u for u in UNITS if u.casefold() == unit.casefold()]
        said = f"; did you mean {' or '.join(near)}?" if near else f"; write for example {example!r}"
        raise UsageError(f"unknown unit {unit!r} in {text!r}{said}")
    found, factor = UNITS[unit]
    if found != dimension:
        raise UsageError(f"{text!r} is in {found}, expected {dimension}, such as {example!r}")
    value = float(number.replace(",", "").replace("_", "")) * factor
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is not finite")
    if positive and value <= 0:
        raise UsageError(f"{text!r} must be positive")
    if abs(value) > LARGEST or 0 < abs(value) < SMALLEST:
        raise UsageError(f"{text!r} is too {'large' if abs(value) > 1 else 'small'}; write for example {example!r}")
    return value


_COUNT = re.compile(r"([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKmMbBgGtT]?)")
_COUNTED = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def parse_count(text: str) -> float | None:
    """A number with or without k, M, B or T behind it; None for anything else.

    >>> parse_count("15T"), parse_count("70b"), parse_count("1,024"), parse_count("many")
    (15000000000000.0, 70000000000.0, 1024.0, None)
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1].replace(",", "").replace("_", "")) * _COUNTED[match[2].casefold()]


def scale_for(largest: float, unit: str) -> tuple[float, str]:
    """Divisor and unit with prefix that make `largest` readable; bytes scale by 2^10, rates by 10^3.

    >>> scale_for(85899345920.0, "B")
    (1073741824.0, 'GiB')
    >>> scale_for(0.0042, "s")
    (0.001, 'ms')
    """
    if unit == "B":
        steps = [(2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")]
        return next(((f, u) for f, u in steps if abs(largest) >= f), (1.0, "B"))
    if unit == "s":
        steps = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
        return next(((f, u) for f, u in steps if abs(largest) >= f), (1.0, "s"))
    if unit in {"B/s", "FLOP/s", "FLOP", "W", "J"}:
        steps = [(f, p + unit) for p, f in reversed(list(_PREFIX.items())) if p not in {"", "K"}]
        return next(((f, u) for f, u in steps if abs(largest) >= f), (1.0, unit))
    if unit == "g" and abs(largest) >= 1e3:
        return (1e6, "t") if abs(largest) >= 1e6 else (1e3, "kg")
    return 1.0, unit
