"""What may go wrong in a run, as columns of scenarios: expected, the ends of the published spread, halved times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.database import defaults as db_defaults
from gpucalc.database.defaults import Default
from gpucalc.database.reader import Database

DAY = 86400.0
MONTH = 30 * DAY
NODE = 8.0  # GPUs of the node that published failure rates are counted per
HALVINGS = ("save time", "failure rate", "restart time")  # the rows behind the first three
SAVES = ("blocking", "async", "memory")  # memory: to the host's and another node's, the store every half hour
RECOVERIES = ("automatic", "manual", "replica", "elastic")
RECOVERY_KINDS = {"automatic": 0, "manual": 0, "replica": 1, "elastic": 2}
# The rows behind the halvings: the run as asked with another way of saving or recovering, (way, its value).
ALTERNATIVES = (
    *(("save", save) for save in SAVES),
    *(("recovery", recovery) for recovery in ("automatic", "replica", "elastic")),
)
LAST = len(HALVINGS) + len(ALTERNATIVES)  # rows behind those of the spread


@dataclass(frozen=True)
class Question:
    """What was asked beside the job; None leaves a value to its default. Times in s, rates in B/s."""

    tokens: float
    save: str = "async"  # of SAVES
    recovery: str = "automatic"  # of RECOVERIES
    failures_per_node_day: float | None = None
    mtbf: float | None = None
    detection: float | None = None
    restart: float | None = None
    interval: float | None = None
    save_time: float | None = None
    checkpoint_bytes: float | None = None
    write_bandwidth: float | None = None
    read_bandwidth: float | None = None
    availability: float | None = None
    repair: float | None = None
    maintenance: float | None = None  # in a month of 30 days
    allocated: float | None = None
    busy: float | None = None
    straggler_cv: float | None = None
    slow_gpu: float | None = None
    pue: float | None = None
    grid: str = "usa"
    carbon_intensity: float | None = None  # g/kWh
    price: float | None = None  # USD per GPU hour
    electricity_price: float | None = None  # USD per kWh


@dataclass(frozen=True)
class Spread:
    """A value as expected, at its better and its worse end, and by which factors the halvings change it.

    Values of one group move together: the write and the read rate of one store.
    """

    group: str
    value: float
    best: float
    worst: float
    save: float = 1.0
    rate: float = 1.0
    restart: float = 1.0


def expanded(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns with every `Spread` as one row per scenario.

    Row 0 is the expected run. Then every group of values that has a spread lies at its better end, and at its worse
    end, the others as expected: `span` adds what that changes. The rows of `HALVINGS` and of `ALTERNATIVES` come last.
    """
    spreads = {name: one for name, one in columns.items() if isinstance(one, Spread)}
    groups = list(dict.fromkeys(one.group for one in spreads.values() if one.best != one.worst))
    rows = {
        name: np.array(
            [
                one.value,
                *(end if group == one.group else one.value for group in groups for end in (one.best, one.worst)),
                *(one.value * factor for factor in (one.save, one.rate, one.restart)),
                *(one.value for _ in ALTERNATIVES),
            ]
        )
        for name, one in spreads.items()
    }
    return {**columns, **rows, **_ways(columns["question"], 1 + 2 * len(groups))}


def span(values: Any, rows: int, *, share: bool = False) -> tuple[float, float, float]:
    """Expected, least and most of a term: what each group of values changes alone, in quadrature.

    The groups are taken as independent of each other: all of them at their ends at once would be likelier to mislead.
    They multiply rather than add, so quadrature is of logarithms; of a share, of those of share over rest. Where one of
    them does not exist (a term of 0, a share of 1) differences are added as they are.

    >>> import numpy as np
    >>> low, high = span(np.array([8.0, 16.0, 4.0, 8.0, 8.0, *[8.0] * LAST]), 5 + LAST)[1:]
    >>> round(low, 6), round(high, 6)
    (4.0, 16.0)
    """
    every = np.broadcast_to(np.asarray(values, dtype=float), (rows,))[: rows - LAST]
    value = float(every[0])
    if share and np.all((every > 0) & (every < 1)):
        scale: tuple[Any, Any] = (lambda x: np.log(x / (1 - x)), lambda y: 1 / (1 + np.exp(-y)))
    elif np.all(every > 0):
        scale = (np.log, np.exp)
    else:
        scale = (lambda x: x, lambda y: y)
    moved = scale[0](every[1:]).reshape(-1, 2) - scale[0](every[0])
    if not moved.any():
        return value, value, value
    up, down = np.maximum(moved, 0).max(axis=1), np.minimum(moved, 0).min(axis=1)
    low, high = (scale[1](scale[0](every[0]) + sign * np.sqrt(np.sum(d**2))) for sign, d in ((-1, down), (1, up)))
    return value, min(value, float(low)), max(value, float(high))


def _ways(question: Question, before: int) -> dict[str, np.ndarray]:
    """How each scenario saves and recovers, as flags and codes."""
    asked = {"save": question.save, "recovery": question.recovery}
    rows = [asked] * (before + len(HALVINGS)) + [{**asked, way: value} for way, value in ALTERNATIVES]
    return {
        "asynchronous": np.array([float(row["save"] != "blocking") for row in rows]),
        "in_memory": np.array([float(row["save"] == "memory") for row in rows]),
        "recovery_kind": np.array([float(RECOVERY_KINDS[row["recovery"]]) for row in rows]),
    }


