"""Communication of a training step: tensor, context, expert, pipeline and data parallel traffic.

Each group of ranks is placed on the scale-up domains (tp innermost, then cp, ep, dp, pp), and each term
keeps two values: the time of the traffic, and the part of it that compute does not hide.
"""

from __future__ import annotations

from typing import Any

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger, any_row
from gpucalc.core.vocabulary import CP_KINDS
from gpucalc.estimate import collectives
from gpucalc.estimate.collectives import ADJACENT
from gpucalc.formulas import data_parallel, expert_exchange, gathering, layer, shapes, topology
from gpucalc.formulas.collectives import all_to_all_remote_share

ALONE = Constant("ALONE", 1.0, "ranks of a group of one", "definition")
BOTH_WAYS = Constant("BOTH_WAYS", 2.0, "exchanges of a layer with experts: to them and back", "definition")
AT_ONCE = Constant(
    "AT_ONCE", 0.0, "s; a dispatcher sends to all ranks at once, not to one peer after another", "definition"
)
WHOLE_WINDOW = Constant("WHOLE_WINDOW", 1.0, "share of a product beside which a gather runs", "definition")
GRADIENT_BLOCKS = Constant(
    "GRADIENT_BLOCKS", 2.0, "ring passes backward: keys and values once more, and their gradients", "definition"
)


def place(ledger: Ledger, name: str, ranks: Any, stride: Any) -> dict[str, Any]:
    """Arguments that tell a collective how a group lies on the domains; `ranks` of them, `stride` apart.

    Both are references (or constants), and so are the arguments.
    """
    return collectives.place(ledger, f"placement/{name}", ranks, stride)


def add_layer_communication(ledger: Ledger) -> None:
    """Store tensor, context and expert parallel time per layer and micro-batch, forward and backward."""
    ledger.add("layer/message", shapes.activation_message)
    _tensor_parallel(ledger)
    _context_parallel(ledger)
    _expert_parallel(ledger)
    for direction in ("forward", "backward"):
        parts = [f"layer/{direction}/{kind}/exposed" for kind in ("tp", "cp", "ep")]
        ledger.total(f"layer/{direction}/exposed", *[p for p in parts if p in ledger])
        # The host runs ahead while the device computes or waits for others: it is a floor under both.
        ledger.total(f"layer/{direction}/queued", f"layer/{direction}/device", f"layer/{direction}/exposed")
        ledger.maximum(f"layer/{direction}/time", f"layer/{direction}/queued", f"layer/host/{direction}")


def _tensor_parallel(ledger: Ledger) -> None:
    group = place(ledger, "tp", "tp", ADJACENT)
    group["link_efficiency"] = "layer/tp/link-efficiency"
    ledger.add("layer/tp/overlaps", layer.overlaps_chunks)
    ledger.add("layer/tp/link-efficiency", layer.tensor_link_efficiency, overlap="layer/tp/overlaps")
    message = "layer/message"
    collectives.add_all_reduce(ledger, "layer/tp/all-reduce", message=message, **group)
    collectives.add_all_gather(ledger, "layer/tp/all-gather", message=message, **group)
    ledger.total("layer/tp/reduce-scatter", "layer/tp/all-gather")  # its reverse, of the same message
    ledger.total("layer/tp/gather-scatter", "layer/tp/all-gather", "layer/tp/reduce-scatter")
    cases = {0: "layer/tp/all-reduce", 1: "layer/tp/gather-scatter"}
    ledger.choose("layer/tp/block", "sequence_parallel", cases)
    ledger.add("layer/tp/blocks", shapes.reduced_blocks)
    ledger.product("layer/tp/time", "layer/tp/block", "layer/tp/blocks")
    for direction, window in (("forward", "layer/forward/gemm"), ("backward", "layer/activation-gradient/gemm")):
        ledger.add(
            f"layer/{direction}/tp/chunks",
            layer.chunked_exposed_time,
            communication="layer/tp/time",
            product=window,
            overlap="layer/tp/overlaps",
            chunks="tp_overlap_chunks",
            residual="tp_overlap_residual",
        )
    ledger.total("layer/forward/tp/exposed", "layer/forward/tp/chunks")
    _leaving(ledger)
    _regathered(ledger)
    parts = ("chunks", "asynchronous", "regather")
    ledger.total("layer/backward/tp/exposed", *[f"layer/backward/tp/{part}" for part in parts])


