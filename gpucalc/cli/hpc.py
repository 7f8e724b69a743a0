"""`gpucalc hpc`: scientific codes on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import ClusterOptions, cells_of, place_of
from gpucalc.cli.option import argument, option, options_of
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import gpu_count, none_or_more, positive_integer, positive_number, quantity
from gpucalc.core.columns import parts_of
from gpucalc.core.errors import ExitStatus, InfeasibleError, UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.questions.hpc import Kernel
    from gpucalc.questions.hpc_list import Share

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


def kernel_names() -> list[str]:
    """All that can be asked for: kernels, benchmarks of the TOP500 list, and measured codes."""
    from gpucalc.database.reader import Database
    from gpucalc.questions import hpc as codes

    known = codes.constants(Database())
    return [*known["kernel"], *codes.LIST_BENCHMARKS, *known["scaling"], "custom"]


def cpu_names() -> list[str]:
    """Processors that a GPU may be compared with."""
    from gpucalc.database.reader import Database
    from gpucalc.questions import hpc as codes

    return list(codes.constants(Database())["cpu"])


def _processors(text: str) -> tuple[str, int]:
    """A processor and the nodes of two of them."""
    name, colon, count = text.partition(":")
    return name, positive_integer("--cpu", count) if colon else 1


def kernel_precision(flag: str, text: str) -> str:
    """A precision that kernels are measured in."""
    from gpucalc.questions.hpc import PRECISIONS

    word = text.strip().casefold()
    if word not in PRECISIONS:
        raise unknown("precision of a kernel", text, PRECISIONS)
    return word


def dimensions_of(flag: str, text: str) -> int:
    """How many dimensions are cut."""
    if text not in {"1", "2", "3"}:
        raise UsageError(f"{flag} is {text!r}, expected 1, 2 or 3")
    return int(text)


@dataclass(frozen=True)
class Machines(ClusterOptions):
    """A cluster of one or several numbers of GPUs."""

    n_gpus: str | None = option("--gpus N[,N…]", "GPUs; a list gives a curve.")

    def counts(self) -> list[int]:
        """The numbers of GPUs; none where none are stated."""
        if self.n_gpus is None:
            return []
        return [gpu_count("--gpus", part) for part in parts_of("--gpus", self.n_gpus, "number of GPUs")]

    def cluster_of(self, gpu: str, n_gpus: int, db: Database) -> Cluster:
        """The cluster of so many GPUs."""
        from gpucalc.database.cluster import resolve_cluster

        cells = {**cells_of(self), "gpu": gpu, "n_gpus": n_gpus}
        return resolve_cluster(db, **place_of(cells), fabric=self.fabric)


@dataclass(frozen=True)
class KernelOptions:
    """The size of the problem, and what a unit of it takes instead of the named kernel's own."""

    units: float | None = option("--units N", "Cells, sites or atoms of the whole problem; 1e9.", read=positive_number)
    units_per_gpu: float | None = option(
        "--units-per-gpu N", "The same of each GPU: weak scaling.", read=positive_number
    )
    flops: float | None = option("--flops F", "Per unit, such as 100FLOP.", read=quantity("FLOP"))
    bytes: float | None = option("--bytes B", "Memory traffic per unit, such as 16B.", read=quantity("B"))
    memory: float | None = option("--memory B", "Resident per unit.", read=quantity("B"))
    halo: float | None = option("--halo B", "Sent per unit of a block's face.", read=quantity("B"))
    reductions: int | None = option("--reductions N", "Global sums of a step.", read=none_or_more)
    precision: str | None = option(
        "--precision NAME", "fp64 or fp32.", read=kernel_precision, complete=("fp64", "fp32")
    )

    def changes(self) -> dict[str, Any]:
        """What replaces the kernel's own numbers."""
        names = ("flops", "bytes", "memory", "halo", "reductions", "precision")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def refuse(self, word: str) -> None:
        """Raise UsageError for options that a benchmark or a measured code does not take."""
        unused = [one.name for name, one in options_of(self).items() if getattr(self, name) is not None]
        if unused:
            raise UsageError(f"{', '.join(unused)} has no meaning with {word}")


