"""Time of collective operations inside and across scale-up domains.

A group of `ranks` GPUs lies in `domains = ranks / ranks_per_domain` scale-up domains (NVLink, xGMI,
PCIe, ICI). Each level carries its own share of the traffic at the same time, so the slower level
rules: maximum, not sum. Across domains the `ranks_per_domain` NICs of a group work in parallel
("rails"). Each level costs a step latency, a bandwidth term, and a term √(latency·bytes/bandwidth),
which is what pipelining in chunks of the best size leaves: (√a + √b)² = a + b + 2√(a·b).

`message` is the nccl-tests size: the buffer for all-reduce and broadcast, the total over ranks for
all-gather, reduce-scatter and all-to-all.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds

# --- one level at a time ---------------------------------------------------------------------------


@formula(symbol="t_link", cite="thakur2005", valid="ranks_per_domain >= 1")
def link_ring_time(
    message: Bytes,
    ranks_per_domain: Count,
    passes: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
) -> Seconds:
    """Time on the links of one domain of `passes` ring passes (1 gather or scatter, 2 all-reduce).

    A pass is γ-1 steps of message/γ bytes; handling the rank's own chunk costs `own_chunk` of a step.

    1 GB over 8 ranks, 0.875 GB at 0.8·450 GB/s = 2430.6 µs:

    >>> round(float(link_ring_time(1e9, 8, 1, 450e9, 0.8, 0.0, 0.0, 0.0)) * 1e6, 1)
    2430.6
    >>> float(link_ring_time(1e9, 1, 1, 450e9, 0.8, 1e-6, 3e-6, 0.3))
    0.0
    """
    steps = passes * (ranks_per_domain - 1)
    wire_time = message * ((steps + own_chunk * (steps > 0)) / (ranks_per_domain * link_bandwidth))
    return wire_time / link_efficiency + 2 * np.sqrt(chunk_latency * wire_time) + link_step_latency * steps


@formula(symbol="t_net", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def network_ring_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    passes: Count,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time on the network of `passes` ring passes over the domains, spread over γ NICs (rails).

    1 GB over 4 domains of 8, two passes: 2·(3/4)·1 GB/8 = 187.5 MB per NIC at 50 GB/s = 3.75 ms:

    >>> round(float(network_ring_time(1e9, 32, 8, 2, 50e9, 1.0, 0.0, 0.0, 0.0)) * 1e3, 3)
    3.75
    >>> float(network_ring_time(1e9, 8, 8, 2, 50e9, 1.0, 30e-6, 5e-6, 0.0))
    0.0
    """
    domains = ranks / ranks_per_domain
    steps = passes * (domains - 1)
    wire_time = message * (steps / (ranks * network_bandwidth))
    bandwidth_time = wire_time / network_efficiency + 2 * np.sqrt(network_chunk_latency * wire_time)
    return bandwidth_time + network_startup * (domains > 1) + network_step_latency * steps


@formula(symbol="t_net", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def network_tree_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
    tree_efficiency: Ratio,
) -> Seconds:
    """Time on the network of an all-reduce by a double binary tree: 2·log2(N) steps instead of 2(N-1).

    Every inner node receives and sends the whole share, so 2·message/γ bytes less the root's 1/N.

    >>> round(float(network_tree_time(8e9, 8192, 8, 50e9, 1.0, 0.0, 5e-6, 0.0, 1.0)) * 1e3, 3)
    40.061
    >>> float(network_tree_time(8e9, 8, 8, 50e9, 1.0, 30e-6, 5e-6, 0.0, 0.9))
    0.0
    """
    domains = ranks / ranks_per_domain
    wire_time = message * (2 * (domains - 1) / (ranks * network_bandwidth))
    bandwidth_time = wire_time / (network_efficiency * tree_efficiency)
    latency_time = network_startup * (domains > 1) + network_step_latency * (2 * np.log2(domains))
    return bandwidth_time + 2 * np.sqrt(network_chunk_latency * wire_time) + latency_time


@formula(symbol="t_nvls", cite="nccl", valid="ranks_per_domain >= 1; NVSwitch of Hopper and later")
def link_nvls_time(
    message: Bytes,
    ranks_per_domain: Count,
    link_bandwidth: BytesPerSecond,
    nvls_efficiency: Ratio,
    nvls_chunk_latency: Seconds,
    link_step_latency: Seconds,
) -> Seconds:
    """Time on the links of an all-reduce that the switch adds up: S·(1 + 1/γ) bytes instead of 2S·(γ-1)/γ.

    Small messages take the latency of a ring, as measured.

    1 GB over 8 ranks: 1.125 GB at 0.7·450 GB/s = 3571.4 µs:

    >>> round(float(link_nvls_time(1e9, 8, 450e9, 0.7, 0.0, 0.0)) * 1e6, 1)
    3571.4
    """
    shared = ranks_per_domain > 1
    wire_time = message * (shared * (1 + 1 / ranks_per_domain) / link_bandwidth)
    latency_time = link_step_latency * (2 * (ranks_per_domain - 1))
    return wire_time / nvls_efficiency + 2 * np.sqrt(nvls_chunk_latency * wire_time) + latency_time


