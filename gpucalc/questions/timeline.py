"""The predicted step as a timeline: which pass each stage runs when, and what it holds meanwhile.

The passes come in the schedule's own order (`layouts/orders.py`), each as long as the estimate says of the longest
stage. The timeline is stretched so that the pipeline takes the estimated time: the step is the estimate's, and only the
places of the passes within it are this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucalc.core.errors import UsageError
from gpucalc.layouts import orders
from gpucalc.layouts.orders import BACKWARD, FORWARD, WEIGHT, Bar
from gpucalc.layouts.schedules import SCHEDULES

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.jobs.training import Job

FEWEST_DRAWN = 6  # micro-batches of a drawing, where the job has as many
MOST_BARS = 6000  # of a drawing
MOST_PASSES = 300_000  # of a whole step: a viewer takes no more
PIPELINE = ("time/compute", "time/pp/p2p", "time/pp/bubble")  # the terms of a step that its passes take


@dataclass(frozen=True)
class Timeline:
    """Passes of some micro-batches of a step, and how long a transfer to the next stage takes, in seconds."""

    bars: tuple[Bar, ...]
    transfer: float
    micro_batches: int
    stages: int

    @property
    def end(self) -> float:
        """When the last pass is over."""
        return max(bar.end for bar in self.bars)

    def of_stage(self, stage: int) -> list[Bar]:
        """The passes of one stage in the order in which it runs them."""
        return [bar for bar in self.bars if bar.stage == stage]


def at(ledger: Ledger, path: str) -> float:
    """A term of a ledger of one row."""
    value = ledger[path]
    return float(value.ravel()[0] if hasattr(value, "ravel") else value)


def durations(job: Job, ledger: Ledger) -> tuple[dict[str, float], float]:
    """Seconds of each kind of pass through one chunk of the longest stage, and of a transfer between stages."""
    row = SCHEDULES[job.cells["schedule"]]
    chunks = row.pieces if row.pieces > 1 else int(job.cells["vpp"])
    depth = at(ledger, "stage/layers/second")
    forward = at(ledger, "layer/forward/time") * depth
    backward = at(ledger, "stage/time") - forward
    found = {FORWARD: forward, BACKWARD: backward}
    if row.splits_backward:
        weight = min(at(ledger, "layer/weight-gradient/trained") * depth, backward)
        found |= {BACKWARD: backward - weight, WEIGHT: weight}
    return {kind: seconds / chunks for kind, seconds in found.items()}, at(ledger, "pp/transfer") / (2 * chunks)


def drawn_micro_batches(name: str, micro_batches: int, stages: int, chunks: int) -> int:
    """How many micro-batches a drawing shows: enough to fill the pipeline, whole groups; 0 where none can be drawn.

    >>> drawn_micro_batches("1f1b", 128, 4, 1), drawn_micro_batches("1f1b", 3, 4, 1)
    (12, 3)
    >>> drawn_micro_batches("interleaved", 128, 4, 2), drawn_micro_batches("dualpipe", 7, 4, 1)
    (8, 0)
    """
    if not _has_order(name, stages, micro_batches):
        return 0
    row = SCHEDULES[name]
    if row.stages_held > 1 or row.pieces > 1:
        return min(micro_batches - micro_batches % 2, max(2 * stages, 10))
    wanted = max((3 if chunks == 1 else 2) * stages, FEWEST_DRAWN)
    most = max(stages + 1 if chunks == 1 else 2 * stages, MOST_BARS // (3 * stages * chunks))
    count = min(micro_batches, wanted, most)
    return count - count % stages if chunks > 1 and count > stages else count


def _has_order(name: str, stages: int, micro_batches: int) -> bool:
    row = SCHEDULES[name]
    fits = row.condition is None or row.condition.holds({"pp": stages, "micro_batches": micro_batches})
    return name in orders.ORDERS and (fits or (row.stages_held == 1 and row.pieces == 1))


def timeline(job: Job, ledger: Ledger, micro_batches: int) -> Timeline:
    """The passes of so many micro-batches of a job's step, of a detailed ledger of that row."""
    name, stages, chunks = job.cells["schedule"], int(job.cells["pp"]), int(job.cells["vpp"])
    seconds, transfer = durations(job, ledger)
    ways = orders.routes(name, stages, chunks)
    bars = orders.timed(orders.order(name, stages, chunks, micro_batches), ways, seconds, transfer)
    return Timeline(tuple(bars), transfer, micro_batches, stages)


def whole_step(job: Job, ledger: Ledger) -> Timeline:
    """The passes of all micro-batches, stretched to the time that the estimate gives its pipeline.

    Raises UsageError for a schedule without an order of its own, and for more passes than a viewer takes.
    """
    name, stages, chunks = job.cells["schedule"], int(job.cells["pp"]), int(job.cells["vpp"])
    count = round(at(ledger, "symbol/micro_batches"))
    if not _has_order(name, stages, count):
        known = ", ".join(n for n, row in SCHEDULES.items() if row.token and n in orders.ORDERS)
        raise UsageError(f"a timeline of {name} with {stages} stages and {count} micro-batches is not known: {known}")
    passes = 3 * count * stages * chunks
    if passes > MOST_PASSES:
        batch = int(job.cells["global_batch"]) * MOST_PASSES // passes
        raise UsageError(
            f"a timeline of {count:,} micro-batches on {stages} stages has more than {MOST_PASSES:,} passes; a global "
            f"batch of about {batch:,} has fewer, and every micro-batch is like the others"
        )
    found = timeline(job, ledger, count)
    stretch = sum(at(ledger, path) for path in PIPELINE) / found.end
    bars = tuple(replace(bar, start=bar.start * stretch, end=bar.end * stretch) for bar in found.bars)
    return replace(found, bars=bars, transfer=found.transfer * stretch)


def after_pipeline(ledger: Ledger) -> list[tuple[str, float]]:
    """The other terms of the step, in the order in which they follow, in seconds."""
    return [(path, at(ledger, path)) for path in ledger.entries["time/step"].names if path not in PIPELINE]


def in_flight(bars: Sequence[Bar]) -> list[tuple[float, int]]:
    """From when on a stage keeps the activations of how many chunks of micro-batches: (time, count), from 0 on.

    They are kept from a forward pass until the last pass that reads them.

    >>> from gpucalc.layouts.orders import order, routes, timed
    >>> bars = timed(order("1f1b", 2, 1, 3), routes("1f1b", 2, 1), {"F": 1.0, "B": 2.0})
    >>> in_flight([bar for bar in bars if bar.stage == 0])
    [(0.0, 1), (1.0, 2), (6.0, 1), (6.0, 2), (9.0, 1), (12.0, 0)]
    """
    last: dict[tuple[int, int], float] = {}
    for bar in bars:
        if bar.work.kind != FORWARD:
            last[bar.work.micro_batch, bar.work.chunk] = bar.end
    steps = [(bar.start, 1) for bar in bars if bar.work.kind == FORWARD] + [(end, -1) for end in last.values()]
    found, held = [], 0
    for time, change in sorted(steps):
        held += change
        found.append((time, held))
    return found
