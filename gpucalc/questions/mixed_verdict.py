"""Whether a mixed cluster is worth it: its parts alone, and the comparison in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context
from gpucalc.layouts.axes import searched_axes
from gpucalc.questions.plan import TIE
from gpucalc.questions.plan import plan as plan_alone


def parts_alone(stated: Mapping[str, Any], parts: Mapping[str, int], context: Context) -> list[dict[str, Any]]:
    """The best layout of each kind alone on the same batch; one that fits nowhere has no time.

    A layout stated for the whole cluster is none of a part, so each part is free to choose.
    """
    rows = []
    free = {n: v for n, v in stated.items() if n not in searched_axes()}
    for key, count in parts.items():
        row: dict[str, Any] = {"gpu": key, "n_gpus": count, "layout": "", "pred_step_time_s": None}
        try:
            found = plan_alone({**free, "gpu": key, "n_gpus": count}, context, top=1)
        except UsageError as error:
            row["why"] = "; ".join(error.problems)
        else:
            if found.rows:
                row |= {
                    n: found.rows[0][n]
                    for n in ("layout", "pred_step_time_s", "pred_step_time_low_s", "pred_step_time_high_s")
                }
            else:
                row["why"] = found.nearest_miss or "no layout fits"
        rows.append(row)
    return rows


def verdict(rows: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> str:
    """Is adding the other GPUs worth it?, with how sure that is."""
    timed = [row for row in alone if row["pred_step_time_s"]]
    if not rows:
        return "no uneven layout fits the mixed cluster" + (
            f"; {min(timed, key=lambda r: r['pred_step_time_s'])['gpu']} alone does" if timed else ""
        )
    step = rows[0]["pred_step_time_s"]
    if not timed:
        return "only the mixed cluster holds the job: no part of it does alone"
    best = min(timed, key=lambda r: r["pred_step_time_s"])
    gain = best["pred_step_time_s"] / step
    others = sum(r["n_gpus"] for r in alone if r["gpu"] != best["gpu"])
    mine, alone_time = f"{step:.3f} s", f"{best['pred_step_time_s']:.3f} s"
    said = f"with the other {others} GPUs a step takes {mine}, on {best['n_gpus']} {best['gpu']} alone {alone_time}"
    if abs(gain - 1) <= TIE:
        return f"a tie: {said}; the estimate cannot tell them apart"
    sure = (
        rows[0]["pred_step_time_high_s"] < best["pred_step_time_s"]
        or rows[0]["pred_step_time_low_s"] > best["pred_step_time_s"]
    )
    word = f"worth it: {gain:.2f} times as fast" if gain > 1 else f"not worth it: {1 / gain:.2f} times as slow"
    doubt = "" if sure else "; the bands of the two overlap, so measure before buying or moving anything"
    return f"{word}: {said}{doubt}"
