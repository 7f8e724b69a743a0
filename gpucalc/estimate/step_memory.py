"""Memory of one GPU in a training step, and the recomputation that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger, any_row, distinct
from gpucalc.core.units import Unit
from gpucalc.formulas import adapters, data_parallel, memory, parameters, pipeline, shapes
from gpucalc.layouts.schedules import Schedule, by_code

STAGES = ("first", "second", "last")
PARTS = ("weights", "gradients", "optimizer", "adapters", "activations", "working", "logits", "gather")
KINDS = ("dense", "experts")
# What is held of the parameters of a rank: the formula, and which of them it counts.
STATES: dict[str, tuple[Callable[..., Any], str]] = {
    "weights": (memory.weight_memory, "held"),
    "gradients": (memory.gradient_memory, "updated"),
    "optimizer": (memory.optimizer_memory, "trained"),
}
FROM_FIRST = Constant("FIRST_STAGE", 0.0, "stages before the first", "definition")
NOTHING = Constant("NOTHING", 0.0, "what a stage of layers alone holds beside them", "definition")
NO_LAYER = Constant("NO_LAYER", 0.0, "layers recomputed as a bound on memory: none", "definition")
EVERY_LAYER = Constant("EVERY_LAYER", 1.0, "layers recomputed as a bound on memory: all", "definition")
STORED = Constant("STORED_BYTES", 2.0, "an activation in 16 bit", "definition", unit=Unit("B", byte=1))


def define_replicas(ledger: Ledger) -> None:
    """Define the groups that hold the same parameters, and those that share their states."""
    ledger.define("replicas", data_parallel.replica_ranks)
    ledger.define("expert_replicas", data_parallel.expert_replica_ranks)
    ledger.define("shards", data_parallel.sharding_ranks, replicas="replicas")
    ledger.define("expert_shards", data_parallel.sharding_ranks, replicas="expert_replicas")


def add_parameters(ledger: Ledger) -> None:
    """Store the parameters of a layer and of each stage on one rank, by kind."""
    ledger.add("layer/parameters/sharded-part", parameters.layer_parameters_dense)
    ledger.add("layer/parameters/replicated-part", parameters.layer_parameters_replicated)
    ledger.total("layer/parameters/dense", "layer/parameters/sharded-part", "layer/parameters/replicated-part")
    ledger.add("layer/parameters/experts", parameters.layer_parameters_experts)
    ledger.define("longest", parameters.stage_layers)
    ledger.define("adapter_parameters", adapters.lora_parameters)
    ledger.define("tuned_parameters", adapters.tuned_parameters)
    add_stage_layers(ledger, "stage/parameters/depth")
    ledger.add("stage/extra/first", parameters.first_stage_extra)
    ledger.add("stage/extra/last", parameters.last_stage_extra)
    extra: dict[str, str | Constant] = {stage: f"stage/extra/{stage}" for stage in ("first", "last")}
    for kind in KINDS:
        for stage in STAGES:
            ledger.add(
                f"stage/parameters/{kind}/{stage}",
                parameters.stage_parameters,
                per_layer=f"layer/parameters/{kind}",
                stage_depth=f"stage/parameters/depth/{stage}",
                extra=extra.get(stage, NOTHING) if kind == "dense" else NOTHING,
            )
        ledger.maximum(f"stage/parameters/{kind}", *[f"stage/parameters/{kind}/{stage}" for stage in STAGES])


def add_stage_layers(ledger: Ledger, path: str) -> None:
    """Store the layers of the first, a middle and the last stage below `path`."""
    longest = f"{path}/second"
    ledger.add(longest, parameters.stage_layers)
    ledger.add(f"{path}/first", parameters.first_stage_layers, longest=longest)
    ledger.add(f"{path}/last", parameters.last_stage_layers, longest=longest)


def add_states(ledger: Ledger) -> None:
    """Store weights, gradients and optimizer states of each stage, and what ZeRO 3 gathers for use."""
    c = ledger.columns
    at_once = any_row(c["optimizer_in_backward"] > 0)
    if at_once:
        ledger.add("stage/parameters/ends", parameters.largest_end)
    for kind, shards in (("dense", "shards"), ("experts", "expert_shards")):
        # Each copy has as many more ranks to share it.
        ledger.product(f"stage/shards/{kind}", shards, "parameter_copies")
        for stage in STAGES:
            counted = {name: f"stage/{name}/{kind}/{stage}" for name in ("held", "trained")}
            ledger.product(counted["held"], f"stage/parameters/{kind}/{stage}", "parameter_copies")
            ledger.product(counted["trained"], counted["held"], "trains_base")
            counted["updated"] = counted["trained"]
            if at_once:
                counted["updated"] = f"stage/gradients/{kind}/{stage}"
                ledger.add(
                    counted["updated"],
                    adapters.gradient_parameters,
                    parameters=counted["trained"],
                    layer_parameters=f"layer/parameters/{kind}",
                    end_parameters="stage/parameters/ends",
                )
            for what, (formula, which) in STATES.items():
                path = f"memory/{stage}/{what}/{kind}"
                ledger.add(path, formula, parameters=counted[which], shards=f"stage/shards/{kind}")
    for stage in STAGES:
        for what in STATES:
            ledger.total(f"memory/{stage}/{what}", *[f"memory/{stage}/{what}/{kind}" for kind in KINDS])
        ledger.total(f"memory/{stage}/states", *[f"memory/{stage}/{what}" for what in STATES])
    _gathered(ledger)
    ledger.add(
        "memory/adapters", memory.weight_memory, parameters="tuned_parameters", weight_bytes="adapter_state_bytes"
    )
    for stage in STAGES:  # what no schedule and no recomputation changes
        ledger.total(f"memory/{stage}/fixed", f"memory/{stage}/states", "memory/adapters", "memory/gather")


def _gathered(ledger: Ledger) -> None:
    ledger.total("layer/parameters/whole", "layer/parameters/dense", "layer/parameters/experts")
    ledger.add("fsdp/gather/layers", memory.gathered_layers)
    ledger.product("fsdp/gather/parameters", "layer/parameters/whole", "fsdp/gather/layers")
    ledger.add("fsdp/gather/ends", parameters.end_parameters)
    ledger.add("fsdp/gather/bytes", memory.gathered_bytes)
    ledger.add(
        "memory/gather",
        memory.gathered_memory,
        layer_parameters="fsdp/gather/parameters",
        embedding_parameters="fsdp/gather/ends",
        gather_bytes="fsdp/gather/bytes",
    )


def add_layer_activations(ledger: Ledger) -> None:
    """Store the bytes that one layer keeps of a micro-batch, whole and recomputed, and what passes through it."""
    ledger.add("layer/memory/residual-bytes", memory.kept_residual_bytes)
    ledger.add(
        "layer/memory/tensors",
        memory.layer_activations,
        hidden="shape/residual",
        qkv="mixer_in",
        attention_columns="mixer_out",
        residual_bytes="layer/memory/residual-bytes",
    )
    ledger.add("layer/memory/scores-per-layer", memory.score_activations)
    ledger.add("layer/attention-share", shapes.layer_share, kind_layers="attention_layers")
    ledger.product("layer/memory/scores", "layer/memory/scores-per-layer", "layer/attention-share")
    ledger.add("layer/memory/routed", memory.routed_activations)
    parts = ["layer/memory/tensors", "layer/memory/routed"]
    if any_row(ledger.columns["scaled_outputs"] > 0):
        ledger.add("layer/memory/scaled", adapters.scaled_output_activations)
        parts.append("layer/memory/scaled")
    ledger.total("layer/memory/whole", *parts)
    ledger.total("layer/memory/unrecomputed", "layer/memory/whole", "layer/memory/scores")
    ledger.add("layer/memory/checkpoint", memory.checkpoint_activations)
    ledger.add("layer/memory/logits", memory.logits_memory)
    ledger.product("layer/memory/boundary-bytes", "boundary_copies", STORED)
    ledger.add("layer/memory/boundary", memory.checkpoint_activations, stored_bytes="layer/memory/boundary-bytes")
    for name, share in (("none", NO_LAYER), ("full", EVERY_LAYER)):
        _kept(ledger, name, share, NO_LAYER)
        ledger.add(
            f"layer/memory/working/{name}",
            memory.working_memory,
            recomputed_layer="layer/memory/unrecomputed",
            recomputing=share,
        )
        ledger.maximum(f"transient/last/{name}", f"layer/memory/working/{name}", "layer/memory/logits")


def _kept(ledger: Ledger, name: str, share: str | Constant, selective: str | Constant) -> None:
    ledger.add(
        f"layer/memory/kept/{name}",
        memory.kept_activations,
        full_layer="layer/memory/whole",
        scores="layer/memory/scores",
        checkpoint="layer/memory/checkpoint",
        full_share=share,
        selective=selective,
    )


def add_passing(ledger: Ledger) -> None:
    """Store what passes through the first and middle stages; the only stage holds the head too."""
    for name in ("none", "full"):
        for stage in ("first", "second"):
            only = {1: f"transient/last/{name}"}
            ledger.choose(f"transient/{stage}/{name}", "pp", only, otherwise=f"layer/memory/working/{name}")


def add_in_flight(ledger: Ledger) -> None:
    """Store the micro-batches whose activations each stage holds, by schedule."""
    ledger.add("stage/index/second", pipeline.second_stage_index)
    ledger.add("stage/index/last", pipeline.last_stage_index)
    for stage in STAGES:
        index = FROM_FIRST if stage == "first" else f"stage/index/{stage}"
        by_schedule(ledger, f"pp/in-flight/{stage}", "in_flight", stage_index=index)


def used_schedules(columns: Mapping[str, Any]) -> list[Schedule]:
    """The schedules that some row has."""
    return [by_code(code) for code in distinct(columns["schedule"])]


def by_schedule(ledger: Ledger, path: str, which: str, **given: Any) -> Any:
    """Store under `path`, row by row, the formula `which` of the row's schedule; those no row uses are left out."""
    cases: dict[int, str] = {}
    paths: dict[Any, str] = {}  # schedules that share a formula share its term
    for row in used_schedules(ledger.columns):
        formula = getattr(row, which)
        if formula not in paths:
            paths[formula] = f"{path}/{row.name}"
            ledger.apply(paths[formula], formula, given)
        cases[row.code] = paths[formula]
    return ledger.choose(path, "schedule", cases)


