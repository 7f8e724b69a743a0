"""`gpucalc validate`: measured rows in, errors of the predictions out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import argument, option
from gpucalc.cli.output import emit_document, format_option, to_stderr
from gpucalc.cli.values import none_or_more, positive_integer
from gpucalc.core.columns import parts_of
from gpucalc.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.jobs.context import Context

HEADINGS = {
    "all": "Step time, all rows",
    "by_source": "Step time by source",
    "by_family": "Step time by family (a row may belong to several)",
    "by_gpu": "Step time by GPU",
    "by_framework": "Step time by framework",
    "pairs": "Published and predicted, pair by pair",
    "by_group": "Errors by group",
    "not_trusted": "Rows that do not state all that decides their time",
    "memory": "Peak memory",
    "fit": "Fits or does not fit",
    "ranking": "Order of layouts of one job",
    "worst": "Rows farthest off",
    "no_prediction": "Rows without a prediction",
    "targets": "Targets",
}
NOTES_SHOWN = 70
PLOT_FORMS = (".png", ".pdf", ".svg")


def kinds() -> tuple[str, ...]:
    """All kinds of rows that can be validated."""
    from gpucalc.validate import cluster, kernels, networks, workloads

    return (
        "training",
        *kernels.KINDS,
        "serving",
        "kv",
        "posttraining",
        *cluster.KINDS,
        *workloads.KINDS,
        *networks.KINDS,
    )


def groupings() -> tuple[str, ...]:
    """What errors of training rows can be grouped by; other kinds have keys of their own."""
    from gpucalc.validate.metrics import GROUPINGS

    return tuple(GROUPINGS)


def picture(flag: str, text: str) -> str:
    """The name of a picture of matplotlib's."""
    if not text.lower().endswith(PLOT_FORMS):
        raise UsageError(f"{flag} is {text!r}, expected a name that ends in {', '.join(PLOT_FORMS)}")
    return text


@command(group="Check")
def validate(
    *,
    files: tuple[str, ...] = argument(
        "[FILE]...", "Measured rows; without any, the shipped ones.", repeat=True, files=True
    ),
    kind: str = option(
        "--kind KIND",
        "training, gemm, attention, collective, serving, kv, posttraining, goodput, storage …",
        default="training",
        choices=kinds,
    ),
    by: tuple[str, ...] = option(
        "--by KEY", "source, family, gpu or framework; repeatable.", repeat=True, complete=groupings
    ),
    learn: int | None = option(
        "--learn K", "How much K runs of a cluster take from the error of its others.", read=positive_integer
    ),
    worst: int = option("--worst N", "How many of the rows farthest off to list.", default="10", read=none_or_more),
    plot: str | None = option(
        "--plot FILE.png", "Draw predicted against measured step times.", read=picture, files=True
    ),
    fabric: str | None = option(
        "--fabric LINK", "Network link of the database, such as ib-ndr.", complete="network links"
    ),
    profile: str | None = option("--profile NAME", "Software profile.", complete="profiles"),
    form: str = format_option(),
    database: DatabaseOptions,
) -> None:
    """Compare predictions with measured rows: errors by source and family, memory, fit, order of layouts.

    \b
    gpucalc validate
    gpucalc validate my_runs.csv -f json
    """
    from gpucalc.jobs.context import Context

    db = database.database()
    if learn is not None:
        found = _learning(files, kind, db, learn)
    elif kind != "training":
        stated = {"--profile": profile, "--fabric": fabric, "--plot": plot}
        unused = [flag for flag, value in stated.items() if value is not None]
        if unused:
            raise UsageError(f"{', '.join(unused)} has no meaning with --kind {kind}")
        found = _other(kind, files, db, by, worst)
    else:
        found = _training(files, Context(db, profile, fabric), by, worst, plot)
    if form == "json":
        emit_document(found)
    elif form in {"csv", "jsonl"}:
        _emit_flat(form, found)
    else:
        _emit_tables(found, markdown=form == "md")
    sys.stdout.flush()
    to_stderr(*_footers(found, bool(files)))


def _learning(files: Sequence[str], kind: str, db: Database, runs: int) -> dict[str, Any]:
    """The report of --learn: it needs predictions with whole sources left out, which only the shipped rows have."""
    from gpucalc.validate.learning import LEAST_ROWS, learning_report

    if files or kind != "training":
        raise UsageError("--learn scores the shipped training rows; for your own runs see gpucalc learn RUNS")
    if runs >= LEAST_ROWS - 1:
        raise UsageError(f"--learn {runs} leaves too few rows of a group of {LEAST_ROWS}; at most {LEAST_ROWS - 2}")
    return learning_report(db, runs)


def _records(files: Sequence[str]) -> list[tuple[str, list[dict[str, str]]]]:
    from gpucalc.core.rows import read_rows, text_record

    return [(file, [text_record(r) for block in read_rows(file).blocks for r in block]) for file in files]


def _keys(by: Sequence[str], known: Sequence[str]) -> list[str]:
    keys = [key.casefold() for text in by for key in parts_of("--by", text, "column")]
    for key in keys:
        if key not in known:
            raise unknown("--by", key, known)
    return list(dict.fromkeys(keys))


