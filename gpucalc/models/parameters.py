"""Counting the parameters of the parts of a model: pure functions of the shape.

A part is counted as `Weights`: elements of matrices that take part in matrix products, and
elements of vectors (norm scales, biases, convolution taps) that do not. Their sum is the
parameter count; the matrices alone decide the FLOPs. Everything is an exact integer.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """Parameters of a part: `matrix` elements enter matrix products, `vector` elements do not."""

    matrix: int = 0
    vector: int = 0

    @property
    def total(self) -> int:
        """All parameters of the part."""
        return self.matrix + self.vector

    def plus(self, *others: Weights) -> Weights:
        """The sum of this part and `others`.

        >>> Weights(6, 1).plus(Weights(4, 2))
        Weights(matrix=10, vector=3)
        """
        return Weights(
            self.matrix + sum(part.matrix for part in others), self.vector + sum(part.vector for part in others)
        )

    def times(self, count: int) -> Weights:
        """`count` copies of this part.

        >>> Weights(6, 1).times(3)
        Weights(matrix=18, vector=3)
        """
        return Weights(self.matrix * count, self.vector * count)


def linear(inputs: int, outputs: int, bias: bool = False) -> Weights:
    """A linear layer.

    >>> linear(4096, 11008).total
    45088768
    """
    return Weights(inputs * outputs, outputs if bias else 0)


def norm(width: int, terms: int = 1) -> Weights:
    """A norm over `width` features: `terms` is 1 for a scale (RMSNorm), 2 for scale and bias (LayerNorm)."""
    return Weights(0, width * terms)


def attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    output_gate: bool = False,
    value_is_key: bool = False,
) -> Weights:
    """Attention with grouped keys and values; multi-head and multi-query are its ends.

    `output_gate` doubles the query projection (the second half gates the output); `value_is_key`
    leaves the value projection out (values are the keys). Llama-3-8B, 41.9 M a layer:

    >>> attention(4096, 32, 8, 128, 128).total
    41943040
    """
    queries = heads * head_dim * (2 if output_gate else 1)
    parts = [linear(hidden, queries, qkv_bias), linear(hidden, kv_heads * head_dim, qkv_bias)]
    if not value_is_key:
        parts.append(linear(hidden, kv_heads * v_head_dim, qkv_bias))
    return linear(heads * v_head_dim, hidden, out_bias).plus(*parts)


def latent_attention(
    hidden: int,
    heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    nope_dim: int,
    rope_dim: int,
    v_head_dim: int,
    bias: bool = False,
) -> Weights:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Keys and values pass through a latent of `kv_lora_rank` elements, queries through one of
    `q_lora_rank` elements, or directly when that is 0. DeepSeek-V3, one layer:

    >>> latent_attention(7168, 128, 1536, 512, 128, 64, 128).total
    187107328
    """
    queries = heads * (nope_dim + rope_dim)
    if q_lora_rank:
        query = linear(hidden, q_lora_rank, bias).plus(norm(q_lora_rank), linear(q_lora_rank, queries))
    else:
        query = linear(hidden, queries)
    return query.plus(
        linear(hidden, kv_lora_rank + rope_dim, bias),
        norm(kv_lora_rank),
        linear(kv_lora_rank, heads * (nope_dim + v_head_dim)),
        linear(heads * v_head_dim, hidden, bias),
    )


def sparse_indexer(hidden: int, q_lora_rank: int, index_heads: int, index_dim: int) -> Weights:
    """The token selector of DeepSeek sparse attention: queries, one key with a LayerNorm, head weights.

    >>> sparse_indexer(6144, 2048, 32, 128).total
    9371904
    """
    return linear(q_lora_rank, index_heads * index_dim).plus(
        linear(hidden, index_dim), norm(index_dim, 2), linear(hidden, index_heads)
    )


def mlp(hidden: int, width: int, gated: bool, bias: bool = False) -> Weights:
    """A feed-forward block: up and down, and a gate when `gated` (three matrices).

    >>> mlp(4096, 11008, gated=True).total
    135266304
    """
    return linear(hidden, width, bias).times(2 if gated else 1).plus(linear(width, hidden, bias))


def mamba1(
    hidden: int, inner: int, state: int, conv: int, dt_rank: int, *, inner_norms: bool = False, bias: bool = False
) -> Weights:
    """A Mamba mixer (arXiv:2312.00752): input and output projections, convolution, selective scan.

    `inner_norms` adds the norms on step, B and C that Jamba has. Mamba-2.8B, one layer without its norm:

    >>> mamba1(2560, 5120, 16, 4, 160).total
    41241600
    """
    return linear(hidden, 2 * inner, bias).plus(
        Weights(0, inner * conv + inner),
        linear(inner, dt_rank + 2 * state),
        linear(dt_rank, inner, True),
        Weights(0, inner * state + inner),
        linear(inner, hidden, bias),
        norm(dt_rank + 2 * state if inner_norms else 0),
    )


