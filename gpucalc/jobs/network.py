"""A question about a network that is a list of components: cells of a row → columns of `estimate.network`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIB
from gpucalc.database.cluster import Cluster
from gpucalc.database.defaults import defaults
from gpucalc.database.stacks import Rates, Stack, choose_stack, memory_class, rates
from gpucalc.estimate.network import GENERATION, INFERENCE, TRAINING
from gpucalc.jobs.completion import collect, largest_divisor, stated_cluster
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import fit_of
from gpucalc.models.networks.catalog import (
    NUMBERS,
    SIZES,
    custom_network,
    load_network,
    resolve_network,
    restated,
    with_states,
)
from gpucalc.models.networks.component import (
    CONV,
    EMBEDDING,
    FROZEN,
    MLP,
    MMDIT,
    PASSES,
    TRAINED,
    UNET,
    VAE,
    Component,
    Network,
)

if TYPE_CHECKING:
    from gpucalc.core.ledger import Columns, Ledger

SAMPLES_OF_GPU = 256  # of a training step that states no batch
FUSED_ATTENTION = "2023-03"  # PyTorch 2.0: attention without written scores is what a model calls by default
UNFUSED_STACKS = ("tensorflow", "paddle", "mxnet", "jax")
PURE_STACKS = ("tuned", "nemo", "hugectr", "jax")  # keep gradients in 16 bit; others leave them in fp32
SEQUENCE_KINDS = ("transformer", "mmdit")  # kinds that may be split by tensors or along the sequence
USUAL_GENERATOR = "diffusers"  # of pictures and clips, where no framework is stated
USUAL_WIDTH = 1024.0  # multiply-adds of a unit at its narrowest format, of a device of which nothing is known
CAPACITY_SHARE = 0.96  # of the memory in total that a process can allocate
STATE = {"adam": 8.0, "adam8bit": 2.0, "paged-adam8bit": 2.0, "sgd": 4.0, "adafactor": 0.5, "muon": 4.0}


@dataclass(frozen=True)
class NetworkJob:
    """One question about a network, completed."""

    cells: dict[str, Any]
    columns: dict[str, float]
    network: Network
    mode: str
    parts: tuple[str, ...]
    cluster: Cluster
    stack: Stack
    rates: Rates
    context: Context
    warnings: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Jobs of one group have the same columns and are evaluated together."""
        return self.mode, self.parts, tuple(sorted(self.columns))


def is_network(cells: Mapping[str, Any]) -> bool:
    """Whether cells (typed or text) ask about a network: a preset of one, three numbers, or a mode but training."""
    name = cells.get("model")
    if name and resolve_network(str(name)) is not None:
        return True
    return all(cells.get(number) for number in NUMBERS) or str(cells.get("mode") or TRAINING) != TRAINING


def slug(name: str) -> str:
    """The name of a component as paths write it.

    >>> slug("text encoder 2")
    'text-encoder-2'
    """
    return name.replace(" ", "-")


def stated_network(cells: Mapping[str, Any], mode: str, warnings: list[str]) -> Network:
    """The network that a row states: a preset at its sizes, stated numbers in the place of its own, or those alone."""
    name = str(cells.get("model") or "custom")
    preset = resolve_network(name)
    numbers = {n: float(cells[n]) for n in NUMBERS if cells.get(n) is not None}
    if preset is None:
        if cells.get("model") is None and not numbers:
            raise UsageError("no model is named")
        return custom_network(name, numbers, str(cells.get("net") or "conv"), str(cells.get("sample") or "image"))
    sizes = {cell: cells[cell] for cell in SIZES if cells.get(cell) is not None}
    if mode == TRAINING and cells.get("latents_cached") is False:
        sizes["encode"] = True
    network = load_network(preset, sizes)
    if int(cells.get("frames") or 1) > 1 and network.steps and network.sample == "image":
        raise UsageError(f"{network.name} makes single images; frames is of models of clips, such as wan-2.1-1.3b")
    if cells.get("steps") is not None and not network.steps:
        raise UsageError(f"{network.name} has no steps")
    if numbers:
        network = restated(network, numbers)
    return replace(network, components=_taking_part(network, cells, mode, warnings))


