"""`gpucalc schedule`: a job's gang on a partly used cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import JobOptions, place_of, require, require_job
from gpucalc.cli.option import option
from gpucalc.cli.output import OutputOptions, emit_document, emit_rows, to_stderr
from gpucalc.cli.values import gpu_count, positive_integer, quantity, share
from gpucalc.core.columns import parts_of
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.jobs.context import Context
    from gpucalc.jobs.training import Job
    from gpucalc.launch.target import Wrapper
    from gpucalc.questions.schedule import JobClass, NodeState, Placement

NODES_SHOWN = 12


def schedulers() -> tuple[str, ...]:
    """The schedulers whose scripts can be written."""
    from gpucalc.launch.target import wrappers

    return wrappers()


def scheduler_named(flag: str, text: str) -> Wrapper:
    """The wrapper that writes the script of a scheduler."""
    from gpucalc.launch.target import find

    found: Wrapper = find(text, ("wrap",), flag)
    if found.job != "training":
        raise UsageError(f"{flag} {text} starts servers; a gang is written for sbatch or k8s")
    return found


SHARES_ROUNDED = 0.011  # shares of a mix are written as whole per cents


@dataclass(frozen=True)
class GangJob(JobOptions):
    """A job whose GPUs start together; several numbers of them where networks are compared."""

    n_gpus: str | None = option("--gpus N", "GPUs; with --fabrics a list grows it.")


@dataclass(frozen=True)
class StateOptions:
    """What of the cluster is free, what the gang may take of it, and how busy it is."""

    free: str | None = option("--free NODESxGPUS,…", "Free GPUs of the nodes: 40x8,6x4,10x0.")
    state: str | None = option("--state FILE.csv", "The same by node: columns node, free, leaf.", files=True)
    leaf_nodes: int = option(
        "--leaf-nodes N", "Nodes below one leaf switch, where none are named.", default="32", read=positive_integer
    )
    per_node: int | None = option(
        "--per-node N", "GPUs that the gang takes of one node; whole nodes.", read=positive_integer
    )
    load: float | None = option("--load SHARE", "Share of the cluster in use, 85%: the queue wait.", read=share())
    mean_run: float | None = option("--mean-run T", "Mean run time of the jobs, 4h.", read=quantity("s"))
    median_run: float | None = option("--median-run T", "Their median, which tells their spread.", read=quantity("s"))
    mix: str | None = option(
        "--mix GPUS:SHARE:MEAN,…", "Classes of jobs instead: 8:70%:1h,64:30%:12h, GPUs, share of jobs, mean run."
    )
    neighbours: float | None = option(
        "--neighbours SHARE",
        "Of the other nodes of a leaf, those whose jobs use its uplinks too; all.",
        read=share(whole=True, zero=True),
    )


@command(group="The whole cluster")
def schedule(
    *,
    job: GangJob,
    state: StateOptions,
    fabrics: bool = option("--fabrics", "Compare the topologies of the database for the layout instead."),
    to: Wrapper | None = option(
        "--to TARGET",
        lambda: f"Write the script of {' or '.join(schedulers())} for the best.",
        read=scheduler_named,
        complete=schedulers,
    ),
    output: OutputOptions,
) -> int:
    """Does a job's gang fit on a partly used cluster, where is it best, and how long does it wait?

    With a MODEL and a --layout placements are ranked by the step time; --fabrics compares networks at scale.

    \b
    gpucalc schedule --gpu h100-sxm-80gb --gpus 64 --free 20x8,6x4,10x0
    """
    context = job.context()
    sizes = _sizes(job.n_gpus, fabrics)
    cells = job.cells()
    if sizes:
        cells.setdefault("n_gpus", sizes[0])
    require(cells, "gpu", *(() if "dp" in cells else ("n_gpus",)))
    whole = job.model is not None and job.layout is not None
    if whole:
        require_job(cells)
    elif job.model is not None or job.layout is not None or fabrics or to is not None:
        raise UsageError("a MODEL and a --layout belong together here (the label of a plan row)")
    resolved = _job(cells, context) if whole else None
    if fabrics and resolved is not None:
        grown = [resolved, *(_job(_grown(resolved.cells, cells, n), context) for n in sizes[1:])]
        return _fabrics(grown, context.db, job.topology, output)
    gang = Gang(cells, resolved, _cluster(resolved, cells, context), state.per_node)
    return _place(gang, state, context, to, output)


@dataclass(frozen=True)
class Gang:
    """GPUs that start together, with the job that they run where one is stated."""

    cells: Mapping[str, Any]
    job: Job | None
    cluster: Cluster
    per_node: int | None

    @property
    def block(self) -> int:
        """GPUs that it takes of one node."""
        whole = self.cluster.gpus_per_node
        size = min(whole, self.cluster.n_gpus) if self.per_node is None else self.per_node
        if self.cluster.n_gpus % size or size > whole:
            n = self.cluster.n_gpus
            near = f"take {max(1, n // size) * size} or {-(-n // size) * size} GPUs, or other blocks with --per-node"
            if size > whole:
                near = f"at most --per-node {whole}"
            raise UsageError(f"{n} GPUs are not a multiple of blocks of {size} on nodes of {whole}; {near}")
        return size

    @property
    def blocks(self) -> int:
        """Nodes that it takes."""
        return self.cluster.n_gpus // self.block


def _cluster(job: Job | None, cells: Mapping[str, Any], context: Context) -> Cluster:
    from gpucalc.database.cluster import resolve_cluster

    return job.cluster if job is not None else resolve_cluster(context.db, **place_of(cells), fabric=context.fabric)


def _sizes(text: str | None, several: bool) -> list[int]:
    """The numbers of GPUs of --gpus; more than one only where networks are compared."""
    if text is None:
        return []
    if not several and "," in text:
        bare = text.replace(",", "")
        raise UsageError(f"--gpus {text} may be a list or one number; write {bare}, or --fabrics with a list")
    parts = [text] if not several else parts_of("--gpus", text, "number of GPUs")
    return [gpu_count("--gpus", part) for part in parts]


def _grown(full: Mapping[str, Any], cells: Mapping[str, Any], n_gpus: int) -> dict[str, Any]:
    """The job on `n_gpus`: more replicas of the same layout, and a batch in proportion (weak scaling)."""
    group = full["tp"] * full["pp"] * full["cp"]
    if n_gpus % group:
        raise UsageError(f"{n_gpus:,} GPUs are not a whole number of replicas of tp·pp·cp = {group}")
    batch = round(full["global_batch"] * (n_gpus // group) / full["dp"])
    return {**cells, "n_gpus": n_gpus, "dp": n_gpus // group, "global_batch": batch}


def _job(cells: Mapping[str, Any], context: Context) -> Job:
    from gpucalc.jobs.training import resolve

    return resolve(cells, context)


def _nodes(state: StateOptions) -> list[NodeState]:
    """The nodes of the cluster with what is free on each."""
    from gpucalc.questions import schedule as scheduler

    if (state.free is None) == (state.state is None):
        raise UsageError("what is free? write either --free 40x8,6x4 or --state nodes.csv")
    if state.free is not None:
        return scheduler.nodes_of_groups(state.free, state.leaf_nodes)
    return scheduler.nodes_of_file(state.state or "", state.leaf_nodes)


def _place(gang: Gang, state: StateOptions, context: Context, to: Wrapper | None, output: OutputOptions) -> int:
    from gpucalc.questions import schedule as scheduler

    cluster = gang.cluster
    nodes = _nodes(state)
    most = max(n.free for n in nodes)
    if most > cluster.gpus_per_node:
        raise UsageError(
            f"a node has {most} free GPUs, and a node of {cluster.device.key} holds {cluster.gpus_per_node}"
        )
    queue = _queue(nodes, gang, state)
    if queue and queue[0]["run_variation"] > scheduler.NOISY_VARIATION:
        to_stderr(
            f"note: run times of a variation of {queue[0]['run_variation']:.1f} are mostly those of small jobs; above "
            f"{scheduler.NOISY_VARIATION:g} the mean wait says little: state --mix, or the runs of jobs of this size"
        )
    shape = cluster.topology
    neighbours = 1.0 if state.neighbours is None else state.neighbours
    placed = scheduler.placements(nodes, gang.blocks, gang.block)
    ranked = scheduler.score(placed, gang.job, shape.oversubscription, neighbours)
    before = scheduler.filter_gang(nodes, gang.blocks, gang.block)
    best = ranked[0][0]
    if to is not None:
        sys.stdout.write(_script(gang.cells, context, to, best))
        to_stderr(f"note: {_best(best)}")
        return ExitStatus.OK
    rows = [
        {
            "strategy": p.strategy,
            "leaves": p.leaves,
            "nodes": len(p.blocks),
            "step_time_s": step,
            "blocks_left": p.blocks_left,
            "fragmentation_pct": 100 * p.fragmentation,
            "node_list": _short(list(p.blocks)) if output.form in {"table", "md"} else " ".join(p.blocks),
        }
        for p, step in ranked
    ]
    free = sum(n.free for n in nodes)
    if output.json:
        document = {
            "gang": {"gpus": cluster.n_gpus, "block": gang.block, "blocks": gang.blocks},
            "free_gpus": free,
            "blocks_free": float(before["filter/blocks"]),
            "fragmentation_pct": 100 * float(before["filter/fragmentation"]),
            "placements": rows,
            "queue": queue,
        }
        emit_document(document)
        return ExitStatus.OK
    output.rows([n for n in rows[0] if n != "step_time_s" or gang.job is not None], rows)
    if queue and output.form == "table":
        sys.stdout.write("\n")
        emit_rows(output.form, list(queue[0]), queue)
    lines = [
        "",
        f"fits: {gang.blocks:,} blocks of {gang.block} GPUs of {int(before['filter/blocks']):,} that {free:,} free "
        f"GPUs hold; {100 * float(before['filter/fragmentation']):.0f} % of them are in smaller pieces",
        _best(best),
    ]
    if gang.job is not None:
        lines.append(f"step times on {shape.name} ({shape.oversubscription:g}:1 above the leaf)")
    if queue:
        lines.append(
            "waits hold for gangs of this size that share the whole cluster; run times of research clusters spread so "
            "widely that a mean misleads: read the quantiles"
        )
    to_stderr(*lines)
    return ExitStatus.OK


def _script(cells: Mapping[str, Any], context: Context, wrapper: Wrapper, best: Placement) -> str:
    """A layout's launch in the script of a scheduler, bound to the nodes of a placement."""
    from gpucalc.launch import export, target_named
    from gpucalc.launch.job import Placed, make_launch

    target = target_named(wrapper.launcher)
    launch = make_launch(cells, context, target.profile, target.usual)
    return export(launch, target, wrapper, placed=Placed(tuple(best.blocks), best.leaves, best.strategy))[0]


