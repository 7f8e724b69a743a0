"""A row of post-training as people write it, read into the cells of the row schema.

Published tables mix words and numbers ("bf16-true + bnb.nf4-dq", "gbs 128", "gen [16,1] train [2,2,16,8,n/a]").
Each is read by one small rule here; what is measured in a row is never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.columns import INPUT, SHAPE, parse_cell
from gpucalc.core.errors import UsageError, suggestion
from gpucalc.database.recipes import Recipe
from gpucalc.layouts.axes import AXES

ADAPTERS = ("lora", "qlora", "adapter", "adapter-v2")
SUPERVISED = ("sft", "full", *ADAPTERS)
PREFERENCE = ("dpo",)
REINFORCEMENT = ("ppo", "grpo")
ALGORITHMS = (*SUPERVISED, *PREFERENCE, *REINFORCEMENT)
METHOD_WORDS = ("sft", "lora", "qlora", "adapter", "dpo", "ppo", "grpo")
_REINFORCED = {"dapo": "grpo", "swe": "grpo", "rloo": "grpo", "gspo": "grpo", "rlhf": "ppo"}
_PRECISIONS = ("mxfp8", "nvfp4", "mxfp4", "fp8", "bf16-true", "bf16", "fp16", "fp32")
_QUANTISATIONS = ("nf4-dq", "nf4", "int4", "int8")
_SHARDINGS = {"none": 0, "ddp": 0, "fsdp": 3, "fsdp2": 3, "zero-1": 1, "zero-2": 2, "zero-3": 3}
# Read as they stand when a row has them, beside the axes of a layout and what the rules below read.
PLAIN = (
    *SHAPE,
    *("gpus_per_node", "inter_node_gbps_per_gpu", "global_batch"),
    *("lora_rank", "lora_targets", "quantisation", "train_embeddings", "optimizer_in_backward", "chunked_loss"),
    *("framework", "software_date", "fused_norm", "mem_counter"),
)
# Degrees that published tables write as words and numbers.
COUNTS = ("tp", "pp", "cp", "ep", "micro_batch")


@dataclass(frozen=True)
class Tuning:
    """What a row asks: an algorithm, the cells of its training step, and how its samples are laid out.

    mean_tokens: tokens of a sample where shorter ones are padded, 0 where every sequence is full.
    per_micro_step: the row counts micro-steps, not optimizer steps.
    """

    algorithm: str
    cells: dict[str, Any]
    recipe: Recipe
    mean_tokens: float = 0.0
    longest_tokens: int = 0
    per_micro_step: bool = False
    facts: Mapping[str, Any] | None = None


def read_method(text: str) -> tuple[str, dict[str, Any]]:
    """The algorithm a row names, and what the name says of the base and the embeddings.

    >>> read_method("qadapter-v2"), read_method("lora+embeddings")
    (('adapter-v2', {'quantisation': 'nf4'}), ('lora', {'train_embeddings': True}))
    """
    word = text.strip().casefold().replace("_", "-").replace("q-lora", "qlora").replace("dora", "lora")
    if word in _REINFORCED:
        return _REINFORCED[word], {}
    if word in PREFERENCE or word in REINFORCEMENT:
        return word, {}
    if word.startswith("dpo"):
        return "dpo", {"method": read_method(word[3:].strip(" +-"))[0]}
    if word in {"", "full", "sft", "full-parameter", "fft"}:
        return "full", {}
    extra: dict[str, Any] = {"train_embeddings": True} if "emb" in word else {}
    if word.startswith("qadapter"):
        return word[1:] if word == "qadapter-v2" else "adapter", {"quantisation": "nf4", **extra}
    for name in ("qlora", "lora", "adapter-v2", "adapter"):
        if word.startswith(name):
            return name, extra
    raise UsageError(f"method is {text!r}{suggestion(word, METHOD_WORDS, 1)}")


def read_precision(text: str) -> dict[str, Any]:
    """Precision of the products and storage of the frozen base.

    >>> read_precision("bf16-true + bnb.nf4-dq"), read_precision("train+gen BF16")
    ({'precision': 'bf16-true', 'quantisation': 'nf4-dq'}, {'precision': 'bf16'})
    """
    folded = text.casefold()
    found: dict[str, Any] = {}
    for name in _PRECISIONS:
        if name in folded:
            found["precision"] = name
            break
    for name in _QUANTISATIONS:
        if name in folded:
            found["quantisation"] = name
            break
    return found


def read_optimizer(text: str) -> dict[str, Any]:
    """The optimizer a row names in words.

    >>> read_optimizer("8-bit AdamW"), read_optimizer("PagedAdamW8bit, in backward")
    ({'optimizer': 'adam8bit'}, {'optimizer': 'paged-adam8bit', 'optimizer_in_backward': True})
    """
    folded = re.sub(r"[\s_-]+", "", text.casefold())
    found: dict[str, Any] = {}
    if "8bit" in folded:
        found["optimizer"] = "paged-adam8bit" if "paged" in folded else "adam8bit"
    else:
        for name in ("adafactor", "muon", "adam", "sgd"):
            if name in folded:
                found["optimizer"] = name
                break
    if "inbackward" in folded or "inbwd" in folded:
        found["optimizer_in_backward"] = True
    if "offload" in folded:
        found["offload_optimizer"] = True
    return found


def read_checkpointing(text: str) -> str | None:
    """Recomputation as a yes or no, or in the schema's words; None where the row leaves it to the recipe."""
    word = text.strip().casefold()
    if word in {"yes", "true", "1", "full"}:
        return "full"
    if word in {"no", "false", "0", "none"}:
        return "none"
    return "selective" if word == "selective" else None


