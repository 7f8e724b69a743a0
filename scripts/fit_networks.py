"""Fit the rates of software stacks on networks to the published rows, and report what sources left out give.

Run: python scripts/fit_networks.py [--write]. Constants are found cell by cell, from wide cells to narrow ones: all
stacks of a mode and precision, then each stack, then each kind of net on it; a narrow cell is drawn towards the wide
one, so that few rows move it little. Rows weigh the same per source. Four constants a cell; no other setting is tried.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.core.columns import parse_row
from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns
from gpucalc.database.reader import Database
from gpucalc.database.stacks import ANY, CONSTANTS, precision_class, rates
from gpucalc.database.tables import Row
from gpucalc.estimate.network import estimate_network
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import NetworkJob, _net_of, is_network, resolve_network_job, slug

ROOT = Path(__file__).parent.parent / "hardware_db"
START = np.log([1.2, 12.0, 5e-6, 2e-3])  # efficiency, bytes an element, seconds a launch and a step
LOW = np.log([0.05, 1.0, 1e-7, 1e-5])
HIGH = np.log([3.0, 80.0, 4e-4, 0.3])
WIDTH = np.log([1.5, 1.7, 6.0, 10.0])  # how far a narrow cell may lie from the wide one
DRAW = 2.0  # rows that the wide cell counts for
CELLS = ("stack", "mode", "net", "precision")
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Measured:
    """A published row with its job; `time` in seconds of a step, a batch or a request."""

    job: NetworkJob
    time: float
    source: str
    key: Key
    row: Mapping[str, str]


def measured_rows(db: Database, *, strict: bool = True) -> list[Measured]:
    """All published rows that name a network and a rate."""
    context, found = Context(db), []
    for file in sorted((ROOT / "measurements/families").glob("*.csv")):
        with file.open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
        for row in rows:
            if (strict and row.get("strict") != "True") or not is_network(row):
                continue
            cells, problems = parse_row(row)
            try:
                job = resolve_network_job(cells, context)
            except UsageError:
                continue
            time = _time(row, job)
            if problems or time is None or not (row.get("micro_batch") or job.mode == "generation"):
                continue
            net = _net_of(max(job.network.core, key=lambda part: part.macs), job.network)
            key = (job.stack.name, job.mode, net, precision_class(str(job.cells["precision"])))
            found.append(Measured(job, time, row["source"], key, row))
    return found


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
    """Rows of one structure, whose columns are stacked once."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        self.rows, self.job = rows, rows[0].job
        names = rows[0].job.columns
        self.columns = {n: np.array([row.job.columns[n] for row in rows]) for n in names}

    def times(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Predicted times with constants of the components put in: column → values of the rows."""
        ledger = estimate_network(Columns({**self.columns, **found}), self.job.parts, self.job.mode)
        value = np.asarray(ledger["time/latency" if self.job.mode == "generation" else "time/step"])
        return np.broadcast_to(value, (len(self.rows),))


def grouped(rows: Sequence[Measured]) -> list[Group]:
    """The rows by structure."""
    groups: dict[Any, list[Measured]] = {}
    for row in rows:
        groups.setdefault(row.job.group, []).append(row)
    return [Group(members) for members in groups.values()]


def _columns(group: Group, net: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Columns that constants of one kind of net decide."""
    found: dict[str, Any] = {"step_floor": values[3]}
    for part in group.job.network.components:
        own = _net_of(part, group.job.network)
        if net in {own, ANY}:
            name = slug(part.name)
            found |= {f"{name}.{c}": values[i] for i, c in enumerate(CONSTANTS[:3])}
    return found


def fit_cell(rows: Sequence[Measured], net: str, prior: np.ndarray) -> tuple[np.ndarray, float]:
    """The constants of a cell and the median error of its rows."""
    groups = grouped(rows)
    sources = [row.source for group in groups for row in group.rows]
    weight = np.array([1 / sources.count(source) for source in sources])
    weight /= weight.sum()
    truth = np.log([row.time for group in groups for row in group.rows])
    draw = DRAW / (DRAW + len(rows)) * 0.25

    def error(log: np.ndarray) -> np.ndarray:
        values = np.exp(log)
        return np.log(np.concatenate([g.times(_columns(g, net, values)) for g in groups])) - truth

    def loss(log: np.ndarray) -> float:
        return float(np.sum(weight * np.abs(error(log))) + draw * np.sum(((log - prior) / WIDTH) ** 2))

    point = prior.copy()
    for start in (prior, prior + np.array([0.4, -0.5, 0, -3]), prior + np.array([-0.5, 0.3, 2, 1])):
        trial = _descended(loss, np.clip(start, LOW, HIGH))
        point = trial if loss(trial) < loss(point) else point
    return point, float(np.exp(np.median(np.abs(error(point)))) - 1)


def _descended(loss: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
    """A minimum found by steps along the constants and the pairs that trade against each other."""
    best, step = loss(point), 0.6
    pairs = [(1, 1, 0, 0), (1, -1, 0, 0), (0, 1, -1, 0), (0, 1, 0, -1), (1, 0, 0, 1), (0, 0, 1, -1)]
    moves = [np.eye(4)[i] for i in range(4)] + [np.array(m) for m in pairs]
    while step > 0.02:
        moved = False
        for move in moves:
            for sign in (step, -step):
                trial = np.clip(point + sign * move, LOW, HIGH)
                value = loss(trial)
                if value < best - 1e-6:
                    best, point, moved = value, trial, True
        step *= 1.0 if moved else 0.5
    return point


def fit(rows: Sequence[Measured]) -> dict[Key, tuple[np.ndarray, int, float]]:
    """The constants of all cells, from wide to narrow."""
    found: dict[Key, tuple[np.ndarray, int, float]] = {}
    levels = (
        lambda k: (ANY, k[1], ANY, k[3]),
        lambda k: (ANY, k[1], k[2], k[3]),
        lambda k: (k[0], k[1], ANY, k[3]),
        lambda k: k,
    )
    parents: tuple[Any, ...] = (None, levels[0], levels[0], None)
    for level, name in enumerate(levels):
        cells: dict[Key, list[Measured]] = {}
        for row in rows:
            cells.setdefault(name(row.key), []).append(row)
        for key, members in cells.items():
            if level == 0:
                prior = START
            elif level == 3:  # between its stack's and its kind's
                prior = (found[levels[1](key)][0] + 2 * found[levels[2](key)][0]) / 3
            else:
                prior = found[parents[level](key)][0]
            sample = members if len(members) <= MOST_ROWS else _thinned(members)
            values, error = fit_cell(sample, key[2], prior)
            found[key] = (values, len(members), error)
    return found


MOST_ROWS = 100
LEAST_BAND = (0.83, 1.2)  # few sources, whose errors may lie on one side


def _thinned(rows: Sequence[Measured]) -> list[Measured]:
    """A part of many rows, every source with its share."""
    by_source: dict[str, list[Measured]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(row)
    each = max(1, MOST_ROWS // len(by_source))
    return [row for part in by_source.values() for row in part[:: max(1, len(part) // each)]]


class Table:
    """A fitted table in the place of the database's."""

    def __init__(self, found: Mapping[Key, tuple[np.ndarray, int, float]]) -> None:
        self.rows = {
            key: Row(key, dict(zip(CONSTANTS, np.exp(values), strict=True)), {})
            for key, (values, _, _) in found.items()
        }
        base = Row((ANY,) * 4, dict(zip(CONSTANTS, np.exp(START), strict=True)), {})
        self.rows[(ANY,) * 4] = base  # type: ignore[index]

    def table(self, name: str) -> dict[Any, Row]:
        """The one table that rates are read from."""
        assert name == "stacks"
        return self.rows


def predict(rows: Sequence[Measured], table: Table) -> np.ndarray:
    """Predicted over measured time of each row under another table."""
    ratio = np.zeros(len(rows))
    places = {id(row): i for i, row in enumerate(rows)}
    for group in grouped(rows):
        columns: dict[str, list[float]] = {}
        for row in group.rows:
            job = row.job
            for i, part in enumerate(sorted(job.network.components, key=lambda p: p not in job.network.core)):
                net = _net_of(part, job.network)
                found = rates(job.stack, job.mode, net, str(job.cells["precision"]), table)  # type: ignore[arg-type]
                name = slug(part.name)
                for constant in CONSTANTS[:3]:
                    columns.setdefault(f"{name}.{constant}", []).append(getattr(found, constant))
                if i == 0:
                    columns.setdefault("step_floor", []).append(found.step_floor)
        times = group.times({n: np.array(v) for n, v in columns.items()})
        for row, time in zip(group.rows, times, strict=True):
            ratio[places[id(row)]] = time / row.time
    return ratio


def left_out(rows: Sequence[Measured]) -> np.ndarray:
    """Predicted over measured time of each row, its whole source left out of the fit."""
    ratio = np.ones(len(rows))
    for source in dict.fromkeys(row.source for row in rows):
        own = [i for i, row in enumerate(rows) if row.source == source]
        modes = {rows[i].job.mode for i in own}
        others = [row for row in rows if row.source != source and row.job.mode in modes]
        ratio[own] = predict([rows[i] for i in own], Table(fit(others)))
    return ratio


def report(rows: Sequence[Measured], ratios: Mapping[str, np.ndarray]) -> None:
    """Print the median error by mode, kind of net and source."""
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for i, row in enumerate(rows):
        kinds.setdefault((row.key[1], row.key[2], row.source), []).append(i)
    for key, places in sorted(kinds.items()):
        logs = {name: np.log(ratio[places]) for name, ratio in ratios.items()}
        errors = {name: 100 * (np.exp(np.median(np.abs(log))) - 1) for name, log in logs.items()}
        said = "  ".join(f"{name} {errors[name]:5.1f} % ({np.median(log):+.2f})" for name, log in logs.items())
        print(f"{' '.join(key):90} {len(places):5} {said}")


def write(found: Mapping[Key, tuple[np.ndarray, int, float]]) -> None:
    """Write `calibration/stacks.csv`."""
    path = ROOT / "calibration/stacks.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Rates of software stacks on networks; written by scripts/fit_networks.py\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*CELLS, *CONSTANTS, "provenance", "rows", "fit_error", "note"))
        start = [f"{v:.4g}" for v in np.exp(START)]
        writer.writerow((ANY,) * 4 + (*start, "assumed", "", "", "where no row is near"))
        for key, (values, count, error) in sorted(found.items()):
            writer.writerow((*key, *(f"{v:.4g}" for v in np.exp(values)), "measured", count, f"{error:.4g}", ""))


def write_left_out(rows: Sequence[Measured], ratio: np.ndarray) -> None:
    """Write `calibration/networks_held_out.csv` and the bands that the ratios give."""
    path = ROOT / "calibration/networks_held_out.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("# Predicted over measured time of a row whose whole source was left out of the fit; ")
        stream.write("written by scripts/fit_networks.py\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "ratio"))
        writer.writerows((row.row["id"], f"{value:.4g}") for row, value in zip(rows, ratio, strict=True))
    families: dict[str, dict[str, list[float]]] = {}
    for row, value in zip(rows, ratio, strict=True):
        family = f"{row.key[1]}/{row.job.network.net}"
        families.setdefault(family, {}).setdefault(row.source, []).append(1 / float(value))
    every = {s: v for sources in families.values() for s, v in sources.items()}
    with (ROOT / "calibration/network_bands.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("family", "low", "high", "rows", "provenance", "note"))
        for family, sources in sorted(families.items()):
            low, high = _band(sources)
            if len(sources) == 1:  # one source says little of another
                wide = _band(every)
                low, high = min(low, wide[0]), max(high, wide[1])
            count = sum(len(v) for v in sources.values())
            writer.writerow(
                (family, f"{low:.3g}", f"{high:.3g}", count, "measured", f"{len(sources)} sources left out")
            )
        low, high = _band(every)
        low, high = min(low / 1.3, 0.4), max(high * 1.3, 2.5)
        writer.writerow(("unvalidated", f"{low:.3g}", f"{high:.3g}", "", "assumed", "the widest, and a third wider"))
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
    rows = measured_rows(Database())
    found = fit(rows)
    ratios = {"fit": predict(rows, Table(found))}
    if "--left-out" in sys.argv:
        ratios["left out"] = left_out(rows)
    report(rows, ratios)
    if "--write" in sys.argv:
        write(found)
        if "left out" in ratios:
            write_left_out(rows, ratios["left out"])


if __name__ == "__main__":
    main()
