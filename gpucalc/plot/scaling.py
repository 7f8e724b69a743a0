"""Scaling over numbers of GPUs as a picture: throughput beside the ideal, efficiency, and the step by term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucalc.errors import UsageError
from gpucalc.plot import parts
from gpucalc.plot.canvas import COLOURS, GREY, MARKERS, grid, new_figure, settings, time_scale


def scaling_figure(frame: Any, title: str = "") -> Any:
    """The figure of a scaling curve.

    `frame` is a DataFrame or a sequence of mappings, one row for each number of GPUs, with the columns `n_gpus`,
    `pred_step_time_s` and `pred_tokens_per_s_per_gpu`; `mode` (weak, strong, …), where there, makes one curve of
    each value. `efficiency_pct` is drawn where there, else throughput per GPU over that of the fewest GPUs. Columns
    `time/…` of the ledger, where there, are drawn as shares of the step.
    """
    rows = _records(frame)
    modes = list(dict.fromkeys(str(row.get("mode") or "") for row in rows))
    curves = {mode: [row for row in rows if str(row.get("mode") or "") == mode] for mode in modes}
    terms = any(name.startswith("time/") for row in rows for name in row)
    with settings():
        figure = new_figure(10.5 if not terms else 13.5, 4.6)
        plots = figure.subplots(1, 3 if terms else 2)
        for place, (mode, curve) in enumerate(curves.items()):
            _curve(plots[0], plots[1], curve, mode, place)
        counts = sorted({int(row["n_gpus"]) for row in rows})
        for axes in plots[:2]:
            axes.set_xscale("log", base=2)
            _count_ticks(axes, counts)
            grid(axes)
        plots[0].set(yscale="log", ylabel="tokens per second", title="Throughput; grey: ideal")
        plots[1].set(ylabel="efficiency [%]", title="Efficiency")
        plots[1].set_ylim(0, max(108, 1.08 * plots[1].dataLim.ymax))  # few GPUs short of memory are slower
        plots[0].legend(loc="upper left")
        if terms:
            _shares(plots[2], next(iter(curves.values())), modes[0])
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
    efficiency.annotate(
        last,
        (counts[-1], percent[-1]),
        (0, 6 if place % 2 == 0 else -13),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )


def _count_ticks(axes: Any, counts: list[int]) -> None:
    shown = counts[:: max(1, -(-len(counts) // 8))]
    axes.set_xticks(shown, [f"{n:,}" for n in shown], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("GPUs")


def _shares(axes: Any, curve: list[dict[str, Any]], mode: str) -> None:
    """Shares of the step by term, stacked over the numbers of GPUs."""
    names = [f"{int(row['n_gpus']):,}" for row in curve]
    bottom = [0.0] * len(curve)
    for part, (colour, hatch) in parts.TIME_STYLES.items():
        paths = parts.TIME[part]
        values = [
            100 * sum(float(row.get(path) or 0) for path in paths) / float(row["pred_step_time_s"]) for row in curve
        ]
        if max(values) < 100 * parts.NEGLIGIBLE:
            continue
        axes.bar(names, values, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=part)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    divisor, unit = time_scale(float(curve[-1]["pred_step_time_s"]))
    last = f"step of {float(curve[-1]['pred_step_time_s']) / divisor:.3g} {unit} on {names[-1]}"
    axes.set(xlabel="GPUs", ylabel="share of the step [%]", title=f"By term{f', {mode}' if mode else ''}; {last}")
    axes.tick_params(axis="x", labelsize=8, rotation=45 if len(names) > 8 else 0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes, reverse=True)
