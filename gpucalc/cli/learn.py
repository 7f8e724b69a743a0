"""`gpucalc learn`: a few measured runs of a cluster → an overlay that predicts its other jobs better."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions, RowOptions, require
from gpucalc.cli.networks import asks_of_network
from gpucalc.cli.option import argument, option, options_of
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.questions.learn import Learned

_SHOWN = (
    Column("gpu", "text", "GPU"),
    Column("quantity", "text", "step time or peak memory", heading="of"),
    Column("runs", "int", "runs"),
    Column("error_before_pct", "number", "%", unit="%", heading="error before", decimals=1),
    Column("error_left_out_pct", "number", "%", unit="%", heading="each left out", decimals=1),
)
_SUGGESTED = tuple(COLUMNS[name] for name in ("layout", "pred_step_time_s", "pred_peak_mem_gib", "pred_fit"))
_MOST_PROBLEMS = 10


@command(group="Check")
def learn(
    *,
    subject: str | None = argument(
        "RUNS | MODEL", "Measured rows, - for standard input; a model with --suggest.", files=True, complete="models"
    ),
    suggest: int | None = option(
        "--suggest N", "Name the N runs of this job that would teach most.", read=positive_integer
    ),
    folder: str | None = option("-o, --output DIR", "Overlay to write or to add to; else nothing is.", files=True),
    job: RowOptions,
    output: OutputOptions,
) -> int:
    """Learn from a few measured runs what your cluster does otherwise, and write it as an overlay.

    A row holds measured_step_time_s or measured_peak_mem_gib beside the job's columns. With --suggest nothing is read:
    the runs worth making are printed as rows, which `export -` takes.

    \b
    gpucalc learn runs.csv -o mine
    gpucalc learn llama-3.1-8b --suggest 4 --gpu h100 --gpus 16 --seq-len 8192 --global-batch 64
    """
    if not subject:
        raise UsageError("missing: RUNS, such as gpucalc learn runs.csv -o mine")
    if suggest is not None:
        return _suggest(subject, suggest, folder, job, output)
    for name, flag in options_of(job).items():
        if getattr(job, name) and name not in options_of(DatabaseOptions):
            raise UsageError(f"{flag.name} has no meaning without --suggest: the rows say what was run")
    from gpucalc.calibrate.learned import write
    from gpucalc.core.rows import read_rows, text_record
    from gpucalc.jobs.context import Context
    from gpucalc.questions import learn as learning

    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"--output {folder!r} is a file, expected a folder")
    name = "standard input" if subject == "-" else subject
    records = [text_record(record) for block in read_rows(subject).blocks for record in block]
    runs, problems = learning.runs_of(records, Context(job.database()), name)
    found = learning.learn(runs)
    path = write(Path(folder), found, Path(name).name, _today()) if folder is not None else None
    rows = [_row(one, learning.sentences(one)) for one in found]
    if output.json:
        emit_document({"runs": len(runs), "learned": rows, "problems": problems})
    elif output.form in {"table", "md"} and output.columns is None:
        output.table(_SHOWN, rows)
        for row in rows:
            sys.stdout.write(f"\n{row['quantity']} on {row['gpu']}\n")
            sys.stdout.writelines(f"  {said}\n" for said in row["learned"].split("; "))
    else:
        output.rows([*(column.name for column in _SHOWN), "learned"], rows)
    for said in problems[:_MOST_PROBLEMS]:
        to_stderr(f"gpucalc: left out: {said}")
    if len(problems) > _MOST_PROBLEMS:
        to_stderr(f"gpucalc: left out: {len(problems) - _MOST_PROBLEMS:,} more rows")
    for one in found:
        to_stderr(*(f"note: {said}" for said in _notes(one)))
    written = f"wrote {path}; use it with --db {folder}" if path else "nothing written; -o DIR writes an overlay"
    to_stderr(f"gpucalc: {written}")

    return ExitStatus.OK


def _suggest(model: str, count: int, folder: str | None, job: RowOptions, output: OutputOptions) -> int:
    """Print the runs that would teach most, as rows."""
    from gpucalc.questions.suggest import MOST
    from gpucalc.questions.suggest import suggest as suggested

    if folder is not None:
        raise UsageError("--output has no meaning with --suggest: nothing is learned yet")
    if count > MOST:
        raise UsageError(f"--suggest {count} is more than {MOST}; a handful of runs teaches most of it")
    cells = {**job.cells(free=True), "model": model}
    if asks_of_network(cells):
        raise UsageError(f"--suggest ranks layouts of language models; {model} is another kind of network")
    require(cells, "model", "gpu", "n_gpus", "seq_len", "global_batch")
    found = suggested(cells, job.context(), count)
    if not found.rows:
        to_stderr("gpucalc: no layout of this job fits, so that none can be run")
        return ExitStatus.INFEASIBLE
    if output.form == "table" and output.columns is None:
        output.table(_SUGGESTED, found.rows)
    else:
        output.rows(list(found.rows[0]), found.rows)
    to_stderr(
        f"gpucalc: one standard deviation of a fast layout's time over the fastest: {100 * found.doubts[0]:.1f} % now, "
        f"{100 * found.doubts[-1]:.1f} % after these runs"
    )
    return ExitStatus.OK


def _today() -> str:
    import datetime

    return datetime.date.today().isoformat()


def _row(one: Learned, said: list[str]) -> dict[str, Any]:
    return {
        "gpu": one.gpu,
        "quantity": "step time" if one.quantity == "time" else "peak memory",
        "runs": one.posterior.runs,
        "error_before_pct": 100 * one.before,
        "error_left_out_pct": None if one.left_out is None else 100 * one.left_out,
        "learned": "; ".join(said),
    }


def _notes(one: Learned) -> list[str]:
    """What the runs contradict, and what they cannot know."""
    what = f"{'step time' if one.quantity == 'time' else 'peak memory'} on {one.gpu}"
    found = [f"{what}: {said}" for said in one.wild]
    if one.unknown:
        found.append(f"{what}: these runs say nothing of {', '.join(one.unknown)}, which stay as predicted")
    if one.tied:
        pairs = ", ".join(f"{a} from {b}" for a, b in one.tied)
        found.append(f"{what}: these runs cannot tell {pairs}")
    return found
