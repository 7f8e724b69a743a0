"""The recipes of torchtitan 0.3.0: what each function of a config_registry sets of what a row holds.

Facts of torchtitan/models/*/config_registry.py; a recipe that another extends holds what differs.
"""

from __future__ import annotations

from typing import Any

_SMALL = {"training.local_batch_size": 4, "training.seq_len": 4096}
_COMPILED = {"compile.enable": True, "compile.components": ["model"]}
_DEEPSEEK = {
    **_SMALL,
    "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
    "activation_checkpoint": "SelectiveAC",
    "compile.enable": True,
    "compile.components": ["loss"],
}
_LLAMA = {"training.local_batch_size": 1, "training.seq_len": 8192, "activation_checkpoint": "SelectiveAC"}
_LARGE = {"training.seq_len": 8192, "parallelism.tensor_parallel_degree": 8, "activation_checkpoint": "FullAC"}
_OSS = {"training.local_batch_size": 1, "training.seq_len": 8192, "activation_checkpoint": "FullAC"}
_QWEN = {"training.seq_len": 4096, "activation_checkpoint": "FullAC"}
# function → (module, flavor, settings); all compute the loss over pieces.
REGISTRY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3_8b": ("llama3", "8B", _LLAMA),
    "llama3_8b_mxfp8": ("llama3", "8B", {**_LLAMA, **_COMPILED, "converters": ["MXFP8LinearConverter"]}),
    "llama3_8b_first_85_pct_layers_nvfp4": (
        "llama3", "8B", {**_LLAMA, **_COMPILED, "converters": ["NVFP4LinearConverter"]},
    ),
    "llama3_70b": ("llama3", "70B", {**_LARGE, "training.local_batch_size": 8}),
    "llama3_405b": (
        "llama3", "405B", {**_LARGE, "training.local_batch_size": 2, "converters": ["Float8LinearConverter"]},
    ),
    "deepseek_v3_16b": ("deepseek_v3", "16B", {**_DEEPSEEK, "parallelism.expert_parallel_degree": 8}),
    "deepseek_v3_16b_hybridep": (
        "deepseek_v3", "16B",
        {**_DEEPSEEK, "parallelism.expert_parallel_degree": 8, "moe_comm_backend": "hybridep"},
    ),
    "deepseek_v3_671b": ("deepseek_v3", "671B", {**_DEEPSEEK, "parallelism.expert_parallel_degree": 2}),
    "deepseek_v3_671b_float8": (
        "deepseek_v3", "671B",
        {**_DEEPSEEK, "parallelism.expert_parallel_degree": 2,
         "converters": ["Float8GroupedExpertsConverter", "Float8LinearConverter"]},
    ),
    "qwen3_0_6b": ("qwen3", "0.6B", {**_SMALL, "activation_checkpoint": "SelectiveAC"}),
    "qwen3_1_7b": ("qwen3", "1.7B", {**_SMALL, "activation_checkpoint": "SelectiveAC"}),
    "qwen3_14b": ("qwen3", "14B", {**_QWEN, "training.local_batch_size": 4}),
    "qwen3_32b": ("qwen3", "32B", {**_QWEN, "training.local_batch_size": 2}),
    "qwen3_30b_a3b": ("qwen3", "30B-A3B", {**_QWEN, "training.local_batch_size": 2}),
    "gpt_oss_20b": ("gpt_oss", "20b", _OSS),
    "gpt_oss_120b": ("gpt_oss", "120b", _OSS),
}  # fmt: skip


def recipe_settings(name: str) -> dict[str, Any]:
    """What a recipe sets, its model among it; nothing of a recipe that is not known."""
    if name not in REGISTRY:
        return {"recipe": name}
    module, flavor, values = REGISTRY[name]
    return {"recipe": name, "model.name": module, "model.flavor": flavor, "loss": "ChunkedLossWrapper", **values}
