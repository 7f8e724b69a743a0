"""Networks from public files: the `config.json` of an encoder, or a diffusers folder, as the shape of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError

Config = Mapping[str, Any]
VIEW = "config.json"


def network_file(name: str) -> Path | None:
    """The file or folder that `name` is, where it describes a network; None for names and decoders' files."""
    if not (name.endswith(".json") or name.startswith((".", "/", "~")) or "/" in name):
        return None
    path = Path(name).expanduser()
    try:
        if not path.exists():
            return None
    except OSError:
        return None
    return path if _kind(path) else None


def _kind(path: Path) -> str:
    """The class of a file: diffusers, a model type that is known here; "" for what the importer of decoders reads."""
    if path.is_dir() and (path / "model_index.json").is_file():
        return "diffusers"
    config = _read(path / VIEW if path.is_dir() else path)
    if "_class_name" in config:
        return "diffusers"
    kind = str(config.get("model_type", ""))
    return kind if kind in READERS else ""


def _read(path: Path) -> dict[str, Any]:
    from gpucalc.models.huggingface.reader import parse_config

    try:
        return parse_config(path.read_bytes(), str(path))
    except OSError:
        return {}


def spec_of(path: Path) -> tuple[str, dict[str, Any]]:
    """The name of a file's network and its shape in the terms of a preset. DataError for what is not known or there."""
    kind = _kind(path)
    try:
        if kind == "diffusers":
            return path.name, _diffusers(path)
        return path.parent.name or path.stem, READERS[kind](_read(path / VIEW if path.is_dir() else path))
    except KeyError as missing:
        raise DataError(f"{path}: {missing.args[0]} is not stated") from None


def _image_encoder(config: Config) -> dict[str, Any]:
    hidden = int(config["hidden_size"])
    return {
        "image": int(config.get("image_size", 224)),
        "patch": int(config.get("patch_size", 16)),
        "hidden": hidden,
        "layers": int(config["num_hidden_layers"]),
        "heads": int(config["num_attention_heads"]),
        "ffn": int(config.get("intermediate_size", 4 * hidden)),
    }


def _vit(config: Config) -> dict[str, Any]:
    labels = config.get("id2label")
    side = int(config.get("image_size", 224))
    return {
        **_image_encoder(config),
        **{"family": "vit", "net": "vit", "resolution": f"{side}x{side}"},
        "classes": len(labels) if isinstance(labels, dict) else 1000,
    }


