"""Scientific codes on a cluster: names and sizes become columns, ledgers become rows of a curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import GIB, parse_quantity
from gpucalc.database import defaults, files
from gpucalc.database.cluster import Cluster
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.hpc import AXES, bound_of, estimate_fitted, estimate_kernel
from gpucalc.formulas import hpc

FILE = "hpc_kernels"
PRECISIONS = ("fp64", "fp32")
FP64_POOR = 1 / 8  # of the fp32 peak: below it double precision is emulated or an afterthought
STATED = "stated"  # the origin of a kernel of one's own
LIST_BENCHMARKS = ("hpl", "hpcg")
MOST_GPUS = 10**6


def constants(db: Database) -> dict[str, Any]:
    """The kernels and shares of the shipped file, then of a `defaults` folder of each user's database."""
    return defaults.merged(db, FILE)


@dataclass(frozen=True)
class Kernel:
    """A kernel in operations and bytes per unit of work."""

    name: str
    title: str
    unit: str
    precision: str
    flops: float
    bytes: float
    memory: float
    halo: float
    reductions: float
    overlap: float
    compute: float
    bandwidth: Mapping[str, float]
    origin: str
    added: bool = False  # arithmetic adds to the traffic instead of hiding behind it
    lattice: int = 3  # dimensions of the lattice that is cut
    depth: float = 1.0  # units at each of its points
    halo_rate: float = math.inf  # B/s that one GPU's halos reach at most
    exchange: float = 0.0  # bytes of a unit that all-to-all exchanges of a step move
    exchanges: float = 0.0
    low: Mapping[str, float] = field(default_factory=dict)  # rate over the predicted one, by maker
    high: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = field(default=())


