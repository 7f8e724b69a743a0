"""Answers about scientific codes as rows, terms and notes: kernels, benchmarks of the TOP500 list, measured codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import InfeasibleError, UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.core.units import GIB
from gpucalc.database.cluster import Cluster
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.hpc import bound_of, estimate_kernel, half_efficiency
from gpucalc.questions import hpc as codes
from gpucalc.questions import hpc_list as listed
from gpucalc.questions.explain import ledger_tree
from gpucalc.questions.hpc import Kernel
from gpucalc.questions.hpc_list import Share

FILL = 0.9  # of the device memory, where no size is stated
DAY = 86400.0
ROWS = (
    *("gpu", "n_gpus", "units", "step_time_s", "rate_per_s", "speedup", "efficiency_pct", "halo_share_pct"),
    *("memory_gib", "bound", "fit"),
)
ROOTS = ("time/step", "time/run", "metric/rate", "memory/resident")
CURVE = tuple(sorted([*(2**k for k in range(18)), *(3 * 2**k for k in range(16))]))


@dataclass
class Answer:
    """One row for each number of GPUs; with one number also its terms."""

    columns: Sequence[str]
    rows: list[dict[str, Any]]
    terms: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Processors:
    """Nodes of two processors of a kind, with which GPUs are compared."""

    name: str
    nodes: int

    def said(self, known: Mapping[str, Any]) -> str:
        """What the comparison holds."""
        entry = known["cpu"][self.name.strip().casefold()]
        return (
            f"compared with {self.nodes:,} x {entry['title']}, all-to-all exchanges counted, halos not "
            f"({entry['origin']}; {known['cpu_share']['origin']})"
        )


def whole_problem(
    units: float | None, per_gpu: float | None, counts: Sequence[int], kernel: Kernel, device: Device
) -> list[float]:
    """The whole problem at each number of GPUs; without a size what fills the fewest of them.

    Raises UsageError where the size is stated twice or nowhere, InfeasibleError where no number of GPUs holds it.
    """
    if units is not None and per_gpu is not None:
        raise UsageError("--units and --units-per-gpu contradict each other")
    if units is not None:
        total = [units] * len(counts)
    elif per_gpu is not None:
        total = [per_gpu * n for n in counts]
    elif not kernel.memory:
        told = f" in {kernel.unit}s" if kernel.unit != "unit" else ""
        raise UsageError(f"how large is the problem? write --units or --units-per-gpu{told}")
    else:
        total = [float(int(FILL * device.usable_bytes / kernel.memory) * min(counts))] * len(counts)
    _must_fit(kernel, device, total, counts)
    return total


def _must_fit(kernel: Kernel, device: Device, total: Sequence[float], counts: Sequence[int]) -> None:
    needed = [units * kernel.memory / n for units, n in zip(total, counts, strict=True)]
    if min(needed) > device.usable_bytes:
        least = -(-min(total) * kernel.memory // device.usable_bytes)
        raise InfeasibleError(
            f"{min(total):.3g} {kernel.unit}s hold {min(needed) / GIB:,.1f} GiB a GPU, more than the "
            f"{device.usable_bytes / GIB:.1f} GiB of {device.key}"
            + (f"; {int(least):,} GPUs would hold them" if least > max(counts) else "")
        )


def kernel_answer(
    kernel: Kernel,
    cluster: Cluster,
    counts: Sequence[int],
    known: Mapping[str, Any],
    db: Database,
    *,
    units: float | None = None,
    per_gpu: float | None = None,
    dimensions: int | None = None,
    staged: bool = False,
    cpu: Processors | None = None,
) -> Answer:
    """A kernel on each number of GPUs; `units` of the whole problem or `per_gpu`."""
    device = cluster.device
    total = whole_problem(units, per_gpu, counts, kernel, device)
    options: dict[str, Any] = {"dimensions": dimensions, "staged": staged}
    notes = [codes.poor_in_fp64(device)] if kernel.precision == "fp64" else []

    def on_processors(size: float) -> float | None:
        return None if cpu is None else codes.cpu_step_time(kernel, cpu.name, size, float(cpu.nodes), known)

    if len(counts) == 1:
        ledger = estimate_kernel(codes.question(kernel, cluster, counts, total, known, **options), trace=True)
        row = _kernel_row(kernel, device, counts[0], total[0], ledger)
        rows, terms, columns = [row], ledger_tree(ledger, db, ROOTS), list(row)
    else:
        rows = codes.scaling_rows(kernel, cluster, counts, total, known, weak=per_gpu is not None, **options)
        terms, columns = [], list(ROWS)
    if cpu is not None:
        for row, size in zip(rows, total, strict=True):
            found = on_processors(size)
            if found is not None:
                row |= {"cpu_time_s": found, "cpu_speedup": found / row["step_time_s"]}
        columns += ["cpu_time_s", "cpu_speedup"]
        notes.append(cpu.said(known))
    if per_gpu is None and kernel.halo > 0:
        notes.insert(0, _half(kernel, cluster, total[0], known, options))
    if per_gpu is None and units is None and len(counts) > 1:
        notes.append(
            f"the problem fills {min(counts):,} GPUs and is split over more; --units-per-gpu fills each, as the "
            "tables of FluidX3D do"
        )
    if kernel.origin != codes.STATED:
        notes.append(f"{kernel.title}: {kernel.origin}")
    return Answer(columns, rows, terms, [line for line in notes if line])


def _half(kernel: Kernel, cluster: Cluster, units: float, known: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    batch = codes.question(kernel, cluster, list(CURVE), [units] * len(CURVE), known, **options)
    found = half_efficiency(estimate_kernel(batch)["time/step"], list(CURVE))
    if found is None:
        return f"half of the efficiency is left beyond {max(CURVE):,} GPUs"
    return f"a problem of {units:.3g} {kernel.unit}s keeps half of its efficiency up to about {found:,} GPUs"


def _kernel_row(kernel: Kernel, device: Device, n: int, units: float, ledger: Ledger) -> dict[str, Any]:
    def at(path: str) -> float:
        return float(ledger[path])

    low, high = codes.rate_range(kernel, device, at("metric/rate"))
    return {
        "kernel": kernel.name,
        "gpu": device.key,
        "n_gpus": n,
        "precision": kernel.precision,
        f"units_{kernel.unit.replace('-', '_')}": units,
        "step_time_s": at("time/step"),
        "rate_per_s": at("metric/rate"),
        **({"rate_low_per_s": low, "rate_high_per_s": high} if low < high else {}),
        "tflops": at("metric/rate") * kernel.flops / 1e12,
        "intensity_flop_per_byte": at("metric/intensity"),
        "peak_tflops": codes.device_peak(device, kernel.precision) / 1e12,
        "memory_gib": at("memory/resident") / GIB,
        "bound": bound_of(ledger),
    }


def list_answer(
    name: str,
    cluster: Cluster,
    counts: Sequence[int],
    known: Mapping[str, Any],
    db: Database,
    cpu: Processors | None = None,
) -> Answer:
    """HPL or HPCG on each number of GPUs, with the range that systems of the device show."""
    device, network = cluster.device, listed.network_class(cluster.fabric)
    rows, terms = [], []
    for n in counts:
        ledger, share = listed.list_benchmark(
            name, device, float(n), known, network=network, host_bytes=listed.host_bytes_of(cluster), trace=True
        )
        rows.append(_list_row(name, device, n, ledger, share))
        if cpu is not None:
            rows[-1]["cpu_speedup"] = rows[-1]["tflops"] * 1e12 / codes.cpu_rate(cpu.name, name, cpu.nodes, known)
        terms = ledger_tree(ledger, db, ROOTS)
    notes = [codes.poor_in_fp64(device), _basis(name, device, share)]
    if name == "hpl" and "hpl/order/both" in ledger:
        notes.append("order and time: of the device memory, and high where the host's memory is filled too")
    if cpu is not None:
        notes.append(cpu.said(known))
    notes.append(f"{known[name]['title']}: {known[name]['origin']}")
    return Answer(list(rows[0]), rows, terms if len(rows) == 1 else [], [line for line in notes if line])


def _basis(name: str, device: Device, share: Share) -> str:
    if share.systems:
        return (
            f"share {share.value:g} of {share.systems} systems of {share.of}; its systems span {share.low:g} to "
            f"{share.high:g}"
        )
    return (
        f"the rows that ship hold no system of {device.arch} with {name.upper()}; {share.value:g} is taken for "
        f"{share.of} ({share.low:g} to {share.high:g})"
    )


def _list_row(name: str, device: Device, n: int, ledger: Ledger, share: Share) -> dict[str, Any]:
    """One number of GPUs: rate with its range, and of HPL the order and the time."""
    rate = float(ledger["metric/rate"]) / 1e12
    row = {
        "kernel": name,
        "gpu": device.key,
        "n_gpus": n,
        "tflops": rate,
        "tflops_low": rate * share.low / share.value,
        "tflops_high": rate * share.high / share.value,
        "tflops_per_gpu": rate / n,
    }
    if name == "hpl":
        order, time = ("hpl/order/both", "time/run/both") if "time/run/both" in ledger else ("hpl/order", "time/run")
        row |= {
            "order": float(ledger["hpl/order"]),
            "order_high": float(ledger[order]),
            "run_time_s": float(ledger["time/run"]),
            "run_time_high_s": float(ledger[time]),
        }
    return row


def measured_answer(entry: Mapping[str, Any], name: str, counts: Sequence[int]) -> Answer:
    """A measured code on other numbers of GPUs, by the curve through its own runs."""
    powers = [n for n in CURVE if n & (n - 1) == 0 and entry["first"] <= n <= 4 * entry["last"]]
    chosen = list(counts) or powers
    times = np.atleast_1d(codes.fitted_time(entry, [1, *chosen])["time/step"])
    rows = [
        {
            "code": name,
            "gpu": entry["gpu"],
            "n_gpus": n,
            "time_s": float(t),
            "per": entry["per"],
            "rate_per_day": DAY / float(t),
            "speedup": float(times[0] / t),
            "efficiency_pct": float(100 * times[0] / t / n),
            "basis": "measured range" if entry["first"] <= n <= entry["last"] else "extrapolated",
        }
        for n, t in zip(chosen, times[1:], strict=True)
    ]
    found = half_efficiency(codes.fitted_time(entry, list(CURVE))["time/step"], list(CURVE))
    half = [f"half of the efficiency is left up to about {found:,} GPUs"] if found else []
    return Answer(list(rows[0]), rows, [], [*half, f"{entry['title']}: {entry['origin']}"])
