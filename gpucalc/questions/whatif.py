"""What one change is worth: scaled resources, neighbouring layouts, other clusters, and the network a bound needs.

Every figure is the estimate evaluated again with something changed; nothing is extrapolated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import InfeasibleError, UsageError
from gpucalc.database.tables import LINK_CONSTANTS, NETWORK_CONSTANTS
from gpucalc.formulas.scaling import elasticity, training_token_cost
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.variations import (
    Outcome,
    Variation,
    exposed_share,
    gain,
    neighbours,
    outcomes,
    scaled,
    time_parts,
)
from gpucalc.layouts.axes import decided_axes
from gpucalc.questions.plan import plan


@dataclass(frozen=True)
class Resource:
    """Something that a cluster has more or less of: the columns that grow with it."""

    key: str
    title: str
    unit: str
    columns: tuple[str, ...]
    better: float = 2.0  # the factor whose worth is shown: 2 for rates, 1/2 for delays
    shown: str = ""  # the column whose value is printed


LATENCIES = (
    *(name for name, unit in {**LINK_CONSTANTS, **NETWORK_CONSTANTS}.items() if unit == "s"),
    "p2p_network_startup",
)
HOST_TIMES = (
    *("gemm_launch_seconds", "half_gemm_launch_seconds", "attention_launch_seconds", "elementwise_launch"),
    *("kernel_launch_seconds", "cast_launch_seconds", "seconds_per_operation", "serial_gap_seconds"),
    *("seconds_per_partition", "optimizer_fixed_seconds"),
)
RESOURCES = (
    Resource("flops", "FLOP/s of the matrix units", "FLOP/s", ("peak", "half_peak"), shown="peak"),
    Resource("hbm-bandwidth", "HBM bandwidth", "B/s", ("memory_bandwidth",), shown="memory_bandwidth"),
    Resource("hbm-capacity", "HBM capacity", "B", ("usable_bytes",), shown="usable_bytes"),
    Resource("nvlink", "scale-up link (NVLink, xGMI …)", "B/s", ("link_bandwidth",), shown="link_bandwidth"),
    Resource("nic", "network per GPU", "B/s", ("network_bandwidth",), shown="network_bandwidth"),
    Resource("latency", "latency of links and network", "s", LATENCIES, 0.5, "network_startup"),
    Resource("host", "host: launches and time between them", "s", HOST_TIMES, 0.5, "seconds_per_operation"),
    Resource("host-link", "link to the host (PCIe, C2C)", "B/s", ("host_bandwidth",), shown="host_bandwidth"),
)
STEP = 0.01  # relative step of the central difference
# Rates between which a network is sought, B/s per GPU: 100 Mb/s to 1 Pb/s.
SLOWEST_NETWORK, FASTEST_NETWORK = 1.25e7, 1.25e14


@dataclass(frozen=True)
class Worth:
    """What one change is worth, as a row."""

    kind: str
    change: str
    outcome: Outcome
    gain: float
    elasticity: float | None = None
    value: float | None = None
    unit: str = ""


@dataclass
class WhatIf:
    """The job as it is, and its changes, those that fit first and the largest gain before the others."""

    base: Outcome
    changes: list[Worth]
    notes: list[str]


def base_outcome(context: Context, cells: Mapping[str, Any]) -> tuple[Outcome, list[str]]:
    """The outcome of the stated layout, or of the fastest one where no layout cell is stated."""
    notes: list[str] = []
    chosen = {name: value for name, value in cells.items() if value is not None}
    if not any(name in chosen for name in ("tp", "pp", "dp", "cp", "ep", "zero_stage", "micro_batch")):
        chosen, row = fastest(context, chosen)
        notes.append(f"no layout is stated; the fastest is taken: {row['layout']}")
    job = jobs.resolve(chosen, context)
    return outcomes([(Variation("", "as it is"), job)])[0], [*notes, *job.remarks]


def fastest(context: Context, cells: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cells and the plan row of the fastest layout; InfeasibleError when nothing fits."""
    found = plan(cells, context, top=1)
    if not found.rows:
        raise InfeasibleError(f"no layout fits {cells.get('n_gpus')} x {cells.get('gpu')}; {found.nearest_miss}")
    row = found.rows[0]
    layout = {name: row[name] for name in decided_axes() if row.get(name) is not None}
    return {**cells, **layout}, row


