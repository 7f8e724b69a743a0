"""Pipeline schedules: bubble, in-flight micro-batches, and the time of a step.

Symbols: p stages, v virtual stages per rank, m micro-batches, F forward, B activation gradient and
W weight gradient of one micro-batch on the longest stage.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Flag, Ranks, Ratio, Seconds


@formula(symbol="m", cite="narayanan2021", valid="")
def micro_batches(global_batch: Count, dp: Count, micro_batch: Count) -> Count:
    """Micro-batches per step and replica; a last, partly filled one counts whole.

    >>> float(micro_batches(1536, 64, 2)), float(micro_batches(10, 4, 1))
    (12.0, 3.0)
    """
    return np.ceil(global_batch / (dp * micro_batch))


@formula(symbol="i_1F1B", cite="narayanan2021", valid="1F1B, GPipe, zero bubble")
def idle_passes_1f1b(pp: Count) -> Count:
    """Micro-batches for which a stage idles while the pipeline fills and drains: p-1.

    >>> float(idle_passes_1f1b(4))
    3.0
    """
    return pp - 1.0


@formula(symbol="i_int", cite="narayanan2021", valid="pp divides the micro-batches")
def idle_passes_interleaved(pp: Count, vpp: Count) -> Count:
    """Idle micro-batches of the interleaved schedule: (p-1)/v.

    >>> float(idle_passes_interleaved(4, 3))
    1.0
    """
    return (pp - 1) / vpp


@formula(symbol="i_DP", cite="deepseek2024", valid="pp even")
def idle_passes_dualpipe(pp: Count) -> Count:
    """Idle passes of DualPipe, which feeds the pipeline from both ends: p/2-1.

    >>> float(idle_passes_dualpipe(8))
    3.0
    """
    return np.maximum(pp / 2 - 1, 0.0)


@formula(symbol="i_DPV", cite="deepseek2024", valid="two half stages per rank")
def idle_passes_dualpipe_v(pp: Count) -> Count:
    """Idle passes of DualPipe-V, whose ranks hold two half stages: (p-1)/2.

    >>> float(idle_passes_dualpipe_v(5))
    2.0
    """
    return (pp - 1) / 2


@formula(symbol="t_bubble", cite="qi2024", valid="all schedules; never negative")
def bubble_time(
    idle_passes: Count,
    forward_time: Seconds,
    backward_time: Seconds,
    weight_time: Seconds,
    transfer_time: Seconds,
    idle_backwards: Count,
    weight_fill: Ratio,
) -> Seconds:
    """Idle time of a stage: per idle pass a forward, `idle_backwards` backwards and the transfers, less filled in work.

    1F1B and interleaved: F + B. Zero bubble: F + B - fill·W with fill 2 (H1) or 3 (2p) in the ideal.
    DualPipe: F + 2·B - 3·W. B includes the weight gradients W.

    >>> float(bubble_time(3, 1.0, 2.0, 1.0, 0.0, 1, 0)), float(bubble_time(3, 1.0, 2.0, 1.0, 0.0, 2, 3))
    (9.0, 6.0)
    """
    work = forward_time + idle_backwards * backward_time - weight_fill * weight_time
    return idle_passes * (np.maximum(work, 0.0) + transfer_time)


@formula(symbol="t_dep", cite="qi2024", valid="weight gradients of the last micro-batch cannot be moved")
def zero_bubble_floor(
    micro_batches: Count, pp: Count, forward_time: Seconds, backward_time: Seconds, weight_time: Seconds
) -> Seconds:
    """Critical path of a zero-bubble schedule: (m+p-1)·(F+B) + W; it rules when m < p.

    >>> float(zero_bubble_floor(4, 8, 1.0, 2.0, 1.0))
    23.0
    """
    return (micro_batches + pp - 1) * (forward_time + backward_time - weight_time) + weight_time


@formula(symbol="m·t_last", cite="narayanan2021", valid="")
def steady_time(micro_batches: Count, slowest_stage: Seconds) -> Seconds:
    """Time in which the slowest stage works through all micro-batches.

    >>> float(steady_time(8, 0.5))
    4.0
    """
    return micro_batches * slowest_stage


@formula(symbol="[t_last >= t]", cite="narayanan2021", valid="")
def last_stage_decides(last: Seconds, other: Seconds) -> Flag:
    """Whether the last stage, with the head, is the slowest.

    >>> float(last_stage_decides(2.0, 1.0)), float(last_stage_decides(1.0, 2.0))
    (1.0, 0.0)
    """
    return 1.0 * np.greater_equal(last, other)


@formula(symbol="t_min", cite="narayanan2021", valid="any pp and dp whose product is n/(t·c)")
def work_bound(
    global_batch: Count,
    micro_batch: Count,
    layers: Count,
    tp: Count,
    cp: Count,
    n_gpus: Count,
    layer_time: Seconds,
    head_time: Seconds,
    optimizer_fixed_seconds: Seconds,
    straggler: Ratio,
) -> Seconds:
    """Least time of a step: layers and head of all micro-batches, spread evenly over replicas and stages.

    However n/(t·c) ranks are split into stages and replicas, the slowest stage has at least the mean work
    (L·t_layer + t_head)/p of at least B/(D·b) micro-batches.

    >>> round(float(work_bound(64, 1, 32, 2, 1, 16, 0.01, 0.0, 0.02, 1.0)), 9)
    2.58
    """
    replica_share = tp * cp / (micro_batch * n_gpus)
    return straggler * (global_batch * replica_share * (layers * layer_time + head_time) + optimizer_fixed_seconds)


@formula(symbol="2v·t_p2p", cite="narayanan2021", valid="pp > 1")
def stage_transfer_time(
    pp: Ranks, vpp: Count, hop: Seconds, p2p_exposed_share: Ratio, p2p_exposed_interleaved: Ratio
) -> Seconds:
    """Exposed transfers of one micro-batch at a stage: one hop forward and one back per virtual stage.

    The share that is exposed differs between plain and interleaved schedules.

    >>> float(stage_transfer_time(4, 2, 1e-3, 0.5, 0.75)), float(stage_transfer_time(1, 1, 1e-3, 0.5, 0.75))
    (0.003, 0.0)
    """
    exposed_share = np.where(np.greater(vpp, 1), p2p_exposed_interleaved, p2p_exposed_share)
    return (pp > 1) * 2 * vpp * exposed_share * hop


@formula(symbol="i_2", cite="narayanan2021", valid="pp >= 1")
def second_stage_index(pp: Ranks) -> Count:
    """Stages before a middle stage that holds most: one, or none where there is one stage.

    >>> float(second_stage_index(8)), float(second_stage_index(1))
    (1.0, 0.0)
    """
    return np.minimum(1.0, pp - 1)


@formula(symbol="i_last", cite="narayanan2021", valid="pp >= 1")
def last_stage_index(pp: Ranks) -> Count:
    """Stages before the last.

    >>> last_stage_index(8)
    7
    """
    return pp - 1


@formula(symbol="q_1F1B", cite="narayanan2021", valid="stage_index from 0")
def in_flight_1f1b(micro_batches: Count, pp: Count, stage_index: Count) -> Count:
    """Micro-batches whose activations a stage holds under 1F1B: min(m, p - i).

    >>> float(in_flight_1f1b(32, 8, 0)), float(in_flight_1f1b(4, 8, 0))
    (8.0, 4.0)
    """
    return np.minimum(micro_batches, pp - stage_index)


@formula(symbol="q_int", cite="megatron-core", valid="vpp > 1; stage_index from 0")
def in_flight_interleaved(micro_batches: Count, pp: Count, vpp: Count, stage_index: Count) -> Count:
    """Micro-batches in flight of the interleaved schedule, in units of a stage: (2(p-i-1) + (v-1)·p + 1)/v chunks.

    >>> [float(in_flight_interleaved(64, 8, 4, i)) for i in (0, 1, 7)]
    [9.75, 9.25, 6.25]
    >>> float(in_flight_interleaved(8, 8, 4, 0))
    8.0
    """
    return np.minimum(micro_batches, (2 * (pp - stage_index - 1) + (vpp - 1) * pp + 1) / vpp)


@formula(symbol="q_ZB1", cite="qi2024", valid="one-activation schedules: ZB-H1, ZB-1p; stage_index from 0")
def in_flight_zero_bubble_1(micro_batches: Count, pp: Count, stage_index: Count, weight_gradient_share: Ratio) -> Count:
    """Micro-batches in flight when weight gradients wait: p-i whole ones, and the inputs of i more.

    `weight_gradient_share`: what is kept for weight gradients over what is kept for the backward pass.

    >>> [float(in_flight_zero_bubble_1(64, 8, i, 0.5)) for i in (0, 1, 7)]
    [8.0, 7.5, 4.5]
    """
    return np.minimum(micro_batches, (pp - stage_index) + stage_index * weight_gradient_share)


@formula(symbol="q_ZB2", cite="qi2024", valid="two-activation schedules: ZB-H2, ZB-2p; stage_index from 0")
def in_flight_zero_bubble_2(micro_batches: Count, pp: Count, stage_index: Count, weight_gradient_share: Ratio) -> Count:
    """Micro-batches in flight of the schedules that buy a zero bubble with memory: 2(p-i)-1, and the inputs of 2i.

    >>> [float(in_flight_zero_bubble_2(64, 8, i, 0.5)) for i in (0, 1, 7)]
    [15.0, 14.0, 8.0]
    """
    return np.minimum(micro_batches, 2 * (pp - stage_index) - 1 + 2 * stage_index * weight_gradient_share)


@formula(symbol="q_DP", cite="deepseek2024", valid="DualPipe, in units of one of its two stages")
def in_flight_dualpipe(micro_batches: Count, pp: Count) -> Count:
    """Micro-batches in flight of DualPipe, p + 1 on every rank.

    >>> float(in_flight_dualpipe(40, 8))
    9.0
    """
    return np.minimum(micro_batches, pp + 1)


@formula(symbol="q_DPV", cite="deepseek2024", valid="DualPipe-V, whose ranks hold two half stages")
def in_flight_dualpipe_v(micro_batches: Count, pp: Count, half: Ratio = 0.5) -> Count:
    """Micro-batches in flight of DualPipe-V, 2p + 1 half stages on every rank.

    >>> float(in_flight_dualpipe_v(40, 4))
    4.5
    """
    return np.minimum(micro_batches, pp + half)


@formula(symbol="q_GPipe", cite="huang2019", valid="all forwards before all backwards")
def in_flight_gpipe(micro_batches: Count) -> Count:
    """Micro-batches in flight of GPipe: all of them.

    >>> float(in_flight_gpipe(32.0))
    32.0
    """
    return micro_batches


@formula(symbol="max(0, t_dep - t)", cite="qi2024", valid="")
def excess_time(floor: Seconds, time: Seconds) -> Seconds:
    """Time by which a critical path is longer than the schedule's sum of work and bubble.

    >>> float(excess_time(5.0, 3.0)), float(excess_time(1.0, 3.0))
    (2.0, 0.0)
    """
    return np.maximum(floor - time, 0.0)
