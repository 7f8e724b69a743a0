"""The parts of a step that nothing ranks by: time by kind of work, traffic and unhidden communication, bounds."""

from __future__ import annotations

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger
from gpucalc.estimate.communication import kinds
from gpucalc.formulas import data_parallel, layer, pipeline, shapes

DIRECTIONS = ("forward", "backward")

BOTH = Constant("BOTH_DIRECTIONS", 2.0, "forward and backward", "definition")
TP_COLLECTIVES = Constant(
    "TP_COLLECTIVES",
    4.0,
    "collectives of a block: a gather and a scatter (one reduction), forward and backward",
    "definition",
)
RING_BLOCKS = Constant(
    "RING_BLOCKS",
    3.0,
    "blocks on a ring: keys and values forward, and again with their gradients backward",
    "definition",
)
EXCHANGES = Constant(
    "EXPERT_EXCHANGES", 4.0, "exchanges of a layer with experts: to them and back, forward and backward", "definition"
)


def add_detail(ledger: Ledger) -> None:
    """Store the parts of `time/compute`, the traffic of each kind of parallelism, and what bounds the step."""
    ledger.product("stage/layer-passes", "micro_batches", "stage/layers/second")
    _breakdown(ledger)
    _layer_traffic(ledger)
    _data_parallel_traffic(ledger)
    for what in ("traffic", "communication"):
        ledger.total(
            f"{what}/step", *[f"{what}/{kind}" for kind in ("tp", "pp", "cp", "ep", "dp") if f"{what}/{kind}" in ledger]
        )
    _bounds(ledger)


def _breakdown(ledger: Ledger) -> None:
    """Store the parts of `time/compute` by kind of work."""
    stated = "stage/longest" in ledger
    other, layers = ("longest", "longest") if stated else ("time", "second")
    ledger.add("stage/last-decides", pipeline.last_stage_decides, last="stage/last", other=f"stage/{other}")
    ledger.choose("stage/decisive-layers", "stage/last-decides", {0: f"stage/layers/{layers}", 1: "stage/layers/last"})
    ledger.product("stage/decisive-passes", "micro_batches", "stage/decisive-layers")
    parts = _layer_parts(ledger)
    for name, path in parts.items():
        ledger.product(f"time/{name}", path, "stage/decisive-passes")
    ledger.product("time/head", "head/time", "micro_batches", "stage/last-decides")
    ledger.total("time/compute/parts", *[f"time/{name}" for name in (*parts, "head")])


def _layer_parts(ledger: Ledger) -> dict[str, str]:
    """Name of a kind of work → its time in a layer, forward and backward."""
    for direction in DIRECTIONS:
        path = f"layer/{direction}"
        ledger.add(f"layer/host/{direction}/excess", layer.remaining_time, time=f"{path}/time", part=f"{path}/queued")
    ledger.total("layer/host/waits", *[f"layer/host/{direction}/excess" for direction in DIRECTIONS], "layer/host/gap")
    ledger.total("layer/backward/gemm", "layer/activation-gradient/gemm", "layer/weight-gradient/trained")
    parts = {"host": "layer/host/waits", "recompute": "layer/recompute/time", "fsdp/exposed": "layer/fsdp/exposed"}
    if "layer/offload/exposed" in ledger:
        parts["offload/exposed"] = "layer/offload/exposed"
    for direction in DIRECTIONS:
        path = f"layer/{direction}"
        named = {"gemm": f"{path}/gemm", "attention": f"{path}/attention"}
        ledger.add(f"{path}/small-kernels", layer.small_kernels_time, device=f"{path}/device", **named)
        parts |= {f"{direction}/{kind}": at for kind, at in named.items()}
        parts[f"{direction}/elementwise"] = f"{path}/small-kernels"
    for kind in ("tp", "cp", "ep"):
        if f"layer/forward/{kind}/exposed" in ledger:
            parts[f"{kind}/exposed"] = f"layer/{kind}/exposed"
            ledger.total(parts[f"{kind}/exposed"], *[f"layer/{direction}/{kind}/exposed" for direction in DIRECTIONS])
    return parts


