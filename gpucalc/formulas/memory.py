"""Memory of one GPU: states, activations, logits, buffers, and what the driver's counters show.

Symbols: T tokens of a micro-batch on a rank, h hidden, f feed-forward width on a rank, σ ranks that split
the residual stream, q micro-batches in flight. Bytes count tensors kept for the backward pass.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag, Ranks, Ratio


@formula(symbol="M_w", cite="rajbhandari2020", valid="sharded at ZeRO stage 3")
def weight_memory(
    parameters: Count, weight_bytes: Bytes, zero_stage: Count, shards: Count, offload_parameters: Flag = 0.0
) -> Bytes:
    """Weights held by one rank; none when they are kept on the host.

    >>> float(weight_memory(1e9, 2.0, 3, 8)), float(weight_memory(1e9, 2.0, 1, 8))
    (250000000.0, 2000000000.0)
    """
    return (1 - offload_parameters) * parameters * weight_bytes / np.where(zero_stage >= 3, shards, 1.0)


@formula(symbol="M_g", cite="rajbhandari2020", valid="sharded from ZeRO stage 2")
def gradient_memory(
    parameters: Count,
    gradient_bytes: Bytes,
    gradient_stage: Count,
    shards: Count,
    offload_optimizer: Flag = 0.0,
    offload_moves_gradients: Flag = 0.0,
) -> Bytes:
    """Gradients held by one rank between micro-batches; none where they follow the optimizer to the host.

    >>> float(gradient_memory(1e9, 4.0, 2, 8)), float(gradient_memory(1e9, 4.0, 2, 8, 1, 1))
    (500000000.0, 0.0)
    """
    held = 1 - offload_optimizer * offload_moves_gradients
    return held * parameters * gradient_bytes / np.where(gradient_stage >= 2, shards, 1.0)


@formula(symbol="M_o", cite="rajbhandari2020", valid="sharded from ZeRO stage 1")
def optimizer_memory(
    parameters: Count, optimizer_bytes: Bytes, zero_stage: Count, shards: Count, offload_optimizer: Flag
) -> Bytes:
    """Master weights and moments held by one rank; none when they are kept on the host.

    >>> float(optimizer_memory(1e9, 12.0, 1, 8, 0))
    1500000000.0
    """
    return (1 - offload_optimizer) * parameters * optimizer_bytes / np.where(zero_stage >= 1, shards, 1.0)


@formula(symbol="A_in", cite="chen2016", valid="")
def checkpoint_activations(tokens: Count, hidden: Count, sequence_ranks: Count, stored_bytes: Bytes = 2.0) -> Bytes:
    """Bytes of a layer's input, all that full recomputation keeps of it.

    >>> float(checkpoint_activations(10, 100, 2))
    1000.0
    """
    return stored_bytes * tokens * hidden / sequence_ranks


@formula(symbol="A_kept", cite="korthikanti2022", valid="0 <= full_share <= 1")
def kept_activations(
    full_layer: Bytes,
    scores: Bytes,
    checkpoint: Bytes,
    full_share: Ratio,
    selective: Flag,
    selective_kept: Ratio,
) -> Bytes:
    """Mean bytes a layer keeps when `full_share` of the layers are recomputed whole and, with `selective`, cheap parts.

    >>> float(kept_activations(10.0, 5.0, 1.0, 0.0, 0, 1.0)), float(kept_activations(10.0, 5.0, 1.0, 1.0, 0, 1.0))
    (15.0, 1.0)
    """
    kept = np.where(selective > 0, selective_kept * full_layer, full_layer + scores)
    return full_share * checkpoint + (1 - full_share) * kept


@formula(symbol="M_work", cite="korthikanti2022", valid="")
def working_memory(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    feed_forward: Count,
    gated: Flag,
    recomputed_layer: Bytes,
    recomputing: Flag,
    residual_bytes: Bytes = 4.0,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of the gradients in passage through one layer, and of the one layer that is being recomputed.

    >>> float(working_memory(1, 100, 1, 400, 1, 5000.0, 1))
    7000.0
    """
    gradients = tokens * (residual_bytes * hidden / sequence_ranks + stored_bytes * (1 + gated) * feed_forward)
    return gradients + recomputing * recomputed_layer


@formula(symbol="L_gather", cite="zhao2023", valid="ZeRO stage 3")
def gathered_layers(gathers_model: Flag, longest: Count) -> Count:
    """Layers whose parameters are gathered at once: one, or all of a stage that is one unit of sharding.

    >>> float(gathered_layers(0, 32)), float(gathered_layers(1, 32))
    (1.0, 32.0)
    """
    return np.where(np.greater(gathers_model, 0), longest, 1.0)


