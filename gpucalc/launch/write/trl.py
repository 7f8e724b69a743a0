"""TRL: the YAML of `trl sft --config` (sft_config.py at f2cd5771, training_args.py of transformers 5.24)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, yaml_text
from gpucalc.launch.write import _finetune as tuned

FILE = "sft.yaml"
USUAL = {"loss_kernel": "chunked"}  # what SFT computes unless Liger's kernels are asked for
PRECISIONS = ("bf16", "bf16-true", "fp16", "fp32")


def problems(launch: Launch) -> list[str]:
    """Everything that TRL cannot express or refuses, in sentences."""
    c = launch
    found = tuned.common_problems(launch, "trl")
    if c["precision"] not in PRECISIONS:
        found.append(f"trl trains in {', '.join(PRECISIONS)}, not {c['precision']}")
    if c["precision"] == "bf16-true" and tuned.adapted(launch):
        found.append("adapters train beside a 16-bit base in mixed precision: --precision bf16")
    degrees = [f"{n}={c[n]}" for n in ("tp", "cp", "ep") if c[n] > 1]
    if degrees:
        found.append(f"trl is written for data parallelism alone, not {', '.join(degrees)}")
    if c["loss_kernel"] not in {None, "chunked", "linear", "eager"}:
        found.append(f"trl computes the loss chunked, linear (Liger) or eager, not {c['loss_kernel']}")
    if c["offload_optimizer"] and not c.zero_stage:
        found.append("FSDP alone moves states to the host: write zero2 or zero3")
    return found


def document(launch: Launch) -> dict[str, Any]:
    """The keys of the YAML."""
    c = launch
    true = c["precision"] == "bf16-true" and not tuned.adapted(launch)
    values: dict[str, Any] = {
        "model_name_or_path": c["model"] or c.model.name,
        "dtype": "bfloat16" if true or tuned.adapted(launch) else "float32",
        "dataset_name": "DATASET",
        "max_length": c["seq_len"],
        "packing": True,
        "per_device_train_batch_size": c["micro_batch"],
        "gradient_accumulation_steps": tuned.accumulation(launch),
        "gradient_checkpointing": c["recompute"] == "full",
        "bf16": c["precision"] in {"bf16", "bf16-true"},
        "fp16": c["precision"] == "fp16",
        "optim": tuned.OPTIMIZERS[c["optimizer"]],
        "learning_rate": 0.0001,
        "output_dir": "out",
    }
    if c["flash_attention"]:
        values["attn_implementation"] = tuned.ATTENTION[c["flash_attention"]]
    if c["loss_kernel"] == "linear":
        values["use_liger_kernel"] = True
    elif c["loss_kernel"] == "eager":
        values["loss_type"] = "nll"
    if c["offload_activations"]:
        values["activation_offloading"] = True
    if tuned.adapted(launch):
        values |= {"use_peft": True, "lora_r": tuned.rank(launch), "lora_target_modules": tuned.modules(launch)}
        kind = tuned.base(launch)
        if kind.startswith("nf4"):
            values |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": kind == "nf4-dq"}
        elif kind == "int8":
            values["load_in_8bit"] = True
    if launch.zero_stage:
        values["fsdp"] = True
        values["fsdp_config"] = {"version": 2, "reshard_after_forward": c["zero_stage"] == 3}
        if c["offload_optimizer"]:
            values["fsdp_config"]["cpu_offload"] = True
    return values


def start(launch: Launch) -> LaunchCommand:
    """The YAML, and the command that reads it."""
    comments = (*tuned.remarks(launch), f"start: trl sft --config {FILE}, on {launch.n_gpus} GPUs")
    text = commented(launch, comments) + yaml_text(document(launch))
    program = [["-m", "trl.scripts.sft", "--config", FILE]]
    return LaunchCommand(text, program, files={FILE: text}, comments=comments)


TARGET = Target(("trl",), problems, start, "trl", TORCHRUN, usual=USUAL, adapters=True)
