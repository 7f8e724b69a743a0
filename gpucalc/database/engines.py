"""Engines that serve models: their memory rule, their defaults and their fitted overheads, each with its origin.

An engine is a file of `hardware_db/engines`, chosen by the `framework` cell; without one the neutral engine is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucalc.core.errors import unknown
from gpucalc.database.documents import KINDS
from gpucalc.database.profiles import Constant, constants_of

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

FOLDER = "engines"


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


def engine_names(db: Database) -> list[str]:
    """Names that `--engine` and the framework cell take."""
    return list(db.files(FOLDER))


def load_engine(name: str, db: Database) -> Engine:
    """The engine of that file name; UsageError for an unknown one, DataError for a malformed file."""
    return db.kept(("engine", name), lambda: _engine(name, db))


def _engine(name: str, db: Database) -> Engine:
    found = db.document(FOLDER, name)
    return Engine(
        name,
        found.text("title", name),
        found.text("dated"),
        found.words,
        constants_of(found),
        found.text("memory_rule"),
    )


def choose_engine(framework: str, db: Database) -> Engine:
    """The engine whose words occur in `framework`; the neutral one when it is empty.

    Raises UsageError for software that is not a known engine.
    """
    return db.kept(("engine for", framework), lambda: load_engine(_chosen(framework, db), db))


def _chosen(framework: str, db: Database) -> str:
    text = re.sub(r"[\s_-]+", "", framework.casefold())
    if not text:
        return KINDS[FOLDER].base
    found = [
        (len(word), engine.name)
        for engine in db.heads(FOLDER)
        for word in engine.words
        if re.sub(r"[\s_-]+", "", word) in text
    ]
    if not found:
        raise unknown("framework", framework, tuple(engine_names(db)))
    return max(found)[1]
