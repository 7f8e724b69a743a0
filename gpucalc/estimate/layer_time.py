"""Compute time of one average layer and of the head, forward, backward and recomputed.

Everything here depends on how a layer is cut (tp, cp, ep, etp, sequence parallelism, micro-batch) and on
nothing of the pipeline or of data parallelism, so it runs in a scope of those columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Ledger
from gpucalc.estimate import products
from gpucalc.formulas import attention, flops, layer, parameters, power, roofline

HALF = "half_"  # prefix of the kernel constants that hold for 16-bit products


def add_layer_time(ledger: Ledger) -> None:
    """Store the times of one layer's forward and backward pass and of the head (per micro-batch and rank)."""
    ledger.define("sustained_clock", power.sustained_clock)
    define_shapes(ledger)
    _projections(ledger)
    _attention(ledger)
    _elementwise(ledger)
    _head(ledger)
    _sums(ledger)


def define_shapes(ledger: Ledger) -> None:
    """Define tokens and widths of a rank as symbols of the scope."""
    ledger.define("tokens", layer.micro_tokens)
    ledger.define("sequence_ranks", layer.sequence_ranks)
    ledger.define("qkv", layer.qkv_width)
    ledger.define("attention_columns", layer.attention_width)
    ledger.define("feed_forward", layer.feed_forward_width)
    ledger.define("blocks", layer.blocks_per_layer)
    c = ledger.columns
    ledger.define("mixer_in", layer.mixer_columns, columns=c["qkv"], share=0.75)
    ledger.define("mixer_out", layer.mixer_columns, columns=c["attention_columns"], share=0.25)
    ledger.define("attended", flops.attended_length)


def _positive(value: Any) -> Any:
    """A dimension of a product that is absent in some rows; its time is weighted with zero layers."""
    return np.maximum(value, 1.0)


def _product(ledger: Ledger, name: str, m: Any, n: Any, k: Any, kind_layers: Any, *, factor: Any = 1.0) -> None:
    """Store forward, activation-gradient and weight-gradient time of one matrix of the average layer."""
    m, n, k = _positive(m), _positive(n), _positive(k)
    shapes = {"forward": (m, n, k), "activation-gradient": (m, k, n), "weight-gradient": (n, k, m)}
    for direction, (rows, columns, depth) in shapes.items():
        path = f"layer/{direction}/gemm/{name}"
        products.add_gemm(ledger, f"{path}/one", m=rows, n=columns, k=depth)
        if not (np.isscalar(factor) and factor == 1.0):
            ledger.add(f"{path}/group", layer.scaled_time, time=ledger[f"{path}/one"], factor=factor)
        one = ledger[f"{path}/group"] if f"{path}/group" in ledger else ledger[f"{path}/one"]
        ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)


def _projections(ledger: Ledger) -> None:
    c = ledger.columns
    hidden, tp, tokens = c["hidden"], c["tp"], c["tokens"]
    latent, plain = c["latent_layers"], c["attention_layers"] - c["latent_layers"]
    if np.any(plain > 0):
        _product(ledger, "qkv", tokens, c["qkv"], hidden, plain)
    if np.any(latent > 0):
        rank_q, rank_kv = c["q_lora_rank"], c["kv_lora_rank"]
        query = c["heads"] * c["head_dim"] / tp
        key_value = c["heads"] * (c["head_dim"] - c["qk_rope_head_dim"] + c["v_head_dim"]) / tp
        _product(ledger, "q_down", tokens, rank_q, hidden, latent * (rank_q > 0))
        _product(ledger, "q_up", tokens, query, np.where(rank_q > 0, rank_q, hidden), latent)
        _product(ledger, "kv_down", tokens, rank_kv + c["qk_rope_head_dim"], hidden, latent)
        _product(ledger, "kv_up", tokens, key_value, rank_kv, latent)
    if np.any(c["attention_layers"] > 0):
        _product(ledger, "out", tokens, hidden, c["attention_columns"], c["attention_layers"])
    if np.any(c["linear_layers"] > 0):
        width = c["linear_mixer_parameters"] / hidden / tp
        _product(ledger, "linear_mixer", tokens, width, hidden, c["linear_layers"])
    if np.any(c["dense_layers"] > 0):
        width = c["ffn_hidden"] / tp
        _product(ledger, "up", tokens, (1 + c["gated"]) * width, hidden, c["dense_layers"])
        _product(ledger, "down", tokens, hidden, width, c["dense_layers"])
    if np.any(c["moe_layers"] > 0):
        _experts(ledger)


