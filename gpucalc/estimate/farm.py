"""A render farm: the one place that puts the formulas of `formulas/render.py` in order.

Times of the latest machine are expectations of a maximum, integrated over the shares that the formulas give.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import render

LEAST_SPREAD = 1e-3  # below it frames are equal and the shares are steps
LONGEST = 200.0  # mean frame times up to which a maximum is integrated
SAMPLED = 8000  # frames of all samples together
MOST_SAMPLED = 200_000  # frames, above which the end of a queue is nothing beside it
ROUNDS_WITHOUT_END = 60  # frames a machine, likewise
SEED = 7
STEPS = 14  # fixed-point steps for the time when the queue is empty


@dataclass(frozen=True)
class Score:
    """A device's benchmark score, and the range it may lie in when it is estimated."""

    value: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True)
class Farm:
    """Machines of one or more kinds, and what all of them share."""

    counts: Mapping[str, int]  # device → machines in use
    scores: Mapping[str, Score]
    frames: float
    reference_time: float
    reference_score: float
    spread: float
    scene_load: float = 0.0
    failure_share: float = 0.0
    gpus_per_frame: int = 1


def _integral(values: Any, at: Any) -> float:
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(at)))


def _grid() -> Any:
    return np.concatenate([[1e-9], np.geomspace(1e-3, LONGEST, 700)])


def latest_first_round(workers: float, spread: float) -> float:
    """Expected longest of `workers` frames, in mean frame times."""
    if spread < LEAST_SPREAD:
        return 1.0
    at = _grid()
    # ln(1 - S) keeps the last digits where thousands of machines make the tail matter.
    return _integral(-np.expm1(workers * np.log1p(-np.minimum(render.longer_share(at, spread), 1 - 1e-15))), at)


@dataclass(frozen=True)
class _Kind:
    """One kind of machine: how many, their mean time of a frame, and its spread."""

    count: float
    mean: float
    spread: float


def _drained(kinds: Sequence[_Kind], frames: float, throughput: float) -> tuple[float, float]:
    """Frames under way when the queue is empty, and the expected time from then until the last machine is done."""
    unit = max(k.mean for k in kinds)
    at = _grid() * unit
    empty = frames / throughput
    under_way, idle = 0.0, np.zeros_like(at)
    for _ in range(STEPS):
        under_way, idle = 0.0, np.zeros_like(at)
        for k in kinds:
            share = render.remaining_share_after(at / k.mean, empty / k.mean, max(k.spread, LEAST_SPREAD))
            under_way += k.count * _integral(share, at) / k.mean
            idle = idle + k.count * np.log1p(-np.minimum(share, 1 - 1e-15))
        empty = float(render.queue_empty_time(frames, under_way, throughput))
    return under_way, _integral(-np.expm1(idle), at)


