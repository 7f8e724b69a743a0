"""One layout as a picture: the pipeline as a timeline, time by term, memory by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.output.figures import parts, schedule
from gpucalc.output.figures.canvas import BLUE, GREEN, ORANGE, PALE, PLATE, RED, grid, new_figure, settings, time_scale

GIB = 2.0**30
FEWEST_DRAWN = 6  # micro-batches of a timeline, where the job has as many
MOST_BARS = 6000
STAGES = ("first", "second", "last")
COLOURS = {schedule.FORWARD: BLUE, schedule.BACKWARD: ORANGE, schedule.WEIGHT: GREEN}
NAMES = {schedule.FORWARD: "forward", schedule.BACKWARD: "backward", schedule.WEIGHT: "weight gradients"}


def explain_figure(cells: Mapping[str, Any], context: Context, title: str = "") -> Any:
    """The figure of one completed row."""
    job = jobs.resolve(cells, context)
    ledger = estimate_training(jobs.stack([job]), detail=True)
    cells = job.cells
    micro_batches = round(_at(ledger, "symbol/micro_batches"))
    piped = cells["pp"] > 1 and drawn_micro_batches(cells["schedule"], micro_batches, cells["pp"], cells["vpp"]) > 0
    tall = min(1.4 + 0.22 * cells["pp"], 5.0) + 0.6 if piped else 0.0
    with settings():
        figure = new_figure(10.5, tall + 3.9)
        if piped:
            above, below = figure.subfigures(2, 1, height_ratios=[tall, 3.9])
            _timeline(above.subplots(), job, ledger)
        else:
            below = figure
        left, right = below.subplots(1, 2)
        _times(left, ledger)
        _stages(right, job, ledger)
        if title:
            figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _at(ledger: Any, path: str) -> float:
    value = ledger[path]
    return float(value.ravel()[0] if hasattr(value, "ravel") else value)


def durations(job: jobs.Job, ledger: Any) -> tuple[dict[str, float], float]:
    """Seconds of each kind of pass through one chunk of the longest stage, and of a transfer between stages."""
    row = SCHEDULES[job.cells["schedule"]]
    chunks = row.pieces if row.pieces > 1 else int(job.cells["vpp"])
    forward = _at(ledger, "layer/forward/time") * _at(ledger, "stage/layers/second")
    backward = _at(ledger, "stage/time") - forward
    weight = min(_at(ledger, "layer/weight-gradient/trained") * _at(ledger, "stage/layers/second"), backward)
    found = {schedule.FORWARD: forward, schedule.BACKWARD: backward}
    if row.splits_backward:
        found = {schedule.FORWARD: forward, schedule.BACKWARD: backward - weight, schedule.WEIGHT: weight}
    return {kind: seconds / chunks for kind, seconds in found.items()}, _at(ledger, "pp/transfer") / (2 * chunks)


def drawn_micro_batches(name: str, micro_batches: int, stages: int, chunks: int) -> int:
    """How many micro-batches a timeline shows: enough to fill the pipeline, whole groups; 0 where none can be drawn.

    >>> drawn_micro_batches("1f1b", 128, 4, 1), drawn_micro_batches("1f1b", 3, 4, 1)
    (12, 3)
    >>> drawn_micro_batches("interleaved", 128, 4, 2), drawn_micro_batches("dualpipe", 7, 4, 1)
    (8, 0)
    """
    if name not in schedule.ORDERS:
        return 0
    row = SCHEDULES[name]
    if row.stages_held > 1 or row.pieces > 1:
        fits = row.condition is None or row.condition.holds({"pp": stages, "micro_batches": micro_batches})
        return min(micro_batches - micro_batches % 2, max(2 * stages, 10)) if fits else 0
    wanted = max((3 if chunks == 1 else 2) * stages, FEWEST_DRAWN)
    most = max(stages + 1 if chunks == 1 else 2 * stages, MOST_BARS // (3 * stages * chunks))
    count = min(micro_batches, wanted, most)
    return count - count % stages if chunks > 1 and count > stages else count


def _timeline(axes: Any, job: jobs.Job, ledger: Any) -> None:
    name, stages, chunks = job.cells["schedule"], int(job.cells["pp"]), int(job.cells["vpp"])
    micro_batches = round(_at(ledger, "symbol/micro_batches"))
    drawn = drawn_micro_batches(name, micro_batches, stages, chunks)
    seconds, transfer = durations(job, ledger)
    ways = schedule.routes(name, stages, chunks)
    bars = schedule.timed(schedule.order(name, stages, chunks, drawn), ways, seconds, transfer)
    end = max(bar.end for bar in bars)
    divisor, unit = time_scale(end)
    axes.broken_barh([(0, end / divisor)], (-0.5, stages), facecolors=PALE, alpha=0.55, label="idle")
    pieces = 1 + max(bar.work.chunk for bar in bars)
    _draw_bars(axes, bars, divisor, end, pieces)
    count = f"{drawn} of {micro_batches} micro-batches" if drawn < micro_batches else f"{drawn} micro-batches"
    bubble = 100 * _at(ledger, "time/pp/bubble") / _at(ledger, "time/step")
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


def _draw_bars(axes: Any, bars: list[schedule.Bar], divisor: float, end: float, chunks: int) -> None:
    numbered = len(bars) <= 700
    width = 0.5 if len(bars) <= 1500 else 0.0
    for kind in (schedule.FORWARD, schedule.BACKWARD, schedule.WEIGHT):
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
                color="white" if bar.work.kind == schedule.FORWARD and not bar.work.chunk else "black",
            )


def _times(axes: Any, ledger: Any) -> None:
    """Terms below each other, each beginning where the one above ends: a waterfall to the step time."""
    found = parts.used(parts.time_parts(ledger), parts.TIME_STYLES)
    step = _at(ledger, "time/step")
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
