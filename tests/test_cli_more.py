"""`hpc`, `render`, `schedule`, plans of several kinds and their validation, as commands."""

from __future__ import annotations

import csv
import io
import json

import pytest
from cli import gpucalc

MIXED = (
    "plan",
    "llama-3.1-8b",
    "--gpu",
    "a100-sxm-80gb:16,h100-sxm-80gb:16",
    "--seq-len",
    "4096",
    "--global-batch",
    "256",
)
LAYOUT = ("llama-3.1-70b", "--seq-len", "8192", "--global-batch", "512", "--layout", "tp8-pp4-mbs1-zero1-sp")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_hpc_explains_one_and_lists_many() -> None:
    one = gpucalc("hpc", "lbm", "--gpu", "h100-sxm-80gb", "-f", "json")
    document = json.loads(one.out)
    assert document["bound"] == "memory"
    paths = {t["path"] for t in document["terms"]}
    assert {"time/memory", "time/halo/exposed", "time/step", "memory/resident"} <= paths
    many = rows(gpucalc("hpc", "lbm", "--gpu", "h100-sxm-80gb", "--gpus", "1,8,64", "-f", "csv").out)
    assert [r["n_gpus"] for r in many] == ["1", "8", "64"]
    assert float(many[0]["efficiency_pct"]) == pytest.approx(100)
    assert float(many[2]["efficiency_pct"]) < float(many[1]["efficiency_pct"])


def test_hpc_weak_scaling_and_own_kernel() -> None:
    weak = rows(
        gpucalc("hpc", "custom", "--flops", "100FLOP", "--bytes", "16B", "--halo", "8B", "--gpu", "a100-sxm-80gb",
                "--units-per-gpu", "1e8", "--gpus", "1,8,512", "-f", "csv").out
    )  # fmt: skip
    assert float(weak[0]["units"]) * 512 == float(weak[2]["units"])
    assert all(0 < float(r["efficiency_pct"]) <= 100.0001 for r in weak)


