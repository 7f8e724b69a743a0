"""Compute time of one average layer and of the head, forward, backward and recomputed.

Everything here depends on how a layer is cut (tp, cp, ep, etp, sequence parallelism, micro-batch) and on
nothing of the pipeline or of data parallelism, so it runs in a scope of those columns.
"""

from __future__ import annotations

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger, any_row
from gpucalc.core.units import Unit
from gpucalc.estimate import products, shapes
from gpucalc.formulas import attention, flops, layer, logits, parameters, power, roofline, scan
from gpucalc.formulas import shapes as sizes

HALF = "half_"  # prefix of the kernel constants that hold for 16-bit products
FORWARD, BACKWARD = "forward", "backward"
DIRECTIONS = (FORWARD, BACKWARD)
GEMMS = (FORWARD, "activation-gradient", "weight-gradient")

MIXER_INPUT = Constant(
    "MIXER_INPUT_SHARE", 0.75, "share of a linear mixer's weights that read the residual stream", "assumed"
)
MAC = Constant("MAC", 2.0, "operations of a multiply-accumulate", "definition", unit=Unit("FLOP", flop=1))
SCAN_EFFICIENCY = Constant("SCAN_EFFICIENCY", 0.25, "share of the peak of products within a chunk", "assumed")
SCAN_ELEMENT = Constant("SCAN_ELEMENT", 2.0, "16-bit streams of a scan", "definition", unit=Unit("B", byte=1))
SCAN_BACKWARD = Constant("SCAN_BACKWARD", 2.5, "backward of a scan over its forward", "assumed")
MIXER_OUTPUT = Constant("MIXER_OUTPUT_SHARE", 0.25, "share of a linear mixer's weights that write to it", "assumed")
BACKWARD_KERNELS = Constant(
    "BACKWARD_KERNELS", 2.0, "kernels of a backward pass over those of a forward pass: two gradients", "definition"
)
PRODUCTS_FORWARD = Constant("PRODUCTS_FORWARD", 2.0, "products of attention: scores, and their values", "definition")
PRODUCTS_BACKWARD = Constant("PRODUCTS_BACKWARD", 4.0, "products of the gradients of attention", "definition")


def add_layer_time(ledger: Ledger) -> None:
    """Store the times of one layer's forward and backward pass and of the head (per micro-batch and rank)."""
    ledger.define("sustained_clock", power.sustained_clock)
    define_shapes(ledger)
    _products(ledger)
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
    ledger.define("mixer_in", layer.mixer_columns, columns="qkv", share=MIXER_INPUT)
    ledger.define("mixer_out", layer.mixer_columns, columns="attention_columns", share=MIXER_OUTPUT)
    ledger.define("attended", flops.attended_length)
    ledger.product("shape/residual", "hidden", "blocks")


def _gemms(m: str, n: str, k: str) -> dict[str, tuple[str, str, str]]:
    """Rows, columns and depth of a matrix's three products: forward, gradient of its input, gradient of itself."""
    return dict(zip(GEMMS, ((m, n, k), (m, k, n), (n, k, m)), strict=True))


def _product(ledger: Ledger, p: shapes.Product, m: str) -> None:
    """Store forward, activation-gradient and weight-gradient time of one matrix of the average layer."""
    for direction, (rows, columns, depth) in _gemms(m, p.n, p.k).items():
        path = f"layer/{direction}/gemm/{p.name}"
        one = f"{path}/one"
        products.add_gemm(ledger, one, m=rows, n=columns, k=depth)
        ledger.add(path, layer.mean_over_layers, time=one, kind_layers=p.layers)


