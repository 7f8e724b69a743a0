"""Dimensional homogeneity: with other units of byte, second and FLOP every formula gives the same quantity.

A bare "12 bytes per parameter" hidden in a formula does not rescale with the byte and fails here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from test_formulas_contract import ALL, every_formula

from gpucalc.core.formula import FormulaInfo
from gpucalc.core.units import Bytes, Count, Unit

SCALES = st.sampled_from([2.0, 3.0, 4.0, 8.0, 1e3, 1e-3])
QUANTITY = st.floats(1e-3, 1e3)


def factor(unit: Unit, byte: float, second: float, flop: float) -> float:
    """By how much a number in this unit grows when byte, second and FLOP become smaller by these factors."""
    return byte**unit.byte * second**unit.second * flop**unit.flop


def values(info: FormulaInfo) -> st.SearchStrategy[dict[str, float]]:
    def of(name: str) -> st.SearchStrategy[float]:
        unit = info.units[name]
        if unit.byte or unit.second or unit.flop:
            return QUANTITY
        if name in info.defaults:
            return st.just(float(info.defaults[name]))
        return st.integers(1, 64).map(float) | st.sampled_from([0.25, 0.5, 1.0])

    return st.fixed_dictionaries({name: of(name) for name in info.parameters})


def evaluate(info: FormulaInfo, arguments: dict[str, float]) -> float:
    with np.errstate(all="ignore"):
        try:
            return float(info.function(**{name: np.float64(value) for name, value in arguments.items()}))
        except ZeroDivisionError:
            return math.nan


def rescaled(info: FormulaInfo, arguments: dict[str, float], scales: tuple[float, float, float]) -> tuple[float, float]:
    """The result in other units: computed in them, and converted from the result in SI."""
    other = {name: value * factor(info.units[name], *scales) for name, value in arguments.items()}
    return evaluate(info, other), evaluate(info, arguments) * factor(info.units["return"], *scales)


@every_formula
@settings(max_examples=examples(25))
@given(data=st.data(), scales=st.tuples(SCALES, SCALES, SCALES))
def test_a_formula_rescales_by_its_unit(info: FormulaInfo, data: Any, scales: tuple[float, float, float]) -> None:
    found, expected = rescaled(info, data.draw(values(info)), scales)
    if math.isfinite(expected):
        # An absolute slack only against cancellation, relative to the size of the operands.
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9 * factor(info.units["return"], *scales))


def test_a_hidden_constant_is_caught() -> None:
    def hidden(parameters: Count) -> Bytes:
        return parameters * 12  # type: ignore[operator]

    found, expected = rescaled(FormulaInfo(hidden, "M", "", ""), {"parameters": 5.0}, (2.0, 1.0, 1.0))
    assert found != pytest.approx(expected)


def test_most_formulas_carry_units_at_all() -> None:
    dimensional = [i for i in ALL if any(u.byte or u.second or u.flop for u in i.units.values())]
    assert len(dimensional) > 50
