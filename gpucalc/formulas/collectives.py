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
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Ranks, Ratio, Seconds

# --- one level at a time ---------------------------------------------------------------------------


@formula(symbol="t_link", cite="thakur2005", valid="ranks_per_domain >= 1")
def link_ring_time(
    message: Bytes,
    ranks_per_domain: Ranks,
    passes: Count,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    hop_share: Ratio = 1.0,
) -> Seconds:
    """Time on the links of one domain of `passes` ring passes (1 gather or scatter, 2 all-reduce).

    A pass is γ-1 steps of message/γ bytes; handling the rank's own chunk costs `own_chunk` of a step. A torus, whose
    dimensions work at once, waits for `hop_share` of the steps.

    1 GB over 8 ranks, 0.875 GB at 0.8·450 GB/s = 2430.6 µs:

    >>> round(float(link_ring_time(1e9, 8, 1, 450e9, 0.8, 0.0, 0.0, 0.0)) * 1e6, 1)
    2430.6
    >>> float(link_ring_time(1e9, 1, 1, 450e9, 0.8, 1e-6, 3e-6, 0.3))
    0.0
    """
    steps = passes * (ranks_per_domain - 1)
    wire_time = message * ((steps + own_chunk * (steps > 0)) / (ranks_per_domain * link_bandwidth))
    waits = link_step_latency * steps * hop_share
    return wire_time / link_efficiency + 2 * np.sqrt(chunk_latency * wire_time) + waits


