"""CSV out: full precision, units in the column names, one line end on every machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from gpucalc.core.columns import cell_text


def csv_cell(value: Any) -> str:
    """A value as a CSV cell; nested ones as JSON.

    >>> csv_cell(0.1), csv_cell({"tp": 8}), csv_cell(None)
    ('0.1', '{"tp": 8}', '')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple):
        from gpucalc.output.jsonout import plain

        return json.dumps(plain(value), ensure_ascii=False)
    return cell_text(value)


_QUOTED = re.compile(r'[",\r\n]|^#')


def csv_line(cells: Iterable[str]) -> str:
    """Cells as one line of CSV.

    The library's writer leaves a bare carriage return unquoted when lines end in "\\n", and every
    reader then sees a new line there.

    >>> csv_line(["a", "b,c", ""])
    'a,"b,c",\\n'
    """
    cells = list(cells)
    line = ",".join(cells)
    plain = not any(mark in line for mark in ('"', "\r", "\n", "#")) and line.count(",") == len(cells) - 1
    if line and plain:  # nearly every line, and much faster than looking at each cell
        return line + "\n"
    shown = ['"' + cell.replace('"', '""') + '"' if _QUOTED.search(cell) else cell for cell in cells]
    return (",".join(shown) if shown != [""] else '""') + "\n"


def write_csv(
    out: TextIO, columns: Sequence[str], blocks: Iterable[Sequence[Mapping[str, Any]]], *, header: bool = True
) -> None:
    """Write the header and each block as it comes; nothing before the first block is there without a fault."""
    heading = csv_line(columns) if header else ""
    for block in blocks:
        out.write(heading)
        heading = ""
        out.writelines(csv_line(csv_cell(row.get(column)) for column in columns) for row in block)
    out.write(heading)
