"""The works that formulas and figures cite: `references.toml`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpucalc.core.errors import DataError
from gpucalc.database.files import database_dirs, file_label, read_toml


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


def references(dirs: Iterable[str | os.PathLike[str]] = ()) -> dict[str, Reference]:
    """Citation key → reference, from `references.toml` of each database folder."""
    found: dict[str, Reference] = {}
    for root in database_dirs(dirs):
        path = root / "references.toml"
        if os.path.lexists(path):
            found |= read_references(path, root)
    return found


def read_references(path: Path, root: Path) -> dict[str, Reference]:
    """Citation key → reference, from one file. DataError with all problems."""
    label, problems, found = file_label(path, root), [], {}
    types = {"authors": str, "title": str, "year": int, "locator": str}
    for key, entry in read_toml(path, root).items():
        if not isinstance(entry, dict):
            problems.append(f"{label}: {key}: must be a table [{key}]")
            continue
        wrong = [f"{label}: {key}.{n}: missing" for n in types if n not in entry]
        wrong += [f"{label}: {key}.{n}: unknown key" for n in entry if n not in types]
        wrong += [
            f"{label}: {key}.{n}: must be {t.__name__}"
            for n, t in types.items()
            if not isinstance(entry.get(n, t()), t)
        ]
        problems += wrong
        if not wrong:
            found[key] = Reference(key, **entry)
    if problems:
        raise DataError(*problems)
    return found
