"""Memory of one GPU in a training step, and the recomputation that makes it fit.

The peak is the largest, over the stages of the pipeline, of three moments: the backward pass (states, activations
of all micro-batches in flight, one layer's working set and gathered weights), the loss (states, activations,
logits, the gathered head) and the optimizer step (states and the update's transients, no activations).
With equal middle stages the first, the second or the last stage is the fullest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger, any_row, distinct
from gpucalc.estimate.layer_memory import RECOMPUTED, add_kept
from gpucalc.formulas import (
    activations,
    adapters,
    data_parallel,
    gathering,
    logits,
    memory,
    optimizer_step,
    parameters,
    pipeline,
)
from gpucalc.layouts.schedules import Schedule, by_code

STAGES = ("first", "second", "last")
ENDS = ("first", "last")  # kinds of stages by what comes and goes in them: a middle one is like the first
PARTS = ("weights", "gradients", "optimizer", "adapters", "activations", "working", "logits", "gather", "update")
KINDS = ("dense", "experts")
# What is held of the parameters of a rank: the formula, which of them it counts, and who shares it.
STATES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "weights": (memory.weight_memory, "held", "weight-shards"),
    "gradients": (memory.gradient_memory, "updated", "shards"),
    "optimizer": (memory.optimizer_memory, "trained", "shards"),
}
COUNTERS = {0: "memory/allocated", 1: "memory/reserved", 2: "memory/device"}
FROM_FIRST = Constant("FIRST_STAGE", 0.0, "stages before the first", "definition")
NOTHING = Constant("NOTHING", 0.0, "what a stage of layers alone holds beside them", "definition")
ON_THE_GPU = Constant("ON_THE_GPU", 0.0, "adapters are not moved to the host with the base", "definition")
ALONE = Constant("ONE_RANK", 1.0, "ranks that share what each holds whole", "definition")
BACKWARD = Constant("BACKWARD_PASS", 0.0, "the moment of the backward pass", "definition")
LOSS = Constant("LOSS", 1.0, "the moment of the loss", "definition")
UPDATE = Constant("UPDATE", 2.0, "the moment of the update", "definition")


def define_replicas(ledger: Ledger) -> None:
    """Define the groups that hold the same parameters, and those that share their states."""
    ledger.define("gradient_stage", data_parallel.gradient_stage)
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
    """Store weights, gradients and optimizer states of each stage, what is gathered, and what the update needs."""
    c = ledger.columns
    at_once = any_row(c["optimizer_in_backward"] > 0)
    if at_once:
        ledger.add("stage/parameters/ends", parameters.largest_end)
    for kind, shards in (("dense", "shards"), ("experts", "expert_shards")):
        # Each copy has as many more ranks to share it.
        ledger.product(f"stage/shards/{kind}", shards, "parameter_copies")
        ledger.add(f"stage/weight-shards/{kind}", memory.weight_shards, shards=f"stage/shards/{kind}")
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
            for what, (formula, which, group) in STATES.items():
                path = f"memory/{stage}/{what}/{kind}"
                ledger.add(path, formula, parameters=counted[which], shards=f"stage/{group}/{kind}")
    kinds = {what: list(KINDS) for what in STATES}
    if any_row(c["quantised_copy_bytes"] != 0):
        kinds["weights"].append("quantised")
        _quantised_copies(ledger)
    for stage in STAGES:
        for what in STATES:
            ledger.total(f"memory/{stage}/{what}", *[f"memory/{stage}/{what}/{kind}" for kind in kinds[what]])
        ledger.total(f"memory/{stage}/states", *[f"memory/{stage}/{what}" for what in STATES])
    ledger.add(
        "memory/adapters",
        memory.weight_memory,
        parameters="tuned_parameters",
        weight_bytes="adapter_state_bytes",
        offload_parameters=ON_THE_GPU,
    )
    for stage in STAGES:  # what no schedule and no recomputation changes
        ledger.total(f"memory/{stage}/fixed", f"memory/{stage}/states", "memory/adapters")
    _gathered(ledger)
    _update(ledger)


def _quantised_copies(ledger: Ledger) -> None:
    """Store the 8-bit copies of the weights of linear layers that stand beside their 16-bit form, or replace it."""
    ledger.total("layer/parameters/linear", "layer/parameters/sharded-part", "layer/parameters/experts")
    ledger.add("layer/parameters/quantised", gathering.unsharded_parameters, parameters="layer/parameters/linear")
    for stage in STAGES:
        held = f"stage/quantised/{stage}"
        ledger.product(held, "layer/parameters/quantised", f"stage/parameters/depth/{stage}", "parameter_copies")
        ledger.add(
            f"memory/{stage}/weights/quantised",
            memory.weight_memory,
            parameters=held,
            weight_bytes="quantised_copy_bytes",
            shards=ALONE,
        )


def _gathered(ledger: Ledger) -> None:
    """Store the parameters of a layer that are gathered for use, those of the head, and halves of gradients."""
    ledger.total("layer/parameters/whole", "layer/parameters/dense", "layer/parameters/experts")
    ledger.add("gather/used", gathering.gathers_parameters)
    ledger.add("gather/layers", memory.gathered_layers)
    ledger.product("gather/parameters", "layer/parameters/whole", "gather/layers")
    ledger.add("gather/ahead", gathering.layers_ahead)
    ledger.add(
        "gather/layer",
        gathering.gathered_layer,
        layer_parameters="gather/parameters",
        gathers="gather/used",
        trained="trains_base",
        prefetched="gather/ahead",
    )
    ledger.add("gather/end-bytes", gathering.end_bytes)
    ledger.add("gather/ends", gathering.gathered_ends, gathers="gather/used", unit_bytes="gather/end-bytes")
    ledger.total("stage/parameters/whole", "stage/parameters/dense", "stage/parameters/experts")
    ledger.product("stage/parameters/trained", "stage/parameters/whole", "trains_base")
    ledger.add("gather/unsharded", gathering.unsharded_parameters, parameters="stage/parameters/trained")
    ledger.add(
        "gather/half-gradients",
        optimizer_step.step_transient,
        parameters="gather/unsharded",
        transient_bytes="half_gradient_bytes",
    )
    ledger.total("gather/backward", "gather/layer", "gather/half-gradients")


def _update(ledger: Ledger) -> None:
    """Store what the update of each stage needs beside the states."""
    for stage in STAGES:
        for kind in KINDS:
            ledger.add(
                f"stage/stepped/{kind}/{stage}",
                gathering.stepped_parameters,
                held=f"stage/held/{kind}/{stage}",
                shards=f"stage/shards/{kind}",
            )
        ledger.total(f"stage/stepped/{stage}", *[f"stage/stepped/{kind}/{stage}" for kind in KINDS])
        ledger.add(
            f"update/{stage}",
            optimizer_step.step_transient,
            parameters=f"stage/stepped/{stage}",
            transient_bytes="step_transient_bytes",
        )
        ledger.total(f"memory/{stage}/step", f"memory/{stage}/fixed", f"update/{stage}")


def add_losses(ledger: Ledger) -> None:
    """Store the loss on each kind of stage; the only stage holds the head too."""
    ledger.add("loss/only", logits.only_stage)
    ledger.add("loss/first", logits.loss_memory, loss="logits/memory", holds_head="loss/only")
    ledger.total("loss/last", "logits/memory")


def add_transient(ledger: Ledger) -> None:
    """Store what comes and goes in the fullest moment of each kind of stage's passes."""
    for stage in ENDS:
        ledger.total(f"transient/{stage}/loss", f"loss/{stage}", "gather/ends")
    for name, _ in RECOMPUTED:
        ledger.total(f"working/{name}", f"layer/memory/working/{name}", "gather/backward")
        for stage in ENDS:
            ledger.maximum(f"transient/{stage}/{name}", f"working/{name}", f"transient/{stage}/loss")


