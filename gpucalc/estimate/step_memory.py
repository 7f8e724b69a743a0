"""Memory of one GPU in a training step, and the recomputation that makes it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucalc.core.formula import info_of
from gpucalc.core.ledger import Ledger
from gpucalc.formulas import adapters, data_parallel, layer, memory, parameters
from gpucalc.layouts.schedules import Schedule, by_code

STAGES = ("first", "second", "last")
RESIDUAL_BYTES = 8.0  # per token and hidden unit: inputs and outputs of both norms in 16 bit
PARTS = ("weights", "gradients", "optimizer", "adapters", "activations", "working", "logits", "gather")


def define_replicas(ledger: Ledger) -> None:
    """Define the groups that hold the same parameters, and those that share their states."""
    c = ledger.columns
    ledger.define("replicas", data_parallel.replica_ranks)
    ledger.define("expert_replicas", data_parallel.expert_replica_ranks)
    ledger.define("shards", data_parallel.sharding_ranks, replicas=c["replicas"])
    ledger.define("expert_shards", data_parallel.sharding_ranks, replicas=c["expert_replicas"])


def add_parameters(ledger: Ledger) -> None:
    """Store the parameters of a layer and of each stage on one rank, by kind."""
    ledger.add("layer/parameters/sharded-part", parameters.layer_parameters_dense)
    ledger.add("layer/parameters/replicated-part", parameters.layer_parameters_replicated)
    ledger.total("layer/parameters/dense", "layer/parameters/sharded-part", "layer/parameters/replicated-part")
    ledger.add("layer/parameters/experts", parameters.layer_parameters_experts)
    ledger.define("longest", parameters.stage_layers)
    ledger.define("adapter_parameters", adapters.lora_parameters)
    ledger.define("tuned_parameters", adapters.tuned_parameters)
    depth = add_stage_layers(ledger, "stage/parameters/depth")
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


def add_stage_layers(ledger: Ledger, path: str) -> dict[str, Any]:
    """Store the layers of the first, a middle and the last stage below `path`."""
    longest = ledger.add(f"{path}/second", parameters.stage_layers)
    return {
        "first": ledger.add(f"{path}/first", parameters.first_stage_layers, longest=longest),
        "second": longest,
        "last": ledger.add(f"{path}/last", parameters.last_stage_layers, longest=longest),
    }


def add_states(ledger: Ledger) -> None:
    """Store weights, gradients and optimizer states of each stage."""
    c = ledger.columns
    copies = c["parameter_copies"]  # each copy has as many more ranks to share it
    groups = {"dense": c["shards"] * copies, "experts": c["expert_shards"] * copies}
    ends = np.maximum(c["embedding_parameters"], c["head_parameters"]) / c["tp"]
    for stage in STAGES:
        for kind, shards in groups.items():
            held = ledger[f"stage/parameters/{kind}/{stage}"] * copies
            trained = held * c["trains_base"]
            updated = trained
            if np.any(c["optimizer_in_backward"] > 0):
                largest = np.maximum(ledger[f"layer/parameters/{kind}"], ends) * c["trains_base"]
                updated = ledger.add(
                    f"stage/gradients/{kind}/{stage}",
                    adapters.gradient_parameters,
                    parameters=trained,
                    largest=largest,
                )
            for what, formula, counted in (
                ("weights", memory.weight_memory, held),
                ("gradients", memory.gradient_memory, updated),
                ("optimizer", memory.optimizer_memory, trained),
            ):
                ledger.add(f"memory/{stage}/{what}/{kind}", formula, parameters=counted, shards=shards)
        for what in ("weights", "gradients", "optimizer"):
            ledger.total(f"memory/{stage}/{what}", *[f"memory/{stage}/{what}/{kind}" for kind in groups])
        ledger.total(f"memory/{stage}/states", *[f"memory/{stage}/{w}" for w in ("weights", "gradients", "optimizer")])
    gathered = np.where(c["gathers_model"] > 0, c["longest"], 1.0)
    ledger.add(
        "memory/gather",
        memory.gathered_memory,
        zero_stage=np.where(c["shards"] > 1, c["zero_stage"], 0.0),
        layer_parameters=(ledger["layer/parameters/dense"] + ledger["layer/parameters/experts"]) * gathered,
        embedding_parameters=(c["embedding_parameters"] + c["head_parameters"]) / c["tp"],
        gather_bytes=c["weight_comm_bytes"] + 2.0 * c["trains_base"],
    )
    ledger.add(
        "memory/adapters",
        memory.weight_memory,
        parameters=c["tuned_parameters"],
        weight_bytes=c["adapter_state_bytes"],
        shards=c["shards"],
    )


def add_layer_activations(ledger: Ledger) -> None:
    """Store the bytes that one layer keeps of a micro-batch, whole and recomputed, and what passes through it."""
    c = ledger.columns
    ledger.add(
        "layer/memory/tensors",
        memory.layer_activations,
        hidden=c["hidden"] * c["blocks"],
        qkv=c["mixer_in"],
        attention_columns=c["mixer_out"],
        residual_bytes=RESIDUAL_BYTES + c["norm_kept_bytes"] * c["gated"],
    )
    ledger.add("layer/memory/scores-per-layer", memory.score_activations)
    ledger.add(
        "layer/memory/scores",
        layer.repeated_message,
        message=ledger["layer/memory/scores-per-layer"],
        times=c["attention_layers"] / c["layers"],
    )
    ledger.add("layer/memory/routed", memory.routed_activations)
    parts = ["layer/memory/tensors", "layer/memory/routed"]
    if np.any(c["scaled_outputs"] > 0):
        ledger.add("layer/memory/scaled", adapters.scaled_output_activations)
        parts.append("layer/memory/scaled")
    ledger.total("layer/memory/whole", *parts)
    ledger.total("layer/memory/unrecomputed", "layer/memory/whole", "layer/memory/scores")
    ledger.add("layer/memory/checkpoint", memory.checkpoint_activations)
    ledger.add("layer/memory/logits", memory.logits_memory)
    ledger.add("layer/memory/boundary", memory.checkpoint_activations, stored_bytes=2.0 * c["boundary_copies"])
    for name, share in (("none", 0.0), ("full", 1.0)):
        ledger.add(
            f"layer/memory/kept/{name}",
            memory.kept_activations,
            full_layer=ledger["layer/memory/whole"],
            scores=ledger["layer/memory/scores"],
            checkpoint=ledger["layer/memory/checkpoint"],
            full_share=share,
            selective=0.0,
        )
        working = ledger.add(
            f"layer/memory/working/{name}",
            memory.working_memory,
            recomputed_layer=ledger["layer/memory/unrecomputed"],
            recomputing=share,
        )
        ledger.add(f"passing/last/{name}", memory.passing_memory, working=working, logits=ledger["layer/memory/logits"])


def add_passing(ledger: Ledger) -> None:
    """Store what passes through the first and middle stages; the only stage holds the head too."""
    only = 1.0 * (ledger.columns["pp"] == 1)
    for name in ("none", "full"):
        cases = {0: f"layer/memory/working/{name}", 1: f"passing/last/{name}"}
        for stage in ("first", "second"):
            ledger.choose(f"passing/{stage}/{name}", only, cases)


def add_in_flight(ledger: Ledger) -> None:
    """Store the micro-batches whose activations each stage holds, by schedule."""
    pp = ledger.columns["pp"]
    for stage, index in zip(STAGES, (0.0, np.minimum(1.0, pp - 1), pp - 1), strict=True):
        by_schedule(ledger, f"pp/in-flight/{stage}", "in_flight", stage_index=index)


def used_schedules(columns: Mapping[str, Any]) -> list[Schedule]:
    """The schedules that some row has."""
    return [by_code(int(code)) for code in np.unique(columns["schedule"])]


def by_schedule(ledger: Ledger, path: str, which: str, **given: Any) -> Any:
    """Store under `path`, row by row, the formula `which` of the row's schedule; those no row uses are left out."""
    cases: dict[int, str] = {}
    paths: dict[Any, str] = {}  # schedules that share a formula share its term
    for row in used_schedules(ledger.columns):
        formula = getattr(row, which)
        if formula not in paths:
            paths[formula] = f"{path}/{row.name}"
            own = info_of(formula).parameters
            ledger.add(paths[formula], formula, **{name: value for name, value in given.items() if name in own})
        cases[row.code] = paths[formula]
    return ledger.choose(path, ledger.columns["schedule"], cases)


