"""Every layout of a job, in blocks of columns, with the rules that exclude the others by name.

The space is a product: how a layer is cut (tp, cp, ep, etp, micro-batch, sequence parallelism) outside, what
surrounds it (pipeline, ZeRO, recomputation) inside. Outside is a loop, inside are arrays, so a space of 10^8
layouts is enumerated in bounded memory. Columns are small integers that index their levels, which is what
`Columns.reduce` needs to find equal rows without sorting. Axes and levels stand in `axes`, rules in `rules`; a
rule is tested where the last axis that it reads is enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.layouts import rules as table
from gpucalc.layouts.axes import AXES, CUT, STATE, Sizes, degree_axes, divisors, of_scope, searched_axes
from gpucalc.layouts.rules import Rule
from gpucalc.layouts.schedules import SCHEDULES, by_code, stages_held

BLOCK = 32_768
FIRST_BLOCK = 2_048

# Enumeration makes only layouts that keep these: replicas are what other degrees leave, chunks belong to schedules.
BY_CONSTRUCTION = (table.PARTS_GPUS, table.CHUNKED)


def constraints() -> tuple[str, ...]:
    """Names of the rules, in the order in which a refusal lists them."""
    return tuple(dict.fromkeys(rule.name for rule in table.rules()))


@dataclass(frozen=True)
class Space:
    """What is searched: the levels of each axis as codes, and the sizes that rules compare with.

    offered: by code of a schedule, whether the stated software profile has it; None: no profile is stated.
    """

    sizes: Sizes
    levels: Mapping[str, tuple[int, ...]]
    offered: np.ndarray | None = None
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(constraints(), 0))
    candidates: list[int] = field(default_factory=lambda: [0])
    cache: dict[tuple[Any, ...], dict[str, np.ndarray]] = field(default_factory=dict)
    places: Places = field(default_factory=lambda: Places())
    latest: Latest = field(default_factory=lambda: Latest())

    def known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a rule may read beside axes that are not enumerated yet."""
        return {**vars(self.sizes), "offered": self.offered, **values}


@dataclass
class Latest:
    """The layouts inside the latest cut, and what was rejected there."""

    key: tuple[int, ...] = ()
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)


class Places:
    """Where axes are enumerated and rules are tested: on cuts, on what surrounds them, on their pipelines, on both.

    crossed: rules that read of pipelines and of the outer axes, by those of the latter that they read.
    seen: the axes of a cut that the levels of the outer axes depend on. told: those, and what rules read of it.
    """

    def __init__(self) -> None:
        self.cut_axes, self.state_axes, self.degrees = cut_axes(), of_scope(STATE), degree_axes()
        needed = {name for state in self.state_axes for name in AXES[state].after}
        self.seen = tuple(name for name in self.cut_axes if name in needed)
        self.cut: list[Rule] = []
        self.state: list[Rule] = []
        self.pipeline: list[Rule] = []
        self.crossed: dict[tuple[str, ...], list[Rule]] = {}
        for rule in table.rules():
            if rule.name in BY_CONSTRUCTION:
                continue
            reads = table.axes_read(rule) - set(self.cut_axes)
            around = tuple(name for name in self.state_axes if name in reads)
            if not reads:
                self.cut.append(rule)
            elif not around:
                self.pipeline.append(rule)
            elif reads == set(around):
                self.state.append(rule)
            else:
                self.crossed.setdefault(around, []).append(rule)
        read = {name for rule in table.rules() for name in table.axes_read(rule)}
        apart = read | set(self.seen) | set(self.degrees)
        self.told = tuple(name for name in self.cut_axes if name in apart)


def make_space(
    cells: Mapping[str, Any], layers: int, heads: int, experts: int, domain: int, selective_matters: bool
) -> Space:
    """The space of layouts of completed cells; a layout cell that is stated in `cells` has that one level, or
    those of its tuple.

    `domain` (GPUs of a scale-up domain) is the shard group offered for HSDP beside sharding over all replicas.
    """
    counts = (int(cells[name]) for name in ("n_gpus", "seq_len", "global_batch"))
    n_gpus, seq_len, batch = counts
    sizes = Sizes(n_gpus, layers, heads, experts, seq_len, batch, domain, selective_matters)
    levels = {name: AXES[name].levels(sizes) for name in searched_axes() if name != "dp"}
    for name in searched_axes():
        if cells.get(name) is not None:
            stated = cells[name] if isinstance(cells[name], tuple) else (cells[name],)
            levels[name] = tuple(AXES[name].code(cell) for cell in stated)
    pipelined = tuple(code for code in levels["schedule"] if by_code(code).token)
    if not pipelined:  # schedule none is the absence of a pipeline
        levels["pp"] = (1,)
    levels["schedule"] = pipelined or AXES["schedule"].levels(sizes)
    return Space(sizes, levels)


