"""`gpucalc roofline`: one operation on one GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command, family
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import argument, cell, option
from gpucalc.cli.output import emit_document, emit_rows, format_option, plot_path
from gpucalc.cli.values import column_value, positive_integer, quantity
from gpucalc.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

family("roofline", group="Understand", help="Time, bound and efficiency of one operation on one GPU.")

PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class _GpuCells:
    gpu: str | None = cell("--gpu GPU", "Key or alias of the hardware database.", complete="gpus")
    precision: str | None = cell("--precision NAME", "bf16, fp16, fp8, mxfp8, nvfp4 …")
    form: str = format_option()
    plot: str | None = option("--plot FILE", "Draw it too: .png, .svg or .pdf.", read=plot_path, files=True)


@dataclass(frozen=True)
class GpuOptions(DatabaseOptions, _GpuCells):
    """One GPU, the precision of its operation, and the form of the answer."""

    def device(self, db: Database) -> tuple[Device, str]:
        """The GPU, and the precision that it computes in."""
        if self.gpu is None:
            raise UsageError("missing: --gpu h100-sxm-80gb")
        device = db.device(self.gpu)
        stated = self.precision
        chosen = device.default_precision if stated is None else column_value("precision", "--precision", stated)
        device.precision_peak(chosen)
        return device, chosen


def phase_named(flag: str, text: str) -> str:
    """The name of a phase, as the estimates call it."""
    if text not in (*PHASES, "prefill_causal"):
        raise unknown("phase", text, PHASES)
    return "decode" if text == "decode" else "prefill_causal"


@command("roofline gemm")
def gemm(
    *,
    m: int | None = argument("M", "Rows of the product.", read=positive_integer),
    n: int | None = argument("N", "Columns of the product.", read=positive_integer),
    k: int | None = argument("K", "Inner dimension.", read=positive_integer),
    on: GpuOptions,
) -> None:
    """A matrix product of m × k by k × n.

    \b
    gpucalc roofline gemm 8192 8192 8192 --gpu h100-sxm-80gb --precision bf16
    """
    if m is None or n is None or k is None:
        raise UsageError("missing: three sizes M N K, such as roofline gemm 8192 8192 8192")
    database = on.database()
    device, chosen = on.device(database)

    from gpucalc.questions.kernels import roofline_gemm

    ledger = roofline_gemm(m, n, k, device, chosen, database)
    _write(on, {"operation": "gemm", "m": m, "n": n, "k": k}, device, chosen, ledger)


@command("roofline attention")
def attention(
    *,
    batch: int = option("--batch N", "Sequences.", default="1", read=positive_integer),
    seq_len: int | None = option("--seq-len N", "Tokens, or of the cache.", read=positive_integer),
    heads: int | None = option("--heads N", "Query heads.", read=positive_integer),
    kv_heads: int | None = option("--kv-heads N", "KV heads; as heads.", read=positive_integer),
    head_dim: int = option("--head-dim N", "Size of one head.", default="128", read=positive_integer),
    phase: str = option(
        "--phase NAME", "prefill (causal) or decode.", default="prefill", read=phase_named, choices=PHASES
    ),
    on: GpuOptions,
) -> None:
    """Flash attention over whole sequences (prefill), or of one new token over a cache (decode).

    \b
    gpucalc roofline attention --seq-len 8192 --heads 32 --kv-heads 8 --gpu h100-sxm-80gb
    """
    if seq_len is None or heads is None:
        raise UsageError("missing: --seq-len 8192 and --heads 32")
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise UsageError(f"--heads {heads} is not a multiple of --kv-heads {kv_heads}")
    database = on.database()
    device, chosen = on.device(database)

    from gpucalc.questions.kernels import roofline_attention

    sizes = {"batch": batch, "seqlen": seq_len, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    ledger = roofline_attention(phase, batch, seq_len, heads, kv_heads, head_dim, device, chosen, database)
    _write(on, {"operation": "attention", "phase": phase, **sizes}, device, chosen, ledger)


@command("roofline kernel")
def kernel(
    *,
    flops: float | None = option("--flops F", "Such as 1.1TFLOP.", read=quantity("FLOP")),
    size: float | None = option("--bytes B", "Memory traffic, such as 400MB.", read=quantity("B")),
    on: GpuOptions,
) -> None:
    """Any kernel, by its operations and its memory traffic.

    \b
    gpucalc roofline kernel --flops 1.1TFLOP --bytes 400MB --gpu h100-sxm-80gb
    """
    if flops is None or size is None:
        raise UsageError("missing: --flops 1.1TFLOP and --bytes 400MB")
    database = on.database()
    device, chosen = on.device(database)

    from gpucalc.questions.kernels import roofline_kernel

    ledger = roofline_kernel(flops, size, device, chosen, database)
    _write(on, {"operation": "kernel", "flops": flops, "bytes": size}, device, chosen, ledger)


def _write(on: GpuOptions, given: dict[str, Any], device: Device, precision: str, ledger: Ledger) -> None:
    """The question, the answer in kernel units, and the terms that led to it."""
    from gpucalc.core.trace import records
    from gpucalc.estimate.kernels import bound_of
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant

    seconds, rate = float(ledger["time/total"]), float(ledger["metric/achieved"])
    answer: dict[str, Any] = {
        **given,
        "gpu": device.key,
        "precision": precision,
        "peak_tflops_dense": device.precision_peak(precision) / 1e12,
        "time_us": seconds * 1e6,
        "tflops": rate / 1e12,
        "peak_share_pct": 100 * float(ledger["metric/peak_share"]),
        "bound": bound_of(ledger),
    }
    if on.plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.kernels import operation_traffic, roofline_figure

        flops = float(given["flops"] if "flops" in given else ledger["flops/total"])
        save(roofline_figure(answer, operation_traffic(ledger), flops, device), on.plot)
    terms = records(ledger, ("time/total",))
    if on.form == "json":
        emit_document({**answer, "terms": terms})
    elif on.form == "table":
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        emit_rows(on.form, list(answer), [answer])