def failure_columns(question: Question, *place: Any, **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The columns of `failure_spreads`, one row per scenario, and where each value is from."""
    columns, origins = failure_spreads(question, *place, **more)
    return without_question(expanded(columns)), origins


def without_question(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns of numbers alone."""
    return {name: value for name, value in columns.items() if name != "question"}


def failure_spreads(
    question: Question,
    n_gpus: float,
    parameters: float,
    holders: float,
    host_bandwidth: float,
    db: Database,
    *,
    replicas: float = 1.0,
    network_bandwidth: float = 25e9,
    in_rack: bool = False,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Columns of failures, saves and spares of a job on `n_gpus`, and where each value is from.

    `holders`: GPUs over which the state is cut; each copies its part to the host at a share of `host_bandwidth`, and
    to another node at a share of `network_bandwidth`. A stated failure rate is that of the job's own nodes, so no
    factor of small jobs is on it.
    """
    values = db_defaults.defaults(db, "run")
    origins: dict[str, str] = {}

    def spread(name: str, stated: float | None, one: Default, unit: float = 1.0, **factors: float) -> Spread:
        """The value of a default with its ends, of which the lower is the better one, or what is stated."""
        if stated is not None:
            origins[name] = "stated"
            return Spread(name, stated, stated, stated, **factors)
        origins[name] = f"{one.origin}: {one.why}"
        return Spread(name, one.value * unit, one.low * unit, one.high * unit, **factors)

    def rate(group: str, one: Default, unit: float = 1.0, save: float = 1.0) -> Spread:
        """The same of a rate: more is better."""
        return Spread(group, one.value * unit, one.high * unit, one.low * unit, save=save)

    def stated(value: float | None, **factors: float) -> Spread:
        """A value that 0 leaves to its formula."""
        return Spread("stated", value or 0.0, value or 0.0, value or 0.0, **factors)

    q, by_hand = question, question.recovery == "manual"
    manual = "manual_" if by_hand else ""
    per_gpu = 1 / NODE / DAY
    own_rate = None if q.failures_per_node_day is None else q.failures_per_node_day * per_gpu
    told = 1.0 if own_rate is not None or q.mtbf is not None else None
    in_hand = Default(0.0, 0.0, 0.0, "s", "assumed", "contained in the restart by hand")
    return {
        "question": question,
        **_store_columns(q, values, n_gpus, origins),
        "n_gpus": n_gpus,
        "small_job_gpus": values["small_job_gpus"].value,
        "parameters": parameters,
        "state_bytes": values["state_bytes"].value,
        "replicas": replicas,
        "store_interval": values["store_interval"].value,
        "maintenance": values["maintenance"].value if q.maintenance is None else q.maintenance,
        "month": MONTH,
        "miss_share": spread("miss_share", None, values["miss_share"]),
        "stall": spread("replica_stall", None, values["replica_stall"], restart=0.5),
        "restart_per_gpu": spread(
            "restart_per_gpu", None, in_hand if by_hand else values["restart_per_gpu"], restart=0.5
        ),
        "stated_restart": stated(q.restart, restart=0.5),
        "peer_bandwidth": rate("peers", values["peer_share"], network_bandwidth),
        "rack_share": values["rack_share"].value if in_rack else 0.0,
        "stall_share": values["stall_share"].value,
        "holders": holders,
        "hardware_share": values["hardware_share"].value,
        "availability": q.availability or values["availability"].value,
        "busy": q.busy or values["busy"].value,
        "stated_allocated": q.allocated or 0.0,
        "stated_interval": q.interval or 0.0,
        "stated_checkpoint": q.checkpoint_bytes or 0.0,
        "gpu_failure_rate": spread(
            "failures_per_node_day", own_rate, values["node_failures_per_day"], per_gpu, rate=0.5
        ),
        "small_job_factor": spread("small_job_factor", told, values["small_job_factor"]),
        "detection": spread("detection", q.detection, values[f"{manual}detection"]),
        "restart": spread("restart", q.restart, values[f"{manual}restart"], restart=0.5),
        "repair": spread("repair", q.repair, values["tray_repair" if in_rack else "repair"]),
        "save_overhead": spread("save_overhead", None, values["save_overhead"], save=0.5),
        "staging_bandwidth": rate("staging", values["staging_share"], host_bandwidth, save=2.0),
        "stated_save": stated(q.save_time, save=0.5),
        "stated_mtbf": stated(q.mtbf, rate=2.0),
    }, origins


def _store_columns(
    question: Question, values: Mapping[str, Default], n_gpus: float, origins: dict[str, str]
) -> dict[str, Spread]:
    """Rates of the store: by the GPU, the most that stores sustain, and what is stated."""
    columns: dict[str, Spread] = {}
    for way, told in (("write", question.write_bandwidth), ("read", question.read_bandwidth)):
        parts = (values[f"{way}_per_gpu"], values[f"{way}_most"])
        save = 2.0 if way == "write" else 1.0
        ranges = (
            f"{one.low * unit / 1e9:,.3g} to {one.high * unit / 1e9:,.3g} GB/s, {one.why}"
            for one, unit in zip(parts, (n_gpus, 1.0), strict=True)
        )
        origins[f"{way}_bandwidth"] = "stated" if told is not None else "the less of both: " + "; ".join(ranges)
        for name, one in zip(("per_gpu", "most"), parts, strict=True):
            ends = (one.value,) * 3 if told is not None else (one.value, one.high, one.low)
            columns[f"{way}_{name}"] = Spread("store", *ends, save=save)
        columns[f"stated_{way}"] = Spread("stated", told or 0.0, told or 0.0, told or 0.0, save=save)
    return columns
