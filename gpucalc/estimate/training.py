"""The training step: the one place that puts the formulas in order.

Columns in, ledger out; one row or a million take the same path.
"""

from __future__ import annotations

import numpy as np

from gpucalc.estimate import communication, layer_time, step_memory
from gpucalc.formulas import data_parallel, flops, layer, pipeline
from gpucalc.ledger import Columns, Ledger
from gpucalc.vocabulary import SCHEDULES

OUTSIDE_STATES = ("micro_batch", "vpp", "schedule", "recompute", "recompute_layers", "global_batch", "offload_activations")


def estimate_training(columns: Columns, *, trace: bool = False) -> Ledger:
    """Time, memory, FLOPs and traffic of one optimizer step for each row of `columns`.

    The columns are those of `gpucalc.job.resolve`. Rows that do not fit get a time and a memory too.
    """
    ledger = Ledger(columns, trace=trace)
    per_layer = ledger.without(*layer_time.OUTSIDE_LAYER)
    layer_time.add_layer_time(per_layer)
    step_memory.add_layer_activations(per_layer)
    communication.add_layer_communication(per_layer)
    communication.add_pipeline_transfer(per_layer)
    states = ledger.without(*OUTSIDE_STATES)
    step_memory.define_replicas(states)
    step_memory.add_parameters(states)
    step_memory.add_states(states)
    communication.add_data_parallel(states)
    _optimizer(states)
    ledger.define("micro_batches", pipeline.micro_batches)
    step_memory.add_in_flight(ledger)
    step_memory.add_memory(ledger)
    _stage_time(ledger)
    _pipeline(ledger)
    _data_parallel(ledger)
    _step(ledger)
    _metrics(ledger)
    return ledger


def _optimizer(ledger: Ledger) -> None:
    c = ledger.columns
    shards = np.where(c["zero_stage"] >= 1, c["shards"], 1.0)
    expert_shards = np.where(c["zero_stage"] >= 1, c["expert_shards"], 1.0)
    dense = ledger["stage/parameters/dense"] * c["trains_base"] + c["adapter_parameters"] * c["longest"]
    updated = dense / shards + ledger["stage/parameters/experts"] * c["trains_base"] / expert_shards
    ledger.add(
        "optimizer/update",
        data_parallel.optimizer_time,
        updated_parameters=updated,
        effective_memory_bandwidth=c["memory_bandwidth"] * c["memory_efficiency"],
    )
    ledger.add("optimizer/offload", data_parallel.offload_time, updated_parameters=updated)
    ledger.total("optimizer/time", "optimizer/update", "optimizer/offload")


def _stage_time(ledger: Ledger) -> None:
    """Store what a layer adds to a stage per micro-batch: forward, backward, recomputation, sharded parameters."""
    c = ledger.columns
    forward, backward = ledger["layer/forward/time"], ledger["layer/backward/time"]
    skipped = ledger["layer/forward/attention"] * c["full_recompute_skips_attention"]
    ledger.add("layer/recompute/full", layer.scaled_time, time=forward - skipped, factor=c["full_share"])
    selective = 1.0 * (c["recompute"] == 1)
    core = ledger["layer/forward/attention"] * (1 - c["flash"]) + c["selective_recompute_share"] * forward
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
    ledger.total(
        "layer/time",
        "layer/forward/time",
        "layer/backward/time",
        "layer/recompute/time",
        "layer/fsdp/exposed",
    )


def _pipeline(ledger: Ledger) -> None:
    c = ledger.columns
    depth, last = ledger["stage/layers/second"], ledger["stage/layers/last"]
    gap = ledger.add("layer/host/gap", layer.scaled_time, time=c["serial_gap_seconds"], factor=1.0)
    per_layer = ledger["layer/time"] + gap
    stage = ledger.add("stage/time", layer.scaled_time, time=per_layer, factor=depth)
    ledger.add("stage/last-layers", layer.scaled_time, time=per_layer, factor=last)
    ledger.total("stage/last", "stage/last-layers", "head/time")
    ledger.maximum("stage/slowest", "stage/time", "stage/last")
    transfer = ledger.add(
        "pp/transfer",
        pipeline.stage_transfer_time,
        hop=ledger["pp/hop"],
        exposed_share=c["p2p_exposed_share"],
    )
    forward = ledger["layer/forward/time"] * depth
    weight = ledger["layer/weight-gradient/trained"] * depth
    backward = stage - forward
    used = set(np.unique(c["schedule"]).astype(int).tolist())
    cases: dict[int, str] = {}

    def case(name: str, function, **given) -> None:  # type: ignore[no-untyped-def]
        code = SCHEDULES.index(name)
        if code in used:
            cases[code] = f"pp/bubble/{name}"
            ledger.add(cases[code], function, **given)

    times = {"forward_time": forward, "backward_time": backward, "weight_time": weight}
    full = stage + transfer
    for name in ("none", "gpipe", "1f1b"):
        case(name, pipeline.fill_drain_bubble, stage_time=full)
    case("interleaved", pipeline.interleaved_bubble, stage_time=full)
    for name, fill in (("zb-h1", "1"), ("zb-1p", "1"), ("zb-2p", "2")):
        weight_fill = c[f"zero_bubble_fill_{fill}"]
        case(name, pipeline.zero_bubble_bubble, stage_time=full, weight_time=weight, weight_fill=weight_fill)
    case("dualpipe", pipeline.dualpipe_bubble, **times)
    case("dualpipe-v", pipeline.dualpipe_v_bubble, **times)
    ledger.choose("pp/bubble", c["schedule"], cases)
    ledger.add("pp/steady", pipeline.steady_time, slowest_stage=ledger["stage/slowest"])
    ledger.add("pp/p2p", pipeline.steady_time, slowest_stage=transfer)
    ledger.total("pp/scheduled", "pp/steady", "pp/p2p", "pp/bubble")
    if used & {SCHEDULES.index(n) for n in ("zb-h1", "zb-1p", "zb-2p")}:
        floor = ledger.add("pp/critical-path", pipeline.zero_bubble_floor, **times)
        zero_bubble = (c["schedule"] >= SCHEDULES.index("zb-h1")) & (c["schedule"] <= SCHEDULES.index("zb-2p"))
        ledger.add(
            "pp/floor-excess",
            pipeline.excess_time,
            floor=floor * zero_bubble,
            time=ledger["pp/scheduled"],
        )
        ledger.total("pp/idle", "pp/bubble", "pp/floor-excess")
    else:
        ledger.total("pp/idle", "pp/bubble")


