"""Tables of options: each is read, harmless, noted or refused, and the reader reads what its table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_jobs import database, recorded

from gpucalc.core.columns import INPUT
from gpucalc.core.errors import DataError, UsageError
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving_schema import RECORDS
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import flags as tables
from gpucalc.launch import read_launch
from gpucalc.launch.flags import USES, flags, of_use
from gpucalc.launch.read import _megatron_options
from gpucalc.launch.read._settings import Settings
from gpucalc.questions.tune.policy_cells import POLICY

TABLES = sorted(path.stem for path in Path(tables.__file__).parent.glob("*.csv"))
# A run against its prediction: slower or faster, with more or less memory; or what cannot be said.
EFFECTS = {"slower", "faster", "less memory", "more memory", "either way", "another shape"}
BASE = recorded("megatron_8b_8gpu.sh").rstrip() + " "
EXPERTS = (
    "torchrun --nnodes=16 --nproc-per-node=8 pretrain_gpt.py --num-layers 61 --hidden-size 7168 "
    "--num-attention-heads 128 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
    "--qk-pos-emb-head-dim 64 --v-head-dim 128 --ffn-hidden-size 18432 --swiglu --vocab-size 129280 "
    "--untie-embeddings-and-output-weights --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
    "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq '([0]*3+[1]*58)' --seq-length 4096 "
    "--micro-batch-size 1 --global-batch-size 512 --bf16 --pipeline-model-parallel-size 1 "
    "--expert-model-parallel-size 64 --expert-tensor-parallel-size 1 --use-distributed-optimizer "
)


@pytest.mark.parametrize("name", TABLES)
def test_every_option_has_one_use_and_says_why(name: str) -> None:
    for flag in flags(name).values():
        assert flag.use in USES, flag
        assert (flag.use == "read") == bool(flag.cell), flag
        assert (flag.use == "noted") == bool(flag.effect), flag
        assert flag.takes in {"0", "1", "n"}, flag
        if flag.use == "read":
            assert set(flag.cell.split("+")) <= {*INPUT, *RECORDS, *POLICY}, flag
        if flag.use in {"harmless", "refused"}:
            assert flag.why, flag
        if flag.use == "noted":
            assert set(flag.effect.split(" and ")) <= EFFECTS, flag


def test_no_option_of_megatron_is_in_no_table() -> None:
    listed = {n for n in recorded("megatron_options.txt").splitlines() if n and not n.startswith("#")}
    assert len(listed) > 830
    assert listed <= set(flags("megatron")), sorted(listed - set(flags("megatron")))
    assert _megatron_options.known() - _megatron_options.FORMER == of_use("megatron", "read")


@pytest.mark.parametrize("name", ["deepspeed", "torchtitan"])
def test_every_key_of_a_file_is_in_its_table(name: str) -> None:
    listed = [n for n in recorded(f"{name}_keys.txt").splitlines() if n and not n.startswith("#")]
    assert len(listed) > 90
    known = Settings({}, name, name, {})
    assert [key for key in listed if known._entry(key) is None] == []


KEYS = sorted(
    (name, flag.name) for name in ("deepspeed", "torchtitan") for flag in flags(name).values() if flag.use == "noted"
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KEYS))
def test_what_a_file_says_unmodelled_is_said_with_its_direction(key: tuple[str, str]) -> None:
    name, flag = key[0], flags(key[0])[key[1]]
    said = Settings({flag.name.replace("*", "part"): 77}, name, name, {})
    said.remark()
    assert len(said.notes) == 1
    assert "not modelled" in said.notes[0]


@pytest.mark.parametrize(
    ("change", "cells"),
    [
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, {"precision": "bf16-true"}),
        ({"bf16": {}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, {"precision": "bf16"}),
        (
            {
                "tensor_parallel": {"tp": {"tp_size": 2}},
                "zero_optimization": {"stage": 1},
                "train_batch_size": 64,
                "gradient_accumulation_steps": 16,
            },
            {"tp": 2, "dp": 4},
        ),
        ({"zero_optimization": {"stage": 1, "overlap_comm": False}}, {"dp_overlap": False}),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"offload_optimizer": True}),
    ],
)
def test_sections_of_deepspeed_that_are_read(change: dict[str, Any], cells: dict[str, Any]) -> None:
    document = json.loads(recorded("deepspeed_8b_8gpu.json")) | change
    read, _ = read_launch("deepspeed", json.dumps(document), {"n_gpus": 8})
    assert {name: read[name] for name in cells} == cells


NOTED = sorted(flag.name for flag in flags("megatron").values() if flag.use == "noted")


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NOTED))
def test_what_is_not_modelled_is_said_with_its_direction(name: str) -> None:
    flag = flags("megatron")[name]
    value = {"0": "", "1": " 7", "n": " 7 8"}[flag.takes]
    cells, notes = read_launch("megatron", BASE + name + value)
    (note,) = [n for n in notes if n.startswith(name + value + " ")]
    assert "is not modelled" in note
    assert flag.effect in note or "may differ either way" in note or "the model has another shape" in note
    assert cells == read_launch("megatron", BASE)[0]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(of_use("megatron", "harmless"))))
def test_harmless_options_are_silent(name: str) -> None:
    value = {"0": "", "1": " 7", "n": " 7 8"}[flags("megatron")[name].takes]
    assert read_launch("megatron", BASE + name + value) == read_launch("megatron", BASE)


def test_a_value_that_is_the_default_is_silent() -> None:
    for words in ("--exp-avg-dtype fp32", "--moe-router-num-groups", "--normalization LayerNorm"):
        if " " in words:
            assert read_launch("megatron", BASE + words)[1] == read_launch("megatron", BASE)[1]


def test_an_unknown_option_is_named() -> None:
    _, notes = read_launch("megatron", BASE + "--flux-capacitor 88")
    assert "flags that Megatron-LM does not know are not read: --flux-capacitor" in notes
    with pytest.raises(DataError, match="reinforcement learning"):
        read_launch("megatron", BASE + "--perform-rl-step")


@pytest.mark.parametrize(
    ("words", "cell", "value"),
    [
        ("--transformer-impl local", "fused_norm", False),
        ("--no-bias-swiglu-fusion", "fused_gate", False),
        ("--no-rope-fusion", "fused_rope", False),
        ("--cross-entropy-loss-fusion", "loss_kernel", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "loss_kernel", "inplace"),
        ("--cuda-graph-impl local", "cuda_graphs", "layer"),
        ("--cuda-graph-impl full_iteration", "cuda_graphs", "full"),
        ("--external-cuda-graph", "cuda_graphs", "layer"),
        ("--fp8-format hybrid --fp8-param-gather", "fp8_params", True),
        ("--fp8-format hybrid", "fp8_params", False),
        ("--grad-reduce-in-bf16", "gradient_dtype", "bf16"),
        ("--mtp-num-layers 1", "mtp_layers", 1),
        ("--tp-comm-overlap", "tp_overlap", True),
        ("--flash-attention-version 3", "flash_attention", "fa3"),
        ("--recompute-granularity selective --recompute-modules mlp", "recompute", "none"),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer", "offload_optimizer", True),
    ],
)
def test_what_is_read_becomes_a_cell(words: str, cell: str, value: object) -> None:
    base, _ = read_launch("megatron", BASE)
    cells, _ = read_launch("megatron", BASE + words)
    assert base.get(cell) != value or cell in {"fp8_params", "recompute"}
    assert cells[cell] == value


@pytest.mark.parametrize(
    ("words", "cell", "value"),
    [
        ("", "dispatcher", "allgather"),
        ("--moe-token-dispatcher-type alltoall", "dispatcher", "alltoall"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep", "dispatcher", "fused"),
        ("--moe-enable-deepep", "dispatcher", "fused"),
        ("", "expert_kernel", "loop"),
        ("--moe-grouped-gemm", "expert_kernel", "grouped"),
        ("--moe-router-force-load-balancing", "expert_imbalance", 1.0),
        ("", "mtp_layers", 0),
        ("--mtp-num-layers 1", "mtp_layers", 1),
    ],
)
def test_experts(words: str, cell: str, value: object) -> None:
    cells, _ = read_launch("megatron", EXPERTS + words)
    assert cells[cell] == value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--rampup-batch-size 16 16 5859375", "the first steps are smaller"),
        ("--recompute-granularity selective --recompute-modules mla_up_proj mlp core_attn", "slower and less memory"),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "less memory than predicted"),
        ("--distribute-saved-activations", "slower and less memory than predicted"),
        ("--fine-grained-activation-offloading", "slower and less memory than predicted"),
        (
            "--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 0.3",
            "0.3 is taken as 1, the whole state: faster and more memory than predicted",
        ),
        ("--main-params-dtype fp16", "less memory than predicted"),
        ("--first-last-layers-bf16", "slower than predicted"),
    ],
)
def test_what_moves_the_figure_unmodelled_is_said(words: str, sentence: str) -> None:
    _, notes = read_launch("megatron", BASE + words)
    assert any(sentence in note for note in notes), notes


def test_the_flags_tie_embeddings_not_the_preset() -> None:
    tied = BASE.replace("--untie-embeddings-and-output-weights", "")
    cells, notes = read_launch("megatron", tied)
    assert cells["tied_embeddings"] is True
    assert any(note.startswith("embeddings are tied, unlike those of llama-3") for note in notes)
    beside = {"gpu": "h100-sxm-80gb"}
    model = resolve({**cells, **beside}, Context(database())).model
    untied = resolve({**read_launch("megatron", BASE)[0], **beside}, Context(database())).model
    assert untied.parameters_total - model.parameters_total == 128256 * 4096
    assert (model.parameters_total, untied.parameters_total) == (7_504_924_672, 8_030_261_248)


def test_a_shape_of_several_presets_names_them() -> None:
    _, notes = read_launch("megatron", EXPERTS)
    said = next(note for note in notes if "the shape is that of" in note)
    assert "deepseek-r1" in said
    assert "deepseek-v3" in said
    cells, _ = read_launch("megatron", EXPERTS + "--save /data/DeepSeek-V3/run")
    assert cells["model"] == "deepseek-v3"


def test_a_gpt_with_biases_is_not_a_model_without() -> None:
    gpt = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--vocab-size 50368"
    )
    assert "model" not in read_launch("megatron", gpt)[0]


@pytest.mark.parametrize(
    ("layers", "pp", "words", "vpp"),
    [
        (14, 8, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", 1),
        (62, 16, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", 1),
        (
            62,
            16,
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
            "--num-layers-per-virtual-pipeline-stage 2",
            2,
        ),
        (15, 8, "--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2", 2),
        (15, 8, "--account-for-embedding-in-pipeline-split", 1),
    ],
)
def test_splits_that_count_embedding_and_loss(layers: int, pp: int, words: str, vpp: int) -> None:
    text = BASE.replace("--num-layers 32", f"--num-layers {layers}").replace("--nnodes=1", "--nnodes=32")
    text = text.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1").replace(
        "--pipeline-model-parallel-size 1", f"--pipeline-model-parallel-size {pp}"
    )
    text = text.replace("--global-batch-size 64", "--global-batch-size 4096").replace("--sequence-parallel", "")
    cells, _ = read_launch("megatron", text + words)
    assert (cells["pp"], cells["vpp"]) == (pp, vpp)
    with pytest.raises(DataError, match=r"slots of|does not divide|do not divide"):
        read_launch("megatron", text.replace(f"--num-layers {layers}", f"--num-layers {layers + 1}") + words)


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 6", (2, 6)),
        ("--decoder-last-pipeline-num-layers 11", (3, 11)),  # 21 layers for the other seven stages
        ("--pipeline-model-parallel-layout Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*5L", (3, 5)),
        # chunks 0 and 8 lie on the first rank: 1 + 2 layers; 7 and 15 on the last: 2 + 3
        ("--pipeline-model-parallel-layout Et|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tttL", (3, 5)),
        ("--pipeline-model-parallel-layout Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L", (None, None)),  # as by itself
    ],
)
def test_layers_of_the_end_stages(words: str, ends: tuple[int | None, int | None]) -> None:
    text = (
        BASE.replace("--nnodes=1", "--nnodes=4")
        .replace("--tensor-model-parallel-size 2", "")
        .replace("--pipeline-model-parallel-size 1", "--pipeline-model-parallel-size 8")
    )
    text = text.replace("--sequence-parallel", "").replace("|", "\\|")
    cells, _ = read_launch("megatron", text + words.replace("|", "\\|"))
    assert (cells.get("layers_first"), cells.get("layers_last")) == ends


def test_the_longest_end_stage_sets_the_step() -> None:
    job = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "pp": 8, "seq_len": 4096, "global_batch": 64}
    job |= {"recompute": "none", "zero_stage": 1}
    context = Context(database())

    def step(**more: int) -> float:
        return float(predict([resolve({**job, **more}, context)])[0]["pred_step_time_s"])

    assert step(layers_first=4, layers_last=4) == step()
    # 11 layers and the head instead of 4 and the head on the last stage: the pipeline waits for it
    assert step(layers_first=3, layers_last=11) > 1.7 * step()
    assert step(layers_first=11, layers_last=3) > 1.7 * step()
    # a layer fewer beside the head is faster, as account-for-loss means it
    assert step(layers_first=5, layers_last=3) < step()
    with pytest.raises(UsageError, match=r"layers_first=30 leave 2 of the 32 layers, expected one or more for each"):
        step(layers_first=30)
