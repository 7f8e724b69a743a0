"""Networks that are no decoder: their ranked ways to be split, one of them explained, GPUs for a rate, growth."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.errors import InfeasibleError, UsageError
from gpucalc.estimate.network import GENERATION, TRAINING, estimate_network
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import (
    GENERATION_SPLITS,
    SEQUENCE_KINDS,
    NetworkJob,
    predict_networks,
    resolve_network_job,
    stack_network_jobs,
)
from gpucalc.questions.explain import Explanation, ledger_tree

OBJECTIVES = ("latency", "throughput", "cost")
MOST = 4096  # layouts that a search evaluates
LARGEST_FIT = 1 << 16  # GPUs up to which a search for their number goes
ROOTS = ("time/latency", "time/step", "time/compute", "memory/total", "memory/fill", "metric/samples_per_s")
DEGREES = ("tp", "cp", *GENERATION_SPLITS)
LAYOUT_CELLS = (*DEGREES, "zero_stage", "recompute", "micro_batch", "grad_accum")
TOKENS = {"ulysses": "u", "ring": "r", "cfg_parallel": "cfg", "pipefusion": "pf"}


@dataclass
class NetworkPlan:
    """The ranked layouts of a network's job, and what became of the others."""

    job: dict[str, Any]
    evaluated: int
    feasible: int
    seconds: float
    rows: list[dict[str, Any]]
    rejected: dict[str, int]
    notes: list[str] = field(default_factory=list)


def network_label(cells: Mapping[str, Any]) -> str:
    """A layout of a network as a label: degrees that are not 1, replicas, the micro-batch and what shards.

    >>> network_label({"tp": 1, "ulysses": 4, "cfg_parallel": 2, "dp": 1, "micro_batch": 1, "mode": "generation"})
    'u4-cfg2-dp1-mbs1'
    """
    parts = [f"{TOKENS.get(n, n)}{cells[n]}" for n in DEGREES if int(cells.get(n) or 1) > 1]
    parts += [f"dp{cells['dp']}", f"mbs{cells['micro_batch']}"]
    if cells.get("mode", TRAINING) == TRAINING:
        parts += [f"zero{cells.get('zero_stage', 0)}"]
        parts += ["full"] if cells.get("recompute") == "full" else []
    return "-".join(parts)


def plan_network(
    cells: Mapping[str, Any], context: Context, objective: str = "throughput", top: int = 10
) -> NetworkPlan:
    """Rank the ways to run a network: batches and what is sharded in training, splits of a request in generation.

    Cells that are stated restrict the search; a label leaves those that it does not name to it. Raises UsageError when
    the question itself is wrong.
    """
    started = time.perf_counter()
    cells = {name: value for name, value in cells.items() if not isinstance(value, tuple)}
    base = _base(cells, context)
    jobs, rejected = [], {"illegal": 0, "fits in memory": 0}
    wrong: UsageError | None = None
    for layout in itertools.islice(_layouts(cells, base), MOST):
        try:
            jobs.append(resolve_network_job({**cells, **layout}, context))
        except UsageError as error:
            wrong = wrong or error
            rejected["illegal"] += 1
    if wrong is not None and not jobs:  # what is stated rules every layout out
        raise wrong
    rows = [
        {"layout": network_label(job.cells), **job.cells, **row, **_money(job, row)}
        for job, row in zip(jobs, predict_networks(jobs), strict=True)
    ]
    fitting = [row for row in rows if row["pred_fit"] != "oom"]
    rejected["fits in memory"] = len(rows) - len(fitting)
    fitting.sort(key=lambda row: (row["pred_fit"] != "fits", _worth(row, objective)))
    return NetworkPlan(
        job={name: base.cells[name] for name in base.cells if name not in {*DEGREES, "dp", "micro_batch"}}
        | {"network": base.network.name, "stack": base.stack.name, "parameters": base.network.parameters},
        evaluated=len(rows),
        feasible=len(fitting),
        seconds=time.perf_counter() - started,
        rows=fitting[:top],
        rejected={name: count for name, count in rejected.items() if count},
        notes=list(dict.fromkeys(note for note in base.warnings if "micro_batch" not in note)) + _doubts(base),
    )