def _leaving(ledger: Ledger) -> None:
    """Store what of the traffic that leaves a block's backward pass the product for the weight's gradient hides."""
    ledger.choose("layer/tp/leaving/one", "sequence_parallel", {0: "layer/tp/all-reduce", 1: "layer/tp/reduce-scatter"})
    ledger.product("layer/tp/leaving", "layer/tp/leaving/one", "layer/tp/blocks")
    ledger.add("layer/tp/asynchronous", layer.asynchronous_reduction, overlap="layer/tp/overlaps")
    ledger.add(
        "layer/backward/tp/asynchronous",
        layer.hidden_time,
        communication="layer/tp/leaving",
        window="layer/weight-gradient/trained",
        residual="tp_overlap_residual",
        usable="layer/tp/asynchronous",
    )


def _regathered(ledger: Ledger) -> None:
    """Store the third collective of the backward pass, which runs beside the product for the input's gradient."""
    ledger.add("layer/tp/again", layer.gathers_again)
    ledger.product("layer/tp/regather", "layer/tp/all-gather", "layer/tp/blocks", "layer/tp/again")
    ledger.add(
        "layer/backward/tp/regather",
        layer.exposed_time,
        communication="layer/tp/regather",
        window="layer/activation-gradient/gemm",
        hidden_share=WHOLE_WINDOW,
        residual="tp_overlap_residual",
    )


def _context_parallel(ledger: Ledger) -> None:
    if not any_row(ledger.columns["cp"] > 1):
        return
    group = place(ledger, "cp", "cp", "tp")
    ledger.add("layer/cp/block", shapes.key_value_message)
    ledger.add("layer/cp/crosses", topology.crosses_domains, ranks="cp", stride="tp")
    collectives.add_send(
        ledger,
        "layer/cp/hop",
        message="layer/cp/block",
        crosses="layer/cp/crosses",
        stride="tp",
        point_to_point_efficiency="link_efficiency",
        **{name: group[name] for name in ("fabric_share",) if name in group},
    )
    ledger.add("layer/cp/ring", layer.ring_exchange_time, ranks="cp", hop="layer/cp/hop")
    ledger.product("layer/cp/gathered", "layer/cp/block", "cp")
    collectives.add_all_gather(ledger, "layer/cp/ag", message="layer/cp/gathered", **group)
    ledger.add("layer/cp/heads", shapes.head_exchange_message)
    ledger.add(
        "layer/cp/remote",
        all_to_all_remote_share,
        ranks=group["ranks"],
        ranks_per_domain=group["ranks_per_domain"],
    )
    collectives.add_all_to_all(
        ledger,
        "layer/cp/ulysses",
        message="layer/cp/heads",
        remote_share="layer/cp/remote",
        **group,
    )
    ledger.choose("layer/cp/time", "cp_kind", {code: f"layer/cp/{kind}" for code, kind in enumerate(CP_KINDS)})
    ledger.add("layer/cp/forward", layer.mean_over_layers, time="layer/cp/time", kind_layers="attention_layers")
    ledger.product("layer/cp/backward", "layer/cp/forward", GRADIENT_BLOCKS)
    ledger.keep("layer/cp/beside-attention", 1.0 * (ledger.columns["cp_kind"] == CP_KINDS.index("ring")))
    for direction in ("forward", "backward"):
        ledger.product(f"layer/{direction}/cp/window", f"layer/{direction}/attention", "layer/cp/beside-attention")
        ledger.add(
            f"layer/{direction}/cp/of-attention",
            layer.exposed_time,
            communication=f"layer/cp/{direction}",
            window=f"layer/{direction}/cp/window",
            hidden_share="cp_hidden_share",
            residual="cp_residual",
        )
        ledger.add(
            f"layer/{direction}/cp/exposed", layer.time_of_many, time=f"layer/{direction}/cp/of-attention", ranks="cp"
        )


