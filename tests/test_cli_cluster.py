"""run, storage, power and claims as processes: formats, explanations, statuses, and sentences for bad input."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
import sys

import pytest
from cli import Ran, gpucalc
from test_imports import _loaded

from gpucalc.cli import main

JOB = "llama-3.1-70b --gpu h100-sxm-80gb --gpus 256 --seq-len 8192 --global-batch 256 --layout tp4-pp4-mbs1-zero1-sp"
RUN = f"run {JOB} --tokens 1T"
STORAGE = "storage --gpu h100-sxm-80gb --gpus 36 --workload unet3d --read-bandwidth 104GB/s"
POWER = "power --gpu h100-sxm-80gb --gpus 256"


def ask(line: str, *more: str) -> Ran:
    """What a line answers, in this process: starting one for each line would take minutes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = sys.argv
    sys.argv = ["gpucalc", *shlex.split(line), *more]
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as leave:
        status = int(leave.code or 0)
    finally:
        sys.argv = before
    out.flush()
    err.flush()
    return Ran(status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", [f"{RUN} --pue 0.9", POWER])
def test_a_process_says_the_same(line: str) -> None:
    here, there = ask(line), gpucalc(*shlex.split(line))
    assert (here.status, here.out, here.err) == (there.status, there.out, there.err)


@pytest.mark.parametrize(
    "line", [RUN, STORAGE, POWER, f"power {JOB}", f"storage {JOB}", "claims h100-fp16 nvlink-pcie"]
)
def test_every_format_says_the_same(line: str) -> None:
    table, document = ask(line), ask(line, "-f", "json")
    assert table.status == document.status == 0, table.err + document.err
    whole = json.loads(document.out)
    rows = list(csv.DictReader(io.StringIO(ask(line, "-f", "csv").out)))
    lines = [json.loads(text) for text in ask(line, "-f", "jsonl").out.splitlines()]
    assert len(rows) == len(lines)
    assert ask(line, "-f", "md").out.startswith("|")
    if line.startswith("claims"):
        assert [r["verdict"] for r in rows] == [r["verdict"] for r in whole]
        return
    figures = whole[line.split()[0]]
    assert {r["quantity"] for r in rows} <= set(figures)
    for row in rows:
        assert float(row["value"]) == pytest.approx(figures[row["quantity"]], rel=1e-12)
    assert whole["terms"]
    assert "Traceback" not in table.err


def test_the_product_of_a_run_is_printed_and_multiplies() -> None:
    ran = ask(RUN)
    assert "% allocated ×" in ran.out
    assert "half the save time" in ran.out
    assert "half the failure rate" in ran.out
    assert "half the restart time" in ran.out
    p = json.loads(ask(RUN, "-f", "json").out)["product"]
    product = p["allocated"] * p["busy"] * p["goodput"] * (1 - p["straggler"]) * p["mfu"]
    assert p["yield"] == pytest.approx(product, rel=1e-12)


def test_columns_and_no_header() -> None:
    ran = ask(RUN, "-f", "csv", "--columns", "quantity,value", "--no-header")
    assert ran.status == 0
    assert ran.out.splitlines()[0].startswith("days,")


@pytest.mark.parametrize("line", [RUN, STORAGE, f"power {JOB}"])
def test_an_explanation_shows_formulas_and_sources(line: str) -> None:
    ran = ask(line, "--explain")
    assert ran.status == 0, ran.err
    assert "with " in ran.out
    assert "[1]" in ran.out


def test_a_run_without_layout_takes_the_planners() -> None:
    ran = ask("run llama-3.1-8b --gpu h100-sxm-80gb --gpus 64 --tokens 1T -f json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert any(found["layout"][:3] in note and "planner" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("line", "said", "status"),
    [
        (f"run {JOB}", "--tokens 15T", 2),
        (f"{RUN} --mtbf -3h", "must be positive", 2),
        (f"{RUN} --mtbf 3", "has no unit", 2),
        (f"{RUN} --mtbf 3h --failure-rate 0.004", "say the same", 2),
        (f"{RUN} --availability 1.0", "below 1", 2),
        (f"{RUN} --availability 100%", "below 1", 2),
        (f"{RUN} --pue 0.9", "1 or more", 2),
        (f"{RUN} --write-bandwidth 0GB/s", "must be positive", 2),
        (f"{RUN} --read-bandwidth -1GB/s", "must be positive", 2),
        (f"{RUN} --price -2", "above 0", 2),
        (f"{RUN} --price nan", "above 0", 2),
        (f"{RUN} --failure-rate 0", "above 0", 2),
        (f"{RUN} --carbon-intensity -1", "0 or more", 2),
        (f"{RUN} --grid atlantis", "unknown grid", 2),
        (f"{RUN} --save sometimes", "known: async, blocking", 2),
        (f"{RUN} --busy 2", "at most 1", 2),
        (f"{RUN} --slow-gpu 100%", "below 1", 2),
        (f"run {JOB} --tokens many", "expected a number", 2),
        (f"run {JOB} --tokens -1T", "more than 0", 2),
        (f"{RUN} --mtbf 10min --save blocking --write-bandwidth 1GB/s", "makes no progress", 3),
        (f"{RUN} --mtbf 5min --restart 2h", "makes no progress", 3),
        ("run llama-3.1-405b --gpu h100-sxm-80gb --gpus 8 --tokens 1T", "no layout fits", 3),
        ("storage --gpu h100-sxm-80gb --workload image", "--gpus 64", 2),
        ("storage --gpu h100-sxm-80gb --gpus 8 --workload imag", "did you mean image", 2),
        (f"{STORAGE} --iops 0", "more than 0", 2),
        (f"{STORAGE} --cache-hit 1.1", "at most 1", 2),
        (f"{STORAGE} --cache 1TB", "--dataset", 2),
        (f"{STORAGE} --layout tp8", "without a MODEL", 2),
        (f"{POWER} --cap 900W", "above the limit", 2),
        (f"{POWER} --cap 50W", "draws idle", 2),
        (f"{POWER} --cap 700", "has no unit", 2),
        (f"{POWER} --pue 0", "1 or more", 2),
        (f"{POWER} --years 0", "above 0", 2),
        (f"{POWER} --interest 1", "below 1", 2),
        (f"{POWER} --utilisation 1.5", "at most 1", 2),
        ("power --gpu h1000 --gpus 8", "unknown GPU", 2),
        ("claims h100-fp61", "did you mean", 2),
        ("claims h100-fp16 gpu=h100", "cannot be mixed", 2),
        ("claims gpu=h100 tflops=1", "missing precision", 2),
        ("validate --kind goodpu", "did you mean goodput", 2),
    ],
)
def test_bad_input_is_one_sentence(line: str, said: str, status: int) -> None:
    assert said in ask(line).sentence(status)


@pytest.mark.parametrize("kind", ["goodput", "storage", "energy"])
def test_validate_reports_a_kind(kind: str) -> None:
    ran = ask(f"validate --kind {kind} -f json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["kind"] == kind
    assert found["targets"]
    assert found["by_group"][0]["rows"] > 5
    assert ask(f"validate --kind {kind}").status == 0


def test_own_rows_are_validated(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_text(
        "org,system,workload,gpu,n_gpus,hosts,samples_per_s,read_gb_per_s\n"
        "me,x,unet3d,h100-sxm-80gb,6,1,100,15\nme,y,unet3d,h100-sxm-80gb,6,1,,15\n"
    )
    assert "lacks samples_per_s" in ask(f"validate --kind storage {path}").sentence()
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    ran = ask(f"validate --kind storage {path} -f json")
    assert json.loads(ran.out)["by_group"][0]["bias_pct"] == pytest.approx(100 * (15e9 / 146600628 / 100 - 1))


@pytest.mark.parametrize("command", ["run", "storage", "power", "claims"])
def test_help_loads_nothing_heavy(command: str) -> None:
    assert not _loaded(command, "--help") & {"numpy", "pandas", "tabulate", "matplotlib"}


@pytest.mark.parametrize("line", [RUN, STORAGE, POWER])
def test_a_question_loads_no_pandas(line: str) -> None:
    assert not _loaded(*shlex.split(line)) & {"pandas", "matplotlib", "pyarrow", "scipy"}


def test_claims_of_figures_need_no_numpy() -> None:
    assert not _loaded("claims", "h100-fp16", "nvlink-pcie") & {"numpy", "pandas"}


def test_a_row_of_plan_is_taken_from_standard_input() -> None:
    plan = gpucalc(
        *shlex.split("plan llama-3.1-8b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128"),
        "-f",
        "csv",
        "--top",
        "1",
    )
    row = next(csv.DictReader(io.StringIO(plan.out)))
    for line in ("run - --tokens 1T -f json", "power - -f json"):
        ran = gpucalc(*shlex.split(line), stdin=plan.out)
        assert ran.status == 0, ran.err
        assert json.loads(ran.out)["layout"].split("-")[0] == row["layout"].split("-")[0]


def test_a_batch_that_is_not_stated_suits_the_layout() -> None:
    for layout, replicas in (("dp1024-mbs1-zero3", 1024), ("tp4-dp24-mbs2-zero1-sp", 48)):
        notes = json.loads(ask(f"run llama-3.1-8b --gpu h100 --tokens 1T --layout {layout} -f json").out)["notes"]
        said = next(note for note in notes if "--global-batch" in note)
        assert int(said.split(";")[1].split()[0].replace(",", "")) % replicas == 0
