"""The matrix products of a layer: one description for training and for serving.

`mixer_products`, `dense_products` and `expert_products` define the widths of one rank as terms below `shape/` and say
which products a layer consists of. A caller multiplies each by the rows of its pass (tokens of a micro-batch, of a
prompt, of decoding sequences) and decides the number format by `part`; products of routed experts are grouped, with
the rows of one expert.
Sizes that a row of the batch may lack are at least 1; what is absent counts in no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucalc.core.ledger import Ledger, any_row
from gpucalc.formulas import shapes


@dataclass(frozen=True)
class Product:
    """One matrix product C(m,n) = A(m,k)·B(k,n) of a layer on one rank; all but `name` and `part` are references.

    part: what the matrix belongs to, as number formats are stated: attention, mlp, expert or head.
    layers: how many of the model's layers have it. rows: what is given of its rows, where they are not the tokens of
    the pass ("router": a rank's share of the tokens; "expert": those of one expert).
    """

    name: str
    part: str
    n: str
    k: str
    layers: str
    rows: str = "tokens"


def mixer_products(ledger: Ledger, *, joined_latents: bool = False) -> list[Product]:
    """The products of attention and of linear mixers.

    The scope needs `qkv` and `attention_columns`. `joined_latents`: the projections to the latents of queries and of
    keys and values are one product, as serving engines join them.
    """
    c = ledger.columns
    found = []
    ledger.add("shape/plain-layers", shapes.other_layers, kind_layers="attention_layers", others="latent_layers")
    if any_row(ledger["shape/plain-layers"] > 0):
        found.append(Product("qkv", "attention", "qkv", "hidden", "shape/plain-layers"))
    if any_row(c["latent_layers"] > 0):
        found += _latent_products(ledger, joined_latents)
    if any_row(c["attention_layers"] > 0):
        found.append(Product("out", "attention", "hidden", "attention_columns", "attention_layers"))
    if any_row(c["linear_layers"] > 0):
        ledger.add("shape/linear-mixer", shapes.linear_mixer_width)
        width = _present(ledger, "shape/linear-mixer")
        found.append(Product("linear_mixer", "attention", width, "hidden", "linear_layers"))
    return found


def _latent_products(ledger: Ledger, joined: bool) -> list[Product]:
    """Products of multi-head latent attention: down to the latents, which every rank holds, and up to its heads."""
    ledger.add("shape/kv-latent", shapes.latent_width)
    ledger.add("shape/query", shapes.latent_query_width)
    ledger.add("shape/key-value", shapes.latent_key_value_width)
    ledger.add("shape/query-depth", shapes.query_depth)
    depth = _present(ledger, "kv_lora_rank")
    query = "shape/query-depth"
    key_value = _present(ledger, "shape/key-value")
    if joined:
        ledger.total("shape/latents", "q_lora_rank", "shape/kv-latent")
        down = [Product("latents", "attention", _present(ledger, "shape/latents"), "hidden", "latent_layers")]
        names = ("query", "key_value")
    else:
        ledger.add("shape/query-latent-layers", shapes.layers_with, kind_layers="latent_layers", size="q_lora_rank")
        latent = _present(ledger, "q_lora_rank")
        down = [Product("q_down", "attention", latent, "hidden", "shape/query-latent-layers")]
        down.append(Product("kv_down", "attention", _present(ledger, "shape/kv-latent"), "hidden", "latent_layers"))
        names = ("q_up", "kv_up")
    return [
        *down,
        Product(names[0], "attention", "shape/query", query, "latent_layers"),
        Product(names[1], "attention", key_value, depth, "latent_layers"),
    ]


def dense_products(ledger: Ledger) -> list[Product]:
    """The products of dense feed-forward blocks."""
    if not any_row(ledger.columns["dense_layers"] > 0):
        return []
    return _feed_forward(ledger, "", "mlp", "ffn_hidden", "tp", "dense_layers")


def expert_products(ledger: Ledger, ranks: str) -> list[Product]:
    """The products of layers with experts: the routed ones, split over `ranks`, the router and shared experts."""
    c = ledger.columns
    if not any_row(c["moe_layers"] > 0):
        return []
    found = _feed_forward(ledger, "expert_", "expert", "expert_ffn_hidden", ranks, "moe_layers", rows="expert")
    experts = _present(ledger, "experts")
    found.append(Product("router", "head", experts, "hidden", "moe_layers", rows="router"))
    if any_row(c["shared_expert_ffn_hidden"] > 0):
        ledger.add("shape/shared-layers", shapes.layers_with, kind_layers="moe_layers", size="shared_expert_ffn_hidden")
        found += _feed_forward(ledger, "shared_", "mlp", "shared_expert_ffn_hidden", "tp", "shape/shared-layers")
    return found


def _feed_forward(
    ledger: Ledger, prefix: str, part: str, width: str, ranks: str, layers: str, rows: str = "tokens"
) -> list[Product]:
    """The two products of a feed-forward block, the first twice as wide with a gate."""
    path = f"shape/{prefix}width"
    ledger.add(path, shapes.rank_share, size=width, ranks=ranks)
    ledger.add(f"shape/{prefix}up", shapes.gated_width, width=path)
    one, two = _present(ledger, path), _present(ledger, f"shape/{prefix}up")
    return [
        Product(f"{prefix}up", part, two, "hidden", layers, rows),
        Product(f"{prefix}down", part, "hidden", one, layers, rows),
    ]


def _present(ledger: Ledger, reference: str) -> str:
    """A reference to a size that is at least 1, where some row lacks it."""
    if not any_row(ledger.value(reference) < 1):
        return reference
    path = f"{reference}/present" if "/" in reference else f"shape/{reference}/present"
    if path not in ledger:
        ledger.add(path, shapes.at_least_one, size=reference)
    return path


def head_width(ledger: Ledger) -> str:
    """A reference to the columns of the head on one rank."""
    ledger.add("shape/vocabulary", shapes.rank_share, size="vocab", ranks="tp")
    return _present(ledger, "shape/vocabulary")


def rows_of(ledger: Ledger, path: str, reference: str) -> str:
    """A reference to the rows of a product, at least 1; stored at `path` where some row has fewer."""
    if not any_row(ledger.value(reference) < 1):
        return reference
    ledger.add(path, shapes.at_least_one, size=reference)
    return path
