"""What the shape of a network leaves of the rate of its cards: fat tree, rails, dragonfly, torus.

Rings and trees are traffic between neighbours: what counts is how many flows leave a pod at once, against
what its uplinks carry. All-to-all is uniform: what counts is the share of the bytes that leave. The share of
one is never applied to the other. A *domain* is a scale-up domain (NVLink, xGMI), a *pod* the domains below
one set of switches, with `cards` cards each; oversubscription 1:o means that a pod's uplinks carry 1/o of its cards.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Flag, Ranks, Ratio

# --- groups in pods --------------------------------------------------------------------------------


@formula(symbol="P_g", cite="leiserson1985", valid="ranks, stride, ranks_per_domain, pod, domain >= 1")
def group_pod(
    ranks: Ranks,
    stride: Ranks,
    ranks_per_domain: Ranks,
    pod: Count,
    domain: Ranks,
    n_gpus: Ranks,
    scattered: Flag,
) -> Count:
    """Domains of a group that lie in one pod of `pod` domains.

    One after the other, a pod holds as many ranks of a group whose neighbours lie `stride` apart as fit; scattered
    over the cluster, the pod's share of the job's domains.

    TP 8, a data-parallel group of 1,024 in pods of 384 nodes; 64 domains scattered over pods of 16:

    >>> float(group_pod(1024, 8, 1, 384, 8, 8192, 0)), float(group_pod(512, 1, 8, 16, 8, 512, 1))
    (384.0, 16.0)
    """
    inside = np.clip(np.floor_divide(pod * domain, stride), 1, ranks) / ranks_per_domain
    expected = ranks / ranks_per_domain * np.minimum(1.0, pod * domain / n_gpus)
    return np.maximum(1.0, np.where(np.equal(scattered, 1), expected, inside))


@formula(symbol="F", cite="leiserson1985", valid="ranks >= ranks_per_domain >= 1; group_pod, pod, domain >= 1")
def ring_flows(
    ranks: Ranks,
    ranks_per_domain: Ranks,
    group_pod: Count,
    pod: Count,
    domain: Ranks,
    n_gpus: Ranks,
    scattered: Flag,
) -> Count:
    """Flows of one rank's rate by which the rings of all groups of one kind leave a pod at once.

    One after the other, each group that goes on in another pod leaves once, by γ cards: P·G/P_g flows.
    Scattered, every hop leaves with (D-P)/(D-1).

    Pods of 384 nodes of 8, TP 8: 8 flows; inside a pod none:

    >>> float(ring_flows(1024, 1, 384, 384, 8, 8192, 0)), float(ring_flows(256, 1, 256, 384, 8, 8192, 0))
    (8.0, 0.0)

    64 domains scattered over pods of 16: 16·8·48/63:

    >>> round(float(ring_flows(512, 8, 16, 16, 8, 512, 1)), 2)
    97.52
    """
    leaves = np.greater(ranks / ranks_per_domain, group_pod)
    domains = n_gpus / domain
    anywhere = pod * domain * np.maximum(domains - pod, 0) / np.maximum(domains - 1, 1)
    return leaves * np.where(np.equal(scattered, 1), anywhere, pod * domain / group_pod)


# --- what the network carries of them ----------------------------------------------------------------


@formula(symbol="C", cite="leiserson1985", valid="pod, domain, oversubscription >= 1")
def fat_tree_flows(pod: Count, domain: Ranks, oversubscription: Ratio) -> Count:
    """Flows of one rank's rate that the uplinks of a pod carry: P·G/o.

    >>> round(float(fat_tree_flows(384, 8, 7))), float(fat_tree_flows(6, 8, 4))
    (439, 12.0)
    """
    return pod * domain / oversubscription


@formula(symbol="C", cite="kim2008", valid="pod, domain, n_gpus >= 1; global_taper > 0")
def dragonfly_flows(pod: Count, domain: Ranks, n_gpus: Ranks, global_taper: Ratio) -> Count:
    """Flows of one rank's rate that leave a dragonfly group of `pod` domains towards one other.

    The global links carry `global_taper` of the injection rate: by the minimal path 1/(g-1) of them lead there;
    adaptive routing over a third group uses half of all.

    >>> float(dragonfly_flows(128, 8, 4096, 0.5)), float(dragonfly_flows(128, 8, 2048, 0.5))
    (256.0, 512.0)
    """
    others = np.maximum(n_gpus / (pod * domain) - 1, 1)
    return pod * domain * np.maximum(global_taper / others, global_taper / 2)


@formula(symbol="C", cite="jouppi2023", valid="pod, domain >= 1; dimensions 1, 2 or 3")
def torus_capacity(ring_flows: Count, ranks: Ranks, n_gpus: Ranks, dimensions: Count) -> Count:
    """Flows of one rank's rate that a torus of cards carries of `ring_flows`.

    Rings over all of it use d edge-disjoint Hamiltonian cycles, the full rate; along a line one dimension of d.

    >>> float(torus_capacity(8, 512, 512, 2)), float(torus_capacity(8, 16, 512, 2))
    (8.0, 4.0)
    """
    return ring_flows * np.where(np.equal(ranks, n_gpus), 1.0, 1 / dimensions)


@formula(symbol="φ", cite="leiserson1985", valid="capacity > 0; flows >= 0")
def flow_share(capacity: Count, flows: Count) -> Ratio:
    """Share of a card's rate that each flow keeps where `flows` share `capacity`.

    >>> float(flow_share(12, 8)), float(flow_share(12, 32)), float(flow_share(0.5, 0))
    (1.0, 0.375, 1.0)
    """
    return np.minimum(1.0, np.where(np.greater(flows, 0), capacity / np.maximum(flows, 1e-9), 1.0))


# --- uniform traffic -------------------------------------------------------------------------------


@formula(symbol="σ", cite="leiserson1985", valid="domains, group_pod, oversubscription >= 1")
def fat_tree_slowdown(domains: Count, group_pod: Count, oversubscription: Ratio) -> Ratio:
    """How much longer than the card the uplinks of a fat tree need for an all-to-all: o·(D-P)/(D-1).

    64 domains in pods of 16 at 4:1: 4·48/63:

    >>> round(float(fat_tree_slowdown(64, 16, 4)), 4), float(fat_tree_slowdown(16, 16, 4))
    (3.0476, 1.0)
    """
    leaving = np.maximum(domains - group_pod, 0) / np.maximum(domains - 1, 1)
    return np.maximum(1.0, oversubscription * leaving)


@formula(symbol="σ", cite="nccl", valid="domains, group_pod, ranks_per_domain, oversubscription >= 1")
def rail_slowdown(
    domains: Count, group_pod: Count, ranks_per_domain: Ranks, oversubscription: Ratio, rail_forwarding: Flag
) -> Ratio:
    """How much longer than the card a rail-optimised network needs for an all-to-all.

    With PXN every message leaves by the card on its receiver's rail and stays on one leaf while the group does;
    without, (γ-1)/γ of it takes the spine. Beyond one set of leaves it is a fat tree of such pods.

    >>> float(rail_slowdown(16, 32, 8, 4, 1)), float(rail_slowdown(16, 32, 8, 4, 0))
    (1.0, 3.5)
    """
    spine = np.where(np.equal(rail_forwarding, 1), 0.0, oversubscription * (1 - 1 / ranks_per_domain))
    between = oversubscription * np.maximum(domains - group_pod, 0) / np.maximum(domains - 1, 1)
    return np.maximum(1.0, np.maximum(spine, between))


@formula(symbol="σ", cite="kim2008", valid="domains, group_pod >= 1; global_taper > 0")
def dragonfly_slowdown(domains: Count, group_pod: Count, global_taper: Ratio) -> Ratio:
    """How much longer than the card the global links of a dragonfly need for an all-to-all: (D-G)/(τ·(D-1)).

    512 domains in groups of 128, half of the injection rate: a share of 0.665:

    >>> round(1 / float(dragonfly_slowdown(512, 128, 0.5)), 3)
    0.665
    """
    leaving = np.maximum(domains - group_pod, 0) / np.maximum(domains - 1, 1)
    return np.maximum(1.0, leaving / global_taper)


@formula(symbol="σ", cite="jouppi2023", valid="longest_side >= 1; dimensions 2 or 3")
def torus_slowdown(longest_side: Count, dimensions: Count) -> Ratio:
    """How much longer than the cards the bisection of a torus of nodes needs for an all-to-all: a·d/4.

    With b a link and direction, 2·d·b cards a node, halving the longest side a leaves a·S/(8·b).

    16·16 nodes: 8 times, a share of 0.125; a side of 2 is never slower than the cards:

    >>> float(torus_slowdown(16, 2)), float(torus_slowdown(2, 2))
    (8.0, 1.0)
    """
    return np.maximum(1.0, longest_side * dimensions / 4)
