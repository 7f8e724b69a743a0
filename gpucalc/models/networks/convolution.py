"""Convolution nets: ResNet and its kin, VGG, AlexNet, Inception, EfficientNet, detectors and volumes."""

from __future__ import annotations

from typing import Any

from gpucalc.models.networks.component import CONV, Component, Count

Size = tuple[int, ...]
STRIDES = (1, 2, 2, 2)


def _squeeze(count: Count, channels: int, inner: int) -> None:
    """Squeeze and excitation: two linear layers on the pooled channels."""
    count.linear(channels, inner)
    count.linear(inner, channels)


def _residual_stage(
    count: Count, inputs: int, stage: int, blocks: int, size: Size, stride: int, spec: dict[str, Any]
) -> tuple[int, Size]:
    bottleneck = bool(spec.get("bottleneck", True))
    groups, width = int(spec.get("groups", 1)), int(spec.get("width", 64))
    planes = 64 * 2**stage
    inner = int(planes * width / 64) * groups if bottleneck else planes
    outputs = planes * (4 if bottleneck else 1)
    for block in range(blocks):
        step = stride if block == 0 else 1
        if block == 0 and (step != 1 or inputs != outputs):
            count.conv(inputs, outputs, 1, size, step)
        if bottleneck:
            count.conv(inputs, inner, 1, size)
            out = count.conv(inner, inner, 3, size, step, groups=groups)
            count.conv(inner, outputs, 1, out)
        else:
            out = count.conv(inputs, planes, 3, size, step)
            count.conv(planes, planes, 3, out)
        if spec.get("squeeze"):
            _squeeze(count, outputs, outputs // int(spec["squeeze"]))
        inputs, size = outputs, out
    return inputs, size


def _stem(count: Count, size: Size) -> Size:
    size = count.conv(3, 64, 7, size, 2)
    return tuple(-(-n // 2) for n in size)


def resnet(spec: dict[str, Any], size: Size) -> list[Component]:
    """A residual net with a classifier: `layers` blocks a stage, `groups` × `width`, `squeeze` reduction."""
    count = Count()
    size, channels = _stem(count, size), 64
    for stage, blocks in enumerate(spec["layers"]):
        channels, size = _residual_stage(count, channels, stage, blocks, size, STRIDES[stage], spec)
    count.linear(channels, int(spec.get("classes", 1000)))
    return [count.component("net", CONV)]


def plain(spec: dict[str, Any], size: Size) -> list[Component]:
    """Convolutions and pools in a row, then linear layers: VGG and AlexNet.

    `convolutions` has (channels, kernel, stride, padding) or "pool" (kernel and stride of `pool`).
    """
    count, channels = Count(), 3
    kernel, stride = spec["pool"]
    for layer in spec["convolutions"]:
        if layer == "pool":
            size = tuple((n - kernel) // stride + 1 for n in size)
            continue
        outputs, taps, step, padding = layer
        padded = tuple(n + 2 * padding for n in size)
        size = count.conv(channels, outputs, taps, padded, step, bias=True, norm=False, valid=True)
        channels = outputs
    features = channels * size[0] * size[1]
    for width in spec["linear"]:
        count.linear(features, width)
        features = width
    return [count.component("net", CONV)]


def inception_v3(spec: dict[str, Any], size: Size) -> list[Component]:
    """Inception v3 without its auxiliary head."""
    n = Count()
    size = n.conv(3, 32, 3, size, 2, valid=True)
    size = n.conv(32, 32, 3, size, valid=True)
    n.conv(32, 64, 3, size)
    size = tuple((k - 3) // 2 + 1 for k in size)
    n.conv(64, 80, 1, size)
    size = n.conv(80, 192, 3, size, valid=True)
    size = tuple((k - 3) // 2 + 1 for k in size)
    channels = 192
    for pool in (32, 64, 64):
        n.conv(channels, 64, 1, size)
        n.conv(channels, 48, 1, size)
        n.conv(48, 64, 5, size)
        n.conv(channels, 64, 1, size)
        n.conv(64, 96, 3, size)
        n.conv(96, 96, 3, size)
        n.conv(channels, pool, 1, size)
        channels = 224 + pool
    small = n.conv(channels, 384, 3, size, 2, valid=True)
    n.conv(channels, 64, 1, size)
    n.conv(64, 96, 3, size)
    n.conv(96, 96, 3, size, 2, valid=True)
    size, channels = small, 768
    for c in (128, 160, 160, 192):
        n.conv(768, 192, 1, size)
        n.conv(768, c, 1, size)
        n.conv(c, c, (1, 7), size)
        n.conv(c, 192, (7, 1), size)
        n.conv(768, c, 1, size)
        for k, outputs in (((7, 1), c), ((1, 7), c), ((7, 1), c), ((1, 7), 192)):
            n.conv(c, outputs, k, size)
        n.conv(768, 192, 1, size)
    n.conv(768, 192, 1, size)
    small = n.conv(192, 320, 3, size, 2, valid=True)
    n.conv(768, 192, 1, size)
    n.conv(192, 192, (1, 7), size)
    n.conv(192, 192, (7, 1), size)
    n.conv(192, 192, 3, size, 2, valid=True)
    size, channels = small, 1280
    for _ in range(2):
        n.conv(channels, 320, 1, size)
        n.conv(channels, 384, 1, size)
        n.conv(384, 384, (1, 3), size)
        n.conv(384, 384, (3, 1), size)
        n.conv(channels, 448, 1, size)
        n.conv(448, 384, 3, size)
        n.conv(384, 384, (1, 3), size)
        n.conv(384, 384, (3, 1), size)
        n.conv(channels, 192, 1, size)
        channels = 2048
    n.linear(2048, 1000)
    return [n.component("net", CONV)]


def _rounded(channels: float, divisor: int = 8) -> int:
    """Channels of a scaled net: the nearest multiple of 8 that is not more than a tenth smaller."""
    new = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return new + divisor if new < 0.9 * channels else new


def efficientnet(spec: dict[str, Any], size: Size) -> list[Component]:
    """EfficientNet, both versions: stages of (kind, expansion, channels, blocks, stride, kernel)."""
    count = Count()
    width, depth = float(spec.get("width", 1.0)), float(spec.get("depth", 1.0))
    channels = _rounded(int(spec["stem"]) * width)
    size = count.conv(3, channels, 3, size, 2)
    for kind, expansion, planes, blocks, stride, kernel in spec["stages"]:
        outputs = _rounded(planes * width)
        for block in range(-int(-blocks * depth // 1)):
            step, inner = (stride if block == 0 else 1), channels * expansion
            if kind == "fused":
                if expansion > 1:
                    size = count.conv(channels, inner, kernel, size, step)
                    count.conv(inner, outputs, 1, size)
                else:
                    size = count.conv(channels, outputs, kernel, size, step)
            else:
                if expansion > 1:
                    count.conv(channels, inner, 1, size)
                size = count.conv(inner, inner, kernel, size, step, groups=inner)
                _squeeze(count, inner, max(1, channels // 4))
                count.conv(inner, outputs, 1, size)
            channels = outputs
    head = _rounded(int(spec.get("head", 1280)) * width) if spec.get("wide_head", True) else int(spec["head"])
    count.conv(channels, head, 1, size)
    count.linear(head, 1000)
    return [count.component("net", CONV)]


def retinanet(spec: dict[str, Any], size: Size) -> list[Component]:
    """RetinaNet on a residual net: a feature pyramid of 256 channels and two heads on five levels.

    Unless `trained_norms`, those of the body are frozen and do not count as parameters.
    """
    body = Count()
    size, channels = _stem(body, size), 64
    levels: list[tuple[int, Size]] = []
    for stage, blocks in enumerate(spec["layers"]):
        channels, size = _residual_stage(body, channels, stage, blocks, size, STRIDES[stage], spec)
        levels.append((channels, size))
    if not spec.get("trained_norms"):
        body.parameters -= _norms(spec)
    neck, out = Count(), []
    for channels, size in levels[1:]:
        neck.conv(channels, 256, 1, size, bias=True, norm=False)
        neck.conv(256, 256, 3, size, bias=True, norm=False)
        out.append(size)
    first = neck.conv(256 if spec.get("p6_from_pyramid", True) else 2048, 256, 3, out[-1], 2, bias=True, norm=False)
    out += [first, neck.conv(256, 256, 3, first, 2, bias=True, norm=False)]
    head, anchors, classes = Count(), 9, int(spec["classes"])
    for level, size in enumerate(out):
        one = Count()
        for _ in range(8):
            one.conv(256, 256, 3, size, bias=True, norm=False)
        one.conv(256, anchors * classes, 3, size, bias=True, norm=False)
        one.conv(256, anchors * 4, 3, size, bias=True, norm=False)
        head.macs, head.elements = head.macs + one.macs, head.elements + one.elements
        head.fast_macs += one.fast_macs
        head.bare += one.bare
        head.launches += one.launches
        head.parameters = one.parameters if level == 0 else head.parameters  # the levels share their weights
    return [body.component("backbone", CONV), neck.component("pyramid", CONV), head.component("heads", CONV)]


def _norms(spec: dict[str, Any]) -> int:
    """Scales and shifts of all norms of a bottleneck net without classifier."""
    groups, width = int(spec.get("groups", 1)), int(spec.get("width", 64))
    total = 2 * 64
    for stage, blocks in enumerate(spec["layers"]):
        planes = 64 * 2**stage
        inner = int(planes * width / 64) * groups
        total += 2 * (blocks * (2 * inner + 4 * planes) + 4 * planes)
    return total


def ssd300(spec: dict[str, Any], size: Size) -> list[Component]:
    """SSD on ResNet-50: the body to its third stage at stride 1, five extra levels, one box and class head a level."""
    body = Count()
    size, channels = _stem(body, size), 64
    for stage, stride in enumerate((1, 2, 1)):
        channels, size = _residual_stage(body, channels, stage, spec["layers"][stage], size, stride, spec)
    classes, extra, head = int(spec["classes"]), Count(), Count()
    levels = [(channels, size)]
    for index, (inner, outputs) in enumerate(((256, 512), (256, 512), (128, 256), (128, 256), (128, 256))):
        extra.conv(channels, inner, 1, size)
        step, valid = (2, False) if index < 3 else (1, True)
        size = extra.conv(inner, outputs, 3, size, step, valid=valid)
        channels = outputs
        levels.append((channels, size))
    for (channels, size), boxes in zip(levels, (4, 6, 6, 6, 4, 4), strict=True):
        head.conv(channels, boxes * 4, 3, size, bias=True, norm=False)
        head.conv(channels, boxes * classes, 3, size, bias=True, norm=False)
    return [body.component("backbone", CONV), extra.component("extra", CONV), head.component("heads", CONV)]


def unet3d(spec: dict[str, Any], size: Size) -> list[Component]:
    """A volume U-Net: two 3×3×3 convolutions a level, transposed convolutions on the way up, heads at each level."""
    count, channels, kept = Count(), int(spec.get("inputs", 1)), []
    widths, classes = spec["channels"], int(spec["classes"])
    for level, width in enumerate(widths):
        size = count.conv(channels, width, 3, size, 2 if level else 1, bias=bool(spec.get("bias", False)))
        count.conv(width, width, 3, size, bias=bool(spec.get("bias", False)))
        channels = width
        kept.append((width, size))
    for level, (width, size) in enumerate(reversed(kept[:-1])):
        pixels = 1
        for n in size:
            pixels *= n
        # A transposed convolution of stride 2: each output element meets one tap of the kernel.
        count.parameters += 8 * channels * width + (width if spec.get("up_bias") else 0)
        count.macs += float(channels * width * pixels)
        count.elements += float(width * pixels)
        count.launches += 1
        count.conv(2 * width, width, 3, size, bias=bool(spec.get("bias", False)))
        count.conv(width, width, 3, size, bias=bool(spec.get("bias", False)))
        if level >= len(kept) - 1 - int(spec.get("supervised", 1)):
            count.conv(width, classes, 1, size, bias=True, norm=False)
        channels = width
    return [count.component("net", CONV)]


FAMILIES = {
    "resnet": resnet,
    "plain": plain,
    "inception-v3": inception_v3,
    "efficientnet": efficientnet,
    "retinanet": retinanet,
    "ssd300": ssd300,
    "unet3d": unet3d,
}
