"""The order of the formulas of a collective and of an expert exchange; one question is a batch of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.core.formula import info_of
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import collectives as f
from gpucalc.formulas import expert_exchange, topology

FP8_TOKEN = {"element_size": 1.0, "scale_size": 4.0, "scale_group": 128.0}  # dispatch: one fp32 scale per 128
BF16_TOKEN = {"element_size": 2.0, "scale_size": 0.0, "scale_group": 128.0}  # combine


@dataclass(frozen=True)
class Algorithm:
    """What an algorithm does at each level: the ledger paths of its link and network time."""

    name: str
    link: str
    network: str


RING = (Algorithm("ring", "link/ring", "network/ring"),)
ALL_REDUCE = (
    *RING,
    Algorithm("tree", "link/ring", "network/tree"),
    Algorithm("nvls", "link/nvls", "network/ring"),
    Algorithm("nvls-tree", "link/nvls", "network/tree"),
)


def group_link_bandwidth(wiring: str, constants: Mapping[str, Any], group: Any) -> Any:
    """B/s that each GPU has in a group of `group` GPUs of one domain wired as `wiring`."""
    function: Callable[..., Any] = topology.SCALE_UP_BANDWIDTH[wiring]
    return function(**{n: group if n == "group" else constants[n] for n in info_of(function).parameters})


def collective_ledger(op: str, columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of one operation on rows of `message`, `ranks`, `ranks_per_domain` and the constants.

    `time` is the result; all-reduce, all-gather and reduce-scatter also have `algorithm/NAME`.
    """
    ledger = Ledger(columns, trace=trace)
    if op in {"all_reduce", "all_gather", "reduce_scatter"}:
        passes = 2 if op == "all_reduce" else 1
        start = "all_reduce_startup" if op == "all_reduce" else "collective_startup"
        ledger.add("startup", f.startup_time, startup=columns[start])
        ledger.add("link/ring", f.link_ring_time, passes=passes)
        ledger.add("network/ring", f.network_ring_time, passes=passes)
        if op == "all_reduce":
            ledger.add("link/nvls", f.link_nvls_time)
            ledger.add("network/tree", f.network_tree_time)
        for algorithm in algorithms(op):
            ledger.maximum(f"level/{algorithm.name}", algorithm.link, algorithm.network)
            ledger.total(f"algorithm/{algorithm.name}", "startup", f"level/{algorithm.name}")
        whole: dict[str, Callable[..., Any]] = {
            "all_reduce": f.all_reduce_time,
            "all_gather": f.all_gather_time,
            "reduce_scatter": f.reduce_scatter_time,
        }
        ledger.add("time", whole[op])
    elif op == "alltoall":
        ledger.define("remote_share", f.all_to_all_remote_share)
        ledger.add("time", f.all_to_all_time)
    elif op == "broadcast":
        ledger.add("time", f.broadcast_time)
    else:
        crosses = np.less(columns["ranks_per_domain"], columns["ranks"]) * 1.0
        ledger.add("time", f.point_to_point_time, crosses=crosses)
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


def exchange_ledger(kernel: str, columns: Columns, *, trace: bool = False) -> Ledger:
    """Time of one phase of an expert exchange kernel on rows of `tokens`, `hidden`, `experts_per_token` …"""
    ledger = Ledger(columns, trace=trace)
    local, domains = columns["ranks_per_domain"], columns["domains"]
    ledger.define("token_size", expert_exchange.token_bytes)
    if kernel == "deepep_normal":
        ledger.define("link_copies", expert_exchange.distinct_copies, places=local)
        ledger.define("network_copies", expert_exchange.distinct_copies, places=domains)
        waiting = domains
    else:
        near = columns["experts_per_token"] / domains  # the copies that stay in the domain
        ledger.define("link_copies", expert_exchange.separate_copies, places=local, experts_per_token=near)
        ledger.define("network_copies", expert_exchange.separate_copies, places=domains)
        waiting = domains * local
    ledger.add("time", expert_exchange.expert_exchange_time, doublings=np.log2(waiting))
    return ledger
