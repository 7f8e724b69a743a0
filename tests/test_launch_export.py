"""What each framework gets: the recorded settings of the two reference jobs, and refusals that name what is missing."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any

import pytest
from launch_jobs import (
    BIG,
    SMALL,
    argument_sets,
    database,
    flat,
    launch,
    recorded,
    refused,
    text_of,
    wrapped,
    yaml_document,
)

from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context
from gpucalc.launch import command_of, read_launch, target_named
from gpucalc.launch.target import all_of, find
from gpucalc.launch.text import yaml_text
from gpucalc.launch.unwritten import unwritten
from gpucalc.launch.write.megatron import frequency

BIG_MEGATRON = "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective"
SMALL_MEGATRON = "tp2-dp4-mbs1-zero1-sp-none"
FP32 = {"grad_accum_dtype": "fp32"}


@pytest.mark.parametrize(
    ("layout", "job", "file"),
    [(BIG_MEGATRON, BIG, "megatron_70b_64gpu.sh"), (SMALL_MEGATRON, SMALL, "megatron_8b_8gpu.sh")],
)
def test_megatron_flags_are_the_accepted_ones(layout: str, job: dict[str, Any], file: str) -> None:
    ours, theirs = argument_sets(text_of("megatron", layout, job, **FP32)), argument_sets(recorded(file))
    assert ours.pop("--nnodes") == theirs.pop("--nnodes")
    assert ours.pop("--nproc-per-node")[0] == theirs.pop("--nproc-per-node")[0]
    rendezvous = {"--rdzv-id", "--rdzv-backend", "--rdzv-endpoint"}
    more = {"--attention-dropout": ("0.0",), "--hidden-dropout": ("0.0",)}  # the default of 0.1 keeps masks
    for name in rendezvous:
        ours.pop(name, None)
    compared = {n: v for n, v in ours.items() if n not in more and n != "--lr"}
    assert compared == {n: v for n, v in theirs.items() if n != "--lr"}
    assert {n: ours[n] for n in more} == more


def test_megatron_sets_the_variable_it_asserts_and_leaves_it_out_where_it_is_refused() -> None:
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text_of("megatron", BIG_MEGATRON)
    sharded = text_of("megatron", "tp8-dp8-mbs1-zero3-sp-full")
    assert "export CUDA" not in sharded
    flags = argument_sets(sharded)
    assert flags["--data-parallel-sharding-strategy"] == ("optim_grads_params",)
    assert flags["--ckpt-format"] == ("fsdp_dtensor",)
    later = {**BIG, "gpu": "b200"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text_of("megatron", BIG_MEGATRON, later)


@pytest.mark.parametrize(
    ("layout", "gpus", "flag", "value"),
    [
        ("tp8-pp16-dp2-mbs1-zero1-sp-none", 256, "--decoder-first-pipeline-num-layers", "7"),
        ("tp8-pp16-dp2-vpp8-mbs1-zero1-sp-none", 256, "--pipeline-model-parallel-layout", "E|(t|)*126L"),
        ("tp8-pp14-dp2-vpp3-mbs1-zero1-sp-none", 224, "--num-layers-per-virtual-pipeline-stage", "3"),
    ],
)
def test_megatron_deals_126_layers(layout: str, gpus: int, flag: str, value: str) -> None:
    job = {**BIG, "model": "llama-3.1-405b", "n_gpus": gpus, "global_batch": 2 * 14 * 16}
    assert argument_sets(text_of("megatron", layout, job))[flag] == (value,)


def test_megatron_experts_and_latent_attention() -> None:
    job = {"model": "deepseek-v3", "gpu": "h800-sxm-80gb", "n_gpus": 128, "seq_len": 4096, "global_batch": 512}
    flags = argument_sets(text_of("megatron", "pp2-dp64-ep64-mbs1-zero1-selective", job))
    assert flags["--moe-layer-freq"] == ("([0]*3+[1]*58)",)
    assert flags["--multi-latent-attention"] == ()
    assert "--group-query-attention" not in flags
    assert flags["--qk-head-dim"] == ("128",)
    assert flags["--expert-tensor-parallel-size"] == ("1",)
    assert flags["--moe-shared-expert-intermediate-size"] == ("2048",)
    # The words that a shell would expand are quoted.
    assert "'([0]*3+[1]*58)'" in text_of("megatron", "pp2-dp64-ep64-mbs1-zero1-selective", job)


def test_alternating_layers_are_listed() -> None:
    assert frequency([True, False] * 8) == "[" + ",".join(["1,0"] * 8) + "]"
    assert eval(frequency([False] * 3 + [True] * 5)) == [0] * 3 + [1] * 5


@pytest.mark.parametrize(
    ("layout", "job", "file"),
    [
        ("tp8-dp8-mbs1-zero2-none", BIG, "deepspeed_70b_64gpu.json"),
        ("dp8-mbs1-zero3-full", SMALL, "deepspeed_8b_8gpu.json"),
    ],
)
def test_deepspeed_is_the_accepted_document(layout: str, job: dict[str, Any], file: str) -> None:
    ours = json.loads(text_of("deepspeed", layout, job, **FP32))
    ours.pop("communication_data_type", None)  # the recorded files leave it to the type of the model
    assert ours == json.loads(recorded(file))


@pytest.mark.parametrize(
    ("layout", "job", "file"),
    [
        ("tp8-pp4-dp2-vpp4-mbs1-zero2-sp-full", BIG, "torchtitan_70b_64gpu.toml"),
        ("dp8-mbs1-zero3-selective", SMALL, "torchtitan_8b_8gpu.toml"),
    ],
)
def test_torchtitan_is_the_accepted_document(layout: str, job: dict[str, Any], file: str) -> None:
    ours, theirs = tomllib.loads(text_of("torchtitan", layout, job)), tomllib.loads(recorded(file))
    assert ours.pop("compile") == {"enable": True}
    assert ours == theirs


def _assignments(text: str, function: str) -> dict[str, Any]:
    body = re.split(r"^def ", text, flags=re.MULTILINE)
    found = next(part for part in body if part.startswith(function))
    pairs = dict(re.findall(r"^    c\.([\w.]+) = (.+)$", found, re.MULTILINE))
    return {n: v if "Config" in v else eval(v, {"__builtins__": {}}) for n, v in pairs.items()}


@pytest.mark.parametrize(
    ("layout", "job", "function"),
    [
        ("tp8-pp4-dp2-vpp4-mbs1-zero2-sp-full", BIG, "llama31_70b_fsdp2_tp8_pp4"),
        ("dp8-mbs1-zero3-selective", SMALL, "llama31_8b_fsdp8"),
    ],
)
def test_the_recipe_sets_what_the_accepted_one_sets(layout: str, job: dict[str, Any], function: str) -> None:
    text = text_of("torchtitan-recipe", layout, job)
    compile(text, "recipe", "exec")
    ours = _assignments(text, "job")
    theirs = _assignments(recorded("torchtitan_recipes.py.txt"), function)
    assert {n: ours[n] for n in theirs} == theirs
    compiled = {n: ours.pop(n) for n in ("compile.enable", "compile.components")}
    assert compiled == {"compile.enable": True, "compile.components": ["model", "loss"]}
    neutral = {n: v for n, v in ours.items() if n not in theirs}
    assert set(neutral.values()) <= {1}, neutral


@pytest.mark.parametrize(
    ("layout", "more", "recipe"),
    [
        ("dp8-mbs1-zero3-selective", {}, "llama3_8b"),
        ("dp8-mbs1-zero3-full", {"precision": "mxfp8", "gpu": "b200"}, "llama3_8b_mxfp8"),
        ("tp2-dp4-mbs1-zero3-sp-none", {}, "llama3_8b"),
    ],
)
def test_overrides_of_a_recipe(layout: str, more: dict[str, Any], recipe: str) -> None:
    """The words are those that torchtitan 0.3.0's ConfigManager takes: the subcommand of recomputation stands last."""
    text = text_of("torchtitan-flags", layout, SMALL, **more)
    words = argument_sets(text)
    assert words["--config"] == (recipe,)
    assert words["--training.local_batch_size"] == ("1",)
    assert words["--compile.components"][0] == "model,loss"
    assert text.rstrip().rpartition(" ")[2] == f"activation-checkpoint:{layout.rpartition('-')[2]}"
    known = {line for line in recorded("torchtitan_keys.txt").splitlines() if "." in line}
    sections = {flag.removeprefix("--") for flag in words if "." in flag}
    assert sections <= known, sections - known


