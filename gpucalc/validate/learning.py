"""How much a few runs of a cluster take from the error of its others: `gpucalc validate --learn K`.

Groups of shipped rows share source, model, GPU and precision. Their source is left out of every fit (the predictions
of `calibration/held_out.csv`); K of the rows are then taken as a user's own runs, and the others predicted from them.
The effects of the factors are those of the shipped constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.database.bands import MEMORY, TIME, family_of, half_width
from gpucalc.database.tables import MEMORY_BAND, TIME_BAND
from gpucalc.jobs.context import Context
from gpucalc.jobs.learned import FACTORS, MODEL, QUANTILE, Posterior
from gpucalc.questions import learn
from gpucalc.validate.training import LEFT_OUT, Checked, check_rows, shipped_held_out, shipped_rows

LEAST_ROWS = 8  # of a group with step times
LEAST_PEAKS = 5  # of one with peaks of memory, of which fewer are published
DRAWS = 20
WORSE = (0.1, 0.01)  # a group is made worse where its error grows by a tenth and by a point


def learning_report(db: Any, runs: int) -> dict[str, Any]:
    """The table of `validate --learn`: by quantity and by group, errors without own runs and with `runs` of them."""
    rows = check_rows(shipped_rows(), Context(db, learned=False), shipped_held_out())
    document: dict[str, Any] = {"by_group": [], "all": []}
    for quantity, least in ((TIME_BAND, LEAST_ROWS), (MEMORY_BAND, max(LEAST_PEAKS, runs + 2))):
        found = [
            _scored(quantity, name, members, runs, seed)
            for seed, (name, members) in enumerate(_groups(rows, quantity, least).items())
        ]
        document["by_group"] += found
        if found:
            document["all"].append(_together(quantity, found))
    return document


def _groups(rows: Sequence[Checked], quantity: str, least: int) -> dict[tuple[str, ...], list[Checked]]:
    groups: dict[tuple[str, ...], list[Checked]] = {}
    for row in rows:
        measured, predicted = _pair(row, quantity)
        if row.job is not None and measured and predicted:
            key = (row.record["source"], row.record["model"], row.job.cluster.device.key, row.job.cells["precision"])
            groups.setdefault(key, []).append(row)
    return {key: members for key, members in groups.items() if len(members) >= least}


def _pair(row: Checked, quantity: str) -> tuple[float | None, float | None]:
    view = row.predictions.get(LEFT_OUT)
    if view is None:
        return None, None
    return (row.measured_s, view.seconds) if quantity == TIME_BAND else (row.measured_gib, view.gib)


def _scored(quantity: str, name: tuple[str, ...], members: Sequence[Checked], runs: int, seed: int) -> dict[str, Any]:
    measured = [(str(i), row.job, {quantity: _pair(row, quantity)[0]}) for i, row in enumerate(members)]
    cases = learn.measured_runs(measured)  # type: ignore[arg-type]
    names, matrix, _ = learn.design(cases, quantity)
    ratios = np.array([math.log(a / b) for a, b in (_pair(row, quantity) for row in members) if a and b])
    spread = learn.spreads(names)
    chance = np.random.default_rng(seed)
    factors = len(FACTORS[quantity])
    before, after, inside, widths = [], [], [], []
    for _ in range(DRAWS):
        order = chance.permutation(len(members))
        own, others = order[:runs], order[runs:]
        fitted = learn.fit(matrix[own], ratios[own], spread)
        model = names[-1].removeprefix(MODEL)
        posterior = Posterior(names, fitted.mean, fitted.covariance, fitted.noise, learn.MODEL_SPREAD.value, runs)
        rest = ratios[others] - matrix[others] @ fitted.mean
        half = QUANTILE * np.array([posterior.deviation(matrix[i, :factors], model) for i in others])
        before.append(float(np.median(np.abs(np.expm1(-ratios[others])))))
        after.append(float(np.median(np.abs(np.expm1(-rest)))))
        inside.append(float(np.mean(np.abs(rest) <= half)))
        widths.append(float(np.median(half)))
    return {
        "quantity": "step time" if quantity == TIME_BAND else "peak memory",
        "group": " · ".join(name),
        "rows": len(members),
        "error_before_pct": 100 * float(np.mean(before)),
        "error_after_pct": 100 * float(np.mean(after)),
        "inside_band_pct": 100 * float(np.mean(inside)),
        "half_width_before": _usual_width(quantity, members),
        "half_width": float(np.mean(widths)),
    }


def _usual_width(quantity: str, members: Sequence[Checked]) -> float:
    """Half of the band without own runs, in the logarithm."""
    jobs = [row.job for row in members if row.job is not None]
    name = TIME if quantity == TIME_BAND else MEMORY
    return float(np.median([half_width(job, name, family_of(job)) for job in jobs]))


def _together(quantity: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    before = np.array([one["error_before_pct"] for one in found])
    after = np.array([one["error_after_pct"] for one in found])
    worse = (after > before * (1 + WORSE[0])) & (after > before + 100 * WORSE[1])
    return {
        "quantity": found[0]["quantity"],
        "groups": len(found),
        "error_before_pct": float(before.mean()),
        "error_after_pct": float(after.mean()),
        "ratio": float(after.mean() / before.mean()),
        "groups_made_worse": int(worse.sum()),
        "inside_band_pct": float(np.mean([one["inside_band_pct"] for one in found])),
        "half_width_before": float(np.mean([one["half_width_before"] for one in found])),
        "half_width": float(np.mean([one["half_width"] for one in found])),
    }
