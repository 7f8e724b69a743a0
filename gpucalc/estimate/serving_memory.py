"""Memory of a serving GPU: weights by format, working set, and what is left for the cache by the engine's rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.ledger import Ledger
from gpucalc.core.units import Bytes, Count
from gpucalc.formulas import kv_cache

# The position of a rule in `serving_engine.MEMORY_RULES` → the space by that rule.
MEMORY_CASES = {0: "memory/kv-space/total", 1: "memory/kv-space/free", 2: "memory/kv-space/static"}


@formula(symbol="W", cite="gpucalc-counting", valid="parameters >= 0")
def weight_space(parameters: Count, element_bytes: Bytes, ranks: Count) -> Bytes:
    """Bytes of weights of one kind on one GPU, shared by `ranks`.

    >>> weight_space(8e9, 1.0, 4)
    2000000000.0
    """
    return parameters * element_bytes / ranks


def add_weights(ledger: Ledger) -> None:
    """Store `memory/weights`: bytes on the fullest GPU."""
    c = ledger.columns
    share = c["tp"] * c["pp"]
    attention = c["attention_parameters"] * c["attention_layers"] + c["linear_mixer_parameters"] * c["linear_layers"]
    mlp = c["dense_mlp_parameters"] * c["dense_layers"] + c["shared_expert_parameters"] * c["moe_layers"]
    routed = c["expert_parameters"] * c["experts"] * c["moe_layers"]
    small = c["router_parameters"] * c["moe_layers"] + c["norm_parameters"] * c["layers"]
    half = c["head_element_bytes"]
    tables = c["embedding_parameters"] + np.where(c["pp"] > 1, 0.0, c["head_parameters"])
    tables = np.maximum(tables, c["head_parameters"])
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "attention": (attention, c["attention_element_bytes"], share),
        "mlp": (mlp, c["mlp_element_bytes"], share),
        "experts": (routed, c["expert_element_bytes"], c["tp"] * c["attention_dp"] * c["pp"]),
        "tables": (tables, half, c["tp"]),
        "others": (small + c["other_parameters"], half, c["pp"]),
    }
    for name, (parameters, size, ranks) in kinds.items():
        ledger.add(f"memory/weights/{name}", weight_space, parameters=parameters, element_bytes=size, ranks=ranks)
    ledger.total("memory/weights", *[f"memory/weights/{name}" for name in kinds])


def add_cache(ledger: Ledger) -> None:
    """Store the cache of one sequence, the space for it, and how many tokens and sequences it holds."""
    c = ledger.columns
    grouped = ledger.add("memory/kv/grouped-token", kv_cache.grouped_cache_bytes)
    latent = ledger.add("memory/kv/latent-token", kv_cache.latent_cache_bytes)
    is_latent = c["latent_layers"] > 0
    indexed = np.where(c["index_heads"] > 0, c["index_dim"], 0.0)  # keys of the selector, 8 bit
    token = ledger.keep("memory/kv/layer-token", np.where(is_latent, latent + indexed, grouped))
    # Where full and windowed layers differ in shape the counted bytes of the model correct the mean layer.
    counted = c["kv_bytes_16"] * c["kv_bytes"] / 2
    uniform = np.where(is_latent, latent, grouped * c["kv_heads"] / np.ceil(c["kv_heads"] / c["tp"]))
    correction = np.where(is_latent | (counted <= 0), 1.0, counted / np.maximum(uniform * c["attention_layers"], 1.0))
    context = c["isl"] + c["osl"]
    window = np.where(c["window_layers"] > 0, np.maximum(c["window"], 1.0), context)
    full = c["attention_layers"] - c["window_layers"]
    for name, length in (("longest", context), ("mean", c["context"])):
        kept = ledger.add(
            f"memory/kv/{name}/full", kv_cache.cached_tokens, context=length, window=length, block=c["kv_block"]
        )
        short = ledger.add(
            f"memory/kv/{name}/window", kv_cache.cached_tokens, context=length, window=window, block=c["kv_block"]
        )
        ledger.add(
            f"memory/kv/{name}",
            kv_cache.sequence_cache_bytes,
            full_tokens=kept,
            window_tokens=short,
            full_layers=full,
            window_layers=c["window_layers"],
            layer_token_bytes=token * correction,
            state_bytes=c["state_bytes_per_sequence"] / c["tp"],
            stages=c["pp"],
        )
    weights = ledger["memory/weights"]
    working = ledger.add(
        "memory/activations",
        kv_cache.activation_peak,
        tokens=c["chunk_tokens"],
        feed_forward=c["feed_forward"] * (1 + c["gated"]),
        logits=c["sampled_rows"] * c["vocab"] / c["tp"],
    )
    for rule, formula_ in (("total", kv_cache.cache_space_of_total), ("free", kv_cache.cache_space_of_free)):
        ledger.add(f"memory/kv-space/{rule}", formula_, weights=weights, activations=working)
    ledger.add("memory/kv-space/static", kv_cache.cache_space_static, weights=weights)
    ledger.add(
        "memory/least-share",
        kv_cache.least_memory_share,
        weights=weights,
        activations=working,
        sequence_bytes=ledger["memory/kv/longest"],
    )
    space = ledger.choose("memory/kv-space", c["memory_rule"], MEMORY_CASES)
    ledger.add("memory/sequences", kv_cache.sequences_that_fit, space=space, sequence_bytes=ledger["memory/kv/longest"])
    ledger.add(
        "memory/sequences-mean", kv_cache.sequences_that_fit, space=space, sequence_bytes=ledger["memory/kv/mean"]
    )
    ledger.add(
        "memory/kv-tokens",
        kv_cache.cache_tokens,
        space=space,
        sequence_bytes=ledger["memory/kv/longest"],
        context=context,
        block=c["kv_block"],
    )
