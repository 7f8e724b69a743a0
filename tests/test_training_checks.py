"""Exact checks of a training step's memory and time, each with the public code or paper that it was read from.

The checks of schedules stand in test_schedules.py. Numbers: hooks on saved tensors and live storage of PyTorch 2.14 on
a CPU, DeepSpeed's own estimators, Megatron-LM's documents, torchtitan's and Transformer Engine's code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from legal_jobs import database, solve, value

from gpucalc.core.errors import UsageError
from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.profiles import choose_profile, load_profile, profile_names
from gpucalc.estimate import products
from gpucalc.formulas import (
    activations,
    flops,
    gathering,
    layer,
    logits,
    memory,
    optimizer_step,
    parameters,
)
from gpucalc.jobs.context import Context
from gpucalc.jobs.software import gradient_bytes
from gpucalc.jobs.training import job_band, resolve

GIB = 2**30
DB = database()
LLAMA = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 8192, "global_batch": 16}


def columns(**cells: Any) -> dict[str, float]:
    return resolve({**LLAMA, **cells}, Context(database())).columns


def product(gpu: str, m: float, n: float, k: float) -> float:
    """Seconds of a bf16 product on a GPU."""
    device = database().device(gpu)
    facts = {"peak": device.precision_peak("bf16"), "memory_bandwidth": device.memory_bandwidth}
    values = {**kernel_constants(device, "bf16", DB), **facts, "m": m, "n": n, "k": k, "sustained_clock": 1.0}
    return float(products.seconds(products.add_gemm, values))


def per_parameter(columns: dict[str, float], shards: float = 1.0, zero: int = 0) -> float:
    """Bytes of states per local parameter on one of `shards` ranks."""
    c = columns
    return float(
        memory.weight_memory(1.0, c["weight_bytes"], zero, shards)
        + memory.gradient_memory(1.0, c["gradient_bytes"], zero, shards)
        + memory.optimizer_memory(1.0, c["optimizer_bytes"], zero, shards, 0)
    )


@pytest.mark.parametrize(
    ("precision", "plain", "distributed"), [("bf16", 18.0, 7.5), ("fp16", 20.0, 6.0), ("fp32", 16.0, 9.0)]
)
def test_states_of_megatron(precision: str, plain: float, distributed: float) -> None:
    """T12: docs of Megatron-Core's distributed optimizer, d = 8."""
    found = columns(framework="Megatron-LM", software_date="2025-06", precision=precision)
    assert per_parameter(found) == plain
    assert per_parameter(found, 8, 1) == distributed


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("Megatron-LM", (4.0, 4.0)),
        ("Megatron-Bridge training recipe", (4.0, 4.0)),
        ("Megatron-Bridge", (2.0, 2.0)),  # published runs are performance recipes
        ("Megatron-Bridge, performance recipe", (2.0, 2.0)),
        ("torchtitan", (4.0, 4.0)),
        ("llm-foundry/Composer FSDP", (4.0, 2.0)),
    ],
)
def test_gradients_as_they_are_kept_and_reduced(framework: str, expected: tuple[float, float]) -> None:
    """T13: arguments.py; mixed_precision.py, perf_recipes/_common.py; torchtitan configs.py."""
    profile = choose_profile(framework, "2025-06", DB)
    assert gradient_bytes({"precision": "bf16"}, profile) == expected


def test_states_of_other_frameworks() -> None:
    """FSDP 16/n; DeepSpeed 2 + 2 + 16/n and 18/n; nanotron 2 + 4 + 12/n; autocast DDP 16 and its casts."""
    assert per_parameter(columns(framework="torchtitan"), 8, 3) == 2.0
    deepspeed = columns(framework="DeepSpeed", software_date="2024-06")
    assert [per_parameter(deepspeed, 8, zero) for zero in (1, 2, 3)] == [2 + 2 + 16 / 8, 2 + 18 / 8, 20 / 8]
    assert per_parameter(columns(framework="nanotron"), 8, 1) == 2 + 4 + 12 / 8
    assert per_parameter(columns(framework="HF Trainer")) == 16 + 2