def _grouped(ledger: Ledger, p: shapes.Product) -> None:
    """Store the products of all local experts: one kernel whose tiles share the waves, or one kernel each.

    Padded experts are one batched product of the size of the most loaded.
    """
    tokens, rows = "shape/expert-tokens", "shape/expert-rows"
    stacked = f"shape/{p.name}/stacked"
    ledger.add(stacked, layer.stacked_columns, columns=p.n)
    together = dict(zip(GEMMS, ((rows, p.n, p.k), (rows, p.k, p.n), (stacked, p.k, tokens)), strict=True))
    apart = _gemms(tokens, p.n, p.k)
    launched = ledger["shape/experts-apart"]
    for direction in GEMMS:
        path = f"layer/{direction}/gemm/{p.name}"
        cases = {}
        if any_row(launched == 0):
            m, n, k = together[direction]
            products.add_gemm(ledger, f"{path}/grouped", m=m, n=n, k=k)
            cases[0] = f"{path}/grouped"
        if any_row(launched > 0):
            m, n, k = apart[direction]
            products.add_gemm(ledger, f"{path}/one", m=m, n=n, k=k)
            ledger.product(f"{path}/each", f"{path}/one", "local_experts")
            cases[1] = f"{path}/each"
        ledger.choose(f"{path}/all", "shape/experts-apart", cases)
        ledger.product(f"{path}/uneven", f"{path}/all", "expert_gemm_factor")
        ledger.add(path, layer.mean_over_layers, time=f"{path}/uneven", kind_layers=p.layers)


def _products(ledger: Ledger) -> None:
    tokens = shapes.rows_of(ledger, "shape/tokens", "tokens")
    for product in (*shapes.mixer_products(ledger), *shapes.dense_products(ledger)):
        _product(ledger, product, tokens)
    if any_row(ledger.columns["scan_chunk"] > 0):
        _scan(ledger)
    if any_row(ledger.columns["moe_layers"] > 0):
        _experts(ledger, tokens)


def _scan(ledger: Ledger) -> None:
    """Store the time of the scans of linear mixers beside their projections; backward runs them twice and a half."""
    ledger.add("layer/scan/flops", scan.scan_flops, mac_flops=MAC)
    ledger.add("layer/scan/products", scan.scan_compute_time, flops="layer/scan/flops", scan_efficiency=SCAN_EFFICIENCY)
    ledger.add("layer/traffic/scan", scan.scan_traffic, scan_element_bytes=SCAN_ELEMENT)
    _moved(ledger, "layer/scan/moved", "layer/traffic/scan")
    ledger.total("layer/scan/forward", "layer/scan/products", "layer/scan/moved")
    for direction in DIRECTIONS:
        one = "layer/scan/forward"
        if direction != "forward":
            one = f"layer/scan/{direction}"
            ledger.product(one, "layer/scan/forward", SCAN_BACKWARD)
        ledger.add(f"layer/{direction}/scan", layer.mean_over_layers, time=one, kind_layers="linear_layers")


def _experts(ledger: Ledger, tokens: str) -> None:
    ledger.define("expert_tokens", layer.tokens_per_expert)
    ledger.add("shape/router-tokens", sizes.rank_share, size="tokens", ranks="tp")
    ledger.define("local_experts", parameters.local_experts)
    ledger.add("shape/expert-tokens", layer.loaded_tokens)
    ledger.add("shape/expert-rows", layer.grouped_rows, expert_tokens="shape/expert-tokens")
    ledger.add("shape/experts-apart", layer.experts_launched_apart)
    rows = {
        "tokens": tokens,
        "router": shapes.rows_of(ledger, "shape/router-tokens/present", "shape/router-tokens"),
    }
    for product in shapes.expert_products(ledger, "etp"):
        if product.part == "expert":
            _grouped(ledger, product)
        else:
            _product(ledger, product, rows[product.rows])
    ledger.add("layer/traffic/permutation", layer.permutation_traffic)
    ledger.add("layer/traffic/expert-bias", layer.expert_bias_traffic)
    ledger.total("layer/traffic/experts", "layer/traffic/permutation", "layer/traffic/expert-bias")
    for direction in DIRECTIONS:
        path = f"layer/{direction}/permutation"
        _moved(ledger, f"{path}/one", "layer/traffic/experts")
        ledger.add(path, layer.mean_over_layers, time=f"{path}/one", kind_layers="moe_layers")


