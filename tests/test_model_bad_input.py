"""Bad model files: one clear sentence a violation, never a traceback, nothing executed or followed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import DataError, UsageError
from gpucalc.models.model import load_model, model_from_config
from gpucalc.models.presets import preset_config

LLAMA = preset_config("llama-2-7b")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "not JSON"),
        (b"\x00\x01\x02\x7fELF", "binary"),
        (b'{"a": "\xe9"}', "not UTF-8"),
        (b"[1, 2]", "holds a JSON array"),
        (b"null", "holds a JSON null"),
        (b"3", "holds a JSON number"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 6000 + b"}", "not JSON that can be read"),
        (b" " * (4 * 2**20 + 1), "larger than 4 MiB"),
        (b"{}", "neither architectures nor model_type"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(data)
    with pytest.raises(DataError, match=message) as raised:
        load_model(str(file))
    assert len(raised.value.problems) == 1
    assert "\n" not in str(raised.value)


def test_missing_file_and_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        load_model(str(tmp_path / "nothing.json"))
    with pytest.raises(DataError, match=r"holds no config.json"):
        load_model(tmp_path)


def test_unknown_name_has_near_ones() -> None:
    with pytest.raises(UsageError, match=r"did you mean .*llama-3.1-70b"):
        load_model("llama-3.1-71b")


@pytest.mark.parametrize("prefix", [b"\xef\xbb\xbf", b""])
def test_bom_and_crlf_are_accepted(tmp_path: Path, prefix: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(prefix + json.dumps(LLAMA, indent=1).replace("\n", "\r\n").encode())
    assert load_model(str(tmp_path)).parameters_total == 6_738_415_616


@pytest.mark.parametrize(
    "value", [0, -4096, 10**30, 4096.5, "4096", True, [4096], {"a": 1}, float("nan"), float("inf")]
)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_values_that_are_no_counts(key: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"{key} is .*such as"):
        model_from_config({**LLAMA, key: value}, "model")


def test_all_violations_at_once() -> None:
    config = {**LLAMA, "hidden_size": -1, "num_hidden_layers": "many", "vocab_size": 0.5}
    config.pop("intermediate_size")
    with pytest.raises(DataError) as raised:
        model_from_config(config, "model")
    assert len(raised.value.problems) == 4
    assert all(problem.startswith("model: ") for problem in raised.value.problems)


def test_whole_floats_are_counts() -> None:
    assert model_from_config({**LLAMA, "hidden_size": 4096.0}, "m").parameters_total == 6_738_415_616


def test_unknown_architecture_is_an_error_that_names_it() -> None:
    config = {**LLAMA, "architectures": ["LlamoForCausalLM"], "model_type": "llamo"}
    with pytest.raises(DataError, match=r"LlamoForCausalLM.*is not known.*LlamaForCausalLM"):
        model_from_config(config, "model")
    with pytest.raises(DataError, match="is not known"):
        model_from_config({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, "model")


def test_experts_in_a_dense_class_are_not_ignored() -> None:
    with pytest.raises(DataError, match="num_experts is 8, but this class has no experts"):
        model_from_config({**LLAMA, "num_experts": 8}, "model")


def test_another_task_of_a_known_class_is_counted_with_a_note() -> None:
    model = model_from_config({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "m")
    assert any("with a language-model head" in warning for warning in model.warnings)


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "9 experts per token of 8 experts"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "1 entries for 24 layers"),
        ("gpt-oss-20b", {"layer_types": ["odd"] * 24}, "layer_types holds"),
        ("gpt-oss-20b", {"layer_types": 3}, "list of words"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["a"]}, "list of layer numbers"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "MXE"}, "letters other than"),
        ("nemotron-super-49b", {"block_configs": [{}]}, "one object for each of the 80 layers"),
        ("qwen3-vl-8b", {"text_config": 3}, "text_config is 3; it must be an object"),
        ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("llama-2-7b", {"tie_word_embeddings": "yes"}, "must be true or false"),
        ("vit-base", {"image_size": 0}, "image_size is 0"),
    ],
)
def test_structures_that_do_not_fit(preset: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        model_from_config({**preset_config(preset), **changes}, preset)


def test_paths_in_a_file_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"hidden_size": 1}')
    config = {**LLAMA, "_name_or_path": str(secret), "auto_map": {"AutoConfig": f"{tmp_path}/evil.py--X"}}
    model = model_from_config(config, "model")
    assert model.hidden == 4096
    assert not list(tmp_path.glob("*.pyc"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
PRESETS = ["llama-2-7b", "deepseek-v3", "qwen3.5-35b-a3b", "nemotron-super-49b", "t5-3b", "clip-vit-base", "jamba-52b"]


@settings(max_examples=examples(150), deadline=None)
@given(preset=st.sampled_from(PRESETS), data=st.data())
def test_any_damage_is_a_data_error_or_a_model(preset: str, data: st.DataObject) -> None:
    config = preset_config(preset)
    nested = config.get("text_config") if data.draw(st.booleans()) else None
    target = nested if isinstance(nested, dict) else config
    for key in data.draw(st.lists(st.sampled_from(sorted(target)), min_size=1, max_size=3)):
        target[key] = data.draw(JSON)
    try:
        model = model_from_config(config, preset)
    except DataError:
        return  # any other exception fails the test
    assert 0 < model.parameters_active <= model.parameters_total