def _data_parallel(ledger: Ledger) -> None:
    c = ledger.columns
    zero = c["zero_stage"]
    window = ledger["stage/slowest"]
    once = np.where(zero == 2, c["micro_batches"], 1.0)
    reduce = np.where(zero == 0, ledger["dp/all-reduce"], ledger["dp/reduce-scatter"]) * (zero < 3)
    gather = ledger["dp/all-gather"] * ((zero == 1) | (zero == 2))
    share = {"hidden_share": c["dp_hidden_share"], "residual": c["dp_residual"]}
    exposed = ledger.add("dp/reduce/exposed", layer.exposed_time, communication=reduce, window=window, **share)
    ledger.add("dp/reduce/step", layer.scaled_time, time=exposed, factor=once)
    ledger.add("dp/gather/exposed", layer.exposed_time, communication=gather, window=window, **share)
    copies = ledger["dp/copies"] * (zero > 0)
    ledger.add("dp/copies/exposed", layer.exposed_time, communication=copies, window=window, **share)
    ledger.total("dp/exposed", "dp/reduce/step", "dp/gather/exposed", "dp/copies/exposed")


def _step(ledger: Ledger) -> None:
    """Store the step as disjoint terms that add up to it."""
    c = ledger.columns
    m, depth = c["micro_batches"], ledger["stage/layers/second"]
    last = ledger["stage/layers/last"]
    deepest = np.where(ledger["stage/last"] >= ledger["stage/time"], last, depth)
    layers = m * deepest
    parts = {
        "forward/gemm": ledger["layer/forward/gemm"],
        "forward/attention": ledger["layer/forward/attention"],
        "backward/gemm": ledger["layer/activation-gradient/gemm"] + ledger["layer/weight-gradient/trained"],
        "backward/attention": ledger["layer/backward/attention"],
        "forward/elementwise": ledger["layer/forward/device"]
        - ledger["layer/forward/gemm"]
        - ledger["layer/forward/attention"],
        "backward/elementwise": ledger["layer/backward/device"]
        - ledger["layer/activation-gradient/gemm"]
        - ledger["layer/weight-gradient/trained"]
        - ledger["layer/backward/attention"],
        "host": ledger["layer/forward/busy"]
        + ledger["layer/backward/busy"]
        - ledger["layer/forward/device"]
        - ledger["layer/backward/device"]
        + ledger["layer/host/gap"],
        "recompute": ledger["layer/recompute/time"],
        "fsdp/exposed": ledger["layer/fsdp/exposed"],
    }
    for kind in ("tp", "cp", "ep"):
        paths = [f"layer/{direction}/{kind}/exposed" for direction in ("forward", "backward")]
        if paths[0] in ledger:
            parts[f"{kind}/exposed"] = ledger[paths[0]] + ledger[paths[1]]
    for name, time in parts.items():
        ledger.add(f"time/{name}", layer.scaled_time, time=time, factor=layers)
    head = np.where(ledger["stage/last"] >= ledger["stage/time"], 1.0, 0.0)
    ledger.add("time/head", layer.scaled_time, time=ledger["head/time"], factor=m * head)
    ledger.add("time/pp/bubble", layer.scaled_time, time=ledger["pp/idle"], factor=1.0)
    ledger.add("time/pp/p2p", layer.scaled_time, time=ledger["pp/p2p"], factor=1.0)
    ledger.add("time/dp/exposed", layer.scaled_time, time=ledger["dp/exposed"], factor=1.0)
    ledger.add("time/optimizer", layer.scaled_time, time=ledger["optimizer/time"], factor=1.0)
    names = [f"time/{n}" for n in (*parts, "head", "pp/bubble", "pp/p2p", "dp/exposed", "optimizer")]
    ledger.total("time/synchronous", *names)
    factor = ledger.add("step/straggler", data_parallel.straggler_factor)
    ledger.add("time/stragglers", layer.scaled_time, time=ledger["time/synchronous"], factor=factor - 1)
    ledger.total("time/step", *names, "time/stragglers")


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
