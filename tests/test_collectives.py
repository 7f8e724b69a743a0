"""Properties of the collective formulas that hold for every cluster."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.formula import info_of
from gpucalc.core.ledger import Columns
from gpucalc.core.vocabulary import OPERATIONS
from gpucalc.estimate import collectives as estimates
from gpucalc.formulas import collectives as c
from gpucalc.formulas import expert_exchange as x

CONSTANTS = {
    "link_bandwidth": 450e9,
    "link_efficiency": 0.86,
    "collective_startup": 4.4e-6,
    "all_reduce_startup": 4.4e-6,
    "link_step_latency": 0.9e-6,
    "chunk_latency": 2.3e-6,
    "own_chunk": 0.4,
    "network_bandwidth": 50e9,
    "network_efficiency": 0.9,
    "network_startup": 30e-6,
    "network_step_latency": 5e-6,
    "network_chunk_latency": 1e-5,
    "tree_efficiency": 0.9,
    "nvls_efficiency": 0.74,
    "nvls_chunk_latency": 1.5e-5,
    "nvls_minimum_ranks": 6,
    "all_to_all_startup": 8e-6,
    "all_to_all_efficiency": 0.95,
    "point_to_point_efficiency": 0.84,
    "point_to_point_startup": 1e-5,
    "remote_share": 0.75,
    "crosses": 1.0,
}
GROUP_OPERATIONS = [op for op in OPERATIONS if op != "send_recv"]
sizes = st.floats(1, 1e12)
places = st.tuples(st.sampled_from([1, 2, 4, 8, 72]), st.sampled_from([1, 2, 3, 8, 128])).map(
    lambda p: {"ranks_per_domain": p[0], "ranks": p[0] * p[1]}
)


def evaluate(function, message, place, **changed):
    given_values = {**CONSTANTS, **place, "message": message, **changed}
    if isinstance(function, str):  # an operation, whose terms the estimate puts in order
        return estimates.collective_ledger(function, Columns(given_values))["time"]
    return function(**{n: given_values[n] for n in info_of(function).parameters})


@pytest.mark.parametrize("function", OPERATIONS)
@given(message=sizes, place=places, factor=st.floats(1, 100))
def test_more_bytes_are_never_faster_and_more_bandwidth_never_slower(function, message, place, factor):
    with np.errstate(all="raise"):
        base = evaluate(function, message, place)
        assert evaluate(function, message * factor, place) >= base * (1 - 1e-12)
        for name in ("link_bandwidth", "network_bandwidth", "network_efficiency"):
            assert evaluate(function, message, place, **{name: CONSTANTS[name] * factor}) <= base * (1 + 1e-12)


@pytest.mark.parametrize("function", GROUP_OPERATIONS)
@given(message=sizes)
def test_one_rank_communicates_nothing(function, message):
    with np.errstate(all="raise"):
        assert evaluate(function, message, {"ranks": 1, "ranks_per_domain": 1}, remote_share=0.0) == 0


@given(message=sizes, local=st.integers(1, 72))
def test_ring_all_reduce_is_reduce_scatter_and_all_gather(message, local):
    """On the links without the own chunk and the pipeline's root, which a fused all-reduce pays once."""
    place = {"ranks": local, "ranks_per_domain": local}
    plain = {"own_chunk": 0.0, "chunk_latency": 0.0, "nvls_minimum_ranks": np.inf, "all_reduce_startup": 8.8e-6}
    both = evaluate("all_gather", message, place, **plain) + evaluate("reduce_scatter", message, place, **plain)
    assert evaluate("all_reduce", message, place, **plain) == pytest.approx(both)


@given(message=sizes, place=places)
def test_reduce_scatter_takes_as_long_as_all_gather(message, place):
    assert evaluate("reduce_scatter", message, place) == evaluate("all_gather", message, place)


@given(message=sizes, place=places)
def test_all_reduce_is_never_slower_than_a_named_algorithm(message, place):
    best = evaluate("all_reduce", message, place)
    ring = evaluate(c.link_ring_time, message, place, passes=2)
    network = evaluate(c.network_ring_time, message, place, passes=2)
    start = c.startup_time(CONSTANTS["all_reduce_startup"], place["ranks"])
    assert best <= start + max(ring, network) + 1e-15
    tree = evaluate(c.network_tree_time, message, place)
    assert best <= start + max(ring, tree) + 1e-15


@given(message=sizes, place=places, byte=st.floats(0.1, 10), second=st.floats(0.1, 10))
def test_all_reduce_is_homogeneous_in_bytes_and_seconds(message, place, byte, second):
    """Measured in other units of byte and second the time is the same time."""
    parts = (c.startup_time, c.link_ring_time, c.link_nvls_time, c.network_ring_time, c.network_tree_time)
    units = {name: unit for part in parts for name, unit in info_of(part).units.items()}
    units["all_reduce_startup"] = units["startup"]
    scaled = {n: v * byte ** units[n].byte * second ** units[n].second for n, v in CONSTANTS.items() if n in units}
    assert evaluate("all_reduce", message * byte, place, **scaled) == pytest.approx(
        evaluate("all_reduce", message, place) * second
    )


def test_levels_overlap_and_rails_share_the_network():
    """The slower level rules, and eight NICs carry an eighth each."""
    one_rail = evaluate("all_gather", 1e10, {"ranks": 8, "ranks_per_domain": 1})
    eight = evaluate("all_gather", 1e10, {"ranks": 64, "ranks_per_domain": 8})
    assert 7.5 < one_rail / eight < 8.0
    fast_links = evaluate("all_gather", 1e10, {"ranks": 64, "ranks_per_domain": 8}, link_bandwidth=1e15)
    assert fast_links == eight


def test_in_switch_reduction_needs_enough_ranks():
    place = {"ranks": 8, "ranks_per_domain": 8}
    assert evaluate("all_reduce", 1e9, place) < evaluate("all_reduce", 1e9, place, nvls_minimum_ranks=9)


def test_a_tree_wins_small_messages_on_many_nodes():
    place = {"ranks": 8192, "ranks_per_domain": 8}
    small = evaluate("all_reduce", 1e3, place)
    assert small < 2 * 1023 * CONSTANTS["network_step_latency"]
    assert evaluate(c.network_tree_time, 1e3, place) < evaluate(c.network_ring_time, 1e3, place, passes=2)


@given(place=places, message=sizes)
def test_arrays_equal_rows_alone(place, message):
    messages = np.array([message, 2 * message, 1.0])
    for function in GROUP_OPERATIONS:
        together = np.asarray(evaluate(function, messages, place))
        assert list(together) == [float(evaluate(function, m, place)) for m in messages]


@given(st.integers(1, 512), st.integers(1, 16))
def test_a_token_goes_to_each_place_at_most_once(places_, k):
    distinct, separate = x.distinct_copies(places_, k), x.separate_copies(places_, k)
    assert 0 <= distinct <= min(places_ - 1, separate) + 1e-9


def test_dispatch_over_nodes_sends_less_than_a_plain_all_to_all():
    plain = c.all_to_all_remote_share(64, 8)
    assert x.dispatch_remote_share(64, 8, 8) < plain
    assert x.dispatch_remote_share(64, 8, 1) == pytest.approx(plain)


def test_every_formula_ends_in_one_return_of_its_arguments():
    for module in (c, x):
        for _, function in inspect.getmembers(module, lambda m: inspect.isfunction(m) and hasattr(m, "info")):
            info = info_of(function)
            assert set(info.units) == {*info.parameters, "return"}
            assert info.expression
