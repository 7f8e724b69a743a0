"""One plan on several kinds of GPU, stated cut by cut: the layers of each stage, and the GPUs that hold it.

Written as the layers of a stage and, for each data-parallel replica, the kind and number of GPUs that share it:
`16:a100-sxm-80gbx4*2+h100-sxm-80gbx4*2 | 16:h100-sxm-80gbx4*4` are two stages of 16 layers, four replicas, tensor
parallelism of four; the first two replicas begin on A100. So stages and replicas may mix kinds. With context
parallelism the number after the kind is that of the tensor-parallel times the context-parallel GPUs.

Each stage is timed by the training estimate of its own GPUs; where two kinds meet, at the rate between them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.units import GIB, GIGABIT
from gpucalc.database import defaults as db_defaults
from gpucalc.database.reader import Database
from gpucalc.estimate.mixed import estimate_mixed, stage_column
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context

OF_CUTS = frozenset({"gpu", "n_gpus", "tp", "pp", "dp", "vpp", "schedule"})  # cells that a plan decides
PER_LAYER = (
    *("layers", "attention_layers", "latent_layers", "window_layers", "linear_layers"),
    *("dense_layers", "moe_layers"),
)
WIDER = 1.25  # the band of a mixed plan over those of its kinds: docs/mixed.md, "How sure"
MOST_STAGES, MOST_REPLICAS = 64, 4096
MEMBER = re.compile(r"^(?P<gpu>.+?)x(?P<size>\d+)(?:\*(?P<times>\d+))?$")
EXAMPLE = "16:a100-sxm-80gbx4+h100-sxm-80gbx4 | 16:h100-sxm-80gbx4*2"


@dataclass(frozen=True)
class Member:
    """The GPUs of one kind that hold a stage of one replica: tensor-parallel times context-parallel."""

    gpu: str
    size: int


@dataclass(frozen=True)
class Stage:
    """Layers of a pipeline stage, and the GPUs of each replica that hold it."""

    layers: int
    members: tuple[Member, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of GPU of the stage, each once."""
        return tuple(dict.fromkeys(m.gpu for m in self.members))


@dataclass(frozen=True)
class Cuts:
    """A whole plan: its stages in order."""

    stages: tuple[Stage, ...]

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return len(self.stages[0].members)

    @property
    def gpus(self) -> dict[str, int]:
        """device → GPUs of the plan."""
        found: dict[str, int] = {}
        for stage in self.stages:
            for member in stage.members:
                found[member.gpu] = found.get(member.gpu, 0) + member.size
        return found

    def classes(self) -> dict[tuple[Member, ...], int]:
        """Replicas that run over the same kinds of GPU → how many of them there are."""
        found: dict[tuple[Member, ...], int] = {}
        for one in range(self.replicas):
            path = tuple(stage.members[one] for stage in self.stages)
            found[path] = found.get(path, 0) + 1
        return found

    def text(self) -> str:
        """The plan as it is written."""
        parts = []
        for stage in self.stages:
            runs: list[tuple[Member, int]] = []
            for member in stage.members:
                if runs and runs[-1][0] == member:
                    runs[-1] = (member, runs[-1][1] + 1)
                else:
                    runs.append((member, 1))
            said = "+".join(f"{m.gpu}x{m.size}" + (f"*{count}" if count > 1 else "") for m, count in runs)
            parts.append(f"{stage.layers}:{said}")
        return " | ".join(parts)


def read_cuts(text: str, db: Database) -> Cuts:
    """A plan from its text; UsageError with what is wrong of it."""
    stages = []
    for part in (p.strip() for p in text.split("|")):
        layers, colon, rest = part.partition(":")
        if not colon or not layers.strip().removesuffix("L").isdigit() or int(layers.strip().removesuffix("L")) < 1:
            raise UsageError(f"--stages has {part!r}; write the layers of a stage and its GPUs, such as {EXAMPLE}")
        members: list[Member] = []
        for one in (m.strip() for m in rest.split("+")):
            match = MEMBER.match(one)
            if match is None or int(match["size"]) < 1 or int(match["times"] or 1) < 1:
                raise UsageError(
                    f"--stages has {one!r}; write a GPU and how many hold the stage, such as h100-sxm-80gbx4"
                )
            members += [Member(db.device_key(match["gpu"].strip()), int(match["size"]))] * int(match["times"] or 1)
            if len(members) > MOST_REPLICAS:
                raise UsageError(f"--stages names more than {MOST_REPLICAS:,} replicas")
        stages.append(Stage(int(layers.strip().removesuffix("L")), tuple(members)))
    if len(stages) > MOST_STAGES:
        raise UsageError(f"--stages names {len(stages)} stages, more than {MOST_STAGES}")
    counts = {len(stage.members) for stage in stages}
    if len(counts) > 1:
        raise UsageError(
            f"the stages have {', '.join(str(len(s.members)) for s in stages)} replicas; each needs as many as the "
            "others"
        )
    return Cuts(tuple(stages))


