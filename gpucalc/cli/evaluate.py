"""`gpucalc eval`: rows in, the same rows and predictions out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.launched import launched_cells
from gpucalc.cli.output import emit_rows, talk
from gpucalc.core.columns import INPUT, INPUT_COLUMNS, KERNEL_COLUMNS, KINDS, cell_text
from gpucalc.core.errors import DataError, UsageError, unknown
from gpucalc.jobs.context import Context
from gpucalc.launch.target import sources

_FROM = f"FILE holds launch settings: {', '.join(sources())}."
MOST_NOTES = 8  # kinds of warning that are said of a file of rows
Evaluator = Callable[[list[dict[str, str]]], list[dict[str, Any]]]


def evaluate(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="CSV, JSON lines or a JSON array.")] = "-",
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="KIND", help="training, gemm, attention, collective, alltoall, serving or posttraining."
        ),
    ] = "training",
    form: Annotated[
        Optional[str],
        typer.Option("-f", "--format", metavar="FORMAT", help="csv, jsonl, json, table or md; that of the input."),
    ] = None,
    source: Annotated[
        Optional[str],
        typer.Option("--from", metavar="FRAMEWORK", help=_FROM),
    ] = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    settings: opt.Settings = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
) -> None:
    """Append predictions to rows: one row in, one row out; --set states a cell of every row.

    \b
    gpucalc eval runs.csv -f csv > predicted.csv
    gpucalc eval --from megatron run.sh --gpu h100-sxm-80gb
    """
    from gpucalc.core.rows import read_rows
    from gpucalc.output import choose_columns, write_rows

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    wanted = opt.chosen_format(form) if form is not None else None
    stated = opt.job_cells({"gpu": gpu, "n_gpus": gpus}, settings)
    if stated and kind != "training":
        flags = {"--set": settings, "--gpu": gpu, "--gpus": gpus}
        used = ", ".join(flag for flag, value in flags.items() if value)
        raise UsageError(f"{used} has no meaning with --kind {kind}")
    if source is not None:
        if kind != "training":
            raise UsageError(f"--from has no meaning with --kind {kind}: launch settings are of training")
        row = _launched(file, source, stated, opt.open_database(db), profile, fabric, causal_flops)
        emit_rows(wanted or "csv", list(row), [row], columns, not no_header)
        return
    rows = read_rows(file)
    appended = KINDS[kind]
    fixed = {name: cell_text(value) for name, value in stated.items()}
    known = [name for name in dict.fromkeys([*rows.columns, *fixed]) if name not in appended] + list(appended)
    chosen = choose_columns(columns, known)
    talk(*_doubts(rows.columns, kind))
    warned: dict[str, int] = {}
    evaluator = _evaluator(kind, opt.open_database(db), profile, fabric, causal_flops, warned)
    output = wanted or ("csv" if rows.form == "csv" else "jsonl")
    whole_records = output in {"json", "jsonl"} and columns is None
    tally = _Tally()
    read = ([{**record, **fixed} for record in block] for block in rows.blocks) if fixed else rows.blocks
    blocks = _predicted(read, evaluator, appended, tally, None if whole_records else set(known))
    write_rows(sys.stdout, output, None if whole_records else chosen, blocks, header=not no_header)
    if tally.failed or warned:
        sys.stdout.flush()
    talk(*_notes(warned))
    if tally.failed:
        few = "row" if tally.failed == 1 else "rows"
        talk(f"gpucalc: {tally.failed:,} {few} of {tally.rows:,} could not be evaluated; pred_error says why")


def _launched(
    file: str,
    source: str,
    stated: dict[str, Any],
    db: Any,
    profile: str | None,
    fabric: str | None,
    causal_flops: bool,
) -> dict[str, Any]:
    """The row of launch settings, predicted; cells that are stated beside the file replace the file's."""
    from gpucalc.jobs.training import predict, resolve
    from gpucalc.layouts.label import Layout

    cells = launched_cells(file, source, stated)
    job = resolve(cells, Context(db, profile=profile, fabric=fabric, causal_flops=causal_flops))
    talk(*(f"note: {warning}" for warning in job.warnings))
    shown = dict(cells) if job.model.experts else {name: value for name, value in cells.items() if name != "etp"}
    return {"layout": Layout.from_cells(shown).label(), **cells, **predict([job])[0]}


