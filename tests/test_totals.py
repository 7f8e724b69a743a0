"""Totals: parts add up, ranks together hold the model, and no layout changes how much work there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from legal_jobs import DENSE, changed, database, legal_cells, solve, value
from profiles import examples

from gpucalc.core.columns import PREDICTED
from gpucalc.core.ledger import Ledger
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import PREDICTIONS, resolve
from gpucalc.questions.explain import ROOTS

# First parts of paths: what a reader of an explanation finds below them.
ROOTS_OF_PATHS = {
    "time": "the step and its parts",
    "memory": "bytes of one GPU, of the worst stage and by stage",
    "flops": "model FLOPs",
    "metric": "utilisation and throughput",
    "bounds": "the step with all communication hidden, and with none",
    "traffic": "bytes handed to communication per GPU and step",
    "communication": "time of that traffic were none of it hidden",
    "shape": "sizes of one rank's matrices",
    "layer": "one average layer and micro-batch",
    "head": "language-model head and loss of a micro-batch",
    "stage": "one pipeline stage and micro-batch",
    "pp": "pipeline schedule",
    "dp": "data parallel traffic of a step",
    "fsdp": "sharded parameters of a layer and micro-batch",
    "optimizer": "the update",
    "placement": "how a group lies on the domains",
    "activations": "activations of a stage by recomputation",
    "transient": "what comes and goes in a stage's passes, by recomputation",
    "working": "working set and gathered layer by recomputation",
    "loss": "logits and their loss, by stage",
    "logits": "logits of a micro-batch",
    "gather": "parameters gathered for use",
    "half-gradients": "16-bit gradients beside an accumulator",
    "moment": "the fullest moment",
    "update": "temporaries of the update",
    "host": "memory of the host",
    "recompute": "memory by recomputation, and the share that makes it fit",
    "step": "factors of the whole step",
    "symbol": "symbols that formulas share",
}


def parts_sum(ledger: Ledger, path: str) -> np.ndarray:
    entry = ledger.entries[path]  # its parts as its own scope knows them: a column may be defined there
    return sum((np.asarray(entry.scope.value(part), dtype=float) for part in entry.parts), np.zeros(()))


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_every_total_is_the_sum_of_its_parts_and_nothing_is_negative(cells: dict[str, object]) -> None:
    ledger = solve(cells)
    totals = [path for path, entry in ledger.entries.items() if entry.verb == "total"]
    assert {"time/step", "memory/total", "memory/parts", "traffic/step", "time/compute/parts"} <= set(totals)
    for path in totals:
        np.testing.assert_allclose(
            np.asarray(ledger.entries[path].value, dtype=float), parts_sum(ledger, path), rtol=1e-12
        )
    for path in (p for p in ledger.entries if p.startswith(("time/", "memory/", "traffic/", "flops/"))):
        found = value(ledger, path)
        assert np.isfinite(found), path
        assert found >= -1e-9 * value(ledger, "time/step" if path.startswith("time/") else "memory/raw"), path


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_the_step_is_its_parts(cells: dict[str, object]) -> None:
    ledger = solve(cells)
    parts = ("time/compute", "time/pp/p2p", "time/pp/bubble", "time/dp/exposed", "time/optimizer", "time/stragglers")
    assert set(ledger.entries["time/step"].parts) == set(parts)
    assert value(ledger, "time/step") == pytest.approx(sum(value(ledger, p) for p in parts), rel=1e-12)
    assert value(ledger, "time/compute/parts") == pytest.approx(value(ledger, "time/compute"), rel=1e-9)


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_the_memory_of_the_worst_stage_is_its_parts(cells: dict[str, object]) -> None:
    ledger = solve(cells)
    assert value(ledger, "memory/parts") == pytest.approx(value(ledger, "memory/raw"), rel=1e-9)
    stages = [value(ledger, f"memory/{stage}/chosen") for stage in ("first", "second", "last")]
    assert value(ledger, "memory/raw") == pytest.approx(max(stages), rel=1e-12)


@settings(max_examples=examples(60))
@given(cells=legal_cells(models=(*DENSE, "mixtral-8x7b", "deepseek-moe-16b")))
def test_parameters_over_all_ranks_add_up_to_the_model(cells: dict[str, object]) -> None:
    """Tensor-parallel ranks, expert ranks and stages hold every parameter once; norms and routers on each tp rank."""
    job = resolve(cells, Context(database()))
    c = job.columns
    ledger = changed(job)

    def at(path: str) -> float:
        return value(ledger, path)

    layers, tp = c["layers"], c["tp"]
    replicated = at("layer/parameters/replicated-part")
    sharded = at("layer/parameters/sharded-part") * tp + replicated
    experts = at("layer/parameters/experts") * c["ep"] * c["etp"]
    inside = layers * (sharded + experts)
    outside = c["embedding_parameters"] + c["head_parameters"] + c["other_parameters"]
    assert inside + outside == pytest.approx(job.model.parameters_total, rel=1e-6)
    # The stages hold the layers and what stands before and behind them.
    first, second, last = (at(f"stage/layers/{stage}") for stage in ("first", "second", "last"))
    pp = c["pp"]
    assert second * (pp - 2) + first + last >= layers or pp == 1
    assert second == np.ceil(layers / pp)
    extra_first = at("stage/parameters/dense/first") - at("layer/parameters/dense") * first
    extra_last = at("stage/parameters/dense/last") - at("layer/parameters/dense") * last
    held = extra_first + (extra_last if pp > 1 else 0.0)
    copied = c["embedding_parameters"] if c["tied_embeddings"] and pp > 1 else 0.0
    assert (held - c["other_parameters"]) * tp == pytest.approx(outside - c["other_parameters"] + copied, rel=1e-9)


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_model_flops_are_the_same_in_every_layout(cells: dict[str, object]) -> None:
    shape = ("model", "gpu", "seq_len", "global_batch", "precision", "framework")
    alone = {name: cells[name] for name in shape}
    whole, cut = solve({**alone, "n_gpus": 1, "micro_batch": cells["global_batch"]}), solve(cells)
    assert value(cut, "flops/step") == pytest.approx(value(whole, "flops/step"), rel=1e-12)


@settings(max_examples=examples(30))
@given(cells=legal_cells())
def test_utilisation_is_flops_over_time_and_the_dense_peak(cells: dict[str, object]) -> None:
    job = resolve(cells, Context(database()))
    ledger = changed(job)
    step = value(ledger, "time/step")
    mfu = value(ledger, "flops/step") / (
        step * job.cluster.n_gpus * job.cluster.device.precision_peak(job.cells["precision"])
    )
    assert value(ledger, "metric/mfu") == pytest.approx(mfu, rel=1e-12)
    assert 0 < mfu < 1
    tokens = job.cells["global_batch"] * job.cells["seq_len"] / step / job.cluster.n_gpus
    assert value(ledger, "metric/tokens_per_s_per_gpu") == pytest.approx(tokens, rel=1e-12)


@settings(max_examples=examples(30))
@given(cells=legal_cells())
def test_every_path_stands_below_a_documented_root(cells: dict[str, object]) -> None:
    ledger = solve(cells)
    assert {path.split("/")[0] for path in ledger.entries} <= set(ROOTS_OF_PATHS)
    assert set(ROOTS) <= set(ledger.entries)
    for name, (path, _) in PREDICTIONS.items():
        assert name in PREDICTED
        assert path in ledger


def test_the_vocabulary_of_paths_stays() -> None:
    """Paths are an interface: what reads `explain -f json` depends on them."""
    ledger = solve(
        {
            "model": "mixtral-8x7b",
            "gpu": "h100-sxm-80gb",
            "n_gpus": 64,
            "tp": 2,
            "pp": 2,
            "cp": 2,
            "ep": 4,
            "seq_len": 8192,
        }
    )
    promised = """
        memory/weights memory/gradients memory/optimizer memory/activations memory/reserve memory/total
        time/forward/gemm time/forward/attention time/forward/elementwise time/tp/exposed time/cp/exposed
        time/ep/exposed time/pp/bubble time/pp/p2p time/dp/exposed time/optimizer time/step
        metric/mfu metric/hfu metric/tokens_per_s_per_gpu
    """
    missing = set(promised.split()) - set(ledger.entries)
    assert not missing
