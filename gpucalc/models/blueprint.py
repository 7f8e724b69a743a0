"""The blueprint of a model: what an importer reads from a configuration, before anything is counted.

A blueprint holds the numbers a count needs and nothing derived from them, so that a cell can be
replaced and the counts follow. `count_parts` turns it into parameters by part.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucalc.models import parameters as parts
from gpucalc.models.parameters import Weights

FULL, WINDOW, LINEAR, NONE = "full", "window", "linear", "none"
DENSE, MOE = "dense", "moe"
NO_WEIGHTS = Weights()


@dataclass(frozen=True)
class LinearMixer:
    """A mixer with a constant state per sequence: `kind` is mamba1, mamba2, delta, kda, conv, rwkv or rwkv7."""

    kind: str
    inner: int = 0  # mamba1, rwkv, conv: width of the inner stream; rwkv7: width of the channel mixing
    state: int = 0  # mamba: state size per channel; rwkv: width of the channel mixing; rwkv7: rank of the rate
    conv: int = 4
    dt_rank: int = 0  # kda: rank of decay and gate, 0 is full; rwkv7: rank of the decay
    inner_norms: bool = False
    heads: int = 0  # mamba2, kda, rwkv7: heads; delta: value heads
    head_dim: int = 0  # mamba2, kda, rwkv7: head size; delta: value head size
    groups: int = 0  # mamba2: groups; delta: key heads; rwkv7: rank of the values' mixing
    key_dim: int = 0  # rwkv7: rank of the gate
    bias: bool = False
    plain: bool = False  # mamba2 without its gated norm

    def weights(self, hidden: int) -> Weights:
        """Parameters of one mixer."""
        if self.kind == "mamba1":
            return parts.mamba1(
                hidden, self.inner, self.state, self.conv, self.dt_rank, inner_norms=self.inner_norms, bias=self.bias
            )
        if self.kind == "mamba2":
            sizes = (self.heads, self.head_dim, self.state, self.groups, self.conv, self.bias)
            return parts.mamba2(hidden, *sizes, gated_norm=not self.plain)
        if self.kind == "kda":
            return parts.channel_delta_net(hidden, self.heads, self.head_dim, self.conv, self.dt_rank)
        if self.kind == "conv":
            return parts.short_convolution(hidden, self.conv, self.bias)
        if self.kind == "rwkv7":
            return parts.rwkv7(hidden, self.inner, self.dt_rank, self.state, self.groups, self.key_dim)
        if self.kind == "rwkv":
            return parts.rwkv(hidden, self.inner, self.state)
        return parts.gated_delta_net(hidden, self.groups, self.heads, self.key_dim, self.head_dim, self.conv)

    def state_bytes(self) -> int:
        """Bytes of one layer's state per sequence: convolution window in 16 bit, recurrent state in fp32.

        >>> LinearMixer("delta", heads=32, head_dim=128, groups=16, key_dim=128).state_bytes()
        2162688
        """
        if self.kind == "mamba1":
            channels, recurrent = self.inner, self.inner * self.state
        elif self.kind == "mamba2":
            channels = self.heads * self.head_dim + 2 * self.groups * self.state
            recurrent = self.heads * self.head_dim * self.state
        elif self.kind == "kda":
            channels, recurrent = 3 * self.heads * self.head_dim, self.heads * self.head_dim * self.head_dim
        elif self.kind == "conv":
            channels, recurrent = self.inner, 0
        elif self.kind == "rwkv7":  # two shifted inputs in 16 bit, a matrix a head in fp32
            return 2 * 2 * self.heads * self.head_dim + 4 * self.heads * self.head_dim * self.head_dim
        elif self.kind == "rwkv":  # two shifted inputs in 16 bit, three accumulators in fp32
            return 2 * 2 * self.inner + 3 * 4 * self.inner
        else:
            channels = 2 * self.groups * self.key_dim + self.heads * self.head_dim
            recurrent = self.heads * self.key_dim * self.head_dim
        return 2 * channels * self.conv + 4 * recurrent


@dataclass(frozen=True)
class Tower:
    """The image tower before a language model: its blocks, its patches, and the tokens that it hands on.

    image: side of the pictures it was made for, in pixels; tokens: those of one picture, 0 where they follow the
    number of patches.
    """

    hidden: int
    ffn_hidden: int
    layers: int
    patch: int
    merge: int = 1
    image: int = 0
    tokens: int = 0
    gated: bool = False


@dataclass(frozen=True)
class Blueprint:
    """The structure of a model; `mixers` and `mlps` have one entry a layer."""

    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    mixers: tuple[str, ...]
    mlps: tuple[str, ...]
    v_head_dim: int = 0  # 0 = head_dim
    max_seq_len: int = 0  # 0 = not stated
    gated_mlp: bool = True
    tied_embeddings: bool = False
    causal: bool = True
    window: int = 0
    ffn_widths: tuple[int, ...] = ()  # one a layer when they differ
    # attention
    qkv_bias: bool = False
    out_bias: bool = False
    output_gate: bool = False
    qk_norm: str = ""  # "head": over one head; "full": over all heads; "each": own vector per head
    sinks: bool = False  # one learned logit per head
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    global_kv_heads: int = 0  # full layers of models whose full and windowed layers differ in shape
    global_head_dim: int = 0
    global_v_head_dim: int = 0  # 0 = global_head_dim
    global_value_is_key: bool = False
    window_heads: int = 0  # query heads of windowed layers, where they are others than the full layers'
    window_sinks: bool = False
    index_layers: int = 0  # layers with an indexer of their own, counted in `extra`; 0 = all
    linear: LinearMixer | None = None
    linear_beside: bool = False  # the linear mixer stands beside the attention, on attention layers too
    attention_weights: Weights | None = None  # of a layer whose attention is of no known form
    cache_elements: float = 0.0  # a token's in all layers, where the cache is of no known form
    shared_cache_layers: int = 0  # last layers that use the keys and values of earlier ones
    # feed-forward
    mlp_bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden: int = 0
    expert_gated: bool = True
    expert_bias: bool = False
    expert_latent: int = 0  # experts work in a space of this width (0: hidden)
    shared_expert_ffn_hidden: int = 0
    shared_expert_gate: bool = False
    router_bias: bool = False
    router_extra: int = 0
    dense_beside_experts: bool = False  # MoE layers also hold a dense block of ffn_hidden
    # vectors and the rest
    norm_terms: int = 1
    norms_per_layer: int = 2
    norm_per_block: bool = False  # one norm before each block; a skipped block has none
    final_norm: bool = True
    positions: int = 0  # learned position vectors
    embedding_width: int = 0  # 0 = hidden; otherwise projected in and out
    embedding_norm: bool = False
    embedding_rows_extra: int = 0  # token types and the like
    has_head: bool = True
    head_bias: bool = False
    head_dense: bool = False  # transform before the head (BERT)
    extra: Weights = NO_WEIGHTS
    # beside the language decoder
    encoder_layers: int = 0
    relative_buckets: int = 0
    vision: Weights = NO_WEIGHTS
    tower: Tower | None = None
    mtp_layers: int = 0
    quantization: str = ""  # the method as the checkpoint calls it
    weight_format: str = ""  # format of the quantised weights
    cache_format: str = ""  # format of the cache that the checkpoint has scales for
    plain_parts: tuple[str, ...] = ()  # kinds of products left in 16 bit: attention, mlp, expert

    @property
    def layers(self) -> int:
        """Number of layers of the (decoder) stack."""
        return len(self.mixers)

    @property
    def value_dim(self) -> int:
        """Head size of the values."""
        return self.v_head_dim or self.head_dim


@dataclass(frozen=True)
class Parts:
    """Parameters by part. Parts named in the singular are of one layer or one expert."""

    embedding: Weights
    positional: Weights
    head: Weights
    other: Weights
    attention: Weights  # a full-attention layer's attention
    window_attention: Weights
    linear_mixer: Weights
    dense_mlp: Weights  # mean over dense layers, rounded down, when widths differ
    dense_mlps: Weights  # all dense feed-forward blocks
    expert: Weights
    moe_fixed: Weights  # router, shared expert and latent projections of one MoE layer
    router: Weights
    layer_norms: Weights  # of a layer with all its blocks
    norms: Weights  # of all layers
    final_norm: Weights
    encoder: Weights
    cross_attention: Weights  # all layers
    vision: Weights
    mtp: Weights


def _norms_of_heads(b: Blueprint, kv_heads: int, head_dim: int) -> Weights:
    if b.qk_norm == "head":
        return parts.norm(2 * head_dim)
    if b.qk_norm in {"full", "each"}:
        return parts.norm((b.heads + kv_heads) * head_dim)
    return Weights()


def _attention(b: Blueprint, layer: str) -> Weights:
    if b.attention_weights is not None:
        return b.attention_weights
    if b.kv_lora_rank:
        weights = parts.latent_attention(
            b.hidden,
            b.heads,
            b.q_lora_rank,
            b.kv_lora_rank,
            b.qk_nope_head_dim,
            b.qk_rope_head_dim,
            b.value_dim,
            b.qkv_bias,
        )
        if b.index_heads and not b.index_layers:
            weights = weights.plus(parts.sparse_indexer(b.hidden, b.q_lora_rank, b.index_heads, b.index_dim))
        return weights
    other = layer == FULL and b.global_head_dim > 0
    kv_heads = b.global_kv_heads if other else b.kv_heads
    head_dim = b.global_head_dim if other else b.head_dim
    heads = (b.window_heads or b.heads) if layer == WINDOW else b.heads
    sinks = b.sinks or (b.window_sinks and layer == WINDOW)
    return parts.attention(
        b.hidden,
        heads,
        kv_heads,
        head_dim,
        (b.global_v_head_dim or head_dim) if other else b.value_dim,
        qkv_bias=b.qkv_bias,
        out_bias=b.out_bias,
        output_gate=b.output_gate,
        value_is_key=b.global_value_is_key and other,
    ).plus(_norms_of_heads(b, kv_heads, head_dim), Weights(0, heads if sinks else 0))


def without_cache(b: Blueprint) -> Weights:
    """What the last layers lack that use the keys and values of earlier ones: their projections, and the keys' norm."""
    found = Weights()
    for layer in b.mixers[b.layers - b.shared_cache_layers :] if b.shared_cache_layers else ():
        other = layer == FULL and b.global_head_dim > 0
        heads, size = (b.global_kv_heads, b.global_head_dim) if other else (b.kv_heads, b.head_dim)
        both = 1 if other and b.global_value_is_key else 2
        found = found.plus(parts.linear(b.hidden, heads * size, b.qkv_bias).times(both))
        found = found.plus(parts.norm(size) if b.qk_norm == "head" else Weights())
    return found


