"""State-space mixers in chunks: what a scan computes and moves beside its projections."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Elements, Flop, FlopPerSecond, Ratio, Seconds, Tokens


@formula(symbol="F_scan", cite="dao2024", valid="scan_chunk > 0: state-space duality in chunks")
def scan_flops(
    tokens: Tokens,
    scan_inner: Elements,
    scan_state: Elements,
    scan_groups: Count,
    scan_chunk: Tokens,
    tp: Count,
    mac_flops: Flop,
) -> Flop:
    """FLOP of one layer's scan: scores within a chunk, their product, and the chunk's state read and written.

    No term grows with the square of the sequence.

    >>> round(scan_flops(8192.0, 4096.0, 128.0, 8.0, 128.0, 1.0, 2.0) / 1e9, 1)
    27.9
    """
    within = scan_chunk * (scan_groups * scan_state + scan_inner)
    return tokens * (within + 2 * scan_state * scan_inner) * mac_flops / tp


@formula(symbol="V_scan", cite="dao2024", valid="no state where scan_inner is 0")
def scan_traffic(
    tokens: Tokens,
    scan_inner: Elements,
    scan_state: Elements,
    scan_groups: Count,
    scan_chunk: Tokens,
    tp: Count,
    scan_element_bytes: Bytes,
) -> Bytes:
    """Bytes that the convolution, the scan, the gated norm and the chunks' states of one layer move.

    Convolution in and out and scan in: three times inner and both projections of the state; scan out, gate and norm:
    four times inner; states in fp32 are written and read once a chunk.

    >>> round(float(scan_traffic(8192.0, 4096.0, 128.0, 8.0, 128.0, 1.0, 2.0)) / 1e6, 1)
    838.9
    """
    streams = 3 * (scan_inner + 2 * scan_groups * scan_state) + 4 * scan_inner
    states = 4 * scan_inner * scan_state / np.maximum(scan_chunk, 1)
    return tokens * (streams + states) * scan_element_bytes / tp


@formula(symbol="t_scan", cite="dao2024", valid="")
def scan_compute_time(flops: Flop, scan_efficiency: Ratio, half_peak: FlopPerSecond) -> Seconds:
    """Time of the small products of a scan, which reach a part of the rate of large ones.

    >>> round(scan_compute_time(27.9e9, 0.25, 989e12) * 1e6, 1)
    112.8
    """
    return flops / (scan_efficiency * half_peak)
