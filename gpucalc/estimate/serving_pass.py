"""One forward pass of a serving engine: products, attention, element-wise kernels and communication of a layer.

A pass carries decode tokens, prompt tokens, or both; all three kinds go through these functions. Sizes are
references to terms and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger, any_row
from gpucalc.core.units import Unit
from gpucalc.estimate import products, shapes
from gpucalc.estimate.collectives import ADJACENT, BF16_TOKEN, FP8_TOKEN, add_all_gather, add_all_reduce, add_send
from gpucalc.estimate.communication import place
from gpucalc.formulas import attention, expert_exchange, experts, layer, roofline, serving
from gpucalc.formulas import serving_kernels as kernels
from gpucalc.formulas import shapes as sizes
from gpucalc.formulas.topology import crosses_domains

ONE = Constant("ONE", 1.0, "prompt, or row of the head, of a pass of its own", "definition")
UNDIVIDED = Constant("UNDIVIDED", 1.0, "ranks that share a token between products in an engine", "definition")
HALF = Constant("HALF_BYTES", 2.0, "bytes of an activation between kernels", "definition", unit=Unit("B", byte=1))
PARTS = ("attention", "mlp", "expert", "head")  # of a model, each with a number format
TOKEN = {"dispatch": FP8_TOKEN, "combine": BF16_TOKEN}
Reference = str | Constant
Group = Mapping[str, Any]
_CONSTANTS = ("gemm_wave_exponent", "gemm_k_half", "gemm_l2_miss_penalty", "gemm_l2_read_ratio")
_FACTS = (*_CONSTANTS, "peak", "element_bytes", "output_bytes")


@dataclass(frozen=True)
class Pass:
    """What one pass of an attention rank carries; sizes are references.

    launch: the share of a kernel's isolated launch cost that remains, a column; empty for all of it.
    """

    name: str
    tokens: str  # rows of the products
    group_tokens: str  # tokens that meet at the experts, over all attention ranks
    sampled: Reference  # rows of the head
    sequences: str = ""  # decoding sequences; empty without
    prompts: Reference = ""  # prompts; empty without
    launch: str = ""
    exchange: str = "decode"


@dataclass(frozen=True)
class Layer:
    """What all passes share of a layer: its products, and how its groups of ranks lie on the domains."""

    products: tuple[shapes.Product, ...]
    head: str  # columns of the head on one rank
    tensor_group: Group
    expert_group: Group


def add_layer(ledger: Ledger) -> Layer:
    """Define the widths of a rank, the speed of its products by format, and the groups that exchange."""
    ledger.define("qkv", layer.qkv_width)
    ledger.define("attention_columns", layer.attention_width)
    ledger.define("feed_forward", layer.feed_forward_width)
    ledger.define("expert_tp", kernels.expert_tensor_ranks)
    ledger.add("shape/full-layers", sizes.other_layers, kind_layers="attention_layers", others="window_layers")
    ledger.add("shape/sparse-layers", sizes.layers_with, kind_layers="attention_layers", size="index_heads")
    ledger.add("shape/quantised", kernels.quantised_products)
    ledger.define(
        "small_kernels", serving.small_kernels, sparse_layers="shape/sparse-layers", quantised="shape/quantised"
    )
    _formats(ledger)
    _attention_shapes(ledger)
    ledger.add("shape/exchanging-layers", kernels.exchanging_layers)
    ledger.define("load_factor", kernels.load_factor)
    exchanges = any_row(ledger["shape/exchanging-layers"] > 0)
    if exchanges:
        ledger.product("shape/exchange-ranks", "tp", "attention_dp")
        ledger.add("shape/dispatches", kernels.dispatches)
    found = [*_mixer_products(ledger), *shapes.dense_products(ledger)]
    # Shared experts and the router come before the routed experts.
    routed = shapes.expert_products(ledger, "expert_tp")
    found += sorted(routed, key=lambda product: ("mlp", "head", "expert").index(product.part))
    return Layer(
        tuple(found),
        shapes.head_width(ledger),
        place(ledger, "tp", "tp", ADJACENT),
        place(ledger, "experts", "shape/exchange-ranks", ADJACENT) if exchanges else {},
    )


def _formats(ledger: Ledger) -> None:
    """Efficiencies of products in the number format of each part of the model."""
    for part in PARTS:
        of_part = {"expanded": f"{part}_expanded", "fp4": f"{part}_fp4"}
        ledger.add(
            f"kernel/{part}/efficiency",
            kernels.format_efficiency,
            gemm_efficiency=f"{part}_gemm_efficiency",
            **of_part,
        )
        ledger.add(
            f"kernel/{part}/memory-efficiency",
            kernels.format_memory_efficiency,
            gemm_memory_efficiency=f"{part}_gemm_memory_efficiency",
            expanded=of_part["expanded"],
        )
    ledger.product("kernel/expert/prompt-efficiency", "kernel/expert/efficiency", "expert_prompt_efficiency")


def _mixer_products(ledger: Ledger) -> list[shapes.Product]:
    """Products of attention; a selector of keys has its own, before the output."""
    found = shapes.mixer_products(ledger, joined_latents=True)
    c = ledger.columns
    if not any_row((c["latent_layers"] > 0) & (c["index_heads"] > 0)):
        return found
    ledger.add("shape/index", kernels.index_width)
    ledger.add("shape/index-layers", sizes.layers_with, kind_layers="latent_layers", size="index_heads")
    width = shapes.rows_of(ledger, "shape/index/present", "shape/index")
    depth = shapes.rows_of(ledger, "shape/index-depth", "q_lora_rank")
    indexer = shapes.Product("indexer", "attention", width, depth, "shape/index-layers")
    place_of_output = next((i for i, product in enumerate(found) if product.name == "out"), len(found))
    return [*found[:place_of_output], indexer, *found[place_of_output:]]


def _attention_shapes(ledger: Ledger) -> None:
    """Heads of a rank as the kernels of decoding and of prefill see them."""
    ledger.add("shape/heads", sizes.rank_share, size="heads", ranks="tp")
    ledger.product("shape/verified-heads", "shape/heads", "verified")
    ledger.add("shape/decode-kv-heads", kernels.decode_kv_heads)
    ledger.add("shape/decode-head-dim", kernels.decode_head_dim)
    ledger.add("shape/prefill-kv-heads", kernels.prefill_kv_heads)
    ledger.add("shape/head-dim", sizes.mean_head_dim)
    ledger.product("kernel/decode-launch", "decode_launch_seconds", "attention_launch_share")


def add_pass(ledger: Ledger, p: Pass, parts: Layer) -> None:
    """Store `NAME/time`: the time of the pass through all layers and the head, without the engine's own overhead."""
    _launches(ledger, p)
    _products(ledger, p, parts)
    if p.sequences:
        _decode_attention(ledger, p)
    if p.prompts:
        _prefill_attention(ledger, p)
    _elementwise(ledger, p)
    ledger.add(f"{p.name}/message", sizes.activation_message, tokens=p.tokens)
    _communication(ledger, p, parts)
    kinds = [k for k in ("gemm", "attention", "elementwise", "communication") if _below(ledger, f"{p.name}/layer/{k}")]
    for kind in kinds:
        ledger.total(f"{p.name}/layer/{kind}", *_below(ledger, f"{p.name}/layer/{kind}"))
    ledger.total(f"{p.name}/layer", *[f"{p.name}/layer/{kind}" for kind in kinds])
    ledger.product(f"{p.name}/layers", f"{p.name}/layer", "layers")
    rows = shapes.rows_of(ledger, f"{p.name}/head/rows", p.sampled) if isinstance(p.sampled, str) else p.sampled
    head = {"m": rows, "n": parts.head, "k": "hidden"}
    products.add_gemm(ledger, f"{p.name}/head", **head, **_kernel(p, "head"))
    crosses = f"{p.name}/hop/crosses"
    ledger.add(crosses, crosses_domains, ranks="pp", stride="tp")
    add_send(ledger, f"{p.name}/hop", crosses, stride="tp", message=f"{p.name}/message")
    ledger.add(f"{p.name}/hops", kernels.stage_hops_time, hop=f"{p.name}/hop")
    ledger.total(f"{p.name}/time", f"{p.name}/layers", f"{p.name}/head", f"{p.name}/hops")


