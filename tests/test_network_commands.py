"""Commands beside plan for models that are no decoder: rates in samples, through real processes."""

from __future__ import annotations

import csv
import io
import json

import pytest
from cli import gpucalc

NET = ("--set", "params_m=25.6", "--set", "gmac=4.1", "--set", "mact=11.1")
RESNET = ("resnet-50", "--gpu", "a100-sxm-80gb", "--gpus", "16", "--global-batch", "4096")


def _json(*arguments: str) -> dict:
    ran = gpucalc(*arguments, "-f", "json")
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def test_whatif_names_what_each_resource_is_worth() -> None:
    answer = _json("whatif", *RESNET, "--layout", "dp16-mbs256-zero1")
    rows = {row["change"]: row for row in answer["rows"]}
    bandwidth = rows["HBM bandwidth x 2"]
    assert bandwidth["gain_pct"] > 0
    assert -1 <= bandwidth["elasticity"] < 0
    # Elasticities to all rates and host times of a homogeneous estimate add up to minus one.
    resources = [row for row in answer["rows"] if row["kind"] == "resource" and "capacity" not in row["change"]]
    times = sum(r["elasticity"] for r in resources if r["change"].endswith("x 0.5"))
    rates = sum(r["elasticity"] for r in resources if r["change"].endswith("x 2"))
    assert times - rates <= 1.001
    assert {"micro_batch=512", "micro_batch=128", "recompute=full"} <= rows.keys()


@pytest.mark.parametrize("model", [RESNET[:1], NET, ("bert-large", "--seq-len", "512")], ids=["preset", "net", "bert"])
def test_a_run_counts_samples(model: tuple[str, ...]) -> None:
    job = (*model, *RESNET[1:])
    one, two = (_json("run", *job, "--samples", n)["run"]["useful_days"] for n in ("1M", "2M"))
    assert two == pytest.approx(2 * one)
    assert "--samples" in gpucalc("run", *job).sentence()


def test_a_run_of_samples_takes_samples_over_the_planned_rate() -> None:
    [row] = list(csv.DictReader(io.StringIO(gpucalc("plan", *RESNET, "--top", "1", "-f", "csv").out)))
    days = _json("run", *RESNET, "--samples", "100M")["run"]["useful_days"]
    assert days * 86400 == pytest.approx(1e8 / float(row["pred_samples_per_s"]))


def test_diagnose_finds_the_resource_that_explains_a_measured_step() -> None:
    job = ("resnet-50", "--gpu", "a100-sxm-80gb", "--gpus", "8", "--layout", "dp8-mbs256")
    predicted = _json("diagnose", *job, "--measured-step-time", "1s")["pred_step_time_s"]
    none = _json("diagnose", *job, "--measured-step-time", f"{predicted}s")
    assert none["verdict"] == "no gap"
    found = _json("diagnose", *job, "--measured-step-time", f"{3 * predicted}s")
    assert found["verdict"] == "slower"
    assert sum(term["share_pct"] for term in found["terms"]) == pytest.approx(100)
    assert any(cause["cause"] == "hbm-bandwidth" and cause["explained_pct"] == 100 for cause in found["causes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("whatif", *RESNET, "--against", "h100-sxm-80gb"), "plan each cluster"),
        (("diagnose", *RESNET, "--layout", "dp16-mbs256"), "--measured-step-time"),
        (("generate", *NET, "--gpu", "a100-sxm-80gb", "--gpus", "1"), "makes pictures or clips"),
        (("run", "flux.1-dev", *RESNET[1:], "--set", "mode=generation", "--samples", "1M"), "a run is one of training"),
        (("run", *RESNET, "--samples", "0"), "expected more than 0"),
        (("generate", "flux.1-dev", *RESNET[1:5], "--frames", "50"), "makes single images"),
        (("generate", "llama-3.1-8b", *RESNET[1:5]), "makes no pictures or clips"),
    ],
)
def test_what_has_no_answer_is_told_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert said in gpucalc(*arguments).sentence()


def test_a_sweep_takes_networks_beside_decoders(tmp_path) -> None:
    spec = tmp_path / "space.toml"
    spec.write_text(
        '[product]\ngpu = "a100-sxm-80gb"\nn_gpus = [8, 16]\n'
        '[[case]]\nmodel = ["resnet-50", "vit-b-16"]\nglobal_batch = 2048\n'
        '[[case]]\nmodel = "llama-3.1-8b"\nseq_len = 4096\nglobal_batch = 64\n'
    )
    ran = gpucalc("sweep", str(spec), "--jobs", "1")
    assert ran.status == 0, ran.err
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert len(rows) == 6
    assert not any(row["pred_error"] for row in rows)
    rates = {row["model"]: row["pred_samples_per_s"] for row in rows}
    assert rates["resnet-50"]
    assert not rates["llama-3.1-8b"]
    planned = gpucalc("plan", *RESNET[:4], "8", "--global-batch", "2048", "--top", "1", "-f", "csv")
    [row] = list(csv.DictReader(io.StringIO(planned.out)))
    assert row["pred_samples_per_s"] == rows[0]["pred_samples_per_s"]


def test_commands_that_state_no_layout_take_the_planned_one() -> None:
    job = ("whisper-large-v3", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "256")
    [row] = list(csv.DictReader(io.StringIO(gpucalc("plan", *job, "--top", "1", "-f", "csv").out)))
    for command in ("power", "storage", "run"):
        ran = gpucalc(command, *job, *(("--samples", "1M") if command == "run" else ()))
        assert ran.status == 0, (command, ran.err)
        assert f"the fastest is taken: {row['layout']}" in ran.err


def test_the_data_of_a_network_are_those_of_its_samples() -> None:
    job = ("--gpu", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "2048")
    said = {model: gpucalc("storage", model, *job).err for model in ("resnet-50", "dlrm-dcnv2")}
    assert "data of kind image are taken" in said["resnet-50"]
    assert "data of kind text are taken" in said["dlrm-dcnv2"]
