"""Kernels of a serving pass: shapes of attention on one rank, speed of products by number format, small messages.

An engine keeps a latent (MLA) as one key-value head that is read once for keys and values, and expands or packs
weights of formats that the device does not multiply.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Elements, Flag, PerSecond, Ranks, Ratio, Seconds, Tokens

# --- products --------------------------------------------------------------------------------------


@formula(symbol="η_f", cite="gpucalc-calibration", valid="expanded: weights become 16 bit before they are multiplied")
def format_efficiency(
    gemm_efficiency: Ratio,
    expanded: Flag,
    expanded_efficiency: Ratio,
    fp4: Flag,
    fp4_factor: Ratio,
    product_efficiency: Ratio,
) -> Ratio:
    """Share of the peak that large products of a number format reach in an engine.

    >>> float(format_efficiency(0.8, 1, 0.5, 0, 0.9, 1.0)), float(format_efficiency(0.8, 0, 0.5, 0, 0.9, 1.0))
    (0.4, 0.8)
    """
    slower = np.where(np.greater(expanded, 0), expanded_efficiency, 1.0) * np.where(np.greater(fp4, 0), fp4_factor, 1.0)
    return gemm_efficiency * slower * product_efficiency


@formula(symbol="η_m,f", cite="gpucalc-calibration", valid="clock 0: not known, no limit by the multiprocessors")
def format_memory_efficiency(
    gemm_memory_efficiency: Ratio,
    expanded: Flag,
    expanded_memory_efficiency: Ratio,
    unpacked_bytes: Bytes,
    compute_units: Count,
    clock: PerSecond,
    memory_bandwidth: BytesPerSecond,
) -> Ratio:
    """Share of the memory bandwidth at which weights of a number format are read.

    Weights that are expanded on the way are read no faster than the multiprocessors unpack them, so many packed bytes
    in a clock each.

    >>> round(float(format_memory_efficiency(0.9, 1, 1.0, 16, 132, 1.83e9, 4.8e12)), 3)  # H200: 3.87 TB/s
    0.805
    >>> float(format_memory_efficiency(0.9, 0, 1.0, 16, 132, 1.83e9, 4.8e12))
    0.9
    """
    unpacking = unpacked_bytes * compute_units * clock / memory_bandwidth
    limit = np.where(np.greater(clock, 0), unpacking, np.inf)
    slow = np.minimum(gemm_memory_efficiency * expanded_memory_efficiency, limit)
    return np.where(np.greater(expanded, 0), slow, gemm_memory_efficiency)


@formula(symbol="[dispatch]", cite="deepseek2024", valid="ranks >= 1")
def dispatches(exchange_kernels: Flag, tp: Ranks, attention_dp: Ranks, gather_ranks: Ranks) -> Flag:
    """Whether ranks that share experts exchange tokens by dispatch kernels: beyond so many that a gather is slower.

    >>> float(dispatches(0, 1, 16, 8)), float(dispatches(0, 1, 8, 8)), float(dispatches(1, 1, 2, 8))
    (1.0, 0.0, 1.0)
    """
    return 1.0 * (np.greater(exchange_kernels, 0) | np.greater(tp * attention_dp, gather_ranks))


@formula(symbol="λ", cite="deepseek2024", valid="ep >= 1; EPLB with redundant experts beyond gather_ranks")
def load_factor(ep: Ranks, gather_ranks: Ranks, expert_load_factor: Ratio, balanced_load_factor: Ratio) -> Ratio:
    """Rows of the fullest rank over the mean: experts in place, or redundant ones where many ranks share them.

    >>> float(load_factor(8, 8, 2.0, 1.1)), float(load_factor(32, 8, 2.0, 1.1)), float(load_factor(1, 8, 2.0, 1.1))
    (2.0, 1.1, 1.0)
    """
    spread = np.where(np.greater(ep, gather_ranks), balanced_load_factor, expert_load_factor)
    return np.where(np.greater(ep, 1), spread, 1.0)


@formula(symbol="[8 bit]", cite="gpucalc-counting", valid="")
def quantised_products(mlp_element_bytes: Bytes, mlp_expanded: Flag, half_bytes: Bytes = 2.0) -> Flag:
    """Whether activations are quantised before the products of the feed-forward blocks.

    >>> float(quantised_products(1.0, 0)), float(quantised_products(1.0, 1)), float(quantised_products(2.0, 0))
    (1.0, 0.0, 0.0)
    """
    return 1.0 * (np.less(mlp_element_bytes, half_bytes) & np.equal(mlp_expanded, 0))


@formula(symbol="n_idx", cite="gpucalc-counting", valid="sparse attention with a selector")
def index_width(index_heads: Count, index_dim: Elements) -> Elements:
    """Columns of the queries of a selector of keys.

    >>> index_width(64, 128)
    8192
    """
    return index_heads * index_dim


@formula(symbol="t_e", cite="gpucalc-counting", valid="ep divides tp·attention_dp")
def expert_tensor_ranks(tp: Ranks, attention_dp: Ranks, ep: Ranks) -> Ranks:
    """Ranks that split each routed expert: those of a replica over those that spread the experts.

    >>> expert_tensor_ranks(8, 2, 16), expert_tensor_ranks(8, 1, 1)
    (1.0, 8.0)
    """
    return tp * attention_dp / ep


@formula(symbol="E_hit/p", cite="gpucalc-counting", valid="ep >= 1")
def experts_visited_here(visited: Count, ep: Ranks) -> Count:
    """Visited experts of one rank, at least one.

    >>> float(experts_visited_here(128.0, 8)), float(experts_visited_here(4.0, 8))
    (16.0, 1.0)
    """
    return np.maximum(visited / ep, 1.0)


@formula(symbol="q·T/p·λ", cite="gpucalc-calibration", valid="ep >= 1; routing is even within a rank")
def routed_rows(group_tokens: Tokens, experts_per_token: Count, ep: Ranks, load_factor: Ratio) -> Count:
    """Rows of the grouped products of the fullest rank: copies of the tokens that go to its experts.

    >>> float(routed_rows(1024, 8, 8, 1.25)), float(routed_rows(1024, 8, 1, 1.0))
    (1280.0, 8192.0)
    """
    return np.maximum(group_tokens * experts_per_token / ep * load_factor, 1.0)


@formula(symbol="q·T/p·L_moe/L", cite="gpucalc-counting", valid="layers, ep >= 1")
def copied_tokens(
    group_tokens: Tokens, experts_per_token: Count, ep: Ranks, moe_layers: Count, layers: Count
) -> Tokens:
    """Copies of tokens that a rank gathers for its experts, in the average layer.

    >>> copied_tokens(1024, 8, 8, 16, 32)
    512.0
    """
    return group_tokens * experts_per_token / ep * moe_layers / layers


# --- attention -------------------------------------------------------------------------------------


@formula(symbol="d_dec", cite="deepseek2024", valid="latent_layers > 0: latent attention")
def decode_head_dim(
    latent_layers: Count,
    kv_lora_rank: Elements,
    qk_rope_head_dim: Elements,
    head_dim: Elements,
    v_head_dim: Elements,
) -> Elements:
    """Head size of decoding attention as a kernel of equal sizes would have it.

    Latent attention works in the latent: scores over r_kv + d_rope, values over r_kv.

    >>> float(decode_head_dim(61, 512, 64, 192, 128)), float(decode_head_dim(0, 0, 0, 128, 128))
    (544.0, 128.0)
    """
    worked = np.maximum(kv_lora_rank + qk_rope_head_dim / 2, 1.0)
    return np.where(np.greater(latent_layers, 0), worked, (head_dim + v_head_dim) / 2)


@formula(symbol="g_dec", cite="deepseek2024", valid="latent_layers > 0: latent attention; tp >= 1")
def decode_kv_heads(
    latent_layers: Count, kv_lora_rank: Elements, qk_rope_head_dim: Elements, kv_heads: Count, tp: Ranks
) -> Count:
    """Key-value heads that decoding attention reads; a latent is read once for both, about half a head.

    >>> round(float(decode_kv_heads(61, 512, 64, 128, 8)), 4), float(decode_kv_heads(0, 0, 0, 8, 16))
    (0.5294, 1.0)
    """
    read = kv_lora_rank + qk_rope_head_dim
    worked = np.maximum(kv_lora_rank + qk_rope_head_dim / 2, 1.0)
    return np.where(np.greater(latent_layers, 0), read / (2 * worked), np.ceil(kv_heads / tp))


@formula(symbol="g_pre", cite="deepseek2024", valid="latent_layers > 0: latent attention; tp >= 1")
def prefill_kv_heads(latent_layers: Count, heads: Count, kv_heads: Count, tp: Ranks) -> Count:
    """Key-value heads of prefill attention on one rank; latents are expanded to a key and value for each head.

    >>> float(prefill_kv_heads(61, 128, 128, 8)), float(prefill_kv_heads(0, 64, 8, 4))
    (16.0, 2.0)
    """
    return np.where(np.greater(latent_layers, 0), heads / tp, np.ceil(kv_heads / tp))


@formula(symbol="min(s, k)", cite="gpucalc-counting", valid="sparse_keys 0: dense attention")
def selected_keys(context: Count, sparse_keys: Count) -> Count:
    """Keys of the context that a query attends to: all, or as many as a selector chooses.

    >>> float(selected_keys(8192, 2048)), float(selected_keys(1000, 2048)), float(selected_keys(8192, 0))
    (2048.0, 1000.0, 8192.0)
    """
    return np.where(np.greater(sparse_keys, 0), np.minimum(sparse_keys, context), context)


@formula(symbol="B_idx", cite="gpucalc-counting", valid="8-bit keys of a selector")
def index_traffic(sequences: Count, context: Count, index_dim: Elements, index_bytes: Bytes = 1.0) -> Bytes:
    """Bytes read to score every key before the best are chosen.

    >>> index_traffic(10, 1000, 128)
    1280000.0
    """
    return sequences * context * index_dim * index_bytes


@formula(symbol="B_state", cite="gpucalc-counting", valid="linear mixers; tp >= 1")
def state_traffic(
    sequences: Count, state_bytes_per_sequence: Bytes, tp: Ranks, linear_layers: Count, passes: Count = 2.0
) -> Bytes:
    """Bytes of the states of a layer's linear mixer: read and written for every decoding sequence.

    >>> float(state_traffic(10, 4e6, 2, 20))
    2000000.0
    """
    return passes * sequences * state_bytes_per_sequence / tp / np.maximum(linear_layers, 1.0)


# --- communication ---------------------------------------------------------------------------------


@formula(symbol="t_AR", cite="gpucalc-counting", valid="the one-shot kernel stays inside a scale-up domain")
def best_reduce_time(library: Seconds, one_shot: Seconds, tp: Ranks, domain: Ranks) -> Seconds:
    """Time of an all-reduce by the library or by an engine's one-shot kernel, the faster.

    >>> float(best_reduce_time(20e-6, 8e-6, 8, 8)), float(best_reduce_time(20e-6, 8e-6, 16, 8))
    (8e-06, 2e-05)
    """
    return np.where(np.greater(tp, domain), library, np.minimum(library, one_shot))


@formula(symbol="L_exch", cite="gpucalc-counting", valid="")
def exchanging_layers(moe_layers: Count, attention_dp: Ranks) -> Count:
    """Layers whose experts are spread over attention ranks, which exchange tokens instead of reducing after them.

    >>> float(exchanging_layers(58, 8)), float(exchanging_layers(58, 1))
    (58.0, 0.0)
    """
    return moe_layers * np.greater(attention_dp, 1)


@formula(symbol="n_AR", cite="shoeybi2019", valid="layers >= 1")
def reduces_per_layer(exchanging: Count, layers: Count, blocks: Count = 2.0) -> Count:
    """All-reduces of an average layer: after the mixer, and after the feed-forward block unless experts exchange.

    >>> reduces_per_layer(16, 32), reduces_per_layer(0, 32)
    (1.5, 2.0)
    """
    return blocks - exchanging / layers


@formula(symbol="n_domain", cite="gpucalc-counting", valid="ranks, domain >= 1")
def exchange_domains(ranks: Ranks, domain: Ranks) -> Count:
    """Scale-up domains over which ranks that exchange tokens lie, at least one.

    >>> float(exchange_domains(32, 8)), float(exchange_domains(4, 8))
    (4.0, 1.0)
    """
    return np.maximum(ranks / domain, 1.0)


@formula(symbol="c_link", cite="deepseek2024", valid="")
def copies_over_links(copies: Count, ranks_per_domain: Ranks) -> Count:
    """Copies of a token that go over the links of a domain: no more than the domain has other ranks.

    >>> float(copies_over_links(6.2, 4)), float(copies_over_links(2.5, 8))
    (3.0, 2.5)
    """
    return np.minimum(copies, np.maximum(ranks_per_domain - 1, 0.0))


@formula(symbol="(p-1)·t_hop", cite="narayanan2021", valid="pp >= 1")
def stage_hops_time(hop: Seconds, pp: Ranks) -> Seconds:
    """Time to hand a pass from stage to stage.

    >>> stage_hops_time(1e-5, 4)
    3.0000000000000004e-05
    """
    return hop * (pp - 1)
