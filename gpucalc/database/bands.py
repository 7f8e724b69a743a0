"""The uncertainty band of a prediction: how far measured runs lie from predictions that never saw their source.

For r = ln(measured / predicted), a source left out of the fit:

    s² = a_family · (A + u² / (1 + n)) + kernels²,    band = exp(±c·s), at least ±8 %

A is the mean square over sources whose profile other sources support, u² what it is more where none does, n the number
of sources fitted with the job's profile, a_family the family's share, shrunk towards 1, and c the weighted quantile
that holds 80 % of every source alike. The rule was fixed before it was scored. A job without a single measured relative
(encoders, vision towers, hybrids) has the largest factor of a family and n = 0. The same rule holds for peak memory.

All constants stand in `hardware_db/calibration/bands.csv` and are written by `scripts/fit_training.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucalc.core.errors import DataError
from gpucalc.database.efficiency import kernel_provenance
from gpucalc.database.tables import ASSUMED_KERNELS, FAMILIES, MEMORY_BAND, QUANTITIES, TIME_BAND

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.jobs.training import Job

LOW_PRECISION = ("fp8", "mxfp8", "nvfp4", "mxfp4")
SLOW_NETWORK = 60e9 / 8  # B/s per GPU: networks of 50 Gb/s per GPU and less, with the rounding of stated rates
UNVALIDATED = "unvalidated"
TABLE = "bands"
TIME, MEMORY = TIME_BAND, MEMORY_BAND
SMALL_PARAMETERS = 3e9
LEAST_HALF_WIDTH = math.log(1.08)
LARGEST_RESIDUAL = 0.5  # of ln(measured / predicted): such a row has another cause
PRIOR_WEIGHT = 2.0  # sources' worth of the mean in a family's factor
ROWS_AT_HALF = 3.0  # rows with which a source has half of its weight in a family
LEAST_FACTOR, LARGEST_FACTOR = 0.75, 4.0
LEVEL = 0.8


@dataclass(frozen=True)
class Residual:
    """One measured row against a prediction that never saw its source; `others`: sources fitted with its profile."""

    source: str
    family: str
    others: int
    value: float


@dataclass(frozen=True)
class Rule:
    """The constants of one quantity's band."""

    supported: float  # A
    unsupported: float  # u²
    quantile: float  # c
    factors: Mapping[str, float]  # family → a

    def deviation(self, family: str, others: int, more: float = 0.0) -> float:
        """s: what one standard deviation of ln(measured / predicted) is taken to be; `more` adds as a square.

        >>> round(Rule(0.01, 0.03, 0.9, {"dense": 1.0}).deviation("dense", 0), 3)
        0.2
        """
        factor = self.factors.get(family, max(self.factors.values(), default=1.0))
        return math.sqrt(factor * (self.supported + self.unsupported / (1 + others)) + more**2)

    def half_width(self, family: str, others: int, more: float = 0.0) -> float:
        """Half of the band in the logarithm."""
        return max(self.quantile * self.deviation(family, others, more), LEAST_HALF_WIDTH)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _by_source(residuals: Sequence[Residual]) -> dict[str, list[Residual]]:
    found: dict[str, list[Residual]] = {}
    for one in residuals:
        found.setdefault(one.source, []).append(one)
    return found


