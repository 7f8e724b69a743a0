"""The reader of `hardware_db`: every file of the database is found, overlaid and read here."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.database import documents, files, tables
from gpucalc.database.documents import Document
from gpucalc.database.entries import SHAPES
from gpucalc.database.records import Architecture, Device, Link, Node, Topology
from gpucalc.database.schema import parse_record
from gpucalc.database.shapes import problems
from gpucalc.database.tables import Row

R = TypeVar("R")
V = TypeVar("V")
_MAKER = re.compile("^(nvidia|amd|intel|google)?(tesla|instinct|geforce)?")  # what people put before a name


class Database:
    """The hardware database: the shipped one, GPUCALC_DB, then `dirs`, later ones winning.

    One rule overlays everything: of what one file describes (a device, a node, a profile …) the file of the last folder
    is taken; of files that hold many things (tables, defaults, aliases, references, claims) each entry of the last
    folder that states it. A file is opened when it is asked for, and read once.
    """

    def __init__(self, dirs: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Resolve the folders; no file is opened yet."""
        self.dirs: tuple[Path, ...] = files.database_dirs(dirs)
        self._kept: dict[Hashable, Any] = {}

    def kept(self, key: Hashable, make: Callable[[], V]) -> V:
        """What `make` made of files when it was first asked for under this key; it lives as long as the database."""
        if key not in self._kept:
            self._kept[key] = make()
        found: V = self._kept[key]
        return found

    def shipped(self) -> Database:
        """The database without overlays."""
        if len(self.dirs) == 1:
            return self
        return self.kept("shipped", _shipped)

    # ------------------------------------------------------------ files

    def files(self, folder: str) -> dict[str, tuple[Path, Path]]:
        """key → (file, its database folder) of a folder of TOML files, none of them opened."""
        return self.kept(("files", folder), lambda: files.list_files(self.dirs, folder))

    def layers(self, file: str) -> tuple[tuple[str, dict[str, Any]], ...]:
        """(label, table) of a TOML file that holds many entries, from each folder that has it, the last one last."""
        return self.kept(("layers", file), lambda: tuple(read_layers(self.dirs, file)))

    def table(self, name: str) -> dict[tuple[str, ...], Row]:
        """key → row of a table of constants (`calibration/NAME.csv`); DataError with all problems of its files."""
        return self.kept(("table", name), lambda: _overlaid(self.dirs, name))

    def document(self, folder: str, name: str) -> Document:
        """A profile, engine or recipe with what it extends.

        Raises UsageError for an unknown name, DataError for malformed files.
        """
        return self.kept(("document", folder, name), lambda: documents.resolve(self, folder, name))

    def heads(self, folder: str) -> list[Document]:
        """What every profile, engine or recipe states of itself: title, words, dates."""
        return self.kept(("heads", folder), lambda: [documents.head(self, folder, name) for name in self.files(folder)])

    # ------------------------------------------------------------ records

    def _load(self, cls: type[R], folder: str, key: str) -> R:
        return self.kept((folder, key), lambda: read_record(cls, key, *self.files(folder)[key]))

    def _named(self, cls: type[R], folder: str, kind: str, name: str) -> R:
        keys = self.files(folder)
        wanted = files.fold(name)
        key = name if name in keys else next((k for k in keys if files.fold(k) == wanted), None)
        if key is None:
            raise unknown(kind, name, keys)
        return self._load(cls, folder, key)

    def device_key(self, name: str) -> str:
        """The key that a spelling of an accelerator stands for."""
        keys = self.files("accelerators")
        if name in keys:
            return name
        aliases = self.kept("aliases", lambda: files.aliases(self.dirs))
        folded = {files.fold(key): key for key in keys}
        wanted = files.fold(name)
        bare = _MAKER.sub("", wanted)
        for spelling in (wanted, bare):
            key = folded.get(spelling) or aliases.get(spelling)
            if key in keys:
                return str(key)
        raise unknown("GPU", name, keys, "`gpucalc hw list` shows all")

    def device(self, name: str) -> Device:
        """The accelerator of a key or alias, with its architecture; case and punctuation do not matter."""
        key = self.device_key(name)
        return self.kept(("device", key), lambda: self._device(key))

    def _device(self, key: str) -> Device:
        device = self._load(Device, "accelerators", key)
        try:
            return dataclasses.replace(device, architecture=self.architecture(device.arch))
        except UsageError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{files.file_label(*self.files('accelerators')[key])}: arch: {error}") from None

    def architecture(self, name: str) -> Architecture:
        """The generation of a name."""
        return self._named(Architecture, "architectures", "architecture", name)

    def node(self, name: str) -> Node:
        """The node of a key."""
        return self._named(Node, "nodes", "node", name)

    def link(self, name: str) -> Link:
        """The link of a key."""
        return self._named(Link, "links", "link", name)

    def topology(self, name: str) -> Topology:
        """The network topology of a key."""
        return self._named(Topology, "topologies", "topology", name)

    def devices(self) -> list[Device]:
        """All accelerators, sorted by key."""
        return [self.device(key) for key in sorted(self.files("accelerators"))]

    def architectures(self) -> list[Architecture]:
        """All generations, sorted by key."""
        return [self._load(Architecture, "architectures", key) for key in sorted(self.files("architectures"))]

    def nodes(self) -> list[Node]:
        """All nodes, sorted by key."""
        return [self._load(Node, "nodes", key) for key in sorted(self.files("nodes"))]

    def links(self) -> list[Link]:
        """All links, sorted by key."""
        return [self._load(Link, "links", key) for key in sorted(self.files("links"))]

    def topologies(self) -> list[Topology]:
        """All topologies, sorted by key."""
        return [self._load(Topology, "topologies", key) for key in sorted(self.files("topologies"))]


def opened(dirs: Iterable[str | os.PathLike[str]] = ()) -> Database:
    """The database of some folders, the same one for the same folders: for a program that asks again and again."""
    return _opened(tuple(os.fspath(part) for part in dirs), os.environ.get(files.ENVIRONMENT, ""))


@functools.lru_cache(maxsize=8)
def _opened(dirs: tuple[str, ...], environment: str) -> Database:
    return Database(dirs)


@functools.cache
def _shipped() -> Database:
    database = Database.__new__(Database)
    database.dirs, database._kept = (files.shipped(),), {}
    return database


def read_record(cls: type[R], key: str, path: Path, root: Path) -> R:
    """One record from its file."""
    return parse_record(cls, key, files.read_toml(path, root), files.file_label(path, root))


def read_layers(dirs: Sequence[Path], file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(label, table) of a TOML file in each folder that has it. DataError where one is not of its shape."""
    for root in dirs:
        path = root / f"{file}.toml"
        if os.path.lexists(path):
            label, table = files.file_label(path, root), files.read_toml(path, root)
            if file in SHAPES and (found := list(problems(SHAPES[file], table, label))):
                raise DataError(*found)
            yield label, table


def _overlaid(dirs: Sequence[Path], name: str) -> dict[tuple[str, ...], Row]:
    found: dict[tuple[str, ...], Row] = {}
    for root in dirs:
        path = root / tables.FOLDER / f"{name}.csv"
        if os.path.lexists(path):
            for row in tables.read_table(name, path, root):
                found[row.key] = row.over(found.get(row.key))
    return found
