"""What is written, put through the target's own parser; each part runs where that package is installed.

None of them is a dependency. They are installed beside the project at development time, for instance with
`pip install --target PARSERS torch transformers trl accelerate deepspeed axolotl torchtitan`, and found through
PYTHONPATH=PARSERS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch_jobs import BIG, SMALL, text_of, yaml_document

from gpucalc.launch.read.shell.script import read_script

FINE = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "global_batch": 32}
METHODS: list[dict[str, Any]] = [
    {"precision": "bf16"},
    {"precision": "bf16-true"},
    {"precision": "bf16", "method": "lora", "lora_targets": "q+v"},
    {"precision": "bf16", "method": "qlora", "lora_targets": "all", "optimizer": "paged-adam8bit"},
    {"precision": "bf16", "method": "qlora", "quantisation": "int8", "loss_kernel": "linear"},
]


@pytest.mark.parametrize("more", METHODS)
def test_trl_takes_its_yaml(more: dict[str, Any]) -> None:
    trl = pytest.importorskip("trl")
    parser = pytest.importorskip("transformers").HfArgumentParser
    values = yaml_document(text_of("trl", "dp8-mbs1-zero3-full", FINE, **more))
    # Whether the machine has a GPU is not the file's.
    beside = {name: values.pop(name) for name in ("bf16", "fp16", "fsdp", "fsdp_config")}
    found = parser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig)).parse_dict(
        {**values, "bf16": False, "fp16": False}, allow_extra_keys=False
    )
    assert found[1].max_length == 4096
    assert beside["fsdp"] is True
    assert found[2].use_peft == ("method" in more)


@pytest.mark.parametrize("more", METHODS)
def test_axolotl_takes_its_yaml(more: dict[str, Any]) -> None:
    schema = pytest.importorskip("axolotl.utils.schemas.config").AxolotlInputConfig
    taken = schema(**yaml_document(text_of("axolotl", "dp8-mbs1-zero3-full", FINE, **more)))
    assert taken.sequence_len == 4096
    assert taken.fsdp_config.reshard_after_forward is True


@pytest.mark.parametrize("more", METHODS[1:4])
def test_torchtune_has_what_is_named(more: dict[str, Any]) -> None:
    pytest.importorskip("torchtune")
    find = pytest.importorskip("torchtune.config._utils")._get_component_from_path
    values = yaml_document(text_of("torchtune", "dp8-mbs1-zero3-full", FINE, **more))
    for section in ("model", "checkpointer", "loss"):
        assert find(values[section]["_component_"])


@pytest.mark.parametrize(
    ("layout", "job", "more"),
    [
        ("dp8-mbs1-zero3-full", SMALL, {}),
        ("dp8-mbs1-zero1-none-offload-opt", SMALL, {}),
        ("dp64-mbs1-zero2-full", BIG, {"grad_accum_dtype": "fp32"}),
        ("tp8-dp8-mbs1-zero1-full", BIG, {}),
        ("dp8-mbs1-zero0-full", SMALL, {"precision": "fp16"}),
    ],
)
def test_deepspeed_takes_its_json(layout: str, job: dict[str, Any], more: dict[str, Any]) -> None:
    config = pytest.importorskip("deepspeed.runtime.config").DeepSpeedConfig
    values = json.loads(text_of("deepspeed", layout, job, **more))
    made = config({**values, "train_batch_size": values["train_micro_batch_size_per_gpu"],
                   "gradient_accumulation_steps": 1})  # fmt: skip
    assert made.zero_optimization_stage == values["zero_optimization"]["stage"]
    assert made.bfloat16_config.enabled == ("precision" not in more)


@pytest.mark.parametrize(
    ("layout", "job"),
    [
        ("dp8-mbs1-zero3-full", SMALL),
        ("dp4-cp2-ag-mbs1-zero2-none", SMALL),
        ("tp8-dp8-mbs1-zero3-full", BIG),
        ("tp8-pp4-dp2-mbs1-zero1-sp-selective", BIG),
    ],
)
def test_accelerate_takes_its_yaml(tmp_path: Path, layout: str, job: dict[str, Any]) -> None:
    load = pytest.importorskip("accelerate.commands.config.config_args").load_config_from_file
    file = tmp_path / "accelerate.yaml"
    file.write_text(text_of("accelerate", layout, job))
    taken = load(str(file))
    assert taken.num_processes == job["n_gpus"]


@pytest.mark.parametrize(
    ("layout", "job"),
    [
        ("dp8-mbs1-zero3-selective", SMALL),
        ("tp2-dp4-mbs1-zero3-sp-full", SMALL),
        ("dp4-cp2-ag-mbs1-zero3-none", SMALL),
        ("dp8-ep8-etp1-mbs1-zero3-full", {**SMALL, "model": "deepseek-v2-lite"}),
        ("tp8-pp4-dp2-vpp4-mbs1-zero2-sp-full", BIG),
    ],
)
def test_torchtitan_takes_its_overrides(layout: str, job: dict[str, Any]) -> None:
    pytest.importorskip("torchtitan.models.llama3.config_registry")
    manager = pytest.importorskip("torchtitan.config.manager").ConfigManager()
    words = read_script(text_of("torchtitan-flags", layout, job)).commands[-1]
    taken = manager.parse_args(words[words.index("torchtitan.train") + 1 :])
    assert taken.parallelism.tensor_parallel_degree == int(layout[2] if layout.startswith("tp") else 1)
    assert taken.training.seq_len == job["seq_len"]
    assert taken.compile.enable is True
