"""`gpucalc sweep`: a design space, its rows streamed to a file, resumable."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import argument, option
from gpucalc.cli.output import to_stderr
from gpucalc.cli.values import positive_integer
from gpucalc.core.errors import DataError, ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.sweep.drive import Tally
    from gpucalc.sweep.spec import Spec

MANY = 1_000_000  # cells that are not begun without --yes
USUAL_SECONDS = 0.15  # of one core, for a cell of usual size; only to say what a large number of cells means


def output_path(flag: str, text: str) -> Path | None:
    """The file that rows are written to; None for standard output."""
    path = Path(text)
    if text == "-":
        return None
    if path.suffix.casefold() not in {".csv", ".parquet"}:
        raise UsageError(f"{flag} is {text!r}, expected a name that ends in .csv or .parquet")
    if not path.parent.is_dir():
        raise UsageError(f"{flag}: the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise UsageError(f"{flag}: {text!r} is a folder")
    return path


@command(group="Plan")
def sweep(
    *,
    spec: str = argument("SPEC.toml", "Lists whose combinations are the cells.", required=True, files=True),
    output: Path | None = option(
        "-o, --output FILE",
        "FILE.csv or FILE.parquet; - is standard output.",
        default="-",
        read=output_path,
        files=True,
    ),
    jobs: int | None = option("--jobs N", "Processes; all cores without it.", read=positive_integer),
    scheduler: str | None = option("--scheduler ADDRESS", "Run the cells on this Dask cluster."),
    limit: int | None = option("--limit N", "Do the first N cells only.", read=positive_integer),
    yes: bool = option("--yes", f"Begin even more than {MANY:,} cells."),
    database: DatabaseOptions,
) -> int:
    """Search every cell of a design space and keep its best layouts; run again to go on after an interrupt.

    \b
    gpucalc sweep space.toml -o space.csv

    A spec of 12 cells; each list multiplies their number:

    \b
    [product]
    model = ["llama-3.1-8b", "llama-2-13b", "llama-3.1-70b"]
    gpu = ["h100-sxm-80gb", "a100-sxm-80gb"]
    global_batch = [128, 256]
    n_gpus = 64
    seq_len = 4096
    """
    from gpucalc.sweep.spec import read_spec

    if scheduler is not None and jobs is not None:
        raise UsageError("--jobs has no meaning with --scheduler; the cluster has its own workers")
    read = read_spec(spec)
    total = min(read.count, limit or read.count)
    if total > MANY and not yes:
        days = total * USUAL_SECONDS / (os.cpu_count() or 1) / 86400
        raise UsageError(
            f"{spec} means {total:,} cells, about {_span(days)} on this machine; "
            "shorten its lists, do the first of them with --limit N, or say --yes"
        )
    return _run(read, total, output, jobs, scheduler, tuple(str(Path(d).resolve()) for d in database.db))


def _span(days: float) -> str:
    return f"{days / 365:,.0f} years" if days > 730 else f"{days:,.0f} days" if days > 2 else f"{days * 24:,.0f} hours"


def _run(
    spec: Spec, total: int, path: Path | None, jobs: int | None, scheduler: str | None, dirs: tuple[str, ...]
) -> int:
    from gpucalc.database.reader import Database
    from gpucalc.output.delimited import csv_line
    from gpucalc.sweep.drive import Tally, data_fingerprint, doubts, local_runner, sweep, usable_cores
    from gpucalc.sweep.rows import columns_of
    from gpucalc.sweep.store import Journaled, Stream

    if path is not None and path.suffix.casefold() == ".parquet":
        from gpucalc.sweep.parquet import require_pyarrow

        require_pyarrow()
    for remark in doubts(spec, Database(dirs)):
        to_stderr(f"gpucalc: {remark}; its cells will have a pred_error")
    tally = Tally()
    with ExitStack() as stack:
        client = None
        if scheduler is not None:
            from gpucalc.sweep.dask import connect, dask_runner

            client = connect(scheduler)
            stack.callback(client.close)
        header = csv_line(columns_of(spec))
        store: Stream | Journaled
        if path is None:
            store = Stream(header)
        else:
            models = tuple(str(value) for value in spec.values("model"))
            identity = {"spec": spec.fingerprint(), "data": data_fingerprint(models, dirs), "cells": total}
            store = Journaled(path, header, identity)
            for state, done in store.done.items():
                tally.resume(state, done.cells, done.rows, done.layouts)
        stack.callback(store.close)
        resumed = tally.cells
        if resumed:
            to_stderr(f"gpucalc: going on with {path}: {resumed:,} of {total:,} cells are done")
        if client is not None:
            runner = dask_runner(spec, dirs, client, tally)
        else:
            workers = min(jobs or usable_cores(), max(1, total - resumed))
            runner = local_runner(spec, dirs, workers, store.spill, tally)
        show = _Progress(tally, total)
        try:
            sweep(total, store, runner, tally, show)
            if isinstance(store, Journaled):
                store.finish()
        except KeyboardInterrupt:
            show.clear()
            to_stderr(f"gpucalc: interrupted; {_kept(path, tally, total)}")
            raise
        except DataError as error:
            raise DataError(f"{error}; {_kept(path, tally, total)}") from None
        finally:
            show.clear()
    to_stderr(*_footer(tally, total, path, show.seconds, resumed))
    return ExitStatus.INTERNAL if tally.states.get("internal error") else ExitStatus.OK


def _kept(path: Path | None, tally: Tally, total: int) -> str:
    if path is None:
        return f"{tally.cells:,} of {total:,} cells were written; with -o FILE.csv a sweep can be gone on with"
    return f"{tally.cells:,} of {total:,} cells are kept; the same command goes on with the rest"


def _footer(tally: Tally, total: int, path: Path | None, seconds: float, resumed: int) -> list[str]:
    states = [f"{count:,} {name}" for name, count in tally.states.items() if name != "fits"]
    said = f" ({', '.join(states)}; pred_error says why)" if states else ""
    rate = f", {tally.new_layouts / seconds:,.0f} layouts/s" if seconds > 0 and tally.new_layouts else ""
    lines = [
        f"{tally.rows:,} rows of {total:,} cells{said}" + (f" in {path}" if path else ""),
        f"{tally.layouts:,} layouts costed"
        + (f", {tally.new_layouts:,} of them now" if resumed else "")
        + f" in {seconds:.1f} s{rate}",
    ]
    if tally.lost_workers:
        said = (
            "1 worker was lost; its" if tally.lost_workers == 1 else f"{tally.lost_workers:,} workers were lost; their"
        )
        lines.append(f"{said} cells were done by others")
    return lines


class _Progress:
    """A line on standard error, in a terminal only, once a sweep takes long."""

    def __init__(self, tally: Tally, total: int) -> None:
        self._tally, self._total = tally, total
        self._began, self._before = time.monotonic(), tally.cells
        self._shown = self._began
        self._terminal = sys.stderr.isatty()
        self._drawn = False

    @property
    def seconds(self) -> float:
        """Seconds since the first cell was handed out."""
        return time.monotonic() - self._began

    def __call__(self, running: int) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._began < 1 or now - self._shown < 0.2:
            return
        self._shown = now
        done, layouts = self._tally.cells, self._tally.new_layouts + running
        rate = (done - self._before) / self.seconds
        left = f", {_clock((self._total - done) / rate)} left" if rate else ""
        sys.stderr.write(
            f"\r\x1b[K{done:,} of {self._total:,} cells ({100 * done / self._total:.1f} %), "
            f"{layouts / self.seconds:,.0f} layouts/s{left}"
        )
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            self._drawn = False


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
