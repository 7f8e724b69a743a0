"""Software profiles: what a framework version fuses, overlaps, launches and keeps.

A profile is a file of `hardware_db/profiles`: documented physical constants, each with its origin, and
the defaults of cells that a row leaves empty. It is chosen by name, or by framework and software date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.database.documents import KINDS, Document

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

DEFAULT_FRAMEWORK = "megatron-core"
NEUTRAL = "neutral"  # software that no profile knows
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
    lineage: tuple[str, ...] = ()  # itself and what it extends, nearest first

    @property
    def values(self) -> dict[str, float]:
        """constant → value in SI."""
        return {name: constant.value for name, constant in self.constants.items()}

    def of_generation(self, name: str, device: Device, default: str = "") -> float:
        """The constant `name` of a device's generation (Blackwell Ultra counts as Blackwell), else its default."""
        found = self.of_generation_alone(name, device) or self.constants[f"{name}{default}"]
        return found.value

    def of_generation_alone(self, name: str, device: Device) -> Constant | None:
        """The constant `name` of a device's generation, None where there is none."""
        return self.constants.get(f"{name}_{device.architecture.lookup.casefold()}")


def constants_of(document: Document) -> dict[str, Constant]:
    """The constants of a profile or an engine with those of what it extends."""
    return {
        name: Constant(float(raw["value"]), raw["unit"], raw["origin"], raw["why"])
        for name, raw in document.table("constants").items()
    }


def load_profile(name: str, db: Database) -> Profile:
    """The profile of that name. UsageError for an unknown name, DataError for a malformed file."""
    return db.kept(("profile", name), lambda: _profile(db.document(FOLDER, name)))


def _profile(document: Document) -> Profile:
    since, until = document.text("since"), document.text("until")
    title = document.text("title", document.name)
    return Profile(
        document.name,
        title,
        document.words,
        since,
        until,
        constants_of(document),
        document.table("defaults"),
        document.lineage,
    )


def profile_names(db: Database) -> list[str]:
    """Names that `--profile` takes."""
    return [name for name in db.files(FOLDER) if name != KINDS[FOLDER].base]


def choose_profile(framework: str, date: str, db: Database) -> Profile:
    """The profile whose framework words fit `framework` best at `date` (YYYY-MM, empty: today).

    The longest entry whose whole words occur in the text wins, among equals the profile with the narrowest dates; a
    framework whose profiles all describe other months takes one of them. Without any match the neutral one.
    """
    return db.kept(("choice", framework, date), lambda: load_profile(_chosen(framework, date, db), db))


def _chosen(framework: str, date: str, db: Database) -> str:
    text = re.sub(r"[\s_]+", " ", (framework or DEFAULT_FRAMEWORK).casefold()).strip()
    month = date or "9999-99"
    names = profile_names(db)
    best: tuple[tuple[int, bool, int], str] | None = None
    for profile in db.heads(FOLDER):
        if profile.name not in names:
            continue
        length = max((_matched(text, word) for word in profile.words), default=0)
        since, until = profile.text("since"), profile.text("until")
        rank = (length, _covers(since, until, month), bool(since) + bool(until))
        if length and (best is None or rank > best[0]):
            best = (rank, profile.name)
    if text in names and not (best and best[0][1]):  # named outright, whatever the date
        return text
    return best[1] if best else NEUTRAL


def framework_words(db: Database) -> list[str]:
    """Every name of a framework that some profile knows."""
    names = profile_names(db)
    found = {word for document in db.heads(FOLDER) if document.name in names for word in document.words[1:]}
    return sorted(word for word in found if " + " not in word)


def _matched(text: str, entry: str) -> int:
    """Letters of an entry that stand in the text as whole words; 0 unless all of its parts, joined by +, do.

    >>> _matched("hf trainer + peft", "hf trainer"), _matched("mytrainer", "trainer")
    (10, 0)
    """
    parts = entry.split(" + ")
    whole = all(re.search(rf"(?<![a-z0-9]){re.escape(part)}(?![a-z0-9])", text) for part in parts)
    return sum(map(len, parts)) if whole else 0


def _covers(since: str, until: str, month: str) -> bool:
    """Whether a profile of these dates describes software of that month (YYYY-MM)."""
    return (not since or month >= since) and (not until or month <= until)