def _taking_part(network: Network, cells: Mapping[str, Any], mode: str, warnings: list[str]) -> tuple[Component, ...]:
    """The components that a question runs, each in its state."""
    if not network.steps:
        if mode == GENERATION:
            raise UsageError(f"{network.name} makes no pictures; mode generation has diffusion models")
        return (
            with_states(network, str(cells.get("trained") or "all")).components
            if mode == TRAINING
            else (network.components)
        )
    denoiser, others = network.components[0], network.components[1:]
    if mode == TRAINING:
        cached = cells.get("latents_cached") is not False
        frozen = tuple(part.in_state(FROZEN) for part in others if not cached or part.kind != VAE)
        return (denoiser,) if cached and not cells.get("text_in_step") else (denoiser, *frozen)
    if cells.get("scope") == "denoiser" or mode == INFERENCE:
        return (denoiser,)
    if cells.get("steps") is None:
        warnings.append(f"steps is not stated; {network.steps} is taken")
    return network.components


def _net_of(part: Component, network: Network) -> str:
    """The kind of net whose rates a component has."""
    return {UNET: "unet", VAE: "unet", MMDIT: "dit", MLP: "recommender", EMBEDDING: "recommender"}.get(
        part.kind,
        network.net if part.kind == CONV or network.net in {"vit", "encoder", "dit", "hierarchical"} else "encoder",
    )


def resolve_network_job(cells: Mapping[str, Any], context: Context) -> NetworkJob:
    """Complete the typed cells of one row. Raises UsageError with all violations."""
    problems: list[str] = []
    warnings: list[str] = []
    mode = str(cells.get("mode") or TRAINING)
    network = collect(problems, stated_network, cells, mode, warnings)
    full = {name: value for name, value in cells.items() if value is not None} | {"mode": mode}
    for name in ("tp", "pp", "cp", "ep", "ulysses", "ring", "cfg_parallel", "pipefusion", "grad_accum"):
        full.setdefault(name, 1)
    if "n_gpus" not in full:
        full["n_gpus"] = _split(full) * int(full.get("dp", 1))
    cluster = collect(problems, stated_cluster, full, context)
    if network is None or cluster is None:
        raise UsageError(*problems)
    precision = str(full.get("precision") or cluster.device.default_precision)
    full["precision"] = precision
    peak = collect(problems, _peak, cluster, precision)
    problems += _illegal(full, network, mode)
    if problems:
        raise UsageError(*problems)
    chosen = context.profile or str(full.get("framework") or (USUAL_GENERATOR if mode == GENERATION else ""))
    stack = choose_stack(chosen, context.db, compiled=full.get("compile"), channels_last=_channels_last(full, cluster))
    if not stack.known and chosen:
        warnings.append(f"no rates of {chosen!r} are known; those of {stack.names[-1]} are taken, with a wider band")
    _complete(full, network, mode, cluster, warnings)
    main = max(network.core, key=lambda part: part.macs)
    memory = memory_class(cluster.device.memory_type)
    found = rates(stack, mode, _net_of(main, network), precision, memory, context.db)
    parts = tuple(slug(part.name) for part in network.components)
    columns = _columns(full, network, mode, cluster, stack, found, peak, context)
    return NetworkJob(full, columns, network, mode, parts, cluster, stack, found, context, tuple(warnings))


def _peak(cluster: Cluster, precision: str) -> float:
    """The peak of a precision: int8 and int4 are those of the integer units, int4 weights of 16-bit products."""
    device = cluster.device
    if precision == "int8":
        if "int8" not in device.peak:
            raise UsageError(f"{device.key} states no int8 rate")
        return device.peak["int8"]
    if precision == "tf32" and "tf32" not in device.peak:
        return device.peak["fp32"]
    return device.precision_peak(device.default_precision if precision == "int4" else precision)


def _channels_last(cells: Mapping[str, Any], cluster: Cluster) -> bool:
    return bool(cells.get("channels_last"))


def _split(cells: Mapping[str, Any]) -> int:
    """GPUs that one replica takes."""
    return math.prod(int(cells[n]) for n in ("tp", "pp", "cp", "ulysses", "ring", "cfg_parallel", "pipefusion"))