def _below(ledger: Ledger, prefix: str) -> list[str]:
    depth = prefix.count("/") + 1
    return [path for path in ledger.entries if path.startswith(f"{prefix}/") and path.count("/") == depth]


def _launches(ledger: Ledger, p: Pass) -> None:
    """Launches of the kernels of this pass, where graphs hide a part of them."""
    if p.launch:
        for part in PARTS:
            ledger.product(f"{p.name}/kernel/{part}-launch", f"{part}_gemm_launch_seconds", p.launch)
        ledger.product(f"{p.name}/kernel/launch", "kernel_launch_seconds", p.launch)


def _launch(p: Pass) -> str:
    """Launch of a memory-bound kernel in this pass."""
    return f"{p.name}/kernel/launch" if p.launch else "kernel_launch_seconds"


def _kernel(p: Pass, part: str) -> dict[str, str]:
    """Constants of the products of one part of the model, as their formulas name them."""
    prompts = part == "expert" and p.exchange == "prefill"
    return {
        **{name: f"{part}_{name}" for name in _FACTS},
        "gemm_efficiency": f"kernel/{part}/{'prompt-' if prompts else ''}efficiency",
        "gemm_memory_efficiency": f"kernel/{part}/memory-efficiency",
        "gemm_launch_seconds": f"{p.name}/kernel/{part}-launch" if p.launch else f"{part}_gemm_launch_seconds",
    }


