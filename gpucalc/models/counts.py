"""A model counted: the flat numeric shape and the exact parameter counts the cost model works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucalc.core.errors import UsageError
from gpucalc.models.blueprint import DENSE, FULL, LINEAR, MOE, NONE, WINDOW, Blueprint, Parts, count_parts
from gpucalc.models.parameters import Weights


@dataclass(frozen=True)
class Model:
    """A model. Counts are parameters (elements); `*_per_token` and state sizes are bytes at 16 bit.

    Per-layer figures are of one layer of that kind; a kind that does not occur has 0. Where layers of
    one kind differ (pruned models) the figure is their mean, rounded down; totals are always exact.
    """

    name: str
    architecture: str
    blueprint: Blueprint = field(repr=False)  # what the counts are made from
    # shape
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int  # query-key head size; latent attention: nope + rope
    v_head_dim: int
    ffn_hidden: int  # width of dense layers
    gated_mlp: bool
    vocab: int
    max_seq_len: int  # 0 = not stated
    tied_embeddings: bool
    causal: bool
    encoder_layers: int
    # kinds of layers
    attention_layers: int  # layers with softmax attention, full or windowed
    window: int  # sliding window in tokens, 0 none
    window_layers: int
    linear_layers: int  # Mamba or linear attention
    dense_layers: int  # layers with a dense feed-forward block
    moe_layers: int
    # experts
    experts: int
    experts_per_token: int
    expert_ffn_hidden: int
    shared_expert_ffn_hidden: int  # total width of the shared experts
    expert_latent: int  # experts work in a space of this width; 0 = hidden
    gated_experts: bool
    # latent attention, 0 when the model has none
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    # counts
    parameters_total: int
    parameters_active: int  # total without the experts a token does not visit
    parameters_embedding: int  # input embedding
    parameters_head: int  # output head; 0 when tied
    parameters_positional: int
    parameters_per_dense_layer: int
    parameters_per_moe_layer: int
    parameters_per_expert: int
    attention_parameters: int  # of one attention layer (of the full kind where kinds differ)
    window_attention_parameters: int
    mlp_parameters: int  # of one dense feed-forward block
    router_parameters: int  # of one MoE layer
    shared_expert_parameters: int  # of one MoE layer: shared expert, its gate, latent projections
    linear_mixer_parameters: int
    norm_parameters: int  # of the norms of one layer
    encoder_parameters: int  # encoder stack of an encoder-decoder, without the embedding
    cross_attention_parameters: int
    vision_parameters: int
    mtp_parameters: int  # multi-token prediction layers, not in the total
    matmul_parameters_active: int  # weights in matrix products per token: active, with the head, without embedding
    # cache
    kv_bytes_per_token: int  # all attention layers, window not applied
    kv_bytes_per_token_windowed: int  # the part that stops growing at the window
    kv_bytes_per_token_full_pages: int  # when every attention layer gets pages of the largest layer's size
    state_bytes_per_sequence: int  # recurrent state of the linear layers
    quantization: str = ""
    weight_format: str = ""
    cache_format: str = ""
    plain_parts: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_moe(self) -> bool:
        """Whether the model has routed experts."""
        return self.moe_layers > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention keeps a latent instead of keys and values."""
        return self.kv_lora_rank > 0

    def legal_tensor_parallel(self, largest: int = 64) -> tuple[int, ...]:
        """Tensor-parallel sizes that divide the heads.

        >>> from gpucalc.models.model import load_model
        >>> load_model("falcon-7b").legal_tensor_parallel()
        (1,)
        """
        return tuple(t for t in range(1, largest + 1) if self.heads % t == 0) if self.heads else (1,)


