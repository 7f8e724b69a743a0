"""Launch settings read back: the recorded ones, round trips over legal layouts, contradictions, bad files."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launch_jobs import BIG, database, launch, layouts, recorded, same_layout, text_of, wrapped
from profiles import examples

from gpucalc.core.columns import INPUT
from gpucalc.core.errors import DataError, GpucalcError, UsageError
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.launch import command_of, read_launch, target_named
from gpucalc.launch.job import Launch, make_launch
from gpucalc.layouts.label import Layout

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt3-6.7b")
TITAN = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "qwen3-8b")
QUICK = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def label(cells: dict[str, Any]) -> str:
    return Layout.from_cells(cells).label()


@pytest.mark.parametrize(
    ("kind", "file", "more", "expected", "gpus"),
    [
        ("megatron", "megatron_70b_64gpu.sh", {}, "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective", 64),
        ("megatron", "megatron_8b_8gpu.sh", {}, "tp2-dp4-mbs1-zero1-sp-none", 8),
        ("torchtitan", "torchtitan_70b_64gpu.toml", {}, "tp8-pp4-dp2-vpp4-mbs1-zero2-sp-full", 64),
        ("torchtitan", "torchtitan_8b_8gpu.toml", {}, "dp8-mbs1-zero3-selective", 8),
        ("deepspeed", "deepspeed_70b_64gpu.json", {}, "tp8-dp8-mbs1-zero2", 64),
        ("deepspeed", "deepspeed_8b_8gpu.json", {}, "dp8-mbs1-zero3", 8),
    ],
)
def test_the_recorded_settings_mean_their_layouts(
    kind: str, file: str, more: dict[str, Any], expected: str, gpus: int
) -> None:
    cells, _ = read_launch(kind, recorded(file), more)
    assert label(cells) == expected
    assert cells["n_gpus"] == gpus
    assert cells["global_batch"] == (128 if gpus == 64 else 64)
    assert cells["precision"] == "bf16"


def test_the_shape_finds_its_model_and_the_row_can_be_predicted() -> None:
    cells, notes = read_launch("megatron", recorded("megatron_8b_8gpu.sh"))
    job = resolve({**cells, "gpu": "h100-sxm-80gb"}, Context(database()))
    assert job.model.parameters_total == 8_030_261_248
    assert job.cells["dropout"] is True  # Megatron-LM's own default of 0.1 counts
    assert any("the shape is that of" in note for note in notes)


def round_trip(cells: dict[str, Any], target: str, kind: str, **beside: Any) -> None:
    try:
        written = target_named(target)
        made = make_launch(cells, Context(database()), written.profile, written.usual)
        text = command_of(made, written).text
    except UsageError:
        assume(False)
        return
    read, _ = read_launch(kind, text, beside)
    same_layout(made, {**beside, **read})
    same_prediction(made, {**beside, **read})


def same_prediction(made: Launch, read: dict[str, Any]) -> None:
    """Assert that what was written and what is read back are predicted alike, to the last digits."""
    context = Context(database())
    ours = predict([resolve(made.cells, context)])[0]
    theirs = predict([resolve({"gpu": made["gpu"], **read}, context)])[0]
    for name in ("pred_step_time_s", "pred_peak_mem_gib", "pred_mfu_pct"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-12), (name, read)


@QUICK
@given(layouts(MODELS))
def test_megatron_round_trip(cells: dict[str, Any]) -> None:
    round_trip(cells, "megatron", "megatron")


@QUICK
@given(layouts(TITAN))
def test_torchtitan_round_trip(cells: dict[str, Any]) -> None:
    if cells["pp"] > 1 or cells["zero_stage"] == 1:
        cells["zero_stage"] = 3
    cells["sequence_parallel"] = cells["tp"] > 1
    round_trip(cells, "torchtitan", "torchtitan")


@QUICK
@given(
    layouts(("llama-3.1-8b", "llama-3.1-70b", "deepseek-v2-lite", "qwen3-30b-a3b")),
    st.sampled_from(["recipe", "flags"]),
    st.sampled_from(["bf16", "fp8", "mxfp8"]),
)
def test_recipe_round_trip(cells: dict[str, Any], form: str, precision: str) -> None:
    cells |= {"zero_stage": 3, "precision": precision, "offload_optimizer": False, "cp_kind": "ag"}
    cells["sequence_parallel"] = cells["tp"] > 1
    if form == "flags" and precision != "bf16":
        cells |= (
            {"precision": "mxfp8", "model": "llama-3.1-8b"}
            if cells["model"].startswith("llama")
            else {"precision": "bf16"}
        )
    cells.pop("recompute_layers", None)
    round_trip(cells, f"torchtitan-{form}", "torchtitan")


@QUICK
@given(layouts(MODELS))
def test_deepspeed_round_trip(cells: dict[str, Any]) -> None:
    ranks = cells["pp"] * cells["dp"]
    cells |= {"pp": 1, "vpp": 1, "dp": ranks, "precision": "bf16", "sequence_parallel": False, "cp_kind": "ulysses"}
    cells["global_batch"] = ranks * cells["micro_batch"] * 2
    kind = "fp32" if cells["zero_stage"] % 2 else "bf16"
    cells |= {"grad_accum_dtype": kind, "gradient_dtype": kind}
    beside = {name: cells[name] for name in ("model", "seq_len", "n_gpus", "recompute")}
    beside |= {"recompute_layers": cells["recompute_layers"]} if "recompute_layers" in cells else {}
    round_trip(cells, "deepspeed", "deepspeed", **beside)


@QUICK
@given(layouts(MODELS))
def test_accelerate_round_trip(cells: dict[str, Any]) -> None:
    cells["cp_kind"] = "ag"
    if cells["pp"] == 1:
        cells |= {"zero_stage": 3, "recompute": "full", "sequence_parallel": False}
        cells.pop("recompute_layers", None)
    names = ("model", "seq_len", "micro_batch", "global_batch")
    round_trip(cells, "accelerate", "accelerate", **{name: cells[name] for name in names})


@QUICK
@given(layouts(("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b")))
def test_bridge_round_trip(cells: dict[str, Any]) -> None:
    cells |= {"offload_optimizer": False}
    round_trip(cells, "nemo", "nemo", model=cells["model"])


@QUICK
@given(layouts(("llama-3.1-8b", "llama-3.1-70b", "llama-2-13b")))
def test_nanotron_round_trip(cells: dict[str, Any]) -> None:
    cells |= {"vpp": 1, "zero_stage": 1, "offload_optimizer": False, "precision": "bf16", "cp_kind": "ring"}
    cells["recompute"] = "full" if cells["recompute"] == "selective" else cells["recompute"]
    cells.pop("recompute_layers", None)
    cells.pop("shard_group", None)
    round_trip(cells, "nanotron", "nanotron")


@pytest.mark.parametrize(
    ("target", "layout", "beside"),
    [
        ("megatron", "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective", {}),
        ("torchtitan", "tp8-pp4-dp2-vpp4-mbs1-zero2-sp-full", {}),
        ("deepspeed", "dp64-mbs2-zero3-full", {"model": "llama-3.1-70b", "seq_len": 8192}),
    ],
)
def test_a_batch_script_reads_as_the_settings_in_it(target: str, layout: str, beside: dict[str, Any]) -> None:
    made = launch(target, layout)
    cells, _ = read_launch(target, wrapped(made, "sbatch", target), beside)
    same_layout(made, {**beside, **cells})


def test_uneven_stages_read_back() -> None:
    job = {**BIG, "model": "llama-3.1-405b", "n_gpus": 256, "global_batch": 64}
    for layout in ("tp8-pp16-dp2-mbs1-zero1-sp-none", "tp8-pp16-dp2-vpp8-mbs1-zero1-sp-none"):
        cells, _ = read_launch("megatron", text_of("megatron", layout, job))
        assert label(cells) == layout


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "nemo"])
@pytest.mark.parametrize(
    ("model", "pp", "vpp", "more"),
    [
        ("llama-3.1-70b", 8, 1, {"layers_first": 9, "layers_last": 11}),
        ("llama-3.1-70b", 8, 1, {"layers_last": 10}),
        ("llama-3.1-70b", 8, 1, {"layers_first": 12}),
        ("llama-3.1-405b", 16, 1, {}),
        ("llama-3.1-405b", 8, 2, {}),
        ("qwen3-32b", 4, 2, {"layers_first": 15, "layers_last": 15}),
        ("qwen3-14b", 6, 1, {}),
    ],
)
def test_stages_read_back_as_they_were_costed(target: str, model: str, pp: int, vpp: int, more: dict[str, int]) -> None:
    cells = {**BIG, "model": model, "n_gpus": 8 * pp, "tp": 4, "pp": pp, "dp": 2, "vpp": vpp, "micro_batch": 1, **more}
    cells |= {"zero_stage": 1 if target != "torchtitan" else 2, "recompute": "none", "sequence_parallel": True}
    cells |= {"global_batch": 2 * 2 * pp, "seq_len": 4096}
    written = target_named(target)
    try:
        made = make_launch(cells, Context(database()), written.profile, written.usual)
        text = command_of(made, written).text
    except UsageError:
        if target == "megatron":
            raise
        return  # the others say that their settings cannot hold it
    read, _ = read_launch(target, text, {"model": model} if target == "nemo" else {})
    same_prediction(made, read)


# --- shell ------------------------------------------------------------------------------------------------

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-4}; GPUS_PER_NODE=8
WORLD=$(( GPUS_PER_NODE * SLURM_NNODES ))
MODEL_ARGS=(
    --num-layers 32   # Llama-3.1-8B
    --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups=8
    --ffn-hidden-size 14336 --swiglu --untie-embeddings-and-output-weights
    --vocab-size 128256
)
BATCH="--micro-batch-size 2 \\
  --global-batch-size $((WORLD * 4))"
srun torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES --master_addr $MASTER_ADDR \\
    pretrain_gpt.py ${MODEL_ARGS[@]} $BATCH \\
    --seq-length 4096 --max-position-embeddings 4096 --bf16 \\
    --tensor-model-parallel-size "$TP" --sequence-parallel --use-distributed-optimizer \\
    --data-path "$DATA" --some-new-flag 3 "$@" 2>&1 | tee log.txt
"""


