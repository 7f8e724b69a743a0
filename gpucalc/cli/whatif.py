"""`gpucalc whatif`: what one change is worth, what network a bound needs, and another cluster on the same job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import COLUMNS, INPUT, Column, parse_cell
from gpucalc.core.errors import UsageError, nearest

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


def whatif(
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
    exposed: Annotated[
        opt.Text, typer.Option("--exposed", metavar="SHARE", help="Network for at most so much exposed communication.")
    ] = None,
    against: Annotated[
        opt.Text, typer.Option("--against", metavar="GPU|KEY=VALUE,…", help="Another cluster: gpu=…,n_gpus=…,fabric=….")
    ] = None,
    price: Annotated[opt.Text, typer.Option("--price", metavar="$/H", help="Price of a GPU hour.")] = None,
    against_price: Annotated[
        opt.Text, typer.Option("--against-price", metavar="$/H", help="That of the other cluster.")
    ] = None,
    top: Annotated[opt.Text, typer.Option("--top", metavar="N", help="Changes to print; all without it.")] = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
    causal_flops: opt.CausalFlops = False,
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
    from gpucalc.cli.explain import row_from_stdin
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    base = row_from_stdin() if model == "-" else None
    cells = opt.job_cells(
        opt.stated_options(locals()),
        settings,
        label_cells(layout) if layout is not None else None,
        base,
    )
    opt.require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)), "seq_len", "global_batch")
    bound = None if exposed is None else opt.share("--exposed", exposed)
    other = None if against is None else parse_against(against)
    mine, theirs = _price("--price", price), _price("--against-price", against_price)
    if theirs is not None and other is None:
        raise UsageError("--against-price needs --against, the cluster that it is the price of")
    if other is not None and bound is not None:
        raise UsageError("--exposed and --against are two questions; ask one at a time")
    count = None if top is None else opt.positive_integer("--top", top)
    database = opt.open_database(db)

    from gpucalc.jobs.context import Context
    from gpucalc.questions import whatif as question

    context = Context(database, profile, fabric, causal_flops)
    if other is not None:
        found = question.compare(context, cells, other, mine, theirs)
        _contenders(found, form, columns, not no_header)
    elif bound is not None:
        start, notes = question.base_outcome(context, cells)
        needs = [question.network_for(start, bound, r) for r in ("network_bandwidth", "link_bandwidth")]
        _needs(start, needs, bound, form, columns, not no_header)
        talk(*(f"note: {note}" for note in notes))
    else:
        answer = question.whatif(context, cells)
        _changes(answer, count, form, columns, not no_header)


def parse_against(text: str) -> dict[str, Any]:
    """The cells of another cluster: a GPU by name, or key=value pairs parted by commas."""
    if "=" not in text:
        return {"gpu": text.strip()}
    cells: dict[str, Any] = {}
    problems = []
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = {"gpus": "n_gpus", "inter_node_gbps": "inter_node_gbps_per_gpu"}.get(name, name.replace("-", "_"))
        if not equals or not value:
            problems.append(f"--against {pair!r} is not key=value")
        elif name not in AGAINST:
            near = nearest(name, AGAINST, 1)
            problems.append(
                f"--against: unknown key {name!r}; "
                + (f"did you mean {near[0]}?" if near else f"known: {', '.join(AGAINST)}")
            )
        elif name in cells:
            problems.append(f"--against states {name} twice")
        else:
            try:
                cells[name] = value if name == "fabric" else parse_cell(INPUT[name], value)
            except UsageError as error:
                problems.extend(f"--against: {problem}" for problem in error.problems)
    if problems:
        raise UsageError(*problems)
    return cells


def _price(flag: str, text: str | None) -> float | None:
    return None if text is None else opt.positive_number(flag, text.strip().removeprefix("$"))


def _changes(answer: Any, count: int | None, form: str, columns: str | None, header: bool) -> None:
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
    if form == "json":
        emit_document({"base": _predicted(base), "rows": rows, "notes": answer.notes})
        return
    _table_or_rows(CHANGES, rows, form, columns, header)
    talk(
        "",
        f"as it is: {base.label}, {base.step_time:.4g} s a step, {base.rate:,.0f} tokens/s/GPU, "
        f"{base.memory / 2**30:.1f} GiB ({base.fit})",
        *(f"note: {note}" for note in answer.notes),
    )


def _predicted(outcome: Any) -> dict[str, Any]:
    names = ("pred_step_time_s", "pred_tokens_per_s_per_gpu", "pred_mfu_pct", "pred_peak_mem_gib", "pred_fit")
    return {"layout": outcome.label, **{name: outcome.row[name] for name in names}}


def _contenders(found: Sequence[Any], form: str, columns: str | None, header: bool) -> None:
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
    if form == "json":
        emit_document({"rows": rows})
        return
    priced = any(row["price_per_gpu_hour"] is not None for row in rows)
    names: Sequence[str] = CONTENDERS
    if not priced and form in {"table", "md"}:
        names = [n for n in CONTENDERS if n not in {"price_per_gpu_hour", "cost_per_million_tokens"}]
    _table_or_rows(names, rows, form, columns, header)
    networks = {one.name: one.outcome.job.cluster for one in found if one.outcome.job.cluster.n_nodes > 1}
    talk(
        "",
        "speed-up is in tokens per second of the whole cluster, over the first row",
        *(
            f"network of {name}: {cluster.network_bandwidth_per_gpu * 8 / 1e9:g} Gb/s per GPU ({cluster.network_basis})"
            for name, cluster in networks.items()
        ),
    )


def _needs(start: Any, needs: Sequence[Any], bound: float, form: str, columns: str | None, header: bool) -> None:
    rows = [
        {
            "resource": {"network_bandwidth": "network", "link_bandwidth": "scale-up link"}[need.resource],
            "exposed_now_pct": 100 * need.share_now,
            "rate_now_GBps": need.rate_now / 1e9,
            "rate_needed_GBps": None if need.rate_needed is None else need.rate_needed / 1e9,
            "rate_needed_gbps_per_gpu": None if need.rate_needed is None else need.rate_needed * 8 / 1e9,
            "pred_step_time_s": need.outcome.step_time if need.outcome and need.rate_needed else None,
            "exposed_at_best_pct": 100 * need.share_at_best,
            "blocking": need.blocking,
        }
        for need in needs
    ]
    if form == "json":
        emit_document({"base": _predicted(start), "bound_pct": 100 * bound, "rows": rows})
        return
    emit_rows(form, list(rows[0]), rows, columns, header)
    for need, row in zip(needs, rows, strict=True):
        title = {"network": "a network", "scale-up link": "a scale-up link"}[row["resource"]]
        if need.rate_needed is None:
            talk(
                f"no rate of {title} brings exposed communication to {100 * bound:g} % (at best "
                f"{row['exposed_at_best_pct']:.1f} %): {need.blocking} stands in the way"
            )
        else:
            talk(
                f"{title} of {row['rate_needed_GBps']:.4g} GB/s ({row['rate_needed_gbps_per_gpu']:.4g} Gb/s) per GPU "
                f"and direction leaves {100 * bound:g} % exposed; it is {row['rate_now_GBps']:.4g} GB/s now, with "
                f"{row['exposed_now_pct']:.1f} % exposed"
            )


def _table_or_rows(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], form: str, columns: str | None, header: bool
) -> None:
    if form in {"table", "md"} and columns is None:
        from gpucalc.output.table import table

        records = [_HEADINGS.get(n) or COLUMNS.get(n) or Column(n, "number", n, heading=n) for n in names]
        sys.stdout.write(table(records, rows, markdown=form == "md", header=header) + "\n")
    else:
        emit_rows(form, names, rows, columns, header)
