"""The general decoder: the blueprint of a causal transformer by the keys of its configuration and its family's rules.

Structure is read, never guessed: a missing width or a head count that does not divide is an error that names it.
Class defaults are used only for switches (biases, tying, windows) and for widths that the class itself defines by a
rule.
"""

from __future__ import annotations

from typing import Any

from gpucalc.models.blueprint import DENSE, FULL, LINEAR, MOE, WINDOW, Blueprint
from gpucalc.models.huggingface.families import Family
from gpucalc.models.huggingface.reader import DEFAULT, DERIVED, READ, Reader, shown

KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_query_groups",
        "attn_config.kv_n_heads",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "ffn_hidden": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_config.ffn_hidden_size"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "max_seq_len": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "ffn_config.moe_num_experts"),
    "experts_per_token": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "ffn_config.moe_top_k",
    ),
    "expert_ffn_hidden": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
}
_LAYER_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": WINDOW,
    "chunked_attention": WINDOW,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
}


def general_decoder(reader: Reader, family: Family) -> Blueprint:
    """The blueprint of a decoder whose class is a row of the family table."""
    r = reader
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    heads = r.integer("heads", *KEYS["heads"], required=True)
    layers = layer_count(r)
    kv_heads = _kv_heads(r, family, heads)
    latent: dict[str, Any] = _latent(r) if family.mla else {}
    head_dim = latent.pop("head_dim", 0) or _head_dim(r, hidden, heads)
    experts = _experts(r, family)
    ffn_hidden = _ffn_hidden(r, family, hidden, experts) // (2 if family.ffn_doubled else 1)
    mlps = _mlps(r, layers, bool(experts.get("experts")))
    max_seq_len = r.integer("max_seq_len", *KEYS["max_seq_len"])
    window, mixers = _mixers(r, family, layers)
    qk_norm = family.qk_norm
    if family.qk_norm_key:
        qk_norm = qk_norm if r.flag("qk_norm", family.qk_norm_key, default=family.qk_norm_default) else ""
    if r.config.get("qk_layernorm") is True:
        r.problem("qk_layernorm is true; this class is known only without it")
    if r.config.get("no_bias") is False:
        r.problem("no_bias is false; only the released form without biases is known, so give no_bias: true")
    return Blueprint(
        architecture="",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=mixers,
        mlps=mlps,
        max_seq_len=max_seq_len,
        gated_mlp=family.gated,
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings", default=family.tied),
        window=window,
        qkv_bias=_bias(r, family, family.qkv_bias),
        out_bias=_bias(r, family, family.out_bias),
        output_gate=family.output_gate,
        qk_norm=qk_norm,
        sinks=family.sinks,
        mlp_bias=_bias(r, family, family.mlp_bias),
        expert_bias=family.expert_bias,
        router_bias=family.router_bias,
        shared_expert_gate=family.shared_gate,
        norm_terms=family.norm_terms,
        norms_per_layer=_norms(r, family),
        final_norm=family.final_norm and r.config.get("do_layer_norm_before") is not False,
        positions=max_seq_len + family.positions if family.positions >= 0 else 0,
        embedding_width=r.integer("embedding_width", "word_embed_proj_dim"),
        embedding_norm=family.embedding_norm,
        head_bias=family.head_bias,
        index_heads=r.integer("index_heads", "index_n_heads", required=True) if family.indexer else 0,
        index_dim=r.integer("index_dim", "index_head_dim", required=True) if family.indexer else 0,
        mtp_layers=r.integer("mtp_layers", *KEYS["mtp_layers"], minimum=0, default=0),
        **experts,
        **latent,
    )


def layer_count(r: Reader) -> int:
    """The number of layers; from the pattern when the configuration has only that."""
    derived = None
    for key in ("hybrid_override_pattern", "layers_block_type", "layer_types", "block_configs"):
        if r.has(key) and isinstance(r.config[key], (str, list)):
            derived = len(r.config[key])
            break
    return r.integer("layers", *KEYS["layers"], derived=derived, required=True)


