"""The one reader of files that users name: never more than a limit in memory, and every fault a sentence.

Rows, which may be more than memory holds, are read in blocks by `core/rows.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpucalc.core.errors import DataError

MIB = 1 << 20


def read_limited(path: str | os.PathLike[str], limit: int, expected: str, *, name: str = "") -> bytes:
    """The content of a file of at most `limit` bytes; `expected` says what it should be, such as "a launch file".

    A file that grows, or that only claims to be small, is not read beyond the limit either. `name` is what messages
    call it, where that is not its path.
    """
    name = name or os.fspath(path)
    try:
        if Path(path).is_dir():
            raise DataError(f"{name} is a directory, expected {expected}")
        with open(path, "rb") as stream:
            raw = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from None
    return within(raw, limit, name, expected)


def within(raw: bytes, limit: int, name: str, expected: str) -> bytes:
    """The bytes, unless they are more than `limit`, which is then said."""
    if len(raw) > limit:
        size = f"{limit // MIB} MiB" if limit >= MIB and limit % MIB == 0 else f"{limit:,} bytes"
        raise DataError(f"{name} is larger than {size}; expected {expected}")
    return raw


def text_of(raw: bytes, name: str, *, strict: bool = True) -> str:
    """The text of UTF-8 bytes, without a byte-order mark and with line ends "\\n".

    Raises DataError for UTF-16, binary content, and what is not UTF-8; the last only if `strict`.

    >>> text_of(b"a\\r\\nb", "x.csv")
    'a\\nb'
    """
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name} is UTF-16 text; save the file as UTF-8")
    if b"\0" in raw:
        raise DataError(f"{name} is a binary file, not text")
    try:
        text = raw.decode("utf-8-sig", errors="strict" if strict else "replace")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from None
    return text.replace("\r\n", "\n")


def read_text(path: str | os.PathLike[str], limit: int, expected: str, *, strict: bool = True) -> str:
    """The text of a file of at most `limit` bytes, with the guards of `read_limited` and `text_of`."""
    return text_of(read_limited(path, limit, expected), os.fspath(path), strict=strict)
