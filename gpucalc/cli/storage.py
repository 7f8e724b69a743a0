"""`gpucalc storage`: what data and checkpoints ask of a store."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpucalc.cli import options as opt
from gpucalc.cli import quantities as given
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context

COLUMNS_OUT = ("quantity", "value", "unit", "meaning")
MEANINGS = {
    "read_gb_per_s_per_gpu": ("GB/s", "a GPU that never waits reads"),
    "read_gb_per_s_total": ("GB/s", "all of them, less what a cache serves"),
    "samples_per_s": ("1/s", "samples of all GPUs"),
    "utilisation_pct": ("%", "of their time GPUs compute"),
    "compute_ms": ("ms", "a batch: compute"),
    "read_ms": ("ms", "a batch: read from the store"),
    "decode_ms": ("ms", "a batch: decode on the host"),
    "copy_ms": ("ms", "a batch: copy to the GPU"),
    "gpus_fed": ("", "GPUs that this store keeps busy all the time"),
    "gpus_fed_at_target": ("", "GPUs that it keeps busy for the target share"),
    "decode_cores_per_gpu": ("", "cores that decode as fast as a GPU computes"),
    "checkpoint_gb": ("GB", "one checkpoint"),
    "save_s": ("s", "to write it to this store"),
    "restart_s": ("s", "to load it, each shard read once"),
    "restart_by_every_replica_s": ("s", "to load it where every replica reads all"),
    "save_bandwidth_blocking_gb_per_s": ("GB/s", "to save in 5 % of the interval"),
    "save_bandwidth_async_gb_per_s": ("GB/s", "to save in the background"),
    "restart_bandwidth_gb_per_s": ("GB/s", "to load it in a minute"),
}


def storage(
    model: opt.Model = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    workload: Annotated[
        opt.Text,
        typer.Option("--workload", metavar="NAME", help="text, image, video, multimodal, unet3d, resnet50, cosmoflow."),
    ] = None,
    read_bandwidth: Annotated[
        opt.Text, typer.Option("--read-bandwidth", metavar="RATE", help="Of the store in total, such as 100GB/s.")
    ] = None,
    write_bandwidth: Annotated[
        opt.Text, typer.Option("--write-bandwidth", metavar="RATE", help="Of the store in total, such as 50GB/s.")
    ] = None,
    iops: Annotated[opt.Text, typer.Option("--iops", metavar="N", help="Reads per second of the store, as 2M.")] = None,
    batch: Annotated[opt.Text, typer.Option("--batch", metavar="N", help="Samples of one GPU's batch.")] = None,
    sample: Annotated[
        opt.Text, typer.Option("--sample", metavar="SIZE", help="Bytes of a sample, such as 112KiB.")
    ] = None,
    compute: Annotated[
        opt.Text, typer.Option("--compute", metavar="TIME", help="Compute time of a batch, such as 320ms.")
    ] = None,
    decode: Annotated[
        opt.Text, typer.Option("--decode", metavar="TIME", help="Processor time that decodes a sample, such as 6ms.")
    ] = None,
    cores: Annotated[opt.Text, typer.Option("--cores", metavar="N", help="Cores beside each GPU.")] = None,
    cache_hit: Annotated[
        opt.Text, typer.Option("--cache-hit", metavar="SHARE", help="Reads that never reach the store.")
    ] = None,
    cache: Annotated[opt.Text, typer.Option("--cache", metavar="SIZE", help="Cache of the nodes in total.")] = None,
    dataset: Annotated[opt.Text, typer.Option("--dataset", metavar="SIZE", help="All of the data.")] = None,
    utilisation: Annotated[
        opt.Text, typer.Option("--utilisation", metavar="SHARE", help="Time that GPUs should compute, such as 90%.")
    ] = None,
    interval: Annotated[
        opt.Text, typer.Option("--interval", metavar="TIME", help="Between checkpoints; 30min.")
    ] = None,
    seq_len: opt.SeqLen = None,
    global_batch: opt.GlobalBatch = None,
    layout: opt.LayoutLabel = None,
    fabric: opt.Fabric = None,
    profile: opt.Profile = None,
    settings: opt.Settings = None,
    explained: Annotated[bool, typer.Option("--explain", help="Print every term with its formula and source.")] = False,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> None:
    """Size a store: what GPUs read, when they starve and on what, how many a store feeds, saving and restart.

    With a MODEL tokens are read at the rate of its predicted step, and its checkpoints count.

    \b
    gpucalc storage --gpu h100-sxm-80gb --gpus 36 --workload unet3d --read-bandwidth 104GB/s
    gpucalc storage llama-3.1-405b --gpu h100-sxm-80gb --gpus 512 --write-bandwidth 60GB/s
    """
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    cells = opt.job_cells(
        {"model": model, "gpu": gpu, "n_gpus": gpus, "seq_len": seq_len, "global_batch": global_batch},
        settings,
        label_cells(layout) if layout is not None else None,
    )
    opt.require(cells, "gpu", "n_gpus")
    database = opt.open_database(db)
    for flag, text in (("--layout", layout), ("--global-batch", global_batch), ("--seq-len", seq_len)):
        if text is not None and "model" not in cells:
            raise UsageError(f"{flag} has no meaning without a MODEL")

    from gpucalc.questions.storage import Question
    from gpucalc.questions.storage import storage as answered

    question = Question(
        gpu=cells["gpu"],
        n_gpus=cells["n_gpus"],
        workload=workload,
        batch=given.number("--batch", batch, "7"),
        sample_bytes=given.quantity("--sample", sample, "B"),
        compute_time=given.quantity("--compute", compute, "s"),
        core_seconds=given.quantity("--decode", decode, "s"),
        cores=given.number("--cores", cores, "14"),
        read_bandwidth=given.quantity("--read-bandwidth", read_bandwidth, "B/s"),
        write_bandwidth=given.quantity("--write-bandwidth", write_bandwidth, "B/s"),
        iops=given.count("--iops", iops, "2M"),
        cache_hit=given.share("--cache-hit", cache_hit, zero=True),
        cache_bytes=given.quantity("--cache", cache, "B"),
        dataset_bytes=given.quantity("--dataset", dataset, "B"),
        utilisation=given.share("--utilisation", utilisation, whole=True),
        save_interval=given.quantity("--interval", interval, "s"),
    )
    found = answered(question, Context(database, profile=profile, fabric=fabric), cells if "model" in cells else None)
    _write(found, explained, form, columns, not no_header)


def _write(found: Any, explained: bool, form: str, columns: str | None, header: bool) -> None:
    from gpucalc.questions.storage import LIMITERS

    rows = [
        {"quantity": name, "value": found.figures[name], "unit": unit, "meaning": meaning}
        for name, (unit, meaning) in MEANINGS.items()
        if name in found.figures
    ]
    if form == "json":
        emit_document(
            {
                "workload": found.workload.name,
                "gpu": found.cluster.device.key,
                "n_gpus": found.cluster.n_gpus,
                "limiter": found.limiter,
                "storage": found.figures,
                "samples_per_s_low": found.figures["samples_per_s"] * found.spread[0],
                "samples_per_s_high": found.figures["samples_per_s"] * found.spread[1],
                "notes": found.notes,
                "terms": found.terms,
            }
        )
        return
    if form != "table" or columns is not None:
        emit_rows(form, COLUMNS_OUT, rows, columns, header)
    else:
        from gpucalc.output.explain import tree
        from gpucalc.output.table import facts, significant

        pairs = [
            ("data", f"{found.workload.title}, {found.cluster.n_gpus:,} x {found.cluster.device.name}"),
            ("first limit", f"{found.limiter}: {LIMITERS[found.limiter]}"),
            *((row["meaning"], f"{significant(row['value'])} {row['unit']}".strip()) for row in rows),
        ]
        sys.stdout.write(facts(pairs) + "\n")
        if explained:
            sys.stdout.write("\n" + tree([], found.terms, ()) + "\n")
    low, high = found.spread
    talk(
        f"note: MLPerf Storage runs reached {low:g} to {high:g} of the samples per second predicted so",
        *(f"note: {note}" for note in found.notes),
    )
