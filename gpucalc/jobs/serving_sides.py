"""Deployments of two sides: workers that only prefill and workers that only decode, each with a layout and a count.

A question without such cells has one side. Where it has two, the cells of a layout (tp, pp, dp, ep, attention_dp) are
those of the workers that decode, dp over all of them; those that prefill stand in cells of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIDES = ("prefill", "decode")
DEGREES = ("tp", "attention_dp", "ep", "workers")
SIDE_CELLS = tuple(f"{side}_{name}" for side in SIDES for name in DEGREES)
WHOLE = ("tp", "pp", "dp", "ep", "attention_dp")  # cells of deployments of one layout


def has_sides(cells: Mapping[str, Any]) -> bool:
    """Whether a question states a layout or a count of either side."""
    return any(cells.get(name) is not None for name in SIDE_CELLS)


def worker(cells: Mapping[str, Any], side: str) -> dict[str, int]:
    """The layout and the count of one side, what is not stated being 1.

    >>> worker({"prefill_tp": 4, "prefill_workers": 2}, "prefill")
    {'tp': 4, 'attention_dp': 1, 'ep': 1, 'workers': 2}
    """
    return {name: int(cells.get(f"{side}_{name}") or 1) for name in DEGREES}


def gpus_of(one: Mapping[str, int]) -> int:
    """GPUs of all workers of a side.

    >>> gpus_of({"tp": 4, "attention_dp": 2, "ep": 1, "workers": 3})
    24
    """
    return one["tp"] * one["attention_dp"] * one["workers"]


def side_problems(cells: Mapping[str, Any]) -> list[str]:
    """What contradicts itself in the cells of a deployment of two sides."""
    if not has_sides(cells):
        return []
    both = {side: worker(cells, side) for side in SIDES}
    problems = []
    if whole := [f"{name}={cells[name]}" for name in WHOLE if cells.get(name) is not None]:
        problems.append(
            f"{', '.join(whole)} of one layout stands beside workers apart; state --layout, or --prefill-layout and "
            f"--decode-layout (prefill_tp, decode_tp …), not both"
        )
    apart = cells.get("prefill_gpus")
    if apart is not None and int(apart) != gpus_of(both["prefill"]):
        problems.append(f"prefill_gpus={apart}, but the workers that prefill take {gpus_of(both['prefill'])} GPUs")
    total = sum(gpus_of(one) for one in both.values())
    stated = cells.get("n_gpus")
    if stated is not None and int(stated) != total:
        parts = " + ".join(
            f"{one['workers']} x {one['tp'] * one['attention_dp']} that {side}" for side, one in both.items()
        )
        problems.append(f"n_gpus={stated}, but the workers take {parts} = {total} GPUs; n_gpus={total} would fit")
    return problems


def with_sides(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells with those of both sides filled in, and the plain ones as the workers that decode have them.

    GPUs of a common layout that only prefill (prefill_gpus) become workers of that layout.
    """
    full = dict(cells)
    if not has_sides(full):
        replica = int(full["tp"] * full["pp"] * full["attention_dp"])
        apart = int(full.get("prefill_gpus") or 0)
        if not apart or apart % replica or apart >= full["n_gpus"]:
            return full
        count = apart // replica
        full["dp"] -= count * full["attention_dp"]
        full |= {f"prefill_{name}": full[name] for name in ("tp", "attention_dp", "ep")}
        full |= {f"decode_{name}": full[name] for name in ("tp", "attention_dp", "ep")}
        return full | {"prefill_workers": count, "decode_workers": full["dp"] // full["attention_dp"]}
    for side in SIDES:
        full |= {f"{side}_{name}": size for name, size in worker(full, side).items()}
    full |= {name: full[f"decode_{name}"] for name in ("tp", "attention_dp", "ep")}
    full |= {"pp": 1, "dp": full["decode_workers"] * full["decode_attention_dp"]}
    return full


def side_columns(cells: Mapping[str, Any]) -> dict[str, float]:
    """Columns of the workers that prefill; a count of 0 where the same GPUs do both."""
    apart = float(cells.get("prefill_workers") or 0)
    own = {name: float(cells[name]) for name in ("tp", "attention_dp", "ep")}
    stated = {name: float(cells[f"prefill_{name}"]) for name in own} if apart else own
    return {"prefill_workers": apart, **{f"prefill_{name}": size for name, size in stated.items()}}
