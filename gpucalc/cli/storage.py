"""`gpucalc storage`: what data and checkpoints ask of a store."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import JobOptions, place_of, require
from gpucalc.cli.option import option, values_of
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import count, number, quantity, share

if TYPE_CHECKING:
    from gpucalc.questions.storage import StorageResult

COLUMNS_OUT = ("quantity", "value", "unit", "meaning")
MEANINGS = {
    "read_gb_per_s_per_gpu": ("GB/s", "a GPU that never waits reads"),
    "read_gb_per_s_total": ("GB/s", "all of them, less what a cache serves"),
    "samples_per_s": ("1/s", "samples of all GPUs"),
    "utilisation_pct": ("%", "of their time GPUs compute"),
    "compute_ms": ("ms", "a batch: compute"),
    "read_ms": ("ms", "a batch: read from the store"),
    "wait_ms": ("ms", "a batch: waited although the store keeps up"),
    "open_ms": ("ms", "a batch: opened and read by the threads beside a GPU"),
    "card_ms": ("ms", "a batch: through the host's storage cards"),
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


@dataclass(frozen=True)
class StorageOptions:
    """What is said of data and store; the fields are those of `questions.storage.Question`."""

    workload: str | None = option(
        "--workload NAME", "text, image, video, multimodal, unet3d, resnet50, cosmoflow.", complete="workloads"
    )
    read_bandwidth: float | None = option(
        "--read-bandwidth RATE", "Of the store in total, such as 100GB/s.", read=quantity("B/s")
    )
    write_bandwidth: float | None = option(
        "--write-bandwidth RATE", "Of the store in total, such as 50GB/s.", read=quantity("B/s")
    )
    iops: float | None = option("--iops N", "Reads per second of the store, as 2M.", read=count("2M"))
    threads: float | None = option("--threads N", "Readers beside each GPU.", read=number("8"))
    open_latency: float | None = option("--open TIME", "To open a file, such as 0.3ms.", read=quantity("s"))
    wait: float | None = option(
        "--wait SHARE", "Waited over computing although the store keeps up.", read=share(zero=True)
    )
    card_rate: float | None = option(
        "--host-rate RATE", "Of a host's storage cards together, such as 50GB/s.", read=quantity("B/s")
    )
    batch: float | None = option("--batch N", "Samples of one GPU's batch.", read=number("7"))
    sample_bytes: float | None = option("--sample SIZE", "Bytes of a sample, such as 112KiB.", read=quantity("B"))
    compute_time: float | None = option("--compute TIME", "Compute time of a batch, such as 320ms.", read=quantity("s"))
    core_seconds: float | None = option(
        "--decode TIME", "Processor time that decodes a sample, such as 6ms.", read=quantity("s")
    )
    cores: float | None = option("--cores N", "Cores beside each GPU.", read=number("14"))
    cache_hit: float | None = option(
        "--cache-hit SHARE", "Reads that never reach the store.", read=share(whole=True, zero=True)
    )
    cache_bytes: float | None = option("--cache SIZE", "Cache of the nodes in total.", read=quantity("B"))
    dataset_bytes: float | None = option("--dataset SIZE", "All of the data.", read=quantity("B"))
    utilisation: float | None = option(
        "--utilisation SHARE", "Time that GPUs should compute, such as 90%.", read=share(whole=True)
    )
    save_interval: float | None = option("--interval TIME", "Between checkpoints; 30min.", read=quantity("s"))


@command(group="The whole cluster")
def storage(
    *,
    job: JobOptions,
    given: StorageOptions,
    explained: bool = option("--explain", "Print every term with its formula and source."),
    output: OutputOptions,
) -> None:
    """Size a store: what GPUs read, when they starve and on what, how many a store feeds, saving and restart.

    With a MODEL tokens, or samples of networks that are no decoder, are read at the rate of its predicted step, and its
    checkpoints count.

    \b
    gpucalc storage --gpu h100-sxm-80gb --gpus 36 --workload unet3d --read-bandwidth 104GB/s
    gpucalc storage llama-3.1-405b --gpu h100-sxm-80gb --gpus 512 --write-bandwidth 60GB/s
    """
    cells = job.whole()
    require(cells, "gpu", "n_gpus")
    job.refuse_without_model(cells)

    from gpucalc.questions.storage import Question
    from gpucalc.questions.storage import storage as answered

    question = Question(**place_of(cells), **values_of(given))
    found = answered(question, job.context(), cells if "model" in cells else None)
    _write(found, explained, output)


def _write(found: StorageResult, explained: bool, output: OutputOptions) -> None:
    from gpucalc.output.table import facts, significant
    from gpucalc.questions.storage import LIMITERS

    pieces = "tokens" if found.workload.name == "text" else "samples"
    rows: list[dict[str, Any]] = [
        {"quantity": name, "value": value, "unit": MEANINGS[name][0], "meaning": MEANINGS[name][1]}
        for name, value in found.figures.items()
    ]
    if output.json:
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
    if output.form != "table" or output.columns is not None:
        output.rows(COLUMNS_OUT, rows)
    else:
        from gpucalc.output.explain import tree

        pairs = [
            ("data", f"{found.workload.title}, {found.cluster.n_gpus:,} x {found.cluster.device.name}"),
            ("first limit", f"{found.limiter}: {LIMITERS[found.limiter]}"),
            *(
                (row["meaning"].replace("samples", pieces), f"{significant(row['value'])} {row['unit']}".strip())
                for row in rows
            ),
        ]
        sys.stdout.write(facts(pairs) + "\n")
        if explained:
            sys.stdout.write("\n" + tree([], found.terms, ()) + "\n")
    low, high = (significant(share * found.figures["samples_per_s"]) for share in found.spread)
    waits = f"note: {low} to {high} {pieces} per second, as published runs of such samples wait less or more"
    to_stderr(*([waits] if low != high else []), *(f"note: {note}" for note in found.notes))
