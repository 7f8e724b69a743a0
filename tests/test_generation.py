"""Requests for pictures and clips: guidance in one batch, parts that follow each other, published latencies."""

from __future__ import annotations

from typing import Any

import pytest

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import predict_networks, resolve_network_job

CONTEXT = Context(Database())


def answer(model: str, gpu: str, resolution: str, **cells: Any) -> dict[str, Any]:
    stated = {"model": model, "mode": "generation", "gpu": gpu, "n_gpus": 1, "micro_batch": 1, **cells}
    return predict_networks([resolve_network_job({**stated, "resolution": resolution}, CONTEXT)])[0]


# One request on one GPU, eager diffusers in bf16: "Accelerating generative AI, part III" (PyTorch blog, 2024) for SDXL,
# the table of Wan2.1's README for one GPU. Neither is among the rows that rates are fitted to.
@pytest.mark.parametrize(
    ("model", "gpu", "cells", "seconds"),
    [
        ("sdxl", "a100-sxm-80gb", {"resolution": "1024x1024", "steps": 30}, 3.31),
        ("wan-2.1-14b", "h800-sxm-80gb", {"resolution": "720x1280", "frames": 81, "steps": 50}, 1837.9),
    ],
)
def test_published_latencies_lie_in_the_band(model: str, gpu: str, cells: dict[str, Any], seconds: float) -> None:
    found = answer(model, gpu, **cells)
    assert found["pred_latency_low_s"] < seconds < found["pred_latency_high_s"]
    assert found["pred_latency_s"] == pytest.approx(seconds, rel=0.5)


def test_no_framework_means_diffusers() -> None:
    one = answer("sdxl", "a100-sxm-80gb", "1024x1024")
    assert (
        one["pred_latency_s"] == answer("sdxl", "a100-sxm-80gb", "1024x1024", framework="diffusers")["pred_latency_s"]
    )


def test_guidance_in_one_batch_launches_kernels_once() -> None:
    with_it, without = (
        resolve_network_job(
            {"model": "sd-1.5", "mode": "generation", "gpu": "h100-sxm-80gb", "n_gpus": 1, "resolution": "256x256",
             "micro_batch": 1, "cfg": cfg}, CONTEXT
        )
        for cfg in (True, False)
    )  # fmt: skip
    from gpucalc.estimate.network import estimate_network
    from gpucalc.jobs.network import stack_network_jobs

    one, two = (estimate_network(stack_network_jobs([job]), job.parts, job.mode) for job in (without, with_it))
    assert float(two["launch/denoiser"]) == float(one["launch/denoiser"])
    assert float(two["forward/denoiser/time"]) == pytest.approx(2 * float(one["forward/denoiser/time"]))
    assert float(two["symbol/forwards"]) == 1


def test_parts_run_one_after_the_other_so_the_largest_decides_memory() -> None:
    job = resolve_network_job(
        {"model": "hunyuan-video", "mode": "generation", "gpu": "h100-sxm-80gb", "n_gpus": 1, "micro_batch": 1,
         "resolution": "720x1280", "frames": 129}, CONTEXT
    )  # fmt: skip
    from gpucalc.estimate.network import estimate_network
    from gpucalc.jobs.network import stack_network_jobs

    ledger = estimate_network(stack_network_jobs([job]), job.parts, job.mode)
    parts = [float(ledger[f"memory/{part}/activations"]) for part in job.parts]
    assert float(ledger["memory/activations"]) == max(parts) < sum(parts)
    # Its README states 60 GB for this request on one GPU.
    assert float(ledger["memory/total"]) < 60e9
