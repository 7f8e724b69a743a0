"""Micro-batches in flight and idle time of each schedule: the closed forms against the schedules' own orders."""

from __future__ import annotations

from fractions import Fraction

import pytest
from pipeline_orders import (
    Costs,
    Orders,
    dualpipe,
    dualpipe_v,
    gpipe,
    in_flight,
    interleaved,
    makespan,
    one_f_one_b,
    zero_bubble,
)

from gpucalc.formulas import pipeline

ONE, HALF, ZERO = Fraction(1), Fraction(1, 2), Fraction(0)


def held(orders: Orders, weight_share: Fraction = ZERO, chunks: int = 1) -> list[float]:
    return [float(in_flight(order, weight_share) / chunks) for order in orders]


def idle(orders: Orders, costs: Costs, ends: tuple[int, ...] = ()) -> float:
    """Time of the whole, less the work of the rank that idles most; ranks overlap more or fewer passes."""
    spans = makespan(orders, costs, ends)
    work = min(sum((costs.of(one.kind) for one in order), ZERO) for order in orders)
    return float(max(end for _, end in spans) - min(start for start, _ in spans) - work)


@pytest.mark.parametrize(
    ("p", "v", "m", "expected"),
    [
        (8, 4, 64, [9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25]),
        (8, 4, 16, [9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25]),
        (8, 2, 64, [11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5]),
        (4, 2, 32, [5.5, 4.5, 3.5, 2.5]),
        (4, 2, 4, [4, 4, 3.5, 2.5]),
        (4, 3, 8, [5, 13 / 3, 11 / 3, 3]),
        (8, 4, 8, [8, 8, 8, 8, 7.75, 7.25, 6.75, 6.25]),
        (4, 4, 4, [4, 4, 3.75, 3.25]),
        (16, 2, 32, [23.5 - i for i in range(16)]),
    ],
)
def test_interleaved_in_flight(p: int, v: int, m: int, expected: list[float]) -> None:
    """T01 to T04: Megatron-LM schedules.py, get_pp_rank_microbatches."""
    assert held(interleaved(p, v, m), chunks=v) == pytest.approx(expected)
    found = [float(pipeline.in_flight_interleaved(m, p, v, i)) for i in range(p)]
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [64, 4])
def test_1f1b_and_gpipe_in_flight(m: int) -> None:
    """T06."""
    expected = [8, 7, 6, 5, 4, 3, 2, 1] if m == 64 else [4, 4, 4, 4, 4, 3, 2, 1]
    assert held(one_f_one_b(8, m)) == expected
    assert [float(pipeline.in_flight_1f1b(m, 8, i)) for i in range(8)] == expected
    assert held(gpipe(4, 16)) == [16] * 4 == [float(pipeline.in_flight_gpipe(16.0))] * 4


@pytest.mark.parametrize("share", [ONE, HALF])
@pytest.mark.parametrize("doubled", [False, True])
def test_zero_bubble_in_flight(share: Fraction, doubled: bool) -> None:
    """T07, T08: Qi et al. 2024."""
    formula = pipeline.in_flight_zero_bubble_2 if doubled else pipeline.in_flight_zero_bubble_1
    expected = {
        (False, ONE): [8.0] * 8,
        (False, HALF): [8, 7.5, 7, 6.5, 6, 5.5, 5, 4.5],
        (True, ONE): [15.0] * 8,
        (True, HALF): [15, 14, 13, 12, 11, 10, 9, 8],
    }[doubled, share]
    assert held(zero_bubble(8, 64, doubled), share) == expected
    assert [float(formula(64, 8, i, float(share))) for i in range(8)] == expected


def test_dualpipe_in_flight() -> None:
    """T10, T11: DeepSeek's dualpipe.py and dualpipev.py."""
    assert held(dualpipe(8, 32)) == [9] * 8 == [float(pipeline.in_flight_dualpipe(32, 8))] * 8
    for p in (4, 8):
        assert (
            held(dualpipe_v(p, 4 * p), chunks=2) == [p + 0.5] * p == [float(pipeline.in_flight_dualpipe_v(99, p))] * p
        )


