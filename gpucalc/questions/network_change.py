"""What one change is worth to a network that is no decoder, and where a measured step of it loses its time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import InfeasibleError, UsageError
from gpucalc.estimate.network import GENERATION, TRAINING, estimate_network
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import NetworkJob, predict_networks, resolve_network_job, stack_network_jobs
from gpucalc.questions.network import LAYOUT_CELLS, network_label, plan_network
from gpucalc.questions.whatif import STEP, bisect

FARTHEST = 8.0  # factor of a resource within which a measured time is sought
SPREAD = 0.3  # of ln(factor): how far a resource of a healthy cluster is usually off
LAUNCHES = ("launch_seconds", "step_floor")


@dataclass(frozen=True)
class Resource:
    """Something that a cluster has more or less of: the ends of the names of the columns that hold it."""

    key: str
    title: str
    columns: tuple[str, ...]
    better: float = 2.0  # the factor whose worth is shown
    check: str = ""


RESOURCES = (
    Resource("flops", "FLOP/s of the matrix units", ("peak", "reference_peak"), check="clocks and power limit"),
    Resource("hbm-bandwidth", "HBM bandwidth", ("memory_bandwidth",), check="fused kernels, channels-last, compile"),
    Resource("hbm-capacity", "HBM capacity", ("capacity_inverse",), 0.5),
    Resource("links", "links inside a server", ("inside_bandwidth",), check="nccl-tests on one server"),
    Resource("network", "network cards", ("card_bandwidth",), check="nccl-tests over two servers"),
    Resource("host", "host: launches and time between steps", LAUNCHES, 0.5, "data loading, CUDA graphs, compile"),
)
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")


def _scaled(job: NetworkJob, resource: Resource, factor: float) -> NetworkJob:
    columns = {
        name: value * factor if name.rsplit(".", 1)[-1] in resource.columns else value
        for name, value in job.columns.items()
    }
    return dataclasses.replace(job, columns=columns)


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row.get("pred_latency_s") or row["pred_step_time_s"])


def base_job(cells: Mapping[str, Any], context: Context) -> tuple[NetworkJob, list[str]]:
    """The stated layout, or the fastest one where none is stated. Raises InfeasibleError where none fits."""
    stated = {name: value for name, value in cells.items() if value is not None}
    notes: list[str] = []
    if not any(name in stated for name in (*LAYOUT_CELLS, "dp")):
        objective = "latency" if stated.get("mode") == GENERATION else "throughput"
        found = plan_network(stated, context, objective, 1)
        if not found.rows:
            raise InfeasibleError(f"no layout fits {stated.get('n_gpus')} x {stated.get('gpu')}")
        best = found.rows[0]
        stated |= {name: best[name] for name in LAYOUT_CELLS if best.get(name) is not None}
        notes.append(f"no layout is stated; the fastest is taken: {best['layout']}")
    job = resolve_network_job(stated, context)
    return job, [*notes, *job.warnings]


def whatif_network(
    cells: Mapping[str, Any], context: Context
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The job as it is, what each change is worth (gain in samples per second and GPU), and notes.

    Those that fit come first, the largest gain before the others.
    """
    job, notes = base_job(cells, context)
    changed: list[tuple[str, str, NetworkJob]] = []
    for one in RESOURCES:
        changed.append(("resource", f"{one.title} x {one.better:g}", _scaled(job, one, one.better)))
    for kind, name, cells_ in _steps_away(job):
        try:
            changed.append((kind, name, resolve_network_job(cells_, context)))
        except UsageError:
            continue
    near = [_scaled(job, one, 1 + sign * STEP) for one in RESOURCES for sign in (1, -1)]
    rows = predict_networks([job, *(one for _, _, one in changed), *near])
    base, found, ends = rows[0], rows[1 : 1 + len(changed)], rows[1 + len(changed) :]
    elasticities = {
        f"{one.title} x {one.better:g}": (math.log(_seconds(ends[2 * i])) - math.log(_seconds(ends[2 * i + 1])))
        / (math.log1p(STEP) - math.log1p(-STEP))
        for i, one in enumerate(RESOURCES)
    }
    each = base["pred_samples_per_s"] / job.cluster.n_gpus
    answers = [
        {
            "kind": kind,
            "change": name,
            "gain_pct": 100 * (row["pred_samples_per_s"] / one.cluster.n_gpus / each - 1),
            "elasticity": elasticities.get(name),
            "layout": network_label(one.cells),
            **row,
        }
        for (kind, name, one), row in zip(changed, found, strict=True)
    ]
    answers.sort(key=lambda row: (row["pred_fit"] == "oom", -round(row["gain_pct"], 7), row["change"]))
    if base["pred_fit"] == "oom":
        notes.append("the layout as it is does not fit in memory")
    return {"layout": network_label(job.cells), **base}, answers, notes


