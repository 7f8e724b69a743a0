"""Which constants of the collective formulas a user's rows determine, and their values.

Rows inside one scale-up domain come first and give the constants of the links; rows over several
domains then give those of the network, with the links as found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpucalc.calibrate.collectives import NETWORK, PAIRWISE, POINT_TO_POINT, SHARES, START, Collectives, held_out
from gpucalc.calibrate.fitted import Calibration, Fitted, Place, cluster_of, compare, few_rows, no_better
from gpucalc.calibrate.kernels import simplex
from gpucalc.calibrate.logs import Log
from gpucalc.core.errors import DataError
from gpucalc.database.network import Calibrated, calibration
from gpucalc.database.reader import Database
from gpucalc.database.tables import LINK_CONSTANTS, NETWORK_CONSTANTS

# In the order of precedence: what can be told apart only from these is not fitted.
LINK: tuple[str, ...] = (
    "nvls_efficiency",
    "link_efficiency",
    "collective_startup",
    "nvls_chunk_latency",
    *PAIRWISE,
    *POINT_TO_POINT,
    "link_step_latency",
    "chunk_latency",
    "own_chunk",
    "bridge_sharing",
)
# A constant is fitted where rows that are right to SCATTER determine it to LEAST_CERTAINTY, beside those chosen
# before it; both are relative standard errors.
SCATTER = 0.05
LEAST_CERTAINTY = 0.15
ROWS_PER_CONSTANT = 3
LOW_EFFICIENCY = 0.3
_IDEAL = {"own_chunk": 0.0, "bridge_exponent": 0.0}
_ELSEWHERE = {"collective_startup": 1e-5, "chunk_latency": 3e-6, "network_step_latency": 5e-6}
_ELSEWHERE |= {"point_to_point_startup": 1e-5, "link_step_latency": 1e-6, "own_chunk": 0.3}


def fit_collective_logs(result: Calibration, db: Database, logs: Sequence[Log], place: Place, in_place: bool) -> None:
    """Fit the rows of logs of nccl-tests; constants, errors and warnings go into `result`."""
    data, skipped = _data(db, logs, place, in_place)
    if skipped:
        kind = "in-place" if in_place else "out-of-place"
        result.warnings.append(f"{skipped} rows have no {kind} time and are left out")
    if not data.rows:
        raise DataError("nothing to fit: no row has a time in the columns chosen (see --in-place)")
    found = calibration(data.clusters[-1], db)
    force = {name: c.value for name, c in found.items()}
    result.warnings += _impossible(data, force)
    local = np.array([c.domain >= c.n_gpus for c in data.clusters])
    after = dict(force)
    for level, scope, order, units, chosen in (
        ("links", data.clusters[0].device.key, LINK, LINK_CONSTANTS, local),
        ("network", data.clusters[-1].fabric, NETWORK, NETWORK_CONSTANTS, ~local),
    ):
        if np.any(chosen):
            part = data.part(lambda i, chosen=chosen: bool(chosen[i]))  # type: ignore[misc]
            after = _fit_level(result, part, found, after, (level, scope, order, units))


def _data(db: Database, logs: Sequence[Log], place: Place, in_place: bool) -> tuple[Collectives, int]:
    rows, clusters, known, skipped = [], [], {}, 0
    for log in logs:
        for timing in log.timings:
            seconds = timing.in_place if in_place else timing.out_of_place
            if seconds is None:
                skipped += 1
                continue
            key = timing.ranks, timing.hosts
            if key not in known:
                known[key] = cluster_of(db, place, timing.ranks, timing.hosts, timing.where)
            cluster = known[key]
            rows.append(
                {
                    "gpu": cluster.device.key,
                    "n_gpus": str(timing.ranks),
                    "nodes": str(cluster.n_nodes),
                    "op": timing.op,
                    "bytes": str(timing.size),
                    "time_us": repr(seconds * 1e6),
                    "where": timing.where,
                }
            )
            clusters.append(cluster)
    order = sorted(range(len(rows)), key=lambda i: clusters[i].n_nodes)  # the widest group last
    return Collectives([rows[i] for i in order], [clusters[i] for i in order], db), skipped


def _impossible(data: Collectives, force: Mapping[str, float]) -> list[str]:
    """Rows faster than the links and the network allow at any efficiency."""
    ideal = {n: _ideal(n) for n in force}
    ideal |= {**_IDEAL, "nvls_minimum_ranks": force["nvls_minimum_ranks"]}
    share = data.seconds(ideal) / data.measured()
    count = int(np.sum(share > 1.02))
    if not count:
        return []
    worst = int(np.argmax(share))
    return [
        f"{count} rows are outside physical bounds, {data.rows[worst]['where']} the most: {data.rows[worst]['op']} is "
        f"{share[worst]:.2f} times as fast as its links allow; check --gpu, --gpus, --nodes and --fabric"
    ]


def _ideal(name: str) -> float:
    """A constant at its best: no delay, no bound on a rate, every share whole, nothing left between chunks."""
    if units_of(name) == "s" or name.endswith("_coupling"):
        return 0.0
    return math.inf if units_of(name) == "B/s" else 1.0


def _fit_level(
    result: Calibration,
    data: Collectives,
    found: Mapping[str, Calibrated],
    start: Mapping[str, float],
    how: tuple[str, str, Sequence[str], Mapping[str, str]],
) -> dict[str, float]:
    """Fit one level; the constants after it."""
    level, scope, order, units = how
    held = np.array([held_out(row) for row in data.rows])
    if np.sum(~held) < 2 * ROWS_PER_CONSTANT:
        held[:] = False  # too few to spare any
    train = data.part(lambda i: not held[i])
    if len(train.rows) < ROWS_PER_CONSTANT:
        sizes = len({row["bytes"] for row in train.rows})
        raise DataError(
            f"{level}: {len(train.rows)} rows of {sizes} size{'s' if sizes > 1 else ''} are too few to fit, and "
            f"cannot tell {order[0]} from {order[1]}; measure more sizes (-b 8 -e 8G -f 2)"
        )
    result.warnings += few_rows(level, len(train.rows), int(np.sum(held)))
    counts = {row["nodes"] for row in train.rows}
    if level == "network" and len(counts) == 1:
        result.warnings.append(
            f"network: all rows are of {counts.pop()} nodes; how times grow with nodes stays the library's own model"
        )
    point = _without_switch(train, start, order) if level == "links" else None
    switched_off = point is not None
    free, reasons = determined(train, {**start, **(point or {})}, order)
    result.warnings += [f"{level}: {name} stays as it was: {why}" for name, why in reasons.items()]
    if not free:
        raise DataError(f"{level}: the rows determine no constant; measure more sizes (-b 8 -e 8G -f 2)")
    after = fit_constants(train, {**start, **(point or {})}, free)
    before_errors, after_errors = data.errors(start), data.errors(after)
    for op in sorted({row["op"] for row in data.rows}):
        mine = np.array([row["op"] == op for row in data.rows])
        result.comparisons.append(compare(f"{level}: {op}", before_errors[mine], after_errors[mine], held[mine]))
    whole = compare(f"{level}: all", before_errors, after_errors, held)
    result.comparisons.append(whole)
    result.warnings += _doubts(level, after, free, whole.fit_after) + no_better(whole)
    written = [*free, *(["all_reduce_startup"] if "collective_startup" in free else [])]
    after["all_reduce_startup"] = after["collective_startup"]
    if switched_off:
        written.append("nvls_minimum_ranks")
        result.warnings.append(f"{level}: the all-reduces fit best as if the switch added nothing up (NVLS off)")
    for name in written:
        result.constants.append(
            Fitted(
                "collectives",
                scope,
                "",
                name,
                units[name],
                found[name].value,
                found[name].provenance,
                after[name],
                len(train.rows),
                whole.fit_after,
                whole.held_out_after,
                note="in-switch reduction off" if name == "nvls_minimum_ranks" else "",
            )
        )
    return after


def _without_switch(train: Collectives, start: Mapping[str, float], order: Sequence[str]) -> dict[str, float] | None:
    """The changed constants where all-reduces show that the switch adds nothing up; None otherwise.

    In one group size a slow switch looks like a ring. Of two that fit alike, what asks for the smaller
    change of its efficiency is taken.
    """
    least = start["nvls_minimum_ranks"]
    reduced = [row["op"] == "all_reduce" and int(row["n_gpus"]) >= least for row in train.rows]
    if not math.isfinite(least) or not any(reduced):
        return None

    def fitted(minimum: float, efficiency: str) -> tuple[float, float]:
        begin = {**start, "nvls_minimum_ranks": minimum}
        free, _ = determined(train, begin, order)
        point = fit_constants(train, begin, free, polish=False) if free else begin
        error = float(np.mean(np.abs(train.log_ratio(point)[reduced])))
        return error, abs(math.log(point[efficiency] / start[efficiency]))

    error_on, change_on = fitted(least, "nvls_efficiency")
    error_off, change_off = fitted(math.inf, "link_efficiency")
    off = error_off < 1.2 * error_on + 0.003 and change_off < 0.5 * change_on
    return {"nvls_minimum_ranks": math.inf} if off else None


def _begin(start: Mapping[str, float], order: Sequence[str]) -> dict[str, float]:
    """The constants from which a search in logarithms can move: none of `order` is zero."""
    other = {**START, **_ELSEWHERE}
    begin = {n: other[n] if n in order and v == 0 else v for n, v in start.items()}
    if "network_efficiency" in order:  # from where the cards bind, not the links behind them
        begin["network_efficiency"] = min(begin["network_efficiency"], START["network_efficiency"])
    return begin


def determined(
    data: Collectives, start: Mapping[str, float], order: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The constants of `order` that the rows determine, and why each of the others is not fitted.

    By the derivative of log time by the logarithm of each constant, which gives the standard errors that
    least squares would have.
    """
    point, small = _begin(start, order), 0.05
    chosen: list[str] = []
    columns: list[np.ndarray] = []
    reasons: dict[str, str] = {}
    for name in order:
        up, down = ({**point, name: point[name] * math.exp(s * small)} for s in (1, -1))
        effect = (data.log_ratio(up) - data.log_ratio(down)) / (2 * small)
        if np.max(np.abs(effect)) < 1e-6:
            continue  # nothing here that it belongs to
        if _largest_error([effect]) > LEAST_CERTAINTY:
            why = "" if "chunk" in name else "; the sizes are too " + ("large" if units_of(name) == "s" else "small")
            reasons[name] = f"these rows hardly depend on it{why}"
        elif len(chosen) >= len(data.rows) // ROWS_PER_CONSTANT:
            reasons[name] = "too few rows"
        elif _largest_error([*columns, effect]) > LEAST_CERTAINTY:
            likeness = [abs(float(effect @ c)) / float(np.linalg.norm(c)) for c in columns]
            nearest = sorted(zip(likeness, chosen, strict=True), reverse=True)[:2]
            reasons[name] = f"these rows cannot tell it apart from {' and '.join(n for _, n in nearest)}"
        else:
            chosen.append(name)
            columns.append(effect)
    return tuple(chosen), reasons


