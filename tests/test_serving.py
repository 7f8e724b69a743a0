"""Serving: published counts, physics that must hold whatever the constants are, rows alone against rows in a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.database.reader import Database
from gpucalc.estimate.serving import estimate_serving
from gpucalc.formulas import experts, kv_cache, serving
from gpucalc.jobs.context import Context
from gpucalc.jobs.formats import FORMATS, products_of
from gpucalc.jobs.serving import evaluate_serving, parse_serving, resolve_serving, stack_serving
from gpucalc.questions.serve import Limits, pareto, serve
from gpucalc.questions.serve_layouts import serving_label, serving_label_cells

DB = Database(())
BASE = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "precision": "fp8", "isl": 2048.0, "osl": 256.0}
MODELS = ("llama-3.1-70b", "llama-3.1-8b", "gpt-oss-120b", "deepseek-r1", "qwen3-235b-a22b")
PATHS = ("time/tpot", "time/ttft", "time/ttft-unloaded", "metric/output-rate", "memory/kv-tokens", "memory/weights")


def solved(**cells: Any) -> Any:
    """The ledger of one question."""
    full = {**BASE, "tp": 8, "concurrency": 32.0, **cells}
    return estimate_serving(
        stack_serving([resolve_serving({k: v for k, v in full.items() if v is not None}, Context(DB))])
    )


def at(path: str, **cells: Any) -> float:
    """One value of one question."""
    return float(np.asarray(solved(**cells)[path]).reshape(-1)[0])


# ---------------------------------------------------------------- published counts


def test_tokens_of_a_24_gib_card() -> None:
    # Llama-3.1-8B in 16 bit, 0.9 of 24 GiB: 54,400 tokens in blocks of 16 before any overhead.
    space = kv_cache.cache_space_of_total(24 * 2**30, 0.9, 2 * 8_030_261_248, 0.0, 0.0)
    token = 32 * kv_cache.grouped_cache_bytes(8, 128, 128, 2.0, 1)
    assert kv_cache.cache_tokens(space, token, 1.0, 16.0) == 54_400


@pytest.mark.parametrize(
    ("model", "tokens", "gib"),
    [("qwen3-coder-30b-a3b", 262_144, 24.0), ("qwen2.5-7b", 3_072, 0.1640625)],
)
def test_cache_of_one_sequence(model: str, tokens: int, gib: float) -> None:
    found = at(
        "memory/kv/longest", model=model, tp=1, precision="bf16", kv_precision="bf16", isl=tokens - 16.0, osl=16.0
    )
    assert found / 2**30 == pytest.approx(gib, rel=1e-6)


def test_a_latent_cache_is_not_shared_by_tensor_parallelism() -> None:
    one, eight = (at("memory/kv/longest", model="deepseek-r1", tp=tp, kv_precision="bf16") for tp in (1, 8))
    assert one == eight == (2048 + 256) * 61 * 576 * 2


def test_heads_are_never_cut_below_one() -> None:
    cache = {tp: at("memory/kv/longest", tp=tp, n_gpus=tp) for tp in (1, 8, 16)}
    assert cache[1] == pytest.approx(8 * cache[8])
    assert cache[16] == cache[8]


def test_a_window_keeps_its_layers_short() -> None:
    lengths = (16_384.0, 65_536.0)  # both beyond a window and the tokens of one pass
    short, long = (at("memory/kv/longest", model="gpt-oss-120b", tp=1, isl=isl) for isl in lengths)
    full_layers_only = 18 * 2 * 8 * 64 * 2  # keys and values of 8 heads of 64 in 16 bit
    assert long - short == pytest.approx((65_536 - 16_384) * full_layers_only)


def test_a_recurrent_state_does_not_grow() -> None:
    from gpucalc.models.model import load_model, preset_names

    name = next(n for n in preset_names() if load_model(n).linear_layers and not load_model(n).attention_layers)
    cells = {"model": name, "tp": 1, "precision": None}
    assert at("memory/kv/longest", isl=512.0, **cells) == at("memory/kv/longest", isl=1_024.0, **cells)


def test_scales_of_formats() -> None:
    assert FORMATS["nvfp4"].bytes * 8 == 4.5
    assert FORMATS["mxfp4"].bytes * 8 == 4.25
    assert FORMATS["int4"].bytes * 8 == 4.125


def test_weight_only_formats_keep_their_bytes_and_take_the_16_bit_peak() -> None:
    device = resolve_serving({**BASE, "tp": 8, "concurrency": 1.0}, Context(DB)).cluster.device
    assert products_of(device, "fp8") == ("fp8", False)
    assert products_of(device, "nvfp4") == ("bf16", True)


# ---------------------------------------------------------------- physics


def test_memory_counts_all_experts_and_bandwidth_the_visited() -> None:
    assert experts.experts_visited(256, 8, 1, 0.5) == 8
    cells = {"model": "deepseek-r1", "gpu": "b200-sxm-180gb"}
    few, many = (at("decode/experts/visited", **cells, concurrency=c) for c in (1.0, 128.0))
    assert few == 8 < many <= 256
    assert at("memory/weights", **cells, concurrency=1.0) * 8 > 600e9


@settings(max_examples=examples(25))
@given(
    model=st.sampled_from(MODELS),
    tp=st.sampled_from([4, 8]),
    load=st.integers(1, 64),
    isl=st.integers(64, 8_192),
    engine=st.sampled_from(["vllm", "sglang", "trtllm", None]),
)
def test_more_work_is_never_faster(model: str, tp: int, load: int, isl: int, engine: str | None) -> None:
    cells = {"model": model, "gpu": "b200-sxm-180gb", "tp": tp, "framework": engine}
    here = solved(**cells, concurrency=float(load), isl=float(isl))
    fuller = solved(**cells, concurrency=2.0 * load, isl=float(isl))
    longer = solved(**cells, concurrency=float(load), isl=2.0 * isl)
    for path in ("time/tpot", "time/ttft"):
        assert fuller[path] >= here[path] * (1 - 1e-9)
        assert longer[path] >= here[path] * (1 - 1e-9)
    assert here["time/ttft"] >= here["time/ttft-unloaded"]


def test_a_prefix_hit_shortens_the_first_token_only() -> None:
    none, half = solved(isl=8_192.0), solved(isl=8_192.0, prefix_hit=0.5)
    assert half["time/ttft-unloaded"] < none["time/ttft-unloaded"]
    assert half["decode/time"] == none["decode/time"]
    assert half["memory/kv/longest"] == none["memory/kv/longest"]


def test_a_smaller_format_of_weights_or_cache_is_never_slower_at_decoding() -> None:
    cells = {"gpu": "b200-sxm-180gb", "tp": 1, "concurrency": 1.0}
    steps = [at("time/step", precision=p, **cells) for p in ("bf16", "fp8", "nvfp4")]
    assert steps == sorted(steps, reverse=True)
    wide, narrow = (at("time/step", kv_precision=p, isl=60_000.0) for p in ("bf16", "fp8"))
    assert narrow < wide


def test_speculation_pays_at_small_batches_only() -> None:
    gain = {
        load: at("time/token", concurrency=load) / at("time/token", concurrency=load, draft_tokens=3, acceptance=0.7)
        for load in (1.0, 512.0)
    }
    assert gain[1.0] > 1.5
    assert gain[512.0] < gain[1.0]
    assert serving.tokens_per_verification(0.7, 3) == pytest.approx(2.533)


def test_workers_apart_do_not_disturb_decoding() -> None:
    cells = {"n_gpus": 16, "tp": 4, "concurrency": 64.0, "isl": 8_192.0}
    together, apart = solved(**cells), solved(**cells, prefill_gpus=8)
    assert apart["time/tpot"] < together["time/tpot"]
    assert apart["time/transfer"] > 0
    assert apart["metric/output-rate"] <= 2 / apart["time/prefill-unloaded"] * 256 * (1 + 1e-9)


def test_a_latent_cache_serves_more_requests_with_attention_data_parallel() -> None:
    cells = {"model": "deepseek-r1", "gpu": "b200-sxm-180gb", "n_gpus": 8}
    shared = solved(**cells, tp=8)["memory/sequences"]
    apart = solved(**cells, tp=1, dp=8, ep=8)["memory/sequences"] * 8
    assert apart > 5 * shared


def test_the_closed_loop_obeys_littles_law() -> None:
    found = solved()
    residence = found["time/ttft"] + found["time/tpot"] * 255
    assert found["metric/output-rate"] == pytest.approx(32 * 256 / residence)


def test_requests_beyond_the_cache_wait() -> None:
    cells = {"gpu": "h200-sxm-141gb", "tp": 1, "isl": 7_373.0, "osl": 922.0, "framework": "vllm"}
    inside, beyond = (solved(**cells, concurrency=c) for c in (16.0, 128.0))
    assert inside["time/admission"] == 0
    assert beyond["time/admission"] > 10
    assert beyond["symbol/batch"] < 128


def test_open_loop_load_follows_the_rate() -> None:
    found = solved(concurrency=None, rate=2.0)
    residence = found["time/residence"]
    assert found["symbol/batch"] == pytest.approx(2.0 * residence, rel=1e-3)
    assert found["metric/output-rate"] == pytest.approx(2.0 * 256)


@pytest.mark.parametrize("rule", ["vllm", "sglang", "trtllm"])
def test_each_engine_has_its_own_memory_rule(rule: str) -> None:
    found = solved(framework=rule)
    job = resolve_serving({**BASE, "tp": 8, "concurrency": 32.0, "framework": rule}, Context(DB))
    u, weights = job.columns["memory_share"], found["memory/weights"]
    outside, visible = found["memory/outside"], job.columns["usable_bytes"] - job.columns["driver_reserve"]
    expected = {
        "vllm": 0.9 * visible - weights - found["memory/activations"] - outside,
        "sglang": u * (visible - outside) - weights,
        "trtllm": 0.9 * (visible - weights - found["memory/activations"] - outside),
    }
    assert u == (0.818 if rule == "sglang" else 0.9)  # what SGLang reserves beside 8,192 tokens, 512 graphs, 8 ranks
    assert found["memory/kv-space"] == pytest.approx(expected[rule])


# ---------------------------------------------------------------- rows


@settings(max_examples=examples(20))
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "model": st.sampled_from(MODELS),
                "gpu": st.sampled_from(["h200-sxm-141gb", "b200-sxm-180gb"]),
                "tp": st.sampled_from(["4", "8"]),
                "dp": st.sampled_from(["1", "2"]),
                "precision": st.sampled_from(["bf16", "fp8", "int4"]),
                "isl": st.sampled_from(["128", "5000"]),
                "osl": st.sampled_from(["128", "1000"]),
                "concurrency": st.sampled_from(["1", "48"]),
                "framework": st.sampled_from(["vllm", "sglang", "trtllm", ""]),
            }
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_row_of_a_batch_equals_the_row_alone(rows: list[dict[str, str]]) -> None:
    together = evaluate_serving(rows, Context(DB))
    for row, found in zip(rows, together, strict=True):
        alone = evaluate_serving([row], Context(DB))[0]
        assert alone["pred_fit"] == found["pred_fit"]
        for name in ("pred_tpot_ms", "pred_ttft_ms", "pred_output_tok_s_total", "pred_kv_tokens"):
            if alone[name] is not None:
                assert found[name] == pytest.approx(alone[name], rel=1e-12)


def test_rates_and_loads_in_one_batch() -> None:
    rows = [
        {**{k: str(v) for k, v in BASE.items()}, "tp": "8", "rate": "2"},
        {**{k: str(v) for k, v in BASE.items()}, "tp": "8", "concurrency": "32"},
        {**{k: str(v) for k, v in BASE.items()}, "tp": "8"},
    ]
    together = evaluate_serving(rows, Context(DB))
    for row, found in zip(rows, together, strict=True):
        assert found["pred_tpot_ms"] == pytest.approx(evaluate_serving([row], Context(DB))[0]["pred_tpot_ms"], rel=1e-9)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"tp": "3", "n_gpus": "3"}, "tp=3 does not divide the 64 heads; tp=2 does"),
        ({"ep": "2"}, "needs a mixture of experts"),
        ({"n_gpus": "3", "prefill_tp": "1", "decode_tp": "1"}, "n_gpus=2 would fit"),
        ({"draft_tokens": "2", "accepted_tokens": "3"}, "more than the draft_tokens=2"),
        ({"draft_tokens": "2", "accepted_tokens": "1", "acceptance": "0.5"}, "state one"),
        ({"kv_precision": "nvfp4"}, "fp8 is the narrowest"),
        ({"precision": "fp3"}, "unknown precision 'fp3'"),
        ({"kv_precision": "int2"}, "unknown kv_precision"),
        ({"gpu": "v100-sxm2-32gb"}, "cannot serve"),
        ({"framework": "vlm"}, "did you mean vllm"),
        ({"tp": "8", "n_gpus": "12"}, "not the 12 GPUs"),
        ({"pp": "100", "n_gpus": "800"}, "more stages than the 80 layers"),
        ({"prefix_hit": "2"}, "expected a share below 1"),
        ({"prefill_gpus": "3"}, "whole replicas"),
        ({"rate": "1e6"}, "beyond saturation"),
    ],
)
def test_mistakes_are_sentences(cells: dict[str, str], said: str) -> None:
    row = {**{k: str(v) for k, v in BASE.items()}, "tp": "8", **cells}
    if "rate" not in cells:
        row["concurrency"] = "8"
    found = evaluate_serving([row], Context(DB))[0]
    assert said in found["pred_error"]
    assert not found["pred_tpot_ms"]


def test_all_mistakes_of_a_row_are_told_at_once() -> None:
    row = {"model": "deepseek-r1", "gpu": "h100-sxm-80gb", "tp": "3", "ep": "5", "isl": "10", "osl": "10"}
    said = evaluate_serving([row], Context(DB))[0]["pred_error"]
    assert "tp=3" in said
    assert "ep=5" in said


def test_tensor_parallelism_beyond_the_heads_of_the_cache_is_noted() -> None:
    job = resolve_serving({**BASE, "tp": 16, "n_gpus": 16, "concurrency": 8.0}, Context(DB))
    assert any("8 KV heads: each is held 2 times" in note for note in job.notes)


# ---------------------------------------------------------------- search


@given(
    cells=st.fixed_dictionaries(
        {name: st.integers(1, 16) for name in ("tp", "pp", "dp", "ep", "attention_dp", "prefill_gpus")}
    )
)
def test_labels_say_all(cells: dict[str, int]) -> None:
    found = {**dict.fromkeys(cells, 1), **serving_label_cells(serving_label(cells))}
    assert found == cells


def test_ranked_rows_keep_the_limits() -> None:
    limits = Limits(ttft=1.0, tpot=0.03)
    result = serve({**BASE, "n_gpus": 8}, Context(DB), limits=limits)
    assert result.rows
    rates = [row["pred_output_tok_s_total"] for row in result.rows]
    assert rates == sorted(rates, reverse=True)
    assert all(limits.kept(row) for row in result.rows)
    free = serve({**BASE, "n_gpus": 8}, Context(DB))
    assert free.rows[0]["pred_output_tok_s_total"] >= rates[0]


def test_limits_that_cannot_be_met_name_what_binds() -> None:
    result = serve({**BASE, "n_gpus": 8, "concurrency": 16.0}, Context(DB), limits=Limits(tpot=0.001))
    assert not result.rows
    assert "TPOT binds" in result.nearest
    assert result.miss is not None


def test_the_front_is_not_dominated() -> None:
    front = serve({**BASE, "n_gpus": 8}, Context(DB)).front
    assert pareto(front) == front
    users = [row["pred_tok_s_per_user"] for row in front]
    gpus = [row["pred_tok_s_per_gpu"] for row in front]
    assert users == sorted(users, reverse=True)
    assert gpus == sorted(gpus)


def test_the_least_gpus_serve_the_rate_and_one_replica_less_does_not() -> None:
    limits = Limits(tpot=0.04)
    cells = {**BASE, "rate": 20.0, "tp": 4, "pp": 1}
    best = serve(cells, Context(DB), limits=limits).rows[0]
    assert limits.kept(best)
    fewer = {**BASE, "rate": 20.0, "tp": 4, "pp": 1, "dp": best["dp"] - 1, "n_gpus": 4 * (best["dp"] - 1)}
    short = serve(fewer, Context(DB), limits=limits)
    assert not short.rows


def test_a_rate_beyond_saturation_is_an_answer() -> None:
    result = serve({**BASE, "n_gpus": 8, "rate": 1e4}, Context(DB))
    assert not result.rows
    assert "beyond saturation" in result.nearest
    assert math.isfinite(result.miss["pred_saturation_rate"]) if result.miss else False


def test_drafts_none_of_which_is_accepted_give_one_token_a_verification() -> None:
    drafted = {"draft_tokens": 3, "concurrency": 4.0}
    assert at("decode/accepted", **drafted, acceptance=0.0) == 1
    assert at("decode/accepted", **drafted, accepted_tokens=1.8) == pytest.approx(2.8)
    assert at("decode/accepted", **drafted) == pytest.approx((1 - 0.7**4) / 0.3)


def test_a_burst_of_requests_waits_and_a_lone_one_does_not() -> None:
    steady, burst = (solved(concurrency=64.0, waves=waves) for waves in (None, 10.0))
    assert burst["time/ttft"] - steady["time/ttft"] == pytest.approx(burst["time/burst"])
    assert burst["time/tpot"] == steady["time/tpot"]
    lone = solved(concurrency=1.0, waves=10.0)
    assert lone["time/burst"] == lone["time/queue"] == 0


def test_the_slower_side_limits_a_deployment_of_two() -> None:
    sides = {"tp": None, "prefill_tp": 4, "decode_tp": 8, "concurrency": 512.0, "isl": 8_000.0}
    few, many = (solved(**sides, prefill_workers=count, n_gpus=8 + 4 * count) for count in (1, 32))
    assert few["metric/prefill-limits"] == 1
    assert many["metric/prefill-limits"] == 0
    assert few["metric/request-rate"] <= few["prefill-side/metric/rate"] * (1 + 1e-9)
    assert many["metric/output-rate"] > 2 * few["metric/output-rate"]
    assert many["time/tpot"] >= few["time/tpot"]  # more requests decode at once


def test_eager_steps_are_bound_by_their_launches() -> None:
    assert at("time/step", concurrency=1.0, eager=True) >= 80 * 3e-4
    assert at("time/step", concurrency=1.0) < 80 * 3e-4


def test_lengths_beyond_the_context_are_a_remark() -> None:
    job = resolve_serving({**BASE, "isl": 131_000.0, "osl": 1_000.0, "tp": 8}, Context(DB))
    assert any("beyond the context of 131,072" in note for note in job.notes)


def test_what_does_not_fit_is_answered_with_what_would() -> None:
    result = serve({**BASE, "model": "deepseek-r1", "precision": None, "n_gpus": 8}, Context(DB))
    assert not result.rows
    assert "16 GPUs would hold it" in result.nearest
    assert "GiB a GPU are needed" in result.nearest


def test_formats_are_the_checkpoints() -> None:
    job = resolve_serving({"model": "deepseek-r1", "gpu": "h200", "tp": 8, "isl": 1e3, "osl": 1e2}, Context(DB))
    assert (job.cells["precision"], job.cells["kv_precision"]) == ("fp8", "bf16")
    assert "quantization_config" in job.reasons["precision"]
    for model, gpu, tp in (("deepseek-r1", "h200", 8), ("gpt-oss-120b", "h100", 1)):
        assert at("memory/sequences", model=model, gpu=gpu, tp=tp, precision=None) >= 1


def test_shares_are_read_as_people_write_them() -> None:
    cells, problems = parse_serving({"prefix_hit": "25%", "memory_share": "0.8"})
    assert cells == {"prefix_hit": 0.25, "memory_share": 0.8}
    assert not problems
