"""Attention: windows, limits, monotony, row independence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.estimate import products
from gpucalc.formulas.attention import (
    attended_keys,
    attention_flops,
    unfused_attention_time,
)

FLASH: dict[str, Any] = {
    "peak": 989.4e12,
    "memory_bandwidth": 3.35e12,
    "compute_units": 132,
    "attention_element_bytes": 2.0,
    "attention_efficiency": 0.59,
    "attention_half": 180.0,
    "attention_tail": 0.95,
    "attention_passes": 2.0,
    "attention_launch_seconds": 13e-6,
}
DECODE: dict[str, Any] = {
    "kv_bytes": 2.0,
    "attention_element_bytes": 2.0,
    "peak": 989.4e12,
    "memory_bandwidth": 3.35e12,
    "compute_units": 132,
    "l2_bytes": 50e6,
    "attention_efficiency": 0.59,
    "decode_memory_efficiency": 0.93,
    "decode_l2_read_ratio": 0.07,
    "decode_block_seconds": 1.6e-6,
    "decode_launch_seconds": 20e-6,
}
lengths, few, groups = st.integers(1, 200_000), st.integers(1, 64), st.integers(1, 16)


def prefill(batch: Any, length: Any, heads: Any, kv_heads: Any, head_dim: Any = 128, **changed: Any) -> Any:
    attended = attended_keys(length, changed.pop("window", length), 1)
    shape = {"batch": batch, "queries": length, "keys": length, "attended": attended}
    heads_of = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return products.seconds(products.add_flash_attention, {**shape, **heads_of, **FLASH, **changed})


def decode(batch: Any, length: Any, heads: Any, kv_heads: Any, **changed: Any) -> Any:
    shape = {"batch": batch, "context": length, "heads": heads, "kv_heads": kv_heads, "head_dim": 128}
    return products.seconds(products.add_decode_attention, {**shape, **DECODE, **changed})


@given(lengths, lengths)
def test_a_window_never_adds_keys_and_a_wide_one_changes_nothing(keys: int, window: int) -> None:
    full = attended_keys(keys, keys, 1)
    assert full == keys / 2
    assert attended_keys(keys, window, 1) <= full * (1 + 1e-12)
    assert attended_keys(keys, keys + window, 1) == full


def test_windowed_keys_equal_a_count_over_all_queries() -> None:
    keys, window = 1000, 300
    counted = np.mean([min(q + 0.5, window) for q in range(keys)])  # half of the diagonal element
    assert attended_keys(keys, window, 1) == pytest.approx(counted, rel=1e-3)


@given(few, lengths, few, groups, st.floats(1.0, 10.0))
def test_more_peak_or_bandwidth_is_never_slower(batch: int, length: int, kv: int, group: int, factor: float) -> None:
    for run, constants in (
        (prefill, FLASH),
        (decode, DECODE),
    ):
        before = run(batch, length, kv * group, kv)
        for name in ("peak", "memory_bandwidth"):
            assert run(batch, length, kv * group, kv, **{name: constants[name] * factor}) <= before * (1 + 1e-12)


@given(few, lengths, few, groups)
def test_never_faster_than_the_peak(batch: int, length: int, kv: int, group: int) -> None:
    work = attention_flops(batch, length, attended_keys(length, length, 1), kv * group, 128)
    assert prefill(batch, length, kv * group, kv) > work / FLASH["peak"]


def test_small_heads_cost_the_square_root_of_their_size() -> None:
    whole, half = prefill(1, 65536, 64, 8), prefill(1, 65536, 128, 16, 64)  # the same FLOPs
    assert half / whole == pytest.approx(2**0.5, rel=0.01)


def test_grouped_heads_read_less_and_compute_the_same() -> None:
    times = [float(decode(64, 32768, 64, kv)) for kv in (64, 8)]
    assert times[0] / times[1] == pytest.approx(8, rel=0.05)
    assert prefill(1, 8192, 64, 8) < prefill(1, 8192, 64, 64) < 1.2 * prefill(1, 8192, 64, 8)


def test_flash_beats_unfused_attention_more_at_long_sequences() -> None:
    def ratio(length: float) -> float:
        slow = unfused_attention_time(4, length, length, 32, 128, 312e12, 2.039e12, 0.82, 0.88, 13.0)
        return float(slow / prefill(4, length, 32, 32, peak=312e12, memory_bandwidth=2.039e12))

    assert 2 < ratio(2048) < ratio(16384)


@given(st.lists(st.tuples(few, lengths, few, groups), min_size=1, max_size=12))
def test_a_row_of_a_batch_equals_the_row_alone(rows: list[tuple[int, int, int, int]]) -> None:
    batch, length, kv, group = np.array(rows, dtype=float).T
    alone = [float(prefill(float(b), float(s), float(v * g), float(v))) for b, s, v, g in rows]
    np.testing.assert_allclose(prefill(batch, length, kv * group, kv), alone, rtol=1e-12)
    alone = [float(decode(float(b), float(s), float(v * g), float(v))) for b, s, v, g in rows]
    np.testing.assert_allclose(decode(batch, length, kv * group, kv), alone, rtol=1e-12)
