"""Classes that the family table cannot describe: Megatron GPT, hybrids, encoders, wrappers with a vision tower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpucalc.models.blueprint import Blueprint
from gpucalc.models.huggingface import mixtures, recurrent
from gpucalc.models.huggingface.decoder import general_decoder
from gpucalc.models.huggingface.encoders import bert, clip, t5, vit
from gpucalc.models.huggingface.families import Family
from gpucalc.models.huggingface.hybrids import deci, jamba, mamba, mamba_2, nemotron_h, qwen_next, rwkv
from gpucalc.models.huggingface.reader import DERIVED, Reader
from gpucalc.models.huggingface.vision import vision_tower, vision_weights

Builder = Callable[[Reader, str], Blueprint]


def megatron(r: Reader, architecture: str) -> Blueprint:
    """A GPT by the argument names of Megatron-LM: biases, LayerNorm and learned positions unless switched off."""
    bias = r.flag("add_bias_linear", "add_bias_linear", default=True)
    gated = r.flag("gated_mlp", "swiglu")
    learned = r.text("position_embedding_type") in {"", "learned_absolute"}
    family = Family(
        gated=gated,
        qkv_bias=bias or r.flag("add_qkv_bias", "add_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
        norm_terms=1 if r.text("normalization") == "RMSNorm" else 2,
        positions=0 if learned else -1,
        ffn_rule=4,
        moe="own" if r.has("num_experts") else "",
    )
    untied = r.flag("tied_embeddings", "untie_embeddings_and_output_weights")
    if learned and not r.has("max_position_embeddings"):
        r.problem("max_position_embeddings is missing (positions are learned); give for example 2048")
    return replace(general_decoder(r, family), tied_embeddings=not untied)


# Some wrappers write only what differs from the defaults of their text class; these are those defaults,
# by (wrapper, text class). Widths that decide the model's size are filled only where the released files
# leave them out (LLaVA 1.5).
_LEFT_OUT: dict[tuple[str, str], dict[str, int]] = {
    ("llava", "llama"): {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    ("gemma3", "gemma3_text"): {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
}


def fill_differences(config: dict[str, Any], text: dict[str, Any]) -> list[str]:
    """Fill `text` with what a file of a known wrapper leaves out; the keys filled. Others must state their sizes."""
    defaults = _LEFT_OUT.get((str(config.get("model_type")), str(text.get("model_type"))), {})
    filled = [key for key in defaults if text.get(key) is None]
    text.update({key: defaults[key] for key in filled})
    return filled


def with_wrapper(blueprint: Blueprint, reader: Reader, config: dict[str, Any]) -> Blueprint:
    """Add the vision tower of a multimodal wrapper, and say which other parts are not counted."""
    thinker = config.get("thinker_config")
    outer: dict[str, Any] = thinker if isinstance(thinker, dict) else config
    language = {"text_config", "llm_config", "language_config", "quantization_config", "thinker_config"}
    parts = {**config, **outer}
    others = [k for k, v in parts.items() if k.endswith("_config") and isinstance(v, dict) and k not in language]
    vision = outer.get("vision_config")
    if isinstance(vision, dict):
        weights = vision_weights(Reader(vision, f"{reader.label}: vision_config"), outer, blueprint.hidden)
        if weights is None:
            reader.warnings.append("the vision tower is of an unknown kind and is not counted")
        else:
            tower = vision_tower(Reader(vision, f"{reader.label}: vision_config"), outer)
            blueprint = replace(blueprint, vision=weights, tower=tower)
            reader.origin["vision_parameters"] = DERIVED
            others.remove("vision_config")
    elif not others:
        reader.warnings.append("only the language model is in this file; a vision tower is not counted")
    if others:
        reader.warnings.append("not counted: " + ", ".join(sorted(set(others))))
    return blueprint


BUILDERS: dict[str, Builder] = {
    "MegatronGPTModel": megatron,
    "MambaForCausalLM": mamba,
    "FalconMambaForCausalLM": mamba,
    "Mamba2ForCausalLM": mamba_2,
    "RwkvForCausalLM": rwkv,
    "JambaForCausalLM": jamba,
    "NemotronHForCausalLM": nemotron_h,
    "DeciLMForCausalLM": deci,
    "Qwen3NextForCausalLM": qwen_next,
    "Qwen3_5ForCausalLM": qwen_next,
    "Qwen3_5MoeForCausalLM": qwen_next,
    "Gemma4ForCausalLM": recurrent.gemma_4,
    "GraniteMoeHybridForCausalLM": recurrent.granite_hybrid,
    "BambaForCausalLM": recurrent.bamba,
    "FalconH1ForCausalLM": recurrent.falcon_h1,
    "Lfm2ForCausalLM": recurrent.lfm_2,
    "Lfm2MoeForCausalLM": recurrent.lfm_2,
    "KimiLinearForCausalLM": recurrent.kimi_linear,
    "BailingHybridForCausalLM": recurrent.bailing_hybrid,
    "Zamba2ForCausalLM": recurrent.zamba_2,
    "RWKV7ForCausalLM": recurrent.rwkv_7,
    "DeepseekV4ForCausalLM": recurrent.deepseek_4,
    "ApertusForCausalLM": mixtures.apertus,
    "Ernie4_5ForCausalLM": mixtures.ernie,
    "Ernie4_5_MoeForCausalLM": mixtures.ernie,
    "HunYuanDenseV1ForCausalLM": mixtures.hunyuan,
    "HunYuanMoEV1ForCausalLM": mixtures.hunyuan,
    "BailingMoeForCausalLM": mixtures.bailing,
    "BailingMoeV2ForCausalLM": mixtures.bailing,
    "LongcatFlashForCausalLM": mixtures.longcat,
    "Step3p5ForCausalLM": mixtures.step,
    "MiMoV2FlashForCausalLM": mixtures.mimo_2,
    "MiniMaxM3ForCausalLM": mixtures.minimax_3,
    "GlmMoeDsaForCausalLM": mixtures.glm_dsa,
    "Exaone4ForCausalLM": mixtures.exaone_4,
    "T5ForConditionalGeneration": t5,
    "MT5ForConditionalGeneration": t5,
    "BertForMaskedLM": bert,
    "BertModel": bert,
    "RobertaForMaskedLM": bert,
    "RobertaModel": bert,
    "XLMRobertaForMaskedLM": bert,
    "XLMRobertaModel": bert,
    "ViTForImageClassification": vit,
    "CLIPModel": clip,
}

# classes whose builder knows which head the task has
COUNTS_ITS_TASK = frozenset({"CLIPModel", "ViTForImageClassification"})