def test_scripts_as_people_write_them() -> None:
    cells, notes = read_launch("megatron", SCRIPT)
    assert label(cells) == "tp4-dp8-mbs2-zero1-sp-none"
    assert (cells["n_gpus"], cells["global_batch"], cells["gpus_per_node"]) == (32, 128, 8)
    assert any("--some-new-flag" in note for note in notes)
    assert read_launch("megatron", SCRIPT.replace("\n", "\r\n"))[0] == cells


def test_flags_of_several_values_and_repeated_ones() -> None:
    words = "--bf16 --rampup-batch-size 16 16 5859375 --data-path 0.3 a 0.7 b --tensor-model-parallel-size 4 "
    cells, notes = read_launch("megatron", BASE + words + "--tensor-model-parallel-size 8 --sequence-parallel")
    assert cells["tp"] == 8
    assert any("stated twice" in note for note in notes)
    assert not any("belong to no flag" in note for note in notes)


def test_a_slip_in_a_flag_is_told() -> None:
    _, notes = read_launch("megatron", BASE + "--bf16 --tensor-model-paralel-size 8")
    assert any("did you mean --tensor-model-parallel-size?" in note for note in notes)
    with pytest.raises(DataError, match="did you mean --tensor-model-parallel-size"):
        read_launch("megatron", "torchrun --nproc-per-node 8 x.py --tensor-model-paralel-size 8")


