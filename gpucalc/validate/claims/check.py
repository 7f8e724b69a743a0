"""Common claims, checked: what is said stands in `hardware_db/claims.toml`, whether it is so is computed.

A claim of a user is pairs key=value; `claims_said.from_pairs` finds out what kind of claim they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpucalc.core.errors import DataError, UsageError, shown, suggestion, unknown
from gpucalc.database.reader import Database, read_layers
from gpucalc.validate.claims import cluster, figures, runs
from gpucalc.validate.claims.statements import EXAMPLES, KINDS, Claim, Verdict

FILE = "claims"
CHECKS: dict[str, Callable[[Claim, Database], Verdict]] = {
    "peak": figures.check_peak,
    "node_peak": figures.check_node_peak,
    "links": figures.check_links,
    "link": figures.check_one_link,
    "pcie": figures.check_one_link,
    "port": figures.check_port,
    "node_network": figures.check_node_network,
    "memory": figures.check_memory,
    "memory_bandwidth": figures.check_memory_bandwidth,
    "tdp": figures.check_tdp,
    "mfu": runs.check_mfu,
    "zero": runs.check_zero,
    "network_share": runs.check_network_share,
    "tuned_share": runs.check_tuned_share,
    "product": runs.check_product,
    "weights": cluster.check_weights,
    "weights_of": cluster.check_weights,
    "interval": cluster.check_interval,
    "goodput": cluster.check_goodput,
    "goodput_of": cluster.check_goodput,
    "mtbf": cluster.check_mtbf,
    "price": cluster.check_price,
    "capital": cluster.check_capital,
    "node_capital": cluster.check_capital,
    "speedup": cluster.check_speedup,
    "amdahl": cluster.check_amdahl,
    "node_power": cluster.check_node_power,
    "training_flop": cluster.check_training_flop,
    "training_flop_of": cluster.check_training_flop,
}


def shipped_claims(db: Database) -> dict[str, Claim]:
    """key → claim of the database; of each the last folder that states it wins."""
    found: dict[str, Claim] = {}
    for label, layer in db.layers(FILE):
        if problems := list(_problems(label, layer)):
            raise DataError(*problems)
        for key, row in layer.items():
            fields = {name: value for name, value in row.items() if name not in {"text", "kind"}}
            found[key] = Claim(key, row["text"], row["kind"], fields)
    return found


def claim_problems(dirs: Sequence[str]) -> list[str]:
    """What `hw check` says of the claims of some folders, of the shipped ones without any."""
    db = Database(dirs)
    try:
        layers = read_layers(db.dirs[-len(dirs) :] if dirs else db.dirs[:1], FILE)
        return [problem for label, layer in layers for problem in _problems(label, layer)]
    except UsageError as error:
        return list(error.problems)


def _problems(label: str, layer: Mapping[str, Any]) -> Iterator[str]:
    for key, row in layer.items():
        if not isinstance(row.get("text"), str):
            yield f"{label}: {key}.text: missing"
        if row.get("kind") not in CHECKS:
            kind = str(row.get("kind", ""))
            yield f"{label}: {key}.kind: {shown(kind)} is unknown{suggestion(kind, CHECKS)}"
        yield from (
            f"{label}: {key}.{name}: missing" for name in KINDS.get(str(row.get("kind")), ()) if name not in row
        )


def check(claim: Claim, db: Database) -> Verdict:
    """Whether a claim holds, with the arithmetic."""
    return CHECKS[claim.kind](claim, db)


def check_all(db: Database, keys: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on the claims of the database, or on some of them."""
    known = shipped_claims(db)
    for key in keys:
        if key not in known:
            raise unknown("claim", key, known, f"or write your own, such as {EXAMPLES}")
    return [check(known[key], db) for key in (keys or known)]
