"""A training run as a question: a job and its layout, what may go wrong, and the scenarios that span the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc import defaults as db_defaults
from gpucalc import job as jobs
from gpucalc.defaults import HOUR, KWH, Default
from gpucalc.errors import InfeasibleError, UsageError
from gpucalc.estimate.run import estimate_run
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas import scaling as laws
from gpucalc.hardware import Database
from gpucalc.ledger import Columns, Ledger
from gpucalc.power_job import load_factor
from gpucalc.variation import layout_label

DAY = 86400.0
NODE = 8.0  # GPUs of the node that published failure rates are counted per
STEP_TOKENS = 2**22  # tokens of a step where no batch is stated
TOKENS_PER_GPU = 1024  # and no fewer than so many a GPU
DOUBTFUL_LOSS = 0.25  # share lost to failures from which closed forms and event simulations part
LEAST_PROGRESS = 0.01  # goodput below which a run is said to make no progress
SCENARIOS = ("expected", "low", "high")
HALVINGS = (("save time", "save_factor"), ("failure rate", "rate_factor"), ("restart time", "restart_factor"))
ROOTS = (
    *("run/elapsed", "goodput/exact", "failures/mtbf", "checkpoint/interval", "checkpoint/bandwidth/blocking"),
    *("checkpoint/bandwidth/asynchronous", "spares/count", "yield/cluster", "energy/carbon", "energy/run"),
    *("cost/rental", "cost/electricity", "cost/useful-price"),
)


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


@dataclass
class RunResult:
    """The answer: figures by scenario, what halving brings, and how it came about."""

    layout: str
    job: jobs.Job
    figures: dict[str, tuple[float, float, float]]  # name → expected, and the ends of its range
    halvings: list[dict[str, Any]]
    terms: list[dict[str, Any]]
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def complete_cells(
    cells: Mapping[str, Any], db: Database, context: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The cells of a run with sequence, batch and layout; what was taken is said in notes.

    Raises InfeasibleError where no layout fits.
    """
    from gpucalc.search import LAYOUT_CELLS, plan

    full, notes = dict(cells), []
    count = int(full.get("n_gpus") or 1)
    if full.get("seq_len") is None:
        neutral = {"model": full.get("model"), "gpu": full.get("gpu"), "n_gpus": count}
        shape = {n: v for n, v in full.items() if n not in LAYOUT_CELLS and n != "global_batch"}
        base = jobs.resolve({**shape, **neutral, "dp": count, "micro_batch": 1, "zero_stage": 1}, db, **context)
        full["seq_len"] = int(base.cells["seq_len"])
        notes.append(f"--seq-len is not stated; {full['seq_len']:,} is taken")
    if full.get("global_batch") is None:
        tokens = max(STEP_TOKENS, TOKENS_PER_GPU * count)
        unit = max(1, count // 8)
        sequences = max(1, round(tokens / int(full["seq_len"])))
        full["global_batch"] = max(unit, -(-sequences // unit) * unit)
        notes.append(f"--global-batch is not stated; {full['global_batch']:,} sequences are taken")
    if "tp" in full:
        return full, notes
    found = plan(full, db, top=1, **context)
    if not found.rows:
        raise InfeasibleError(f"no layout fits: {found.nearest_miss or 'no layout is legal'}")
    best = found.rows[0]
    kept = {n: v for n, v in best.items() if n in LAYOUT_CELLS and v not in (None, "")}
    notes.append(f"--layout is not stated; the planner's best, {best['layout']}, is taken")
    return {**full, **kept}, notes


def run(
    cells: Mapping[str, Any],
    question: Question,
    db: Database,
    *,
    profile: str | None = None,
    fabric: str | None = None,
    causal_flops: bool = False,
) -> RunResult:
    """Everything about a run of `question.tokens` tokens.

    Raises UsageError for values outside their meaning, InfeasibleError where nothing fits or the run makes no progress.
    """
    context = {"profile": profile, "fabric": fabric, "causal_flops": causal_flops}
    full, notes = complete_cells(cells, db, context)
    job = jobs.resolve(full, db, **context)  # type: ignore[arg-type]
    step = estimate_training(jobs.stack([job]))
    band = jobs.job_band(job)
    [predicted] = jobs.predictions(step, [job], [band])
    columns, origins = run_columns(job, step, band, question, db)
    ledger = estimate_run(columns)
    _check_progress(ledger, question, job)
    notes += [*job.warnings, *_warnings(ledger, question, job, predicted, db)]
    traced = estimate_run(Columns({n: np.float64(v) for n, v in columns.row(0).items()}), trace=True)
    from gpucalc.explaining import ledger_tree

    return RunResult(
        layout=layout_label(job, predicted),
        job=job,
        figures=_figures(ledger, columns),
        halvings=_halvings(ledger),
        terms=ledger_tree(traced, db, ROOTS),
        origins=origins,
        notes=list(dict.fromkeys(notes)),
    )


def run_columns(
    job: jobs.Job, step: Ledger, band: tuple[float, float], question: Question, db: Database
) -> tuple[Columns, dict[str, str]]:
    """One row per scenario (expected, ends of the spread, each of three times halved), and where values are from."""
    values = db_defaults.defaults(db.dirs, "run")
    power = db_defaults.defaults(db.dirs, "power")
    device, cluster = job.cluster.device, job.cluster
    origins: dict[str, str] = {}

    def spread(name: str, stated: float | None, default: Default, unit: float = 1.0) -> tuple[float, float, float]:
        if stated is not None:
            origins[name] = "stated"
            return (stated * unit,) * 3
        origins[name] = f"{default.origin}: {default.why}"
        return default.value * unit, default.low * unit, default.high * unit

    n = float(cluster.n_gpus)
    manual = "manual_" if question.manual else ""
    rate = spread(
        "failures_per_node_day", question.failures_per_node_day, values["node_failures_per_day"], 1 / NODE / DAY
    )
    small = spread("small_job_factor", None, values["small_job_factor"])
    detection = spread("detection", question.detection, values[f"{manual}detection"])
    restart = spread("restart", question.restart, values[f"{manual}restart"])
    overhead = spread("save_overhead", None, values["save_overhead"])
    repair = spread("repair", question.repair, values["repair"])
    pue = spread("pue", question.pue, power["pue"])
    factor = spread("load_factor", None, load_factor(power, device.arch))
    writes = spread(
        "write_bandwidth", question.write_bandwidth, values["write_per_gpu"], 1.0 if question.write_bandwidth else n
    )
    reads = spread(
        "read_bandwidth", question.read_bandwidth, values["read_per_gpu"], 1.0 if question.read_bandwidth else n
    )
    price, price_origin = _price(question, device.key, db)
    origins["price"] = price_origin
    intensity, origins["carbon_intensity"] = (
        (question.carbon_intensity / KWH, "stated")
        if question.carbon_intensity is not None
        else db_defaults.grid(db.dirs, question.grid)
    )
    electricity, origins["electricity_price"] = (
        (question.electricity_price, "stated")
        if question.electricity_price is not None
        else db_defaults.cost_default(db.dirs, "electricity_usd_per_kwh")
    )
    if device.tdp_watts is None:
        raise UsageError(
            f"{device.file} states no power limit, so the energy of a run is not known; add power.tdp to it"
        )
    slowdown, slowdown_origin = _slowdown(question, step, n)
    origins["straggler"] = slowdown_origin
    token_rate = float(step["metric/tokens_per_s_per_gpu"])
    mfu = float(step["metric/mfu"])
    if question.straggler_cv is not None or question.slow_gpu is not None:
        fitted = float(step["step/straggler"]) if question.straggler_cv is not None else 1.0
        token_rate, mfu = token_rate * fitted / _extra(question, n), mfu * fitted / _extra(question, n)
    zero = job.cells["zero_stage"] >= 1
    holders = n if zero else n / (job.cells["dp"] * job.cells["cp"])
    staging = device.host_bandwidth or job.cluster.network_bandwidth_per_gpu
    low, high = 1 / band[1], 1 / band[0]  # of the rate
    rack = cluster.domain > cluster.gpus_per_node and "torus" not in cluster.scale_up_topology
    scalars = {
        "n_gpus": n,
        "small_job_gpus": values["small_job_gpus"].value,
        "nodes": float(cluster.n_nodes),
        "gpus_per_node": float(cluster.gpus_per_node),
        "unit_gpus": float(min(cluster.domain, cluster.n_gpus) if rack else min(cluster.gpus_per_node, cluster.n_gpus)),
        "parameters": float(job.model.parameters_total),
        "state_bytes": values["state_bytes"].value,
        "training_tokens": question.tokens,
        "step_time": float(step["time/step"]),
        "slowdown": slowdown,
        "asynchronous": float(question.asynchronous),
        "stall_share": values["stall_share"].value,
        "holders": holders,
        "staging_bandwidth": staging * values["staging_share"].value,
        "hardware_share": values["hardware_share"].value,
        "availability": question.availability or values["availability"].value,
        "busy": question.busy or values["busy"].value,
        "stated_allocated": question.allocated or 0.0,
        "stated_interval": question.interval or 0.0,
        "stated_checkpoint": question.checkpoint_bytes or 0.0,
        "board_watts": device.tdp_watts,
        "network_watts": power["network_watts_per_gpu"].value,
        "carbon_intensity": intensity,
        "electricity_price": electricity / KWH,
    }
    # Rows: expected, best, worst, then expected with halved save time, failure rate and restart time.
    rows = {
        "gpu_failure_rate": _rows(rate, rate=0.5),
        "small_job_factor": _rows(small),
        "detection": _rows(detection),
        "restart": _rows(restart, restart=0.5),
        "repair": _rows(repair),
        "save_overhead": _rows(overhead, save=0.5),
        "write_bandwidth": _rows((writes[0], writes[2], writes[1]), save=2.0),
        "read_bandwidth": _rows((reads[0], reads[2], reads[1])),
        "staging_bandwidth": _rows((scalars.pop("staging_bandwidth"),) * 3, save=2.0),
        "stated_save": _rows((question.save_time or 0.0,) * 3, save=0.5),
        "stated_mtbf": _rows((question.mtbf or 0.0,) * 3, rate=2.0),
        "token_rate": _rows((token_rate, token_rate * high, token_rate * low)),
        "mfu": _rows((mfu, mfu * high, mfu * low)),
        "pue": _rows((pue[0], pue[0], pue[0])),
        "load_factor": _rows(factor),
        "gpu_price": _rows(price),
    }
    return Columns({**scalars, **rows}), origins


def _rows(values: tuple[float, float, float], save: float = 1.0, rate: float = 1.0, restart: float = 1.0) -> np.ndarray:
    return np.array([*values, *(values[0] * factor for factor in (save, rate, restart))])


def _extra(question: Question, n: float) -> float:
    """Slow-down by a stated variation of the GPUs and by one that is slower for good."""
    noise = float(laws.slowest_normal(n, question.straggler_cv)) if question.straggler_cv else 1.0
    return noise / (1 - (question.slow_gpu or 0.0))


def _slowdown(question: Question, step: Ledger, n: float) -> tuple[float, str]:
    fitted = float(step["step/straggler"])
    if question.straggler_cv is None and question.slow_gpu is None:
        return fitted, "fitted: growth of the step with the GPUs in published runs"
    base = 1.0 if question.straggler_cv is not None else fitted
    return base * _extra(question, n), "stated variation or slow GPU"


def _price(question: Question, gpu: str, db: Database) -> tuple[tuple[float, float, float], str]:
    if question.price is not None:
        return (question.price / HOUR,) * 3, "stated"
    known = db_defaults.price(db.dirs, gpu)
    if known is None:
        return (0.0, 0.0, 0.0), "no dated price of this GPU is known; state --price"
    age = db_defaults.age_in_months(known.date)
    said = f"{known.usd_per_hour:.2f} USD per GPU hour as of {known.date}, {age} months old ({known.source})"
    return (known.usd_per_hour / HOUR, known.low / HOUR, known.high / HOUR), said


def _check_progress(ledger: Ledger, question: Question, job: jobs.Job) -> None:
    """Say that a run makes no progress, and what would let it."""

    def expected(path: str) -> float:
        return float(np.asarray(ledger[path]).flat[0])

    mtbf, recovery, size = expected("failures/mtbf"), expected("failures/recovery"), expected("checkpoint/size")
    blocking, persist = expected("checkpoint/blocking"), expected("checkpoint/persist")
    good, n = expected("goodput/exact"), job.cluster.n_gpus
    longest = max(blocking, persist) if question.asynchronous and question.save_time is None else blocking
    if longest >= mtbf:
        way = "" if question.asynchronous else "--save async, "
        raise InfeasibleError(
            f"the job makes no progress: a checkpoint takes {_time(longest)} and the job fails every {_time(mtbf)}; "
            f"{way}a store that writes more than {size / (0.1 * mtbf) / 1e9:,.3g} GB/s, or fewer than the {n:,} GPUs "
            "would let it"
        )
    if good < LEAST_PROGRESS:
        slow = (
            f"recovery takes {_time(recovery)}"
            if recovery >= float(question.interval or 0)
            else f"checkpoints are {_time(float(question.interval or 0))} apart"
        )
        raise InfeasibleError(
            f"the job makes no progress: it fails every {_time(mtbf)} and {slow}; a restart well below "
            f"{_time(mtbf / 2)}, more frequent checkpoints, or fewer than the {n:,} GPUs would let it"
        )


def _time(seconds: float) -> str:
    """Seconds as people say them.

    >>> _time(30.0), _time(600.0), _time(7200.0), _time(3e5)
    ('30 s', '10 min', '2 h', '3.47 days')
    """
    for unit, size in (("days", DAY), ("h", HOUR), ("min", 60.0)):
        if seconds >= 2 * size or (unit == "min" and seconds >= 60):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _warnings(
    ledger: Ledger, question: Question, job: jobs.Job, predicted: Mapping[str, Any], db: Database
) -> list[str]:
    said = []
    lost = np.asarray(ledger["goodput/lost"])
    if lost[0] > DOUBTFUL_LOSS:
        said.append(
            f"failures cost about {100 * lost[0]:.0f} % of the time to first order; above 25 % event simulations "
            "differ from closed forms by up to a third"
        )
    elif lost[2] > DOUBTFUL_LOSS:
        said.append("at the worst end of the range failures cost over 25 %, where closed forms are rough")
    if predicted["pred_fit"] != "fits":
        said.append(f"memory of this layout: {predicted['pred_fit']}")
    small = db_defaults.defaults(db.dirs, "run")
    if question.mtbf is None and job.cluster.n_gpus < small["small_job_gpus"].value:
        said.append(
            f"below {small['small_job_gpus'].value:,.0f} GPUs jobs fail oftener than their nodes: factor "
            f"{small['small_job_factor'].value:g} ({small['small_job_factor'].why})"
        )
    price = db_defaults.price(db.dirs, job.cluster.device.key)
    if question.price is None and price is not None:
        said.append(f"price as of {price.date}, {db_defaults.age_in_months(price.date)} months old; state --price")
    elif question.price is None:
        said.append(f"no dated price of {job.cluster.device.key} is known; cost is left out, state --price")
    return said


# Figure → path, factor, and whether its best end is the second row (goodput, rates) or the third reads "more".
FIGURES = {
    "days": ("run/elapsed", 1 / DAY),
    "useful_days": ("run/useful", 1 / DAY),
    "gpu_hours": ("run/gpu-time", 1 / HOUR),
    "goodput_pct": ("goodput/exact", 100.0),
    "failures": ("failures/count", 1.0),
    "mtbf_h": ("failures/mtbf", 1 / HOUR),
    "recovery_s": ("failures/recovery", 1.0),
    "checkpoint_gb": ("checkpoint/size", 1e-9),
    "save_blocking_s": ("checkpoint/blocking", 1.0),
    "save_persist_s": ("checkpoint/persist", 1.0),
    "interval_s": ("checkpoint/interval", 1.0),
    "interval_young_s": ("checkpoint/interval/young", 1.0),
    "interval_daly_s": ("checkpoint/interval/daly", 1.0),
    "interval_exact_s": ("checkpoint/interval/exact", 1.0),
    "save_bandwidth_blocking_gb_per_s": ("checkpoint/bandwidth/blocking", 1e-9),
    "save_bandwidth_async_gb_per_s": ("checkpoint/bandwidth/asynchronous", 1e-9),
    "spares": ("spares/count", 1.0),
    "node_power_kw": ("power/node", 1e-3),
    "site_power_mw": ("power/site", 1e-6),
    "energy_kwh": ("energy/run", 1 / KWH),
    "energy_mwh": ("energy/run", 1e-3 / KWH),
    "carbon_t": ("energy/carbon", 1e-6),
    "cost_usd": ("cost/rental", 1.0),
    "electricity_usd": ("cost/electricity", 1.0),
    "usd_per_useful_gpu_hour": ("cost/useful-price", HOUR),
    "allocated_pct": ("yield/allocated", 100.0),
    "straggler_pct": ("yield/waiting", 100.0),
    "mfu_pct": ("yield/mfu", 100.0),
    "yield_pct": ("yield/cluster", 100.0),
}


def _figures(ledger: Ledger, columns: Columns) -> dict[str, tuple[float, float, float]]:
    """Each figure as expected, with the least and most over the ends of the spread."""
    priced = float(np.asarray(columns["gpu_price"])[0]) > 0
    found = {}
    for name, (path, factor) in FIGURES.items():
        if not priced and "usd" in name and name != "electricity_usd":
            continue
        rows = np.broadcast_to(np.asarray(ledger[path], dtype=float), (columns.rows or 1,)) * factor
        found[name] = (float(rows[0]), float(min(rows[:3])), float(max(rows[:3])))
    found["busy_pct"] = (100 * float(columns["busy"]),) * 3
    return found


def _halvings(ledger: Ledger) -> list[dict[str, Any]]:
    """What half the save time, failure rate and restart time bring."""
    good, elapsed = np.asarray(ledger["goodput/exact"]), np.asarray(ledger["run/elapsed"])
    cost = np.asarray(ledger["cost/rental"])
    return [
        {
            "halved": name,
            "goodput_pct": 100 * float(good[row]),
            "gain_points": 100 * float(good[row] - good[0]),
            "days_saved": float(elapsed[0] - elapsed[row]) / DAY,
            "usd_saved": float(cost[0] - cost[row]),
            "elasticity": float(laws.elasticity(elapsed[row], elapsed[0], 0.5, 1.0)),
        }
        for row, (name, _) in enumerate(HALVINGS, 3)
    ]
