"""`gpucalc hw calibrate`: a user's own measurements → an overlay of the hardware database."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError

_COMPARED = (
    Column("group", "text", "rows compared"),
    Column("rows", "int", "fitted"),
    Column("fit_before", "number", "%", unit="%", heading="fitted: before", decimals=1),
    Column("fit_after", "number", "%", unit="%", heading="after", decimals=1),
    Column("held_out", "int", "held out"),
    Column("held_out_before", "number", "%", unit="%", heading="held out: before", decimals=1),
    Column("held_out_after", "number", "%", unit="%", heading="after", decimals=1),
)


def calibrate(
    logs: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="LOG...", help="Output of nccl-tests or rccl-tests; CSV of m,n,k,dtype,time_us."),
    ] = None,
    gpu: opt.Gpu = None,
    output: Annotated[
        opt.Text, typer.Option("-o", "--output", metavar="DIR", help="Overlay to write or to add to; else nothing is.")
    ] = None,
    gpus: Annotated[opt.Text, typer.Option("--gpus", metavar="N", help="Ranks, where the log lists none.")] = None,
    nodes: Annotated[opt.Text, typer.Option("--nodes", metavar="N", help="Hosts, where the log lists none.")] = None,
    gpus_per_node: opt.GpusPerNode = None,
    fabric: opt.Fabric = None,
    inter_node_gbps: opt.NetworkRate = None,
    op: Annotated[
        opt.Text, typer.Option("--op", metavar="OP", help="Operation, where neither log nor file name says it.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Fit the in-place columns of nccl-tests.")] = False,
    with_cast: Annotated[
        bool, typer.Option("--with-cast", help="FP8 and FP4 products were timed with the cast of their input.")
    ] = False,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> None:
    """Fit the constants of collectives and matrix products to your own logs, and write an overlay.

    \b
    gpucalc hw calibrate --gpu h100-sxm-80gb all_reduce.log all_gather.log gemm.csv -o overlay
    """
    form = opt.chosen_format(form)
    if gpu is None or not logs:
        raise UsageError("missing: --gpu and a LOG, such as hw calibrate --gpu h100-sxm-80gb all_reduce.log -o overlay")
    from gpucalc.calibrate.fitted import Place
    from gpucalc.calibrate.fitted import calibrate as fitted
    from gpucalc.calibrate.logs import read_log
    from gpucalc.core.vocabulary import operation

    def whole(flag: str, text: str | None) -> int | None:
        return None if text is None else opt.positive_integer(flag, text)

    rate = None if inter_node_gbps is None else opt.option_value("inter_node_gbps_per_gpu", inter_node_gbps)
    place = Place(
        gpu,
        whole("--gpus", gpus),
        whole("--nodes", nodes),
        whole("--gpus-per-node", gpus_per_node),
        fabric,
        rate,
    )
    database = opt.open_database(db)
    database.device(gpu)
    if output is not None and Path(output).exists() and not Path(output).is_dir():
        raise UsageError(f"--output {output!r} is a file, expected a folder")
    chosen = operation(op) if op is not None else None
    read = [read_log(Path(name), chosen, place.gpus) for name in dict.fromkeys(logs)]
    result = fitted(database, read, place, _today(), in_place=in_place, with_cast=with_cast)
    written = []
    if output is not None:
        from gpucalc.calibrate.overlay import write_overlay

        written = write_overlay(Path(output), result.constants)
    _emit(form, result, columns, not no_header)
    for warning in result.warnings:
        talk(f"gpucalc: warning: {warning}")
    if written:
        talk(f"gpucalc: wrote {', '.join(map(str, written))}; use it with --db {output}")
    else:
        talk("gpucalc: nothing written; -o DIR writes an overlay")


def _today() -> str:
    import datetime

    return datetime.date.today().isoformat()


def _emit(form: str, result: Any, columns: str | None, header: bool) -> None:
    constants = [dataclasses.asdict(c) for c in result.constants]
    if form == "json":
        comparisons = [dataclasses.asdict(c) for c in result.comparisons]
        document = {"gpu": result.gpu, "constants": constants, "errors": comparisons, "warnings": result.warnings}
        emit_document(document)
        return
    if form not in {"table", "md"}:
        emit_rows(form, list(constants[0]), constants, columns, header)
        return
    from gpucalc.output import choose_columns
    from gpucalc.output.table import significant, table

    def shown(value: float | None, unit: str) -> str:
        if value is None:
            return ""
        return f"{significant(value * 1e6)} µs" if unit == "s" else f"{significant(value)} {unit}".rstrip()

    rows = [
        {**row, "before": shown(row["before"], row["unit"]), "after": shown(row["after"], row["unit"])}
        for row in constants
    ]
    wanted = ["scope", "precision", "constant", "before", "before_provenance", "after", "rows"]
    names = choose_columns(columns, list(constants[0])) if columns is not None else wanted
    headings = {"before_provenance": "before was", "after": "fitted"}
    records = [Column(n, "text", n, heading=headings.get(n, n.replace("_", " "))) for n in names]
    markdown = form == "md"
    sys.stdout.write(table(records, [{n: r[n] for n in names} for r in rows], markdown=markdown, header=header) + "\n")
    compared = []
    for comparison in result.comparisons:
        row = dataclasses.asdict(comparison)
        compared.append({n: 100 * v if isinstance(v, float) else v for n, v in row.items()})
    sys.stdout.write("\nMedian error with the constants before and after\n\n")
    sys.stdout.write(table(_COMPARED, compared, markdown=markdown, header=header) + "\n")
