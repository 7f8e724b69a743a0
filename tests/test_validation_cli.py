"""`gpucalc validate` through real processes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli import gpucalc

OWN = (
    "# a log of runs\n"
    "id,model,gpu,n_gpus,tp,pp,micro_batch,global_batch,seq_len,measured_step_time_s,measured_peak_mem_gib,mem_counter,measured_oom\n"
    "a,llama-3.1-8b,h100-sxm-80gb,8,1,1,1,64,8192,9.5,,,\n"
    "b,llama-3.1-8b,h100-sxm-80gb,8,2,1,1,64,8192,10.4,60,reserved,\n"
    "c,llama-3.1-8b,h100-sxm-80gb,8,1,2,1,64,8192,10.1,,,\n"
    "d,llama-3.1-70b,h100-sxm-80gb,8,1,1,1,64,8192,,,,yes\n"
    "e,llama-3.1-8b,h1000,8,1,1,1,64,8192,9.5,,,\n"
)


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


def test_shipped_measurements_as_json() -> None:
    ran = gpucalc("validate", "-f", "json", "--worst", "3")
    assert ran.status == 0
    found = json.loads(ran.out)
    assert found["rows"] >= 750
    assert 0 < found["balanced_pct"]["shipped"] < 15
    assert len(found["worst"]) == 3
    assert abs(found["worst"][0]["error_pct"]) >= abs(found["worst"][2]["error_pct"])
    assert found["worst"][0]["notes"]
    assert {"limit_random_pct", "limit_left_out_pct", "shipped_pct", "missed"} <= set(found["targets"][0])
    assert [line["group"] for line in found["by_family"]][:2] == [
        "dense Megatron-type, 16 bit",
        "Megatron-Core FP8/FP4",
    ]
    assert "mean over sources" in ran.err


def test_own_rows_make_one_group(own: str) -> None:
    ran = gpucalc("validate", own, "-f", "json")
    assert ran.status == 0
    found = json.loads(ran.out)
    assert (found["rows"], found["timed"], found["unpredicted"]) == (5, 4, 1)
    assert [line["group"] for line in found["by_source"]] == ["your rows"]
    assert found["targets"] == []
    assert set(found["balanced_pct"]) == {"shipped"}
    assert found["fit"][0]["ended_oom"] == 1
    assert found["ranking"][-1]["rows"] == 3
    assert "h1000" in found["no_prediction"][0]["pred_error"]
    assert "1 rows could not" in ran.err or "could not be evaluated" in ran.err


def test_csv_is_one_table(own: str) -> None:
    ran = gpucalc("validate", own, "-f", "csv", "--by", "gpu")
    lines = list(csv.DictReader(io.StringIO(ran.out)))
    assert {"by_gpu", "memory", "fit", "worst", "no_prediction"} <= {line["section"] for line in lines}
    assert "by_source" not in {line["section"] for line in lines}
    by_gpu = [line for line in lines if line["section"] == "by_gpu"]
    assert float(by_gpu[0]["median_pct"]) > 0


@pytest.mark.parametrize("form", ["table", "md"])
def test_tables_for_people(own: str, form: str) -> None:
    ran = gpucalc("validate", own, "-f", form)
    assert ran.status == 0
    assert "Step time by source" in ran.out
    assert "Peak memory" in ran.out
    assert ran.out.endswith("\n")


@pytest.mark.parametrize("kind", ["gemm", "attention", "collective"])
def test_kernels(kind: str) -> None:
    ran = gpucalc("validate", "--kind", kind, "-f", "json", "--worst", "2")
    found = json.loads(ran.out)
    assert found["by_group"][0]["group"] == "all"
    assert found["by_group"][0]["rows"] > 100
    assert found["by_group"][0]["median_pct"] < 7
    assert len(found["worst"]) == 2


def test_standard_input_is_read() -> None:
    ran = gpucalc("validate", "-", "-f", "json", stdin=OWN)
    assert json.loads(ran.out)["rows"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "sorce"), "source"),
        (("--kind", "gem"), "gemm"),
        (("--worst", "-1"), "--worst"),
        (("-f", "yaml"), "--format"),
        (("--plot", "x.txt"), ".png"),
        (("--kind", "gemm", "--plot", "x.png"), "--plot"),
        (("nowhere.csv",), "nowhere.csv"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str) -> None:
    assert said in gpucalc("validate", *arguments).sentence()


def test_rows_without_measurements_are_a_mistake() -> None:
    assert "measured_step_time_s" in gpucalc("validate", "-", stdin="gpu,n_gpus\nh100,8\n").sentence()
    assert "time_us" in gpucalc("validate", "-", "--kind", "gemm", stdin="gpu,m,n,k\nh100,8,8,8\n").sentence()


def test_plot(own: str, tmp_path: Path) -> None:
    target = tmp_path / "picture.png"
    ran = gpucalc("validate", own, "--plot", str(target))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "gpucalc[plot]" in ran.sentence()
    else:
        assert ran.status == 0
        assert target.read_bytes().startswith(b"\x89PNG")