def whatif(context: Context, cells: Mapping[str, Any]) -> WhatIf:
    """Elasticities to every resource and to batch and sequence, and the worth of every layout one step away."""
    base, notes = base_outcome(context, cells)
    job = base.job
    resources, kept = _resource_variations(job)
    near = neighbours(job)
    sizes = _size_variations(job)
    varied = [(v, _with_columns(job, v)) for v in resources] + sizes + near + _precision_variations(job)
    found = outcomes(varied)
    changes = _resource_worth(base, found[: len(resources)], kept)
    by_name = {o.variation.name: o for o in found[len(resources) : len(resources) + len(sizes)]}
    changes += _size_worth(base, by_name)
    rest = found[len(resources) + len(sizes) :]
    changes += [Worth(o.variation.kind, o.variation.name, o, gain(base, o)) for o in rest]
    changes.sort(key=lambda w: (w.outcome.fit == "oom", -round(w.gain, 9), w.change))
    if base.fit == "oom":
        notes.append("the layout as it is does not fit in memory")
    return WhatIf(base, changes, notes)


def _with_columns(job: jobs.Job, variation: Variation) -> jobs.Job:
    import dataclasses

    return dataclasses.replace(job, columns={**job.columns, **variation.columns})


def _resource_variations(job: jobs.Job) -> tuple[list[Variation], list[Resource]]:
    """Three variations a resource: a little more, a little less, and the factor whose worth is shown."""
    found: list[Variation] = []
    kept = [r for r in RESOURCES if any(job.columns.get(name) for name in r.columns)]
    for resource in kept:
        for factor in (1 + STEP, 1 - STEP, resource.better):
            found.append(Variation("resource", resource.key, {}, scaled(job, resource.columns, factor)))
    return found, kept


def _resource_worth(base: Outcome, found: list[Outcome], kept: list[Resource]) -> list[Worth]:
    rows = []
    for i, resource in enumerate(kept):
        more, less, shown = found[3 * i : 3 * i + 3]
        slope = float(elasticity(more.step_time, less.step_time, 1 + STEP, 1 - STEP))
        word = "× 2" if resource.better > 1 else "÷ 2"
        value = base.job.columns.get(resource.shown)
        change = f"{resource.title} {word}"
        rows.append(Worth("resource", change, shown, gain(base, shown), slope, value, resource.unit))
    return rows


_SIZES = (("global_batch", "global batch"), ("seq_len", "sequence"))


def _size_variations(job: jobs.Job) -> list[tuple[Variation, jobs.Job]]:
    """Twice and half the batch and the sequence, with the same layout; those that are legal."""
    found = []
    for name, _ in _SIZES:
        for factor, word in ((2, "× 2"), (0.5, "÷ 2")):
            value = int(job.cells[name] * factor)
            variation = Variation("batch", f"{name} {word}", {name: value})
            try:
                if value >= 1 and value == job.cells[name] * factor:
                    found.append((variation, jobs.resolve({**job.cells, name: value}, job.context)))
            except UsageError:
                continue
    return found


PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")


def _precision_variations(job: jobs.Job) -> list[tuple[Variation, jobs.Job]]:
    """The precisions of training recipes that the device has; what it does to the loss is another question."""
    found = []
    for precision in PRECISIONS:
        if precision == job.cells["precision"] or not job.cluster.device.supports(precision):
            continue
        variation = Variation(
            "precision", f"precision {job.cells['precision']} → {precision}", {"precision": precision}
        )
        try:
            found.append((variation, jobs.resolve({**job.cells, **variation.cells}, job.context)))
        except UsageError:
            continue
    return found


def _size_worth(base: Outcome, by_name: Mapping[str, Outcome]) -> list[Worth]:
    rows = []
    for name, title in _SIZES:
        for word, factor in (("× 2", 2.0), ("÷ 2", 0.5)):
            outcome = by_name.get(f"{name} {word}")
            if outcome is None:
                continue
            slope = float(elasticity(outcome.step_time, base.step_time, factor, 1.0))
            value = float(base.job.cells[name])
            rows.append(Worth("batch", f"{title} {word}", outcome, gain(base, outcome), slope, value, ""))
    return rows


# --- the network that a bound needs -------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkNeed:
    """The rate that keeps exposed communication at a bound, and what stands in the way where none does."""

    resource: str
    share_now: float
    rate_now: float
    rate_needed: float | None
    share_at_best: float
    outcome: Outcome | None
    blocking: str


