"""Published goodput, storage results and node power beside what is predicted for them.

Energies that are hours times a nominal power in their source are left out: they would confirm anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.ledger import Columns
from gpucalc.database import defaults as db_defaults
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import shipped_rows

# kind → columns that may be grouped by.
KINDS = {
    "goodput": ("metric", "judged"),
    "storage": ("workload", "gpu", "org"),
    "energy": ("gpu", "kind", "side"),
}
TABLES = {kind: f"cluster/{kind}" for kind in KINDS}
DC_SHARE = 0.98  # power behind the power supplies over that at the wall
STORAGE_LIMIT, STORAGE_MOST, POWER_LIMIT, GOODPUT_POINTS = 0.03, 0.10, 0.04, 4.0
WIDEST_POINTS = 40.0  # of a goodput whose failure rate is stated
STORE_KEYS = ("org", "system", "hosts", "workload")
UNBOUND = 1e9  # GB/s
BOUNDING = 0.95  # of the demand of a row, from which another run shows a limit of the store
SHORT_RUN = 600.0  # s, below which the idle ends of a log count
HOST_LINK = 63e9  # B/s, where the accelerator is not in the database


def shipped(kind: str) -> list[dict[str, str]]:
    """The published rows of a kind."""
    return shipped_rows(TABLES[kind])


def cluster_report(
    kind: str, records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10
) -> Line:
    """Errors of a kind in all and by group, the rows farthest off, and the targets."""
    rows = [dict(r) for r in records]
    if not rows:
        raise UsageError(f"no rows of kind {kind}")
    return _REPORTS[kind](rows, db, by or KINDS[kind], worst)


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e18:
        raise DataError(f"{name} is {text!r}, expected a number of 0 or more")
    return value


def _needed(row: Mapping[str, str], name: str) -> float:
    value = _number(row, name)
    if not value:
        raise DataError(f"a row lacks {name}")
    return value


def _line(group: str, ratios: Sequence[float | None]) -> Line:
    found = errors_of(ratios)
    return {
        "group": group,
        "rows": len(ratios),
        "unpredicted": len(ratios) - found.rows,
        "median_pct": percent(found.median),
        "p90_pct": percent(found.p90),
        "bias_pct": percent(found.bias),
    }


def _groups(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[Line]:
    lines = [_line("all", [r["ratio"] for r in rows])]
    for name in by:
        for value in dict.fromkeys(str(r.get(name) or "not stated") for r in rows):
            mine = [r["ratio"] for r in rows if str(r.get(name) or "not stated") == value]
            lines.append(_line(f"{name} {value}", mine))
    return lines


def _worst(rows: Sequence[Mapping[str, Any]], names: Sequence[str], count: int) -> list[Line]:
    off = sorted((r for r in rows if r["ratio"]), key=lambda r: -abs(r["ratio"] - 1))[:count]
    return [{**{n: r.get(n) for n in names}, "error_pct": percent(r["ratio"] - 1)} for r in off]


def _target(name: str, limit: float, found: float | None, held_out: float | None) -> Line:
    missed = [v for v, f in (("shipped", found), ("left out", held_out)) if f is not None and f > limit]
    return {
        "target": name,
        "sense": "at most",
        "limit_pct": 100 * limit,
        "shipped_pct": percent(found),
        "left_out_pct": percent(held_out),
        "missed": ", ".join(missed),
    }


# ---------------------------------------------------------------- storage


def predicted_samples(
    rows: Sequence[Mapping[str, str]], db: Database, stores: Sequence[float], waits: Sequence[float | None] = ()
) -> list[float]:
    """Samples per second of rows, from the GB/s of a store and the workload; no measured utilisation is read.

    `waits`: what accelerators wait of the compute time although the store keeps up; the workload's own without it.
    """
    from gpucalc.questions.storage import Question, predict

    if not rows:
        return []
    questions = [
        Question(
            gpu=row["gpu"],
            n_gpus=int(_needed(row, "n_gpus")),
            workload=row["workload"],
            read_bandwidth=store * 1e9,
            wait=wait,
        )
        for row, store, wait in zip(rows, stores, waits or [None] * len(rows), strict=True)
    ]
    return [float(v) for v in np.asarray(predict(questions, db)["metric/samples"])]


def _storage(rows: list[dict[str, str]], db: Database, by: Sequence[str], worst: int) -> Line:
    own = predicted_samples(rows, db, [_needed(r, "read_gb_per_s") for r in rows])
    unlimited = predicted_samples(rows, db, [UNBOUND] * len(rows), [0.0] * len(rows))
    known = [(row, rate) for row in rows if (rate := _other_rate(row, rows, db))]
    told = [r for r, _ in known]
    held = predicted_samples(told, db, [rate for _, rate in known], [_other_wait(r, rows, db) for r in told])
    checked: list[dict[str, Any]] = []
    for row, pred in zip(rows, own, strict=True):
        checked.append({**row, "pred_samples_per_s": pred, "ratio": pred / _needed(row, "samples_per_s")})
    left_out = [p / _needed(r, "samples_per_s") for (r, _), p in zip(known, held, strict=True)]
    free = [p / _needed(r, "samples_per_s") for r, p in zip(rows, unlimited, strict=True)]
    lines = _groups(checked, by)
    lines.append(_line("rate from the store's other runs, waiting from other stores", left_out))
    apart = [r["ratio"] for r in checked if "fio" in (r.get("notes") or "")]
    if apart:
        lines.append(_line("the store's rate from a benchmark of its own", apart))
    lines.append(_line("neither a store nor waiting: what leaving both out costs", free))
    return {
        "kind": "storage",
        "rows": len(rows),
        "by_group": lines,
        "worst": _worst(
            checked, ("org", "system", "workload", "gpu", "n_gpus", "samples_per_s", "pred_samples_per_s"), worst
        ),
        "targets": [
            _target(
                "samples per second from the store's GB/s",
                STORAGE_LIMIT,
                errors_of([r["ratio"] for r in checked]).median,
                errors_of(left_out).median,
            ),
            _target(
                "the same, nine rows of ten",
                STORAGE_MOST,
                errors_of([r["ratio"] for r in checked]).p90,
                errors_of(left_out).p90,
            ),
        ],
    }


def _demand(row: Mapping[str, str], db: Database) -> float:
    """GB/s that the accelerators of a row would read if they never waited."""
    known = db_defaults.workload(db, row["workload"])
    from gpucalc.questions.storage import compute_time_of

    time, ratio, _ = compute_time_of(known, db.device(row["gpu"]), db)
    each = known.batch * known.sample_bytes / (time / ratio**known.speed_exponent)
    return _needed(row, "n_gpus") * each / 1e9


def _other_rate(row: Mapping[str, str], rows: Sequence[Mapping[str, str]], db: Database) -> float | None:
    """The highest GB/s of the same store in its other runs of the workload: a limit if those asked for as much.

    Runs of fewer accelerators only say that the store gives that much at least.
    """
    others = [o for o in rows if o is not row and all(o.get(k) == row.get(k) for k in STORE_KEYS)]
    if not others:
        return None
    asked = _demand(row, db)
    bounding = [_needed(o, "read_gb_per_s") for o in others if _demand(o, db) >= BOUNDING * asked]
    return max(bounding, default=UNBOUND)


def _other_wait(row: Mapping[str, str], rows: Sequence[Mapping[str, str]], db: Database) -> float | None:
    """Median of what accelerators wait on other stores with the same workload, over their compute time."""
    found = [
        _demand(o, db) / _needed(o, "read_gb_per_s") - 1
        for o in rows
        if o.get("workload") == row.get("workload") and o.get("system") != row.get("system")
    ]
    return max(0.0, float(np.median(found))) if found else None


# ---------------------------------------------------------------- power


def _energy(rows: list[dict[str, str]], db: Database, by: Sequence[str], worst: int) -> Line:
    from gpucalc.questions.power import node_load_watts

    checked: list[dict[str, Any]] = []
    for row in rows:
        device = db.device(row["gpu"])
        duration = _number(row, "duration_s")
        watts, low, high = node_load_watts(
            device,
            _needed(row, "gpus_per_node"),
            db,
            load="inference" if row.get("kind") == "inference" else "training",
            duration=duration if row.get("kind") != "inference" and duration and duration < SHORT_RUN else None,
        )
        share = DC_SHARE if row.get("side") == "dc" else 1.0
        measured = _needed(row, "node_w")
        checked.append(
            {
                **row,
                "arch": device.arch.split()[0],
                "board_w": _needed(row, "gpus_per_node") * (device.tdp_watts or 0.0) * share,
                "pred_node_w": watts * share,
                "inside": low * share <= measured <= high * share,
                "ratio": watts * share / measured,
            }
        )
    judged = [r for r in checked if (r.get("judged") or "yes") == "yes"]
    rest = [r for r in checked if r not in judged]
    left_out = _left_out_ratios(judged)
    lines = _groups(judged, by)
    lines.append(_line("load factor from the other architectures alone", left_out))
    for reason in dict.fromkeys(str(r.get("reason") or "not judged") for r in rest):
        apart = [r for r in rest if str(r.get("reason")) == reason]
        held = sum(bool(r["inside"]) for r in apart)
        lines.append(
            {
                **_line(f"apart: {reason}", [r["ratio"] for r in apart]),
                "inside_range": f"{held} of {len(apart)}",
            }
        )
    lines.append(_line("energy of the GPUs of whole runs", training_energy_ratios(db)))
    inside = sum(bool(r["inside"]) for r in judged)
    lines[0] = {**lines[0], "inside_range": f"{inside} of {len(judged)}"}
    return {
        "kind": "energy",
        "rows": len(rows),
        "by_group": lines,
        "worst": _worst(judged, ("system", "gpu", "workload", "side", "node_w", "pred_node_w"), worst),
        "targets": [
            _target(
                "node power at training load",
                POWER_LIMIT,
                errors_of([r["ratio"] for r in judged]).median,
                errors_of(left_out).median,
            )
        ],
    }


def training_energy_ratios(db: Database) -> list[float]:
    """Predicted over published energy of whole runs: GPU time of the estimate at the power drawn in training."""
    from gpucalc.formulas.energy import drawn_power
    from gpucalc.layouts.label import label_cells
    from gpucalc.questions.run import run
    from gpucalc.questions.run_scenarios import Question

    draw = db_defaults.defaults(db, "power")["load_draw"].value
    found = []
    for row in shipped_rows("cluster/training_energy"):
        counts = {n: int(_needed(row, n)) for n in ("n_gpus", "seq_len", "global_batch")}
        cells = {n: row[n] for n in ("model", "gpu", "framework")} | counts | label_cells(row["layout"])
        answer = run(cells, Question(tokens=_needed(row, "tokens"), pue=_needed(row, "pue")), Context(db))
        board = db.device(row["gpu"]).tdp_watts or 0.0
        hours = answer.figures["useful_days"][0] * 24 * counts["n_gpus"]
        energy = hours * float(drawn_power(board, board, draw)) * _needed(row, "pue") / 1e6
        found.append(energy / _needed(row, "energy_mwh"))
    return found


def _left_out_ratios(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Predicted over measured with the load factor of the rows of other architectures: their median."""
    found: list[float | None] = []
    for row in rows:
        others = [float(o["node_w"]) / o["board_w"] for o in rows if o["arch"] != row["arch"]]
        found.append(float(np.median(others)) * row["board_w"] / float(row["node_w"]) if others else None)
    return found


