"""A Megatron-Bridge (NeMo) command as a row: run_recipe.py with short options and KEY=VALUE overrides.

Names at 067f987d: scripts/training/run_recipe.py, src/megatron/bridge/training/config.py, mixed_precision.py,
comm_overlap.py. What only the recipe sets, its own degrees among them, is not in the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.flags import flags
from gpucalc.launch.read._megatron import Arguments
from gpucalc.launch.read._megatron_options import known
from gpucalc.launch.read._settings import Settings, overrides
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.target import Source
from gpucalc.launch.write.nemo import RECIPES
from gpucalc.models.model import preset_names

TABLE = "nemo"
WHO = "Megatron-Bridge"
# Short and long options of the script, as the key that they override.
SHORT = {
    "-tp": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size",
    "-etp": "model.expert_tensor_parallel_size",
    "-mb": "train.micro_batch_size",
    "--micro_batch_size": "train.micro_batch_size",
    "-gb": "train.global_batch_size",
    "--global_batch_size": "train.global_batch_size",
    "-sl": "model.seq_length",
    "--seq_length": "model.seq_length",
}
# Keys whose option in Megatron-LM is named otherwise than `--` and the last part with hyphens.
RENAMED = {
    "model.virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "dataset.seq_length": "--seq-length",
    "dataset.sequence_length": "--seq-length",
    "mixed_precision.fp8_param_gather": "--fp8-param-gather",
    "mixed_precision.fp8_param": "--fp8-param-gather",
    "mixed_precision.fp8_recipe": "--fp8-recipe",
    "model.num_moe_experts": "--num-experts",
}
NEGATED = {
    "model.apply_rope_fusion": "--no-rope-fusion",
    "model.bias_activation_fusion": "--no-bias-swiglu-fusion",
    "comm_overlap.overlap_p2p_comm": "--no-overlap-p2p-communication",
}
# mixed_precision → the FP8 or FP4 options beside --bf16.
PRECISIONS: dict[str, list[tuple[str, list[str]]]] = {
    "bf16_mixed": [],
    "fp16_mixed": [("--fp16", [])],
    "bf16_with_mxfp8_mixed": [("--fp8-format", ["e4m3"]), ("--fp8-recipe", ["mxfp8"])],
    "bf16_with_fp8_current_scaling_mixed": [("--fp8-format", ["hybrid"]), ("--fp8-recipe", ["tensorwise"])],
    "bf16_with_fp8_delayed_scaling_mixed": [("--fp8-format", ["hybrid"])],
    "bf16_with_fp8_subchannel_scaling_mixed": [("--fp8-format", ["hybrid"]), ("--fp8-recipe", ["blockwise"])],
    "bf16_with_nvfp4_mixed": [("--fp4-format", ["e2m1"])],
}
HOLDS_FP8 = (  # recipes whose fp8_param_gather is on by default
    "bf16_with_mxfp8_mixed",
    "bf16_with_fp8_current_scaling_mixed",
    "bf16_with_fp8_delayed_scaling_mixed",
)
BLOCKS = {"model", "train", "ddp", "optimizer", "comm_overlap", "dataset"}
NEEDED = {
    "model.tensor_model_parallel_size": "-tp",
    "model.pipeline_model_parallel_size": "-pp",
    "train.micro_batch_size": "-mb",
    "train.global_batch_size": "-gb",
}
ATTENTION = ("mixed_precision.fp8_dot_product_attention", "mixed_precision.fp8_multi_head_attention")


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command means, and remarks."""
    command = find_command(text, {"--recipe", "--mode", *SHORT}, WHO, given)
    values = _values(command)
    s = Settings(values, TABLE, WHO, given)
    s.notes += command.notes
    model = given.get("model") or _preset(s.text("--recipe") or s.text("--model"), s)
    lacking = [f"{short} ({key})" for key, short in NEEDED.items() if s.get(key) is None]
    if lacking:
        s.problems.append(f"{', '.join(lacking)} not stated: the recipe's own values are not known here")
    world, per_node = command.world(given, s.problems)
    mode = s.text("--mode", "pretrain")
    stated = _stated(s)
    s.remark()
    arguments = Arguments(
        stated, {**given, "model": model}, world, per_node, command.variables, WHO, "nemo",
        {"backend": "auto", "hidden_dropout": 0.0, "attention_dropout": 0.0, "dispatcher": "alltoall",
         "--moe-grouped-gemm": True, "--overlap-grad-reduce": True},
        s.notes, s.problems,
    )  # fmt: skip
    if given.get("seq_len") is None and not any(flag == "--seq-length" for flag, _ in stated):
        s.problems.append("-sl is not stated: the recipe's own sequence is not known here")
    cells, said = arguments.cells()
    cells["model"] = model
    if any(s.flag(key) for key in ATTENTION):
        cells["attention_precision"] = "fp8"
    if mode in {"lora", "dora"} or s.get("peft") in {"lora", "dora"}:
        cells |= {"method": "lora", "lora_rank": s.integer("peft.dim", 32)}
    elif mode not in {"pretrain", "finetune", "sft"}:
        raise DataError(f"--mode is {mode[:30]!r}; known: pretrain, finetune, sft, lora")
    return cells, said


