"""`gpucalc export`: a layout as launch settings."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import talk
from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context
from gpucalc.launch.target import Target, Wrapper, find, targets, wrappers

_TO = f"Framework or engine: {', '.join(targets())}; or the script of a scheduler: {', '.join(wrappers())}."


def export(
    model: opt.Model = None,
    to: Annotated[Optional[str], typer.Option("--to", metavar="TARGET", help=_TO)] = None,
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
    launcher: Annotated[
        Optional[str],
        typer.Option(
            "--launcher", metavar="TARGET", help="Framework inside the script of a scheduler; megatron without it."
        ),
    ] = None,
    kind: Annotated[
        Optional[str],
        typer.Option("--kind", metavar="KIND", help="Which manifest of k8s: TrainJob, PyTorchJob, JobSet, MPIJob."),
    ] = None,
    settings: opt.Settings = None,
    db: opt.Databases = None,
) -> None:
    """Write a layout as the launch settings of a framework, checked against its rules.

    MODEL may be "-": one row of plan's csv or json is read from standard input.

    \b
    gpucalc export llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --layout tp8-pp4-dp2-mbs1-zero1-sp --to megatron

    \b
    gpucalc plan llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128 --top 1 -f csv
    | gpucalc export - --to sbatch
    """
    from gpucalc.cli.explain import row_from_stdin
    from gpucalc.launch import TRAINING, target_named
    from gpucalc.layouts.label import label_cells

    if to is None:
        raise UsageError(f"for which framework? write --to with one of {', '.join((*targets(), *wrappers()))}")
    found = find(to, ("write", "wrap"), "--to")
    wrapper = found if isinstance(found, Wrapper) else None
    if wrapper is None and launcher is not None:
        raise UsageError(
            f"--launcher has no meaning with --to {found.name}; it names the framework inside {' or '.join(wrappers())}"
        )
    if kind is not None and not (wrapper and wrapper.kinds):
        raise UsageError(f"--kind has no meaning with --to {found.name}; it chooses the manifest of k8s")
    target: Target = found if wrapper is None else target_named(launcher or TRAINING, "--launcher")
    if target.starter is None and wrapper is not None:
        raise UsageError(f"{target.name} serves; {wrapper.name} holds the launch of a training framework")
    if target.job == "serving":
        from gpucalc.cli.serve import export_engine

        export_engine(target, opt.stated_options(locals()), model == "-", layout, settings, db, fabric)
        return
    base = row_from_stdin() if model == "-" else None
    cells: dict[str, Any] = opt.job_cells(
        opt.stated_options(locals()),
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    if base is None and layout is None and "tp" not in cells:
        raise UsageError(
            "which layout? write --layout with a label of plan, such as tp8-pp4-dp2-mbs1-zero1-sp, or pipe the best: "
            "gpucalc plan … --top 1 -f csv | gpucalc export -"
        )
    opt.require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)), "seq_len", "global_batch")
    database = opt.open_database(db)

    from gpucalc.launch import export as written
    from gpucalc.launch.job import make_launch

    launch = make_launch(cells, Context(database, profile, fabric), target.profile)
    text, said = written(launch, target, wrapper, kind or "")
    sys.stdout.write(text)
    sys.stdout.flush()
    talk(*(f"note: {line}" for line in (*launch.warnings, *said)))
