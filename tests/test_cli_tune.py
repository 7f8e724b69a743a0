"""`gpucalc tune`, and post-training rows through eval and validate, as processes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest
from cli import gpucalc, shell

ONE = ("tune", "llama-3.1-8b", "--gpu", "a100-sxm-80gb", "--gpus", "1", "--seq-len", "2048")
MANY = ("tune", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "2048")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_table_and_what_it_says() -> None:
    ran = gpucalc(*ONE, "--method", "lora", "--micro-batch", "2")
    assert ran.status == 0
    assert "longest sequence" in ran.out
    assert "one copy of the frozen weights" in ran.out
    assert "Largest micro-batch at 2,048 tokens" in ran.err


def test_csv_has_full_precision_and_json_a_job() -> None:
    found = rows(gpucalc(*ONE, "--method", "qlora", "-f", "csv").out)[0]
    document = json.loads(gpucalc(*ONE, "--method", "qlora", "-f", "json").out)
    row = document["rows"][0]
    assert float(found["pred_peak_mem_gib"]) == row["pred_peak_mem_gib"]
    assert document["job"]["method"] == "qlora"
    assert row["largest_micro_batch"] >= 1
    assert row["largest_seq_len"] >= 2048


def test_methods_in_order_of_memory() -> None:
    found = {}
    for method in ("sft", "lora", "qlora"):
        ran = gpucalc(*ONE, "--method", method, "--recompute", "full", "-f", "csv")
        found[method] = float(rows(ran.out)[0]["pred_peak_mem_gib"])
    assert found["qlora"] < found["lora"] < found["sft"]


def test_what_does_not_fit_has_status_3() -> None:
    ran = gpucalc(
        "tune", "llama-3.1-70b", "--method", "sft", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--seq-len", "2048"
    )
    assert ran.status == 3
    assert "does not fit" in ran.err
    assert "oom" in ran.out


def test_splits_of_a_reinforcement_step() -> None:
    ran = gpucalc(*MANY, "--method", "grpo", "--rollouts", "256", "--response", "500", "-f", "csv")
    found = rows(ran.out)
    assert ran.status == 0
    assert "colocated" in {row["split"] for row in found}
    assert len(found) == 8
    one = gpucalc(*MANY, "--method", "ppo", "--rollouts", "256", "--generation-gpus", "4", "-f", "csv")
    assert [row["split"] for row in rows(one.out)] == ["4 generate, 4 train"]


def test_the_share_of_an_engine_is_stated_and_adapters_are_their_own_reference() -> None:
    base = (*MANY, "--method", "grpo", "--rollouts", "256", "--generation-gpus", "4", "-f", "json")
    found = {}
    for name, more in {
        "plain": (),
        "small": ("--set", "memory_share=0.45"),
        "lora": ("--lora-rank", "8"),
        "full": ("--recompute", "full"),
        "alone": ("--recompute", "full", "--set", "reference=no"),
        "adapted": ("--recompute", "full", "--lora-rank", "8"),
        "adapted alone": ("--recompute", "full", "--lora-rank", "8", "--set", "reference=no"),
    }.items():
        found[name] = json.loads(gpucalc(*base, *more).out)["rows"][0]
    assert found["small"]["engine_gib"] == pytest.approx(found["plain"]["engine_gib"] / 2)
    # The reference of a full model is another copy of it; that of an adapter is its frozen base.
    assert found["alone"]["update_gib"] < found["full"]["update_gib"]
    assert found["adapted alone"]["update_gib"] == pytest.approx(found["adapted"]["update_gib"])
    assert found["adapted"]["update_gib"] < found["full"]["update_gib"]
    assert found["adapted alone"]["scoring_s"] < found["adapted"]["scoring_s"]


def test_nothing_is_fastest_where_nothing_fits() -> None:
    ran = gpucalc(
        *("tune", "glm-4.5", "--method", "grpo", "--gpu", "h100-sxm-80gb", "--gpus", "64", "--seq-len", "2048"),
        *("--prompt", "1024", "--response", "1024"),
    )
    assert ran.status == 3
    assert "Fastest" not in ran.err
    assert "No split fits" in ran.err
    assert "has 79." in ran.err


@pytest.mark.parametrize("method", ["lora", "dpo", "grpo"])
def test_every_term_of_the_explanation_has_a_unit_and_formulas_a_citation(method: str) -> None:
    document = json.loads(gpucalc(*MANY, "--method", method, "--explain", "-f", "json").out)
    paths = {term["path"] for term in document["terms"]}
    assert "time/step" in paths
    assert document["summary"]
    for term in document["terms"]:
        if " = " in (term["formula"] or ""):  # a product and a choice among terms cite nothing
            assert term["citation"], term["path"]
    text = gpucalc(*MANY, "--method", method, "--explain")
    assert text.status == 0
    assert "time/step" in text.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "loar"), "did you mean lora?"),
        ((), "missing: --method"),
        (("--method", "lora", "--lora-targets", "qq"), "did you mean q"),
        (("--method", "sft", "--lora-rank", "8"), "use method=lora"),
        (("--method", "dpo", "--micro-batch", "3"), "4"),
        (("--method", "lora", "--rollouts", "8"), "--method ppo or grpo"),
        (("--method", "lora", "--precomputed-reference"), "--method dpo"),
        (("--method", "grpo", "--generation-gpus", "8"), "at most 7"),
        (("--method", "grpo", "--prompt", "4096"), "--prompt 1024"),
        (("--method", "grpo", "--response", "4096"), "is the most"),
        (("--method", "lora", "--optimizer", "adm8bit"), "did you mean adam8bit"),
        (("--method", "lora", "--lora-rank", "0"), "1 or more"),
        (("--method", "grpo", "--set", "memory_share=1.3"), "a share below 1"),
        (("--method", "grpo", "--set", "memory_share=0"), "state a share such as 0.5"),
        (("--method", "grpo", "--set", "algorithm=ppo"), "contradicts"),
        (("--method", "grpo", "--prompt", "64", "--set", "prompt=128"), "contradicts prompt=64"),
    ],
)
def test_mistakes_are_one_clear_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert said in gpucalc(*MANY, *arguments).sentence()


def test_assert_asks_for_more_than_risky() -> None:
    assert gpucalc(*ONE, "--method", "lora", "--recompute", "full", "--assert", "fits").status == 0


def test_eval_appends_the_columns_of_the_contract() -> None:
    text = "id,model,method,gpu,n_gpus,seq_len,micro_batch,mine\n"
    text += "a,llama-3.1-8b,lora,h100,1,2048,2,x\nb,llama-3.1-8b,lora,h1000,1,2048,2,y\n"
    ran = gpucalc("eval", "--kind", "posttraining", "-", stdin=text)
    found = rows(ran.out)
    assert ran.status == 0
    assert list(found[0])[-5:] == [
        "pred_peak_mem_gib",
        "pred_tokens_per_s_per_gpu",
        "pred_step_time_s",
        "pred_fit",
        "pred_error",
    ]
    assert found[0]["mine"] == "x"
    assert found[0]["pred_error"] == ""
    assert "h1000" in found[1]["pred_error"]
    assert found[1]["pred_step_time_s"] == ""
    assert "1 row of 2" in ran.err


def test_validate_reports_by_source_and_own_rows() -> None:
    document = json.loads(gpucalc("validate", "--kind", "posttraining", "-f", "json").out)
    groups = {line["group"] for line in document["by_group"]}
    assert {"all", "source QwenLM/Qwen", "method lora"} <= groups
    assert {line["met"] for line in document["targets"]} == {"yes"}
    text = "model,method,gpu,n_gpus,seq_len,micro_batch,measured_peak_mem_gib\nllama-3.1-8b,lora,h100,1,2048,2,40\n"
    own = shell(f"printf '{text}' | $G validate --kind posttraining - -f json")
    assert json.loads(own.out)["rows"] == 1


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [("'tune', '--help'", "numpy"), (", ".join(map(repr, (*ONE, "--method", "lora"))), "pandas")],
)
def test_help_and_a_question_start_light(arguments: str, absent: str) -> None:
    code = f"""
import sys
sys.argv = ["gpucalc", {arguments}]
from gpucalc.cli import main
try:
    main()
except SystemExit:
    pass
assert "{absent}" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
