"""`gpucalc serve`: inference of a model on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.effects import say_serving
from gpucalc.cli.job_options import DatabaseOptions, JobOptions, any_card, stated
from gpucalc.cli.option import argument, cell, option
from gpucalc.cli.output import FigureOptions, emit_document, emit_rows, to_stderr
from gpucalc.cli.values import positive_integer, positive_number, quantity
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.launch.target import Target, Wrapper
    from gpucalc.questions.serve import ServeResult

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
    "pred_bottleneck",
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


@dataclass(frozen=True)
class _ServingCells:
    model: str | None = argument(
        "MODEL", "Preset, or a config.json or its folder; custom: --set.", cell=True, complete="models", files=True
    )
    gpu: str | None = cell("--gpu GPU", "Key or alias of the hardware database.", complete="gpus")
    gpu_memory_gib: str | None = cell("--gpu-memory SIZE", "Memory of one GPU, such as 24GB; for any card.")
    n_gpus: str | None = cell("--gpus N", "GPUs; without them the least for --rate are looked for.")
    isl: str | None = cell("--isl N", "Mean tokens of a prompt.")
    osl: str | None = cell("--osl N", "Mean tokens of an answer.")
    concurrency: str | None = cell("--concurrency C", "Requests in the system (closed loop).")
    rate: str | None = cell("--rate R", "Requests per second that arrive (open loop).")
    precision: str | None = cell("--precision NAME", "Weights: bf16, fp8, int8, int4, nvfp4, mxfp4 …")
    kv_precision: str | None = cell("--kv-precision NAME", "Cache: bf16, fp8, int8.")
    framework: str | None = cell("--engine NAME", "vllm, sglang or trtllm; neutral without it.", complete="engines")
    layout: str | None = option("--layout LABEL", "Such as tp8-dp2, 2x(tp4)+1x(tp8); all without it.")
    prefill_layout: str | None = option("--prefill-layout LABEL", "Workers that only prefill, such as 2x(tp4).")
    decode_layout: str | None = option("--decode-layout LABEL", "Workers that decode, such as 1x(tp1-adp8-ep8).")
    prefix_hit: str | None = cell("--prefix-hit SHARE", "Share of the prompt found in the cache.")
    chunk_tokens: str | None = cell("--chunk N", "Most tokens of prompts in one pass.")
    draft_tokens: str | None = cell("--draft N", "Tokens drafted ahead (speculation, MTP).")
    acceptance: str | None = cell("--acceptance SHARE", "Probability that a drafted token is accepted.")
    accepted_tokens: str | None = cell("--accepted N", "Mean drafted tokens accepted, instead of --acceptance.")
    memory_share: str | None = cell("--memory-share SHARE", "Share of the memory; the engine's without it.")
    fabric: str | None = option(
        "--fabric LINK", "Network link of the database, such as ib-ndr.", complete="network links"
    )
    gpus_per_node: str | None = cell("--gpus-per-node N", "GPUs of one node.")
    inter_node_gbps_per_gpu: str | None = cell(
        "--inter-node-gbps GBIT/S", "Network rate per GPU, one direction, in Gb/s."
    )
    settings: tuple[str, ...] = option(
        "--set KEY=VALUE", "Any column of serving rows; repeatable.", repeat=True, complete="serving settings"
    )


@dataclass(frozen=True)
class ServingOptions(DatabaseOptions, _ServingCells):
    """A question about serving; a field that is a cell is named after its column of serving rows."""

    def text(self) -> dict[str, str]:
        """The cells that are stated, as text."""
        return {name: text for name, (_, text) in stated(self).items()}

    def context(self) -> Context:
        """What stands beside the cells: database and fabric."""
        from gpucalc.jobs.context import Context

        return Context(self.database(), fabric=self.fabric)


@command(group="Serve and tune")
def serve(
    *,
    job: ServingOptions,
    ttft: float | None = option(
        "--ttft TIME", "Limit of the mean loaded time to the first token, such as 2s.", read=quantity("s")
    ),
    tpot: float | None = option(
        "--tpot TIME", "Limit of the mean time per output token, such as 50ms.", read=quantity("s")
    ),
    disaggregate: bool = option("--disaggregate", "Also layouts with GPUs that only prefill."),
    price: float | None = option("--price MONEY", "Price of one GPU for one hour.", read=positive_number),
    pareto: bool = option("--pareto", "List the front of tokens/s/user against tokens/s/GPU."),
    explain: bool = option("--explain", "Print how the best row came about, term by term."),
    top: int = option("--top N", "Rows to print.", default="10", read=positive_integer),
    output: FigureOptions,
) -> int:
    """Serve a model: latency, throughput and cache; layouts ranked under limits on latency.

    \b
    gpucalc serve llama-3.1-70b --gpu h100-sxm-80gb --gpus 8 --isl 2048 --osl 256 --ttft 2s --tpot 50ms
    gpucalc serve llama-3.1-70b --gpu h100-sxm-80gb --isl 2048 --osl 256 --rate 20 --tpot 50ms
    """
    cells = serving_cells(
        job.text(), job.settings, job.layout, {"prefill": job.prefill_layout, "decode": job.decode_layout}
    )

    from gpucalc.questions.serve import Limits
    from gpucalc.questions.serve import serve as search

    limits = Limits(**{name: value for name, value in (("ttft", ttft), ("tpot", tpot)) if value is not None})
    result = search(cells, job.context(), limits=limits, price=price, top=top, disaggregate=disaggregate)
    if output.plot is not None and result.front:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.serving import serving_figure

        save(serving_figure(result.front, result.rows, result.job), output.plot)
    if explain and result.rows:
        _explain(result.rows[0], cells, job.context(), output.form)
        return ExitStatus.OK
    _write(result, output, pareto)
    if result.rows:
        axes = ("n_gpus", "tp", "pp", "dp", "ep", "attention_dp", "prefill_gpus")
        load = ("concurrency",) if "rate" not in cells else ()
        best = {name: result.rows[0][name] for name in (*axes, *load) if result.rows[0].get(name) is not None}
        flags = {name: f"{flag} {text}" for name, (flag, text) in stated(job).items() if name not in axes}
        flags |= {pair.partition("=")[0].strip(): f"--set {pair}" for pair in job.settings}
        say_serving({n: text for n, text in flags.items() if n not in axes}, {**cells, **best}, job.context())
    return ExitStatus.OK if result.rows else ExitStatus.INFEASIBLE


def serving_cells(
    text: dict[str, str], settings: Sequence[str], layout: str | None, sides: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """The typed cells of the question; all mistakes in one sentence."""
    from gpucalc.core.errors import unknown
    from gpucalc.jobs.serving import parse_serving
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS
    from gpucalc.jobs.serving_sides import SIDES, gpus_of, has_sides, worker
    from gpucalc.questions.serve_layouts import serving_label_cells, side_label_cells

    problems: list[str] = []
    known = ("model", *MODEL_CELLS, *CLUSTER_CELLS, *RECORDS)
    for pair in settings:
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
    if text.get("gpu_memory_gib") and not text.get("gpu"):
        text["gpu"] = any_card()
    cells, found = parse_serving(text)
    problems += found
    flags = [f"--{side}-layout" for side, label in (sides or {}).items() if label is not None]
    if layout is not None and flags:
        raise UsageError(f"--layout states the whole deployment, beside {' and '.join(flags)}; state one or the other")
    typed = serving_label_cells(layout) if layout is not None else {}
    for side, label in (sides or {}).items():
        typed |= side_label_cells(label, side) if label is not None else {}
    for name, size in typed.items():
        if cells.get(name) not in {None, size}:
            problems.append(f"--layout contradicts {name}={cells[name]}")
        cells[name] = size
    if has_sides(cells):
        cells.setdefault("n_gpus", sum(gpus_of(worker(cells, side)) for side in SIDES))
    elif typed and cells.get("dp") is not None:
        cells.setdefault("n_gpus", (cells.get("tp") or 1) * (cells.get("pp") or 1) * cells["dp"])
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


def export_engine(target: Target, job: JobOptions, wrapper: Wrapper | None = None) -> None:
    """Write a serving layout as the launch settings of an engine; MODEL "-" is a row of serve on standard input."""
    from gpucalc.jobs.serving import resolve_serving
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS
    from gpucalc.launch import export

    taken = {"model", "precision", *CLUSTER_CELLS}
    unused = [flag for name, (flag, _) in stated(job).items() if name not in taken]
    if unused:
        raise UsageError(
            f"{', '.join(unused)} has no meaning with --to {target.name}; lengths and load are --set isl=2048 osl=256 "
            "concurrency=64, one pair each"
        )
    base = _piped_row() if job.piped else {"framework": target.name}
    if job.layout is None and not job.piped and not any(pair.strip().startswith("tp=") for pair in job.settings):
        raise UsageError("which layout? write --layout with a label of serve, such as tp8-dp2")
    text = {name: value for name, (_, value) in stated(job).items()}
    cells = serving_cells({**base, **text}, job.settings, job.layout)
    written, said = export(resolve_serving(cells, job.context()), target, wrapper)
    sys.stdout.write(written)
    sys.stdout.flush()
    to_stderr(*(f"note: {line}" for line in said))


def _piped_row() -> dict[str, str]:
    """The cells of the first row of serve's csv or json on standard input."""
    from gpucalc.core.errors import DataError
    from gpucalc.core.rows import read_rows, text_record
    from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS

    block = next(read_rows("-", block=1).blocks, [])
    if not block:
        raise DataError("standard input holds no row; pipe serve -f csv into it")
    known = {"model", *MODEL_CELLS, *CLUSTER_CELLS, *RECORDS}
    return {name: value for name, value in text_record(block[0]).items() if name in known and value.strip()}


