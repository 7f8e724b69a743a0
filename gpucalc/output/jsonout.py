"""JSON and JSON lines out: full precision; what JSON cannot say (NaN, infinity) is null."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO


def plain(value: Any) -> Any:
    """A value in JSON's own types, numpy's scalars and arrays included.

    >>> plain({"a": float("nan"), "b": (1, True)})
    {'a': None, 'b': [1, True]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy, without importing it
        return plain(value.tolist())
    return str(value)


def _record(row: Mapping[str, Any], columns: Sequence[str] | None) -> str:
    # A column that a record lacks is left out; one that it holds as null stays.
    kept = {str(column): plain(row[column]) for column in (row if columns is None else columns) if column in row}
    return json.dumps(kept, ensure_ascii=False, allow_nan=False)


def write_json_lines(out: TextIO, columns: Sequence[str] | None, blocks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """One object a line."""
    for block in blocks:
        out.writelines(_record(row, columns) + "\n" for row in block)


def write_json_array(out: TextIO, columns: Sequence[str] | None, blocks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """An array of objects, one a line, written as the blocks come."""
    lead = "[\n"
    for block in blocks:
        for row in block:
            out.write(lead + _record(row, columns))
            lead = ",\n"
    out.write("\n]\n" if lead == ",\n" else "[]\n")


def write_json(out: TextIO, value: Any) -> None:
    """One document."""
    out.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n")
