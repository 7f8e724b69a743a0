"""Bytes that one layer keeps of a micro-batch, tensor by tensor, and what passes through it.

Everything here depends on how a layer is cut and on nothing of the pipeline, of data parallelism or of
recomputation, so it runs in the scope of a layer's time.
"""

from __future__ import annotations

from gpucalc.core.formula import Constant
from gpucalc.core.ledger import Ledger, any_row
from gpucalc.core.units import Unit
from gpucalc.formulas import activations, adapters, layer, logits, memory, shapes

NO_LAYER = Constant("NO_LAYER", 0.0, "layers recomputed as a bound on memory: none", "definition")
EVERY_LAYER = Constant("EVERY_LAYER", 1.0, "layers recomputed as a bound on memory: all", "definition")
NO_EXPERT = Constant("NO_EXPERT", 0.0, "routed experts in a width of dense and shared blocks", "definition")
STORED = Constant("STORED_BYTES", 2.0, "an activation in 16 bit", "definition", unit=Unit("B", byte=1))
# How much of a stage is recomputed: the two ends between which memory is linear.
RECOMPUTED = (("none", NO_LAYER), ("full", EVERY_LAYER))


def add_layer_memory(ledger: Ledger) -> None:
    """Store what a layer keeps, whole and recomputed, its working set, and the logits."""
    _tensors(ledger)
    ledger.add("layer/memory/checkpoint", memory.checkpoint_activations)
    ledger.product("layer/memory/boundary-bytes", "boundary_copies", STORED)
    ledger.add("layer/memory/boundary", memory.checkpoint_activations, stored_bytes="layer/memory/boundary-bytes")
    _logits(ledger)
    for name, share in RECOMPUTED:
        add_kept(ledger, name, share, NO_LAYER)
        ledger.add(
            f"layer/memory/working/{name}",
            memory.working_memory,
            recomputed_layer="layer/memory/unrecomputed",
            recomputing=share,
        )


def add_kept(ledger: Ledger, name: str, share: str | Constant, selective: str | Constant) -> None:
    """Store the mean bytes a layer keeps when a share of the layers is recomputed whole, or cheap parts of each."""
    ledger.add(
        f"layer/memory/kept/{name}",
        memory.kept_activations,
        full_layer="layer/memory/whole",
        scores="layer/memory/scores",
        checkpoint="layer/memory/checkpoint",
        full_share=share,
        selective=selective,
    )


def _tensors(ledger: Ledger) -> None:
    c = ledger.columns
    parts = []

    def part(name: str) -> str:
        parts.append(f"layer/memory/{name}")
        return parts[-1]

    for block in ("mixer", "mlp"):
        ledger.add(
            part(f"norm/{block}"),
            activations.norm_activations,
            hidden="shape/residual",
            trained="trains_base",
            feeds_product=f"feeds_{block}",
        )
    ledger.add("shape/query-columns", activations.query_columns)
    ledger.add(
        part("attention"),
        activations.attention_activations,
        qkv="mixer_in",
        attention_columns="mixer_out",
        query_columns="shape/query-columns",
        feeds_product="feeds_output",
    )
    ledger.add("shape/dense-feed-forward", layer.feed_forward_width, experts_per_token=NO_EXPERT)
    dense = {"feed_forward": "shape/dense-feed-forward"}
    ledger.add(part("mlp"), activations.feed_forward_activations, feeds_product="feeds_down", **dense)
    if any_row(c["written_gelu"] > 0):
        ledger.add("layer/memory/written-tokens", activations.written_tokens)
        ledger.add(
            part("written-gelu"), activations.written_gelu_activations, tokens="layer/memory/written-tokens", **dense
        )
    if any_row(c["moe_layers"] > 0):
        ledger.add("layer/memory/routed/one", activations.routed_activations, trained="feeds_down")
        ledger.add("layer/memory/routed/share", shapes.layer_share, kind_layers="moe_layers")
        ledger.product(part("routed"), "layer/memory/routed/one", "layer/memory/routed/share")
    if any_row(c["keeps_gathered"] > 0):
        ledger.add(part("gathered"), activations.gathered_inputs, hidden="shape/residual")
    if any_row(c["dropout"] > 0):
        ledger.add(part("dropout"), activations.dropout_masks, hidden="shape/residual")
    if any_row(c["adapters"] > 0):
        ledger.add(part("adapters"), activations.adapter_activations)
    if any_row(c["scaled_outputs"] > 0):
        ledger.add(part("scaled"), adapters.scaled_output_activations)
    ledger.total("layer/memory/tensors", *parts)
    ledger.product("layer/memory/whole", "layer/memory/tensors", "activation_factor")
    ledger.add("layer/memory/scores/one", activations.score_activations)
    ledger.add("layer/attention-share", shapes.layer_share, kind_layers="attention_layers")
    ledger.product("layer/memory/scores", "layer/memory/scores/one", "layer/attention-share")
    ledger.total("layer/memory/unrecomputed", "layer/memory/whole", "layer/memory/scores")


def _logits(ledger: Ledger) -> None:
    ledger.add("logits/whole", logits.logits_memory, ranks="loss_ranks")
    if not any_row(ledger.columns["fused_linear_loss"] > 0):
        ledger.total("logits/memory", "logits/whole")
        return
    ledger.add("logits/vocabulary", shapes.at_least_one, size="vocab")
    ledger.add("logits/rows", logits.fused_linear_rows, vocab="logits/vocabulary")
    ledger.add(
        "logits/chunk",
        logits.fused_linear_memory,
        rows="logits/rows",
        ranks="loss_ranks",
        logit_bytes=STORED,
        gradient_bytes="fused_linear_gradient_bytes",
    )
    ledger.choose("logits/memory", "fused_linear_loss", {0: "logits/whole", 1: "logits/chunk"})
