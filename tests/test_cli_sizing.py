"""fit, scale, whatif and diagnose as processes: tables, machine formats, statuses, bad input."""

from __future__ import annotations

import csv
import io
import json

import pytest
from cli import gpucalc, shell

JOB = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--seq-len", "4096")
SIZED = (*JOB, "--gpus", "16", "--global-batch", "64")
LAYOUT = (*SIZED, "--layout", "tp2-dp8-mbs1-zero1-sp")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_fit_prints_the_least_count_of_each_strategy():
    ran = gpucalc("fit", *JOB)
    assert ran.status == 0
    assert "least GPUs" in ran.out
    assert "FSDP, ZeRO-3" in ran.out
    assert "the least:" in ran.err


def test_fit_on_a_count_in_csv_names_layouts_that_other_commands_take():
    ran = gpucalc("fit", *SIZED, "-f", "csv")
    assert ran.status == 0
    found = {row["strategy"]: row for row in rows(ran.out)}
    assert found["fsdp"]["pred_fit"] == "fits"
    assert int(found["fsdp"]["largest_micro_batch"]) >= 1
    assert found["dp"]["pred_fit"] == "oom"
    assert float(found["dp"]["over_gib"]) > 0
    again = gpucalc("explain", *SIZED, "--layout", found["fsdp"]["layout"], "-f", "json")
    terms = {term["path"]: term["value"] for term in json.loads(again.out)["terms"]}
    assert terms["memory/total"] / 2**30 == pytest.approx(float(found["fsdp"]["pred_peak_mem_gib"]))


def test_fit_of_one_layout_in_json_has_terms_and_remedies():
    answer = json.loads(gpucalc("fit", *LAYOUT, "-f", "json").out)
    assert answer["pred_fit"] == "fits"
    assert answer["layout"].startswith("tp2-dp8")
    assert sum(answer["parts_gib"].values()) <= answer["pred_peak_mem_gib"]
    assert {"ZeRO 1 → 3", "optimizer state to the host"} <= {row["remedy"] for row in answer["remedies"]}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((*LAYOUT, "--assert", "fits"), 0),
        ((*JOB, "--gpus", "1", "--layout", "mbs1-zero1", "--assert", "fits"), 3),
        ((*JOB, "--gpus", "1", "--layout", "mbs1-zero1"), 0),
        ((*SIZED, "--assert", "fits"), 0),
        ((*JOB, "--gpus", "1", "--strategy", "dp", "--assert", "risky"), 3),
        ((*JOB, "--gpus", "1", "--strategy", "dp"), 3),
    ],
)
def test_an_assertion_decides_the_status(arguments, status):
    ran = gpucalc("fit", *arguments)
    assert ran.status == status
    if status == 3 and "--assert" in arguments:
        assert "assertion" in ran.err
        assert "Traceback" not in ran.err


def test_an_assertion_is_a_gate_in_a_shell():
    line = f"$G fit {' '.join(LAYOUT)} --assert fits -f csv > /dev/null && echo go"
    assert shell(line).out == "go\n"


def test_scale_prints_curves_and_says_what_they_mean():
    ran = gpucalc("scale", *JOB, "--gpus", "8..64", "--global-batch", "128")
    assert ran.status == 0
    assert "efficiency" in ran.out
    assert "Amdahl" in ran.err
    assert "Gustafson" in ran.err


def test_scale_in_json():
    arguments = ("--gpus", "8,16,32", "--global-batch", "128", "--mode", "strong", "-f", "json", "--straggler-cv", "1%")
    answer = json.loads(gpucalc("scale", *JOB, *arguments).out)
    assert [row["n_gpus"] for row in answer["rows"]] == [8, 16, 32]
    assert answer["rows"][0]["efficiency_pct"] == 100
    assert answer["laws"][0]["law"] == "Amdahl"
    shares = [v for k, v in answer["rows"][0].items() if k.startswith("share_")]
    assert sum(shares) == pytest.approx(100)


def test_scale_draws_its_curves(tmp_path):
    picture = tmp_path / "scale.svg"
    arguments = ("--gpus", "8..32", "--global-batch", "64", "--plot", str(picture), "-f", "csv")
    ran = gpucalc("scale", *JOB, *arguments)
    assert ran.status == 0
    assert len(rows(ran.out)) == 6
    assert "<svg" in picture.read_text()


def test_scale_where_nothing_fits_has_status_3_and_says_why():
    ran = gpucalc("scale", "llama-3.1-405b", *JOB[1:], "--gpus", "8", "--global-batch", "8")
    assert ran.status == 3
    assert "memory" in ran.err


def test_whatif_lists_changes_and_takes_a_row_of_plan():
    ran = gpucalc("whatif", *LAYOUT, "-f", "csv")
    found = rows(ran.out)
    assert ran.status == 0
    assert {row["kind"] for row in found} == {"resource", "batch", "layout", "precision"}
    gains = [float(row["gain_pct"]) for row in found if row["pred_fit"] != "oom"]
    assert gains == sorted(gains, key=lambda gain: -round(gain, 6))
    piped = shell(f"$G plan {' '.join(SIZED)} -f csv --top 1 | $G whatif - --top 3 -f json")
    assert piped.status == 0
    assert len(json.loads(piped.out)["rows"]) == 3


