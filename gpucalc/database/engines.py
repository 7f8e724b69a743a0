"""Engines that serve models: their memory rule, their defaults and their fitted overheads, each with its origin.

An engine is a file of `hardware_db/engines`, chosen by the `framework` cell; without one the neutral engine is taken.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError, unknown
from gpucalc.database import files
from gpucalc.database.profiles import Constant

FOLDER = "engines"
NEUTRAL = "neutral"
# A share of all memory; of what is free once the weights are loaded; of all memory for weights and cache alone.
MEMORY_RULES = ("total", "free", "static")


@dataclass(frozen=True)
class Engine:
    """One engine with the constants of the one it extends filled in."""

    name: str
    title: str
    dated: str
    words: tuple[str, ...]
    constants: dict[str, Constant]
    memory_rule: str

    @property
    def values(self) -> dict[str, float]:
        """constant → value in SI."""
        return {name: constant.value for name, constant in self.constants.items()}


def engine_names(dirs: tuple[Path, ...]) -> list[str]:
    """Names that `--engine` and the framework cell take."""
    return list(files.list_files(dirs, FOLDER))


@functools.lru_cache(maxsize=64)
def load_engine(name: str, dirs: tuple[Path, ...]) -> Engine:
    """The engine of that file name; UsageError for an unknown one, DataError for a malformed file."""
    found = files.list_files(dirs, FOLDER)
    if name not in found:
        raise unknown("engine", name, tuple(found))
    path, root = found[name]
    raw = files.read_toml(path, root)
    base = load_engine(str(raw["extends"]), dirs) if "extends" in raw else None
    constants = dict(base.constants) if base else {}
    for key, cell in raw.get("constants", {}).items():
        constants[key] = _constant(path.name, key, cell)
    rule = str(raw.get("memory_rule", base.memory_rule if base else "total"))
    if rule not in MEMORY_RULES:
        raise DataError(f"{path.name}: memory_rule: {rule!r} is none of {', '.join(MEMORY_RULES)}")
    words = (name, *(str(word).casefold() for word in raw.get("frameworks", ())))
    return Engine(name, str(raw.get("title", name)), str(raw.get("dated", "")), words, constants, rule)


def _constant(file: str, name: str, raw: Any) -> Constant:
    if not isinstance(raw, dict) or not isinstance(raw.get("value"), int | float):
        raise DataError(f"{file}: constants.{name}: expected a table with value, unit, origin and why")
    return Constant(float(raw["value"]), str(raw.get("unit", "")), str(raw.get("origin", "")), str(raw.get("why", "")))


@functools.lru_cache(maxsize=256)
def choose_engine(framework: str, dirs: tuple[Path, ...]) -> Engine:
    """The engine whose words occur in `framework`; the neutral one when it is empty.

    Raises UsageError for software that is no known engine.
    """
    text = re.sub(r"[\s_-]+", "", framework.casefold())
    if not text:
        return load_engine(NEUTRAL, dirs)
    found = [
        (len(word), name)
        for name in engine_names(dirs)
        for word in load_engine(name, dirs).words
        if re.sub(r"[\s_-]+", "", word) in text
    ]
    if not found:
        raise unknown("framework", framework, tuple(engine_names(dirs)))
    return load_engine(max(found)[1], dirs)