def cuts_of_replicas(kinds: Sequence[tuple[str, int]], size: int, pp: int, layers: int) -> Cuts:
    """Whole replicas of one layout on each kind, of which there are so many GPUs; the last stages one layer shorter.

    `size`: GPUs of a stage.

    >>> cuts_of_replicas([("a", 4), ("b", 8)], 2, 2, 5).text()
    '3:ax2+bx2*2 | 2:ax2+bx2*2'
    """
    members = tuple(Member(key, size) for key, count in kinds for _ in range(count // (size * pp)))
    even, more = divmod(layers, pp)
    return Cuts(tuple(Stage(even + (1 if place < more else 0), members) for place in range(pp)))


def cuts_of_stages(kinds: Sequence[tuple[str, int, int]], size: int, dp: int, layers: int) -> Cuts:
    """Whole stages on each kind, in the order given: device, stages, layers of a stage, of which some hold one fewer.

    `size`: GPUs of a stage of one replica.

    >>> cuts_of_stages([("a", 2, 3), ("b", 2, 4)], 4, 2, 13).text()
    '3:ax4*2 | 3:ax4*2 | 4:bx4*2 | 3:bx4*2'
    """
    held = [key for key, count, _ in kinds for _ in range(count)]
    depths = [depth for _, count, depth in kinds for _ in range(count)]
    over = sum(depths) - layers
    for place in range(len(depths) - 1, -1, -1):
        if over > 0 and depths[place] > 1:
            depths[place] -= 1
            over -= 1
    return Cuts(tuple(Stage(depth, (Member(key, size),) * dp) for key, depth in zip(held, depths, strict=True)))


@dataclass
class MixedStep:
    """What a plan takes, and how it came about."""

    cuts: Cuts
    micro_batches: dict[tuple[Member, ...], int]
    ledger: Ledger
    columns: dict[str, Any]
    jobs: dict[Any, jobs.Job]
    band: tuple[float, float]
    memory: dict[str, float]  # device → bytes of its worst GPU
    recompute: dict[str, str]  # device → what it recomputes
    fill: float
    mfu: float
    notes: list[str] = field(default_factory=list)

    @property
    def step_time(self) -> float:
        """Seconds of a step."""
        return float(np.asarray(self.ledger["time/step"]))

    @property
    def n_gpus(self) -> int:
        """GPUs of the plan."""
        return sum(self.cuts.gpus.values())


@dataclass(frozen=True)
class _Key:
    """What decides the time of a stage on one member's GPUs."""

    member: Member
    layers: int
    meets: bool  # other kinds, in its stage or beside it


def mixed_step(cells: Mapping[str, Any], cuts: Cuts, context: Context, *, trace: bool = False) -> MixedStep:
    """The step of a job on a stated plan.

    `cells` are those of a job without its cluster and layout; `between_gbps` the rate per GPU between kinds (the slower
    of the two without it), `micro_batches` what each kind of replica runs (as many as the others without it).
    Raises UsageError for a plan that does not fit the model or the batch.
    """
    stated = {n: v for n, v in cells.items() if v is not None}
    shares, between = stated.pop("micro_batches", None), stated.pop("between_gbps", None)
    base, whole = _jobs(stated, cuts, between, context)
    layers = whole.model.layers
    if sum(stage.layers for stage in cuts.stages) != layers:
        raise UsageError(
            f"the stages hold {sum(stage.layers for stage in cuts.stages)} layers, the model has {layers}; the "
            "embedding and the head are no layers"
        )
    micro = int(stated.get("micro_batch") or 1)
    counts = _micro_batches(int(stated["global_batch"]), micro, cuts, shares)
    keys = list(base)
    ledger = estimate_training(jobs.stack([*(base[key] for key in keys), whole]))
    place = {key: i for i, key in enumerate(keys)}

    def at(path: str, key: _Key | None) -> float:
        rows = np.broadcast_to(np.asarray(ledger[path], dtype=float), (len(keys) + 1,))
        return float(rows[-1 if key is None else place[key]])

    columns = _columns(cuts, counts, at, micro_batch_cost(whole.profile.name, context.db))
    columns |= {
        "straggler": max(at("step/straggler", key) for key in keys),
        "global_batch": float(stated["global_batch"]),
        "seq_len": float(whole.cells["seq_len"]),
        "n_gpus": float(sum(cuts.gpus.values())),
    }
    joined = estimate_mixed(Columns(columns), len(counts), len(cuts.stages), trace=trace)
    bands = [jobs.job_band(job) for job in base.values()]
    memory: dict[str, float] = {}
    recompute: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: at("symbol/full_share", key)):
        share, depth = at("symbol/full_share", key), at("stage/layers/second", key)
        recompute[key.member.gpu] = jobs.recompute_text(base[key].cells.get("recompute"), share, depth)
    for key in keys:
        memory[key.member.gpu] = max(memory.get(key.member.gpu, 0.0), at("memory/total", key))
    step = float(np.asarray(joined["time/step"]))
    work = at("flops/step", None) * int(stated["global_batch"]) / float(whole.columns["global_batch"])
    peak = sum(n * base_peak(base, gpu) for gpu, n in cuts.gpus.items())
    return MixedStep(
        cuts=cuts,
        micro_batches=counts,
        ledger=joined,
        columns=columns,
        jobs=dict(base),
        band=(min(b[0] for b in bands) / WIDER, max(b[1] for b in bands) * WIDER),
        memory=memory,
        recompute=recompute,
        fill=max(at("memory/fill", key) for key in keys),
        mfu=work / (step * peak) if peak else 0.0,
        notes=[w for job in list(base.values())[:1] for w in job.warnings],
    )


def micro_batch_cost(profile: str, db: Database) -> float:
    """Seconds that the host of a software adds to each micro-batch of a stage; those of old engines unless stated."""
    values = db_defaults.defaults(db, "training")
    return values.get(f"micro_batch_cost_{profile}", values["micro_batch_cost"]).value


def base_peak(base: Mapping[Any, jobs.Job], gpu: str) -> float:
    """Dense peak of the job's precision on a kind of GPU."""
    job = next(job for key, job in base.items() if key.member.gpu == gpu)
    return float(job.cluster.device.precision_peak(job.cells["precision"]))


def _neighbours(cuts: Cuts, stage: int, member: Member, replica: int) -> bool:
    """Whether a member meets another kind: in its stage, or as the stage before or behind it."""
    beside = [cuts.stages[i].members[replica].gpu for i in (stage - 1, stage + 1) if 0 <= i < len(cuts.stages)]
    return any(gpu != member.gpu for gpu in (*cuts.stages[stage].kinds, *beside))


def _keys_of(cuts: Cuts) -> dict[tuple[int, int], _Key]:
    """(stage, replica) → what decides its time."""
    return {
        (s, r): _Key(member, stage.layers, _neighbours(cuts, s, member, r))
        for s, stage in enumerate(cuts.stages)
        for r, member in enumerate(stage.members)
    }


def _jobs(
    stated: Mapping[str, Any], cuts: Cuts, between: float | None, context: Context
) -> tuple[dict[_Key, jobs.Job], jobs.Job]:
    """The job of each distinct stage, as if all stages were like it, at the rate of what it meets; and a whole one."""
    question = {n: v for n, v in stated.items() if n not in OF_CUTS}
    devices = [context.db.device(key) for key in cuts.gpus]
    if "precision" not in question:
        common = [d.default_precision for d in devices]
        question["precision"] = next(p for p in ("fp32", "fp16", "bf16") if p in common)
    stages, replicas = len(cuts.stages), cuts.replicas
    context_parallel = int(stated.get("cp") or 1)
    micro = int(stated.get("micro_batch") or 1)
    per_replica = -(-int(stated["global_batch"]) // (micro * replicas))
    own: dict[str, float] = {}
    found: dict[_Key, jobs.Job] = {}
    for key in dict.fromkeys(_keys_of(cuts).values()):
        if key.member.size % context_parallel:
            raise UsageError(f"cp={context_parallel} does not divide the {key.member.size} {key.member.gpu} of a stage")
        cells = {
            **question,
            "gpu": key.member.gpu,
            "tp": key.member.size // context_parallel,
            "cp": context_parallel,
            "pp": stages,
            "dp": replicas,
            "n_gpus": key.member.size * stages * replicas,
            "micro_batch": micro,
            "global_batch": micro * replicas * per_replica,
            "schedule": "1f1b" if stages > 1 else "none",
            "vpp": 1,
        }
        job = jobs.resolve(cells, context)
        own[key.member.gpu] = job.cluster.network_bandwidth_per_gpu / GIGABIT
        found[key] = job
    whole = next(iter(found.values()))
    slowest = min(own.values())
    for key, job in found.items():
        rate = between or min(slowest, own[key.member.gpu])
        if key.meets and rate != own[key.member.gpu]:
            resolved = {**job.cells, "inter_node_gbps_per_gpu": rate}
            job = jobs.resolve({n: v for n, v in resolved.items() if v is not None}, context)
        scaled = {
            n: job.columns[n] * key.layers * stages / job.columns["layers"] for n in PER_LAYER if n in job.columns
        }
        found[key] = dataclasses.replace(job, columns={**job.columns, **scaled})
    return found, whole


def _micro_batches(
    batch: int, micro: int, cuts: Cuts, shares: Mapping[str, int] | None
) -> dict[tuple[Member, ...], int]:
    """Micro-batches of a replica of each kind of path; even shares, some one fewer where they do not divide.

    `shares`: what a replica runs that begins on a kind of GPU. Raises UsageError where they do not make up the batch.
    """
    if batch % micro:
        raise UsageError(f"micro_batch={micro} does not divide the global batch of {batch}")
    work, classes = batch // micro, cuts.classes()
    if shares is None:
        if work < cuts.replicas:
            raise UsageError(f"a batch of {work} micro-batches leaves some of {cuts.replicas} replicas without work")
        return dict.fromkeys(classes, -(-work // cuts.replicas))
    missing = {path[0].gpu for path in classes} - set(shares)
    if missing:
        raise UsageError(f"micro_batches says nothing of {', '.join(sorted(missing))}, on which replicas begin")
    found = {path: int(shares[path[0].gpu]) for path in classes}
    held = sum(count * found[path] for path, count in classes.items())
    if held < work or held - work >= cuts.replicas:
        raise UsageError(f"micro_batches make up {held}, the batch has {work}")
    return found


def _columns(cuts: Cuts, counts: Mapping[tuple[Member, ...], int], at: Any, cost: float) -> dict[str, Any]:
    """The figures of each stage of each kind of replica, and of the exchange in each stage.

    `cost`: what the host adds to a micro-batch of a stage.
    """
    keys, last = _keys_of(cuts), len(cuts.stages) - 1
    columns: dict[str, Any] = {}
    for place, path in enumerate(counts):
        replica = next(r for r in range(cuts.replicas) if tuple(stage.members[r] for stage in cuts.stages) == path)
        columns[f"replica_{place + 1}_micro_batches"] = float(counts[path])
        for s in range(len(cuts.stages)):
            key = keys[s, replica]
            head = at("head/time", key) if s == last else 0.0
            columns[stage_column(place, s, "time")] = at("stage/time", key) + head + cost
            onward = keys.get((s + 1, replica), key)
            columns[stage_column(place, s, "hop")] = max(at("pp/transfer", key), at("pp/transfer", onward)) * (s < last)
    for s in range(len(cuts.stages)):
        own = {keys[s, r] for r in range(cuts.replicas)}
        columns[f"stage_{s + 1}_exchange"] = max(at("time/dp/exposed", key) for key in own)
        columns[f"stage_{s + 1}_update"] = max(at("time/optimizer", key) for key in own)
    return columns


def mixed_row(found: MixedStep) -> dict[str, Any]:
    """The predicted columns of a plan."""
    step = found.step_time
    tokens = found.columns["global_batch"] * found.columns["seq_len"]
    same = set(found.recompute.values())
    return {
        "stages": found.cuts.text(),
        "pred_step_time_s": step,
        "pred_step_time_low_s": step * found.band[0],
        "pred_step_time_high_s": step * found.band[1],
        "pred_tokens_per_s_per_gpu": tokens / step / found.n_gpus,
        "pred_mfu_pct": 100 * found.mfu,
        "pred_peak_mem_gib": max(found.memory.values()) / GIB,
        "pred_fit": jobs.fit_of(found.fill),
        "pred_recompute": same.pop() if len(same) == 1 else ", ".join(f"{k} {v}" for k, v in found.recompute.items()),
    }


def read_micro_batches(text: str, db: Database) -> dict[str, int]:
    """What a replica runs that begins on each kind, from a text such as a100-sxm-80gb:4,h100-sxm-80gb:8."""
    found: dict[str, int] = {}
    for part in (p.strip() for p in text.split(",") if p.strip()):
        name, colon, count = part.rpartition(":")
        if not colon or not count.strip().isdigit() or int(count) < 1:
            raise UsageError(f"--micro-batches has {part!r}; write a kind and a number, such as h100-sxm-80gb:8")
        found[db.device_key(name.strip())] = int(count)
    return found
