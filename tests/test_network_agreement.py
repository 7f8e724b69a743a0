"""One function of topology: `comm`, `explain`, `plan`, `schedule`, `scale` say the same of one group, to the digit."""

from __future__ import annotations

import json

import pytest
from cli import gpucalc

CLUSTER = ("--gpu", "a100-sxm-80gb", "--gpus", "64")
JOB = ("llama-2-7b", *CLUSTER, "--seq-len", "4096", "--global-batch", "64")
PROFILE = ("--profile", "megatron-core")
MOE = (
    *("deepseek-v3", "--gpu", "h800-sxm-80gb", "--gpus", "2048", "--seq-len", "4096", "--global-batch", "16384"),
    *("--precision", "fp8"),
)


def terms(*words: str) -> dict[str, float]:
    """Path → value of an explanation."""
    return {t["path"]: t["value"] for t in json.loads(gpucalc("explain", *words, "-f", "json").out)["terms"]}


def comm(op: str, size: float, *words: str) -> float:
    """Seconds of the algorithm that `comm` picks."""
    rows = json.loads(gpucalc("comm", op, f"{size!r}B", *words, "-f", "json").out)
    rows = rows["rows"] if isinstance(rows, dict) else rows
    return next(row["time_us"] for row in rows if row["chosen"] in {True, "yes"}) * 1e-6


@pytest.mark.parametrize("network", [(), ("--topology", "fat-tree-4to1", "--placement", "scattered"), ("--nics", "1")])
@pytest.mark.parametrize(
    ("layout", "op", "message", "time"),
    [
        ("dp64-mbs1-zero0-full", "all_reduce", "dp/dense/gradients", "dp/dense/all-reduce"),
        ("dp64-mbs1-zero3-full", "all_gather", "fsdp/dense/piece", "fsdp/dense/piece/all-gather"),
        ("dp64-mbs1-zero3-full", "reduce_scatter", "fsdp/dense/gradients", "fsdp/dense/reduce-scatter"),
    ],
)
def test_comm_says_what_explain_shows_for_a_group_of_a_job(network, layout, op, message, time):
    explained = terms(*JOB, "--layout", layout, *PROFILE, *network)
    assert comm(op, explained[message], *CLUSTER, *PROFILE, *network) == pytest.approx(explained[time], rel=1e-12)


def test_plan_explain_and_schedule_say_one_step_time():
    layout = ("--layout", "pp16-dp128-ep64-mbs1-zero1", "--topology", "fat-tree-4to1")
    explained = terms(*MOE, *layout)["time/step"]
    planned = json.loads(gpucalc("plan", *MOE, *layout, "-f", "json").out)
    scheduled = json.loads(gpucalc("schedule", *MOE, *layout, "--fabrics", "-f", "json").out)["rows"][0]["step_time_s"]
    rows = planned["plans"] if "plans" in planned else planned["rows"]
    first = next(value for name, value in rows[0].items() if name.endswith("step_time_s"))
    assert first == explained == scheduled


def test_scale_says_which_groups_cross_which_tier():
    run = gpucalc(
        *("scale", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "64,512", "--seq-len", "8192"),
        *("--global-batch", "512", "--topology", "fat-tree-4to1", "--mode", "strong"),
    )
    assert "strong, 512 GPUs: groups on fat-tree-4to1" in run.err
    assert "between pods" in run.err


def test_slow_links_pay_for_the_flat_ring():
    """ZeRO-3 of 7B over 2 nodes of 8: a pass gathers 15/16 of the weights through one node's cards.

    12.5 Gb/s a GPU: 12 passes of 13.48 GB at 12.5 GB/s take 12.1 s of wire; half of it would be a hierarchical gather.
    """
    job = ("llama-2-7b", "--gpu", "a100-sxm-80gb", "--gpus", "16", "--seq-len", "4096", "--global-batch", "64")
    layout = ("--layout", "dp16-mbs1-zero3-none")
    slow, fast = (terms(*job, *layout, "--inter-node-gbps", rate)["time/step"] for rate in ("12.5", "200"))
    assert 12.1 < slow < 18
    assert slow > 3 * fast
