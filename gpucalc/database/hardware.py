"""Accelerators, links, nodes and fabrics of the database as SI records, and the cluster that a job runs on.

Bandwidths are per direction unless the name says otherwise; peaks are dense unless it says sparse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.database import catalog
from gpucalc.database.catalog import fact, record

R = TypeVar("R")

# The precision of a job → the peak that its matrix products run at.
MATRIX_PEAK = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "bf16-true": "bf16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}
# Block-scaled formats need hardware that applies the scales: a peak for the element type is not enough.
_BLOCK_SCALED = {
    "mxfp8": {"Blackwell", "Blackwell Ultra", "CDNA4"},
    "nvfp4": {"Blackwell", "Blackwell Ultra"},
    "mxfp4": {"Blackwell", "Blackwell Ultra", "CDNA4"},
}
_MAKER = re.compile("^(nvidia|amd|intel|google)?(tesla|instinct|geforce)?")  # what people put before a name
SCALE_UP_TOPOLOGIES = ("nvswitch", "mesh", "hybrid-cube-mesh", "pcie", "torus-2d", "torus-3d", "none")


@record("accelerators")
@dataclass(frozen=True)
class Device:
    """One accelerator as software sees it; datasheet facts only, no efficiencies."""

    key: str
    name: str = fact("name", "text", "the maker's name of the part")
    vendor: str = fact("vendor", "text", "maker")
    arch: str = fact("arch", "text", "architecture generation, such as Hopper or CDNA3")
    year: int = fact("year", "int", "year of introduction")
    form_factor: str = fact("form_factor", "text", "SXM5, PCIe, OAM ...")
    default_node: str = fact("default_node", "text", "key of the node that a question without a node means")
    peak: Mapping[str, float] = fact(
        "peak.dense", "peaks", "dense peak by precision (16 bit: fp32 accumulation); absent = not supported"
    )
    memory_bytes: float = fact("memory.label", "B", "memory as the vendor prints it")
    usable_bytes: float = fact("memory.usable", "B", "memory in total as the driver reports it")
    memory_bandwidth: float = fact("memory.bandwidth", "B/s", "device memory bandwidth, vendor figure")
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, str] = field(default_factory=dict)
    sparse_peak: Mapping[str, float] = fact(
        "peak.sparse", "peaks", "peak with 2:4 sparsity; never used for training", optional=True, default=dict
    )
    compute_units: int | None = fact(
        "compute.units", "int", "streaming multiprocessors or compute units", optional=True
    )
    clock_hz: float | None = fact("compute.clock", "1/s", "boost clock that the peaks are quoted at", optional=True)
    memory_type: str = fact("memory.type", "text", "HBM3, GDDR6 ...", optional=True, default="")
    usable_basis: str = fact(
        "memory.usable_basis",
        "text",
        "reported: seen in driver listings; derived: from a sibling part or the label; unverified: from memory",
        optional=True,
        default="derived",
        choices=("reported", "derived", "unverified"),
    )
    l2_bytes: float | None = fact("memory.l2", "B", "last cache that all units share on the die", optional=True)
    tdp_watts: float | None = fact("power.tdp", "W", "board power limit", optional=True)
    link: str = fact("link.key", "text", "scale-up link between accelerators, key in links/", optional=True, default="")
    link_count: int | None = fact("link.count", "int", "links per accelerator", optional=True)
    link_bandwidth: float = fact(
        "link.per_direction", "B/s", "all links of one accelerator together, one direction", optional=True, default=0.0
    )
    link_bidirectional: float = fact(
        "link.bidirectional",
        "B/s",
        "the same in both directions together, as vendors print it",
        optional=True,
        default=0.0,
    )
    pcie: str = fact(
        "host.key", "text", "link to the host (PCIe or NVLink-C2C), key in links/", optional=True, default=""
    )
    host_bandwidth: float = fact(
        "host.per_direction", "B/s", "rate to the host, one direction", optional=True, default=0.0
    )
    notes: str = fact("notes", "text", "what to know before trusting a figure", optional=True, default="")

    @property
    def file(self) -> str:
        """The file that states these facts, relative to the database."""
        return f"accelerators/{self.key}.toml"

    def precisions(self) -> list[str]:
        """The job precisions that this device supports."""
        return [p for p in MATRIX_PEAK if self.supports(p)]

    def supports(self, precision: str) -> bool:
        """Whether matrix products of a job precision run on this device."""
        archs = _BLOCK_SCALED.get(precision)
        return MATRIX_PEAK.get(precision) in self.peak and (archs is None or self.arch in archs)

    def precision_peak(self, precision: str) -> float:
        """Dense FLOP/s of the matrix products of a job in `precision`."""
        if precision not in MATRIX_PEAK:
            raise unknown("precision", precision, MATRIX_PEAK)
        if not self.supports(precision):
            can = ", ".join(self.precisions())
            raise UsageError(
                f"{self.key} does not support {precision} ({self.file} states no such peak); it supports {can}"
            )
        return self.peak[MATRIX_PEAK[precision]]

    @property
    def default_precision(self) -> str:
        """bf16, or fp16 (then fp32) where the device has none."""
        return next((p for p in ("bf16", "fp16", "fp32") if self.supports(p)), "bf16")


@record("links")
@dataclass(frozen=True)
class Link:
    """One link, lane bundle or network port."""

    key: str
    name: str = fact("name", "text", "name and generation")
    kind: str = fact("kind", "text", "what it joins", choices=("scale-up", "host", "network"))
    bandwidth: float = fact("per_direction", "B/s", "data rate of one link or port, one direction")
    latency_s: float = fact("latency", "s", "one small message over one hop; collectives add software per step")
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, str] = field(default_factory=dict)
    achievable_fraction: float = fact(
        "achievable", "ratio", "share of the rate that isolated large transfers reach", optional=True, default=0.8
    )
    achievable_of: str = fact(
        "achievable_of", "text", "what that share was observed on", optional=True, default="assumed"
    )
    notes: str = fact("notes", "text", "encoding, basis, caveats", optional=True, default="")


@record("nodes")
@dataclass(frozen=True)
class Node:
    """A server, cloud instance or rack tray: what shares a host, and what shares a scale-up domain."""

    key: str
    name: str = fact("name", "text", "name of the server or instance")
    gpus_per_node: int = fact("gpus_per_node", "int", "accelerators per host (a GPU tray of an NVL72 rack holds 4)")
    domain: int = fact("domain", "int", "accelerators in one scale-up domain (72 in an NVL72 rack)")
    scale_up: str = fact("scale_up", "text", "link inside the domain, key in links/")
    scale_up_topology: str = fact("scale_up_topology", "text", "how the domain is wired", choices=SCALE_UP_TOPOLOGIES)
    accelerators: tuple[str, ...] = fact("accelerators", "keys", "devices it is sold with, keys in accelerators/")
    fabric: str = fact("fabric", "text", "network port, key in links/")
    nic_bandwidth: float = fact("nic_rate", "B/s", "rate of one compute network port, one direction")
    nic_count: int = fact("nics", "int", "compute network ports per node (not the storage or front-end ones)")
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, str] = field(default_factory=dict)
    scale_up_bandwidth: float | None = fact(
        "scale_up_rate",
        "B/s",
        "per accelerator, one direction, where the node wires fewer links than the device has",
        optional=True,
    )
    topology: str = fact(
        "topology", "text", "usual network between nodes, key in topologies/", optional=True, default="fat-tree"
    )
    host_memory_bytes: float | None = fact("host_memory", "B", "main memory of the node", optional=True)
    local_storage_bytes: float | None = fact("local_storage", "B", "local NVMe of the node", optional=True)
    host_cpu: str = fact("host_cpu", "text", "processors", optional=True, default="")
    power_watts: float | None = fact("power", "W", "maximum power of the node (of one tray in a rack)", optional=True)
    notes: str = fact("notes", "text", "caveats", optional=True, default="")

    @property
    def network_bandwidth_per_gpu(self) -> float:
        """B/s per accelerator, one direction."""
        return self.nic_count * self.nic_bandwidth / self.gpus_per_node


@record("topologies")
@dataclass(frozen=True)
class Topology:
    """A network between nodes in the parameters that a closed form needs."""

    key: str
    name: str = fact("name", "text", "name")
    kind: str = fact("kind", "text", "family", choices=("fat-tree", "rail", "dragonfly", "torus-2d", "torus-3d"))
    switch_latency_s: float = fact("switch_latency", "s", "delay of one switch hop")
    max_hops: int = fact(
        "max_hops", "int", "switches on the longest minimal path (torus: per dimension set by the size)"
    )
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, str] = field(default_factory=dict)
    oversubscription: float = fact(
        "oversubscription",
        "number",
        "edge bandwidth over core bandwidth above a pod; 1 = full bisection",
        optional=True,
        default=1.0,
    )
    pod_gpus: int | None = fact("pod_gpus", "int", "accelerators below one full-bisection block", optional=True)
    radix: int | None = fact("radix", "int", "ports per switch", optional=True)
    dimensions: int | None = fact("dimensions", "int", "dimensions of a torus", optional=True)
    notes: str = fact("notes", "text", "caveats", optional=True, default="")


class Database:
    """The hardware database: the shipped one, GPUCALC_DB, then `dirs`, later ones winning file by file.

    Looking up one key opens one file.
    """

    def __init__(self, dirs: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Resolve the folders; no file is opened yet."""
        self.dirs: tuple[Path, ...] = catalog.database_dirs(dirs)
        self._files: dict[str, dict[str, tuple[Path, Path]]] = {}
        self._records: dict[tuple[str, str], Any] = {}
        self._aliases: dict[str, str] | None = None

    def _listing(self, folder: str) -> dict[str, tuple[Path, Path]]:
        if folder not in self._files:
            self._files[folder] = catalog.list_files(self.dirs, folder)
        return self._files[folder]

    def _load(self, cls: type[R], folder: str, key: str) -> R:
        if (folder, key) not in self._records:
            self._records[folder, key] = catalog.load(cls, key, *self._listing(folder)[key])
        found: R = self._records[folder, key]
        return found

    def _named(self, cls: type[R], folder: str, kind: str, name: str) -> R:
        files = self._listing(folder)
        wanted = catalog.fold(name)
        key = name if name in files else next((k for k in files if catalog.fold(k) == wanted), None)
        if key is None:
            raise unknown(kind, name, files)
        return self._load(cls, folder, key)

    def device_key(self, name: str) -> str:
        """The key that a spelling of an accelerator stands for."""
        files = self._listing("accelerators")
        if name in files:
            return name
        if self._aliases is None:
            self._aliases = catalog.aliases(self.dirs)
        folded = {catalog.fold(key): key for key in files}
        wanted = catalog.fold(name)
        bare = _MAKER.sub("", wanted)
        for spelling in (wanted, bare):
            key = folded.get(spelling) or self._aliases.get(spelling)
            if key in files:
                return str(key)
        raise unknown("GPU", name, files, "`gpucalc hw list` shows all")

    def device(self, name: str) -> Device:
        """The accelerator of a key or alias; case and punctuation do not matter."""
        return self._load(Device, "accelerators", self.device_key(name))

    def node(self, name: str) -> Node:
        """The node of a key."""
        return self._named(Node, "nodes", "node", name)

    def link(self, name: str) -> Link:
        """The link of a key."""
        return self._named(Link, "links", "link", name)

    def topology(self, name: str) -> Topology:
        """The network topology of a key."""
        return self._named(Topology, "topologies", "topology", name)

    def devices(self) -> list[Device]:
        """All accelerators, sorted by key."""
        return [self._load(Device, "accelerators", key) for key in sorted(self._listing("accelerators"))]

    def nodes(self) -> list[Node]:
        """All nodes, sorted by key."""
        return [self._load(Node, "nodes", key) for key in sorted(self._listing("nodes"))]

    def links(self) -> list[Link]:
        """All links, sorted by key."""
        return [self._load(Link, "links", key) for key in sorted(self._listing("links"))]

    def topologies(self) -> list[Topology]:
        """All topologies, sorted by key."""
        return [self._load(Topology, "topologies", key) for key in sorted(self._listing("topologies"))]


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


