"""How rows of a ranking are shown: which tie with the fastest, and the band around a step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tie_marks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """ "=" beside each row whose step time the model cannot tell from the fastest one's."""
    from gpucalc.questions.plan import TIE

    times = [row["pred_step_time_s"] for row in rows]
    fastest = min(range(len(times)), key=times.__getitem__, default=0)
    return ["=" if i != fastest and time <= times[fastest] * (1 + TIE) else "" for i, time in enumerate(times)]


def band(row: Mapping[str, Any]) -> str:
    """The 80 % band of a row's step time, as percentages around it; empty where the row has none.

    >>> band({"pred_step_time_s": 2.0, "pred_step_time_low_s": 1.8, "pred_step_time_high_s": 2.5})
    '-10 % … +25 %'
    """
    time, low, high = (row.get(f"pred_step_time_{part}s") for part in ("", "low_", "high_"))
    if not (time and low and high):
        return ""
    return f"{100 * (low / time - 1):+.0f} % … {100 * (high / time - 1):+.0f} %"
