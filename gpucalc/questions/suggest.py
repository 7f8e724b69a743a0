"""Which short runs would tell most about the order of a job's layouts, before any is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucalc.core.columns import parse_row
from gpucalc.core.rows import text_record
from gpucalc.database.tables import TIME_BAND
from gpucalc.jobs import learned
from gpucalc.jobs.training import resolve, stack
from gpucalc.questions.learn import MODEL_SPREAD, NOISE, spreads

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context

CANDIDATES = 60  # layouts, the fastest first, of which runs are chosen
RANKED = 20  # layouts whose order is to become sure
MOST = 20


@dataclass(frozen=True)
class Suggestion:
    """Runs to make, in the order of their worth, and how unsure the order of the fastest layouts is around them.

    The doubts are one standard deviation of a layout's time over that of the fastest, before any run and after each.
    """

    rows: list[dict[str, Any]]
    doubts: list[float]


def suggest(cells: Mapping[str, Any], context: Context, count: int) -> Suggestion:
    """The `count` layouts of a job whose measured times would reduce the doubt about the ranking most.

    Greedy: each next run is the one after which the differences between the fastest layouts vary least, if factors and
    noise are spread as `questions.learn` says (or as an overlay has learned). Raises UsageError as `plan` does; no rows
    where no layout fits.
    """
    from gpucalc.questions.plan import plan

    rows = plan(cells, context, top=CANDIDATES).rows
    if not rows:
        return Suggestion([], [])
    jobs = [resolve(parse_row(text_record(row))[0], context) for row in rows]
    _, matrix = learned.effects(stack(jobs), len(jobs), TIME_BAND)
    factors = [factor.name for factor in learned.FACTORS[TIME_BAND]]
    known = learned.posterior(context.db, jobs[0].cluster.device.key, TIME_BAND)
    size = len(factors)
    covariance = np.diag(spreads(factors) ** 2) if known is None else known.covariance[:size, :size]
    noise = NOISE.value**2 + MODEL_SPREAD.value**2 if known is None else known.noise
    contrast = matrix[:RANKED] - matrix[0]
    doubts = [_doubt(contrast, covariance)]
    chosen: list[int] = []
    for _ in range(min(count, len(rows))):
        after = {i: _observed(covariance, matrix[i], noise) for i in range(len(rows)) if i not in chosen}
        best = min(after, key=lambda i: _doubt(contrast, after[i]))
        covariance = after[best]
        chosen.append(best)
        doubts.append(_doubt(contrast, covariance))
    return Suggestion([rows[i] for i in chosen], doubts)


def _observed(covariance: np.ndarray, effects: np.ndarray, noise: float) -> np.ndarray:
    """The covariance once a run with these effects is measured."""
    along = covariance @ effects
    return covariance - np.outer(along, along) / (noise + float(effects @ along))


def _doubt(contrast: np.ndarray, covariance: np.ndarray) -> float:
    if len(contrast) < 2:
        return 0.0
    variances = np.einsum("ij,jk,ik->i", contrast[1:], covariance, contrast[1:])
    return math.sqrt(max(float(np.mean(variances)), 0.0))
