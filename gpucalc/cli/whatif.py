"""`gpucalc whatif`: what one change is worth, what network a bound needs, and another cluster on the same job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import say_effects
from gpucalc.cli.job_options import JobOptions, require_job
from gpucalc.cli.networks import asks_of_network, write_changes
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer, price, share
from gpucalc.core.columns import COLUMNS, INPUT, Column, parse_cell
from gpucalc.core.errors import UsageError, suggestion
from gpucalc.core.units import GIB, GIGABIT

if TYPE_CHECKING:
    from gpucalc.jobs.variations import Outcome
    from gpucalc.questions.whatif import Contender, NetworkNeed, WhatIf

AGAINST = ("gpu", "n_gpus", "gpus_per_node", "inter_node_gbps_per_gpu", "precision", "global_batch", "fabric")
CHANGES = (
    *("kind", "change", "gain_pct", "elasticity", "pred_step_time_s", "pred_tokens_per_s_per_gpu"),
    *("pred_peak_mem_gib", "pred_fit", "layout"),
)
CONTENDERS = (
    *("cluster", "layout_by", "layout", "pred_step_time_s", "tokens_per_s", "pred_tokens_per_s_per_gpu"),
    *("pred_mfu_pct", "pred_peak_mem_gib", "pred_fit", "price_per_gpu_hour", "cost_per_million_tokens", "speedup"),
)
_HEADINGS = {
    "kind": Column("kind", "text", "", heading="kind"),
    "change": Column("change", "text", "", heading="change"),
    "gain_pct": Column("gain_pct", "number", "", unit="%", heading="tokens/s", decimals=1),
    "elasticity": Column("elasticity", "number", "", heading="elasticity of time", decimals=3),
    "cluster": Column("cluster", "text", "", heading="cluster"),
    "layout_by": Column("layout_by", "text", "", heading="layout is"),
    "tokens_per_s": Column("tokens_per_s", "number", "", heading="tokens/s", decimals=0),
    "cost_per_million_tokens": Column("cost_per_million_tokens", "number", "", unit="$", heading="per million tokens"),
    "speedup": Column("speedup", "number", "", heading="speed-up", decimals=3),
}


def against_cells(flag: str, text: str) -> dict[str, Any]:
    """The cells of another cluster: a GPU by name, or key=value pairs parted by commas."""
    if "=" not in text:
        return {"gpu": text.strip()}
    cells: dict[str, Any] = {}
    problems = []
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = {"gpus": "n_gpus", "inter_node_gbps": "inter_node_gbps_per_gpu"}.get(name, name.replace("-", "_"))
        if not equals or not value:
            problems.append(f"{flag} {pair!r} is not key=value")
        elif name not in AGAINST:
            problems.append(f"{flag}: unknown key {name!r}{suggestion(name, AGAINST, 1)}")
        elif name in cells:
            problems.append(f"{flag} states {name} twice")
        else:
            try:
                cells[name] = value if name == "fabric" else parse_cell(INPUT[name], value)
            except UsageError as error:
                problems.extend(f"{flag}: {problem}" for problem in error.problems)
    if problems:
        raise UsageError(*problems)
    return cells


@command(group="Understand")
def whatif(
    *,
    job: JobOptions,
    exposed: float | None = option(
        "--exposed SHARE", "Network for at most so much exposed communication.", read=share()
    ),
    against: dict[str, Any] | None = option(
        "--against GPU|KEY=VALUE,…", "Another cluster: gpu=…,n_gpus=…,fabric=….", read=against_cells, complete="gpus"
    ),
    mine: float | None = option("--price $/H", "Price of a GPU hour.", read=price),
    theirs: float | None = option("--against-price $/H", "That of the other cluster.", read=price),
    top: int | None = option("--top N", "Changes to print; all without it.", read=positive_integer),
    output: OutputOptions,
) -> None:
    """Tell what one change is worth: each resource, batch and sequence, and each layout one step away.

    Gains are in tokens per second and GPU. The elasticity is the relative change of the step time over that of
    the resource: -1 means that twice as much halves the step. Without --layout the fastest layout is taken.

    \b
    gpucalc whatif llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --layout tp8-pp4-dp2-mbs1-zero1-sp

    \b
    gpucalc whatif llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128
    --against fabric=ib-hdr
    """
    cells = job.whole()
    if asks_of_network(cells):
        if against is not None or exposed is not None:
            raise UsageError("--against and --exposed ask of a decoder's training; of a network plan each cluster")
        write_changes(cells, job.context(), top, output)
        return
    require_job(cells)
    if theirs is not None and against is None:
        raise UsageError("--against-price needs --against, the cluster that it is the price of")
    if against is not None and exposed is not None:
        raise UsageError("--exposed and --against are two questions; ask one at a time")

    from gpucalc.questions import whatif as question

    context = job.context()
    if against is not None:
        _contenders(question.compare(context, cells, against, mine, theirs), output)
    elif exposed is not None:
        start, notes = question.base_outcome(context, cells)
        needs = [question.network_for(start, exposed, r) for r in ("network_bandwidth", "link_bandwidth")]
        _needs(start, needs, exposed, output)
        to_stderr(*(f"note: {note}" for note in notes))
    else:
        _changes(question.whatif(context, cells), top, output)
    if job.piped or "tp" in cells:
        say_effects(job, cells, context)


def _changes(answer: WhatIf, count: int | None, output: OutputOptions) -> None:
    base = answer.base
    shown = answer.changes if count is None else answer.changes[:count]
    rows = [
        {
            "kind": worth.kind,
            "change": worth.change,
            "gain_pct": 100 * worth.gain,
            "elasticity": worth.elasticity,
            **_predicted(worth.outcome),
        }
        for worth in shown
    ]
    if output.json:
        emit_document({"base": _predicted(base), "rows": rows, "notes": answer.notes})
        return
    _table_or_rows(CHANGES, rows, output)
    to_stderr(
        "",
        f"as it is: {base.label}, {base.step_time:.4g} s a step, {base.rate:,.0f} tokens/s/GPU, "
        f"{base.memory / GIB:.1f} GiB ({base.fit})",
        *(f"note: {note}" for note in answer.notes),
    )


def _predicted(outcome: Outcome) -> dict[str, Any]:
    names = ("pred_step_time_s", "pred_tokens_per_s_per_gpu", "pred_mfu_pct", "pred_peak_mem_gib", "pred_fit")
    return {"layout": outcome.label, **{name: outcome.row[name] for name in names}}


def _contenders(found: Sequence[Contender], output: OutputOptions) -> None:
    rows = [
        {
            "cluster": one.name,
            "layout_by": one.layout_by,
            "tokens_per_s": one.tokens_per_s,
            "price_per_gpu_hour": one.price,
            "cost_per_million_tokens": one.dollars_per_million_tokens,
            "speedup": one.tokens_per_s / found[0].tokens_per_s,
            **_predicted(one.outcome),
        }
        for one in found
    ]
    if output.json:
        emit_document({"rows": rows})
        return
    priced = any(row["price_per_gpu_hour"] is not None for row in rows)
    names: Sequence[str] = CONTENDERS
    if not priced and output.form in {"table", "md"}:
        names = [n for n in CONTENDERS if n not in {"price_per_gpu_hour", "cost_per_million_tokens"}]
    _table_or_rows(names, rows, output)
    networks = {one.name: one.outcome.job.cluster for one in found if one.outcome.job.cluster.n_nodes > 1}
    to_stderr(
        "",
        "speed-up is in tokens per second of the whole cluster, over the first row",
        *(
            f"network of {name}: {cluster.network_bandwidth_per_gpu / GIGABIT:g} Gb/s per GPU ({cluster.network_basis})"
            for name, cluster in networks.items()
        ),
    )


def _needs(start: Outcome, needs: Sequence[NetworkNeed], bound: float, output: OutputOptions) -> None:
    rows: list[dict[str, Any]] = [
        {
            "resource": {"network_bandwidth": "network", "link_bandwidth": "scale-up link"}[need.resource],
            "exposed_now_pct": 100 * need.share_now,
            "rate_now_GBps": need.rate_now / 1e9,
            "rate_needed_GBps": None if need.rate_needed is None else need.rate_needed / 1e9,
            "rate_needed_gbps_per_gpu": None if need.rate_needed is None else need.rate_needed / GIGABIT,
            "pred_step_time_s": need.outcome.step_time if need.outcome and need.rate_needed else None,
            "exposed_at_best_pct": 100 * need.share_at_best,
            "blocking": need.blocking,
        }
        for need in needs
    ]
    if output.json:
        emit_document({"base": _predicted(start), "bound_pct": 100 * bound, "rows": rows})
        return
    output.rows(list(rows[0]), rows)
    for need, row in zip(needs, rows, strict=True):
        title = {"network": "a network", "scale-up link": "a scale-up link"}[row["resource"]]
        if need.rate_needed is None:
            to_stderr(
                f"no rate of {title} brings exposed communication to {100 * bound:g} % (at best "
                f"{row['exposed_at_best_pct']:.1f} %): {need.blocking} stands in the way"
            )
        else:
            to_stderr(
                f"{title} of {row['rate_needed_GBps']:.4g} GB/s ({row['rate_needed_gbps_per_gpu']:.4g} Gb/s) per GPU "
                f"and direction leaves {100 * bound:g} % exposed; it is {row['rate_now_GBps']:.4g} GB/s now, with "
                f"{row['exposed_now_pct']:.1f} % exposed"
            )


def _table_or_rows(names: Sequence[str], rows: Sequence[Mapping[str, Any]], output: OutputOptions) -> None:
    if output.for_people:
        output.table([_HEADINGS.get(n) or COLUMNS.get(n) or Column(n, "number", n, heading=n) for n in names], rows)
    else:
        output.rows(names, rows)