# ---------------------------------------------------------------- goodput


def predicted_failures(row: Mapping[str, str], db: Database) -> tuple[float, float, float]:
    """A row's metric as expected, least and most over the published spread of what the row does not state."""
    from gpucalc.estimate.run import estimate_failures
    from gpucalc.formulas.scaling import slowest_normal
    from gpucalc.questions.run_scenarios import Question, failure_columns, span

    metric, n = row["metric"], _needed(row, "n_gpus")
    if metric == "slowest_over_mean":
        factor = float(slowest_normal(n, _number(row, "variation") or 0.09))
        return factor, factor, factor
    hours = _number(row, "mtbf_h")
    question = Question(
        tokens=1.0,
        recovery=row.get("recovery") or "automatic",
        failures_per_node_day=_number(row, "failures_per_node_day"),
        save="blocking" if _number(row, "save_s") else "async",
        mtbf=None if hours is None or metric == "mtbf_h" else hours * 3600,
        interval=_number(row, "interval_s"),
        save_time=_number(row, "save_s"),
    )
    host = (db.device(row["gpu"]).host_bandwidth if row.get("gpu") else 0.0) or HOST_LINK
    columns, _ = failure_columns(
        question, n, _number(row, "parameters") or 1e11, n, host, db, replicas=_number(row, "replicas") or 2.0
    )
    ledger = estimate_failures(Columns({**columns, "step_time": 1.0}))
    if metric == "goodput_pct":
        values, scale = np.asarray(ledger["goodput/useful"]), 100.0
    elif metric == "mtbf_h":
        values, scale = np.asarray(ledger["failures/mtbf"]), 1 / 3600
    elif metric == "save_share_pct":
        values, scale = np.asarray(ledger["checkpoint/blocking"]) / np.asarray(ledger["checkpoint/interval"]), 100.0
    else:
        raise DataError(f"unknown metric {metric!r}; known: goodput_pct, mtbf_h, save_share_pct, slowest_over_mean")
    value, least, most = span(values, len(columns["detection"]), share=scale == 100)
    return scale * value, scale * least, scale * most


