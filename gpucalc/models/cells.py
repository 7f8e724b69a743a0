"""Replacing cells of a model, and describing one as JSON."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, SupportsIndex

from gpucalc.core.errors import UsageError, unknown
from gpucalc.models.blueprint import DENSE, MOE, Blueprint
from gpucalc.models.counts import Model, check_shape, model_from_blueprint, whole_head_dim
from gpucalc.models.huggingface.reader import RANGES
from gpucalc.models.parameters import padded_vocabulary

_COUNT_CELLS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_hidden",
    "vocab",
    "experts",
    "experts_per_token",
    "expert_ffn_hidden",
    "shared_experts",
)
CELLS = (*_COUNT_CELLS, "gated_mlp", "tied_embeddings")


def model_with(model: Model, **cells: Any) -> Model:
    """`model` with the stated cells of the row schema in place of its own, counted anew.

    Cells that are None are not stated; cells that equal the model's leave its counts exactly as they
    are. A layer count other than the model's cuts or repeats its layers.

    >>> from gpucalc.models.model import load_model
    >>> half = model_with(load_model("llama-2-7b"), layers=16)
    >>> half.layers, half.parameters_total
    (16, 3500281856)
    """
    b = model.blueprint
    stated = checked_cells(cells)
    attention = [cell for cell in ("heads", "kv_heads", "head_dim") if cell in stated]
    if not b.heads and attention:
        raise UsageError(f"{model.name} has no attention, so {' and '.join(attention)} cannot be set")
    changes: dict[str, Any] = {}
    for cell in ("hidden", "heads", "vocab", "gated_mlp", "tied_embeddings"):
        if cell in stated and stated[cell] != getattr(b, cell):
            changes[cell] = stated[cell]
    hidden, heads = changes.get("hidden", b.hidden), changes.get("heads", b.heads)
    if "hidden" in changes and b.embedding_width == b.hidden:
        changes["embedding_width"] = hidden
    if "gated_mlp" in changes:
        changes["expert_gated"] = changes["gated_mlp"]
    if stated.get("kv_heads", b.kv_heads) != b.kv_heads:
        changes["kv_heads"] = stated["kv_heads"]
    elif "heads" in changes and b.kv_heads == b.heads and "kv_heads" not in stated:
        changes["kv_heads"] = heads
    changes.update(_head_size(b, stated, hidden, heads))
    if stated.get("ffn_hidden", b.ffn_hidden) != b.ffn_hidden:
        changes.update(ffn_hidden=stated["ffn_hidden"], ffn_widths=())
    elif "hidden" in changes and "ffn_hidden" not in stated and b.ffn_hidden == 4 * b.hidden:
        changes["ffn_hidden"] = 4 * hidden
    if stated.get("layers", b.layers) != b.layers:
        changes.update(_layers(b, stated["layers"]))
    changes.update(_experts(b, stated, changes))
    if not changes:
        return model
    blueprint = replace(b, **changes)
    check_shape(blueprint)
    origin = {**model.origin, **{cell: "read" for cell in stated}}
    return model_from_blueprint(blueprint, model.name, origin, model.warnings)


def checked_cells(cells: dict[str, Any]) -> dict[str, Any]:
    """The cells that are stated (not None); one UsageError lists all that are not sensible counts."""
    stated: dict[str, Any] = {}
    problems = []
    for cell, value in cells.items():
        if cell not in CELLS:
            raise unknown("cell of a model", cell, CELLS)
        if value is None:
            continue
        if cell in {"gated_mlp", "tied_embeddings"}:
            stated[cell] = bool(value)
            continue
        least = 0 if cell in {"experts", "experts_per_token", "expert_ffn_hidden", "shared_experts"} else 1
        largest, example = RANGES.get(cell, RANGES["experts"])
        number = isinstance(value, SupportsIndex | float) and not isinstance(value, bool)
        if not number or not least <= value <= largest or value != int(value):
            problems.append(
                f"{cell} is {value!r}; it must be a whole number from {least} to {largest}, such as {example}"
            )
        else:
            stated[cell] = int(value)
    if problems:
        raise UsageError(*problems)
    return stated


def _head_size(b: Blueprint, stated: dict[str, Any], hidden: int, heads: int) -> dict[str, int]:
    head_dim = stated.get("head_dim")
    if head_dim is None:
        if (hidden, heads) == (b.hidden, b.heads) or b.kv_lora_rank or not b.heads or b.head_dim * b.heads != b.hidden:
            return {}
        head_dim = whole_head_dim(hidden, heads)
    if head_dim == b.head_dim:
        return {}
    if b.kv_lora_rank:
        if head_dim <= b.qk_rope_head_dim:
            raise UsageError(f"head_dim {head_dim} must exceed the {b.qk_rope_head_dim} rotary elements of the latent")
        return {"head_dim": head_dim, "qk_nope_head_dim": head_dim - b.qk_rope_head_dim}
    return {"head_dim": head_dim}


def _layers(b: Blueprint, layers: int) -> dict[str, Any]:
    """Layer kinds cut to `layers`, or continued by repeating them after the leading dense ones."""

    def resized(kinds: tuple[Any, ...], lead: int) -> tuple[Any, ...]:
        body = kinds[lead:] or kinds
        missing = max(0, layers - len(kinds))
        return (kinds + body * (missing // len(body) + 1))[:layers]

    lead = next((i for i, kind in enumerate(b.mlps) if kind != DENSE), 0)
    changes: dict[str, Any] = {"mixers": resized(b.mixers, 0), "mlps": resized(b.mlps, lead)}
    if b.ffn_widths:
        changes["ffn_widths"] = resized(b.ffn_widths, 0)[: changes["mlps"].count(DENSE)]
    return changes


def _experts(b: Blueprint, stated: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of the experts: a dense model becomes a MoE one when experts are stated, and the reverse."""
    experts = stated.get("experts", b.experts)
    mlps = changes.get("mlps", b.mlps)
    if experts <= 1:
        if not b.experts:
            return {}
        return {
            "experts": 0,
            "experts_per_token": 0,
            "expert_ffn_hidden": 0,
            "shared_expert_ffn_hidden": 0,
            "mlps": tuple(DENSE if kind == MOE else kind for kind in mlps),
        }
    width = stated.get("expert_ffn_hidden") or b.expert_ffn_hidden or changes.get("ffn_hidden", b.ffn_hidden)
    found: dict[str, Any] = {
        "experts": experts,
        "experts_per_token": stated.get("experts_per_token") or b.experts_per_token or 1,
        "expert_ffn_hidden": width,
    }
    if not b.experts:
        found["mlps"] = tuple(MOE if kind == DENSE else kind for kind in mlps)
        found["expert_gated"] = changes.get("gated_mlp", b.gated_mlp)
    if "shared_experts" in stated:
        found["shared_expert_ffn_hidden"] = _shared_width(b, stated["shared_experts"], width)
    elif b.expert_ffn_hidden and width != b.expert_ffn_hidden:
        count = b.shared_expert_ffn_hidden / b.expert_ffn_hidden
        found["shared_expert_ffn_hidden"] = round(count * width)
    return {key: value for key, value in found.items() if value != getattr(b, key)}


