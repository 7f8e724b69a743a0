"""`gpucalc export`: a layout as launch settings."""

from __future__ import annotations

import sys
from typing import Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import say_effects
from gpucalc.cli.job_options import JobOptions
from gpucalc.cli.mixed import CutOptions, mixed_launch
from gpucalc.cli.option import option
from gpucalc.cli.output import to_stderr
from gpucalc.core.errors import UsageError


def all_targets() -> tuple[str, ...]:
    """All that settings can be written for."""
    from gpucalc.launch.target import targets, wrappers

    return (*targets(), *wrappers())


def launchers() -> tuple[str, ...]:
    """The frameworks that a batch script can start."""
    from gpucalc.launch.target import targets

    return targets()


def _to_help() -> str:
    from gpucalc.launch.target import targets, wrappers

    return f"Framework or engine: {', '.join(targets())}; or the script of a scheduler: {', '.join(wrappers())}."


@command(group="Launch")
def export(
    *,
    job: JobOptions,
    cuts: CutOptions,
    to: str | None = option("--to TARGET", _to_help, complete=all_targets),
    launcher: str | None = option(
        "--launcher TARGET", "Framework or engine inside the script of a scheduler; megatron, vllm.", complete=launchers
    ),
    kind: str | None = option("--kind KIND", "Which manifest of k8s: TrainJob, PyTorchJob, JobSet, MPIJob."),
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
    from gpucalc.launch import fits, target_named
    from gpucalc.launch.target import Target, Wrapper, find, wrappers

    if to is None:
        raise UsageError(f"for which framework? write --to with one of {', '.join(all_targets())}")
    found = find(to, ("write", "wrap"), "--to")
    wrapper = found if isinstance(found, Wrapper) else None
    if wrapper is None and launcher is not None:
        raise UsageError(
            f"--launcher has no meaning with --to {found.name}; it names the framework inside {' or '.join(wrappers())}"
        )
    if kind is not None and not (wrapper and wrapper.kinds):
        raise UsageError(f"--kind has no meaning with --to {found.name}; it chooses the manifest of k8s")
    target: Target = found if wrapper is None else target_named(launcher or wrapper.launcher, "--launcher")
    if wrapper is not None:
        fits(target, wrapper)
    if target.job == "policy":
        from gpucalc.cli.tune import export_policy

        export_policy(target, job)
        return
    if target.job == "serving":
        from gpucalc.cli.serve import export_engine

        export_engine(target, job, wrapper)
        return
    from gpucalc.launch import export as written
    from gpucalc.launch.job import make_launch
    from gpucalc.launch.unwritten import told

    cells: dict[str, Any] = {}
    if cuts.asked(job.gpu):
        launch = mixed_launch(job, cuts, target)
    else:
        cells = job.laid_out("export")
        launch = make_launch(cells, job.context(), target.profile, target.usual)
    text, notes = written(launch, target, wrapper, kind or "")
    sys.stdout.write(text)
    sys.stdout.flush()
    if cells:
        launch = told(launch, target, cells, job.context())
    to_stderr(*(f"note: {line}" for line in (*launch.warnings, *notes)))
    if not cuts.asked(job.gpu):
        say_effects(job, cells, job.context())
