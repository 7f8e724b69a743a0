"""What the readers of fine-tuning settings share: adapters, optimizers, attention, and how ranks shard.

Words as in transformers 5.24 (training_args.py), PEFT and bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpucalc.launch.read._settings import Settings
from gpucalc.models.model import load_model, resolve_preset

PROJECTIONS = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
    "qkv_proj": "q+k+v",
    "gate_up_proj": "mlp",
}
ATTENTION = {
    "flash_attention_2": "fa2",
    "flash_attention_3": "fa3",
    "flash_attention": "fa2",
    "sdpa": "yes",
    "eager": "no",
    "flex_attention": "yes",
    "xformers": "yes",
    "sage": "yes",
    "kernels-community/flash-attn2": "fa2",
    "kernels-community/flash-attn3": "fa3",
}
EIGHT_BIT = ("8bit", "4bit")


def model_of(name: str, s: Settings) -> str | None:
    """The preset that a repository's name means, where no model is stated beside."""
    stated: str | None = s.given.get("model")
    if stated:
        return stated
    preset = resolve_preset(name) if name else None
    if preset is None:
        what = f"{name[:60]} is not a preset" if name else "no model is named"
        s.problems.append(f"{what}; name the shape with --set model=llama-3.1-8b")
    return preset


def targets_of(value: Any, every: bool, s: Settings, key: str) -> str | None:
    """The adapted projections as the cell lora_targets; None leaves PEFT's own, the attention's queries and values."""
    if every or value == "all-linear":
        return "all"
    if value is None:
        return "qv"
    words = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []
    known = [PROJECTIONS.get(str(word).rpartition(".")[2]) for word in words]
    if not words or None in known:
        s.notes.append(f"{key} {str(value)[:60]}: state the projections with --set lora_targets=q+k+v+o")
        return None
    parts = sorted({part for one in known if one for part in one.split("+")}, key=["q", "k", "v", "o", "mlp"].index)
    return "+".join(parts)


def optimizer_of(name: str, s: Settings, key: str) -> str | None:
    """The cell optimizer of a name of transformers."""
    word = name.casefold()
    if "paged" in word and any(bits in word for bits in EIGHT_BIT):
        return "paged-adam8bit"
    if any(bits in word for bits in EIGHT_BIT):
        return "adam8bit"
    for part in ("adafactor", "muon", "sgd"):
        if part in word:
            return part
    if "adam" in word:
        if "paged" in word:
            s.notes.append(f"{key} {name}: pages of the state may lie on the host: less memory than predicted")
        return "adam"
    s.notes.append(f"{key} {name[:40]} is predicted as adam: time and memory may differ either way")
    return "adam"


def spread(cells: dict[str, Any], s: Settings) -> None:
    """The degrees that every reader leaves to the rest: dp from the GPUs, and whether the model is a mixture."""
    ranks = cells.get("tp", 1) * cells.get("pp", 1) * cells.get("cp", 1)
    world = s.given.get("n_gpus")
    if world and world % ranks:
        s.problems.append(f"{world} GPUs are not a multiple of tp·cp = {ranks}")
    elif world:
        cells["n_gpus"], cells["dp"] = world, world // ranks
        if cells["dp"] * cells.get("cp", 1) == 1:
            cells["zero_stage"] = 0
    name = cells.get("model")
    if name and resolve_preset(str(name)) is not None and not load_model(str(name)).experts and cells.get("ep", 1) > 1:
        s.problems.append(f"expert parallelism of {cells['ep']} without experts")


def batch(cells: dict[str, Any], s: Settings, accumulation: int) -> None:
    """Global batch = micro · accumulation · dp."""
    if "dp" in cells and cells.get("micro_batch") and not s.given.get("global_batch"):
        cells["global_batch"] = cells["micro_batch"] * accumulation * cells["dp"]


def adapters(cells: dict[str, Any], four: bool, eight: bool, nested: bool) -> None:
    """The method and how the frozen base is stored."""
    if four:
        cells |= {"method": "qlora", "quantisation": "nf4-dq" if nested else "nf4"}
    elif eight:
        cells |= {"method": "qlora", "quantisation": "int8"}
