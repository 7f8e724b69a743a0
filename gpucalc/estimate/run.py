"""A whole training run: failures, saves, spares, energy, carbon and cost, from the step that the estimate predicts.

Every row of the columns is one scenario: the expected one, the ends of the published spread, halved times. All of
them are evaluated by the same formulas in one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import cost, energy, goodput


def estimate_run(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of a run as a ledger.

    The columns are those of `run_job.run_columns`; a stated interval, save time, mean time between failures or
    allocation is a number above 0, and 0 leaves it to its formula.
    """
    ledger = estimate_failures(columns, trace=trace)
    _spares(ledger)
    _time(ledger)
    _energy(ledger)
    _cost(ledger)
    return ledger


def estimate_failures(columns: Columns, *, trace: bool = False) -> Ledger:
    """Interruptions, saves and goodput alone: columns of `run_question.failure_columns`, and `step_time`."""
    ledger = Ledger(columns, trace=trace)
    _interruptions(ledger)
    _saving(ledger)
    return ledger


def _stated(ledger: Ledger, path: str, stated: str, other: str) -> Any:
    """Store a stated value where it is above 0, else the term `other`."""
    value = ledger.columns[stated]
    ledger.keep(f"stated/{stated}", value)
    chosen = np.where(np.asarray(value) > 0, 1, 0)
    selector = int(chosen) if chosen.ndim == 0 else chosen
    return ledger.choose(path, selector, {0: other, 1: f"stated/{stated}"})


def _interruptions(ledger: Ledger) -> None:
    failing = ledger.add("failures/failing-gpus", goodput.failing_gpus)
    ledger.add("failures/mtbf/rate", goodput.job_mtbf, failing_gpus=failing)
    ledger.columns.define("mtbf", _stated(ledger, "failures/mtbf", "stated_mtbf", "failures/mtbf/rate"))


def _saving(ledger: Ledger) -> None:
    c = ledger.columns
    size = _stated(ledger, "checkpoint/size", "stated_checkpoint", _counted_checkpoint(ledger))
    persist = ledger.add("checkpoint/persist", goodput.transfer_time, size=size, bandwidth=c["write_bandwidth"])
    staging = ledger.add("checkpoint/staging", goodput.staging_time, size=size, host_bandwidth=c["staging_bandwidth"])
    ledger.add("checkpoint/blocking/estimated", goodput.blocking_time, persist_time=persist, staging_time=staging)
    blocking = _stated(ledger, "checkpoint/blocking", "stated_save", "checkpoint/blocking/estimated")
    mtbf = c["mtbf"]
    for name, law in (
        ("young", goodput.young_interval),
        ("daly", goodput.daly_interval),
        ("exact", goodput.best_interval),
    ):
        ledger.add(f"checkpoint/interval/{name}", law, blocking=blocking, mtbf=mtbf)
    ledger.add(
        "checkpoint/interval/feasible",
        goodput.feasible_interval,
        interval=ledger["checkpoint/interval/exact"],
        persist_time=persist,
    )
    interval = _stated(ledger, "checkpoint/interval", "stated_interval", "checkpoint/interval/feasible")
    ledger.add(
        "checkpoint/bandwidth/blocking",
        goodput.save_bandwidth,
        size=size,
        interval=interval,
        stall_share=c["stall_share"],
    )
    ledger.add(
        "checkpoint/bandwidth/asynchronous", goodput.save_bandwidth, size=size, interval=interval, stall_share=1.0
    )
    load = ledger.add("failures/load", goodput.transfer_time, size=size, bandwidth=c["read_bandwidth"])
    recovery = ledger.add("failures/recovery", goodput.recovery_time, load_time=load, persist_time=persist)
    losses = {"interval": interval, "recovery": recovery, "mtbf": mtbf}
    ledger.add("goodput/exact", goodput.goodput, blocking=blocking, **losses)
    ledger.add("goodput/first-order", goodput.small_loss_goodput, blocking=blocking, **losses)
    ledger.add("goodput/lost", goodput.lost_share, **losses)


def _counted_checkpoint(ledger: Ledger) -> str:
    ledger.add("checkpoint/size/counted", goodput.checkpoint_size)
    return "checkpoint/size/counted"


def _spares(ledger: Ledger) -> None:
    ledger.add("spares/shrunk", goodput.shrunk_throughput)
    ledger.add("spares/pair-loss", goodput.pair_loss, failed=2.0)
    mean = ledger.add("spares/under-repair", goodput.units_under_repair, failed_share=ledger.columns["hardware_share"])
    spares = ledger.add("spares/count", goodput.fewest_spares, mean=mean)
    ledger.add("yield/allocated/spares", goodput.allocated_share, spares=spares)
    _stated(ledger, "yield/allocated", "stated_allocated", "yield/allocated/spares")


def _time(ledger: Ledger) -> None:
    c = ledger.columns
    useful = ledger.add("run/useful", goodput.training_time)
    elapsed = ledger.add("run/elapsed", goodput.elapsed_time, useful_time=useful, useful_share=ledger["goodput/exact"])
    ledger.add("run/gpu-time", goodput.gpu_time, elapsed=elapsed)
    ledger.add("failures/count", goodput.expected_failures, elapsed=elapsed, mtbf=c["mtbf"])
    waiting = ledger.add("yield/waiting", goodput.waiting_share)
    mfu = ledger.add("yield/mfu", goodput.unhindered_mfu)
    ledger.add(
        "yield/cluster",
        goodput.cluster_yield,
        allocated=ledger["yield/allocated"],
        useful_share=ledger["goodput/exact"],
        waiting_share=waiting,
        mfu=mfu,
    )


def _energy(ledger: Ledger) -> None:
    node = ledger.add("power/node", energy.node_power)
    nodes = ledger.columns["nodes"]
    watts = ledger.add("power/cluster", energy.cluster_power, nodes=nodes, node_watts=node)
    site = ledger.add("power/site", energy.facility_power, it_watts=watts)
    used = ledger.add("energy/run", energy.energy, watts=site, duration=ledger["run/elapsed"])
    ledger.add("energy/carbon", energy.carbon, energy=used)


def _cost(ledger: Ledger) -> None:
    ledger.add("cost/rental", cost.rental_cost, elapsed=ledger["run/elapsed"])
    ledger.add("cost/electricity", cost.electricity_cost, energy=ledger["energy/run"])
    ledger.add(
        "cost/useful-price",
        cost.useful_price,
        allocated=ledger["yield/allocated"],
        useful_share=ledger["goodput/exact"],
    )
