"""`gpucalc serve`, `eval --kind serving`, `validate --kind serving` and the engines of `export`, as processes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli import gpucalc, shell

QUESTION = ("serve", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--isl", "2048", "--osl", "256", "--precision", "fp8")
EIGHT = (*QUESTION, "--gpus", "8")


def test_a_question_is_answered_by_ranked_layouts() -> None:
    ran = gpucalc(*EIGHT, "--ttft", "2s", "--tpot", "50ms", "--price", "3", "-f", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["rows"]
    assert found["pareto"]
    for row in found["rows"]:
        assert row["pred_ttft_ms"] <= 2000
        assert row["pred_tpot_ms"] <= 50
        assert row["pred_ttft_unloaded_ms"] < row["pred_ttft_ms"]
        expected = 3 / 3600 * 8 / row["pred_output_tok_s_total"] * 1e6
        assert row["pred_cost_per_million"] == pytest.approx(expected)


def test_the_definition_and_the_error_stand_beside_the_table() -> None:
    ran = gpucalc(*EIGHT, "--concurrency", "16")
    assert "TTFT: mean from sending a request to its first token" in ran.err
    assert "median error on series left out of the fit" in ran.err
    assert "TTFT loaded [ms]" in ran.out


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--tpot", "1ms", "--concurrency", "8"), 3, "TPOT binds"),
        (("--rate", "100000"), 3, "beyond saturation"),
        (("--tpot", "50"), 2, "has no unit"),
        (("--concurrency", "8", "--rate", "2"), 2, "exclude each other"),
        (("--layout", "tp8-vpp2"), 2, "not part of a serving layout"),
        (("--layout", "tp3"), 2, "tp=3 does not divide the 64 heads"),
        (("--set", "precison=fp8"), 2, "did you mean precision"),
        (("--set", "tp"), 2, "not of the form KEY=VALUE"),
        (("--engine", "vlm"), 2, "did you mean vllm"),
        (("--prefix-hit", "3"), 2, "expected a share below 1"),
    ],
)
def test_what_cannot_be_is_said_plainly(options: tuple[str, ...], status: int, said: str) -> None:
    ran = gpucalc(*EIGHT, *options)
    assert ran.status == status
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_all_that_is_missing_is_told_at_once() -> None:
    ran = gpucalc("serve", "llama-3.1-8b")
    assert ran.status == 2
    assert all(word in ran.err for word in ("--gpu", "--isl", "--osl", "--gpus"))


def test_too_little_memory_names_the_share_that_would_do() -> None:
    ran = gpucalc("serve", "llama-3.1-70b", "--gpu", "h200-sxm-141gb", "--gpus", "1", "--isl", "2000", "--osl", "256")
    assert ran.status == 3
    assert "2 GPUs would hold it" in ran.err
    assert "memory_share=0.96" in ran.err


def test_the_least_gpus_for_a_rate() -> None:
    ran = gpucalc(*QUESTION, "--rate", "20", "--tpot", "50ms", "-f", "csv", "--top", "2")
    assert ran.status == 0, ran.err
    first, second = csv.DictReader(io.StringIO(ran.out))
    assert int(first["n_gpus"]) <= int(second["n_gpus"])


def test_the_front_can_be_listed_and_drawn(tmp_path: Path) -> None:
    ran = gpucalc(*EIGHT, "--pareto", "-f", "csv", "--plot", str(tmp_path / "front.svg"))
    assert ran.status == 0, ran.err
    users = [float(row["pred_tok_s_per_user"]) for row in csv.DictReader(io.StringIO(ran.out))]
    assert users == sorted(users, reverse=True)
    assert "<svg" in (tmp_path / "front.svg").read_text(encoding="utf-8")


def test_an_answer_explains_itself() -> None:
    ran = gpucalc(*EIGHT, "--layout", "tp8", "--concurrency", "16", "--explain", "-f", "json")
    terms = {term["path"]: term for term in json.loads(ran.out)["terms"]}
    assert "interference" in terms["time/tpot"]["formula"]
    assert terms["decode/layer/gemm/up/one"]["citation"]
    answer = json.loads(gpucalc(*EIGHT, "--layout", "tp8", "--concurrency", "16", "-f", "json").out)["rows"][0]
    assert terms["time/tpot"]["value"] * 1e3 == pytest.approx(answer["pred_tpot_ms"], rel=1e-12)
    assert "time/tpot" in gpucalc(*EIGHT, "--layout", "tp8", "--concurrency", "16", "--explain").out


def test_serve_and_eval_give_one_number() -> None:
    ran = shell(
        "set -o pipefail; $G serve llama-3.1-8b --gpu h100-sxm-80gb --gpus 2 --isl 1000 --osl 200 --concurrency 8 "
        "--engine vllm -f csv | tee /dev/stderr | $G eval --kind serving -"
    )
    assert ran.status == 0, ran.err
    served = list(csv.DictReader(io.StringIO("\n".join(x for x in ran.err.splitlines() if "," in x))))
    assert served
    for before, after in zip(served, csv.DictReader(io.StringIO(ran.out)), strict=False):
        assert float(after["pred_tpot_ms"]) == pytest.approx(float(before["pred_tpot_ms"]), rel=1e-9)


def test_eval_appends_what_the_contract_says() -> None:
    row = "model,gpu,n_gpus,tp,pp,dp,ep,precision,kv_precision,isl,osl,concurrency,framework,mine\n"
    row += "llama-3.1-8b,h100-sxm-80gb,1,1,1,1,1,bf16,,1000,100,8,vllm,x\n"
    row += "llama-3.1-8b,h100-sxm-80gb,1,1,1,1,1,bf16,,1000,,8,vllm,y\n"
    ran = gpucalc("eval", "-", "--kind", "serving", stdin=row)
    assert ran.status == 0
    good, bad = csv.DictReader(io.StringIO(ran.out))
    names = ["ttft_ms", "ttft_unloaded_ms", "tpot_ms", "output_tok_s_total", "kv_tokens", "bottleneck", "fit"]
    names.append("error")
    assert list(good)[-len(names) :] == [f"pred_{name}" for name in names]
    assert good["pred_fit"] == "fits"
    assert good["mine"] == "x"
    assert bad["pred_error"] == "osl is not stated"
    assert not bad["pred_tpot_ms"]


APART_RATE = "workers apart: output rate"


def test_the_shipped_measurements_reach_their_targets() -> None:
    ran = gpucalc("validate", "--kind", "serving", "-f", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["rows"] > 1600
    targets = {line["target"]: line for line in found["targets"]}
    assert all(line["left_out_pct"] is not None for line in targets.values())
    missed = {name for name, line in targets.items() if line["missed"]}
    # First tokens are not yet within what is wanted; docs/serving.md says where.
    assert missed <= {"dense: loaded TTFT", "mixtures: loaded TTFT", "workers apart: TPOT", APART_RATE}


def test_the_printed_capacities_reach_their_targets() -> None:
    ran = gpucalc("validate", "--kind", "kv", "-f", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["rows"] >= 40
    assert all(line["reached_pct"] <= line["limit_pct"] for line in found["targets"])


def test_workers_apart_have_layouts_of_their_own() -> None:
    question = ("serve", "llama-3.1-70b", "--gpu", "h100", "--isl", "4000", "--osl", "500", "--concurrency", "64")
    typed = gpucalc(*question, "--prefill-layout", "2x(tp4)", "--decode-layout", "tp8", "-f", "json")
    assert typed.status == 0, typed.err
    row = json.loads(typed.out)["rows"][0]
    assert (row["layout"], row["n_gpus"]) == ("2x(tp4)+1x(tp8)", 16)
    assert row["pred_bottleneck"] in {"prefill", "decode"}
    same = gpucalc(*question, "--layout", "2x(tp4)+1x(tp8)", "-f", "json")
    assert json.loads(same.out)["rows"] == [row]
    searched = gpucalc(*question, "--gpus", "16", "--disaggregate", "-f", "json", "--top", "50")
    found = json.loads(searched.out)["rows"]
    assert any(r["prefill_workers"] and r["prefill_tp"] != r["decode_tp"] for r in found)
    assert all(r["n_gpus"] == 16 for r in found)


def test_validate_reads_own_rows() -> None:
    rows = "model,gpu,n_gpus,tp,isl,osl,concurrency,precision,framework,measured_tpot_ms\n"
    rows += "llama-3.1-70b,h200-sxm-141gb,8,8,922,922,4,fp8,vllm,7.9\n"
    ran = gpucalc("validate", "-", "--kind", "serving", "-f", "json", stdin=rows)
    assert ran.status == 0, ran.err
    assert abs(json.loads(ran.out)["by_group"][0]["tpot_median_pct"]) < 20


@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
def test_a_layout_becomes_launch_settings(target: str) -> None:
    job = ("llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--precision", "fp8", "--layout", "tp4-dp2")
    load = ("--set", "isl=2048", "--set", "osl=256", "--set", "concurrency=64")
    ran = gpucalc("export", *job, *load, "--to", target)
    assert ran.status == 0, ran.err
    size = {"vllm": "--tensor-parallel-size 4", "sglang": "--tp-size 4", "trtllm": "--tp_size 4"}[target]
    length = {"vllm": "--max-model-len 2304", "sglang": "--context-length 2304", "trtllm": "--max_seq_len 2304"}[target]
    assert size in ran.out
    assert length in ran.out
    checked = subprocess.run(["bash", "-n"], input=ran.out, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_row_of_serve_becomes_launch_settings() -> None:
    ran = shell(
        "$G serve deepseek-r1 --gpu b200-sxm-180gb --gpus 8 --isl 1024 --osl 1024 --precision fp8 --engine sglang "
        "--concurrency 256 --layout dp8-adp8-ep8 -f csv | $G export - --to sglang"
    )
    assert ran.status == 0, ran.err
    for flag in ("--tp-size 8", "--attn-dp-size 8", "--ep-size 8", "--max-running-requests 256"):
        assert flag in ran.out


def test_what_an_engine_cannot_express_is_refused() -> None:
    job = (
        "qwen3-235b-a22b",
        "--gpu",
        "h200-sxm-141gb",
        "--gpus",
        "8",
        "--precision",
        "fp8",
        "--layout",
        "tp4-dp2-adp2",
    )
    load = ("--set", "isl=1000", "--set", "osl=100", "--set", "concurrency=8")
    ran = gpucalc("export", *job, *load, "--to", "trtllm")
    assert ran.status == 2
    assert "on all ranks or none" in ran.err
    ran = gpucalc("export", *job, *load, "--to", "vllm", "--seq-len", "8192")
    assert ran.status == 2
    assert "--seq-len has no meaning" in ran.err


def test_one_question_loads_no_pandas_and_help_no_numpy() -> None:
    code = (
        "import sys; from gpucalc.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    for arguments, loaded in ((EIGHT, "['numpy']"), (("serve", "--help"), "[]")):
        ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert ran.stderr.splitlines()[-1] == loaded


def test_engines_state_where_each_constant_comes_from() -> None:
    folder = Path(__file__).parent.parent / "hardware_db" / "engines"
    files = sorted(folder.glob("*.toml"))
    assert {f.stem for f in files} == {"neutral", "vllm", "sglang", "trtllm"}
    for file in files:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        assert raw["dated"]
        for name, cell in raw["constants"].items():
            assert cell["origin"] in {"measured", "published", "fitted", "counted", "assumed"}, name
            assert cell["why"], name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "1e12", "--tpot", "50ms"), "at most 4,096 replicas are tried"),
        (("--concurrency", "8", "--gpus", "2", "--layout", "0x(tp1)+1x(tp2)"), "1x(tp1) has one"),
        (("--concurrency", "8", "--prefill-layout", "0x(tp1)", "--decode-layout", "tp1"), "1x(tp1) has one"),
        (
            ("--concurrency", "8", "--layout", "tp2", "--prefill-layout", "tp1"),
            "--layout states the whole deployment, beside --prefill",
        ),
    ],
)
def test_loads_and_workers_that_cannot_be_are_told(arguments, said):
    ran = gpucalc("serve", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--isl", "1024", "--osl", "256", *arguments)
    assert said in ran.err
    assert ran.status in {2, 3}
    assert not ran.out


def test_first_tokens_of_a_wave_of_the_steady_state_and_of_the_slowest() -> None:
    base = ("serve", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--isl", "2048", "--osl", "256")
    lone = json.loads(gpucalc(*base, "--concurrency", "1", "-f", "json").out)["rows"][0]
    many = json.loads(gpucalc(*base, "--concurrency", "33", "-f", "json").out)["rows"][0]
    assert lone["pred_ttft_wave_ms"] == pytest.approx(lone["pred_ttft_unloaded_ms"])
    assert many["pred_ttft_p99_ms"] is None
    # The mean of a wave waits for half of those that the last waits for.
    alone = many["pred_ttft_unloaded_ms"]
    assert many["pred_ttft_wave_last_ms"] - alone == pytest.approx(2 * (many["pred_ttft_wave_ms"] - alone))
    waves = json.loads(gpucalc(*base, "--concurrency", "33", "--set", "waves=10", "-f", "json").out)["rows"][0]
    assert waves["pred_ttft_ms"] - waves["pred_ttft_steady_ms"] == pytest.approx(
        (many["pred_ttft_wave_ms"] - alone) / 10
    )
    opened = gpucalc(*base, "--rate", "4")
    row = json.loads(gpucalc(*base, "--rate", "4", "-f", "json").out)["rows"][0]
    assert row["pred_ttft_p99_ms"] > row["pred_ttft_steady_ms"]
    assert "99 of 100 random arrivals within" in opened.err
