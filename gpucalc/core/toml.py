"""TOML as a file of a user's holds it: the parser of the standard library, and every way it fails as one error."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 50  # of one dotted key; the parser takes time with the square of their number
_LONG_KEY = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; a byte-order mark is skipped.

    Raises tomllib.TOMLDecodeError, also for nesting and numbers that the parser fails on otherwise.

    >>> parse_toml("\\ufeffa.b = 1")
    {'a': {'b': 1}}
    """
    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError(f"a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits, a date that is none
        raise tomllib.TOMLDecodeError(str(error).split(";")[0]) from None