def test_hpc_list_benchmarks_and_measured_codes() -> None:
    hpl = json.loads(gpucalc("hpc", "hpl", "--gpu", "h100-sxm-80gb", "--gpus", "1024", "-f", "json").out)
    assert hpl["tflops_per_gpu"] == pytest.approx(43, abs=2)
    poor = gpucalc("hpc", "hpl", "--gpu", "l40s-48gb")
    assert poor.status == 0
    assert "poor in FP64" in poor.err
    code = rows(gpucalc("hpc", "gromacs-stmv", "--gpus", "8,64", "-f", "csv").out)
    assert [r["basis"] for r in code] == ["measured range", "extrapolated"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("hpc lmb --gpu h100-sxm-80gb", "did you mean lbm"),
        ("hpc lbm", "missing: --gpu"),
        ("hpc lbm --gpu h100-sxm-80gb --gpus 0", "--gpus"),
        ("hpc lbm --gpu h100-sxm-80gb --gpus 9999999999", "1,000,000"),
        ("hpc lbm --gpu h100-sxm-80gb --units 1e9 --units-per-gpu 1e9", "contradict"),
        ("hpc lbm --gpu h100-sxm-80gb --units -5", "--units"),
        ("hpc lbm --gpu h100-sxm-80gb --bytes 16", "has no unit"),
        ("hpc lbm --gpu h100-sxm-80gb --precision bf16", "precision"),
        ("hpc lbm --gpu h100-sxm-80gb --dimensions 4", "lattice of lbm has 3"),
        ("hpc custom --gpu h100-sxm-80gb --flops 8FLOP", "--bytes"),
        ("hpc stencil --gpu h800-sxm-80gb", "states no fp64 peak"),
        ("hpc hpl --gpu h100-sxm-80gb --units 5", "no meaning"),
        ("hpc gromacs-stmv --gpu h100-sxm-80gb", "measured on mi250x-gcd"),
        ("render --frames 10 --frame-time 1min", "missing: --gpu"),
        ("render --gpu rtx4090-24gb:4 --frame-time 1min", "how long is the film"),
        ("render --gpu rtx4090-24gb:4 --frames 10", "how long does a frame take"),
        ("render --gpu rtx4090-24gb --frames 10 --frame-time 1min", "how many"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --spread -1", "--spread"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --failures 100%", "below 1"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --store 10GB/s", "belong together"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --store 0GB/s --frame-bytes 1GB", "positive"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --licence-price 200", "--licences"),
        ("render --gpu rtx4090-24gb:4 --frames 10 --frame-time 1min --order fast", "order"),
        ("render --gpu tpu-v4:4 --frames 10 --frame-time 1min", "cannot render"),
        ("render --gpu rtx4090-24gb:2 --frames 10 --frame-time 1min --gpus-per-frame 4", "--gpus-per-frame"),
        ("schedule --gpu h100-sxm-80gb --gpus 16", "what is free"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x9", "holds 8"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free eight", "--free"),
        ("schedule --gpu h100-sxm-80gb --gpus 12 --free 4x8", "not a multiple"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x8 --load 100% --mean-run 4h", "below 1"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x8 --load 80%", "--mean-run"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x8 --load 80% --mean-run 1h --median-run 2h", "above"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --fabrics", "belong together"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x8 --to pbs", "--to"),
        ("schedule --gpu h100-sxm-80gb --gpus 16 --free 4x8 --topology dragonfli", "did you mean dragonfly"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h100-sxm-80gb --seq-len 4096 --global-batch 64", "its number"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --gpus 8 --seq-len 4096 --global-batch 64",
         "contradicts"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --seq-len 4096", "--global-batch"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h1000:8 --seq-len 4096 --global-batch 64", "unknown GPU"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --precision fp8 --seq-len 4096 --global-batch 64",
         "does not support fp8"),
        ("plan llama-3.1-8b --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --schedule zb-h1 --seq-len 4096 --global-batch 64",
         "unequal stages"),
        ("validate --kind hetro", "did you mean"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(arguments: str, said: str) -> None:
    assert said in gpucalc(*arguments.split()).sentence()


@pytest.mark.parametrize(
    "arguments",
    [
        "hpc lbm --gpu h100-sxm-80gb --units 1e14 --gpus 8",
        "schedule --gpu h100-sxm-80gb --gpus 64 --free 4x8,20x7",
    ],
)
def test_what_does_not_fit_leaves_status_three(arguments: str) -> None:
    assert gpucalc(*arguments.split()).sentence(3)


def test_five_hundred_cards_render_a_film() -> None:
    ran = gpucalc("render", "--gpu", "rtx4090-24gb:500", "--minutes", "90", "--machine-years", "3", "-f", "json")
    answer = json.loads(ran.out)
    assert answer["frames"] == 129600
    assert 3 * 365.25 / 500 <= answer["work_days"] <= answer["makespan_days"] <= 1.03 * answer["work_days"]


def test_render_limits_and_cost() -> None:
    common = ("render", "--gpu", "rtx4090-24gb:100,l40s-48gb:50", "--frames", "3000", "--frame-time", "20min")
    free = json.loads(gpucalc(*common, "-f", "json").out)
    held = json.loads(gpucalc(*common, "--licences", "60", "--price", "0.5", "-f", "json").out)
    assert held["bound"] == "licences"
    assert held["gpus_used"] == 60
    assert held["makespan_days"] > free["makespan_days"]
    assert held["cost_usd"] == pytest.approx(held["makespan_days"] * 24 * 60 * 0.5)
    store = ("--store", "1GB/s", "--frame-bytes", "1TB")
    assert json.loads(gpucalc(*common, *store, "-f", "json").out)["bound"] == "store"


def test_render_says_where_a_score_comes_from() -> None:
    ran = gpucalc(
        "render", "--gpu", "h100-sxm-80gb:8", "--frames", "100", "--frame-time", "5min", "--reference", "rtx4090"
    )
    assert "estimated from FP32" in ran.err
    assert "makespan_if_scores_low_days" in ran.out


def test_schedule_places_and_waits(tmp_path: object) -> None:
    ran = gpucalc("schedule", "--gpu", "h100-sxm-80gb", "--gpus", "64", "--free", "20x8,6x4,10x0", "--leaf-nodes", "4",
                  "--load", "85%", "--mean-run", "4h", "-f", "json")  # fmt: skip
    document = json.loads(ran.out)
    assert document["blocks_free"] == 20
    assert document["placements"][0]["leaves"] == 2
    assert [q["run_times"] for q in document["queue"]] == ["exponential"]
    assert document["queue"][0]["wait_p50_s"] < document["queue"][0]["wait_p99_s"]


def test_schedule_ranks_by_the_step_and_writes_a_manifest() -> None:
    common = ("schedule", *LAYOUT, "--gpu", "h100-sxm-80gb", "--gpus", "256", "--free", "40x8", "--leaf-nodes", "8")
    placed = rows(gpucalc(*common, "--topology", "fat-tree-4to1", "-f", "csv").out)
    times = [float(r["step_time_s"]) for r in placed]
    assert times == sorted(times)
    script = gpucalc(*common, "--to", "sbatch").out
    assert script.startswith("#!/bin/bash\n")
    assert "--nodelist=node00001," in script


def test_networks_up_to_a_hundred_thousand_gpus() -> None:
    ran = gpucalc(
        "schedule", *LAYOUT, "--gpu", "h100-sxm-80gb", "--gpus", "1024,16384,102400", "--fabrics", "-f", "csv"
    )
    found = rows(ran.out)
    assert {r["n_gpus"] for r in found} == {"1024", "16384", "102400"}
    full = [float(r["step_time_s"]) for r in found if r["topology"] == "fat-tree"]
    thin = [float(r["step_time_s"]) for r in found if r["topology"] == "fat-tree-4to1"]
    assert full == sorted(full)
    assert all(t >= f for f, t in zip(full, thin, strict=True))


def test_a_mixed_plan_against_its_parts() -> None:
    document = json.loads(gpucalc(*MIXED, "-f", "json").out)
    assert {r["gpu"] for r in document["alone"]} == {"a100-sxm-80gb", "h100-sxm-80gb"}
    assert document["rows"][0]["pred_step_time_s"] > 0
    assert document["verdict"]
    table = gpucalc(*MIXED)
    assert "alone" in table.out
    assert "rankings are weakest on mixed clusters" in table.err
    assert rows(gpucalc(*MIXED, "-f", "csv").out)[0]["split"].startswith("a100-sxm-80gb ")


@pytest.mark.parametrize("kind", ["hpc", "render", "hetero"])
def test_validation_prints_errors_by_family(kind: str) -> None:
    document = json.loads(gpucalc("validate", "--kind", kind, "--worst", "2", "-f", "json").out)
    assert document["by_group"]
    assert all(line["rows"] > 0 for line in document["by_group"])
    if kind == "render":
        assert not [t for t in document["targets"] if t["missed"]]