@command(group="The whole cluster")
def hpc(
    *,
    kernel: str | None = argument(
        "KERNEL",
        "stencil, lbm, lbm-fp16, cfd, qcd, qcd-dwf, fft, md, hpl, hpcg, a measured code such as gromacs-stmv, "
        "or custom.",
        complete=kernel_names,
    ),
    where: Machines,
    of: KernelOptions,
    dimensions: int = option("--dimensions D", "Dimensions that are cut: 1, 2 or 3.", default="3", read=dimensions_of),
    staged: bool = option("--staged", "Halos are copied through the host's memory."),
    cpu: str | None = option(
        "--cpu NAME[:NODES]", "Compare with nodes of two such processors, epyc-9654:8.", complete=cpu_names
    ),
    output: OutputOptions,
) -> int:
    """Scientific codes: roofline of a kernel, halo exchange, strong and weak scaling, HPL and HPCG.

    \b
    gpucalc hpc lbm --gpu h100-sxm-80gb --gpus 1,8,64,512
    gpucalc hpc hpl --gpu h100-sxm-80gb --gpus 1024
    """
    if kernel is None:
        raise UsageError("missing: a KERNEL such as lbm, stencil or hpl")
    database = where.database()
    from gpucalc.estimate.hpc import estimate_kernel
    from gpucalc.questions import hpc as codes

    known = codes.constants(database)
    counts = where.counts()
    codes.check_counts(counts)
    word = kernel.strip().casefold()
    if word in codes.LIST_BENCHMARKS:
        of.refuse(word)
        return _list_benchmark(database, known, word, where, counts or [1], cpu, output)
    if word in known["scaling"]:
        of.refuse(word)
        if cpu is not None:
            raise UsageError(f"--cpu has no meaning with {word}, which was measured on {known['scaling'][word]['gpu']}")
        return _fitted(known["scaling"][word], word, where.gpu, database, counts, output)
    device = _device(database, where.gpu)
    chosen = codes.kernel_named(word, known, of.changes())
    counts = counts or [1]
    cluster = where.cluster_of(device.key, max(counts), database)
    total = _sizes(of.units, of.units_per_gpu, counts, chosen, device)
    options: dict[str, Any] = {"dimensions": dimensions, "staged": staged}
    notes = [codes.poor_in_fp64(device)] if chosen.precision == "fp64" else []
    _must_fit(chosen, device, total, counts)
    if len(counts) == 1:
        columns_ = codes.question(chosen, cluster, counts, total, known, **options)
        ledger = estimate_kernel(columns_, trace=True)
        _write_one(
            database, chosen, device, counts[0], total[0], ledger, _against(chosen, cpu, total[0], known), output
        )
    else:
        rows = codes.scaling_rows(chosen, cluster, counts, total, known, weak=of.units_per_gpu is not None, **options)
        for row in rows:
            found = _against(chosen, cpu, row["units"], known)
            if found is not None:
                row["cpu_time_s"], row["cpu_speedup"] = found, found / row["step_time_s"]
        output.rows([*ROWS, *(("cpu_time_s", "cpu_speedup") if cpu is not None else ())], rows)
    if of.units_per_gpu is None and chosen.halo > 0:
        notes.append(_half(chosen, cluster, total[0], known, options))
    if of.units_per_gpu is None and of.units is None and len(counts) > 1:
        notes.append(
            f"the problem fills {min(counts):,} GPUs and is split over more; --units-per-gpu fills each, as the "
            "tables of FluidX3D do"
        )
    if cpu is not None:
        notes.append(_processors_said(cpu, known))
    to_stderr(*(f"note: {line}" for line in (*notes, f"{chosen.title}: {chosen.origin}") if line))
    return ExitStatus.OK


def _against(kernel: Kernel, cpu: str | None, units: float, known: Mapping[str, Any]) -> float | None:
    """Time of a step on the processors that were named."""
    if cpu is None:
        return None
    from gpucalc.questions.hpc import cpu_step_time

    name, nodes = _processors(cpu)
    return cpu_step_time(kernel, name, units, float(nodes), known)


