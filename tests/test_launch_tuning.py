"""Settings of fine-tuning as rows: axolotl and TRL."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launch_jobs import database, launch, refused, same_layout, text_of, yaml_document

from gpucalc.core.columns import INPUT
from gpucalc.core.errors import DataError, UsageError
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import command_of, read_launch, target_named
from gpucalc.launch.read._settings import Settings
from gpucalc.launch.read._settings import flat as flat_settings

AXOLOTL = """
{base_model: meta-llama/Llama-3.1-8B, datasets: [{path: DATASET, type: alpaca}], output_dir: out, adapter: lora,
 lora_r: 16, lora_alpha: 32, lora_target_linear: true, sequence_len: 4096, sample_packing: true, micro_batch_size: 1,
 gradient_accumulation_steps: 4, num_epochs: 1, learning_rate: 0.0001, optimizer: adamw_torch_fused,
 gradient_checkpointing: true, bf16: true, attn_implementation: flash_attention_2, fsdp_version: 2,
 fsdp_config: {reshard_after_forward: true, auto_wrap_policy: TRANSFORMER_BASED_WRAP,
               transformer_layer_cls_to_wrap: LlamaDecoderLayer}}
"""
TRL = """
{model_name_or_path: Qwen/Qwen3-8B, dtype: bfloat16, attn_implementation: flash_attention_2, use_peft: true, lora_r: 32,
 lora_target_modules: all-linear, dataset_name: DATASET, max_length: 4096, packing: true,
 per_device_train_batch_size: 1, gradient_accumulation_steps: 8, gradient_checkpointing: true, bf16: true,
 learning_rate: 0.0001, output_dir: out}