@formula(symbol="t_nvls", cite="nccl", valid="ranks_per_domain >= 1; NVSwitch of Hopper and later")
def link_nvls_time(
    message: Bytes,
    ranks_per_domain: Ranks,
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


@formula(symbol="t_link", cite="thakur2005", valid="ranks_per_domain >= 1")
def link_exchange_time(
    message: Bytes,
    ranks_per_domain: Ranks,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    all_to_all_efficiency: Ratio,
    chunk_latency: Seconds,
    own_chunk: Ratio,
    link_slowdown: Ratio = 1.0,
    relays: Count = 0.0,
    link_step_latency: Seconds = 0.0,
) -> Seconds:
    """Time on the links of one domain of an all-to-all in which each rank sends `message` bytes.

    Data reach their rail through the links, (γ-1)/γ of it; all peers are served at once, so there are no steps.
    On a torus it takes `link_slowdown` times as long as a gather, over `relays` hops.

    0.875 GB at 0.8·0.9·450 GB/s = 2700.6 µs:

    >>> round(float(link_exchange_time(1e9, 8, 450e9, .8, .9, 0, 0)) * 1e6, 1)
    2700.6
    """
    peers = ranks_per_domain - 1
    wire_time = message * ((peers + own_chunk * (peers > 0)) / (ranks_per_domain * link_bandwidth)) * link_slowdown
    bandwidth_time = wire_time / (link_efficiency * all_to_all_efficiency) + 2 * np.sqrt(chunk_latency * wire_time)
    return bandwidth_time + relays * link_step_latency


@formula(symbol="t_link", cite="thakur2005", valid="ranks_per_domain >= 1")
def link_chain_time(
    message: Bytes,
    ranks_per_domain: Ranks,
    link_bandwidth: BytesPerSecond,
    link_efficiency: Ratio,
    link_step_latency: Seconds,
    chunk_latency: Seconds,
    hop_share: Ratio = 1.0,
) -> Seconds:
    """Time on the links of one domain of a broadcast of `message` bytes by a pipelined chain.

    1 GB at 0.8·450 GB/s:

    >>> round(float(link_chain_time(1e9, 8, 450e9, .8, 0, 0)) * 1e6, 1)
    2777.8
    """
    wire_time = message * ((ranks_per_domain > 1) / link_bandwidth)
    bandwidth_time = wire_time / link_efficiency + 2 * np.sqrt(chunk_latency * wire_time)
    return bandwidth_time + link_step_latency * (ranks_per_domain - 1) * hop_share


@formula(symbol="t_net", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def network_chain_time(
    message: Bytes,
    ranks: Ranks,
    ranks_per_domain: Ranks,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_step_latency: Seconds,
    network_chunk_latency: Seconds,
    fabric_share: Ratio = 1.0,
) -> Seconds:
    """Time on the network of a broadcast by a pipelined chain, of which each rail sends a share.

    0.125 GB a NIC at 50 GB/s:

    >>> round(float(network_chain_time(1e9, 32, 8, 50e9, 1.0, 0.0, 0.0, 0.0)) * 1e3, 3)
    2.5
    """
    domains = ranks / ranks_per_domain
    wire_time = message * ((domains > 1) / (ranks_per_domain * network_bandwidth * fabric_share))
    bandwidth_time = wire_time / network_efficiency + 2 * np.sqrt(network_chunk_latency * wire_time)
    latency_time = network_startup * (domains > 1) + network_step_latency * (domains - 1)
    return bandwidth_time + latency_time


@formula(symbol="t_link", cite="hockney1994", valid="message >= 0")
def link_send_time(
    message: Bytes, link_bandwidth: BytesPerSecond, point_to_point_efficiency: Ratio, chunk_latency: Seconds
) -> Seconds:
    """Time on the links to send `message` bytes to one peer of the domain, without its start.

    >>> round(float(link_send_time(1e9, 450e9, .8, 0)) * 1e6, 1)
    2777.8
    """
    wire_time = message / link_bandwidth
    return wire_time / point_to_point_efficiency + 2 * np.sqrt(chunk_latency * wire_time)


@formula(symbol="t_net", cite="hockney1994", valid="message >= 0")
def network_send_time(
    message: Bytes,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    network_startup: Seconds,
    network_chunk_latency: Seconds,
    fabric_share: Ratio = 1.0,
) -> Seconds:
    """Time on the network to send `message` bytes over one NIC, of whose rate the fabric leaves `fabric_share`.

    100 MB over 0.95·50 GB/s = 2105.3 µs:

    >>> round(float(network_send_time(1e8, 50e9, .95, 0, 0)) * 1e6, 1)
    2105.3
    """
    wire_time = message / (network_bandwidth * fabric_share)
    return network_startup + wire_time / network_efficiency + 2 * np.sqrt(network_chunk_latency * wire_time)


@formula(symbol="t_start", cite="hockney1994", valid="ranks >= 1")
def startup_time(startup: Seconds, ranks: Ranks) -> Seconds:
    """Launch and synchronisation of a collective; a group of one does nothing.

    >>> float(startup_time(5e-6, 8)), float(startup_time(5e-6, 1))
    (5e-06, 0.0)
    """
    return startup * np.greater(ranks, 1)


# --- levels together -------------------------------------------------------------------------------


@formula(symbol="t_link", cite="nccl", valid="ranks_per_domain >= 1")
def fastest_link_time(ring: Seconds, nvls: Seconds, ranks_per_domain: Ranks, nvls_minimum_ranks: Ranks) -> Seconds:
    """Time on the links of an all-reduce: by a ring or, from `nvls_minimum_ranks` ranks in a domain, the switch.

    >>> float(fastest_link_time(4.9e-3, 3.6e-3, 8, 6)), float(fastest_link_time(4.9e-3, 3.6e-3, 4, 6))
    (0.0036, 0.0049)
    """
    return np.where(np.greater_equal(ranks_per_domain, nvls_minimum_ranks), np.minimum(ring, nvls), ring)


@formula(symbol="φ_net", cite="thakur2005", valid="ranks >= ranks_per_domain >= 1")
def all_to_all_remote_share(ranks: Ranks, ranks_per_domain: Ranks) -> Ratio:
    """Share of an all-to-all buffer that leaves the domain: (N-1)/N.

    >>> all_to_all_remote_share(32, 8)
    0.75
    """
    return 1 - ranks_per_domain / ranks


@formula(symbol="x", cite="gpucalc-counting", valid="ranks >= ranks_per_domain >= 1")
def crosses_network(ranks: Ranks, ranks_per_domain: Ranks) -> Flag:
    """Whether a group reaches beyond one domain.

    >>> float(crosses_network(16, 8)), float(crosses_network(8, 8))
    (1.0, 0.0)
    """
    return np.less(ranks_per_domain, ranks) * 1.0