def bisect(function: Callable[[float], float], low: float, high: float, target: float, rounds: int = 60) -> float:
    """Where a monotone function crosses `target` between positive `low` and `high`, to 1e-4, in logarithms.

    >>> round(bisect(lambda x: 1 / x, 1.0, 100.0, 0.1), 2)
    10.0
    """
    falling = function(low) > function(high)
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        if (function(middle) > target) == falling:
            low = middle
        else:
            high = middle
        if high / low < 1 + 1e-4:
            break
    return high if falling else low


def network_for(base: Outcome, share: float, resource: str = "network_bandwidth") -> NetworkNeed:
    """The least rate per GPU at which communication takes at most `share` of the step, by bisection.

    `resource`: network_bandwidth or link_bandwidth.
    """
    job = base.job
    now = exposed_share(base.terms)
    rate = job.columns[resource]

    def at(value: float) -> Outcome:
        return outcomes([(Variation("resource", resource), _with_columns(job, _rate(resource, value)))])[0]

    best = at(FASTEST_NETWORK)
    if exposed_share(best.terms) > share:
        parts = {p: best.terms.get(p, 0.0) for p in time_parts() if p.endswith("/exposed") or p == "time/pp/p2p"}
        blocking = time_parts()[max(parts, key=lambda p: parts[p])]
        return NetworkNeed(resource, now, rate, None, exposed_share(best.terms), best, blocking)
    if exposed_share(at(SLOWEST_NETWORK).terms) <= share:
        slowest = at(SLOWEST_NETWORK)
        return NetworkNeed(resource, now, rate, SLOWEST_NETWORK, exposed_share(best.terms), slowest, "")
    needed = bisect(lambda x: exposed_share(at(x).terms), SLOWEST_NETWORK, FASTEST_NETWORK, share)
    return NetworkNeed(resource, now, rate, needed, exposed_share(best.terms), at(needed), "")


def _rate(resource: str, value: float) -> Variation:
    return Variation("resource", resource, {}, {resource: value})


# --- another cluster ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """One cluster with the layout it runs, and its cost where a price is given."""

    name: str
    outcome: Outcome
    layout_by: str  # "stated" or "fastest"
    price: float | None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole job."""
        return self.outcome.rate * self.outcome.job.cluster.n_gpus

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """Cost of a million tokens at the price of a GPU hour."""
        if self.price is None:
            return None
        return 1e6 * float(training_token_cost(self.price / 3600, self.outcome.rate))


def compare(
    context: Context,
    cells: Mapping[str, Any],
    other: Mapping[str, Any],
    price: float | None = None,
    other_price: float | None = None,
) -> list[Contender]:
    """The job on its own cluster and on another: with its own layout where one is stated, and the fastest of each.

    `other` replaces cells: gpu, n_gpus, gpus_per_node, inter_node_gbps_per_gpu, precision, fabric.
    """
    given = {name: value for name, value in cells.items() if value is not None}
    layout = {name: given[name] for name in decided_axes() if name in given}
    question = {name: value for name, value in given.items() if name not in decided_axes()}
    changed = {**question, **{name: value for name, value in other.items() if name != "fabric"}}
    if "gpu" in other:  # these described the first cluster
        for name in ("gpus_per_node", "inter_node_gbps_per_gpu"):
            if name not in other:
                changed.pop(name, None)
    theirs = dataclasses.replace(context, fabric=other.get("fabric"))
    if "gpu" not in other and "fabric" not in other:
        theirs = context
    found: list[Contender] = []
    # What the count and the name of the GPUs leave out of the second cluster's name.
    rest = "".join(f", {name}={value}" for name, value in other.items() if name not in {"gpu", "n_gpus"})
    for mine, asked, cost, said in ((context, question, price, ""), (theirs, changed, other_price, rest)):
        if layout:
            stated = dict(layout)
            if asked is changed and "n_gpus" in other:
                stated.pop("dp", None)
            outcome = _outcome(mine, {**asked, **stated})
            if outcome is not None:
                found.append(Contender(_name(outcome) + said, outcome, "stated", cost))
        if "n_gpus" in asked:
            best, _ = fastest(mine, asked)
            outcome = _outcome(mine, best)
            if outcome is not None:
                found.append(Contender(_name(outcome) + said, outcome, "fastest", cost))
    return found


def _name(outcome: Outcome) -> str:
    cluster = outcome.job.cluster
    return f"{cluster.n_gpus} x {cluster.device.key}"


def _outcome(context: Context, cells: Mapping[str, Any]) -> Outcome | None:
    try:
        return outcomes([(Variation("cluster", str(cells["gpu"])), jobs.resolve(cells, context))])[0]
    except UsageError:
        return None