"""


def test_axolotl() -> None:
    cells, notes = read_launch("axolotl", AXOLOTL, {"n_gpus": 8})
    expected = {
        "model": "llama-3.1-8b", "method": "lora", "lora_rank": 16, "lora_targets": "all", "seq_len": 4096,
        "micro_batch": 1, "global_batch": 32, "dp": 8, "zero_stage": 3, "recompute": "full", "precision": "bf16",
        "flash_attention": "fa2", "optimizer": "adam",
    }  # fmt: skip
    assert {name: cells.get(name) for name in expected} == expected
    assert notes == []
    row = predict([resolve({**cells, "gpu": "h100-sxm-80gb"}, Context(database()))])[0]
    assert row["pred_fit"] == "fits"
    assert row["pred_step_time_s"] > 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("adapter: lora", "adapter: qlora, load_in_4bit: true"), {"method": "qlora", "quantisation": "nf4-dq"}),
        (("adapter: lora", "adapter: lora, load_in_8bit: true"), {"method": "qlora", "quantisation": "int8"}),
        (("lora_target_linear: true", "lora_target_modules: [q_proj, v_proj]"), {"lora_targets": "q+v"}),
        (("adamw_torch_fused", "paged_adamw_8bit"), {"optimizer": "paged-adam8bit"}),
        (("bf16: true", "bfloat16: true"), {"precision": "bf16-true"}),
        (("reshard_after_forward: true", "reshard_after_forward: false"), {"zero_stage": 2}),
        (("sample_packing: true", "sample_packing: true, context_parallel_size: 2"), {"cp": 2, "dp": 4}),
        (("sample_packing: true", "sample_packing: true, dp_shard_size: 4"), {"shard_group": 4, "dp": 8}),
        (("sample_packing: true", "sample_packing: true, cut_cross_entropy: true"), {"loss_kernel": "linear"}),
        (("gradient_checkpointing: true", "gradient_checkpointing: offload"), {"offload_activations": True}),
        (("gradient_accumulation_steps: 4", "batch_size: 2"), {"global_batch": 16}),
    ],
)
def test_keys_of_axolotl(change: tuple[str, str], expected: dict[str, Any]) -> None:
    assert change[0] in AXOLOTL
    cells, _ = read_launch("axolotl", AXOLOTL.replace(*change), {"n_gpus": 8})
    assert {name: cells.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("lora_r: 16,", ""), "lora_r is not stated"),
        (("bf16: true", "bf16: true, deepspeed: ds.json"), "exclude each other"),
        (("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 4, batch_size: 4"), "exclude each other"),
        (("meta-llama/Llama-3.1-8B", "nobody/nothing"), "is not a preset"),
        (("sequence_len: 4096", "sequence_len: long"), "expected a whole number"),
        (("bf16: true", "bf16: true, rl: dpo"), "gpucalc tune"),
        (("bf16: true", "bf16: true, device_map: auto"), "not a layout"),
        (("bf16: true", "bf16: true, dp_shard_size: 3"), "not a multiple of 3"),
        (("bf16: true", "bf16: true, bf16: true"), "twice"),
        (("{base_model", "{{base_model"), "not YAML"),
    ],
)
def test_what_axolotl_refuses(change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("axolotl", AXOLOTL.replace(*change), {"n_gpus": 8})
    assert sentence in str(caught.value)


def test_trl() -> None:
    cells, notes = read_launch("trl", TRL, {"n_gpus": 4, "zero_stage": 0})
    expected = {
        "model": "qwen3-8b", "method": "lora", "lora_rank": 32, "lora_targets": "all", "seq_len": 4096,
        "micro_batch": 1, "global_batch": 32, "dp": 4, "recompute": "full", "precision": "bf16",
        "loss_kernel": "chunked",
    }  # fmt: skip
    assert {name: cells.get(name) for name in expected} == expected
    assert notes == []
    full, notes = read_launch("trl", TRL.replace("use_peft: true", "use_peft: false"), {"n_gpus": 4})
    assert (full["method"], full["precision"]) == ("full", "bf16-true")  # weights were loaded in bf16
    assert any("accelerate's file decides the sharding" in note for note in notes)
    bare = "{model_name_or_path: Qwen/Qwen3-8B, output_dir: out}"
    cells, notes = read_launch("trl", bare, {"n_gpus": 1})
    # Its own defaults: 8 a device, 1,024 tokens, checkpointing and bf16 on, weights in fp32.
    assert (cells["micro_batch"], cells["seq_len"], cells["recompute"], cells["precision"]) == (8, 1024, "full", "bf16")
    assert any("packing is off" in note for note in notes)
    with pytest.raises(DataError, match="gpucalc tune"):
        read_launch("trl", TRL.replace("packing: true", "packing: true, num_generations: 8"))
    with pytest.raises(DataError, match="no settings of TRL"):
        read_launch("trl", "{base_model: x}")


def test_aliases_that_multiply_do_not_take_the_machine() -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}, z: *a{i - 1}}}" for i in range(1, 30)]
    with pytest.raises(DataError, match=r"more than|too deeply"):
        read_launch("axolotl", "base_model: llama-3.1-8b\n" + "\n".join(lines), {"n_gpus": 8})


@pytest.mark.parametrize("kind", ["axolotl", "trl", "accelerate", "nanotron", "megatron"])
@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: !!python/object/apply:os.system ['true']\n", "MODEL_ARGS: [1]\n", "base_model: {a: 1}\n",
             "distributed_type: FSDP\nfsdp_config: 3\n", "model_name_or_path: [1, 2]\n", "tokens: x\n", "? [a]\n: b\n"],
)  # fmt: skip
def test_odd_documents_are_read_or_refused_in_words(kind: str, text: str) -> None:
    with contextlib.suppress(DataError):
        cells, _ = read_launch(kind, text, {"n_gpus": 8})
        assert set(cells) <= set(INPUT)


FINE = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096}
METHODS = st.sampled_from(
    [
        {"precision": "bf16"},
        {"precision": "bf16-true"},
        {"precision": "fp16"},
        {"precision": "bf16", "method": "lora", "lora_targets": "q+v", "lora_rank": 8},
        {"precision": "bf16", "method": "lora"},
        {"precision": "bf16", "method": "qlora", "lora_targets": "all"},
        {"precision": "bf16", "method": "qlora", "quantisation": "int8", "lora_targets": "q+k+v+o"},
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    target=st.sampled_from(["trl", "axolotl", "torchtune"]),
    model=st.sampled_from(["llama-3.1-8b", "qwen2.5-7b", "gemma-2-2b"]),
    layout=st.sampled_from(
        ["dp8-mbs1-zero3", "dp8-mbs2-zero2", "dp8-mbs1-zero0", "tp2-dp4-mbs1-zero3", "dp4-cp2-mbs1-zero3"]
    ),
    recompute=st.sampled_from(["none", "full"]),
    more=METHODS,
    optimizer=st.sampled_from(["adam", "paged-adam8bit", "sgd"]),
    attention=st.sampled_from([None, "fa2", "yes"]),
)
def test_what_is_written_for_fine_tuning_reads_back_alike(
    target: str, model: str, layout: str, recompute: str, more: dict[str, Any], optimizer: str, attention: str | None
) -> None:
    job = {**FINE, "model": model, "global_batch": 64, **more, "optimizer": optimizer, "recompute": recompute}
    if attention and target != "torchtune":
        job["flash_attention"] = attention
    try:
        made = launch(target, layout, job)
        text = command_of(made, target_named(target)).text
    except UsageError:
        assume(False)
        return
    read, notes = read_launch(target, text, {"n_gpus": 8})
    assert not any("not modelled" in note for note in notes), notes
    same_layout(made, read)
    ours = predict([resolve(made.cells, Context(database()))])[0]
    theirs = predict([resolve({"gpu": FINE["gpu"], "n_gpus": 8, **read}, Context(database()))])[0]
    for name in ("pred_step_time_s", "pred_peak_mem_gib"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-12), (name, read)


@pytest.mark.parametrize(
    ("target", "layout", "more", "sentence"),
    [
        ("trl", "tp2-dp4-mbs1-zero3-full", {}, "data parallelism alone"),
        ("trl", "dp8-mbs1-zero1-full", {}, "ZeRO 2 or 3"),
        ("axolotl", "dp4-cp2-mbs2-zero3-full", {}, "use mbs1"),
        ("axolotl", "dp8-mbs1-zero3-full", {"optimizer": "adam8bit"}, "refuses adamw_bnb_8bit"),
        ("torchtune", "dp8-mbs1-zero3-full", {"precision": "bf16"}, "--precision bf16-true"),
        ("torchtune", "dp8-mbs1-zero3-selective", {"precision": "bf16-true"}, "all layers or none"),
        ("megatron", "tp2-dp4-mbs1-zero1-sp-full", {"method": "lora"}, "megatron is written for full training only"),
    ],
)
def test_what_a_trainer_has_not_is_said(target: str, layout: str, more: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(target, layout, {**FINE, "global_batch": 64}, **more)


def test_every_key_that_is_written_is_in_its_table() -> None:
    for target in ("trl", "axolotl", "torchtune"):
        text = text_of(target, "dp8-mbs1-zero3-full", {**FINE, "global_batch": 64}, method="qlora", precision="bf16")
        known = Settings({}, target, target, {})
        assert [key for key in flat_settings(yaml_document(text)) if known._entry(key) is None] == []


TUNE = """
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_attn_modules: [q_proj, v_proj, output_proj],
        apply_lora_to_mlp: True, lora_rank: 8, lora_alpha: 16, lora_dropout: 0.0}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: tokenizer.model, max_seq_len: 2048}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: False}
