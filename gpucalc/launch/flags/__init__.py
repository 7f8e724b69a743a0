"""What every option of a launcher means for a prediction: one table a launcher, made from its own argument list.

An option is read (into a cell), harmless (with the reason), noted (it changes the run in a way that is not modelled,
with the direction), or refused. `tests/test_launch_flags.py` holds that each is exactly one of these, and that a
reader reads what its table says.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

USES = ("read", "harmless", "noted", "refused")


@dataclass(frozen=True)
class Flag:
    """One option: its name, whether it takes a value ("0", "1" or "n"), and what is made of it.

    default: the value that means what leaving it out means. cell: the column that it is read into. effect: what the
    run is against the prediction ("slower and more memory", "either way", "another shape"). why: the reason.
    """

    name: str
    takes: str
    default: str
    use: str
    cell: str
    effect: str
    why: str

    def remark(self, values: Sequence[str] = ()) -> str:
        """One sentence about a noted or refused option as it was stated."""
        said = " ".join((self.name, *values))[:80]
        why = f" ({self.why})" if self.why else ""
        if self.use == "refused":
            return f"{said}: {self.why}"
        if self.effect == "another shape":
            return f"{said} is not modelled: the model has another shape than the one predicted{why}"
        if self.effect == "either way":
            return f"{said} is not modelled: time and memory may differ either way{why}"
        return f"{said} is not modelled: {self.effect} than predicted{why}"


@functools.cache
def flags(launcher: str) -> Mapping[str, Flag]:
    """The options of a launcher by name, in the order of its own list."""
    path = Path(__file__).parent / f"{launcher}.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        found = [Flag(*(row[n] for n in ("flag", "takes", "default", "use", "cell", "effect", "why"))) for row in rows]
    return {flag.name: flag for flag in found}


def of_use(launcher: str, use: str) -> frozenset[str]:
    """The names of a launcher's options of one use."""
    return frozenset(name for name, flag in flags(launcher).items() if flag.use == use)