def model_from_blueprint(
    b: Blueprint, name: str, origin: Mapping[str, str] | None = None, warnings: tuple[str, ...] = ()
) -> Model:
    """Count a blueprint."""
    p = count_parts(b)
    full, windowed = (b.mixers.count(kind) for kind in (FULL, WINDOW))
    linear = linear_layers(b)
    cached, cached_windowed = cache_bytes(b)
    moe = b.mlps.count(MOE)
    total, active = total_and_active(b, p)
    kv_full, kv_window = _kv_bytes(b, FULL), _kv_bytes(b, WINDOW)
    dense = b.layers - b.mlps.count(NONE) if b.dense_beside_experts else b.mlps.count(DENSE)
    moe_layer = p.attention if moe and not _single_block(b) else Weights()
    moe_layer = moe_layer.plus(p.moe_fixed, p.expert.times(b.experts), p.layer_norms)
    if b.dense_beside_experts:
        moe_layer = moe_layer.plus(p.dense_mlp)
    dense_layer = (Weights() if _single_block(b) else p.attention).plus(p.dense_mlp, p.layer_norms)
    return Model(
        name=name,
        architecture=b.architecture,
        layers=b.layers,
        hidden=b.hidden,
        heads=b.heads,
        kv_heads=b.kv_heads,
        head_dim=b.head_dim,
        v_head_dim=b.value_dim,
        ffn_hidden=b.ffn_hidden,
        gated_mlp=b.gated_mlp,
        vocab=b.vocab,
        max_seq_len=b.max_seq_len,
        tied_embeddings=b.tied_embeddings,
        causal=b.causal,
        encoder_layers=b.encoder_layers,
        attention_layers=full + windowed,
        window=b.window,
        window_layers=windowed,
        linear_layers=linear,
        dense_layers=dense,
        moe_layers=moe,
        experts=b.experts,
        experts_per_token=b.experts_per_token,
        expert_ffn_hidden=b.expert_ffn_hidden,
        shared_expert_ffn_hidden=b.shared_expert_ffn_hidden,
        expert_latent=b.expert_latent,
        gated_experts=b.expert_gated,
        q_lora_rank=b.q_lora_rank,
        kv_lora_rank=b.kv_lora_rank,
        qk_nope_head_dim=b.qk_nope_head_dim,
        qk_rope_head_dim=b.qk_rope_head_dim,
        parameters_total=total.total,
        parameters_active=active.total,
        parameters_embedding=p.embedding.total,
        parameters_head=p.head.total,
        parameters_positional=p.positional.total,
        parameters_per_dense_layer=dense_layer.total if dense else 0,
        parameters_per_moe_layer=moe_layer.total if moe else 0,
        parameters_per_expert=p.expert.total,
        attention_parameters=p.attention.total,
        window_attention_parameters=p.window_attention.total,
        mlp_parameters=p.dense_mlp.total,
        router_parameters=p.router.total,
        shared_expert_parameters=p.moe_fixed.total - p.router.total,
        linear_mixer_parameters=p.linear_mixer.total,
        norm_parameters=p.layer_norms.total,
        encoder_parameters=p.encoder.total,
        cross_attention_parameters=p.cross_attention.total,
        vision_parameters=p.vision.total,
        mtp_parameters=p.mtp.total,
        matmul_parameters_active=active.matrix
        - p.vision.matrix
        + (b.vocab * (b.embedding_width or b.hidden) if b.has_head and b.tied_embeddings else 0),
        kv_bytes_per_token=cached,
        kv_bytes_per_token_windowed=cached_windowed,
        kv_bytes_per_token_full_pages=(full + windowed) * max(kv_full if full else 0, kv_window if windowed else 0)
        if b.causal
        else 0,
        state_bytes_per_sequence=linear * b.linear.state_bytes() if b.linear else 0,
        quantization=b.quantization,
        weight_format=b.weight_format,
        cache_format=b.cache_format,
        plain_parts=b.plain_parts,
        origin=dict(origin or {}),
        warnings=warnings,
        blueprint=b,
    )


def linear_layers(b: Blueprint) -> int:
    """Layers with a linear mixer: those of that kind, and attention layers that have one beside."""
    return sum(kind == LINEAR or (b.linear_beside and kind != NONE) for kind in b.mixers)


def cache_bytes(b: Blueprint) -> tuple[int, int]:
    """16-bit bytes that a token leaves in the caches of all layers, and the part of them that has a window."""
    if not b.causal:
        return 0, 0
    if b.cache_elements:
        return round(2 * b.cache_elements), 0
    held = b.mixers[: b.layers - b.shared_cache_layers]
    windowed = held.count(WINDOW) * _kv_bytes(b, WINDOW)
    return held.count(FULL) * _kv_bytes(b, FULL) + windowed, windowed


def _single_block(b: Blueprint) -> bool:
    """Whether a layer is a mixer or a feed-forward block, not both."""
    return NONE in b.mixers and NONE in b.mlps


def total_and_active(b: Blueprint, p: Parts) -> tuple[Weights, Weights]:
    """All parameters, and those a token meets: experts it does not visit left out."""
    moe = b.mlps.count(MOE)
    fixed = p.embedding.plus(
        p.positional,
        p.head,
        p.other,
        p.attention.times(b.mixers.count(FULL)),
        p.window_attention.times(b.mixers.count(WINDOW)),
        p.linear_mixer.times(linear_layers(b)),
        p.dense_mlps,
        p.moe_fixed.times(moe),
        p.norms,
        p.final_norm,
        p.encoder,
        p.cross_attention,
        p.vision,
    )
    total = fixed.plus(p.expert.times(moe * b.experts))
    return total, fixed.plus(p.expert.times(moe * min(b.experts_per_token, b.experts)))


def _kv_bytes(b: Blueprint, kind: str) -> int:
    """16-bit bytes one token leaves in the cache of one layer; latent attention keeps its latent and one rotary key."""
    if b.kv_lora_rank:
        return 2 * (b.kv_lora_rank + b.qk_rope_head_dim)
    if kind == FULL and b.global_head_dim:
        return 2 * b.global_kv_heads * (b.global_head_dim + (b.global_v_head_dim or b.global_head_dim))
    return 2 * b.kv_heads * (b.head_dim + b.value_dim)


def whole_head_dim(hidden: int, heads: int) -> int:
    """hidden/heads; a UsageError that asks for head_dim when it is not whole."""
    if hidden % heads:
        raise UsageError(f"hidden {hidden} is not a multiple of {heads} heads; give head_dim, such as 128")
    return hidden // heads


def check_shape(b: Blueprint) -> None:
    """Raise one UsageError for what does not fit together in `b`."""
    problems = []
    if b.heads and b.heads % b.kv_heads:
        problems.append(f"{b.heads} heads cannot be shared by {b.kv_heads} key-value heads; kv_heads must divide heads")
    if b.experts and b.experts_per_token > b.experts:
        problems.append(
            f"{b.experts_per_token} experts per token of {b.experts} experts; at most {b.experts} are there"
        )
    if problems:
        raise UsageError(*problems)
