"""Measured kernels and collectives beside what is predicted for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.validate.metrics import errors_of, quantile
from gpucalc.validate.report import Line, percent

# kind → columns that may be grouped by; the measured column is time_us in all of them.
KINDS = {
    "gemm": ("gpu", "dtype"),
    "attention": ("gpu", "phase", "dtype"),
    "collective": ("source", "gpu", "op", "nodes", "n_gpus"),
}
SHIPPED_TABLES = {
    "gemm": ("gemm",),
    "attention": ("attention",),
    "collective": ("collectives", "collectives_multinode"),
}
MEASURED = "time_us"
LARGE = 1024  # sides of a product from which on launches and edges no longer matter


def shipped_kernels(kind: str) -> list[dict[str, str]]:
    """The measured rows of a kind that come with the package."""
    from gpucalc.validate.training import shipped_rows

    return [row for name in SHIPPED_TABLES[kind] for row in shipped_rows(name)]


def _over_nodes(record: Mapping[str, str], least: int, below: float = float("inf")) -> bool:
    return (record.get("nodes") or "1") != "1" and least <= float(record.get("bytes") or 0) < below


def predict_kernels(kind: str, records: Sequence[dict[str, str]], db: Database) -> list[dict[str, Any]]:
    """The pred_ columns of each record."""
    if kind == "collective":
        from gpucalc.questions.collectives import evaluate_collective

        return evaluate_collective(records, db)
    from gpucalc.questions.kernels import evaluate_attention, evaluate_gemm

    return evaluate_gemm(records, db) if kind == "gemm" else evaluate_attention(records, db)


def _ratio(record: Mapping[str, str], prediction: Mapping[str, Any]) -> float | None:
    try:
        measured = float(record.get(MEASURED) or 0)
    except ValueError:
        return None
    predicted = prediction.get("pred_time_us")
    return float(predicted) / measured if measured > 0 and isinstance(predicted, float | int) else None


def _large(record: Mapping[str, str]) -> bool:
    try:
        return all(float(record.get(n) or 0) >= LARGE for n in ("m", "n", "k"))
    except ValueError:
        return False


def kernel_report(
    kind: str, records: Sequence[dict[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10
) -> Line:
    """Errors of a kind of kernel: all, large products, by device and by what the kind has beside it."""
    measured = [r for r in records if (r.get(MEASURED) or "").strip()]
    if not measured:
        raise UsageError(f"no row states {MEASURED}, the measured time")
    predictions = predict_kernels(kind, measured, db)
    pairs = [(r, p, _ratio(r, p)) for r, p in zip(measured, predictions, strict=True)]
    without = _left_out(kind, db)
    groups: dict[str, list[tuple[Mapping[str, str], float | None]]] = {"all": [(r, ratio) for r, _, ratio in pairs]}
    if kind == "gemm":
        groups["m, n, k ≥ 1024"] = [(r, ratio) for r, _, ratio in pairs if _large(r)]
    if kind == "collective":
        for name, least, below in _SIZES:
            if sized := [pair for pair in groups["all"] if _over_nodes(pair[0], least, below)]:
                groups[f"over nodes, {name}"] = sized
    for name in by or KINDS[kind]:
        for record, _, ratio in pairs:
            groups.setdefault(f"{name} {record.get(name) or 'not stated'}", []).append((record, ratio))
    lines = []
    for group, members in groups.items():
        errors = errors_of([ratio for _, ratio in members])
        line = {
            "group": group,
            "rows": len(members),
            "unpredicted": len(members) - errors.rows,
            "median_pct": percent(errors.median),
            "p90_pct": percent(errors.p90),
            "bias_pct": percent(errors.bias),
        }
        if kind == "collective":
            line["left_out_pct"] = percent(errors_of([without.get(r.get("id") or "") for r, _ in members]).median)
        lines.append(line)
    off = sorted((x for x in pairs if x[2]), key=lambda x: -abs((x[2] or 1) - 1))[:worst]
    return {
        "kind": kind,
        "rows": len(measured),
        "by_group": lines,
        "worst": [
            {**dict(r), "pred_time_us": p["pred_time_us"], "error_pct": percent((ratio or 1) - 1)}
            for r, p, ratio in off
        ],
        "no_prediction": [{**dict(r), "pred_error": p["pred_error"]} for r, p, ratio in pairs if p.get("pred_error")],
    }


def _left_out(kind: str, db: Database) -> dict[str, float]:
    """Row → predicted over measured time where its whole source was left out of the fit; of collectives over nodes."""
    if kind != "collective":
        return {}
    return {key[0]: row.values["ratio"] for key, row in db.shipped().table("collectives_held_out").items()}


_SIZES = (("64 MiB and more", 2**26, float("inf")), ("1 to 64 MiB", 2**20, 2**26), ("below 1 MiB", 0, 2**20))

# What kernels are meant to reach: name, kind, rows, limit for shapes held out, limit for a device left out.
_PRODUCTS = ("bfloat16", "fp8")
_TARGETS: tuple[tuple[str, str, Callable[[Mapping[str, str]], bool], float, float], ...] = (
    ("matrix products, bf16 and fp8", "gemm", lambda r: r.get("dtype") in _PRODUCTS, 0.06, 0.12),
    (
        "matrix products, bf16 and fp8, m, n, k ≥ 1024",
        "gemm",
        lambda r: r.get("dtype") in _PRODUCTS and _large(r),
        0.035,
        0.12,
    ),
    ("attention", "attention", lambda r: True, 0.05, 0.12),
    ("collectives inside a scale-up domain", "collective", lambda r: r.get("nodes") in {None, "", "1"}, 0.05, 0.12),
    ("collectives over nodes, 64 MiB and more", "collective", lambda r: _over_nodes(r, 2**26), 0.10, 0.10),
    ("collectives over nodes, 1 to 64 MiB", "collective", lambda r: _over_nodes(r, 2**20, 2**26), 0.15, 0.15),
    ("collectives over nodes, below 1 MiB", "collective", lambda r: _over_nodes(r, 0, 2**20), 0.25, 0.25),
)


def kernel_targets(tables: Mapping[str, Sequence[dict[str, str]]], db: Database) -> list[Line]:
    """The figures to reach on the shipped samples of shapes held out, and with a device left out of the fit.

    `tables` is kind → records. The second figure is read from the calibration, where the fit has left it.
    """
    lines: list[Line] = []
    for name, kind, wanted, limit, limit_left_out in _TARGETS:
        records = [r for r in tables[kind] if wanted(r)]
        ratios = [_ratio(r, p) for r, p in zip(records, predict_kernels(kind, records, db), strict=True)]
        found, left_out = _balanced(records, ratios), _device_left_out(kind, db)
        without = _left_out(kind, db)
        if any(r.get("id") in without for r in records):
            left_out = _balanced(records, [without.get(r.get("id") or "") for r in records])
        missed = [
            v for v, f, most in (("random", found, limit), ("left_out", left_out, limit_left_out)) if f and f > most
        ]
        lines.append(
            {
                "target": name,
                "sense": "at most",
                "limit_random_pct": 100 * limit,
                "limit_left_out_pct": 100 * limit_left_out,
                "random_pct": percent(found),
                "left_out_pct": percent(left_out),
                "missed": ", ".join(missed),
            }
        )
    return lines


def _balanced(records: Sequence[Mapping[str, str]], ratios: Sequence[float | None]) -> float | None:
    """Mean over sources of the median error; the median where the rows name no source."""
    sources = sorted({r.get("source") or "" for r in records})
    of = {s: [x for r, x in zip(records, ratios, strict=True) if (r.get("source") or "") == s] for s in sources}
    medians = [m for m in (errors_of(found).median for found in of.values()) if m is not None]
    return sum(medians) / len(medians) if medians else None


def _device_left_out(kind: str, db: Database) -> float | None:
    """Median over devices of the error when the device is left out of the fit of its kind; None where not recorded."""
    if kind == "collective":
        return None
    stated = [row.texts["left_out_error"] for row in db.shipped().table(kind).values()]
    errors = [float(text) for text in stated if text]
    return quantile(errors, 0.5) if errors else None
