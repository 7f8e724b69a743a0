"""The cells of a sweep on an existing Dask cluster; each is a task, and a lost worker's tasks run elsewhere."""

from __future__ import annotations

import functools
import logging
import queue
import re
import time
import uuid
import zlib
from collections.abc import Callable, Generator
from typing import Any

from gpucalc import __version__
from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.sweep.drive import NextCell, Runner, Tally, data_fingerprint
from gpucalc.sweep.rows import Outcome, Progress, cell_lines, failed_cell
from gpucalc.sweep.spec import Spec, single

_ADDRESS = re.compile(r"(\w+://)?[^/\s]+:\d+")
CONNECT = 10  # seconds in which a scheduler must answer
GRACE = 60.0  # seconds without a worker or a scheduler after which a sweep stops
PAUSE = 1.0  # seconds between two questions after the workers
AHEAD_PER_THREAD = 4  # tasks at the scheduler for each thread of its workers


def remote_cell(spec: Spec, index: int, dirs: tuple[str, ...], data: str) -> tuple[Outcome, bytes]:
    """On a worker: the outcome of the one cell of `spec`, and its rows compressed."""
    outcome = Outcome(index)
    models = tuple(str(v) for v in spec.values("model"))
    try:
        here = data_fingerprint(models, dirs)
    except UsageError as error:
        here = str(error)
    if here != data:
        outcome.fatal = (
            f"a Dask worker (gpucalc {__version__}) has another version of gpucalc, another hardware database "
            "or another model file than this process; install the same on both"
        )
        return outcome, b""
    packer = zlib.compressobj(1)
    pieces = []
    # The lines name the cell by the outcome's number, which is its place in the whole sweep.
    for piece in cell_lines(spec, 0, _database(dirs), outcome, lambda layouts: None):
        pieces.append(packer.compress(piece.encode()))
    return outcome, b"".join([*pieces, packer.flush()])


@functools.lru_cache(maxsize=4)
def _database(dirs: tuple[str, ...]) -> Database:
    return Database(dirs)


def connect(address: str) -> Any:
    """A client of the scheduler at `address`, once it has a worker.

    Raises UsageError when distributed is not installed, nothing answers, or no worker comes.
    """
    try:
        import distributed
    except ImportError:
        raise UsageError("--scheduler needs distributed: pip install 'gpucalc[dask]'") from None
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"--scheduler is {address!r}, expected an address such as tcp://host:8786")
    # What its log would say of lost workers and connections is said in our words.
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in {"distributed", "tornado", "asyncio"}:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        new: Any = distributed.Client  # without types of its own
        client = new(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"no Dask scheduler answers at {address!r}: {said}") from None
    try:
        client.wait_for_workers(1, timeout=GRACE / 2)
    except TimeoutError:
        client.close()
        raise UsageError(f"the Dask scheduler at {address} has no workers; start one: dask worker {address}") from None
    return client


def dask_runner(spec: Spec, dirs: tuple[str, ...], client: Any, tally: Tally) -> Runner:
    """Cells as tasks of a Dask cluster, a few more than its workers have threads at a time."""
    return functools.partial(_run, spec, dirs, client, tally)


def _run(
    spec: Spec, dirs: tuple[str, ...], client: Any, tally: Tally, next_cell: NextCell, progress: Progress
) -> Generator[Outcome, None, None]:
    finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pending: dict[int, Any] = {}
    run, health = uuid.uuid4().hex[:12], _Health(client, tally)

    def submit(cell: int) -> None:
        one = single(spec, cell)
        data = data_fingerprint(tuple(str(v) for v in one.values("model")), dirs)
        future = client.submit(remote_cell, one, cell, dirs, data, key=f"gpucalc-{run}-{cell}", pure=False)
        pending[cell] = future
        future.add_done_callback(lambda _: finished.put(cell))

    try:
        while True:
            while len(pending) < health.threads * AHEAD_PER_THREAD and (cell := next_cell()) is not None:
                submit(cell)
            if not pending:
                return
            try:
                done = finished.get(timeout=1.0)
            except queue.Empty:
                done = None
            trouble = health.check()
            if done is None:
                if trouble:
                    yield Outcome(next(iter(pending)), fatal=trouble)
                    return
                continue
            outcome = _outcome(spec, done, pending[done], finished.put, health)
            if outcome is not None:
                del pending[done]
                yield outcome
                if outcome.fatal:
                    return
    finally:
        if pending and client.status == "running":
            client.cancel(list(pending.values()))


def _outcome(spec: Spec, cell: int, future: Any, again: Callable[[int], None], health: _Health) -> Outcome | None:
    """The outcome of a finished task; None when its rows were lost with their worker and are made anew."""
    from distributed import KilledWorker

    try:
        outcome, packed = future.result(timeout=GRACE / 2)
    except KilledWorker as error:
        return failed_cell(spec, cell, f"{error.allowed_failures + 1} Dask workers ended in this cell")
    except TimeoutError:
        trouble = health.check()
        if trouble:
            return Outcome(cell, fatal=trouble)
        again(cell)
        return None
    except ImportError as error:
        return Outcome(cell, fatal=f"a Dask worker cannot load gpucalc ({error}); install the same version there")
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if future.cancelled() or client_lost(error):
            return Outcome(cell, fatal=f"the Dask scheduler dropped the sweep ({said})")
        return Outcome(cell, fatal=f"a Dask worker failed ({said})")
    outcome.text = zlib.decompress(packed).decode()
    return outcome


def client_lost(error: Exception) -> bool:
    """Whether an exception of a future means that the scheduler is gone, not that the task failed."""
    return "Cancelled" in type(error).__name__ or "CommClosed" in type(error).__name__


class _Health:
    """Workers of a cluster as the client last heard of them."""

    def __init__(self, client: Any, tally: Tally) -> None:
        self._client, self._tally = client, tally
        self._seen: set[str] = set()
        self._well, self._asked = time.monotonic(), -PAUSE
        self.threads = 1
        self.check()

    def check(self) -> str:
        """Count lost workers; why the sweep cannot go on, once nobody has been there for `GRACE` seconds."""
        now = time.monotonic()
        if now - self._asked < PAUSE:
            return ""
        self._asked = now
        workers = self._workers()
        if workers is not None:
            self._tally.lost_workers += len(self._seen - set(workers))
            self._seen = set(workers)
        if workers:
            self._well = now
            self.threads = max(1, sum(workers.values()))
        if now - self._well < GRACE:
            return ""
        what = "has not answered" if workers is None else "has had no worker"
        return f"the Dask scheduler {what} for {GRACE:.0f} seconds"

    def _workers(self) -> dict[str, int] | None:
        """Address → threads of each worker; None while the scheduler does not answer."""
        if self._client.status != "running":
            return None
        try:
            found: dict[str, int] = self._client.nthreads()
        except (OSError, TimeoutError):
            return None
        return found
