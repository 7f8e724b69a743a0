"""Published figures of science codes, render farms and unequal GPUs beside what is predicted for them.

A share that is a median of rows predicts each of them from the others of its family (left out one by one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.reader import Database
from gpucalc.estimate.farm import Farm, Score, estimate_farm
from gpucalc.formulas import hpc, mixed
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.questions import hpc as codes
from gpucalc.questions.farm import has_ray_tracing
from gpucalc.validate.metrics import errors_of, quantile
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import shipped_rows

# kind → columns that may be grouped by.
KINDS = {"hpc": ("family",), "render": ("family",), "hetero": ("family",)}
TABLES = {kind: f"cluster/{kind}" for kind in KINDS}
LIMIT = 0.12
RPEAK_RANGE = (0.7, 1.35)  # of the listed peak over ours: outside it the count of GPUs is not what it says
LBM_BYTES = {"FP32/FP32": "lbm", "FP32/FP16S": "lbm-fp16"}
LEAST_ROWS = 4  # a family with fewer rows has a figure but no target
MAKESPANS = tuple((m, k, c) for c in (0.1, 0.3, 0.6, 1.0) for m in (4, 50, 200) for k in (3, 5, 10, 30))
RUNS = 60
FRAMES_DRAWN = 60_000
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
        "by_group": [_line(name, [r for r in found if r["family"] == name]) for name in families],
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


def _line(group: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    found = errors_of(r["ratio"] for r in rows)
    return {
        "group": group,
        "rows": len(rows),
        "unpredicted": len(rows) - found.rows,
        "median_pct": percent(found.median),
        "p90_pct": percent(found.p90),
        "bias_pct": percent(found.bias),
    }


def _row(what: str, family: str, measured: float, predicted: float | None, why: str = "") -> dict[str, Any]:
    ratio = None if predicted is None else predicted / measured
    return {"what": what, "family": family, "measured": measured, "ratio": ratio, "why": why}


def _target(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    found = errors_of(r["ratio"] for r in rows).median
    return {
        "target": name,
        "sense": "at most",
        "limit_left_out_pct": 100 * limit,
        "left_out_pct": percent(found),
        "missed": "left_out" if found is not None and found > limit else "",
    }


def _number(row: Mapping[str, str], name: str) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e18:
        raise DataError(f"{name} is {text!r}, expected a number above 0")
    return value


def _others(values: Sequence[float], place: int) -> float | None:
    rest = [v for i, v in enumerate(values) if i != place]
    return quantile(rest, 0.5) if rest else None


# ---------------------------------------------------------------- science codes


def _hpc(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    found = [*_listed(rows), *_lattice(rows, db), *_several(rows), *_grind(rows, db), *_strong(rows)]
    if not found:
        raise UsageError("no row is of a benchmark that is known: HPL, FluidX3D, MFC, GROMACS, Amber, LAMMPS")
    targets = []
    for family in dict.fromkeys(r["family"] for r in found):
        of = [r for r in found if r["family"] == family and r["ratio"] is not None]
        judged = family.startswith(("HPL", "HPCG")) or family.startswith("LBM NVIDIA")
        if judged and len(of) >= LEAST_ROWS:
            targets.append(_target(family, LIMIT, of))
    return found, targets


def consistent(row: Mapping[str, str]) -> bool:
    """Whether a listed system's peak agrees with its count of GPUs, so that a rate per GPU means something."""
    if "not an integer" in row.get("notes", ""):
        return False
    ratio = _number(row, "rpeak_TF") / (_number(row, "device_fp64_TFs") * _number(row, "n_gpus"))
    return RPEAK_RANGE[0] <= ratio <= RPEAK_RANGE[1]


