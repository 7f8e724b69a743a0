"""Diffusion models: denoisers (UNet, DiT, multimodal DiT, video transformers), autoencoders and text encoders."""

from __future__ import annotations

import math
from typing import Any

from gpucalc.models.networks.component import MMDIT, TRANSFORMER, UNET, VAE, Component, Count
from gpucalc.models.networks.transformers import stack, text_encoder

Sizes = dict[str, Any]


def latent_tokens(spec: dict[str, Any], sizes: Sizes) -> float:
    """Tokens of a latent: (1 + (frames - 1)/t) · H/(s p) · W/(s p).

    >>> latent_tokens({"shrink": 8, "patch": 2}, {"resolution": (1024, 1024), "frames": 1})
    4096.0
    >>> latent_tokens({"shrink": 8, "patch": 2, "time_shrink": 4}, {"resolution": (720, 1280), "frames": 129})
    118800.0
    """
    height, width = sizes["resolution"]
    unit = int(spec.get("shrink", 8)) * int(spec.get("patch", 2))
    frames = 1 + (int(sizes.get("frames") or 1) - 1) // int(spec.get("time_shrink", 1))
    return float(frames * math.ceil(height / unit) * math.ceil(width / unit))


# --- UNets ---------------------------------------------------------------------------------------


def _resnet(count: Count, inputs: int, outputs: int, size: tuple[int, ...], time: int) -> None:
    """Two convolutions with group norms, a projection of the time embedding, a 1×1 skip where widths differ."""
    count.vector(2 * inputs + 2 * outputs)
    count.conv(inputs, outputs, 3, size, bias=True, norm=False)
    count.linear(time, outputs)
    count.conv(outputs, outputs, 3, size, bias=True, norm=False)
    if inputs != outputs:
        count.conv(inputs, outputs, 1, size, bias=True, norm=False)


def _spatial(count: Count, width: int, depth: int, size: tuple[int, ...], spec: dict[str, Any], context: float) -> None:
    """A transformer on the pixels: projections in and out, `depth` × (self, cross, gated feed-forward of 4 c)."""
    tokens = float(size[0] * size[1])
    heads = int(spec["heads"]) if "heads" in spec else width // int(spec["head_dim"])
    count.vector(2 * width)
    count.linear(width, width, tokens)
    for _ in range(depth):
        count.vector(3 * 2 * width)
        for other in (None, context):
            count.attention(
                width, tokens, heads, context=other, context_width=int(spec["context"]), bias=True, qkv_bias=False
            )
        count.linear(width, 8 * width, tokens)
        count.linear(4 * width, width, tokens)
    count.linear(width, width, tokens)


