"""The layout label: `tp8-pp4-dp2-mbs1-zero1-sp` ↔ the cells of a layout, exactly, both ways.

Tokens stand in the order of `axes.AXES` and each is left out at its default, so a label names one layout in every
command: what `plan` prints is what `explain` evaluates and what `plan --layout` ranks alone. What a search is to
choose is said with a star: `tp8-pp*` leaves the stages free, a bare `*` everything that the label does not state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError, nearest
from gpucalc.layouts.axes import AXES, Axis, searched_axes

LARGEST = 10**9  # more ranks, layers or sequences than this is a slip of the hand
EXAMPLE = "tp8-pp4-dp2-mbs1-zero1-sp"
FREE = "*"


class Layout(Mapping[str, Any]):
    """How a job is laid out over its GPUs: a cell for each axis; None means that a rule of the job decides.

    Cells that are not given have the default of their axis. Schedule "" or "none" means the default of pp and vpp.
    With recompute "full", `recompute_layers` limits it to that many layers of each stage's share.
    """

    def __init__(self, **cells: Any) -> None:
        values = {name: cells.get(name) for name in AXES}
        for name, axis in AXES.items():
            if values[name] is None or (axis.default is None and values[name] == 0 and axis.column.minimum > 0):
                values[name] = None if callable(axis.default) else axis.default
        if not values["recompute_layers"]:
            values["recompute_layers"] = None
        elif values["recompute"] is None:
            values["recompute"] = "full"
        if values["recompute"] != "full":
            values["recompute_layers"] = None
        if values["schedule"] in {None, "", "none"}:
            values["schedule"] = AXES["schedule"].default_cell(values)
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Layout({self.label()!r})"

    def label(self) -> str:
        """The label, tokens in their order, each left out at its default; a layout of defaults alone is "tp1".

        >>> Layout(tp=8, pp=4, dp=2, micro_batch=1, zero_stage=1, sequence_parallel=True).label()
        'tp8-pp4-dp2-mbs1-zero1-sp'
        """
        stated = {n for n, axis in AXES.items() if self[n] != axis.default_cell(self._values)}
        implied = {AXES[name].implies for name in stated}
        shown = [name for name in AXES if name in stated and (name, self[name]) not in implied]
        return "-".join(_token_of(AXES[name], self[name]) for name in shown) or "tp1"

    def cells(self) -> dict[str, Any]:
        """The cells of the row schema; what is not stated is left out."""
        return {name: value for name, value in self._values.items() if value is not None}

    @classmethod
    def from_cells(cls, cells: Mapping[str, Any]) -> Layout:
        """The layout in a row's typed cells; other cells and empty ones are passed over."""
        return cls(**{n: v for n, v in cells.items() if n in AXES and v is not None})

    @classmethod
    def from_label(cls, text: str) -> Layout:
        """The layout that a label means."""
        return cls.from_cells(parse_label(text))


def layout_label(cells: Mapping[str, Any], experts: int) -> str:
    """The label of a layout's cells, which shows etp only where there are experts.

    >>> layout_label({"tp": 4, "etp": 4, "dp": 2}, 0), layout_label({"tp": 4, "etp": 4, "dp": 2}, 8)
    ('tp4-dp2', 'tp4-dp2-etp4')
    """
    return Layout.from_cells(cells if experts else {**cells, "etp": 1}).label()


def _token_of(axis: Axis, cell: Any) -> str:
    if axis.words is not None:
        return next(token for token, value in axis.words().items() if value == cell)
    return axis.token if cell is True else f"{axis.token}{cell}"


# --- reading ------------------------------------------------------------------------------------------------


def _words() -> dict[str, tuple[str, Any]]:
    """Token without a number → the cell that it states."""
    found: dict[str, tuple[str, Any]] = {}
    for name, axis in AXES.items():
        if axis.words is not None:
            found.update({token: (name, cell) for token, cell in axis.words().items()})
        elif axis.column.kind == "flag":
            found[axis.token] = (name, True)
    return found


def _counts() -> dict[str, Axis]:
    """Token before a number → its axis."""
    return {axis.token: axis for axis in AXES.values() if axis.words is None and axis.column.kind == "int"}


def _tokens(text: str) -> list[str]:
    """The label's tokens; a dash inside one, as in offload-opt, does not part."""
    text = text.strip().casefold()
    for token in _words():
        if "-" in token:
            text = re.sub(rf"\b{token.replace('-', '[-_]')}\b", token.replace("-", "_"), text)
    return text.split("-")


