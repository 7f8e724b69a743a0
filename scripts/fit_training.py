"""Fit the constants of the software profiles to measured training runs.

    python scripts/fit_training.py hardware_db/measurements/training.csv --folds 5 --loso --write

Fitted are the constants whose origin is "fitted" in hardware_db/profiles/*.toml, within the bounds of
fit_training_bounds.py: those of memory to peaks whose counter is stated, the rest to step times. The
objective is the mean over sources of the mean |log(predicted / measured)|, each row capped, plus a weak
pull towards priors so that what the data do not determine stays physical. --folds holds rows out at
random, --loso whole sources in turn; --write puts the values into the profiles and the predictions of
held-out rows, the bands and the fit's record into hardware_db/calibration. Deterministic.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import re
import shutil
import tempfile
import time
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fit_training_bounds import BOUNDS, MEMORY, bounds, stated

from gpucalc.core.ledger import Columns
from gpucalc.core.rows import read_rows, text_record
from gpucalc.database import files
from gpucalc.database.bands import ASSUMED_KERNELS, QUANTITIES, TIME, Residual, coverage, family_of, fitted_rule
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs.columns import HGX_DOMAIN
from gpucalc.jobs.context import Context
from gpucalc.jobs.software import software_columns
from gpucalc.jobs.training import stack
from gpucalc.validate.metrics import MINIMUM_ROWS, quantile
from gpucalc.validate.training import Checked, check_rows

CAP = math.log(2)  # an error beyond a factor of two counts as one: such a row has another cause
SOFTEN = 0.02  # errors below 2 % are as good as equal
PULL = 5e-3  # weight of one squared log-deviation from the prior, or from the profile that is extended
BLOCK = 8_192
WARM_ROUNDS = 6  # of Gauss-Newton in fits with rows held out


@dataclass(frozen=True)
class Parameter:
    """One fitted constant: the file that states it, and the rows whose profile takes it from there."""

    profile: str
    constant: str
    value: float
    low: float
    prior: float
    high: float
    rows: np.ndarray
    parents: tuple[str, ...]

    @property
    def name(self) -> str:
        """Profile and constant."""
        return f"{self.profile}.{self.constant}"


def chains(folder: Path) -> dict[str, list[str]]:
    """Profile → itself and what it extends, nearest first."""
    raw = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    found = {}
    for name in raw:
        chain = [name]
        while "extends" in raw[chain[-1]]:
            chain.append(raw[chain[-1]]["extends"])
        found[name] = chain
    return found


def parameters(folder: Path, rows: list[Checked], wanted: set[str] | None) -> list[Parameter]:
    """All constants to fit, with the rows that read them."""
    raw = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    chain = chains(folder)
    found = []
    for profile, table in raw.items():
        for constant, entry in table.get("constants", {}).items():
            if entry.get("origin") != "fitted" or (wanted and constant not in wanted):
                continue
            owners = {
                p for p, names in chain.items()
                if next((n for n in names if constant in raw[n].get("constants", {})), "") == profile
            }  # fmt: skip
            index = [i for i, r in enumerate(rows) if r.job.profile.name in owners]
            value = float(entry["value"])
            low, prior, high = bounds(chain[profile], constant, value)
            if value <= 0:
                continue
            sources = {rows[i].source for i in index if _decides(rows[i], constant)}
            if len(sources) == 1:
                raise SystemExit(
                    f"{profile}.{constant}: only {sources.pop()} reads it; say it is assumed, or inherit it: no "
                    "constant is fitted to a single source"
                )
            found.append(
                Parameter(
                    profile, constant, value, low, prior, high, np.array(index, dtype=int), tuple(chain[profile][1:])
                )
            )
    return found


def _decides(row: Checked, constant: str) -> bool:
    """Whether a row's time, or for constants of memory its peak, has a say in the fit of a constant."""
    return row.trusted and bool(row.measured_gib if constant in MEMORY else row.measured_s)


class EveryRow(Columns):
    """Columns whose scopes keep every row: perturbed rows are all distinct, and finding that out costs most."""

    def reduce(self, names: Sequence[str]) -> tuple[Columns, None]:
        """The columns `names` and the scalars, row by row."""
        wanted = set(names)
        return EveryRow({n: v for n, v in self.items() if n in wanted or not np.ndim(v)}), None


