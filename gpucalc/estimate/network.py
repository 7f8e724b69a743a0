"""The estimate of a network that is a list of components: one forward, a training step, a request for a picture.

Each component is a branch of the ledger. Its numbers are columns `NAME.macs`, `NAME.elements`, ...: rows that are
evaluated together have components of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import convolution, diffusion, embeddings, replicas

ONE = Constant("ONE", 1.0, "all of it", "definition")
DENOISER = "denoiser"
TRAINING, INFERENCE, GENERATION = "training", "inference", "generation"


def estimate_network(columns: Columns, parts: Sequence[str], mode: str, *, trace: bool = False) -> Ledger:
    """All terms of rows whose networks have components of the names `parts`, in one mode."""
    ledger = Ledger(columns, trace=trace)
    ledger.add("peak/share", convolution.sustained_share, peak="reference_peak")
    ledger.add("peak/fed", convolution.fed_share)
    ledger.product("peak/sustained", "peak", "peak/share", "peak/fed")
    if mode == GENERATION:
        ledger.add(f"{DENOISER}/samples", diffusion.guided_batch)
    for part in parts:
        _forward(ledger, part, _batch(part, mode))
    if mode == GENERATION:
        _generation(ledger, parts)
    elif mode == TRAINING:
        _training(ledger, parts)
    else:
        _inference(ledger, parts)
    _memory(ledger, parts, mode)
    return ledger


def _batch(part: str, mode: str) -> str:
    """What a component takes in one forward: of the denoiser of a request, with and without its condition."""
    return f"{DENOISER}/samples" if mode == GENERATION and part == DENOISER else f"{part}.samples"


def _forward(ledger: Ledger, part: str, samples: str) -> None:
    """Store the time of one forward of one micro-batch through a component."""
    shared = {"samples": samples, "runs": f"{part}.runs", "share": f"{part}.share"}
    ledger.add(
        f"forward/{part}/products",
        convolution.product_time,
        macs=f"{part}.macs",
        fast_macs=f"{part}.fast_macs",
        product_efficiency=f"{part}.product_efficiency",
        peak="peak/sustained",
        **shared,
    )
    ledger.add(
        f"missed/{part}",
        convolution.missed_share,
        elements=f"{part}.elements",
        samples=f"{part}.samples",
        share=f"{part}.share",
        layers=f"{part}.launches",
    )
    ledger.add(
        f"forward/{part}/traffic",
        convolution.element_traffic_time,
        missed=f"missed/{part}",
        elements=f"{part}.elements",
        bare=f"{part}.bare",
        traffic_bytes=f"{part}.traffic_bytes",
        element_ratio=f"{part}.element_ratio",
        **shared,
    )
    parts = [f"forward/{part}/products", f"forward/{part}/traffic"]
    if f"{part}.looked_up" in ledger.columns:
        ledger.add(
            f"forward/{part}/lookups",
            embeddings.lookup_time,
            looked_up=f"{part}.looked_up",
            width=f"{part}.width",
            samples=f"{part}.samples",
        )
        parts.append(f"forward/{part}/lookups")
    ledger.total(f"forward/{part}/time", *parts)


def _launches(ledger: Ledger, part: str, passes: str | Constant) -> None:
    """Store what the host needs to start the kernels of a component in so many passes."""
    ledger.add(
        f"launch/{part}",
        convolution.host_launch_time,
        launches=f"{part}.launches",
        runs=f"{part}.launch_runs",
        launch_seconds=f"{part}.launch_seconds",
        passes=passes,
    )


def _steps(ledger: Ledger, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Store what each component costs in a micro-step: its passes on the device, and its launches from the host."""
    compute, launches = [], []
    for part in parts:
        ledger.add(f"passes/{part}", convolution.step_passes, state_passes=f"{part}.state_passes")
        ledger.product(f"micro/{part}", f"forward/{part}/time", f"passes/{part}")
        _launches(ledger, part, f"passes/{part}")
        compute.append(f"micro/{part}")
        launches.append(f"launch/{part}")
    return compute, launches


