"""Activations of one layer, tensor by tensor: what each operation keeps for its backward pass.

Symbols: T tokens of a micro-batch on a rank, h hidden, a heads, g key/value heads, d head size, f feed-forward
width on a rank, σ ranks that split the residual stream, t tensor-parallel ranks. A product keeps its input for the
gradient of its weight; a frozen one does not, unless an adapter beside it reads the same input. Where the inputs of
products are quantised, they are kept in that type (`input_bytes`), everything else in 16 bit.

The counts were confirmed by hooking saved tensors of the operations on a CPU.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag, Ratio


@formula(symbol="A_norm", cite="pytorch-autograd", valid="one norm")
def norm_activations(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    fused_norm: Flag,
    trained: Flag,
    feeds_product: Flag,
    input_bytes: Bytes = 2.0,
    fused_bytes: Bytes = 2.0,
    eager_bytes: Bytes = 4.0,
    scale_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes that a norm keeps: its input, and its output where the product that it feeds keeps its own input.

    Fused (LayerNorm, RMSNorm kernels) 2 + 2 B per element. Written out in fp32 the cast input (4 B) and, for the
    gradient of the scale, the normalised input in 16 bit; with bf16 mathematics `eager_bytes` is 2.

    >>> [float(norm_activations(1, 4096, 1, fused, 1, 1)) for fused in (1, 0)]
    [16384.0, 32768.0]
    >>> float(norm_activations(1, 4096, 1, 0, 0, 0))
    16384.0
    """
    own = fused_norm * fused_bytes + (1 - fused_norm) * (eager_bytes + scale_bytes * trained)
    return tokens * hidden / sequence_ranks * (own + input_bytes * feeds_product)