def test_deepspeeds_estimators() -> None:
    """T14 to T17: stage3.py, stage_1_and_2.py; Hugging Face's DeepSpeed guide."""
    n, largest = 6.805e9, 131e6
    states = [optimizer_step.zero3_states(n, largest, 4, *off) for off in ((0, 0), (1, 0), (1, 1))]
    assert [float(s) / GIB for s in states] == pytest.approx([29.01, 3.657, 0.488], rel=1e-3)
    host = [optimizer_step.host_state_memory(n / 4, 4, b, 1.5) for b in (16.0, 18.0)]
    assert [float(h) / GIB for h in host] == pytest.approx([152.1, 171.1], rel=1e-3)
    two = [optimizer_step.zero2_states(66e9, 16, off) for off in (0, 1)]
    assert [float(s) / GIB for s in two] == pytest.approx([192.09, 122.93], rel=1e-3)
    assert float(optimizer_step.zero2_host_memory(66e9, 16)) / GIB == pytest.approx(5900.9, rel=1e-3)
    assert float(optimizer_step.bucket_memory(5e8)) == 9.0e9


def test_an_optimizer_on_the_host_takes_its_gradients_along_in_deepspeed_only() -> None:
    """ZeRO-Offload leaves 2 B a parameter; Megatron's hybrid optimizer keeps the gradient buffer."""
    cells = {**LLAMA, "n_gpus": 1, "zero_stage": 2, "offload_optimizer": True, "micro_batch": 1, "recompute": "full"}
    deepspeed = solve({**cells, "framework": "DeepSpeed", "software_date": "2024-06"})
    assert value(deepspeed, "memory/gradients") == 0
    assert value(deepspeed, "host/memory") == pytest.approx(1.5 * 18 * 8.03e9, rel=0.01)
    megatron = solve({**cells, "framework": "Megatron-LM"})
    assert value(megatron, "memory/gradients") > 30e9


def test_update_traffic_and_transients() -> None:
    """T18, T19: counted; torch.optim measured on a CPU."""
    assert [float(optimizer_step.update_traffic(g, 4.0, 8.0, 2.0)) for g in (4.0, 2.0)] == [30.0, 28.0]
    assert columns(framework="Megatron-LM")["optimizer_traffic"] == 30.0
    assert [float(optimizer_step.step_transient(1e9, b)) for b in (4.0, 0.0)] == [4e9, 0.0]
    assert columns(framework="HF Trainer")["step_transient_bytes"] == 4.0
    assert columns(framework="torchtitan")["step_transient_bytes"] == 0.0


def test_feed_forward_activations() -> None:
    """T20, T21: saved_tensors_hooks."""
    gated = [activations.feed_forward_activations(1, 11008, 1, *case) for case in ((0, 1), (1, 1), (1, 0))]
    assert [float(g) for g in gated] == [88064, 66048, 44032]
    plain = activations.feed_forward_activations(1, 16384, 0, 1, 1)
    assert float(plain) == 65536
    assert float(plain + activations.written_gelu_activations(1, 16384)) == 163840


def test_norms() -> None:
    """T22, T23: fused, bf16 mathematics, fp32 mathematics; two norms of a Llama block."""
    sizes = [
        activations.norm_activations(1, 4096, 1, fused, 1, 1, eager_bytes=b) for fused, b in ((1, 4), (0, 2), (0, 4))
    ]
    assert [float(s) for s in sizes] == [16384, 24576, 32768]
    cells = {**LLAMA, "framework": "torchtitan", "recompute": "none", "micro_batch": 1}
    kept = [value(solve({**cells, "fused_norm": fused}), "layer/memory/tensors") for fused in (False, True)]
    assert (kept[0] - kept[1]) / 8192 == pytest.approx(32768, abs=8)


def test_rotary_views_and_repeated_heads() -> None:
    """T24: 32 heads of 128, 8 of keys and values."""
    cases = ((0, 0), (1, 0), (0, 1))
    plain, view, repeat = (
        float(activations.attention_activations(1, 6144, 4096, 0, *case, 4096, 1, 0)) for case in cases
    )
    assert (view - plain, plain - plain, repeat - plain) == (10240, 0, 12288)


