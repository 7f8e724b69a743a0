"""Parameters of the vision towers of multimodal wrappers, with their projection into the language model."""

from __future__ import annotations

import math
from typing import Any

from gpucalc.models.blueprint import Tower
from gpucalc.models.huggingface.reader import Reader
from gpucalc.models.parameters import Weights, attention, linear, mlp, norm, pre_norm_encoder


def vision_weights(r: Reader, outer: dict[str, Any], text_hidden: int) -> Weights | None:
    """The vision tower described by `r`, or None when its kind is not known. Problems are raised."""
    kind = r.text("model_type")
    wrapper = str(outer.get("model_type", ""))
    if kind in {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}:
        weights = _qwen(r)
    elif wrapper in {"qwen2_vl", "qwen2_5_vl"}:
        weights = _qwen2(r, text_hidden, newer=wrapper == "qwen2_5_vl")
    elif kind == "siglip_vision_model" and wrapper == "gemma3":
        weights = _gemma3(r, text_hidden)
    elif kind == "gemma4_vision":
        weights = _gemma4(r, text_hidden)
    elif kind == "clip_vision_model" and wrapper == "llava":
        weights = _llava_clip(r, text_hidden)
    elif kind == "pixtral" and wrapper == "mistral3":
        weights = _pixtral(r, outer, text_hidden)
    elif kind == "llama4_vision_model":
        weights = _llama4(r, text_hidden)
    elif wrapper == "kimi_k25":
        weights = _moon(r, text_hidden)
    elif wrapper in {"qwen_vl", "minicpmv"}:
        weights = _resampled(r, text_hidden)
    else:
        return None
    r.check()
    return weights


