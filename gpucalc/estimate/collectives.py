"""The order of the formulas of a collective and of an expert exchange; one question is a batch of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import Array
from gpucalc.formulas import collectives as f
from gpucalc.formulas import expert_exchange, topology

FP8_TOKEN = {"element_size": 1.0, "scale_size": 4.0, "scale_group": 128.0}  # dispatch: one fp32 scale per 128
BF16_TOKEN = {"element_size": 2.0, "scale_size": 0.0, "scale_group": 128.0}  # combine
PAIR = Constant("PAIR", 2.0, "ranks of a transfer", "definition")


@dataclass(frozen=True)
class Algorithm:
    """What an algorithm does at each level: its link and its network time, below the path of the collective."""

    name: str
    link: str
    network: str


# Of an all-reduce; an all-gather and a reduce-scatter have one time at each level.
ALL_REDUCE = (
    Algorithm("ring", "link/ring", "network/ring"),
    Algorithm("tree", "link/ring", "network/tree"),
    Algorithm("nvls", "link/nvls", "network/ring"),
    Algorithm("nvls-tree", "link/nvls", "network/tree"),
)
RING = (Algorithm("ring", "link", "network"),)


# --- a collective as terms ----------------------------------------------------------------------------
#
# `path` is its time; below it stand `startup`, `link`, `network`, and `level`, the slower of the two, which rules:
# both carry their share of the traffic at the same time. `given` are arguments of the formulas that are not the
# columns of their names: `message`, where the group lies (`ranks`, `ranks_per_domain`), rates.


def add_all_gather(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-gather after which each rank holds `message` bytes, or the reduce-scatter that is its reverse."""
    _add(ledger, f"{path}/link", f.link_ring_time, given, passes=1)
    _add(ledger, f"{path}/network", f.network_ring_time, given, passes=1)
    return _add_levels(ledger, path, "collective_startup", given)


def add_all_reduce(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-reduce of `message` bytes by the best algorithm at each level.

    On the links a ring or the switch (NVLS); on the network a ring or a double binary tree.
    """
    _add(ledger, f"{path}/link/ring", f.link_ring_time, given, passes=2)
    _add(ledger, f"{path}/link/nvls", f.link_nvls_time, given)
    link = {"ring": f"{path}/link/ring", "nvls": f"{path}/link/nvls"}
    _add(ledger, f"{path}/link", f.fastest_link_time, {**given, **link})
    _add(ledger, f"{path}/network/ring", f.network_ring_time, given, passes=2)
    _add(ledger, f"{path}/network/tree", f.network_tree_time, given)
    ledger.add(f"{path}/network", f.fastest_network_time, ring=f"{path}/network/ring", tree=f"{path}/network/tree")
    return _add_levels(ledger, path, "all_reduce_startup", given)


def add_all_to_all(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store an all-to-all in which each rank sends `message` bytes and each NIC `remote_share` of them."""
    _add(ledger, f"{path}/link", f.link_exchange_time, given)
    _add(ledger, f"{path}/network", f.network_exchange_time, given)
    return _add_levels(ledger, path, "all_to_all_startup", given)


def add_broadcast(ledger: Ledger, path: str, **given: Any) -> Array:
    """Store a broadcast of `message` bytes by a pipelined chain."""
    _add(ledger, f"{path}/link", f.link_chain_time, given)
    _add(ledger, f"{path}/network", f.network_chain_time, given)
    return _add_levels(ledger, path, "collective_startup", given)


def _add(ledger: Ledger, path: str, formula: Callable[..., Any], given: Mapping[str, Any], **more: Any) -> Array:
    """Store a formula of the ones that an operation consists of: each takes of `given` what it has arguments for."""
    known = formula.info.parameters  # type: ignore[attr-defined]
    return ledger.add(path, formula, **{name: value for name, value in given.items() if name in known}, **more)


def _add_levels(ledger: Ledger, path: str, startup: str, given: Mapping[str, Any]) -> Array:
    ledger.add(f"{path}/startup", f.startup_time, startup=given.get(startup, startup), **_group(given))
    ledger.maximum(f"{path}/level", f"{path}/link", f"{path}/network")
    return ledger.total(path, f"{path}/startup", f"{path}/level")


def _group(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"ranks": given["ranks"]} if "ranks" in given else {}


def add_send(ledger: Ledger, path: str, crosses: Any, **given: Any) -> Array:
    """Store sending `message` bytes to one peer: in the domain (`crosses` 0) or over one NIC (1)."""
    _add(ledger, f"{path}/link", f.link_send_time, given)
    _add(ledger, f"{path}/network", f.network_send_time, given)
    ledger.choose(f"{path}/level", crosses, {0: f"{path}/link", 1: f"{path}/network"})
    ledger.add(f"{path}/startup", f.startup_time, startup="point_to_point_startup", ranks=PAIR)
    return ledger.total(path, f"{path}/startup", f"{path}/level")


_ADD: dict[str, Callable[..., Array]] = {
    "all_reduce": add_all_reduce,
    "all_gather": add_all_gather,
    "reduce_scatter": add_all_gather,
    "alltoall": add_all_to_all,
    "broadcast": add_broadcast,
}


# --- one operation over a group of GPUs -----------------------------------------------------------------

# How the formula of a fabric names what the columns of a group hold.
FABRICS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "fat-tree": (topology.fat_tree_share, {"nodes": "domains"}),
    "rail": (topology.rail_share, {}),
    "dragonfly": (topology.dragonfly_share, {"nodes": "domains", "group_nodes": "pod"}),
    "torus-2d": (topology.torus_share, {"nodes": "domains", "dimensions": "fabric_dimensions"}),
    "torus-3d": (topology.torus_share, {"nodes": "domains", "dimensions": "fabric_dimensions"}),
}