def test_experts_that_are_sent_exclude_graphs() -> None:
    for target, word in (("torchtitan-flags", "--training.disable_cuda_graphs"),
                         ("torchtitan-recipe", "c.training.disable_cuda_graphs = True")):  # fmt: skip
        job = {**SMALL, "model": "deepseek-v2-lite"}
        assert word in text_of(target, "dp8-ep8-etp1-mbs1-zero3-full", job)
        assert word not in text_of(target, "dp8-mbs1-zero3-full", SMALL)


def test_accelerate_nanotron_and_horovod_are_the_accepted_ones() -> None:
    cases = {
        "accelerate_70b_64gpu_megatron.yaml": ("accelerate", "tp8-pp4-dp2-mbs1-zero1-sp-selective", BIG),
        "accelerate_70b_64gpu_fsdp2_tp8.yaml": ("accelerate", "tp8-dp8-mbs1-zero3-full", BIG),
        "accelerate_8b_8gpu_fsdp2.yaml": ("accelerate", "dp8-mbs1-zero3-full", SMALL),
    }
    for file, (target, layout, job) in cases.items():
        ours, theirs = flat(yaml_document(text_of(target, layout, job))), flat(yaml_document(recorded(file)))
        more = {"fsdp_cpu_ram_efficient_loading", "fsdp_offload_params", "cp_size", "rdzv_backend", "same_network"}
        told = [n for n in {*ours, *theirs} if not n.endswith(tuple(more))]
        assert {n: ours.get(n) for n in told} == {n: theirs.get(n) for n in told}, file
    ours = flat(yaml_document(text_of("nanotron", "tp8-pp4-dp2-mbs1-zero1-sp-none", BIG, **FP32)))
    theirs = flat(yaml_document(recorded("nanotron_70b_64gpu.yaml")))
    assert ours | {"general.run": theirs["general.run"]} == theirs
    horovod = argument_sets(text_of("horovod", "dp8-mbs1-zero0-full", SMALL))
    assert horovod == argument_sets(recorded("horovod_8gpu.sh"))