def _expert_parallel(ledger: Ledger) -> None:
    c = ledger.columns
    if not any_row((c["moe_layers"] > 0) & (c["ep"] > 1)):
        return
    group = place(ledger, "ep", "ep", "etp")
    ledger.add("layer/ep/experts-per-token", shapes.at_least_one, size="experts_per_token")
    ledger.add(
        "layer/ep/remote",
        expert_exchange.dispatch_remote_share,
        ranks=group["ranks"],
        ranks_per_domain=group["ranks_per_domain"],
        experts_per_token="layer/ep/experts-per-token",
    )
    ledger.add("layer/ep/message", shapes.routed_message)
    collectives.add_all_to_all(
        ledger,
        "layer/ep/all-to-all",
        message="layer/ep/message",
        remote_share="layer/ep/remote",
        exchange_peer_latency=AT_ONCE,
        **group,
    )
    exchange = "layer/ep/all-to-all"
    if any_row(c["all_gathers_tokens"] > 0):
        # Every rank of the group sees all tokens, each once, and keeps those of its experts.
        ledger.add("layer/ep/gathered", shapes.gathered_tokens_message)
        collectives.add_all_gather(ledger, "layer/ep/all-gather", message="layer/ep/gathered", **group)
        exchange = "layer/ep/exchange"
        ledger.choose(exchange, "all_gathers_tokens", {0: "layer/ep/all-to-all", 1: "layer/ep/all-gather"})
    ledger.product("layer/ep/both", exchange, BOTH_WAYS)
    ledger.add("layer/ep/time", layer.mean_over_layers, time="layer/ep/both", kind_layers="moe_layers")
    for direction in ("forward", "backward"):
        ledger.product(f"layer/{direction}/ep/exposed", "layer/ep/time", "ep_exposed_share")


def add_pipeline_transfer(ledger: Ledger) -> None:
    """Store the time of one hop between pipeline stages."""
    ledger.add("pp/split", shapes.boundary_ranks)
    ledger.add("pp/message", shapes.boundary_message, split="pp/split")
    ledger.add("pp/crosses", topology.crosses_domains, ranks="n_gpus", stride=ADJACENT)
    collectives.add_send(
        ledger,
        "pp/hop",
        message="pp/message",
        crosses="pp/crosses",
        point_to_point_efficiency="link_efficiency",
        network_startup="p2p_network_startup",
    )


def kinds(columns: Columns) -> tuple[str, ...]:
    """Kinds of parameters that are reduced over groups of their own: dense, and experts where there are any."""
    return ("dense", "experts") if any_row(columns["moe_layers"] > 0) else ("dense",)


def add_data_parallel(ledger: Ledger) -> None:
    """Store gradient and parameter traffic of a step (ZeRO 0 to 2), and of a layer and micro-batch (ZeRO 3).

    The scope knows the ranks and the parameters of a stage, and nothing of schedules.
    """
    # A flat parameter that holds frozen weights beside adapters has gradients of its whole size.
    ledger.add("fsdp/gradient-share", data_parallel.flat_gradient_share)
    groups = {"dense": ("replicas", "shards", "tp")}
    if "experts" in kinds(ledger.columns):
        # A row without experts has no group of theirs: one rank, which pays no latency.
        for name in ("expert_replicas", "expert_shards"):
            ledger.add(f"dp/experts/{name}", data_parallel.expert_group, ranks=name)
        ledger.product("dp/experts/stride", "ep", "etp")
        groups["experts"] = ("dp/experts/expert_replicas", "dp/experts/expert_shards", "dp/experts/stride")
    for name, (replicas, shards, stride) in groups.items():
        _messages(ledger, name)
        everyone = place(ledger, f"dp/{name}", replicas, stride)
        sharers = place(ledger, f"shard/{name}", shards, stride)
        network = sharers.get("network_bandwidth", "network_bandwidth")
        ledger.product(f"placement/shard/{name}/sharded", network, "sharded_bandwidth_ratio")
        sharers["network_bandwidth"] = f"placement/shard/{name}/sharded"
        ledger.add(f"dp/{name}/copies/ranks", data_parallel.copy_ranks, replicas=replicas, shards=shards)
        ledger.product(f"dp/{name}/copies/stride", stride, shards)
        copies = place(ledger, f"copies/{name}", f"dp/{name}/copies/ranks", f"dp/{name}/copies/stride")
        ledger.add(
            f"dp/{name}/copies/message", data_parallel.sharded_message, message=f"dp/{name}/gradients", shards=shards
        )
        reduce, gather = collectives.add_all_reduce, collectives.add_all_gather
        reduce(ledger, f"dp/{name}/all-reduce", message=f"dp/{name}/gradients", **everyone)
        gather(ledger, f"dp/{name}/reduce-scatter", message=f"dp/{name}/gradients", **sharers)
        gather(ledger, f"dp/{name}/all-gather", message=f"dp/{name}/weights", **sharers)
        reduce(ledger, f"dp/{name}/copies", message=f"dp/{name}/copies/message", **copies)
        piece, pieces, loops = f"fsdp/{name}/piece/all-gather", "gather_pieces", False
        if name == "experts":
            loops = any_row(ledger.columns["modules_fetched"] * ledger.columns["experts_apart"] > 0)
        if loops:
            pieces = f"fsdp/{name}/pieces"
            ledger.add("fsdp/experts/fetched", data_parallel.experts_fetched)
            ledger.add(pieces, data_parallel.expert_pieces, fetched="fsdp/experts/fetched")
        ledger.add(
            f"fsdp/{name}/piece",
            data_parallel.gathered_piece,
            message=f"fsdp/{name}/weights",
            gather_pieces=pieces,
        )
        gather(ledger, piece, message=f"fsdp/{name}/piece", **sharers)
        if loops:
            ledger.add(
                f"fsdp/{name}/all-gather",
                data_parallel.fetched_time,
                piece=piece,
                pieces=pieces,
                fetched="fsdp/experts/fetched",
            )
        else:
            ledger.product(f"fsdp/{name}/all-gather", piece, pieces)
        gather(ledger, f"fsdp/{name}/reduce-scatter", message=f"fsdp/{name}/gradients", **sharers)
    _interference(ledger, [f"fsdp/{name}/piece/all-gather" for name in groups])
    _tied_embeddings(ledger)
    for collective in ("all-reduce", "reduce-scatter", "all-gather", "copies"):
        ledger.total(f"dp/{collective}", *[f"dp/{name}/{collective}" for name in groups])
    for collective in ("all-gather", "reduce-scatter"):
        ledger.total(f"fsdp/{collective}", *[f"fsdp/{name}/{collective}" for name in groups])


