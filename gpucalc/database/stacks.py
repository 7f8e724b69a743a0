"""Rates of software stacks on networks: what share of the peak their products reach, and the bytes that they move.

`calibration/stacks.csv` holds one set of constants per stack, mode, kind of net and precision; the narrowest that is
there wins. `calibration/stack_words.csv` says which stack the word of a framework means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

ANY = "any"
GENERIC = "pytorch"  # the stack of a framework that no word names
# What stands for a kind of net without rows of its own: kernels of the same shape.
KIN = {
    "volume": "conv",
    "depthwise": "conv",
    "mixed": "conv",
    "unet": "conv",
    "hierarchical": "vit",
    "encoder": "vit",
    "dit": "vit",
    "recommender": "encoder",
    "conv": ANY,
    "vit": ANY,
}
CLASSES = {"fp32": "fp32", "tf32": "tf32", "fp8": "8", "mxfp8": "8", "int8": "8", "nvfp4": "8", "mxfp4": "8"}
CONSTANTS = ("product_efficiency", "traffic_bytes", "launch_seconds", "step_floor")


@dataclass(frozen=True)
class Stack:
    """A software stack: its name with what is compiled or laid out otherwise, and what stands for it, nearest first."""

    name: str
    names: tuple[str, ...]
    known: bool  # whether a word of the framework named it


@dataclass(frozen=True)
class Rates:
    """The constants of a stack on one kind of net, and how near they were to what was asked."""

    product_efficiency: float
    traffic_bytes: float
    launch_seconds: float
    step_floor: float
    own: bool  # rows of this stack, mode and kind of net stand behind them


def choose_stack(
    framework: str, db: Database, *, compiled: bool | None = None, channels_last: bool | None = None
) -> Stack:
    """The stack of a framework's words, the longest that occurs; with the marks of what is compiled and in NHWC."""
    words = {row.key[0]: row for row in db.table("stack_words").values()}
    text = re.sub(r"[\s_]+", "-", framework.casefold())
    found = max((word for word in words if word in text), key=len, default="")
    base = words[found].texts["stack"] if found else GENERIC
    kin = words[found].texts["kin"] if found else ""
    marks = ("-compiled" if compiled else "") + ("-nhwc" if channels_last else "")
    names = [f"{one}{mark}" for one in dict.fromkeys((base, kin or base)) for mark in _less(marks)]
    names += [f"{GENERIC}{mark}" for mark in _less(marks)]
    return Stack(base + marks, tuple(dict.fromkeys((*names, ANY))), bool(found))


def _less(marks: str) -> tuple[str, ...]:
    """Marks from all to none.

    >>> _less("-compiled-nhwc")
    ('-compiled-nhwc', '-compiled', '-nhwc', '')
    """
    both = marks == "-compiled-nhwc"
    return tuple(dict.fromkeys((marks, *(("-compiled", "-nhwc") if both else ()), "")))


def precision_class(precision: str) -> str:
    """The class of precisions that share rates.

    >>> precision_class("bf16"), precision_class("fp32"), precision_class("fp8")
    ('16', 'fp32', '8')
    """
    return CLASSES.get(precision, "16")


def rates(stack: Stack, mode: str, net: str, precision: str, db: Database) -> Rates:
    """The constants of a stack on a kind of net; what a row does not state, a wider one does."""
    table = db.table("stacks")
    kinds = [net]
    while kinds[-1] != ANY:
        kinds.append(KIN.get(kinds[-1], ANY))
    modes = (mode, "inference" if mode == "generation" else "training", ANY)
    klass = precision_class(precision)
    found: dict[str, float] = {}
    own = False
    for name in stack.names:
        for one in dict.fromkeys(modes):
            for kind in kinds:
                for width in dict.fromkeys((klass, "16" if klass != "fp32" else klass, ANY)):
                    row = table.get((name, one, kind, width))
                    if row is None:
                        continue
                    own = own or (not found and name == stack.names[0] and kind == net and one == mode)
                    for constant, value in row.values.items():
                        found.setdefault(constant, value)
        if len(found) == len(CONSTANTS):
            break
    return Rates(**{constant: found[constant] for constant in CONSTANTS}, own=own)
