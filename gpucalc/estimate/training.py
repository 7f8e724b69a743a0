"""The training step: the one place that puts the formulas in order.

Columns in, ledger out; one row or a million take the same path. Terms are computed in the narrowest scope that
knows their columns: a layer's times once per way to cut it, a stage's states once per way to share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Columns, Ledger, any_row
from gpucalc.core.units import Unit
from gpucalc.estimate import communication, layer_memory, layer_time, step_detail, step_memory
from gpucalc.formulas import data_parallel, flops, layer, optimizer_step, pipeline, vision
from gpucalc.layouts.axes import ACTIVATIONS, LAYER, STATES, outside
from gpucalc.layouts.schedules import profile_constants

# A copy engine moves activations to the host; it takes no multiprocessor from the layer.
ALL_HIDDEN = Constant("ALL_HIDDEN", 1.0, "share of a layer's time that a copy engine can use", "definition")
SHARE_OF_INPUTS = ("heads", "seq_len", "hidden", "flash")  # what a layer keeps for its weight gradients
MAC = Constant("MAC", 2.0, "operations of a multiply-accumulate", "definition", unit=Unit("FLOP", flop=1))
NO_RESIDUAL = Constant("NO_RESIDUAL", 0.0, "what a copy engine takes from the compute beside it", "definition")


def estimate_training(columns: Columns, *, detail: bool = False, trace: bool = False) -> Ledger:
    """Time, memory, FLOPs and traffic of one optimizer step for each row of `columns`.

    `detail` adds the parts of `time/compute` and of `memory/raw`; they change nothing else. The columns are
    those of `gpucalc.jobs.training.resolve`. Rows that do not fit get a time and a memory too.
    """
    ledger = Ledger(columns, trace=trace)
    around = ledger.without(*outside(LAYER, ACTIVATIONS))  # everything but what shards states and recomputes
    per_layer = around.without("global_batch", *outside(LAYER))
    _layer(per_layer)
    _recomputed_layer(per_layer)
    layer_memory.add_layer_memory(per_layer)
    communication.add_pipeline_transfer(per_layer)
    states = ledger.without("global_batch", *outside(STATES))
    step_memory.define_replicas(states)
    step_memory.add_parameters(states)
    step_memory.add_states(states)
    communication.add_data_parallel(states)
    _chosen_traffic(states)
    _optimizer(states)
    step_memory.add_outside(states)
    schedules = around.on(
        "pp", "dp", "vpp", "schedule", "micro_batch", "global_batch", *SHARE_OF_INPUTS, *profile_constants()
    )
    schedules.define("micro_batches", pipeline.micro_batches)
    step_memory.add_in_flight(schedules)
    _idle_passes(schedules)
    step_memory.add_stage_layers(around.on("pp", "layers", "layers_first", "layers_last"), "stage/layers")
    step_memory.add_losses(around)
    step_memory.add_bounds(around)
    _stage_parts(around)
    ledger.share("symbol/micro_batches", "symbol/gradient_stage")
    step_memory.add_transient(ledger)
    step_memory.add_memory(ledger)
    _stage_time(ledger)
    _pipeline(ledger)
    _data_parallel(ledger)
    _step(ledger)
    _metrics(ledger)
    if detail or trace:
        step_memory.add_memory_detail(ledger)
        step_detail.add_detail(ledger)
    return ledger


def _layer(ledger: Ledger) -> None:
    layer_time.add_layer_time(ledger)
    ledger.add("layer/host/gap", layer.serial_gap)
    communication.add_layer_communication(ledger)


def least_step_time(columns: Columns) -> Any:
    """A time that no pipeline, replication, sharding or recomputation of the same cut of the layers can beat.

    The columns need tp, cp, ep, etp, micro_batch, sequence_parallel and cp_kind of the cut.
    """
    ledger = Ledger(columns)
    _layer(ledger)
    ledger.total("layer/least", "layer/forward/time", "layer/backward/time", "layer/host/gap")
    ledger.add("step/straggler", data_parallel.straggler_factor)
    return ledger.add(
        "time/least",
        pipeline.work_bound,
        layer_time="layer/least",
        head_time="head/time",
        straggler="step/straggler",
    )


def _optimizer(ledger: Ledger) -> None:
    updated = "optimizer/parameters"
    ledger.add(
        updated, data_parallel.updated_parameters, dense="stage/parameters/dense", experts="stage/parameters/experts"
    )
    ledger.add("optimizer/update", data_parallel.optimizer_time, updated_parameters=updated)
    ledger.add("optimizer/transfer", data_parallel.offload_time, updated_parameters=updated)
    ledger.add(
        "optimizer/host", optimizer_step.host_update_time, updated_parameters=updated, update_bytes="optimizer_traffic"
    )
    ledger.total("optimizer/offload", "optimizer/transfer", "optimizer/host")
    ledger.add("optimizer/broadcast", data_parallel.partition_broadcast_time)
    parts = ["optimizer/update", "optimizer/offload", "optimizer/broadcast"]
    if any_row(ledger.columns["orthogonalises"] > 0):
        parts.append("optimizer/orthogonalise")
        ledger.add(parts[-1], data_parallel.orthogonalise_time, updated_parameters=updated, peak="half_peak")
    ledger.total("optimizer/time", *parts)


def _recomputed_layer(ledger: Ledger) -> None:
    """Store what recomputing a layer takes: the whole of it, and its cheap parts."""
    times = {"forward": "layer/forward/time", "attention": "layer/forward/attention"}
    ledger.add("layer/recompute/whole", layer.recomputed_time, **times)
    ledger.add("layer/recompute/parts", layer.selectively_recomputed_time, **times)


def _chosen_traffic(ledger: Ledger) -> None:
    """Store, of the traffic of each ZeRO stage, what the stage of the row has: per step, and per layer."""
    ledger.add(
        "dp/reduction",
        data_parallel.gradient_reduction_time,
        all_reduce="dp/all-reduce",
        reduce_scatter="dp/reduce-scatter",
    )
    ledger.add("dp/reduction/copies", data_parallel.copies_reduction_time, copies="dp/copies")
    ledger.total("dp/reduction/last", "dp/reduction", "dp/reduction/copies")
    ledger.add("dp/reduction/each", data_parallel.repeated_reduction_time, reduction="dp/reduction")
    ledger.add("dp/gathering", data_parallel.parameter_gather_time, all_gather="dp/all-gather")
    for collective in ("all-gather", "reduce-scatter"):
        ledger.add(f"fsdp/{collective}/used", data_parallel.fully_sharded_time, time=f"fsdp/{collective}")
    ledger.total("fsdp/both/used", "fsdp/all-gather/used", "fsdp/reduce-scatter/used")


def _stage_parts(ledger: Ledger) -> None:
    """Store what of a stage's time neither sharding nor recomputation changes."""
    ledger.product("stage/forward", "layer/forward/time", "stage/layers/second")
    ledger.add("pp/transfer", pipeline.stage_transfer_time, hop="pp/hop")