def _goodput(rows: list[dict[str, str]], db: Database, by: Sequence[str], worst: int) -> Line:
    checked: list[dict[str, Any]] = []
    for row in rows:
        value, low, high = predicted_failures(row, db)
        least, most = _needed(row, "low"), _needed(row, "high")
        middle = (least + most) / 2
        slack = 1e-6 + (0.0 if row.get("judged") == "range" else 0.02 * middle)
        checked.append(
            {
                **row,
                "pred": value,
                "pred_low": low,
                "pred_high": high,
                "inside": "yes" if _holds(low, high, least, most, slack) else "no",
                "points": value - middle if row["metric"].endswith("_pct") else None,
                "ratio": value / middle,
            }
        )
    stated = [r for r in checked if r["judged"] == "inputs"]
    ranged = [r for r in checked if r["judged"] == "range"]
    points = max((abs(r["points"]) for r in stated if r["points"] is not None), default=None)
    rated = [r for r in ranged if r["mtbf_h"] and r["metric"] == "goodput_pct"]
    widest = max((r["pred_high"] - r["pred_low"] for r in rated), default=None)
    names = ("system", "n_gpus", "metric", "mtbf_h", "low", "high", "pred", "pred_low", "pred_high", "inside", "judged")
    return {
        "kind": "goodput",
        "rows": len(rows),
        "by_group": _groups(checked, by),
        "pairs": [{n: r.get(n) for n in names} for r in checked],
        "worst": _worst(
            [r for r in checked if r["judged"] != "fitted"], ("system", "metric", "low", "high", "pred", "notes"), worst
        ),
        "targets": [
            {
                "target": "pairs that state their inputs, points",
                "sense": "at most",
                "limit_pct": GOODPUT_POINTS,
                "shipped_pct": points,
                "left_out_pct": None,
                "missed": "shipped" if points is not None and points > GOODPUT_POINTS else "",
            },
            _inside_line("published figures inside the range", ranged),
            _inside_line("of those the ones that state the time between failures", rated),
            {
                "target": "widest range of those, points",
                "sense": "at most",
                "limit_pct": WIDEST_POINTS,
                "shipped_pct": widest,
                "left_out_pct": None,
                "missed": "shipped" if widest is not None and widest > WIDEST_POINTS else "",
            },
        ],
    }


def _inside_line(name: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    inside = sum(r["inside"] == "yes" for r in rows)
    return {
        "target": name,
        "sense": "at least",
        "limit_pct": 100.0,
        "shipped_pct": 100 * inside / len(rows) if rows else None,
        "left_out_pct": None,
        "missed": "shipped" if inside < len(rows) else "",
    }


def _holds(low: float, high: float, least: float, most: float, slack: float) -> bool:
    """Whether a range holds a published figure or spread; into a bound ("more than 90 %", 90 to 100) it must reach."""
    if most >= 100:
        return high >= least
    return low <= least + slack and most <= high + slack


_REPORTS: dict[str, Callable[[list[dict[str, str]], Database, Sequence[str], int], Line]] = {
    "storage": _storage,
    "energy": _energy,
    "goodput": _goodput,
}
