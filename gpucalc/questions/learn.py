"""A few measured runs → what their cluster does otherwise than predicted, as an overlay of the database.

For each run r = ln(measured / predicted) = Σ effect · ln(factor) + own + noise. `effect` is how much a factor moves the
prediction of that run (`jobs.learned.effects`), `own` is what a model has of its own. Both are normal about nothing
with the spreads below, so that the answer is a regularised least-squares fit in closed form. How far a cluster is from
the predictions is itself not known: fits with several multiples of the spread are averaged by how likely each makes
the runs. Runs that the others contradict weigh less (Student's t with four degrees of freedom).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpucalc.core.columns import parse_row
from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.formula import Constant
from gpucalc.core.units import GIB
from gpucalc.database.efficiency import calibration_rows
from gpucalc.database.network import calibration
from gpucalc.database.tables import MEMORY_BAND, TIME_BAND
from gpucalc.jobs import learned
from gpucalc.jobs.learned import FACTOR_SPREAD, FACTORS, MODEL, TOLD, UNKNOWN, Posterior
from gpucalc.jobs.training import Job, resolve_rows, stack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucalc.jobs.context import Context

MODEL_SPREAD = Constant("MODEL_SPREAD", 0.05, "standard deviation of what a model has of its own", "measured")
LEAST_SPREAD = Constant("LEAST_SPREAD", 0.02, "of a factor that logs have fixed", "assumed")
NOISE = Constant("NOISE", 0.05, "standard deviation of a run about its cluster's other runs", "measured")
NOISE_RUNS = 2.0  # runs' worth of belief in NOISE
MULTIPLES = (0.0, 0.5, 1.0, 2.0)  # of the spreads, equally likely at first
FREEDOM = 4.0
ROUNDS = 8
DISAGREES = 0.35  # weight below which a run is said to contradict the others
FOLDS = 20
MOST_RUNS = 100_000
FARTHEST = 1000.0  # measured over predicted, or its inverse: beyond it no cluster is that far off, but the row is wrong


@dataclass(frozen=True)
class Run:
    """One measured run: where it stands, its job, and what was measured over what is predicted, by quantity."""

    place: str
    job: Job
    ratios: Mapping[str, float]  # quantity → ln(measured / predicted)
    effects: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Learned:
    """What runs on one GPU say of one quantity; errors are medians of |predicted / measured - 1|."""

    gpu: str
    quantity: str
    posterior: Posterior
    before: float
    left_out: float | None  # each run (or each twentieth part of many) predicted from the others
    wild: tuple[str, ...]
    unknown: tuple[str, ...]  # factors that the runs do not determine
    tied: tuple[tuple[str, str], ...]  # factors of which only the sum is known


@dataclass
class Lesson:
    """All that a file of runs taught."""

    learned: list[Learned] = field(default_factory=list)
    runs: int = 0
    problems: list[str] = field(default_factory=list)


def measured_runs(jobs: Sequence[tuple[str, Job, Mapping[str, float]]]) -> list[Run]:
    """Runs with the effects of the factors on each; `jobs` gives place, job and measured value by quantity."""
    ratios: list[dict[str, float]] = [{} for _ in jobs]
    slopes: list[dict[str, np.ndarray]] = [{} for _ in jobs]
    for quantity in FACTORS:
        chosen = [i for i, (_, _, values) in enumerate(jobs) if quantity in values]
        if not chosen:
            continue
        logs, found = learned.effects(stack([jobs[i][1] for i in chosen]), len(chosen), quantity)
        for at, i in enumerate(chosen):
            ratios[i][quantity] = math.log(jobs[i][2][quantity]) - float(logs[at])
            slopes[i][quantity] = found[at]
    return [Run(place, job, r, s) for (place, job, _), r, s in zip(jobs, ratios, slopes, strict=True)]


def design(runs: Sequence[Run], quantity: str) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names of the parameters, the matrix of their effects, and the ratios of the runs."""
    models = sorted({run.job.model.name for run in runs})
    names = (*(f.name for f in FACTORS[quantity]), *(MODEL + name for name in models))
    own = np.array([[float(run.job.model.name == name) for name in models] for run in runs])
    return names, np.hstack([np.array([run.effects[quantity] for run in runs]), own]), _ratios(runs, quantity)


def _ratios(runs: Sequence[Run], quantity: str) -> np.ndarray:
    return np.array([run.ratios[quantity] for run in runs])


def spreads(names: Sequence[str]) -> np.ndarray:
    """The standard deviation of each parameter before any run."""
    return np.array([MODEL_SPREAD.value if name.startswith(MODEL) else FACTOR_SPREAD.value for name in names])