def _inference(ledger: Ledger, parts: Sequence[str]) -> None:
    compute, launches = _steps(ledger, parts)
    ledger.total("time/compute", *compute)
    ledger.total("time/launch", *launches)
    ledger.add("time/pass", convolution.device_or_host, compute="time/compute", launch="time/launch")
    ledger.total("time/step", "time/pass", "step_floor")
    ledger.add("metric/samples_per_s", convolution.rate_of_samples, samples="samples", time="time/step")


def _training(ledger: Ledger, parts: Sequence[str]) -> None:
    compute, launches = _steps(ledger, parts)
    ledger.total("micro/compute", *compute)
    ledger.total("micro/launch", *launches)
    ledger.add("micro/pass", convolution.device_or_host, compute="micro/compute", launch="micro/launch")
    ledger.total("micro/time", "micro/pass", "step_floor")
    backward = []
    for part in parts:
        ledger.product(f"backward/{part}", f"forward/{part}/time", f"{part}.backward_passes")
        backward.append(f"backward/{part}")
    ledger.total("window/backward", *backward)
    ledger.product("time/passes", "micro/time", "grad_accum")
    _replicas(ledger)
    sums = ["time/passes", "time/dp/exposed", "time/optimizer"]
    if "table_shards" in ledger.columns:
        _exchange(ledger, parts)
        sums.append("time/exchange")
    if "tp_volume" in ledger.columns:
        ledger.add(
            "time/tp",
            diffusion.split_time,
            volume="tp_volume",
            blocks="tp_blocks",
            collectives="tp_collectives",
        )
        sums.append("time/tp")
    ledger.total("time/synchronous", *sums)
    ledger.add("time/jitter", replicas.rank_jitter, time="time/synchronous", inside="dp/inside", servers="dp/servers")
    ledger.total("time/step", *sums, "time/jitter")
    ledger.product("metric/samples", "samples", "grad_accum")
    ledger.add("metric/samples_per_s", convolution.rate_of_samples, samples="metric/samples", time="time/step")


def _replicas(ledger: Ledger) -> None:
    """Store what of the gradients' way over links and cards the backward pass does not hide."""
    ledger.add("dp/inside", replicas.ranks_inside)
    ledger.add("dp/servers", replicas.servers_of, inside="dp/inside")
    ledger.product("dp/gradients", "trained", "gradient_bytes")
    for where, ranks, bandwidth, efficiency in (
        ("links", "dp/inside", "inside_bandwidth", "link_share"),
        ("cards", "dp/servers", "card_bandwidth", "card_share"),
    ):
        ledger.add(
            f"dp/{where}",
            replicas.ring_time,
            gradients="dp/gradients",
            ranks=ranks,
            bandwidth=bandwidth,
            efficiency=efficiency,
        )
    ledger.maximum("dp/reduction", "dp/links", "dp/cards")  # one ring: its slowest hop decides
    ledger.product("dp/reduction-of-stage", "dp/reduction", "reduction_factor")
    ledger.add("dp/buffers", replicas.fusion_buffers, gradients="dp/gradients")
    ledger.add("dp/tail", replicas.last_buffer, time="dp/reduction-of-stage", buffers="dp/buffers")
    ledger.add(
        "time/dp/exposed",
        replicas.exposed_reduction,
        time="dp/reduction-of-stage",
        tail="dp/tail",
        backward="window/backward",
    )
    ledger.add("time/optimizer", replicas.update_time)


def _exchange(ledger: Ledger, parts: Sequence[str]) -> None:
    part = next(p for p in parts if f"{p}.looked_up" in ledger.columns)
    ledger.add(
        "exchange/bytes",
        embeddings.exchange_bytes,
        tables=f"{part}.tables",
        width=f"{part}.width",
        shards="table_shards",
        exchange_bytes_each="exchange_element",
    )
    ledger.add(
        "time/exchange",
        embeddings.pooled_exchange_time,
        volume="exchange/bytes",
        shards="table_shards",
        inside="dp/inside",
        directions="exchange_directions",
    )


