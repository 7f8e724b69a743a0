"""Settings of the relatives of Megatron-LM: Megatron-DeepSpeed, recipes in YAML, ms-swift, Megatron-Bridge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_jobs import SMALL, database, recorded, text_of

from gpucalc.core.errors import DataError
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import read_launch
from gpucalc.layouts.label import Layout


def label(cells: dict[str, Any]) -> str:
    return Layout.from_cells(cells).label()


DEEPSPEED = (
    "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 32 --bf16 "
    "--vocab-size 50304 --deepspeed --deepspeed_config d.json "
)


def test_the_stage_of_megatron_deepspeed() -> None:
    sharded = DEEPSPEED + "--zero-stage 3 --no-pipeline-parallel --recompute-granularity full"
    for kind in ("megatron", "megatron-deepspeed"):
        cells, _ = read_launch(kind, sharded)
        assert (cells["zero_stage"], cells["n_gpus"], cells["framework"]) == (3, 8, "megatron-deepspeed")
    row = predict([resolve({**cells, "gpu": "a100-sxm-80gb"}, Context(database()))])[0]
    assert row["pred_fit"] == "fits"
    assert row["pred_peak_mem_gib"] < 40
    assert read_launch("megatron-deepspeed", DEEPSPEED)[0]["zero_stage"] == 1  # its own default
    assert read_launch("megatron-deepspeed", DEEPSPEED + "--zero-stage 0")[0]["zero_stage"] == 0


def test_the_json_decides_the_stage() -> None:
    script = f"cat > d.json <<EOF\n{json.dumps({'zero_optimization': {'stage': 1}})}\nEOF\n{DEEPSPEED}--zero-stage 0\n"
    cells, notes = read_launch("megatron-deepspeed", script)
    assert cells["zero_stage"] == 1
    assert any("--zero-stage 0 differs from the JSON's 1" in note for note in notes)
    with pytest.raises(DataError, match="ZeRO has stages 0 to 3"):
        read_launch("megatron-deepspeed", script.replace('"stage": 1', '"stage": 7'))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--zero-stage 3", "add --no-pipeline-parallel"),
        ("--zero-stage 2 --pipeline-model-parallel-size 2", "DeepSpeed refuses ZeRO-2 with its pipeline engine"),
        ("--no-pipeline-parallel --pipeline-model-parallel-size 2", "needs --pipeline-model-parallel-size 1"),
        ("--zero-stage 5", "ZeRO has stages 0 to 3"),
    ],
)
def test_what_megatron_deepspeed_refuses(words: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("megatron-deepspeed", DEEPSPEED + words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("--pipeline-model-parallel-size 4 --enable-zbh1-pipeline", {"pp": 4, "schedule": "zb-h1"}),
        ("--recompute-granularity full", {"recompute": "full"}),
        ("--deepspeed-activation-checkpointing", {"recompute": "full"}),
        ("--ds-sequence-parallel-size 4", {"cp": 4, "cp_kind": "ulysses", "dp": 2}),
        ("--num-key-value-heads 8", {"kv_heads": 8}),
        ("--use-flash-attn-v2", {"flash_attention": "fa2"}),
        ("--cpu-optimizer", {"offload_optimizer": True}),
        ("--fp8-hybrid", {"precision": "fp8"}),
    ],
)
def test_options_of_megatron_deepspeed(words: str, cells: dict[str, Any]) -> None:
    read, _ = read_launch("megatron-deepspeed", DEEPSPEED + words)
    assert {name: read[name] for name in cells} == cells


def test_bloom_is_dealt_by_its_partition_method() -> None:
    text = DEEPSPEED.replace("--num-layers 32", "--num-layers 70").replace("--num_gpus", "--num_nodes 12 --num_gpus")
    text = text.replace("--global-batch-size 32", "--global-batch-size 64") + "--pipeline-model-parallel-size 12 "
    text += "--tensor-model-parallel-size 4 --pp-partition-method 'type:transformer|embedding'"
    cells, _ = read_launch("megatron-deepspeed", text)
    assert (cells["pp"], cells["vpp"], cells["dp"]) == (12, 1, 2)


RECIPE = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  TP: 2
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --ffn-hidden-size: 14336
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --vocab-size: 128256
  --seq-length: ${SEQ_LEN:-8192}
  --tensor-model-parallel-size: ${TP}
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --overlap-grad-reduce: false
  --micro-batch-size: 1
  --global-batch-size: 64
  --bf16: true
"""


