"""`gpucalc hpc`: scientific codes on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import ExitStatus, InfeasibleError, UsageError

FILL = 0.9  # of the device memory, where no size is stated
ROWS = (
    "gpu",
    "n_gpus",
    "units",
    "step_time_s",
    "rate_per_s",
    "speedup",
    "efficiency_pct",
    "halo_share_pct",
    "memory_gib",
    "bound",
    "fit",
)
ROOTS = ("time/step", "time/run", "metric/rate", "memory/resident")
CURVE = tuple(f * 2**k for k in range(18) for f in (1,)) + tuple(3 * 2**k for k in range(16))


def hpc(
    kernel: Annotated[
        Optional[str],
        typer.Argument(
            metavar="KERNEL",
            help="stencil, lbm, lbm-fp16, cfd, qcd, md, hpl, hpcg, a measured code such as gromacs-stmv, or custom.",
        ),
    ] = None,
    gpu: opt.Gpu = None,
    gpus: Annotated[opt.Text, typer.Option("--gpus", metavar="N[,N…]", help="GPUs; a list gives a curve.")] = None,
    units: Annotated[
        opt.Text, typer.Option("--units", metavar="N", help="Cells, sites or atoms of the whole problem; 1e9.")
    ] = None,
    units_per_gpu: Annotated[
        opt.Text, typer.Option("--units-per-gpu", metavar="N", help="The same of each GPU: weak scaling.")
    ] = None,
    flops: Annotated[opt.Text, typer.Option("--flops", metavar="F", help="Per unit, such as 100FLOP.")] = None,
    size: Annotated[
        opt.Text, typer.Option("--bytes", metavar="B", help="Memory traffic per unit, such as 16B.")
    ] = None,
    memory: Annotated[opt.Text, typer.Option("--memory", metavar="B", help="Resident per unit.")] = None,
    halo: Annotated[opt.Text, typer.Option("--halo", metavar="B", help="Sent per unit of a block's face.")] = None,
    reductions: Annotated[opt.Text, typer.Option("--reductions", metavar="N", help="Global sums of a step.")] = None,
    precision: Annotated[opt.Text, typer.Option("--precision", metavar="NAME", help="fp64 or fp32.")] = None,
    dimensions: Annotated[
        str, typer.Option("--dimensions", metavar="D", help="Dimensions that are cut: 1, 2 or 3.")
    ] = "3",
    staged: Annotated[bool, typer.Option("--staged", help="Halos are copied through the host's memory.")] = False,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    fabric: opt.Fabric = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> int:
    """Scientific codes: roofline of a kernel, halo exchange, strong and weak scaling, HPL and HPCG.

    \b
    gpucalc hpc lbm --gpu h100-sxm-80gb --gpus 1,8,64,512
    gpucalc hpc hpl --gpu h100-sxm-80gb --gpus 1024
    """
    form = opt.chosen_format(form)
    if kernel is None:
        raise UsageError("missing: a KERNEL such as lbm, stencil or hpl")
    database = opt.open_database(db)
    from gpucalc.estimate.hpc import estimate_kernel
    from gpucalc.questions import hpc as codes

    known = codes.constants(database.dirs[1:])
    counts = _counts(gpus, codes)
    word = kernel.strip().casefold()
    asked = {"--units": units, "--units-per-gpu": units_per_gpu, "--flops": flops, "--bytes": size, "--memory": memory}
    asked |= {"--halo": halo, "--reductions": reductions, "--precision": precision}
    if word in codes.LIST_BENCHMARKS:
        _refuse(word, asked)
        return _list_benchmark(
            database, codes, known, word, _device(database, gpu), counts or [1], form, columns, no_header
        )
    if word in known["scaling"]:
        _refuse(word, asked)
        return _fitted(codes, known["scaling"][word], word, gpu, database, counts, form, columns, no_header)
    device = _device(database, gpu)
    changes = _changes(flops, size, memory, halo, reductions, precision)
    chosen = codes.kernel_named(word, known, changes)
    if dimensions not in {"1", "2", "3"}:
        raise UsageError(f"--dimensions is {dimensions!r}, expected 1, 2 or 3")
    counts = counts or [1]
    most = str(max(counts))
    cluster = opt.resolved_cluster(database, device.key, most, gpus_per_node, inter_node_gbps, fabric)
    total = _sizes(units, units_per_gpu, counts, chosen, device)
    options: dict[str, Any] = {"dimensions": int(dimensions), "staged": staged}
    notes = [codes.poor_in_fp64(device)] if chosen.precision == "fp64" else []
    _must_fit(chosen, device, total, counts)
    if len(counts) == 1:
        columns_ = codes.question(chosen, cluster, counts, total, known, **options)
        ledger = estimate_kernel(columns_, trace=True)
        _write_one(database, codes, chosen, device, counts[0], total[0], ledger, form, columns, no_header)
    else:
        rows = codes.scaling_rows(chosen, cluster, counts, total, known, weak=units_per_gpu is not None, **options)
        emit_rows(form, ROWS, rows, columns, not no_header)
    if units_per_gpu is None and chosen.halo > 0:
        notes.append(_half(codes, chosen, cluster, total[0], known, options))
    talk(*(f"note: {line}" for line in (*notes, f"{chosen.title}: {chosen.origin}") if line))
    return ExitStatus.OK


def _refuse(word: str, options: Mapping[str, str | None]) -> None:
    unused = [flag for flag, value in options.items() if value is not None]
    if unused:
        raise UsageError(f"{', '.join(unused)} has no meaning with {word}")


def _device(db: Any, gpu: str | None) -> Any:
    if gpu is None:
        raise UsageError("missing: --gpu h100-sxm-80gb")
    return db.device(gpu)


def _counts(text: str | None, codes: Any) -> list[int]:
    if text is None:
        return []
    found = [opt.positive_integer("--gpus", part) for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError("--gpus is empty")
    codes.check_counts(found)
    return found


def _changes(
    flops: str | None,
    size: str | None,
    memory: str | None,
    halo: str | None,
    reductions: str | None,
    precision: str | None,
) -> dict[str, Any]:
    from gpucalc.core.errors import unknown
    from gpucalc.core.units import parse_quantity
    from gpucalc.questions.hpc import PRECISIONS

    changes: dict[str, Any] = {}
    for name, text, dimension in (
        ("flops", flops, "FLOP"),
        ("bytes", size, "B"),
        ("memory", memory, "B"),
        ("halo", halo, "B"),
    ):
        if text is not None:
            changes[name] = parse_quantity(text, dimension)
    if reductions is not None:
        changes["reductions"] = 0 if reductions.strip() == "0" else opt.positive_integer("--reductions", reductions)
    if precision is not None:
        word = precision.strip().casefold()
        if word not in PRECISIONS:
            raise unknown("precision of a kernel", precision, PRECISIONS)
        changes["precision"] = word
    return changes


def _sizes(units: str | None, per_gpu: str | None, counts: Sequence[int], kernel: Any, device: Any) -> list[float]:
    """The whole problem at each number of GPUs."""
    if units is not None and per_gpu is not None:
        raise UsageError("--units and --units-per-gpu contradict each other")
    if units is not None:
        whole = opt.positive_number("--units", units)
        return [whole] * len(counts)
    if per_gpu is not None:
        each = opt.positive_number("--units-per-gpu", per_gpu)
        return [each * n for n in counts]
    if not kernel.memory:
        raise UsageError(f"how large is the problem? write --units or --units-per-gpu in {kernel.unit}s")
    # Without a size: what fills the fewest GPUs of the list, so that the whole curve can be run.
    return [float(int(FILL * device.usable_bytes / kernel.memory) * min(counts))] * len(counts)


def _must_fit(kernel: Any, device: Any, total: Sequence[float], counts: Sequence[int]) -> None:
    needed = [units * kernel.memory / n for units, n in zip(total, counts, strict=True)]
    if min(needed) > device.usable_bytes:
        least = -(-min(total) * kernel.memory // device.usable_bytes)
        raise InfeasibleError(
            f"{min(total):.3g} {kernel.unit}s hold {min(needed) / 2**30:,.1f} GiB a GPU, more than the "
            f"{device.usable_bytes / 2**30:.1f} GiB of {device.key}"
            + (f"; {int(least):,} GPUs would hold them" if least > max(counts) else "")
        )


def _half(codes: Any, kernel: Any, cluster: Any, units: float, known: Any, options: Mapping[str, Any]) -> str:
    from gpucalc.estimate.hpc import estimate_kernel, half_efficiency

    counts = sorted(CURVE)
    batch = codes.question(kernel, cluster, counts, [units] * len(counts), known, **options)
    found = half_efficiency(estimate_kernel(batch)["time/step"], counts)
    if found is None:
        return f"half of the efficiency is left beyond {max(counts):,} GPUs"
    return f"a problem of {units:.3g} {kernel.unit}s keeps half of its efficiency up to about {found:,} GPUs"


def _write_one(
    db: Any,
    codes: Any,
    kernel: Any,
    device: Any,
    n: int,
    units: float,
    ledger: Any,
    form: str,
    columns: str | None,
    no_header: bool,
) -> None:
    from gpucalc.estimate.hpc import bound_of
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant
    from gpucalc.questions.explain import ledger_tree

    def at(path: str) -> float:
        return float(ledger[path])

    answer: dict[str, Any] = {
        "kernel": kernel.name,
        "gpu": device.key,
        "n_gpus": n,
        "precision": kernel.precision,
        f"units_{kernel.unit.replace('-', '_')}": units,
        "step_time_s": at("time/step"),
        "rate_per_s": at("metric/rate"),
        "tflops": at("metric/rate") * kernel.flops / 1e12,
        "intensity_flop_per_byte": at("metric/intensity"),
        "peak_tflops": codes.device_peak(device, kernel.precision) / 1e12,
        "memory_gib": at("memory/resident") / 2**30,
        "bound": bound_of(ledger),
    }
    _write(form, answer, ledger_tree(ledger, db, ROOTS), columns, no_header, tree, significant)


def _write(
    form: str, answer: dict[str, Any], terms: Any, columns: str | None, no_header: bool, tree: Any, significant: Any
) -> None:
    if form == "json":
        emit_document({**answer, "terms": terms})
    elif form == "table" and columns is None:
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        emit_rows(form, list(answer), [answer], columns, not no_header)


def _list_benchmark(
    db: Any,
    codes: Any,
    known: Any,
    name: str,
    device: Any,
    counts: Sequence[int],
    form: str,
    columns: str | None,
    no_header: bool,
) -> int:
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant
    from gpucalc.questions.explain import ledger_tree

    answers, terms = [], []
    for n in counts:
        ledger = codes.list_benchmark(name, device, float(n), known, trace=True)
        rate = float(ledger["metric/rate"])
        answer = {
            "kernel": name,
            "gpu": device.key,
            "n_gpus": n,
            "tflops": rate / 1e12,
            "tflops_per_gpu": rate / n / 1e12,
        }
        if name == "hpl":
            answer |= {"order": float(ledger["hpl/order"]), "run_time_s": float(ledger["time/run"])}
        answers.append(answer)
        terms = ledger_tree(ledger, db, ROOTS)
    if len(answers) == 1:
        _write(form, answers[0], terms, columns, no_header, tree, significant)
    else:
        emit_rows(form, list(answers[0]), answers, columns, not no_header)
    shares = known["hpl"]["efficiency"] if name == "hpl" else known["hpcg"]["intensity"]
    rows = codes.family(device) in shares
    lines = [codes.poor_in_fp64(device)]
    lines.append(
        "" if rows else f"no system of {device.arch} is in the list; the share of all systems is taken (assumed)"
    )
    lines.append(f"{known[name]['title']}: {known[name]['origin']}")
    talk(*(f"note: {line}" for line in lines if line))
    return ExitStatus.OK


def _fitted(
    codes: Any,
    entry: Mapping[str, Any],
    name: str,
    gpu: str | None,
    db: Any,
    counts: Sequence[int],
    form: str,
    columns: str | None,
    no_header: bool,
) -> int:
    import numpy as np

    from gpucalc.estimate.hpc import half_efficiency

    if gpu is not None and db.device_key(gpu) != entry["gpu"]:
        raise UsageError(f"{name} was measured on {entry['gpu']} only; leave --gpu out, or ask for the kernel md")
    chosen = list(counts) or [
        n for n in CURVE if n == 2 ** (n.bit_length() - 1) and entry["first"] <= n <= 4 * entry["last"]
    ]
    times = np.atleast_1d(codes.fitted_time(entry, [1, *chosen])["time/step"])
    rows = [
        {
            "code": name,
            "gpu": entry["gpu"],
            "n_gpus": n,
            "time_s": float(t),
            "per": entry["per"],
            "rate_per_day": 86400 / float(t),
            "speedup": float(times[0] / t),
            "efficiency_pct": float(100 * times[0] / t / n),
            "basis": "measured range" if entry["first"] <= n <= entry["last"] else "extrapolated",
        }
        for n, t in zip(chosen, times[1:], strict=True)
    ]
    emit_rows(form, list(rows[0]), rows, columns, not no_header)
    curve = sorted(CURVE)
    found = half_efficiency(codes.fitted_time(entry, curve)["time/step"], curve)
    half = f"half of the efficiency is left up to about {found:,} GPUs" if found else ""
    talk(*(f"note: {line}" for line in (half, f"{entry['title']}: {entry['origin']}") if line))
    return ExitStatus.OK
