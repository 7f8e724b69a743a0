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


@formula(symbol="E[S]", cite="allen1990", valid="shares of all jobs; size of a job over that of the gang")
def mixed_run(job_share: Ratio, relative_size: Ratio, class_run: Seconds) -> Seconds:
    """Mean time that jobs of several classes hold what one gang needs: the sum of p·s/g·t.

    Seven jobs of ten are an eighth of the gang and run 1 h, three are as large and run 12 h:

    >>> round(float(mixed_run(np.array([0.7, 0.3]), np.array([1 / 8, 1.0]), np.array([3600.0, 43200.0]))))
    13275
    """
    return np.sum(job_share * relative_size * class_run)


@formula(symbol="c_m", cite="allen1990", valid="exponential run times within a class")
def mixed_variation(job_share: Ratio, relative_size: Ratio, class_run: Seconds, mixed_run: Seconds) -> Ratio:
    """Variation of the time that jobs of several classes hold: sqrt(2·sum of p·(s/g·t)² / E[S]² - 1).

    One class is exponential:

    >>> float(mixed_variation(np.array([1.0]), np.array([1.0]), np.array([3600.0]), 3600.0))
    1.0
    """
    return np.sqrt(2 * np.sum(job_share * (relative_size * class_run) ** 2) / mixed_run**2 - 1)


@formula(symbol="o'", cite="leiserson1985", valid="own <= leaf_nodes; 0 <= neighbours <= 1")
def shared_oversubscription(oversubscription: Ratio, own: Count, leaf_nodes: Count, neighbours: Ratio) -> Ratio:
    """Oversubscription that a job sees on a leaf whose uplinks it shares: o·(p + ν·(L - p))/L, at least 1.

    `neighbours` of the leaf's other nodes run jobs whose rings leave it too. Four of 32 nodes at 7:1, alone and with
    all others crossing:

    >>> float(shared_oversubscription(7.0, 4.0, 32.0, 0.0)), float(shared_oversubscription(7.0, 4.0, 32.0, 1.0))
    (1.0, 7.0)
    """
    return np.maximum(1.0, oversubscription * (own + neighbours * (leaf_nodes - own)) / leaf_nodes)
