"""Every layout of a job, in blocks of columns, with the constraints that exclude the others by name.

The space is a product: how a layer is cut (tp, cp, ep, etp, micro-batch, sequence parallelism) outside, what
surrounds it (pipeline, ZeRO, recomputation) inside. Outside is a loop, inside are arrays, so a space of 10^8
layouts is enumerated in bounded memory. Columns are small integers that index their levels, which is what
`Columns.reduce` needs to find equal rows without sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.core.vocabulary import CP_KINDS, RECOMPUTES, SCHEDULES
from gpucalc.layouts.schedules import stages_held

BLOCK = 16_384
FIRST_BLOCK = 2_048
LARGEST_TP = 64
LARGEST_CP = 64
LARGEST_MICRO_BATCH = 64
AUTOMATIC = -1  # recompute: the least number of layers that fits

DIVIDES_HEADS = "tp divides heads"
DIVIDES_SEQUENCE = "cp divides the sequence"
ULYSSES_HEADS = "ulysses: tp·cp divides heads"
PARTS_GPUS = "tp·pp·cp divides the GPUs"
STAGES = "pp at most the layers"
BATCH = "dp·micro_batch divides the global batch"
DIVIDES_EXPERTS = "ep divides experts"
EXPERT_RANKS = "ep·etp divides dp·cp·tp"
INTERLEAVING = "interleaved: pp divides the micro-batches"
DUALPIPE = "dualpipe: pp even, at least 2·pp micro-batches"
SHARDING = "shard_group divides dp·cp"
PROFILE = "schedule of the stated profile"

CONSTRAINTS = (
    PARTS_GPUS,
    DIVIDES_HEADS,
    DIVIDES_SEQUENCE,
    ULYSSES_HEADS,
    STAGES,
    DIVIDES_EXPERTS,
    EXPERT_RANKS,
    PROFILE,
    BATCH,
    INTERLEAVING,
    DUALPIPE,
    SHARDING,
)


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Divisors of a number in ascending order, up to `limit`.

    >>> divisors(12), divisors(1536, 16)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 8, 12, 16])
    """
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    both = sorted({*low, *(number // d for d in low)})
    return [d for d in both if limit is None or d <= limit]


@dataclass(frozen=True)
class Space:
    """What is searched: the levels of each layout column, and the sizes that constraints compare with."""

    n_gpus: int
    layers: int
    heads: int
    experts: int
    seq_len: int
    global_batch: int
    levels: Mapping[str, tuple[Any, ...]]
    allowed_schedules: frozenset[str] | None = None  # None: all
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CONSTRAINTS, 0))
    candidates: list[int] = field(default_factory=lambda: [0])
    cache: dict[tuple[int, int], dict[str, np.ndarray]] = field(default_factory=dict)


COLUMNS = (
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "vpp",
    "micro_batch",
    "zero_stage",
    "shard_group",
    "sequence_parallel",
    "schedule",
    "cp_kind",
    "recompute",
)


def make_space(
    cells: Mapping[str, Any], layers: int, heads: int, experts: int, domain: int, selective_matters: bool
) -> Space:
    """The space of layouts of completed cells; a layout cell that is stated in `cells` has that one level, or
    those of its tuple.

    `domain` (GPUs of a scale-up domain) is the shard group offered for HSDP beside sharding over all replicas.
    """
    n, batch, seq = int(cells["n_gpus"]), int(cells["global_batch"]), int(cells["seq_len"])
    recomputes = (0, 1, 2, AUTOMATIC) if selective_matters else (0, 2, AUTOMATIC)
    free: dict[str, tuple[Any, ...]] = {
        "tp": tuple(divisors(n, LARGEST_TP)),
        "pp": tuple(divisors(n, layers)),
        "cp": tuple(divisors(n, min(LARGEST_CP, max(1, seq // 1024)))),
        "ep": tuple(divisors(experts)) if experts else (1,),
        "etp": (0, 1) if experts else (0,),  # 0: as tp
        "vpp": (0,),  # 0: every divisor of a stage's layers
        "micro_batch": tuple(divisors(batch, LARGEST_MICRO_BATCH)),
        "zero_stage": (0, 1, 2, 3),
        "shard_group": (0, domain) if 1 < domain < n else (0,),
        "sequence_parallel": (False, True),
        "schedule": tuple(s for s in SCHEDULES if s != "none"),
        "cp_kind": CP_KINDS,
        "recompute": recomputes,
    }
    stated = {name: _stated(cells[name]) for name in (*free, "dp") if cells.get(name) is not None}
    if "recompute" in stated:
        stated["recompute"] = tuple(RECOMPUTES.index(kind) for kind in stated["recompute"])
    if "schedule" in stated:
        stated["schedule"] = tuple(s for s in stated["schedule"] if s != "none")
        if not stated["schedule"]:
            stated["pp"] = (1,)
            del stated["schedule"]
    levels = {**free, **stated}
    return Space(n, layers, heads, experts, seq, batch, levels)


def _stated(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _pipelines(space: Space, tp: int, cp: int) -> dict[str, np.ndarray]:
    """Pipelines (pp, dp, vpp, schedule) that tp and cp leave room for, as arrays."""
    if (tp, cp) in space.cache:
        return space.cache[tp, cp]
    levels = space.levels
    rows: list[tuple[int, int, int, int]] = []
    for pp in levels["pp"]:
        if space.n_gpus % (tp * cp * pp):
            continue
        dp = space.n_gpus // (tp * cp * pp)
        if "dp" in levels and dp not in levels["dp"]:
            continue
        if pp == 1:
            rows.append((1, dp, 1, 0))
            continue
        depth = -(-space.layers // pp)
        for schedule in levels["schedule"]:
            code = SCHEDULES.index(schedule)
            if schedule == "interleaved":
                chunks = [v for v in divisors(depth) if v > 1] if levels["vpp"] == (0,) else list(levels["vpp"])
                if len(chunks) > 1:  # a single one that is too deep is told as the mistake that it is
                    chunks = [v for v in chunks if v <= depth]
                rows.extend((pp, dp, v, code) for v in chunks if v > 1)
            elif not {0, 1}.isdisjoint(levels["vpp"]):
                rows.append((pp, dp, 1, code))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    space.cache[tp, cp] = {name: table[:, i] for i, name in enumerate(("pp", "dp", "vpp", "schedule"))}
    return space.cache[tp, cp]


def _surroundings(space: Space, cp: int) -> dict[str, np.ndarray]:
    """Combinations of ZeRO stage, shard group, recomputation and context-parallel kind, as arrays."""
    if (0, cp) in space.cache:
        return space.cache[0, cp]
    levels = space.levels
    kinds = levels["cp_kind"] if cp > 1 else levels["cp_kind"][:1]
    rows = [
        (zero, shard, recompute, CP_KINDS.index(kind))
        for zero in levels["zero_stage"]
        for shard in (levels["shard_group"] if zero == 3 else levels["shard_group"][:1])
        for recompute in levels["recompute"]
        for kind in kinds
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    space.cache[0, cp] = {
        name: table[:, i] for i, name in enumerate(("zero_stage", "shard_group", "recompute", "cp_kind"))
    }
    return space.cache[0, cp]


CUT = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel")


def cuts(space: Space) -> np.ndarray:
    """Ways to cut a layer, one a row in the order of `CUT`; those that break a rule are counted in `space`."""
    levels, rejected = space.levels, space.rejected
    rows: list[tuple[int, ...]] = []
    for tp in levels["tp"]:
        splits = list(dict.fromkeys((ep, tp if etp == 0 else etp) for ep in levels["ep"] for etp in levels["etp"]))
        shards = levels["sequence_parallel"] if tp > 1 else (False,)
        for cp in levels["cp"]:
            each = _surrounding_rows(space, tp, cp)
            whole = each * len(splits) * len(levels["micro_batch"]) * len(shards)
            space.candidates[0] += whole
            problem = (
                PARTS_GPUS
                if space.n_gpus % (tp * cp) or not len(_pipelines(space, tp, cp)["pp"])
                else DIVIDES_HEADS
                if space.heads and space.heads % tp
                else DIVIDES_SEQUENCE
                if space.seq_len % (2 * cp if cp > 1 else 1)  # causal balancing cuts each rank's share in two
                else ""
            )
            if problem:
                rejected[problem] += whole
                continue
            for ep, etp in splits:
                if ep > 1 and space.experts % ep:
                    rejected[DIVIDES_EXPERTS] += each * len(levels["micro_batch"]) * len(shards)
                    continue
                rows.extend((tp, cp, ep, etp, mb, int(sp)) for mb in levels["micro_batch"] for sp in shards)
    return np.array(rows, dtype=np.int64).reshape(-1, len(CUT))


def _surrounding_rows(space: Space, tp: int, cp: int) -> int:
    """Layouts that share a cut; 1 where the cut leaves no pipeline."""
    return max(1, len(_pipelines(space, tp, cp)["pp"]) * len(_surroundings(space, cp)["recompute"]))


def skip(space: Space, remaining: np.ndarray) -> int:
    """Number of layouts in cuts that are not enumerated."""
    return sum(_surrounding_rows(space, int(cut[0]), int(cut[1])) for cut in remaining)


def blocks(
    space: Space,
    order: Sequence[Sequence[int]] | np.ndarray,
    go_on: Callable[[int], bool] | None = None,
    size: int = BLOCK,
) -> Iterator[dict[str, np.ndarray]]:
    """Legal layouts of the cuts in `order`, in blocks of at most `size` rows: column → integers.

    The first block is small, so that a bound is known early. Before each cut `go_on` is asked, with its place,
    whether it and those after it are still wanted.
    """
    pending: list[dict[str, np.ndarray]] = []
    rows, wanted = 0, min(size, FIRST_BLOCK)
    for place, cut in enumerate(order):
        if go_on is not None and not go_on(place):
            break
        piece = _layouts(space, *(int(value) for value in cut))
        start, length = 0, len(piece["tp"])
        while start < length:
            taken = min(wanted - rows, length - start)
            pending.append({name: column[start : start + taken] for name, column in piece.items()})
            rows, start = rows + taken, start + taken
            if rows == wanted:
                yield _joined(pending)
                pending, rows, wanted = [], 0, min(size, 2 * wanted)
    if rows:
        yield _joined(pending)


def _joined(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMNS}


def _layouts(
    space: Space, tp: int, cp: int, ep: int, etp: int, micro_batch: int, sequence_parallel: int
) -> dict[str, np.ndarray]:
    """Legal layouts of one cut; the others are counted."""
    around, inner = _surroundings(space, cp), _pipelines(space, tp, cp)
    if cp > 1 and space.heads % (tp * cp):
        wrong = around["cp_kind"] == CP_KINDS.index("ulysses")
        around = _reject(space, around, wrong, ULYSSES_HEADS, len(inner["pp"]))
    each = len(around["recompute"])
    inner = _reject(space, inner, inner["pp"] > space.layers, STAGES, each)
    if space.allowed_schedules is not None:
        wrong = ~np.isin(inner["schedule"], [SCHEDULES.index(s) for s in (*space.allowed_schedules, "none")])
        inner = _reject(space, inner, wrong, PROFILE, each)
    inner = _reject(space, inner, (inner["dp"] * cp * tp) % (ep * etp) != 0, EXPERT_RANKS, each)
    inner = _reject(space, inner, space.global_batch % (inner["dp"] * micro_batch) != 0, BATCH, each)
    batches = space.global_batch // (inner["dp"] * micro_batch)
    inner = _reject(space, inner, (inner["vpp"] > 1) & (batches % inner["pp"] != 0), INTERLEAVING, each)
    batches = space.global_batch // (inner["dp"] * micro_batch)
    dual = inner["schedule"] >= SCHEDULES.index("dualpipe")
    inner = _reject(space, inner, dual & ((inner["pp"] % 2 != 0) | (batches < 2 * inner["pp"])), DUALPIPE, each)
    count = len(inner["pp"])
    rows = {name: np.repeat(column, each) for name, column in inner.items()}
    rows |= {name: np.tile(column, count) for name, column in around.items()}
    replicas, group = rows["dp"] * cp, rows["shard_group"]
    wrong = (group > 0) & ((replicas <= group) | (replicas % np.maximum(group, 1) != 0))
    holders = replicas * tp // (ep * etp)  # ranks with the same experts; fewer than a group are one group
    if space.experts:
        wrong |= (group > 0) & (holders > group) & (holders % np.maximum(group, 1) != 0)
    rows = _reject(space, rows, wrong, SHARDING, 1)
    length = len(rows["pp"])
    fixed = dict(zip(CUT, (tp, cp, ep, etp, micro_batch, sequence_parallel), strict=True))
    return {**rows, **{name: np.full(length, value, dtype=np.int64) for name, value in fixed.items()}}


def _reject(
    space: Space, rows: dict[str, np.ndarray], wrong: np.ndarray, constraint: str, each: int
) -> dict[str, np.ndarray]:
    """The rows that are not `wrong`; the others, each standing for `each` layouts, are counted."""
    count = int(np.count_nonzero(wrong))
    if not count:
        return rows
    space.rejected[constraint] += count * each
    return {name: column[~wrong] for name, column in rows.items()}


def block_columns(base: Mapping[str, float], block: Mapping[str, np.ndarray]) -> Columns:
    """The estimate's columns of a block: the layout's as arrays, the rest from `base` as scalars."""
    values: dict[str, Any] = dict(base)
    codes: dict[str, tuple[np.ndarray, int]] = {}
    for name, column in block.items():
        low, high = int(column.min()), int(column.max())
        if low == high:
            values[name] = float(low)
            continue
        values[name] = column.astype(float)
        present = np.zeros(high - low + 1, dtype=np.int64)
        present[column - low] = 1
        rank = np.cumsum(present) - 1
        codes[name] = (rank[column - low], int(rank[-1]) + 1)
    schedule = block.get("schedule")
    if schedule is not None:
        copies = stages_held(schedule).astype(float)
        values["parameter_copies"] = copies
        codes["parameter_copies"] = (copies.astype(np.int64) - 1, int(copies.max()))
    values["recompute_layers"] = base.get("recompute_layers", 0.0)
    return Columns(values, codes)