def fitted_rule(residuals: Sequence[Residual]) -> Rule:
    """The constants that the residuals of rows whose source was left out imply.

    >>> rows = [Residual(s, "dense", n, v) for s, n, v in (("a", 1, 0.1), ("b", 1, -0.1), ("c", 0, 0.2))]
    >>> rule = fitted_rule(rows)
    >>> round(rule.supported, 4), round(rule.unsupported, 4)
    (0.01, 0.03)
    """
    capped = [Residual(r.source, r.family, r.others, min(abs(r.value), LARGEST_RESIDUAL)) for r in residuals]
    squares: dict[bool, list[float]] = {True: [], False: []}
    for members in _by_source(capped).values():
        for known in (True, False):
            if rows := [r.value**2 for r in members if (r.others > 0) == known]:
                squares[known].append(_mean(rows))
    supported = _mean(squares[True]) or _mean(squares[False])
    unsupported = max(0.0, _mean(squares[False]) - supported)
    factors = {}
    for family in FAMILIES:
        weight = total = 0.0
        for members in _by_source([r for r in capped if r.family == family]).values():
            share = len(members) / (len(members) + ROWS_AT_HALF)
            total += share * _mean([r.value**2 / (supported + unsupported / (1 + r.others)) for r in members])
            weight += share
        factor = LARGEST_FACTOR
        if weight:
            factor = (total + PRIOR_WEIGHT) / (weight + PRIOR_WEIGHT) * (1 + 1 / weight)
        factors[family] = min(max(factor, LEAST_FACTOR), LARGEST_FACTOR)
    plain = Rule(supported, unsupported, 1.0, factors)
    sources = _by_source(capped)
    ratios = sorted(
        (r.value / plain.deviation(r.family, r.others), 1 / len(members))
        for members in sources.values()
        for r in members
    )
    wanted, seen = min(LEVEL * (1 + 1 / max(len(sources), 1)), 1.0) * len(sources), 0.0
    quantile = 1.0
    for ratio, weight in ratios:
        quantile, seen = ratio, seen + weight
        if seen >= wanted:
            break
    return Rule(supported, unsupported, quantile, factors)


def coverage(residuals: Sequence[Residual]) -> dict[str, float]:
    """Source → share of its rows inside the band, whose constants are fitted without that source."""
    found = {}
    for source, members in _by_source(residuals).items():
        rule = fitted_rule([r for r in residuals if r.source != source])
        found[source] = _mean([float(abs(r.value) <= rule.half_width(r.family, r.others)) for r in members])
    return found


def family_of(job: Job) -> str:
    """The family whose errors stand for a job: the least certain of its traits decides."""
    cells, cluster = job.cells, job.cluster
    if job.model.encoder_layers or job.model.vision_parameters or job.model.linear_layers or not job.model.causal:
        return UNVALIDATED
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
    return small and "megatron-core" not in job.profile.lineage and "megatron-legacy" not in job.profile.lineage


def band(job: Job) -> tuple[float, float, str]:
    """Factors on the predicted step time between which 80 % of measured times lie, and the family."""
    family = family_of(job)
    half = half_width(job, TIME, family)
    return math.exp(-half), math.exp(half), family


def memory_half_width(job: Job) -> float:
    """Half of the 80 % band of the peak memory, in the logarithm."""
    return half_width(job, MEMORY, family_of(job))


def half_width(job: Job, quantity: str, family: str) -> float:
    """Half of the band of a quantity in the logarithm."""
    db = job.context.db
    table = bands(db)
    others = 0 if family == UNVALIDATED else table.support[quantity].get(job.profile.name, 0)
    assumed = quantity == TIME and _assumed(job.cluster.device, job.cells["precision"], db)
    return table.rules[quantity].half_width(family, others, table.kernels if assumed else 0.0)


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


@dataclass(frozen=True)
class Bands:
    """The table of bands: a rule for each quantity, the sources behind each profile, the error of assumed kernels."""

    rules: Mapping[str, Rule]
    support: Mapping[str, Mapping[str, int]]
    kernels: float


def bands(db: Database) -> Bands:
    """The constants of the bands; a later folder wins, constant by constant."""
    return db.kept("bands", lambda: _bands(db))


def _bands(db: Database) -> Bands:
    found = {key: row.values["value"] for key, row in db.table(TABLE).items()}
    rules, support = {}, {}
    for quantity in QUANTITIES:
        needed = [(quantity, "rule", name) for name in ("supported", "unsupported", "quantile")]
        if missing := [key[-1] for key in needed if key not in found]:
            raise DataError(f"calibration/{TABLE}.csv: no row for {quantity} {', '.join(missing)}")
        factors = {key[2]: value for key, value in found.items() if key[:2] == (quantity, "family")}
        rules[quantity] = Rule(found[needed[0]], found[needed[1]], found[needed[2]], factors)
        support[quantity] = {key[2]: int(v) for key, v in found.items() if key[:2] == (quantity, "profile")}
    return Bands(rules, support, found.get((TIME, "rule", ASSUMED_KERNELS), 0.12))