def _base(cells: Mapping[str, Any], context: Context) -> NetworkJob:
    """The job without its splits, which every legal question has."""
    return resolve_network_job({n: v for n, v in cells.items() if n not in DEGREES}, context)


def _doubts(job: NetworkJob) -> list[str]:
    if job.rates.own and job.stack.known:
        return []
    if not job.cells.get("framework"):
        return [f"framework is not stated: rates of {job.stack.name}, and the widest band"]
    return [
        f"unvalidated: no measured rows of {job.network.net} nets on {job.stack.name} in mode {job.mode}; wide band"
    ]


def _worth(row: Mapping[str, Any], objective: str) -> float:
    """What a ranking makes small."""
    if objective == "latency":
        return float(row.get("pred_latency_s") or row["pred_step_time_s"])
    if objective == "cost":
        return float(row["gpu_seconds_per_sample"])
    return -float(row["pred_samples_per_s"])


def _money(job: NetworkJob, row: Mapping[str, Any]) -> dict[str, float]:
    """GPU seconds of one sample, and its price where one is known."""
    seconds = job.cluster.n_gpus / row["pred_samples_per_s"]
    return {"gpu_seconds_per_sample": seconds}


def _layouts(cells: Mapping[str, Any], base: NetworkJob) -> Iterable[dict[str, Any]]:
    """The combinations that a search tries, those with stated cells left out."""
    if base.mode == GENERATION:
        yield from _generation_layouts(cells, base)
        return
    batches = _batches(cells, base)
    main = max(base.network.core, key=lambda part: part.macs)
    tensor = [n for n in (1, 2, 4, 8) if base.cluster.n_gpus % n == 0] if main.kind in SEQUENCE_KINDS else [1]
    for tp, zero, recompute in itertools.product(
        _stated(cells, "tp", tensor),
        _stated(cells, "zero_stage", [0, 1, 3] if base.mode == TRAINING else [0]),
        _stated(cells, "recompute", ["none", "full"] if base.mode == TRAINING else ["none"]),
    ):
        replicas = base.cluster.n_gpus // tp
        for micro, accumulated in batches(replicas):
            yield {
                **{"tp": tp, "zero_stage": zero, "recompute": recompute, "micro_batch": micro},
                "grad_accum": accumulated,
            }


def _stated(cells: Mapping[str, Any], name: str, tried: Sequence[Any]) -> Sequence[Any]:
    return tried if cells.get(name) is None else [cells[name]]