def test_scores() -> None:
    """T25: 32 heads, 4,096 tokens; the mask of CUDA's dropout is one byte."""
    cases = ((0, 0), (1, 0), (0, 1), (1, 1))
    found = [float(activations.score_activations(4096, 4096, 32, 1, 0, *case)) / GIB for case in cases]
    assert found == [1.0, 2.5, 3.0, 3.5]


def test_gathered_inputs_of_sequence_parallelism() -> None:
    """T26."""
    assert float(activations.gathered_inputs(8192, 8192, 8, 1)) / GIB == 0.21875


@pytest.mark.parametrize(
    ("trained", "feeds", "rank", "expected"), [(1, 1, 0, 120836), (0, 0, 0, 82436), (0, 1, 64, 113028)]
)
def test_norm_and_mlp_of_a_frozen_base(trained: int, feeds: int, rank: int, expected: int) -> None:
    """T27: Llama-7B, eager; adapters bring back the inputs of their products, and keep 2·r each."""
    norm = activations.norm_activations(1, 4096, 1, 0, trained, feeds)
    mlp = activations.feed_forward_activations(1, 11008, 1, 0, feeds)
    adapters = activations.adapter_activations(1, rank, 3)
    statistics = 4
    assert float(norm + mlp + adapters) + statistics == pytest.approx(expected, abs=8)


def test_logits() -> None:
    """T28, T29: 8,192 tokens, 128,256 words; a gathered loss has them all on every rank."""
    constants = load_profile("common", DB).values
    kernels = {"eager": 13.70, "inplace": 7.83, "compiled": 4.21}
    for kernel, gib in kernels.items():
        found = float(logits.logits_memory(8192, 128256, 1, constants[f"logit_bytes_{kernel}"])) / GIB
        assert found == pytest.approx(gib, rel=0.02)
    assert float(logits.logits_memory(8192, 128256, 1, 12.0)) / GIB == pytest.approx(11.74, rel=0.02)
    rows = logits.fused_linear_rows(8192, 128256, 4096)
    assert float(rows) == 256
    assert float(logits.fused_linear_memory(rows, 8192, 128256, 0, 1)) / GIB == pytest.approx(0.061, rel=0.02)
    eager = {"tp": 8, "loss_kernel": "eager", "micro_batch": 1, "recompute": "none"}
    for shards, gib in ((True, 1.712), (False, 13.70)):
        ledger = solve({**LLAMA, **eager, "vocab_parallel_loss": shards})
        assert value(ledger, "logits/memory") / GIB == pytest.approx(gib, rel=0.01)


def test_weights_of_8_bit_products() -> None:
    """T30: linear layers of 16 layers of Llama-3.1-405B, tp 4: bf16, 8-bit per tensor, MXFP8 with both layouts."""
    model = resolve({**LLAMA, "model": "llama-3.1-405b", "n_gpus": 32, "tp": 4, "pp": 8}, Context(database())).columns
    linear = 16 * (model["attention_parameters"] + model["dense_mlp_parameters"]) / 4
    sizes = {(0, 0, 0, 1): 23.75, (1, 1, 0, 0): 11.875, (1, 1, 1, 1): 24.49}
    for case, gib in sizes.items():
        assert float(linear * gathering.quantised_copy_bytes(*case)) / GIB == pytest.approx(gib, rel=2e-3)


def test_gathered_layers() -> None:
    """T31, T32: FSDP2's collectives on a Llama-3-8B layer; the ends are units of their own."""
    forward = gathering.gathered_forward(218112000, 1, 2.0)
    backward = gathering.gathered_layer(218112000, 1, 2.0, 4.0, 1)
    copied = gathering.gathered_layer(218112000, 1, 2.0, 4.0, 1, prefetched=2.0)
    assert [float(b) / GIB for b in (forward, backward, copied)] == pytest.approx([1.219, 2.031, 2.438], rel=0.01)
    assert float(gathering.gathered_ends(5e8, 5e8, 1, 1, 2.0)) == 1e9


