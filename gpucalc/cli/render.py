"""`gpucalc render`: a render farm."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import ExitStatus, UsageError, unknown

YEAR = 365.25 * 86400
FEW_ROUNDS = 3  # frames a machine below which the closed form may be 10 % off
ROOTS = ("farm/random", "farm/longest-first", "farm/work", "farm/store")
ORDERS = ("random", "longest-first")


def render(
    gpu: Annotated[opt.Text, typer.Option("--gpu", metavar="GPU[:N],…", help="Machines, such as rtx4090:500.")] = None,
    gpus: opt.Gpus = None,
    minutes: Annotated[opt.Text, typer.Option("--minutes", metavar="M", help="Length of the film.")] = None,
    fps: Annotated[str, typer.Option("--fps", metavar="N", help="Frames a second.")] = "24",
    frames: Annotated[opt.Text, typer.Option("--frames", metavar="N", help="Frames, instead of --minutes.")] = None,
    frame_time: Annotated[
        opt.Text, typer.Option("--frame-time", metavar="T", help="Mean time of a frame on the reference, 20min.")
    ] = None,
    machine_years: Annotated[
        opt.Text, typer.Option("--machine-years", metavar="Y", help="All frames on one reference machine, in years.")
    ] = None,
    reference: Annotated[
        opt.Text, typer.Option("--reference", metavar="GPU", help="The machine that those times are of; the first GPU.")
    ] = None,
    spread: Annotated[
        opt.Text, typer.Option("--spread", metavar="C", help="Standard deviation of frame times over their mean.")
    ] = None,
    load: Annotated[
        opt.Text, typer.Option("--load", metavar="T", help="Time to load the scene, beside the frame's own; 0.")
    ] = None,
    failures: Annotated[
        opt.Text, typer.Option("--failures", metavar="P", help="Share of frames to repeat, 2%.")
    ] = None,
    tiles: Annotated[str, typer.Option("--tiles", metavar="N", help="Parts of a frame, rendered apart.")] = "1",
    gpus_per_frame: Annotated[
        str, typer.Option("--gpus-per-frame", metavar="N", help="GPUs that share the samples of a frame.")
    ] = "1",
    licences: Annotated[opt.Text, typer.Option("--licences", metavar="N", help="Machines that may render.")] = None,
    licence_price: Annotated[
        opt.Text, typer.Option("--licence-price", metavar="USD", help="Of one licence and year, with --licences.")
    ] = None,
    store: Annotated[opt.Text, typer.Option("--store", metavar="RATE", help="Rate of the store, 10GB/s.")] = None,
    frame_bytes: Annotated[
        opt.Text, typer.Option("--frame-bytes", metavar="B", help="Read and written for a frame, 2GB.")
    ] = None,
    price: Annotated[opt.Text, typer.Option("--price", metavar="USD", help="Of one GPU-hour.")] = None,
    order: Annotated[str, typer.Option("--order", metavar="NAME", help="random or longest-first.")] = "random",
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    db: opt.Databases = None,
) -> int:
    """A render farm: frame time, how long a film takes and what bounds it, and its cost.

    \b
    gpucalc render --gpu rtx4090-24gb:500 --minutes 90 --machine-years 3
    """
    form = opt.chosen_format(form)
    if order.strip().casefold() not in ORDERS:
        raise unknown("order", order, ORDERS)
    database = opt.open_database(db)
    from gpucalc.estimate.farm import Farm, estimate_farm
    from gpucalc.questions import farm as farms

    table = farms.score_table(database.dirs[1:])
    counts = _machines(gpu, gpus, database)
    scores = {key: farms.score_of(database.device(key), table) for key in counts}
    first = database.device_key(reference) if reference is not None else next(iter(counts))
    base = farms.score_of(database.device(first), table)
    total = _frames(minutes, fps, frames)
    parts = opt.positive_integer("--tiles", tiles)
    each = _frame_time(frame_time, machine_years, total)
    together = opt.positive_integer("--gpus-per-frame", gpus_per_frame)
    allowed = None if licences is None else opt.positive_integer("--licences", licences)
    used = farms.limited(counts, scores, allowed)
    if any(count < together for count in used.values()):
        raise UsageError(f"--gpus-per-frame {together} is more than the GPUs of one kind, {min(used.values())}")
    defaults = table["farm"]
    farm = Farm(
        counts=used,
        scores=scores,
        frames=float(total * parts),
        reference_time=each / parts,
        reference_score=base.value,
        spread=_spread(spread, defaults),
        scene_load=0.0 if load is None else _seconds("--load", load),
        failure_share=0.0 if failures is None else opt.share("--failures", failures),
        gpus_per_frame=together,
    )
    rate, size = _store(store, frame_bytes)
    ledger = estimate_farm(farm, store=rate, frame_bytes=size / parts, trace=True)
    if licence_price is not None and allowed is None:
        raise UsageError("--licence-price needs --licences")
    answer = farms.summary(
        ledger,
        farm,
        counts,
        order=order.strip().casefold(),
        gpu_price=_price("--price", price, 3600),
        licence_price=_price("--licence-price", licence_price, YEAR),
        licences=allowed or 0,
    )
    _write(database, form, answer, ledger, columns)
    talk(*(f"note: {line}" for line in _notes(answer, farm, scores, base, first, parts)))
    return ExitStatus.OK


def _machines(gpu: str | None, gpus: str | None, db: Any) -> dict[str, int]:
    """device → GPUs of a list such as rtx4090:300,l40s:64."""
    if gpu is None:
        raise UsageError("missing: --gpu rtx4090-24gb:500")
    found: dict[str, int] = {}
    parts = [part.strip() for part in gpu.split(",") if part.strip()]
    for part in parts:
        name, colon, count = part.rpartition(":")
        if not colon:
            name, count = part, gpus or ""
            if gpus is None or len(parts) > 1:
                raise UsageError(f"how many of {part}? write --gpu {part}:500")
        elif gpus is not None:
            raise UsageError("--gpus has no meaning beside counts in --gpu")
        key = db.device_key(name)
        if key in found:
            raise UsageError(f"--gpu names {key} twice")
        found[key] = opt.positive_integer("--gpus" if not colon else f"--gpu {name}", count)
    return found


def _frames(minutes: str | None, fps: str, frames: str | None) -> int:
    if (minutes is None) == (frames is None):
        raise UsageError("how long is the film? write either --minutes 90 or --frames 129600")
    if frames is not None:
        return opt.positive_integer("--frames", frames)
    return max(1, round(opt.positive_number("--minutes", minutes or "") * 60 * opt.positive_number("--fps", fps)))


def _frame_time(frame_time: str | None, years: str | None, frames: int) -> float:
    from gpucalc.core.units import parse_quantity

    if (frame_time is None) == (years is None):
        raise UsageError("how long does a frame take? write either --frame-time 20min or --machine-years 3")
    if frame_time is not None:
        return parse_quantity(frame_time, "s")
    return opt.positive_number("--machine-years", years or "") * YEAR / frames


def _spread(text: str | None, defaults: Mapping[str, Any]) -> float:
    if text is None:
        return float(defaults["spread"])
    if text.strip() in {"0", "0.0"}:
        return 0.0
    value = opt.positive_number("--spread", text)
    if value > 3:
        raise UsageError(f"--spread is {text}; a standard deviation above 3 means is no spread of frame times")
    return value


def _seconds(flag: str, text: str) -> float:
    from gpucalc.core.units import parse_quantity

    if re.fullmatch(r"0+(\.0+)?\s*(s|min|h|ms)?", text.strip()):
        return 0.0
    return parse_quantity(text, "s")


def _store(store: str | None, frame_bytes: str | None) -> tuple[float, float]:
    from gpucalc.core.units import parse_quantity

    if (store is None) != (frame_bytes is None):
        raise UsageError("--store and --frame-bytes belong together")
    if store is None or frame_bytes is None:
        return 0.0, 0.0
    return parse_quantity(store, "B/s"), parse_quantity(frame_bytes, "B")


def _price(flag: str, text: str | None, seconds: float) -> float:
    """USD a second of a price per `seconds`; 0 where none is stated."""
    return 0.0 if text is None else opt.positive_number(flag, text) / seconds


def _write(db: Any, form: str, answer: dict[str, Any], ledger: Any, columns: str | None) -> None:
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant
    from gpucalc.questions.explain import ledger_tree

    terms = ledger_tree(ledger, db, ROOTS)
    if form == "json":
        emit_document({**answer, "terms": terms})
    elif form == "table" and columns is None:
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        emit_rows(form, list(answer), [answer], columns)


def _notes(
    answer: Mapping[str, Any], farm: Any, scores: Mapping[str, Any], base: Any, reference: str, parts: int
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
