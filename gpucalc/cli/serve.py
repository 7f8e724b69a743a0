"""`gpucalc serve`: inference of a model on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import ExitStatus, UsageError
from gpucalc.jobs.context import Context

if TYPE_CHECKING:
    from gpucalc.launch.target import Target

Text = Optional[str]
SHOWN = (
    "layout",
    "n_gpus",
    "concurrency",
    "rate",
    "pred_ttft_unloaded_ms",
    "pred_ttft_ms",
    "pred_tpot_ms",
    "pred_output_tok_s_total",
    "pred_tok_s_per_user",
    "pred_tok_s_per_gpu",
    "pred_max_concurrency",
    "pred_kv_tokens",
    "pred_weights_gib",
    "pred_cost_per_million",
    "pred_fit",
)
TERM_COLUMNS = ("path", "value", "unit", "formula", "arguments", "citation", "symbol", "note")
ROOTS = (
    "time/tpot",
    "time/ttft",
    "time/ttft-unloaded",
    "metric/output-rate",
    "decode/time",
    "mixed/time",
    "memory/weights",
    "memory/kv-space",
    "memory/kv-tokens",
    "memory/sequences",
)


def _flag(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text)


def serve(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: Annotated[Text, _flag("--gpus", "N", "GPUs; without them the least for --rate are looked for.")] = None,
    isl: Annotated[Text, _flag("--isl", "N", "Mean tokens of a prompt.")] = None,
    osl: Annotated[Text, _flag("--osl", "N", "Mean tokens of an answer.")] = None,
    concurrency: Annotated[Text, _flag("--concurrency", "C", "Requests in the system (closed loop).")] = None,
    rate: Annotated[Text, _flag("--rate", "R", "Requests per second that arrive (open loop).")] = None,
    ttft: Annotated[
        Text, _flag("--ttft", "TIME", "Limit of the mean loaded time to the first token, such as 2s.")
    ] = None,
    tpot: Annotated[Text, _flag("--tpot", "TIME", "Limit of the mean time per output token, such as 50ms.")] = None,
    precision: Annotated[Text, _flag("--precision", "NAME", "Weights: bf16, fp8, int8, int4, nvfp4, mxfp4 …")] = None,
    kv_precision: Annotated[Text, _flag("--kv-precision", "NAME", "Cache: bf16, fp8, int8.")] = None,
    engine: Annotated[Text, _flag("--engine", "NAME", "vllm, sglang or trtllm; neutral without it.")] = None,
    layout: Annotated[Text, _flag("--layout", "LABEL", "Such as tp8-dp2, tp4-dp4-ep16-adp4; all without it.")] = None,
    prefix_hit: Annotated[Text, _flag("--prefix-hit", "SHARE", "Share of the prompt found in the cache.")] = None,
    chunk: Annotated[Text, _flag("--chunk", "N", "Most tokens of prompts in one pass.")] = None,
    draft: Annotated[Text, _flag("--draft", "N", "Tokens drafted ahead (speculation, MTP).")] = None,
    acceptance: Annotated[Text, _flag("--acceptance", "SHARE", "Probability that a drafted token is accepted.")] = None,
    disaggregate: Annotated[
        bool, typer.Option("--disaggregate", help="Also layouts with GPUs that only prefill.")
    ] = False,
    price: Annotated[Text, _flag("--price", "MONEY", "Price of one GPU for one hour.")] = None,
    fabric: opt.Fabric = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="List the front of tokens/s/user against tokens/s/GPU.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print how the best row came about, term by term.")
    ] = False,
    top: Annotated[str, _flag("--top", "N", "Rows to print.")] = "10",
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    plot: opt.Plot = None,
    settings: opt.Settings = None,
    db: opt.Databases = None,
) -> int:
    """Serve a model: latency, throughput and cache; layouts ranked under limits on latency.

    \b
    gpucalc serve llama-3.1-70b --gpu h100-sxm-80gb --gpus 8 --isl 2048 --osl 256 --ttft 2s --tpot 50ms
    gpucalc serve llama-3.1-70b --gpu h100-sxm-80gb --isl 2048 --osl 256 --rate 20 --tpot 50ms
    """
    form = opt.chosen_format(form)
    count = opt.positive_integer("--top", top)
    opt.check_plot(plot)
    stated = {
        "model": model,
        "gpu": gpu,
        "n_gpus": gpus,
        "isl": isl,
        "osl": osl,
        "concurrency": concurrency,
        "rate": rate,
        "precision": precision,
        "kv_precision": kv_precision,
        "framework": engine,
        "prefix_hit": prefix_hit,
        "chunk_tokens": chunk,
        "draft_tokens": draft,
        "acceptance": acceptance,
        "gpus_per_node": gpus_per_node,
        "inter_node_gbps_per_gpu": inter_node_gbps,
    }
    cells = _cells(stated, settings, layout)
    limits = _limits(ttft, tpot)
    paid = None if price is None else opt.positive_number("--price", price)
    database = opt.open_database(db)

    from gpucalc.questions.serve import serve as search

    result = search(
        cells, Context(database, fabric=fabric), limits=limits, price=paid, top=count, disaggregate=disaggregate
    )
    if plot is not None and result.front:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.serving import serving_figure

        save(serving_figure(result.front, result.rows, result.job), plot)
    if explain and result.rows:
        _explain(result.rows[0], cells, database, fabric, form)
        return ExitStatus.OK
    _write(result, form, columns, not no_header, pareto)
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def _cells(stated: Mapping[str, str | None], settings: list[str] | None, layout: str | None) -> dict[str, Any]:
    """The typed cells of the question; all mistakes in one sentence."""
    from gpucalc.core.errors import unknown
    from gpucalc.jobs.serving import parse_serving
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS
    from gpucalc.questions.serve import serving_label_cells

    text = {name: value for name, value in stated.items() if value is not None}
    problems: list[str] = []
    known = ("model", *MODEL_CELLS, *CLUSTER_CELLS, *RECORDS)
    for pair in settings or ():
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not value.strip():
            problems.append(f"--set {pair!r} is not of the form KEY=VALUE, such as tp=8")
        elif name not in known:
            problems += unknown("column", name, known).problems
        elif text.get(name, value).strip() != value.strip():
            problems.append(f"--set {pair} contradicts the option that states {name}={text[name]}")
        else:
            text[name] = value
    cells, found = parse_serving(text)
    problems += found
    if layout is not None:
        for name, size in serving_label_cells(layout).items():
            if cells.get(name) not in {None, size}:
                problems.append(f"--layout contradicts {name}={cells[name]}")
            cells[name] = size
        given = [cells.get(n) or 1 for n in ("tp", "pp", "dp")]
        if cells.get("dp") is not None:
            cells.setdefault("n_gpus", given[0] * given[1] * given[2])
    if cells.get("prefill_gpus") == 0:
        del cells["prefill_gpus"]
    if cells.get("concurrency") is not None and cells.get("rate") is not None:
        problems.append("--concurrency (closed loop) and --rate (open loop) exclude each other; state one")
    examples = {"gpu": "--gpu h100-sxm-80gb", "isl": "--isl 2048", "osl": "--osl 256"}
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [] if cells.get("model") or by_hand or "model" in text else ["a MODEL such as llama-3.1-8b"]
    missing += [example for name, example in examples.items() if name not in text]
    if "n_gpus" not in cells and "n_gpus" not in text and "rate" not in text:
        missing.append("--gpus 8 (or --rate 20 for the least GPUs)")
    if missing:
        problems.insert(0, "missing: " + ", ".join(missing))
    if problems:
        raise UsageError(*problems)
    if str(cells.get("model", "")).casefold() == "custom":
        del cells["model"]
    return cells


def export_engine(
    target: Target,
    options: Mapping[str, str | None],
    piped: bool,
    layout: str | None,
    settings: list[str] | None,
    db: list[str] | None,
    fabric: str | None,
) -> None:
    """Write a serving layout as the launch settings of an engine; `piped`: a row of serve on standard input."""
    from gpucalc.jobs.serving import resolve_serving
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS
    from gpucalc.launch import export

    taken = {"model", "precision", *CLUSTER_CELLS}
    unused = [opt.FLAGS[name] for name, value in options.items() if value is not None and name not in taken]
    if unused:
        raise UsageError(
            f"{', '.join(unused)} has no meaning with --to {target.name}; lengths and load are --set isl=2048 osl=256 "
            "concurrency=64, one pair each"
        )
    stated = {name: value for name, value in options.items() if name in taken}
    base = _piped_row() if piped else {"framework": target.name}
    if layout is None and not piped and not any(pair.strip().startswith("tp=") for pair in settings or ()):
        raise UsageError("which layout? write --layout with a label of serve, such as tp8-dp2")
    cells = _cells({**base, **{n: v for n, v in stated.items() if v is not None}}, settings, layout)
    text, said = export(resolve_serving(cells, Context(opt.open_database(db), fabric=fabric)), target)
    sys.stdout.write(text)
    sys.stdout.flush()
    talk(*(f"note: {line}" for line in said))


def _piped_row() -> dict[str, str | None]:
    """The cells of the first row of serve's csv or json on standard input."""
    from gpucalc.core.errors import DataError
    from gpucalc.core.rows import read_rows, text_record
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS

    block = next(read_rows("-", block=1).blocks, [])
    if not block:
        raise DataError("standard input holds no row; pipe serve -f csv into it")
    known = {"model", *MODEL_CELLS, *CLUSTER_CELLS, *RECORDS}
    return {name: value for name, value in text_record(block[0]).items() if name in known and value.strip()}


