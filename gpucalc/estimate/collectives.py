"""The order of the formulas of a collective and of an expert exchange; one question is a batch of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger, any_row, distinct
from gpucalc.core.units import Array
from gpucalc.core.vocabulary import PROTOCOLS, TOPOLOGIES, WIRINGS
from gpucalc.formulas import collectives as f
from gpucalc.formulas import expert_exchange, fabric, topology, torus, wire

FP8_TOKEN = {"element_size": 1.0, "scale_size": 4.0, "scale_group": 128.0}  # dispatch: one fp32 scale per 128
BF16_TOKEN = {"element_size": 2.0, "scale_size": 0.0, "scale_group": 128.0}  # combine
PAIR = Constant("PAIR", 2.0, "ranks of a transfer", "definition")
ADJACENT = Constant("ADJACENT", 1.0, "ranks of a group are neighbours", "definition")
GATHER = Constant("GATHER", 1.0, "ring passes of a gather or a scatter", "definition")
REDUCE = Constant("REDUCE", 2.0, "ring passes of an all-reduce: a scatter and a gather", "definition")
WAITS = Constant("WAITS", 2.0, "waits for the fabric of a crossing that is acknowledged", "definition")


# --- a collective as terms ----------------------------------------------------------------------------
#
# `path` is its time. A group inside one domain takes `start` and `link`; one over several takes `network`, the fastest
# of the algorithms and protocols that the library chooses from, each with its `latency` and its `wire`. `given` are
# arguments of the formulas that are not the columns of their names: `message`, where the group lies (`ranks`,
# `ranks_per_domain`), rates.


def add_all_gather(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-gather after which each rank holds `message` bytes, or the reduce-scatter that is its reverse."""
    _add(ledger, f"{path}/link", f.link_ring_time, given, passes=GATHER)
    if _crosses(ledger, path, given):
        network = f"{path}/network"
        candidates = [*_add_rings(ledger, network, GATHER, given), *_add_pat(ledger, network, given)]
        ledger.minimum(network, *candidates, *_add_hierarchical(ledger, network, GATHER, given))
    return _add_levels(ledger, path, "collective_startup", given)


