"""Placement of groups and the bandwidth that topologies leave them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.formulas import fabric as f
from gpucalc.formulas import topology as t

ranks_and_strides = st.tuples(st.integers(1, 4096), st.integers(1, 512), st.sampled_from([1, 2, 4, 8, 16, 64, 72, 256]))


@given(ranks_and_strides)
def test_domains_hold_the_group(case):
    ranks, stride, domain = case
    local = t.ranks_per_domain(ranks, stride, domain)
    domains = t.group_domains(ranks, local)
    assert 1 <= local <= max(1, domain // stride)
    assert domains == pytest.approx(round(float(domains)))


@pytest.mark.parametrize(
    ("ranks", "stride", "domain", "local", "domains"),
    [
        (8, 1, 8, 8, 1),  # tensor parallel in a node
        (8, 1, 4, 4, 2),  # a group of 8 in nodes of 4 crosses the network
        (8, 8, 8, 1, 8),  # data parallel with tp 8
        (16, 4, 8, 2, 8),
        (12, 1, 8, 6, 2),  # uneven: 8 + 4, mean 6
        (64, 1, 72, 64, 1),  # inside an NVL72 rack
        (1, 1, 8, 1, 1),
    ],
)
def test_placement(ranks, stride, domain, local, domains):
    assert t.ranks_per_domain(ranks, stride, domain) == local
    assert t.group_domains(ranks, local) == domains


def test_a_pair_in_a_mesh_has_one_link_and_behind_a_switch_all():
    assert t.full_mesh_bandwidth(448e9, 2, 7) == 64e9
    assert t.nvswitch_bandwidth(448e9, 2) == 448e9


@given(st.integers(2, 255), st.integers(1, 64))
def test_more_members_never_have_less_of_a_mesh_or_cube(group, more):
    larger = group + more
    assert t.full_mesh_bandwidth(7.0, larger, 7) >= t.full_mesh_bandwidth(7.0, group, 7)
    assert t.hybrid_cube_mesh_bandwidth(6.0, larger) >= t.hybrid_cube_mesh_bandwidth(6.0, group)
    assert t.pcie_bandwidth(4.0, larger, 0.6, 1.0) <= t.pcie_bandwidth(4.0, group, 0.6, 1.0)


@given(st.integers(2, 10**5), st.floats(1, 16), st.integers(1, 4096))
def test_uniform_traffic_is_slowed_by_at_most_the_oversubscription(domains, over, pod):
    for slowdown in (f.fat_tree_slowdown(domains, pod, over), f.dragonfly_slowdown(domains, pod, 1 / over)):
        assert 1 <= slowdown <= over + 1e-12
    assert f.torus_slowdown(domains ** (1 / 3), 3) >= 1


@given(st.integers(1, 4096), st.floats(1, 8))
def test_inside_a_pod_the_core_does_not_matter(pod, over):
    assert f.fat_tree_slowdown(pod, pod, over) == 1
    assert f.dragonfly_slowdown(pod, pod, 1 / over) == 1
    assert f.ring_flows(8 * pod, 8, pod, pod, 8, 8 * pod, 0) == 0


def test_formulas_take_arrays_and_each_row_stands_alone():
    groups = np.array([2.0, 4.0, 8.0])
    for function, rest in (
        (t.full_mesh_bandwidth, (7.0,)),
        (t.hybrid_cube_mesh_bandwidth, ()),
        (t.pcie_bandwidth, (0.6, 0.0)),
        (t.torus_bandwidth, (1.0, 2.0, 2.0, 4.0, 4.0, 3.0)),
    ):
        together = function(np.full(3, 100e9), groups, *rest)
        assert list(together) == [float(function(100e9, g, *rest)) for g in groups]


def test_every_topology_of_the_database_has_a_bandwidth():
    from gpucalc.database.records import SCALE_UP_TOPOLOGIES

    assert set(t.SCALE_UP_BANDWIDTH) == set(SCALE_UP_TOPOLOGIES)
