"""What the exports of fine-tuning share: adapters, optimizers, the frozen base, and what no such trainer has."""

from __future__ import annotations

from typing import Any

from gpucalc.jobs.tuning import LORA_RANK, LORA_SET, lora_targets, quantisation_of
from gpucalc.launch.job import Launch

MODULES = {"q": ["q_proj"], "k": ["k_proj"], "v": ["v_proj"], "o": ["o_proj"],
           "mlp": ["gate_proj", "up_proj", "down_proj"]}  # fmt: skip
ORDER = tuple(MODULES)
# optimizer → its name in transformers.
OPTIMIZERS = {
    "adam": "adamw_torch_fused",
    "adam8bit": "adamw_bnb_8bit",
    "paged-adam8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
ATTENTION = {"yes": "sdpa", "no": "eager", "fa2": "flash_attention_2", "fa3": "flash_attention_3", "vendor": "sdpa"}
BASES = ("nf4", "nf4-dq", "int8")


def adapted(launch: Launch) -> bool:
    """Whether adapters train on a frozen base."""
    return bool(launch["method"] != "full")


def rank(launch: Launch) -> int:
    """The rank of the adapters."""
    return int(launch["lora_rank"] or LORA_RANK)


def targets(launch: Launch) -> list[str]:
    """The adapted projections: q, k, v, o, mlp, in this order."""
    found = lora_targets(str(launch["lora_targets"] or LORA_SET))
    return [name for name in ORDER if name in found]


def modules(launch: Launch) -> list[str] | str:
    """The adapted modules by their names in transformers; "all-linear" where it is all of them."""
    parts = targets(launch)
    return "all-linear" if parts == list(ORDER) else [name for part in parts for name in MODULES[part]]


def base(launch: Launch) -> str:
    """How the frozen base is stored."""
    return quantisation_of(launch.cells) if adapted(launch) else "none"


def common_problems(launch: Launch, who: str, optimizers: dict[str, Any] = OPTIMIZERS) -> list[str]:
    """What a trainer of the Hugging Face family cannot express."""
    c = launch
    found = []
    if c["method"] not in {"full", "lora", "qlora"}:
        found.append(f"{who} is written for full fine-tuning, lora and qlora, not {c['method']}")
    if c["pp"] > 1:
        found.append(f"{who} has no pipeline (pp={c['pp']})")
    if c["optimizer"] not in optimizers:
        found.append(f"{who} has no optimizer {c['optimizer']}; it takes {', '.join(optimizers)}")
    if c["recompute"] == "selective" or c["recompute_layers"]:
        found.append(f"{who} recomputes all layers or none; use --recompute full or none")
    if c["zero_stage"] == 1 and c.replicas > 1:
        found.append("FSDP shards as ZeRO 2 or 3; write zero2, zero3, or zero0 for plain replicas")
    if base(launch) not in {"none", *BASES}:
        found.append(f"{who} stores no frozen base as {base(launch)}; it has {', '.join(BASES)}")
    if c["train_embeddings"] and adapted(launch):
        found.append(f"embeddings that train beside adapters are not written for {who}")
    if c["shard_group"] and c["shard_group"] != c.replicas:
        found.append(f"shards over a part of the ranks are not written for {who}")
    return found


def accumulation(launch: Launch) -> int:
    """Micro-steps of a step."""
    return launch.micro_batches


def remarks(launch: Launch) -> list[str]:
    """What a person has to know beside the text."""
    found = [*launch.comments]
    if launch["model"]:
        found.append(f"{launch['model']} is a preset here: write the repository or folder of the checkpoint")
    return [*found, "data set, learning rate and number of steps are placeholders"]