def calibrated_spreads(job: Job) -> dict[str, float]:
    """Factor → its spread where a user's own logs have fixed it already: the error of that fit.

    `hw calibrate` and `learn` write into one overlay; what both determine is weighed by its error.
    """
    db, shipped = job.context.db, job.context.db.shipped()
    if shipped is db:
        return {}
    device, found = job.cluster.device, {}
    for factor, table in (("products", "gemm"), ("attention", "attention")):
        own = calibration_rows(device, job.cells["precision"], table, db)[:1]
        usual = calibration_rows(device, job.cells["precision"], table, shipped)[:1]
        if own and own != usual:
            found[factor] = own[0].texts.get("heldout_error") or own[0].texts.get("fit_error") or ""
    links, before = calibration(job.cluster, db), calibration(job.cluster, shipped)
    for factor, constant in (("link", "link_efficiency"), ("network", "network_efficiency")):
        if links[constant] != before[constant]:
            found[factor] = str(links[constant].error_held_out or links[constant].error_fit or "")
    return {
        name: min(max(float(text), LEAST_SPREAD.value), FACTOR_SPREAD.value) for name, text in found.items() if text
    }


@dataclass(frozen=True)
class Fit:
    """Mean, covariance and variance of the noise of one fit, and the weights of its runs."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    weights: np.ndarray


def _fitted(matrix: np.ndarray, ratios: np.ndarray, spread: np.ndarray) -> Fit:
    """The posterior for known spreads, by reweighted least squares."""
    count = len(ratios)
    weights, noise = np.ones(count), NOISE.value**2
    for _ in range(ROUNDS):
        # Of as many parameters as there are runs at most: (D⁻¹ + XᵀWX/s²)⁻¹ by the runs' own matrix.
        scaled = matrix * spread**2
        within = scaled @ matrix.T + np.diag(noise / weights)
        gain = np.linalg.solve(within, scaled).T
        mean = gain @ ratios
        covariance = np.diag(spread**2) - gain @ scaled
        rest = ratios - matrix @ mean
        known = np.einsum("ij,jk,ik->i", matrix, covariance, matrix)
        noise = (NOISE_RUNS * NOISE.value**2 + float(np.sum(weights * (rest**2 + known)))) / (NOISE_RUNS + count)
        weights = (FREEDOM + 1) / (FREEDOM + rest**2 / noise)
    return Fit(mean, covariance, noise, weights)


def _likelihood(matrix: np.ndarray, ratios: np.ndarray, spread: np.ndarray, weights: np.ndarray) -> float:
    """ln of how likely the runs are, their noise not known, up to a constant."""
    within = np.diag(1 / weights) + (matrix * (spread / NOISE.value) ** 2) @ matrix.T
    distance = float(ratios @ np.linalg.solve(within, ratios)) / NOISE.value**2
    _, logarithm = np.linalg.slogdet(within)
    return -0.5 * float(logarithm) - 0.5 * (NOISE_RUNS + len(ratios)) * math.log(NOISE_RUNS + distance)


def fit(matrix: np.ndarray, ratios: np.ndarray, spread: np.ndarray) -> Fit:
    """The average of the fits with each multiple of the spreads, weighed by how likely it makes the runs."""
    fits = [_fitted(matrix, ratios, spread * multiple) for multiple in MULTIPLES]
    likely = np.array(
        [
            _likelihood(matrix, ratios, spread * m, np.minimum(f.weights, 1.0))
            for m, f in zip(MULTIPLES, fits, strict=True)
        ]
    )
    shares = np.exp(likely - likely.max())
    shares /= shares.sum()
    mean = sum((s * f.mean for s, f in zip(shares, fits, strict=True)), np.zeros(len(spread)))
    covariance = np.zeros((len(spread), len(spread)))
    for share, one in zip(shares, fits, strict=True):
        covariance += share * (one.covariance + np.outer(one.mean - mean, one.mean - mean))
    noise = float(sum(s * f.noise for s, f in zip(shares, fits, strict=True)))
    weights = sum((s * f.weights for s, f in zip(shares, fits, strict=True)), np.zeros(len(ratios)))
    return Fit(mean, covariance, noise, weights)


def learn(runs: Sequence[Run]) -> list[Learned]:
    """What the runs say, by GPU and quantity."""
    found = []
    for gpu in sorted({run.job.cluster.device.key for run in runs}):
        for quantity in FACTORS:
            own = [r for r in runs if r.job.cluster.device.key == gpu and quantity in r.ratios]
            if own:
                found.append(_learned(gpu, quantity, own))
    return found


def _median_error(logs: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(-logs))))


def _learned(gpu: str, quantity: str, runs: Sequence[Run]) -> Learned:
    names, matrix, ratios = design(runs, quantity)
    fixed = calibrated_spreads(runs[0].job)
    spread = np.array([fixed.get(name, usual) for name, usual in zip(names, spreads(names), strict=True)])
    whole = fit(matrix, ratios, spread)
    deviations = np.sqrt(np.diag(whole.covariance))
    factors = len(FACTORS[quantity])
    rest = ratios - matrix @ whole.mean
    wild = tuple(
        f"{run.place}: {math.exp(abs(left)):.3g} × {'more' if left > 0 else 'less'} than the other runs imply"
        for run, left, weight in zip(runs, rest, whole.weights, strict=True)
        if weight < DISAGREES and abs(left) > 2 * math.sqrt(whole.noise)
    )
    told = np.abs(whole.mean) > deviations
    unknown = tuple(names[i] for i in range(factors) if deviations[i] > UNKNOWN * spread[i] and not told[i])
    tied = tuple(
        (names[i], names[j])
        for i in range(factors)
        for j in range(i + 1, factors)
        if whole.covariance[i, j] < -0.6 * deviations[i] * deviations[j]
    )
    posterior = Posterior(names, whole.mean, whole.covariance, whole.noise, MODEL_SPREAD.value, len(runs))
    before = _median_error(ratios)
    return Learned(gpu, quantity, posterior, before, _left_out(matrix, ratios, spread), wild, unknown, tied)


def _left_out(matrix: np.ndarray, ratios: np.ndarray, spread: np.ndarray) -> float | None:
    """The median error of runs predicted from the others; None for a lone run."""
    count = len(ratios)
    if count < 2:
        return None
    parts = np.arange(count) % min(count, FOLDS)
    rest = np.empty(count)
    for part in range(int(parts.max()) + 1):
        out = parts == part
        rest[out] = ratios[out] - matrix[out] @ fit(matrix[~out], ratios[~out], spread).mean
    return _median_error(rest)


def sentences(one: Learned) -> list[str]:
    """What was learned, in words."""
    found = []
    known = dict(zip(one.posterior.names, one.posterior.mean, strict=True))
    doubts = dict(zip(one.posterior.names, np.sqrt(np.diag(one.posterior.covariance)), strict=True))
    for factor in FACTORS[one.quantity]:
        shift, doubt = float(known[factor.name]), float(doubts[factor.name])
        if abs(shift) >= TOLD and abs(shift) > doubt:
            said = factor.more if shift > 0 else factor.less
            low, high = sorted((math.exp(abs(shift) - doubt), math.exp(abs(shift) + doubt)))
            found.append(f"{said}: {math.exp(abs(shift)):.2f} × ({low:.2f} to {high:.2f})")
    what = "slower" if one.quantity == TIME_BAND else "larger"
    other = "faster" if one.quantity == TIME_BAND else "smaller"
    for name, shift in known.items():
        if name.startswith(MODEL) and abs(shift) >= TOLD:
            said = what if shift > 0 else other
            found.append(
                f"{name.removeprefix(MODEL)} is {said} than its terms say: {math.exp(abs(float(shift))):.2f} ×"
            )
    return found or ["nothing beyond the noise of a run differs from the prediction"]


def runs_of(records: Sequence[Mapping[str, str]], context: Context, name: str) -> tuple[list[Run], list[str]]:
    """The runs of a file of rows, and a sentence for each row that cannot be used.

    Raises DataError where no row can.
    """
    if len(records) > MOST_RUNS:
        raise DataError(f"{name}: {len(records):,} rows, at most {MOST_RUNS:,} runs")
    plain = replace(context, learned=False)
    parsed = [parse_row(record) for record in records]
    jobs = resolve_rows([cells for cells, _ in parsed], plain)
    found, problems, seen = [], [], set()
    for number, ((cells, wrong), job) in enumerate(zip(parsed, jobs, strict=True), 1):
        place = f"row {number}"
        values = {
            quantity: value
            for quantity, value in (
                (TIME_BAND, cells.get("measured_step_time_s")),
                (MEMORY_BAND, (cells.get("measured_peak_mem_gib") or 0.0) * GIB),
            )
            if value
        }
        if wrong:
            problems.append(f"{place}: {'; '.join(wrong)}")
        elif isinstance(job, UsageError):
            problems.append(f"{place}: {'; '.join(job.problems)}")
        elif not values:
            problems.append(f"{place}: neither measured_step_time_s nor measured_peak_mem_gib is stated")
        elif (same := tuple(sorted((n, str(v)) for n, v in cells.items()))) not in seen:  # a run told twice is one run
            seen.add(same)
            found.append((place, job, values))
    runs = []
    for run in measured_runs(found):
        farthest = max(run.ratios.values(), key=abs)
        if abs(farthest) <= math.log(FARTHEST):
            runs.append(run)
        else:
            than = "more" if farthest > 0 else "less"
            problems.append(
                f"{run.place}: more than {FARTHEST:,.0f} times {than} than predicted; not a run of this job"
            )
    if not runs:
        reason = problems[0] if problems else "it holds no rows"
        raise DataError(f"{name}: nothing to learn from: {reason}")
    return runs, problems
