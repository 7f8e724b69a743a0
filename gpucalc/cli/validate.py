"""`gpucalc validate`: measured rows in, errors of the predictions out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, talk
from gpucalc.core.errors import UsageError, unknown
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
CLUSTER_KINDS = ("goodput", "storage", "energy")
MORE_KINDS = ("hpc", "render", "hetero")
PLOT_FORMS = (".png", ".pdf", ".svg")


def validate(
    files: Annotated[
        Optional[list[str]], typer.Argument(metavar="[FILE]...", help="Measured rows; without any, the shipped ones.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="training, gemm, attention, collective, serving, posttraining, goodput, storage …",
        ),
    ] = "training",
    form: opt.Format = "table",
    by: Annotated[
        Optional[list[str]], typer.Option("--by", metavar="KEY", help="source, family, gpu or framework; repeatable.")
    ] = None,
    worst: Annotated[
        str, typer.Option("--worst", metavar="N", help="How many of the rows farthest off to list.")
    ] = "10",
    plot: Annotated[
        Optional[str], typer.Option("--plot", metavar="FILE.png", help="Draw predicted against measured step times.")
    ] = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    db: opt.Databases = None,
) -> None:
    """Compare predictions with measured rows: errors by source and family, memory, fit, order of layouts.

    \b
    gpucalc validate
    gpucalc validate my_runs.csv -f json
    """
    form = opt.chosen_format(form)
    count = 0 if worst.strip() == "0" else opt.positive_integer("--worst", worst)
    if plot is not None and not plot.lower().endswith(PLOT_FORMS):
        raise UsageError(f"--plot is {plot!r}, expected a name that ends in {', '.join(PLOT_FORMS)}")
    if kind != "training":
        _refuse(kind, profile, fabric, plot)
        if kind == "serving":
            found = _serving(files or [], opt.open_database(db), by, count)
        elif kind == "posttraining":
            found = _posttraining(files or [], opt.open_database(db), by, count)
        elif kind in MORE_KINDS:
            found = _more(kind, files or [], opt.open_database(db), by, count)
        elif kind in CLUSTER_KINDS:
            found = _cluster(kind, files or [], opt.open_database(db), by, count)
        else:
            found = _kernels(kind, files or [], opt.open_database(db), by, count)
    else:
        found = _training(files or [], opt.open_database(db), by, count, plot, profile, fabric)
    if form == "json":
        emit_document(found)
    elif form in {"csv", "jsonl"}:
        _emit_flat(form, found)
    else:
        _emit_tables(found, markdown=form == "md")
    sys.stdout.flush()
    talk(*_footers(found, bool(files)))


def _refuse(kind: str, profile: str | None, fabric: str | None, plot: str | None) -> None:
    from gpucalc.validate.kernels import KINDS

    others = ("serving", "posttraining", *CLUSTER_KINDS, *MORE_KINDS)
    if kind not in (*KINDS, *others):
        raise unknown("kind", kind, ("training", *KINDS, *others))
    given = {"--profile": profile, "--fabric": fabric, "--plot": plot}
    unused = [flag for flag, value in given.items() if value is not None]
    if unused:
        raise UsageError(f"{', '.join(unused)} has no meaning with --kind {kind}")


def _records(files: Sequence[str]) -> list[tuple[str, list[dict[str, str]]]]:
    from gpucalc.core.rows import read_rows, text_record

    return [(file, [text_record(r) for block in read_rows(file).blocks for r in block]) for file in files]


def _keys(by: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    keys = [key.strip().casefold() for text in by or () for key in text.split(",") if key.strip()]
    for key in keys:
        if key not in known:
            raise unknown("--by", key, known)
    return list(dict.fromkeys(keys))


def _kernels(kind: str, files: Sequence[str], db: Any, by: Sequence[str] | None, worst: int) -> dict[str, Any]:
    from gpucalc.validate.kernels import KINDS, SHIPPED_TABLES, kernel_report
    from gpucalc.validate.training import shipped_rows

    keys = _keys(by, KINDS[kind])
    if files:
        records = [record for _, part in _records(files) for record in part]
    else:
        records = shipped_rows(SHIPPED_TABLES[kind])
    return kernel_report(kind, records, db, keys, worst)


def _serving(files: Sequence[str], db: Any, by: Sequence[str] | None, worst: int) -> dict[str, Any]:
    from gpucalc.validate.serving import GROUPINGS, serving_report, shipped_serving

    keys = _keys(by, GROUPINGS)
    records = [r for _, part in _records(files) for r in part] if files else shipped_serving()
    return serving_report(records, db, keys, worst, shipped=not files)


def _posttraining(files: Sequence[str], db: Any, by: Sequence[str] | None, worst: int) -> dict[str, Any]:
    from gpucalc.validate.posttraining import GROUPINGS, posttraining_report, shipped_posttraining

    keys = _keys(by, GROUPINGS)
    records = [r for _, part in _records(files) for r in part] if files else shipped_posttraining()
    return posttraining_report(records, db, keys, worst, shipped=not files)


def _more(kind: str, files: Sequence[str], db: Any, by: Sequence[str] | None, worst: int) -> dict[str, Any]:
    from gpucalc.validate.workloads import KINDS, more_report, shipped

    keys = _keys(by, KINDS[kind])
    records = [r for _, part in _records(files) for r in part] if files else shipped(kind)
    return more_report(kind, records, db, keys, worst)


def _cluster(kind: str, files: Sequence[str], db: Any, by: Sequence[str] | None, worst: int) -> dict[str, Any]:
    from gpucalc.validate.cluster import KINDS, cluster_report, shipped

    keys = _keys(by, KINDS[kind])
    records = [r for _, part in _records(files) for r in part] if files else shipped(kind)
    return cluster_report(kind, records, db, keys, worst)


def _training(
    files: Sequence[str],
    db: Any,
    by: Sequence[str] | None,
    worst: int,
    plot: str | None,
    profile: str | None,
    fabric: str | None,
) -> dict[str, Any]:
    from gpucalc.validate.metrics import GROUPINGS, listed_groups, same_job_groups
    from gpucalc.validate.report import report
    from gpucalc.validate.training import check_rows, check_shipped, shipped_rows

    keys = _keys(by, GROUPINGS) or ["source", "family"]
    if files:
        rows = [
            row
            for file, records in _records(files)
            for row in check_rows(records, Context(db, profile=profile, fabric=fabric), file=file)
        ]
        if not rows:
            raise UsageError("no row states measured_step_time_s, measured_peak_mem_gib or measured_oom")
        groups = same_job_groups(rows)
    else:
        rows = check_shipped(Context(db, profile=profile, fabric=fabric))
        groups = listed_groups(rows, shipped_rows("ranking_groups"))
    if plot is not None:
        from gpucalc.validate.plot import draw

        draw(rows, plot)
    found = report(rows, groups, keys, worst, with_targets=not files)
    if not files:
        from gpucalc.validate.kernels import SHIPPED_TABLES, kernel_targets

        tables = {name: shipped_rows(table) for name, table in SHIPPED_TABLES.items()}
        found["targets"] += kernel_targets(tables, db)
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
    if found.get("no_prediction"):
        lines.append(f"gpucalc: {len(found['no_prediction'])} rows could not be evaluated; pred_error says why")
    return lines
