"""SGLang 0.5.23: the command `python -m sglang.launch_server` (srt/arg_groups/fields, parallel_hook.py)."""

from __future__ import annotations

from typing import Any

from gpucalc.jobs.serving import ServingJob
from gpucalc.launch.job import LaunchCommand, Server
from gpucalc.launch.target import Target
from gpucalc.launch.write import _serving as shared

CACHE_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8_e4m3"}
ON_LOADING = {"fp8": "fp8"}  # formats that it makes of a 16-bit checkpoint; the others must be in the checkpoint
MOST_SEQUENCES = 4096


def problems(job: ServingJob) -> list[str]:
    """Everything that SGLang cannot express, each with a way out."""
    return shared.problems(job, "sglang", CACHE_WORDS)


def start(job: ServingJob) -> LaunchCommand:
    """The command, and the remarks beside it."""
    c = job.cells
    group = c["tp"] * c["attention_dp"]  # its tensor parallel size counts the attention ranks, too
    options: list[list[Any]] = [["--model-path", shared.model_name(job)], ["--tp-size", group]]
    nodes, spread = shared.nodes(job), c["n_gpus"] > job.cluster.gpus_per_node
    if c["pp"] > 1:
        options.append(["--pp-size", c["pp"]])
    if c["attention_dp"] > 1:
        options.append(["--attn-dp-size", c["attention_dp"]])
    elif c["dp"] > 1 and nodes == 1 and not spread:
        options.append(["--dp-size", c["dp"]])
    if c["ep"] > 1:
        options.append(["--ep-size", c["ep"]])
    options += [
        ["--context-length", shared.longest(job)],
        ["--max-running-requests", shared.sequences(job, MOST_SEQUENCES) * c["attention_dp"]],
        # Both are counted over the attention replicas, among which it divides them.
        ["--chunked-prefill-size", int(job.columns["chunk_tokens"]) * c["attention_dp"]],
        ["--mem-fraction-static", shared.share_text(job, "sglang")],
        ["--kv-cache-dtype", CACHE_WORDS[c["kv_precision"]]],
    ]
    if c["precision"] in ON_LOADING:
        options.append(["--quantization", ON_LOADING[c["precision"]]])
    if c.get("draft_tokens"):
        # It derives all three when none is stated, and compares what is missing with numbers when one is.
        drafts = ["--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", c["draft_tokens"] + 1]
        options.append(["--speculative-algorithm", "NEXTN", "--speculative-num-steps", c["draft_tokens"], *drafts])
    inside = c["dp"] if c["attention_dp"] == 1 and nodes == 1 and not spread else 1
    each = group * c["pp"] * inside
    meets = "--nnodes {nodes} --node-rank {rank} --dist-init-addr {head}:5000"
    several = (job.model.is_moe and c["attention_dp"] > 1) or spread
    said = shared.remarks(job, "sglang", on_loading=tuple(ON_LOADING))
    first = ["python", "-m", "sglang.launch_server"]
    server = Server(each, nodes, c["n_gpus"] // each, meets, alone=shared.several(job) if several else ())
    return shared.made(job, first, [*options, ["--port", shared.PORT]], server, said)


TARGET = Target(("sglang", "sgl"), problems, start, job="serving")