def _moved(ledger: Ledger, path: str, traffic: str) -> None:
    """Store the time of memory-bound kernels that move `traffic`."""
    ledger.add(path, roofline.memory_bound_time, traffic=traffic, kernel_launch_seconds="elementwise_launch")


def _attention(ledger: Ledger) -> None:
    c = ledger.columns
    ledger.add("shape/full-layers", sizes.other_layers, kind_layers="attention_layers", others="window_layers")
    ledger.add("shape/queries", sizes.rank_share, size="seq_len", ranks="cp")
    ledger.add("shape/heads", sizes.rank_share, size="heads", ranks="tp")
    ledger.add("shape/kv-heads", sizes.rank_kv_heads)
    ledger.add("shape/head-dim", sizes.mean_head_dim)
    ledger.add("shape/attention-peak", attention.attention_peak)
    kinds = {"full": ("shape/full-layers", "seq_len")}
    if any_row(c["window_layers"] > 0):
        kinds["window"] = ("window_layers", shapes.rows_of(ledger, "shape/window", "window"))
    for kind, (kind_layers, window) in kinds.items():
        path = {direction: f"layer/{direction}/attention/{kind}" for direction in DIRECTIONS}
        kernels = {}
        if any_row(c["flash"] > 0):
            kernels[1] = "flash"
            _flash(ledger, path, window)
        if any_row(c["flash"] == 0):
            kernels[0] = "unfused"
            _unfused(ledger, path, kind, window)
        for at in path.values():
            one = f"{at}/{next(iter(kernels.values()))}"
            if len(kernels) > 1:
                one = f"{at}/kernel"
                ledger.choose(one, "flash", {code: f"{at}/{kernel}" for code, kernel in kernels.items()})
            ledger.add(at, layer.mean_over_layers, time=one, kind_layers=kind_layers)


_SHAPE = {
    "batch": "micro_batch",
    "queries": "shape/queries",
    "heads": "shape/heads",
    "head_dim": "shape/head-dim",
    "peak": "shape/attention-peak",
}


def _flash(ledger: Ledger, path: dict[str, str], window: str) -> None:
    """Store fused attention forward and backward."""
    ledger.add(f"{path[FORWARD]}/keys", attention.attended_keys, keys="seq_len", window=window)
    products.add_flash_attention(
        ledger,
        f"{path[FORWARD]}/flash",
        attended=f"{path[FORWARD]}/keys",
        keys="seq_len",
        kv_heads="shape/kv-heads",
        attention_element_bytes=f"{HALF}element_bytes",
        **_SHAPE,
    )
    ledger.add(
        f"{path[BACKWARD]}/flash",
        attention.flash_attention_backward_time,
        attention_forward=f"{path[FORWARD]}/flash",
        attention_backward_ratio="backward_attention_ratio",
    )


def _unfused(ledger: Ledger, path: dict[str, str], kind: str, window: str) -> None:
    """Store attention that forms the scores, forward and backward."""
    keys = f"shape/keys/{kind}"
    ledger.add(keys, attention.reached_keys, keys="seq_len", window=window)
    for direction, count in ((FORWARD, PRODUCTS_FORWARD), (BACKWARD, PRODUCTS_BACKWARD)):
        ledger.add(
            f"{path[direction]}/unfused",
            attention.unfused_attention_time,
            keys=keys,
            products=count,
            score_traffic=f"score_traffic_{direction}",
            gemm_efficiency=f"{HALF}gemm_efficiency",
            **_SHAPE,
        )


