"""The pipeline schedules: one row each, with everything that sets it apart from the others.

A row references the formulas of its bubble and of its activations in flight (`gpucalc.formulas.pipeline`) and
holds the numbers they are filled in with. Nothing else in gpucalc compares names of schedules: the estimate,
the search, labels, drawings and exports read these rows. The code of a schedule is its place in
`core.vocabulary.SCHEDULES` and carries no meaning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.vocabulary import SCHEDULES as NAMES
from gpucalc.formulas import pipeline

DUALPIPE_FILL = 3.0  # weight gradients that fill an idle pass of DualPipe (DeepSeek-V3 report: F + 2B - 3W idle)


@dataclass(frozen=True)
class Condition:
    """What a schedule asks of the pipeline.

    `holds` takes pp, vpp and micro_batches (scalars or arrays) by name; `sentence` says what one layout breaks.
    """

    name: str
    holds: Callable[[Mapping[str, Any]], Any]
    sentence: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Schedule:
    """One pipeline schedule.

    token: its word in a layout label; "" for the absence of a pipeline.
    idle: formula of the passes a stage idles. in_flight: formula of the micro-batches whose activations it holds.
    weight_fill: weight-gradient passes that fill an idle pass: a number, or the name of a constant of the profile.
    idle_backwards: backward passes in an idle pass.
    critical_path: weight gradients are deferred, so that the chain of dependencies bounds a step of few micro-batches.
    stages_held: stages whose parameters one rank holds.
    chunked: a stage is cut into vpp > 1 model chunks.
    pieces: parts of the model on a rank that it works through one after the other, when not chunked.
    splits_backward: weight gradients are passes of their own.
    condition: what it asks of the pipeline, if anything.
    """

    name: str
    token: str
    idle: Callable[..., Any] = pipeline.idle_passes_1f1b
    in_flight: Callable[..., Any] = pipeline.in_flight_1f1b
    weight_fill: float | str = 0.0
    idle_backwards: float = 1.0
    critical_path: bool = False
    stages_held: int = 1
    chunked: bool = False
    pieces: int = 1
    splits_backward: bool = False
    condition: Condition | None = None

    @property
    def code(self) -> int:
        """The number that stands for it in the columns."""
        return NAMES.index(self.name)


def _both_ends(name: str) -> Condition:
    """Micro-batches enter at both ends of the pipeline, which meet in its middle."""

    def sentence(c: Mapping[str, Any]) -> str:
        if c["pp"] % 2:
            return f"schedule {name} needs an even number of stages, not pp={c['pp']}"
        return f"schedule {name} needs at least 2·pp = {2 * c['pp']} micro-batches, not {c['micro_batches']}"

    return Condition(
        "dualpipe: pp even, at least 2·pp micro-batches",
        lambda c: (c["pp"] % 2 == 0) & (c["micro_batches"] >= 2 * c["pp"]),
        sentence,
    )


_GROUPS = Condition(
    "interleaved: pp divides the micro-batches",
    lambda c: c["micro_batches"] % c["pp"] == 0,
    lambda c: f"interleaving takes micro-batches in groups of pp={c['pp']}; {c['micro_batches']} is not a multiple",
)

_ROWS = (
    Schedule("none", ""),
    Schedule("gpipe", "gpipe", in_flight=pipeline.in_flight_gpipe),
    Schedule("1f1b", "1f1b"),
    Schedule(
        "interleaved",
        "int",
        idle=pipeline.idle_passes_interleaved,
        in_flight=pipeline.in_flight_interleaved,
        chunked=True,
        condition=_GROUPS,
    ),
    Schedule(
        "zb-h1",
        "zbh1",
        in_flight=pipeline.in_flight_zero_bubble_1,
        weight_fill="zero_bubble_fill_1",
        critical_path=True,
        splits_backward=True,
    ),
    Schedule(
        "zb-1p",
        "zb1p",
        in_flight=pipeline.in_flight_zero_bubble_1,
        weight_fill="zero_bubble_fill_1",
        critical_path=True,
        splits_backward=True,
    ),
    Schedule(
        "zb-2p",
        "zb2p",
        in_flight=pipeline.in_flight_zero_bubble_2,
        weight_fill="zero_bubble_fill_2",
        critical_path=True,
        splits_backward=True,
    ),
    Schedule(
        "dualpipe",
        "dualpipe",
        idle=pipeline.idle_passes_dualpipe,
        in_flight=pipeline.in_flight_dualpipe,
        weight_fill=DUALPIPE_FILL,
        idle_backwards=2.0,
        stages_held=2,
        splits_backward=True,
        condition=_both_ends("dualpipe"),
    ),
    Schedule(
        "dualpipe-v",
        "dualpipev",
        idle=pipeline.idle_passes_dualpipe_v,
        in_flight=pipeline.in_flight_dualpipe_v,
        weight_fill=DUALPIPE_FILL,
        idle_backwards=2.0,
        pieces=2,
        splits_backward=True,
        condition=_both_ends("dualpipe-v"),
    ),
)

# name → row, in the order of the codes; `register` adds to it.
SCHEDULES: dict[str, Schedule] = {row.name: row for row in _ROWS}
assert list(SCHEDULES) == list(NAMES), "every schedule of the vocabulary has one row, in the same order"


def by_code(code: int) -> Schedule:
    """The schedule that a code of the columns stands for.

    >>> by_code(2).name
    '1f1b'
    """
    return SCHEDULES[NAMES[code]]


def stages_held(code: Any) -> Any:
    """Stages whose parameters one rank holds, of a code or an array of codes.

    >>> stages_held(7), stages_held(2)
    (2, 1)
    """
    held = [row.stages_held for row in SCHEDULES.values()]
    if not hasattr(code, "dtype"):
        return held[int(code)]
    import numpy as np

    return np.asarray(held)[code.astype(np.int64)]


def default_schedule(pp: int, vpp: int) -> str:
    """The schedule that an unstated one means."""
    if pp == 1:
        return "none"
    return "interleaved" if vpp > 1 else "1f1b"


def profile_constants() -> tuple[str, ...]:
    """Constants of the software profile that some schedule reads."""
    return tuple(dict.fromkeys(s.weight_fill for s in SCHEDULES.values() if isinstance(s.weight_fill, str)))


@contextlib.contextmanager
def register(schedule: Schedule) -> Iterator[Schedule]:
    """Add a schedule to the table and to the words of its column, for the time of a `with` block."""
    NAMES.add(schedule.name)
    SCHEDULES[schedule.name] = schedule
    try:
        yield schedule
    finally:
        del SCHEDULES[schedule.name]
        NAMES.remove(schedule.name)