def _steps_away(job: NetworkJob) -> list[tuple[str, str, dict[str, Any]]]:
    """Jobs with one cell changed: kind, what is changed, and the cells."""
    full = {name: value for name, value in job.cells.items() if value is not None and name != "global_batch"}
    found: list[tuple[str, str, dict[str, Any]]] = []

    def add(kind: str, name: str, value: Any, told: str = "") -> None:
        if full.get(name) != value:
            cells = {n: v for n, v in full.items() if n != "dp"} | {name: value}
            found.append((kind, told or f"{name}={value}", cells))

    micro = int(full["micro_batch"])
    for size in (micro * 2, micro // 2):
        if size:
            add("batch", "micro_batch", size)
    if job.mode == TRAINING:
        for stage in (0, 1, 3):
            add("layout", "zero_stage", stage)
        for kind in ("none", "full"):
            if (full.get("recompute") or "none") != kind:
                add("layout", "recompute", kind)
    splits = ("tp", "ulysses", "ring", "cfg_parallel", "pipefusion") if job.mode == GENERATION else ("tp",)
    for name in splits:
        for size in (int(full.get(name) or 1) * 2, int(full.get(name) or 1) // 2):
            if size:
                add("layout", name, size)
    for precision in PRECISIONS:
        add("precision", "precision", precision)
    if not full.get("compile"):
        add("software", "compile", True, "compiled")
    if job.network.net in {"conv", "depthwise", "mixed"} and not full.get("channels_last"):
        add("software", "channels_last", True, "channels last")
    return found


@dataclass(frozen=True)
class NetworkDiagnosis:
    """A measured time beside the predicted one: its terms, what would explain the gap, and sentences."""

    layout: str
    measured: float
    predicted: float
    low: float
    high: float
    terms: list[dict[str, Any]]
    causes: list[dict[str, Any]]
    summary: list[str]

    @property
    def verdict(self) -> str:
        """slower, faster, or no gap."""
        if self.low <= self.measured <= self.high:
            return "no gap"
        return "slower" if self.measured > self.high else "faster"


def diagnose_network(cells: Mapping[str, Any], context: Context, measured: float) -> NetworkDiagnosis:
    """Compare a measured step, or request, with the estimate: which resource, off by how much, would explain it."""
    job = resolve_network_job({n: v for n, v in cells.items() if v is not None}, context)
    [row] = predict_networks([job])
    ledger = estimate_network(stack_network_jobs([job]), job.parts, job.mode)
    whole = "time/latency" if job.mode == GENERATION else "time/step"
    time = _seconds(row)
    terms: list[dict[str, Any]] = [
        {"term": path.removeprefix("time/"), "pred_time_s": value, "share_pct": 100 * value / time}
        for path in ledger.entries[whole].names
        if (value := _at(ledger, path)) > 0
    ]
    terms.sort(key=lambda term: -term["pred_time_s"])
    causes = _causes(job, time, measured)
    kind = "latency" if job.mode == GENERATION else "step_time"
    low, high = row[f"pred_{kind}_low_s"], row[f"pred_{kind}_high_s"]
    found = NetworkDiagnosis(network_label(job.cells), measured, time, low, high, terms, causes, [])
    return dataclasses.replace(found, summary=_summary(found, row))


def _at(ledger: Any, path: str) -> float:
    value = ledger[path] if path in ledger else ledger.columns[path]
    return float(value.ravel()[0] if hasattr(value, "ravel") else value)


def _causes(job: NetworkJob, time: float, measured: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in RESOURCES:
        if one.key == "hbm-capacity":
            continue

        def taken(factor: float, one: Resource = one) -> float:
            return _seconds(predict_networks([_scaled(job, one, factor)])[0])

        slower = 1 / FARTHEST if one.better > 1 else FARTHEST
        bound = slower if measured > time else 1 / slower
        reach = taken(bound)
        explained = (reach - time) / (measured - time) if measured != time else 0.0
        if explained <= 0.02:
            continue
        factor: float | None = None
        if explained >= 1:
            low, high = sorted((1.0, bound))
            factor = bisect(taken, low, high, measured)
        away = math.log(factor or bound) / SPREAD
        found.append(
            {
                "cause": one.key,
                "title": f"{one.title} {'slower' if measured > time else 'faster'} than predicted",
                "value": f"x {factor:.2f}" if factor else f"beyond x {bound:.3g}",
                "explained_pct": 100 * min(1.0, explained),
                "plausibility": min(1.0, explained) * math.exp(-0.5 * away**2),
                "pred_step_time_s": reach,
                "pred_fit": "",
                "check": one.check,
            }
        )
    best = max((one["plausibility"] for one in found), default=0.0) or 1.0
    found = [{**one, "plausibility": one["plausibility"] / best} for one in found]
    return sorted(found, key=lambda one: (-round(one["plausibility"], 6), one["cause"]))


def _summary(found: NetworkDiagnosis, row: Mapping[str, Any]) -> list[str]:
    ratio = found.measured / found.predicted
    said = [
        f"{found.layout}: measured {found.measured:.4g} s, predicted {found.predicted:.4g} s "
        f"({found.low:.4g} to {found.high:.4g}): {ratio:.2f} times as long."
    ]
    if found.verdict == "no gap":
        said.append("That is within the band of the prediction: there is no gap to explain.")
    elif found.causes:
        said.append(f"The likeliest of one thing alone: {found.causes[0]['title']} ({found.causes[0]['value']}).")
    else:
        said.append("No resource within its bounds explains it: check the cells, the batch and what was measured.")
    said.append(f"The largest term of the prediction is {row['pred_bound']}.")
    return said
