"""Run a sweep: cells handed to workers, their rows into a store, each cell once whatever happens.

`sweep` drives it; `local_runner` does the cells in this process or in several, `sweep_dask` on a cluster.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucalc import __version__
from gpucalc.core.errors import DataError, UsageError
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.jobs.network import is_network
from gpucalc.models.model import load_model
from gpucalc.sweep.rows import Outcome, Progress, cell_lines, failed_cell
from gpucalc.sweep.spec import SHAPE, Spec
from gpucalc.sweep.store import Store

AHEAD = 100_000  # cells that may be finished before the first unfinished one
LARGEST_TEXT = 1 << 20  # characters of a cell that a worker holds; the rest goes to a file
ATTEMPTS = 3  # workers that a cell may take with it before it is given up
TELL = 0.5  # seconds between two notes of a worker on a cell that takes long

NextCell = Callable[[], int | None]
Runner = Callable[[NextCell, Progress], Generator[Outcome, None, None]]


@dataclass
class Tally:
    """What a sweep has done so far."""

    cells: int = 0
    layouts: int = 0
    new_layouts: int = 0  # of this process
    rows: int = 0
    lost_workers: int = 0
    states: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: Outcome) -> None:
        """Add a finished cell."""
        self.new_layouts += outcome.layouts
        self.resume(outcome.state, 1, outcome.rows, outcome.layouts)

    def resume(self, state: str, cells: int, rows: int, layouts: int) -> None:
        """Add cells that an earlier process finished."""
        self.cells += cells
        self.layouts += layouts
        self.rows += rows
        self.states[state] = self.states.get(state, 0) + cells


def sweep(total: int, store: Store, runner: Runner, tally: Tally, progress: Progress) -> None:
    """Run the cells below `total` that `store` lacks; `progress` hears the layouts costed in unfinished cells.

    Raises DataError when the output cannot be written or the workers are gone; what is done is kept.
    """
    cells = (cell for cell in range(store.first, total) if not store.has(cell))
    waiting: list[int] = []

    def next_cell() -> int | None:
        if not waiting:
            following = next(cells, None)
            if following is None:
                return None
            waiting.append(following)
        return waiting.pop() if waiting[0] < store.first + AHEAD else None

    with contextlib.closing(runner(next_cell, progress)) as outcomes:
        for outcome in outcomes:
            if outcome.fatal:
                raise DataError(outcome.fatal)
            store.add(outcome)
            tally.count(outcome)
            progress(0)


# --- what must be the same everywhere ----------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def data_fingerprint(models: tuple[str, ...], dirs: tuple[str, ...]) -> str:
    """A short hash of all that decides numbers beside the spec: version, hardware database, model files."""
    known = hashlib.sha256(__version__.encode())
    for root in files.database_dirs(dirs):
        for path in sorted(p for p in root.rglob("*") if p.suffix in {".toml", ".csv"}):
            known.update(path.relative_to(root).as_posix().encode())
            if path.is_file() and path.resolve().is_relative_to(root.resolve()):  # nothing else is read from it
                known.update(path.read_bytes())
    for name in models:
        path = Path(name)
        file = path / "config.json" if path.is_dir() else path
        if file.is_file():
            known.update(file.read_bytes())
    return known.hexdigest()[:24]


def doubts(spec: Spec, db: Database) -> list[str]:
    """A remark for each model and GPU that nobody knows: their cells will have a `pred_error`.

    Raises UsageError when that is every cell.
    """
    remarks = []
    checks: dict[str, Callable[[str], Any]] = {"gpu": db.device, "model": _check_model}
    shaped = all(name in spec.names() for name in SHAPE)
    for name, check in checks.items():
        values = [] if name == "model" and shaped else spec.values(name)
        wrong = []
        for value in values:
            try:
                check(str(value))
            except UsageError as error:
                wrong.append(str(error))
        if wrong and len(wrong) == len(values):
            raise UsageError(*wrong)
        remarks += wrong
    return remarks


def _check_model(name: str) -> None:
    if not is_network({"model": name}):
        load_model(name)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- one cell ----------------------------------------------------------------------------------------


def run_cell(spec: Spec, index: int, db: Database, progress: Progress, spill: Path | None) -> Outcome:
    """The rows of a cell; those of a large one in a file of the folder `spill`."""
    outcome = Outcome(index)
    pieces: list[str] = []
    size = 0
    part = None
    try:
        for piece in cell_lines(spec, index, db, outcome, progress):
            pieces.append(piece)
            size += len(piece)
            if spill is not None and size > LARGEST_TEXT:
                if part is None:
                    spill.mkdir(exist_ok=True)
                    part = (spill / f"{index}-{os.getpid()}.csv").open("w", encoding="utf-8", newline="")
                part.write("".join(pieces))
                pieces, size = [], 0
        if part is not None:
            part.write("".join(pieces))
            part.close()
            outcome.part = part.name
            return outcome
    except OSError as error:
        outcome.fatal = f"cannot write {part.name if part else spill}: {error.strerror or error}; make room"
        if part is not None:
            Path(part.name).unlink(missing_ok=True)
        return outcome
    outcome.text = "".join(pieces)
    return outcome


def local_runner(spec: Spec, dirs: tuple[str, ...], workers: int, spill: Path, tally: Tally) -> Runner:
    """Cells one after the other in this process, or in `workers` processes of their own."""
    if workers == 1:
        return functools.partial(_inline, spec, Database(dirs), spill)
    return functools.partial(_pool, spec, dirs, workers, spill, tally)


def _inline(
    spec: Spec, db: Database, spill: Path, next_cell: NextCell, progress: Progress
) -> Generator[Outcome, None, None]:
    while (cell := next_cell()) is not None:
        yield run_cell(spec, cell, db, progress, spill)


# --- several processes -------------------------------------------------------------------------------


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interrupts come after the block; a process that starts in it never sees one."""
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover - Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(channel: Any, spec: Spec, dirs: tuple[str, ...], spill: Path) -> None:
    """A worker process: cell numbers in, outcomes out, until the channel or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    parent, last = os.getppid(), time.monotonic()
    db = Database(dirs)
    channel.send(0)  # it has started

    def progress(layouts: int) -> None:
        nonlocal last
        if os.getppid() != parent:
            os._exit(1)
        now = time.monotonic()
        if now - last > TELL:
            last = now
            channel.send(layouts)

    while True:
        outcome = None
        try:
            outcome = run_cell(spec, channel.recv(), db, progress, spill)
            channel.send(outcome)
        except (EOFError, OSError):
            if outcome is not None and outcome.part:
                Path(outcome.part).unlink(missing_ok=True)
            return


@dataclass
class _Worker:
    process: Any
    channel: Any
    cell: int | None = None
    layouts: int = 0  # costed in the present cell


def _pool(
    spec: Spec, dirs: tuple[str, ...], workers: int, spill: Path, tally: Tally, next_cell: NextCell, progress: Progress
) -> Generator[Outcome, None, None]:
    import multiprocessing
    from multiprocessing.connection import wait

    context = multiprocessing.get_context("spawn")
    crew: list[_Worker] = []
    again: list[int] = []
    deaths: dict[int, int] = {}
    any_started = False

    def hire() -> None:
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, spec, dirs, spill), daemon=True)
        with _interrupts_held():  # or one that comes while it starts would print a traceback
            process.start()
        theirs.close()  # so that the channel ends when the worker does
        crew.append(_Worker(process, mine))

    def give(worker: _Worker) -> None:
        worker.cell, worker.layouts = (again.pop() if again else next_cell()), 0
        if worker.cell is not None:
            with contextlib.suppress(OSError):  # it has died; that is noticed below
                worker.channel.send(worker.cell)

    try:
        for _ in range(workers):
            hire()
        while True:
            for worker in crew:
                if worker.cell is None:
                    give(worker)
            busy = {worker.channel: worker for worker in crew if worker.cell is not None}
            if not busy:
                return
            for channel in wait(list(busy)):
                worker = busy[channel]
                try:
                    message = worker.channel.recv()
                except (EOFError, OSError):
                    outcome = _bury(spec, worker, crew, again, deaths, tally, any_started)
                    hire()
                    if outcome:
                        yield outcome
                    continue
                if isinstance(message, int):
                    any_started, worker.layouts = True, message
                    progress(sum(w.layouts for w in crew))
                    continue
                give(worker)  # before its last cell is written, so that it does not wait
                yield message
    finally:
        for worker in crew:
            worker.channel.close()
            worker.process.terminate()
        for worker in crew:
            worker.process.join()


def _bury(
    spec: Spec,
    worker: _Worker,
    crew: list[_Worker],
    again: list[int],
    deaths: dict[int, int],
    tally: Tally,
    any_started: bool,
) -> Outcome | None:
    """A worker has died: its cell is done again by another, or given up when it ends each of them."""
    crew.remove(worker)
    worker.process.join()
    worker.channel.close()
    tally.lost_workers += 1
    cell = worker.cell
    if cell is None:
        return None
    deaths[cell] = deaths.get(cell, 0) + 1
    if deaths[cell] < ATTEMPTS:
        again.append(cell)
        return None
    reason = _reason(worker.process.exitcode)
    if not any_started:
        return Outcome(cell, fatal=f"worker processes cannot start ({reason}); --jobs 1 needs none")
    return failed_cell(spec, cell, f"{ATTEMPTS} worker processes ended in this cell ({reason})")


def _reason(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return f"{name}, which a system sends when memory runs out" if name == "SIGKILL" else name
    return f"exit status {status}"
