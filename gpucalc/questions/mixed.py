"""Plans for clusters of several kinds of GPU, by the training estimate of each kind.

Data parallel: every kind holds whole replicas of the same layout; each replica runs as many micro-batches as its
kind finishes in the common step time. Pipeline: every kind holds stages; a stage holds as many layers as its kind
passes in the common stage time. The search evaluates each kind as if the whole cluster were of it, at the rate where
kinds meet; the best of what it finds are then timed cut by cut (`mixed_cuts`), as every command times them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import GIB, GIGABIT
from gpucalc.core.vocabulary import FITS
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas import mixed as f
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts.axes import decided_axes, divisors, searched_axes
from gpucalc.layouts.label import layout_label
from gpucalc.layouts.space import Space, block_columns, blocks, cuts, make_space
from gpucalc.questions.mixed_cuts import (
    OF_CUTS,
    PER_LAYER,
    cuts_of_replicas,
    cuts_of_stages,
    mixed_row,
    mixed_step,
    read_cuts,
    read_micro_batches,
)
from gpucalc.questions.mixed_verdict import parts_alone, verdict
from gpucalc.questions.plan import layout_cells, with_defaults

TIMED = 4  # times the rows asked for: so many of the search's best are timed cut by cut
DATA, STAGES = "data-parallel", "pipeline"
MOST_KINDS = 4
NOT_WHOLE = "tp·pp·cp divides each kind's GPUs"
NOT_STAGES = "tp·cp·dp divides each kind's GPUs"
MEMORY = "fits in memory of every kind"
IDLE = "every kind has work"


@dataclass
class MixedResult:
    """The ranked plans of a mixed cluster, its parts alone, and what is to be said of the comparison."""

    job: dict[str, Any]
    evaluated: int
    feasible: int
    rejected: dict[str, int]
    rows: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    verdict: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Kind:
    """One kind of GPU: its number, and the job as if the whole cluster were of it."""

    key: str
    count: int
    job: jobs.Job


def kinds_of(text: str, db: Database) -> dict[str, int]:
    """device → GPUs of a text such as a100-sxm-80gb:64,h100-sxm-80gb:64.

    Raises UsageError for one that does not say how many of each.
    """
    found: dict[str, int] = {}
    for part in (p.strip() for p in text.split(",") if p.strip()):
        name, colon, count = part.rpartition(":")
        if not colon or not count.strip().isdigit() or int(count) < 1:
            raise UsageError(f"--gpu has {part!r}; write each kind with its number, such as a100-sxm-80gb:64")
        key = db.device_key(name.strip())
        if key in found:
            raise UsageError(f"--gpu names {key} twice")
        found[key] = int(count)
    if len(found) == 1:
        [(key, held)] = found.items()
        raise UsageError(f"--gpu names one kind of GPU; write --gpu {key} --gpus {held}")
    if not found or len(found) > MOST_KINDS:
        raise UsageError(f"a mixed cluster has 2 to {MOST_KINDS} kinds of GPU, not {len(found)}")
    return found


def plan_mixed(
    cells: Mapping[str, Any],
    parts: Mapping[str, int],
    context: Context,
    top: int = 10,
) -> MixedResult:
    """Rank uneven layouts of a job on a cluster of several kinds of GPU, and compare with each kind alone.

    Layout cells that are stated restrict the search. Raises UsageError when the question itself is wrong.
    """
    stated = {n: v for n, v in cells.items() if v is not None and n not in {"gpu", "n_gpus"}}
    if stated.get("schedule", "1f1b") not in {"1f1b", "none", (None,)} or stated.get("vpp", 1) > 1:
        raise UsageError(
            "on several kinds of GPU the schedule is 1f1b without chunks: others do not bear unequal stages"
        )
    if "global_batch" not in stated:
        raise UsageError("global_batch is not stated; how many sequences has a step?")
    between = stated.pop("between_gbps", None)
    kinds = _kinds(stated, parts, context, between)
    found: dict[str, int] = {NOT_WHOLE: 0, NOT_STAGES: 0, MEMORY: 0, IDLE: 0}
    rows, evaluated, feasible = _search(kinds, stated, found, TIMED * top)
    plans = [_row(row, kinds) for row in rows]
    plans = [{**row, **_timed(row, stated, between, context)} for row in plans]
    plans.sort(key=lambda row: (FITS.index(row["pred_fit"]), row["pred_step_time_s"]))
    plans = list({_same(row): row for row in reversed(plans)}.values())[::-1][:top]
    alone = parts_alone(stated, parts, context)
    facts = kinds[0].job
    return MixedResult(
        job={
            "model": facts.model.name,
            "gpus": dict(parts),
            "n_gpus": sum(parts.values()),
            "precision": facts.cells["precision"],
            "seq_len": facts.cells["seq_len"],
            "global_batch": stated["global_batch"],
            "profile": facts.profile.name,
            "network_gbps_per_gpu": facts.cluster.network_bandwidth_per_gpu / GIGABIT,
        },
        evaluated=evaluated,
        feasible=feasible,
        rejected={name: count for name, count in found.items() if count},
        rows=plans,
        alone=alone,
        verdict=verdict(plans, alone),
        notes=[w for k in kinds[:1] for w in k.job.warnings],
    )


def _kinds(stated: Mapping[str, Any], parts: Mapping[str, int], context: Context, between: float | None) -> list[_Kind]:
    """The kinds as jobs, of one precision, at the network rate where they meet: the slowest unless stated."""
    total = sum(parts.values())
    layout = {*decided_axes(), "global_batch"}
    question = {n: v for n, v in stated.items() if n not in layout}
    devices = [context.db.device(key) for key in parts]
    if "precision" not in question:
        common = [d.default_precision for d in devices]
        question["precision"] = next(p for p in ("fp32", "fp16", "bf16") if p in common)
    neutral = {"dp": total, "micro_batch": 1, "zero_stage": 1, "global_batch": total, "n_gpus": total}
    first = [jobs.resolve({**question, **neutral, "gpu": key}, context) for key in parts]
    slowest = between or min(j.cluster.network_bandwidth_per_gpu for j in first) / GIGABIT
    return [
        _Kind(
            key,
            count,
            jobs.resolve({**question, **neutral, "gpu": key, "inter_node_gbps_per_gpu": slowest}, context),
        )
        for key, count in parts.items()
    ]


def _space(kinds: Sequence[_Kind], stated: Mapping[str, Any]) -> Space:
    """Layouts of the whole cluster; schedules that bear uneven stages only."""
    base, total = kinds[0].job, sum(k.count for k in kinds)
    batch = int(stated["global_batch"])
    sizes = {**with_defaults(stated, base.profile), "n_gpus": total, "seq_len": base.cells["seq_len"]}
    sizes.setdefault("micro_batch", tuple(divisors(batch, 64)))
    levels = sizes["micro_batch"] if isinstance(sizes["micro_batch"], tuple) else (sizes["micro_batch"],)
    if any(batch % m for m in levels):
        raise UsageError(f"micro_batch={levels[0]} does not divide the global batch of {batch}")
    # Shares are uneven, so dp need not divide the batch: the enumerator sees one that every dp divides.
    sizes["global_batch"] = total * math.lcm(*levels)
    sizes = {"shard_group": (None,), "recompute": (None,), **sizes, "vpp": 1}
    sizes["schedule"] = sizes.get("schedule", "1f1b")  # or none, the absence of a pipeline
    c = base.columns
    domain = min(k.job.cluster.domain for k in kinds)
    sizes = {n: v for n, v in sizes.items() if v is not None}
    selective = not c["flash"] or c["selective_kept"] < 1
    return make_space(sizes, int(c["layers"]), base.model.heads, base.model.experts, domain, selective)


def _search(
    kinds: Sequence[_Kind], stated: Mapping[str, Any], rejected: dict[str, int], top: int
) -> tuple[list[dict[str, Any]], int, int]:
    space = _space(kinds, stated)
    best: list[dict[str, Any]] = []
    evaluated = feasible = 0
    for block in blocks(space, cuts(space)):
        for select, name, assess in ((_whole, NOT_WHOLE, _assess_data), (_staged, NOT_STAGES, _assess_stages)):
            wanted = select(block, kinds, stated)
            rejected[name] += int(np.count_nonzero(~wanted))
            if not wanted.any():
                continue
            part = {n: column[wanted] for n, column in block.items()}
            found = assess(part, kinds, int(stated["global_batch"]))
            works = np.all(found["shares"] >= 1, axis=0)
            fits = np.all(jobs.may_fit(found["fill"]), axis=0) & works
            evaluated += len(fits)
            feasible += int(np.count_nonzero(fits))
            rejected[IDLE] += int(np.count_nonzero(~works))
            rejected[MEMORY] += int(np.count_nonzero(works & ~fits))
            best = _keep(best, part, found, fits, top, DATA if assess is _assess_data else STAGES)
    return best, evaluated, feasible


def _keep(
    best: list[dict[str, Any]],
    part: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    fits: np.ndarray,
    top: int,
    manner: str,
) -> list[dict[str, Any]]:
    fit = jobs.fit_code(found["fill"].max(axis=0))
    for i in np.lexsort((found["step"], fit, ~fits))[:top]:
        if fits[i]:
            row = {n: int(column[i]) for n, column in part.items()}
            best.append(
                {
                    "manner": manner,
                    "columns": row,
                    "key": (int(fit[i]), float(found["step"][i])),
                    "step": float(found["step"][i]),
                    "shares": [int(s) for s in found["shares"][:, i]],
                    "memory": [float(m) for m in found["memory"][:, i]],
                    "fill": [float(m) for m in found["fill"][:, i]],
                }
            )
    best.sort(key=lambda r: (r["key"], r["manner"], [r["columns"][n] for n in searched_axes()]))
    return best[:top]


def _whole(block: Mapping[str, np.ndarray], kinds: Sequence[_Kind], stated: Mapping[str, Any]) -> np.ndarray:
    """Whether every kind holds whole replicas, and the batch whole micro-batches of at least one a replica."""
    group = block["tp"] * block["pp"] * block["cp"]
    enough = int(stated["global_batch"]) // block["micro_batch"] >= block["dp"]
    return np.logical_and.reduce([k.count % group == 0 for k in kinds]) & enough


def _staged(block: Mapping[str, np.ndarray], kinds: Sequence[_Kind], stated: Mapping[str, Any]) -> np.ndarray:
    """Whether every kind holds whole stages, and the batch divides over the replicas."""
    stage = block["tp"] * block["cp"] * block["dp"]
    even = int(stated["global_batch"]) % (block["dp"] * block["micro_batch"]) == 0
    return np.logical_and.reduce([k.count % stage == 0 for k in kinds]) & even & (block["pp"] > 1)


def _evaluate(kind: _Kind, part: Mapping[str, np.ndarray], changes: Mapping[str, np.ndarray]) -> Ledger:
    """The training estimate of a kind, as if the whole cluster were of it, with some columns replaced."""
    columns = block_columns(kind.job.columns, part)
    for name, value in changes.items():
        columns.define(name, value)
    return estimate_training(Columns(dict(columns)))


def _at(ledger: Ledger, path: str, rows: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(ledger[path], dtype=float), (rows,))


def _assess_data(part: Mapping[str, np.ndarray], kinds: Sequence[_Kind], batch: int) -> dict[str, np.ndarray]:
    """Micro-batches of a replica of each kind, and what the step takes then."""
    rows = len(part["tp"])
    replicas = part["dp"].astype(float)
    each_batch = part["micro_batch"].astype(float)
    work = batch / each_batch
    group = (part["tp"] * part["pp"] * part["cp"]).astype(float)
    held = np.array([k.count / group for k in kinds])

    def run(kind: _Kind, micro_batches: np.ndarray) -> Ledger:
        return _evaluate(kind, part, {"global_batch": replicas * each_batch * micro_batches})

    low = np.maximum(1.0, np.floor(work / replicas / 2))
    high = low + np.maximum(1.0, np.ceil(work / replicas))
    fixed, each = [], []
    for kind in kinds:
        first, second = _at(run(kind, low), "time/step", rows), _at(run(kind, high), "time/step", rows)
        each.append(f.time_per_micro_batch(low, first, high, second))
        fixed.append(f.fixed_time(low, first, each[-1]))
    shares = balance(work, held, np.array(fixed), np.array(each))
    step, fill, memory = [], [], []
    for kind, share in zip(kinds, shares, strict=True):
        ledger = run(kind, np.maximum(share, 1.0))
        step.append(_at(ledger, "time/step", rows))
        fill.append(_at(ledger, "memory/fill", rows))
        memory.append(_at(ledger, "memory/total", rows))
    return {"step": np.max(step, axis=0), "shares": shares, "fill": np.array(fill), "memory": np.array(memory)}


def balance(work: Any, held: np.ndarray, fixed: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Whole micro-batches a replica of each kind (first axis), so that the last kind to finish does so earliest.

    Of `held` replicas of a kind some may run one fewer, where the work does not divide.

    >>> import numpy as np
    >>> one = np.ones((2, 1))
    >>> balance(np.array([12.0]), 2 * one, 0 * one, np.array([[1.0], [0.5]])).ravel().tolist()
    [2.0, 4.0]
    """
    step = f.balanced_step(work, np.sum(held * fixed / each, axis=0), np.sum(held / each, axis=0))
    shares = f.micro_batches_within(step, fixed, each)
    for _ in range(8 * len(held)):
        missing = work - np.sum(held * shares, axis=0)
        if not np.any(missing > 1e-9):
            break
        following = f.replica_time(fixed, each, shares + 1)
        grows = np.argmin(following, axis=0)
        shares = shares + ((np.arange(len(held))[:, None] == grows) & (missing > 1e-9))
    return np.asarray(shares)


