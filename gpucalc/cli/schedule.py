"""`gpucalc schedule`: a job's gang on a partly used cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import ExitStatus, UsageError
from gpucalc.jobs.context import Context
from gpucalc.launch.target import Wrapper, find, wrappers

_TO = f"Write the script of {' or '.join(wrappers())} for the best."
NODES_SHOWN = 12


def schedule(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: Annotated[opt.Text, typer.Option("--gpus", metavar="N", help="GPUs; with --fabrics a list grows it.")] = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    layout: opt.LayoutLabel = None,
    precision: opt.Precision = None,
    free: Annotated[
        opt.Text, typer.Option("--free", metavar="NODESxGPUS,…", help="Free GPUs of the nodes: 40x8,6x4,10x0.")
    ] = None,
    state: Annotated[
        opt.Text, typer.Option("--state", metavar="FILE.csv", help="The same by node: columns node, free, leaf.")
    ] = None,
    leaf_nodes: Annotated[
        str, typer.Option("--leaf-nodes", metavar="N", help="Nodes below one leaf switch, where none are named.")
    ] = "32",
    per_node: Annotated[
        opt.Text, typer.Option("--per-node", metavar="N", help="GPUs that the gang takes of one node; whole nodes.")
    ] = None,
    topology: Annotated[
        opt.Text, typer.Option("--topology", metavar="KEY", help="Network between leaves; the node's usual one.")
    ] = None,
    utilisation: Annotated[
        opt.Text, typer.Option("--load", metavar="SHARE", help="Share of the cluster in use, 85%: the queue wait.")
    ] = None,
    mean_run: Annotated[
        opt.Text, typer.Option("--mean-run", metavar="T", help="Mean run time of the jobs, 4h.")
    ] = None,
    median_run: Annotated[
        opt.Text, typer.Option("--median-run", metavar="T", help="Their median, which tells their spread.")
    ] = None,
    fabrics: Annotated[
        bool, typer.Option("--fabrics", help="Compare the topologies of the database for the layout instead.")
    ] = False,
    to: Annotated[opt.Text, typer.Option("--to", metavar="TARGET", help=_TO)] = None,
    settings: opt.Settings = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    db: opt.Databases = None,
) -> int:
    """Does a job's gang fit on a partly used cluster, where is it best, and how long does it wait?

    With a MODEL and a --layout placements are ranked by the step time; --fabrics compares networks at scale.

    \b
    gpucalc schedule --gpu h100-sxm-80gb --gpus 64 --free 20x8,6x4,10x0
    """
    form = opt.chosen_format(form)
    wrapper: Wrapper | None = find(to, ("wrap",), "--to") if to is not None else None
    database = opt.open_database(db)
    context = Context(database, profile, fabric)
    sizes = _sizes(gpus, fabrics)
    cells = _cells(model, gpu, str(sizes[0]) if sizes else None, seq_len, global_batch, layout, precision, settings)
    opt.require(cells, "gpu", *(() if "dp" in cells else ("n_gpus",)))
    if model is not None and layout is not None:
        opt.require(cells, "model", "seq_len", "global_batch")
    elif model is not None or layout is not None or fabrics or to is not None:
        raise UsageError("a MODEL and a --layout belong together here (the label of a plan row)")
    job = _job(cells, context) if model is not None else None
    if fabrics and job is not None:
        grown = [job, *(_job(_grown(job.cells, cells, n), context) for n in sizes[1:])]
        return _fabrics(grown, database, topology, form, columns)
    return _place(job, cells, context, free, state, leaf_nodes, per_node, topology, utilisation,
                  mean_run, median_run, wrapper, form, columns)  # fmt: skip


def _sizes(text: str | None, several: bool) -> list[int]:
    """The numbers of GPUs of --gpus; more than one only where networks are compared."""
    if text is None:
        return []
    parts = [text] if not several else [part for part in text.split(",") if part.strip()]
    return [opt.positive_integer("--gpus", part) for part in parts]


def _grown(full: Mapping[str, Any], cells: Mapping[str, Any], n_gpus: int) -> dict[str, Any]:
    """The job on `n_gpus`: more replicas of the same layout, and a batch in proportion (weak scaling)."""
    group = full["tp"] * full["pp"] * full["cp"]
    if n_gpus % group:
        raise UsageError(f"{n_gpus:,} GPUs are no whole number of replicas of tp·pp·cp = {group}")
    batch = round(full["global_batch"] * (n_gpus // group) / full["dp"])
    return {**cells, "n_gpus": n_gpus, "dp": n_gpus // group, "global_batch": batch}


def _cells(
    model: str | None,
    gpu: str | None,
    gpus: str | None,
    seq_len: str | None,
    global_batch: str | None,
    layout: str | None,
    precision: str | None,
    settings: Optional[list[str]],
) -> dict[str, Any]:
    from gpucalc.layouts.label import label_cells

    asked = {"model": model, "gpu": gpu, "n_gpus": gpus, "seq_len": seq_len}
    asked |= {"global_batch": global_batch, "precision": precision}
    return opt.job_cells(asked, settings, label_cells(layout) if layout is not None else None)


def _job(cells: Mapping[str, Any], context: Context) -> Any:
    from gpucalc.jobs.training import resolve

    return resolve(cells, context)


def _place(
    job: Any,
    cells: Mapping[str, Any],
    context: Context,
    free: str | None,
    state: str | None,
    leaf_nodes: str,
    per_node: str | None,
    topology: str | None,
    utilisation: str | None,
    mean_run: str | None,
    median_run: str | None,
    wrapper: Wrapper | None,
    form: str,
    columns: str | None,
) -> int:
    from gpucalc.database.cluster import resolve_cluster
    from gpucalc.questions import schedule as scheduler

    db = context.db
    cluster = job.cluster if job is not None else resolve_cluster(db, cells["gpu"], cells["n_gpus"])
    if (free is None) == (state is None):
        raise UsageError("what is free? write either --free 40x8,6x4 or --state nodes.csv")
    on_leaf = opt.positive_integer("--leaf-nodes", leaf_nodes)
    nodes = (
        scheduler.nodes_of_groups(free, on_leaf) if free is not None else scheduler.nodes_of_file(state or "", on_leaf)
    )
    most = max(n.free for n in nodes)
    if most > cluster.gpus_per_node:
        raise UsageError(
            f"a node has {most} free GPUs, and a node of {cluster.device.key} holds {cluster.gpus_per_node}"
        )
    share = min(cluster.gpus_per_node, cluster.n_gpus)
    if per_node is not None:
        share = opt.positive_integer("--per-node", per_node)
    if cluster.n_gpus % share or share > cluster.gpus_per_node:
        raise UsageError(
            f"{cluster.n_gpus} GPUs are no whole number of blocks of {share} on nodes of {cluster.gpus_per_node}"
        )
    queue = _queue(scheduler, nodes, cluster, share, utilisation, mean_run, median_run)
    needed = cluster.n_gpus // share
    shape = db.topology(topology) if topology is not None else cluster.topology
    ranked = scheduler.score(scheduler.placements(nodes, needed, share), job, shape.oversubscription)
    before = scheduler.filter_gang(nodes, needed, share)
    best = ranked[0][0]
    if wrapper is not None:
        sys.stdout.write(_script(cells, context, wrapper, best))
        talk(f"note: {_said(best)}")
        return ExitStatus.OK
    rows = [
        {
            "strategy": p.strategy,
            "leaves": p.leaves,
            "nodes": len(p.blocks),
            "step_time_s": step,
            "blocks_left": p.blocks_left,
            "fragmentation_pct": 100 * p.fragmentation,
            "node_list": _short(list(p.blocks)) if form in {"table", "md"} else " ".join(p.blocks),
        }
        for p, step in ranked
    ]
    if form == "json":
        document = {
            "gang": {"gpus": cluster.n_gpus, "block": share, "blocks": needed},
            "free_gpus": sum(n.free for n in nodes),
            "blocks_free": float(before["filter/blocks"]),
            "fragmentation_pct": 100 * float(before["filter/fragmentation"]),
            "placements": rows,
            "queue": queue,
        }
        emit_document(document)
        return ExitStatus.OK
    shown = [n for n in rows[0] if n != "step_time_s" or job is not None]
    emit_rows(form, shown, rows, columns)
    if queue and form == "table":
        sys.stdout.write("\n")
        emit_rows(form, list(queue[0]), queue)
    talk(*_lines(before, best, needed, share, sum(n.free for n in nodes), shape, job, queue))
    return ExitStatus.OK


def _script(cells: Mapping[str, Any], context: Context, wrapper: Wrapper, best: Any) -> str:
    """A layout's launch in the script of a scheduler, bound to the nodes of a placement."""
    from gpucalc.launch import TRAINING, export, target_named
    from gpucalc.launch.job import Placed, make_launch

    target = target_named(TRAINING)
    launch = make_launch(cells, context, target.profile)
    return export(launch, target, wrapper, placed=Placed(tuple(best.blocks), best.leaves, best.strategy))[0]


