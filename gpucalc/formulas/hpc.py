"""Scientific codes on many GPUs: roofline of a kernel, halo exchange, HPL and HPCG, strong scaling.

A "unit" is what the code counts: a cell, a lattice site, an atom. Rates are per GPU.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flop, FlopPerByte, FlopPerSecond, PerSecond, Ratio, Seconds

# --- the kernel on one GPU -------------------------------------------------------------------------


@formula(symbol="V_n", cite="williams2009", valid="units, n_gpus >= 1")
def units_per_gpu(units: Count, n_gpus: Count) -> Count:
    """Cells, sites or atoms that one GPU holds.

    >>> float(units_per_gpu(1e9, 8))
    125000000.0
    """
    return units / n_gpus


@formula(symbol="t_F", cite="williams2009", valid="peak > 0; 0 < compute_efficiency <= 1")
def kernel_compute_time(
    local_units: Count, flops_per_unit: Flop, kernel_peak: FlopPerSecond, compute_efficiency: Ratio
) -> Seconds:
    """Time of the arithmetic of one sweep over `local_units`, at a share of the peak of its precision.

    1e9 cells x 100 FLOP at half of 10 TFLOP/s: 20 ms.

    >>> round(float(kernel_compute_time(1e9, 100.0, 10e12, 0.5)), 6)
    0.02
    """
    return local_units * flops_per_unit / (compute_efficiency * kernel_peak)


@formula(symbol="t_B", cite="williams2009", valid="memory_bandwidth > 0; 0 < bandwidth_efficiency <= 1")
def kernel_memory_time(
    local_units: Count, bytes_per_unit: Bytes, memory_bandwidth: BytesPerSecond, bandwidth_efficiency: Ratio
) -> Seconds:
    """Time of the memory traffic of one sweep, at a share of the device memory's bandwidth.

    A lattice-Boltzmann step of 1e9 cells moves 153 B each; at 0.79 of 3.35 TB/s: 57.8 ms.

    >>> round(float(kernel_memory_time(1e9, 153.0, 3.35e12, 0.79)) * 1e3, 1)
    57.8
    """
    return local_units * bytes_per_unit / (bandwidth_efficiency * memory_bandwidth)


@formula(symbol="I", cite="williams2009", valid="bytes_per_unit > 0")
def arithmetic_intensity(flops_per_unit: Flop, bytes_per_unit: Bytes) -> FlopPerByte:
    """Operations for each byte of device memory that a kernel moves.

    >>> float(arithmetic_intensity(8.0, 16.0))
    0.5
    """
    return flops_per_unit / bytes_per_unit


@formula(symbol="M", cite="williams2009", valid="local_units > 0")
def resident_memory(local_units: Count, memory_per_unit: Bytes) -> Bytes:
    """Device memory that the units of one GPU hold.

    >>> float(resident_memory(1e9, 93.0))
    93000000000.0
    """
    return local_units * memory_per_unit


# --- halo exchange ---------------------------------------------------------------------------------


@formula(symbol="A_i", cite="chan1994", valid="units >= depth >= 1; parts of one dimension >= 1")
def face_units(units: Count, parts: Count, n_gpus: Count, lattice: Count, depth: Count) -> Count:
    """Units on one face of a block, normal to a dimension cut in `parts`, of a cube of `units` on `n_gpus` blocks.

    The cube has `lattice` dimensions, and `depth` units at each of its points (a fifth dimension that nobody cuts).
    A cube of side L in p_x·p_y·p_z blocks: the face normal to x has (L/p_y)(L/p_z) = L²·p_x/n units.
    1000³ on 2·2·2: 500² a face; cut in 8 slabs: 1000² each. 64⁴ of depth 16 on 2·2·2·2: 32³·16.

    >>> round(float(face_units(1e9, 2, 8, 3, 1))), round(float(face_units(1e9, 8, 8, 3, 1)))
    (250000, 1000000)
    >>> round(float(face_units(64.0**4 * 16, 2, 16, 4, 16)))
    524288
    """
    return depth * (units / depth) ** ((lattice - 1) / lattice) * parts / n_gpus


@formula(symbol="S_i", cite="chan1994", valid="face >= 0; parts >= 1")
def halo_bytes(face: Count, parts: Count, halo_bytes_per_unit: Bytes) -> Bytes:
    """Bytes that one GPU sends over the two faces of a dimension; none when the dimension is not cut.

    >>> float(halo_bytes(250000.0, 2, 20.0)), float(halo_bytes(250000.0, 1, 20.0))
    (10000000.0, 0.0)
    """
    return 2 * face * halo_bytes_per_unit * np.greater(parts, 1)


@formula(symbol="S_net", cite="chan1994", valid="parts, node_parts >= 1")
def halo_bytes_beyond_node(halo: Bytes, parts: Count, node_parts: Count) -> Bytes:
    """Of a dimension's halo, what leaves the scale-up domain, per GPU.

    A domain that holds `node_parts` of the dimension's `parts` in a row hands on the faces at its two ends only.

    >>> float(halo_bytes_beyond_node(8e6, 8, 2)), float(halo_bytes_beyond_node(8e6, 2, 2))
    (4000000.0, 0.0)
    """
    return halo / node_parts * np.greater(parts, node_parts)


@formula(symbol="t_H", cite="chan1994", valid="bandwidth > 0")
def halo_time(halo: Bytes, halo_bandwidth: BytesPerSecond, halo_messages: Count, halo_latency: Seconds) -> Seconds:
    """Time of a halo exchange: the bytes at the link's rate and the start of each message.

    20 MB at 50 GB/s and six messages of 10 µs: 460 µs.

    >>> round(float(halo_time(20e6, 50e9, 6, 10e-6)) * 1e6)
    460
    """
    return halo / halo_bandwidth + halo_messages * halo_latency


@formula(symbol="t_x", cite="chan1994", valid="0 <= overlap <= 1")
def exposed_halo(halo_exchange: Seconds, interior: Seconds, overlap: Ratio) -> Seconds:
    """What of a halo exchange the work on the interior does not hide.

    >>> float(exposed_halo(3.0, 2.0, 1.0)), float(exposed_halo(3.0, 2.0, 0.0)), float(exposed_halo(1.0, 2.0, 1.0))
    (1.0, 3.0, 0.0)
    """
    return np.maximum(halo_exchange - overlap * interior, 0.0)


@formula(symbol="S_x", cite="thakur2005", valid="n_gpus, domain >= 1")
def exchange_bytes_inside(local_units: Count, exchange_bytes: Bytes, n_gpus: Count, domain: Count) -> Bytes:
    """Of an all-to-all of a step, what one GPU sends to the others of its scale-up domain: (g-1)/n of its units.

    >>> float(exchange_bytes_inside(1e6, 64.0, 64.0, 8.0))
    7000000.0
    """
    return local_units * exchange_bytes * np.maximum(np.minimum(domain, n_gpus) - 1, 0) / n_gpus


@formula(symbol="S_x", cite="thakur2005", valid="n_gpus, domain >= 1")
def exchange_bytes_beyond(local_units: Count, exchange_bytes: Bytes, n_gpus: Count, domain: Count) -> Bytes:
    """Of an all-to-all of a step, what one GPU sends over the network: (n-g)/n of its units.

    >>> float(exchange_bytes_beyond(1e6, 64.0, 64.0, 8.0)), float(exchange_bytes_beyond(1e6, 64.0, 8.0, 8.0))
    (56000000.0, 0.0)
    """
    return local_units * exchange_bytes * np.maximum(n_gpus - domain, 0) / n_gpus


@formula(symbol="t_X", cite="thakur2005", valid="rates > 0")
def exchange_time(
    inside: Bytes,
    beyond: Bytes,
    link_rate: BytesPerSecond,
    network_rate: BytesPerSecond,
    exchanges: Count,
    n_gpus: Count,
    halo_latency: Seconds,
) -> Seconds:
    """Time of the all-to-all exchanges of a spectral code: links and network at once, and a message to every other GPU
    of its row of pencils, √n - 1 for each exchange.

    >>> round(float(exchange_time(7e6, 56e6, 400e9, 50e9, 4, 64, 10e-6)) * 1e6)
    1400
    """
    return np.maximum(inside / link_rate, beyond / network_rate) + exchanges * (np.sqrt(n_gpus) - 1) * halo_latency


@formula(symbol="β_s", cite="gpucalc-calibration", valid="0 < staged_share <= 1")
def staged_rate(host_bandwidth: BytesPerSecond, staged_share: Ratio) -> BytesPerSecond:
    """Rate of halos that are packed and copied through the host's memory: a share of the link to it.

    >>> float(staged_rate(63e9, 0.05)) / 1e9
    3.15
    """
    return host_bandwidth * staged_share


@formula(symbol="S", cite="gpucalc-counting", valid="times > 0")
def speedup_over(one_time: Seconds, other_time: Seconds) -> Ratio:
    """How many times as fast: the time of one over that of the other.

    >>> float(speedup_over(8.0, 2.0))
    4.0
    """
    return one_time / other_time


@formula(symbol="t_R", cite="thakur2005", valid="n_gpus >= 1; reductions >= 0")
def reduction_time(reductions: Count, n_gpus: Count, reduction_latency: Seconds) -> Seconds:
    """Time of the global sums of one step (scalar products, time-step limits): a tree there and back each.

    Two sums on 1024 GPUs at 5 µs a hop: 200 µs.

    >>> round(float(reduction_time(2, 1024, 5e-6)) * 1e6)
    200
    """
    return reductions * 2 * np.log2(n_gpus) * reduction_latency


@formula(symbol="R", cite="williams2009", valid="step_time > 0")
def update_rate(units: Count, step_time: Seconds) -> PerSecond:
    """Units updated for each unit of time: cells, sites or atom steps a second.

    >>> float(update_rate(1e9, 0.05))
    20000000000.0
    """
    return units / step_time


@formula(symbol="E", cite="amdahl1967", valid="times > 0; n_gpus >= 1")
def strong_efficiency(one_gpu_time: Seconds, step_time: Seconds, n_gpus: Count) -> Ratio:
    """Parallel efficiency of a fixed problem: the speed-up over its share.

    >>> float(strong_efficiency(8.0, 2.0, 8))
    0.5
    """
    return one_gpu_time / (n_gpus * step_time)


@formula(symbol="E_w", cite="gustafson1988", valid="times > 0")
def weak_efficiency(one_gpu_time: Seconds, step_time: Seconds) -> Ratio:
    """Parallel efficiency of a problem that grows with the GPUs.

    >>> float(weak_efficiency(1.0, 1.25))
    0.8
    """
    return one_gpu_time / step_time


@formula(symbol="t_n", cite="amdahl1967", valid="n_gpus >= 1; terms >= 0")
def fitted_strong_time(n_gpus: Count, divided: Seconds, serial: Seconds, logarithmic: Seconds) -> Seconds:
    """Time per unit of simulated time of a code whose strong scaling was fitted: divided, serial and tree parts.

    8 s divided over 4 GPUs, 1 s serial and 0.5 s a doubling: 2 + 1 + 1.

    >>> float(fitted_strong_time(4, 8.0, 1.0, 0.5))
    4.0
    """
    return divided / n_gpus + serial + logarithmic * np.log2(n_gpus)


# --- HPL and HPCG ----------------------------------------------------------------------------------


@formula(symbol="N", cite="petitet2018", valid="memory > 0; 0 < memory_fill <= 1")
def hpl_order(usable_bytes: Bytes, n_gpus: Count, memory_fill: Ratio, element: Bytes = 8.0) -> Count:
    """Order of the largest FP64 matrix that fills a share of the device memory.

    1024 GPUs of 80 GB filled to 0.95: 3.1 million.

    >>> round(float(hpl_order(80e9, 1024, 0.95)) / 1e6, 2)
    3.12
    """
    return np.floor(np.sqrt(memory_fill * usable_bytes * n_gpus / element))


@formula(symbol="R_max", cite="petitet2018", valid="n_gpus >= 1; 0 < hpl_efficiency <= 1")
def hpl_rate(kernel_peak: FlopPerSecond, n_gpus: Count, hpl_efficiency: Ratio) -> FlopPerSecond:
    """Rate of HPL: the share of the FP64 peak that systems of a GPU family reach.

    1024 H100 at 66.9 TFLOP/s and 0.65: 44.5 PFLOP/s.

    >>> round(float(hpl_rate(66.9e12, 1024, 0.65)) / 1e15, 1)
    44.5
    """
    return kernel_peak * n_gpus * hpl_efficiency


@formula(symbol="t_HPL", cite="petitet2018", valid="order >= 1; hpl > 0")
def hpl_time(order: Count, hpl: FlopPerSecond, flop_per_cube: Flop = 2 / 3) -> Seconds:
    """Time of one HPL run: (2/3)·N³ operations.

    N = 3.12 million at 44.5 PFLOP/s: 455 s.

    >>> round(float(hpl_time(3.12e6, 44.5e15)))
    455
    """
    return flop_per_cube * order**3 / hpl


@formula(symbol="R_HPCG", cite="dongarra2016", valid="n_gpus >= 1; hpcg_intensity > 0")
def hpcg_rate(memory_bandwidth: BytesPerSecond, n_gpus: Count, hpcg_intensity: FlopPerByte) -> FlopPerSecond:
    """Rate of HPCG, which streams sparse matrices: operations for each byte of device memory bandwidth.

    1000 A100-80GB at 0.17 FLOP/B: 347 TFLOP/s.

    >>> round(float(hpcg_rate(2.039e12, 1000, 0.17)) / 1e12)
    347
    """
    return hpcg_intensity * memory_bandwidth * n_gpus
