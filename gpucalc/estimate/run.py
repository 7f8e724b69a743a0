"""A whole training run: failures, saves, spares, energy, carbon and cost, from the step that the estimate predicts.

Every row of the columns is one scenario: the expected one, the ends of the published spread, halved times. All of
them are evaluated by the same formulas in one call.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import cost, energy, goodput


def estimate_run(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms of a run as a ledger.

    The columns are those of `questions.run.run_columns`; a stated interval, save time, mean time between failures or
    allocation is a number above 0, and 0 leaves it to its formula.
    """
    ledger = estimate_failures(columns, trace=trace)
    _spares(ledger)
    _time(ledger)
    _energy(ledger)
    _cost(ledger)
    return ledger


def estimate_failures(columns: Columns, *, trace: bool = False) -> Ledger:
    """Interruptions, saves and goodput alone: columns of `run_scenarios.failure_columns`, and `step_time`."""
    ledger = Ledger(columns, trace=trace)
    _interruptions(ledger)
    _saving(ledger)
    return ledger


def _stated(ledger: Ledger, path: str, stated: str, other: str) -> None:
    """Store the column `stated` where it is above 0, else the term `other`."""
    ledger.keep(f"stated/{path}", np.greater(ledger.columns[stated], 0) * 1)
    ledger.choose(path, f"stated/{path}", {0: other, 1: stated})


def _interruptions(ledger: Ledger) -> None:
    ledger.add("failures/failing-gpus", goodput.failing_gpus)
    ledger.add("failures/mtbf/rate", goodput.job_mtbf, failing_gpus="failures/failing-gpus")
    _stated(ledger, "failures/mtbf", "stated_mtbf", "failures/mtbf/rate")
    ledger.share("failures/mtbf")


def _saving(ledger: Ledger) -> None:
    ledger.add("checkpoint/size/counted", goodput.checkpoint_size)
    _stated(ledger, "checkpoint/size", "stated_checkpoint", "checkpoint/size/counted")
    ledger.share("checkpoint/size")
    ledger.add("checkpoint/persist", goodput.transfer_time, bandwidth="write_bandwidth")
    ledger.add("checkpoint/staging", goodput.staging_time, host_bandwidth="staging_bandwidth")
    times = {"persist_time": "checkpoint/persist", "staging_time": "checkpoint/staging"}
    ledger.add("checkpoint/blocking/estimated", goodput.blocking_time, **times)
    _stated(ledger, "checkpoint/blocking", "stated_save", "checkpoint/blocking/estimated")
    ledger.share("checkpoint/blocking")
    laws = {"young": goodput.young_interval, "daly": goodput.daly_interval, "exact": goodput.best_interval}
    for name, law in laws.items():
        ledger.add(f"checkpoint/interval/{name}", law)
    ledger.add(
        "checkpoint/interval/feasible",
        goodput.feasible_interval,
        interval="checkpoint/interval/exact",
        persist_time="checkpoint/persist",
    )
    _stated(ledger, "checkpoint/interval", "stated_interval", "checkpoint/interval/feasible")
    ledger.share("checkpoint/interval")
    ledger.add("checkpoint/bandwidth/blocking", goodput.save_bandwidth)
    ledger.add("checkpoint/bandwidth/asynchronous", goodput.save_bandwidth, stall_share=1.0)
    ledger.add("failures/load", goodput.transfer_time, bandwidth="read_bandwidth")
    ledger.add("failures/recovery", goodput.recovery_time, load_time="failures/load", persist_time="checkpoint/persist")
    ledger.share("failures/recovery")
    ledger.add("goodput/exact", goodput.goodput)
    ledger.add("goodput/first-order", goodput.small_loss_goodput)
    ledger.add("goodput/lost", goodput.lost_share)


def _spares(ledger: Ledger) -> None:
    ledger.add("spares/shrunk", goodput.shrunk_throughput)
    ledger.add("spares/pair-loss", goodput.pair_loss, failed=2.0)
    ledger.add("spares/under-repair", goodput.units_under_repair, failed_share="hardware_share")
    ledger.add("spares/count", goodput.fewest_spares, mean="spares/under-repair")
    ledger.add("yield/allocated/spares", goodput.allocated_share, spares="spares/count")
    _stated(ledger, "yield/allocated", "stated_allocated", "yield/allocated/spares")


def _time(ledger: Ledger) -> None:
    ledger.add("run/useful", goodput.training_time)
    ledger.add("run/elapsed", goodput.elapsed_time, useful_time="run/useful", useful_share="goodput/exact")
    ledger.share("run/elapsed")
    ledger.add("run/gpu-time", goodput.gpu_time)
    ledger.add("failures/count", goodput.expected_failures)
    ledger.add("yield/waiting", goodput.waiting_share)
    ledger.add("yield/mfu", goodput.unhindered_mfu)
    ledger.add(
        "yield/cluster",
        goodput.cluster_yield,
        allocated="yield/allocated",
        useful_share="goodput/exact",
        waiting_share="yield/waiting",
        mfu="yield/mfu",
    )


def _energy(ledger: Ledger) -> None:
    ledger.add("power/node", energy.node_power)
    ledger.add("power/cluster", energy.cluster_power, node_watts="power/node")
    ledger.add("power/site", energy.facility_power, it_watts="power/cluster")
    ledger.add("energy/run", energy.energy, watts="power/site", duration="run/elapsed")
    ledger.add("energy/carbon", energy.carbon, energy="energy/run")


def _cost(ledger: Ledger) -> None:
    ledger.add("cost/rental", cost.rental_cost)
    ledger.add("cost/electricity", cost.electricity_cost, energy="energy/run")
    ledger.add("cost/useful-price", cost.useful_price, allocated="yield/allocated", useful_share="goodput/exact")
