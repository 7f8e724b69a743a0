"""Constants of reinforcement learning that lie beside the serving and training estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

TABLE = "posttraining"


def policy_constants(db: Database, prior: bool = False) -> dict[str, float]:
    """constant → value in SI; `prior`: as if nothing had been fitted."""
    return {row.key[0]: row.values["prior" if prior else "value"] for row in db.table(TABLE).values()}
