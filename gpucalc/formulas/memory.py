"""Memory of one GPU: states, activations, logits, buffers, and what the driver's counters show.

Symbols: T tokens of a micro-batch on a rank, h hidden, f feed-forward width on a rank, σ ranks that split
the residual stream, q micro-batches in flight. Bytes count tensors kept for the backward pass.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag, Ranks, Ratio


@formula(symbol="M_w", cite="rajbhandari2020", valid="sharded at ZeRO stage 3")
def weight_memory(parameters: Count, weight_bytes: Bytes, zero_stage: Count, shards: Count) -> Bytes:
    """Weights held by one rank.

    >>> float(weight_memory(1e9, 2.0, 3, 8)), float(weight_memory(1e9, 2.0, 1, 8))
    (250000000.0, 2000000000.0)
    """
    return parameters * weight_bytes / np.where(zero_stage >= 3, shards, 1.0)


@formula(symbol="M_g", cite="rajbhandari2020", valid="sharded from ZeRO stage 2")
def gradient_memory(parameters: Count, gradient_bytes: Bytes, zero_stage: Count, shards: Count) -> Bytes:
    """Gradients held by one rank between micro-batches.

    >>> float(gradient_memory(1e9, 4.0, 2, 8))
    500000000.0
    """
    return parameters * gradient_bytes / np.where(zero_stage >= 2, shards, 1.0)


@formula(symbol="M_o", cite="rajbhandari2020", valid="sharded from ZeRO stage 1")
def optimizer_memory(
    parameters: Count, optimizer_bytes: Bytes, zero_stage: Count, shards: Count, offload_optimizer: Flag
) -> Bytes:
    """Master weights and moments held by one rank; none when they are kept on the host.

    >>> float(optimizer_memory(1e9, 12.0, 1, 8, 0))
    1500000000.0
    """
    return (1 - offload_optimizer) * parameters * optimizer_bytes / np.where(zero_stage >= 1, shards, 1.0)


@formula(symbol="b_res", cite="korthikanti2022", valid="norms in 16 bit")
def kept_residual_bytes(norm_kept_bytes: Bytes, gated: Flag, residual_bytes: Bytes = 8.0) -> Bytes:
    """Bytes kept per token and hidden unit: inputs and outputs of both norms, and what unfused RMSNorms keep beside.

    >>> kept_residual_bytes(4.0, 1), kept_residual_bytes(4.0, 0)
    (12.0, 8.0)
    """
    return residual_bytes + norm_kept_bytes * gated


@formula(symbol="A", cite="korthikanti2022", valid="one layer, one micro-batch, nothing recomputed")
def layer_activations(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    qkv: Count,
    attention_columns: Count,
    feed_forward: Count,
    gated: Flag,
    low_precision: Flag,
    dropout: Flag,
    activation_factor: Ratio,
    residual_bytes: Bytes,
    low_residual_bytes: Bytes = 6.0,
    stored_bytes: Bytes = 2.0,
    low_element_bytes: Bytes = 1.0,
    dropout_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes a layer keeps for its backward pass.

    16-bit, per token: norm inputs and outputs and the inputs of both blocks over h, q, k, v, the attention
    output, and three (gated) or two tensors over f. With 8-bit products their inputs are kept in 8 bit.

    >>> float(layer_activations(1, 100, 1, 300, 100, 400, 0, 0, 0, 1.0, 8.0))
    3200.0
    """
    over_hidden = residual_bytes * (1 - low_precision) + low_residual_bytes * low_precision + dropout_bytes * dropout
    over_columns = stored_bytes * qkv + (stored_bytes + low_precision * low_element_bytes) * attention_columns
    tensors = 2.0 + gated
    over_width = tensors * stored_bytes - low_precision * low_element_bytes
    per_token = over_hidden * hidden / sequence_ranks + over_columns + over_width * feed_forward
    return activation_factor * tokens * per_token


@formula(symbol="5·a·s·T/t", cite="korthikanti2022", valid="attention without flash")
def score_activations(
    tokens: Count, attended: Count, heads: Count, tp: Count, flash: Flag, score_bytes: Bytes = 5.0
) -> Bytes:
    """Bytes of scores, their softmax and dropout mask that unfused attention keeps: 5·a·s per token.

    >>> float(score_activations(10, 100, 8, 2, 0)), float(score_activations(10, 100, 8, 2, 1))
    (20000.0, 0.0)
    """
    return (1 - flash) * score_bytes * heads / tp * attended * tokens


