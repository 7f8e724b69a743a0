"""Tables for people: each column scaled once, its unit in the heading; the same on every terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.units import scale_for

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str) -> str:
    """Text without line ends or control characters, which would break a table or act on a terminal.

    >>> one_line("a\\n\\x1b[31mb")
    'a [31mb'
    """
    return _CONTROL.sub(" ", text)


def significant(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, grouped by thousands, never in exponents unless tiny or huge.

    >>> significant(1234.567), significant(0.012361), significant(3.0), significant(1.5e-9)
    ('1,235', '0.01236', '3', '1.5e-09')
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 15:
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _column(name: str) -> Column:
    return COLUMNS.get(name) or Column(name, "text", name, heading=name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _formatted(column: Column, values: list[Any]) -> tuple[str, list[str], bool]:
    """Heading, cells, and whether the column is set to the right."""
    values = [v.item() if hasattr(v, "item") else v for v in values]
    numbers = [v for v in values if _is_number(v) and math.isfinite(v)]
    unit, divisor = column.unit, 1.0
    if column.scale and numbers:
        divisor, unit = scale_for(max(map(abs, numbers)), column.scale)
    heading = f"{column.title} [{unit}]" if unit else column.title

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not _is_number(value):
            return one_line(str(value))
        if not math.isfinite(value):
            return ""
        if isinstance(value, int) and divisor == 1:
            return f"{value:,}" if column.unit or abs(value) >= 100_000 else str(value)
        if column.scale or column.kind != "number":
            return significant(value / divisor)
        return f"{value:,.{column.decimals}f}"

    return heading, [cell(v) for v in values], bool(numbers) and all(v is None or _is_number(v) for v in values)


def table(
    columns: Sequence[str | Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    markdown: bool = False,
    header: bool = True,
) -> str:
    """A table of `rows`; a column may be given as a record of its own."""
    from tabulate import tabulate

    records = [c if isinstance(c, Column) else _column(c) for c in columns]
    parts = [_formatted(c, [row.get(c.name) for row in rows]) for c in records]
    headings = [heading for heading, _, _ in parts]
    body = [list(cells) for cells in zip(*(cells for _, cells, _ in parts), strict=True)]
    if markdown:
        headings = [h.replace("|", "\\|") for h in headings]
        body = [[cell.replace("|", "\\|") for cell in line] for line in body]
    if not body:  # tabulate has no columns to align without rows
        return tabulate([headings] if header else [], tablefmt="plain")
    text = tabulate(
        body,
        headers=headings if header else (),
        tablefmt="github" if markdown else ("simple" if header else "plain"),
        disable_numparse=True,
        colalign=["right" if right else "left" for _, _, right in parts],
    )
    return "\n".join(line.rstrip() for line in text.split("\n"))


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values as two aligned columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {one_line(value)}".rstrip() for name, value in pairs)
