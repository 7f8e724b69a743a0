"""Options of the whole-cluster commands: quantities with a unit, counts such as 15T, shares and prices."""

from __future__ import annotations

import math
import re

from gpucalc.cli import options as opt
from gpucalc.core.errors import UsageError

_COUNT = re.compile(r"([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKMBGT]?)")
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def quantity(flag: str, text: str | None, dimension: str) -> float | None:
    """The SI value of an option such as 30min or 50GB/s; None without it."""
    from gpucalc.core.units import parse_quantity

    if text is None:
        return None
    try:
        return parse_quantity(text, dimension)
    except UsageError as error:
        raise UsageError(*(f"{flag}: {problem}" for problem in error.problems)) from None


def count(flag: str, text: str | None, example: str = "15T") -> float | None:
    """A number with k, M, B or T, such as 15T tokens."""
    if text is None:
        return None
    match = _COUNT.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{flag} is {text!r}, expected a number such as {example}")
    value = float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2]]
    if not 0 < value < 1e21:
        raise UsageError(f"{flag} is {text!r}, expected more than 0, such as {example}")
    return value


def number(flag: str, text: str | None, example: str = "1") -> float | None:
    """A number above 0."""
    if text is None:
        return None
    try:
        return opt.positive_number(flag, text)
    except UsageError:
        raise UsageError(f"{flag} is {text!r}, expected a number above 0, such as {example}") from None


def at_least(flag: str, text: str | None, least: float, example: str, why: str = "") -> float | None:
    """A number no smaller than `least`."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise UsageError(f"{flag} is {text!r}, expected {least:g} or more, such as {example}{why}")
    return value


def share(flag: str, text: str | None, *, whole: bool = False, zero: bool = False, why: str = "") -> float | None:
    """A share between 0 and 1, as 5% or 0.05; 1 itself only with `whole`, 0 only with `zero`."""
    if text is None:
        return None
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = math.nan
    fits = (value >= 0 if zero else value > 0) and (value <= 1 if whole else value < 1)
    if not fits:
        high = "at most 1" if whole else "below 1"
        low = "" if zero else "above 0 and "
        raise UsageError(f"{flag} is {text!r}, expected a share {low}{high}, such as 95% or 0.95{why}")
    return value


def word(flag: str, text: str, known: tuple[str, ...]) -> str:
    """One of a few words."""
    from gpucalc.core.errors import nearest

    found = text.strip().casefold()
    if found not in known:
        near = nearest(found, known, 1)
        raise UsageError(
            f"{flag} is {text!r}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
        )
    return found
