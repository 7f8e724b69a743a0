"""Measured serving points beside what is predicted for them.

Measured are mean TPOT and loaded TTFT at a stated concurrency, or an output rate. Where a row states latencies only,
the measured rate follows from them by Little's law. Views: with the shipped constants, and with the row's series
(model x GPU x engine) left out of the fit.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import evaluate_serving
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import shipped_rows

TABLES = ("serving", "serving_disaggregated", "serving_max_throughput")
GROUPINGS = ("model", "gpu", "framework", "precision", "source")
SHIPPED, LEFT_OUT = "shipped", "series left out"
FEW = 5  # points below which an order says nothing


@dataclass(frozen=True)
class Point:
    """One measured row; ratios are predicted over measured, by quantity and view."""

    record: Mapping[str, str]
    mixture: bool
    ratios: Mapping[str, Mapping[str, float | None]]
    measured: Mapping[str, float]
    predicted: Mapping[str, float | None]
    error: str = ""

    @property
    def sided(self) -> bool:
        """Whether prefill and decode have workers of their own."""
        return bool(self.record.get("decode_workers"))

    @property
    def series(self) -> str:
        """Model, GPU and engine; deployments with workers apart are series of their own."""
        names = [(self.record.get(n) or "not stated") for n in ("model", "gpu", "framework")]
        return " | ".join([*names, *(["apart"] if self.sided else [])])


def _number(text: Any) -> float | None:
    try:
        return float(text) if text not in (None, "") else None
    except (TypeError, ValueError):
        return None


def little(record: Mapping[str, Any], ttft: float | None, tpot: float | None) -> float | None:
    """Output tokens per second of a closed loop from its latencies in ms."""
    concurrency, osl = _number(record.get("concurrency")), _number(record.get("osl"))
    if not (ttft and tpot and concurrency and osl):
        return None
    return 1e3 * concurrency * osl / (ttft + tpot * (osl - 1))


@functools.lru_cache(maxsize=1)
def held_out() -> dict[str, tuple[float, float]]:
    """id → TTFT and TPOT in ms as predicted with the row's series left out of the fit."""
    return {
        row["id"]: (float(row["left_out_ttft_ms"]), float(row["left_out_tpot_ms"]))
        for row in _calibration("serving_held_out.csv")
    }


def _calibration(name: str) -> list[dict[str, str]]:
    root = files.shipped()
    path = root / "calibration" / name
    if not path.exists():
        return []
    text = "\n".join(line for line in files.read_text(path, root).splitlines() if not line.startswith("#"))
    return list(csv.DictReader(io.StringIO(text)))


def stated_errors() -> str:
    """The errors to be stated beside a prediction: medians on series left out of the fit."""
    found = {(r["family"], r["quantity"]): float(r["median_error"]) for r in _calibration("serving_errors.csv")}
    if not found:
        return ""
    names = (("dense", "dense models"), ("mixtures", "mixtures"))
    parts = [
        f"{title} TPOT {found[f, 'tpot']:.0%}, loaded TTFT {found[f, 'ttft']:.0%}, rate {found[f, 'rate']:.0%}"
        for f, title in names
        if (f, "tpot") in found
    ]
    return "median error on series left out of the fit: " + "; ".join(parts)


def points(records: Sequence[Mapping[str, str]], db: Database, shipped: bool = False) -> list[Point]:
    """Each record that holds a measurement, predicted."""
    measured = [_measured(r) for r in records]
    chosen = [(r, m) for r, m in zip(records, measured, strict=True) if m]
    if not chosen:
        raise UsageError("no row states measured_tpot_ms, measured_ttft_ms or measured_output_tok_s_total")
    apart = held_out() if shipped else {}
    found = []
    for (record, values), predicted in zip(chosen, evaluate_serving([r for r, _ in chosen], Context(db)), strict=True):
        own = {
            "tpot": _number(predicted["pred_tpot_ms"]),
            "ttft": _number(predicted["pred_ttft_ms"]),
            "rate": _number(predicted["pred_output_tok_s_total"]),
        }
        views: dict[str, dict[str, float | None]] = {SHIPPED: own}
        if record.get("id") in apart:
            ttft, tpot = apart[record["id"]]
            views[LEFT_OUT] = {"tpot": tpot, "ttft": ttft, "rate": little(record, ttft, tpot)}
        ratios = {
            quantity: {view: _over(of[quantity], value) for view, of in views.items()}
            for quantity, value in values.items()
        }
        found.append(Point(record, is_mixture(record), ratios, values, own, str(predicted["pred_error"] or "")))
    return found


def _over(predicted: float | None, measured: float) -> float | None:
    return predicted / measured if predicted and measured else None


def _measured(record: Mapping[str, str]) -> dict[str, float]:
    tpot, ttft = _number(record.get("measured_tpot_ms")), _number(record.get("measured_ttft_ms"))
    rate = _number(record.get("measured_output_tok_s_total")) or little(record, ttft, tpot)
    return {name: value for name, value in (("tpot", tpot), ("ttft", ttft), ("rate", rate)) if value}


@functools.lru_cache(maxsize=256)
def _mixture(name: str) -> bool:
    from gpucalc.models.model import load_model

    return load_model(name).is_moe


