"""One layout as a picture: the pipeline as a timeline with its memory, time by term, memory by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.units import GIB
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts import orders
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.output.figures import parts
from gpucalc.output.figures.canvas import BLUE, GREEN, ORANGE, PALE, PLATE, RED, grid, new_figure, settings, time_scale
from gpucalc.questions.timeline import Timeline, at, drawn_micro_batches, in_flight, timeline

STAGES = ("first", "second", "last")
COLOURS = {orders.FORWARD: BLUE, orders.BACKWARD: ORANGE, orders.WEIGHT: GREEN}
NAMES = {orders.FORWARD: "forward", orders.BACKWARD: "backward", orders.WEIGHT: "weight gradients"}


def explain_figure(cells: Mapping[str, Any], context: Context, title: str = "") -> Any:
    """The figure of one completed row."""
    job = jobs.resolve(cells, context)
    ledger = estimate_training(jobs.stack([job]), detail=True)
    cells = job.cells
    micro_batches = round(at(ledger, "symbol/micro_batches"))
    drawn = drawn_micro_batches(cells["schedule"], micro_batches, cells["pp"], cells["vpp"])
    piped = cells["pp"] > 1 and drawn > 0
    passes = min(1.4 + 0.22 * cells["pp"], 5.0) + 0.6 if piped else 0.0
    tall = passes + 2.2 if piped else 0.0
    with settings():
        figure = new_figure(10.5, tall + 3.9)
        if piped:
            above, below = figure.subfigures(2, 1, height_ratios=[tall, 3.9])
            upper, lower = above.subplots(2, 1, height_ratios=[passes, 2.2])
            _timeline(upper, lower, job, ledger, drawn)
        else:
            below = figure
        left, right = below.subplots(1, 2)
        _times(left, ledger)
        _stages(right, job, ledger)
        if title:
            figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _timeline(axes: Any, below: Any, job: jobs.Job, ledger: Any, drawn: int) -> None:
    name, stages = job.cells["schedule"], int(job.cells["pp"])
    micro_batches = round(at(ledger, "symbol/micro_batches"))
    found = timeline(job, ledger, drawn)
    bars = found.bars
    end = found.end
    divisor, unit = time_scale(end)
    axes.broken_barh([(0, end / divisor)], (-0.5, stages), facecolors=PALE, alpha=0.55, label="idle")
    pieces = 1 + max(bar.work.chunk for bar in bars)
    _draw_bars(axes, bars, divisor, end, pieces)
    count = f"{drawn} of {micro_batches} micro-batches" if drawn < micro_batches else f"{drawn} micro-batches"
    bubble = 100 * at(ledger, "time/pp/bubble") / at(ledger, "time/step")
    axes.set_title(
        f"Pipeline {name}, simplified drawing of {count}; the estimated bubble is {bubble:.1f} % of the step"
    )
    row = SCHEDULES[name]
    pale = "entered at the last stage" if row.stages_held > 1 else "second half of the model"
    remark = f"; pale: {f'later of {pieces} chunks' if row.chunked else pale}" if pieces > 1 else ""
    axes.set(xlabel=f"time [{unit}]{remark}", ylabel="stage", xlim=(0, end / divisor), ylim=(stages - 0.5, -0.5))
    step = max(1, stages // 16)
    axes.set_yticks(range(0, stages, step))
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes, handlelength=1.2)
    _memory_over_time(below, found, ledger, divisor, unit)


def _memory_over_time(axes: Any, found: Timeline, ledger: Any, divisor: float, unit: str) -> None:
    """What the first, second and last stage hold while their passes run; the most is the estimate's."""
    places = {"first": 0, "second": 1, "last": found.stages - 1}
    lines = {"first": "-", "second": ":", "last": "--"}
    for kind in ("first", "last") if found.stages == 2 else STAGES:
        held = parts.stage_memory(ledger, kind)
        steps = in_flight(found.of_stage(places[kind]))
        most = max(count for _, count in steps)
        rest = sum(held.values()) - held["activations"]
        times = [0.0, *(time for time, _ in steps), found.end]
        counts = [0, *(count for _, count in steps), 0]
        bytes_ = [(rest + held["activations"] * count / most) / GIB for count in counts]
        axes.plot(
            [time / divisor for time in times],
            bytes_,
            drawstyle="steps-post",
            linestyle=lines[kind],
            linewidth=1.1,
            label=f"{kind} stage",
        )
    limit = parts.memory_limit(ledger) / GIB
    axes.axhline(limit, color=RED, linestyle="--", linewidth=1.0)
    axes.set(xlabel=f"time [{unit}]", ylabel="GiB a GPU", xlim=(0, found.end / divisor))
    axes.set_ylim(bottom=0)
    axes.set_title(f"Memory over these passes; dashed: full, {limit:.1f} GiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes, handlelength=1.6)
    grid(axes, "y")


def _draw_bars(axes: Any, bars: Sequence[orders.Bar], divisor: float, end: float, chunks: int) -> None:
    numbered = len(bars) <= 700
    width = 0.5 if len(bars) <= 1500 else 0.0
    for kind in (orders.FORWARD, orders.BACKWARD, orders.WEIGHT):
        for chunk in range(chunks):
            chosen = [bar for bar in bars if bar.work.kind == kind and bar.work.chunk == chunk]
            for stage in sorted({bar.stage for bar in chosen}):
                axes.broken_barh(
                    [(b.start / divisor, (b.end - b.start) / divisor) for b in chosen if b.stage == stage],
                    (stage - 0.42, 0.84),
                    facecolors=COLOURS[kind],
                    alpha=1.0 if chunks == 1 else 1.0 - 0.55 * chunk / (chunks - 1),
                    edgecolors="white",
                    linewidth=width,
                    label=NAMES[kind] if stage == chunk == 0 else None,
                )
    for bar in bars:
        if numbered and (bar.end - bar.start) / end > 0.011:
            axes.text(
                (bar.start + bar.end) / 2 / divisor,
                bar.stage,
                str(bar.work.micro_batch + 1),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if bar.work.kind == orders.FORWARD and not bar.work.chunk else "black",
            )


def _times(axes: Any, ledger: Any) -> None:
    """Terms below each other, each beginning where the one above ends: a waterfall to the step time."""
    found = parts.used(parts.time_parts(ledger), parts.TIME_STYLES)
    step = at(ledger, "time/step")
    divisor, unit = time_scale(step)
    start = 0.0
    for place, (name, (seconds,)) in enumerate(found.items()):
        colour, hatch = parts.TIME_STYLES[name]
        axes.barh(place, seconds / divisor, left=start / divisor, color=colour, hatch=hatch, edgecolor="white")
        said = f"{seconds / divisor:.3g} {unit}, {100 * seconds / step:.1f} %"
        late = start + seconds / 2 > 0.55 * step
        axes.annotate(
            said,
            ((start if late else start + seconds) / divisor, place),
            (-4 if late else 4, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="center",
            fontsize=7.5,
            bbox=PLATE,
        )
        start += seconds
    axes.axvline(step / divisor, color=RED, linestyle="--", linewidth=1.0)
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.set(ylim=(len(found) - 0.4, -0.6), xlim=(0, step / divisor * 1.04), xlabel=f"time [{unit}]")
    axes.set_title(f"Time by term; dashed: the step, {step / divisor:.4g} {unit}")
    axes.tick_params(axis="y", length=0)
    grid(axes, "x")


def _stages(axes: Any, job: jobs.Job, ledger: Any) -> None:
    count = int(job.cells["pp"])
    kinds = {"first": "first stage", "second": "second", "last": "last"}
    shown = {1: ("first",), 2: ("first", "last")}.get(count, STAGES)
    stages = [parts.stage_memory(ledger, stage) for stage in shown]
    fullest = max(sum(stage.values()) for stage in stages)
    bottom = [0.0] * len(stages)
    for part, (colour, hatch) in parts.MEMORY_STYLES.items():
        values = [stage[part] / GIB for stage in stages]
        if max(values) * GIB < parts.NEGLIGIBLE * fullest:
            continue
        axes.bar(
            range(len(stages)),
            values,
            bottom=bottom,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            width=0.6,
            label=part,
        )
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    for place, total in enumerate(bottom):
        axes.annotate(f"{total:.1f}", (place, total), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    limit = parts.memory_limit(ledger) / GIB
    axes.axhline(limit, color=RED, linestyle="--", linewidth=1.2)
    names = [kinds[stage] if count > 1 else "every GPU" for stage in shown]
    axes.set_xticks(range(len(stages)), names)
    axes.set(ylim=(0, max(limit, *bottom) * 1.1), xlim=(-0.6, len(stages) - 0.4), ylabel="memory of a GPU [GiB]")
    if count > 3:
        axes.set_xlabel("stages after the second hold no more than it")
    axes.set_title(f"Memory by stage; dashed: full, {limit:.1f} GiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes, reverse=True)
    grid(axes, "y")