@formula(symbol="M_act", cite="narayanan2021", valid="")
def stage_activations(
    in_flight: Count,
    stage_depth: Count,
    kept_per_layer: Bytes,
    boundary: Bytes,
    offload_activations: Flag,
    offload_kept: Ratio = 0.1,
) -> Bytes:
    """Bytes of all activations a stage holds: in-flight micro-batches times its layers and its boundary.

    With offloading a tenth stays: the layers in passage between host and device.

    >>> float(stage_activations(4, 10, 100.0, 50.0, 0))
    4200.0
    """
    return in_flight * (stage_depth * kept_per_layer + boundary) * (1 - (1 - offload_kept) * offload_activations)


@formula(
    symbol="-min(M_g, M_act+M_pass-M_work)", cite="lv2023", valid="one micro-batch a step, gradients freed after it"
)
def shared_by_gradients(gradients: Bytes, activations: Bytes, transient: Bytes, working: Bytes, freed: Flag) -> Bytes:
    """Bytes, as a negative part, that gradients and activations do not hold at once when gradients are freed each step.

    The peak is at the loss (all activations, no gradient) or at the end of the backward pass (all gradients).

    >>> [float(shared_by_gradients(6.0, 20.0, 4.0, 1.0, freed)) + 0.0 for freed in (1, 0)]
    [-6.0, 0.0]
    """
    return -freed * np.minimum(gradients, np.maximum(activations + transient - working, 0.0))


@formula(symbol="[m=1]", cite="lv2023", valid="optimizer states elsewhere or small")
def gradients_freed_at_once(gradients_freed: Flag, micro_batches: Count, pp: Ranks) -> Flag:
    """Whether gradients are freed after each micro-batch: with no accumulation, and no stage that waits for another.

    >>> float(gradients_freed_at_once(1, 1, 1)), float(gradients_freed_at_once(1, 4, 1))
    (1.0, 0.0)
    """
    return 1.0 * gradients_freed * np.equal(micro_batches, 1) * np.equal(pp, 1)


@formula(symbol="M_alloc", cite="gpucalc-calibration", valid="allocated_factor >= 1")
def allocated_memory(raw: Bytes, allocated_factor: Ratio, allocated_fixed: Bytes) -> Bytes:
    """Bytes that the allocator hands out for `raw` bytes of tensors: rounded blocks, and workspaces of libraries.

    >>> round(float(allocated_memory(100.0, 1.02, 10.0)), 9)
    112.0
    """
    return raw * allocated_factor + allocated_fixed


@formula(symbol="M_res", cite="gpucalc-calibration", valid="fragmentation >= 1")
def reserved_memory(allocated: Bytes, fragmentation: Ratio) -> Bytes:
    """Bytes that the caching allocator has taken from the driver: what it hands out, and the gaps between.

    >>> round(float(reserved_memory(100.0, 1.05)), 9)
    105.0
    """
    return allocated * fragmentation


@formula(symbol="M_ctr-M_raw", cite="gpucalc-calibration", valid="")
def memory_beyond_tensors(counted: Bytes, raw: Bytes) -> Bytes:
    """What a counter shows beyond the tensors: rounded blocks, workspaces, gaps, context and communicators.

    >>> float(memory_beyond_tensors(112.0, 100.0))
    12.0
    """
    return counted - raw


@formula(symbol="M_raw,max", cite="gpucalc-calibration", valid="fragmentation >= 1")
def tensor_capacity(
    usable_bytes: Bytes, outside: Bytes, fragmentation: Ratio, allocated_factor: Ratio, allocated_fixed: Bytes
) -> Bytes:
    """Bytes of tensors that fit: usable memory less context and communicators, through fragmentation and rounding.

    >>> round(float(tensor_capacity(114.0, 2.0, 1.12, 1.0, 0.0)), 9)
    100.0
    """
    return ((usable_bytes - outside) / fragmentation - allocated_fixed) / allocated_factor


@formula(symbol="M_raw/M_max", cite="gpucalc-calibration", valid="")
def memory_fill(raw: Bytes, capacity: Bytes) -> Ratio:
    """Share of the capacity that is used; above 1 the job runs out of memory.

    >>> float(memory_fill(50.0, 100.0))
    0.5
    """
    return raw / capacity


