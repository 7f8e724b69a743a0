"""A torchtune YAML as a row: full fine-tuning, LoRA and QLoRA (recipes of 0.6.1)."""

from __future__ import annotations

import re
from typing import Any

from gpucalc.launch.read import _huggingface as hf
from gpucalc.launch.read._settings import Settings, flat, yaml_source
from gpucalc.launch.target import Source
from gpucalc.launch.write.torchtune import BUILDERS, MODULES

TABLE = "torchtune"
SIGNS = frozenset({"model"})
LOSSES = {"CEWithChunkedOutputLoss": "chunked", "LinearCrossEntropyLoss": "linear", "CrossEntropyLoss": "eager"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    document, command = yaml_source(text, SIGNS, "torchtune", given, ("--nproc_per_node", "--nproc-per-node"))
    s = Settings(flat(document), TABLE, "torchtune", given)
    world = command.world(given, s.problems)[0] if command else None
    if world and not given.get("n_gpus"):
        s.given = {**given, "n_gpus": world}
    compiled = bool(s.flag("compile"))
    cells: dict[str, Any] = {
        "framework": "torchtune" if compiled else "torchtune eager",
        **_model(s),
        "seq_len": s.integer("tokenizer.max_seq_len"),
        "micro_batch": s.integer("batch_size", 2),
        "tp": s.integer("tensor_parallel_dim", 1),
        "pp": 1,
        "cp": 1,
        "sequence_parallel": False,
        "zero_stage": 3 if s.flag("fsdp_reshard_after_forward", True) else 2,
        "recompute": "full" if s.flag("enable_activation_checkpointing") else "none",
        "optimizer": hf.optimizer_of(s.text("optimizer._component_", "torch.optim.AdamW"), s, "optimizer"),
        "loss_kernel": LOSSES.get(s.text("loss._component_", "CEWithChunkedOutputLoss").rpartition(".")[2]),
    }
    held = s.word("dtype", ("bf16", "fp32"), "bf16")
    adapted = cells["method"] != "full"
    cells["precision"] = "fp32" if held == "fp32" else "bf16" if adapted else "bf16-true"
    if s.flag("enable_activation_offloading"):
        cells["offload_activations"] = True
    if s.flag("fsdp_cpu_offload"):
        cells["offload_optimizer"] = True
        s.notes.append("fsdp_cpu_offload moves parameters and gradients to the host too: slower and less memory")
    if s.flag("optimizer_in_bwd"):
        cells["optimizer_in_backward"] = True
    hf.spread(cells, s)
    hf.batch(cells, s, s.integer("gradient_accumulation_steps", 1))
    s.beside(cells, ("n_gpus", "seq_len", "global_batch"))
    return s.finish(cells)


def _model(s: Settings) -> dict[str, Any]:
    """The preset of a builder, and the method that its prefix means."""
    name = s.text("model._component_").rpartition(".")[2]
    prefix = re.match(r"(qlora|lora)_", name)
    builder = name[prefix.end() :] if prefix else name
    plain = {b.removesuffix("_base"): preset for preset, (_, b, _) in BUILDERS.items()}
    found: dict[str, Any] = {"model": s.given.get("model"), "method": "full"}
    found["model"] = found["model"] or plain.get(re.sub(r"_(base|instruct)$", "", builder))
    if found["model"] is None:
        s.problems.append(f"model._component_ {name[:60]!r} says no shape that is known; name it with --set model=…")
    if prefix is None:
        return found
    words = s.get("model.lora_attn_modules", [])
    back = {module: part for part, module in MODULES.items()}
    parts = [back[str(word)] for word in words if str(word) in back] if isinstance(words, list) else []
    if s.flag("model.apply_lora_to_mlp"):
        parts.append("mlp")
    order = ["q", "k", "v", "o", "mlp"]
    parts = [part for part in order if part in parts]
    if not parts:
        s.problems.append("model.lora_attn_modules names no projection")
    found |= {"method": "lora", "lora_rank": s.integer("model.lora_rank", 8)}
    found["lora_targets"] = "all" if parts == order else "+".join(parts)
    if prefix[1] == "qlora" or s.flag("model.quantize_base"):
        found |= {"method": "qlora", "quantisation": "nf4-dq"}
    return found


SOURCE = Source(("torchtune",), read, "a YAML of a torchtune recipe")