def _batches(cells: Mapping[str, Any], base: NetworkJob) -> Any:
    """A function from replicas to the micro-batches and micro-steps that make the stated global batch."""
    whole, stated = cells.get("global_batch"), cells.get("micro_batch")

    def of(replicas: int) -> list[tuple[int, int]]:
        if stated is not None:
            return [(int(stated), int(cells.get("grad_accum") or 1))]
        if whole is None:
            return [(2**k, 1) for k in range(11)]
        each = max(1, int(whole) // replicas)
        sizes = [n for n in range(1, each + 1) if each % n == 0]
        kept = sorted(sizes, reverse=True)[:12]
        return [(n, each // n if base.mode == TRAINING else 1) for n in kept]

    return of


def _generation_layouts(cells: Mapping[str, Any], base: NetworkJob) -> Iterable[dict[str, Any]]:
    """Degrees that multiply to a divisor of the GPUs; replicas take the rest."""
    gpus = base.cluster.n_gpus
    powers = [n for n in range(1, gpus + 1) if gpus % n == 0]
    whole = int(cells.get("global_batch") or 0)
    for cfg, ulysses, ring, tp, stages in itertools.product(
        _stated(cells, "cfg_parallel", [1, 2]),
        _stated(cells, "ulysses", powers),
        _stated(cells, "ring", powers),
        _stated(cells, "tp", powers),
        _stated(cells, "pipefusion", powers),
    ):
        group = cfg * ulysses * ring * tp * stages
        if gpus % group or sum(n > 1 for n in (tp, stages)) > 1 or (tp > 1 and ring * ulysses > 1):
            continue  # engines split by tensors alone or along the sequence
        micro = cells.get("micro_batch") or max(1, math.ceil(whole * group / gpus) if whole else 1)
        yield {
            **{"cfg_parallel": cfg, "ulysses": ulysses, "ring": ring, "tp": tp, "pipefusion": stages},
            "micro_batch": int(micro),
        }


def explain_network(cells: Mapping[str, Any], context: Context) -> Explanation:
    """Explain one completed row of a network, component by component."""
    job = resolve_network_job(cells, context)
    ledger = estimate_network(stack_network_jobs([job]), job.parts, job.mode, trace=True)
    row = predict_networks([job])[0]
    device = job.cluster.device
    states = ", ".join(f"{part.name} {part.parameters / 1e6:,.1f} M ({part.state})" for part in job.network.components)
    facts = [
        ("model", f"{job.network.name}, {job.network.parameters:,} parameters"),
        ("components", states),
        ("forward of one sample", f"{row['pred_gmac']:,.2f} GMAC, {row['pred_mact']:,.1f} M elements written"),
        ("GPU", f"{job.cluster.n_gpus} x {device.name}, {job.cluster.gpus_per_node} a node"),
        ("peak", f"{job.columns['peak'] / 1e12:.1f} TFLOP/s in {job.cells['precision']}, dense"),
        ("software stack", job.stack.name + ("" if job.rates.own else " (rates of its kin)")),
        ("fit", row["pred_fit"]),
        ("bound", row["pred_bound"]),
    ]
    facts += [("note", note) for note in (*job.warnings, *_doubts(job))]
    unit = job.cells.get("sample") or job.network.sample
    summary = [
        f"{row['pred_samples_per_s']:,.1f} {unit}s a second on {job.cluster.n_gpus} GPUs "
        f"({row['pred_samples_per_s_low']:,.1f} to {row['pred_samples_per_s_high']:,.1f}); the largest term is "
        f"{row['pred_bound']}."
    ]
    if "pred_latency_s" in row:
        serial = [p for p in job.parts if p != "denoiser"]
        summary.append(
            f"A request takes {row['pred_latency_s']:.3f} s"
            + (f", of which {', '.join(serial)} run on every GPU alike." if serial else ".")
        )
    return Explanation(facts, ledger_tree(ledger, context.db, ROOTS), summary, job.warnings)


def fit_network(cells: Mapping[str, Any], context: Context) -> list[dict[str, Any]]:
    """The fastest layout on the fewest GPUs that hold a network, or on as many as are stated.

    Counts are 1, 2, 4 ... inside a node, then whole nodes. Raises InfeasibleError when none holds it.
    """
    node = _base({**cells, "n_gpus": cells.get("n_gpus") or 1}, context).cluster.node.gpus_per_node
    counts = [n for n in (1, 2, 4, 8, 16) if n < node] + [
        node * 2**k for k in range(int(math.log2(LARGEST_FIT / node)))
    ]
    for count in [int(cells["n_gpus"])] if cells.get("n_gpus") else counts:
        found = plan_network({**cells, "n_gpus": count}, context, "throughput", 1)
        if found.rows:
            return found.rows
    raise InfeasibleError("no layout fits" + (f" on {cells['n_gpus']} GPUs" if cells.get("n_gpus") else ""))


def scale_network(cells: Mapping[str, Any], context: Context, counts: Sequence[int]) -> list[dict[str, Any]]:
    """The best layout on each number of GPUs, with the efficiency over the first.

    A stated global batch is divided (strong scaling); without one each replica keeps its own (weak scaling).
    """
    rows: list[dict[str, Any]] = []
    for count in counts:
        found = plan_network({**cells, "n_gpus": count}, context, "throughput", 1)
        if found.rows:
            row = found.rows[0]
            first = rows[0] if rows else row
            each = row["pred_samples_per_s"] / count
            rows.append({**row, "efficiency_pct": 100 * each / (first["pred_samples_per_s"] / first["n_gpus"])})
    if not rows:
        raise InfeasibleError("no layout fits on any of these numbers of GPUs")
    return rows
