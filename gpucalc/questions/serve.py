"""Layouts for serving: which fit, how fast they are at a load, and which meet limits on latency.

A load is a concurrency, a rate, or neither; then each layout is tried at concurrencies up to what its cache
holds, and its best load under the limits is taken. All of them are rows of the one serving estimate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIB
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import ServingJob, resolve_serving, serving_predictions, stack_serving
from gpucalc.jobs.serving_rules import layout_rules
from gpucalc.jobs.serving_sides import SIDE_CELLS, has_sides
from gpucalc.questions.serve_layouts import LARGEST_TP, LAYOUT, layouts, serving_label
from gpucalc.questions.serve_matched import matched
from gpucalc.questions.serve_remedies import does_not_fit

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger

LARGEST_BATCH = 4096
MOST_REPLICAS = 4096
HOLDS = "weights and one sequence fit"


@dataclass(frozen=True)
class Limits:
    """Latencies, in seconds, that a layout must keep; infinite where none is asked."""

    ttft: float = math.inf
    tpot: float = math.inf

    def kept(self, row: Mapping[str, Any]) -> bool:
        """Whether a row keeps both."""
        return bool(row["pred_ttft_ms"] <= self.ttft * 1e3 and row["pred_tpot_ms"] <= self.tpot * 1e3)

    def excess(self, row: Mapping[str, Any]) -> float:
        """How far beyond the limits a row is, as a factor; 1 or less within."""
        return max(row["pred_ttft_ms"] / (self.ttft * 1e3), row["pred_tpot_ms"] / (self.tpot * 1e3))


@dataclass
class ServeResult:
    """Ranked rows, the Pareto front, and what became of the rest."""

    rows: list[dict[str, Any]]
    front: list[dict[str, Any]]
    candidates: int
    evaluated: int
    feasible: int
    seconds: float
    rejected: dict[str, int]
    job: dict[str, Any]
    notes: tuple[str, ...] = ()
    nearest: str = ""
    miss: dict[str, Any] | None = field(default=None)


WAVE = {"wave": "mean", "wave_last": "last", "p99": "p99"}


def serve(
    cells: Mapping[str, Any],
    context: Context,
    *,
    limits: Limits | None = None,
    price: float | None = None,
    top: int = 10,
    disaggregate: bool = False,
) -> ServeResult:
    """Rank the layouts of a serving question; without n_gpus the least GPUs for the stated rate are looked for.

    Raises UsageError for a question that no layout could answer: unknown names, lengths beyond the context.
    """
    start = time.perf_counter()
    limits = limits or Limits()
    probe = _probe(cells, context)
    counts: dict[str, int] = {}
    found: list[ServingJob] = []
    enumerated = 0
    if has_sides(cells):
        found, enumerated = [probe], 1
    if disaggregate and not has_sides(cells) and cells.get("n_gpus") is not None:
        apart = list(matched(cells, probe, context, int(cells["n_gpus"])))
        free = {name: value for name, value in cells.items() if name not in LAYOUT}
        found += [resolve_serving({**free, **sides}, context) for sides in apart]
        enumerated += len(apart)
    for layout in () if has_sides(cells) else _chosen(cells, probe):
        enumerated += 1
        gpus = layout["tp"] * layout["pp"] * layout["dp"]
        full = {**probe.cells, **layout, "n_gpus": gpus}
        broken = layout_rules(full, probe.model)
        for name in {name for name, _ in broken}:
            counts[name] = counts.get(name, 0) + 1
        if not broken:
            found.append(resolve_serving({**cells, **layout, "n_gpus": gpus}, context))
    if not found:
        _refuse(cells, probe, context)
    if cells.get("n_gpus") is None and cells.get("rate") is not None:
        result = _least(
            _evaluated([_full(job) for job in found], price), found, limits, cells, counts, top, price, probe, context
        )
    else:
        result = _ranked(_evaluated(found, price), limits, cells, counts, top, probe, context)
    result.candidates, result.evaluated = enumerated, len(found)
    first = result.rows[0]["layout"] if result.rows else ""
    result.job = _facts(next((job for job in found if serving_label(job.cells) == first), probe), cells, limits)
    shown = {row["layout"] for row in result.rows}
    notes = [note for job in found if serving_label(job.cells) in shown for note in job.notes]
    result.notes = tuple(dict.fromkeys((*probe.notes, *notes)))
    result.seconds = time.perf_counter() - start
    return result


def _probe(cells: Mapping[str, Any], context: Context) -> ServingJob:
    """The question with the plainest layout; mistakes that every layout shares are told here."""
    if has_sides(cells):
        return resolve_serving(cells, context)
    plain = {n: v for n, v in cells.items() if n not in LAYOUT}
    gpus = int(plain.get("n_gpus") or 1)
    return resolve_serving({**plain, "n_gpus": gpus, "tp": 1, "pp": 1, "dp": gpus, "attention_dp": 1}, context)


def _chosen(cells: Mapping[str, Any], probe: ServingJob) -> Iterator[dict[str, int]]:
    mixture = probe.model.is_moe
    if cells.get("n_gpus") is not None:
        yield from layouts(cells, mixture, int(cells["n_gpus"]))
        return
    if cells.get("tp") is not None:
        gpus = [int(cells["tp"]) * int(cells.get("pp") or 1) * int(cells.get("dp") or 1)]
    else:
        gpus = [2**i for i in range(7) if 2**i <= max(8, min(probe.cluster.domain, LARGEST_TP))]
    for count in gpus:
        for layout in layouts(cells, mixture, count):
            if layout["dp"] == layout["attention_dp"] or cells.get("dp") is not None:  # one replica
                yield layout


def _refuse(cells: Mapping[str, Any], probe: ServingJob, context: Context) -> None:
    """No legal layout: say why, with the words of the row that was stated."""
    stated = {n: v for n, v in cells.items() if n in LAYOUT}
    if stated:
        resolve_serving({**cells, "n_gpus": cells.get("n_gpus")}, context)
    raise UsageError(f"no layout of {cells.get('n_gpus')} GPUs is legal for {probe.model.name}")


def _loads(job: ServingJob, ledger_limit: float) -> list[float]:
    """Concurrencies to try: from one request a rank to what the cache of all ranks holds, two steps a doubling."""
    ranks = job.columns["dp"]
    most = min(max(ledger_limit, 1.0), LARGEST_BATCH)
    steps = dict.fromkeys(float(round(2 ** (i / 2))) for i in range(26))
    return [ranks * step for step in [*(s for s in steps if s < most), most]]


def _evaluated(found: Sequence[ServingJob], price: float | None) -> list[dict[str, Any]]:
    """One row per layout and load, with its predictions."""
    from gpucalc.estimate.serving import estimate_serving

    if found[0].cells.get("concurrency") is None and found[0].cells.get("rate") is None:
        import numpy as np

        ledger = estimate_serving(stack_serving(found))
        limit = np.broadcast_to(ledger["memory/batch-limit"], (len(found),))
        found = [
            replace(
                job,
                cells={**job.cells, "concurrency": load},
                columns={**job.columns, "concurrency": load, "fills": 0.0},
            )
            for i, job in enumerate(found)
            for load in _loads(job, float(limit[i]))
        ]
    ledger = estimate_serving(stack_serving(found))
    return serving_rows(ledger, found, price)


def serving_rows(ledger: Ledger, found: Sequence[ServingJob], price: float | None = None) -> list[dict[str, Any]]:
    """Rows of a ledger: layout, load, predictions and what follows from them."""
    import numpy as np

    def column(path: str) -> Any:
        return np.broadcast_to(np.asarray(ledger[path], dtype=float), (len(found),))

    ranks = np.broadcast_to(np.asarray(ledger.columns["decode_ranks"], dtype=float), (len(found),))
    least, have = column("memory/least-share"), column("memory/available")
    split = {name: column(f"memory/{name}") for name in ("activations", "outside", "kv-space")}
    spread = {name: column(f"wave/ttft-{path}") for name, path in WAVE.items()}
    spread["steady"] = column("time/ttft-steady")
    need = column("memory/needed")
    most, weights, batch = column("memory/sequences") * ranks, column("memory/weights"), column("metric/decode-batch")
    rows = []
    for i, (job, predicted) in enumerate(zip(found, serving_predictions(ledger, found), strict=True)):
        total = predicted["pred_output_tok_s_total"]
        cells = job.cells
        row: dict[str, Any] = {"layout": serving_label(cells), "model": job.model.name, "gpu": job.cluster.device.key}
        gone = LAYOUT if cells.get("prefill_workers") else SIDE_CELLS
        row |= {
            n: None if n in gone else cells.get(n)
            for n in ("n_gpus", *LAYOUT, *SIDE_CELLS, "precision", "kv_precision", "isl", "osl")
        }
        row |= {"concurrency": cells.get("concurrency"), "rate": cells.get("rate"), "framework": job.engine.name}
        row |= predicted
        row["pred_tok_s_per_user"] = 1e3 / predicted["pred_tpot_ms"] if predicted["pred_tpot_ms"] else None
        row["pred_tok_s_per_gpu"] = total / cells["n_gpus"] if total else None
        row["pred_max_concurrency"] = float(most[i])
        row["pred_decode_batch"] = float(batch[i])
        row["pred_weights_gib"] = float(weights[i]) / GIB
        row |= {f"pred_{name.replace('-', '_')}_gib": float(v[i]) / GIB for name, v in split.items()}
        row["pred_needed_gib"], row["pred_available_gib"] = float(need[i]) / GIB, float(have[i]) / GIB
        row["pred_max_concurrency_per_rank"] = row["pred_kv_tokens"] / (cells["isl"] + cells["osl"])
        row["pred_least_memory_share"] = float(least[i])
        answered = row["pred_ttft_ms"] is not None
        row |= {f"pred_ttft_{name}_ms": float(v[i]) * 1e3 if answered else None for name, v in spread.items()}
        if cells.get("prefill_workers"):  # a wave waits for the workers that prefill, which the steady state tells
            row |= {"pred_ttft_wave_ms": None, "pred_ttft_wave_last_ms": None}
        if cells.get("rate") is None:
            row["pred_ttft_p99_ms"] = None
        if price is not None:
            from gpucalc.formulas.serving import cost_per_token

            cost = cost_per_token(price / 3600, cells["n_gpus"], total) * 1e6 if total else None
            row["pred_cost_per_million"] = cost
        rows.append(row)
    return rows


def _ranked(
    rows: Sequence[dict[str, Any]],
    limits: Limits,
    cells: Mapping[str, Any],
    counts: dict[str, int],
    top: int,
    probe: ServingJob,
    context: Context,
) -> ServeResult:
    held = [r for r in rows if r["pred_fit"] != "oom"]
    _count(counts, HOLDS, {r["layout"] for r in rows} - {r["layout"] for r in held})
    steady = [r for r in held if not r["pred_error"]]
    _count(counts, "rate below saturation", {r["layout"] for r in held} - {r["layout"] for r in steady})
    kept = [r for r in steady if limits.kept(r)]
    _count(counts, "latency limits", {r["layout"] for r in steady} - {r["layout"] for r in kept})
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(kept, key=_order(cells)):
        best.setdefault(row["layout"], row)
    ranked = sorted(best.values(), key=_order(cells))
    result = ServeResult(ranked[:top], pareto(steady), 0, 0, len(ranked), 0.0, counts, {})
    if not ranked:
        result.nearest, result.miss = _nearest(rows, held, steady, limits, cells, probe, context)
    return result


def _order(cells: Mapping[str, Any]) -> Any:
    """Fastest first: at a given rate all finish alike, so the shorter latency decides."""
    if cells.get("rate") is not None:
        return lambda r: (r["pred_ttft_ms"] + r["pred_tpot_ms"] * (r["osl"] - 1), r["layout"])
    return lambda r: (-r["pred_output_tok_s_total"], r["pred_tpot_ms"], r["layout"])


def _count(counts: dict[str, int], name: str, gone: set[str]) -> None:
    if gone:
        counts[name] = len(gone)


def pareto(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that no other beats in both tokens/s per user and tokens/s per GPU, the most responsive first."""
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: (-r["pred_tok_s_per_user"], -r["pred_tok_s_per_gpu"])):
        if not front or row["pred_tok_s_per_gpu"] > front[-1]["pred_tok_s_per_gpu"]:
            front.append(row)
    return front


