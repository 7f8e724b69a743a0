"""Where the database lies, and reading its files with care.

A user's database is data: names are looked up in a directory listing, never joined into a path, links that lead out
of a folder are not followed, and nothing large or binary is read.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.core.files import read_limited, text_of
from gpucalc.core.toml import parse_toml

MAX_FILE_BYTES = 1 << 20
ENVIRONMENT = "GPUCALC_DB"


@functools.cache
def shipped() -> Path:
    """The database that comes with the package: inside the wheel, or beside the package in the tree."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "hardware_db", package.parent / "hardware_db"):
        if folder.is_dir():
            return folder
    raise DataError(f"the hardware database is not installed beside {package}")


def database_dirs(dirs: Iterable[str | os.PathLike[str]] = ()) -> tuple[Path, ...]:
    """The folders of the database in order, later ones winning: shipped, GPUCALC_DB, then `dirs`."""
    extra = [Path(part) for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    for part in dirs:
        if not os.fspath(part):  # Path("") would be the current folder
            raise DataError("a hardware database needs the name of a folder, not an empty text")
        extra.append(Path(part))
    for folder in extra:
        try:
            is_dir = folder.is_dir()
        except (OSError, ValueError) as error:
            raise DataError(f"hardware database {str(folder)!r}: {error}") from None
        if not is_dir:
            found = "is a file, not a folder" if folder.exists() else "does not exist"
            raise DataError(f"hardware database {str(folder)!r} {found}")
    return (shipped(), *extra)


def read_text(path: Path, root: Path) -> str:
    """The text of a small regular file that lies inside `root`; DataError otherwise."""
    label = file_label(path, root)
    try:
        if not _inside(path, root):
            raise DataError(f"{label}: a link that leads out of its folder is not followed")
        if not path.is_file():
            raise DataError(f"{label}: not a regular file")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise DataError(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    text = text_of(read_limited(path, MAX_FILE_BYTES, "a database file of a few kilobytes", name=label), label)
    if not text.strip():
        raise DataError(f"{label}: the file is empty")
    return text


def _inside(path: Path, root: Path) -> bool:
    """Whether a path, links followed, lies in a database folder."""
    return Path(os.path.realpath(path)).is_relative_to(_real(root))


@functools.lru_cache(maxsize=64)
def _real(root: Path) -> str:
    return os.path.realpath(root)


def file_label(path: Path, root: Path) -> str:
    """How messages name a file: from its database folder on, with the folder where it is not the shipped one."""
    try:
        inside = path.relative_to(root).as_posix()
    except ValueError:
        inside = path.name
    return inside if root == shipped() else f"{root.as_posix()}/{inside}"


def read_toml(path: Path, root: Path) -> dict[str, Any]:
    """The table of a TOML file, with the guards of `read_text`."""
    return parse_file(read_text(path, root), file_label(path, root))


def parse_file(text: str, label: str) -> dict[str, Any]:
    """The table of the text of a TOML file; DataError where it is none."""
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{label}: not valid TOML: {str(error)[:200]}") from None


def list_files(dirs: Sequence[Path], folder: str) -> dict[str, tuple[Path, Path]]:
    """key → (file, its database folder) of one kind, without opening any file; later folders win."""
    found: dict[str, tuple[Path, Path]] = {}
    for root in dirs:
        place = root / folder
        if not place.is_dir():
            continue
        for name in entry_names(place, root):
            if name.endswith(".toml"):
                found[name.removesuffix(".toml")] = (place / name, root)
    return found


def entry_names(place: Path, root: Path) -> list[str]:
    """The entries of a folder inside `root`, sorted, hidden ones left out."""
    try:
        if not _inside(place, root):
            raise DataError(f"{file_label(place, root)}: a link that leads out of its folder is not followed")
        return sorted(name for name in os.listdir(place) if not name.startswith("."))
    except OSError as error:
        raise DataError(f"{file_label(place, root)}: cannot be listed: {error.strerror}") from None


def fold(name: str) -> str:
    """The spelling that names are compared in: no case, no punctuation.

    >>> fold("H100_SXM5-80GB")
    'h100sxm580gb'
    """
    return "".join(c for c in name.casefold() if c.isalnum())


def aliases(dirs: Sequence[Path]) -> dict[str, str]:
    """Folded spelling → device key, from `aliases.csv` of each folder; later folders win."""
    table: dict[str, str] = {}
    for root in dirs:
        path = root / "aliases.csv"
        if os.path.lexists(path):
            table |= read_aliases(path, root)
    return table


def read_aliases(path: Path, root: Path) -> dict[str, str]:
    """Folded spelling → device key, from one file. DataError for what is not such a table."""
    label = file_label(path, root)
    lines = [line for line in read_text(path, root).splitlines() if line.strip() and not line.startswith("#")]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if not rows or rows[0] != ["spelling", "key"]:
        raise DataError(f"{label}: header: must be 'spelling,key'")
    bad = [f"{label}: row {n}: must be a spelling and a key" for n, row in enumerate(rows[1:], 2) if len(row) != 2]
    if bad:
        raise DataError(*bad)
    return {fold(spelling): key for spelling, key in rows[1:]}
