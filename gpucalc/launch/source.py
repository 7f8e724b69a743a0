"""The text of a launch file, or of standard input: read as data, with everything wrong told in words."""

from __future__ import annotations

import os
import sys

from gpucalc.core.errors import DataError

LIMIT = 2_000_000


def read_source(path: str) -> str:
    """The text of a file, or of standard input for "-". Raises DataError for what is not a text of sensible size."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
                raise DataError("nothing is piped into standard input; name a launch file")
            raw = sys.stdin.buffer.read(LIMIT + 1)
        else:
            if os.path.isdir(path):
                raise DataError(f"{path} is a directory, expected a launch file")
            with open(path, "rb") as stream:
                raw = stream.read(LIMIT + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > LIMIT:
        raise DataError(f"{name} is larger than {LIMIT:,} bytes, which no launch file is")
    if b"\0" in raw:
        raise DataError(f"{name} is a binary file, expected a launch script or settings")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8 text; save the file as UTF-8") from None
    if not text.strip():
        raise DataError(f"{name} is empty, expected a launch script or settings")
    return text.replace("\r\n", "\n")