def _products(ledger: Ledger, p: Pass, parts: Layer) -> None:
    """Store the matrix products of the average layer."""
    rows = shapes.rows_of(ledger, f"{p.name}/rows", p.tokens)
    if any_row(ledger.columns["moe_layers"] > 0):
        _experts_reached(ledger, p)
    for product in parts.products:
        path = f"{p.name}/layer/gemm/{product.name}"
        size = {"n": product.n, "k": product.k, **_kernel(p, product.part)}
        if product.part == "expert":
            reached = {"routed": f"{p.name}/experts/routed", "visited": f"{p.name}/experts/visited-here"}
            products.add_grouped_gemm(ledger, f"{path}/one", **reached, **size)
        else:
            products.add_gemm(ledger, f"{path}/one", m=rows, **size)
        ledger.add(path, layer.mean_over_layers, time=f"{path}/one", kind_layers=product.layers)


def _experts_reached(ledger: Ledger, p: Pass) -> None:
    """Store how many experts the pass visits, and the rows of the fullest rank."""
    path = f"{p.name}/experts"
    counts = {name: present(ledger, name) for name in ("experts", "experts_per_token")}
    ledger.add(f"{path}/visited", experts.experts_visited, tokens=p.group_tokens, **counts)
    ledger.add(f"{path}/visited-here", kernels.experts_visited_here, visited=f"{path}/visited")
    ledger.add(f"{path}/routed", kernels.routed_rows, group_tokens=p.group_tokens)


def present(ledger: Ledger, name: str) -> str:
    """A reference to a column that is at least 1, where some row lacks it."""
    path = f"shape/{name}/present"
    return path if path in ledger else shapes.rows_of(ledger, path, name)


def _kinds(ledger: Ledger, path: str, context: str) -> dict[str, tuple[str, str]]:
    """Kinds of attention layers: how many, and how many keys a query may reach."""
    ledger.add(f"{path}/reached", kernels.selected_keys, context=context)
    kinds = {"full": ("shape/full-layers", shapes.rows_of(ledger, f"{path}/reached/present", f"{path}/reached"))}
    if any_row(ledger.columns["window_layers"] > 0):
        reached = f"{path}/reached-in-window"
        ledger.add(reached, attention.reached_keys, keys=context, window=present(ledger, "window"))
        kinds["window"] = ("window_layers", shapes.rows_of(ledger, f"{reached}/present", reached))
    return kinds


