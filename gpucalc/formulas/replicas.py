"""Data parallelism over a shared card: fusion buffers, a ring through servers, overlap with backward, jitter."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Ranks, Ratio, Seconds


@formula(symbol="g", cite="gpucalc-counting", valid="")
def ranks_inside(replicas: Ranks, inner: Ranks, per_server: Ranks) -> Ranks:
    """Replicas of one server: each takes `inner` GPUs.

    >>> float(ranks_inside(64.0, 1.0, 8.0)), float(ranks_inside(4.0, 1.0, 8.0))
    (8.0, 4.0)
    """
    return np.minimum(replicas, np.maximum(per_server / inner, 1.0))


@formula(symbol="N", cite="gpucalc-counting", valid="")
def servers_of(replicas: Ranks, inside: Ranks) -> Count:
    """Servers over which the replicas lie.

    >>> float(servers_of(64.0, 8.0))
    8.0
    """
    return np.ceil(replicas / inside)


@formula(symbol="2S(n-1)/nB", cite="sergeev2018", valid="ring all-reduce")
def ring_time(gradients: Bytes, ranks: Count, bandwidth: BytesPerSecond, efficiency: Ratio) -> Seconds:
    """Time of an all-reduce of gradients around a ring; 0 for one rank.

    Between servers the bandwidth is that of the server's card: its GPUs share it, and the ring passes it once.

    >>> round(ring_time(102.2e6, 8.0, 12.5e9, 0.5) * 1e3, 1)  # ResNet-50 in fp32 over eight servers
    28.6
    """
    return 2 * gradients * (ranks - 1) / ranks / (efficiency * bandwidth)


@formula(symbol="N_buf", cite="sergeev2018", valid="")
def fusion_buffers(gradients: Bytes, buffer_bytes: Bytes) -> Count:
    """Buffers into which small gradients are gathered before they are sent.

    >>> float(fusion_buffers(178e6, 64e6))
    3.0
    """
    return np.ceil(gradients / buffer_bytes)


@formula(symbol="t_tail", cite="sergeev2018", valid="buffers >= 1")
def last_buffer(time: Seconds, buffers: Count) -> Seconds:
    """Time of the last buffer, which backward cannot hide: it is ready when backward ends.

    >>> last_buffer(0.03, 3.0)
    0.01
    """
    return time / buffers


@formula(symbol="t_exp", cite="sergeev2018", valid="")
def exposed_reduction(time: Seconds, tail: Seconds, backward: Seconds, hidden_share: Ratio) -> Seconds:
    """Reduction that backward does not hide: what exceeds the share of it that overlaps, at least the last buffer.

    >>> float(exposed_reduction(0.03, 0.01, 0.1, 0.8)), round(float(exposed_reduction(0.2, 0.01, 0.1, 0.8)), 3)
    (0.01, 0.12)
    """
    return np.maximum(time - hidden_share * backward, tail)


@formula(symbol="t_jit", cite="gpucalc-networks", valid="inside, servers >= 1")
def rank_jitter(time: Seconds, inside: Ranks, servers: Count, jitter_inside: Ratio, jitter_across: Ratio) -> Seconds:
    """Wait for the slowest rank: a share of the step that grows with the logarithm of ranks in a server and of servers.

    >>> round(float(rank_jitter(0.2, 8.0, 8.0, 0.01, 0.02)) * 1e3, 1)
    18.0
    """
    return time * (jitter_inside * np.log2(inside) + jitter_across * np.log2(servers))


@formula(symbol="t_opt", cite="gpucalc-networks", valid="")
def update_time(trained: Count, update_bytes: Bytes, state_share: Ratio, memory_bandwidth: BytesPerSecond) -> Seconds:
    """Time of the optimizer on the parameters that one GPU updates, moved once.

    >>> round(update_time(335e6, 26.0, 1.0, 2039e9) * 1e3, 2)
    4.27
    """
    return trained * update_bytes * state_share / memory_bandwidth