def test_whatif_finds_the_network_for_a_bound():
    arguments = (*SIZED, "--layout", "dp16-mbs1-zero3", "--inter-node-gbps", "25", "--exposed", "40%")
    answer = json.loads(gpucalc("whatif", *arguments, "-f", "json").out)
    need = next(row for row in answer["rows"] if row["resource"] == "network")
    assert need["rate_needed_gbps_per_gpu"] > 25
    assert need["exposed_now_pct"] > 40


def test_whatif_compares_clusters_with_their_cost():
    arguments = ("--against", "gpu=h200-sxm-141gb,n_gpus=8", "--price", "2.5", "--against-price", "$3.1")
    found = rows(gpucalc("whatif", *LAYOUT, *arguments, "-f", "csv").out)
    assert {row["cluster"] for row in found} == {"16 x h100-sxm-80gb", "8 x h200-sxm-141gb"}
    for row in found:
        price = 2.5 if row["cluster"].startswith("16") else 3.1
        per_hour = 3600 * float(row["pred_tokens_per_s_per_gpu"])
        assert float(row["cost_per_million_tokens"]) == pytest.approx(price / per_hour * 1e6)


def test_diagnose_tells_a_gap_from_none():
    answer = json.loads(gpucalc("diagnose", *LAYOUT, "--measured-step-time", "60s", "-f", "json").out)
    assert answer["verdict"] == "slower"
    assert answer["causes"][0]["plausibility"] == 1
    time = answer["pred_step_time_s"]
    none = gpucalc("diagnose", *LAYOUT, "--measured-step-time", f"{time}s")
    assert none.status == 0
    assert "no gap" in none.out


def test_diagnose_reads_a_measured_row():
    row = "model,gpu,n_gpus,seq_len,global_batch,tp,dp,micro_batch,zero_stage,measured_step_time_s\\n"
    row += "llama-3.1-8b,h100-sxm-80gb,16,4096,64,2,8,1,1,9.5\\n"
    ran = shell(f"printf '{row}' | $G diagnose - -f csv")
    assert ran.status == 0
    assert rows(ran.out)[0]["cause"]


@pytest.mark.parametrize("form", ["table", "csv", "json", "jsonl", "md"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", *SIZED, "--strategy", "fsdp"),
        ("scale", *JOB, "--gpus", "8", "--global-batch", "64", "--mode", "strong"),
        ("whatif", *LAYOUT),
        ("diagnose", *LAYOUT, "--measured-step-time", "9s"),
    ],
    ids=lambda a: a[0],
)
def test_every_format_is_written(arguments, form):
    ran = gpucalc(*arguments, "-f", form)
    assert ran.status == 0
    assert ran.out
    if form == "json":
        json.loads(ran.out)
    if form == "jsonl":
        assert all(isinstance(json.loads(line), dict) for line in ran.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit",), "missing"),
        (("fit", *JOB, "--assert", "fits"), "--gpus or --layout"),
        (("fit", *LAYOUT, "--assert", "fit"), "fits"),
        (("fit", *JOB, "--strategy", "fsdpp"), "did you mean fsdp"),
        (("fit", *LAYOUT, "--strategy", "fsdp"), "contradict"),
        (("fit", *JOB, "--gpus", "0"), "--gpus"),
        (("scale", *JOB, "--gpus", "8"), "--global-batch"),
        (("scale", *JOB, "--gpus", "16..8", "--global-batch", "64"), "ascending"),
        (("scale", *JOB, "--gpus", "8", "--global-batch", "64", "--mode", "stronk"), "strong"),
        (("scale", *JOB, "--gpus", "8", "--global-batch", "64", "--layout", "dp8"), "--gpus"),
        (("scale", *JOB, "--gpus", "8", "--global-batch", "64", "--straggler-cv", "150%"), "share"),
        (("whatif", *LAYOUT, "--exposed", "5"), "share above 0 and below 1"),
        (("whatif", *LAYOUT, "--against", "h200x"), "unknown GPU"),
        (("whatif", *LAYOUT, "--against", "gpus=8,foo=1"), "unknown key"),
        (("whatif", *LAYOUT, "--against-price", "3"), "--against"),
        (("whatif", *LAYOUT, "--against", "h200", "--price", "-1"), "--price"),
        (("whatif", *SIZED, "--layout", "tp3"), "tp"),
        (("diagnose", *LAYOUT), "--measured-step-time"),
        (("diagnose", *LAYOUT, "--measured-step-time", "12"), "unit"),
        (("diagnose", *LAYOUT, "--measured-step-time", "-3s"), "positive"),
        (("diagnose", *SIZED, "--measured-step-time", "3s"), "which layout"),
    ],
    ids=lambda a: " ".join(a[:1]) if isinstance(a, tuple) else a,
)
def test_a_mistake_is_one_sentence(arguments, words):
    assert words in gpucalc(*arguments).sentence(2)
