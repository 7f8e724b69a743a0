"""What-if: elasticities by Euler's theorem, neighbours against direct evaluation, the network that a bound needs."""

from __future__ import annotations

import pytest

from gpucalc.core.errors import InfeasibleError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.jobs.variations import Variation, exposed_share, neighbours, outcomes, time_parts
from gpucalc.layouts.label import label_cells
from gpucalc.questions.plan import plan
from gpucalc.questions.whatif import _with_columns, base_outcome, bisect, compare, network_for, whatif

CONTEXT = Context(Database())
QUESTION = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
LABELS = ["tp8-pp4-dp2-mbs1-zero1-sp", "dp64-mbs1-zero3", "tp4-pp2-dp4-cp2-mbs1-zero1-sp-zb1p", "tp2-pp4-dp8-vpp2-mbs1"]


def job(label: str, **changed):
    return {**QUESTION, **label_cells(label), **changed}


def evaluated(cells):
    return outcomes([(Variation("", ""), resolve(cells, CONTEXT))])[0]


@pytest.fixture(scope="module")
def answers():
    return {label: whatif(CONTEXT, job(label, recompute="full")) for label in LABELS}


@pytest.mark.parametrize("label", LABELS)
def test_elasticities_add_up_to_one_whole_step(answers, label):
    """Times are homogeneous: rates λ times as high and delays λ times as short make the step λ times as short."""
    worth = [w for w in answers[label].changes if w.kind == "resource"]
    delays = ("latency", "host:")
    rates = sum(w.elasticity for w in worth if not w.change.startswith(delays))
    times = sum(w.elasticity for w in worth if w.change.startswith(delays))
    assert rates - times == pytest.approx(-1, abs=0.005)


@pytest.mark.parametrize("label", LABELS)
def test_a_better_resource_is_never_worth_less_than_nothing(answers, label):
    for worth in answers[label].changes:
        if worth.kind == "resource":
            assert worth.gain >= -1e-9
            assert -1.001 <= worth.elasticity <= 1.001


def test_a_single_node_does_not_feel_its_network():
    found = whatif(CONTEXT, job("tp8-mbs1-sp", n_gpus=8, model="llama-3.1-8b", global_batch=16))
    network = next(w for w in found.changes if w.change.startswith("network"))
    assert network.elasticity == 0
    assert network.gain == 0


@pytest.mark.parametrize("label", LABELS)
def test_neighbours_are_what_their_labels_evaluate_to(answers, label):
    near = [w for w in answers[label].changes if w.kind == "layout"]
    assert len(near) > 8
    for worth in near:
        again = evaluated(job(worth.outcome.label))
        assert again.step_time == pytest.approx(worth.outcome.step_time, rel=1e-9), worth.change
        assert again.memory == pytest.approx(worth.outcome.memory, rel=1e-9)
        assert worth.gain == pytest.approx(answers[label].base.step_time / again.step_time - 1, rel=1e-9)


def test_neighbours_keep_the_gpus_and_the_batch_and_are_all_different():
    start = resolve(job(LABELS[0]), CONTEXT)
    near = neighbours(start)
    for _, one in near:
        c = one.cells
        assert c["tp"] * c["pp"] * c["dp"] * c["cp"] == 64
        assert c["global_batch"] == 128
        assert 128 % (c["dp"] * c["micro_batch"]) == 0
    assert len({str(sorted((k, str(v)) for k, v in one.cells.items())) for _, one in near}) == len(near)


def test_no_neighbour_that_fits_beats_the_planner():
    """The planner's best of the whole space is not slower than any step from it that it searches."""
    small = {**QUESTION, "model": "llama-3.1-8b", "n_gpus": 16, "global_batch": 32}
    best = plan(small, CONTEXT, top=1).rows[0]
    found = whatif(CONTEXT, {**small, **label_cells(best["layout"])})
    for worth in found.changes:
        moved = {"offload_optimizer", "offload_activations"} & set(worth.outcome.variation.cells)
        if worth.kind == "layout" and worth.outcome.terms["memory/fill"] <= 1 and not moved:
            assert worth.gain <= 1e-6, worth.change


def test_changes_come_with_the_largest_gain_first_and_those_that_do_not_fit_last(answers):
    for answer in answers.values():
        keys = [(w.outcome.fit == "oom", -w.gain) for w in answer.changes]
        assert keys == sorted(keys, key=lambda k: (k[0], round(k[1], 9)))


@pytest.mark.parametrize("label", LABELS)
def test_the_terms_of_every_variation_add_up_to_its_step(answers, label):
    for worth in answers[label].changes:
        terms = worth.outcome.terms
        assert sum(terms.get(p, 0.0) for p in time_parts()) == pytest.approx(terms["time/step"], rel=1e-9)


def test_the_network_that_a_bound_needs_meets_it_and_a_slower_one_does_not():
    start = evaluated(job("dp64-mbs1-zero3", inter_node_gbps_per_gpu=25.0))
    floor = network_for(start, 0.999999).share_at_best
    bound = floor + 0.05
    need = network_for(start, bound)
    assert need.rate_needed is not None

    def share(rate):
        columns = Variation("", "", {}, {"network_bandwidth": rate})
        return exposed_share(outcomes([(columns, _with_columns(start.job, columns))])[0].terms)

    assert share(need.rate_needed) <= bound + 1e-9
    assert share(need.rate_needed * 0.99) > bound
    impossible = network_for(start, floor / 2)
    assert impossible.rate_needed is None
    assert "exposed" in impossible.blocking


def test_bisection_finds_rising_and_falling_crossings():
    assert bisect(lambda x: x, 1.0, 1e6, 42.0) == pytest.approx(42, rel=1e-3)
    assert bisect(lambda x: 1 / x, 1.0, 1e6, 0.1) == pytest.approx(10, rel=1e-3)


def test_a_cluster_against_itself_is_a_draw_and_costs_are_by_hand():
    found = compare(CONTEXT, job(LABELS[0]), {"gpu": "h100-sxm-80gb"}, 2.0, 4.0)
    mine, theirs = [c for c in found if c.layout_by == "stated"]
    assert mine.outcome.step_time == theirs.outcome.step_time
    assert theirs.dollars_per_million_tokens == pytest.approx(2 * mine.dollars_per_million_tokens)
    tokens_per_hour = 128 * 8192 / mine.outcome.step_time * 3600
    assert mine.dollars_per_million_tokens == pytest.approx(64 * 2.0 / tokens_per_hour * 1e6)


def test_another_gpu_brings_its_own_network():
    found = compare(CONTEXT, {**QUESTION, "inter_node_gbps_per_gpu": 50.0}, {"gpu": "h200-sxm-141gb", "n_gpus": 32})
    first, second = (c.outcome.job.cluster for c in found)
    assert first.network_bandwidth_per_gpu == 50e9 / 8
    assert second.network_bandwidth_per_gpu == 400e9 / 8
    assert second.n_gpus == 32


def test_without_a_layout_the_fastest_is_taken_or_it_is_told_that_none_fits():
    base, notes = base_outcome(CONTEXT, {**QUESTION, "model": "llama-3.1-8b", "n_gpus": 8, "global_batch": 16})
    assert base.fit != "oom"
    assert "fastest" in notes[0]
    with pytest.raises(InfeasibleError, match="no layout fits"):
        base_outcome(CONTEXT, {**QUESTION, "n_gpus": 8})