def units_of(name: str) -> str:
    """The unit of a constant: s, or nothing for a share."""
    return LINK_CONSTANTS.get(name, NETWORK_CONSTANTS.get(name, ""))


def _largest_error(effects: Sequence[np.ndarray]) -> float:
    """The largest relative standard error of constants with these effects on the rows."""
    matrix = np.stack(effects, axis=1)
    normal = matrix.T @ matrix
    if np.linalg.cond(normal) > 1e10:
        return math.inf
    return SCATTER * float(np.sqrt(np.max(np.diag(np.linalg.inv(normal)))))


def fit_constants(
    data: Collectives, start: Mapping[str, float], free: Sequence[str], polish: bool = True
) -> dict[str, float]:
    """Coordinate descent, then a simplex around its result, which follows valleys that run across the axes."""
    point = data.fit(_begin_free(start, free), free)
    if not polish:
        return point
    high = np.array([0.0 if n in SHARES else math.inf for n in free])
    cost = _cost(data, point, free)

    def loss(logs: np.ndarray) -> float:
        inside = np.minimum(logs, high)
        return cost(inside) + 0.1 * float(np.sum(logs - inside))

    begin = np.log([point[n] for n in free])
    better = np.minimum(simplex(loss, begin, steps=300, restarts=3), high)
    return {**point, **dict(zip(free, np.exp(better).tolist(), strict=True))} if cost(better) < cost(begin) else point


