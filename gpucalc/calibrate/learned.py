"""Writing what runs taught as an overlay of the hardware database, beside what the overlay holds already."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpucalc.calibrate.overlay import existing_rows
from gpucalc.core.errors import UsageError
from gpucalc.database.tables import TABLES
from gpucalc.jobs.learned import TABLE

if TYPE_CHECKING:
    from gpucalc.questions.learn import Learned


def write(folder: Path, lesson: Sequence[Learned], source: str, date: str) -> Path:
    """Write `calibration/learned.csv` of an overlay; what it holds of other GPUs stays.

    Raises UsageError where it cannot be written.
    """
    path = folder / "calibration" / f"{TABLE}.csv"
    replaced = {(one.gpu, one.quantity) for one in lesson}
    kept = [row for row in existing_rows(path, "gpu") if (row.get("gpu"), row.get("quantity")) not in replaced]
    rows = [*kept, *(row for one in lesson for row in _rows(one, source, date))]
    columns = list(TABLES[TABLE].columns)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        head = "# Learned by `gpucalc learn` from measured runs: logarithms of factors, and their covariance.\n"
        path.write_text(head + text.getvalue(), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write the overlay {str(folder)!r}: {reason}") from None
    return path


def _rows(one: Learned, source: str, date: str) -> list[dict[str, str]]:
    p = one.posterior
    start = {"gpu": one.gpu, "quantity": one.quantity, "source": source, "date": date}
    rows = [
        {**start, "kind": "rule", "name": name, "value": f"{value:.6g}"}
        for name, value in (("noise", p.noise), ("spread", p.spread), ("runs", p.runs))
    ]
    rows += [
        {**start, "kind": "mean", "name": name, "value": f"{float(value):.6g}"}
        for name, value in zip(p.names, p.mean, strict=True)
    ]
    for i, name in enumerate(p.names):
        for j in range(i, len(p.names)):
            first, second = sorted((name, p.names[j]))
            value = f"{float(p.covariance[i, j]):.6g}"
            rows.append({**start, "kind": "covariance", "name": first, "other": second, "value": value})
    return rows
