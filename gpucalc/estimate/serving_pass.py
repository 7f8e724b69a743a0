"""One forward pass of a serving engine: products, attention, element-wise kernels and communication of a layer.

A pass carries decode tokens, prompt tokens, or both; all three kinds go through these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.core.ledger import Ledger
from gpucalc.estimate import collectives, products
from gpucalc.estimate.communication import place
from gpucalc.formulas import expert_exchange, experts, layer, roofline, serving

HALF_BYTES = 2.0  # an activation on the wire and between kernels
TOKEN = {
    "dispatch": {"element_size": 1.0, "scale_size": 4.0, "scale_group": 128.0},
    "combine": {"element_size": 2.0, "scale_size": 0.0, "scale_group": 128.0},
}


@dataclass(frozen=True)
class Pass:
    """What one pass of an attention rank carries."""

    name: str
    tokens: Any  # rows of the products
    group_tokens: Any  # tokens that meet at the experts, over all attention ranks
    sampled: Any  # rows of the head
    sequences: Any = None  # decoding sequences; None without
    prompts: Any = None  # prompts; None without
    launch: Any = 1.0  # share of a kernel's isolated launch cost that remains
    exchange: str = "decode"


def add_pass(ledger: Ledger, p: Pass) -> None:
    """Store `NAME/time`: the time of the pass through all layers and the head, without the engine's own overhead."""
    c = ledger.columns
    _mixers(ledger, p)
    _feed_forward(ledger, p)
    if p.sequences is not None:
        _decode_attention(ledger, p)
    if p.prompts is not None:
        _prefill_attention(ledger, p)
    _elementwise(ledger, p)
    _communication(ledger, p)
    kinds = [k for k in ("gemm", "attention", "elementwise", "communication") if _below(ledger, f"{p.name}/layer/{k}")]
    for kind in kinds:
        ledger.total(f"{p.name}/layer/{kind}", *_below(ledger, f"{p.name}/layer/{kind}"))
    one = ledger.total(f"{p.name}/layer", *[f"{p.name}/layer/{kind}" for kind in kinds])
    ledger.add(f"{p.name}/layers", layer.scaled_time, time=one, factor=c["layers"])
    _product(ledger, p, f"{p.name}/head", "head", p.sampled, c["vocab"] / c["tp"], c["hidden"])
    crosses = 1.0 * (c["tp"] * c["pp"] > c["domain"])
    hop = collectives.add_send(
        ledger,
        f"{p.name}/hop",
        message=HALF_BYTES * p.tokens * c["hidden"],
        crosses=crosses,
    )
    ledger.add(f"{p.name}/hops", layer.scaled_time, time=hop, factor=c["pp"] - 1)
    ledger.total(f"{p.name}/time", f"{p.name}/layers", f"{p.name}/head", f"{p.name}/hops")


def _below(ledger: Ledger, prefix: str) -> list[str]:
    depth = prefix.count("/") + 1
    return [path for path in ledger.entries if path.startswith(f"{prefix}/") and path.count("/") == depth]


def _positive(value: Any) -> Any:
    return np.maximum(value, 1.0)


def _kernel(ledger: Ledger, p: Pass, part: str) -> dict[str, Any]:
    """Constants of the products of one part, as `gemm_time` names them."""
    c = ledger.columns
    names = (*_constant_names(), "peak", "element_bytes", "output_bytes")
    found = {name: c[f"{part}_{name}"] for name in names}
    expanded = c[f"{part}_expanded"] > 0
    slower = np.where(expanded, c["expanded_efficiency"], 1.0) * np.where(c[f"{part}_fp4"] > 0, c["fp4_factor"], 1.0)
    found["gemm_efficiency"] = found["gemm_efficiency"] * slower * c["product_efficiency"]
    read = np.where(expanded, c["expanded_memory_efficiency"], 1.0)
    found["gemm_memory_efficiency"] = found["gemm_memory_efficiency"] * read
    found["gemm_launch_seconds"] = found["gemm_launch_seconds"] * p.launch
    return found


def _constant_names() -> tuple[str, ...]:
    """Calibrated constants of a product."""
    return (
        "gemm_efficiency",
        "gemm_wave_exponent",
        "gemm_k_half",
        "gemm_l2_miss_penalty",
        "gemm_memory_efficiency",
        "gemm_l2_read_ratio",
        "gemm_launch_seconds",
    )


def _product(ledger: Ledger, p: Pass, path: str, part: str, m: Any, n: Any, k: Any) -> Any:
    sizes = {"m": _positive(m), "n": _positive(n), "k": _positive(k)}
    return products.add_gemm(ledger, path, **sizes, **_kernel(ledger, p, part))


