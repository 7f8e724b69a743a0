"""Hypothesis strategies for the objects of gpucalc."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpucalc.layouts.axes import AXES, Axis
from gpucalc.layouts.label import Layout

LARGEST_COUNT = 5000


def layouts() -> st.SearchStrategy[Layout]:
    """Any layout that the fields can express, whether or not a job could run it."""
    return st.fixed_dictionaries({name: _cells(axis) for name, axis in AXES.items()}).map(lambda cells: Layout(**cells))


def _cells(axis: Axis) -> st.SearchStrategy[Any]:
    """Any cell that a label can state of an axis, or none."""
    column = axis.column
    if column.kind == "choice":
        return st.none() | st.sampled_from(list(column.choices))
    if column.kind == "flag":
        return st.booleans()
    if column.maximum < LARGEST_COUNT:
        return st.none() | st.integers(int(column.minimum), int(column.maximum))
    return st.one_of(st.none(), st.just(1), st.integers(1, LARGEST_COUNT))
