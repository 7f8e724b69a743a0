"""verl: `python3 -m verl.trainer.main_ppo` with Hydra's KEY=VALUE words (names at b178a3cd, verl/trainer/config).

The actor trains under FSDP2, or under Megatron-Core where the layout has tensor or pipeline parallelism; rollouts run
on the same GPUs in turn.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gpucalc.launch.job import LaunchCommand
from gpucalc.launch.policy import LORA_PROJECTIONS, PolicyLaunch, divides, repository_remark
from gpucalc.launch.starter import joined
from gpucalc.launch.target import Target

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
ESTIMATORS = {"grpo": "grpo", "ppo": "gae"}
PRECISIONS = {"fsdp2": ("bf16", "bf16-true", "fp16"), "megatron": ("bf16", "fp16")}
BACKENDS = {"yes": "flash", "fa2": "flash", "fa3": "flash", "vendor": "fused", "no": "unfused"}


def strategy(cells: Mapping[str, Any]) -> str:
    """The actor's backend for a layout: megatron for what FSDP2 has not."""
    cut = any((cells.get(name) or 1) > 1 for name in ("tp", "pp", "ep"))
    ring = (cells.get("cp") or 1) > 1 and cells.get("cp_kind") != "ulysses"
    return "megatron" if cut or ring or cells.get("zero_stage") == 1 else "fsdp2"


def profile(cells: Mapping[str, Any]) -> str:
    """The software whose profile fills the cells left open."""
    return {"megatron": "megatron-core", "fsdp2": "FSDP"}[strategy(cells)]


def problems(launch: PolicyLaunch) -> list[str]:
    """Everything that verl cannot express or refuses, in sentences."""
    c, p, kind = launch.update, launch.policy, strategy(launch.update.cells)
    found = divides(launch)
    if p.generation_gpus:
        found.append("verl's trainer generates on the GPUs that train; leave out generation_gpus")
    if c["precision"] not in PRECISIONS[kind]:
        found.append(f"verl trains in {', '.join(PRECISIONS[kind])} with {kind}, not {c['precision']}")
    if p.n_gpus % (c["tp"] * c["pp"] * c["cp"]):
        found.append(f"{p.n_gpus} GPUs are not a multiple of tp·pp·cp")
    share = c["dp"] * c["micro_batch"] if kind == "megatron" else p.n_gpus
    if p.rollouts % share:
        found.append(f"verl needs rollouts that {share} divides, not {p.rollouts}")
    if kind == "megatron":
        if c["zero_stage"] > 1:
            found.append(f"verl's Megatron actor has the distributed optimizer (zero1), not ZeRO {c['zero_stage']}")
        if c["method"] != "full":
            found.append("adapters are written for verl's FSDP actor only: tp, pp and ep of 1")
        if c["cp"] > 1 and c["cp_kind"] == "ulysses":
            found.append("verl's Megatron actor exchanges keys and values in a ring, not as Ulysses")
    else:
        if c["recompute"] == "selective" or c["recompute_layers"]:
            found.append("verl's FSDP actor recomputes all layers or none; use --recompute full or none")
        if c["zero_stage"] == 1:
            found.append("FSDP2 shards as ZeRO 2 or 3, or not at all")
    if c["schedule"] not in {None, "none", "1f1b", "interleaved"}:
        found.append(f"verl has no setting for the schedule {c['schedule']}")
    if c["offload_activations"] and kind == "megatron":
        found.append("activations in host memory are of verl's FSDP actor only")
    return found


