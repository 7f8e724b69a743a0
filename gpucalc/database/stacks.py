"""Rates of software stacks on networks: what share of the peak their products reach, and the bytes that they move.

`calibration/stacks.csv` holds four constants of a usual stack and factors on them: by mode, kind of net, stack, what
is compiled or laid out otherwise, precision and memory of the board, and narrow ones where rows of one combination lie
off. Factors multiply, so that a combination nobody has measured has those of its parts. `calibration/stack_words.csv`
says which stack the word of a framework means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

GENERIC = "pytorch"  # the stack of a framework that no word names
WHOLE = ("tuned", "tensorrt", "hugectr", "nemo")  # stacks that choose layout and fusion themselves, whatever is said
MARKS = ("nhwc", "compiled")  # in the order in which they end a stack's name
# What stands for a kind of net without rows of its own: kernels of the same shape.
KIN = {"volume": "conv", "depthwise": "conv", "mixed": "conv", "unet": "conv", "recommender": "encoder"}
CLASSES = {"fp32": "fp32", "tf32": "tf32", "fp8": "8", "mxfp8": "8", "int8": "8", "nvfp4": "8", "mxfp4": "8"}
CONSTANTS = ("product_efficiency", "traffic_bytes", "launch_seconds", "step_floor")


@dataclass(frozen=True)
class Stack:
    """A software stack: its name with its marks, itself and what stands for it (nearest first), its marks."""

    name: str
    names: tuple[str, ...]
    marks: tuple[str, ...]
    known: bool  # whether a word of the framework named it


@dataclass(frozen=True)
class Rates:
    """The constants of a stack on one kind of net, and how near they were to what was asked."""

    product_efficiency: float
    traffic_bytes: float
    launch_seconds: float
    step_floor: float
    own: bool  # rows of this stack in this mode, and of this kind of net in it, stand behind them


def choose_stack(
    framework: str, db: Database, *, compiled: bool | None = None, channels_last: bool | None = None
) -> Stack:
    """The stack of a framework's words, the longest that occurs; with the marks of what is compiled and in NHWC."""
    words = {row.key[0]: row for row in db.table("stack_words").values()}
    text = re.sub(r"[\s_]+", "-", framework.casefold())
    found = max((word for word in words if word in text), key=len, default="")
    base = words[found].texts["stack"] if found else GENERIC
    kin, kin_marks = split_marks(words[found].texts["kin"] if found else "")
    asked = {"compiled": compiled, "nhwc": channels_last}
    marks = tuple(m for m, on in asked.items() if base not in WHOLE and (on or m in kin_marks))
    names = tuple(dict.fromkeys(name for name in (base, kin, GENERIC) if name))
    return Stack("-".join((base, *marks)), names, marks, bool(found))


def split_marks(name: str) -> tuple[str, tuple[str, ...]]:
    """A stack's name without its marks, and these.

    >>> split_marks("pytorch-compiled-nhwc"), split_marks("open_clip")
    (('pytorch', ('compiled', 'nhwc')), ('open_clip', ()))
    """
    marks: tuple[str, ...] = ()
    for mark in MARKS:
        if name.endswith(f"-{mark}"):
            name, marks = name.removesuffix(f"-{mark}"), (mark, *marks)
    return name, marks


def precision_class(precision: str) -> str:
    """The class of precisions that share rates.

    >>> precision_class("bf16"), precision_class("fp32"), precision_class("fp8")
    ('16', 'fp32', '8')
    """
    return CLASSES.get(precision, "16")


def memory_class(memory_type: str | None) -> str:
    """The class of boards by their memory: those with GDDR run above the clock that their peak is quoted at.

    >>> memory_class("GDDR6X"), memory_class("HBM3")
    ('gddr', 'hbm')
    """
    return "gddr" if (memory_type or "").upper().startswith("GDDR") else "hbm"


def factors(stack: Stack, base: str, mode: str, net: str, precision: str, memory: str) -> tuple[str, ...]:
    """Names of the factors whose product is a stack's constants; `base`: the stack among its names that has rows.

    >>> factors(Stack("tuned-nhwc", ("tuned",), ("nhwc",), True), "tuned", "training", "conv", "fp16", "hbm")
    ('base', 'mode training', 'net conv', 'stack tuned', 'precision 16', 'memory hbm', 'mark nhwc', \
'cell tuned-nhwc training conv 16')
    """
    klass = precision_class(precision)
    cell = "-".join((base, *stack.marks))
    return (
        "base",
        f"mode {mode}",
        f"net {net}",
        f"stack {base}",
        f"precision {klass}",
        f"memory {memory}",
        *(f"mark {mark}" for mark in stack.marks),
        f"cell {cell} {mode} {net} {klass}",
    )


def rates(stack: Stack, mode: str, net: str, precision: str, memory: str, db: Database) -> Rates:
    """The constants of a stack on a kind of net: the product of the factors that the table has."""
    table = db.table("stacks")
    base = next((name for name in stack.names if (f"stack {name}",) in table), GENERIC)
    kind = net if (f"net {net}",) in table else KIN.get(net, net)
    found = dict.fromkeys(CONSTANTS, 1.0)
    for name in factors(stack, base, mode, kind, precision, memory):
        row = table.get((name,))
        for constant in CONSTANTS if row is not None else ():
            found[constant] *= row.values[constant]  # type: ignore[union-attr]
    own = base == stack.names[0] and any(
        (f"cell {base}{marks} {mode} {kind} {klass}",) in table
        for marks in ("", "-compiled", "-nhwc", "-compiled-nhwc")
        for klass in ("16", *dict.fromkeys(CLASSES.values()))
    )
    return Rates(**found, own=own)