def test_megatron_bridge_overrides_the_recipe() -> None:
    words = shlex.split(text_of("nemo", BIG_MEGATRON), comments=True)
    example = shlex.split(recorded("megatron_bridge.sh").split("# 70B")[1].replace("\\\n", " "))
    missing = [w for w in example[example.index("--recipe") :] if w not in words and w != "-cp"]
    assert missing == []
    assert words[words.index("-vp") + 1] == "4"
    plain = shlex.split(text_of("nemo", "tp8-pp4-dp2-mbs1-zero1-sp-none"), comments=True)
    assert "-vp" not in plain
    assert "model.virtual_pipeline_model_parallel_size=null" in plain  # the recipe's own chunks are cleared


REFUSALS = [
    ("deepspeed", "tp8-pp4-dp2-mbs1-zero1-none", "DeepSpeed JSON has no pipeline degree"),
    ("deepspeed", "tp8-dp8-mbs1-zero2-sp-none", "no sequence parallelism"),
    ("deepspeed", "tp8-dp8-mbs1-zero3-none", "not with ZeRO-3"),
    ("deepspeed", "cp2-dp32-mbs1-zero3-none", "no ring context parallelism"),
    ("megatron", "tp8-pp4-dp2-mbs1-zero1-sp-gpipe-none", "no schedule gpipe"),
    ("megatron", "tp8-pp4-dp2-mbs1-zero1-sp-zbh1-none", "no schedule zb-h1"),
    ("megatron", "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-full2", "not a multiple of 4"),
    ("megatron", "tp8-pp4-dp2-mbs1-zero1-sp-none-offload-act", "activation offload"),
    ("torchtitan", "tp8-pp4-dp2-mbs1-zero1-sp-none", "torchtitan has no ZeRO-1"),
    ("torchtitan", "tp8-dp8-mbs1-zero0-sp-none", "pure data parallelism only"),
    ("torchtitan", "tp8-dp8-mbs1-zero3-none", "always runs tp with sequence parallelism"),
    ("torchtitan", "tp8-pp4-dp2-mbs1-zero3-sp-zb2p-none", "no schedule zb-2p"),
    ("torchtitan", "cp2-dp32-mbs1-zero3-ulysses-none", "no Ulysses"),
    ("accelerate", "tp8-pp4-dp2-mbs1-zero3-sp-none", "FSDP has no pipeline degree"),
    ("accelerate", "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-none", "no virtual pipeline degree"),
    ("accelerate", "dp64-mbs1-zero3-selective", "not selectively"),
    ("nanotron", "tp8-pp4-dp2-mbs1-zero3-sp-none", "ZeRO 0 and 1"),
    ("nanotron", "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-none", "without chunks"),
    ("nanotron", "tp16-pp2-dp2-mbs1-zero1-sp-none", "kv heads that tp=16 divides"),
    ("horovod", "tp8-dp8-mbs1-zero0-none", "no tensor parallel degree"),
    ("horovod", "dp64-mbs1-zero1-none", "ZeRO-1 is not available"),
    ("nemo", "tp8-pp4-dp2-mbs1-zero1-sp-gpipe-none", "no schedule gpipe"),
]