def _experts(ledger: Ledger) -> None:
    c = ledger.columns
    hidden, tp, tokens, moe = c["hidden"], c["tp"], c["tokens"], c["moe_layers"]
    per_expert = ledger.define("expert_tokens", layer.tokens_per_expert)
    width, local = c["expert_ffn_hidden"] / c["etp"], c["experts"] / c["ep"]
    factor = local * c["expert_gemm_factor"] * c["expert_load_factor"]
    _product(ledger, "expert_up", per_expert, (1 + c["gated"]) * width, hidden, moe, factor=factor)
    _product(ledger, "expert_down", per_expert, hidden, width, moe, factor=factor)
    _product(ledger, "router", tokens / tp, c["experts"], hidden, moe)
    shared = c["shared_expert_ffn_hidden"] / tp
    if np.any(shared > 0):
        share = moe * (c["shared_expert_ffn_hidden"] > 0)
        _product(ledger, "shared_up", tokens, (1 + c["gated"]) * shared, hidden, share)
        _product(ledger, "shared_down", tokens, hidden, shared, share)
    ledger.add("layer/traffic/permutation", layer.permutation_traffic)
    ledger.add("layer/traffic/expert-bias", layer.expert_bias_traffic)
    moved = ledger.total("layer/traffic/experts", "layer/traffic/permutation", "layer/traffic/expert-bias")
    for direction in ("forward", "backward"):
        path = f"layer/{direction}/permutation"
        time = ledger.add(
            f"{path}/one",
            roofline.memory_bound_time,
            traffic=moved,
            kernel_launch_seconds=c["elementwise_launch"],
        )
        ledger.add(path, layer.mean_over_layers, time=time, kind_layers=moe)


def _attention(ledger: Ledger) -> None:
    c = ledger.columns
    flash = c["flash"]
    common = {
        "batch": c["micro_batch"],
        "queries": c["seq_len"] / c["cp"],
        "keys": c["seq_len"],
        "heads": c["heads"] / c["tp"],
        "kv_heads": np.maximum(c["kv_heads"] / c["tp"], 1.0),
        "head_dim": (c["head_dim"] + c["v_head_dim"]) / 2,
        "peak": c[f"{HALF}peak"],
        "attention_element_bytes": c[f"{HALF}element_bytes"],
    }
    kinds = {"full": (c["attention_layers"] - c["window_layers"], c["seq_len"])}
    if np.any(c["window_layers"] > 0):
        kinds["window"] = (c["window_layers"], _positive(c["window"]))
    for kind, (kind_layers, window) in kinds.items():
        path = f"layer/forward/attention/{kind}"
        back = f"layer/backward/attention/{kind}"
        attended = ledger.add(f"{path}/keys", attention.attended_keys, keys=c["seq_len"], window=window)
        if np.any(flash > 0):
            fused = products.add_flash_attention(ledger, f"{path}/flash", attended=attended, **common)
            backward = ledger.add(
                f"{back}/flash",
                attention.flash_attention_backward_time,
                attention_forward=fused,
                attention_backward_ratio=c["backward_attention_ratio"],
            )
        if np.any(flash == 0):
            half = {"gemm_efficiency": c[f"{HALF}gemm_efficiency"], **common}
            half.pop("kv_heads"), half.pop("attention_element_bytes")
            half["keys"] = np.minimum(c["seq_len"], window)
            unfused = ledger.add(
                f"{path}/unfused",
                attention.unfused_attention_time,
                products=2.0,
                score_traffic=c["score_traffic_forward"],
                **half,
            )
            unfused_back = ledger.add(
                f"{back}/unfused",
                attention.unfused_attention_time,
                products=4.0,
                score_traffic=c["score_traffic_backward"],
                **half,
            )
        if np.all(flash > 0):
            one, one_back = fused, backward
        elif np.all(flash == 0):
            one, one_back = unfused, unfused_back
        else:
            cases = {1: f"{path}/flash", 0: f"{path}/unfused"}
            one = ledger.choose(f"{path}/kernel", flash, cases)
            one_back = ledger.choose(f"{back}/kernel", flash, {k: p.replace(path, back) for k, p in cases.items()})
        ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)
        ledger.add(back, layer.mean_over_layers, time=one_back, kind_layers=kind_layers)


