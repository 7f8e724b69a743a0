"""Gradient and parameter traffic of data parallelism, ZeRO, FSDP and HSDP, and the optimizer step.

Symbols: n = D·c ranks that hold the same parameters, S ranks over which states are sharded.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Flop, FlopPerSecond, Ratio, Seconds


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


@formula(symbol="S·t_b", cite="gpucalc-calibration", valid="partition by whole parameters; ZeRO 1 and 2")
def partition_broadcast_time(shards: Count, zero_stage: Count, seconds_per_partition: Seconds) -> Seconds:
    """Time to send updated weights when each sharing rank broadcasts its own partition, one after the other.

    An all-gather of equal shards needs none of it.

    >>> float(partition_broadcast_time(1024, 1, 0.003)), float(partition_broadcast_time(8, 0, 0.003))
    (3.072, 0.0)
    """
    return (zero_stage >= 1) * (zero_stage < 3) * (shards > 1) * shards * seconds_per_partition


@formula(symbol="t_opt", cite="kingma2015", valid="memory-bound update")
def optimizer_time(
    updated_parameters: Count,
    optimizer_traffic: Bytes,
    effective_memory_bandwidth: BytesPerSecond,
    optimizer_fixed_seconds: Seconds,
) -> Seconds:
    """Time of the optimizer update: states, gradients and weights pass HBM once, plus host time per step.

    >>> float(optimizer_time(1e9, 22.0, 2.2e12, 0.0))
    0.01
    """
    return updated_parameters * optimizer_traffic / effective_memory_bandwidth + optimizer_fixed_seconds


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