def _limits(ttft: str | None, tpot: str | None) -> Any:
    from gpucalc.core.units import parse_quantity
    from gpucalc.questions.serve import Limits

    found: dict[str, float] = {}
    for name, text in (("ttft", ttft), ("tpot", tpot)):
        if text is not None:
            try:
                found[name] = parse_quantity(text, "s")
            except UsageError as error:
                raise UsageError(*(f"--{name}: {problem}" for problem in error.problems)) from None
    return Limits(**found)


def _explain(row: Mapping[str, Any], cells: Mapping[str, Any], db: Any, fabric: str | None, form: str) -> None:
    """One row of the answer as trees of terms."""
    from gpucalc.estimate.serving import estimate_serving
    from gpucalc.jobs.serving import resolve_serving, stack_serving
    from gpucalc.questions.explain import ledger_tree

    names = ("n_gpus", "tp", "pp", "dp", "ep", "attention_dp", "prefill_gpus", "concurrency", "rate")
    job = resolve_serving({**cells, **{n: row[n] for n in names if row.get(n) is not None}}, Context(db, fabric=fabric))
    ledger = estimate_serving(stack_serving([job]), trace=True)
    terms = ledger_tree(ledger, db, ROOTS)
    facts = [
        ("model", f"{job.model.name}, {job.model.parameters_total / 1e9:.2f} B parameters"),
        ("GPU", f"{job.cluster.n_gpus} x {job.cluster.device.name}"),
        ("layout", str(row["layout"])),
        ("load", f"{row['concurrency']:g} requests in the system" if row.get("concurrency") else f"{row['rate']:g}/s"),
        ("engine", f"{job.engine.name}: {job.engine.title}"),
        ("formats", f"weights {job.cells['precision']}, cache {job.cells['kv_precision']}"),
        *(("note", note) for note in job.notes),
    ]
    if form == "json":
        emit_document({"facts": dict(facts), "terms": [{n: t.get(n) for n in TERM_COLUMNS} for t in terms]})
    elif form == "table":
        from gpucalc.output.explain import tree

        summary = [
            f"A token takes {row['pred_tpot_ms']:.2f} ms, the first {row['pred_ttft_ms']:.0f} ms under this load and "
            f"{row['pred_ttft_unloaded_ms']:.0f} ms alone.",
        ]
        sys.stdout.write(tree(facts, terms, summary) + "\n")
    else:
        emit_rows(form, TERM_COLUMNS, terms)


