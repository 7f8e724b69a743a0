"""Which of a job's groups cross which tier of its network, and what the network's shape costs the step.

The tiers of a topology at a size, the tier that joins each group of a layout, and the step time beside that on a
network that gives every card its full rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.database import network
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas import placement_scale

if TYPE_CHECKING:
    from gpucalc.database.records import Topology
    from gpucalc.jobs import training as jobs

TIERS = ("scale-up domain", "leaf", "pod", "core")
PLACES = ("inside a scale-up domain", "over one leaf", "inside a pod", "between pods")
OPEN = "fat-tree"  # kind of a network that gives every card its full rate, without oversubscription


def step_times(columns: Sequence[Mapping[str, float]]) -> list[float]:
    """Step times of jobs that differ in some columns, by the one estimate."""
    names = list(columns[0])
    values: dict[str, Any] = {n: np.array([c[n] for c in columns]) for n in names}
    if len(columns) == 1:
        values = dict(columns[0])
    step = np.broadcast_to(estimate_training(Columns(values))["time/step"], (len(columns),))
    return [float(s) for s in step]


@dataclass(frozen=True)
class Fabric:
    """What a topology means at a size: tiers, switches, and the block beyond which bandwidth is shared."""

    tiers: int | None
    switches: int | None
    leaf: float  # GPUs
    pod: float  # GPUs
    capacity: float


def fabric_at(shape: Topology, n_gpus: int, domain: int) -> Fabric:
    """Sizes of a topology for `n_gpus` whose scale-up domains hold `domain`."""
    radix = float(shape.radix or 64)
    over = shape.oversubscription
    if shape.kind in {"fat-tree", "rail"}:
        tiers = float(placement_scale.fat_tree_tiers(n_gpus, radix))
        leaf = (
            placement_scale.rail_leaf_gpus(radix, domain)
            if shape.kind == "rail"
            else placement_scale.leaf_gpus(radix, over if shape.pod_gpus is None else 1.0)
        )
        # A leaf holds whole domains.
        below = max(float(domain), float(leaf) // domain * domain)
        pod = float(shape.pod_gpus or (below if over > 1 else n_gpus))
        switches = placement_scale.fat_tree_switches(n_gpus, radix, tiers, over)
        return Fabric(int(tiers), int(switches), below, max(pod, below), float("inf"))
    if shape.kind == "dragonfly":
        group = float(placement_scale.dragonfly_group(radix))
        capacity = float(placement_scale.dragonfly_capacity(radix))
        switches = placement_scale.dragonfly_switches(n_gpus, radix)
        return Fabric(2, int(switches), radix / 4, group, capacity)
    return Fabric(None, None, float(domain), float(n_gpus), float("inf"))


GROUPS: dict[str, Callable[[Mapping[str, Any]], tuple[int, int]]] = {
    "tp": lambda c: (c["tp"], 1),
    "cp": lambda c: (c["cp"], c["tp"]),
    "ep": lambda c: (c["ep"] * c["etp"], 1),
    "dp": lambda c: (c["dp"] * c["cp"], c["tp"]),
    "pp": lambda c: (c["pp"], c["tp"] * c["cp"] * c["dp"]),
}


def landings(job: jobs.Job, fabric: Fabric) -> dict[str, str]:
    """For each group of the layout with more than one rank, the level of the network that joins it."""
    found = {}
    for name, of in GROUPS.items():
        ranks, stride = of(job.cells)
        if ranks <= 1 or (name == "ep" and job.cells["ep"] <= 1):
            continue
        extent = placement_scale.group_extent(float(ranks), float(stride))
        tier = placement_scale.landing_tier(extent, job.columns["domain"], fabric.leaf, fabric.pod)
        found[name] = TIERS[int(tier)]
    return found


def crossings(job: jobs.Job) -> dict[str, str]:
    """Each group of a job with more than one rank → where its traffic goes on the job's own network."""
    cluster = job.cluster
    fabric = fabric_at(cluster.topology, cluster.n_gpus, cluster.domain)
    found = {}
    for name, tier in landings(job, fabric).items():
        level = TIERS.index(tier)
        if cluster.placement == "scattered" and level:  # its domains lie anywhere
            level = 3 if cluster.n_gpus > fabric.pod else 2
        ranks, stride = GROUPS[name](job.cells)
        found[f"{name} {ranks}" + (f" ({stride} apart)" if stride > 1 else "")] = PLACES[level]
    return found


def shape_cost(job: jobs.Job) -> float:
    """Share of the step time that the network's shape and placement cost, against cards that keep their full rate."""
    shape = replace(job.cluster.topology, kind=OPEN, oversubscription=1.0)
    ideal = replace(job.cluster, topology=shape, placement="consecutive")
    now, best = step_times([{**job.columns}, {**job.columns, **network.place_columns(ideal)}])
    return max(0.0, 1 - best / now)


def crossing_note(job: jobs.Job) -> str:
    """One sentence for people: which groups cross which tier, and what that costs; "" for a job in one domain."""
    cluster = job.cluster
    if cluster.n_gpus <= cluster.domain:
        return ""
    places: dict[str, list[str]] = {}
    for group, place in crossings(job).items():
        places.setdefault(place, []).append(group)
    said = "; ".join(f"{', '.join(groups)} {place}" for place, groups in places.items())
    shape = cluster.topology
    over = f" {shape.oversubscription:g}:1" if shape.oversubscription > 1 and "to1" not in shape.key else ""
    cost = shape_cost(job)
    costs = f"{100 * cost:.1f} % of the step" if cost >= 5e-4 else "nothing"
    note = f"groups on {shape.key}{over}, {cluster.placement}: {said}; the network's shape costs {costs}"
    longer, share = untuned_cost(job)
    if share < 1:
        note += f"; {cluster.fabric} that nobody tuned keeps {100 * share:.0f} % of that rate"
        note += f": up to {100 * longer:.0f} % longer"
    return note


def untuned_cost(job: jobs.Job) -> tuple[float, float]:
    """How much longer a step takes where paths collide on a network that nobody tuned, and the share of its rate left.

    (0, 1) for a network without such a range.
    """
    share = job.context.db.link(job.cluster.fabric).untuned
    if share >= 1:
        return 0.0, 1.0
    slow = {**job.columns, "network_bandwidth": share * job.columns["network_bandwidth"]}
    now, worst = step_times([{**job.columns}, slow])
    return max(0.0, worst / now - 1), share
