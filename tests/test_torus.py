"""Slices of a torus: published and hand-computed times of TPU collectives, properties, and stated sides."""

from __future__ import annotations

import pytest
from cli import gpucalc
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.database.slices import torus_sides, usual_sides
from gpucalc.estimate.collectives import collective_ledger, place
from gpucalc.formulas import torus

DB = Database()
IDEAL = {"link_efficiency": 1.0, "all_to_all_efficiency": 1.0, "chunk_latency": 0.0, "own_chunk": 0.0}
NO_START = dict.fromkeys(("collective_startup", "all_reduce_startup", "all_to_all_startup"), 0.0)


def seconds(op, size, chips, gpu="tpu-v5p", *, hop=0.0, **more):
    columns = {**collective_constants(resolve_cluster(DB, gpu, chips), DB), **IDEAL, **NO_START, **more}
    columns |= {"message": float(size), "ranks": float(chips), "link_step_latency": hop}
    return float(collective_ledger(op, Columns(columns))["time"])


@pytest.mark.parametrize(
    ("op", "size", "chips", "milliseconds"),
    [
        # By hand at 100 GB/s a link and direction: a·S/(8·b) through the cut of a side, 2·S·(N-1)/N over six links.
        ("alltoall", 2**30, 64, 5.37),
        ("alltoall", 2**30, 4096, 21.47),
        ("all_reduce", 2**30, 4096, 3.58),
    ],
)
def test_times_on_a_cube_of_v5p(op, size, chips, milliseconds):
    assert seconds(op, size, chips) * 1e3 == pytest.approx(milliseconds, rel=2e-3)


def test_a_small_all_reduce_waits_for_half_of_each_side_twice():
    assert seconds("all_reduce", 64 * 2**10, 4096, hop=1e-6) * 1e6 == pytest.approx(48, rel=0.02)


def test_gather_over_two_axes_of_a_v4_cube_as_the_scaling_book_has_it():
    """Austin et al. 2025, part 3: 8.39 MB over X and Y of 4·4·4 chips, 45 GB/s a link and direction: 46 µs."""
    columns = {**collective_constants(resolve_cluster(DB, "tpu-v4", 64), DB), "link_bandwidth": 6 * 45e9}
    ledger = Ledger(Columns({**columns, "group": 16.0}))
    rate = place(ledger, "group", "group", 1) and ledger["group/link"]
    assert 8.39e6 / float(rate) * 1e6 == pytest.approx(46.6, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "chips", "links"),
    [
        ("tpu-v5p", 16, 4),  # 2·2·4: a side of two is a line, the side of four a ring
        ("tpu-v5p", 4, 2),
        ("tpu-v5e", 64, 2),  # 8·8: only a side of 16 is closed
        ("tpu-v5e", 256, 4),
    ],
)
def test_links_of_a_slice(gpu, chips, links):
    cluster = resolve_cluster(DB, gpu, chips)
    ledger = Ledger(Columns({**collective_constants(cluster, DB), "ranks": float(chips)}))
    place(ledger, "group", "ranks", 1)
    dimensions = 3 if cluster.scale_up_topology == "torus-3d" else 2
    assert float(ledger["group/link"]) / (cluster.link_bandwidth / (2 * dimensions)) == pytest.approx(links)


SIDES = st.sampled_from([1, 2, 4, 8, 16])


@given(SIDES, SIDES, SIDES, st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([2, 4, 8, 16, 64]))
def test_no_group_has_more_than_its_links_or_beats_the_cut(x, y, z, stride, ranks):
    chips = x * y * z
    if stride * ranks > chips:
        return
    sides = (x, y, z, 4)
    assert 0 < torus.torus_bandwidth(6.0, ranks, stride, *sides, 3) <= 6.0
    assert torus.torus_exchange_slowdown(ranks, stride, *sides) >= 1
    assert 0 < torus.torus_hops(ranks, stride, *sides) < chips


@given(st.integers(1, 5000), st.sampled_from([2, 3]))
def test_the_usual_sides_multiply_to_the_chips(count, dimensions):
    sides = usual_sides(count, dimensions)
    product = 1
    for side in sides:
        product *= side
    assert product == count
    assert list(sides) == sorted(sides)
    assert len(sides) == dimensions


def test_stated_sides_that_do_not_multiply_name_the_nearest():
    with pytest.raises(UsageError, match="4x4x8 or 2x8x8"):
        torus_sides("4x4x4", 128, 3, "chips")
    run = gpucalc("comm", "all_reduce", "1GiB", "--gpu", "tpu-v5p", "--gpus", "128", "--torus-sides", "4x4x4")
    assert "4x4x8 or 2x8x8" in run.sentence()


def test_sides_without_a_torus_are_refused():
    with pytest.raises(UsageError, match="torus"):
        resolve_cluster(DB, "h100-sxm-80gb", 64, torus_sides="4x4")