def add_all_reduce(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-reduce of `message` bytes by the best algorithm.

    In one domain a ring or the switch (NVLS); over several a ring, a double binary tree, or a tree between switches
    that add up.
    """
    _add(ledger, f"{path}/link/ring", f.link_ring_time, given, passes=REDUCE)
    _add(ledger, f"{path}/link/nvls", f.link_nvls_time, given)
    link = {"ring": f"{path}/link/ring", "nvls": f"{path}/link/nvls"}
    _add(ledger, f"{path}/link", f.fastest_link_time, {**given, **link})
    if _crosses(ledger, path, given):
        network = f"{path}/network"
        candidates = [*_add_rings(ledger, network, REDUCE, given), *_add_trees(ledger, network, given)]
        candidates += [_add_nvls_tree(ledger, network, given), *_add_in_switch(ledger, network, given)]
        ledger.minimum(network, *candidates, *_add_hierarchical(ledger, network, REDUCE, given))
    return _add_levels(ledger, path, "all_reduce_startup", given)


def add_all_to_all(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-to-all in which each rank sends `message` bytes and each card `remote_share` of them."""
    _add(ledger, f"{path}/link", f.link_exchange_time, given)
    if _crosses(ledger, path, given):
        network = f"{path}/network"
        _add(ledger, f"{network}/latency", wire.all_to_all_latency, given)
        _add(ledger, f"{network}/card", wire.all_to_all_wire_time, given)
        # What others' cards send for a rank goes over its links too, so these carry the same in any number of domains.
        parts = {"latency": f"{network}/latency", "card": f"{network}/card", "links": f"{path}/link"}
        _add(ledger, network, wire.all_to_all_pipelined_time, {**given, **parts})
    return _add_levels(ledger, path, "all_to_all_startup", given)


def add_broadcast(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store a broadcast of `message` bytes by a pipelined chain."""
    _add(ledger, f"{path}/link", f.link_chain_time, given)
    if _crosses(ledger, path, given):
        _add(ledger, f"{path}/network", f.network_chain_time, given)
    return _add_levels(ledger, path, "collective_startup", given)


def add_send(ledger: Ledger, path: str, crosses: Any, stride: Any = ADJACENT, **given: Any) -> Array:
    """Store sending `message` bytes to the peer `stride` ranks on: in the domain (`crosses` 0) or over one card (1)."""
    _add_wirings(ledger, f"{path}/pair", topology.PAIR_BANDWIDTH, {"group": PAIR, "stride": stride})
    _add(ledger, f"{path}/link", f.link_send_time, {"link_bandwidth": f"{path}/pair", **given})
    _add(ledger, f"{path}/network", f.network_send_time, given)
    ledger.choose(f"{path}/level", crosses, {0: f"{path}/link", 1: f"{path}/network"})
    ledger.add(f"{path}/startup", f.startup_time, startup="point_to_point_startup", ranks=PAIR)
    return ledger.total(path, f"{path}/startup", f"{path}/level")


def _add_rings(ledger: Ledger, path: str, passes: Constant, given: Mapping[str, Any]) -> list[str]:
    """Flat rings over several domains, one for each protocol; the paths of their times."""
    given = {**given, "passes": passes}
    _add(ledger, f"{path}/ring/rate", wire.ring_rate, given)
    times = []
    for protocol in PROTOCOLS:
        ring = f"{path}/ring/{protocol}"
        names: dict[str, str | Constant] = {
            "base": f"ring_{protocol}_base",
            "link_step": f"ring_{protocol}_link_step",
            "network_step": f"ring_{protocol}_network_step",
            "lone_step": f"tree_{protocol}_network_step",
        }
        if protocol == "simple":  # its receiver acknowledges, so that a crossing waits for the fabric twice
            names |= {"crossing_waits": WAITS, "plateau": "ring_simple_plateau"}
        _add(ledger, f"{ring}/latency", wire.ring_latency, {**given, **names})
        rate = _add_rate(ledger, ring, f"{path}/ring/rate", protocol, "ring_ll_share", given)
        _add(ledger, f"{ring}/wire", wire.ring_wire_time, {**given, "rate": rate})
        times.append(_add_time(ledger, ring, f"ring_{protocol}_coupling"))
    return times


def _add_trees(ledger: Ledger, path: str, given: Mapping[str, Any]) -> list[str]:
    """Double binary trees over several domains, one for each protocol; the paths of their times."""
    _add(ledger, f"{path}/tree/rate", wire.tree_rate, given)
    times = []
    for protocol in PROTOCOLS:
        tree = f"{path}/tree/{protocol}"
        names = {name: f"tree_{protocol}_{name}" for name in ("base", "link_step", "network_step")}
        _add(ledger, f"{tree}/latency", wire.tree_latency, {**given, **names})
        rate = _add_rate(ledger, tree, f"{path}/tree/rate", protocol, "tree_ll_share", given)
        _add(ledger, f"{tree}/wire", wire.tree_wire_time, {**given, "rate": rate})
        times.append(_add_time(ledger, tree, f"tree_{protocol}_coupling"))
    return times


def _add_nvls_tree(ledger: Ledger, path: str, given: Mapping[str, Any]) -> str:
    tree = f"{path}/nvls-tree"
    _add(ledger, f"{tree}/latency", wire.nvls_tree_latency, given)
    _add(ledger, f"{tree}/wire", wire.nvls_tree_wire_time, given)
    return _add_time(ledger, tree, "nvls_tree_coupling")


def _add_pat(ledger: Ledger, path: str, given: Mapping[str, Any]) -> list[str]:
    """Parallel aggregated trees, of gathers where any row has one rank a domain; the path of their time."""
    if not any_row(np.equal(ledger.value(given["ranks_per_domain"]), 1)):
        return []
    pat = f"{path}/pat"
    _add(ledger, f"{pat}/latency", wire.pat_latency, given, base="ring_simple_base")
    _add(ledger, f"{pat}/wire", wire.pat_wire_time, given, rate=f"{path}/ring/rate")
    return [_add_time(ledger, pat, "ring_simple_coupling")]


def _add_in_switch(ledger: Ledger, path: str, given: Mapping[str, Any]) -> list[str]:
    """Reduction in the network's switches, where any row has such; the path of its time."""
    if not any_row(ledger.columns["in_switch_reduction"] > 0):
        return []
    sharp = f"{path}/sharp"
    names = {name: f"tree_simple_{name}" for name in ("base", "link_step", "network_step")}
    _add(ledger, f"{sharp}/latency", wire.in_switch_latency, {**given, **names})
    _add(ledger, f"{sharp}/wire", wire.in_switch_wire_time, given)
    return [_add_time(ledger, sharp, "ring_simple_coupling")]


def _add_hierarchical(ledger: Ledger, path: str, passes: Constant, given: Mapping[str, Any]) -> list[str]:
    """Gathers inside domains and between them at once, where any row's library has them; the path of their time."""
    if not any_row(ledger.columns["hierarchical"] > 0):
        return []
    both = f"{path}/hierarchical"
    names = {name: f"ring_simple_{name}" for name in ("base", "link_step", "network_step")}
    _add(ledger, f"{both}/latency", wire.hierarchical_latency, {**given, **names, "passes": passes})
    _add(ledger, f"{both}/wire", wire.hierarchical_wire_time, {**given, "passes": passes})
    return [_add_time(ledger, both, "ring_simple_coupling")]


def _add_rate(ledger: Ledger, path: str, rate: str, protocol: str, ll_share: str, given: Mapping[str, Any]) -> str:
    """What a protocol carries of the rate of its algorithm; the path of it."""
    if protocol == "ll":
        _add(ledger, f"{path}/rate", wire.ll_rate, {**given, "rate": rate, "ll_share": ll_share})
        return f"{path}/rate"
    if protocol == "ll128":
        ledger.product(f"{path}/rate", rate, "ll128_share")
        return f"{path}/rate"
    return rate


def _add_time(ledger: Ledger, path: str, coupling: str) -> str:
    ledger.add(path, wire.pipelined_time, latency=f"{path}/latency", wire=f"{path}/wire", coupling=coupling)
    return path


def _add(ledger: Ledger, path: str, formula: Callable[..., Any], given: Mapping[str, Any], **more: Any) -> Array:
    """Store a formula of the ones that an operation consists of: each takes of `given` what it has arguments for."""
    return ledger.apply(path, formula, {**given, **more} if more else given)


def _crosses(ledger: Ledger, path: str, given: Mapping[str, Any]) -> bool:
    """Whether any row's group reaches beyond one domain."""
    return any_row(_add(ledger, f"{path}/crosses", f.crosses_network, given) > 0)


def _add_levels(ledger: Ledger, path: str, startup: str, given: Mapping[str, Any]) -> Array:
    _add(ledger, f"{path}/startup", f.startup_time, {"startup": startup, **given})
    if f"{path}/network" not in ledger:
        return ledger.total(path, f"{path}/startup", f"{path}/link")
    ledger.total(f"{path}/inside", f"{path}/startup", f"{path}/link")
    return ledger.choose(path, f"{path}/crosses", {0: f"{path}/inside", 1: f"{path}/network"})


_ADD: dict[str, Callable[..., Array]] = {
    "all_reduce": add_all_reduce,
    "all_gather": add_all_gather,
    "reduce_scatter": add_all_gather,
    "alltoall": add_all_to_all,
    "broadcast": add_broadcast,
}


# --- one operation over a group of GPUs -----------------------------------------------------------------

# By kind of network: the flows that leave a pod and that it carries, and the slowdown of uniform traffic.
_CAPACITIES: dict[str, Callable[..., Any]] = {
    "fat-tree": fabric.fat_tree_flows,
    "rail": fabric.fat_tree_flows,
    "dragonfly": fabric.dragonfly_flows,
    "torus-2d": fabric.torus_capacity,
    "torus-3d": fabric.torus_capacity,
}
_SLOWDOWNS: dict[str, Callable[..., Any]] = {
    "fat-tree": fabric.fat_tree_slowdown,
    "rail": fabric.rail_slowdown,
    "dragonfly": fabric.dragonfly_slowdown,
    "torus-2d": fabric.torus_slowdown,
    "torus-3d": fabric.torus_slowdown,
}


def place(ledger: Ledger, path: str, ranks: Any, stride: Any) -> dict[str, Any]:
    """Arguments that tell a collective how a group of `ranks`, `stride` apart, lies on domains, links and network.

    `fabric_share` is what rings and trees keep of their cards' rate beyond the cards, `fabric_slowdown` how much
    longer uniform traffic takes there; both are left out where the network carries all that its cards send.
    """
    c = ledger.columns
    group: dict[str, Any] = {"ranks": ranks, "stride": stride}
    ledger.add(path, topology.ranks_per_domain, **group)
    placed = {"ranks": ranks, "ranks_per_domain": path, "link_bandwidth": f"{path}/link"}
    wirings = _add_wirings(ledger, f"{path}/link", topology.SCALE_UP_BANDWIDTH, {"group": path, "stride": stride})
    placed |= _place_on_torus(ledger, path, wirings, {"ranks": path, "stride": stride})
    if not any_row((c["oversubscription"] > 1) | (c["topology"] > TOPOLOGIES.index("rail"))):
        return placed
    ledger.add(f"{path}/domains", topology.group_domains, ranks=ranks, ranks_per_domain=path)
    ledger.add(f"{path}/pod", fabric.group_pod, ranks_per_domain=path, **group)
    ledger.add(f"{path}/flows", fabric.ring_flows, ranks=ranks, ranks_per_domain=path, group_pod=f"{path}/pod")
    kinds = {code: TOPOLOGIES[code] for code in distinct(c["topology"])}
    if any(kind.startswith("torus") for kind in kinds.values()):
        ledger.add(f"{path}/side", torus.longest_side, domains=f"{path}/domains")
    names = {
        "longest_side": f"{path}/side",
        "ranks": ranks,
        "ranks_per_domain": path,
        "domains": f"{path}/domains",
        "group_pod": f"{path}/pod",
    }
    names["ring_flows"] = f"{path}/flows"
    for kind in kinds.values():
        _add(ledger, f"{path}/capacity/{kind}", _CAPACITIES[kind], names)
        _add(ledger, f"{path}/slowdown/{kind}", _SLOWDOWNS[kind], names)
    for what in ("capacity", "slowdown"):
        ledger.choose(f"{path}/{what}", "topology", {code: f"{path}/{what}/{kind}" for code, kind in kinds.items()})
    ledger.add(f"{path}/share", fabric.flow_share, capacity=f"{path}/capacity", flows=f"{path}/flows")
    return {**placed, "fabric_share": f"{path}/share", "fabric_slowdown": f"{path}/slowdown"}


def _add_wirings(
    ledger: Ledger, path: str, rates: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]
) -> dict[int, str]:
    """Store the rate of links by the wiring of each row's domain; code of the wiring → its name."""
    wirings = {code: WIRINGS[code] for code in distinct(ledger.columns["wiring"])}
    for wiring in wirings.values():
        _add(ledger, f"{path}/{wiring}", rates[wiring], given)
    ledger.choose(path, "wiring", {code: f"{path}/{wiring}" for code, wiring in wirings.items()})
    return wirings


def _place_on_torus(ledger: Ledger, path: str, wirings: Mapping[int, str], group: Mapping[str, Any]) -> dict[str, Any]:
    """What a torus of chips has that other domains do not: hops of a pass, and the cut of an all-to-all."""
    tori = [code for code, wiring in wirings.items() if wiring.startswith("torus")]
    if not tori:
        return {}
    ledger.keep(f"{path}/none", 0.0)
    ledger.keep(f"{path}/usual", 1.0)
    ledger.add(f"{path}/torus/relays", torus.torus_hops, **group)
    ledger.add(f"{path}/torus/hop_share", torus.hop_share, hops=f"{path}/torus/relays", ranks_per_domain=path)
    ledger.add(f"{path}/torus/link_slowdown", torus.torus_exchange_slowdown, **group)
    placed = {}
    for name, otherwise in (("relays", "none"), ("hop_share", "usual"), ("link_slowdown", "usual")):
        placed[name] = f"{path}/{name}"
        ledger.choose(placed[name], "wiring", dict.fromkeys(tori, f"{path}/torus/{name}"), f"{path}/{otherwise}")
    return placed


def collective_ledger(op: str, columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of one operation on rows of `message`, `ranks` and the columns of a cluster.

    `time` is the result; below it stand what it is made of and, across domains, what each algorithm takes.
    """
    ledger = Ledger(columns, trace=trace)
    group = place(ledger, "group", "ranks", 1)
    if op == "send_recv":
        ledger.add("crosses", f.crosses_network, ranks_per_domain="group")
        add_send(ledger, "time", "crosses", **{name: group[name] for name in ("fabric_share",) if name in group})
        return ledger
    if op == "alltoall":
        ledger.define("remote_share", f.all_to_all_remote_share, ranks_per_domain="group")
    _ADD[op](ledger, "time", **group)
    return ledger


def algorithms(op: str, ledger: Ledger) -> dict[str, str]:
    """Algorithm, with its protocol where it has several → path of its time, in a ledger of one operation.

    In one domain an all-reduce competes by ring and switch; across domains the library's algorithms compete.
    """
    crosses = bool(np.any(ledger["time/crosses"])) if "time/crosses" in ledger else False
    if crosses and op in {"all_reduce", "all_gather", "reduce_scatter"}:
        parts = list(ledger.entries["time/network"].names)
        if np.all(_on_torus(ledger.columns)):  # XLA has no ring over all chips, nor NCCL's protocols
            parts = [part for part in parts if part.endswith("/hierarchical")] or parts
        return {part.removeprefix("time/network/").replace("/", " "): part for part in parts}
    if op == "all_reduce":
        return {"torus" if np.all(_on_torus(ledger.columns)) else "ring": "time/link/ring", "nvls": "time/link/nvls"}
    return {}


def _on_torus(columns: Columns) -> np.ndarray:
    """Whether each row's domain is a torus, whose gathers run along each dimension at once."""
    return np.isin(np.atleast_1d(columns["wiring"]), [i for i, w in enumerate(WIRINGS) if w.startswith("torus")])


def chosen_algorithm(op: str, ledger: Ledger) -> np.ndarray:
    """Name of the fastest permitted algorithm in each row; the rows of one call cross domains or do not, by row."""
    columns = ledger.columns
    ranks, local = np.atleast_1d(columns["ranks"]), np.atleast_1d(ledger["group"])
    many = local < ranks
    inside = {"alltoall": "pairwise", "broadcast": "chain", "send_recv": "direct"}.get(op, "ring")
    across = {"alltoall": "pairwise over rails", "broadcast": "chain", "send_recv": "direct"}.get(op, "ring")
    one = np.full(ranks.shape, inside, dtype=object)
    one[np.broadcast_to(_on_torus(columns) & (inside == "ring"), ranks.shape)] = "torus"
    if op == "all_reduce":
        adds_up = local >= np.atleast_1d(columns["nvls_minimum_ranks"])
        faster = np.atleast_1d(ledger["time/link/nvls"]) <= np.atleast_1d(ledger["time/link/ring"])
        one = np.where(adds_up & faster, "nvls", one)
    several = np.full(ranks.shape, across, dtype=object)
    competing = algorithms(op, ledger) if np.any(many) else {}
    if competing:
        times = np.stack([np.broadcast_to(ledger[path], ranks.shape) for path in competing.values()])
        several = np.array(list(competing), dtype=object)[np.argmin(times, axis=0)]
    return np.where(many, several, one)


def bus_factor(op: str, ranks: Any) -> Any:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in {"all_gather", "reduce_scatter", "alltoall"} else ranks / ranks


def exchange_ledger(kernel: str, columns: Columns, *, trace: bool = False) -> Ledger:
    """Time of one phase of an expert exchange kernel on rows of `tokens`, `hidden`, `experts_per_token` …

    The columns are those of a cluster and of the group's `ranks`.
    """
    ledger = Ledger(columns, trace=trace)
    group = place(ledger, "group", "ranks", 1)
    ledger.define("domains", topology.group_domains, ranks_per_domain="group")
    add_exchange(ledger, "time", kernel, ranks_per_domain="group", link_bandwidth=group["link_bandwidth"])
    return ledger


def add_exchange(ledger: Ledger, path: str, kernel: str, **group: Any) -> Array:
    """Store one phase of an expert exchange kernel among `domains` domains of `ranks_per_domain` ranks each."""
    local = group.get("ranks_per_domain", "ranks_per_domain")
    ledger.define("token_size", expert_exchange.token_bytes)
    if kernel == "deepep_normal":
        ledger.define("link_copies", expert_exchange.distinct_copies, places=local)
        ledger.define("network_copies", expert_exchange.distinct_copies, places="domains")
        ledger.define("doublings", expert_exchange.doublings, places="domains")
    else:
        near = "copies/in-domain"
        ledger.add(near, expert_exchange.copies_in_domain)
        ledger.define("link_copies", expert_exchange.separate_copies, places=local, experts_per_token=near)
        ledger.define("network_copies", expert_exchange.separate_copies, places="domains")
        ledger.product("copies/ranks", "domains", local)
        ledger.define("doublings", expert_exchange.doublings, places="copies/ranks")
    return ledger.add(path, expert_exchange.expert_exchange_time, **group)
