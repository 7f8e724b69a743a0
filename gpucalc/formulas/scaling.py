"""Laws of scaling: speed-up, efficiency, serial fraction, the slowest of many, elasticity and cost.

Symbols: n GPUs, n₀ GPUs of the smallest run, s serial fraction, N workers that wait for each other.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, PerSecond, Ratio, Seconds


@formula(symbol="T(n)", cite="amdahl1967", valid="the same work on n >= n0 GPUs")
def amdahl_time(time_at_least: Seconds, serial_fraction: Ratio, relative_gpus: Ratio) -> Seconds:
    """Time on n/n₀ times the GPUs when a fraction s does not become faster: T₀·(s + (1-s)·n₀/n).

    >>> float(amdahl_time(10.0, 0.1, 9.0))
    2.0
    """
    return time_at_least * (serial_fraction + (1 - serial_fraction) / relative_gpus)


@formula(symbol="S(n)", cite="gustafson1988", valid="work that grows with the GPUs")
def gustafson_speedup(serial_fraction: Ratio, relative_gpus: Ratio) -> Ratio:
    """Scaled speed-up when only the parallel part of the work grows: s + (1-s)·n/n₀.

    >>> float(gustafson_speedup(0.1, 11.0))
    10.0
    """
    return serial_fraction + (1 - serial_fraction) * relative_gpus


@formula(symbol="E(n)", cite="amdahl1967", valid="")
def scaling_efficiency(rate: PerSecond, rate_at_least: PerSecond) -> Ratio:
    """Tokens per second and GPU over those of the smallest run.

    >>> float(scaling_efficiency(900.0, 1000.0))
    0.9
    """
    return rate / rate_at_least


@formula(symbol="Φ⁻¹(1-q)", cite="abramowitz1964", valid="0 < upper_tail <= 0.5; error below 4.5e-4")
def normal_quantile(
    upper_tail: Ratio,
    c0: Ratio = 2.515517,
    c1: Ratio = 0.802853,
    c2: Ratio = 0.010328,
    d1: Ratio = 1.432788,
    d2: Ratio = 0.189269,
    d3: Ratio = 0.001308,
) -> Ratio:
    """Standard deviations above the mean that a normal variable exceeds with probability `upper_tail` (26.2.23).

    >>> round(float(normal_quantile(0.025)), 2), abs(float(normal_quantile(0.5))) < 1e-3
    (1.96, True)
    """
    t = np.sqrt(-2 * np.log(upper_tail))
    return t - (c0 + c1 * t + c2 * t**2) / (1 + d1 * t + d2 * t**2 + d3 * t**3)


@formula(symbol="E[max z]", cite="blom1958", valid="workers >= 1, independent")
def expected_largest_deviate(workers: Count, alpha: Ratio = 0.375) -> Ratio:
    """Expected maximum of N standard normal variables, by Blom's plotting position (N-α)/(N-2α+1).

    Exact values are 0.564 for 2, 1.539 for 10, 2.508 for 100 and 3.241 for 1000.

    >>> [round(float(expected_largest_deviate(n)), 2) for n in (1, 2, 10, 100, 1000)]
    [0.0, 0.59, 1.55, 2.5, 3.23]
    """
    tail = (1 - alpha) / (workers - 2 * alpha + 1)
    return np.maximum(normal_quantile(np.minimum(tail, 0.5)), 0.0) * (workers > 1)


@formula(symbol="1+c_v·E[max z]", cite="blom1958", valid="slow-downs of workers normal and independent")
def slowest_normal(workers: Count, variation: Ratio) -> Ratio:
    """Expected slow-down of a step that waits for the slowest of N workers with a coefficient of variation.

    >>> round(float(slowest_normal(1000, 0.01)), 4), float(slowest_normal(1, 0.5))
    (1.0323, 1.0)
    """
    return 1 + variation * expected_largest_deviate(workers)


@formula(
    symbol="e^{σ·E[max z]-σ²/2}", cite="blom1958", valid="slow-downs of workers log-normal with mean 1, independent"
)
def slowest_lognormal(workers: Count, variation: Ratio) -> Ratio:
    """The same for slow-downs with a heavy tail, log-normal with mean 1 and σ² = ln(1+c_v²); at least 1.

    >>> round(float(slowest_lognormal(1000, 0.01)), 4), float(slowest_lognormal(1, 0.5))
    (1.0327, 1.0)
    """
    spread = np.sqrt(np.log(1 + variation**2))
    return np.maximum(np.exp(spread * expected_largest_deviate(workers) - spread**2 / 2), 1.0)


@formula(symbol="∂lnT/∂lnx", cite="gpucalc-counting", valid="positive times; unequal factors")
def elasticity(time_more: Seconds, time_less: Seconds, factor_more: Ratio, factor_less: Ratio) -> Ratio:
    """Relative change of a time over the relative change of what it depends on; -1: twice as much, half the time.

    >>> float(elasticity(1.0, 2.0, 2.0, 1.0)), float(elasticity(3.0, 3.0, 1.01, 0.99))
    (-1.0, 0.0)
    """
    return np.log(time_more / time_less) / np.log(factor_more / factor_less)


@formula(symbol="$/token", cite="gpucalc-counting", valid="")
def training_token_cost(price_rate: PerSecond, token_rate: PerSecond) -> Ratio:
    """Price of one token: what a GPU costs per second over the tokens it trains per second.

    >>> float(training_token_cost(0.001, 500.0))
    2e-06
    """
    return price_rate / token_rate
