"""An explanation as a tree: each term with its value, formula, substituted values and citation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.render.table import facts, one_line, significant
from gpucalc.units import scale_for

WIDTH = 110  # characters; fixed, since the format never depends on the terminal


def quantity(value: Any, unit: str) -> str:
    """A value with its unit, scaled to be readable.

    >>> quantity(0.0123, "s"), quantity(85899345920.0, "B"), quantity(8, "")
    ('12.3 ms', '80 GiB', '8')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return one_line(str(value))
    if not math.isfinite(value):
        return str(value)
    divisor, shown = scale_for(value, unit)
    return f"{significant(value / divisor)} {shown}".strip()


def _wrap(text: str, indent: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _term(term: Mapping[str, Any]) -> list[str]:
    depth = int(term.get("depth") or 0)
    lead = "  " * depth
    path = str(term["path"])
    name = path if depth == 0 else path.rsplit("/", 1)[-1]
    line = f"{lead}{name:<{max(1, 44 - len(lead))}} {quantity(term['value'], term.get('unit') or ''):>14}"
    if term.get("note"):
        line += f"   {one_line(str(term['note']))}"
    lines = [line]
    formula = term.get("formula")
    if formula:
        symbol = term.get("symbol")
        lines += _wrap(f"{symbol} = {formula}" if symbol else str(formula), lead + "    ")
    arguments = term.get("arguments") or {}
    if arguments:
        shown = ", ".join(f"{n} = {_argument(v)}" for n, v in arguments.items())
        lines += _wrap(f"with {shown}", lead + "    ")
    if term.get("citation"):
        lines += _wrap(f"[{term['citation']}]", lead + "    ")
    return lines


def _argument(value: Any) -> str:
    if isinstance(value, Mapping) and "value" in value:
        return quantity(value["value"], str(value.get("unit") or ""))
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], str):
        return quantity(value[0], value[1])
    return quantity(value, "")


def tree(pairs: Sequence[tuple[str, str]], terms: Sequence[Mapping[str, Any]], summary: Sequence[str]) -> str:
    """The facts a reader doubts first, the terms as a tree, and the summary."""
    lines = [facts(pairs)] if pairs else []
    group = ""
    for term in terms:
        root = str(term["path"]).split("/", 1)[0]
        if root != group and int(term.get("depth") or 0) == 0:
            lines.append("")
            group = root
        lines += _term(term)
    if summary:
        lines += ["", *(one_line(line) for line in summary)]
    return "\n".join(lines).strip("\n")


def ledger_terms(ledger: Any) -> list[dict[str, Any]]:
    """The terms of a traced ledger of one row, in the order in which they were computed."""
    return [_ledger_term(path, entry) for path, entry in ledger.entries.items() if not path.startswith("symbol/")]


def _ledger_term(path: str, entry: Any) -> dict[str, Any]:
    joined = {"total": " + ", "maximum": ", "}.get(entry.verb, ", ")
    parts = joined.join(entry.parts)
    formula = entry.info.expression if entry.info else f"max({parts})" if entry.verb == "maximum" else parts
    units = entry.info.units if entry.info else {}
    return {
        "path": path,
        "value": _plain(entry.value),
        "unit": entry.unit.symbol if entry.unit else "",
        "formula": formula,
        "arguments": {
            name: {"value": _plain(value), "unit": units[name].symbol if name in units else ""}
            for name, value in entry.arguments.items()
        }
        if entry.verb == "formula"
        else {},
        "citation": entry.info.cite if entry.info else "",
        "symbol": entry.info.symbol if entry.info else "",
    }


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "size", 0) == 1 else value
