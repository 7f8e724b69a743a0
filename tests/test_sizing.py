"""Sizing: least counts by brute force with the planner, largest sizes by their neighbours, remedies one by one."""

from __future__ import annotations

import pytest

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import may_fit, resolve
from gpucalc.jobs.variations import Variation, outcomes
from gpucalc.layouts.label import label_cells
from gpucalc.questions.fit import (
    SEQUENCE_UNIT,
    STRATEGIES,
    WITH_EXPERTS,
    Sizer,
    largest_of_layout,
    least_gpus,
    on_count,
    stated_layout,
    strategies,
)
from gpucalc.questions.fit_remedies import remedies
from gpucalc.questions.plan import plan

CONTEXT = Context(Database())
QUESTION = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "seq_len": 8192}
BY_KEY = {one.key: one for one in (*STRATEGIES, *WITH_EXPERTS)}
# Strategies as restrictions of the planner's space.
RESTRICTED = {
    "dp": {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 0},
    "zero1": {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 1},
    "zero2": {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 2},
    "fsdp": {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 3, "shard_group": (0,)},
    "fsdp+tp": {"tp": (2, 4, 8), "pp": 1, "cp": 1, "zero_stage": 3, "shard_group": (0,)},
    "tp+pp": {"tp": (2, 4, 8), "dp": 1, "cp": 1, "zero_stage": 1, "schedule": "1f1b", "vpp": 1},
}


def sizer(**changed):
    return Sizer(CONTEXT, {**QUESTION, **changed})


def planner_fits(key: str, n_gpus: int, model: str) -> bool:
    pipelined = key == "tp+pp"
    for batch in {n_gpus, *((4 * pp for pp in (2, 4, 8, 16)) if pipelined else ())}:
        cells = {**QUESTION, "model": model, "n_gpus": n_gpus, "global_batch": batch, "micro_batch": 1}
        found = plan({**cells, **RESTRICTED[key]}, CONTEXT, top=5)
        rows = [r for r in found.rows if not pipelined or (r["pp"] > 1 and batch == 4 * r["pp"])]
        if rows:
            return True
    return False


@pytest.mark.parametrize("key", RESTRICTED)
def test_the_least_count_fits_and_no_smaller_one_does(key):
    """By brute force with the planner, which knows nothing of strategies."""
    here = sizer()
    verdict = least_gpus(here, BY_KEY[key], largest=64)
    counts = [n for n in here.counts(64) if n <= 32]
    expected = next((n for n in counts if planner_fits(key, n, "llama-3.1-8b")), None)
    assert verdict.n_gpus == expected
    if expected is not None:
        assert may_fit(verdict.outcome.terms["memory/fill"])
        assert verdict.outcome.job.cluster.n_gpus == expected
    else:
        assert verdict.over_bytes > 0


@pytest.mark.parametrize("key", ["zero1", "fsdp", "fsdp+tp", "3d"])
def test_the_next_smaller_count_names_what_overflows(key):
    verdict = least_gpus(sizer(model="llama-3.1-70b"), BY_KEY[key])
    if verdict.n_gpus is None:
        assert verdict.outcome.fit == "oom"
    else:
        assert verdict.next_smaller < verdict.n_gpus
    assert verdict.over_bytes > 0
    assert verdict.overflow.endswith("GiB")


def test_a_verdict_is_what_its_label_evaluates_to():
    for one in strategies(sizer().base.model):
        verdict = on_count(sizer(global_batch=64), one, 16)
        if verdict.outcome is None:
            continue
        cells = {**QUESTION, "n_gpus": 16, "global_batch": 64, **label_cells(verdict.outcome.label)}
        again = outcomes([(Variation("", ""), resolve(cells, CONTEXT))])[0]
        assert again.memory == pytest.approx(verdict.outcome.memory, rel=1e-9), one.key


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    verdict = on_count(sizer(), BY_KEY["fsdp"], 16)
    assert verdict.largest_micro_batch > 1

    def fill(size):
        cells = {**QUESTION, "n_gpus": 16, "dp": 16, "zero_stage": 3, "micro_batch": size, "sequence_parallel": False}
        return outcomes([(Variation("", ""), resolve(cells, CONTEXT))])[0].terms["memory/fill"]

    assert may_fit(fill(verdict.largest_micro_batch))
    assert not may_fit(fill(verdict.largest_micro_batch + 1))


