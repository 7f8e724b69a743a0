"""Kernels by shape and traffic: limits, monotony, row independence, dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.formula import FORMULAS, FormulaInfo
from gpucalc.estimate import products
from gpucalc.formulas import attention, roofline
from gpucalc.formulas.roofline import gemm_compute_time, gemm_memory_time, smooth_maximum, tile_utilisation

CONSTANTS: dict[str, Any] = {
    "peak": 989.4e12,
    "memory_bandwidth": 3.35e12,
    "compute_units": 132,
    "l2_bytes": 50e6,
    "element_bytes": 2.0,
    "output_bytes": 2.0,
    "gemm_efficiency": 0.85,
    "gemm_wave_exponent": 0.35,
    "gemm_k_half": 100.0,
    "gemm_l2_miss_penalty": 0.03,
    "gemm_memory_efficiency": 0.84,
    "gemm_l2_read_ratio": 0.97,
    "gemm_launch_seconds": 3.3e-6,
}
sizes = st.integers(1, 100_000)
OURS = [i for i in FORMULAS.values() if i.function.__module__ in {roofline.__name__, attention.__name__}]


def time(m: Any, n: Any, k: Any, **changed: Any) -> Any:
    return products.seconds(products.add_gemm, {"m": m, "n": n, "k": k, **CONSTANTS, **changed})


@given(sizes, sizes, sizes, st.floats(1.0, 20.0))
def test_more_peak_or_bandwidth_is_never_slower(m: int, n: int, k: int, factor: float) -> None:
    before = time(m, n, k)
    for name in ("peak", "memory_bandwidth"):
        assert time(m, n, k, **{name: CONSTANTS[name] * factor}) <= before * (1 + 1e-12)


@given(sizes, sizes, sizes)
def test_time_lies_between_the_larger_part_and_the_sum(m: int, n: int, k: int) -> None:
    shared = {"l2_bytes": 50e6, "output_bytes": 2.0}
    names = ("gemm_efficiency", "gemm_wave_exponent", "gemm_k_half", "gemm_l2_miss_penalty")
    compute = gemm_compute_time(m, n, k, 989.4e12, 132, **shared, **{x: CONSTANTS[x] for x in names})
    memory = gemm_memory_time(
        m, n, k, 3.35e12, **shared, element_bytes=2.0, gemm_memory_efficiency=0.84, gemm_l2_read_ratio=0.97
    )
    total = time(m, n, k) - CONSTANTS["gemm_launch_seconds"]
    assert max(compute, memory) * (1 - 1e-9) <= total <= (compute + memory) * (1 + 1e-9)


@given(sizes, sizes, sizes)
def test_no_product_exceeds_the_peak_or_the_memory(m: int, n: int, k: int) -> None:
    """Faster than the datasheet only where the cache, not the memory, serves the operands."""
    assert time(m, n, k) > 2.0 * m * n * k / CONSTANTS["peak"]
    traffic = roofline.gemm_traffic(m, n, k, 2.0, 2.0)
    assert time(m, n, k) > traffic * CONSTANTS["gemm_l2_read_ratio"] / CONSTANTS["memory_bandwidth"]


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=20))
def test_a_row_of_a_batch_equals_the_row_alone(shapes: list[tuple[int, int, int]]) -> None:
    m, n, k = np.array(shapes, dtype=float).T
    alone = [float(time(float(a), float(b), float(c))) for a, b, c in shapes]
    np.testing.assert_allclose(time(m, n, k), alone, rtol=1e-12)


@given(sizes, sizes, st.integers(1, 500))
def test_utilisation_is_a_share_and_symmetric(m: int, n: int, units: int) -> None:
    share = tile_utilisation(m, n, units)
    assert 0 < share <= 1
    assert share == pytest.approx(tile_utilisation(n, m, units))


def test_one_more_tile_than_units_halves_utilisation() -> None:
    full = tile_utilisation(256 * 12, 128 * 11, 132)  # 132 tiles of 256 x 128
    spilled = tile_utilisation(256 * 133, 128, 132)  # 133 tiles: a second wave for one tile
    assert full == 1.0
    assert spilled == pytest.approx(0.93 * 266 / 396)  # 266 tiles of 128 x 128 in 3 waves beat 133 / 264


def test_time_is_continuous_away_from_tile_edges() -> None:
    """One more row inside a tile changes time by about its share of the work (known fault: step efficiencies)."""
    m = np.arange(2, 20_000, dtype=float)
    before, after = time(m[:-1], 4096.0, 4096.0), time(m[1:], 4096.0, 4096.0)
    inside = np.ceil(m[1:] / 128) == np.ceil(m[:-1] / 128)
    assert np.all(np.abs(after / before - 1)[inside] < 0.02)


def test_misaligned_sizes_cost_the_stated_factor() -> None:
    aligned = time(4096.0, 8192.0, 8192.0, gemm_misalignment=1.12)
    assert aligned == time(4096.0, 8192.0, 8192.0)
    shape = (16384.0, 1800.0, 16384.0)  # hidden 14400 over 8 ranks
    assert time(*shape, gemm_misalignment=1.12) / time(*shape) == pytest.approx(1.12, rel=0.005)


def test_sustained_clock_scales_only_the_compute_part() -> None:
    large, small = (16384.0, 16384.0, 16384.0), (1.0, 8192.0, 8192.0)
    assert time(*large, sustained_clock=0.93) / time(*large) == pytest.approx(1 / 0.93, rel=0.01)
    assert time(*small, sustained_clock=0.93) / time(*small) == pytest.approx(1.0, rel=0.01)


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.floats(1.0, 20.0))
def test_smooth_maximum_lies_between_maximum_and_sum(first: float, second: float, order: float) -> None:
    value = smooth_maximum(first, second, order)
    assert max(first, second) * (1 - 1e-12) <= value <= (first + second) * (1 + 1e-9)


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
@given(data=st.data())
def test_results_rescale_by_their_units(info: FormulaInfo, data: st.DataObject) -> None:
    """A hidden constant with a unit would survive a change of the byte, the second or the FLOP."""
    base = {"Ratio": st.floats(0.1, 1.0), "other": st.floats(1.0, 1e4)}
    values = {}
    for name in info.parameters:
        pure = info.units[name].symbol == ""
        values[name] = data.draw(st.integers(1, 4096).map(float) if pure else base["other"], label=name)
    for name in ("compute_units", "heads", "kv_heads"):
        if name in values:
            values[name] = float(int(values[name]))
    factor = {"byte": 3.0, "second": 7.0, "flop": 11.0}
    if info.name == "unfused_attention_time" or "exponent" in "".join(info.parameters):
        for name in info.parameters:  # shares as exponents must stay small to stay finite
            if name.endswith(("exponent", "order")):
                values[name] = 2.0

    def scale(unit: Any) -> float:
        return factor["byte"] ** unit.byte * factor["second"] ** unit.second * factor["flop"] ** unit.flop

    before = info.function(**values)
    after = info.function(**{n: v * scale(info.units[n]) for n, v in values.items()})
    assert float(after) == pytest.approx(float(before) * scale(info.units["return"]), rel=1e-9)
