"""A training run as a question: a job and its layout, what may go wrong, and the scenarios that span the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import InfeasibleError, UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database import defaults as db_defaults
from gpucalc.database.defaults import HOUR, KWH
from gpucalc.database.reader import Database
from gpucalc.estimate.run import estimate_run
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas import scaling as laws
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.variations import layout_label
from gpucalc.questions.completed import complete_cells
from gpucalc.questions.power import rack_columns
from gpucalc.questions.run_scenarios import (
    ALTERNATIVES,
    DAY,
    HALVINGS,
    LAST,
    MONTH,
    Question,
    Spread,
    expanded,
    failure_spreads,
    span,
    without_question,
)
from gpucalc.questions.run_step import RunStep, step_of_job, step_of_network

DOUBTFUL_LOSS = 0.25  # share lost to failures from which closed forms and event simulations part
NOTED_FACTOR = 1.2  # of failures over those of the nodes, from which a note says so
LEAST_PROGRESS = 0.01  # goodput below which a run is said to make no progress
ROOTS = (
    *("run/elapsed", "goodput/useful", "goodput/exact", "failures/mtbf", "checkpoint/interval"),
    *(
        "checkpoint/bandwidth/blocking",
        "checkpoint/bandwidth/half-hour",
        "checkpoint/bandwidth/asynchronous",
        "spares/count",
        "yield/cluster",
        "energy/carbon",
        "energy/run",
    ),
    *("cost/rental", "cost/electricity", "cost/useful-price"),
)


@dataclass
class RunResult:
    """The answer: figures by scenario, what halving brings, and how it came about."""

    layout: str
    step: RunStep
    job: jobs.Job | None  # None of a plan on several kinds of GPU
    figures: dict[str, tuple[float, float, float]]  # name → expected, and the ends of its range
    halvings: list[dict[str, Any]]
    alternatives: list[dict[str, Any]]  # goodput with other ways of saving and recovering
    terms: list[dict[str, Any]]
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def run(cells: Mapping[str, Any], question: Question, context: Context) -> RunResult:
    """Everything about a run of `question.tokens` tokens.

    Raises UsageError for values outside their meaning, InfeasibleError where nothing fits or the run makes no progress.
    """
    full, notes = complete_cells(cells, context)
    job = jobs.resolve(full, context)
    step = estimate_training(jobs.stack([job]))
    [predicted] = jobs.predictions(step, [job], [jobs.job_band(job)])
    stepped = step_of_job(job, step, layout_label(job, predicted), predicted["pred_fit"], context.db)
    return run_of_step(stepped, question, context.db, notes, job)


def run_network(cells: Mapping[str, Any], question: Question, context: Context) -> RunResult:
    """Everything about a run of `question.tokens` samples of a network that is no decoder.

    Raises as `run` does.
    """
    from gpucalc.estimate.network import TRAINING
    from gpucalc.jobs.network import predict_networks
    from gpucalc.questions.network import network_label
    from gpucalc.questions.network_change import base_job

    if str(cells.get("mode") or TRAINING) != TRAINING:
        raise UsageError(f"a run is one of training; mode is {cells['mode']}")
    job, notes = base_job(cells, context)
    [row] = predict_networks([job])
    label = network_label(job.cells)
    if row["pred_fit"] == "oom":
        raise InfeasibleError(f"{label} needs {row['pred_peak_mem_gib']:.1f} GiB of a GPU, more than it has")
    unit = job.cells.get("sample") or job.network.sample
    notes = [*notes, f"the run counts {question.tokens:,.0f} samples ({unit}), not tokens"]
    return run_of_step(step_of_network(job, row, label, context.db), question, context.db, notes)


def run_of_step(
    step: RunStep, question: Question, db: Database, notes: Sequence[str] = (), job: jobs.Job | None = None
) -> RunResult:
    """The same of a step that is known: of one kind of GPU or of several."""
    columns, origins = run_columns(step, question, db)
    ledger = estimate_run(columns)
    _check_progress(ledger, question, step.n_gpus)
    traced = estimate_run(Columns(columns.row(0)), trace=True)
    from gpucalc.questions.explain import ledger_tree

    return RunResult(
        layout=step.layout,
        step=step,
        job=job,
        figures=_figures(ledger, columns),
        halvings=_halvings(ledger),
        alternatives=_alternatives(ledger, step.replicas),
        terms=ledger_tree(traced, db, ROOTS),
        origins=origins,
        notes=list(dict.fromkeys([*notes, *step.notes, *_warnings(ledger, question, step, db)])),
    )


def run_columns(step: RunStep, question: Question, db: Database) -> tuple[Columns, dict[str, str]]:
    """One row per scenario of `run_scenarios.expanded`, and where values are from."""
    power = db_defaults.defaults(db, "power")
    _check_ways(question, step)
    n, rack = float(step.n_gpus), step.rack_gpus > 0
    columns, origins = failure_spreads(
        question,
        n,
        step.parameters,
        step.holders,
        step.host_bandwidth,
        db,
        replicas=step.replicas,
        network_bandwidth=step.network_bandwidth,
        in_rack=rack,
    )
    pue = power["pue"]
    origins["pue"] = "stated" if question.pue is not None else f"{pue.origin}: {pue.why}"
    price, origins["price"] = _price(question, step.gpus, db)
    intensity, origins["carbon_intensity"] = _carbon_intensity(question, db)
    electricity, origins["electricity_price"] = _electricity(question, db)
    slowdown, origins["straggler"] = _slowdown(question, step.straggler, n)
    origins["step_time, token_rate, mfu"] = "estimate of a step of this layout, which gpucalc explain takes apart"
    token_rate, mfu = step.token_rate, step.mfu
    if question.straggler_cv is not None or question.slow_gpu is not None:
        fitted = step.straggler if question.straggler_cv is not None else 1.0
        token_rate, mfu = token_rate * fitted / _extra(question, n), mfu * fitted / _extra(question, n)
    low, high = 1 / step.band[1], 1 / step.band[0]  # of the rate
    if step.watts is not None:
        board, factor = step.watts
        origins["load_factor"] = f"{factor.origin}: {factor.why}"
        columns |= {"board_watts": board, "load_factor": Spread("load_factor", factor.value, factor.low, factor.high)}
        columns |= rack_columns(power, rack)
    columns |= {
        "nodes": step.nodes,
        "gpus_per_node": step.gpus_per_node,
        "unit_gpus": min(step.gpus_per_node, n),
        "rack_gpus": step.rack_gpus,
        "training_tokens": question.tokens,
        "step_time": step.step_time,
        "slowdown": slowdown,
        "network_watts": power["network_watts_per_gpu"].value,
        "carbon_intensity": intensity,
        "electricity_price": electricity / KWH,
        "pue": pue.value if question.pue is None else question.pue,
        "token_rate": Spread("step", token_rate, token_rate * high, token_rate * low),
        "mfu": Spread("step", mfu, mfu * high, mfu * low),
        "gpu_price": Spread("price", *price),
    }
    return Columns(without_question(expanded(columns))), origins


def _check_ways(question: Question, step: RunStep) -> None:
    """Refuse what has no meaning for the job."""
    if question.recovery in {"replica", "elastic"} and step.replicas < 2:
        raise UsageError(
            f"--recovery {question.recovery} needs a second data-parallel replica to go on with; this layout has one"
        )
    if question.maintenance is not None and question.maintenance >= MONTH:
        raise UsageError("--maintenance is the whole month of 30 days; write hours of it, such as 8h")


def _carbon_intensity(question: Question, db: Database) -> tuple[float, str]:
    if question.carbon_intensity is not None:
        return question.carbon_intensity / KWH, "stated"
    return db_defaults.grid(db, question.grid)


def _electricity(question: Question, db: Database) -> tuple[float, str]:
    if question.electricity_price is not None:
        return question.electricity_price, "stated"
    return db_defaults.cost_default(db, "electricity_usd_per_kwh")


def _extra(question: Question, n: float) -> float:
    """Slow-down by a stated variation of the GPUs and by one that is slower for good."""
    noise = float(laws.slowest_normal(n, question.straggler_cv)) if question.straggler_cv else 1.0
    return noise / (1 - (question.slow_gpu or 0.0))


def _slowdown(question: Question, fitted: float, n: float) -> tuple[float, str]:
    if question.straggler_cv is None and question.slow_gpu is None:
        return fitted, "fitted: growth of the step with the GPUs in published runs"
    base = 1.0 if question.straggler_cv is not None else fitted
    return base * _extra(question, n), "stated variation or slow GPU"


def _price(question: Question, gpus: Mapping[str, int], db: Database) -> tuple[tuple[float, float, float], str]:
    """Price of a GPU second with its range, the mean of all kinds; 0 where one of them has none."""
    if question.price is not None:
        return (question.price / HOUR,) * 3, "stated"
    known = {key: db_defaults.price(db, key) for key in gpus}
    if any(price is None for price in known.values()):
        return (0.0, 0.0, 0.0), "no dated price of this GPU is known; state --price"
    listed = {key: price for key, price in known.items() if price is not None}
    n = sum(gpus.values())
    value, low, high = (
        sum(gpus[key] * getattr(price, end) for key, price in listed.items()) / n / HOUR
        for end in ("usd", "low", "high")
    )
    said = "; ".join(
        f"{price.usd:.2f} USD per GPU hour of {key} as of {price.date}, "
        f"{db_defaults.age_in_months(price.date)} months old ({price.source})"
        for key, price in listed.items()
    )
    return (value, low, high), said


def _check_progress(ledger: Ledger, question: Question, n: int) -> None:
    """Say that a run makes no progress, and what would let it."""

    def expected(path: str) -> float:
        return float(np.asarray(ledger[path]).flat[0])

    mtbf, recovery, size = expected("failures/mtbf"), expected("failures/recovery"), expected("checkpoint/size")
    blocking, persist = expected("checkpoint/blocking"), expected("checkpoint/persist")
    good = expected("goodput/useful")
    waits = question.save != "blocking" and question.save_time is None
    longest = max(blocking, persist) if waits else blocking
    if longest >= mtbf and question.recovery in {"automatic", "manual"}:
        way = "--save async, " if question.save == "blocking" else "--save memory, " * (question.save == "async")
        way += f"a store that writes more than {size / (0.1 * mtbf) / 1e9:,.3g} GB/s"
        if question.save_time is not None:
            way = f"a --save-time well below {_time(mtbf)}"
        raise InfeasibleError(
            f"the job makes no progress: a checkpoint takes {_time(longest)} and the job fails every {_time(mtbf)}; "
            f"{way}, or fewer than the {n:,} GPUs would let it"
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


def _warnings(ledger: Ledger, question: Question, step: RunStep, db: Database) -> list[str]:
    said = []
    rows = len(np.asarray(ledger["failures/mtbf"]))
    lost = span(ledger["goodput/lost"], rows)
    if question.recovery in {"replica", "elastic"}:
        lost = (0.0, 0.0, 0.0)
    if lost[0] > DOUBTFUL_LOSS:
        said.append(
            f"failures cost about {100 * lost[0]:.0f} % of the time to first order; above 25 % event simulations "
            "differ from closed forms by up to a third"
        )
    elif lost[2] > DOUBTFUL_LOSS:
        said.append("at the worst end of the range failures cost over 25 %, where closed forms are rough")
    if step.fit != "fits":
        said.append(f"memory of this layout: {step.fit}")
    small = db_defaults.defaults(db, "run")
    n = step.n_gpus
    factor = float(np.asarray(ledger["failures/failing-gpus"]).flat[0]) / n
    if question.mtbf is None and question.failures_per_node_day is None and factor > NOTED_FACTOR:
        said.append(
            f"{n:,} GPUs are taken to fail {factor:.2f} times as often as their nodes "
            f"({small['small_job_factor'].why}); state --failure-rate or --mtbf"
        )
    for way, stated in (("write", question.write_bandwidth), ("read", question.read_bandwidth)):
        if stated is None:
            rate, low, high = (value / 1e9 for value in span(ledger[f"store/{way}"], rows))
            said.append(
                f"--{way}-bandwidth is not stated; a store of {rate:,.4g} GB/s is assumed ({low:,.4g} to "
                f"{high:,.4g}): {small[f'{way}_per_gpu'].why}; at most {small[f'{way}_most'].why}"
            )
    if "energy/run" not in ledger:
        said.append(f"{step.file} states no power limit; energy is left out (add power.tdp to it)")
    for key in () if question.price is not None else step.gpus:
        price = db_defaults.price(db, key)
        if price is None:
            said.append(f"no dated price of {key} is known; cost is left out, state --price")
        else:
            age = db_defaults.age_in_months(price.date)
            said.append(f"price of {key} as of {price.date}, {age} months old; state --price")
    return said


# Figure → path, factor, and whether its best end is the second row (goodput, rates) or the third reads "more".
FIGURES = {
    "days": ("run/elapsed", 1 / DAY),
    "useful_days": ("run/useful", 1 / DAY),
    "gpu_hours": ("run/gpu-time", 1 / HOUR),
    "goodput_pct": ("goodput/useful", 100.0),
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
    "interval_blocking_s": ("checkpoint/interval/blocking", 1.0),
    "save_bandwidth_half_hour_gb_per_s": ("checkpoint/bandwidth/half-hour", 1e-9),
    "write_gb_per_s": ("store/write", 1e-9),
    "read_gb_per_s": ("store/read", 1e-9),
    "restart_s": ("failures/restart", 1.0),
    "save_bandwidth_blocking_gb_per_s": ("checkpoint/bandwidth/blocking", 1e-9),
    "save_bandwidth_async_gb_per_s": ("checkpoint/bandwidth/asynchronous", 1e-9),
    "spares": ("spares/count", 1.0),
    "spare_racks": ("spares/racks", 1.0),
    "shrunk_pct": ("spares/shrunk", 100.0),
    "pair_loss_pct": ("spares/pair-loss", 100.0),
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
        if path not in ledger or (not priced and "usd" in name and name != "electricity_usd"):
            continue
        if name == "spare_racks" and not float(columns["rack_gpus"]):
            continue
        value, low, high = span(ledger[path], columns.rows or 1, share=name.endswith("_pct"))
        found[name] = (value * factor, low * factor, high * factor)
    found["busy_pct"] = (100 * float(columns["busy"]),) * 3
    return found


def _halvings(ledger: Ledger) -> list[dict[str, Any]]:
    """What half the save time, failure rate and restart time bring."""
    good, elapsed = np.asarray(ledger["goodput/useful"]), np.asarray(ledger["run/elapsed"])
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
        for row, name in enumerate(HALVINGS, -LAST)
    ]


def _alternatives(ledger: Ledger, replicas: float) -> list[dict[str, Any]]:
    """Goodput of the same run with each way of saving and recovering, in points beside the one asked for."""
    good = np.asarray(ledger["goodput/useful"])
    return [
        {way: value, "goodput_pct": 100 * float(good[row]), "points": 100 * float(good[row] - good[0])}
        for row, (way, value) in enumerate(ALTERNATIVES, -len(ALTERNATIVES))
        if replicas > 1 or value not in {"replica", "elastic"}
    ]
