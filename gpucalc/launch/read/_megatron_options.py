"""The options of Megatron-LM that are read: their names, the values they take, and what today's parser has renamed.

Names and defaults of megatron/training/arguments.py, d98e8a64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucalc.launch.flags import flags
from gpucalc.launch.read import _values

INTEGERS = {
    "--num-layers": "layers",
    "--encoder-num-layers": "encoder_layers",
    "--hidden-size": "hidden",
    "--num-attention-heads": "heads",
    "--num-query-groups": "query_groups",
    "--kv-channels": "head_dim",
    "--ffn-hidden-size": "ffn_hidden",
    "--vocab-size": "vocab",
    "--padded-vocab-size": "padded_vocab",
    "--seq-length": "seq_len",
    "--encoder-seq-length": "encoder_seq_len",
    "--max-position-embeddings": "positions",
    "--num-experts": "experts",
    "--moe-router-topk": "experts_per_token",
    "--moe-ffn-hidden-size": "expert_ffn_hidden",
    "--moe-shared-expert-intermediate-size": "shared_width",
    "--q-lora-rank": "q_lora_rank",
    "--kv-lora-rank": "kv_lora_rank",
    "--qk-head-dim": "qk_nope_head_dim",
    "--qk-pos-emb-head-dim": "qk_rope_head_dim",
    "--v-head-dim": "v_head_dim",
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-layers-per-virtual-pipeline-stage": "chunk_layers",
    "--num-virtual-stages-per-pipeline-rank": "chunks",
    "--decoder-first-pipeline-num-layers": "first_layers",
    "--decoder-last-pipeline-num-layers": "last_layers",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
    "--recompute-num-layers": "recompute_count",
    "--num-distributed-optimizer-instances": "instances",
    "--flash-attention-version": "flash_version",
    # rejected by today's Megatron-LM, read as what replaced them
    "--batch-size": "micro_batch",
    "--model-parallel-size": "tp",
}
ZERO_OR_MORE = {"--mtp-num-layers": "mtp_layers"}
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "--data-parallel-sharding-strategy": ("strategy", ("no_shard", "optim", "optim_grads", "optim_grads_params")),
    "--recompute-granularity": ("granularity", ("full", "selective", "none")),
    "--recompute-method": ("recompute_method", ("uniform", "block")),
    "--fp8-format": ("fp8", ("e4m3", "hybrid")),
    "--fp8-recipe": ("fp8_recipe", ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")),
    "--fp4-format": ("fp4", ("e2m1",)),
    "--attention-backend": ("backend", ("flash", "fused", "unfused", "local", "auto")),
    "--optimizer": ("optimizer", ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon")),
    "--cp-comm-type": ("cp_comm", ("p2p", "a2a", "all_gather", "allgather", "a2a+p2p")),
    "--moe-token-dispatcher-type": ("dispatcher", ("allgather", "alltoall", "flex")),
    "--moe-flex-dispatcher-backend": ("flex_backend", ("deepep", "hybridep", "ncclep")),
    "--transformer-impl": ("implementation", ("local", "transformer_engine", "inference_optimized")),
    "--cuda-graph-impl": ("cuda_graph", ("none", "local", "transformer_engine", "full_iteration")),
    "--cross-entropy-fusion-impl": ("loss_fusion", ("native", "te")),
    "--main-grads-dtype": ("main_grads", ("fp32", "bf16")),
}
NUMBERS = {
    "--hidden-dropout": "hidden_dropout",
    "--attention-dropout": "attention_dropout",
    "--optimizer-offload-fraction": "offload_fraction",
}
TEXTS = {"--pipeline-model-parallel-layout": "layout", "--moe-layer-freq": "frequency"}
SEVERAL = {"--recompute-modules": "modules", "--cp-comm-type": "cp_comm"}
# Rejected by today's Megatron-LM: read as what replaced them.
OLD = {
    "--batch-size": "--micro-batch-size",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--use-custom-fsdp": "--use-megatron-fsdp",
}
FORMER = frozenset({"--use-custom-fsdp", "--checkpoint-activations"})  # no longer in its list
TABLE = "megatron"
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
KINDS = {"p2p": "ring", "a2a": "ulysses", "all_gather": "ag", "allgather": "ag", "a2a+p2p": "ring"}
MODULES = {"core_attn"}


def switches() -> frozenset[str]:
    """Options that are read and take no value."""
    found = {n for n, flag in flags(TABLE).items() if flag.use == "read" and flag.takes == "0"}
    return frozenset(found | FORMER)


def known() -> frozenset[str]:
    """Options that are read."""
    return frozenset({*INTEGERS, *ZERO_OR_MORE, *CHOICES, *NUMBERS, *TEXTS, *SEVERAL, *switches()})


def value_of(flag: str, values: Sequence[str], plain: frozenset[str], problems: list[str]) -> tuple[str, Any]:
    """(name, value) of an option that is read; an empty name for any other.

    plain: `switches()`. What is wrong with the value goes to `problems`.
    """
    if flag in plain:
        if not values:
            return flag, True
        if values[0].casefold() in {"true", "false"} and len(values) == 1:
            return flag, values[0].casefold() == "true"
        problems.append(f"{flag} takes no value, but {' '.join(values)} follows it")
        return flag, True
    if flag in INTEGERS:
        return INTEGERS[flag], _values.integer(flag, values, problems)
    if flag in ZERO_OR_MORE:
        return ZERO_OR_MORE[flag], _values.integer(flag, values, problems, least=0)
    if flag in CHOICES:
        name, choices = CHOICES[flag]
        return name, _values.choice(flag, values, choices, problems)
    if flag in NUMBERS:
        return NUMBERS[flag], _values.number(flag, values, problems)
    if flag in TEXTS:
        return TEXTS[flag], _values.text(flag, values, problems)
    if flag in SEVERAL:
        return SEVERAL[flag], list(values)
    return "", None