def _write(result: Any, form: str, columns: str | None, header: bool, pareto: bool) -> None:
    rows = result.front if pareto else result.rows
    if form == "json":
        document = {
            "job": result.job,
            "candidates": result.candidates,
            "evaluated": result.evaluated,
            "feasible": result.feasible,
            "seconds": result.seconds,
            "rejected": result.rejected,
            "rows": rows,
            "pareto": result.front,
            "notes": list(result.notes),
        }
        if not rows:
            document["nearest_miss"] = {"why": result.nearest, "row": result.miss}
        emit_document(document)
    elif form in {"table", "md"} and columns is None:
        if rows:
            _table(rows, form, header)
            talk(*_footer(result))
    else:
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(SHOWN)
        emit_rows(form, names, rows, columns, header)
    if not result.rows:
        talk(f"gpucalc: {result.nearest}")


def _table(rows: list[dict[str, Any]], form: str, header: bool) -> None:
    from gpucalc.core.columns import COLUMNS
    from gpucalc.jobs.serving_schema import OUTPUT_COLUMNS
    from gpucalc.output.table import table

    known = {**COLUMNS, **{c.name: c for c in OUTPUT_COLUMNS}}
    used = [known[n] for n in SHOWN if any(row.get(n) is not None for row in rows)]
    sys.stdout.write(table(used, rows, markdown=form == "md", header=header) + "\n")


def _footer(result: Any) -> list[str]:
    from gpucalc.validate.serving import stated_errors

    job = result.job
    rule = {
        "total": "a share of all memory",
        "free": "a share of the memory left beside the weights",
        "static": "a share of all memory, for weights and cache alone",
    }[job["memory_rule"]]
    lines = [
        "",
        f"{result.feasible:,} layouts keep the limits, of {result.evaluated:,} evaluated and {result.candidates:,} "
        f"enumerated, in {result.seconds:.2f} s",
        f"weights {job['precision']}, cache {job['kv_precision']}; engine {job['engine']} ({job['engine_title']}); "
        f"cache space: {job['memory_share']:g} as {rule}; KV tokens are those of one attention rank",
        "TTFT: mean from sending a request to its first token, loaded with queueing beside the others, alone without; "
        "TPOT: mean time per further token",
    ]
    errors = stated_errors()
    if errors:
        lines.append(errors)
    if result.rejected:
        lines.append("rejected: " + ", ".join(f"{name} {count:,}" for name, count in result.rejected.items()))
    return lines + [f"note: {note}" for note in result.notes]