def _queue(nodes: Sequence[NodeState], gang: Gang, state: StateOptions) -> list[dict[str, Any]]:
    """Mean wait and quantiles of a gang of this size; none without a load."""
    from gpucalc.questions import schedule as scheduler

    mean, median = state.mean_run, state.median_run
    if state.load is None:
        if mean is not None or median is not None or state.mix is not None:
            raise UsageError("--mean-run, --median-run and --mix need --load, the share of the cluster in use")
        return []
    if state.mix is not None:
        if mean is not None or median is not None:
            raise UsageError("--mix states the run times of its classes; leave --mean-run and --median-run out")
        mixed, spread = scheduler.mixed_runs(_classes(state.mix), gang.cluster.n_gpus)
        return scheduler.wait(_servers(nodes, gang), state.load, mixed, run_variation=spread)
    if mean is None:
        raise UsageError("--load needs --mean-run, such as 4h")
    variation = None
    if median is not None:
        if median > mean:
            raise UsageError(
                f"--median-run of {median:g} s is above --mean-run of {mean:g} s; run times have a long tail to the "
                "right"
            )
        from gpucalc.formulas.gang import run_time_variation

        variation = float(run_time_variation(mean, median))
    return scheduler.wait(_servers(nodes, gang), state.load, mean, run_variation=variation)


