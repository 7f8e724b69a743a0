"""Parameters gathered for use under ZeRO-3 and FSDP, quantised copies, and the ends of the model.

Symbols: N_l parameters of one layer on a tensor-parallel rank.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag, Ranks, Ratio


@formula(symbol="[gathers]", cite="zhao2023", valid="one rank gathers nothing")
def gathers_parameters(zero_stage: Count, shards: Ranks) -> Flag:
    """Whether parameters are gathered for use: ZeRO stage 3 over more than one rank.

    >>> [float(gathers_parameters(*case)) for case in ((3, 8), (3, 1), (1, 8))]
    [1.0, 0.0, 0.0]
    """
    return 1.0 * np.greater_equal(zero_stage, 3) * np.greater(shards, 1)


@formula(symbol="b_end", cite="pytorch-fsdp2", valid="")
def end_bytes(
    weight_comm_bytes: Bytes, trains_base: Flag, trains_embeddings: Flag, gradient_bytes_unreduced: Bytes = 2.0
) -> Bytes:
    """Bytes of a gathered parameter of the head and, where it trains, of its gradient before it is reduced.

    >>> float(end_bytes(2.0, 1, 0)), float(end_bytes(2.0, 0, 0))
    (4.0, 2.0)
    """
    return weight_comm_bytes + gradient_bytes_unreduced * np.maximum(trains_base, trains_embeddings)


@formula(symbol="L_ahead", cite="pytorch-fsdp2", valid="")
def layers_ahead(prefetched_layers: Count, gathers_model: Flag) -> Count:
    """Layers that are gathered ahead of their use; none where the whole model is one unit.

    >>> float(layers_ahead(1.0, 0)), float(layers_ahead(1.0, 1))
    (1.0, 0.0)
    """
    return prefetched_layers * (1 - gathers_model)


@formula(symbol="N·[ZeRO<3]", cite="megatron-core", valid="")
def unsharded_parameters(parameters: Count, zero_stage: Count) -> Count:
    """Parameters that a rank holds whole: none under ZeRO stage 3.

    >>> float(unsharded_parameters(1e9, 1)), float(unsharded_parameters(1e9, 3))
    (1000000000.0, 0.0)
    """
    return parameters * np.less(zero_stage, 3)


@formula(symbol="N_up", cite="rajbhandari2020", valid="shards >= 1")
def stepped_parameters(
    held: Count, shards: Ranks, zero_stage: Count, trains_base: Flag, offload_optimizer: Flag
) -> Count:
    """Parameters that one rank updates on its GPU.

    >>> float(stepped_parameters(8e9, 8, 1, 1, 0)), float(stepped_parameters(8e9, 8, 0, 1, 0))
    (1000000000.0, 8000000000.0)
    """
    return held * trains_base * (1 - offload_optimizer) / np.where(np.greater_equal(zero_stage, 1), shards, 1.0)


@formula(symbol="M_gather", cite="pytorch-fsdp2", valid="sharded parameters; one layer prefetched")
def gathered_layer(
    layer_parameters: Count,
    gathers: Flag,
    weight_comm_bytes: Bytes,
    gradient_comm_bytes: Bytes,
    trained: Flag,
    prefetched: Count = 1.0,
    gradient_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of a layer in its backward pass: its weights, those of the next, its gradients and what is reduced.

    Llama-3-8B, 218.1e6 parameters a layer, reduced in fp32: 2 + 2 + 2 + 4 B:

    >>> round(float(gathered_layer(218112000, 1, 2.0, 4.0, 1)) / 2**30, 3)
    2.031
    """
    weights = weight_comm_bytes * (1 + prefetched)
    return gathers * layer_parameters * (weights + trained * (gradient_bytes + gradient_comm_bytes))


@formula(symbol="M_fwd", cite="pytorch-fsdp2", valid="sharded parameters; copied out of one flat buffer")
def gathered_forward(layer_parameters: Count, gathers: Flag, weight_comm_bytes: Bytes, copies: Count = 3.0) -> Bytes:
    """Bytes of a layer in its forward pass: its weights, those of the next, and the buffer they are copied from.

    >>> round(float(gathered_forward(218112000, 1, 2.0)) / 2**30, 3)
    1.219
    """
    return gathers * layer_parameters * weight_comm_bytes * copies


