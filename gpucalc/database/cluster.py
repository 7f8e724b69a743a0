"""The cluster that a job runs on: a number of accelerators, their domain and the rates between them."""

from __future__ import annotations

from dataclasses import dataclass

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.database.reader import Database
from gpucalc.database.records import Device, Link, Node, Topology


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
) -> Cluster:
    """The cluster that a question means.

    Network rate per GPU: a stated Gb/s wins; else the named fabric, as one port per GPU, or as many as the
    node has where it is the node's own; else the node's default.
    """
    _positive("number of GPUs", n_gpus)
    if gpus_per_node is not None:
        _positive("gpus_per_node", gpus_per_node)
    device = db.device(gpu)
    host = _host(db, device, node, gpus_per_node)
    per_node = gpus_per_node or host.gpus_per_node
    own = host.scale_up == device.link and device.link_bandwidth > 0
    domain, wiring, peers = _domain(host, per_node, own)
    scale_up = db.link(host.scale_up)
    link_bandwidth = host.scale_up_bandwidth or (device.link_bandwidth if own else scale_up.bandwidth)
    port = _network(db, fabric) if fabric else db.link(host.fabric)
    rate, basis = _network_rate(host, port, inter_node_gbps_per_gpu, fabric)
    shape = db.topology(topology or host.topology)
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
    )


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
        return host.domain, wiring, {"torus-2d": 4, "torus-3d": 6}.get(wiring, 1)
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


def _network_rate(host: Node, port: Link, stated: float | None, fabric: str | None) -> tuple[float, str]:
    if stated is not None:
        if not 0 < stated <= 1e6:  # also false for NaN
            raise UsageError(f"inter_node_gbps_per_gpu must be above 0 and at most 1,000,000 Gb/s, not {stated}")
        return stated * 1e9 / 8, "stated"
    if fabric and port.key != host.fabric:
        return port.bandwidth, f"one {port.key} port per GPU"
    rate = host.network_bandwidth_per_gpu
    return rate, f"{host.nic_count} x {host.fabric} per {host.gpus_per_node}-GPU node {host.key}"
