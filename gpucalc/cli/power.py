"""`gpucalc power`: power, energy and cost of a cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import JobOptions, place_of, require
from gpucalc.cli.mixed import CutOptions, power_mixed
from gpucalc.cli.option import option, values_of
from gpucalc.cli.output import OutputOptions, emit_document, ranged_rows, said, to_stderr
from gpucalc.cli.values import at_least, count, number, quantity, share
from gpucalc.core.columns import Column

if TYPE_CHECKING:
    from gpucalc.questions.power import PowerResult

COLUMNS_OUT = ("quantity", "value", "low", "high", "unit", "meaning")
MEANINGS = {
    "gpu_w": ("W", "a GPU under load"),
    "node_kw": ("kW", "a node under load, at the wall"),
    "node_idle_kw": ("kW", "a node idle"),
    "run_node_kw": ("kW", "a node over the stated run, idle ends included"),
    "run_kwh": ("kWh", "the stated run, at the site"),
    "racks_kw": ("kW", "racks under load: trays, switch trays, shelves and pumps"),
    "cluster_mw": ("MW", "nodes and switches under load"),
    "cluster_idle_mw": ("MW", "nodes and switches idle"),
    "pue": ("", "power of the site over that"),
    "site_mw": ("MW", "the site under load"),
    "year_mwh": ("MWh", "a year under load"),
    "step_kwh": ("kWh", "a step"),
    "j_per_token": ("J", "a token"),
    "j_per_sample": ("J", "a sample"),
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


@dataclass(frozen=True)
class PowerOptions:
    """What is said of power and money; the fields are those of `questions.power.Question`."""

    cap: float | None = option("--cap W", "Power limit set on each GPU, as 500W.", read=quantity("W"))
    load: str = option("--load KIND", "training or inference.", default="training", choices=("training", "inference"))
    duration: float | None = option(
        "--duration TIME", "Of one run, such as 5min: its idle ends lower the mean.", read=quantity("s")
    )
    utilisation: float | None = option(
        "--utilisation SHARE",
        "Load of the nodes between idle (0) and full (1).",
        read=share(whole=True, zero=True),
    )
    pue: float | None = option(
        "--pue X",
        "Power of the site over that of its nodes.",
        read=at_least(1.0, "1.2", "; a site draws no less than its nodes"),
    )
    electricity_price: float | None = option(
        "--electricity-price $/KWH", "Price of electricity.", read=at_least(0.0, "0.08")
    )
    capital: float | None = option("--capital $", "A GPU with its share of node and network.", read=count("31250"))
    years: float | None = option("--years N", "In use until written off.", read=number("4"))
    interest: float | None = option("--interest SHARE", "A year, such as 10%.", read=share(zero=True))


@command(group="The whole cluster")
def power(
    *,
    job: JobOptions,
    given: PowerOptions,
    cuts: CutOptions,
    explained: bool = option("--explain", "Print every term with its formula and source."),
    output: OutputOptions,
) -> None:
    """Estimate power: nodes and site under load and idle, energy of tokens and steps, caps, capital and running cost.

    With a MODEL its step is predicted, and what caps on the GPUs do to its time and energy. MODEL may be "-": a row of
    plan's csv from standard input.

    \b
    gpucalc power --gpu h100-sxm-80gb --gpus 16384 --pue 1.1
    gpucalc power llama-3.1-70b --gpu h100-sxm-80gb --gpus 512 --seq-len 8192 --global-batch 512
    """
    if cuts.asked(job.gpu):
        power_mixed(job, cuts, values_of(given), output)
        return
    cells = job.whole()
    require(cells, "gpu", "n_gpus")
    job.refuse_without_model(cells)

    from gpucalc.questions.power import Question
    from gpucalc.questions.power import power as answered

    question = Question(**place_of(cells), **values_of(given))
    found = answered(question, job.context(), cells if "model" in cells else None)
    _write(found, explained, output)


def _write(found: PowerResult, explained: bool, output: OutputOptions) -> None:
    rows = ranged_rows(found.figures, MEANINGS)
    if output.json:
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
    if output.form != "table" or output.columns is not None:
        output.rows(COLUMNS_OUT, rows)
        to_stderr(*(f"note: {note}" for note in found.notes))
        return
    from gpucalc.output.explain import tree
    from gpucalc.output.table import facts, table

    device = found.cluster.device
    limit = "no limit stated" if device.tdp_watts is None else f"{device.tdp_watts:g} W each"
    heading = f"{found.cluster.n_gpus:,} x {device.name}, {limit}"
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
    to_stderr("", *(f"note: {note}" for note in found.notes))