@formula(symbol="M_ends", cite="pytorch-fsdp2", valid="embedding and head are units of their own")
def gathered_ends(
    embedding_parameters: Count, head_parameters: Count, tp: Count, gathers: Flag, unit_bytes: Bytes
) -> Bytes:
    """Bytes of the larger of embedding and head, which are gathered apart and never at once.

    >>> float(gathered_ends(5e8, 5e8, 1, 1, 8.0)), float(gathered_ends(5e8, 5e8, 1, 0, 8.0))
    (4000000000.0, 0.0)
    """
    return gathers * np.maximum(embedding_parameters, head_parameters) / tp * unit_bytes


@formula(symbol="b_fp8", cite="transformer-engine", valid="weights of the products of linear layers")
def quantised_copy_bytes(
    low_precision: Flag,
    fp8_params: Flag,
    block_scaled: Flag,
    caches_transpose: Flag,
    scale_share: Ratio = 0.03125,
    copy_bytes: Bytes = 1.0,
) -> Ratio:
    """Bytes a weight of an 8-bit product takes over the 2 of its 16-bit form, as a share of one byte each.

    16-bit parameters: row- and column-wise 8-bit copies beside them (2 + 2). Parameters in 8 bit: one byte, and a
    cached transpose where the hardware needs one; with a scale per block both layouts, 2·(1 + 1/32).

    >>> [float(quantised_copy_bytes(1, *case)) for case in ((0, 0, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1))]
    [4.0, 1.0, 2.0, 2.0625]
    >>> float(quantised_copy_bytes(0, 0, 0, 1))
    2.0

    Copies in 4 bit, with a byte of scale per 16:

    >>> float(quantised_copy_bytes(1, 0, 1, 1, copy_bytes=0.5625))
    3.125
    """
    layouts = np.where(block_scaled > 0, 2 * (1 + scale_share), 1.0 + caches_transpose)
    copies = 2.0 + (1.0 + caches_transpose) * copy_bytes * low_precision
    return np.where(low_precision * fp8_params > 0, layouts, copies)


@formula(symbol="[tied, p>1]", cite="megatron-core", valid="")
def is_tied(pp: Count, tied_embeddings: Flag) -> Flag:
    """Whether two stages share an embedding.

    >>> float(is_tied(4, 1)), float(is_tied(1, 1)), float(is_tied(4, 0))
    (1.0, 0.0, 0.0)
    """
    return 1.0 * tied_embeddings * np.greater(pp, 1)


@formula(symbol="4·V·h/t", cite="megatron-core", valid="tied embeddings on the first and last of several stages")
def tied_embedding_message(
    embedding_parameters: Count, tp: Count, pp: Count, tied_embeddings: Flag, gradient_comm_bytes: Bytes
) -> Bytes:
    """Bytes of the gradient of the shared embedding that the first and the last stage reduce, once a step.

    >>> round(float(tied_embedding_message(51200 * 12288, 8, 2, 1, 4.0)) / 1e8, 4)
    3.1457
    """
    return tied_embeddings * (pp > 1) * gradient_comm_bytes * embedding_parameters / tp


@formula(symbol="N_groups", cite="nccl", valid="")
def communicator_groups(tp: Count, pp: Count, cp: Count, ep: Count, dp: Count, tied_embeddings: Flag) -> Count:
    """Communicators of a rank: one for each axis with more than one rank, one for shared embeddings.

    >>> float(communicator_groups(2, 4, 4, 1, 16, 0)), float(communicator_groups(1, 1, 1, 1, 1, 1))
    (4.0, 0.0)
    """
    axes = 1.0 * (tp > 1) + (pp > 1) + (cp > 1) + (ep > 1) + (dp > 1)
    return axes + tied_embeddings * (pp > 1)


@formula(symbol="M_comm", cite="nccl", valid="buffers of the library outside the allocator")
def communicator_memory(groups: Count, group_bytes: Bytes, context_bytes: Bytes) -> Bytes:
    """Bytes outside the allocator: the context, and the buffers of each communicator.

    >>> float(communicator_memory(4, 3e8, 5e8))
    1700000000.0
    """
    return context_bytes + groups * group_bytes
