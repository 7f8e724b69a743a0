"""What method, optimizer and quantisation decide of a job: bytes per parameter, and which matrices carry adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError, suggestion
from gpucalc.core.vocabulary import LORA_SETS, LORA_TARGETS
from gpucalc.models.model import Model

LOW_PRECISION = ("fp8", "mxfp8", "nvfp4", "mxfp4")
LORA_RANK = 16
LORA_SET = "attention"

# Bytes of a parameter's moments: beside fp32 master weights, and in pure 16-bit recipes without a master copy.
# 8-bit moments carry an fp32 scale per block of 256 values; paged ones lie in managed memory, outside the allocator.
MOMENTS = {
    "adam": (8.0, 4.0),
    "adam8bit": (2.0, 2.03125),
    "paged-adam8bit": (0.0, 0.0),
    "sgd": (4.0, 2.0),
    "adafactor": (0.0, 0.0),
    "muon": (4.0, 2.0),
}
MASTER_BYTES = 4.0


@dataclass(frozen=True)
class Quantisation:
    """How a block of weights is stored: bytes of a value, of a block's scale, of the scale of 256 such scales."""

    value_bytes: float
    scale_bytes: float
    block: int
    second_scale_bytes: float = 0.0
    double_block: int = 0
    expands: bool = True  # weights are expanded to 16 bit before each product


QUANTISED = {
    "nf4": Quantisation(0.5, 4.0, 64),
    "nf4-dq": Quantisation(0.5, 1.0, 64, 4.0, 256),
    "int4": Quantisation(0.5, 2.5, 128),  # GPTQ and AWQ: 16-bit scale and 4-bit zero of 128 values
    "int8": Quantisation(1.0, 4.0, 4096),
    "fp8": Quantisation(1.0, 4.0, 16384, expands=False),
}


def adapter_state_bytes(optimizer: str, *, pure: bool) -> float:
    """Bytes that an adapter's parameter takes: weight, gradient and moments, in fp32 unless the recipe is `pure`.

    >>> adapter_state_bytes("adam", pure=False), adapter_state_bytes("adam", pure=True)
    (16.0, 8.0)
    """
    mixed, alone = MOMENTS[optimizer]
    return 2.0 + 2.0 + alone if pure else 4.0 + 4.0 + mixed


def quantisation_of(cells: Mapping[str, Any]) -> str:
    """How the frozen base is stored: as stated, NF4 with double quantisation for qlora, else not quantised."""
    stated = cells.get("quantisation")
    return str(stated) if stated else "nf4-dq" if cells["method"] == "qlora" else "none"


def frozen_weight_bytes(cells: Mapping[str, Any], model: Model, plain: float) -> float:
    """Mean bytes of a frozen weight; embedding, head and an image tower are never quantised."""
    from gpucalc.formulas.adapters import mixed_weight_bytes, quantised_weight_bytes

    kind = quantisation_of(cells)
    if kind == "none" and cells["precision"] in LOW_PRECISION:
        kind = "fp8"
    if kind == "none":
        return plain
    found = QUANTISED[kind]
    sizes = (found.value_bytes, found.scale_bytes, found.block, found.second_scale_bytes, found.double_block)
    kept = model.parameters_embedding + model.parameters_head + model.vision_parameters
    share = kept / model.parameters_total
    return float(mixed_weight_bytes(quantised_weight_bytes(*sizes), plain, share))


def lora_targets(text: str) -> frozenset[str]:
    """The adapted projections that a cell names.

    >>> sorted(lora_targets("qv")), sorted(lora_targets("q+v+mlp"))
    (['q', 'v'], ['mlp', 'q', 'v'])
    """
    word = text.strip().casefold()
    parts = [part.strip().removesuffix("_proj") for part in LORA_SETS.get(word, word).split("+")]
    for part in parts:
        if part not in LORA_TARGETS:
            known = (*LORA_SETS, *LORA_TARGETS)
            several = f"; known: {', '.join(known)}, or several joined by +"
            raise UsageError(f"lora_targets is {text!r}{suggestion(part, known, 1, several)}")
    return frozenset(parts)


def tuning_columns(cells: Mapping[str, Any]) -> dict[str, float]:
    """Flags of the method as columns: adapters and where they sit, what trains, when the optimizer runs."""
    method = cells["method"]
    adapted = method != "full"
    targets = lora_targets(str(cells.get("lora_targets") or LORA_SET)) if adapted else frozenset()
    names = {"q": "query", "k": "key", "v": "value", "o": "output", "mlp": "mlp"}
    kind = quantisation_of(cells)
    return {
        "trains_base": float(not adapted),
        "adapters": float(adapted),
        "lora_rank": float(cells.get("lora_rank") or LORA_RANK) if adapted else 0.0,
        **{f"lora_on_{name}": float(target in targets) for target, name in names.items()},
        "scaled_outputs": float(method == "adapter-v2"),
        "trains_embeddings": float(adapted and bool(cells.get("train_embeddings"))),
        "dequantises": float(adapted and kind in QUANTISED and QUANTISED[kind].expands),
        "optimizer_in_backward": float(bool(cells.get("optimizer_in_backward"))),
    }


def tuning_problems(cells: Mapping[str, Any]) -> list[str]:
    """Contradictions between the method and the cells that belong to another one."""
    method, problems = cells["method"], []
    if method == "full":
        for name in ("lora_rank", "lora_targets", "train_embeddings"):
            if cells.get(name):
                problems.append(f"{name} is stated, but method is full; use method=lora or qlora")
        if cells.get("quantisation") not in {None, "none"}:
            problems.append(f"quantisation={cells['quantisation']} needs a frozen base: use method=qlora")
    if method == "qlora" and cells.get("quantisation") == "none":
        problems.append("method=qlora with quantisation=none is method=lora")
    if cells.get("optimizer_in_backward") and cells["global_batch"] > cells["micro_batch"] * cells["dp"]:
        problems.append(
            "optimizer_in_backward updates after every micro-batch, so gradients cannot be accumulated: "
            f"global_batch={cells['micro_batch'] * cells['dp']} would do"
        )
    if cells.get("lora_targets") and method != "full":
        try:
            lora_targets(str(cells["lora_targets"]))
        except UsageError as error:
            problems.extend(error.problems)
    return problems
