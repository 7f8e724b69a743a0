"""Terms of a ledger as people read them in a picture: few names, which add up to the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.formulas.memory import allocated_memory, reserved_memory
from gpucalc.output.figures.canvas import BLACK, BLUE, BROWN, GREEN, GREY, ORANGE, PALE, PURPLE, RED, SKY, YELLOW

Styles = Mapping[str, tuple[str, str]]

OTHER = "other"  # what the estimate counts and no name here stands for

# Name → paths whose sum it is. Together they are `time/step`.
TIME: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("time/forward/gemm", "time/backward/gemm", "time/head"),
    "attention": ("time/forward/attention", "time/backward/attention"),
    "elementwise": ("time/forward/elementwise", "time/backward/elementwise"),
    "recomputation": ("time/recompute",),
    "host launches": ("time/host",),
    "tensor parallel traffic": ("time/tp/exposed",),
    "context parallel traffic": ("time/cp/exposed",),
    "expert parallel traffic": ("time/ep/exposed",),
    "sharding and gradients": ("time/fsdp/exposed", "time/dp/exposed"),
    "pipeline bubble": ("time/pp/bubble",),
    "pipeline transfers": ("time/pp/p2p",),
    "host transfers": ("time/offload/exposed",),
    "optimizer": ("time/optimizer",),
    "stragglers": ("time/stragglers",),
}
# Work in full colours, traffic hatched, idling grey: the three stay apart without colour.
TIME_STYLES: Styles = {
    "matrix products": (BLUE, ""),
    "attention": (SKY, ""),
    "elementwise": (GREEN, ""),
    "recomputation": (YELLOW, ""),
    "host launches": (BLACK, ""),
    "tensor parallel traffic": (ORANGE, "///"),
    "context parallel traffic": (PURPLE, "///"),
    "expert parallel traffic": (BROWN, "///"),
    "sharding and gradients": (RED, "\\\\\\"),
    "pipeline bubble": (PALE, ""),
    "pipeline transfers": (GREY, "///"),
    "host transfers": (BLACK, "///"),
    "optimizer": (PURPLE, ""),
    "stragglers": (GREY, ""),
    OTHER: (BROWN, ""),
}
MEMORY_STYLES: Styles = {
    "weights": (BLUE, ""),
    "gradients": (SKY, ""),
    "optimizer": (GREEN, ""),
    "adapters": (BROWN, ""),
    "activations": (ORANGE, ""),
    "working set": (YELLOW, ""),
    "logits": (PURPLE, ""),
    "gathered weights": (RED, ""),
    "allocator reserve": (PALE, ""),
    OTHER: (GREY, ""),
}
# Last word of a path → name; what gradients share with activations is taken off these.
_MEMORY = {
    **{name: name for name in ("weights", "gradients", "optimizer", "adapters", "activations", "logits")},
    "shared": "activations",
    "working": "working set",
    "gather": "gathered weights",
    "update": "optimizer",
}
NEGLIGIBLE = 5e-4  # parts below this share of the largest total are not drawn


def _column(value: Any, rows: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, dtype=float), (rows,))


def _visible(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    largest = max((float(total) for total in sum(parts.values(), np.zeros(1))), default=0.0)
    return {name: values for name, values in parts.items() if np.max(np.abs(values)) > NEGLIGIBLE * largest}


def time_parts(ledger: Any, rows: int = 1) -> dict[str, np.ndarray]:
    """Name → seconds for each row of a detailed ledger; but for what is too small to be seen they are `time/step`."""
    whole = [path for path in ledger.entries["time/step"].names if path != "time/compute"]
    names = {path: name for name, paths in TIME.items() for path in paths}
    found: dict[str, Any] = dict.fromkeys((*TIME, OTHER), 0.0)
    for path in (*ledger.entries["time/compute/parts"].names, *whole):
        found[names.get(path, OTHER)] = found[names.get(path, OTHER)] + _column(ledger[path], rows)
    return _visible({name: _column(values, rows) for name, values in found.items()})


def memory_parts(ledger: Any, rows: int = 1) -> dict[str, np.ndarray]:
    """Name → bytes of the fullest GPU for each row of a detailed ledger; they add up to `memory/total`."""
    found: dict[str, Any] = dict.fromkeys(MEMORY_STYLES, 0.0)
    for path in ledger.entries["memory/parts"].names:
        name = _MEMORY.get(path.rsplit("/", 1)[-1], OTHER)
        found[name] = found[name] + _column(ledger[path], rows)
    found["allocator reserve"] = _column(ledger["memory/reserve"], rows)
    return _visible({name: _column(values, rows) for name, values in found.items()})


def stage_memory(ledger: Any, stage: str) -> dict[str, float]:
    """Name → bytes of one kind of stage (first, second, last) of a detailed ledger of one row, in its passes."""

    def at(path: str) -> float:
        return float(_column(ledger[path], 1)[0])

    found = dict.fromkeys(MEMORY_STYLES, 0.0)
    for path in _leaves(ledger, f"memory/{stage}/passes"):
        words = [word for word in path.split("/") if word not in {"memory", stage, "chosen"}]
        if words[0] == "transient":
            kind = words[1] if len(words) > 1 else ("last" if stage == "last" else "first")
            loss, gathered = at(f"loss/{kind}"), at("gather/ends")
            at_loss = loss + gathered >= at(path) > 0 and loss > 0
            held = gathered if at_loss else at("gather/layer")
            found["gathered weights"] += held
            found["logits" if at_loss else "working set"] += at(path) - held
        else:
            found[_MEMORY.get(next((w for w in words if w in _MEMORY), ""), OTHER)] += at(path)
    raw = at(f"memory/{stage}/passes")
    found["allocator reserve"] = _counted(ledger, raw) - raw
    return found


def _leaves(ledger: Any, path: str) -> list[str]:
    """The terms of which a sum of sums consists."""
    entry = ledger.entries[path]
    return [leaf for part in entry.names for leaf in _leaves(ledger, part)] if entry.verb == "total" else [path]


def _counted(ledger: Any, raw: float) -> float:
    """Bytes that the job's counter shows for `raw` bytes of tensors."""
    c = {name: float(np.max(ledger.columns[name])) for name in _COUNTER}
    shown = allocated_memory(raw, c["allocated_factor"], c["allocated_fixed"])
    if c["counter"] >= 1:
        shown = reserved_memory(shown, c["fragmentation"])
    if c["counter"] >= 2:
        shown = shown + float(np.max(ledger["memory/outside"]))
    return float(shown)


_COUNTER = ("counter", "allocated_factor", "allocated_fixed", "fragmentation")


def memory_limit(ledger: Any) -> float:
    """Bytes that the counter shows when a GPU is full, on the scale of `memory/total`."""
    return _counted(ledger, float(np.max(ledger["memory/capacity"])))


def used(parts: Mapping[str, Sequence[float] | np.ndarray], styles: Styles) -> dict[str, list[float]]:
    """Parts in the order of their styles, as plain numbers."""
    return {name: [float(v) for v in parts[name]] for name in styles if name in parts}
