"""An axolotl YAML as a row: full fine-tuning, LoRA and QLoRA under FSDP, DeepSpeed or DDP.

Keys and defaults at 067b021c: src/axolotl/utils/schemas, utils/distributed.py, utils/config.
"""

from __future__ import annotations

from typing import Any

from gpucalc.launch.read import _huggingface as hf
from gpucalc.launch.read._settings import Settings, flat, yaml_source
from gpucalc.launch.target import Source

TABLE = "axolotl"
SIGNS = frozenset({"base_model"})
OLD_ATTENTION = {
    "flash_attention": "fa2",
    "sdp_attention": "yes",
    "eager_attention": "no",
    "xformers_attention": "yes",
    "flex_attention": "yes",
    "sage_attention": "yes",
}
FUSED = {
    "liger_rope": "fused_rope",
    "liger_rms_norm": "fused_norm",
    "liger_layer_norm": "fused_norm",
    "liger_glu_activation": "fused_gate",
    "liger_swiglu": "fused_gate",
}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    document, _ = yaml_source(text, SIGNS, "axolotl", given)
    s = Settings(flat(document), TABLE, "axolotl", given)
    if s.get("rl") is not None:
        s.problems.append(f"rl: {s.text('rl')} is a question of gpucalc tune, not a step of plain training")
    cells: dict[str, Any] = {
        "framework": "axolotl",
        "model": hf.model_of(s.text("base_model"), s),
        "method": "full",
        "seq_len": s.integer("sequence_len", 512),
        "micro_batch": s.integer("micro_batch_size", 1),
        "tp": s.integer("tensor_parallel_size", 1),
        "pp": 1,
        "cp": s.integer("context_parallel_size", s.integer("sequence_parallel_degree", 1)),
        "ep": s.integer("expert_parallel_size", 1),
        "sequence_parallel": False,
    }
    if cells["cp"] > 1:
        cells["cp_kind"] = "ring"
        if s.flag("sample_packing") and cells["micro_batch"] > 1:
            s.problems.append("context_parallel_size with sample_packing needs micro_batch_size 1")
    _adapters(s, cells)
    _precision(s, cells)
    _kernels(s, cells)
    _recompute(s, cells)
    _sharding(s, cells)
    hf.spread(cells, s)
    _degrees(s, cells)
    steps, total = s.integer("gradient_accumulation_steps"), s.integer("batch_size")
    if steps and total:
        s.problems.append("gradient_accumulation_steps and batch_size exclude each other")
    if total and total % cells["micro_batch"]:
        s.problems.append(f"batch_size {total} is not a multiple of micro_batch_size {cells['micro_batch']}")
    hf.batch(cells, s, steps or (total // cells["micro_batch"] if total else 1))
    cells["optimizer"] = hf.optimizer_of(s.text("optimizer", "adamw_torch_fused"), s, "optimizer")
    if not s.flag("sample_packing") and not s.flag("pad_to_sequence_len"):
        s.notes.append("sample_packing is off: samples are shorter than sequence_len, so faster than predicted")
    s.beside(cells, ("n_gpus", "global_batch"))
    return s.finish(cells)


def _adapters(s: Settings, cells: dict[str, Any]) -> None:
    kind = s.word("adapter", ("lora", "qlora"))
    four, eight = s.flag("load_in_4bit"), s.flag("load_in_8bit")
    if kind is None:
        if four or eight:
            s.problems.append("load_in_4bit and load_in_8bit need an adapter: lora or qlora")
        return
    cells["method"] = "lora"
    hf.adapters(cells, bool(four or kind == "qlora"), bool(eight), True)
    cells["lora_rank"] = s.integer("lora_r")
    if cells["lora_rank"] is None:
        s.problems.append("lora_r is not stated")
    every = bool(s.flag("lora_target_linear"))
    cells["lora_targets"] = hf.targets_of(s.get("lora_target_modules"), every, s, "lora_target_modules")


def _precision(s: Settings, cells: dict[str, Any]) -> None:
    if s.flag("bfloat16"):
        cells["precision"] = "bf16-true"
    elif s.flag("fp16") or s.flag("float16"):
        cells["precision"] = "fp16"
    elif s.get("bf16", "auto") in {"auto", True, "full", "true"}:
        cells["precision"] = "bf16"
    else:
        cells["precision"] = "tf32" if s.get("tf32") is True else "fp32"
    if s.flag("fp8"):
        cells["precision"] = "fp8"
        cells["fp8_params"] = bool(s.flag("fp8_enable_fsdp_float8_all_gather"))


def _kernels(s: Settings, cells: dict[str, Any]) -> None:
    stated = s.get("attn_implementation")
    if stated is not None:
        cells["flash_attention"] = hf.ATTENTION.get(s.word("attn_implementation", hf.ATTENTION, "sdpa"))
    else:
        old = [kernel for key, kernel in OLD_ATTENTION.items() if s.get(key) is True]
        cells["flash_attention"] = old[0] if old else None
    for key, cell in FUSED.items():
        if s.flag(key):
            cells[cell] = True
    if s.flag("torch_compile"):
        cells |= {"fused_rope": True, "fused_norm": True, "fused_gate": True}
    if s.flag("liger_fused_linear_cross_entropy") or s.flag("cut_cross_entropy"):
        cells["loss_kernel"] = "linear"
    elif s.flag("chunked_cross_entropy"):
        cells["loss_kernel"] = "chunked"
    elif s.flag("liger_cross_entropy") or s.flag("flash_attn_cross_entropy"):
        cells["loss_kernel"] = "inplace"


def _recompute(s: Settings, cells: dict[str, Any]) -> None:
    value = s.get("gradient_checkpointing", False)
    on = (
        value is True
        or value in {"offload", "offload_disk", "true"}
        or bool(s.flag("fsdp_config.activation_checkpointing"))
    )
    selective = s.get("selective_checkpointing")
    cells["recompute"] = "selective" if on and selective not in (None, False) else "full" if on else "none"
    if value in {"offload", "offload_disk"} or s.get("activation_offloading", False) not in {False, None}:
        if not on:
            s.problems.append("activation_offloading needs gradient_checkpointing")
        cells["offload_activations"] = True


def _sharding(s: Settings, cells: dict[str, Any]) -> None:
    file = s.get("deepspeed")
    fsdp = any(key == "fsdp" or key.startswith("fsdp_config") for key in s.values) and s.get("fsdp", True) not in (
        [],
        None,
    )
    if file and fsdp:
        s.problems.append("deepspeed and fsdp exclude each other")
    if file:
        name = str(file)
        stage = next((n for n in (1, 2, 3) if f"zero{n}" in name.replace("_", "").casefold()), None)
        if stage is None:
            s.notes.append(
                f"the ZeRO stage stands in {name[:60]}, which is not opened: state it with --set zero_stage=N"
            )
        cells["zero_stage"] = s.given.get("zero_stage", stage)
        return
    if not fsdp:
        cells["zero_stage"] = 0
        if s.integer("dp_shard_size", 1) > 1:
            s.problems.append("dp_shard_size > 1 needs fsdp_config")
        return
    s.integer("fsdp_version", 1)
    cells["zero_stage"] = 3 if s.flag("fsdp_config.reshard_after_forward", True) else 2
    if s.flag("fsdp_config.offload_params"):
        cells["offload_optimizer"] = True
        s.notes.append("offload_params moves parameters and gradients to the host too: slower and less memory")


def _degrees(s: Settings, cells: dict[str, Any]) -> None:
    """dp_shard_size and dp_replicate_size; what is left out is the rest."""
    shard, replicate, dp = s.integer("dp_shard_size"), s.integer("dp_replicate_size"), cells.get("dp")
    if dp is None or not cells.get("zero_stage"):
        return
    if shard and replicate and shard * replicate != dp:
        s.problems.append(f"dp_shard_size·dp_replicate_size = {shard * replicate}, not the {dp} data parallel ranks")
    for size in (shard, replicate):
        if size and dp % size:
            s.problems.append(f"{dp} data parallel ranks are not a multiple of {size}")
            return
    shard = shard or dp // (replicate or 1)
    if shard == 1:
        cells["zero_stage"] = 0
    elif shard < dp:
        cells["shard_group"] = shard * cells["cp"]


SOURCE = Source(("axolotl",), read, "a YAML of axolotl train")
