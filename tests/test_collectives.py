"""Properties of the collective formulas that hold for every cluster."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.formula import info_of
from gpucalc.core.ledger import Columns
from gpucalc.core.vocabulary import OPERATIONS
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.database.tables import LINK_CONSTANTS, NETWORK_CONSTANTS
from gpucalc.estimate import collectives as estimates
from gpucalc.formulas import collectives as c
from gpucalc.formulas import expert_exchange as x

CONSTANTS = collective_constants(resolve_cluster(Database(), "h100-sxm-80gb", 64), Database())
GROUP_OPERATIONS = [op for op in OPERATIONS if op != "send_recv"]
sizes = st.floats(1, 1e12)


def place_of(ranks, domain):
    """A job of `ranks` in domains of `domain`, as columns."""
    return {"ranks": float(ranks), "n_gpus": float(ranks), "domain": float(domain)}


places = st.tuples(st.sampled_from([1, 2, 4, 8, 72]), st.sampled_from([1, 2, 3, 8, 128])).map(
    lambda p: place_of(p[0] * p[1], p[0])
)


def evaluate(function, message, place, **changed):
    given_values = {**CONSTANTS, **place, "message": message, **changed}
    if isinstance(function, str):  # an operation, whose terms the estimate puts in order
        return estimates.collective_ledger(function, Columns(given_values))["time"]
    given_values["ranks_per_domain"] = np.minimum(given_values["ranks"], given_values["domain"])
    return function(**{n: given_values[n] for n in info_of(function).parameters if n in given_values})


@pytest.mark.parametrize("function", OPERATIONS)
@given(message=sizes, place=places, factor=st.floats(1, 100))
def test_more_bytes_are_never_faster_and_more_bandwidth_never_slower(function, message, place, factor):
    with np.errstate(all="raise"):
        base = evaluate(function, message, place)
        assert evaluate(function, message * factor, place) >= base * (1 - 1e-12)
        for name in ("link_bandwidth", "network_bandwidth"):
            assert evaluate(function, message, place, **{name: CONSTANTS[name] * factor}) <= base * (1 + 1e-12)


@pytest.mark.parametrize("function", GROUP_OPERATIONS)
@given(message=sizes)
def test_one_rank_communicates_nothing(function, message):
    with np.errstate(all="raise"):
        assert evaluate(function, message, place_of(1, 8)) == 0


@given(message=sizes, local=st.integers(1, 72))
def test_ring_all_reduce_is_reduce_scatter_and_all_gather(message, local):
    """On the links without the own chunk and the pipeline's root, which a fused all-reduce pays once."""
    place = place_of(local, local)
    plain = {
        "own_chunk": 0.0,
        "chunk_latency": 0.0,
        "nvls_minimum_ranks": np.inf,
        "all_reduce_startup": 2 * CONSTANTS["collective_startup"],
    }
    both = evaluate("all_gather", message, place, **plain) + evaluate("reduce_scatter", message, place, **plain)
    assert evaluate("all_reduce", message, place, **plain) == pytest.approx(both)


@given(message=sizes, place=places)
def test_reduce_scatter_takes_as_long_as_all_gather(message, place):
    assert evaluate("reduce_scatter", message, place) == evaluate("all_gather", message, place)


@given(message=sizes, place=places)
def test_a_collective_takes_the_fastest_of_its_algorithms(message, place):
    ledger = estimates.collective_ledger("all_reduce", Columns({**CONSTANTS, **place, "message": message}))
    times = {name: float(ledger[path]) for name, path in estimates.algorithms("all_reduce", ledger).items()}
    chosen = str(estimates.chosen_algorithm("all_reduce", ledger)[0])
    if place["ranks"] > place["domain"]:
        assert ledger["time"] == min(times.values()) == times[chosen]


@given(message=sizes, place=places, byte=st.sampled_from([0.25, 2.0, 8.0]), second=st.sampled_from([0.5, 4.0]))
def test_all_reduce_is_homogeneous_in_bytes_and_seconds(message, place, byte, second):
    """Measured in other units of byte and second the time is the same time."""
    units = {name: unit for name, unit in {**LINK_CONSTANTS, **NETWORK_CONSTANTS}.items()}
    units |= {"link_bandwidth": "B/s", "network_bandwidth": "B/s"}
    factor = {"": 1.0, "s": second, "B/s": byte / second}
    scaled = {n: v * factor[units[n]] for n, v in CONSTANTS.items() if n in units}
    assert evaluate("all_reduce", message * byte, place, **scaled) == pytest.approx(
        evaluate("all_reduce", message, place) * second
    )