def _illegal(cells: Mapping[str, Any], network: Network, mode: str) -> list[str]:
    """What a network of this kind cannot be split by, in sentences."""
    problems = []
    splits = {n: int(cells[n]) for n in ("tp", "pp", "cp", "ulysses", "ring", "cfg_parallel", "pipefusion")}
    main = max(network.core, key=lambda part: part.macs)
    sequence = main.kind in SEQUENCE_KINDS
    if mode != GENERATION:
        problems += [f"{n}={splits[n]} has no meaning in mode {mode}" for n in GENERATION_SPLITS if splits[n] > 1]
    for name in ("tp", "pp", "cp", "ulysses", "ring", "pipefusion"):
        if splits[name] > 1 and not sequence:
            problems.append(
                f"{name}={splits[name]}: {network.name} ({main.kind}) is split by replicas only; use {name}=1"
            )
    if splits["cfg_parallel"] > 1 and not _guided(cells, network):
        problems.append("cfg_parallel=2 shares the two forwards of guidance, and cfg is off")
    if sequence and main.heads:
        for name in ("tp", "ulysses"):
            if main.heads % splits[name]:
                near = largest_divisor(main.heads, splits[name])
                problems.append(f"{name}={splits[name]} does not divide {main.heads} heads; nearest {name}={near}")
    total, gpus = _split(cells), int(cells["n_gpus"])
    if gpus % total:
        problems.append(f"a replica takes {total} GPUs, which does not divide {gpus}")
    return problems


GENERATION_SPLITS = ("ulysses", "ring", "cfg_parallel", "pipefusion")


def _guided(cells: Mapping[str, Any], network: Network) -> bool:
    return bool(cells.get("cfg", network.guided)) and network.steps > 0