def add_group(ledger: Ledger, wiring: str, fabric: str) -> None:
    """Make `link_bandwidth` and `network_bandwidth` what a rank keeps of them in a group of `ranks`.

    The columns hold what a GPU has in the whole domain, wired as `wiring`, and its rate into a network that is a
    `fabric`; `ranks_per_domain` of the ranks share a domain.
    """
    ledger.define("domains", topology.group_domains)
    ledger.define("link_bandwidth", topology.SCALE_UP_BANDWIDTH[wiring], group="ranks_per_domain")
    share, names = FABRICS[fabric]
    ledger.add("group/fabric", share, **names)
    ledger.product("group/network_bandwidth", "network_bandwidth", "group/fabric")
    ledger.share("group/network_bandwidth")


def collective_ledger(
    op: str, columns: Columns, *, group: tuple[str, str] | None = None, trace: bool = False
) -> Ledger:
    """All terms of one operation on rows of `message`, `ranks`, `ranks_per_domain` and the constants.

    `time` is the result, with `time/startup`, `time/link`, `time/network`; all-reduce, all-gather and reduce-scatter
    also have `algorithm/NAME`. `group`, a wiring and a fabric, says that the rates in the columns are those of a GPU,
    not yet those of the group.
    """
    ledger = Ledger(columns, trace=trace)
    if group is not None:
        add_group(ledger, *group)
    if op == "send_recv":
        ledger.define("crosses", f.crosses_network)
        add_send(ledger, "time", "crosses")
        return ledger
    if op == "alltoall":
        ledger.define("remote_share", f.all_to_all_remote_share)
    _ADD[op](ledger, "time")
    for algorithm in algorithms(op):
        ledger.maximum(f"level/{algorithm.name}", f"time/{algorithm.link}", f"time/{algorithm.network}")
        ledger.total(f"algorithm/{algorithm.name}", "time/startup", f"level/{algorithm.name}")
    return ledger


def algorithms(op: str) -> tuple[Algorithm, ...]:
    """The algorithms that compete for an operation; empty where there is one way."""
    return ALL_REDUCE if op == "all_reduce" else RING if op in {"all_gather", "reduce_scatter"} else ()


def chosen_algorithm(op: str, ledger: Ledger) -> np.ndarray:
    """Name of the fastest permitted algorithm in each row."""
    columns = ledger.columns
    ranks, local = np.atleast_1d(columns["ranks"]), np.atleast_1d(columns["ranks_per_domain"])
    if op not in {"all_reduce", "all_gather", "reduce_scatter"}:
        one, many = {"alltoall": ("pairwise", "rails"), "broadcast": ("chain", "rails")}.get(op, ("direct", "direct"))
        return np.where(local < ranks, many, one)
    competing = algorithms(op)
    permitted = local >= np.atleast_1d(columns["nvls_minimum_ranks"])
    times = np.stack(
        [
            np.where(permitted | (a.link != "link/nvls"), np.atleast_1d(ledger[f"algorithm/{a.name}"]), np.inf)
            for a in competing
        ]
    )
    return np.array([a.name for a in competing])[np.argmin(times, axis=0)]


def bus_factor(op: str, ranks: Any) -> Any:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in {"all_gather", "reduce_scatter", "alltoall"} else ranks / ranks


def exchange_ledger(
    kernel: str, columns: Columns, *, group: tuple[str, str] | None = None, trace: bool = False
) -> Ledger:
    """Time of one phase of an expert exchange kernel on rows of `tokens`, `hidden`, `experts_per_token` …

    `group` as in `collective_ledger`; without it the columns hold `domains` too.
    """
    ledger = Ledger(columns, trace=trace)
    if group is not None:
        add_group(ledger, *group)
    ledger.define("token_size", expert_exchange.token_bytes)
    if kernel == "deepep_normal":
        ledger.define("link_copies", expert_exchange.distinct_copies, places="ranks_per_domain")
        ledger.define("network_copies", expert_exchange.distinct_copies, places="domains")
        ledger.define("doublings", expert_exchange.doublings, places="domains")
    else:
        near = "copies/in-domain"
        ledger.add(near, expert_exchange.copies_in_domain)
        ledger.define("link_copies", expert_exchange.separate_copies, places="ranks_per_domain", experts_per_token=near)
        ledger.define("network_copies", expert_exchange.separate_copies, places="domains")
        ledger.product("copies/ranks", "domains", "ranks_per_domain")
        ledger.define("doublings", expert_exchange.doublings, places="copies/ranks")
    ledger.add("time", expert_exchange.expert_exchange_time)
    return ledger
