"""`gpucalc scale`: strong and weak scaling curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import laid_out, say_effects
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.networks import asks_of_network, write_rows_of
from gpucalc.cli.option import option
from gpucalc.cli.output import FigureOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer, share
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.questions.scale import Curves, Point

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
EFFICIENCY = Column("efficiency_pct", "number", "", unit="%", heading="efficiency", decimals=1)
_TABLE = (
    Column("mode", "text", "strong or weak", heading="mode"),
    COLUMNS["n_gpus"],
    COLUMNS["global_batch"],
    COLUMNS["layout"],
    COLUMNS["pred_step_time_s"],
    Column("pred_tokens_per_s_per_gpu", "number", "", heading="tokens/s/GPU", decimals=0),
    Column("speedup", "number", "", heading="speed-up", decimals=2),
    EFFICIENCY,
    Column("largest_loss", "text", "", heading="largest loss"),
)


@dataclass(frozen=True)
class ScaledJob(JobOptions):
    """A job on several numbers of GPUs."""

    n_gpus: str = option("--gpus LIST", "Counts: 8,16,64, a range 8..4096 (doubling) or 8..64:8.", default="8..1024")


@command(group="Plan")
def scale(
    *,
    job: ScaledJob,
    mode: str = option("--mode NAME", "strong, weak or both.", default="both", choices=MODES),
    straggler_cv: float | None = option(
        "--straggler-cv SHARE", "Variation of workers' speed, such as 0.01 or 1%.", read=share()
    ),
    straggler_shape: str = option("--straggler-shape NAME", "normal or lognormal.", default="normal", choices=SHAPES),
    straggler_gpus: int = option(
        "--straggler-gpus N", "GPUs that vary together, such as 8 for a node.", default="1", read=positive_integer
    ),
    exhaustive: bool = option("--exhaustive", "Search every layout, as plan does."),
    output: FigureOptions,
) -> int:
    """Scale a job over GPU counts: the best layout at each, efficiency, serial fraction, and what takes over.

    Strong scaling keeps the global batch; in weak scaling it belongs to the smallest count and grows with it.
    --layout holds at every count, with dp following; stars leave axes to the search, as in tp8-pp4-*.

    \b
    gpucalc scale llama-3.1-70b --gpu h100-sxm-80gb --gpus 64..4096 --seq-len 8192 --global-batch 1024
    """
    cells = job.cells(free=True)
    if asks_of_network(cells):
        from gpucalc.questions.network import scale_network
        from gpucalc.questions.scale import parse_counts

        require(cells, "gpu")
        rows = scale_network(cells, job.context(), parse_counts(job.n_gpus))
        write_rows_of(rows, output, COLUMNS["n_gpus"], EFFICIENCY)
        return ExitStatus.OK
    require(cells, "model", "gpu", "seq_len", "global_batch")
    for name in ("n_gpus", "dp"):
        if name in cells:
            raise UsageError(f"{name} cannot be stated beside the counts of --gpus; it changes from one to the next")

    from gpucalc.questions import scale as scaling

    counts = scaling.parse_counts(job.n_gpus)
    straggling = None if straggler_cv is None else scaling.Straggling(straggler_cv, straggler_shape, straggler_gpus)
    context = job.context()
    curves = scaling.scale(context, cells, counts, mode, straggling, exhaustive)
    rows = [_row(point) for point in curves.points]
    if output.plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.scaling import scaling_figure

        save(scaling_figure([row | _terms(point) for row, point in zip(rows, curves.points, strict=True)]), output.plot)
    _write(curves, rows, output)
    largest = next((point.outcome for point in reversed(curves.points) if point.outcome), None)
    if largest is not None:
        from gpucalc.layouts.axes import decided_axes

        say_effects(job, laid_out(cells, largest.job.cells), context, free=(*decided_axes(), "global_batch"))
    return ExitStatus.OK if any(p.outcome for p in curves.points) else ExitStatus.INFEASIBLE


def _row(point: Point) -> dict[str, Any]:
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


def _terms(point: Point) -> dict[str, float]:
    """The terms of the step, for the picture."""
    from gpucalc.jobs.variations import time_parts

    if point.outcome is None:
        return {}
    terms = {path: point.outcome.terms.get(path, 0.0) for path in time_parts()}
    terms["time/stragglers"] += point.step_time - point.outcome.step_time
    return terms


def _write(curves: Curves, rows: list[dict[str, Any]], output: FigureOptions) -> None:
    if output.json:
        emit_document(
            {
                "rows": rows,
                "laws": [vars(law) for law in curves.laws],
                "takeovers": [vars(one) for one in curves.takeovers],
                "notes": curves.notes,
            }
        )
        return
    if output.for_people:
        shown = [
            {
                **row,
                "layout": row["layout"] or "(none fits)",
                "largest_loss": _loss(row),
            }
            for row in rows
        ]
        output.table(_TABLE, shown)
    else:
        output.rows(COLUMNS_OUT, rows)
    to_stderr("", *_sentences(curves), *(f"note: {note}" for note in curves.notes))


def _loss(row: Mapping[str, Any]) -> str:
    from gpucalc.questions.scale import GROUP_TITLES

    name = row.get("largest_loss")
    return f"{GROUP_TITLES[name]} {row[f'share_{name}_pct']:.0f} %" if name else ""


def _sentences(curves: Curves) -> list[str]:
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
