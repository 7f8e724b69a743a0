"""CSV out: full precision, units in the column names, one line end on every machine."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from gpucalc.columns import cell_text


def csv_cell(value: Any) -> str:
    """A value as a CSV cell; nested ones as JSON.

    >>> csv_cell(0.1), csv_cell({"tp": 8}), csv_cell(None)
    ('0.1', '{"tp": 8}', '')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple):
        from gpucalc.render.jsonout import plain

        return json.dumps(plain(value), ensure_ascii=False)
    return cell_text(value)


def write_csv(
    out: TextIO, columns: Sequence[str], blocks: Iterable[Sequence[Mapping[str, Any]]], *, header: bool = True
) -> None:
    """Write the header and each block as it comes."""
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(columns)
    for block in blocks:
        writer.writerows([csv_cell(row.get(column)) for column in columns] for row in block)