def _complete(full: dict[str, Any], network: Network, mode: str, cluster: Cluster, warnings: list[str]) -> None:
    """Fill the batch: what one replica takes in a micro-step, and the whole."""
    replicas = max(1, cluster.n_gpus // _split(full))
    full["dp"] = replicas
    accumulated = int(full["grad_accum"])
    if "micro_batch" not in full:
        if "global_batch" in full:
            full["micro_batch"] = max(1, round(int(full["global_batch"]) / (replicas * accumulated)))
        elif mode == TRAINING:
            full["micro_batch"] = _usual_batch(network)
            warnings.append(f"micro_batch is not stated; {full['micro_batch']} is taken")
        elif mode == INFERENCE or full.get("scope") == "denoiser":
            full["micro_batch"] = 1
            warnings.append("micro_batch is not stated; 1 is taken")
        else:
            full["micro_batch"] = 8
            warnings.append("micro_batch is not stated; the throughput of full GPUs at 8 samples is given")
    full.setdefault("global_batch", int(full["micro_batch"]) * accumulated * replicas)
    if "micro_batch" in full and full.get("global_batch") and mode == TRAINING:
        wanted = int(full["global_batch"]) / (int(full["micro_batch"]) * replicas)
        if wanted >= 1 and accumulated == 1:
            full["grad_accum"] = max(1, round(wanted))
    full.setdefault("optimizer", "sgd" if network.net in {"conv", "depthwise", "mixed", "volume"} else "adam")
    full.setdefault("zero_stage", 0)


def _usual_batch(network: Network) -> int:
    """Samples that keep a GPU busy: 256 pictures of a ResNet, fewer of what writes more."""
    each = max(network.elements, 1.0)
    return int(max(1, min(SAMPLES_OF_GPU, 2 ** round(math.log2(max(1.0, 4e9 / each))))))


def _unfused(full: Mapping[str, Any], stack: Stack) -> float:
    """1 where attention writes its scores."""
    stated = full.get("flash_attention")
    if stated is not None:
        return float(stated == "no")
    if stack.names[0].startswith(UNFUSED_STACKS):
        return 1.0
    date = str(full.get("software_date") or "")
    return float(bool(date) and date < FUSED_ATTENTION and stack.names[0].startswith("pytorch"))


def _columns(
    full: Mapping[str, Any],
    network: Network,
    mode: str,
    cluster: Cluster,
    stack: Stack,
    found: Rates,
    peak: float,
    context: Context,
) -> dict[str, float]:
    db = context.db
    constant = {name: one.value for name, one in defaults(db, "networks").items()}
    precision = str(full["precision"])
    wide = precision in {"fp32", "tf32"}
    micro, splits = float(full["micro_batch"]), {n: float(full[n]) for n in ("tp", "cp", *GENERATION_SPLITS)}
    recompute = full.get("recompute") == "full"
    share = 1 / (splits["tp"] * splits["cp"] * splits["ulysses"] * splits["ring"] * splits["pipefusion"])
    zero = int(full["zero_stage"])
    weight = 4.0 if wide or mode == TRAINING else {"int4": 0.55, "int8": 1.0, "fp8": 1.0}.get(precision, 2.0)
    replicas = float(full["dp"])
    weight_share = 1 / (splits["tp"] * splits["pipefusion"]) / (replicas if zero >= 3 and mode == TRAINING else 1.0)
    # A tower with the scores of 16-bit training keeps fp32 weights; half copies stand in the state.
    pcie = cluster.scale_up_topology in {"pcie", "none"}
    trained = 0.0
    columns: dict[str, float] = {
        "samples": micro,
        "peak": peak,
        "reference_peak": cluster.device.precision_peak(cluster.device.default_precision),
        "unit_width": _unit_width(cluster, peak),
        "fed_width": constant["fed_width"],
        "tdp_watts": cluster.device.tdp_watts or math.inf,
        "flop_per_joule": _of_generation("flop_per_joule", cluster, constant),
        "grad_accum": float(full["grad_accum"]),
        "replicas": replicas,
        "inner": float(_split(full)),
        "per_server": float(cluster.gpus_per_node),
        "memory_bandwidth": cluster.device.memory_bandwidth * _of_generation("memory_share", cluster, constant),
        "cache_bytes": cluster.device.l2_bytes or 0.0,
        "cached_share": constant["cached_share"],
        "bare_ratio": constant["bare_ratio"],
        "inside_bandwidth": cluster.link_bandwidth,
        "card_bandwidth": cluster.network_bandwidth_per_gpu * cluster.gpus_per_node,
        "link_share": constant["pcie_share" if pcie else "link_share"],
        "step_floor": found.step_floor,
        "weight_bytes": weight,
        "fixed_bytes": constant["fixed_bytes"],
        "capacity_inverse": 1 / (cluster.device.usable_bytes * CAPACITY_SHARE),
        "element_bytes": 4.0 if wide else 2.0,
        "saving": constant["vector_saving"] if precision == "fp32" else 0.0,
    }
    for part in network.components:
        name, net = slug(part.name), _net_of(part, network)
        own = rates(stack, mode, net, precision, memory_class(cluster.device.memory_type), db)
        main = part in network.core or part.name == network.components[0].name
        samples, cut = micro, share if main else 1.0
        learns = part.state == TRAINED and mode == TRAINING
        # The passes over looked-up rows are those of a whole step.
        passes = PASSES[part.state] if mode == TRAINING and part.kind != EMBEDDING else 1.0
        kept = _alive_share(part, constant)
        if learns:
            kept = constant["kept_ratio"] * (constant["recomputed_share"] if recompute else 1.0)
        columns |= {
            f"{name}.macs": part.macs,
            f"{name}.fast_macs": part.fast_macs,
            f"{name}.elements": part.elements + part.logits * _unfused(full, stack),
            f"{name}.bare": part.bare,
            f"{name}.samples": samples,
            f"{name}.runs": part.runs,
            f"{name}.launch_runs": part.runs,
            f"{name}.share": cut,
            f"{name}.launches": float(part.launches),
            f"{name}.product_efficiency": own.product_efficiency,
            f"{name}.traffic_bytes": own.traffic_bytes,
            f"{name}.launch_seconds": own.launch_seconds,
            f"{name}.element_ratio": 2.0 if wide else 1.0,
            f"{name}.state_passes": passes,
            f"{name}.backward_passes": max(passes - 1.0, 0.0),
            f"{name}.parameters": float(part.parameters),
            f"{name}.weight_share": weight_share if main else 1.0,
            f"{name}.trained": float(part.parameters) if learns else 0.0,
            f"{name}.kept_share": kept,
            f"{name}.tokens": part.tokens,
            f"{name}.hidden": float(part.hidden),
            f"{name}.blocks": float(part.blocks),
        }
        if part.kind == EMBEDDING:
            columns |= {
                f"{name}.looked_up": part.looked_up,
                f"{name}.width": float(part.width),
                f"{name}.tables": float(part.tables),
            }
        elif learns:
            trained += part.parameters
    columns["recomputed"] = float(recompute)
    if any(part.kind == EMBEDDING for part in network.components):
        columns |= _table_columns(full, mode, constant, wide)
    if mode == TRAINING:
        columns |= _training_columns(
            full, constant, trained, wide, stack.names[0].startswith(PURE_STACKS), zero, splits
        )
        if splits["tp"] > 1 or splits["cp"] > 1:
            columns |= _tensor_columns(network, micro, splits, columns["element_bytes"], constant)
    if mode == GENERATION:
        columns |= _generation_columns(full, network, stack, constant, splits)
    return columns


def _alive_share(part: Component, constant: Mapping[str, float]) -> float:
    """Elements alive at once without gradients, of all that a component writes: those of the block that runs."""
    if part.kind in SEQUENCE_KINDS and part.blocks:
        return constant["alive_block"] / part.blocks
    if part.kind == VAE and part.blocks:  # decoded frame by frame, or in tiles
        return constant["alive_share"] / part.blocks
    return constant["alive_share"]


def _of_generation(constant: str, cluster: Cluster, known: Mapping[str, float]) -> float:
    """The constant of a device's generation, else of its relatives, else that of all."""
    architecture = cluster.device.architecture
    names = (f"{constant}_{name.casefold().replace(' ', '_')}" for name in (architecture.name, architecture.lookup))
    return next((known[name] for name in names if name in known), known[constant])


def _unit_width(cluster: Cluster, peak: float) -> float:
    """Multiply-adds of one compute unit in one clock; of a device whose clock is not known, its generation's."""
    device = cluster.device
    if device.compute_units and device.clock_hz:
        return peak / (2 * device.compute_units * device.clock_hz)
    widths = device.architecture.multiply_adds or device.architecture.multiply_adds_gddr
    best = max(device.peak.values())
    return max(widths.values(), default=USUAL_WIDTH * best / peak) * peak / best


def _table_columns(full: Mapping[str, Any], mode: str, constant: Mapping[str, float], wide: bool) -> dict[str, float]:
    return {
        "table_shards": float(full["n_gpus"]),
        "row_bytes": 4.0,
        "lookup_passes": constant["lookup_passes"] if mode == TRAINING else 1.0,
        "optimizer_row": 0.0 if mode != TRAINING else 1.0,
        "exchange_element": 4.0 if wide else 2.0,
        "exchange_directions": 2.0 if mode == TRAINING else 1.0,
        "exchange_efficiency": constant["exchange_efficiency"],
    }


def _training_columns(
    full: Mapping[str, Any],
    constant: Mapping[str, float],
    trained: float,
    wide: bool,
    pure: bool,
    zero: int,
    splits: Mapping[str, float],
) -> dict[str, float]:
    moments = STATE[str(full["optimizer"])]
    gradient = 2.0 if pure and not wide else 4.0
    replicas = float(full["dp"])
    sharded = 1 / replicas if zero >= 1 else 1.0
    return {
        "trained": trained / (splits["tp"] * splits["pipefusion"]),
        "gradient_bytes": gradient,
        "buffer_bytes": constant["buffer_bytes"],
        "card_share": constant["card_share"],
        "hidden_share": constant["hidden_share"],
        "jitter_inside": constant["jitter_inside"],
        "jitter_across": constant["jitter_across"],
        "reduction_factor": 1.5 if zero >= 3 else 1.0,  # weights are gathered once more
        "update_bytes": 8.0 + 2 * moments + gradient,
        "state_bytes": moments + gradient + (4.0 if full.get("ema") else 0.0),
        "state_share": sharded / splits["tp"],
    }


def _tensor_columns(
    network: Network, micro: float, splits: Mapping[str, float], element: float, constant: Mapping[str, float]
) -> dict[str, float]:
    """All-reduces of tensor parallelism and the exchange of keys and values of context parallelism, both passes."""
    part = max(network.core, key=lambda one: one.macs)
    tp, cp = splits["tp"], splits["cp"]
    each = part.tokens * part.hidden * element / cp
    volume = 2 * (4 * each * (tp - 1) / tp + 2 * each * (cp - 1))
    return {
        "tp_volume": volume,
        "tp_blocks": float(part.blocks),
        "tp_collectives": part.blocks * (4.0 * (tp > 1) + 2.0 * (cp - 1)),
        "split_efficiency": 0.7,
        "collective_seconds": constant["collective_seconds"],
    }


def _generation_columns(
    full: Mapping[str, Any], network: Network, stack: Stack, constant: Mapping[str, float], splits: Mapping[str, float]
) -> dict[str, float]:
    eager = "compiled" not in stack.marks and not stack.names[0].startswith(("tensorrt", "tuned"))
    return {
        **splits,
        "steps": float(full.get("steps") or network.steps),
        "guided": float(_guided(full, network)),
        "in_turn": float(network.guided_in_turn),
        "whole_request": float(full.get("scope") != "denoiser"),
        "warm_up_steps": constant["warm_up_steps"],
        "split_efficiency": constant["link_share"],
        "collective_seconds": constant["collective_seconds_eager" if eager else "collective_seconds"],
    }


def stack_network_jobs(jobs: Sequence[NetworkJob]) -> Columns:
    """The columns of several jobs of one group."""
    import numpy as np

    from gpucalc.core.ledger import Columns

    if len(jobs) == 1:
        return Columns(jobs[0].columns)
    return Columns({name: np.array([job.columns[name] for job in jobs], dtype=float) for name in jobs[0].columns})


def predict_networks(jobs: Sequence[NetworkJob]) -> list[dict[str, Any]]:
    """The pred_ columns of several jobs: those of a group are evaluated together."""
    from gpucalc.estimate.network import estimate_network

    rows: list[dict[str, Any]] = [{} for _ in jobs]
    groups: dict[Any, list[int]] = {}
    for place, job in enumerate(jobs):
        groups.setdefault(job.group, []).append(place)
    for (mode, parts, _), places in groups.items():
        members = [jobs[place] for place in places]
        ledger = estimate_network(stack_network_jobs(members), parts, mode)
        for row, place in zip(network_predictions(ledger, members), places, strict=True):
            rows[place] = row
    return rows


def network_predictions(ledger: Ledger, jobs: Sequence[NetworkJob]) -> list[dict[str, Any]]:
    """The pred_ columns of each row of a ledger of networks."""
    import numpy as np

    from gpucalc.database.network_bands import network_band

    def at(path: str) -> Any:
        return np.broadcast_to(np.asarray(ledger[path], dtype=float), (len(jobs),))

    mode = jobs[0].mode
    rate, step, fill, memory = (
        at(path) for path in ("metric/samples_per_s", "time/step", "memory/fill", "memory/total")
    )
    latency = at("time/latency") if mode == GENERATION else None
    rows = []
    for i, job in enumerate(jobs):
        low, high = network_band(job.network.net, mode, job.stack, job.rates, job.cluster, job.context.db)
        per_sample = _unit(job)
        row: dict[str, Any] = {
            "pred_samples_per_s": float(rate[i]) * per_sample,
            "pred_samples_per_s_low": float(rate[i]) * per_sample / high,
            "pred_samples_per_s_high": float(rate[i]) * per_sample / low,
            "pred_step_time_s": float(step[i]),
            "pred_step_time_low_s": float(step[i]) * low,
            "pred_step_time_high_s": float(step[i]) * high,
            "pred_peak_mem_gib": float(memory[i]) / GIB,
            "pred_fit": fit_of(float(fill[i])),
            "pred_gmac": job.network.macs / 1e9,
            "pred_params_m": job.network.parameters / 1e6,
            "pred_mact": job.network.elements / 1e6,
            "pred_bound": largest_term(ledger, job, i),
            "pred_error": "",
        }
        if mode == TRAINING:
            flops = 6 * job.network.macs * float(rate[i])
            row["pred_mfu_pct"] = 100 * flops / (job.columns["peak"] * job.cluster.n_gpus)
            row["pred_recompute"] = str(job.cells.get("recompute") or "none")
        if latency is not None:
            row["pred_latency_s"] = float(latency[i])
            row["pred_latency_low_s"], row["pred_latency_high_s"] = float(latency[i]) * low, float(latency[i]) * high
        rows.append(row)
    return rows


def _unit(job: NetworkJob) -> float:
    """Units of `sample` in a sample: tokens of its sequences where rates are in tokens."""
    if job.cells.get("sample") != "token":
        return 1.0
    length = job.cells.get("seq_len") or job.network.size.get("seq_len") or 1
    return float(length)


def largest_term(ledger: Ledger, job: NetworkJob, row: int) -> str:
    """What limits a step: compute, memory, launch or network, by the largest sum of terms."""
    import numpy as np

    def at(path: str) -> float:
        if path not in ledger:
            return 0.0
        value = np.asarray(ledger[path], dtype=float)
        return float(value if value.ndim == 0 else value[row])

    products = sum(at(f"forward/{p}/products") * (at(f"passes/{p}") or 1.0) for p in job.parts)
    traffic = sum(
        (at(f"forward/{p}/traffic") + at(f"forward/{p}/lookups")) * (at(f"passes/{p}") or 1.0) for p in job.parts
    )
    step = job.columns["grad_accum"]
    sums = {
        "compute": products * step,
        "memory": traffic * step + at("time/optimizer"),
        "launch": max(0.0, at("micro/launch") - at("micro/compute")) * step
        + max(0.0, at("time/launch") - at("time/compute"))
        + max(0.0, at("launch/denoiser") - at("forward/denoiser/time"))
        + job.columns["step_floor"] * step,
        "network": at("time/dp/exposed") + at("time/exchange") + at("time/tp") + at("split/time"),
    }
    return max(sums, key=lambda name: sums[name])
