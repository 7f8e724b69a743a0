"""Gradient and parameter traffic of data parallelism, ZeRO, FSDP and HSDP, and the optimizer step.

Symbols: n = D·c ranks that hold the same parameters, S ranks over which states are sharded.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Flop, FlopPerSecond, Ranks, Ratio, Seconds


@formula(symbol="n", cite="narayanan2021", valid="context-parallel ranks hold the same parameters")
def replica_ranks(dp: Count, cp: Count) -> Count:
    """Ranks over which gradients of the dense parameters are reduced: D·c.

    >>> float(replica_ranks(8, 2))
    16.0
    """
    return dp * cp


@formula(symbol="n_exp", cite="liu2024moe", valid="expert groups are folded into dp·cp·tp")
def expert_replica_ranks(dp: Count, cp: Count, tp: Count, ep: Count, etp: Count) -> Count:
    """Ranks that hold the same routed experts: D·c·t/(e·etp), at least 1.

    >>> float(expert_replica_ranks(8, 1, 4, 8, 1))
    4.0
    """
    return np.maximum(dp * cp * tp / (ep * etp), 1.0)


@formula(symbol="S", cite="zhao2023", valid="0 stands for all replicas")
def sharding_ranks(replicas: Count, shard_group: Count) -> Count:
    """Ranks over which ZeRO or FSDP shards: the shard group, or all replicas.

    >>> float(sharding_ranks(64, 8)), float(sharding_ranks(64, 0))
    (8.0, 64.0)
    """
    return np.where(shard_group > 0, np.minimum(shard_group, replicas), replicas)


@formula(symbol="n or 1", cite="liu2024moe", valid="")
def expert_group(ranks: Ranks, moe_layers: Count) -> Ranks:
    """Ranks of a group that shares experts; one, which sends nothing, in a model without them.

    >>> float(expert_group(8, 24)), float(expert_group(8, 0))
    (8.0, 1.0)
    """
    return np.where(np.greater(moe_layers, 0), ranks, 1.0)


@formula(symbol="n/S", cite="zhao2023", valid="shards >= 1")
def copy_ranks(replicas: Ranks, shards: Ranks) -> Ranks:
    """Ranks that hold the same shard, one in each shard group (hybrid sharding).

    >>> copy_ranks(64, 8)
    8.0
    """
    return replicas / shards


@formula(symbol="S/n", cite="zhao2023", valid="shards >= 1")
def sharded_message(message: Bytes, shards: Ranks) -> Bytes:
    """A rank's shard of a message.

    >>> sharded_message(8e9, 8)
    1000000000.0
    """
    return message / shards


@formula(symbol="γ_flat", cite="zhao2023", valid="flat parameters: frozen and trained weights in one tensor")
def flat_gradient_share(trains_base: Flag, gathers_model: Flag, adapters: Flag) -> Ratio:
    """Share of a layer's parameters whose gradients are reduced under ZeRO 3.

    All where the base trains, and where a flat parameter holds frozen weights beside adapters.

    >>> [float(flat_gradient_share(*case)) for case in ((1, 0, 0), (0, 1, 1), (0, 0, 1))]
    [1.0, 1.0, 0.0]
    """
    return np.maximum(trains_base, gathers_model * adapters)


@formula(symbol="M_grad", cite="rajbhandari2020", valid="")
def gradient_message(parameters: Count, gradient_comm_bytes: Bytes) -> Bytes:
    """Bytes of the gradients that one rank reduces per step.

    >>> float(gradient_message(1e9, 2.0))
    2000000000.0
    """
    return parameters * gradient_comm_bytes


@formula(symbol="M_param", cite="rajbhandari2020", valid="")
def parameter_message(parameters: Count, weight_comm_bytes: Bytes) -> Bytes:
    """Bytes of the parameters that one rank gathers.

    >>> float(parameter_message(1e9, 2.0))
    2000000000.0
    """
    return parameters * weight_comm_bytes


@formula(symbol="Z_g", cite="torch-pipelining", valid="pipeline_reduces_once 0 or 1")
def gradient_stage(zero_stage: Count, pp: Ranks, pipeline_reduces_once: Flag) -> Count:
    """ZeRO stage by which gradients are held and reduced.

    A pipeline that reduces with the last micro-batch alone keeps whole gradients until then, as stage 1 does.

    >>> [float(gradient_stage(stage, 8, 1)) for stage in (1, 2, 3)], float(gradient_stage(2, 1, 1))
    ([1.0, 1.0, 3.0], 2.0)
    """
    return zero_stage - 1.0 * pipeline_reduces_once * np.equal(zero_stage, 2) * np.greater(pp, 1)


@formula(symbol="t_red", cite="rajbhandari2020", valid="ZeRO 0: all-reduce; 1 and 2: reduce-scatter; 3: per layer")
def gradient_reduction_time(all_reduce: Seconds, reduce_scatter: Seconds, zero_stage: Count) -> Seconds:
    """Time in which the gradients of a stage are reduced, as the ZeRO stage does it.

    >>> [float(gradient_reduction_time(2.0, 1.0, stage)) for stage in (0, 1, 2, 3)]
    [2.0, 1.0, 1.0, 0.0]
    """
    return np.where(np.equal(zero_stage, 0), all_reduce, reduce_scatter) * np.less(zero_stage, 3)


@formula(symbol="t_copies", cite="zhao2023", valid="hybrid sharding")
def copies_reduction_time(copies: Seconds, zero_stage: Count) -> Seconds:
    """Time to reduce shards over the groups that hold copies of them; without sharding there are none.

    >>> float(copies_reduction_time(1.0, 3)), float(copies_reduction_time(1.0, 0))
    (1.0, 0.0)
    """
    return copies * np.greater(zero_stage, 0)


@formula(symbol="t_each", cite="rajbhandari2020", valid="ZeRO 2: gradients are sharded between micro-batches")
def repeated_reduction_time(reduction: Seconds, gradient_stage: Count) -> Seconds:
    """Time of a reduction that every micro-batch does, not only the last.

    >>> float(repeated_reduction_time(1.0, 2)), float(repeated_reduction_time(1.0, 1))
    (1.0, 0.0)
    """
    return reduction * np.equal(gradient_stage, 2)


@formula(symbol="[overlap]·t", cite="megatron-core", valid="dp_overlap 0 or 1")
def overlap_window(window: Seconds, dp_overlap: Flag) -> Seconds:
    """Time beside which gradients are reduced and parameters gathered: none where the launcher does not overlap.

    >>> float(overlap_window(2.0, 1)), float(overlap_window(2.0, 0))
    (2.0, 0.0)
    """
    return window * dp_overlap


@formula(symbol="S/q", cite="deepspeed-config", valid="gather_pieces >= 1")
def gathered_piece(message: Bytes, gather_pieces: Count) -> Bytes:
    """Bytes of one of the collectives in which the parameters of a layer are gathered.

    >>> gathered_piece(1.2e7, 12)
    1000000.0
    """
    return message / gather_pieces


@formula(symbol="[fetch]", cite="deepspeed-fetch", valid="flags")
def experts_fetched(modules_fetched: Flag, experts_apart: Flag, experts: Count) -> Flag:
    """Whether the weights of experts are gathered one by one, when the loop over them comes to each.

    >>> [float(experts_fetched(1, apart, experts)) for apart, experts in ((1, 8), (0, 8), (1, 0))]
    [1.0, 0.0, 0.0]
    """
    return modules_fetched * experts_apart * np.greater(experts, 0)


@formula(symbol="q_E", cite="deepspeed-fetch", valid="fetched 0 or 1")
def expert_pieces(gather_pieces: Count, fetched: Flag, experts: Count, ep: Ranks, gated: Flag) -> Count:
    """Collectives in which the experts of a layer are gathered: one for each weight where each is fetched.

    A loop calls experts in an order that differs from step to step, so that none is fetched ahead.

    >>> [float(expert_pieces(1, fetched, 128, 1, 1)) for fetched in (0, 1)]
    [1.0, 384.0]
    """
    return fetched * np.maximum(experts / ep, 1.0) * (2 + gated) + (1 - fetched) * gather_pieces


@formula(symbol="q·(t+t_fetch)", cite="deepspeed-fetch", valid="")
def fetched_time(piece: Seconds, pieces: Count, fetch_seconds: Seconds, fetched: Flag) -> Seconds:
    """Time in which the pieces of a layer's parameters are gathered, each after the hooks that ask for it.

    >>> fetched_time(1e-4, 384, 1e-3, 1)
    0.4224
    """
    return pieces * (piece + fetched * fetch_seconds)


@formula(symbol="n_tied", cite="megatron-core", valid="pp >= 1")
def tied_ranks(pp: Ranks) -> Ranks:
    """Ranks that share an embedding: the first and the last of several stages.

    >>> float(tied_ranks(4)), float(tied_ranks(1))
    (2.0, 1.0)
    """
    return np.minimum(pp, 2.0)


@formula(symbol="Δ_tied", cite="megatron-core", valid="pp >= 1")
def tied_stride(n_gpus: Ranks, pp: Ranks) -> Ranks:
    """Ranks between the first and the last stage: all but one stage's.

    >>> float(tied_stride(64, 4)), float(tied_stride(8, 1))
    (48.0, 1.0)
    """
    return np.maximum(n_gpus / pp * (pp - 1), 1.0)


@formula(symbol="(m-1)·t", cite="rajbhandari2020", valid="micro_batches >= 1")
def earlier_reductions_time(exposed: Seconds, micro_batches: Count) -> Seconds:
    """Exposed reductions of all micro-batches but the last.

    >>> float(earlier_reductions_time(0.5, 9))
    4.0
    """
    return exposed * (micro_batches - 1)


@formula(symbol="t_gather", cite="rajbhandari2020", valid="ZeRO 1 and 2: once per step")
def parameter_gather_time(all_gather: Seconds, zero_stage: Count) -> Seconds:
    """Time in which the updated parameters are gathered.

    >>> [float(parameter_gather_time(1.0, stage)) for stage in (0, 1, 2, 3)]
    [0.0, 1.0, 1.0, 0.0]
    """
    return all_gather * (np.equal(zero_stage, 1) | np.equal(zero_stage, 2))


@formula(symbol="t·[ZeRO 3]", cite="zhao2023", valid="")
def fully_sharded_time(time: Seconds, zero_stage: Count) -> Seconds:
    """Time of a collective that only ZeRO 3 does, for each layer and micro-batch.

    >>> float(fully_sharded_time(1.0, 3)), float(fully_sharded_time(1.0, 2))
    (1.0, 0.0)
    """
    return time * np.greater_equal(zero_stage, 3)


@formula(symbol="S_dp", cite="rajbhandari2020", valid="one replica sends nothing")
def step_traffic(
    gradients: Bytes, weights: Bytes, gradient_stage: Count, micro_batches: Count, trains_base: Flag, replicas: Ranks
) -> Bytes:
    """Bytes of gradients and parameters that a rank hands to collectives in a step, by ZeRO stage.

    ZeRO 0 the gradients once; 1 and the parameters once; 2 the gradients of each micro-batch; 3 for each
    micro-batch the parameters forward and backward, and the gradients.

    >>> [float(step_traffic(2.0, 1.0, stage, 8, 1, 4)) for stage in (0, 1, 2, 3)]
    [2.0, 3.0, 17.0, 32.0]
    """
    once = gradients * np.where(np.equal(gradient_stage, 2), micro_batches, 1.0)
    once = once + weights * (np.equal(gradient_stage, 1) | np.equal(gradient_stage, 2))
    each = micro_batches * (2 * weights + gradients * trains_base)
    return np.where(np.greater_equal(gradient_stage, 3), each, once) * np.greater(replicas, 1)


@formula(symbol="t_dp", cite="rajbhandari2020", valid="ZeRO 0 to 2")
def step_communication(
    all_reduce: Seconds, reduce_scatter: Seconds, all_gather: Seconds, gradient_stage: Count, micro_batches: Count
) -> Seconds:
    """Time of the collectives of gradients and parameters of a step without sharding of the weights, none hidden.

    >>> [float(step_communication(2.0, 1.0, 1.0, stage, 8)) for stage in (0, 1, 2, 3)]
    [2.0, 2.0, 9.0, 0.0]
    """
    scatters = reduce_scatter * np.where(np.equal(gradient_stage, 2), micro_batches, 1.0)
    return np.where(np.equal(gradient_stage, 0), all_reduce, scatters + all_gather) * np.less(gradient_stage, 3)


@formula(symbol="t_fsdp", cite="zhao2023", valid="ZeRO 3")
def sharded_step_communication(
    layer_gather: Seconds, layer_scatter: Seconds, layer_passes: Count, zero_stage: Count
) -> Seconds:
    """Time of the collectives of ZeRO 3 in a step: each layer is gathered twice and scattered once, none hidden.

    >>> float(sharded_step_communication(1.0, 1.0, 10, 3)), float(sharded_step_communication(1.0, 1.0, 10, 1))
    (30.0, 0.0)
    """
    return (2 * layer_gather + layer_scatter) * layer_passes * np.greater_equal(zero_stage, 3)


@formula(symbol="(σ-1)·t", cite="gpucalc-calibration", valid="straggler >= 1")
def straggler_time(time: Seconds, straggler: Ratio) -> Seconds:
    """Time that all GPUs wait for the slowest.

    >>> round(straggler_time(10.0, 1.02), 9)
    0.2
    """
    return time * (straggler - 1)


@formula(symbol="S·t_b", cite="gpucalc-calibration", valid="partition by whole parameters; ZeRO 1 and 2")
def partition_broadcast_time(shards: Count, zero_stage: Count, seconds_per_partition: Seconds) -> Seconds:
    """Time to send updated weights when each sharing rank broadcasts its own partition, one after the other.

    An all-gather of equal shards needs none of it.

    >>> float(partition_broadcast_time(1024, 1, 0.003)), float(partition_broadcast_time(8, 0, 0.003))
    (3.072, 0.0)
    """
    return (zero_stage >= 1) * (zero_stage < 3) * (shards > 1) * shards * seconds_per_partition


@formula(symbol="N_upd", cite="rajbhandari2020", valid="shards >= 1")
def updated_parameters(
    dense: Count,
    experts: Count,
    tuned_parameters: Count,
    trains_base: Flag,
    zero_stage: Count,
    shards: Ranks,
    expert_shards: Ranks,
    parameter_copies: Count,
) -> Count:
    """Parameters that one rank updates: its shard from ZeRO stage 1 on, else all that it holds, copies included.

    >>> float(updated_parameters(8e9, 0, 0, 1, 1, 8, 1, 1)), float(updated_parameters(8e9, 0, 0, 1, 0, 8, 1, 2))
    (1000000000.0, 16000000000.0)
    """
    sharded = np.greater_equal(zero_stage, 1)
    copies = np.where(sharded, 1.0, parameter_copies)
    own = copies * (dense * trains_base + tuned_parameters) / np.where(sharded, shards, 1.0)
    return own + copies * (experts * trains_base) / np.where(sharded, expert_shards, 1.0)


@formula(symbol="t_opt", cite="kingma2015", valid="memory-bound update")
def optimizer_time(
    updated_parameters: Count,
    optimizer_traffic: Bytes,
    memory_bandwidth: BytesPerSecond,
    memory_efficiency: Ratio,
    optimizer_fixed_seconds: Seconds,
    offload_optimizer: Flag = 0.0,
) -> Seconds:
    """Time of the optimizer update: states, gradients and weights pass HBM once, plus host time per step.

    Nothing of it passes HBM when the states rest on the host.

    >>> float(optimizer_time(1e9, 30.0, 2.5e12, 0.8, 0.0)), float(optimizer_time(1e9, 30.0, 2.5e12, 0.8, 0.01, 1))
    (0.015, 0.01)
    """
    passing = updated_parameters * optimizer_traffic / (memory_bandwidth * memory_efficiency)
    return passing * (1 - offload_optimizer) + optimizer_fixed_seconds


@formula(symbol="t_NS", cite="jordan2024", valid="matrices of hidden by wider; five iterations")
def orthogonalise_time(
    updated_parameters: Count,
    hidden: Count,
    orthogonalises: Flag,
    peak: FlopPerSecond,
    gemm_efficiency: Ratio,
    iterations: Count = 5.0,
    products: Count = 3.0,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time of Muon's Newton-Schulz iterations: three products a step, each of hidden multiply-adds a parameter.

    >>> round(float(orthogonalise_time(1e8, 8192, 1, 1e15, 0.8)), 5)
    0.03072
    """
    flops = flop_per_multiply_add * products * iterations * hidden * updated_parameters
    return orthogonalises * flops / (gemm_efficiency * peak)


