"""Scientific codes on a cluster: the one place that puts the formulas of `formulas/hpc.py` in order.

`question` turns names and sizes into columns, `estimate_kernel` columns into a ledger; a scaling curve is a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import parse_quantity
from gpucalc.database import catalog
from gpucalc.database.hardware import Cluster, Device
from gpucalc.formulas import hpc

FILE = "hpc_kernels.toml"
PRECISIONS = ("fp64", "fp32")
FP64_POOR = 1 / 8  # of the fp32 peak: below it double precision is emulated or an afterthought
LIST_BENCHMARKS = ("hpl", "hpcg")
NETWORK_SHARE = 0.9  # of the port's rate that a large message reaches
LINK_SHARE = 0.8
MOST_GPUS = 10**6


def constants(dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """The kernels and shares of the shipped file, then of a `defaults` folder of each user's database."""
    merged: dict[str, Any] = {}
    for root in (catalog.shipped(), *dirs):
        path = Path(root) / "defaults" / FILE
        if path.exists():
            for name, table in catalog.read_toml(path, Path(root)).items():
                known = merged.setdefault(name, {})
                known.update(table)
    return merged


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
        base = {"title": "kernel as stated", "unit": "unit", "precision": "fp64", "origin": "stated", "compute": 0.6}
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


