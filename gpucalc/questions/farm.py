"""A render farm: scores of its devices from the database, and the answer of a ledger in days and dollars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.core.columns import parse_cell, parts_of
from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.database import defaults
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.farm import Farm, Score
from gpucalc.formulas import render

FILE = "render_scores"
ORDERS = ("random", "longest-first")
HOUR, DAY = 3600.0, 86400.0


def score_table(db: Database) -> dict[str, Any]:
    """The scores of the shipped file, then of a `defaults` folder of each user's database."""
    return defaults.merged(db, FILE)


def has_ray_tracing(device: Device) -> bool:
    """Whether a device has ray-tracing cores that renderers use: parts with graphics, whose memory is GDDR."""
    graphics = device.memory_type.upper().startswith("GDDR")
    return device.vendor == "NVIDIA" and device.architecture.ray_tracing and graphics


def score_of(device: Device, table: Mapping[str, Any]) -> Score:
    """The score of a device: measured, or from its FP32 peak with the range of its kind.

    Raises UsageError for a device that has neither.
    """
    found = table["score"].get(device.key)
    if found:
        few = found.get("submissions", 0)
        basis = f"median of {few} submissions" if few else "median of submissions"
        return Score(float(found["value"]), float(found["value"]), float(found["value"]), basis)
    peak = device.peak.get("fp32")
    if not peak or device.vendor not in {"NVIDIA", "AMD", "Intel"} or device.link.startswith(("gaudi", "tpu")):
        known = ", ".join(sorted(table["score"]))
        raise UsageError(f"{device.key} cannot render: no FP32 shaders are stated; scored devices: {known}")
    rates, generation = table["per_fp32_tflop"], device.arch.casefold()
    if device.vendor != "NVIDIA":
        rate = rates["other"]
    elif has_ray_tracing(device):
        rate = rates.get(generation, rates["ray_tracing"])
    else:  # compute parts of a generation whose scored parts have ray-tracing cores render as those without do
        rate = rates.get(generation, rates["none"]) if not device.architecture.ray_tracing else rates["none"]
    value, low, high = (float(rate[n]) * peak / 1e12 for n in ("value", "low", "high"))
    return Score(value, low, high, f"estimated from FP32: {rate['origin']}")


def machines_of(gpu: str | None, gpus: str | None, db: Database) -> dict[str, int]:
    """device → GPUs of a list such as rtx4090:300,l40s:64; `gpus` counts a single name without a number.

    Raises UsageError for a list that does not say how many of each.
    """
    if gpu is None:
        raise UsageError("missing: --gpu rtx4090-24gb:500")
    found: dict[str, int] = {}
    parts = parts_of("--gpu", gpu, "GPU")
    for part in parts:
        name, colon, count = part.rpartition(":")
        if not colon:
            name, count = part, gpus or ""
            if gpus is None or len(parts) > 1:
                raise UsageError(f"how many of {part}? write --gpu {part}:500")
        elif gpus is not None:
            raise UsageError("--gpus has no meaning beside counts in --gpu")
        key = db.device_key(name)
        if key in found:
            raise UsageError(f"--gpu names {key} twice")
        found[key] = _count("--gpus" if not colon else f"--gpu {name}", count)
    return found


def _count(flag: str, text: str) -> int:
    try:
        value = parse_cell("n_gpus", text)
    except UsageError as error:
        raise UsageError(*(flag + problem.removeprefix("n_gpus") for problem in error.problems)) from None
    if value is None:
        raise UsageError(f"{flag} is empty")
    return int(value)


def limited(counts: Mapping[str, int], scores: Mapping[str, Score], licences: int | None) -> dict[str, int]:
    """The machines that licences leave in use, fastest first.

    >>> s = {"a": Score(2.0, 2, 2, ""), "b": Score(1.0, 1, 1, "")}
    >>> limited({"b": 10, "a": 4}, s, 6), limited({"b": 10, "a": 4}, s, None)
    ({'a': 4, 'b': 2}, {'b': 10, 'a': 4})
    """
    if licences is None:
        return dict(counts)
    left, chosen = licences, {}
    for device in sorted(counts, key=lambda d: -scores[d].value):
        if left > 0:
            chosen[device] = min(counts[device], left)
            left -= chosen[device]
    return chosen


def summary(
    ledger: Ledger,
    farm: Farm,
    owned: Mapping[str, int],
    *,
    order: str,
    gpu_price: float,
    licence_price: float,
    licences: int,
) -> dict[str, Any]:
    """The answer of a farm: frame times, makespan and its lower bound, what binds, machine time and cost.

    Prices are in USD a second; `owned` are all machines, of which licences may leave some idle.
    """
    queue = float(ledger["farm/random" if order == "random" else "farm/longest-first"])
    store = float(ledger["farm/store"]) if "farm/store" in ledger else 0.0
    makespan, work = max(queue, store), float(ledger["farm/work"])
    used, all_owned = sum(farm.counts.values()), sum(owned.values())
    answer: dict[str, Any] = {
        "frames": farm.frames,
        "gpus": all_owned,
        "gpus_used": used,
        "order": order,
        "spread": farm.spread,
        **{f"frame_time_s_{device}": float(ledger[f"frame/{device}/occupied"]) for device in farm.counts},
        "work_days": work / DAY,
        "makespan_days": makespan / DAY,
        "makespan_low_days": max(float(ledger["farm/longest"]), store) / DAY,
        "makespan_high_days": max(float(ledger["farm/random"]), store) / DAY,
        "tail_pct": 100 * (queue / work - 1),
        "gpu_hours": work * used / HOUR,  # computing, retries and loading included
        "bound": "store" if store > queue else "licences" if used < all_owned else "machines",
    }
    speed = sum(n * farm.scores[d].value for d, n in farm.counts.items())
    low = sum(n * farm.scores[d].low for d, n in farm.counts.items()) / speed
    high = sum(n * farm.scores[d].high for d, n in farm.counts.items()) / speed
    if high > low:
        answer["makespan_if_scores_high_days"] = makespan / high / DAY
        answer["makespan_if_scores_low_days"] = makespan / low / DAY
    if gpu_price or licence_price:
        machines = render.farm_cost(makespan * used, gpu_price)
        answer["cost_usd"] = float(machines + render.farm_cost(makespan * licences, licence_price))
    return answer
