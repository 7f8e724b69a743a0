"""`hw calibrate` and the calibration that `hw show` tells, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import gpucalc
from nccl_log import nccl_log

DATA = Path(__file__).parent / "data" / "calibrate"
LOG = str(DATA / "nccl_all_reduce.log")
GPU = ("--gpu", "h100-sxm-80gb")


def test_a_log_becomes_an_overlay_that_predictions_heed(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    ran = gpucalc("hw", "calibrate", *GPU, LOG, "-o", str(overlay))
    assert ran.status == 0, ran.err
    assert "Median error with the constants before and after" in ran.out
    assert "nvls_efficiency" in ran.out
    assert f"use it with --db {overlay}" in ran.err
    assert "link_step_latency stays as it was" in ran.err
    question = ("comm", "all_reduce", "1KiB", *GPU, "--gpus", "8", "-f", "json")
    before, after = gpucalc(*question), gpucalc(*question, "--db", str(overlay))
    times = [json.loads(r.out)[0]["time_us"] for r in (before, after)]
    assert abs(times[1] / 22.13 - 1) < 0.05  # what the log measured
    assert abs(times[0] / 22.13 - 1) > 0.1
    assert gpucalc("hw", "check", str(overlay)).status == 0


def test_what_is_measured_of_links_reaches_a_plan(tmp_path: Path) -> None:
    times = [(2**i, 20 + 2**i * 0.875 / 90e3) for i in range(10, 33)]  # 90 GB/s, a fifth of the links
    path = tmp_path / "all_gather.log"
    path.write_text(nccl_log("all_gather", 8, times))
    ran = gpucalc("hw", "calibrate", *GPU, str(path), "-o", str(tmp_path / "overlay"))
    assert ran.status == 0, ran.err
    assert "far below what such links reach" in ran.err
    job = ("--set", "model=llama-3.1-8b", "--gpus", "8", "--seq-len", "4096", "--global-batch", "64")
    question = ("explain", *GPU, *job, "--layout", "tp8-mbs1-sp", "-f", "json")
    fast, slow = gpucalc(*question), gpucalc(*question, "--db", str(tmp_path / "overlay"))
    assert fast.status == slow.status == 0, fast.err + slow.err
    assert fast.out != slow.out


def test_json_holds_constants_errors_and_warnings() -> None:
    ran = gpucalc("hw", "calibrate", *GPU, LOG, "-f", "json")
    found = json.loads(ran.out)
    assert found["gpu"] == "h100-sxm-80gb"
    constant = next(c for c in found["constants"] if c["constant"] == "nvls_efficiency")
    assert constant["scope"] == "h100-sxm-80gb"
    assert 0 < constant["after"] < 1
    assert constant["source"].startswith("nccl_all_reduce.log; 20")
    assert {"fit_before", "fit_after", "held_out_before", "held_out_after"} <= set(found["errors"][0])
    assert found["warnings"]
    assert "nothing written" in ran.err


def test_csv_has_one_constant_a_row() -> None:
    ran = gpucalc("hw", "calibrate", *GPU, LOG, "-f", "csv", "--columns", "constant,before,after")
    lines = ran.out.splitlines()
    assert lines[0] == "constant,before,after"
    assert any(line.startswith("collective_startup,4.41e-06,") for line in lines)


def test_logs_without_a_list_of_ranks_take_options(tmp_path: Path) -> None:
    text = Path(LOG).read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if "Rank" not in line and "_perf" not in line)
    path = tmp_path / "table.txt"
    path.write_text(bare)
    ran = gpucalc("hw", "calibrate", *GPU, "--op", "all-reduce", "--gpus", "8", "--nodes", "1", str(path), "-f", "json")
    whole = gpucalc("hw", "calibrate", *GPU, LOG, "-f", "json")
    values = [[c["after"] for c in json.loads(r.out)["constants"]] for r in (ran, whole)]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "missing: --gpu and a LOG"),
        (("--gpu", "h100"), "missing: --gpu and a LOG"),
        (("--gpu", "h1000-smx", LOG), "unknown GPU"),
        ((*GPU, "no/such.log"), "cannot read 'no/such.log'"),
        ((*GPU, str(DATA)), "is a directory"),
        ((*GPU, LOG, "--gpus", "16"), "lists 8 ranks and --gpus is 16"),
        ((*GPU, LOG, "--nodes", "x"), "--nodes is 'x'"),
        ((*GPU, LOG, "--op", "allreduce_"), None),
        ((*GPU, LOG, "--op", "all_gather"), "leave --op out"),
        ((*GPU, LOG, "--fabric", "ib-ndx"), "ib-ndr"),
        ((*GPU, LOG, "-o", LOG), "is a file"),
        ((*GPU, LOG, "-o", "/proc/nowhere"), "cannot write the overlay"),
        ((*GPU, str(Path(__file__))), "no table of nccl-tests"),
        ((*GPU, LOG, "--db", "/no/such/folder"), "does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_2(arguments: tuple[str, ...], said: str | None) -> None:
    ran = gpucalc("hw", "calibrate", *arguments)
    if said is None:  # a spelling that is understood
        assert ran.status == 0
    else:
        assert said in ran.sentence()


def test_show_tells_the_calibration_in_force(tmp_path: Path) -> None:
    shipped = json.loads(gpucalc("hw", "show", "h100-sxm-80gb", "-f", "json").out)["calibration"]
    assert shipped["gemm bf16"]["provenance"] == "measured"
    assert shipped["collectives"]["network_efficiency"]["provenance"] == "measured"
    assert shipped["collectives"]["nvls_efficiency"]["scope"] == "nvlink4"
    gpucalc("hw", "calibrate", *GPU, LOG, "-o", str(tmp_path / "overlay"))
    own = json.loads(gpucalc("hw", "show", "h100-sxm-80gb", "-f", "json", "--db", str(tmp_path / "overlay")).out)
    found = own["calibration"]["collectives"]["nvls_efficiency"]
    assert found["scope"] == "h100-sxm-80gb"
    assert found["source"].startswith("nccl_all_reduce.log")
    said = gpucalc("hw", "show", "mi300x").out
    assert "calibration.collectives.link_efficiency" in said
    assert "(measured: xgmi" in said
