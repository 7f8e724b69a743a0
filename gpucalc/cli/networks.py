"""How answers about networks that are no decoder are written; the commands that ask about both kinds share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.job_options import require
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.ranking import band
from gpucalc.core.columns import COLUMNS, NETWORK_PREDICTIONS, TRAINING_PREDICTIONS, Column
from gpucalc.core.errors import ExitStatus

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.questions.network import NetworkPlan

_LAYOUT = (
    *("layout", "model", "mode", "gpu", "n_gpus", "tp", "cp", "ulysses", "ring", "cfg_parallel", "pipefusion", "dp"),
    *("zero_stage", "micro_batch", "grad_accum", "global_batch", "recompute", "precision", "optimizer"),
    *("resolution", "frames", "steps", "framework"),
)
COLUMNS_OUT = tuple(dict.fromkeys((*_LAYOUT, *NETWORK_PREDICTIONS, *TRAINING_PREDICTIONS, "gpu_seconds_per_sample")))
GPU_SECONDS = Column(
    "gpu_seconds_per_sample", "number", "GPU seconds of one sample", heading="GPU s/sample", decimals=4
)
CHANGE = (
    Column("kind", "text", "", heading="kind"),
    Column("change", "text", "", heading="change"),
    Column("gain_pct", "number", "", unit="%", heading="samples/s", decimals=1),
    Column("elasticity", "number", "", heading="elasticity of time", decimals=3),
)
BAND = Column("band", "text", "80 % band of the time", heading="80 % band")


def asks_of_network(cells: Mapping[str, Any]) -> bool:
    """Whether the cells of a question name a network that is no decoder."""
    from gpucalc.models.networks.catalog import NUMBERS, resolve_network

    name = cells.get("model")
    if name and resolve_network(str(name)) is not None:
        return True
    return all(cells.get(number) is not None for number in NUMBERS) or cells.get("mode", "training") != "training"


def write_plan(result: NetworkPlan, output: OutputOptions) -> int:
    """Write a ranking of a network's layouts; the status of the command."""
    rows = [{**row, "band": band(row)} for row in result.rows]
    if output.json:
        document = {
            "job": result.job,
            "evaluated": result.evaluated,
            "feasible": result.feasible,
            "seconds": result.seconds,
            "rejected": result.rejected,
            "rows": [{n: row.get(n) for n in COLUMNS_OUT if row.get(n) is not None} for row in rows],
            "notes": result.notes,
        }
        emit_document(document)
    elif not output.for_people:
        output.rows(COLUMNS_OUT, rows)
    elif rows:
        output.table(table_columns(rows[0]), rows)
        to_stderr(
            "",
            f"{result.feasible:,} layouts fit, of {result.evaluated:,} evaluated, in {result.seconds:.2f} s; "
            f"software stack {result.job['stack']}",
            *(f"note: {note}" for note in result.notes),
        )
    if not rows:
        told = ", ".join(f"{name} {count:,}" for name, count in result.rejected.items())
        to_stderr("gpucalc: no layout fits" + (f" (rejected: {told})" if told else ""))
        return ExitStatus.INFEASIBLE
    return ExitStatus.OK


def write_changes(cells: Mapping[str, Any], context: Context, top: int | None, output: OutputOptions) -> None:
    """Write what each change is worth to a network."""
    from gpucalc.questions.network_change import whatif_network

    require(cells, "gpu", "n_gpus")
    base, changes, notes = whatif_network(cells, context)
    rows = changes if top is None else changes[:top]
    if output.json:
        emit_document({"base": base, "rows": rows, "notes": notes})
        return
    if output.for_people:
        time = "pred_latency_s" if "pred_latency_s" in base else "pred_step_time_s"
        shown = [COLUMNS[name] for name in (time, "pred_samples_per_s", "pred_peak_mem_gib", "pred_fit", "layout")]
        output.table([*CHANGE, *shown], rows)
    else:
        output.rows((*(column.name for column in CHANGE), *COLUMNS_OUT), rows)
    to_stderr(
        "",
        f"as it is: {base['layout']}, {base['pred_samples_per_s']:,.1f} samples/s, "
        f"{base['pred_peak_mem_gib']:.1f} GiB ({base['pred_fit']}); gains are in samples per second and GPU",
        *(f"note: {note}" for note in notes),
    )


def table_columns(row: Mapping[str, Any]) -> list[str | Column]:
    """What a table of layouts of a network shows."""
    time = "pred_latency_s" if "pred_latency_s" in row else "pred_step_time_s"
    names: list[str | Column] = [COLUMNS["layout"], COLUMNS[time], COLUMNS["pred_samples_per_s"]]
    return [*names, GPU_SECONDS, COLUMNS["pred_peak_mem_gib"], COLUMNS["pred_fit"], COLUMNS["pred_bound"], BAND]


def write_rows_of(rows: Sequence[Mapping[str, Any]], output: OutputOptions, *more: Column) -> None:
    """Write layouts of a network, one a row, with the columns of a ranking and some more."""
    shown = [{**row, "band": band(row)} for row in rows]
    if output.json:
        emit_document({"rows": [dict(row) for row in rows]})
    elif output.for_people:
        output.table([*more, *table_columns(rows[0])], shown)
    else:
        output.rows((*(column.name for column in more if column.name not in COLUMNS_OUT), *COLUMNS_OUT), shown)
