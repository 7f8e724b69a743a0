"""Communication of a training step: tensor, context, expert, pipeline and data parallel traffic.

Each group of ranks is placed on the scale-up domains (tp innermost, then cp, ep, dp, pp), and each term
keeps two values: the time of the traffic, and the part of it that compute does not hide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.vocabulary import CP_KINDS
from gpucalc.estimate import collectives
from gpucalc.formulas import data_parallel, expert_exchange, layer
from gpucalc.formulas.collectives import all_to_all_remote_share

ELEMENT = 2.0  # bytes of a 16-bit activation on the wire


def place(ledger: Ledger, name: str, ranks: Any, stride: Any) -> dict[str, Any]:
    """Arguments that tell a collective how a group lies on the domains; `ranks` of them, `stride` apart."""
    return collectives.place(ledger, f"placement/{name}", ranks, stride)


def add_layer_communication(ledger: Ledger) -> None:
    """Store tensor, context and expert parallel time per layer and micro-batch, forward and backward."""
    _tensor_parallel(ledger)
    _context_parallel(ledger)
    _expert_parallel(ledger)
    for direction in ("forward", "backward"):
        parts = [f"layer/{direction}/{kind}/exposed" for kind in ("tp", "cp", "ep")]
        ledger.total(f"layer/{direction}/exposed", *[p for p in parts if p in ledger])
        ledger.total(f"layer/{direction}/time", f"layer/{direction}/busy", f"layer/{direction}/exposed")


def _tensor_parallel(ledger: Ledger) -> None:
    c = ledger.columns
    group = place(ledger, "tp", c["tp"], 1.0)
    message = ELEMENT * c["tokens"] * c["hidden"]
    blocks = (c["attention_layers"] + c["linear_layers"] + c["dense_layers"]) / c["layers"]
    blocks = blocks + c["moe_layers"] / c["layers"] * ((c["etp"] > 1) | (c["shared_expert_ffn_hidden"] > 0))
    whole = collectives.add_all_reduce(ledger, "layer/tp/all-reduce", message=message, **group)
    gather = collectives.add_all_gather(ledger, "layer/tp/all-gather", message=message, **group)
    scatter = collectives.add_all_gather(ledger, "layer/tp/reduce-scatter", message=message, **group)
    per_block = np.where(c["sequence_parallel"] > 0, gather + scatter, whole)
    ledger.keep("layer/tp/blocks", blocks)
    ledger.add("layer/tp/time", layer.scaled_time, time=per_block, factor=blocks)
    for direction in ("forward", "backward"):
        ledger.add(
            f"layer/{direction}/tp/exposed",
            layer.scaled_time,
            time=ledger["layer/tp/time"],
            factor=c[f"tp_exposed_{direction}"],
        )


def _context_parallel(ledger: Ledger) -> None:
    c = ledger.columns
    if not np.any(c["cp"] > 1):
        return
    cp, tp = c["cp"], c["tp"]
    share = c["attention_layers"] / c["layers"]
    kv_width = np.maximum(c["kv_heads"] / tp, 1.0) * (c["head_dim"] + c["v_head_dim"])
    block = ledger.keep("layer/cp/block", ELEMENT * c["tokens"] * kv_width)
    group = place(ledger, "cp", cp, tp)
    hop = collectives.add_send(
        ledger,
        "layer/cp/hop",
        message=block,
        crosses=1.0 * (cp * tp > c["domain"]),
        link_bandwidth=group["link_bandwidth"],
        point_to_point_efficiency=c["link_efficiency"],
    )
    ledger.add("layer/cp/ring", layer.scaled_time, time=hop, factor=cp - 1)
    collectives.add_all_gather(ledger, "layer/cp/ag", message=block * cp, **group)
    all_columns = ELEMENT * c["tokens"] * (c["qkv"] + c["attention_columns"])
    remote = ledger.add(
        "layer/cp/remote",
        all_to_all_remote_share,
        ranks=group["ranks"],
        ranks_per_domain=group["ranks_per_domain"],
    )
    collectives.add_all_to_all(ledger, "layer/cp/ulysses", message=all_columns, remote_share=remote, **group)
    cases = {index: f"layer/cp/{kind}" for index, kind in enumerate(CP_KINDS)}
    time = ledger.choose("layer/cp/time", c["cp_kind"], cases)
    for direction, passes in (("forward", 1.0), ("backward", 2.0)):
        exposed = ledger.add(
            f"layer/{direction}/cp/of-attention",
            layer.exposed_time,
            communication=passes * share * time,
            window=ledger[f"layer/{direction}/attention"] * (c["cp_kind"] == 0),
            hidden_share=c["cp_hidden_share"],
            residual=c["cp_residual"],
        )
        ledger.add(f"layer/{direction}/cp/exposed", layer.scaled_time, time=exposed, factor=1.0 * (cp > 1))


def _expert_parallel(ledger: Ledger) -> None:
    c = ledger.columns
    if not np.any((c["moe_layers"] > 0) & (c["ep"] > 1)):
        return
    group = place(ledger, "ep", c["ep"], c["etp"])
    remote = ledger.add(
        "layer/ep/remote",
        expert_exchange.dispatch_remote_share,
        ranks=group["ranks"],
        ranks_per_domain=group["ranks_per_domain"],
        experts_per_token=_at_least_one(c["experts_per_token"]),
    )
    message = ledger.keep("layer/ep/message", ELEMENT * c["tokens"] / c["tp"] * c["experts_per_token"] * c["hidden"])
    # A dispatcher sends to all ranks at once, not to one peer after the other.
    at_once = {"exchange_peer_latency": 0.0}
    one = collectives.add_all_to_all(
        ledger, "layer/ep/all-to-all", message=message, remote_share=remote, **group, **at_once
    )
    both = ledger.add("layer/ep/time", layer.mean_over_layers, time=2 * one, kind_layers=c["moe_layers"])
    for direction in ("forward", "backward"):
        ledger.add(f"layer/{direction}/ep/exposed", layer.scaled_time, time=both, factor=c["ep_exposed_share"])


def _at_least_one(value: Any) -> Any:
    return np.maximum(value, 1.0)


def add_pipeline_transfer(ledger: Ledger) -> None:
    """Store the time of one hop between pipeline stages."""
    c = ledger.columns
    split = ledger.keep("pp/split", np.where(c["p2p_scattered"] > 0, c["tp"], c["sequence_ranks"]))
    collectives.add_send(
        ledger,
        "pp/hop",
        message=ELEMENT * c["tokens"] * c["hidden"] / split,
        crosses=1.0 * (c["n_gpus"] > c["domain"]),
        point_to_point_efficiency=c["link_efficiency"],
        network_startup=c["p2p_network_startup"],
    )


def kinds(columns: Columns) -> tuple[str, ...]:
    """Kinds of parameters that are reduced over groups of their own: dense, and experts where there are any."""
    return ("dense", "experts") if np.any(columns["moe_layers"] > 0) else ("dense",)


def add_data_parallel(ledger: Ledger) -> None:
    """Store gradient and parameter traffic of a step (ZeRO 0 to 2), and of a layer and micro-batch (ZeRO 3).

    The scope knows the ranks and the parameters of a stage, and nothing of schedules.
    """
    c = ledger.columns
    trained = c["trains_base"]
    # A flat parameter that holds frozen weights beside adapters has gradients of its whole size.
    flat = np.maximum(trained, c["gathers_model"] * c["adapters"])
    mixture = c["moe_layers"] > 0
    groups = {
        "dense": (c["replicas"], c["shards"], c["tp"]),
        # A row without experts has no group of theirs: one rank, which pays no latency.
        "experts": (
            np.where(mixture, c["expert_replicas"], 1.0),
            np.where(mixture, c["expert_shards"], 1.0),
            c["ep"] * c["etp"],
        ),
    }
    for name in kinds(c):
        replicas, shards, stride = groups[name]
        everyone = place(ledger, f"dp/{name}", replicas, stride)
        sharers = place(ledger, f"shard/{name}", shards, stride)
        sharers["network_bandwidth"] = (
            sharers.get("network_bandwidth", c["network_bandwidth"]) * c["sharded_bandwidth_ratio"]
        )
        stage = ledger[f"stage/parameters/{name}"] * c["parameter_copies"]
        adapters = c["tuned_parameters"] * (name == "dense")
        gradients = ledger.add(
            f"dp/{name}/gradients", data_parallel.gradient_message, parameters=stage * trained + adapters
        )
        weights = ledger.add(f"dp/{name}/weights", data_parallel.parameter_message, parameters=stage * trained)
        across = replicas / shards
        copies = place(ledger, f"copies/{name}", across, stride * shards)
        collectives.add_all_reduce(ledger, f"dp/{name}/all-reduce", message=gradients, **everyone)
        collectives.add_all_gather(ledger, f"dp/{name}/reduce-scatter", message=gradients, **sharers)
        collectives.add_all_gather(ledger, f"dp/{name}/all-gather", message=weights, **sharers)
        collectives.add_all_reduce(ledger, f"dp/{name}/copies", message=gradients / shards, **copies)
        per_layer = ledger[f"layer/parameters/{name}"]
        collectives.add_all_gather(
            ledger,
            f"fsdp/{name}/all-gather",
            message=per_layer * c["weight_comm_bytes"],
            **sharers,
        )
        collectives.add_all_gather(
            ledger,
            f"fsdp/{name}/reduce-scatter",
            message=per_layer * flat * c["gradient_comm_bytes"],
            **sharers,
        )
    for collective in ("all-reduce", "reduce-scatter", "all-gather", "copies"):
        ledger.total(f"dp/{collective}", *[f"dp/{name}/{collective}" for name in kinds(c)])
    for collective in ("all-gather", "reduce-scatter"):
        ledger.total(f"fsdp/{collective}", *[f"fsdp/{name}/{collective}" for name in kinds(c)])
