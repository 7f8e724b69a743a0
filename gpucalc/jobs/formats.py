"""Formats of weights and cache while serving: bytes with their scales, and which products they run as.

A weight is computed in its own format where the device has such products (and activations are quantised beside it);
elsewhere it is expanded to 16 bit on the way (weight-only): bytes of the format, peak of 16 bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucalc.core.errors import UsageError, nearest, unknown

if TYPE_CHECKING:
    from gpucalc.database.records import Device


@dataclass(frozen=True)
class Format:
    """Bytes of a weight with its scales; `products` are precisions to compute in, best first, empty = weight-only."""

    bytes: float
    products: tuple[str, ...]
    experts_only: bool = False  # in a mixture only the routed experts are held in it
    scales: str = ""


FORMATS = {
    "bf16": Format(2.0, ("bf16",)),
    "fp16": Format(2.0, ("fp16",)),
    "fp32": Format(4.0, ("fp32",)),
    "fp8": Format(1.0 + 4 / 128**2, ("fp8",), scales="one fp32 scale per 128 x 128 block"),
    "mxfp8": Format(1.0 + 1 / 32, ("mxfp8", "fp8"), scales="one byte per 32"),
    "int8": Format(1.0 + 2 / 128, ("int8",), scales="one 16-bit scale per 128"),
    "int4": Format(0.5 + 2 / 128, (), True, "one 16-bit scale per 128"),
    "nvfp4": Format(0.5 + 1 / 16, ("nvfp4",), scales="one byte per 16"),
    # Published mxfp4 models hold their experts in it and run them with 8-bit activations where the device can.
    "mxfp4": Format(0.5 + 1 / 32, ("mxfp8",), True, "one byte per 32"),
}
ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
    "fp8_block": "fp8",
    "fp8-block": "fp8",
    "w8a8": "int8",
    "fp4": "nvfp4",
    "e4m3": "fp8",
    "auto": "bf16",
}
CACHE_FORMATS = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0 + 2 / 128, "nvfp4": 0.5 + 1 / 16}
# Which kernels are calibrated for a precision of products.
KERNELS = {"int8": "fp8"}


def format_named(name: str, what: str = "precision", known: dict[str, float] | None = None) -> str:
    """A format by its name, other spellings forgiven.

    >>> format_named("AWQ"), format_named("fp8", "kv_precision", CACHE_FORMATS)
    ('int4', 'fp8')
    """
    names = tuple(FORMATS if known is None else known)
    word = name.strip().casefold()
    word = ALIASES.get(word, word)
    if word not in names:
        raise unknown(what, name, names)
    return word


def products_of(device: Device, name: str) -> tuple[str, bool]:
    """The precision in which weights of a format are multiplied on a device, and whether they are expanded first.

    Raises UsageError where the device has neither such products nor weight-only kernels.
    """
    for precision in FORMATS[name].products:
        if precision == "int8":
            if device.peak.get("int8"):
                return "int8", False
        elif device.supports(precision):
            return precision, False
    if name in {"bf16", "fp16", "fp32"} or not device.architecture.weight_only:
        can = [n for n in FORMATS if any(p in device.peak or _supports(device, p) for p in FORMATS[n].products)]
        near = nearest(name, can, 1)
        raise UsageError(
            f"precision is {name!r}, which {device.key} ({device.arch}) cannot serve: {device.file} states no such "
            f"peak, and there are no kernels that expand it; it serves {', '.join(can)}"
            + (f"; the nearest is {near[0]}" if near else "")
        )
    return device.default_precision, True


def _supports(device: Device, precision: str) -> bool:
    return precision != "int8" and device.supports(precision)


def product_peak(device: Device, precision: str) -> float:
    """Dense peak of products in a precision; int8 counts operations."""
    return device.peak["int8"] if precision == "int8" else device.precision_peak(precision)