def _queue(
    scheduler: Any, nodes: Any, cluster: Any, share: int, load: str | None, mean: str | None, median: str | None
) -> list[dict[str, Any]]:
    from gpucalc.core.units import parse_quantity

    if load is None:
        if mean is not None or median is not None:
            raise UsageError("--mean-run and --median-run need --load, the share of the cluster in use")
        return []
    if mean is None:
        raise UsageError("--load needs --mean-run, such as 4h")
    busy, seconds = opt.share("--load", load), parse_quantity(mean, "s")
    variation = None
    if median is not None:
        middle = parse_quantity(median, "s")
        if middle > seconds:
            raise UsageError(
                f"--median-run {median} is above --mean-run {mean}; run times have a long tail to the right"
            )
        from gpucalc.formulas.gang import run_time_variation

        variation = float(run_time_variation(seconds, middle))
    servers = len(nodes) * (cluster.gpus_per_node // share) // (cluster.n_gpus // share)
    if servers < 1:
        raise UsageError("the whole cluster is smaller than the gang; it would wait for ever")
    found: list[dict[str, Any]] = scheduler.wait(servers, busy, seconds, run_variation=variation)
    return found


def _lines(
    before: Any, best: Any, needed: int, share: int, free: int, shape: Any, job: Any, queue: list[dict[str, Any]]
) -> list[str]:
    lines = [
        "",
        f"fits: {needed:,} blocks of {share} GPUs of {int(before['filter/blocks']):,} that {free:,} free GPUs hold; "
        f"{100 * float(before['filter/fragmentation']):.0f} % of them are in smaller pieces",
        _said(best),
    ]
    if job is not None:
        lines.append(f"step times on {shape.name} ({shape.oversubscription:g}:1 above the leaf)")
    if queue:
        lines.append(
            "waits hold for gangs of this size that share the whole cluster; run times of research clusters spread so "
            "widely that a mean misleads: read the quantiles"
        )
    return lines


def _said(best: Any) -> str:
    return (
        f"best: {best.strategy}, {len(best.blocks)} nodes on {best.leaves} leaf switches: {_short(list(best.blocks))}"
    )


def _short(names: list[str]) -> str:
    return " ".join(names[:NODES_SHOWN]) + (f" … ({len(names)} nodes)" if len(names) > NODES_SHOWN else "")


def _fabrics(grown: list[Any], db: Any, topology: str | None, form: str, columns: str | None) -> int:
    from gpucalc.questions import schedule as scheduler

    shapes = [db.topology(topology)] if topology is not None else db.topologies()
    rows = [row for job in grown for row in sorted(scheduler.at_scale(job, shapes), key=lambda r: r["step_time_s"])]
    if form == "json":
        emit_document({"rows": rows})
    else:
        emit_rows(form, list(rows[0]), rows, columns)
    talk("", "step times share the network above a pod as uniform traffic does; a rail or torus slows no ring")
    return ExitStatus.OK
