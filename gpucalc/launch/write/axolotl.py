"""axolotl: the YAML of `axolotl train` (src/axolotl/utils/schemas at 067b021c)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, yaml_text
from gpucalc.launch.write import _finetune as tuned
from gpucalc.layouts.rules import DIVIDES_HEADS
from gpucalc.layouts.verdicts import broken, partial

FILE = "axolotl.yaml"
PRECISIONS = ("bf16", "bf16-true", "fp16", "fp32")
PLUGINS = {
    "linear": ("axolotl.integrations.liger.LigerPlugin", "liger_fused_linear_cross_entropy"),
    "inplace": ("axolotl.integrations.liger.LigerPlugin", "liger_cross_entropy"),
}


def problems(launch: Launch) -> list[str]:
    """Everything that axolotl cannot express or refuses, in sentences."""
    c = launch
    found = tuned.common_problems(launch, "axolotl") + broken(partial(launch.rule_cells()), DIVIDES_HEADS)
    if c["precision"] not in PRECISIONS:
        found.append(f"axolotl trains in {', '.join(PRECISIONS)}, not {c['precision']}")
    if c["ep"] > 1:
        found.append("expert parallelism needs a plugin of axolotl that is not written; use ep1")
    if c["cp"] > 1 and c["cp_kind"] != "ring":
        found.append(f"axolotl exchanges keys and values in a ring, not as {c['cp_kind']}")
    if c["cp"] > 1 and c["flash_attention"] in {"no", "vendor"}:
        found.append("context parallelism of axolotl needs flash attention: --set flash_attention=fa2")
    if c["cp"] > 1 and c["micro_batch"] > 1:
        found.append("context parallelism beside packed samples takes micro-batches of one sequence: use mbs1")
    if c["tp"] > 1 and "8bit" in str(c["optimizer"]):
        found.append("axolotl refuses an 8-bit Adam beside tensor parallelism")
    if c["offload_optimizer"] and "8bit" in str(c["optimizer"]):
        found.append("axolotl refuses an 8-bit optimizer beside FSDP's offload")
    if c["optimizer"] == "adam8bit" and launch.zero_stage:
        found.append("axolotl refuses adamw_bnb_8bit under FSDP 2; use zero0, or optimizer adam")
    if c["offload_optimizer"] and not launch.zero_stage:
        found.append("FSDP alone moves states to the host: write zero2 or zero3")
    if c["offload_activations"] and c["recompute"] != "full":
        found.append("axolotl moves activations to the host with checkpointing only: use --recompute full")
    if c["sequence_parallel"] and c["tp"] > 1:
        found.append("axolotl has no sequence parallelism beside tp; leave out sp")
    if c["loss_kernel"] not in {None, "eager", "chunked", *PLUGINS}:
        found.append(f"axolotl has no loss of kind {c['loss_kernel']}")
    return found


def document(launch: Launch) -> dict[str, Any]:
    """The keys of the YAML."""
    c = launch
    values: dict[str, Any] = {
        "base_model": c["model"] or c.model.name,
        "datasets": [{"path": "DATASET", "type": "alpaca"}],
        "output_dir": "out",
        "sequence_len": c["seq_len"],
        "sample_packing": True,
        "micro_batch_size": c["micro_batch"],
        "gradient_accumulation_steps": tuned.accumulation(launch),
        "num_epochs": 1,
        "learning_rate": 0.0001,
        "optimizer": tuned.OPTIMIZERS[c["optimizer"]],
        "gradient_checkpointing": c["recompute"] == "full",
    }
    if c["precision"] == "bf16-true":
        values["bfloat16"] = True
    else:
        values |= {"bf16": c["precision"] == "bf16", "fp16": c["precision"] == "fp16"}
    if c["flash_attention"]:
        values["attn_implementation"] = tuned.ATTENTION[c["flash_attention"]]
    if c["offload_activations"]:
        values["activation_offloading"] = True
    if c["loss_kernel"] in PLUGINS:
        plugin, key = PLUGINS[c["loss_kernel"]]
        values |= {"plugins": [plugin], key: True}
    elif c["loss_kernel"] == "chunked":
        values["chunked_cross_entropy"] = True
    if tuned.adapted(launch):
        kind, found = tuned.base(launch), tuned.modules(launch)
        values |= {"adapter": "qlora" if kind.startswith("nf4") else "lora", "lora_r": tuned.rank(launch)}
        values |= {"lora_alpha": 2 * tuned.rank(launch)}
        values |= {"lora_target_linear": True} if found == "all-linear" else {"lora_target_modules": found}
        values |= {"load_in_4bit": True} if kind.startswith("nf4") else {"load_in_8bit": True} if kind == "int8" else {}
    for key, degree in (("tensor_parallel_size", "tp"), ("context_parallel_size", "cp")):
        if c[degree] > 1:
            values[key] = c[degree]
    if launch.zero_stage:
        values |= {"dp_shard_size": c["dp"], "fsdp_version": 2}
        wrap = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": c["zero_stage"] == 3}
        values["fsdp_config"] = {**wrap, **({"offload_params": True} if c["offload_optimizer"] else {})}
    return values


def start(launch: Launch) -> LaunchCommand:
    """The YAML, and the command that reads it."""
    comments = (*tuned.remarks(launch), f"start: axolotl train {FILE}, on {launch.n_gpus} GPUs")
    if tuned.base(launch) == "nf4":
        comments = (*comments, "axolotl quantises the scales of NF4 as well: a little less memory than predicted")
    text = commented(launch, comments) + yaml_text(document(launch))
    return LaunchCommand(text, [["-m", "axolotl.cli.train", FILE]], files={FILE: text}, comments=comments)


TARGET = Target(("axolotl",), problems, start, "axolotl", TORCHRUN, adapters=True)