def _like(stage: str) -> str:
    """The kind of stage whose passing memory a stage has."""
    return "last" if stage == "last" else "first"


def add_in_flight(ledger: Ledger) -> None:
    """Store the micro-batches whose activations each stage holds, by schedule."""
    ledger.define("weight_gradient_share", activations.weight_gradient_share)
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
    for name, _ in RECOMPUTED:
        for stage in STAGES:
            _activations(ledger, stage, name)


def _activations(ledger: Ledger, stage: str, name: str) -> None:
    ledger.add(
        f"activations/{stage}/{name}",
        memory.stage_activations,
        in_flight=f"pp/in-flight/{stage}",
        stage_depth=f"stage/layers/{stage}",
        kept_per_layer=f"layer/memory/kept/{name}",
        boundary="layer/memory/boundary",
    )


def add_outside(ledger: Ledger) -> None:
    """Store what lies outside the allocator, the tensors that fit beside it, and what the host holds."""
    ledger.add("memory/outside/groups", gathering.communicator_groups)
    ledger.add("memory/outside", gathering.communicator_memory, groups="memory/outside/groups")
    ledger.add("memory/capacity", memory.tensor_capacity, outside="memory/outside")
    ledger.add("memory/free", memory.free_for_training, capacity="memory/capacity")
    ledger.add("host/memory", optimizer_step.host_state_memory, updated_parameters="optimizer/parameters")
    ledger.add("host/fill", memory.memory_fill, raw="host/memory", capacity="host_memory_bytes")


