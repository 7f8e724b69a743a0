"""`gpucalc hw calibrate`: a user's own measurements → an overlay of the hardware database."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucalc.cli.job_options import ClusterOptions, cells_of
from gpucalc.cli.option import argument, cell, option
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import operation_named, positive_integer
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import OPERATIONS

if TYPE_CHECKING:
    from gpucalc.calibrate.fitted import Calibration

_COMPARED = (
    Column("group", "text", "rows compared"),
    Column("rows", "int", "fitted"),
    Column("fit_before", "number", "%", unit="%", heading="fitted: before", decimals=1),
    Column("fit_after", "number", "%", unit="%", heading="after", decimals=1),
    Column("held_out", "int", "held out"),
    Column("held_out_before", "number", "%", unit="%", heading="held out: before", decimals=1),
    Column("held_out_after", "number", "%", unit="%", heading="after", decimals=1),
)


@dataclass(frozen=True)
class MeasuredOn(ClusterOptions):
    """Where the logs were taken."""

    n_gpus: str | None = cell("--gpus N", "Ranks, where the log lists none.")


def calibrate(
    *,
    logs: tuple[str, ...] = argument(
        "LOG...", "Output of nccl-tests or rccl-tests; CSV of m,n,k,dtype,time_us.", repeat=True, files=True
    ),
    where: MeasuredOn,
    folder: str | None = option("-o, --output DIR", "Overlay to write or to add to; else nothing is.", files=True),
    nodes: int | None = option("--nodes N", "Hosts, where the log lists none.", read=positive_integer),
    op: str | None = option(
        "--op OP", "Operation, where neither log nor file name says it.", read=operation_named, complete=OPERATIONS
    ),
    in_place: bool = option("--in-place", "Fit the in-place columns of nccl-tests."),
    with_cast: bool = option("--with-cast", "FP8 and FP4 products were timed with the cast of their input."),
    output: OutputOptions,
) -> None:
    """Fit the constants of collectives and matrix products to your own logs, and write an overlay.

    \b
    gpucalc hw calibrate --gpu h100-sxm-80gb all_reduce.log all_gather.log gemm.csv -o overlay
    """
    if where.gpu is None or not logs:
        raise UsageError("missing: --gpu and a LOG, such as hw calibrate --gpu h100-sxm-80gb all_reduce.log -o overlay")
    from gpucalc.calibrate.fitted import Place
    from gpucalc.calibrate.from_logs import calibrate as fitted
    from gpucalc.calibrate.logs import read_log

    cells = cells_of(where)
    place = Place(
        where.gpu,
        cells.get("n_gpus"),
        nodes,
        cells.get("gpus_per_node"),
        where.fabric,
        cells.get("inter_node_gbps_per_gpu"),
    )
    database = where.database()
    database.device(where.gpu)
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"--output {folder!r} is a file, expected a folder")
    read = [read_log(Path(name), op, place.gpus) for name in dict.fromkeys(logs)]
    result = fitted(database, read, place, _today(), in_place=in_place, with_cast=with_cast)
    written = []
    if folder is not None:
        from gpucalc.calibrate.overlay import write_overlay

        written = write_overlay(Path(folder), result.constants)
    _emit(result, output)
    for warning in result.warnings:
        to_stderr(f"gpucalc: warning: {warning}")
    if written:
        to_stderr(f"gpucalc: wrote {', '.join(map(str, written))}; use it with --db {folder}")
    else:
        to_stderr("gpucalc: nothing written; -o DIR writes an overlay")


def _today() -> str:
    import datetime

    return datetime.date.today().isoformat()


def _emit(result: Calibration, output: OutputOptions) -> None:
    constants = [dataclasses.asdict(c) for c in result.constants]
    if output.json:
        comparisons = [dataclasses.asdict(c) for c in result.comparisons]
        document = {"gpu": result.gpu, "constants": constants, "errors": comparisons, "warnings": result.warnings}
        emit_document(document)
        return
    if output.form not in {"table", "md"}:
        output.rows(list(constants[0]), constants)
        return
    from gpucalc.output import choose_columns
    from gpucalc.output.table import significant

    def shown(value: float | None, unit: str) -> str:
        if value is None:
            return ""
        return f"{significant(value * 1e6)} µs" if unit == "s" else f"{significant(value)} {unit}".rstrip()

    rows = [
        {**row, "before": shown(row["before"], row["unit"]), "after": shown(row["after"], row["unit"])}
        for row in constants
    ]
    wanted = ["scope", "precision", "constant", "before", "before_provenance", "after", "rows"]
    names = choose_columns(output.columns, list(constants[0])) if output.columns is not None else wanted
    headings = {"before_provenance": "before was", "after": "fitted"}
    records = [Column(n, "text", n, heading=headings.get(n, n.replace("_", " "))) for n in names]
    output.table(records, [{n: r[n] for n in names} for r in rows])
    compared = []
    for comparison in result.comparisons:
        row = dataclasses.asdict(comparison)
        compared.append({n: 100 * v if isinstance(v, float) else v for n, v in row.items()})
    sys.stdout.write("\nMedian error with the constants before and after\n\n")
    output.table(_COMPARED, compared)
