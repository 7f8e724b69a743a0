"""Gangs on a partly used cluster: filter, score, bind, wait; and networks at scale."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from cli import gpucalc
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import DataError, InfeasibleError, UsageError
from gpucalc.database.reader import Database
from gpucalc.formulas import gang, placement_scale
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve
from gpucalc.layouts.label import label_cells
from gpucalc.questions import crossings, schedule

DB = Database()
NODES = st.lists(st.integers(0, 8), min_size=1, max_size=60)


def cluster(free: list[int], leaf: int = 8) -> list[schedule.NodeState]:
    return [schedule.NodeState(f"n{i:03d}", f"leaf{i // leaf}", f) for i, f in enumerate(free)]


def job(gpus: int = 256, layout: str = "tp8-pp4-dp8-mbs1-zero1-sp", batch: int = 512, gpu: str = "h100-sxm-80gb"):
    cells = {"model": "llama-3.1-70b", "gpu": gpu, "n_gpus": gpus, "seq_len": 8192, "global_batch": batch}
    return resolve({**cells, **label_cells(layout)}, Context(DB))


def test_blocks_and_fragmentation_by_hand() -> None:
    ledger = schedule.filter_gang(cluster([8, 8, 4, 7, 0]), 2, 8)
    assert ledger["filter/blocks"] == 2
    assert ledger["filter/fragmentation"] == pytest.approx(1 - 16 / 27)


def test_a_gang_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(InfeasibleError, match=r"2 blocks .* and 1 are free .* blocks of 4 GPUs a node would fit"):
        schedule.filter_gang(cluster([8, 4, 4]), 2, 8)
    with pytest.raises(InfeasibleError) as caught:
        schedule.filter_gang(cluster([2, 2]), 2, 8)
    assert "would fit" not in str(caught.value)


def test_best_fit_takes_the_fullest_leaf_that_holds_the_gang() -> None:
    nodes = cluster([8] * 8 + [8, 8, 8, 0, 0, 0, 0, 0] + [8] * 5 + [0, 0, 0])
    best = next(p for p in schedule.placements(nodes, 3, 8) if p.strategy == "best-fit")
    assert best.leaves == 1
    assert set(best.blocks) == {"n008", "n009", "n010"}


def test_schedulers_without_leaves_take_equal_nodes_in_no_order() -> None:
    """On four equal leaves best fit stays on one, and those that know no leaves touch all of them."""
    nodes = cluster([8] * 32, leaf=8)
    found = {p.strategy: p for p in schedule.placements(nodes, 8, 8)}
    assert {name: p.leaves for name, p in found.items()} == {"best-fit": 1, "least-free": 4, "balanced": 1, "spread": 4}
    times = dict((p.strategy, t) for p, t in schedule.score(list(found.values()), job(), 7.0))
    assert times["best-fit"] < times["spread"]


def test_spreading_touches_more_leaves_and_fragments_more() -> None:
    nodes = cluster([8] * 16, leaf=4)
    found = {p.strategy: p for p in schedule.placements(nodes, 8, 2)}
    assert found["best-fit"].leaves == 1 < found["spread"].leaves
    left = {n: gang.free_blocks(8.0 - 2 * found[n].blocks.get("n000", 0), 8) for n in ("best-fit", "spread")}
    assert left["spread"] == 0
    assert len(found["spread"].blocks) == 8
    assert len(found["best-fit"].blocks) == 2


@settings(max_examples=examples(60), deadline=None)
@given(free=NODES, needed=st.integers(1, 20), share=st.sampled_from([1, 2, 4, 8]), leaf=st.sampled_from([1, 4, 16]))
def test_every_strategy_places_the_whole_gang_and_no_more_than_is_free(
    free: list[int], needed: int, share: int, leaf: int
) -> None:
    nodes = cluster(free, leaf)
    blocks = sum(f // share for f in free)
    if blocks < needed:
        with pytest.raises(InfeasibleError):
            schedule.placements(nodes, needed, share)
        return
    for placed in schedule.placements(nodes, needed, share):
        assert sum(placed.blocks.values()) == needed
        assert all(count * share <= free[int(name[1:])] for name, count in placed.blocks.items())
        assert placed.blocks_left == blocks - needed
        assert 0 <= placed.fragmentation <= 1


@settings(max_examples=examples(40), deadline=None)
@given(free=NODES, share=st.sampled_from([2, 4, 8]))
def test_best_fit_touches_no_more_leaves_than_the_others(free: list[int], share: int) -> None:
    needed = max(1, sum(f // share for f in free) // 2)
    if sum(f // share for f in free) < needed:
        return
    found = {p.strategy: p.leaves for p in schedule.placements(cluster(free), needed, share)}
    assert found["best-fit"] == min(found.values())


def test_fewer_leaves_are_never_slower_on_a_thin_network() -> None:
    nodes = cluster([8] * 64, leaf=16)
    one = job()
    ranked = schedule.score(schedule.placements(nodes, 32, 8), one, 4.0)
    times = [step for _, step in ranked]
    assert times == sorted(times)
    apart = schedule.Placement("spread", {f"n{i:03d}": 1 for i in range(32)}, 32, 1, 16, 0, 0.0)
    together = schedule.Placement("best-fit", {f"n{i:03d}": 1 for i in range(32)}, 1, 32, 32, 0, 0.0)
    slow, fast = schedule.step_times([schedule.placed_job(one, p, 4.0) for p in (apart, together)])
    assert slow > fast
    assert fast == pytest.approx(schedule.step_times([one.columns])[0])


def test_one_server_waits_as_the_textbook_says() -> None:
    # M/M/1 at 50 %: the mean wait is the mean service time.
    row = schedule.wait(1, 0.5, 3600.0, run_variation=1.0)[0]
    assert row["wait_mean_s"] == pytest.approx(3600)
    assert row["waiting_pct"] == pytest.approx(50)
    # P(wait > t) = 0.5·exp(-t/7200): the median wait is zero, one in ten waits longer than 7200·ln 5.
    assert row["wait_p50_s"] == 0
    assert row["wait_p90_s"] == pytest.approx(7200 * math.log(5))


def test_erlang_c_by_the_sum() -> None:
    for servers, load in ((1, 0.3), (5, 4.0), (40, 38.0), (500, 450.0)):
        terms = [load**k / math.factorial(k) for k in range(servers)] if servers < 100 else None
        found = float(gang.erlang_c(servers, load))
        if terms:
            last = load**servers / math.factorial(servers) * servers / (servers - load)
            assert found == pytest.approx(last / (sum(terms) + last), rel=1e-9)
        assert 0 < found < 1


@given(servers=st.integers(1, 300), busy=st.floats(0.05, 0.99))
def test_more_load_waits_longer_and_more_servers_shorter(servers: int, busy: float) -> None:
    wait = float(gang.erlang_c(servers, servers * busy))
    assert wait <= float(gang.erlang_c(servers, servers * min(0.995, busy + 0.005))) + 1e-12
    assert float(gang.erlang_c(servers + 1, (servers + 1) * busy)) <= wait + 1e-12


def test_wide_run_times_wait_longer_and_nothing_is_said_of_a_spread_that_nobody_stated() -> None:
    """I8: the spread of jobs of one GPU up is none of a gang's: 36 days at the 90th percentile."""
    [exponential] = schedule.wait(8, 0.8, 3600.0)
    [wide] = schedule.wait(8, 0.8, 3600.0, run_variation=2.0)
    assert exponential["run_times"] == "exponential"
    assert wide["wait_mean_s"] == pytest.approx(exponential["wait_mean_s"] * (1 + 2.0**2) / 2)


