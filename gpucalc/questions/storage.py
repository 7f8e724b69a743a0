"""Data and storage as a question: samples of a kind, accelerators that consume them, and a store that delivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database import defaults as db_defaults
from gpucalc.database.cluster import Cluster, resolve_cluster
from gpucalc.database.defaults import Default, Workload
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.storage import estimate_storage, limiter_of
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas import goodput
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import is_network
from gpucalc.questions.completed import complete_cells, network_pace

CORES = 14.0  # of one accelerator where none are stated: two 56-core processors beside eight accelerators
SAVE_INTERVAL = 1800.0  # s
RESTART_TARGET = 60.0  # s in which a checkpoint should be loaded
HOST_GPUS = 8  # of the host whose cards the defaults state
UNLIMITED = 1e18  # operations per second where a store states none
REFERENCE = "h100-sxm-80gb"
MOST_CACHED = 1 - 1e-6  # some reads always reach the store: the first pass fills the cache
ROOTS = (
    *("metric/samples", "metric/utilisation", "time/batch", "demand/store", "fed/whole", "fed/target", "decode/cores"),
    *("checkpoint/bandwidth/blocking", "checkpoint/bandwidth/asynchronous", "checkpoint/bandwidth/restart"),
)
LIMITERS = {
    "compute": "nothing starves: the accelerators set the pace",
    "read": "the store's read rate",
    "open": "the reader threads beside an accelerator: opening files, and the rate of one stream",
    "card": "the host's storage cards",
    "decode": "the cores that decode",
    "copy": "the link from the host to the accelerator",
}


@dataclass(frozen=True)
class Question:
    """What was asked; None leaves a value to its default. Sizes in B, times in s, rates in B/s."""

    gpu: str
    n_gpus: int
    gpus_per_node: int | None = None
    inter_node_gbps_per_gpu: float | None = None
    workload: str | None = None
    batch: float | None = None
    sample_bytes: float | None = None
    compute_time: float | None = None
    core_seconds: float | None = None
    cores: float | None = None
    read_bandwidth: float | None = None
    write_bandwidth: float | None = None
    iops: float | None = None
    threads: float | None = None  # readers beside an accelerator
    open_latency: float | None = None
    wait: float | None = None  # over the compute time, although the store keeps up
    card_rate: float | None = None  # of a host's storage cards together
    cache_hit: float | None = None
    cache_bytes: float | None = None
    dataset_bytes: float | None = None
    utilisation: float | None = None
    save_interval: float | None = None


@dataclass
class StorageResult:
    """The answer by name, what limits first, and how it came about."""

    workload: Workload
    cluster: Cluster
    limiter: str
    figures: dict[str, float]
    spread: tuple[float, float]  # of the samples per second, least and most over the expected
    terms: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def compute_time_of(workload: Workload, device: Device, db: Database) -> tuple[float, float, str]:
    """Compute time of a batch on a reference device, the ratio of peaks to it, and what that rests on."""
    if device.key in workload.compute:
        return workload.compute[device.key], 1.0, f"{workload.origin}: {workload.source}"
    reference = REFERENCE if REFERENCE in workload.compute else next(iter(workload.compute))
    known = db.device(reference)
    half = device.peak.get("bf16") or device.peak.get("fp16") or device.peak.get("fp32") or 0.0
    other = known.peak.get("bf16") or known.peak.get("fp16") or 0.0
    if not half or not other:
        raise UsageError(f"how long does a batch take on {device.key}? state --compute, such as --compute 320ms")
    return (
        workload.compute[reference],
        half / other,
        f"assumed: {reference}'s by the ratio of the peaks to the power {workload.speed_exponent:g} "
        f"({' to '.join(format(e, 'g') for e in db_defaults.reading(db).exponents[1:])} between measured devices); "
        "state --compute",
    )


def columns_of(
    workload: Workload, device: Device, question: Question, db: Database
) -> tuple[dict[str, float], list[str]]:
    """The numbers of one question, and what was taken where nothing was stated."""
    notes: list[str] = []
    values = db_defaults.defaults(db, "run")
    n = float(question.n_gpus)
    time, ratio, origin = compute_time_of(workload, device, db)
    if question.compute_time is not None:
        time, ratio = question.compute_time, 1.0
    elif question.batch is not None:
        time = time * question.batch / workload.batch  # samples per second stay those of the workload
        notes.append(f"compute time of a batch: {origin}, in proportion to --batch")
    else:
        notes.append(f"compute time of a batch: {origin}")
    sample = question.sample_bytes or workload.sample_bytes
    reading = db_defaults.reading(db)
    read = question.read_bandwidth
    if read is None:
        read = _assumed_store("read", n, values, notes)
    cores = question.cores
    core_seconds = workload.core_seconds if question.core_seconds is None else question.core_seconds
    if cores is None:
        cores = CORES
        if core_seconds:
            notes.append(f"--cores is not stated; {CORES:g} of each GPU are taken")
    return {
        "accelerators": n,
        "batch": question.batch or workload.batch,
        "sample_bytes": sample,
        "decoded_bytes": workload.decoded_bytes * (sample / workload.sample_bytes),
        "compute_time": time,
        "peak_ratio": ratio,
        "speed_exponent": workload.speed_exponent,
        "reader_threads": question.threads or workload.threads,
        "open_latency": reading.open_latency if question.open_latency is None else question.open_latency,
        "stream_rate": reading.stream_rate,
        "card_rate": (question.card_rate or reading.card_rate) / (question.gpus_per_node or HOST_GPUS),
        "wait_share": workload.wait[0] if question.wait is None else question.wait,
        "cache_hit": _cache_hit(question),
        "read_bandwidth": read,
        "iops": question.iops or UNLIMITED,
        "reads_per_sample": workload.reads_per_sample,
        "core_seconds": core_seconds,
        "cores": cores,
        "host_bandwidth": device.host_bandwidth or device.link_bandwidth or 1e10,
        "least_utilisation": question.utilisation or workload.utilisation,
    }, notes


def _assumed_store(way: str, n: float, values: Mapping[str, Default], notes: list[str]) -> float:
    """The rate of a store that nobody stated, as `run` takes it, with its range among the notes."""
    parts = values[f"{way}_per_gpu"], values[f"{way}_most"]
    rate, low, high = (
        float(goodput.store_bandwidth(n, *(getattr(one, end) for one in parts))) for end in ("value", "low", "high")
    )
    notes.append(
        f"--{way}-bandwidth is not stated; {rate / 1e9:,.4g} GB/s are taken ({low / 1e9:,.4g} to {high / 1e9:,.4g}): "
        f"{parts[0].why}; at most {parts[1].why}"
    )
    return rate


def _cache_hit(question: Question) -> float:
    from gpucalc.formulas.storage import cached_share

    if question.cache_hit is not None:
        if question.cache_bytes is not None:
            raise UsageError("--cache-hit and --cache with --dataset say the same; write one of them")
        return min(question.cache_hit, MOST_CACHED)
    if question.cache_bytes is not None:
        if question.dataset_bytes is None:
            raise UsageError("--cache needs --dataset, the size of the data that it caches")
        return min(float(cached_share(question.cache_bytes, question.dataset_bytes)), MOST_CACHED)
    return 0.0


def predict(questions: Sequence[Question], db: Database) -> Ledger:
    """The terms of several questions, one row each."""
    rows = []
    for question in questions:
        workload = db_defaults.workload(db, question.workload or "image")
        rows.append(columns_of(workload, db.device(question.gpu), question, db)[0])
    return estimate_storage(Columns({name: np.array([row[name] for row in rows]) for name in rows[0]}))


# What a sample of a network is read as; other samples are read as text is: rows, sequences, utterances.
WORKLOADS = {"image": "image", "clip": "video", "pair": "multimodal"}


def _usual_workload(cells: Mapping[str, Any] | None) -> str:
    """The data of a job that states none: those of its samples."""
    from gpucalc.models.networks.catalog import load_network, resolve_network

    if cells is None:
        return "image"
    if not is_network(cells):
        return "text"
    preset = resolve_network(str(cells.get("model") or ""))
    sample = str(cells.get("sample") or (load_network(preset).sample if preset else "image"))
    return WORKLOADS.get(sample, "text")


def storage(question: Question, context: Context, cells: Mapping[str, Any] | None = None) -> StorageResult:
    """What data and checkpoints ask of a store; `cells` is the model's job, whose tokens and checkpoints count."""
    db = context.db
    kind = question.workload or _usual_workload(cells)
    workload = db_defaults.workload(db, kind)
    cluster = resolve_cluster(
        db, question.gpu, question.n_gpus, question.gpus_per_node, question.inter_node_gbps_per_gpu, context.fabric
    )
    values = db_defaults.defaults(db, "run")
    notes: list[str] = []
    extra: dict[str, float] = {}
    if cells is not None:
        step, notes = _planned(cells, context)
        if question.workload is None:
            notes = [*notes, f"--workload is not stated; data of kind {kind} are taken"]
        if question.compute_time is None:
            # A step of the planned model feeds the question: its tokens, or one sample for each of its sequences.
            samples = question.batch or (step.tokens if workload.name == "text" else step.samples) / cluster.n_gpus
            question = replace(question, batch=samples, compute_time=step.seconds)
        writes = question.write_bandwidth
        if writes is None:
            writes = _assumed_store("write", float(question.n_gpus), values, notes)
        extra = {
            "parameters": step.parameters,
            "state_bytes": values["state_bytes"].value,
            "write_bandwidth": writes,
            "replicas": step.replicas,
            "save_interval": question.save_interval or SAVE_INTERVAL,
            "restart_target": RESTART_TARGET,
            "stall_share": values["stall_share"].value,
        }
    columns, said = columns_of(workload, cluster.device, question, db)
    ledger = estimate_storage(Columns({**columns, **extra}), trace=True)
    from gpucalc.questions.explain import ledger_tree

    if workload.name == "text":
        rate = float(ledger["demand/store"]) / 1e6
        notes.append(f"reading tokens needs next to nothing ({rate:,.3g} MB/s for all GPUs): loading and saving decide")
    return StorageResult(
        workload=workload,
        cluster=cluster,
        limiter=limiter_of(ledger),
        figures=_figures(ledger, workload.name == "text"),
        spread=(1.0, 1.0) if question.wait is not None else _spread({**columns, **extra}, workload),
        terms=ledger_tree(ledger, db, ROOTS),
        notes=[*notes, *said],
    )


