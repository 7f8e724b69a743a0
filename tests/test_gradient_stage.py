"""When gradients are reduced: what torch.distributed.pipelining does with ZeRO-2 (backward_maybe_with_nosync)."""

from __future__ import annotations

import pytest

import gpucalc

JOB = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 256, "seq_len": 8192, "global_batch": 256}


def _terms(layout: str, **cells: object) -> dict[str, float]:
    found = gpucalc.explain(**JOB, layout=layout, **cells)
    return {path: found.value(path) for path in ("dp/reduce/exposed", "memory/gradients", "time/step")}


@pytest.mark.parametrize("framework", ["unheard-of", "torchtitan"])
def test_a_pipeline_reduces_once_a_step(framework: str) -> None:
    one, two = (_terms(f"tp8-pp4-dp8-mbs1-zero{stage}", framework=framework) for stage in (1, 2))
    assert two == pytest.approx(one)


def test_without_a_pipeline_each_micro_batch_reduces() -> None:
    one, two = (_terms(f"tp8-dp32-mbs1-zero{stage}-full") for stage in (1, 2))
    assert two["memory/gradients"] < one["memory/gradients"]
    assert two["time/step"] > one["time/step"]
