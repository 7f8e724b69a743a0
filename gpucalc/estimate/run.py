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
    if "board_watts" in ledger.columns:
        _energy(ledger)
    _cost(ledger)
    return ledger


def estimate_failures(columns: Columns, *, trace: bool = False) -> Ledger:
    """Interruptions, saves and goodput alone: columns of `run_scenarios.failure_columns`, and `step_time`."""
    ledger = Ledger(columns, trace=trace)
    _interruptions(ledger)
    _stores(ledger)
    _saving(ledger)
    _recovery(ledger)
    _goodput(ledger)
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


def _stores(ledger: Ledger) -> None:
    for way in ("write", "read"):
        given = {"per_gpu": f"{way}_per_gpu", "most": f"{way}_most"}
        ledger.add(f"store/{way}/assumed", goodput.store_bandwidth, **given)
        _stated(ledger, f"store/{way}", f"stated_{way}", f"store/{way}/assumed")


def _saving(ledger: Ledger) -> None:
    ledger.add("checkpoint/size/counted", goodput.checkpoint_size)
    _stated(ledger, "checkpoint/size", "stated_checkpoint", "checkpoint/size/counted")
    ledger.share("checkpoint/size")
    ledger.add("checkpoint/persist/store", goodput.transfer_time, bandwidth="store/write")
    ledger.add("checkpoint/persist/peers", goodput.staging_time, host_bandwidth="peer_bandwidth")
    _by_copies(ledger, "checkpoint/persist")
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
    ledger.add("checkpoint/interval/stalled", goodput.stalled_interval)
    _stated(ledger, "checkpoint/interval/blocking", "stated_interval", "checkpoint/interval/stalled")
    ledger.add("checkpoint/bandwidth/blocking", goodput.save_bandwidth, interval="checkpoint/interval/blocking")
    ledger.add("checkpoint/bandwidth/half-hour", goodput.save_bandwidth, interval="store_interval")
    ledger.add("checkpoint/bandwidth/asynchronous", goodput.save_bandwidth, stall_share=1.0)


def _by_copies(ledger: Ledger, path: str) -> None:
    """Of a term of the store and one of copies in other nodes' memory, the one of the row."""
    ledger.choose(path, "in_memory", {0: f"{path}/store", 1: f"{path}/peers"})


def _recovery(ledger: Ledger) -> None:
    ledger.add("failures/load/store", goodput.transfer_time, bandwidth="store/read")
    ledger.add("failures/load/peers", goodput.staging_time, host_bandwidth="peer_bandwidth")
    _by_copies(ledger, "failures/load")
    ledger.add("failures/miss", goodput.missed_copies, store_load="failures/load/store")
    ledger.add("failures/restart/whole", goodput.restart_time, members="n_gpus")
    _stated(ledger, "failures/restart", "stated_restart", "failures/restart/whole")
    ledger.add(
        "failures/recovery",
        goodput.recovery_time,
        restart_time="failures/restart",
        load_time="failures/load",
        persist_time="checkpoint/persist",
        miss="failures/miss",
    )
    ledger.share("failures/recovery")
    # One replica away: its own processes start again and load from the others, or it waits for a repaired node.
    ledger.add("replica/members", goodput.replica_gpus)
    ledger.add("replica/restart/own", goodput.restart_time, members="replica/members")
    _stated(ledger, "replica/restart", "stated_restart", "replica/restart/own")
    ledger.total("replica/absence/restarted", "detection", "replica/restart", "failures/load/peers")
    ledger.add(
        "replica/absence/repaired",
        goodput.elastic_absence,
        failing_gpus="failures/failing-gpus",
        failed_share="hardware_share",
        restarted="replica/absence/restarted",
    )
    restarted, repaired = "replica/absence/restarted", "replica/absence/repaired"
    ledger.choose("replica/absence", "recovery_kind", {2: repaired}, otherwise=restarted)


def _goodput(ledger: Ledger) -> None:
    ledger.add("goodput/exact", goodput.goodput)
    ledger.add("goodput/first-order", goodput.small_loss_goodput)
    ledger.add("goodput/lost", goodput.lost_share)
    ledger.add("replica/present", goodput.replicas_present, absence="replica/absence")
    ledger.add("goodput/survivors", goodput.goodput_of_survivors, interval="store_interval", present="replica/present")
    ledger.choose("goodput/unplanned", "recovery_kind", {0: "goodput/exact"}, otherwise="goodput/survivors")
    ledger.add("goodput/useful", goodput.goodput_with_maintenance, unplanned="goodput/unplanned")


def _spares(ledger: Ledger) -> None:
    ledger.add("spares/shrunk", goodput.shrunk_throughput)
    ledger.add("spares/pair-loss", goodput.pair_loss, failed=2.0)
    ledger.add("spares/under-repair", goodput.units_under_repair, failed_share="hardware_share")
    ledger.add("spares/count", goodput.fewest_spares, mean="spares/under-repair")
    ledger.product("spares/racks-under-repair", "spares/under-repair", "rack_share")
    ledger.add("spares/racks", goodput.fewest_spares, mean="spares/racks-under-repair")
    ledger.add("yield/allocated/spares", goodput.allocated_share, spares="spares/count", spare_racks="spares/racks")
    _stated(ledger, "yield/allocated", "stated_allocated", "yield/allocated/spares")


def _time(ledger: Ledger) -> None:
    ledger.add("run/useful", goodput.training_time)
    ledger.add("run/elapsed", goodput.elapsed_time, useful_time="run/useful", useful_share="goodput/useful")
    ledger.share("run/elapsed")
    ledger.add("run/gpu-time", goodput.gpu_time)
    ledger.add("failures/count", goodput.expected_failures)
    ledger.add("yield/waiting", goodput.waiting_share)
    ledger.add("yield/mfu", goodput.unhindered_mfu)
    ledger.add(
        "yield/cluster",
        goodput.cluster_yield,
        allocated="yield/allocated",
        useful_share="goodput/useful",
        waiting_share="yield/waiting",
        mfu="yield/mfu",
    )


def _energy(ledger: Ledger) -> None:
    ledger.add("power/node", energy.node_power)
    ledger.add("power/racks", energy.racked_power, node_watts="power/node")
    ledger.add("power/cluster", energy.cluster_power, racked_watts="power/racks")
    ledger.add("power/site", energy.facility_power, it_watts="power/cluster")
    ledger.add("energy/run", energy.energy, watts="power/site", duration="run/elapsed")
    ledger.add("energy/carbon", energy.carbon, energy="energy/run")


def _cost(ledger: Ledger) -> None:
    ledger.add("cost/rental", cost.rental_cost)
    if "energy/run" in ledger:
        ledger.add("cost/electricity", cost.electricity_cost, energy="energy/run")
    ledger.add("cost/useful-price", cost.useful_price, allocated="yield/allocated", useful_share="goodput/useful")
