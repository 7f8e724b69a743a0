"""A user's own measurements → constants of the shipped forms, as an overlay of the hardware database.

What the rows do not determine keeps its value: a constant that no row depends on, or that cannot be told
apart from others in these rows, is left as it was, and the reader is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucalc.calibrate.logs import Log
from gpucalc.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database

FEW_ROWS = 12  # fewer rows than this in a fit are called few
FEW_HELD_OUT = 4  # fewer than this held out say little


@dataclass(frozen=True)
class Fitted:
    """One constant before and after, with the errors of its fit (medians of |predicted/measured - 1|)."""

    table: str  # of calibration/: collectives, gemm or memory
    scope: str
    precision: str
    constant: str
    unit: str
    before: float | None
    before_provenance: str
    after: float
    rows: int
    error_fit: float | None
    error_held_out: float | None
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Errors of a group of rows with the constants before and after."""

    group: str
    rows: int
    fit_before: float | None
    fit_after: float | None
    held_out: int
    held_out_before: float | None
    held_out_after: float | None


@dataclass
class Calibration:
    """All that a calibration found."""

    gpu: str
    constants: list[Fitted] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where the measurements were made, as far as the user stated it."""

    gpu: str
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    fabric: str | None = None
    inter_node_gbps_per_gpu: float | None = None


def calibrate(
    db: Database, logs: Sequence[Log], place: Place, date: str, *, in_place: bool = False, with_cast: bool = False
) -> Calibration:
    """Constants fitted to the logs of one kind of GPU; DataError where nothing can be fitted.

    `date` goes into the source of each constant. `in_place`: fit the in-place columns of nccl-tests.
    `with_cast`: 8 and 4 bit products were timed together with the cast of their input.
    """
    device = db.device(place.gpu)
    result = Calibration(device.key, warnings=[w for log in logs for w in log.warnings])
    collectives, products = [log for log in logs if log.timings], [log for log in logs if log.products]
    if not collectives and not products:
        raise DataError("nothing to fit: " + ("; ".join(result.warnings) or "the logs hold no rows"))
    result.warnings += _other_devices(db, logs, device.key)
    if collectives:
        from gpucalc.calibrate.collective_fit import fit_collective_logs

        fit_collective_logs(result, db, collectives, place, in_place)
        _describe(result, "collectives", collectives, date)
    if products:
        from gpucalc.calibrate.product_fit import fit_product_logs

        fit_product_logs(result, db, products, device, with_cast)
        _describe(result, "gemm", products, date)
        _describe(result, "memory", products, date)
    if not result.constants:
        raise DataError("nothing to fit: " + "; ".join(result.warnings))
    return result


def _describe(result: Calibration, table: str, logs: Sequence[Log], date: str) -> None:
    """Write into each new constant of a table where it comes from."""
    files = list(dict.fromkeys(log.name for log in logs))
    names = ", ".join(files) if len(files) <= 4 else f"{len(files)} files from {files[0]} to {files[-1]}"
    for i, c in enumerate(result.constants):
        if c.table == table and not c.source:
            fit = "" if c.error_fit is None else f"; median error {100 * c.error_fit:.1f} % fitted"
            held = "" if c.error_held_out is None else f", {100 * c.error_held_out:.1f} % held out"
            result.constants[i] = replace(c, source=f"{names}; {date}; {c.rows} rows{fit}{held}")


def _other_devices(db: Database, logs: Sequence[Log], key: str) -> list[str]:
    found = []
    for log in logs:
        for name in log.devices:
            try:
                named = db.device_key(name)
            except UsageError:
                continue  # spellings of drivers are many, and the user said what it is
            if named != key:
                found.append(f"{log.name} was measured on {name} ({named}), and --gpu is {key}")
    return found


def cluster_of(db: Database, place: Place, ranks: int, hosts: int | None, where: str) -> Cluster:
    """The cluster that a table was measured on: the log's hosts, else what the user stated, else usual nodes."""
    from gpucalc.database.cluster import resolve_cluster

    if hosts and place.nodes and hosts != place.nodes:
        raise DataError(f"{where}: the log lists {hosts} hosts and --nodes is {place.nodes}; leave --nodes out")
    usual = db.node(db.device(place.gpu).default_node).gpus_per_node
    nodes = hosts or place.nodes
    per_node = place.gpus_per_node
    if per_node is None and nodes is not None:
        if ranks % nodes:
            raise DataError(f"{where}: {ranks} ranks do not divide over {nodes} nodes")
        per_node = None if nodes == 1 and ranks <= usual else ranks // nodes
    return resolve_cluster(
        db,
        place.gpu,
        ranks,
        gpus_per_node=per_node,
        fabric=place.fabric,
        inter_node_gbps_per_gpu=place.inter_node_gbps_per_gpu,
    )


def compare(group: str, before: Any, after: Any, held: Any) -> Comparison:
    """Medians of two arrays of errors over the rows fitted and over those held out."""
    import numpy as np

    def median(errors: Any, chosen: Any) -> float | None:
        return float(np.median(errors[chosen])) if np.any(chosen) else None

    return Comparison(
        group,
        int(np.sum(~held)),
        median(before, ~held),
        median(after, ~held),
        int(np.sum(held)),
        median(before, held),
        median(after, held),
    )


def no_better(whole: Comparison) -> list[str]:
    """A warning where new constants predict rows that they have not seen worse than the old ones do."""
    old, new = whole.held_out_before, whole.held_out_after
    if old is None or new is None or new <= 1.1 * old:
        return []
    return [f"{whole.group}: held out, the new constants err more ({100 * new:.1f} %) than the old ({100 * old:.1f} %)"]


def few_rows(what: str, fitted: int, held: int) -> list[str]:
    """Warnings of a fit on few rows."""
    said = []
    if fitted < FEW_ROWS:
        said.append(f"{what}: few rows ({fitted} fitted); the constants may not carry over to other sizes")
    if held < FEW_HELD_OUT:
        said.append(f"{what}: {held} rows held out; the held-out error says little")
    return said
