"""Power of nodes, cluster and site, energy of tokens and steps, capital and running cost; one question per row."""

from __future__ import annotations

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import cost, energy


def estimate_power(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms; of steps, tokens and samples where the columns state their time or rate, of money where `capital`."""
    ledger = Ledger(columns, trace=trace)
    ledger.add("power/host", energy.host_power)
    ledger.add("power/gpu", energy.drawn_power)
    ledger.add("power/node/idle", energy.idle_node_power, host_watts="power/host")
    ledger.add(
        "power/node/load",
        energy.node_power_at,
        gpu_watts="power/gpu",
        host_watts="power/host",
        idle_node_watts="power/node/idle",
    )
    for state in ("load", "idle"):
        ledger.add(f"power/racks/{state}", energy.racked_power, node_watts=f"power/node/{state}")
        ledger.add(f"power/cluster/{state}", energy.cluster_power, racked_watts=f"power/racks/{state}")
        ledger.add(f"power/site/{state}", energy.facility_power, it_watts=f"power/cluster/{state}")
    if "duration" in columns:
        ledger.add("power/node/run", energy.run_power, node_watts="power/node/load", idle_node_watts="power/node/idle")
        ledger.add("power/racks/run", energy.racked_power, node_watts="power/node/run")
        ledger.add("power/cluster/run", energy.cluster_power, racked_watts="power/racks/run")
        ledger.add("power/site/run", energy.facility_power, it_watts="power/cluster/run")
        ledger.add("energy/run", energy.energy, watts="power/site/run", duration="duration")
    ledger.add("energy/year", energy.energy, watts="power/site/load", duration="year")
    if "step_time" in columns:
        ledger.add("energy/step", energy.energy, watts="power/site/load", duration="step_time")
    for what in ("token", "sample"):
        if f"cluster_{what}_rate" in columns:
            ledger.add(f"energy/{what}", energy.energy_per_piece, watts="power/site/load", rate=f"cluster_{what}_rate")
    ledger.add("power/cluster/gpu", energy.power_per_gpu, it_watts="power/cluster/load")
    ledger.add("power/site/gpu", energy.facility_power, it_watts="power/cluster/gpu")
    ledger.add("cost/electricity", cost.electricity_rate, watts="power/site/gpu")
    ledger.add("cost/year/electricity", cost.electricity_cost, energy="energy/year")
    if "capital" in columns:
        ledger.add("cost/capital/total", cost.total_capital)
        ledger.add("cost/annuity", cost.annuity)
        ledger.add("cost/capital", cost.capital_rate, annuity="cost/annuity")
        ledger.add("cost/operating", cost.capital_rate, annuity="operating_share")
        ledger.add(
            "cost/ownership",
            cost.ownership_rate,
            capital_rate="cost/capital",
            operating_rate="cost/operating",
            electricity_rate="cost/electricity",
        )
        ledger.add("cost/year/ownership", cost.rental_cost, elapsed="year", gpu_price="cost/ownership")
    return ledger