@formula(symbol="t_off", cite="rajbhandari2020", valid="states on the host")
def offload_time(
    updated_parameters: Count, transfer_bytes: Bytes, host_bandwidth: BytesPerSecond, offload_optimizer: Flag
) -> Seconds:
    """Gradients to the host and weights back over PCIe when the optimizer runs there.

    >>> float(offload_time(1e9, 4.0, 2e10, 1))
    0.2
    """
    return offload_optimizer * updated_parameters * transfer_bytes / host_bandwidth


@formula(symbol="t_off,act", cite="rajbhandari2020", valid="each direction once per layer and micro-batch")
def activation_offload_time(
    kept_per_layer: Bytes, host_bandwidth: BytesPerSecond, offload_activations: Flag, offload_kept: Ratio = 0.1
) -> Seconds:
    """Time to move a layer's activations to the host, or back, when they are kept there; a tenth stays.

    >>> float(activation_offload_time(1e9, 2e10, 1)), float(activation_offload_time(1e9, 2e10, 0))
    (0.045, 0.0)
    """
    return offload_activations * (1 - offload_kept) * kept_per_layer / host_bandwidth


@formula(symbol="1+j·log₂(n/8)", cite="gpucalc-calibration", valid="8 to 16,384 GPUs")
def straggler_factor(n_gpus: Count, straggler_share: Ratio, gpus_at_one: Count = 8.0) -> Ratio:
    """Slow-down of synchronous steps by the slowest of many GPUs, growing with the logarithm of their number.

    >>> float(straggler_factor(1024, 0.006))
    1.042
    """
    return 1 + straggler_share * np.log2(np.maximum(n_gpus / gpus_at_one, 1.0))