def _other(kind: str, files: Sequence[str], db: Database, by: Sequence[str], worst: int) -> dict[str, Any]:
    """The report on rows of another kind than training."""
    from gpucalc.validate import cluster, kernels, kv_capacity, networks, posttraining, serving, workloads

    def records(shipped: Callable[[], list[dict[str, str]]]) -> list[dict[str, str]]:
        return [row for _, part in _records(files) for row in part] if files else shipped()

    if kind == "serving":
        keys = _keys(by, serving.GROUPINGS)
        return serving.serving_report(records(serving.shipped_serving), db, keys, worst, shipped=not files)
    if kind == "kv":
        return kv_capacity.kv_report(records(kv_capacity.shipped_kv), db, _keys(by, kv_capacity.GROUPINGS), worst)
    if kind == "posttraining":
        keys, rows = _keys(by, posttraining.GROUPINGS), records(posttraining.shipped_posttraining)
        return posttraining.posttraining_report(rows, db, keys, worst, shipped=not files)
    if kind in workloads.KINDS:
        keys = _keys(by, workloads.KINDS[kind])
        return workloads.more_report(kind, records(lambda: workloads.shipped(kind)), db, keys, worst)
    if kind in networks.KINDS:
        keys = _keys(by, networks.KINDS[kind])
        return networks.network_report(kind, records(lambda: networks.shipped(kind)), db, keys, worst)
    if kind in cluster.KINDS:
        keys = _keys(by, cluster.KINDS[kind])
        return cluster.cluster_report(kind, records(lambda: cluster.shipped(kind)), db, keys, worst)
    keys = _keys(by, kernels.KINDS[kind])
    rows = records(lambda: kernels.shipped_kernels(kind))
    return kernels.kernel_report(kind, rows, db, keys, worst)


def _training(
    files: Sequence[str], context: Context, by: Sequence[str], worst: int, plot: str | None
) -> dict[str, Any]:
    from gpucalc.validate.metrics import GROUPINGS, listed_groups, same_job_groups
    from gpucalc.validate.report import report
    from gpucalc.validate.training import check_rows, check_shipped, shipped_rows

    keys = _keys(by, GROUPINGS) or ["source", "family"]
    if files:
        rows = [row for file, records in _records(files) for row in check_rows(records, context, file=file)]
        if not rows:
            raise UsageError("no row states measured_step_time_s, measured_peak_mem_gib or measured_oom")
        groups = same_job_groups(rows)
    else:
        rows = check_shipped(context)
        groups = listed_groups(rows, shipped_rows("ranking_groups"))
    if plot is not None:
        from gpucalc.validate.plot import draw

        draw(rows, plot)
    found = report(rows, groups, keys, worst, with_targets=not files)
    if not files:
        from gpucalc.validate.kernels import SHIPPED_TABLES, kernel_targets, shipped_kernels

        tables = {kind: shipped_kernels(kind) for kind in SHIPPED_TABLES}
        found["targets"] += kernel_targets(tables, context.db)
    return found


def _sections(found: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(name, found[name]) for name in found if name in HEADINGS and found[name]]


def _emit_flat(form: str, found: Mapping[str, Any]) -> None:
    """All sections as one table; a column that a section lacks is empty."""
    from gpucalc.output import write_rows

    rows = [{"section": name, **line} for name, lines in _sections(found) for line in lines]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_rows(sys.stdout, form, columns if form == "csv" else None, [rows])


def _emit_tables(found: Mapping[str, Any], markdown: bool) -> None:
    from gpucalc.core.columns import COLUMNS, Column
    from gpucalc.output.table import table

    for position, (name, lines) in enumerate(_sections(found)):
        columns: list[str | Column] = []
        for key in dict.fromkeys(k for line in lines for k in line):
            if key.endswith("_pct"):
                title = key.removesuffix("_pct").replace("_", " ")
                columns.append(Column(key, "number", key, unit="%", heading=title, decimals=1))
            elif not (name == "worst" and key == "notes" and markdown):
                columns.append(key if key in COLUMNS else Column(key, "text", key, heading=key.replace("_", " ")))
        shown = [{k: _short(v) if k == "notes" else v for k, v in line.items()} for line in lines]
        title = f"## {HEADINGS[name]}" if markdown else HEADINGS[name]
        sys.stdout.write(("\n" if position else "") + title + "\n\n" + table(columns, shown, markdown=markdown) + "\n")


def _short(text: Any) -> Any:
    return text if not isinstance(text, str) or len(text) <= NOTES_SHOWN else text[: NOTES_SHOWN - 1] + "…"


def _footers(found: Mapping[str, Any], own: bool) -> list[str]:
    lines = []
    figures = {k: v for k, v in (found.get("balanced_pct") or {}).items() if v is not None}
    if figures:
        names = {"shipped": "rows of the fit", "random": "rows held out at random", "left_out": "sources left out"}
        said = ", ".join(f"{v:.1f} %" + ("" if own else f" ({names[k]})") for k, v in figures.items())
        lines.append(f"gpucalc: mean over sources of the median error: {said}")
    if own and figures:
        lines.append("gpucalc: gpucalc learn takes from these runs what their cluster does otherwise")
    if found.get("no_prediction"):
        lines.append(f"gpucalc: {len(found['no_prediction'])} rows could not be evaluated; pred_error says why")
    return lines