def add_bounds(ledger: Ledger) -> None:
    """Store the activations of each stage with no and with every layer recomputed."""
    for name in ("none", "full"):
        for stage in STAGES:
            _activations(ledger, stage, name)


def _activations(ledger: Ledger, stage: str, name: str) -> None:
    ledger.add(
        f"activations/{stage}/{name}",
        memory.stage_activations,
        in_flight=ledger[f"pp/in-flight/{stage}"],
        stage_depth=ledger[f"stage/layers/{stage}"],
        kept_per_layer=ledger[f"layer/memory/kept/{name}"],
        boundary=ledger["layer/memory/boundary"],
    )


def add_memory(ledger: Ledger) -> None:
    """Store the memory of each stage with no, every and the chosen share of layers recomputed; the worst decides."""
    c = ledger.columns
    ledger.add("memory/capacity", memory.tensor_capacity)
    for name in ("none", "full"):
        for stage in STAGES:
            _freed(ledger, stage, name)
            ledger.total(f"memory/{stage}/{name}", *_stage_parts(ledger, stage, name))
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
    ledger.add(
        "layer/memory/kept/chosen",
        memory.kept_activations,
        full_layer=ledger["layer/memory/whole"],
        scores=ledger["layer/memory/scores"],
        checkpoint=ledger["layer/memory/checkpoint"],
        full_share=share,
        selective=1.0 * (c["recompute"] == 1),
    )
    recomputes = 1.0 * (share > 0)
    for stage in STAGES:
        _activations(ledger, stage, "chosen")
        ledger.choose(f"passing/{stage}/chosen", recomputes, {0: f"passing/{stage}/none", 1: f"passing/{stage}/full"})
        _freed(ledger, stage, "chosen")
        ledger.total(f"memory/{stage}/chosen", *_stage_parts(ledger, stage, "chosen"))
    ledger.maximum("memory/raw", *[f"memory/{stage}/chosen" for stage in STAGES])
    ledger.add("memory/fill", memory.memory_fill, raw=ledger["memory/raw"], capacity=ledger["memory/capacity"])
    ledger.add(
        "memory/reserve",
        memory.reserve_memory,
        raw=ledger["memory/raw"],
        fragmentation=c["counter_factor"],
        fixed=c["counter_fixed"],
    )
    ledger.total("memory/total", "memory/raw", "memory/reserve")


