"""Cells of a job from a row on standard input."""

from __future__ import annotations

from typing import Any

from gpucalc.cli.output import to_stderr
from gpucalc.core.errors import DataError


def row_from_stdin() -> dict[str, Any]:
    """The typed cells of the first row on standard input; its label counts where the row lacks the cells."""
    from gpucalc.core.columns import parse_row
    from gpucalc.core.rows import read_rows, text_record
    from gpucalc.layouts.label import label_cells

    rows = read_rows("-", block=2)
    block = next(rows.blocks, [])
    if not block:
        raise DataError("standard input holds no row; pipe plan -f csv into it")
    if len(block) > 1:
        to_stderr("gpucalc: explaining the first row")
    record = text_record(block[0])
    cells, problems = parse_row(record)
    if problems:
        raise DataError(*problems)
    if cells.get("notes"):
        to_stderr(*(f"note: {note}" for note in str(cells["notes"]).split("; ")))
    label = record.get("layout", "").strip()
    return {**(label_cells(label) if label else {}), **cells}
