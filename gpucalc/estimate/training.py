"""The training step: the one place that puts the formulas in order.

Columns in, ledger out; one row or a million take the same path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.estimate import communication, layer_time, step_memory
from gpucalc.formulas import data_parallel, flops, layer, pipeline
from gpucalc.layouts.axes import ACTIVATIONS, LAYER, STATES, outside
from gpucalc.layouts.schedules import profile_constants


def estimate_training(columns: Columns, *, detail: bool = False, trace: bool = False) -> Ledger:
    """Time, memory, FLOPs and traffic of one optimizer step for each row of `columns`.

    `detail` adds the parts of `time/compute` and of `memory/raw`; they change nothing else. The columns are
    those of `gpucalc.job.resolve`. Rows that do not fit get a time and a memory too.
    """
    ledger = Ledger(columns, trace=trace)
    around = ledger.without(*outside(LAYER, ACTIVATIONS))  # everything but what shards states and recomputes
    per_layer = around.without("global_batch", *outside(LAYER))
    _layer(per_layer)
    step_memory.add_layer_activations(per_layer)
    communication.add_pipeline_transfer(per_layer)
    states = ledger.without("global_batch", *outside(STATES))
    step_memory.define_replicas(states)
    step_memory.add_parameters(states)
    step_memory.add_states(states)
    communication.add_data_parallel(states)
    _optimizer(states)
    schedules = around.on("pp", "dp", "vpp", "schedule", "micro_batch", "global_batch", *profile_constants())
    schedules.define("micro_batches", pipeline.micro_batches)
    step_memory.add_in_flight(schedules)
    _idle_passes(schedules)
    step_memory.add_stage_layers(around.on("pp", "layers"), "stage/layers")
    step_memory.add_passing(around)
    step_memory.add_bounds(around)
    ledger.share("symbol/micro_batches")
    step_memory.add_memory(ledger)
    _stage_time(ledger)
    _pipeline(ledger)
    _data_parallel(ledger)
    _step(ledger)
    _metrics(ledger)
    if detail or trace:
        step_memory.add_memory_detail(ledger)
        _breakdown(ledger)
        _traffic(ledger)
        _bounds(ledger)
    return ledger


def _layer(ledger: Ledger) -> None:
    layer_time.add_layer_time(ledger)
    ledger.add("layer/host/gap", layer.scaled_time, time=ledger.columns["serial_gap_seconds"], factor=1.0)
    communication.add_layer_communication(ledger)


def least_step_time(columns: Columns) -> Any:
    """A time that no pipeline, replication, sharding or recomputation of the same cut of the layers can beat.

    The columns need tp, cp, ep, etp, micro_batch, sequence_parallel and cp_kind of the cut.
    """
    ledger = Ledger(columns)
    _layer(ledger)
    ledger.total("layer/least", "layer/forward/time", "layer/backward/time", "layer/host/gap")
    straggler = ledger.add("step/straggler", data_parallel.straggler_factor)
    return ledger.add(
        "time/least",
        pipeline.work_bound,
        layer_time=ledger["layer/least"],
        head_time=ledger["head/time"],
        straggler=straggler,
    )


def _optimizer(ledger: Ledger) -> None:
    c = ledger.columns
    shards = np.where(c["zero_stage"] >= 1, c["shards"], 1.0)
    expert_shards = np.where(c["zero_stage"] >= 1, c["expert_shards"], 1.0)
    dense = ledger["stage/parameters/dense"] * c["trains_base"] + c["tuned_parameters"]
    experts = ledger["stage/parameters/experts"] * c["trains_base"]
    if np.any(c["zero_stage"] == 0):  # both copies are updated where nothing is shared
        dense, experts = (p * np.where(c["zero_stage"] == 0, c["parameter_copies"], 1.0) for p in (dense, experts))
    updated = dense / shards + experts / expert_shards
    ledger.add(
        "optimizer/update",
        data_parallel.optimizer_time,
        updated_parameters=updated,
        effective_memory_bandwidth=c["memory_bandwidth"] * c["memory_efficiency"],
    )
    ledger.add("optimizer/offload", data_parallel.offload_time, updated_parameters=updated)
    ledger.add("optimizer/broadcast", data_parallel.partition_broadcast_time)
    parts = ["optimizer/update", "optimizer/offload", "optimizer/broadcast"]
    if np.any(c["orthogonalises"] > 0):
        parts.append("optimizer/orthogonalise")
        ledger.add(parts[-1], data_parallel.orthogonalise_time, updated_parameters=updated, peak=c["half_peak"])
    ledger.total("optimizer/time", *parts)


def _stage_time(ledger: Ledger) -> None:
    """Store what a layer adds to a stage per micro-batch: forward, backward, recomputation, sharded parameters."""
    c = ledger.columns
    forward, backward = ledger["layer/forward/time"], ledger["layer/backward/time"]
    skipped = ledger["layer/forward/attention"] * c["full_recompute_skips_attention"]
    ledger.add("layer/recompute/full", layer.scaled_time, time=forward - skipped, factor=c["full_share"])
    selective = 1.0 * (c["recompute"] == 1)
    core = ledger["layer/forward/attention"] * (1 - c["flash"])  # scores are cheap to keep where flash never forms them
    core = core + c["selective_recompute_share"] * (forward - core)
    ledger.add("layer/recompute/selective", layer.scaled_time, time=core, factor=selective)
    ledger.total("layer/recompute/time", "layer/recompute/full", "layer/recompute/selective")
    sharded = c["zero_stage"] >= 3
    gather = ledger["fsdp/all-gather"] * sharded
    scatter = ledger["fsdp/reduce-scatter"] * sharded
    for direction, traffic, window in (
        ("forward", gather, forward),
        ("backward", gather + scatter, backward + ledger["layer/recompute/time"]),
    ):
        ledger.add(
            f"layer/fsdp/{direction}",
            layer.exposed_time,
            communication=traffic,
            window=window,
            hidden_share=c["fsdp_hidden_share"],
            residual=c["fsdp_residual"],
        )
    ledger.total("layer/fsdp/exposed", "layer/fsdp/forward", "layer/fsdp/backward")
    parts = [
        f"layer/{name}" for name in ("forward/time", "backward/time", "recompute/time", "fsdp/exposed", "host/gap")
    ]
    if np.any(c["offload_activations"] > 0):
        _activation_offload(ledger)
        parts.append("layer/offload/exposed")
    ledger.total("layer/time", *parts)


def _activation_offload(ledger: Ledger) -> None:
    """Store what the way of a layer's activations to the host, and back, takes beyond the layer's own time."""
    time = ledger.add(
        "layer/offload/transfer",
        data_parallel.activation_offload_time,
        kept_per_layer=ledger["layer/memory/kept/chosen"],
    )
    for direction in ("forward", "backward"):
        ledger.add(
            f"layer/offload/{direction}",
            layer.exposed_time,
            communication=time,
            window=ledger[f"layer/{direction}/time"],
            hidden_share=1.0,  # a copy engine moves them; it takes no multiprocessor from the layer
            residual=0.0,
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
    c = ledger.columns
    depth, last = ledger["stage/layers/second"], ledger["stage/layers/last"]
    stage = ledger.add("stage/time", layer.scaled_time, time=ledger["layer/time"], factor=depth)
    ledger.add("stage/last-layers", layer.scaled_time, time=ledger["layer/time"], factor=last)
    ledger.total("stage/last", "stage/last-layers", "head/time")
    ledger.maximum("stage/slowest", "stage/time", "stage/last")
    transfer = ledger.add(
        "pp/transfer",
        pipeline.stage_transfer_time,
        hop=ledger["pp/hop"],
        exposed_share=np.where(c["vpp"] > 1, c["p2p_exposed_interleaved"], c["p2p_exposed_share"]),
    )
    forward = ledger["layer/forward/time"] * depth
    weight = ledger["layer/weight-gradient/trained"] * depth
    times = {"forward_time": forward, "backward_time": stage - forward, "weight_time": weight}
    shares = {n: ledger[f"symbol/{n}"] for n in ("weight_fill", "idle_backwards")}
    ledger.add(
        "pp/bubble",
        pipeline.bubble_time,
        idle_passes=ledger["pp/idle_passes"],
        transfer_time=transfer,
        **times,
        **shares,
    )
    ledger.add("time/compute", pipeline.steady_time, slowest_stage=ledger["stage/slowest"])
    ledger.add("time/pp/p2p", pipeline.steady_time, slowest_stage=transfer)
    critical = ledger["symbol/critical_path"]
    if np.any(critical > 0):
        ledger.total("pp/scheduled", "time/compute", "time/pp/p2p", "pp/bubble")
        floor = ledger.add("pp/critical-path", pipeline.zero_bubble_floor, **times)
        ledger.add("pp/floor-excess", pipeline.excess_time, floor=floor * critical, time=ledger["pp/scheduled"])
        ledger.total("time/pp/bubble", "pp/bubble", "pp/floor-excess")
    else:
        ledger.total("time/pp/bubble", "pp/bubble")


def _data_parallel(ledger: Ledger) -> None:
    """Store what of the gradient and parameter traffic of a step one micro-batch does not hide.

    Reductions run beside the backward pass, those of ZeRO 2 of each micro-batch; gathering beside the forward pass.
    """
    c = ledger.columns
    zero = c["zero_stage"]
    forward = ledger["layer/forward/time"] * ledger["stage/layers/second"]
    backward = ledger["stage/slowest"] - forward
    reduce = np.where(zero == 0, ledger["dp/all-reduce"], ledger["dp/reduce-scatter"]) * (zero < 3)
    gather = ledger["dp/all-gather"] * ((zero == 1) | (zero == 2))
    copies = ledger["dp/copies"] * (zero > 0)
    each = reduce * (zero == 2)
    share = {"hidden_share": c["dp_hidden_share"], "residual": c["dp_residual"]}
    ledger.add("dp/reduce/last", layer.exposed_time, communication=reduce + copies, window=backward, **share)
    earlier = ledger.add("dp/reduce/exposed", layer.exposed_time, communication=each, window=backward, **share)
    ledger.add("dp/reduce/earlier", layer.scaled_time, time=earlier, factor=c["micro_batches"] - 1)
    ledger.add("dp/gather/exposed", layer.exposed_time, communication=gather, window=forward, **share)
    ledger.total("dp/exposed", "dp/reduce/last", "dp/reduce/earlier", "dp/gather/exposed")


def _step(ledger: Ledger) -> None:
    ledger.total("time/dp/exposed", "dp/exposed")
    ledger.total("time/optimizer", "optimizer/time")
    parts = ("time/compute", "time/pp/p2p", "time/pp/bubble", "time/dp/exposed", "time/optimizer")
    ledger.total("time/synchronous", *parts)
    factor = ledger.add("step/straggler", data_parallel.straggler_factor)
    ledger.add("time/stragglers", layer.scaled_time, time=ledger["time/synchronous"], factor=factor - 1)
    ledger.total("time/step", *parts, "time/stragglers")


def _breakdown(ledger: Ledger) -> None:
    """Store the parts of `time/compute` by kind of work."""
    c = ledger.columns
    head_decides = 1.0 * (ledger["stage/last"] >= ledger["stage/time"])
    deepest = np.where(head_decides > 0, ledger["stage/layers/last"], ledger["stage/layers/second"])
    layers = c["micro_batches"] * deepest
    device = {d: ledger[f"layer/{d}/device"] for d in ("forward", "backward")}
    gemm = {
        "forward": ledger["layer/forward/gemm"],
        "backward": ledger["layer/activation-gradient/gemm"] + ledger["layer/weight-gradient/trained"],
    }
    parts = {
        "host": sum(np.maximum(ledger[f"layer/{d}/busy"] - device[d], 0.0) for d in device) + ledger["layer/host/gap"],
        "recompute": ledger["layer/recompute/time"],
        "fsdp/exposed": ledger["layer/fsdp/exposed"],
    }
    if "layer/offload/exposed" in ledger:
        parts["offload/exposed"] = ledger["layer/offload/exposed"]
    for direction in ("forward", "backward"):
        attention = ledger[f"layer/{direction}/attention"]
        parts[f"{direction}/gemm"] = gemm[direction]
        parts[f"{direction}/attention"] = attention
        parts[f"{direction}/elementwise"] = device[direction] - gemm[direction] - attention
    for kind in ("tp", "cp", "ep"):
        paths = [f"layer/{direction}/{kind}/exposed" for direction in ("forward", "backward")]
        if paths[0] in ledger:
            parts[f"{kind}/exposed"] = ledger[paths[0]] + ledger[paths[1]]
    for name, time in parts.items():
        ledger.add(f"time/{name}", layer.scaled_time, time=time, factor=layers)
    ledger.add("time/head", layer.scaled_time, time=ledger["head/time"], factor=c["micro_batches"] * head_decides)
    ledger.total("time/compute/parts", *[f"time/{name}" for name in (*parts, "head")])


def _traffic(ledger: Ledger) -> None:
    """Store the bytes that one GPU hands to each kind of communication in a step, and their unhidden time."""
    c = ledger.columns
    m = c["micro_batches"]
    layers = m * ledger["stage/layers/second"]
    zero, trained = c["zero_stage"], c["trains_base"]
    activation = communication.ELEMENT * ledger["symbol/tokens"] * c["hidden"]
    messages = {
        "tp": (activation * (c["tp"] > 1), 4 * layers * ledger["layer/tp/blocks"]),
        "pp": (activation / ledger["pp/split"] * (c["pp"] > 1), 2 * m * c["vpp"]),
    }
    times = {"tp": (2 * ledger["layer/tp/time"], layers), "pp": (ledger["pp/hop"] * (c["pp"] > 1), 2 * m * c["vpp"])}
    if "layer/cp/block" in ledger:
        messages["cp"] = (ledger["layer/cp/block"] * (c["cp"] - 1), 3 * layers)
        times["cp"] = (3 * ledger["layer/cp/time"] * (c["cp"] > 1), layers)
    if "layer/ep/message" in ledger:
        messages["ep"] = (ledger["layer/ep/message"], 4 * layers * c["moe_layers"] / c["layers"])
        times["ep"] = (2 * ledger["layer/ep/time"], layers)
    sharded = zero >= 3
    gradients = sum(ledger[f"dp/{kind}/gradients"] for kind in communication.kinds(c))
    weights = sum(ledger[f"dp/{kind}/weights"] for kind in communication.kinds(c))
    many = c["dp"] * c["cp"] > 1
    once = gradients * np.where(zero == 2, m, 1.0) + weights * ((zero == 1) | (zero == 2))
    each = m * (2 * weights + gradients * trained)
    messages["dp"] = (np.where(sharded, each, once) * many, 1.0)
    scatters = ledger["dp/reduce-scatter"] * np.where(zero == 2, m, 1.0)
    reduce = np.where(zero == 0, ledger["dp/all-reduce"], scatters + ledger["dp/all-gather"])
    per_layer = 2 * ledger["fsdp/all-gather"] + ledger["fsdp/reduce-scatter"]
    times["dp"] = (np.where(sharded, per_layer * layers, reduce) + ledger["dp/copies"] * (zero > 0), 1.0)
    for kind, (message, count) in messages.items():
        ledger.add(f"traffic/{kind}", layer.repeated_message, message=message, times=count)
    ledger.total("traffic/step", *[f"traffic/{kind}" for kind in messages])
    for kind, (time, count) in times.items():
        ledger.add(f"communication/{kind}", layer.scaled_time, time=time, factor=count)
    ledger.total("communication/step", *[f"communication/{kind}" for kind in times])


def _bounds(ledger: Ledger) -> None:
    """Store what the step would take with all communication hidden, and with none."""
    exposed = [p for p in ("time/tp/exposed", "time/cp/exposed", "time/ep/exposed", "time/fsdp/exposed") if p in ledger]
    hidden = sum(ledger[path] for path in exposed)
    ledger.add("bounds/compute", layer.scaled_time, time=ledger["time/compute"] - hidden, factor=1.0)
    ledger.total("bounds/work", "bounds/compute", "time/optimizer")
    ledger.maximum("bounds/lower", "bounds/work", "communication/step")
    ledger.total("bounds/upper", "bounds/work", "time/pp/bubble", "communication/step", "time/stragglers")


def _metrics(ledger: Ledger) -> None:
    c = ledger.columns
    passes = 2.0 + c["trains_base"]
    matmul = ledger.add("flops/matmul", flops.matmul_flops_per_token, passes=passes)
    ledger.add("flops/attended", flops.attended_length)
    attention = ledger.add("flops/attention", flops.attention_flops_per_token, attended=ledger["flops/attended"])
    step = ledger.add("flops/step", flops.step_flops, matmul_flops=matmul, attention_flops=attention)
    time = ledger["time/step"]
    mfu = ledger.add("metric/mfu", flops.model_flops_utilisation, flops=step, step_time=time)
    ledger.add("metric/hfu", flops.hardware_flops_utilisation, mfu=mfu, recomputed_share=c["full_share"])
    ledger.add("metric/tokens_per_s_per_gpu", flops.tokens_per_second_per_gpu, step_time=time)