@pytest.mark.parametrize(
    ("orders", "passes", "expected"),
    [
        (interleaved(8, 4, 32), pipeline.idle_passes_interleaved(8, 4), 5.25),
        (interleaved(8, 2, 32), pipeline.idle_passes_interleaved(8, 2), 10.5),
        (interleaved(4, 3, 16), pipeline.idle_passes_interleaved(4, 3), 3.0),
        (one_f_one_b(8, 16), pipeline.idle_passes_1f1b(8), 21.0),
        (gpipe(4, 8), pipeline.idle_passes_1f1b(4), 9.0),
    ],
    ids=["int 8 4", "int 8 2", "int 4 3", "1f1b", "gpipe"],
)
def test_idle_time(orders: Orders, passes: float, expected: float) -> None:
    """T05: F = 1, B = 2 for a stage; a chunk takes 1/v of it. Narayanan et al. 2021."""
    chunks = 1 + max(one.stage for one in orders[0]) // len(orders)
    share = Fraction(1, chunks)
    assert idle(orders, Costs(share, 2 * share)) == pytest.approx(expected)
    assert float(pipeline.bubble_time(passes, 1.0, 2.0, 0.0, 0.0, 1, 0)) == pytest.approx(expected)


def test_zero_bubble_idle_time() -> None:
    """T09: ZB-H1 (p-1)(F+B-2W); ZB-H2 leaves no rank idle between its first and its last pass."""
    costs = Costs(ONE, Fraction(2), ONE)
    assert idle(zero_bubble(8, 24, doubled=False), costs) == 7.0
    assert float(pipeline.bubble_time(7, 1.0, 2.0, 1.0, 0.0, 1, 2)) == 7.0
    orders = zero_bubble(8, 24, doubled=True)
    for (start, end), order in zip(makespan(orders, costs), orders, strict=True):
        assert end - start == sum((costs.of(one.kind) for one in order), ZERO)
    assert float(pipeline.bubble_time(7, 1.0, 2.0, 1.0, 0.0, 1, 3)) == 0.0


@pytest.mark.parametrize(("overlapped", "expected"), [(3.0, 6.0), (2.5, 4.5)])
def test_dualpipe_idle_time(overlapped: float, expected: float) -> None:
    """T10: (p/2-1)(F&B + B - 3W)."""
    costs = Costs(ONE, Fraction(2), ONE, Fraction(overlapped))
    assert idle(dualpipe(8, 32), costs, ends=(8,)) == expected
    closed = pipeline.bubble_time(pipeline.idle_passes_dualpipe(8), overlapped - 2, 2.0, 1.0, 0.0, 2, 3)
    assert float(closed) == pytest.approx(expected)


@pytest.mark.parametrize(("p", "expected"), [(4, 3.0), (8, 7.0)])
def test_dualpipe_v_idle_time(p: int, expected: float) -> None:
    """T11: (p-1)(F&B + B - 3W) of half stages, F 0.5, B 1, W 0.5, F&B 1.5."""
    costs = Costs(HALF, ONE, HALF, Fraction(3, 2))
    assert idle(dualpipe_v(p, 6 * p), costs) == expected
    closed = pipeline.bubble_time(pipeline.idle_passes_dualpipe_v(p), 1.0, 2.0, 1.0, 0.0, 2, 3)
    assert float(closed) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_the_fullest_stage_is_one_of_three(share: float) -> None:
    """With equal middle stages the first, the second or the last is the fullest, whatever the ends hold beside."""
    for formula in (
        lambda i: pipeline.in_flight_1f1b(64, 8, i),
        lambda i: pipeline.in_flight_interleaved(64, 8, 3, i),
        lambda i: pipeline.in_flight_zero_bubble_1(64, 8, i, share),
        lambda i: pipeline.in_flight_zero_bubble_2(64, 8, i, share),
    ):
        middle = [float(formula(i)) for i in range(1, 7)]
        assert max(middle) == middle[0]
