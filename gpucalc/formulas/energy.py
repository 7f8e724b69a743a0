"""Power, energy and carbon of nodes and of a run.

Symbols: P power, G accelerators of a node, k wall power of a node under training load over the power limits of its
accelerators together, u share of its limit that an accelerator draws, PUE power of the building over that of the nodes.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Grams, GramsPerJoule, Joules, PerSecond, Ratio, Seconds, Watts


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


@formula(symbol="P_gpu", cite="mlperf-power", valid="cap_watts above the idle power")
def drawn_power(board_watts: Watts, cap_watts: Watts, load_draw: Ratio) -> Watts:
    """What an accelerator draws in training: a share of its limit, or all of a lower cap.

    >>> float(drawn_power(700.0, 700.0, 0.95)), float(drawn_power(700.0, 500.0, 0.95))
    (665.0, 500.0)
    """
    return np.minimum(load_draw * board_watts, cap_watts)


@formula(symbol="P_idle", cite="acme2024", valid="")
def idle_node_power(
    gpus_per_node: Count, board_watts: Watts, host_watts: Watts, idle_host_share: Ratio, idle_gpu_share: Ratio
) -> Watts:
    """Power of a node that does nothing.

    >>> round(float(idle_node_power(8.0, 400.0, 1500.0, 0.67, 0.16)))
    1517
    """
    return idle_host_share * host_watts + gpus_per_node * idle_gpu_share * board_watts


@formula(symbol="P(u)", cite="mlperf-power", valid="0 <= utilisation <= 1")
def node_power_at(
    gpus_per_node: Count, gpu_watts: Watts, host_watts: Watts, idle_node_watts: Watts, utilisation: Ratio
) -> Watts:
    """Power of a node between idle and full load: P_idle + u·(P_host + G·P_gpu - P_idle).

    >>> round(float(node_power_at(8.0, 665.0, 1512.0, 1560.0, 1.0)))
    6832
    >>> round(float(node_power_at(8.0, 665.0, 1512.0, 1560.0, 0.0)))
    1560
    """
    return idle_node_watts + utilisation * (host_watts + gpus_per_node * gpu_watts - idle_node_watts)


@formula(symbol="P_IT", cite="gpucalc-counting", valid="")
def cluster_power(racked_watts: Watts, n_gpus: Count, network_watts: Watts) -> Watts:
    """Nodes, with what their racks hold besides, and the switches of the network.

    >>> float(cluster_power(438400.0, 512.0, 10.0))
    443520.0
    """
    return racked_watts + n_gpus * network_watts


@formula(symbol="P_rack", cite="gpucalc-counting", valid="rack_overhead >= 1")
def racked_power(nodes: Count, node_watts: Watts, n_gpus: Count, scale_up_watts: Watts, rack_overhead: Ratio) -> Watts:
    """Nodes with the switch trays of their scale-up network, and what power shelves and pumps of the rack take.

    18 trays of 5,760 W, 125 W of NVLink switches a GPU, 5 % of shelves and pumps: 118 kW for 72 GPUs.

    >>> round(float(racked_power(18.0, 5760.0, 72.0, 125.0, 1.05)) / 1e3, 1)
    118.3
    """
    return (nodes * node_watts + n_gpus * scale_up_watts) * rack_overhead


@formula(symbol="P_run", cite="mlperf-power", valid="duration > 0")
def run_power(node_watts: Watts, idle_node_watts: Watts, duration: Seconds, idle_ends: Seconds) -> Watts:
    """Mean power of a node over a log of some length, whose ends are idle: they count where it is short.

    >>> round(float(run_power(6776.0, 1872.0, 430.5, 78.0)))
    5887
    """
    return node_watts - (node_watts - idle_node_watts) * np.minimum(idle_ends / duration, 0.5)


@formula(symbol="P_IT/n", cite="gpucalc-counting", valid="")
def power_per_gpu(it_watts: Watts, n_gpus: Count) -> Watts:
    """What one accelerator draws with its share of host and network.

    >>> float(power_per_gpu(8000.0, 8.0))
    1000.0
    """
    return it_watts / n_gpus


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
def energy_per_piece(watts: Watts, rate: PerSecond) -> Joules:
    """Energy of one token or sample, of which so many are done in a second.

    >>> float(energy_per_piece(6000.0, 3000.0))
    2.0
    """
    return watts / rate


@formula(symbol="m_CO2", cite="codecarbon", valid="embodied carbon of the hardware left out")
def carbon(energy: Joules, carbon_intensity: GramsPerJoule) -> Grams:
    """Carbon dioxide of the electricity.

    >>> round(float(carbon(3.6e9, 400 / 3.6e6)))
    400000
    """
    return energy * carbon_intensity


@formula(symbol="P_cap/P_0", cite="gpucalc-counting", valid="cap_watts <= board_watts")
def cap_share(cap_watts: Watts, board_watts: Watts, load_draw: Ratio) -> Ratio:
    """A power cap over what an accelerator draws in training: a cap at or above that changes nothing.

    >>> round(float(cap_share(490.0, 700.0, 0.95)), 4), float(cap_share(680.0, 700.0, 0.95))
    (0.7368, 1.0)
    """
    return np.minimum(cap_watts / (load_draw * board_watts), 1.0)
