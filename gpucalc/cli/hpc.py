"""`gpucalc hpc`: scientific codes on a cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import ClusterOptions, cells_of, place_of
from gpucalc.cli.option import argument, option, options_of
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import gpu_count, none_or_more, positive_integer, positive_number, quantity
from gpucalc.core.columns import parts_of
from gpucalc.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.questions.hpc_answers import Answer, Processors


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


def _processors(text: str | None) -> Processors | None:
    """Nodes of two processors, from a text such as epyc-9654:8."""
    from gpucalc.questions.hpc_answers import Processors

    if text is None:
        return None
    name, colon, count = text.partition(":")
    return Processors(name, positive_integer("--cpu", count) if colon else 1)


def kernel_precision(flag: str, text: str) -> str:
    """A precision that kernels are measured in."""
    from gpucalc.questions.hpc import PRECISIONS

    word = text.strip().casefold()
    if word not in PRECISIONS:
        raise unknown("precision of a kernel", text, PRECISIONS)
    return word


def dimensions_of(flag: str, text: str) -> int:
    """How many dimensions are cut."""
    if text not in {"1", "2", "3", "4"}:
        raise UsageError(f"{flag} is {text!r}, expected 1, 2 or 3, or 4 of a lattice that has as many")
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

    def refuse(self, word: str, *, dimensions: int | None, staged: bool) -> None:
        """Raise UsageError for options that a benchmark or a measured code does not take."""
        unused = [one.name for name, one in options_of(self).items() if getattr(self, name) is not None]
        unused += ["--dimensions"] * (dimensions is not None) + ["--staged"] * staged
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
    dimensions: int | None = option(
        "--dimensions D", "Dimensions that are cut, 1 to 3 or 4; all of the lattice without it.", read=dimensions_of
    ),
    staged: bool = option("--staged", "Halos are copied through the host's memory."),
    cpu: str | None = option(
        "--cpu NAME[:NODES]", "Compare with nodes of two such processors, epyc-9654:8.", complete=cpu_names
    ),
    output: OutputOptions,
) -> None:
    """Scientific codes: roofline of a kernel, halo exchange, strong and weak scaling, HPL and HPCG.

    \b
    gpucalc hpc lbm --gpu h100-sxm-80gb --gpus 1,8,64,512
    gpucalc hpc hpl --gpu h100-sxm-80gb --gpus 1024
    """
    if kernel is None:
        raise UsageError("missing: a KERNEL such as lbm, stencil or hpl")
    database = where.database()
    from gpucalc.questions import hpc as codes
    from gpucalc.questions import hpc_answers as answers

    known = codes.constants(database)
    counts = where.counts()
    codes.check_counts(counts)
    word = kernel.strip().casefold()
    if word in known["scaling"]:
        entry = known["scaling"][word]
        of.refuse(word, dimensions=dimensions, staged=staged)
        if cpu is not None:
            raise UsageError(f"--cpu has no meaning with {word}, which was measured on {entry['gpu']}")
        if where.gpu is not None and database.device_key(where.gpu) != entry["gpu"]:
            raise UsageError(f"{word} was measured on {entry['gpu']} only; leave --gpu out, or ask for the kernel md")
        _write(answers.measured_answer(entry, word, counts), output)
        return
    listed = word in codes.LIST_BENCHMARKS
    if listed:
        of.refuse(word, dimensions=dimensions, staged=staged)
    if where.gpu is None:
        raise UsageError("missing: --gpu h100-sxm-80gb")
    chosen = None if listed else codes.kernel_named(word, known, of.changes())
    counts = counts or [1]
    cluster = where.cluster_of(database.device_key(where.gpu), max(counts), database)
    processors = _processors(cpu)
    if chosen is None:
        _write(answers.list_answer(word, cluster, counts, known, database, processors), output)
        return
    found = answers.kernel_answer(
        chosen,
        cluster,
        counts,
        known,
        database,
        units=of.units,
        per_gpu=of.units_per_gpu,
        dimensions=dimensions,
        staged=staged,
        cpu=processors,
    )
    _write(found, output)


def _write(found: Answer, output: OutputOptions) -> None:
    """One number of GPUs with its terms, several as a table."""
    from gpucalc.output.explain import tree
    from gpucalc.output.table import significant

    alone = found.rows[0] if found.terms else None
    if alone is not None and output.json:
        emit_document({**alone, "terms": found.terms})
    elif alone is not None and output.form == "table" and output.columns is None:
        pairs = [(n, significant(v) if isinstance(v, float) else str(v)) for n, v in alone.items()]
        sys.stdout.write(tree(pairs, found.terms, ()) + "\n")
    else:
        output.rows(found.columns, found.rows)
    to_stderr(*(f"note: {line}" for line in found.notes))