def _elementwise(ledger: Ledger) -> None:
    c = ledger.columns
    width = {"hidden": "shape/residual", "qkv": "mixer_in"}
    ledger.add("layer/traffic/fused", layer.elementwise_traffic, **width)
    ledger.product("layer/traffic/passes", "layer/traffic/fused", "elementwise_factor")
    ledger.add("layer/traffic/unfused", layer.unfused_traffic, **width)
    ledger.total("layer/traffic/elementwise", "layer/traffic/passes", "layer/traffic/unfused")
    _moved(ledger, "layer/forward/elementwise", "layer/traffic/elementwise")
    ledger.product("layer/backward/elementwise", "layer/forward/elementwise", "backward_elementwise_ratio")
    if any_row(c["low_precision"] > 0):
        ledger.add("layer/traffic/casts", layer.cast_traffic, attention_columns="mixer_out")
        ledger.product("layer/traffic/casts-unfused", "layer/traffic/casts", "cast_share")
        ledger.add("layer/forward/casts", roofline.traffic_time, traffic="layer/traffic/casts-unfused")
        ledger.product("layer/backward/casts", "layer/forward/casts", "backward_cast_ratio")
    if any_row(c["dequantises"] > 0):
        ledger.add("layer/parameters/sharded", parameters.layer_parameters_dense)
        for direction in DIRECTIONS:
            ledger.add(f"layer/{direction}/dequantise", layer.dequantise_time, weights="layer/parameters/sharded")


def _head(ledger: Ledger) -> None:
    ledger.define("loss_ranks", logits.loss_ranks)
    half = {name[len(HALF) :]: name for name in ledger.columns if name.startswith(HALF)}
    for direction, (rows, columns, depth) in _gemms("tokens", shapes.head_width(ledger), "hidden").items():
        products.add_gemm(ledger, f"head/{direction}", m=rows, n=columns, k=depth, **half)
    ledger.add("head/traffic", layer.loss_traffic)
    _moved(ledger, "head/loss", "head/traffic")
    ledger.maximum("head/trains", "trains_base", "trains_embeddings")
    ledger.product("head/weight-gradient-trained", "head/weight-gradient", "head/trains")
    parts = ("forward", "activation-gradient", "weight-gradient-trained", "loss")
    ledger.total("head/work", *[f"head/{part}" for part in parts])
    ledger.add("head/time", layer.head_time, work="head/work")


def _below(ledger: Ledger, prefix: str) -> list[str]:
    """Stored terms one level below a path."""
    depth = prefix.count("/") + 1
    return [p for p in ledger.entries if p.startswith(f"{prefix}/") and p.count("/") == depth]


def _sums(ledger: Ledger) -> None:
    for direction in GEMMS:
        ledger.total(f"layer/{direction}/gemm", *_below(ledger, f"layer/{direction}/gemm"))
    for direction in DIRECTIONS:
        ledger.total(f"layer/{direction}/attention", *_below(ledger, f"layer/{direction}/attention"))
    ledger.product("layer/weight-gradient/trained", "layer/weight-gradient/gemm", "trains_base")
    ledger.total("layer/forward/device", *_below(ledger, "layer/forward"))
    ledger.total(
        "layer/backward/device",
        "layer/activation-gradient/gemm",
        "layer/weight-gradient/trained",
        *_below(ledger, "layer/backward"),
    )
    ledger.add("layer/host/expert-ratio", layer.expert_operations_ratio)
    ledger.add("layer/host/launched", layer.launched_operations, expert_ratio="layer/host/expert-ratio")
    operations = ["layer/host/launched"]
    if any_row(ledger.columns["moe_layers"] * ledger.columns["experts_apart"] > 0):
        operations.append("layer/host/loop")
        ledger.add(operations[-1], layer.loop_operations)
    ledger.total("layer/host/operations", *operations)
    ledger.product("layer/host/operations-backward", "layer/host/operations", BACKWARD_KERNELS)
    ledger.add("layer/host/forward", layer.host_time, operations="layer/host/operations")
    ledger.add("layer/host/backward", layer.host_time, operations="layer/host/operations-backward")
