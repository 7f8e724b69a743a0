"""Collectives on a cluster: `eval --kind collective`, `eval --kind alltoall` and `comm`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucalc.core.columns import COLUMNS, parse_cell
from gpucalc.core.errors import UsageError, unknown
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import GIGABIT
from gpucalc.core.vocabulary import operation
from gpucalc.database.cluster import PLACE_CELLS, resolve_cluster
from gpucalc.database.network import collective_constants, exchange_constants
from gpucalc.database.profiles import load_profile
from gpucalc.database.tables import EXCHANGE_KERNELS, EXCHANGE_PHASES
from gpucalc.estimate.collectives import (
    BF16_TOKEN,
    FP8_TOKEN,
    algorithms,
    bus_factor,
    chosen_algorithm,
    collective_ledger,
    exchange_ledger,
)
from gpucalc.jobs.software import rates_beside_compute

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database

# Cells beside the GPUs that say where a row ran; GPUs a node follow from its nodes.
PLACE = ("fabric", *(name for name in PLACE_CELLS if name != "gpus_per_node"))
LARGEST = 10**15  # bytes, tokens: beyond this a size is a mistake


# --- eval -----------------------------------------------------------------------------------------


def _cells(
    record: Mapping[str, str], needed: Sequence[str], optional: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name in (*needed, *optional):
        try:
            value = parse_cell(COLUMNS[name], record.get(name) or "")
        except UsageError as error:
            problems.extend(error.problems)
            continue
        if value is not None:
            values[name] = value
        elif name in needed:
            problems.append(f"{name} is empty")
    for name in ("bytes", "tokens_per_gpu", "hidden"):
        if values.get(name, 0) > LARGEST:
            problems.append(f"{name} is {values[name]:,}, expected at most {LARGEST:,}")
    return values, problems


class _Clusters:
    """The clusters of the rows of a file, each resolved once."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.found: dict[tuple[Any, ...], Cluster | UsageError] = {}

    def of(self, gpu: str, n_gpus: int, nodes: int | None, place: Mapping[str, Any]) -> Cluster:
        """The cluster of one row: on `nodes` hosts, or on as many as it needs."""
        per_node = None if nodes is None else -(-n_gpus // nodes)
        if nodes == 1:
            usual = self._resolve(gpu, n_gpus, None, place)
            if n_gpus <= usual.gpus_per_node:
                return usual  # a part of a usual node
        return self._resolve(gpu, n_gpus, per_node, place)

    def _resolve(self, gpu: str, n_gpus: int, per_node: int | None, place: Mapping[str, Any]) -> Cluster:
        key = (gpu, n_gpus, per_node, *sorted(place.items()))  # the slice of a torus depends on its chips
        if key not in self.found:
            try:
                self.found[key] = resolve_cluster(self.db, gpu, n_gpus, **{"gpus_per_node": per_node, **place})
            except UsageError as error:
                self.found[key] = error
        cluster = self.found[key]
        if isinstance(cluster, UsageError):
            raise cluster
        return cluster


def _group_problem(values: Mapping[str, Any], count: str) -> list[str]:
    if count in values and values.get("nodes", 1) > values[count]:
        return [f"nodes is {values['nodes']}, expected at most {count} = {values[count]}"]
    return []


def _resolved(
    records: Iterable[Mapping[str, str]], db: Database, needed: Sequence[str], optional: Sequence[str], count: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The typed cells of each row with its `cluster`, and the joined problems of each row."""
    clusters = _Clusters(db)
    rows, errors = [], []
    for record in records:
        values, problems = _cells(record, needed, optional)
        problems += _group_problem(values, count)
        if "op" in values:
            try:
                values["op"] = operation(values["op"])
            except UsageError as error:
                problems.extend(error.problems)
        if values.get("kernel", EXCHANGE_KERNELS[0]) not in EXCHANGE_KERNELS:
            problems.extend(unknown("kernel", values["kernel"], EXCHANGE_KERNELS).problems)
        if values.get("topk", 0) > values.get("experts", np.inf):
            problems.append(f"topk is {values['topk']}, expected at most experts = {values['experts']}")
        if "gpu" in values:
            try:
                values["cluster"] = clusters.of(
                    values["gpu"],
                    values.get(count, 1),
                    values.get("nodes"),
                    {n: values[n] for n in PLACE if n in values},
                )
            except UsageError as error:
                problems.extend(error.problems)
        rows.append(values)
        errors.append("; ".join(problems))
    return rows, errors


def _columns(rows: Sequence[Mapping[str, Any]], count: str, db: Database) -> dict[str, Any]:
    """The columns that the formulas read, one value per row; all clusters of one wiring and kind of network."""
    clusters = {id(row["cluster"]): row["cluster"] for row in rows}
    slot = {key: i for i, key in enumerate(clusters)}
    index = np.array([slot[id(row["cluster"])] for row in rows])
    constants = [collective_constants(c, db) for c in clusters.values()]
    columns: dict[str, Any] = {
        name: np.array([c[name] for c in constants], dtype=float)[index] for name in constants[0]
    }
    ranks = np.array([row[count] for row in rows], dtype=float)
    columns["ranks"] = columns["n_gpus"] = ranks
    return columns


def _kinds(rows: Sequence[Mapping[str, Any]], errors: Sequence[str], name: str) -> Iterator[tuple[str, list[int]]]:
    """Good rows that go through the same formulas: their operation or kernel, and positions."""
    kinds: dict[str, list[int]] = {}
    for place, (row, error) in enumerate(zip(rows, errors, strict=True)):
        if not error:
            kinds.setdefault(row[name], []).append(place)
    yield from sorted(kinds.items())


def clusters_of_rows(records: Iterable[Mapping[str, str]], db: Database) -> list[Cluster]:
    """The cluster that each row of measured collectives means. Raises UsageError for a row that means none."""
    rows, errors = _resolved(records, db, ("gpu", "n_gpus", "op", "bytes"), ("nodes", *PLACE), "n_gpus")
    if problem := next((error for error in errors if error), ""):
        raise UsageError(problem)
    return [row["cluster"] for row in rows]


def evaluate_collective(records: Iterable[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Predicted columns of `eval --kind collective`, one dict per record; bad rows hold `pred_error`."""
    rows, errors = _resolved(records, db, ("gpu", "n_gpus", "op", "bytes"), ("nodes", *PLACE), "n_gpus")
    results: list[dict[str, Any]] = [
        {"pred_time_us": None, "pred_busbw_GBps": None, "pred_algorithm": None, "pred_error": e or None} for e in errors
    ]
    for op, at in _kinds(rows, errors, "op"):
        columns = _columns([rows[i] for i in at], "n_gpus", db)
        columns["message"] = message = np.array([rows[i]["bytes"] for i in at], dtype=float)
        ledger = collective_ledger(op, Columns(columns))
        seconds, names = ledger["time"], chosen_algorithm(op, ledger)
        rate = np.divide(message, seconds, out=np.zeros_like(seconds), where=seconds > 0)
        busbw = rate * bus_factor(op, columns["ranks"])
        for j, i in enumerate(at):
            results[i]["pred_time_us"] = float(seconds[j] * 1e6)
            results[i]["pred_busbw_GBps"] = float(busbw[j] / 1e9)
            results[i]["pred_algorithm"] = str(names[j])
    return results


def evaluate_alltoall(records: Iterable[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Predicted columns of `eval --kind alltoall`, one dict per record; bad rows hold `pred_error`."""
    needed = ("gpu", "kernel", "gpus", "hidden", "topk", "tokens_per_gpu")
    rows, errors = _resolved(records, db, needed, ("nodes", "experts", *PLACE), "gpus")
    results: list[dict[str, Any]] = [
        {"pred_dispatch_us": None, "pred_combine_us": None, "pred_error": e or None} for e in errors
    ]
    for kernel, at in _kinds(rows, errors, "kernel"):
        mine = [rows[i] for i in at]
        columns = _columns(mine, "gpus", db)
        for name, source in (("tokens", "tokens_per_gpu"), ("hidden", "hidden"), ("experts_per_token", "topk")):
            columns[name] = np.array([row[source] for row in mine], dtype=float)
        for phase in EXCHANGE_PHASES:
            seconds = _phase_seconds(mine, columns, kernel, phase, db)
            for j, i in enumerate(at):
                results[i][f"pred_{phase}_us"] = float(seconds[j] * 1e6)
    return results


def _phase_seconds(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Any],
    kernel: str,
    phase: str,
    db: Database,
) -> np.ndarray:
    clusters = {id(row["cluster"]): row["cluster"] for row in rows}
    slot = {key: i for i, key in enumerate(clusters)}
    index = np.array([slot[id(row["cluster"])] for row in rows])
    constants = [exchange_constants(c, kernel, phase, db) for c in clusters.values()]
    calibrated = {n: np.array([c[n].value for c in constants], dtype=float)[index] for n in constants[0]}
    token = FP8_TOKEN if phase == "dispatch" else BF16_TOKEN
    ledger = exchange_ledger(kernel, Columns({**columns, **calibrated, **token}))
    return np.asarray(ledger["time"])


# --- comm -----------------------------------------------------------------------------------------


def comm_ledger(
    op: str, size_bytes: float, cluster: Cluster, db: Database, profile: str | None = None, *, trace: bool = False
) -> Ledger:
    """All terms of one collective over every GPU of a cluster: alone, or beside the compute of a profile's step."""
    columns: dict[str, Any] = collective_constants(cluster, db)
    if profile is not None:
        values = load_profile(profile, db).values
        columns |= {name: value for name, value in values.items() if name in columns} | rates_beside_compute(values)
    columns |= {"message": float(size_bytes), "ranks": float(cluster.n_gpus)}
    return collective_ledger(operation(op), Columns(columns), trace=trace)


def comm(
    op: str, size_bytes: float, cluster: Cluster, db: Database, profile: str | None = None
) -> list[dict[str, Any]]:
    """One row per algorithm of a collective over every GPU of a cluster, fastest first.

    With a software profile, what it takes beside the compute of a training step, as `explain` shows it.
    Keys: op, bytes, n_gpus, algorithm, time_us, algbw_GBps, busbw_GBps, chosen, bound (link, network, latency).
    """
    op = operation(op)
    ledger = comm_ledger(op, size_bytes, cluster, db, profile)
    idle = comm_ledger(op, 0.0, cluster, db, profile)
    ranks, local = ledger.columns["ranks"], ledger["group"]
    best = str(chosen_algorithm(op, ledger)[0])
    rows = []
    for name, path, bound in _candidates(op, ledger, best):
        outside = 0.0 if path == "time" or path.startswith("time/network") else float(ledger["time/startup"])
        seconds, floor = float(ledger[path]) + outside, float(idle[path]) + outside
        rate = size_bytes / seconds / 1e9 if seconds > 0 else 0.0
        bus = rate * float(bus_factor(op, ranks))
        bound = "latency" if floor >= seconds / 2 else bound
        rows.append(
            {
                "op": op,
                "bytes": size_bytes,
                "n_gpus": cluster.n_gpus,
                "domains": round(ranks / local),
                "algorithm": name,
                "time_us": seconds * 1e6,
                "algbw_GBps": rate,
                "busbw_GBps": bus,
                "chosen": name == best,
                "bound": bound,
            }
        )
    return sorted(rows, key=lambda row: (not row["chosen"], row["time_us"]))


def _candidates(op: str, ledger: Ledger, best: str) -> list[tuple[str, str, str]]:
    """(algorithm, path of its time, level that binds it) for each algorithm that the cluster permits."""
    columns, local = ledger.columns, ledger["group"]
    level = "network" if columns["ranks"] > local else "link"
    found = []
    for name, path in algorithms(op, ledger).items():
        no_switch = name == "nvls" and local < columns["nvls_minimum_ranks"]
        if np.isfinite(ledger[path]) and not no_switch:
            found.append((name, path, level))
    return found or [(best, "time", level)]


def not_permitted(op: str, cluster: Cluster, db: Database) -> list[str]:
    """Algorithms of an operation over several domains that this cluster or its library does not have, with why."""
    op = operation(op)
    ledger = comm_ledger(op, 0.0, cluster, db)
    local = float(ledger["group"])
    if local >= cluster.n_gpus or op not in {"all_reduce", "all_gather", "reduce_scatter"}:
        return []
    found = []
    if op == "all_reduce":
        if not cluster.in_switch_reduction:
            found.append("sharp (the network's switches add nothing up unless --in-switch-reduction yes)")
        if not np.isfinite(ledger.columns["nvls_minimum_ranks"]):
            found.append("nvls-tree (no switch in the domain adds up)")
        elif local <= 1:
            found.append("nvls-tree (one rank a domain)")
    elif local > 1:
        found.append(f"pat ({local:g} ranks a domain, and it takes one)")
    if not cluster.hierarchical:
        found.append("hierarchical (NCCL has none; --collective-library hierarchical)")
    return found


def place_sentence(cluster: Cluster) -> str:
    """Where a collective runs, in one sentence: node, domain, links, cards, and who shares them."""
    sides = f" {'x'.join(map(str, cluster.slice_sides))}" if "torus" in cluster.scale_up_topology else ""
    rate, usual = cluster.network_bandwidth_per_gpu, cluster.node.network_bandwidth_per_gpu
    shared = ""
    if (
        cluster.gpus_per_node < cluster.node.gpus_per_node
        and cluster.network_basis != "stated"
        and rate > 1.001 * usual
    ):
        shared = f", whole cards while it is alone on its nodes: groups of a job have {usual / GIGABIT:g} each"
    elif cluster.cards < cluster.gpus_per_node:
        shared = ", shared by all GPUs of the node: a lone group of one rank a node has a whole card"
    return (
        f"{cluster.n_gpus} × {cluster.device.key}, {cluster.gpus_per_node} a node, {cluster.domain} in a "
        f"scale-up domain ({cluster.scale_up_topology}{sides}, {cluster.link_bandwidth / 1e9:g} GB/s per GPU and "
        f"direction); {rate / GIGABIT:g} Gb/s of network per GPU ({cluster.network_basis}){shared}"
    )


def untuned_sentence(op: str, size_bytes: float, cluster: Cluster, db: Database, profile: str | None = None) -> str:
    """How long the collective takes where paths collide on a network that nobody tuned; "" without such a range."""
    share = db.link(cluster.fabric).untuned
    if share >= 1 or cluster.n_gpus <= cluster.domain:
        return ""
    slow = replace(cluster, network_bandwidth_per_gpu=share * cluster.network_bandwidth_per_gpu)
    seconds = float(comm_ledger(op, size_bytes, slow, db, profile)["time"])
    return f"{cluster.fabric} that nobody tuned keeps {100 * share:.0f} % of that rate: up to {seconds * 1e6:,.4g} µs"
