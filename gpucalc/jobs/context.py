"""How the cells of a row become a job: the database and the choices that stand beside the cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucalc.database.reader import Database


@dataclass(frozen=True)
class Context:
    """The database that a question is answered from, and the conventions that hold for all of its rows.

    `profile`: the software profile; None: by the framework and date of the row. `fabric`: the link of the database
    that joins the nodes; None: the node's own. `causal_flops`: model FLOPs count half of causal attention.
    `learned`: what an overlay has learned from runs counts.
    """

    db: Database
    profile: str | None = None
    fabric: str | None = None
    causal_flops: bool = False
    learned: bool = True