@formula(symbol="4·k·T·h/σ", cite="liu2024moe", valid="")
def routed_activations(
    tokens: Count,
    hidden: Count,
    experts_per_token: Count,
    moe_layers: Count,
    layers: Count,
    tp: Count,
    copy_bytes: Bytes = 4.0,
) -> Bytes:
    """Bytes of the routed copies of the tokens, before and after the experts, mean over the layers.

    >>> float(routed_activations(10, 100, 2, 1, 2, 1))
    4000.0
    """
    return copy_bytes * experts_per_token * tokens * hidden / tp * moe_layers / layers


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


@formula(symbol="M_logits", cite="korthikanti2022", valid="on the stage with the head")
def logits_memory(tokens: Count, vocab: Count, tp: Count, logit_bytes: Bytes) -> Bytes:
    """Bytes of the logits, their loss and gradient.

    >>> float(logits_memory(81920, 128256, 1, 2.0)) / 2**30
    19.5703125
    """
    return tokens * vocab / tp * logit_bytes


@formula(symbol="b_gather", cite="zhao2023", valid="ZeRO stage 3")
def gathered_bytes(weight_comm_bytes: Bytes, trains_base: Flag, gradient_bytes_unreduced: Bytes = 2.0) -> Bytes:
    """Bytes of a gathered parameter and, where the base trains, of its gradient before it is reduced.

    >>> gathered_bytes(2.0, 1), gathered_bytes(2.0, 0)
    (4.0, 2.0)
    """
    return weight_comm_bytes + gradient_bytes_unreduced * trains_base


@formula(symbol="L_gather", cite="zhao2023", valid="ZeRO stage 3")
def gathered_layers(gathers_model: Flag, longest: Count) -> Count:
    """Layers whose parameters are gathered at once: one, or all of a stage that is one unit of sharding.

    >>> float(gathered_layers(0, 32)), float(gathered_layers(1, 32))
    (1.0, 32.0)
    """
    return np.where(np.greater(gathers_model, 0), longest, 1.0)


@formula(symbol="M_gather", cite="zhao2023", valid="ZeRO stage 3; one rank gathers nothing")
def gathered_memory(
    layer_parameters: Count, embedding_parameters: Count, zero_stage: Count, shards: Ranks, gather_bytes: Bytes
) -> Bytes:
    """Bytes of the parameters gathered for use and of their unreduced gradients, one layer and the embeddings.

    >>> [float(gathered_memory(1e6, 2e6, *case, 4.0)) for case in ((3, 8), (3, 1), (1, 8))]
    [12000000.0, 0.0, 0.0]
    """
    return ((zero_stage >= 3) & (shards > 1)) * gather_bytes * (layer_parameters + embedding_parameters)


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


@formula(symbol="max(0, M_logits - M_work)", cite="korthikanti2022", valid="on the stage with the head")
def logits_excess(transient: Bytes, working: Bytes) -> Bytes:
    """Bytes by which the logits exceed a layer's working set, whose place they take.

    >>> float(logits_excess(5.0, 3.0))
    2.0
    """
    return transient - working


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


@formula(symbol="M_reserve", cite="gpucalc-calibration", valid="fragmentation >= 1")
def reserve_memory(raw: Bytes, fragmentation: Ratio, fixed: Bytes) -> Bytes:
    """What a counter shows beyond `raw` bytes of tensors: allocator rounding and fixed buffers of libraries.

    >>> round(float(reserve_memory(100.0, 1.03, 10.0)), 9)
    13.0
    """
    return raw * (fragmentation - 1) + fixed


@formula(symbol="M_raw,max", cite="gpucalc-calibration", valid="fragmentation >= 1")
def tensor_capacity(usable_bytes: Bytes, context_bytes: Bytes, reserved_factor: Ratio, reserved_fixed: Bytes) -> Bytes:
    """Bytes of tensors that fit: usable memory less contexts, communicators and what the allocator reserves.

    >>> round(float(tensor_capacity(114.0, 2.0, 1.1, 2.0)), 9)
    100.0
    """
    return (usable_bytes - context_bytes - reserved_fixed) / reserved_factor


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