def _values(command: Command) -> dict[str, Any]:
    """Options and overrides under their keys; an override counts after an option, as the script applies them."""
    found: dict[str, Any] = {}
    words = command.words
    for at, word in enumerate(words[:-1]):
        if word in SHORT or word in flags(TABLE):
            found |= overrides([f"{SHORT.get(word, 'x')}={words[at + 1]}"]) if word in SHORT else {}
            if word not in SHORT:
                found[word] = words[at + 1]
    return found | overrides(words)


def _preset(recipe: str, s: Settings) -> str | None:
    """The preset whose recipe is named; by its beginning where releases add GPUs and precision."""
    stems = {name.removesuffix("_config").split("_pretrain")[0]: preset for preset, name in RECIPES.items()}
    stem = recipe.split("_pretrain")[0].split("_sft")[0].split("_finetune")[0].split("_peft")[0].removesuffix("_config")
    if stem in stems and stems[stem] in preset_names():
        return stems[stem]
    s.problems.append(f"the recipe {recipe[:60]!r} says no shape that is known here; name the model (--set model=…)")
    return None


def _stated(s: Settings) -> list[tuple[str, Sequence[str]]]:
    """The overrides as options of Megatron-LM."""
    found: list[tuple[str, Sequence[str]]] = []
    kind = s.word("mixed_precision", PRECISIONS, "bf16_mixed")
    found += [*PRECISIONS[kind], *([] if kind == "fp16_mixed" else [("--bf16", [])])]
    if kind in HOLDS_FP8 and not {"mixed_precision.fp8_param_gather", "mixed_precision.fp8_param"} & set(s.values):
        found.append(("--fp8-param-gather", []))
    sharded = s.flag("model.sequence_parallel", False)
    for key, option, usual in (
        ("comm_overlap.tp_comm_overlap", "--tp-comm-overlap", sharded),
        ("ddp.overlap_grad_reduce", "--overlap-grad-reduce", True),
    ):
        if usual and key not in s.values:  # the recipes' own
            found.append((option, []))
    if "mixed_precision" not in s.values:
        s.notes.append("mixed_precision is the recipe's own; bf16_mixed is taken")
    if not s.flag("mixed_precision.grad_reduce_in_fp32", True):
        found.append(("--grad-reduce-in-bf16", []))
    # A layout says how many chunks there are; Megatron-Bridge lets both stand where they agree.
    whole = s.get("model.pipeline_model_parallel_layout") is not None
    for key, value in s.values.items():
        if whole and key == "model.virtual_pipeline_model_parallel_size":
            continue
        name = RENAMED.get(key, "--" + key.rpartition(".")[2].replace("_", "-"))
        if key in NEGATED:
            found.append((NEGATED[key], ["false" if s.flag(key) else "true"]))
        elif (
            key.partition(".")[0] not in {"model", "train", "ddp", "optimizer", "comm_overlap", "dataset"}
            and key not in RENAMED
        ):
            continue
        elif name in known() and s.get(key) is not None:
            words = str(value).strip("[]").replace(",", " ").split() if isinstance(value, str) else [str(value)]
            found.append((name, words if key.endswith("_modules") else [str(value)]))
    if s.flag("ddp.use_distributed_optimizer", True) and "ddp.use_distributed_optimizer" not in s.values:
        found.append(("--use-distributed-optimizer", []))
    return found


SOURCE = Source(("nemo", "megatron-bridge", "bridge"), read, "a run_recipe.py command")
