"""Emphasis on terminals: headings bold, what needs care coloured; nowhere else, and never a change of the text."""

from __future__ import annotations

import os
import re
from typing import TextIO

BOLD, RED, YELLOW, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_CARE = {"risky": YELLOW, "oom": RED}
_WORDS = re.compile(r"(?<=  )(risky|oom)(?=  |$)", re.MULTILINE)


def wanted(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours and whose user has not said no (NO_COLOR, TERM=dumb)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def dressed(text: str, stream: TextIO, *, header: bool = True) -> str:
    """A plain table with its heading bold and cells that say risky or oom coloured, where `stream` shows it.

    >>> import io
    >>> dressed("fit\\n---\\noom", io.StringIO())
    'fit\\n---\\noom'
    """
    if not wanted(stream):
        return text
    head, newline, rest = text.partition("\n") if header else ("", "", text)
    rest = _WORDS.sub(lambda found: f"{_CARE[found[1]]}{found[1]}{PLAIN}", rest)
    return (f"{BOLD}{head}{PLAIN}" if head else "") + newline + rest
