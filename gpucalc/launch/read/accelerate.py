"""accelerate's YAML (`accelerate launch --config_file`) as a row: DDP, FSDP, DeepSpeed, the Megatron-LM plugin.

Keys and defaults at 16cb6eb8: commands/config/config_args.py, commands/launch.py, parallelism_config.py,
utils/dataclasses.py. Model, sequence and batch stand in the user's code, and have to be stated beside.
"""

from __future__ import annotations

from typing import Any

from gpucalc.launch.read._settings import Settings, flat, yaml_source
from gpucalc.launch.target import Source

TABLE = "accelerate"
SIGNS = frozenset({"distributed_type", "fsdp_config", "deepspeed_config", "megatron_lm_config", "compute_environment"})
KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TP", "MULTI_NPU", "MULTI_XPU")
PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
# Version 1: the strategy by name, or by its number from 1.
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    document, _ = yaml_source(text, SIGNS, "accelerate", given)
    s = Settings(flat(document), TABLE, "accelerate", given)
    cells = _world(s, given.get("n_gpus"))
    kind = s.word("distributed_type", KINDS, "NO")
    precision = s.word("mixed_precision", PRECISIONS, "no")
    cells |= {"framework": "accelerate", "precision": PRECISIONS.get(precision, "fp32")}
    if precision == "no" and kind != "NO" and "mixed_precision" not in s.values:
        s.notes.append("mixed_precision is not stated: no, so everything runs in fp32 unless the code says otherwise")
    reader = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron}.get(kind, _plain)
    cells |= reader(s, cells)
    backend = s.word("dynamo_config.dynamo_backend", ("no", "inductor", "eager", "aot_eager", "cudagraphs"), "no")
    if backend == "inductor":
        cells |= {"fused_gate": True, "fused_rope": True, "fused_norm": True}
    if s.word("dynamo_config.dynamo_mode", ("default", "reduce-overhead", "max-autotune"), "default") != "default":
        cells["cuda_graphs"] = "layer"
    if cells["precision"] == "fp8":
        s.get("fp8_config.backend")
        s.get("fp8_config.fp8_format")
        cells["fp8_params"] = s.flag("fp8_config.enable_fsdp_float8_all_gather", False)
    _degrees(s, cells)
    s.beside(cells, ("model", "seq_len", "micro_batch", "global_batch", "flash_attention"))
    return s.finish(cells)


def _world(s: Settings, stated: int | None) -> dict[str, Any]:
    """GPUs: num_processes is the total; what is stated beside must agree."""
    total = s.integer("num_processes")
    machines = s.integer("num_machines", 1)
    if stated and total and stated != total:
        s.problems.append(f"num_processes is {total}, but {stated} GPUs are stated")
    world = stated or total
    cells: dict[str, Any] = {"n_gpus": world}
    if world and machines > 1:
        if world % machines:
            s.problems.append(f"num_processes {world} is not a multiple of num_machines {machines}")
        cells["gpus_per_node"] = world // machines
    return cells


def _plain(s: Settings, cells: dict[str, Any]) -> dict[str, Any]:
    return {"zero_stage": 0, "dp_overlap": True}


