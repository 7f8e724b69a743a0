"""`gpucalc comm`: a collective on a fabric, by algorithm."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_rows, talk
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import OPERATIONS, operation


def comm(
    op: Annotated[Optional[str], typer.Argument(metavar="OP", help=", ".join(OPERATIONS) + ".")] = None,
    size: Annotated[Optional[str], typer.Argument(metavar="SIZE", help="Bytes with a unit, such as 1GiB.")] = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    fabric: opt.Fabric = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    plot: opt.Plot = None,
    db: opt.Databases = None,
) -> None:
    """Time, algorithm and bus bandwidth of a collective, by algorithm.

    SIZE is what nccl-tests calls size: the buffer of all_reduce, the total over ranks of the others.

    \b
    gpucalc comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 64 --fabric ib-ndr
    """
    from gpucalc.core.units import parse_quantity

    form = opt.chosen_format(form)
    opt.check_plot(plot)
    if op is None or size is None:
        raise UsageError("missing: an operation and a size, such as comm all_reduce 1GiB")
    name, size_bytes = operation(op), parse_quantity(size, "B")
    if size_bytes > 1e18:
        raise UsageError(f"{size!r} is too large (at most 1 EB)")
    database = opt.open_database(db)
    cluster = opt.resolved_cluster(database, gpu, gpus, gpus_per_node, inter_node_gbps, fabric)

    from gpucalc.questions.collectives import comm as evaluated

    rows = evaluated(name, size_bytes, cluster, database.dirs[1:])
    if plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.kernels import comm_figure

        save(comm_figure(name, size_bytes, cluster, database.dirs[1:]), plot)
    emit_rows(form, list(rows[0]), rows, columns, not no_header)
    if form in {"table", "md"}:
        talk(
            f"{cluster.n_gpus} × {cluster.device.key}, {cluster.gpus_per_node} a node, {cluster.domain} in a "
            f"scale-up domain ({cluster.scale_up_topology}, {cluster.link_bandwidth / 1e9:g} GB/s per GPU and "
            f"direction); {cluster.network_bandwidth_per_gpu * 8 / 1e9:g} Gb/s of network per GPU "
            f"({cluster.network_basis})"
        )
