"""The planner against brute force: the same best layouts, the same verdicts, and counts that add up."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from legal_jobs import database

from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import RECOMPUTES
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.layouts.axes import divisors
from gpucalc.layouts.label import label_cells
from gpucalc.layouts.rules import BATCH, DIVIDES_HEADS, PARTS_GPUS, SHARDING, STAGES
from gpucalc.layouts.space import cuts, make_space
from gpucalc.models.model import load_model
from gpucalc.questions import plan as search
from gpucalc.questions.plan import MEMORY, SLOWER, plan

GPT = {"model": "gpt2-1.5b", "gpu": "a100-sxm-40gb", "n_gpus": 8, "seq_len": 1024, "global_batch": 16}
LLAMA = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "global_batch": 16}
MIXTURE = {"model": "mixtral-8x7b", "gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 4096, "global_batch": 16}
PINNED = {"zero_stage": 1, "sequence_parallel": True, "schedule": "1f1b", "cp": 1}


def brute_force(question: dict[str, Any], pinned: dict[str, Any]) -> list[dict[str, Any]]:
    """Every legal layout of a 1F1B job with stated recomputation, each resolved and predicted on its own."""
    model = load_model(question["model"])
    n, batch = question["n_gpus"], question["global_batch"]
    found = []
    for tp, pp, micro, kind, ep in itertools.product(
        divisors(n, 64), divisors(n), divisors(batch, 64), RECOMPUTES, divisors(model.experts or 1)
    ):
        if n % (tp * pp) or model.heads % tp or pp > model.layers or batch % (n // (tp * pp) * micro):
            continue
        etps = {tp, 1} if ep > 1 or model.experts else {tp}
        for etp in sorted(etps):
            if (n // pp) % (ep * etp):
                continue
            cells = {
                **question,
                **pinned,
                "tp": tp,
                "pp": pp,
                "ep": ep,
                "etp": etp,
                "micro_batch": micro,
                "recompute": kind,
            }
            cells |= {"dp": n // (tp * pp), "vpp": 1, "sequence_parallel": tp > 1}
            cells["schedule"] = "1f1b" if pp > 1 else "none"
            (row,) = predict([resolve(cells, Context(database()))])
            found.append({**cells, **row})
    return found


def fingerprint(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("tp", "pp", "ep", "etp", "micro_batch", "recompute"))


@pytest.mark.parametrize("question", [GPT, LLAMA, MIXTURE], ids=lambda q: q["model"])
def test_the_planner_finds_what_brute_force_finds(question: dict[str, Any]) -> None:
    every = brute_force(question, {"zero_stage": 1, "cp": 1})
    fitting = [row for row in every if row["pred_fit"] != "oom"]
    ranked = plan({**question, **PINNED}, Context(database()), top=10_000)
    stated = [row for row in ranked.rows if not row.get("recompute_layers")]
    # With fused attention selective recomputation is not recomputation; the planner offers it once.
    expected = {fingerprint(row): row for row in fitting if row["recompute"] != "selective"}
    got = {fingerprint(row): row for row in stated if row["recompute"] != "selective"}
    assert set(got) == set(expected)
    for key, row in expected.items():
        assert got[key]["pred_step_time_s"] == pytest.approx(row["pred_step_time_s"], rel=1e-9)
        assert got[key]["pred_peak_mem_gib"] == pytest.approx(row["pred_peak_mem_gib"], rel=1e-9)
    assert [row["pred_fit"] for row in ranked.rows] == sorted(row["pred_fit"] for row in ranked.rows)  # fits < risky
    for fit in ("fits", "risky"):
        here = [row["pred_step_time_s"] for row in ranked.rows if row["pred_fit"] == fit]
        best = min((row["pred_step_time_s"] for row in fitting if row["pred_fit"] == fit), default=None)
        assert here == sorted(here)
        assert best is None or here[0] <= best * (1 + 1e-9)


@pytest.mark.parametrize("question", [GPT, LLAMA, MIXTURE], ids=lambda q: q["model"])
@pytest.mark.parametrize("objective", ["throughput", "mfu"])
def test_bounds_change_nothing_but_the_work(
    question: dict[str, Any], objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = plan(question, Context(database()), objective=objective, top=10)
    monkeypatch.setattr(search, "_bounds", lambda order, base, space: np.zeros(len(order)))
    exhaustive = plan(question, Context(database()), objective=objective, top=10)
    assert SLOWER not in exhaustive.rejected
    assert exhaustive.evaluated >= bounded.evaluated
    assert [row["layout"] for row in bounded.rows] == [row["layout"] for row in exhaustive.rows]
    assert [row["pred_step_time_s"] for row in bounded.rows] == [row["pred_step_time_s"] for row in exhaustive.rows]
    assert bounded.candidates == exhaustive.candidates


@pytest.mark.parametrize("question", [GPT, LLAMA, MIXTURE], ids=lambda q: q["model"])
def test_the_counts_add_up(question: dict[str, Any]) -> None:
    """Candidates are evaluated, rejected by a named constraint, or a duplicate of automatic recomputation."""
    result = plan(question, Context(database()), objective="memory")
    rejected = dict(result.rejected)
    memory = rejected.pop(MEMORY, 0)
    assert result.feasible + memory == result.evaluated
    assert SLOWER not in rejected
    duplicates = result.candidates - result.evaluated - sum(rejected.values())
    assert 0 <= duplicates <= result.candidates / 2
    assert all(count > 0 for count in result.rejected.values())


def test_every_constraint_of_a_small_space_counts_its_layouts() -> None:
    """12 heads, 6 GPUs, 2 layers, counted by hand: tp and pp in {1, 2, 3, 6} and {1, 2}, batch 6, ZeRO 1 only."""
    cells = {"n_gpus": 6, "global_batch": 6, "seq_len": 512, "zero_stage": 1, "cp": 1, "recompute": "none"}
    cells |= {"schedule": "1f1b", "micro_batch": 1, "sequence_parallel": False}
    space = make_space(cells, layers=2, heads=8, experts=0, domain=8, selective_matters=False)
    found = {(int(row[0]), int(row[1])) for row in cuts(space)}
    # tp=3 and tp=6 do not divide 8 heads; tp=1 has pp 1 and 2, tp=2 has pp 1 only (2·2 does not divide 6).
    assert found == {(1, 1), (2, 1)}
    assert space.rejected[DIVIDES_HEADS] == 3  # tp=3 with pp 1 and 2, tp=6 with pp 1
    assert space.candidates[0] == 6


def test_a_stated_cell_holds_and_shrinks_the_space() -> None:
    free = plan(LLAMA, Context(database()))
    for pinned in ({"tp": 2}, {"pp": 2}, {"zero_stage": 3}, {"micro_batch": 1}, {"recompute": "full"}, {"dp": 4}):
        held = plan({**LLAMA, **pinned}, Context(database()), top=30)
        assert held.candidates < free.candidates
        assert held.rows
        assert all(row[name] == cell for row in held.rows for name, cell in pinned.items())


def test_objectives_rank_by_what_they_say() -> None:
    fast = plan(LLAMA, Context(database()), top=20).rows
    times = [row["pred_step_time_s"] for row in fast]
    assert times == sorted(times)
    small = plan(LLAMA, Context(database()), objective="memory", top=20).rows
    memory = [row["pred_peak_mem_gib"] for row in small]
    assert memory == sorted(memory)
    assert memory[0] <= min(row["pred_peak_mem_gib"] for row in fast)
    front = plan(LLAMA, Context(database()), objective="pareto", top=20).rows
    pairs = [(row["pred_step_time_s"], row["pred_peak_mem_gib"]) for row in front]
    assert pairs[0][0] <= times[0] * (1 + 1e-9)  # the front has risky layouts too
    assert pairs[-1][1] == pytest.approx(memory[0])
    for (slow_a, memory_a), (slow_b, memory_b) in itertools.pairwise(pairs):
        assert slow_a <= slow_b
        assert memory_a > memory_b


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (plan(MIXTURE, Context(database()), top=25) for _ in range(2))
    assert first.rows == second.rows
    assert first.rejected == second.rejected
    assert len({row["layout"] for row in first.rows}) == len(first.rows)


def test_labels_of_rows_lead_back_to_them() -> None:
    question = {**MIXTURE}
    for row in plan(question, Context(database()), top=10).rows:
        (again,) = predict([resolve({**question, **label_cells(row["layout"])}, Context(database()))])
        assert again["pred_step_time_s"] == pytest.approx(row["pred_step_time_s"], rel=1e-12)


def test_nothing_fits_names_the_nearest_miss_and_the_term_that_overflows() -> None:
    result = plan({**LLAMA, "model": "llama-3.1-405b", "n_gpus": 8}, Context(database()))
    assert (result.rows, result.feasible) == ([], 0)
    assert result.nearest_miss
    assert "GiB more than" in result.nearest_miss
    assert "largest term is" in result.nearest_miss
    assert result.rejected[MEMORY] == result.evaluated


def test_no_legal_layout_names_the_constraint() -> None:
    result = plan({**LLAMA, "global_batch": 7, "tp": 1, "pp": 1}, Context(database()))
    assert result.rows == []
    assert result.nearest_miss
    assert BATCH in result.nearest_miss
    assert {BATCH} <= set(result.rejected)
    assert STAGES not in result.rejected
    assert PARTS_GPUS not in result.rejected or result.rejected[PARTS_GPUS] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": "h100-sxm-80gbb"}, "did you mean"),
        ({"model": "llama-3.1-80b"}, "llama"),
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"n_gpus": None}, "n_gpus"),
    ],
)
def test_a_wrong_question_is_a_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan({**LLAMA, **change}, Context(database()))
    with pytest.raises(UsageError, match="objective"):
        plan(LLAMA, Context(database()), objective="speed")


def test_progress_counts_up_to_what_was_evaluated() -> None:
    seen: list[int] = []
    result = plan(LLAMA, Context(database()), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == result.evaluated


@pytest.mark.filterwarnings("error")
def test_no_layout_of_sharded_experts_is_lost_to_an_undefined_number() -> None:
    """Groups of 8 cannot share 12 holders of the same experts: rejected by name, not by a NaN."""
    question = {**MIXTURE, "n_gpus": 96, "global_batch": 96, "zero_stage": 3, "shard_group": 8, "tp": 1, "pp": 1}
    result = plan(question, Context(database()), objective="memory", top=100)
    assert result.rejected[SHARDING] > 0
    assert all(np.isfinite(row["pred_step_time_s"]) for row in result.rows)
    with pytest.raises(UsageError, match="12 ranks that hold the same experts"):
        resolve({**question, "dp": 96, "ep": 8}, Context(database()))


def test_memory_does_not_grow_with_the_space() -> None:
    """Blocks are dropped once ranked: a space several times as large needs about the same memory."""

    def peak(question: dict[str, Any]) -> tuple[int, int]:
        tracemalloc.start()
        try:
            evaluated = plan(question, Context(database()), objective="memory").evaluated
            return evaluated, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    job = {**LLAMA, "model": "llama-3.1-70b"}
    small, little = peak({**job, "n_gpus": 256, "global_batch": 512})
    large, much = peak({**job, "n_gpus": 1024, "global_batch": 4096})
    assert large > 1.4 * small
    assert much < 1.3 * little