def _explain(row: Mapping[str, Any], cells: Mapping[str, Any], context: Context, form: str) -> None:
    """One row of the answer as trees of terms."""
    from gpucalc.estimate.serving import estimate_serving
    from gpucalc.jobs.serving import resolve_serving, stack_serving
    from gpucalc.jobs.serving_sides import SIDE_CELLS
    from gpucalc.questions.explain import ledger_tree
    from gpucalc.questions.serve_layouts import LAYOUT

    names = ("n_gpus", *LAYOUT, *SIDE_CELLS, "concurrency", "rate")
    free = {name: value for name, value in cells.items() if name not in names}
    job = resolve_serving({**free, **{n: row[n] for n in names if row.get(n) is not None}}, context)
    ledger = estimate_serving(stack_serving([job]), trace=True)
    terms = ledger_tree(ledger, context.db, ROOTS)
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


def _write(result: ServeResult, output: FigureOptions, pareto: bool) -> None:
    rows = result.front if pareto else result.rows
    if output.json:
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
    elif output.for_people:
        if rows:
            _table(rows, output)
            to_stderr(*_footer(result))
    else:
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(SHOWN)
        output.rows(names, rows)
    if not result.rows:
        to_stderr(f"gpucalc: {result.nearest}")


def _table(rows: Sequence[Mapping[str, Any]], output: FigureOptions) -> None:
    from gpucalc.core.columns import COLUMNS
    from gpucalc.jobs.serving_schema import OUTPUT_COLUMNS

    known = {**COLUMNS, **{c.name: c for c in OUTPUT_COLUMNS}}
    used = [known[n] for n in SHOWN if any(row.get(n) is not None for row in rows)]
    output.table(used, rows)


