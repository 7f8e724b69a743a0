"""The planner: evaluate every legal layout, keep the best, and say why the rest was rejected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.columns import cell_text
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import CP_KINDS, RECOMPUTES, SCHEDULES
from gpucalc.estimate.training import estimate_training, least_step_time
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.layouts.axes import decided_axes
from gpucalc.layouts.label import Layout
from gpucalc.layouts.space import AUTOMATIC, BLOCK, COLUMNS, CUT, Space, block_columns, blocks, cuts, make_space, skip

OBJECTIVES = ("throughput", "mfu", "memory", "pareto")
MEMORY = "fits in memory"
SLOWER = "slower than the best by a lower bound (not costed)"
TIE = 0.03  # layouts nearer than this in step time are not told apart by the model


@dataclass
class PlanResult:
    """The ranked layouts of a job, and what became of the others."""

    job: dict[str, Any]
    candidates: int
    evaluated: int
    feasible: int
    seconds: float
    rejected: dict[str, int]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    nearest_miss: str | None = None


_Miss = tuple[float, dict[str, int]]  # memory over capacity of the layout that came nearest, and its integers


@dataclass
class _Best:
    """The best rows so far: layout columns beside step time (of risky ones a tie more) and memory fill."""

    columns: dict[str, np.ndarray]
    time: np.ndarray
    memory: np.ndarray


def plan(
    cells: Mapping[str, Any],
    context: Context,
    objective: str = "throughput",
    top: int = 10,
    progress: Callable[[int], None] | None = None,
) -> PlanResult:
    """Rank the layouts of a job; layout cells that are stated restrict the search.

    objective: throughput or mfu (fastest first), memory (least first), pareto (not beaten in both).
    Raises UsageError when the question itself is wrong.
    """
    started = time.perf_counter()
    if objective not in OBJECTIVES:
        raise UsageError(f"unknown objective {objective!r}; known: {', '.join(OBJECTIVES)}")
    asked = ask(cells, context)
    base, space = asked.base, asked.space
    best, evaluated, feasible, miss = _search(space, base, objective, top, progress)
    if objective == "pareto" and best is not None:
        best = _spread(best, top)
    rows = _rows(best, asked.question, asked.stated, context)
    rejected = {name: count for name, count in space.rejected.items() if count}
    if evaluated > feasible:
        rejected[MEMORY] = evaluated - feasible
    return PlanResult(
        job={name: base.cells[name] for name in base.cells if name not in decided_axes()} | _facts(base),
        candidates=space.candidates[0],
        evaluated=evaluated,
        feasible=feasible,
        seconds=time.perf_counter() - started,
        rejected=rejected,
        rows=rows,
        notes=[*asked.notes, *base.warnings],
        nearest_miss=None if feasible else _nearest_miss(miss, base, rejected),
    )


@dataclass(frozen=True)
class Asked:
    """A question before its search: what was stated, that without the layout, the job, and the space of layouts."""

    stated: dict[str, Any]
    question: dict[str, Any]
    base: jobs.Job
    space: Space
    notes: tuple[str, ...]


def ask(cells: Mapping[str, Any], context: Context) -> Asked:
    """Complete a question; a layout cell may hold a tuple of the values that the search may take.

    Raises UsageError when the question itself is wrong.
    """
    stated = {name: value for name, value in cells.items() if value is not None}
    notes: tuple[str, ...] = ()
    if "global_batch" not in stated:
        stated["global_batch"] = int(stated.get("n_gpus") or 1)
        notes = (f"global_batch is not stated; {stated['global_batch']} is taken",)
    question = {name: value for name, value in stated.items() if name not in decided_axes()}
    if "n_gpus" not in question:
        raise UsageError("n_gpus is not stated; how many GPUs does the cluster have?")
    neutral = {"dp": question["n_gpus"], "micro_batch": 1, "zero_stage": 1}
    base = jobs.resolve({**question, **neutral}, context)
    problems = _impossible(stated, base)
    if problems:
        raise UsageError(*problems)
    base.columns["recompute_layers"] = float(stated.get("recompute_layers", 0))
    space = _space(stated, base)
    return Asked(stated, question, base, space, notes)


def _impossible(stated: Mapping[str, Any], base: jobs.Job) -> list[str]:
    """Stated sizes that no layout of the cluster and the model can have, each with the nearest that can."""
    n, heads, layers = base.cluster.n_gpus, base.model.heads, int(base.columns["layers"])
    problems = []
    for name in ("tp", "pp", "cp", "dp"):
        value = stated.get(name)
        if not isinstance(value, int):
            continue
        if n % value:
            problems.append(
                f"{name}={value} does not divide the {n} GPUs; {name}={jobs.largest_divisor(n, value)} does"
            )
        elif name == "tp" and heads and heads % value:
            near = jobs.largest_divisor(heads, value)
            problems.append(f"tp={value} does not divide the {heads} heads; tp={near} does")
        elif name == "pp" and value > layers:
            problems.append(f"pp={value} is more stages than the {layers} layers")
    return problems


def _facts(base: jobs.Job) -> dict[str, Any]:
    """What a reader doubts first: the peak, the FLOP convention, the network rate."""
    c = base.columns
    return {
        "profile": base.profile.name,
        "peak_flops_dense": c["peak"],
        "flop_convention": "causal attention" if c["causal_flops"] else "full attention",
        "network_gbps_per_gpu": base.cluster.network_bandwidth_per_gpu * 8 / 1e9,
        "network_basis": base.cluster.network_basis,
        "parameters_total": base.model.parameters_total,
    }


def _space(stated: Mapping[str, Any], base: jobs.Job) -> Space:
    c = base.columns
    selective = not c["flash"] or c["selective_kept"] < 1
    sizes = {**stated, "n_gpus": base.cluster.n_gpus, "seq_len": base.cells["seq_len"]}
    space = make_space(sizes, int(c["layers"]), base.model.heads, base.model.experts, base.cluster.domain, selective)
    chosen = base.context.profile or stated.get("framework")
    offered = base.profile.defaults.get("schedules")
    if chosen and offered:
        space = Space(**{**vars(space), "allowed_schedules": frozenset(offered)})
    return space


def _search(
    space: Space, base: jobs.Job, objective: str, top: int, progress: Callable[[int], None] | None
) -> tuple[_Best | None, int, int, _Miss | None]:
    best: _Best | None = None
    evaluated = feasible = 0
    miss: _Miss | None = None
    order = cuts(space)
    bounds = _bounds(order, base, space) if objective in {"throughput", "mfu"} else None
    if bounds is not None:
        places = np.argsort(bounds, kind="stable")
        order, bounds = order[places], bounds[places]
    reached = len(order)

    def go_on(place: int) -> bool:
        nonlocal reached
        if best is None or bounds is None or len(best.time) < top or bounds[place] <= best.time[-1]:
            return True
        reached = place
        return False

    for block in blocks(space, order, go_on):
        rows = len(block["tp"])
        ledger = estimate_training(block_columns(base.columns, block))
        step, fill, share = (
            np.broadcast_to(ledger[path], (rows,)) for path in ("time/step", "memory/fill", "symbol/full_share")
        )
        # A partial recomputation of no or all layers is one of the other alternatives again.
        same = (block["recompute"] == AUTOMATIC) & ((share <= 0) | (share >= 1))
        fits = (fill <= 1.0) & ~same
        evaluated += rows - int(np.count_nonzero(same))
        feasible += int(np.count_nonzero(fits))
        if fits.any():
            best = _merge(best, block, step, fill, fits, objective, top)
        elif best is None:
            index = int(np.argmin(fill))
            if miss is None or fill[index] < miss[0]:
                miss = (float(fill[index]), {n: int(block[n][index]) for n in COLUMNS})
        ledger.entries.clear()  # terms and scopes point at each other, and would wait for the garbage collector
        if progress is not None:
            progress(evaluated)
    if reached < len(order):
        space.rejected[SLOWER] = skip(space, order[reached:])
    return best, evaluated, feasible, miss


def _bounds(order: np.ndarray, base: jobs.Job, space: Space) -> np.ndarray:
    """For each cut the least step time that any layout around it can reach."""
    kinds = [CP_KINDS.index(kind) for kind in space.levels["cp_kind"]]
    least = np.full(len(order), np.inf)
    size = max(1, BLOCK // len(kinds))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        block = {name: np.tile(part[:, i], len(kinds)) for i, name in enumerate(CUT)}
        block["cp_kind"] = np.repeat(kinds, len(part))
        times = np.broadcast_to(least_step_time(block_columns(base.columns, block)), (len(block["cp_kind"]),))
        least[start : start + size] = times.reshape(len(kinds), len(part)).min(axis=0)
    return least


def _merge(
    best: _Best | None,
    block: dict[str, np.ndarray],
    step: np.ndarray,
    fill: np.ndarray,
    fits: np.ndarray,
    objective: str,
    top: int,
) -> _Best:
    """The best of what was known and the fitting rows of a block, in a stable order."""
    chosen = np.flatnonzero(fits)
    if objective != "pareto" and len(chosen) > 4 * top:
        key = (
            fill[chosen]
            if objective == "memory"
            else step[chosen] * np.where(fill[chosen] > jobs.RISKY_FILL, 1 + TIE, 1.0)
        )
        limit = np.partition(key, top - 1)[top - 1]
        chosen = chosen[key <= limit]
    columns = {name: block[name][chosen] for name in COLUMNS}
    # A layout that may run out of memory must be faster by more than a tie to come before one that fits.
    time_, memory = step[chosen] * np.where(fill[chosen] > jobs.RISKY_FILL, 1 + TIE, 1.0), fill[chosen]
    if best is not None:
        columns = {name: np.concatenate([best.columns[name], columns[name]]) for name in COLUMNS}
        time_, memory = np.concatenate([best.time, time_]), np.concatenate([best.memory, memory])
    first, second = (memory, time_) if objective == "memory" else (time_, memory)
    order = np.lexsort((*(columns[name] for name in reversed(COLUMNS)), second, first))
    if objective == "pareto":
        running = np.minimum.accumulate(memory[order])
        front = np.concatenate([[True], memory[order][1:] < running[:-1]])
        order = order[front]
    else:
        order = order[:top]
    return _Best({name: columns[name][order] for name in COLUMNS}, time_[order], memory[order])


def _spread(front: _Best, top: int) -> _Best:
    """At most `top` layouts of a front, its ends among them, the others evenly between."""
    places = np.unique(np.linspace(0, len(front.time) - 1, max(top, 1)).round().astype(int))
    return _Best(
        {name: column[places] for name, column in front.columns.items()}, front.time[places], front.memory[places]
    )


def layout_cells(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Row cells of one candidate's integers."""
    c = {name: int(columns[name]) for name in COLUMNS}
    cells: dict[str, Any] = {n: c[n] for n in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "micro_batch", "zero_stage")}
    cells["sequence_parallel"] = bool(c["sequence_parallel"])
    cells["schedule"] = SCHEDULES[c["schedule"]]
    cells["cp_kind"] = CP_KINDS[c["cp_kind"]]
    if c["shard_group"]:
        cells["shard_group"] = c["shard_group"]
    if c["recompute"] != AUTOMATIC:
        cells["recompute"] = RECOMPUTES[c["recompute"]]
    return cells


