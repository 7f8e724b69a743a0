"""How a checkpoint stores its weights and asks for its cache: the `quantization_config` of a config.json.

Read are the methods of Hugging Face (fp8, mxfp4, gptq, awq, bitsandbytes), of compressed-tensors, of ModelOpt and of
fbgemm and quark. What a checkpoint leaves in 16 bit is told by patterns of module names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("attn", "attention"),
    "expert": ("experts",),
    "mlp": ("mlp", "ffn", "feed_forward", "shared_expert"),
    "linear": ("linear_attn", "mamba", "mixer"),
}
_NO_WEIGHTS = re.compile(
    r"norm|router|gate$|gate\.weight|embed|lm_head|vision|visual|audio|multi_modal|mtp|nextn|eh_proj"
)
_LAYER = re.compile(r"\blayers?\.(\d+)\.")


@dataclass(frozen=True)
class Stored:
    """The formats of a checkpoint, by the names that the serving questions take; empty where it says nothing.

    plain: the kinds of products (attention, mlp, expert) that are left in 16 bit.
    """

    weights: str = ""
    cache: str = ""
    plain: tuple[str, ...] = ()


def stored_formats(config: Mapping[str, Any], layers: int) -> Stored:
    """The formats that a configuration states.

    >>> stored_formats({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, 4).weights
    'fp8'
    >>> stored_formats({"quantization_config": {"quant_method": "awq", "bits": 4}}, 4).weights
    'int4'
    >>> stored_formats({}, 4).weights
    ''
    """
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return Stored()
    weights = _weights(quantized)
    if not weights:
        return Stored()
    kept: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "exclude"):
        if isinstance(found := quantized.get(key), list):
            kept += [str(name) for name in found]
    return Stored(weights, _cache(quantized), tuple(_plain(kept, max(layers, 1))))


def _weights(quantized: Mapping[str, Any]) -> str:
    method = str(quantized.get("quant_method") or "").casefold().replace("_", "-")
    algorithm = str(quantized.get("quant_algo") or "").casefold().replace("_", "-")
    if algorithm:  # ModelOpt
        if "fp4" in algorithm:
            return "nvfp4" if "mx" not in algorithm else "mxfp4"
        if "fp8" in algorithm:
            return "fp8"
        return "int4" if "w4a" in algorithm or "int4" in algorithm else "int8" if "int8" in algorithm else ""
    if method in {"fp8", "mxfp8", "mxfp4", "nvfp4"}:
        return method
    if method in {"fbgemm-fp8", "finegrained-fp8"}:
        return "fp8"
    if method in {"gptq", "awq", "gptq-marlin", "awq-marlin", "auto-round"}:
        return _integer(quantized.get("bits", 4))
    if method == "bitsandbytes":
        return "int4" if quantized.get("load_in_4bit") else "int8"
    return _of_groups(quantized)


def _integer(bits: Any) -> str:
    return {4: "int4", 8: "int8"}.get(bits if isinstance(bits, int) else 0, "")


def _of_groups(quantized: Mapping[str, Any]) -> str:
    """The format of the first group of compressed-tensors or quark that quantises weights."""
    groups = quantized.get("config_groups")
    candidates: Iterable[Any] = (
        groups.values() if isinstance(groups, Mapping) else [quantized.get("global_quant_config")]
    )
    for group in candidates:
        weights = (group.get("weights") or group.get("weight")) if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        kind = str(weights.get("type") or weights.get("dtype") or "").casefold()
        bits = weights.get("num_bits")
        if "fp4" in kind or (kind == "float" and bits == 4):
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        if "fp8" in kind or (kind == "float" and bits == 8):
            return "fp8"
        return _integer(bits if isinstance(bits, int) else int(m[1]) if (m := re.search(r"int(\d+)", kind)) else 0)
    return ""


def _cache(quantized: Mapping[str, Any]) -> str:
    """The format of the cache that the checkpoint has scales for; empty: none, so 16 bit."""
    scheme = quantized.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        named = f"{scheme.get('type')}{scheme.get('num_bits')}"
        return {"float8": "fp8", "float4": "nvfp4", "int8": "int8"}.get(named, "")
    text = str(quantized.get("kv_cache_quant_algo") or quantized.get("kv_cache_quant_method") or "").casefold()
    return next((name for name in ("nvfp4", "fp8", "int8") if name in text), "")


def _plain(patterns: Iterable[str], layers: int) -> list[str]:
    """Kinds of products of which at least half the layers stay in 16 bit.

    >>> _plain(["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"], 24)
    ['attention']
    >>> _plain(["model.layers.0.self_attn.q_proj"], 24)
    []
    """
    covered: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for pattern in patterns:
        text = pattern.casefold().replace("\\.", ".").rstrip("*.$")
        if _NO_WEIGHTS.search(text):
            continue
        kind = next(
            (kind for kind in ("linear", "attention", "expert", "mlp") if any(w in text for w in KINDS[kind])), ""
        )
        if not kind:
            continue
        found = _LAYER.search(text)
        covered[kind] |= {int(found[1])} if found else set(range(layers))
    return [kind for kind, places in covered.items() if 2 * len(places) >= layers and kind != "linear"]