batch_size: 2
gradient_accumulation_steps: 8
optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
compile: False
dtype: bf16
enable_activation_checkpointing: True
"""


def test_torchtune() -> None:
    cells, notes = read_launch("torchtune", TUNE, {"n_gpus": 2})
    expected = {
        "model": "llama-3.1-8b", "method": "lora", "lora_rank": 8, "lora_targets": "q+v+o+mlp", "seq_len": 2048,
        "micro_batch": 2, "global_batch": 32, "zero_stage": 3, "recompute": "full", "precision": "bf16",
        "framework": "torchtune eager", "loss_kernel": "chunked",
    }  # fmt: skip
    assert {name: cells.get(name) for name in expected} == expected
    assert notes == [
        "dataset.packed false is not modelled: faster than predicted (samples are shorter than the sequence)"
    ]
    with pytest.raises(DataError, match="says no shape that is known"):
        read_launch("torchtune", TUNE.replace("lora_llama3_1_8b", "lora_llama9_8b"))
    assert read_launch("torchtune", TUNE.replace("lora_llama3", "qlora_llama3"))[0]["quantisation"] == "nf4-dq"


@pytest.mark.parametrize("dashes", [False, True])
def test_a_trl_command_means_its_options(dashes: bool) -> None:
    command = (
        "accelerate launch --num_processes 8 trl/scripts/sft.py --model_name_or_path Qwen/Qwen3-8B "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps $STEPS --max_seq_length 4096 --bf16 --packing "
        "--use_peft --lora_r 32 --lora_target_modules q_proj v_proj --gradient_checkpointing False --use_liger_kernel"
    )
    if dashes:
        words = [w.replace("_", "-") if w.startswith("--") else w for w in command.split()]
        command = " ".join(words)
    cells, notes = read_launch("trl", f"STEPS=4\n{command}\n", {"zero_stage": 2})
    expected = {
        "model": "qwen3-8b", "method": "lora", "lora_rank": 32, "lora_targets": "q+v", "seq_len": 4096, "n_gpus": 8,
        "micro_batch": 2, "global_batch": 64, "recompute": "none", "precision": "bf16", "loss_kernel": "linear",
    }  # fmt: skip
    found = {name: cells.get(name) for name in expected}
    assert found | {"lora_targets": found["lora_targets"].replace("qv", "q+v")} == expected
    assert notes == []
    with pytest.raises(DataError, match="STEPS is not set"):
        read_launch("trl", command, {"zero_stage": 2})


def test_trl_is_software_that_is_known() -> None:
    cells, _ = read_launch("trl", TRL, {"n_gpus": 4, "zero_stage": 0})
    job = resolve({"gpu": "h100-sxm-80gb", **cells}, Context(database()))
    assert not any("is not known" in remark for remark in job.remarks)
