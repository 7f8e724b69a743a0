"""Batches of questions about whole clusters: every row is what the command of its kind answers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli import gpucalc

from gpucalc.core.columns import KINDS
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.questions.cluster_rows import CLUSTER_KINDS, evaluate_cluster

CONTEXT = Context(Database())
JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": "64", "seq_len": "8192", "global_batch": "128"}
JOB |= {"dp": "64", "micro_batch": "1", "zero_stage": "2"}
ROWS: dict[str, dict[str, str]] = {
    "storage": {"gpu": "h100-sxm-80gb", "n_gpus": "36", "workload": "unet3d", "read_gb_per_s": "104"},
    "power": {"gpu": "h100-sxm-80gb", "n_gpus": "256", "pue": "1.1"},
    "run": {**JOB, "tokens": "1e12", "mtbf_h": "20"},
    "hpl": {"gpu": "mi250x", "n_gpus": "1024"},
    "hpcg": {"gpu": "a100-sxm-40gb", "n_gpus": "64"},
    "render": {"gpu": "rtx4090-24gb:100", "frames": "300", "frame_time_s": "1200", "spread": "0.4"},
}
# kind → the command of one row, and its figures beside the columns of the row.
COMMANDS = {
    "storage": (
        "storage --gpu h100-sxm-80gb --gpus 36 --workload unet3d --read-bandwidth 104GB/s",
        {"pred_samples_per_s": ("storage", "samples_per_s"), "pred_utilisation_pct": ("storage", "utilisation_pct")},
    ),
    "power": (
        "power --gpu h100-sxm-80gb --gpus 256 --pue 1.1",
        {
            "pred_node_kw": ("power", "node_kw"),
            "pred_node_high_kw": ("high", "node_kw"),
            "pred_site_mw": ("power", "site_mw"),
        },
    ),
    "run": (
        "run llama-3.1-8b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128 --layout dp64-mbs1-zero2 "
        "--tokens 1T --mtbf 20h",
        {
            "pred_days": ("run", "days"),
            "pred_goodput_low_pct": ("low", "goodput_pct"),
            "pred_mtbf_h": ("run", "mtbf_h"),
        },
    ),
    "hpl": ("hpc hpl --gpu mi250x --gpus 1024", {"pred_rate_tflops": ("tflops",), "pred_run_time_s": ("run_time_s",)}),
    "hpcg": ("hpc hpcg --gpu a100-sxm-40gb --gpus 64", {"pred_rate_high_tflops": ("tflops_high",)}),
    "render": (
        "render --gpu rtx4090-24gb:100 --frames 300 --frame-time 20min --spread 0.4",
        {"pred_makespan_days": ("makespan_days",), "pred_bound": ("bound",)},
    ),
}


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_a_row_is_what_the_command_answers(kind: str) -> None:
    [found] = evaluate_cluster(kind, [ROWS[kind]], CONTEXT)
    assert found["pred_error"] == ""
    assert set(KINDS[kind]) <= set(found)
    line, figures = COMMANDS[kind]
    answer = json.loads(gpucalc(*line.split(), "-f", "json").out)
    for column, path in figures.items():
        value = answer
        for part in path:
            value = value[part]
        assert found[column] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), column


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_a_row_does_not_depend_on_the_others_and_a_bad_one_says_why(kind: str) -> None:
    bad = {**ROWS[kind], "gpu": "h1000:3" if kind == "render" else "h1000"}
    together = evaluate_cluster(kind, [bad, ROWS[kind], {}], CONTEXT)
    alone = evaluate_cluster(kind, [ROWS[kind]], CONTEXT)
    assert together[1] == alone[0]
    assert "unknown GPU" in together[0]["pred_error"]
    assert together[2]["pred_error"]
    assert all(together[0][name] == "" for name in KINDS[kind] if name != "pred_error")


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("storage", {"read_gb_per_s": "fast"}, "not a quantity"),
        ("storage", {"workload": "unet4d"}, "unet3d"),
        ("power", {"load": "idle"}, "training, inference"),
        ("run", {"tokens": ""}, "tokens must be stated"),
        ("run", {"save": "often"}, "blocking, async, memory"),
        ("hpl", {"n_gpus": "0"}, "n_gpus is '0', expected 1 to"),
        ("render", {"frames": ""}, "frames must be stated"),
        ("render", {"order": "any"}, "random, longest-first"),
    ],
)
def test_a_mistake_is_a_sentence(kind: str, change: dict[str, str], said: str) -> None:
    [found] = evaluate_cluster(kind, [{**ROWS[kind], **change}], CONTEXT)
    assert said in found["pred_error"]


def test_units_of_cells_may_be_written() -> None:
    plain, written = evaluate_cluster(
        "storage", [ROWS["storage"], {**ROWS["storage"], "read_gb_per_s": "104GB/s"}], CONTEXT
    )
    assert plain == written


def test_a_file_through_the_process(tmp_path: Path) -> None:
    path = tmp_path / "stores.csv"
    path.write_text("name,gpu,n_gpus,workload,read_gb_per_s\na,h100,36,unet3d,104\nb,h100,36,unet3d,52\nc,h1000,1,,\n")
    ran = gpucalc("eval", str(path), "--kind", "storage")
    assert ran.status == 0
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [r["name"] for r in rows] == ["a", "b", "c"]
    assert float(rows[1]["pred_samples_per_s"]) < float(rows[0]["pred_samples_per_s"])
    assert rows[1]["pred_limiter"] == "read"
    assert "unknown GPU" in rows[2]["pred_error"]
    assert "1 row of 3" in ran.err


@pytest.mark.parametrize(
    ("kind", "cells", "said"),
    [
        ("power", {"gpu": "h100-sxm-80gb", "n_gpus": "8.5"}, "a whole number such as 8"),
        ("power", {"gpu": "h100-sxm-80gb", "n_gpus": "0"}, "expected 1 to"),
        ("power", {"gpu": "h100-sxm-80gb", "n_gpus": "8", "pue": "0.2"}, "expected 1 to 10"),
        ("storage", {"gpu": "h100-sxm-80gb", "n_gpus": "8", "cache_hit": "1.5"}, "expected 0 to 1"),
        ("storage", {"gpu": "h100-sxm-80gb", "n_gpus": "8", "read_gb_per_s": "inf"}, "0 or more"),
        ("hpl", {"gpu": "h100-sxm-80gb", "n_gpus": "nan"}, "expected 1 to"),
        ("render", {"gpu": "rtx4090:10", "frames": "0", "frame_time_s": "60"}, "expected 1 to"),
        (
            "run",
            {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": "8", "tokens": "many"},
            "expected a number",
        ),
    ],
)
def test_cells_keep_to_their_bounds(kind: str, cells: dict[str, str], said: str) -> None:
    [row] = evaluate_cluster(kind, [cells], Context(Database()))
    assert said in row["pred_error"]


def test_tokens_of_a_row_are_written_as_on_the_command_line() -> None:
    job = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": "64", "seq_len": "8192", "global_batch": "64"}
    job |= {"dp": "64", "micro_batch": "1", "zero_stage": "1"}
    short, whole = evaluate_cluster("run", [{**job, "tokens": t} for t in ("1T", "1e12")], Context(Database()))
    assert short == whole
    assert short["pred_error"] == ""


def test_a_family_of_one_system_has_the_spread_of_all_families() -> None:
    [row] = evaluate_cluster(
        "hpl", [{"gpu": "max-1550-128gb", "n_gpus": "296", "interconnect": "HDR"}], Context(Database())
    )
    assert row["pred_rate_low_tflops"] < row["pred_rate_tflops"] < row["pred_rate_high_tflops"]
    assert row["pred_rate_tflops"] == pytest.approx(0.348 * 52.4 * 296, rel=0.01)