def test_a_variable_that_nobody_sets_is_named() -> None:
    with pytest.raises(DataError, match=r"--tensor-model-parallel-size is \$TP, and TP is not set"):
        read_launch("megatron", SCRIPT.replace("TP=${TP:-4}; ", ""))
    with pytest.raises(DataError, match=r"--nnodes is .*SLURM_NNODES is not set"):
        read_launch("megatron", SCRIPT.replace("#SBATCH --nodes=4\n", "").replace("$((WORLD * 4))", "128"))


def test_nothing_is_executed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("TP", "8")
    evil = SCRIPT.replace("TP=${TP:-4}", f"TP=${{TP:-4}}; touch {trap}; X=$(touch {trap}); `touch {trap}`")
    cells, _ = read_launch("megatron", evil)
    assert not trap.exists()
    assert cells["tp"] == 8  # a whole number of the environment comes before a default
    monkeypatch.setenv("TP", "$(touch trap)")
    assert read_launch("megatron", evil)[0]["tp"] == 4  # nothing else of it is taken
    with pytest.raises(DataError):
        read_launch("megatron", SCRIPT.replace("${TP:-4}", f"$(touch {trap}; echo 8)"))
    with pytest.raises(DataError, match="expected a whole number"):
        read_launch("megatron", SCRIPT.replace("${TP:-4}", "__import__('os').getpid()"))
    assert not trap.exists()


