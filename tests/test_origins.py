"""No argument without an origin: every term of an explanation leads to columns, defaults, constants and other terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.trace import records
from gpucalc.database.reader import Database
from gpucalc.estimate.power import estimate_power
from gpucalc.estimate.run import estimate_run
from gpucalc.estimate.serving import estimate_serving
from gpucalc.estimate.storage import estimate_storage
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import resolve_serving, stack_serving
from gpucalc.questions import power, run, storage
from gpucalc.questions.run_scenarios import Question

CONTEXT = Context(Database())
JOB = {"model": "llama-3.1-8b", "gpu": "h100", "n_gpus": 16, "seq_len": 4096, "global_batch": 64}
JOB |= {"tp": 2, "pp": 1, "dp": 8, "micro_batch": 1, "zero_stage": 1}


def asked(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, ask: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The answer to a question, and the columns that its estimate was asked for."""
    seen: list[Any] = []
    estimate = getattr(module, name)

    def watched(columns: Columns, **options: Any) -> Ledger:
        seen.append(columns)
        return estimate(columns, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, name, watched)
    return ask(), seen


def rows(columns: Mapping[str, Any]) -> Columns:
    """The first row twice: what is computed on the way is an array, which a stated number is not."""
    return Columns({name: np.full(2, np.ravel(value)[0]) for name, value in columns.items()})


def without_origin(ledger: Ledger) -> list[str]:
    """Arguments of which a trace cannot say where they came from, and kept values that are not flags."""
    found = []
    for path, entry in ledger.entries.items():
        found += [f"{path}: {name}" for name, argument in entry.arguments.items() if argument.kind == "computed"]
        if entry.verb == "value" and not set(np.unique(entry.value)) <= {0, 1}:
            found.append(f"{path} is kept")
    return found


def test_a_run_is_explained_down_to_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, seen = asked(monkeypatch, run, "estimate_run", lambda: run.run(JOB, Question(tokens=1e11), CONTEXT))
    assert without_origin(estimate_run(rows(seen[0]), trace=True)) == []
    terms = {term["path"]: term for term in answer.terms}
    assert terms["run/elapsed"]["unit"] == "s"
    assert terms["goodput/exact"]["arguments"]["mtbf"]["term"] == "failures/mtbf"
    assert terms["cost/rental"]["unit"] == "USD"


def test_power_is_explained_down_to_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    question = power.Question("h100", 16)
    answer, seen = asked(monkeypatch, power, "estimate_power", lambda: power.power(question, CONTEXT, JOB))
    assert without_origin(estimate_power(rows(seen[0]), trace=True)) == []
    terms = {term["path"]: term for term in answer.terms}
    assert terms["power/site/load"]["arguments"]["it_watts"]["term"] == "power/cluster/load"
    assert terms["energy/token"]["unit"] == "J"


def test_storage_is_explained_down_to_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    question = storage.Question("h100", 16)
    answer, seen = asked(monkeypatch, storage, "estimate_storage", lambda: storage.storage(question, CONTEXT, JOB))
    assert without_origin(estimate_storage(rows(seen[0]), trace=True)) == []
    terms = {term["path"]: term for term in answer.terms}
    assert terms["metric/samples"]["arguments"]["batch_time"]["term"] == "time/batch"
    assert terms["checkpoint/load-by-all"]["unit"] == "s"


SERVED = {
    "dense": {"model": "llama-3.1-70b", "tp": 4, "n_gpus": 8},
    "latents": {"model": "deepseek-r1", "tp": 8, "attention_dp": 2, "ep": 16, "n_gpus": 16, "framework": "sglang"},
    "windows": {"model": "gpt-oss-120b", "tp": 2, "n_gpus": 2, "framework": "vllm"},
    "hybrid": {"model": "jamba-52b", "tp": 4, "n_gpus": 4},
    "apart": {"model": "llama-3.1-8b", "tp": 1, "n_gpus": 4, "prefill_gpus": 1},
    "at a rate": {"model": "llama-3.1-8b", "tp": 1, "n_gpus": 2, "rate": 2.0, "concurrency": None},
    "stages": {"model": "llama-3.1-70b", "tp": 2, "pp": 2, "n_gpus": 4, "framework": "trtllm"},
}


@pytest.mark.parametrize("name", SERVED)
def test_serving_is_explained_down_to_its_inputs(name: str) -> None:
    cells = {"gpu": "h200", "precision": "fp8", "isl": 2048.0, "osl": 256.0, "concurrency": 32.0, **SERVED[name]}
    job = resolve_serving({n: v for n, v in cells.items() if v is not None}, CONTEXT)
    ledger = estimate_serving(rows(stack_serving([job])), trace=True)
    assert without_origin(ledger) == []
    one = estimate_serving(stack_serving([job]), trace=True)
    terms = {term["path"]: term for term in records(one, ("metric/output-rate", "time/ttft", "memory/kv-space"))}
    assert len(terms) == len(one.entries)
    assert terms["metric/output-rate"]["unit"] == "1/s"
    for term in terms.values():
        assert term["formula"] or term["note"], term["path"]
        assert all(argument.get("term", "time/ttft") in terms for argument in term["arguments"].values())
