"""All problems of a database at once, as `file: key: problem`: what `gpucalc hw check` prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpucalc.core.errors import UsageError, suggestion, unknown
from gpucalc.database import defaults, documents, efficiency, tables
from gpucalc.database.entries import SHAPES
from gpucalc.database.files import aliases, entry_names, file_label, fold, list_files, read_aliases
from gpucalc.database.network import family
from gpucalc.database.reader import Database, read_layers, read_record
from gpucalc.database.records import Architecture
from gpucalc.database.schema import KINDS
from gpucalc.database.tables import EXCHANGE_KERNELS, EXCHANGE_PHASES, TABLES

# Folder → what its files end in.
FOLDERS = {
    **dict.fromkeys((*KINDS, *documents.KINDS, defaults.FOLDER), ".toml"),
    tables.FOLDER: ".csv",
}
OTHER_ENTRIES = ("aliases.csv", "claims.toml", "measurements", "references.toml", "README.md")
T = TypeVar("T")


def check(dirs: Iterable[str | os.PathLike[str]] = ()) -> list[str]:
    """All problems of the database folders `dirs` (the shipped one without any), as `file: key: problem`."""
    wanted = [Path(d) for d in dirs]
    db = Database(wanted)
    everything = db.dirs
    roots = everything[-len(wanted) :] if wanted else everything[:1]
    records: dict[str, dict[str, Any]] = {folder: {} for folder in KINDS}
    told: list[str] = []
    for root in roots:
        outside = list(_outside(root))
        told += [*_entries(root), *outside]
        if outside:  # nothing is read through such a link
            return told
        for folder, cls in KINDS.items():
            for key, (path, _) in list_files([root], folder).items():
                found = _told(told, read_record, cls, key, path, root)
                if found is not None:
                    records[folder][file_label(path, root)] = found
        if os.path.lexists(root / "aliases.csv"):
            _told(told, read_aliases, root / "aliases.csv", root)
        for file in SHAPES:
            _told(told, _layers, root, file)
        for name in TABLES:
            path = root / tables.FOLDER / f"{name}.csv"
            if os.path.lexists(path):
                rows = _told(told, tables.read_table, name, path, root)
                told += _scopes(db, name, rows or [], file_label(path, root))
        for folder in documents.KINDS:
            for name in list_files([root], folder):
                _told(told, db.document, folder, name)
    for name in ("run", "power", "training", "networks"):
        _told(told, defaults.defaults, db, name)
    told += _unread_defaults(db, roots)
    known = {folder: set(list_files(everything, folder)) for folder in KINDS}
    return list(dict.fromkeys([*told, *cross_check(records, known, roots)]))


def _told(problems: list[str], read: Callable[..., T], *arguments: Any) -> T | None:
    """What `read` reads; None and its sentences among `problems` where it finds mistakes."""
    try:
        return read(*arguments)
    except UsageError as error:
        problems += error.problems
        return None


def _generations(db: Database) -> list[Architecture]:
    """The architectures that can be read; what is wrong with the others is told of their files."""
    found = (_told([], db.architecture, key) for key in db.files("architectures"))
    return [one for one in found if one is not None]


def _layers(root: Path, file: str) -> list[tuple[str, dict[str, Any]]]:
    return list(read_layers([root], file))


def _entries(root: Path) -> Iterator[str]:
    """Files and folders of a database that nothing reads."""
    top = {**dict.fromkeys(FOLDERS, ""), **dict.fromkeys(OTHER_ENTRIES, "")}
    for name in entry_names(root, root):
        place = root / name
        if name not in top:
            yield f"{file_label(place, root)}: unknown entry of a database folder{suggestion(name, top, 1, '')}"
        elif name in FOLDERS and not place.is_dir():
            yield f"{file_label(place, root)}: must be a folder"
        elif name in FOLDERS and place.resolve().is_relative_to(root.resolve()):
            suffix = FOLDERS[name]
            known = [f"{t}.csv" for t in TABLES] if name == tables.FOLDER else []
            known += [f"{Path(file).name}.toml" for file in SHAPES] if name == defaults.FOLDER else []
            for file in entry_names(place, root):
                if file == "README.md":
                    continue
                if not file.endswith(suffix):
                    yield f"{file_label(place / file, root)}: not a {suffix} file, so it is not read"
                elif known and file not in known:
                    hint = suggestion(file, known, 1, "")
                    yield f"{file_label(place / file, root)}: no file of this name is read{hint}"


def _outside(root: Path) -> Iterator[str]:
    """Folders that are links to somewhere else."""
    for folder in FOLDERS:
        place = root / folder
        if place.is_dir() and not place.resolve().is_relative_to(root.resolve()):
            yield f"{file_label(place, root)}: a link that leads out of its folder is not followed"


def _scopes(db: Database, table: str, rows: Sequence[tables.Row], label: str) -> Iterator[str]:
    """Rows of a table for a device, generation or link that the database does not hold."""
    devices = {*db.files("accelerators")}
    generations = {one.name for one in _generations(db)}
    links = {key: family(key) for key in db.files("links")}
    if table in efficiency.TABLES:
        known = {*devices, *generations, *(f"{name} GDDR" for name in generations), efficiency.DEFAULT_KEY}
    elif table in {"collectives", "alltoall"}:
        known = {*devices, *links, *links.values(), "any", "training", "no-switch"}
    else:
        return
    for row in rows:
        place, *rest = row.key[0].split("/")
        if place not in known:
            yield f"{label}: {row.key[0]}: no such device, generation or link{suggestion(place, known, 1, '')}"
        if table == "alltoall" and (
            len(rest) != 2 or rest[0] not in EXCHANGE_KERNELS or rest[1] not in EXCHANGE_PHASES
        ):
            kernels, phases = " or ".join(EXCHANGE_KERNELS), " or ".join(EXCHANGE_PHASES)
            yield f"{label}: {row.key[0]}: expected PLACE/KERNEL/PHASE with {kernels} and {phases}"


def _unread_defaults(db: Database, roots: Sequence[Path]) -> Iterator[str]:
    """Values of an overlay's defaults that no question reads: names that the shipped file does not have."""
    families = {one.lookup.casefold() for one in _generations(db)}
    for name in ("run", "power", "training", "networks"):
        known = defaults.defaults(db.shipped(), name)
        for root in roots:
            try:
                layers = list(read_layers([root], f"{defaults.FOLDER}/{name}"))
            except UsageError:
                continue  # told already
            for label, table in layers:
                for key in table.get("values", {}):
                    stem, _, generation = key.rpartition("_")
                    if key not in known and not (stem in known and generation in families):
                        yield f"{label}: values.{key}: nothing reads it{suggestion(key, known, 1, '')}"


