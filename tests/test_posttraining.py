"""Post-training: what each lever does to memory and time, against published ladders and exact counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.estimate.training import estimate_training
from gpucalc.formulas.adapters import quantised_weight_bytes
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve, stack
from gpucalc.questions.tune.plan import reinforced, supervised
from gpucalc.questions.tune.policy import Policy, read_layout
from gpucalc.questions.tune.policy_rows import read_rollouts, read_split
from gpucalc.questions.tune.predict import evaluate_posttraining
from gpucalc.questions.tune.preference import preference_ledger
from gpucalc.questions.tune.rows import read_batch, read_ladder, read_method, read_notes, read_optimizer, read_precision
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.posttraining import LIMITS, VIEWS, check_rows, shipped_posttraining

DB = Database()
GIB = 2**30
QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "a100-sxm-80gb",
    "n_gpus": 1,
    "seq_len": 2048,
    "micro_batch": 1,
}


def ledger(**cells: Any) -> Any:
    return estimate_training(stack([resolve({**QUESTION, **cells}, Context(DB))]), detail=True)


def memory(**cells: Any) -> float:
    return float(ledger(**cells)["memory/total"])


def seconds(**cells: Any) -> float:
    return float(ledger(**cells)["time/step"])


# --- adapters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rank", "targets", "published"),
    [
        # Trainable parameters that LitGPT prints for rank 8 on query and value.
        ("llama-2-7b", 8, "qv", 4_194_304),
        ("llama-2-13b", 8, "qv", 6_553_600),
        ("phi-1.5", 8, "qv", 1_572_864),
        ("stablelm-alpha-3b", 8, "qv", 2_097_152),
    ],
)
def test_adapter_parameters_are_those_that_are_published(model: str, rank: int, targets: str, published: int) -> None:
    found = ledger(model=model, method="lora", lora_rank=rank, lora_targets=targets, seq_len=512)
    assert float(found["symbol/tuned_parameters"]) == published


@given(rank=st.integers(1, 256), targets=st.sampled_from(["qv", "qkv", "attention", "all", "q+mlp"]))
@settings(max_examples=examples(15))
def test_adapter_parameters_grow_in_proportion_to_the_rank(rank: int, targets: str) -> None:
    one = float(ledger(method="lora", lora_rank=1, lora_targets=targets)["symbol/tuned_parameters"])
    assert float(ledger(method="lora", lora_rank=rank, lora_targets=targets)["symbol/tuned_parameters"]) == rank * one


def test_more_targets_hold_more_parameters() -> None:
    found = [
        float(ledger(method="lora", lora_targets=t)["symbol/tuned_parameters"])
        for t in ("qv", "qkv", "attention", "all")
    ]
    assert found == sorted(found)
    assert found[0] > 0


def test_double_quantisation_is_as_its_paper_counts() -> None:
    # 0.373 bit per parameter saved (Dettmers et al. 2023, section 3).
    plain = float(quantised_weight_bytes(0.5, 4.0, 64, 0.0, 0))
    double = float(quantised_weight_bytes(0.5, 1.0, 64, 4.0, 256))
    assert 8 * (plain - double) == pytest.approx(0.373, abs=5e-4)


def test_a_quantised_base_is_smaller_and_slower() -> None:
    lora, qlora = ({"method": m, "recompute": "full"} for m in ("lora", "qlora"))
    assert memory(**qlora) < memory(**lora) - 8 * GIB
    assert seconds(**qlora) > seconds(**lora)
    assert memory(**qlora, quantisation="nf4") > memory(**qlora, quantisation="nf4-dq")


def test_embeddings_that_train_cost_their_states() -> None:
    extra = memory(method="lora", train_embeddings=True) - memory(method="lora")
    parameters = 2 * 128_256 * 4096
    assert extra == pytest.approx(16 * parameters, rel=0.1)  # fp32 copy, gradient and two moments


def test_no_weight_gradients_of_a_frozen_base() -> None:
    full, lora = (seconds(method=m, recompute="none", model="llama-3.2-1b") for m in ("full", "lora"))
    assert 0.6 < lora / full < 0.9


# --- levers -------------------------------------------------------------------------------------------


def test_optimizer_in_the_backward_pass_frees_gradients() -> None:
    tune = {"framework": "torchtune", "recompute": "full", "model": "llama-3.2-3b"}
    plain, inside = (ledger(**tune, optimizer_in_backward=flag) for flag in (False, True))
    assert float(inside["memory/gradients"]) < 0.25 * float(plain["memory/gradients"])
    assert float(inside["time/step"]) == float(plain["time/step"])


def test_eight_bit_moments_take_a_quarter() -> None:
    plain, eight = (float(ledger(optimizer=o)["memory/optimizer"]) for o in ("adam", "adam8bit"))
    assert (plain, eight) == pytest.approx((12 * 8.03e9, 6 * 8.03e9), rel=0.01)
    assert float(ledger(optimizer="paged-adam8bit")["memory/optimizer"]) == pytest.approx(4 * 8.03e9, rel=0.01)


def test_a_chunked_loss_never_holds_whole_logits() -> None:
    whole, chunked = (memory(method="lora", recompute="full", seq_len=8192, chunked_loss=c) for c in (False, True))
    assert whole - chunked > 4 * 8192 * 128_256


def test_gradients_and_activations_do_not_add_up_without_accumulation() -> None:
    tune = {"framework": "torchtune", "recompute": "none", "model": "llama-3.2-3b", "seq_len": 4096}
    once, twice = (memory(**tune, global_batch=n) for n in (1, 2))
    assert twice - once == pytest.approx(2 * 3.21e9, rel=0.05)


@pytest.mark.parametrize("cells", [{"lora_rank": 8}, {"quantisation": "nf4"}, {"train_embeddings": True}])
def test_cells_of_adapters_contradict_full_fine_tuning(cells: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="method"):
        resolve({**QUESTION, **cells}, Context(DB))


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean attention"):
        resolve({**QUESTION, "method": "lora", "lora_targets": "atention"}, Context(DB))


def test_optimizer_in_backward_refuses_accumulation() -> None:
    with pytest.raises(UsageError, match="global_batch=1 would do"):
        resolve({**QUESTION, "optimizer_in_backward": True, "global_batch": 8}, Context(DB))


# --- preference and reinforcement ---------------------------------------------------------------------


def test_a_reference_costs_its_weights_and_a_forward_pass() -> None:
    job = resolve({**QUESTION, "micro_batch": 2, "model": "llama-3.2-1b"}, Context(DB))
    held, _ = preference_ledger(job)
    given_before, _ = preference_ledger(job, precomputed=True)
    assert float(held["memory/frozen"]) == pytest.approx(2 * 1.236e9, rel=0.01)
    assert float(given_before["memory/frozen"]) == 0
    share = float(held["time/reference"]) / float(held["time/update"])
    assert 0.2 < share < 0.4
    assert float(given_before["time/step"]) == pytest.approx(float(held["time/update"]))


def test_adapters_are_their_own_reference() -> None:
    step, _ = preference_ledger(resolve({**QUESTION, "method": "lora", "micro_batch": 2}, Context(DB)))
    assert float(step["memory/frozen"]) == 0
    assert float(step["time/reference"]) > 0


def policy(**more: Any) -> Policy:
    cells = {"model": "qwen2.5-7b", "gpu": "h100-sxm-80gb", "framework": "FSDP"}
    base: dict[str, Any] = {"n_gpus": 16, "rollouts": 512, "samples": 8, "prompt": 256, "mean_response": 1000.0}
    return Policy("grpo", cells, **{**base, "longest_response": 4096, **more})


def test_splits_are_ranked_and_add_up() -> None:
    answers = reinforced(policy(), Context(DB))
    steps = [a.row["pred_step_time_s"] for a in answers if a.row["pred_fit"] == "fits"]
    assert steps == sorted(steps)
    for answer in answers:
        row = answer.row
        parts = [row[n] for n in ("generation_s", "scoring_s", "update_s")]
        if row["split"] == "colocated":
            assert row["pred_step_time_s"] == pytest.approx(sum(parts) + row["sync_s"], abs=1e-6 + _driver())
        else:
            assert row["generation_gpus"] + row["training_gpus"] == 16
            assert row["pred_step_time_s"] >= max(parts[0], parts[1] + parts[2])


def _driver() -> float:
    from gpucalc.database.posttraining import policy_constants

    return policy_constants(DB)["driver_seconds"]


def test_a_critic_costs_memory_and_time() -> None:
    grpo, ppo = (
        reinforced(policy(generation_gpus=8, critic_ratio=r, reward_ratio=r), Context(DB))[0].row for r in (0.0, 1.0)
    )
    assert ppo["update_gib"] > 1.3 * grpo["update_gib"]
    assert ppo["update_s"] > 1.5 * grpo["update_s"]
    assert ppo["generation_s"] == grpo["generation_s"]


@given(mean=st.integers(100, 3000))
@settings(max_examples=examples(8))
def test_longer_responses_take_longer(mean: int) -> None:
    short, long = (
        reinforced(policy(generation_gpus=8, mean_response=float(m)), Context(DB))[0].row for m in (mean, mean + 500)
    )
    assert long["generation_s"] > short["generation_s"]
    assert long["tail_s"] <= long["generation_s"]


def test_all_gpus_cannot_generate() -> None:
    with pytest.raises(UsageError, match="at most 15"):
        reinforced(policy(generation_gpus=16), Context(DB))


# --- layouts --------------------------------------------------------------------------------------------


def test_layouts_say_whether_frozen_weights_are_sharded() -> None:
    cells = {**QUESTION, "n_gpus": 8, "model": "llama-3.1-70b"}
    answers = supervised("lora", cells, Context(DB), {})
    by_layout = {a.row["layout"]: a.row for a in answers}
    assert "frozen weights sharded over 8 GPUs" in by_layout["dp8-mbs1-zero3"]["sharding"]
    assert "frozen weights replicated on 8 GPUs" in by_layout["dp8-mbs1-zero0"]["sharding"]
    assert by_layout["dp8-mbs1-zero0"]["pred_fit"] == "oom"
    assert answers[0].row["pred_fit"] == "fits"


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    row = supervised("lora", QUESTION, Context(DB), {})[0].row
    most = row["largest_micro_batch"]
    cells = {**QUESTION, "method": "lora", "framework": "HF Trainer + PEFT", "recompute": "full", "zero_stage": 0}
    fits = [
        predict([resolve({**cells, "micro_batch": n, "global_batch": n}, Context(DB))])[0]["pred_fit"]
        for n in (most, most + 1)
    ]
    assert fits[0] == "fits"
    assert fits[1] != "fits"


# --- rows -------------------------------------------------------------------------------------------------


def test_words_of_published_tables() -> None:
    assert read_method("Q-LoRA") == ("qlora", {})
    assert read_method("dapo") == ("grpo", {})
    assert read_precision("int4 base + bf16") == {"precision": "bf16", "quantisation": "int4"}
    assert read_optimizer("AdamW (HF Trainer default)") == {"optimizer": "adam"}
    assert read_batch("rollouts/step 512, train gbs 512") == {"global_batch": 512.0}
    assert read_notes("2 node(s) x 2 GPU; CUDA 11.8")["gpus_per_node"] == 2
    assert read_layout("gen [4,1] train [4,1,1,4,n/a]") == ([4, 1], [4, 1, 1, 4])
    assert read_rollouts("1024 prompts, 1 PPO epoch") == {"rollouts": 1024, "samples": 1}
    assert read_split("v0.4; 1-step Off; mean 5", 256) == 128
    with pytest.raises(UsageError, match="did you mean lora"):
        read_method("lorra")


def test_a_ladder_is_cumulative() -> None:
    found = read_ladder("+optimizer in backward; cumulative ladder")
    assert found["recompute"] == "full"
    assert found["chunked_loss"]
    assert found["packed"]
    assert "offload_activations" not in found


def test_what_is_measured_is_never_read() -> None:
    rows = [r for r in shipped_posttraining() if r["measured_peak_mem_gib"]][:12]
    hidden = [{**r, "measured_peak_mem_gib": "", "measured_step_time_s": "", "tokens_per_s_per_gpu": ""} for r in rows]
    assert evaluate_posttraining(rows, Context(DB)) == evaluate_posttraining(hidden, Context(DB))


def test_a_row_of_a_batch_equals_the_row_alone() -> None:
    rows = shipped_posttraining()[::9]
    together = evaluate_posttraining(rows, Context(DB))
    for row, found in zip(rows, together, strict=True):
        alone = evaluate_posttraining([row], Context(DB))[0]
        assert alone["pred_error"] == found["pred_error"]
        for name in ("pred_peak_mem_gib", "pred_step_time_s"):
            assert alone[name] == (found[name] if found["pred_error"] else pytest.approx(found[name], rel=1e-9))


def test_a_wrong_row_says_why_and_the_others_go_on() -> None:
    good = {"model": "llama-3.1-8b", "method": "lora", "gpu": "h100", "seq_len": "2048", "micro_batch": "1"}
    bad = {**good, "gpu": "h1000", "micro_batch": "1.5"}
    found = evaluate_posttraining([bad, good], Context(DB))
    assert found[0]["pred_error"]
    assert found[0]["pred_step_time_s"] == ""
    assert found[1]["pred_error"] == ""


@pytest.mark.parametrize(
    ("identity", "published"), [("tt_flags_2", 51.0), ("tt_flags_4", 24.9), ("tt_flags_5", 23.1), ("tt_flags_8", 8.5)]
)
def test_the_ladder_of_torchtune_lever_by_lever(identity: str, published: float) -> None:
    row = next(r for r in shipped_posttraining() if r["id"] == identity)
    assert evaluate_posttraining([row], Context(DB))[0]["pred_peak_mem_gib"] == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("quantity", LIMITS)
def test_errors_on_trusted_rows(checked: list[Any], quantity: str, view: str) -> None:
    trusted = [r for r in checked if not r.doubtful(quantity)]
    errors = errors_of([r.ratios[quantity].get(view) for r in trusted])
    assert errors.rows > 70
    assert errors.median is not None
    assert errors.median <= LIMITS[quantity]


@pytest.fixture(scope="module")
def checked() -> list[Any]:
    return check_rows(shipped_posttraining(), DB, left_out=True)


def test_every_doubt_has_a_reason() -> None:
    for row in shipped_posttraining():
        assert bool(row["doubtful"]) == bool(row["doubt"])
        assert "predict" not in row["doubt"]