@pytest.mark.parametrize(
    "framework", ["torchtitan", "nemo", "nanotron", "HF Trainer", "litgpt", "jax", "nobody knows it"]
)
@pytest.mark.parametrize("zero", [0, 3])
def test_counters_are_ordered(framework: str, zero: int) -> None:
    """T33: what the allocator hands out, what it holds, what the driver shows."""
    ledger = solve({**LLAMA, "framework": framework, "zero_stage": zero, "micro_batch": 2})
    allocated, reserved, device = (value(ledger, f"memory/{c}") for c in ("allocated", "reserved", "device"))
    assert value(ledger, "memory/raw") <= allocated <= reserved <= device


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        ("a100-sxm-80gb", 79.15),
        ("h100-sxm-80gb", 79.1),
        ("a100-sxm-40gb", 39.4),
        ("h200-sxm-141gb", 139.7),
        ("b200-sxm-180gb", 178.3),
        ("rtx4090-24gb", 23.65),
    ],
)
def test_usable_memory(gpu: str, gib: float) -> None:
    """T34: capacities in public messages of CUDA running out of memory."""
    assert database().device(gpu).usable_bytes / GIB == pytest.approx(gib, rel=3e-3)


def test_no_flash_attention_before_ampere() -> None:
    """T35: README of flash-attention; Transformer Engine's attention needs compute capability 8.0."""
    cells = {**LLAMA, "gpu": "v100-sxm2-32gb", "precision": "fp16", "model": "gpt2-1.5b", "seq_len": 1024}
    assert resolve({**cells, "flash_attention": "yes"}, Context(database())).columns["flash"] == 0
    assert resolve(cells, Context(database())).columns["flash"] == 0
    with pytest.raises(UsageError, match="Ampere"):
        resolve({**cells, "flash_attention": "fa2"}, Context(database()))


@pytest.mark.parametrize(("quantisation", "share"), [("int4", 1.0), ("nf4", 1 / 8)])
def test_integer_bases_are_not_sharded(quantisation: str, share: float) -> None:
    """T36: FSDP-QLoRA guide of bitsandbytes; GPTQ and AWQ stay whole on each rank."""
    cells = {**LLAMA, "method": "qlora", "quantisation": quantisation, "framework": "peft", "micro_batch": 1}
    whole, sharded = (value(solve({**cells, "zero_stage": zero}), "memory/weights") for zero in (0, 3))
    assert sharded == pytest.approx(whole * share, rel=1e-6)


def test_executed_over_model_flops() -> None:
    """T37: full recomputation of a full and of a frozen model; DPO with a separate reference."""
    assert float(flops.hardware_flops_utilisation(0.3, 1.0, 3.0)) / 0.3 == pytest.approx(4 / 3)
    assert float(flops.hardware_flops_utilisation(0.3, 1.0, 2.0)) / 0.3 == pytest.approx(3 / 2)
    policy, reference = 3.0, 1.0  # passes of a model
    assert (policy + 1 + reference) / (policy + reference) == 1.25


def test_grouped_experts() -> None:
    """T38: 64 experts of 512 tokens, 32 of 1,024, against one product; tiles of all share the waves."""

    def time(experts: int) -> float:
        return product("h100-sxm-80gb", float(layer.grouped_rows(32768.0 / experts, experts)), 2048.0, 2048.0)

    one = product("h100-sxm-80gb", 32768.0, 2048.0, 2048.0)
    assert time(64) / one <= 1.2
    assert time(32) / one <= 1.15
    assert time(8) <= time(32) <= time(64) <= time(128)
    assert float(parameters.local_experts(128, 8)) == 16


@pytest.mark.parametrize(("gpu", "least", "most"), [("rtx4090-24gb", 140e12, 200e12), ("l40s-48gb", 0, 280e12)])
def test_plateaus_of_parts_that_power_limits_or_does_not(gpu: str, least: float, most: float) -> None:
    """T39: 160.2 TFLOP/s published for an RTX 4090 at 8192 cubed; the L40S is cut by 350 W."""
    rate = 2 * 8192.0**3 / product(gpu, 8192.0, 8192.0, 8192.0)
    assert least <= rate <= most


