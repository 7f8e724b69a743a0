"""What the optimizer step moves and holds: traffic of the update, transients, states on the host.

Symbols: N parameters, n ranks that share them.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds


@formula(symbol="b_update", cite="kingma2015", valid="fused update; each state is read and written once")
def update_traffic(gradient_bytes: Bytes, master_bytes: Bytes, moment_bytes: Bytes, weight_bytes: Bytes) -> Bytes:
    """Bytes per parameter that an update moves: gradient read, master and moments read and written, weight written.

    >>> float(update_traffic(4.0, 4.0, 8.0, 2.0)), float(update_traffic(2.0, 4.0, 8.0, 2.0))
    (30.0, 28.0)
    """
    return gradient_bytes + 2 * master_bytes + 2 * moment_bytes + weight_bytes


@formula(symbol="t_clip", cite="pytorch-optim", valid="norm and scaling are passes of their own")
def clip_time(
    parameters: Count, gradient_bytes: Bytes, effective_memory_bandwidth: BytesPerSecond, passes: Count = 3.0
) -> Seconds:
    """Time of gradient clipping that is not fused: read for the norm, read and written to scale.

    >>> float(clip_time(1e9, 4.0, 2e12))
    0.006
    """
    return passes * parameters * gradient_bytes / effective_memory_bandwidth


@formula(symbol="M_step", cite="pytorch-optim", valid="the update of all local parameters at once")
def step_transient(parameters: Count, transient_bytes: Bytes) -> Bytes:
    """Bytes that stand beside the states during an update: 4 per fp32 parameter with for-each kernels, 0 fused.

    >>> float(step_transient(1e9, 4.0)), float(step_transient(1e9, 0.0))
    (4000000000.0, 0.0)
    """
    return parameters * transient_bytes


@formula(symbol="M_bucket", cite="deepspeed-config", valid="buckets of elements, doubled by overlap")
def bucket_memory(
    bucket_elements: Count, element_bytes: Bytes = 2.0, buckets: Count = 2.0, share: Ratio = 4.5
) -> Bytes:
    """Bytes of the reduce and gather buckets of DeepSpeed with overlapped communication, 4.5 times their size.

    >>> float(bucket_memory(5e8))
    9000000000.0
    """
    return bucket_elements * element_bytes * buckets * share


@formula(symbol="M_ZeRO3", cite="deepspeed-estimator", valid="DeepSpeed's own estimate of model states, 16 bit")
def zero3_states(
    parameters: Count,
    largest_layer: Count,
    ranks: Count,
    offload_optimizer: Flag,
    offload_parameters: Flag,
    all_bytes: Bytes = 18.0,
    weight_bytes: Bytes = 2.0,
    gathered_bytes: Bytes = 4.0,
) -> Bytes:
    """Bytes of states on one GPU: 18·N/n, 2·N/n with the optimizer on the host, and a gathered layer with gradients.

    >>> [round(float(zero3_states(6.805e9, 131e6, 4, *off)) / 2**30, 3) for off in ((0, 0), (1, 0), (1, 1))]
    [29.007, 3.657, 0.488]
    """
    held = all_bytes * (1 - offload_optimizer) + weight_bytes * offload_optimizer * (1 - offload_parameters)
    return held * parameters / ranks + gathered_bytes * largest_layer


@formula(symbol="M_ZeRO2", cite="deepspeed-estimator", valid="DeepSpeed's own estimate of model states, 16 bit")
def zero2_states(
    parameters: Count, ranks: Count, offload_optimizer: Flag, weight_bytes: Bytes = 2.0, shared_bytes: Bytes = 18.0
) -> Bytes:
    """Bytes of states on one GPU: 2·N + 18·N/n, or 2·N with the optimizer on the host.

    >>> [round(float(zero2_states(66e9, 16, off)) / 2**30, 2) for off in (0, 1)]
    [192.09, 122.93]
    """
    return parameters * (weight_bytes + (1 - offload_optimizer) * shared_bytes / ranks)


@formula(symbol="M_host,2", cite="deepspeed-estimator", valid="ZeRO 2 with the optimizer on the host")
def zero2_host_memory(
    parameters: Count, ranks: Count, gradient_bytes: Bytes = 4.0, state_bytes: Bytes = 16.0, buffers: Ratio = 1.5
) -> Bytes:
    """Bytes of host memory: fp32 gradients of every rank, at least all states, and half as much for pinned buffers.

    >>> round(float(zero2_host_memory(66e9, 16)) / 2**30, 1)
    5900.9
    """
    return parameters * np.maximum(gradient_bytes * ranks, state_bytes) * buffers


@formula(symbol="M_host", cite="deepspeed-estimator", valid="sharded states on the host")
def host_state_memory(
    updated_parameters: Count,
    gpus_per_host: Count,
    host_bytes: Bytes,
    host_buffers: Ratio,
    offload_optimizer: Flag = 1.0,
    offload_parameters: Flag = 0.0,
    parameter_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of host memory of one node for the states of its GPUs, with the factor of pinned buffers.

    6.805e9 parameters on 4 GPUs, 16 B with the optimizer, 18 B with the weights too:

    >>> [round(float(host_state_memory(6.805e9 / 4, 4, 16.0, 1.5, 1, both)) / 2**30, 1) for both in (0, 1)]
    [152.1, 171.1]
    """
    held = host_bytes * offload_optimizer + parameter_bytes * offload_parameters
    return updated_parameters * gpus_per_host * held * host_buffers


@formula(symbol="t_host,opt", cite="ren2021", valid="the GPUs of a node share the memory of their host")
def host_update_time(
    updated_parameters: Count,
    update_bytes: Bytes,
    gpus_per_host: Count,
    host_memory_bandwidth: BytesPerSecond,
    offload_optimizer: Flag,
) -> Seconds:
    """Time of an update in host memory: the traffic of all GPUs of the host through its DRAM.

    8.6e9 parameters on each of 8 GPUs, 30 B each, through 410 GB/s:

    >>> round(float(host_update_time(8.6e9, 30.0, 8, 410e9, 1)), 2)
    5.03
    """
    return offload_optimizer * updated_parameters * update_bytes * gpus_per_host / host_memory_bandwidth
