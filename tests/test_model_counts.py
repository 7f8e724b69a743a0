"""Exact parameter counts and cache sizes of the presets, against counts made independently of this code."""

import csv
from pathlib import Path

import pytest

from gpucalc.core.errors import DataError
from gpucalc.models.blueprint import count_parts
from gpucalc.models.model import load_model, model_from_config, preset_names
from gpucalc.models.presets import preset_config

TABLE = list(csv.DictReader((Path(__file__).parent / "data" / "model_counts.csv").open(encoding="utf-8")))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_counts_are_exact(row: dict[str, str]) -> None:
    model = load_model(row["name"])
    assert model.parameters_total == int(row["total"])
    if row["active"]:
        assert model.parameters_active == int(row["active"])
    if row["kv_bytes_per_token"]:
        assert model.kv_bytes_per_token == int(row["kv_bytes_per_token"])


def test_at_least_sixty_presets_and_each_loads() -> None:
    names = preset_names()
    assert len(names) >= 60
    assert names == sorted(names)
    for name in names:
        assert name == name.lower()
        model = load_model(name)
        assert 0 < model.parameters_active <= model.parameters_total
        assert model.matmul_parameters_active > 0


@pytest.mark.parametrize("name", preset_names())
def test_total_is_the_sum_of_its_parts(name: str) -> None:
    model = load_model(name)
    parts = count_parts(model.blueprint)
    full = model.attention_layers - model.window_layers
    total = (
        model.parameters_embedding
        + model.parameters_positional
        + model.parameters_head
        + parts.other.total
        + full * model.attention_parameters
        + model.window_layers * model.window_attention_parameters
        + model.linear_layers * model.linear_mixer_parameters
        + parts.dense_mlps.total
        + model.moe_layers
        * (model.router_parameters + model.shared_expert_parameters + model.experts * model.parameters_per_expert)
        + parts.norms.total
        + parts.final_norm.total
        + model.encoder_parameters
        + model.cross_attention_parameters
        + model.vision_parameters
    )
    assert total == model.parameters_total


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "qwen3-30b-a3b"])
def test_layers_times_their_size_make_the_stack(name: str) -> None:
    model = load_model(name)
    stack = model.dense_layers * model.parameters_per_dense_layer + model.moe_layers * model.parameters_per_moe_layer
    rest = model.parameters_total - stack
    ends = model.parameters_embedding + model.parameters_head + model.parameters_positional
    assert 0 < rest - ends <= 2 * model.hidden  # the final norm


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2.5-7b", 57_344),
        ("gpt-oss-120b", 73_728),
        ("deepseek-v3", 70_272),
        ("llama-3.1-70b", 327_680),
    ],
)
def test_cache_bytes_per_token(name: str, expected: int) -> None:
    assert load_model(name).kv_bytes_per_token == expected


def test_cache_sizes_of_published_examples() -> None:
    assert load_model("qwen3-coder-30b-a3b").kv_bytes_per_token * 262_144 == 24 * 2**30
    assert load_model("llama-2-7b").kv_bytes_per_token * 132_608 == 69_524_783_104
    assert load_model("falcon-180b").kv_bytes_per_token * 64 * 2048 == pytest.approx(21.5e9, rel=0.003)
    assert load_model("qwen2.5-7b").kv_bytes_per_token * 3072 / 2**30 == pytest.approx(0.164, abs=5e-4)


def test_windowed_part_of_the_cache() -> None:
    model = load_model("gpt-oss-120b")
    assert (model.window, model.window_layers, model.attention_layers) == (128, 18, 36)
    assert model.kv_bytes_per_token_windowed == 36_864
    assert load_model("mistral-7b-v0.3").window == 0


