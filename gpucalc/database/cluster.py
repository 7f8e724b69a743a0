"""The cluster that a job runs on: a number of accelerators, their domain and the rates between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpucalc.core.columns import MOST_GPUS
from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.core.units import GIB, GIGABIT
from gpucalc.database.reader import Database
from gpucalc.database.records import Device, Link, Node, Topology
from gpucalc.database.slices import Sides, torus_sides, usual_sides

SERVER_PORT_MOST = 40e9 / 8  # B/s: Ethernet up to 40 Gb/s on a GPU server is its front-end port, one a node
_DIMENSIONS = {"torus-2d": 2, "torus-3d": 3}
# Cells of a row that say where it runs, beside `gpu` and `n_gpus`: arguments of `resolve_cluster` by their names.
PLACE_CELLS = (
    *("gpus_per_node", "inter_node_gbps_per_gpu", "node", "domain"),
    *("nics_per_node", "topology", "torus_sides", "oversubscription", "placement"),
    *("collective_library", "in_switch_reduction", "gpu_memory_gib"),
)


@dataclass(frozen=True)
class Cluster:
    """A number of accelerators, how they are grouped, and the rates between them (per GPU, one direction)."""

    device: Device
    n_gpus: int
    node: Node
    gpus_per_node: int
    domain: int
    link_key: str
    link_bandwidth: float
    link_count: int
    peers: int  # direct neighbours of one accelerator over which its links are spread; 1 behind a switch
    link_latency: float
    scale_up_topology: str
    network_bandwidth_per_gpu: float
    network_latency: float
    fabric: str
    topology: Topology
    network_basis: str  # why the network rate is what it is, for a reader who doubts it
    placement: str = "consecutive"  # of the domains of a job in the pods of the network, or "scattered"
    cards: float = 1.0  # network cards of one node
    hierarchical: bool = False  # collectives run inside domains and between them at once
    in_switch_reduction: bool = False  # the network's switches add up
    sides: Sides | None = None  # stated sides of the torus of chips or, where these are on none, of nodes

    @property
    def pod(self) -> float:
        """Scale-up domains below one full-bisection block, or on one set of rails."""
        shape = self.topology
        if shape.kind == "rail":  # card i of as many nodes as a leaf has ports down
            return max(1.0, (shape.radix or 2) / 2 * self.gpus_per_node / self.domain)
        ports = shape.pod_gpus or (shape.radix or 0) / 2
        if shape.kind == "dragonfly" and not shape.pod_gpus:  # a = 2p = 2h
            ports = ((shape.radix or 1) + 1) ** 2 / 8
        return max(1.0, ports / self.domain)

    @property
    def slice_sides(self) -> Sides:
        """Sides of the box of chips that the job has of one scale-up domain; one long line where that is no torus."""
        torus = _DIMENSIONS.get(self.scale_up_topology)
        if torus is None:
            return (1, 1, self.domain)
        sides = self.sides or usual_sides(_slice_chips(self.n_gpus, self.domain), torus)
        return (1,) * (3 - len(sides)) + sides

    @property
    def node_sides(self) -> tuple[float, float]:
        """The two shortest sides of a torus of nodes; as long as each other where none are stated."""
        dimensions = _DIMENSIONS.get(self.topology.kind, 2)
        if self.sides is not None and self.scale_up_topology not in _DIMENSIONS:
            return float(self.sides[0]), float(self.sides[1])
        side = max(1.0, self.n_gpus / self.domain) ** (1 / dimensions)
        return side, side

    @property
    def peer_bandwidth(self) -> float:
        """B/s between two neighbours, one direction: all links behind a switch, a share of them in a mesh."""
        return self.link_bandwidth / self.peers

    @property
    def n_nodes(self) -> int:
        """Hosts that the accelerators occupy."""
        return -(-self.n_gpus // self.gpus_per_node)


def resolve_cluster(
    db: Database,
    gpu: str,
    n_gpus: int,
    gpus_per_node: int | None = None,
    inter_node_gbps_per_gpu: float | None = None,
    fabric: str | None = None,
    node: str | None = None,
    topology: str | None = None,
    oversubscription: float | None = None,
    placement: str | None = None,
    collective_library: str | None = None,
    in_switch_reduction: bool | None = None,
    nics_per_node: int | None = None,
    torus_sides: str | None = None,
    domain: int | None = None,
    gpu_memory_gib: float | None = None,
) -> Cluster:
    """The cluster that a question means.

    Network rate per GPU: a stated Gb/s wins; else the ports of the node, as many as `nics_per_node` states or as it
    has for the GPUs that are used of it, at the rate of the named fabric or its own. Ethernet of at most 40 Gb/s
    that is not the node's own is one port a node.
    A stated memory replaces the card's. Raises UsageError for what cannot be, with what can.
    """
    _positive("number of GPUs", n_gpus)
    if n_gpus > MOST_GPUS:
        raise UsageError(f"n_gpus is {n_gpus:,}, expected 1 to {MOST_GPUS:,}")
    if gpus_per_node is not None:
        _positive("gpus_per_node", gpus_per_node)
    device = db.device(gpu)
    if gpu_memory_gib is not None:
        # All else is the named card's: a question of memory alone needs no more.
        device = replace(device, usable_bytes=gpu_memory_gib * GIB, memory_bytes=gpu_memory_gib * 1e9)
    host = _host(db, device, node, gpus_per_node)
    per_node = gpus_per_node or host.gpus_per_node
    own = host.scale_up == device.link and device.link_bandwidth > 0
    usual, wiring, peers = _domain(host, per_node, own)
    domain = usual if domain is None else _stated_domain(domain, usual, host)
    scale_up = db.link(host.scale_up)
    link_bandwidth = host.scale_up_bandwidth or (device.link_bandwidth if own else scale_up.bandwidth)
    port = _network(db, fabric) if fabric else db.link(host.fabric)
    cards = _cards(host, port, per_node, nics_per_node, fabric)
    rate, basis = _network_rate(host, port, per_node, cards, inter_node_gbps_per_gpu, fabric)
    shape = _shape(db, topology or host.topology, oversubscription)
    return Cluster(
        device=device,
        n_gpus=int(n_gpus),
        node=host,
        gpus_per_node=per_node,
        domain=domain,
        link_key=scale_up.key,
        link_bandwidth=link_bandwidth,
        link_count=(device.link_count or 1) if own else 1,
        peers=peers,
        link_latency=scale_up.latency_s,
        scale_up_topology=wiring,
        network_bandwidth_per_gpu=rate,
        network_latency=port.latency_s + shape.max_hops * shape.switch_latency_s,
        fabric=port.key,
        topology=shape,
        network_basis=basis,
        placement=placement or "consecutive",
        cards=cards,
        hierarchical=(collective_library or ("hierarchical" if wiring in _DIMENSIONS else "nccl")) == "hierarchical",
        in_switch_reduction=bool(in_switch_reduction),
        sides=None if torus_sides is None else _stated_sides(torus_sides, int(n_gpus), domain, wiring, shape),
    )


def _slice_chips(n_gpus: int, domain: int) -> int:
    """Chips of a job in one domain: as many in each, where they divide."""
    domains = -(-n_gpus // domain)
    return n_gpus // domains if n_gpus % domains == 0 else min(domain, n_gpus)


def _stated_sides(text: str, n_gpus: int, domain: int, wiring: str, shape: Topology) -> Sides:
    if wiring in _DIMENSIONS:
        return torus_sides(text, _slice_chips(n_gpus, domain), _DIMENSIONS[wiring], "chips")
    if shape.kind in _DIMENSIONS:
        return torus_sides(text, -(-n_gpus // domain), _DIMENSIONS[shape.kind], "scale-up domains")
    raise UsageError(f"torus_sides is for a torus; this network is a {shape.key}, and --topology torus-3d is one")


def _stated_domain(stated: int, usual: int, host: Node) -> int:
    _positive("domain", stated)
    if stated > max(usual, host.domain):
        raise UsageError(
            f"domain={stated} is more than the {max(usual, host.domain)} accelerators that {host.key} joins; "
            f"use domain={max(usual, host.domain)}"
        )
    return int(stated)


def _shape(db: Database, topology: str, oversubscription: float | None) -> Topology:
    """The network's shape; a stated oversubscription replaces that of the file."""
    shape = db.topology(topology)
    if oversubscription is None:
        return shape
    if not 1 <= oversubscription <= 1000:  # also false for NaN
        raise UsageError(f"oversubscription is {oversubscription:g}, expected 1 (full bisection) to 1000")
    return replace(shape, oversubscription=float(oversubscription))