def test_the_largest_sequence_fits_and_one_unit_more_does_not():
    verdict = on_count(sizer(), BY_KEY["fsdp"], 16)

    def fill(tokens):
        cells = {**QUESTION, "n_gpus": 16, "dp": 16, "zero_stage": 3, "seq_len": tokens}
        return outcomes([(Variation("", ""), resolve(cells, CONTEXT))])[0].terms["memory/fill"]

    assert verdict.largest_seq_len % SEQUENCE_UNIT == 0
    assert may_fit(fill(verdict.largest_seq_len))
    assert not may_fit(fill(verdict.largest_seq_len + SEQUENCE_UNIT))


def test_the_largest_micro_batch_divides_a_stated_batch():
    verdict = on_count(sizer(global_batch=96), BY_KEY["fsdp"], 16)
    assert 96 % (16 * verdict.largest_micro_batch) == 0


def test_the_largest_sizes_of_one_layout():
    start = stated_layout(CONTEXT, {**QUESTION, "n_gpus": 16, "global_batch": 16, **label_cells("dp16-mbs1-zero3")})
    whole = on_count(sizer(), BY_KEY["fsdp"], 16)
    assert largest_of_layout(start, "micro_batch") == whole.largest_micro_batch
    assert largest_of_layout(start, "seq_len") == whole.largest_seq_len


@pytest.mark.parametrize("key", ["zero1", "fsdp", "3d"])
def test_more_memory_never_needs_more_gpus(key):
    less = least_gpus(sizer(model="llama-3.1-70b"), BY_KEY[key]).n_gpus
    more = least_gpus(sizer(model="llama-3.1-70b", gpu="h200-sxm-141gb"), BY_KEY[key]).n_gpus
    assert less is None or more <= less


def test_a_higher_zero_stage_never_needs_more_gpus():
    found = [least_gpus(sizer(), BY_KEY[key]).n_gpus or 10**9 for key in ("dp", "zero1", "zero2", "fsdp")]
    assert found == sorted(found, reverse=True)


def test_expert_strategies_are_for_mixtures_only():
    assert "ep" not in {one.key for one in strategies(sizer().base.model)}
    mixture = sizer(model="mixtral-8x7b")
    assert "ep" in {one.key for one in strategies(mixture.base.model)}
    assert least_gpus(mixture, BY_KEY["ep"]).outcome.job.cells["ep"] > 1


def test_each_remedy_saves_what_direct_evaluation_says():
    cells = {
        **QUESTION,
        "model": "llama-3.1-70b",
        "n_gpus": 16,
        **label_cells("tp8-dp2-mbs2-zero1"),
        "global_batch": 32,
    }
    start = stated_layout(CONTEXT, cells)
    assert start.fit == "oom"
    found = remedies(start)
    names = {one.name for one in found}
    assert {"ZeRO 1 → 3", "optimizer state to the host", "micro-batch 2 → 1", "pp 1 → 2"} <= names
    for one in found:
        assert one.saved_bytes > 0
        label = one.outcome.label
        if one.outcome.job.cells["optimizer"] == "adam":
            again = {**QUESTION, "model": "llama-3.1-70b", "global_batch": 32, **label_cells(label)}
            beside = ("n_gpus", "grad_accum_dtype", "chunked_loss")
            again |= {n: one.outcome.job.cells[n] for n in beside if n in one.outcome.job.cells}
            direct = outcomes([(Variation("", ""), resolve(again, CONTEXT))])[0]
            assert direct.memory == pytest.approx(one.outcome.memory, rel=1e-9), one.name
            assert direct.step_time == pytest.approx(one.outcome.step_time, rel=1e-9), one.name


def test_remedies_that_make_it_fit_come_first():
    cells = {
        **QUESTION,
        "model": "llama-3.1-70b",
        "n_gpus": 16,
        **label_cells("tp8-dp2-mbs2-zero1"),
        "global_batch": 32,
    }
    verdicts = [one.outcome.fit == "oom" for one in remedies(stated_layout(CONTEXT, cells))]
    assert verdicts == sorted(verdicts)


def test_moving_activations_to_the_host_takes_time_where_the_link_is_slow():
    cells = {**QUESTION, "n_gpus": 8, "global_batch": 8, **label_cells("dp8-mbs1-zero3-none")}
    stay = stated_layout(CONTEXT, cells)
    move = stated_layout(CONTEXT, {**cells, "offload_activations": True})
    assert move.memory < stay.memory
    assert move.step_time > stay.step_time
    assert move.terms["time/offload/exposed"] > 0
