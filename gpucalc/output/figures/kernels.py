"""A roofline with an operation on it, and a collective over sizes of its message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.output.figures.canvas import BLACK, COLOURS, GREY, MARKERS, PLATE, RED, grid, new_figure, settings

DASHES = ("-", (0, (6, 3)), (0, (3, 2)), (0, (1, 1.5)))
WIDEST = 1e5  # FLOP per byte on either side of 1 that a roofline shows at most


def roofline_figure(answer: Mapping[str, Any], traffic: float, flops: float, device: Any) -> Any:
    """The roofline of a device, and on it the operation of `answer` (a record of `gpucalc roofline`).

    `traffic` and `flops` are bytes and operations of the whole operation.
    """
    if traffic <= 0 or flops <= 0:
        raise UsageError("--plot needs an operation that computes and moves memory")
    precision, peak, bandwidth = answer["precision"], answer["peak_tflops_dense"] * 1e12, device.memory_bandwidth
    intensity, ridge = flops / traffic, peak / bandwidth
    low = max(min(ridge / 300, intensity / 4), 1 / WIDEST)
    high = min(max(ridge * 30, intensity * 4), WIDEST * 10)
    with settings():
        figure = new_figure(7.5, 5.2)
        axes = figure.subplots()
        _other_roofs(axes, device, precision, bandwidth, low, high)
        xs = [low, ridge, high]
        axes.plot(xs, [min(peak, bandwidth * x) / 1e12 for x in xs], color=BLACK, linewidth=1.8)
        axes.annotate(
            f"{precision} peak, dense: {peak / 1e12:,.1f} TFLOP/s",
            (high, peak / 1e12),
            (-4, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        axes.axvline(ridge, color=GREY, linewidth=0.8, linestyle=":")
        reached, roof = answer["tflops"], min(peak, bandwidth * intensity) / 1e12
        axes.plot([intensity, intensity], [reached, roof], color=RED, linewidth=1.2, linestyle="--")
        axes.scatter([intensity], [reached], color=RED, s=60, zorder=4)
        axes.text(
            0.98,
            0.05,
            f"{answer['operation']}: {reached:,.4g} TFLOP/s, {100 * reached / roof:.0f} % of the roof above it\n"
            f"{answer['time_us']:,.4g} µs, bound by {answer['bound']}",
            transform=axes.transAxes,
            ha="right",
            color=RED,
            fontsize=9,
            bbox=PLATE,
        )
        axes.set(xscale="log", yscale="log", xlim=(low, high))
        axes.set(xlabel="FLOP per byte of memory traffic", ylabel="TFLOP/s")
        axes.set_ylim(top=peak / 1e12 * 3)
        axes.set_title(f"{device.name}: {bandwidth / 1e12:.3g} TB/s; memory binds below {ridge:,.0f} FLOP/B (dotted)")
        grid(axes)
    return figure


def operation_traffic(ledger: Any) -> float:
    """Bytes that the operation of a `roofline_…` ledger moves at least, from what its formulas count."""
    from gpucalc.formulas.attention import decode_traffic
    from gpucalc.formulas.roofline import gemm_traffic

    c = ledger.columns
    if "m" in c:
        return float(gemm_traffic(**{name: c[name] for name in ("m", "n", "k", "element_bytes", "output_bytes")}))
    if "attended" in ledger:
        return float(ledger["time/memory"] * c["memory_bandwidth"] / c["attention_passes"])
    if "context" in c:
        names = ("batch", "context", "heads", "kv_heads", "head_dim", "kv_bytes", "attention_element_bytes")
        return float(decode_traffic(**{name: c[name] for name in names}))
    return float(ledger["time/memory"] * c["memory_bandwidth"] * c["memory_efficiency"])


def _other_roofs(axes: Any, device: Any, precision: str, bandwidth: float, low: float, high: float) -> None:
    """Peaks of the device's other precisions, pale, each named once."""
    own = device.precision_peak(precision)
    seen = {own}
    for name in device.precisions():
        try:
            peak = device.precision_peak(name)
        except UsageError:
            continue
        if peak in seen or peak > 2.4 * own:
            continue
        seen.add(peak)
        ridge = peak / bandwidth
        axes.plot([max(ridge, low), high], [peak / 1e12] * 2, color=GREY, linewidth=0.9)
        axes.annotate(
            name, (high, peak / 1e12), (-4, 2), textcoords="offset points", ha="right", fontsize=7.5, color=GREY
        )


