"""Rows of questions about whole clusters: `eval --kind storage`, `power`, `run`, `hpl`, `hpcg` and `render`.

A row states what the command of that name takes, one column each; an empty cell leaves a value to its default. Every
row is answered by the function that answers the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.columns import KINDS, parse_row
from gpucalc.core.errors import GpucalcError, UsageError
from gpucalc.core.units import parse_count, parse_quantity
from gpucalc.jobs.context import Context

Record = Mapping[str, str]
Prediction = dict[str, Any]

# Column of a row → field of the question, and the dimension and size of the column's unit; "" is a number as it is.
PLACE = {"gpus_per_node": ("gpus_per_node", "", 1.0)}
STORAGE = {
    "batch": ("batch", "", 1.0),
    "sample_bytes": ("sample_bytes", "B", 1.0),
    "compute_ms": ("compute_time", "s", 1e-3),
    "decode_ms": ("core_seconds", "s", 1e-3),
    "cores": ("cores", "", 1.0),
    "read_gb_per_s": ("read_bandwidth", "B/s", 1e9),
    "iops": ("iops", "", 1.0),
    "threads": ("threads", "", 1.0),
    "open_ms": ("open_latency", "s", 1e-3),
    "host_gb_per_s": ("card_rate", "B/s", 1e9),
    "wait": ("wait", "", 1.0),
    "cache_hit": ("cache_hit", "", 1.0),
}
POWER = {
    "cap_w": ("cap", "W", 1.0),
    "utilisation": ("utilisation", "", 1.0),
    "pue": ("pue", "", 1.0),
    "duration_s": ("duration", "s", 1.0),
    "electricity_usd_per_kwh": ("electricity_price", "", 1.0),
    "capital_usd": ("capital", "", 1.0),
}
RUN = {
    "tokens": ("tokens", "", 1.0),
    "failures_per_node_day": ("failures_per_node_day", "", 1.0),
    "mtbf_h": ("mtbf", "s", 3600.0),
    "detection_s": ("detection", "s", 1.0),
    "restart_s": ("restart", "s", 1.0),
    "interval_s": ("interval", "s", 1.0),
    "save_s": ("save_time", "s", 1.0),
    "checkpoint_gb": ("checkpoint_bytes", "B", 1e9),
    "write_gb_per_s": ("write_bandwidth", "B/s", 1e9),
    "read_gb_per_s": ("read_bandwidth", "B/s", 1e9),
    "repair_h": ("repair", "s", 3600.0),
    "maintenance_h": ("maintenance", "s", 3600.0),
    "pue": ("pue", "", 1.0),
    "price_usd_per_hour": ("price", "", 1.0),
}
MOST = 1e30  # of any number of a row, in SI
BOUNDS = {
    "n_gpus": (1.0, 1e6),
    "pue": (1.0, 10.0),
    "frames": (1.0, 1e15),
    **dict.fromkeys(("cache_hit", "utilisation", "wait", "failures"), (0.0, 1.0)),
}  # column → least and most, as the options of that name


def evaluate_cluster(kind: str, records: Sequence[Record], context: Context) -> list[Prediction]:
    """Predicted columns of each record; a record with a mistake has them empty and `pred_error`."""
    if kind == "storage":
        return _storage(records, context)
    answer = _ANSWERS[kind]
    found = []
    for record in records:
        try:
            found.append(answer(record, context))
        except GpucalcError as error:
            found.append(_failed(kind, error))
    return found


def _failed(kind: str, error: GpucalcError) -> Prediction:
    return {**dict.fromkeys(KINDS[kind], ""), "pred_error": str(error)}


def _number(record: Record, name: str, dimension: str = "", size: float = 1.0) -> float | None:
    """A cell in SI: a number in the column's unit, or one with a unit of its own; None where it is empty."""
    text = (record.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text) * size
    except ValueError:
        counted = parse_quantity(text, dimension) if dimension else parse_count(text)
        if counted is None:
            raise UsageError(f"{name} is {text!r}, expected a number") from None
        value = counted
    low, high = BOUNDS.get(name, (0.0, MOST))
    if not low <= value <= high:
        told = f"{low:g} or more, below {MOST:g} in SI units" if high == MOST else f"{low:g} to {high:g}"
        raise UsageError(f"{name} is {text!r}, expected {told}")
    return value