def add_memory(ledger: Ledger) -> None:
    """Store the memory of each stage with no, every and the chosen share of layers recomputed; the worst decides."""
    shares = any_row(ledger.columns["gradients_freed"] > 0)
    if shares:
        ledger.add("memory/freed", memory.gradients_freed_at_once)
    for name, _ in RECOMPUTED:
        _stages(ledger, name, name, shares)
        ledger.maximum(f"recompute/{name}", *[f"memory/{stage}/{name}" for stage in STAGES])
    ledger.add(
        "recompute/needed",
        memory.needed_recompute_share,
        unrecomputed="recompute/none",
        recomputed="recompute/full",
        capacity="memory/free",
    )
    depth = "stage/layers/second"
    ledger.add("recompute/whole-layers", memory.whole_layer_share, share="recompute/needed", stage_depth=depth)
    ledger.define("full_share", memory.recompute_share, stage_depth=depth, automatic="recompute/whole-layers")
    ledger.add("recompute/selective", memory.recomputes_selectively)
    ledger.add("recompute/some-layer", memory.recomputes_layers)
    add_kept(ledger, "chosen", "full_share", "recompute/selective")
    for stage in ENDS:
        ledger.choose(f"transient/{stage}/chosen", "recompute/some-layer", _cases(f"transient/{stage}"))
    if shares:
        ledger.choose("layer/memory/working/chosen", "recompute/some-layer", _cases("layer/memory/working"))
    for stage in STAGES:
        _activations(ledger, stage, "chosen")
    _stages(ledger, "passes", "chosen", shares)
    for stage in STAGES:
        ledger.maximum(f"memory/{stage}/chosen", f"memory/{stage}/passes", f"memory/{stage}/step")
    ledger.maximum("memory/raw", *[f"memory/{stage}/chosen" for stage in STAGES])
    ledger.add("memory/device-fill", memory.memory_fill, raw="memory/raw", capacity="memory/capacity")
    ledger.maximum("memory/fill", "memory/device-fill", "host/fill")
    ledger.add("memory/allocated", memory.allocated_memory, raw="memory/raw")
    ledger.add("memory/reserved", memory.reserved_memory, allocated="memory/allocated")
    ledger.total("memory/device", "memory/reserved", "memory/outside")
    ledger.choose("memory/counter", "counter", COUNTERS)
    ledger.add("memory/reserve", memory.memory_beyond_tensors, counted="memory/counter", raw="memory/raw")
    ledger.total("memory/total", "memory/raw", "memory/reserve")


def _cases(path: str) -> dict[int, str]:
    """The term of a row that recomputes no layer, and of one that recomputes some."""
    return {0: f"{path}/none", 1: f"{path}/full"}


def _stages(ledger: Ledger, path: str, name: str, shares: bool) -> None:
    """Store the memory of each stage in its passes; with `shares` gradients and activations of some row share it."""
    for stage in STAGES:
        transient = f"transient/{_like(stage)}/{name}"
        parts = [f"memory/{stage}/fixed", f"activations/{stage}/{name}", transient]
        if shares:
            parts.append(f"shared/{stage}/{name}")
            ledger.add(
                parts[-1],
                memory.shared_by_gradients,
                gradients=f"memory/{stage}/gradients",
                activations=f"activations/{stage}/{name}",
                transient=transient,
                working=f"layer/memory/working/{name}",
                freed="memory/freed",
            )
        ledger.total(f"memory/{stage}/{path}", *parts)


def add_memory_detail(ledger: Ledger) -> None:
    """Store the fullest stage, its fullest moment, and what it then holds: parts that add up to `memory/raw`."""
    stages = np.broadcast_arrays(*[ledger[f"memory/{stage}/chosen"] for stage in STAGES])
    ledger.keep("memory/worst-stage", np.argmax(np.stack(stages), axis=0))

    def of_worst(path: str, part: str) -> None:
        cases = {i: part.format(stage, like=_like(stage)) for i, stage in enumerate(STAGES)}
        ledger.choose(path, "memory/worst-stage", cases)

    def held(path: str, value: str, first: Constant, last: Constant) -> None:
        ledger.add(path, memory.held_in, held=value, moment="memory/moment", first=first, last=last)

    for part in (*STATES, "passes", "step"):
        of_worst(f"memory/{part}", f"memory/{{}}/{part}")
    ledger.choose("moment/working", "recompute/some-layer", _cases("working"))
    of_worst("moment/loss", "transient/{like}/loss")
    of_worst("moment/logits", "loss/{like}")
    of_worst("moment/activations", "activations/{}/chosen")
    of_worst("moment/update", "update/{}")
    ledger.add(
        "memory/moment",
        memory.fullest_moment,
        working="moment/working",
        loss="moment/loss",
        passes="memory/passes",
        step="memory/step",
    )
    ledger.choose("moment/layer", "recompute/some-layer", _cases("layer/memory/working"))
    ledger.total("moment/layer-and-halves", "moment/layer", "gather/half-gradients")
    held("memory/activations", "moment/activations", BACKWARD, LOSS)
    held("memory/working", "moment/layer-and-halves", BACKWARD, BACKWARD)
    held("memory/logits", "moment/logits", LOSS, LOSS)
    held("moment/gather/layer", "gather/layer", BACKWARD, BACKWARD)
    held("moment/gather/ends", "gather/ends", LOSS, LOSS)
    ledger.total("memory/gather", "moment/gather/layer", "moment/gather/ends")
    held("memory/update", "moment/update", UPDATE, UPDATE)
    parts = [f"memory/{part}" for part in PARTS]
    if "shared/first/chosen" in ledger:
        of_worst("moment/shared", "shared/{}/chosen")
        held("memory/shared", "moment/shared", BACKWARD, LOSS)
        parts.append("memory/shared")
    ledger.total("memory/parts", *parts)