def _decode_attention(ledger: Ledger, p: Pass) -> None:
    c = ledger.columns
    for kind, (kind_layers, reach) in _kinds(ledger, f"{p.name}/decode", "context").items():
        path = f"{p.name}/layer/attention/decode-{kind}"
        products.add_decode_attention(
            ledger,
            f"{path}/one",
            batch=p.sequences,
            context=reach,
            heads="shape/verified-heads",
            kv_heads="shape/decode-kv-heads",
            head_dim="shape/decode-head-dim",
            peak="half_peak",
            attention_element_bytes=HALF,
            decode_launch_seconds="kernel/decode-launch",
        )
        ledger.add(path, layer.mean_over_layers, time=f"{path}/one", kind_layers=kind_layers)
    if any_row(c["index_heads"] > 0):  # every key is scored in 8 bit before the best are chosen
        ledger.add(f"{p.name}/traffic/indexer", kernels.index_traffic, sequences=p.sequences)
        _moved(ledger, p, "indexer", "shape/sparse-layers")
    if any_row(c["linear_layers"] > 0):
        ledger.add(f"{p.name}/traffic/state", kernels.state_traffic, sequences=p.sequences)
        _moved(ledger, p, "state", "linear_layers")


def _moved(ledger: Ledger, p: Pass, name: str, kind_layers: str) -> None:
    """Store the time of a kernel of attention that only moves `traffic/NAME`."""
    path = f"{p.name}/layer/attention/{name}"
    ledger.add(
        f"{path}/one",
        roofline.memory_bound_time,
        traffic=f"{p.name}/traffic/{name}",
        kernel_launch_seconds=_launch(p),
    )
    ledger.add(path, layer.mean_over_layers, time=f"{path}/one", kind_layers=kind_layers)


def _prefill_attention(ledger: Ledger, p: Pass) -> None:
    for kind, (kind_layers, reach) in _kinds(ledger, f"{p.name}/prefill", "isl").items():
        path = f"{p.name}/layer/attention/prefill-{kind}"
        ledger.add(f"{path}/keys", serving.prefill_attended_keys, prompt="isl", cached="cached_prefix", window=reach)
        products.add_flash_attention(
            ledger,
            f"{path}/one",
            batch=p.prompts,
            queries="chunk",
            keys="isl",
            attended=shapes.rows_of(ledger, f"{path}/keys/present", f"{path}/keys"),
            heads="shape/heads",
            kv_heads="shape/prefill-kv-heads",
            head_dim="shape/head-dim",
            peak="half_peak",
            attention_element_bytes=HALF,
        )
        ledger.add(path, layer.mean_over_layers, time=f"{path}/one", kind_layers=kind_layers)


def _elementwise(ledger: Ledger, p: Pass) -> None:
    path = f"{p.name}/moved"
    ledger.add(f"{path}/activations", layer.elementwise_traffic, tokens=p.tokens, sequence_ranks=UNDIVIDED)
    parts = [f"{path}/activations"]
    if any_row(ledger.columns["moe_layers"] > 0):  # each token is copied to its experts and added up again
        ledger.add(f"{path}/copies", kernels.copied_tokens, group_tokens=p.group_tokens)
        ledger.add(f"{path}/copied", experts.copied_rows, copies=f"{path}/copies")
        parts.append(f"{path}/copied")
    ledger.total(path, *parts)
    ledger.add(f"{p.name}/layer/elementwise/traffic", roofline.traffic_time, traffic=path)
    ledger.add(
        f"{p.name}/layer/elementwise/kernels",
        roofline.launch_time,
        kernels="small_kernels",
        kernel_launch_seconds="kernel_seconds",
    )


