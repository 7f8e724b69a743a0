"""Pictures: schedules against theory, parts that add up, every form of file, and what happens without matplotlib."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import JOB, gpucalc
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import SCHEDULES
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts import schedules
from gpucalc.layouts.label import label_cells
from gpucalc.layouts.orders import BACKWARD, FORWARD, WEIGHT, Bar, order, routes, timed
from gpucalc.output.figures import canvas, layouts, parts, plot_scaling, save
from gpucalc.output.figures.explained import explain_figure
from gpucalc.output.figures.kernels import operation_traffic
from gpucalc.output.figures.scaling import scaling_figure
from gpucalc.questions.kernels import roofline_attention, roofline_gemm, roofline_kernel
from gpucalc.questions.timeline import drawn_micro_batches

DATABASE = Database()
CELLS = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
PIPELINES = [name for name in SCHEDULES if name != "none"]
SIGNATURE = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def bars_of(schedule: str, stages: int, micro_batches: int, times: dict[str, float] | None = None) -> list[Bar]:
    chunks = 2 if schedule == "interleaved" else 1
    split = (
        {FORWARD: 1.0, BACKWARD: 1.0, WEIGHT: 1.0}
        if schedules.SCHEDULES[schedule].splits_backward
        else {FORWARD: 1.0, BACKWARD: 2.0}
    )
    pieces = 2 if schedule in {"interleaved", "dualpipe-v"} else 1
    seconds = {kind: value / pieces for kind, value in (times or split).items()}
    return timed(order(schedule, stages, chunks, micro_batches), routes(schedule, stages, chunks), seconds)


def span(bars: list[Bar], stage: int | None = None) -> float:
    own = [bar for bar in bars if stage is None or bar.stage == stage]
    return max(bar.end for bar in own) - min(bar.start for bar in own)


@pytest.mark.parametrize(
    ("schedule", "idle"),
    [
        # With F = B = W = 1 (F = 1, B = 2 where they are one): the bubbles of the schedules' own papers.
        ("gpipe", lambda p: 3 * (p - 1)),
        ("1f1b", lambda p: 3 * (p - 1)),
        ("interleaved", lambda p: 3 * (p - 1) / 2),
        ("zb-h1", lambda p: p - 1),
        ("dualpipe", lambda p: p / 2 - 1),
        ("dualpipe-v", lambda p: (p - 1) / 2),
    ],
)
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_schedule_idles_as_its_paper_says(schedule: str, idle: Any, stages: int) -> None:
    for micro_batches in (2 * stages, 4 * stages):
        assert span(bars_of(schedule, stages, micro_batches)) - 3 * micro_batches == pytest.approx(idle(stages))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zb_2p_has_no_bubble_between_the_passes_of_a_stage(stages: int) -> None:
    bars = bars_of("zb-2p", stages, 3 * stages)
    assert [span(bars, stage) for stage in range(stages)] == [9 * stages] * stages


@given(
    schedule=st.sampled_from(PIPELINES),
    half=st.integers(1, 4),
    more=st.integers(0, 9),
    times=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0.1, 3)),
)
def test_every_schedule_runs_every_pass_once_and_in_order(
    schedule: str, half: int, more: int, times: tuple[float, float, float]
) -> None:
    stages = 2 * half
    micro_batches = drawn_micro_batches(schedule, 2 * stages + 2 * more, stages, 2 if schedule == "interleaved" else 1)
    bars = bars_of(schedule, stages, micro_batches, dict(zip((FORWARD, BACKWARD, WEIGHT), times, strict=True)))
    assert len({(bar.stage, bar.work) for bar in bars}) == len(bars)
    pieces = 2 if schedule in {"interleaved", "dualpipe-v"} else 1
    for stage in range(stages):
        own = sorted((bar for bar in bars if bar.stage == stage), key=lambda bar: bar.start)
        kinds = [bar.work.kind for bar in own]
        assert kinds.count(FORWARD) == kinds.count(BACKWARD) == micro_batches * pieces
        assert kinds.count(WEIGHT) == (micro_batches if schedules.SCHEDULES[schedule].splits_backward else 0) * pieces
        assert all(b.start >= a.end - 1e-9 for a, b in pairwise(own))
    ends = {(bar.work, bar.stage): bar.end for bar in bars}
    for bar in bars:
        if bar.work.kind == BACKWARD:
            forward = type(bar.work)(FORWARD, bar.work.micro_batch, bar.work.chunk)
            assert ends[forward, bar.stage] <= bar.start + 1e-9


@pytest.mark.parametrize(
    "fixed", [{"zero_stage": 1, "tp": 2}, pytest.param({}, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_front_of_many_layouts_is_that_of_the_fastest(fixed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {**CELLS, "model": "llama-3.1-8b", "n_gpus": 16, **fixed}
    whole = layouts.pareto_front(cells, Context(DATABASE), 1)
    monkeypatch.setattr(layouts, "FASTEST", 100_000)
    same = layouts.pareto_front(cells, Context(DATABASE), layouts.EXHAUSTIVE + 1)

    def points(front: layouts.Front) -> set[tuple[float, float]]:
        return {(row["pred_step_time_s"], row["pred_peak_mem_gib"]) for row in front.rows}

    assert len(points(same)) > 5
    assert points(same) == points(whole)
    assert "fastest layouts" in same.name
    monkeypatch.setattr(layouts, "FASTEST", 50)
    fewer = layouts.pareto_front(cells, Context(DATABASE), layouts.EXHAUSTIVE + 1)
    assert 0 < len(fewer.rows) < len(same.rows)


LABELS = (
    "tp4-pp4-dp4-mbs1-zero1-sp",
    "tp4-pp4-dp4-vpp4-mbs1-zero1-sp-full",
    "tp4-pp8-dp2-mbs1-zero1-sp-zb2p-full",
    "tp8-dp8-mbs1-zero3-sp-full",
    "tp2-pp2-dp4-cp4-mbs1-zero2-sp-full4",
    "tp8-dp8-mbs16-zero1-sp-full-offload-opt",
    "tp4-pp4-dp4-mbs1-zero1-sp-offload-act",
)


@pytest.mark.parametrize("label", LABELS)
def test_the_parts_of_a_picture_add_up_to_the_answer(label: str) -> None:
    job = jobs.resolve({**CELLS, **label_cells(label)}, Context(DATABASE))
    ledger = estimate_training(jobs.stack([job]), detail=True)
    time = sum(float(values[0]) for values in parts.time_parts(ledger).values())
    assert time == pytest.approx(float(np.ravel(ledger["time/step"])[0]), rel=5 * parts.NEGLIGIBLE)
    memory = sum(float(values[0]) for values in parts.memory_parts(ledger).values())
    total = float(np.ravel(ledger["memory/total"])[0])
    assert memory == pytest.approx(total, rel=5 * parts.NEGLIGIBLE)
    stages = [sum(parts.stage_memory(ledger, stage).values()) for stage in ("first", "second", "last")]
    assert max(stages) == pytest.approx(total)
    assert parts.OTHER not in parts.time_parts(ledger), "a new part of the step has no name in pictures"
    assert parts.OTHER not in parts.memory_parts(ledger), "a new part of memory has no name in pictures"
    assert (parts.memory_limit(ledger) > total) == (float(np.ravel(ledger["memory/fill"])[0]) < 1)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_adapters_add_up_too(method: str) -> None:
    cells = {**CELLS, "method": method, "n_gpus": 8, "global_batch": 8, "framework": "pytorch fsdp", "zero_stage": 3}
    ledger = estimate_training(jobs.stack([jobs.resolve(cells, Context(DATABASE))]), detail=True)
    for found, path in ((parts.time_parts(ledger), "time/step"), (parts.memory_parts(ledger), "memory/total")):
        total = sum(float(values[0]) for values in found.values())
        assert total == pytest.approx(float(np.ravel(ledger[path])[0]), rel=5 * parts.NEGLIGIBLE)
        assert parts.OTHER not in found


def test_a_mixture_of_experts_adds_up_too() -> None:
    cells = {**CELLS, "model": "mixtral-8x7b", **label_cells("tp2-pp4-dp8-ep8-mbs1-zero1-sp")}
    ledger = estimate_training(jobs.stack([jobs.resolve(cells, Context(DATABASE))]), detail=True)
    found = parts.time_parts(ledger)
    assert "expert parallel traffic" in found
    total = sum(float(values[0]) for values in found.values())
    assert total == pytest.approx(float(np.ravel(ledger["time/step"])[0]), rel=5 * parts.NEGLIGIBLE)


def test_the_traffic_on_a_roofline_is_the_operation_s() -> None:
    device = DATABASE.device("h100-sxm-80gb")
    assert operation_traffic(roofline_gemm(1024, 512, 256, device, "bf16", DATABASE)) == 2 * (
        1024 * 256 + 256 * 512 + 1024 * 512
    )
    shape = (2, 4096, 32, 8, 128)
    whole = operation_traffic(roofline_attention("prefill_causal", *shape, device, "bf16", DATABASE))
    assert whole == pytest.approx(2 * 2 * 2 * 128 * 4096 * (32 + 8))
    step = operation_traffic(roofline_attention("decode", 1, 4096, 32, 8, 128, device, "bf16", DATABASE))
    assert step == pytest.approx(2 * 2 * 4096 * 8 * 128 + 2 * 2 * 32 * 128)
    assert operation_traffic(roofline_kernel(1e12, 4e8, device, "bf16", DATABASE)) == pytest.approx(4e8)


@functools.cache
def answer(arguments: tuple[str, ...]) -> str:
    return gpucalc(*arguments, "-f", "csv").out


@pytest.mark.parametrize("form", list(SIGNATURE))
@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "llama-3.1-8b", *JOB, "--top", "3"),
        ("explain", "llama-3.1-70b", *JOB, "--layout", LABELS[0]),
        ("roofline", "gemm", "8192", "8192", "8192", "--gpu", "h100-sxm-80gb"),
        ("comm", "all_reduce", "1GiB", "--gpu", "h100-sxm-80gb", "--gpus", "64"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_draws_beside_its_answer(tmp_path: Path, arguments: tuple[str, ...], form: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"picture{form}"
    ran = gpucalc(*arguments, "-f", "csv", "--plot", str(file))
    assert ran.status == 0, ran.err
    assert ran.out == answer(arguments)
    data = file.read_bytes()
    assert data.startswith(SIGNATURE[form])
    assert len(data) > 8000
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_picture_names_what_it_shows_and_is_the_same_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = {**CELLS, **label_cells(LABELS[0])}
    for name in ("one.svg", "two.svg"):
        save(explain_figure(cells, Context(DATABASE), "a title"), tmp_path / name)
    first = (tmp_path / "one.svg").read_bytes()
    assert first == (tmp_path / "two.svg").read_bytes()
    text = canvas.svg_text(explain_figure(cells, Context(DATABASE), "a title"), "best layout")
    for wanted in ("a title", "Pipeline 1f1b, simplified drawing of 12 of 32", "memory of a GPU [GiB]", "time [s]"):
        assert wanted in text


@pytest.mark.parametrize("schedule", PIPELINES)
def test_every_schedule_is_drawn_or_left_out(schedule: str) -> None:
    pytest.importorskip("matplotlib")
    cells = {**CELLS, "tp": 4, "pp": 4, "schedule": schedule, "vpp": 2 if schedule == "interleaved" else 1}
    text = canvas.svg_text(explain_figure(cells, Context(DATABASE)), "t")
    assert f"Pipeline {schedule}, simplified drawing" in text
    few = {**cells, "global_batch": 4}
    drawn = f"Pipeline {schedule}" in canvas.svg_text(explain_figure(few, Context(DATABASE)), "t")
    assert drawn == (not schedule.startswith("dualpipe"))


@pytest.mark.parametrize("term", ["share_dp_pct", "time/dp/exposed", "mine"])
def test_scaling_draws_each_mode_and_leaves_out_what_has_no_prediction(tmp_path: Path, term: str) -> None:
    pytest.importorskip("matplotlib")
    rows: list[dict[str, Any]] = [
        {"mode": mode, "n_gpus": n, "pred_step_time_s": 10.0, "pred_tokens_per_s_per_gpu": 1000.0 - n, term: n / 10}
        for mode in ("weak", "strong")
        for n in (8, 16, 32)
    ]
    rows.append({"mode": "weak", "n_gpus": 64, "pred_step_time_s": None, "pred_tokens_per_s_per_gpu": None})
    text = canvas.svg_text(scaling_figure(rows, "a title"), "t")
    assert all(wanted in text for wanted in ("a title", "weak", "strong", "98 %"))
    assert ("sharding and gradients" in text) == ("Strong by term" in text) == (term != "mine")
    plot_scaling(rows, str(tmp_path / "scale.svg"))
    assert (tmp_path / "scale.svg").stat().st_size > 8000
    with pytest.raises(UsageError, match="no number of GPUs has a prediction"):
        plot_scaling(rows[-1:], str(tmp_path / "none.svg"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("plan.jpeg", "expected a name that ends in .png, .svg, .pdf"),
        ("plan", "expected a name that ends in .png, .svg, .pdf"),
        ("missing/plan.png", "cannot write"),
    ],
)
def test_a_picture_that_cannot_be_made_is_a_sentence(tmp_path: Path, name: str, told: str) -> None:
    pytest.importorskip("matplotlib")
    ran = gpucalc("comm", "all_reduce", "1GiB", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--plot", str(tmp_path / name))
    assert told in ran.sentence()
    assert not list(tmp_path.iterdir())


def test_a_plan_of_which_nothing_fits_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    ran = gpucalc("plan", "llama-3.1-405b", *JOB, "--gpus", "8", "--plot", str(file))
    assert ran.status == 3
    assert "nothing is drawn" in ran.err
    assert not file.exists()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from gpucalc.cli import main; main()"
    arguments = ["comm", "all_reduce", "1GiB", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--plot", "a.png"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr == "gpucalc: pictures need matplotlib; install it with: pip install 'gpucalc[plot]'\n"
    assert done.stdout == ""


def test_a_full_disk_loses_no_older_picture(tmp_path: Path) -> None:
    old = tmp_path / "old.png"
    old.write_bytes(b"old")
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    link = tmp_path / "full.png"
    link.symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        canvas.write_whole(link, b"x" * 10)
    canvas.write_whole(old, b"new")
    assert old.read_bytes() == b"new"
