"""The clock that a GPU holds at its power limit."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Ratio


@formula(symbol="f/f_0", cite="gpucalc-calibration", valid="dense products, minutes of load")
def sustained_clock(power_share: Ratio, clock_at_reference: Ratio, power_exponent: Ratio) -> Ratio:
    """Clock held through training over that of an isolated product, at most 1.

    `power_share` is what the board may draw per FLOP/s of its peak over the same of the architecture's reference
    part; dynamic power grows with the square to cube of the clock, so the clock follows with an exponent of 0.33
    to 0.5.

    >>> round(float(sustained_clock(500 / 700, 0.93, 0.4)), 3), float(sustained_clock(2.0, 0.93, 0.4))
    (0.813, 1.0)
    """
    return np.minimum(1.0, clock_at_reference * power_share**power_exponent)