@formula(symbol="φ", cite="korthikanti2022", valid="recompute: -1 automatic, 0 none, 1 selective, 2 full")
def recompute_share(recompute: Count, recompute_layers: Count, stage_depth: Count, automatic: Ratio) -> Ratio:
    """Share of a stage's layers that is recomputed whole; `recompute_layers` 0 means all of them.

    >>> [float(recompute_share(*case)) for case in ((2, 3, 12, 0.0), (2, 0, 12, 0.0), (-1, 0, 12, 0.5))]
    [0.25, 1.0, 0.5]
    """
    stated = np.where(recompute_layers > 0, np.minimum(recompute_layers / stage_depth, 1.0), 1.0)
    return (recompute == 2) * stated + (recompute < 0) * automatic


@formula(symbol="[selective]", cite="korthikanti2022", valid="recompute: -1 automatic, 0 none, 1 selective, 2 full")
def recomputes_selectively(recompute: Count) -> Flag:
    """Whether each layer recomputes its cheap parts: attention scores, norms and activations.

    >>> float(recomputes_selectively(1)), float(recomputes_selectively(2))
    (1.0, 0.0)
    """
    return 1.0 * np.equal(recompute, 1)


@formula(symbol="moment", cite="korthikanti2022", valid="0 backward pass, 1 loss, 2 update")
def fullest_moment(working: Bytes, loss: Bytes, passes: Bytes, step: Bytes) -> Count:
    """Which moment of a stage holds most: the backward pass, the loss, or the update of the parameters.

    >>> [float(fullest_moment(*case)) for case in ((2.0, 1.0, 9.0, 5.0), (1.0, 2.0, 9.0, 5.0), (1.0, 2.0, 4.0, 5.0))]
    [0.0, 1.0, 2.0]
    """
    updating = np.greater(step, passes)
    return np.where(updating, 2.0, 1.0 * np.greater(loss, working))


@formula(symbol="M·[moment]", cite="korthikanti2022", valid="")
def held_in(held: Bytes, moment: Count, first: Count, last: Count) -> Bytes:
    """Bytes that are held in the moments from `first` to `last` only.

    >>> [float(held_in(5.0, moment, 0, 1)) for moment in (0, 1, 2)]
    [5.0, 5.0, 0.0]
    """
    return held * (np.greater_equal(moment, first) & np.less_equal(moment, last))


@formula(symbol="M_free", cite="korthikanti2022", valid="")
def free_for_training(capacity: Bytes, resting_bytes: Bytes, resting_share: Ratio = 0.0) -> Bytes:
    """Bytes left for a training step beside models that rest there: a reference, a reward model, a trained critic.

    A critic takes its share of what the policy takes.

    >>> float(free_for_training(80.0, 16.0))
    64.0
    >>> float(free_for_training(80.0, 16.0, 1.0))
    32.0
    """
    return (capacity - resting_bytes) / (1 + resting_share)


@formula(symbol="S_base", cite="dettmers2023", valid="base_sharded 0 or 1")
def weight_shards(shards: Ranks, base_sharded: Flag) -> Ranks:
    """Ranks that share the weights: integer-quantised ones stay whole on each.

    >>> float(weight_shards(8, 1)), float(weight_shards(8, 0))
    (8.0, 1.0)
    """
    return np.where(np.greater(base_sharded, 0), shards, 1.0)


@formula(symbol="[φ>0]", cite="korthikanti2022", valid="0 <= full_share <= 1")
def recomputes_layers(full_share: Ratio) -> Flag:
    """Whether some layer is recomputed whole, and so is held whole while it is.

    >>> float(recomputes_layers(0.25)), float(recomputes_layers(0.0))
    (1.0, 0.0)
    """
    return 1.0 * np.greater(full_share, 0)


@formula(symbol="φ", cite="korthikanti2022", valid="")
def needed_recompute_share(unrecomputed: Bytes, recomputed: Bytes, capacity: Bytes) -> Ratio:
    """Least share of layers that must be recomputed for the rest to fit.

    >>> float(needed_recompute_share(100.0, 20.0, 60.0)), float(needed_recompute_share(50.0, 20.0, 60.0))
    (0.5, 0.0)
    """
    saved = np.maximum(unrecomputed - recomputed, 1e-9 * unrecomputed)
    return np.clip((unrecomputed - capacity) / saved, 0.0, 1.0)


@formula(symbol="⌈φ·L⌉/L", cite="korthikanti2022", valid="")
def whole_layer_share(share: Ratio, stage_depth: Count) -> Ratio:
    """A share of a stage's layers rounded up to whole layers.

    >>> float(whole_layer_share(0.3, 8))
    0.375
    """
    return np.ceil(share * stage_depth - 1e-9) / stage_depth
