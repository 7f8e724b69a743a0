"""Reinforcement learning: verl and NeMo-RL read, written, and read back."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from cli import gpucalc, shell
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_jobs import database, recorded, yaml_document

from gpucalc.core.errors import DataError, UsageError
from gpucalc.jobs.context import Context
from gpucalc.launch import command_of, read_launch, target_named
from gpucalc.launch.policy import PolicyLaunch, make_policy_launch
from gpucalc.launch.read._settings import Settings, flat
from gpucalc.launch.read.shell.script import read_script
from gpucalc.layouts.label import label_cells
from gpucalc.questions.tune.plan import one_split
from gpucalc.questions.tune.policy_cells import POLICY, make_policy

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=T data.val_files=V "
    "data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=3072 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.strategy=fsdp2 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 trainer.nnodes=1 trainer.n_gpus_per_node=8 "
)
NEMO = """
defaults: grpo_math_1B_megatron.yaml
policy:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  train_global_batch_size: 256
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  logprob_batch_size: ${policy.train_micro_batch_size}
  sequence_packing: {train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 2}"}
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, sequence_parallel: true, activation_checkpointing: true}
  generation: {backend: vllm, vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.6}}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""


def test_a_verl_command() -> None:
    cells, notes = read_launch("verl", VERL)
    expected = {
        "algorithm": "grpo", "model": "qwen3-8b", "n_gpus": 8, "dp": 8, "zero_stage": 3, "recompute": "full",
        "precision": "bf16", "gradient_dtype": "fp32", "rollouts": 2048, "samples": 8, "global_batch": 512,
        "micro_batch": 2, "engine_tp": 2, "max_response": 3072, "reference": False,
    }  # fmt: skip
    assert {name: cells[name] for name in expected} == expected
    assert len(notes) == 1
    assert "mean lengths are the data's" in notes[0]
    assert read_launch("verl", VERL, {"prompt": 300, "response": 900})[1] == []


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", {"precision": "bf16-true"}),
        ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False", {"zero_stage": 2}),
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=4", {"shard_group": 4}),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", {"cp": 2, "cp_kind": "ulysses", "dp": 4}),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", {"recompute": "none"}),
        ("actor_rollout_ref.model.lora_rank=32", {"method": "lora", "lora_rank": 32, "lora_targets": "all"}),
        ("actor_rollout_ref.actor.use_kl_loss=True", {"reference": True}),
        ("algorithm.adv_estimator=gae", {"algorithm": "ppo"}),
        ("actor_rollout_ref.rollout.name=sglang", {"engine": "sglang"}),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10240",
            {"micro_batch": 10},
        ),
        (
            "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
            {"framework": "megatron-core", "tp": 2, "dp": 4, "zero_stage": 1, "sequence_parallel": True,
             "recompute": "none", "gradient_dtype": "fp32"},
        ),
    ],
)  # fmt: skip
def test_options_of_verl(words: str, cells: dict[str, Any]) -> None:
    read, _ = read_launch("verl", VERL + words)
    assert {name: read[name] for name in cells} == cells


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("data.train_batch_size=32", "is less than ppo_mini_batch_size"),
        ("trainer.n_gpus_per_node=6", "is not a multiple of GPUs = 6"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3", "are not a multiple of the micro-batch 3"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=3", "not a multiple of an engine's"),
        ("actor_rollout_ref.rollout.name=hf", "generation is predicted for vllm"),
        ("actor_rollout_ref.actor.strategy=fspd", "fsdp"),
        ("actor_rollout_ref.model.path=nobody/nothing", "is not a preset"),
        ("actor_rollout_ref.rollout.n=$N", "N is not set in the text"),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100 actor_rollout_ref.actor.use_dynamic_bsz=True", "hold"),
    ],
)
def test_what_verl_refuses(words: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("verl", VERL + words)
    assert sentence in str(caught.value)


def test_every_key_of_verl_is_in_its_table() -> None:
    keys = [line for line in recorded("verl_keys.txt").splitlines() if line not in {"", "--"} and line[0] != "#"]
    assert len(keys) > 500
    known = Settings({}, "verl", "verl", {})
    assert [key for key in keys if known._entry(key) is None] == []
    _, notes = read_launch("verl", VERL + "actor_rollout_ref.actor.ppo_epochs=2 actor_rollout_ref.warp=9")
    assert any(n.startswith("actor_rollout_ref.actor.ppo_epochs 2 is not modelled: slower") for n in notes)
    assert any("actor_rollout_ref.warp" in n for n in notes)


def test_nemo_rl_settings() -> None:
    cells, notes = read_launch("nemo-rl", NEMO)
    expected = {
        "algorithm": "grpo", "model": "llama-3.1-8b", "n_gpus": 16, "tp": 4, "dp": 4, "zero_stage": 1, "samples": 16,
        "recompute": "full", "gradient_dtype": "bf16", "rollouts": 512, "engine_tp": 2, "reference": True,
        "global_batch": 256, "micro_batch": 8192 // (256 + 1024), "sequence_parallel": True,
    }  # fmt: skip
    assert {name: cells[name] for name in expected} == expected
    assert any("grpo_math_1B_megatron.yaml is not opened" in n for n in notes)
    apart = NEMO.replace("backend: vllm", "colocated: {enabled: false, resources: {num_nodes: 1}}, backend: vllm")
    cells, _ = read_launch("nemo-rl", apart)
    assert (cells["generation_gpus"], cells["dp"]) == (8, 2)
    cells, _ = read_launch("nemo-rl", "uv run examples/run_grpo_math.py cluster.gpus_per_node=8 "
                           "policy.model_name=Qwen/Qwen3-8B policy.dtensor_cfg.tensor_parallel_size=2")  # fmt: skip
    assert (cells["framework"], cells["tp"], cells["dp"], cells["zero_stage"]) == ("FSDP", 2, 4, 3)


def test_nemo_rl_fine_tuning_is_a_training_row() -> None:
    text = "sft: {max_num_epochs: 1}\n" + NEMO.replace("defaults: grpo_math_1B_megatron.yaml\n", "")
    cells, _ = read_launch("nemo-rl", text)
    assert "algorithm" not in cells
    assert (cells["micro_batch"], cells["global_batch"], cells["seq_len"]) == (1, 256, 4096)
    ran = gpucalc("eval", "--from", "nemo-rl", "-", "--gpu", "h100-sxm-80gb", stdin=text.encode())
    assert ran.status == 0, ran.err
    assert next(csv.DictReader(io.StringIO(ran.out)))["layout"].startswith("tp4-dp4-mbs1-zero1-sp-full")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("dtensor_cfg: {enabled: false}", "dtensor_cfg: {enabled: true}"), "exactly one of"),
        (("tensor_model_parallel_size: 4", "tensor_model_parallel_size: 3"), "not a multiple of tp"),
        (("vllm_cfg: {", "vllm_cfg: {pipeline_parallel_size: 2, "), "needs async_engine"),
        (("tensor_model_parallel_size: 4", "expert_model_parallel_size: 4"), "without experts"),
    ],
)
def test_what_nemo_rl_refuses(change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_launch("nemo-rl", NEMO.replace(*change))


LAYOUTS = {
    "verl": (
        "dp8-mbs2-zero3-full", "dp8-mbs1-zero2-none", "dp4-cp2-ulysses-mbs2-zero3-full", "tp2-dp4-mbs2-zero1-sp-full",
        "tp2-pp2-dp2-mbs1-zero1-sp-none", "tp4-dp2-mbs1-zero1-sp-selective",
    ),
    "nemo-rl": ("dp8-mbs2-zero3-full", "tp2-dp4-mbs2-zero1-sp-full", "tp2-pp2-dp2-mbs2-zero1-sp-none"),
}  # fmt: skip
JOB = {"model": "qwen3-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "global_batch": 512}
STEP = {"rollouts": 2048, "samples": 8, "engine_tp": 2, "prompt": 256, "response": 960, "max_response": 3840}


def made(target: str, layout: str, **more: Any) -> PolicyLaunch:
    step = {**STEP, **{n: more.pop(n) for n in list(more) if n in POLICY}}
    cells = {**JOB, **label_cells(layout), **more}
    return make_policy_launch("grpo", cells, step, Context(database()), target_named(target).profile)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([(t, layout) for t, layouts in LAYOUTS.items() for layout in layouts]), st.booleans())
def test_what_is_written_is_read_back_with_the_same_prediction(case: tuple[str, str], reference: bool) -> None:
    target, layout = case
    own = made(target, layout, reference=reference)
    read, _ = read_launch(target, command_of(own, target_named(target)).text,
                          {"prompt": 256, "response": 960})  # fmt: skip
    again = {name: value for name, value in read.items() if name not in POLICY} | {"gpu": JOB["gpu"]}
    step = {name: read[name] for name in POLICY if name in read}
    ours = one_split(own.policy, Context(database())).row
    theirs = one_split(make_policy(read["algorithm"], again, step), Context(database())).row
    assert theirs["layout"] == ours["layout"]
    assert theirs["pred_step_time_s"] == pytest.approx(ours["pred_step_time_s"], rel=1e-3)
    assert theirs["pred_peak_mem_gib"] == pytest.approx(ours["pred_peak_mem_gib"], rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS["verl"])
def test_keys_of_verl_as_hydra_takes_them(layout: str) -> None:
    """A key of verl's own files without a plus, another with one: Hydra refuses either way round."""
    plain, megatron = (set(part.split()) for part in recorded("verl_keys.txt").split("\n--\n"))
    words = [
        w for w in read_script(command_of(made("verl", layout), target_named("verl")).text).commands[0] if "=" in w
    ]
    own = plain | megatron if any(w.startswith("--config-name") for w in words) else plain
    for word in (w for w in words if not w.startswith("--")):
        key = word.partition("=")[0]
        assert (key.lstrip("+") not in own) == key.startswith("+"), word


def test_nemo_rl_keys_are_of_its_list() -> None:
    for layout in LAYOUTS["nemo-rl"]:
        document = yaml_document(command_of(made("nemo-rl", layout), target_named("nemo-rl")).text)
        known = Settings({}, "nemo_rl", "NeMo-RL", {})
        assert [key for key in flat(document) if known._entry(key) is None] == []


@pytest.mark.parametrize(
    ("target", "layout", "more", "sentence"),
    [
        ("verl", "dp8-mbs2-zero3-selective", {}, "recomputes all layers or none"),
        ("verl", "dp8-mbs2-zero3-full", {"generation_gpus": 4, "n_gpus": 12}, "leave out generation_gpus"),
        ("nemo-rl", "dp8-mbs2-zero2-full", {}, "shards as ZeRO 3"),
        ("nemo-rl", "dp8-mbs1-zero3-full", {}, "use mbs2"),
        ("nemo-rl", "dp8-mbs2-zero3-full", {"method": "lora"}, "adapters are not written"),
    ],
)
def test_what_cannot_be_written_is_said(target: str, layout: str, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        command_of(made(target, layout, **more), target_named(target))


def test_export_and_eval_through_a_pipe() -> None:
    ran = shell(
        "$G export qwen3-8b --gpu h100-sxm-80gb --gpus 8 --seq-len 4096 --layout dp8-mbs2-zero3-full "
        "--global-batch 512 --set rollouts=2048 --set samples=8 --set engine_tp=2 --to verl | "
        "$G eval --from verl - --gpu h100-sxm-80gb --set response=960"
    )
    assert ran.status == 0, ran.err
    row = next(csv.DictReader(io.StringIO(ran.out)))
    assert row["layout"] == "dp8-mbs2-zero3-full"
    assert 100 < float(row["pred_step_time_s"]) < 170
    said = gpucalc("export", "qwen3-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096", "--layout",
                   "dp8-mbs2-zero3-full", "--set", "rollouts=2047", "--to", "verl")  # fmt: skip
    assert said.status == 2
    assert "rollouts=2047 is not a multiple of samples=8" in said.err
