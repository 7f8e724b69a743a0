"""`gpucalc plan` on a cluster of several kinds of GPU: writing its answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.networks import asks_of_network
from gpucalc.cli.option import option
from gpucalc.cli.output import FigureOptions, OutputOptions, emit_document, to_stderr
from gpucalc.cli.ranking import band, tie_marks
from gpucalc.cli.values import gpu_count, positive_number
from gpucalc.core.columns import COLUMNS, Column
from gpucalc.core.errors import ExitStatus, UsageError
from gpucalc.core.units import GIB

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.launch.job import Launch
    from gpucalc.launch.target import Target
    from gpucalc.questions.mixed import MixedResult
    from gpucalc.questions.mixed_cuts import MixedStep

ROWS = (
    "layout",
    "manner",
    "split",
    "split_unit",
    "stages",
    "micro_batches",
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


@dataclass(frozen=True)
class CutOptions:
    """A plan on several kinds of GPU, cut by cut."""

    stages: str | None = option(
        "--stages CUTS", 'Layers of each stage and its GPUs, "16:a100-sxm-80gbx4*2 | 16:h100-sxm-80gbx4*2".'
    )
    shares: str | None = option(
        "--shares GPU:N,…", "Micro-batches of a replica that begins on each kind, a100-sxm-80gb:4,h100-sxm-80gb:8."
    )
    between: float | None = option(
        "--between GBIT/S", "Network rate per GPU where two kinds meet; the slower one's.", read=positive_number
    )

    def asked(self, gpu: str | None) -> bool:
        """Whether the question is about several kinds of GPU; UsageError for options that have a meaning only there."""
        mixed = self.stages is not None or is_mixed(gpu)
        for flag, value in (("--shares", self.shares), ("--between", self.between)):
            if value is not None and not mixed:
                raise UsageError(f"{flag} is of several kinds of GPU; write --stages, or --gpu with several kinds")
        return mixed


def mixed_step_of(job: JobOptions, cuts: CutOptions, *, trace: bool = False) -> tuple[MixedStep, Context]:
    """The step of the plan that is stated, or of the best one on the GPUs of --gpu."""
    cells = job.cells(free=cuts.stages is None, without=("gpu", "n_gpus"))
    _decoders_only(cells)
    context = job.context()

    from gpucalc.questions.mixed import kinds_of
    from gpucalc.questions.mixed_cuts import OF_CUTS
    from gpucalc.questions.mixed_use import stated_step

    require(cells, "model", "seq_len", "global_batch")
    doubled = [n for n in OF_CUTS if cells.get(n) is not None]
    if cuts.stages is not None and (job.layout is not None or doubled):
        what = "--layout" if job.layout is not None else f"{', '.join(sorted(doubled))}"
        raise UsageError(f"--stages is the layout of a plan on several kinds of GPU; leave {what} out")
    parts = kinds_of(job.gpu, context.db) if is_mixed(job.gpu) and job.gpu is not None else None
    if cuts.stages is not None and job.gpu is not None and parts is None:
        raise UsageError(f"--stages names its GPUs; leave --gpu {job.gpu} out")
    _same_number(job, sum(parts.values()) if parts is not None else None)
    found = stated_step(
        cells,
        context,
        parts=parts,
        stages=cuts.stages,
        micro_batches=cuts.shares,
        between_gbps=cuts.between,
        trace=trace,
    )
    return found, context


def _same_number(job: JobOptions, held: int | None) -> None:
    """Raise UsageError where --gpus and the kinds of GPU contradict each other."""
    if job.n_gpus is None or (held is not None and gpu_count("--gpus", job.n_gpus) == held):
        return
    told = "--stages, which names its GPUs" if held is None else f"--gpu, which has {held} GPUs"
    raise UsageError(f"--gpus {job.n_gpus} contradicts {told}; leave --gpus out")


def _decoders_only(cells: Mapping[str, Any]) -> None:
    if asks_of_network(cells):
        raise UsageError(f"{cells.get('model')} on several kinds of GPU is not modelled, only decoders; name one kind")


def explain_mixed(job: JobOptions, cuts: CutOptions, output: FigureOptions) -> None:
    """Explain a plan on several kinds of GPU."""
    if output.plot is not None:
        raise UsageError("--plot draws one kind of GPU; leave it out")
    found, context = mixed_step_of(job, cuts, trace=True)

    from gpucalc.questions.mixed_use import explained

    facts, terms = explained(found, context)
    to_stderr(*(f"note: {line}" for line in found.notes))
    if output.json:
        emit_document({"facts": dict(facts), "terms": terms, "summary": []})
    elif output.form == "table" and output.columns is None:
        from gpucalc.output.explain import tree

        sys.stdout.write(tree(facts, terms, ()) + "\n")
    else:
        output.rows(("path", "value", "unit", "formula", "arguments", "citation"), terms)


HOLDS_CUTS = ("megatron",)  # launchers whose settings state the layers of every stage


def mixed_launch(job: JobOptions, cuts: CutOptions, target: Target) -> Launch:
    """A plan on several kinds of GPU as the job of a launcher that can say it."""
    from dataclasses import replace

    from gpucalc.launch.job import make_launch
    from gpucalc.questions.mixed_use import launch_cells

    found, context = mixed_step_of(job, cuts)
    depths = tuple(stage.layers for stage in found.cuts.stages)
    if target.name not in HOLDS_CUTS and len(set(depths)) > 1:
        raise UsageError(
            f"{target.name} has no setting for the layers of each stage ({', '.join(map(str, depths))}); write --to "
            f"{HOLDS_CUTS[0]}, or even stages"
        )
    cells, said = launch_cells(found, job.cells(free=True, without=("gpu", "n_gpus")))
    launch = make_launch(cells, context, target.profile, target.usual)
    kept = (line for line in launch.comments if not line.startswith("predicted as"))
    worst = max(found.memory.values()) / GIB
    predicted = f"predicted on these kinds of GPU: {found.step_time:.4g} s a step, {worst:.1f} GiB on the fullest GPU"
    return replace(launch, stage_layers=depths, comments=(predicted, *kept, *said))


POWER_ROWS = (
    *("gpu", "n_gpus", "gpu_w", "node_kw", "site_mw", "site_mw_low", "site_mw_high"),
    *("electricity_usd_per_hour", "step_kwh", "j_per_token"),
)


def power_mixed(job: JobOptions, cuts: CutOptions, given: dict[str, Any], output: OutputOptions) -> None:
    """Power of the kinds of a plan and of all of it."""
    if given.get("cap") is not None:
        raise UsageError("--cap is of one kind of GPU; ask for each kind alone")
    found, context = mixed_step_of(job, cuts)

    from gpucalc.questions.mixed_use import power_mixed as answered
    from gpucalc.questions.power import Question

    rows, total = answered(found, Question(gpu="", n_gpus=0, **given), context)
    if output.json:
        emit_document({"stages": found.cuts.text(), "step_time_s": found.step_time, "kinds": rows, "all": total})
    else:
        output.rows(POWER_ROWS, [*rows, total])
    to_stderr(*(f"note: {line}" for line in found.notes))


def is_mixed(gpu: str | None) -> bool:
    """Whether --gpu names several kinds with their numbers."""
    return gpu is not None and ("," in gpu or ":" in gpu)


def plan_mixed(job: JobOptions, output: OutputOptions, top: int, between: float | None) -> int:
    """Rank uneven layouts and compare them with the parts alone; --gpu names the kinds and their numbers."""
    cells = job.cells(free=True, without=("gpu", "n_gpus"))
    _decoders_only(cells)
    context = job.context()

    from gpucalc.questions import mixed

    parts = mixed.kinds_of(job.gpu or "", context.db)
    _same_number(job, sum(parts.values()))
    require(cells, "model", "seq_len", "global_batch")
    result = mixed.plan_mixed({**cells, "between_gbps": between}, parts, context, top=top)
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
        f"network where kinds meet {result.job['network_gbps_per_gpu']:g} Gb/s per GPU (--between, or the slowest "
        "of theirs); rankings are weakest on mixed clusters: rows marked = tie",
        *(f"note: {note}" for note in result.notes),
    ]
