"""The planner: evaluate every legal layout, keep the best, and say why the rest was rejected."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.columns import cell_text, parse_row
from gpucalc.core.errors import UsageError
from gpucalc.core.rows import text_record
from gpucalc.core.units import GIB, GIGABIT
from gpucalc.database.profiles import Profile
from gpucalc.estimate.training import estimate_training, least_step_time
from gpucalc.jobs import training as jobs
from gpucalc.jobs.completion import largest_divisor, layout_sizes, offered_schedules
from gpucalc.jobs.context import Context
from gpucalc.layouts import rules, verdicts
from gpucalc.layouts.axes import AUTOMATIC, AXES, CUT, LAYER, decided_axes, degree_axes, searched_axes
from gpucalc.layouts.label import layout_label
from gpucalc.layouts.schedules import default_schedule
from gpucalc.layouts.space import BLOCK, Space, block_columns, blocks, cut_axes, cuts, make_space, skip
from gpucalc.questions.crossings import crossing_note

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
    network: str = ""  # which groups of the first layout cross which tier, and what that costs


_Miss = tuple[float, dict[str, int]]  # memory over capacity of the layout that came nearest, and its integers


@dataclass
class _Best:
    """The best rows so far, those that fit before risky ones: layout columns, step time, memory and its fill."""

    columns: dict[str, np.ndarray]
    time: np.ndarray
    memory: np.ndarray  # bytes, as printed: what lies outside the allocator counts in `fill` alone
    fill: np.ndarray

    def beats(self, bound: float, top: int) -> bool:
        """Whether no layout that takes at least `bound` can come among the best."""
        return len(self.time) >= top and bool(self.time[-1] < bound) and jobs.fit_of(self.fill[-1]) == "fits"


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
        network=_network(rows, context),
    )


def _network(rows: Sequence[Mapping[str, Any]], context: Context) -> str:
    """What the network is to the first layout; "" without one."""
    return crossing_note(jobs.resolve(parse_row(text_record(rows[0]))[0], context)) if rows else ""


@dataclass(frozen=True)
class Question:
    """A question before its search: what was stated, that without the layout, the job, and the space of layouts."""

    stated: dict[str, Any]
    question: dict[str, Any]
    base: jobs.Job
    space: Space
    notes: tuple[str, ...]


def ask(cells: Mapping[str, Any], context: Context) -> Question:
    """Complete a question; a layout cell may hold a tuple of the values that the search may take.

    None in such a tuple is the default of the axis: the profile's, or what follows from the others.

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
    space = _space(with_defaults(stated, base.profile), base)
    return Question(stated, question, base, space, notes)


