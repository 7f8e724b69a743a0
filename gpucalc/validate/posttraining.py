"""Measured fine-tuning and reinforcement learning beside what is predicted for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.questions.tune.predict import evaluate_posttraining
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import FOLDER, shipped_rows

TABLE = "posttraining"
GROUPINGS = ("source", "method", "model", "gpu")
QUANTITIES = {"memory": "pred_peak_mem_gib", "time": "pred_step_time_s"}
LIMITS = {"memory": 0.08, "time": 0.15}
VIEWS = {"shipped": "", "family left out": "family", "source left out": "source"}


@dataclass(frozen=True)
class Row:
    """One measured row and predicted over measured, by quantity and view; None where there is no such thing."""

    record: Mapping[str, str]
    ratios: Mapping[str, Mapping[str, float | None]]
    error: str = ""

    def doubtful(self, quantity: str) -> bool:
        """Whether the row does not state what decides the quantity."""
        if (self.record.get("kind") or "").upper().startswith("ESTIMATE"):
            return True
        return (self.record.get("doubtful") or "").strip() in {quantity, "both"}


def _number(text: Any) -> float | None:
    try:
        return float(text) if text not in (None, "") else None
    except (TypeError, ValueError):
        return None


def measured(record: Mapping[str, str], quantity: str) -> tuple[float, str] | None:
    """The measured value, and the prediction it stands beside; rates count where no step time is printed."""
    if quantity == "memory":
        found = _number(record.get("measured_peak_mem_gib"))
        return (found, "pred_peak_mem_gib") if found else None
    step, rate = _number(record.get("measured_step_time_s")), _number(record.get("tokens_per_s_per_gpu"))
    if step:
        return step, "pred_step_time_s"
    return (rate, "pred_tokens_per_s_per_gpu") if rate else None


def ratio(record: Mapping[str, str], prediction: Mapping[str, Any], quantity: str) -> float | None:
    """Predicted over measured memory or time."""
    found = measured(record, quantity)
    if found is None:
        return None
    value, name = found
    predicted = _number(prediction.get(name))
    if not predicted:
        return None
    return value / predicted if name == "pred_tokens_per_s_per_gpu" else predicted / value


@functools.lru_cache(maxsize=1)
def held_out() -> dict[str, dict[str, str]]:
    """id → predictions with the row's model family, or its whole source, left out of the fit."""
    import csv
    import io

    root = files.shipped()
    path = root / "calibration" / "posttraining_held_out.csv"
    if not path.exists():
        return {}
    text = "\n".join(line for line in files.read_text(path, root).splitlines() if not line.startswith("#"))
    return {record["id"]: record for record in csv.DictReader(io.StringIO(text))}


def check_rows(records: Sequence[Mapping[str, str]], db: Database, left_out: bool = False) -> list[Row]:
    """Each record that holds a measurement, with its ratios."""
    kept = [r for r in records if measured(r, "memory") or measured(r, "time")]
    rows = []
    for record, prediction in zip(kept, evaluate_posttraining(kept, Context(db)), strict=True):
        ratios: dict[str, dict[str, float | None]] = {}
        for quantity in QUANTITIES:
            ratios[quantity] = {"shipped": ratio(record, prediction, quantity)}
            other = held_out().get(record.get("id") or "", {}) if left_out else {}
            for view, prefix in VIEWS.items():
                if prefix and other:
                    named = {n: other.get(f"{prefix}_{n}") for n in (*QUANTITIES.values(), "pred_tokens_per_s_per_gpu")}
                    ratios[quantity][view] = ratio(record, named, quantity)
        rows.append(Row(record, ratios, str(prediction.get("pred_error") or "")))
    return rows


def _line(name: str, quantity: str, rows: Sequence[Row]) -> Line:
    found: Line = {"group": name, "quantity": quantity}
    for view in VIEWS:
        ratios = [r.ratios[quantity].get(view) for r in rows]
        if not any(ratios):
            continue
        errors = errors_of(ratios)
        if view == "shipped":
            found |= {
                "rows": errors.rows,
                "median_pct": percent(errors.median),
                "p90_pct": percent(errors.p90),
                "bias_pct": percent(errors.bias),
            }
        else:
            found[f"{view.replace(' ', '_')}_pct"] = percent(errors.median)
    return found


def posttraining_report(
    records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10, shipped: bool = False
) -> Line:
    """Errors of memory and time over all trusted rows and by group; doubtful rows apart, each with its reason."""
    rows = check_rows(records, db, left_out=shipped)
    if not rows:
        raise UsageError("no row states measured_peak_mem_gib, measured_step_time_s or tokens_per_s_per_gpu")
    lines: list[Line] = []
    apart: list[Line] = []
    listed: list[tuple[float, Line]] = []
    for quantity in QUANTITIES:
        stated = [r for r in rows if measured(r.record, quantity)]
        trusted = [r for r in stated if not r.doubtful(quantity)]
        lines.append(_line("all", quantity, trusted))
        for key in by or ("source", "method"):
            groups: dict[str, list[Row]] = {}
            for row in trusted:
                groups.setdefault(row.record.get(key) or "not stated", []).append(row)
            lines += [_line(f"{key} {name}", quantity, part) for name, part in sorted(groups.items())]
        reasons: dict[str, list[Row]] = {}
        for row in stated:
            if row.doubtful(quantity):
                reasons.setdefault(row.record.get("doubt") or "an estimate of its authors", []).append(row)
        apart += [{**_line(reason, quantity, part), "rows": len(part)} for reason, part in sorted(reasons.items())]
        for row in trusted:
            found = row.ratios[quantity]["shipped"]
            if found:
                named = {n: row.record.get(n) for n in ("id", "source", "model", "method", "gpu", "n_gpus")}
                listed.append((abs(found - 1), {**named, "quantity": quantity, "error_pct": percent(found - 1)}))
    listed.sort(key=lambda pair: -pair[0])
    failed = [r for r in rows if r.error]
    return {
        "kind": TABLE,
        "rows": len(rows),
        "by_group": lines,
        "not_trusted": apart,
        "worst": [line for _, line in listed[:worst]],
        "no_prediction": [
            {"id": r.record.get("id"), "source": r.record.get("source"), "pred_error": r.error} for r in failed
        ],
        "targets": _targets(rows) if shipped else [],
    }


def _targets(rows: Sequence[Row]) -> list[Line]:
    found = []
    for quantity, limit in LIMITS.items():
        trusted = [r for r in rows if not r.doubtful(quantity)]
        for view in VIEWS:
            errors = errors_of([r.ratios[quantity].get(view) for r in trusted])
            if errors.rows:
                met = errors.median is not None and errors.median <= limit
                found.append(
                    {
                        "target": f"{quantity}, {view}",
                        "rows": errors.rows,
                        "median_pct": percent(errors.median),
                        "limit_pct": percent(limit),
                        "met": "yes" if met else "no",
                    }
                )
    return found


def shipped_posttraining() -> list[dict[str, str]]:
    """The shipped rows of post-training."""
    return shipped_rows(TABLE)


__all__ = ["FOLDER", "GROUPINGS", "check_rows", "posttraining_report", "shipped_posttraining"]
