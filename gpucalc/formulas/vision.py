"""Image towers before a language model: patches, the tokens that they become, and their time in a training step."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Elements, Flop, FlopPerSecond, Ratio, Seconds, Tokens


@formula(symbol="P", cite="gpucalc-counting", valid="patch, merge >= 1")
def image_patches(height: Count, width: Count, patch: Count, merge: Count) -> Tokens:
    """Patches of a picture whose sides are filled up to whole groups of merged patches.

    >>> float(image_patches(1080.0, 1920.0, 14.0, 2.0)), float(image_patches(336.0, 336.0, 14.0, 1.0))
    (10764.0, 576.0)
    """
    return np.ceil(height / (patch * merge)) * np.ceil(width / (patch * merge)) * merge**2


@formula(symbol="F_vit", cite="dosovitskiy2021", valid="bidirectional attention")
def tower_flops(
    patches: Tokens, tower_hidden: Elements, tower_ffn: Elements, tower_layers: Count, mac_flops: Flop
) -> Flop:
    """FLOP of a forward of one picture: the blocks' products, and attention of all patches on each other.

    >>> round(tower_flops(576.0, 1024.0, 4096.0, 24.0, 2.0) / 1e9, 1)  # the tower of LLaVA-1.5
    380.5
    """
    products = (4 * tower_hidden**2 + 2 * tower_hidden * tower_ffn) * patches
    return tower_layers * (products + 2 * patches**2 * tower_hidden) * mac_flops


@formula(symbol="t_vit", cite="gpucalc-counting", valid="")
def tower_time(
    tower_forward: Flop,
    images: Count,
    tower_passes: Ratio,
    micro_batch: Count,
    tp: Count,
    gemm_efficiency: Ratio,
    half_peak: FlopPerSecond,
) -> Seconds:
    """Time of the tower in a micro-step: one pass of a frozen tower, three of one that learns.

    >>> round(float(tower_time(380.5e9, 1.0, 1.0, 16.0, 1.0, 0.8, 312e12)) * 1e3, 1)
    24.4
    """
    return tower_forward * images * tower_passes * micro_batch / (tp * gemm_efficiency * half_peak)