def _nearest(
    rows: Sequence[dict[str, Any]],
    held: Sequence[dict[str, Any]],
    steady: Sequence[dict[str, Any]],
    limits: Limits,
    cells: Mapping[str, Any],
    probe: ServingJob,
    context: Context,
) -> tuple[str, dict[str, Any] | None]:
    """Why nothing is left, and the row that comes nearest."""
    if not held:
        return does_not_fit(rows, probe, context)
    if not steady:
        row = max(held, key=lambda r: r["pred_saturation_rate"])
        return (
            f"{cells['rate']:g} requests/s are beyond saturation in every layout; {row['layout']} comes nearest with "
            f"{row['pred_saturation_rate']:.3g} requests/s",
            row,
        )
    row = min(steady, key=lambda r: (limits.excess(r), r["layout"]))
    late = []
    if row["pred_ttft_ms"] > limits.ttft * 1e3:
        late.append(f"TTFT binds ({row['pred_ttft_ms']:.0f} ms against {limits.ttft * 1e3:g})")
    if row["pred_tpot_ms"] > limits.tpot * 1e3:
        late.append(f"TPOT binds ({row['pred_tpot_ms']:.2f} ms against {limits.tpot * 1e3:g})")
    if not late:  # only the number of replicas stands against it
        return (
            f"{cells['rate']:g} requests/s take {row['n_gpus']:,} GPUs as {row['layout']}; at most {MOST_REPLICAS:,} "
            "replicas are tried",
            row,
        )
    load = f"rate {row['rate']:g}/s" if row.get("rate") else f"concurrency {row['concurrency']:g}"
    return f"no layout keeps the limits: {' and '.join(late)} in the nearest, {row['layout']} at {load}", row


