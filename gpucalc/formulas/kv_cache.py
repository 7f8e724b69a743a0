"""The cache of keys and values while serving: what a token leaves in it, how much fits, what is moved.

Bytes are those of one GPU. `tp` tensor-parallel ranks share the KV heads until each holds one; the latent of
multi-head latent attention has no heads to share and is held by every rank.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Ratio, Seconds


@formula(symbol="k", cite="shazeer2019", valid="counts >= 1; multi-head, grouped and multi-query attention")
def grouped_cache_bytes(kv_heads: Count, head_dim: Count, v_head_dim: Count, kv_bytes: Bytes, tp: Count) -> Bytes:
    """Bytes that one token leaves on one GPU in one layer: its keys and values, never less than one head.

    >>> float(grouped_cache_bytes(8, 128, 128, 2.0, 4))  # two of eight heads, key and value, 16 bit
    1024.0
    >>> float(grouped_cache_bytes(4, 128, 128, 1.0, 8))  # four heads on eight ranks: each holds one
    256.0
    """
    return np.ceil(kv_heads / tp) * (head_dim + v_head_dim) * kv_bytes


@formula(symbol="k_MLA", cite="deepseek2024", valid="not divided by tp")
def latent_cache_bytes(kv_lora_rank: Count, qk_rope_head_dim: Count, kv_bytes: Bytes) -> Bytes:
    """Bytes that one token leaves in one layer of multi-head latent attention, on every rank.

    >>> latent_cache_bytes(512, 64, 2.0)
    1152.0
    """
    return (kv_lora_rank + qk_rope_head_dim) * kv_bytes


@formula(symbol="c_w", cite="kwon2023", valid="context, window, block >= 1; window = context where there is none")
def cached_tokens(context: Count, window: Count, block: Count) -> Count:
    """Tokens of a sequence that one layer keeps, in whole blocks: all, or those within its window.

    >>> float(cached_tokens(1000, 1000, 16)), float(cached_tokens(1000, 128, 16))
    (1008.0, 128.0)
    """
    return np.ceil(np.minimum(context, window) / block) * block


@formula(symbol="K", cite="kwon2023", valid="layer counts >= 0")
def sequence_cache_bytes(
    full_tokens: Count,
    window_tokens: Count,
    full_layers: Count,
    window_layers: Count,
    full_token_bytes: Bytes,
    window_token_bytes: Bytes,
    state_bytes: Bytes,
    stages: Count,
) -> Bytes:
    """Cache of one sequence on one GPU: full layers, layers with a window, and constant states; 1/stages of it.

    >>> sequence_cache_bytes(1008, 128, 12, 12, 1024.0, 1024.0, 0.0, 1)  # (1008 + 128) * 12 * 1 KiB
    13959168.0
    """
    full = full_tokens * full_layers * full_token_bytes
    return (full + window_tokens * window_layers * window_token_bytes + state_bytes) / stages


@formula(symbol="M_KV", cite="vllm", valid="share of all memory: vLLM")
def cache_space_of_total(
    usable_bytes: Bytes, memory_share: Ratio, weights: Bytes, activations: Bytes, outside: Bytes
) -> Bytes:
    """Space for the cache where the engine may use a share of the whole memory: u·M minus what else is held.

    >>> float(cache_space_of_total(80.0, 0.9, 16.0, 2.0, 1.0))
    53.0
    """
    return np.maximum(memory_share * usable_bytes - weights - activations - outside, 0.0)


@formula(symbol="M_KV", cite="trtllm", valid="share of the free memory: TensorRT-LLM")
def cache_space_of_free(
    usable_bytes: Bytes, memory_share: Ratio, weights: Bytes, activations: Bytes, outside: Bytes
) -> Bytes:
    """Space for the cache where the engine takes a share of what is free once all else is loaded: u·(M - rest).

    >>> float(cache_space_of_free(80.0, 0.9, 16.0, 2.0, 2.0))
    54.0
    """
    return np.maximum(memory_share * (usable_bytes - weights - activations - outside), 0.0)


@formula(symbol="M_KV", cite="sglang", valid="share of all memory for weights and cache alone: SGLang")
def cache_space_static(usable_bytes: Bytes, memory_share: Ratio, weights: Bytes) -> Bytes:
    """Space for the cache where the share covers weights and cache, and all else lives in the rest: u·M - W.

    >>> float(cache_space_static(80.0, 0.9, 16.0))
    56.0
    """
    return np.maximum(memory_share * usable_bytes - weights, 0.0)


@formula(symbol="u", cite="vllm", valid="share of all memory: vLLM")
def share_of_total(usable_bytes: Bytes, space: Bytes, weights: Bytes, activations: Bytes, outside: Bytes) -> Ratio:
    """The share at which `cache_space_of_total` is `space`.

    >>> share_of_total(80.0, 53.0, 16.0, 2.0, 1.0)
    0.9
    """
    return (space + weights + activations + outside) / usable_bytes


@formula(symbol="u", cite="trtllm", valid="share of the free memory: TensorRT-LLM")
def share_of_free(usable_bytes: Bytes, space: Bytes, weights: Bytes, activations: Bytes, outside: Bytes) -> Ratio:
    """The share at which `cache_space_of_free` is `space`.

    >>> share_of_free(80.0, 54.0, 16.0, 2.0, 2.0)
    0.9
    """
    return space / (usable_bytes - weights - activations - outside)


@formula(symbol="u", cite="sglang", valid="share of all memory for weights and cache alone: SGLang")
def share_static(usable_bytes: Bytes, space: Bytes, weights: Bytes) -> Ratio:
    """The share at which `cache_space_static` is `space`.

    >>> share_static(80.0, 56.0, 16.0)
    0.9
    """
    return (space + weights) / usable_bytes


@formula(symbol="u_min", cite="gpucalc-counting", valid="one sequence of full length")
def least_memory_share(
    usable_bytes: Bytes, weights: Bytes, activations: Bytes, outside: Bytes, sequence_bytes: Bytes
) -> Ratio:
    """Share of the memory that weights, working set, reserve and one sequence take; above 1 nothing helps.

    >>> least_memory_share(80.0, 70.0, 2.0, 2.0, 2.0)
    0.95
    """
    return (weights + activations + outside + sequence_bytes) / usable_bytes


@formula(symbol="N_KV", cite="kwon2023", valid="bytes per token > 0")
def cache_tokens(space: Bytes, sequence_bytes: Bytes, context: Count, block: Count) -> Count:
    """Tokens of cache that fit when every sequence is `context` long, in whole blocks.

    >>> float(cache_tokens(1e9, 1e6, 100, 16))  # 1000 sequences of 100 tokens, in blocks of 16
    100000.0
    """
    return np.floor(space / sequence_bytes * context / block) * block


@formula(symbol="B_max", cite="kwon2023", valid="sequence bytes > 0")
def sequences_that_fit(space: Bytes, sequence_bytes: Bytes) -> Count:
    """Sequences whose whole cache fits.

    >>> float(sequences_that_fit(10.5, 2.0))
    5.0
    """
    return np.floor(space / sequence_bytes)


@formula(symbol="t_KV", cite="patel2023", valid="disaggregated prefill and decode; layers >= 1")
def cache_transfer_exposed(
    cache: Bytes,
    transfer_bandwidth: BytesPerSecond,
    transfer_latency: Seconds,
    prefill: Seconds,
    layers: Count,
) -> Seconds:
    """Part of the transfer of a prompt's cache that sending layer by layer during prefill does not hide.

    All but the last layer can overlap with prefill; the last is sent after it.

    >>> float(cache_transfer_exposed(1e9, 50e9, 0.0, 1.0, 50))  # 20 ms of transfer, 1/50 of it after prefill
    0.0004
    """
    transfer = cache / transfer_bandwidth
    return transfer_latency + np.maximum(transfer - prefill * (layers - 1) / layers, transfer / layers)
