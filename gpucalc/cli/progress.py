"""A line on standard error that says how far a long search is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PATIENCE = 2.0  # seconds after which a search says that it is running
REFRESH = 0.2  # seconds between two states of the line in a terminal
REPEAT = 10.0  # seconds between two lines where standard error is no terminal


class Progress:
    """Counts what is done, on standard error, once a search takes longer than people wait in silence.

    In a terminal one line is written over; elsewhere (a log, a pipe) there is a line now and then, so that a search of
    a minute leaves some and one of a second none.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.clock = clock
        self.start = clock()
        self.last: float | None = None

    def __call__(self, done: int) -> None:
        """Tell that `done` of what is counted are done."""
        now = self.clock()
        terminal = sys.stderr.isatty()
        waited = PATIENCE if self.last is None else REFRESH if terminal else REPEAT
        if now - (self.start if self.last is None else self.last) < waited:
            return
        self.last = now
        line = f"{done:,} {self.what} after {now - self.start:.0f} s"
        sys.stderr.write(f"\r\x1b[K{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Wipe the line of a terminal, where one stands."""
        if self.last is not None and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
