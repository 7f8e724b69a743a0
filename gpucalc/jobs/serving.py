"""A serving question completed: what a row states, with the model's, the cluster's and the engine's values.

`resolve_serving` turns typed cells into the numeric columns of the estimate; `evaluate_serving` does it for a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import COLUMNS, KINDS, parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.database.documents import MEMORY_RULES
from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.engines import Engine, choose_engine
from gpucalc.database.network import collective_constants, exchange_constants
from gpucalc.jobs import training as jobs
from gpucalc.jobs.columns import model_columns
from gpucalc.jobs.formats import CACHE_FORMATS, FORMATS, KERNELS, format_named, product_peak, products_of
from gpucalc.jobs.serving_schema import CLUSTER_CELLS, MODEL_CELLS, RECORDS

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device
    from gpucalc.jobs.context import Context
    from gpucalc.models.model import Model

PARTS = ("attention", "mlp", "expert", "head")  # kinds of products that may have formats of their own
PRODUCT_CONSTANTS = (
    "gemm_efficiency",
    "gemm_wave_exponent",
    "gemm_k_half",
    "gemm_l2_miss_penalty",
    "gemm_memory_efficiency",
    "gemm_l2_read_ratio",
    "gemm_launch_seconds",
    "output_bytes",
)
SPARSE_KEYS = 2048.0  # keys that DeepSeek sparse attention keeps for a query (DeepSeek-V3.2, GLM-5)
DEFAULT_ACCEPTANCE = 0.7
EXCHANGES = {"decode": "deepep_low_latency", "prefill": "deepep_normal"}


@dataclass(frozen=True)
class ServingJob:
    """One question, completed."""

    cells: dict[str, Any]
    columns: dict[str, float]
    model: Model
    cluster: Cluster
    engine: Engine
    context: Context
    notes: tuple[str, ...] = ()


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
            value = _share(name, text) if column.kind == "share" else parse_cell(column, text)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        if value is not None:
            cells[name] = value
    return cells, problems


def _share(name: str, text: str) -> float:
    """A share written as 0.5 or 50%.

    >>> _share("prefix_hit", "50%"), _share("prefix_hit", "0")
    (0.5, 0.0)
    """
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{name} is {text!r}, expected a share below 1, such as 0.5 or 50%")
    return value


def resolve_serving(cells: Mapping[str, Any], context: Context) -> ServingJob:
    """Complete the typed cells of one row; UsageError with all violations."""
    problems: list[str] = []
    notes: list[str] = []
    model = jobs.collect(problems, jobs.stated_model, cells, notes)
    stated = dict(cells)
    if stated.get("n_gpus") is None:
        stated["n_gpus"] = (stated.get("tp") or 1) * (stated.get("pp") or 1) * (stated.get("dp") or 1)
    cluster = jobs.collect(problems, jobs.stated_cluster, stated, context)
    engine = jobs.collect(problems, choose_engine, str(cells.get("framework") or ""), context.db)
    for name in ("isl", "osl"):
        if cells.get(name) is None:
            problems.append(f"{name} is not stated")
    for name, known in (("precision", None), ("kv_precision", CACHE_FORMATS)):
        if cells.get(name) is not None:
            jobs.collect(problems, format_named, str(cells[name]), name, known)
    if model is None or cluster is None or engine is None or problems:
        raise UsageError(*problems)
    full = _complete(stated, model, cluster, engine, problems)
    problems += serving_problems(full, model)
    if problems:
        raise UsageError(*problems)
    if not model.is_mla and model.attention_layers and full["tp"] > model.kv_heads:
        copies = full["tp"] // model.kv_heads
        notes.append(f"tp={full['tp']} is beyond the {model.kv_heads} KV heads: each is held {copies} times")
    columns = {
        **model_columns(model),
        **_model_extras(model),
        **engine.values,
        **_format_columns(cluster.device, full, model, context.db, notes),
        **_cluster_columns(cluster, context.db),
        **_layout_columns(full, model),
        "memory_rule": float(MEMORY_RULES.index(engine.memory_rule)),
    }
    for name in ("chunk_tokens", "memory_share", "max_seqs"):
        if full.get(name) is not None:
            columns[name] = float(full[name])
    return ServingJob(full, columns, model, cluster, engine, context, tuple(dict.fromkeys(notes)))


def _complete(
    cells: Mapping[str, Any], model: Model, cluster: Cluster, engine: Engine, problems: list[str]
) -> dict[str, Any]:
    full = {name: value for name, value in cells.items() if value is not None}
    full["n_gpus"] = cluster.n_gpus
    for name in ("tp", "pp", "ep"):
        full.setdefault(name, 1)
    full.setdefault("dp", max(1, cluster.n_gpus // (full["tp"] * full["pp"])))
    full.setdefault("attention_dp", full["dp"] if model.experts else 1)
    default = str(full.get("precision") or cluster.device.default_precision)
    full["precision"] = jobs.collect(problems, format_named, default) or "bf16"
    stated = full.get("kv_precision")
    kv = "fp8" if engine.values["kv_follows_weights"] and FORMATS[full["precision"]].bytes < 2 else "bf16"
    known = jobs.collect(problems, format_named, str(stated), "kv_precision", CACHE_FORMATS) if stated else kv
    full["kv_precision"] = known or "bf16"
    return full


def serving_problems(cells: Mapping[str, Any], model: Model) -> list[str]:
    """Every rule that the layout or the lengths break, each as a sentence with a legal neighbour."""
    problems = []
    tp, pp, dp, ep = (int(cells[n]) for n in ("tp", "pp", "dp", "ep"))
    if tp * pp * dp != cells["n_gpus"]:
        rest = tp * pp
        fits = f"dp={cells['n_gpus'] // rest} would fit" if cells["n_gpus"] % rest == 0 else f"use {rest * dp} GPUs"
        problems.append(f"tp·pp·dp = {tp}·{pp}·{dp} = {tp * pp * dp}, not the {cells['n_gpus']} GPUs; {fits}")
    if model.heads and model.heads % tp:
        legal = jobs.largest_divisor(model.heads, tp)
        problems.append(f"tp={tp} does not divide the {model.heads} heads; tp={legal} does")
    elif not model.is_mla and model.kv_heads and max(tp, model.kv_heads) % min(tp, model.kv_heads):
        legal = jobs.largest_divisor(model.kv_heads, tp)
        problems.append(
            f"tp={tp} and the {model.kv_heads} KV heads do not divide each other; tp={legal} shares them evenly"
        )
    if pp > model.layers:
        problems.append(f"pp={pp} asks for more stages than the {model.layers} layers")
    if not model.experts and ep > 1:
        problems.append(f"ep={ep} needs a mixture of experts; {model.name} is dense")
    share = int(cells["attention_dp"])
    if dp % share:
        problems.append(f"attention_dp={share} does not divide dp={dp}; attention_dp={jobs.largest_divisor(dp, share)}")
    elif model.experts:
        ranks = tp * share
        if ranks % ep:
            legal = jobs.largest_divisor(ranks, ep)
            problems.append(
                f"ep={ep} does not divide the tp·attention_dp = {ranks} ranks of a replica; ep={legal} does"
            )
        elif model.experts % ep:
            legal = jobs.largest_divisor(model.experts, ep)
            problems.append(f"ep={ep} does not divide the {model.experts} experts; ep={legal} does")
    apart = int(cells.get("prefill_gpus") or 0)
    if apart and (apart % (tp * pp * share) or apart >= cells["n_gpus"]):
        problems.append(
            f"prefill_gpus={apart} must be whole replicas of {tp * pp * share} GPUs and leave some of the "
            f"{cells['n_gpus']} to decode"
        )
    length = cells["isl"] + cells["osl"]
    if model.max_seq_len and length > model.max_seq_len:
        rest = model.max_seq_len - cells["isl"]
        hint = (
            f"osl={rest:,.0f} would fit"
            if rest >= 1
            else f"isl={max(model.max_seq_len - cells['osl'], 1):,.0f} would fit"
        )
        problems.append(
            f"isl + osl = {cells['isl']:,.0f} + {cells['osl']:,.0f} = {length:,.0f} tokens is beyond the context of "
            f"{model.max_seq_len:,} of {model.name}; {hint}"
        )
    if not model.causal:
        problems.append(f"{model.name} is not a causal decoder and generates no tokens")
    return problems


def _model_extras(model: Model) -> dict[str, float]:
    blueprint = model.blueprint
    heads = float(blueprint.index_heads) if blueprint else 0.0
    return {
        "state_bytes_per_sequence": float(model.state_bytes_per_sequence),
        "index_heads": heads,
        "index_dim": float(blueprint.index_dim) if blueprint else 0.0,
        "sparse_keys": SPARSE_KEYS if heads else 0.0,
        "vision_parameters": float(model.vision_parameters),
        "kv_bytes_16": float(model.kv_bytes_per_token),
        "kv_bytes_16_windowed": float(model.kv_bytes_per_token_windowed),
    }


def part_formats(name: str, model: Model) -> dict[str, str]:
    """The format of each kind of product when a model's weights are held in `name`.

    Heads stay in 16 bit. Formats for experts leave the rest of a mixture in 16 bit; 4-bit floating-point mixtures
    with latent attention keep that attention in 16 bit, as their publishers do.
    """
    form = FORMATS[name]
    sixteen = "fp32" if name == "fp32" else "bf16"
    mixture = model.is_moe
    rest = sixteen if form.experts_only and mixture else name
    attention = sixteen if name == "nvfp4" and mixture and model.is_mla else rest
    mlp = attention if name == "nvfp4" and mixture and model.is_mla else rest
    return {"attention": attention, "mlp": mlp, "expert": name, "head": sixteen}


def _format_columns(
    device: Device, cells: Mapping[str, Any], model: Model, db: Database, notes: list[str]
) -> dict[str, float]:
    half = device.default_precision
    sixteen = kernel_constants(device, half, db)
    columns = {name: v for name, v in sixteen.items() if name.startswith(("attention_", "decode_"))}
    columns |= {name: sixteen[name] for name in ("memory_efficiency", "kernel_launch_seconds", "compute_units")}
    columns["l2_bytes"] = sixteen["l2_bytes"]
    columns["half_peak"] = device.precision_peak(half)
    columns["memory_bandwidth"] = device.memory_bandwidth
    columns["usable_bytes"] = device.usable_bytes
    for part, name in part_formats(cells["precision"], model).items():
        name = half if name == "bf16" else name
        precision, expanded = products_of(device, name)
        constants = kernel_constants(device, KERNELS.get(precision, precision), db)
        columns |= {f"{part}_{n}": constants[n] for n in PRODUCT_CONSTANTS}
        columns[f"{part}_peak"] = product_peak(device, precision)
        columns[f"{part}_element_bytes"] = FORMATS[name].bytes
        columns[f"{part}_expanded"] = float(expanded)
        columns[f"{part}_fp4"] = float(precision == "nvfp4")
        if expanded and part in {"mlp", "expert"}:
            notes.append(
                f"{name} weights are expanded to {precision} on {device.key}: bytes of {name}, peak of {precision}"
            )
    columns["kv_bytes"] = CACHE_FORMATS[cells["kv_precision"]]
    return columns


def _cluster_columns(cluster: Cluster, db: Database) -> dict[str, float]:
    columns = collective_constants(cluster, db)
    for phase, kernel in EXCHANGES.items():
        for direction in ("dispatch", "combine"):
            found = exchange_constants(cluster, kernel, direction, db)
            columns |= {f"{phase}_{direction}_{name}": constant.value for name, constant in found.items()}
    return columns


def _layout_columns(cells: Mapping[str, Any], model: Model) -> dict[str, float]:
    draft = float(cells.get("draft_tokens") or 0)
    return {
        **{name: float(cells[name]) for name in ("n_gpus", "tp", "pp", "dp", "ep", "attention_dp", "isl", "osl")},
        "concurrency": float(cells.get("concurrency") or 0),
        "rate": float(cells.get("rate") or 0),
        "open_loop": float(cells.get("rate") is not None),
        "fills": float(cells.get("concurrency") is None and cells.get("rate") is None),
        "prefix_hit": float(cells.get("prefix_hit") or 0),
        "draft_tokens": draft,
        "acceptance": float(cells.get("acceptance") or (DEFAULT_ACCEPTANCE if draft else 0.0)),
        "draft_cost": float(cells.get("draft_cost") or 1.0 / model.layers),
        "prefill_gpus": float(cells.get("prefill_gpus") or 0),
    }


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
    rows = []
    for i, job in enumerate(found):
        row: dict[str, Any] = {name: float(v[i]) for name, v in values.items()}
        fits = most[i] >= 1
        # A mean occupancy that fits while full lengths would not is a batch that now and then has to wait.
        row["pred_fit"] = "oom" if not fits else "fits" if most[i] >= np.floor(needed[i]) else "risky"
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