def test_gemma_4_pages_have_the_size_of_its_largest_layer() -> None:
    # Gemma 4 31B: 60 layers, every sixth full with 4 key-value heads of 512, the others 16 of 256
    config = preset_config("gemma-4-26b-a4b")
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 10
    dense = {"enable_moe_block": False, "num_experts": None, "moe_intermediate_size": None, "top_k_experts": None}
    text = {
        **config["text_config"],
        **dense,
        "num_hidden_layers": 60,
        "layer_types": kinds,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "intermediate_size": 21504,
    }
    model = model_from_config({**config, "text_config": text}, "gemma-4-31B")
    assert model.kv_bytes_per_token_full_pages == 983_040
    assert model.kv_bytes_per_token == 50 * 16_384 + 10 * 8_192


def test_matrix_weights_of_llama_leave_out_one_embedding() -> None:
    model = load_model("llama-2-7b")
    assert model.matmul_parameters_active == pytest.approx(6.607e9, rel=1e-3)
    tied = load_model("llama-3.2-1b")
    vectors = tied.layers * tied.norm_parameters + tied.hidden
    assert tied.matmul_parameters_active == tied.parameters_total - vectors  # the tied head is a matrix product


def test_states_of_models_without_attention() -> None:
    model = load_model("mamba-2.8b")
    assert (model.kv_bytes_per_token, model.attention_layers, model.linear_layers) == (0, 0, 64)
    assert model.state_bytes_per_sequence == 64 * (2 * 5120 * 4 + 4 * 5120 * 16)


def test_mtp_is_apart() -> None:
    model = load_model("qwen3-next-80b-a3b")
    config = {**preset_config("qwen3-next-80b-a3b"), "num_nextn_predict_layers": 1}
    with_mtp = model_from_config(config, "qwen3-next")
    assert with_mtp.parameters_total == model.parameters_total
    assert with_mtp.mtp_parameters == pytest.approx(1.65e9, rel=0.01)


# Elements of the state of a sequence, from the shapes of the modules: recurrent (fp32), convolution (16 bit).
STATES = {
    "granite-4.0-h-small": (36 * 128 * 64 * 128, 1_216_512),
    "bamba-9b": (29 * 128 * 64 * 128, 979_968),
    "lfm2-8b-a1b": (0, 18 * 2048 * 3),
    "zamba2-2.7b": (54 * 80 * 64 * 64, 1_133_568),
    "falcon-h1-0.5b": (36 * 24 * 64 * 128, 258_048),
    "kimi-linear-48b-a3b": (20 * 32 * 128 * 128, 983_040),
    "ling-3.0-flash": (35 * 32 * 128 * 128, 1_720_320),
    "rwkv7-1.5b": (24 * 32 * 64 * 64, 24 * 2 * 2048),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_hybrids(name: str) -> None:
    recurrent, convolution = STATES[name]
    assert load_model(name).state_bytes_per_sequence == 4 * recurrent + 2 * convolution


@pytest.mark.parametrize(
    ("label", "preset"),
    [
        ("zai-org/GLM-4.6", "glm-4.5"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.5"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),
        ("LiquidAI/LFM2-8B-A1B", "lfm2-8b-a1b"),
        ("tencent/Hunyuan-A13B-Instruct", "hunyuan-a13b"),
    ],
)
def test_labels_of_known_shapes(label: str, preset: str) -> None:
    assert load_model(label).name == preset


def test_what_a_newer_configuration_lacks_is_said() -> None:
    config = preset_config("step-3.5-flash")
    with pytest.raises(DataError, match="moe_layers_enum"):
        model_from_config({**config, "moe_layers_enum": "3,x"}, "odd")
    config = preset_config("deepseek-v4-flash")
    with pytest.raises(DataError, match="compress_ratios"):
        model_from_config({**config, "compress_ratios": [4]}, "odd")
    with pytest.raises(DataError, match="known are 0, 4 and 128"):
        model_from_config({**config, "compress_ratios": [8] * 44}, "odd")
    with pytest.raises(DataError, match="the file has the sizes width, depth and the parts block"):
        model_from_config({"model_type": "novel", "width": 512, "depth": 12, "block": {"a": 1}}, "odd")
    lacking = {"architectures": ["LlamaForCausalLM"], "dim": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    with pytest.raises(DataError, match="the file has the sizes dim, num_hidden_layers"):
        model_from_config(lacking, "odd")