def settings(launch: PolicyLaunch) -> dict[str, Any]:
    """Every setting that the step decides, by its key; `+` marks a key that verl's own files have not."""
    c, p, kind = launch.update, launch.policy, strategy(launch.update.cells)
    mini = (p.update_batch or p.rollouts) // p.samples
    found: dict[str, Any] = {
        "algorithm.adv_estimator": ESTIMATORS[p.algorithm],
        "algorithm.use_kl_in_reward": bool(p.reference and p.algorithm == "ppo"),
        "data.train_files": "TRAIN.parquet",
        "data.val_files": "VALIDATION.parquet",
        "data.train_batch_size": launch.prompts,
        "data.max_prompt_length": p.prompt,
        "data.max_response_length": p.longest_response,
        f"{MODEL}.path": c["model"],
        f"{ACTOR}.strategy": kind,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": c["micro_batch"],
        f"{ACTOR}.use_kl_loss": bool(p.reference and p.algorithm == "grpo"),
        f"{ROLLOUT}.name": p.framework,
        f"{ROLLOUT}.n": p.samples,
        f"{ROLLOUT}.tensor_model_parallel_size": launch.engine_tp,
        f"{ROLLOUT}.pipeline_model_parallel_size": p.engine_pp,
        f"{ROLLOUT}.gpu_memory_utilization": p.memory_share,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": c["micro_batch"],
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": c["micro_batch"],
    }
    if p.algorithm == "ppo":
        found |= {"critic.model.path": c["model"], "critic.ppo_micro_batch_size_per_gpu": c["micro_batch"]}
    found |= _megatron(launch) if kind == "megatron" else _fsdp(launch)
    if c["offload_optimizer"] and kind == "megatron":
        found[f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload"] = True
    found |= {"trainer.nnodes": c.nodes, "trainer.n_gpus_per_node": c.gpus_per_node}
    return found


def _fsdp(launch: PolicyLaunch) -> dict[str, Any]:
    c, at = launch.update, f"{ACTOR}.fsdp_config"
    found: dict[str, Any] = {
        f"{MODEL}.use_remove_padding": True,
        f"{MODEL}.enable_gradient_checkpointing": c["recompute"] == "full",
        f"{at}.reshard_after_forward": c["zero_stage"] == 3,
        f"{at}.fsdp_size": 1 if not c["zero_stage"] else c["shard_group"] or -1,
        f"{at}.model_dtype": "bf16" if c["precision"] == "bf16-true" else "fp32",
        f"{at}.dtype": "float16" if c["precision"] == "fp16" else "bfloat16",
    }
    if c.reduced_bytes <= 2:
        half = "fp16" if c["precision"] == "fp16" else "bf16"
        kinds = {"param_dtype": half, "reduce_dtype": half, "buffer_dtype": "fp32"}
        found |= {f"+{at}.mixed_precision.{name}": kind for name, kind in kinds.items()}
    if c["cp"] > 1:
        found[f"{ACTOR}.ulysses_sequence_parallel_size"] = c["cp"]
    if c["offload_optimizer"]:
        found[f"{at}.offload_policy"] = True
    if c["offload_activations"]:
        found[f"{MODEL}.enable_activation_offload"] = True
    if c["loss_kernel"] == "linear":
        found[f"{MODEL}.use_fused_kernels"] = True
    if c["method"] in {"lora", "qlora"}:
        found |= {f"{MODEL}.lora_rank": c["lora_rank"] or 16, f"{MODEL}.target_modules": _targets(c["lora_targets"])}
    return found


def _targets(text: str | None) -> str:
    """Adapted projections as Hydra's list; attention where none are stated."""
    word = text or "attention"
    if word == "all":
        return "all-linear"
    parts = {"qv": "q+v", "attention": "q+k+v+o"}.get(word, word).split("+")
    names = [
        n
        for part in parts
        for n in (["gate_proj", "up_proj", "down_proj"] if part == "mlp" else [LORA_PROJECTIONS[part]])
    ]
    return f"[{','.join(names)}]"


def _megatron(launch: PolicyLaunch) -> dict[str, Any]:
    c, at = launch.update, f"{ACTOR}.megatron"
    transformer = f"{at}.override_transformer_config"
    found: dict[str, Any] = {
        f"{at}.tensor_model_parallel_size": c["tp"],
        f"{at}.pipeline_model_parallel_size": c["pp"],
        f"{at}.context_parallel_size": c["cp"],
        f"{at}.sequence_parallel": bool(c["sequence_parallel"]) and c["tp"] > 1,
        f"{at}.use_distributed_optimizer": c.zero_stage >= 1 or c["zero_stage"] == 1,
        f"{at}.dtype": "float16" if c["precision"] == "fp16" else "bfloat16",
        f"+{at}.override_ddp_config.grad_reduce_in_fp32": c.reduced_bytes > 2,
        f"+{at}.override_ddp_config.overlap_grad_reduce": c.setting("dp_overlap", False),
    }
    for end in ("first", "last"):
        if c["pp"] > 1 and c[f"layers_{end}"]:
            found[f"+{transformer}.num_layers_in_{end}_pipeline_stage"] = c[f"layers_{end}"]
    if c["vpp"] > 1:
        found[f"{at}.virtual_pipeline_model_parallel_size"] = c["vpp"]
    if launch.update.model.experts:
        found |= {f"{at}.expert_model_parallel_size": c["ep"], f"{at}.expert_tensor_parallel_size": c["etp"]}
    if c["recompute"] != "none":
        found[f"{transformer}.recompute_granularity"] = c["recompute"]
    if c["recompute"] == "full":
        layers = c["recompute_layers"]
        found[f"{transformer}.recompute_method"] = "block" if layers else "uniform"
        found[f"{transformer}.recompute_num_layers"] = layers // c["vpp"] if layers else 1
    if c["flash_attention"]:
        found[f"{transformer}.attention_backend"] = BACKENDS[c["flash_attention"]]
    return found


def start(launch: PolicyLaunch) -> LaunchCommand:
    """The command that starts the job, on the head node of a Ray cluster."""
    first = "python3 -m verl.trainer.main_ppo"
    if strategy(launch.update.cells) == "megatron":
        first += " --config-name=ppo_megatron_trainer.yaml"
    words = [f"{key}={_text(value)}" for key, value in settings(launch).items()]
    comments = [launch.title, *launch.comments, repository_remark(launch)]
    if launch.update.nodes > 1:
        comments.append(f"run on the head of a Ray cluster of {launch.update.nodes} nodes")
    if launch.policy.reward_ratio:
        comments.append("the reward model is of your data: a function, or reward.reward_model of verl")
    text = "".join(f"# {line}\n" for line in comments) + joined(first, [[word] for word in words])
    return LaunchCommand(text, [shlex.split(first), words], comments=tuple(comments))


def _text(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "True" if value else "False"


TARGET = Target(("verl",), problems, start, profile, None, "policy")
