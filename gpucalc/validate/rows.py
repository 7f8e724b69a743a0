"""What reports on rows of any kind share: a row beside its prediction, errors of groups, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.validate.metrics import errors_of, quantile
from gpucalc.validate.report import Line, percent


def group_line(group: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    """Errors of a group of rows."""
    found = errors_of(r["ratio"] for r in rows)
    ranged = [r["inside"] for r in rows if "inside" in r]
    return {
        "group": group,
        "rows": len(rows),
        "unpredicted": len(rows) - found.rows,
        "median_pct": percent(found.median),
        "p90_pct": percent(found.p90),
        "bias_pct": percent(found.bias),
        "inside_range": f"{sum(ranged)} of {len(ranged)}" if ranged else "",
    }


def compared(what: str, family: str, measured: float, predicted: float | None, why: str = "") -> dict[str, Any]:
    """A row beside its prediction; `why` where there is none."""
    ratio = None if predicted is None else predicted / measured
    return {"what": what, "family": family, "measured": measured, "ratio": ratio, "why": why}


def target(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    """A limit on the median error of rows that were left out."""
    found = errors_of(r["ratio"] for r in rows).median
    return {
        "target": name,
        "sense": "at most",
        "limit_left_out_pct": 100 * limit,
        "left_out_pct": percent(found),
        "missed": "left_out" if found is not None and found > limit else "",
    }


def number(row: Mapping[str, str], name: str) -> float:
    """A number above 0 of a row; DataError for anything else."""
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e18:
        raise DataError(f"{name} is {text!r}, expected a number above 0")
    return value


def median_of_others(values: Sequence[float], place: int) -> float | None:
    """The median of all values but one; None where there is no other."""
    rest = [v for i, v in enumerate(values) if i != place]
    return quantile(rest, 0.5) if rest else None
