"""What a verdict on memory rests on: bytes a parameter, the three counters, the fullest stage, what was taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpucalc.core.units import GIB
from gpucalc.database.bands import memory_half_width

if TYPE_CHECKING:
    from gpucalc.jobs.training import Job
    from gpucalc.jobs.variations import Outcome

COUNTERS = ("allocated", "reserved", "device")
STAGES = ("first", "middle", "last")
DTYPES = {4.0: "fp32", 2.0: "16-bit"}
KNOWN_HOST = 1e14  # bytes; a node that does not state its memory has more


def bytes_per_parameter(job: Job) -> dict[str, float]:
    """Bytes of weight, gradient and optimizer state that a parameter takes before they are sharded."""
    c = job.columns
    trains = c["trains_base"]
    return {
        "weight": c["weight_bytes"],
        "gradient": c["gradient_bytes"] * trains,
        "optimizer": c["optimizer_bytes"] * trains,
    }


def states_text(job: Job) -> str:
    """The bytes of a parameter and what is sharded, in words, such as "18 B a parameter: 2 weight + 4 gradient"."""
    each = bytes_per_parameter(job)
    parts = " + ".join(f"{size:g} {name}" for name, size in each.items() if size)
    stage, ranks = int(job.cells["zero_stage"]), job.cells["dp"] * job.cells["cp"]
    shared = ("", "optimizer", "gradients and optimizer", "all of it")[stage] if ranks > 1 else ""
    group = job.cells.get("shard_group") or ranks
    text = f"{sum(each.values()):g} B a parameter: {parts}"
    return f"{text}; {shared} over {group} ranks" if shared else text


def counters(outcome: Outcome) -> dict[str, float]:
    """Bytes that the allocator hands out, that it reserves, and that the device shows."""
    return {name: outcome.terms[f"memory/{name}"] for name in COUNTERS}


def fullest_stage(outcome: Outcome) -> str:
    """Which stage of the pipeline holds most; empty with one stage."""
    pp = int(outcome.job.cells["pp"])
    return f"{STAGES[int(outcome.terms['memory/worst-stage'])]} of {pp}" if pp > 1 else ""


def host_text(outcome: Outcome) -> str:
    """What the host of a node holds, against its memory; empty where nothing is moved there."""
    held = outcome.terms.get("host/memory", 0.0)
    if held <= 0:
        return ""
    has = outcome.job.columns["host_memory_bytes"]
    against = f" of {has / GIB:,.0f} GiB" if has < KNOWN_HOST else "; the node's memory is not stated"
    return f"{held / GIB:,.1f} GiB a node{against}"


def taken_text(job: Job) -> str:
    """What decides the memory and was stated by the row or taken from the profile."""
    c, cells = job.columns, job.cells
    reduced = DTYPES.get(c["gradient_comm_bytes"], f"{c['gradient_comm_bytes']:g} B")
    found = [
        f"flash attention {cells['flash_attention']}",
        f"dropout {'yes' if c['dropout'] else 'no'}",
        f"gradients reduced in {reduced}",
        f"logits {c['logit_bytes']:g} B{'' if c['vocab_parallel_loss'] or cells['tp'] == 1 else ', gathered over tp'}",
        f"recompute {cells.get('recompute') or 'as needed'}",
    ]
    return ", ".join(found)


def reach_text(outcome: Outcome) -> str:
    """A remark where the prediction fits and the upper end of its band would not."""
    capacity = outcome.terms["memory/capacity"]
    _, high = memory_range(outcome.job, outcome.terms["memory/raw"])
    return "; the upper end of the band would not" if outcome.fit == "fits" and high > capacity else ""


def memory_range(job: Job, size: float) -> tuple[float, float]:
    """The 80 % band around a predicted peak, in the unit of `size`."""
    half = memory_half_width(job)
    return size * math.exp(-half), size * math.exp(half)