def _layer_traffic(ledger: Ledger) -> None:
    """Store the bytes that one GPU hands to the communication of layers and stages in a step, and its unhidden time."""
    passes = "stage/layer-passes"
    ledger.add("traffic/tp/message", shapes.message_of_many, message="layer/message", ranks="tp")
    ledger.product("traffic/tp", "traffic/tp/message", passes, "layer/tp/blocks", TP_COLLECTIVES)
    ledger.product("communication/tp/both", "layer/tp/time", BOTH)
    ledger.total("communication/tp/layer", "communication/tp/both", "layer/tp/regather")
    ledger.product("communication/tp", "communication/tp/layer", passes)
    ledger.add("traffic/pp/message", shapes.message_of_many, message="pp/message", ranks="pp")
    ledger.product("traffic/pp", "traffic/pp/message", "micro_batches", "vpp", BOTH)
    ledger.add("communication/pp/hop", layer.time_of_many, time="pp/hop", ranks="pp")
    ledger.product("communication/pp", "communication/pp/hop", "micro_batches", "vpp", BOTH)
    if "layer/cp/block" in ledger:
        ledger.add("traffic/cp/message", shapes.ring_message, message="layer/cp/block", ranks="cp")
        ledger.product("traffic/cp", "traffic/cp/message", passes, RING_BLOCKS)
        ledger.add("communication/cp/layer", layer.time_of_many, time="layer/cp/time", ranks="cp")
        ledger.product("communication/cp", "communication/cp/layer", passes, RING_BLOCKS)
    if "layer/ep/message" in ledger:
        ledger.add("traffic/ep/share", shapes.layer_share, kind_layers="moe_layers")
        ledger.product("traffic/ep", "layer/ep/message", passes, "traffic/ep/share", EXCHANGES)
        ledger.product("communication/ep", "layer/ep/time", passes, BOTH)


def _data_parallel_traffic(ledger: Ledger) -> None:
    """Store the bytes of gradients and parameters that one GPU sends in a step, and their unhidden time."""
    for what in ("gradients", "weights"):
        ledger.total(f"traffic/dp/{what}", *[f"dp/{kind}/{what}" for kind in kinds(ledger.columns)])
    ledger.add(
        "traffic/dp",
        data_parallel.step_traffic,
        gradients="traffic/dp/gradients",
        weights="traffic/dp/weights",
        replicas="symbol/replicas",
    )
    ledger.add(
        "communication/dp/step",
        data_parallel.step_communication,
        all_reduce="dp/all-reduce",
        reduce_scatter="dp/reduce-scatter",
        all_gather="dp/all-gather",
    )
    ledger.add(
        "communication/dp/layers",
        data_parallel.sharded_step_communication,
        layer_gather="fsdp/all-gather",
        layer_scatter="fsdp/reduce-scatter",
        layer_passes="stage/layer-passes",
    )
    parts = ["communication/dp/step", "communication/dp/layers", "dp/reduction/copies"]
    ledger.total("communication/dp", *parts, *(["dp/tied"] if "dp/tied" in ledger else []))


def _bounds(ledger: Ledger) -> None:
    """Store what the step would take with all communication hidden, and with none."""
    exposed = [p for p in ("time/tp/exposed", "time/cp/exposed", "time/ep/exposed", "time/fsdp/exposed") if p in ledger]
    ledger.total("bounds/exposed", *exposed)
    ledger.add("bounds/compute", layer.remaining_time, time="time/compute", part="bounds/exposed")
    ledger.total("bounds/work", "bounds/compute", "time/optimizer")
    ledger.maximum("bounds/lower", "bounds/work", "communication/step")
    ledger.total("bounds/upper", "bounds/work", "time/pp/bubble", "communication/step", "time/stragglers")
