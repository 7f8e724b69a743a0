"""Serving as a picture: tokens per second and user against tokens per second and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.output.figures.canvas import BLUE, ORANGE, grid, new_figure, settings

LABELLED = 8


def serving_figure(
    front: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], job: Mapping[str, Any]
) -> Any:
    """The Pareto front of a serving question and the ranked rows beside it."""
    with settings():
        figure = new_figure(7.5, 4.6)
        axes = figure.subplots()
        x, y = ([r[name] for r in front] for name in ("pred_tok_s_per_user", "pred_tok_s_per_gpu"))
        axes.plot(x, y, color=BLUE, marker="o", markersize=4, label="Pareto front")
        axes.scatter(
            [r["pred_tok_s_per_user"] for r in rows],
            [r["pred_tok_s_per_gpu"] for r in rows],
            color=ORANGE,
            s=22,
            zorder=3,
            label="ranked rows",
        )
        step = max(1, len(front) // LABELLED)
        for row in front[::step]:
            load = f" ×{row['concurrency']:g}" if row.get("concurrency") else ""
            axes.annotate(
                f"{row['layout']}{load}",
                (row["pred_tok_s_per_user"], row["pred_tok_s_per_gpu"]),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
            )
        axes.set_xlabel("output tokens/s of one user")
        axes.set_ylabel("output tokens/s of one GPU")
        axes.set_title(
            f"{job['model']} on {job['gpu']}, {job['isl']:g} in, {job['osl']:g} out", loc="left", fontsize=10
        )
        grid(axes)
        axes.legend(loc="upper right", frameon=False, fontsize=8)
    return figure
