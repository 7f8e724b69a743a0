"""Kernels of several parts, as terms: what the compute units need, what the memory needs, and the two joined.

Training, serving, `roofline` and the fit of kernel constants go through these functions, so every explanation shows
which of the two binds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import Array
from gpucalc.formulas import attention, experts, roofline

Formula = Callable[..., Any]
Add = Callable[..., Array]


def _joined(compute: Formula, memory: Formula, whole: Formula) -> Add:
    def add(ledger: Ledger, path: str, *, under: str = "", **given: Any) -> Array:
        parts = {"compute": f"{under or path}/compute", "memory": f"{under or path}/memory"}
        ledger.apply(parts["compute"], compute, given)
        ledger.apply(parts["memory"], memory, given)
        return ledger.apply(path, whole, {**given, **parts})

    return add


# Each stores `path` and its parts `path/compute` and `path/memory` (or below `under`); what is not given is, by name,
# a column of the scope.
add_gemm = _joined(roofline.gemm_compute_time, roofline.gemm_memory_time, roofline.gemm_time)
add_flash_attention = _joined(attention.flash_compute_time, attention.flash_memory_time, attention.flash_attention_time)
add_decode_attention = _joined(
    attention.decode_unit_time, attention.decode_memory_time, attention.decode_attention_time
)
add_grouped_gemm = _joined(experts.grouped_compute_time, experts.grouped_memory_time, experts.grouped_gemm_time)


def seconds(add: Add, values: Mapping[str, Any]) -> Any:
    """The time of one of these kernels, all of whose arguments are in `values`: scalars, or arrays of one length."""
    return add(Ledger(Columns(values)), "time")
