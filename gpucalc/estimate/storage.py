"""Feeding accelerators: what one batch takes to compute, read, decode and copy, and what checkpoints ask of a store."""

from __future__ import annotations

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import goodput, storage

PARTS = ("time/compute", "time/read", "time/decode", "time/copy")


def estimate_storage(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of reading samples, one question per row; of checkpoints too where the columns state their size."""
    ledger = Ledger(columns, trace=trace)
    c = columns
    compute = ledger.add("time/compute", storage.scaled_compute_time)
    demand = ledger.add("demand/accelerator", storage.read_demand, compute_time=compute)
    ledger.add("demand/store", storage.store_demand, demand=demand)
    rate = ledger.add("store/rate", storage.store_rate)
    ledger.add("time/read", storage.read_time, store_rate=rate)
    ledger.add("time/decode", storage.decode_time)
    ledger.add("time/copy", storage.copy_time)
    batch = ledger.maximum("time/batch", *PARTS)
    ledger.add("metric/utilisation", storage.accelerator_utilisation, compute_time=compute, batch_time=batch)
    ledger.add("metric/samples", storage.sample_rate, batch_time=batch)
    for name, least in (("whole", 1.0), ("target", c["least_utilisation"])):
        ledger.add(f"fed/{name}", storage.accelerators_fed, store_rate=rate, demand=demand, least_utilisation=least)
    ledger.add("decode/cores", storage.decode_cores, compute_time=compute)
    if "parameters" in c:
        _checkpoints(ledger)
    return ledger


def _checkpoints(ledger: Ledger) -> None:
    c = ledger.columns
    size = ledger.add("checkpoint/size", goodput.checkpoint_size)
    ledger.add("checkpoint/save", goodput.transfer_time, size=size, bandwidth=c["write_bandwidth"])
    ledger.add("checkpoint/load", goodput.transfer_time, size=size, bandwidth=c["read_bandwidth"])
    every = size * c["replicas"]
    ledger.add("checkpoint/load-by-all", goodput.transfer_time, size=every, bandwidth=c["read_bandwidth"])
    interval = c["save_interval"]
    ledger.add("checkpoint/bandwidth/blocking", goodput.save_bandwidth, size=size, interval=interval)
    ledger.add(
        "checkpoint/bandwidth/asynchronous", goodput.save_bandwidth, size=size, interval=interval, stall_share=1.0
    )
    ledger.add("checkpoint/bandwidth/restart", goodput.transfer_rate, size=size, duration=c["restart_target"])


def limiter_of(ledger: Ledger, row: int = 0) -> str:
    """The longest part of a batch: compute, read, decode or copy."""

    def at(path: str) -> float:
        value = np.asarray(ledger[path], dtype=float)
        return float(value.flat[row] if value.size > 1 else value.flat[0])

    return max(PARTS, key=at).removeprefix("time/")
