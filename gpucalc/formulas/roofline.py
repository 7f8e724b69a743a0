"""Kernels that are not attention: matrix products, casts and memory-bound kernels, by a roofline of shape and traffic.

There is one model of a matrix product: `gemm_compute_time` and `gemm_memory_time`, joined by `gemm_time`. Training,
serving, `roofline gemm` and `eval --kind gemm` all use it (`gpucalc.estimate.products`). Its constants are arguments;
their values per device stand in `hardware_db/calibration/gemm.csv` and are found by
`gpucalc.database.efficiency.kernel_constants`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flop, FlopPerSecond, Ratio, Seconds

# Rows, columns and relative speed of the output tiles among which a BLAS library chooses: a
# smaller tile re-reads its operands more often, so it feeds the tensor cores less well. Tiles of
# 64 rows or columns exist too; with them the fit to measured products is worse.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93))


@formula(symbol="w", cite="gpucalc-calibration", valid="m, n >= 1; tiles of 128 to 256 elements")
def tile_utilisation(m: Count, n: Count, compute_units: Count) -> Ratio:
    """Share of the compute units' tile area that does useful work, for the best tile of the library.

    Loss comes from tiles that overhang the matrix and from the last, partly filled wave of tiles.

    >>> float(tile_utilisation(4096, 4096, 128))  # 512 tiles of 256 x 128: exactly 4 waves
    1.0
    >>> float(tile_utilisation(256, 128, 4))  # 2 tiles of 128 x 128 on 4 units at 0.93 beat 1 of 256 x 128
    0.465
    """
    useful = m * n
    best: Any = 0.0
    for rows, columns, speed in TILES:
        waves = np.ceil(np.ceil(m / rows) * np.ceil(n / columns) / compute_units)
        best = np.maximum(best, speed / (rows * columns) * useful / (waves * compute_units))
    return best


@formula(symbol="B", cite="williams2009", valid="m, n, k >= 1")
def gemm_traffic(m: Count, n: Count, k: Count, element_bytes: Bytes, output_bytes: Bytes) -> Bytes:
    """Least traffic of C(m,n) = A(m,k)·B(k,n): both operands read once, the result written once.

    >>> gemm_traffic(8, 4, 2, 2.0, 4.0)  # (16 + 8) * 2 + 32 * 4
    176.0
    """
    return element_bytes * k * (m + n) + output_bytes * m * n


@formula(symbol="t_c", cite="gpucalc-calibration", valid="m, n, k >= 1")
def gemm_compute_time(
    m: Count,
    n: Count,
    k: Count,
    peak: FlopPerSecond,
    compute_units: Count,
    l2_bytes: Bytes,
    output_bytes: Bytes,
    gemm_efficiency: Ratio,
    gemm_wave_exponent: Ratio,
    gemm_k_half: Count,
    gemm_l2_miss_penalty: Ratio,
    gemm_misalignment: Ratio = 1.0,
    gemm_alignment: Count = 64.0,
    sustained_clock: Ratio = 1.0,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time the tensor cores need for a matrix product.

    `gemm_efficiency` is the plateau over the dense `peak`; `gemm_wave_exponent` says how much of the idle
    tile area is lost (1 all of it; less where small products run at a higher clock or split k);
    `gemm_k_half` is the depth of the pipeline that each tile fills and drains; `gemm_l2_miss_penalty`
    what an output beyond the second-level cache costs, whose write-back displaces operands and draws
    power; `gemm_misalignment` multiplies products whose n or k is not a multiple of `gemm_alignment` elements.

    >>> args = dict(compute_units=128, l2_bytes=50e6, output_bytes=2.0, gemm_wave_exponent=0.5)
    >>> t = gemm_compute_time(4096, 4096, 1024, 1e15, **args, gemm_efficiency=0.8, gemm_k_half=128,
    ...                       gemm_l2_miss_penalty=0.0)
    >>> round(float(t) * 1e6, 2)  # 34.36 GFLOP at 0.8 PFLOP/s = 42.95 us, 1 + 128/1024 for the pipeline
    48.32
    """
    useful = flop_per_multiply_add * m * n * k / (gemm_efficiency * sustained_clock * peak)
    idle = tile_utilisation(m, n, compute_units) ** -gemm_wave_exponent
    spilled = np.minimum(1.0, output_bytes * m * n / l2_bytes)
    misaligned = ((n % gemm_alignment > 0) | (k % gemm_alignment > 0)) * (gemm_misalignment - 1)
    return useful * idle * (1 + gemm_k_half / k) * (1 + gemm_l2_miss_penalty * spilled) * (1 + misaligned)


@formula(symbol="t_m", cite="gpucalc-calibration", valid="m, n, k >= 1")
def gemm_memory_time(
    m: Count,
    n: Count,
    k: Count,
    memory_bandwidth: BytesPerSecond,
    l2_bytes: Bytes,
    element_bytes: Bytes,
    output_bytes: Bytes,
    gemm_memory_efficiency: Ratio,
    gemm_l2_read_ratio: Ratio,
) -> Seconds:
    """Time the memory needs for a matrix product.

    Traffic much smaller than the second-level cache takes `gemm_l2_read_ratio` of the time it would
    take from memory: below 1 where repeated products stay in the cache (Ada, workstation Blackwell).

    >>> t = gemm_memory_time(1, 8192, 8192, 2e12, 50e6, 2.0, 2.0, 0.8, 0.4)
    >>> round(float(t) * 1e6, 1)  # 134.25 MB at 1.6 TB/s, beyond the cache
    83.9
    """
    traffic = gemm_traffic(m, n, k, element_bytes, output_bytes)
    from_memory = np.minimum(1.0, (traffic / l2_bytes) ** 2)
    slowness = gemm_l2_read_ratio * (1 - from_memory) + from_memory
    return traffic / (gemm_memory_efficiency * memory_bandwidth) * slowness


