"""A traced ledger of one row as records in tree order: every term with its formula, its arguments and their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.ledger import Argument, Entry, Ledger

_JOINED = {"total": " + ", "product": " × ", "maximum": ", ", "minimum": ", "}


def records(
    ledger: Ledger, roots: Sequence[str] = (), citations: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Every term of a traced ledger of one row once, below the first term that reads it; those of `roots` first.

    A record has path, value, unit, formula (the text that ran), arguments, citation (the text of the key in
    `citations`, else the key), symbol, depth in the tree, and a note that names the part that decides. Each argument
    has a value, a unit and its source: "term": path, "column", "default" or "constant": name.
    """
    tree = _Tree(ledger, citations or {})
    # What no root reaches: the terms of a layer first; symbols are shown where they are read.
    rest = sorted(ledger.entries, key=lambda path: (path.startswith("symbol/"), not path.startswith("layer/")))
    for path in (*roots, *rest):
        if path in ledger and path not in tree.seen:
            tree.walk(path, 0)
    return tree.found


class _Tree:
    """The walk over the entries, and what it has found."""

    def __init__(self, ledger: Ledger, citations: Mapping[str, str]) -> None:
        self.ledger = ledger
        self.citations = citations
        self.seen: set[str] = set()
        self.found: list[dict[str, Any]] = []

    def walk(self, path: str, depth: int) -> None:
        """Record a term, and below it those that it reads and no other has shown."""
        self.seen.add(path)
        entry = self.ledger.entries[path]
        self.found.append(self._record(path, entry, depth))
        chosen = [self.ledger.active(path)] if entry.verb == "choose" else []
        for child in (*chosen, *(a.name for a in entry.arguments.values() if a.kind == "term")):
            if child in self.ledger and child not in self.seen:  # a choice may stand for a column
                self.walk(child, depth + 1)

    def _record(self, path: str, entry: Entry, depth: int) -> dict[str, Any]:
        info, unit = entry.info, entry.unit
        # The parts of a sum, a product or a maximum stand below it, or in another place of the tree.
        shown = {n: a for n, a in entry.arguments.items() if entry.verb in {"formula", "choose"} or a.kind != "term"}
        return {
            "path": path,
            "value": plain(entry.value),
            "unit": unit.symbol if unit else "",
            "formula": info.expression if info else joined(entry),
            "arguments": {name: _argument(argument) for name, argument in shown.items()},
            "citation": self.citations.get(info.cite, info.cite) if info else "",
            "symbol": info.symbol if info else "",
            "depth": depth,
            "note": self._note(path, entry),
        }

    def _note(self, path: str, entry: Entry) -> str:
        if entry.verb == "choose":
            return f"here {self.ledger.active(path)}"
        if entry.verb == "minimum":
            least = min((entry.arguments[name] for name in entry.names), key=lambda a: float(plain(a.value)))
            return f"the least is {least.name}"
        bounds = entry.info.bounds if entry.info else entry.names if entry.verb == "maximum" else ()
        if not bounds:
            return ""
        largest = max((entry.arguments[name] for name in bounds), key=lambda a: float(plain(a.value)))
        return f"the largest is {largest.name}"


def joined(entry: Entry) -> str:
    """How the parts of a sum, a product or a maximum make its value, as text; empty for other entries."""
    if entry.verb not in _JOINED:
        return ""
    text = _JOINED[entry.verb].join(entry.names)
    return f"{entry.verb[:3]}({text})" if entry.verb in {"maximum", "minimum"} else text


def plain(value: Any) -> Any:
    """A value of one row as a plain number."""
    return value.item() if getattr(value, "size", 0) == 1 else value


def _argument(argument: Argument) -> dict[str, Any]:
    unit = argument.unit.symbol if argument.unit else ""
    return {"value": plain(argument.value), "unit": unit, argument.kind: argument.name}
