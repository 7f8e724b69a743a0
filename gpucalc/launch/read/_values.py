"""The value of a flag, typed, with what is wrong with it collected."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucalc.core.errors import suggestion
from gpucalc.launch.read.shell.script import missing, shown

_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


def text(flag: str, values: Sequence[str], problems: list[str]) -> str | None:
    """The value; None where there is none, or a variable in it is not known."""
    if not values or list(values) == [""]:
        problems.append(f"{flag} has no value")
        return None
    lacking = missing(" ".join(values))
    if lacking:
        problems.append(
            f"{flag} is {shown(values[0])}, and {', '.join(lacking)} is not set in the text; write its value above"
        )
        return None
    return values[0]


def integer(flag: str, values: Sequence[str], problems: list[str], least: int = 1) -> int | None:
    """A whole number of at least `least`."""
    word = text(flag, values, problems)
    if word is None:
        return None
    if not re.fullmatch(r"\d{1,12}", word) or int(word) < least:
        problems.append(f"{flag} is {word[:40]!r}, expected a whole number of {least} or more")
        return None
    return int(word)


def number(flag: str, values: Sequence[str], problems: list[str]) -> float | None:
    """A number."""
    word = text(flag, values, problems)
    if word is None:
        return None
    if not re.fullmatch(r"[-+]?(\d{1,15}\.?\d{0,15}|\.\d{1,15})(e[-+]?\d{1,2})?", word.casefold()):
        problems.append(f"{flag} is {word[:40]!r}, expected a number")
        return None
    return float(word)


def choice(flag: str, values: Sequence[str], choices: Sequence[str], problems: list[str]) -> str | None:
    """One of a few words."""
    word = text(flag, values, problems)
    if word is None or word in choices:
        return word
    problems.append(f"{flag} is {word[:40]!r}{suggestion(word, choices, 1)}")
    return None


def switch(flag: str, values: Sequence[str], problems: list[str]) -> bool:
    """A switch: on where it stands alone, else what its value says."""
    if not values:
        return True
    word = values[0].casefold()
    if len(values) > 1 or word not in _TRUE | _FALSE:
        problems.append(f"{flag} is {' '.join(values)[:40]!r}, expected true or false")
        return False
    return word in _TRUE
