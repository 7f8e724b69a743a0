"""`gpucalc run`: a training run as a whole."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import laid_out, say_idle
from gpucalc.cli.job_options import JobOptions, require, require_job
from gpucalc.cli.mixed import CutOptions, mixed_step_of
from gpucalc.cli.networks import asks_of_network
from gpucalc.cli.option import option, values_of
from gpucalc.cli.output import OutputOptions, emit_document, ranged_rows, said, to_stderr
from gpucalc.cli.values import at_least, count, number, quantity, share
from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.questions.run import RunResult

COLUMNS_OUT = ("quantity", "value", "low", "high", "unit", "meaning")
# Figure → unit and what it is.
MEANINGS = {
    "days": ("days", "the whole run"),
    "useful_days": ("days", "its steps alone"),
    "gpu_hours": ("h", "GPU hours"),
    "goodput_pct": ("%", "share of the time that is useful"),
    "failures": ("", "interruptions"),
    "mtbf_h": ("h", "mean time between them"),
    "recovery_s": ("s", "detection, restart, loading, unsaved work beside half an interval"),
    "checkpoint_gb": ("GB", "one checkpoint"),
    "save_blocking_s": ("s", "a save stops the job"),
    "save_persist_s": ("s", "until a save is on the store"),
    "interval_s": ("s", "between checkpoints, as taken"),
    "interval_young_s": ("s", "best by Young"),
    "interval_daly_s": ("s", "best by Daly"),
    "interval_exact_s": ("s", "best exactly"),
    "write_gb_per_s": ("GB/s", "the store writes"),
    "read_gb_per_s": ("GB/s", "the store reads"),
    "restart_s": ("s", "scheduling, processes and communicators of a restart"),
    "interval_blocking_s": ("s", "between saves that block 5 % of the time (stated, or the best one for them)"),
    "save_bandwidth_blocking_gb_per_s": ("GB/s", "for blocking saves at that interval"),
    "save_bandwidth_half_hour_gb_per_s": ("GB/s", "for blocking saves every 30 min"),
    "save_bandwidth_async_gb_per_s": ("GB/s", "to write one in the background within the interval as taken"),
    "spares": ("", "nodes (trays of a rack) for the target availability"),
    "spare_racks": ("", "racks, for failures that take a whole one"),
    "shrunk_pct": ("%", "throughput while one replica is missing and not replaced"),
    "pair_loss_pct": ("%", "chance that two nodes lost at once held both in-memory copies of a state"),
    "node_power_kw": ("kW", "a node under load, at the wall"),
    "site_power_mw": ("MW", "the site"),
    "energy_kwh": ("kWh", "electricity of the run"),
    "energy_mwh": ("MWh", "the same"),
    "carbon_t": ("t", "CO2 of the electricity"),
    "cost_usd": ("USD", "GPUs"),
    "electricity_usd": ("USD", "electricity"),
    "usd_per_useful_gpu_hour": ("USD", "a GPU hour of useful work"),
    "allocated_pct": ("%", "GPUs that work, not spare"),
    "busy_pct": ("%", "of their time in a job"),
    "straggler_pct": ("%", "of a step waiting for the slowest"),
    "mfu_pct": ("%", "model FLOPs over the dense peak, without stragglers"),
    "yield_pct": ("%", "allocated × busy × goodput × (1 - straggler) × MFU"),
}
PRODUCT = ("allocated_pct", "busy_pct", "goodput_pct", "straggler_pct", "mfu_pct", "yield_pct")


SAVES = ("async", "blocking", "memory")
RECOVERIES = ("automatic", "manual", "replica", "elastic")


@dataclass(frozen=True)
class RunOptions:
    """What is said of a run beside its job; the fields are those of `questions.run_scenarios.Question`."""

    tokens: float | None = option(
        "--tokens, --samples N",
        "Of the run, such as 15T; samples (images, rows …) where the model is no decoder.",
        read=count("15T"),
    )
    save: str = option(
        "--save KIND",
        "async or blocking checkpoints, or memory: copies in other nodes' memory.",
        default="async",
        choices=SAVES,
    )
    recovery: str = option(
        "--recovery KIND",
        "automatic: all start again; manual: a person notices; replica: the failed one starts again while the others "
        "go on; elastic: the others go on without it until its node is repaired.",
        default="automatic",
        choices=RECOVERIES,
    )
    failures_per_node_day: float | None = option(
        "--failure-rate R", "Failures per day of a node of 8 GPUs, as 0.0038.", read=number("0.0038")
    )
    mtbf: float | None = option(
        "--mtbf TIME", "Mean time between failures of the job, such as 3.1h.", read=quantity("s")
    )
    detection: float | None = option("--detection TIME", "Until a failure is noticed.", read=quantity("s"))
    restart: float | None = option("--restart TIME", "Until the job runs again.", read=quantity("s"))
    interval: float | None = option(
        "--interval TIME", "Between checkpoints; the best one without it.", read=quantity("s")
    )
    save_time: float | None = option("--save-time TIME", "That a checkpoint stops the job.", read=quantity("s"))
    checkpoint_bytes: float | None = option("--checkpoint SIZE", "Bytes of one checkpoint.", read=quantity("B"))
    write_bandwidth: float | None = option(
        "--write-bandwidth RATE", "Of the store in total, such as 60GB/s.", read=quantity("B/s")
    )
    read_bandwidth: float | None = option(
        "--read-bandwidth RATE", "Of the store in total, such as 120GB/s.", read=quantity("B/s")
    )
    availability: float | None = option(
        "--availability SHARE",
        "Probability that the spares suffice, as 99%.",
        read=share(why="; no number of spares gives certainty"),
    )
    repair: float | None = option("--repair TIME", "Until a failed node is back.", read=quantity("s"))
    maintenance: float | None = option(
        "--maintenance TIME", "Planned stops in a month of 30 days, such as 8h.", read=quantity("s")
    )
    allocated: float | None = option(
        "--allocated SHARE", "GPUs given to jobs; from the spares without it.", read=share(whole=True)
    )
    busy: float | None = option("--busy SHARE", "Time in which jobs hold their GPUs.", read=share(whole=True))
    straggler_cv: float | None = option(
        "--straggler-cv SHARE", "Variation of the GPUs' speed, such as 1%.", read=share()
    )
    slow_gpu: float | None = option("--slow-gpu SHARE", "One GPU is slower for good by this share.", read=share())
    pue: float | None = option(
        "--pue X",
        "Power of the site over that of its nodes.",
        read=at_least(1.0, "1.2", "; a site draws no less than its nodes"),
    )
    grid: str = option("--grid COUNTRY", "Whose electricity, such as france.", default="usa")
    carbon_intensity: float | None = option(
        "--carbon-intensity G/KWH", "Of the electricity; instead of --grid.", read=at_least(0.0, "369")
    )
    price: float | None = option("--price $/H", "Price of a GPU hour.", read=number("2.35"))
    electricity_price: float | None = option(
        "--electricity-price $/KWH", "Price of electricity.", read=at_least(0.0, "0.08")
    )


@command(group="The whole cluster")
def run(
    *,
    job: JobOptions,
    given: RunOptions,
    cuts: CutOptions,
    explained: bool = option("--explain", "Print every term with its formula and source."),
    output: OutputOptions,
) -> None:
    """Cost a whole training run: days, failures, checkpoints, spares, energy, carbon, money, and the cluster's yield.

    Ranges span the published spread of failure rates, detection and restart, the 80 % band of the step, and dated
    prices. Without --layout the planner's best is taken. MODEL may be "-": one row of plan's csv from standard input.

    \b
    gpucalc run llama-3.1-70b --gpu h100-sxm-80gb --gpus 2048 --tokens 15T --grid france
    """
    mixed = cuts.asked(job.gpu)
    cells = {} if mixed else job.whole()
    network = not mixed and asks_of_network(cells)
    if not mixed and not network:
        require_job(cells, step=False)
    if given.tokens is None:
        said = "--samples 100M, the samples of the run" if network else "--tokens 15T, the tokens of the run"
        raise UsageError(f"missing: {said}")
    if given.mtbf is not None and given.failures_per_node_day is not None:
        raise UsageError("--mtbf and --failure-rate say the same; write one of them")

    from gpucalc.layouts.axes import decided_axes
    from gpucalc.questions.run import run as answered
    from gpucalc.questions.run_scenarios import Question

    if mixed:
        from gpucalc.questions.mixed_use import run_mixed

        step, context = mixed_step_of(job, cuts)
        _write(run_mixed(step, Question(**values_of(given)), context), explained, output)
        return
    context = job.context()
    if network:
        from gpucalc.questions.run import run_network

        require(cells, "gpu", "n_gpus")
        _write(run_network(cells, Question(**values_of(given)), context), explained, output)
        return
    found = answered(cells, Question(**values_of(given)), context)
    _write(found, explained, output)

    def ask(cells: Mapping[str, Any], values: Mapping[str, Any], context: Context) -> Hashable:
        figures = answered(cells, Question(**values), context).figures
        return tuple(tuple(figure) for figure in figures.values())

    axes = decided_axes()
    whole = laid_out(cells, found.job.cells) if found.job is not None else cells
    free = () if "tp" in cells else tuple(axes)
    say_idle(job, given, whole, context, ask, free=free, needed=("tokens",), words={"grid": ("france", "poland")})


def _write(found: RunResult, explained: bool, output: OutputOptions) -> None:
    rows = ranged_rows(found.figures, MEANINGS)
    if output.json:
        emit_document(
            {
                "layout": found.layout,
                "model": found.step.model,
                "gpu": ",".join(found.step.gpus),
                "n_gpus": found.step.n_gpus,
                "run": {name: value[0] for name, value in found.figures.items()},
                "low": {name: value[1] for name, value in found.figures.items()},
                "high": {name: value[2] for name, value in found.figures.items()},
                "product": {name.removesuffix("_pct"): found.figures[name][0] / 100 for name in PRODUCT},
                "halvings": found.halvings,
                "alternatives": found.alternatives,
                "origins": found.origins,
                "notes": found.notes,
                "terms": found.terms,
            }
        )
        return
    if output.form != "table" or output.columns is not None:
        output.rows(COLUMNS_OUT, rows)
        to_stderr(*(f"note: {note}" for note in found.notes))
        return
    from gpucalc.output.explain import tree
    from gpucalc.output.table import facts

    pairs = [
        ("run", f"{found.step.model}, {found.step.names}, layout {found.layout}"),
        *((row["meaning"], said(row)) for row in rows),
    ]
    sys.stdout.write(facts(pairs) + "\n\n" + _product(found) + "\n\n")
    sys.stdout.write(_halvings(found) + "\n" + _alternatives(found) + "\n")
    if explained:
        origins = [(name, text) for name, text in found.origins.items()]
        sys.stdout.write("\n" + facts(origins) + "\n\n" + tree([], found.terms, ()) + "\n")
    to_stderr("", *(f"note: {note}" for note in found.notes))


def _product(found: RunResult) -> str:
    f = {name: found.figures[name][0] for name in PRODUCT}
    return (
        f"yield of the cluster: {f['allocated_pct']:.1f} % allocated × {f['busy_pct']:.0f} % busy × "
        f"{f['goodput_pct']:.1f} % goodput × {100 - f['straggler_pct']:.1f} % not waiting × {f['mfu_pct']:.1f} % MFU = "
        f"{f['yield_pct']:.1f} % of the dense peak"
    )


def _halvings(found: RunResult) -> str:
    lines = []
    for one in found.halvings:
        money = f", {one['usd_saved']:,.0f} USD" if one["usd_saved"] else ""
        lines.append(
            f"half the {one['halved']}: goodput {one['goodput_pct']:.2f} % ({one['gain_points']:+.2f} points), "
            f"{one['days_saved']:.2f} days{money} saved"
        )
    return "\n".join(lines)


def _alternatives(found: RunResult) -> str:
    """One line for the ways of saving, one for those of recovering."""
    lines = []
    for way, heading in (("save", "saves"), ("recovery", "recovery")):
        parts = [
            f"{one[way]} {one['goodput_pct']:.2f} % ({one['points']:+.2f} points)"
            for one in found.alternatives
            if way in one
        ]
        lines.append(f"goodput by {heading}: " + ", ".join(parts))
    return "\n".join(lines)
