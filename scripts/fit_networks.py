"""Fit the rates of software stacks on networks to the published rows, and report what sources left out give.

Run: python scripts/fit_networks.py [--left-out] [--write]. Constants of a row are a product of factors (what the stack,
the kind of net, the mode, the precision, the board's memory each do, and what one combination does beyond); all are
found together, each drawn to its prior as strongly as its width says. Sources weigh alike, however many rows they have.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from network_priors import CELL_WIDTH, PRIORS, SAME, WIDTHS

from gpucalc.core.columns import parse_row
from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns
from gpucalc.database.reader import Database
from gpucalc.database.stacks import CONSTANTS, factors, memory_class
from gpucalc.estimate.network import estimate_network
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import NetworkJob, _net_of, is_network, resolve_network_job, slug

ROOT = Path(__file__).parent.parent / "hardware_db"
SCALE = 0.08  # error beyond which a row counts by its size, not the square of it
SOURCE_POWER = 0.75  # of a source's number of rows by which each of its rows weighs less
MOST_ROWS = 120  # of one source, mode and kind of net in a fit
BY_DEVICE = {"huggingface/pytorch-image-models"}  # sources of hundreds of nets a device: one device is left out
CLASSIFIERS = ("resnet", "resnext", "se-resnext", "efficientnet")  # trained at a batch of 128 to 256 a GPU
LEAST_BAND = (0.83, 1.2)  # few sources, whose errors may lie on one side


@dataclass(frozen=True)
class Measured:
    """A published row with its job; `time` in seconds of a step, a batch or a request."""

    job: NetworkJob
    time: float
    unit: str  # what is left out together: its source, or one device of a source with hundreds of nets
    row: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, str, str]:
        """What weighs alike: unit, mode and kind of net."""
        return self.unit, self.job.mode, self.job.network.net


def measured_rows(db: Database, *, strict: bool = True) -> list[Measured]:
    """All published rows that name a network and a rate."""
    context, found = Context(db), []
    for file in sorted((ROOT / "measurements/families").glob("*.csv")):
        with file.open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
        for row in rows:
            usual = _of_usual_batch(row)
            if (strict and row.get("strict") != "True" and not usual) or not is_network(row):
                continue
            cells, problems = parse_row(row)
            try:
                job = resolve_network_job(cells, context)
            except UsageError:
                continue
            time = _time(row, job)
            if (
                problems
                or time is None
                or not (row.get("micro_batch") or row.get("global_batch") or job.mode == "generation" or usual)
            ):
                continue
            source = row["source"]
            unit = f"{source} {row['gpu']}" if source in BY_DEVICE else source
            found.append(Measured(job, time, unit, row))
    return found


def _of_usual_batch(row: Mapping[str, str]) -> bool:
    """Whether a row states all but the batch of a net's training, which hardly matters when it is a usual one."""
    return row["mode"] == "training" and row.get("model", "").startswith(CLASSIFIERS) and not row.get("micro_batch")


def _time(row: Mapping[str, str], job: NetworkJob) -> float | None:
    if job.mode == "generation" and row.get("measured_latency_s"):
        return float(row["measured_latency_s"])
    rate = row.get("measured_samples_per_s")
    if not rate:
        return None
    unit = float(row["seq_len"]) if row.get("sample") == "token" and row.get("seq_len") else 1.0
    samples = job.columns["samples"] * job.columns["grad_accum"] * job.columns["replicas"]
    return samples * unit / float(rate)


