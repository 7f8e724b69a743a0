"""`gpucalc plan` on a cluster of several kinds of GPU: writing its answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError
from gpucalc.jobs.context import Context

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


def plan_mixed(
    gpu: str,
    gpus: str | None,
    cells: Mapping[str, Any],
    context: Context,
    top: int,
    form: str,
    columns: str | None,
) -> int:
    """Rank uneven layouts and compare them with the parts alone."""
    from gpucalc.questions import mixed

    parts = mixed.kinds_of(gpu, context.db)
    if gpus is not None and opt.positive_integer("--gpus", gpus) != sum(parts.values()):
        raise UsageError(f"--gpus {gpus} contradicts --gpu, which has {sum(parts.values())} GPUs; leave --gpus out")
    opt.require(cells, "model", "seq_len", "global_batch")
    result = mixed.plan_mixed(cells, parts, context, top=top)
    _write(result, form, columns)
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def _write(result: Any, form: str, columns: str | None) -> None:
    if form == "json":
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
    if form in {"table", "md"} and columns is None:
        if result.rows:
            _tables(result, form == "md")
    else:
        emit_rows(form, list(dict.fromkeys([*ROWS, *(n for row in result.rows for n in row)])), result.rows, columns)
    talk(*_said(result))


def _tables(result: Any, markdown: bool) -> None:
    from gpucalc.cli.plan import _band, _ties
    from gpucalc.output.table import table

    shown = [
        {**row, "tie": tie, "band": _band(row), "shares": row["split"]}
        for row, tie in zip(result.rows, _ties(result.rows), strict=True)
    ]
    sys.stdout.write(table(_TABLE, shown, markdown=markdown) + "\n\n")
    alone = (
        Column("gpu", "text", "kind", heading="alone"),
        COLUMNS["n_gpus"],
        COLUMNS["layout"],
        COLUMNS["pred_step_time_s"],
        Column("why", "text", "why it has no time", heading=" "),
    )
    sys.stdout.write(table(alone, result.alone, markdown=markdown) + "\n")


def _said(result: Any) -> list[str]:
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
