"""The predicted step as a trace: what a trace reader needs, and that it adds up to the estimate."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from cli import gpucalc

from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve, stack
from gpucalc.output.trace import COMMUNICATION, COMPUTE, trace_document

JOB = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "8192", "--global-batch", "64")
ROW = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 8192, "global_batch": 64}


@pytest.mark.parametrize(
    "cells",
    [
        {"pp": 1, "tp": 2},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "schedule": "1f1b"},
        {"pp": 4, "vpp": 2},
        {"pp": 4, "schedule": "zb-h1"},
        {"pp": 4, "schedule": "zb-2p"},
        {"pp": 4, "schedule": "dualpipe"},
        {"pp": 4, "schedule": "dualpipe-v"},
        {"pp": 2, "tp": 8, "zero_stage": 1},
    ],
    ids=str,
)
def test_each_stage_is_told_without_gap_or_overlap_and_ends_with_the_step(cells: dict[str, Any]) -> None:
    job = resolve({**ROW, **cells}, Context(Database()))
    ledger = estimate_training(stack([job]), detail=True)
    document = trace_document(job, ledger)
    stages: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["tid"] in {COMPUTE, COMMUNICATION}:
            stages[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sorted(stages) == list(range(cells["pp"]))
    for spans in stages.values():
        now = 0.0
        for start, end in sorted(spans):
            assert start == pytest.approx(now, abs=0.01)  # µs
            now = end
        assert now == pytest.approx(1e6 * float(ledger["time/step"]), rel=1e-9)


def test_every_micro_batch_passes_every_stage_forward_and_back() -> None:
    job = resolve({**ROW, "pp": 4}, Context(Database()))
    events = trace_document(job, estimate_training(stack([job]), detail=True))["traceEvents"]
    passes = {(e["pid"], e["name"], e["args"]["micro_batch"]) for e in events if e.get("cat") in {"F", "B"}}
    micro_batches = 64 // 4
    assert passes == {(s, n, m) for s in range(4) for n in ("forward", "backward") for m in range(micro_batches)}


def test_the_command_writes_what_a_viewer_reads(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    ran = gpucalc("explain", *JOB, "--layout", "pp4-dp4-mbs1-zero1", "--trace", str(file), "--depth", "1")
    assert ran.status == 0, ran.err
    document = json.loads(file.read_text())
    for event in document["traceEvents"]:  # the fields of complete and metadata events
        assert event["ph"] in {"X", "M"}
        assert {"name", "pid"} <= event.keys()
        if event["ph"] == "X":
            assert event["dur"] > 0 <= event["ts"]
            assert isinstance(event["tid"], int)
    named = {e["pid"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert named == {e["pid"] for e in document["traceEvents"]} == set(range(4))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "step.txt"), "ends in .json"),
        (("--trace", "no/such/folder/step.json"), "does not exist"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = gpucalc("explain", *JOB, "--layout", "pp4-dp4-mbs1-zero1", *arguments, cwd=tmp_path)
    assert said in ran.sentence()
    assert not list(tmp_path.iterdir())


def test_too_many_passes_are_refused_with_a_batch_that_has_fewer(tmp_path: Path) -> None:
    job = (*JOB[:-1], "2097152")
    ran = gpucalc("explain", *job, "--layout", "pp4-dp4-mbs1-zero1", "--trace", str(tmp_path / "t.json"))
    assert "a global batch of about" in ran.sentence()
    assert not list(tmp_path.iterdir())


def test_a_net_has_no_trace(tmp_path: Path) -> None:
    job = ("resnet-50", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "256")
    ran = gpucalc("explain", *job, "--layout", "dp8-mbs32", "--trace", str(tmp_path / "t.json"))
    assert "decoder's training step" in ran.sentence()
