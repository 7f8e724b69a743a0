"""Where the rows of a sweep go, so that none is lost or written twice whatever ends the process.

Rows stand in the order of the cells. Beside the output lies a journal, one JSON line an event: a cell whose
rows stand in the output up to byte `end`, or a cell that is finished before its turn, with its rows. A line is
written after what it tells of. A process that goes on cuts the output at the last `end` and the journal at its
last whole line, and does the cells that neither tells of.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from gpucalc.core.errors import DataError
from gpucalc.sweep.rows import Outcome

SYNC = 5.0  # seconds of work that a loss of power may cost; the end of a process costs none
PIECE = 1 << 20
KIND = "gpucalc sweep"


@dataclass
class Done:
    """Cells that an earlier process finished, of one state."""

    cells: int = 0
    rows: int = 0
    layouts: int = 0

    def add(self, event: Mapping[str, Any], sign: int = 1) -> None:
        """Count a cell, or with -1 no longer."""
        self.cells += sign
        self.rows += sign * int(event["rows"])
        self.layouts += sign * int(event["layouts"])


class Store(Protocol):
    """What a sweep needs of its output. `first` is the first cell whose rows are not in it."""

    first: int
    spill: Path  # folder for rows of large cells

    def has(self, cell: int) -> bool:
        """Whether a cell is finished."""

    def add(self, outcome: Outcome) -> None:
        """Keep the rows of a finished cell."""


class Stream:
    """Rows to standard output; nothing can be resumed."""

    def __init__(self, header: str) -> None:
        """Write the header."""
        self.first = 0
        self.spill = Path(tempfile.mkdtemp(prefix="gpucalc-sweep-"))
        self._waiting: dict[int, Outcome] = {}
        sys.stdout.write(header)

    def has(self, cell: int) -> bool:
        """Whether a cell is finished."""
        return cell < self.first or cell in self._waiting

    def add(self, outcome: Outcome) -> None:
        """Write the rows of a cell when its turn has come."""
        self._waiting[outcome.cell] = outcome
        while (due := self._waiting.pop(self.first, None)) is not None:
            if due.part:
                with open(due.part, encoding="utf-8", newline="") as stream:
                    shutil.copyfileobj(stream, sys.stdout, PIECE)
                os.unlink(due.part)
            sys.stdout.write(due.text)
            self.first += 1
        sys.stdout.flush()

    def close(self) -> None:
        """Remove what was spilled."""
        shutil.rmtree(self.spill, ignore_errors=True)


class Journaled:
    """Rows to a file, resumable. A Parquet file is written at the end, from rows that are CSV until then."""

    def __init__(self, path: Path, header: str, identity: Mapping[str, Any]) -> None:
        """Open the output, or go on with the one that a journal tells of.

        `identity` (spec, data, cells) is what the journal must agree with. Raises DataError when it does not,
        when the output exists without a journal, when another process writes it, or when nothing can be written.
        """
        self.path = path
        self.rows_path = path.with_name(f"{path.name}.rows.csv") if path.suffix.casefold() == ".parquet" else path
        self.journal_path = path.with_name(f"{path.name}.journal")
        self.spill = path.with_name(f"{path.name}.parts")
        self.first = 0  # also the number of cells whose rows stand in the output
        self.done: dict[str, Done] = {}  # by an earlier process, by state
        self._waiting: dict[int, tuple[int, int]] = {}  # cell → place of its line in the journal
        self._header = header.encode()
        self._end = 0
        self._safe = 0  # end of the rows that the journal knows
        self._synced = time.monotonic()
        try:
            self.resumed = self.journal_path.exists()
            if self.resumed:
                self._go_on(identity)
            else:
                self._start(identity)
        except OSError as error:
            self.close()
            raise self._trouble(error) from None
        except DataError:
            self.close()
            raise

    def _start(self, identity: Mapping[str, Any]) -> None:
        for path in (self.path, self.rows_path):
            if path.exists() or path.is_symlink():
                kind = "" if path.is_file() else " and is not a file"
                raise DataError(
                    f"{path} exists{kind}, and no journal ({self.journal_path.name}) says that it is an unfinished "
                    "sweep; name another output, or remove it first"
                )
        line = _json({"journal": KIND, **identity})
        fresh = self.journal_path.with_name(f"{self.journal_path.name}.{os.getpid()}")
        self._journal = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _lock(self._journal, self.path)
            _write(self._journal, line)
            os.rename(fresh, self.journal_path)  # a journal is there whole or not at all
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._journal_end = len(line)
        try:
            self._begin_rows()
        except OSError:
            for path in (self.rows_path, self.journal_path):
                path.unlink(missing_ok=True)
            raise

    def _begin_rows(self) -> None:
        self._out = os.open(self.rows_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        _write(self._out, self._header)
        self._end = self._safe = len(self._header)

    def _go_on(self, identity: Mapping[str, Any]) -> None:
        self._journal = os.open(self.journal_path, os.O_RDWR)
        _lock(self._journal, self.path)
        with open(self.journal_path, "rb") as stream:
            head = stream.readline()
            self._check(_event(head), identity)
            self._journal_end = len(head)
            os.lseek(self._journal, len(head), os.SEEK_SET)
            if os.fstat(self._journal).st_size == len(head):  # it ended before the first cell
                self._begin_rows()
                return
            if not self.rows_path.is_file():
                raise DataError(
                    f"{self.rows_path} is gone, though {self.journal_path} tells of rows in it; "
                    "remove the journal to start again"
                )
            self._out = os.open(self.rows_path, os.O_RDWR)
            self._end = len(self._header)
            if os.pread(self._out, self._end, 0) != self._header:
                raise DataError(
                    f"{self.rows_path} is not what {self.journal_path} tells of; remove both to start again"
                )
            self._read_events(stream, os.fstat(self._out).st_size)
        self._drop_lost_parts()
        os.ftruncate(self._journal, self._journal_end)
        os.ftruncate(self._out, self._end)
        os.lseek(self._journal, self._journal_end, os.SEEK_SET)
        os.lseek(self._out, self._end, os.SEEK_SET)
        self._safe = self._end
        self._place()

    def _read_events(self, stream: IO[bytes], size: int) -> None:
        for line in stream:
            event = _event(line)
            if event is None or event.get("end", 0) > size:
                return  # a line cut short, or rows that a loss of power took
            cell, place = int(event["cell"]), self._journal_end
            self._journal_end += len(line)
            if "end" in event:
                self.first, self._end = cell + 1, int(event["end"])
                self._waiting.pop(cell, None)
            else:
                self._waiting[cell] = (place, len(line))
            if "state" in event:
                self.done.setdefault(event["state"], Done()).add(event)

    def _drop_lost_parts(self) -> None:
        """Do cells again whose rows are gone; remove files of cells that were not finished."""
        known = set()
        for cell, (place, length) in list(self._waiting.items()):
            event = _event(os.pread(self._journal, length, place)) or {}
            part = event.get("part")
            if part and not (self.spill / part).is_file():
                del self._waiting[cell]
                self.done[event["state"]].add(event, -1)
            known.add(part)
        if self.spill.is_dir():
            for path in self.spill.iterdir():
                if path.name not in known:
                    path.unlink(missing_ok=True)

    def _check(self, found: dict[str, Any] | None, identity: Mapping[str, Any]) -> None:
        if found is None or found.get("journal") != KIND:
            raise DataError(f"{self.journal_path} is not a journal of a sweep; remove it, or name another output")
        again = f"name another output, or remove {self.path.name} and {self.journal_path.name} to start again"
        if found.get("spec") != identity["spec"]:
            raise DataError(f"{self.path} is an unfinished sweep of another spec, or the spec has changed; {again}")
        if found.get("data") != identity["data"]:
            raise DataError(
                f"{self.path} was begun with another version of gpucalc, another hardware database or another model "
                f"file, and its rows would not agree with new ones; {again}"
            )
        if found.get("cells") != identity["cells"]:
            raise DataError(f"{self.path} was begun with another --limit; {again}")

    def has(self, cell: int) -> bool:
        """Whether a cell is finished."""
        return cell < self.first or cell in self._waiting

    def add(self, outcome: Outcome) -> None:
        """Write the rows of a cell when its turn has come; until then the journal holds them."""
        fact: dict[str, Any] = {"cell": outcome.cell, "state": outcome.state}
        fact |= {"rows": outcome.rows, "layouts": outcome.layouts}
        try:
            if outcome.cell == self.first:
                self._append(outcome.text, outcome.part)
                self._note({**fact, "end": self._end})
                self._unlink(outcome.part)
                self.first += 1
                self._place()
            else:
                held = {"part": Path(outcome.part).name} if outcome.part else {"text": outcome.text}
                place = self._journal_end
                self._note({**fact, **held})
                self._waiting[outcome.cell] = (place, self._journal_end - place)
            if time.monotonic() - self._synced > SYNC:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):  # leave whole cells to whoever reads the file now
                os.ftruncate(self._out, self._safe)
            raise self._trouble(error) from None

    def _place(self) -> None:
        """Write the rows that waited for their turn."""
        while self.first in self._waiting:
            place, length = self._waiting[self.first]
            event = _event(os.pread(self._journal, length, place)) or {}
            part = str(self.spill / event["part"]) if event.get("part") else ""
            self._append(event.get("text", ""), part)
            self._note({"cell": self.first, "end": self._end})
            self._unlink(part)
            del self._waiting[self.first]
            self.first += 1

    def _append(self, text: str, part: str) -> None:
        if part:
            with open(part, "rb") as stream:
                while piece := stream.read(PIECE):
                    _write(self._out, piece)
                    self._end += len(piece)
        data = text.encode()
        _write(self._out, data)
        self._end += len(data)

    def _note(self, event: Mapping[str, Any]) -> None:
        line = _json(event)
        _write(self._journal, line)
        self._journal_end += len(line)
        self._safe = self._end

    def _unlink(self, part: str) -> None:
        if part:
            Path(part).unlink(missing_ok=True)

    def _sync(self) -> None:
        os.fsync(self._out)
        os.fsync(self._journal)
        self._synced = time.monotonic()

    def finish(self) -> None:
        """All cells are done: write what is to stay, remove the rest."""
        try:
            self._sync()
            if self.rows_path != self.path:
                from gpucalc.sweep.parquet import convert

                fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
                try:
                    convert(self.rows_path, fresh)
                    os.replace(fresh, self.path)
                finally:
                    fresh.unlink(missing_ok=True)
                self.rows_path.unlink()
            self.journal_path.unlink()
            shutil.rmtree(self.spill, ignore_errors=True)
        except OSError as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        """Let go of the files."""
        for name in ("_out", "_journal"):
            with contextlib.suppress(OSError, AttributeError):
                os.close(getattr(self, name))

    def _trouble(self, error: OSError) -> DataError:
        remedy = ""
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            remedy = "; make room"
        return DataError(f"cannot write {self.path}: {error.strerror or error}{remedy}")


def _json(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _event(line: bytes) -> dict[str, Any] | None:
    """A whole line of a journal; None for one that is cut short."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("cell" in found or "journal" in found) else None


def _write(file: int, data: bytes) -> None:
    """Write all of it: on a disk that fills up the system takes a part first."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _lock(file: int, path: Path) -> None:
    """Hold the journal for this process until it ends."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - no such locks on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DataError(f"another process is writing {path} now; wait for it, or name another output") from None
