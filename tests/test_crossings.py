"""Which groups of a job cross which tier, and what the network's shape costs; one function of topology everywhere."""

from __future__ import annotations

import json

import pytest
from cli import gpucalc

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.layouts.label import label_cells
from gpucalc.questions.crossings import crossing_note, crossings, shape_cost, step_times

CONTEXT = Context(Database())
MOE = {"model": "deepseek-v3", "gpu": "h800-sxm-80gb", "n_gpus": 2048, "seq_len": 4096, "global_batch": 16384}
DENSE = {"model": "llama-3.1-405b", "gpu": "h100-sxm-80gb", "n_gpus": 8192, "seq_len": 8192, "global_batch": 2048}
MOE_LAYOUT, DENSE_LAYOUT = "pp16-dp128-ep64-mbs1-zero1", "tp8-pp16-dp64-mbs1-zero1-sp"


def job_of(cells: dict, layout: str, **network):
    """The job of a layout on a network."""
    return resolve({**cells, **label_cells(layout), **network}, CONTEXT)


def test_each_group_has_its_tier() -> None:
    """TP in the node, data-parallel ranks 8 apart and stages 512 apart over the pods of a 4:1 tree."""
    found = crossings(job_of(DENSE, DENSE_LAYOUT, topology="fat-tree-4to1"))
    assert found == {
        "tp 8": "inside a scale-up domain",
        "dp 64 (8 apart)": "between pods",
        "pp 16 (512 apart)": "between pods",
    }
    inside = crossings(job_of(DENSE, DENSE_LAYOUT, topology="fat-tree"))
    assert set(inside.values()) == {"inside a scale-up domain", "inside a pod"}


def test_uniform_traffic_pays_for_a_thin_tree_and_rings_do_not() -> None:
    """4:1 costs a mixture whose experts span pods a tenth and more, a dense model's rings nothing."""
    assert shape_cost(job_of(MOE, MOE_LAYOUT, topology="fat-tree-4to1")) > 0.1
    assert shape_cost(job_of(MOE, MOE_LAYOUT, topology="fat-tree")) == 0
    assert shape_cost(job_of(DENSE, DENSE_LAYOUT, topology="fat-tree-4to1")) == pytest.approx(0, abs=1e-3)


def test_cost_grows_with_oversubscription() -> None:
    """A thinner network never costs less."""
    costs = [
        shape_cost(job_of(MOE, MOE_LAYOUT, topology="fat-tree", oversubscription=float(over))) for over in (1, 2, 4, 8)
    ]
    assert costs == sorted(costs)
    assert costs[0] == 0 < costs[-1]


def test_a_job_in_one_domain_crosses_nothing() -> None:
    """Eight GPUs of one node have no note."""
    cells = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "global_batch": 64}
    assert crossing_note(resolve({**cells, "tp": 2}, CONTEXT)) == ""


def test_explain_plan_and_schedule_say_the_same_time() -> None:
    """One function of topology: the step time of a layout is the same to the digit in eval's path and at scale."""
    job = job_of(MOE, MOE_LAYOUT, topology="fat-tree-4to1")
    words = ("deepseek-v3", "--gpu", "h800-sxm-80gb", "--gpus", "2048", "--seq-len", "4096", "--global-batch", "16384")
    shape = ("--layout", MOE_LAYOUT, "--topology", "fat-tree-4to1")
    terms = json.loads(gpucalc("explain", *words, *shape, "-f", "json").out)["terms"]
    explained = next(term["value"] for term in terms if term["path"] == "time/step")
    scaled = json.loads(gpucalc("schedule", *words, *shape, "--fabrics", "-f", "json").out)["rows"][0]["step_time_s"]
    assert explained == scaled == step_times([dict(job.columns)])[0]
