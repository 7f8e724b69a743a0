"""One kernel at a time, in order: a matrix product, attention, or a kernel known by its work and traffic.

Many rows and one question go through the same functions, `add_gemm`, `add_prefill` and `add_decode`, with columns
of arrays or of scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.estimate import products
from gpucalc.formulas import attention, roofline

PHASES = ("prefill_causal", "decode")


def add_gemm(ledger: Ledger) -> None:
    """Store the parts, the whole and the rate of C(m,n) = A(m,k)·B(k,n), with the cast of A where it is quantised."""
    columns = ledger.columns
    products.add_gemm(ledger, "time/product", under="time")
    if np.any(columns["cast_bytes_per_element"] > 0):
        ledger.add("time/cast", roofline.cast_time, elements=columns["m"] * columns["k"])
        ledger.total("time/total", "time/product", "time/cast")
    else:
        ledger.total("time/total", "time/product")
    ledger.add("flops/total", roofline.gemm_flops)
    _add_rate(ledger)


def add_prefill(ledger: Ledger) -> None:
    """Store causal attention of whole sequences."""
    ledger.add("attended", attention.attended_keys, window=ledger.columns["keys"], causal=1.0)
    ledger.share("attended")
    products.add_flash_attention(ledger, "time/total", under="time")
    ledger.add("flops/total", attention.attention_flops)
    _add_rate(ledger)


def add_decode(ledger: Ledger) -> None:
    """Store attention of one new token per sequence against its cache."""
    products.add_decode_attention(ledger, "time/total", under="time")
    ledger.add("flops/total", attention.attention_flops, queries=1.0, attended=ledger.columns["context"])
    _add_rate(ledger)


def _add_rate(ledger: Ledger) -> None:
    rate = ledger.add("metric/achieved", roofline.achieved_rate, flops=ledger["flops/total"], time=ledger["time/total"])
    ledger.add("metric/peak_share", roofline.peak_share, achieved=rate)


def add_kernel(ledger: Ledger) -> None:
    """Store a kernel of which only `flops` and `traffic` are known: a roofline and one launch."""
    ledger.add("time/compute", roofline.compute_bound_time)
    ledger.add("time/memory", roofline.traffic_time)
    ledger.maximum("time/roofline", "time/compute", "time/memory")
    ledger.add("time/launch", roofline.launch_time, kernels=1.0)
    ledger.total("time/total", "time/roofline", "time/launch")
    rate = ledger.add("metric/achieved", roofline.achieved_rate, time=ledger["time/total"])
    ledger.add("metric/peak_share", roofline.peak_share, achieved=rate)


Kind = Callable[[Ledger], None]

# The launch constants of each kind: what remains of a kernel that has nothing to do.
_LAUNCH: dict[Kind, tuple[str, ...]] = {
    add_gemm: ("gemm_launch_seconds", "cast_launch_seconds"),
    add_prefill: ("attention_launch_seconds",),
    add_decode: ("decode_launch_seconds",),
}


def bounds(ledger: Ledger, add: Kind) -> np.ndarray:
    """What rules each row: compute, memory or launch. The traffic of a cast counts as memory."""
    columns = ledger.columns
    launch = sum(columns[name] for name in _LAUNCH[add])
    memory = ledger["time/memory"]
    if "time/cast" in ledger:
        memory = memory + ledger["time/cast"] - columns["cast_launch_seconds"]
    parts = np.broadcast_arrays(*(np.atleast_1d(part) for part in (ledger["time/compute"], memory, launch)))
    return np.array(["compute", "memory", "launch"])[np.argmax(np.stack(parts), axis=0)]


def bound_of(ledger: Ledger) -> str:
    """What rules the operation of a ledger of one row: compute, memory or launch."""
    if "time/launch" in ledger:
        parts = {name: float(ledger[f"time/{name}"]) for name in ("compute", "memory", "launch")}
        return max(parts, key=lambda name: parts[name])
    kind: Kind = add_gemm if "m" in ledger.columns else add_prefill if "attended" in ledger else add_decode
    return str(bounds(ledger, kind)[0])


def one(facts: Mapping[str, float], add: Kind) -> Ledger:
    """The traced ledger of one operation."""
    ledger = Ledger(Columns(facts), trace=True)
    add(ledger)
    return ledger
