"""`gpucalc fit`: will it fit, how many GPUs are the least, and what would make it fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import laid_out, say_effects
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.networks import asks_of_network, write_rows_of
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.core.columns import COLUMNS, Column, parts_of
from gpucalc.core.errors import ExitStatus, UsageError, suggestion
from gpucalc.core.units import GIB

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.jobs.variations import Outcome
    from gpucalc.questions.fit import Strategy, Verdict
    from gpucalc.questions.fit_remedies import Remedy

STRATEGIES_OUT = (
    *("strategy", "title", "n_gpus", "pred_fit", "layout", "pred_peak_mem_gib", "pred_tokens_per_s_per_gpu"),
    *("largest_micro_batch", "micro_batch_layout", "largest_seq_len", "seq_len_layout"),
    *("overflow", "over_gib", "overflow_at"),
)
REMEDIES_OUT = (*("remedy", "saved_gib", "pred_peak_mem_gib", "pred_fit", "cost_pct", "pred_step_time_s", "layout"),)
_HEADINGS = {
    "title": Column("title", "text", "", heading="strategy"),
    "n_gpus": Column("n_gpus", "int", "", heading="least GPUs"),
    "pred_fit": Column("pred_fit", "text", "", heading="fit"),
    "largest_micro_batch": Column("largest_micro_batch", "int", "", heading="largest micro-batch"),
    "largest_seq_len": Column("largest_seq_len", "int", "", unit="tokens", heading="largest sequence"),
    "overflow": Column("overflow", "text", "", heading="largest term"),
    "over_gib": Column("over_gib", "number", "", unit="GiB", heading="over by", decimals=1),
    "overflow_at": Column("overflow_at", "int", "", heading="at GPUs"),
    "remedy": Column("remedy", "text", "", heading="remedy"),
    "saved_gib": Column("saved_gib", "number", "", unit="GiB", heading="saves", decimals=1),
    "cost_pct": Column("cost_pct", "number", "", unit="%", heading="time per token", decimals=1),
}
TABLES = ("strategies", "remedies")
# --assert → the verdicts that pass.
ASSERTIONS = {"fits": ("fits",), "risky": ("fits", "risky")}


def assert_option() -> Any:
    """The option by which a script asks whether something fits."""
    return option("--assert FIT", "Status 3 unless it fits: fits, or risky too.", choices=tuple(ASSERTIONS))


def _fit_network(cells: Mapping[str, Any], context: Context, asserted: str | None, output: OutputOptions) -> int:
    """The same of a network that is no decoder: the fewest GPUs that hold it, and its fastest layout there."""
    from gpucalc.questions.network import fit_network

    require(cells, "gpu")
    rows = fit_network(cells, context)
    write_rows_of(rows, output, _HEADINGS["n_gpus"])
    held = asserted is None or rows[0]["pred_fit"] in ASSERTIONS[asserted]
    return ExitStatus.OK if held else ExitStatus.INFEASIBLE


@command(group="Plan")
def fit(
    *,
    job: JobOptions,
    strategy: str | None = option("--strategy A,B,…", "Strategies to try, such as fsdp,3d; all without."),
    show: str | None = option("--show WHAT", "strategies or remedies, where one table is printed.", choices=TABLES),
    asserted: str | None = assert_option(),
    output: OutputOptions,
) -> int:
    """Say whether a job fits: the least GPUs per strategy, or with --gpus or --layout what fits on those.

    A term that overflows is named, and what each remedy would save and cost. Counts are 1, 2, 4 … inside a node,
    then whole nodes. Fit means at most the capacity that plan uses; risky is within 5 % of it.

    \b
    gpucalc fit llama-3.1-70b --gpu h100-sxm-80gb --seq-len 8192
    gpucalc fit llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --layout tp8-dp8-mbs1-zero3 --assert fits
    """
    cells = job.cells()
    if asks_of_network(cells):
        return _fit_network(cells, job.context(), asserted, output)
    require(cells, "model", "gpu", "seq_len")

    from gpucalc.layouts.axes import decided_axes
    from gpucalc.questions import fit as sizing
    from gpucalc.questions.fit_remedies import remedies

    context = job.context()
    if job.layout is not None or "tp" in cells or "pp" in cells:
        if strategy is not None:
            raise UsageError("--strategy and --layout contradict: a layout is one strategy")
        status = _one_layout(context, cells, asserted, output)
        say_effects(job, cells, context)
        return status
    sizer = sizing.Sizer(context, cells)
    chosen = _strategies(sizing.strategies(sizer.base.model), strategy, cells.get("zero_stage"))
    count = cells.get("n_gpus")
    if asserted and count is None:
        raise UsageError("--assert needs --gpus or --layout: on what shall it fit?")
    if count is None:
        verdicts = [sizing.least_gpus(sizer, one) for one in chosen]
    else:
        verdicts = [sizing.on_count(sizer, one, count) for one in chosen]
    best = _best(verdicts)
    cures = remedies(best) if best is not None and (count is not None or show == "remedies") else []
    rows = [_row(verdict, count) for verdict in verdicts]
    _write(rows, [_remedy_row(one) for one in cures], best, show, output, count)
    if best is not None:
        say_effects(job, laid_out(cells, best.job.cells), context, free=tuple(decided_axes()))
    if asserted:
        return _verdict(asserted, [v.outcome.fit for v in verdicts if v.fits and v.outcome is not None], count)
    return ExitStatus.OK if any(v.fits for v in verdicts) else ExitStatus.INFEASIBLE


def _strategies(known: Sequence[Strategy], text: str | None, zero: int | None) -> list[Strategy]:
    by_key = {one.key: one for one in known}
    if text is None:
        chosen = list(known)
    else:
        chosen = []
        for word in (part.casefold() for part in parts_of("--strategy", text, "strategy")):
            if word not in by_key:
                raise UsageError(f"--strategy: unknown strategy {word!r}{suggestion(word, by_key)}")
            chosen.append(by_key[word])
    if zero is not None:
        chosen = [one for one in chosen if one.zero_stage == zero]
        if not chosen:
            raise UsageError(f"no strategy asked for has ZeRO stage {zero}")
    return chosen


def _best(verdicts: Sequence[Verdict]) -> Outcome | None:
    """The fastest layout that fits; without one the layout that misses by the least."""
    fitting = [v.outcome for v in verdicts if v.fits and v.outcome is not None]
    if fitting:
        return max(fitting, key=lambda outcome: outcome.rate)
    missed = [v.outcome for v in verdicts if v.outcome is not None]
    return min(missed, key=lambda outcome: outcome.terms["memory/fill"], default=None)


def _row(verdict: Verdict, count: int | None) -> dict[str, Any]:
    outcome = verdict.outcome
    row: dict[str, Any] = {
        "strategy": verdict.strategy.key,
        "title": verdict.strategy.title,
        "n_gpus": verdict.n_gpus if count is None else count,
        "pred_fit": outcome.fit if outcome is not None and verdict.fits else "oom" if outcome is not None else "",
        "layout": outcome.label if outcome is not None else "",
        "pred_peak_mem_gib": outcome.memory / GIB if outcome is not None else None,
        "pred_tokens_per_s_per_gpu": outcome.rate if outcome is not None and verdict.fits else None,
        "overflow": verdict.overflow,
        "over_gib": verdict.over_bytes / GIB if verdict.over_bytes else None,
        "overflow_at": verdict.next_smaller,
    }
    if count is not None:
        row["overflow_at"] = count if verdict.over_bytes else None
        for name in ("largest_micro_batch", "micro_batch_layout", "largest_seq_len", "seq_len_layout"):
            row[name] = getattr(verdict, name)
    return row


def _remedy_row(one: Remedy) -> dict[str, Any]:
    return {
        "remedy": one.name,
        "saved_gib": one.saved_bytes / GIB,
        "pred_peak_mem_gib": one.outcome.memory / GIB,
        "pred_fit": one.outcome.fit,
        "cost_pct": 100 * one.cost,
        "pred_step_time_s": one.outcome.step_time,
        "layout": one.outcome.label,
    }


def _write(
    rows: list[dict[str, Any]],
    cures: list[dict[str, Any]],
    best: Outcome | None,
    shown: str | None,
    output: OutputOptions,
    count: int | None,
) -> None:
    if output.json:
        emit_document(
            {
                "rows": rows,
                "remedies": cures,
                "remedies_of": best.label if best is not None and cures else None,
                "capacity_gib": best.terms["memory/capacity"] / GIB if best is not None else None,
            }
        )
        return
    if output.for_people:
        names = ["title", "n_gpus", "pred_fit", "layout", "pred_peak_mem_gib", "pred_tokens_per_s_per_gpu"]
        if count is not None:
            names.remove("n_gpus")
            names += ["largest_micro_batch", "largest_seq_len", "overflow", "over_gib"]
        else:
            names += ["overflow", "over_gib", "overflow_at"]
        if shown != "remedies":
            _table(names, rows, output)
        if best is not None and cures and shown != "strategies":
            if shown is None:
                sys.stdout.write(f"\nremedies for {best.label}\n\n")
            _table(REMEDIES_OUT, cures, output)
        _footer(best, rows, count)
    elif shown == "remedies":
        output.rows(REMEDIES_OUT, cures)
    else:
        output.rows(STRATEGIES_OUT, rows)


def _table(names: Sequence[str], rows: Sequence[dict[str, Any]], output: OutputOptions) -> None:
    output.table([_HEADINGS.get(n) or COLUMNS.get(n) or Column(n, "number", n, heading=n) for n in names], rows)


def _footer(best: Outcome | None, rows: Sequence[dict[str, Any]], count: int | None) -> None:
    lines = [""]
    if best is not None:
        lines.append(
            f"{best.terms['memory/capacity'] / GIB:.1f} GiB of tensors fit a GPU; micro-batch "
            f"{best.job.cells['micro_batch']}, sequence {best.job.cells['seq_len']}, {best.job.cells['precision']}; "
            f"memory as {best.job.cells['mem_counter']}; layers are recomputed as needed unless stated"
        )
    if count is None:
        least = [row for row in rows if row["n_gpus"] is not None]
        if least:
            first = min(least, key=lambda row: (row["n_gpus"], -(row["pred_tokens_per_s_per_gpu"] or 0)))
            lines.append(f"the least: {first['n_gpus']} GPUs by {first['title']} ({first['layout']})")
        lines.append(
            "the largest term, and by how much it is over, are those of the next smaller count or nearest miss"
        )
    elif not any(row["pred_fit"] in {"fits", "risky"} for row in rows):
        lines.append(f"nothing fits {count} GPUs")
    if best is not None:
        lines += [f"note: {warning}" for warning in best.job.remarks]
    to_stderr(*lines)


def _one_layout(context: Context, cells: dict[str, Any], asserted: str | None, output: OutputOptions) -> int:
    from gpucalc.jobs.variations import MEMORY_PARTS, MEMORY_TITLES, largest_part
    from gpucalc.questions import fit as sizing
    from gpucalc.questions import fit_memory
    from gpucalc.questions.fit_remedies import remedies

    outcome = sizing.stated_layout(context, cells)
    cures = [_remedy_row(one) for one in remedies(outcome)]
    name, size = largest_part(outcome.terms)
    over = outcome.terms["memory/raw"] - outcome.terms["memory/capacity"]
    verdict: dict[str, Any] = {
        "layout": outcome.label,
        "n_gpus": outcome.job.cluster.n_gpus,
        "pred_fit": outcome.fit,
        "pred_peak_mem_gib": outcome.memory / GIB,
        "capacity_gib": outcome.terms["memory/capacity"] / GIB,
        "over_gib": over / GIB,
        "largest_term": name,
        "largest_term_gib": size / GIB,
        "largest_micro_batch": sizing.largest_of_layout(outcome, "micro_batch"),
        "largest_seq_len": sizing.largest_of_layout(outcome, "seq_len"),
        "bytes_per_parameter": fit_memory.bytes_per_parameter(outcome.job),
        "counters_gib": {kind: size / GIB for kind, size in fit_memory.counters(outcome).items()},
        "memory_band_gib": [edge / GIB for edge in fit_memory.memory_range(outcome.job, outcome.memory)],
        "fullest_stage": fit_memory.fullest_stage(outcome),
        "host_gib": outcome.terms.get("host/memory", 0.0) / GIB,
        "parts_gib": {MEMORY_TITLES[part]: outcome.terms[f"memory/{part}"] / GIB for part in MEMORY_PARTS},
    }
    if output.json:
        emit_document({**verdict, "remedies": cures})
    elif output.for_people:
        parts = ", ".join(f"{title} {gib:.1f}" for title, gib in verdict["parts_gib"].items() if gib > 0)
        said = f"{-over / GIB:.1f} GiB free" if over <= 0 else f"{over / GIB:.1f} GiB too much"
        reach = fit_memory.reach_text(outcome)
        from gpucalc.output.table import facts

        pairs = [
            ("layout", f"{outcome.label} on {verdict['n_gpus']} GPUs"),
            ("fit", f"{outcome.fit}: {said} of the {verdict['capacity_gib']:.1f} GiB of tensors that fit{reach}"),
            ("memory", f"{verdict['pred_peak_mem_gib']:.1f} GiB {outcome.job.cells['mem_counter']}"),
            ("80 % band", "{:.1f} to {:.1f} GiB".format(*verdict["memory_band_gib"])),
            ("counters", " ≤ ".join(f"{kind} {gib:.1f}" for kind, gib in verdict["counters_gib"].items()) + " GiB"),
            *((("fullest stage", verdict["fullest_stage"]),) if verdict["fullest_stage"] else ()),
            ("states", fit_memory.states_text(outcome.job)),
            *((("host memory", host),) if (host := fit_memory.host_text(outcome)) else ()),
            ("taken", fit_memory.taken_text(outcome.job)),
            ("terms", f"{parts} GiB"),
            ("largest term", f"{name}, {size / GIB:.1f} GiB"),
            ("largest micro-batch", f"{verdict['largest_micro_batch'] or 'none fits'}"),
            ("largest sequence", f"{verdict['largest_seq_len'] or 'none fits'}"),
        ]
        sys.stdout.write(facts(pairs) + "\n\n")
        if cures:
            _table(REMEDIES_OUT, cures, output)
        to_stderr(*(f"note: {warning}" for warning in outcome.job.remarks))
    else:
        output.rows(REMEDIES_OUT, cures)
    return _verdict(asserted, [outcome.fit], outcome.job.cluster.n_gpus) if asserted else ExitStatus.OK


def _verdict(asserted: str, fits: Sequence[str], count: int | None) -> int:
    """Status of an assertion: at least one of the verdicts is as good as the wanted one."""
    if any(one in ASSERTIONS[asserted] for one in fits):
        return ExitStatus.OK
    reached = "risky" if "risky" in fits else "oom"
    to_stderr(f"gpucalc: the assertion {asserted!r} fails on {count} GPUs: {reached}")
    return ExitStatus.INFEASIBLE
