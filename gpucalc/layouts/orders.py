"""Pipeline schedules as drawings: the order in which each stage works, and when each pass can run.

The order of forward (F), backward (B) and weight (W) passes is the schedule's own. The drawing is simplified:
every stage works at the pace of the slowest kind, nothing jitters, and a transfer only delays the next stage.
The predicted step time comes from the estimate, never from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucalc.layouts.schedules import SCHEDULES

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"


@dataclass(frozen=True)
class Pass:
    """One piece of work of a stage: the forward, backward or weight pass of a micro-batch through a chunk."""

    kind: str
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Bar:
    """A pass with the stage that runs it, and when."""

    stage: int
    work: Pass
    start: float
    end: float


def order(schedule: str, stages: int, chunks: int, micro_batches: int) -> list[list[Pass]]:
    """For each stage the passes in the order in which it runs them.

    >>> ["".join(p.kind for p in stage) for stage in order("1f1b", 2, 1, 3)]
    ['FFBFBB', 'FBFBFB']
    """
    return [ORDERS[schedule](stage, stages, chunks, micro_batches) for stage in range(stages)]


def _all_forward_all_backward(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """GPipe: every forward, then every backward in reverse."""
    forward = [Pass(FORWARD, i) for i in range(micro_batches)]
    return forward + [Pass(BACKWARD, i) for i in reversed(range(micro_batches))]


def _alternating(forward: list[Pass], backward: list[Pass], warm: int) -> list[Pass]:
    """`warm` forwards, then one forward and one backward in turn, then what backwards are left."""
    warm = min(warm, len(forward))
    found = forward[:warm]
    for position, each in enumerate(forward[warm:]):
        found += [each, backward[position]]
    return found + backward[len(forward) - warm :]


def _one_forward_one_backward(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    forward = [Pass(FORWARD, i) for i in range(micro_batches)]
    backward = [Pass(BACKWARD, i) for i in range(micro_batches)]
    return _alternating(forward, backward, stages - 1 - stage)


def _interleaved(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """Chunk after chunk for groups of as many micro-batches as there are stages."""

    def turns(kind: str, order_of_chunks: list[int]) -> list[Pass]:
        groups = [range(i, min(i + stages, micro_batches)) for i in range(0, micro_batches, stages)]
        return [Pass(kind, i, chunk) for group in groups for chunk in order_of_chunks for i in group]

    forward = turns(FORWARD, list(range(chunks)))
    backward = turns(BACKWARD, list(reversed(range(chunks))))
    warm = (stages - 1 - stage) * 2 + (chunks - 1) * stages
    # With one group, or a last one that is not full, chunks wait for each other: all forwards come first.
    uneven = micro_batches % stages != 0 or micro_batches == stages
    return _alternating(forward, backward, len(forward) if uneven else warm)


def _with_weights(passes: list[Pass], lag: int) -> list[Pass]:
    """Weight passes put in: each follows the backward pass `lag` later while forwards last, then every backward."""
    found: list[Pass] = []
    waiting: list[Pass] = []
    forwards = sum(p.kind == FORWARD for p in passes)
    for each in passes:
        found.append(each)
        if each.kind == FORWARD:
            forwards -= 1
            continue
        waiting.append(Pass(WEIGHT, each.micro_batch))
        if len(waiting) > lag or not forwards:
            found.append(waiting.pop(0))
    return found + waiting


def _zero_bubble_one(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """ZB-H1: 1F1B, whose weight passes wait the longer the later the stage, and fill its drain."""
    return _with_weights(_one_forward_one_backward(stage, stages, chunks, micro_batches), stage)


def _zero_bubble_two(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """ZB-H2: twice the forwards of 1F1B before the first backward, so that no stage waits between passes."""
    forward = [Pass(FORWARD, i) for i in range(micro_batches)]
    backward = [Pass(BACKWARD, i) for i in range(micro_batches)]
    return _with_weights(_alternating(forward, backward, 2 * (stages - 1 - stage)), 2 * stage)


def _dualpipe(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """DualPipe: half of the micro-batches enters at each end; chunk 0 runs down the stages, chunk 1 up."""
    inward = min(stage, stages - 1 - stage)
    near = 0 if 2 * stage < stages else 1  # the direction that enters at this rank's end
    half = stages // 2
    return _both_ways(half - inward - 1, inward + 1, micro_batches // 2 - stages + inward + 1, near)


def _dualpipe_v(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """DualPipe-V: every micro-batch runs down through the first half stages and back up through the second."""
    return _both_ways(stages - stage - 1, stage + 1, micro_batches - 2 * stages + stage + 1, 0)


def _both_ways(outer: int, inner: int, middle: int, near: int) -> list[Pass]:
    """The eight steps of DualPipe on one rank; `near` is the chunk whose micro-batches reach it first."""
    found: list[Pass] = []
    waiting: list[Pass] = []
    counts = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD) for chunk in (0, 1)}

    def run(kind: str, far: int, *, later: bool = False) -> None:
        chunk = near ^ far
        number = counts[kind, chunk]
        counts[kind, chunk] += 1
        found.append(Pass(kind, number, chunk))
        if kind == BACKWARD:
            weight = Pass(WEIGHT, number, chunk)
            (waiting if later else found).append(weight)

    for _ in range(2 * outer):
        run(FORWARD, 0)
    for _ in range(inner):
        run(FORWARD, 0)
        run(FORWARD, 1)
    for _ in range(outer):
        run(BACKWARD, 1)
        run(FORWARD, 1)
    for _ in range(middle):
        run(FORWARD, 0)
        run(BACKWARD, 1)
        run(FORWARD, 1)
        run(BACKWARD, 0)
    for _ in range(outer):
        run(BACKWARD, 1)
        run(FORWARD, 1)
        run(BACKWARD, 0)
    for position in range(2 * inner):  # the weight passes of the second half wait
        run(BACKWARD, 1 - position % 2, later=position >= inner)
    for _ in range(outer):
        found.append(waiting.pop(0))
        run(BACKWARD, 0, later=True)
    return found + waiting


# What one stage runs, by schedule: a function of stage, stages, chunks and micro-batches. A schedule without an
# order of its own is estimated and ranked, but not drawn.
ORDERS: Mapping[str, Callable[[int, int, int, int], list[Pass]]] = {
    "none": _one_forward_one_backward,
    "gpipe": _all_forward_all_backward,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zb-h1": _zero_bubble_one,
    "zb-1p": _zero_bubble_one,
    "zb-2p": _zero_bubble_two,
    "dualpipe": _dualpipe,
    "dualpipe-v": _dualpipe_v,
}


def routes(schedule: str, stages: int, chunks: int) -> list[list[tuple[int, int]]]:
    """The ways of micro-batches through the model: for each, the (chunk, stage) in the order of a forward pass.

    >>> routes("interleaved", 2, 2)
    [[(0, 0), (0, 1), (1, 0), (1, 1)]]
    >>> routes("dualpipe", 2, 1)
    [[(0, 0), (0, 1)], [(1, 1), (1, 0)]]
    """
    down, up = list(range(stages)), list(reversed(range(stages)))
    row = SCHEDULES[schedule]
    if row.stages_held == 2:
        return [[(0, stage) for stage in down], [(1, stage) for stage in up]]
    if row.pieces == 2:
        return [[(0, stage) for stage in down] + [(1, stage) for stage in up]]
    return [[(chunk, stage) for chunk in range(chunks) for stage in down]]


def timed(
    orders: list[list[Pass]],
    ways: list[list[tuple[int, int]]],
    durations: Mapping[str, float],
    transfer: float = 0.0,
) -> list[Bar]:
    """When each pass runs: after the pass before it on its stage, and `transfer` after what it waits for.

    `durations` are those of one chunk, by kind.

    >>> bars = timed(order("1f1b", 2, 1, 2), routes("1f1b", 2, 1), {"F": 1.0, "B": 2.0})
    >>> max(bar.end for bar in bars)
    9.0
    """
    before = {place: way[i - 1] if i else None for way in ways for i, place in enumerate(way)}
    after = {place: way[i + 1] if i + 1 < len(way) else None for way in ways for i, place in enumerate(way)}
    ended: dict[tuple[str, int, tuple[int, int]], float] = {}  # (kind, micro-batch, (chunk, stage)) → end
    free, position = [0.0] * len(orders), [0] * len(orders)
    bars: list[Bar] = []

    def ready(each: Pass, place: tuple[int, int]) -> float | None:
        """When what a pass needs is there; None when it has not been run yet."""
        if each.kind == WEIGHT:
            return ended.get((BACKWARD, each.micro_batch, place))
        neighbour = before[place] if each.kind == FORWARD else after[place]
        if neighbour is None:  # the model's input, or the loss at its end
            return 0.0 if each.kind == FORWARD else ended.get((FORWARD, each.micro_batch, place))
        end = ended.get((each.kind, each.micro_batch, neighbour))
        return None if end is None else end + transfer * (neighbour[1] != place[1])

    while len(bars) < sum(map(len, orders)):
        moved = False
        for stage, passes in enumerate(orders):
            while position[stage] < len(passes):
                each = passes[position[stage]]
                start = ready(each, (each.chunk, stage))
                if start is None:
                    break
                start = max(free[stage], start)
                free[stage] = ended[each.kind, each.micro_batch, (each.chunk, stage)] = start + durations[each.kind]
                bars.append(Bar(stage, each, start, free[stage]))
                position[stage] += 1
                moved = True
        if not moved:
            raise ValueError("the order of the passes waits for itself")
    return bars