def _rows(
    best: _Best | None, question: Mapping[str, Any], stated: Mapping[str, Any], context: Context
) -> list[dict[str, Any]]:
    """The ranked rows, evaluated again from their cells: what `explain` and `eval` will say of them."""
    if best is None:
        return []
    fixed = {n: stated[n] for n in ("offload_optimizer", "offload_activations", "recompute_layers") if n in stated}
    chosen = [
        {**question, **fixed, **layout_cells({n: best.columns[n][i] for n in COLUMNS})} for i in range(len(best.time))
    ]
    resolved = [jobs.resolve(cells, context) for cells in chosen]
    predicted = jobs.predict(resolved)
    rows = []
    for cells, row, one in zip(chosen, predicted, resolved, strict=True):
        recompute, _, layers = str(row["pred_recompute"]).partition(":")
        cells["recompute"] = recompute
        if layers:
            cells["recompute_layers"] = int(layers)
        label = layout_label(cells, one.model.experts)
        network = one.cluster.network_bandwidth_per_gpu * 8 / 1e9
        known = {"seq_len": one.cells["seq_len"], "precision": one.cells["precision"]}
        known |= {"gpus_per_node": one.cluster.gpus_per_node, "inter_node_gbps_per_gpu": network}
        rows.append({"layout": label, **known, **cells, **row})
    return rows


