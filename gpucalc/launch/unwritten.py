"""What was costed and the settings of a target cannot say: found by reading them back, not by a list of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpucalc.core.errors import GpucalcError
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import command_of, read_launch
from gpucalc.launch.job import Launch
from gpucalc.launch.target import Target, sources

# Cells about software, which a framework may decide by itself; those of the layout each target refuses.
SOFTWARE = (
    "fused_norm",
    "fused_gate",
    "fused_rope",
    "loss_kernel",
    "chunked_loss",
    "vocab_parallel_loss",
    "gradient_dtype",
    "grad_accum_dtype",
    "fp8_params",
    "attention_precision",
    "cuda_graphs",
    "tp_overlap",
    "dp_overlap",
    "expert_imbalance",
    "expert_kernel",
    "dispatcher",
    "flash_attention",
    "dropout",
    "offload_parameters",
)
_BESIDE = ("model", "seq_len", "n_gpus", "global_batch", "micro_batch", "recompute", "optimizer")
LEAST = 1e-3  # of the step or of the memory: what differs less is not worth a line


def unwritten(launch: Launch, target: Target, stated: Mapping[str, Any], context: Context) -> list[str]:
    """A sentence for each stated cell that the settings do not hold and that decides time or memory.

    stated: the cells as they were asked. Empty where the target has no reader.
    """
    asked = [name for name in SOFTWARE if stated.get(name) is not None]
    kind = target.name.partition("-")[0] if target.name not in sources() else target.name
    if not asked or kind not in sources():
        return []
    try:
        made = command_of(launch, target)
        beside = {name: launch[name] for name in _BESIDE if launch[name] is not None}
        if any("as your code sets it" in note for note in made.notes):
            beside["flash_attention"] = launch["flash_attention"]
        found, _ = read_launch(kind, made.text, beside)
        held = {**beside, **found}
        job = resolve(launch.cells, context)
        ours = predict([job])[0]
        lines = []
        for name in asked:
            if held.get(name) == launch[name]:
                continue
            other = predict([resolve({**launch.cells, name: held.get(name)}, context)])[0]
            pairs = [(float(ours[n]), float(other[n])) for n in ("pred_step_time_s", "pred_peak_mem_gib")]
            if any(abs(theirs / own - 1) > LEAST for own, theirs in pairs):
                value = {True: "yes", False: "no"}.get(launch[name], launch[name])
                lines.append(
                    f"{name}={value} was costed, and the settings of {target.name} do not say it: as they stand "
                    f"{pairs[0][1]:.4g} s a step, {pairs[1][1]:.1f} GiB per GPU"
                )
        return lines
    except GpucalcError:
        return []  # what cannot be written or read was said where it was asked


def told(launch: Launch, target: Target, stated: Mapping[str, Any], context: Context) -> Launch:
    """The launch with a warning for each such cell."""
    return replace(launch, warnings=(*launch.warnings, *unwritten(launch, target, stated, context)))