def _bus(op, message, place, **changed):
    ranks = place["ranks"]
    return message / evaluate(op, message, place, **changed) * estimates.bus_factor(op, ranks)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("local", [1, 2, 4, 8])
@pytest.mark.parametrize("domains", [2, 3, 4, 16, 128])
@pytest.mark.parametrize("size", [2**16, 2**20, 2**26, 2**30, 2**33])
def test_no_ring_is_faster_than_the_cards_of_a_domain(op, local, domains, size):
    """A flat ring carries S·(N-1)/N through γ cards: no bus bandwidth above γ·w; an all-reduce of two domains 2·W."""
    place = place_of(local * domains, local)
    wire = local * CONSTANTS["network_bandwidth"]
    most = 2 * wire if op == "all_reduce" and domains == 2 else wire
    assert _bus(op, float(size), place) <= most
    ledger = estimates.collective_ledger(op, Columns({**CONSTANTS, **place, "message": float(size)}))
    for name, path in estimates.algorithms(op, ledger).items():
        if name.startswith("ring"):
            assert size / ledger[path] * estimates.bus_factor(op, place["ranks"]) <= wire


@given(message=sizes, local=st.sampled_from([1, 4, 8]), domains=st.integers(2, 200))
def test_a_gather_over_more_domains_is_never_faster(message, local, domains):
    fewer = evaluate("all_gather", message, place_of(local * domains, local))
    assert evaluate("all_gather", message, place_of(local * (domains + 1), local)) >= fewer * (1 - 1e-12)


BY_HAND = {
    **{"ring_ll_coupling": 1.0, "ring_ll128_coupling": 0.35, "ring_simple_coupling": 0.25},
    **{"tree_ll_coupling": 2.8, "tree_simple_coupling": 0.65, "nvls_tree_coupling": 1.05, "ll128_share": 0.6},
    **{"exchange_card_share": 0.89, "exchange_base": 52e-6, "exchange_domain_step": 8.6e-6},
    **{"exchange_peer_latency": 0.7e-6, "network_efficiency": 0.965},
}


@pytest.mark.parametrize(
    ("op", "size", "ranks", "microseconds", "algorithm"),
    [
        ("all_gather", 2**30, 32, 3172, "ring simple"),
        ("all_gather", 2**25, 16, 192, "ring simple"),
        ("all_reduce", 2**30, 16, 4478, "nvls-tree"),
        ("all_reduce", 2**30, 32, 6302, "nvls-tree"),
        ("all_reduce", 2**16, 32, 68.2, "tree ll"),
        ("alltoall", 2**30, 64, 23179, "pairwise over rails"),
    ],
)
def test_collectives_over_nodes_worked_out_by_hand(op, size, ranks, microseconds, algorithm):
    """H100, 8 cards of 400 Gb/s InfiniBand a node: NCCL's own model, with constants of the hand-made calculation."""
    columns = {**CONSTANTS, **BY_HAND, **place_of(ranks, 8), "message": float(size)}
    ledger = estimates.collective_ledger(op, Columns(columns))
    assert float(ledger["time"]) * 1e6 == pytest.approx(microseconds, rel=2e-3)
    assert str(estimates.chosen_algorithm(op, ledger)[0]) == algorithm


@given(message=sizes, place=places, more=st.floats(1, 16))
def test_oversubscription_never_helps_and_does_nothing_where_flows_fit(message, place, more):
    for op in GROUP_OPERATIONS:
        tree = {"topology": 0.0, "pod": 4.0}
        free = evaluate(op, message, place, **tree, oversubscription=1.0)
        assert evaluate(op, message, place, **tree, oversubscription=more) >= free * (1 - 1e-12)
        if place["ranks"] <= 4 * place["domain"]:
            assert evaluate(op, message, place, **tree, oversubscription=more) == free


