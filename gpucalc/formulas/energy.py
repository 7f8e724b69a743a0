"""Power, energy and carbon of nodes and of a run.

Symbols: P power, G accelerators of a node, k wall power of a node under training load over the power limits of its
accelerators together, u share of its limit that an accelerator draws, PUE power of the building over that of the nodes.
"""

from __future__ import annotations

import numpy as np

from gpucalc.formula import formula
from gpucalc.units import Count, Grams, GramsPerJoule, Joules, PerSecond, Ratio, Seconds, Watts


@formula(symbol="P_load", cite="mlperf-power", valid="minutes of training load, wall side")
def node_power(gpus_per_node: Count, board_watts: Watts, load_factor: Ratio) -> Watts:
    """Wall power of a node under training load: k·G·TDP.

    >>> round(float(node_power(8.0, 700.0, 1.22)))
    6832
    """
    return load_factor * gpus_per_node * board_watts


@formula(symbol="P_host", cite="mlperf-power", valid="load_factor > load_draw")
def host_power(gpus_per_node: Count, board_watts: Watts, load_factor: Ratio, load_draw: Ratio) -> Watts:
    """What a node under load draws beside its accelerators: processors, memory, network cards, fans, conversion.

    >>> round(float(host_power(8.0, 700.0, 1.22, 0.95)))
    1512
    """
    return (load_factor - load_draw) * gpus_per_node * board_watts


@formula(symbol="P(u)", cite="mlperf-power", valid="0 <= utilisation <= 1; cap at or above the idle power")
def node_power_at(
    gpus_per_node: Count,
    cap_watts: Watts,
    host: Watts,
    idle_host: Watts,
    idle_watts: Watts,
    load_draw: Ratio,
    utilisation: Ratio,
) -> Watts:
    """Power of a node between idle and full load: host and accelerators rise with the utilisation.

    >>> round(float(node_power_at(8.0, 700.0, 1512.0, 1000.0, 70.0, 0.95, 1.0)))
    6832
    >>> round(float(node_power_at(8.0, 700.0, 1512.0, 1000.0, 70.0, 0.95, 0.0)))
    1560
    """
    idle = idle_host + gpus_per_node * idle_watts
    return idle + utilisation * (host + gpus_per_node * load_draw * cap_watts - idle)


@formula(symbol="P_IT", cite="gpucalc-counting", valid="")
def cluster_power(nodes: Count, node_watts: Watts, n_gpus: Count, network_watts: Watts) -> Watts:
    """Nodes and switches together.

    >>> float(cluster_power(64.0, 6850.0, 512.0, 10.0))
    443520.0
    """
    return nodes * node_watts + n_gpus * network_watts


@formula(symbol="P_site", cite="gpucalc-counting", valid="pue >= 1")
def facility_power(it_watts: Watts, pue: Ratio) -> Watts:
    """Power of the building.

    >>> round(float(facility_power(1000.0, 1.2)))
    1200
    """
    return it_watts * pue


@formula(symbol="E", cite="gpucalc-counting", valid="")
def energy(watts: Watts, duration: Seconds) -> Joules:
    """Energy of a time at a power.

    >>> float(energy(1000.0, 3600.0)) / 3.6e6
    1.0
    """
    return watts * duration


@formula(symbol="E_token", cite="gpucalc-counting", valid="")
def energy_per_token(watts: Watts, token_rate: PerSecond) -> Joules:
    """Energy of one token.

    >>> float(energy_per_token(6000.0, 3000.0))
    2.0
    """
    return watts / token_rate


@formula(symbol="m_CO2", cite="codecarbon", valid="embodied carbon of the hardware left out")
def carbon(energy: Joules, carbon_intensity: GramsPerJoule) -> Grams:
    """Carbon dioxide of the electricity.

    >>> round(float(carbon(3.6e9, 400 / 3.6e6)))
    400000
    """
    return energy * carbon_intensity


@formula(symbol="P_cap/P_0", cite="gpucalc-counting", valid="cap_watts <= board_watts")
def cap_share(cap_watts: Watts, board_watts: Watts) -> Ratio:
    """A power cap over the board's own limit.

    >>> float(cap_share(525.0, 700.0))
    0.75
    """
    return np.minimum(cap_watts / board_watts, 1.0)
