"""Strong and weak scaling: the best layout at each GPU count, efficiency, the serial fraction, and what takes over."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.columns import MOST_GPUS
from gpucalc.core.errors import UsageError
from gpucalc.formulas import scaling as laws
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.variations import Outcome, Variation, outcomes
from gpucalc.layouts.axes import LARGEST_TP, decided_axes, divisors
from gpucalc.questions.crossings import crossing_note
from gpucalc.questions.plan import plan

MODES = ("strong", "weak", "both")
SHAPES = {"normal": laws.slowest_normal, "lognormal": laws.slowest_lognormal}
MOST_COUNTS = 64
# What a quick search tries; an exhaustive one tries all. The others differ by little and cost most of the search.
QUICK = {"cp_kind": ("ring",), "schedule": ("1f1b", "interleaved"), "shard_group": (0,), "zero_stage": (1, 3)}
NOTICED = 0.10  # share of a step from which a term counts as having taken over

# Shares of a step by what grows with the GPUs; every term of the step is in one of them.
GROUPS = {
    "work": (
        *("time/forward/gemm", "time/backward/gemm", "time/forward/attention", "time/backward/attention"),
        *("time/forward/elementwise", "time/backward/elementwise", "time/head"),
    ),
    "recompute": ("time/recompute",),
    "host": ("time/host", "time/offload/exposed"),
    "tp": ("time/tp/exposed",),
    "cp": ("time/cp/exposed",),
    "ep": ("time/ep/exposed",),
    "pp_bubble": ("time/pp/bubble",),
    "pp_transfer": ("time/pp/p2p",),
    "dp": ("time/dp/exposed", "time/fsdp/exposed"),
    "optimizer": ("time/optimizer",),
    "stragglers": ("time/stragglers",),
}
GROUP_TITLES = {
    "work": "work",
    "recompute": "recomputation",
    "host": "host",
    "tp": "tensor parallel traffic",
    "cp": "context parallel traffic",
    "ep": "expert traffic",
    "pp_bubble": "pipeline bubble",
    "pp_transfer": "stage transfers",
    "dp": "gradient and parameter traffic",
    "optimizer": "optimizer",
    "stragglers": "stragglers",
}


@dataclass(frozen=True)
class Straggling:
    """How much the speed of workers varies: a step waits for the slowest of them."""

    variation: float
    shape: str = "normal"
    gpus_per_worker: int = 1

    def factor(self, n_gpus: int) -> float:
        """Expected slow-down of a step on so many GPUs."""
        workers = max(1, n_gpus // self.gpus_per_worker)
        return float(SHAPES[self.shape](float(workers), self.variation))


@dataclass(frozen=True)
class Point:
    """One GPU count of a curve; `outcome` is None where nothing fits."""

    mode: str
    n_gpus: int
    global_batch: int
    outcome: Outcome | None
    step_time: float = 0.0
    tokens_per_s: float = 0.0
    speedup: float = 0.0
    efficiency: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def largest_loss(self) -> str:
        """The group beside the work that takes most of the step."""
        losses = {name: share for name, share in self.shares.items() if name != "work"}
        return max(losses, key=lambda name: losses[name]) if losses else ""


@dataclass(frozen=True)
class Law:
    """The serial fraction that fits a curve best, and how far the curve lies from that law."""

    mode: str
    law: str
    serial_fraction: float
    residual: float  # root mean square of the relative deviation
    from_gpus: int  # count from which it is fitted, and to whose step the fraction refers
    points: int


@dataclass(frozen=True)
class Takeover:
    """Where a term becomes noticeable, and where it is the largest loss."""

    mode: str
    term: str
    noticed_at: int | None
    largest_at: int | None
    share_at_end: float


@dataclass
class Curves:
    """Points, laws and takeovers of the curves that were asked for."""

    points: list[Point]
    laws: list[Law]
    takeovers: list[Takeover]
    notes: list[str]


def parse_counts(text: str) -> list[int]:
    """GPU counts of a list or a range: "8,16,64", "8..4096" (doubling) or "8..64:8" (steps of 8), sorted.

    >>> parse_counts("8,32,16"), parse_counts("8..64"), parse_counts("8..32:8"), parse_counts("8..100")
    ([8, 16, 32], [8, 16, 32, 64], [8, 16, 24, 32], [8, 16, 32, 64])
    """
    counts: list[int] = []
    for part in text.replace("_", "").split(","):
        match = re.fullmatch(r"\s*(\d{1,12})\s*(?:\.\.\s*(\d{1,12})\s*(?::\s*(\d{1,12}))?)?\s*", part)
        if not match:
            raise UsageError(
                f"--gpus {part.strip() or text!r}: write counts such as 8,16,64 or a range such as 8..4096"
            )
        first, last, step = (int(group) if group else None for group in match.groups())
        if not first or (last is not None and last < first) or step == 0:
            raise UsageError(f"--gpus {part.strip()!r}: expected positive counts in ascending order, such as 8..4096")
        if max(first, last or 0) > MOST_GPUS:
            raise UsageError(f"--gpus {part.strip()!r}: at most {MOST_GPUS:,} GPUs")
        if last is not None and step and (last - first) // step >= MOST_COUNTS:
            raise UsageError(f"--gpus {part.strip()!r}: more than {MOST_COUNTS} counts; use a larger step")
        value = first
        while value <= (last or first):
            counts.append(value)
            value = value + step if step else 2 * value
    counts = sorted(set(counts))
    if len(counts) > MOST_COUNTS:
        raise UsageError(f"--gpus has {len(counts)} counts; at most {MOST_COUNTS}")
    return counts


def scale(
    context: Context,
    cells: Mapping[str, Any],
    counts: Sequence[int],
    mode: str = "both",
    straggling: Straggling | None = None,
    exhaustive: bool = False,
) -> Curves:
    """The best layout at each count. Strong: the stated batch; weak: it belongs to the smallest count and grows.

    Layout cells that are stated hold at every count; the others are searched.
    """
    if not counts:
        raise UsageError("no GPU counts")
    modes = ("strong", "weak") if mode == "both" else (mode,)
    notes: list[str] = []
    if not exhaustive:
        notes.append(
            "searched: ZeRO 1 and 3, 1F1B and interleaved schedules, ring context parallelism; --exhaustive tries all"
        )
    points: list[Point] = []
    known: dict[tuple[int, int], tuple[dict[str, Any] | None, str]] = {}
    for one in modes:
        points += _curve(context, cells, sorted(counts), one, straggling, exhaustive, notes, known)
    curves = Curves(points, [], [], list(dict.fromkeys(notes)))
    for one in modes:
        mine = [p for p in points if p.mode == one and p.outcome is not None]
        if len(mine) >= 3:
            curves.laws.append(fitted_law(one, mine))
        curves.takeovers += takeovers(one, mine)
        curves.notes += [note for note in [_crossing(one, mine)] if note and note not in curves.notes]
    return curves


def _crossing(mode: str, points: Sequence[Point]) -> str:
    """Which groups cross which tier at the largest count, and what that costs."""
    if not points or points[-1].outcome is None:
        return ""
    said = crossing_note(points[-1].outcome.job)
    return f"{mode}, {points[-1].n_gpus:,} GPUs: {said}" if said else ""


def _curve(
    context: Context,
    cells: Mapping[str, Any],
    counts: Sequence[int],
    mode: str,
    straggling: Straggling | None,
    exhaustive: bool,
    notes: list[str],
    known: dict[tuple[int, int], tuple[dict[str, Any] | None, str]],
) -> list[Point]:
    batch = int(cells["global_batch"])
    varied: list[tuple[Variation, jobs.Job]] = []
    failed: dict[int, str] = {}
    batches: dict[int, int] = {}
    for count in counts:
        batches[count] = batch if mode == "strong" else max(1, batch * count // counts[0])
        asked = {**cells, "n_gpus": count, "global_batch": batches[count]}
        key = count, batches[count]
        if key not in known:
            known[key] = _best_cells(context, asked, exhaustive, notes)
        found, reason = known[key]
        if found is None:
            failed[count] = reason
            continue
        job = jobs.resolve(found, context)
        if straggling is not None:  # the stated variation stands in for the fitted one
            job = dataclasses.replace(job, columns={**job.columns, "straggler_share": 0.0})
        varied.append((Variation("scale", str(count)), job))
    reached = {o.job.cluster.n_gpus: o for o in outcomes(varied)}
    points: list[Point] = []
    least: tuple[int, float] | None = None
    for count in counts:
        outcome = reached.get(count)
        if outcome is None:
            points.append(Point(mode, count, batches[count], None, reason=failed[count]))
            continue
        slow = straggling.factor(count) if straggling else 1.0
        step, rate = outcome.step_time * slow, outcome.rate / slow
        least = least or (count, rate)
        efficiency = float(laws.scaling_efficiency(rate, least[1]))
        shares = _shares(outcome, slow)
        points.append(
            Point(
                mode,
                count,
                batches[count],
                outcome,
                step,
                rate * count,
                efficiency * count / least[0],
                efficiency,
                shares,
            )
        )
    return points


def _best_cells(
    context: Context, asked: Mapping[str, Any], exhaustive: bool, notes: list[str]
) -> tuple[dict[str, Any] | None, str]:
    """The cells of the fastest layout that fits, or why there is none."""
    stated = {name: value for name, value in asked.items() if value is not None}
    question = {name: value for name, value in stated.items() if name not in decided_axes()}
    job = jobs.resolve({**question, "dp": stated["n_gpus"], "micro_batch": 1, "zero_stage": 1}, context)
    if not _may_fit(job):
        return None, "weights, gradients and optimizer state alone exceed the memory of all GPUs"
    reason = "no legal layout"
    for levels in [{}] if exhaustive else _quick_levels(job):
        found = plan({**levels, **stated}, context, top=1)
        if found.rows:
            notes += found.notes
            row = found.rows[0]
            layout = {name: row[name] for name in decided_axes() if row.get(name) is not None}
            return {**{n: v for n, v in stated.items() if not isinstance(v, tuple)}, **layout}, ""
        reason = found.nearest_miss or reason
    return None, reason


def _quick_levels(job: jobs.Job) -> list[dict[str, tuple[Any, ...]]]:
    """Values to try: tensor parallelism inside a scale-up domain first, across domains where nothing else fits."""
    levels: dict[str, tuple[Any, ...]] = dict(QUICK)
    if job.model.experts:
        levels["etp"] = (1,)
    inside = tuple(divisors(job.cluster.n_gpus, min(job.cluster.domain, LARGEST_TP)))
    return [{**levels, "tp": inside}, levels]


def _may_fit(job: jobs.Job) -> bool:
    """Whether the states, spread evenly over all GPUs, leave room; a search that cannot succeed is spared."""
    c = job.columns
    trained = c["trains_base"]
    state = c["weight_bytes"] + trained * c["gradient_bytes"]
    if not job.cells.get("offload_optimizer"):
        state += trained * c["optimizer_bytes"]
    matrices = job.model.parameters_total - job.model.parameters_embedding
    return bool(state * matrices <= c["usable_bytes"] * c["n_gpus"])


def _shares(outcome: Outcome, slow: float) -> dict[str, float]:
    """The step by group; with a stated straggling factor, waiting for the slowest is its share."""
    step = outcome.step_time * slow
    shares = {name: sum(outcome.terms.get(p, 0.0) for p in paths) / step for name, paths in GROUPS.items()}
    shares["stragglers"] += 1 - 1 / slow
    return shares


def fitted_law(mode: str, points: Sequence[Point]) -> Law:
    """The serial fraction by least squares of relative deviations: Amdahl for strong scaling, Gustafson for weak.

    Few GPUs may be short of memory and recompute, which no law of scaling describes: the fit starts at the count
    with the most tokens per GPU, or at the last three. The serial fraction is that of this count's step.
    """
    start = max(range(len(points)), key=lambda i: points[i].efficiency)
    used = points[min(start, len(points) - 3) :]
    first = used[0]
    growth = np.array([p.n_gpus / first.n_gpus for p in used])
    if mode == "strong":
        # T = a + b·n₀/n is Amdahl's law with s = a/(a+b); both are found, so that the first point may lie off it.
        measured = np.array([p.step_time for p in used])
        scale_, offset = _nonnegative_line(1 / growth, measured)
        serial = offset / (offset + scale_)
        law = laws.amdahl_time(offset + scale_, serial, growth)
    else:
        measured = np.array([p.tokens_per_s for p in used])
        scale_, offset = _nonnegative_line(growth, measured)
        serial = offset / (offset + scale_)
        law = (offset + scale_) * np.asarray(laws.gustafson_speedup(serial, growth))
    residual = float(np.sqrt(np.mean((np.asarray(law) / measured - 1) ** 2)))
    name = "Amdahl" if mode == "strong" else "Gustafson"
    return Law(mode, name, float(serial), residual, first.n_gpus, len(used))


def _nonnegative_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and intercept, neither below 0, with the least squares of relative deviations.

    >>> _nonnegative_line(np.array([1.0, 0.5, 0.25]), np.array([10.0, 6.0, 4.0]))
    (8.0, 2.0)
    """
    rows = np.stack([x, np.ones_like(x)], axis=1) / y[:, None]
    slope, offset = (float(round(v, 12)) for v in np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0])
    if offset < 0:
        return float((x / y).sum() / ((x / y) ** 2).sum()), 0.0
    if slope < 0:
        return 0.0, float((1 / y).sum() / (1 / y**2).sum())
    return slope, offset


def takeovers(mode: str, points: Sequence[Point]) -> list[Takeover]:
    """For each loss that is ever noticed or the largest: from which count on."""
    found = []
    for name in GROUPS:
        if name == "work" or not points:
            continue
        noticed = next((p.n_gpus for p in points if p.shares[name] >= NOTICED), None)
        largest = next((p.n_gpus for p in points if p.largest_loss == name), None)
        if noticed is not None or largest is not None:
            found.append(Takeover(mode, name, noticed, largest, points[-1].shares[name]))
    return found


def breaking_point(points: Sequence[Point], least_efficiency: float = 0.8) -> Point | None:
    """The first point whose efficiency falls below a bound."""
    return next((p for p in points if p.outcome is not None and p.efficiency < least_efficiency), None)
