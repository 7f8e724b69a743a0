"""Published figures of science codes, render farms and unequal GPUs beside what is predicted for them.

A share that is a median of rows predicts each of them from the others of its family (left out one by one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.estimate.farm import Farm, Score, estimate_farm
from gpucalc.formulas import mixed
from gpucalc.jobs.context import Context
from gpucalc.validate.metrics import quantile
from gpucalc.validate.report import Line, percent
from gpucalc.validate.rows import compared, group_line, median_of_others, number, target
from gpucalc.validate.science import multiples, science_report, single_rates
from gpucalc.validate.serving import spearman
from gpucalc.validate.training import shipped_rows

# kind → columns that may be grouped by.
KINDS = {"hpc": ("family",), "render": ("family",), "hetero": ("family",)}
TABLES = {kind: f"cluster/{kind}" for kind in KINDS}
MAKESPANS = tuple((m, k, c) for c in (0.1, 0.3, 0.6, 1.0) for m in (4, 50, 200) for k in (3, 5, 10, 30))
RUNS = 60
FRAMES_DRAWN = 60_000
MOST_SORTED = 4  # machines
SEED = 20241


def shipped(kind: str) -> list[dict[str, str]]:
    """The published rows of a kind."""
    return shipped_rows(TABLES[kind])


def more_report(
    kind: str, records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10
) -> Line:
    """Errors of a kind by family, the rows farthest off, and the targets."""
    rows = [dict(r) for r in records]
    if not rows:
        raise UsageError(f"no rows of kind {kind}")
    found, targets = _REPORTS[kind](rows, db)
    predicted = [r for r in found if r["ratio"] is not None]
    families = list(dict.fromkeys(r["family"] for r in found))
    off = sorted(predicted, key=lambda r: -abs(r["ratio"] - 1))[:worst]
    return {
        "kind": kind,
        "rows": len(found),
        "by_group": [group_line(name, [r for r in found if r["family"] == name]) for name in families],
        "worst": [
            {
                "what": r["what"],
                "family": r["family"],
                "measured": r["measured"],
                "predicted": r["measured"] * r["ratio"],
                "error_pct": percent(r["ratio"] - 1),
            }
            for r in off
        ],
        "no_prediction": [
            {"what": r["what"], "family": r["family"], "pred_error": r["why"]} for r in found if r["ratio"] is None
        ],
        "targets": targets,
    }


# ---------------------------------------------------------------- render farms


def simulated_makespan(frames: int, workers: int, spread: float, runs: int, seed: int, *, sort: bool = False) -> float:
    """Mean makespan in mean frame times of lognormal frames that go to the next free machine, by simulation.

    `sort`: the longest first.
    """
    import heapq

    draw = np.random.default_rng(seed)
    sigma = float(np.sqrt(np.log1p(spread**2)))
    total = 0.0
    for _ in range(runs):
        free = [0.0] * workers
        times = draw.lognormal(-(sigma**2) / 2, sigma, frames)
        for time in np.sort(times)[::-1] if sort else times:
            heapq.heapreplace(free, free[0] + time)
        total += max(free)
    return float(total / runs)


def closed_makespan(frames: int, workers: int, spread: float, *, sort: bool = False) -> float:
    """The same in closed form."""
    score = Score(1.0, 1.0, 1.0, "")
    farm = Farm({"any": workers}, {"any": score}, float(frames), 1.0, 1.0, spread)
    return float(estimate_farm(farm)["farm/longest-first" if sort else "farm/random"])


def _render(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    own = [r for r in rows if not (r.get("kind") or "").strip()]
    if own:
        return _own_renders(own, db), []
    found = []
    for workers, each, spread in MAKESPANS:
        frames = workers * each
        for sort, order in ((False, ""), (True, ", longest first")):
            if sort and spread > 0.6 and workers > MOST_SORTED:
                continue  # the longest of thousands of such frames varies too much for a simulation of seconds
            runs = max(RUNS, (2 if sort else 1) * FRAMES_DRAWN // frames)
            simulated = simulated_makespan(frames, workers, spread, runs, SEED, sort=sort)
            what = f"{workers} machines, {each} frames each, spread {spread}"
            family = ("makespan, spread up to 0.6" if spread <= 0.6 else "makespan, spread 1.0") + order
            found.append(compared(what, family, simulated, closed_makespan(frames, workers, spread, sort=sort)))
    found += _scores(rows)
    targets = [
        _largest(name, limit, [r for r in found if r["family"] == name])
        for name, limit in (
            ("makespan, spread up to 0.6", 0.02),
            ("makespan, spread 1.0", 0.04),
            ("makespan, spread up to 0.6, longest first", 0.02),
            ("makespan, spread 1.0, longest first", 0.04),
        )
    ]
    return found, targets


def _own_renders(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Rows of a user: a makespan of a farm beside what `render` says, or the score of a device beside its own."""
    from gpucalc.questions.cluster_rows import evaluate_cluster
    from gpucalc.questions.farm import score_of, score_table

    found, table = [], score_table(db)
    for r in rows:
        what = (r.get("gpu") or r.get("device") or "").strip()
        if (r.get("makespan_days") or "").strip():
            [answer] = evaluate_cluster("render", [r], Context(db))
            days = None if answer["pred_error"] else float(answer["pred_makespan_days"])
            row = compared(what, "makespan of a farm", number(r, "makespan_days"), days, answer["pred_error"])
            if days is not None:
                low, high = answer["pred_makespan_low_days"], answer["pred_makespan_high_days"]
                row["inside"] = low <= row["measured"] <= high
            found.append(row)
        elif (r.get("value") or "").strip():
            try:
                score = score_of(db.device(what), table)
            except UsageError as error:
                found.append(compared(what, "score of a device", number(r, "value"), None, str(error)))
                continue
            row = compared(what, "score of a device", number(r, "value"), score.value)
            found.append({**row, "inside": score.low <= row["measured"] <= score.high})
    if not found:
        raise UsageError("no row states makespan_days of a farm (gpu, frames, frame_time_s), or value of a gpu")
    return found


