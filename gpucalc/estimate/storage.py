"""Feeding accelerators: what one batch takes to compute, read, decode and copy, and what checkpoints ask of a store."""

from __future__ import annotations

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import goodput, storage

PARTS = ("time/compute", "time/read", "time/open", "time/card", "time/decode", "time/copy")


def estimate_storage(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of reading samples, one question per row; of checkpoints too where the columns state their size."""
    ledger = Ledger(columns, trace=trace)
    ledger.add("time/compute", storage.scaled_compute_time)
    ledger.add("demand/accelerator", storage.read_demand, compute_time="time/compute")
    ledger.add("demand/store", storage.store_demand, demand="demand/accelerator")
    ledger.add("store/rate", storage.store_rate)
    ledger.add("time/read", storage.read_time, store_rate="store/rate")
    ledger.add("time/open", storage.reader_time)
    ledger.add("time/card", storage.card_time)
    ledger.add("time/decode", storage.decode_time)
    ledger.add("time/copy", storage.copy_time)
    # What prefetching leaves counts while accelerators set the pace; else they wait for the slowest part anyway.
    ledger.add("time/wait", storage.unhidden_wait, compute_time="time/compute")
    ledger.total("time/fed", "time/compute", "time/wait")
    ledger.maximum("time/batch", "time/fed", *PARTS[1:])
    ledger.add(
        "metric/utilisation", storage.accelerator_utilisation, compute_time="time/compute", batch_time="time/batch"
    )
    ledger.add("metric/samples", storage.sample_rate, batch_time="time/batch")
    fed = {"store_rate": "store/rate", "demand": "demand/accelerator"}
    ledger.add("fed/whole", storage.accelerators_fed, least_utilisation=1.0, **fed)
    ledger.add("fed/target", storage.accelerators_fed, **fed)
    ledger.add("decode/cores", storage.decode_cores, compute_time="time/compute")
    if "parameters" in columns:
        _checkpoints(ledger)
    return ledger


def _checkpoints(ledger: Ledger) -> None:
    ledger.add("checkpoint/size", goodput.checkpoint_size)
    ledger.product("checkpoint/read-by-all", "checkpoint/size", "replicas")
    for name, size, bandwidth in (
        ("save", "checkpoint/size", "write_bandwidth"),
        ("load", "checkpoint/size", "read_bandwidth"),
        ("load-by-all", "checkpoint/read-by-all", "read_bandwidth"),
    ):
        ledger.add(f"checkpoint/{name}", goodput.transfer_time, size=size, bandwidth=bandwidth)
    saved = {"size": "checkpoint/size", "interval": "save_interval"}
    ledger.add("checkpoint/bandwidth/blocking", goodput.save_bandwidth, **saved)
    ledger.add("checkpoint/bandwidth/asynchronous", goodput.save_bandwidth, stall_share=1.0, **saved)
    ledger.add("checkpoint/bandwidth/restart", goodput.transfer_rate, size="checkpoint/size", duration="restart_target")


def limiter_of(ledger: Ledger, row: int = 0) -> str:
    """The longest part of a batch: compute, read, open, card, decode or copy."""

    def at(path: str) -> float:
        value = np.asarray(ledger[path], dtype=float)
        return float(value.flat[row] if value.size > 1 else value.flat[0])

    return max(PARTS, key=at).removeprefix("time/")