def is_mixture(record: Mapping[str, str]) -> bool:
    """Whether the row's model is a mixture of experts; False for an unknown one."""
    if _number(record.get("experts")):
        return True
    try:
        return _mixture(record.get("model") or "")
    except UsageError:
        return False


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of the ranks, ties sharing their mean rank.

    >>> round(spearman([1, 2, 3, 4], [10, 30, 20, 40]), 3)
    0.8
    """
    import numpy as np

    def ranks(values: Sequence[float]) -> Any:
        array = np.asarray(values, dtype=float)
        _, index, counts = np.unique(array, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return (ends - (counts - 1) / 2)[index]

    a, b = ranks(first), ranks(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def order_of(members: Sequence[Point], quantity: str, view: str = SHIPPED) -> float | None:
    """Spearman correlation of predicted and measured values of one group; None for a handful of points."""
    pairs = [(p.measured[quantity], p.ratios[quantity].get(view)) for p in members if quantity in p.ratios]
    known = [(m, m * r) for m, r in pairs if r]
    return spearman([m for m, _ in known], [r for _, r in known]) if len(known) >= FEW else None


def serving_report(
    records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10, shipped: bool = False
) -> Line:
    """Errors of TPOT, loaded TTFT and output rate: dense models, mixtures, and by series or the keys `by`."""
    found = points(records, db, shipped)
    groups: dict[str, list[Point]] = {
        "dense models": [p for p in found if not p.mixture],
        "mixtures": [p for p in found if p.mixture],
    }
    if sided := [p for p in found if p.sided]:
        groups = {name: [p for p in members if not p.sided] for name, members in groups.items()}
        groups["prefill and decode apart"] = sided
    for point in found:
        names = [f"{k} {point.record.get(k) or 'not stated'}" for k in by] or [point.series]
        for name in names:
            groups.setdefault(name, []).append(point)
    views = (SHIPPED, LEFT_OUT) if shipped else (SHIPPED,)
    lines = [line(name, members, view) for name, members in groups.items() for view in views if members]
    off = sorted((p for p in found if _main(p)), key=lambda p: -abs((_main(p) or 1) - 1))[:worst]
    return {
        "kind": "serving",
        "rows": len(found),
        "by_group": [x for x in lines if x["predicted"]],
        "worst": [
            {**{n: v for n, v in p.record.items() if n != "notes"}, "error_pct": percent((_main(p) or 1) - 1)}
            for p in off
        ],
        "no_prediction": [{**p.record, "pred_error": p.error} for p in found if p.error],
        **({"targets": targets(found)} if shipped else {}),
    }


def _main(point: Point) -> float | None:
    quantity = "tpot" if "tpot" in point.ratios else "rate"
    return point.ratios[quantity][SHIPPED] if quantity in point.ratios else None


def line(name: str, members: Sequence[Point], view: str) -> Line:
    """One group in one view."""
    tpot, ttft, rate = (
        errors_of(p.ratios[q].get(view) for p in members if q in p.ratios) for q in ("tpot", "ttft", "rate")
    )
    sizes = [abs(r - 1) for p in members if "tpot" in p.ratios and (r := p.ratios["tpot"].get(view))]
    order = order_of(members, "rate", view)
    return {
        "group": name,
        "view": view,
        "rows": len(members),
        "predicted": max(tpot.rows, rate.rows),
        "tpot_median_pct": percent(tpot.median),
        "tpot_mean_pct": percent(sum(sizes) / len(sizes)) if sizes else None,
        "tpot_bias_pct": percent(tpot.bias),
        "rate_median_pct": percent(rate.median),
        "ttft_median_pct": percent(ttft.median),
        "order": None if order is None else round(order, 3),
    }


def targets(found: Sequence[Point]) -> list[Line]:
    """What the predictions are meant to reach on series left out, and what they reach."""
    whole = [p for p in found if not p.sided]
    families = {
        "dense": [p for p in whole if not p.mixture],
        "mixtures": [p for p in whole if p.mixture],
        "workers apart": [p for p in found if p.sided],
    }
    series: dict[str, list[Point]] = {}
    for point in whole:
        if LEFT_OUT in point.ratios.get("tpot", {}):
            series.setdefault(point.series, []).append(point)
    orders = [o for members in series.values() if (o := order_of(members, "rate", LEFT_OUT)) is not None]
    table = [
        (f"{family}: {title}", _of_series(families[family], quantity), limit, False)
        for family, limits in LIMITS.items()
        for (quantity, title), limit in zip(QUANTITIES, limits, strict=True)
        if limit
    ]
    order = percent(sum(orders) / len(orders)) if orders else None
    table.append(("order of configurations, mean over series", order, 95.0, True))
    lines: list[Line] = []
    for name, value, limit, least in table:
        missed = value is not None and (value < limit if least else value > limit)
        lines.append(
            {
                "target": name,
                "sense": "at least" if least else "at most",
                "limit_left_out_pct": limit,
                "left_out_pct": value,
                "missed": LEFT_OUT if missed else "",
            }
        )
    return lines


QUANTITIES = (("tpot", "TPOT"), ("rate", "output rate"), ("ttft", "loaded TTFT"))
# Wanted of the mean of the series' medians: TPOT, rate, TTFT; deployments of two sides were never fitted.
LIMITS = {"dense": (6.0, 7.0, 15.0), "mixtures": (14.0, 14.0, 20.0), "workers apart": (15.0, 20.0, 0.0)}


def _of_series(members: Sequence[Point], quantity: str) -> float | None:
    """Mean over series of the median error, each series left out of the fit where it was in it."""
    medians = []
    for name in dict.fromkeys(point.series for point in members):
        own = [p for p in members if p.series == name and "tpot" in p.ratios]
        view = SHIPPED if own and own[0].sided else LEFT_OUT
        if (found := errors_of(p.ratios[quantity].get(view) for p in own if quantity in p.ratios).median) is not None:
            medians.append(found)
    return percent(sum(medians) / len(medians)) if medians else None


def shipped_serving() -> list[dict[str, str]]:
    """The measured serving rows that ship with the package."""
    rows = [row for table in TABLES for row in shipped_rows(table)]
    # A measurement that is listed twice weighs once; a source that states no load cannot be compared.
    return [row for row in rows if not row.get("repeat_of") and row.get("strict") != "False"]
