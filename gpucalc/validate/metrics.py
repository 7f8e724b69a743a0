"""Errors of groups of rows: times, memory, fit, ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.columns import INPUT
from gpucalc.layouts.axes import AXES
from gpucalc.validate.training import SHIPPED, VIEWS, Checked

MINIMUM_ROWS = 5  # of a source, to count in the balanced figure
CLEAR_DIFFERENCE = 0.03  # measurements closer than that have no order


@dataclass(frozen=True)
class Errors:
    """Error statistics of predicted / measured ratios."""

    rows: int
    median: float | None  # of |ratio − 1|
    p90: float | None
    bias: float | None  # median of ratio − 1


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile, linear between the sorted values.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5), quantile([0.0, 1.0], 0.9), quantile([7.0], 0.1)
    (2.5, 0.9, 7.0)
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def errors_of(ratios: Iterable[float | None]) -> Errors:
    """Statistics of the ratios that are there.

    >>> errors_of([1.1, 0.8, None, 1.0])
    Errors(rows=3, median=0.10000000000000009, p90=0.18, bias=0.0)
    """
    found = [r - 1 for r in ratios if r is not None]
    if not found:
        return Errors(0, None, None, None)
    sizes = [abs(e) for e in found]
    return Errors(len(found), quantile(sizes, 0.5), quantile(sizes, 0.9), quantile(found, 0.5))


def share(answers: Iterable[bool | None]) -> float | None:
    """Share of yes among the answers that are there."""
    found = [a for a in answers if a is not None]
    return sum(found) / len(found) if found else None


def grouped(rows: Iterable[Checked], by: str) -> dict[str, list[Checked]]:
    """Rows by source, family, gpu or framework; a row of several families is in each of them."""
    keys: dict[str, Callable[[Checked], tuple[str, ...]]] = {
        "source": lambda r: (r.source,),
        "family": lambda r: r.families or ("not evaluated",),
        "gpu": lambda r: (r.job.cluster.device.key if r.job else r.record.get("gpu") or "not stated",),
        "framework": lambda r: (r.record.get("framework") or "not stated",),
    }
    found: dict[str, list[Checked]] = {}
    for row in rows:
        for key in keys[by](row):
            found.setdefault(key, []).append(row)
    return found


GROUPINGS = ("source", "family", "gpu", "framework")


def trusted_timed(rows: Iterable[Checked]) -> list[Checked]:
    """Rows with a measured time that state all that decides it."""
    return [r for r in rows if r.measured_s and r.trusted]


def balanced(rows: Iterable[Checked], view: str = SHIPPED) -> float | None:
    """Mean over sources with five or more trusted timed rows of their median absolute error."""
    medians = []
    for members in grouped(trusted_timed(rows), "source").values():
        found = errors_of(r.ratio(view) for r in members)
        if len(members) >= MINIMUM_ROWS and found.median is not None:
            medians.append(found.median)
    return sum(medians) / len(medians) if medians else None


def views_of(rows: Iterable[Checked]) -> tuple[str, ...]:
    """The views in which some of the rows are predicted."""
    there = {view for row in rows for view in row.predictions}
    return tuple(view for view in VIEWS if view in there or view == SHIPPED)


@dataclass(frozen=True)
class Fit:
    """How well "fits" and "does not fit" are told apart; risky answers stand apart."""

    fitting: int  # runs that did fit
    fitting_right: int
    fitting_risky: int
    oom: int  # runs that ended out of memory
    oom_right: int
    oom_risky: int

    @property
    def balanced(self) -> float | None:
        """Mean over both classes of the share that is right, risky answers left out."""
        classes = ((self.fitting, self.fitting_right, self.fitting_risky), (self.oom, self.oom_right, self.oom_risky))
        shares = [right / (count - risky) for count, right, risky in classes if count > risky]
        return sum(shares) / len(shares) if shares else None

    @property
    def oom_found(self) -> float | None:
        """Share of the runs out of memory that are predicted so; a risky answer has not found one."""
        return self.oom_right / self.oom if self.oom else None


def fit_quality(rows: Iterable[Checked], view: str = SHIPPED) -> Fit:
    """Predicted fit against what happened; a run with a time or a peak did fit."""
    counts = {True: [0, 0, 0], False: [0, 0, 0]}
    for row in rows:
        found = row.predictions.get(view)
        ran = row.measured_s is not None or row.measured_gib is not None
        if not found or not found.fit or (row.oom is None and not ran):
            continue
        tally = counts[bool(row.oom)]
        tally[0] += 1
        tally[1] += found.fit == ("oom" if row.oom else "fits")
        tally[2] += found.fit == "risky"
    return Fit(*counts[False], *counts[True])


@dataclass(frozen=True)
class Ranking:
    """How layouts of one job are ordered."""

    group: str
    rows: int
    pairs: int  # whose measurements differ by more than 3 %
    right: float  # predicted ties count one half
    loss: float  # measured: best of the group over the one predicted best, minus 1


def rank_group(name: str, measured: Sequence[float], predicted: Sequence[float]) -> Ranking:
    """Order of speeds (larger is better) in one group.

    >>> rank_group("g", [100.0, 90.0, 89.0], [9.0, 10.0, 8.0])
    Ranking(group='g', rows=3, pairs=2, right=1.0, loss=0.11111111111111116)
    """
    pairs, right = 0, 0.0
    for i, one in enumerate(measured):
        for j in range(i):
            if max(one, measured[j]) / min(one, measured[j]) - 1 <= CLEAR_DIFFERENCE:
                continue
            pairs += 1
            order = (predicted[i] - predicted[j]) * (one - measured[j])
            right += 1.0 if order > 0 else 0.5 if order == 0 else 0.0
    chosen = max(range(len(predicted)), key=lambda i: predicted[i])
    return Ranking(name, len(measured), pairs, right, max(measured) / measured[chosen] - 1)


def speed(row: Checked, seconds: float) -> float:
    """Tokens per second and GPU."""
    assert row.job is not None
    cells = row.job.cells
    return float(cells["global_batch"] * cells["seq_len"] / (seconds * row.job.cluster.n_gpus))


def rankings(groups: Mapping[str, Sequence[Checked]], view: str = SHIPPED, trusted_only: bool = True) -> list[Ranking]:
    """The order inside each group of timed rows; what a source leaves out is often the same for a whole group."""
    found = []
    for name, members in groups.items():
        there = [r for r in members if r.measured_s and r.seconds(view) and (r.trusted or not trusted_only)]
        if len(there) < 2:
            continue
        measured = [speed(r, r.measured_s or 0) for r in there]
        found.append(rank_group(name, measured, [speed(r, r.seconds(view) or 0) for r in there]))
    return found


def same_job_groups(rows: Iterable[Checked]) -> dict[str, list[Checked]]:
    """Rows that are one job on one cluster and differ in nothing but layout and batch split."""
    same = [n for n in INPUT if n not in AXES and n not in {"id"} and not n.startswith(("measured_", "mem_"))]
    found: dict[tuple[Any, ...], list[Checked]] = {}
    for row in trusted_timed(rows):
        if row.job:
            key = (row.source, *((row.record.get(n) or "").strip() for n in same))
            found.setdefault(key, []).append(row)
    groups = [members for members in found.values() if len(members) > 1]
    return {f"{i}: {g[0].record.get('model') or 'model'}": g for i, g in enumerate(groups, 1)}


def listed_groups(rows: Iterable[Checked], table: Iterable[Mapping[str, str]]) -> dict[str, list[Checked]]:
    """The groups of a table with the columns group_id, description and row_ids."""
    by_id = {r.identity: r for r in rows}
    return {
        f"{cells['group_id']}: {cells['description']}": [by_id[m] for m in cells["row_ids"].split() if m in by_id]
        for cells in table
    }
