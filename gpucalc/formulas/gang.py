"""Gangs of GPUs on a partly used cluster: whether they fit, what they fragment, and how long they wait."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Ratio, Seconds


@formula(symbol="b_i", cite="slurm-topology", valid="free >= 0; gang_share >= 1")
def free_blocks(free: Count, gang_share: Count) -> Count:
    """Blocks of `gang_share` GPUs that a node with `free` GPUs can still take.

    >>> float(free_blocks(8, 4)), float(free_blocks(7, 8))
    (2.0, 0.0)
    """
    return np.floor_divide(free, gang_share) * 1.0


@formula(symbol="f", cite="slurm-topology", valid="free_gpus > 0; blocks·gang_share <= free_gpus")
def fragmentation(free_gpus: Count, blocks: Count, gang_share: Count) -> Ratio:
    """Share of the free GPUs that no block of `gang_share` can use.

    20 free GPUs that hold one block of 8: 60 %.

    >>> float(fragmentation(20, 1, 8))
    0.6
    """
    return 1 - gang_share * blocks / free_gpus


@formula(symbol="a", cite="allen1990", valid="0 < utilisation < 1")
def offered_load(servers: Count, utilisation: Ratio) -> Count:
    """Gangs that run at a time on the mean.

    >>> float(offered_load(10, 0.5))
    5.0
    """
    return servers * utilisation


@formula(symbol="C", cite="allen1990", valid="servers >= 1; 0 < offered < servers")
def erlang_c(servers: Count, offered: Count) -> Ratio:
    """Probability that a gang must wait when `servers` of its size fit (Erlang's second formula).

    Two servers at a load of one: a third.

    >>> round(float(erlang_c(2, 1.0)), 6), round(float(erlang_c(1, 0.5)), 6)
    (0.333333, 0.5)
    """
    logs = np.cumsum(np.log(np.arange(np.max(servers), 0, -1) / offered))
    largest = np.maximum(np.max(logs), 0.0)
    blocked = 1 / (np.exp(-largest) + np.sum(np.exp(logs - largest))) * np.exp(-largest)
    return blocked / (1 - offered / servers * (1 - blocked))


@formula(symbol="W", cite="allen1990", valid="servers > offered; variations >= 0")
def mean_wait(
    waiting_share: Ratio,
    mean_run: Seconds,
    servers: Count,
    offered: Count,
    arrival_variation: Ratio,
    run_variation: Ratio,
) -> Seconds:
    """Mean wait in the queue: Erlang C, times the variability of arrivals and run times (Allen-Cunneen).

    Variations are standard deviation over mean. Two servers at a load of one, runs of 1 h, exponential: 20 min.

    >>> round(float(mean_wait(1 / 3, 3600.0, 2, 1.0, 1.0, 1.0)))
    1200
    """
    exponential = waiting_share * mean_run / (servers - offered)
    return exponential * (arrival_variation**2 + run_variation**2) / 2


@formula(symbol="W_q", cite="allen1990", valid="0 < left_share < 1; waiting_share > 0")
def wait_quantile(waiting_share: Ratio, mean: Seconds, left_share: Ratio) -> Seconds:
    """Wait that a share `left_share` of the gangs exceeds; those that wait do so exponentially long.

    A third wait, 1200 s on the mean over all: one in ten waits longer than 4334 s.

    >>> round(float(wait_quantile(1 / 3, 1200.0, 0.1)))
    4334
    """
    return np.maximum(np.log(waiting_share / left_share), 0.0) * mean / waiting_share


@formula(symbol="c_s", cite="allen1990", valid="0 < median_run <= mean_run")
def run_time_variation(mean_run: Seconds, median_run: Seconds) -> Ratio:
    """Variation of lognormal run times from their mean and median: sqrt((mean/median)² - 1).

    Mean 1,414 s, median 122 s: 11.5.

    >>> round(float(run_time_variation(1414.0, 122.0)), 1)
    11.5
    """
    return np.sqrt((mean_run / median_run) ** 2 - 1)
