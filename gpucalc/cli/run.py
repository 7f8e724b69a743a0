"""`gpucalc run`: a training run as a whole."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli import quantities as given
from gpucalc.cli.output import emit_document, emit_rows, ranged_rows, talk
from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context

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
    "save_bandwidth_blocking_gb_per_s": ("GB/s", "to block at most 5 % of the time"),
    "save_bandwidth_async_gb_per_s": ("GB/s", "to write one while the next is made"),
    "spares": ("", "nodes (racks, where a failure takes a rack) for the target availability"),
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


def run(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    tokens: Annotated[opt.Text, typer.Option("--tokens", metavar="N", help="Tokens of the run, such as 15T.")] = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    micro_batch: opt.MicroBatch = None,
    precision: opt.Precision = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    recompute: opt.Recompute = None,
    layout: opt.LayoutLabel = None,
    settings: opt.Settings = None,
    save: Annotated[str, typer.Option("--save", metavar="KIND", help="async or blocking checkpoints.")] = "async",
    recovery: Annotated[
        str, typer.Option("--recovery", metavar="KIND", help="automatic, or manual: a person notices and restarts.")
    ] = "automatic",
    failures: Annotated[
        opt.Text, typer.Option("--failure-rate", metavar="R", help="Failures per day of a node of 8 GPUs, as 0.0038.")
    ] = None,
    mtbf: Annotated[
        opt.Text, typer.Option("--mtbf", metavar="TIME", help="Mean time between failures of the job, such as 3.1h.")
    ] = None,
    detection: Annotated[
        opt.Text, typer.Option("--detection", metavar="TIME", help="Until a failure is noticed.")
    ] = None,
    restart: Annotated[opt.Text, typer.Option("--restart", metavar="TIME", help="Until the job runs again.")] = None,
    interval: Annotated[
        opt.Text, typer.Option("--interval", metavar="TIME", help="Between checkpoints; the best one without it.")
    ] = None,
    save_time: Annotated[
        opt.Text, typer.Option("--save-time", metavar="TIME", help="That a checkpoint stops the job.")
    ] = None,
    checkpoint: Annotated[
        opt.Text, typer.Option("--checkpoint", metavar="SIZE", help="Bytes of one checkpoint.")
    ] = None,
    write_bandwidth: Annotated[
        opt.Text, typer.Option("--write-bandwidth", metavar="RATE", help="Of the store in total, such as 60GB/s.")
    ] = None,
    read_bandwidth: Annotated[
        opt.Text, typer.Option("--read-bandwidth", metavar="RATE", help="Of the store in total, such as 120GB/s.")
    ] = None,
    availability: Annotated[
        opt.Text, typer.Option("--availability", metavar="SHARE", help="Probability that the spares suffice, as 99%.")
    ] = None,
    repair: Annotated[opt.Text, typer.Option("--repair", metavar="TIME", help="Until a failed node is back.")] = None,
    allocated: Annotated[
        opt.Text, typer.Option("--allocated", metavar="SHARE", help="GPUs given to jobs; from the spares without it.")
    ] = None,
    busy: Annotated[
        opt.Text, typer.Option("--busy", metavar="SHARE", help="Time in which jobs hold their GPUs.")
    ] = None,
    straggler_cv: Annotated[
        opt.Text, typer.Option("--straggler-cv", metavar="SHARE", help="Variation of the GPUs' speed, such as 1%.")
    ] = None,
    slow_gpu: Annotated[
        opt.Text, typer.Option("--slow-gpu", metavar="SHARE", help="One GPU is slower for good by this share.")
    ] = None,
    pue: Annotated[
        opt.Text, typer.Option("--pue", metavar="X", help="Power of the site over that of its nodes.")
    ] = None,
    grid: Annotated[str, typer.Option("--grid", metavar="COUNTRY", help="Whose electricity, such as france.")] = "usa",
    carbon: Annotated[
        opt.Text, typer.Option("--carbon-intensity", metavar="G/KWH", help="Of the electricity; instead of --grid.")
    ] = None,
    price: Annotated[opt.Text, typer.Option("--price", metavar="$/H", help="Price of a GPU hour.")] = None,
    electricity_price: Annotated[
        opt.Text, typer.Option("--electricity-price", metavar="$/KWH", help="Price of electricity.")
    ] = None,
    explained: Annotated[bool, typer.Option("--explain", help="Print every term with its formula and source.")] = False,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
) -> None:
    """Cost a whole training run: days, failures, checkpoints, spares, energy, carbon, money, and the cluster's yield.

    Ranges span the published spread of failure rates, detection and restart, the 80 % band of the step, and dated
    prices. Without --layout the planner's best is taken. MODEL may be "-": one row of plan's csv from standard input.

    \b
    gpucalc run llama-3.1-70b --gpu h100-sxm-80gb --gpus 2048 --tokens 15T --grid france
    """
    from gpucalc.cli.explain import row_from_stdin
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    base = row_from_stdin() if model == "-" else None
    cells = opt.job_cells(
        {
            "model": None if base is not None else model,
            "gpu": gpu,
            "n_gpus": gpus,
            "seq_len": seq_len,
            "global_batch": global_batch,
            "micro_batch": micro_batch,
            "precision": precision,
            "gpus_per_node": gpus_per_node,
            "inter_node_gbps_per_gpu": inter_node_gbps,
            "recompute": recompute,
        },
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    opt.require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)))
    wanted = given.count("--tokens", tokens)
    if wanted is None:
        raise UsageError("missing: --tokens 15T, the tokens of the run")
    asked: dict[str, Any] = {
        "tokens": wanted,
        "asynchronous": given.word("--save", save, ("async", "blocking")) == "async",
        "manual": given.word("--recovery", recovery, ("automatic", "manual")) == "manual",
        "failures_per_node_day": given.number("--failure-rate", failures, "0.0038"),
        "mtbf": given.quantity("--mtbf", mtbf, "s"),
        "detection": given.quantity("--detection", detection, "s"),
        "restart": given.quantity("--restart", restart, "s"),
        "interval": given.quantity("--interval", interval, "s"),
        "save_time": given.quantity("--save-time", save_time, "s"),
        "checkpoint_bytes": given.quantity("--checkpoint", checkpoint, "B"),
        "write_bandwidth": given.quantity("--write-bandwidth", write_bandwidth, "B/s"),
        "read_bandwidth": given.quantity("--read-bandwidth", read_bandwidth, "B/s"),
        "availability": given.share("--availability", availability, why="; no number of spares gives certainty"),
        "repair": given.quantity("--repair", repair, "s"),
        "allocated": given.share("--allocated", allocated, whole=True),
        "busy": given.share("--busy", busy, whole=True),
        "straggler_cv": given.share("--straggler-cv", straggler_cv),
        "slow_gpu": given.share("--slow-gpu", slow_gpu),
        "pue": given.at_least("--pue", pue, 1.0, "1.2", "; a site draws no less than its nodes"),
        "grid": grid,
        "carbon_intensity": given.at_least("--carbon-intensity", carbon, 0.0, "369"),
        "price": given.number("--price", price, "2.35"),
        "electricity_price": given.at_least("--electricity-price", electricity_price, 0.0, "0.08"),
    }
    if mtbf is not None and failures is not None:
        raise UsageError("--mtbf and --failure-rate say the same; write one of them")
    database = opt.open_database(db)

    from gpucalc.questions.run import run as answered
    from gpucalc.questions.run_scenarios import Question

    found = answered(
        cells, Question(**asked), Context(database, profile=profile, fabric=fabric, causal_flops=causal_flops)
    )
    _write(found, explained, form, columns, not no_header)


def _write(found: Any, explained: bool, form: str, columns: str | None, header: bool) -> None:
    rows = ranged_rows(found.figures, MEANINGS)
    if form == "json":
        emit_document(
            {
                "layout": found.layout,
                "model": found.job.model.name,
                "gpu": found.job.cluster.device.key,
                "n_gpus": found.job.cluster.n_gpus,
                "run": {name: value[0] for name, value in found.figures.items()},
                "low": {name: value[1] for name, value in found.figures.items()},
                "high": {name: value[2] for name, value in found.figures.items()},
                "product": {name.removesuffix("_pct"): found.figures[name][0] / 100 for name in PRODUCT},
                "halvings": found.halvings,
                "origins": found.origins,
                "notes": found.notes,
                "terms": found.terms,
            }
        )
        return
    if form != "table" or columns is not None:
        emit_rows(form, COLUMNS_OUT, rows, columns, header)
        talk(*(f"note: {note}" for note in found.notes))
        return
    from gpucalc.output.explain import tree
    from gpucalc.output.table import facts

    cluster = found.job.cluster
    pairs = [
        ("run", f"{found.job.model.name}, {cluster.n_gpus:,} x {cluster.device.name}, layout {found.layout}"),
        *((row["meaning"], said(row)) for row in rows),
    ]
    sys.stdout.write(facts(pairs) + "\n\n" + _product(found) + "\n\n")
    sys.stdout.write(_halvings(found) + "\n")
    if explained:
        origins = [(name, text) for name, text in found.origins.items()]
        sys.stdout.write("\n" + facts(origins) + "\n\n" + tree([], found.terms, ()) + "\n")
    talk("", *(f"note: {note}" for note in found.notes))


def said(row: dict[str, Any]) -> str:
    """A figure with its unit and range."""
    from gpucalc.output.table import significant

    value, low, high = (significant(float(row[name])) for name in ("value", "low", "high"))
    text = f"{value} {row['unit']}".strip()
    return text if low == high else f"{text}   ({low} to {high})"


def _product(found: Any) -> str:
    f = {name: found.figures[name][0] for name in PRODUCT}
    return (
        f"yield of the cluster: {f['allocated_pct']:.1f} % allocated × {f['busy_pct']:.0f} % busy × "
        f"{f['goodput_pct']:.1f} % goodput × {100 - f['straggler_pct']:.1f} % not waiting × {f['mfu_pct']:.1f} % MFU = "
        f"{f['yield_pct']:.1f} % of the dense peak"
    )


def _halvings(found: Any) -> str:
    lines = []
    for one in found.halvings:
        money = f", {one['usd_saved']:,.0f} USD" if one["usd_saved"] else ""
        lines.append(
            f"half the {one['halved']}: goodput {one['goodput_pct']:.2f} % ({one['gain_points']:+.2f} points), "
            f"{one['days_saved']:.2f} days{money} saved"
        )
    return "\n".join(lines)
