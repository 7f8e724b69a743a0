"""Clusters of several kinds of GPU: shares, stages, and agreement with the plan of one kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.layouts.label import label_cells
from gpucalc.questions import mixed, mixed_cuts
from gpucalc.questions.mixed_verdict import verdict
from gpucalc.questions.plan import plan

DB = Database()
JOB = {"model": "llama-3.1-8b", "seq_len": 4096, "global_batch": 512}
RATES = st.lists(st.floats(0.1, 10), min_size=2, max_size=4)


def column(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


@given(each=RATES, work=st.integers(8, 5000), held=st.integers(1, 32), fixed=st.floats(0, 5))
def test_all_work_is_done_and_no_move_of_one_helps(each: list[float], work: int, held: int, fixed: float) -> None:
    counts, times = column([held] * len(each)), column(each)
    offset = np.full_like(times, fixed)
    shares = mixed.balance(np.array([float(work)]), counts, offset, times)
    assert float((counts * shares).sum()) >= work
    worst = (offset + times * shares)[shares > 0].max()
    # Were the slowest kind to run one fewer, the others could not take it up within the same time.
    capacity = float((counts * np.maximum(np.floor((worst * (1 - 1e-6) - offset) / times), 0)).sum())
    assert capacity < work


@given(times=RATES, layers=st.integers(8, 126), held=st.integers(1, 3))
def test_stages_hold_all_layers_and_the_slowest_is_as_fast_as_can_be(
    times: list[float], layers: int, held: int
) -> None:
    counts, each = column([held] * len(times)), column(times)
    depths = mixed.stage_depths(float(layers), counts, each, np.full_like(each, float(layers)))
    assert float((counts * depths).sum()) >= layers
    worst = float((depths * each).max())
    assert float((counts * np.floor(worst * (1 - 1e-6) / each)).sum()) < layers


def test_a_full_kind_gives_layers_to_the_others() -> None:
    one = np.ones((2, 1))
    depths = mixed.stage_depths(24.0, 2 * one, np.array([[1.0], [1.0]]), np.array([[4.0], [24.0]]))
    assert depths.ravel().tolist() == [4.0, 8.0]
    nowhere = mixed.stage_depths(24.0, one, np.array([[1.0], [1.0]]), np.array([[4.0], [4.0]]))
    assert nowhere.ravel().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("label", ["tp4-pp4-dp4-mbs1-zero1-sp", "dp64-mbs1-zero1", "tp2-dp32-mbs2-zero1-sp"])
def test_two_equal_kinds_are_one_kind(label: str) -> None:
    """Kinds that differ in name only plan as the homogeneous cluster of their sum does."""
    cells = {**JOB, **label_cells(label), "recompute": "none"}
    kinds = [mixed._Kind("a", 32, _whole()), mixed._Kind("b", 32, _whole())]
    rejected = dict.fromkeys((mixed.NOT_WHOLE, mixed.NOT_STAGES, mixed.MEMORY, mixed.IDLE), 0)
    rows, _, _ = mixed._search(kinds, cells, rejected, 4)
    alone = predict(
        [resolve({**cells, "gpu": "a100-sxm-80gb", "n_gpus": 64, "schedule": "1f1b", "vpp": 1}, Context(DB))]
    )[0]
    for row in rows:
        assert row["step"] == pytest.approx(alone["pred_step_time_s"], rel=0.005), row["manner"]
        if row["manner"] == mixed.DATA:
            assert max(row["memory"]) / 2**30 == pytest.approx(alone["pred_peak_mem_gib"], rel=1e-6)


def _whole():
    neutral = {"dp": 64, "micro_batch": 1, "zero_stage": 1, "global_batch": 64, "n_gpus": 64, "seq_len": 4096}
    return resolve({"model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", **neutral}, Context(DB))


def test_the_faster_kind_gets_more_and_the_whole_gains() -> None:
    result = mixed.plan_mixed(JOB, {"a100-sxm-80gb": 32, "h100-sxm-80gb": 32}, Context(DB), top=5)
    best = result.rows[0]
    shares = dict(part.rsplit(" ", 1) for part in best["split"].split(", "))
    assert int(shares["h100-sxm-80gb"]) > int(shares["a100-sxm-80gb"])
    times = {row["gpu"]: row["pred_step_time_s"] for row in result.alone}
    ideal = 1 / sum(1 / t for t in times.values())
    assert ideal <= best["pred_step_time_s"] * 1.03
    assert best["pred_step_time_s"] < min(times.values())
    assert result.verdict.startswith("worth it")
    steps = [row["pred_step_time_s"] for row in result.rows if row["pred_fit"] == "fits"]
    assert steps == sorted(steps)


def test_the_parts_alone_are_the_plans_of_one_kind() -> None:
    result = mixed.plan_mixed(JOB, {"a100-sxm-80gb": 16, "h100-sxm-80gb": 16}, Context(DB), top=1)
    for row in result.alone:
        found = plan({**JOB, "gpu": row["gpu"], "n_gpus": 16}, Context(DB), top=1).rows[0]
        assert row["pred_step_time_s"] == found["pred_step_time_s"]
        assert row["layout"] == found["layout"]


def test_the_slowest_network_and_a_common_precision_hold_for_all() -> None:
    kinds = mixed._kinds(JOB, {"v100-sxm2-16gb": 8, "h100-sxm-80gb": 8}, Context(DB), None)
    rates = {k.job.cluster.network_bandwidth_per_gpu for k in kinds}
    assert len(rates) == 1
    assert {k.job.cells["precision"] for k in kinds} == {"fp16"}


def test_the_band_is_wider_than_that_of_each_kind() -> None:
    row = mixed.plan_mixed(JOB, {"a100-sxm-80gb": 32, "h100-sxm-80gb": 32}, Context(DB), top=1).rows[0]
    assert row["pred_step_time_high_s"] / row["pred_step_time_s"] >= mixed_cuts.WIDER
    assert row["pred_step_time_s"] / row["pred_step_time_low_s"] >= mixed_cuts.WIDER


def test_a_model_that_no_small_part_holds_may_fit_the_whole() -> None:
    # With fp32 gradients the states alone, 18 B a parameter, take 1,183 of the 1,262 GiB.
    job = {"model": "llama-3.1-70b", "seq_len": 4096, "global_batch": 64, "gradient_dtype": "bf16"}
    result = mixed.plan_mixed(job, {"a100-sxm-40gb": 16, "a100-sxm-80gb": 8}, Context(DB), top=3)
    assert result.rows
    for row in result.rows:
        limits = {"a100-sxm-40gb": 40, "a100-sxm-80gb": 80}
        assert all(gib <= limits[key] for key, gib in row["memory_gib"].items())


def test_nothing_fits_is_said() -> None:
    job = {"model": "llama-3.1-405b", "seq_len": 4096, "global_batch": 64}
    result = mixed.plan_mixed(job, {"a100-sxm-40gb": 8, "a100-sxm-80gb": 8}, Context(DB))
    assert result.rows == []
    assert "no uneven layout fits" in result.verdict
    assert result.rejected[mixed.MEMORY] > 0


@pytest.mark.parametrize(
    "text",
    ["a100-sxm-80gb:64", "a100-sxm-80gb,h100-sxm-80gb", "a100-sxm-80gb:0,h100-sxm-80gb:8", "h100:8,h100-sxm-80gb:8",
     "a100:8,nosuch:8", "a100:x,h100:8", ""],
)  # fmt: skip
def test_kinds_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        mixed.kinds_of(text, DB)


@settings(max_examples=examples(30))
@given(mine=st.floats(1, 10), alone=st.floats(1, 10))
def test_the_verdict_tells_ties_and_doubt(mine: float, alone: float) -> None:
    rows = [{"pred_step_time_s": mine, "pred_step_time_low_s": mine * 0.7, "pred_step_time_high_s": mine * 1.3}]
    said = verdict(
        rows,
        [{"gpu": "x", "n_gpus": 8, "pred_step_time_s": alone}, {"gpu": "y", "n_gpus": 8, "pred_step_time_s": None}],
    )
    gain = alone / mine
    assert said.startswith("a tie" if abs(gain - 1) <= 0.03 else "worth it" if gain > 1 else "not worth it")
    if 0.8 < gain < 1.25 and abs(gain - 1) > 0.03:
        assert "overlap" in said
