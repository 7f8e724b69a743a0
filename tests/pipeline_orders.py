"""Orders of forward, backward and weight-gradient passes that pipeline schedules run on each rank, and their timing.

Written from the published algorithms, independently of the closed forms that they check. A pass is
(kind, stage, micro-batch): F forward, B backward with its weight gradients, I its input part, W its weight part;
"FB" runs a forward and a backward at once. Stages are counted along the model, not along the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage; `other` is what runs at once with it."""

    kind: str
    stage: int
    batch: int
    other: tuple[int, int] | None = None  # stage and micro-batch of the backward of an "FB"


Orders = list[list[Pass]]


def gpipe(p: int, m: int) -> Orders:
    """All forwards, then all backwards."""
    return [[*(Pass("F", i, k) for k in range(m)), *(Pass("B", i, k) for k in range(m))] for i in range(p)]


def one_f_one_b(p: int, m: int) -> Orders:
    """1F1B (PipeDream-Flush)."""
    orders = []
    for i in range(p):
        warm = min(p - i - 1, m)
        order = [Pass("F", i, k) for k in range(warm)]
        for k in range(m - warm):
            order += [Pass("F", i, warm + k), Pass("B", i, k)]
        orders.append(order + [Pass("B", i, k) for k in range(m - warm, m)])
    return orders


