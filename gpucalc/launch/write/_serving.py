"""What the exports of the serving engines share: sizes, the headline, and what is to be said beside the text."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from gpucalc.jobs.serving import ServingJob
from gpucalc.models.model import resolve_preset

PORT = 8000


def replicas(job: ServingJob) -> int:
    """Servers that share the load, each with all of its attention replicas."""
    return int(job.cells["dp"] // job.cells["attention_dp"])


def nodes(job: ServingJob) -> int:
    """Nodes of one server."""
    c = job.cells
    return max(1, math.ceil(c["tp"] * c["pp"] * c["attention_dp"] / job.cluster.gpus_per_node))


def sequences(job: ServingJob, most: int) -> int:
    """Sequences of one attention rank: the stated load, or `most`, which the engine takes; never beyond its limit."""
    load = job.cells.get("concurrency")
    limit = int(job.columns["max_seqs"])
    if load is None:
        return min(limit, most)
    return max(1, min(limit, math.ceil(load / job.cells["dp"])))


def longest(job: ServingJob) -> int:
    """Tokens of a whole sequence."""
    return math.ceil(job.cells["isl"] + job.cells["osl"])


def headline(job: ServingJob) -> str:
    """A comment line that says what the settings are for."""
    from gpucalc.questions.serve import serving_label

    c = job.cells
    load = f"{c['concurrency']:g} requests" if c.get("concurrency") else f"{c['rate']:g}/s" if c.get("rate") else "full"
    return (
        f"# {job.model.name}, {c['n_gpus']} x {job.cluster.device.key}, {c['isl']:g} in, {c['osl']:g} out, "
        f"load {load}: {serving_label(c)}\n"
    )


def command(first: list[str], options: list[list[Any]]) -> str:
    """A command over several lines, quoted for a shell."""
    lines = [" ".join(shlex.quote(str(word)) for word in line) for line in options]
    return " \\\n  ".join([" ".join(shlex.quote(word) for word in first), *lines]) + "\n"


def model_name(job: ServingJob) -> str:
    """The model as the question names it."""
    return str(job.cells.get("model") or job.model.name)


def cache_problem(job: ServingJob, engine: str, words: dict[str, str]) -> list[str]:
    """Whether an engine holds the cache in the format of the job."""
    kind = job.cells["kv_precision"]
    return [] if kind in words else [f"{engine} holds no cache in {kind}; it knows {', '.join(words)}"]


def apart_problem(job: ServingJob) -> list[str]:
    """Prefill and decode workers cannot be one command."""
    if job.cells.get("prefill_gpus"):
        return ["prefill and decode workers are launched apart; export each with its own layout and GPUs"]
    return []


def remarks(job: ServingJob, engine: str, *, several: bool, on_loading: tuple[str, ...] = ()) -> list[str]:
    """What a person has to know beside the text.

    several: replicas are servers of their own. on_loading: formats that the engine makes of a 16-bit checkpoint.
    """
    c = job.cells
    lines = ["lengths are means: raise the longest sequence to that of the longest request"]
    if replicas(job) > 1 and several:
        each = c["n_gpus"] // replicas(job)
        lines.append(f"start {replicas(job)} of these, each on {each} GPUs, behind a load balancer")
    if c["precision"] not in {"bf16", "fp16", *on_loading}:
        lines.append(f"the checkpoint must hold its weights in {c['precision']}; {engine} reads the format from it")
    if resolve_preset(model_name(job)) is not None and not Path(model_name(job)).exists():
        lines.append(f"{model_name(job)} is a preset's name: write the repository or folder of the checkpoint")
    return lines
