"""`gpucalc power`: power, energy and cost of a cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli import quantities as given
from gpucalc.cli.output import emit_document, emit_rows, ranged_rows, talk
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context

COLUMNS_OUT = ("quantity", "value", "low", "high", "unit", "meaning")
MEANINGS = {
    "gpu_w": ("W", "a GPU under training load"),
    "node_kw": ("kW", "a node under training load, at the wall"),
    "node_idle_kw": ("kW", "a node idle"),
    "cluster_mw": ("MW", "nodes and switches under load"),
    "cluster_idle_mw": ("MW", "nodes and switches idle"),
    "pue": ("", "power of the site over that"),
    "site_mw": ("MW", "the site under load"),
    "year_mwh": ("MWh", "a year under load"),
    "step_kwh": ("kWh", "a step"),
    "j_per_token": ("J", "a token"),
    "electricity_usd_per_gpu_hour": ("USD", "electricity of a GPU hour"),
    "capital_usd_per_gpu_hour": ("USD", "capital of a GPU hour"),
    "operating_usd_per_gpu_hour": ("USD", "operation of a GPU hour"),
    "ownership_usd_per_gpu_hour": ("USD", "an owned GPU hour"),
    "capital_usd": ("USD", "capital of the cluster"),
    "electricity_usd_per_year": ("USD", "electricity of a year under load"),
    "ownership_usd_per_year": ("USD", "capital, operation and electricity of a year"),
}
_CAPS = (
    Column("cap_w", "number", "", unit="W", heading="cap", decimals=0),
    Column("step_time_s", "number", "", heading="step", unit="s", decimals=3),
    Column("slower_pct", "number", "", unit="%", heading="slower", decimals=1),
    Column("slower_range", "text", "", heading="range"),
    Column("node_kw", "number", "", unit="kW", heading="node", decimals=2),
    Column("j_per_token", "number", "", unit="J", heading="a token", decimals=3),
    Column("energy_pct", "number", "", unit="%", heading="energy", decimals=1),
)


def power(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    layout: opt.LayoutLabel = None,
    precision: opt.Precision = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    settings: opt.Settings = None,
    cap: Annotated[opt.Text, typer.Option("--cap", metavar="W", help="Power limit set on each GPU, as 500W.")] = None,
    utilisation: Annotated[
        opt.Text,
        typer.Option("--utilisation", metavar="SHARE", help="Load of the nodes between idle (0) and training (1)."),
    ] = None,
    pue: Annotated[
        opt.Text, typer.Option("--pue", metavar="X", help="Power of the site over that of its nodes.")
    ] = None,
    electricity_price: Annotated[
        opt.Text, typer.Option("--electricity-price", metavar="$/KWH", help="Price of electricity.")
    ] = None,
    capital: Annotated[
        opt.Text, typer.Option("--capital", metavar="$", help="A GPU with its share of node and network.")
    ] = None,
    years: Annotated[opt.Text, typer.Option("--years", metavar="N", help="In use until written off.")] = None,
    interest: Annotated[opt.Text, typer.Option("--interest", metavar="SHARE", help="A year, such as 10%.")] = None,
    explained: Annotated[bool, typer.Option("--explain", help="Print every term with its formula and source.")] = False,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> None:
    """Estimate power: nodes and site under load and idle, energy of tokens and steps, caps, capital and running cost.

    With a MODEL its step is predicted, and what caps on the GPUs do to its time and energy. MODEL may be "-": a row of
    plan's csv from standard input.

    \b
    gpucalc power --gpu h100-sxm-80gb --gpus 16384 --pue 1.1
    gpucalc power llama-3.1-70b --gpu h100-sxm-80gb --gpus 512 --seq-len 8192 --global-batch 512
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
            "precision": precision,
        },
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    opt.require(cells, "gpu", "n_gpus")
    for flag, text in (("--layout", layout), ("--global-batch", global_batch), ("--seq-len", seq_len)):
        if text is not None and "model" not in cells:
            raise UsageError(f"{flag} has no meaning without a MODEL")
    database = opt.open_database(db)

    from gpucalc.questions.power import Question
    from gpucalc.questions.power import power as answered

    question = Question(
        gpu=cells["gpu"],
        n_gpus=cells["n_gpus"],
        cap=given.quantity("--cap", cap, "W"),
        utilisation=given.share("--utilisation", utilisation, whole=True, zero=True),
        pue=given.at_least("--pue", pue, 1.0, "1.2", "; a site draws no less than its nodes"),
        electricity_price=given.at_least("--electricity-price", electricity_price, 0.0, "0.08"),
        capital=given.count("--capital", capital, "31250"),
        years=given.number("--years", years, "4"),
        interest=given.share("--interest", interest, zero=True),
    )
    found = answered(question, Context(database, profile=profile, fabric=fabric), cells if "model" in cells else None)
    _write(found, explained, form, columns, not no_header)


def _write(found: Any, explained: bool, form: str, columns: str | None, header: bool) -> None:
    rows = ranged_rows(found.figures, MEANINGS)
    if form == "json":
        emit_document(
            {
                "gpu": found.cluster.device.key,
                "n_gpus": found.cluster.n_gpus,
                "layout": found.layout,
                "power": {name: value[0] for name, value in found.figures.items()},
                "low": {name: value[1] for name, value in found.figures.items()},
                "high": {name: value[2] for name, value in found.figures.items()},
                "caps": found.caps,
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
    from gpucalc.cli.run import said
    from gpucalc.output.explain import tree
    from gpucalc.output.table import facts, table

    device = found.cluster.device
    heading = f"{found.cluster.n_gpus:,} x {device.name}, {device.tdp_watts:g} W each"
    pairs = [("cluster", heading), *((row["meaning"], said(row)) for row in rows)]
    if found.layout:
        pairs.insert(1, ("layout", found.layout))
    sys.stdout.write(facts(pairs) + "\n")
    if found.caps:
        shown = [
            {**row, "slower_range": f"{row['slower_low_pct']:.1f} to {row['slower_high_pct']:.1f} %"}
            for row in found.caps
        ]
        sys.stdout.write("\n" + table(_CAPS, shown) + "\n")
    if explained:
        sys.stdout.write("\n" + facts(list(found.origins.items())) + "\n\n" + tree([], found.terms, ()) + "\n")
    talk("", *(f"note: {note}" for note in found.notes))