@formula(symbol="t_start", cite="hockney1994", valid="ranks >= 1")
def startup_time(startup: Seconds, ranks: Count) -> Seconds:
    """Launch and synchronisation of a collective; a group of one does nothing.

    >>> float(startup_time(5e-6, 8)), float(startup_time(5e-6, 1))
    (5e-06, 0.0)
    """
    return startup * np.greater(ranks, 1)


# --- collectives -----------------------------------------------------------------------------------


@formula(symbol="T_AG", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def all_gather_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    collective_startup: Seconds,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time of an all-gather after which each rank holds `message` bytes.

    >>> round(float(all_gather_time(1e9, 8, 8, 450e9, .8, 10e-6, 0, 0, 0, 50e9, 1, 0, 0, 0)) * 1e6, 1)
    2440.6
    >>> float(all_gather_time(1e9, 1, 1, 450e9, .8, 10e-6, 1e-6, 3e-6, .3, 50e9, 1, 0, 0, 0))
    0.0
    """
    link = link_ring_time(
        message, ranks_per_domain, 1, link_bandwidth, link_efficiency, link_step_latency, chunk_latency, own_chunk
    )
    network = network_ring_time(
        message,
        ranks,
        ranks_per_domain,
        1,
        network_bandwidth,
        network_efficiency,
        network_startup,
        network_step_latency,
        network_chunk_latency,
    )
    return collective_startup * (ranks > 1) + np.maximum(link, network)


@formula(symbol="T_RS", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def reduce_scatter_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    collective_startup: Seconds,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time of a reduce-scatter of `message` bytes on each rank: the all-gather, run backwards.

    >>> round(float(reduce_scatter_time(1e9, 8, 8, 450e9, .8, 10e-6, 0, 0, 0, 50e9, 1, 0, 0, 0)) * 1e6, 1)
    2440.6
    """
    link = link_ring_time(
        message, ranks_per_domain, 1, link_bandwidth, link_efficiency, link_step_latency, chunk_latency, own_chunk
    )
    network = network_ring_time(
        message,
        ranks,
        ranks_per_domain,
        1,
        network_bandwidth,
        network_efficiency,
        network_startup,
        network_step_latency,
        network_chunk_latency,
    )
    return collective_startup * (ranks > 1) + np.maximum(link, network)


@formula(symbol="T_AR", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def all_reduce_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    all_reduce_startup: Seconds,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
    tree_efficiency: Ratio,
    nvls_efficiency: Ratio,
    nvls_chunk_latency: Seconds,
    nvls_minimum_ranks: Count,
) -> Seconds:
    """Time of an all-reduce of `message` bytes by the best algorithm at each level.

    On the links a ring or, from `nvls_minimum_ranks` ranks in a domain, the switch (NVLS); on the
    network a ring or a double binary tree.

    Ring, one domain of 8: 1.75 GB at 0.8·450 GB/s = 4861.1 µs, + 10 µs:

    >>> round(float(all_reduce_time(1e9, 8, 8, 450e9, .8, 10e-6, 0, 0, 0, 50e9, 1, 0, 0, 0, .9, .7, 0, 99)) * 1e6, 1)
    4871.1

    In the switch, 3571.4 + 10 µs:

    >>> round(float(all_reduce_time(1e9, 8, 8, 450e9, .8, 10e-6, 0, 0, 0, 50e9, 1, 0, 0, 0, .9, .7, 0, 6)) * 1e6, 1)
    3581.4
    """
    ring = link_ring_time(
        message, ranks_per_domain, 2, link_bandwidth, link_efficiency, link_step_latency, chunk_latency, own_chunk
    )
    nvls = link_nvls_time(
        message, ranks_per_domain, link_bandwidth, nvls_efficiency, nvls_chunk_latency, link_step_latency
    )
    link = np.where(np.greater_equal(ranks_per_domain, nvls_minimum_ranks), np.minimum(ring, nvls), ring)
    network_ring = network_ring_time(
        message,
        ranks,
        ranks_per_domain,
        2,
        network_bandwidth,
        network_efficiency,
        network_startup,
        network_step_latency,
        network_chunk_latency,
    )
    network_tree = network_tree_time(
        message,
        ranks,
        ranks_per_domain,
        network_bandwidth,
        network_efficiency,
        network_startup,
        network_step_latency,
        network_chunk_latency,
        tree_efficiency,
    )
    return all_reduce_startup * (ranks > 1) + np.maximum(link, np.minimum(network_ring, network_tree))


@formula(symbol="T_A2A", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def all_to_all_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    remote_share: Ratio,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    all_to_all_efficiency: Ratio,
    all_to_all_startup: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time of an all-to-all in which each rank sends `message` bytes, 1/ranks of them to each.

    `remote_share` is the share of `message` that each NIC sends: (N-1)/N for a plain all-to-all,
    `dispatch_remote_share` for expert dispatch with one copy per domain. Data reach their
    rail through the links, (γ-1)/γ of it; all peers are served at once, so there are no steps.

    0.875 GB at 0.8·0.9·450 GB/s = 2700.6 µs:

    >>> round(float(all_to_all_time(1e9, 8, 8, 0, 450e9, .8, .9, 0, 0, 0, 50e9, 1, 0, 0, 0)) * 1e6, 1)
    2700.6
    """
    domains = ranks / ranks_per_domain
    peers = ranks_per_domain - 1
    link_wire = message * ((peers + own_chunk * (peers > 0)) / (ranks_per_domain * link_bandwidth))
    link = link_wire / (link_efficiency * all_to_all_efficiency) + 2 * np.sqrt(chunk_latency * link_wire)
    network_wire = message * ((domains > 1) * remote_share / network_bandwidth)
    network_latency = network_startup * (domains > 1) + network_step_latency * (domains - 1)
    network = network_wire / network_efficiency + 2 * np.sqrt(network_chunk_latency * network_wire) + network_latency
    return all_to_all_startup * (ranks > 1) + np.maximum(link, network)


@formula(symbol="φ_net", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def all_to_all_remote_share(ranks: Count, ranks_per_domain: Count) -> Ratio:
    """Share of an all-to-all buffer that leaves the domain: (N-1)/N.

    >>> all_to_all_remote_share(32, 8)
    0.75
    """
    return 1 - ranks_per_domain / ranks


@formula(symbol="T_B", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def broadcast_time(
    message: Bytes,
    ranks: Count,
    ranks_per_domain: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    collective_startup: Seconds,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time of a broadcast of `message` bytes by a pipelined chain; across domains each rail sends a share.

    >>> round(float(broadcast_time(1e9, 8, 8, 450e9, .8, 0, 0, 0, 50e9, 1, 0, 0, 0)) * 1e6, 1)
    2777.8
    """
    domains = ranks / ranks_per_domain
    link_wire = message * ((ranks_per_domain > 1) / link_bandwidth)
    link = link_wire / link_efficiency + 2 * np.sqrt(chunk_latency * link_wire)
    network_wire = message * ((domains > 1) / (ranks_per_domain * network_bandwidth))
    network = network_wire / network_efficiency + 2 * np.sqrt(network_chunk_latency * network_wire)
    link_latency = link_step_latency * (ranks_per_domain - 1)
    network_latency = network_startup * (domains > 1) + network_step_latency * (domains - 1)
    return collective_startup * (ranks > 1) + np.maximum(link + link_latency, network + network_latency)


@formula(symbol="t_p2p", cite="hockney1994", valid="crosses is 0 or 1")
def point_to_point_time(
    message: Bytes,
    crosses: Flag,
    link_bandwidth: BytesPerSecond,
    point_to_point_efficiency: Ratio,
    point_to_point_startup: Seconds,
    chunk_latency: Seconds,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_chunk_latency: Seconds,
) -> Seconds:
    """Time to send `message` bytes to one peer: in the domain (crosses 0) or over one NIC (crosses 1).

    100 MB over 0.95·50 GB/s = 2105.3 µs, + 25 µs:

    >>> round(float(point_to_point_time(1e8, 1, 450e9, .8, 25e-6, 0, 50e9, .95, 0, 0)) * 1e6, 1)
    2130.3
    """
    link_wire = message / link_bandwidth
    link = link_wire / point_to_point_efficiency + 2 * np.sqrt(chunk_latency * link_wire)
    network_wire = message / network_bandwidth
    network = network_startup + network_wire / network_efficiency + 2 * np.sqrt(network_chunk_latency * network_wire)
    return point_to_point_startup + np.where(np.equal(crosses, 1), network, link)