def _fields(record: Record, table: Mapping[str, tuple[str, str, float]]) -> dict[str, float]:
    found = {field: _number(record, name, dimension, size) for name, (field, dimension, size) in table.items()}
    return {field: value for field, value in found.items() if value is not None}


def _place(record: Record) -> dict[str, Any]:
    """The cluster of a row: the GPU, how many of them, and how many share a node."""
    gpu, n = (record.get("gpu") or "").strip(), _number(record, "n_gpus")
    missing = [name for name, value in (("gpu", gpu), ("n_gpus", n)) if not value]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be stated")
    each = _number(record, "gpus_per_node")
    if n is not None and n % 1:
        raise UsageError(f"n_gpus is {n:g}, expected a whole number such as {int(n)}")
    return {"gpu": gpu, "n_gpus": int(n or 0), "gpus_per_node": int(each) if each else None}


def _word(record: Record, name: str, known: Sequence[str], default: str) -> str:
    word = (record.get(name) or "").strip().casefold() or default
    if word not in known:
        raise UsageError(f"{name} is {word!r}, expected {', '.join(known)}")
    return word


def _span(stem: str, values: tuple[float, float, float]) -> Prediction:
    """The three columns of a figure with a range."""
    head, _, unit = stem.rpartition("_")
    return dict(zip((stem, f"{head}_low_{unit}", f"{head}_high_{unit}"), values, strict=True))


# ---------------------------------------------------------------- storage


def _storage(records: Sequence[Record], context: Context) -> list[Prediction]:
    """All rows in one batch of the estimate, thrice: as expected, and at both ends of the waiting."""
    from gpucalc.database import defaults
    from gpucalc.estimate.storage import limiter_of
    from gpucalc.questions.storage import Question, predict

    found: list[Prediction] = [{} for _ in records]
    questions, places, waits = [], [], []
    for place, record in enumerate(records):
        try:
            name = (record.get("workload") or "").strip() or None
            question = Question(**_place(record), workload=name, **_fields(record, STORAGE))  # type: ignore[arg-type]
            wait = defaults.workload(context.db, name or "image").wait
            predict([question], context.db)
        except GpucalcError as error:
            found[place] = _failed("storage", error)
            continue
        questions.append(question)
        places.append(place)
        waits.append((question.wait,) * 3 if question.wait is not None else wait)
    if not questions:
        return found
    from dataclasses import replace

    ledgers = [
        predict([replace(q, wait=w[end]) for q, w in zip(questions, waits, strict=True)], context.db)
        for end in range(3)
    ]
    samples = [np.asarray(ledger["metric/samples"]) for ledger in ledgers]
    for row, place in enumerate(places):
        value, *ends = (float(each[row]) for each in samples)
        found[place] = {
            **_span("pred_samples_per_s", (value, min(value, *ends), max(value, *ends))),
            "pred_utilisation_pct": 100 * float(np.asarray(ledgers[0]["metric/utilisation"])[row]),
            "pred_limiter": limiter_of(ledgers[0], row),
            "pred_error": "",
        }
    return found


# ---------------------------------------------------------------- power, run


def _power(record: Record, context: Context) -> Prediction:
    from gpucalc.questions.power import Question, power

    load = _word(record, "load", ("training", "inference"), "training")
    question = Question(**_place(record), **_fields(record, POWER), load=load)  # type: ignore[arg-type]
    figures = power(question, context).figures
    run = figures.get("run_kwh")
    return {
        **_span("pred_node_kw", figures.get("run_node_kw", figures["node_kw"])),
        "pred_site_mw": figures["site_mw"][0],
        "pred_run_kwh": run[0] if run else "",
        "pred_error": "",
    }


