"""From numbers that stand in launch settings to a model: the preset that has the same shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import GpucalcError
from gpucalc.models.model import Model, load_model, preset_names

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIGNS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "experts_per_token")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


def same_shapes(cells: Mapping[str, Any]) -> list[str]:
    """The presets whose shape agrees with every stated cell.

    Beside the row schema's cells: `latent` (MLA, whose ranks and head sizes may be stated), `biased` (linear layers
    with biases, which tells apart the models without a gated MLP).

    >>> same_shapes({"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256})
    ['llama-3-8b', 'llama-3.1-8b', 'minicpm-llama3-v-2.5']
    """
    found = []
    for name in preset_names():
        if _may_be(name, cells):
            try:
                model = load_model(name)
            except GpucalcError:
                continue
            if _agrees(model, cells):
                found.append(name)
    return found


def _may_be(name: str, cells: Mapping[str, Any]) -> bool:
    """Whether the raw configuration holds the layers and the width: most presets are told apart without counting."""
    from gpucalc.models.presets import preset_config

    config = preset_config(name)
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    layers = {config[k] for k in _LAYERS if isinstance(config.get(k), int)}
    hidden = {config[k] for k in _HIDDEN if isinstance(config.get(k), int)}
    return cells.get("layers") in layers and cells.get("hidden") in hidden


def _agrees(model: Model, cells: Mapping[str, Any]) -> bool:
    if model.encoder_layers or not model.causal or bool(cells.get("latent")) != model.is_mla:
        return False
    if model.attention_layers != model.layers or len(set(model.blueprint.ffn_widths)) > 1:
        return False
    names = ["layers", "hidden", "heads", "vocab", "experts_per_token", "expert_ffn_hidden", "tied_embeddings"]
    names += [] if model.is_mla else ["kv_heads", "head_dim"]
    names += ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"] if model.is_mla else []
    names += ["ffn_hidden", "gated_mlp"] if model.dense_layers else []
    if any(cells.get(name) is not None and cells[name] != getattr(model, name) for name in names):
        return False
    if not model.gated_mlp and cells.get("biased") is not None and cells["biased"] != model.blueprint.mlp_bias:
        return False
    return int(cells.get("experts") or 0) == model.experts


@functools.lru_cache(maxsize=64)
def _signature(preset: str) -> tuple[Any, ...]:
    return signature(load_model(preset))


def signature(model: Model) -> tuple[Any, ...]:
    """The numbers by which two models are the same shape."""
    wide = (model.ffn_hidden if model.dense_layers else 0, model.expert_ffn_hidden, model.shared_expert_ffn_hidden)
    latent = (model.kv_lora_rank, model.moe_layers, model.linear_layers)
    return (*(getattr(model, name) for name in SIGNS), *wide, *latent)


def preset_of(model: Model, known: Mapping[str, Any]) -> str | None:
    """The preset among `known` that has the model's shape: itself, where it is one of them."""
    if model.name in known:
        return model.name
    own = signature(model)
    return next((preset for preset in known if _signature(preset) == own), None)