def test_a_mix_of_jobs_holds_the_gang_by_size_and_run() -> None:
    one = schedule.JobClass(64, 1.0, 3600.0)
    assert schedule.mixed_runs([one], 64) == pytest.approx((3600.0, 1.0))
    # Half the jobs are an eighth of the gang: they hold an eighth of it, and widen the spread.
    mean, variation = schedule.mixed_runs([one, schedule.JobClass(8, 1.0, 3600.0)], 64)
    assert mean == pytest.approx((3600 + 450) / 2)
    second = 2 * (3600**2 + 450**2) / 2
    assert variation == pytest.approx(math.sqrt(second / mean**2 - 1))


def test_strategies_differ_on_a_thin_network_and_neighbours_take_uplinks() -> None:
    """Jobs that share a leaf share its uplinks; a strategy that does not look at leaves scatters its ranks."""
    one = job()
    blocks = {f"n{i:03d}": 1 for i in range(32)}
    aware = schedule.Placement("best-fit", blocks, 8, 4, 16, 0, 0.0)
    blind = schedule.Placement("spread", blocks, 8, 4, 16, 0, 0.0)
    columns = [schedule.placed_job(one, p, 7.0, share) for p in (aware, blind) for share in (0.0, 0.5, 1.0)]
    assert [c["oversubscription"] for c in columns[:3]] == pytest.approx([1.75, 7 * 10 / 16, 7.0])
    times = schedule.step_times(columns)
    assert times[:3] == sorted(times[:3])
    assert times[3:] == sorted(times[3:])
    assert times[5] > times[2] * 1.02
    assert float(gang.shared_oversubscription(4.0, 2.0, 32.0, 0.0)) == 1


@given(own=st.integers(1, 32), share=st.floats(0, 1), more=st.floats(0, 1))
def test_more_neighbours_never_leave_more_uplinks(own: int, share: float, more: float) -> None:
    low, high = sorted((share, more))
    seen = [float(gang.shared_oversubscription(7.0, float(own), 32.0, v)) for v in (low, high)]
    assert 1 <= seen[0] <= seen[1] <= 7 + 1e-9