class Model:
    """The estimate as a function of the constants; only rows that a change touches are evaluated again."""

    def __init__(self, rows: list[Checked], fitted: list[Parameter]) -> None:
        """Build the columns once, and what each constant does to them."""
        self.rows, self.fitted = rows, fitted
        columns = stack([r.job for r in rows])
        self.columns = {name: np.broadcast_to(columns[name], (len(rows),)) for name in columns}
        self.slopes = [self._slopes(p) for p in fitted]
        self.touched = self._touched()

    def _slopes(self, parameter: Parameter) -> dict[str, np.ndarray]:
        """Column → by how much it changes per unit of the constant, for all rows; columns are linear in it."""
        found: dict[str, np.ndarray] = {}
        moved = parameter.value * 1.25
        for i in parameter.rows:
            job = self.rows[i].job
            constants = dict(job.profile.constants)
            constants[parameter.constant] = replace(constants[parameter.constant], value=moved)
            profile = replace(job.profile, constants=constants)
            columns = software_columns(
                job.cells, job.model, job.cluster.device, profile, rack=job.cluster.domain > HGX_DOMAIN
            )
            for name, value in columns.items():
                if value != job.columns[name]:
                    slope = found.setdefault(name, np.zeros(len(self.rows)))
                    slope[i] = (value - job.columns[name]) / (moved - parameter.value)
        return found

    def evaluate(self, queries: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """For each (log constants, row indices): an array of log seconds, log memory, fill."""
        results: list[np.ndarray] = []
        block: list[tuple[np.ndarray, np.ndarray]] = []
        size = 0
        for query in queries:
            block.append(query)
            size += len(query[1])
            if size >= BLOCK:
                results += self._block(block)
                block, size = [], 0
        return results + (self._block(block) if block else [])

    def _block(self, queries: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        index = np.concatenate([rows for _, rows in queries])
        if not len(index):
            return [np.zeros((3, 0)) for _ in queries]
        columns = {name: column[index] for name, column in self.columns.items()}
        starts = np.cumsum([0, *(len(rows) for _, rows in queries)])
        lengths = [len(rows) for _, rows in queries]
        for k, parameter in enumerate(self.fitted):
            moved = np.repeat([math.exp(x[k]) - parameter.value for x, _ in queries], lengths)
            for name, slope in self.slopes[k].items():
                columns[name] = columns[name] + slope[index] * moved
        ledger = estimate_training(EveryRow(columns))
        values = [np.broadcast_to(ledger[p], index.shape) for p in ("time/step", "memory/total", "memory/fill")]
        answer = np.array([np.log(values[0]), np.log(values[1]), values[2]])
        return [answer[:, starts[i] : starts[i + 1]] for i in range(len(queries))]

    def full(self, x: np.ndarray) -> np.ndarray:
        """All rows."""
        return self.evaluate([(x, np.arange(len(self.rows)))])[0]

    def _touched(self) -> list[np.ndarray]:
        """Rows that each constant changes anywhere between its bounds, the others at their prior or value."""
        base = {}
        for label in ("prior", "value"):
            x = np.log([getattr(p, label) for p in self.fitted])
            base[label] = (x, self.full(x))
        touched = []
        for k, parameter in enumerate(self.fitted):
            changed = np.zeros(len(parameter.rows), dtype=bool)
            for x, answer in base.values():
                for edge in (parameter.low, parameter.high):
                    moved = x.copy()
                    moved[k] = math.log(edge)
                    found = self.evaluate([(moved, parameter.rows)])[0]
                    changed |= np.any(np.abs(found - answer[:, parameter.rows]) > 1e-9, axis=0)
            touched.append(parameter.rows[changed])
        return touched


class Objective:
    """Source-balanced capped mean of |log(predicted / measured)|, and the pull towards priors."""

    def __init__(self, model: Model, target: int, free: list[int], rows: np.ndarray) -> None:
        """`target` 0: step times, 1: peak memory; `free`: indices of the constants; `rows`: those to fit."""
        self.model, self.target, self.free = model, target, free
        measured = [r.measured_s if target == 0 else (r.measured_gib or 0) * 2**30 for r in model.rows]
        self.measured = np.log([m or 1.0 for m in measured])
        sources: dict[str, list[int]] = {}
        for i in rows:
            sources.setdefault(model.rows[i].source, []).append(int(i))
        self.weight = np.zeros(len(model.rows))
        for members in sources.values():
            # A source of fewer rows than count in the balanced figure has a smaller say. The figure to reach
            # is the mean over sources for times and the median over rows for memory, hence the root there.
            say = min(1.0, len(members) / MINIMUM_ROWS) if target == 0 else math.sqrt(len(members))
            self.weight[members] = say / len(members)
        self.weight /= max(self.weight.sum(), 1e-12)
        self.used = np.flatnonzero(self.weight)
        self.prior = np.log([p.prior for p in model.fitted])
        self.low = np.log([p.low for p in model.fitted])
        self.high = np.log([p.high for p in model.fitted])
        # Row j: the constant free[j], minus the same constant of the nearest profile that it extends, if any.
        place = {(p.profile, p.constant): k for k, p in enumerate(model.fitted)}
        self.lean = np.zeros((len(free), len(model.fitted)))
        self.anchor = np.zeros(len(free))
        for j, k in enumerate(free):
            parameter = model.fitted[k]
            self.lean[j, k] = 1.0
            parent = next((q for n in parameter.parents if (q := place.get((n, parameter.constant))) is not None), None)
            if parent is None or parameter.name in BOUNDS:  # a reason of its own is stated
                self.anchor[j] = self.prior[k]
            else:
                self.lean[j, parent] = -1.0
        in_use = set(self.used.tolist())
        self.touched = {k: np.array([i for i in model.touched[k] if i in in_use], dtype=int) for k in free}

    def cost(self, residual: np.ndarray, x: np.ndarray) -> float:
        """The objective for residuals of all rows (zero where unused)."""
        data = float(np.sum(self.weight * np.minimum(np.abs(residual), CAP)))
        return data + PULL * float(np.sum(self.deviations(x) ** 2))

    def deviations(self, x: np.ndarray) -> np.ndarray:
        """How far the free constants are from where they are pulled to.

        A constant of a profile that extends another is pulled to the other's value unless a prior of its own is
        stated: where the data do not tell two frameworks apart they have one value, and a framework without
        rows has its parent's.
        """
        found: np.ndarray = self.lean @ x - self.anchor
        return found

    def residuals(self, points: list[np.ndarray]) -> list[np.ndarray]:
        """log(predicted / measured) of all rows at several points."""
        found = []
        for answer in self.model.evaluate([(x, self.used) for x in points]):
            residual = np.zeros(len(self.measured))
            residual[self.used] = answer[self.target] - self.measured[self.used]
            found.append(residual)
        return found

    def gauss_newton(self, x: np.ndarray, rounds: int = 14) -> np.ndarray:
        """Reweighted least squares: fast and blind to small kinks; `polish` follows."""
        residual = self.residuals([x])[0]
        best, damping, step = self.cost(residual, x), 1e-3, 0.02
        for _ in range(rounds):
            moved = []
            for k in self.free:
                point = x.copy()
                point[k] += step if x[k] + step <= self.high[k] else -step
                moved.append((point, self.touched[k]))
            slopes = np.zeros((len(self.measured), len(self.free)))
            for j, (query, answer) in enumerate(zip(moved, self.model.evaluate(moved), strict=True)):
                k, rows = self.free[j], query[1]
                change = query[0][k] - x[k]
                slopes[rows, j] = (answer[self.target] - self.measured[rows] - residual[rows]) / change
            size = np.abs(residual)
            weight = self.weight / np.maximum(size, SOFTEN) * np.where(size > CAP, 0.1, 1.0)
            lean = self.lean[:, self.free]
            matrix = slopes.T @ (weight[:, None] * slopes) + 2 * PULL * lean.T @ lean
            gradient = slopes.T @ (weight * residual) + 2 * PULL * lean.T @ self.deviations(x)
            candidates = []
            for extra in (damping / 10, damping, damping * 10, damping * 100):
                shift = -np.linalg.solve(matrix + extra * np.eye(len(self.free)), gradient)
                for scale in (1.0, 0.4):
                    point = x.copy()
                    point[self.free] += np.clip(scale * shift, -0.5, 0.5)
                    candidates.append((np.clip(point, self.low, self.high), extra))
            costs = [
                (self.cost(r, p), i)
                for i, (r, (p, _)) in enumerate(
                    zip(self.residuals([p for p, _ in candidates]), candidates, strict=True)
                )
            ]
            cost, chosen = min(costs)
            if cost >= best - 1e-6:
                break
            x, damping = candidates[chosen][0], candidates[chosen][1]
            residual, best = self.residuals([x])[0], cost
        return x

    def survey(self, x: np.ndarray, points: int = 7) -> np.ndarray:
        """Each constant in turn at points over its whole range: out of plateaus, where a maximum hides it."""
        residual = self.residuals([x])[0]
        best = self.cost(residual, x)
        for k in self.free:
            rows = self.touched[k]
            trials = []
            for value in np.linspace(self.low[k], self.high[k], points):
                trials.append(x.copy())
                trials[-1][k] = value
            base = residual
            for point, answer in zip(trials, self.model.evaluate([(p, rows) for p in trials]), strict=True):
                trial = base.copy()
                trial[rows] = answer[self.target] - self.measured[rows]
                cost = self.cost(trial, point)
                if cost < best - 1e-6:
                    best, x, residual = cost, point, trial
        return x

    def polish(self, x: np.ndarray, steps: tuple[float, ...] = (0.25, 0.1, 0.04, 0.015)) -> np.ndarray:
        """Coordinate descent with shrinking multiplicative steps."""
        residual = self.residuals([x])[0]
        best = self.cost(residual, x)
        for step in steps:
            for k in self.free:
                rows = self.touched[k]
                points = []
                for sign in (1, -1):
                    point = x.copy()
                    point[k] = min(max(x[k] + sign * step, self.low[k]), self.high[k])
                    points.append(point)
                for point, answer in zip(points, self.model.evaluate([(p, rows) for p in points]), strict=True):
                    trial = residual.copy()
                    trial[rows] = answer[self.target] - self.measured[rows]
                    cost = self.cost(trial, point)
                    if cost < best - 1e-7:
                        best, x, residual = cost, point, trial
                        break
        return x


MODEL: Model  # set before workers are forked, so that none builds its own


def fit(without: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Log constants fitted to all usable rows but those whose index is in `without`.

    From the priors, with a survey of every constant's whole range; with `start` by Gauss-Newton from there, which
    is many times faster and, with the pull towards the priors, forgets where it began.
    """
    model = MODEL
    keep = np.setdiff1d(np.arange(len(model.rows)), without)
    timed = np.array([i for i in keep if model.rows[i].trusted and model.rows[i].measured_s], dtype=int)
    peaks = np.array(
        [i for i in keep if (r := model.rows[i]).trusted and r.measured_gib and r.counter != "not stated"], dtype=int
    )
    x = np.log([p.prior for p in model.fitted]) if start is None else start.copy()
    memory = [k for k, p in enumerate(model.fitted) if p.constant in MEMORY]
    times = [k for k, p in enumerate(model.fitted) if p.constant not in MEMORY]
    for target, free, rows in ((1, memory, peaks), (0, times, timed)):
        if free and len(rows):
            objective = Objective(model, target, free, rows)
            x = objective.gauss_newton(x, 14 if start is None else WARM_ROUNDS)
            if start is None:
                x = objective.polish(objective.gauss_newton(objective.survey(x)))
    return x


def folds_of(rows: list[Checked], count: int) -> list[np.ndarray]:
    """Rows in `count` parts, each with its share of every source; which is decided by the id alone."""
    sources: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        sources.setdefault(row.source, []).append(i)
    parts: list[list[int]] = [[] for _ in range(count)]
    for source, members in sorted(sources.items()):
        ordered = sorted(members, key=lambda i: zlib.crc32(rows[i].identity.encode()))
        offset = zlib.crc32(source.encode())
        for place, i in enumerate(ordered):
            parts[(place + offset) % count].append(i)
    return [np.array(part, dtype=int) for part in parts]


def balanced_error(
    log_time: np.ndarray, rows: list[Checked]
) -> tuple[float, dict[str, tuple[int, float, float, float]]]:
    """Mean over sources of the median error; source → rows, median, p90, bias."""
    found: dict[str, list[float]] = {}
    for value, row in zip(log_time, rows, strict=True):
        if row.trusted and row.measured_s and np.isfinite(value):
            found.setdefault(row.source, []).append(math.exp(value) / row.measured_s - 1)
    table = {}
    for source, errors in found.items():
        sizes = [abs(e) for e in errors]
        table[source] = (len(errors), quantile(sizes, 0.5), quantile(sizes, 0.9), quantile(errors, 0.5))
    medians = [line[1] for line in table.values() if line[0] >= MINIMUM_ROWS]
    return sum(medians) / max(len(medians), 1), table


def memory_error(log_memory: np.ndarray, rows: list[Checked]) -> float:
    """Median error of trusted peaks with a stated counter."""
    errors = [
        abs(math.exp(v) / 2**30 / r.measured_gib - 1)
        for v, r in zip(log_memory, rows, strict=True)
        if r.trusted and r.measured_gib and r.counter != "not stated" and np.isfinite(v)
    ]
    return quantile(errors, 0.5) if errors else math.nan


def significant(value: float) -> str:
    """Four significant digits; whole numbers of bytes in full."""
    return str(round(value)) if value >= 1e6 else f"{value:.4g}"


def write_profiles(source: Path, target: Path, fitted: list[Parameter], x: np.ndarray) -> None:
    """Put the values into the files; comments, units and reasons stay."""
    for profile in sorted({p.profile for p in fitted}):
        text = (source / f"{profile}.toml").read_text(encoding="utf-8")
        for parameter, value in zip(fitted, np.exp(x), strict=True):
            if parameter.profile == profile:
                pattern = rf"(?m)^({re.escape(parameter.constant)}\s*=\s*\{{\s*value\s*=\s*)[^,]+"
                shown = significant(value)
                text, count = re.subn(pattern, lambda m, shown=shown: m[1] + shown, text)
                if count != 1:
                    raise SystemExit(f"{profile}.toml: no line for {parameter.constant}")
        (target / f"{profile}.toml").write_text(text, encoding="utf-8")


def verify(folder: Path, model: Model, x: np.ndarray) -> None:
    """What the package predicts with the values written must be what the fit saw."""
    with tempfile.TemporaryDirectory() as place:
        overlay = Path(place)
        (overlay / "profiles").mkdir()
        write_profiles(folder, overlay / "profiles", model.fitted, x)
        again = check_rows([r.record for r in model.rows], Context(Database((str(overlay),))))
        seen = np.exp(model.full(x)[0])
        apart = [abs((a.seconds("shipped") or 0) / s - 1) for a, s in zip(again, seen, strict=True)]
    # Four digits are written; a row near a whole number of recomputed layers may tip over by one.
    allowed = [5e-2 if row.job.columns["recompute"] < 0 else 5e-3 for row in model.rows]
    worst = int(np.argmax(np.array(apart) / allowed))
    if apart[worst] > allowed[worst]:
        name = f"row {model.rows[worst].identity}, {apart[worst]:.1%} apart"
        raise SystemExit(f"a constant reaches the estimate in a way the fit does not know: {name}")


def write_held_out(path: Path, rows: list[Checked], views: dict[str, np.ndarray]) -> None:
    """id and what is predicted when the row, or its source, is not in the fit."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Written by scripts/fit_training.py: predictions for rows that were not in the fit.\n")
        stream.write("# random: one of several parts of the rows held out; loso: the row's whole source left out.\n")
        stream.write("# fill: memory over what the device can use.\n")
        names = [f"{view}_{what}" for view in views for what in ("s", "mem_gib", "fill")]
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["id", *names])
        for i, row in enumerate(rows):
            cells = []
            for answer in views.values():
                cells += [math.exp(answer[0, i]), math.exp(answer[1, i]) / 2**30, answer[2, i]]
            writer.writerow([row.identity, *(f"{c:.5g}" for c in cells)])


def residuals_of(rows: list[Checked], answer: np.ndarray, quantity: str) -> list[Residual]:
    """ln(measured / predicted) of trusted rows whose source was left out of the fit, with what decides their band."""
    chosen, values = [], []
    for i, row in enumerate(rows):
        counted = row.counter != "not stated" and row.measured_gib
        measured = row.measured_s if quantity == TIME else row.measured_gib if counted else None
        predicted = answer[0, i] if quantity == TIME else answer[1, i] - math.log(2**30)
        if row.trusted and row.job and measured and np.isfinite(predicted):
            chosen.append(row)
            values.append(math.log(measured) - float(predicted))
    sources: dict[str, set[str]] = {}
    for row in chosen:
        sources.setdefault(row.job.profile.name, set()).add(row.source)
    return [
        Residual(row.source, family_of(row.job), len(sources[row.job.profile.name] - {row.source}), value)
        for row, value in zip(chosen, values, strict=True)
    ]


def write_bands(path: Path, rows: list[Checked], answer: np.ndarray, kernel_error: float) -> None:
    """The constants of the bands' rule, and how many sources stand behind each profile."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Written by scripts/fit_training.py from predictions of rows whose source was left out.\n")
        stream.write("# The rule stands in gpucalc/database/bands.py; value of a profile: sources fitted with it.\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["quantity", "kind", "name", "value", "rows", "sources"])
        for quantity in QUANTITIES:
            found = residuals_of(rows, answer, quantity)
            rule = fitted_rule(found)
            counts = [len(found), len({r.source for r in found})]
            for name in ("supported", "unsupported", "quantile"):
                writer.writerow([quantity, "rule", name, f"{getattr(rule, name):.4g}", *counts])
            if quantity == TIME:
                writer.writerow([quantity, "rule", ASSUMED_KERNELS, f"{kernel_error:.4g}", "", ""])
            for family, factor in rule.factors.items():
                own = [r for r in found if r.family == family]
                writer.writerow([quantity, "family", family, f"{factor:.4g}", len(own), len({r.source for r in own})])
            profiles: dict[str, set[str]] = {}
            for row in rows:
                measured = row.measured_s if quantity == TIME else row.measured_gib and row.counter != "not stated"
                if row.trusted and row.job and measured:
                    profiles.setdefault(row.job.profile.name, set()).add(row.source)
            for name, names in sorted(profiles.items()):
                writer.writerow([quantity, "profile", name, len(names), "", ""])
            shares = coverage(found)
            print(
                f"{quantity}: {100 * sum(shares.values()) / len(shares):.0f} % inside, mean over {len(shares)} sources"
            )


def write_record(path: Path, model: Model, x: np.ndarray, others: dict[str, list[np.ndarray]], sizes: str) -> None:
    """Each fitted constant: bounds, prior, value, rows that it touches, spread over the fits with a source left out."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(f"# Written by scripts/fit_training.py. {sizes}\n")
        stream.write("# spread: lowest and highest value over the fits with one source left out.\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            ["profile", "constant", "value", "low", "prior", "high", "rows", "spread_low", "spread_high", "at"]
        )
        for k, p in enumerate(model.fitted):
            value = math.exp(x[k])
            spread = [math.exp(o[k]) for o in others.get("loso", [])] or [value]
            at = "low" if value <= p.low * 1.001 else "high" if value >= p.high * 0.999 else ""
            cells = (value, p.low, p.prior, p.high)
            writer.writerow(
                [p.profile, p.constant, *(significant(c) for c in cells), len(model.touched[k]),
                 significant(min(spread)), significant(max(spread)), at]
            )  # fmt: skip


def kernel_left_out_error(root: Path) -> float:
    """Median over devices of the error of products when the device is left out of the kernel fit."""
    lines = (line for line in (root / "calibration" / "gemm.csv").read_text(encoding="utf-8").splitlines())
    table = csv.DictReader(line for line in lines if line and not line.startswith("#"))
    errors = [float(cells["left_out_error"]) for cells in table if cells.get("left_out_error")]
    return quantile(errors, 0.9) if errors else 0.12


def main() -> None:
    """Fit, hold out, report; write when asked to."""
    global MODEL, PULL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--write", action="store_true", help="profiles, held_out.csv, bands.csv, training_fit.csv")
    parser.add_argument("--folds", type=int, default=0, help="parts to hold out at random")
    parser.add_argument("--loso", action="store_true", help="leave each source out in turn")
    parser.add_argument("--constants", help="fit these only, separated by commas; the others keep their value")
    parser.add_argument("--pull", type=float, default=PULL, help="weight of the pull towards priors")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="with --write: held_out.csv and bands.csv only")
    given = parser.parse_args()
    began, PULL = time.time(), given.pull
    root = files.shipped()
    records = [text_record(r) for block in read_rows(given.file).blocks for r in block]
    wanted = set(given.constants.split(",")) if given.constants else None
    with tempfile.TemporaryDirectory() as place:
        # The profiles as they are now: nobody's edit during a long fit may mix into it.
        overlay = Path(place)
        shutil.copytree(root / "profiles", overlay / "profiles")
        rows = [r for r in check_rows(records, Context(Database((place,)))) if r.job]
        MODEL = model = Model(rows, parameters(overlay / "profiles", rows, wanted))
        present = np.log([p.value for p in model.fitted])
        verify(overlay / "profiles", model, np.minimum(present + 0.03, np.log([p.high for p in model.fitted])))
    bare = [p.name for p in model.fitted if not stated([p.profile, *p.parents], p.constant)]
    if bare and (given.loso or given.folds):
        # Their prior would be their present value, which rows now held out have helped to fit.
        raise SystemExit(f"state bounds and a prior in fit_training_bounds.py: {', '.join(bare)}")

    jobs: list[tuple[str, np.ndarray]] = [("all", np.array([], dtype=int))]
    if given.loso:
        for source in sorted({r.source for r in rows}):
            jobs.append(("loso", np.array([i for i, r in enumerate(rows) if r.source == source])))
    if given.folds:
        jobs += [("random", part) for part in folds_of(rows, given.folds)]
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        best = pool.apply(fit, (jobs[0][1],))
        solutions = [best, *pool.starmap(fit, [(without, best) for _, without in jobs[1:]], chunksize=1)]
    answers = {"all": model.full(best)}
    others: dict[str, list[np.ndarray]] = {}
    for (view, without), x in zip(jobs[1:], solutions[1:], strict=True):
        answers.setdefault(view, np.full((3, len(rows)), np.nan))[:, without] = model.full(x)[:, without]
        others.setdefault(view, []).append(x)

    before = model.full(present)
    print(f"{len(rows)} rows, {len(model.fitted)} constants, {len(jobs)} fits, {time.time() - began:.0f} s\n")
    for k, p in enumerate(model.fitted):
        spread = [math.exp(o[k]) for o in others.get("loso", [])]
        near = f"  {significant(min(spread)):>10} … {significant(max(spread)):<10}" if spread else ""
        edge = " at a bound" if math.exp(best[k]) <= p.low * 1.001 or math.exp(best[k]) >= p.high * 0.999 else ""
        shown = f"{significant(p.value):>10} → {significant(math.exp(best[k])):<10}"
        print(f"{p.name:48} {shown} [{p.low:g}, {p.prior:g}, {p.high:g}] {len(model.touched[k]):4} rows{near}{edge}")
    views = {"present": before, **answers}
    tables = {view: balanced_error(answer[0], rows) for view, answer in views.items()}
    print("\nbalanced: " + ", ".join(f"{view} {100 * t[0]:.2f} %" for view, t in tables.items()))
    print("memory:   " + ", ".join(f"{v} {100 * memory_error(a[1], rows):.2f} %" for v, a in views.items()) + "\n")
    for source in sorted(tables["all"][1], key=lambda s: -tables["all"][1][s][0]):
        cells = [f"{v}: {100 * t[1][source][1]:5.1f} ({100 * t[1][source][2]:5.1f}) {100 * t[1][source][3]:+6.1f}"
                 for v, t in tables.items() if source in t[1]]  # fmt: skip
        print(f"{source[:40]:40} {tables['all'][1][source][0]:4}  " + "  ".join(cells))
    if not given.write:
        return
    held = {view: answers[view] for view in ("random", "loso") if view in answers}
    if not given.keep:
        write_profiles(root / "profiles", root / "profiles", model.fitted, best)
        timed = sum(1 for r in rows if r.trusted and r.measured_s)
        sizes = f"{len(model.fitted)} constants, {timed} trusted timed rows, {len({r.source for r in rows})} sources."
        write_record(root / "calibration" / "training_fit.csv", model, best, others, sizes)
    if held:
        write_held_out(root / "calibration" / "held_out.csv", rows, held)
        basis = held.get("loso", held.get("random"))
        assert basis is not None
        write_bands(root / "calibration" / "bands.csv", rows, basis, kernel_left_out_error(root))


if __name__ == "__main__":
    main()
