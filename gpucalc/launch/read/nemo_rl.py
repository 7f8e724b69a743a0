"""NeMo-RL settings as a step of grpo, or as a step of fine-tuning: a YAML, a command with overrides, or both.

Keys at 7ea279ab: examples/configs/grpo_math_1B.yaml, sft.yaml, nemo_rl/models/policy, models/generation. A parent that
the YAML names (`defaults:`) is not opened: what it would set is taken as in NeMo-RL's own base, and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.read import _huggingface as hf
from gpucalc.launch.read import _policy
from gpucalc.launch.read._settings import Settings, flat, parse_yaml
from gpucalc.launch.read.shell.script import read_script
from gpucalc.launch.target import Source

TABLE = "nemo_rl"
POLICY, DTENSOR, MEGATRON = "policy.", "policy.dtensor_cfg.", "policy.megatron_cfg."
ENGINE, PEFT, DDP = "policy.generation.vllm_cfg.", MEGATRON + "peft.", MEGATRON + "distributed_data_parallel_config."
RESOURCES = "policy.generation.colocated.resources."
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FP8 = {"blockwise": "fp8", "tensorwise": "fp8", "delayed": "fp8", "mxfp8": "mxfp8"}
FLOATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
PROGRAM = r"run_(grpo|sft|dpo|rm)\w*\.py|nemo_rl"


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells of a step that the settings mean, and remarks."""
    values, notes = _values(text)
    s = Settings(values, TABLE, "NeMo-RL", given)
    s.notes += notes
    algorithm = _algorithm(values, text)
    if algorithm == "dpo":
        s.problems.append("dpo: preference optimisation is of gpucalc tune --method dpo")
    if s.get("defaults") is not None:
        s.notes.append(
            f"{s.text('defaults')[:60]} is not opened: what it sets beside is taken as in NeMo-RL's own base"
        )
    nodes, each = s.integer("cluster.num_nodes", 1), s.integer("cluster.gpus_per_node", 1)
    world, stated = nodes * each, given.get("n_gpus")
    if stated and stated != world and any(key.startswith("cluster.") for key in values):
        s.problems.append(f"cluster.num_nodes·gpus_per_node = {world}, but {stated} GPUs are stated")
    world = stated or world
    cells: dict[str, Any] = {"model": hf.model_of(s.text(POLICY + "model_name"), s), "method": "full", "n_gpus": world}
    if nodes > 1:
        cells["gpus_per_node"] = each
    own_megatron = bool(s.flag(MEGATRON + "enabled", False))
    if own_megatron == bool(s.flag(DTENSOR + "enabled", not own_megatron)):
        s.problems.append("exactly one of policy.dtensor_cfg.enabled and policy.megatron_cfg.enabled is true")
    longest = s.integer(POLICY + "max_total_sequence_length", 512)
    cells["seq_len"] = longest
    cells |= _megatron(s) if own_megatron else _dtensor(s)
    training = world
    if algorithm == "grpo":
        training = _rollouts(s, cells, world, longest)
    cells["global_batch"] = s.integer(POLICY + "train_global_batch_size", 512)
    _micro(s, cells, algorithm)
    _policy.spread(s, cells, training)
    if algorithm != "grpo":
        cells["dp"] = cells.get("dp")
    return s.finish(cells)


def _values(text: str) -> tuple[dict[str, Any], list[str]]:
    try:
        document = parse_yaml(text, "NeMo-RL settings")
    except DataError:
        document = None
    if isinstance(document, Mapping) and {"policy", "cluster", "grpo", "defaults"} & set(document):
        values = flat(document)
        return _resolved({key: value for key, value in values.items()}), []
    words, notes = _policy.started(text, PROGRAM, "NeMo-RL")
    base: dict[str, Any] = {}
    inner = [d for d in read_script(text).documents if re.search(r"^policy\s*:", d, re.MULTILINE)]
    if inner:
        nested = parse_yaml(inner[0], "NeMo-RL settings")
        base = flat(nested) if isinstance(nested, Mapping) else {}
    else:
        file = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "--config"), "")
        if file:
            notes.append(f"{file[:60]} is not opened: what it sets beside is taken as in NeMo-RL's own base")
    return _resolved(_policy.merged(base, words)), notes


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """`${policy.key}` and `${mul:a,b}` of OmegaConf in place; what does not resolve stays a text."""

    def of(value: Any, depth: int) -> Any:
        if not isinstance(value, str) or "${" not in value or depth > 8:
            return value
        whole = re.fullmatch(r"\$\{([\w.]+)\}", value.strip())
        if whole:
            return of(values.get(whole[1], value), depth + 1)
        product = re.fullmatch(r"\$\{mul:\s*([^,]+),\s*([^,]+)\}", value.strip())
        if product:
            parts = [of(part.strip(), depth + 1) for part in product.groups()]
            numbers = [int(p) if str(p).isdigit() else None for p in parts]
            if None not in numbers:
                return numbers[0] * numbers[1]  # type: ignore[operator]
        return value

    return {key: of(value, 0) for key, value in values.items()}


