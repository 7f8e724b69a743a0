"""Transformers that are no decoder: image, text and speech encoders, towers, encoder-decoders."""

from __future__ import annotations

import math
from typing import Any

from gpucalc.models.networks.component import TRANSFORMER, Component, Count

Sizes = dict[str, Any]


def stack(
    count: Count,
    layers: int,
    hidden: int,
    inner: int,
    heads: int,
    tokens: float,
    *,
    gated: bool = False,
    bias: bool = True,
    norm_terms: int = 2,
    causal: bool = False,
    attention_width: int = 0,
    key_bias: bool = True,
) -> None:
    """`layers` blocks of attention and feed-forward with two norms each; bidirectional unless `causal`."""
    for _ in range(layers):
        count.attention(hidden, tokens, heads, inner=attention_width, bias=bias, causal=causal)
        count.feed_forward(hidden, inner, tokens, gated=gated, bias=bias)
        count.vector(2 * norm_terms * hidden - (0 if key_bias or not bias else hidden))


def _patches(size: tuple[int, int], patch: int) -> int:
    return (size[0] // patch) * (size[1] // patch)


def _image(count: Count, spec: dict[str, Any], size: tuple[int, int], *, patch_bias: bool, norms: int) -> float:
    """Patches, class token, positions and blocks of an image encoder; the number of tokens."""
    hidden, patch = int(spec["hidden"]), int(spec["patch"])
    patches = _patches(size, patch)
    count.linear(3 * patch * patch, hidden, patches, patch_bias)
    tokens = patches + 1
    own = _patches((int(spec.get("image", size[0])),) * 2, patch) + 1  # the table is that of the trained size
    count.vector(hidden + own * hidden + norms * 2 * hidden)
    stack(count, spec["layers"], hidden, int(spec.get("ffn", 4 * hidden)), spec["heads"], tokens)
    return tokens


def _tower(count: Count, name: str, spec: dict[str, Any], tokens: float) -> Component:
    return count.component(
        name, TRANSFORMER, tokens=tokens, hidden=spec["hidden"], heads=spec["heads"], blocks=spec["layers"]
    )


def vit(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """A vision transformer with a classifier."""
    count = Count()
    tokens = _image(count, spec, sizes["resolution"], patch_bias=True, norms=1)
    count.linear(spec["hidden"], int(spec.get("classes", 1000)))
    return [_tower(count, "image encoder", spec, tokens)]


def text_encoder(spec: dict[str, Any], tokens: float, name: str = "text encoder") -> Component:
    """A text encoder: embedding, learned positions where it has them, blocks, a last norm, a projection."""
    count, hidden = Count(), int(spec["hidden"])
    plain = bool(spec.get("bias", True))
    count.vector(spec["vocab"] * hidden + int(spec.get("positions", 0)) * hidden)
    stack(
        count,
        spec["layers"],
        hidden,
        int(spec.get("ffn", 4 * hidden)),
        spec["heads"],
        tokens,
        gated=bool(spec.get("gated", False)),
        bias=plain,
        norm_terms=2 if plain else 1,
        attention_width=int(spec.get("attention", 0)),
    )
    count.vector((2 if plain else 1) * hidden + int(spec.get("buckets", 0)) * spec["heads"] * spec.get("tables", 1))
    if spec.get("project"):
        count.linear(hidden, spec["project"], 1, False)
    return _tower(count, name, spec, tokens)


def clip(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """CLIP: an image and a text tower with their projections to a common space, and a temperature."""
    image, text, embed = spec["image"], spec["text"], int(spec["embed"])
    one = Count()
    tokens = _image(one, image, sizes["resolution"], patch_bias=False, norms=2)
    one.linear(image["hidden"], embed, 1, False)
    one.vector(1)
    two = text_encoder({"vocab": 49_408, "positions": 77, **text, "project": embed}, sizes["text_tokens"])
    return [_tower(one, "image tower", image, tokens), two]


def bert(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """BERT with its pooler; pre-training adds the language-model head on the masked positions.

    Where padding is removed the mean length decides the products, and the mean square that of attention.
    """
    count, hidden = Count(), int(spec["hidden"])
    tokens = float(sizes.get("effective_len") or sizes["seq_len"])
    count.vector((spec["vocab"] + spec["positions"] + 2) * hidden + 2 * hidden)
    stack(count, spec["layers"], hidden, 4 * hidden, spec["heads"], tokens)
    if sizes.get("effective_len"):
        spread = SQUARE_OF_LENGTHS - 1
        count.macs += spread * count.scores
        count.scores *= 1 + spread
        count.logits *= 1 + spread
    count.linear(hidden, hidden)
    parts = [_tower(count, "encoder", spec, tokens)]
    if sizes.get("task") == "pre-training":
        head, masked = Count(), MASKED_SHARE * float(sizes["seq_len"])
        head.macs = masked * (hidden * spec["vocab"] + hidden * hidden)
        head.elements = masked * (spec["vocab"] + hidden)
        head.launches = 2
        parts.append(head.component("masked head", TRANSFORMER, tokens=masked, hidden=hidden))
    return parts


MASKED_SHARE = 0.15  # of the positions of a sequence (arXiv:1810.04805)
SQUARE_OF_LENGTHS = 1.15  # mean square of the lengths of text over the square of their mean


def t5(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """T5 v1.1: an encoder on the input, a decoder with cross attention on the output, its own head.

    The keys and values of cross attention act on the encoder's tokens.
    """
    hidden, heads, inner = int(spec["hidden"]), int(spec["heads"]), int(spec["heads"]) * int(spec.get("head_dim", 64))
    source, target = float(sizes.get("effective_len") or sizes["seq_len"]), float(sizes["dec_len"])
    encoder = text_encoder({**spec, "bias": False, "gated": True, "attention": inner, "buckets": 32}, source, "encoder")
    count = Count()
    for _ in range(spec["layers"]):
        count.attention(hidden, target, heads, inner=inner, bias=False)
        count.attention(hidden, target, heads, inner=inner, context=source, bias=False)
        count.feed_forward(hidden, spec["ffn"], target, gated=True, bias=False)
        count.vector(3 * hidden)
    count.vector(hidden + 32 * heads)
    count.linear(hidden, spec["vocab"], target, False)
    return [encoder, _tower(count, "decoder", spec, target)]


def whisper(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """Whisper: two convolutions over 3,000 frames of 30 s, an encoder of 1,500 tokens, a decoder with cross attention.

    The encoder's tokens do not depend on what was said.
    """
    hidden, frames = int(spec["hidden"]), 3000
    encoder = Count()
    encoder.conv(spec["mels"], hidden, 3, (frames,), bias=True, norm=False)
    (source,) = encoder.conv(hidden, hidden, 3, (frames,), 2, bias=True, norm=False)
    encoder.vector(source * hidden + 2 * hidden)
    stack(encoder, spec["layers"], hidden, 4 * hidden, spec["heads"], source, key_bias=False)
    decoder, target = Count(), float(sizes["dec_len"])
    decoder.vector((spec["vocab"] + 448) * hidden + 2 * hidden)
    for _ in range(spec["layers"]):
        decoder.attention(hidden, target, spec["heads"])
        decoder.attention(hidden, target, spec["heads"], context=float(source))
        decoder.feed_forward(hidden, 4 * hidden, target)
        decoder.vector(3 * 2 * hidden - 2 * hidden)
    decoder.macs += target * hidden * spec["vocab"]
    decoder.elements += target * spec["vocab"]
    return [_tower(encoder, "encoder", spec, source), _tower(decoder, "decoder", spec, target)]


def vision_tower(spec: dict[str, Any], resolution: tuple[int, int]) -> tuple[Component, float]:
    """The image tower of a vision-language model, and the tokens that one image becomes in the language model."""
    count, hidden, patch = Count(), int(spec["hidden"]), int(spec["patch"])
    merge = int(spec.get("merge", 1))
    unit = patch * merge
    patches = float(math.ceil(resolution[0] / unit) * merge * math.ceil(resolution[1] / unit) * merge)
    count.linear(3 * patch * patch, hidden, patches, False)
    count.vector(int(spec.get("positions", 0)) * hidden + int(spec.get("vectors", 0)) * hidden)
    stack(count, spec["layers"], hidden, int(spec["ffn"]), spec["heads"], patches)
    tokens = float(spec["tokens"]) if "tokens" in spec else patches / merge**2
    return _tower(count, "vision tower", spec, patches), tokens


FAMILIES = {"vit": vit, "clip": clip, "bert": bert, "t5": t5, "whisper": whisper}
