"""Shapes given by hand, cells that replace a preset's, and names."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.models.model import describe, load_model, model_from_shape, model_with, preset_names, resolve_preset
from gpucalc.models.presets import FOLDER, named_size


def cells_of(model) -> dict[str, object]:
    shared = model.shared_expert_ffn_hidden // model.expert_ffn_hidden if model.expert_ffn_hidden else None
    cells = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "gated_mlp": model.gated_mlp,
        "experts": model.experts or None,
        "experts_per_token": model.experts_per_token or None,
        "expert_ffn_hidden": model.expert_ffn_hidden or None,
        "shared_experts": shared,
    }
    return {cell: value for cell, value in cells.items() if value != 0 or cell == "shared_experts"}


@pytest.mark.parametrize("name", preset_names())
def test_cells_that_equal_the_preset_change_nothing(name: str) -> None:
    model = load_model(name)
    if model.heads and model.vocab:
        assert model_with(model, **cells_of(model)) == model


def test_fewer_layers_keep_the_leading_dense_ones() -> None:
    model = model_with(load_model("deepseek-v3"), layers=5)
    assert (model.dense_layers, model.moe_layers) == (3, 2)
    longer = model_with(load_model("deepseek-v3"), layers=100)
    assert (longer.dense_layers, longer.moe_layers) == (3, 97)
    proxy = model_with(load_model("gpt-oss-120b"), layers=4)
    assert (proxy.window_layers, proxy.attention_layers) == (2, 4)


def test_stated_cells_win() -> None:
    model = load_model("llama-3.1-405b")
    other = model_with(model, kv_heads=16, vocab=51_200)
    grown = 126 * 2 * 16384 * 8 * 128 - 2 * (128_256 - 51_200) * 16384
    assert other.parameters_total == model.parameters_total + grown
    assert other.origin["vocab"] == "read"


def test_a_new_width_moves_what_followed_from_it() -> None:
    model = model_with(load_model("gpt3-175b"), hidden=8192, heads=64)
    assert (model.head_dim, model.kv_heads, model.ffn_hidden) == (128, 64, 32768)
    with pytest.raises(UsageError, match="not a multiple of 7 heads; give head_dim"):
        model_with(load_model("gpt3-175b"), heads=7)


def test_experts_make_a_dense_model_sparse_and_back() -> None:
    dense = load_model("llama-3-70b")
    sparse = model_with(dense, experts=8, experts_per_token=2, expert_ffn_hidden=28672)
    assert (sparse.moe_layers, sparse.dense_layers) == (80, 0)
    mlp = 3 * 8192 * 28672
    assert sparse.parameters_total == dense.parameters_total + 80 * (7 * mlp + 8192 * 8)
    assert sparse.parameters_active == dense.parameters_total + 80 * (mlp + 8192 * 8)
    assert model_with(load_model("mixtral-8x7b"), experts=1).moe_layers == 0


def test_latent_attention_keeps_its_rotary_part() -> None:
    model = model_with(load_model("deepseek-v3"), head_dim=256)
    assert (model.qk_nope_head_dim, model.qk_rope_head_dim) == (192, 64)
    with pytest.raises(UsageError, match="must exceed the 64 rotary"):
        model_with(load_model("deepseek-v3"), head_dim=64)


@pytest.mark.parametrize("value", [0, -1, 1.5, 10**11, float("nan"), float("inf"), True, "8", [8]])
def test_cells_that_are_no_counts(value: object) -> None:
    with pytest.raises(UsageError, match=r"layers is .* must be a whole number"):
        model_with(load_model("llama-2-7b"), layers=value)


def test_attention_cells_of_a_model_without_attention() -> None:
    with pytest.raises(UsageError, match=r"mamba-2\.8b has no attention, so heads cannot be set"):
        model_with(load_model("mamba-2.8b"), heads=8)


def test_unknown_cell_has_a_near_one() -> None:
    with pytest.raises(UsageError, match="did you mean heads"):
        model_with(load_model("llama-2-7b"), headz=8)


def test_overrides_of_a_loaded_model() -> None:
    assert load_model("llama-2-7b", {"layers": 16}).layers == 16


def test_shape_by_hand_is_a_llama() -> None:
    shape = model_from_shape(32, 4096, 32, ffn_hidden=11008, gated_mlp=True, vocab=32000)
    assert shape.parameters_total == load_model("llama-2-7b").parameters_total
    assert shape.origin["kv_heads"] == "default"


def test_shape_problems() -> None:
    with pytest.raises(UsageError, match="give head_dim"):
        model_from_shape(2, 100, 3)
    with pytest.raises(UsageError, match="layers is 0"):
        model_from_shape(0, 128, 2)
    with pytest.raises(UsageError, match="kv_heads must divide heads"):
        model_from_shape(2, 128, 4, kv_heads=3)
    with pytest.raises(UsageError, match="at most 4 are there"):
        model_from_shape(2, 128, 4, experts=4, experts_per_token=5)


@settings(max_examples=examples(60), deadline=None)
@given(
    layers=st.integers(1, 60),
    heads=st.integers(1, 16),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 128]),
    width=st.integers(1, 4096),
    gated=st.booleans(),
    experts=st.sampled_from([0, 2, 8]),
    vocab=st.integers(1, 100_000),
)
def test_shapes_scale_as_they_should(layers, heads, group, head_dim, width, gated, experts, vocab) -> None:
    shape = {
        "hidden": heads * group * head_dim,
        "heads": heads * group,
        "kv_heads": heads,
        "ffn_hidden": width,
        "gated_mlp": gated,
        "vocab": vocab,
        "experts": experts,
        "experts_per_token": min(experts, 2),
    }
    one, two = model_from_shape(layers, **shape), model_from_shape(2 * layers, **shape)
    per_layer = one.parameters_per_moe_layer if experts else one.parameters_per_dense_layer
    assert two.parameters_total - one.parameters_total == layers * per_layer
    assert model_with(one, layers=2 * layers) == two
    assert two.kv_bytes_per_token == 2 * one.kv_bytes_per_token == 2 * 4 * layers * heads * head_dim
    assert one.parameters_active <= one.parameters_total
    unvisited = (one.experts - one.experts_per_token) * one.parameters_per_expert * one.moe_layers
    assert one.parameters_total - one.parameters_active == unvisited
    vectors = layers * one.norm_parameters + one.hidden
    tied_head = 0 if one.tied_embeddings else one.parameters_embedding
    assert one.matmul_parameters_active == one.parameters_active - vectors - tied_head


@pytest.mark.parametrize(
    ("written", "preset"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLAMA 3.1 70B", "llama-3.1-70b"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b"),
        ("Llama-2-7b-chat-hf", "llama-2-7b"),
        ("llama270b", "llama-2-70b"),
        ("Llama2-70B LoRA (r=16)", "llama-2-70b"),
        ("Llama3.2-3B + 8-bit AdamW", "llama-3.2-3b"),
        ("Llama 2 7 B", "llama-2-7b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("MT-NLG 530B", "mt-nlg-530b"),
        ("facebook/opt-1.3b", "opt-1.3b"),
        ("facebook/opt-13b", "opt-13b"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-r1"),
        ("DeepSeek-R1-0528", "deepseek-r1"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("openai-community/gpt2", "gpt2-124m"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("bert-base-uncased", "bert-base"),
    ],
)
def test_spellings(written: str, preset: str) -> None:
    assert resolve_preset(written) == preset


@pytest.mark.parametrize("written", ["GPT-2 2B", "GPT 14.6B", "llama-2-7b extra", "", "Llama3-8x70B", "instruct"])
def test_spellings_that_mean_no_preset(written: str) -> None:
    assert resolve_preset(written) is None


def test_every_preset_resolves_to_itself() -> None:
    for name in preset_names():
        assert resolve_preset(name) == name
        assert resolve_preset(f"owner/{name.upper()}-Instruct") == name


def test_every_preset_has_a_source_and_every_alias_a_preset() -> None:
    with (FOLDER / "sources.csv").open(encoding="utf-8", newline="") as stream:
        sources = {row["preset"]: row["source"] for row in csv.DictReader(stream)}
    assert sorted(sources) == preset_names()
    assert all(sources.values())
    with (FOLDER / "aliases.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            assert resolve_preset(row["alias"]) == row["preset"]


def test_resolving_reads_no_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise AssertionError(f"{self} was read")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert resolve_preset("Llama-3.1-8B-Instruct") == "llama-3.1-8b"


def test_sizes_in_names() -> None:
    assert named_size("Qwen3-30B-A3B") == 30e9
    assert named_size("opt-350m") == 350e6
    assert named_size("owner/Kimi-1T") == 1e12
    for name in ("Mixtral-8x22B", "Qwen1.5-MoE-A2.7B", "gpt2", "Llama-4-Maverick-17B-128E-Instruct"):
        assert named_size(name) is None


def test_a_path_is_not_taken_for_a_preset(tmp_path: Path) -> None:
    folder = tmp_path / "llama-2-70b"
    folder.mkdir()
    config = describe(load_model("llama-2-7b"))["shape"]
    keys = {"hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    written = {hub: config[ours] for ours, hub in keys.items()}
    written |= {"model_type": "llama", "intermediate_size": config["ffn_hidden"], "vocab_size": config["vocab"]}
    (folder / "config.json").write_text(json.dumps(written))
    model = load_model(str(folder))
    assert model.layers == 32
    assert any("the name says 70 B" in warning for warning in model.warnings)


def test_description_has_the_promised_fields() -> None:
    found = describe(load_model("llama-3.1-8b"))
    assert found["kv_bytes_per_token"] == 131_072
    assert found["parameters_embedding"] == 128_256 * 4096
    assert set(found["shape"]) <= set(found["origin"])
    assert set(found["origin"].values()) <= {"read", "derived", "default"}
    json.dumps(found)