def comm_figure(op: str, size_bytes: float, cluster: Any, db: Database) -> Any:
    """Time and bus bandwidth of a collective by algorithm, for sizes around `size_bytes`; the chosen one is thick."""
    from gpucalc.questions.collectives import comm

    sizes = message_sizes(size_bytes)
    found = [comm(op, size, cluster, db) for size in sizes]
    names = list(dict.fromkeys(row["algorithm"] for rows in found for row in rows))
    with settings():
        figure = new_figure(10.5, 4.6)
        left, right = figure.subplots(1, 2)
        for place, name in enumerate(names):
            style = {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.1, "label": name}
            # Algorithms that take the same time stay visible: other dashes, markers at other sizes.
            style |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 4.5, "markevery": (2 * place, 8)}
            style["linestyle"] = DASHES[place % len(DASHES)]
            rows = [next((row for row in each if row["algorithm"] == name), None) for each in found]
            points = [(size, row) for size, row in zip(sizes, rows, strict=True) if row is not None]
            left.plot([s for s, _ in points], [row["time_us"] for _, row in points], **style)
            right.plot([s for s, _ in points], [row["busbw_GBps"] for _, row in points], **style)
        best = [next(row for row in each if row["chosen"]) for each in found]
        thick = {"color": BLACK, "linewidth": 5, "alpha": 0.18, "label": "chosen", "solid_capstyle": "round"}
        left.plot(sizes, [row["time_us"] for row in best], **thick)
        right.plot(sizes, [row["busbw_GBps"] for row in best], **thick)
        for axes in (left, right):
            axes.axvline(size_bytes, color=RED, linestyle="--", linewidth=1)
            axes.set_xscale("log", base=2)
            axes.set_xlabel("size as nccl-tests counts it")
            _byte_ticks(axes, sizes)
            grid(axes)
        left.set(yscale="log", ylabel="time [µs]", title="Time; dashed: the size asked for")
        right.set(ylabel="bus bandwidth [GB/s]", ylim=(0, None), title="Bus bandwidth")
        left.legend(loc="upper left")
        kind = f"{op} over {cluster.n_gpus} × {cluster.device.name}, {cluster.domain} in a scale-up domain"
        figure.suptitle(kind, fontsize=10, x=0.01, ha="left")
    return figure


def message_sizes(around: float) -> list[float]:
    """Powers of two from 1 KiB to 16 GiB, further where the size asked for lies outside.

    >>> sizes = message_sizes(2**20)
    >>> sizes[0], sizes[-1] == 2**34, len(sizes)
    (1024.0, True, 49)
    """
    import math

    low = min(10, math.floor(math.log2(around)) - 1)
    high = max(34, math.ceil(math.log2(around)) + 1)
    return [2.0 ** (low + step / 2) for step in range(2 * (high - low) + 1)]


def _byte_ticks(axes: Any, sizes: Sequence[float]) -> None:
    from gpucalc.core.units import scale_for

    low, high = sizes[0], sizes[-1]
    ticks = [2.0**n for n in range(0, 80, 5) if low <= 2.0**n <= high]
    labels = []
    for tick in ticks:
        divisor, unit = scale_for(tick, "B")
        labels.append(f"{tick / divisor:g} {unit}")
    axes.set_xticks(ticks, labels, fontsize=8)
    axes.minorticks_off()
