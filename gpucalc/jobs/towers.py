"""Columns of the image tower before a decoder: what a sample of a training job brings it, and whether it learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.formulas.vision import image_patches
from gpucalc.models.model import Model
from gpucalc.models.networks.catalog import parse_resolution
from gpucalc.models.networks.component import FROZEN, PASSED, PASSES, TRAINED

USUAL_SIDE = 448  # pixels of a picture for a tower that takes any


def images_of(cells: Mapping[str, Any]) -> float:
    """Pictures of a sample: as stated; one where a resolution is; none else."""
    stated = cells.get("images_per_sample")
    return float(stated if stated is not None else cells.get("resolution") is not None)


def tower_state(cells: Mapping[str, Any]) -> str:
    """Whether the tower learns, is passed by gradients, or runs forward alone.

    >>> tower_state({"method": "lora"}), tower_state({}), tower_state({"trained": "llm+projector"})
    ('frozen', 'trained', 'frozen')
    """
    if cells.get("method", "full") != "full":
        return FROZEN
    words = str(cells.get("trained") or "all").split("+")
    return TRAINED if {"all", "tower", "vision"} & set(words) else FROZEN


def decoder_state(cells: Mapping[str, Any]) -> str:
    """As `tower_state`, of the language model: gradients pass it on their way to a projector that alone learns."""
    words = str(cells.get("trained") or "all").split("+")
    return TRAINED if {"all", "llm"} & set(words) else PASSED


def tower_columns(cells: Mapping[str, Any], model: Model) -> dict[str, float]:
    """The tower's shape, patches of a picture, pictures of a sample, and passes of a step; no pictures: all zero."""
    tower, images = model.blueprint.tower, images_of(cells)
    if tower is None:
        if images and not model.vision_parameters:
            raise UsageError(f"{model.name} has no image tower, and images_per_sample or resolution is stated")
        return dict.fromkeys(("images", "patches", "tower_hidden", "tower_ffn", "tower_layers", "tower_passes"), 0.0)
    side = tower.image or USUAL_SIDE
    stated = cells.get("resolution")
    height, width = (side, side) if stated is None or tower.tokens else parse_resolution(str(stated))
    return {
        "images": images,
        "patches": float(image_patches(float(height), float(width), float(tower.patch), float(tower.merge))),
        "tower_hidden": float(tower.hidden),
        "tower_ffn": float(tower.ffn_hidden),
        "tower_layers": float(tower.layers),
        "tower_passes": PASSES[tower_state(cells)],
    }
