"""The report of a validation: plain rows and numbers, ready to be rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.validate.metrics import balanced, errors_of, fit_quality, grouped, rankings, share, trusted_timed, views_of
from gpucalc.validate.targets import achieved, best_within, mean_loss, pairs_right
from gpucalc.validate.training import FAMILY_TITLES, SHIPPED, Checked

Line = dict[str, Any]


def percent(value: float | None) -> float | None:
    """A share in percent."""
    return None if value is None else 100 * value


def time_line(group: str, rows: Sequence[Checked], views: Sequence[str]) -> Line:
    """Errors of the step times of a group; those of held-out predictions beside them."""
    timed = [r for r in rows if r.measured_s]
    line: Line = {
        "group": group,
        "rows": len(timed),
        "unpredicted": sum(r.seconds(SHIPPED) is None for r in timed),
    }
    for view in views:
        found = errors_of(r.ratio(view) for r in timed)
        prefix = "" if view == SHIPPED else f"{view}_"
        line[f"{prefix}median_pct"] = percent(found.median)
        line[f"{prefix}p90_pct"] = percent(found.p90)
        line[f"{prefix}bias_pct"] = percent(found.bias)
        line[f"{prefix}inside_pct"] = percent(share(r.inside(view) for r in timed))
    return line


def grouping(rows: Sequence[Checked], by: str, views: Sequence[str]) -> list[Line]:
    """One line a group, the largest first (families in their own order)."""
    found = grouped(rows, by)
    names = sorted(found, key=lambda n: (-len(found[n]), n))
    if by == "family":
        order = list(FAMILY_TITLES)
        names = sorted(found, key=lambda n: order.index(n) if n in order else len(order))
    lines = [time_line(FAMILY_TITLES.get(n, n) if by == "family" else n, found[n], views) for n in names]
    return [line for line in lines if line["rows"]]


def memory_lines(rows: Sequence[Checked], views: Sequence[str]) -> list[Line]:
    """Errors of the peak memory by counter, trusted rows."""
    measured = [r for r in rows if r.measured_gib and r.trusted]
    stated = [r for r in measured if r.counter != "not stated"]
    groups: dict[str, list[Checked]] = {"all with a stated counter": stated} if stated else {}
    for row in measured:
        groups.setdefault(f"counter {row.counter}", []).append(row)
    for row in stated:
        groups.setdefault(row.source, []).append(row)
    if len({r.source for r in stated}) == 1:
        groups.pop(stated[0].source)
    lines = []
    for name, members in groups.items():
        line: Line = {"group": name, "rows": len(members), "unpredicted": sum(r.job is None for r in members)}
        for view in views:
            found = errors_of(r.memory_ratio(view) for r in members)
            prefix = "" if view == SHIPPED else f"{view}_"
            line |= {
                f"{prefix}median_pct": percent(found.median),
                f"{prefix}p90_pct": percent(found.p90),
                f"{prefix}bias_pct": percent(found.bias),
            }
        lines.append(line)
    return lines


def fit_lines(rows: Sequence[Checked], views: Sequence[str]) -> list[Line]:
    """Fits against does not fit, by view; trusted rows."""
    lines = []
    for view in views:
        found = fit_quality([r for r in rows if r.trusted], view)
        if found.fitting + found.oom:
            lines.append(
                {
                    "group": view,
                    "rows": found.fitting + found.oom,
                    "ran": found.fitting,
                    "ran_and_fits": found.fitting_right,
                    "ran_and_risky": found.fitting_risky,
                    "ended_oom": found.oom,
                    "ended_oom_and_oom": found.oom_right,
                    "ended_oom_and_risky": found.oom_risky,
                    "balanced_pct": percent(found.balanced),
                    "oom_found_pct": percent(found.oom_found),
                }
            )
    return lines


def ranking_lines(groups: Mapping[str, Sequence[Checked]], views: Sequence[str]) -> list[Line]:
    """The order inside groups, one line a group, the sums first."""
    lines: list[Line] = []
    for view in views:
        for trusted_only in (True, False):
            found = rankings(groups, view, trusted_only)
            if not found or (not trusted_only and sum(g.rows for g in found) == lines[-1]["rows"]):
                continue
            lines.append(
                {
                    "group": f"{len(found)} groups, {'trusted' if trusted_only else 'all'} rows, {view}",
                    "rows": sum(g.rows for g in found),
                    "pairs": sum(g.pairs for g in found),
                    "right_pct": percent(pairs_right(found)),
                    "mean_loss_pct": percent(mean_loss(found)),
                    "best_within_3_pct": percent(best_within(found)),
                }
            )
    for g in rankings(groups, trusted_only=False):
        right = g.right / g.pairs if g.pairs else None
        lines.append(
            {"group": g.group, "rows": g.rows, "pairs": g.pairs, "right_pct": percent(right),
             "mean_loss_pct": percent(g.loss), "best_within_3_pct": None}
        )  # fmt: skip
    return lines


def worst_lines(rows: Sequence[Checked], count: int) -> list[Line]:
    """The rows that are farthest off, trusted ones; the reason where the row's notes give one."""
    timed = [r for r in trusted_timed(rows) if r.ratio()]
    timed.sort(key=lambda r: -abs((r.ratio() or 1) - 1))
    return [
        {
            "id": r.identity,
            "source": r.source,
            "model": r.record.get("model") or "",
            "gpu": r.job.cluster.device.key if r.job else "",
            "measured_step_time_s": r.measured_s,
            "pred_step_time_s": r.seconds(SHIPPED),
            "error_pct": percent((r.ratio() or 1) - 1),
            "notes": r.record.get("notes") or "",
        }
        for r in timed[:count]
    ]


def unpredicted_lines(rows: Sequence[Checked]) -> list[Line]:
    """Rows without a prediction and why."""
    return [
        {"id": r.identity, "source": r.source, "trusted": r.trusted, "pred_error": r.error} for r in rows if not r.job
    ]


def report(
    rows: Sequence[Checked],
    groups: Mapping[str, Sequence[Checked]],
    by: Sequence[str] = ("source", "family"),
    worst: int = 10,
    with_targets: bool = True,
) -> Line:
    """All sections of the report."""
    views = views_of(rows)
    trusted, doubted = [r for r in rows if r.trusted], [r for r in rows if not r.trusted]
    found: Line = {
        "rows": len(rows),
        "timed": sum(bool(r.measured_s) for r in rows),
        "trusted_timed": len(trusted_timed(rows)),
        "unpredicted": sum(r.job is None for r in rows),
        "balanced_pct": {view: percent(balanced(rows, view)) for view in views},
        "all": [time_line("all trusted rows", trusted, views)] if trusted_timed(rows) else [],
    }
    for name in by:
        found[f"by_{name}"] = grouping(trusted, name, views)
    found["not_trusted"] = grouping(doubted, "source", (SHIPPED,))
    found["memory"] = memory_lines(rows, views)
    found["fit"] = fit_lines(rows, views)
    found["ranking"] = ranking_lines(groups, views)
    found["worst"] = worst_lines(rows, worst)
    found["no_prediction"] = unpredicted_lines(rows)
    found["targets"] = achieved(rows, groups, views) if with_targets else []
    return found
