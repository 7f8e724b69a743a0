"""Experts while serving: how many of them a batch visits, and the time of their grouped products."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flop, FlopPerSecond, Ratio, Seconds
from gpucalc.formulas.roofline import smooth_maximum


@formula(symbol="E_hit", cite="gpucalc-counting", valid="experts >= experts_per_token >= 1")
def experts_visited(experts: Count, experts_per_token: Count, tokens: Count, routing_evenness: Ratio) -> Count:
    """Expected number of distinct experts that `tokens` tokens visit: E·(1-(1+q·T/(E·κ))^-κ), at least q.

    Memory holds all experts, a step reads the visited ones, and the work is that of q per token. How often an
    expert is chosen varies as a gamma distribution of shape κ (`routing_evenness`): 1 is exponential, a large
    value uniform routing, E·(1-(1-q/E)^T).

    >>> round(float(experts_visited(256, 8, 64, 1e6)), 1), round(float(experts_visited(256, 8, 64, 1.0)), 1)
    (221.4, 170.7)
    """
    share = experts_per_token / experts * tokens
    spread = experts * (1 - (1 + share / routing_evenness) ** -routing_evenness)
    return np.maximum(spread, np.minimum(experts_per_token, experts))


@formula(symbol="Q_perm", cite="gpucalc-counting", valid="16-bit rows")
def copied_rows(copies: Count, hidden: Count, passes: Count = 4.0, row_bytes: Bytes = 2.0) -> Bytes:
    """Bytes moved to gather the rows of each expert and to add up their results: read and write, twice.

    >>> copied_rows(10, 100)
    8000.0
    """
    return passes * row_bytes * copies * hidden


@formula(symbol="t_c,grouped", cite="gpucalc-calibration", valid="visited >= 1; rows of one expert padded to a tile")
def grouped_compute_time(
    routed: Count,
    visited: Count,
    n: Count,
    k: Count,
    peak: FlopPerSecond,
    gemm_efficiency: Ratio,
    grouped_efficiency: Ratio,
    grouped_k_half: Count,
    tile_rows: Count = 64.0,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time the tensor cores need for one product per visited expert in one kernel.

    `routed` token copies are spread over `visited` experts; each expert's rows fill whole tiles of `tile_rows`, of
    which half a tile is lost on average when there are many. `grouped_k_half` is the depth of the pipeline that each
    tile fills and drains.

    >>> t = grouped_compute_time(8192, 64, 4096, 2048, 1e15, 0.8, 1.0, 0.0)
    >>> round(float(t) * 1e6, 1)  # (8192 + 64 * 32) rows, 2 * 4096 * 2048 FLOP each, at 0.8 PFLOP/s
    214.7
    """
    rows = np.maximum(routed + visited * tile_rows / 2, visited * np.minimum(tile_rows, routed))
    flops = flop_per_multiply_add * rows * n * k
    return flops / (gemm_efficiency * grouped_efficiency * peak) * (1 + grouped_k_half / k)


@formula(symbol="t_m,grouped", cite="gpucalc-calibration", valid="visited >= 1")
def grouped_memory_time(
    routed: Count,
    visited: Count,
    n: Count,
    k: Count,
    memory_bandwidth: BytesPerSecond,
    element_bytes: Bytes,
    output_bytes: Bytes,
    gemm_memory_efficiency: Ratio,
    grouped_memory_efficiency: Ratio,
    grouped_k_half: Count,
) -> Seconds:
    """Time to read the weights of the visited experts once, and to move the rows of all token copies.

    Loads of a tile start late and end early, as if it were `grouped_k_half` deeper.

    >>> t = grouped_memory_time(64, 32, 4096, 2048, 2e12, 1.0, 2.0, 0.8, 1.0, 0.0)
    >>> round(float(t) * 1e6, 1)  # 268.4 MB of weights, 0.7 MB of rows
    168.2
    """
    weights = visited * n * (k + grouped_k_half) * element_bytes
    rows = routed * (k * element_bytes + n * output_bytes)
    return (weights + rows) / (gemm_memory_efficiency * grouped_memory_efficiency * memory_bandwidth)


@formula(
    symbol="t_grouped",
    cite="gpucalc-calibration",
    valid="compute > 0; memory > 0; gemm_overlap_order >= 1",
    bounds=("compute", "memory"),
)
def grouped_gemm_time(
    compute: Seconds, memory: Seconds, gemm_launch_seconds: Seconds, gemm_overlap_order: Ratio = 4.0
) -> Seconds:
    """Time of the products of all visited experts of one rank: launch, and the smooth maximum of compute and memory.

    The parts are `grouped_compute_time` and `grouped_memory_time`.

    >>> round(float(grouped_gemm_time(214.7e-6, 388.0e-6, 3e-6)) * 1e6, 1)
    399.8
    """
    return gemm_launch_seconds + smooth_maximum(compute, memory, gemm_overlap_order)
