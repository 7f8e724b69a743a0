"""Deployments of two sides for a search: each side's layouts, and how many workers of each keep both sides busy.

A worker that prefills is worth its prompts per second and the time of one; of those of one size only the best in
either are tried. The number of workers follows from the rates: as many prompts are computed as decoding takes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.jobs.serving import resolve_serving, stack_serving
from gpucalc.jobs.serving_rules import worker_rules
from gpucalc.questions.serve_layouts import LARGEST_TP, LAYOUT, divisors

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.jobs.serving import ServingJob

LOADS = (1.0, 0.25)  # of a full cache, for which the sides are matched


@dataclass(frozen=True)
class Worker:
    """One layout of a worker, with what it does when it only prefills and when it only decodes."""

    cells: dict[str, int]
    gpus: int
    prompts: float  # per second
    prompt_seconds: float
    finished: tuple[float, ...]  # requests per second at each of LOADS


def matched(cells: Mapping[str, Any], probe: ServingJob, context: Context, gpus: int) -> Iterator[dict[str, int]]:
    """Cells of both sides, over all pairs of layouts, whose GPUs sum to `gpus`."""
    workers = _workers(cells, probe, context, gpus)
    best: dict[tuple[int, str], Worker] = {}
    for one in workers:
        for name, better in (("rate", -one.prompts), ("time", one.prompt_seconds)):
            kept = best.get((one.gpus, name))
            if kept is None or better < {"rate": -kept.prompts, "time": kept.prompt_seconds}[name]:
                best[one.gpus, name] = one
    prefill = list({id(one): one for one in best.values()}.values())
    seen: set[tuple[int, ...]] = set()
    for first in prefill:
        for second in workers:
            for counts in _counts(first, second, gpus):
                found = {
                    f"{side}_{name}": size
                    for side, one, count in zip(("prefill", "decode"), (first, second), counts, strict=True)
                    for name, size in {**one.cells, "workers": count}.items()
                }
                if tuple(found.values()) not in seen:
                    seen.add(tuple(found.values()))
                    yield found


def _counts(first: Worker, second: Worker, gpus: int) -> set[tuple[int, int]]:
    """Numbers of workers that take all GPUs, those whose rates are nearest each other for each load."""
    whole = [(x, (gpus - x * first.gpus) // second.gpus) for x in range(1, gpus // first.gpus + 1)]
    whole = [(x, y) for x, y in whole if y >= 1 and x * first.gpus + y * second.gpus == gpus]
    found: set[tuple[int, int]] = set()
    for finished in second.finished:
        if whole:
            found.add(max(whole, key=lambda pair: (min(pair[0] * first.prompts, pair[1] * finished), -pair[0])))
    return found


def _workers(cells: Mapping[str, Any], probe: ServingJob, context: Context, gpus: int) -> list[Worker]:
    """Every legal layout of a worker that holds the weights and a sequence."""
    import numpy as np

    from gpucalc.core.ledger import Columns
    from gpucalc.estimate.serving import estimate_at_concurrency
    from gpucalc.estimate.serving_prefill import prefill_side

    base = {n: v for n, v in cells.items() if n not in {*LAYOUT, "n_gpus", "concurrency", "rate"}}
    layouts, jobs = [], []
    mixture = probe.model.is_moe
    for tp in divisors(gpus, min(LARGEST_TP, gpus - 1)):
        for share in divisors(gpus // tp, gpus) if mixture else [1]:
            size = tp * share
            for ep in sorted({1, size}) if mixture else [1]:
                if size >= gpus or worker_rules(tp, 1, share, ep, probe.model):
                    continue
                layouts.append({"tp": tp, "attention_dp": share, "ep": ep})
                own = {"tp": tp, "pp": 1, "dp": share, "attention_dp": share, "ep": ep, "n_gpus": size}
                jobs.append(resolve_serving({**base, **own}, context))
    if not jobs:
        return []
    columns = dict(stack_serving(jobs))
    columns["prefill_workers"] = np.ones(len(jobs)) if len(jobs) > 1 else 1.0
    alone = prefill_side(Columns(columns))
    columns |= {"prefill_workers": 0.0 * columns["prefill_workers"], "fills": 0.0 * columns["fills"]}
    full = estimate_at_concurrency(Columns({**columns, "concurrency": 1e9 * columns["dp"]}))
    limit, holds = full["memory/batch-limit"], np.broadcast_to(full["memory/sequences"] >= 1, (len(jobs),))

    def finished(load: float) -> Any:
        requests = np.maximum(limit * load, 1.0)
        found = estimate_at_concurrency(Columns({**columns, "concurrency": requests * columns["dp"]}))
        return np.broadcast_to(requests * columns["dp"] / (found["time/step"] * columns["osl"]), (len(jobs),))

    rates = [finished(load) for load in LOADS]
    prompts, seconds = (np.broadcast_to(alone[path], (len(jobs),)) for path in ("metric/rate", "time/prompt"))
    return [
        Worker(
            layout,
            layout["tp"] * layout["attention_dp"],
            float(prompts[i]),
            float(seconds[i]),
            tuple(float(rate[i]) for rate in rates),
        )
        for i, layout in enumerate(layouts)
        if holds[i]
    ]
