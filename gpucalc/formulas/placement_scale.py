"""Networks of up to a hundred thousand GPUs: tiers, switches, where a group of ranks lands, what fails together.

Numbers of GPUs are end points of the network, one port each.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Ratio


@formula(symbol="t", cite="alfares2008", valid="radix >= 4; n_gpus >= 1")
def fat_tree_tiers(n_gpus: Count, radix: Count) -> Count:
    """Levels of switches that a fat tree needs for `n_gpus`.

    >>> [float(fat_tree_tiers(n, 64)) for n in (64, 1024, 16384, 100000)]
    [1.0, 2.0, 3.0, 4.0]
    """
    return np.maximum(np.ceil(np.log(n_gpus / 2) / np.log(radix / 2) - 1e-9), 1.0)


@formula(symbol="s", cite="alfares2008", valid="radix >= 4; oversubscription >= 1")
def fat_tree_switches(n_gpus: Count, radix: Count, tiers: Count, oversubscription: Ratio) -> Count:
    """Switches of a fat tree: a leaf level that takes all end points, and (2t-2) halves above it, thinned.

    16 ports, 1,024 end points, three tiers, full bisection: 128 + 128 + 64 = 320 (5·k²/4 for k = 16).

    >>> float(fat_tree_switches(1024, 16, 3, 1.0)), float(fat_tree_switches(1024, 16, 3, 4.0))
    (320.0, 128.0)
    """
    leaf_down = radix * oversubscription / (1 + oversubscription)
    upper = np.ceil(n_gpus / oversubscription * (2 * tiers - 3) / radix) * np.greater(tiers, 1)
    return np.ceil(n_gpus / leaf_down) + upper


@formula(symbol="L", cite="alfares2008", valid="radix >= 4; oversubscription >= 1")
def leaf_gpus(radix: Count, oversubscription: Ratio) -> Count:
    """GPUs below one leaf switch: half its ports, more where it is oversubscribed.

    >>> float(leaf_gpus(64, 1.0)), float(leaf_gpus(64, 3.0))
    (32.0, 48.0)
    """
    return np.floor(radix * oversubscription / (1 + oversubscription))


@formula(symbol="L_r", cite="nccl", valid="radix >= 4; domain >= 1")
def rail_leaf_gpus(radix: Count, domain: Count) -> Count:
    """GPUs that reach each other over leaf switches alone when every rail has its own: radix/2 domains.

    64 ports and domains of 8: 32 domains, 256 GPUs.

    >>> float(rail_leaf_gpus(64, 8))
    256.0
    """
    return np.floor(radix / 2) * domain


@formula(symbol="G", cite="kim2008", valid="radix >= 4")
def dragonfly_group(radix: Count) -> Count:
    """End points of one group of a balanced dragonfly: radix/2 switches with radix/4 end points each.

    >>> float(dragonfly_group(64))
    512.0
    """
    return np.floor(radix / 2) * np.floor(radix / 4)


@formula(symbol="c_d", cite="kim2008", valid="radix >= 4")
def dragonfly_capacity(radix: Count) -> Count:
    """End points of a balanced dragonfly: a·h + 1 groups, a = radix/2 switches with h = radix/4 global links.

    64 ports: 513 groups of 512.

    >>> float(dragonfly_capacity(64))
    262656.0
    """
    groups = np.floor(radix / 2) * np.floor(radix / 4) + 1
    return groups * np.floor(radix / 2) * np.floor(radix / 4)


@formula(symbol="s_d", cite="kim2008", valid="radix >= 4; n_gpus >= 1")
def dragonfly_switches(n_gpus: Count, radix: Count) -> Count:
    """Switches of a dragonfly: one for radix/4 end points.

    >>> float(dragonfly_switches(65536, 64))
    4096.0
    """
    return np.ceil(n_gpus / np.floor(radix / 4))


@formula(symbol="e", cite="shoeybi2019", valid="ranks, stride >= 1")
def group_extent(ranks: Count, stride: Count) -> Count:
    """GPUs from the first to the last rank of a group whose neighbours are `stride` ranks apart.

    >>> float(group_extent(4, 8))
    32.0
    """
    return 1.0 * ranks * stride


@formula(symbol="τ", cite="alfares2008", valid="extent >= 1; domain <= leaf <= pod")
def landing_tier(extent: Count, domain: Count, leaf: Count, pod: Count) -> Count:
    """The lowest level that joins a group: 0 scale-up domain, 1 leaf switch, 2 pod, 3 core.

    >>> [float(landing_tier(e, 8, 256, 4096)) for e in (8, 64, 1024, 16384)]
    [0.0, 1.0, 2.0, 3.0]
    """
    return 1.0 * np.greater(extent, domain) + np.greater(extent, leaf) + np.greater(extent, pod)


@formula(symbol="β", cite="kokolis2024", valid="domain <= n_gpus")
def blast_share(domain: Count, n_gpus: Count) -> Ratio:
    """Share of a job that the loss of one scale-up domain takes with it.

    A rack of 72 in 1,152 GPUs: 6.25 %; a node of 8: 0.7 %.

    >>> float(blast_share(72, 1152)), round(float(blast_share(8, 1152)), 4)
    (0.0625, 0.0069)
    """
    return np.minimum(domain / n_gpus, 1.0)
