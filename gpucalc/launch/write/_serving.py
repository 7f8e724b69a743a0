"""What the exports of the serving engines share: sizes, the headline, and what is to be said beside the text."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from gpucalc.core.units import GIB
from gpucalc.database.documents import MEMORY_RULES
from gpucalc.estimate.serving import estimate_serving
from gpucalc.formulas.kv_cache import share_of_free, share_of_total, share_static
from gpucalc.jobs.serving import ServingJob, resolve_serving, stack_serving
from gpucalc.launch.job import LaunchCommand, Server
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
    from gpucalc.questions.serve_layouts import serving_label

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


def problems(job: ServingJob, engine: str, words: dict[str, str]) -> list[str]:
    """What no engine can say, or this one: the format of its cache, workers apart, the share of its memory.

    words: cache format → how the engine calls it.
    """
    kind = job.cells["kv_precision"]
    cache = [] if kind in words else [f"{engine} holds no cache in {kind}; it knows {', '.join(words)}"]
    return cache + apart_problem(job) + share_problem(job, engine)


def made(
    job: ServingJob, first: list[str], options: list[list[Any]], server: Server, notes: list[str], before: str = ""
) -> LaunchCommand:
    """The command of a server, with the words by which its nodes meet; `before` stands above it."""
    text = command(first, options).rstrip("\n")
    meeting = server.words(str(server.nodes), "$NODE_RANK", "$MASTER_ADDR")
    text += f" \\\n {meeting}\n" if meeting else "\n"
    program = [first, *([str(word) for word in line] for line in options)]
    return LaunchCommand(headline(job) + before + text, program, notes=tuple(notes), server=server)


def apart_problem(job: ServingJob) -> list[str]:
    """Prefill and decode workers cannot be one command."""
    if job.cells.get("prefill_workers"):
        return ["prefill and decode workers are launched apart; export each with its own layout and GPUs"]
    return []


def memory_share(job: ServingJob, engine: str) -> float:
    """The share of the memory that an engine must be told to have the cache that was predicted.

    One number means three things: a share of all memory (vLLM), of all memory for weights and cache alone (SGLang), of
    what is left beside the weights (TensorRT-LLM). A job of another engine is told through the bytes of its cache.
    """
    if job.engine.name == engine:
        return float(job.columns["memory_share"])
    there = _as(job, engine)
    ledger = estimate_serving(stack_serving([there]))
    rule = MEMORY_RULES[int(there.columns["memory_rule"])]
    held = {
        "usable_bytes": float(ledger["memory/free-at-start" if rule == "static" else "memory/visible"]),
        "weights": float(ledger["memory/weights"]),
        "space": float(estimate_serving(stack_serving([job]))["memory/kv-space"]),
    }
    if rule == "static":
        return float(share_static(**held))
    beside = {"activations": float(ledger["memory/activations"]), "outside": float(ledger["memory/outside"])}
    return float((share_of_free if rule == "free" else share_of_total)(**held, **beside))


def _as(job: ServingJob, engine: str) -> ServingJob:
    """The same job under another engine's constants."""
    cells = {name: value for name, value in job.cells.items() if name != "memory_share"}
    chunk = int(job.columns["chunk_tokens"])
    return resolve_serving({**cells, "framework": engine, "chunk_tokens": chunk}, job.context)


def share_problem(job: ServingJob, engine: str) -> list[str]:
    """Whether an engine can be told to hold the cache that was predicted."""
    share = memory_share(job, engine)
    if share <= 1:
        return []
    gib = float(estimate_serving(stack_serving([job]))["memory/kv-space"]) / GIB
    return [
        f"a cache of {gib:.1f} GiB, as {job.engine.name} was predicted to hold, leaves {engine} too little: state "
        f"--set framework={engine}, or a smaller memory_share"
    ]


def share_text(job: ServingJob, engine: str) -> str:
    """The share as it is written: rounded down, so that the cache is never more than predicted.

    >>> _rounded(0.87654999), _rounded(0.9)
    ('0.8765', '0.9')
    """
    return _rounded(memory_share(job, engine))


def _rounded(share: float) -> str:
    return f"{math.floor(share * 1e4 + 1e-6) / 1e4:g}"


def share_remark(job: ServingJob, engine: str) -> list[str]:
    """What is said where the share was converted."""
    if job.engine.name == engine:
        return []
    gib = float(estimate_serving(stack_serving([job]))["memory/kv-space"]) / GIB
    was, there = job.engine.name, share_text(job, engine)
    return [f"costed as {was}: {there} gives {engine} the same cache of {gib:.1f} GiB a GPU, not {was}'s share"]


def several(job: ServingJob) -> tuple[str, ...]:
    """What is to be done where replicas are servers of their own and the command stands alone."""
    count = replicas(job)
    each = job.cells["n_gpus"] // count
    return (f"start {count} of these, each on {each} GPUs, behind a load balancer",) if count > 1 else ()


def remarks(job: ServingJob, engine: str, *, on_loading: tuple[str, ...] = ()) -> list[str]:
    """What a person has to know beside the text.

    on_loading: formats that the engine makes of a 16-bit checkpoint.
    """
    c = job.cells
    lines = ["lengths are means: raise the longest sequence to that of the longest request"]
    if c["precision"] not in {"bf16", "fp16", *on_loading}:
        lines.append(f"the checkpoint must hold its weights in {c['precision']}; {engine} reads the format from it")
    if resolve_preset(model_name(job)) is not None and not Path(model_name(job)).exists():
        lines.append(f"{model_name(job)} is a preset's name: write the repository or folder of the checkpoint")
    return lines + share_remark(job, engine)