def _algorithm(values: Mapping[str, Any], text: str) -> str:
    blocks = {key.partition(".")[0] for key in values}
    for name in ("dpo", "sft", "grpo"):
        if name in blocks or re.search(rf"run_{name}\w*\.py", text):
            return name
    parent = str(values.get("defaults", ""))
    return next((name for name in ("dpo", "sft") if name in parent), "grpo")


def _rollouts(s: Settings, cells: dict[str, Any], world: int, longest: int) -> int:
    """What generates; the GPUs that are left to train."""
    prompts = s.integer("grpo.num_prompts_per_step", 32)
    samples = s.integer("grpo.num_generations_per_prompt", 16)
    tp = s.integer(ENGINE + "tensor_parallel_size", 1)
    pp = s.integer(ENGINE + "pipeline_parallel_size", 1)
    if pp > 1 and not s.flag(ENGINE + "async_engine"):
        s.problems.append("vllm_cfg.pipeline_parallel_size > 1 needs async_engine")
    most = min(s.integer("policy.generation.max_new_tokens", longest), longest)
    lengths = _policy.lengths(s, max(1, longest - most) if most < longest else max(1, longest // 4), most)
    penalty = s.get("loss_fn.reference_policy_kl_penalty", 0.01)
    cells |= {
        "algorithm": "grpo",
        "engine": _policy.engine_of(s, "policy.generation.backend"),
        "engine_tp": tp,
        "engine_pp": pp,
        "rollouts": prompts * samples,
        "samples": samples,
        "reference": float(penalty) > 0 if isinstance(penalty, int | float) else True,
        "reward": False,
        **{name: value for name, value in lengths.items() if name != "seq_len"},
    }
    # The prompt and the longest response share the longest sequence.
    cells["max_response"] = max(1, min(most, longest - cells["prompt"]))
    cells["response"] = min(cells["response"], cells["max_response"])
    if s.flag("policy.generation.colocated.enabled", True):
        return world
    each = s.integer(RESOURCES + "gpus_per_node") or s.integer("cluster.gpus_per_node", 1)
    generation = each * s.integer(RESOURCES + "num_nodes", 1)
    if generation >= world:
        s.problems.append(f"{generation} of {world} GPUs generate, which leaves none to train")
        return world
    cells["generation_gpus"] = generation
    return world - generation


def _precision(s: Settings) -> str:
    return FLOATS[s.word(POLICY + "precision", FLOATS, "bfloat16")]


def _dtensor(s: Settings) -> dict[str, Any]:
    """FSDP2 with tensor and context parallelism; gradients are reduced in fp32."""
    tp, cp = s.integer(DTENSOR + "tensor_parallel_size", 1), s.integer(DTENSOR + "context_parallel_size", 1)
    found: dict[str, Any] = {
        "framework": "FSDP",
        "tp": tp,
        "pp": 1,
        "cp": cp,
        "ep": s.integer(DTENSOR + "expert_parallel_size", 1),
        "zero_stage": 3,
        "sequence_parallel": bool(s.flag(DTENSOR + "sequence_parallel")) and tp > 1,
        "recompute": "full" if s.flag(DTENSOR + "activation_checkpointing") else "none",
        "precision": _precision(s),
        "gradient_dtype": "fp32",
        "optimizer": hf.optimizer_of(s.text("policy.optimizer.name", "torch.optim.AdamW"), s, "policy.optimizer.name"),
    }
    second = s.flag(DTENSOR + "_v2", False)
    replicas = s.integer(DTENSOR + "dp_replicate_size", 1)
    if replicas > 1:
        found["replicas"] = replicas
    if s.flag(DTENSOR + "cpu_offload"):
        found["offload_optimizer"] = True
        s.notes.append("cpu_offload moves parameters and gradients to the host too: slower and less memory")
    if s.flag(DTENSOR + "lora_cfg.enabled"):
        if not second:
            s.problems.append("dtensor_cfg.lora_cfg needs dtensor_cfg._v2")
        found |= {"method": "lora", "lora_rank": s.integer(DTENSOR + "lora_cfg.dim", 8)}
        every = bool(s.flag(DTENSOR + "lora_cfg.match_all_linear", False))
        found["lora_targets"] = hf.targets_of(
            s.get(DTENSOR + "lora_cfg.target_modules"), every, s, "lora_cfg.target_modules"
        )
    if replicas > 1 and not second:
        s.problems.append("dtensor_cfg.dp_replicate_size needs dtensor_cfg._v2")
    if found.pop("replicas", 1) > 1:
        nodes, each = s.integer("cluster.num_nodes", 1), s.integer("cluster.gpus_per_node", 1)
        found["shard_group"] = nodes * each // (tp * replicas)
    return found


def _megatron(s: Settings) -> dict[str, Any]:
    tp = s.integer(MEGATRON + "tensor_model_parallel_size", 1)
    found: dict[str, Any] = {
        "framework": "megatron-core",
        "tp": tp,
        "pp": s.integer(MEGATRON + "pipeline_model_parallel_size", 1),
        "vpp": 1,
        "layers_first": s.integer(MEGATRON + "num_layers_in_first_pipeline_stage"),
        "layers_last": s.integer(MEGATRON + "num_layers_in_last_pipeline_stage"),
        "cp": s.integer(MEGATRON + "context_parallel_size", 1),
        "ep": s.integer(MEGATRON + "expert_model_parallel_size", 1),
        "etp": s.integer(MEGATRON + "expert_tensor_parallel_size", 1),
        "sequence_parallel": bool(s.flag(MEGATRON + "sequence_parallel")) and tp > 1,
        "zero_stage": 1 if s.flag(MEGATRON + "optimizer.use_distributed_optimizer", True) else 0,
        "gradient_dtype": "fp32" if s.flag(DDP + "grad_reduce_in_fp32") else "bf16",
        "dp_overlap": bool(s.flag(DDP + "overlap_grad_reduce", True)),
        "optimizer": hf.optimizer_of(s.text(MEGATRON + "optimizer.optimizer", "adam"), s, "optimizer.optimizer"),
        "precision": _precision(s),
        "mtp_layers": s.integer(MEGATRON + "mtp_num_layers", 0, least=0),
        "fused_rope": bool(s.flag(MEGATRON + "apply_rope_fusion", True)),
        "fused_gate": bool(s.flag(MEGATRON + "bias_activation_fusion", True)),
        "recompute": "none",
    }
    if s.flag(MEGATRON + "activation_checkpointing"):
        found["recompute"] = s.word(MEGATRON + "recompute_granularity", ("full", "selective"), "full")
    if s.flag(DDP + "use_custom_fsdp"):
        found["zero_stage"] = STAGES[s.word(DDP + "data_parallel_sharding_strategy", STAGES, "optim_grads_params")]
    if s.flag(MEGATRON + "optimizer.optimizer_cpu_offload"):
        found["offload_optimizer"] = True
    if s.flag(MEGATRON + "fp8_cfg.enabled"):
        found["precision"] = FP8[s.word(MEGATRON + "fp8_cfg.fp8_recipe", FP8, "blockwise")]
        found["fp8_params"] = bool(s.flag(MEGATRON + "fp8_cfg.fp8_param"))
    if s.flag(MEGATRON + "use_fused_linear_logprobs"):
        found["loss_kernel"] = "linear"
    graphs = s.word(MEGATRON + "cuda_graph_impl", ("none", "local", "transformer_engine", "full_iteration"), "none")
    if graphs != "none":
        found["cuda_graphs"] = "full" if graphs == "full_iteration" else "layer"
    if found["ep"] > 1:
        kind = s.word(MEGATRON + "moe_token_dispatcher_type", ("alltoall", "allgather", "flex"), "alltoall")
        fused = s.flag(MEGATRON + "moe_enable_deepep") or kind == "flex"
        found["dispatcher"] = "fused" if fused else kind
    if s.flag(PEFT + "enabled"):
        found |= {"method": "lora", "lora_rank": s.integer(PEFT + "dim", 8)}
        names = s.get(PEFT + "target_modules") or None
        found["lora_targets"] = hf.targets_of(names, names is None, s, "peft.target_modules")
    if found["cp"] > 1 and not s.flag("policy.sequence_packing.enabled", True):
        s.problems.append("megatron_cfg.context_parallel_size > 1 needs policy.sequence_packing")
    return found


def _micro(s: Settings, cells: dict[str, Any], algorithm: str) -> None:
    """Sequences of a micro-step: as stated, or as many of the mean length as its tokens hold."""
    micro = s.integer(POLICY + "train_micro_batch_size", 4)
    packed = s.flag("policy.sequence_packing.enabled", algorithm == "grpo")
    dynamic = s.flag("policy.dynamic_batching.enabled", False)
    if dynamic and packed and "policy.sequence_packing.enabled" in s.values:
        s.problems.append("dynamic_batching and sequence_packing exclude each other")
    if dynamic and cells.get("pp", 1) > 1:
        s.problems.append("dynamic_batching needs pipeline_model_parallel_size 1")
    if (packed or dynamic) and algorithm == "grpo":
        block = "dynamic_batching" if dynamic else "sequence_packing"
        tokens = s.get(f"policy.{block}.train_mb_tokens")
        tokens = tokens if isinstance(tokens, int) and tokens > 0 else micro * cells["seq_len"]
        micro = max(1, tokens // (cells["prompt"] + cells["response"]))
    cells["micro_batch"] = micro


SOURCE = Source(("nemo-rl",), read, "a NeMo-RL YAML or command", "policy")