def _elementwise(ledger: Ledger) -> None:
    c = ledger.columns
    width = {"hidden": c["hidden"] * c["blocks"], "qkv": c["mixer_in"]}
    ledger.add("layer/traffic/fused", layer.elementwise_traffic, **width)
    ledger.add(
        "layer/traffic/passes",
        layer.repeated_message,
        message=ledger["layer/traffic/fused"],
        times=c["elementwise_factor"],
    )
    ledger.add("layer/traffic/unfused", layer.unfused_traffic, **width)
    ledger.total("layer/traffic/elementwise", "layer/traffic/passes", "layer/traffic/unfused")
    forward = ledger.add(
        "layer/forward/elementwise",
        roofline.memory_bound_time,
        traffic=ledger["layer/traffic/elementwise"],
        kernel_launch_seconds=c["elementwise_launch"],
    )
    ledger.add("layer/backward/elementwise", layer.scaled_time, time=forward, factor=c["backward_elementwise_ratio"])
    if np.any(c["low_precision"] > 0):
        traffic = ledger.add("layer/traffic/casts", layer.cast_traffic, attention_columns=c["mixer_out"])
        casts = ledger.add(
            "layer/forward/casts",
            roofline.memory_bound_time,
            traffic=traffic * c["cast_share"],
            kernel_launch_seconds=0.0,
        )
        ledger.add("layer/backward/casts", layer.scaled_time, time=casts, factor=c["backward_cast_ratio"])
    if np.any(c["dequantises"] > 0):
        weights = ledger.add("layer/parameters/sharded", parameters.layer_parameters_dense)
        for direction in ("forward", "backward"):
            ledger.add(
                f"layer/{direction}/dequantise",
                layer.scaled_time,
                time=c["dequantise_seconds"] * c["dequantises"],
                factor=weights,
            )


def _head(ledger: Ledger) -> None:
    c = ledger.columns
    half = {name[len(HALF) :]: value for name, value in c.items() if name.startswith(HALF)}
    m, n, k = c["tokens"], _positive(c["vocab"] / c["tp"]), c["hidden"]
    shapes = {"forward": (m, n, k), "activation-gradient": (m, k, n), "weight-gradient": (n, k, m)}
    for direction, (rows, columns, depth) in shapes.items():
        products.add_gemm(ledger, f"head/{direction}", m=rows, n=columns, k=depth, **half)
    ledger.add(
        "head/loss",
        roofline.memory_bound_time,
        traffic=c["tokens"] * c["vocab"] / c["tp"] * c["logit_traffic"],
        kernel_launch_seconds=c["elementwise_launch"],
    )
    ledger.add(
        "head/weight-gradient-trained",
        layer.scaled_time,
        time=ledger["head/weight-gradient"],
        factor=np.maximum(c["trains_base"], c["trains_embeddings"]),
    )
    work = ledger.total(
        "head/work", "head/forward", "head/activation-gradient", "head/weight-gradient-trained", "head/loss"
    )
    ledger.add("head/time", layer.scaled_time, time=work, factor=1.0 * (c["vocab"] > 0))  # encoders may have none


def _below(ledger: Ledger, prefix: str) -> list[str]:
    """Stored terms one level below a path."""
    depth = prefix.count("/") + 1
    return [p for p in ledger.entries if p.startswith(f"{prefix}/") and p.count("/") == depth]


def _sums(ledger: Ledger) -> None:
    c = ledger.columns
    for direction in ("forward", "activation-gradient", "weight-gradient"):
        ledger.total(f"layer/{direction}/gemm", *_below(ledger, f"layer/{direction}/gemm"))
    for direction in ("forward", "backward"):
        ledger.total(f"layer/{direction}/attention", *_below(ledger, f"layer/{direction}/attention"))
    ledger.add(
        "layer/weight-gradient/trained",
        layer.scaled_time,
        time=ledger["layer/weight-gradient/gemm"],
        factor=c["trains_base"],
    )
    ledger.total("layer/forward/device", *_below(ledger, "layer/forward"))
    ledger.total(
        "layer/backward/device",
        "layer/activation-gradient/gemm",
        "layer/weight-gradient/trained",
        *_below(ledger, "layer/backward"),
    )
    operations = ledger.add("layer/host/operations", layer.launched_operations, expert_ratio=c["expert_host_ratio"])
    ledger.add("layer/host/forward", layer.host_time, operations=operations)
    ledger.add("layer/host/backward", layer.host_time, operations=2 * operations)
    for direction in ("forward", "backward"):
        ledger.maximum(f"layer/{direction}/busy", f"layer/{direction}/device", f"layer/host/{direction}")
