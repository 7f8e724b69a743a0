"""`gpucalc comm`: a collective on a fabric, by algorithm."""

from __future__ import annotations

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import ClusterOptions
from gpucalc.cli.option import argument, option
from gpucalc.cli.output import FigureOptions, to_stderr
from gpucalc.cli.values import operation_named
from gpucalc.core.errors import UsageError
from gpucalc.core.vocabulary import OPERATIONS


@command(group="Understand")
def comm(
    *,
    op: str | None = argument("OP", ", ".join(OPERATIONS) + ".", read=operation_named, complete=OPERATIONS),
    size: str | None = argument("SIZE", "Bytes with a unit, such as 1GiB."),
    where: ClusterOptions,
    profile: str | None = option(
        "--profile NAME", "As beside the compute of a training step with this software.", complete="profiles"
    ),
    output: FigureOptions,
) -> None:
    """Time, algorithm and bus bandwidth of a collective, by algorithm.

    SIZE is what nccl-tests calls size: the buffer of all_reduce, the total over ranks of the others.

    \b
    gpucalc comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 64 --fabric ib-ndr
    """
    from gpucalc.core.units import parse_quantity

    if op is None or size is None:
        raise UsageError("missing: an operation and a size, such as comm all_reduce 1GiB")
    size_bytes = parse_quantity(size, "B")
    if size_bytes > 1e18:
        raise UsageError(f"{size!r} is too large (at most 1 EB)")
    database = where.database()
    cluster = where.cluster(database)

    from gpucalc.questions.collectives import comm as evaluated
    from gpucalc.questions.collectives import not_permitted, place_sentence, untuned_sentence

    rows = evaluated(op, size_bytes, cluster, database, profile)
    if output.plot is not None:
        from gpucalc.output.figures import save
        from gpucalc.output.figures.kernels import comm_figure

        save(comm_figure(op, size_bytes, cluster, database), output.plot)
    output.rows(list(rows[0]), rows)
    if output.form in {"table", "md"}:
        to_stderr(place_sentence(cluster))
        if untuned := untuned_sentence(op, size_bytes, cluster, database, profile):
            to_stderr(untuned)
        if refused := not_permitted(op, cluster, database):
            to_stderr(f"not permitted: {', '.join(refused)}")