def _token(token: str) -> tuple[tuple[str, Any], ...]:
    """The cells that a token states: its own first, then one that it implies."""
    words, counts = _words(), _counts()
    word = token.replace("_", "-")
    if word in words:
        return (words[word],)
    match = re.fullmatch(r"([a-z]+)([0-9]+)", word)
    if not match or match[1] not in counts:
        raise UsageError(_unknown(token))
    axis, number = counts[match[1]], match[2]
    least, most = 1 if axis.implies else axis.column.minimum, min(axis.column.maximum, LARGEST)
    if len(number) > 10 or not least <= int(number) <= most:
        raise UsageError(f"{token!r}: the number after {axis.token} must be between {least:g} and {most:.10g}")
    own = ((axis.name, int(number)),)
    return (axis.implies, *own) if axis.implies else own


def _unknown(token: str) -> str:
    shown = token if len(token) <= 40 else token[:39] + "…"
    counts = _counts()
    if not token:
        return "an empty token (two dashes in a row, or a dash at an end)"
    if token in counts:
        return f"{token!r} lacks its number; write for example {token}2"
    known = [*(f"{name}N" for name in counts), *_words()]
    number = "".join(re.findall(r"[0-9]+$", shown))
    near = nearest(re.sub(r"[0-9]+$", "N", shown), known, 1) or nearest(shown, known, 1)
    hint = f", did you mean {re.sub('N$', number or '2', near[0])}?" if near else ""
    return f"unknown token {shown!r}{hint}"


def _free(token: str) -> str:
    """The axis that a token with a star leaves free."""
    word = token.removesuffix(FREE).replace("_", "-")
    for name, axis in AXES.items():
        if word in {axis.token, name.replace("_", "-")}:
            if not axis.scope:
                raise UsageError(f"{token!r}: {name} is not searched; state it or leave it out")
            return name
    raise UsageError(_unknown(token))


@dataclass(frozen=True)
class Restriction:
    """What a label says of a search: the cells it states, and the axes that the search chooses.

    All others have their default. dp is free where it is not stated: it follows from the number of GPUs.
    """

    cells: Mapping[str, Any]
    free: frozenset[str]

    def closed(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The cells of a search with the default of every axis that is neither among them nor free.

        A default that a rule of the job decides is the tuple (None,).
        """
        found = dict(cells)
        for name in searched_axes():
            axis = AXES[name]
            if found.get(name) is None and name not in self.free and name != "dp":
                found[name] = (None,) if callable(axis.default) or axis.default is None else axis.default
        if found.get("micro_batch") == (None,):
            found["micro_batch"] = 1
        return found


def read_restriction(text: str) -> Restriction:
    """A label that may hold stars, in any order and case.

    Raises UsageError that lists every bad or repeated token.

    >>> read_restriction("tp8-pp*").cells, sorted(read_restriction("tp8-pp*").free)
    ({'tp': 8}, ['pp'])
    """
    if not text.strip():
        raise UsageError(f"the layout label is empty; write for example {EXAMPLE}")
    cells: dict[str, Any] = {}
    free: set[str] = set()
    rest: frozenset[str] = frozenset()
    problems: list[str] = []
    for token in _tokens(text):
        try:
            if token == FREE:
                rest = frozenset(searched_axes())
                continue
            if token.endswith(FREE):
                free.add(_free(token))
                continue
            for index, (name, value) in enumerate(_token(token)):
                if name in cells and index == 0:
                    problems.append(f"{token!r} states {name} a second time")
                cells.setdefault(name, value)
        except UsageError as error:
            problems.extend(error.problems)
    problems += [f"{name} is stated and left free" for name in cells if name in free]
    if problems:
        shown = text.strip() if len(text) <= 80 else text.strip()[:79] + "…"
        raise UsageError(f"layout {shown!r}: " + ", ".join(problems[:8]))
    return Restriction(cells, (rest | free) - set(cells))


def parse_label(text: str) -> dict[str, Any]:
    """The cells that the tokens of one layout's label state.

    Raises UsageError that lists every bad or repeated token, and for a star.

    >>> parse_label("tp8-sp-full12")
    {'tp': 8, 'sequence_parallel': True, 'recompute': 'full', 'recompute_layers': 12}
    """
    found = read_restriction(text)
    if FREE in text:
        raise UsageError(
            f"layout {text.strip()!r} leaves a choice (*), and one layout is asked for; plan, scale and sweep search"
        )
    return dict(found.cells)


def label_cells(text: str) -> dict[str, Any]:
    """All cells of the row schema that a label decides, its defaults included.

    dp is among them only when stated; a label without it follows from the number of GPUs.

    >>> label_cells("tp2-mbs1")["pp"], "dp" in label_cells("tp2-mbs1")
    (1, False)
    """
    stated = parse_label(text)
    cells = Layout.from_cells(stated).cells()
    if "dp" not in stated:
        del cells["dp"]
    return cells