def cross_check(
    records: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, set[str]],
    roots: Sequence[Path],
) -> list[str]:
    """Problems between files, and figures that contradict each other inside one; `records` is by file label."""
    problems: list[str] = []

    def must_exist(label: str, path: str, key: str, folder: str) -> None:
        if key and key not in known[folder]:
            problems.append(f"{label}: {path}: {unknown(folder.rstrip('s'), key, known[folder])}")

    for label, device in records.get("accelerators", {}).items():
        if fold(device.arch) not in {fold(key) for key in known["architectures"]}:
            hint = suggestion(device.arch, known["architectures"], 1)
            problems.append(f"{label}: arch: no architecture {device.arch!r} in architectures/{hint}")
        must_exist(label, "default_node", device.default_node, "nodes")
        must_exist(label, "link.key", device.link, "links")
        must_exist(label, "host.key", device.pcie, "links")
        for precision in device.sparse_peak:
            if precision not in device.peak:
                problems.append(f"{label}: peak.sparse.{precision}: has no dense peak beside it")
            elif device.sparse_peak[precision] < device.peak[precision]:
                problems.append(f"{label}: peak.sparse.{precision}: below the dense peak; are the two swapped?")
        both = device.link_bidirectional
        if both and abs(both - 2 * device.link_bandwidth) > 0.01 * both:
            problems.append(f"{label}: link.bidirectional: is not twice link.per_direction")
        if not 0.85 <= device.usable_bytes / device.memory_bytes <= 1.1:
            problems.append(
                f"{label}: memory.usable: {device.usable_bytes:.4g} B is far from the label {device.memory_bytes:.4g} B"
            )
    for label, host in records.get("nodes", {}).items():
        must_exist(label, "scale_up", host.scale_up, "links")
        must_exist(label, "fabric", host.fabric, "links")
        must_exist(label, "topology", host.topology, "topologies")
        for key in host.accelerators:
            must_exist(label, "accelerators", key, "accelerators")
        if host.domain < host.gpus_per_node and host.scale_up_topology != "none":
            problems.append(f"{label}: domain: smaller than gpus_per_node")
    for root in roots:
        if os.path.lexists(root / "aliases.csv"):
            try:
                table = aliases([root])
            except UsageError:
                continue  # told already by the reader of that file
            for spelling, key in table.items():
                if key not in known["accelerators"]:
                    problems.append(
                        f"aliases.csv: {spelling}: names the accelerator {key!r}, which is in no database folder"
                    )
    return problems