def _stage_time(ledger: Ledger) -> None:
    """Store what a layer adds to a stage per micro-batch: forward, backward, recomputation, sharded parameters."""
    ledger.product("layer/recompute/full", "layer/recompute/whole", "full_share")
    ledger.product("layer/recompute/selective", "layer/recompute/parts", "recompute/selective")
    ledger.total("layer/recompute/time", "layer/recompute/full", "layer/recompute/selective")
    ledger.total("layer/fsdp/window", "layer/backward/time", "layer/recompute/time")
    for direction, traffic, window in (
        ("forward", "fsdp/all-gather/used", "layer/forward/time"),
        ("backward", "fsdp/both/used", "layer/fsdp/window"),
    ):
        ledger.add(
            f"layer/fsdp/{direction}",
            layer.exposed_time,
            communication=traffic,
            window=window,
            hidden_share="fsdp_hidden_share",
            residual="fsdp/interference",
        )
    ledger.total("layer/fsdp/exposed", "layer/fsdp/forward", "layer/fsdp/backward")
    names = ("forward/time", "backward/time", "recompute/time", "fsdp/exposed", "host/gap")
    parts = [f"layer/{name}" for name in names]
    ledger.total("layer/backward/whole", "layer/backward/time", "layer/fsdp/backward")
    ledger.add(
        "layer/weight-gradient/time",
        layer.share_of_time,
        time="layer/backward/whole",
        part="layer/weight-gradient/trained",
        whole="layer/backward/queued",
    )
    ledger.product("stage/weight-gradient", "layer/weight-gradient/time", "stage/layers/second")
    if any_row(ledger.columns["offload_activations"] > 0):
        _activation_offload(ledger)
        parts.append("layer/offload/exposed")
    ledger.total("layer/time", *parts)


def _activation_offload(ledger: Ledger) -> None:
    """Store what the way of a layer's activations to the host, and back, takes beyond the layer's own time."""
    ledger.add(
        "layer/offload/transfer", data_parallel.activation_offload_time, kept_per_layer="layer/memory/kept/chosen"
    )
    for direction in ("forward", "backward"):
        ledger.add(
            f"layer/offload/{direction}",
            layer.exposed_time,
            communication="layer/offload/transfer",
            window=f"layer/{direction}/time",
            hidden_share=ALL_HIDDEN,
            residual=NO_RESIDUAL,
        )
    ledger.total("layer/offload/exposed", "layer/offload/forward", "layer/offload/backward")


def _idle_passes(ledger: Ledger) -> None:
    """Store how many passes a stage idles, of what, and what fills them, by schedule."""
    c = ledger.columns
    step_memory.by_schedule(ledger, "pp/idle_passes", "idle")
    rows = step_memory.used_schedules(c)
    for name, values in (
        ("weight_fill", [c[r.weight_fill] if isinstance(r.weight_fill, str) else r.weight_fill for r in rows]),
        ("idle_backwards", [r.idle_backwards for r in rows]),
        ("critical_path", [1.0 * r.critical_path for r in rows]),
    ):
        ledger.keep(f"symbol/{name}", np.select([c["schedule"] == r.code for r in rows], values))


