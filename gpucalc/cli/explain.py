"""`gpucalc explain`: one layout, term by term."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import say_effects
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.mixed import CutOptions, explain_mixed
from gpucalc.cli.networks import asks_of_network
from gpucalc.cli.option import option
from gpucalc.cli.output import FigureOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer
from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context

NO_TRACE = "a trace shows the passes of a decoder's training step through its pipeline"
TERM_COLUMNS = ("path", "value", "unit", "formula", "arguments", "citation")


def trace_path(name: str, text: str) -> str:
    """The path of a trace; refused where none can be written."""
    from gpucalc.output.trace import check_trace_path

    return check_trace_path(text)


def _write_trace(cells: Mapping[str, Any], context: Context, path: str) -> None:
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs.training import resolve, stack
    from gpucalc.output.trace import save_trace, trace_document

    job = resolve(cells, context)
    save_trace(trace_document(job, estimate_training(stack([job]), detail=True)), path)


@command(group="Understand")
def explain(
    *,
    job: JobOptions,
    depth: int | None = option(
        "--depth N", "Levels of the main trees; all of all trees without it.", read=positive_integer
    ),
    cuts: CutOptions,
    trace: str | None = option(
        "--trace FILE", "Write the step as a trace for Perfetto, FILE.json.", read=trace_path, files=True
    ),
    output: FigureOptions,
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
    if cuts.asked(job.gpu):
        if trace is not None:
            raise UsageError(f"--trace: {NO_TRACE}; a plan on several kinds of GPU is not drawn")
        explain_mixed(job, cuts, output)
        return
    stated = job.whole()
    network = asks_of_network(stated)
    cells = stated if network else job.laid_out("explain")
    context = job.context()
    if network:
        if trace is not None:
            raise UsageError(f"--trace: {NO_TRACE}")
        require(cells, "gpu")
        from gpucalc.questions.network import explain_network as explained
    else:
        from gpucalc.questions.explain import explain as explained

    found = explained(cells, context)
    to_stderr(*(f"note: {warning}" for warning in found.warnings))
    say_effects(job, cells, context)
    if trace is not None:
        _write_trace(cells, context, trace)
    if output.plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.explained import explain_figure

        save(explain_figure(cells, context), output.plot)
    if output.json:
        emit_document(
            {
                "facts": dict(found.facts),
                "terms": [{name: term.get(name) for name in TERM_COLUMNS} for term in found.terms],
                "summary": list(found.summary),
            }
        )
    elif output.form == "table" and output.columns is None:
        from gpucalc.output.explain import tree
        from gpucalc.questions.explain import ROOTS

        roots, deepest = (None, None) if depth is None else (ROOTS, depth - 1)
        sys.stdout.write(tree(found.facts, found.terms, found.summary, deepest=deepest, roots=roots) + "\n")
    else:
        output.rows(TERM_COLUMNS, found.terms)