def interleaved(p: int, v: int, m: int) -> Orders:
    """Megatron's interleaved 1F1B: groups of p micro-batches pass chunk by chunk; chunk c of rank i is stage c·p+i."""
    assert m % p == 0
    orders = []
    for i in range(p):
        table = [(c, g * p + k) for g in range(m // p) for c in range(v) for k in range(p)]
        forward = [Pass("F", c * p + i, k) for c, k in table]
        backward = [Pass("B", (v - 1 - c) * p + i, k) for c, k in table]
        warm = min(2 * (p - i - 1) + (v - 1) * p, m * v)
        order = forward[:warm]
        for k in range(m * v - warm):
            order += [forward[warm + k], backward[k]]
        orders.append(order + backward[m * v - warm :])
    return orders


def zero_bubble(p: int, m: int, doubled: bool) -> Orders:
    """ZB-H1, or ZB-H2 (`doubled`): weight gradients wait i (2i) micro-batches on rank i, and fill the drain."""
    orders = []
    for i in range(p):
        warm = (2 * (p - i) - 2) if doubled else (p - i - 1)
        wait = 2 * i if doubled else i
        order = [Pass("F", i, k) for k in range(warm)]
        done = weights = 0
        for k in range(warm, m):
            order += [Pass("F", i, k), Pass("I", i, done)]
            done += 1
            if done - weights > wait:
                order.append(Pass("W", i, weights))
                weights += 1
        while done < m:
            order.append(Pass("I", i, done))
            done += 1
            if weights < done:
                order.append(Pass("W", i, weights))
                weights += 1
        orders.append(order + [Pass("W", i, k) for k in range(weights, m)])
    return orders


class _Dual:
    """Builds the order of one rank of DualPipe or DualPipe-V; phase 0 runs down the ranks, phase 1 the other way."""

    def __init__(self, stages: tuple[int, int], batches: tuple[int, int]) -> None:
        self.stages, self.first = stages, batches
        self.forward, self.backward = [0, 0], [0, 0]
        self.waiting: list[tuple[int, int]] = []
        self.order: list[Pass] = []

    def f(self, phase: int) -> None:
        self.order.append(Pass("F", self.stages[phase], self.first[phase] + self.forward[phase]))
        self.forward[phase] += 1

    def b(self, phase: int, split: bool = False) -> None:
        where = (self.stages[phase], self.first[phase] + self.backward[phase])
        self.order.append(Pass("I" if split else "B", *where))
        self.backward[phase] += 1
        if split:
            self.waiting.append(where)

    def w(self) -> None:
        self.order.append(Pass("W", *self.waiting.pop(0)))

    def fb(self, forward: int, backward: int) -> None:
        other = (self.stages[backward], self.first[backward] + self.backward[backward])
        self.order.append(Pass("FB", self.stages[forward], self.first[forward] + self.forward[forward], other))
        self.forward[forward] += 1
        self.backward[backward] += 1


def _dual(build: _Dual, early: int, own: int, overlapped: int, swap: bool, last: bool) -> list[Pass]:
    """The eight steps of DeepSeek's code: `early` and `own` of a rank's place, `overlapped` rounds in the middle."""
    a, b = (1, 0) if swap else (0, 1)
    for _ in range(2 * early):
        build.f(a)
    for _ in range(own):
        build.f(a), build.f(b)
    for _ in range(early):
        build.b(b, split=True), build.w(), build.f(b)
    for k in range(overlapped):
        if k == 0 and last:
            build.f(a), build.b(b)
        else:
            build.fb(a, b)
        build.fb(b, a)
    for _ in range(early):
        build.b(b), build.fb(b, a)
    split = False
    for k in range(own):
        if k == own // 2 and own % 2 == 0:
            split = True
        build.b(b, split=split)
        if k == own // 2 and own % 2 == 1:
            split = True
        build.b(a, split=split)
    for _ in range(early):
        build.w(), build.b(a, split=True)
    for _ in range(len(build.waiting)):
        build.w()
    return build.order


def dualpipe(p: int, m: int) -> Orders:
    """DualPipe: micro-batches enter at both ends; batch numbers from m/2 go the other way over stages p..2p-1."""
    orders = []
    for rank in range(p):
        # The other direction's model: its stage s lies on rank p-1-s.
        build = _Dual((rank, p + (p - 1 - rank)), (0, m))
        place = min(rank, p - 1 - rank)
        rounds = m // 2 - p + place + 1
        middle = rank in (p // 2 - 1, p // 2)
        orders.append(_dual(build, p // 2 - place - 1, place + 1, rounds, rank >= p // 2, middle))
    return orders


def dualpipe_v(p: int, m: int) -> Orders:
    """DualPipe-V: rank r holds half stages r and 2p-1-r of one model."""
    orders = []
    for rank in range(p):
        build = _Dual((rank, 2 * p - 1 - rank), (0, 0))
        orders.append(_dual(build, p - rank - 1, rank + 1, m - 2 * p + rank + 1, False, rank == p - 1))
    return orders


@dataclass(frozen=True)
class Costs:
    """Durations of the passes of one stage; `overlapped` of a forward and a backward at once."""

    forward: Fraction
    backward: Fraction
    weight: Fraction = Fraction(0)
    overlapped: Fraction = Fraction(0)

    def of(self, kind: str) -> Fraction:
        """Seconds of a pass."""
        return {
            "F": self.forward,
            "B": self.backward,
            "I": self.backward - self.weight,
            "W": self.weight,
            "FB": self.overlapped,
        }[kind]


def in_flight(order: list[Pass], weight_share: Fraction) -> Fraction:
    """The largest number of stage passes whose activations a rank holds; `weight_share` of one stays until its W."""
    held = peak = Fraction(0)
    for one in order:
        if one.kind in {"F", "FB"}:
            held += 1
        peak = max(peak, held)
        held -= {"B": Fraction(1), "FB": Fraction(1), "I": 1 - weight_share, "W": weight_share}.get(one.kind, 0)
    return peak


def _needs(kind: str, stage: int, batch: int, ends: tuple[int, ...], known: set[tuple[str, int, int]]) -> object:
    """The pass that must end before this one starts, and None for the first of a model."""
    if kind == "F":
        return ("F", stage - 1, batch) if stage and stage not in ends else None
    if kind == "W":
        return ("I", stage, batch)
    following = ("B", stage + 1, batch)
    return following if following in known and stage + 1 not in ends else ("F", stage, batch)


def makespan(orders: Orders, costs: Costs, ends: tuple[int, ...] = ()) -> list[tuple[Fraction, Fraction]]:
    """Start of the first and end of the last pass of each rank; `ends` are further stages that begin a model."""
    known = set()
    for order in orders:
        for one in order:
            known.add(("F" if one.kind in {"F", "FB"} else "B", one.stage, one.batch))
            if one.other:
                known.add(("B", *one.other))
    finished: dict[object, Fraction] = {None: Fraction(0)}
    clock = [Fraction(0)] * len(orders)
    start: list[Fraction | None] = [None] * len(orders)
    place = [0] * len(orders)
    while any(place[r] < len(order) for r, order in enumerate(orders)):
        moved = False
        for r, order in enumerate(orders):
            while place[r] < len(order):
                one = order[place[r]]
                kind = "F" if one.kind == "FB" else one.kind
                needed = [_needs(kind, one.stage, one.batch, ends, known)]
                if one.other:
                    needed.append(_needs("B", *one.other, ends, known))
                if any(n not in finished for n in needed):
                    break
                begin = max(clock[r], *(finished[n] for n in needed))
                start[r] = begin if start[r] is None else start[r]
                clock[r] = begin + costs.of(one.kind)
                finished[kind if kind in {"F", "W"} else "B", one.stage, one.batch] = clock[r]
                if kind == "I":
                    finished["I", one.stage, one.batch] = clock[r]
                if one.other:
                    finished["B", *one.other] = clock[r]
                place[r] += 1
                moved = True
        assert moved, "the orders wait for each other"
    return [(s or Fraction(0), c) for s, c in zip(start, clock, strict=True)]
