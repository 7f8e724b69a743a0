"""The uncertainty band of a prediction: how far measured runs of its family lie from predictions.

`hardware_db/calibration/bands.csv` holds two factors per family, between which 80 % of the measured
times of sources left out of the fit fall. Where the kernel constants of the device are taken over from
relatives, the band is widened by the error of devices left out of the kernel fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpucalc.core.errors import DataError
from gpucalc.database.efficiency import kernel_provenance
from gpucalc.database.tables import ASSUMED_KERNELS, FAMILIES

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.jobs.training import Job

LOW_PRECISION = ("fp8", "mxfp8", "nvfp4", "mxfp4")
SLOW_NETWORK = 60e9 / 8  # B/s per GPU: networks of 50 Gb/s per GPU and less, with the rounding of stated rates
TABLE = "bands"
SMALL_PARAMETERS = 3e9


def family_of(job: Job) -> str:
    """The family whose errors stand for a job: the least certain of its traits decides."""
    cells, cluster = job.cells, job.cluster
    if cells["method"] != "full":
        return "adapters"
    if job.model.is_moe:
        return "moe"
    if slow_network(cluster):
        return "slow-network"
    if launches_from_host(job):
        return "small"
    if cells["precision"] in LOW_PRECISION:
        return "low-precision"
    return "sharded" if cells["zero_stage"] >= 3 else "dense"


def slow_network(cluster: Cluster) -> bool:
    """Whether a job spans nodes over a network of at most 60 Gb/s per GPU."""
    return cluster.n_gpus > cluster.domain and cluster.network_bandwidth_per_gpu <= SLOW_NETWORK


def launches_from_host(job: Job) -> bool:
    """Whether the host, which starts one kernel after the other, may set the pace: small models in PyTorch."""
    small = job.model.parameters_total <= SMALL_PARAMETERS and job.cluster.n_nodes == 1
    return small and not job.profile.name.startswith("megatron")


def band(job: Job) -> tuple[float, float, str]:
    """Factors on the predicted step time between which 80 % of measured times lie, and the family."""
    family = family_of(job)
    db = job.context.db
    table = bands(db)
    low, high = table[family]
    if _assumed(job.cluster.device, job.cells["precision"], db):
        low, high = widened((low, high), table[ASSUMED_KERNELS])
    return low, high, family


def widened(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Two independent bands as one: half-widths add as squares, in logarithms.

    >>> low, high = widened((0.9, 1.1), (1.0, 1.0))
    >>> round(low, 6), round(high, 6)
    (0.9, 1.1)
    >>> low, high = widened((0.8, 1.25), (0.8, 1.25))
    >>> round(low, 4), round(high, 4)
    (0.7294, 1.371)
    """
    down, up = (math.hypot(math.log(a), math.log(b)) for a, b in zip(one, other, strict=True))
    return math.exp(-down), math.exp(up)


def _assumed(device: Device, precision: str, db: Database) -> bool:
    """Whether the kernel constants of a device are taken over from relatives."""
    found = db.kept(("provenance", device.key, precision), lambda: kernel_provenance(device, precision, db))
    return "assumed" in (found["gemm"], found["attention"])


def bands(db: Database) -> dict[str, tuple[float, float]]:
    """family → low and high factor."""
    return db.kept("bands", lambda: _bands(db))


def _bands(db: Database) -> dict[str, tuple[float, float]]:
    found = {row.key[0]: (row.values["low"], row.values["high"]) for row in db.table(TABLE).values()}
    missing = [name for name in (*FAMILIES, ASSUMED_KERNELS) if name not in found]
    if missing:
        raise DataError(f"calibration/{TABLE}.csv: no row for {', '.join(missing)}")
    return found
