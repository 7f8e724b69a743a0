"""Will it fit: the least GPUs of each strategy, the largest micro-batch and sequence, and what remedies would save.

Layouts of all counts and strategies are costed as rows of one batch by the one estimate; recomputation is taken
as needed unless it is stated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.core.units import GIB
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.completion import layout_sizes
from gpucalc.jobs.context import Context
from gpucalc.jobs.variations import Outcome, Variation, largest_part, layout_label, outcomes
from gpucalc.layouts import rules
from gpucalc.layouts.axes import AXES, LARGEST_CP, LARGEST_TP, decided_axes, divisors
from gpucalc.layouts.schedules import default_schedule
from gpucalc.layouts.space import BLOCK

LARGEST_COUNT = 65_536  # GPUs up to which the least count is sought
EACH_NODE_UP_TO = 64  # nodes up to which every count of whole nodes is tried
PIPELINE_BATCHES = 4  # micro-batches per stage where the global batch is not stated
LARGEST_MICRO_BATCH = 4096
LARGEST_SEQUENCE = 1 << 24
SEQUENCE_UNIT = 256  # largest sequences are multiples of it


@dataclass(frozen=True)
class Strategy:
    """A way to spread a job that people name: which degrees it uses, and what it shards or moves to the host."""

    key: str
    title: str
    uses: frozenset[str]
    zero_stage: int
    needs: frozenset[str] = frozenset()  # degrees of `uses` that must exceed 1, or it would be another strategy
    offload_optimizer: bool = False
    offload_activations: bool = False
    hybrid: bool = False


def _strategy(key: str, title: str, uses: str, zero: int, needs: str = "", **more: Any) -> Strategy:
    return Strategy(key, title, frozenset(uses.split()), zero, frozenset(needs.split()), **more)


STRATEGIES = (
    _strategy("dp", "data parallel", "dp", 0),
    _strategy("zero1", "data parallel, ZeRO-1", "dp", 1),
    _strategy("zero2", "data parallel, ZeRO-2", "dp", 2),
    _strategy("fsdp", "FSDP, ZeRO-3", "dp", 3),
    _strategy("hsdp", "FSDP inside each scale-up domain", "dp", 3, hybrid=True),
    _strategy("zero2-offload", "ZeRO-2, optimizer on the host", "dp", 2, offload_optimizer=True),
    _strategy("fsdp-offload", "FSDP, optimizer on the host", "dp", 3, offload_optimizer=True),
    _strategy(
        "fsdp-offload-all",
        "FSDP, optimizer and activations on the host",
        "dp",
        3,
        offload_optimizer=True,
        offload_activations=True,
    ),
    _strategy("tp", "tensor parallel alone", "tp", 1, "tp"),
    _strategy("pp", "pipeline parallel alone", "pp", 1, "pp"),
    _strategy("fsdp+tp", "FSDP with tensor parallel", "dp tp", 3, "tp"),
    _strategy("fsdp+cp", "FSDP with context parallel", "dp cp", 3, "cp"),
    _strategy("tp+pp", "tensor and pipeline parallel", "tp pp", 1, "tp pp"),
    _strategy("3d", "tensor, pipeline and data parallel, ZeRO-1", "dp tp pp", 1, "tp pp"),
    _strategy("4d", "3D and context parallel, ZeRO-1", "dp tp pp cp", 1, "tp pp cp"),
)
WITH_EXPERTS = (
    _strategy("ep", "data and expert parallel, ZeRO-1", "dp ep", 1, "ep"),
    _strategy("fsdp+ep", "FSDP with expert parallel", "dp ep", 3, "ep"),
    _strategy("3d+ep", "3D and expert parallel, ZeRO-1", "dp tp pp ep", 1, "tp pp ep"),
)


@dataclass(frozen=True)
class Verdict:
    """What became of one strategy: its layout, how it fits, or what overflows and by how much."""

    strategy: Strategy
    n_gpus: int | None
    outcome: Outcome | None  # the fastest that fits, else the one that came nearest
    overflow: str = ""  # largest term of the next smaller count, or of the nearest miss
    over_bytes: float = 0.0
    next_smaller: int | None = None
    largest_micro_batch: int | None = None
    micro_batch_layout: str = ""
    largest_seq_len: int | None = None
    seq_len_layout: str = ""

    @property
    def fits(self) -> bool:
        """Whether the strategy fits, be it narrowly."""
        return self.n_gpus is not None


def strategies(model: Any) -> tuple[Strategy, ...]:
    """The strategies of a model."""
    return (*STRATEGIES, *WITH_EXPERTS) if model.experts else STRATEGIES


# --- rows -------------------------------------------------------------------------------------------------

_ROW = (
    *("n_gpus", "tp", "pp", "dp", "cp", "ep", "etp", "zero_stage", "shard_group", "sequence_parallel"),
    *("micro_batch", "global_batch", "offload_optimizer", "offload_activations"),
)


def _schedule(rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """The code of the schedule of each row: strategies have the default one, without chunks."""
    alone, staged = (AXES["schedule"].code(default_schedule(pp, 1)) for pp in (1, 2))
    return np.where(rows["pp"] > 1, staged, alone)


class Sizer:
    """A job without its layout: its strategies as rows, and their memory and speed."""

    def __init__(self, context: Context, cells: Mapping[str, Any]) -> None:
        """Complete the question; layout cells other than micro_batch and recompute are not among `cells`."""
        self.context = context
        self.stated = {name: value for name, value in cells.items() if value is not None}
        question = {name: value for name, value in self.stated.items() if name not in decided_axes()}
        question.pop("global_batch", None)
        neutral = {"n_gpus": 1, "dp": 1, "micro_batch": 1, "zero_stage": 1}
        self.base = jobs.resolve({**question, **neutral}, context)
        self.question = question
        self.micro_batch = int(self.stated.get("micro_batch") or 1)
        self.batch = self.stated.get("global_batch")
        recompute = self.stated.get("recompute")
        self.recompute = AXES["recompute"].code(recompute)

    def counts(self, largest: int = LARGEST_COUNT) -> list[int]:
        """Counts to try first: parts of a node in powers of two, whole nodes one by one, then doublings."""
        per_node = self.base.cluster.gpus_per_node
        found = [1 << i for i in range(per_node.bit_length()) if 1 << i < per_node]
        found += [per_node * k for k in range(1, EACH_NODE_UP_TO + 1)]
        while found[-1] * 2 <= largest:
            found.append(found[-1] * 2)
        return [n for n in found if n <= largest]

    def layouts(self, strategy: Strategy, n_gpus: int) -> Iterator[tuple[Any, ...]]:
        """Rows of `_ROW` for every layout of a strategy on so many GPUs, legal or not."""
        model, cluster = self.base.model, self.base.cluster
        layers, uses = int(self.base.columns["layers"]), strategy.uses
        seq, domain = int(self.base.cells["seq_len"]), cluster.domain
        most_cp = min(LARGEST_CP, max(1, seq // 1024))
        experts = divisors(model.experts) if "ep" in uses else [1]
        shard = domain if strategy.hybrid else 0
        for tp in divisors(n_gpus, min(domain, LARGEST_TP)) if "tp" in uses else [1]:
            for cp in divisors(n_gpus // tp, most_cp) if "cp" in uses else [1]:
                for pp in divisors(n_gpus // (tp * cp), layers) if "pp" in uses else [1]:
                    dp = n_gpus // (tp * cp * pp)
                    if "dp" not in uses and dp > 1:
                        continue
                    for ep in experts:
                        etp = tp if ep == 1 else 1
                        degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
                        if any(degrees[name] == 1 for name in strategy.needs):
                            continue
                        yield (
                            *(n_gpus, tp, pp, dp, cp, ep, etp, strategy.zero_stage, shard, tp > 1, self.micro_batch),
                            *(self._batch(dp, pp), strategy.offload_optimizer, strategy.offload_activations),
                        )

    def _batch(self, dp: int, pp: int) -> int:
        if self.batch is None:
            return dp * self.micro_batch * (PIPELINE_BATCHES * pp if pp > 1 else 1)
        return int(self.batch)

    def rows(self, strategy: Strategy, counts: Sequence[int]) -> dict[str, np.ndarray]:
        """All layouts of a strategy on several counts that keep the rules, as arrays."""
        found = [row for n in counts for row in self.layouts(strategy, n)]
        table = np.array(found, dtype=np.int64).reshape(-1, len(_ROW))
        rows = {name: table[:, i] for i, name in enumerate(_ROW)}
        lawful = np.ones(len(table), dtype=bool)
        c = self._facts(rows)
        for rule in rules.rules():
            lawful &= rule.holds(c)
        return {name: column[lawful].astype(float) for name, column in rows.items()}

    def _facts(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What the rules read of some rows."""
        plain = {name: axis.code(None if callable(axis.default) else axis.default) for name, axis in AXES.items()}
        sizes = vars(layout_sizes(self.base.cells, self.base.model, self.base.cluster))
        c = {**plain, **sizes, "offered": None, "schedule": _schedule(rows), **rows}
        return {**c, **rules.derived(c)}

    def columns(self, rows: Mapping[str, np.ndarray]) -> Columns:
        """The estimate's columns of some rows."""
        c, cluster = self.base.columns, self.base.cluster
        shape = cluster.topology
        values: dict[str, Any] = {**c, "vpp": 1.0, "recompute": float(self.recompute), "recompute_layers": 0.0}
        values |= dict(rows)
        values["schedule"] = _schedule(rows).astype(float)
        if shape.pod_gpus is None:
            values["pod"] = np.maximum(1.0, rows["n_gpus"] / cluster.domain)
        return Columns(values)

    def fill(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Memory over capacity, and tokens per second and GPU, of each row."""
        length = len(rows["n_gpus"])
        fills, rates = [np.zeros(0)], [np.zeros(0)]
        for start in range(0, length, BLOCK):
            part = {name: column[start : start + BLOCK] for name, column in rows.items()}
            ledger = estimate_training(self.columns(part))
            size = (len(part["n_gpus"]),)
            fills.append(np.broadcast_to(ledger["memory/fill"], size))
            rates.append(np.broadcast_to(ledger["metric/tokens_per_s_per_gpu"], size))
        return np.concatenate(fills), np.concatenate(rates)

    def job(self, rows: Mapping[str, np.ndarray], index: int) -> jobs.Job:
        """One row as a job of its own, resolved like any other."""
        cells: dict[str, Any] = {name: int(rows[name][index]) for name in _ROW}
        for name in ("sequence_parallel", "offload_optimizer", "offload_activations"):
            cells[name] = bool(cells[name])
        cells["shard_group"] = cells["shard_group"] or None
        cells["seq_len"] = int(rows["seq_len"][index]) if "seq_len" in rows else self.question.get("seq_len")
        cells |= {"vpp": 1, "recompute": self.stated.get("recompute")}
        return jobs.resolve({**self.question, **cells}, self.context)


# --- the least count --------------------------------------------------------------------------------------


def least_gpus(sizer: Sizer, strategy: Strategy, largest: int = LARGEST_COUNT) -> Verdict:
    """The least count on which some layout of a strategy fits, its fastest layout there, and what stops at less."""
    counts = sizer.counts(largest)
    per_node = sizer.base.cluster.gpus_per_node
    last_single = EACH_NODE_UP_TO * per_node
    rows, fill, rate = _costed(sizer, strategy, [n for n in counts if n <= last_single])
    if not jobs.may_fit(fill).any() and counts[-1] > last_single:
        more = _costed(sizer, strategy, [n for n in counts if n >= last_single])
        if len(more[1]):
            rows, fill, rate = more
        fitting = rows["n_gpus"][jobs.may_fit(fill)]
        if len(fitting):
            # Between two doublings every count of whole nodes may be the least, up to 64 of them.
            first = int(fitting.min())
            step = max(per_node, first // 2 // EACH_NODE_UP_TO)
            rows, fill, rate = _costed(sizer, strategy, range(first // 2, first + 1, step))
    if not len(fill):
        return Verdict(strategy, None, None, "no legal layout")
    fits = jobs.may_fit(fill)
    if not fits.any():
        return _miss(sizer, strategy, rows, int(np.argmin(fill)))
    least = int(rows["n_gpus"][fits].min())
    here = fits & (rows["n_gpus"] == least)
    best = _best(fill, rate, here)
    below = np.flatnonzero(rows["n_gpus"] < least)
    chosen = [best] if not len(below) else [best, _nearest_below(rows, fill, below)]
    found = outcomes([(Variation("size", strategy.key), sizer.job(rows, i)) for i in chosen])
    if len(found) == 1:
        return Verdict(strategy, least, found[0])
    term, over = _overflow(found[1])
    return Verdict(strategy, least, found[0], term, over, found[1].job.cluster.n_gpus)


def _best(fill: np.ndarray, rate: np.ndarray, among: np.ndarray) -> int:
    """The row that fits and is the fastest; risky ones count where none fits."""
    places = np.flatnonzero(among)
    return int(places[np.lexsort((-rate[places], jobs.fit_code(fill[places])))[0]])


def _nearest_below(rows: Mapping[str, np.ndarray], fill: np.ndarray, below: np.ndarray) -> int:
    smaller = rows["n_gpus"][below].max()
    there = below[rows["n_gpus"][below] == smaller]
    return int(there[np.argmin(fill[there])])


def _costed(
    sizer: Sizer, strategy: Strategy, counts: Sequence[int]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rows = sizer.rows(strategy, counts)
    return (rows, *sizer.fill(rows))


def _miss(sizer: Sizer, strategy: Strategy, rows: Mapping[str, np.ndarray], index: int) -> Verdict:
    outcome = outcomes([(Variation("size", strategy.key), sizer.job(rows, index))])[0]
    term, over = _overflow(outcome)
    return Verdict(strategy, None, outcome, term, over)


def _overflow(outcome: Outcome) -> tuple[str, float]:
    """The largest term of a layout that does not fit, and the bytes that are missing."""
    name, size = largest_part(outcome.terms)
    over = outcome.terms["memory/raw"] - outcome.terms["memory/capacity"]
    return f"{name} {size / GIB:.1f} GiB", max(0.0, over)


# --- a given count ----------------------------------------------------------------------------------------


def on_count(sizer: Sizer, strategy: Strategy, n_gpus: int) -> Verdict:
    """Whether a strategy fits on so many GPUs, and the largest micro-batch and sequence with which it still does."""
    rows, fill, rate = _costed(sizer, strategy, [n_gpus])
    if not len(fill):
        return Verdict(strategy, None, None, "no legal layout")
    fits = jobs.may_fit(fill)
    batch, batch_label = largest(sizer, strategy, rows, "micro_batch")
    seq, seq_label = largest(sizer, strategy, rows, "seq_len")
    more = {
        "largest_micro_batch": batch,
        "micro_batch_layout": batch_label,
        "largest_seq_len": seq,
        "seq_len_layout": seq_label,
    }
    if not fits.any():
        missed = _miss(sizer, strategy, rows, int(np.argmin(fill)))
        return Verdict(strategy, None, missed.outcome, missed.overflow, missed.over_bytes, None, **more)  # type: ignore[arg-type]
    best = _best(fill, rate, fits)
    outcome = outcomes([(Variation("size", strategy.key), sizer.job(rows, best))])[0]
    term, _ = _overflow(outcome)
    return Verdict(strategy, n_gpus, outcome, term, 0.0, None, **more)  # type: ignore[arg-type]


def largest(sizer: Sizer, strategy: Strategy, rows: Mapping[str, np.ndarray], what: str) -> tuple[int | None, str]:
    """The largest micro_batch or seq_len with which any of the rows fits, and the layout of that row."""
    if what == "micro_batch" and sizer.batch is not None:
        levels = [float(d) for d in divisors(int(sizer.batch), LARGEST_MICRO_BATCH)]
    elif what == "micro_batch":
        levels = [2.0**i for i in range(LARGEST_MICRO_BATCH.bit_length())]
    else:
        levels = [SEQUENCE_UNIT * 2.0**i for i in range((LARGEST_SEQUENCE // SEQUENCE_UNIT).bit_length())]
    length = len(rows["n_gpus"])
    grid = {name: np.repeat(column, len(levels)) for name, column in rows.items()}
    fits = _fits_at(sizer, grid, what, np.tile(np.array(levels), length)).reshape(length, len(levels))
    reached = np.array([levels[np.flatnonzero(row)[-1]] if row.any() else 0.0 for row in fits])
    top = reached.max()
    if top == 0:
        return None, ""
    tied = np.flatnonzero(reached == top)
    low = np.full(len(tied), top)
    if not (what == "micro_batch" and sizer.batch is not None) and top < levels[-1]:
        unit = 1.0 if what == "micro_batch" else float(SEQUENCE_UNIT)
        here = {name: column[tied] for name, column in rows.items()}
        low = _refined(lambda value: _fits_at(sizer, here, what, value), low, 2 * low, unit)
    best = int(np.argmax(low))
    chosen = _with_value(sizer, {n: column[tied[best : best + 1]] for n, column in rows.items()}, what, low[best])
    outcome = outcomes([(Variation("size", strategy.key), sizer.job(chosen, 0))])[0]
    return int(low[best]), layout_label(outcome.job, outcome.row)


def _refined(fits: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray, unit: float) -> np.ndarray:
    """For each row the largest multiple of `unit` that fits, between one that does and one that does not."""
    while (high - low > unit).any():
        middle = np.floor((low + high) / 2 / unit) * unit
        inside = fits(middle) & (high - low > unit)
        low = np.where(inside, middle, low)
        high = np.where(inside | (high - low <= unit), high, middle)
    return low


def _with_value(sizer: Sizer, rows: Mapping[str, np.ndarray], what: str, value: Any) -> dict[str, np.ndarray]:
    changed = {**rows, what: np.broadcast_to(np.asarray(value, dtype=float), rows["n_gpus"].shape)}
    if what == "micro_batch" and sizer.batch is None:  # as many micro-batches as before
        changed["global_batch"] = rows["global_batch"] / rows["micro_batch"] * changed["micro_batch"]
    return changed


def _fits_at(sizer: Sizer, rows: Mapping[str, np.ndarray], what: str, value: np.ndarray) -> np.ndarray:
    changed = _with_value(sizer, rows, what, value)
    fill, _ = sizer.fill(changed)
    legal = np.ones(len(fill), dtype=bool)
    if what == "micro_batch" and sizer.batch is not None:
        legal = changed["global_batch"] % (changed["dp"] * changed["micro_batch"]) == 0
    return jobs.may_fit(fill) & legal


def stated_layout(context: Context, cells: Mapping[str, Any]) -> Outcome:
    """The outcome of a stated layout; without a batch a pipeline gets four micro-batches a stage."""
    given = {name: value for name, value in cells.items() if value is not None}
    job = jobs.resolve(given, context)
    if "global_batch" not in given and job.cells["pp"] > 1:
        batch = job.cells["dp"] * job.cells["micro_batch"] * PIPELINE_BATCHES * job.cells["pp"]
        job = jobs.resolve({**given, "global_batch": batch}, context)
    return outcomes([(Variation("size", "as it is"), job)])[0]


def largest_of_layout(outcome: Outcome, what: str) -> int | None:
    """The largest micro_batch or seq_len with which one layout still fits, by bisection on the estimate.

    For the micro-batch the number of micro-batches is kept, so that the global batch grows with it.
    """
    job = outcome.job
    unit = 1 if what == "micro_batch" else SEQUENCE_UNIT
    top = LARGEST_MICRO_BATCH if what == "micro_batch" else LARGEST_SEQUENCE

    def fits(values: Sequence[int]) -> list[bool]:
        varied = []
        for value in values:
            columns = {**job.columns, what: float(value)}
            if what == "micro_batch":
                columns["global_batch"] = job.columns["global_batch"] / job.columns["micro_batch"] * value
            varied.append((Variation("size", str(value)), dataclasses.replace(job, columns=columns)))
        return [jobs.may_fit(o.terms["memory/fill"]) for o in outcomes(varied)]

    levels = [unit]
    while levels[-1] * 2 <= top:
        levels.append(levels[-1] * 2)
    good = [level for level, ok in zip(levels, fits(levels), strict=True) if ok]
    if not good:
        return None
    low, high = good[-1], good[-1] * 2
    if good[-1] == levels[-1]:
        return low
    while high - low > unit:
        steps = max(1, (high - low) // unit // 16) * unit
        inner = list(range(low + steps, high, steps))
        passed = [value for value, ok in zip(inner, fits(inner), strict=True) if ok]
        low = passed[-1] if passed else low
        high = min(high, low + steps)
    return low
