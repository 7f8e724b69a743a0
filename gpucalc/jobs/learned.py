"""What a cluster's own runs say of it: factors on the constants of an estimate, and how sure they are.

A factor scales columns that stand for one physical thing: the rate of products, the share of the gradients' time that
shows, the bytes that an allocator loses. `gpucalc learn` writes the posterior of the factors of a GPU into an overlay
(`calibration/learned.csv`), and every job on that GPU is then estimated with the posterior's mean. The factors of
`WHOLE` scale together like a clock: their effects on the step time add up to it (the estimate is homogeneous in time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.core.formula import Constant
from gpucalc.database.tables import MEMORY_BAND, TIME_BAND

if TYPE_CHECKING:
    import numpy as np

    from gpucalc.core.ledger import Columns
    from gpucalc.database.reader import Database

# One for all factors and both quantities: with what the shipped runs allow, sources out in turn, no finer set is told
# apart from it (about fifty settings were tried, the ratios of errors moved by less than 0.05).
FACTOR_SPREAD = Constant("FACTOR_SPREAD", 0.15, "standard deviation of ln(factor) between clusters", "measured")
UNKNOWN = 0.9  # share of a factor's spread that must be left for runs to have said nothing of it
TOLD = 0.02  # a factor is told from here on
TABLE = "learned"
MODEL = "model "  # a parameter of one model's own is named "model NAME"
QUANTILE = 1.2816  # half of the 80 % band of a normal quantity, in standard deviations
STEP = 1e-3  # of ln(factor), in which effects are taken as slopes


@dataclass(frozen=True)
class Factor:
    """One thing that a cluster may do otherwise than predicted.

    more, less: what a factor above and below 1 says. effects: column → exponent of the factor in it.
    """

    name: str
    more: str
    less: str
    effects: Mapping[str, float]


def _times(*columns: str) -> dict[str, float]:
    return dict.fromkeys(columns, 1.0)


def _rates(*columns: str) -> dict[str, float]:
    return dict.fromkeys(columns, -1.0)


_PROTOCOLS = [f"{tree}_{protocol}" for tree in ("ring", "tree") for protocol in ("ll", "ll128", "simple")]
_STEPS = [f"{one}_{level}_step" for one in _PROTOCOLS for level in ("link", "network")]
_LATENCIES = (
    *(f"{one}_base" for one in _PROTOCOLS),
    *_STEPS,
    *("all_reduce_startup", "all_to_all_startup", "collective_startup", "chunk_latency", "link_step_latency"),
    *("network_startup", "network_step_latency", "network_chunk_latency", "nvls_chunk_latency", "nvls_tree_base"),
    *("nvls_tree_network_step", "p2p_network_startup", "point_to_point_startup", "exchange_base"),
    *("exchange_domain_step", "exchange_peer_latency"),
)
_LAUNCHES = ("gemm_launch_seconds", "half_gemm_launch_seconds", "elementwise_launch", "attention_launch_seconds")
_POINTS = ("ll_many_rate", "ll_pair_rate", "tree_many_rate", "tree_pair_rate", "nvls_many_rate", "nvls_pair_rate")

WHOLE = (
    Factor(
        "products",
        "matrix products are slower",
        "matrix products are faster",
        _rates("gemm_efficiency", "half_gemm_efficiency"),
    ),
    Factor("attention", "attention is slower", "attention is faster", _rates("attention_efficiency")),
    Factor(
        "memory",
        "what is bound by memory is slower",
        "what is bound by memory is faster",
        _rates("memory_bandwidth"),
    ),
    Factor(
        "host",
        "the host takes longer for each operation",
        "the host takes less for each operation",
        _times("seconds_per_operation", "serial_gap_seconds", "kernel_launch_seconds"),
    ),
    Factor("launch", "kernels take longer to start", "kernels start faster", _times(*_LAUNCHES, "cast_launch_seconds")),
    Factor(
        "link",
        "collectives inside a node are slower",
        "collectives inside a node are faster",
        _rates("link_bandwidth", *_POINTS),
    ),
    Factor("network", "the network carries less", "the network carries more", _rates("network_bandwidth")),
    Factor("latency", "collectives take longer to start", "collectives start faster", _times(*_LATENCIES)),
    Factor("fixed", "more is done once a step", "less is done once a step", _times("optimizer_fixed_seconds")),
)
EXPOSED = (
    Factor(
        "gradients",
        "more of the gradients' reduction shows",
        "less of the gradients' reduction shows",
        _times("dp_residual"),
    ),
    Factor(
        "gathering",
        "more of the parameters' gathering shows",
        "less of the parameters' gathering shows",
        _times("fsdp_residual"),
    ),
    Factor(
        "pipeline",
        "more of the pipeline's transfers shows",
        "less of the pipeline's transfers shows",
        _times("p2p_exposed_share", "p2p_exposed_interleaved"),
    ),
    Factor(
        "experts",
        "more of the experts' exchange shows",
        "less of the experts' exchange shows",
        _times("ep_exposed_share"),
    ),
)
MEMORY = (
    Factor(
        "states",
        "weights, gradients and moments take more",
        "weights, gradients and moments take less",
        _times("weight_bytes", "gradient_bytes", "optimizer_bytes"),
    ),
    Factor("activations", "activations take more", "activations take less", _times("activation_factor")),
    Factor("logits", "the logits take more", "the logits take less", _times("logit_bytes")),
    Factor(
        "allocator",
        "the allocator loses more",
        "the allocator loses less",
        _times("reserved_factor", "fragmentation"),
    ),
    Factor(
        "outside",
        "more memory is taken outside the tensors",
        "less memory is taken outside the tensors",
        _times("context_bytes", "group_bytes", "allocated_fixed"),
    ),
)
FACTORS: dict[str, tuple[Factor, ...]] = {TIME_BAND: (*WHOLE, *EXPOSED), MEMORY_BAND: MEMORY}
# What a model's own parameter shifts: all that makes up the quantity.
TOGETHER = {TIME_BAND: WHOLE, MEMORY_BAND: tuple(f for f in MEMORY if f.name != "allocator")}
PATHS = {TIME_BAND: "time/step", MEMORY_BAND: "memory/total"}


@dataclass(frozen=True)
class Posterior:
    """What is known of the factors of a GPU, in logarithms: mean, covariance, and the spread that stays of a run.

    names: factors, then "model NAME" for each model that has runs. spread: of a model without runs, where none
    is among the names.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    spread: float
    runs: int

    def shifts(self, quantity: str, model: str) -> dict[str, float]:
        """ln(factor) of each factor for a job of a model."""
        known = dict(zip(self.names, (float(value) for value in self.mean), strict=True))
        own = known.get(MODEL + model, 0.0)
        together = {factor.name for factor in TOGETHER[quantity]}
        return {f.name: known[f.name] + (own if f.name in together else 0.0) for f in FACTORS[quantity]}

    def doubt(self, factor: str) -> float:
        """The standard deviation of ln(factor)."""
        place = self.names.index(factor)
        return math.sqrt(float(self.covariance[place, place]))

    def deviation(self, effects: np.ndarray, model: str) -> float:
        """One standard deviation of ln(measured / predicted) of a job with these effects of the factors."""
        import numpy as np

        design = np.zeros(len(self.names))
        design[: len(effects)] = effects
        own = MODEL + model
        more = self.noise + self.spread**2
        if own in self.names:
            design[self.names.index(own)] = 1.0
            more = self.noise
        return math.sqrt(more + float(design @ self.covariance @ design))


