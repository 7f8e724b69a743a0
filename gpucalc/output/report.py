"""One plan as one HTML file: question, ranked layouts, pictures, why the best takes its time, assumptions, sources.

Everything stands inside the file; it loads nothing and opens offline.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucalc import __version__
from gpucalc.core.columns import COLUMNS, INPUT, Column, cell_text
from gpucalc.core.errors import UsageError
from gpucalc.database.efficiency import kernel_provenance
from gpucalc.database.tables import FAMILIES
from gpucalc.jobs.context import Context
from gpucalc.output.explain import quantity
from gpucalc.output.table import significant
from gpucalc.questions.explain import ROOTS, Explanation

if TYPE_CHECKING:
    from gpucalc.output.figures.layouts import Front

GENERATOR = "gpucalc"
_MARK = f'<meta name="generator" content="{GENERATOR}'
RANKED = (
    "layout",
    "pred_step_time_s",
    "band",
    "pred_tokens_per_s_per_gpu",
    "pred_mfu_pct",
    "pred_peak_mem_gib",
    "pred_fit",
    "pred_recompute",
)
OPENED = ("time/step", "time/compute/parts", "memory/parts")  # terms that show their parts at once
_STYLE = """
:root { --ink: #1b1b1b; --soft: #5c5c5c; --line: #d5d5d5; --mark: #0072b2; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: #fff;
       max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.answer { border-left: 4px solid var(--mark); padding: .3rem .8rem; margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .55rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid var(--ink); } td.n, th.n { text-align: right; }
tr.best td { font-weight: 600; } td.wrap { white-space: normal; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .85rem; }
pre { background: #f4f4f4; padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
figcaption, footer, .soft { color: var(--soft); font-size: .88rem; }
details { border-top: 1px solid var(--line); padding: .15rem 0; } summary { cursor: pointer; }
details.term { border: 0; } details.term details.term { margin-left: 1.1rem; }
details.term b { float: right; font-weight: 400; font-variant-numeric: tabular-nums; }
.formula { margin: .2rem 0 .5rem 1.2rem; font-size: .85rem; overflow-wrap: anywhere; }
@media print { details { break-inside: avoid; } body { max-width: none; } }
"""


def escaped(value: Any) -> str:
    """Text of a value for HTML: nothing in it can become markup.

    >>> escaped('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    return html.escape(cell_text(value), quote=True)


def report_html(
    result: Any,
    question: Mapping[str, Any],
    explanation: Explanation | None,
    pictures: Mapping[str, str],
    *,
    command: str = "",
    provenance: Mapping[str, str] | None = None,
) -> str:
    """The report of a plan.

    `question` are the cells that were stated, `explanation` that of the best layout, `pictures` are captions and
    SVG elements, `provenance` says what the efficiencies of the device rest on.
    """
    title = plan_title(result.job)
    parts = [
        f"<h1>{escaped(title)}</h1>",
        _answer(result),
        _section("Question", _question(result.job, question, command)),
        _section("Ranked layouts", _ranked(result.rows) + _counts(result)),
        _section("Pictures", _pictures(pictures)),
        _section("The best layout, term by term", _explained(explanation)),
        _section("Assumptions", _assumptions(result, question, provenance or {})),
        _section("Error band", _band(result)),
        _section("Sources", _sources(explanation)),
        f"<footer>Written by gpucalc {escaped(__version__)}. All predictions come from closed formulas; "
        "the formula of each term stands beside it.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{_MARK} {escaped(__version__)}">\n<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def plan_title(job: Mapping[str, Any]) -> str:
    """The question in a line."""
    name = job.get("model") or "a model given by its shape"
    parts = [f"{name} on {job['n_gpus']:,} × {job['gpu']}", str(job["precision"])]
    parts.append(f"{job['seq_len']:,} tokens")
    if job.get("global_batch"):
        parts.append(f"{job['global_batch']:,} sequences a step")
    return ", ".join(parts)


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escaped(title)}</h2>\n{body}\n</section>" if body else ""


def _answer(result: Any) -> str:
    if not result.rows:
        said = "No layout fits." + (f" {result.nearest_miss}." if result.nearest_miss else "")
        return f'<p class="answer">{escaped(said)}</p>'
    best = result.rows[0]
    said = (
        f"{best['layout']} ranks first: {best['pred_step_time_s']:.4g} s a step "
        f"({best['pred_step_time_low_s']:.4g} to {best['pred_step_time_high_s']:.4g} s in four of five cases), "
        f"{best['pred_tokens_per_s_per_gpu']:,.0f} tokens per second and GPU, {best['pred_mfu_pct']:.1f} % MFU, "
        f"{best['pred_peak_mem_gib']:.1f} GiB on the fullest GPU ({best['pred_fit']})."
    )
    return f'<p class="answer">{escaped(said)}</p>'


def _pairs(pairs: Sequence[tuple[str, Any]]) -> str:
    lines = [f'<tr><td>{escaped(name)}</td><td class="wrap">{escaped(value)}</td></tr>' for name, value in pairs]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _question(job: Mapping[str, Any], question: Mapping[str, Any], command: str) -> str:
    pairs = [(name, value) for name, value in question.items()]
    facts = [
        ("parameters", f"{job['parameters_total']:,}"),
        ("peak of the matrix products, dense", f"{job['peak_flops_dense'] / 1e12:,.1f} TFLOP/s"),
        ("MFU counts", job["flop_convention"]),
        ("network per GPU, one direction", f"{job['network_gbps_per_gpu']:g} Gb/s ({job['network_basis']})"),
        ("software profile", job["profile"]),
    ]
    shown = f"<pre>{escaped(command)}</pre>" if command else ""
    return shown + _pairs([*pairs, *facts])


def _ranked(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    band = Column("band", "text", "80 % band of the step time", heading="80 % band")
    rows = [{**row, "band": _band_text(row)} for row in rows]
    heads = []
    for name in RANKED:
        column = COLUMNS.get(name, band)
        unit = f" [{column.unit}]" if column.unit else ""
        heads.append(f"<th{_numeric(rows[0][name])}>{escaped(column.title + unit)}</th>")
    lines = []
    for place, row in enumerate(rows):
        cells = "".join(f"<td{_numeric(row[name])}>{_shown(row[name])}</td>" for name in RANKED)
        kind = ' class="best"' if place == 0 else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _numeric(value: Any) -> str:
    return ' class="n"' if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _shown(value: Any) -> str:
    return significant(value) if isinstance(value, float) else escaped(value)


def _counts(result: Any) -> str:
    said = (
        f"{result.feasible:,} layouts fit, of {result.evaluated:,} evaluated and {result.candidates:,} enumerated, "
        f"in {result.seconds:.2f} s. Rows nearer than 3 % in step time are not told apart by the model."
    )
    rejected = _pairs([(name, f"{count:,}") for name, count in result.rejected.items()])
    return f"<p>{escaped(said)}</p>" + (
        f"<details><summary>What the others were rejected for</summary>{rejected}</details>" if result.rejected else ""
    )


def _pictures(pictures: Mapping[str, str]) -> str:
    return "\n".join(
        f"<figure>{svg}<figcaption>{escaped(caption)}</figcaption></figure>" for caption, svg in pictures.items()
    )


def _explained(explanation: Explanation | None) -> str:
    if explanation is None:
        return ""
    summary = "".join(f"<p>{escaped(line)}</p>" for line in explanation.summary)
    return summary + _pairs(explanation.facts) + _tree(explanation.terms)


def _tree(terms: Sequence[Mapping[str, Any]]) -> str:
    """Terms as elements that open and close, each inside the one it is a part of; what no root reaches comes last."""
    found: list[str] = []
    depth, rest = -1, False
    for term in terms:
        found.append("</details>" * (depth - int(term["depth"]) + 1))
        depth = int(term["depth"])
        if not rest and depth == 0 and term["path"] not in ROOTS:
            rest = True
            found.append('<details class="term"><summary>all other terms</summary>')
        found.append(_term(term))
    return "\n".join(found) + "</details>" * (depth + 1 + rest)


def _term(term: Mapping[str, Any]) -> str:
    """The beginning of a term's element; what follows it stands inside until it is closed."""
    value = quantity(term["value"], term.get("unit") or "")
    note = f' <span class="soft">{escaped(term["note"])}</span>' if term.get("note") else ""
    lines = []
    if term.get("formula"):
        symbol = f"{term['symbol']} = " if term.get("symbol") else "= "
        lines.append(f"<code>{escaped(symbol + term['formula'])}</code>")
    given = term.get("arguments") or {}
    if given:
        said = ", ".join(f"{name} = {quantity(a['value'], a['unit'])}" for name, a in given.items())
        lines.append(escaped(f"with {said}"))
    if term.get("citation"):
        lines.append(f'<span class="soft">{escaped(term["citation"])}</span>')
    body = f'<div class="formula">{"<br>".join(lines)}</div>' if lines else ""
    opened = " open" if term["path"] in OPENED else ""
    return (
        f'<details class="term"{opened}><summary>{escaped(term["path"])}{note}<b>{escaped(value)}</b></summary>{body}'
    )


def _assumptions(result: Any, question: Mapping[str, Any], provenance: Mapping[str, str]) -> str:
    taken = [(n, v) for n, v in result.job.items() if n in INPUT and n not in question]
    lines = [f"<li>{escaped(note)}</li>" for note in result.notes]
    lines += [f"<li>{escaped(f'efficiencies of {table} kernels: {basis}')}</li>" for table, basis in provenance.items()]
    body = f"<ul>{''.join(lines)}</ul>" if lines else ""
    return body + (f"<p>Not stated, and taken:</p>{_pairs(taken)}" if taken else "")


def _band_text(row: Mapping[str, Any]) -> str:
    low, high = (100 * (row[f"pred_step_time_{end}_s"] / row["pred_step_time_s"] - 1) for end in ("low", "high"))
    return f"{low:+.0f} % … {high:+.0f} %"


def _band(result: Any) -> str:
    if not result.rows:
        return ""
    said = (
        f"For runs of this kind, four in five measured step times lie within {_band_text(result.rows[0])} of the "
        "predicted one. The band comes from published runs whose sources took no part in the fit; it is wider where "
        f"the efficiencies of a device are assumed. Kinds with bands of their own: {'; '.join(FAMILIES.values())}."
    )
    return f"<p>{escaped(said)}</p>"


def _sources(explanation: Explanation | None) -> str:
    if explanation is None:
        return ""
    cited = sorted({str(term["citation"]) for term in explanation.terms if term.get("citation")})
    return f"<ul>{''.join(f'<li>{escaped(text)}</li>' for text in cited)}</ul>"


def plan_report(
    result: Any,
    question: Mapping[str, Any],
    context: Context,
    *,
    front: Front | None = None,
    command: str = "",
) -> str:
    """The report of a plan with its pictures and the explanation of the best layout.

    `context` is that of the plan. Without matplotlib it has no pictures and says so.
    """
    from gpucalc.questions.explain import explain

    explanation, pictures = None, {}
    if result.rows:
        cells = {name: value for name, value in result.rows[0].items() if name in INPUT and value not in {None, ""}}
        explanation = explain(cells, context)
        pictures = _drawn(result, cells, front, context)
    device = context.db.device(str(result.job["gpu"]))
    return report_html(
        result,
        question,
        explanation,
        pictures,
        command=command,
        provenance=kernel_provenance(device, result.job["precision"], context.db),
    )


def _drawn(
    result: Any,
    cells: Mapping[str, Any],
    front: Front | None,
    context: Context,
) -> dict[str, str]:
    from gpucalc.output.figures.canvas import MISSING, require_matplotlib, svg_text
    from gpucalc.output.figures.explained import explain_figure
    from gpucalc.output.figures.layouts import Front, plan_figure

    try:
        require_matplotlib()
    except UsageError:
        return {f"Left out: {MISSING}": ""}
    best = result.rows[0]["layout"]
    return {
        "The ranked layouts by term, and throughput against memory": svg_text(
            plan_figure(result.rows, front or Front(), context), "ranked layouts"
        ),
        f"The best layout, {best}: pipeline, time by term, memory by stage": svg_text(
            explain_figure(cells, context), "best layout"
        ),
    }


def check_report_path(path: str) -> None:
    """Raise UsageError for a name that is not an HTML file's, or a file there that gpucalc has not written."""
    target = Path(path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"--report is {path!r}, expected a name that ends in .html")
    if not target.parent.is_dir():
        raise UsageError(f"--report: the folder {str(target.parent)!r} does not exist")
    if target.is_dir():
        raise UsageError(f"--report: {path!r} is a folder")
    if target.is_file() and target.stat().st_size:
        with target.open("rb") as stream:
            head = stream.read(4096)
        if _MARK.encode() not in head:
            raise UsageError(f"--report: {path!r} exists and is not a report of gpucalc; choose another name")


def write_report(text: str, path: str) -> None:
    """Write a report whole or not at all."""
    from gpucalc.output.figures.canvas import write_whole

    write_whole(Path(path), text.encode("utf-8"))
