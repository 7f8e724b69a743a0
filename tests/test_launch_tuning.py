"""Settings of fine-tuning as rows: axolotl and TRL."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from launch_jobs import database

from gpucalc.core.columns import INPUT
from gpucalc.core.errors import DataError
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import read_launch

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