def _cards(host: Node, port: Link, per_node: int, stated: int | None, fabric: str | None) -> float:
    """Network cards that the used GPUs of a node have: a fact of the node, never of the link's name."""
    if stated is not None:
        _positive("nics_per_node", stated)
        return float(stated)
    if fabric and port.key != host.fabric and port.kind == "network" and port.bandwidth <= SERVER_PORT_MOST:
        return 1.0
    return float(max(1, -(-host.nic_count * min(per_node, host.gpus_per_node) // host.gpus_per_node)))


def _host(db: Database, device: Device, node: str | None, gpus_per_node: int | None) -> Node:
    """The named node, or the device's usual one; a larger host that was asked for may be another known node."""
    host = db.node(node or device.default_node)
    spans_hosts = host.domain > host.gpus_per_node
    if node is None and not spans_hosts and gpus_per_node is not None and gpus_per_node > host.gpus_per_node:
        larger = [n for n in db.nodes() if device.key in n.accelerators and n.gpus_per_node == gpus_per_node]
        host = larger[0] if larger else host
    if host.scale_up not in {device.link, device.pcie} and host.scale_up_topology not in {"pcie", "none"}:
        raise UsageError(
            f"node {host.key} joins its accelerators by {host.scale_up}, and {device.key} has "
            f"{device.link or 'no such link'}; its usual node is {device.default_node}"
        )
    return host


def _domain(host: Node, per_node: int, own_links: bool) -> tuple[int, str, int]:
    """Accelerators in one scale-up domain, its wiring, and the neighbours of each, with `per_node` on a host."""
    wiring = host.scale_up_topology
    if host.domain > host.gpus_per_node:  # a rack or pod: the domain spans hosts, whatever their size
        return host.domain, wiring, 2 * _DIMENSIONS.get(wiring, 0) or 1
    if wiring == "pcie":
        return per_node, wiring, 1
    if wiring == "none" and per_node > 1 and own_links:  # several superchips on a board are joined directly
        return per_node, "mesh", per_node - 1
    domain = min(host.domain, per_node)
    if wiring == "hybrid-cube-mesh":
        # A host of four wires two links to each of the others; of eight, double and single links to four of them.
        return (domain, "mesh", 3) if per_node <= 4 else (domain, wiring, 4)
    return domain, wiring, max(1, host.domain - 1) if wiring == "mesh" else 1


def _positive(what: str, value: float) -> None:
    if isinstance(value, bool) or value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise UsageError(f"{what} must be a whole number, not {value}")
    if not 1 <= value <= 10**9:
        raise UsageError(f"{what} must be between 1 and 1,000,000,000, not {value}")


def _network(db: Database, fabric: str) -> Link:
    try:
        link = db.link(fabric)
    except DataError:
        raise
    except UsageError:
        raise unknown("fabric", fabric, _fabrics(db)) from None
    if link.kind != "network":
        raise UsageError(f"{link.key} does not join nodes; fabrics: {', '.join(_fabrics(db))}")
    return link


def _fabrics(db: Database) -> list[str]:
    return [link.key for link in db.links() if link.kind == "network"]


def _network_rate(
    host: Node, port: Link, per_node: int, cards: float, stated: float | None, fabric: str | None
) -> tuple[float, str]:
    """Network rate of one GPU, and how it comes about."""
    if stated is not None:
        if not 0 < stated <= 1e6:  # also false for NaN
            raise UsageError(f"inter_node_gbps_per_gpu must be above 0 and at most 1,000,000 Gb/s, not {stated}")
        return stated * GIGABIT, "stated"
    own = not fabric or port.key == host.fabric
    each = host.nic_bandwidth if own else port.bandwidth
    if each <= 0:
        raise UsageError(f"{port.key} states no rate; state it by --inter-node-gbps")
    return cards * each / per_node, f"{cards:g} x {port.key} per {per_node}-GPU node {host.key}"