def _bias(r: Reader, family: Family, rule: bool | str) -> bool:
    if isinstance(rule, bool):
        return rule
    return r.flag(rule, rule, default=family.bias_default if rule != "mlp_bias" else False)


def _kv_heads(r: Reader, family: Family, heads: int) -> int:
    if r.config.get("multi_query_attention") is False:
        r.origin["kv_heads"] = DERIVED
        return heads
    old_style = family.legacy_multi_query and r.flag("multi_query", "multi_query", default=True)
    if old_style and not _new_falcon(r):
        r.origin["kv_heads"] = DERIVED
        return 1
    kv_heads = r.integer("kv_heads", *KEYS["kv_heads"], derived=heads)
    if kv_heads and heads % kv_heads:
        legal = [n for n in range(1, heads + 1) if heads % n == 0]
        best = min(legal, key=lambda n: (abs(n - kv_heads), n))
        r.problem(f"{heads} heads cannot be shared by {kv_heads} key-value heads; the nearest legal number is {best}")
    return kv_heads


def _head_dim(r: Reader, hidden: int, heads: int) -> int:
    if r.has(*KEYS["head_dim"]):
        return r.integer("head_dim", *KEYS["head_dim"])
    if heads and hidden % heads and hidden > 1:
        r.problem(
            f"hidden {hidden} is not a multiple of {heads} heads and head_dim is missing; give head_dim, such as 128"
        )
        return 1
    return r.integer("head_dim", *KEYS["head_dim"], derived=hidden // max(heads, 1))


def _new_falcon(r: Reader) -> bool:
    """Whether a Falcon is of the newer kind; files from before the switch existed say so by their type."""
    old_file = r.text("model_type") == "RefinedWeb"
    return r.flag("new_decoder_architecture", "new_decoder_architecture", default=old_file)


def _norms(r: Reader, family: Family) -> int:
    """Norms of a layer; with attention and MLP in parallel, Falcon's older layers share one."""
    if not family.falcon_norms:
        return family.norms
    if _new_falcon(r):
        return r.integer("norms", "num_ln_in_parallel_attn", default=2)
    return 1 if r.flag("parallel_attn", "parallel_attn", default=True) else 2


def _latent(r: Reader) -> dict[str, Any]:
    nope = r.integer("qk_nope_head_dim", "qk_nope_head_dim", required=True)
    rope = r.integer("qk_rope_head_dim", "qk_rope_head_dim", required=True)
    r.origin["head_dim"] = DERIVED
    return {
        "head_dim": nope + rope,
        "q_lora_rank": r.integer("q_lora_rank", "q_lora_rank", minimum=0),
        "kv_lora_rank": r.integer("kv_lora_rank", "kv_lora_rank", required=True),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": r.integer("v_head_dim", "v_head_dim", required=True),
    }


def _experts(r: Reader, family: Family) -> dict[str, Any]:
    key, count = r.find(*KEYS["experts"])
    if not family.moe:
        if key and count not in (0, 1):
            r.problem(f"{key} is {shown(count)}, but this class has no experts; name the class that has them")
        return {}
    if not r.has(*KEYS["experts"]) and family.mla:  # DeepSeek classes without experts are dense
        return {}
    experts = r.integer("experts", *KEYS["experts"], required=True)
    found = {
        "experts": experts,
        "experts_per_token": r.integer("experts_per_token", *KEYS["experts_per_token"], required=True),
    }
    if found["experts_per_token"] > experts:
        r.problem(f"{found['experts_per_token']} experts per token of {experts} experts; at most {experts} are there")
    own = KEYS["expert_ffn_hidden"] if family.moe == "own" else KEYS["ffn_hidden"]
    width = found["expert_ffn_hidden"] = r.integer("expert_ffn_hidden", *own, required=True)
    if r.has("shared_expert_intermediate_size", "shared_intermediate_size"):
        found["shared_expert_ffn_hidden"] = r.integer(
            "shared_expert_ffn_hidden", "shared_expert_intermediate_size", "shared_intermediate_size", minimum=0
        )
    elif r.has("interleave_moe_layer_step"):
        found["shared_expert_ffn_hidden"] = width  # Llama 4: one shared expert beside the routed ones
        r.origin["shared_expert_ffn_hidden"] = DERIVED
    else:
        found["shared_expert_ffn_hidden"] = width * r.integer("shared_experts", "n_shared_experts", minimum=0)
        r.origin["shared_expert_ffn_hidden"] = DERIVED if r.has("n_shared_experts") else DEFAULT
    return found


def _ffn_hidden(r: Reader, family: Family, hidden: int, experts: dict[str, Any]) -> int:
    if r.has("intermediate_size_mlp"):
        return r.integer("ffn_hidden", "intermediate_size_mlp")
    if family.moe == "ffn" and experts:
        r.origin["ffn_hidden"] = r.origin.get("expert_ffn_hidden", READ)
        return experts["expert_ffn_hidden"]
    derived = None
    if family.ffn_rule:
        derived = hidden * r.integer("expansion_ratio", "expansion_ratio", default=family.ffn_rule)
    optional = bool(experts) and not r.has(*KEYS["ffn_hidden"])
    return r.integer("ffn_hidden", *KEYS["ffn_hidden"], derived=derived, required=not optional)


def _mlps(r: Reader, layers: int, has_experts: bool) -> tuple[str, ...]:
    """Which layers hold experts."""
    if not has_experts:
        return (DENSE,) * layers
    leading = r.integer("first_k_dense_replace", "first_k_dense_replace", minimum=0, default=0)
    every = r.integer("moe_layer_freq", "moe_layer_freq", default=1)
    step = r.integer("moe_step", "interleave_moe_layer_step", "decoder_sparse_step", default=1)
    period = r.integer("expert_layer_period", "expert_layer_period", default=1)
    offset = r.integer("expert_layer_offset", "expert_layer_offset", minimum=0, default=0)
    dense = r.indices("mlp_only_layers")
    return tuple(
        MOE
        if i >= leading and i % every == 0 and (i + 1) % step == 0 and (i - offset) % period == 0 and i not in dense
        else DENSE
        for i in range(layers)
    )


def _mixers(r: Reader, family: Family, layers: int) -> tuple[int, tuple[str, ...]]:
    """The window, and for every layer whether its attention is full or windowed."""
    window_key = "attention_chunk_size" if r.has("attention_chunk_size") else "sliding_window"
    if "sliding_window" in r.config and r.config["sliding_window"] is None and window_key == "sliding_window":
        window = 0
    else:
        default = 0 if "use_sliding_window" in r.config else family.window_default
        window = r.integer("window", window_key, default=default, minimum=0)
    if r.config.get("use_sliding_window") is False:
        window = 0
    words = r.names("layer_types", _LAYER_TYPES)
    if words:
        if len(words) != layers:
            r.problem(f"layer_types has {len(words)} entries for {layers} layers; give one a layer")
        return (window if WINDOW in words else 0), words
    if not window:
        return 0, (FULL,) * layers
    pattern = r.integer("window_pattern", "sliding_window_pattern", default=family.pattern, minimum=0)
    if pattern:
        mixers = tuple(FULL if (i + 1) % pattern == 0 else WINDOW for i in range(layers))
    elif r.config.get("use_sliding_window") is True:
        first = r.integer("max_window_layers", "max_window_layers", minimum=0, default=layers)
        mixers = tuple(WINDOW if i >= first else FULL for i in range(layers))
    else:
        longest = r.integer("max_seq_len", *KEYS["max_seq_len"])
        mixers = (WINDOW if not longest or window < longest else FULL,) * layers
    return (window if WINDOW in mixers else 0), mixers