def _pipeline(ledger: Ledger) -> None:
    ledger.product("stage/time", "layer/time", "stage/layers/second")
    ledger.product("stage/last-layers", "layer/time", "stage/layers/last")
    ledger.total("stage/last", "stage/last-layers", "head/time")
    other = "stage/time"
    if any_row(ledger.columns["layers_first"] > 0):  # otherwise the first is never the longest
        ledger.maximum("stage/layers/longest", "stage/layers/second", "stage/layers/first")
        ledger.product("stage/longest", "layer/time", "stage/layers/longest")
        other = "stage/longest"
    ledger.maximum("stage/slowest", other, "stage/last")
    ledger.add("stage/backward", layer.remaining_time, time="stage/time", part="stage/forward")
    times = {
        "forward_time": "stage/forward",
        "backward_time": "stage/backward",
        "weight_time": "stage/weight-gradient",
    }
    ledger.add(
        "pp/bubble",
        pipeline.bubble_time,
        idle_passes="pp/idle_passes",
        transfer_time="pp/transfer",
        weight_fill="symbol/weight_fill",
        idle_backwards="symbol/idle_backwards",
        **times,
    )
    ledger.add("time/compute", pipeline.steady_time, slowest_stage="stage/slowest")
    ledger.add("time/pp/p2p", pipeline.steady_time, slowest_stage="pp/transfer")
    parts = ["pp/bubble"]
    if any_row(ledger["symbol/critical_path"] > 0):
        ledger.total("pp/scheduled", "time/compute", "time/pp/p2p", "pp/bubble")
        ledger.add("pp/critical-path", pipeline.zero_bubble_floor, **times)
        ledger.product("pp/floor", "pp/critical-path", "symbol/critical_path")
        ledger.add("pp/floor-excess", pipeline.excess_time, floor="pp/floor", time="pp/scheduled")
        parts.append("pp/floor-excess")
    ledger.total("time/pp/bubble", *parts)


def _data_parallel(ledger: Ledger) -> None:
    """Store what of the gradient and parameter traffic of a step one micro-batch does not hide.

    Reductions run beside the backward pass, those of ZeRO 2 of each micro-batch; gathering beside the forward pass.
    """
    ledger.add("stage/slowest-backward", layer.remaining_time, time="stage/slowest", part="stage/forward")
    ledger.add("dp/window", data_parallel.overlap_window, window="stage/slowest-backward")
    ledger.add("dp/gather/window", data_parallel.overlap_window, window="stage/forward")
    for path, traffic, window in (
        ("dp/reduce/last", "dp/reduction/last", "dp/window"),
        ("dp/reduce/exposed", "dp/reduction/each", "dp/window"),
        ("dp/gather/exposed", "dp/gathering", "dp/gather/window"),
    ):
        ledger.add(
            path,
            layer.exposed_time,
            communication=traffic,
            window=window,
            hidden_share="dp_hidden_share",
            residual="dp_residual",
        )
    ledger.add("dp/reduce/earlier", data_parallel.earlier_reductions_time, exposed="dp/reduce/exposed")
    parts = ["dp/reduce/last", "dp/reduce/earlier", "dp/gather/exposed"]
    ledger.total("dp/exposed", *parts, *(["dp/tied"] if "dp/tied" in ledger else []))


def _step(ledger: Ledger) -> None:
    ledger.total("time/dp/exposed", "dp/exposed")
    ledger.total("time/optimizer", "optimizer/time")
    parts = ["time/compute", "time/pp/p2p", "time/pp/bubble", "time/dp/exposed", "time/optimizer"]
    if any_row(ledger.columns["images"] > 0):
        parts.append("time/tower")
        ledger.add("tower/forward", vision.tower_flops, mac_flops=MAC)
        ledger.add("tower/micro", vision.tower_time, tower_forward="tower/forward")
        ledger.product("time/tower", "tower/micro", "micro_batches")
    ledger.total("time/synchronous", *parts)
    ledger.add("step/straggler", data_parallel.straggler_factor)
    ledger.add("time/stragglers", data_parallel.straggler_time, time="time/synchronous", straggler="step/straggler")
    ledger.total("time/step", *parts, "time/stragglers")


def _metrics(ledger: Ledger) -> None:
    ledger.add("flops/passes", flops.matmul_passes)
    ledger.add("flops/matmul", flops.matmul_flops_per_token, passes="flops/passes")
    ledger.add("flops/attended", flops.attended_length)
    ledger.add("flops/attention", flops.attention_flops_per_token, attended="flops/attended")
    ledger.add("flops/step", flops.step_flops, matmul_flops="flops/matmul", attention_flops="flops/attention")
    ledger.add("metric/mfu", flops.model_flops_utilisation, flops="flops/step", step_time="time/step")
    ledger.add(
        "metric/hfu",
        flops.hardware_flops_utilisation,
        mfu="metric/mfu",
        recomputed_share="full_share",
        passes="flops/passes",
    )
    ledger.add("metric/tokens_per_s_per_gpu", flops.tokens_per_second_per_gpu, step_time="time/step")
