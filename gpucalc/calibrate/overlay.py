"""Writing fitted constants as an overlay of the hardware database, beside what the overlay holds already."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpucalc.calibrate.fitted import Fitted
from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.files import MIB, read_text
from gpucalc.database.tables import FITTED, KERNELS, TABLES

MOST_BYTES = MIB  # of a calibration file

_HEAD = (
    "# Fitted by `gpucalc hw calibrate` to the measurements that the column source names.\n"
    "# Errors are medians of |predicted / measured - 1|.\n"
)
Row = dict[str, str]


def write_overlay(folder: Path, constants: Sequence[Fitted]) -> list[Path]:
    """Write the calibration files of an overlay; rows of other scopes and constants that it holds stay.

    Returns the files written. Raises UsageError where the folder cannot be written.
    """
    tables = {c.table: [d for d in constants if d.table == c.table] for c in constants}
    place = folder / "calibration"
    contents = {}
    for table, fitted in tables.items():
        path = place / f"{table}.csv"
        merge = _collectives if table == "collectives" else _kernels
        contents[path] = merge(existing_rows(path, "scope" if table == "collectives" else "key"), fitted)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, (columns, rows) in contents.items():
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            path.write_text(_HEAD + text.getvalue(), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write the overlay {str(folder)!r}: {reason}") from None
    return list(contents)


def existing_rows(path: Path, key: str) -> list[Row]:
    """The rows of a table that an overlay holds already; DataError where it cannot be read or has no column `key`."""
    if not path.exists():
        return []
    text = read_text(path, MOST_BYTES, "a calibration file")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    if rows and key not in rows[0]:
        raise DataError(f"{path}: no column {key}; not a calibration file, so it is not written over")
    return [{n: v or "" for n, v in row.items() if n is not None} for row in rows]


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if math.isfinite(value) else "inf"


def _collectives(existing: Iterable[Row], fitted: Sequence[Fitted]) -> tuple[list[str], list[Row]]:
    new = {(c.scope, c.constant) for c in fitted}
    rows = [row for row in existing if (row.get("scope"), row.get("constant")) not in new]
    for c in fitted:
        rows.append(
            {
                "scope": c.scope,
                "constant": c.constant,
                "value": _number(c.after, 5),
                "unit": c.unit,
                "provenance": "measured",
                "source": c.source,
                "n": str(c.rows),
                "error_fit": _number(c.error_fit),
                "error_held_out": _number(c.error_held_out),
                "note": c.note,
            }
        )
    return list(TABLES["collectives"].columns), rows


def _kernels(existing: Iterable[Row], fitted: Sequence[Fitted]) -> tuple[list[str], list[Row]]:
    """Tables with a row per key and precision, and a column per constant."""
    rows = {(row.get("key", ""), row.get("precision", "")): row for row in existing}
    for c in fitted:
        row = rows.setdefault((c.scope, c.precision), {})
        row |= {
            "key": c.scope,
            "precision": c.precision,
            "provenance": "measured",
            c.constant: _number(c.after, 5),
            "rows": str(c.rows),
            "fit_error": _number(c.error_fit),
            "heldout_error": _number(c.error_held_out),
            "source": c.source,
            "note": c.note,
        }
    names = {name: None for row in rows.values() for name in row}
    described = {**KERNELS, **FITTED}
    first, last = ("key", "precision", "provenance"), ("rows", "fit_error", "heldout_error", "source", "note")
    constants = [n for n in names if n not in described]
    rest = [n for n in names if n in described and n not in first and n not in last]
    return [*first, *constants, *rest, *last], list(rows.values())
