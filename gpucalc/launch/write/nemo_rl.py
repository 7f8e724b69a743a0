"""NeMo-RL: a YAML over one of its own bases (keys at 7ea279ab, examples/configs), for `examples/run_grpo.py --config`.

The policy trains with Megatron-Core or with DTensor (FSDP2); generation runs on the same GPUs in turn or on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.launch.job import LaunchCommand
from gpucalc.launch.policy import PolicyLaunch, divides, repository_remark
from gpucalc.launch.target import Target
from gpucalc.launch.text import yaml_text
from gpucalc.layouts.rules import DIVIDES_HEADS
from gpucalc.layouts.verdicts import broken, partial

BASES = {True: "grpo_math_1B_megatron.yaml", False: "grpo_math_1B.yaml"}
FP8 = {"fp8": "blockwise", "mxfp8": "mxfp8"}
FLOATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def by_megatron(cells: Mapping[str, Any]) -> bool:
    """Whether a layout needs Megatron-Core: pipelines, experts over ranks, ZeRO 1, 8-bit products."""
    cut = any((cells.get(name) or 1) > 1 for name in ("pp", "ep"))
    return cut or cells.get("zero_stage") in {0, 1} or cells.get("precision") in FP8


def profile(cells: Mapping[str, Any]) -> str:
    """The software whose profile fills the cells left open."""
    return "megatron-core" if by_megatron(cells) else "FSDP"


def problems(launch: PolicyLaunch) -> list[str]:
    """Everything that NeMo-RL cannot express or refuses, in sentences."""
    c, p, megatron = launch.update, launch.policy, by_megatron(launch.update.cells)
    found = divides(launch) + _packed(launch)
    if p.algorithm != "grpo":
        found.append(f"NeMo-RL is written for grpo, not {p.algorithm}")
    if c["precision"] not in {*FLOATS, *(FP8 if megatron else ())}:
        found.append(f"NeMo-RL trains in {', '.join((*FLOATS, *FP8))}, not {c['precision']}")
    if p.framework == "trtllm":
        found.append("generation is written for vllm; use --set engine=vllm")
    if p.generation_gpus and p.generation_gpus % c.gpus_per_node and c.nodes > 1:
        found.append(f"generating GPUs are whole nodes of {c.gpus_per_node}, not {p.generation_gpus}")
    if c["method"] != "full":
        found.append("adapters are not written for NeMo-RL; leave out the method")
    if c["schedule"] not in {None, "none", "1f1b"} or c["vpp"] > 1:
        found.append("NeMo-RL has no setting for interleaved stages; use vpp1")
    if c["cp"] > 1 and c["cp_kind"] not in {None, "ring", "ag"}:
        found.append(f"NeMo-RL has no context parallelism of kind {c['cp_kind']}")
    if c["recompute_layers"]:
        found.append("NeMo-RL recomputes all layers or none; use --recompute full or none")
    if megatron:
        if c["zero_stage"] > 1:
            found.append(f"NeMo-RL's Megatron policy has the distributed optimizer (zero1), not ZeRO {c['zero_stage']}")
    else:
        found += broken(partial(c.rule_cells()), DIVIDES_HEADS)
        if c["zero_stage"] == 2:
            found.append("NeMo-RL's DTensor policy shards as ZeRO 3")
        if c["recompute"] == "selective":
            found.append("NeMo-RL's DTensor policy recomputes all layers or none")
    if c["offload_activations"]:
        found.append("activations in host memory are not written for NeMo-RL")
    return found


def _mean(launch: PolicyLaunch) -> int:
    """Tokens of a sample."""
    return launch.policy.prompt + round(launch.policy.mean_response)


def _packed(launch: PolicyLaunch) -> list[str]:
    """Samples are packed into micro-batches of tokens, which must hold the longest sample."""
    c, p = launch.update, launch.policy
    own, longest = (p.update_batch or p.rollouts) // c["dp"], p.prompt + p.longest_response
    least = max(n for n in range(1, max(1, min(own, longest // _mean(launch))) + 1) if own % n == 0)
    if c["micro_batch"] >= least:
        return []
    return [f"NeMo-RL packs samples up to the longest of {longest} tokens, {least} of the mean length: use mbs{least}"]


def document(launch: PolicyLaunch) -> dict[str, Any]:
    """The settings that the step decides."""
    c, p, megatron = launch.update, launch.policy, by_megatron(launch.update.cells)
    longest = p.prompt + p.longest_response
    packed = c["micro_batch"] * _mean(launch)
    policy: dict[str, Any] = {
        "model_name": c["model"],
        "train_global_batch_size": p.update_batch or p.rollouts,
        "train_micro_batch_size": 1,
        "logprob_batch_size": 1,
        "max_total_sequence_length": longest,
        "precision": "bfloat16" if c["precision"] in FP8 else FLOATS[c["precision"]],
        "sequence_packing": {"enabled": True, "train_mb_tokens": max(packed, longest)},
        "dtensor_cfg": {"enabled": False} if megatron else _dtensor(launch),
        "megatron_cfg": _megatron(launch) if megatron else {"enabled": False},
        "generation": _generation(launch, longest),
    }
    return {
        "defaults": BASES[megatron],
        "grpo": {"num_prompts_per_step": launch.prompts, "num_generations_per_prompt": p.samples},
        "loss_fn": {"reference_policy_kl_penalty": 0.01 if p.reference else 0},
        "policy": policy,
        "cluster": {"gpus_per_node": min(c.gpus_per_node, p.n_gpus), "num_nodes": -(-p.n_gpus // c.gpus_per_node)},
    }


def _generation(launch: PolicyLaunch, longest: int) -> dict[str, Any]:
    c, p = launch.update, launch.policy
    found: dict[str, Any] = {
        "backend": p.framework,
        "max_new_tokens": p.longest_response,
        "vllm_cfg": {
            "tensor_parallel_size": launch.engine_tp,
            "pipeline_parallel_size": p.engine_pp,
            "gpu_memory_utilization": p.memory_share,
            "max_model_len": longest,
        },
    }
    if p.engine_pp > 1:
        found["vllm_cfg"]["async_engine"] = True
    colocated: dict[str, Any] = {"enabled": not p.generation_gpus}
    if p.generation_gpus:
        nodes = max(1, p.generation_gpus // c.gpus_per_node)
        colocated["resources"] = {"gpus_per_node": p.generation_gpus // nodes, "num_nodes": nodes}
    return {**found, "colocated": colocated}


def _dtensor(launch: PolicyLaunch) -> dict[str, Any]:
    c = launch.update
    return {
        "enabled": True,
        "tensor_parallel_size": c["tp"],
        "context_parallel_size": c["cp"],
        "sequence_parallel": bool(c["sequence_parallel"]) and c["tp"] > 1,
        "activation_checkpointing": c["recompute"] == "full",
        "cpu_offload": bool(c["offload_optimizer"]),
    }


def _megatron(launch: PolicyLaunch) -> dict[str, Any]:
    c = launch.update
    found: dict[str, Any] = {
        "enabled": True,
        "tensor_model_parallel_size": c["tp"],
        "pipeline_model_parallel_size": c["pp"],
        "context_parallel_size": c["cp"],
        "sequence_parallel": bool(c["sequence_parallel"]) and c["tp"] > 1,
        "activation_checkpointing": c["recompute"] != "none",
        "apply_rope_fusion": c.setting("fused_rope", True),
        "bias_activation_fusion": c.setting("fused_gate", True),
        "optimizer": {"use_distributed_optimizer": c["zero_stage"] == 1},
        "distributed_data_parallel_config": {
            "grad_reduce_in_fp32": c.reduced_bytes > 2,
            "overlap_grad_reduce": c.setting("dp_overlap", True),
        },
    }
    for end in ("first", "last"):
        if c["pp"] > 1 and c[f"layers_{end}"]:
            found[f"num_layers_in_{end}_pipeline_stage"] = c[f"layers_{end}"]
    if c["recompute"] != "none":
        found["recompute_granularity"] = c["recompute"]
    if launch.update.model.experts:
        found |= {"expert_model_parallel_size": c["ep"], "expert_tensor_parallel_size": c["etp"]}
    if c["offload_optimizer"]:
        found["optimizer"] |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    if c["precision"] in FP8:
        found["fp8_cfg"] = {"enabled": True, "fp8": "e4m3", "fp8_recipe": FP8[c["precision"]],
                            "fp8_param": c.setting("fp8_params", False)}  # fmt: skip
    return found


def start(launch: PolicyLaunch) -> LaunchCommand:
    """The YAML; `uv run examples/run_grpo.py --config FILE` starts it."""
    comments = [
        launch.title,
        *launch.comments,
        repository_remark(launch),
        "beside NeMo-RL's own files in examples/configs: uv run examples/run_grpo.py --config THIS_FILE",
    ]
    text = "".join(f"# {line}\n" for line in comments) + yaml_text(document(launch))
    notes: tuple[str, ...] = ()
    if not by_megatron(launch.update.cells) and launch.update.reduced_bytes <= 2:
        notes = ("the DTensor policy reduces gradients in fp32, which was costed in 16 bit",)
    return LaunchCommand(text, [], files={"grpo.yaml": text}, comments=tuple(comments), notes=notes)


TARGET = Target(("nemo-rl",), problems, start, profile, None, "policy")
