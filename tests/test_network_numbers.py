"""Collectives over several domains, worked out by hand without latency and wire shares, and what must always hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.ledger import Columns
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.database.tables import LINK_CONSTANTS, NETWORK_CONSTANTS
from gpucalc.estimate.collectives import algorithms, bus_factor, collective_ledger
from gpucalc.formulas import fabric

DB = Database()
GIB = 2.0**30
UNITS = {**LINK_CONSTANTS, **NETWORK_CONSTANTS}


def best(name: str) -> float:
    """A constant at its best: no delay, nothing left between chunks, no bound on a rate, every share whole."""
    if UNITS[name] == "s" or name.endswith("_coupling") or name == "own_chunk":
        return 0.0
    return math.inf if UNITS[name] == "B/s" else 1.0


IDEAL = {name: best(name) for name in UNITS if name != "nvls_minimum_ranks"} | {"nvls_minimum_ranks": math.inf}


def ledger_of(op: str, size: float, gpus: int, gpu: str = "h100-sxm-80gb", *, rate: float = 50e9, **more):
    """The terms of a collective over all GPUs of a cluster, without latency and with whole shares."""
    words = {name: more.pop(name) for name in list(more) if isinstance(more[name], str)}
    columns = collective_constants(resolve_cluster(DB, gpu, gpus, **words), DB) | IDEAL
    columns |= {"network_bandwidth": rate, "link_bandwidth": 1e15, "message": size, "ranks": float(gpus), **more}
    return collective_ledger(op, Columns(columns))


def milliseconds(op: str, path: str, *words, **more) -> float:
    return float(ledger_of(op, *words, **more)[path]) * 1e3


RING, TREE = "time/network/ring/simple", "time/network/tree/simple"


@pytest.mark.parametrize(
    ("op", "path", "size", "gpus", "rate", "expected"),
    [
        ("all_gather", RING, 8 * GIB, 16, 12.5e9, 80.53),  # 15/16·8.590 GB/100 GB/s
        ("all_reduce", RING, 8 * GIB, 24, 12.5e9, 164.6),
        ("all_reduce", RING, 1e9, 16, 50e9, 4.688),
        ("all_reduce", TREE, 1e9, 16, 50e9, 2.5),
        ("all_reduce", RING, 1e9, 32, 50e9, 4.844),
        ("all_reduce", TREE, 1e9, 32, 50e9, 5.0),
        ("alltoall", "time/network", GIB, 64, 50e9, 18.79),  # 7/8·1.074 GB/50 GB/s
    ],
)
def test_bytes_through_the_cards_of_a_domain(op, path, size, gpus, rate, expected):
    assert milliseconds(op, path, size, gpus, rate=rate) == pytest.approx(expected, rel=1e-3)


def test_uniform_traffic_takes_the_uplinks_of_a_thin_tree_and_rings_do_not():
    """64 nodes in pods of 16 at 4:1: the card takes 5.285 ms, the uplinks 48/64·268.4 MB·4/50 GB/s = 16.11 ms."""
    tree = {"topology": 0.0, "pod": 16.0, "oversubscription": 4.0}
    open_ = {**tree, "oversubscription": 1.0}
    size = 256 * 2.0**20
    assert milliseconds("alltoall", "time/network", size, 512, **open_) == pytest.approx(5.285, rel=1e-3)
    assert milliseconds("alltoall", "time/network", size, 512, **tree) == pytest.approx(16.11, rel=1e-3)
    assert milliseconds("all_gather", RING, size, 512, **tree) == milliseconds("all_gather", RING, size, 512, **open_)


@pytest.mark.parametrize(
    ("pod", "oversubscription", "flows", "share"), [(384, 7, 8, 1), (384, 7, 32, 1), (6, 4, 8, 1), (6, 4, 32, 0.375)]
)
def test_flows_of_a_pod_share_its_uplinks(pod, oversubscription, flows, share):
    """384 nodes of 8 at 1:7 carry 439 flows, a leaf of 6 nodes at 4:1 twelve."""
    capacity = fabric.fat_tree_flows(pod, 8, oversubscription)
    assert round(float(capacity)) == {384: 439, 6: 12}[pod]
    assert float(fabric.flow_share(capacity, flows)) == share


def test_a_dragonfly_of_half_the_injection_rate():
    """512 nodes in groups of 128, half of the injection rate on global links: a share of 0.5·511/384 = 0.665."""
    half = {"topology": 2.0, "pod": 128.0, "oversubscription": 1.0, "global_taper": 0.5}
    whole = {**half, "global_taper": 1.0}
    slow, fast = (milliseconds("alltoall", "time/network", GIB, 4096, **shape) for shape in (half, whole))
    assert fast / slow == pytest.approx(0.665, abs=1e-3)


def test_a_torus_of_nodes_is_cut_in_two_by_an_all_to_all_and_not_by_a_ring():
    """16·16 nodes of 8 cards, 100 GB/s a link and direction: 171.8 ms, an eighth of the injection rate."""
    torus = {"topology": "torus-2d", "torus_sides": "16x16"}
    exchange = milliseconds("alltoall", "time/network", GIB, 2048, **torus)
    assert exchange * 256 / 255 == pytest.approx(171.8, rel=5e-3)
    ring = milliseconds("all_gather", RING, GIB, 2048)
    assert milliseconds("all_gather", RING, GIB, 2048, **torus) == ring


def test_one_port_a_node_is_what_its_gpus_share():
    """2 nodes with one port of 10 Gb/s: 15/16 GB at 1.25 GB/s are 0.75 s."""
    cluster = resolve_cluster(DB, "a100-sxm-80gb", 16, fabric="eth-10g")
    columns = {**collective_constants(cluster, DB), "message": 1e9, "ranks": 16.0}
    assert float(collective_ledger("all_gather", Columns(columns))["time"]) >= 0.75


# --- what must always hold --------------------------------------------------------------------------

GPUS = st.sampled_from(["h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb", "mi300x", "v100-sxm2-32gb", "l40s-48gb"])


@given(
    gpu=GPUS,
    op=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]),
    domains=st.integers(2, 300),
    local=st.integers(1, 8),
    size=st.floats(1, 2**40),
    rate=st.sampled_from([0.4, 12.5, 100, 400, 800]),
)
def test_no_ring_gather_or_scatter_beats_the_cards(gpu, op, domains, local, size, rate):
    cluster = resolve_cluster(DB, gpu, domains * local, gpus_per_node=local, inter_node_gbps_per_gpu=rate)
    gamma = min(local, cluster.domain)
    columns = {**collective_constants(cluster, DB), "message": size, "ranks": float(cluster.n_gpus)}
    ledger = collective_ledger(op, Columns(columns))
    most = gamma * rate * 1e9 / 8 * (1 + 1e-9)
    bus = size * bus_factor(op, cluster.n_gpus)
    for name, path in algorithms(op, ledger).items():
        if name.startswith("ring") or op != "all_reduce":
            assert bus / float(ledger[path]) <= most, name
    twice = 2 if op == "all_reduce" and cluster.n_gpus <= 2 * gamma else 1
    assert bus / float(ledger["time"]) <= twice * most


@given(
    op=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "alltoall", "broadcast", "send_recv"]),
    kind=st.sampled_from(["fat-tree-4to1", "rail-optimised", "dragonfly", "torus-2d", "torus-3d"]),
    placement=st.sampled_from(["consecutive", "scattered"]),
    domains=st.integers(2, 600),
    size=st.floats(1, 2**36),
    more=st.floats(1, 8),
)
def test_neither_bytes_nor_oversubscription_ever_help(op, kind, placement, domains, size, more):
    def seconds(amount: float, over: float) -> float:
        cluster = resolve_cluster(
            DB, "h100-sxm-80gb", 8 * domains, topology=kind, placement=placement, oversubscription=over
        )
        columns = {**collective_constants(cluster, DB), "message": amount, "ranks": float(cluster.n_gpus)}
        return float(collective_ledger(op, Columns(columns))["time"])

    usual = seconds(size, 2)
    assert seconds(size * more, 2) >= usual * (1 - 1e-12)
    assert seconds(size, 2 * more) >= usual * (1 - 1e-12)
