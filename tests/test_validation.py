"""Metrics of a validation by hand-computed values, and the shipped measurements against committed figures."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.validate.kernels import SHIPPED_TABLES, kernel_targets, shipped_kernels
from gpucalc.validate.metrics import (
    Errors,
    balanced,
    errors_of,
    fit_quality,
    grouped,
    listed_groups,
    quantile,
    rank_group,
    rankings,
    same_job_groups,
)
from gpucalc.validate.report import report
from gpucalc.validate.training import (
    LEFT_OUT,
    RANDOM,
    SHIPPED,
    Checked,
    Prediction,
    check_rows,
    check_shipped,
    shipped_rows,
)

GOLDEN = Path(__file__).parent / "golden" / "accuracy.csv"


def row(source="s", measured=1.0, predicted=1.0, strict="True", oom=None, fit="fits", band=(0.9, 1.1), **more):
    record = {"id": more.get("id", ""), "source": source, "strict": strict, "mem_counter": more.get("counter", "")}
    predictions = {SHIPPED: Prediction(predicted, more.get("gib"), fit)}
    return Checked(record, None, measured, more.get("measured_gib"), oom, predictions, band)


def test_errors_by_hand() -> None:
    """Errors −0.1, 0.2, 0.0, 0.4: sizes 0, .1, .2, .4; median .15; p90 at 2.7: .2 + .7·.2 = .34; bias 0.1."""
    found = errors_of([0.9, 1.2, None, 1.0, 1.4])
    assert found.rows == 4
    assert (found.median, found.p90, found.bias) == pytest.approx((0.15, 0.34, 0.1))
    assert errors_of([None]) == Errors(0, None, None, None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_lies_within_and_grows(values: list[float], share: float) -> None:
    assert min(values) <= quantile(values, share) <= max(values)
    assert quantile(values, 0) == min(values)
    assert quantile(values, 1) == max(values)
    assert quantile(values, share / 2) <= quantile(values, share) + 1e-6


def test_balanced_counts_sources_of_five_trusted_rows_alike() -> None:
    """a: six rows 10 % off; b: five rows 30 % off; c: four rows; d: five rows that are not trusted."""
    rows = [row("a", predicted=1.1)] * 6 + [row("b", predicted=0.7)] * 5
    rows += [row("c", predicted=3.0)] * 4 + [row("d", predicted=3.0, strict="False")] * 5
    assert balanced(rows) == pytest.approx(0.2)
    assert balanced([row("c")] * 4) is None


def test_inside_band() -> None:
    """Predicted 1.0: the band reaches from 0.9 to 1.1 of it, and must hold the measurement."""
    assert row(measured=1.05).inside() is True
    assert row(measured=1.2).inside() is False
    assert row(measured=None).inside() is None


def test_fit_quality_by_hand() -> None:
    """Ran: 3 right, 1 called oom, 1 risky; oom: 1 found, 1 missed. (3/4 + 1/2)/2 = 0.625."""
    rows = [row()] * 3 + [row(fit="oom"), row(fit="risky")]
    rows += [row(measured=None, oom=True, fit="oom"), row(measured=None, oom=True, fit="fits")]
    found = fit_quality(rows)
    assert (found.fitting, found.fitting_right, found.fitting_risky) == (5, 3, 1)
    assert (found.oom, found.oom_right, found.oom_risky) == (2, 1, 0)
    assert found.balanced == pytest.approx(0.625)
    assert found.oom_found == 0.5
    assert fit_quality([row(measured=None, oom=True, fit="risky")]).oom_found == 0


def test_ranking_by_hand() -> None:
    """Three clear pairs of 100, 110, 121; the prediction swaps the best two: 2 of 3, and 10 % are lost."""
    found = rank_group("g", [100.0, 110.0, 121.0], [1.0, 3.0, 2.0])
    assert (found.pairs, found.right) == (3, 2.0)
    assert found.loss == pytest.approx(0.1)
    assert rank_group("g", [100.0, 102.0], [2.0, 1.0]).pairs == 0  # 2 % apart: no order
    assert rank_group("g", [100.0, 120.0], [1.0, 1.0]).right == 0.5


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=8))
def test_a_perfect_prediction_ranks_perfectly(speeds: list[float]) -> None:
    found = rank_group("g", speeds, speeds)
    assert found.right == found.pairs
    assert found.loss == 0


@pytest.fixture(scope="module")
def shipped() -> list[Checked]:
    return check_shipped(Context(Database()))


def test_shipped_measurements_are_whole(shipped: list[Checked]) -> None:
    assert len(shipped) >= 750
    assert all(r.record["source"] and r.record["citation"] for r in shipped)
    assert len({r.identity for r in shipped}) == len(shipped)
    unpredicted = [r for r in shipped if r.job is None]
    assert all(not r.trusted and r.error for r in unpredicted)


def test_every_row_belongs_to_a_family_and_to_its_source(shipped: list[Checked]) -> None:
    assert sum(len(g) for g in grouped(shipped, "source").values()) == len(shipped)
    by_family = grouped(shipped, "family")
    assert {"megatron", "low-precision", "fsdp", "moe", "slow-network", "one-node", "adapters"} <= set(by_family)
    assert all(r.job.model.is_moe for r in by_family["moe"] if r.job)


def test_held_out_predictions_belong_to_shipped_rows_only(shipped: list[Checked]) -> None:
    """A user's file with the same ids gets no held-out views."""
    records = [r.record for r in shipped[:5]]
    for own, ours in zip(check_rows(records, Context(Database())), shipped[:5], strict=True):
        assert set(own.predictions) == {SHIPPED}
        assert own.seconds(SHIPPED) == pytest.approx(ours.seconds(SHIPPED), rel=1e-3)
    views = {view for r in shipped for view in r.predictions}
    assert views <= {SHIPPED, RANDOM, LEFT_OUT}


