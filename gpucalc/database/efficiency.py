"""Kernel constants of a device: what `hardware_db/calibration/*.csv` says of it, of its generation, or of any device.

A device file states what the datasheet says; how much of it kernels reach stands here, with provenance:
measured (fitted to timings of this device), published (a cited figure), assumed (taken over from relatives).
"""

from __future__ import annotations

import csv
import functools
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.database import files

if TYPE_CHECKING:
    from gpucalc.database.records import Device

TABLES = ("gemm", "attention", "memory")
PROVENANCE = ("measured", "published", "assumed")
DEFAULT_KEY = "default"
ANY_PRECISION = "any"
# Columns of a table that are not constants.
DESCRIPTION = (
    "key",
    "precision",
    "provenance",
    "source",
    "rows",
    "fit_error",
    "heldout_error",
    "heldout_error_large",
    "left_out_error",
    "note",
)
# The row of the tables that a precision reads: what was measured for the format or its nearest relative.
TABLE_PRECISION = {
    "fp32": "bf16",
    "tf32": "bf16",
    "fp16": "bf16",
    "bf16": "bf16",
    "bf16-true": "bf16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "nvfp4",
}
# Bytes of an operand element with its share of the block scale (32 elements share one byte, nvfp4: 16).
ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "bf16-true": 2.0,
    "fp8": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
OUTPUT_BYTES = {"fp32": 4.0, "tf32": 4.0}  # the rest write 16 bit
# Where a datasheet does not state a cache: large enough for the small operands that stay on the chip.
ASSUMED_L2_BYTES = 32e6


@dataclass(frozen=True)
class CalibrationRow:
    """Constants of one key (device, generation or default) and precision; a constant it lacks comes from the next."""

    table: str
    key: str
    precision: str
    constants: dict[str, float]
    provenance: str
    source: str = ""
    description: dict[str, str] = field(default_factory=dict)


def parse_table(table: str, text: str, label: str) -> list[CalibrationRow]:
    """The rows of one calibration file; all problems in one DataError."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    reader = csv.DictReader(io.StringIO("\n".join(lines)))
    missing = {"key", "precision", "provenance"} - set(reader.fieldnames or ())
    if missing:
        raise DataError(f"{label}: no column {', '.join(sorted(missing))}")
    rows, problems = [], []
    for number, cells in enumerate(reader, 2):
        constants = {}
        for name, cell in cells.items():
            if name in DESCRIPTION or not cell:
                continue
            if name is None:
                problems.append(f"{label}: row {number}: more cells than the header")
                continue
            try:
                constants[name] = float(cell)
            except (ValueError, TypeError):
                problems.append(f"{label}: row {number}: {name}: {cell!r} is not a number")
                continue
            if not 0 <= constants[name] < float("inf"):
                problems.append(f"{label}: row {number}: {name}: {cell} is negative or not finite")
        if cells["provenance"] not in PROVENANCE:
            said = cells["provenance"]
            problems.append(f"{label}: row {number}: provenance {said!r} is none of {', '.join(PROVENANCE)}")
        said_of = {name: cells.get(name) or "" for name in DESCRIPTION}
        key, precision = said_of["key"], said_of["precision"] or ANY_PRECISION
        rows.append(CalibrationRow(table, key, precision, constants, said_of["provenance"], said_of["source"], said_of))
    if problems:
        raise DataError(*problems)
    return rows


@functools.lru_cache(maxsize=16)
def _tables(roots: tuple[Path, ...]) -> dict[str, dict[tuple[str, str], CalibrationRow]]:
    """table → (key, precision) → row; a later folder wins constant by constant."""
    found: dict[str, dict[tuple[str, str], CalibrationRow]] = {table: {} for table in TABLES}
    for root in roots:
        for table in TABLES:
            path = root / "calibration" / f"{table}.csv"
            if not os.path.lexists(path):
                continue
            label = f"calibration/{table}.csv" if root == files.shipped() else str(path)
            for row in parse_table(table, files.read_text(path, root), label):
                below = found[table].get((row.key, row.precision))
                constants = {**(below.constants if below else {}), **row.constants}
                found[table][row.key, row.precision] = CalibrationRow(
                    table, row.key, row.precision, constants, row.provenance, row.source, row.description
                )
    return found


def _keys(device: Device) -> list[str]:
    """Keys under which a device is looked up, the most specific first."""
    family = [f"{device.arch} GDDR"] if device.memory_type.upper().startswith("GDDR") else []
    return [device.key, *family, device.arch, DEFAULT_KEY]


def calibration_rows(
    device: Device, precision: str, table: str, dirs: Iterable[str | os.PathLike[str]] = ()
) -> list[CalibrationRow]:
    """The rows of `table` that apply to a device and precision, the most specific first."""
    return _applicable(device, precision, table, files.database_dirs(dirs))


def _applicable(device: Device, precision: str, table: str, roots: tuple[Path, ...]) -> list[CalibrationRow]:
    if precision not in TABLE_PRECISION:
        raise unknown("precision", precision, TABLE_PRECISION)
    rows = _tables(roots)[table]
    precisions = (TABLE_PRECISION[precision], ANY_PRECISION)
    return [rows[key, p] for key in _keys(device) for p in precisions if (key, p) in rows]


def kernel_constants(device: Device, precision: str, dirs: Iterable[str | os.PathLike[str]] = ()) -> dict[str, float]:
    """All constants that the kernel formulas need, under the names of their arguments.

    Also the device facts they read beside the peak and the memory bandwidth: `compute_units` and
    `l2_bytes` (neutral values where the datasheet states none), `element_bytes` and `output_bytes`.
    """
    return dict(_kernel_constants(device.key, device, precision, files.database_dirs(dirs)))


_CONSTANTS: dict[tuple[object, ...], dict[str, float]] = {}


def _kernel_constants(key: str, device: Device, precision: str, roots: tuple[Path, ...]) -> dict[str, float]:
    # Device holds mappings and cannot be hashed, so lru_cache cannot be used; these are the fields read.
    known = (key, device.arch, device.memory_type, device.compute_units, device.l2_bytes, precision, roots)
    if known not in _CONSTANTS:
        constants: dict[str, float] = {}
        for table in TABLES:
            for row in reversed(_applicable(device, precision, table, roots)):
                constants |= row.constants
        if not constants:
            raise UsageError("the hardware database holds no calibration")
        if device.compute_units is None:  # no notion of waves: the tile area is never idle
            constants["gemm_wave_exponent"] = 0.0
            constants["attention_tail"] = 0.0
        constants["compute_units"] = float(device.compute_units or 1)
        constants["l2_bytes"] = float(device.l2_bytes or ASSUMED_L2_BYTES)
        constants["element_bytes"] = ELEMENT_BYTES[precision]
        constants["output_bytes"] = OUTPUT_BYTES.get(precision, 2.0)
        _CONSTANTS[known] = constants
    return _CONSTANTS[known]


def kernel_provenance(device: Device, precision: str, dirs: Iterable[str | os.PathLike[str]] = ()) -> dict[str, str]:
    """What the constants of each table rest on: measured, published or assumed, by the most specific row."""
    found = {table: calibration_rows(device, precision, table, dirs) for table in TABLES}
    return {table: rows[0].provenance if rows else "assumed" for table, rows in found.items()}
