"""Chips on a torus: what a group of them has of the links along the dimensions of the job's slice.

A slice is a box of `slice_x` · `slice_y` · `slice_z` chips (1 where it has fewer dimensions); ranks count along x
first, then y and z. A chip has 2·d links, one to each neighbour along the d dimensions of the machine. A side that is
a multiple of `wrap_side` is closed to a ring, and a group over all of it sends both ways round; any other is a line.
A group works on all its dimensions at once, as the collectives of XLA do: a ring over all its chips is never used.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import BytesPerSecond, Count, Ranks, Ratio

# --- along one dimension, whose chips lie `below` ranks apart ------------------------------------------


@formula(symbol="k", cite="jouppi2023", valid="stride, side, below >= 1")
def torus_apart(stride: Ranks, side: Count, below: Count) -> Count:
    """How far the chips of a group lie apart along one dimension.

    >>> float(torus_apart(4, 16, 1)), float(torus_apart(4, 16, 16))
    (4.0, 1.0)
    """
    return np.clip(stride / below, 1, side)


@formula(symbol="a_g", cite="jouppi2023", valid="ranks, stride, side, below >= 1")
def torus_members(ranks: Ranks, stride: Ranks, side: Count, below: Count) -> Count:
    """Chips of a group along one dimension.

    >>> float(torus_members(32, 4, 16, 1)), float(torus_members(32, 4, 16, 16))
    (4.0, 8.0)
    """
    return np.clip(stride * ranks / below, 1, side) / torus_apart(stride, side, below)


@formula(symbol="l", cite="jouppi2023", valid="ranks, stride, side, below, wrap_side >= 1")
def torus_ways(ranks: Ranks, stride: Ranks, side: Count, below: Count, wrap_side: Count) -> Count:
    """Directions in which a group sends along one dimension: 2 round a closed one, 1 on a line, 0 where it has no more.

    >>> [float(torus_ways(n, 1, 16, 1, 4)) for n in (16, 8, 1)], float(torus_ways(2, 1, 2, 1, 4))
    ([2.0, 1.0, 0.0], 1.0)
    """
    members = torus_members(ranks, stride, side, below)
    whole = np.equal(members * torus_apart(stride, side, below), side)
    closed = 1.0 * (whole & np.equal(np.mod(side, wrap_side), 0))
    return np.where(np.greater(members, 1), 1 + closed, 0.0)


# --- a group over several dimensions ---------------------------------------------------------------------


@formula(symbol="l_g", cite="jouppi2023", valid="ranks, stride, sides, wrap_side >= 1")
def torus_links(ranks: Ranks, stride: Ranks, slice_x: Count, slice_y: Count, slice_z: Count, wrap_side: Count) -> Count:
    """Links that each chip of a group has for its gathers, along all dimensions.

    Chips of other groups between two of a group share the links on the way.

    A cube of 16 a side, a line of 16 in it, 2·2·4 chips, every second chip of a line of 16:

    >>> float(torus_links(4096, 1, 16, 16, 16, 4)), float(torus_links(16, 1, 16, 16, 16, 4))
    (6.0, 2.0)
    >>> float(torus_links(16, 1, 2, 2, 4, 4)), float(torus_links(8, 2, 16, 1, 1, 4))
    (4.0, 1.0)
    """
    flat = slice_x * slice_y
    x = torus_ways(ranks, stride, slice_x, 1, wrap_side) / torus_apart(stride, slice_x, 1)
    y = torus_ways(ranks, stride, slice_y, slice_x, wrap_side) / torus_apart(stride, slice_y, slice_x)
    z = torus_ways(ranks, stride, slice_z, flat, wrap_side) / torus_apart(stride, slice_z, flat)
    return x + y + z


@formula(symbol="B_g", cite="jouppi2023", valid="group, stride, sides, wrap_side >= 1; torus_dimensions 2 or 3")
def torus_bandwidth(
    link_bandwidth: BytesPerSecond,
    group: Ranks,
    stride: Ranks,
    slice_x: Count,
    slice_y: Count,
    slice_z: Count,
    wrap_side: Count,
    torus_dimensions: Count,
) -> BytesPerSecond:
    """Rate of each chip's gathers in a group on a torus: its links along every dimension, both ways where closed.

    A cube of 16 chips a side has all links, a line of 16 in it one dimension of three:

    >>> [float(torus_bandwidth(600e9, n, 1, 16, 16, 16, 4, 3)) / 1e9 for n in (4096, 16)]
    [600.0, 200.0]
    """
    links = torus_links(group, stride, slice_x, slice_y, slice_z, wrap_side)
    return link_bandwidth * np.where(np.greater(group, 1), links / (2 * torus_dimensions), 1.0)


@formula(symbol="h", cite="scalingbook", valid="ranks, stride, side, below, wrap_side >= 1")
def dimension_hops(ranks: Ranks, stride: Ranks, side: Count, below: Count, wrap_side: Count) -> Count:
    """Hops that a pass along one dimension waits for: half of a closed one, a line from end to end.

    >>> float(dimension_hops(16, 1, 16, 1, 4)), float(dimension_hops(8, 1, 16, 1, 4))
    (8.0, 7.0)
    """
    members = torus_members(ranks, stride, side, below)
    closed = np.greater(torus_ways(ranks, stride, side, below, wrap_side), 1)
    return torus_apart(stride, side, below) * np.where(closed, members / 2, members - 1)


@formula(symbol="h", cite="scalingbook", valid="ranks, stride, sides, wrap_side >= 1")
def torus_hops(ranks: Ranks, stride: Ranks, slice_x: Count, slice_y: Count, slice_z: Count, wrap_side: Count) -> Count:
    """Hops that one pass of a gather or scatter waits for, one dimension after the other.

    >>> float(torus_hops(4096, 1, 16, 16, 16, 4)), float(torus_hops(4, 1, 2, 2, 1, 4))
    (24.0, 2.0)
    """
    x = dimension_hops(ranks, stride, slice_x, 1, wrap_side)
    y = dimension_hops(ranks, stride, slice_y, slice_x, wrap_side)
    return x + y + dimension_hops(ranks, stride, slice_z, slice_x * slice_y, wrap_side)


@formula(symbol="h_1", cite="scalingbook", valid="hops >= 0; ranks_per_domain >= 1")
def hop_share(hops: Count, ranks_per_domain: Ranks) -> Ratio:
    """Hops of a pass over the γ-1 steps of a ring over all chips.

    >>> round(float(hop_share(24, 4096)), 5), float(hop_share(0, 1))
    (0.00586, 1.0)
    """
    return np.where(np.greater(ranks_per_domain, 1), hops / np.maximum(ranks_per_domain - 1, 1), 1.0)


@formula(symbol="a/4l", cite="jouppi2023", valid="ranks, stride, side, below, wrap_side >= 1")
def dimension_cut(ranks: Ranks, stride: Ranks, side: Count, below: Count, wrap_side: Count) -> Ratio:
    """Time that the middle of one dimension takes of an all-to-all, over that of one link for what a chip sends.

    Half of the chips send half of their bytes through the links that cut a dimension of a chips in two.

    >>> [float(dimension_cut(ranks, 1, 16, 1, 4)) for ranks in (16, 8, 1)]
    [2.0, 2.0, 0.0]
    """
    ways = torus_ways(ranks, stride, side, below, wrap_side)
    extent = torus_members(ranks, stride, side, below) * torus_apart(stride, side, below)
    return np.where(np.greater(ways, 0), extent / (4 * np.maximum(ways, 1)), 0.0)


@formula(symbol="σ_link", cite="jouppi2023", valid="ranks, stride, sides, wrap_side >= 1")
def torus_exchange_slowdown(
    ranks: Ranks, stride: Ranks, slice_x: Count, slice_y: Count, slice_z: Count, wrap_side: Count
) -> Ratio:
    """How much longer an all-to-all takes than a gather of its size: what crosses the middle of the longest dimension.

    v5p, 600 GB/s, 1 GiB: 5.37 ms on 4·4·4 chips, 21.47 ms on 16·16·16:

    >>> slow = [float(torus_exchange_slowdown(a**3, 1, a, a, a, 4)) for a in (4, 16)]
    >>> round(2**30 * 63 / 64 / 600e6 * slow[0], 2), round(2**30 * 4095 / 4096 / 600e6 * slow[1], 2)
    (5.37, 21.47)
    """
    x = dimension_cut(ranks, stride, slice_x, 1, wrap_side)
    y = dimension_cut(ranks, stride, slice_y, slice_x, wrap_side)
    z = dimension_cut(ranks, stride, slice_z, slice_x * slice_y, wrap_side)
    links = torus_links(ranks, stride, slice_x, slice_y, slice_z, wrap_side)
    sent = np.where(np.greater(ranks, 1), 1 - 1 / np.maximum(ranks, 1), 1.0)
    return np.maximum(1.0, np.maximum(np.maximum(x, y), z) * links / sent)


@formula(symbol="B_1", cite="jouppi2023", valid="stride, sides >= 1; torus_dimensions 2 or 3")
def torus_pair_bandwidth(
    link_bandwidth: BytesPerSecond,
    stride: Ranks,
    slice_x: Count,
    slice_y: Count,
    slice_z: Count,
    torus_dimensions: Count,
) -> BytesPerSecond:
    """Rate at which every chip sends to the one `stride` ranks on: one link, shared by those that it hops over.

    Neighbours have 100 of a v5p's 600 GB/s, those two apart along a dimension 50:

    >>> [float(torus_pair_bandwidth(600e9, stride, 16, 16, 16, 3)) / 1e9 for stride in (1, 32)]
    [100.0, 50.0]
    """
    flat = slice_x * slice_y
    along = np.where(np.less(stride, slice_x), stride, np.where(np.less(stride, flat), stride / slice_x, stride / flat))
    apart = np.clip(along, 1, np.maximum(np.maximum(slice_x, slice_y), slice_z))
    return link_bandwidth / (2 * torus_dimensions * apart)


@formula(symbol="a", cite="jouppi2023", valid="domains, short sides >= 1; dimensions 2 or 3")
def longest_side(domains: Count, torus_x: Count, torus_y: Count, dimensions: Count) -> Count:
    """Longest side of the most compact box of `domains` nodes in a torus of nodes with sides x <= y (<= z).

    >>> float(longest_side(256, 16, 16, 2)), float(longest_side(256, 4, 64, 2)), float(longest_side(64, 4, 4, 3))
    (16.0, 64.0, 4.0)
    """
    narrow = np.where(np.equal(dimensions, 3), np.sqrt(domains / torus_x), domains / torus_x)
    flat = np.where(np.equal(dimensions, 3), domains / (torus_x * torus_y), 1.0)
    return np.maximum(domains ** (1 / dimensions), np.maximum(narrow, flat))
