"""Megatron-Bridge (NeMo): run_recipe.py with KEY=VALUE overrides (names at 067f987d, scripts/training).

The shape belongs to the recipe, so that only models with a recipe can be written.
"""

from __future__ import annotations

from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.write import megatron

# preset → recipe. The first two as in the release of August 2026, whose names tell GPUs and precision; the others
# as in Megatron-Bridge 0.3.1 (megatron/bridge/recipes), which later releases extend in the same way.
RECIPES = {
    "llama-3.1-8b": "llama31_8b_pretrain_2gpu_h100_bf16_config",
    "llama-3.1-70b": "llama31_70b_pretrain_32gpu_h100_bf16_config",
    "llama-3.1-405b": "llama31_405b_pretrain_config",
    "llama-3.2-1b": "llama32_1b_pretrain_config",
    "llama-3.2-3b": "llama32_3b_pretrain_config",
    "llama-2-7b": "llama2_7b_pretrain_config",
    "gpt3-175b": "gpt3_175b_pretrain_config",
    "qwen2.5-7b": "qwen25_7b_pretrain_config",
    "qwen2.5-14b": "qwen25_14b_pretrain_config",
    "qwen2.5-32b": "qwen25_32b_pretrain_config",
    "qwen2.5-72b": "qwen25_72b_pretrain_config",
    "qwen3-0.6b": "qwen3_600m_pretrain_config",
    "qwen3-1.7b": "qwen3_1p7b_pretrain_config",
    "qwen3-4b": "qwen3_4b_pretrain_config",
    "qwen3-8b": "qwen3_8b_pretrain_config",
    "qwen3-14b": "qwen3_14b_pretrain_config",
    "qwen3-32b": "qwen3_32b_pretrain_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_config",
    "gpt-oss-20b": "gpt_oss_20b_pretrain_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_config",
    "glm-4.5": "glm45_355b_pretrain_config",
    "glm-4.5-air": "glm45_air_106b_pretrain_config",
    "moonlight-16b-a3b": "moonlight_16b_pretrain_config",
}
SETTLED = {"llama-3.1-8b", "llama-3.1-70b"}
MIXED_PRECISION = {
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def problems(launch: Launch) -> list[str]:
    """Everything that Megatron-Bridge cannot express or refuses, in sentences."""
    c = launch
    found = megatron.problems(launch)
    if preset_of(launch.model, RECIPES) is None:
        found.append(
            f"Megatron-Bridge takes the shape from a recipe, and none is known for {launch.model.name}; known are "
            f"those of {', '.join(RECIPES)}"
        )
    if c["precision"] not in MIXED_PRECISION and c["precision"] in megatron.PRECISIONS:
        found.append(f"Megatron-Bridge's recipes take {', '.join(MIXED_PRECISION)}, not {c['precision']}")
    if c["offload_optimizer"]:
        found.append("offload of the optimizer is not written for Megatron-Bridge; leave out offload-opt")
    return list(dict.fromkeys(found))


def overrides(launch: Launch) -> dict[str, Any]:
    """The settings of the recipe that the layout decides."""
    c, zero = launch, launch.zero_stage
    values: dict[str, Any] = {"model.sequence_parallel": bool(c["sequence_parallel"]) and c["tp"] > 1}
    uneven = dict(zip(*[iter(megatron.pipeline_arguments(launch))] * 2, strict=True))
    names = {
        "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
        "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
        "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    }
    # Recipes state chunks and layouts of their own, which an override must clear.
    if c["vpp"] == 1:
        values["model.virtual_pipeline_model_parallel_size"] = "null"
    if launch.model.experts:
        values["model.pipeline_model_parallel_layout"] = "null"
    values |= {names[flag]: value for flag, value in uneven.items() if flag in names}
    if c["cp"] > 1:
        values["model.cp_comm_type"] = megatron.CP_COMM[c["cp_kind"]]
    values["ddp.use_distributed_optimizer"] = zero >= 1
    if zero >= 2:
        values["ddp.use_megatron_fsdp"] = True
        values["ddp.data_parallel_sharding_strategy"] = megatron.SHARDING[zero]
        values["checkpoint.ckpt_format"] = "fsdp_dtensor"
    group = c["shard_group"]
    if group and group != launch.replicas:
        values["ddp.num_distributed_optimizer_instances"] = launch.replicas // group
    if not launch.setting("dp_overlap", True):
        values["ddp.overlap_grad_reduce"] = False
    if c["tp"] > 1 and c["sequence_parallel"] and not launch.setting("tp_overlap", True):
        values["comm_overlap.tp_comm_overlap"] = False
    values["mixed_precision"] = MIXED_PRECISION[c["precision"]]
    if launch.gradient_bytes <= 2:
        values["mixed_precision.grad_reduce_in_fp32"] = False  # the recipes' own is fp32
    if c["recompute"] == "none":
        values["model.recompute_granularity"] = "null"
    else:
        values["model.recompute_granularity"] = c["recompute"]
    if c["recompute"] == "full":
        layers = c["recompute_layers"]
        values["model.recompute_method"] = "block" if layers else "uniform"
        values["model.recompute_num_layers"] = layers // c["vpp"] if layers else 1
    return values


def start(launch: Launch) -> LaunchCommand:
    """The command that starts the job."""
    c = launch
    preset = preset_of(launch.model, RECIPES) or ""
    sizes = {"tp": c["tp"], "pp": c["pp"], "cp": c["cp"], "mb": c["micro_batch"], "gb": c["global_batch"]}
    if c["vpp"] > 1:
        sizes["vp"] = c["vpp"]
    if launch.model.experts:
        sizes |= {"ep": c["ep"], "etp": c["etp"]}
    sizes |= {"sl": c["seq_len"], "ms": 100}
    base = megatron.start(launch)
    program = [
        ["scripts/training/run_recipe.py", "--recipe", RECIPES[preset], "--mode", "pretrain", "--dataset", "mock"],
        [word for name, value in sizes.items() for word in (f"-{name}", str(value))],
        [f"{name}={_text(value)}" for name, value in overrides(launch).items()],
    ]
    comments = list(launch.comments)
    if preset not in SETTLED:
        comments.append("the recipe is named as in Megatron-Bridge 0.3.1; later releases add GPUs and precision to it")
    comments.append("data and number of steps are placeholders")
    result = LaunchCommand("", program, environment=base.environment, comments=tuple(comments))
    result.text = TORCHRUN.script(launch, result)
    return result


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


TARGET = Target(("nemo", "megatron-bridge"), problems, start, "nemo", TORCHRUN)
