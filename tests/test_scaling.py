"""Scaling curves: more GPUs are never slower, laws are recovered, stragglers by order statistics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.formulas import scaling as laws
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.jobs.variations import Variation, outcomes
from gpucalc.layouts.label import label_cells
from gpucalc.questions.scale import Point, Straggling, breaking_point, fitted_law, parse_counts, scale

CONTEXT = Context(Database())
JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "seq_len": 4096, "global_batch": 256}
COUNTS = [4, 8, 16, 32, 64, 128]


@pytest.fixture(scope="module")
def curves():
    return scale(CONTEXT, JOB, COUNTS, "both")


def test_more_gpus_never_take_longer(curves):
    strong = [p for p in curves.points if p.mode == "strong"]
    times = [p.step_time for p in strong]
    assert [p.n_gpus for p in strong] == COUNTS
    assert all(later <= 1.001 * sooner for sooner, later in itertools.pairwise(times))


def test_a_point_is_what_its_label_evaluates_to(curves):
    for point in curves.points:
        cells = {**JOB, "n_gpus": point.n_gpus, "global_batch": point.global_batch}
        again = outcomes([(Variation("", ""), resolve({**cells, **label_cells(point.outcome.label)}, CONTEXT))])[0]
        assert again.step_time == pytest.approx(point.step_time, rel=1e-9)
        assert point.tokens_per_s == pytest.approx(point.global_batch * 4096 / point.step_time, rel=1e-9)


def test_shares_of_a_step_add_up(curves):
    for point in curves.points:
        assert sum(point.shares.values()) == pytest.approx(1, abs=1e-9)


def test_weak_scaling_grows_the_batch_and_starts_where_strong_does(curves):
    weak = [p for p in curves.points if p.mode == "weak"]
    assert [p.global_batch for p in weak] == [256 * n // 4 for n in COUNTS]
    assert weak[0].step_time == curves.points[0].step_time
    assert weak[0].efficiency == 1


def test_the_quick_search_is_near_the_exhaustive_one():
    quick = scale(CONTEXT, JOB, [8, 64], "strong")
    whole = scale(CONTEXT, JOB, [8, 64], "strong", exhaustive=True)
    for a, b in zip(quick.points, whole.points, strict=True):
        assert b.step_time <= a.step_time * (1 + 1e-9)
        assert a.step_time <= 1.03 * b.step_time


def test_a_stated_layout_holds_at_every_count():
    found = scale(CONTEXT, {**JOB, "tp": 2, "pp": 2}, [8, 32], "strong")
    assert all(p.outcome.job.cells["tp"] == p.outcome.job.cells["pp"] == 2 for p in found.points)


def test_what_cannot_fit_is_told_with_a_reason():
    found = scale(CONTEXT, {**JOB, "model": "llama-3.1-405b"}, [8], "strong")
    assert found.points[0].outcome is None
    assert "memory" in found.points[0].reason
    assert found.laws == []


def test_stragglers_multiply_the_synchronous_step():
    still = scale(CONTEXT, JOB, [64], "strong", Straggling(1e-9)).points[0]
    slow = scale(CONTEXT, JOB, [64], "strong", Straggling(0.05)).points[0]
    nodes = scale(CONTEXT, JOB, [64], "strong", Straggling(0.05, "normal", 8)).points[0]
    assert slow.step_time / still.step_time == pytest.approx(float(laws.slowest_normal(64.0, 0.05)), rel=1e-6)
    assert still.step_time < nodes.step_time < slow.step_time
    assert sum(slow.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("workers", [2, 8, 64, 512])
def test_the_expected_maximum_agrees_with_drawing_it(workers):
    drawn = np.random.default_rng(0).standard_normal((20_000, workers)).max(axis=1).mean()
    assert float(laws.expected_largest_deviate(float(workers))) == pytest.approx(drawn, abs=0.04)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.001, 0.3))
def test_more_workers_are_never_faster(some, other, variation):
    few, many = sorted((some, other))
    for law in (laws.slowest_normal, laws.slowest_lognormal):
        assert 1 <= float(law(float(few), variation)) <= float(law(float(many), variation)) + 1e-3


def test_a_heavy_tail_is_slower():
    assert float(laws.slowest_lognormal(4096.0, 0.2)) > float(laws.slowest_normal(4096.0, 0.2))


@given(st.floats(0, 0.5), st.floats(0.1, 100))
def test_the_serial_fraction_of_a_curve_that_obeys_amdahl_is_found(serial, first):
    points = []
    for n in (8, 16, 32, 64, 256):
        time = float(laws.amdahl_time(first, serial, n / 8))
        points.append(Point("strong", n, 64, None, time, 64 / time, first / time, first / time * 8 / n))
    law = fitted_law("strong", points)
    assert law.serial_fraction == pytest.approx(serial, abs=1e-6)
    assert law.residual < 1e-6
    assert law.from_gpus in (8, 32)  # without a serial part every count has the same efficiency


@given(st.floats(0.01, 0.9))
def test_the_serial_fraction_of_a_curve_that_obeys_gustafson_is_found(serial):
    points = []
    for n in (8, 16, 64, 512):
        speedup = float(laws.gustafson_speedup(serial, n / 8))
        points.append(Point("weak", n, n, None, 1.0, speedup * 1000, speedup, speedup * 8 / n))
    assert fitted_law("weak", points).serial_fraction == pytest.approx(serial, abs=1e-6)


def test_the_breaking_point_is_the_first_below_the_bound(curves):
    strong = [p for p in curves.points if p.mode == "strong"]
    assert breaking_point(strong, 2.0) is strong[0]
    assert breaking_point(strong, 0.0) is None


@pytest.mark.parametrize(
    "text", ["", "0", "8..4", "8..", "a", "8,,16", "8..64:0", "1..100000:1", "-8", "8.5", "9999999"]
)
def test_bad_counts_are_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="--gpus"):
        parse_counts(text)
