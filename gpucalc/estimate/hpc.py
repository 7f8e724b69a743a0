"""Scientific codes on a cluster: the one place that puts the formulas of `formulas/hpc.py` in order.

Columns in, a ledger out; a scaling curve is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import hpc


def estimate_kernel(columns: Columns, *, trace: bool = False) -> Ledger:
    """Time, rate and memory of one step of a kernel for each row."""
    ledger = Ledger(columns, trace=trace)
    ledger.define("local_units", hpc.units_per_gpu)
    ledger.add("time/compute", hpc.kernel_compute_time)
    ledger.add("time/memory", hpc.kernel_memory_time)
    ledger.maximum("time/kernel/overlapped", "time/compute", "time/memory")
    ledger.total("time/kernel/added", "time/compute", "time/memory")
    ledger.choose("time/kernel", "added", {0: "time/kernel/overlapped", 1: "time/kernel/added"})
    _halo(ledger)
    ledger.add("time/reductions", hpc.reduction_time)
    _exchange(ledger)
    ledger.total("time/step", "time/kernel", "time/halo/exposed", "time/exchange", "time/reductions")
    ledger.add("metric/rate", hpc.update_rate, step_time="time/step")
    ledger.add("metric/intensity", hpc.arithmetic_intensity)
    ledger.add("memory/resident", hpc.resident_memory)
    return ledger


AXES = "xyzt"  # of the lattices that are cut; the last only where it has four dimensions


def _halo(ledger: Ledger) -> None:
    axes = [axis for axis in AXES if f"parts_{axis}" in ledger.columns]
    for axis in axes:
        parts = f"parts_{axis}"
        ledger.add(f"halo/face/{axis}", hpc.face_units, parts=parts)
        ledger.add(f"halo/bytes/{axis}", hpc.halo_bytes, face=f"halo/face/{axis}", parts=parts)
        ledger.add(
            f"halo/beyond/{axis}",
            hpc.halo_bytes_beyond_node,
            halo=f"halo/bytes/{axis}",
            parts=parts,
            node_parts=f"node_parts_{axis}",
        )
    sent = ledger.total("halo/bytes", *[f"halo/bytes/{axis}" for axis in axes])
    beyond = ledger.total("halo/beyond", *[f"halo/beyond/{axis}" for axis in axes])
    messages = 2.0 * sum(np.greater(ledger.columns[f"parts_{axis}"], 1) for axis in axes)
    ledger.keep("halo/messages", messages * np.greater(sent, 0))
    ledger.keep("halo/messages/network", messages * np.greater(beyond, 0))
    ledger.add("halo/staged", hpc.staged_rate)
    ledger.minimum("halo/link/staged", "link_rate", "halo/staged")
    ledger.minimum("halo/network/staged", "network_rate", "halo/staged")
    for way, bytes_, count in (
        ("link", "halo/bytes", "halo/messages"),
        ("network", "halo/beyond", "halo/messages/network"),
    ):
        ledger.choose(f"halo/rate/{way}", "staged", {0: f"{way}_rate", 1: f"halo/{way}/staged"})
        ledger.add(f"halo/{way}", hpc.halo_time, halo=bytes_, halo_bandwidth=f"halo/rate/{way}", halo_messages=count)
    ledger.maximum("halo/time", "halo/link", "halo/network")
    ledger.add("time/halo/exposed", hpc.exposed_halo, halo_exchange="halo/time", interior="time/kernel")


def _exchange(ledger: Ledger) -> None:
    """The all-to-all of a spectral code; nothing where a kernel has none."""
    ledger.add("exchange/inside", hpc.exchange_bytes_inside)
    ledger.add("exchange/beyond", hpc.exchange_bytes_beyond)
    ledger.add("time/exchange", hpc.exchange_time, inside="exchange/inside", beyond="exchange/beyond")


def bound_of(ledger: Ledger, row: int = 0) -> str:
    """What a step spends most of its time on: compute, memory, halo, exchange or reductions."""
    paths = {
        "compute": "time/compute",
        "memory": "time/memory",
        "halo": "time/halo/exposed",
        "exchange": "time/exchange",
        "reductions": "time/reductions",
    }

    def at(path: str) -> float:
        values = np.ravel(ledger[path])
        return float(values[min(row, len(values) - 1)])

    return max(paths, key=lambda name: at(paths[name]))


def estimate_hpl(columns: Columns, *, trace: bool = False) -> Ledger:
    """The matrix order that fills the memory, the rate and the time of a run of HPL.

    With the host's memory beside the devices' (`host_bytes` of each GPU above 0) also the order and time of a run that
    fills both.
    """
    ledger = Ledger(columns, trace=trace)
    ledger.add("hpl/order", hpc.hpl_order)
    ledger.add("metric/rate", hpc.hpl_rate)
    ledger.add("time/run", hpc.hpl_time, order="hpl/order", hpl="metric/rate")
    if "host_bytes" in columns:
        ledger.total("hpl/memory/both", "usable_bytes", "host_bytes")
        ledger.add("hpl/order/both", hpc.hpl_order, usable_bytes="hpl/memory/both")
        ledger.add("time/run/both", hpc.hpl_time, order="hpl/order/both", hpl="metric/rate")
    return ledger


def estimate_hpcg(columns: Columns, *, trace: bool = False) -> Ledger:
    """The rate of HPCG."""
    ledger = Ledger(columns, trace=trace)
    ledger.add("metric/rate", hpc.hpcg_rate)
    return ledger


def estimate_fitted(columns: Columns, *, trace: bool = False) -> Ledger:
    """Seconds per unit of simulated time of a code whose scaling was measured."""
    ledger = Ledger(columns, trace=trace)
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
