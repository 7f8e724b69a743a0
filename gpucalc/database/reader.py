"""The reader of `hardware_db`: every file of the database is found, overlaid and read here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from gpucalc.core.errors import unknown
from gpucalc.database import files
from gpucalc.database.records import Device, Link, Node, Topology
from gpucalc.database.schema import parse_record

R = TypeVar("R")
_MAKER = re.compile("^(nvidia|amd|intel|google)?(tesla|instinct|geforce)?")  # what people put before a name


def read_record(cls: type[R], key: str, path: Path, root: Path) -> R:
    """One record from its file."""
    return parse_record(cls, key, files.read_toml(path, root), files.file_label(path, root))


class Database:
    """The hardware database: the shipped one, GPUCALC_DB, then `dirs`, later ones winning file by file.

    Looking up one key opens one file.
    """

    def __init__(self, dirs: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Resolve the folders; no file is opened yet."""
        self.dirs: tuple[Path, ...] = files.database_dirs(dirs)
        self._files: dict[str, dict[str, tuple[Path, Path]]] = {}
        self._records: dict[tuple[str, str], Any] = {}
        self._aliases: dict[str, str] | None = None

    def _listing(self, folder: str) -> dict[str, tuple[Path, Path]]:
        if folder not in self._files:
            self._files[folder] = files.list_files(self.dirs, folder)
        return self._files[folder]

    def _load(self, cls: type[R], folder: str, key: str) -> R:
        if (folder, key) not in self._records:
            self._records[folder, key] = read_record(cls, key, *self._listing(folder)[key])
        found: R = self._records[folder, key]
        return found

    def _named(self, cls: type[R], folder: str, kind: str, name: str) -> R:
        keys = self._listing(folder)
        wanted = files.fold(name)
        key = name if name in keys else next((k for k in keys if files.fold(k) == wanted), None)
        if key is None:
            raise unknown(kind, name, keys)
        return self._load(cls, folder, key)

    def device_key(self, name: str) -> str:
        """The key that a spelling of an accelerator stands for."""
        keys = self._listing("accelerators")
        if name in keys:
            return name
        if self._aliases is None:
            self._aliases = files.aliases(self.dirs)
        folded = {files.fold(key): key for key in keys}
        wanted = files.fold(name)
        bare = _MAKER.sub("", wanted)
        for spelling in (wanted, bare):
            key = folded.get(spelling) or self._aliases.get(spelling)
            if key in keys:
                return str(key)
        raise unknown("GPU", name, keys, "`gpucalc hw list` shows all")

    def device(self, name: str) -> Device:
        """The accelerator of a key or alias; case and punctuation do not matter."""
        return self._load(Device, "accelerators", self.device_key(name))

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
        return [self._load(Device, "accelerators", key) for key in sorted(self._listing("accelerators"))]

    def nodes(self) -> list[Node]:
        """All nodes, sorted by key."""
        return [self._load(Node, "nodes", key) for key in sorted(self._listing("nodes"))]

    def links(self) -> list[Link]:
        """All links, sorted by key."""
        return [self._load(Link, "links", key) for key in sorted(self._listing("links"))]

    def topologies(self) -> list[Topology]:
        """All topologies, sorted by key."""
        return [self._load(Topology, "topologies", key) for key in sorted(self._listing("topologies"))]