def _generation(ledger: Ledger, parts: Sequence[str]) -> None:
    """Store the latency of a request: denoising, split over GPUs, and the serial parts before and after it."""
    serial = [part for part in parts if part != DENOISER]
    _launches(ledger, DENOISER, ONE)
    _splits(ledger, DENOISER)
    ledger.add(
        "step/device", convolution.device_or_host, compute=f"forward/{DENOISER}/time", launch=f"launch/{DENOISER}"
    )
    ledger.total("step/forward", "step/device", "split/time")
    ledger.define("forwards", diffusion.forwards_of_step)
    ledger.add("step/displaced", diffusion.displaced_factor)
    ledger.add("time/denoising", diffusion.denoising_time, forward="step/forward", displaced="step/displaced")
    ledger.product("time/step-forwards", "step/forward", "forwards", "step/displaced")
    ledger.total("time/step", "time/step-forwards")
    after = []
    for part in serial:
        _launches(ledger, part, ONE)
        ledger.add(f"time/{part}", convolution.device_or_host, compute=f"forward/{part}/time", launch=f"launch/{part}")
        after.append(f"time/{part}")
    ledger.product("time/around", "step_floor", "whole_request")
    ledger.total("time/latency", "time/denoising", "time/around", *after)
    ledger.add("metric/samples_per_s", convolution.rate_of_samples, samples="samples", time="time/latency")


def _splits(ledger: Ledger, part: str) -> None:
    """Store what the splits of one forward send."""
    shape = {"tokens": f"{part}.tokens", "hidden": f"{part}.hidden"}
    ledger.add("split/ulysses", diffusion.ulysses_bytes, **shape)
    ledger.add("split/ring", diffusion.ring_bytes, **shape)
    ledger.add("split/tensor", diffusion.tensor_bytes, **shape)
    ledger.total("split/block-bytes", "split/ulysses", "split/ring", "split/tensor")
    ledger.add("split/stage-bytes", diffusion.stage_bytes, **shape)
    ledger.add("split/collectives", diffusion.split_collectives, blocks=f"{part}.blocks")
    ledger.add(
        "split/blocks",
        diffusion.split_time,
        volume="split/block-bytes",
        samples=f"{part}/samples",
        blocks=f"{part}.blocks",
        collectives="split/collectives",
    )
    ledger.add(
        "split/stages",
        diffusion.split_time,
        volume="split/stage-bytes",
        samples=f"{part}/samples",
        blocks=ONE,
        collectives=Constant("NONE", 0.0, "counted with the blocks", "definition"),
    )
    ledger.total("split/time", "split/blocks", "split/stages")


def _memory(ledger: Ledger, parts: Sequence[str], mode: str) -> None:
    held, passing = [], []
    for part in parts:
        if f"{part}.looked_up" in ledger.columns:
            ledger.add(
                f"memory/{part}/tables",
                embeddings.table_memory,
                parameters=f"{part}.parameters",
                shards="table_shards",
            )
            held.append(f"memory/{part}/tables")
            continue
        ledger.product(f"memory/{part}/weights", f"{part}.parameters", "weight_bytes", f"{part}.weight_share")
        held.append(f"memory/{part}/weights")
        if mode == TRAINING:
            ledger.product(f"memory/{part}/state", f"{part}.trained", "state_bytes", "state_share")
            held.append(f"memory/{part}/state")
        ledger.add(
            f"memory/{part}/activations",
            convolution.kept_elements,
            elements=f"{part}.elements",
            samples=_batch(part, mode),
            runs=f"{part}.runs",
            share=f"{part}.share",
            kept_share=f"{part}.kept_share",
        )
        passing.append(f"memory/{part}/activations")
    if mode == GENERATION:  # components run one after the other
        ledger.maximum("memory/activations", *passing)
        passing = ["memory/activations"]
    ledger.total("memory/total", "fixed_bytes", *held, *passing)
    ledger.product("memory/fill", "memory/total", "capacity_inverse")
