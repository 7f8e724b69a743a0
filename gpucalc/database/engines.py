"""Engines that serve models: their memory rule, their defaults and their fitted overheads, each with its origin.

An engine is a file of `hardware_db/engines`, chosen by the `framework` cell; without one the neutral engine is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import unknown
from gpucalc.core.units import GIB
from gpucalc.database.documents import KINDS
from gpucalc.database.profiles import Constant, constants_of

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

FOLDER = "engines"


@dataclass(frozen=True)
class Budget:
    """What an engine takes on a card where nothing is stated; 0 where the engine's constants hold.

    graph_batch: the largest batch of captured graphs, `graph_batch_wide` from four tensor-parallel ranks on.
    """

    why: str
    chunk_tokens: int
    max_seqs: int = 0
    graph_batch: int = 0
    graph_batch_wide: int = 0
    from_gib: float = 0.0
    other_than: str = ""

    def holds(self, device: Device) -> bool:
        """Whether a card meets the row."""
        named = bool(self.other_than) and self.other_than in device.key
        return device.usable_bytes / GIB >= self.from_gib and not named


@dataclass(frozen=True)
class Engine:
    """One engine with the constants of the one it extends filled in, as they are in its `version`."""

    name: str
    title: str
    dated: str
    words: tuple[str, ...]
    constants: dict[str, Constant]
    memory_rule: str
    version: str = ""
    budgets: tuple[Budget, ...] = ()
    versions: tuple[tuple[str, dict[str, Constant]], ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """constant → value in SI."""
        return {name: constant.value for name, constant in self.constants.items()}

    def at(self, version: str) -> Engine:
        """The engine as it was in a version; each change holds from its version on."""
        here = _number(version or self.version)
        changed = [table for since, table in self.versions if _number(since) <= here]
        constants = {name: value for table in changed for name, value in table.items()}
        return replace(self, version=version or self.version, constants=self.constants | constants)

    def budget(self, device: Device) -> Budget | None:
        """What it takes on a card; None where its constants say it for all."""
        return next((budget for budget in self.budgets if budget.holds(device)), None)


def _number(version: str) -> tuple[int, ...]:
    """A version in the order of versions.

    >>> _number("0.9.1") < _number("v0.19.0rc1"), _number("0.19") == _number("0.19.0")
    (True, True)
    """
    parts = [int(part) for part in re.findall(r"\d+", version)[:3]]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def engine_names(db: Database) -> list[str]:
    """Names that `--engine` and the framework cell take."""
    return list(db.files(FOLDER))


def load_engine(name: str, db: Database) -> Engine:
    """The engine of that file name; UsageError for an unknown one, DataError for a malformed file."""
    return db.kept(("engine", name), lambda: _engine(name, db))


def _engine(name: str, db: Database) -> Engine:
    found = db.document(FOLDER, name)
    versions = [(since, _constants(table)) for since, table in found.table("versions").items()]
    return Engine(
        name,
        found.text("title", name),
        found.text("dated"),
        found.words,
        constants_of(found),
        found.text("memory_rule"),
        found.text("version"),
        tuple(Budget(**row) for row in found.data.get("budgets", ())),
        tuple(sorted(versions, key=lambda pair: _number(pair[0]))),
    ).at("")


def _constants(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Constant]:
    return {n: Constant(float(raw["value"]), raw["unit"], raw["origin"], raw["why"]) for n, raw in table.items()}


_VERSION = re.compile(r"(?<![\d.])v?(\d+(?:\.\d+)+)")


def choose_engine(framework: str, db: Database, version: str = "") -> Engine:
    """The engine whose words occur in `framework`, in the version that it or `version` names.

    The neutral one when it is empty; without a version the one that its file was fitted to. Raises UsageError for
    software that is not a known engine.
    """
    said = _VERSION.search(version) or _VERSION.search(framework)
    found = said[1] if said else ""
    key = ("engine for", framework, found)
    return db.kept(key, lambda: load_engine(_chosen(framework, db), db).at(found))


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
