"""Common claims, checked: what is said stands in `hardware_db/claims.toml`, whether it is so is computed.

A claim of a user is pairs key=value; `claims_said.from_pairs` finds out what kind of claim they make.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from gpucalc.core.errors import DataError, unknown
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.validate.claims import figures, runs
from gpucalc.validate.claims.statements import EXAMPLES, Claim, Verdict

CHECKS: dict[str, Callable[[Claim, Database], Verdict]] = {
    "peak": figures.check_peak,
    "node_peak": figures.check_node_peak,
    "links": figures.check_links,
    "link": figures.check_one_link,
    "pcie": figures.check_one_link,
    "port": figures.check_port,
    "memory": figures.check_memory,
    "memory_bandwidth": figures.check_memory_bandwidth,
    "tdp": figures.check_tdp,
    "mfu": runs.check_mfu,
    "zero": runs.check_zero,
    "network_share": runs.check_network_share,
    "tuned_share": runs.check_tuned_share,
    "product": runs.check_product,
}


@functools.lru_cache(maxsize=4)
def shipped_claims(roots: tuple[Path, ...]) -> dict[str, Claim]:
    """key → claim of the database; a later folder wins."""
    found: dict[str, Claim] = {}
    for root in roots:
        path = root / "claims.toml"
        if not path.exists():
            continue
        for key, row in files.read_toml(path, root).items():
            if not isinstance(row, dict) or not isinstance(row.get("text"), str) or row.get("kind") not in CHECKS:
                raise DataError(f"claims.toml: {key}: must be a table with text and kind, one of {', '.join(CHECKS)}")
            found[key] = Claim(
                key, row["text"], row["kind"], {n: v for n, v in row.items() if n not in {"text", "kind"}}
            )
    return found


def check(claim: Claim, db: Database) -> Verdict:
    """Whether a claim holds, with the arithmetic."""
    return CHECKS[claim.kind](claim, db)


def check_all(db: Database, keys: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on the claims of the database, or on some of them."""
    known = shipped_claims(db.dirs)
    for key in keys:
        if key not in known:
            raise unknown("claim", key, known, f"or write your own, such as {EXAMPLES}")
    return [check(known[key], db) for key in (keys or known)]