def add_memory_detail(ledger: Ledger) -> None:
    """Store the parts of the worst stage, which add up to `memory/raw`."""
    stages = np.broadcast_arrays(*[ledger[f"memory/{stage}/chosen"] for stage in STAGES])
    worst = np.argmax(np.stack(stages), axis=0)
    for part in ("weights", "gradients", "optimizer"):
        ledger.choose(f"memory/{part}", worst, {i: f"memory/{stage}/{part}" for i, stage in enumerate(STAGES)})
    for part in ("activations", "passing"):
        ledger.choose(f"memory/{part}", worst, {i: f"{part}/{stage}/chosen" for i, stage in enumerate(STAGES)})
    working = ledger.choose(
        "memory/working",
        1.0 * (ledger["symbol/full_share"] > 0),
        {0: "layer/memory/working/none", 1: "layer/memory/working/full"},
    )
    ledger.add("memory/logits", memory.logits_excess, passing=ledger["memory/passing"], working=working)
    parts = [f"memory/{part}" for part in PARTS]
    if "shared/first/chosen" in ledger:
        ledger.choose("memory/shared", worst, {i: f"shared/{stage}/chosen" for i, stage in enumerate(STAGES)})
        parts.append("memory/shared")
    ledger.total("memory/parts", *parts)


def _freed(ledger: Ledger, stage: str, name: str) -> None:
    """Store what gradients and activations share: without accumulation one comes as the other goes."""
    c = ledger.columns
    freed = c["gradients_freed"] * (c["micro_batches"] == 1) * (c["pp"] == 1)
    if np.any(freed > 0):
        kinds = {kind: ledger[f"layer/memory/working/{kind}"] for kind in ("none", "full")}
        chosen = np.where(ledger["symbol/full_share"] > 0, kinds["full"], kinds["none"]) if name == "chosen" else None
        working = kinds.get(name, chosen)
        ledger.add(
            f"shared/{stage}/{name}",
            memory.shared_by_gradients,
            gradients=ledger[f"memory/{stage}/gradients"],
            activations=ledger[f"activations/{stage}/{name}"],
            passing=ledger[f"passing/{stage}/{name}"],
            working=working,
            freed=freed,
        )


def _stage_parts(ledger: Ledger, stage: str, name: str) -> tuple[str, ...]:
    parts = (
        f"memory/{stage}/states",
        "memory/adapters",
        "memory/gather",
        f"activations/{stage}/{name}",
        f"passing/{stage}/{name}",
    )
    shared = f"shared/{stage}/{name}"
    return (*parts, shared) if shared in ledger else parts
