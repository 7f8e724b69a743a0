"""Placement of groups of ranks in scale-up domains, and the bandwidth that a topology leaves them.

A scale-up domain is the set of GPUs joined by one fabric of NVLink, xGMI, ICI or a PCIe root: a node,
or the 72 GPUs of an NVL72 rack. Bandwidths are per GPU and one direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import BytesPerSecond, Count, Flag, Ranks, Ratio
from gpucalc.formulas.torus import torus_bandwidth, torus_pair_bandwidth

# --- placement -------------------------------------------------------------------------------------


@formula(symbol="γ", cite="shoeybi2019", valid="ranks, stride, domain >= 1")
def ranks_per_domain(ranks: Count, stride: Count, domain: Count) -> Count:
    """Ranks of a group that share a scale-up domain; the mean when they do not divide evenly.

    >>> float(ranks_per_domain(16, 1, 8)), float(ranks_per_domain(8, 4, 8)), float(ranks_per_domain(12, 1, 8))
    (8.0, 2.0, 6.0)
    >>> float(ranks_per_domain(64, 8, 72))
    8.0
    """
    most_per_domain = np.clip(np.floor_divide(domain, stride), 1, ranks)
    return ranks / np.ceil(ranks / most_per_domain)


@formula(symbol="N", cite="gpucalc-counting", valid="ranks >= ranks_per_domain >= 1")
def group_domains(ranks: Count, ranks_per_domain: Count) -> Count:
    """Scale-up domains over which a group of ranks lies.

    >>> group_domains(64, 8)
    8.0
    """
    return ranks / ranks_per_domain


@formula(symbol="[n·d > D]", cite="shoeybi2019", valid="ranks, stride, domain >= 1")
def crosses_domains(ranks: Ranks, stride: Count, domain: Ranks) -> Flag:
    """Whether a group whose neighbours lie `stride` ranks apart leaves its scale-up domain.

    >>> float(crosses_domains(4, 2, 8)), float(crosses_domains(8, 2, 8))
    (0.0, 1.0)
    """
    return 1.0 * np.greater(ranks * stride, domain)


# --- scale-up fabrics ------------------------------------------------------------------------------


@formula(symbol="B_g", cite="nccl", valid="group >= 1")
def nvswitch_bandwidth(link_bandwidth: BytesPerSecond, group: Count) -> BytesPerSecond:
    """Bandwidth of each GPU in a group behind NVSwitch: all of its links, whatever the group.

    >>> float(nvswitch_bandwidth(450e9, 2))
    450000000000.0
    """
    return link_bandwidth * np.minimum(group, 1)


@formula(symbol="B_g", cite="mle", valid="group >= 1; peers >= 1")
def full_mesh_bandwidth(link_bandwidth: BytesPerSecond, group: Count, peers: Count) -> BytesPerSecond:
    """Bandwidth of each GPU in a group of a full mesh: its links are spread over all `peers`.

    MI300X: one link of 64 GB/s to each of 7 peers. A pair gets 64, all eight 448 GB/s.

    >>> float(full_mesh_bandwidth(448e9, 2, 7)) / 1e9, float(full_mesh_bandwidth(448e9, 8, 7)) / 1e9
    (64.0, 448.0)
    """
    return link_bandwidth * np.clip(group - 1, 1, peers) / peers


@formula(symbol="B_g", cite="nccl", valid="1 <= group <= 8; six links per GPU")
def hybrid_cube_mesh_bandwidth(link_bandwidth: BytesPerSecond, group: Count) -> BytesPerSecond:
    """Bandwidth of each GPU in a group of the DGX-1 hybrid cube mesh (V100, six NVLink 2 links).

    In a quad of four GPUs, each one has two double and two single connections, one of which leaves
    the quad: a pair uses at most two links, four GPUs form rings on four, all eight use all six.

    >>> [float(hybrid_cube_mesh_bandwidth(150e9, g)) / 1e9 for g in (2, 4, 8)]
    [50.0, 100.0, 150.0]
    """
    return link_bandwidth * np.select([np.less_equal(group, 2), np.less_equal(group, 4)], [1 / 3, 2 / 3], 1.0)


@formula(symbol="B_g", cite="aic", valid="group >= 1")
def pcie_bandwidth(
    link_bandwidth: BytesPerSecond, group: Count, bridge_sharing: Ratio, bridge_exponent: Ratio
) -> BytesPerSecond:
    """Bandwidth of each GPU in a group on PCIe: a pair has its slots, more share the host's bridges.

    `bridge_sharing` is the share of a slot that four GPUs keep. With peer-to-peer it stays so for more
    (exponent 0); staged through host memory it falls with the group.

    >>> [float(pcie_bandwidth(64e9, g, 0.75, 0.0)) / 1e9 for g in (2, 4, 8)]
    [64.0, 48.0, 48.0]
    >>> [float(pcie_bandwidth(32e9, g, 0.25, 2.0)) / 1e9 for g in (2, 4, 8)]
    [32.0, 8.0, 2.0]
    """
    shared = bridge_sharing * (4 / np.maximum(group, 4)) ** bridge_exponent
    return link_bandwidth * np.where(np.greater(group, 2), shared, 1.0)


#: How many of its links a GPU can use in a group, by the topology of the domain. Besides `group` and its `stride`
#: each formula takes what it needs by name from the columns of a cluster.
SCALE_UP_BANDWIDTH: dict[str, Callable[..., Any]] = {
    "nvswitch": nvswitch_bandwidth,
    "mesh": full_mesh_bandwidth,
    "hybrid-cube-mesh": hybrid_cube_mesh_bandwidth,
    "pcie": pcie_bandwidth,
    "torus-2d": torus_bandwidth,
    "torus-3d": torus_bandwidth,
    "none": nvswitch_bandwidth,
}
#: The same for what a GPU sends to one other, `stride` ranks on: that of a group of two, but for a torus.
PAIR_BANDWIDTH: dict[str, Callable[..., Any]] = {
    **SCALE_UP_BANDWIDTH,
    "torus-2d": torus_pair_bandwidth,
    "torus-3d": torus_pair_bandwidth,
}
