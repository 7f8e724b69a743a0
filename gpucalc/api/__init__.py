"""The Python side: the questions of the command line, with its names, as functions with typed results.

>>> import gpucalc
>>> found = gpucalc.plan("llama-3.1-8b", gpu="h100-sxm-80gb", n_gpus=16, seq_len=8192, global_batch=64, top=3)
>>> len(found), found.best.pred_fit in ("fits", "risky"), found.best["tp"] >= 1
(3, True, True)

Keyword arguments are the columns of the row schema. Every mistake raises `gpucalc.UsageError` with a sentence for
each of its problems. Results turn into a DataFrame (`to_frame`), into CSV (`to_csv`), and into a table in a notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.api.question import Cluster, Databases, Model, places, plain, typed_cells
from gpucalc.api.results import Evaluation, Explanation, PlanResult, Prediction, Records, Table, Term, explained_job
from gpucalc.core.columns import cell_text
from gpucalc.core.errors import UsageError
from gpucalc.database.reader import opened
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context

__all__ = [
    "Cluster",
    "Evaluation",
    "Explanation",
    "Model",
    "PlanResult",
    "Prediction",
    "Records",
    "Table",
    "Term",
    "comm",
    "evaluate",
    "explain",
    "plan",
]


def plan(
    model: str | Model | None = None,
    gpu: str | None = None,
    n_gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    *,
    cluster: Cluster | None = None,
    layout: str | None = None,
    objective: str = "throughput",
    top: int = 10,
    causal_flops: bool = False,
    profile: str | None = None,
    fabric: str | None = None,
    db: Databases = (),
    **cells: Any,
) -> PlanResult:
    """Rank the layouts of a training job; layout cells and `layout`, which may hold stars, restrict the search.

    >>> found = plan("llama-3.1-8b", cluster=Cluster("h100-sxm-80gb", 8), seq_len=4096, global_batch=32, top=2)
    >>> found.feasible > 0, [row.pred_fit for row in found] <= ["fits", "risky"]
    (True, True)
    """
    from gpucalc.layouts.label import read_restriction
    from gpucalc.questions.plan import plan as search

    named = {"gpu": gpu, "n_gpus": n_gpus, "seq_len": seq_len, "global_batch": global_batch, **cells}
    restriction = read_restriction(layout) if layout else None
    question = _question(model, cluster, restriction.cells if restriction else {}, named)
    if restriction:
        question = restriction.closed(question)
    if top < 1:
        raise UsageError(f"top is {top}, expected 1 or more")
    for name in ("gpu", "n_gpus", "seq_len", "global_batch"):
        if name not in question:
            raise UsageError(f"{name} is not stated")
    context = _context(cluster, causal_flops, profile, fabric, db)
    found = search(question, context, objective=objective, top=top)
    return PlanResult(
        rows=tuple(Prediction.of(row) for row in found.rows),
        job=found.job,
        candidates=found.candidates,
        evaluated=found.evaluated,
        feasible=found.feasible,
        seconds=found.seconds,
        rejected=found.rejected,
        notes=tuple(found.notes),
        nearest_miss=found.nearest_miss,
        question=question,
        context=context,
    )


def evaluate(
    rows: Any,
    *,
    causal_flops: bool = False,
    profile: str | None = None,
    fabric: str | None = None,
    db: Databases = (),
    **cells: Any,
) -> Evaluation:
    """Predict rows: a mapping, a sequence of mappings or a DataFrame; cells given by keyword hold for every row.

    A row that cannot be evaluated says why in `pred_error`; the others go on. Unknown columns are carried through.

    >>> job = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "global_batch": 32}
    >>> found = evaluate([{**job, "tp": 2}, {**job, "tp": 3}], zero_stage=1)
    >>> found[0].pred_step_time_s > 0, found[1].pred_error.split("; ")[-2:]
    (True, ['tp=3 does not divide the 32 heads', 'tp=4 would be legal'])
    """
    fixed = typed_cells(cells)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        records = rows.to_dict("records")
    elif isinstance(rows, Mapping):
        records = [rows]
    else:
        records = list(rows)
    for record in records:
        if not isinstance(record, Mapping):
            raise UsageError(f"a row is a {type(record).__name__}, expected a mapping of columns to values")
    given = [{str(name): plain(value) for name, value in {**record, **fixed}.items()} for record in records]
    text = [{name: cell_text(value) for name, value in record.items()} for record in given]
    context = _context(None, causal_flops, profile, fabric, db)
    found = jobs.evaluate_rows(text, context)
    return Evaluation(tuple(Prediction.of({**record, **row}) for record, row in zip(given, found, strict=True)))


def explain(
    model: str | Model | None = None,
    gpu: str | None = None,
    n_gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    *,
    layout: str | None = None,
    cluster: Cluster | None = None,
    causal_flops: bool = False,
    profile: str | None = None,
    fabric: str | None = None,
    db: Databases = (),
    **cells: Any,
) -> Explanation:
    """Why a layout takes the time and memory it does: every term with its formula, values and source.

    >>> why = explain("llama-3.1-8b", "h100-sxm-80gb", 8, 4096, 32, layout="tp2-dp4-mbs1-zero1-sp")
    >>> parts = ("time/compute", "time/pp/p2p", "time/pp/bubble", "time/dp/exposed", "time/optimizer")
    >>> abs(why.value("time/step") - sum(map(why.value, parts)) - why.value("time/stragglers")) < 1e-9
    True
    """
    from gpucalc.layouts.label import label_cells

    named = {"gpu": gpu, "n_gpus": n_gpus, "seq_len": seq_len, "global_batch": global_batch, **cells}
    question = _question(model, cluster, label_cells(layout) if layout else {}, named)
    context = _context(cluster, causal_flops, profile, fabric, db)
    return explained_job(question, context)


def _question(
    model: str | Model | None, cluster: Cluster | None, layout: Mapping[str, Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The cells that model, cluster, layout label and keywords state; a contradiction is an error."""
    stated = typed_cells({name: value for name, value in named.items() if value is not None})
    parts = [
        ("model", model.as_cells() if isinstance(model, Model) else {"model": model} if model else {}),
        ("cluster", cluster.as_cells() if cluster else {}),
        ("layout", dict(layout)),
    ]
    problems = []
    for kind, cells in parts:
        for name, value in typed_cells(cells).items():
            if name in stated and stated[name] != value:
                problems.append(f"{name} is {stated[name]!r}, which contradicts {value!r} of the {kind}")
            stated.setdefault(name, value)
    if problems:
        raise UsageError(*problems)
    return stated


def _context(
    cluster: Cluster | None, causal_flops: bool, profile: str | None, fabric: str | None, db: Databases
) -> Context:
    folders = places(db) or (cluster.db if cluster else ())
    chosen = fabric or (cluster.fabric if cluster else None)
    return Context(opened(folders), profile, chosen, causal_flops)


def comm(op: str, size: float | str, cluster: Cluster) -> Records:
    """A collective over every GPU of a cluster: one row for each algorithm, the chosen one first.

    `size` is what nccl-tests calls size: bytes, or text with a unit.

    >>> rows = comm("all_reduce", "1 GiB", Cluster("h100-sxm-80gb", 8))
    >>> rows[0]["chosen"], rows[0]["time_us"] > 1000
    (True, True)
    """
    from gpucalc.core.units import parse_quantity
    from gpucalc.questions.collectives import comm as evaluated

    wanted = parse_quantity(size, "B") if isinstance(size, str) else float(size)
    if not 0 < wanted <= 1e18:
        raise UsageError(f"size is {size}, expected more than 0 bytes and at most 1 EB")
    return Records(tuple(evaluated(op, wanted, cluster.resolved, opened(cluster.db))))
