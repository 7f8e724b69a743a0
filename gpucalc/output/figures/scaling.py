"""Scaling over numbers of GPUs as a picture: throughput beside the ideal, efficiency, and the step by term."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.output.figures.canvas import COLOURS, GREY, MARKERS, grid, new_figure, settings, time_scale
from gpucalc.output.figures.parts import NEGLIGIBLE, TIME, TIME_STYLES

_SHARE = re.compile(r"share_(.+)_pct")
# Term of a `share_…_pct` column → what the legend calls it, and its style.
TERMS = {
    "work": ("work", TIME_STYLES["matrix products"]),
    "recompute": ("recomputation", TIME_STYLES["recomputation"]),
    "host": ("host", TIME_STYLES["host launches"]),
    "tp": ("tensor parallel traffic", TIME_STYLES["tensor parallel traffic"]),
    "cp": ("context parallel traffic", TIME_STYLES["context parallel traffic"]),
    "ep": ("expert parallel traffic", TIME_STYLES["expert parallel traffic"]),
    "pp_bubble": ("pipeline bubble", TIME_STYLES["pipeline bubble"]),
    "pp_transfer": ("pipeline transfers", TIME_STYLES["pipeline transfers"]),
    "dp": ("sharding and gradients", TIME_STYLES["sharding and gradients"]),
    "optimizer": ("optimizer", TIME_STYLES["optimizer"]),
    "stragglers": ("stragglers", TIME_STYLES["stragglers"]),
}


def scaling_figure(frame: Any, title: str = "") -> Any:
    """The figure of a scaling curve.

    `frame` is a DataFrame or a sequence of mappings with the columns of `gpucalc scale`: one row for each number of
    GPUs, with `n_gpus`, `pred_step_time_s` and `pred_tokens_per_s_per_gpu`; `mode` (strong, weak), where there, makes
    one curve of each value. `efficiency_pct` is drawn where there, else throughput per GPU over that of the fewest
    GPUs. Columns `time/…` of the ledger, or else `share_…_pct`, are drawn as shares of the step.
    """
    rows = _records(frame)
    modes = list(dict.fromkeys(str(row.get("mode") or "") for row in rows))
    curves = {mode: [row for row in rows if str(row.get("mode") or "") == mode] for mode in modes}
    shared = [
        mode for mode in modes if any(name.startswith("time/") or _SHARE.fullmatch(name) for name in curves[mode][0])
    ]
    with settings():
        figure = new_figure(10.0 + 4.0 * len(shared), 4.6)
        plots = figure.subplots(1, 2 + len(shared))
        for place, (mode, curve) in enumerate(curves.items()):
            _curve(plots[0], plots[1], curve, mode, place)
        counts = sorted({int(row["n_gpus"]) for row in rows})
        for axes in plots[:2]:
            axes.set_xscale("log", base=2)
            _count_ticks(axes, counts)
            grid(axes)
        plots[0].set(yscale="log", ylabel="tokens per second", title="Throughput; grey: ideal")
        highest = max(100.0, plots[1].dataLim.y1)
        plots[1].set(ylabel="efficiency [%]", title="Efficiency", ylim=(0, 1.08 * highest))
        plots[0].legend(loc="upper left")
        for axes, mode in zip(plots[2:], shared, strict=True):
            _shares(axes, curves[mode], mode, legend=mode == shared[-1])
        if title:
            figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _records(frame: Any) -> list[dict[str, Any]]:
    found: Iterable[Mapping[str, Any]] = frame.to_dict("records") if hasattr(frame, "to_dict") else frame
    rows = [dict(row) for row in found]
    needed = ("n_gpus", "pred_step_time_s", "pred_tokens_per_s_per_gpu")
    rows = [row for row in rows if all(row.get(name) not in {None, ""} for name in needed)]
    if not rows:
        raise UsageError("--plot: no number of GPUs has a prediction")
    return sorted(rows, key=lambda row: int(row["n_gpus"]))


def _curve(throughput: Any, efficiency: Any, curve: list[dict[str, Any]], mode: str, place: int) -> None:
    counts = [int(row["n_gpus"]) for row in curve]
    each = [float(row["pred_tokens_per_s_per_gpu"]) for row in curve]
    stated = [row.get("efficiency_pct") for row in curve]
    whole = all(value is not None and value != "" for value in stated)
    percent = [float(value or 0) for value in stated] if whole else [100 * value / each[0] for value in each]
    style = {"color": COLOURS[place], "marker": MARKERS[place], "markersize": 5}
    throughput.plot(
        counts, [n * rate for n, rate in zip(counts, each, strict=True)], label=mode or "predicted", **style
    )
    throughput.plot(counts, [n * each[0] for n in counts], color=GREY, linewidth=0.9, linestyle="--", zorder=1)
    efficiency.plot(counts, percent, **style)
    last = f"{percent[-1]:.0f} %"
    below = efficiency.texts and percent[-1] < efficiency.texts[-1].xy[1]  # the lower curve's stands below it
    if efficiency.texts and not below:
        efficiency.texts[-1].set_position((0, -13))
    efficiency.annotate(
        last,
        (counts[-1], percent[-1]),
        (0, -13 if below else 6),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )


def _count_ticks(axes: Any, counts: list[int]) -> None:
    shown = counts[:: max(1, -(-len(counts) // 8))]
    axes.set_xticks(shown, [f"{n:,}" for n in shown], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("GPUs")


def _shares(axes: Any, curve: list[dict[str, Any]], mode: str, *, legend: bool) -> None:
    """Shares of the step by term, stacked over the numbers of GPUs."""
    names = [f"{int(row['n_gpus']):,}" for row in curve]
    bottom = [0.0] * len(curve)
    for title, ((colour, hatch), values) in _terms(curve).items():
        axes.bar(names, values, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=title)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    divisor, unit = time_scale(float(curve[-1]["pred_step_time_s"]))
    last = f"{float(curve[-1]['pred_step_time_s']) / divisor:.3g} {unit} on {names[-1]}"
    axes.set(xlabel="GPUs", ylabel="share of the step [%]", title=f"{mode.capitalize() or 'Step'} by term; {last}")
    axes.tick_params(axis="x", labelsize=8, rotation=45 if len(names) > 6 else 0)
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes, reverse=True)


def _terms(curve: list[dict[str, Any]]) -> dict[str, tuple[tuple[str, str], list[float]]]:
    """Title → style and percent of the step for each number of GPUs: of the ledger's times, else of the shares."""
    if any(name.startswith("time/") for name in curve[0]):
        found = {
            title: (
                TIME_STYLES[title],
                [100 * sum(float(row.get(p) or 0) for p in paths) / float(row["pred_step_time_s"]) for row in curve],
            )
            for title, paths in TIME.items()
        }
    else:
        found = {}
        for place, column in enumerate(name for name in curve[0] if _SHARE.fullmatch(name)):
            term = column.removeprefix("share_").removesuffix("_pct")
            title, style = TERMS.get(term, (term.replace("_", " "), (COLOURS[place % len(COLOURS)], "...")))
            found[title] = (style, [float(row.get(column) or 0) for row in curve])
    return {title: (style, values) for title, (style, values) in found.items() if max(values) > 100 * NEGLIGIBLE}