def test_groups_of_one_job_are_found_without_a_list(shipped: list[Checked]) -> None:
    found = same_job_groups(shipped)
    assert found
    for members in found.values():
        jobs = [m.job for m in members]
        assert len({(j.cells["global_batch"], j.cluster.n_gpus, j.cluster.device.key) for j in jobs if j}) == 1
    listed = listed_groups(shipped, shipped_rows("ranking_groups"))
    assert len(rankings(listed, trusted_only=False)) >= 20


def test_rows_that_measure_nothing_are_left_out() -> None:
    base = {"model": "llama-3.1-8b", "gpu": "h100", "n_gpus": "8", "global_batch": "8"}
    rows = check_rows(
        [base, {**base, "measured_step_time_s": "1.0"}, {**base, "measured_oom": "yes"}], Context(Database())
    )
    assert [(r.measured_s, r.oom) for r in rows] == [(1.0, None), (None, True)]
    wrong = check_rows([{**base, "gpu": "h1000x", "measured_step_time_s": "1.0"}], Context(Database()))[0]
    assert wrong.job is None
    assert "h1000x" in wrong.error
    assert wrong.ratio() is None


# A change of the model shows as a diff of the golden file; regenerate it with scripts/make_accuracy_page.py.
TOLERANCE = 0.3  # percentage points, and counts of rows exactly


def test_regression_gate(shipped: list[Checked]) -> None:
    with GOLDEN.open(encoding="utf-8") as stream:
        golden = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    found = report(shipped, listed_groups(shipped, shipped_rows("ranking_groups")), ("source", "family"))
    found["targets"] += kernel_targets({k: shipped_kernels(k) for k in SHIPPED_TABLES}, Database())
    now = {
        (section, str(line.get("group") or line.get("target")), name): value
        for section, lines in found.items()
        if isinstance(lines, list)
        for line in lines
        for name, value in line.items()
    }
    assert len(golden) > 200
    off = []
    for cells in golden:
        value = now.get((cells["section"], cells["group"], cells["figure"]))
        expected = float(cells["value"])
        allowed = max(TOLERANCE, 0.02 * abs(expected)) if cells["figure"].endswith("_pct") else 0
        if value is None or abs(value - expected) > allowed:
            off.append(f"{cells['section']} / {cells['group']} / {cells['figure']}: {expected} → {value}")
    assert not off, "run scripts/make_accuracy_page.py and look at the diff:\n" + "\n".join(off[:20])


def test_a_change_of_the_model_is_seen_by_the_gate(shipped: list[Checked]) -> None:
    """Predictions 3 % slower move the figures by more than the tolerance."""
    slower = [
        dataclasses.replace(r, predictions={v: dataclasses.replace(p, seconds=p.seconds * 1.03)
                                            for v, p in r.predictions.items() if p.seconds})
        for r in shipped
    ]  # fmt: skip
    groups = listed_groups(shipped, shipped_rows("ranking_groups"))
    before, after = (report(rows, groups)["all"][0]["bias_pct"] for rows in (shipped, slower))
    assert after - before > 2 * TOLERANCE
