"""Shapes and memory traffic of one transformer layer on one rank.

Symbols: b micro-batch, s sequence, c context-parallel ranks, t tensor-parallel ranks, T = b·s/c tokens
of a micro-batch on a rank, h hidden, a heads, g key/value heads, d head size, f feed-forward width,
σ = t with sequence parallelism, else 1.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Elements, Flag, Ranks, Ratio, Seconds, Tokens


@formula(symbol="T", cite="narayanan2021", valid="cp >= 1")
def micro_tokens(micro_batch: Count, seq_len: Count, cp: Count) -> Count:
    """Tokens of a micro-batch on one rank.

    >>> float(micro_tokens(2, 8192, 4))
    4096.0
    """
    return micro_batch * seq_len / cp


@formula(symbol="σ", cite="korthikanti2022", valid="tp >= 1")
def sequence_ranks(sequence_parallel: Flag, tp: Count) -> Count:
    """Ranks over which the residual stream is split: t with sequence parallelism, else 1.

    >>> float(sequence_ranks(1, 8)), float(sequence_ranks(0, 8))
    (8.0, 1.0)
    """
    return 1.0 + sequence_parallel * (tp - 1)


@formula(symbol="n_qkv", cite="shoeybi2019", valid="key/value heads fewer than t are replicated")
def qkv_width(heads: Count, kv_heads: Count, head_dim: Count, v_head_dim: Count, tp: Count) -> Count:
    """Columns of the query, key and value projection on one rank.

    >>> float(qkv_width(64, 8, 128, 128, 8))
    1280.0
    """
    return (heads * head_dim + np.maximum(kv_heads, tp) * (head_dim + v_head_dim)) / tp


@formula(symbol="a·d/t", cite="shoeybi2019", valid="")
def attention_width(heads: Count, v_head_dim: Count, tp: Count) -> Count:
    """Columns of the attention output on one rank.

    >>> float(attention_width(64, 128, 8))
    1024.0
    """
    return heads * v_head_dim / tp


@formula(symbol="β", cite="gpucalc-counting", valid="1 where each layer is a mixer and a feed-forward block")
def blocks_per_layer(
    attention_layers: Count, linear_layers: Count, dense_layers: Count, moe_layers: Count, layers: Count
) -> Ratio:
    """Blocks of an average layer over the two of a transformer layer; hybrids have layers of one block.

    >>> float(blocks_per_layer(32, 0, 32, 0, 32)), float(blocks_per_layer(6, 23, 0, 23, 52))
    (1.0, 0.5)
    """
    return (attention_layers + linear_layers + dense_layers + moe_layers) / (2 * layers)


@formula(symbol="n_mix", cite="gpucalc-counting", valid="mean over layers with attention and with linear mixers")
def mixer_columns(
    columns: Count,
    attention_layers: Count,
    linear_mixer_parameters: Count,
    linear_layers: Count,
    hidden: Count,
    layers: Count,
    tp: Count,
    share: Ratio,
) -> Count:
    """Columns of the mixers' projections on one rank; a linear mixer has its parameters over h, `share` of them here.

    >>> float(mixer_columns(1000, 1, 4e6, 1, 1000, 2, 1, 0.5))
    1500.0
    """
    linear = share * linear_mixer_parameters / hidden / tp
    return (columns * attention_layers + linear * linear_layers) / layers


@formula(symbol="f_layer/t", cite="shazeer2020", valid="mean over dense and expert layers")
def feed_forward_width(
    ffn_hidden: Count,
    dense_layers: Count,
    experts_per_token: Count,
    expert_ffn_hidden: Count,
    shared_expert_ffn_hidden: Count,
    moe_layers: Count,
    layers: Count,
    tp: Count,
) -> Count:
    """Feed-forward columns that one token passes on one rank, mean over the layers.

    >>> float(feed_forward_width(14336, 32, 0, 0, 0, 0, 32, 4))
    3584.0
    """
    routed = experts_per_token * expert_ffn_hidden + shared_expert_ffn_hidden
    return (ffn_hidden * dense_layers + routed * moe_layers) / layers / tp


@formula(symbol="Q_ew", cite="korthikanti2022", valid="16-bit activations")
def elementwise_traffic(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    feed_forward: Count,
    gated: Flag,
    qkv: Count,
    residual_bytes: Bytes = 22.0,
    activation_bytes: Bytes = 4.0,
    gate_bytes: Bytes = 2.0,
    qkv_bytes: Bytes = 4.0,
) -> Bytes:
    """HBM bytes of the forward element-wise operations of a layer, each passing its operands once.

    Per token: two norms, two residual additions and dropout over h (eleven passes of 2 B), the activation
    over f (read, write; a gate reads twice), rotary or bias over q, k, v (read, write).

    >>> float(elementwise_traffic(1, 1000, 1, 4000, 0, 3000))
    50000.0
    """
    per_token = residual_bytes * hidden / sequence_ranks + (activation_bytes + gate_bytes * gated) * feed_forward
    return tokens * (per_token + qkv_bytes * qkv)


@formula(symbol="Q_unfused", cite="korthikanti2022", valid="blocks with RMSNorm, rotary embedding and a gated MLP")
def unfused_traffic(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    feed_forward: Count,
    gated: Flag,
    qkv: Count,
    fused_norm: Flag,
    fused_gate: Flag,
    fused_rope: Flag,
    norm_bytes: Bytes = 60.0,
    rotary_bytes: Bytes = 20.0,
    gate_bytes: Bytes = 4.0,
) -> Bytes:
    """Further HBM bytes of a Llama-type block whose operations run as kernels of their own.

    Two RMSNorms in fp32 (cast, square, mean, scale, cast, weight: 30 B each per element), rotary embedding of q
    and k (negate, concatenate, two products, sum), the gate's product apart from its activation.
    LayerNorm and GELU of GPT-type blocks are single kernels everywhere.

    >>> [float(unfused_traffic(1, 100, 1, 400, gated, 300, 0, 0, 0)) for gated in (1, 0)]
    [13600.0, 0.0]
    """
    norms = (1 - fused_norm) * norm_bytes * hidden / sequence_ranks
    gate = (1 - fused_gate) * gate_bytes * feed_forward
    return gated * tokens * (norms + (1 - fused_rope) * rotary_bytes * qkv + gate)


@formula(symbol="Q_cast", cite="micikevicius2022", valid="8- and 4-bit matrix products")
def cast_traffic(
    tokens: Count,
    hidden: Count,
    attention_columns: Count,
    feed_forward: Count,
    low_precision: Flag,
    hidden_bytes: Bytes = 8.0,
    column_bytes: Bytes = 4.0,
) -> Bytes:
    """HBM bytes of quantising the inputs of a layer's products: both orientations of each operand.

    >>> float(cast_traffic(1, 1000, 1000, 4000, 1)), float(cast_traffic(1, 1000, 1000, 4000, 0))
    (28000.0, 0.0)
    """
    return low_precision * tokens * (hidden_bytes * hidden + column_bytes * (attention_columns + feed_forward))


@formula(symbol="q", cite="gpucalc-calibration", valid="kernels of one layer's forward pass")
def launched_operations(
    flash: Flag,
    tp: Count,
    gated: Flag,
    fused_norm: Flag,
    fused_gate: Flag,
    fused_rope: Flag,
    adapters: Flag,
    moe_layers: Count,
    layers: Count,
    graph_layers: Flag,
    graph_steps: Flag = 0.0,
    dequantises: Flag = 0.0,
    base_operations: Count = 12.0,
    flash_operations: Count = 4.0,
    parallel_operations: Count = 8.0,
    norm_operations: Count = 10.0,
    rope_operations: Count = 8.0,
    adapter_ratio: Ratio = 1.6,
    dequantise_ratio: Ratio = 0.7,
    expert_ratio: Ratio = 10.0,
    graph_operations: Count = 2.0,
) -> Count:
    """Host operations that launch one layer's forward pass, mean over dense and expert layers.

    Norms and rotary embeddings that are not one kernel are cast, square, mean, product and so on, each launched by
    itself. Of a layer in a CUDA graph only its replay is launched, and nothing where the graph holds the whole step.

    >>> [float(launched_operations(1, 1, 1, fused, fused, fused, 0, 0, 32, 0)) for fused in (1, 0)]
    [16.0, 35.0]
    >>> float(launched_operations(1, 1, 1, 1, 1, 1, 0, 0, 32, 1))
    2.0
    """
    unfused = gated * (norm_operations * (1 - fused_norm) + rope_operations * (1 - fused_rope) + (1 - fused_gate))
    dense = base_operations + flash_operations * flash + parallel_operations * (tp > 1) + unfused
    adapted = dense * (1 + (adapter_ratio - 1) * adapters + dequantise_ratio * dequantises)
    captured = adapted * (1 - graph_layers) + graph_operations * graph_layers
    mean = captured * (1 - moe_layers / layers) + adapted * expert_ratio * moe_layers / layers
    return mean * (1 - graph_steps)


@formula(symbol="t_host", cite="gpucalc-calibration", valid="")
def host_time(operations: Count, seconds_per_operation: Seconds) -> Seconds:
    """Time the host needs to launch the kernels of a layer; a floor under the device's time.

    >>> float(host_time(16, 10e-6))
    0.00016
    """
    return operations * seconds_per_operation


@formula(symbol="t·w/W", cite="qi2024", valid="whole > 0")
def share_of_time(time: Seconds, part: Seconds, whole: Seconds) -> Seconds:
    """Time of a part of a pass that as a whole takes longer than its kernels: waits fall on all parts alike.

    >>> float(share_of_time(4.0, 1.0, 2.0)), float(share_of_time(2.0, 1.0, 2.0))
    (2.0, 1.0)
    """
    return time * part / whole


@formula(symbol="k·T/E_loc", cite="liu2024moe", valid="balanced routing times the load factor")
def tokens_per_expert(
    tokens: Count, experts_per_token: Count, experts: Count, tp: Count, ep: Count, etp: Count
) -> Count:
    """Tokens that one expert receives per micro-batch under balanced routing.

    An expert group of ep·etp ranks holds the tokens of ep·etp/t micro-batches.

    >>> float(tokens_per_expert(4096, 8, 64, 1, 8, 1))
    4096.0
    """
    return tokens * etp / tp * experts_per_token * ep / np.maximum(experts, 1)


@formula(symbol="m_grp", cite="gpucalc-counting", valid="one kernel whose tiles share the waves")
def grouped_rows(expert_tokens: Count, local_experts: Count, tile_rows: Count = 128.0, padding: Ratio = 0.5) -> Count:
    """Rows of the products of all local experts as one: each expert's last tile is half empty on average.

    >>> float(grouped_rows(512.0, 64))
    36864.0
    """
    return local_experts * (expert_tokens + padding * tile_rows)


@formula(symbol="Q_perm", cite="liu2024moe", valid="")
def permutation_traffic(
    tokens: Count, experts_per_token: Count, hidden: Count, tp: Count, bytes_per_element: Bytes = 8.0
) -> Bytes:
    """HBM bytes of sorting tokens by expert and back: each copy read and written, twice.

    >>> float(permutation_traffic(10, 2, 100, 1))
    16000.0
    """
    return bytes_per_element * experts_per_token * tokens * hidden / tp


@formula(symbol="Q_bias", cite="gpucalc-counting", valid="experts with biases; grouped products do not fuse them")
def expert_bias_traffic(
    tokens: Count,
    experts_per_token: Count,
    expert_ffn_hidden: Count,
    hidden: Count,
    gated: Flag,
    expert_bias: Flag,
    tp: Count,
    bytes_per_element: Bytes = 4.0,
) -> Bytes:
    """HBM bytes of adding a bias to both outputs of the experts, each read and written once.

    >>> float(expert_bias_traffic(10, 2, 100, 50, 1, 1, 1)), float(expert_bias_traffic(10, 2, 100, 50, 1, 0, 1))
    (20000.0, 0.0)
    """
    columns = (1 + gated) * expert_ffn_hidden + hidden
    return expert_bias * bytes_per_element * experts_per_token * tokens * columns / tp


@formula(symbol="t_layer", cite="gpucalc-counting", valid="shares add up to 1")
def mean_over_layers(time: Seconds, kind_layers: Count, layers: Count) -> Seconds:
    """Contribution of a kind of layer to the average layer.

    >>> float(mean_over_layers(2.0, 8, 32))
    0.5
    """
    return time * kind_layers / layers


@formula(symbol="κ·t", cite="gpucalc-calibration", valid="")
def scaled_time(time: Seconds, factor: Ratio) -> Seconds:
    """A time multiplied by a documented factor.

    >>> float(scaled_time(2.0, 1.5))
    3.0
    """
    return time * factor


@formula(symbol="S·n", cite="thakur2005", valid="payload of the collectives, before their algorithm's factor")
def repeated_message(message: Bytes, times: Count) -> Bytes:
    """Bytes handed to a collective that runs `times` times in a step.

    >>> float(repeated_message(1e6, 96))
    96000000.0
    """
    return message * times


@formula(symbol="q_moe/q", cite="gpucalc-calibration", valid="graph_layers 0 or 1")
def expert_operations_ratio(expert_host_ratio: Ratio, expert_host_ratio_launched: Ratio, graph_layers: Flag) -> Ratio:
    """Host operations of a layer with experts over those of a dense one, in CUDA graphs or launched one by one.

    >>> float(expert_operations_ratio(6.0, 16.0, 1)), float(expert_operations_ratio(6.0, 16.0, 0))
    (6.0, 16.0)
    """
    return graph_layers * expert_host_ratio + (1 - graph_layers) * expert_host_ratio_launched


@formula(symbol="q_loop", cite="hf-moe", valid="experts_apart and graph_layers 0 or 1")
def loop_operations(
    local_experts: Count,
    experts_apart: Flag,
    graph_layers: Flag,
    moe_layers: Count,
    layers: Count,
    operations_per_expert: Count = 12.0,
) -> Count:
    """Host operations of a loop over the experts of a rank in one layer's forward pass, mean over its layers.

    Each expert finds its tokens, gathers them, runs three products and what stands between, weighs and adds.

    >>> float(loop_operations(128, 1, 0, 48, 48)), float(loop_operations(128, 0, 0, 48, 48))
    (1536.0, 0.0)
    """
    return experts_apart * (1 - graph_layers) * local_experts * operations_per_expert * moe_layers / layers


@formula(symbol="T_max", cite="liu2024moe", valid="expert_imbalance >= 1")
def loaded_tokens(expert_tokens: Tokens, expert_imbalance: Ratio) -> Tokens:
    """Tokens of an expert of the most loaded rank, at least 1.

    >>> float(loaded_tokens(512.0, 1.5))
    768.0
    """
    return np.maximum(expert_tokens * expert_imbalance, 1.0)


@formula(symbol="n·E", cite="liu2024moe", valid="")
def stacked_columns(columns: Elements, local_experts: Count) -> Elements:
    """Columns of the weight gradients of all local experts, whose tiles share the waves of one kernel.

    >>> float(stacked_columns(2048, 16))
    32768.0
    """
    return columns * local_experts


@formula(symbol="[apart]", cite="gpucalc-counting", valid="flags")
def experts_launched_apart(experts_apart: Flag, experts_padded: Flag) -> Flag:
    """Whether the products of the experts do not share the waves of one kernel.

    >>> float(experts_launched_apart(0, 1)), float(experts_launched_apart(0, 0))
    (1.0, 0.0)
    """
    return 1.0 * np.maximum(experts_apart, experts_padded)


@formula(symbol="Q_loss", cite="gpucalc-counting", valid="")
def loss_traffic(tokens: Tokens, vocab: Elements, loss_ranks: Ranks, logit_traffic: Bytes) -> Bytes:
    """HBM bytes of the loss and its gradient: each logit of a rank passes in `logit_traffic` bytes.

    `loss_ranks`: ranks over which the logits are sharded while the loss is computed.

    >>> loss_traffic(4096, 32000, 4, 12.0)
    393216000.0
    """
    return tokens * vocab / loss_ranks * logit_traffic


@formula(symbol="t_head", cite="gpucalc-counting", valid="encoders may have no head: vocab 0")
def head_time(work: Seconds, vocab: Elements) -> Seconds:
    """Time of the head and its loss, where the model has one.

    >>> float(head_time(0.01, 32000)), float(head_time(0.01, 0))
    (0.01, 0.0)
    """
    return work * (vocab > 0)


@formula(symbol="t_deq", cite="dettmers2023", valid="frozen weights of fewer bits than they compute in")
def dequantise_time(weights: Count, dequantise_seconds: Seconds, dequantises: Flag) -> Seconds:
    """Time to expand the quantised weights of a layer before they are used.

    >>> round(dequantise_time(2e8, 1e-12, 1), 9)
    0.0002
    """
    return dequantise_seconds * dequantises * weights


@formula(symbol="t_gap", cite="gpucalc-calibration", valid="host and device in step with each other")
def serial_gap(serial_gap_seconds: Seconds) -> Seconds:
    """Time a layer waits where the host cannot run ahead of the device.

    >>> serial_gap(1e-4)
    0.0001
    """
    return serial_gap_seconds


@formula(symbol="(c-1)·t_hop", cite="liu2023", valid="ranks >= 1")
def ring_exchange_time(ranks: Ranks, hop: Seconds) -> Seconds:
    """Time in which the blocks of keys and values pass all ranks of a ring.

    >>> float(ring_exchange_time(4, 1e-3))
    0.003
    """
    return hop * (ranks - 1)


@formula(symbol="t·[n>1]", cite="gpucalc-counting", valid="")
def time_of_many(time: Seconds, ranks: Ranks) -> Seconds:
    """Communication that a group of one does not need.

    >>> float(time_of_many(1e-3, 8)), float(time_of_many(1e-3, 1))
    (0.001, 0.0)
    """
    return time * np.greater(ranks, 1)


@formula(symbol="t - t_part", cite="gpucalc-counting", valid="part <= time")
def remaining_time(time: Seconds, part: Seconds) -> Seconds:
    """What is left of a time without one of its parts.

    >>> remaining_time(3.0, 1.0)
    2.0
    """
    return time - part


@formula(symbol="t_small", cite="gpucalc-counting", valid="gemm + attention <= device")
def small_kernels_time(device: Seconds, gemm: Seconds, attention: Seconds) -> Seconds:
    """Time of the kernels of a pass that are neither products nor attention.

    >>> small_kernels_time(10.0, 6.0, 3.0)
    1.0
    """
    return device - gemm - attention


@formula(symbol="t_re", cite="korthikanti2022", valid="0 <= full_recompute_skips_attention <= 1")
def recomputed_time(forward: Seconds, attention: Seconds, full_recompute_skips_attention: Flag) -> Seconds:
    """Time to recompute a whole layer; some frameworks keep what attention needs and skip it.

    >>> recomputed_time(10.0, 3.0, 0), recomputed_time(10.0, 3.0, 1)
    (10.0, 7.0)
    """
    return forward - attention * full_recompute_skips_attention


@formula(symbol="t_sel", cite="korthikanti2022", valid="0 <= selective_recompute_share <= 1")
def selectively_recomputed_time(
    forward: Seconds, attention: Seconds, flash: Flag, selective_recompute_share: Ratio
) -> Seconds:
    """Time to recompute the cheap parts of a layer: unfused attention, and a share of the rest.

    Flash attention never forms the scores, so there is nothing of it that is cheap to drop.

    >>> float(selectively_recomputed_time(10.0, 2.0, 0, 0.1)), float(selectively_recomputed_time(10.0, 2.0, 1, 0.1))
    (2.8, 1.0)
    """
    core = attention * (1 - flash)
    return core + selective_recompute_share * (forward - core)


@formula(symbol="t_TP", cite="transformer-engine", valid="chunks >= 1")
def chunked_exposed_time(
    communication: Seconds, product: Seconds, overlap: Flag, chunks: Count, residual: Ratio
) -> Seconds:
    """Tensor-parallel traffic that a product does not hide, when both run in chunks beside each other.

    Without overlap all of it. With it the first chunk is exposed, or what exceeds the product, and a residual of
    what runs beside it, since both share multiprocessors, memory and links.

    >>> [float(chunked_exposed_time(1.0, g, on, 8.0, 0.25)) for g, on in ((9.0, 0), (9.0, 1), (0.5, 1))]
    [1.0, 0.375, 0.625]
    """
    beside = np.maximum(communication / chunks, communication - product)
    overlapped = beside + residual * np.minimum(communication, product)
    return communication * (1 - overlap) + overlap * np.minimum(overlapped, communication)


@formula(symbol="[overlap]", cite="transformer-engine", valid="flags")
def overlaps_chunks(tp_overlap: Flag, sequence_parallel: Flag) -> Flag:
    """Whether tensor-parallel collectives run in chunks beside products: they do where the sequence is sharded.

    An all-reduce has no chunk that a product could start with; Megatron-LM refuses the switch without it.

    >>> [float(overlaps_chunks(*case)) for case in ((1, 1), (1, 0), (0, 1))]
    [1.0, 0.0, 0.0]
    """
    return 1.0 * tp_overlap * sequence_parallel


@formula(symbol="[async]", cite="megatron-core", valid="flags")
def asynchronous_reduction(tp_asynchronous: Flag, overlap: Flag) -> Flag:
    """Whether what leaves a block's backward pass is sent beside the product for the weight's gradient.

    >>> float(asynchronous_reduction(1, 0)), float(asynchronous_reduction(1, 1))
    (1.0, 0.0)
    """
    return 1.0 * tp_asynchronous * (1 - overlap)


@formula(symbol="[regather]", cite="megatron-core", valid="flags")
def gathers_again(regathers: Flag, sequence_parallel: Flag) -> Flag:
    """Whether the saved input of a block is gathered once more in the backward pass.

    >>> float(gathers_again(1, 1)), float(gathers_again(1, 0))
    (1.0, 0.0)
    """
    return 1.0 * regathers * sequence_parallel


@formula(symbol="-t_hidden", cite="megatron-core", valid="usable 0 or 1")
def hidden_time(communication: Seconds, window: Seconds, residual: Ratio, usable: Flag) -> Seconds:
    """Communication, as a negative part, that an independent product hides, less the slow-down of running beside it.

    >>> float(hidden_time(1.0, 4.0, 0.25, 1)), float(hidden_time(4.0, 1.0, 0.25, 1)) + 0.0
    (-0.75, -0.75)
    """
    return -usable * (1 - residual) * np.minimum(communication, window)


@formula(symbol="η_TP", cite="gpucalc-calibration", valid="overlap 0 or 1")
def tensor_link_efficiency(overlap: Flag, link_efficiency: Ratio, isolated_link_efficiency: Ratio) -> Ratio:
    """Share of the link rate that tensor-parallel collectives reach: that of isolated ones, unless products run beside.

    >>> float(tensor_link_efficiency(0, 0.6, 0.8)), float(tensor_link_efficiency(1, 0.6, 0.8))
    (0.8, 0.6)
    """
    return overlap * link_efficiency + (1 - overlap) * isolated_link_efficiency


@formula(symbol="ρ", cite="gpucalc-calibration", valid="link <= total")
def interference(
    residual: Ratio, link: Seconds, total: Seconds, network_residual_floor: Ratio, tiny: Seconds = 1e-12
) -> Ratio:
    """Slow-down of compute by a collective: in proportion to the rate at which it passes the GPU's own memory.

    Where the network sets the pace, fewer bytes a second are moved than the links could, down to a floor.

    >>> float(interference(0.4, 1.0, 1.0, 0.5)), float(interference(0.4, 0.7, 1.0, 0.5))
    (0.4, 0.27999999999999997)
    """
    return residual * np.maximum(network_residual_floor, link / np.maximum(np.maximum(total, link), tiny))


@formula(symbol="t_exposed", cite="gpucalc-calibration", valid="0 <= hidden_share <= 1")
def exposed_time(communication: Seconds, window: Seconds, hidden_share: Ratio, residual: Ratio) -> Seconds:
    """Communication that compute does not hide.

    What exceeds the usable share of the window is exposed whole; of what runs beside compute a residual
    remains, since both share multiprocessors and memory.

    >>> float(exposed_time(1.0, 4.0, 0.9, 0.25)), float(exposed_time(4.0, 1.0, 0.9, 0.0))
    (0.25, 3.1)
    """
    overlapped = np.minimum(communication, window)
    return np.maximum(communication - hidden_share * window, residual * overlapped)
