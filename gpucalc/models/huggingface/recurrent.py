"""Newer hybrids: Mamba-2 beside attention (Granite, Bamba, Falcon-H1, Zamba2), short convolutions (LFM2), delta rules
with a decay a channel (Kimi-Linear, Ling 3), and RWKV-7.

Counts as those of the modules of transformers 5.24; Ling 3 and RWKV-7 by the closed form of their released code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucalc.models.blueprint import FULL, LINEAR, MOE, NONE, Blueprint, LinearMixer
from gpucalc.models.huggingface.decoder import KEYS, general_decoder, layer_count
from gpucalc.models.huggingface.families import Family
from gpucalc.models.huggingface.mixtures import renamed
from gpucalc.models.huggingface.reader import Reader, shown
from gpucalc.models.parameters import Weights, linear, norm

_BIASED = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}


def _mamba_2(r: Reader, heads: str = "mamba_n_heads", size: str = "mamba_d_head", **more: Any) -> LinearMixer:
    return LinearMixer(
        "mamba2",
        heads=r.integer("mamba_heads", heads, required=True),
        head_dim=r.integer("mamba_head_dim", size, required=True),
        state=r.integer("state", "mamba_d_state", required=True),
        groups=r.integer("groups", "mamba_n_groups", "mamba_ngroups", required=True),
        conv=r.integer("conv", "mamba_d_conv", default=4),
        bias=r.flag("mamba_proj_bias", "mamba_proj_bias"),
        **more,
    )


def granite_hybrid(r: Reader, architecture: str) -> Blueprint:
    """Granite 4: Mamba-2 or attention, then a shared feed-forward block, beside experts where there are any."""
    experts = r.integer("experts", "num_local_experts", minimum=0, default=0)
    shared = r.find("shared_intermediate_size")[1]
    family = Family(**_BIASED, tied=True, moe="ffn" if experts else "")  # type: ignore[arg-type]
    names = {} if experts else {"intermediate_size": shared, "num_local_experts": 0}
    base = general_decoder(renamed(r, **names), family)
    if LINEAR not in base.mixers:
        return base  # the keys of Mamba stand unused in models of attention alone
    return replace(base, linear=_mamba_2(r))


def bamba(r: Reader, architecture: str) -> Blueprint:
    """Bamba: Mamba-2, with attention on a few listed layers, and a gated block on each."""
    base = general_decoder(r, Family(**_BIASED, mlp_bias="mlp_bias"))  # type: ignore[arg-type]
    attention = r.indices("attn_layer_indices")
    mixers = tuple(FULL if i in attention else LINEAR for i in range(base.layers))
    return replace(base, mixers=mixers, linear=_mamba_2(r))


def falcon_h1(r: Reader, architecture: str) -> Blueprint:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    base = general_decoder(r, Family(**_BIASED, mlp_bias="mlp_bias"))  # type: ignore[arg-type]
    mixer = _mamba_2(r, inner_norms=r.flag("mamba_rms_norm", "mamba_rms_norm"))
    inner, width = r.integer("inner", "mamba_d_ssm", derived=mixer.heads * mixer.head_dim), mixer.heads * mixer.head_dim
    if inner != width:
        r.problem(f"mamba_d_ssm {inner} is not mamba_n_heads times mamba_d_head, {width}")
    return replace(base, linear=replace(mixer, plain=not mixer.inner_norms), linear_beside=True)


def lfm_2(r: Reader, architecture: str) -> Blueprint:
    """LFM2: short gated convolutions, and attention on some layers; with experts after the leading layers."""
    moe = architecture == "Lfm2MoeForCausalLM"
    layers = layer_count(renamed(r, layer_types=[]))
    kinds = r.find("layer_types")[1]
    if isinstance(kinds, list):
        attention = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
    else:
        attention = set(r.indices("full_attn_idxs"))
    names: dict[str, Any] = {
        "layer_types": ["attention" if i in attention else "linear_attention" for i in range(layers)],
        "intermediate_size": _lfm_width(r),
        "tie_word_embeddings": r.find("tie_word_embeddings", "tie_embedding")[1],
        "first_k_dense_replace": r.find("num_dense_layers")[1],
    }
    base = general_decoder(renamed(r, **names), Family(tied=True, qk_norm="head", moe="own" if moe else ""))
    length = r.integer("conv", "conv_L_cache", required=True)
    return replace(
        base, linear=LinearMixer("conv", inner=base.hidden, conv=length, bias=r.flag("conv_bias", "conv_bias"))
    )


def _lfm_width(r: Reader) -> int:
    """The width of a feed-forward block: two thirds of the stated one, rounded up, where the file says so."""
    width = r.integer("ffn_hidden", "block_ff_dim", *KEYS["ffn_hidden"], required=True)
    if not r.flag("adjusted", "block_auto_adjust_ff_dim"):
        return width
    factor = r.find("block_ffn_dim_multiplier")[1]
    scale = float(factor) if isinstance(factor, int | float) and not isinstance(factor, bool) else 1.0
    step = r.integer("multiple", "block_multiple_of", default=256)
    return -(-int(scale * int(2 * width / 3)) // step) * step


def kimi_linear(r: Reader, architecture: str) -> Blueprint:
    """Kimi-Linear: a delta rule with a decay a channel, latent attention on the listed layers, and experts."""
    settings = r.find("linear_attn_config")[1]
    if not isinstance(settings, dict):
        r.problem("linear_attn_config is missing; it says which layers have attention, from 1 on")
        settings = {}
    one = Reader(settings, f"{r.label}: linear_attn_config")
    full = one.indices("full_attn_layers")
    names = {"n_shared_experts": r.find("num_shared_experts")[1]}
    base = general_decoder(renamed(r, **names), Family(moe="own", mla=True))
    mixers = tuple(FULL if i + 1 in full else LINEAR for i in range(base.layers))
    size = one.integer("kda_head_dim", "head_dim", required=True)
    mixer = LinearMixer(
        "kda",
        heads=one.integer("kda_heads", "num_heads", required=True),
        head_dim=size,
        conv=one.integer("conv", "short_conv_kernel_size", default=4),
        dt_rank=size,
    )
    r.problems += one.problems
    return replace(base, mixers=mixers, linear=mixer)


def bailing_hybrid(r: Reader, architecture: str) -> Blueprint:
    """Ling 3: as Kimi-Linear, with decay and gate of full rank, and a gate a head on the latent attention."""
    every = r.integer("group", "layer_group_size", default=6)
    names = {"n_shared_experts": r.find("num_shared_experts")[1], "layer_types": None}
    found = renamed(r, **names)
    found.config.pop("layer_types", None)
    base = general_decoder(found, Family(moe="own", mla=True, **_BIASED))  # type: ignore[arg-type]
    mixers = tuple(FULL if (i + 1) % every == 0 else LINEAR for i in range(base.layers))
    mixer = LinearMixer(
        "kda",
        heads=r.integer("kda_heads", "linear_num_heads", required=True),
        head_dim=r.integer("kda_head_dim", "linear_head_dim", required=True),
        conv=r.integer("conv", "linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
    )
    gates = Weights(base.hidden * base.heads * mixers.count(FULL))
    return replace(base, mixers=mixers, linear=mixer, extra=gates)


def zamba_2(r: Reader, architecture: str) -> Blueprint:
    """Zamba2: Mamba-2 on every layer; hybrid ones call shared attention blocks on the stream beside the embedding."""
    kinds = r.find("layers_block_type")[1]
    layers = layer_count(r)
    if not isinstance(kinds, list) or len(kinds) != layers:
        r.problem(f"layers_block_type must name mamba or hybrid for each of the {layers} layers")
        kinds = ["mamba"] * layers
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    heads = r.integer("heads", *KEYS["heads"], required=True)
    size = r.integer("head_dim", "attention_head_dim", derived=2 * hidden // max(heads, 1))
    width = r.integer("ffn_hidden", *KEYS["ffn_hidden"], required=True)
    rank = r.integer("adapter_rank", "adapter_rank", default=128)
    blocks = r.integer("shared_blocks", "num_mem_blocks", default=1)
    hybrid, wide, inner = kinds.count("hybrid"), 2 * hidden, heads * size
    shared = norm(wide).plus(
        linear(wide, inner).times(3),
        linear(inner, hidden),
        norm(hidden),
        linear(hidden, 2 * width),
        linear(width, hidden),
    )
    own = linear(hidden, hidden).plus(linear(hidden, rank), linear(rank, 2 * width))
    if r.flag("attention_adapter", "use_shared_attention_adapter"):
        own = own.plus(linear(wide, rank).plus(linear(rank, inner)).times(3))
    return Blueprint(
        architecture=architecture,
        hidden=hidden,
        heads=heads,
        kv_heads=r.integer("kv_heads", *KEYS["kv_heads"], derived=heads),
        head_dim=size,
        ffn_hidden=width,
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=tuple(FULL if kind == "hybrid" else LINEAR for kind in kinds),
        mlps=(NONE,) * layers,
        max_seq_len=r.integer("max_seq_len", *KEYS["max_seq_len"]),
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings", default=True),
        norms_per_layer=1,
        linear=_mamba_2(r, "n_mamba_heads", "mamba_headdim"),
        linear_beside=True,
        attention_weights=Weights(),
        # Shared weights count once; a hybrid layer has a projection and adapters of its own.
        extra=shared.times(blocks).plus(own.times(hybrid)),
    )


def rwkv_7(r: Reader, architecture: str) -> Blueprint:
    """RWKV-7: time mixing with low-rank decay, learning rate and gate, and channel mixing; LayerNorms."""
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    layers = layer_count(r)
    ratio = r.find("hidden_ratio")[1]
    derived = (
        int(hidden * float(ratio)) if isinstance(ratio, int | float) and not isinstance(ratio, bool) else 4 * hidden
    )
    mixer = LinearMixer(
        "rwkv7",
        inner=r.integer("ffn_hidden", "intermediate_size", derived=derived),
        head_dim=r.integer("head_dim", "head_dim", default=64),
        heads=hidden // max(1, r.integer("head_dim", "head_dim", default=64)),
        dt_rank=r.integer("decay_rank", "decay_low_rank_dim", required=True),
        state=r.integer("rate_rank", "a_low_rank_dim", required=True),
        groups=r.integer("value_rank", "v_low_rank_dim", required=True),
        key_dim=r.integer("gate_rank", "gate_low_rank_dim", required=True),
    )
    # The first layer has no mixing of values; before it stands one more norm.
    first = 2 * hidden * mixer.groups + hidden
    return Blueprint(
        architecture=architecture,
        hidden=hidden,
        heads=0,
        kv_heads=0,
        head_dim=0,
        ffn_hidden=0,
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=(LINEAR,) * layers,
        mlps=(NONE,) * layers,
        max_seq_len=r.integer("max_seq_len", *KEYS["max_seq_len"], "context_length"),
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings"),
        norm_terms=2,
        embedding_norm=True,
        linear=mixer,
        extra=Weights(0, -first),
    )


def deepseek_4(r: Reader, architecture: str) -> Blueprint:
    """DeepSeek-V4: one key that is its value, compressed along the sequence by layer; streams mixed by layer.

    compress_ratios says how many tokens an entry of a layer's cache stands for; 0 is the window alone.
    """
    layers = layer_count(r)
    ratios = r.find("compress_ratios")[1]
    if not isinstance(ratios, list) or len(ratios) < layers or not all(isinstance(x, int) for x in ratios):
        r.problem(f"compress_ratios must be a list with 0, 4 or 128 for each of the {layers} layers")
        ratios = [0] * layers
    ratios = [ratio for ratio in ratios[:layers]]  # what follows is the prediction of further tokens
    if set(ratios) - {0, 4, 128}:
        r.problem(f"compress_ratios holds {shown(sorted(set(ratios) - {0, 4, 128})[0])}; known are 0, 4 and 128")
    found = renamed(r, sliding_window=None)
    found.config = {k: v for k, v in found.config.items() if k not in {"sliding_window", "q_lora_rank"}}
    base = general_decoder(found, Family(moe="own"))
    h, size, heads = base.hidden, base.head_dim, base.heads
    a = r.integer("q_lora_rank", "q_lora_rank", required=True)
    groups = r.integer("o_groups", "o_groups", required=True)
    rank = r.integer("o_lora_rank", "o_lora_rank", required=True)
    ih = r.integer("index_heads", "index_n_heads", required=True)
    width = r.integer("index_dim", "index_head_dim", required=True)
    streams = r.integer("hc_mult", "hc_mult", default=4)
    attention = linear(h, a).plus(
        norm(a), linear(a, heads * size), linear(h, size), norm(size), Weights(0, heads),
        linear(heads * size, rank), linear(groups * rank, h),
    )  # fmt: skip
    long = linear(h, size).times(2).plus(Weights(0, 128 * size), norm(size))
    index = (
        linear(h, 2 * width).times(2).plus(Weights(0, 4 * 2 * width), norm(width), linear(a, ih * width), linear(h, ih))
    )
    short = linear(h, 2 * size).times(2).plus(Weights(0, 4 * 2 * size), norm(size), index)
    mix = streams * streams + 2 * streams
    hyper = Weights(mix * streams * h, mix + 3).times(2 * layers).plus(Weights(streams * streams * h, streams + 1))
    extra = long.times(ratios.count(128)).plus(short.times(ratios.count(4)), hyper)
    cached = size * sum(1 / ratio for ratio in ratios if ratio) + width * ratios.count(4) / 4
    return replace(
        base,
        mlps=(MOE,) * layers,
        attention_weights=attention,
        extra=extra,
        cache_elements=cached,
        q_lora_rank=a,
    )


def gemma_4(r: Reader, architecture: str) -> Blueprint:
    """Gemma 4: windowed and full layers of different geometry; experts beside a dense block; or, in the small ones,
    a vector a layer looked up for each token, and last layers that use the keys and values of earlier ones."""
    moe = r.flag("enable_moe_block", "enable_moe_block")
    base = general_decoder(r, Family(tied=True, norms=7 if moe else 4, qk_norm="head", moe="own" if moe else ""))
    base = replace(
        base,
        global_head_dim=r.integer("global_head_dim", "global_head_dim", derived=base.head_dim),
        global_kv_heads=r.integer("global_kv_heads", "num_global_key_value_heads", derived=base.kv_heads),
        global_value_is_key=r.flag("attention_k_eq_v", "attention_k_eq_v"),
        dense_beside_experts=moe,
        router_extra=base.hidden + base.experts if moe else 0,
    )
    h, layers = base.hidden, base.layers
    p = r.integer("per_layer", "hidden_size_per_layer_input", minimum=0)
    if p:
        rows = r.integer("per_layer_vocab", "vocab_size_per_layer_input", derived=base.vocab)
        once = Weights(h * layers * p, rows * layers * p + p)
        each = linear(h, p).plus(linear(p, h), norm(h))
        base = replace(base, extra=once.plus(each.times(layers)))
    shared = r.integer("kv_shared", "num_kv_shared_layers", minimum=0)
    if not shared:
        return base
    if shared >= layers:
        r.problem(f"num_kv_shared_layers {shared} leaves none of the {layers} layers with keys; at most {layers - 1}")
        return base
    wide = r.flag("double_wide", "use_double_wide_mlp")
    widths = tuple(base.ffn_hidden * (2 if wide and i >= layers - shared else 1) for i in range(layers))
    return replace(base, ffn_widths=widths, shared_cache_layers=shared)
