"""All problems of a database at once, as `file: key: problem`: what `gpucalc hw check` prints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucalc.core.errors import UsageError, suggestion, unknown
from gpucalc.database import records as _records  # noqa: F401  registers the kinds of records
from gpucalc.database.files import aliases, database_dirs, entry_names, file_label, list_files, read_aliases
from gpucalc.database.reader import read_record
from gpucalc.database.references import read_references
from gpucalc.database.schema import KINDS

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


def check(dirs: Iterable[str | os.PathLike[str]] = ()) -> list[str]:
    """All problems of the database folders `dirs` (the shipped one without any), as `file: key: problem`."""
    wanted = [Path(d) for d in dirs]
    everything = database_dirs(wanted)
    roots = everything[-len(wanted) :] if wanted else everything[:1]
    problems: list[str] = []
    records: dict[str, dict[str, Any]] = {folder: {} for folder in KINDS}
    for root in roots:
        for name in entry_names(root, root):
            if name not in KINDS and name not in OTHER_ENTRIES:
                said = suggestion(name, [*KINDS, *OTHER_ENTRIES], 1, otherwise="")
                problems.append(f"{file_label(root / name, root)}: unknown entry of a database folder{said}")
        for folder, cls in KINDS.items():
            if os.path.lexists(root / folder) and not (root / folder).is_dir():
                problems.append(f"{file_label(root / folder, root)}: must be a folder")
            elif not (root / folder).resolve().is_relative_to(root.resolve()):
                problems.append(
                    f"{file_label(root / folder, root)}: a link that leads out of its folder is not followed"
                )
                return problems
            elif (root / folder).is_dir():
                odd = [name for name in entry_names(root / folder, root) if not name.endswith(".toml")]
                problems += [
                    f"{file_label(root / folder / name, root)}: not a .toml file, so it is not read" for name in odd
                ]
            for key, (path, _) in list_files([root], folder).items():
                try:
                    records[folder][file_label(path, root)] = read_record(cls, key, path, root)
                except UsageError as error:
                    problems += error.problems
        for name, reader in (("aliases.csv", read_aliases), ("references.toml", read_references)):
            if os.path.lexists(root / name):
                try:
                    reader(root / name, root)
                except UsageError as error:
                    problems += error.problems
    known = {folder: set(list_files(everything, folder)) for folder in KINDS}
    return problems + cross_check(records, known, everything, roots)


def cross_check(
    records: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, set[str]],
    everything: Sequence[Path],
    roots: Sequence[Path],
) -> list[str]:
    """Problems between files, and figures that contradict each other inside one; `records` is by file label."""
    problems: list[str] = []

    def must_exist(label: str, path: str, key: str, folder: str) -> None:
        if key and key not in known[folder]:
            problems.append(f"{label}: {path}: {unknown(folder.rstrip('s'), key, known[folder])}")

    for label, device in records.get("accelerators", {}).items():
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
