"""Recipes: what a framework's fine-tuning scripts set where a row of post-training says nothing.

A recipe is a file of `hardware_db/recipes`: cells of the row schema with their source, by framework.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.database import files

FOLDER = "recipes"
DEFAULT = "trainer"


@dataclass(frozen=True)
class Recipe:
    """Defaults of one family of scripts: `cells`, and what replaces them in some jobs.

    `sharded`: weights sharded over GPUs; `full`: no adapters, `full_alone`: nor
    other GPUs; `many`: adapters on several GPUs.
    `recompute_if_needed`: activations are recomputed in all layers or, where they fit, in none.

    `mean_sample` and `longest_sample` are tokens of the usual data set; 0: every sequence is full.
    """

    name: str
    title: str
    source: str
    words: tuple[str, ...]
    framework: str
    software_date: str
    packed: bool
    mean_sample: int
    longest_sample: int
    cells: Mapping[str, Any] = field(default_factory=dict)
    sharded: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    full_alone: Mapping[str, Any] = field(default_factory=dict)
    many: Mapping[str, Any] = field(default_factory=dict)
    recompute_if_needed: bool = False


@functools.lru_cache(maxsize=32)
def load_recipe(name: str, dirs: tuple[Path, ...]) -> Recipe:
    """The recipe of that name, from an overlay or the shipped database. DataError for a malformed file."""
    path, root = files.list_files(dirs, FOLDER)[name]
    raw = files.read_toml(path, root)
    try:
        return Recipe(
            name,
            str(raw["title"]),
            str(raw["source"]),
            tuple(str(w).casefold() for w in raw["frameworks"]),
            str(raw["framework"]),
            str(raw.get("software_date", "")),
            bool(raw.get("packed", True)),
            int(raw.get("mean_sample", 0)),
            int(raw.get("longest_sample", 0)),
            dict(raw.get("cells", {})),
            dict(raw.get("sharded", {})),
            dict(raw.get("full", {})),
            dict(raw.get("full_alone", {})),
            dict(raw.get("many", {})),
            bool(raw.get("recompute_if_needed", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path.name}: not a recipe ({error!r})") from None


def recipe_names(dirs: tuple[Path, ...]) -> list[str]:
    """Names of all recipes."""
    return sorted(files.list_files(dirs, FOLDER))


def choose_recipe(text: str, dirs: tuple[Path, ...]) -> Recipe:
    """The recipe whose longest word occurs in the name of a framework or repository; the Trainer's without any."""
    folded = re.sub(r"[\s_]+", " ", text.casefold())
    found = [load_recipe(name, dirs) for name in recipe_names(dirs)]
    ranked = [(max((len(w) for w in r.words if w in folded), default=0), r) for r in found]
    best = max(ranked, key=lambda pair: pair[0], default=(0, None))
    return best[1] if best[1] and best[0] else load_recipe(DEFAULT, dirs)
