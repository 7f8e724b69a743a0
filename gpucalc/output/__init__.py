"""Answers as text: tables for people, csv, json, jsonl and md for programs and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from gpucalc.core.errors import UsageError, suggestion

FORMATS = ("table", "csv", "json", "jsonl", "md")

Row = Mapping[str, Any]


def choose_columns(wanted: str | None, known: Sequence[str]) -> list[str]:
    """The columns of a comma-separated list, in its order; all of them without one.

    Raises UsageError that lists every name that is not known.
    """
    if wanted is None:
        return list(known)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise UsageError("--columns names no column")
    problems = []
    for name in names:
        if name not in known:
            problems.append(f"--columns: unknown column {name!r}{suggestion(name, known)}")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        problems.append("--columns names " + ", ".join(doubled) + " twice")
    if problems:
        raise UsageError(*problems)
    return names


def write_rows(
    out: TextIO, form: str, columns: Sequence[str] | None, blocks: Iterable[Sequence[Row]], *, header: bool = True
) -> None:
    """Write blocks of rows in one of `FORMATS`; csv, json and jsonl stream, a table needs all rows first.

    Without `columns` (json and jsonl only) each record keeps its own.
    """
    if columns is None and form not in {"json", "jsonl"}:
        raise ValueError(f"{form} needs its columns")
    if form == "csv":
        from gpucalc.output.delimited import write_csv

        write_csv(out, columns or (), blocks, header=header)
    elif form == "jsonl":
        from gpucalc.output.jsonout import write_json_lines

        write_json_lines(out, columns, blocks)
    elif form == "json":
        from gpucalc.output.jsonout import write_json_array

        write_json_array(out, columns, blocks)
    else:
        from gpucalc.output.table import table

        rows = [row for block in blocks for row in block]
        text = table(columns or (), rows, markdown=form == "md", header=header)
        if form == "table":
            from gpucalc.output.colour import dressed

            text = dressed(text, out, header=header)
        out.write(text + "\n")
