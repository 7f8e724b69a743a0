"""torchtune 0.6: the YAML of its distributed fine-tuning recipes (recipes/full_finetune_distributed.py and its kin)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, yaml_text
from gpucalc.launch.write import _finetune as tuned

FILE = "tune.yaml"
# preset → package and builder of torchtune.models, and the type of its checkpoint.
BUILDERS = {
    "llama-2-7b": ("llama2", "llama2_7b", "LLAMA2"),
    "llama-2-13b": ("llama2", "llama2_13b", "LLAMA2"),
    "llama-2-70b": ("llama2", "llama2_70b", "LLAMA2"),
    "llama-3-8b": ("llama3", "llama3_8b", "LLAMA3"),
    "llama-3-70b": ("llama3", "llama3_70b", "LLAMA3"),
    "llama-3.1-8b": ("llama3_1", "llama3_1_8b", "LLAMA3"),
    "llama-3.1-70b": ("llama3_1", "llama3_1_70b", "LLAMA3"),
    "llama-3.1-405b": ("llama3_1", "llama3_1_405b", "LLAMA3"),
    "llama-3.2-1b": ("llama3_2", "llama3_2_1b", "LLAMA3_2"),
    "llama-3.2-3b": ("llama3_2", "llama3_2_3b", "LLAMA3_2"),
    "mistral-7b-v0.1": ("mistral", "mistral_7b", "MISTRAL"),
    "qwen2.5-0.5b": ("qwen2_5", "qwen2_5_0_5b", "QWEN2"),
    "qwen2.5-1.5b": ("qwen2_5", "qwen2_5_1_5b_base", "QWEN2"),
    "qwen2.5-3b": ("qwen2_5", "qwen2_5_3b", "QWEN2"),
    "qwen2.5-7b": ("qwen2_5", "qwen2_5_7b_base", "QWEN2"),
    "qwen2.5-14b": ("qwen2_5", "qwen2_5_14b_base", "QWEN2"),
    "qwen2.5-32b": ("qwen2_5", "qwen2_5_32b_base", "QWEN2"),
    "qwen2.5-72b": ("qwen2_5", "qwen2_5_72b_base", "QWEN2"),
    "gemma-2b": ("gemma", "gemma_2b", "GEMMA"),
    "gemma-2-2b": ("gemma2", "gemma2_2b", "GEMMA2"),
    "gemma-2-9b": ("gemma2", "gemma2_9b", "GEMMA2"),
    "gemma-2-27b": ("gemma2", "gemma2_27b", "GEMMA2"),
    "phi-3-mini": ("phi3", "phi3_mini", "PHI3_MINI"),
    "phi-4": ("phi4", "phi4_14b", "PHI4"),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"_component_": "torch.optim.AdamW", "fused": True},
    "adam8bit": {"_component_": "bitsandbytes.optim.AdamW8bit"},
    "paged-adam8bit": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
    "sgd": {"_component_": "torch.optim.SGD"},
}
MODULES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}


def usual(cells: Mapping[str, Any]) -> dict[str, Any]:
    """What every recipe does: the loss over pieces, and what trains held in 16 bit."""
    adapters = cells.get("method") not in {None, "full"}
    return {"loss_kernel": "chunked", "precision": "bf16" if adapters else "bf16-true"}


def problems(launch: Launch) -> list[str]:
    """Everything that torchtune cannot express or refuses, in sentences."""
    c = launch
    found = tuned.common_problems(launch, "torchtune", OPTIMIZERS)
    if preset_of(launch.model, BUILDERS) is None:
        found.append(f"torchtune builds {', '.join(BUILDERS)}, not {launch.model.name}")
    wanted = ("bf16", "bf16-true") if tuned.adapted(launch) else ("bf16-true", "fp32")
    if c["precision"] not in wanted:
        found.append(f"torchtune holds what it trains in one type: --precision {' or '.join(wanted)}")
    degrees = [f"{n}={c[n]}" for n in ("tp", "cp", "ep") if c[n] > 1]
    if degrees:
        found.append(f"torchtune is written for data parallelism alone, not {', '.join(degrees)}")
    if launch.n_gpus > 1 and not launch.zero_stage:
        found.append("torchtune's distributed recipes shard: write zero2 or zero3")
    if launch.nodes > 1 and tuned.adapted(launch):
        found.append("torchtune's recipes of adapters run on one node")
    if tuned.base(launch) not in {"none", "nf4-dq"}:
        found.append(f"torchtune stores a frozen base as NF4 with doubly quantised scales, not as {tuned.base(launch)}")
    if c["loss_kernel"] not in {None, "chunked", "linear", "eager"}:
        found.append(f"torchtune has no loss of kind {c['loss_kernel']}")
    if c["offload_activations"] and c["recompute"] != "full":
        found.append("torchtune moves activations to the host with checkpointing only: use --recompute full")
    if c["optimizer_in_backward"] and launch.micro_batches > 1:
        found.append("torchtune refuses an optimizer in the backward pass beside gradient accumulation")
    return found


def document(launch: Launch) -> dict[str, Any]:
    """The keys of the YAML."""
    c = launch
    package, builder, kind = BUILDERS[preset_of(launch.model, BUILDERS) or ""]
    at = f"torchtune.models.{package}"
    model: dict[str, Any] = {"_component_": f"{at}.{builder}"}
    if tuned.adapted(launch):
        parts = tuned.targets(launch)
        model = {
            "_component_": f"{at}.{'qlora' if tuned.base(launch) != 'none' else 'lora'}_{builder}",
            "lora_attn_modules": [MODULES[part] for part in parts if part in MODULES],
            "apply_lora_to_mlp": "mlp" in parts,
            "apply_lora_to_output": False,
            "lora_rank": tuned.rank(launch),
            "lora_alpha": 2 * tuned.rank(launch),
        }
    loss = {"chunked": "CEWithChunkedOutputLoss", "linear": "LinearCrossEntropyLoss"}.get(c["loss_kernel"] or "chunked")
    values: dict[str, Any] = {
        "output_dir": "out",
        "model": model,
        "tokenizer": {"_component_": "TOKENIZER", "path": "CHECKPOINT/tokenizer.model", "max_seq_len": c["seq_len"]},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": "CHECKPOINT",
            "checkpoint_files": ["FILES"],
            "recipe_checkpoint": None,
            "output_dir": "out",
            "model_type": kind,
        },
        "resume_from_checkpoint": False,
        "dataset": {"_component_": "DATASET", "packed": True},
        "seed": None,
        "shuffle": True,
        "batch_size": c["micro_batch"],
        "gradient_accumulation_steps": tuned.accumulation(launch),
        "epochs": 1,
        "max_steps_per_epoch": None,
        "optimizer": {**OPTIMIZERS[c["optimizer"]], "lr": 0.0001},
        "loss": {"_component_": f"torchtune.modules.loss.{loss}" if loss else "torch.nn.CrossEntropyLoss"},
        "clip_grad_norm": None,
        "compile": True,
        "device": "cuda",
        "dtype": "fp32" if c["precision"] == "fp32" else "bf16",
        "enable_activation_checkpointing": c["recompute"] == "full",
        "enable_activation_offloading": bool(c["offload_activations"]),
        "fsdp_reshard_after_forward": c["zero_stage"] == 3,
        "fsdp_cpu_offload": bool(c["offload_optimizer"]),
    }
    if not tuned.adapted(launch):
        values["optimizer_in_bwd"] = bool(c["optimizer_in_backward"])
    return values


def recipe(launch: Launch) -> str:
    """The recipe that reads the YAML."""
    kind = "lora" if tuned.adapted(launch) else "full"
    return f"{kind}_finetune_{'distributed' if launch.n_gpus > 1 else 'single_device'}"


def start(launch: Launch) -> LaunchCommand:
    """The YAML, and the command that reads it."""
    command = f"tune run --nnodes {launch.nodes} --nproc_per_node {launch.gpus_per_node} {recipe(launch)}"
    said = (*tuned.remarks(launch), f"start: {command} --config {FILE}")
    if launch["lora_targets"] is None and tuned.adapted(launch):
        said = (*said, "adapters on the attention's projections, as none were stated")
    text = commented(launch, said) + yaml_text(document(launch))
    program = [["-m", f"recipes.{recipe(launch)}", "--config", FILE]]
    return LaunchCommand(text, program, files={FILE: text}, comments=said)


TARGET = Target(("torchtune",), problems, start, "torchtune", TORCHRUN, usual=usual, adapters=True)