def _interference(ledger: Ledger, pieces: list[str]) -> None:
    """Store how much the gathering of parameters slows compute: less where the network sets its pace."""
    ledger.total("fsdp/links", *[f"{piece}/link" for piece in pieces])
    ledger.total("fsdp/gathers", *pieces)
    ledger.add(
        "fsdp/interference", layer.interference, residual="fsdp_residual", link="fsdp/links", total="fsdp/gathers"
    )


def _tied_embeddings(ledger: Ledger) -> None:
    """Store the reduction of a shared embedding between the first and the last stage, one card a rank."""
    c = ledger.columns
    if not any_row(c["tied_embeddings"] * (c["pp"] > 1) > 0):
        return
    ledger.add("dp/tied/message", gathering.tied_embedding_message)
    ledger.add("dp/tied/ranks", data_parallel.tied_ranks)
    ledger.add("dp/tied/stride", data_parallel.tied_stride)
    pair = place(ledger, "tied", "dp/tied/ranks", "dp/tied/stride")
    collectives.add_all_reduce(ledger, "dp/tied/all-reduce", message="dp/tied/message", **pair)
    ledger.add("dp/tied/used", gathering.is_tied)
    ledger.product("dp/tied", "dp/tied/all-reduce", "dp/tied/used")


def _messages(ledger: Ledger, name: str) -> None:
    """Store what a rank reduces and gathers of one kind of parameters: of a stage, and of a layer."""
    ledger.product(f"dp/{name}/parameters", f"stage/parameters/{name}", "parameter_copies")
    ledger.product(f"dp/{name}/trained", f"dp/{name}/parameters", "trains_base")
    reduced = f"dp/{name}/trained"
    if name == "dense":  # adapters, and copies of the embedding and the head, are split like dense parameters
        reduced = f"dp/{name}/reduced"
        ledger.total(reduced, f"dp/{name}/trained", "tuned_parameters")
    ledger.add(f"dp/{name}/gradients", data_parallel.gradient_message, parameters=reduced)
    ledger.add(f"dp/{name}/weights", data_parallel.parameter_message, parameters=f"dp/{name}/trained")
    ledger.product(f"fsdp/{name}/reduced", f"layer/parameters/{name}", "fsdp/gradient-share")
    ledger.add(f"fsdp/{name}/weights", data_parallel.parameter_message, parameters=f"layer/parameters/{name}")
    ledger.add(f"fsdp/{name}/gradients", data_parallel.gradient_message, parameters=f"fsdp/{name}/reduced")
