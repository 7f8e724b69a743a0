"""Commands of serving engines as serving rows: what they mean, and that what is written reads back alike."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from cli import gpucalc, shell
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launch_jobs import database, yaml_document
from manifest_schema import check_manifest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.estimate.serving import estimate_serving
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import predict_serving, resolve_serving, stack_serving
from gpucalc.launch import command_of, export, read_launch, target_named
from gpucalc.launch.target import find

LOAD = {"isl": 2048.0, "osl": 256.0}


@pytest.mark.parametrize(
    ("kind", "command", "expected"),
    [
        ("vllm", "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-num-seqs 256",
         {"model": "llama-3.1-70b", "tp": 8, "dp": 1, "n_gpus": 8, "max_seqs": 256}),
        ("vllm", "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size=1 --data-parallel-size=16 -ep",
         {"tp": 1, "dp": 16, "attention_dp": 16, "ep": 16, "n_gpus": 16}),
        ("vllm", "vllm serve llama-3.1-8b --quantization fp8 --kv-cache-dtype fp8_e4m3 --gpu-memory-utilization 0.85",
         {"precision": "fp8", "kv_precision": "fp8", "memory_share": 0.85}),
        ("vllm", "vllm serve deepseek-v3 -tp 8 --speculative-config '{\"method\": \"mtp\", "
         "\"num_speculative_tokens\": 2}'", {"draft_tokens": 2}),
        ("vllm", "docker run vllm/vllm bash -c 'vllm serve llama-3.1-8b --tensor-parallel-size 2'", {"tp": 2}),
        ("sglang", "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 "
         "--enable-dp-attention --chunked-prefill-size 131072",
         {"tp": 1, "dp": 16, "attention_dp": 16, "n_gpus": 16, "chunk_tokens": 8192}),
        ("sglang", "python -m sglang.launch_server --model llama-3.1-70b --tp-size 4 --dp-size 2 "
         "--mem-fraction-static 0.8", {"tp": 4, "dp": 2, "attention_dp": 1, "n_gpus": 8, "memory_share": 0.8}),
        ("sglang", "sglang serve --model-path qwen3-235b-a22b --tp-size 8 --ep-size 8 --chunked-prefill-size -1",
         {"ep": 8, "tp": 8}),
    ],
)  # fmt: skip
def test_what_a_command_means(kind: str, command: str, expected: dict[str, Any]) -> None:
    cells, _ = read_launch(kind, command)
    assert {name: cells.get(name) for name in expected} == expected
    assert "chunk_tokens" in expected or "chunk_tokens" not in cells


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    engine=st.sampled_from(["vllm", "sglang"]),
    model=st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    attention=st.sampled_from([1, 2, 8]),
    spread=st.booleans(),
    precision=st.sampled_from(["bf16", "fp8"]),
    kv=st.sampled_from(["bf16", "fp8"]),
    load=st.sampled_from([None, 64.0, 1024.0]),
)
def test_what_is_exported_reads_back_alike(
    engine: str, model: str, tp: int, attention: int, spread: bool, precision: str, kv: str, load: float | None
) -> None:
    dense = "llama" in model
    attention = 1 if dense else attention
    group = tp * attention
    cells: dict[str, Any] = {
        "model": model, "gpu": "h200-sxm-141gb", "n_gpus": group, "tp": tp, "dp": attention, "attention_dp": attention,
        "ep": group if spread and not dense else 1, "precision": precision, "kv_precision": kv, "framework": engine,
        **LOAD, **({"concurrency": load} if load else {}), "draft_tokens": 0,
    }  # fmt: skip
    context = Context(database())
    try:
        job = resolve_serving(cells, context)
        text = command_of(job, target_named(engine)).text
    except UsageError:
        assume(False)
        return
    read, _ = read_launch(engine, text)
    # What the checkpoint says is not in a command, nor is the load.
    beside = {"gpu": cells["gpu"], "precision": precision, "kv_precision": kv, "max_seqs": job.cells.get("max_seqs")}
    again = resolve_serving({**read, **beside, **LOAD, **({"concurrency": load} if load else {})}, context)
    ours, theirs = predict_serving([job])[0], predict_serving([again])[0]
    assert theirs["pred_fit"] == ours["pred_fit"]
    for name, value in ours.items():
        if isinstance(value, float):
            assert theirs[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize(
    ("kind", "command", "sentence"),
    [
        ("vllm", "vllm serve llama-3.1-8b -tp eight", "expected a whole number"),
        ("vllm", "vllm serve nobody/nothing -tp 8", "is not a preset"),
        ("vllm", "vllm serve llama-3.1-8b -tp $TP", "TP is not set in the text"),
        ("vllm", "vllm serve llama-3.1-8b --gpu-memory-utilization 9", "expected a share"),
        ("vllm", "vllm serve llama-3.1-8b --speculative-config {", "is not a JSON object"),
        ("sglang", "python -m sglang.launch_server --model-path llama-3.1-8b --tp-size 8 --attn-dp-size 3", "does not"),
        ("sglang", "python -m sglang.launch_server --model-path llama-3.1-8b --disaggregation-mode decode", "one side"),
        ("vllm", "echo hello", "no flag of vLLM"),
    ],
)
def test_what_is_wrong_is_said(kind: str, command: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch(kind, command)
    assert sentence in str(caught.value)


def test_options_that_move_the_figure_are_said() -> None:
    _, notes = read_launch("vllm", "vllm serve llama-3.1-8b --enforce-eager --cpu-offload-gb 10 --port 8000 --frob 1")
    assert any(n.startswith("--enforce-eager true is not modelled: slower than predicted") for n in notes)
    assert any(n.startswith("--cpu-offload-gb 10 is not modelled: slower and less memory") for n in notes)
    assert any("--frob" in n for n in notes)
    assert not any("--port" in n for n in notes)
    _, notes = read_launch("vllm", "vllm serve llama-3.1-8b --no-enable-prefix-caching")
    assert notes == []


def test_a_server_is_predicted() -> None:
    ran = shell(
        "$G export llama-3.1-70b --gpu h100-sxm-80gb --gpus 8 --layout tp8 --set isl=2048 --set osl=256 --to vllm | "
        "$G eval --from vllm - --gpu h100-sxm-80gb --set isl=2048 --set osl=256"
    )
    assert ran.status == 0, ran.err
    row = next(csv.DictReader(io.StringIO(ran.out)))
    assert row["layout"] == "tp8"
    assert float(row["pred_tpot_ms"]) > 1
    assert "bounds a request" in row["notes"]
    said = gpucalc("eval", "--from", "vllm", "-", "--gpu", "h100-sxm-80gb", stdin=b"vllm serve llama-3.1-8b -tp 1")
    assert said.status == 2
    assert "--isl" in said.err or "isl" in said.err


def written(engine: str, **cells: Any) -> tuple[str, tuple[str, ...]]:
    job = resolve_serving({"gpu": "h100-sxm-80gb", "framework": engine, **LOAD, **cells}, Context(database()))
    return export(job, target_named(engine))


def test_replicas_over_nodes_are_servers_of_their_own() -> None:
    text, said = written("vllm", model="llama-3.1-70b", n_gpus=32, tp=8, dp=4)
    assert "--data-parallel-size" not in text
    assert "start 4 of these, each on 8 GPUs, behind a load balancer" in said
    text, said = written("vllm", model="llama-3.1-8b", n_gpus=8, tp=2, dp=4)
    assert "--data-parallel-size 4" in text
    assert not any("start" in line for line in said)


@pytest.mark.parametrize("drafts", [1, 3])
def test_sglang_states_all_three_sizes_of_its_draft(drafts: int) -> None:
    text, _ = written("sglang", model="deepseek-v3", gpu="h200-sxm-141gb", n_gpus=8, tp=8, precision="fp8",
                      draft_tokens=drafts)  # fmt: skip
    for words in (f"num-steps {drafts}", "eagle-topk 1", f"num-draft-tokens {drafts + 1}"):
        assert f"--speculative-{words}" in text
    assert read_launch("sglang", text)[0]["draft_tokens"] == drafts


def test_sglang_counts_both_limits_over_the_attention_ranks() -> None:
    cells = {"model": "deepseek-v3", "gpu": "h200-sxm-141gb", "n_gpus": 16, "dp": 16, "ep": 16, "precision": "fp8"}
    text, _ = written("sglang", **cells, tp=1, attention_dp=16)
    read, _ = read_launch("sglang", text)
    own = resolve_serving({**cells, "tp": 1, "attention_dp": 16, "framework": "vllm", **LOAD}, Context(database()))
    assert read["chunk_tokens"] == own.columns["chunk_tokens"]
    assert f"--chunked-prefill-size {16 * read['chunk_tokens']}" in text


def test_a_presets_name_is_no_checkpoint() -> None:
    for engine in ("vllm", "sglang"):
        _, said = written(engine, model="llama-3.1-8b", n_gpus=1, tp=1)
        assert any("write the repository or folder of the checkpoint" in line for line in said)


@pytest.mark.parametrize("source", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
def test_the_share_of_the_memory_gives_each_engine_the_same_cache(source: str, target: str) -> None:
    """One number means three things: it is told through the bytes of the cache."""
    cells = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 4, "tp": 4, "framework": source, **LOAD}
    job = resolve_serving({**cells, "chunk_tokens": 8192, "memory_share": 0.8}, Context(database()))
    made = command_of(job, target_named(target))
    share = float(re.search(r"(?:utilization|static|memory_fraction:?) ([\d.]+)", made.text)[1])
    assert (share == 0.8) == (source == target)
    assert any(line.startswith(f"costed as {source}") for line in made.notes) == (source != target)
    there = resolve_serving({**job.cells, "framework": target, "memory_share": share}, Context(database()))
    own, theirs = (float(estimate_serving(stack_serving([one]))["memory/kv-space"]) for one in (job, there))
    assert theirs == pytest.approx(own, rel=2e-3)
    assert theirs <= own * (1 + 1e-9)


@pytest.mark.parametrize(
    ("engine", "cells", "groups", "size", "gpus"),
    [
        ("vllm", {"model": "llama-3.1-70b", "n_gpus": 32, "tp": 8, "dp": 4}, 4, 1, 8),
        ("vllm", {"model": "deepseek-v3", "n_gpus": 32, "tp": 16, "dp": 2, "attention_dp": 1, "precision": "fp8"},
         2, 2, 8),
        ("sglang", {"model": "llama-3.1-8b", "n_gpus": 8, "tp": 2, "dp": 4}, 1, 1, 8),
        ("sglang", {"model": "llama-3.1-405b", "n_gpus": 32, "tp": 16, "dp": 2, "precision": "fp8"}, 2, 2, 8),
    ],
)  # fmt: skip
def test_servers_on_a_cluster_are_groups_of_pods(
    engine: str, cells: dict[str, Any], groups: int, size: int, gpus: int
) -> None:
    job = resolve_serving({"gpu": "h100-sxm-80gb", "framework": engine, **LOAD, **cells}, Context(database()))
    text, said = export(job, target_named(engine), find("lws", ("wrap",), "--to"))
    document = yaml_document(text)
    check_manifest(document)
    spec = document["spec"]
    template = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], template["size"]) == (groups, size)
    (container,) = template["workerTemplate"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    assert groups * size * gpus == cells["n_gpus"]
    words = container["command"][2]
    assert ("$LWS_GROUP_SIZE" in words) == (size > 1)
    assert ("--headless" in words) == (size > 1 and engine == "vllm")
    assert not any("start" in line for line in said)
    read, _ = read_launch(engine, words.partition(" $(")[0].replace("$LWS_GROUP_SIZE", str(size)))
    assert (read["tp"], read["n_gpus"]) == (cells["tp"], size * gpus)


def test_a_scheduler_holds_what_it_starts() -> None:
    job = (
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm-80gb",
        "--gpus",
        "8",
        "--layout",
        "tp8",
        "--set",
        "isl=9",
        "--set",
        "osl=9",
    )
    said = gpucalc("export", *job, "--to", "lws", "--launcher", "megatron")
    assert (said.status, "megatron trains; lws holds a server's command" in said.err) == (2, True)
    said = gpucalc("export", *job, "--to", "sbatch", "--launcher", "vllm")
    assert "vllm serves; sbatch holds the launch of a training framework" in said.err
    said = gpucalc("export", *job, "--to", "sbatch", "--launcher", "verl")
    assert "verl is started on the head of a Ray cluster" in said.err
    assert "kind: LeaderWorkerSet" in gpucalc("export", *job, "--to", "lws").out
