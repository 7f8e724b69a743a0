"""`gpucalc plan` on a cluster of several kinds of GPU: writing its answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.ranking import band, tie_marks
from gpucalc.cli.values import positive_integer
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.questions.mixed import MixedResult

ROWS = (
    "layout",
    "manner",
    "split",
    "split_unit",
    "pred_step_time_s",
    "pred_step_time_low_s",
    "pred_step_time_high_s",
    "pred_tokens_per_s_per_gpu",
    "pred_peak_mem_gib",
    "pred_fit",
    "pred_recompute",
)
_TABLE = (
    Column("tie", "text", "tied with the row above", heading=" "),
    COLUMNS["layout"],
    Column("manner", "text", "what is uneven", heading="uneven"),
    Column("shares", "text", "work of each kind", heading="micro-batches a replica, or layers a stage"),
    COLUMNS["pred_step_time_s"],
    COLUMNS["pred_tokens_per_s_per_gpu"],
    COLUMNS["pred_peak_mem_gib"],
    COLUMNS["pred_fit"],
    Column("band", "text", "80 % band of the step time", heading="80 % band"),
)


def is_mixed(gpu: str | None) -> bool:
    """Whether --gpu names several kinds with their numbers."""
    return gpu is not None and ("," in gpu or ":" in gpu)


def plan_mixed(job: JobOptions, output: OutputOptions, top: int) -> int:
    """Rank uneven layouts and compare them with the parts alone; --gpu names the kinds and their numbers."""
    cells = job.cells(free=True, without=("gpu", "n_gpus"))
    context = job.context()

    from gpucalc.questions import mixed

    parts = mixed.kinds_of(job.gpu or "", context.db)
    if job.n_gpus is not None and positive_integer("--gpus", job.n_gpus) != sum(parts.values()):
        raise UsageError(
            f"--gpus {job.n_gpus} contradicts --gpu, which has {sum(parts.values())} GPUs; leave --gpus out"
        )
    require(cells, "model", "seq_len", "global_batch")
    result = mixed.plan_mixed(cells, parts, context, top=top)
    _write(result, output)
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def _write(result: MixedResult, output: OutputOptions) -> None:
    if output.json:
        emit_document(
            {
                "job": result.job,
                "evaluated": result.evaluated,
                "feasible": result.feasible,
                "rejected": result.rejected,
                "rows": result.rows,
                "alone": result.alone,
                "verdict": result.verdict,
                "notes": result.notes,
            }
        )
        return
    if not output.for_people:
        output.rows(list(dict.fromkeys([*ROWS, *(n for row in result.rows for n in row)])), result.rows)
    elif result.rows:
        _tables(result, output)
    to_stderr(*_said(result))


def _tables(result: MixedResult, output: OutputOptions) -> None:
    shown = [
        {**row, "tie": tie, "band": band(row), "shares": row["split"]}
        for row, tie in zip(result.rows, tie_marks(result.rows), strict=True)
    ]
    output.table(_TABLE, shown)
    sys.stdout.write("\n")
    alone = (
        Column("gpu", "text", "kind", heading="alone"),
        COLUMNS["n_gpus"],
        COLUMNS["layout"],
        COLUMNS["pred_step_time_s"],
        Column("why", "text", "why it has no time", heading=" "),
    )
    output.table(alone, result.alone)


def _said(result: MixedResult) -> list[str]:
    counts = ", ".join(f"{name} {count:,}" for name, count in result.rejected.items())
    return [
        "",
        result.verdict,
        f"{result.feasible:,} uneven layouts fit, of {result.evaluated:,} evaluated"
        + (f" (rejected: {counts})" if counts else ""),
        f"network {result.job['network_gbps_per_gpu']:g} Gb/s per GPU, the slowest of the kinds; "
        "rankings are weakest on mixed clusters: rows marked = tie",
        *(f"note: {note}" for note in result.notes),
    ]
