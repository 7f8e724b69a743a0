"""Remedies: what would make a layout need less memory, how much each saves, and what it costs in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs import training as jobs
from gpucalc.jobs.variations import Outcome, Variation, is_legal, outcomes


@dataclass(frozen=True)
class Remedy:
    """One way to need less memory, with the same recomputation otherwise."""

    name: str
    saved_bytes: float
    outcome: Outcome
    cost: float  # relative change of the time per token


def remedies(outcome: Outcome) -> list[Remedy]:
    """What would make a layout need less, each alone: those that make it fit first, then the cheapest first."""
    job = outcome.job
    kind, _, layers = str(outcome.row["pred_recompute"]).partition(":")
    frozen_cells = {"recompute": kind, "recompute_layers": int(layers) if layers else None}
    frozen = jobs.resolve({**job.cells, **frozen_cells}, job.context)
    varied: list[tuple[Variation, jobs.Job]] = [(Variation("size", "as it is"), frozen)]
    for variation in _remedy_variations(frozen):
        try:
            changed = jobs.resolve({**frozen.cells, **variation.cells}, job.context)
        except UsageError:
            continue
        if is_legal(changed):
            varied.append((variation, changed))
    base, *others = outcomes(varied)
    found = []
    for other in others:
        saved = base.memory - other.memory
        if saved > 0.001 * base.memory:
            found.append(Remedy(other.variation.name, saved, other, base.rate / other.rate - 1))
    return sorted(found, key=lambda r: (r.outcome.fit == "oom", round(r.cost, 9), -r.saved_bytes))


def _remedy_variations(job: jobs.Job) -> Iterator[Variation]:
    cells, c = job.cells, job.columns
    if cells["recompute"] != "full" or cells.get("recompute_layers"):
        yield Variation("remedy", "recompute every layer", {"recompute": "full", "recompute_layers": None})
    if cells["recompute"] == "none" and (not c["flash"] or c["selective_kept"] < 1):
        yield Variation("remedy", "recompute selectively", {"recompute": "selective"})
    for stage in range(cells["zero_stage"] + 1, 4):
        yield Variation("remedy", f"ZeRO {cells['zero_stage']} → {stage}", {"zero_stage": stage})
    if cells.get("shard_group"):
        yield Variation("remedy", "shard over all replicas", {"shard_group": None})
    if cells["tp"] > 1 and not cells["sequence_parallel"]:
        yield Variation("remedy", "sequence parallelism", {"sequence_parallel": True})
    for name in ("tp", "pp", "cp", "ep"):
        yield from _wider(cells, name, bool(job.model.experts))
    if cells["micro_batch"] > 1:
        yield Variation(
            "remedy",
            f"micro-batch {cells['micro_batch']} → {cells['micro_batch'] // 2}",
            {"micro_batch": cells["micro_batch"] // 2},
        )
    if cells["vpp"] > 1:
        yield Variation("remedy", f"vpp {cells['vpp']} → 1", {"vpp": 1, "schedule": None})
    if cells["schedule"] not in {"none", "1f1b", "interleaved"}:
        yield Variation("remedy", f"schedule {cells['schedule']} → 1f1b", {"schedule": "1f1b"})
    if not cells.get("offload_optimizer"):
        yield Variation("remedy", "optimizer state to the host", {"offload_optimizer": True})
    if not cells.get("offload_activations"):
        yield Variation("remedy", "activations to the host", {"offload_activations": True})
    if cells["optimizer"] == "adam":
        yield Variation("remedy", "8-bit optimizer state", {"optimizer": "adam8bit"})
    if c["gradient_bytes"] > 2:
        yield Variation("remedy", "16-bit gradients", {"grad_accum_dtype": "bf16"})
    if not cells.get("chunked_loss"):
        yield Variation("remedy", "loss in chunks", {"chunked_loss": True})


def _wider(cells: Mapping[str, Any], name: str, mixture: bool) -> Iterator[Variation]:
    """Twice one degree: on the same GPUs, data parallelism giving way, or else on twice as many."""
    if name == "ep" and not mixture:
        return
    now, to = cells[name], 2 * cells[name]
    changed: dict[str, Any] = {name: to}
    if name == "tp":
        changed["etp"] = to if cells["etp"] == now else 1
    if name == "tp" and now == 1:
        changed["sequence_parallel"] = None
    if name == "pp":
        changed |= {"vpp": 1, "schedule": None}
    title = f"{name} {now} → {to}"
    if name == "ep":
        yield Variation("remedy", title, {**changed, "etp": 1})
    elif cells["dp"] % 2 == 0:
        yield Variation("remedy", title, {**changed, "dp": cells["dp"] // 2})
    else:
        yield Variation("remedy", f"{title}, on twice the GPUs", {**changed, "n_gpus": 2 * cells["n_gpus"]})
