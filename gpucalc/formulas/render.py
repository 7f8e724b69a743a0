"""A render farm: frame time from benchmark scores, and how long a queue of frames of uneven length takes.

Frame times are lognormal with a relative spread (standard deviation over mean). Frames go to the next free machine.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Array, Bytes, BytesPerSecond, Count, PerSecond, Ratio, Seconds, Unit

Dollars = Annotated[Array, Unit("USD")]
DollarsPerSecond = Annotated[Array, Unit("USD/s", second=-1)]


@formula(symbol="μ", cite="blender-open-data", valid="scores > 0; gpus_per_frame >= 1")
def frame_time(reference_time: Seconds, reference_score: Ratio, score: Ratio, gpus_per_frame: Count) -> Seconds:
    """Time to compute a frame on a machine, from that on a reference and the benchmark scores of both.

    A frame of 600 s on a card of score 5,410 takes 293 s on one of 11,065.

    >>> round(float(frame_time(600.0, 5410, 11065, 1)))
    293
    """
    return reference_time * reference_score / (score * gpus_per_frame)


@formula(symbol="μ'", cite="cox1962", valid="load >= 0")
def occupied_time(computed: Seconds, scene_load: Seconds) -> Seconds:
    """Time for which a frame occupies its machine: loading the scene and computing.

    >>> float(occupied_time(293.0, 27.0))
    320.0
    """
    return computed + scene_load


@formula(symbol="F'", cite="cox1962", valid="0 <= failure_share < 1")
def attempts(frames: Count, failure_share: Ratio) -> Count:
    """Frames that are started until all are there, when a share of the attempts fails at its end.

    >>> float(attempts(990.0, 0.01))
    1000.0
    """
    return frames / (1 - failure_share)


@formula(symbol="c'", cite="cox1962", valid="spread >= 0; scene_load >= 0")
def occupied_spread(computed: Seconds, scene_load: Seconds, spread: Ratio) -> Ratio:
    """Relative spread of the occupied time; loading takes equally long for all frames and narrows it.

    >>> float(occupied_spread(300.0, 100.0, 0.4))
    0.3
    """
    return spread * computed / (computed + scene_load)


@formula(symbol="Φ", cite="abramowitz1964", valid="any; error below 1.5e-7")
def normal_share(deviate: Ratio) -> Ratio:
    """Share of a normal distribution below `deviate` standard deviations (formula 7.1.26).

    >>> [round(float(normal_share(z)), 5) for z in (-1.0, 0.0, 1.96)]
    [0.15866, 0.5, 0.975]
    """
    z = np.abs(deviate) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    tail = 0.5 * np.exp(-z * z) * t
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    return np.where(np.greater(deviate, 0), 1 - tail * series, tail * series)


@formula(symbol="S", cite="cox1962", valid="ratio > 0; spread > 0")
def longer_share(ratio: Ratio, spread: Ratio) -> Ratio:
    """Share of frames that take longer than `ratio` times the mean (lognormal).

    At a spread of 0.5 a frame of twice the mean is exceeded by 4.4 %.

    >>> round(float(longer_share(2.0, 0.5)), 3)
    0.044
    """
    sigma = np.sqrt(np.log1p(spread**2))
    return 1 - normal_share((np.log(ratio) + sigma**2 / 2) / sigma)


@formula(symbol="S_e", cite="cox1962", valid="ratio > 0; spread > 0")
def remaining_share(ratio: Ratio, spread: Ratio) -> Ratio:
    """Share of frames met under way in a long queue that still need more than `ratio` times the mean.

    The residual life of renewal theory, (1/μ)∫S: Φ(d+σ) - ratio·Φ(d), with d = -(ln ratio + σ²/2)/σ. Nearly
    equal frames have the uniform residual: half of them need more than half a frame.

    >>> round(float(remaining_share(0.5, 0.01)), 3), round(float(remaining_share(1.0, 0.6)), 3)
    (0.5, 0.218)
    """
    sigma = np.sqrt(np.log1p(spread**2))
    d = -(np.log(ratio) + sigma**2 / 2) / sigma
    return np.clip(normal_share(d + sigma) - ratio * normal_share(d), 0.0, 1.0)


@formula(symbol="S_H", cite="cox1962", valid="ratio > 0; elapsed >= 0; spread > 0")
def remaining_share_after(ratio: Ratio, elapsed: Ratio, spread: Ratio) -> Ratio:
    """The same after a farm has run for `elapsed` mean frame times: frames begun since, and first frames still on.

    At the start all machines are on their first frame: the share of frames that are longer.

    >>> round(float(remaining_share_after(2.0, 0.0, 0.5)), 3), round(float(remaining_share_after(1.0, 50.0, 0.6)), 3)
    (0.044, 0.218)
    """
    begun = remaining_share(ratio, spread) - remaining_share(ratio + elapsed, spread)
    return np.clip(begun + longer_share(ratio + elapsed, spread), 0.0, 1.0)


@formula(symbol="T_0", cite="cox1962", valid="throughput > 0")
def queue_empty_time(frames: Count, under_way: Count, throughput: PerSecond) -> Seconds:
    """When the last frame is handed out: all frames less those that remain under way, at the farm's rate.

    1000 frames on 10 machines of 0.1 frames/s, half a frame under way on each: 995 s.

    >>> float(queue_empty_time(1000, 5.0, 1.0))
    995.0
    """
    return np.maximum((frames - under_way) / throughput, 0.0)


@formula(symbol="t_L", cite="cox1962", valid="mean_time > 0; latest >= 0")
def latest_remainder(mean_time: Seconds, latest: Ratio) -> Seconds:
    """From the empty queue to the last frame: `latest` mean frame times.

    `latest` is the expectation of the largest remainder, ∫ 1 - Π(1 - S_H)^machines, integrated numerically.

    >>> float(latest_remainder(730.0, 3.5))
    2555.0
    """
    return mean_time * latest


@formula(symbol="T", cite="graham1969", valid="times > 0")
def farm_makespan(queue: Seconds, in_turns: Seconds, work: Seconds) -> Seconds:
    """How long the farm takes: as a queue, no longer than machines that take turns, no shorter than the work.

    >>> float(farm_makespan(105.0, 110.0, 100.0)), float(farm_makespan(105.0, 102.0, 100.0))
    (105.0, 102.0)
    """
    return np.maximum(np.minimum(queue, in_turns), work)


@formula(symbol="E[max]", cite="graham1969", valid="excess >= 0")
def longest_or_work(work: Seconds, excess: Seconds) -> Seconds:
    """Expected longer of the work and the longest frame: no order of the frames is faster.

    `excess` is the integral of the chance that the longest frame takes more than the work.

    >>> float(longest_or_work(100.0, 5.0))
    105.0
    """
    return work + excess


@formula(symbol="T_L", cite="graham1969", valid="times > 0")
def longest_first_makespan(longest: Seconds, uneven: Seconds, makespan: Seconds) -> Seconds:
    """Longest frames first: the work or the longest frame, and what uneven ends add; no longer than any order.

    >>> float(longest_first_makespan(100.0, 3.0, 105.0)), float(longest_first_makespan(130.0, 2.0, 131.0))
    (103.0, 131.0)
    """
    return np.minimum(longest + uneven, makespan)


@formula(symbol="T_B", cite="graham1969", valid="throughput > 0")
def farm_work_time(frames: Count, throughput: PerSecond) -> Seconds:
    """The work over the rate of all machines: no order of the frames is faster.

    >>> float(farm_work_time(1000, 1.0))
    1000.0
    """
    return frames / throughput


@formula(symbol="T_W", cite="graham1969", valid="mean_time > 0; rounds >= 1")
def rounds_time(mean_time: Seconds, rounds: Count, latest: Ratio) -> Seconds:
    """Time when each machine takes its `rounds` frames in turn, the last one `latest` times the mean of its sum.

    >>> float(rounds_time(10.0, 3, 1.2))
    36.0
    """
    return mean_time * rounds * latest


@formula(symbol="T_S", cite="williams2009", valid="store_bandwidth > 0")
def store_time(frames: Count, frame_bytes: Bytes, store_bandwidth: BytesPerSecond) -> Seconds:
    """Time to move what all frames read and write through the store.

    >>> float(store_time(1000, 2e9, 10e9))
    200.0
    """
    return frames * frame_bytes / store_bandwidth


@formula(symbol="C", cite="graham1969", valid="rates >= 0")
def farm_cost(busy: Seconds, price: DollarsPerSecond) -> Dollars:
    """What the machine time costs.

    1000 GPU-hours at 0.5 USD/h:

    >>> round(float(farm_cost(1000 * 3600.0, 0.5 / 3600)), 6)
    500.0
    """
    return busy * price
