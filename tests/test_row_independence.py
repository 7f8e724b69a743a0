"""A row of a batch equals the row alone, and every door to the model gives the same number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legal_jobs import DENSE, MIXTURES, database, legal_cells, solve, value
from profiles import examples

from gpucalc.core.columns import cell_text
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import evaluate_rows, predict, resolve
from gpucalc.layouts.axes import AXES
from gpucalc.layouts.label import label_cells
from gpucalc.questions.explain import explain
from gpucalc.questions.plan import plan, row_text

PATHS = ("time/step", "time/compute", "time/pp/bubble", "time/dp/exposed", "memory/raw", "memory/total", "flops/step")
QUESTION = {"gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 4096, "global_batch": 64}


BATCHES = st.lists(legal_cells(models=(*DENSE, *MIXTURES)), min_size=2, max_size=12)


@settings(max_examples=examples(40))
@given(rows=BATCHES)
def test_a_row_of_a_batch_equals_the_row_alone(rows: list[dict[str, object]]) -> None:
    check(rows)


def test_a_dense_row_beside_a_mixture_equals_the_row_alone() -> None:
    dense = {"model": "llama-3.1-8b", "gpu": "v100-sxm2-32gb", "tp": 2, "etp": 1, "zero_stage": 0, "seq_len": 512}
    check([dense, {"model": "mixtral-8x7b", "gpu": "v100-sxm2-32gb", "tp": 1, "seq_len": 512}])


def check(rows: list[dict[str, object]]) -> None:
    batch = solve(*rows)
    for index, row in enumerate(rows):
        alone = solve(row)
        for path in PATHS:
            assert value(batch, path, index) == pytest.approx(value(alone, path), rel=1e-12), path


@settings(max_examples=examples(15))
@given(rows=st.lists(legal_cells(), min_size=3, max_size=6), order=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: list[dict[str, object]], order: object) -> None:
    places = list(range(len(rows)))
    order.shuffle(places)  # type: ignore[attr-defined]
    straight = np.broadcast_to(solve(*rows)["time/step"], (len(rows),))
    shuffled = np.broadcast_to(solve(*[rows[p] for p in places])["time/step"], (len(rows),))
    np.testing.assert_allclose(shuffled, straight[places], rtol=1e-12)


@settings(max_examples=examples(15))
@given(rows=st.lists(legal_cells(), min_size=1, max_size=4))
def test_detail_and_trace_change_no_number(rows: list[dict[str, object]]) -> None:
    plain, detailed = solve(*rows, detail=False), solve(*rows, detail=True)
    for path in plain.entries:
        np.testing.assert_array_equal(np.asarray(plain[path]), np.asarray(detailed[path]), err_msg=path)


@settings(max_examples=examples(20))
@given(cells=legal_cells())
def test_typed_cells_and_their_text_mean_the_same(cells: dict[str, object]) -> None:
    typed = predict([resolve(cells, Context(database()))])[0]
    (text,) = evaluate_rows([{name: cell_text(cell) for name, cell in cells.items()}], Context(database()))
    assert {name: value for name, value in text.items() if name != "pred_notes"} == typed


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_search_eval_and_explain_say_the_same_of_a_layout(model: str) -> None:
    question = {"model": model, **QUESTION}
    ranked = plan(question, Context(database()), top=8)
    assert ranked.rows
    evaluated = evaluate_rows([row_text(row) for row in ranked.rows], Context(database()))
    for row, again in zip(ranked.rows, evaluated, strict=True):
        assert again["pred_step_time_s"] == pytest.approx(row["pred_step_time_s"], rel=1e-12)
        assert again["pred_peak_mem_gib"] == pytest.approx(row["pred_peak_mem_gib"], rel=1e-12)
        assert again["pred_fit"] == row["pred_fit"]
        stated = {name: cell for name, cell in row.items() if name in {*question, *AXES}}
        terms = {term["path"]: term["value"] for term in explain(stated, Context(database())).terms}
        assert terms["time/step"] == pytest.approx(row["pred_step_time_s"], rel=1e-12)
        assert terms["memory/total"] / 2**30 == pytest.approx(row["pred_peak_mem_gib"], rel=1e-12)
        labelled = explain({**question, **label_cells(row["layout"])}, Context(database()))
        assert {t["path"]: t["value"] for t in labelled.terms}["time/step"] == pytest.approx(
            row["pred_step_time_s"], rel=1e-12
        )


def test_a_dense_row_pays_for_no_experts_that_its_neighbours_fetch() -> None:
    deepspeed = {"gpu": "v100-sxm2-32gb", "framework": "HF Trainer + DeepSpeed", "zero_stage": 3, "seq_len": 512}
    looped = {"model": "mixtral-8x7b", "n_gpus": 16, **deepspeed}
    check([{"model": "llama-3.1-8b", "n_gpus": 16, **deepspeed}, looped, {**looped, "expert_kernel": "grouped"}])