def _least(
    rows: Sequence[dict[str, Any]],
    found: Sequence[ServingJob],
    limits: Limits,
    cells: Mapping[str, Any],
    counts: dict[str, int],
    top: int,
    price: float | None,
    probe: ServingJob,
    context: Context,
) -> ServeResult:
    """Replicas of each layout until the rate is served within the limits; the fewest GPUs first."""
    from gpucalc.estimate.serving import estimate_serving

    counts.clear()
    held = [(job, row) for job, row in zip(found, rows, strict=True) if row["pred_fit"] != "oom"]
    _count(counts, HOLDS, {str(i) for i in range(len(found) - len(held))})
    trials: list[ServingJob] = []
    for (job, _), most in zip(held, _rates_within([job for job, _ in held], limits), strict=True):
        least = max(1, math.ceil(job.columns["rate"] / most)) if most > 0 else 0
        # The load of one replica decides; one fewer and one more make up for the steps of the loads tried.
        trials += [_times(job, n) for n in (least - 1, least, least + 1) if 1 <= n <= MOST_REPLICAS]
    tried = serving_rows(estimate_serving(stack_serving(trials)), trials, price) if trials else []
    steady = [r for r in tried if not r["pred_error"]]
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted((r for r in steady if limits.kept(r)), key=lambda r: r["n_gpus"]):
        best.setdefault(tuple(row[n] for n in ("tp", "pp", "ep", "attention_dp")), row)
    answers = sorted(best.values(), key=lambda r: (r["n_gpus"], r["pred_tpot_ms"], r["layout"]))
    _count(counts, "latency limits", {str(i) for i in range(len(held) - len(answers))})
    result = ServeResult(answers[:top], pareto(answers), 0, 0, len(answers), 0.0, counts, {})
    if not answers:
        slowest = [
            _times(job, 1 + math.ceil(2 * job.columns["rate"] / row["pred_saturation_rate"])) for job, row in held
        ]
        missed = serving_rows(estimate_serving(stack_serving(slowest)), slowest, price) if slowest else []
        quiet = [r for r in missed if not r["pred_error"]]
        result.nearest, result.miss = _nearest(rows, [row for _, row in held], quiet, limits, cells, probe, context)
    return result