def _assess_stages(part: Mapping[str, np.ndarray], kinds: Sequence[_Kind], batch: int) -> dict[str, np.ndarray]:
    """Layers of a stage of each kind, and what the step takes then."""
    rows = len(part["tp"])
    stages = part["pp"].astype(float)
    held = np.array([k.count / (part["tp"] * part["cp"] * part["dp"]) for k in kinds])
    layers = kinds[0].job.columns["layers"]
    sent = {"global_batch": np.full(rows, float(batch))}

    def run(kind: _Kind, depth: np.ndarray) -> Ledger:
        whole = depth * stages
        scaled = {n: kind.job.columns[n] * whole / layers for n in PER_LAYER}
        return _evaluate(kind, part, {**sent, **scaled})

    times = np.array([_at(_evaluate(k, part, sent), "layer/time", rows) for k in kinds])
    most = np.full_like(times, layers)
    depths = stage_depths(layers, held, times, most)
    for _ in range(2):  # a kind whose memory overflows gives layers to the others
        ledgers = [run(k, np.maximum(d, 1.0)) for k, d in zip(kinds, depths, strict=True)]
        fill = np.array([_at(ledger, "memory/fill", rows) for ledger in ledgers])
        if not np.any(fill > 1):
            break
        most = np.where(fill > 1, np.maximum(np.floor(depths / fill), 1.0), most)
        depths = stage_depths(layers, held, times, most)
    ledgers = [run(k, np.maximum(d, 1.0)) for k, d in zip(kinds, depths, strict=True)]
    return {
        "step": _stage_step(ledgers, held / stages, times, rows),
        "shares": depths,
        "fill": np.array([_at(ledger, "memory/fill", rows) for ledger in ledgers]),
        "memory": np.array([_at(ledger, "memory/total", rows) for ledger in ledgers]),
    }