def grid(n: int, dimensions: int) -> tuple[int, int, int]:
    """Blocks along x, y, z that cut a cube for `n` GPUs with the least surface, in up to `dimensions` of them.

    >>> grid(8, 3), grid(8, 1), grid(12, 3), grid(2, 3)
    ((2, 2, 2), (8, 1, 1), (3, 2, 2), (2, 1, 1))
    """
    best = (math.inf, (n, 1, 1))
    if dimensions == 1:
        return n, 1, 1
    for x in _divisors(n):
        rest = n // x
        for y in _divisors(rest) if dimensions == 3 else (rest,):
            parts = sorted((x, y, rest // y), reverse=True)
            surface = sum(p for p in parts if p > 1)
            best = min(best, (surface, (parts[0], parts[1], parts[2])))
    return best[1]


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def node_grid(parts: tuple[int, int, int], domain: int) -> tuple[int, int, int]:
    """How much of a block grid one scale-up domain holds, as a block with the least surface to the outside.

    >>> node_grid((4, 4, 4), 8), node_grid((8, 1, 1), 4), node_grid((3, 2, 2), 8)
    ((2, 2, 2), (4, 1, 1), (3, 1, 2))
    """
    options = [
        (x, y, z)
        for x in _divisors(parts[0])
        for y in _divisors(parts[1])
        for z in _divisors(parts[2])
        if x * y * z <= domain
    ]
    return min(options, key=lambda o: (sum(p / q for p, q in zip(parts, o, strict=True) if p > q), max(o), o))


def question(
    kernel: Kernel,
    cluster: Cluster,
    counts: Sequence[int],
    units: Sequence[float],
    known: Mapping[str, Any],
    *,
    dimensions: int = 3,
    staged: bool = False,
) -> Columns:
    """The columns of a batch: one row for each number of GPUs, with the whole problem's size beside it."""
    device = cluster.device
    halo = known["halo"]
    parts = [grid(n, dimensions) for n in counts]
    inside = [node_grid(p, cluster.domain) for p in parts]
    maker = device.vendor.casefold()
    share = kernel.bandwidth.get(maker, kernel.bandwidth["other"])
    staged_rate = parse_quantity(halo["staged"], "B/s")
    values: dict[str, Any] = {
        "units": np.asarray(units, dtype=float),
        "n_gpus": np.asarray(counts, dtype=float),
        "flops_per_unit": kernel.flops,
        "bytes_per_unit": kernel.bytes,
        "memory_per_unit": kernel.memory,
        "halo_bytes_per_unit": kernel.halo,
        "reductions": kernel.reductions,
        "overlap": kernel.overlap,
        "kernel_peak": device_peak(device, kernel.precision),
        "compute_efficiency": kernel.compute,
        "memory_bandwidth": device.memory_bandwidth,
        "bandwidth_efficiency": share,
        "usable_bytes": device.usable_bytes,
        "link_rate": min(staged_rate, cluster.link_bandwidth) if staged else LINK_SHARE * cluster.link_bandwidth,
        "network_rate": min(staged_rate if staged else math.inf, NETWORK_SHARE * cluster.network_bandwidth_per_gpu),
        "halo_latency": parse_quantity(halo["latency"], "s"),
        "reduction_latency": parse_quantity(halo["reduction_latency"], "s"),
    }
    for axis, name in enumerate("xyz"):
        values[f"parts_{name}"] = np.array([float(p[axis]) for p in parts])
        values[f"node_parts_{name}"] = np.array([float(p[axis]) for p in inside])
    if len(counts) == 1:
        values = {n: float(v[0]) if isinstance(v, np.ndarray) else v for n, v in values.items()}
    return Columns(values)


def estimate_kernel(columns: Columns, *, trace: bool = False) -> Ledger:
    """Time, rate and memory of one step of a kernel for each row."""
    ledger = Ledger(columns, trace=trace)
    c = ledger.columns
    ledger.define("local_units", hpc.units_per_gpu)
    ledger.add("time/compute", hpc.kernel_compute_time)
    ledger.add("time/memory", hpc.kernel_memory_time)
    ledger.maximum("time/kernel", "time/compute", "time/memory")
    for axis in "xyz":
        parts = c[f"parts_{axis}"]
        face = ledger.add(f"halo/face/{axis}", hpc.face_units, parts=parts)
        sent = ledger.add(f"halo/bytes/{axis}", hpc.halo_bytes, face=face, parts=parts)
        ledger.add(
            f"halo/beyond/{axis}",
            hpc.halo_bytes_beyond_node,
            halo=sent,
            parts=parts,
            node_parts=c[f"node_parts_{axis}"],
        )
    sent = ledger.total("halo/bytes", *[f"halo/bytes/{axis}" for axis in "xyz"])
    beyond = ledger.total("halo/beyond", *[f"halo/beyond/{axis}" for axis in "xyz"])
    messages = 2.0 * sum(np.greater(c[f"parts_{axis}"], 1) for axis in "xyz")
    rates = {"halo_latency": c["halo_latency"], "halo_messages": messages}
    ledger.add("halo/link", hpc.halo_time, halo=sent, halo_bandwidth=c["link_rate"], **rates)
    ledger.add(
        "halo/network",
        hpc.halo_time,
        halo=beyond,
        halo_bandwidth=c["network_rate"],
        halo_latency=c["halo_latency"],
        halo_messages=messages * np.greater(beyond, 0),
    )
    ledger.maximum("halo/time", "halo/link", "halo/network")
    ledger.add(
        "time/halo/exposed",
        hpc.exposed_halo,
        halo_exchange=ledger["halo/time"],
        interior=ledger["time/kernel"],
        overlap=c["overlap"],
    )
    ledger.add("time/reductions", hpc.reduction_time)
    ledger.total("time/step", "time/kernel", "time/halo/exposed", "time/reductions")
    ledger.add("metric/rate", hpc.update_rate, step_time=ledger["time/step"])
    ledger.add("metric/intensity", hpc.arithmetic_intensity)
    ledger.add("memory/resident", hpc.resident_memory)
    return ledger


def bound_of(ledger: Ledger, row: int = 0) -> str:
    """What a step spends most of its time on: compute, memory, halo or reductions."""
    paths = {
        "compute": "time/compute",
        "memory": "time/memory",
        "halo": "time/halo/exposed",
        "reductions": "time/reductions",
    }

    def at(path: str) -> float:
        values = np.ravel(ledger[path])
        return float(values[min(row, len(values) - 1)])

    return max(paths, key=lambda name: at(paths[name]))


def scaling_rows(
    kernel: Kernel,
    cluster: Cluster,
    counts: Sequence[int],
    units: Sequence[float],
    known: Mapping[str, Any],
    *,
    weak: bool,
    dimensions: int = 3,
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
            "memory_gib": float(resident[place]) / 2**30,
            "bound": bound_of(ledger, place),
            "fit": "fits" if resident[place] <= device.usable_bytes else "oom",
        }
        for place, count in enumerate(counts, 1)
    ]


def family(device: Device) -> str:
    """The family of a device in the list of HPL and HPCG results."""
    if device.key.startswith(("a100", "a800")):
        return "A100-40GB" if device.memory_bytes < 48e9 else "A100-80GB"
    return device.arch


def estimate_list_benchmark(
    name: str, device: Device, n_gpus: float, known: Mapping[str, Any], *, trace: bool = False
) -> Ledger:
    """HPL or HPCG on a number of GPUs: matrix order, time and rate."""
    shares = known["hpl"]["efficiency"] if name == "hpl" else known["hpcg"]["intensity"]
    share = shares.get(family(device), shares["other"])
    values: dict[str, Any] = {
        "n_gpus": n_gpus,
        "kernel_peak": device_peak(device, "fp64", matrix=True),
        "memory_bandwidth": device.memory_bandwidth,
        "usable_bytes": device.usable_bytes,
        "memory_fill": known["hpl"]["memory_fill"],
    }
    values["hpl_efficiency" if name == "hpl" else "hpcg_intensity"] = share
    ledger = Ledger(Columns(values), trace=trace)
    if name == "hpcg":
        ledger.add("metric/rate", hpc.hpcg_rate)
        return ledger
    order = ledger.add("hpl/order", hpc.hpl_order)
    rate = ledger.add("metric/rate", hpc.hpl_rate)
    ledger.add("time/run", hpc.hpl_time, order=order, hpl=rate)
    return ledger


def fitted_time(entry: Mapping[str, Any], counts: Sequence[int], *, trace: bool = False) -> Ledger:
    """Seconds per unit of simulated time of a code whose scaling was measured."""
    n = np.asarray(counts, dtype=float) if len(counts) > 1 else float(counts[0])
    columns = {"n_gpus": n, **{p: float(entry[p]) for p in ("divided", "serial", "logarithmic")}}
    ledger = Ledger(Columns(columns), trace=trace)
    ledger.add("time/step", hpc.fitted_strong_time)
    return ledger


def half_efficiency(times: Any, counts: Sequence[int]) -> int | None:
    """The largest number of GPUs of an ascending curve from one GPU at which half of the speed-up is left.

    >>> half_efficiency([8.0, 5.0, 3.9, 3.5], [1, 2, 4, 8])
    4
    >>> half_efficiency([8.0, 4.0, 2.0], [1, 2, 4]) is None
    True
    """
    n = np.asarray(counts, dtype=float)
    efficiency = np.asarray(times)[0] * n[0] / (n * np.asarray(times))
    below = np.flatnonzero(efficiency < 0.5)
    return None if not len(below) else int(counts[max(0, int(below[0]) - 1)])


def check_counts(counts: Sequence[int]) -> None:
    """Refuse numbers of GPUs that no machine has."""
    wrong = [n for n in counts if not 1 <= n <= MOST_GPUS]
    if wrong:
        raise UsageError(f"a number of GPUs must lie between 1 and {MOST_GPUS:,}, not {wrong[0]:,}")


def shipped_rows() -> list[dict[str, str]]:
    """The published figures of scientific codes that ship with the package."""
    import csv
    import io

    path = catalog.shipped() / "measurements" / "cluster" / "hpc.csv"
    try:
        text = catalog.read_text(path, catalog.shipped())
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error}") from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))
