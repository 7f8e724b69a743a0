"""vLLM 0.33: the command `vllm serve` (vllm/engine/arg_utils.py, config/parallel.py)."""

from __future__ import annotations

from typing import Any

from gpucalc.jobs.serving import ServingJob
from gpucalc.launch.job import LaunchCommand, Server
from gpucalc.launch.target import Target
from gpucalc.launch.write import _serving as shared

CACHE_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8"}
ON_LOADING = {"fp8": "fp8"}  # formats that it makes of a 16-bit checkpoint; the others must be in the checkpoint
MOST_SEQUENCES = 1024


def problems(job: ServingJob) -> list[str]:
    """Everything that vLLM cannot express, each with a way out."""
    c = job.cells
    found = shared.problems(job, "vllm", CACHE_WORDS)
    group = c["tp"] * c["attention_dp"]
    if job.model.is_moe and c["ep"] not in {1, group}:
        found.append(f"vllm spreads experts over all tp·dp = {group} ranks or none; ep={c['ep']} is neither")
    return found


def start(job: ServingJob) -> LaunchCommand:
    """The command, and the remarks beside it."""
    c = job.cells
    options: list[list[Any]] = [["--tensor-parallel-size", c["tp"]]]
    if c["pp"] > 1:
        options.append(["--pipeline-parallel-size", c["pp"]])
    grouped = job.model.is_moe and c["attention_dp"] > 1
    # Replicas of a dense model share one front end on a node; on several nodes each is a server of its own.
    spread = not grouped and c["n_gpus"] > job.cluster.gpus_per_node
    parallel = c["attention_dp"] if grouped else 1 if spread else c["dp"]
    if parallel > 1:
        options.append(["--data-parallel-size", parallel])
    if c["ep"] > 1:
        options.append(["--enable-expert-parallel"])
    options += [
        ["--max-model-len", shared.longest(job)],
        ["--max-num-seqs", shared.sequences(job, MOST_SEQUENCES)],
        ["--max-num-batched-tokens", int(job.columns["chunk_tokens"])],
        ["--gpu-memory-utilization", shared.share_text(job, "vllm")],
        ["--kv-cache-dtype", CACHE_WORDS[c["kv_precision"]]],
    ]
    if c["precision"] in ON_LOADING:
        options.append(["--quantization", ON_LOADING[c["precision"]]])
    if c.get("draft_tokens"):
        options.append(["--speculative-config", f'{{"method": "mtp", "num_speculative_tokens": {c["draft_tokens"]}}}'])
    first, each = ["vllm", "serve", shared.model_name(job)], c["tp"] * c["pp"] * parallel
    meets = "--nnodes {nodes} --node-rank {rank} --master-addr {head}"
    alone = shared.several(job) if grouped or spread else ()
    if shared.nodes(job) > 1:
        alone = (*alone, "add --headless on every node but the first")
    server = Server(each, shared.nodes(job), c["n_gpus"] // each, meets, "--headless", alone)
    said = shared.remarks(job, "vllm", on_loading=tuple(ON_LOADING))
    return shared.made(job, first, [*options, ["--port", shared.PORT]], server, said)


TARGET = Target(("vllm",), problems, start, job="serving")
