"""A step as a run needs it: of a job on one kind of GPU, or of a plan on several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpucalc.core.ledger import Ledger
from gpucalc.database import defaults as db_defaults
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.defaults import Default
from gpucalc.database.reader import Database
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import NetworkJob
from gpucalc.questions.mixed_cuts import MixedStep
from gpucalc.questions.power import is_rack, load_watts


@dataclass(frozen=True)
class RunStep:
    """What a run reads of its step. Rates in tokens per second and GPU, watts of a GPU on average."""

    model: str
    layout: str
    gpus: Mapping[str, int]  # device → GPUs
    names: str  # the cluster as people read it
    parameters: float
    nodes: float
    gpus_per_node: float
    rack_gpus: float  # of a rack that shares one scale-up domain; 0 where there is none
    replicas: float
    holders: float  # GPUs over which the state is cut
    host_bandwidth: float
    network_bandwidth: float
    step_time: float
    token_rate: float
    mfu: float
    straggler: float
    band: tuple[float, float]
    fit: str
    watts: tuple[float, Default] | None  # as `power.load_watts`; None where energy is left out
    file: str  # of the device without a limit
    notes: list[str] = field(default_factory=list)

    @property
    def n_gpus(self) -> int:
        """All GPUs."""
        return sum(self.gpus.values())


def step_of_job(job: jobs.Job, step: Ledger, layout: str, fit: str, db: Database) -> RunStep:
    """The step of a job on one kind of GPU, from its ledger."""
    cluster, device = job.cluster, job.cluster.device
    n, rack = float(cluster.n_gpus), is_rack(cluster)
    values = db_defaults.defaults(db, "power")
    return RunStep(
        model=job.model.name,
        layout=layout,
        gpus={device.key: cluster.n_gpus},
        names=f"{cluster.n_gpus:,} x {device.name}",
        parameters=float(job.model.parameters_total),
        nodes=float(cluster.n_nodes),
        gpus_per_node=float(cluster.gpus_per_node),
        rack_gpus=float(cluster.domain) if rack else 0.0,
        replicas=float(job.cells["dp"]),
        holders=n if job.cells["zero_stage"] >= 1 else n / (job.cells["dp"] * job.cells["cp"]),
        host_bandwidth=device.host_bandwidth or cluster.network_bandwidth_per_gpu,
        network_bandwidth=cluster.network_bandwidth_per_gpu,
        step_time=float(step["time/step"]),
        token_rate=float(step["metric/tokens_per_s_per_gpu"]),
        mfu=float(step["metric/mfu"]),
        straggler=float(step["step/straggler"]),
        band=jobs.job_band(job),
        fit=fit,
        watts=load_watts(values, device, in_rack=rack),
        file=device.file,
        notes=list(job.remarks),
    )


def step_of_network(job: NetworkJob, row: Mapping[str, Any], layout: str, db: Database) -> RunStep:
    """The step of a network that is no decoder, from its predicted columns; its tokens are samples."""
    cluster, device = job.cluster, job.cluster.device
    n, rack = float(cluster.n_gpus), is_rack(cluster)
    seconds = float(row["pred_step_time_s"])
    return RunStep(
        model=job.network.name,
        layout=layout,
        gpus={device.key: cluster.n_gpus},
        names=f"{cluster.n_gpus:,} x {device.name}",
        parameters=float(job.network.parameters),
        nodes=float(cluster.n_nodes),
        gpus_per_node=float(cluster.gpus_per_node),
        rack_gpus=float(cluster.domain) if rack else 0.0,
        replicas=float(job.cells["dp"]),
        holders=n if int(job.cells.get("zero_stage") or 0) >= 1 else n / job.cells["dp"],
        host_bandwidth=device.host_bandwidth or cluster.network_bandwidth_per_gpu,
        network_bandwidth=cluster.network_bandwidth_per_gpu,
        step_time=seconds,
        token_rate=float(row["pred_samples_per_s"]) / n,
        mfu=float(row["pred_mfu_pct"]) / 100,
        straggler=1.0,  # jitter is a term of the step itself
        band=(row["pred_step_time_low_s"] / seconds, row["pred_step_time_high_s"] / seconds),
        fit=str(row["pred_fit"]),
        watts=load_watts(db_defaults.defaults(db, "power"), device, in_rack=rack),
        file=device.file,
        notes=list(job.warnings),
    )


def step_of_mixed(found: MixedStep, context: Context) -> RunStep:
    """The step of a plan on several kinds of GPU: rates of the slowest, watts of all of them together."""
    db = context.db
    values = db_defaults.defaults(db, "power")
    parts = {key: resolve_cluster(db, key, count) for key, count in found.cuts.gpus.items()}
    n = float(found.n_gpus)
    drawn = {key: load_watts(values, part.device, in_rack=is_rack(part)) for key, part in parts.items()}
    some = next(iter(found.jobs.values()))
    missing = next((key for key, watts in drawn.items() if watts is None), "")
    row_tokens = found.columns["global_batch"] * found.columns["seq_len"]
    nodes = sum(float(part.n_nodes) for part in parts.values())
    return RunStep(
        model=some.model.name,
        layout=found.cuts.text(),
        gpus=found.cuts.gpus,
        names=" + ".join(f"{part.n_gpus:,} x {part.device.name}" for part in parts.values()),
        parameters=float(some.model.parameters_total),
        nodes=nodes,
        gpus_per_node=n / nodes,
        rack_gpus=0.0,
        replicas=float(found.cuts.replicas),
        holders=n if some.cells["zero_stage"] >= 1 else n / found.cuts.replicas,
        host_bandwidth=min(p.device.host_bandwidth or p.network_bandwidth_per_gpu for p in parts.values()),
        network_bandwidth=min(p.network_bandwidth_per_gpu for p in parts.values()),
        step_time=found.step_time,
        token_rate=row_tokens / found.step_time / n,
        mfu=found.mfu,
        straggler=float(found.columns["straggler"]),
        band=found.band,
        fit=jobs.fit_of(found.fill),
        watts=None if missing else _joined_watts({k: w for k, w in drawn.items() if w is not None}, found.cuts.gpus),
        file=db.device(missing).file if missing else "",
        notes=list(found.notes),
    )


def _joined_watts(drawn: Mapping[str, tuple[float, Default]], gpus: Mapping[str, int]) -> tuple[float, Default]:
    """Mean limit of a GPU, and the load factor of all nodes together, with its ends."""
    counts = np.array([float(gpus[key]) for key in drawn])
    boards = np.array([board for board, _ in drawn.values()])
    total = float(np.sum(counts * boards))

    def joined(name: str) -> float:
        return float(np.sum(counts * boards * [getattr(factor, name) for _, factor in drawn.values()])) / total

    ends: dict[str, Any] = {name: joined(name) for name in ("value", "low", "high")}
    why = "; ".join(f"{key}: {factor.origin}: {factor.why}" for key, (_, factor) in drawn.items())
    first = next(iter(drawn.values()))[1]
    return total / float(np.sum(counts)), replace(first, **ends, why=why)