# The order in which a published ladder adds its levers; a row of it has all that stand before the one it names.
LADDER: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "baseline",
        {
            "packed": False,
            "framework": "torchtune eager",
            "recompute": "none",
            "chunked_loss": False,
            "optimizer_in_backward": False,
        },
    ),
    ("packed dataset", {"packed": True}),
    ("compile", {"framework": "torchtune (compile)"}),
    ("chunked", {"chunked_loss": True}),
    ("activation checkpointing", {"recompute": "full"}),
    ("optimizer in backward", {"optimizer_in_backward": True}),
    ("activation offload", {"offload_activations": True}),
    ("8-bit adam", {"optimizer": "adam8bit"}),
)


def read_ladder(notes: str) -> dict[str, Any]:
    """Settings of one row of a ladder of levers: the last lever that its notes name, and all before it."""
    folded = notes.casefold().replace("fuse optimizer step into backward", "optimizer in backward")
    reached = max(
        (i for i, (word, _) in enumerate(LADDER) if word in folded.replace("offloading", "offload")), default=-1
    )
    found: dict[str, Any] = {}
    for _, cells in LADDER[: reached + 1]:
        found.update(cells)
    return found


def read_notes(text: str) -> dict[str, Any]:
    """Settings that the notes of a row state: packing, levers, nodes, what a step is."""
    folded = text.casefold()
    found: dict[str, Any] = {}
    if "unpacked" in folded:
        found["packed"] = False
    elif "packed" in folded:
        found["packed"] = True
    if "chunked ce" in folded or "chunked cross" in folded or "chunked output" in folded:
        found["chunked_loss"] = True
    if re.search(r"optimizer in[ -]backward", folded):
        found["optimizer_in_backward"] = True
    if "act offload" in folded or "activation offload" in folded:
        found["offload_activations"] = True
    if re.search(r"8-bit adam|adamw8bit", folded):
        found["optimizer"] = "adam8bit"
    if "per micro-step" in folded:
        found["per_micro_step"] = True
    if "cumulative" in folded and "(packed" not in folded:
        found.update(read_ladder(folded))
    elif "cumulative" in folded and "compile" in folded:
        found["framework"] = "torchtune (compile)"
    nodes = re.search(r"(\d+) node\(s\) x (\d+) gpu", folded)
    if nodes:
        found["gpus_per_node"] = int(nodes[2])
    vpp = re.search(r"\bvp=(\d+)", folded)
    if vpp:
        found["vpp"] = int(vpp[1])
    length = re.search(r"mean generated\+prompt length ([\d,]+)", folded)
    if length:
        found["mean_length"] = int(length[1].replace(",", ""))
    targets = re.fullmatch(r"\s*([qkvo](?:\s*,\s*[qkvo])+) only\s*", folded)
    if targets:
        found["lora_targets"] = "+".join(part.strip() for part in targets[1].split(","))
    return found


def read_count(text: str) -> float | None:
    """A count such as 2, 2.0 or 28K; None where the cell holds no number.

    >>> read_count("28K max response"), read_count("")
    (28672.0, None)
    """
    match = re.match(r"\s*([\d.,]+)\s*([kK]?)", text)
    if not match:
        return None
    try:
        number = float(match[1].replace(",", ""))
    except ValueError:
        return None
    return number * (1024 if match[2] else 1)


def read_batch(text: str) -> dict[str, float]:
    """Sequences of a step, or micro-steps of one.

    >>> read_batch("gbs 128"), read_batch("ga 8"), read_batch("32")
    ({'global_batch': 128.0}, {'accumulation': 8.0}, {'global_batch': 32.0})
    """
    folded = text.casefold()
    found = {}
    for word, name in (("gbs", "global_batch"), ("ga", "accumulation")):
        match = re.search(rf"\b{word}\s*=?\s*(\d+)", folded)
        if match:
            found[name] = float(match[1])
    if not found and re.fullmatch(r"\s*\d+(\.0*)?\s*", text):
        found["global_batch"] = float(text)
    return found


