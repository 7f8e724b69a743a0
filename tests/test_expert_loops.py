"""Mixtures whose experts run in a Python loop: host operations, and modules that ZeRO-3 fetches one by one."""

from __future__ import annotations

from typing import Any

import pytest

import gpucalc

JOB = {"model": "qwen3-30b-a3b", "gpu": "a800-sxm-80gb", "n_gpus": 16, "seq_len": 8192, "global_batch": 16}
HF = {"framework": "HF Trainer + DeepSpeed", "software_date": "2025-05", "precision": "bf16"}


def _seconds(**cells: Any) -> float:
    return float(gpucalc.explain(**JOB, **cells, layout="dp16-mbs1-zero3-full").value("time/step"))


def test_fetching_each_expert_by_itself_takes_minutes_where_grouped_ones_take_seconds() -> None:
    # ms-swift's Megatron-SWIFT document: 91.2 s a step in the Hugging Face trainer with ZeRO-3 on 16 A800.
    looped = _seconds(**HF)
    assert 91.2 / 2.5 < looped < 91.2 * 2.5
    assert _seconds(**HF, expert_kernel="grouped") < looped / 5


@pytest.mark.parametrize("framework", ["HF Trainer + DeepSpeed", "FSDP"])
def test_more_experts_take_more_of_a_loop(framework: str) -> None:
    times = [_seconds(framework=framework, expert_kernel="loop", experts=n) for n in (16, 64, 128)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_dense_models_pay_nothing_for_loops() -> None:
    job = {**JOB, "model": "llama-3.1-8b"}
    one, two = (
        gpucalc.explain(**job, **HF, layout="dp16-mbs1-zero3-full", expert_kernel=kernel).value("time/step")
        for kernel in ("loop", "grouped")
    )
    assert one == two
