"""Clusters of several kinds of GPU: uneven data-parallel shares, uneven pipeline stages, what the faster kind gains."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, PerSecond, Ratio, Seconds


@formula(symbol="t_i", cite="jia2022", valid="micro_batches >= 0")
def replica_time(fixed: Seconds, each: Seconds, micro_batches: Count) -> Seconds:
    """Step time of a replica that runs so many micro-batches.

    >>> float(replica_time(0.5, 0.1, 8))
    1.3
    """
    return fixed + each * micro_batches


@formula(symbol="t_1", cite="jia2022", valid="second > first")
def time_per_micro_batch(first: Count, first_time: Seconds, second: Count, second_time: Seconds) -> Seconds:
    """What one more micro-batch adds, from the step times at two numbers of them.

    >>> float(time_per_micro_batch(4, 1.0, 8, 1.5))
    0.125
    """
    return (second_time - first_time) / (second - first)


@formula(symbol="t_0", cite="jia2022", valid="first >= 1")
def fixed_time(first: Count, first_time: Seconds, each: Seconds) -> Seconds:
    """What a step takes whatever its micro-batches: pipeline fill, gradient exchange, optimizer.

    >>> float(fixed_time(4, 1.0, 0.125))
    0.5
    """
    return first_time - first * each


@formula(symbol="T*", cite="jia2022", valid="kinds of equal step time; each > 0")
def balanced_step(work: Count, summed_offset: Count, summed_rate: PerSecond) -> Seconds:
    """Step time at which all kinds finish together: (M + Σ n·t_0/t_1) / Σ n/t_1.

    12 micro-batches on 2 replicas of 1 s and 2 of 0.5 s each, no fixed time: 2 s.

    >>> float(balanced_step(12, 0.0, 2 / 1.0 + 2 / 0.5))
    2.0
    """
    return (work + summed_offset) / summed_rate


@formula(symbol="m_i", cite="jia2022", valid="each > 0")
def micro_batches_within(step: Seconds, fixed: Seconds, each: Seconds) -> Count:
    """Whole micro-batches that a replica finishes within a step time.

    >>> float(micro_batches_within(1.35, 0.5, 0.1)), float(micro_batches_within(0.4, 0.5, 0.1))
    (8.0, 0.0)
    """
    return np.maximum(np.floor((step - fixed) / each + 1e-9), 0.0)


@formula(symbol="l_i", cite="jia2022", valid="layer_time > 0")
def layers_within(stage_time: Seconds, layer_time: Seconds) -> Count:
    """Whole layers that a stage passes within a stage time.

    >>> float(layers_within(1.0, 0.3))
    3.0
    """
    return np.floor(stage_time / layer_time + 1e-9)


@formula(symbol="T_pipe", cite="narayanan2021", valid="micro_batches >= 1")
def uneven_pipeline_time(slowest: Seconds, transfer: Seconds, micro_batches: Count, filling: Seconds) -> Seconds:
    """Time of a pipeline of unequal stages: the slowest passes all micro-batches, the others fill and drain it.

    Four micro-batches, slowest stage 2 s, transfers 0.1 s, filling 3 s: 11.4 s.

    >>> round(float(uneven_pipeline_time(2.0, 0.1, 4, 3.0)), 6)
    11.4
    """
    return micro_batches * (slowest + transfer) + filling


@formula(symbol="T", cite="narayanan2021", valid="straggler >= 1")
def uneven_step_time(pipeline: Seconds, exchange: Seconds, update: Seconds, straggler: Ratio) -> Seconds:
    """Step time: pipeline, unhidden gradient exchange of the slowest group, optimizer; stragglers on all of it.

    >>> float(uneven_step_time(11.4, 0.4, 0.2, 1.0))
    12.0
    """
    return (pipeline + exchange + update) * straggler


@formula(symbol="Π", cite="jia2022", valid="efficiency in (0, 1]")
def equal_split_rate(least_rate: Ratio, count: Count, efficiency: Ratio) -> Ratio:
    """Rate of equal parts on unequal devices: all wait for the slowest, and lose what exchange costs.

    >>> float(equal_split_rate(3194.0, 8, 0.5))
    12776.0
    """
    return least_rate * count * efficiency


@formula(symbol="t_fill", cite="narayanan2021", valid="through >= slowest")
def filling_time(through: Seconds, slowest: Seconds) -> Seconds:
    """What filling and draining a pipeline of unequal stages adds: one micro-batch through it, less its slowest stage.

    >>> float(filling_time(7.0, 3.0))
    4.0
    """
    return through - slowest
