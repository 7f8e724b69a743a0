"""`gpucalc eval`: rows in, the same rows and predictions out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions, RowOptions
from gpucalc.cli.launched import launched_cells, policy_row, served_row, training_row
from gpucalc.cli.option import argument, option, options_of
from gpucalc.cli.output import emit_rows, to_stderr
from gpucalc.core.columns import INPUT, INPUT_COLUMNS, KERNEL_COLUMNS, KINDS, cell_text
from gpucalc.core.errors import DataError, UsageError
from gpucalc.output import FORMATS

if TYPE_CHECKING:
    from gpucalc.core.rows import Rows
    from gpucalc.jobs.context import Context

CLUSTER_KINDS = ("storage", "power", "run", "hpl", "hpcg", "render")
MOST_NOTES = 8  # kinds of warning that are said of a file of rows
Evaluator = Callable[[list[dict[str, str]]], list[dict[str, Any]]]


def frameworks() -> tuple[str, ...]:
    """The frameworks whose launch settings can be read."""
    from gpucalc.launch.target import sources

    return sources()


@command("eval", group="Check")
def evaluate(
    *,
    file: str = argument("[FILE|-]", "CSV, JSON lines or a JSON array.", default="-", files=True),
    kind: str = option(
        "--kind KIND",
        "training, gemm, attention, collective, alltoall, serving, posttraining, mixed, storage, power, run, hpl, "
        "hpcg or render.",
        default="training",
        choices=tuple(KINDS),
    ),
    source: str | None = option(
        "--from FRAMEWORK", lambda: f"FILE holds launch settings: {', '.join(frameworks())}.", complete=frameworks
    ),
    stated: RowOptions,
    form: str | None = option(
        "-f, --format FORMAT", "csv, jsonl, json, table or md; that of the input.", choices=FORMATS
    ),
    columns: str | None = option("--columns A,B,…", "Columns to print, in this order."),
    no_header: bool = option("--no-header", "Leave out the heading."),
) -> None:
    """Append predictions to rows: one row in, one row out; --set states a cell of every row.

    \b
    gpucalc eval runs.csv -f csv > predicted.csv
    gpucalc eval --from megatron run.sh --gpu h100-sxm-80gb
    """
    from gpucalc.core.rows import read_rows
    from gpucalc.output import choose_columns, write_rows

    if kind != "training":
        _refuse(kind, stated, source)
    context = stated.context()
    if source is not None:
        row = _launched(file, source, stated, context)
        emit_rows(form or "csv", list(row), [row], columns, not no_header)
        return
    cells = stated.cells()
    rows = read_rows(file)
    appended = KINDS[kind]
    fixed = {name: cell_text(value) for name, value in cells.items()}
    if kind == "training":
        rows, appended = _with_networks(rows, fixed)
    known = [name for name in dict.fromkeys([*rows.columns, *fixed]) if name not in appended] + list(appended)
    chosen = choose_columns(columns, known)
    to_stderr(*_doubts(rows.columns, kind))
    warned: dict[str, int] = {}
    evaluator = _evaluator(kind, context, warned)
    output = form or ("csv" if rows.form == "csv" else "jsonl")
    whole_records = output in {"json", "jsonl"} and columns is None
    tally = _Tally()
    read = ([{**record, **fixed} for record in block] for block in rows.blocks) if fixed else rows.blocks
    blocks = _predicted(read, evaluator, appended, tally, None if whole_records else set(known))
    write_rows(sys.stdout, output, None if whole_records else chosen, blocks, header=not no_header)
    if tally.failed or warned:
        sys.stdout.flush()
    to_stderr(*_notes(warned))
    if tally.failed:
        few = "row" if tally.failed == 1 else "rows"
        to_stderr(f"gpucalc: {tally.failed:,} {few} of {tally.rows:,} could not be evaluated; pred_error says why")


def _with_networks(rows: Rows, fixed: Mapping[str, str]) -> tuple[Rows, tuple[str, ...]]:
    """The rows, and what is appended to them, which the first of them decide."""
    import itertools

    from gpucalc.core.rows import Rows, text_record
    from gpucalc.jobs.rows import appended_columns

    blocks = iter(rows.blocks)
    first = next(blocks, [])
    appended = appended_columns([*rows.columns, *fixed], [text_record({**record, **fixed}) for record in first])
    return Rows(rows.columns, itertools.chain([first] if first else [], blocks), rows.form), appended


def _refuse(kind: str, stated: RowOptions, source: str | None) -> None:
    """Raise UsageError for options that only training rows have."""
    of_database = options_of(DatabaseOptions)
    unused = [one.name for name, one in options_of(stated).items() if name not in of_database and getattr(stated, name)]
    if unused:
        raise UsageError(f"{', '.join(unused)} has no meaning with --kind {kind}")
    if source is not None:
        raise UsageError(f"--from has no meaning with --kind {kind}: launch settings say what they are of")


def _launched(file: str, source: str, stated: RowOptions, context: Context) -> dict[str, Any]:
    """The row of launch settings, predicted; cells that are stated beside the file replace the file's."""
    from gpucalc.launch import source_named

    kind = source_named(source).kind
    if kind != "training":
        return (served_row if kind == "serving" else policy_row)(file, source, stated, context)
    return training_row(launched_cells(file, source, stated.cells()), context)


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


def _evaluator(kind: str, context: Context, warned: dict[str, int]) -> Evaluator:
    if kind == "training":
        from gpucalc.jobs.rows import evaluate_any

        return lambda records: evaluate_any(records, context, warned)
    if kind == "serving":
        from gpucalc.jobs.serving import evaluate_serving

        return lambda records: evaluate_serving(records, context)
    if kind == "posttraining":
        from gpucalc.questions.tune.predict import evaluate_posttraining

        return lambda records: evaluate_posttraining(records, context)
    if kind == "mixed":
        from gpucalc.questions.mixed_use import evaluate_mixed

        return lambda records: evaluate_mixed(records, context)
    if kind in CLUSTER_KINDS:
        from gpucalc.questions.cluster_rows import evaluate_cluster

        return lambda records: evaluate_cluster(kind, records, context)
    if kind in {"gemm", "attention"}:
        from gpucalc.questions import kernels

        function = {"gemm": kernels.evaluate_gemm, "attention": kernels.evaluate_attention}[kind]
    else:
        from gpucalc.questions import collectives

        function = {"collective": collectives.evaluate_collective, "alltoall": collectives.evaluate_alltoall}[kind]
    return lambda records: function(records, context.db)


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