def _servers(nodes: Sequence[NodeState], gang: Gang) -> int:
    """How many such gangs the whole cluster holds."""
    servers = len(nodes) * (gang.cluster.gpus_per_node // gang.block) // gang.blocks
    if servers < 1:
        raise UsageError("the whole cluster is smaller than the gang; it would wait for ever")
    return servers


def _classes(text: str) -> list[JobClass]:
    """The classes of jobs of a text such as 8:70%:1h,64:30%:12h."""
    from gpucalc.questions.schedule import JobClass

    found = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        gpus, _, rest = part.partition(":")
        portion, _, run = rest.partition(":")
        if not (gpus and portion and run):
            raise UsageError(f"--mix has {part!r}; write GPUs, share of jobs and mean run, such as 8:70%:1h")
        found.append(
            JobClass(positive_integer("--mix", gpus), share(whole=True)("--mix", portion), quantity("s")("--mix", run))
        )
    if not found:
        raise UsageError("--mix names no class; write GPUs, share of jobs and mean run, such as 8:70%:1h,64:30%:12h")
    total = sum(one.share for one in found)
    if abs(total - 1) > SHARES_ROUNDED:
        raise UsageError(f"the shares of --mix make up {100 * total:g} % of the jobs; they must make up 100 %")
    return found


def _best(best: Placement) -> str:
    return (
        f"best: {best.strategy}, {len(best.blocks)} nodes on {best.leaves} leaf switches: {_short(list(best.blocks))}"
    )


def _short(names: list[str]) -> str:
    return " ".join(names[:NODES_SHOWN]) + (f" … ({len(names)} nodes)" if len(names) > NODES_SHOWN else "")


def _fabrics(grown: list[Job], db: Database, topology: str | None, output: OutputOptions) -> int:
    from gpucalc.questions import schedule as scheduler

    shapes = [db.topology(topology)] if topology is not None else db.topologies()
    rows = [row for job in grown for row in sorted(scheduler.at_scale(job, shapes), key=lambda r: r["step_time_s"])]
    if output.json:
        emit_document({"rows": rows})
    else:
        output.rows(list(rows[0]), rows)
    said = [
        "rings slow down only where more flows leave a pod than its uplinks carry, all-to-all by the share that leaves"
    ]
    if output.columns is None:
        said.append("scattered: the same job on nodes in no order, where every hop of a ring may leave a pod")
    to_stderr("", *said)
    return ExitStatus.OK
