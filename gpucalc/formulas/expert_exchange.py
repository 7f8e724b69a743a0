"""Time of the dispatch and combine kernels of expert parallelism (token exchange of a MoE layer).

Unlike a collective of the communication library these kernels send tokens to the ranks of their
experts directly. `throughput` kernels send a token once to each rank in the domain and once to each
remote domain; `latency` kernels send each of its k copies on its own.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Ratio, Seconds


@formula(symbol="c", cite="deepseek2024", valid="places, experts_per_token >= 1")
def distinct_copies(places: Count, experts_per_token: Count) -> Count:
    """Copies of a token that go to other places when each of `places` gets it at most once.

    k uniform picks miss a place with probability (1-1/n)^k: (n-1)·(1-(1-1/n)^k).

    >>> float(distinct_copies(1, 8)), float(distinct_copies(2, 1)), round(float(distinct_copies(8, 8)), 3)
    (0.0, 0.5, 4.595)
    """
    return (places - 1) * (1 - (1 - 1 / places) ** experts_per_token)


@formula(symbol="c", cite="deepseek2024", valid="places, experts_per_token >= 1")
def separate_copies(places: Count, experts_per_token: Count) -> Count:
    """Copies of a token that go to other places when each of its k experts gets its own: k·(n-1)/n.

    >>> float(separate_copies(8, 8))
    7.0
    """
    return experts_per_token * (places - 1) / places


@formula(symbol="c", cite="deepseek2024", valid="domains >= 1")
def copies_in_domain(experts_per_token: Count, domains: Count) -> Count:
    """Copies of a token that go to experts of one of `domains`, on average.

    >>> copies_in_domain(8.0, 4.0)
    2.0
    """
    return experts_per_token / domains


@formula(symbol="log2 n", cite="deepep", valid="places >= 1")
def doublings(places: Count) -> Count:
    """How often a group doubles from one place to `places`: the steps of a barrier over them.

    >>> float(doublings(8.0))
    3.0
    """
    return np.log2(places)


@formula(symbol="φ_net", cite="deepseek2024", valid="ranks >= ranks_per_domain >= 1")
def dispatch_remote_share(ranks: Count, ranks_per_domain: Count, experts_per_token: Count) -> Ratio:
    """Share of the routed bytes (k copies of each token) that crosses the network, one copy per domain.

    >>> round(float(dispatch_remote_share(64, 8, 8)), 4)
    0.5743
    """
    domains = ranks / ranks_per_domain
    return (domains - 1) * (1 - (1 - 1 / domains) ** experts_per_token) / experts_per_token


@formula(symbol="S_tok", cite="deepseek2024", valid="element_size 1 (FP8, one 4-byte scale per 128) or 2 (BF16)")
def token_bytes(hidden: Count, element_size: Bytes, scale_size: Bytes, scale_group: Count) -> Bytes:
    """Bytes of one token's hidden vector with its quantisation scales.

    >>> token_bytes(7168, 1, 4, 128), token_bytes(7168, 2, 0, 128)
    (7392.0, 14336.0)
    """
    return hidden * (element_size + scale_size / scale_group)


@formula(symbol="T_EP", cite="deepep", valid="domains >= 1")
def expert_exchange_time(
    tokens: Count,
    token_size: Bytes,
    domains: Count,
    doublings: Count,
    link_copies: Count,
    network_copies: Count,
    link_bandwidth: BytesPerSecond,
    exchange_efficiency: Ratio,
    exchange_startup: Seconds,
    exchange_chunk_latency: Seconds,
    network_bandwidth: BytesPerSecond,
    exchange_network_efficiency: Ratio,
    exchange_network_startup: Seconds,
    exchange_doubling_latency: Seconds,
) -> Seconds:
    """Time of one dispatch or combine of `tokens` tokens per GPU; links and network work at once.

    Notifying the others takes a latency per doubling of those who wait for each other: `doublings` is
    log2 of the domains in `throughput` kernels, of the ranks in `latency` kernels.

    4096 tokens of 7392 B, 4.595 copies at 0.65·450 GB/s = 475.6 µs, + 25 µs:

    >>> time = expert_exchange_time(4096, 7392, 1, 0, 4.595, 0, 450e9, .65, 25e-6, 0, 50e9, .9, 0, 30e-6)
    >>> round(float(time) * 1e6, 1)
    500.6
    """
    link_wire = tokens * (token_size * link_copies / link_bandwidth)
    network_wire = tokens * (token_size * network_copies / network_bandwidth)
    link = link_wire / exchange_efficiency + 2 * np.sqrt(exchange_chunk_latency * link_wire)
    network = network_wire / exchange_network_efficiency + 2 * np.sqrt(exchange_chunk_latency * network_wire)
    network_latency = exchange_network_startup * np.greater(domains, 1) + exchange_doubling_latency * doublings
    return exchange_startup + network_latency + np.maximum(link, network)
