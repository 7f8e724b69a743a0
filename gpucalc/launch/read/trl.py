"""A TRL YAML (`trl sft --config`) as a row: full fine-tuning, LoRA and QLoRA.

Keys and defaults at f2cd5771: trl/trainer/sft_config.py, model_config.py, and transformers 5.24 (training_args.py).
How ranks shard is accelerate's: read its file with --from accelerate, or state zero_stage.
"""

from __future__ import annotations

import re
from typing import Any

from gpucalc.launch.flags import flags
from gpucalc.launch.read import _huggingface as hf
from gpucalc.launch.read._settings import Missing, Settings, flat, typed, world_of, yaml_source
from gpucalc.launch.read.shell.command import find_command
from gpucalc.launch.read.shell.script import missing, shown
from gpucalc.launch.target import Source

TABLE = "trl"
SIGNS = frozenset({"model_name_or_path"})
FORMER = {"max_seq_length": "max_length", "torch_dtype": "dtype", "evaluation_strategy": "eval_strategy"}
DTYPES = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
FSDP = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "hybrid_shard_zero2": 2, "no_shard": 0}
FSDP_CONFIG = "fsdp_config."
ONLY_RL = ("num_generations", "max_completion_length", "use_vllm", "beta", "reward_model_path", "reward_funcs")


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    s = _settings(text, given)
    preference = [key for key in ONLY_RL if s.get(key) is not None]
    if preference:
        s.problems.append(f"{', '.join(preference)}: preference and reinforcement learning are of gpucalc tune")
    cells: dict[str, Any] = {
        "framework": "trl",
        "model": hf.model_of(s.text("model_name_or_path"), s),
        "method": "full",
        "seq_len": s.integer("max_length", 1024),
        "micro_batch": s.integer("per_device_train_batch_size", 8),
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "sequence_parallel": False,
        "recompute": "full" if s.flag("gradient_checkpointing", s.flag("activation_checkpointing", True)) else "none",
        "optimizer": hf.optimizer_of(s.text("optim", "adamw_torch_fused"), s, "optim"),
    }
    if s.flag("activation_offloading"):
        cells["offload_activations"] = True
    if s.flag("use_peft"):
        cells |= {"method": "lora", "lora_rank": s.integer("lora_r", 16)}
        cells["lora_targets"] = hf.targets_of(s.get("lora_target_modules"), False, s, "lora_target_modules")
    four, eight = bool(s.flag("load_in_4bit")), bool(s.flag("load_in_8bit"))
    if (four or eight) and cells["method"] == "full":
        s.problems.append("load_in_4bit and load_in_8bit train adapters only: set use_peft")
    else:
        hf.adapters(cells, four, eight, bool(s.flag("use_bnb_nested_quant")))
    _precision(s, cells)
    _kernels(s, cells)
    _sharding(s, cells)
    hf.spread(cells, s)
    hf.batch(cells, s, s.integer("gradient_accumulation_steps", 1))
    if not s.flag("packing"):
        s.notes.append("packing is off: samples are shorter than max_length, so faster than predicted")
    s.beside(cells, ("n_gpus", "zero_stage", "global_batch"))
    return s.finish(cells)


def _settings(text: str, given: dict[str, Any]) -> Settings:
    """The keys of a YAML, or the options of a command that starts the trainer (`trl sft --…`, `… sft.py --…`)."""
    options = {f"--{name}" for name in flags(TABLE) if "." not in name} | {f"--{old}" for old in FORMER}
    dashes = {option.replace("_", "-") for option in options}
    stated = re.search(r"(^|\s)--(model_name_or_path|model-name-or-path)[\s=]", text)
    values: dict[str, Any] = {}
    if stated:
        command = find_command(text, options | dashes, "TRL", given)
        for option, words in command.flags():
            value = [typed(word) for word in words]
            lacking = missing(" ".join(words))
            key = option.removeprefix("--").replace("-", "_")
            one = value[0] if len(value) == 1 else value or True
            values[key] = Missing(" ".join(map(shown, words)), lacking) if lacking else one
    else:
        document, _ = yaml_source(text, SIGNS, "TRL", given)
        values = flat(document)
    s = Settings({FORMER.get(key, key): value for key, value in values.items()}, TABLE, "TRL", given)
    if stated:
        world, _ = world_of(command, given, s)
        s.notes += command.notes
        s.given = {**given, **({"n_gpus": world} if world else {})}
        s.values.pop("config", None)
    return s


def _precision(s: Settings, cells: dict[str, Any]) -> None:
    half = bool(s.flag("fp16"))
    mixed = bool(s.flag("bf16", not half))
    held = DTYPES[s.word("dtype", DTYPES, "float32")]
    if half and mixed:
        s.problems.append("fp16 and bf16 exclude each other")
    if half:
        cells["precision"] = "fp16"
    elif mixed:
        # Weights that were loaded in bf16 stay so: gradients and optimizer follow.
        cells["precision"] = "bf16-true" if held == "bf16" and cells["method"] == "full" else "bf16"
    else:
        cells["precision"] = "tf32" if s.flag("tf32") else "fp32"


def _kernels(s: Settings, cells: dict[str, Any]) -> None:
    if s.get("attn_implementation") is not None:
        cells["flash_attention"] = hf.ATTENTION.get(s.word("attn_implementation", hf.ATTENTION, "sdpa"))
    if s.flag("use_liger_kernel"):
        cells |= {"fused_norm": True, "fused_rope": True, "fused_gate": True, "loss_kernel": "linear"}
    else:
        kind = s.text("loss_type", "chunked_nll")
        cells["loss_kernel"] = "chunked" if kind == "chunked_nll" else None
    if s.flag("torch_compile"):
        cells |= {"fused_norm": True, "fused_rope": True, "fused_gate": True}


def _sharding(s: Settings, cells: dict[str, Any]) -> None:
    words = s.get("fsdp")
    if isinstance(words, str) and words:
        parts = words.replace(",", " ").split()
        stages = [FSDP[part] for part in parts if part in FSDP]
        cells["zero_stage"] = stages[0] if stages else 3
        if "offload" in parts:
            cells["offload_optimizer"] = True
    elif words:
        cells["zero_stage"] = 3 if s.flag(FSDP_CONFIG + "reshard_after_forward", True) else 2
    if words and s.flag(FSDP_CONFIG + "cpu_offload"):
        cells["offload_optimizer"] = True
    if words and s.flag(FSDP_CONFIG + "activation_checkpointing"):
        cells["recompute"] = "full"
    if not words and s.get("deepspeed") is not None:
        s.notes.append("the ZeRO stage stands in the DeepSpeed file, which is not opened: state it with zero_stage=N")
        cells["zero_stage"] = s.given.get("zero_stage")
    elif not words:
        cells["zero_stage"] = s.given.get("zero_stage", 0)
        if "zero_stage" not in s.given:
            s.notes.append("accelerate's file decides the sharding: DDP is taken (--set zero_stage=3 for FSDP)")


SOURCE = Source(("trl",), read, "a YAML or command of trl sft")