def mamba2(
    hidden: int,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    conv: int,
    bias: bool = False,
    *,
    gated_norm: bool = True,
) -> Weights:
    """A Mamba-2 mixer (arXiv:2405.21060), with a gated norm as in Nemotron-H unless it has none.

    >>> mamba2(2688, 64, 64, 128, 8, 4).total
    38742208
    """
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    return linear(hidden, inner + channels + heads, bias).plus(
        Weights(0, channels * conv + channels),
        Weights(0, 3 * heads),
        norm(inner if gated_norm else 0),
        linear(inner, hidden, bias),
    )


def gated_delta_net(hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv: int) -> Weights:
    """A gated delta-rule mixer (arXiv:2412.06464), the linear attention of Qwen3-Next.

    >>> gated_delta_net(2048, 16, 32, 128, 128, 4).total
    33718464
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    return linear(hidden, 2 * keys + 2 * values).plus(
        linear(hidden, 2 * value_heads),
        Weights(0, (2 * keys + values) * conv),
        Weights(0, 2 * value_heads),
        norm(value_dim),
        linear(values, hidden),
    )


def channel_delta_net(hidden: int, heads: int, head_dim: int, conv: int, rank: int) -> Weights:
    """A delta rule with a decay a channel (Kimi Delta Attention, arXiv:2510.26692); decay and gate of a low rank.

    rank 0: decay and gate are projections of full rank. A layer of Kimi-Linear 48B:

    >>> channel_delta_net(2304, 32, 128, 4, 128).total
    39514272
    """
    wide = heads * head_dim
    low = linear(hidden, rank).plus(linear(rank, wide)) if rank else linear(hidden, wide)
    vectors = Weights(0, 3 * wide * conv + wide + heads)
    return (
        linear(hidden, wide)
        .times(3)
        .plus(low.times(2), vectors, linear(hidden, heads), norm(head_dim), linear(wide, hidden))
    )


def short_convolution(hidden: int, length: int, bias: bool = False) -> Weights:
    """A gated short convolution (LFM2): a projection to three streams, a depthwise convolution, and one back.

    >>> short_convolution(1024, 3).total
    4197376
    """
    return linear(hidden, 3 * hidden, bias).plus(
        Weights(0, hidden * length + (hidden if bias else 0)), linear(hidden, hidden, bias)
    )


def rwkv7(hidden: int, ffn_hidden: int, decay: int, rate: int, value: int, gate: int) -> Weights:
    """An RWKV-7 layer without its two norms (arXiv:2503.14456): time mixing with four low ranks, and channel mixing.

    >>> rwkv7(2048, 8192, 96, 96, 64, 256).total
    52459520
    """
    low = 2 * hidden * (decay + rate + value + gate)
    time = linear(hidden, hidden).times(4).plus(Weights(low, 9 * hidden + 3 * hidden + 2 * hidden))
    return time.plus(Weights(2 * hidden * ffn_hidden, hidden))


def rwkv(hidden: int, inner: int, ffn_hidden: int) -> Weights:
    """An RWKV-4 layer without norms (arXiv:2305.13048): time mixing and channel mixing.

    >>> rwkv(768, 768, 3072).total
    7673088
    """
    time = linear(hidden, inner).times(3).plus(linear(inner, hidden), Weights(0, 2 * inner + 3 * hidden))
    channel = linear(hidden, ffn_hidden).plus(linear(hidden, hidden), linear(ffn_hidden, hidden))
    return time.plus(channel, Weights(0, 2 * hidden))


def pre_norm_encoder(hidden: int, ffn_hidden: int, layers: int, patch_bias: bool, patch_elements: int) -> Weights:
    """A vision transformer's patch projection and blocks (LayerNorm, biases everywhere)."""
    block = attention(hidden, 1, 1, hidden, hidden, qkv_bias=True, out_bias=True).plus(
        mlp(hidden, ffn_hidden, gated=False, bias=True), norm(hidden, 2).times(2)
    )
    return linear(patch_elements, hidden, patch_bias).plus(block.times(layers))


# bits of an element and of its share of the scales: (bits, scale bits, elements per scale)
_STORED = {
    "fp8": (8, 32, 128 * 128),
    "mxfp8": (8, 8, 32),
    "mxfp4": (4, 8, 32),
    "nvfp4": (4, 8, 16),
    "gptq": (4, 16, 128),
    "awq": (4, 16, 128),
}


def stored_bytes_per_weight(quantization: str) -> float:
    """Bytes of a quantised weight with its share of the scales; 2 for an unquantised one (16 bit).

    Scales: fp8 one fp32 for 128x128 elements, mxfp4 and mxfp8 one byte for 32, nvfp4 one byte for 16,
    gptq and awq one 16-bit scale for 128. Only the layers that a checkpoint quantises are stored so.

    >>> stored_bytes_per_weight("mxfp4"), stored_bytes_per_weight("nvfp4")
    (0.53125, 0.5625)
    """
    if quantization not in _STORED:
        return 2.0
    bits, scale, group = _STORED[quantization]
    return (bits + scale / group) / 8


def padded_vocabulary(vocab: int, tensor_parallel: int = 1, multiple: int = 128) -> int:
    """The vocabulary padded so that every tensor-parallel rank holds a whole multiple of `multiple` rows.

    >>> padded_vocabulary(50257, 8)
    51200
    >>> padded_vocabulary(122753, 1)
    122880
    """
    step = multiple * tensor_parallel
    return -(-vocab // step) * step
