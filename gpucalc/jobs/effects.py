"""Stated cells that change nothing: found by trying, for any cell and any question.

A cell has no effect where the answer is the same without it and with every other value of it. Which cell overrides it
is found the same way: without that one it has an effect. No list of pairs is kept, so a new column needs no rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from gpucalc.core.columns import COLUMNS, MEASURED, Column

Cells = Mapping[str, Any]
Answer = Callable[[Sequence[Cells]], Sequence[Hashable | None]]

# What names a row or is carried through, and what every question is about.
SUBJECT = frozenset(("id", "notes", "model", "gpu", "n_gpus", *MEASURED))
MONTHS = ("2021-01", "2023-06", "2026-06")


def other_values(column: Column | None, value: Any) -> Iterator[Any]:
    """Other values that a cell might hold: the remaining choices, or numbers around the stated one.

    >>> list(other_values(COLUMNS["zero_stage"], 1)), list(other_values(COLUMNS["dropout"], True))
    ([2, 0, 3], [False])
    """
    kind = column.kind if column is not None else ""
    if kind in {"flag"}:
        yield not value
    elif kind == "choice" and column is not None:
        yield from (choice for choice in column.choices if choice != value)
    elif kind == "month":
        yield from (month for month in MONTHS if month != value)
    elif kind == "share":
        yield from (share for share in (value / 2, 0.5, (1 + value) / 2) if share != value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least = column.minimum if column is not None else 0
        most = column.maximum if column is not None else float("inf")
        whole = isinstance(value, int)
        near = (2 * value, value // 2 if whole else value / 2, *((value + 2, 1, least) if whole else ()))
        yield from (int(n) if whole else n for n in dict.fromkeys(near) if least <= n <= most and n != value)


def without_effect(
    cells: Cells,
    stated: Sequence[str],
    answer: Answer,
    columns: Mapping[str, Column] = COLUMNS,
    words: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, str]:
    """The names of `stated` that change nothing, each with the stated name that overrides it ("" for none).

    answer: what is predicted for each of several questions, as values that can be compared; None where a question is
    refused. words: other values of cells that hold a text. A cell without another value that could be asked is passed
    over: nothing is known of it.
    """
    base = answer([cells])[0]
    names = [name for name in stated if name in cells and name not in SUBJECT]
    if base is None or not names:
        return {}
    bare = answer([_less(cells, name) for name in names])
    idle = [name for name, found in zip(names, bare, strict=True) if found == base]
    found: dict[str, str] = {}
    for name in idle:
        others = list((words or {}).get(name, ())) or list(other_values(columns.get(name), cells[name]))
        answers = [one for one in answer([{**cells, name: value} for value in others]) if one is not None]
        if answers and all(one == base for one in answers):
            found[name] = _overriding(cells, name, others, [n for n in stated if n in cells and n != name], answer)
    return found


def _less(cells: Cells, *names: str) -> dict[str, Any]:
    return {name: value for name, value in cells.items() if name not in names}


def _overriding(cells: Cells, name: str, values: Sequence[Any], others: Sequence[str], answer: Answer) -> str:
    """The first other stated cell without which the named one has an effect; `values` are what that might hold."""
    for other in others:
        rest = _less(cells, other)
        kept, *varied = answer([rest, _less(rest, name), *({**rest, name: value} for value in values)])
        if kept is not None and any(one is not None and one != kept for one in varied):
            return other
    return ""


def sentences(found: Mapping[str, str], flags: Mapping[str, str]) -> list[str]:
    """One sentence for each cell without effect; `flags` says how each was written.

    >>> sentences({"software_date": "profile", "nics_per_node": ""}, {"profile": "--profile fsdp"})
    ['software_date changes nothing: --profile fsdp decides it', 'nics_per_node changes nothing here']
    """
    return [
        f"{flags.get(name, name)} changes nothing" + (f": {flags.get(other, other)} decides it" if other else " here")
        for name, other in found.items()
    ]
