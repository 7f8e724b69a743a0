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


def estimate_hpl(columns: Columns, *, trace: bool = False) -> Ledger:
    """The matrix order that fills the memory, the rate and the time of a run of HPL."""
    ledger = Ledger(columns, trace=trace)
    order = ledger.add("hpl/order", hpc.hpl_order)
    rate = ledger.add("metric/rate", hpc.hpl_rate)
    ledger.add("time/run", hpc.hpl_time, order=order, hpl=rate)
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
