"""From a Hugging Face configuration to a blueprint: the part that is a language model, its class, and who reads it.

A class that is not known is an error that names the nearest one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpucalc.core.errors import DataError, nearest
from gpucalc.models.blueprint import Blueprint
from gpucalc.models.huggingface import special
from gpucalc.models.huggingface.decoder import KEYS, general_decoder
from gpucalc.models.huggingface.families import CLASS_ALIASES, FAMILIES, MODEL_TYPES
from gpucalc.models.huggingface.quantization import stored_formats
from gpucalc.models.huggingface.reader import DEFAULT, Reader, keys_found, shown


def blueprint_from_config(config: dict[str, Any], label: str) -> tuple[Blueprint, Reader]:
    """The blueprint of `config` and the reader that holds origins and warnings; DataError lists all problems."""
    text, wrapper = _language_part(config, label)
    filled = special.fill_differences(config, text) if wrapper else []
    reader = Reader(text, label)
    architecture = _class_of(text, config, wrapper, reader)
    builder = special.BUILDERS.get(architecture)
    blueprint = builder(reader, architecture) if builder else general_decoder(reader, FAMILIES[architecture])
    blueprint = replace(blueprint, architecture=_stated_class(config) or architecture)
    if filled:
        reader.origin.update({field: DEFAULT for field, keys in KEYS.items() if set(keys) & set(filled)})
        reader.warnings.append("left out of text_config and filled from its class: " + ", ".join(filled))
    if wrapper or (isinstance(config.get("vision_config"), dict) and architecture != "CLIPModel"):
        blueprint = special.with_wrapper(blueprint, reader, config)
    reader.check()
    holder = config if isinstance(config.get("quantization_config"), dict) else text
    method = Reader(holder, label).find("quantization_config.quant_method", "quantization_config.quant_algo")[1]
    if isinstance(method, str):
        stored = stored_formats(holder, blueprint.layers)
        blueprint = replace(
            blueprint,
            quantization=method.lower(),
            weight_format=stored.weights,
            cache_format=stored.cache,
            plain_parts=stored.plain,
        )
    return blueprint, reader


def _language_part(config: dict[str, Any], label: str) -> tuple[dict[str, Any], bool]:
    """The part that describes the language model, and whether it was nested."""
    outer = config.get("thinker_config")
    if isinstance(outer, dict) and isinstance(outer.get("text_config"), dict):
        return dict(outer["text_config"]), True
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, dict) and config.get("model_type") != "clip":
            text = dict(nested)
            if text.get("tie_word_embeddings") is None and config.get("tie_word_embeddings") is not None:
                text["tie_word_embeddings"] = config["tie_word_embeddings"]
            return text, True
        if nested is not None and not isinstance(nested, dict):
            raise DataError(f"{label}: {key} is {shown(nested)}; it must be an object")
    return config, False


def _stated_class(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return ""


def _class_of(text: dict[str, Any], config: dict[str, Any], wrapper: bool, reader: Reader) -> str:
    """The class whose rules apply: `architectures` first, then `model_type`."""
    known = [*FAMILIES, *special.BUILDERS]
    stated = _stated_class(text)
    if stated in known:
        return stated
    if stated in CLASS_ALIASES:
        return CLASS_ALIASES[stated]
    model_type = text.get("model_type")
    by_type = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    if by_type and (wrapper or not stated):
        return by_type
    if by_type and _same_body(stated, by_type):
        if by_type not in special.COUNTS_ITS_TASK:
            reader.warnings.append(f"{stated} is counted as {by_type}, with a language-model head")
        return by_type
    if not stated and model_type is None:
        if wrapper and _stated_class(config).startswith("Llava"):
            return "LlamaForCausalLM"
        raise DataError(
            f"{reader.label}: neither architectures nor model_type is given, so the class is unknown; "
            'give for example "architectures": ["LlamaForCausalLM"]'
        )
    missing = stated or str(model_type)
    near = nearest(missing, [*known, *MODEL_TYPES])
    said = f"; near ones are {', '.join(near)}" if near else ""
    raise DataError(
        f"{reader.label}: the architecture {shown(missing)} is not known, so its layers cannot be counted{said}; "
        f"the file has {keys_found(text)}; give the shape by hand, for example --set hidden=4096 --set layers=32 "
        "--set heads=32"
    )


_TASKS = re.compile(
    r"(For(CausalLM|SequenceClassification|TokenClassification|QuestionAnswering|RewardModel|MaskedLM"
    r"|ConditionalGeneration|ImageClassification)|LMHeadModel|EncoderModel|Model)$"
)


def _same_body(stated: str, by_type: str) -> bool:
    """Whether a class name differs from the known one only in its task (LlamaModel, LlamaForSequence…)."""
    body, task = _TASKS.subn("", stated)
    return task > 0 and body.casefold() == _TASKS.sub("", by_type).casefold()