@dataclass(frozen=True)
class _Planned:
    """A step of a model: its time, what it takes in, and what its checkpoints hold."""

    seconds: float
    samples: float  # sequences, pictures: of all GPUs
    tokens: float
    parameters: float
    replicas: float


def _planned(cells: Mapping[str, Any], context: Context) -> tuple[_Planned, list[str]]:
    """The step of the model that is asked about, a decoder or another network, and what was taken for it."""
    if is_network(cells):
        pace = network_pace(cells, context)
        samples = pace.samples_per_s * pace.step_time
        return _Planned(pace.step_time, samples, samples, pace.parameters, pace.replicas), pace.notes
    full, notes = complete_cells(cells, context)
    job = jobs.resolve(full, context)
    step = estimate_training(jobs.stack([job]))
    sequences = float(job.cells["global_batch"])
    planned = _Planned(
        seconds=float(step["time/step"]),
        samples=sequences,
        tokens=sequences * job.cells["seq_len"],
        parameters=float(job.model.parameters_total),
        replicas=float(job.cells["dp"] * job.cells["cp"]),
    )
    return planned, notes


FIGURES = {
    "read_gb_per_s_per_gpu": ("demand/accelerator", 1e-9),
    "read_gb_per_s_total": ("demand/store", 1e-9),
    "samples_per_s": ("metric/samples", 1.0),
    "utilisation_pct": ("metric/utilisation", 100.0),
    "compute_ms": ("time/compute", 1e3),
    "read_ms": ("time/read", 1e3),
    "wait_ms": ("time/wait", 1e3),
    "open_ms": ("time/open", 1e3),
    "card_ms": ("time/card", 1e3),
    "decode_ms": ("time/decode", 1e3),
    "copy_ms": ("time/copy", 1e3),
    "gpus_fed": ("fed/whole", 1.0),
    "gpus_fed_at_target": ("fed/target", 1.0),
    "decode_cores_per_gpu": ("decode/cores", 1.0),
    "checkpoint_gb": ("checkpoint/size", 1e-9),
    "save_s": ("checkpoint/save", 1.0),
    "restart_s": ("checkpoint/load", 1.0),
    "restart_by_every_replica_s": ("checkpoint/load-by-all", 1.0),
    "save_bandwidth_blocking_gb_per_s": ("checkpoint/bandwidth/blocking", 1e-9),
    "save_bandwidth_async_gb_per_s": ("checkpoint/bandwidth/asynchronous", 1e-9),
    "restart_bandwidth_gb_per_s": ("checkpoint/bandwidth/restart", 1e-9),
}


TOKENS = frozenset(
    {"read_ms", "decode_ms", "copy_ms", "open_ms", "card_ms", "gpus_fed", "gpus_fed_at_target", "decode_cores_per_gpu"}
)  # of no use for text: a store feeds any number of GPUs with tokens
FIRST = ("restart_s", "restart_by_every_replica_s", "save_s", "checkpoint_gb")


def _figures(ledger: Ledger, text: bool) -> dict[str, float]:
    """The figures; for text those of loading and saving first."""
    found = {n: float(np.asarray(ledger[p])) * f for n, (p, f) in FIGURES.items() if p in ledger}
    if not text:
        return found
    order = [*(n for n in FIRST if n in found), *(n for n in found if n not in FIRST and n not in TOKENS)]
    return {n: found[n] for n in order}


def _spread(columns: Mapping[str, float], workload: Workload) -> tuple[float, float]:
    """Least and most samples per second over the expected: what accelerators wait although the store keeps up."""
    rows = estimate_storage(Columns({**columns, "wait_share": np.array(workload.wait)}))
    samples = np.broadcast_to(np.asarray(rows["metric/samples"], dtype=float), (3,))
    return float(samples.min() / samples[0]), float(samples.max() / samples[0])