def posterior(db: Database, gpu: str, quantity: str) -> Posterior | None:
    """What an overlay has learned of a quantity on a GPU; None where it has not."""
    return db.kept((TABLE, gpu, quantity), lambda: _posterior(db, gpu, quantity))


def _posterior(db: Database, gpu: str, quantity: str) -> Posterior | None:
    import numpy as np

    rows = {key[2:]: row.values["value"] for key, row in db.table(TABLE).items() if key[:2] == (gpu, quantity)}
    if ("rule", "noise", "") not in rows:
        return None
    names = tuple(f.name for f in FACTORS[quantity])
    names += tuple(name for kind, name, _ in rows if kind == "mean" and name.startswith(MODEL))
    mean = np.array([rows.get(("mean", name, ""), 0.0) for name in names])
    covariance = np.array([[rows.get(("covariance", *sorted((one, other))), 0.0) for other in names] for one in names])
    rule = {name: value for (kind, name, _), value in rows.items() if kind == "rule"}
    return Posterior(names, mean, covariance, rule["noise"], rule["spread"], int(rule["runs"]))


def remarks(db: Database, gpu: str, crosses: bool) -> list[str]:
    """What is said beside a prediction with what runs taught of its GPU; nothing where none did.

    crosses: whether the job uses the network, of which runs on one node say nothing.
    """
    found = posterior(db, gpu, TIME_BAND)
    if found is None:
        return []
    known = dict(zip(found.names, (float(value) for value in found.mean), strict=True))
    told = [
        f"{factor.more if known[factor.name] > 0 else factor.less} ({math.exp(abs(known[factor.name])):.2f} ×)"
        for factor in FACTORS[TIME_BAND]
        if abs(known[factor.name]) >= TOLD and abs(known[factor.name]) > found.doubt(factor.name)
    ]
    said = f"as {found.runs} own runs on {gpu} taught: {'; '.join(told) or 'nothing beyond their noise'}"
    if crosses and found.doubt("network") > UNKNOWN * FACTOR_SPREAD.value:
        said += "; none of them tells of the network, which stays as predicted"
    return [said]


