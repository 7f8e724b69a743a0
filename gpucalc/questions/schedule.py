"""A job's gang on a partly used cluster: does it fit, where is it best, what does that fragment, how long does it wait.

Filter, score, bind. Nodes are given in the order of their leaf switches; step times are the training estimate's.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, InfeasibleError, UsageError
from gpucalc.core.files import MIB, read_text
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database import network
from gpucalc.database.records import Topology
from gpucalc.formulas import gang, placement_scale
from gpucalc.jobs import training as jobs
from gpucalc.questions.crossings import fabric_at, landings, step_times

LEAF_NODES = 32  # nodes below one leaf switch (rail group) of 64-port switches
MOST_NODES = 200_000
NOISY_VARIATION = 3.0  # of run times, above which the form of a mean wait says little
BLIND = ("least-free", "spread")  # strategies that do not look at leaves: their ranks lie on the nodes in no order
LARGEST_STATE = 64 * MIB  # bytes of a table of nodes
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class NodeState:
    """A node of the cluster as a scheduler sees it."""

    name: str
    leaf: str
    free: int


@dataclass(frozen=True)
class Placement:
    """One way to place a gang: blocks by node, and what it leaves."""

    strategy: str
    blocks: Mapping[str, int]  # node → blocks taken, in rank order
    leaves: int
    smallest_leaf: int  # blocks on the leaf that got fewest
    leaf_nodes: int  # nodes of that leaf, whoever has them
    blocks_left: int
    fragmentation: float


def nodes_of_groups(text: str, leaf_nodes: int = LEAF_NODES) -> list[NodeState]:
    """Nodes from a text such as 40x8,6x4,3x0: 40 nodes with 8 free GPUs, then 6 with 4, then 3 with none."""
    nodes: list[NodeState] = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        count, cross, free = part.partition("x")
        if not cross or not count.isdigit() or not free.isdigit() or int(count) < 1:
            raise UsageError(f"--free has {part!r}; write nodes x free GPUs, such as 40x8,6x4")
        if len(nodes) + int(count) > MOST_NODES:
            raise UsageError(f"--free names more than {MOST_NODES:,} nodes")
        for _ in range(int(count)):
            place = len(nodes)
            nodes.append(NodeState(f"node{place + 1:05d}", f"leaf{place // leaf_nodes + 1:03d}", int(free)))
    if not nodes:
        raise UsageError("--free names no node; write nodes x free GPUs, such as 40x8,6x4")
    return nodes


def nodes_of_file(path: str, leaf_nodes: int = LEAF_NODES) -> list[NodeState]:
    """Nodes from a CSV file with the columns node, free and (optionally) leaf."""
    text = read_text(path, LARGEST_STATE, "a table of nodes, node,free and perhaps leaf")
    reader = csv.DictReader(io.StringIO(text))
    missing = [n for n in ("node", "free") if n not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{path}: lacks the column {' and '.join(missing)}; it needs node,free and may have leaf")
    nodes: list[NodeState] = []
    for line, row in enumerate(reader, 2):
        free = (row.get("free") or "").strip()
        if not free.isdigit() or not (row.get("node") or "").strip():
            raise DataError(
                f"{path}: line {line}: free is {free!r}, expected a whole number of GPUs beside a node's name"
            )
        if len(nodes) >= MOST_NODES:
            raise DataError(f"{path}: more than {MOST_NODES:,} nodes")
        leaf = (row.get("leaf") or "").strip() or f"leaf{len(nodes) // leaf_nodes + 1:03d}"
        nodes.append(NodeState(row["node"].strip(), leaf, int(free)))
    names = [n.name for n in nodes]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: a node is named twice: {next(n for n in names if names.count(n) > 1)}")
    if not nodes:
        raise DataError(f"{path}: holds no node")
    return nodes


def filter_gang(nodes: Sequence[NodeState], needed: int, share: int) -> Ledger:
    """Blocks that fit and the fragmentation; InfeasibleError with what would help where the gang does not fit."""
    free = np.array([n.free for n in nodes], dtype=float)
    ledger = Ledger(Columns({"free": free, "gang_share": float(share)}), trace=True)
    each = ledger.add("filter/blocks/node", gang.free_blocks)
    blocks, total = float(np.sum(each)), float(free.sum())
    ledger.keep("filter/blocks", blocks)
    lost = gang.fragmentation(free_gpus=max(total, 1.0), blocks=blocks, gang_share=float(share)) if total else 0.0
    ledger.keep("filter/fragmentation", float(lost))
    if blocks < needed:
        smaller = next(
            (s for s in _halves(share) if float(np.sum(gang.free_blocks(free, s))) * s >= needed * share), None
        )
        hint = f"; blocks of {smaller} GPUs a node would fit" if smaller else ""
        raise InfeasibleError(
            f"the gang needs {needed:,} blocks of {share} GPUs on one node each, and {int(blocks):,} are free "
            f"({int(total):,} GPUs are free, {100 * float(lost):.0f} % of them in smaller pieces){hint}"
        )
    return ledger


def _halves(share: int) -> list[int]:
    return [share // d for d in (2, 4, 8, 16) if share % d == 0]


# ---------------------------------------------------------------- scoring

Taken = dict[str, int]


def _by_leaf(nodes: Sequence[NodeState], share: int) -> dict[str, list[NodeState]]:
    leaves: dict[str, list[NodeState]] = {}
    for node in nodes:
        if node.free >= share:
            leaves.setdefault(node.leaf, []).append(node)
    return {leaf: sorted(members, key=lambda n: n.name) for leaf, members in leaves.items()}


def _room(members: Sequence[NodeState], share: int) -> int:
    return sum(n.free // share for n in members)


def _take(members: Sequence[NodeState], wanted: int, share: int, taken: Taken) -> int:
    """Take up to `wanted` blocks, fullest nodes first, so that whole nodes stay whole; what is still wanted."""
    for node in sorted(members, key=lambda n: n.free):
        if wanted <= 0:
            break
        count = min(wanted, node.free // share)
        taken[node.name] = taken.get(node.name, 0) + count
        wanted -= count
    return wanted


def _in_no_order(leaves: Mapping[str, list[NodeState]]) -> list[NodeState]:
    """The nodes as a scheduler meets them that knows no leaves: one of each leaf in turn."""
    rows = itertools.zip_longest(*leaves.values())
    return [node for row in rows for node in row if node is not None]


def _best_fit(leaves: Mapping[str, list[NodeState]], needed: int, share: int) -> Taken:
    """The fullest leaf that holds the gang; else whole leaves from the roomiest on, the last one by best fit."""
    taken: Taken = {}
    rooms = {leaf: _room(members, share) for leaf, members in leaves.items()}
    while needed > 0:
        enough = [leaf for leaf, room in rooms.items() if room >= needed]
        chosen = min(enough, key=lambda x: (rooms[x], x)) if enough else max(rooms, key=lambda x: (rooms[x], x))
        needed = _take(leaves[chosen], needed, share, taken)
        del rooms[chosen]
    return taken


def _least_free(leaves: Mapping[str, list[NodeState]], needed: int, share: int) -> Taken:
    """The fullest nodes of the whole cluster, wherever they hang: whole nodes are kept for later gangs."""
    taken: Taken = {}
    _take(_in_no_order(leaves), needed, share, taken)
    return taken


def _balanced(leaves: Mapping[str, list[NodeState]], needed: int, share: int) -> Taken:
    """As few leaves as best fit needs, and as equal a number of blocks on each as their room allows."""
    taken: Taken = {}
    rooms = sorted(leaves, key=lambda x: (-_room(leaves[x], share), x))
    count, held = 0, 0
    while held < needed:
        held += _room(leaves[rooms[count]], share)
        count += 1
    for place in range(count - 1, -1, -1):  # from the smallest on, so that what it lacks is shared by the others
        wanted = -(-needed // (place + 1))
        got = min(wanted, _room(leaves[rooms[place]], share))
        _take(leaves[rooms[place]], got, share, taken)
        needed -= got
    return taken


def _spread(leaves: Mapping[str, list[NodeState]], needed: int, share: int) -> Taken:
    """One block on each of the emptiest nodes in turn: what a scheduler without topology does."""
    taken: Taken = {}
    members = _in_no_order(leaves)
    while needed > 0:
        for node in sorted(members, key=lambda n: -(n.free - share * taken.get(n.name, 0))):
            if needed > 0 and node.free >= share * (taken.get(node.name, 0) + 1):
                taken[node.name] = taken.get(node.name, 0) + 1
                needed -= 1
    return taken


STRATEGIES: dict[str, Callable[[Mapping[str, list[NodeState]], int, int], Taken]] = {
    "best-fit": _best_fit,
    "least-free": _least_free,
    "balanced": _balanced,
    "spread": _spread,
}


def placements(nodes: Sequence[NodeState], needed: int, share: int) -> list[Placement]:
    """The gang placed by each strategy, with the leaves that it touches and the fragmentation that it leaves."""
    filter_gang(nodes, needed, share)
    leaves = _by_leaf(nodes, share)
    leaf_of = {n.name: n.leaf for n in nodes}
    found = []
    for name, place in STRATEGIES.items():
        taken = place(leaves, needed, share)
        on_leaf: dict[str, int] = {}
        for node, count in taken.items():
            on_leaf[leaf_of[node]] = on_leaf.get(leaf_of[node], 0) + count
        left = np.array([n.free - share * taken.get(n.name, 0) for n in nodes], dtype=float)
        blocks = float(np.sum(gang.free_blocks(left, share)))
        lost = float(gang.fragmentation(left.sum(), blocks, share)) if left.sum() else 0.0
        ordered = dict(sorted(taken.items(), key=lambda item: (leaf_of[item[0]], item[0])))
        fewest = min(on_leaf, key=lambda leaf: (on_leaf[leaf], leaf))
        size = sum(n.leaf == fewest for n in nodes)
        found.append(Placement(name, ordered, len(on_leaf), on_leaf[fewest], size, int(blocks), lost))
    return found


def placed_job(
    job: jobs.Job, placement: Placement, oversubscription: float, neighbours: float = 1.0
) -> dict[str, float]:
    """The columns of a job whose blocks lie on leaves as placed: the smallest share of a leaf decides.

    `neighbours`: share of that leaf's other nodes whose jobs send over its uplinks too. Strategies that do not look at
    leaves hand ranks to nodes in no order, so that every hop of a ring may leave a leaf.
    """
    shape = job.columns
    if placement.leaves <= 1:
        return {**shape, "pod": shape["n_gpus"], "oversubscription": 1.0}
    per_block = job.cluster.gpus_per_node / shape["domain"]
    nodes = float(min(placement.smallest_leaf, placement.leaf_nodes))
    seen = gang.shared_oversubscription(max(1.0, oversubscription), nodes, float(placement.leaf_nodes), neighbours)
    return {
        **shape,
        "pod": max(1.0, placement.smallest_leaf * per_block),
        "oversubscription": float(seen),
        "scattered": 1.0 if placement.strategy in BLIND else shape["scattered"],
    }


def score(
    found: Sequence[Placement], job: jobs.Job | None, oversubscription: float, neighbours: float = 1.0
) -> list[tuple[Placement, float | None]]:
    """Placements best first: the fastest step, then the least fragmentation, then the fewest leaves."""
    times: list[float | None] = [None] * len(found)
    if job is not None:
        times = list(step_times([placed_job(job, p, oversubscription, neighbours) for p in found]))
    pairs = list(zip(found, times, strict=True))
    order = list(STRATEGIES)
    return sorted(
        pairs,
        key=lambda x: (
            round(x[1] or 0.0, 9),
            -x[0].blocks_left,
            x[0].fragmentation,
            x[0].leaves,
            order.index(x[0].strategy),
        ),
    )


# ---------------------------------------------------------------- waiting


@dataclass(frozen=True)
class JobClass:
    """Jobs of one size in the queue: their share of all jobs, their GPUs, and their mean run time in seconds."""

    gpus: int
    share: float
    mean_run: float


def mixed_runs(classes: Sequence[JobClass], gang_gpus: int) -> tuple[float, float]:
    """Mean time that jobs of these classes hold what the gang needs, and its variation."""
    told = {
        "job_share": np.array([c.share for c in classes]) / sum(c.share for c in classes),
        "relative_size": np.array([c.gpus / gang_gpus for c in classes]),
        "class_run": np.array([c.mean_run for c in classes]),
    }
    mean = gang.mixed_run(**told)
    return float(mean), float(gang.mixed_variation(**told, mixed_run=mean))


def wait(
    servers: int,
    utilisation: float,
    mean_run: float,
    *,
    run_variation: float | None = None,
    arrival_variation: float = 1.0,
) -> list[dict[str, Any]]:
    """Mean wait and its quantiles in seconds: for run times of a stated variation, exponential ones without it."""
    variation = 1.0 if run_variation is None else run_variation
    ledger = Ledger(Columns({"servers": float(servers), "utilisation": utilisation, "mean_run": mean_run}), trace=True)
    ledger.define("offered", gang.offered_load)
    waiting = ledger.define("waiting_share", gang.erlang_c)
    mean = ledger.add("queue/wait/mean", gang.mean_wait, arrival_variation=arrival_variation, run_variation=variation)
    row: dict[str, Any] = {"run_times": "exponential" if run_variation is None else "stated"}
    row |= {"run_variation": variation, "waiting_pct": 100 * float(waiting), "wait_mean_s": float(mean)}
    for quantile in QUANTILES:
        path = f"queue/wait/p{round(100 * quantile)}"
        row[f"wait_p{round(100 * quantile)}_s"] = float(
            ledger.add(path, gang.wait_quantile, mean="queue/wait/mean", left_share=1 - quantile)
        )
    return [row]


# ---------------------------------------------------------------- networks at scale


def at_scale(job: jobs.Job, shapes: Sequence[Topology]) -> list[dict[str, Any]]:
    """A job on each topology: tiers, switches, where its groups land, its step time, what fails together."""
    n, domain = job.cluster.n_gpus, job.cluster.domain
    fabrics = [fabric_at(shape, n, domain) for shape in shapes]
    columns = [{**job.columns, **network.place_columns(replace(job.cluster, topology=shape))} for shape in shapes]
    rows = []
    apart = step_times([{**c, "scattered": 1.0} for c in columns])
    for shape, fabric, step, scattered in zip(shapes, fabrics, step_times(columns), apart, strict=True):
        landed = landings(job, fabric)
        rows.append(
            {
                "topology": shape.key,
                "n_gpus": n,
                "tiers": fabric.tiers,
                "switches": fabric.switches,
                "leaf_gpus": fabric.leaf,
                "pod_gpus": fabric.pod,
                "groups": ", ".join(f"{group} {tier}" for group, tier in landed.items()),
                "step_time_s": step,
                "step_time_scattered_s": scattered,
                "tokens_per_s_per_gpu": job.cells["global_batch"] * job.cells["seq_len"] / step / n,
                "blast_pct": 100 * float(placement_scale.blast_share(float(domain), float(n))),
                "fit": "fits" if n <= fabric.capacity else f"at most {fabric.capacity:,.0f} GPUs",
            }
        )
    return rows
