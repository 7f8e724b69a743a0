"""A serving question completed: what a row states, with the model's, the cluster's and the engine's values.

`resolve_serving` turns typed cells into the numeric columns of the estimate; `evaluate_serving` does it for a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import COLUMNS, KINDS, parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.database.documents import MEMORY_RULES
from gpucalc.database.engines import Engine, choose_engine
from gpucalc.jobs.columns import model_columns
from gpucalc.jobs.completion import collect, stated_cluster, stated_model
from gpucalc.jobs.formats import CACHE_FORMATS, format_named
from gpucalc.jobs.serving_columns import cluster_columns, format_columns, load_columns, model_extras
from gpucalc.jobs.serving_defaults import stated_format, with_defaults
from gpucalc.jobs.serving_rules import beyond_context, layout_rules, question_problems
from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS
from gpucalc.jobs.serving_sides import SIDES, gpus_of, has_sides, side_problems, with_sides, worker

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.database.cluster import Cluster
    from gpucalc.jobs.context import Context
    from gpucalc.models.model import Model


@dataclass(frozen=True)
class ServingJob:
    """One question, completed; `reasons` says why what was left open is as it is."""

    cells: dict[str, Any]
    columns: dict[str, float]
    model: Model
    cluster: Cluster
    engine: Engine
    context: Context
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def parse_serving(record: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The stated cells of a serving row, typed, and a sentence for each that is wrong."""
    cells: dict[str, Any] = {}
    problems: list[str] = []
    for name in ("model", *MODEL_CELLS, *CLUSTER_CELLS, *RECORDS):
        text = (record.get(name) or "").strip()
        column = RECORDS.get(name) or COLUMNS[name]
        if not text:
            continue
        try:
            value = parse_cell(column, text)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        if value is not None:
            cells[name] = value
    return cells, problems


def resolve_serving(cells: Mapping[str, Any], context: Context) -> ServingJob:
    """Complete the typed cells of one row; UsageError with all violations."""
    problems = side_problems(cells)
    notes: list[str] = []
    model = collect(problems, stated_model, cells, notes)
    stated = {name: value for name, value in cells.items() if value is not None}
    if has_sides(stated):
        stated["n_gpus"] = sum(gpus_of(worker(stated, side)) for side in SIDES)
    elif stated.get("n_gpus") is None:
        stated["n_gpus"] = (stated.get("tp") or 1) * (stated.get("pp") or 1) * (stated.get("dp") or 1)
    cluster = collect(problems, stated_cluster, stated, context)
    framework, version = (str(cells.get(name) or "") for name in ("framework", "framework_version"))
    engine = collect(problems, choose_engine, framework, context.db, version)
    for name in ("isl", "osl"):
        if cells.get(name) is None:
            problems.append(f"{name} is not stated")
    for name, known in (("precision", None), ("kv_precision", CACHE_FORMATS)):
        if text := stated_format(cells, name):
            collect(problems, format_named, text, name, known)
    if model is None or cluster is None or engine is None or problems:
        raise UsageError(*problems)
    full = _laid_out(stated, model, cluster)
    found = with_defaults(full, model, cluster.device, engine)
    full |= found.cells
    problems += [text for _, text in layout_rules(full, model)] + question_problems(full, model, cluster.device)
    if problems:
        raise UsageError(*problems)
    notes += _remarks(full, model)
    columns = {
        **model_columns(model),
        **model_extras(model),
        **engine.values,
        **format_columns(cluster.device, full, model, context.db, notes),
        **cluster_columns(cluster, context.db),
        **load_columns(full, model),
        **found.columns,
        "memory_rule": float(MEMORY_RULES.index(engine.memory_rule)),
    }
    kept = tuple(dict.fromkeys(notes))
    return ServingJob(full, columns, model, cluster, engine, context, kept, found.reasons)


def _remarks(cells: Mapping[str, Any], model: Model) -> list[str]:
    """What is to be said of a question that can be answered."""
    notes = []
    if not model.is_mla and model.attention_layers and cells["tp"] > model.kv_heads:
        copies = cells["tp"] // model.kv_heads
        notes.append(f"tp={cells['tp']} is beyond the {model.kv_heads} KV heads: each is held {copies} times")
    if said := beyond_context(cells, model):
        notes.append(said)
    layers = model.blueprint.mtp_layers if model.blueprint else 0
    draft = cells.get("draft_tokens") or 0
    if draft and not layers:
        notes.append(f"{model.name} drafts no tokens of its own: draft_tokens={draft} are those of another model")
    elif draft > layers:
        notes.append(f"{model.name} has {layers} drafting layer(s), run again for each of the {draft} drafted tokens")
    return notes


