"""Constants of the collective formulas for a cluster, with where each comes from.

`hardware_db/calibration/collectives.csv` and `alltoall.csv` hold one constant per row, under a scope:
a device, a link, a family of links, or "any". The narrowest scope that states a constant wins, and a
user's database over the shipped one.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import DataError
from gpucalc.database import files

if TYPE_CHECKING:
    import os

    from gpucalc.database.cluster import Cluster

COLLECTIVES = "collectives.csv"
ALLTOALL = "alltoall.csv"
PROVENANCE = ("measured", "published", "assumed")
FIELDS = ("scope", "constant", "value", "unit", "provenance", "source", "n", "error_fit", "error_held_out", "note")
LINK_CONSTANTS = {
    "link_efficiency": "",
    "collective_startup": "s",
    "all_reduce_startup": "s",
    "link_step_latency": "s",
    "chunk_latency": "s",
    "own_chunk": "",
    "all_to_all_startup": "s",
    "all_to_all_efficiency": "",
    "nvls_efficiency": "",
    "nvls_chunk_latency": "s",
    "nvls_minimum_ranks": "",
    "point_to_point_startup": "s",
    "point_to_point_efficiency": "",
    "bridge_sharing": "",
    "bridge_exponent": "",
}
NETWORK_CONSTANTS = {
    "network_efficiency": "",
    "network_startup": "s",
    "network_step_latency": "s",
    "network_chunk_latency": "s",
    "tree_efficiency": "",
    "rail_only_share": "",
}
EXCHANGE_CONSTANTS = {
    "exchange_efficiency": "",
    "exchange_startup": "s",
    "exchange_chunk_latency": "s",
    "exchange_network_efficiency": "",
    "exchange_network_startup": "s",
    "exchange_doubling_latency": "s",
}
EXCHANGE_KERNELS = ("deepep_normal", "deepep_low_latency")
EXCHANGE_PHASES = ("dispatch", "combine")


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


def _row(record: Mapping[str, str | None], where: str) -> Calibrated:
    cells = {name: (record.get(name) or "").strip() for name in FIELDS}
    try:
        value = float(cells["value"])
        n = int(cells["n"] or 0)
        errors = [float(cells[name]) if cells[name] else None for name in ("error_fit", "error_held_out")]
    except ValueError:
        raise DataError(f"{where}: value, n and errors must be numbers") from None
    if not cells["scope"] or not cells["constant"]:
        raise DataError(f"{where}: scope and constant must be stated")
    if math.isnan(value) or value < 0:
        raise DataError(f"{where}: value is {cells['value']}, expected 0 or more")
    if cells["provenance"] not in PROVENANCE:
        raise DataError(f"{where}: provenance is {cells['provenance']!r}, expected one of {', '.join(PROVENANCE)}")
    return Calibrated(
        cells["scope"],
        cells["constant"],
        value,
        cells["unit"],
        cells["provenance"],
        cells["source"],
        n,
        errors[0],
        errors[1],
        cells["note"],
    )


@functools.lru_cache(maxsize=16)
def _table(roots: tuple[Path, ...], name: str) -> dict[tuple[str, str], Calibrated]:
    table: dict[tuple[str, str], Calibrated] = {}
    for root in roots:
        path = root / "calibration" / name
        if not path.is_file():
            continue
        lines = [line for line in files.read_text(path, root).splitlines() if not line.startswith("#")]
        for number, record in enumerate(csv.DictReader(io.StringIO("\n".join(lines))), start=2):
            row = _row(record, f"calibration/{name}, row {number}")
            table[row.scope, row.constant] = row
    return table


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


def _find(table: Mapping[tuple[str, str], Calibrated], scopes: Iterable[str], constant: str) -> Calibrated:
    tried = list(scopes)
    for scope in tried:
        if (scope, constant) in table:
            return table[scope, constant]
    raise DataError(f"calibration: no {constant} for {' or '.join(tried)}")


def calibration(
    cluster: Cluster, dirs: Iterable[str | os.PathLike[str]] = (), *, overlapped: bool = False
) -> dict[str, Calibrated]:
    """Every constant of the collective formulas for a cluster, with its provenance.

    `overlapped`: as collectives behave beside the compute of a training step instead of alone.
    """
    return _calibration(cluster, files.database_dirs(dirs), ("training",) if overlapped else ())


def _calibration(cluster: Cluster, roots: tuple[Path, ...], first: tuple[str, ...] = ()) -> dict[str, Calibrated]:
    table = _table(roots, COLLECTIVES)
    link = (*first, cluster.device.key, cluster.link_key, family(cluster.link_key), "any")
    network = (*first, cluster.fabric, family(cluster.fabric), "any")
    found = {name: _find(table, link, name) for name in LINK_CONSTANTS}
    found |= {name: _find(table, network, name) for name in NETWORK_CONSTANTS}
    if cluster.scale_up_topology != "nvswitch" and "nvls_minimum_ranks" in found:
        found["nvls_minimum_ranks"] = _find(table, ("no-switch",), "nvls_minimum_ranks")
    return found


def overlay_shares(cluster: Cluster, dirs: Iterable[str | os.PathLike[str]] = ()) -> dict[str, float]:
    """`link_efficiency` and `network_efficiency` of a user's databases over those shipped; 1 without such.

    A training step takes from the software profile what collectives keep beside compute. Links and a network
    that carry less than usual when alone carry less then, too: the profile's figures are multiplied by this.
    """
    roots, shares = files.database_dirs(dirs), ("link_efficiency", "network_efficiency")
    if len(roots) == 1:
        return dict.fromkeys(shares, 1.0)
    own, shipped = _calibration(cluster, roots), _calibration(cluster, roots[:1])
    return {name: own[name].value / shipped[name].value for name in shares}


def collective_constants(
    cluster: Cluster, dirs: Iterable[str | os.PathLike[str]] = (), *, overlapped: bool = False
) -> dict[str, float]:
    """The columns that the collective and topology formulas read for a cluster, under their names.

    Beside the calibrated constants: `network_bandwidth`, `domain`, `peers`, `torus_dimensions`.
    `link_bandwidth` depends on the group (`formulas.topology.SCALE_UP_BANDWIDTH`); the value here is
    all links of a GPU.
    """
    values: dict[str, float] = {n: c.value for n, c in calibration(cluster, dirs, overlapped=overlapped).items()}
    values["link_bandwidth"] = cluster.link_bandwidth
    values["network_bandwidth"] = cluster.network_bandwidth_per_gpu
    values["domain"] = cluster.domain
    values["peers"] = cluster.peers
    values["torus_dimensions"] = 3 if cluster.scale_up_topology == "torus-3d" else 2
    return values


def exchange_constants(
    cluster: Cluster, kernel: str, phase: str, dirs: Iterable[str | os.PathLike[str]] = ()
) -> dict[str, Calibrated]:
    """Constants of an expert exchange kernel in one phase (dispatch, combine) on a cluster."""
    table = _table(files.database_dirs(dirs), ALLTOALL)
    places = (cluster.device.key, cluster.link_key, family(cluster.link_key), "any")
    return {name: _find(table, [f"{p}/{kernel}/{phase}" for p in places], name) for name in EXCHANGE_CONSTANTS}


def summary(found: Mapping[str, Calibrated]) -> dict[str, Any]:
    """Which provenance the constants of a prediction have: the weakest one, and the sources."""
    kinds = {c.provenance for c in found.values()}
    weakest = next((p for p in reversed(PROVENANCE) if p in kinds), "assumed")
    return {"provenance": weakest, "sources": sorted({c.source for c in found.values() if c.source})}
