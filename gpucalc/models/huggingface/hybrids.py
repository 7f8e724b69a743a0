"""Decoders whose layers differ in kind: state-space and linear-attention hybrids, pruned and mixed-geometry models."""

from __future__ import annotations

from dataclasses import replace

from gpucalc.models.blueprint import DENSE, FULL, LINEAR, MOE, NONE, Blueprint, LinearMixer
from gpucalc.models.huggingface.decoder import KEYS, general_decoder, layer_count
from gpucalc.models.huggingface.families import Family
from gpucalc.models.huggingface.reader import DERIVED, Reader


def mamba(r: Reader, architecture: str, kind: str = "mamba1") -> Blueprint:
    """Mamba: no attention, no feed-forward block, one norm a layer, a constant state."""
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    layers = layer_count(r)
    mixer = None
    if kind == "mamba1":
        wide = hidden * r.integer("expand", "expand", default=2)
        automatic = r.text("time_step_rank") == "auto"
        mixer = LinearMixer(
            "mamba1",
            inner=r.integer("inner", "intermediate_size", "d_inner", derived=wide),
            state=r.integer("state", "state_size", required=True),
            conv=r.integer("conv", "conv_kernel", default=4),
            dt_rank=-(-hidden // 16) if automatic else r.integer("dt_rank", "time_step_rank", derived=-(-hidden // 16)),
            bias=r.flag("use_bias", "use_bias"),
        )
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
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings", default=True),
        norms_per_layer=1,
        linear=mixer,
    )


def mamba_2(r: Reader, architecture: str) -> Blueprint:
    """Mamba-2 alone: one mixer and one norm a layer."""
    base = mamba(r, architecture, kind="mamba2")
    mixer = LinearMixer(
        "mamba2",
        heads=r.integer("mamba_heads", "num_heads", required=True),
        head_dim=r.integer("mamba_head_dim", "head_dim", required=True),
        state=r.integer("state", "state_size", required=True),
        groups=r.integer("groups", "n_groups", required=True),
        conv=r.integer("conv", "conv_kernel", default=4),
        bias=r.flag("use_bias", "use_bias"),
    )
    return replace(base, linear=mixer)


def rwkv(r: Reader, architecture: str) -> Blueprint:
    """RWKV-4: time mixing and channel mixing, both counted as the mixer; LayerNorms, one more before the first."""
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    layers = layer_count(r)
    mixer = LinearMixer(
        "rwkv",
        inner=r.integer("inner", "attention_hidden_size", derived=hidden),
        state=r.integer("ffn_hidden", "intermediate_size", derived=4 * hidden),
    )
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
        max_seq_len=r.integer("max_seq_len", "context_length"),
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings"),
        norm_terms=2,
        embedding_norm=True,
        linear=mixer,
    )


