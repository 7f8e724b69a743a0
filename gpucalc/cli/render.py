"""`gpucalc render`: a render farm."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer, positive_number, quantity, share
from gpucalc.core.errors import ExitStatus, UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.database.reader import Database
    from gpucalc.estimate.farm import Farm, Score

YEAR = 365.25 * 86400
FEW_ROUNDS = 3  # frames a machine below which the closed form may be 10 % off
ROOTS = ("farm/random", "farm/longest-first", "farm/work", "farm/store")
ORDERS = ("random", "longest-first")


def order_named(flag: str, text: str) -> str:
    """The order in which frames are handed out."""
    word = text.strip().casefold()
    if word not in ORDERS:
        raise unknown("order", text, ORDERS)
    return word


def spread_of(flag: str, text: str) -> float:
    """A standard deviation over its mean."""
    if text.strip() in {"0", "0.0"}:
        return 0.0
    value = positive_number(flag, text)
    if value > 3:
        raise UsageError(f"{flag} is {text}; a standard deviation above 3 means is not a spread of frame times")
    return value


def seconds_or_none(flag: str, text: str) -> float:
    """A time, 0 included."""
    if re.fullmatch(r"0+(\.0+)?\s*(s|min|h|ms)?", text.strip()):
        return 0.0
    seconds: float = quantity("s")(flag, text)
    return seconds


@dataclass(frozen=True)
class FilmOptions:
    """The frames to be made, and what one takes on the reference machine."""

    minutes: float | None = option("--minutes M", "Length of the film.", read=positive_number)
    fps: float = option("--fps N", "Frames a second.", default="24", read=positive_number)
    frames: int | None = option("--frames N", "Frames, instead of --minutes.", read=positive_integer)
    frame_time: float | None = option(
        "--frame-time T", "Mean time of a frame on the reference, 20min.", read=quantity("s")
    )
    machine_years: float | None = option(
        "--machine-years Y", "All frames on one reference machine, in years.", read=positive_number
    )
    reference: str | None = option(
        "--reference GPU", "The machine that those times are of; the first GPU.", complete="gpus"
    )
    spread: float | None = option("--spread C", "Standard deviation of frame times over their mean.", read=spread_of)
    load: float = option(
        "--load T", "Time to load the scene, beside the frame's own; 0.", default="0", read=seconds_or_none
    )
    failures: float | None = option("--failures P", "Share of frames to repeat, 2%.", read=share())
    tiles: int = option("--tiles N", "Parts of a frame, rendered apart.", default="1", read=positive_integer)

    def count(self) -> int:
        """Frames of the film."""
        if (self.minutes is None) == (self.frames is None):
            raise UsageError("how long is the film? write either --minutes 90 or --frames 129600")
        return self.frames or max(1, round((self.minutes or 0.0) * 60 * self.fps))

    def time_of_frame(self) -> float:
        """Seconds of one frame on the reference machine."""
        if (self.frame_time is None) == (self.machine_years is None):
            raise UsageError("how long does a frame take? write either --frame-time 20min or --machine-years 3")
        return self.frame_time or (self.machine_years or 0.0) * YEAR / self.count()


@dataclass(frozen=True)
class FarmOptions:
    """The machines of a farm, what bounds them, and what they cost."""

    gpu: str | None = option("--gpu GPU[:N],…", "Machines, such as rtx4090:500.", complete="gpus")
    gpus: str | None = option("--gpus N", "GPUs, where --gpu names one kind without a number.")
    gpus_per_frame: int = option(
        "--gpus-per-frame N", "GPUs that share the samples of a frame.", default="1", read=positive_integer
    )
    licences: int | None = option("--licences N", "Machines that may render.", read=positive_integer)
    licence_price: float | None = option(
        "--licence-price USD", "Of one licence and year, with --licences.", read=positive_number
    )
    store: float | None = option("--store RATE", "Rate of the store, 10GB/s.", read=quantity("B/s"))
    frame_bytes: float | None = option("--frame-bytes B", "Read and written for a frame, 2GB.", read=quantity("B"))
    price: float | None = option("--price USD", "Of one GPU-hour.", read=positive_number)


@command(group="The whole cluster")
def render(
    *,
    machines: FarmOptions,
    film: FilmOptions,
    order: str = option("--order NAME", "random or longest-first.", default="random", read=order_named, choices=ORDERS),
    output: OutputOptions,
    database: DatabaseOptions,
) -> int:
    """A render farm: frame time, how long a film takes and what bounds it, and its cost.

    \b
    gpucalc render --gpu rtx4090-24gb:500 --minutes 90 --machine-years 3
    """
    db = database.database()
    from gpucalc.estimate.farm import Farm, estimate_farm
    from gpucalc.questions import farm as farms

    table = farms.score_table(db)
    counts = farms.machines_of(machines.gpu, machines.gpus, db)
    scores = {key: farms.score_of(db.device(key), table) for key in counts}
    first = db.device_key(film.reference) if film.reference is not None else next(iter(counts))
    base = farms.score_of(db.device(first), table)
    used = farms.limited(counts, scores, machines.licences)
    if any(count < machines.gpus_per_frame for count in used.values()):
        raise UsageError(
            f"--gpus-per-frame {machines.gpus_per_frame} is more than the GPUs of one kind, {min(used.values())}"
        )
    if (machines.store is None) != (machines.frame_bytes is None):
        raise UsageError("--store and --frame-bytes belong together")
    if machines.licence_price is not None and machines.licences is None:
        raise UsageError("--licence-price needs --licences")
    defaults = table["farm"]
    farm = Farm(
        counts=used,
        scores=scores,
        frames=float(film.count() * film.tiles),
        reference_time=film.time_of_frame() / film.tiles,
        reference_score=base.value,
        spread=float(defaults["spread"]) if film.spread is None else film.spread,
        scene_load=film.load,
        failure_share=film.failures or 0.0,
        gpus_per_frame=machines.gpus_per_frame,
    )
    size = (machines.frame_bytes or 0.0) / film.tiles
    ledger = estimate_farm(farm, store=machines.store or 0.0, frame_bytes=size, trace=True)
    answer = farms.summary(
        ledger,
        farm,
        counts,
        order=order,
        gpu_price=(machines.price or 0.0) / 3600,
        licence_price=(machines.licence_price or 0.0) / YEAR,
        licences=machines.licences or 0,
    )
    _write(db, answer, ledger, output)
    to_stderr(*(f"note: {line}" for line in _notes(answer, farm, scores, base, first, film.tiles)))
    return ExitStatus.OK


def _write(db: Database, answer: dict[str, Any], ledger: Ledger, output: OutputOptions) -> None:
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant
    from gpucalc.questions.explain import ledger_tree

    terms = ledger_tree(ledger, db, ROOTS)
    if output.json:
        emit_document({**answer, "terms": terms})
    elif output.form == "table" and output.columns is None:
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        output.rows(list(answer), [answer])


def _notes(
    answer: Mapping[str, Any], farm: Farm, scores: Mapping[str, Score], base: Score, reference: str, parts: int
) -> list[str]:
    notes = [f"score of {d}: {scores[d].value:,.0f} ({scores[d].basis})" for d in farm.counts]
    if reference not in farm.counts:
        notes.append(f"score of the reference {reference}: {base.value:,.0f} ({base.basis})")
    workers = sum(farm.counts.values()) // farm.gpus_per_frame
    rounds = farm.frames / workers
    if rounds < FEW_ROUNDS:
        notes.append(
            f"only {rounds:.1f} frames a machine: nearly equal frames end in rounds and the time may be 10 % off"
            + ("; --tiles would fill the farm" if rounds < 1 and parts == 1 else "")
        )
    if farm.spread > 0.8:
        notes.append("frame times this uneven make the end uncertain; the longest frames decide it")
    return notes