def unet(spec: dict[str, Any], sizes: Sizes) -> Component:
    """A Stable Diffusion UNet: `channels` a level, `depths` of its transformers, skips that widen the way up."""
    count = Count()
    widths, depths, blocks = spec["channels"], spec["depths"], 2
    size: tuple[int, ...] = tuple(math.ceil(n / 8) for n in sizes["resolution"])
    context, first = float(sizes["text_tokens"]), widths[0]
    time = 4 * first
    for inputs in (first, int(spec["added"])) if spec.get("added") else (first,):
        count.linear(inputs, time)
        count.linear(time, time)
    count.conv(4, first, 3, size, bias=True, norm=False)
    kept, channels = [(first, size)], first
    for level, width in enumerate(widths):
        for _ in range(blocks):
            _resnet(count, channels, width, size, time)
            channels = width
            if depths[level]:
                _spatial(count, width, depths[level], size, spec, context)
            kept.append((width, size))
        if level < len(widths) - 1:
            size = count.conv(width, width, 3, size, 2, bias=True, norm=False)
            kept.append((width, size))
    _resnet(count, channels, channels, size, time)
    _spatial(count, channels, int(spec.get("middle", 1)), size, spec, context)
    _resnet(count, channels, channels, size, time)
    for level in reversed(range(len(widths))):
        width = widths[level]
        for _ in range(blocks + 1):
            skip, size = kept.pop()
            _resnet(count, channels + skip, width, size, time)
            channels = width
            if depths[level]:
                _spatial(count, width, depths[level], size, spec, context)
        if level:
            size = tuple(2 * n for n in size)
            count.conv(width, width, 3, size, bias=True, norm=False)
    count.vector(2 * first)
    count.conv(first, 4, 3, size, bias=True, norm=False)
    tokens = float(size[0] * size[1])
    heads = int(spec.get("heads", first // int(spec.get("head_dim", 64))))
    return count.component("denoiser", UNET, tokens=tokens, hidden=first, heads=heads, blocks=len(widths))


# --- transformers --------------------------------------------------------------------------------


def _blocks(count: Count, name: str, kind: str, spec: dict[str, Any], tokens: float, blocks: int) -> Component:
    return count.component(name, kind, tokens=tokens, hidden=spec["hidden"], heads=spec["heads"], blocks=blocks)


def dit(spec: dict[str, Any], sizes: Sizes) -> Component:
    """DiT: blocks modulated by time and class (adaLN-zero), fixed positions counted as parameters."""
    count, h = Count(), int(spec["hidden"])
    tokens = latent_tokens(spec, sizes)
    count.linear(4 * 4, h, tokens)
    count.vector(int(tokens) * h + 1001 * h)
    count.linear(256, h)
    count.linear(h, h)
    for _ in range(spec["layers"]):
        count.attention(h, tokens, spec["heads"])
        count.feed_forward(h, 4 * h, tokens)
        count.linear(h, 6 * h)
    count.linear(h, 2 * h)
    count.linear(h, 4 * 8, tokens)
    return _blocks(count, "denoiser", TRANSFORMER, spec, tokens, spec["layers"])


def _joint(count: Count, h: int, tokens: float, heads: int) -> None:
    """Scores and their product over image and text together."""
    scores = 2 * tokens * tokens * h
    count.macs, count.scores = count.macs + scores, count.scores + scores
    count.logits += tokens * tokens * heads
    count.elements += tokens * h
    count.launches += 1


def mmdit(spec: dict[str, Any], sizes: Sizes) -> Component:
    """FLUX and its kin: double blocks with weights of their own for image and text, then single blocks for both.

    A token meets the weights of its own modality only. `shared_modulation`: one modulation for all blocks;
    `gated`: feed-forward of ratio `ratio` with two matrices in.
    """
    count, h = Count(), int(spec["hidden"])
    image, text = latent_tokens(spec, sizes), float(sizes["text_tokens"])
    tokens, heads, ratio = image + text, int(spec["heads"]), float(spec.get("ratio", 4))
    plain, gated, shared = bool(spec.get("bias", True)), bool(spec.get("gated")), bool(spec.get("shared_modulation"))
    inner, bias = int(ratio * h), plain
    count.linear(int(spec.get("latent", 64)), h, image, bias)
    count.linear(int(spec["text_width"]), h, text, bias)
    for inputs in (256, *spec.get("vectors", ())):
        count.linear(inputs, h, 1, bias)
        count.linear(h, h, 1, bias)
    if shared:
        for parts in (6, 6, 3):
            count.linear(h, parts * h, 1, bias)
    for _ in range(spec["double"]):
        for own in (image, text):
            if not shared:
                count.linear(h, 6 * h, 1, bias)
            count.linear(h, 3 * h, own, bias)
            count.linear(h, h, own, bias)
            count.vector(2 * h // heads)
            count.feed_forward(h, inner, own, gated=gated, bias=bias)
        _joint(count, h, tokens, heads)
    for _ in range(spec["single"]):
        if not shared:
            count.linear(h, 3 * h, 1, bias)
        count.linear(h, 3 * h + (2 if gated else 1) * inner, tokens, bias)
        count.linear(h + inner, h, tokens, bias)
        count.vector(2 * h // heads)
        _joint(count, h, tokens, heads)
    count.linear(h, 2 * h, 1, bias)
    count.linear(h, int(spec.get("latent", 64)), image, bias)
    refiner = int(spec.get("refiner", 0))  # blocks on the text alone before it joins
    if refiner:
        stack(count, refiner, h, 4 * h, heads, text)
    return _blocks(count, "denoiser", MMDIT, spec, tokens, spec["double"] + spec["single"])


def cogvideo(spec: dict[str, Any], sizes: Sizes) -> Component:
    """CogVideoX: text and video in one sequence, norms of each modality modulated by time."""
    count, h = Count(), int(spec["hidden"])
    video, text = latent_tokens(spec, sizes), float(sizes["text_tokens"])
    tokens, time = video + text, 512
    count.linear(16 * 4, h, video)
    count.linear(spec["text_width"], h, text)
    count.linear(h, time)
    count.linear(time, time)
    for _ in range(spec["layers"]):
        for _ in range(2):
            count.linear(time, 6 * h)
            count.vector(2 * h)
        count.vector(2 * 2 * h // spec["heads"])
        count.attention(h, tokens, spec["heads"])
        count.feed_forward(h, 4 * h, tokens)
    count.vector(2 * h + 2 * h)
    count.linear(time, 2 * h)
    count.linear(h, 16 * 4, video)
    return _blocks(count, "denoiser", TRANSFORMER, spec, tokens, spec["layers"])


def wan(spec: dict[str, Any], sizes: Sizes) -> Component:
    """Wan 2.1: self attention on the video, cross attention to the text, modulation vectors a block."""
    count, h = Count(), int(spec["hidden"])
    video, text = latent_tokens(spec, sizes), float(sizes["text_tokens"])
    count.linear(16 * 4, h, video)
    count.linear(spec["text_width"], h, text)
    count.linear(h, h, text)
    count.linear(256, h)
    count.linear(h, h)
    count.linear(h, 6 * h)
    for _ in range(spec["layers"]):
        count.attention(h, video, spec["heads"])
        count.attention(h, video, spec["heads"], context=text)
        count.feed_forward(h, spec["ffn"], video)
        count.vector(4 * h + 2 * h + 6 * h)
    count.linear(h, 16 * 4, video)
    count.vector(2 * h)
    return _blocks(count, "denoiser", TRANSFORMER, spec, video, spec["layers"])


# --- autoencoders --------------------------------------------------------------------------------


def _vae_attention(count: Count, channels: int, size: tuple[int, ...]) -> None:
    count.vector(2 * channels)
    count.attention(channels, float(size[-1] * size[-2]), 1)


def _residual(count: Count, inputs: int, outputs: int, size: tuple[int, ...]) -> None:
    count.vector(2 * inputs + 2 * outputs)
    count.conv(inputs, outputs, 3, size, bias=True, norm=False)
    count.conv(outputs, outputs, 3, size, bias=True, norm=False)
    if inputs != outputs:
        count.conv(inputs, outputs, 1, size, bias=True, norm=False)


def autoencoder(spec: dict[str, Any], sizes: Sizes, *, encode: bool) -> Component:
    """The decoder of an autoencoder (to the picture), or its encoder (to the latent): a shrink of 8 in the plane.

    With `time_shrink` convolutions are 3-D and the frames shrink with the second and third level.
    """
    latent, widths = int(spec.get("latent", 4)), spec.get("channels", (128, 256, 512, 512))
    frames, video = int(sizes.get("frames") or 1), int(spec.get("time_shrink", 1))
    plane = tuple(math.ceil(n / 8) * 8 for n in sizes["resolution"])
    scales = [2**level for level in range(len(widths))]
    count = Count()

    def size_at(level: int) -> tuple[int, ...]:
        flat = tuple(n // scales[level] for n in plane)
        if video == 1:
            return flat
        shrink = min(video, 2 ** max(0, level - (len(widths) - 1 - round(math.log2(video)))))
        return (1 + (frames - 1) // shrink, *flat)

    last, top = len(widths) - 1, widths[-1]
    if encode:
        count.conv(3, widths[0], 3, size_at(0), bias=True, norm=False)
        channels = widths[0]
        for level, width in enumerate(widths):
            for _ in range(2):
                _residual(count, channels, width, size_at(level))
                channels = width
            if level < last:
                count.conv(width, width, 3, size_at(level + 1), bias=True, norm=False)
    else:
        count.conv(latent, top, 3, size_at(last), bias=True, norm=False)
        channels = top
    for _ in range(2):
        _residual(count, top, top, size_at(last))
    middle = Count()
    _vae_attention(middle, top, size_at(last))
    images = size_at(last)[0] if video > 1 else 1
    count.parameters += middle.parameters
    count.macs += middle.macs * images
    count.scores += middle.scores * images
    count.elements += middle.elements * images
    count.logits += middle.logits * images
    count.launches += middle.launches
    if not encode:
        for level in reversed(range(len(widths))):
            for _ in range(3):
                _residual(count, channels, widths[level], size_at(level))
                channels = widths[level]
            if level:
                count.conv(channels, channels, 3, size_at(level - 1), bias=True, norm=False)
    outputs = 2 * latent if encode else 3
    where = size_at(last if encode else 0)
    count.vector(2 * channels)
    count.conv(channels, outputs, 3, where, bias=True, norm=False)
    if spec.get("quant", True):
        width = 2 * latent if encode else latent
        count.conv(width, width, 1, size_at(last), bias=True, norm=False)
    latent_frames = size_at(last)[0] if video > 1 else 0
    return count.component("VAE encoder" if encode else "VAE decoder", VAE, blocks=latent_frames)


def pipeline(spec: dict[str, Any], sizes: Sizes) -> list[Component]:
    """Everything that makes a picture or clip: text encoders, denoiser, VAE; encoder instead of decoder to train."""
    kind = {"unet": unet, "dit": dit, "mmdit": mmdit, "cogvideo": cogvideo, "wan": wan}[spec["denoiser"]]
    parts = [kind(spec, sizes)]
    for index, encoder in enumerate(spec.get("text", ())):
        tokens = float(encoder.get("tokens", sizes["text_tokens"]))
        parts.append(text_encoder(encoder, tokens, f"text encoder {index + 1}" if index else "text encoder"))
    parts.append(autoencoder(spec.get("vae", {}), sizes, encode=bool(sizes.get("encode"))))
    return parts


FAMILIES = {"diffusion": pipeline}
