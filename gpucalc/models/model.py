"""Models as the cost model sees them: a flat numeric shape and exact parameter counts.

A model comes from a preset, from a Hugging Face configuration, or from a shape given by hand;
`model_with` replaces single cells of it and counts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpucalc.core.errors import UsageError, unknown
from gpucalc.models.blueprint import DENSE, FULL, MOE, Blueprint
from gpucalc.models.cells import checked_cells, describe, model_with
from gpucalc.models.counts import Model, check_shape, model_from_blueprint, whole_head_dim
from gpucalc.models.presets import named_size, preset_config, preset_names, resolve_preset

__all__ = [
    "Model",
    "describe",
    "load_model",
    "model_from_blueprint",
    "model_from_config",
    "model_from_shape",
    "model_with",
    "preset_names",
    "resolve_preset",
]


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model of a Hugging Face configuration. DataError lists everything that is wrong with it."""
    from gpucalc.models.huggingface.importer import blueprint_from_config

    blueprint, reader = blueprint_from_config(dict(config), name)
    model = model_from_blueprint(blueprint, name, reader.origin)
    warnings = list(dict.fromkeys(reader.warnings))
    stated = named_size(name)
    if stated and abs(model.parameters_total / stated - 1) > 0.10:
        warnings.append(
            f"the name says {stated / 1e9:g} B parameters, the configuration gives {model.parameters_total / 1e9:.2f} B"
        )
    return model_from_blueprint(blueprint, name, reader.origin, tuple(warnings))


def load_model(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """A preset by name, or the model of a config.json or of the folder that holds one.

    >>> load_model("meta-llama/Meta-Llama-3.1-8B-Instruct").parameters_total
    8030261248
    """
    from gpucalc.models.huggingface.reader import read_config

    text = str(name_or_path)
    path = not isinstance(name_or_path, str) or _says_path(text)
    preset = None if path else resolve_preset(text)
    if preset is not None:
        model = _preset_model(preset)
    elif path or _exists(text):
        config, name = read_config(Path(text).expanduser())
        model = model_from_config(config, name)
    else:
        raise _unknown_model(text)
    return model_with(model, **overrides) if overrides else model


def _unknown_model(text: str) -> UsageError:
    """The error for a name that is no decoder's: of a network that another question knows, or of no model at all."""
    from gpucalc.models.networks.catalog import WAYS, resolve_network

    network = resolve_network(text)
    if network is not None:
        return UsageError(
            f"{network} is not a stack of decoder layers; plan, fit, scale, explain, whatif, diagnose, run, power, "
            "storage, eval and sweep answer about it, and generate where it makes pictures or clips"
        )
    return unknown("model", text, preset_names(), WAYS)


@lru_cache(maxsize=256)
def _preset_model(preset: str) -> Model:
    return model_from_config(preset_config(preset), preset)


def _says_path(text: str) -> bool:
    """Whether `text` is written as a path, or is one below a folder that exists; a bare preset name is not."""
    if text.endswith(".json") or text.startswith((".", "/", "~")):
        return True
    return "/" in text and _exists(text)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def model_from_shape(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn_hidden: int | None = None,
    gated_mlp: bool = False,
    vocab: int = 51_200,
    experts: int = 0,
    experts_per_token: int = 0,
    expert_ffn_hidden: int | None = None,
    shared_experts: int = 0,
    max_seq_len: int = 0,
    tied_embeddings: bool | None = None,
    name: str = "shape",
) -> Model:
    """A decoder given by its shape alone.

    Convention: no biases and no position vectors; two norms a layer and a final one, scale only; the
    embedding is tied unless the MLP is gated (GPT-type models tie it, Llama-type models do not); with
    experts every layer is a MoE layer. Empty cells: kv_heads = heads, head_dim = hidden/heads,
    ffn_hidden = 4·hidden.

    >>> model_from_shape(96, 12288, 96).parameters_total
    174577692672
    """
    checked_cells(
        {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "ffn_hidden": ffn_hidden,
            "vocab": vocab,
            "experts": experts,
            "experts_per_token": experts_per_token,
            "expert_ffn_hidden": expert_ffn_hidden,
            "shared_experts": shared_experts,
        }
    )
    width = head_dim or whole_head_dim(hidden, heads)
    origin = {key: "read" for key in ("layers", "hidden", "heads", "vocab")}
    origin["kv_heads"] = "read" if kv_heads else "default"
    origin["head_dim"] = "read" if head_dim else "derived"
    origin["ffn_hidden"] = "read" if ffn_hidden else "default"
    ffn = ffn_hidden or 4 * hidden
    per_expert = expert_ffn_hidden or ffn
    moe = experts > 1
    blueprint = Blueprint(
        architecture="shape",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=width,
        ffn_hidden=ffn,
        vocab=vocab,
        mixers=(FULL,) * layers,
        mlps=(MOE if moe else DENSE,) * layers,
        max_seq_len=max_seq_len,
        gated_mlp=gated_mlp,
        tied_embeddings=not gated_mlp if tied_embeddings is None else tied_embeddings,
        experts=experts if moe else 0,
        experts_per_token=(experts_per_token or 1) if moe else 0,
        expert_ffn_hidden=per_expert if moe else 0,
        expert_gated=gated_mlp,
        shared_expert_ffn_hidden=shared_experts * per_expert if moe else 0,
    )
    check_shape(blueprint)
    return model_from_blueprint(blueprint, name, origin)
