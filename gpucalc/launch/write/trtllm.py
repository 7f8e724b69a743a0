"""TensorRT-LLM 1.2: `trtllm-serve` with its YAML (tensorrt_llm/commands/serve.py, mapping.py)."""

from __future__ import annotations

from typing import Any

from gpucalc.jobs.serving import ServingJob
from gpucalc.launch.job import LaunchCommand, Server
from gpucalc.launch.target import Target
from gpucalc.launch.text import yaml_text
from gpucalc.launch.write import _serving as shared

CACHE_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
MOST_SEQUENCES = 2048


def problems(job: ServingJob) -> list[str]:
    """Everything that TensorRT-LLM cannot express, each with a way out."""
    c = job.cells
    found = shared.problems(job, "trtllm", CACHE_WORDS)
    if c["attention_dp"] > 1 and c["tp"] > 1:
        found.append(
            f"trtllm runs attention data parallel on all ranks or none; write tp=1 with "
            f"attention_dp={c['tp'] * c['attention_dp']}, not tp={c['tp']} with attention_dp={c['attention_dp']}"
        )
    if c.get("draft_tokens"):
        found.append("the draft of trtllm is part of its YAML and of the model; leave draft_tokens out")
    return found


def document(job: ServingJob) -> dict[str, Any]:
    """The YAML of --config."""
    c = job.cells
    values: dict[str, Any] = {
        "kv_cache_config": {
            "dtype": CACHE_WORDS[c["kv_precision"]],
            "free_gpu_memory_fraction": float(shared.share_text(job, "trtllm")),
        },
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": shared.sequences(job, MOST_SEQUENCES)},
    }
    if c["attention_dp"] > 1:
        values["enable_attention_dp"] = True
        values["attention_dp_config"] = {"enable_balance": True}
    return values


def start(job: ServingJob) -> LaunchCommand:
    """The YAML and the command, and the remarks beside them."""
    c = job.cells
    options: list[list[Any]] = [["--backend", "pytorch"], ["--tp_size", c["tp"] * c["attention_dp"]]]
    if c["pp"] > 1:
        options.append(["--pp_size", c["pp"]])
    if c["ep"] > 1:
        options.append(["--ep_size", c["ep"]])
    options += [
        ["--max_batch_size", shared.sequences(job, MOST_SEQUENCES)],
        ["--max_num_tokens", int(job.columns["chunk_tokens"])],
        ["--max_seq_len", shared.longest(job)],
    ]
    several = shared.nodes(job) > 1
    if several:
        options.append(["--gpus_per_node", job.cluster.gpus_per_node])
    options += [["--port", shared.PORT], ["--config", "engine.yaml"]]
    program = [*(["trtllm-llmapi-launch"] if several else []), "trtllm-serve", shared.model_name(job)]
    file = "cat > engine.yaml <<'YAML'\n" + yaml_text(document(job)) + "YAML\n"
    said = shared.remarks(job, "trtllm")
    if several:
        said.append(f"run it under mpirun or srun with {c['tp'] * c['attention_dp'] * c['pp']} ranks")
    each = c["tp"] * c["attention_dp"] * c["pp"]
    # Its ranks are started by MPI, so that the nodes of a server need no words to meet.
    server = Server(each, shared.nodes(job), c["n_gpus"] // each, alone=shared.several(job))
    return shared.made(job, program, options, server, said, before=file)


TARGET = Target(("trtllm", "tensorrt-llm", "trt-llm", "tensorrt"), problems, start, job="serving")
