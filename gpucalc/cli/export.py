"""`gpucalc export`: a layout as launch settings."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import talk
from gpucalc.core.errors import UsageError

TO = (
    "megatron, nemo, deepspeed, torchtitan, torchtitan-recipe, accelerate, nanotron, horovod, sbatch, k8s; "
    "vllm, sglang, trtllm."
)


def export(
    model: opt.Model = None,
    to: Annotated[Optional[str], typer.Option("--to", metavar="TARGET", help=TO)] = None,
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
        typer.Option("--launcher", metavar="TARGET", help="Framework inside sbatch and k8s; megatron without it."),
    ] = None,
    kind: Annotated[
        Optional[str], typer.Option("--kind", metavar="KIND", help="With k8s: TrainJob, PyTorchJob or MPIJob.")
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
    from gpucalc.launch import AROUND, FRAMEWORK_TARGETS, TARGETS, target_named
    from gpucalc.launch.write.serving_engines import SERVING_TARGETS, serving_target
    from gpucalc.layouts.label import label_cells

    if to is None:
        raise UsageError(f"for which framework? write --to with one of {', '.join((*TARGETS, *SERVING_TARGETS))}")
    engine = serving_target(to)
    if engine is not None:
        from gpucalc.cli.serve import export_engine

        export_engine(engine, opt.stated_options(locals()), model == "-", layout, settings, db, fabric)
        return
    target = target_named(to, (*TARGETS, *SERVING_TARGETS))
    inner = target_named(launcher or "megatron", tuple(FRAMEWORK_TARGETS), "--launcher")
    if launcher is not None and target not in AROUND:
        raise UsageError(f"--launcher has no meaning with --to {target}; it names the framework inside sbatch or k8s")
    if kind is not None and target != "k8s":
        raise UsageError(f"--kind has no meaning with --to {target}; it chooses the manifest of k8s")
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

    framework = inner if target in AROUND else target
    launch = make_launch(cells, database, framework, profile=profile, fabric=fabric)
    text, said = written(launch, target, inner, kind or "")
    sys.stdout.write(text)
    sys.stdout.flush()
    talk(*(f"note: {line}" for line in (*launch.warnings, *said)))