@pytest.mark.parametrize(("target", "layout", "sentence"), REFUSALS, ids=[f"{t}-{x}" for t, x, _ in REFUSALS])
def test_what_cannot_be_expressed_is_named(target: str, layout: str, sentence: str) -> None:
    assert sentence in refused(target, layout)


def test_a_refusal_lists_everything() -> None:
    said = refused("horovod", "tp8-pp4-dp2-mbs1-zero1-sp-none")
    assert all(word in said for word in ("tensor", "pipeline", "ZeRO-1"))


@pytest.mark.parametrize(
    ("target", "model", "sentence"),
    [
        ("megatron", "mamba-2.8b", "no attention layers"),
        ("megatron", "t5-3b", "an encoder"),
        ("megatron", "jamba-52b", "linear-attention"),
        ("torchtitan", "falcon-7b", "has no flavor of the shape"),
        ("nanotron", "gpt2-1.5b", "Llama-type models only"),
        ("nemo", "falcon-7b", "takes the shape from a recipe"),
    ],
)
def test_models_that_a_framework_cannot_hold(target: str, model: str, sentence: str) -> None:
    assert sentence in refused(target, "dp8-mbs1-zero1-none", {**SMALL, "model": model, "seq_len": 512})


def test_gpus_must_fill_nodes() -> None:
    with pytest.raises(UsageError, match="not a whole number of nodes of 8; use 8 or 16"):
        launch("megatron", "dp12-mbs1-zero1-none", {**SMALL, "n_gpus": 12, "global_batch": 48})


def test_an_open_recomputation_is_decided_and_told() -> None:
    text = text_of("nanotron", "tp4-pp4-dp4-mbs1-zero1-sp")
    assert "recompute_layer: true" in text
    assert "all layers, as a part of them cannot be chosen here" in text


def test_batch_scripts_run_on_the_right_nodes() -> None:
    for target, layout in (("megatron", BIG_MEGATRON), ("torchtitan", "dp64-mbs1-zero3-full")):
        made = launch(target, layout)
        script = wrapped(made, "sbatch", target)
        assert script.startswith("#!/bin/bash\n#SBATCH")
        assert "#SBATCH --nodes=8\n" in script
        assert "#SBATCH --gpus-per-node=8\n" in script
        assert "srun torchrun --nnodes=8 --nproc-per-node=8" in script
    rack = {**BIG, "gpu": "gb200", "n_gpus": 72, "global_batch": 144}
    script = wrapped(launch("megatron", "tp4-dp18-mbs1-zero1-sp-none", rack), "sbatch", "megatron")
    assert "#SBATCH --nodes=18\n" in script
    assert "--gpus-per-node=4" in script


@pytest.mark.parametrize("target", [t.name for t in all_of("write") if t.job == "training"])
def test_one_gpu_needs_no_framework_of_parallelism(target: str) -> None:
    job = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 1, "seq_len": 2048, "global_batch": 8}
    text = command_of(launch(target, "mbs1-zero0-full", job), target_named(target)).text
    assert text.strip()


def test_yaml_quotes_what_could_be_mistaken() -> None:
    text = yaml_text({"no": "no", "version": "1.0", "x": 1e-8, "empty": "", "colon": "a: b", "list": ["on", 2]})
    assert text == '"no": "no"\nversion: "1.0"\nx: 1.0e-08\nempty: ""\ncolon: "a: b"\nlist: ["on", 2]\n'


def test_targets_have_other_names_and_near_ones() -> None:
    assert target_named("Megatron-LM").name == "megatron"
    assert target_named("torchtitan_recipe").name == "torchtitan-recipe"
    assert target_named("TensorRT-LLM").name == "trtllm"
    assert find("slurm", ("write", "wrap"), "--to").name == "sbatch"
    with pytest.raises(UsageError, match="did you mean torchtitan"):
        target_named("torchtitn")


