"""Variations of one job: neighbouring legal layouts, changed cells, scaled constants; all costed in one batch.

`neighbours` lists every layout that is one step away, by the planner's own constraints; `evaluate` costs a list
of variations with the one estimate. What-if, sizing and diagnosis are questions about such lists.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.core.vocabulary import CP_KINDS, RECOMPUTES, SCHEDULES
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.layouts import label
from gpucalc.layouts.axes import AXES, divisors


@dataclass(frozen=True)
class Variation:
    """One change of a job: `cells` replace its cells (None empties one), then `columns` replace columns."""

    kind: str  # layout, batch, resource, software …
    name: str
    cells: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a job with a variation would do."""

    variation: Variation
    job: jobs.Job
    row: dict[str, Any]  # the pred_ columns
    terms: dict[str, float]  # ledger path → value

    @property
    def step_time(self) -> float:
        """Seconds of a step."""
        return self.terms["time/step"]

    @property
    def rate(self) -> float:
        """Tokens per second and GPU."""
        return self.terms["metric/tokens_per_s_per_gpu"]

    @property
    def memory(self) -> float:
        """Bytes at the peak of the fullest GPU."""
        return self.terms["memory/total"]

    @property
    def fit(self) -> str:
        """fits, risky or oom."""
        return str(self.row["pred_fit"])

    @property
    def label(self) -> str:
        """The layout label, with the recomputation that the estimate chose."""
        return layout_label(self.job, self.row)


def layout_label(job: jobs.Job, row: Mapping[str, Any]) -> str:
    """The label of a job's layout, with the recomputation of its prediction."""
    cells = {name: job.cells[name] for name in AXES if job.cells.get(name) is not None}
    kind, _, layers = str(row["pred_recompute"]).partition(":")
    cells["recompute"] = kind
    cells.pop("recompute_layers", None)
    if layers:
        cells["recompute_layers"] = int(layers)
    return label.layout_label(cells, job.model.experts)


def apply(job: jobs.Job, variation: Variation) -> jobs.Job:
    """The job that a variation makes of `job`; UsageError when it is not a legal one."""
    changed = job
    if variation.cells:
        changed = jobs.resolve({**job.cells, **variation.cells}, job.context)
    if variation.columns:
        changed = dataclasses.replace(changed, columns={**changed.columns, **variation.columns})
    return changed


def evaluate(job: jobs.Job, variations: Sequence[Variation], *, skip_illegal: bool = True) -> list[Outcome]:
    """The outcome of each variation, in order, in one batch; illegal ones are left out."""
    legal: list[tuple[Variation, jobs.Job]] = []
    for variation in variations:
        try:
            legal.append((variation, apply(job, variation)))
        except UsageError:
            if not skip_illegal:
                raise
    return outcomes(legal)


def outcomes(varied: Sequence[tuple[Variation, jobs.Job]]) -> list[Outcome]:
    """The outcomes of jobs that stand beside their variations, in one batch."""
    if not varied:
        return []
    chosen = [job for _, job in varied]
    ledger = estimate_training(jobs.stack(chosen), detail=True)
    rows = jobs.predictions(ledger, chosen, jobs.bands_of(chosen))
    terms = terms_of(ledger, len(chosen))
    return [
        Outcome(variation, job, row, {path: float(values[i]) for path, values in terms.items()})
        for i, ((variation, job), row) in enumerate(zip(varied, rows, strict=True))
    ]


_WANTED = (
    "time/",
    "memory/",
    "metric/",
    "communication/",
    "bounds/",
    "traffic/",
    "stage/",
    "layer/",
    "symbol/",
    "host/",
)


def terms_of(ledger: Ledger, rows: int) -> dict[str, np.ndarray]:
    """The terms that a comparison may read, one value per row."""
    found = {}
    for path in ledger.entries:
        if path.startswith(_WANTED):
            try:
                found[path] = np.broadcast_to(np.asarray(ledger[path], dtype=float), (rows,))
            except KeyError:  # a term of a wider scope
                continue
    return found


def is_legal(job: jobs.Job) -> bool:
    """Whether the planner would list the layout of a job."""
    return not job.unlisted


