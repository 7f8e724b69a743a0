"""`gpucalc diagnose`: where a present job loses its time."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.fit import word_of
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError

CAUSES_OUT = ("cause", "title", "value", "explained_pct", "plausibility", "pred_step_time_s", "pred_fit", "check")
TERMS_OUT = ("term", "pred_time_s", "share_pct", "unhidden_s", "note")
_HEADINGS = {
    "title": Column("title", "text", "", heading="cause"),
    "value": Column("value", "text", "", heading="needed value"),
    "explained_pct": Column("explained_pct", "number", "", unit="%", heading="of the gap", decimals=0),
    "plausibility": Column("plausibility", "number", "", heading="weight", decimals=2),
    "pred_step_time_s": Column("pred_step_time_s", "number", "", unit="s", heading="at most", scale="s"),
    "pred_fit": Column("pred_fit", "text", "", heading="fit"),
    "term": Column("term", "text", "", heading="term"),
    "pred_time_s": Column("pred_time_s", "number", "", unit="s", heading="predicted", scale="s"),
    "share_pct": Column("share_pct", "number", "", unit="%", heading="share", decimals=1),
    "note": Column("note", "text", "", heading=""),
}


def diagnose(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    measured: Annotated[
        opt.Text, typer.Option("--measured-step-time", metavar="TIME", help="With a unit, such as 12.3s or 840ms.")
    ] = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    micro_batch: opt.MicroBatch = None,
    precision: opt.Precision = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    recompute: opt.Recompute = None,
    zero: opt.Zero = None,
    schedule: opt.Schedule = None,
    layout: opt.LayoutLabel = None,
    settings: opt.Settings = None,
    show: Annotated[
        opt.Text, typer.Option("--show", metavar="WHAT", help="causes or terms, where one table is printed.")
    ] = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> None:
    """Tell where a job loses its time: the measured step beside the predicted one, and what would explain the gap.

    Each cause is one constant within its bounds, or one setting, that differs from what was stated; its weight says
    how plausible it is beside the others. MODEL may be "-": a row of eval or plan, with measured_step_time_s.

    \b
    gpucalc diagnose llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --layout tp8-pp4-dp2-mbs1-zero1-sp --measured-step-time 21.5s

    \b
    gpucalc eval --from megatron run.sh --gpu h100-sxm-80gb | gpucalc diagnose - --measured-step-time 20s
    """
    from gpucalc.cli.explain import row_from_stdin
    from gpucalc.core.units import parse_quantity
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    shown = word_of("--show", show, ("causes", "terms"))
    base = row_from_stdin() if model == "-" else None
    cells = opt.job_cells(
        opt.stated_options(locals()),
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    if measured is not None:
        try:
            seconds = parse_quantity(measured, "s")
        except UsageError as error:
            raise UsageError(*(f"--measured-step-time: {problem}" for problem in error.problems)) from None
    elif base is not None and base.get("measured_step_time_s"):
        seconds = float(base["measured_step_time_s"])
    else:
        raise UsageError("missing: --measured-step-time, such as --measured-step-time 12.3s")
    if base is None and layout is None and "tp" not in cells:
        raise UsageError("which layout? write --layout with a label of plan, such as tp8-pp4-dp2-mbs1-zero1-sp")
    opt.require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)), "seq_len", "global_batch")
    database = opt.open_database(db)

    from gpucalc.jobs.context import Context
    from gpucalc.questions.diagnose import diagnose as diagnosed

    found = diagnosed(Context(database, profile, fabric), cells, seconds)
    _write(found, shown, form, columns, not no_header)


def _write(found: Any, shown: str | None, form: str, columns: str | None, header: bool) -> None:
    causes = [
        {
            "cause": one.cause.key,
            "title": one.cause.title,
            "value": one.says,
            "explained_pct": 100 * one.explained,
            "plausibility": one.weight,
            "pred_step_time_s": one.reaches,
            "pred_fit": one.fit,
            "check": one.cause.check,
        }
        for one in found.findings
    ]
    terms = [
        {
            "term": term.title,
            "pred_time_s": term.seconds,
            "share_pct": 100 * term.share,
            "unhidden_s": term.unhidden,
            "note": term.note,
        }
        for term in found.terms
    ]
    if form == "json":
        emit_document(
            {
                "layout": found.base.label,
                "measured_step_time_s": found.measured,
                "pred_step_time_s": found.base.step_time,
                "pred_step_time_low_s": found.low,
                "pred_step_time_high_s": found.high,
                "bound_s": found.base.terms["bounds/lower"],
                "ratio": found.ratio,
                "verdict": found.verdict,
                "terms": terms,
                "causes": causes,
                "summary": found.summary,
            }
        )
    elif form in {"table", "md"} and columns is None:
        if shown is None:
            sys.stdout.write("\n".join(found.summary) + "\n\n")
        if shown != "causes":
            _table(("term", "pred_time_s", "share_pct", "note"), terms, form, header)
        if shown is None and causes:
            sys.stdout.write("\n")
        if shown != "terms" and causes:
            _table(
                ("title", "value", "explained_pct", "plausibility", "pred_step_time_s", "pred_fit"),
                causes,
                form,
                header,
            )
            talk(
                "",
                '"at most" is the step at the bound of a constant; weights compare causes with each other and are '
                "no probabilities: priors are assumptions",
            )
    elif shown == "terms":
        emit_rows(form, TERMS_OUT, terms, columns, header)
    else:
        emit_rows(form, CAUSES_OUT, causes, columns, header)


def _table(names: tuple[str, ...], rows: list[dict[str, Any]], form: str, header: bool) -> None:
    from gpucalc.output.table import table

    sys.stdout.write(table([_HEADINGS[n] for n in names], rows, markdown=form == "md", header=header) + "\n")
