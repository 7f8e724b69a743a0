"""Every failure a user can cause, and the exit status it leaves.

0 ok · 1 internal error · 2 usage or data error · 3 nothing feasible · 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of the command line."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INFEASIBLE = 3
    INTERRUPTED = 130


class GpucalcError(Exception):
    """Base of all errors that are told to the user as one sentence."""

    status = ExitStatus.USAGE


class UsageError(GpucalcError):
    """A bad argument, option or combination of options.

    `problems` holds each violation as a sentence; the message joins them.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class DataError(UsageError):
    """A file that cannot be read as what it should be, or a value in it that is wrong."""


class InfeasibleError(GpucalcError):
    """The question is well posed and nothing satisfies it."""

    status = ExitStatus.INFEASIBLE


SHOWN = 60  # characters of a wrong value that an error repeats
KNOWN_SHOWN = 40  # names that an error lists where none is near


def shown(text: str) -> str:
    """A value as an error repeats it: quoted, and cut where it is long.

    >>> shown("abc"), len(shown("a" * 1000))
    ("'abc'", 62)
    """
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def readable(sentence: str, most: int = 300) -> str:
    """A sentence whose longest words, such as an argument that fills the screen, lose their middle.

    >>> len(readable("cannot read " + "a" * 100_000))
    313
    """
    import re

    return re.sub(rf"\S{{{most},}}", lambda word: f"{word[0][: most - 100]}…{word[0][-100:]}", sentence)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to `name`, best first; case and punctuation do not matter.

    >>> nearest("H100-SMX", ["h100-sxm-80gb", "a100-sxm-80gb", "mi300x"], 1)
    ['h100-sxm-80gb']
    """
    import difflib

    names = list(known)
    folded = {n.casefold(): n for n in names}
    wanted = name[:200].casefold()
    starts = [n for f, n in folded.items() if wanted and (f.startswith(wanted) or wanted.startswith(f))]
    close = [folded[f] for f in difflib.get_close_matches(wanted, list(folded), n=count, cutoff=0.5)]
    ranked = list(dict.fromkeys(starts[:count] + close)) if len(wanted) > 2 else close
    return ranked[:count]


def suggestion(name: str, known: Iterable[str], count: int = 2, otherwise: str | None = None) -> str:
    """How a sentence about a wrong `name` ends: the nearest of `known`, or all of them where none is near.

    `otherwise` replaces the list of all, for names that are too many to list.

    >>> suggestion("tabel", ["table", "csv"]), suggestion("pie", ["table", "csv"])
    ('; did you mean table?', '; known: table, csv')
    """
    names = list(known)
    near = nearest(name, names, count)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(names[:KNOWN_SHOWN])}" if otherwise is None else otherwise


def choice(flag: str, text: str, known: Iterable[str]) -> str:
    """The one of `known` that the text of an option or cell names; case and outer blanks do not matter.

    Raises UsageError, which names the option and the nearest known word.

    >>> choice("--format", " CSV", ("table", "csv"))
    'csv'
    """
    folded = {name.casefold(): name for name in known}
    word = text.strip().casefold()
    if word not in folded:
        raise UsageError(f"{flag} is {shown(text)}{suggestion(word, folded.values(), 1)}")
    return folded[word]


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UsageError:
    """The error for a name that is not in `known`, with the nearest ones."""
    names = list(known)
    several = f"; known: {', '.join(names[:8])} and {len(names) - 8} more" if not hint else ""
    text = f"unknown {kind} {shown(name)}" + suggestion(name, names, 3, several if len(names) > 24 else None)
    if hint:
        text += f" ({hint})"
    return UsageError(text)
