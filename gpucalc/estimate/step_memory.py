"""Memory of one GPU in a training step, and the recomputation that makes it fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.formulas import data_parallel, memory, parameters, pipeline
from gpucalc.ledger import Ledger
from gpucalc.vocabulary import SCHEDULES

STAGES = ("first", "second", "last")
PARTS = ("weights", "gradients", "optimizer", "adapters", "activations", "passing", "gather")


def define_replicas(ledger: Ledger) -> None:
    """Define the groups that hold the same parameters, and those that share their states."""
    c = ledger.columns
    ledger.define("replicas", data_parallel.replica_ranks)
    ledger.define("expert_replicas", data_parallel.expert_replica_ranks)
    ledger.define("shards", data_parallel.sharding_ranks, replicas=c["replicas"])
    ledger.define("expert_shards", data_parallel.sharding_ranks, replicas=c["expert_replicas"])


def add_parameters(ledger: Ledger) -> None:
    """Store the parameters of a layer and of each stage on one rank, by kind."""
    c = ledger.columns
    ledger.add("layer/parameters/sharded-part", parameters.layer_parameters_dense)
    ledger.add("layer/parameters/replicated-part", parameters.layer_parameters_replicated)
    ledger.total("layer/parameters/dense", "layer/parameters/sharded-part", "layer/parameters/replicated-part")
    ledger.add("layer/parameters/experts", parameters.layer_parameters_experts)
    ledger.define("longest", parameters.stage_layers)
    depth = {
        "first": ledger.add("stage/layers/first", parameters.first_stage_layers),
        "second": ledger.add("stage/layers/second", parameters.stage_layers),
        "last": ledger.add("stage/layers/last", parameters.last_stage_layers),
    }
    extra = {
        "first": ledger.add("stage/extra/first", parameters.first_stage_extra),
        "second": 0.0,
        "last": ledger.add("stage/extra/last", parameters.last_stage_extra),
    }
    for stage in STAGES:
        for kind in ("dense", "experts"):
            ledger.add(
                f"stage/parameters/{kind}/{stage}",
                parameters.stage_parameters,
                per_layer=ledger[f"layer/parameters/{kind}"],
                stage_depth=depth[stage],
                extra=extra[stage] if kind == "dense" else 0.0,
            )
    for kind in ("dense", "experts"):
        ledger.maximum(f"stage/parameters/{kind}", *[f"stage/parameters/{kind}/{stage}" for stage in STAGES])


def add_states(ledger: Ledger) -> None:
    """Store weights, gradients and optimizer states of each stage."""
    c = ledger.columns
    groups = {"dense": c["shards"], "experts": c["expert_shards"]}
    for stage in STAGES:
        for what, formula in (
            ("weights", memory.weight_memory),
            ("gradients", memory.gradient_memory),
            ("optimizer", memory.optimizer_memory),
        ):
            trained = 1.0 if what == "weights" else c["trains_base"]
            for kind, shards in groups.items():
                ledger.add(
                    f"memory/{stage}/{what}/{kind}",
                    formula,
                    parameters=ledger[f"stage/parameters/{kind}/{stage}"] * trained,
                    shards=shards,
                )
            ledger.total(f"memory/{stage}/{what}", *[f"memory/{stage}/{what}/{kind}" for kind in groups])
        ledger.total(f"memory/{stage}/states", *[f"memory/{stage}/{w}" for w in ("weights", "gradients", "optimizer")])
    ledger.add(
        "memory/gather",
        memory.gathered_memory,
        layer_parameters=ledger["layer/parameters/dense"] + ledger["layer/parameters/experts"],
        embedding_parameters=(c["embedding_parameters"] + c["head_parameters"]) / c["tp"],
        gather_bytes=c["weight_comm_bytes"] + 2.0 * c["trains_base"],
    )
    ledger.add(
        "memory/adapters",
        memory.weight_memory,
        parameters=c["adapter_parameters"] * c["longest"],
        weight_bytes=c["adapter_state_bytes"],
        zero_stage=0.0,
        shards=1.0,
    )


def add_layer_activations(ledger: Ledger) -> None:
    """Store the bytes that one layer keeps of a micro-batch, whole and recomputed, and what passes through it."""
    c = ledger.columns
    ledger.add("layer/memory/tensors", memory.layer_activations)
    ledger.add("layer/memory/scores", memory.score_activations)
    ledger.add("layer/memory/routed", memory.routed_activations)
    ledger.total("layer/memory/whole", "layer/memory/tensors", "layer/memory/routed")
    ledger.total("layer/memory/unrecomputed", "layer/memory/whole", "layer/memory/scores")
    ledger.add("layer/memory/checkpoint", memory.checkpoint_activations)
    ledger.add("layer/memory/logits", memory.logits_memory)
    ledger.add("layer/memory/boundary", memory.checkpoint_activations, element_bytes=2.0 * c["boundary_copies"])
    for name, recomputing in (("keeping", 0.0), ("recomputing", 1.0)):
        ledger.add(
            f"layer/memory/working/{name}",
            memory.working_memory,
            recomputed_layer=ledger["layer/memory/unrecomputed"],
            recomputing=recomputing,
        )
        ledger.add(
            f"layer/memory/working/{name}-with-head",
            memory.passing_memory,
            working=ledger[f"layer/memory/working/{name}"],
            logits=ledger["layer/memory/logits"],
        )


def add_in_flight(ledger: Ledger) -> None:
    """Store the micro-batches whose activations each stage holds, by schedule."""
    c = ledger.columns
    pp = c["pp"]
    used = set(np.unique(c["schedule"]).astype(int).tolist())
    for stage, index in zip(STAGES, (0.0, np.minimum(1.0, pp - 1), pp - 1), strict=True):
        cases: dict[int, str] = {}

        def case(names: tuple[str, ...], function: Any, cases: dict[int, str] = cases, **given: Any) -> None:
            codes = [SCHEDULES.index(name) for name in names if SCHEDULES.index(name) in used]
            if codes:
                path = f"pp/in-flight/{stage}/{names[-1]}"
                ledger.add(path, function, **given)
                cases.update(dict.fromkeys(codes, path))

        case(("none", "1f1b"), pipeline.in_flight_1f1b, stage_index=index)
        case(("gpipe",), pipeline.in_flight_gpipe)
        case(("interleaved",), pipeline.in_flight_interleaved, stage_index=index)
        case(("zb-h1", "zb-1p"), pipeline.in_flight_zero_bubble_1, stage_index=index)
        case(("zb-2p",), pipeline.in_flight_zero_bubble_2)
        case(("dualpipe", "dualpipe-v"), pipeline.in_flight_dualpipe)
        ledger.choose(f"pp/in-flight/{stage}", c["schedule"], cases)


def add_memory(ledger: Ledger) -> None:
    """Store the memory of each stage with no, every and the chosen share of layers recomputed; the worst decides."""
    c = ledger.columns
    ledger.add("memory/capacity", memory.tensor_capacity)
    for name, share in (("none", 0.0), ("full", 1.0)):
        for stage in STAGES:
            _stage_memory(ledger, stage, name, share, 0.0)
        ledger.maximum(f"recompute/{name}", *[f"memory/{stage}/{name}" for stage in STAGES])
    needed = ledger.add(
        "recompute/needed",
        memory.needed_recompute_share,
        unrecomputed=ledger["recompute/none"],
        recomputed=ledger["recompute/full"],
        capacity=ledger["memory/capacity"],
    )
    depth = ledger["stage/layers/second"]
    automatic = ledger.add("recompute/whole-layers", memory.whole_layer_share, share=needed, stage_depth=depth)
    share = ledger.define("full_share", memory.recompute_share, stage_depth=depth, automatic=automatic)
    for stage in STAGES:
        _stage_memory(ledger, stage, "chosen", share, 1.0 * (c["recompute"] == 1))
    worst = np.argmax(np.stack(np.broadcast_arrays(*[ledger[f"memory/{s}/chosen"] for s in STAGES])), axis=0)
    for part in ("weights", "gradients", "optimizer"):
        ledger.choose(f"memory/{part}", worst, {i: f"memory/{stage}/{part}" for i, stage in enumerate(STAGES)})
    for part in ("activations", "passing"):
        ledger.choose(f"memory/{part}", worst, {i: f"memory/{stage}/chosen/{part}" for i, stage in enumerate(STAGES)})
    ledger.total("memory/raw", *[f"memory/{part}" for part in PARTS])
    ledger.add("memory/fill", memory.memory_fill, raw=ledger["memory/raw"], capacity=ledger["memory/capacity"])
    ledger.add(
        "memory/reserve",
        memory.reserve_memory,
        raw=ledger["memory/raw"],
        fragmentation=c["counter_factor"],
        fixed=c["counter_fixed"],
    )
    ledger.total("memory/total", *[f"memory/{part}" for part in (*PARTS, "reserve")])


def _stage_memory(ledger: Ledger, stage: str, name: str, full_share: Any, selective: Any) -> None:
    """Store the tensors of a stage when `full_share` of its layers is recomputed."""
    c = ledger.columns
    path = f"memory/{stage}/{name}"
    kept = ledger.add(
        f"{path}/kept-per-layer",
        memory.kept_activations,
        full_layer=ledger["layer/memory/whole"],
        scores=ledger["layer/memory/scores"],
        checkpoint=ledger["layer/memory/checkpoint"],
        full_share=full_share,
        selective=selective,
    )
    ledger.add(
        f"{path}/activations",
        memory.stage_activations,
        in_flight=ledger[f"pp/in-flight/{stage}"],
        stage_depth=ledger[f"stage/layers/{stage}"],
        kept_per_layer=kept,
        boundary=ledger["layer/memory/boundary"],
    )
    head = (c["pp"] == 1) | (stage == "last")
    recomputing = np.greater(full_share, 0)
    working = "layer/memory/working"
    ledger.choose(
        f"{path}/passing",
        2 * recomputing + head,
        {0: f"{working}/keeping", 1: f"{working}/keeping-with-head"}
        | {2: f"{working}/recomputing", 3: f"{working}/recomputing-with-head"},
    )
    ledger.total(
        path, f"memory/{stage}/states", "memory/adapters", "memory/gather", f"{path}/activations", f"{path}/passing"
    )