def _scores(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Scores of devices from their FP32 peak and the median of the other parts of their generation."""
    scored = [r for r in rows if (r.get("generation") or "").strip() and (r.get("fp32_tflops") or "").strip()]
    found = []
    for generation in dict.fromkeys(r["generation"] for r in scored):
        own = [r for r in scored if r["generation"] == generation]
        rates = [number(r, "value") / number(r, "fp32_tflops") for r in own]
        for i, r in enumerate(own):
            rate = median_of_others(rates, i)
            predicted = None if rate is None else rate * number(r, "fp32_tflops")
            found.append(
                compared(r["subject"], f"score of {generation}, device left out", number(r, "value"), predicted)
            )
    return found


def _largest(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    found = max(abs(r["ratio"] - 1) for r in rows)
    line = target(f"{name}: largest error against a simulation", limit, rows)
    return {**line, "left_out_pct": percent(found), "missed": "left_out" if found > limit else ""}


# ---------------------------------------------------------------- unequal GPUs and stages

# The sources state neither precision nor software: the usual ones of their year, which leave the level open.
UNSTATED = {"precision": "fp16", "framework": "Megatron-DeepSpeed", "software_date": "2022-03", "zero_stage": 0}
UNSTATED |= {"flash_attention": "no", "grad_accum_dtype": "fp32"}
SHAPES: dict[str, dict[str, Any]] = {
    "OPT-350M": {"model": "opt-350m"},
    "GPT-Neo-2.7B": {"layers": 32, "hidden": 2560, "heads": 20, "vocab": 50257, "ffn_hidden": 10240},
    "GPT-2 24L h1024 (355M)": {"model": "gpt2-355m"},
}
CLUSTERS = (
    ("GH200", "stages of unequal length, GH200 (Sailor)"),
    ("MIT lab", "unequal GPUs, Titan RTX, RTX 2080, RTX 3090 (Sailor)"),
    ("16 T4", "stages of unequal length, T4 (AMP)"),
    ("P3.8xlarge", "unequal GPUs, V100 and T4 (AMP)"),
)
LEAST_ORDER = 0.6  # rank correlation of the layouts of one cluster


def _hetero(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    science = shipped("hpc")
    found = []
    for r in rows:
        if (r.get("measured_rate") or "").strip():
            found.append(_equal_split(r, science))
        elif (r.get("measured_s") or "").strip():
            found.append(_stages(r, db))
    return [*found, *_relative(found)], _orders(found)


def _relative(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same steps with the common factor of their cluster taken out: how well layouts are told apart."""
    rows = []
    for family in (name for _, name in CLUSTERS):
        own = [r for r in found if r["family"] == family and r["ratio"] is not None]
        ratios = [r["ratio"] for r in own]
        for i, r in enumerate(own):
            level = median_of_others(ratios, i)
            predicted = None if level is None else r["measured"] * r["ratio"] / level
            rows.append(compared(r["what"], f"{family}, common factor taken out", r["measured"], predicted))
    return rows


def _orders(found: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Rank correlation of measured and predicted steps of each cluster, and their mean; of pipelines alone too."""
    lines, means = [], []
    for what, of in (("layouts", found), ("pipelines", [r for r in found if r.get("stages", 1) > 1])):
        orders = []
        for family in (name for _, name in CLUSTERS):
            own = [r for r in of if r["family"] == family and r["ratio"] is not None]
            if len(own) >= 3:
                orders.append(spearman([r["measured"] for r in own], [r["measured"] * r["ratio"] for r in own]))
                lines.append(_order_line(f"order of {len(own)} {what}: {family}", orders[-1]))
        if orders:
            means.append(_order_line(f"order of {what}, mean of the clusters", float(np.mean(orders))))
    return [*lines, *means]


def _order_line(name: str, found: float) -> Line:
    return {
        "target": name,
        "sense": "at least",
        "limit_left_out_pct": 100 * LEAST_ORDER,
        "left_out_pct": 100 * found,
        "missed": "left_out" if found < LEAST_ORDER else "",
    }


def _equal_split(row: Mapping[str, str], science: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Equal parts on unequal GPUs: the slowest single rate, and the efficiency of equal GPUs at that number."""
    one = single_rates(science)
    counts: dict[str, int] = {}
    missing: list[str] = []
    for part in row["cluster"].split("+"):
        count, _, name = part.strip().partition("x ")
        name = name.strip()
        name = next((n for n, p in one if p == "FP32/FP32" and _bare(name) in n), name)
        counts[name] = counts.get(name, 0) + int(count)
        if (name, "FP32/FP32") not in one:
            missing.append(name)
    family, measured = "equal parts on unequal GPUs (LBM)", number(row, "measured_rate") * 1e6
    total = sum(counts.values())
    shares = [x[4] for x in multiples(science) if x[2] == total and x[1] == "FP32/FP32"]
    if missing or not shares:
        why = f"no single rate of {', '.join(missing)}" if missing else f"no equal GPUs in the number of {total}"
        return compared(row["cluster"], family, measured, None, why)
    least = min(one[name, "FP32/FP32"] for name in counts)
    return compared(
        row["cluster"], family, measured, float(mixed.equal_split_rate(least, float(total), quantile(shares, 0.5)))
    )


def _bare(name: str) -> str:
    return {
        "A100 40GB": "A100 SXM4 40GB",
        "P100 16GB": "Tesla P100",
        "A770 16GB": "Arc A770 LE",
        "2080 Ti": "RTX 2080 Ti",
    }.get(name, name)


def _stages(row: Mapping[str, str], db: Database) -> dict[str, Any]:
    """A training step on unequal stages or GPUs; what its source does not state is assumed alike for all rows."""
    from gpucalc.questions.mixed_cuts import mixed_step, read_cuts

    family = next((name for words, name in CLUSTERS if words in row["cluster"]), "training on unequal GPUs")
    what = f"{row['model']} {row['gpus']} tp{row['tp']}-pp{row['pp']}-dp{row['dp']}-mbs{row['micro_batch']}"
    measured = number(row, "measured_s")
    if row["model"] not in SHAPES:
        return compared(what, family, measured, None, f"the shape of {row['model']} is not known")
    cells: dict[str, Any] = {**UNSTATED, **SHAPES[row["model"]]}
    for name in ("micro_batch", "global_batch", "seq_len", "gpus_per_node"):
        if (row.get(name) or "").strip():
            cells[name] = int(number(row, name))
    if (row.get("inter_node_gbps_per_gpu") or "").strip():
        cells["inter_node_gbps_per_gpu"] = number(row, "inter_node_gbps_per_gpu")
    try:
        found = mixed_step(cells, read_cuts(row.get("stages") or "", db), Context(db))
    except UsageError as error:
        return compared(what, family, measured, None, str(error))
    return {**compared(what, family, measured, found.step_time), "stages": len(found.cuts.stages)}


_REPORTS: dict[str, Callable[[list[dict[str, str]], Database], tuple[list[dict[str, Any]], list[Line]]]] = {
    "hpc": science_report,
    "render": _render,
    "hetero": _hetero,
}
