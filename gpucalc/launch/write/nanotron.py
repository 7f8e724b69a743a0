"""nanotron: the YAML of run_train.py (names at 2411b022, src/nanotron/config/config.py, parallelism_config.py)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand, is_llama_type, preset_facts
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, yaml_text

FILE = "nanotron.yaml"
ENGINES = {"1f1b": "1f1b", "gpipe": "afab", "none": "1f1b"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def problems(launch: Launch) -> list[str]:
    """Everything that nanotron cannot express or refuses, in sentences."""
    c, m = launch, launch.model
    found = []
    if not is_llama_type(m):
        found.append(f"nanotron's settings are written for Llama-type models only, and {m.name} is none")
    elif m.head_dim * m.heads != m.hidden:
        found.append(f"nanotron's Llama has heads of hidden/heads = {m.hidden // m.heads}, not {m.head_dim}")
    if launch.zero_stage > 1:
        found.append(f"nanotron has ZeRO 0 and 1 (optimizer.zero_stage), not {launch.zero_stage}")
    if c["schedule"] not in ENGINES or c["vpp"] > 1:
        found.append(
            f"nanotron's pp_engine is 1f1b or afab (gpipe), without chunks; not {c['schedule']} vpp={c['vpp']}"
        )
    if m.kv_heads and (m.kv_heads < c["tp"] or m.kv_heads % c["tp"]):
        found.append(f"nanotron needs kv heads that tp={c['tp']} divides, not {m.kv_heads}")
    if c["cp"] > 1 and c["cp_kind"] != "ring":
        found.append(f"nanotron's context_parallel_size is ring attention, not {c['cp_kind']}")
    if c["recompute"] == "selective" or c["recompute_layers"]:
        found.append("nanotron recomputes every layer (recompute_layer) or none; write full or none")
    if c["precision"] not in DTYPES:
        found.append(f"nanotron has no dtype for {c['precision']}; it takes {', '.join(DTYPES)}")
    if c["optimizer"] != "adam":
        found.append(f"nanotron's settings are written for adam, not {c['optimizer']}")
    for name, word in (("offload_optimizer", "offload-opt"), ("offload_activations", "offload-act")):
        if c[name]:
            found.append(f"nanotron has no offload; leave out {word}")
    if c["layers_first"] or c["layers_last"]:
        found.append("nanotron deals layers to stages by their cost itself; leave out layers_first and layers_last")
    if c["shard_group"] and c["shard_group"] != launch.replicas:
        found.append(f"nanotron shards over all replicas, not over groups of {c['shard_group']}")
    return found


def configuration(launch: Launch) -> dict[str, Any]:
    """The configuration as a document."""
    c, m = launch, launch.model
    facts = preset_facts(launch)
    scattered = bool(c["sequence_parallel"]) and c["tp"] > 1
    return {
        "general": {"project": "gpucalc", "run": "job", "seed": 42, "ignore_sanity_checks": True},
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
        "data_stages": [
            {
                "name": "train",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "model": {
            "ddp_bucket_cap_mb": 25,
            "dtype": DTYPES[c["precision"]],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": {
                "is_llama_config": True,
                "hidden_act": "silu",
                "hidden_size": m.hidden,
                "intermediate_size": m.ffn_hidden,
                "num_hidden_layers": m.layers,
                "num_attention_heads": m.heads,
                "num_key_value_heads": m.kv_heads,
                "max_position_embeddings": c["seq_len"],
                "vocab_size": m.vocab,
                "rms_norm_eps": float(facts.get("rms_norm_eps") or 1e-05),
                "rope_theta": float(facts.get("rope_theta") or 10000.0),
                "rope_scaling": None,
                "tie_word_embeddings": m.tied_embeddings,
                "use_cache": True,
                "initializer_range": 0.02,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": None,
                "pretraining_tp": 1,
            },
        },
        "optimizer": {
            "zero_stage": launch.zero_stage,
            "accumulate_grad_in_fp32": launch.gradient_bytes > 2,
            "clip_grad": 1.0,
            "weight_decay": 0.1,
            "learning_rate_scheduler": {
                "learning_rate": 0.0003,
                "lr_decay_steps": 90,
                "lr_decay_style": "cosine",
                "lr_warmup_steps": 10,
                "lr_warmup_style": "linear",
                "min_decay_lr": 1.0e-05,
            },
            "optimizer_factory": {
                "name": "adamW",
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "adam_eps": 1.0e-08,
                "torch_adam_is_fused": True,
            },
        },
        "parallelism": {
            "dp": c["dp"],
            "pp": c["pp"],
            "tp": c["tp"],
            "context_parallel_size": c["cp"],
            "expert_parallel_size": 1,
            "pp_engine": ENGINES[c["schedule"]],
            "tp_mode": "REDUCE_SCATTER" if scattered else "ALL_REDUCE",
            "tp_linear_async_communication": scattered and launch.setting("tp_overlap", True),
            "recompute_layer": c["recompute"] == "full",
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "tokens": {
            "sequence_length": c["seq_len"],
            "micro_batch_size": c["micro_batch"],
            "batch_accumulation_per_replica": launch.micro_batches,
            "train_steps": 100,
            "val_check_interval": -1,
        },
    }


def start(launch: Launch) -> LaunchCommand:
    """The YAML, and the command that reads it."""
    comments = (*launch.comments, "data, tokenizer, learning rate and number of steps are placeholders")
    text = commented(launch, comments) + yaml_text(configuration(launch))
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # README of nanotron: wanted for tensor parallelism
    program = [["run_train.py", "--config-file", FILE]]
    return LaunchCommand(text, program, files={FILE: text}, environment=environment, comments=comments)


TARGET = Target(("nanotron",), problems, start, "nanotron", TORCHRUN)
