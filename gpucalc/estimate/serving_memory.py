"""Memory of a serving GPU: weights by format, working set, and what is left for the cache by the engine's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucalc.core.ledger import Ledger
from gpucalc.formulas import kv_cache, serving_memory, shapes

# The position of a rule in `database.engines.MEMORY_RULES` → the space by that rule.
MEMORY_CASES = {0: "memory/kv-space/total", 1: "memory/kv-space/free", 2: "memory/kv-space/static"}


def add_weights(ledger: Ledger) -> None:
    """Store `memory/weights`: bytes on the fullest GPU."""
    ledger.product("shape/replica-ranks", "tp", "pp")
    ledger.product("shape/expert-holders", "tp", "attention_dp", "pp")
    kinds: dict[str, tuple[Callable[..., Any], str, str]] = {
        "attention": (serving_memory.mixer_weights, "attention_element_bytes", "shape/replica-ranks"),
        "mlp": (serving_memory.feed_forward_weights, "mlp_element_bytes", "shape/replica-ranks"),
        "experts": (serving_memory.routed_weights, "expert_element_bytes", "shape/expert-holders"),
        "tables": (serving_memory.table_weights, "head_element_bytes", "tp"),
        "others": (serving_memory.other_weights, "head_element_bytes", "pp"),
    }
    for name, (counted, size, ranks) in kinds.items():
        path = f"memory/weights/{name}"
        ledger.add(f"{path}/parameters", counted)
        ledger.add(path, serving_memory.weight_space, parameters=f"{path}/parameters", element_bytes=size, ranks=ranks)
    ledger.total("memory/weights", *[f"memory/weights/{name}" for name in kinds])


def add_cache(ledger: Ledger) -> None:
    """Store the cache of one sequence, the space for it, and how many tokens and sequences it holds."""
    _sequences(ledger)
    ledger.add("shape/gated-feed-forward", shapes.gated_width, width="feed_forward")
    ledger.add("shape/logits", serving_memory.rank_logits)
    ledger.add(
        "memory/activations",
        kv_cache.activation_peak,
        tokens="chunk_tokens",
        feed_forward="shape/gated-feed-forward",
        logits="shape/logits",
    )
    held = {"weights": "memory/weights", "activations": "memory/activations"}
    ledger.add("memory/kv-space/total", kv_cache.cache_space_of_total, **held)
    ledger.add("memory/kv-space/free", kv_cache.cache_space_of_free, **held)
    ledger.add("memory/kv-space/static", kv_cache.cache_space_static, weights="memory/weights")
    longest = {"sequence_bytes": "memory/kv/longest"}
    ledger.add("memory/least-share", kv_cache.least_memory_share, **held, **longest)
    ledger.choose("memory/kv-space", "memory_rule", MEMORY_CASES)
    space = {"space": "memory/kv-space"}
    ledger.add("memory/sequences", kv_cache.sequences_that_fit, **space, **longest)
    ledger.add("memory/sequences-mean", kv_cache.sequences_that_fit, sequence_bytes="memory/kv/mean", **space)
    ledger.add(
        "memory/kv-tokens",
        kv_cache.cache_tokens,
        context="memory/kv/longest/context",
        block="kv_block",
        **space,
        **longest,
    )


def _sequences(ledger: Ledger) -> None:
    """Store the cache of a sequence of full length, and of the mean one."""
    ledger.add("memory/kv/grouped-token", kv_cache.grouped_cache_bytes)
    ledger.add("memory/kv/latent-token", kv_cache.latent_cache_bytes)
    kinds = {"latent": "memory/kv/latent-token", "grouped": "memory/kv/grouped-token"}
    ledger.add("memory/kv/layer-token", serving_memory.layer_token_cache, **kinds)
    ledger.add("memory/kv/correction", serving_memory.cache_correction, grouped="memory/kv/grouped-token")
    ledger.product("memory/kv/token", "memory/kv/layer-token", "memory/kv/correction")
    ledger.add("memory/kv/states", serving_memory.rank_state_bytes)
    ledger.total("memory/kv/longest/context", "isl", "osl")
    ledger.total("memory/kv/mean/context", "context")
    # Windows are cut to the longest context for both: a shorter one is cut by itself.
    ledger.add("memory/kv/window", serving_memory.cache_window, context="memory/kv/longest/context")
    for name in ("longest", "mean"):
        path = f"memory/kv/{name}"
        common = {"context": f"{path}/context", "block": "kv_block"}
        ledger.add(f"{path}/full", kv_cache.cached_tokens, window="memory/kv/longest/context", **common)
        ledger.add(f"{path}/window", kv_cache.cached_tokens, window="memory/kv/window", **common)
        ledger.add(
            path,
            kv_cache.sequence_cache_bytes,
            full_tokens=f"{path}/full",
            window_tokens=f"{path}/window",
            full_layers="shape/full-layers",
            layer_token_bytes="memory/kv/token",
            state_bytes="memory/kv/states",
            stages="pp",
        )