def test_rings_over_large_pods_lose_nothing_and_scattered_ranks_do() -> None:
    """I7: 3,072-GPU pods at 1:7 have 439 uplinks for the 32 rings that leave them."""
    cells = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 6144, "seq_len": 8192, "global_batch": 768}
    cells |= {"tp": 8, "pp": 4, "dp": 192, "micro_batch": 1, "zero_stage": 1, "sequence_parallel": True}
    rows = {r["topology"]: r for r in schedule.at_scale(resolve(cells, Context(DB)), DB.topologies())}
    full, thin = rows["fat-tree"], rows["fat-tree-7to1"]
    assert thin["step_time_s"] == pytest.approx(full["step_time_s"], rel=1e-6)
    assert thin["step_time_scattered_s"] > thin["step_time_s"]


def test_nodes_from_text_and_file(tmp_path: Path) -> None:
    nodes = schedule.nodes_of_groups("2x8,1x4", 2)
    assert [(n.leaf, n.free) for n in nodes] == [("leaf001", 8), ("leaf001", 8), ("leaf002", 4)]
    file = tmp_path / "nodes.csv"
    file.write_text("node,free,leaf\na,8,x\nb,0,\n")
    assert [(n.name, n.leaf) for n in schedule.nodes_of_file(str(file))] == [("a", "x"), ("b", "leaf001")]
    for text in ("", "8", "x8", "3xa", "0x8", "-1x8"):
        with pytest.raises(UsageError):
            schedule.nodes_of_groups(text)
    for content in ("name,free\na,8\n", "node,free\na,eight\n", "node,free\na,8\na,8\n", "node,free\n"):
        file.write_text(content)
        with pytest.raises(DataError):
            schedule.nodes_of_file(str(file))


def test_fat_tree_sizes() -> None:
    assert [int(placement_scale.fat_tree_tiers(n, 64)) for n in (64, 2048, 65536, 100_000)] == [1, 2, 3, 4]
    assert int(placement_scale.fat_tree_switches(65536, 64, 3, 1.0)) == 5120  # 5·k²/4 for k = 64


@given(n=st.integers(64, 200_000))
def test_a_tree_of_its_tiers_holds_the_gpus_and_one_tier_fewer_does_not(n: int) -> None:
    tiers = float(placement_scale.fat_tree_tiers(float(n), 64.0))
    held, below = (2.0 * 32.0**t for t in (tiers, tiers - 1))  # end points of a tree of 64-port switches: 2·(k/2)^t
    assert held >= n * (1 - 1e-6)
    assert tiers == 1 or below < n * (1 + 1e-6)


def test_groups_land_where_their_extent_says() -> None:
    one = job(4096, "tp8-pp4-dp128-mbs1-zero1-sp", 4096)
    landed = crossings.landings(one, crossings.fabric_at(DB.topology("fat-tree-7to1"), 4096, 8))
    assert landed == {"tp": "scale-up domain", "dp": "pod", "pp": "core"}
    rail = crossings.landings(one, crossings.fabric_at(DB.topology("rail-optimised"), 4096, 8))
    assert rail["tp"] == "scale-up domain"


def test_a_thinner_network_is_never_faster_and_full_bisection_costs_nothing() -> None:
    one = job(16384, "tp8-pp4-dp512-mbs1-zero1-sp", 4096)
    shapes = [DB.topology(k) for k in ("fat-tree", "fat-tree-2to1", "fat-tree-4to1", "rail-optimised", "torus-3d")]
    steps = {row["topology"]: row["step_time_s"] for row in schedule.at_scale(one, shapes)}
    assert steps["fat-tree"] <= steps["fat-tree-2to1"] <= steps["fat-tree-4to1"]
    assert steps["fat-tree"] == steps["rail-optimised"]
    assert steps["fat-tree"] < steps["torus-3d"]  # a ring along one line has one dimension of three
    assert steps["fat-tree"] == pytest.approx(schedule.step_times([one.columns])[0])


def test_a_rack_fails_together() -> None:
    rack = schedule.at_scale(job(1152, "tp8-pp4-dp36-mbs1-zero1-sp", 1152, "gb200"), [DB.topology("fat-tree")])[0]
    assert rack["blast_pct"] == pytest.approx(100 * 72 / 1152)


def test_no_gpu_is_free() -> None:
    with pytest.raises(InfeasibleError):
        schedule.filter_gang(cluster([0, 0]), 1, 8)
    assert np.isfinite(float(gang.fragmentation(1.0, 0.0, 8.0)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--gpus 64 --load 85% --mix 8:70%:1h,64:20%:12h", "make up 90 %"),
        ("--gpus 64,128", "write 64128, or --fabrics"),
        ("--gpus 12", "take 8 or 16 GPUs"),
        ("--gpus 24 --per-node 12", "at most --per-node 8"),
    ],
)
def test_questions_that_cannot_be_answered_say_what_can(line: str, said: str) -> None:
    ran = gpucalc("schedule", "--gpu", "h100-sxm-80gb", "--free", "20x8", *line.split())
    assert said in ran.sentence()
