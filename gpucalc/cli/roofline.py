"""`gpucalc roofline`: one operation on one GPU."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows
from gpucalc.core.errors import UsageError

app = typer.Typer(
    help="Time, bound and efficiency of one operation on one GPU.", no_args_is_help=True, rich_markup_mode=None
)

PHASES = ("prefill", "decode")


def _device(db: Any, gpu: str | None, precision: str | None) -> tuple[Any, str]:
    if gpu is None:
        raise UsageError("missing: --gpu h100-sxm-80gb")
    device = db.device(gpu)
    chosen = opt.option_value("precision", precision) if precision is not None else device.default_precision
    device.precision_peak(chosen)
    return device, chosen


@app.command("gemm")
def gemm(
    m: Annotated[Optional[str], typer.Argument(metavar="M", help="Rows of the product.")] = None,
    n: Annotated[Optional[str], typer.Argument(metavar="N", help="Columns of the product.")] = None,
    k: Annotated[Optional[str], typer.Argument(metavar="K", help="Inner dimension.")] = None,
    gpu: opt.Gpu = None,
    precision: opt.Precision = None,
    form: opt.Format = "table",
    plot: opt.Plot = None,
    db: opt.Databases = None,
) -> None:
    """A matrix product of m × k by k × n.

    \b
    gpucalc roofline gemm 8192 8192 8192 --gpu h100-sxm-80gb --precision bf16
    """
    form = opt.chosen_format(form)
    opt.check_plot(plot)
    if m is None or n is None or k is None:
        raise UsageError("missing: three sizes M N K, such as roofline gemm 8192 8192 8192")
    sizes = [opt.positive_integer(name, text) for name, text in (("M", m), ("N", n), ("K", k))]
    database = opt.open_database(db)
    device, chosen = _device(database, gpu, precision)

    from gpucalc.questions.kernels import roofline_gemm

    _write(
        form,
        {"operation": "gemm", "m": sizes[0], "n": sizes[1], "k": sizes[2]},
        device,
        chosen,
        roofline_gemm(sizes[0], sizes[1], sizes[2], device, chosen, database.dirs[1:]),
        plot,
    )


@app.command("attention")
def attention(
    batch: Annotated[str, typer.Option("--batch", metavar="N", help="Sequences.")] = "1",
    seq_len: Annotated[Optional[str], typer.Option("--seq-len", metavar="N", help="Tokens, or of the cache.")] = None,
    heads: Annotated[Optional[str], typer.Option("--heads", metavar="N", help="Query heads.")] = None,
    kv_heads: Annotated[Optional[str], typer.Option("--kv-heads", metavar="N", help="KV heads; as heads.")] = None,
    head_dim: Annotated[str, typer.Option("--head-dim", metavar="N", help="Size of one head.")] = "128",
    phase: Annotated[str, typer.Option("--phase", metavar="NAME", help="prefill (causal) or decode.")] = "prefill",
    gpu: opt.Gpu = None,
    precision: opt.Precision = None,
    form: opt.Format = "table",
    plot: opt.Plot = None,
    db: opt.Databases = None,
) -> None:
    """Flash attention over whole sequences (prefill), or of one new token over a cache (decode).

    \b
    gpucalc roofline attention --seq-len 8192 --heads 32 --kv-heads 8 --gpu h100-sxm-80gb
    """
    form = opt.chosen_format(form)
    opt.check_plot(plot)
    if seq_len is None or heads is None:
        raise UsageError("missing: --seq-len 8192 and --heads 32")
    if phase not in (*PHASES, "prefill_causal"):
        from gpucalc.core.errors import unknown

        raise unknown("phase", phase, PHASES)
    values = {
        "batch": opt.positive_integer("--batch", batch),
        "seqlen": opt.positive_integer("--seq-len", seq_len),
        "heads": opt.positive_integer("--heads", heads),
        "kv_heads": opt.positive_integer("--kv-heads", kv_heads or heads),
        "head_dim": opt.positive_integer("--head-dim", head_dim),
    }
    if values["heads"] % values["kv_heads"]:
        raise UsageError(f"--heads {values['heads']} is not a multiple of --kv-heads {values['kv_heads']}")
    database = opt.open_database(db)
    device, chosen = _device(database, gpu, precision)

    from gpucalc.questions.kernels import roofline_attention

    name = "decode" if phase == "decode" else "prefill_causal"
    ledger = roofline_attention(
        name,
        values["batch"],
        values["seqlen"],
        values["heads"],
        values["kv_heads"],
        values["head_dim"],
        device,
        chosen,
        database.dirs[1:],
    )
    _write(form, {"operation": "attention", "phase": name, **values}, device, chosen, ledger, plot)


@app.command("kernel")
def kernel(
    flops: Annotated[Optional[str], typer.Option("--flops", metavar="F", help="Such as 1.1TFLOP.")] = None,
    size: Annotated[Optional[str], typer.Option("--bytes", metavar="B", help="Memory traffic, such as 400MB.")] = None,
    gpu: opt.Gpu = None,
    precision: opt.Precision = None,
    form: opt.Format = "table",
    plot: opt.Plot = None,
    db: opt.Databases = None,
) -> None:
    """Any kernel, by its operations and its memory traffic.

    \b
    gpucalc roofline kernel --flops 1.1TFLOP --bytes 400MB --gpu h100-sxm-80gb
    """
    from gpucalc.core.units import parse_quantity

    form = opt.chosen_format(form)
    opt.check_plot(plot)
    if flops is None or size is None:
        raise UsageError("missing: --flops 1.1TFLOP and --bytes 400MB")
    work, traffic = parse_quantity(flops, "FLOP"), parse_quantity(size, "B")
    database = opt.open_database(db)
    device, chosen = _device(database, gpu, precision)

    from gpucalc.questions.kernels import roofline_kernel

    given = {"operation": "kernel", "flops": work, "bytes": traffic}
    _write(form, given, device, chosen, roofline_kernel(work, traffic, device, chosen, database.dirs[1:]), plot)


def _write(form: str, given: dict[str, Any], device: Any, precision: str, ledger: Any, plot: str | None = None) -> None:
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
    if plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.kernels import operation_traffic, roofline_figure

        flops = float(given["flops"] if "flops" in given else ledger["flops/total"])
        save(roofline_figure(answer, operation_traffic(ledger), flops, device), plot)
    terms = records(ledger, ("time/total",))
    if form == "json":
        emit_document({**answer, "terms": terms})
    elif form == "table":
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        emit_rows(form, list(answer), [answer])