def test_overlap_of_tensor_parallel_traffic() -> None:
    """T40: base.py of Transformer Engine, t = 8 chunks: off; hidden by a long product; more traffic than product."""
    c, rho = 1.0, 0.3
    assert float(layer.chunked_exposed_time(c, 100.0, 0, 8.0, rho)) == c
    assert float(layer.chunked_exposed_time(c, 100.0, 1, 8.0, rho)) == pytest.approx(c / 8 + rho * c)
    assert float(layer.chunked_exposed_time(c, 0.2, 1, 8.0, rho)) == pytest.approx(c - 0.2 + rho * 0.2)


def test_collectives_of_sequence_parallelism() -> None:
    """T41: two blocks gather and scatter in each direction; the backward pass gathers both saved inputs once more."""
    cells = {**LLAMA, "tp": 8, "sequence_parallel": True, "micro_batch": 1}
    megatron, other = (solve({**cells, "framework": name}) for name in ("Megatron-LM", "torchtitan"))
    gather, scatter = value(megatron, "layer/tp/all-gather"), value(megatron, "layer/tp/reduce-scatter")
    forward = value(megatron, "layer/tp/time")
    assert forward == pytest.approx(2 * (gather + scatter))  # 4 forward, and 4 backward
    assert value(megatron, "layer/tp/regather") == pytest.approx(2 * gather)  # + 2 backward = 6
    assert value(other, "layer/tp/regather") == 0


def test_tied_embeddings_are_reduced_between_the_ends() -> None:
    """T42: finalize_model_grads.py; V = 51,200, h = 12,288, t = 8, fp32 gradients."""
    message = gathering.tied_embedding_message(51200 * 12288, 8, 2, 1, 4.0)
    assert float(message) == pytest.approx(3.1457e8, rel=1e-4)
    assert float(gathering.tied_embedding_message(51200 * 12288, 8, 1, 1, 4.0)) == 0


def test_one_interpreter() -> None:
    """T43: eager profiles share the host's time per operation and differ in the number of operations."""
    names = ("eager", "composer", "internevo", "litgpt", "megatron-legacy", "megatron-deepspeed", "nanotron", "neutral")
    seconds = [load_profile(name, DB).values["seconds_per_operation"] for name in names]
    assert max(seconds) / min(seconds) <= 1.5


def test_constants_without_rows_are_not_called_fitted() -> None:
    """T43: a constant that no row of the fit touches is assumed."""
    import csv

    path = DB.dirs[0] / "calibration" / "training_fit.csv"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        origin = load_profile(row["profile"], DB).constants[row["constant"]].origin
        assert int(row["rows"]) > 0 or origin != "fitted", f"{row['profile']}.{row['constant']}"


def test_an_unknown_framework_is_no_better_than_a_known_one() -> None:
    """T44: more memory and time than Megatron-Core, a warning with near names, the widest band."""
    known = resolve({**LLAMA, "framework": "megatron-core", "tp": 2, "recompute": "full"}, Context(database()))
    unknown = resolve({**LLAMA, "framework": "megatron-cor", "tp": 2, "recompute": "full", "zero_stage": 1,
                       "sequence_parallel": True}, Context(database()))  # fmt: skip
    assert unknown.profile.name == "neutral"
    assert any("megatron-core" in warning and "not known" in warning for warning in unknown.warnings)
    assert not any("not known" in warning for warning in known.warnings)
    ledgers = [solve(job.cells) for job in (known, unknown)]
    for path in ("memory/total", "time/step"):
        assert value(ledgers[1], path) >= value(ledgers[0], path)
    widths = [np.log(high / low) for low, high in map(job_band, (known, unknown))]
    assert widths[1] > widths[0]


@pytest.mark.parametrize("name", profile_names(DB))
def test_one_source_constants_belong_to_profiles_that_are_named(name: str) -> None:
    """A profile's words are names of software, long enough to be no accident of a text."""
    profile = load_profile(name, DB)
    assert all(len(word) >= 3 for word in profile.frameworks)
    assert not {"trainer", "model", "training", "custom"} & set(profile.frameworks)