def estimate_farm(farm: Farm, *, store: float = 0.0, frame_bytes: float = 0.0, trace: bool = False) -> Ledger:
    """Frame times by kind of machine, the makespan in random and in longest-first order, and what bounds it."""
    ledger = Ledger(
        Columns(
            {
                "reference_time": farm.reference_time,
                "reference_score": farm.reference_score,
                "spread": farm.spread,
                "scene_load": farm.scene_load,
                "failure_share": farm.failure_share,
                "gpus_per_frame": float(farm.gpus_per_frame),
                "store_bandwidth": store,
                "frame_bytes": frame_bytes,
            }
        ),
        trace=trace,
    )
    frames = float(ledger.add("frames/attempts", render.attempts, frames=farm.frames))
    kinds, throughput = [], 0.0
    for device, count in farm.counts.items():
        workers = count // farm.gpus_per_frame
        computed = ledger.add(f"frame/{device}/computed", render.frame_time, score=farm.scores[device].value)
        mean = float(ledger.add(f"frame/{device}/occupied", render.occupied_time, computed=computed))
        spread = float(ledger.add(f"frame/{device}/spread", render.occupied_spread, computed=computed))
        kinds.append(_Kind(float(workers), mean, spread))
        throughput += workers / mean
    work = ledger.add("farm/work", render.farm_work_time, frames=frames, throughput=throughput)
    under_way, tail = _drained(kinds, frames, throughput)
    longest_mean = max(k.mean for k in kinds)
    ledger.add("farm/queue-empty", render.queue_empty_time, frames=frames, under_way=under_way, throughput=throughput)
    ledger.add("farm/last-frames", render.latest_remainder, mean_time=longest_mean, latest=tail / longest_mean)
    queue = ledger.total("farm/queue", "farm/queue-empty", "farm/last-frames")
    # Equal machines that take turns are an upper bound, and near the truth for nearly equal frames.
    turns = _in_turns(ledger, kinds[0], frames) if len(kinds) == 1 else queue
    ledger.add("farm/random", render.farm_makespan, queue=queue, in_turns=turns, work=work)
    floor, uneven = _longest_first(kinds, frames, float(work))
    ledger.add("farm/longest", render.longest_or_work, work="farm/work", excess=floor - float(work))
    ledger.add(
        "farm/longest-first",
        render.longest_first_makespan,
        longest="farm/longest",
        uneven=uneven,
        makespan="farm/random",
    )
    if store > 0 and frame_bytes > 0:
        ledger.add("farm/store", render.store_time, frames=frames)
    return ledger


def _longest_first(kinds: Sequence[_Kind], frames: float, work: float) -> tuple[float, float]:
    """Longest frames first: the expected longer of the work and the longest frame, and what uneven ends add to that.

    The first is an integral. The second is the mean over stratified samples of frame times, handed out in falling
    order to the machine that is free next; subtracting each sample's own first part leaves little noise.
    """
    fastest, spread = min(k.mean for k in kinds), max(k.spread for k in kinds)
    machines = sum(k.count for k in kinds)
    if spread < LEAST_SPREAD:
        return work, max(kinds[0].mean * float(np.ceil(frames / machines)) - work, 0.0) if len(kinds) == 1 else 0.0
    at = work + _grid() * fastest
    longer = -np.expm1(frames * np.log1p(-np.minimum(render.longer_share(at / fastest, spread), 1 - 1e-15)))
    floor = work + _integral(longer, at)
    count = round(frames)
    if frames >= ROUNDS_WITHOUT_END * machines or not 1 <= count <= MOST_SAMPLED:
        return floor, 0.0
    sigma, draw = float(np.sqrt(np.log1p(spread**2))), np.random.default_rng(SEED)
    normal = NormalDist()
    added = []
    for _ in range(int(min(64, max(2, -(-SAMPLED // count))))):
        shares = (np.arange(count) + draw.random(count)) / count
        deviates = np.array([normal.inv_cdf(min(max(p, 1e-12), 1 - 1e-12)) for p in shares])
        times = np.exp(sigma * deviates - sigma**2 / 2)
        added.append(_handed_out(kinds, np.sort(times)[::-1]) - max(float(times.max()) * fastest, work))
    return floor, max(float(np.mean(added)), work - floor)


def _handed_out(kinds: Sequence[_Kind], times: Any) -> float:
    """When the last machine is done, of frames (in mean frame times) that go to the one that is free next."""
    free = [(0.0, place, kind.mean) for place, kind in enumerate(k for k in kinds for _ in range(round(k.count)))]
    for time in times.tolist():
        at, place, mean = free[0]
        heapq.heapreplace(free, (at + time * mean, place, mean))
    return max(at for at, _, _ in free)


def _in_turns(ledger: Ledger, kind: _Kind, frames: float) -> Any:
    rounds = float(np.ceil(frames / kind.count))
    last = frames - kind.count * (rounds - 1)  # machines that take a frame in the last round
    latest = latest_first_round(last, max(kind.spread / np.sqrt(rounds), LEAST_SPREAD))
    return ledger.add("farm/in-turns", render.rounds_time, mean_time=kind.mean, rounds=rounds, latest=latest)
