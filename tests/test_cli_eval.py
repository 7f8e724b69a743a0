"""`gpucalc eval` through real processes: every form of rows in and out, one bad row among good ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cli import gpucalc, shell

from gpucalc.core.columns import KINDS

COLLECTIVE = (
    "id,gpu,n_gpus,nodes,op,bytes,mine\n"
    "a,h100-sxm-80gb,8,1,all_reduce,1048576,x\n"
    "b,h100-sxm-80gb,8,1,all_gather,1048576,\n"
)
APPENDED = KINDS["collective"]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def collective(*arguments: str, stdin: str | bytes = COLLECTIVE, **more: Any) -> Any:
    return gpucalc("eval", "--kind", "collective", *arguments, stdin=stdin, **more)


def test_csv_in_csv_out() -> None:
    ran = collective()
    assert (ran.status, ran.err) == (0, "")
    found = rows(ran.out)
    assert list(found[0]) == ["id", "gpu", "n_gpus", "nodes", "op", "bytes", "mine", *APPENDED]
    assert [r["mine"] for r in found] == ["x", ""]
    assert all(float(r["pred_time_us"]) > 0 and r["pred_error"] == "" for r in found)


def test_a_file_and_standard_input_are_alike(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("# said before\n" + COLLECTIVE.replace("\n", "\r\n"))
    assert collective(str(file), stdin="").out == collective("-").out


def test_json_lines_in_json_lines_out_with_values_untouched() -> None:
    records = [
        {
            "gpu": "h100-sxm-80gb",
            "n_gpus": 8,
            "nodes": 1,
            "op": "all_reduce",
            "bytes": 1048576,
            "mine": {"a": [1, None]},
        },
        {"gpu": "h100-sxm-80gb", "n_gpus": 8.0, "nodes": 1, "op": "all_reduce", "bytes": 1e6, "late": True},
    ]
    ran = collective(stdin="\n".join(map(json.dumps, records)))
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [{n: v for n, v in r.items() if n not in APPENDED} for r in found] == records
    assert all(isinstance(r["pred_time_us"], float) and r["pred_error"] in (None, "") for r in found)


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "table", "md"])
def test_every_format_and_full_precision(form: str) -> None:
    ran = collective("-f", form)
    assert ran.status == 0
    exact = rows(collective().out)[0]["pred_time_us"]
    if form in {"json", "jsonl"}:
        found = json.loads(ran.out) if form == "json" else json.loads(ran.out.splitlines()[0])
        assert repr((found[0] if form == "json" else found)["pred_time_us"]) == exact
    elif form == "csv":
        assert exact in ran.out
    else:
        assert "time [µs]" in ran.out


def test_columns_and_header() -> None:
    ran = collective("--columns", "id,pred_algorithm", "--no-header")
    assert [line.split(",")[0] for line in ran.out.splitlines()] == ["a", "b"]
    assert "did you mean pred_time_us" in collective("--columns", "pred_time").sentence()


def test_predictions_that_are_there_are_replaced() -> None:
    once = collective().out
    assert collective(stdin=once).out == once


def test_a_bad_row_says_why_and_the_others_go_on() -> None:
    broken = COLLECTIVE + "c,h100-smx,0,1,all_rduce,1e99,\n"
    ran = collective(stdin=broken)
    assert ran.status == 0
    assert ran.err == "gpucalc: 1 row of 3 could not be evaluated; pred_error says why\n"
    good, _, bad = rows(ran.out)
    assert good["pred_error"] == ""
    assert all(bad[name] == "" for name in APPENDED if name != "pred_error")
    assert all(word in bad["pred_error"] for word in ("h100-smx", "n_gpus", "all_rduce", "bytes"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "standard input is empty"),
        (b"gpu,gpu\na,b\n", "the header repeats 'gpu'"),
        (b"gpu,op\na\n", "line 2: 1 cells"),
        (b"gpu,op\n\xff,b\n", "not UTF-8"),
        (b"\x00\x01\x02", "NUL"),
        (b'{"gpu": ', "not JSON"),
        (b"[1]", "expected a JSON object"),
    ],
)
def test_a_file_that_is_no_rows_is_status_2(content: bytes, said: str) -> None:
    assert said in collective(stdin=content).sentence()


def test_a_header_alone_gives_a_header_alone() -> None:
    ran = collective(stdin="gpu,op\n")
    assert (ran.status, ran.out) == (0, ",".join(("gpu", "op", *APPENDED)) + "\n")


def test_a_slip_in_a_header_is_remarked() -> None:
    ran = collective(stdin=COLLECTIVE.replace("n_gpus", "n_gpu"))
    assert "column 'n_gpu' is carried through unread; did you mean n_gpus?" in ran.err


def test_a_late_column_cannot_join_a_header() -> None:
    lines = "\n".join(['{"op": "all_reduce"}'] * 5000 + ['{"new": 1}'])
    ran = collective("-f", "csv", stdin=lines)
    assert ran.status == 2
    assert "record 5001 has a column 'new'" in ran.err
    assert collective("-f", "jsonl", stdin=lines).out.count("\n") == 5001


def test_options_without_meaning_for_a_kind() -> None:
    assert "--fabric has no meaning with --kind collective" in collective("--fabric", "ib-ndr").sentence()


def test_a_pipeline_that_closes_early_is_silent(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    head, line, _ = COLLECTIVE.split("\n", 2)
    file.write_text(head + "\n" + (line + "\n") * 20_000)
    ran = shell(f"set -o pipefail; $G eval --kind collective {file} | head -1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("id,gpu")


TRAINING = (
    "id,model,gpu,n_gpus,tp,pp,dp,seq_len,micro_batch,global_batch,zero_stage,mine\n"
    "a,llama-3.1-8b,h100-sxm-80gb,8,1,1,8,4096,1,64,3,x\n"
    "b,llama-3.1-8b,h100-sxm-80gb,8,3,1,8,4096,1,64,3,y\n"
    "c,llama-3.1-70b,h100-sxm-80gb,8,1,1,8,8192,1,8,0,z\n"
)


def test_training_rows() -> None:
    ran = gpucalc("eval", stdin=TRAINING)
    assert ran.status == 0
    fits, wrong, oom = rows(ran.out)
    assert list(fits)[-len(KINDS["training"]) :] == list(KINDS["training"])
    assert fits["pred_fit"] == "fits"
    assert fits["mine"] == "x"
    assert float(fits["pred_step_time_low_s"]) < float(fits["pred_step_time_s"]) < float(fits["pred_step_time_high_s"])
    assert 20 < float(fits["pred_mfu_pct"]) < 70
    assert wrong["pred_error"]
    assert wrong["pred_step_time_s"] == ""
    assert oom["pred_fit"] == "oom"
    assert float(oom["pred_step_time_s"]) > 0
    assert float(oom["pred_peak_mem_gib"]) > 80
    assert "1 row of 3" in ran.err


def test_set_states_a_cell_of_every_row() -> None:
    ran = gpucalc("eval", "--set", "precision=fp8", "--set", "tp=1", stdin=TRAINING)
    fits, legal, _ = rows(ran.out)
    assert (fits["precision"], legal["tp"], legal["pred_error"]) == ("fp8", "1", "")
    assert "unknown column 'tpp'" in gpucalc("eval", "--set", "tpp=1", stdin=TRAINING).sentence()
    assert "--set has no meaning" in collective("--set", "tp=1").sentence()


def test_stating_the_causal_convention_halves_attention_in_mfu_only() -> None:
    full, halved = (rows(gpucalc("eval", *flag, stdin=TRAINING).out)[0] for flag in ((), ("--causal-flops",)))
    assert float(halved["pred_mfu_pct"]) < float(full["pred_mfu_pct"])
    assert halved["pred_step_time_s"] == full["pred_step_time_s"]


def test_gemm_rows() -> None:
    ran = gpucalc("eval", "--kind", "gemm", stdin="gpu,dtype,m,n,k\nh100-sxm-80gb,bfloat16,8192,8192,8192\n")
    (row,) = rows(ran.out)
    assert 1150 < float(row["pred_time_us"]) < 1700
    assert row["pred_bound"] == "compute"


def test_what_is_taken_for_an_unstated_cell_is_said() -> None:
    job = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch\n24,2048,16,a100-sxm-80gb,8,2048,64\n"
    ran = gpucalc("eval", stdin=job + job.splitlines()[1] + "\n")
    assert (ran.status, ran.err) == (0, "note: 2 rows: vocab is not stated; 51,200 is taken\n")
    shape = ("--set", "layers=24", "--set", "hidden=2048", "--set", "heads=16", "--gpu", "a100-sxm-80gb", "--gpus", "8")
    ran = gpucalc("explain", *shape, "--seq-len", "2048", "--global-batch", "64", "--layout", "dp8", "--depth", "1")
    assert (ran.status, ran.err) == (0, "note: vocab is not stated; 51,200 is taken\n")