def _run(record: Record, context: Context) -> Prediction:
    from gpucalc.questions.run import run
    from gpucalc.questions.run_scenarios import RECOVERIES, SAVES, Question

    fields = _fields(record, RUN)
    if "tokens" not in fields:
        raise UsageError("tokens must be stated, the tokens of the run")
    own = {*RUN, "save", "recovery", "grid"}
    cells, problems = parse_row({name: text for name, text in record.items() if name not in own})
    if problems:
        raise UsageError(*problems)
    question = Question(
        **fields,
        save=_word(record, "save", SAVES, "async"),
        recovery=_word(record, "recovery", RECOVERIES, "automatic"),
        grid=(record.get("grid") or "").strip() or "usa",
    )
    answer = run({name: value for name, value in cells.items() if value is not None}, question, context)
    figures = answer.figures
    return {
        **_span("pred_days", figures["days"]),
        **_span("pred_goodput_pct", figures["goodput_pct"]),
        **_span("pred_mtbf_h", figures["mtbf_h"]),
        "pred_energy_mwh": figures["energy_mwh"][0] if "energy_mwh" in figures else "",
        "pred_cost_usd": figures["cost_usd"][0] if "cost_usd" in figures else "",
        "layout": answer.layout,
        "pred_error": "",
    }


# ---------------------------------------------------------------- HPL and HPCG, render farms


def _listed(name: str) -> Callable[[Record, Context], Prediction]:
    def answer(record: Record, context: Context) -> Prediction:
        from gpucalc.database.cluster import resolve_cluster
        from gpucalc.questions import hpc, hpc_list

        place = _place(record)
        cluster = resolve_cluster(
            context.db,
            place["gpu"],
            place["n_gpus"],
            place["gpus_per_node"],
            None,
            (record.get("fabric") or "").strip() or None,
        )
        stated = (record.get("interconnect") or "").strip()
        ledger, share = hpc_list.list_benchmark(
            name,
            cluster.device,
            float(place["n_gpus"]),
            hpc.constants(context.db),
            network=hpc_list.network_class(stated or cluster.fabric),
        )
        rate = float(ledger["metric/rate"]) / 1e12
        span = (rate, rate * share.low / share.value, rate * share.high / share.value)
        time = {"pred_run_time_s": float(ledger["time/run"])} if name == "hpl" else {}
        return {**_span("pred_rate_tflops", span), **time, "pred_error": ""}

    return answer


def _render(record: Record, context: Context) -> Prediction:
    from gpucalc.estimate.farm import Farm, estimate_farm
    from gpucalc.questions import farm as farms

    table = farms.score_table(context.db)
    counts = farms.machines_of(
        (record.get("gpu") or "").strip() or None, (record.get("n_gpus") or "").strip() or None, context.db
    )
    scores = {key: farms.score_of(context.db.device(key), table) for key in counts}
    frames, time = _number(record, "frames"), _number(record, "frame_time_s", "s")
    missing = [name for name, value in (("frames", frames), ("frame_time_s", time)) if not value]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be stated")
    spread = _number(record, "spread")
    licences = _number(record, "licences")
    used = farms.limited(counts, scores, int(licences) if licences else None)
    farm = Farm(
        counts=used,
        scores=scores,
        frames=float(frames or 0),
        reference_time=float(time or 0),
        reference_score=scores[next(iter(counts))].value,
        spread=float(table["farm"]["spread"]) if spread is None else spread,
        scene_load=_number(record, "load_s", "s") or 0.0,
        failure_share=_number(record, "failures") or 0.0,
    )
    order = _word(record, "order", farms.ORDERS, "random")
    answer = farms.summary(estimate_farm(farm), farm, counts, order=order, gpu_price=0.0, licence_price=0.0, licences=0)
    span = (answer["makespan_days"], answer["makespan_low_days"], answer["makespan_high_days"])
    return {**_span("pred_makespan_days", span), "pred_bound": answer["bound"], "pred_error": ""}


_ANSWERS: dict[str, Callable[[Record, Context], Prediction]] = {
    "power": _power,
    "run": _run,
    "hpl": _listed("hpl"),
    "hpcg": _listed("hpcg"),
    "render": _render,
}
CLUSTER_KINDS = ("storage", *_ANSWERS)
