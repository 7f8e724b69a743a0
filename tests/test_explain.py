"""Explanations: every term, with formula, values, unit and citation, and the facts a reader doubts first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from legal_jobs import database, legal_cells
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.core.formula import FORMULAS
from gpucalc.database.references import references
from gpucalc.jobs.context import Context
from gpucalc.questions.explain import ROOTS, explain, explain_label

JOB = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
LABEL = "tp8-pp4-dp2-mbs1-zero1-sp"


def terms(**change: Any) -> dict[str, dict[str, Any]]:
    found = explain_label({**JOB, **change}, LABEL, Context(database())).terms
    assert len({term["path"] for term in found}) == len(found), "a term stands twice"
    return {term["path"]: term for term in found}


@settings(max_examples=examples(15))
@given(cells=legal_cells())
def test_every_term_of_the_ledger_is_explained_once(cells: dict[str, Any]) -> None:
    found = explain(cells, Context(database())).terms
    paths = [term["path"] for term in found]
    assert len(paths) == len(set(paths))
    assert set(ROOTS) <= set(paths)
    for term in found:
        assert isinstance(term["value"], int | float)
        assert {"path", "value", "unit", "formula", "arguments", "citation"} <= set(term)


def test_what_is_printed_is_what_ran() -> None:
    """A formula's text, evaluated with the printed arguments, gives the printed value."""
    import numpy as np

    checked = 0
    known = {info.expression: info for info in FORMULAS.values()}
    for term in terms().values():
        info = known.get(term["formula"])
        if info is None:
            continue
        arguments = {name: np.float64(argument["value"]) for name, argument in term["arguments"].items()}
        assert float(info.function(**arguments)) == pytest.approx(float(term["value"]), rel=1e-9, abs=1e-15), term[
            "path"
        ]
        assert set(info.parameters) - set(info.defaults) <= set(arguments)
        checked += 1
    assert checked > 60


def test_terms_carry_unit_and_source() -> None:
    found = terms()
    known = {f"{r.authors} ({r.year}). {r.title}" for r in references(database()).values()}
    assert found["time/step"]["unit"] == "s"
    assert found["memory/total"]["unit"] == "B"
    assert found["flops/step"]["unit"] == "FLOP"
    cited = [term["citation"] for term in found.values() if term["arguments"]]
    assert cited
    assert sum(any(source in citation for source in known) for citation in cited) > len(cited) / 2


def test_totals_and_maxima_name_their_parts() -> None:
    found = terms()
    assert found["time/step"]["formula"].startswith("time/compute + time/pp/p2p")
    slowest = found["stage/slowest"]
    assert slowest["note"].removeprefix("the largest is ") in {"stage/time", "stage/last"}
    for part in found["memory/total"]["formula"].split(" + "):
        assert part in found


def test_facts_answer_the_first_doubts() -> None:
    facts = dict(explain_label(JOB, LABEL, Context(database())).facts)
    assert "989.4 TFLOP/s" in facts["peak"]
    assert "dense" in facts["peak"]
    assert "full attention" in facts["FLOP convention"]
    assert "400 Gb/s per GPU" in facts["network"]
    assert "halved" in dict(explain_label(JOB, LABEL, Context(database(), causal_flops=True)).facts)["FLOP convention"]


def test_the_summary_places_the_estimate_between_its_bounds() -> None:
    explanation = explain_label(JOB, LABEL, Context(database()))
    found = {term["path"]: term["value"] for term in explanation.terms}
    assert found["bounds/lower"] <= found["time/step"] <= found["bounds/upper"]
    assert f"{found['time/step']:.3f} s" in explanation.summary[0]
    assert any("hidden" in sentence for sentence in explanation.summary)


@pytest.mark.parametrize("label", ["", "tp8-xx", "tp3-pp4-dp2", "tp8-tp8"])
def test_a_wrong_label_is_a_sentence(label: str) -> None:
    with pytest.raises(UsageError):
        explain_label(JOB, label, Context(database()))
