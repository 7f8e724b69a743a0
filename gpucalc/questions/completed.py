"""A job of which not everything is stated: its sequence, its batch, and the layout that the planner would take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import InfeasibleError
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts.axes import decided_axes
from gpucalc.questions.plan import plan

STEP_TOKENS = 2**22  # tokens of a step where no batch is stated
TOKENS_PER_GPU = 1024  # and no fewer than so many a GPU


def complete_cells(cells: Mapping[str, Any], context: Context) -> tuple[dict[str, Any], list[str]]:
    """The cells of a run with sequence, batch and layout; what was taken is said in notes.

    Raises InfeasibleError where no layout fits.
    """
    full, notes = dict(cells), []
    cut = math.prod(int(full.get(name) or 1) for name in ("tp", "pp", "cp"))
    count = int(full.get("n_gpus") or cut * int(full.get("dp") or 1))
    if full.get("seq_len") is None:
        neutral = {"model": full.get("model"), "gpu": full.get("gpu"), "n_gpus": count}
        shape = {n: v for n, v in full.items() if n not in decided_axes() and n != "global_batch"}
        base = jobs.resolve({**shape, **neutral, "dp": count, "micro_batch": 1, "zero_stage": 1}, context)
        full["seq_len"] = int(base.cells["seq_len"])
        notes.append(f"--seq-len is not stated; {full['seq_len']:,} is taken")
    if full.get("global_batch") is None:
        tokens = max(STEP_TOKENS, TOKENS_PER_GPU * count)
        sequences = max(1, round(tokens / int(full["seq_len"])))
        unit = count if sequences >= count else max(1, count // 8)
        if "tp" in full:  # a layout is stated: whole micro-batches on every replica
            unit = max(1, int(full.get("dp") or count // cut)) * int(full.get("micro_batch") or 1)
        full["global_batch"] = max(unit, -(-sequences // unit) * unit)
        notes.append(f"--global-batch is not stated; {full['global_batch']:,} sequences are taken")
    if "tp" in full:
        return full, notes
    found = plan(full, context, top=1)
    if not found.rows:
        raise InfeasibleError(f"no layout fits: {found.nearest_miss or 'no layout is legal'}")
    best = found.rows[0]
    kept = {n: v for n, v in best.items() if n in decided_axes() and v not in (None, "")}
    notes.append(f"--layout is not stated; the planner's best, {best['layout']}, is taken")
    return {**full, **kept}, notes


@dataclass(frozen=True)
class NetworkPace:
    """What power and storage ask of a network that is no decoder: its step and how many samples it takes."""

    layout: str
    step_time: float
    samples_per_s: float  # of the whole cluster
    parameters: float
    replicas: float
    notes: list[str]


def network_pace(cells: Mapping[str, Any], context: Context) -> NetworkPace:
    """The predicted pace of a network. Raises UsageError for a wrong job, InfeasibleError where it has no room."""
    from gpucalc.jobs.network import predict_networks
    from gpucalc.questions.network import network_label
    from gpucalc.questions.network_change import base_job

    job, notes = base_job(cells, context)
    [row] = predict_networks([job])
    label = network_label(job.cells)
    if row["pred_fit"] == "oom":
        raise InfeasibleError(f"{label} needs {row['pred_peak_mem_gib']:.1f} GiB of a GPU, more than it has")
    step = float(row["pred_step_time_s"])
    return NetworkPace(
        layout=label,
        step_time=step,
        samples_per_s=float(row["pred_samples_per_s"]),
        parameters=float(job.network.parameters),
        replicas=float(job.cells.get("dp") or job.cluster.n_gpus),
        notes=notes,
    )