def layout_label(cells: Mapping[str, Any], experts: int) -> str:
    """The label of a layout's cells, which shows etp only where there are experts."""
    return Layout.from_cells(cells if experts else {**cells, "etp": 1}).label()


def _nearest_miss(miss: _Miss | None, base: jobs.Job, rejected: Mapping[str, int]) -> str:
    if miss is None:
        worst = max(rejected, key=lambda name: rejected[name], default="")
        return f"no legal layout: every combination breaks a constraint, most often {worst!r}"
    fill, columns = miss
    block = {name: np.array([value]) for name, value in columns.items()}
    ledger = estimate_training(block_columns(base.columns, block), detail=True)

    def at(path: str) -> float:
        return float(np.asarray(ledger[path], dtype=float).ravel()[0])

    parts = {
        name: at(f"memory/{name}") for name in ("weights", "gradients", "optimizer", "activations", "working", "logits")
    }
    largest = max(parts, key=lambda name: parts[name])
    over = (fill - 1) * at("memory/capacity")
    label = layout_label(layout_cells(columns), base.model.experts)
    return (
        f"nearest miss: {label} needs {over / 2**30:.1f} GiB more than the "
        f"{at('memory/capacity') / 2**30:.1f} GiB that fit; its largest term is {largest} "
        f"({parts[largest] / 2**30:.1f} GiB)"
    )


def row_text(row: Mapping[str, Any]) -> dict[str, str]:
    """A plan row as the text cells of a row file."""
    return {name: cell_text(value) for name, value in row.items()}
