"""Metamorphic properties: how the answer must move when the question moves, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from legal_jobs import DENSE, MIXTURES, changed, database, is_legal, legal_cells, solve, value
from profiles import examples

from gpucalc.estimate import products
from gpucalc.formulas import collectives
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve

FASTER = st.floats(1.0, 8.0)
SLACK = 1 + 1e-9
STATES = ("weights", "gradients", "optimizer")


def test_a_higher_peak_is_never_slower_when_gradients_outlast_the_step() -> None:
    cells = {"model": "llama-3.1-8b", "gpu": "v100-sxm2-32gb", "n_gpus": 2, "zero_stage": 1, "seq_len": 512}
    job = resolve(cells, Context(database()))
    faster = changed(job, peak=job.columns["peak"] * 2, half_peak=job.columns["half_peak"] * 2)
    assert value(faster, "time/step") <= value(changed(job), "time/step") * SLACK


def test_the_upper_bound_counts_every_reduction_of_zero_2() -> None:
    cells = {"model": "mixtral-8x7b", "gpu": "v100-sxm2-32gb", "n_gpus": 24, "tp": 8, "pp": 3, "cp": 1, "ep": 1}
    ledger = solve({**cells, "n_gpus": 48, "cp": 2, "zero_stage": 2, "global_batch": 16, "seq_len": 512})
    assert value(ledger, "time/step") <= value(ledger, "bounds/upper") * 1.001


def test_the_upper_bound_counts_the_copies_of_hybrid_sharding() -> None:
    cells = {"model": "llama-3.1-8b", "gpu": "v100-sxm2-32gb", "n_gpus": 4, "zero_stage": 3, "shard_group": 2}
    ledger = solve({**cells, "framework": "megatron-lm", "software_date": "2022-06", "seq_len": 512})
    assert value(ledger, "time/step") <= value(ledger, "bounds/upper") * 1.001


@settings(max_examples=examples(60))
@given(cells=legal_cells(), factor=FASTER)
@pytest.mark.parametrize("column", ["link_bandwidth", "network_bandwidth", "memory_bandwidth", "host_bandwidth"])
def test_more_bandwidth_is_never_slower(cells: dict[str, object], factor: float, column: str) -> None:
    job = resolve(cells, Context(database()))
    faster = changed(job, **{column: job.columns[column] * factor})
    assert value(faster, "time/step") <= value(changed(job), "time/step") * SLACK


@settings(max_examples=examples(60))
@given(cells=legal_cells(), factor=FASTER)
def test_a_higher_peak_is_never_slower(cells: dict[str, object], factor: float) -> None:
    job = resolve(cells, Context(database()))
    faster = changed(job, peak=job.columns["peak"] * factor, half_peak=job.columns["half_peak"] * factor)
    assert value(faster, "time/step") <= value(changed(job), "time/step") * SLACK


@settings(max_examples=examples(60))
@given(cells=legal_cells(), factor=FASTER)
def test_more_memory_changes_no_memory_that_is_stated_and_only_lowers_the_fill(
    cells: dict[str, object], factor: float
) -> None:
    job = resolve(cells, Context(database()))
    before, after = changed(job), changed(job, usable_bytes=job.columns["usable_bytes"] * factor)
    assert value(after, "time/step") <= value(before, "time/step") * SLACK  # the least recomputation that fits
    if job.columns["recompute"] >= 0:
        assert value(after, "memory/fill") <= value(before, "memory/fill") * SLACK
        assert value(after, "memory/raw") == value(before, "memory/raw")


@settings(max_examples=examples(60))
@given(cells=legal_cells())
def test_a_higher_zero_stage_never_needs_more_model_state_memory(cells: dict[str, object]) -> None:
    ledgers = [solve({**cells, "zero_stage": stage}) for stage in range(4)]
    for part in STATES:
        held = [value(ledger, f"memory/second/{part}") for ledger in ledgers]
        assert held == sorted(held, reverse=True), part
    assert len({value(ledger, "flops/step") for ledger in ledgers}) == 1


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_zero_shards_over_all_replicas_and_a_smaller_group_holds_more(cells: dict[str, object]) -> None:
    whole = {**cells, "zero_stage": 3, "shard_group": None}
    replicas = int(cells["dp"]) * int(cells["cp"])  # type: ignore[call-overload]
    assume(replicas % 2 == 0)
    pair = solve({**whole, "shard_group": 2})
    assert value(pair, "memory/second/states") >= value(solve(whole), "memory/second/states") / SLACK


@settings(max_examples=examples(30))
@given(cells=legal_cells(models=DENSE))
def test_one_gpu_communicates_nothing(cells: dict[str, object]) -> None:
    alone = dict.fromkeys(("n_gpus", "tp", "pp", "dp", "cp", "ep", "etp", "vpp"), 1)
    ledger = solve({**cells, **alone, "schedule": None, "shard_group": None, "global_batch": cells["micro_batch"]})
    assert value(ledger, "traffic/step") == 0
    assert value(ledger, "communication/step") == 0
    exposed = [path for path in ledger.entries if path.startswith("time/") and path.endswith("exposed")]
    assert all(value(ledger, path) == 0 for path in (*exposed, "time/pp/bubble", "time/pp/p2p"))


@settings(max_examples=examples(60))
@given(cells=legal_cells())
def test_recomputation_trades_memory_for_time(cells: dict[str, object]) -> None:
    """Memory: none > selective (without flash) or = (with it) > full. Time the other way round."""
    none, selective, full = (solve({**cells, "recompute": kind}) for kind in ("none", "selective", "full"))
    kept = [value(ledger, "layer/memory/kept/chosen") for ledger in (none, selective, full)]
    assert kept[0] >= kept[1] > kept[2]
    if value(none, "layer/memory/scores") > 0:
        assert kept[0] > kept[1]
    raw = [value(ledger, "activations/second/chosen") for ledger in (none, selective, full)]
    assert raw[0] >= raw[1] > raw[2]
    times = [value(ledger, "time/step") for ledger in (none, selective, full)]
    assert times[0] <= times[1] * SLACK
    assert times[1] <= times[2] * SLACK or (
        cells["flash_attention"] == "no" and cells["framework"] in {"fsdp", "deepspeed"}
    )


def test_selective_recomputation_never_costs_more_than_full_without_flash_on_fsdp() -> None:
    cells = {"model": "llama-3.1-8b", "gpu": "v100-sxm2-32gb", "framework": "fsdp", "seq_len": 8192}
    selective, full = (solve({**cells, "flash_attention": "no", "recompute": r}) for r in ("selective", "full"))
    assert value(selective, "time/step") <= value(full, "time/step")


@settings(max_examples=examples(40))
@given(cells=legal_cells(), share=st.integers(1, 6))
def test_recomputing_more_layers_costs_more_and_holds_less(cells: dict[str, object], share: int) -> None:
    fewer, more = (solve({**cells, "recompute": "full", "recompute_layers": n}) for n in (share, share + 1))
    assert value(more, "activations/second/chosen") <= value(fewer, "activations/second/chosen") * SLACK
    assert value(more, "time/step") >= value(fewer, "time/step") / SLACK


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_sequence_parallelism_holds_less(cells: dict[str, object]) -> None:
    without, within = (solve({**cells, "recompute": "none", "sequence_parallel": flag}) for flag in (False, True))
    less = value(within, "layer/memory/kept/chosen"), value(without, "layer/memory/kept/chosen")
    assert less[0] < less[1] if int(cells["tp"]) > 1 else less[0] == less[1]  # type: ignore[call-overload]


@settings(max_examples=examples(40))
@given(cells=legal_cells(models=DENSE))
def test_offloading_moves_memory_to_the_host_and_time_to_pcie(cells: dict[str, object]) -> None:
    here, there = solve(cells), solve({**cells, "offload_optimizer": True})
    assert value(there, "memory/optimizer") == 0
    assert value(there, "optimizer/offload") > value(here, "optimizer/offload") == 0


@settings(max_examples=examples(40))
@given(cells=legal_cells(), times=st.integers(2, 8))
def test_more_micro_batches_take_longer_and_thin_the_bubble(cells: dict[str, object], times: int) -> None:
    more = {**cells, "global_batch": int(cells["global_batch"]) * times}  # type: ignore[call-overload]
    few, many = solve(cells), solve(more)
    assert value(many, "time/step") > value(few, "time/step")
    shares = [value(ledger, "time/pp/bubble") / value(ledger, "time/step") for ledger in (few, many)]
    assert shares[1] <= shares[0] * SLACK
    assert value(many, "metric/tokens_per_s_per_gpu") >= value(few, "metric/tokens_per_s_per_gpu") / SLACK


@settings(max_examples=examples(40))
@given(cells=legal_cells())
def test_a_longer_sequence_takes_longer_and_holds_more(cells: dict[str, object]) -> None:
    cells = {**cells, "recompute": "none"}
    short, long = solve(cells), solve({**cells, "seq_len": 2 * int(cells["seq_len"])})  # type: ignore[call-overload]
    assert value(long, "time/step") > value(short, "time/step") / SLACK
    assert value(long, "memory/raw") > value(short, "memory/raw") / SLACK
    assert value(long, "flops/step") > 2 * value(short, "flops/step") / SLACK


@settings(max_examples=examples(30))
@given(cells=legal_cells(models=DENSE))
def test_more_stages_hold_fewer_states_and_activations_of_fewer_layers(cells: dict[str, object]) -> None:
    pp = int(cells["pp"])  # type: ignore[call-overload]
    deeper = {**cells, "pp": 2 * pp, "n_gpus": 2 * int(cells["n_gpus"]), "schedule": None, "vpp": 1}  # type: ignore[call-overload]
    shallow = {**cells, "schedule": None, "vpp": 1}
    assume(is_legal(deeper))
    assert value(solve(deeper), "memory/second/states") <= value(solve(shallow), "memory/second/states") * SLACK


@settings(max_examples=examples(40))
@given(cells=legal_cells(), factor=st.floats(0.0, 1.0))
def test_overlap_never_makes_a_step_longer(cells: dict[str, object], factor: float) -> None:
    """Hiding a larger share of communication is never slower; hiding none of it is the slowest."""
    job = resolve(cells, Context(database()))
    shares = ("dp_hidden_share", "fsdp_hidden_share", "cp_hidden_share")
    less = changed(job, **{name: job.columns[name] * factor for name in shares})
    assert value(changed(job), "time/step") <= value(less, "time/step") * SLACK


@settings(max_examples=examples(60))
@given(cells=legal_cells())
def test_the_estimate_lies_between_its_bounds(cells: dict[str, object]) -> None:
    assume(cells["zero_stage"] != 2 and not cells["shard_group"])  # see the upper bound above
    ledger = solve(cells)
    lower, step, upper = (value(ledger, path) for path in ("bounds/work", "time/step", "bounds/upper"))
    assert lower <= step * SLACK
    assert step <= upper * 1.001


@settings(max_examples=examples(60))
@given(size=st.floats(1e3, 1e10), ranks=st.sampled_from([2, 4, 8]), rate=st.floats(1e9, 1e12))
def test_an_all_reduce_on_the_ring_is_a_reduce_scatter_and_an_all_gather(size: float, ranks: int, rate: float) -> None:
    """Both move 2·S·(g-1)/g bytes over a link, and in-network reduction is never assumed silently."""
    plain = {"link_efficiency": 1.0, "link_step_latency": 0.0, "chunk_latency": 0.0, "own_chunk": 0.0}
    once, twice = (collectives.link_ring_time(size, ranks, passes, link_bandwidth=rate, **plain) for passes in (1, 2))
    assert twice == pytest.approx(2 * once, rel=1e-12)
    assert twice == pytest.approx(2 * size * (ranks - 1) / ranks / rate, rel=1e-12)


@settings(max_examples=examples(60))
@given(cells=legal_cells(models=(*DENSE, *MIXTURES)), step=st.integers(1, 200))
def test_the_time_is_continuous_in_the_network_rate(cells: dict[str, object], step: int) -> None:
    """No thresholds: one per cent of rate is at most a few per cent of time."""
    job = resolve(cells, Context(database()))
    rate = job.columns["network_bandwidth"] * step / 50
    near, far = (value(changed(job, network_bandwidth=r), "time/step") for r in (rate, rate * 1.01))
    assert far <= near <= far * 1.03


@settings(max_examples=examples(60))
@given(m=st.integers(256, 40000), n=st.integers(256, 40000), k=st.integers(64, 16384))
def test_a_larger_product_is_not_much_faster(m: int, n: int, k: int) -> None:
    """Efficiency may rise with size, but never so steeply that more work takes notably less time."""
    job = resolve({"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "seq_len": 2048}, Context(database()))
    constants = {**job.columns, "sustained_clock": 1.0}
    with np.errstate(all="raise"):
        time = products.seconds(products.add_gemm, {**constants, "m": m, "n": n, "k": k})
        deeper = products.seconds(products.add_gemm, {**constants, "m": m, "n": n, "k": k + 64})
    assert deeper >= time / SLACK