def _expert(b: Blueprint) -> Weights:
    return parts.mlp(b.expert_latent or b.hidden, b.expert_ffn_hidden, b.expert_gated, b.expert_bias)


def count_parts(b: Blueprint) -> Parts:
    """The parameters of every part of `b`."""
    hidden = b.hidden
    width = b.embedding_width or hidden
    embedding = Weights(0, (b.vocab + b.embedding_rows_extra) * width)
    other = b.extra.plus(without_cache(b).times(-1))
    if b.embedding_norm:
        other = other.plus(parts.norm(width, b.norm_terms))
    if width != hidden:
        other = other.plus(parts.linear(width, hidden), parts.linear(hidden, width))
    head = Weights()
    if b.has_head:
        head = Weights(0 if b.tied_embeddings else b.vocab * width, b.vocab if b.head_bias else 0)
        if b.head_dense:
            head = head.plus(parts.linear(hidden, hidden, True), parts.norm(hidden, b.norm_terms))
    attention = _attention(b, FULL) if b.heads else Weights()
    window = _attention(b, WINDOW) if b.heads and WINDOW in b.mixers else Weights()
    widths = b.ffn_widths or tuple(b.ffn_hidden for kind in b.mlps if kind == DENSE)
    if b.dense_beside_experts:
        widths = tuple(b.ffn_hidden for kind in b.mlps if kind != NONE)
    dense = Weights().plus(*(parts.mlp(hidden, w, b.gated_mlp, b.mlp_bias) for w in widths))
    mean = Weights(dense.matrix // len(widths), dense.vector // len(widths)) if widths else Weights()
    expert = router = moe_fixed = Weights()
    if MOE in b.mlps:
        expert = _expert(b)
        router = parts.linear(hidden, b.experts, b.router_bias).plus(Weights(0, b.router_extra))
        shared = b.shared_expert_ffn_hidden
        moe_fixed = router.plus(
            parts.mlp(hidden, shared, b.expert_gated) if shared else Weights(),
            Weights(hidden if shared and b.shared_expert_gate else 0),
            Weights(2 * hidden * b.expert_latent),
        )
    layer_norms = parts.norm(hidden, b.norm_terms).times(b.norms_per_layer)
    norms = layer_norms.times(b.layers)
    if b.norm_per_block:
        blocks = sum(kind != NONE for kind in (*b.mixers, *b.mlps))
        norms = parts.norm(hidden, b.norm_terms).times(blocks)
    encoder = cross = Weights()
    if b.encoder_layers:
        bias_table = Weights(0, b.relative_buckets * b.heads)
        block = attention.plus(mean, parts.norm(hidden, b.norm_terms).times(2))
        encoder = block.times(b.encoder_layers).plus(parts.norm(hidden, b.norm_terms), bias_table)
        cross = attention.plus(parts.norm(hidden, b.norm_terms)).times(b.layers)
        other = other.plus(bias_table)
    mtp = Weights()
    if b.mtp_layers:
        feed = moe_fixed.plus(expert.times(b.experts)) if MOE in b.mlps else mean
        layer = attention.plus(feed, layer_norms, parts.norm(hidden).times(3))
        mtp = layer.plus(parts.linear(2 * hidden, hidden)).times(b.mtp_layers)
    return Parts(
        embedding=embedding,
        positional=Weights(0, b.positions * hidden),
        head=head,
        other=other,
        attention=attention,
        window_attention=window,
        linear_mixer=b.linear.weights(hidden) if b.linear else Weights(),
        dense_mlp=mean,
        dense_mlps=dense,
        expert=expert,
        moe_fixed=moe_fixed,
        router=router,
        layer_norms=layer_norms,
        norms=norms,
        final_norm=parts.norm(hidden, b.norm_terms) if b.final_norm else Weights(),
        encoder=encoder,
        cross_attention=cross,
        vision=b.vision,
        mtp=mtp,
    )