def _doubts(columns: list[str], kind: str) -> list[str]:
    """A remark for each unknown column whose name is a slip away from one that is read and not there."""
    import difflib

    read = INPUT if kind == "training" else {c.name: c for c in (*KERNEL_COLUMNS, *INPUT_COLUMNS)}
    if kind == "serving":
        from gpucalc.jobs.serving_schema import RECORDS

        read = read | RECORDS
    missing = [name for name in read if name not in columns]
    lines = []
    for column in columns:
        near = [] if column in read else difflib.get_close_matches(column.strip().casefold(), missing, 1, 0.85)
        if near:
            lines.append(f"gpucalc: column {column!r} is carried through unread; did you mean {near[0]}?")
    return lines


def _notes(warned: dict[str, int]) -> list[str]:
    """The warnings of the rows, each once with its count, the commonest first."""
    ranked = sorted(warned.items(), key=lambda item: -item[1])
    lines = [f"note: {count:,} {'row' if count == 1 else 'rows'}: {text}" for text, count in ranked[:MOST_NOTES]]
    left = len(ranked) - len(lines)
    return [*lines, f"note: {left:,} more kinds of warning"] if left else lines


@dataclass
class _Tally:
    rows: int = 0
    failed: int = 0


def _evaluator(
    kind: str, db: Any, profile: str | None, fabric: str | None, causal_flops: bool, warned: dict[str, int]
) -> Evaluator:
    if kind != "training":
        given = {"--profile": profile, "--fabric": fabric, "--causal-flops": causal_flops or None}
        unused = [flag for flag, value in given.items() if value is not None]
        if unused:
            raise UsageError(f"{', '.join(unused)} has no meaning with --kind {kind}")
    if kind == "training":
        from gpucalc.jobs.training import evaluate_rows

        return lambda records: evaluate_rows(
            records, Context(db, profile=profile, fabric=fabric, causal_flops=causal_flops), warned
        )
    if kind == "serving":
        from gpucalc.jobs.serving import evaluate_serving

        return lambda records: evaluate_serving(records, Context(db))
    if kind == "posttraining":
        from gpucalc.questions.tune.predict import evaluate_posttraining

        return lambda records: evaluate_posttraining(records, Context(db))
    if kind in {"gemm", "attention"}:
        from gpucalc.questions import kernels

        function = {"gemm": kernels.evaluate_gemm, "attention": kernels.evaluate_attention}[kind]
    else:
        from gpucalc.questions import collectives

        function = {"collective": collectives.evaluate_collective, "alltoall": collectives.evaluate_alltoall}[kind]
    return lambda records: function(records, db)


def _predicted(
    blocks: Iterator[list[dict[str, Any]]],
    evaluator: Evaluator,
    appended: tuple[str, ...],
    tally: _Tally,
    known: set[str] | None,
) -> Iterator[list[dict[str, Any]]]:
    """Each block with its predictions; predictions that the rows already held are replaced.

    `known` are the columns of a header already written: a later record with another one cannot be shown.
    """
    from gpucalc.core.rows import text_record

    for block in blocks:
        if known is not None:
            for position, record in enumerate(block, tally.rows + 1):
                new = [name for name in record if name not in known]
                if new:
                    raise DataError(
                        f"record {position} has a column {new[0]!r} that the first ones lack; write with -f jsonl"
                    )
        found = evaluator([text_record(record) for record in block])
        tally.rows += len(block)
        tally.failed += sum(1 for prediction in found if prediction.get("pred_error"))
        yield [
            {**{n: v for n, v in record.items() if n not in appended}, **{n: prediction.get(n) for n in appended}}
            for record, prediction in zip(block, found, strict=True)
        ]
