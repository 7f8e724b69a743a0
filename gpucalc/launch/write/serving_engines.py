"""Serving layouts as the launch settings of vLLM, SGLang and TensorRT-LLM, checked against what each can express.

Flags as in vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.2 (`trtllm-serve`).
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from gpucalc.core.errors import UsageError, unknown
from gpucalc.jobs.serving import ServingJob
from gpucalc.launch.write.text import yaml_text

SERVING_TARGETS = ("vllm", "sglang", "trtllm")
ALIASES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt": "trtllm", "sgl": "sglang"}
CACHE_WORDS = {
    "vllm": {"bf16": "auto", "fp16": "auto", "fp8": "fp8"},
    "sglang": {"bf16": "auto", "fp16": "auto", "fp8": "fp8_e4m3"},
    "trtllm": {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"},
}
# Formats that an engine makes of a 16-bit checkpoint while loading; the others must be in the checkpoint.
ON_LOADING = {"vllm": {"fp8": "fp8"}, "sglang": {"fp8": "fp8"}, "trtllm": {}}
PORT = 8000
MOST_SEQUENCES = {"vllm": 1024, "sglang": 4096, "trtllm": 2048}


def serving_target(name: str) -> str | None:
    """The engine that a value of --to means; None for another framework.

    >>> serving_target("TensorRT-LLM"), serving_target("megatron")
    ('trtllm', None)
    """
    word = name.strip().casefold().replace("_", "-")
    word = ALIASES.get(word, word)
    return word if word in SERVING_TARGETS else None


def engine_settings(job: ServingJob, target: str) -> tuple[str, tuple[str, ...]]:
    """The launch text of a layout, and what is to be said beside it.

    Raises UsageError with everything that the engine cannot express.
    """
    if target not in SERVING_TARGETS:
        raise unknown("value of --to", target, SERVING_TARGETS)
    problems = engine_problems(job, target)
    if problems:
        raise UsageError(*problems)
    writer = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[target]
    text: str = writer(job)
    return text, tuple(_remarks(job, target))


def engine_problems(job: ServingJob, target: str) -> list[str]:
    """What the engine cannot express, each with a way out."""
    c = job.cells
    problems = []
    group = c["tp"] * c["attention_dp"]
    if c["kv_precision"] not in CACHE_WORDS[target]:
        known = ", ".join(CACHE_WORDS[target])
        problems.append(f"{target} holds no cache in {c['kv_precision']}; it knows {known}")
    if job.model.is_moe and target == "vllm" and c["ep"] not in {1, group}:
        problems.append(f"vllm spreads experts over all tp·dp = {group} ranks or none; ep={c['ep']} is neither")
    if target == "trtllm" and c["attention_dp"] > 1 and c["tp"] > 1:
        problems.append(
            f"trtllm runs attention data parallel on all ranks or none; write tp=1 with attention_dp={group}, "
            f"not tp={c['tp']} with attention_dp={c['attention_dp']}"
        )
    if c.get("prefill_gpus"):
        problems.append("prefill and decode workers are launched apart; export each with its own layout and GPUs")
    if c.get("draft_tokens") and target == "trtllm":
        problems.append("the draft of trtllm is part of its YAML and of the model; leave draft_tokens out")
    return problems


def _replicas(job: ServingJob) -> int:
    return int(job.cells["dp"] // job.cells["attention_dp"])


def _nodes(job: ServingJob) -> int:
    c = job.cells
    return max(1, math.ceil(c["tp"] * c["pp"] * c["attention_dp"] / job.cluster.gpus_per_node))


def _sequences(job: ServingJob, target: str) -> int:
    """Sequences of one attention rank: the stated load, or what the engine takes at most."""
    load = job.cells.get("concurrency")
    most = int(job.columns["max_seqs"])
    if load is None:
        return min(most, MOST_SEQUENCES[target])
    return max(1, min(most, math.ceil(load / job.cells["dp"])))


def _length(job: ServingJob) -> int:
    return math.ceil(job.cells["isl"] + job.cells["osl"])


def _headline(job: ServingJob) -> str:
    from gpucalc.questions.serve import serving_label

    c = job.cells
    load = f"{c['concurrency']:g} requests" if c.get("concurrency") else f"{c['rate']:g}/s" if c.get("rate") else "full"
    return (
        f"# {job.model.name}, {c['n_gpus']} x {job.cluster.device.key}, {c['isl']:g} in, {c['osl']:g} out, "
        f"load {load}: {serving_label(c)}\n"
    )


def _command(first: list[str], options: list[list[Any]]) -> str:
    lines = [" ".join(shlex.quote(str(word)) for word in line) for line in options]
    return " \\\n  ".join([" ".join(shlex.quote(word) for word in first), *lines]) + "\n"


def _model_name(job: ServingJob) -> str:
    return str(job.cells.get("model") or job.model.name)


def _vllm(job: ServingJob) -> str:
    c = job.cells
    options: list[list[Any]] = [["--tensor-parallel-size", c["tp"]]]
    if c["pp"] > 1:
        options.append(["--pipeline-parallel-size", c["pp"]])
    shared = c["attention_dp"] if job.model.is_moe and c["attention_dp"] > 1 else c["dp"]
    if shared > 1:
        options.append(["--data-parallel-size", shared])
    if c["ep"] > 1:
        options.append(["--enable-expert-parallel"])
    options += [
        ["--max-model-len", _length(job)],
        ["--max-num-seqs", _sequences(job, "vllm")],
        ["--max-num-batched-tokens", int(job.columns["chunk_tokens"])],
        ["--gpu-memory-utilization", f"{job.columns['memory_share']:g}"],
        ["--kv-cache-dtype", CACHE_WORDS["vllm"][c["kv_precision"]]],
    ]
    if c["precision"] in ON_LOADING["vllm"]:
        options.append(["--quantization", ON_LOADING["vllm"][c["precision"]]])
    if c.get("draft_tokens"):
        options.append(["--speculative-config", f'{{"method": "mtp", "num_speculative_tokens": {c["draft_tokens"]}}}'])
    text = _command(["vllm", "serve", _model_name(job)], [*options, ["--port", PORT]])
    nodes = _nodes(job)
    if nodes > 1:
        text = text.rstrip("\n") + f" \\\n  --nnodes {nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR\n"
    return _headline(job) + text


def _sglang(job: ServingJob) -> str:
    c = job.cells
    group = c["tp"] * c["attention_dp"]  # its tensor parallel size counts the attention ranks, too
    options: list[list[Any]] = [["--model-path", _model_name(job)], ["--tp-size", group]]
    if c["pp"] > 1:
        options.append(["--pp-size", c["pp"]])
    if c["attention_dp"] > 1:
        options.append(["--attn-dp-size", c["attention_dp"]])
    elif c["dp"] > 1 and _nodes(job) == 1 and c["n_gpus"] <= job.cluster.gpus_per_node:
        options.append(["--dp-size", c["dp"]])
    if c["ep"] > 1:
        options.append(["--ep-size", c["ep"]])
    options += [
        ["--context-length", _length(job)],
        ["--max-running-requests", _sequences(job, "sglang") * c["attention_dp"]],
        ["--chunked-prefill-size", int(job.columns["chunk_tokens"])],
        ["--mem-fraction-static", f"{job.columns['memory_share']:g}"],
        ["--kv-cache-dtype", CACHE_WORDS["sglang"][c["kv_precision"]]],
    ]
    if c["precision"] in ON_LOADING["sglang"]:
        options.append(["--quantization", ON_LOADING["sglang"][c["precision"]]])
    if c.get("draft_tokens"):
        options.append(["--speculative-algorithm", "NEXTN", "--speculative-num-steps", c["draft_tokens"]])
    text = _command(["python", "-m", "sglang.launch_server"], [*options, ["--port", PORT]])
    nodes = _nodes(job)
    if nodes > 1:
        text = (
            text.rstrip("\n") + f" \\\n  --nnodes {nodes} --node-rank $NODE_RANK --dist-init-addr $MASTER_ADDR:5000\n"
        )
    return _headline(job) + text


def _trtllm(job: ServingJob) -> str:
    c = job.cells
    document: dict[str, Any] = {
        "kv_cache_config": {
            "dtype": CACHE_WORDS["trtllm"][c["kv_precision"]],
            "free_gpu_memory_fraction": round(float(job.columns["memory_share"]), 4),
        },
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": _sequences(job, "trtllm")},
    }
    if c["attention_dp"] > 1:
        document["enable_attention_dp"] = True
        document["attention_dp_config"] = {"enable_balance": True}
    options: list[list[Any]] = [["--backend", "pytorch"], ["--tp_size", c["tp"] * c["attention_dp"]]]
    if c["pp"] > 1:
        options.append(["--pp_size", c["pp"]])
    if c["ep"] > 1:
        options.append(["--ep_size", c["ep"]])
    options += [
        ["--max_batch_size", _sequences(job, "trtllm")],
        ["--max_num_tokens", int(job.columns["chunk_tokens"])],
        ["--max_seq_len", _length(job)],
    ]
    if _nodes(job) > 1:
        options.append(["--gpus_per_node", job.cluster.gpus_per_node])
    options += [["--port", PORT], ["--config", "engine.yaml"]]
    launcher = ["trtllm-llmapi-launch"] if _nodes(job) > 1 else []
    document_text = "cat > engine.yaml <<'YAML'\n" + yaml_text(document) + "YAML\n"
    return _headline(job) + document_text + _command([*launcher, "trtllm-serve", _model_name(job)], options)


def _remarks(job: ServingJob, target: str) -> list[str]:
    """What a person has to know beside the text."""
    c = job.cells
    lines = ["lengths are means: raise the longest sequence to that of the longest request"]
    several = target == "trtllm" or (job.model.is_moe and c["attention_dp"] > 1)
    several = several or (target == "sglang" and c["n_gpus"] > job.cluster.gpus_per_node)
    replicas = _replicas(job)
    if replicas > 1 and several:
        lines.append(f"start {replicas} of these, each on {c['n_gpus'] // replicas} GPUs, behind a load balancer")
    if c["precision"] not in {"bf16", "fp16", *ON_LOADING[target]}:
        lines.append(f"the checkpoint must hold its weights in {c['precision']}; {target} reads the format from it")
    if target == "trtllm" and _nodes(job) > 1:
        lines.append(f"run it under mpirun or srun with {c['tp'] * c['attention_dp'] * c['pp']} ranks")
    return lines
