"""The works that formulas and figures cite: `references.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucalc.database.reader import Database


@dataclass(frozen=True)
class Reference:
    """A work that a formula or a figure cites."""

    key: str
    authors: str
    title: str
    year: int
    locator: str

    def __str__(self) -> str:
        """The citation as one line."""
        return f"{self.authors} ({self.year}). {self.title}. {self.locator}"


def references(db: Database) -> dict[str, Reference]:
    """Citation key → reference, from `references.toml` of each database folder; later folders win."""
    return {
        key: Reference(key, entry["authors"], entry["title"], entry["year"], entry["locator"])
        for _, layer in db.layers("references")
        for key, entry in layer.items()
    }
