"""Diagnosis: a cause that was put in is found again; what cannot be told apart is told so."""

from __future__ import annotations

import dataclasses

import pytest

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.jobs.variations import Variation, outcomes
from gpucalc.layouts.label import label_cells
from gpucalc.questions.diagnose import diagnose

CONTEXT = Context(Database())
QUESTION = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
DENSE = {**QUESTION, **label_cells("tp8-pp4-dp2-mbs1-zero1-sp-none")}
SHARDED = {**QUESTION, **label_cells("dp64-mbs1-zero3-full"), "framework": "fsdp", "inter_node_gbps_per_gpu": 200.0}


def measured(cells, columns=(), **changed):
    job = resolve({**cells, **changed}, CONTEXT)
    job = dataclasses.replace(job, columns={**job.columns, **dict(columns)})
    return outcomes([(Variation("", ""), job)])[0].step_time


def finding(found, key):
    return next(f for f in found.findings if f.cause.key == key)


def test_the_predicted_time_itself_is_no_gap():
    found = diagnose(CONTEXT, DENSE, measured(DENSE))
    assert found.verdict == "no gap"
    assert "no gap" in found.summary[1]


@pytest.mark.parametrize("edge", ["low", "high"])
def test_a_time_inside_the_band_is_no_gap(edge):
    whole = diagnose(CONTEXT, DENSE, measured(DENSE))
    bound = getattr(whole, edge)
    factor = 1.001 if edge == "low" else 0.999
    assert diagnose(CONTEXT, DENSE, bound * factor).verdict == "no gap"
    assert diagnose(CONTEXT, DENSE, bound / factor).verdict == ("faster" if edge == "low" else "slower")


def test_a_network_that_was_slower_is_found_with_its_rate():
    time = measured(SHARDED, {"network_bandwidth": 4e9})
    found = diagnose(CONTEXT, SHARDED, time)
    one = finding(found, "network")
    assert one.explained == 1
    assert one.value == pytest.approx(4e9, rel=0.03)
    assert one.says.endswith("Gb/s")


def test_recomputation_that_was_on_explains_the_whole_gap():
    found = diagnose(CONTEXT, DENSE, measured(DENSE, recompute="full"))
    one = finding(found, "recompute")
    assert one.explained == pytest.approx(1, abs=1e-9)
    assert one.weight == 1  # nothing explains it better


@pytest.mark.parametrize(
    ("key", "columns", "value"),
    [
        ("link", {"link_bandwidth": 150e9}, 150e9),
        ("clock", {"clock_at_reference": 0.6}, 0.6),
        ("blocking", {"serial_gap_seconds": 4e-3}, 4e-3),
        ("stragglers", {"straggler_share": 0.1}, 1.3),
    ],
)
def test_a_constant_that_was_changed_is_found_with_its_value(key, columns, value):
    found = diagnose(CONTEXT, DENSE, measured(DENSE, columns))
    one = finding(found, key)
    assert one.explained == 1
    assert one.value == pytest.approx(value, rel=0.03)


def test_explanations_that_cannot_be_told_apart_are_said_to_be_so():
    found = diagnose(CONTEXT, DENSE, 1.3 * measured(DENSE))
    near = [f for f in found.findings if f.weight >= 0.5 and f.explained > 0.5]
    assert len(near) > 1
    assert "cannot tell them apart" in found.summary[1]


def test_a_gap_beyond_every_bound_has_no_single_cause():
    found = diagnose(CONTEXT, DENSE, 0.05 * measured(DENSE))
    text = " ".join(found.summary)
    assert "below" in text
    assert "no single change" in text


@pytest.mark.parametrize("ratio", [0.8, 1.2, 2.0, 10.0])
def test_weights_are_relative_and_sorted(ratio):
    found = diagnose(CONTEXT, DENSE, ratio * measured(DENSE))
    weights = [round(f.weight, 6) for f in found.findings]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == 1
    assert all(0 <= f.explained <= 1 for f in found.findings)
    direction = 1 if ratio > 1 else -1
    assert all((f.reaches - found.base.step_time) * direction > 0 for f in found.findings)


def test_the_terms_add_up_to_the_prediction():
    found = diagnose(CONTEXT, SHARDED, 30.0)
    assert sum(t.seconds for t in found.terms) == pytest.approx(found.base.step_time, rel=1e-9)
    assert sum(t.share for t in found.terms) == pytest.approx(1)


def test_a_setting_that_would_not_fit_loses_weight():
    tight = {**QUESTION, **label_cells("tp8-pp4-dp2-mbs4-zero1-sp-full")}
    found = diagnose(CONTEXT, tight, 0.9 * measured(tight))
    one = finding(found, "no-recompute")
    assert one.fit == "oom"
    assert one.explained > 0.9
    assert one.weight < 0.5  # though it explains the gap


def test_causes_of_mixtures_are_for_mixtures():
    keys = {f.cause.key for f in diagnose(CONTEXT, DENSE, 30.0).findings}
    assert "imbalance" not in keys
    cells = {**QUESTION, "model": "mixtral-8x7b", **label_cells("dp64-ep8-mbs1-zero1")}
    found = diagnose(CONTEXT, cells, 1.5 * measured(cells))
    assert "imbalance" in {f.cause.key for f in found.findings}
