"""Constants of the collective formulas for a cluster, with where each comes from.

`hardware_db/calibration/collectives.csv` and `alltoall.csv` hold one constant per row, under a scope:
a device, a link, a family of links, or "any". The narrowest scope that states a constant wins, and a
user's database over the shipped one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import DataError
from gpucalc.core.vocabulary import PLACEMENTS, TOPOLOGIES, WIRINGS
from gpucalc.database.tables import EXCHANGE_CONSTANTS, LINK_CONSTANTS, NETWORK_CONSTANTS, PROVENANCE, Row

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database

COLLECTIVES = "collectives"
ALLTOALL = "alltoall"
REFERENCE_LINK = "ib-ndr"  # NCCL's own constants are those of InfiniBand


@dataclass(frozen=True)
class Calibrated:
    """One constant and where it comes from; errors are medians of |predicted/measured - 1|."""

    scope: str
    constant: str
    value: float
    unit: str
    provenance: str
    source: str
    n: int
    error_fit: float | None
    error_held_out: float | None
    note: str


def _calibrated(row: Row) -> Calibrated:
    texts = row.texts
    errors = [float(texts[name]) if texts[name] else None for name in ("error_fit", "error_held_out")]
    scope, constant = row.key
    return Calibrated(
        scope,
        constant,
        row.values["value"],
        texts["unit"],
        texts["provenance"],
        texts["source"],
        int(float(texts["n"] or 0)),
        errors[0],
        errors[1],
        texts["note"],
    )


def _table(db: Database, name: str) -> dict[tuple[str, ...], Calibrated]:
    return db.kept(("calibrated", name), lambda: {key: _calibrated(row) for key, row in db.table(name).items()})


def family(key: str) -> str:
    """The family of a link: its key without generation and rate.

    >>> family("nvlink4"), family("pcie-5"), family("ib-ndr"), family("tpu-ici-v5p"), family("roce-400g")
    ('nvlink', 'pcie', 'ib', 'tpu-ici', 'roce')
    >>> family("gaudi2-roce"), family("infinity-fabric-cdna2"), family("nvlink3-ga102"), family("tcpxo-200g")
    ('gaudi-roce', 'infinity-fabric', 'nvlink', 'tcpx')
    """
    for name in ("nvlink", "infinity-fabric", "tpu-ici", "tcpx"):
        if key.startswith(name):
            return name
    if key.startswith("gaudi"):
        return "gaudi-roce"
    return re.split(r"\d|-", key, maxsplit=1)[0]


def _find(table: Mapping[tuple[str, ...], Calibrated], scopes: Iterable[str], constant: str) -> Calibrated:
    tried = list(scopes)
    for scope in tried:
        if (scope, constant) in table:
            return table[scope, constant]
    raise DataError(f"calibration: no {constant} for {' or '.join(tried)}")


def calibration(cluster: Cluster, db: Database, *, overlapped: bool = False) -> dict[str, Calibrated]:
    """Every constant of the collective formulas for a cluster, with its provenance.

    `overlapped`: as collectives behave beside the compute of a training step instead of alone.
    """
    first = ("training",) if overlapped else ()
    table = _table(db, COLLECTIVES)
    link = (*first, cluster.device.key, cluster.link_key, family(cluster.link_key), "any")
    network = (*first, cluster.fabric, family(cluster.fabric), "any")
    found = {name: _find(table, link, name) for name in LINK_CONSTANTS}
    found |= {name: _find(table, network, name) for name in NETWORK_CONSTANTS}
    if found["network_latency"].scope == "any":
        found["network_latency"] = _unmeasured_latency(found, cluster, db)
    if cluster.scale_up_topology != "nvswitch" and "nvls_minimum_ranks" in found:
        found["nvls_minimum_ranks"] = _find(table, ("no-switch",), "nvls_minimum_ranks")
    return found


def _unmeasured_latency(found: Mapping[str, Calibrated], cluster: Cluster, db: Database) -> Calibrated:
    """What a fabric adds to a crossing where nothing is measured: so many times its latency beyond InfiniBand's."""
    link, usual, waits = db.link(cluster.fabric), db.link(REFERENCE_LINK), found["fabric_waits"]
    value = waits.value * max(0.0, link.latency_s - usual.latency_s)
    note = f"{waits.value:g} times what {link.key} takes longer than {usual.key}"
    return replace(found["network_latency"], value=value, provenance="assumed", source=waits.source, note=note)