def _footer(result: ServeResult) -> list[str]:
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
        f"engine {' '.join(filter(None, (job['engine'], job['engine_version'])))} ({job['engine_title']}); "
        f"cache space: {job['memory_share']:g} as {rule}; KV tokens are those of one attention rank",
        *(f"{name} {job[name]:g}: {job['reasons'][name]}" for name in ("chunk_tokens", "max_seqs", "memory_share")),
        *(f"{title} {job[name]}: {job['reasons'][name]}" for name, title in FORMAT_TITLES.items()),
        *_start_lines(result.rows[0]),
        "TTFT: mean from sending a request to its first token, loaded with queueing beside the others, alone without; "
        "TPOT: mean time per further token",
    ]
    errors = stated_errors()
    if errors:
        lines.append(errors)
    if result.rejected:
        lines.append("rejected: " + ", ".join(f"{name} {count:,}" for name, count in result.rejected.items()))
    return lines + [f"note: {note}" for note in result.notes]


FORMAT_TITLES = {"precision": "weights", "kv_precision": "cache"}


def _start_lines(row: Mapping[str, Any]) -> list[str]:
    """What the engine of the best row prints when it starts, and how a GPU's memory is split."""
    parts = (("weights", "weights"), ("activations", "activations"), ("outside", "outside"), ("kv_space", "cache"))
    split = ", ".join(f"{title} {row[f'pred_{name}_gib']:.2f}" for name, title in parts)
    length = row["isl"] + row["osl"]
    first = f"{row['layout']}, first tokens in the steady state: mean {row['pred_ttft_steady_ms']:,.0f} ms"
    if row["pred_ttft_p99_ms"] is not None:
        first += f", 99 of 100 random arrivals within {row['pred_ttft_p99_ms']:,.0f} ms"
    if row["pred_ttft_wave_ms"] is not None:
        first += (
            f"; where all requests in the system are sent at once: mean {row['pred_ttft_wave_ms']:,.0f} ms, "
            f"the last {row['pred_ttft_wave_last_ms']:,.0f} ms"
        )
    return [
        first,
        f"{row['layout']} at start: GPU KV cache size {row['pred_kv_tokens']:,.0f} tokens; maximum concurrency for "
        f"{length:,.0f} tokens per request {row['pred_max_concurrency_per_rank']:.2f}x; GiB a GPU: {split}",
    ]