def changed(columns: Mapping[str, float], gpu: str, model: str, db: Database) -> dict[str, float]:
    """The columns that what was learned of a GPU changes, for a job of a model; empty where nothing was."""
    found: dict[str, float] = {}
    for quantity in FACTORS:
        learned = posterior(db, gpu, quantity)
        if learned is not None:
            found |= scaled({**columns, **found}, FACTORS[quantity], learned.shifts(quantity, model))
    return found


def scaled(columns: Mapping[str, Any], factors: Sequence[Factor], shifts: Mapping[str, float]) -> dict[str, Any]:
    """The columns that factors change, each factor exp(shift).

    >>> scaled({"memory_bandwidth": 2.0, "tp": 8.0}, WHOLE, {"memory": math.log(2)})
    {'memory_bandwidth': 1.0}
    """
    found: dict[str, Any] = {}
    for factor in factors:
        shift = shifts.get(factor.name, 0.0)
        if shift:
            for name, exponent in factor.effects.items():
                if name in columns:
                    found[name] = found.get(name, columns[name]) * math.exp(exponent * shift)
    return found


def effects(columns: Columns, rows: int, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """ln of a quantity for each row, and by how much each factor moves it: d ln(quantity) / d ln(factor).

    Slopes over a small step, of all rows and factors in one evaluation of the estimate. Shapes (rows,) and
    (rows, factors).
    """
    import numpy as np

    from gpucalc.core.ledger import Columns
    from gpucalc.estimate.training import estimate_training

    factors = FACTORS[quantity]
    copies = len(factors) + 1
    values: dict[str, Any] = {}
    for name in columns:
        value = columns[name]
        exponents = np.array([0.0, *(f.effects.get(name, 0.0) for f in factors)])
        if np.ndim(value) == 0 and not exponents.any():
            values[name] = value
            continue
        values[name] = (np.exp(STEP * exponents)[:, None] * np.broadcast_to(value, (rows,))).ravel()
    answer = estimate_training(Columns(values))[PATHS[quantity]]
    logs = np.log(np.broadcast_to(answer, (copies * rows,))).reshape(copies, rows)
    return logs[0], ((logs[1:] - logs[0]) / STEP).T
