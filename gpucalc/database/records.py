"""Accelerators, links, nodes and network topologies as records in SI.

Bandwidths are per direction unless the name says otherwise; peaks are dense unless it says sparse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucalc.core.errors import UsageError, unknown
from gpucalc.database.schema import CONFIDENCE, KINDS, fact, facts_of, group_of, record

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
# Formats whose blocks of values share a scale: they need hardware that applies the scales, not only a peak.
BLOCK_SCALED = ("mxfp8", "nvfp4", "mxfp4")
SCALE_UP_TOPOLOGIES = ("nvswitch", "mesh", "hybrid-cube-mesh", "pcie", "torus-2d", "torus-3d", "none")


@record("architectures")
@dataclass(frozen=True)
class Architecture:
    """A generation of accelerators: what all parts of it have in common."""

    key: str
    name: str = fact("name", "text", "the maker's name of the generation")
    vendor: str = fact("vendor", "text", "maker")
    year: int = fact("year", "int", "year of the first part")
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, str] = field(default_factory=dict)
    family: str = fact(
        "family",
        "text",
        "what its constants are looked up by where none are of this generation; empty: its own name",
        optional=True,
        default="",
    )
    block_scaled: tuple[str, ...] = fact(
        "block_scaled",
        "keys",
        "block-scaled formats that its matrix units multiply",
        optional=True,
        default=tuple,
        choices=BLOCK_SCALED,
    )
    weight_only: bool = fact(
        "weight_only",
        "flag",
        "serving engines have kernels that expand weights of few bits on the way",
        optional=True,
        default=False,
    )
    ray_tracing: bool = fact(
        "ray_tracing", "flag", "parts with graphics have ray-tracing cores", optional=True, default=False
    )
    one_connection: bool = fact(
        "one_connection",
        "flag",
        "kernels of communication start in time beside products only through one queue of work "
        "(CUDA_DEVICE_MAX_CONNECTIONS=1)",
        optional=True,
        default=False,
    )
    multiply_adds: Mapping[str, float] = fact(
        "multiply_adds.hbm",
        "counts",
        "fused multiply-adds of one compute unit in one clock by precision, parts with HBM",
        optional=True,
        default=dict,
    )
    multiply_adds_gddr: Mapping[str, float] = fact(
        "multiply_adds.gddr", "counts", "the same of the smaller dies with GDDR memory", optional=True, default=dict
    )

    @property
    def lookup(self) -> str:
        """The name that constants of software, power and calibration are found by."""
        return self.family or self.name


# What stands for a device that no database has read: nothing beyond its datasheet is known of its generation.
NO_ARCHITECTURE = Architecture("", "", "", 0)


@record("accelerators")
@dataclass(frozen=True)
class Device:
    """One accelerator as software sees it; datasheet facts only, no efficiencies."""

    key: str
    name: str = fact("name", "text", "the maker's name of the part")
    vendor: str = fact("vendor", "text", "maker")
    arch: str = fact("arch", "text", "its generation, key or name in architectures/")
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
    architecture: Architecture = NO_ARCHITECTURE

    @property
    def file(self) -> str:
        """The file that states these facts, relative to the database."""
        return f"accelerators/{self.key}.toml"

    def precisions(self) -> list[str]:
        """The job precisions that this device supports."""
        return [p for p in MATRIX_PEAK if self.supports(p)]

    def supports(self, precision: str) -> bool:
        """Whether matrix products of a job precision run on this device."""
        scaled = precision not in BLOCK_SCALED or precision in self.architecture.block_scaled
        return scaled and MATRIX_PEAK.get(precision) in self.peak

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
    untuned: float = fact(
        "untuned",
        "ratio",
        "share of it that is left where paths collide and nobody tuned",
        optional=True,
        default=1.0,
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
    wrap_side: int | None = fact(
        "wrap_side",
        "int",
        "sides of a torus of accelerators that are multiples of it are closed to rings",
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

    @property
    def is_tray(self) -> bool:
        """Whether its scale-up domain is a rack of several such nodes, joined by switches."""
        return self.domain > self.gpus_per_node and "torus" not in self.scale_up_topology


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
    global_taper: float = fact(
        "global_taper",
        "number",
        "bandwidth of a dragonfly group's global links over what its nodes inject; 1 is balanced (a = 2p = 2h)",
        optional=True,
        default=1.0,
    )
    pod_gpus: int | None = fact("pod_gpus", "int", "accelerators below one full-bisection block", optional=True)
    radix: int | None = fact("radix", "int", "ports per switch", optional=True)
    dimensions: int | None = fact("dimensions", "int", "dimensions of a torus", optional=True)
    notes: str = fact("notes", "text", "caveats", optional=True, default="")


def schema_table() -> str:
    """The fields of every kind of file as a Markdown table, generated from the schema."""

    spoken = {
        "peaks": "FLOP/s by precision",
        "ratio": "0–1",
        "keys": "list",
        "1/s": "Hz",
        "flag": "true/false",
        "counts": "number by precision",
    }
    lines = ["| folder | key | unit or kind | required | meaning |", "|---|---|---|---|---|"]
    for folder, cls in KINDS.items():
        for _, meta in facts_of(cls):
            kind = " · ".join(meta["choices"]) or spoken.get(meta["unit"], meta["unit"])
            need = "no" if meta["optional"] else "yes"
            lines.append(f"| {folder} | `{meta['path']}` | {kind} | {need} | {meta['doc']} |")
        groups = sorted({group_of(meta["path"]) for _, meta in facts_of(cls)} - {""})
        places = ", ".join(f"`{g}.source`" for g in groups) or "`source`"
        lines.append(f"| {folder} | {places} | text | yes | where the figures of the group come from |")
        places = ", ".join(f"`{g}.confidence`" for g in groups) or "`confidence`"
        lines.append(f"| {folder} | {places} | {' · '.join(CONFIDENCE)} | yes | how well the source supports them |")
    return "\n".join(lines) + "\n"