def test_a_ring_that_fits_its_uplinks_is_not_slowed_and_uniform_traffic_is():
    """256 MiB, 64 nodes, pods of 16, 4:1: the all-to-all waits for the uplinks, the ring's 8 flows fit 32."""
    place, tree = place_of(512, 8), {"topology": 0.0, "pod": 16.0}
    bare = {"exchange_base": 0.0, "exchange_domain_step": 0.0, "exchange_peer_latency": 0.0, "exchange_card_share": 1.0}
    slow = evaluate("alltoall", 2.0**28, place, **tree, **bare, oversubscription=4.0)
    fast = evaluate("alltoall", 2.0**28, place, **tree, **bare, oversubscription=1.0)
    assert slow / fast == pytest.approx(4 * 48 / 63, rel=1e-3)
    rings = [evaluate("all_reduce", 2.0**28, place, **tree, oversubscription=o) for o in (1.0, 4.0)]
    assert rings[0] == rings[1]


def test_levels_overlap_and_rails_share_the_network():
    """Eight cards carry an eighth each."""
    one_rail = evaluate("all_gather", 1e10, place_of(8, 1))
    eight = evaluate("all_gather", 1e10, place_of(64, 8))
    assert 6.5 < one_rail / eight < 9.0


def test_in_switch_reduction_needs_enough_ranks():
    place = place_of(8, 8)
    assert evaluate("all_reduce", 1e9, place) < evaluate("all_reduce", 1e9, place, nvls_minimum_ranks=9)


def test_a_tree_wins_small_messages_on_many_nodes():
    ledger = estimates.collective_ledger("all_reduce", Columns({**CONSTANTS, **place_of(8192, 8), "message": 1e3}))
    assert str(estimates.chosen_algorithm("all_reduce", ledger)[0]) == "tree ll"


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


# --- algorithms that are off unless stated ----------------------------------------------------------


@given(message=sizes, local=st.sampled_from([2, 4, 8]), domains=st.integers(2, 64))
def test_other_libraries_and_switches_stay_below_their_wire(message, local, domains):
    """The cards carry S once with switches that add up, and S·(D-1)/D a pass with gathers of gathers."""
    place = place_of(local * domains, local)
    wire = local * CONSTANTS["network_bandwidth"]
    for op, least, option in (
        ("all_reduce", message / wire, "in_switch_reduction"),
        ("all_gather", message * (1 - 1 / domains) / wire, "hierarchical"),
        ("all_reduce", 2 * message * (1 - 1 / domains) / wire, "hierarchical"),
    ):
        columns = {**CONSTANTS, **place, "message": message, option: 1.0}
        ledger = estimates.collective_ledger(op, Columns(columns))
        name = "sharp" if option == "in_switch_reduction" else option
        assert float(ledger[f"time/network/{name}"]) >= least
        assert float(ledger["time"]) <= evaluate(op, message, place)


def test_neither_is_there_unless_it_is_stated():
    ledger = estimates.collective_ledger("all_reduce", Columns({**CONSTANTS, **place_of(32, 8), "message": 1e9}))
    assert not {"sharp", "hierarchical", "pat"} & set(estimates.algorithms("all_reduce", ledger))


def test_a_hierarchical_gather_is_named_and_beats_the_wire_of_a_ring():
    """MSCCL++, 16 ranks on 2 nodes, 3 GiB: bus bandwidth 229 GB/s on cards of 200 together (perf_ndmv4/5.jsonl)."""
    place = {**place_of(16, 8), "network_bandwidth": 25e9, "hierarchical": 1.0}
    ledger = estimates.collective_ledger("all_gather", Columns({**CONSTANTS, **place, "message": 3.0 * 2**30}))
    assert str(estimates.chosen_algorithm("all_gather", ledger)[0]) == "hierarchical"
    assert 200e9 < 3 * 2**30 / float(ledger["time"]) * 15 / 16 < 400e9


@pytest.mark.parametrize(("local", "finite"), [(1, True), (8, False)])
def test_aggregated_trees_save_steps_of_lone_ranks_and_no_bytes(local, finite):
    place = place_of(64 * local, local)
    small, large = (
        estimates.collective_ledger("all_gather", Columns({**CONSTANTS, **place, "message": size}))
        for size in (2.0**21, 2.0**33)
    )
    assert ("pat" in estimates.algorithms("all_gather", small)) == finite
    if finite:
        assert small["time/network/pat"] < small["time/network/ring/simple"]
        assert large["time/network/pat"] > large["time/network/ring/simple"]
