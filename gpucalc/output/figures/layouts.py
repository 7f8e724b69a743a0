"""Ranked layouts as a picture: time and memory by term, and throughput against memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpucalc.core.columns import INPUT
from gpucalc.core.units import GIB
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.output.figures import parts
from gpucalc.output.figures.canvas import (
    BLACK,
    BLUE,
    ORANGE,
    PLATE,
    RED,
    grid,
    new_figure,
    settings,
    stacked_bars,
    time_scale,
)

SHOWN = 12  # bars that can still be read on a page
EXHAUSTIVE = 5_000_000  # enumerated layouts up to which the whole front is looked for: a few seconds
FASTEST = 500


class Front(NamedTuple):
    """Layouts of a Pareto front, and what a legend calls them."""

    rows: Sequence[Mapping[str, Any]] = ()
    name: str = ""


def plan_figure(
    rows: Sequence[Mapping[str, Any]],
    front: Front,
    context: Context,
    title: str = "",
) -> Any:
    """The figure of a plan: the best rows by term, and the rows of the Pareto front.

    `context` must be that of the plan.
    """
    best = list(rows[:SHOWN])
    ledger = row_ledger(best, context)
    with settings():
        figure = new_figure(10.5, 1.9 + 0.34 * len(best) + 3.6)
        bars, below = figure.subfigures(2, 1, height_ratios=[1.5 + 0.34 * len(best), 3.4])
        left, right = bars.subplots(1, 2, sharey=True)
        _times(left, best, ledger)
        _memories(right, best, ledger)
        _front(below.subplots(), best, front)
        if title:
            figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def row_ledger(rows: Sequence[Mapping[str, Any]], context: Context) -> Any:
    """The detailed ledger of rows of a plan, one value per row."""
    found = []
    for row in rows:
        cells = {name: value for name, value in row.items() if name in INPUT and value not in {None, ""}}
        found.append(jobs.resolve(cells, context))
    return estimate_training(jobs.stack(found), detail=True)


def _labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(row["layout"]) for row in rows]


def _times(axes: Any, rows: Sequence[Mapping[str, Any]], ledger: Any) -> None:
    found = parts.time_parts(ledger, len(rows))
    longest = max(float(row["pred_step_time_s"]) for row in rows)
    divisor, unit = time_scale(longest)
    scaled = parts.used({name: values / divisor for name, values in found.items()}, parts.TIME_STYLES)
    stacked_bars(axes, _labels(rows), scaled, parts.TIME_STYLES, "{:.4g}")
    axes.set(xlabel=f"time of one step [{unit}]", title="Time by term")
    _legend(axes, 3)


def _memories(axes: Any, rows: Sequence[Mapping[str, Any]], ledger: Any) -> None:
    found = parts.memory_parts(ledger, len(rows))
    scaled = parts.used({name: values / GIB for name, values in found.items()}, parts.MEMORY_STYLES)
    stacked_bars(axes, _labels(rows), scaled, parts.MEMORY_STYLES, "{:.1f}")
    _limit_line(axes, parts.memory_limit(ledger) / GIB)
    axes.set(xlabel="memory of the fullest GPU [GiB]", title="Memory by term; dashed: full")
    _legend(axes, 3)


def _limit_line(axes: Any, limit: float) -> None:
    axes.axvline(limit, color=RED, linestyle="--", linewidth=1.2)
    axes.set_xlim(0, max(axes.get_xlim()[1], limit * 1.12))


def _legend(axes: Any, columns: int) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes,
        borderaxespad=5.5,  # of the font's size: below the axis and its name, however many bars there are
        ncols=columns,
        handlelength=1.4,
        columnspacing=1.0,
    )


def _front(axes: Any, rows: Sequence[Mapping[str, Any]], front: Front) -> None:
    def points(of: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
        return (
            [float(row["pred_peak_mem_gib"]) for row in of],
            [float(row["pred_tokens_per_s_per_gpu"]) for row in of],
        )

    ordered = sorted(front.rows, key=lambda row: float(row["pred_peak_mem_gib"]))
    if ordered:
        x, y = points(ordered)
        axes.step(x, y, where="post", color=BLUE, linewidth=1, zorder=2)
        axes.scatter(x, y, color=BLUE, s=22, label=front.name, zorder=3)
        for index in sorted({0, len(ordered) // 2, len(ordered) - 1}):
            below = -11.0 if y[index] > 0.2 * max(y) else 2.0  # the lowest point may lie on the axis
            _annotate(axes, x[index], y[index], str(ordered[index]["layout"]), max(x), below)
    x, y = points(rows)
    axes.scatter(
        x, y, facecolors="none", edgecolors=ORANGE, linewidths=1.4, marker="s", s=52, label="the rows above", zorder=4
    )
    axes.set(
        xlabel="memory of the fullest GPU [GiB]",
        ylabel="tokens per second and GPU",
        title="Throughput against memory",
    )
    axes.margins(x=0.05, y=0.16)
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), high)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    grid(axes)
    axes.legend(loc="lower right")


def _annotate(axes: Any, x: float, y: float, text: str, rightmost: float, below: float) -> None:
    right = x > 0.6 * rightmost
    axes.annotate(
        text,
        (x, y),
        (-6, 7) if right else (9, below),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=7.5,
        color=BLACK,
        bbox=PLATE,
        zorder=5,
    )


def pareto_front(
    cells: Mapping[str, Any], context: Context, candidates: int, progress: Callable[[int], None] | None = None
) -> Front:
    """The layouts that no other beats in both step time and memory.

    Where so many are enumerated that evaluating all of them takes long, those of the fastest layouts alone.
    """
    from gpucalc.questions.plan import plan

    if candidates <= EXHAUSTIVE:
        rows = plan(cells, context, objective="pareto", top=FASTEST, progress=progress).rows
        return Front(rows, "Pareto front: no layout beats it in both")
    rows = plan(cells, context, top=FASTEST, progress=progress).rows
    rows.sort(key=lambda row: (row["pred_step_time_s"], row["pred_peak_mem_gib"]))
    found: list[dict[str, Any]] = []
    for row in rows:
        if not found or row["pred_peak_mem_gib"] < found[-1]["pred_peak_mem_gib"]:
            found.append(row)
    return Front(found, f"Pareto front of the {len(rows):,} fastest layouts")