def cross_check(
    records: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, set[str]],
    everything: Sequence[Path],
    roots: Sequence[Path],
) -> list[str]:
    """Problems between files, and figures that contradict each other inside one; `records` is by file label."""
    problems: list[str] = []

    def must_exist(label: str, path: str, key: str, folder: str) -> None:
        if key and key not in known[folder]:
            problems.append(f"{label}: {path}: {unknown(folder.rstrip('s'), key, known[folder])}")

    for label, device in records.get("accelerators", {}).items():
        must_exist(label, "default_node", device.default_node, "nodes")
        must_exist(label, "link.key", device.link, "links")
        must_exist(label, "host.key", device.pcie, "links")
        for precision in device.sparse_peak:
            if precision not in device.peak:
                problems.append(f"{label}: peak.sparse.{precision}: has no dense peak beside it")
            elif device.sparse_peak[precision] < device.peak[precision]:
                problems.append(f"{label}: peak.sparse.{precision}: below the dense peak; are the two swapped?")
        both = device.link_bidirectional
        if both and abs(both - 2 * device.link_bandwidth) > 0.01 * both:
            problems.append(f"{label}: link.bidirectional: is not twice link.per_direction")
        if not 0.85 <= device.usable_bytes / device.memory_bytes <= 1.1:
            problems.append(
                f"{label}: memory.usable: {device.usable_bytes:.4g} B is far from the label {device.memory_bytes:.4g} B"
            )
    for label, host in records.get("nodes", {}).items():
        must_exist(label, "scale_up", host.scale_up, "links")
        must_exist(label, "fabric", host.fabric, "links")
        must_exist(label, "topology", host.topology, "topologies")
        for key in host.accelerators:
            must_exist(label, "accelerators", key, "accelerators")
        if host.domain < host.gpus_per_node and host.scale_up_topology != "none":
            problems.append(f"{label}: domain: smaller than gpus_per_node")
    for root in roots:
        if os.path.lexists(root / "aliases.csv"):
            try:
                table = catalog.aliases([root])
            except UsageError:
                continue  # told already by the reader of that file
            for spelling, key in table.items():
                if key not in known["accelerators"]:
                    problems.append(
                        f"aliases.csv: {spelling}: names the accelerator {key!r}, which is in no database folder"
                    )
    return problems
