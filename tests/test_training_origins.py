"""No argument without an origin: every term of a training step leads to columns, defaults, constants and terms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.trace import records
from gpucalc.core.units import NUMBER
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.layouts.label import label_cells


def measured(columns: Mapping[str, Any]) -> Columns:
    """The columns of one row as numpy numbers: whatever is computed from them on the way has a dtype, and shows."""
    return Columns({name: np.float64(value) for name, value in columns.items()})


def training(model: str, gpu: str, n_gpus: int, label: str, **more: Any) -> Ledger:
    """The traced estimate of a layout."""
    question = {"model": model, "gpu": gpu, "n_gpus": n_gpus, "seq_len": 4096, "global_batch": 256}
    columns = {name: more.pop(name) for name in ("oversubscription", "pod") if name in more}
    job = resolve({**question, **label_cells(label), **more}, Context(Database()))
    return estimate_training(measured({**job.columns, **columns}), trace=True)


LEDGERS: dict[str, Callable[[], Ledger]] = {
    "dense": lambda: training("llama-3.1-70b", "h100-sxm-80gb", 64, "tp4-pp4-dp4-vpp5-mbs1-zero1-sp"),
    "mixture": lambda: training("mixtral-8x7b", "a100-sxm-80gb", 64, "tp2-pp4-dp8-ep8-etp1-mbs1-zero1"),
    "latents": lambda: training("deepseek-v3", "h200", 256, "pp16-dp16-ep16-mbs1-zero1", precision="fp8"),
    "hybrid": lambda: training("jamba-52b", "h100-sxm-80gb", 64, "tp8-dp8-mbs1-zero1"),
    "windows": lambda: training("gemma-2-27b", "h100-sxm-80gb", 32, "tp4-dp8-mbs1-zero2"),
    "encoder": lambda: training("bert-large", "v100-sxm2-32gb", 8, "dp8-mbs4-zero0", precision="fp16", seq_len=512),
    "zero 3": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 32, "dp32-mbs1-zero3-full"),
    "hybrid sharding": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 32, "dp32-mbs1-zero3-shard8"),
    "gpipe": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 8, "pp8-mbs1-gpipe"),
    "zero bubble": lambda: training("llama-3.1-8b", "h100-sxm-80gb", 8, "pp8-mbs1-zbh1-selective"),
    "dualpipe": lambda: training("deepseek-v3", "h200", 256, "pp16-dp16-ep16-mbs1-dualpipe"),
    "ring": lambda: training("llama-3.1-8b", "h100-sxm-80gb", 64, "tp2-pp2-dp4-cp4-mbs1", seq_len=32768),
    "ulysses": lambda: training("llama-3.1-8b", "h100-sxm-80gb", 64, "tp2-pp2-dp4-cp4-ulysses-mbs1", seq_len=32768),
    "no flash": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 8, "tp2-dp4-mbs1", flash_attention="no"),
    "lora": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 8, "dp8-mbs1-zero3", method="lora"),
    "qlora": lambda: training("llama-3.1-70b", "a100-sxm-80gb", 8, "dp8-mbs1-zero3", method="qlora"),
    "offload": lambda: training("llama-3.1-8b", "a100-sxm-80gb", 8, "dp8-mbs1-zero2", offload_optimizer=True),
    "muon": lambda: training("llama-3.1-8b", "h100-sxm-80gb", 8, "dp8-mbs1-zero1", optimizer="muon"),
    "oversubscribed": lambda: training(
        "llama-3.1-8b", "a100-sxm-80gb", 64, "tp8-dp8-mbs1", oversubscription=7.0, pod=2.0
    ),
}
# Kept, not computed: selectors and coefficients of the row's schedule and stage.
KEPT = {
    "symbol/weight_fill",
    "symbol/idle_backwards",
    "symbol/critical_path",
    "layer/cp/beside-attention",
    "memory/worst-stage",
}


@functools.cache
def traced(name: str) -> Ledger:
    return LEDGERS[name]()


every_ledger = pytest.mark.parametrize("name", LEDGERS)


@every_ledger
def test_no_argument_is_without_an_origin(name: str) -> None:
    found = traced(name)
    lost = [
        f"{path}: {argument}"
        for path, entry in found.entries.items()
        for argument, source in entry.arguments.items()
        if source.kind not in {"term", "column", "default", "constant"}
    ]
    assert not lost
    assert {path for path, entry in found.entries.items() if entry.verb == "value"} <= KEPT


@every_ledger
def test_factors_that_are_columns_are_numbers_without_a_unit_or_have_a_known_one(name: str) -> None:
    """A product takes the unit of a column from the formulas that name it; one of no formula is a pure number."""
    found = traced(name)
    suffixes = ("_seconds", "_bytes", "_bandwidth", "_latency", "_startup", "peak", "_watts")
    wrong = [
        f"{path}: {part}"
        for path, entry in found.entries.items()
        if entry.verb in {"product", "total", "maximum"}
        for part, source in entry.arguments.items()
        if source.kind == "column" and source.unit is None and part.endswith(suffixes)
    ]
    assert not wrong


@every_ledger
def test_every_sum_and_choice_is_of_one_unit(name: str) -> None:
    found = traced(name)
    for path, entry in found.entries.items():
        if entry.verb in {"total", "maximum", "choose"}:
            units = {
                (found.entries[part].scope.unit(part) or NUMBER).exponents for part in entry.names if part in found
            }
            assert len(units) <= 1, path


@every_ledger
def test_the_tree_of_the_answer_ends_in_columns_and_constants(name: str) -> None:
    """Every term below a root is reached from it, and every leaf is a term without terms for arguments."""
    terms = {term["path"]: term for term in records(traced(name), ("time/step", "memory/total"))}
    assert len(terms) == len(traced(name).entries)
    for term in terms.values():
        for argument in term["arguments"].values():
            assert argument.get("term", "time/step") in terms
