"""`gpucalc explain`: one layout, term by term."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import DataError, UsageError
from gpucalc.jobs.context import Context

TERM_COLUMNS = ("path", "value", "unit", "formula", "arguments", "citation")


def explain(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    micro_batch: opt.MicroBatch = None,
    precision: opt.Precision = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    recompute: opt.Recompute = None,
    zero: opt.Zero = None,
    schedule: opt.Schedule = None,
    layout: opt.LayoutLabel = None,
    settings: opt.Settings = None,
    depth: Annotated[
        Optional[str],
        typer.Option("--depth", metavar="N", help="Levels of the main trees; all of all trees without it."),
    ] = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    plot: opt.Plot = None,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
) -> None:
    """Explain one layout: time, memory, FLOPs and traffic as trees with formulas and citations.

    MODEL may be "-": one row of plan's csv or json is read from standard input.

    \b
    gpucalc explain llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --layout tp8-pp4-dp2-mbs1-zero1-sp

    \b
    gpucalc plan llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128 --top 1 -f csv
    | gpucalc explain - --depth 2
    """
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    opt.check_plot(plot)
    deepest = None if depth is None else opt.positive_integer("--depth", depth) - 1
    base = row_from_stdin() if model == "-" else None
    cells = opt.job_cells(
        opt.stated_options(locals()),
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    if base is None and layout is None and "tp" not in cells:
        raise UsageError(
            "which layout? write --layout with a label of plan, such as tp8-pp4-dp2-mbs1-zero1-sp, or pipe the best: "
            "gpucalc plan … --top 1 -f csv | gpucalc explain -"
        )
    # A label that states dp says how many GPUs there are.
    opt.require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)), "seq_len", "global_batch")
    database = opt.open_database(db)

    from gpucalc.questions.explain import explain as explained

    found = explained(cells, Context(database, causal_flops=causal_flops, profile=profile, fabric=fabric))
    talk(*(f"note: {warning}" for warning in found.warnings))
    if plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.explained import explain_figure

        save(explain_figure(cells, Context(database, causal_flops=causal_flops, profile=profile, fabric=fabric)), plot)
    if form == "json":
        emit_document(
            {
                "facts": dict(found.facts),
                "terms": [{name: term.get(name) for name in TERM_COLUMNS} for term in found.terms],
                "summary": list(found.summary),
            }
        )
    elif form == "table" and columns is None:
        from gpucalc.output.explain import tree
        from gpucalc.questions.explain import ROOTS

        roots = None if deepest is None else ROOTS
        sys.stdout.write(tree(found.facts, found.terms, found.summary, deepest=deepest, roots=roots) + "\n")
    else:
        emit_rows(form, TERM_COLUMNS, found.terms, columns, not no_header)


def row_from_stdin() -> dict[str, Any]:
    """The typed cells of the first row on standard input; its label counts where the row lacks the cells."""
    from gpucalc.core.columns import parse_row
    from gpucalc.core.rows import read_rows, text_record
    from gpucalc.layouts.label import label_cells

    rows = read_rows("-", block=2)
    block = next(rows.blocks, [])
    if not block:
        raise DataError("standard input holds no row; pipe plan -f csv into it")
    if len(block) > 1:
        talk("gpucalc: explaining the first row")
    record = text_record(block[0])
    cells, problems = parse_row(record)
    if problems:
        raise DataError(*problems)
    if cells.get("notes"):
        talk(*(f"note: {note}" for note in str(cells["notes"]).split("; ")))
    label = record.get("layout", "").strip()
    return {**(label_cells(label) if label else {}), **cells}