def _rates_within(found: Sequence[ServingJob], limits: Limits) -> list[float]:
    """The highest rate that one replica of each layout serves within the limits; 0 where it cannot."""
    import numpy as np

    from gpucalc.core.ledger import Columns
    from gpucalc.estimate.serving import estimate_at_concurrency

    if not found:
        return []
    loads = np.array([2 ** (i / 3) for i in range(-3, 37)])
    repeated = {n: np.repeat([job.columns[n] for job in found], len(loads)) for n in found[0].columns}
    ranks = repeated["dp"]
    repeated["concurrency"] = np.tile(loads, len(found)) * ranks
    first = estimate_at_concurrency(Columns(repeated))
    repeated["rate"] = np.asarray(first["metric/service-rate"])
    last = estimate_at_concurrency(Columns(repeated))
    kept = (last["time/ttft"] <= limits.ttft) & (last["time/tpot"] <= limits.tpot)
    kept &= repeated["concurrency"] <= last["memory/batch-limit"] * ranks
    return [float(v) for v in np.where(kept, repeated["rate"], 0.0).reshape(len(found), -1).max(axis=1)]


def _full(job: ServingJob) -> ServingJob:
    """The same layout with as many requests as fit: its rate is the one at which it saturates."""
    return replace(job, columns={**job.columns, "fills": 1.0, "open_loop": 0.0})


def _times(job: ServingJob, count: int) -> ServingJob:
    """The same layout, `count` times."""
    gpus, dp = int(job.cells["n_gpus"]) * count, int(job.cells["dp"]) * count
    columns = {**job.columns, "n_gpus": float(gpus), "dp": float(dp)}
    return replace(job, cells={**job.cells, "n_gpus": gpus, "dp": dp}, columns=columns)


def _facts(probe: ServingJob, cells: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    cluster, engine = probe.cluster, probe.engine
    return {
        "model": probe.model.name,
        "gpu": cluster.device.key,
        "n_gpus": cells.get("n_gpus"),
        "isl": cells["isl"],
        "osl": cells["osl"],
        "concurrency": cells.get("concurrency"),
        "rate": cells.get("rate"),
        "ttft_limit_s": None if math.isinf(limits.ttft) else limits.ttft,
        "tpot_limit_s": None if math.isinf(limits.tpot) else limits.tpot,
        "precision": probe.cells["precision"],
        "kv_precision": probe.cells["kv_precision"],
        "engine": engine.name,
        "engine_title": engine.title,
        "memory_share": probe.columns["memory_share"],
        "memory_rule": engine.memory_rule,
        "engine_version": engine.version,
        "chunk_tokens": probe.columns["chunk_tokens"],
        "max_seqs": probe.columns["max_seqs"],
        "reasons": dict(probe.reasons),
    }
