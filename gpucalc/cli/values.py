"""Readers of an option's text: quantities with a unit, counts such as 15T, shares, prices, whole numbers.

A reader takes the flag, which its complaint names, and the text, and gives the value; `option(read=…)` takes one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from gpucalc.core.columns import INPUT, Column, parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import operation

Reader = Callable[[str, str], Any]


def quantity(dimension: str) -> Reader:
    """Reads 30min or 50GB/s into the SI value of a dimension (s, B, B/s, FLOP, W).

    >>> quantity("s")("--interval", "30min")
    1800.0
    """

    def read(flag: str, text: str) -> float:
        from gpucalc.core.units import parse_quantity

        try:
            return parse_quantity(text, dimension)
        except UsageError as error:
            raise UsageError(*(f"{flag}: {problem}" for problem in error.problems)) from None

    return read


MOST_COUNTED = 1e21  # tokens, dollars, reads a second: above it a number is a slip


def count(example: str) -> Reader:
    """Reads a number with k, M, B or T.

    >>> count("15T")("--tokens", "15T")
    15000000000000.0
    """

    def read(flag: str, text: str) -> float:
        from gpucalc.core.units import parse_count

        value = parse_count(text)
        if value is None:
            raise UsageError(f"{flag} is {text!r}, expected a number such as {example}")
        if value >= MOST_COUNTED:
            raise UsageError(f"{flag} is {text!r}, expected less than {MOST_COUNTED:g}, such as {example}")
        if value <= 0:
            raise UsageError(f"{flag} is {text!r}, expected more than 0, such as {example}")
        return value

    return read


def number(example: str) -> Reader:
    """Reads a number above 0.

    >>> number("0.0038")("--failure-rate", "0.0038")
    0.0038
    """

    def read(flag: str, text: str) -> float:
        try:
            return positive_number(flag, text)
        except UsageError:
            raise UsageError(f"{flag} is {text!r}, expected a number above 0, such as {example}") from None

    return read


def at_least(least: float, example: str, why: str = "") -> Reader:
    """Reads a number no smaller than `least`; `why` ends the complaint about another."""

    def read(flag: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise UsageError(f"{flag} is {text!r}, expected {least:g} or more, such as {example}{why}")
        return value

    return read


def share(*, whole: bool = False, zero: bool = False, why: str = "") -> Reader:
    """Reads a share between 0 and 1, as 5% or 0.05; 1 itself only with `whole`, 0 only with `zero`.

    >>> share()("--straggler-cv", "1%")
    0.01
    """

    def read(flag: str, text: str) -> float:
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

    return read


def gpu_count(flag: str, text: str) -> int:
    """A number of GPUs, within the one limit of all commands."""
    value: int = column_value("n_gpus", flag, text)
    return value


def price(flag: str, text: str) -> float:
    """An amount of money above 0, with or without a dollar sign."""
    return positive_number(flag, text.strip().removeprefix("$"))


def positive_integer(flag: str, text: str) -> int:
    """A whole number of at least one, for options that are not a column."""
    value: int = _of_column(Column("value", "int", flag, minimum=1), flag, _without_separators(text))
    return value


def none_or_more(flag: str, text: str) -> int:
    """A whole number, 0 included."""
    return 0 if text.strip() == "0" else positive_integer(flag, text)


def positive_number(flag: str, text: str) -> float:
    """A number above 0, for options that are not a column."""
    value: float = _of_column(Column("value", "number", flag), flag, text)
    return value


def operation_named(flag: str, text: str) -> str:
    """The collective operation that a spelling means: all-reduce, AllReduce and all_reduce are one."""
    return operation(text)


def column_value(column: str, flag: str, text: str) -> Any:
    """The value of an option by the rules of a column of the row schema; complaints name the option."""
    record = INPUT[column]
    return _of_column(record, flag, _without_separators(text) if record.kind == "int" else text)


def _of_column(record: Column, flag: str, text: str) -> Any:
    try:
        value = parse_cell(record, text)
    except UsageError as error:
        raise UsageError(*(flag + problem.removeprefix(record.name) for problem in error.problems)) from None
    if value is None:
        raise UsageError(f"{flag} is empty")
    return value


def _without_separators(text: str) -> str:
    """1_536 and 1,536 as people write them on a command line; anything else is left for the column to judge."""
    return re.sub(r"[_,]", "", text) if re.fullmatch(r"\d{1,3}([_,]\d{3})+", text.strip()) else text
