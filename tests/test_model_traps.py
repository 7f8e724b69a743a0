"""Traps of real configuration files; each test names the trap."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpucalc.core.errors import DataError
from gpucalc.models.model import describe, load_model, model_from_config
from gpucalc.models.parameters import padded_vocabulary, stored_bytes_per_weight
from gpucalc.models.presets import preset_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def made(**changes: Any):
    return model_from_config({**LLAMA, **changes}, "model")


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": None}])
def test_kv_heads_missing_or_null_are_the_heads(changes: dict[str, Any]) -> None:
    model = made(**changes)
    assert model.kv_heads == 32
    assert model.origin["kv_heads"] == "derived"


def test_kv_heads_missing_in_classes_without_the_key() -> None:
    for name in ("gpt-neox-20b", "opt-13b", "baichuan2-7b"):
        model = load_model(name)
        assert model.kv_heads == model.heads


def test_null_kv_heads_with_blocks_come_from_the_blocks() -> None:
    model = load_model("nemotron-super-49b")
    assert (model.kv_heads, model.attention_layers, model.layers) == (8, 49, 80)


def test_multi_query_means_one_kv_head_only_in_the_old_architecture() -> None:
    assert load_model("falcon-7b").kv_heads == 1
    assert load_model("falcon-40b").kv_heads == 8
    assert load_model("falcon-180b").kv_heads == 8
    bigcode = {
        "architectures": ["GPTBigCodeForCausalLM"],
        "model_type": "gpt_bigcode",
        "n_embd": 6144,
        "n_layer": 40,
        "n_head": 48,
        "n_inner": 24576,
        "n_positions": 8192,
        "vocab_size": 49152,
        "multi_query": True,
    }
    assert model_from_config(bigcode, "starcoder").kv_heads == 1
    assert model_from_config({**bigcode, "multi_query": False}, "starcoder").kv_heads == 48


def test_kv_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(DataError, match="7 heads cannot be shared by 2 key-value heads; the nearest legal number is 1"):
        made(num_attention_heads=7, num_key_value_heads=2, head_dim=64)


def test_explicit_head_dim_is_used_and_null_is_derived() -> None:
    assert made(head_dim=64).head_dim == 64
    assert load_model("mistral-nemo-12b").head_dim == 128  # 5120/32 would be 160
    model = made(head_dim=None)
    assert (model.head_dim, model.origin["head_dim"]) == (128, "derived")


def test_attention_head_dim_is_an_alias() -> None:
    nemotron = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "attention_head_dim": 128,
        "hidden_size": 8192,
        "hybrid_override_pattern": "M-M-M*-",
        "intermediate_size": 32768,
        "mamba_head_dim": 64,
        "mamba_num_heads": 256,
        "n_groups": 8,
        "ssm_state_size": 256,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 131072,
    }
    model = model_from_config(nemotron, "nemotron-h")
    assert (model.head_dim, model.layers, model.linear_layers, model.attention_layers, model.dense_layers) == (
        128,
        7,
        3,
        1,
        3,
    )
    assert model.origin["layers"] == "derived"  # num_hidden_layers is missing: the pattern has 7 letters


def test_hidden_not_a_multiple_of_heads_asks_for_head_dim() -> None:
    config = without(preset_config("glm-4.5"), "head_dim")
    with pytest.raises(DataError, match=r"hidden 5120 is not a multiple of 96 heads .* give head_dim"):
        model_from_config(config, "glm")


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("gemma-2b", True),
        ("t5-small", True),
        ("gpt2-124m", True),
        ("falcon-7b", True),
        ("starcoder2-7b", True),
        ("command-r-35b", True),
        ("llama-2-7b", False),
        ("qwen2.5-14b", False),
    ],
)
def test_tying_absent_takes_the_class_default(name: str, tied: bool) -> None:
    model = model_from_config(without(preset_config(name), "tie_word_embeddings"), name)
    assert model.tied_embeddings is tied
    assert model.origin["tied_embeddings"] == "default"


def test_nested_text_config_and_vision_apart() -> None:
    model = load_model("qwen3-vl-8b")
    assert (model.layers, model.hidden) == (36, 4096)
    assert model.vision_parameters == 576_388_336
    assert model.parameters_total - model.vision_parameters == load_model("qwen3-8b").parameters_total


def test_text_config_with_differences_only() -> None:
    model = load_model("llava-1.5-7b")
    assert model.hidden == 4096
    assert model.origin["hidden"] == "default"
    assert any("left out of text_config" in warning for warning in model.warnings)
    other = {**preset_config("llava-1.5-7b"), "model_type": "deepseek_vl"}
    with pytest.raises(DataError, match=r"hidden_size .* is missing"):
        model_from_config(other, "other")


def test_gemma_3_files_leave_out_heads() -> None:
    config = preset_config("gemma-3-4b")
    left_out = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    config["text_config"] = without(config["text_config"], *left_out)
    model = model_from_config(config, "gemma-3-4b")
    assert model.parameters_total == 4_300_079_472
    assert model.origin["heads"] == "default"


def test_falcon_files_from_before_the_switch() -> None:
    config = {
        "architectures": ["RWForCausalLM"],
        "model_type": "RefinedWeb",
        "hidden_size": 8192,
        "n_layer": 60,
        "n_head": 128,
        "n_head_kv": 8,
        "vocab_size": 65024,
        "bias": False,
        "parallel_attn": True,
    }
    assert model_from_config(config, "falcon-40b").parameters_total == 41_303_293_952


def test_omni_uses_the_thinker_and_lists_the_rest() -> None:
    text = {**without(preset_config("qwen2.5-7b"), "architectures"), "model_type": "qwen2_5_omni_text"}
    config = {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "thinker_config": {"text_config": text, "audio_config": {"d_model": 1280}},
        "talker_config": {"hidden_size": 896},
        "token2wav_config": {"dit_config": {}},
    }
    model = model_from_config(config, "omni")
    assert model.parameters_total == load_model("qwen2.5-7b").parameters_total
    assert any("audio_config, talker_config, token2wav_config" in warning for warning in model.warnings)


def test_clip_is_two_encoders() -> None:
    model = load_model("clip-vit-base")
    assert not model.causal
    assert model.kv_bytes_per_token == 0
    assert any("two encoders" in warning for warning in model.warnings)


@pytest.mark.parametrize("config_has", ["null", "absent"])
def test_q_lora_rank_null_or_absent_is_no_compression(config_has: str) -> None:
    config = preset_config("deepseek-v2-lite")
    if config_has == "absent":
        config = without(config, "q_lora_rank")
    model = model_from_config(config, "deepseek-v2-lite")
    assert model.q_lora_rank == 0
    assert model.parameters_total == 15_706_484_224


def test_intermediate_size_is_the_expert_or_the_dense_width() -> None:
    assert load_model("mixtral-8x7b").expert_ffn_hidden == 14336
    scout = load_model("llama-4-scout-17b-16e")
    assert (scout.expert_ffn_hidden, scout.ffn_hidden) == (8192, 16384)
    assert load_model("minimax-m2.5").expert_ffn_hidden == 1536
    deepseek = load_model("deepseek-v3")
    assert (deepseek.expert_ffn_hidden, deepseek.ffn_hidden) == (2048, 18432)


@pytest.mark.parametrize(
    ("name", "experts", "chosen"),
    [("mixtral-8x7b", 8, 2), ("qwen3-30b-a3b", 128, 8), ("deepseek-v3", 256, 8), ("dbrx", 16, 4)],
)
def test_expert_keys(name: str, experts: int, chosen: int) -> None:
    model = load_model(name)
    assert (model.experts, model.experts_per_token) == (experts, chosen)


@pytest.mark.parametrize(
    ("name", "dense", "moe"),
    [("deepseek-v3", 3, 58), ("llama-4-maverick-17b-128e", 24, 24), ("jamba-52b", 16, 16), ("qwen3-30b-a3b", 0, 48)],
)
def test_which_layers_hold_experts(name: str, dense: int, moe: int) -> None:
    model = load_model(name)
    assert (model.dense_layers, model.moe_layers) == (dense, moe)


def test_mlp_only_layers_are_dense() -> None:
    config = {**preset_config("qwen3-30b-a3b"), "mlp_only_layers": [0, 5]}
    assert model_from_config(config, "q").dense_layers == 2


def test_shared_experts_as_count_or_width() -> None:
    assert load_model("deepseek-moe-16b").shared_expert_ffn_hidden == 2 * 1408
    assert load_model("qwen1.5-moe-a2.7b").shared_expert_ffn_hidden == 5632


def test_class_decides_when_the_model_type_is_unknown() -> None:
    config = {**preset_config("kimi-k2"), "model_type": "kimi_k9"}
    assert model_from_config(config, "kimi").parameters_total == 1_026_408_209_408


def test_mtp_layers_are_not_in_the_total() -> None:
    model = load_model("glm-4.5")
    assert model.mtp_parameters > 0
    assert model.parameters_total == 352_797_814_784


def test_layer_kinds_decide_the_cache() -> None:
    hybrid = load_model("qwen3.5-35b-a3b")
    assert (hybrid.attention_layers, hybrid.linear_layers) == (10, 30)
    assert load_model("gemma-3-27b").window_layers == 52
    assert load_model("nemotron-3-nano-30b-a3b").attention_layers == 6
    assert load_model("jamba-52b").attention_layers == 4


def test_infinity_is_read(tmp_path: Path) -> None:
    text = json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    (tmp_path / "config.json").write_text(text)
    assert load_model(tmp_path).parameters_total == 6_738_415_616


def test_layers_missing_without_a_pattern_is_an_error() -> None:
    with pytest.raises(DataError, match="num_hidden_layers"):
        model_from_config(without(LLAMA, "num_hidden_layers"), "model")


def test_padded_vocab_size_is_an_alias() -> None:
    assert load_model("chatglm3-6b").vocab == 65024


def test_odd_vocabularies_show_their_padding() -> None:
    minicpm = load_model("minicpm-2b")
    assert minicpm.vocab == 122_753
    assert describe(minicpm)["vocab_padded_to_128"] == 122_880
    assert padded_vocabulary(50257, 8) == 51_200


def test_quantised_checkpoints_keep_their_parameter_count() -> None:
    model = load_model("gpt-oss-120b")
    assert model.quantization == "mxfp4"
    assert model.parameters_total == 116_829_156_672
    assert stored_bytes_per_weight("mxfp4") * 8 == 4.25
    assert stored_bytes_per_weight("fp8") == pytest.approx(1.0002, abs=1e-4)
    assert stored_bytes_per_weight("") == 2.0


def test_a_name_that_contradicts_the_file_is_a_note() -> None:
    qwen = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 5504,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    noted = model_from_config(qwen, "Qwen1.5-1.8B-Chat")
    assert any("1.8 B" in warning and "1.53 B" in warning for warning in noted.warnings)
    untied = model_from_config({**qwen, "tie_word_embeddings": False}, "Qwen1.5-1.8B-Chat")
    assert untied.warnings == ()
    assert model_from_config(qwen, "Mixtral-8x7B").warnings == ()
    assert model_from_config(qwen, "Qwen1.5-A3B").warnings == ()


def test_the_configuration_is_trusted_over_documentation() -> None:
    model = load_model("minimax-m2")
    assert model.parameters_total == pytest.approx(228.7e9, rel=1e-3)
    assert model.parameters_active == pytest.approx(11.0e9, rel=5e-3)
    bloom = load_model("bloom")
    assert (bloom.layers, bloom.hidden) == (70, 14336)


def test_class_defaults_are_not_a_model() -> None:
    for architecture, model_type in (("SeedOssForCausalLM", "seed_oss"), ("MPTForCausalLM", "mpt")):
        with pytest.raises(DataError, match="is missing"):
            model_from_config({"architectures": [architecture], "model_type": model_type}, "empty")


def test_encoder_decoder_has_two_stacks() -> None:
    model = load_model("t5-11b")
    assert (model.layers, model.encoder_layers, model.heads * model.head_dim) == (24, 24, 16384)
    assert model.cross_attention_parameters > 0
    assert load_model("t5-small").origin["layers"] == "derived"  # num_decoder_layers absent


def test_rwkv_has_constant_state() -> None:
    config = {
        "architectures": ["RwkvForCausalLM"],
        "model_type": "rwkv",
        "hidden_size": 768,
        "attention_hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "vocab_size": 50277,
        "context_length": 1024,
    }
    model = model_from_config(config, "rwkv-4-169m")
    assert model.parameters_total == 169_342_464
    assert model.kv_bytes_per_token == 0
    assert model.state_bytes_per_sequence > 0


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("falcon-7b", [1]),
        ("yi-34b", [1, 2, 4, 7, 8, 14, 28, 56]),
        ("smollm2-135m", [1, 3, 9]),
        ("qwen2.5-0.5b", [1, 2, 7, 14]),
    ],
)
def test_legal_tensor_parallel_sizes_are_listed(name: str, legal: list[int]) -> None:
    assert describe(load_model(name))["legal_tensor_parallel"] == legal


@pytest.mark.parametrize("config_type", ["flat", "nested"])
def test_vision_towers_of_published_models(config_type: str) -> None:
    qwen = without(preset_config("qwen2.5-7b"), "architectures", "model_type")
    if config_type == "flat":
        config: dict[str, Any] = {
            **qwen,
            "architectures": ["Qwen2VLForConditionalGeneration"],
            "model_type": "qwen2_vl",
            "vision_config": {
                "depth": 32,
                "embed_dim": 1280,
                "hidden_size": 3584,
                "mlp_ratio": 4,
                "num_heads": 16,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
        }
        total = 8_291_375_616
    else:
        config = {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "spatial_merge_size": 2,
            "multimodal_projector_bias": False,
            "text_config": without(preset_config("mistral-small-24b"), "architectures"),
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        }
        total = 24_011_361_280
    assert model_from_config(config, "vision").parameters_total == total


def test_llama_4_vision_tower() -> None:
    config = preset_config("llama-4-scout-17b-16e")
    config["vision_config"] = {
        "model_type": "llama4_vision_model",
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    }
    assert model_from_config(config, "scout").parameters_total == 108_641_793_536


def test_unknown_vision_tower_is_said() -> None:
    config = {**preset_config("qwen3-vl-8b"), "vision_config": {"model_type": "new_tower", "hidden_size": 8}}
    model = model_from_config(config, "x")
    assert model.vision_parameters == 0
    assert any("vision tower" in warning for warning in model.warnings)
