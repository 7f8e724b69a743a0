"""Kernel constants of a device: what `hardware_db/calibration/*.csv` says of it, of its generation, or of any device.

A device file states what the datasheet says; how much of it kernels reach stands here, with provenance:
measured (fitted to timings of this device), published (a cited figure), assumed (taken over from relatives).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucalc.core.errors import UsageError, unknown
from gpucalc.database import defaults

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.database.tables import Row

TABLES = ("gemm", "attention", "memory")
DEFAULT_KEY = "default"
ANY_PRECISION = "any"
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


def _keys(device: Device) -> list[str]:
    """Keys under which a device is looked up, the most specific first."""
    generation = device.architecture
    family = [f"{device.arch} GDDR"] if device.memory_type.upper().startswith("GDDR") else []
    relatives = [generation.lookup] if generation.lookup not in {"", device.arch} else []
    return [device.key, *family, device.arch, *relatives, DEFAULT_KEY]


def calibration_rows(device: Device, precision: str, table: str, db: Database) -> list[Row]:
    """The rows of `table` that apply to a device and precision, the most specific first."""
    if precision not in TABLE_PRECISION:
        raise unknown("precision", precision, TABLE_PRECISION)
    rows = db.table(table)
    precisions = (TABLE_PRECISION[precision], ANY_PRECISION)
    return [rows[key, p] for key in _keys(device) for p in precisions if (key, p) in rows]


def kernel_constants(device: Device, precision: str, db: Database) -> dict[str, float]:
    """All constants that the kernel formulas need, under the names of their arguments.

    Also the device facts they read beside the peak and the memory bandwidth: `compute_units` and
    `l2_bytes` (neutral values where the datasheet states none), `element_bytes` and `output_bytes`.
    """
    # Device holds mappings and cannot be hashed; these are the fields read.
    known = ("kernels", device.key, device.arch, device.memory_type, device.compute_units, device.l2_bytes, precision)
    return dict(db.kept(known, lambda: _kernel_constants(device, precision, db)))


def _kernel_constants(device: Device, precision: str, db: Database) -> dict[str, float]:
    constants: dict[str, float] = {}
    for table in TABLES:
        for row in reversed(calibration_rows(device, precision, table, db)):
            constants |= row.values
    if not constants:
        raise UsageError("the hardware database holds no calibration")
    if device.compute_units is None:  # no notion of waves: the tile area is never idle
        constants["gemm_wave_exponent"] = 0.0
        constants["attention_tail"] = 0.0
    assumed = defaults.defaults(db, "training")
    constants["compute_units"] = float(device.compute_units or 1)
    constants["l2_bytes"] = float(device.l2_bytes or assumed["l2_bytes"].value)
    constants["element_bytes"] = ELEMENT_BYTES[precision]
    constants["output_bytes"] = OUTPUT_BYTES.get(precision, 2.0)
    return constants


def kernel_provenance(device: Device, precision: str, db: Database) -> dict[str, str]:
    """What the constants of each table rest on: measured, published or assumed, by the most specific row."""
    found = {table: calibration_rows(device, precision, table, db) for table in TABLES}
    return {table: rows[0].texts["provenance"] if rows else "assumed" for table, rows in found.items()}
