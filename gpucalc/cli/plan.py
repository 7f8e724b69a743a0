"""`gpucalc plan`: which layouts fit, and which is fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import laid_out, say_effects
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.mixed import is_mixed, plan_mixed
from gpucalc.cli.networks import asks_of_network, write_plan
from gpucalc.cli.option import option
from gpucalc.cli.output import FigureOptions, emit_document, to_stderr
from gpucalc.cli.progress import Progress
from gpucalc.cli.ranking import band, tie_marks
from gpucalc.cli.values import positive_integer, positive_number
from gpucalc.core.columns import COLUMNS, INPUT, MEASURED, TRAINING_PREDICTIONS, Column
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.questions.plan import PlanResult

OBJECTIVES = ("throughput", "mfu", "memory", "pareto")
NETWORK_OBJECTIVES = {name: "throughput" for name in OBJECTIVES}  # networks are ranked by rate
# The header of machine formats is the same for every question, feasible or not.
COLUMNS_OUT = ("layout", *(n for n in INPUT if n != "id" and n not in MEASURED), *TRAINING_PREDICTIONS)
_TABLE = (
    Column("tie", "text", "tied with the row above", heading=" "),
    COLUMNS["layout"],
    COLUMNS["pred_step_time_s"],
    COLUMNS["pred_tokens_per_s_per_gpu"],
    COLUMNS["pred_mfu_pct"],
    COLUMNS["pred_peak_mem_gib"],
    COLUMNS["pred_fit"],
    COLUMNS["pred_recompute"],
    Column("band", "text", "80 % band of the step time", heading="80 % band"),
)


def report_path(flag: str, text: str) -> str:
    """A name of a report that can be written."""
    from gpucalc.output.report import check_report_path

    check_report_path(text)
    return text


@command(group="Plan")
def plan(
    *,
    job: JobOptions,
    objective: str = option(
        "--objective, --sort NAME",
        "throughput, mfu, memory or pareto.",
        default="throughput",
        choices=OBJECTIVES,
    ),
    top: int = option("--top N", "Layouts to print.", default="10", read=positive_integer),
    between: float | None = option(
        "--between GBIT/S", "Network rate per GPU where two kinds meet; the slower one's.", read=positive_number
    ),
    report: str | None = option(
        "--report FILE.html", "Write the answer as one HTML file too.", read=report_path, files=True
    ),
    output: FigureOptions,
) -> int:
    """Rank the parallel layouts of a training job: which fit, and which is fastest.

    \b
    gpucalc plan llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    """
    if is_mixed(job.gpu):
        if objective != "throughput" or output.plot is not None or report is not None:
            raise UsageError("on several kinds of GPU plan ranks by throughput only, without --plot and --report")
        return plan_mixed(job, output, top, between)
    if between is not None:
        raise UsageError("--between is the rate where two kinds of GPU meet; --gpu names one")
    cells = job.cells(free=True)
    context = job.context()
    if asks_of_network(cells):
        from gpucalc.questions.network import plan_network

        require(cells, "gpu", "n_gpus")
        return write_plan(plan_network(cells, context, NETWORK_OBJECTIVES[objective], top), output)
    require(cells, "model", "gpu", "n_gpus", "seq_len", "global_batch")

    from gpucalc.questions.plan import plan as search

    progress = Progress("layouts costed")
    result = search(cells, context, objective=objective, top=top, progress=progress)
    if output.plot is not None or report is not None:
        _draw(result, cells, context, output.plot, report, progress)
    progress.end()
    _write(result, output)
    if result.rows:
        from gpucalc.layouts.axes import decided_axes

        say_effects(job, laid_out(cells, result.rows[0]), context, free=tuple(decided_axes()))
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def _draw(
    result: PlanResult,
    cells: Mapping[str, Any],
    context: Context,
    plot: str | None,
    report: str | None,
    progress: Callable[[int], None],
) -> None:
    """Write the picture and the report; without a layout that fits there is nothing to draw, but still a report."""
    front = None
    if result.rows:
        from gpucalc.output.figures.layouts import pareto_front

        front = pareto_front(cells, context, result.candidates, progress=progress)
    if plot is not None and front:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.layouts import plan_figure
        from gpucalc.output.report import plan_title

        save(plan_figure(result.rows, front, context, plan_title(result.job)), plot)
    elif plot is not None:
        to_stderr("gpucalc: no layout fits; nothing is drawn")
    if report is not None:
        import shlex

        from gpucalc.output.report import plan_report, write_report

        command = shlex.join(["gpucalc", *sys.argv[1:]])
        write_report(plan_report(result, cells, context, front=front, command=command), report)


def _write(result: PlanResult, output: FigureOptions) -> None:
    rows = [dict(row) for row in result.rows]
    if output.json:
        document = {
            "job": result.job,
            "candidates": result.candidates,
            "evaluated": result.evaluated,
            "feasible": result.feasible,
            "seconds": result.seconds,
            "rejected": result.rejected,
            "rows": _narrowed(rows, output.columns),
        }
        if not rows:
            document["nearest_miss"] = result.nearest_miss
        document["notes"] = [*result.notes, *([result.network] if result.network else [])]
        emit_document(document)
    elif not output.for_people:
        output.rows(_all_columns(rows), rows)
    elif rows:
        _table(rows, output)
        to_stderr(*_footer(result))
    if not rows:
        to_stderr(*_nothing(result))


def _all_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    extra = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS_OUT)
    return [*COLUMNS_OUT, *extra]


def _narrowed(rows: list[dict[str, Any]], columns: str | None) -> list[dict[str, Any]]:
    from gpucalc.output import choose_columns

    if columns is None:
        return rows
    wanted = choose_columns(columns, _all_columns(rows))
    return [{name: row[name] for name in wanted if name in row} for row in rows]


def _table(rows: Sequence[Mapping[str, Any]], output: FigureOptions) -> None:
    from gpucalc.output.colour import dressed
    from gpucalc.output.table import table

    marked = [{**row, "tie": tie, "band": band(row)} for row, tie in zip(rows, tie_marks(rows), strict=True)]
    text = table(_TABLE, marked, markdown=output.form == "md", header=output.header)
    sys.stdout.write((dressed(text, sys.stdout, header=output.header) if output.form == "table" else text) + "\n")


def _footer(result: PlanResult) -> list[str]:
    tied = any(tie_marks(result.rows))
    facts = result.job
    lines = [
        "",
        f"{result.feasible:,} layouts fit, of {result.evaluated:,} evaluated and {result.candidates:,} enumerated, "
        f"in {result.seconds:.2f} s" + ("; = ties with the fastest" if tied else ""),
        f"peak {facts['peak_flops_dense'] / 1e12:,.1f} TFLOP/s ({facts['precision']}, dense); MFU counts "
        f"{facts['flop_convention']}; network {facts['network_gbps_per_gpu']:g} Gb/s per GPU "
        f"({facts['network_basis']}); software profile {facts['profile']}",
    ]
    if result.network:
        lines.append(f"{result.rows[0]['layout']}: {result.network}")
    if any(row["pred_fit"] == "risky" for row in result.rows):
        lines.append("risky layouts, within 5 % of the memory, rank behind those that fit")
    if result.rejected:
        lines.append(f"rejected: {_counts(result.rejected)}")
    return lines + [f"note: {note}" for note in result.notes]


def _counts(rejected: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in rejected.items() if count)


def _nothing(result: PlanResult) -> list[str]:
    rejected = _counts(result.rejected)
    lines = [
        f"gpucalc: no layout fits; {result.candidates:,} enumerated" + (f" (rejected: {rejected})" if rejected else "")
    ]
    if result.nearest_miss:
        lines.append(result.nearest_miss)
    return lines + [f"note: {note}" for note in result.notes]
