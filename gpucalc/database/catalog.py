"""Reading the hardware database: TOML files against one schema, overlays, and a check of everything.

The schema is the metadata of dataclass fields (`fact`): it drives reading, `check` and `schema_table`.
A user's database is data: names are looked up in a directory listing, never joined into a path.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpucalc.core.errors import DataError, UsageError, nearest
from gpucalc.core.toml import parse_toml
from gpucalc.core.units import parse_quantity

MAX_FILE_BYTES = 1 << 20
ENVIRONMENT = "GPUCALC_DB"
CONFIDENCE = ("high", "medium", "low")
PRECISIONS = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8")
KINDS: dict[str, type] = {}  # folder of the database → dataclass of its records
OTHER_ENTRIES = {
    "calibration",
    "claims.toml",
    "defaults",
    "engines",
    "measurements",
    "profiles",
    "recipes",
    "README.md",
    "references.toml",
    "aliases.csv",
}
R = TypeVar("R")


# ---------------------------------------------------------------- the schema


def fact(
    path: str, unit: str, doc: str, *, optional: bool = False, default: Any = None, choices: Sequence[str] = ()
) -> Any:
    """A dataclass field read from `path` ("group.key") of a TOML file.

    `unit` is a dimension of `units.parse_quantity` (B, B/s, s, 1/s, W: a string with a unit), "peaks"
    (a table precision → FLOP/s), or a plain kind: "text", "int", "number", "ratio", "flag", "keys".
    """
    metadata = {"path": path, "unit": unit, "doc": doc, "optional": optional, "choices": tuple(choices)}
    if not optional:
        return dataclasses.field(metadata=metadata)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def record(folder: str) -> Callable[[type[R]], type[R]]:
    """Register a dataclass as the record of a database folder.

    The class also has `key`, `sources` and `confidence`: the file's name, and what each group states.
    """

    def register(cls: type[R]) -> type[R]:
        KINDS[folder] = cls
        return cls

    return register


@functools.cache
def _facts(cls: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple((f.name, dict(f.metadata)) for f in dataclasses.fields(cls) if "path" in f.metadata)


def _group(path: str) -> str:
    return path.split(".")[0] if "." in path else ""


def _value(raw: Any, unit: str, choices: tuple[str, ...]) -> Any:
    """One value of a file as SI; raises UsageError with what is wrong."""
    if unit in {"text", "keys"}:
        if unit == "keys":
            if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
                raise UsageError("must be a list of texts")
            return tuple(raw)
        if not isinstance(raw, str) or not raw.strip():
            raise UsageError("must be a text that is not empty")
        if choices and raw not in choices:
            raise UsageError(f"{raw!r} is none of {', '.join(choices)}")
        return raw
    if unit == "flag":
        if not isinstance(raw, bool):
            raise UsageError("must be true or false")
        return raw
    if unit == "int":
        if isinstance(raw, bool) or not isinstance(raw, int) or not 0 < raw <= 10**9:
            raise UsageError(f"must be a positive whole number, not {_shown(raw)}")
        return raw
    if unit in {"ratio", "number"}:
        top = 1.0 if unit == "ratio" else 1e9
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 < raw <= top:
            raise UsageError(f"must be a number above 0 and up to {top:g}, not {_shown(raw)}")
        return float(raw)
    if unit == "peaks":
        return _peaks(raw)
    if not isinstance(raw, str):
        raise UsageError(
            f"{_shown(raw)} is a bare value; write a quantity with its unit as text, such as {_example(unit)}"
        )
    return parse_quantity(raw, unit)


def _shown(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _example(unit: str) -> str:
    examples = {"B": '"80 GB"', "B/s": '"3.35 TB/s"', "1/s": '"1830 MHz"', "s": '"0.6 us"', "W": '"700 W"'}
    return examples.get(unit, f'"1 {unit}"')


def _peaks(raw: Any) -> dict[str, float]:
    if not isinstance(raw, dict) or not raw:
        raise UsageError('must be a table of peaks, such as bf16 = "989.4 TFLOP/s"')
    problems, peaks = [], {}
    for precision, text in raw.items():
        if precision not in PRECISIONS:
            problems.append(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
        elif not isinstance(text, str):
            problems.append(f'{precision}: {_shown(text)} is a bare value; write for example "989.4 TFLOP/s"')
        else:
            try:
                peaks[precision] = parse_quantity(text, "FLOP/s")
            except UsageError as error:
                problems.append(f"{precision}: {error}")
    if problems:
        raise UsageError(*problems)
    return peaks


def parse_record(cls: type[R], key: str, data: dict[str, Any], label: str) -> R:
    """A record of `cls` from the parsed TOML `data`; DataError with all problems as `file: key: problem`."""
    problems: list[str] = []
    values: dict[str, Any] = {"key": key}
    known: dict[str, set[str]] = {"": {"source", "confidence"}}
    used: set[str] = {""}
    schema: Any = cls
    for name, meta in _facts(schema):
        path = meta["path"]
        group, last = _group(path), path.rsplit(".", 1)[-1]
        known.setdefault(group, {"source", "confidence"}).add(last)
        table = data.get(group, {}) if group else data
        if not isinstance(table, dict):
            continue  # reported below, once
        if last in table:
            used.add(group)
            try:
                values[name] = _value(table[last], meta["unit"], meta["choices"])
            except UsageError as error:
                problems += [f"{label}: {path}: {problem}" for problem in error.problems]
        elif not meta["optional"]:
            problems.append(f"{label}: {path}: missing ({meta['doc']})")
    sources: dict[str, str] = {}
    confidence: dict[str, str] = {}
    for group, keys in known.items():
        table = data.get(group, {}) if group else data
        if not isinstance(table, dict):
            problems.append(f"{label}: {group}: must be a table [{group}]")
            continue
        prefix = f"{group}." if group else ""
        names = keys if group else keys | (set(known) - {""})
        for entry in table:
            if entry not in names:
                near = nearest(entry, names, 1)
                said = f"; did you mean {near[0]}?" if near else ""
                problems.append(f"{label}: {prefix}{entry}: unknown key{said}")
        needs_source = group in used if group else "" in used and _plain_record(schema)
        for entry, into, choices in (("source", sources, ()), ("confidence", confidence, CONFIDENCE)):
            if entry in table:
                try:
                    into[group] = _value(table[entry], "text", choices)
                except UsageError as error:
                    problems.append(f"{label}: {prefix}{entry}: {error}")
            elif needs_source:
                problems.append(f"{label}: {prefix}{entry}: missing (each group of facts states its {entry})")
    if problems:
        raise DataError(*problems)
    return cls(**values | {"sources": sources, "confidence": confidence})


@functools.cache
def _plain_record(cls: Any) -> bool:
    """Whether the facts stand at the top of the file, so that its source does too."""
    return not any(_group(meta["path"]) for _, meta in _facts(cls))


# ---------------------------------------------------------------- files


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
    label = _label(path, root)
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise DataError(f"{label}: a link that leads out of its folder is not followed")
        if not path.is_file():
            raise DataError(f"{label}: not a regular file")
        with path.open("rb") as stream:  # bounded even when the file grows after a size check
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise DataError(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise DataError(f"{label}: larger than {MAX_FILE_BYTES >> 20} MiB; a database file is a few kilobytes")
    if b"\0" in raw:
        raise DataError(f"{label}: a binary file, not text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text (byte {error.start + 1})") from None
    if not text.strip():
        raise DataError(f"{label}: the file is empty")
    return text.replace("\r\n", "\n")


def _label(path: Path, root: Path) -> str:
    try:
        inside = path.relative_to(root).as_posix()
    except ValueError:
        inside = path.name
    return inside if root == shipped() else f"{root.as_posix()}/{inside}"


def read_toml(path: Path, root: Path) -> dict[str, Any]:
    """The table of a TOML file, with the guards of `read_text`."""
    text = read_text(path, root)
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{_label(path, root)}: not valid TOML: {str(error)[:200]}") from None


def list_files(dirs: Sequence[Path], folder: str) -> dict[str, tuple[Path, Path]]:
    """key → (file, its database folder) of one kind, without opening any file; later folders win."""
    found: dict[str, tuple[Path, Path]] = {}
    for root in dirs:
        place = root / folder
        if not place.is_dir():
            continue
        for name in _names(place, root):
            if name.endswith(".toml"):
                found[name.removesuffix(".toml")] = (place / name, root)
    return found


def _names(place: Path, root: Path) -> list[str]:
    try:
        if not place.resolve().is_relative_to(root.resolve()):
            raise DataError(f"{_label(place, root)}: a link that leads out of its folder is not followed")
        return sorted(name for name in os.listdir(place) if not name.startswith("."))
    except OSError as error:
        raise DataError(f"{_label(place, root)}: cannot be listed: {error.strerror}") from None


def load(cls: type[R], key: str, path: Path, root: Path) -> R:
    """One record from its file."""
    return parse_record(cls, key, read_toml(path, root), _label(path, root))


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
            table |= _read_aliases(path, root)
    return table


def _read_aliases(path: Path, root: Path) -> dict[str, str]:
    label = _label(path, root)
    lines = [line for line in read_text(path, root).splitlines() if line.strip() and not line.startswith("#")]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if not rows or rows[0] != ["spelling", "key"]:
        raise DataError(f"{label}: header: must be 'spelling,key'")
    bad = [f"{label}: row {n}: must be a spelling and a key" for n, row in enumerate(rows[1:], 2) if len(row) != 2]
    if bad:
        raise DataError(*bad)
    return {fold(spelling): key for spelling, key in rows[1:]}


# ---------------------------------------------------------------- references


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
            found |= _read_references(path, root)
    return found


def _read_references(path: Path, root: Path) -> dict[str, Reference]:
    label, problems, found = _label(path, root), [], {}
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


# ---------------------------------------------------------------- check and schema


def check(dirs: Iterable[str | os.PathLike[str]] = ()) -> list[str]:
    """All problems of the database folders `dirs` (the shipped one without any), as `file: key: problem`."""
    from gpucalc.database.hardware import cross_check

    wanted = [Path(d) for d in dirs]
    everything = database_dirs(wanted)
    roots = everything[-len(wanted) :] if wanted else everything[:1]
    problems: list[str] = []
    records: dict[str, dict[str, Any]] = {folder: {} for folder in KINDS}
    for root in roots:
        for name in _names(root, root):
            if name not in KINDS and name not in OTHER_ENTRIES:
                near = nearest(name, [*KINDS, *OTHER_ENTRIES], 1)
                said = f"; did you mean {near[0]}?" if near else ""
                problems.append(f"{_label(root / name, root)}: unknown entry of a database folder{said}")
        for folder, cls in KINDS.items():
            if os.path.lexists(root / folder) and not (root / folder).is_dir():
                problems.append(f"{_label(root / folder, root)}: must be a folder")
            elif not (root / folder).resolve().is_relative_to(root.resolve()):
                problems.append(f"{_label(root / folder, root)}: a link that leads out of its folder is not followed")
                return problems
            elif (root / folder).is_dir():
                odd = [name for name in _names(root / folder, root) if not name.endswith(".toml")]
                problems += [
                    f"{_label(root / folder / name, root)}: not a .toml file, so it is not read" for name in odd
                ]
            for key, (path, _) in list_files([root], folder).items():
                try:
                    records[folder][_label(path, root)] = load(cls, key, path, root)
                except UsageError as error:
                    problems += error.problems
        for name, reader in (("aliases.csv", _read_aliases), ("references.toml", _read_references)):
            if os.path.lexists(root / name):
                try:
                    reader(root / name, root)
                except UsageError as error:
                    problems += error.problems
    known = {folder: set(list_files(everything, folder)) for folder in KINDS}
    return problems + cross_check(records, known, everything, roots)


def schema_table() -> str:
    """The fields of every kind of file as a Markdown table, generated from the schema."""

    spoken = {"peaks": "FLOP/s by precision", "ratio": "0–1", "keys": "list", "1/s": "Hz", "flag": "true/false"}
    lines = ["| folder | key | unit or kind | required | meaning |", "|---|---|---|---|---|"]
    for folder, cls in KINDS.items():
        for _, meta in _facts(cls):
            kind = " · ".join(meta["choices"]) or spoken.get(meta["unit"], meta["unit"])
            need = "no" if meta["optional"] else "yes"
            lines.append(f"| {folder} | `{meta['path']}` | {kind} | {need} | {meta['doc']} |")
        groups = sorted({_group(meta["path"]) for _, meta in _facts(cls)} - {""})
        places = ", ".join(f"`{g}.source`" for g in groups) or "`source`"
        lines.append(f"| {folder} | {places} | text | yes | where the figures of the group come from |")
        places = ", ".join(f"`{g}.confidence`" for g in groups) or "`confidence`"
        lines.append(f"| {folder} | {places} | {' · '.join(CONFIDENCE)} | yes | how well the source supports them |")
    return "\n".join(lines) + "\n"