@formula(symbol="A_qkv", cite="pytorch-autograd", valid="kernels that never form the scores, and those that do")
def attention_activations(
    tokens: Count,
    qkv: Count,
    attention_columns: Count,
    fused_rope: Flag,
    value_is_view: Flag,
    repeats_kv: Flag,
    query_columns: Count,
    feeds_product: Flag,
    low_precision: Flag,
    input_bytes: Bytes = 2.0,
    attention_bytes: Bytes = 2.0,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of q, k and v after the rotary embedding, and of the attention's output, which feeds a product.

    Where v is a view of one fused projection, a rotary embedding that is no kernel on that projection makes new q
    and k while the old ones stay: (a+g)·d columns more. Eager attention may repeat keys and values for each head.
    A quantised copy of the output stands beside it where the product takes 8 bit.

    Llama-2-7B, 32 heads of 128: 2·3·4096 + 2·4096 B; 32 and 8 heads: (32+8)·128·2 B more, or 2·2·24·128 B:

    >>> float(attention_activations(1, 12288, 4096, 1, 0, 0, 4096, 1, 0))
    32768.0
    >>> plain, view, repeat = (float(attention_activations(1, 6144, 4096, 0, v, r, 4096, 1, 0))
    ...                        for v, r in ((0, 0), (1, 0), (0, 1)))
    >>> view - plain, repeat - plain
    (10240.0, 12288.0)
    """
    both = (qkv - query_columns) / 2  # columns of keys, and of values
    view = (1 - fused_rope) * value_is_view * (query_columns + both)
    repeated = repeats_kv * 2 * (query_columns - both)
    copies = attention_bytes * qkv + stored_bytes * (view + repeated + attention_columns)
    return tokens * (copies + low_precision * feeds_product * input_bytes * attention_columns)


@formula(symbol="a·d·L_att/(L·t)", cite="shoeybi2019", valid="layers >= 1; never more than all columns")
def query_columns(
    heads: Count, head_dim: Count, attention_layers: Count, layers: Count, tp: Count, mixer_in: Count
) -> Count:
    """Columns of queries on one rank, mean over the layers.

    >>> float(query_columns(32, 128, 32, 32, 4, 1e9))
    1024.0
    """
    return np.minimum(heads * head_dim * attention_layers / (layers * tp), mixer_in)


@formula(symbol="T_written", cite="pytorch-autograd", valid="written_gelu 0 or 1")
def written_tokens(tokens: Count, written_gelu: Flag, gated: Flag) -> Count:
    """Tokens that pass a GELU written out in Python; gated blocks have none.

    >>> float(written_tokens(10, 1, 0)), float(written_tokens(10, 1, 1))
    (10.0, 0.0)
    """
    return 1.0 * tokens * written_gelu * (1 - gated)


@formula(symbol="A_scores", cite="korthikanti2022", valid="attention that forms its scores")
def score_activations(
    tokens: Count,
    attended: Count,
    heads: Count,
    tp: Count,
    flash: Flag,
    dropout: Flag,
    fp32_softmax: Flag,
    softmax_bytes: Bytes = 2.0,
    dropout_bytes: Bytes = 3.0,
    fp32_bytes: Bytes = 4.0,
    shared_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes per score: its softmax (2), dropout's mask and dropped copy (3), a softmax in fp32 (4, or 2 with dropout).

    32 heads of 4,096 by 4,096 scores, 0.5 Gi:

    >>> [float(score_activations(4096, 4096, 32, 1, 0, *case)) / 2**30 for case in ((0, 0), (1, 0), (0, 1), (1, 1))]
    [1.0, 2.5, 3.0, 3.5]
    """
    each = softmax_bytes + dropout_bytes * dropout + fp32_softmax * (fp32_bytes - shared_bytes * dropout)
    return (1 - flash) * each * heads / tp * attended * tokens


@formula(symbol="A_mlp", cite="pytorch-autograd", valid="one feed-forward block")
def feed_forward_activations(
    tokens: Count,
    feed_forward: Count,
    gated: Flag,
    fused_gate: Flag,
    feeds_product: Flag,
    input_bytes: Bytes = 2.0,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes over the feed-forward width: the activation's input, a gate's other factor, the input of the down product.

    SwiGLU keeps gate, up and product (6 B), 8 B where activation and product are kernels of their own, 4 B where the
    product is computed again (or the frozen down projection needs none). GELU and squared ReLU 4 B.

    >>> [float(feed_forward_activations(1, 11008, 1, fused, feeds)) for fused, feeds in ((0, 1), (1, 1), (1, 0))]
    [88064.0, 66048.0, 44032.0]
    >>> float(feed_forward_activations(1, 16384, 0, 0, 1))
    65536.0
    """
    kept = stored_bytes * (1 + gated * (2 - fused_gate)) + input_bytes * feeds_product
    return tokens * feed_forward * kept


@formula(symbol="A_written", cite="pytorch-autograd", valid="GELU written out as elementary operations")
def written_gelu_activations(tokens: Count, feed_forward: Count, further_bytes: Bytes = 6.0) -> Bytes:
    """Bytes that a GELU written out in Python keeps beyond one in a single kernel: 10·f instead of 4·f.

    >>> float(feed_forward_activations(1, 16384, 0, 1, 1) + written_gelu_activations(1, 16384))
    163840.0
    """
    return further_bytes * tokens * feed_forward


@formula(symbol="A_routed", cite="liu2024moe", valid="routed copies on the most loaded rank")
def routed_activations(
    tokens: Count,
    hidden: Count,
    experts_per_token: Count,
    expert_ffn_hidden: Count,
    gated: Flag,
    fused_gate: Flag,
    keeps_expert_output: Flag,
    expert_imbalance: Ratio,
    tp: Count,
    etp: Count,
    trained: Flag = 1.0,
    input_bytes: Bytes = 2.0,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of the k copies of each token: permuted input, gate and up, product, and the output.

    The output is not kept where the router's probabilities enter the activation, before the down projection.

    >>> float(routed_activations(10, 100, 2, 50, 1, 1, 1, 1.0, 1, 1))  # 20·(2·200 + 6·50)
    14000.0
    >>> float(routed_activations(10, 100, 2, 50, 1, 1, 0, 1.0, 1, 1))
    10000.0
    """
    copies = expert_imbalance * experts_per_token * tokens / tp
    over_hidden = (input_bytes * trained + stored_bytes * keeps_expert_output) * hidden * etp
    over_width = (stored_bytes * (1 + gated * (2 - fused_gate)) + input_bytes * trained) * expert_ffn_hidden
    return copies * (over_hidden + over_width)


@formula(symbol="4·T·h·(1-1/t)", cite="korthikanti2022", valid="sequence parallelism")
def gathered_inputs(
    tokens: Count,
    hidden: Count,
    sequence_ranks: Count,
    keeps_gathered: Flag,
    blocks: Count = 2.0,
    stored_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of the gathered inputs of a layer's two blocks, beyond their shards, where they are not gathered again.

    Megatron-LM keeps the shard and gathers it once more in the backward pass; most others keep what they gathered.

    >>> float(gathered_inputs(8192, 8192, 8, 1)) / 2**30
    0.21875
    """
    return keeps_gathered * blocks * stored_bytes * tokens * hidden * (1 - 1 / sequence_ranks)


@formula(symbol="A_drop", cite="korthikanti2022", valid="")
def dropout_masks(
    tokens: Count, hidden: Count, sequence_ranks: Count, dropout: Flag, mask_bytes: Bytes = 1.0, blocks: Count = 2.0
) -> Bytes:
    """Bytes of the masks of the dropout after each block, one byte an element.

    >>> float(dropout_masks(10, 100, 2, 1))
    1000.0
    """
    return dropout * blocks * mask_bytes * tokens * hidden / sequence_ranks


@formula(symbol="2·r·n_A", cite="hu2021", valid="adapters beside frozen products")
def adapter_activations(tokens: Count, lora_rank: Count, adapted: Count, stored_bytes: Bytes = 2.0) -> Bytes:
    """Bytes of the narrow tensors between the two factors of each adapter; their inputs count with the products.

    >>> float(adapter_activations(1, 64, 3))
    384.0
    """
    return stored_bytes * tokens * lora_rank * adapted


@formula(symbol="ω", cite="qi2024", valid="16-bit GPT blocks")
def weight_gradient_share(
    heads: Count,
    seq_len: Count,
    hidden: Count,
    flash: Flag,
    inputs: Count = 32.0,
    all_tensors: Count = 34.0,
    scores: Count = 5.0,
) -> Ratio:
    """What a layer keeps until its weight gradients over what it keeps until its backward pass: 32/(34 + 5·a·s/h).

    >>> [round(float(weight_gradient_share(24, 1024, 2304, flash)), 3) for flash in (0, 1)]
    [0.366, 0.941]
    """
    return inputs / (all_tensors + (1 - flash) * scores * heads * seq_len / hidden)
