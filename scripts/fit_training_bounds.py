"""Physical bounds of the constants that `fit_training.py` fits: (low, prior, high) and why.

The prior is a round number from reasoning or from kernel measurements alone, never the result of an
earlier fit, so that a source left out of a fit has no say in where that fit starts.
"""

from __future__ import annotations

from fnmatch import fnmatch

# A constant of one profile is named PROFILE.CONSTANT where its bounds differ from those of the rest.
BOUNDS: dict[str, tuple[float, float, float]] = {
    # A GPU at its power limit holds 75 to 100 % of the clock of short kernels.
    "sustained_clock_*": (0.75, 0.93, 1.0),
    "power_exponent": (0.1, 0.4, 1.0),
    # Share of the vendor kernel's rate that an older or portable kernel reaches.
    "flash_rate_*": (0.3, 0.9, 1.1),
    # The kernel measured on A100 is an inference kernel at 0.5 of peak; FlashAttention 2 reports 0.55 to 0.73.
    "flash_rate_vendor_ampere": (0.9, 1.2, 1.5),
    "flash_rate_fa2_ampere": (0.9, 1.2, 1.5),
    # FlashAttention 2 does not use the asynchronous units of Hopper; FlashAttention 1 in Triton even less.
    "flash_rate_fa2_hopper": (0.35, 0.6, 0.9),
    "flash_rate_fa1_hopper": (0.2, 0.45, 0.8),
    "flash_rate_fa1_ampere": (0.5, 0.8, 1.0),
    # Isolated collectives reach 0.75 to 0.8 of NVLink; compute beside them takes SMs and HBM.
    "training_link_efficiency": (0.4, 0.7, 0.85),
    # Isolated collectives reach 0.85 to 0.97 of the NIC.
    "training_network_efficiency": (0.4, 0.9, 0.97),
    # Five products against two are 2.5; recomputed scores and lower occupancy add to it.
    "backward_attention_ratio": (2.3, 2.7, 3.5),
    # Twice the tensors at most: gradients of inputs beside saved inputs.
    "backward_elementwise_ratio": (1.2, 1.7, 2.5),
    # Two to ten kernels of a few microseconds.
    "elementwise_launch": (3e-6, 1.2e-5, 6e-5),
    # A copy of each operand by rows and one by columns where blocks of 32 share a scale.
    "cast_share_mx": (0.2, 0.8, 1.5),
    # Over the efficiency of 16-bit products; isolated 4-bit products reach 0.85 to 0.9 of it.
    "fp4_gemm_efficiency": (0.4, 0.85, 1.0),
    "p2p_exposed_interleaved": (0.1, 0.5, 1.0),
    # From all casts fused to none.
    "cast_share": (0.1, 0.5, 1.2),
    # Spread of step times between GPUs grows with their number; 0 to 2 % per doubling.
    "straggler_share": (0.0005, 0.005, 0.02),
    # Clipping, loss scale, learning-rate schedule, logging.
    "optimizer_fixed_seconds": (0.002, 0.01, 0.06),
    # Traffic beside compute slows it: none to all of it.
    "fsdp_residual": (0.03, 0.3, 1.0),
    "cp_residual": (0.03, 0.3, 1.0),
    "dp_residual": (0.02, 0.2, 1.0),
    "cp_hidden_share": (0.4, 0.9, 1.0),
    "dp_hidden_share": (0.3, 0.9, 1.0),
    "fsdp_hidden_share": (0.3, 0.9, 1.0),
    "ep_exposed_share": (0.1, 0.6, 1.0),
    "p2p_exposed_share": (0.1, 0.7, 1.0),
    # Two ranks, a stream synchronisation and a network hop.
    "p2p_network_startup": (5e-6, 2.5e-5, 2e-4),
    # Ideal 2 and 3 weight gradients in the bubble; real ones are less even.
    "zero_bubble_fill_1": (0.6, 1.5, 2.2),
    "zero_bubble_fill_2": (1.5, 2.7, 3.3),
    # Grouped products of unequal sizes against one of their mean.
    "expert_gemm_factor": (0.9, 1.1, 2.0),
    # A layer of experts: router, permutation, dispatch, grouped products, combine.
    "expert_host_ratio": (2.0, 6.0, 25.0),
    # The same without CUDA graphs: 9.2 to 9.4 ms of launches per layer and micro-batch.
    "expert_host_ratio_launched": (4.0, 14.0, 30.0),
    "nemo-2026-05.ep_exposed_share": (0.1, 0.3, 1.0),
    # Scale, mask, softmax and dropout: 2 to 4 passes of 2 to 4 bytes read and written.
    "score_traffic_forward": (6.0, 13.0, 24.0),
    "score_traffic_backward": (8.0, 20.0, 36.0),
    # One pass of each operand is 1; a kernel per operation with fp32 casts is 4 to 8.
    "elementwise_factor": (0.8, 2.0, 8.0),
    # GPT-type blocks: LayerNorm and GELU are single kernels, as in Megatron; bias and residual are not fused.
    "composer.elementwise_factor": (0.8, 1.4, 3.0),
    # A broadcast of a partition: launch, tree over hundreds of ranks, tens of megabytes.
    "seconds_per_partition": (5e-4, 2e-3, 1e-2),
    # XLA fuses what lies between two products.
    "maxtext.elementwise_factor": (0.8, 1.2, 3.0),
    # Bias, residual, dropout and casts as kernels of their own; Llama-type operations count apart (unfused_share).
    "eager.elementwise_factor": (1.5, 3.0, 10.0),
    "megatron-legacy.elementwise_factor": (0.8, 1.2, 3.0),
    # Chunks and products share multiprocessors, memory and links.
    "tp_overlap_residual": (0.05, 0.35, 0.9),
    # A collective that waits for the network moves fewer bytes a second through the GPU.
    "network_residual_floor": (0.05, 0.5, 1.0),
    # 3 to 10 µs from C++ or graphs, 20 to 120 µs with autograd, dispatcher and hooks in Python.
    "seconds_per_operation": (3e-6, 1e-5, 1.2e-4),
    "serial_gap_seconds": (1e-5, 1e-3, 2e-2),
    # Without prefetch or coalescing a gather of small tensors reaches a fraction of the network.
    "sharded_bandwidth_ratio": (0.03, 0.3, 1.0),
    # Products are recomputed or not: none to all of a forward pass.
    "selective_recompute_share": (0.05, 0.4, 0.9),
    "selective_kept": (0.2, 0.5, 1.0),
    # Tensors kept over tensors that must be: none freed early to each intermediate kept.
    "activation_factor": (0.7, 1.0, 2.5),
    "allocated_factor": (1.0, 1.02, 1.1),
    "reserved_factor": (1.0, 1.04, 1.15),
    "allocated_fixed": (5e7, 3e8, 1.5e9),
    # Buffers of one communicator: 4 MiB a channel and peer.
    "group_bytes": (1e8, 3.5e8, 8e8),
    # A common interpreter: 10 to 20 µs of Python and dispatcher for each of one to four calls.
    "common.seconds_per_operation": (1.5e-5, 4e-5, 1.2e-4),
}
# Constants that only memory decides; they are fitted to peaks, the rest to times.
MEMORY = (
    "activation_factor",
    "selective_kept",
    "allocated_factor",
    "allocated_fixed",
    "reserved_factor",
    "group_bytes",
)
WHERE_NO_BOUNDS = 2.0  # a constant that is not listed may move by this factor around its present value


def stated(chain: list[str], constant: str) -> bool:
    """Whether the bounds of a constant stand above; without, its prior is its present value."""
    names = [*(f"{profile}.{constant}" for profile in chain), constant]
    return any(n in BOUNDS for n in names) or any(n.endswith("*") and fnmatch(constant, n) for n in BOUNDS)


def bounds(chain: list[str], constant: str, value: float) -> tuple[float, float, float]:
    """(low, prior, high) of a constant of the profile chain[0], which extends the ones after it.

    A factor of two around the present value where none are stated.
    """
    names = [*(f"{profile}.{constant}" for profile in chain), constant]
    names += [n for n in BOUNDS if n.endswith("*") and fnmatch(constant, n)]
    found = next((BOUNDS[n] for n in names if n in BOUNDS), None)
    return found or (value / WHERE_NO_BOUNDS, value, value * WHERE_NO_BOUNDS)