def test_variables_that_double_do_not_take_the_machine() -> None:
    start = time.process_time()
    bomb = "A=xxxxxxxxxx\n" + "A=$A$A$A$A\n" * 40 + SCRIPT
    with pytest.raises(DataError, match="grows beyond"):
        read_launch("megatron", bomb)
    arrays = "A=(x x x x)\n" + "A=(${A[@]} ${A[@]} ${A[@]} ${A[@]})\n" * 12 + SCRIPT.replace('"$@"', "${A[@]}")
    with pytest.raises(DataError, match="grows beyond"):
        read_launch("megatron", arrays)
    assert time.process_time() - start < 20


@settings(max_examples=examples(80), deadline=None)
@given(st.text(alphabet="ab$(){}[]\"'`\\\n #;|&<>=-*@:0 \ue000\ue001", max_size=80))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for kind in ("megatron", "torchtitan", "deepspeed"):
        for whole in (text, SCRIPT + text, text + SCRIPT):
            with contextlib.suppress(GpucalcError):
                cells, _ = read_launch(kind, whole)
                assert set(cells) <= set(INPUT), cells


# --- contradictions ---------------------------------------------------------------------------------------

BASE = "torchrun --nnodes=8 --nproc-per-node=8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 " + (
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --ffn-hidden-size 28672 --swiglu "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 "
    "--global-batch-size 128 "
)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--bf16 --tensor-model-parallel-size 6", "not a multiple of tp·pp·cp"),
        ("--bf16 --fp16", "exclude each other"),
        ("--bf16 --fp8-format hybrid --fp4-format e2m1", "exclude each other"),
        ("--bf16 --recompute-granularity full", "needs --recompute-method"),
        ("--bf16 --recompute-granularity selective --recompute-method uniform", "takes no --recompute-method"),
        ("--bf16 --recompute-activations --recompute-granularity full", "contradicts"),
        ("--bf16 --expert-model-parallel-size 8", "needs a mixture of experts"),
        ("--bf16 --overlap-param-gather", "needs --overlap-grad-reduce"),
        ("--bf16 --tp-comm-overlap --tensor-model-parallel-size 8", "needs --sequence-parallel"),
        ("--bf16 --optimizer-cpu-offload", "needs --use-precision-aware-optimizer"),
        ("--bf16 --num-layers-per-virtual-pipeline-stage 5", "interleaves with pp > 1 only"),
        (
            "--bf16 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 "
            "--num-virtual-stages-per-pipeline-rank 4",
            "only one of",
        ),
        ("--bf16 --pipeline-model-parallel-size 64 --tensor-model-parallel-size 1", "does not divide the 80 layers"),
        ("--bf16 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3", "do not divide the 20"),
        ("--bf16 --max-position-embeddings 4096", "less than --seq-length"),
        ("--bf16 --multi-latent-attention", "excludes --group-query-attention"),
        ("--bf16 --recompute-granularity fall", "did you mean full"),
        ("--bf16 --tensor-model-parallel-size eight", "expected a whole number"),
        ("--bf16 --tensor-model-parallel-size", "has no value"),
        ("--bf16 --use-torch-fsdp2 --use-distributed-optimizer", "cannot be used with --use-distributed-optimizer"),
        ("--bf16 --global-batch-size 100", "does not divide the global batch of 100"),
    ],
)
def test_contradictions_of_megatron(flags: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("megatron", BASE + flags)
    assert sentence in str(caught.value)


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(DataError) as caught:
        read_launch("megatron", BASE + "--bf16 --fp16 --tensor-model-parallel-size 6 --overlap-param-gather")
    assert len(caught.value.problems) >= 4


def test_fsdp_refuses_one_connection() -> None:
    flags = "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor"
    assert read_launch("megatron", BASE + flags)[0]["zero_stage"] == 3
    with pytest.raises(DataError, match="CUDA_DEVICE_MAX_CONNECTIONS=1"):
        read_launch("megatron", "CUDA_DEVICE_MAX_CONNECTIONS=1 " + BASE + flags)


def test_flags_that_were_renamed_are_read_with_a_remark() -> None:
    cells, notes = read_launch("megatron", BASE + "--bf16 --use-custom-fsdp --data-parallel-sharding-strategy optim")
    assert cells["zero_stage"] == 1
    assert any("rejected by today's" in note for note in notes)


def test_the_number_of_gpus_may_be_given_beside() -> None:
    bare = BASE.split("pretrain_gpt.py ")[1] + "--bf16 --tensor-model-parallel-size 8"
    cells, _ = read_launch("megatron", bare)
    assert "n_gpus" not in cells
    assert read_launch("megatron", bare, {"n_gpus": 32})[0]["dp"] == 4
    with pytest.raises(DataError, match=r"starts 64 processes \(line 1\), but 32 GPUs are stated"):
        read_launch("megatron", BASE + "--bf16", {"n_gpus": 32})


def test_two_launches_in_one_text_are_too_many() -> None:
    with pytest.raises(DataError, match="2 commands"):
        read_launch("megatron", BASE + "\n" + BASE)


@pytest.mark.parametrize(
    ("document", "gpus", "sentence"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 3}, 8, "is not micro·accumulation·dp"),
        ({"train_batch_size": 64, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, 8, "both enabled"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 4}}, 8, "stages 0 to 3"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": "two"}}, 8, "expected a whole number"),
        ({"train_batch_size": 64, "zero_optimization": 3}, 8, "expected a section"),
        ({"zero_optimization": {"stage": 2}}, 8, "neither train_batch_size"),
        ({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 3}}, 8, "not a multiple of tp·cp"),
        ({"train_batch_size": 64, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, 8, "at least 1"),
    ],
)
def test_contradictions_of_deepspeed(document: dict[str, Any], gpus: int, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("deepspeed", json.dumps(document), {"n_gpus": gpus, "model": "llama-3.1-8b", "seq_len": 2048})
    assert sentence in str(caught.value)


def test_deepspeed_auto_is_named_and_may_be_stated() -> None:
    document = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3},
        "mystery": 1,
    }
    with pytest.raises(DataError, match="neither train_batch_size"):
        read_launch("deepspeed", json.dumps(document), {"n_gpus": 8})
    cells, notes = read_launch("deepspeed", json.dumps(document), {"n_gpus": 8, "global_batch": 64, "micro_batch": 2})
    assert (cells["dp"], cells["zero_stage"], cells["precision"]) == (8, 3, "bf16")
    assert any("mystery" in note for note in notes)
    assert any("bf16 is taken" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("tensor_parallel_degree = 8", "tensor_parallel_degree = 3"), "does not divide the 64 heads"),
        (("data_parallel_shard_degree = 2", "data_parallel_shard_degree = 0"), "expected a whole number"),
        (("layers_per_stage = 5", "layers_per_stage = 6"), "does not divide"),
        (('"Interleaved1F1B"', '"1F1B"'), "one stage a rank"),
        (('"Interleaved1F1B"', '"Interleaved2F1B"'), "did you mean interleaved1f1b"),
        (("microbatch_size = 1", "microbatch_size = 3"), "not a multiple of pipeline_parallel_microbatch_size"),
        (("global_batch_size = 128", "global_batch_size = 100"), "not a multiple of local·dp"),
        (('flavor = "70B"', 'flavor = "71B"'), "name the model"),
        (("[model]", "[model"), "not TOML"),
        (('mode = "full"', 'mode = "ful"'), "did you mean full"),
    ],
)
def test_contradictions_of_torchtitan(change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_launch("torchtitan", recorded("torchtitan_70b_64gpu.toml").replace(*change))
    assert sentence in str(caught.value)


def test_torchtitan_rest_of_the_ranks() -> None:
    text = recorded("torchtitan_8b_8gpu.toml").replace("shard_degree = 8", "shard_degree = -1")
    assert read_launch("torchtitan", text, {"n_gpus": 16})[0]["dp"] == 16
    cells, notes = read_launch("torchtitan", text)
    assert "n_gpus" not in cells
    assert any("--set n_gpus" in note for note in notes)
    odd = text.replace("tensor_parallel_degree = 1", "tensor_parallel_degree = 2")
    with pytest.raises(DataError, match="is not whole"):
        read_launch("torchtitan", odd, {"n_gpus": 17})


def test_a_recipe_of_torchtitan_with_overrides() -> None:
    text = "torchrun --nproc-per-node=8 -m torchtitan.train --module llama3 --config llama3_70b "
    cells, _ = read_launch("torchtitan", text)  # as the recipe itself sets it
    assert (cells["model"], cells["tp"], cells["micro_batch"], cells["seq_len"]) == ("llama-3.1-70b", 8, 8, 8192)
    assert (cells["recompute"], cells["loss_kernel"], cells["fused_norm"]) == ("full", "chunked", False)
    cells, _ = read_launch(
        "torchtitan", text + "--training.local_batch_size 1 --parallelism.tensor_parallel_degree=4 --compile.enable "
        "activation-checkpoint:selective",
    )  # fmt: skip
    assert (cells["tp"], cells["dp"], cells["micro_batch"], cells["recompute"]) == (4, 2, 1, "selective")
    assert "fused_norm" not in cells
    cells, _ = read_launch("torchtitan", text.replace("llama3_70b", "llama3_8b_mxfp8"))
    assert cells["precision"] == "mxfp8"
    with pytest.raises(DataError, match="says no shape that is known"):
        read_launch("torchtitan", text.replace("llama3_70b", "llama3_9b"))


def test_the_classes_of_a_recipe_are_read() -> None:
    text = """
from torchtitan.models.qwen3 import model_registry
def mine():
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(),
        model_spec=model_registry("32B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])]),
        training=TrainingConfig(local_batch_size=2, seq_len=4096, global_batch_size=64),
        parallelism=ParallelismConfig(data_parallel_shard_degree=4, tensor_parallel_degree=2),
        compile=CompileConfig(enable=True, components=["model"]),
        activation_checkpoint=FullAC.Config(),
    )
"""
    cells, notes = read_launch("torchtitan", text, {"n_gpus": 8})
    expected = {"model": "qwen3-32b", "tp": 2, "dp": 4, "micro_batch": 2, "global_batch": 64, "precision": "fp8",
                "recompute": "full", "loss_kernel": "chunked", "zero_stage": 3}  # fmt: skip
    assert {name: cells[name] for name in expected} == expected
    assert not any("unfused" in note for note in notes)


def test_torchtitan_flags_on_the_command_line() -> None:
    command = (
        "torchrun --nnodes=2 --nproc-per-node=8 -m torchtitan.train --model.name llama3 --model.flavor 8B "
        "--training.seq_len=8192 --training.local_batch_size 2 --parallelism.tensor_parallel_degree 2 "
        "--activation_checkpoint.mode none --metrics.log_freq 10"
    )
    cells, _ = read_launch("torchtitan", command)
    assert label(cells) == "tp2-dp8-mbs2-zero3-sp-none"
    assert (cells["n_gpus"], cells["global_batch"]) == (16, 16)
    with pytest.raises(DataError, match=r"x\.toml, which is not opened"):
        read_launch("torchtitan", command + " --job.config_file x.toml")


def test_sources_have_near_names() -> None:
    with pytest.raises(UsageError, match="did you mean deepspeed"):
        read_launch("deepsped", "{}")


@pytest.mark.parametrize(
    ("compiled", "cells", "note"),
    [
        ("enable = true", {"fused_gate": None, "loss_kernel": None}, ""),
        ('enable = true\ncomponents = ["loss"]', {"fused_gate": False, "fused_norm": False}, "compiles loss alone"),
        ('enable = true\ncomponents = ["model"]', {"fused_gate": None, "loss_kernel": "eager"}, ""),
        ("enable = false", {"fused_rope": False, "loss_kernel": "eager"}, "compile is off"),
    ],
)
def test_what_torchtitan_compiles(compiled: str, cells: dict[str, Any], note: str) -> None:
    text = recorded("torchtitan_8b_8gpu.toml") + f"\n[compile]\n{compiled}\n"
    read, notes = read_launch("torchtitan", text)
    assert {name: read.get(name) for name in cells} == cells
    assert any(note in said for said in notes) if note else not any("unfused" in said for said in notes)


def test_torchtitan_overlaps_tensor_parallelism_when_it_compiles() -> None:
    text = recorded("torchtitan_70b_64gpu.toml").replace(
        "[parallelism]", "[parallelism]\nenable_async_tensor_parallel = true"
    )
    assert read_launch("torchtitan", text + "\n[compile]\nenable = true\n")[0]["tp_overlap"] is True
    with pytest.raises(DataError, match="needs compile"):
        read_launch("torchtitan", text)
