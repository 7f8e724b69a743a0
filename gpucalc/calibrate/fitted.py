"""A user's own measurements → constants of the shipped forms, as an overlay of the hardware database.

What the rows do not determine keeps its value: a constant that no row depends on, or that cannot be told
apart from others in these rows, is left as it was, and the reader is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import DataError

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