def test_settings_say_as_which_software_they_were_costed() -> None:
    job = {"model": "llama-3.1-8b", "gpu": "b200", "n_gpus": 16, "seq_len": 4096, "global_batch": 64}
    layout = "dp8-cp2-mbs4-zero3-ag-none"
    own = launch("torchtitan", layout, job)
    assert not any("costed as" in line for line in own.warnings)
    assert any(line.startswith("predicted as torchtitan: ") for line in own.comments)
    other = launch("torchtitan", layout, job, framework="megatron-core")
    (said,) = [line for line in other.warnings if "costed as megatron-core" in line]
    there = next(line for line in own.comments if line.startswith("predicted as")).split(": ")[1].split(" s a step")[0]
    assert said.endswith(f"with the profile of torchtitan, for which the settings are, {there} s")


def test_accelerate_is_costed_as_the_plugin_where_it_uses_it() -> None:
    assert launch("accelerate", "tp8-pp4-dp2-mbs1-zero1-sp-selective")["framework"] == "megatron-core"
    assert launch("accelerate", "dp64-mbs1-zero3-full")["framework"] == "accelerate"


def test_deepspeed_states_both_types_of_gradients() -> None:
    document = json.loads(text_of("deepspeed", "dp8-mbs1-zero3-full", SMALL, grad_accum_dtype="fp32"))
    assert document["data_types"]["grad_accum_dtype"] == "fp32"
    document = json.loads(text_of("deepspeed", "dp8-mbs1-zero3-full", SMALL, grad_accum_dtype="bf16"))
    assert document["data_types"]["grad_accum_dtype"] == "bf16"
    assert "communication_data_type" not in document


def test_one_expert_a_token_needs_the_softmax_before() -> None:
    job = {"model": "llama-4-scout-17b-16e", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 8192, "global_batch": 128}
    flags = argument_sets(text_of("megatron", "tp4-dp16-ep16-etp1-mbs1-zero3-sp-full", job))
    assert flags["--moe-router-topk"] == ("1",)
    assert "--moe-router-pre-softmax" in flags
    assert "--moe-router-pre-softmax" not in text_of(
        "megatron", "dp8-ep8-mbs1-zero1-full", {**SMALL, "model": "mixtral-8x7b"}
    )


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"tp_overlap": True}, "--tp-comm-overlap"),
        ({"dp_overlap": False}, ""),
        ({"cuda_graphs": "layer"}, "--cuda-graph-impl transformer_engine"),
        ({"loss_kernel": "inplace"}, "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"),
        ({"fused_rope": False, "fused_gate": False}, "--no-bias-swiglu-fusion --no-rope-fusion"),
        ({"precision": "fp8", "fp8_params": True}, "--fp8-param-gather"),
    ],
)
def test_megatron_states_the_kernels_of_the_question(cells: dict[str, Any], words: str) -> None:
    text = text_of("megatron", SMALL_MEGATRON, SMALL, **cells)
    assert words in text
    assert ("--overlap-grad-reduce" in text) == (cells.get("dp_overlap") is not False)
    read, _ = read_launch("megatron", text)
    assert {name: read[name] for name in cells} == cells


def test_prediction_layers_are_written() -> None:
    job = {"model": "deepseek-v3", "gpu": "h800-sxm-80gb", "n_gpus": 128, "seq_len": 4096, "global_batch": 512}
    assert argument_sets(text_of("megatron", "pp2-dp64-ep64-mbs1-zero1-selective", job))["--mtp-num-layers"] == ("1",)


@pytest.mark.parametrize(
    ("target", "layout", "stated", "said"),
    [
        ("deepspeed", "dp8-mbs1-zero3-full", {"fused_gate": True}, ["fused_gate=yes"]),
        ("megatron", "tp2-dp4-mbs1-zero1-sp-none", {"fused_norm": False, "fused_gate": False}, ["fused_norm=no"]),
        ("nanotron", "tp2-dp4-mbs1-zero1-sp-none", {"flash_attention": "no"}, ["flash_attention=no"]),
        ("megatron", "tp2-dp4-mbs1-zero1-sp-none", {"dropout": True, "tp_overlap": False}, []),
        ("horovod", "dp8-mbs1-zero0-full", {"fused_gate": True}, []),  # has no reader
    ],
)
def test_what_was_costed_and_cannot_be_written_is_said(
    target: str, layout: str, stated: dict[str, Any], said: list[str]
) -> None:
    made = launch(target, layout, SMALL, **stated)
    lines = unwritten(made, target_named(target), {**SMALL, **stated}, Context(database()))
    assert [line.split(" ")[0] for line in lines] == said
    assert all(re.search(r"as they stand \d.* s a step, \d.* GiB per GPU$", line) for line in lines)
