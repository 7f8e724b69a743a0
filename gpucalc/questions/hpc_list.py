"""HPL and HPCG: what systems of a GPU family reach, by kind of network, as one value and the range of those systems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database.cluster import Cluster
from gpucalc.database.records import Device
from gpucalc.estimate.hpc import estimate_hpcg, estimate_hpl
from gpucalc.questions.hpc import device_peak

FEW = 3  # systems of a network class below which the range is that of the family
# Words of an interconnect or of a link of the database → class of network of the list.
CLASSES = (
    ("slingshot", r"slingshot|aries"),
    ("ethernet", r"eth|roce|efa|spectrum|tcpx|gaudi"),
    ("infiniband", r"infiniband|\bib\b|\bib-|omni-?path|\bopa|hdr|edr|ndr|mellanox"),
)


@dataclass(frozen=True)
class Share:
    """What systems reach: the median, least and most, of how many, and of which of them."""

    value: float
    low: float
    high: float
    systems: int
    of: str


def network_class(text: str) -> str:
    """The class of a network, "any" for one of none.

    >>> network_class("Slingshot-11"), network_class("ib-ndr"), network_class("Ethernet, 4x 200Gb/s"), network_class("")
    ('slingshot', 'infiniband', 'ethernet', 'any')
    """
    return next((name for name, words in CLASSES if re.search(words, text.casefold())), "any")


A100_SIZES = {"A100-40GB": 48e9, "A100-64GB": 72e9, "A100-80GB": math.inf}  # family → memory below which it is


def family(device: Device) -> str:
    """The family of a device in the list of HPL and HPCG results."""
    if device.key.startswith(("a100", "a800")):
        return next(name for name, most in A100_SIZES.items() if device.memory_bytes < most)
    return device.arch


def share_of(name: str, group: str, network: str, known: Mapping[str, Any]) -> Share:
    """The share of HPL, or the operations per byte of HPCG, of a family on a class of network.

    A family that the list lacks has the median of all systems, of none.
    """
    table = known["hpl"]["efficiency"] if name == "hpl" else known["hpcg"]["intensity"]
    of_family = table.get(group, table["other"])
    listed = group if group in table else "all families"
    others = table["other"] if name == "hpcg" else table["other"]["any"]
    if name == "hpcg":
        return _share(of_family, of_family, others, listed)
    if network in of_family:
        return _share(of_family[network], of_family["any"], others, f"{listed} on {network}")
    return _share(of_family["any"], of_family["any"], others, listed)


def _share(own: Mapping[str, Any], whole: Mapping[str, Any], others: Mapping[str, Any], of: str) -> Share:
    """The share with its range: of the family where the class is small, of all families where one system is all."""
    wide = own if int(own["systems"]) >= FEW else whole
    value, systems = float(own["value"]), int(own["systems"])
    if int(wide["systems"]) == 1:
        wide = {end: value * float(others[end]) / float(others["value"]) for end in ("low", "high")}
    return Share(value, min(value, float(wide["low"])), max(value, float(wide["high"])), systems, of)


def list_benchmark(
    name: str,
    device: Device,
    n_gpus: float,
    known: Mapping[str, Any],
    *,
    network: str = "any",
    host_bytes: float = 0.0,
    trace: bool = False,
) -> tuple[Ledger, Share]:
    """HPL or HPCG on a number of GPUs: matrix order, time and rate, and the systems that the rate rests on.

    `host_bytes`: the host's memory of each GPU, where HPL may run from it too.
    """
    share = share_of(name, family(device), network, known)
    values: dict[str, Any] = {
        "n_gpus": n_gpus,
        "kernel_peak": device_peak(device, "fp64", matrix=True),
        "memory_bandwidth": device.memory_bandwidth,
        "usable_bytes": device.usable_bytes,
        "memory_fill": known["hpl"]["memory_fill"],
    }
    if host_bytes and name == "hpl":
        values["host_bytes"] = host_bytes
    return rated(name, values, share, trace=trace), share


def rated(name: str, values: Mapping[str, Any], share: Share, *, trace: bool = False) -> Ledger:
    """The ledger of HPL or HPCG at a share."""
    named = {**values, "hpl_efficiency" if name == "hpl" else "hpcg_intensity": share.value}
    estimate = estimate_hpl if name == "hpl" else estimate_hpcg
    return estimate(Columns(named), trace=trace)


def host_bytes_of(cluster: Cluster) -> float:
    """Main memory of a node over its GPUs; 0 where the node states none."""
    return (cluster.node.host_memory_bytes or 0.0) / cluster.gpus_per_node
