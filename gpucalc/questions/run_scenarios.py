"""What may go wrong in a run, as columns of scenarios: expected, the ends of the published spread, halved times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.database import defaults as db_defaults
from gpucalc.database.defaults import Default
from gpucalc.database.reader import Database

DAY = 86400.0
NODE = 8.0  # GPUs of the node that published failure rates are counted per
HALVINGS = ("save time", "failure rate", "restart time")  # the rows behind the first three


@dataclass(frozen=True)
class Question:
    """What was asked beside the job; None leaves a value to its default. Times in s, rates in B/s."""

    tokens: float
    asynchronous: bool = True
    manual: bool = False
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
    allocated: float | None = None
    busy: float | None = None
    straggler_cv: float | None = None
    slow_gpu: float | None = None
    pue: float | None = None
    grid: str = "usa"
    carbon_intensity: float | None = None  # g/kWh
    price: float | None = None  # USD per GPU hour
    electricity_price: float | None = None  # USD per kWh


def scenarios(
    values: tuple[float, float, float], save: float = 1.0, rate: float = 1.0, restart: float = 1.0
) -> np.ndarray:
    """One row per scenario: expected, best, worst, then the expected with each of `HALVINGS` by its factor."""
    return np.array([*values, *(values[0] * factor for factor in (save, rate, restart))])


def failure_columns(
    question: Question, n_gpus: float, parameters: float, holders: float, host_bandwidth: float, db: Database
) -> tuple[dict[str, Any], dict[str, str]]:
    """Columns of failures, saves and spares of a job on `n_gpus`, and where each value is from.

    `holders`: GPUs over which the state is cut; each copies its part to the host at a share of `host_bandwidth`.
    """
    values = db_defaults.defaults(db, "run")
    origins: dict[str, str] = {}

    def spread(name: str, stated: float | None, default: Default, unit: float = 1.0) -> tuple[float, float, float]:
        if stated is not None:
            origins[name] = "stated"
            return (stated,) * 3
        origins[name] = f"{default.origin}: {default.why}"
        return default.value * unit, default.low * unit, default.high * unit

    q, manual = question, "manual_" if question.manual else ""
    per_gpu = 1 / NODE / DAY
    stated_rate = None if q.failures_per_node_day is None else q.failures_per_node_day * per_gpu
    rate = spread("failures_per_node_day", stated_rate, values["node_failures_per_day"], per_gpu)
    writes = spread("write_bandwidth", q.write_bandwidth, values["write_per_gpu"], n_gpus)
    reads = spread("read_bandwidth", q.read_bandwidth, values["read_per_gpu"], n_gpus)
    return {
        "n_gpus": n_gpus,
        "small_job_gpus": values["small_job_gpus"].value,
        "parameters": parameters,
        "state_bytes": values["state_bytes"].value,
        "asynchronous": float(q.asynchronous),
        "stall_share": values["stall_share"].value,
        "holders": holders,
        "hardware_share": values["hardware_share"].value,
        "availability": q.availability or values["availability"].value,
        "busy": q.busy or values["busy"].value,
        "stated_allocated": q.allocated or 0.0,
        "stated_interval": q.interval or 0.0,
        "stated_checkpoint": q.checkpoint_bytes or 0.0,
        "gpu_failure_rate": scenarios(rate, rate=0.5),
        "small_job_factor": scenarios(spread("small_job_factor", None, values["small_job_factor"])),
        "detection": scenarios(spread("detection", q.detection, values[f"{manual}detection"])),
        "restart": scenarios(spread("restart", q.restart, values[f"{manual}restart"]), restart=0.5),
        "repair": scenarios(spread("repair", q.repair, values["repair"])),
        "save_overhead": scenarios(spread("save_overhead", None, values["save_overhead"]), save=0.5),
        "write_bandwidth": scenarios((writes[0], writes[2], writes[1]), save=2.0),
        "read_bandwidth": scenarios((reads[0], reads[2], reads[1])),
        "staging_bandwidth": scenarios((host_bandwidth * values["staging_share"].value,) * 3, save=2.0),
        "stated_save": scenarios((q.save_time or 0.0,) * 3, save=0.5),
        "stated_mtbf": scenarios((q.mtbf or 0.0,) * 3, rate=2.0),
    }, origins
