"""Sizes of one rank's share of a layer: columns of its matrices, layers of a kind, and the messages it sends.

Symbols: T tokens of a micro-batch on a rank, h hidden, t tensor-parallel ranks, a heads, d head size, r rank of a
latent (MLA), k experts per token. Activations travel in 16 bit.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Elements, Flag, Ranks, Ratio, Tokens

# --- layers of a kind ------------------------------------------------------------------------------


@formula(symbol="L - L_other", cite="gpucalc-counting", valid="others <= kind_layers")
def other_layers(kind_layers: Count, others: Count) -> Count:
    """Layers of a kind that are not of another: attention without latents, attention without a window.

    >>> other_layers(48, 40)
    8
    """
    return kind_layers - others


@formula(symbol="L_with", cite="gpucalc-counting", valid="")
def layers_with(kind_layers: Count, size: Count) -> Count:
    """Layers of a kind where something has a size; none where its size is 0.

    >>> float(layers_with(48, 1536)), float(layers_with(48, 0))
    (48.0, 0.0)
    """
    return kind_layers * np.greater(size, 0)


@formula(symbol="L_kind/L", cite="gpucalc-counting", valid="layers >= 1")
def layer_share(kind_layers: Count, layers: Count) -> Ratio:
    """Share of the layers that are of a kind.

    >>> layer_share(8, 32)
    0.25
    """
    return kind_layers / layers


@formula(symbol="β_t", cite="shoeybi2019", valid="layers >= 1")
def reduced_blocks(
    attention_layers: Count,
    linear_layers: Count,
    dense_layers: Count,
    moe_layers: Count,
    layers: Count,
    etp: Ranks,
    shared_expert_ffn_hidden: Elements,
) -> Ratio:
    """Blocks of an average layer whose output the tensor-parallel ranks add up: mixer and feed-forward.

    Experts that are whole on their rank need it only beside a shared expert.

    >>> float(reduced_blocks(32, 0, 32, 0, 32, 1, 0)), float(reduced_blocks(32, 0, 0, 32, 32, 1, 0))
    (2.0, 1.0)
    """
    experts = moe_layers / layers * ((etp > 1) | (shared_expert_ffn_hidden > 0))
    return (attention_layers + linear_layers + dense_layers) / layers + experts


# --- columns of matrices ---------------------------------------------------------------------------


@formula(symbol="n/t", cite="shoeybi2019", valid="ranks >= 1")
def rank_share(size: Count, ranks: Ranks) -> Count:
    """What one rank has of something that several split evenly: columns, heads, experts, tokens.

    >>> rank_share(28672, 8)
    3584.0
    """
    return size / ranks


@formula(symbol="max(1, n)", cite="gpucalc-counting", valid="")
def at_least_one(size: Count) -> Count:
    """A dimension that may be absent, as a product needs it; what is absent counts in no layer.

    >>> float(at_least_one(0)), float(at_least_one(64))
    (1.0, 64.0)
    """
    return np.maximum(size, 1.0)


@formula(symbol="(1+g)·n", cite="shazeer2020", valid="")
def gated_width(width: Elements, gated: Flag) -> Elements:
    """Columns of the first product of a feed-forward block: twice its width with a gate.

    >>> gated_width(3584.0, 1)
    7168.0
    """
    return (1 + gated) * width


@formula(symbol="n_mix", cite="gpucalc-counting", valid="linear_mixer_parameters as one matrix of h rows")
def linear_mixer_width(linear_mixer_parameters: Count, hidden: Elements, tp: Ranks) -> Elements:
    """Columns of a linear mixer's projections on one rank, as one matrix of h rows.

    >>> linear_mixer_width(8e6, 2000, 2)
    2000.0
    """
    return linear_mixer_parameters / hidden / tp


@formula(symbol="r_kv + d_rope", cite="deepseek2024", valid="multi-head latent attention")
def latent_width(kv_lora_rank: Elements, qk_rope_head_dim: Elements) -> Elements:
    """Columns of the projection to the latent of keys and values, with the shared rotary key; every rank holds it.

    >>> latent_width(512, 64)
    576
    """
    return kv_lora_rank + qk_rope_head_dim


@formula(symbol="a·d/t", cite="deepseek2024", valid="multi-head latent attention")
def latent_query_width(heads: Count, head_dim: Elements, tp: Ranks) -> Elements:
    """Columns of the queries of one rank.

    >>> latent_query_width(128, 192, 8)
    3072.0
    """
    return heads * head_dim / tp


@formula(symbol="a·(d_nope+d_v)/t", cite="deepseek2024", valid="multi-head latent attention")
def latent_key_value_width(
    heads: Count, head_dim: Elements, qk_rope_head_dim: Elements, v_head_dim: Elements, tp: Ranks
) -> Elements:
    """Columns of the keys and values that one rank makes of the latent; rotary keys are not made of it.

    >>> latent_key_value_width(128, 192, 64, 128, 8)
    4096.0
    """
    return heads * (head_dim - qk_rope_head_dim + v_head_dim) / tp


@formula(symbol="r_q or h", cite="deepseek2024", valid="q_lora_rank 0: queries have no latent")
def query_depth(q_lora_rank: Elements, hidden: Elements) -> Elements:
    """What queries are made of: their latent, or the residual stream where they have none.

    >>> float(query_depth(1536, 7168)), float(query_depth(0, 2048))
    (1536.0, 2048.0)
    """
    return np.where(np.greater(q_lora_rank, 0), q_lora_rank, hidden)


@formula(symbol="(d+d_v)/2", cite="gpucalc-counting", valid="")
def mean_head_dim(head_dim: Elements, v_head_dim: Elements) -> Elements:
    """Head size of attention as a kernel of equal sizes would have it: work and traffic are those of the mean.

    >>> mean_head_dim(192, 128)
    160.0
    """
    return (head_dim + v_head_dim) / 2


@formula(symbol="max(1, g/t)", cite="shoeybi2019", valid="fewer key/value heads than ranks are replicated")
def rank_kv_heads(kv_heads: Count, tp: Ranks) -> Count:
    """Key and value heads of one rank.

    >>> float(rank_kv_heads(8, 4)), float(rank_kv_heads(8, 16))
    (2.0, 1.0)
    """
    return np.maximum(kv_heads / tp, 1.0)


# --- messages --------------------------------------------------------------------------------------


@formula(symbol="2·T·h", cite="shoeybi2019", valid="")
def activation_message(tokens: Tokens, hidden: Elements, element_size: Bytes = 2.0) -> Bytes:
    """Bytes of the residual stream of a rank's micro-batch: what tensor-parallel ranks reduce after a block.

    >>> activation_message(8192, 4096)
    67108864.0
    """
    return element_size * tokens * hidden


@formula(symbol="2·T·h/n", cite="narayanan2021", valid="split >= 1")
def boundary_message(tokens: Tokens, hidden: Elements, split: Ranks, element_size: Bytes = 2.0) -> Bytes:
    """Bytes that a rank hands to the next pipeline stage, when `split` ranks each send a part.

    >>> boundary_message(8192, 4096, 8)
    8388608.0
    """
    return element_size * tokens * hidden / split


@formula(symbol="n", cite="korthikanti2022", valid="")
def boundary_ranks(p2p_scattered: Flag, tp: Ranks, sequence_ranks: Ranks) -> Ranks:
    """Ranks that share the transfer to the next stage: all of a tensor-parallel group that scatters it, else σ.

    >>> float(boundary_ranks(1, 8, 1)), float(boundary_ranks(0, 8, 1))
    (8.0, 1.0)
    """
    return np.where(np.greater(p2p_scattered, 0), tp, sequence_ranks)


@formula(symbol="2·T·g·(d+d_v)/t", cite="liu2023", valid="context parallelism")
def key_value_message(
    tokens: Tokens,
    kv_heads: Count,
    head_dim: Elements,
    v_head_dim: Elements,
    tp: Ranks,
    element_size: Bytes = 2.0,
) -> Bytes:
    """Bytes of the keys and values of one rank's tokens, a block of ring attention.

    >>> float(key_value_message(8192, 8, 128, 128, 2))
    16777216.0
    """
    return element_size * tokens * (np.maximum(kv_heads / tp, 1.0) * (head_dim + v_head_dim))


@formula(symbol="2·T·(n_qkv+n_o)", cite="jacobs2023", valid="cp divides the heads of a rank")
def head_exchange_message(
    tokens: Tokens, qkv: Elements, attention_columns: Elements, element_size: Bytes = 2.0
) -> Bytes:
    """Bytes of queries, keys, values and outputs that change from a share of tokens to a share of heads, and back.

    >>> head_exchange_message(8192, 5120, 4096)
    150994944.0
    """
    return element_size * tokens * (qkv + attention_columns)


@formula(symbol="2·k·T·h/t", cite="liu2024moe", valid="")
def routed_message(
    tokens: Tokens,
    experts_per_token: Count,
    hidden: Elements,
    tp: Ranks,
    expert_imbalance: Ratio = 1.0,
    element_size: Bytes = 2.0,
) -> Bytes:
    """Bytes of the copies of a rank's tokens that go to their experts, as the most loaded of them receives.

    >>> routed_message(4096, 8, 1000, 1)
    65536000.0
    """
    return element_size * tokens / tp * experts_per_token * expert_imbalance * hidden


@formula(symbol="2·e·T·h/t", cite="megatron-core", valid="dispatch by gathering")
def gathered_tokens_message(tokens: Tokens, hidden: Elements, tp: Ranks, ep: Ranks, element_size: Bytes = 2.0) -> Bytes:
    """Bytes of the tokens of all ranks of an expert group, each once.

    >>> float(gathered_tokens_message(4096, 1024, 1, 8))
    67108864.0
    """
    return element_size * tokens / tp * ep * hidden


@formula(symbol="(n-1)·S", cite="liu2023", valid="ranks >= 1")
def ring_message(message: Bytes, ranks: Ranks) -> Bytes:
    """Bytes that a rank sends while a block passes all ranks of a ring.

    >>> ring_message(1e6, 4)
    3000000.0
    """
    return message * (ranks - 1)


@formula(symbol="S·[n>1]", cite="gpucalc-counting", valid="")
def message_of_many(message: Bytes, ranks: Ranks) -> Bytes:
    """A message that a group of one does not send.

    >>> float(message_of_many(1e6, 8)), float(message_of_many(1e6, 1))
    (1000000.0, 0.0)
    """
    return message * np.greater(ranks, 1)