def neighbours(job: jobs.Job) -> list[tuple[Variation, jobs.Job]]:
    """Every legal layout that differs from the job's by one step, with the same GPUs and the same batch.

    A step doubles or halves one degree (dp makes up for it), moves a factor of two from one degree to another,
    or takes the next value of another choice.
    """
    found: list[tuple[Variation, jobs.Job]] = []
    seen = {_signature(job)}
    for name, cells in _steps(job):
        variation = Variation("layout", name, cells)
        try:
            changed = apply(job, variation)
        except UsageError:
            continue
        if _signature(changed) not in seen and is_legal(changed):
            seen.add(_signature(changed))
            found.append((variation, changed))
    return found


def _signature(job: jobs.Job) -> tuple[Any, ...]:
    return tuple(job.cells.get(name) for name in AXES)


def _steps(job: jobs.Job) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, changed cells) of each step, legal or not."""
    cells = job.cells
    yield from _degree_steps(cells, bool(job.model.experts))
    for name, title in (("micro_batch", "micro-batch"),):
        for value in (cells[name] * 2, cells[name] // 2):
            if value >= 1:
                yield f"{title} {cells[name]} → {value}", {name: value}
    if cells["pp"] > 1:
        yield from _pipeline_steps(job)
    yield from _sharding_steps(job)
    if cells["tp"] > 1:
        sp = cells["sequence_parallel"]
        yield f"sequence parallelism {'on → off' if sp else 'off → on'}", {"sequence_parallel": not sp}
    if cells["cp"] > 1:
        for kind in CP_KINDS:
            if kind != cells["cp_kind"]:
                yield f"context parallelism {cells['cp_kind']} → {kind}", {"cp_kind": kind}
    yield from _recompute_steps(job)
    for name, title in (("offload_optimizer", "optimizer state"), ("offload_activations", "activations")):
        to = not cells.get(name)
        yield f"{title} {'to the host' if to else 'back to the GPU'}", {name: to}


def _degree_steps(cells: Mapping[str, Any], mixture: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    degrees = ("tp", "pp", "cp")
    for name in degrees:
        now = cells[name]
        if cells["dp"] % 2 == 0:
            yield f"{name} {now} → {2 * now}", _resized(cells, {name: 2 * now, "dp": cells["dp"] // 2})
        if now % 2 == 0:
            yield f"{name} {now} → {now // 2}", _resized(cells, {name: now // 2, "dp": cells["dp"] * 2})
    for less in degrees:
        for more in degrees:
            if less != more and cells[less] % 2 == 0:
                to = {less: cells[less] // 2, more: cells[more] * 2}
                name = f"{less} {cells[less]} → {to[less]}, {more} {cells[more]} → {to[more]}"
                yield name, _resized(cells, to)
    if mixture:
        for value in (cells["ep"] * 2, cells["ep"] // 2):
            if value >= 1:
                yield f"ep {cells['ep']} → {value}", _resized(cells, {"ep": value})
        if cells["tp"] > 1:
            etp = 1 if cells["etp"] > 1 else cells["tp"]
            yield f"etp {cells['etp']} → {etp}", {"etp": etp}


def _resized(cells: Mapping[str, Any], to: Mapping[str, int]) -> dict[str, Any]:
    """The cells of another size of the groups, with what follows from it."""
    changed: dict[str, Any] = dict(to)
    if "tp" in to:
        changed["etp"] = to["tp"] if cells["etp"] == cells["tp"] else 1
        if cells["tp"] == 1:  # the profile's default decides
            changed["sequence_parallel"] = None
    if "pp" in to:
        if to["pp"] == 1 or cells["pp"] == 1:
            changed |= {"schedule": None, "vpp": 1}
        elif cells["vpp"] > 1:
            changed["vpp"] = max(1, cells["vpp"] * cells["pp"] // to["pp"])
            changed["schedule"] = None
    return changed


def _pipeline_steps(job: jobs.Job) -> Iterator[tuple[str, dict[str, Any]]]:
    cells = job.cells
    depth = -(-int(job.columns["layers"]) // cells["pp"])
    chunks = divisors(depth)
    more = [v for v in chunks if v > cells["vpp"]][:1] if cells["schedule"] in {"1f1b", "interleaved"} else []
    less = [v for v in chunks if v < cells["vpp"]][-1:]
    for value in (*more, *less):
        yield f"vpp {cells['vpp']} → {value}", {"vpp": value, "schedule": None}
    for schedule in SCHEDULES[1:]:
        if schedule not in {cells["schedule"], "interleaved"}:
            yield f"schedule {cells['schedule']} → {schedule}", {"schedule": schedule, "vpp": 1}


def _sharding_steps(job: jobs.Job) -> Iterator[tuple[str, dict[str, Any]]]:
    cells, domain = job.cells, job.cluster.domain
    stage = cells["zero_stage"]
    for value in (stage + 1, stage - 1, 3, 1):
        if 0 <= value <= 3 and value != stage:
            yield f"ZeRO {stage} → {value}", {"zero_stage": value, "shard_group": None}
    if stage == 3 and not cells.get("shard_group") and 1 < domain < cells["dp"] * cells["cp"]:
        yield f"shard over {domain} instead of all", {"shard_group": domain}
    if cells.get("shard_group"):
        yield f"shard over all instead of {cells['shard_group']}", {"shard_group": None}


def _recompute_steps(job: jobs.Job) -> Iterator[tuple[str, dict[str, Any]]]:
    now = job.cells.get("recompute")
    matters = not job.columns["flash"] or job.columns["selective_kept"] < 1
    for kind in RECOMPUTES:
        if kind != now and (kind != "selective" or matters):
            yield f"recompute {now or 'as needed'} → {kind}", {"recompute": kind, "recompute_layers": None}
    if now is not None:
        yield f"recompute {now} → as needed", {"recompute": None, "recompute_layers": None}


def gain(base: Outcome, other: Outcome) -> float:
    """Tokens per second and GPU over those of the base, less one."""
    return other.rate / base.rate - 1


def scaled(job: jobs.Job, names: Iterable[str], factor: float) -> dict[str, float]:
    """Columns of a job multiplied by a factor; those it lacks are passed over."""
    return {name: job.columns[name] * factor for name in names if name in job.columns}


MEMORY_PARTS = (
    *("weights", "gradients", "optimizer", "adapters", "activations", "working", "logits", "gather", "update"),
)
MEMORY_TITLES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "adapters": "adapters",
    "activations": "activations",
    "working": "working set of a layer",
    "logits": "logits and loss",
    "gather": "gathered parameters",
    "update": "temporaries of the update",
}


def largest_part(terms: Mapping[str, float]) -> tuple[str, float]:
    """The largest term of the memory of the fullest GPU, and its bytes."""
    name = max(MEMORY_PARTS, key=lambda part: terms[f"memory/{part}"])
    return MEMORY_TITLES[name], terms[f"memory/{name}"]


@functools.cache
def time_parts() -> dict[str, str]:
    """Term of the step time → its title; the terms add up to the step."""
    return {
        "time/forward/gemm": "matrix products, forward",
        "time/backward/gemm": "matrix products, backward",
        "time/forward/attention": "attention, forward",
        "time/backward/attention": "attention, backward",
        "time/forward/elementwise": "element-wise, forward",
        "time/backward/elementwise": "element-wise, backward",
        "time/head": "head and loss",
        "time/recompute": "recomputation",
        "time/host": "waiting for the host",
        "time/offload/exposed": "activations to and from the host",
        "time/tp/exposed": "tensor parallel, exposed",
        "time/cp/exposed": "context parallel, exposed",
        "time/ep/exposed": "expert parallel, exposed",
        "time/fsdp/exposed": "sharded parameters, exposed",
        "time/pp/bubble": "pipeline bubble",
        "time/pp/p2p": "stage-to-stage transfers",
        "time/dp/exposed": "data parallel, exposed",
        "time/optimizer": "optimizer",
        "time/stragglers": "stragglers",
    }


EXPOSED = (
    *("time/tp/exposed", "time/cp/exposed", "time/ep/exposed", "time/fsdp/exposed", "time/dp/exposed"),
    "time/pp/p2p",
)


def exposed_share(terms: Mapping[str, float]) -> float:
    """Share of the step in which communication is not hidden; the bubble is idle time, not communication."""
    return sum(terms.get(path, 0.0) for path in EXPOSED) / terms["time/step"]