def add_bounds(ledger: Ledger) -> None:
    """Store the activations of each stage with no and with every layer recomputed."""
    for name in ("none", "full"):
        for stage in STAGES:
            _activations(ledger, stage, name)
            ledger.total(f"memory/{stage}/live/{name}", f"activations/{stage}/{name}", f"transient/{stage}/{name}")


def _activations(ledger: Ledger, stage: str, name: str) -> None:
    ledger.add(
        f"activations/{stage}/{name}",
        memory.stage_activations,
        in_flight=f"pp/in-flight/{stage}",
        stage_depth=f"stage/layers/{stage}",
        kept_per_layer=f"layer/memory/kept/{name}",
        boundary="layer/memory/boundary",
    )


def add_memory(ledger: Ledger) -> None:
    """Store the memory of each stage with no, every and the chosen share of layers recomputed; the worst decides."""
    ledger.add("memory/capacity", memory.tensor_capacity)
    shares = any_row(ledger.columns["gradients_freed"] > 0)
    if shares:
        ledger.add("memory/freed", memory.gradients_freed_at_once)
    for name in ("none", "full"):
        _stages(ledger, name, shares)
        ledger.maximum(f"recompute/{name}", *[f"memory/{stage}/{name}" for stage in STAGES])
    ledger.add(
        "recompute/needed",
        memory.needed_recompute_share,
        unrecomputed="recompute/none",
        recomputed="recompute/full",
        capacity="memory/capacity",
    )
    depth = "stage/layers/second"
    ledger.add("recompute/whole-layers", memory.whole_layer_share, share="recompute/needed", stage_depth=depth)
    ledger.define("full_share", memory.recompute_share, stage_depth=depth, automatic="recompute/whole-layers")
    ledger.add("recompute/selective", memory.recomputes_selectively)
    ledger.add("recompute/some-layer", memory.recomputes_layers)
    _kept(ledger, "chosen", "full_share", "recompute/selective")
    ledger.choose("layer/memory/working/chosen", "recompute/some-layer", _cases("layer/memory/working"))
    for stage in STAGES:
        _activations(ledger, stage, "chosen")
        ledger.choose(f"transient/{stage}/chosen", "recompute/some-layer", _cases(f"transient/{stage}"))
    _stages(ledger, "chosen", shares)
    ledger.maximum("memory/raw", *[f"memory/{stage}/chosen" for stage in STAGES])
    ledger.add("memory/fill", memory.memory_fill, raw="memory/raw", capacity="memory/capacity")
    ledger.add(
        "memory/reserve",
        memory.reserve_memory,
        raw="memory/raw",
        fragmentation="counter_factor",
        fixed="counter_fixed",
    )
    ledger.total("memory/total", "memory/raw", "memory/reserve")


