"""Fitting the constants of the collective formulas to measured times: the formulas are gpucalc's own.

Coordinate descent on the mean |log(predicted/measured)|, so that a few rows where the library chose a
poor algorithm do not drag the rest; rows are held out by a hash of what they measure.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns
from gpucalc.database.cluster import Cluster, resolve_cluster
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.estimate.collectives import collective_ledger

RING = ("collective_startup", "link_efficiency", "link_step_latency", "chunk_latency", "own_chunk")
PAIRWISE = ("all_to_all_startup", "all_to_all_efficiency")
NVLS = ("nvls_efficiency", "nvls_chunk_latency")
POINT_TO_POINT = ("point_to_point_startup", "point_to_point_efficiency")
NETWORK = ("network_efficiency", "network_latency")
# Where a search begins that nothing better is known for.
START = {
    "collective_startup": 5e-6,
    "link_efficiency": 0.8,
    "link_step_latency": 1e-6,
    "chunk_latency": 3e-6,
    "own_chunk": 0.4,
    "all_to_all_startup": 9e-6,
    "all_to_all_efficiency": 0.95,
    "nvls_efficiency": 0.65,
    "nvls_chunk_latency": 8e-6,
    "bridge_sharing": 0.7,
    "bridge_exponent": 0.0,
    "network_efficiency": 0.75,
    "network_latency": 1e-5,
    "nvls_minimum_ranks": math.inf,
}
# Constants that cannot exceed 1: a share of a rate.
SHARES = {"link_efficiency", "nvls_efficiency", "network_efficiency", "bridge_sharing"}
SHARES |= {"exchange_efficiency", "exchange_network_efficiency", "own_chunk", "point_to_point_efficiency"}


def held_out(row: Mapping[str, str]) -> bool:
    """One row in three, by a hash of what it measures.

    >>> held_out({"gpu": "a100", "n_gpus": "8", "op": "all_reduce", "bytes": "1024"}) in {True, False}
    True
    """
    names = ("gpu", "n_gpus", "op", "bytes", "kernel", "nodes", "tokens_per_gpu")
    return zlib.crc32(" ".join(row.get(n, "") for n in names).encode()) % 3 == 0


def descend(
    cost: Callable[[dict[str, float]], float], start: Mapping[str, float], free: Sequence[str], rounds: int = 150
) -> dict[str, float]:
    """Coordinate descent in the logarithm of each free constant, with a step per constant.

    >>> found = descend(lambda c: abs(math.log(c["x"] / 3)), {"x": 1.0, "y": 2.0}, ("x",))
    >>> round(found["x"], 2), found["y"]
    (3.0, 2.0)
    """
    point, best = dict(start), cost(dict(start))
    step = dict.fromkeys(free, 0.3)
    for _ in range(rounds):
        for name in free:
            for sign in (1, -1):
                trial = dict(point)
                trial[name] = point[name] * math.exp(sign * step[name])
                if name in SHARES and trial[name] > 1:
                    continue
                value = cost(trial)
                if value < best - 1e-9:
                    point, best = trial, value
                    step[name] *= 1.3
                    break
            else:
                step[name] *= 0.6
        if max(step.values()) < 1e-3:
            break
    return point


class LogRatios:
    """Measured rows whose prediction depends on constants; what is fitted is log(predicted/measured)."""

    def log_ratio(self, constants: Mapping[str, float]) -> np.ndarray:
        """log(predicted/measured) of each row."""
        raise NotImplementedError

    def fit(self, start: Mapping[str, float], free: Sequence[str]) -> dict[str, float]:
        """Constants that minimise the mean absolute log ratio."""
        return descend(lambda c: float(np.mean(np.abs(self.log_ratio(c)))), start, free)

    def errors(self, constants: Mapping[str, float]) -> np.ndarray:
        """|predicted/measured - 1| of each row."""
        return np.abs(np.expm1(self.log_ratio(constants)))

    def error(self, constants: Mapping[str, float]) -> float:
        """Median of |predicted/measured - 1|."""
        return float(np.median(self.errors(constants)))


class Collectives(LogRatios):
    """Measured rows (`op`, `n_gpus`, `bytes`, `time_us`) as the columns of the formulas, by operation."""

    def __init__(self, rows: Sequence[Mapping[str, str]], clusters: Sequence[Cluster], db: Database) -> None:
        """Lay out the columns once; `clusters` has the cluster of each row, `db` the constants that are not fitted."""
        self.db = db
        self.rows = list(rows)
        self.clusters = list(clusters)
        self.groups: list[tuple[str, list[int], dict[str, Any], np.ndarray]] = []
        ops = [r["op"] for r in rows]
        for op in sorted(set(ops)):
            index = [i for i, name in enumerate(ops) if name == op]
            shipped = [collective_constants(clusters[i], db) for i in index]
            ranks = np.array([float(self.rows[i]["n_gpus"]) for i in index])
            fixed: dict[str, Any] = {name: np.array([k[name] for k in shipped]) for name in shipped[0]}
            fixed |= {"message": np.array([float(self.rows[i]["bytes"]) for i in index])}
            fixed |= {"ranks": ranks, "n_gpus": ranks}
            seconds = np.array([float(self.rows[i]["time_us"]) * 1e-6 for i in index])
            self.groups.append((op, index, fixed, seconds))

    def part(self, keep: Callable[[int], bool]) -> Collectives:
        """The rows whose index is kept."""
        index = [i for i in range(len(self.rows)) if keep(i)]
        return Collectives([self.rows[i] for i in index], [self.clusters[i] for i in index], self.db)

    def seconds(self, constants: Mapping[str, float]) -> np.ndarray:
        """Predicted seconds of each row; start-up of an all-reduce is that of the other collectives."""
        found = np.empty(len(self.rows))
        for op, index, fixed, _ in self.groups:
            columns = {**fixed, **constants, "all_reduce_startup": constants["collective_startup"]}
            found[index] = collective_ledger(op, Columns(columns))["time"]
        return found

    def measured(self) -> np.ndarray:
        """Measured seconds of each row."""
        found = np.empty(len(self.rows))
        for _, index, _, seconds in self.groups:
            found[index] = seconds
        return found

    def log_ratio(self, constants: Mapping[str, float]) -> np.ndarray:
        """log(predicted/measured) of each row."""
        return np.asarray(np.log(self.seconds(constants) / self.measured()))


def row_clusters(db: Database, rows: Sequence[Mapping[str, str]], count: str = "n_gpus") -> list[Cluster]:
    """The cluster of each row of a table with `gpu`, `nodes` and the number of GPUs under `count`."""
    known: dict[tuple[str, str, str], Cluster] = {}
    for row in rows:
        key = row["gpu"], row[count], row["nodes"]
        if key not in known:
            gpus, nodes = int(row[count]), int(row["nodes"])
            known[key] = resolve_cluster(db, row["gpu"], gpus, gpus_per_node=None if nodes == 1 else gpus // nodes)
    return [known[row["gpu"], row[count], row["nodes"]] for row in rows]