def with_defaults(stated: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Layout cells of a search in which None, as the one value of an axis, is replaced by what it means."""
    found = dict(stated)
    for name in ("zero_stage", "sequence_parallel"):
        if found.get(name) == (None,):
            found[name] = profile.defaults[name]
    if found.get("schedule") == (None,):
        chunks = found.get("vpp", (1, 2))  # not stated: with chunks and without
        several = chunks if isinstance(chunks, tuple) else (chunks,)
        found["schedule"] = tuple(dict.fromkeys(default_schedule(2, vpp) for vpp in several))
    return found


def _impossible(stated: Mapping[str, Any], base: jobs.Job) -> list[str]:
    """Stated sizes that no layout of the cluster and the model can have, each with the nearest that can."""
    n = base.cluster.n_gpus
    problems = []
    for name in degree_axes():
        value = stated.get(name)
        if isinstance(value, int) and n % value:
            near = largest_divisor(n, value)
            problems.append(f"{name}={value} does not divide the {n} GPUs; {name}={near} does")
    single = {name: value for name, value in stated.items() if name in AXES and not isinstance(value, tuple)}
    full = {**{name: 1 for name in degree_axes()}, "ep": 1, "etp": 1, "vpp": 1, "micro_batch": 1, **single}
    full.setdefault("schedule", "none")
    if "dp" not in single:
        full["dp"] = max(1, n // math.prod(full[name] for name in degree_axes()))
    sizes = layout_sizes(base.cells, base.model, base.cluster)
    c = rules.facts({**base.cells, **full}, sizes)
    for rule in rules.rules():
        axes = rules.axes_read(rule)
        told = any(text.startswith(f"{name}=") for name in axes for text in problems)
        if rule.refuses and not told and axes <= set(single) and not rule.holds(c):
            problems.append(verdicts.with_hint(rule, c))
    return problems


def _facts(base: jobs.Job) -> dict[str, Any]:
    """What a reader doubts first: the peak, the FLOP convention, the network rate."""
    c = base.columns
    return {
        "profile": base.profile.name,
        "peak_flops_dense": c["peak"],
        "flop_convention": "causal attention" if c["causal_flops"] else "full attention",
        "network_gbps_per_gpu": base.cluster.network_bandwidth_per_gpu / GIGABIT,
        "network_basis": base.cluster.network_basis,
        "parameters_total": base.model.parameters_total,
    }


def _space(stated: Mapping[str, Any], base: jobs.Job) -> Space:
    c = base.columns
    selective = not c["flash"] or c["selective_kept"] < 1
    sizes = {**stated, "n_gpus": base.cluster.n_gpus, "seq_len": base.cells["seq_len"]}
    space = make_space(sizes, int(c["layers"]), base.model.heads, base.model.experts, base.cluster.domain, selective)
    offered = offered_schedules(base.profile if base.context.profile or stated.get("framework") else None)
    return space if offered is None else dataclasses.replace(space, offered=np.array(offered))


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
        if best is None or bounds is None or not best.beats(bounds[place], top):
            return True
        reached = place
        return False

    for block in blocks(space, order, go_on):
        rows = len(block["tp"])
        ledger = estimate_training(block_columns(base.columns, block))
        step, memory, fill, share = (
            np.broadcast_to(ledger[path], (rows,))
            for path in ("time/step", "memory/total", "memory/fill", "symbol/full_share")
        )
        # A partial recomputation of no or all layers is one of the other alternatives again.
        same = duplicates(space, block["recompute"], share)
        fits = jobs.may_fit(fill) & ~same
        evaluated += rows - int(np.count_nonzero(same))
        feasible += int(np.count_nonzero(fits))
        if fits.any():
            best = _merge(best, block, step, memory, fill, fits, objective, top)
        elif best is None:
            index = int(np.argmin(fill))
            if miss is None or fill[index] < miss[0]:
                miss = (float(fill[index]), {n: int(block[n][index]) for n in searched_axes()})
        ledger.entries.clear()  # terms and scopes point at each other, and would wait for the garbage collector
        if progress is not None:
            progress(evaluated)
    if reached < len(order):
        space.rejected[SLOWER] = skip(space, order[reached:])
    return best, evaluated, feasible, miss


def _bounds(order: np.ndarray, base: jobs.Job, space: Space) -> np.ndarray:
    """For each cut the least step time that any layout around it can reach."""
    inner = [name for name in searched_axes() if LAYER in AXES[name].decides and AXES[name].scope != CUT]
    kinds = np.array(list(itertools.product(*(space.levels[name] for name in inner))), dtype=np.int64)
    least = np.full(len(order), np.inf)
    size = max(1, BLOCK // len(kinds))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        block = {name: np.tile(part[:, i], len(kinds)) for i, name in enumerate(cut_axes())}
        block |= {name: np.repeat(kinds[:, i], len(part)) for i, name in enumerate(inner)}
        times = np.broadcast_to(least_step_time(block_columns(base.columns, block)), (len(kinds) * len(part),))
        least[start : start + size] = times.reshape(len(kinds), len(part)).min(axis=0)
    return least


def duplicates(space: Space, recompute: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Rows of automatic recomputation that recompute no or all layers, where the search lists that layout itself."""
    none, full = (AXES["recompute"].code(kind) in space.levels["recompute"] for kind in ("none", "full"))
    return (recompute == AUTOMATIC) & (((share <= 0) & none) | ((share >= 1) & full))


def _merge(
    best: _Best | None,
    block: dict[str, np.ndarray],
    step: np.ndarray,
    memory: np.ndarray,
    fill: np.ndarray,
    fits: np.ndarray,
    objective: str,
    top: int,
) -> _Best:
    """The best of what was known and the fitting rows of a block, in a stable order."""
    chosen = np.flatnonzero(fits)
    if objective != "pareto" and len(chosen) > 4 * top:
        # Risky ones behind all that fit: their times moved beyond the longest.
        key = memory[chosen] if objective == "memory" else step[chosen]
        key = key + jobs.fit_code(fill[chosen]) * (1.0 + key.max())
        limit = np.partition(key, top - 1)[top - 1]
        chosen = chosen[key <= limit]
    columns = {name: block[name][chosen] for name in searched_axes()}
    time_, bytes_, filled = step[chosen], memory[chosen], fill[chosen]
    if best is not None:
        columns = {name: np.concatenate([best.columns[name], columns[name]]) for name in searched_axes()}
        time_, bytes_ = np.concatenate([best.time, time_]), np.concatenate([best.memory, bytes_])
        filled = np.concatenate([best.fill, filled])
    first, second = (bytes_, time_) if objective == "memory" else (time_, bytes_)
    ranks = (second, first) if objective == "pareto" else (second, first, jobs.fit_code(filled))
    order = np.lexsort((*(columns[name] for name in reversed(searched_axes())), *ranks))
    if objective == "pareto":
        running = np.minimum.accumulate(bytes_[order])
        front = np.concatenate([[True], bytes_[order][1:] < running[:-1]])
        order = order[front]
    else:
        order = order[:top]
    columns = {name: columns[name][order] for name in searched_axes()}
    return _Best(columns, time_[order], bytes_[order], filled[order])


def _spread(front: _Best, top: int) -> _Best:
    """At most `top` layouts of a front, its ends among them, the others evenly between."""
    places = np.unique(np.linspace(0, len(front.time) - 1, max(top, 1)).round().astype(int))
    return _Best(
        {name: column[places] for name, column in front.columns.items()},
        front.time[places],
        front.memory[places],
        front.fill[places],
    )


def layout_cells(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Row cells of one candidate's integers."""
    cells = {name: AXES[name].cell(int(columns[name])) for name in searched_axes()}
    return {name: cell for name, cell in cells.items() if cell is not None}


def _rows(
    best: _Best | None, question: Mapping[str, Any], stated: Mapping[str, Any], context: Context
) -> list[dict[str, Any]]:
    """The ranked rows, evaluated again from their cells: what `explain` and `eval` will say of them."""
    if best is None:
        return []
    fixed = {n: stated[n] for n, axis in AXES.items() if n in stated and not axis.scope}
    layouts = [layout_cells({n: best.columns[n][i] for n in searched_axes()}) for i in range(len(best.time))]
    chosen = [{**question, **fixed, **layout} for layout in layouts]
    resolved = [jobs.resolve(cells, context) for cells in chosen]
    predicted = jobs.predict(resolved)
    rows = []
    for cells, row, one in zip(chosen, predicted, resolved, strict=True):
        recompute, _, layers = str(row["pred_recompute"]).partition(":")
        cells["recompute"] = recompute
        if layers:
            cells["recompute_layers"] = int(layers)
        label = layout_label(cells, one.model.experts)
        network = one.cluster.network_bandwidth_per_gpu / GIGABIT
        known = {"seq_len": one.cells["seq_len"], "precision": one.cells["precision"]}
        known |= {"gpus_per_node": one.cluster.gpus_per_node, "inter_node_gbps_per_gpu": network}
        rows.append({"layout": label, **known, **cells, **row})
    return rows


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
        f"nearest miss: {label} needs {over / GIB:.1f} GiB more than the "
        f"{at('memory/capacity') / GIB:.1f} GiB that fit; its largest term is {largest} "
        f"({parts[largest] / GIB:.1f} GiB)"
    )


def row_text(row: Mapping[str, Any]) -> dict[str, str]:
    """A plan row as the text cells of a row file."""
    return {name: cell_text(value) for name, value in row.items()}