def _stage_step(ledgers: Sequence[Ledger], shares: np.ndarray, layer_times: np.ndarray, rows: int) -> np.ndarray:
    """The step of a pipeline of several kinds; the head lies with the kind of the fastest layers."""

    def all_of(path: str) -> np.ndarray:
        return np.array([_at(ledger, path, rows) for ledger in ledgers])

    with_head = layer_times == layer_times.min(axis=0)
    slowest = np.where(with_head, all_of("stage/slowest"), all_of("stage/time")).max(axis=0)
    filling = np.sum(shares * all_of("time/pp/bubble"), axis=0)
    micro_batches = _at(ledgers[0], "symbol/micro_batches", rows)
    transfer = all_of("pp/transfer").max(axis=0)
    pipeline = f.uneven_pipeline_time(slowest, transfer, micro_batches, filling)
    exchange, update = all_of("time/dp/exposed").max(axis=0), all_of("time/optimizer").max(axis=0)
    return np.asarray(f.uneven_step_time(pipeline, exchange, update, all_of("step/straggler").max(axis=0)))


def stage_depths(layers: float, held: np.ndarray, times: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Layers of a stage of each kind (first axis), at most `most`, so that the slowest stage is as fast as can be.

    Of `held` stages of a kind some may hold one fewer. Zero where the kinds together cannot hold the layers.

    >>> import numpy as np
    >>> one = np.ones((2, 1))
    >>> stage_depths(24, 2 * one, np.array([[2.0], [1.0]]), 24 * one).ravel().tolist()
    [4.0, 8.0]
    """
    even = layers / np.sum(held / times, axis=0)
    depths = np.minimum(f.layers_within(even, times), most)
    for _ in range(int(layers) + 1):
        missing = layers - np.sum(held * depths, axis=0)
        open_ = (depths < most) & (missing > 1e-9)
        if not np.any(open_):
            break
        following = np.where(depths < most, (depths + 1) * times, np.inf)
        grows = np.argmin(following, axis=0)
        depths = depths + (open_ & (np.arange(len(held))[:, None] == grows))
    short = layers - np.sum(held * depths, axis=0) > 1e-9
    return np.where(short, 0.0, depths)


def _row(row: Mapping[str, Any], kinds: Sequence[_Kind]) -> dict[str, Any]:
    """One plan as the layout of a row, and the work of each kind."""
    cells = layout_cells(row["columns"])
    model = kinds[0].job.model
    shares = [f"{k.key} {s}" for k, s in zip(kinds, row["shares"], strict=True)]
    return {
        "layout": layout_label(cells, model.experts),
        "manner": row["manner"],
        "stages": _cuts(row, kinds, cells, model.layers),
        "split": ", ".join(shares),
        "split_unit": "micro-batches a replica" if row["manner"] == DATA else "layers a stage",
        "micro_batches": ",".join(s.replace(" ", ":") for s in shares) if row["manner"] == DATA else "",
        **cells,
    }


def _same(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is alike for plans that differ in nothing: ZeRO of one replica, say."""
    return row["stages"], row["micro_batches"], row["pred_step_time_s"], row["pred_peak_mem_gib"]


def _timed(
    row: Mapping[str, Any], stated: Mapping[str, Any], between: float | None, context: Context
) -> dict[str, Any]:
    """The predicted columns of a plan, timed cut by cut."""
    layout = {n: row[n] for n in decided_axes() if n in row and n not in OF_CUTS}
    question: dict[str, Any] = {n: v for n, v in stated.items() if n not in OF_CUTS and not isinstance(v, tuple)}
    question |= layout
    question["between_gbps"] = between
    if row["micro_batches"]:
        question["micro_batches"] = read_micro_batches(row["micro_batches"], context.db)
    found = mixed_step(question, read_cuts(row["stages"], context.db), context)
    return {**mixed_row(found), "memory_gib": {key: size / GIB for key, size in found.memory.items()}}


def _cuts(row: Mapping[str, Any], kinds: Sequence[_Kind], cells: Mapping[str, Any], layers: int) -> str:
    """The plan as `--stages` takes it, the kind of the fastest layers last."""
    size = cells["tp"] * cells["cp"]
    if row["manner"] == DATA:
        return cuts_of_replicas([(k.key, k.count) for k in kinds], size, cells["pp"], layers).text()
    told = [(k.key, k.count // (size * cells["dp"]), share) for k, share in zip(kinds, row["shares"], strict=True)]
    return cuts_of_stages(sorted(told, key=lambda t: t[2]), size, cells["dp"], layers).text()
