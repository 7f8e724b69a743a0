"""`gpucalc scale`: strong and weak scaling curves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError, nearest

MODES = ("strong", "weak", "both")
SHAPES = ("normal", "lognormal")
SHARES = (
    *("work", "recompute", "host", "tp", "cp", "ep", "pp_bubble", "pp_transfer", "dp", "optimizer", "stragglers"),
)
COLUMNS_OUT = (
    *("mode", "n_gpus", "global_batch", "layout", "pred_step_time_s", "tokens_per_s", "pred_tokens_per_s_per_gpu"),
    *("pred_mfu_pct", "speedup", "efficiency_pct", "pred_fit", "largest_loss"),
    *(f"share_{name}_pct" for name in SHARES),
    "reason",
)
_TABLE = (
    Column("mode", "text", "strong or weak", heading="mode"),
    COLUMNS["n_gpus"],
    COLUMNS["global_batch"],
    COLUMNS["layout"],
    COLUMNS["pred_step_time_s"],
    Column("pred_tokens_per_s_per_gpu", "number", "", heading="tokens/s/GPU", decimals=0),
    Column("speedup", "number", "", heading="speed-up", decimals=2),
    Column("efficiency_pct", "number", "", unit="%", heading="efficiency", decimals=1),
    Column("largest_loss", "text", "", heading="largest loss"),
)


def scale(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="LIST", help="Counts: 8,16,64, a range 8..4096 (doubling) or 8..64:8.")
    ] = "8..1024",
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
    mode: Annotated[str, typer.Option("--mode", metavar="NAME", help="strong, weak or both.")] = "both",
    straggler_cv: Annotated[
        opt.Text,
        typer.Option("--straggler-cv", metavar="SHARE", help="Variation of workers' speed, such as 0.01 or 1%."),
    ] = None,
    straggler_shape: Annotated[
        str, typer.Option("--straggler-shape", metavar="NAME", help="normal or lognormal.")
    ] = "normal",
    straggler_gpus: Annotated[
        str, typer.Option("--straggler-gpus", metavar="N", help="GPUs that vary together, such as 8 for a node.")
    ] = "1",
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Search every layout, as plan does.")] = False,
    plot: opt.Plot = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
) -> int:
    """Scale a job over GPU counts: the best layout at each, efficiency, serial fraction, and what takes over.

    Strong scaling keeps the global batch; in weak scaling it belongs to the smallest count and grows with it.
    Tokens of --layout, such as tp8-pp4, hold at every count.

    \b
    gpucalc scale llama-3.1-70b --gpu h100-sxm-80gb --gpus 64..4096 --seq-len 8192 --global-batch 1024
    """
    from gpucalc.layouts.label import parse_label

    form = opt.chosen_format(form)
    opt.check_plot(plot)
    mode = _word("--mode", mode, MODES)
    shape = _word("--straggler-shape", straggler_shape, SHAPES)
    cells = opt.job_cells(
        opt.stated_options({**locals(), "gpus": None}),  # a list of counts, and no cell
        settings,
        parse_label(layout) if layout is not None else None,
    )
    opt.require(cells, "model", "gpu", "seq_len", "global_batch")
    for name in ("n_gpus", "dp"):
        if name in cells:
            raise UsageError(f"{name} cannot be stated beside the counts of --gpus; it changes from one to the next")
    variation = None if straggler_cv is None else opt.share("--straggler-cv", straggler_cv)
    together = opt.positive_integer("--straggler-gpus", straggler_gpus)
    database = opt.open_database(db)

    from gpucalc.jobs.context import Context
    from gpucalc.questions import scale as scaling

    counts = scaling.parse_counts(gpus)
    straggling = None if variation is None else scaling.Straggling(variation, shape, together)
    context = Context(database, profile, fabric, causal_flops)
    curves = scaling.scale(context, cells, counts, mode, straggling, exhaustive)
    rows = [_row(point) for point in curves.points]
    if plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.scaling import scaling_figure

        save(scaling_figure([row | _terms(point) for row, point in zip(rows, curves.points, strict=True)]), plot)
    _write(curves, rows, form, columns, not no_header)
    return ExitStatus.OK if any(p.outcome for p in curves.points) else ExitStatus.INFEASIBLE


def _word(flag: str, text: str, known: tuple[str, ...]) -> str:
    word = text.strip().casefold()
    if word not in known:
        near = nearest(word, known, 1)
        raise UsageError(
            f"{flag} is {text!r}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
        )
    return word


def _row(point: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"mode": point.mode, "n_gpus": point.n_gpus, "global_batch": point.global_batch}
    if point.outcome is None:
        return {**row, "layout": "", "reason": point.reason}
    slow = point.step_time / point.outcome.step_time
    return {
        **row,
        "layout": point.outcome.label,
        "pred_step_time_s": point.step_time,
        "tokens_per_s": point.tokens_per_s,
        "pred_tokens_per_s_per_gpu": point.tokens_per_s / point.n_gpus,
        "pred_mfu_pct": point.outcome.row["pred_mfu_pct"] / slow,
        "speedup": point.speedup,
        "efficiency_pct": 100 * point.efficiency,
        "pred_fit": point.outcome.fit,
        "largest_loss": point.largest_loss,
        **{f"share_{name}_pct": 100 * point.shares[name] for name in SHARES},
        "reason": "",
    }


def _terms(point: Any) -> dict[str, float]:
    """The terms of the step, for the picture."""
    from gpucalc.jobs.variations import time_parts

    if point.outcome is None:
        return {}
    terms = {path: point.outcome.terms.get(path, 0.0) for path in time_parts()}
    terms["time/stragglers"] += point.step_time - point.outcome.step_time
    return terms


def _write(curves: Any, rows: list[dict[str, Any]], form: str, columns: str | None, header: bool) -> None:
    if form == "json":
        emit_document(
            {
                "rows": rows,
                "laws": [vars(law) for law in curves.laws],
                "takeovers": [vars(one) for one in curves.takeovers],
                "notes": curves.notes,
            }
        )
        return
    if form in {"table", "md"} and columns is None:
        from gpucalc.output.table import table

        shown = [
            {
                **row,
                "layout": row["layout"] or "(none fits)",
                "largest_loss": _loss(row),
            }
            for row in rows
        ]
        sys.stdout.write(table(_TABLE, shown, markdown=form == "md", header=header) + "\n")
    else:
        emit_rows(form, COLUMNS_OUT, rows, columns, header)
    talk("", *_sentences(curves), *(f"note: {note}" for note in curves.notes))


def _loss(row: Mapping[str, Any]) -> str:
    from gpucalc.questions.scale import GROUP_TITLES

    name = row.get("largest_loss")
    return f"{GROUP_TITLES[name]} {row[f'share_{name}_pct']:.0f} %" if name else ""


def _sentences(curves: Any) -> list[str]:
    from gpucalc.questions.scale import GROUP_TITLES, breaking_point

    lines = []
    for law in curves.laws:
        lines.append(
            f"{law.mode}: {law.law}'s serial fraction is {100 * law.serial_fraction:.3g} % of the step on "
            f"{law.from_gpus} GPUs; the curve lies {100 * law.residual:.1f} % (root mean square) from that law"
        )
    for mode in dict.fromkeys(p.mode for p in curves.points):
        mine = [p for p in curves.points if p.mode == mode]
        broken = breaking_point(mine)
        if broken is not None:
            title = GROUP_TITLES[broken.largest_loss]
            lines.append(f"{mode}: efficiency falls below 80 % at {broken.n_gpus} GPUs; the largest loss is {title}")
        for one in (t for t in curves.takeovers if t.mode == mode):
            said = []
            if one.largest_at:
                said.append(f"is the largest loss from {one.largest_at} GPUs")
            if one.noticed_at:
                said.append(f"takes 10 % of the step from {one.noticed_at} GPUs")
            lines.append(f"{mode}: {GROUP_TITLES[one.term]} {' and '.join(said)}")
        lines += [f"{mode}: {p.n_gpus} GPUs: {p.reason}" for p in mine if p.outcome is None]
    return lines