def _communication(ledger: Ledger, p: Pass, parts: Layer) -> None:
    path, message = f"{p.name}/layer/communication", f"{p.name}/message"
    add_all_reduce(ledger, f"{p.name}/reduce/library", message=message, **parts.tensor_group)
    ledger.add(
        f"{p.name}/reduce/one-shot",
        serving.one_shot_reduce_time,
        message=message,
        ranks="tp",
        link_bandwidth=parts.tensor_group["link_bandwidth"],
    )
    ways = {"library": f"{p.name}/reduce/library", "one_shot": f"{p.name}/reduce/one-shot"}
    ledger.add(f"{p.name}/reduce/time", kernels.best_reduce_time, **ways)
    # Experts spread over attention ranks exchange tokens instead of reducing after them.
    ledger.add(f"{p.name}/reduce/count", kernels.reduces_per_layer, exchanging="shape/exchanging-layers")
    ledger.product(f"{path}/reduce", f"{p.name}/reduce/time", f"{p.name}/reduce/count")
    if parts.expert_group:
        _gathers(ledger, p, parts.expert_group)
        _exchange_kernels(ledger, p)
        cases = {0: f"{p.name}/exchange/gathers", 1: f"{p.name}/exchange/kernels"}
        ledger.choose(f"{p.name}/exchange", "shape/dispatches", cases)
        ledger.add(
            f"{path}/exchange",
            layer.mean_over_layers,
            time=f"{p.name}/exchange",
            kind_layers="shape/exchanging-layers",
        )


def _gathers(ledger: Ledger, p: Pass, group: Group) -> None:
    """Every rank gets all tokens before the experts; their results are added up and scattered after them."""
    tokens = shapes.rows_of(ledger, f"{p.name}/gather/tokens", p.group_tokens)
    ledger.add(f"{p.name}/gather/message", sizes.activation_message, tokens=tokens)
    ledger.total(f"{p.name}/gather/startup", "reduce_startup", "gather_startup")
    add_all_gather(
        ledger,
        f"{p.name}/gather/time",
        message=f"{p.name}/gather/message",
        collective_startup=f"{p.name}/gather/startup",
        **group,
    )
    ledger.total(f"{p.name}/scatter/time", f"{p.name}/gather/time")  # its reverse, of the same message
    ledger.total(f"{p.name}/exchange/gathers", f"{p.name}/gather/time", f"{p.name}/scatter/time")


def _exchange_kernels(ledger: Ledger, p: Pass) -> None:
    """Each token is sent to the ranks of its experts by kernels made for it."""
    ranks, path = "shape/exchange-ranks", f"{p.name}/exchange-kernels"
    ledger.add(f"{path}/domains", kernels.exchange_domains, ranks=ranks)
    ledger.add(f"{path}/local", sizes.rank_share, size=ranks, ranks=f"{path}/domains")
    ledger.add(f"{path}/others", sizes.rank_share, size=ranks, ranks=f"{path}/local")
    waiting = f"{path}/domains" if p.exchange == "prefill" else f"{path}/others"
    ledger.add(f"{path}/doublings", expert_exchange.doublings, places=waiting)
    ledger.add(f"{path}/tokens", sizes.rank_share, size=p.tokens, ranks="tp")
    per_token = {"experts_per_token": present(ledger, "experts_per_token")}
    ledger.add(f"{path}/copies", expert_exchange.distinct_copies, places=ranks, **per_token)
    ledger.add(f"{path}/remote", expert_exchange.distinct_copies, places=f"{path}/domains", **per_token)
    over = {"copies": f"{path}/copies", "ranks_per_domain": f"{path}/local"}
    ledger.add(f"{path}/over-links", kernels.copies_over_links, **over)
    parts = []
    for direction in ("dispatch", "combine"):
        prefix = f"{p.exchange}_{direction}_"
        constants = {name.removeprefix(prefix): name for name in ledger.columns if name.startswith(prefix)}
        ledger.add(f"{p.name}/{direction}/token", expert_exchange.token_bytes, **TOKEN[direction])
        parts.append(f"{p.name}/{direction}/time")
        ledger.add(
            parts[-1],
            expert_exchange.expert_exchange_time,
            tokens=f"{path}/tokens",
            token_size=f"{p.name}/{direction}/token",
            domains=f"{path}/domains",
            doublings=f"{path}/doublings",
            link_copies=f"{path}/over-links",
            network_copies=f"{path}/remote",
            **constants,
        )
    ledger.total(f"{p.name}/exchange/kernels", *parts)
