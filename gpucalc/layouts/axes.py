"""The axes of a layout: every degree and choice by which a job may be laid out over its GPUs, one row each.

This is the only list of them. Labels take their tokens and defaults from it, the search its levels and loops,
the estimate the scopes in which a term is computed once, and every reader of rows the names of the cells
that make a layout. What a cell may hold is the column of the same name in `core.columns`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.columns import COLUMNS, INPUT, Column
from gpucalc.layouts.schedules import SCHEDULES, default_schedule

LARGEST_TP = 64
LARGEST_CP = 64
LARGEST_MICRO_BATCH = 64
AUTOMATIC = -1  # recompute: the least number of layers that fits

# What of the estimate an axis decides: time and activations of one layer; activations in flight; parameters,
# their states and the exchange of gradients. An axis that decides none of them acts on the whole step alone.
LAYER, ACTIVATIONS, STATES = "layer", "activations", "states"

# Where the search enumerates an axis: an outer loop, the pipelines inside it, or what surrounds both.
CUT, PIPELINE, STATE = "cut", "pipeline", "state"

Values = Mapping[str, int]


@dataclass(frozen=True)
class Sizes:
    """The numbers of a job that bound its layouts.

    domain: GPUs of a scale-up domain. selective_matters: selective recomputation differs from none.
    """

    n_gpus: int
    layers: int
    heads: int
    experts: int
    seq_len: int
    global_batch: int
    domain: int = 1
    selective_matters: bool = True


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Divisors of a number in ascending order, up to `limit`.

    >>> divisors(12), divisors(1536, 16)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 8, 12, 16])
    """
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    both = sorted({*low, *(number // d for d in low)})
    return [d for d in both if limit is None or d <= limit]


def _as_they_are(levels: tuple[int, ...], values: Values) -> tuple[int, ...]:
    return levels


@dataclass(frozen=True)
class Axis:
    """One axis.

    token: what stands before its number in a label, or its word for a flag; "" where `words` has the tokens.
    default: the cell's value where a label leaves the token out; None: a rule of the job decides.
    decides: what of the estimate depends on it. scope: where the search enumerates it; "" where it does not.
    levels: the codes that a search tries. within: those of them that differ, given the axes in `after`.
    degree: the degrees multiply to the number of GPUs. words: token → cell, for an axis of words.
    implies: a cell that the token states too. open: the code of a cell that is not stated.
    follows: its value follows from other axes where it is not stated, so that a changed layout lets it follow again.
    title: what people call it. launchers: targets of `export` that can say it; None: each judges for itself.
    """

    name: str
    token: str
    default: Any = 1
    decides: frozenset[str] = frozenset()
    scope: str = ""
    levels: Callable[[Sizes], tuple[int, ...]] = lambda sizes: (1,)
    within: Callable[[tuple[int, ...], Values], tuple[int, ...]] = _as_they_are
    after: tuple[str, ...] = ()
    degree: bool = False
    words: Callable[[], Mapping[str, Any]] | None = None
    implies: tuple[str, Any] | None = None
    open: int = 0
    follows: bool = False
    title: str = ""
    launchers: frozenset[str] | None = frozenset()

    @functools.cached_property
    def column(self) -> Column:
        """The column of the row schema that holds it."""
        return INPUT[self.name]

    def code(self, cell: Any) -> int:
        """The number that stands for a cell in the columns of the estimate.

        >>> AXES["schedule"].code("1f1b"), AXES["tp"].code(8), AXES["recompute"].code(None)
        (2, 8, -1)
        """
        if cell is None:
            return self.open
        return self.column.choices.index(cell) if self.column.kind == "choice" else int(cell)

    def cell(self, code: int) -> Any:
        """The cell that a number stands for; None for one that is not stated."""
        if self.column.kind == "choice":
            return None if code < 0 else self.column.choices[code]
        if self.column.kind == "flag":
            return bool(code)
        return None if self.default is None and code == self.open and code < self.column.minimum else int(code)

    def default_cell(self, cells: Mapping[str, Any]) -> Any:
        """The cell where a label leaves the token out, beside the other cells of the label."""
        return self.default(cells) if callable(self.default) else self.default


def _decides(*parts: str) -> frozenset[str]:
    return frozenset(parts)


_EVERYTHING = _decides(LAYER, ACTIVATIONS, STATES)
_ROWS = (
    Axis(
        "tp",
        "tp",
        decides=_EVERYTHING,
        scope=CUT,
        degree=True,
        levels=lambda s: tuple(divisors(s.n_gpus, LARGEST_TP)),
        launchers=None,
    ),
    Axis(
        "pp",
        "pp",
        decides=_decides(ACTIVATIONS, STATES),
        scope=PIPELINE,
        degree=True,
        levels=lambda s: tuple(divisors(s.n_gpus, s.layers)),
        launchers=None,
    ),
    # No levels: the replicas are what the other degrees leave of the GPUs.
    Axis("dp", "dp", decides=_decides(ACTIVATIONS, STATES), scope=PIPELINE, degree=True, follows=True, launchers=None),
    Axis(
        "cp",
        "cp",
        decides=_EVERYTHING,
        scope=CUT,
        degree=True,
        levels=lambda s: tuple(divisors(s.n_gpus, min(LARGEST_CP, max(1, s.seq_len // 1024)))),
        launchers=None,
    ),
    Axis(
        "ep",
        "ep",
        decides=_EVERYTHING,
        scope=CUT,
        levels=lambda s: tuple(divisors(s.experts)) if s.experts else (1,),
        launchers=None,
    ),
    Axis(
        "etp",
        "etp",
        decides=_EVERYTHING,
        scope=CUT,
        levels=lambda s: (0, 1) if s.experts else (0,),  # 0: as tp
        within=lambda levels, v: tuple(dict.fromkeys(v["tp"] if level == 0 else level for level in levels)),
        after=("tp",),
        follows=True,
        launchers=None,
    ),
    Axis(
        "vpp",
        "vpp",
        decides=_decides(ACTIVATIONS),
        scope=PIPELINE,
        levels=lambda s: (0,),  # 0: every divisor of a stage's layers
        follows=True,
        launchers=None,
    ),
    Axis(
        "micro_batch",
        "mbs",
        default=None,
        decides=_decides(LAYER, ACTIVATIONS),
        scope=CUT,
        levels=lambda s: tuple(divisors(s.global_batch, LARGEST_MICRO_BATCH)),
        title="micro-batch",
        launchers=None,
    ),
    Axis(
        "zero_stage",
        "zero",
        default=None,
        decides=_decides(STATES),
        scope=STATE,
        levels=lambda s: (0, 1, 2, 3),
        title="ZeRO",
        launchers=None,
    ),
    Axis(
        "shard_group",
        "shard",
        default=None,
        decides=_decides(STATES),
        scope=STATE,
        levels=lambda s: (0, s.domain) if 1 < s.domain < s.n_gpus else (0,),  # 0: all of dp·cp
        within=lambda levels, v: levels if v["zero_stage"] == 3 else levels[:1],
        after=("zero_stage",),
        title="shard group",
        launchers=None,
    ),
    Axis(
        "sequence_parallel",
        "sp",
        default=False,
        decides=_EVERYTHING,
        scope=CUT,
        levels=lambda s: (0, 1),
        within=lambda levels, v: levels if v["tp"] > 1 else (0,),
        after=("tp",),
        title="sequence parallelism",
        launchers=None,
    ),
    Axis(
        "schedule",
        "",
        default=lambda cells: default_schedule(cells["pp"], cells["vpp"]),
        decides=_decides(ACTIVATIONS),
        scope=PIPELINE,
        levels=lambda s: tuple(row.code for row in SCHEDULES.values() if row.token),
        words=lambda: {row.token: row.name for row in SCHEDULES.values() if row.token},
        follows=True,
        title="schedule",
        launchers=None,
    ),
    Axis(
        "cp_kind",
        "",
        default="ring",
        decides=_EVERYTHING,
        scope=STATE,
        levels=lambda s: tuple(range(len(INPUT["cp_kind"].choices))),
        within=lambda levels, v: levels if v["cp"] > 1 else levels[:1],
        after=("cp",),
        words=lambda: {word: word for word in INPUT["cp_kind"].choices},
        title="context parallelism",
        launchers=None,
    ),
    Axis(
        "recompute",
        "",
        default=None,
        scope=STATE,
        levels=lambda s: (0, 1, 2, AUTOMATIC) if s.selective_matters else (0, 2, AUTOMATIC),
        words=lambda: {word: word for word in INPUT["recompute"].choices},
        open=AUTOMATIC,
        title="recompute",
        launchers=None,
    ),
    Axis("recompute_layers", "full", default=None, implies=("recompute", "full"), launchers=None),
    Axis(
        "offload_optimizer",
        "offload-opt",
        default=False,
        decides=_decides(STATES),
        title="optimizer state",
        launchers=None,
    ),
    Axis(
        "offload_activations",
        "offload-act",
        default=False,
        decides=_decides(ACTIVATIONS),
        title="activations",
        launchers=None,
    ),
)

# name → axis, in the order of label tokens; `register` adds to it.
AXES: dict[str, Axis] = {axis.name: axis for axis in _ROWS}


def searched_axes() -> tuple[str, ...]:
    """The axes that a search enumerates, in the order that breaks ties between layouts."""
    return tuple(name for name, axis in AXES.items() if axis.scope)


def decided_axes() -> tuple[str, ...]:
    """The axes that the answer of a search decides: those it enumerates, and those that refine one of them.

    The others (what is moved to the host) belong to the question.
    """
    return tuple(name for name, axis in AXES.items() if axis.scope or axis.implies)


def of_scope(scope: str) -> tuple[str, ...]:
    """The axes that a search enumerates in one place.

    >>> of_scope("pipeline")
    ('pp', 'dp', 'vpp', 'schedule')
    """
    return tuple(name for name, axis in AXES.items() if axis.scope == scope)


def degree_axes() -> tuple[str, ...]:
    """The axes whose product is the number of GPUs.

    >>> degree_axes()
    ('tp', 'pp', 'dp', 'cp')
    """
    return tuple(name for name, axis in AXES.items() if axis.degree)


def outside(*parts: str) -> tuple[str, ...]:
    """The axes that decide none of some parts of the estimate, so that a term of these need not see them.

    >>> outside("layer", "activations")
    ('zero_stage', 'shard_group', 'recompute', 'recompute_layers', 'offload_optimizer')
    """
    return tuple(name for name, axis in AXES.items() if axis.decides.isdisjoint(parts))


@contextlib.contextmanager
def register(axis: Axis, column: Column) -> Iterator[Axis]:
    """Add an axis and its column of the row schema, for the time of a `with` block."""
    if axis.name in AXES or column.name in COLUMNS or axis.name != column.name:
        raise ValueError(f"{axis.name!r} is registered twice, or its column has another name")
    AXES[axis.name] = axis
    INPUT[column.name] = COLUMNS[column.name] = column
    try:
        yield axis
    finally:
        del AXES[axis.name], INPUT[column.name], COLUMNS[column.name]