def _shared_width(b: Blueprint, count: int, width: int) -> int:
    """Total width of `count` shared experts; the model's own where it states a width that is not a multiple."""
    if count and b.shared_expert_ffn_hidden and width == b.expert_ffn_hidden:
        own = b.shared_expert_ffn_hidden / width
        if own == count or count == 1:
            return b.shared_expert_ffn_hidden
    return count * width


_COUNTED = frozenset(
    {"attention_layers", "window_layers", "linear_layers", "dense_layers", "moe_layers", "v_head_dim", "ffn_hidden"}
)
_SHAPE_LAST = "qk_rope_head_dim"


def describe(model: Model) -> dict[str, Any]:
    """The JSON of `models show` and `models import`.

    >>> from gpucalc.models.model import load_model
    >>> describe(load_model("mixtral-8x7b"))["shape"]["experts"]
    8
    """
    names = [f.name for f in fields(model)]
    shape = {name: getattr(model, name) for name in names[3 : names.index(_SHAPE_LAST) + 1]}
    counts = {
        name: getattr(model, name) for name in names if name.startswith(("parameters_", "kv_bytes", "state_bytes"))
    }
    formats = ("quantization", "weight_format", "cache_format")
    more = ("vision_parameters", "encoder_parameters", "mtp_parameters", "matmul_parameters_active", *formats)
    return {
        "name": model.name,
        "architecture": model.architecture,
        **counts,
        **{name: getattr(model, name) for name in more},
        "shape": shape,
        "origin": {**{name: "derived" if name in _COUNTED else "default" for name in shape}, **model.origin},
        "legal_tensor_parallel": list(model.legal_tensor_parallel()),
        "vocab_padded_to_128": padded_vocabulary(model.vocab),
        "warnings": list(model.warnings),
    }
