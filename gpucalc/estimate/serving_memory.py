"""Memory of a serving GPU: weights by format, working set, and what is left for the cache by the engine's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucalc.core.ledger import Ledger
from gpucalc.formulas import kv_cache, serving_memory

# The position of a rule in `database.engines.MEMORY_RULES` → the space by that rule.
MEMORY_CASES = {0: "memory/kv-space/total", 1: "memory/kv-space/free", 2: "memory/kv-space/static"}


def add_weights(ledger: Ledger) -> None:
    """Store `memory/weights`: bytes on the fullest GPU."""
    ledger.product("shape/replica-ranks", "tp", "pp")
    ledger.product("shape/expert-holders", "tp", "attention_dp", "pp")
    kinds: dict[str, tuple[Callable[..., Any], str, str]] = {
        "attention": (serving_memory.split_mixer_weights, "attention_element_bytes", "shape/replica-ranks"),
        "latents": (serving_memory.latent_weights, "attention_element_bytes", "pp"),
        "mlp": (serving_memory.feed_forward_weights, "mlp_element_bytes", "shape/replica-ranks"),
        "experts": (serving_memory.routed_weights, "expert_element_bytes", "shape/expert-holders"),
        "tables": (serving_memory.table_weights, "head_element_bytes", "tp"),
        "others": (serving_memory.other_weights, "head_element_bytes", "pp"),
    }
    ledger.add("shape/mixer-parameters", serving_memory.mixer_weights)
    ledger.add("shape/latent-parameters", serving_memory.latent_weights)
    of_mixers = {"mixer": "shape/mixer-parameters", "latent": "shape/latent-parameters"}
    for name, (counted, size, ranks) in kinds.items():
        path = f"memory/weights/{name}"
        ledger.apply(f"{path}/parameters", counted, of_mixers)
        ledger.add(path, serving_memory.weight_space, parameters=f"{path}/parameters", element_bytes=size, ranks=ranks)
    ledger.total("memory/weights", *[f"memory/weights/{name}" for name in kinds])


def add_cache(ledger: Ledger) -> None:
    """Store the cache of one sequence, the space for it, and how many tokens and sequences it holds."""
    _sequences(ledger)
    ledger.add("memory/visible", serving_memory.visible_memory)
    ledger.add("memory/outside", serving_memory.outside_memory)
    ledger.add("memory/free-at-start", serving_memory.free_at_start, visible="memory/visible", outside="memory/outside")
    _activations(ledger)
    weights = {"weights": "memory/weights"}
    held = {**weights, "activations": "memory/activations", "outside": "memory/outside"}
    seen = {"usable_bytes": "memory/visible"}
    ledger.add("memory/kv-space/total", kv_cache.cache_space_of_total, **seen, **held)
    ledger.add("memory/kv-space/free", kv_cache.cache_space_of_free, **seen, **held)
    ledger.add("memory/kv-space/static", kv_cache.cache_space_static, usable_bytes="memory/free-at-start", **weights)
    longest = {"sequence_bytes": "memory/kv/longest"}
    ledger.add("memory/least-share", kv_cache.least_memory_share, **seen, **held, **longest)
    ledger.choose("memory/kv-space", "memory_rule", MEMORY_CASES)
    ledger.total("memory/needed", "memory/weights", "memory/activations", "memory/outside", "memory/kv/longest")
    ledger.product("memory/available", "memory_share", "memory/visible")
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


def _activations(ledger: Ledger) -> None:
    """Store `memory/activations`: the peak of the pass by which an engine measures what it needs beside weights."""
    ledger.add("memory/activations/sampler", serving_memory.sampler_peak)
    ledger.add("memory/activations/layer", serving_memory.layer_peak)
    ledger.add("memory/activations/experts", serving_memory.expert_workspace)
    parts = {name: f"memory/activations/{name}" for name in ("sampler", "layer", "experts")}
    ledger.add("memory/activations", serving_memory.profiled_peak, **parts)


def _sequences(ledger: Ledger) -> None:
    """Store the cache of a sequence of full length, and of the mean one."""
    ledger.add("memory/kv/grouped-token", kv_cache.grouped_cache_bytes)
    ledger.add("memory/kv/latent-token", kv_cache.latent_cache_bytes)
    kinds = {"latent": "memory/kv/latent-token", "grouped": "memory/kv/grouped-token"}
    ledger.add("memory/kv/layer-token", serving_memory.layer_token_cache, **kinds)
    ledger.add("memory/kv/full-bytes", serving_memory.full_kind_bytes)
    counted = {
        "full": ("memory/kv/full-bytes", "shape/full-layers"),
        "window": ("kv_bytes_16_windowed", "window_layers"),
    }
    for name, (kind_bytes, kind_layers) in counted.items():
        ledger.add(
            f"memory/kv/{name}-token",
            serving_memory.kind_token_cache,
            layer_token="memory/kv/layer-token",
            kind_bytes_16=kind_bytes,
            kind_layers=kind_layers,
        )
    ledger.add("memory/kv/states", serving_memory.rank_state_bytes)
    ledger.total("memory/kv/longest/context", "isl", "osl")
    ledger.total("memory/kv/mean/context", "context")
    for name in ("longest", "mean"):
        path = f"memory/kv/{name}"
        context = {"context": f"{path}/context"}
        ledger.add(f"{path}/full", kv_cache.cached_tokens, window=f"{path}/context", block="kv_block", **context)
        ledger.add(f"{path}/window-room", serving_memory.windowed_tokens, **context)
        ledger.add(f"{path}/window", kv_cache.cached_tokens, window=f"{path}/window-room", block="kv_block", **context)
        ledger.add(
            path,
            kv_cache.sequence_cache_bytes,
            full_tokens=f"{path}/full",
            window_tokens=f"{path}/window",
            full_layers="shape/full-layers",
            full_token_bytes="memory/kv/full-token",
            window_token_bytes="memory/kv/window-token",
            state_bytes="memory/kv/states",
            stages="pp",
        )