def _pipelines(space: Space, ranks: int) -> dict[str, np.ndarray]:
    """Pipelines (pp, dp, vpp, schedule) that a cut of so many ranks leaves room for, as arrays."""
    if (ranks,) in space.cache:
        return space.cache[ranks,]
    levels, sizes = space.levels, space.sizes
    rows: list[tuple[int, int, int, int]] = []
    for pp in levels["pp"]:
        if sizes.n_gpus % (ranks * pp):
            continue
        dp = sizes.n_gpus // (ranks * pp)
        if "dp" in levels and dp not in levels["dp"]:
            continue
        if pp == 1:
            rows.append((1, dp, 1, SCHEDULES["none"].code))
            continue
        depth = -(-sizes.layers // pp)
        for code in levels["schedule"]:
            if by_code(code).chunked:
                chunks = divisors(depth) if levels["vpp"] == (0,) else list(levels["vpp"])
                if len(chunks) > 1:  # a single one that is too deep is told as the mistake that it is
                    chunks = [v for v in chunks if v <= depth]
                rows.extend((pp, dp, v, code) for v in chunks if v > 1)
            elif not {0, 1}.isdisjoint(levels["vpp"]):
                rows.append((pp, dp, 1, code))
    found = np.array(rows, dtype=np.int64).reshape(-1, 4)
    space.cache[ranks,] = {name: found[:, i] for i, name in enumerate(("pp", "dp", "vpp", "schedule"))}
    return space.cache[ranks,]


def _combinations(space: Space, names: Sequence[str], given: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Each combination of the levels of `names` that differs from the others, the last name turning fastest.

    Columns of equal length, with those of the given values, of which levels may depend.
    """
    columns = {name: np.array([value], dtype=np.int64) for name, value in given.items()}
    length = 1
    for name in names:
        axis = AXES[name]
        kinds, kind = _kinds(columns, axis.after, length)
        choices = [np.array(axis.within(space.levels[name], values), dtype=np.int64) for values in kinds]
        sizes = np.array([len(each) for each in choices])
        counts = sizes[kind]
        rows = np.repeat(np.arange(length), counts)
        length = len(rows)
        turn = np.arange(length) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = {other: column[rows] for other, column in columns.items()}
        columns[name] = np.concatenate(choices)[(np.cumsum(sizes) - sizes)[kind][rows] + turn]
    return columns


def _kinds(
    columns: Mapping[str, np.ndarray], names: Sequence[str], length: int
) -> tuple[list[dict[str, int]], np.ndarray]:
    """The distinct combinations of some columns, and for each row the place of its own among them."""
    codes = np.zeros(length, dtype=np.int64)
    for name in names:
        levels, own = np.unique(columns[name], return_inverse=True)
        codes = codes * len(levels) + own.reshape(-1)
    _, first, index = np.unique(codes, return_index=True, return_inverse=True)
    return [{name: int(columns[name][row]) for name in names} for row in first], index.reshape(-1)


def _surroundings(space: Space, cut: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Combinations of ZeRO stage, shard group, recomputation and context-parallel kind, as arrays."""
    names, seen = space.places.state_axes, space.places.seen
    key = ("state", *[cut[name] for name in seen])
    if key not in space.cache:
        known = {name: cut[name] for name in seen}
        found = _combinations(space, names, known)
        space.cache[key] = {name: found[name] for name in names}
    return space.cache[key]


def _ranks(space: Space, cut: Mapping[str, Any]) -> Any:
    """Ranks that a cut takes of each replica's stage: of one cut, or of several as arrays."""
    return math.prod([cut[name] for name in space.places.degrees if name in cut])


def cuts(space: Space) -> np.ndarray:
    """Ways to cut a layer, one a row in the order of `cut_axes`; those that break a rule are counted in `space`."""
    columns = _combinations(space, cut_axes(), {})
    each, pipelines = _counted(space, columns)
    space.candidates[0] += int(each.sum())
    whole = pipelines > 0
    space.rejected[table.PARTS_GPUS] += int(each[~whole].sum())
    columns, each = _kept(columns, whole), each[whole]
    known = space.known(columns)
    lawful = np.ones(len(each), dtype=bool)
    for rule in space.places.cut:
        good = np.broadcast_to(rule.holds(known), lawful.shape)
        space.rejected[rule.name] += int(each[lawful & ~good].sum())
        lawful &= good
    return np.stack([columns[name][lawful] for name in cut_axes()], axis=1)


def cut_axes() -> tuple[str, ...]:
    """The axes that cut a layer, those others follow first.

    >>> cut_axes()
    ('tp', 'cp', 'ep', 'etp', 'micro_batch', 'sequence_parallel')
    """
    return of_scope(CUT)


def _counted(space: Space, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Of several cuts, how many layouts share each (1 where it leaves no pipeline), and how many pipelines."""
    length = len(next(iter(columns.values())))
    ranks, which = np.unique(_ranks(space, columns), return_inverse=True)
    pipelines = np.array([len(_pipelines(space, int(n))["pp"]) for n in ranks], dtype=np.int64)[which.reshape(-1)]
    kinds, kind = _kinds(columns, space.places.seen, length)
    sizes = [len(next(iter(_surroundings(space, cut).values()))) for cut in kinds]
    around = np.array(sizes, dtype=np.int64)[kind]
    return np.maximum(1, pipelines * around), pipelines


def skip(space: Space, remaining: np.ndarray) -> int:
    """Number of layouts in cuts that are not enumerated."""
    columns = {name: np.asarray(remaining)[:, i] for i, name in enumerate(cut_axes())}
    return int(_counted(space, columns)[0].sum())


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
    names = cut_axes()
    for place, cut in enumerate(order):
        if go_on is not None and not go_on(place):
            break
        piece = _layouts(space, dict(zip(names, map(int, cut), strict=True)))
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
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in searched_axes()}


def _layouts(space: Space, cut: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Legal layouts of one cut; the others are counted."""
    # Cuts that no rule tells apart (with and without sequence parallelism) come one after the other.
    key = tuple(cut[name] for name in space.places.told)
    if space.latest.key != key:
        before = dict(space.rejected)
        rows = _inside(space, cut)
        counted = {name: count - before[name] for name, count in space.rejected.items() if count > before[name]}
        space.latest.key, space.latest.rows, space.latest.rejected = key, rows, counted
    else:
        for name, count in space.latest.rejected.items():
            space.rejected[name] += count
    rows = space.latest.rows
    length = len(rows["pp"])
    return {**rows, **{name: np.full(length, value, dtype=np.int64) for name, value in cut.items()}}


def _inside(space: Space, cut: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The columns beside the cut of its legal layouts; the others are counted."""
    known = space.known(cut)
    around, inner = _surroundings(space, cut), _pipelines(space, _ranks(space, cut))
    length = len(next(iter(around.values())))
    kept = _lawful(space, space.places.state, {**known, **around}, length, len(inner["pp"]))
    each = int(np.count_nonzero(kept))
    facts = {**inner, **table.derived({**known, **inner})}
    lawful = _lawful(space, space.places.pipeline, {**known, **facts}, len(inner["pp"]), each)
    facts = _kept(facts, lawful)
    inner = {name: facts[name] for name in inner}
    count = len(inner["pp"])
    rows = {name: np.repeat(column, each) for name, column in inner.items()}
    rows |= {name: np.tile(column, count) for name, column in _kept(around, kept).items()}
    whole = _whole_lawful(space, cut, facts, kept)
    return _kept(rows, (whole if kept.all() else whole[:, kept]).ravel())


def _lawful(space: Space, rules: Sequence[Rule], c: Mapping[str, Any], length: int, each: int) -> np.ndarray:
    """The rows that keep all of some rules; the others, each for `each` layouts, count for the first they break."""
    lawful = np.ones(length, dtype=bool)
    for rule in rules:
        _strike(space, rule, lawful, rule.holds(c), each)
    return lawful


def _strike(space: Space, rule: Rule, lawful: np.ndarray, good: Any, each: int) -> None:
    """Take the rows that break a rule out of `lawful`, and count those that broke none before.

    `good` has one value for each row, or one for all of them.
    """
    if good is True or good.all():
        return
    before = np.count_nonzero(lawful)
    lawful &= good
    space.rejected[rule.name] += int(before - np.count_nonzero(lawful)) * each


def _whole_lawful(
    space: Space, cut: Mapping[str, int], facts: Mapping[str, np.ndarray], kept: np.ndarray
) -> np.ndarray:
    """The layouts, pipelines times what surrounds them (if `kept`), that keep the rules which read of both.

    A rule is tested on each pipeline with the distinct values of what it reads of the outer axes, which are few.
    """
    count, known = len(facts["pp"]), space.known(cut)
    lawful = np.repeat(kept[None, :], count, axis=0)
    for names, rules in space.places.crossed.items():
        distinct, place = _distinct(space, cut, names)
        few = len(distinct[0])
        read = {name for rule in rules for name in rule.reads}
        c = {name: np.repeat(column, few) for name, column in facts.items() if name in read}
        c |= {
            name: np.repeat(values[None, :], count, axis=0).ravel()
            for name, values in zip(names, distinct, strict=True)
        }
        c = {**known, **c}
        for rule in rules:
            good = rule.holds(c)
            if not good.all():
                _strike(space, rule, lawful, good.reshape(count, few)[:, place], 1)
    return lawful


def _distinct(space: Space, cut: Mapping[str, int], names: tuple[str, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct values of some axes around a cut, and the place of each row's among them."""
    key = ("distinct", *names, *[cut[name] for name in space.places.seen])
    if key not in space.cache:
        around = _surroundings(space, cut)
        values, place = np.unique(np.stack([around[name] for name in names]), axis=1, return_inverse=True)
        space.cache[key] = {**dict(zip(names, values, strict=True)), "": place.ravel()}
    found = space.cache[key]
    return [found[name] for name in names], found[""]


def _kept(rows: Mapping[str, np.ndarray], lawful: np.ndarray) -> dict[str, np.ndarray]:
    return dict(rows) if lawful.all() else {name: column[lawful] for name, column in rows.items()}


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
