"""Where a present job loses its time: which single change of the estimate would explain a measured step.

Each cause changes documented constants within physical bounds, or one cell of the job. What it can reach is the
estimate evaluated again. A difference inside the error band is not a gap, and causes that explain a gap equally well
are told as such.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIGABIT
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.variations import Outcome, Variation, outcomes, time_parts
from gpucalc.questions.causes import Cause, causes_of

GRID = 17  # values of a constant that are tried at a time
PASSES = 2  # each narrows the range to one step of the one before
NO_MEMORY = 0.1  # what is left of a cause's weight when the job would not fit with it
SAME = 0.5  # causes with at least this share of the best weight are not told apart


@dataclass(frozen=True)
class Finding:
    """What a cause can explain of the gap."""

    cause: Cause
    reaches: float  # step time at its bound, or with it
    value: float | None  # the constant that explains the whole gap
    explained: float  # share of the gap, 0 to 1
    weight: float  # relative plausibility: 1 is the best of all
    fit: str

    @property
    def says(self) -> str:
        """The value as people write it."""
        value = self.cause.bound if self.value is None else self.value
        if self.cause.columns is None:
            return ""
        if self.cause.unit == "Gb/s":
            return f"{value / GIGABIT:.3g} Gb/s"
        if self.cause.unit == "GB/s":
            return f"{value / 1e9:.3g} GB/s"
        if self.cause.unit == "ms":
            return f"{value * 1e3:.3g} ms"
        if self.cause.unit == "%":
            return f"{100 * value:.0f} %"
        return f"{value:.3g} {self.cause.unit}".strip()


@dataclass(frozen=True)
class Term:
    """One term of the predicted step, and what it would take with nothing hidden or in the ideal."""

    title: str
    seconds: float
    share: float
    unhidden: float | None
    note: str


@dataclass
class Diagnosis:
    """The measurement beside the prediction, term by term, and what would explain the difference."""

    base: Outcome
    measured: float
    low: float
    high: float
    terms: list[Term]
    findings: list[Finding]
    summary: list[str]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.base.step_time

    @property
    def verdict(self) -> str:
        """slower, faster, or no gap."""
        if self.low <= self.measured <= self.high:
            return "no gap"
        return "slower" if self.measured > self.high else "faster"


def diagnose(context: Context, cells: Mapping[str, Any], measured: float) -> Diagnosis:
    """Compare a measured step time with the estimate of the job, and rank what would explain the difference."""
    job = jobs.resolve({name: value for name, value in cells.items() if value is not None}, context)
    base = outcomes([(Variation("", "as stated"), job)])[0]
    low, high = base.row["pred_step_time_low_s"], base.row["pred_step_time_high_s"]
    spread = max(math.log(high / low) / 2 / 1.2816, 0.01)  # an 80 % band reaches 1.28 standard deviations
    slower = measured > base.step_time
    causes = causes_of(job, slower, measured - base.step_time)
    findings = _ranked(base, causes, measured, spread)
    found = Diagnosis(base, measured, low, high, _terms(base), findings, [])
    found.summary = _summary(found)
    return found


# --- what they explain ------------------------------------------------------------------------------------


def _ranked(base: Outcome, causes: Sequence[Cause], measured: float, spread: float) -> list[Finding]:
    ranging = [cause for cause in causes if cause.columns is not None]
    places = _places(base, ranging, measured)
    findings = []
    for cause, (place, reached, fit) in zip(ranging, places, strict=True):
        findings.append(_finding(base, cause, place, reached, fit, measured, spread))
    varied = []
    chosen = []
    for cause in causes:
        if cause.columns is not None:
            continue
        try:
            changed = jobs.resolve({**base.job.cells, **cause.cells}, base.job.context)
        except UsageError:
            continue
        chosen.append(cause)
        varied.append((Variation("cause", cause.key), changed))
    for cause, outcome in zip(chosen, outcomes(varied), strict=True):
        findings.append(_finding(base, cause, None, outcome.step_time, outcome.fit, measured, spread))
    gap = abs(measured - base.step_time)
    findings = [f for f in findings if abs(f.reaches - base.step_time) > 0.02 * gap and f.explained > 0]
    best = max((f.weight for f in findings), default=1.0) or 1.0
    findings = [dataclasses.replace(f, weight=f.weight / best) for f in findings]
    return sorted(findings, key=lambda f: (-round(f.weight, 6), -f.explained, f.cause.key))


def _places(base: Outcome, causes: Sequence[Cause], measured: float) -> list[tuple[float | None, float, str]]:
    """For each ranging cause: where the step takes as long as measured (None: nowhere), its reach, and the fit."""
    bounds = [(0.0, 1.0)] * len(causes)
    result: list[tuple[float | None, float, str]] = [(None, base.step_time, base.fit)] * len(causes)
    for turn in range(PASSES):
        varied = []
        for cause, (low, high) in zip(causes, bounds, strict=True):
            assert cause.columns is not None
            for i in range(GRID):
                columns = cause.columns(cause.at(low + (high - low) * i / (GRID - 1)))
                job = dataclasses.replace(base.job, columns={**base.job.columns, **columns})
                varied.append((Variation("cause", cause.key), job))
        found = outcomes(varied)
        for index in range(len(causes)):
            mine = found[index * GRID : (index + 1) * GRID]
            times = [o.step_time for o in mine]
            if turn == 0:
                result[index] = (None, times[-1], mine[-1].fit)
            crossing = next(
                (i for i in range(GRID - 1) if min(times[i : i + 2]) <= measured <= max(times[i : i + 2])), None
            )
            if crossing is None:
                continue
            low, high = bounds[index]
            step = (high - low) / (GRID - 1)
            inside = (measured - times[crossing]) / (times[crossing + 1] - times[crossing] or 1.0)
            place = low + step * (crossing + inside)
            bounds[index] = (low + step * crossing, low + step * (crossing + 1))
            result[index] = (place, result[index][1], mine[crossing].fit)
    return result


def _finding(
    base: Outcome, cause: Cause, place: float | None, reached: float, fit: str, measured: float, spread: float
) -> Finding:
    """Weight = prior × how well what is left of the gap agrees with the band × how far the constant is stretched."""
    gap = measured - base.step_time
    explained = 1.0 if place is not None else max(0.0, min(1.0, (reached - base.step_time) / gap)) if gap else 0.0
    rest = 0.0 if place is not None else math.log(measured / reached)
    if place is None and gap and (reached - base.step_time) / gap > 1:
        explained = 1.0
    stretch = 1.0 if place is None and cause.columns is not None else place or 0.0
    weight = cause.prior * math.exp(-((rest / spread) ** 2) / 2) * math.exp(-2 * stretch**2)
    if fit == "oom" and base.fit != "oom":
        weight *= NO_MEMORY
    return Finding(cause, reached, None if place is None else cause.at(place), explained, weight, fit)


def _terms(base: Outcome) -> list[Term]:
    """Every term of the step, the largest first, with what it would take unhidden."""
    unhidden = {
        "time/tp/exposed": "communication/tp",
        "time/cp/exposed": "communication/cp",
        "time/ep/exposed": "communication/ep",
        "time/dp/exposed": "communication/dp",
        "time/fsdp/exposed": "communication/dp",
        "time/pp/p2p": "communication/pp",
    }
    zero3 = base.job.cells["zero_stage"] >= 3
    found = []
    for path, title in time_parts().items():
        seconds = base.terms.get(path, 0.0)
        whole = base.terms.get(unhidden.get(path, ""))
        if path in {"time/dp/exposed", "time/fsdp/exposed"} and zero3 == (path == "time/dp/exposed"):
            whole = None
        if seconds <= 0 and not whole:
            continue
        note = ""
        if whole:
            note = f"{100 * max(0.0, 1 - seconds / whole):.0f} % of {whole:.3g} s is hidden"
        found.append(Term(title, seconds, seconds / base.step_time, whole, note))
    return sorted(found, key=lambda term: -term.seconds)


def _summary(found: Diagnosis) -> list[str]:
    base, measured = found.base, found.measured
    percent = 100 * (found.ratio - 1)
    lines = [
        f"measured {measured:.4g} s, predicted {base.step_time:.4g} s: {percent:+.1f} %; the 80 % band of the "
        f"prediction is {found.low:.4g} to {found.high:.4g} s"
    ]
    ideal = base.terms["bounds/lower"]
    if measured < ideal:
        lines.append(
            f"the measurement is below the {ideal:.4g} s that the work takes with all communication hidden: "
            "check that it is one whole step of the stated batch and sequence"
        )
    if found.verdict == "no gap":
        lines.append(
            "there is no gap: the difference lies inside the band, and no cause can be told from the error of the "
            "prediction; what the causes could explain is listed for orientation"
        )
        return lines
    best = [f for f in found.findings if f.weight >= SAME and f.explained > 0.5]
    if not best:
        lines.append(
            "no single change of a constant within its bounds explains the gap: suspect several at once, or a job that "
            "differs from what was stated (batch, sequence, GPUs, model)"
        )
    elif len(best) == 1:
        lines.append(f"most plausible: {best[0].cause.title}" + (f" ({best[0].says})" if best[0].says else ""))
    else:
        names = "; ".join(f.cause.title + (f" ({f.says})" if f.says else "") for f in best[:5])
        names += f"; and {len(best) - 5} more" if len(best) > 5 else ""
        lines.append(
            f"{len(best)} causes explain it about equally well, and this measurement cannot tell them apart: {names}"
        )
    for one in best[:3]:
        lines.append(f"to check: {one.cause.check}")
    return lines
