"""Time and memory of a network's layers when only its products and the elements that it writes are known.

The parts add: kernels of one layer run one after the other, so that products are not hidden behind the traffic of the
norms, activations and additions beside them.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import (
    Bytes,
    BytesPerSecond,
    Count,
    Elements,
    Flop,
    FlopPerJoule,
    FlopPerSecond,
    PerSecond,
    Ratio,
    Seconds,
    Watts,
)


@formula(symbol="t_mm", cite="gpucalc-networks", valid="2 FLOP a multiply-accumulate; samples > 0")
def product_time(
    macs: Flop,
    fast_macs: Flop,
    saving: Ratio,
    samples: Count,
    runs: Count,
    share: Ratio,
    product_efficiency: Ratio,
    peak: FlopPerSecond,
) -> Seconds:
    """Time of the convolutions, linear layers and attention products of a forward pass.

    `runs`: forwards of the component a sample; `share`: the part of its products that one GPU computes. Of
    `fast_macs`, products of kernels of 3 and more at stride 1, algorithms on vector units save a share (Winograd, FFT).

    >>> round(product_time(4.089e9, 1.85e9, 0.0, 256.0, 1.0, 1.0, 0.5, 125e12) * 1e3, 2)  # ResNet-50 on a V100
    33.5
    """
    return 2 * (macs - saving * fast_macs) * samples * runs * share / (product_efficiency * peak)


@formula(symbol="t_mem", cite="gpucalc-networks", valid="samples > 0")
def element_traffic_time(
    elements: Elements,
    bare: Elements,
    bare_ratio: Ratio,
    samples: Count,
    runs: Count,
    share: Ratio,
    traffic_bytes: Bytes,
    element_ratio: Ratio,
    missed: Ratio,
    memory_bandwidth: BytesPerSecond,
) -> Seconds:
    """Time of the memory traffic of a forward pass, per element that its layers write.

    traffic_bytes: bytes moved for one element of two bytes, with norms, activations and additions; a stack that fuses
    them moves fewer. element_ratio: size of an element over two bytes; missed: the share that no cache serves.
    bare: of the elements, those that no norm follows; they move bare_ratio of the bytes.

    >>> round(element_traffic_time(11.11e6, 0.0, 0.6, 256.0, 1.0, 1.0, 12.0, 1.0, 1.0, 900e9) * 1e3, 1)
    37.9
    """
    moved = elements - (1 - bare_ratio) * bare
    return moved * samples * runs * share * traffic_bytes * element_ratio * missed / memory_bandwidth


@formula(symbol="s_miss", cite="gpucalc-networks", valid="layers >= 1; cache_bytes >= 0")
def missed_share(
    elements: Elements,
    samples: Count,
    share: Ratio,
    layers: Count,
    element_bytes: Bytes,
    cache_bytes: Bytes,
    cached_share: Ratio,
) -> Ratio:
    """Share of the traffic that goes to memory: what a layer wrote stays in the last cache for the next one if it fits.

    A layer writes elements/layers of element_bytes a sample; half of it is found when it is as large as the cache.
    cached_share: the part of the traffic that rereads what was just written.

    >>> round(float(missed_share(752e6, 1.0, 1.0, 314.0, 2.0, 72e6, 0.6)), 2)  # SD 1.5 on an RTX 4090
    0.44
    >>> round(float(missed_share(752e6, 1.0, 1.0, 314.0, 2.0, 6e6, 0.6)), 2)  # on an RTX 3090
    0.67
    """
    layer = elements * samples * share * element_bytes / np.maximum(layers, 1.0)
    return 1 - cached_share * cache_bytes / (cache_bytes + layer)


@formula(symbol="t_0", cite="gpucalc-networks", valid="")
def host_launch_time(launches: Count, runs: Count, launch_seconds: Seconds, passes: Ratio) -> Seconds:
    """Time in which the host starts kernels and the device does not compute yet; a captured graph has little of it.

    >>> round(host_launch_time(314.0, 1.0, 6e-5, 1.0) * 1e3, 2)
    18.84
    """
    return launches * runs * launch_seconds * passes


@formula(symbol="max(t, t_0)", cite="gpucalc-networks", valid="", bounds=("compute", "launch"))
def device_or_host(compute: Seconds, launch: Seconds) -> Seconds:
    """Time of a pass: the host starts kernels while the device still works, and the slower of the two decides.

    >>> float(device_or_host(0.03, 0.02))
    0.03
    """
    return np.maximum(compute, launch)


@formula(symbol="s_P", cite="gpucalc-networks", valid="peak > 0")
def sustained_share(peak: FlopPerSecond, tdp_watts: Watts, flop_per_joule: FlopPerJoule) -> Ratio:
    """Share of the peak clock that the board's power sustains: its watts times what its generation computes a joule.

    A board with little power for its units, such as a T4 of 70 W, does not hold the clock that its peak is quoted at.

    >>> round(float(sustained_share(65.1e12, 70.0, 0.45e12)), 2), float(sustained_share(125e12, 300.0, 0.45e12))
    (0.48, 1.0)
    """
    return np.minimum(1.0, tdp_watts * flop_per_joule / peak)


@formula(symbol="s_w", cite="gpucalc-networks", valid="unit_width, fed_width > 0")
def fed_share(unit_width: Count, fed_width: Count) -> Ratio:
    """Share of its multiply-adds that a compute unit's caches feed: the wider its matrix units, the smaller.

    unit_width: multiply-adds of one unit in one clock; fed_width: the width of which half is fed.

    >>> round(float(fed_share(1024.0, 1024.0)), 2), round(float(fed_share(256.0, 1024.0)), 2)
    (0.5, 0.8)
    """
    return fed_width / (fed_width + unit_width)


@formula(symbol="M_act", cite="gpucalc-networks", valid="")
def kept_elements(
    elements: Elements,
    samples: Count,
    runs: Count,
    share: Ratio,
    element_bytes: Bytes,
    kept_share: Ratio,
) -> Bytes:
    """Activations held at the fullest moment: `kept_share` elements for each that a layer writes.

    Where it learns they wait for the backward pass; elsewhere they are those of the layer that runs.

    >>> kept_elements(11.11e6, 256.0, 1.0, 1.0, 2.0, 2.0) / 1e9
    11.37664
    """
    return elements * samples * runs * share * element_bytes * kept_share


@formula(symbol="n_pass", cite="gpucalc-networks", valid="")
def step_passes(state_passes: Ratio, recomputed: Ratio) -> Ratio:
    """Forward passes that one micro-step costs: 3 of what learns, 2 of what gradients pass, 1 of what is frozen.

    Recomputation adds a forward pass of what has a backward one.

    >>> float(step_passes(3.0, 1.0)), float(step_passes(1.0, 1.0))
    (4.0, 1.0)
    """
    return state_passes + recomputed * (state_passes > 1)


@formula(symbol="r", cite="gpucalc-networks", valid="time > 0")
def rate_of_samples(samples: Count, replicas: Count, time: Seconds) -> PerSecond:
    """Samples a second of a whole job.

    >>> rate_of_samples(256.0, 8.0, 0.2)
    10240.0
    """
    return samples * replicas / time