def _processors_said(cpu: str, known: Mapping[str, Any]) -> str:
    name, nodes = _processors(cpu)
    entry = known["cpu"][name.strip().casefold()]
    return (
        f"compared with {nodes:,} x {entry['title']}, all-to-all exchanges counted, halos not ({entry['origin']}; "
        f"{known['cpu_share']['origin']})"
    )


def _device(db: Database, gpu: str | None) -> Device:
    if gpu is None:
        raise UsageError("missing: --gpu h100-sxm-80gb")
    return db.device(gpu)


def _sizes(
    units: float | None, per_gpu: float | None, counts: Sequence[int], kernel: Kernel, device: Device
) -> list[float]:
    """The whole problem at each number of GPUs."""
    if units is not None and per_gpu is not None:
        raise UsageError("--units and --units-per-gpu contradict each other")
    if units is not None:
        return [units] * len(counts)
    if per_gpu is not None:
        return [per_gpu * n for n in counts]
    if not kernel.memory:
        raise UsageError(f"how large is the problem? write --units or --units-per-gpu in {kernel.unit}s")
    # Without a size: what fills the fewest GPUs of the list, so that the whole curve can be run.
    return [float(int(FILL * device.usable_bytes / kernel.memory) * min(counts))] * len(counts)


def _must_fit(kernel: Kernel, device: Device, total: Sequence[float], counts: Sequence[int]) -> None:
    needed = [units * kernel.memory / n for units, n in zip(total, counts, strict=True)]
    if min(needed) > device.usable_bytes:
        least = -(-min(total) * kernel.memory // device.usable_bytes)
        raise InfeasibleError(
            f"{min(total):.3g} {kernel.unit}s hold {min(needed) / 2**30:,.1f} GiB a GPU, more than the "
            f"{device.usable_bytes / 2**30:.1f} GiB of {device.key}"
            + (f"; {int(least):,} GPUs would hold them" if least > max(counts) else "")
        )


def _half(kernel: Kernel, cluster: Cluster, units: float, known: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    from gpucalc.estimate.hpc import estimate_kernel, half_efficiency
    from gpucalc.questions.hpc import question

    counts = sorted(CURVE)
    batch = question(kernel, cluster, counts, [units] * len(counts), known, **options)
    found = half_efficiency(estimate_kernel(batch)["time/step"], counts)
    if found is None:
        return f"half of the efficiency is left beyond {max(counts):,} GPUs"
    return f"a problem of {units:.3g} {kernel.unit}s keeps half of its efficiency up to about {found:,} GPUs"


def _write_one(
    db: Database,
    kernel: Kernel,
    device: Device,
    n: int,
    units: float,
    ledger: Ledger,
    cpu_time: float | None,
    output: OutputOptions,
) -> None:
    from gpucalc.estimate.hpc import bound_of
    from gpucalc.questions.explain import ledger_tree
    from gpucalc.questions.hpc import device_peak, rate_range

    def at(path: str) -> float:
        return float(ledger[path])

    low, high = rate_range(kernel, device, at("metric/rate"))
    answer: dict[str, Any] = {
        "kernel": kernel.name,
        "gpu": device.key,
        "n_gpus": n,
        "precision": kernel.precision,
        f"units_{kernel.unit.replace('-', '_')}": units,
        "step_time_s": at("time/step"),
        "rate_per_s": at("metric/rate"),
        "rate_low_per_s": low,
        "rate_high_per_s": high,
        "tflops": at("metric/rate") * kernel.flops / 1e12,
        "intensity_flop_per_byte": at("metric/intensity"),
        "peak_tflops": device_peak(device, kernel.precision) / 1e12,
        "memory_gib": at("memory/resident") / 2**30,
        "bound": bound_of(ledger),
    }
    if cpu_time is not None:
        answer |= {"cpu_time_s": cpu_time, "cpu_speedup": cpu_time / at("time/step")}
    _write(answer, ledger_tree(ledger, db, ROOTS), output)


def _write(answer: dict[str, Any], terms: list[dict[str, Any]], output: OutputOptions) -> None:
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant

    if output.json:
        emit_document({**answer, "terms": terms})
    elif output.form == "table" and output.columns is None:
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in answer.items()]
        sys.stdout.write(tree(pairs, terms, ()) + "\n")
    else:
        output.rows(list(answer), [answer])


def _list_benchmark(
    db: Database,
    known: Mapping[str, Any],
    name: str,
    where: Machines,
    counts: Sequence[int],
    cpu: str | None,
    output: OutputOptions,
) -> int:
    from gpucalc.questions import hpc as codes
    from gpucalc.questions import hpc_list as listed
    from gpucalc.questions.explain import ledger_tree

    device = _device(db, where.gpu)
    cluster = where.cluster_of(device.key, max(counts), db)
    network = listed.network_class(cluster.fabric)
    answers, terms = [], []
    for n in counts:
        ledger, share = listed.list_benchmark(
            name, device, float(n), known, network=network, host_bytes=listed.host_bytes_of(cluster), trace=True
        )
        answers.append(_list_answer(name, device, n, ledger, share))
        if cpu is not None:
            processor, nodes = _processors(cpu)
            answers[-1]["cpu_speedup"] = answers[-1]["tflops"] * 1e12 / codes.cpu_rate(processor, name, nodes, known)
        terms = ledger_tree(ledger, db, ROOTS)
    if len(answers) == 1:
        _write(answers[0], terms, output)
    else:
        output.rows(list(answers[0]), answers)
    lines = [codes.poor_in_fp64(device)]
    lines.append(
        f"share {share.value:g} of {share.systems} systems of {share.of}; its systems span {share.low:g} to "
        f"{share.high:g}"
        if share.systems
        else f"the rows that ship hold no system of {device.arch} with {name.upper()}; {share.value:g} is taken for "
        f"{share.of} ({share.low:g} to {share.high:g})"
    )
    if name == "hpl" and "hpl/order/both" in ledger:
        lines.append("order and time: of the device memory, and high where the host's memory is filled too")
    if cpu is not None:
        lines.append(_processors_said(cpu, known))
    lines.append(f"{known[name]['title']}: {known[name]['origin']}")
    to_stderr(*(f"note: {line}" for line in lines if line))
    return ExitStatus.OK


def _list_answer(name: str, device: Device, n: int, ledger: Ledger, share: Share) -> dict[str, Any]:
    """One number of GPUs: rate with its range, and of HPL the order and the time."""
    rate = float(ledger["metric/rate"]) / 1e12
    answer = {
        "kernel": name,
        "gpu": device.key,
        "n_gpus": n,
        "tflops": rate,
        "tflops_low": rate * share.low / share.value,
        "tflops_high": rate * share.high / share.value,
        "tflops_per_gpu": rate / n,
    }
    if name == "hpl":
        order, time = ("hpl/order/both", "time/run/both") if "time/run/both" in ledger else ("hpl/order", "time/run")
        answer |= {
            "order": float(ledger["hpl/order"]),
            "order_high": float(ledger[order]),
            "run_time_s": float(ledger["time/run"]),
            "run_time_high_s": float(ledger[time]),
        }
    return answer


def _fitted(
    entry: Mapping[str, Any],
    name: str,
    gpu: str | None,
    db: Database,
    counts: Sequence[int],
    output: OutputOptions,
) -> int:
    import numpy as np

    from gpucalc.estimate.hpc import half_efficiency
    from gpucalc.questions.hpc import fitted_time

    if gpu is not None and db.device_key(gpu) != entry["gpu"]:
        raise UsageError(f"{name} was measured on {entry['gpu']} only; leave --gpu out, or ask for the kernel md")
    chosen = list(counts) or [
        n for n in CURVE if n == 2 ** (n.bit_length() - 1) and entry["first"] <= n <= 4 * entry["last"]
    ]
    times = np.atleast_1d(fitted_time(entry, [1, *chosen])["time/step"])
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
    output.rows(list(rows[0]), rows)
    curve = sorted(CURVE)
    found = half_efficiency(fitted_time(entry, curve)["time/step"], curve)
    half = f"half of the efficiency is left up to about {found:,} GPUs" if found else ""
    to_stderr(*(f"note: {line}" for line in (half, f"{entry['title']}: {entry['origin']}") if line))
    return ExitStatus.OK