def test_a_recipe_of_options() -> None:
    cells, notes = read_launch("megatron", RECIPE, {"n_gpus": 8})
    assert label(cells).startswith("tp2-dp4-mbs1-zero1-sp")
    assert cells["seq_len"] == 8192
    assert cells["dp_overlap"] is False
    assert not any("not read" in note for note in notes)
    with pytest.raises(DataError, match="twice"):
        read_launch("megatron", RECIPE + "  --bf16: true\n", {"n_gpus": 8})
    with pytest.raises(DataError, match="MBS is not set in the text"):
        read_launch("megatron", RECIPE.replace("--micro-batch-size: 1", "--micro-batch-size: ${MBS}"), {"n_gpus": 8})


SWIFT = (
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --dataset D --tensor_model_parallel_size 2 "
    "--sequence_parallel true --expert_model_parallel_size 4 --micro_batch_size 1 --global_batch_size 16 "
    "--packing true --max_length 4096 --output_dir out "
)


def test_ms_swift() -> None:
    full = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    cells, notes = read_launch("ms-swift", SWIFT + full)
    assert label(cells).startswith("tp2-dp4-ep4")
    assert (cells["etp"], cells["zero_stage"], cells["recompute"]) == (1, 1, "full")
    assert (cells["model"], cells["seq_len"], cells["n_gpus"], cells["method"]) == ("qwen3-30b-a3b", 4096, 8, "full")
    assert (cells["dispatcher"], cells["expert_kernel"]) == ("alltoall", "grouped")  # its own defaults
    assert notes == []
    assert read_launch("ms-swift", SWIFT)[0]["recompute"] == "selective"
    assert read_launch("ms-swift", SWIFT + "--recompute_granularity none")[0]["recompute"] == "none"


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("--use_distributed_optimizer false", {"zero_stage": 0}),
        ("--apply_rope_fusion true", {"fused_rope": None}),
        ("--bias_activation_fusion false", {"fused_gate": False}),
        ("--tuner_type lora --lora_rank 16", {"method": "lora", "lora_rank": 16, "lora_targets": "all"}),
        ("--expert_tensor_parallel_size 2 --expert_model_parallel_size 2", {"etp": 2, "ep": 2}),
        ("--attention_backend flash_3", {"flash_attention": "fa3"}),
    ],
)
def test_options_of_ms_swift(words: str, cells: dict[str, Any]) -> None:
    read, _ = read_launch("ms-swift", SWIFT + words)
    assert {name: read.get(name) for name in cells} == cells


def test_what_ms_swift_lacks_is_said() -> None:
    with pytest.raises(DataError, match="NPROC_PER_NODE is not set"):
        read_launch("ms-swift", SWIFT.removeprefix("NPROC_PER_NODE=8 "))
    _, notes = read_launch("ms-swift", SWIFT + "--exp_avg_dtype bf16 --warp_drive 9")
    assert any(note.startswith("--exp_avg_dtype bf16 is not modelled: less memory than predicted") for note in notes)
    assert any("--warp_drive" in note for note in notes)


def test_bridge() -> None:
    commands = recorded("megatron_bridge.sh").split("# 70B")
    cells, _ = read_launch("nemo", commands[0])
    assert label(cells).startswith("tp2-dp4-mbs1-zero1-sp")
    assert cells["model"] == "llama-3.1-8b"
    cells, _ = read_launch("megatron-bridge", "# 70B" + commands[1])
    assert label(cells) == "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective"
    with pytest.raises(DataError, match="the recipe's own values are not known"):
        read_launch("nemo", commands[0].replace("-tp 2", ""))
    read, _ = read_launch(
        "nemo", commands[0].replace("model.sequence", "mixed_precision=bf16_with_mxfp8_mixed model.sequence")
    )
    assert read["precision"] == "mxfp8"


def test_bridge_reduces_in_the_type_that_was_costed() -> None:
    for kind in ("bf16", "fp32"):
        text = text_of("nemo", "tp2-dp4-mbs1-zero1-sp-none", SMALL, grad_accum_dtype=kind)
        assert read_launch("nemo", text)[0]["grad_accum_dtype"] == kind


def test_a_converted_checkpoint_names_the_model() -> None:
    text = SWIFT.replace("--model Qwen/Qwen3-30B-A3B", "--load ckpt/Qwen3-30B-A3B-mcore")
    assert text != SWIFT
    assert read_launch("ms-swift", text)[0]["model"] == "qwen3-30b-a3b"
