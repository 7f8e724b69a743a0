"""Published runs of networks beside predictions: rates, latencies and peak memory, by source and by kind of net."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import is_network
from gpucalc.jobs.rows import evaluate_any
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import shipped_rows

# kind → the files of its rows below measurements/families; columns that may be grouped by.
FILES = {
    "vision": ("vision_training", "vision_inference"),
    "encoders": ("encoders",),
    "speech": ("speech_seq2seq",),
    "diffusion": ("diffusion_training", "diffusion_generation"),
    "recommenders": ("recommenders",),
    "multimodal": ("multimodal",),
    "hybrids": ("hybrids",),
}
KEYS = ("source", "mode", "model", "gpu", "framework", "net")
KINDS = dict.fromkeys(FILES, KEYS)
HELD_OUT = "networks_held_out"
# Largest median errors of rows whose source was left out of the fit: mode and net → limit.
TARGETS: dict[str, tuple[tuple[str, float], ...]] = {
    "vision": (
        ("training conv", 0.08),
        ("inference conv", 0.08),
        ("inference depthwise", 0.10),
        ("inference vit", 0.08),
    ),
    "encoders": (("training encoder", 0.08), ("training vit", 0.08)),
    "diffusion": (("training unet", 0.08), ("generation unet", 0.10), ("generation dit", 0.10)),
    "recommenders": (("training recommender", 0.06),),
    "hybrids": (("training decoder", 0.08),),
}


def shipped(kind: str) -> list[dict[str, str]]:
    """The published rows of a kind."""
    return [row for name in FILES[kind] for row in shipped_rows(f"families/{name}")]


def network_report(
    kind: str, records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10
) -> Line:
    """Errors of a kind: of the shipped constants, and with the row's whole source left out of their fit."""
    rows = [row for record in records if (row := _compared(record, db)) is not None]
    if not rows:
        raise UsageError(f"no row of kind {kind} states a rate, a step time, a latency or a peak memory")
    for row, found in zip(rows, evaluate_any([row["record"] for row in rows], Context(db)), strict=True):
        _judge(row, found)
    left_out = {key[0]: line.values["ratio"] for key, line in db.table(HELD_OUT).items()}
    for row in rows:
        row["left_out"] = left_out.get(row["id"])
    predicted = [row for row in rows if row["ratio"] is not None]
    strict = [row for row in predicted if row["strict"]]
    groups = by or ("mode", "source")
    names = list(dict.fromkeys(tuple(row[key] for key in groups) for row in strict))
    off = sorted(strict, key=lambda row: -abs(math.log(row["ratio"])))[:worst]
    return {
        "kind": kind,
        "rows": len(rows),
        "by_group": [
            _line(" ".join(name), [row for row in strict if tuple(row[key] for key in groups) == name])
            for name in names
        ],
        "memory": _memory(predicted),
        "worst": [
            {
                "id": row["id"],
                "model": row["model"],
                "gpu": row["gpu"],
                "measured": row["measured"],
                "predicted": row["measured"] * row["ratio"],
                "error_pct": percent(row["ratio"] - 1),
            }
            for row in off
        ],
        "no_prediction": [
            {"id": row["id"], "model": row["model"], "pred_error": row["why"]} for row in rows if row["ratio"] is None
        ],
        "targets": [_target(name, limit, strict) for name, limit in TARGETS.get(kind, ())],
    }


def _number(record: Mapping[str, str], name: str) -> float | None:
    text = (record.get(name) or "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"{name} is {text!r}, expected a number") from None


def _compared(record: Mapping[str, str], db: Database) -> dict[str, Any] | None:
    """A row with its measured figure in seconds (or samples a second), or None where nothing was measured."""
    figures = {n: _number(record, f"measured_{n}") for n in ("latency_s", "samples_per_s", "step_time_s")}
    name = next((n for n, value in figures.items() if value), "")
    memory = _number(record, "measured_peak_mem_gib")
    if not name and memory is None:
        return None
    mode = record.get("mode") or "training"
    return {
        "record": record,
        "id": record.get("id", ""),
        "figure": name,
        "measured": figures.get(name) or 0.0,
        "memory": memory,
        "mode": mode,
        "strict": record.get("strict", "True") != "False",
        **{key: record.get(key) or "" for key in ("source", "model", "gpu", "framework")},
    }


def _judge(row: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Put the predicted over the measured time of a row to it."""
    row["why"] = found.get("pred_error") or ""
    row["net"] = str(row["record"].get("net") or "") or _net(row["record"])
    row["ratio"] = row["memory_ratio"] = None
    row["inside"] = None
    if row["why"]:
        return
    if row["figure"] == "samples_per_s" and "pred_samples_per_s" in found:
        row["ratio"] = row["measured"] / found["pred_samples_per_s"]
        low, high = found["pred_samples_per_s_low"], found["pred_samples_per_s_high"]
        row["inside"] = low <= row["measured"] <= high
    else:
        name = "pred_latency_s" if row["figure"] == "latency_s" else "pred_step_time_s"
        step = _number(row["record"], "measured_step_time_s") if row["figure"] == "samples_per_s" else row["measured"]
        if step and found.get(name):
            row["ratio"] = found[name] / step
            part = name.removesuffix("_s")
            row["inside"] = found[f"{part}_low_s"] <= step <= found[f"{part}_high_s"]
    if row["memory"]:
        row["memory_ratio"] = found["pred_peak_mem_gib"] / row["memory"]


def _net(record: Mapping[str, str]) -> str:
    if not is_network(record):
        return "decoder"
    from gpucalc.models.networks.catalog import load_network, resolve_network

    name = resolve_network(record.get("model") or "")
    return load_network(name).net if name else "conv"


def _line(group: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    found = errors_of(row["ratio"] for row in rows)
    left = errors_of(row["left_out"] for row in rows if row["left_out"] is not None)
    inside = [row["inside"] for row in rows if row["inside"] is not None]
    return {
        "group": group,
        "rows": len(rows),
        "median_pct": percent(found.median),
        "p90_pct": percent(found.p90),
        "bias_pct": percent(found.bias),
        "left_out_pct": percent(left.median),
        "inside_band_pct": 100 * sum(inside) / len(inside) if inside else None,
    }


def _memory(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    measured = [row for row in rows if row["memory_ratio"] is not None]
    if not measured:
        return []
    found = errors_of(row["memory_ratio"] for row in measured)
    return [{"rows": len(measured), "median_pct": percent(found.median), "bias_pct": percent(found.bias)}]


def _target(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    """A target beside the mean over sources of the median error, the source left out where that was computed."""
    mode, net = name.split()
    own = [row for row in rows if row["mode"] == mode and row["net"] == net]
    sources = dict.fromkeys(row["source"] for row in own)
    medians = []
    for source in sources:
        ratios = [row["left_out"] or row["ratio"] for row in own if row["source"] == source]
        medians.append(errors_of(ratios).median or 0.0)
    found = sum(medians) / len(medians) if medians else None
    return {
        "target": name,
        "sense": "at most",
        "limit_left_out_pct": 100 * limit,
        "left_out_pct": percent(found),
        "missed": "left_out" if found is not None and found > limit else "",
    }