def _laid_out(cells: Mapping[str, Any], model: Model, cluster: Cluster) -> dict[str, Any]:
    """The cells with a whole layout."""
    full = {**cells, "n_gpus": cluster.n_gpus}
    if not has_sides(full):
        for name in ("tp", "pp", "ep"):
            full.setdefault(name, 1)
        full.setdefault("dp", max(1, cluster.n_gpus // (full["tp"] * full["pp"])))
        full.setdefault("attention_dp", full["dp"] if model.experts else 1)
    return with_sides(full)


PREDICTIONS = {
    "pred_ttft_ms": ("time/ttft", 1e3),
    "pred_ttft_unloaded_ms": ("time/ttft-unloaded", 1e3),
    "pred_tpot_ms": ("time/tpot", 1e3),
    "pred_output_tok_s_total": ("metric/output-rate", 1.0),
    "pred_kv_tokens": ("memory/kv-tokens", 1.0),
}


def serving_predictions(ledger: Ledger, found: Sequence[ServingJob]) -> list[dict[str, Any]]:
    """The pred_ columns of each row of a ledger; times are empty where nothing fits or the rate is too high."""
    import numpy as np

    count = len(found)

    def column(path: str) -> Any:
        return np.broadcast_to(np.asarray(ledger[path], dtype=float), (count,))

    values = {name: column(path) * factor for name, (path, factor) in PREDICTIONS.items()}
    most, needed, saturation = column("memory/sequences"), column("symbol/wanted"), column("metric/saturation-rate")
    limits = column("metric/prefill-limits") if "metric/prefill-limits" in ledger else np.zeros(count)
    rows = []
    for i, job in enumerate(found):
        row: dict[str, Any] = {name: float(v[i]) for name, v in values.items()}
        fits = most[i] >= 1
        # A mean occupancy that fits while full lengths would not is a batch that now and then has to wait.
        row["pred_fit"] = "oom" if not fits else "fits" if most[i] >= np.floor(needed[i]) else "risky"
        row["pred_bottleneck"] = ("prefill" if limits[i] else "decode") if job.cells.get("prefill_workers") else ""
        row["pred_error"] = ""
        rate = job.cells.get("rate")
        if rate is not None:
            row["pred_saturation_rate"] = float(saturation[i])
        if fits and rate is not None and rate >= saturation[i]:
            row["pred_error"] = (
                f"rate {rate:g}/s is beyond saturation at {saturation[i]:.4g}/s; the queue grows without end"
            )
        if not fits or row["pred_error"]:
            row |= dict.fromkeys(("pred_ttft_ms", "pred_ttft_unloaded_ms", "pred_tpot_ms", "pred_output_tok_s_total"))
        rows.append(row)
    return rows


def evaluate_serving(records: Sequence[Mapping[str, str]], context: Context) -> list[dict[str, Any]]:
    """The pred_ columns of each record (cells as text); a wrong record has them empty and `pred_error`."""
    results: list[dict[str, Any]] = [{} for _ in records]
    found: list[ServingJob] = []
    places: list[int] = []
    for place, record in enumerate(records):
        cells, problems = parse_serving(record)
        try:
            if problems:
                raise UsageError(*problems)
            found.append(resolve_serving(cells, context))
            places.append(place)
        except UsageError as error:
            results[place] = {**dict.fromkeys(KINDS["serving"], ""), "pred_error": "; ".join(error.problems)}
    for place, row in zip(places, predict_serving(found), strict=True):
        results[place] = row
    return results


def predict_serving(found: Sequence[ServingJob]) -> list[dict[str, Any]]:
    """The pred_ columns of several jobs."""
    from gpucalc.estimate.serving import estimate_serving

    if not found:
        return []
    return serving_predictions(estimate_serving(stack_serving(found)), found)


def stack_serving(found: Sequence[ServingJob]) -> Any:
    """The columns of several jobs as arrays; one job stays scalars."""
    import numpy as np

    from gpucalc.core.ledger import Columns

    if len(found) == 1:
        return Columns(found[0].columns)
    return Columns({n: np.array([job.columns[n] for job in found], dtype=float) for n in found[0].columns})


def cells_of(job: ServingJob) -> Iterator[tuple[str, Any]]:
    """The cells of a job in the order of the row schema."""
    for name in ("model", "gpu", *RECORDS):
        if job.cells.get(name) is not None:
            yield name, job.cells[name]
