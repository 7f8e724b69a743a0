"""What a serving GPU holds beside the cache: weights by kind, the widths of a working set, corrections of the cache.

The cache itself, and the space that engines leave for it, are in `kv_cache`.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Elements, Ranks, Ratio


@formula(symbol="N_mix", cite="gpucalc-counting", valid="")
def mixer_weights(
    attention_parameters: Count, attention_layers: Count, linear_mixer_parameters: Count, linear_layers: Count
) -> Count:
    """Parameters of attention and of linear mixers in all layers.

    >>> mixer_weights(40e6, 32, 0, 0)
    1280000000.0
    """
    return attention_parameters * attention_layers + linear_mixer_parameters * linear_layers


@formula(symbol="N_ffn", cite="gpucalc-counting", valid="")
def feed_forward_weights(
    dense_mlp_parameters: Count, dense_layers: Count, shared_expert_parameters: Count, moe_layers: Count
) -> Count:
    """Parameters of dense feed-forward blocks and of shared experts in all layers.

    >>> feed_forward_weights(100e6, 3, 40e6, 10)
    700000000.0
    """
    return dense_mlp_parameters * dense_layers + shared_expert_parameters * moe_layers


@formula(symbol="N_exp", cite="gpucalc-counting", valid="")
def routed_weights(expert_parameters: Count, experts: Count, moe_layers: Count) -> Count:
    """Parameters of the routed experts in all layers.

    >>> routed_weights(44e6, 256, 58)
    653312000000.0
    """
    return expert_parameters * experts * moe_layers


@formula(symbol="N_tab", cite="gpucalc-counting", valid="pp >= 1")
def table_weights(embedding_parameters: Count, head_parameters: Count, pp: Ranks) -> Count:
    """Parameters of embedding and head on the fuller of the two stages that hold them; one stage alone has both.

    >>> float(table_weights(5e8, 5e8, 1)), float(table_weights(5e8, 5e8, 4))
    (1000000000.0, 500000000.0)
    """
    first = embedding_parameters + np.where(np.greater(pp, 1), 0.0, head_parameters)
    return np.maximum(first, head_parameters)


@formula(symbol="N_other", cite="gpucalc-counting", valid="")
def other_weights(
    router_parameters: Count, moe_layers: Count, norm_parameters: Count, layers: Count, other_parameters: Count
) -> Count:
    """Parameters that every tensor-parallel rank holds whole: routers, norms, and what has no kind of its own.

    >>> other_weights(1e6, 2, 8192, 10, 100)
    2082020.0
    """
    return router_parameters * moe_layers + norm_parameters * layers + other_parameters


@formula(symbol="W", cite="gpucalc-counting", valid="ranks >= 1")
def weight_space(parameters: Count, element_bytes: Bytes, ranks: Ranks) -> Bytes:
    """Bytes of weights of one kind on one GPU, shared by `ranks`.

    >>> weight_space(8e9, 1.0, 4)
    2000000000.0
    """
    return parameters * element_bytes / ranks


@formula(symbol="k", cite="gpucalc-counting", valid="latent_layers > 0: latent attention in all layers with a cache")
def layer_token_cache(
    latent_layers: Count,
    latent: Bytes,
    grouped: Bytes,
    index_heads: Count,
    index_dim: Elements,
    index_bytes: Bytes = 1.0,
) -> Bytes:
    """Bytes that one token leaves in one layer: keys and values, or the latent and the 8-bit key of a selector.

    >>> float(layer_token_cache(61, 1152.0, 0.0, 64, 128)), float(layer_token_cache(0, 0.0, 1024.0, 0, 0))
    (1280.0, 1024.0)
    """
    indexed = np.where(np.greater(index_heads, 0), index_dim * index_bytes, 0.0)
    return np.where(np.greater(latent_layers, 0), latent + indexed, grouped)


@formula(symbol="κ_KV", cite="gpucalc-counting", valid="kv_bytes_16 0: the model's own count is not known")
def cache_correction(
    latent_layers: Count,
    grouped: Bytes,
    kv_heads: Count,
    tp: Ranks,
    attention_layers: Count,
    kv_bytes_16: Bytes,
    kv_bytes: Bytes,
    counted_width: Bytes = 2.0,
    least: Bytes = 1.0,
) -> Ratio:
    """What the counted cache of a token is over that of a mean layer times the layers with one.

    Where full and windowed layers differ in shape, the mean layer is not the mean of the layers.

    >>> float(cache_correction(0, 4096.0, 8, 1, 10, 45056.0, 2.0))
    1.1
    """
    counted = kv_bytes_16 * kv_bytes / counted_width
    uniform = grouped * kv_heads / np.ceil(kv_heads / tp)
    known = np.greater(counted, 0) & np.equal(latent_layers, 0)
    return np.where(known, counted / np.maximum(uniform * attention_layers, least), 1.0)


@formula(symbol="w", cite="kwon2023", valid="window_layers 0: no layer has a window")
def cache_window(window_layers: Count, window: Count, context: Count) -> Count:
    """Tokens within the window of a layer that has one; all of them where none has.

    >>> float(cache_window(12, 128, 1000)), float(cache_window(0, 0, 1000))
    (128.0, 1000.0)
    """
    return np.where(np.greater(window_layers, 0), np.maximum(window, 1.0), context)


@formula(symbol="s/t", cite="gpucalc-counting", valid="tp >= 1")
def rank_state_bytes(state_bytes_per_sequence: Bytes, tp: Ranks) -> Bytes:
    """Bytes of the constant states of a sequence (linear mixers) on one rank.

    >>> rank_state_bytes(8e6, 4)
    2000000.0
    """
    return state_bytes_per_sequence / tp


@formula(symbol="n_logits", cite="gpucalc-counting", valid="tp >= 1")
def rank_logits(sampled_rows: Count, vocab: Elements, tp: Ranks) -> Elements:
    """Logits that one rank computes in a pass.

    >>> rank_logits(256, 128000, 8)
    4096000.0
    """
    return sampled_rows * vocab / tp


@formula(symbol="B_limit", cite="kwon2023", valid="")
def batch_limit(sequences: Count, max_seqs: Count) -> Count:
    """Sequences that decode together on one rank at most: those that the cache holds and the engine admits.

    >>> float(batch_limit(180.0, 128)), float(batch_limit(0.0, 128))
    (128.0, 1.0)
    """
    return np.maximum(np.minimum(sequences, max_seqs), 1.0)


@formula(symbol="K_prompt", cite="gpucalc-counting", valid="isl + osl >= 1")
def prompt_cache(sequence_bytes: Bytes, isl: Count, osl: Count) -> Bytes:
    """Cache of a sequence's prompt, of that of its full length.

    >>> prompt_cache(1e9, 3000, 1000)
    750000000.0
    """
    return sequence_bytes * isl / (isl + osl)
