"""Reading samples: shares, limits, and how many accelerators a store feeds; MLPerf Storage results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database import defaults
from gpucalc.database.reader import Database
from gpucalc.formulas import storage as s
from gpucalc.jobs.context import Context
from gpucalc.questions.storage import Question, limiter_of, predict, storage
from gpucalc.validate.cluster import cluster_report, predicted_samples, shipped

DB = Database()
# A host that never limits, and accelerators that never wait while the store keeps up.
IDEAL = {"cores": 1e6, "threads": 1e9, "card_rate": 1e18, "wait": 0.0}
RATE = st.floats(1e8, 1e13)
KINDS = st.sampled_from(sorted(defaults.workloads(DB)))


def value(question: Question, path: str) -> float:
    return float(np.asarray(predict([question], DB)[path])[0])


@pytest.mark.parametrize(
    ("workload", "gpu", "published"),
    [
        ("unet3d", "a100-sxm-80gb", 1.61),
        ("unet3d", "h100-sxm-80gb", 3.18),
        ("resnet50", "a100-sxm-80gb", 0.105),
        ("resnet50", "h100-sxm-80gb", 0.205),
        ("cosmoflow", "a100-sxm-80gb", 0.513),
        ("cosmoflow", "h100-sxm-80gb", 0.808),
    ],
)
def test_the_demand_of_one_accelerator_is_the_published_one(workload: str, gpu: str, published: float) -> None:
    found = value(Question(gpu, 1, workload=workload), "demand/accelerator") / 1e9
    assert found == pytest.approx(published, rel=0.005)


@settings(max_examples=examples(60))
@given(kind=KINDS, n=st.integers(1, 4096), rate=RATE)
def test_samples_are_what_the_store_delivers_or_the_accelerators_take(kind: str, n: int, rate: float) -> None:
    question = Question("h100-sxm-80gb", n, workload=kind, read_bandwidth=rate, **IDEAL)
    work = defaults.workload(DB, kind)
    free = n * work.batch / work.compute["h100-sxm-80gb"]
    assert value(question, "metric/samples") == pytest.approx(min(free, rate / work.sample_bytes), rel=1e-9)
    used = value(question, "metric/utilisation")
    assert 0 < used <= 1
    assert used == pytest.approx(min(1.0, rate / value(question, "demand/store")), rel=1e-9)


@settings(max_examples=examples(60))
@given(kind=KINDS, rate=RATE, least=st.floats(0.5, 1.0))
def test_the_accelerators_that_a_store_feeds_are_the_most(kind: str, rate: float, least: float) -> None:
    one = Question("h100-sxm-80gb", 1, workload=kind, read_bandwidth=rate, utilisation=least, **IDEAL)
    fed = int(value(one, "fed/target"))
    if 0 < fed < 10**9:
        enough = Question("h100-sxm-80gb", fed, workload=kind, read_bandwidth=rate, **IDEAL)
        assert value(enough, "metric/utilisation") >= least - 1e-9
        more = Question("h100-sxm-80gb", fed + 1, workload=kind, read_bandwidth=rate, **IDEAL)
        assert value(more, "metric/utilisation") < least + 1e-9


@settings(max_examples=examples(40))
@given(kind=KINDS, rate=RATE, n=st.integers(1, 512))
def test_a_faster_store_and_a_cache_never_slow(kind: str, rate: float, n: int) -> None:
    base = Question("h100-sxm-80gb", n, workload=kind, read_bandwidth=rate)
    faster = Question("h100-sxm-80gb", n, workload=kind, read_bandwidth=2 * rate)
    cached = Question("h100-sxm-80gb", n, workload=kind, read_bandwidth=rate, cache_hit=0.5)
    slow, fast, hit = (float(v) for v in np.asarray(predict([base, faster, cached], DB)["metric/samples"]))
    assert slow <= fast * (1 + 1e-12)
    assert hit == pytest.approx(fast, rel=1e-9)


def test_rows_of_a_batch_are_those_of_each_alone() -> None:
    questions = [
        Question("h100-sxm-80gb", n, workload=kind, read_bandwidth=n * 1e9)
        for n, kind in ((8, "unet3d"), (64, "image"), (512, "video"))
    ]
    together = np.asarray(predict(questions, DB)["metric/samples"])
    for question, found in zip(questions, together, strict=True):
        assert value(question, "metric/samples") == float(found)


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({"read_bandwidth": 1e9}, "read"),
        ({"read_bandwidth": 1e12, "cores": 1.0}, "decode"),
        ({"read_bandwidth": 1e12, "cores": 1000.0}, "compute"),
        ({"read_bandwidth": 1e13, "cores": 1e6, "compute_time": 1e-4, "threads": 1e9, "card_rate": 1e18}, "copy"),
        ({"read_bandwidth": 1e13, "cores": 1e6, "threads": 0.1}, "open"),
        ({"read_bandwidth": 1e13, "cores": 1e6, "card_rate": 1e9}, "card"),
        ({"read_bandwidth": 1e12, "cores": 1000.0, "iops": 1000.0}, "read"),
    ],
)
def test_what_binds_first_is_named(more: dict[str, float], limit: str) -> None:
    question = Question("h100-sxm-80gb", 8, workload="image", **more)  # type: ignore[arg-type]
    assert limiter_of(predict([question], DB)) == limit
    assert storage(question, Context(DB)).limiter == limit


def test_small_reads_are_bound_by_operations() -> None:
    assert float(s.store_rate(1e12, 1e5, 1e5, 1.0)) == pytest.approx(1e10)
    assert float(s.store_rate(1e12, 1e5, 1e5, 2.0)) == pytest.approx(5e9)


def test_the_published_starvation_is_found() -> None:
    """A store of 15.1 GiB/s feeds five accelerators; the sixth starves all of them to about 85 %."""
    rate = 15.1 * 2**30
    five, six = (Question("h100-sxm-80gb", n, workload="unet3d", read_bandwidth=rate) for n in (5, 6))
    low, high = (1 / (1 + w) for w in reversed(defaults.workload(DB, "unet3d").wait[1:]))
    assert low - 0.01 <= 0.98 <= high + 0.01
    assert value(five, "metric/utilisation") == pytest.approx(0.926, abs=0.001)
    assert value(six, "metric/utilisation") == pytest.approx(0.85, abs=0.005)
    assert value(five, "fed/whole") == 5


def test_tokens_ask_for_next_to_nothing() -> None:
    """A million tokens a second are four megabytes a second."""
    found = value(Question("h100-sxm-80gb", 100, workload="text"), "demand/store")
    assert found == pytest.approx(4e6, rel=1e-9)


def test_a_models_checkpoints_are_sized() -> None:
    cells = {"model": "llama-3.1-405b", "gpu": "h100-sxm-80gb", "n_gpus": 512, "seq_len": 8192, "global_batch": 512}
    cells |= {"tp": 8, "pp": 16, "dp": 4, "micro_batch": 1, "zero_stage": 1, "sequence_parallel": True}
    asked = Question("h100-sxm-80gb", 512, read_bandwidth=2e11, write_bandwidth=6e10, save_interval=1800.0)
    found = storage(asked, Context(DB), cells)
    f = found.figures
    assert f["checkpoint_gb"] == pytest.approx(5291.7 * 1.073741824, rel=0.002)
    assert f["save_bandwidth_blocking_gb_per_s"] == pytest.approx(63, rel=0.01)
    assert f["save_bandwidth_async_gb_per_s"] == pytest.approx(3.16, rel=0.01)
    assert f["save_s"] == pytest.approx(f["checkpoint_gb"] / 60, rel=1e-9)
    assert f["restart_by_every_replica_s"] == pytest.approx(4 * f["restart_s"], rel=1e-9)
    assert found.limiter == "compute"


def test_a_device_without_a_measured_time_says_so_and_may_be_told() -> None:
    found = storage(Question("b300-sxm-270gb", 8, workload="unet3d"), Context(DB))
    assert any("0.39 to 0.84" in note and "--compute" in note for note in found.notes)
    assert 3.18 < found.figures["read_gb_per_s_per_gpu"] < 3.18 * 2500 / 989.4
    told = storage(Question("b300-sxm-270gb", 8, workload="unet3d", compute_time=0.163), Context(DB))
    assert told.figures["read_gb_per_s_per_gpu"] == pytest.approx(6.3, rel=0.01)


def test_a_cache_needs_the_size_of_the_data() -> None:
    with pytest.raises(UsageError, match="--dataset"):
        storage(Question("h100-sxm-80gb", 8, workload="image", cache_bytes=1e12), Context(DB))
    half = storage(Question("h100-sxm-80gb", 8, workload="image", cache_bytes=1e12, dataset_bytes=2e12), Context(DB))
    none = storage(Question("h100-sxm-80gb", 8, workload="image"), Context(DB))
    assert half.figures["read_gb_per_s_total"] == pytest.approx(none.figures["read_gb_per_s_total"] / 2, rel=1e-9)


def test_mlperf_results_are_predicted_from_the_rate_of_the_store() -> None:
    rows = shipped("storage")
    assert len(rows) >= 70
    report = cluster_report("storage", rows, DB)
    lines = {line["group"]: line for line in report["by_group"]}
    assert lines["all"]["median_pct"] <= 5
    assert lines["the store's rate from a benchmark of its own"]["median_pct"] <= 5
    # Neither the rate of the row nor its utilisation is read: the store's other runs, and what other stores show.
    held = lines["rate from the store's other runs, waiting from other stores"]
    assert held["rows"] >= 50
    assert held["median_pct"] <= 3
    assert held["p90_pct"] <= 10
    # Leaving the store out of the model would cost a tenth.
    assert lines["neither a store nor waiting: what leaving both out costs"]["median_pct"] > 8


def test_the_measured_utilisation_of_a_row_is_no_input() -> None:
    rows = [dict(r) for r in shipped("storage")[:10]]
    rates = [float(r["read_gb_per_s"]) for r in rows]
    before = predicted_samples(rows, DB, rates)
    for row in rows:
        row["utilisation_pct"] = "1"
    assert predicted_samples(rows, DB, rates) == before


def test_small_records_wait_though_the_store_is_fast() -> None:
    """I17: CosmoFlow on four H100 and 40 GB/s was told to compute all the time; runs wait 0.24 to 0.42 of computing."""
    found = storage(Question("h100-sxm-80gb", 4, workload="cosmoflow", read_bandwidth=40e9), Context(DB))
    assert 65 < found.figures["utilisation_pct"] < 81
    low, high = (found.figures["samples_per_s"] * share for share in found.spread)
    # One H100 of a published run reached 230 samples a second, four of them then 922.
    assert low <= 4 * 230.54 <= high * 1.01
    slow = storage(
        Question("h100-sxm-80gb", 4, workload="cosmoflow", read_bandwidth=40e9, threads=1.0, open_latency=5e-3),
        Context(DB),
    )
    assert slow.limiter == "open"
    assert slow.figures["open_ms"] == pytest.approx(5 + 2828486 / 2e9 * 1e3, rel=1e-9)


def test_the_published_time_of_new_accelerators_is_taken() -> None:
    """I17: 162 ms a batch of unet3d on B200."""
    found = storage(Question("b200-sxm-180gb", 8, workload="unet3d", card_rate=1e12), Context(DB))
    assert found.figures["compute_ms"] == pytest.approx(162)


def test_text_leads_with_loading() -> None:
    """I18: a store was told to feed 44 million GPUs."""
    cells = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 64}
    cells |= {"dp": 64, "micro_batch": 1, "zero_stage": 2}
    found = storage(Question("h100-sxm-80gb", 64, read_bandwidth=2e12), Context(DB), cells)
    assert next(iter(found.figures)) == "restart_s"
    assert "gpus_fed" not in found.figures
    assert found.limiter == "compute"
    assert any("next to nothing" in note for note in found.notes)


def test_a_planned_step_feeds_other_samples_too() -> None:
    cells = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
    cells |= {"dp": 64, "micro_batch": 1, "zero_stage": 2}
    found = storage(Question("h100-sxm-80gb", 64, workload="multimodal"), Context(DB), cells)
    from gpucalc.jobs.training import predict as steps
    from gpucalc.jobs.training import resolve

    [row] = steps([resolve(cells, Context(DB))])
    assert found.figures["compute_ms"] == pytest.approx(1e3 * row["pred_step_time_s"], rel=1e-9)
    assert found.figures["read_gb_per_s_total"] == pytest.approx(128 * 4e5 / row["pred_step_time_s"] / 1e9, rel=1e-9)


@pytest.mark.parametrize(("model", "workload"), [("resnet-50", "image"), ("unet-3d", "unet3d")])
def test_the_step_of_a_network_reads_its_samples(model: str, workload: str) -> None:
    from gpucalc.jobs.network import predict_networks, resolve_network_job

    cells = {"model": model, "gpu": "h100-sxm-80gb", "n_gpus": 8, "micro_batch": 4}
    [row] = predict_networks([resolve_network_job(cells, Context(DB))])
    question = Question("h100-sxm-80gb", 8, workload=workload, read_bandwidth=1e13, cores=1e6, wait=0.0)
    found = storage(question, Context(DB), cells)
    sample = defaults.workload(DB, workload).sample_bytes
    assert found.figures["compute_ms"] == pytest.approx(1e3 * row["pred_step_time_s"], rel=1e-9)
    assert found.figures["read_gb_per_s_total"] == pytest.approx(row["pred_samples_per_s"] * sample / 1e9, rel=1e-9)
    assert found.figures["checkpoint_gb"] == pytest.approx(14 * row["pred_params_m"] / 1e3, rel=1e-9)


def test_a_share_of_cached_reads_is_said_once_and_may_be_all() -> None:
    ask = Question("h100-sxm-80gb", 8, workload="unet3d", read_bandwidth=1e9, cache_hit=1.0)
    assert storage(ask, Context(DB)).limiter == "compute"
    with pytest.raises(UsageError, match="say the same"):
        storage(Question("h100-sxm-80gb", 8, cache_hit=0.5, cache_bytes=1e12, dataset_bytes=2e12), Context(DB))