class Group:
    """Rows of one structure: their stacked columns, and of each component which factors its constants are made of."""

    def __init__(self, rows: Sequence[Measured], places: dict[str, int]) -> None:
        self.rows, self.job = rows, rows[0].job
        self.columns = {n: np.array([row.job.columns[n] for row in rows]) for n in rows[0].job.columns}
        parts = [[slug(part.name) for part in row.job.network.components] for row in rows]
        assert all(names == parts[0] for names in parts)
        core = {slug(part.name) for part in self.job.network.core}
        self.parts = sorted(parts[0], key=lambda name: name not in core)  # the first decides the floor of the step
        self.chosen = {name: [_factors(row, name, places) for row in rows] for name in self.parts}

    def matrices(self, size: int) -> dict[str, np.ndarray]:
        """Component → rows × factors, 1 where a factor belongs to the row's constants."""
        found = {}
        for name, chosen in self.chosen.items():
            found[name] = np.zeros((len(chosen), size))
            for i, places in enumerate(chosen):
                found[name][i, places] = 1
        return found

    def times(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Predicted times with constants of the components put in: column → values of the rows."""
        ledger = estimate_network(Columns({**self.columns, **found}), self.job.parts, self.job.mode)
        value = np.asarray(ledger["time/latency" if self.job.mode == "generation" else "time/step"])
        return np.broadcast_to(value, (len(self.rows),))


def _factors(row: Measured, name: str, places: dict[str, int]) -> list[int]:
    """Places of the factors of one component of a row."""
    job = row.job
    part = next(one for one in job.network.components if slug(one.name) == name)
    memory = memory_class(job.cluster.device.memory_type)
    precision = str(job.cells["precision"])
    names = factors(job.stack, job.stack.names[0], job.mode, _net_of(part, job.network), precision, memory)
    return [places.setdefault(one, len(places)) for one in names]


class Fit:
    """All rows with their factors, and the fit of logarithms of these."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        groups: dict[Any, list[Measured]] = {}
        for row in rows:
            groups.setdefault(row.job.group, []).append(row)
        self.places: dict[str, int] = {}
        self.groups = [Group(members, self.places) for members in groups.values()]
        self.matrices = [group.matrices(len(self.places)) for group in self.groups]
        self.rows = [row for group in self.groups for row in group.rows]
        self.truth = np.log([row.time for row in self.rows])
        self.units = np.array([row.unit for row in self.rows])
        self.prior = np.array([np.log(PRIORS.get(name, SAME)) for name in self.places])
        self.pull = np.array([1 / (np.log(WIDTHS) * _freedom(name)) for name in self.places])

    def predict(self, log: np.ndarray) -> np.ndarray:
        """Logarithms of the predicted times; `log`: factors × constants."""
        return self._predicted(log, slopes=False)[0]

    def _predicted(self, log: np.ndarray, *, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
        times, all_slopes = [], []
        for group, matrices in zip(self.groups, self.matrices, strict=True):
            columns: dict[str, np.ndarray] = {}
            for i, name in enumerate(group.parts):
                values = np.exp(matrices[name] @ log)
                columns |= {f"{name}.{constant}": values[:, j] for j, constant in enumerate(CONSTANTS[:3])}
                if i == 0:
                    columns["step_floor"] = values[:, 3]
            time = np.log(group.times(columns))
            times.append(time)
            if not slopes:
                continue
            slope = np.zeros((len(time), *log.shape))
            for i, name in enumerate(group.parts):
                for j, constant in enumerate(CONSTANTS[: 4 if i == 0 else 3]):
                    column = constant if j == 3 else f"{name}.{constant}"
                    moved = np.log(group.times(columns | {column: columns[column] * (1 + STEP)}))
                    slope[:, :, j] += ((moved - time) / np.log1p(STEP))[:, None] * matrices[name]
            all_slopes.append(slope.reshape(len(time), -1))
        return np.concatenate(times), np.concatenate(all_slopes) if slopes else np.zeros(0)

    def weights(self, use: np.ndarray) -> np.ndarray:
        """What each row counts: sources nearly alike, in each mode and kind of net; of many rows a part."""
        kinds = [row.kind for row in self.rows]
        counts = Counter(kind for kind, used in zip(kinds, use, strict=True) if used)
        seen: Counter[tuple[str, str, str]] = Counter()
        weight = np.zeros(len(kinds))
        for i, kind in enumerate(kinds):
            if use[i]:
                every = -(-counts[kind] // MOST_ROWS)
                weight[i] = counts[kind] ** -SOURCE_POWER * every if seen[kind] % every == 0 else 0.0
                seen[kind] += 1
        return weight * 8 * len(counts) / weight.sum()

    def solve(self, use: np.ndarray) -> np.ndarray:
        """Factors that fit the used rows and lie near their priors, by Gauss-Newton steps with damping."""
        weight, shape = self.weights(use), self.prior.shape
        prior, pull = self.prior.ravel(), self.pull.ravel()

        def errors(point: np.ndarray) -> tuple[np.ndarray, float]:
            error = (self.predict(point.reshape(shape)) - self.truth) / SCALE
            loss = np.sum(weight * 2 * (np.sqrt(1 + error**2) - 1)) + np.sum((pull * (point - prior)) ** 2)
            return error, float(loss)

        point, damping = prior.copy(), 1e-2
        error, loss = errors(point)
        for _ in range(60):
            slopes = self._predicted(point.reshape(shape), slopes=True)[1] / SCALE
            robust = weight / np.sqrt(1 + error**2)
            square = slopes.T @ (robust[:, None] * slopes) + np.diag(pull**2)
            gradient = slopes.T @ (robust * error) + pull**2 * (point - prior)
            for _ in range(10):
                trial = point - np.linalg.solve(square + damping * np.diag(np.diag(square)), gradient)
                trial_error, trial_loss = errors(trial)
                if trial_loss < loss:
                    break
                damping *= 4
            else:
                break
            gained, point, error, loss = loss - trial_loss, trial, trial_error, trial_loss
            damping = max(damping / 6, 1e-7)
            if gained < 3e-4 * loss:
                break
        return point.reshape(shape)


STEP = 1e-3  # relative, of the slopes


def _freedom(factor: str) -> float:
    """How far a factor may lie from its prior, in widths: far for the one of all, little for one combination's."""
    return {"base": 3.0, "cell": CELL_WIDTH, "memory": 0.6}.get(factor.split()[0], 1.0)


def left_out(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of predicted over measured, each row's unit left out, and whether another unit has its stack."""
    ratio, supported = np.zeros(len(fit.rows)), np.zeros(len(fit.rows), dtype=bool)
    for unit in dict.fromkeys(fit.units):
        own = fit.units == unit
        ratio[own] = (fit.predict(fit.solve(~own)) - fit.truth)[own]
        others = {(row.job.stack.names[0], row.job.mode) for row, out in zip(fit.rows, own, strict=True) if not out}
        for i in np.flatnonzero(own):
            supported[i] = (fit.rows[i].job.stack.names[0], fit.rows[i].job.mode) in others
    return ratio, supported


def report(fit: Fit, ratios: Mapping[str, np.ndarray]) -> None:
    """Print the median error by mode, kind of net and unit, and its mean over units."""
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for i, row in enumerate(fit.rows):
        unit, mode, net = row.kind
        kinds.setdefault((mode, net, unit), []).append(i)
    means: dict[tuple[str, str], list[list[float]]] = {}
    for key, places in sorted(kinds.items()):
        logs = [ratio[places] for ratio in ratios.values()]
        errors = [100 * (float(np.exp(np.median(np.abs(log)))) - 1) for log in logs]
        means.setdefault(key[:2], []).append(errors)
        said = "  ".join(
            f"{n} {e:5.1f} % ({np.median(log):+.2f})" for n, e, log in zip(ratios, errors, logs, strict=True)
        )
        print(f"{' '.join(key):80} {len(places):5} {said}")
    for family, found in means.items():
        print(f"{' '.join(family):30}", "  ".join(f"{value:5.1f} %" for value in np.mean(found, axis=0)))


def write(fit: Fit, log: np.ndarray) -> None:
    """Write `calibration/stacks.csv`: fitted factors, and assumed ones of stacks without rows."""
    counts = dict.fromkeys(fit.places, 0)
    units: dict[str, set[str]] = {name: set() for name in fit.places}
    names = list(fit.places)
    for group in fit.groups:
        for i, row in enumerate(group.rows):
            for place in {place for chosen in group.chosen.values() for place in chosen[i]}:
                counts[names[place]] += 1
                units[names[place]].add(row.unit)
    with (ROOT / "calibration/stacks.csv").open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Factors of the rates of networks, which multiply; written by scripts/fit_networks.py\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("factor", *CONSTANTS, "provenance", "rows", "sources", "note"))
        for name in sorted({*fit.places, *PRIORS}):
            values = np.exp(log[fit.places[name]]) if name in fit.places else PRIORS[name]
            origin = ("measured", counts[name], len(units[name])) if name in fit.places else ("assumed", "", "")
            writer.writerow((name, *(f"{v:.4g}" for v in values), *origin, ""))


def write_left_out(fit: Fit, ratio: np.ndarray, supported: np.ndarray) -> None:
    """Write `calibration/networks_held_out.csv` and the bands that the ratios give."""
    with (ROOT / "calibration/networks_held_out.csv").open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Predicted over measured time of a row whose whole source was left out of the fit; ")
        stream.write("written by scripts/fit_networks.py\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "ratio"))
        writer.writerows((row.row["id"], f"{np.exp(v):.4g}") for row, v in zip(fit.rows, ratio, strict=True))
    families: dict[str, dict[str, list[float]]] = {}
    every: dict[str, list[float]] = {}
    for row, value, known in zip(fit.rows, ratio, supported, strict=True):
        unit, mode, net = row.kind
        factor = float(np.exp(-value))
        every.setdefault(unit, []).append(factor)
        if known:  # the band of a stack that others measured too
            families.setdefault(f"{mode}/{net}", {}).setdefault(unit, []).append(factor)
            families.setdefault(mode, {}).setdefault(unit, []).append(factor)
    with (ROOT / "calibration/network_bands.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("family", "low", "high", "rows", "provenance", "note"))
        kinds = sorted({f"{row.kind[1]}/{row.kind[2]}" for row in fit.rows})
        for family in kinds:
            # One source says little of another: those of all kinds of net in the mode stand beside it.
            sources = families.get(family, {})
            if len(sources) < 2:
                sources = families.get(family.split("/")[0], every)
            low, high = _band(sources)
            count = sum(len(v) for v in families.get(family, {}).values())
            note = f"{len(families.get(family, {}))} left out whose stack others measured too"
            writer.writerow((family, f"{low:.3g}", f"{high:.3g}", count or "", "measured", note))
        low, high = _band(every)
        low, high = min(low, 0.4), max(high, 2.5)
        writer.writerow(
            ("unvalidated", f"{low:.3g}", f"{high:.3g}", "", "assumed", "the widest: all that were left out")
        )
        writer.writerow(("across", "0.85", "1.2", "", "assumed", "more than one server"))


def _band(sources: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Factors on the predicted time between which 80 % of measured ones lie, every source with the same weight."""
    values = np.array([v for part in sources.values() for v in part])
    weight = np.array([1 / len(part) for part in sources.values() for _ in part])
    order = np.argsort(values)
    share = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = np.interp([0.1, 0.9], share, values[order])
    return min(LEAST_BAND[0], float(low)), max(LEAST_BAND[1], float(high))


def main() -> None:
    """Fit, report, and write when asked to."""
    fit = Fit(measured_rows(Database()))
    log = fit.solve(np.ones(len(fit.rows), dtype=bool))
    ratios = {"fit": fit.predict(log) - fit.truth}
    supported = np.zeros(0)
    if "--left-out" in sys.argv:
        ratios["left out"], supported = left_out(fit)
    report(fit, ratios)
    if "--write" in sys.argv:
        write(fit, log)
        if "left out" in ratios:
            write_left_out(fit, ratios["left out"], supported)


if __name__ == "__main__":
    main()