def overlay_shares(cluster: Cluster, db: Database) -> dict[str, float]:
    """`link_efficiency` and `network_efficiency` of a user's databases over those shipped; 1 without such.

    A training step takes from the software profile what collectives keep beside compute. Links and a network
    that carry less than usual when alone carry less then, too: the profile's figures are multiplied by this.
    """
    shares, shipped = ("link_efficiency", "network_efficiency"), db.shipped()
    if shipped is db:
        return dict.fromkeys(shares, 1.0)
    own, usual = calibration(cluster, db), calibration(cluster, shipped)
    return {name: own[name].value / usual[name].value for name in shares}


def collective_constants(cluster: Cluster, db: Database, *, overlapped: bool = False) -> dict[str, float]:
    """The columns that the collective and topology formulas read for a cluster, under their names.

    Beside the calibrated constants: rates, `domain`, `peers`, `wiring`, `n_gpus`, and what `place_columns` says.
    `link_bandwidth` depends on the group (`formulas.topology.SCALE_UP_BANDWIDTH`); the value here is
    all links of a GPU.
    """
    values: dict[str, float] = {n: c.value for n, c in calibration(cluster, db, overlapped=overlapped).items()}
    return {**values, **place_columns(cluster)}


def place_columns(cluster: Cluster) -> dict[str, float]:
    """What places a group on a cluster: its rates and domains, and the shape of its network."""
    shape = cluster.topology
    x, y, z = cluster.slice_sides
    short = cluster.node_sides
    return {
        "link_bandwidth": cluster.link_bandwidth,
        "network_bandwidth": cluster.network_bandwidth_per_gpu,
        "rank_cards": min(1.0, cluster.cards / cluster.gpus_per_node),
        "domain": float(cluster.domain),
        "peers": float(cluster.peers),
        "torus_dimensions": 3.0 if cluster.scale_up_topology == "torus-3d" else 2.0,
        **{"slice_x": float(x), "slice_y": float(y), "slice_z": float(z)},
        "wrap_side": float(cluster.node.wrap_side or 1),
        **{"torus_x": short[0], "torus_y": short[1]},
        "wiring": float(WIRINGS.index(cluster.scale_up_topology)),
        "n_gpus": float(cluster.n_gpus),
        "topology": float(TOPOLOGIES.index(shape.kind)),
        "pod": cluster.pod,
        "oversubscription": shape.oversubscription,
        "global_taper": shape.global_taper / shape.oversubscription,
        "dimensions": 3.0 if shape.kind == "torus-3d" else 2.0,
        "hierarchical": float(cluster.hierarchical),
        "in_switch_reduction": float(cluster.in_switch_reduction),
        "scattered": float(PLACEMENTS.index(cluster.placement)),
        # NCCL forwards over NVLink to the card on its receiver's rail; without such a link each card sends for itself.
        "rail_forwarding": float(cluster.scale_up_topology in {"nvswitch", "mesh", "hybrid-cube-mesh"}),
    }


def exchange_constants(cluster: Cluster, kernel: str, phase: str, db: Database) -> dict[str, Calibrated]:
    """Constants of an expert exchange kernel in one phase (dispatch, combine) on a cluster."""
    table = _table(db, ALLTOALL)
    places = (cluster.device.key, cluster.link_key, family(cluster.link_key), "any")
    return {name: _find(table, [f"{p}/{kernel}/{phase}" for p in places], name) for name in EXCHANGE_CONSTANTS}


def summary(found: Mapping[str, Calibrated]) -> dict[str, Any]:
    """Which provenance the constants of a prediction have: the weakest one, and the sources."""
    kinds = {c.provenance for c in found.values()}
    weakest = next((p for p in reversed(PROVENANCE) if p in kinds), "assumed")
    return {"provenance": weakest, "sources": sorted({c.source for c in found.values() if c.source})}