def kernel_named(name: str, known: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Kernel:
    """A preset, or a kernel of one's own ("custom"), with stated properties in place of its own.

    `changes` may hold flops, bytes, memory, halo, reductions, overlap, precision.
    """
    stated = {n: v for n, v in (changes or {}).items() if v is not None}
    presets = known["kernel"]
    word = name.strip().casefold()
    if word == "custom":
        missing = [n for n in ("flops", "bytes") if n not in stated]
        if missing:
            raise UsageError(f"a kernel of your own needs {' and '.join('--' + n for n in missing)} per unit")
        base = {"title": "kernel as stated", "unit": "unit", "precision": "fp64", "origin": STATED, "compute": 0.6}
        base |= {"bandwidth": presets["stencil"]["bandwidth"], "memory": 0.0, "halo": 0.0}
    elif word in presets:
        base = presets[word]
    else:
        raise unknown("kernel", name, (*presets, *LIST_BENCHMARKS, *known["scaling"], "custom"))
    values = {"reductions": 0, "overlap": 0.0, **base, **stated}
    return Kernel(
        name=word,
        title=values["title"],
        unit=values["unit"],
        precision=values["precision"],
        flops=float(values["flops"]),
        bytes=float(values["bytes"]),
        memory=float(values["memory"]),
        halo=float(values["halo"]),
        reductions=float(values["reductions"]),
        overlap=float(values["overlap"]),
        compute=float(values["compute"]),
        bandwidth=values["bandwidth"],
        origin=values["origin"],
        added=bool(values.get("added", False)),
        lattice=int(values.get("lattice", 3)),
        depth=float(values.get("depth", 1.0)),
        halo_rate=parse_quantity(values["halo_rate"], "B/s") if "halo_rate" in values else math.inf,
        exchange=float(values.get("exchange", 0.0)),
        exchanges=float(values.get("exchanges", 0.0)),
        low=values.get("low", {}),
        high=values.get("high", {}),
    )


def device_peak(device: Device, precision: str, *, matrix: bool = False) -> float:
    """The peak of a kernel's arithmetic: vector units, or with `matrix` what HPL is counted against."""
    if precision not in PRECISIONS:
        raise unknown("precision of a kernel", precision, PRECISIONS)
    names = [precision]
    if matrix and device.vendor == "NVIDIA" and "fp64_tensor" in device.peak:
        names = ["fp64_tensor"]
    found = next((device.peak[n] for n in names if n in device.peak), None)
    if found is None:
        raise UsageError(
            f"{device.key} states no {precision} peak ({device.file}), so a {precision} kernel cannot be timed on it; "
            f"add {precision} to [peak.dense] in an overlay (--db)"
        )
    return found


def poor_in_fp64(device: Device) -> str:
    """A sentence where a device's double precision is no match for its single precision; empty otherwise."""
    double, single = device.peak.get("fp64"), device.peak.get("fp32")
    if double is None or single is None or double >= FP64_POOR * single:
        return ""
    return (
        f"{device.key} is poor in FP64: {double / 1e12:.3g} of {single / 1e12:.3g} TFLOP/s; "
        "its arithmetic may bind double-precision kernels"
    )


def grid(n: int, dimensions: int, lattice: int = 3) -> tuple[int, ...]:
    """Blocks along each dimension of a lattice that cut a cube for `n` GPUs with the least surface, in up to
    `dimensions` of them.

    >>> grid(8, 3), grid(8, 1), grid(12, 3), grid(2, 3), grid(16, 4, 4)
    ((2, 2, 2), (8, 1, 1), (3, 2, 2), (2, 1, 1), (2, 2, 2, 2))
    """
    best = min(_factors(n, dimensions, n), key=lambda parts: (sum(p for p in parts if p > 1), parts))
    return best + (1,) * (lattice - dimensions)


def _factors(n: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as a product of `count` numbers, none above the one before it."""
    if count == 1:
        if n <= most:
            yield (n,)
        return
    for first in _divisors(n):
        if first <= most and first**count >= n:
            yield from ((first, *rest) for rest in _factors(n // first, count - 1, first))


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def node_grid(parts: tuple[int, ...], domain: int) -> tuple[int, ...]:
    """How much of a block grid one scale-up domain holds, as a block with the least surface to the outside.

    >>> node_grid((4, 4, 4), 8), node_grid((8, 1, 1), 4), node_grid((3, 2, 2), 8), node_grid((2, 2, 2, 2), 4)
    ((2, 2, 2), (4, 1, 1), (3, 1, 2), (1, 1, 2, 2))
    """
    options = [o for o in itertools.product(*map(_divisors, parts)) if math.prod(o) <= domain]
    return min(options, key=lambda o: (sum(p / q for p, q in zip(parts, o, strict=True) if p > q), max(o), o))


def question(
    kernel: Kernel,
    cluster: Cluster,
    counts: Sequence[int],
    units: Sequence[float],
    known: Mapping[str, Any],
    *,
    dimensions: int | None = None,
    staged: bool = False,
) -> Columns:
    """The columns of a batch: one row for each number of GPUs, with the whole problem's size beside it.

    `dimensions`: those that are cut; all of the lattice without it. Raises UsageError where it has fewer.
    """
    device = cluster.device
    halo = known["halo"]
    cut = kernel.lattice if dimensions is None else dimensions
    if cut > kernel.lattice:
        raise UsageError(f"--dimensions {cut}: the lattice of {kernel.name} has {kernel.lattice}")
    parts = [grid(n, cut, kernel.lattice) for n in counts]
    inside = [node_grid(p, cluster.domain) for p in parts]
    maker = device.vendor.casefold()
    share = kernel.bandwidth.get(maker, kernel.bandwidth["other"])
    link = cluster.link_bandwidth
    packed = kernel.halo_rate  # what packing and copying of the code's own halos reach at most
    network = min(halo["network_share"] * cluster.network_bandwidth_per_gpu, packed)
    values: dict[str, Any] = {
        "units": np.asarray(units, dtype=float),
        "n_gpus": np.asarray(counts, dtype=float),
        "flops_per_unit": kernel.flops,
        "bytes_per_unit": kernel.bytes,
        "memory_per_unit": kernel.memory,
        "halo_bytes_per_unit": kernel.halo,
        "lattice": float(kernel.lattice),
        "depth": kernel.depth,
        "reductions": kernel.reductions,
        "overlap": kernel.overlap,
        "kernel_peak": device_peak(device, kernel.precision),
        "compute_efficiency": kernel.compute,
        "memory_bandwidth": device.memory_bandwidth,
        "bandwidth_efficiency": share,
        "usable_bytes": device.usable_bytes,
        # Halos through the host leave the links of the scale-up domain aside.
        "link_rate": min(link if staged else halo["link_share"] * link, packed),
        "network_rate": network,
        "staged": float(staged),
        "staged_share": halo["staged_share"],
        "host_bandwidth": device.host_bandwidth or link,
        "added": float(kernel.added),
        "exchange_bytes": kernel.exchange,
        "exchanges": kernel.exchanges,
        "domain": float(cluster.domain),
        "halo_latency": parse_quantity(halo["latency"], "s"),
        "reduction_latency": parse_quantity(halo["reduction_latency"], "s"),
    }
    for axis, name in enumerate(AXES[: kernel.lattice]):
        values[f"parts_{name}"] = np.array([float(p[axis]) for p in parts])
        values[f"node_parts_{name}"] = np.array([float(p[axis]) for p in inside])
    if len(counts) == 1:
        values = {n: float(v[0]) if isinstance(v, np.ndarray) else v for n, v in values.items()}
    return Columns(values)


def scaling_rows(
    kernel: Kernel,
    cluster: Cluster,
    counts: Sequence[int],
    units: Sequence[float],
    known: Mapping[str, Any],
    *,
    weak: bool,
    dimensions: int | None = None,
    staged: bool = False,
) -> list[dict[str, Any]]:
    """One row a number of GPUs; speed-up and efficiency against one GPU of the same problem, or of its share."""
    device = cluster.device
    alone = units[0] / counts[0] if weak else units[0]
    batch = question(kernel, cluster, [1, *counts], [alone, *units], known, dimensions=dimensions, staged=staged)
    ledger = estimate_kernel(batch)

    def column(path: str) -> Any:
        return np.broadcast_to(np.asarray(ledger[path], dtype=float), (len(counts) + 1,))

    step, n = column("time/step"), np.asarray(batch["n_gpus"])
    efficiency = hpc.weak_efficiency(step[0], step) if weak else hpc.strong_efficiency(step[0], step, n)
    shares = np.broadcast_to(np.asarray(efficiency), step.shape)
    rate, resident, halo = column("metric/rate"), column("memory/resident"), column("time/halo/exposed")
    return [
        {
            "gpu": device.key,
            "n_gpus": count,
            "units": units[place - 1],
            "step_time_s": float(step[place]),
            "rate_per_s": float(rate[place]),
            "speedup": float(shares[place] * count),
            "efficiency_pct": 100 * float(shares[place]),
            "halo_share_pct": 100 * float(halo[place] / step[place]),
            "memory_gib": float(resident[place]) / GIB,
            "bound": bound_of(ledger, place),
            "fit": "fits" if resident[place] <= device.usable_bytes else "oom",
        }
        for place, count in enumerate(counts, 1)
    ]


def fitted_time(entry: Mapping[str, Any], counts: Sequence[int], *, trace: bool = False) -> Ledger:
    """The ledger of a measured code of the shipped file at each number of GPUs."""
    n = np.asarray(counts, dtype=float) if len(counts) > 1 else float(counts[0])
    columns = {"n_gpus": n, **{p: float(entry[p]) for p in ("divided", "serial", "logarithmic")}}
    return estimate_fitted(Columns(columns), trace=trace)


def rate_range(kernel: Kernel, device: Device, rate: float) -> tuple[float, float]:
    """Least and most of a rate over what devices of a maker show; the rate itself for a kernel without such rows."""
    maker = device.vendor.casefold()
    low = kernel.low.get(maker, kernel.low.get("other", 1.0))
    high = kernel.high.get(maker, kernel.high.get("other", 1.0))
    return rate * min(low, 1.0), rate * max(high, 1.0)


def cpu_step_time(kernel: Kernel, name: str, units: float, nodes: float, known: Mapping[str, Any]) -> float:
    """Time of a step of a kernel on so many nodes of two processors that share the units evenly; all-to-all exchanges
    count, halos do not.

    Raises UsageError for a processor that the file does not have.
    """
    cpu, shares = _cpu(name, known), known["cpu_share"]
    values = {
        "local_units": units / nodes,
        "flops_per_unit": kernel.flops,
        "bytes_per_unit": kernel.bytes,
        "kernel_peak": float(cpu[kernel.precision]),
        "compute_efficiency": float(shares["compute"]),
        "memory_bandwidth": float(cpu["memory_bandwidth"]),
        "bandwidth_efficiency": float(shares.get(kernel.name, shares["bandwidth"])),
    }
    compute = hpc.kernel_compute_time(
        **{n: values[n] for n in ("local_units", "flops_per_unit", "kernel_peak", "compute_efficiency")}
    )
    memory = hpc.kernel_memory_time(
        **{n: values[n] for n in ("local_units", "bytes_per_unit", "memory_bandwidth", "bandwidth_efficiency")}
    )
    beyond = hpc.exchange_bytes_beyond(values["local_units"], kernel.exchange, nodes, 1.0)
    exchange = hpc.exchange_time(0.0, beyond, 1.0, float(shares["network_rate"]), kernel.exchanges, nodes, 0.0)
    return float(np.maximum(compute, memory) + exchange)


def cpu_rate(name: str, benchmark: str, nodes: float, known: Mapping[str, Any]) -> float:
    """HPL or HPCG of so many nodes of two processors, in FLOP/s."""
    cpu, shares = _cpu(name, known), known["cpu_share"]
    if benchmark == "hpl":
        return float(hpc.hpl_rate(float(cpu["fp64"]), nodes, float(shares["hpl"])))
    return float(hpc.hpcg_rate(float(cpu["memory_bandwidth"]), nodes, float(shares["hpcg"])))


def _cpu(name: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
    found = known["cpu"].get(name.strip().casefold())
    if found is None:
        raise unknown("processor", name, known["cpu"])
    table: Mapping[str, Any] = found
    return table


def check_counts(counts: Sequence[int]) -> None:
    """Refuse numbers of GPUs that no machine has."""
    wrong = [n for n in counts if not 1 <= n <= MOST_GPUS]
    if wrong:
        raise UsageError(f"a number of GPUs must lie between 1 and {MOST_GPUS:,}, not {wrong[0]:,}")


def shipped_rows() -> list[dict[str, str]]:
    """The published figures of scientific codes that ship with the package."""
    import csv
    import io

    path = files.shipped() / "measurements" / "cluster" / "hpc.csv"
    try:
        text = files.read_text(path, files.shipped())
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error}") from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))
