"""Parameters held by one rank, by parallel dimension.

Symbols: L layers, h hidden, p pipeline stages, t tensor-parallel ranks, e expert-parallel ranks.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Flag, Ranks, Ratio


@formula(symbol="L_stage", cite="narayanan2021", valid="1 <= pp <= layers; stated ends leave a layer to each stage")
def stage_layers(layers: Count, pp: Count, layers_first: Count = 0, layers_last: Count = 0) -> Count:
    """Layers of the longest pipeline stage between the ends; uneven stages are legal and the longest decides.

    Stages at the ends whose layers are stated (`layers_first`, `layers_last`; 0 where they are not) leave the rest to
    the others. Of two stages with both stated it is the last.

    >>> float(stage_layers(126, 16)), float(stage_layers(32, 8, 2, 6)), float(stage_layers(32, 2, 17, 15))
    (8.0, 4.0, 15.0)
    """
    first, last = layers_first * np.greater(pp, 1), layers_last * np.greater(pp, 1)
    others = pp - np.greater(first, 0) - np.greater(last, 0)
    return np.where(np.greater(others, 0), np.ceil((layers - first - last) / np.maximum(others, 1)), last)


@formula(symbol="L_first", cite="narayanan2021", valid="1 <= pp <= layers")
def first_stage_layers(
    layers: Count, pp: Count, longest: Count, layers_first: Count = 0, layers_last: Count = 0
) -> Count:
    """Layers of the first stage: as stated, else those of a middle one, less one where two or more are missing.

    With the last stage stated it gives up the first that is missing.

    >>> float(first_stage_layers(126, 16, 8)), float(first_stage_layers(105, 2, 53))
    (7.0, 53.0)
    >>> float(first_stage_layers(32, 8, 4, 2, 6))
    2.0
    """
    ends = np.greater(layers_last, 0)
    missing = longest * (pp - ends) - (layers - layers_last)
    return np.where(np.greater(layers_first, 0) & np.greater(pp, 1), layers_first, longest - (missing >= 2 - ends))


@formula(symbol="L_last", cite="narayanan2021", valid="1 <= pp <= layers")
def last_stage_layers(
    layers: Count, pp: Count, longest: Count, layers_first: Count = 0, layers_last: Count = 0
) -> Count:
    """Layers of the last stage: as stated, else those of a middle one; it holds the head, so gives up a layer first.

    >>> float(last_stage_layers(126, 16, 8)), float(last_stage_layers(96, 8, 12))
    (7.0, 12.0)
    >>> float(last_stage_layers(32, 8, 4, 2, 6))
    6.0
    """
    missing = longest * (pp - np.greater(layers_first, 0)) - (layers - layers_first)
    return np.where(np.greater(layers_last, 0) & np.greater(pp, 1), layers_last, longest - (missing >= 1))


@formula(symbol="N_dense,rank", cite="shoeybi2019", valid="tp >= 1")
def layer_parameters_dense(
    attention_parameters: Count,
    attention_layers: Count,
    linear_mixer_parameters: Count,
    linear_layers: Count,
    dense_mlp_parameters: Count,
    dense_layers: Count,
    shared_expert_parameters: Count,
    moe_layers: Count,
    layers: Count,
    tp: Count,
) -> Count:
    """Tensor-sharded parameters of an average layer on one rank, without routed experts.

    >>> float(layer_parameters_dense(4e6, 2, 0, 0, 8e6, 2, 0, 0, 2, 4))
    3000000.0
    """
    mixers = attention_parameters * attention_layers + linear_mixer_parameters * linear_layers
    feed_forward = dense_mlp_parameters * dense_layers + shared_expert_parameters * moe_layers
    return (mixers + feed_forward) / layers / tp


@formula(symbol="N_rep,rank", cite="shoeybi2019", valid="layers >= 1")
def layer_parameters_replicated(
    norm_parameters: Count, router_parameters: Count, moe_layers: Count, layers: Count
) -> Count:
    """Parameters of an average layer that every tensor-parallel rank holds: norms and router.

    >>> float(layer_parameters_replicated(8192, 100, 1, 2))
    8242.0
    """
    return norm_parameters + router_parameters * moe_layers / layers


@formula(symbol="N_exp,rank", cite="liu2024moe", valid="ep divides experts")
def layer_parameters_experts(
    experts: Count, expert_parameters: Count, moe_layers: Count, layers: Count, ep: Count, etp: Count
) -> Count:
    """Routed-expert parameters of an average layer on one rank.

    >>> float(layer_parameters_experts(64, 1e6, 27, 27, 8, 2))
    4000000.0
    """
    return experts * expert_parameters * moe_layers / layers / (ep * etp)


@formula(symbol="E/e", cite="liu2024moe", valid="ep divides experts; 1 for dense models")
def local_experts(experts: Count, ep: Count) -> Count:
    """Routed experts of one layer on one rank.

    >>> float(local_experts(128, 8)), float(local_experts(0, 1))
    (16.0, 1.0)
    """
    return np.maximum(experts / ep, 1.0)


@formula(symbol="N_first", cite="shoeybi2019", valid="tp >= 1")
def first_stage_extra(
    embedding_parameters: Count, other_parameters: Count, head_parameters: Count, pp: Count, tp: Count
) -> Count:
    """Parameters of the first stage beside its layers: embeddings, and the head when it is the only stage.

    >>> float(first_stage_extra(8e6, 0, 8e6, 1, 2)), float(first_stage_extra(8e6, 0, 8e6, 4, 2))
    (8000000.0, 4000000.0)
    """
    return (embedding_parameters + head_parameters * (pp == 1)) / tp + other_parameters


@formula(symbol="N_last", cite="shoeybi2019", valid="tp >= 1")
def last_stage_extra(
    embedding_parameters: Count, head_parameters: Count, tied_embeddings: Flag, pp: Count, tp: Count
) -> Count:
    """Parameters of the last of several stages beside its layers: the head, a copy of the embedding when tied.

    >>> float(last_stage_extra(8e6, 0, 1, 4, 2)), float(last_stage_extra(8e6, 8e6, 0, 4, 2))
    (4000000.0, 4000000.0)
    """
    head = np.where(tied_embeddings > 0, embedding_parameters, head_parameters)
    return np.where(pp > 1, head / tp, 0.0)


@formula(symbol="N_ends", cite="shoeybi2019", valid="tp >= 1")
def end_parameters(embedding_parameters: Count, head_parameters: Count, tp: Ranks) -> Count:
    """Parameters of the embedding and the head on one rank.

    >>> end_parameters(8e6, 8e6, 2)
    8000000.0
    """
    return (embedding_parameters + head_parameters) / tp


@formula(symbol="N_end", cite="shoeybi2019", valid="tp >= 1")
def largest_end(embedding_parameters: Count, head_parameters: Count, tp: Ranks) -> Count:
    """Parameters of the embedding or of the head on one rank, whichever has more.

    >>> float(largest_end(8e6, 0, 2))
    4000000.0
    """
    return np.maximum(embedding_parameters, head_parameters) / tp


@formula(symbol="N_first,stage", cite="narayanan2021", valid="")
def stage_parameters(per_layer: Count, stage_depth: Count, extra: Count) -> Count:
    """Parameters of one kind on one rank of a stage.

    >>> float(stage_parameters(1e6, 10, 5e5))
    10500000.0
    """
    return per_layer * stage_depth + extra


@formula(symbol="active share", cite="fedus2021", valid="0 < experts_per_token <= experts")
def expert_share_used(experts_per_token: Count, experts: Count) -> Ratio:
    """Share of the routed experts that one token visits.

    >>> float(expert_share_used(8, 256))
    0.03125
    """
    return experts_per_token / np.maximum(experts, 1)
