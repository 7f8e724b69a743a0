"""Networks by name, or from three numbers: presets of `presets/networks.toml` at a stated size."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.models.networks import convolution, diffusion, recommender, transformers
from gpucalc.models.networks.component import CONV, FROZEN, TRANSFORMER, Component, Network
from gpucalc.models.networks.files import network_file, spec_of
from gpucalc.models.presets import FOLDER, folded

BUILDERS = {**transformers.FAMILIES, **diffusion.FAMILIES, **recommender.FAMILIES}
NETS = ("conv", "depthwise", "vit", "hierarchical", "mixed")  # kinds that a custom net may state
NUMBERS = ("params_m", "gmac", "mact")
# Cells that size a network, and those of them that a family has.
SIZES = (
    *("resolution", "frames", "seq_len", "effective_len", "dec_len", "text_tokens", "task"),
    *("tables", "table_rows_m", "embedding_dim", "hotness"),
)
SIZED = {
    "vit": ("resolution", "seq_len"),
    "clip": ("resolution", "text_tokens", "seq_len"),
    "bert": ("seq_len", "effective_len", "task"),
    "t5": ("seq_len", "effective_len", "dec_len"),
    "whisper": ("dec_len", "seq_len"),
    "diffusion": ("resolution", "frames", "text_tokens"),
    "dlrm": ("tables", "table_rows_m", "embedding_dim", "hotness"),
}
IGNORED = ("task",)  # free text that may say nothing to a family
USUAL_LAYERS, USUAL_MACS = (
    80.0,
    4e9,
)  # layers of a net of so many products, and how they grow: ResNets, EfficientNets, ViTs
LAYER_GROWTH = 0.2
TOKENS_OF_SCORES = 640.0  # tokens at which a ViT's scores are as many as the elements that its layers write: 10 × 64


@lru_cache(maxsize=1)
def specs() -> dict[str, dict[str, Any]]:
    """All presets as written."""
    with (FOLDER / "networks.toml").open("rb") as stream:
        return tomllib.load(stream)


def network_names() -> list[str]:
    """The presets of networks, sorted.

    >>> "resnet-50" in network_names(), "flux.1-dev" in network_names()
    (True, True)
    """
    return sorted(specs())


@lru_cache(maxsize=1)
def _folded() -> dict[str, str]:
    return {folded(name, "-"): name for name in specs()}


def resolve_network(name: str) -> str | None:
    """The preset that `name` means, or the file of a network that it is; else None.

    >>> resolve_network("ResNet50"), resolve_network("FLUX.1-dev"), resolve_network("llama-3.1-8b")
    ('resnet-50', 'flux.1-dev', None)
    """
    if network_file(name) is not None:
        return name
    text = name.strip().casefold()
    return text if text in specs() else _folded().get(folded(text, "-"))


def parse_resolution(text: str, dimensions: int = 2) -> tuple[int, ...]:
    """A size in pixels from its text.

    >>> parse_resolution("512x384"), parse_resolution("128x128x128", 3)
    ((512, 384), (128, 128, 128))
    """
    try:
        size = tuple(int(part) for part in str(text).casefold().replace("×", "x").split("x"))
    except ValueError:
        size = ()
    if len(size) != dimensions or min(size, default=0) < 1 or max(size, default=0) > 1 << 20:
        form = "HxW such as 512x512" if dimensions == 2 else "DxHxW such as 128x128x128"
        raise UsageError(f"resolution is {text!r}, expected pixels as {form}")
    return size


def load_network(name: str, sizes: Mapping[str, Any] | None = None) -> Network:
    """A preset at its own size, or at the stated ones.

    Raises UsageError for a size that the network does not have, and for more tokens than it has positions.

    >>> load_network("resnet-50").parameters, load_network("flux.1-dev", {"resolution": "256x256"}).components[0].tokens
    (25557032, 768.0)
    """
    stated = tuple(sorted((n, v) for n, v in (sizes or {}).items() if v is not None))
    return _built(name, stated)


@lru_cache(maxsize=512)
def _built(name: str, stated: tuple[tuple[str, Any], ...]) -> Network:
    path = None if name in specs() else network_file(name)
    spec, given = specs()[name] if path is None else _file_spec(path), dict(stated)
    family = str(spec["family"])
    takes = SIZED.get(family, ("resolution",))
    encode = given.pop("encode", False)
    problems = [f"{name} has no {cell}" for cell in given if cell not in takes and cell not in IGNORED]
    if problems:
        raise UsageError(*problems)
    whole = {cell: spec[cell] for cell in takes if cell in spec} | given
    sizes: dict[str, Any] = dict(whole) | {"encode": encode}
    if "resolution" in whole:
        dimensions = str(spec["resolution"]).count("x") + 1
        sizes["resolution"] = parse_resolution(str(whole["resolution"]), dimensions)
    for cell in ("seq_len", "dec_len"):
        most = int(spec.get("positions", 0))
        if most and cell in given and int(given[cell]) > most and not (family == "whisper" and cell == "seq_len"):
            raise UsageError(f"{cell} {given[cell]} is beyond the {most} positions of {name}")
    sizes.setdefault("text_tokens", 0)
    build = convolution.FAMILIES.get(family)
    parts = build(spec, sizes["resolution"]) if build else BUILDERS[family](spec, sizes)
    if family in {"vit", "clip"} and int(given.get("seq_len", 0)) > parts[0].tokens:
        raise UsageError(
            f"seq_len {given['seq_len']} is beyond the {parts[0].tokens:g} tokens of {name} at its resolution"
        )
    return Network(
        name,
        str(spec["net"]),
        str(spec.get("sample", "image")),
        tuple(parts),
        positions=int(spec.get("positions", 0)),
        steps=int(spec.get("steps", 0)),
        guided=bool(spec.get("cfg", False)),
        guided_in_turn=bool(spec.get("cfg_in_turn", False)),
        size=whole,
    )


def _file_spec(path: Path) -> dict[str, Any]:
    return spec_of(path)[1]


def custom_network(name: str, numbers: Mapping[str, float], net: str, sample: str = "image") -> Network:
    """A net of which three numbers are known: parameters in millions, 10⁹ multiply-accumulates, 10⁶ written elements.

    >>> custom_network("timm/regnety_032", {"params_m": 19.44, "gmac": 3.2, "mact": 11.26}, "conv").parameters
    19440000
    """
    missing = [n for n in NUMBERS if numbers.get(n) is None]
    if missing:
        raise UsageError(f"{name} is no preset, and {', '.join(missing)} not stated; state {WAYS}")
    macs, elements, parameters = numbers["gmac"] * 1e9, numbers["mact"] * 1e6, round(numbers["params_m"] * 1e6)
    # Weights of a plain transformer meet every token: products over parameters are tokens, and these give its scores.
    tokens = macs / max(parameters, 1) if net == "vit" else 0.0
    scores = tokens / (TOKENS_OF_SCORES + tokens)
    part = Component(
        "net",
        CONV if net in {"conv", "depthwise", "mixed"} else TRANSFORMER,
        parameters,
        macs=macs,
        elements=elements * (1 - scores),
        logits=elements * scores,
        launches=max(8, round(USUAL_LAYERS * (macs / USUAL_MACS) ** LAYER_GROWTH)),
    )
    return Network(name, net, sample, (part,))


def describe_network(name: str) -> dict[str, Any]:
    """Facts of a preset at its own size: counts as timm and fvcore print them, and its components.

    >>> describe_network("resnet-50")["parameters_total"], round(describe_network("resnet-50")["gmac"], 3)
    (25557032, 4.089)
    """
    network = load_network(name)
    return {
        "name": name,
        "architecture": "of a file" if name not in specs() else str(specs()[name]["family"]),
        "net": network.net,
        "sample": network.sample,
        "size": {cell: value for cell, value in network.size.items()},
        "parameters_total": network.parameters,
        "gmac": network.macs / 1e9,
        "mact": network.elements / 1e6,
        **({"steps": network.steps, "cfg": network.guided} if network.steps else {}),
        "components": {
            part.name: {
                "kind": part.kind,
                "parameters": part.parameters,
                "gmac": part.macs / 1e9,
                "mact": (part.elements + part.logits) / 1e6,
            }
            for part in network.components
        },
        "warnings": [],
    }


WAYS = "a preset of `gpucalc models list`, a path to a config.json or its folder, or params_m, gmac and mact of any net"


def restated(network: Network, numbers: Mapping[str, float]) -> Network:
    """A preset with stated numbers of the whole model in the place of its own.

    Products and written elements of all its components scale alike; where attention has scores, counts differ in how
    these are written, so that they take the difference. Parameters that the others leave are the largest component's.
    """
    from dataclasses import replace

    core = network.core
    products = numbers["gmac"] * 1e9 / network.macs if numbers.get("gmac") is not None and network.macs else 1.0
    written = scores = 1.0
    if numbers.get("mact") is not None and network.elements:
        of_scores = sum(part.logits for part in core)
        of_layers = network.elements - of_scores
        left = numbers["mact"] * 1e6 - of_layers
        scores = left / of_scores if of_scores and left >= 0 else numbers["mact"] * 1e6 / network.elements
        written = 1.0 if of_scores and left >= 0 else scores
    largest = max(core, key=lambda part: part.macs)
    parameters = largest.parameters
    if numbers.get("params_m") is not None:
        parameters = max(0, round(numbers["params_m"] * 1e6) - network.parameters + largest.parameters)
    parts = []
    for part in network.components:
        if part not in core:
            parts.append(part)
            continue
        stated = replace(
            part,
            macs=part.macs * products,
            scores=part.scores * products,
            fast_macs=part.fast_macs * products,
            elements=part.elements * written,
            bare=part.bare * written,
            logits=part.logits * scores,
        )
        parts.append(replace(stated, parameters=parameters) if part is largest else stated)
    return replace(network, components=tuple(parts))


def with_states(network: Network, trained: str) -> Network:
    """The network with the part that learns: all, or one named (denoiser, projector, llm+projector, control)."""
    from dataclasses import replace

    if trained in {"", "all"}:
        return network
    words = trained.split("+")
    parts = [
        part if any(w in part.name.split() or w == part.name for w in words) else part.in_state(FROZEN)
        for part in network.components
    ]
    if all(part.state == FROZEN for part in parts):
        names = ", ".join(part.name for part in network.components)
        raise UsageError(f"trained={trained} names no part of {network.name}; its parts: {names}")
    return replace(network, components=tuple(parts))
