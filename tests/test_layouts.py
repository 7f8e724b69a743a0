"""Axes, rules and labels: one meaning in every command."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cli import gpucalc
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from legal_jobs import database, legal_cells

from gpucalc.core.columns import INPUT
from gpucalc.core.errors import UsageError
from gpucalc.jobs.completion import layout_facts
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import fit_code, fit_of, may_fit, predict, resolve
from gpucalc.jobs.variations import layout_label
from gpucalc.layouts import rules, verdicts
from gpucalc.layouts.axes import AXES, Sizes, of_scope, searched_axes
from gpucalc.layouts.label import label_cells, parse_label, read_restriction
from gpucalc.layouts.schedules import SCHEDULES
from gpucalc.questions.plan import plan

JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
WORDS = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "64", "--seq-len", "8192", "--global-batch", "128")
ULYSSES = "tp4-pp1-dp1-cp16-ulysses-mbs1"


@settings(max_examples=40, deadline=None)
@given(cells=legal_cells(), layers=st.none() | st.integers(1, 6), host=st.tuples(st.booleans(), st.booleans()))
def test_a_label_that_is_printed_names_the_same_layout(
    cells: dict[str, Any], layers: int | None, host: tuple[bool, bool]
) -> None:
    """Recomputation of some layers, expert tensor parallelism, shard groups, offloading, every schedule: all of it."""
    cells |= {"offload_optimizer": host[0], "offload_activations": host[1]}
    if cells["recompute"] == "full":
        cells["recompute_layers"] = layers
    context = Context(database())
    job = resolve(cells, context)
    (row,) = predict([job])
    label = layout_label(job, row)
    question = {name: cell for name, cell in cells.items() if name not in AXES}
    again = resolve({**question, **label_cells(label)}, context)
    (same,) = predict([again])
    assert layout_label(again, same) == label
    assert same == row


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_a_plan_of_one_label_is_its_row(model: str) -> None:
    question = {**JOB, "model": model, "n_gpus": 16, "seq_len": 4096}
    for row in plan(question, Context(database()), top=5).rows:
        restriction = read_restriction(row["layout"])
        found = plan(restriction.closed({**question, **restriction.cells}), Context(database()))
        assert found.candidates == 1
        assert [(one["layout"], one["pred_step_time_s"]) for one in found.rows] == [
            (row["layout"], row["pred_step_time_s"])
        ]


def test_what_a_label_leaves_out_is_its_default_in_plan_too() -> None:
    ranked = json.loads(gpucalc("plan", *WORDS, "--layout", "tp8-pp2", "-f", "json").out)
    (row,) = ranked["rows"]
    explained = json.loads(gpucalc("explain", *WORDS, "--layout", "tp8-pp2", "-f", "json").out)
    times = {term["path"]: term["value"] for term in explained["terms"]}
    assert (row["dp"], row["micro_batch"], row["vpp"], row["sequence_parallel"]) == (4, 1, 1, False)
    assert times["time/step"] == row["pred_step_time_s"]


def test_stars_leave_axes_to_the_search() -> None:
    def counted(label: str) -> int:
        found = json.loads(gpucalc("plan", *WORDS, "--layout", label, "-f", "json", "--top", "1").out)
        return int(found["candidates"])

    assert counted("tp8-mbs1-zero1-none") == 1
    assert counted("tp8-pp*-mbs1-zero1-none") == 4  # of 1, 2, 4 and 8 stages
    assert counted("tp8-zero*-mbs1-none") == 4
    free = counted("tp8-*")
    assert free == json.loads(gpucalc("plan", *WORDS, "--set", "tp=8", "-f", "json", "--top", "1").out)["candidates"]
    assert counted("tp8-pp2-*") < free


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("tp8-tp*", "tp is stated and left free"),
        ("tp8-offload-opt*", "is not searched"),
        ("tp8-pq*", "unknown token"),
        ("tp8-*4", "unknown token"),
    ],
)
def test_bad_stars(label: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_restriction(label)


def test_a_star_is_no_layout() -> None:
    with pytest.raises(UsageError, match="one layout is asked for"):
        parse_label("tp8-pp*")


# --- rules -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(legal_cells(largest=32), min_size=2, max_size=5))
def test_a_rule_says_the_same_of_one_layout_and_of_many(rows: list[dict[str, Any]]) -> None:
    facts = []
    for cells in rows:
        job = resolve(cells, Context(database()))
        facts.append(layout_facts(job.cells, job.model, job.cluster))
    columns = {name: np.array([c[name] for c in facts]) for name in facts[0] if name != "offered"}
    for rule in rules.rules():
        together = np.broadcast_to(rule.holds({**columns, "offered": None}), (len(facts),))
        assert together.tolist() == [bool(rule.holds(c)) for c in facts], rule.name


@settings(max_examples=60, deadline=None)
@given(legal_cells(largest=32), st.sampled_from(["tp", "pp", "cp", "vpp", "ep", "micro_batch"]), st.integers(1, 48))
def test_what_is_suggested_keeps_every_rule(cells: dict[str, Any], name: str, value: int) -> None:
    job = resolve(cells, Context(database()))
    c = rules.facts({**job.cells, name: value}, Sizes(**_sizes(job)))
    broken = [rule for rule in rules.rules() if not rule.holds(c)]
    assume(broken)
    for rule in broken:
        changes = verdicts.neighbour(rule, c)
        if changes is not None:
            after = {**c, **changes}
            after |= rules.derived(after)
            left = {id(other) for other in rules.rules() if not other.holds(after)}
            assert id(rule) not in left
            assert left < {id(other) for other in broken}


def _sizes(job: Any) -> dict[str, Any]:
    facts = layout_facts(job.cells, job.model, job.cluster)
    return {name: facts[name] for name in Sizes.__dataclass_fields__}


def test_the_planner_lists_only_what_no_rule_forbids_and_eval_says_nothing_of_it() -> None:
    ranked = plan({**JOB, "model": "mixtral-8x7b", "n_gpus": 16}, Context(database()), objective="memory", top=200)
    for row in ranked.rows:
        cells = {name: cell for name, cell in row.items() if name in INPUT}
        assert resolve(cells, Context(database())).unlisted == ()


def test_a_layout_that_no_plan_lists_is_priced_and_says_so() -> None:
    ran = gpucalc("explain", *WORDS, "--layout", ULYSSES)
    assert ran.status == 0
    assert "the planner would not list this: tp·cp = 64 does not divide the 32 heads" in ran.err
    odd = gpucalc("explain", *WORDS, "--layout", "tp2-dp32-mbs3-zero1")
    assert "the global batch of 128 is not a multiple of dp·micro_batch = 32·3 = 96" in odd.err
    assert "micro_batch=4 would be legal" in odd.err or "micro_batch=2 would be legal" in odd.err
    row = "model,gpu,n_gpus,seq_len,global_batch,tp,dp,micro_batch\nllama-3.1-8b,h100-sxm-80gb,64,8192,128,2,32,3\n"
    evaluated = gpucalc("eval", "-", stdin=row)
    assert evaluated.status == 0
    assert "the planner would not list this: the global batch of 128" in evaluated.err
    assert "the planner would not list this: the global batch of 128" in evaluated.out
    assert gpucalc("plan", *WORDS, "--layout", ULYSSES).status == 3


def test_every_axis_has_its_column_and_its_place() -> None:
    assert set(AXES) <= set(INPUT)
    assert searched_axes() == tuple(name for name in AXES if AXES[name].scope)
    assert set(of_scope("cut")) | set(of_scope("pipeline")) | set(of_scope("state")) == set(searched_axes())
    for name, axis in AXES.items():
        assert set(axis.after) <= set(AXES), name
    assert all(row.code == code for code, row in enumerate(SCHEDULES.values()))


# --- risky -------------------------------------------------------------------------------------------------


def test_risky_has_one_meaning() -> None:
    fill = np.array([0.5, 0.95, 1.0, 1.05, 1.06])
    assert fit_code(fill).tolist() == [0, 1, 1, 1, 2]
    assert [fit_of(one) for one in fill] == ["fits", "risky", "risky", "risky", "oom"]
    assert may_fit(fill).tolist() == [True, True, True, True, False]


def test_what_is_risky_is_listed_behind_what_fits() -> None:
    question = {**JOB, "model": "llama-3.1-70b", "n_gpus": 16, "global_batch": 32}
    rows = plan(question, Context(database()), top=400).rows
    found = [row["pred_fit"] for row in rows]
    assert found == sorted(found)  # fits, then risky
    risky = [row for row in rows if row["pred_fit"] == "risky"]
    assert risky
    assert [row["pred_step_time_s"] for row in risky] == sorted(row["pred_step_time_s"] for row in risky)


def test_where_only_risky_layouts_are_left_they_are_listed() -> None:
    """Of one layout whose memory is 1.0 to 1.05 of the capacity."""
    question = {**JOB, "model": "llama-3.1-70b", "n_gpus": 64, "zero_stage": 3, "recompute": "full", "tp": 1, "pp": 1}
    question |= {"cp": 1, "sequence_parallel": False, "micro_batch": 1, "shard_group": (None,)}
    for seq_len in range(16384, 30000, 256):
        found = plan({**question, "seq_len": seq_len}, Context(database()))
        if found.rows and found.rows[0]["pred_fit"] == "risky":
            break
    assert found.rows[0]["pred_fit"] == "risky"
    assert found.feasible == 1
