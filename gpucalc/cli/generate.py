"""`gpucalc generate`: how long a picture or clip takes, and how to split its making over GPUs."""

from __future__ import annotations

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions
from gpucalc.cli.values import positive_integer
from gpucalc.core.errors import UsageError

OBJECTIVES = ("latency", "throughput", "cost")


@command(group="Plan")
def generate(
    *,
    job: JobOptions,
    objective: str = option(
        "--objective, --sort NAME", "latency, throughput or cost.", default="latency", choices=OBJECTIVES
    ),
    top: int = option("--top N", "Layouts to print.", default="10", read=positive_integer),
    output: OutputOptions,
) -> int:
    """Rank the ways to split a diffusion model over GPUs: guidance, Ulysses, ring, tensors, PipeFusion, replicas.

    \b
    gpucalc generate flux.1-dev --gpu h100-sxm-80gb --gpus 8 --resolution 1024x1024 --steps 28
    """
    from gpucalc.cli.networks import asks_of_network, write_plan
    from gpucalc.models.model import resolve_preset
    from gpucalc.questions.network import plan_network

    cells = {**job.cells(), "mode": "generation"}
    if "model" not in cells:
        raise UsageError("missing: a MODEL that makes pictures or clips, such as flux.1-dev (gpucalc models list)")
    if not asks_of_network({"model": cells["model"]}) and resolve_preset(str(cells["model"])) is not None:
        raise UsageError(f"{cells['model']} makes no pictures or clips; flux.1-dev does (gpucalc models list)")
    require(cells, "gpu", "n_gpus")
    return write_plan(plan_network(cells, job.context(), objective, top), output)