@formula(symbol="max_p", cite="gpucalc-calibration", valid="both times > 0; order >= 1")
def smooth_maximum(first: Seconds, second: Seconds, order: Ratio) -> Seconds:
    """Norm of order `order` of two times: the larger when they differ much, more when they are alike.

    >>> round(float(smooth_maximum(3.0, 4.0, 2.0)), 12)
    5.0
    """
    larger = np.maximum(first, second)
    return larger * (1 + (np.minimum(first, second) / larger) ** order) ** (1 / order)


@formula(
    symbol="t_GEMM",
    cite="gpucalc-calibration",
    valid="compute > 0; memory > 0; gemm_overlap_order >= 1",
    bounds=("compute", "memory"),
)
def gemm_time(
    compute: Seconds, memory: Seconds, gemm_launch_seconds: Seconds, gemm_overlap_order: Ratio = 4.0
) -> Seconds:
    """Time of one matrix product: launch, plus compute and memory time joined by a smooth maximum.

    The two (`gemm_compute_time`, `gemm_memory_time`) overlap; where they are alike neither hides fully, hence the
    norm of order `gemm_overlap_order` (infinite = plain maximum). Casts of the operands are not included: see
    `cast_time`.

    >>> round(float(gemm_time(48.32e-6, 31.46e-6, 3e-6)) * 1e6, 2)  # 48.32 * (1 + (31.46 / 48.32)**4)**0.25 + 3
    53.36
    """
    return gemm_launch_seconds + smooth_maximum(compute, memory, gemm_overlap_order)


@formula(symbol="t_traffic", cite="williams2009", valid="traffic >= 0")
def traffic_time(traffic: Bytes, memory_bandwidth: BytesPerSecond, memory_efficiency: Ratio) -> Seconds:
    """Time to move `traffic` bytes through memory, without a launch.

    >>> round(traffic_time(1.6e9, 2e12, 0.8) * 1e6, 9)
    1000.0
    """
    return traffic / (memory_efficiency * memory_bandwidth)


@formula(symbol="t_launch", cite="gpucalc-calibration", valid="kernels >= 0")
def launch_time(kernels: Count, kernel_launch_seconds: Seconds) -> Seconds:
    """Time to start kernels one after the other on the device.

    >>> round(launch_time(2, 3e-6) * 1e6, 9)
    6.0
    """
    return kernels * kernel_launch_seconds


@formula(symbol="t_mem", cite="williams2009", valid="traffic >= 0")
def memory_bound_time(
    traffic: Bytes,
    memory_bandwidth: BytesPerSecond,
    memory_efficiency: Ratio,
    kernel_launch_seconds: Seconds,
) -> Seconds:
    """Time of a kernel that only moves `traffic` bytes through memory: norm, activation, dropout, optimizer.

    >>> round(memory_bound_time(1.6e9, 2e12, 0.8, 3e-6) * 1e6, 9)
    1003.0
    """
    return kernel_launch_seconds + traffic / (memory_efficiency * memory_bandwidth)


@formula(
    symbol="t_cast", cite="gpucalc-calibration", valid="elements >= 0; cast to 8 or 4 bits with a scale found first"
)
def cast_time(
    elements: Count,
    cast_bytes_per_element: Bytes,
    memory_bandwidth: BytesPerSecond,
    memory_efficiency: Ratio,
    cast_launch_seconds: Seconds,
) -> Seconds:
    """Time to quantise `elements` values: one pass finds the scale, another reads, rounds and writes.

    >>> round(cast_time(8192 * 8192, 5.0, 3.35e12, 0.8, 10e-6) * 1e6, 2)  # 335.5 MB at 2.68 TB/s = 125.20 us
    135.2
    """
    return cast_launch_seconds + elements * cast_bytes_per_element / (memory_efficiency * memory_bandwidth)


@formula(symbol="t_comp", cite="williams2009", valid="flops >= 0")
def compute_bound_time(flops: Flop, peak: FlopPerSecond, gemm_efficiency: Ratio) -> Seconds:
    """Time of a kernel of which only the FLOPs are known, at the plateau of large matrix products.

    >>> round(compute_bound_time(8e12, 1e15, 0.8) * 1e3, 9)
    10.0
    """
    return flops / (gemm_efficiency * peak)


@formula(symbol="F", cite="gpucalc-counting", valid="m, n, k >= 1")
def gemm_flops(m: Count, n: Count, k: Count, flop_per_multiply_add: Flop = 2.0) -> Flop:
    """Work of a matrix product.

    >>> gemm_flops(10, 20, 30)
    12000.0
    """
    return flop_per_multiply_add * m * n * k


@formula(symbol="P_achieved", cite="williams2009", valid="time > 0")
def achieved_rate(flops: Flop, time: Seconds) -> FlopPerSecond:
    """Work over time.

    >>> achieved_rate(8e12, 0.01)
    800000000000000.0
    """
    return flops / time


@formula(symbol="P_achieved/P", cite="williams2009", valid="peak > 0, dense")
def peak_share(achieved: FlopPerSecond, peak: FlopPerSecond) -> Ratio:
    """Share of the dense peak that is reached.

    >>> peak_share(8e14, 1e15)
    0.8
    """
    return achieved / peak
