"""Parameter-efficient fine-tuning: low-rank adapters, and what a quantised frozen base weighs.

Symbols: r rank of an adapter, h hidden, t tensor-parallel ranks, n columns of a projection on a rank.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag, Ratio


@formula(symbol="r·Σ(n_in+n_out)", cite="hu2021", valid="adapters beside full-rank matrices; lora_rank >= 0")
def lora_parameters(
    adapters: Flag,
    lora_rank: Count,
    hidden: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    v_head_dim: Count,
    ffn_hidden: Count,
    gated: Flag,
    expert_ffn_hidden: Count,
    experts: Count,
    dense_layers: Count,
    moe_layers: Count,
    layers: Count,
    tp: Count,
    ep: Count,
    lora_on_query: Flag,
    lora_on_key: Flag,
    lora_on_value: Flag,
    lora_on_output: Flag,
    lora_on_mlp: Flag,
) -> Count:
    """Adapter parameters of an average layer on one rank: r·(inputs + outputs) of each adapted matrix.

    The side of an adapter that faces a tensor-parallel split is split with it; its rank side is replicated.

    >>> args = dict(kv_heads=32, head_dim=128, v_head_dim=128, ffn_hidden=11008, gated=1, expert_ffn_hidden=0,
    ...             experts=0, dense_layers=32, moe_layers=0, layers=32, tp=1, ep=1)
    >>> attention = dict(lora_on_query=1, lora_on_key=1, lora_on_value=1, lora_on_output=1)
    >>> float(lora_parameters(1, 8, 4096, 32, **args, **attention, lora_on_mlp=0))  # 8 · 4 · 8192
    262144.0
    >>> float(lora_parameters(1, 8, 4096, 32, **args, **attention, lora_on_mlp=1))  # + 8 · 3 · 15104
    624640.0
    """
    query = (lora_on_query + lora_on_output * v_head_dim / head_dim) * heads * head_dim / tp
    key_value = (lora_on_key * head_dim + lora_on_value * v_head_dim) * np.maximum(kv_heads / tp, 1.0)
    attention = query + key_value + (lora_on_query + lora_on_key + lora_on_value + lora_on_output) * hidden
    dense = (2 + gated) * (hidden + ffn_hidden / tp) * dense_layers
    routed = (2 + gated) * (hidden + expert_ffn_hidden) * moe_layers * experts / ep
    return adapters * lora_rank * (attention + lora_on_mlp * (dense + routed) / layers)


@formula(symbol="b_w", cite="dettmers2023", valid="block-wise quantisation; double_block 0: scales are not quantised")
def quantised_weight_bytes(
    value_bytes: Bytes, scale_bytes: Bytes, block: Count, second_scale_bytes: Bytes, double_block: Count
) -> Bytes:
    """Bytes of one weight: its value, its share of a block's scale, and of the scale of those scales.

    >>> float(quantised_weight_bytes(0.5, 4.0, 64, 0.0, 0))  # NF4
    0.5625
    >>> round(float(quantised_weight_bytes(0.5, 1.0, 64, 4.0, 256)), 6)  # NF4 with double quantisation
    0.515869
    """
    second = np.where(double_block > 0, second_scale_bytes / np.maximum(double_block, 1.0), 0.0)
    return value_bytes + (scale_bytes + second) / block


@formula(symbol="b̄_w", cite="dettmers2023", valid="embedding and head stay in 16 bit; 0 <= unquantised_share <= 1")
def mixed_weight_bytes(quantised: Bytes, plain: Bytes, unquantised_share: Ratio) -> Bytes:
    """Mean bytes of a weight when the embedding and the head are not quantised.

    >>> float(mixed_weight_bytes(0.5, 2.0, 0.2))
    0.8
    """
    return quantised * (1 - unquantised_share) + plain * unquantised_share


@formula(symbol="N_grad", cite="lv2023", valid="gradients are freed as soon as a tensor is updated")
def gradient_parameters(
    parameters: Count,
    layer_parameters: Count,
    end_parameters: Count,
    trains_base: Flag,
    optimizer_in_backward: Flag,
) -> Count:
    """Parameters whose gradients are held at once: all, or the largest tensor's with updates in the backward pass.

    That is a layer, or an end of the model: the embedding or the head.

    >>> float(gradient_parameters(8e9, 2e8, 5e8, 1, 0)), float(gradient_parameters(8e9, 2e8, 5e8, 1, 1))
    (8000000000.0, 500000000.0)
    """
    largest = np.maximum(layer_parameters, end_parameters) * trains_base
    return np.where(np.greater(optimizer_in_backward, 0), np.minimum(largest, parameters), parameters)


@formula(symbol="N_tuned", cite="hu2021", valid="beside a frozen base")
def tuned_parameters(
    adapter_parameters: Count,
    longest: Count,
    embedding_parameters: Count,
    head_parameters: Count,
    tp: Count,
    trains_embeddings: Flag,
) -> Count:
    """Parameters that train beside a frozen base on one rank: adapters, and copies of the embedding and the head.

    >>> float(tuned_parameters(1e6, 32, 6e8, 6e8, 1, 0)), float(tuned_parameters(1e6, 32, 6e8, 6e8, 1, 1))
    (32000000.0, 1232000000.0)
    """
    return adapter_parameters * longest + trains_embeddings * (embedding_parameters + head_parameters) / tp


@formula(symbol="A_scaled", cite="gao2023", valid="every linear layer has a trained scale and bias")
def scaled_output_activations(
    scaled_outputs: Flag,
    tokens: Count,
    hidden: Count,
    qkv: Count,
    feed_forward: Count,
    gated: Flag,
    sequence_ranks: Count,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of the outputs of all linear layers, which a trained scale needs in the backward pass.

    >>> float(scaled_output_activations(1, 10, 100, 300, 400, 1, 1))
    26000.0
    """
    columns = qkv + 2 * hidden / sequence_ranks + (1 + gated) * feed_forward
    return scaled_outputs * stored_bytes * tokens * columns
