"""nanotron's YAML (run_train.py --config-file) as a row.

Keys and defaults at 2411b022: src/nanotron/config/config.py, parallelism_config.py, models_config.py.
"""

from __future__ import annotations

from typing import Any

from gpucalc.launch.read._settings import Settings, flat, world_of, yaml_source
from gpucalc.launch.shapes import same_shapes
from gpucalc.launch.target import Source

TABLE = "nanotron"
SIGNS = frozenset({"parallelism", "data_stages", "tokens"})
DTYPES = {"float32": "fp32", "bfloat16": "bf16-true", "float16": "fp16"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    document, command = yaml_source(text, SIGNS, "nanotron", given, ("--config-file",))
    s = Settings(flat(document), TABLE, "nanotron", given)
    world, per_node = world_of(command, given, s)
    cells: dict[str, Any] = {
        "framework": "nanotron",
        "dp": s.integer("parallelism.dp", 1),
        "pp": s.integer("parallelism.pp", 1),
        "tp": s.integer("parallelism.tp", 1),
        "cp": s.integer("parallelism.context_parallel_size", 1),
        "ep": s.integer("parallelism.expert_parallel_size", 1),
        "vpp": 1,
        "zero_stage": s.integer("optimizer.zero_stage", 0, least=0),
        "recompute": "full" if s.flag("parallelism.recompute_layer") else "none",
        "gpus_per_node": per_node,
    }
    if cells["zero_stage"] > 1:
        s.problems.append(f"optimizer.zero_stage is {cells['zero_stage']}; nanotron has 0 and 1")
    ranks = cells["dp"] * cells["pp"] * cells["tp"] * cells["cp"]
    if world and world != ranks:
        s.problems.append(f"dp·pp·tp·cp = {ranks}, not the {world} GPUs")
    cells["n_gpus"] = world or ranks
    engine = s.word("parallelism.pp_engine", ("1f1b", "afab"), "1f1b")
    if cells["pp"] > 1:
        cells["schedule"] = {"1f1b": "1f1b", "afab": "gpipe"}[engine]
    scattered = s.word("parallelism.tp_mode", ("ALL_REDUCE", "REDUCE_SCATTER"), "ALL_REDUCE") == "REDUCE_SCATTER"
    cells["sequence_parallel"] = scattered and cells["tp"] > 1
    cells["tp_overlap"] = bool(s.flag("parallelism.tp_linear_async_communication")) and cells["sequence_parallel"]
    _shape(s, cells)
    cells["seq_len"] = s.integer("tokens.sequence_length", given.get("seq_len"))
    cells["micro_batch"] = s.integer("tokens.micro_batch_size", given.get("micro_batch"))
    steps = s.integer("tokens.batch_accumulation_per_replica", 1)
    if cells["seq_len"] is None or cells["micro_batch"] is None:
        s.problems.append("tokens.sequence_length and tokens.micro_batch_size have to be stated")
    else:
        cells["global_batch"] = cells["micro_batch"] * steps * cells["dp"]
    kind = s.word("model.dtype", DTYPES, "bfloat16")
    fp32 = s.flag("optimizer.accumulate_grad_in_fp32", False)
    # Weights in 16 bit with fp32 gradients keep an fp32 master copy: mixed precision; without, everything is 16 bit.
    cells["precision"] = "bf16" if kind == "bfloat16" else DTYPES[kind]
    if kind != "float32":
        cells["gradient_dtype"] = cells["grad_accum_dtype"] = "fp32" if fp32 else "bf16"
    name = s.word("optimizer.optimizer_factory.name", ("adamW", "sgd"), "adamW")
    cells["optimizer"] = {"adamW": "adam", "sgd": "sgd"}[name]
    return s.finish(cells)


def _shape(s: Settings, cells: dict[str, Any]) -> None:
    m = "model.model_config."
    names = {
        "layers": "model.model_config.num_hidden_layers",
        "hidden": "model.model_config.hidden_size",
        "heads": "model.model_config.num_attention_heads",
        "ffn_hidden": "model.model_config.intermediate_size",
        "vocab": "model.model_config.vocab_size",
    }
    shape: dict[str, Any] = {cell: s.integer(key) for cell, key in names.items()}
    if s.given.get("model"):
        return
    lacking = [names[cell] for cell in ("layers", "hidden", "heads") if shape[cell] is None]
    if lacking:
        s.problems.append(f"{', '.join(lacking)} not stated, and no model is named (--set model=llama-3.1-8b)")
        return
    shape["kv_heads"] = s.integer("model.model_config.num_key_value_heads", shape["heads"])
    shape["gated_mlp"] = s.text("model.model_config.hidden_act", "silu") in {"silu", "swish"}
    shape["tied_embeddings"] = s.flag("model.model_config.tie_word_embeddings", False)
    if any(key.startswith(m + "moe_config.") for key in s.values):
        shape["experts"] = s.integer("model.model_config.moe_config.num_experts", 8)
        shape["experts_per_token"] = s.integer("model.model_config.moe_config.top_k", 2)
        shape["expert_ffn_hidden"] = s.integer("model.model_config.moe_config.moe_intermediate_size", 1408)
        if s.flag("model.model_config.moe_config.enable_shared_expert"):
            width = s.integer("model.model_config.moe_config.shared_expert_intermediate_size", 5632)
            shape["shared_experts"] = max(1, round(width / shape["expert_ffn_hidden"]))
    cells |= shape
    found = same_shapes(shape)
    if found:
        cells["model"] = found[0]
        s.notes.append(f"the shape is that of {', '.join(found[:4])}")


SOURCE = Source(("nanotron",), read, "the YAML of run_train.py")
