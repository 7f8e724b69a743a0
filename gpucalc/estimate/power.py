"""Power of nodes, cluster and site, energy of tokens and steps, capital and running cost; one question per row."""

from __future__ import annotations

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import cost, energy


def estimate_power(columns: Columns, *, trace: bool = False) -> Ledger:
    """All terms; of tokens and steps where the columns state `token_rate` and `step_time`, of money where `capital`."""
    ledger = Ledger(columns, trace=trace)
    c = columns
    host = ledger.add("power/host", energy.host_power)
    idle = ledger.add("power/node/idle", energy.idle_node_power, host_watts=host)
    gpu = ledger.add("power/gpu", energy.drawn_power)
    node = ledger.add("power/node/load", energy.node_power_at, gpu_watts=gpu, host_watts=host, idle_node_watts=idle)
    for state, watts in (("load", node), ("idle", idle)):
        total = ledger.add(f"power/cluster/{state}", energy.cluster_power, node_watts=watts)
        ledger.add(f"power/site/{state}", energy.facility_power, it_watts=total)
    site = ledger["power/site/load"]
    ledger.add("energy/year", energy.energy, watts=site, duration=c["year"])
    if "step_time" in c:
        ledger.add("energy/step", energy.energy, watts=site, duration=c["step_time"])
        ledger.add("energy/token", energy.energy_per_token, watts=site, token_rate=c["cluster_token_rate"])
    each = ledger.add("power/cluster/gpu", energy.power_per_gpu, it_watts=ledger["power/cluster/load"])
    each = ledger.add("power/site/gpu", energy.facility_power, it_watts=each)
    running = ledger.add("cost/electricity", cost.electricity_rate, watts=each)
    ledger.add("cost/year/electricity", cost.electricity_cost, energy=ledger["energy/year"])
    if "capital" in c:
        ledger.add("cost/capital/total", cost.total_capital)
        ledger.add("cost/annuity", cost.annuity)
        capital = ledger.add("cost/capital", cost.capital_rate, annuity=ledger["cost/annuity"])
        operating = ledger.add("cost/operating", cost.capital_rate, annuity=c["operating_share"])
        ledger.add(
            "cost/ownership",
            cost.ownership_rate,
            capital_rate=capital,
            operating_rate=operating,
            electricity_rate=running,
        )
        ledger.add("cost/year/ownership", cost.rental_cost, elapsed=c["year"], gpu_price=ledger["cost/ownership"])
    return ledger
