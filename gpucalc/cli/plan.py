"""`gpucalc plan`: which layouts fit, and which is fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.mixed import is_mixed, plan_mixed
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import COLUMNS, INPUT, MEASURED, TRAINING_PREDICTIONS, Column
from gpucalc.core.errors import ExitStatus, UsageError, nearest
from gpucalc.jobs.context import Context

OBJECTIVES = ("throughput", "mfu", "memory", "pareto")
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


def plan(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
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
    objective: Annotated[
        str, typer.Option("--objective", "--sort", metavar="NAME", help="throughput, mfu, memory or pareto.")
    ] = "throughput",
    top: Annotated[str, typer.Option("--top", metavar="N", help="Layouts to print.")] = "10",
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    plot: opt.Plot = None,
    report: Annotated[
        opt.Text, typer.Option("--report", metavar="FILE.html", help="Write the answer as one HTML file too.")
    ] = None,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
) -> int:
    """Rank the parallel layouts of a training job: which fit, and which is fastest.

    \b
    gpucalc plan llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    """
    from gpucalc.layouts.label import parse_label

    form = opt.chosen_format(form)
    objective = _objective(objective)
    count = opt.positive_integer("--top", top)
    opt.check_plot(plot)
    if report is not None:
        from gpucalc.output.report import check_report_path

        check_report_path(report)
    options_given = opt.stated_options(locals())
    several = is_mixed(gpu)
    if several:  # the kinds and their numbers are read apart
        options_given = {n: v for n, v in options_given.items() if n not in {"gpu", "n_gpus"}}
    cells = opt.job_cells(options_given, settings, parse_label(layout) if layout is not None else None)
    context = Context(opt.open_database(db), profile, fabric, causal_flops)
    if gpu is not None and several:
        if objective != "throughput" or plot is not None or report is not None:
            raise UsageError("on several kinds of GPU plan ranks by throughput only, without --plot and --report")
        return plan_mixed(gpu, gpus, cells, context, count, form, columns)
    opt.require(cells, "model", "gpu", "n_gpus", "seq_len", "global_batch")

    from gpucalc.questions.plan import plan as search

    progress = _progress()
    result = search(cells, context, objective=objective, top=count, progress=progress)
    if plot is not None or report is not None:
        _draw(result, cells, context, plot, report, progress)
    if progress:
        sys.stderr.write("\r\x1b[K")
    _write(result, form, columns, not no_header)
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def _draw(
    result: Any,
    cells: Mapping[str, Any],
    context: Context,
    plot: str | None,
    report: str | None,
    progress: Callable[[int], None] | None,
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
        talk("gpucalc: no layout fits; nothing is drawn")
    if report is not None:
        import shlex

        from gpucalc.output.report import plan_report, write_report

        command = shlex.join(["gpucalc", *sys.argv[1:]])
        write_report(plan_report(result, cells, context, front=front, command=command), report)


def _objective(text: str) -> str:
    word = text.strip().casefold()
    if word not in OBJECTIVES:
        near = nearest(word, OBJECTIVES, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(OBJECTIVES)}"
        raise UsageError(f"--objective is {text!r}; {hint}")
    return word


def _progress() -> Callable[[int], None] | None:
    """A line on standard error that counts layouts, in a terminal only, once a search takes long."""
    import time

    if not sys.stderr.isatty():
        return None
    start = shown = time.monotonic()

    def tell(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - start > 1 and now - shown > 0.2:
            shown = now
            sys.stderr.write(f"\r\x1b[K{done:,} layouts")
            sys.stderr.flush()

    return tell


def _write(result: Any, form: str, columns: str | None, header: bool) -> None:
    rows = [dict(row) for row in result.rows]
    if form == "json":
        document = {
            "job": result.job,
            "candidates": result.candidates,
            "evaluated": result.evaluated,
            "feasible": result.feasible,
            "seconds": result.seconds,
            "rejected": result.rejected,
            "rows": _narrowed(rows, columns),
        }
        if not rows:
            document["nearest_miss"] = result.nearest_miss
        document["notes"] = list(result.notes)
        emit_document(document)
    elif form in {"table", "md"} and columns is None:
        if rows:
            _table(rows, form, header)
            talk(*_footer(result))
    else:
        emit_rows(form, _all_columns(rows), rows, columns, header)
    if not rows:
        talk(*_nothing(result))


def _all_columns(rows: list[dict[str, Any]]) -> list[str]:
    extra = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS_OUT)
    return [*COLUMNS_OUT, *extra]


def _narrowed(rows: list[dict[str, Any]], columns: str | None) -> list[dict[str, Any]]:
    from gpucalc.output import choose_columns

    if columns is None:
        return rows
    wanted = choose_columns(columns, _all_columns(rows))
    return [{name: row[name] for name in wanted if name in row} for row in rows]


def _table(rows: list[dict[str, Any]], form: str, header: bool) -> None:
    from gpucalc.output.colour import dressed
    from gpucalc.output.table import table

    shown = [{**row, "tie": tie, "band": _band(row)} for row, tie in zip(rows, _ties(rows), strict=True)]
    text = table(_TABLE, shown, markdown=form == "md", header=header)
    sys.stdout.write((dressed(text, sys.stdout, header=header) if form == "table" else text) + "\n")


def _ties(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """ "=" beside each row whose step time the model cannot tell from the fastest one's."""
    from gpucalc.questions.plan import TIE

    times = [row["pred_step_time_s"] for row in rows]
    fastest = min(range(len(times)), key=times.__getitem__, default=0)
    return ["=" if i != fastest and time <= times[fastest] * (1 + TIE) else "" for i, time in enumerate(times)]


def _band(row: Mapping[str, Any]) -> str:
    time, low, high = (row.get(f"pred_step_time_{part}s") for part in ("", "low_", "high_"))
    if not (time and low and high):
        return ""
    return f"{100 * (low / time - 1):+.0f} % … {100 * (high / time - 1):+.0f} %"


def _footer(result: Any) -> list[str]:
    tied = any(_ties(result.rows))
    facts = result.job
    lines = [
        "",
        f"{result.feasible:,} layouts fit, of {result.evaluated:,} evaluated and {result.candidates:,} enumerated, "
        f"in {result.seconds:.2f} s" + ("; = ties with the fastest" if tied else ""),
        f"peak {facts['peak_flops_dense'] / 1e12:,.1f} TFLOP/s ({facts['precision']}, dense); MFU counts "
        f"{facts['flop_convention']}; network {facts['network_gbps_per_gpu']:g} Gb/s per GPU "
        f"({facts['network_basis']}); software profile {facts['profile']}",
    ]
    if any(row["pred_fit"] == "risky" for row in result.rows):
        lines.append("risky layouts rank behind those that fit and are at most 3 % slower")
    if result.rejected:
        lines.append(f"rejected: {_counts(result.rejected)}")
    return lines + [f"note: {note}" for note in result.notes]


def _counts(rejected: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in rejected.items() if count)


def _nothing(result: Any) -> list[str]:
    rejected = _counts(result.rejected)
    lines = [
        f"gpucalc: no layout fits; {result.candidates:,} enumerated" + (f" (rejected: {rejected})" if rejected else "")
    ]
    if result.nearest_miss:
        lines.append(result.nearest_miss)
    return lines + [f"note: {note}" for note in result.notes]