def _listed(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """HPL and HPCG of listed systems, from the shares of the other systems of their family."""
    listed = [r for r in rows if r.get("bench", "").startswith("HPL")]
    found = []
    for family in dict.fromkeys(r["family"] for r in listed):
        own = [r for r in listed if r["family"] == family and consistent(r)]
        peak = [_number(r, "device_fp64_TFs") * 1e12 for r in own]
        count = [_number(r, "n_gpus") for r in own]
        rate = [_number(r, "value") * 1e12 for r in own]
        shares = [v / (p * n) for v, p, n in zip(rate, peak, count, strict=True)]
        for i, r in enumerate(own):
            share = _others(shares, i)
            predicted = None if share is None else float(hpc.hpl_rate(peak[i], count[i], share))
            found.append(_row(r["system"], f"HPL {family}", rate[i], predicted, "no other system of its family"))
        with_hpcg = [r for r in own if (r.get("hpcg_TF") or "").strip()]
        band = [_number(r, "device_bw_GBps") * 1e9 for r in with_hpcg]
        count = [_number(r, "n_gpus") for r in with_hpcg]
        rate = [_number(r, "hpcg_TF") * 1e12 for r in with_hpcg]
        shares = [v / (b * n) for v, b, n in zip(rate, band, count, strict=True)]
        for i, r in enumerate(with_hpcg):
            share = _others(shares, i)
            predicted = None if share is None else float(hpc.hpcg_rate(band[i], count[i], share))
            found.append(_row(r["system"], f"HPCG {family}", rate[i], predicted, "no other system of its family"))
    return found


def _lattice(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Lattice Boltzmann on one device, from the shares of the other devices of its maker."""
    known = codes.constants(db)["kernel"]
    found = []
    for suffix, name in LBM_BYTES.items():
        one = [
            r for r in rows if r.get("bench") == "FluidX3D" and r.get("n_gpus") == "1" and r["metric"].endswith(suffix)
        ]
        for maker in ("NVIDIA", "AMD", "Intel", "Apple"):
            own = [r for r in one if r["vendor"] == maker]
            traffic = known[name]["bytes"]
            rate = [_number(r, "value") * 1e6 for r in own]
            band = [_number(r, "device_bw_GBps") * 1e9 for r in own]
            shares = [v * traffic / b for v, b in zip(rate, band, strict=True)]
            for i, r in enumerate(own):
                share = _others(shares, i)
                predicted = None if share is None else 1 / float(hpc.kernel_memory_time(1.0, traffic, band[i], share))
                precision = suffix.partition("/")[2].removesuffix("S")
                found.append(_row(f"{r['gpu']} {suffix}", f"LBM {maker} {precision}", rate[i], predicted, "alone"))
    return found


def single_rates(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], float]:
    """(device, precision) → updates a second of one GPU in the lattice-Boltzmann tables."""
    found: dict[tuple[str, str], float] = {}
    for r in rows:
        if r.get("bench") == "FluidX3D" and r.get("n_gpus") == "1":
            name = r["gpu"].removeprefix("1x ").replace("GeForce ", "").replace("Data Center", "DC")
            found.setdefault((name, r["metric"].split()[-1]), _number(r, "value") * 1e6)
    return found


def _multiples(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, str, int, float, float]]:
    """Device, precision, GPUs, rate and share of the single rates, of rows of several equal GPUs."""
    one = single_rates(rows)
    found = []
    for r in rows:
        if r.get("bench") != "FluidX3D" or r.get("n_gpus") in {"", "1"} or "+" in r["gpu"]:
            continue
        name = re.sub(r"^\d+x ", "", r["gpu"]).replace("GeForce ", "")
        precision, n = r["metric"].split()[-1], int(_number(r, "n_gpus"))
        if (name, precision) in one:
            rate = _number(r, "value") * 1e6
            found.append((name, precision, n, rate, rate / (n * one[name, precision])))
    return found


def _several(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Lattice Boltzmann on several equal GPUs: the efficiency of the other devices at the same number of GPUs."""
    multiples = _multiples(rows)
    found = []
    for name, precision, n, rate, share in multiples:
        others = [x[4] for x in multiples if x[2] == n and x[0] != name]
        predicted = rate / share * quantile(others, 0.5) if others else None
        found.append(
            _row(f"{n} x {name} {precision}", "LBM, 2 to 32 GPUs through the host", rate, predicted, "no other")
        )
    return found


def _grind(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Grind times of a CFD code on devices of the database; its operations were fitted to them."""
    kernel = codes.kernel_named("cfd", codes.constants(db))
    keys = {"GH200": "gh200-96gb", "H100": "h100-sxm-80gb", "V100": "v100-sxm2-16gb", "L40S": "l40s-48gb"}
    found = []
    for r in rows:
        if r.get("metric") == "grind time" and r["gpu"] in keys:
            device = db.device(keys[r["gpu"]])
            peak = codes.device_peak(device, "fp64")
            share = kernel.bandwidth.get(device.vendor.casefold(), kernel.bandwidth["other"])
            compute = hpc.kernel_compute_time(1.0, kernel.flops, peak, kernel.compute)
            memory = hpc.kernel_memory_time(1.0, kernel.bytes, device.memory_bandwidth, share)
            predicted = float(np.maximum(compute, memory)) * 1e9
            found.append(_row(r["gpu"], "CFD FP64 (rows of the fit)", _number(r, "value"), predicted))
    return found


def _strong(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Strong scaling of molecular dynamics: each point but the first from a fit to the others."""
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for r in rows:
        if r.get("metric") == "throughput" and r.get("system") == "LUMI" and "2023" not in r["bench"]:
            curves.setdefault((r["bench"], r["problem"]), []).append((_number(r, "n_gpus"), _number(r, "value")))
    found = []
    for (bench, problem), points in curves.items():
        n, rate = np.array(sorted(points)).T
        for i in range(1, len(n)):
            rest = np.arange(len(n)) != i
            if rest.sum() >= 3:
                terms = fit_strong(n[rest], 1 / rate[rest])
                predicted = 1 / float(hpc.fitted_strong_time(n[i], *terms))
                found.append(_row(f"{bench} {problem} on {n[i]:.0f}", "MD strong scaling", float(rate[i]), predicted))
    return found


def fit_strong(n: np.ndarray, times: np.ndarray) -> tuple[float, float, float]:
    """Divided, serial and logarithmic times, none negative, with the least largest relative error.

    >>> import numpy as np
    >>> n = np.array([1.0, 2.0, 4.0, 8.0])
    >>> [round(x, 6) for x in fit_strong(n, 8 / n + 1)]
    [8.0, 1.0, 0.0]
    """
    matrix = np.stack([1 / n, np.ones_like(n), np.log2(n)], axis=1) / times[:, None]
    best: tuple[float, tuple[float, float, float]] = (np.inf, (0.0, 0.0, 0.0))
    for chosen in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        terms = np.zeros(3)
        terms[list(chosen)] = np.linalg.lstsq(matrix[:, list(chosen)], np.ones(len(n)), rcond=None)[0]
        error = float(np.abs(matrix @ terms - 1).max())
        if (terms >= -1e-12).all() and error < best[0] - 1e-9:
            best = (error, (float(terms[0]), float(terms[1]), float(terms[2])))
    return best[1]


# ---------------------------------------------------------------- render farms


def simulated_makespan(frames: int, workers: int, spread: float, runs: int, seed: int) -> float:
    """Mean makespan in mean frame times of lognormal frames that go to the next free machine, by simulation."""
    import heapq

    draw = np.random.default_rng(seed)
    sigma = float(np.sqrt(np.log1p(spread**2)))
    total = 0.0
    for _ in range(runs):
        free = [0.0] * workers
        for time in draw.lognormal(-(sigma**2) / 2, sigma, frames):
            heapq.heapreplace(free, free[0] + time)
        total += max(free)
    return float(total / runs)


def closed_makespan(frames: int, workers: int, spread: float) -> float:
    """The same in closed form."""
    score = Score(1.0, 1.0, 1.0, "")
    farm = Farm({"any": workers}, {"any": score}, float(frames), 1.0, 1.0, spread)
    return float(estimate_farm(farm)["farm/random"])


def _render(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    found = []
    for workers, each, spread in MAKESPANS:
        frames = workers * each
        runs = max(RUNS, FRAMES_DRAWN // frames)
        simulated = simulated_makespan(frames, workers, spread, runs, SEED)
        family = "makespan, spread up to 0.6" if spread <= 0.6 else "makespan, spread 1.0"
        what = f"{workers} machines, {each} frames each, spread {spread}"
        found.append(_row(what, family, simulated, closed_makespan(frames, workers, spread)))
    scored = [(r, db.device(r["device"])) for r in rows if r.get("kind") == "blender_open_data" and r.get("device")]
    cores = [(r, d) for r, d in scored if has_ray_tracing(d)]
    rates = [_number(r, "value") / (d.peak["fp32"] / 1e12) for r, d in cores]
    for i, (r, d) in enumerate(cores):
        rate = _others(rates, i)
        predicted = None if rate is None else rate * d.peak["fp32"] / 1e12
        found.append(_row(d.key, "score from FP32, device left out", _number(r, "value"), predicted))
    narrow = [r for r in found if r["family"] == "makespan, spread up to 0.6"]
    wide = [r for r in found if r["family"] == "makespan, spread 1.0"]
    return found, [_largest("makespan, spread up to 0.6", 0.03, narrow), _largest("makespan, spread 1.0", 0.08, wide)]


def _largest(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    found = max(abs(r["ratio"] - 1) for r in rows)
    line = _target(f"{name}: largest error against a simulation", limit, rows)
    return {**line, "left_out_pct": percent(found), "missed": "left_out" if found > limit else ""}


# ---------------------------------------------------------------- unequal GPUs and stages

# The source states neither precision, software nor sequence length: the usual ones, which leave the level open.
UNSTATED = {"precision": "bf16", "framework": "Megatron-DeepSpeed", "seq_len": 2048, "zero_stage": 0}
GH200 = "training on GH200, uneven stages"
SHAPES: dict[str, dict[str, Any]] = {
    "OPT-350M": {"model": "opt-350m"},
    "GPT-Neo-2.7B": {"layers": 32, "hidden": 2560, "heads": 20, "vocab": 50257, "ffn_hidden": 10240},
}


def _hetero(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    science = shipped("hpc")
    found = []
    for r in rows:
        if (r.get("measured_rate") or "").strip():
            found.append(_equal_split(r, science))
        elif (r.get("measured_s") or "").strip():
            found.append(_stages(r, db))
    return [*found, *_relative(found)], []


def _relative(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same steps with their common factor taken out: what is left is how well layouts are told apart."""
    own = [r for r in found if r["family"] == GH200 and r["ratio"] is not None]
    ratios = [r["ratio"] for r in own]
    rows = []
    for i, r in enumerate(own):
        level = _others(ratios, i)
        predicted = None if level is None else r["measured"] * r["ratio"] / level
        rows.append(_row(r["what"], f"{GH200}, common factor taken out", r["measured"], predicted))
    return rows


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
    family, measured = "equal parts on unequal GPUs (LBM)", _number(row, "measured_rate") * 1e6
    total = sum(counts.values())
    shares = [x[4] for x in _multiples(science) if x[2] == total and x[1] == "FP32/FP32"]
    if missing or not shares:
        why = f"no single rate of {', '.join(missing)}" if missing else f"no equal GPUs in the number of {total}"
        return _row(row["cluster"], family, measured, None, why)
    least = min(one[name, "FP32/FP32"] for name in counts)
    return _row(
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
    """A training step on stages of unequal length; what its source does not state is assumed alike for all rows."""
    family = GH200 if "GH200" in row["cluster"] else "training on unequal GPUs"
    measured, what = (
        _number(row, "measured_s"),
        f"{row['model']} {row['gpus']} tp{row['tp']}-pp{row['pp']}-dp{row['dp']}",
    )
    if "GH200" not in row["cluster"]:
        return _row(what, family, measured, None, "its GPUs (Titan RTX, RTX 2080, RTX 3090) are not in the database")
    cells: dict[str, Any] = {n: int(row[n]) for n in ("tp", "pp", "dp", "micro_batch", "global_batch")}
    cells |= {**UNSTATED, **SHAPES[row["model"]], "gpu": "gh200-96gb", "gpus_per_node": 4, "vpp": 1}
    cells |= {"n_gpus": cells["tp"] * cells["pp"] * cells["dp"], "flash_attention": "no"}
    cells["schedule"] = "1f1b" if cells["pp"] > 1 else "none"
    return _row(what, family, measured, float(jobs.predict([jobs.resolve(cells, Context(db))])[0]["pred_step_time_s"]))


_REPORTS: dict[str, Callable[[list[dict[str, str]], Database], tuple[list[dict[str, Any]], list[Line]]]] = {
    "hpc": _hpc,
    "render": _render,
    "hetero": _hetero,
}
