"""Decoders whose configuration names its parts in words of its own: ERNIE, Hunyuan, Bailing, LongCat, Step, MiMo.

Each builder writes the configuration in the general decoder's words and leaves the rest to it; what has no place there
is counted beside. Counts as those of the modules of transformers 5.24, or of the released code where it has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucalc.models.blueprint import DENSE, FULL, MOE, WINDOW, Blueprint
from gpucalc.models.huggingface.decoder import KEYS, general_decoder, layer_count
from gpucalc.models.huggingface.families import Family
from gpucalc.models.huggingface.reader import Reader, shown
from gpucalc.models.parameters import Weights, linear, norm, sparse_indexer


def renamed(r: Reader, **keys: Any) -> Reader:
    """A reader of the same configuration in which some keys stand under the general decoder's names.

    What the two record is shared. A value of None leaves a key as it is.
    """
    found = Reader({**r.config, **{name: value for name, value in keys.items() if value is not None}}, r.label)
    found.origin, found.problems, found.warnings = r.origin, r.problems, r.warnings
    return found


def first(r: Reader, key: str) -> Any:
    """The one value of a key that may be a list with an entry a layer; a problem where the entries differ."""
    value = r.find(key)[1]
    if not isinstance(value, list):
        return value
    if len({str(item) for item in value}) > 1:
        r.problem(f"{key} differs from layer to layer; only one value for all is counted")
    return value[0] if value else None


def ernie(r: Reader, architecture: str) -> Blueprint:
    """ERNIE 4.5: Llama with one switch for all biases, tied; mixtures between two layer numbers."""
    moe = architecture == "Ernie4_5_MoeForCausalLM"
    family = Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, moe="own" if moe else "")
    if not moe:
        return general_decoder(r, family)
    shared = r.integer("shared_experts", "moe_num_shared_experts", minimum=0)
    names = {"n_shared_experts": shared, "num_experts": r.find("moe_num_experts")[1]}
    base = general_decoder(renamed(r, **names, num_experts_per_tok=r.find("moe_k")[1]), family)
    start = r.integer("moe_start", "moe_layer_start_index", minimum=0, default=1)
    end = r.integer("moe_end", "moe_layer_end_index", minimum=-1, default=base.layers - 1)
    every = r.integer("moe_every", "moe_layer_interval", default=1)
    last = base.layers - 1 if end < 0 else end
    mlps = tuple(MOE if start <= i <= last and (i + 1) % every == 0 else DENSE for i in range(base.layers))
    # The correction bias of the router is a parameter here.
    return replace(base, mlps=mlps, router_extra=base.experts)


def hunyuan(r: Reader, architecture: str) -> Blueprint:
    """Hunyuan v1: Llama with norms of queries and keys, tied; a shared expert beside the routed ones."""
    moe = architecture == "HunYuanMoEV1ForCausalLM"
    if r.config.get("use_cla") is True:
        r.problem("use_cla is true (keys and values shared between layers) is not supported; known is false")
    family = Family(
        qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", qk_norm="head",
        qk_norm_key="use_qk_norm", qk_norm_default=True, tied=True, moe="own" if moe else "",
    )  # fmt: skip
    if not moe:
        return general_decoder(r, family)
    shared = first(r, "num_shared_expert") if r.config.get("use_mixed_mlp_moe", True) else 0
    names = {"num_experts_per_tok": first(r, "moe_topk"), "n_shared_experts": shared}
    width = first(r, "moe_intermediate_size") or r.find("intermediate_size")[1]
    return general_decoder(renamed(r, **names, moe_intermediate_size=width), family)


def bailing(r: Reader, architecture: str) -> Blueprint:
    """Ling and Ring: fused projections, a shared feed-forward block, query and key norms in version 2."""
    second = architecture == "BailingMoeV2ForCausalLM"
    family = Family(
        qkv_bias="use_qkv_bias", out_bias="use_bias", moe="own", qk_norm="head" if second else "",
        qk_norm_key="use_qk_norm" if second else "", qk_norm_default=True,
    )  # fmt: skip
    width = r.find("moe_shared_expert_intermediate_size", "moe_intermediate_size")[1]
    count = r.integer("shared_experts", "num_shared_experts", minimum=0)
    whole = count * width if isinstance(width, int) and not isinstance(width, bool) else None
    return general_decoder(renamed(r, shared_expert_intermediate_size=whole), family)


def longcat(r: Reader, architecture: str) -> Blueprint:
    """LongCat-Flash: a block has two latent attentions, two dense blocks and one mixture; some experts are empty.

    A block is counted as two layers, the first of which holds the experts beside its dense block.
    """
    blocks = r.integer("blocks", "num_layers", "num_hidden_layers", required=True)
    empty = r.integer("zero_experts", "zero_expert_num", minimum=0)
    real = r.integer("experts", "n_routed_experts", required=True)
    visited = r.integer("experts_per_token", "moe_topk", required=True)
    names = {
        "num_hidden_layers": 2 * blocks,
        "intermediate_size": r.find("ffn_hidden_size")[1],
        "moe_intermediate_size": r.find("expert_ffn_hidden_size")[1],
        # A token visits an empty expert as often as any other.
        "num_experts_per_tok": max(1, round(visited * real / (real + empty))),
    }
    family = Family(moe="own", mla=True, qkv_bias="attention_bias", out_bias="attention_bias")
    base = general_decoder(renamed(r, **names), family)
    mlps = (MOE, DENSE) * blocks
    return replace(base, mlps=mlps, dense_beside_experts=True, router_extra=empty * base.hidden)


def step(r: Reader, architecture: str) -> Blueprint:
    """Step 3.5: windowed layers with more heads than the full ones, a gate a head, experts from a list of layers."""
    layers = layer_count(renamed(r, layer_types=[]))
    kinds = r.find("layer_types")[1]
    names = {
        "layer_types": kinds[:layers] if isinstance(kinds, list) else None,  # it goes on over the MTP layers
        "num_key_value_heads": r.find("num_attention_groups")[1],
        "num_experts": r.find("moe_num_experts")[1],
        "num_experts_per_tok": r.find("moe_top_k")[1],
        "shared_expert_intermediate_size": r.find("share_expert_dim")[1],
    }
    base = general_decoder(renamed(r, **names), Family(moe="own", qk_norm="head"))
    text = r.find("moe_layers_enum")[1]
    try:
        moe = {int(part) for part in str(text).split(",")} if text is not None else set(range(layers))
    except ValueError:
        r.problem(f"moe_layers_enum is {shown(text)}; it must be layer numbers such as 3,4,5")
        moe = set()
    other = r.find("attention_other_setting")[1]
    heads = other.get("num_attention_heads") if isinstance(other, dict) else None
    wide = heads if isinstance(heads, int) and not isinstance(heads, bool) and heads > 0 else base.heads
    gated = r.flag("head_gate", "use_head_wise_attn_gate")
    count = {kind: base.mixers.count(kind) for kind in (FULL, WINDOW)}
    gates = base.hidden * (count[FULL] * base.heads + count[WINDOW] * wide) if gated else 0
    return replace(
        base,
        mlps=tuple(MOE if i in moe else DENSE for i in range(base.layers)),
        window_heads=wide,
        extra=Weights(gates),
    )


def mimo_2(r: Reader, architecture: str) -> Blueprint:
    """MiMo-V2: windowed layers with key-value heads of their own and sinks; values narrower than keys."""
    pattern = r.find("hybrid_layer_pattern")[1]
    layers = layer_count(r)
    if not isinstance(pattern, list) or len(pattern) != layers:
        r.problem(f"hybrid_layer_pattern must be a list with 0 (full) or 1 (window) for each of the {layers} layers")
        pattern = [0] * layers
    frequency = r.find("moe_layer_freq")[1]
    window = r.find("sliding_window")[1]
    names = {
        "layer_types": ["sliding_attention" if kind else "full_attention" for kind in pattern],
        "moe_layer_freq": 1,
        "attention_chunk_size": window,
        "num_key_value_heads": r.find("swa_num_key_value_heads")[1],
        "head_dim": r.find("swa_head_dim")[1],
    }
    base = general_decoder(renamed(r, **names), Family(moe="own", qkv_bias="attention_bias"))
    listed = frequency if isinstance(frequency, list) and len(frequency) == layers else [1] * layers
    full_dim = r.integer("head_dim", "head_dim", required=True)
    return replace(
        base,
        mlps=tuple(MOE if one else DENSE for one in listed),
        v_head_dim=r.integer("swa_v_head_dim", "swa_v_head_dim", derived=base.head_dim),
        global_head_dim=full_dim,
        global_kv_heads=r.integer("kv_heads", *KEYS["kv_heads"], required=True),
        global_v_head_dim=r.integer("v_head_dim", "v_head_dim", derived=full_dim),
        sinks=r.flag("full_sinks", "add_full_attention_sink_bias"),
        window_sinks=r.flag("window_sinks", "add_swa_attention_sink_bias"),
    )


def minimax_3(r: Reader, architecture: str) -> Blueprint:
    """MiniMax-M3: the leading layers dense, one shared expert, and an indexer on the layers with sparse attention."""
    layers = layer_count(r)
    frequency = r.find("moe_layer_freq")[1]
    listed = frequency if isinstance(frequency, list) and len(frequency) == layers else [1] * layers
    names = {
        "moe_layer_freq": 1,
        "first_k_dense_replace": 0,
        "intermediate_size": r.find("dense_intermediate_size")[1],
        "moe_intermediate_size": r.find("moe_intermediate_size", "intermediate_size")[1],
        "shared_expert_intermediate_size": None,
    }
    base = general_decoder(renamed(r, **names), Family(moe="own", qk_norm="head"))
    sparse = r.find("sparse_attention_config")[1]
    extra = Weights()
    if isinstance(sparse, dict):
        one = Reader(sparse, f"{r.label}: sparse_attention_config")
        often = sparse.get("sparse_attention_freq")
        count = sum(1 for item in often if item) if isinstance(often, list) else 0
        heads = one.integer("index_heads", "sparse_num_index_heads", "index_n_heads", "num_index_heads", default=4)
        width = one.integer("index_dim", "sparse_index_dim", "index_head_dim", default=128)
        indexer = linear(base.hidden, heads * width).plus(linear(base.hidden, width), norm(2 * width))
        extra = indexer.times(count)
        r.problems += one.problems
    return replace(base, mlps=tuple(MOE if item else DENSE for item in listed), extra=extra)


def glm_dsa(r: Reader, architecture: str) -> Blueprint:
    """GLM with sparse attention: layers that share an indexer have none of their own."""
    base = general_decoder(
        r, Family(moe="own", mla=True, qkv_bias="attention_bias", out_bias="attention_bias", indexer=True)
    )
    kinds = r.find("indexer_types")[1]
    if not isinstance(kinds, list) or "shared" not in kinds[: base.layers]:
        return base
    own = sum(1 for kind in kinds[: base.layers] if kind != "shared")
    indexer = sparse_indexer(base.hidden, base.q_lora_rank, base.index_heads, base.index_dim)
    return replace(base, index_layers=own, extra=indexer.times(own))


def apertus(r: Reader, architecture: str) -> Blueprint:
    """Apertus: a feed-forward block of two matrices, whose activation has two learned numbers a layer."""
    family = Family(
        gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", qk_norm="head",
        qk_norm_key="qk_norm", qk_norm_default=True,
    )  # fmt: skip
    base = general_decoder(r, family)
    return replace(base, extra=Weights(0, 2 * base.layers))


def exaone_4(r: Reader, architecture: str) -> Blueprint:
    """EXAONE 4: Llama with query and key norms; a pattern of letters says which layers have a window."""
    pattern = r.find("sliding_window_pattern")[1]
    names: dict[str, Any] = {}
    if isinstance(pattern, str) and pattern and not r.has("layer_types"):
        count = layer_count(r)
        words = {"L": "sliding_attention", "G": "full_attention"}
        letters = [pattern[i % len(pattern)] for i in range(count)]
        if set(letters) - set(words):
            r.problem(f"sliding_window_pattern is {shown(pattern)}; it must be of the letters L and G, such as LLLG")
        names["layer_types"] = [words.get(letter, "full_attention") for letter in letters]
    found = renamed(r, **names)
    if isinstance(pattern, str):
        found.config.pop("sliding_window_pattern", None)
    return general_decoder(found, Family(qk_norm="head"))
