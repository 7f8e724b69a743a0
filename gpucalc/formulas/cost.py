"""Money: capital as a yearly cost, running cost, and what a useful GPU hour costs."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Dollars, DollarsPerJoule, DollarsPerSecond, Joules, Ratio, Seconds, Watts


@formula(symbol="a", cite="gpucalc-counting", valid="years > 0; interest >= 0")
def annuity(interest: Ratio, years: Count) -> Ratio:
    """Share of a sum that is due every year when it is paid back in equal parts: i(1+i)^y/((1+i)^y - 1).

    >>> round(float(annuity(0.1, 5.0)), 4), float(annuity(0.0, 4.0))
    (0.2638, 0.25)
    """
    rate = np.maximum(interest, 1e-9)
    return np.where(interest > 1e-9, rate / (1 - (1 + rate) ** -years), 1 / years)


@formula(symbol="c_cap", cite="gpucalc-counting", valid="")
def capital_rate(capital: Dollars, annuity: Ratio, year: Seconds) -> DollarsPerSecond:
    """Capital as a running cost, whether the hardware works or not.

    >>> round(float(capital_rate(31250.0, 0.2638, 8760 * 3600.0)) * 3600, 3)
    0.941
    """
    return capital * annuity / year


@formula(symbol="c_E", cite="gpucalc-counting", valid="")
def electricity_rate(watts: Watts, electricity_price: DollarsPerJoule) -> DollarsPerSecond:
    """Running cost of a power.

    >>> round(float(electricity_rate(1000.0, 0.08 / 3.6e6)) * 3600, 3)
    0.08
    """
    return watts * electricity_price


@formula(symbol="c_E·E", cite="gpucalc-counting", valid="")
def electricity_cost(energy: Joules, electricity_price: DollarsPerJoule) -> Dollars:
    """Price of an energy.

    >>> round(float(electricity_cost(3.6e9, 0.08 / 3.6e6)), 6)
    80.0
    """
    return energy * electricity_price


@formula(symbol="K", cite="gpucalc-counting", valid="")
def rental_cost(n_gpus: Count, elapsed: Seconds, gpu_price: DollarsPerSecond) -> Dollars:
    """Price of GPUs for a time.

    >>> round(float(rental_cost(8.0, 3600.0, 2.5 / 3600)), 6)
    20.0
    """
    return n_gpus * elapsed * gpu_price


@formula(symbol="c_useful", cite="gpucalc-counting", valid="allocated, useful_share > 0")
def useful_price(gpu_price: DollarsPerSecond, allocated: Ratio, busy: Ratio, useful_share: Ratio) -> DollarsPerSecond:
    """What a GPU costs per time in which it does useful work: its price over allocated × busy × goodput.

    >>> round(float(useful_price(3.0, 0.96, 1.0, 0.9)), 3)
    3.472
    """
    return gpu_price / (allocated * busy * useful_share)


@formula(symbol="c_own", cite="gpucalc-counting", valid="")
def ownership_rate(
    capital_rate: DollarsPerSecond, operating_rate: DollarsPerSecond, electricity_rate: DollarsPerSecond
) -> DollarsPerSecond:
    """What an owned GPU costs per time: capital, operation, electricity.

    >>> float(ownership_rate(1.0, 0.25, 0.1))
    1.35
    """
    return capital_rate + operating_rate + electricity_rate


@formula(symbol="K_cap", cite="gpucalc-counting", valid="")
def total_capital(n_gpus: Count, capital: Dollars) -> Dollars:
    """Capital of all GPUs with their shares of nodes and network.

    >>> float(total_capital(8.0, 31250.0))
    250000.0
    """
    return n_gpus * capital
