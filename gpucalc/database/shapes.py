"""What the TOML files that are no records may hold: shapes of values, and every way a value departs from its shape.

A shape is data; `problems` walks a parsed file along it and yields sentences as `file: key: problem`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gpucalc.core.errors import shown, suggestion


@dataclass(frozen=True)
class Text:
    """A text that is not empty; `choices`: one of these words; `accepts` returns what is wrong with it, or ""."""

    choices: tuple[str, ...] = ()
    empty: bool = False
    accepts: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`; `whole`: without a fraction."""

    low: float = 0.0
    high: float = math.inf
    whole: bool = False


@dataclass(frozen=True)
class Flag:
    """true or false."""


@dataclass(frozen=True)
class Texts:
    """A list of texts; `choices`: of these words."""

    choices: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table with these keys; `others`: what keys of any other name hold, None: there are no others."""

    required: Mapping[str, Shape] = field(default_factory=dict)
    optional: Mapping[str, Shape] = field(default_factory=dict)
    others: Shape | None = None


@dataclass(frozen=True)
class Each:
    """A table of entries of one shape, under names of any kind."""

    of: Shape


@dataclass(frozen=True)
class Rows:
    """A list of tables of one shape."""

    of: Shape


@dataclass(frozen=True)
class Either:
    """Any of some shapes; the problems are those of the first."""

    shapes: tuple[Shape, ...]


Shape: TypeAlias = "Text | Number | Flag | Texts | Table | Each | Rows | Either"


def problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    """Each departure of a value from its shape, as `path: problem`.

    >>> list(problems(Table({"low": Number(0, 1)}), {"low": 2, "hihg": 1}, "x.toml"))
    ['x.toml: low: 2 is not from 0 to 1', 'x.toml: hihg: unknown key; known: low']
    """
    match shape:
        case Text():
            yield from _text(shape, value, path)
        case Number():
            yield from _number(shape, value, path)
        case Flag():
            if not isinstance(value, bool):
                yield f"{path}: must be true or false"
        case Texts():
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                yield f"{path}: must be a list of texts"
            elif shape.choices:
                yield from (
                    f"{path}: {shown(item)} is unknown{suggestion(item, shape.choices, 1)}"
                    for item in value
                    if item not in shape.choices
                )
        case Table():
            yield from _table(shape, value, path)
        case Each():
            if not isinstance(value, dict):
                yield f"{path}: must be a table"
                return
            for name, entry in value.items():
                yield from problems(shape.of, entry, _inside(path, name))
        case Rows():
            if not isinstance(value, list):
                yield f"{path}: must be a list of tables [[…]]"
                return
            for number, entry in enumerate(value, 1):
                yield from problems(shape.of, entry, f"{path}: row {number}")
        case Either():
            found = [list(problems(one, value, path)) for one in shape.shapes]
            if all(found):
                yield from found[0]


def _inside(path: str, key: str) -> str:
    """The path of a key: the file, then the keys that lead to it."""
    file, colon, keys = path.partition(": ")
    return f"{file}: {keys}.{key}" if colon else f"{file}: {key}"


def _text(shape: Text, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str) or not (value.strip() or shape.empty):
        yield f"{path}: must be a text" + ("" if shape.empty else " that is not empty")
    elif shape.choices and value not in shape.choices:
        yield f"{path}: {shown(value)} is none of {', '.join(shape.choices)}"
    elif shape.accepts and (said := shape.accepts(value)):
        yield f"{path}: {said}"


def _number(shape: Number, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        yield f"{path}: must be a finite number"
    elif shape.whole and value != int(value):
        yield f"{path}: must be a whole number, not {value:g}"
    elif not shape.low <= value <= shape.high:
        span = f"from {shape.low:g} to {shape.high:g}" if math.isfinite(shape.high) else f"{shape.low:g} or more"
        yield f"{path}: {value:g} is not {span}"


def _table(shape: Table, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: must be a table"
        return
    every = {**shape.required, **shape.optional}
    for name in shape.required:
        if name not in value:
            yield f"{_inside(path, name)}: missing"
    for name, entry in value.items():
        if shape_of := every.get(name, shape.others):
            yield from problems(shape_of, entry, _inside(path, name))
        else:
            yield f"{_inside(path, name)}: unknown key{suggestion(name, every, 1)}"
