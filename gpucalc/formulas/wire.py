"""Collectives over several scale-up domains: bytes on the wire by algorithm, and their time by protocol.

NCCL knows no hierarchical gather: its ring enters and leaves each domain once and carries the whole
message, so a group of N ranks in D domains with γ = N/D ranks each sends S·(N-1)/N through the γ cards of
a domain. Each algorithm and protocol costs a latency L and a time V on the wire; chunks of the message
travel behind each other, so what both leave together is L + V + k·√(L·V). NCCL takes the least of the
permitted ones, and so does the estimate.

`message` is the nccl-tests size; for all-to-all it is what each rank sends. Rates are one direction.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Ranks, Ratio, Seconds

# --- rates -----------------------------------------------------------------------------------------


@formula(symbol="B_ring", cite="nccl", valid="ranks_per_domain >= 1")
def ring_rate(
    ranks_per_domain: Ranks,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    lone_card_share: Ratio,
    link_bandwidth: BytesPerSecond,
    through_link_efficiency: Ratio,
    fabric_share: Ratio = 1.0,
) -> BytesPerSecond:
    """Rate of flat rings through several domains: the γ cards of a domain, or the links of a GPU, if slower.

    `fabric_share` is what the network beyond the cards leaves of their rate.

    8 cards of 50 GB/s at 0.965 behind links of 0.82·450 GB/s; a lone rank's card reaches 0.88 of that:

    >>> round(float(ring_rate(8, 50e9, 0.965, 0.88, 450e9, 0.82)) / 1e9, 2)
    369.0
    >>> round(float(ring_rate(1, 50e9, 0.965, 0.88, 450e9, 0.82)) / 1e9, 2)
    42.46
    """
    reached = network_efficiency * np.where(np.greater(ranks_per_domain, 1), 1.0, lone_card_share)
    card = network_bandwidth * reached * fabric_share
    return np.minimum(ranks_per_domain * card, link_bandwidth * through_link_efficiency)


@formula(symbol="B_tree", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def tree_rate(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    lone_card_share: Ratio,
    link_bandwidth: BytesPerSecond,
    through_link_efficiency: Ratio,
    tree_pair_rate: BytesPerSecond,
    tree_many_rate: BytesPerSecond,
    rank_cards: Ratio = 1.0,
    fabric_share: Ratio = 1.0,
) -> BytesPerSecond:
    """Rate at which an all-reduce by a double binary tree consumes its message.

    Through the cards goes the message at two domains and twice as much beyond, where each domain is an inner
    node of one tree and a leaf of the other; the links carry it twice. `tree_pair_rate` and `tree_many_rate`
    are what a channel carries, one a card, of which a rank has `rank_cards`.

    8 cards of 50 GB/s: 400 GB/s at two domains, 200 at four:

    >>> [float(tree_rate(n, 8, 50e9, 1, 1, 1e15, 1, 1e15, 1e15)) / 1e9 for n in (16, 32)]
    [400.0, 200.0]
    """
    reached = network_efficiency * np.where(np.greater(ranks_per_domain, 1), 1.0, lone_card_share)
    card = network_bandwidth * reached * fabric_share
    many = np.greater(ranks, 2 * ranks_per_domain)
    most = rank_cards * np.where(many, tree_many_rate, tree_pair_rate)
    channel = np.minimum(np.where(many, card / 2, card), most)
    return np.minimum(ranks_per_domain * channel, link_bandwidth * through_link_efficiency / 2)


@formula(symbol="B_LL", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def ll_rate(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    rate: BytesPerSecond,
    ll_share: Ratio,
    ll_pair_rate: BytesPerSecond,
    ll_many_rate: BytesPerSecond,
) -> BytesPerSecond:
    """Rate of protocol LL, half of whose bytes are flags, and which is bounded whatever the hardware.

    >>> [float(ll_rate(n, 8, 400e9, 0.55, 39e9, 20.4e9)) / 1e9 for n in (16, 32)]
    [39.0, 20.4]
    """
    bound = np.where(np.greater(ranks, 2 * ranks_per_domain), ll_many_rate, ll_pair_rate)
    return np.minimum(rate * ll_share, bound)


# --- time on the wire ------------------------------------------------------------------------------


@formula(symbol="V_ring", cite="nccl", valid="ranks >= 1; passes 1 or 2")
def ring_wire_time(message: Bytes, ranks: Ranks, passes: Count, rate: BytesPerSecond) -> Seconds:
    """Time on the wire of `passes` flat rings (1 gather or scatter, 2 all-reduce): S·(N-1)/N a pass.

    All-gather of 8 GiB on 2 domains of 8 at 12.5 GB/s a rank: 15/16·8.59 GB/100 GB/s = 80.53 ms:

    >>> round(float(ring_wire_time(8 * 2**30, 16, 1, 100e9)) * 1e3, 2)
    80.53

    All-reduce of 8 GiB on 3 domains of 8, 164.6 ms:

    >>> round(float(ring_wire_time(8 * 2**30, 24, 2, 100e9)) * 1e3, 1)
    164.6
    """
    return passes * message * ((ranks - 1) / ranks) / rate


@formula(symbol="V_tree", cite="nccl", valid="rate > 0")
def tree_wire_time(message: Bytes, rate: BytesPerSecond) -> Seconds:
    """Time on the wire of an all-reduce by trees whose rate is `tree_rate`.

    1 GB over 8 cards of 50 GB/s: two domains 2.5 ms, four 5.0 ms:

    >>> [float(tree_wire_time(1e9, rate)) * 1e3 for rate in (400e9, 200e9)]
    [2.5, 5.0]
    """
    return message / rate


@formula(symbol="V_nvls", cite="nccl", valid="ranks >= ranks_per_domain >= 1; NVSwitch of Hopper and later")
def nvls_tree_wire_time(
    message: Bytes,
    ranks: Ranks,
    ranks_per_domain: Ranks,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    nvls_pair_rate: BytesPerSecond,
    nvls_many_rate: BytesPerSecond,
    nvls_minimum_ranks: Ranks,
    fabric_share: Ratio = 1.0,
) -> Seconds:
    """Time on the wire of an all-reduce added up in the switches and carried by a tree between the domains.

    The cards carry S at two domains and 2·S beyond; `nvls_pair_rate` and `nvls_many_rate` bound the bus bandwidth.
    Without a switch that adds up (`nvls_minimum_ranks` infinite), or with one rank a domain, it never ends.

    1 GB on 2 domains of 8, 50 GB/s a card: 2·(15/16)·1 GB/800 GB/s = 2.344 ms:

    >>> round(float(nvls_tree_wire_time(1e9, 16, 8, 50e9, 1, 1e15, 1e15, 6)) * 1e3, 3)
    2.344
    >>> float(nvls_tree_wire_time(1e9, 16, 8, 50e9, 1, 1e15, 1e15, float("inf")))
    inf
    """
    card = ranks_per_domain * network_bandwidth * network_efficiency * fabric_share
    many = np.greater(ranks, 2 * ranks_per_domain)
    rate = np.where(many, np.minimum(card, nvls_many_rate), np.minimum(2 * card, nvls_pair_rate))
    adds_up = np.isfinite(nvls_minimum_ranks) & np.greater(ranks_per_domain, 1)
    return np.where(adds_up, 2 * message * ((ranks - 1) / ranks) / rate, np.inf)


@formula(symbol="V_sharp", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def in_switch_wire_time(
    message: Bytes,
    ranks_per_domain: Ranks,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    link_bandwidth: BytesPerSecond,
    through_link_efficiency: Ratio,
    in_switch_reduction: Flag,
    fabric_share: Ratio = 1.0,
) -> Seconds:
    """Time on the wire of an all-reduce that the network's switches add up (SHARP): the cards carry S once.

    Without such switches it never ends. 1 GB through 8 cards of 50 GB/s: 2.5 ms, at any number of domains:

    >>> round(float(in_switch_wire_time(1e9, 8, 50e9, 1, 450e9, 1, 1)) * 1e3, 3)
    2.5
    >>> float(in_switch_wire_time(1e9, 8, 50e9, 1, 450e9, 1, 0))
    inf
    """
    cards = ranks_per_domain * network_bandwidth * network_efficiency * fabric_share
    rate = np.minimum(cards, link_bandwidth * through_link_efficiency)
    return np.where(np.equal(in_switch_reduction, 1), message / rate, np.inf)


@formula(symbol="V_pat", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def pat_wire_time(
    message: Bytes, ranks: Ranks, ranks_per_domain: Ranks, rate: BytesPerSecond, pat_share: Ratio
) -> Seconds:
    """Time on the wire of a gather or scatter by parallel aggregated trees (PAT): the bytes of a ring, fewer steps.

    NCCL takes it with one rank a domain only; `rate` is that of a ring there.

    1 GB over 4 lone ranks at 50 GB/s, of which it reaches 0.75: 20 ms:

    >>> round(float(pat_wire_time(1e9, 4, 1, 50e9, 0.75)) * 1e3, 1), float(pat_wire_time(1e9, 8, 2, 50e9, 0.75))
    (20.0, inf)
    """
    lone = np.equal(ranks_per_domain, 1)
    return np.where(lone, message * ((ranks - 1) / ranks) / (rate * pat_share), np.inf)


@formula(symbol="V_hier", cite="msccl", valid="ranks >= ranks_per_domain >= 1; passes 1 or 2")
def hierarchical_wire_time(
    message: Bytes,
    ranks: Ranks,
    ranks_per_domain: Ranks,
    passes: Count,
    network_bandwidth: BytesPerSecond,
    network_efficiency: Ratio,
    link_bandwidth: BytesPerSecond,
    through_link_efficiency: Ratio,
    hierarchical: Flag,
    fabric_share: Ratio = 1.0,
) -> Seconds:
    """Time on the wire of gathers that run inside the domains and between them at once: cards carry S·(D-1)/D a pass.

    NCCL has none; libraries such as MSCCL++ and XLA do. 1 GB on 2 domains of 8, 50 GB/s a card: 1.25 ms where a
    flat ring takes 2.34 ms:

    >>> round(float(hierarchical_wire_time(1e9, 16, 8, 1, 50e9, 1, 1e15, 1, 1)) * 1e3, 3)
    1.25
    """
    cards = ranks_per_domain * network_bandwidth * network_efficiency * fabric_share
    between = (1 - ranks_per_domain / ranks) / cards
    inside = (1 - 1 / ranks_per_domain) / (link_bandwidth * through_link_efficiency)
    return np.where(np.equal(hierarchical, 1), passes * message * np.maximum(between, inside), np.inf)


@formula(symbol="V_A2A", cite="nccl", valid="0 <= remote_share <= 1")
def all_to_all_wire_time(
    message: Bytes,
    remote_share: Ratio,
    network_bandwidth: BytesPerSecond,
    exchange_card_share: Ratio,
    fabric_slowdown: Ratio = 1.0,
) -> Seconds:
    """Time on the card of a rank that sends `message` bytes, `remote_share` of them to other domains.

    `fabric_slowdown` is how much longer the fabric beyond the card needs than the card (1 without a bottleneck).

    1 GiB, 8 domains, 50 GB/s: 18.79 ms:

    >>> round(float(all_to_all_wire_time(2**30, 7 / 8, 50e9, 1.0)) * 1e3, 2)
    18.79
    """
    return message * remote_share * fabric_slowdown / (network_bandwidth * exchange_card_share)


# --- latency ---------------------------------------------------------------------------------------


@formula(symbol="L_ring", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def ring_latency(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    passes: Count,
    base: Seconds,
    link_step: Seconds,
    network_step: Seconds,
    lone_step: Seconds,
    network_latency: Seconds,
    crossing_waits: Count = 1.0,
    plateau: Ratio = 1.0,
) -> Seconds:
    """Latency of `passes` rings: every step within a domain waits for a link, D of them for the network.

    With one rank a domain a crossing takes `lone_step`. `network_latency` is what the fabric adds to InfiniBand's,
    `crossing_waits` times; an all-reduce takes `plateau` times the sum.

    Protocol LL, all-gather on 2 domains of 8: 6.6 + 14·1 + 2.7 = 23.3 µs:

    >>> round(float(ring_latency(16, 8, 1, 6.6e-6, 1e-6, 2.7e-6, 5e-6, 0)) * 1e6, 1)
    23.3

    Protocol Simple, all-reduce on 4 domains of 8: 8.4 + 56·3.4 + 6·14 = 282.8 µs:

    >>> round(float(ring_latency(32, 8, 2, 8.4e-6, 3.4e-6, 14e-6, 14e-6, 0)) * 1e6, 1)
    282.8
    """
    crossings = passes * (ranks / ranks_per_domain - 1)
    crossing = np.where(np.greater(ranks_per_domain, 1), network_step, lone_step) + crossing_waits * network_latency
    latency = base + (passes * (ranks - 1) - crossings) * link_step + crossings * crossing
    return latency * np.where(np.greater(passes, 1), plateau, 1.0)


@formula(symbol="L_tree", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def tree_latency(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    base: Seconds,
    link_step: Seconds,
    network_step: Seconds,
    network_latency: Seconds,
) -> Seconds:
    """Latency of an all-reduce by trees: up and down a chain in the domain and log2(D) hops between them.

    Protocol LL on 4 domains of 8: 6.8 + 2·(7·0.6 + 2·5) = 35.2 µs:

    >>> round(float(tree_latency(32, 8, 6.8e-6, 0.6e-6, 5e-6, 0)) * 1e6, 1)
    35.2
    """
    depth = np.log2(ranks / ranks_per_domain)
    return base + 2 * ((ranks_per_domain - 1) * link_step + depth * (network_step + network_latency))


@formula(symbol="L_nvls", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def nvls_tree_latency(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    nvls_tree_base: Seconds,
    nvls_tree_network_step: Seconds,
    network_latency: Seconds,
) -> Seconds:
    """Latency of an all-reduce added up in the switches and carried by trees between them.

    4 domains: 25 + 2·2·20.9 = 108.6 µs:

    >>> round(float(nvls_tree_latency(32, 8, 25e-6, 20.9e-6, 0)) * 1e6, 1)
    108.6
    """
    depth = np.log2(ranks / ranks_per_domain)
    return nvls_tree_base + 2 * depth * (nvls_tree_network_step + 2 * network_latency)


@formula(symbol="L_sharp", cite="nccl", valid="ranks_per_domain >= 1")
def in_switch_latency(
    ranks_per_domain: Ranks, base: Seconds, link_step: Seconds, network_step: Seconds, network_latency: Seconds
) -> Seconds:
    """Latency of an all-reduce in the network's switches: a chain in each domain, up and down, and one crossing.

    8 ranks a domain: 8.4 + 14·4 + 14 = 78.4 µs:

    >>> round(float(in_switch_latency(8, 8.4e-6, 4e-6, 14e-6, 0)) * 1e6, 1)
    78.4
    """
    return base + 2 * (ranks_per_domain - 1) * link_step + network_step + network_latency


@formula(symbol="L_pat", cite="nccl", valid="ranks >= 1")
def pat_latency(
    ranks: Ranks, base: Seconds, pat_network_step: Seconds, pat_rank_step: Seconds, network_latency: Seconds
) -> Seconds:
    """Latency of PAT: log2(N) crossings, and a share for every rank.

    16 lone ranks: 8.4 + 4·4 + 16·2.8 = 69.2 µs:

    >>> round(float(pat_latency(16, 8.4e-6, 4e-6, 2.8e-6, 0)) * 1e6, 1)
    69.2
    """
    return base + np.log2(ranks) * (pat_network_step + network_latency) + ranks * pat_rank_step


@formula(symbol="L_hier", cite="msccl", valid="ranks >= ranks_per_domain >= 1")
def hierarchical_latency(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    passes: Count,
    base: Seconds,
    link_step: Seconds,
    network_step: Seconds,
    network_latency: Seconds,
    hop_share: Ratio = 1.0,
) -> Seconds:
    """Latency of gathers inside the domains and between them: γ-1 steps on links and D-1 crossings a pass.

    >>> round(float(hierarchical_latency(32, 8, 1, 8.4e-6, 4.5e-6, 14e-6, 0)) * 1e6, 1)
    81.9
    """
    crossings = ranks / ranks_per_domain - 1
    inside = (ranks_per_domain - 1) * link_step * hop_share
    return base + passes * (inside + crossings * (network_step + network_latency))


@formula(symbol="L_A2A", cite="nccl", valid="ranks >= ranks_per_domain >= 1")
def all_to_all_latency(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    exchange_base: Seconds,
    exchange_domain_step: Seconds,
    network_latency: Seconds,
) -> Seconds:
    """Latency of an all-to-all: a start, and a share for every domain that is addressed.

    >>> round(float(all_to_all_latency(64, 8, 52e-6, 8.6e-6, 0)) * 1e6, 1)
    120.8
    """
    return exchange_base + exchange_domain_step * (ranks / ranks_per_domain) + network_latency


# --- time ------------------------------------------------------------------------------------------


@formula(symbol="t", cite="hockney1994", valid="coupling >= 0")
def pipelined_time(latency: Seconds, wire: Seconds, coupling: Ratio) -> Seconds:
    """Latency and wire of one algorithm and protocol, and k·√(L·V) that travelling in chunks leaves.

    >>> round(float(pipelined_time(4e-6, 9e-6, 0.5)) * 1e6, 3)
    16.0
    """
    return latency + wire + coupling * np.sqrt(latency * wire)


@formula(symbol="t_A2A", cite="hockney1994", valid="ranks >= 1")
def all_to_all_pipelined_time(
    latency: Seconds, card: Seconds, links: Seconds, ranks: Ranks, exchange_peer_latency: Seconds
) -> Seconds:
    """An all-to-all: the slower of card and links, and what switching between `ranks` peers leaves.

    >>> round(float(all_to_all_pipelined_time(100e-6, 1e-3, 2e-4, 100, 1e-6)) * 1e6, 1)
    1732.5
    """
    wire = np.maximum(card, links)
    return latency + wire + 2 * np.sqrt(exchange_peer_latency * ranks * wire)
