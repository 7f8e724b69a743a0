"""An explanation as a tree: each term with its value, formula, substituted values and citation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.units import scale_for
from gpucalc.output.table import facts, one_line, significant

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


def _term(term: Mapping[str, Any], parent: str, references: list[str]) -> list[str]:
    lead = "  " * _depth(term)
    path = str(term["path"])
    # Below its own path a term shows only what it adds to it.
    name = path.removeprefix(f"{parent}/") if parent else path
    line = f"{lead}{name:<{max(1, 50 - len(lead))}} {quantity(term['value'], term.get('unit') or ''):>14}"
    if term.get("note"):
        line += f"   {one_line(str(term['note']))}"
    lines = [line]
    formula, citation = term.get("formula"), term.get("citation")
    if formula:
        symbol = term.get("symbol")
        text = f"{symbol} = {formula}" if symbol else f"= {formula}"
        if citation:
            if citation not in references:
                references.append(citation)
            text += f"   [{references.index(citation) + 1}]"
        lines += _wrap(text, lead + "    ")
    arguments = term.get("arguments") or {}
    if arguments:
        shown = ", ".join(f"{n} = {_argument(n, v)}" for n, v in arguments.items())
        lines += _wrap(f"with {shown}", lead + "    ")
    return lines


def _depth(term: Mapping[str, Any]) -> int:
    return int(term.get("depth") or 0)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, Mapping) and "value" in value:
        shown = quantity(value["value"], str(value.get("unit") or ""))
        source = next((str(value[kind]) for kind in ("term", "column", "constant") if value.get(kind)), "")
        return shown if source.rsplit("/", 1)[-1] == name else f"{shown} ({source})" if source else shown
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], str):
        return quantity(value[0], value[1])
    return quantity(value, "")


def tree(
    pairs: Sequence[tuple[str, str]],
    terms: Sequence[Mapping[str, Any]],
    summary: Sequence[str],
    *,
    deepest: int | None = None,
    roots: Sequence[str] | None = None,
) -> str:
    """The facts a reader doubts first, the summary, the terms as a tree down to `deepest`, and the references.

    With `roots` only the trees below those terms are shown.
    """
    lines = [facts(pairs)] if pairs else []
    if summary:
        lines += ["", *(part for line in summary for part in _wrap(one_line(line), ""))]
    group, parents = "", [""]
    references: list[str] = []
    for term in terms:
        depth, path = _depth(term), str(term["path"])
        parents[depth + 1 :] = [path]
        if (deepest is not None and depth > deepest) or (roots is not None and parents[1] not in roots):
            continue
        root = path.split("/", 1)[0]
        if depth == 0 and root != group:
            lines.append("")
            group = root
        lines += _term(term, parents[depth], references)
    if references:
        lines += ["", *(part for n, text in enumerate(references, 1) for part in _wrap(f"[{n}] {text}", ""))]
    return "\n".join(lines).strip("\n")