def _begin_free(start: Mapping[str, float], free: Sequence[str]) -> dict[str, float]:
    moved = _begin(start, free)
    return {n: min(v, 1.0) if n in SHARES and n in free else v for n, v in moved.items()}


def _cost(data: Collectives, point: Mapping[str, float], free: Sequence[str]) -> Callable[[np.ndarray], float]:
    def cost(logs: np.ndarray) -> float:
        constants = {**point, **dict(zip(free, np.exp(logs).tolist(), strict=True))}
        return float(np.mean(np.abs(data.log_ratio(constants))))

    return cost


def _doubts(level: str, after: Mapping[str, float], free: Sequence[str], error: float | None) -> list[str]:
    said = []
    for name in free:
        if name in SHARES and name != "own_chunk" and after[name] > 0.995:
            said.append(f"{level}: {name} lies at its physical bound of 1; check --gpu and --fabric")
        elif name.endswith("efficiency") and after[name] < LOW_EFFICIENCY:
            said.append(
                f"{level}: {name} is {after[name]:.2f}, far below what such links reach; "
                "check --gpu, --fabric and the path (peer-to-peer, GPU-direct)"
            )
    if error is not None and error > 0.2:
        said.append(f"{level}: the form does not fit these rows well (median error {100 * error:.0f} %)")
    return said