def plain_cells(record: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """The cells of the row schema that a row states as such."""
    found: dict[str, Any] = {}
    for name in (*PLAIN, *(axis for axis in AXES if axis not in COUNTS)):
        text = (record.get(name) or "").strip()
        if not text:
            continue
        try:
            value = parse_cell(INPUT[name], text)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        if value is not None:
            found[name] = value
    return found


def read_tuning(record: Mapping[str, str], choose: Any) -> Tuning:
    """A row of post-training; `choose` finds the recipe of a framework. UsageError with every violation."""
    problems: list[str] = []
    text = {name: (value or "").strip() for name, value in record.items() if isinstance(value, str)}
    recipe: Recipe = choose(text.get("framework") or text.get("source") or "")
    notes = read_notes(text.get("notes", ""))
    if recipe.packed and "packed" not in notes:
        notes["packed"] = True
    named: tuple[str, dict[str, Any]] = _collected(problems, read_method, text.get("method", "")) or ("full", {})
    method, extra = named[0], dict(named[1])
    cells: dict[str, Any] = {
        **read_optimizer(text.get("optimizer", "")),
        **{n: v for n, v in notes.items() if n in INPUT},
        **read_precision(text.get("precision", "")),
        **plain_cells(record, problems),
    }
    cells.update({n: v for n, v in extra.items() if n not in cells})
    cells["model"] = text.get("model") or None
    cells["gpu"] = text.get("gpu") or None
    for name in ("n_gpus", *COUNTS, "seq_len"):
        number = read_count(text.get(name, "")) if not text.get(name, "").startswith("gen") else None
        if number is not None:
            cells[name] = _whole(name, number, problems)
    if text.get("gpu") in {"", "(not stated)", None}:
        problems.append("gpu is not stated; `gpucalc hw list` shows the names")
    recompute = read_checkpointing(text.get("grad_checkpointing", ""))
    if recompute:
        cells.setdefault("recompute", recompute)
    sharding = text.get("zero_or_fsdp", "").casefold()
    if sharding in _SHARDINGS:
        cells.setdefault("zero_stage", _SHARDINGS[sharding])
    if text.get("offload"):
        cells.setdefault("offload_optimizer", True)
    batch = read_batch(text.get("grad_accum_or_global_batch", ""))
    if "global_batch" in batch:
        cells.setdefault("global_batch", int(batch["global_batch"]))
    flash = text.get("flash_attn", "").casefold()
    if flash.startswith("no"):
        cells["flash_attention"] = "no"
    base = str(extra.pop("method", method))
    adapted = base in ADAPTERS
    cells["method"] = base if adapted else "full"
    _defaults(cells, recipe, adapted)
    if "accumulation" in batch:
        replicas = cells.get("dp") or max(1, cells.get("n_gpus", 1) // _cut(cells))
        cells.setdefault("global_batch", int(batch["accumulation"]) * (cells.get("micro_batch") or 1) * replicas)
    if problems:
        raise UsageError(*problems)
    packed = notes.get("packed", recipe.packed)
    mean = 0 if packed else recipe.mean_sample
    return Tuning(
        method,
        {name: value for name, value in cells.items() if value is not None},
        recipe,
        float(read_count(text.get("sample_tokens", "")) or mean),
        0 if packed else recipe.longest_sample,
        bool(notes.get("per_micro_step")),
        {**notes, **text},
    )


def _cut(cells: Mapping[str, Any]) -> int:
    return int(cells.get("tp") or 1) * int(cells.get("pp") or 1) * int(cells.get("cp") or 1)


def _defaults(cells: dict[str, Any], recipe: Recipe, adapted: bool) -> None:
    """Fill what the row leaves empty from the recipe; cells of adapters only where there are any."""
    only_adapters = {"lora_rank", "lora_targets", "quantisation"}
    stated = {**recipe.cells, **(recipe.sharded if cells.get("zero_stage") == 3 else {})}
    if not adapted:
        stated |= {**recipe.full, **(recipe.full_alone if (cells.get("n_gpus") or 1) == 1 else {})}
    elif (cells.get("n_gpus") or 1) > 1:
        stated |= recipe.many
    for name, value in stated.items():
        if name in only_adapters and not adapted:
            continue
        if name == "quantisation" and cells["method"] != "qlora":
            continue
        cells.setdefault(name, value)
    cells.setdefault("framework", recipe.framework)
    cells.setdefault("software_date", recipe.software_date)
    cells.setdefault("n_gpus", 1)
    if not adapted:
        for name in ("lora_rank", "lora_targets", "train_embeddings", "quantisation"):
            cells.pop(name, None)


def _collected(problems: list[str], function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except UsageError as error:
        problems.extend(error.problems)
        return None


def _whole(name: str, number: float, problems: list[str]) -> int | None:
    if number != int(number) or number < 1:
        problems.append(f"{name} is {number:g}, expected a whole number of 1 or more")
        return None
    return int(number)
