"""From cells to columns: defaults, rules and their sentences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from legal_jobs import database, legal_cells
from profiles import examples

from gpucalc.core.columns import TRAINING_PREDICTIONS
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import SCHEDULES
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import evaluate_rows, fit_of, job_band, predict, resolve

JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 4096}


def cells(**change: Any) -> dict[str, Any]:
    return resolve({**JOB, **change}, Context(database())).cells


def test_empty_cells_follow_their_rules() -> None:
    full = cells(tp=2, pp=2)
    assert (full["dp"], full["cp"], full["ep"], full["micro_batch"]) == (4, 1, 1, 1)
    assert full["global_batch"] == 4
    assert full["precision"] == "bf16"
    assert cells(gpu="v100-sxm2-32gb")["precision"] == "fp16"
    assert cells()["sequence_parallel"] is False  # nothing to shard over
    assert cells(tp=2)["sequence_parallel"] is True


def test_gpus_are_the_product_of_the_dimensions_when_not_stated() -> None:
    job = resolve({**JOB, "n_gpus": None, "tp": 4, "pp": 2, "dp": 3}, Context(database()))
    assert job.cluster.n_gpus == 24


@pytest.mark.parametrize(
    ("change", "schedule"),
    [
        ({"pp": 1}, "none"),
        ({"pp": 4, "vpp": 1}, "1f1b"),
        ({"pp": 4, "vpp": 2}, "interleaved"),
        ({"pp": 4, "vpp": 1, "schedule": "zb-h1"}, "zb-h1"),
        ({"pp": 1, "schedule": "gpipe"}, "none"),
        ({"pp": 4, "vpp": 2, "schedule": "1f1b"}, "interleaved"),
    ],
)
def test_the_schedule_follows_from_stages_and_chunks(change: dict[str, Any], schedule: str) -> None:
    job = resolve({**JOB, **change}, Context(database()))
    assert job.cells["schedule"] == schedule
    assert job.columns["schedule"] == SCHEDULES.index(schedule)


def test_virtual_stages_are_the_profiles_when_not_stated() -> None:
    """Megatron-Core interleaves by default, at most 12 chunks; other software does not."""
    assert cells(pp=4, framework="megatron-core")["vpp"] == 8
    assert cells(pp=2, framework="megatron-core")["vpp"] == 12
    assert cells(pp=4, framework="megatron-lm", software_date="2022-06")["vpp"] == 1


def test_expert_tensor_parallelism_is_that_of_the_model_while_it_fits() -> None:
    mixture = {"model": "mixtral-8x7b", "tp": 2}
    assert cells(**mixture, ep=8)["etp"] == 2
    assert cells(**{**mixture, "tp": 8}, ep=8)["etp"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp": 3}, "tp=4, dp=4 would be legal"),
        ({"dp": 5}, "dp=16 would be legal"),
        ({"pp": 64, "n_gpus": 64}, "more stages than the 32 layers"),
        ({"pp": 4, "vpp": 9}, "vpp=1, schedule=1f1b would be legal"),
        ({"cp": 16, "seq_len": 1000}, "does not divide the sequence"),
        ({"ep": 4}, "is dense"),
        ({"model": "mixtral-8x7b", "ep": 3, "n_gpus": 3, "tp": 1}, "ep=1 would be legal"),
        ({"zero_stage": 3, "shard_group": 5}, "shard_group=5"),
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"gpu": "h100-sxm-80"}, "h100-sxm-80gb"),
        ({"model": "lama-3.1-8b"}, "llama-3.1-8b"),
        ({"framework": None, "gpu": None}, "gpu is not stated"),
    ],
)
def test_a_broken_rule_is_a_sentence_with_a_legal_neighbour(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve({**JOB, **change}, Context(database()))


def test_all_violations_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({**JOB, "tp": 3, "pp": 64, "ep": 2}, Context(database()))
    assert len(caught.value.problems) >= 3


def test_a_bad_row_is_blank_with_its_reasons_and_the_others_go_on() -> None:
    good = {name: str(cell) for name, cell in JOB.items()}
    rows = evaluate_rows([good, {**good, "tp": "x"}, {**good, "gpu": "gpu9"}, good], Context(database()))
    assert rows[0] == rows[3]
    assert rows[0]["pred_error"] == ""
    for row in rows[1:3]:
        assert row["pred_error"]
        assert all(row[name] == "" for name in TRAINING_PREDICTIONS if name != "pred_error")
    assert predict([]) == []


def test_a_row_that_does_not_fit_has_numbers_all_the_same() -> None:
    (row,) = predict([resolve({**JOB, "model": "llama-3.1-405b", "tp": 8}, Context(database()))])
    assert row["pred_fit"] == "oom"
    assert row["pred_step_time_s"] > 0
    assert row["pred_peak_mem_gib"] > 80


@settings(max_examples=examples(30))
@given(cells=legal_cells())
def test_predictions_are_consistent(cells: dict[str, Any]) -> None:
    job = resolve(cells, Context(database()))
    (row,) = predict([job])
    assert row["pred_step_time_low_s"] < row["pred_step_time_s"] < row["pred_step_time_high_s"]
    low, high = job_band(job)
    assert 0 < low < 1 < high
    assert 0 < row["pred_mfu_pct"] <= row["pred_hfu_pct"] < 134
    assert row["pred_fit"] in {"fits", "risky", "oom"}
    assert row["pred_recompute"].split(":")[0] in {"none", "selective", "full"}


def test_risky_is_within_five_per_cent() -> None:
    assert [fit_of(fill) for fill in (0.94, 0.96, 1.04, 1.06)] == ["fits", "risky", "risky", "oom"]


def test_adapters_and_frozen_bases_hold_less_and_compute_less() -> None:
    full, lora, qlora = (
        predict([resolve({**JOB, "n_gpus": 1, "method": m}, Context(database()))])[0] for m in ("full", "lora", "qlora")
    )
    assert full["pred_peak_mem_gib"] > lora["pred_peak_mem_gib"] > qlora["pred_peak_mem_gib"]
    assert lora["pred_step_time_s"] < qlora["pred_step_time_s"] < full["pred_step_time_s"]


def test_a_smaller_optimizer_updates_sooner() -> None:
    big = {**JOB, "n_gpus": 1, "model": "llama-3.2-1b", "zero_stage": 0, "recompute": "none"}
    names = ("adam", "sgd", "adam8bit", "paged-adam8bit", "adafactor")
    rows = evaluate_rows(
        [{k: str(v) for k, v in {**big, "optimizer": name}.items()} for name in names], Context(database())
    )
    times = {name: row["pred_step_time_s"] for name, row in zip(names, rows, strict=True)}
    assert times["adam"] > times["sgd"] > times["adam8bit"] == times["paged-adam8bit"] > times["adafactor"]


def test_tf32_holds_in_the_head_and_in_attention_too() -> None:
    columns = resolve({**JOB, "precision": "tf32"}, Context(database())).columns
    assert columns["half_peak"] == columns["peak"]


def test_parameters_on_the_host_leave_the_gpu_and_need_sharding() -> None:
    cells = {"model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "n_gpus": 4, "seq_len": 2048, "framework": "deepspeed"}
    stays = resolve({**cells, "zero_stage": 3}, Context(database()))
    moved = resolve({**cells, "zero_stage": 3, "offload_parameters": True}, Context(database()))
    held, left = (predict([job])[0]["pred_peak_mem_gib"] for job in (stays, moved))
    assert held - left == pytest.approx(2 * 8.03e9 / 4 / 2**30, rel=0.1)
    assert any("offload_parameters" in warning for warning in moved.warnings)
    with pytest.raises(UsageError, match="needs zero_stage=3"):
        resolve({**cells, "zero_stage": 2, "offload_parameters": True}, Context(database()))