def _clip(config: Config) -> dict[str, Any]:
    image, text = config["vision_config"], config["text_config"]
    side = int(image.get("image_size", 224))
    return {
        **{"family": "clip", "net": "vit", "sample": "pair", "resolution": f"{side}x{side}", "text_tokens": 77},
        "embed": int(config.get("projection_dim", 512)),
        "image": _image_encoder({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, **image}),
        "text": _text({"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, **text}),
    }


def _text(config: Config) -> dict[str, Any]:
    hidden = int(config["hidden_size"])
    return {
        "hidden": hidden,
        "layers": int(config["num_hidden_layers"]),
        "heads": int(config["num_attention_heads"]),
        "ffn": int(config.get("intermediate_size", 4 * hidden)),
        "vocab": int(config.get("vocab_size", 49_408)),
        "positions": int(config.get("max_position_embeddings", 77)),
    }


def _whisper(config: Config) -> dict[str, Any]:
    return {
        **{"family": "whisper", "net": "encoder", "sample": "utterance", "dec_len": 448, "positions": 448},
        "hidden": int(config["d_model"]),
        "layers": int(config["encoder_layers"]),
        "heads": int(config["encoder_attention_heads"]),
        "mels": int(config.get("num_mel_bins", 80)),
        "vocab": int(config["vocab_size"]),
    }


def _resnet(config: Config) -> dict[str, Any]:
    return {
        **{"family": "resnet", "net": "conv", "resolution": "224x224"},
        "layers": list(config["depths"]),
        "bottleneck": config.get("layer_type", "bottleneck") == "bottleneck",
    }


READERS = {"vit": _vit, "clip": _clip, "whisper": _whisper, "resnet": _resnet}


# --- diffusers -----------------------------------------------------------------------------------


def _part(folder: Path, *names: str) -> Config:
    for name in names:
        file = folder / name / VIEW
        if file.is_file():
            return _read(file)
    return {}


def _diffusers(path: Path) -> dict[str, Any]:
    """A pipeline's folder, or the configuration of its denoiser alone."""
    folder = path if path.is_dir() else path.parent
    denoiser = _part(folder, "unet", "transformer") or _read(path / VIEW if path.is_dir() else path)
    kind = str(denoiser.get("_class_name", ""))
    if kind not in DENOISERS:
        raise DataError(f"{path}: the denoiser {kind or '?'} is not known; known: {', '.join(DENOISERS)}")
    text = []
    for name in ("text_encoder", "text_encoder_2", "text_encoder_3"):
        config = _part(folder, name)
        if config:
            text.append(_t5_encoder(config) if "d_model" in config else {**_text(config), "tokens": 77})
    return {**_PIPELINE, **DENOISERS[kind](denoiser), "text": text, "vae": _vae(_part(folder, "vae"))}


_PIPELINE = {"family": "diffusion", "text_tokens": 77, "steps": 50, "cfg": True}


def _vae(config: Config) -> dict[str, Any]:
    if not config:
        return {}
    channels = config.get("block_out_channels", (128, 256, 512, 512))
    return {"latent": int(config.get("latent_channels", 4)), "channels": list(channels)}


def _t5_encoder(config: Config) -> dict[str, Any]:
    heads = int(config["num_heads"])
    return {
        **{"hidden": int(config["d_model"]), "layers": int(config["num_layers"]), "heads": heads, "buckets": 32},
        **{"ffn": int(config["d_ff"]), "vocab": int(config["vocab_size"]), "bias": False, "gated": True},
        "attention": heads * int(config.get("d_kv", 64)),
    }


def _unet(config: Config) -> dict[str, Any]:
    channels = list(config["block_out_channels"])
    crossed = [str(kind).startswith("CrossAttn") for kind in config["down_block_types"]]
    stated = config.get("transformer_layers_per_block", 1)
    depths = list(stated) if isinstance(stated, list) else [int(stated)] * len(channels)
    if not len(channels) == len(crossed) == len(depths):
        raise DataError(
            f"block_out_channels has {len(channels)} levels, down_block_types {len(crossed)} and "
            f"transformer_layers_per_block {len(depths)}; they are of the same levels"
        )
    heads = config.get("attention_head_dim", 8)  # the number of heads in early files, one a level in later ones
    later = {"head_dim": channels[0] // heads[0]} if isinstance(heads, list) else {"heads": int(heads)}
    side = 8 * int(config.get("sample_size", 64))
    added = config.get("projection_class_embeddings_input_dim")
    return {
        **{"net": "unet", "denoiser": "unet", "resolution": f"{side}x{side}", "channels": channels, **later},
        "depths": [depth if own else 0 for depth, own in zip(depths, crossed, strict=True)],
        "middle": depths[-1],
        "context": int(config["cross_attention_dim"]),
        **({"added": int(added)} if added else {}),
    }


def _flux(config: Config) -> dict[str, Any]:
    heads = int(config["num_attention_heads"])
    guided = [256] if config.get("guidance_embeds") else []
    return {
        **{"net": "dit", "denoiser": "mmdit", "resolution": "1024x1024", "text_tokens": 512, "steps": 28, "cfg": False},
        **{"hidden": heads * int(config["attention_head_dim"]), "heads": heads, "latent": int(config["in_channels"])},
        **{"double": int(config["num_layers"]), "single": int(config["num_single_layers"])},
        "text_width": int(config["joint_attention_dim"]),
        "vectors": [int(config.get("pooled_projection_dim", 768)), *guided],
    }


def _wan(config: Config) -> dict[str, Any]:
    heads = int(config["num_attention_heads"])
    return {
        **{"net": "dit", "sample": "clip", "denoiser": "wan", "resolution": "480x832", "frames": 81, "time_shrink": 4},
        "cfg_in_turn": True,
        **{"hidden": heads * int(config["attention_head_dim"]), "heads": heads, "layers": int(config["num_layers"])},
        **{"ffn": int(config["ffn_dim"]), "text_width": int(config["text_dim"]), "text_tokens": 512},
    }


def _cogvideo(config: Config) -> dict[str, Any]:
    heads = int(config["num_attention_heads"])
    return {
        **{"net": "dit", "sample": "clip", "denoiser": "cogvideo", "resolution": "480x720", "frames": 49},
        **{"hidden": heads * int(config["attention_head_dim"]), "heads": heads, "layers": int(config["num_layers"])},
        **{"text_width": int(config["text_embed_dim"]), "text_tokens": 226, "time_shrink": 4},
    }


DENOISERS = {
    "UNet2DConditionModel": _unet,
    "FluxTransformer2DModel": _flux,
    "WanTransformer3DModel": _wan,
    "CogVideoXTransformer3DModel": _cogvideo,
}
