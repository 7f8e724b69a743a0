"""What a serving GPU holds beside the cache: weights by kind, the widths of a working set, corrections of the cache.

The cache itself, and the space that engines leave for it, are in `kv_cache`.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Elements, Flag, Ranks, Ratio, Tokens


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


@formula(symbol="k_full", cite="gpucalc-counting", valid="16-bit counts of the model")
def full_kind_bytes(kv_bytes_16: Bytes, kv_bytes_16_windowed: Bytes) -> Bytes:
    """Bytes that one token leaves in all layers without a window, in 16 bit.

    >>> full_kind_bytes(100.0, 40.0)
    60.0
    """
    return kv_bytes_16 - kv_bytes_16_windowed


@formula(symbol="κ_KV", cite="gpucalc-counting", valid="kind_bytes_16 0: the model's own count is not known")
def kind_token_cache(
    layer_token: Bytes,
    kind_bytes_16: Bytes,
    kind_layers: Count,
    latent_layers: Count,
    kv_heads: Count,
    tp: Ranks,
    kv_bytes: Bytes,
    counted_width: Bytes = 2.0,
) -> Bytes:
    """Bytes that one token leaves in one layer of a kind on one rank, where the model counts each kind for itself.

    Full and windowed layers may differ in heads and head size; a count that is not known leaves the mean layer.

    >>> float(kind_token_cache(4096.0, 45056.0, 10, 0, 8, 1, 2.0))  # a tenth more than the mean layer
    4505.6
    """
    shared = np.ceil(kv_heads / tp) / kv_heads
    counted = kind_bytes_16 * kv_bytes / counted_width * shared / np.maximum(kind_layers, 1.0)
    known = np.greater(kind_bytes_16, 0) & np.equal(latent_layers, 0)
    return np.where(known, counted, layer_token)


@formula(symbol="s/t", cite="gpucalc-counting", valid="tp >= 1")
def rank_state_bytes(state_bytes_per_sequence: Bytes, tp: Ranks) -> Bytes:
    """Bytes of the constant states of a sequence (linear mixers) on one rank.

    >>> rank_state_bytes(8e6, 4)
    2000000.0
    """
    return state_bytes_per_sequence / tp


@formula(symbol="T", cite="vllm", valid="NVIDIA GPUs")
def visible_memory(usable_bytes: Bytes, driver_reserve: Bytes) -> Bytes:
    """Memory that an engine sees (`cudaMemGetInfo`): what the driver reports less what it keeps itself.

    >>> round(visible_memory(81559 * 2**20, 0.46 * 2**30) / 2**30, 2)  # H100 SXM
    79.19
    """
    return usable_bytes - driver_reserve


@formula(symbol="A_s", cite="vllm", valid="chunk_tokens, max_seqs >= 1; logits are gathered, so not divided by tp")
def sampler_peak(chunk_tokens: Tokens, max_seqs: Count, vocab: Elements, sampler_bytes: Bytes) -> Bytes:
    """Peak of the sampler in the profiling pass: one row of logits for each of the sequences that share its tokens.

    >>> round(float(sampler_peak(8192, 1024, 128256, 15.4)) / 2**30, 2)  # Llama-3 in vLLM 0.19, which prints 1.89
    1.88
    """
    return sampler_bytes * np.minimum(max_seqs, chunk_tokens) * vocab


@formula(symbol="A_l", cite="vllm", valid="dense and shared feed-forward blocks")
def layer_peak(
    chunk_tokens: Tokens,
    hidden: Elements,
    ffn_hidden: Elements,
    dense_layers: Count,
    shared_expert_ffn_hidden: Elements,
    gated: Flag,
    tp: Ranks,
    half_bytes: Bytes = 2.0,
    copies: Count = 3.0,
) -> Bytes:
    """Peak of one layer in the profiling pass: the residual stream thrice, the joined projection and its product.

    >>> round(float(layer_peak(20000, 4096, 14336, 32, 0, 1, 1)) / 2**30, 2)  # Llama-3-8B: vLLM prints 2.07
    2.06
    """
    width = np.where(np.greater(dense_layers, 0), ffn_hidden, shared_expert_ffn_hidden)
    return half_bytes * chunk_tokens * (copies * hidden + (2 + gated) * width / tp)


@formula(symbol="A_e", cite="vllm", valid="ep, expert_tp >= 1; experts_per_token 0: no experts")
def expert_workspace(
    chunk_tokens: Tokens,
    attention_dp: Ranks,
    experts_per_token: Count,
    expert_ffn_hidden: Elements,
    hidden: Elements,
    expert_tp: Ranks,
    ep: Ranks,
    gated: Flag,
    moe_layers: Count,
    half_bytes: Bytes = 2.0,
) -> Bytes:
    """The two workspaces of fused experts, which stay: inputs and results of the routed copies, and their product.

    >>> round(float(expert_workspace(8192, 1, 8, 1536, 4096, 4, 1, 1, 94)) / 2**30, 3)  # Qwen3-235B at tp 4
    0.547
    """
    width = expert_ffn_hidden / expert_tp
    copies = chunk_tokens * attention_dp * experts_per_token / ep
    space = half_bytes * copies * (np.maximum((1 + gated) * width, hidden) + width)
    return np.where(np.greater(moe_layers, 0), space, 0.0)


@formula(symbol="A", cite="vllm", valid="")
def profiled_peak(sampler: Bytes, layer: Bytes, experts: Bytes) -> Bytes:
    """Peak of the profiling pass: sampler and layers follow each other, the workspaces of experts stay.

    >>> float(profiled_peak(2.0, 1.0, 0.5))
    2.5
    """
    return np.maximum(sampler, layer) + experts


@formula(symbol="N", cite="vllm", valid="tp, pp >= 1")
def outside_memory(
    tp: Ranks,
    pp: Ranks,
    attention_dp: Ranks,
    outside_alone: Bytes,
    outside_tensor: Bytes,
    outside_pipeline: Bytes,
    graph_pool: Bytes,
) -> Bytes:
    """Memory outside of the tensor allocator: context, communicators of the ranks, and graphs that are counted.

    >>> float(outside_memory(1, 1, 1, 1.0, 4.0, 0.5, 2.0)), float(outside_memory(8, 2, 1, 1.0, 4.0, 0.5, 0.0))
    (3.0, 4.0)
    >>> float(outside_memory(1, 4, 1, 1.0, 4.0, 0.5, 0.0))
    0.5
    """
    alone = np.where(np.greater(pp, 1), outside_pipeline, outside_alone)
    return np.where(np.greater(tp * attention_dp, 1), outside_tensor, alone) + graph_pool


@formula(symbol="F", cite="sglang", valid="memory when loading begins")
def free_at_start(visible: Bytes, outside: Bytes) -> Bytes:
    """Memory that is free when an engine begins to load weights.

    >>> free_at_start(79.0, 1.0)
    78.0
    """
    return visible - outside


@formula(symbol="u", cite="sglang", valid="SGLang 0.5; graph_batch the largest batch of captured graphs")
def static_share(
    usable_bytes: Bytes,
    chunk_tokens: Tokens,
    graph_batch: Count,
    tp: Ranks,
    pp: Ranks,
    attention_dp: Ranks,
    draft_tokens: Tokens,
    mebibyte: Bytes = 2.0**20,
) -> Ratio:
    """Share of the memory for weights and cache that SGLang takes where none is stated (mem_fraction_static).

    What it reserves, in MiB, grows with the prompts of a pass, with the captured graphs and with the ranks.

    >>> h100 = 81559 * 2**20
    >>> float(static_share(h100, 8192, 256, 1, 1, 1, 0)), float(static_share(h100, 8192, 512, 8, 1, 1, 0))
    (0.835, 0.818)
    """
    total = usable_bytes / mebibyte
    graphs = 2 * graph_batch + np.where(np.greater(attention_dp, 1), 3 * graph_batch * attention_dp, 0.0)
    drafts = np.where(np.greater(draft_tokens, 0), 2048.0, 0.0)
    reserved = 512 + 1.5 * np.maximum(chunk_tokens, 2048) + graphs + 1024 * tp * pp / 8 + drafts
    reserved = np.where(np.greater(total, 60 * 1024), np.maximum(reserved, 10 * 1024), reserved)
    return np.maximum(np.round((total - reserved) / total, 3), 0.0)


@formula(symbol="c_w", cite="vllm", valid="window_slack 1: a layer with a window also keeps the tokens of one pass")
def windowed_tokens(window: Count, chunk_tokens: Tokens, window_slack: Flag, context: Tokens) -> Tokens:
    """Tokens of a sequence for which a layer with a window keeps room.

    >>> float(windowed_tokens(128, 8192, 1, 131072)), float(windowed_tokens(128, 8192, 0, 131072))
    (8319.0, 128.0)
    """
    return np.minimum(window + window_slack * (chunk_tokens - 1), context)


@formula(symbol="N_lat", cite="deepseek2024", valid="latent_layers 0: no latents")
def latent_weights(
    latent_layers: Count, hidden: Elements, q_lora_rank: Elements, kv_lora_rank: Elements, qk_rope_head_dim: Elements
) -> Count:
    """Parameters of the projections down to the latents, which every tensor-parallel rank holds whole.

    >>> latent_weights(61, 7168, 1536, 512, 64)
    923467776
    """
    return latent_layers * hidden * (q_lora_rank + kv_lora_rank + qk_rope_head_dim)


@formula(symbol="N_split", cite="gpucalc-counting", valid="")
def split_mixer_weights(mixer: Count, latent: Count) -> Count:
    """Parameters of mixers that tensor-parallel ranks share.

    >>> split_mixer_weights(100.0, 20.0)
    80.0
    """
    return mixer - latent


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
