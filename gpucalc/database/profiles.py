"""Software profiles: what a framework version fuses, overlaps, launches and keeps.

A profile is a file of `hardware_db/profiles`: documented physical constants, each with its origin, and
the defaults of cells that a row leaves empty. It is chosen by name, or by framework and software date.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError, unknown
from gpucalc.database import files

DEFAULT_FRAMEWORK = "megatron-core"
FOLDER = "profiles"


@dataclass(frozen=True)
class Constant:
    """One constant of a profile and where it comes from."""

    value: float
    unit: str
    origin: str
    why: str


@dataclass(frozen=True)
class Profile:
    """A software profile with the constants of those it extends filled in."""

    name: str
    title: str
    frameworks: tuple[str, ...]
    since: str
    until: str
    constants: dict[str, Constant]
    defaults: dict[str, Any]

    @property
    def values(self) -> dict[str, float]:
        """constant → value in SI."""
        return {name: constant.value for name, constant in self.constants.items()}

    def by_architecture(self, name: str, arch: str, default: str = "") -> float:
        """The constant `name` of an architecture's family (Blackwell Ultra is Blackwell), else its default."""
        family = arch.split()[0].casefold() if arch else ""
        found = self.constants.get(f"{name}_{family}") or self.constants[f"{name}{default}"]
        return found.value

    def covers(self, date: str) -> bool:
        """Whether the profile describes software of that month (YYYY-MM)."""
        return (not self.since or date >= self.since) and (not self.until or date <= self.until)


def _constant(file: str, name: str, raw: Any) -> Constant:
    if not isinstance(raw, dict) or not isinstance(raw.get("value"), int | float):
        raise DataError(f"{file}: constants.{name}: expected a table with value, unit, origin and why")
    if isinstance(raw["value"], bool) or not math.isfinite(raw["value"]):
        raise DataError(f"{file}: constants.{name}.value: expected a finite number")
    return Constant(float(raw["value"]), str(raw.get("unit", "")), str(raw.get("origin", "")), str(raw.get("why", "")))


@functools.lru_cache(maxsize=64)
def load_profile(name: str, dirs: tuple[Path, ...]) -> Profile:
    """The profile of that name, from an overlay or the shipped database.

    Raises UsageError for an unknown name and DataError for a malformed file.
    """
    found = files.list_files(dirs, FOLDER)
    if name not in found:
        raise unknown("profile", name, profile_names(dirs))
    path, root = found[name]
    raw = _tables(path, root)
    _refuse_circle(name, found)
    base = load_profile(str(raw["extends"]), dirs) if "extends" in raw else None
    constants = dict(base.constants) if base else {}
    constants |= {n: _constant(path.name, n, c) for n, c in raw.get("constants", {}).items()}
    defaults = {**(base.defaults if base else {}), **raw.get("defaults", {})}
    words = (name, *(str(f).casefold() for f in raw.get("frameworks", ())))
    since, until = str(raw.get("since", "")), str(raw.get("until", ""))
    return Profile(name, str(raw.get("title", name)), words, since, until, constants, defaults)


@functools.lru_cache(maxsize=256)  # every profile's chain ends in the same files
def _tables(path: Path, root: Path) -> dict[str, Any]:
    """A profile's file, not to be changed; DataError where an entry is not of the kind that every profile has there."""
    raw = files.read_toml(path, root)
    kinds: dict[str, tuple[type, str]] = {
        **dict.fromkeys(("constants", "defaults"), (dict, "a table")),
        **dict.fromkeys(("extends", "title", "since", "until"), (str, "text")),
        "frameworks": (list, "a list of names"),
    }
    wrong = [
        f"{path.name}: {key}: expected {said}"
        for key, (kind, said) in kinds.items()
        if key in raw and not isinstance(raw[key], kind)
    ]
    if wrong:
        raise DataError(*wrong)
    return raw


def _refuse_circle(name: str, files: dict[str, tuple[Path, Path]]) -> None:
    """DataError where a profile extends itself, over however many others."""
    seen = [name]
    while (following := _tables(*files[seen[-1]]).get("extends")) in files:
        if following in seen:
            raise DataError(f"{files[name][0].name}: extends: {' → '.join([*seen, following])} is a circle")
        seen.append(following)


def profile_names(dirs: Sequence[Path]) -> list[str]:
    """Names that `--profile` takes."""
    return [name for name in files.list_files(dirs, FOLDER) if name != "common"]


@functools.lru_cache(maxsize=1024)
def choose_profile(framework: str, date: str, dirs: tuple[Path, ...]) -> Profile:
    """The profile whose framework words fit `framework` best at `date` (YYYY-MM, empty: today).

    The longest word that occurs in the text wins, among those the profile with the narrowest dates; without any
    Megatron-Core is taken.
    """
    text = re.sub(r"[\s_]+", " ", framework.casefold())
    month = date or "9999-99"
    best: tuple[tuple[int, int], Profile] | None = None
    for name in profile_names(dirs):
        profile = load_profile(name, dirs)
        length = max((len(word) for word in profile.frameworks if word in text), default=0)
        rank = (length, bool(profile.since) + bool(profile.until))
        if length and profile.covers(month) and (best is None or rank > best[0]):
            best = (rank, profile)
    if best and (best[0][0] == len(text) or text not in profile_names(dirs)):
        return best[1]
    if text in profile_names(dirs):  # named outright, whatever the date
        return load_profile(text, dirs)
    # Unknown software is taken for Megatron-Core of that month; before there was any, for the newest.
    return choose_profile(DEFAULT_FRAMEWORK, "" if framework == DEFAULT_FRAMEWORK else date, dirs)