def _fsdp(s: Settings, cells: dict[str, Any]) -> dict[str, Any]:
    version = s.integer("fsdp_config.fsdp_version", 1)
    found: dict[str, Any] = {"dp_overlap": True}
    if version == 2:
        found["zero_stage"] = 3 if s.flag("fsdp_config.fsdp_reshard_after_forward", True) else 2
        if "fsdp_config.fsdp_sharding_strategy" in s.values:
            s.notes.append("fsdp_sharding_strategy has no effect in version 2 (fsdp_reshard_after_forward decides)")
    else:
        value = s.get("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD")
        names = list(STRATEGIES)
        if str(value).isdigit() and 1 <= int(value) <= len(names):
            s.values["fsdp_config.fsdp_sharding_strategy"] = names[int(value) - 1]
        strategy = s.word("fsdp_config.fsdp_sharding_strategy", names, "FULL_SHARD")
        found["zero_stage"] = STRATEGIES.get(strategy, 3)
        if strategy.startswith("HYBRID"):
            found["shard_group"] = cells.get("gpus_per_node")
    if cells["precision"] == "bf16":
        # Parameters and reduction in the mixed precision, shards of gradients in fp32.
        found["gradient_dtype"], found["grad_accum_dtype"] = "bf16", "fp32"
    if s.flag("fsdp_config.fsdp_offload_params"):
        found["offload_optimizer"] = True
        s.notes.append(
            "fsdp_offload_params moves parameters and gradients to the host too: slower and less memory than predicted"
        )
    # What the code asks for besides is not known: no checkpointing here means what the model's own setting says.
    found["recompute"] = "full" if s.flag("fsdp_config.fsdp_activation_checkpointing") else "none"
    if (
        s.word("fsdp_config.fsdp_auto_wrap_policy", ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"))
        == "NO_WRAP"
    ):
        s.notes.append("NO_WRAP gathers the whole model at once: more memory than predicted")
    return found


def _deepspeed(s: Settings, cells: dict[str, Any]) -> dict[str, Any]:
    file = s.text("deepspeed_config.deepspeed_config_file")
    if file and file != "none":
        s.problems.append(f"the settings stand in {file}, which is not opened; pass that file with --from deepspeed")
    found: dict[str, Any] = {"framework": "deepspeed"}
    found["zero_stage"] = s.integer("deepspeed_config.zero_stage", 2, least=0)
    if found["zero_stage"] > 3:
        s.problems.append(f"deepspeed_config.zero_stage is {found['zero_stage']}; ZeRO has stages 0 to 3")
    devices = ("none", "cpu", "nvme")
    device = s.word("deepspeed_config.offload_optimizer_device", devices, "none")
    found["offload_optimizer"] = device != "none"
    if device == "nvme":
        s.notes.append("offload_optimizer_device nvme is predicted as host memory: slower than predicted")
    if s.word("deepspeed_config.offload_param_device", devices, "none") != "none":
        found["offload_parameters"] = True
    steps = s.get("deepspeed_config.gradient_accumulation_steps")
    if isinstance(steps, int) and not isinstance(steps, bool):
        cells["steps"] = steps
    return found


def _megatron(s: Settings, cells: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "framework": "megatron-core",
        "tp": s.integer("megatron_lm_config.megatron_lm_tp_degree", 1),
        "pp": s.integer("megatron_lm_config.megatron_lm_pp_degree", 1),
        "cp": s.integer("megatron_lm_config.megatron_lm_context_parallel_size", 1),
        "ep": s.integer("megatron_lm_config.megatron_lm_expert_model_parallel_size", 1),
        "etp": s.integer("megatron_lm_config.megatron_lm_expert_tensor_parallel_size"),
        "vpp": 1,
        "layers_last": s.integer("megatron_lm_config.megatron_lm_decoder_last_pipeline_num_layers"),
        "zero_stage": 1 if s.flag("megatron_lm_config.megatron_lm_use_distributed_optimizer") else 0,
        "offload_optimizer": s.flag("megatron_lm_config.megatron_lm_optimizer_cpu_offload"),
    }
    if s.flag("megatron_lm_config.megatron_lm_use_custom_fsdp"):
        found["zero_stage"] = 3
    found["sequence_parallel"] = s.flag("megatron_lm_config.megatron_lm_sequence_parallelism") and found["tp"] > 1
    kind = s.word("megatron_lm_config.megatron_lm_recompute_granularity", ("full", "selective"))
    selective = s.flag("megatron_lm_config.megatron_lm_recompute_activations")
    found["recompute"] = kind or ("selective" if selective else "none")
    method = s.word("megatron_lm_config.megatron_lm_recompute_method", ("uniform", "block"))
    layers = s.integer("megatron_lm_config.megatron_lm_recompute_num_layers")
    if kind == "full" and method == "block" and layers:
        found["recompute_layers"] = layers
    steps = s.integer("megatron_lm_config.megatron_lm_num_micro_batches", 1)
    cells["steps"] = steps
    backends = {"flash": "yes", "fused": "vendor", "unfused": "no", "local": "no", "auto": None}
    backend = s.word("megatron_lm_config.megatron_lm_attention_backend", backends)
    found["flash_attention"] = backends.get(backend) if backend else None
    return found


def _degrees(s: Settings, cells: dict[str, Any]) -> None:
    """The degrees of `parallelism_config`, and the batch that follows from them."""
    p = "parallelism_config.parallelism_config_"
    tp = s.integer("parallelism_config.parallelism_config_tp_size", 1)
    cp = s.integer("parallelism_config.parallelism_config_cp_size", 1)
    sp = s.integer("parallelism_config.parallelism_config_sp_size", 1)
    replicate = s.integer("parallelism_config.parallelism_config_dp_replicate_size")
    shard = s.integer("parallelism_config.parallelism_config_dp_shard_size")
    if any(key.startswith(p) for key in s.values):
        cells |= {"tp": tp, "pp": 1, "cp": cp * sp, "vpp": 1}
        if cp > 1 and sp > 1:
            s.problems.append(f"cp_size {cp} and sp_size {sp} exclude each other")
        if sp > 1:
            cells["cp_kind"] = "ulysses"
            cells["seq_len"] = s.integer("parallelism_config.parallelism_config_sp_seq_length")
        elif cp > 1:
            strategy = "parallelism_config.parallelism_config_cp_comm_strategy"
            cells["cp_kind"] = {"allgather": "ag", "alltoall": "ring"}[
                s.word(strategy, ("allgather", "alltoall"), "allgather")
            ]
        ranks = (replicate or 1) * (shard or 1) * tp * cp * sp
        world = cells.get("n_gpus")
        if world and ranks != world:
            s.problems.append(f"dp_replicate·dp_shard·tp·cp·sp = {ranks}, not the {world} processes")
        if (shard or 1) * cp == 1 and cells.get("zero_stage"):
            cells["zero_stage"] = 0
        elif (replicate or 1) > 1 and cells.get("zero_stage"):
            cells["shard_group"] = (shard or 1) * cp * sp
        cells["sequence_parallel"] = False
    ranks = cells.get("tp", 1) * cells.get("pp", 1) * cells.get("cp", 1)
    world, micro = cells.get("n_gpus"), s.given.get("micro_batch")
    if world and world % ranks:
        s.problems.append(f"{world} GPUs are not a multiple of tp·pp·cp = {ranks}")
    elif world:
        cells["dp"] = world // ranks
    steps = cells.pop("steps", None)
    if steps and micro and "dp" in cells and not s.given.get("global_batch"):
        cells["global_batch"] = micro * steps * cells["dp"]


SOURCE = Source(("accelerate", "fsdp"), read, "the YAML of accelerate launch")
