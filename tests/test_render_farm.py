"""A render farm: the closed form against a simulation, limits, and hand-checked cases."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.estimate.farm import Farm, Score, estimate_farm
from gpucalc.formulas import render
from gpucalc.questions import farm as farms
from gpucalc.validate.workloads import closed_makespan, more_report, simulated_makespan

DB = Database()
TABLE = farms.score_table(DB)
ONE = Score(1.0, 1.0, 1.0, "")


def makespan(frames: int, counts: dict[str, int], spread: float, scores: dict[str, float] | None = None) -> float:
    rated = {name: Score(*[(scores or {}).get(name, 1.0)] * 3, basis="") for name in counts}
    farm = Farm(counts, rated, float(frames), 1.0, 1.0, spread)
    return float(estimate_farm(farm)["farm/random"])


def simulated(frames: int, rates: list[float], spread: float, runs: int, longest_first: bool = False) -> float:
    """Mean makespan of lognormal frames of mean 1 that go, in turn, to the machine that is free first."""
    draw = np.random.default_rng(7)
    sigma = np.sqrt(np.log1p(spread**2))
    total = 0.0
    for _ in range(runs):
        times = draw.lognormal(-(sigma**2) / 2, sigma, frames)
        if longest_first:
            times = np.sort(times)[::-1]
        free = [(0.0, i) for i in range(len(rates))]
        heapq.heapify(free)
        last = 0.0
        for time in times:
            at, machine = free[0]
            done = at + time / rates[machine]
            heapq.heapreplace(free, (done, machine))
            last = max(last, done)
        total += last
    return total / runs


@pytest.mark.parametrize("spread", [0.05, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("machines", [4, 50])
@pytest.mark.parametrize("each", [3, 6, 20])
def test_within_three_percent_of_a_simulation(spread: float, machines: int, each: int) -> None:
    frames = machines * each
    expected = simulated(frames, [1.0] * machines, spread, max(60, 20_000 // frames))
    assert makespan(frames, {"a": machines}, spread) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("machines", [4, 50])
@pytest.mark.parametrize("each", [2, 6, 20])
def test_within_eight_percent_at_a_spread_of_one(machines: int, each: int) -> None:
    frames = machines * each
    expected = simulated(frames, [1.0] * machines, 1.0, max(150, 40_000 // frames))
    found = makespan(frames, {"a": machines}, 1.0)
    assert found == pytest.approx(expected, rel=0.08)
    if machines >= 50:  # the work and one mean frame, which people reckon with, is too little
        assert frames / machines + 1.0 < 0.95 * expected


def test_unequal_machines_against_a_simulation() -> None:
    counts, rates = {"fast": 20, "slow": 20}, {"fast": 2.0, "slow": 1.0}
    for spread in (0.3, 0.6):
        expected = simulated(600, [2.0] * 20 + [1.0] * 20, spread, 60)
        assert makespan(600, counts, spread, rates) == pytest.approx(expected, rel=0.03)


def test_longest_first_is_the_work_when_there_are_many_frames() -> None:
    farm = Farm({"a": 20}, {"a": ONE}, 400.0, 1.0, 1.0, 0.5)
    found = float(estimate_farm(farm)["farm/longest-first"])
    assert found == pytest.approx(simulated(400, [1.0] * 20, 0.5, 40, longest_first=True), rel=0.02)


def test_one_frame_a_machine_takes_as_long_as_the_longest() -> None:
    draw = np.random.default_rng(1)
    sigma = np.sqrt(np.log1p(0.25))
    longest = draw.lognormal(-(sigma**2) / 2, sigma, (4000, 30)).max(axis=1).mean()
    assert makespan(30, {"a": 30}, 0.5) == pytest.approx(longest, rel=0.02)


@settings(max_examples=examples(30), deadline=None)
@given(machines=st.integers(1, 400), each=st.integers(1, 40), spread=st.floats(0, 1.5))
def test_never_below_the_work_and_never_above_one_machine(machines: int, each: int, spread: float) -> None:
    frames = machines * each
    found = makespan(frames, {"a": machines}, spread)
    assert frames / machines * (1 - 1e-6) <= found <= frames * (1 + spread) + 1


@given(ratio=st.floats(0.01, 20), spread=st.floats(0.05, 2))
def test_shares_are_shares_and_fall(ratio: float, spread: float) -> None:
    for of in (render.longer_share, render.remaining_share):
        near, far = float(of(ratio, spread)), float(of(ratio * 1.1, spread))
        assert 0 <= far <= near + 1e-7 <= 1 + 2e-7


def test_the_mean_remaining_time_is_that_of_renewal_theory() -> None:
    at = np.concatenate([[1e-9], np.geomspace(1e-4, 400, 4000)])
    for spread in (0.2, 0.5, 1.0):
        share = render.remaining_share(at, spread)
        mean = float(np.sum((share[1:] + share[:-1]) / 2 * np.diff(at)))
        assert mean == pytest.approx((1 + spread**2) / 2, rel=0.01)


def test_five_hundred_cards_and_three_machine_years() -> None:
    key = "rtx4090-24gb"
    score = farms.score_of(DB.device(key), TABLE)
    frames = 90 * 60 * 24
    farm = Farm({key: 500}, {key: score}, float(frames), 3 * 365.25 * 86400 / frames, score.value, 0.5)
    days = float(estimate_farm(farm)["farm/random"]) / 86400
    assert 3 * 365.25 / 500 < days < 1.03 * 3 * 365.25 / 500


def test_scores_scale_the_frame_time() -> None:
    fast, slow = (farms.score_of(DB.device(k), TABLE) for k in ("rtx5090-32gb", "rtx-a6000-48gb"))
    time = float(render.frame_time(600.0, slow.value, fast.value, 1))
    assert time == pytest.approx(600 * 5038 / 14964.81)


def test_a_device_without_a_score_has_a_range_and_says_so() -> None:
    found = farms.score_of(DB.device("h100-sxm-80gb"), TABLE)
    assert found.low < found.value < found.high
    assert "estimated" in found.basis


def test_a_device_that_cannot_render_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot render"):
        farms.score_of(DB.device("tpu-v4"), TABLE)


def test_loading_narrows_the_spread_and_failures_add_frames() -> None:
    farm = Farm({"a": 4}, {"a": ONE}, 99.0, 10.0, 1.0, 0.5, scene_load=10.0, failure_share=0.01)
    ledger = estimate_farm(farm)
    assert float(ledger["frame/a/spread"]) == 0.25
    assert float(ledger["frames/attempts"]) == pytest.approx(100)
    assert float(ledger["farm/work"]) == pytest.approx(100 * 20 / 4)


def test_the_store_bounds_a_fast_farm() -> None:
    farm = Farm({"a": 1000}, {"a": ONE}, 10_000.0, 10.0, 1.0, 0.3)
    ledger = estimate_farm(farm, store=1e9, frame_bytes=2e9)
    assert float(ledger["farm/store"]) == 20_000 > float(ledger["farm/random"])


@pytest.mark.parametrize(
    ("spread", "machines", "each"), [(0.3, 50, 5), (0.4, 100, 3), (0.6, 50, 5), (1.0, 4, 3), (0.0, 4, 3)]
)
def test_longest_first_is_that_of_a_simulation(spread: float, machines: int, each: int) -> None:
    """I14: the work alone is a lower bound: at 3 frames a machine and a spread of 0.4 it is a ninth too short."""
    runs = 2000 if machines == 4 else 120
    played = simulated_makespan(machines * each, machines, max(spread, 1e-9), runs, 3, sort=True)
    limit = 0.02 if spread <= 0.6 else 0.04
    assert closed_makespan(machines * each, machines, spread, sort=True) == pytest.approx(played, rel=limit)


@settings(max_examples=examples(15), deadline=None)
@given(machines=st.integers(1, 60), each=st.integers(1, 12), spread=st.floats(0.05, 1.0))
def test_longest_first_lies_between_the_longest_and_any_order(machines: int, each: int, spread: float) -> None:
    farm = Farm({"any": machines}, {"any": Score(1, 1, 1, "")}, float(machines * each), 1.0, 1.0, spread)
    ledger = estimate_farm(farm)
    low, middle, high = (float(ledger[p]) for p in ("farm/work", "farm/longest-first", "farm/random"))
    assert low * (1 - 1e-9) <= middle <= high * (1 + 1e-9)


def test_scores_go_by_generation_and_the_common_cards_are_measured() -> None:
    """I15: Turing renders more a TFLOP/s than Ampere; parts without ray-tracing cores least."""
    table = farms.score_table(DB)
    rates = {name: entry["value"] for name, entry in table["per_fp32_tflop"].items()}
    assert rates["turing"] > rates["ampere"] > rates["pascal"]
    assert rates["turing"] > rates["ada"] > rates["volta"]
    for key in ("rtx3090-24gb", "rtx4090-24gb", "rtx5090-32gb", "rtx-a6000-48gb", "rtx-a5000-24gb", "l40s-48gb"):
        score = farms.score_of(DB.device(key), table)
        assert score.low == score.value == score.high
    for key in ("rtx3080-10gb", "t4-16gb", "l40-48gb"):
        score = farms.score_of(DB.device(key), table)
        assert score.low < score.value < score.high
    # An A100 has no ray-tracing cores, though its generation has.
    assert farms.score_of(DB.device("a100-sxm-80gb"), table).value == pytest.approx(rates["none"] * 19.5, rel=0.01)


def test_rows_of_ones_own_are_compared_with_what_is_printed() -> None:
    """I20: `validate --kind render FILE` ignored the rows of the file."""
    farm = {"gpu": "rtx4090-24gb:100", "frames": "300", "frame_time_s": "1200", "spread": "0.4"}
    rows = [
        {**farm, "makespan_days": "0.063"},
        {"gpu": "rtx3080-10gb", "value": "4500"},
        {"gpu": "h1000", "value": "5"},
    ]
    report = more_report("render", rows, DB)
    groups = {line["group"]: line for line in report["by_group"]}
    assert groups["makespan of a farm"]["rows"] == 1
    assert groups["makespan of a farm"]["median_pct"] < 5
    assert groups["score of a device"]["inside_range"] == "1 of 1"
    assert "unknown GPU" in report["no_prediction"][0]["pred_error"]
    with pytest.raises(UsageError, match="makespan_days"):
        more_report("render", [{"gpu": "rtx4090-24gb"}], DB)