def _cases(path: str) -> dict[int, str]:
    """The term of a row that recomputes no layer, and of one that recomputes some."""
    return {0: f"{path}/none", 1: f"{path}/full"}


def _stages(ledger: Ledger, name: str, shares: bool) -> None:
    """Store the memory of each stage; with `shares` gradients and activations of some row share memory."""
    for stage in STAGES:
        live = f"memory/{stage}/live/{name}"
        chosen = (f"activations/{stage}/{name}", f"transient/{stage}/{name}")
        parts = [f"memory/{stage}/fixed", *([live] if live in ledger else chosen)]
        if shares:
            parts.append(f"shared/{stage}/{name}")
            ledger.add(
                parts[-1],
                memory.shared_by_gradients,
                gradients=f"memory/{stage}/gradients",
                activations=f"activations/{stage}/{name}",
                transient=f"transient/{stage}/{name}",
                working=f"layer/memory/working/{name}",
                freed="memory/freed",
            )
        ledger.total(f"memory/{stage}/{name}", *parts)


def add_memory_detail(ledger: Ledger) -> None:
    """Store the parts of the worst stage, which add up to `memory/raw`."""
    stages = np.broadcast_arrays(*[ledger[f"memory/{stage}/chosen"] for stage in STAGES])
    ledger.keep("memory/worst-stage", np.argmax(np.stack(stages), axis=0))

    def of_worst(path: str, part: str) -> None:
        ledger.choose(path, "memory/worst-stage", {i: part.format(stage) for i, stage in enumerate(STAGES)})

    for part in STATES:
        of_worst(f"memory/{part}", f"memory/{{}}/{part}")
    for part in ("activations", "transient"):
        of_worst(f"memory/{part}", f"{part}/{{}}/chosen")
    ledger.total("memory/working", "layer/memory/working/chosen")
    ledger.add("memory/logits", memory.logits_excess, transient="memory/transient", working="memory/working")
    parts = [f"memory/{part}" for part in PARTS]
    if "shared/first/chosen" in ledger:
        of_worst("memory/shared", "shared/{}/chosen")
        parts.append("memory/shared")
    ledger.total("memory/parts", *parts)