def _moon(r: Reader, text_hidden: int) -> Weights:
    """MoonViT of Kimi K2.5: LayerNorm and biases everywhere, learned positions in two dimensions, a patch merger."""
    hidden = r.integer("hidden", "vt_hidden_size", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", default=14)
    rows = r.integer("rows", "init_pos_emb_height", required=True) * r.integer(
        "columns", "init_pos_emb_width", required=True
    )
    tower = pre_norm_encoder(
        hidden,
        r.integer("ffn", "vt_intermediate_size", required=True),
        r.integer("layers", "vt_num_hidden_layers", required=True),
        patch_bias=True,
        patch_elements=3 * patch * patch,
    )
    kernel = r.find("merge_kernel_size")[1]
    sides = kernel if isinstance(kernel, list) and all(isinstance(n, int) for n in kernel) else [2, 2]
    wide = math.prod(sides) * hidden
    merger = norm(hidden, 2).plus(linear(wide, wide, True), linear(wide, text_hidden, True))
    return tower.plus(Weights(0, rows * hidden), norm(hidden, 2), merger)


def vision_tower(r: Reader, outer: dict[str, Any]) -> Tower:
    """The shape of a vision tower, for what it computes; `r` is read by the names that configurations use."""
    hidden = r.integer("tower", "embed_dim", "vt_hidden_size", "hidden_size", "width", required=True)
    ratio = r.integer("tower ratio", "mlp_ratio", default=4)
    return Tower(
        hidden,
        r.integer("tower ffn", "intermediate_size", "vt_intermediate_size", derived=ratio * hidden),
        r.integer("tower layers", "num_hidden_layers", "vt_num_hidden_layers", "depth", "layers", required=True),
        r.integer("tower patch", "patch_size", "spatial_patch_size", default=14),
        r.integer("tower merge", "spatial_merge_size", derived=int(outer.get("spatial_merge_size") or 1)),
        r.integer("tower image", "image_size", minimum=0, default=0),
        r.integer("tower tokens", "tokens_per_image", minimum=0, derived=_tokens(outer)),
    )


def _tokens(outer: dict[str, Any]) -> int:
    """Tokens that a wrapper states for a picture, or its class does; 0 where they follow the patches."""
    usual = GEMMA3_TOKENS if outer.get("model_type") == "gemma3" else 0
    return int(outer.get("mm_tokens_per_image") or usual)


GEMMA3_TOKENS = 256  # the default of its configuration class


def _resampled(r: Reader, text_hidden: int) -> Weights:
    """Qwen-VL and MiniCPM-V: an image encoder, and cross attention of learned queries into the language model."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    positions = r.integer("positions", "num_position_embeddings", required=True)
    queries = r.integer("queries", "tokens_per_image", required=True)
    layers = r.integer("layers", "num_hidden_layers", required=True)
    bias = r.flag("patch_bias", "patch_bias", default=False)
    norms = r.integer("norms", "outer_norms", default=2)
    tower = pre_norm_encoder(
        hidden, r.integer("ffn", "intermediate_size", required=True), layers, bias, 3 * patch * patch
    )
    resampler = attention(text_hidden, 1, 1, text_hidden, text_hidden, qkv_bias=True, out_bias=True).plus(
        linear(hidden, text_hidden), linear(text_hidden, text_hidden), norm(text_hidden, 2).times(3)
    )
    return tower.plus(Weights(0, positions * hidden + queries * text_hidden), norm(hidden, 2).times(norms), resampler)


def _qwen2(r: Reader, text_hidden: int, newer: bool) -> Weights:
    """Qwen2-VL (LayerNorm, plain MLP) and Qwen2.5-VL (RMSNorm, gated MLP with biases), one merger."""
    hidden = r.integer("hidden", "hidden_size" if newer else "embed_dim", required=True)
    merge = r.integer("merge", "spatial_merge_size", default=2) ** 2
    patch = r.integer("patch", "patch_size", "spatial_patch_size", default=14)
    ratio = 1 if newer else r.integer("ratio", "mlp_ratio", default=4)
    width = r.integer("ffn", "intermediate_size", required=True) if newer else ratio * hidden
    terms = 1 if newer else 2
    block = attention(hidden, 1, 1, hidden, hidden, qkv_bias=True, out_bias=True).plus(
        mlp(hidden, width, gated=newer, bias=True), norm(hidden, terms).times(2)
    )
    temporal = r.integer("temporal", "temporal_patch_size", default=2)
    wide = merge * hidden
    return block.times(r.integer("layers", "depth", required=True)).plus(
        linear(3 * temporal * patch * patch, hidden),
        norm(hidden, terms),
        linear(wide, wide, True),
        linear(wide, text_hidden, True),
    )


def _pixtral(r: Reader, outer: dict[str, Any], text_hidden: int) -> Weights:
    """Mistral 3: a Pixtral encoder (RMSNorm, gated, no biases), a patch merger and a two-layer projection."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    merge = Reader(outer, r.label).integer("merge", "spatial_merge_size", default=2) ** 2
    bias = outer.get("multimodal_projector_bias") is True
    block = attention(hidden, 1, 1, hidden, hidden).plus(
        mlp(hidden, r.integer("ffn", "intermediate_size", required=True), gated=True), norm(hidden).times(2)
    )
    return block.times(r.integer("layers", "num_hidden_layers", required=True)).plus(
        linear(3 * patch * patch, hidden),
        norm(hidden).times(2),
        linear(merge * hidden, hidden),
        linear(hidden, text_hidden, bias),
        linear(text_hidden, text_hidden, bias),
    )


def _llama4(r: Reader, text_hidden: int) -> Weights:
    """Llama 4: a vision transformer, a pixel-shuffle adapter of two layers and a projection, all without biases."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    tokens = (r.integer("image", "image_size", required=True) // patch) ** 2 + 1
    width = r.integer("ffn", "intermediate_size", required=True)
    into = r.integer("projector_in", "projector_input_dim", required=True)
    out = r.integer("projector_out", "projector_output_dim", required=True)
    depth = r.integer("layers", "num_hidden_layers", required=True)
    return pre_norm_encoder(hidden, width, depth, False, 3 * patch * patch).plus(
        Weights(0, hidden * (tokens + 1) + 4 * hidden),
        linear(width, into),
        linear(into, out),
        linear(r.integer("vision_out", "vision_output_dim", required=True), text_hidden),
    )


def _qwen(r: Reader) -> Weights:
    """Qwen3-VL: 3-D patches, learned positions, blocks, one merger and one per deepstack layer."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    merge = r.integer("merge", "spatial_merge_size", required=True) ** 2
    out = r.integer("out", "out_hidden_size", required=True)
    elements = (
        r.integer("channels", "in_channels", default=3)
        * r.integer("temporal", "temporal_patch_size", required=True)
        * patch
        * patch
    )
    depth = r.integer("layers", "depth", required=True)
    blocks = pre_norm_encoder(hidden, r.integer("ffn", "intermediate_size", required=True), depth, True, elements)
    positions = Weights(0, r.integer("positions", "num_position_embeddings", required=True) * hidden)
    wide = merge * hidden
    projection = linear(wide, wide, True).plus(linear(wide, out, True))
    merger = projection.plus(norm(hidden, 2))
    deep = projection.plus(norm(wide, 2)).times(len(r.indices("deepstack_visual_indexes")))
    return blocks.plus(positions, merger, deep)


def _gemma3(r: Reader, text_hidden: int) -> Weights:
    """Gemma 3: a SigLIP encoder, and one normed projection."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    side = r.integer("image", "image_size", required=True) // patch
    layers = r.integer("layers", "num_hidden_layers", required=True)
    tower = pre_norm_encoder(
        hidden, r.integer("ffn", "intermediate_size", required=True), layers, True, 3 * patch * patch
    )
    return tower.plus(Weights(0, side * side * hidden), norm(hidden, 2), linear(hidden, text_hidden), norm(hidden))


def _gemma4(r: Reader, text_hidden: int) -> Weights:
    """Gemma 4: patches without bias, a two-dimensional position table, gated blocks with four norms."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    heads = r.integer("heads", "num_attention_heads", required=True)
    kv_heads = r.integer("kv_heads", "num_key_value_heads", derived=heads)
    head_dim = r.integer("head_dim", "head_dim", derived=hidden // heads)
    patch = r.integer("patch", "patch_size", required=True)
    table = r.integer("positions", "position_embedding_size", default=10_240)
    block = attention(hidden, heads, kv_heads, head_dim, head_dim).plus(
        mlp(hidden, r.integer("ffn", "intermediate_size", required=True), gated=True),
        norm(hidden).times(4),
        norm(2 * head_dim),
    )
    return block.times(r.integer("layers", "num_hidden_layers", required=True)).plus(
        linear(3 * patch * patch, hidden), Weights(0, 2 * table * hidden), linear(hidden, text_hidden)
    )


def _llava_clip(r: Reader, text_hidden: int) -> Weights:
    """LLaVA: a CLIP image encoder and a two-layer projection."""
    hidden = r.integer("hidden", "hidden_size", required=True)
    side = r.integer("image", "image_size", required=True)
    patch = r.integer("patch", "patch_size", required=True)
    layers = r.integer("layers", "num_hidden_layers", required=True)
    tower = pre_norm_encoder(
        hidden, r.integer("ffn", "intermediate_size", required=True), layers, False, 3 * patch * patch
    )
    return tower.plus(
        Weights(0, hidden * ((side // patch) ** 2 + 2) + 4 * hidden),
        linear(hidden, text_hidden, True),
        linear(text_hidden, text_hidden, True),
    )