def jamba(r: Reader, architecture: str) -> Blueprint:
    """Jamba: Mamba layers with attention and experts at fixed periods."""
    base = general_decoder(r, Family(moe="ffn"))
    period = r.integer("attn_layer_period", "attn_layer_period", required=True)
    offset = r.integer("attn_layer_offset", "attn_layer_offset", required=True, minimum=0)
    mixer = LinearMixer(
        "mamba1",
        inner=base.hidden * r.integer("expand", "mamba_expand", required=True),
        state=r.integer("state", "mamba_d_state", required=True),
        conv=r.integer("conv", "mamba_d_conv", required=True),
        dt_rank=r.integer("dt_rank", "mamba_dt_rank", derived=-(-base.hidden // 16)),
        inner_norms=True,
        bias=r.flag("mamba_proj_bias", "mamba_proj_bias"),
    )
    mixers = tuple(FULL if (i - offset) % period == 0 else LINEAR for i in range(base.layers))
    return replace(base, mixers=mixers, linear=mixer)


def nemotron_h(r: Reader, architecture: str) -> Blueprint:
    """Nemotron-H: each layer is one mixer (Mamba-2 or attention) or one feed-forward block, with one norm."""
    pattern = r.text("hybrid_override_pattern")
    kinds = {"M": (LINEAR, NONE), "*": (FULL, NONE), "E": (NONE, MOE), "-": (NONE, DENSE)}
    layers = layer_count(r)
    if not pattern or set(pattern) - set(kinds):
        r.problem('hybrid_override_pattern is missing or has letters other than M, *, E and -; such as "MEM*E"')
        pattern = "M"
    elif len(pattern) != layers:
        r.problem(f"hybrid_override_pattern has {len(pattern)} letters for {layers} layers; give one a layer")
    has_experts = "E" in pattern
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    heads = r.integer("heads", *KEYS["heads"], required=True)
    width = r.integer("expert_ffn_hidden", "moe_intermediate_size", required=has_experts)
    bias = r.flag("attention_bias", "attention_bias")
    return Blueprint(
        architecture=architecture,
        hidden=hidden,
        heads=heads,
        kv_heads=r.integer("kv_heads", *KEYS["kv_heads"], derived=heads),
        head_dim=r.integer("head_dim", *KEYS["head_dim"], required=True),
        ffn_hidden=r.integer("ffn_hidden", *KEYS["ffn_hidden"], required="-" in pattern),
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=tuple(kinds[letter][0] for letter in pattern),
        mlps=tuple(kinds[letter][1] for letter in pattern),
        max_seq_len=r.integer("max_seq_len", *KEYS["max_seq_len"]),
        gated_mlp=False,
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=r.flag("mlp_bias", "mlp_bias"),
        experts=r.integer("experts", *KEYS["experts"], required=True) if has_experts else 0,
        experts_per_token=r.integer("experts_per_token", *KEYS["experts_per_token"], required=True)
        if has_experts
        else 0,
        expert_ffn_hidden=width,
        expert_gated=False,
        expert_latent=r.integer("expert_latent", "moe_latent_size", minimum=0),
        shared_expert_ffn_hidden=r.integer("shared_expert_ffn_hidden", "moe_shared_expert_intermediate_size", minimum=0)
        * max(1, r.integer("shared_experts", "n_shared_experts", minimum=0)),
        norms_per_layer=1,
        norm_per_block=True,
        linear=LinearMixer(
            "mamba2",
            heads=r.integer("mamba_heads", "mamba_num_heads", required=True),
            head_dim=r.integer("mamba_head_dim", "mamba_head_dim", required=True),
            state=r.integer("state", "ssm_state_size", "mamba_state_dim", required=True),
            groups=r.integer("groups", "n_groups", "mamba_n_groups", required=True),
            conv=r.integer("conv", "conv_kernel", default=4),
            bias=r.flag("mamba_proj_bias", "mamba_proj_bias", "use_bias"),
        ),
        mtp_layers=r.integer("mtp_layers", *KEYS["mtp_layers"], minimum=0, default=0),
    )


def qwen_next(r: Reader, architecture: str) -> Blueprint:
    """Qwen3-Next and Qwen3.5: gated delta-rule layers, every few layers gated full attention."""
    moe = r.has("num_experts")
    base = general_decoder(
        r,
        Family(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            qk_norm="head",
            moe="own" if moe else "",
            shared_gate=True,
            output_gate=True,
        ),
    )
    mixers = base.mixers
    if not r.has("layer_types"):
        every = r.integer("full_attention_interval", "full_attention_interval", required=True)
        mixers = tuple(FULL if (i + 1) % every == 0 else LINEAR for i in range(base.layers))
    mixer = LinearMixer(
        "delta",
        heads=r.integer("linear_value_heads", "linear_num_value_heads", required=True),
        groups=r.integer("linear_key_heads", "linear_num_key_heads", required=True),
        key_dim=r.integer("linear_key_dim", "linear_key_head_dim", required=True),
        head_dim=r.integer("linear_value_dim", "linear_value_head_dim", required=True),
        conv=r.integer("conv", "linear_conv_kernel_dim", required=True),
    )
    return replace(base, mixers=mixers, linear=mixer)


def deci(r: Reader, architecture: str) -> Blueprint:
    """A Llama pruned block by block (Nemotron-NAS): layers without attention, feed-forward widths that differ."""
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    heads = r.integer("heads", *KEYS["heads"], required=True)
    blocks = r.config.get("block_configs")
    layers = layer_count(r)
    if not isinstance(blocks, list) or len(blocks) != layers or not all(isinstance(b, dict) for b in blocks):
        r.problem(f"block_configs must be a list with one object for each of the {layers} layers")
        blocks = []
    mixers: list[str] = []
    mlps: list[str] = []
    widths: list[int] = []
    groups: set[int] = set()
    for index, block in enumerate(blocks):
        one = Reader(block, f"{r.label}: block_configs[{index}]")
        skipped = one.find("attention.no_op")[1] is True
        if one.find("attention.replace_with_linear")[1] is True or one.find("ffn.replace_with_linear")[1] is True:
            r.problem(f"block_configs[{index}]: replace_with_linear is not supported; known are full blocks and no_op")
        mixers.append(NONE if skipped else FULL)
        if not skipped:
            groups.add(one.integer("group", "attention.n_heads_in_group", required=True))
        skipped = one.find("ffn.no_op")[1] is True
        mlps.append(NONE if skipped else DENSE)
        if not skipped:
            widths.append(_deci_width(one, hidden))
        r.problems += [f"block_configs[{index}]: {problem}" for problem in one.problems]
    if len(groups) > 1:
        r.problem(f"block_configs mix groups of {sorted(groups)} heads; only one group size is supported")
    group = min(groups, default=1)
    r.origin["kv_heads"] = r.origin["ffn_hidden"] = DERIVED
    bias = r.flag("attention_bias", "attention_bias")
    return Blueprint(
        architecture=architecture,
        hidden=hidden,
        heads=heads,
        kv_heads=max(heads // group, 1),
        head_dim=r.integer("head_dim", *KEYS["head_dim"], derived=hidden // max(heads, 1)),
        ffn_hidden=max(widths, default=0),
        ffn_widths=tuple(widths),
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=tuple(mixers),
        mlps=tuple(mlps),
        max_seq_len=r.integer("max_seq_len", *KEYS["max_seq_len"]),
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=r.flag("mlp_bias", "mlp_bias"),
        norm_per_block=True,
    )


def _deci_width(one: Reader, hidden: int) -> int:
    """Width of a block: 2·mult·hidden/3 rounded up to a multiple of 256, the rule of the model's own code."""
    _, factor = one.find("ffn.ffn_mult")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1000:
        one.problem("ffn_mult must be a positive number, such as 5.25")
        return 1
    width = int(2 * factor * hidden / 3)
    return -(-width // 256) * 256
