"""The text of a launch file, or of standard input: read as data, with everything wrong told in words."""

from __future__ import annotations

import sys

from gpucalc.core.errors import DataError
from gpucalc.core.files import read_limited, text_of, within

LIMIT = 2_000_000
EXPECTED = "a launch file"


def read_source(path: str) -> str:
    """The text of a file, or of standard input for "-". Raises DataError for what is not a text of sensible size."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
                raise DataError("nothing is piped into standard input; name a launch file")
            raw = sys.stdin.buffer.read(LIMIT + 1)
        else:
            raw = read_limited(path, LIMIT, EXPECTED)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from None
    text = text_of(within(raw, LIMIT, name, EXPECTED), name)
    if not text.strip():
        raise DataError(f"{name} is empty, expected a launch script or settings")
    return text
