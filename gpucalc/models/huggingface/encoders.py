"""Encoders and encoder-decoders: BERT, ViT, CLIP, T5."""

from __future__ import annotations

from gpucalc.models.blueprint import DENSE, FULL, NO_WEIGHTS, Blueprint
from gpucalc.models.huggingface.decoder import KEYS, layer_count
from gpucalc.models.huggingface.reader import Reader
from gpucalc.models.parameters import Weights, linear, pre_norm_encoder

_WHOLE = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _shape(r: Reader) -> dict[str, int]:
    hidden = r.integer("hidden", *KEYS["hidden"], required=True)
    heads = r.integer("heads", *KEYS["heads"], required=True)
    if hidden % heads and hidden > 1:
        r.problem(f"hidden {hidden} is not a multiple of {heads} heads")
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": r.integer("head_dim", "head_dim", derived=max(hidden // heads, 1)),
        "ffn_hidden": r.integer("ffn_hidden", *KEYS["ffn_hidden"], required=True),
    }


def bert(r: Reader, architecture: str) -> Blueprint:
    """BERT and RoBERTa: post-norm encoder, token types, embedding norm; masked-language head, or a pooler."""
    layers = layer_count(r)
    positions = r.integer("max_seq_len", *KEYS["max_seq_len"], required=True)
    shape = _shape(r)
    bare = architecture.endswith("Model")  # a pooler in place of the head
    return Blueprint(
        architecture=architecture,
        **shape,  # type: ignore[arg-type]
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=(FULL,) * layers,
        mlps=(DENSE,) * layers,
        max_seq_len=positions,
        gated_mlp=False,
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings", default=True),
        causal=False,
        **_WHOLE,  # type: ignore[arg-type]
        norm_terms=2,
        final_norm=False,
        positions=positions,
        embedding_norm=True,
        embedding_rows_extra=r.integer("token_types", "type_vocab_size", minimum=0, default=2),
        has_head=not bare,
        head_bias=True,
        head_dense=True,
        extra=linear(shape["hidden"], shape["hidden"], True) if bare else NO_WEIGHTS,
    )


def vit(r: Reader, architecture: str) -> Blueprint:
    """ViT with a classification head: no vocabulary; patches, a class token, learned positions."""
    layers = layer_count(r)
    shape = _shape(r)
    image = r.integer("image_size", "image_size", required=True)
    patch = r.integer("patch_size", "patch_size", required=True)
    channels = r.integer("num_channels", "num_channels", default=3)
    hidden = shape["hidden"]
    tokens = (image // patch) ** 2 + 1
    labels = r.config.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else r.integer("num_labels", "num_labels", default=2)
    patches = Weights(channels * patch * patch * hidden, 2 * hidden)  # bias and class token
    return Blueprint(
        architecture=architecture,
        **shape,  # type: ignore[arg-type]
        vocab=0,
        mixers=(FULL,) * layers,
        mlps=(DENSE,) * layers,
        max_seq_len=tokens,
        gated_mlp=False,
        causal=False,
        qkv_bias=r.flag("qkv_bias", "qkv_bias", default=True),
        out_bias=True,
        mlp_bias=True,
        norm_terms=2,
        positions=tokens,
        has_head=False,
        extra=patches.plus(Weights(hidden * classes, classes)),
    )


def clip(r: Reader, architecture: str) -> Blueprint:
    """CLIP: a text encoder (the shape shown) and an image encoder (vision parameters); not a language model."""
    outer = r.config
    text, image = outer.get("text_config"), outer.get("vision_config")
    one = Reader(text if isinstance(text, dict) else {}, f"{r.label}: text_config")
    two = Reader(image if isinstance(image, dict) else {}, f"{r.label}: vision_config")
    shape, layers = _shape(one), layer_count(one)
    positions = one.integer("max_seq_len", *KEYS["max_seq_len"], required=True)
    vocab = one.integer("vocab", *KEYS["vocab"], required=True)
    projection = r.integer("projection_dim", "projection_dim", required=True)
    side = two.integer("image_size", "image_size", required=True)
    patch = two.integer("patch_size", "patch_size", required=True)
    width = two.integer("hidden", "hidden_size", required=True)
    tower = pre_norm_encoder(
        width, two.integer("ffn_hidden", "intermediate_size", required=True), layer_count(two), False, 3 * patch * patch
    ).plus(Weights(0, width * ((side // patch) ** 2 + 2)), Weights(0, 4 * width), Weights(width * projection))
    for part in (one, two):
        r.problems += part.problems
        r.origin.update({key: value for key, value in part.origin.items() if part is one})
    r.warnings.append("two encoders, not a language model: the shape is the text encoder's, the image encoder is apart")
    return Blueprint(
        architecture=architecture,
        **shape,  # type: ignore[arg-type]
        vocab=vocab,
        mixers=(FULL,) * layers,
        mlps=(DENSE,) * layers,
        max_seq_len=positions,
        gated_mlp=False,
        causal=False,
        **_WHOLE,  # type: ignore[arg-type]
        norm_terms=2,
        positions=positions,
        has_head=False,
        extra=Weights(shape["hidden"] * projection, 1),
        vision=tower,
    )


def t5(r: Reader, architecture: str) -> Blueprint:
    """T5: two stacks with relative position biases, cross-attention; heads times head size need not be hidden."""
    hidden = r.integer("hidden", "d_model", "hidden_size", required=True)
    heads = r.integer("heads", "num_heads", "num_attention_heads", required=True)
    encoder = r.integer("encoder_layers", "num_layers", "num_hidden_layers", required=True)
    decoder = r.integer("layers", "num_decoder_layers", derived=encoder)
    return Blueprint(
        architecture=architecture,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=r.integer("head_dim", "d_kv", required=True),
        ffn_hidden=r.integer("ffn_hidden", "d_ff", required=True),
        vocab=r.integer("vocab", *KEYS["vocab"], required=True),
        mixers=(FULL,) * decoder,
        mlps=(DENSE,) * decoder,
        max_seq_len=r.integer("max_seq_len", "n_positions"),
        gated_mlp=r.text("feed_forward_proj").startswith("gated"),
        tied_embeddings=r.flag("tied_embeddings", "tie_word_embeddings", default=not architecture.startswith("MT5")),
        encoder_layers=encoder,
        relative_buckets=r.integer("relative_buckets", "relative_attention_num_buckets", default=32),
    )
