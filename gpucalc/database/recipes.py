"""Recipes: what a framework's fine-tuning scripts set where a row of post-training says nothing.

A recipe is a file of `hardware_db/recipes`: cells of the row schema with their source, by framework.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucalc.database.documents import RECIPE_CASES, Document

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

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


def load_recipe(name: str, db: Database) -> Recipe:
    """The recipe of that name, from an overlay or the shipped database. DataError for a malformed file."""
    return db.kept(("recipe", name), lambda: _recipe(db.document(FOLDER, name)))


def _recipe(found: Document) -> Recipe:
    return Recipe(
        found.name,
        found.text("title"),
        found.text("source"),
        found.words[1:],
        found.text("framework"),
        found.text("software_date"),
        bool(found.data.get("packed", True)),
        int(found.data.get("mean_sample", 0)),
        int(found.data.get("longest_sample", 0)),
        **{case: found.table(case) for case in RECIPE_CASES},
        recompute_if_needed=bool(found.data.get("recompute_if_needed", False)),
    )


def recipe_names(db: Database) -> list[str]:
    """Names of all recipes."""
    return sorted(db.files(FOLDER))


def choose_recipe(text: str, db: Database) -> Recipe:
    """The recipe whose longest word occurs in the name of a framework or repository; the Trainer's without any."""
    folded = re.sub(r"[\s_]+", " ", text.casefold())
    ranked = [
        (max((len(word) for word in found.words[1:] if word in folded), default=0), found.name)
        for found in sorted(db.heads(FOLDER), key=lambda found: found.name)
    ]
    length, name = max(ranked, key=lambda pair: pair[0], default=(0, DEFAULT))
    return load_recipe(name if length else DEFAULT, db)
