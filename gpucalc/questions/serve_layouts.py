"""Labels of serving layouts, and every way to cut a number of GPUs into replicas, or into workers of two sides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs.serving_sides import SIDE_CELLS, SIDES, worker

LARGEST_TP = 64
LARGEST_PP = 16
LAYOUT = ("tp", "pp", "dp", "ep", "attention_dp", "prefill_gpus")
NAMES = {"tp": "tp", "pp": "pp", "dp": "dp", "ep": "ep", "attention_dp": "adp", "prefill_gpus": "pre"}
CELLS = {short: name for name, short in NAMES.items()}


def serving_label(cells: Mapping[str, Any]) -> str:
    """A layout as text, defaults left out: tp8-pp2-dp4-ep8-adp4; with workers apart 2x(tp4)+1x(tp8).

    >>> serving_label({"tp": 8, "pp": 1, "dp": 2, "ep": 1, "attention_dp": 1})
    'tp8-dp2'
    >>> serving_label({"prefill_tp": 4, "prefill_workers": 2, "decode_tp": 1, "decode_attention_dp": 8, "decode_ep": 8})
    '2x(tp4)+1x(tp1-ep8-adp8)'
    """
    if cells.get("prefill_workers") or any(cells.get(name) is not None for name in SIDE_CELLS):
        both = [worker(cells, side) for side in SIDES]
        return "+".join(f"{one['workers']}x({_worker_label(one)})" for one in both)
    least = {"prefill_gpus": 0}
    parts = [f"{s}{cells[n]}" for n, s in NAMES.items() if (cells.get(n) or 0) > least.get(n, 1)]
    return "-".join(parts) or "tp1"


def _worker_label(one: Mapping[str, int]) -> str:
    parts = [f"{NAMES[n]}{one[n]}" for n in ("ep", "attention_dp") if one[n] > 1]
    return "-".join([f"tp{one['tp']}", *parts])


_SIDES = re.compile(r"(?:(\d+)x\(?([a-z0-9-]+?)\)?)\+(?:(\d+)x\(?([a-z0-9-]+?)\)?)")


def serving_label_cells(label: str) -> dict[str, int]:
    """The cells that a label means; it is the whole layout, so what it leaves out is 1.

    >>> serving_label_cells("tp8-dp2-adp2")
    {'tp': 8, 'dp': 2, 'attention_dp': 2, 'pp': 1, 'ep': 1}
    >>> serving_label_cells("2x(tp4)+1x(tp8)")["prefill_workers"]
    2
    """
    text = label.strip().casefold()
    if found := _SIDES.fullmatch(text):
        cells: dict[str, int] = {}
        for side, count, layout in zip(SIDES, (found[1], found[3]), (found[2], found[4]), strict=True):
            cells |= side_label_cells(f"{count}x({layout})", side)
        return cells
    cells = _tokens(text, "--layout", "tp8-pp2-dp4-ep8-adp4, or 2x(tp4)+1x(tp8-ep8) with workers apart")
    for name in ("tp", "pp", "ep", "attention_dp"):
        cells.setdefault(name, 1)
    return cells


def side_label_cells(label: str, side: str) -> dict[str, int]:
    """The cells of one side that the label of a worker means; a count may stand before it.

    >>> side_label_cells("2x(tp4-adp2)", "decode")
    {'decode_workers': 2, 'decode_tp': 4, 'decode_attention_dp': 2, 'decode_ep': 1}
    """
    text = label.strip().casefold()
    counted = re.fullmatch(r"(\d+)x\(?([a-z0-9-]+?)\)?", text)
    if counted and int(counted[1]) < 1:
        raise UsageError(f"{label.strip()!r} has no worker of {counted[2]}; 1x({counted[2]}) has one")
    cells = {f"{side}_workers": int(counted[1])} if counted else {}
    found = _tokens(counted[2] if counted else text, f"--{side}-layout", "tp4-adp8-ep32, or 2x(tp4)")
    if wrong := [NAMES[name] for name in found if name not in {"tp", "attention_dp", "ep"}]:
        raise UsageError(f"--{side}-layout: {wrong[0]} is no part of a worker; it is written like tp4-adp8-ep32")
    return cells | {f"{side}_{name}": found.get(name, 1) for name in ("tp", "attention_dp", "ep")}


def _tokens(text: str, option: str, example: str) -> dict[str, int]:
    cells: dict[str, int] = {}
    for token in text.split("-"):
        match = re.fullmatch(r"([a-z]+)(\d+)", token)
        if not match or match[1] not in CELLS or int(match[2]) < 1:
            raise UsageError(f"{option}: {token!r} is not part of a serving layout; it is written like {example}")
        if CELLS[match[1]] in cells:
            raise UsageError(f"{option} names {match[1]} twice")
        cells[CELLS[match[1]]] = int(match[2])
    return cells


def divisors(number: int, limit: int) -> list[int]:
    """Divisors of a number, up to a limit.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def layouts(cells: Mapping[str, Any], mixture: bool, gpus: int) -> Iterator[dict[str, int]]:
    """Every way to cut `gpus` GPUs, legal or not; stated cells stay as they are."""
    for tp in divisors(gpus, LARGEST_TP):
        for pp in divisors(gpus // tp, LARGEST_PP):
            dp = gpus // (tp * pp)
            for shared in divisors(dp, dp) if mixture else [1]:
                for ep in sorted({1, tp * shared}) if mixture else [1]:
                    found = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "attention_dp": shared}
                    if any(cells.get(n) not in {None, v} for n, v in found.items()):
                        continue
                    yield found