def _projection(ledger: Ledger, p: Pass, name: str, part: str, n: Any, k: Any, kind_layers: Any) -> None:
    path = f"{p.name}/layer/gemm/{name}"
    one = _product(ledger, p, f"{path}/one", part, p.tokens, n, k)
    ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)


def _mixers(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    hidden, tp = c["hidden"], c["tp"]
    latent, plain = c["latent_layers"], c["attention_layers"] - c["latent_layers"]
    if np.any(plain > 0):
        _projection(ledger, p, "qkv", "attention", c["qkv"], hidden, plain)
    if np.any(latent > 0):
        rank_q, rank_kv = c["q_lora_rank"], c["kv_lora_rank"]
        query = c["heads"] * c["head_dim"] / tp
        key_value = c["heads"] * (c["head_dim"] - c["qk_rope_head_dim"] + c["v_head_dim"]) / tp
        down = rank_q + rank_kv + c["qk_rope_head_dim"]  # one product for both latents, not shared over tp
        _projection(ledger, p, "latents", "attention", down, hidden, latent)
        _projection(ledger, p, "query", "attention", query, np.where(rank_q > 0, rank_q, hidden), latent)
        # While decoding it is absorbed into query and output; weights and work are the same.
        _projection(ledger, p, "key_value", "attention", key_value, rank_kv, latent)
        if np.any(c["index_heads"] > 0):
            width = c["index_heads"] * c["index_dim"]
            _projection(ledger, p, "indexer", "attention", width, rank_q, latent * (c["index_heads"] > 0))
    if np.any(c["attention_layers"] > 0):
        _projection(ledger, p, "out", "attention", hidden, c["attention_columns"], c["attention_layers"])
    if np.any(c["linear_layers"] > 0):
        width = c["linear_mixer_parameters"] / hidden / tp
        _projection(ledger, p, "linear_mixer", "attention", width, hidden, c["linear_layers"])


def _feed_forward(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    hidden, tp = c["hidden"], c["tp"]
    if np.any(c["dense_layers"] > 0):
        width = c["ffn_hidden"] / tp
        _projection(ledger, p, "up", "mlp", (1 + c["gated"]) * width, hidden, c["dense_layers"])
        _projection(ledger, p, "down", "mlp", hidden, width, c["dense_layers"])
    if not np.any(c["moe_layers"] > 0):
        return
    shared = c["shared_expert_ffn_hidden"] / tp
    if np.any(shared > 0):
        holders = c["moe_layers"] * (c["shared_expert_ffn_hidden"] > 0)
        _projection(ledger, p, "shared_up", "mlp", (1 + c["gated"]) * shared, hidden, holders)
        _projection(ledger, p, "shared_down", "mlp", hidden, shared, holders)
    _projection(ledger, p, "router", "head", c["experts"], hidden, c["moe_layers"])
    _experts(ledger, p)


def _experts(ledger: Ledger, p: Pass) -> None:
    """Grouped products of the experts of the fullest rank."""
    c = ledger.columns
    path = f"{p.name}/experts"
    counts = {"experts": _positive(c["experts"]), "experts_per_token": _positive(c["experts_per_token"])}
    visited = ledger.add(f"{path}/visited", experts.experts_visited, tokens=p.group_tokens, **counts)
    skew = np.where(c["ep"] > 1, c["expert_load_factor"], 1.0)
    here = ledger.keep(f"{path}/visited-here", _positive(visited / c["ep"]))
    routed = ledger.keep(f"{path}/routed", _positive(p.group_tokens * c["experts_per_token"] / c["ep"] * skew))
    width = c["expert_ffn_hidden"] / c["expert_tp"]
    kernel = _kernel(ledger, p, "expert")
    for unused in ("gemm_wave_exponent", "gemm_k_half", "gemm_l2_miss_penalty", "gemm_l2_read_ratio"):
        kernel.pop(unused)
    shapes = {"expert_up": ((1 + c["gated"]) * width, c["hidden"]), "expert_down": (c["hidden"], width)}
    for name, (n, k) in shapes.items():
        one = ledger.add(
            f"{p.name}/layer/gemm/{name}/one",
            experts.grouped_gemm_time,
            routed=routed,
            visited=here,
            n=_positive(n),
            k=_positive(k),
            **kernel,
        )
        ledger.add(f"{p.name}/layer/gemm/{name}", layer.mean_over_layers, time=one, kind_layers=c["moe_layers"])


def _latent_shape(ledger: Ledger) -> dict[str, Any]:
    """Heads of a rank as the decode kernel sees them; a latent is one key-value head read once for both."""
    c = ledger.columns
    latent = c["latent_layers"] > 0
    read = c["kv_lora_rank"] + c["qk_rope_head_dim"]
    worked = c["kv_lora_rank"] + c["qk_rope_head_dim"] / 2
    return {
        "heads": c["heads"] / c["tp"],
        "kv_heads": np.where(latent, read / (2 * _positive(worked)), np.ceil(c["kv_heads"] / c["tp"])),
        "head_dim": np.where(latent, _positive(worked), (c["head_dim"] + c["v_head_dim"]) / 2),
    }


def _kinds(ledger: Ledger, context: Any) -> dict[str, tuple[Any, Any]]:
    """Kinds of attention layers: how many, and how many keys a query may reach."""
    c = ledger.columns
    reach = np.where(c["sparse_keys"] > 0, np.minimum(c["sparse_keys"], context), context)
    kinds = {"full": (c["attention_layers"] - c["window_layers"], reach)}
    if np.any(c["window_layers"] > 0):
        kinds["window"] = (c["window_layers"], np.minimum(context, _positive(c["window"])))
    return kinds


def _decode_attention(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    shape = _latent_shape(ledger)
    shape["heads"] = shape["heads"] * c["verified"]
    for kind, (kind_layers, reach) in _kinds(ledger, c["context"]).items():
        path = f"{p.name}/layer/attention/decode-{kind}"
        one = products.add_decode_attention(
            ledger,
            f"{path}/one",
            batch=p.sequences,
            context=_positive(reach),
            peak=c["half_peak"],
            attention_element_bytes=HALF_BYTES,
            decode_launch_seconds=c["decode_launch_seconds"] * c["attention_launch_share"],
            **shape,
        )
        ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)
    if np.any(c["index_heads"] > 0):  # every key is scored in 8 bit before the best are chosen
        traffic = p.sequences * c["context"] * c["index_dim"]
        _moved(ledger, p, "attention/indexer", traffic, c["attention_layers"] * (c["index_heads"] > 0))
    if np.any(c["linear_layers"] > 0):
        traffic = 2 * p.sequences * c["state_bytes_per_sequence"] / c["tp"] / _positive(c["linear_layers"])
        _moved(ledger, p, "attention/state", traffic, c["linear_layers"])


def _moved(ledger: Ledger, p: Pass, name: str, traffic: Any, kind_layers: Any) -> None:
    path = f"{p.name}/layer/{name}"
    one = ledger.add(
        f"{path}/one",
        roofline.memory_bound_time,
        traffic=traffic,
        kernel_launch_seconds=_launch(ledger, p),
    )
    ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)


def _launch(ledger: Ledger, p: Pass) -> Any:
    """Launch of a memory-bound kernel in this pass."""
    return ledger.columns["kernel_launch_seconds"] * p.launch


def _prefill_attention(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    latent = c["latent_layers"] > 0
    for kind, (kind_layers, reach) in _kinds(ledger, c["isl"]).items():
        path = f"{p.name}/layer/attention/prefill-{kind}"
        attended = ledger.add(
            f"{path}/keys", serving.prefill_attended_keys, prompt=c["isl"], cached=c["cached_prefix"], window=reach
        )
        one = products.add_flash_attention(
            ledger,
            f"{path}/one",
            batch=p.prompts,
            queries=c["chunk"],
            keys=c["isl"],
            attended=_positive(attended),
            heads=c["heads"] / c["tp"],
            kv_heads=np.where(latent, c["heads"] / c["tp"], np.ceil(c["kv_heads"] / c["tp"])),
            head_dim=(c["head_dim"] + c["v_head_dim"]) / 2,
            peak=c["half_peak"],
            attention_element_bytes=HALF_BYTES,
        )
        ledger.add(path, layer.mean_over_layers, time=one, kind_layers=kind_layers)


def _elementwise(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    ledger.add(f"{p.name}/traffic", layer.elementwise_traffic, tokens=p.tokens, sequence_ranks=1.0, hidden=c["hidden"])
    parts = [f"{p.name}/traffic"]
    if np.any(c["moe_layers"] > 0):  # each token is copied to its experts and added up again
        copies = p.group_tokens * c["experts_per_token"] / c["ep"] * c["moe_layers"] / c["layers"]
        ledger.add(f"{p.name}/copied", experts.copied_rows, copies=copies)
        parts.append(f"{p.name}/copied")
    moved = ledger.total(f"{p.name}/moved", *parts)
    ledger.add(f"{p.name}/layer/elementwise/traffic", roofline.traffic_time, traffic=moved)
    ledger.add(
        f"{p.name}/layer/elementwise/kernels",
        roofline.launch_time,
        kernels=c["small_kernels"],
        kernel_launch_seconds=c["kernel_seconds"],
    )


def _communication(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    tp = c["tp"]
    path = f"{p.name}/layer/communication"
    group = ledger.columns["tp_group"] if "tp_group" in ledger.columns else place(ledger, "tp", tp, 1.0)
    if "tp_group" not in ledger.columns:
        ledger.columns.define("tp_group", group)
    message = HALF_BYTES * p.tokens * c["hidden"]
    alone = collectives.add_all_reduce(ledger, f"{p.name}/reduce/library", message=message, **group)
    one_shot = ledger.add(
        f"{p.name}/reduce/one-shot",
        serving.one_shot_reduce_time,
        message=message,
        ranks=tp,
        link_bandwidth=group["link_bandwidth"],
    )
    crosses = tp > c["domain"]
    best = ledger.keep(f"{p.name}/reduce/time", np.where(crosses, alone, np.minimum(alone, one_shot)))
    # Experts spread over attention ranks exchange tokens instead of reducing after them.
    exchanging = (c["attention_dp"] > 1) & (c["moe_layers"] > 0)
    reduces = ledger.keep(f"{p.name}/reduce/count", 2.0 - exchanging * c["moe_layers"] / c["layers"])
    ledger.add(f"{path}/reduce", layer.scaled_time, time=best, factor=reduces)
    if np.any(exchanging):
        _exchange(ledger, p, path, exchanging)


def _exchange(ledger: Ledger, p: Pass, path: str, exchanging: Any) -> None:
    """Tokens to their experts and back, between attention ranks that share one set of experts."""
    c = ledger.columns
    ranks = c["tp"] * c["attention_dp"]
    _gathers(ledger, p, ranks)
    _kernels(ledger, p, ranks)
    cases = {0: f"{p.name}/exchange/gathers", 1: f"{p.name}/exchange/kernels"}
    both = ledger.choose(f"{p.name}/exchange", c["exchange_kernels"], cases)
    ledger.add(f"{path}/exchange", layer.mean_over_layers, time=both, kind_layers=c["moe_layers"] * exchanging)


def _gathers(ledger: Ledger, p: Pass, ranks: Any) -> None:
    """Every rank gets all tokens before the experts; their results are added up and scattered after them."""
    c = ledger.columns
    group = place(ledger, f"{p.name}-experts", ranks, 1.0)
    message = HALF_BYTES * _positive(p.group_tokens) * c["hidden"]
    parts = []
    for name in ("gather", "scatter"):
        parts.append(f"{p.name}/{name}/time")
        start = {"collective_startup": c["reduce_startup"] + c["gather_startup"]}
        collectives.add_all_gather(ledger, parts[-1], message=message, **start, **group)
    ledger.total(f"{p.name}/exchange/gathers", *parts)


def _kernels(ledger: Ledger, p: Pass, ranks: Any) -> None:
    """Each token is sent to the ranks of its experts by kernels made for it."""
    c = ledger.columns
    domains = _positive(ranks / c["domain"])
    local = ranks / domains
    parts = []
    for direction in ("dispatch", "combine"):
        prefix = f"{p.exchange}_{direction}_"
        constants = {n.removeprefix(prefix): v for n, v in c.items() if n.startswith(prefix)}
        size = ledger.add(f"{p.name}/{direction}/token", expert_exchange.token_bytes, **TOKEN[direction])
        per_token = _positive(c["experts_per_token"])
        where = {"links": (ranks, f"{p.name}/{direction}/copies"), "network": (domains, f"{p.name}/{direction}/remote")}
        copies, remote = (
            ledger.add(at, expert_exchange.distinct_copies, places=places, experts_per_token=per_token)
            for places, at in where.values()
        )
        parts.append(f"{p.name}/{direction}/time")
        ledger.add(
            parts[-1],
            expert_exchange.expert_exchange_time,
            tokens=p.tokens / c["tp"],
            token_size=size,
            domains=domains,
            doublings=np.log2(domains if p.exchange == "prefill" else ranks / local),
            link_copies=np.minimum(copies, np.maximum(local - 1, 0.0)),
            network_copies=remote,
            link_bandwidth=c["link_bandwidth"],
            network_bandwidth=c["network_bandwidth"],
            **constants,
        )
    ledger.total(f"{p.name}/exchange/kernels", *parts)


def define_shapes(ledger: Ledger) -> None:
    """Define the widths of a rank that all passes read."""
    ledger.define("qkv", layer.qkv_width)
    ledger.define("attention_columns", layer.attention_width)
    ledger.define("feed_forward", layer.feed_forward_width)
    c = ledger.columns
    c.define("expert_tp", c["tp"] * c["attention_dp"] / c["ep"])
    sparse = c["attention_layers"] * (c["index_heads"] > 0)
    quantised = 1.0 * ((c["mlp_element_bytes"] < HALF_BYTES) & (c["mlp_expanded"] == 0))
    ledger.define("small_kernels", serving.small_kernels, sparse_layers=sparse, quantised=quantised)
