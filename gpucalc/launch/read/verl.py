"""A verl command as a step of ppo or grpo: `python3 -m verl.trainer.main_ppo KEY=VALUE …` or the same as YAML.

Names and defaults at b178a3cd: verl/trainer/config, verl/workers/config. The actor's update, the generation and the
passes between them are one row.
"""

from __future__ import annotations

from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.read import _huggingface as hf
from gpucalc.launch.read import _policy
from gpucalc.launch.read._settings import Settings, flat, parse_yaml
from gpucalc.launch.target import Source

TABLE = "verl"
ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
FSDP, MEGATRON = ACTOR + "fsdp_config.", ACTOR + "megatron."
TRANSFORMER, DDP = MEGATRON + "override_transformer_config.", MEGATRON + "override_ddp_config."
# How advantages are estimated: with a value model, or from the responses of one prompt.
ESTIMATORS = {"gae": "ppo"} | dict.fromkeys(
    ("grpo", "grpo_passk", "rloo", "rloo_vectorized", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax",
     "opo", "gpg", "grpo_vectorized"), "grpo",
)  # fmt: skip
HALF = ("bf16", "bfloat16")
FLOATS = ("bfloat16", "bf16", "float16", "fp16", "float32", "fp32")
ATTENTION = {"flash": "yes", "fused": "vendor", "unfused": "no", "local": "no", "auto": None}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells of a step that a command means, and remarks."""
    values, notes = _values(text)
    s = Settings(values, TABLE, "verl", given)
    s.notes += notes
    world = _world(s)
    method = ESTIMATORS[s.word("algorithm.adv_estimator", ESTIMATORS, "gae")]
    cells: dict[str, Any] = {
        "algorithm": method,
        "model": hf.model_of(s.text(MODEL + "path"), s),
        "method": "full",
        "n_gpus": world,
        "engine": _policy.engine_of(s, ROLLOUT + "name"),
        "engine_tp": s.integer(ROLLOUT + "tensor_model_parallel_size", 2),
        "engine_pp": s.integer(ROLLOUT + "pipeline_model_parallel_size", 1),
        "reference": bool(s.flag(ACTOR + "use_kl_loss")) or bool(s.flag("algorithm.use_kl_in_reward")),
        "reward": bool(s.flag("reward_model.enable")),
    }
    if s.get("trainer.nnodes", 1) != 1 and world:
        cells["gpus_per_node"] = s.integer("trainer.n_gpus_per_node", 8)
    rank = s.integer(MODEL + "lora_rank", 0, least=0)
    if rank:
        cells |= {"method": "lora", "lora_rank": rank}
        cells["lora_targets"] = hf.targets_of(s.get(MODEL + "target_modules", "all-linear"), False, s, "target_modules")
    if s.flag(MODEL + "use_liger"):
        cells |= {"fused_norm": True, "fused_rope": True, "fused_gate": True}
    if s.flag(MODEL + "use_fused_kernels"):
        cells["loss_kernel"] = "linear"
    if s.flag(MODEL + "enable_activation_offload"):
        cells["offload_activations"] = True
    cells["optimizer"] = hf.optimizer_of(s.text(ACTOR + "optim.optimizer", "AdamW"), s, "optim.optimizer")
    if s.flag(ACTOR + "optim.override_optimizer_config.optimizer_cpu_offload"):
        cells["offload_optimizer"] = True
    kind = s.word(ACTOR + "strategy", ("fsdp", "fsdp2", "megatron"), "fsdp")
    cells |= _megatron(s) if kind == "megatron" else _fsdp(s)
    lengths = _policy.lengths(s, s.integer("data.max_prompt_length", 512), s.integer("data.max_response_length", 512))
    cells |= lengths
    _batch(s, cells, kind == "megatron")
    if world:
        _policy.spread(s, cells, world)
        _divides(s, cells, kind == "megatron")
    return s.finish(cells)


def _values(text: str) -> tuple[dict[str, Any], list[str]]:
    try:
        document = parse_yaml(text, "verl settings")
    except DataError:
        document = None
    if isinstance(document, dict) and "actor_rollout_ref" in document:
        return flat(document), []
    words, notes = _policy.started(text, r"verl\.trainer\.main_ppo|main_ppo\.py", "verl")
    name = next((word.partition("=")[2] for word in words if word.startswith("--config-name")), "")
    base = {ACTOR + "strategy": "megatron"} if "megatron" in name else {}
    return _policy.merged(base, words), notes


def _world(s: Settings) -> int | None:
    nodes, each = s.integer("trainer.nnodes", 1), s.integer("trainer.n_gpus_per_node", 8)
    stated = s.given.get("n_gpus")
    own = nodes * each if nodes and each else None
    written = "trainer.nnodes" in s.values or "trainer.n_gpus_per_node" in s.values
    if stated and own != stated and written:
        s.problems.append(f"trainer.nnodes·n_gpus_per_node = {own}, but {stated} GPUs are stated")
    return stated or own


def _fsdp(s: Settings) -> dict[str, Any]:
    cp = s.integer(ACTOR + "ulysses_sequence_parallel_size", 1)
    if cp > 1 and not s.flag(MODEL + "use_remove_padding", True):
        s.problems.append("ulysses_sequence_parallel_size > 1 needs use_remove_padding")
    held = s.word(FSDP + "model_dtype", FLOATS, "fp32")
    worked = s.word(FSDP + "mixed_precision.param_dtype", FLOATS, s.word(FSDP + "dtype", FLOATS, "bfloat16"))
    half = worked in {"float16", "fp16"}
    found: dict[str, Any] = {
        "framework": "FSDP",
        "tp": 1,
        "pp": 1,
        "cp": cp,
        "sequence_parallel": False,
        "zero_stage": 3 if s.flag(FSDP + "reshard_after_forward", True) else 2,
        "recompute": "full" if s.flag(MODEL + "enable_gradient_checkpointing", True) else "none",
        "precision": "fp16" if half else "bf16-true" if held in HALF else "bf16",
    }
    if cp > 1:
        found["cp_kind"] = "ulysses"
    wire = s.word(FSDP + "mixed_precision.reduce_dtype", FLOATS, "fp32")
    found["gradient_dtype"] = "bf16" if wire in {*HALF, "fp16", "float16"} else "fp32"
    size = s.integer(FSDP + "fsdp_size", -1, least=-1)
    if size and size > 1:
        found["shard_group"] = size
    elif size == 1:
        found["zero_stage"] = 0
    if s.flag(FSDP + "offload_policy"):
        found["offload_optimizer"] = True
        s.notes.append("offload_policy moves parameters and gradients to the host too: slower and less memory")
    return found


def _megatron(s: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "framework": "megatron-core",
        "tp": s.integer(MEGATRON + "tensor_model_parallel_size", 1),
        "pp": s.integer(MEGATRON + "pipeline_model_parallel_size", 1),
        "vpp": s.integer(MEGATRON + "virtual_pipeline_model_parallel_size", 1),
        "layers_first": s.integer(TRANSFORMER + "num_layers_in_first_pipeline_stage"),
        "layers_last": s.integer(TRANSFORMER + "num_layers_in_last_pipeline_stage"),
        "cp": s.integer(MEGATRON + "context_parallel_size", 1),
        "ep": s.integer(MEGATRON + "expert_model_parallel_size", 1),
        "zero_stage": 1 if s.flag(MEGATRON + "use_distributed_optimizer", True) else 0,
        "precision": "fp16" if s.word(MEGATRON + "dtype", FLOATS, "bfloat16") in {"float16", "fp16"} else "bf16",
        "gradient_dtype": "fp32" if s.flag(DDP + "grad_reduce_in_fp32", True) else "bf16",
        "dp_overlap": bool(s.flag(DDP + "overlap_grad_reduce", False)),
        "recompute": s.word(TRANSFORMER + "recompute_granularity", ("full", "selective"), "none"),
    }
    found["etp"] = s.integer(MEGATRON + "expert_tensor_parallel_size", found["tp"])
    found["sequence_parallel"] = bool(s.flag(MEGATRON + "sequence_parallel", True)) and found["tp"] > 1
    layers = s.integer(TRANSFORMER + "recompute_num_layers")
    method = s.word(TRANSFORMER + "recompute_method", ("uniform", "block"), "uniform")
    if found["recompute"] == "full" and layers and method == "block":
        found["recompute_layers"] = layers * found["vpp"]
    if s.get(TRANSFORMER + "attention_backend") is not None:
        found["flash_attention"] = ATTENTION.get(s.word(TRANSFORMER + "attention_backend", ATTENTION, "flash"))
    if found["vpp"] > 1 and found["pp"] == 1:
        s.problems.append("virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size > 1")
    return found


def _batch(s: Settings, cells: dict[str, Any], megatron: bool) -> None:
    """Responses of a step and of an update, and those of a micro-step."""
    prompts, samples = s.integer("data.train_batch_size", 1024), s.integer(ROLLOUT + "n", 1)
    mini = s.integer(ACTOR + "ppo_mini_batch_size", 256)
    if prompts < mini:
        s.problems.append(f"data.train_batch_size {prompts} is less than ppo_mini_batch_size {mini}")
    cells |= {"rollouts": prompts * samples, "samples": samples, "global_batch": mini * samples}
    each, whole = s.integer(ACTOR + "ppo_micro_batch_size_per_gpu"), s.integer(ACTOR + "ppo_micro_batch_size")
    if s.flag(ACTOR + "use_dynamic_bsz"):
        tokens = s.integer(ACTOR + "ppo_max_token_len_per_gpu", 16384) * cells["cp"]
        mean = cells["prompt"] + cells["response"]
        if tokens < cells["seq_len"]:
            s.problems.append(
                f"ppo_max_token_len_per_gpu {tokens // cells['cp']} does not hold one sequence of {cells['seq_len']}"
            )
        cells["micro_batch"] = max(1, tokens // mean)
        return
    if each and whole:
        s.problems.append("ppo_micro_batch_size and ppo_micro_batch_size_per_gpu exclude each other")
    elif whole and cells["n_gpus"]:
        each = max(1, whole * cells["cp"] * cells.get("tp", 1) * cells.get("pp", 1) // cells["n_gpus"])
    elif not each:
        s.problems.append("state ppo_micro_batch_size_per_gpu (or use_dynamic_bsz=True)")
    cells["micro_batch"] = each


def _divides(s: Settings, cells: dict[str, Any], megatron: bool) -> None:
    dp, micro = cells.get("dp"), cells.get("micro_batch")
    if not dp or not micro:
        return
    share = dp * micro if megatron else cells["n_gpus"]
    what = "dp·micro" if megatron else "GPUs"
    if cells["rollouts"] % share:
        s.problems.append(f"train_batch_size·n = {cells['rollouts']} is not a multiple of {what} = {share}")
    own, rest = divmod(cells["global_batch"], dp)
    if rest or not own:
        s.problems.append(f"ppo_mini_batch_size·n = {cells['global_batch']} is not a multiple of the {dp} replicas")
    elif own % micro and not s.flag(ACTOR + "use_dynamic_bsz"):
        s.problems.append(f"{own} sequences of a replica's mini-batch are not a multiple of the micro-batch {micro}")


SOURCE = Source(("verl",), read, "a verl.trainer.main_ppo command or its YAML", "policy")
