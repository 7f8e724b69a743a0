"""plan and explain through real processes."""

from __future__ import annotations

import csv
import io
import itertools
import json
from typing import Any

import pytest
from cli import JOB, gpucalc, shell

from gpucalc.cli.plan import COLUMNS_OUT
from gpucalc.layouts.label import Layout

PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096", "--global-batch", "64")
IMPOSSIBLE = ("plan", "llama-3.1-405b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "8192")
IMPOSSIBLE += ("--global-batch", "64")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_table_and_its_footer() -> None:
    ran = gpucalc(*PLAN)
    assert ran.status == 0
    heading, _, *lines = ran.out.splitlines()
    for title in ("layout", "step [", "tokens/s/GPU", "MFU [%]", "memory/GPU [GiB]", "fit", "recompute", "80 % band"):
        assert title in heading
    assert len(lines) == 10
    for fact in ("989.4 TFLOP/s (bf16, dense)", "full attention", "Gb/s per GPU", "rejected:", "layouts fit, of"):
        assert fact in ran.err


def test_json_holds_the_contract() -> None:
    found = json.loads(gpucalc(*PLAN, "-f", "json", "--top", "3").out)
    assert list(found)[:7] == ["job", "candidates", "evaluated", "feasible", "seconds", "rejected", "rows"]
    assert found["candidates"] >= found["evaluated"] >= found["feasible"] >= len(found["rows"]) == 3
    # In order but for ties: a layout close to its GPU's memory must be faster by more than a tie to come first.
    times = [row["pred_step_time_s"] for row in found["rows"]]
    assert all(one <= other * 1.03 for one, other in itertools.pairwise(times))
    for row in found["rows"]:
        assert row["tp"] * row["pp"] * row["dp"] * row["cp"] == 8
        assert row["pred_fit"] in {"fits", "risky"}


def test_csv_is_the_row_schema_and_its_labels_say_the_same() -> None:
    ran = gpucalc(*PLAN, "-f", "csv", "--top", "50")
    assert ran.out.split("\n")[0] == ",".join(COLUMNS_OUT)
    found = rows(ran.out)
    assert len(found) == 50
    assert len({row["layout"] for row in found}) == 50
    for row in found:
        layout = Layout.from_label(row["layout"])
        assert layout.label() == row["layout"]
        for name in ("tp", "pp", "dp", "cp", "ep", "micro_batch", "zero_stage", "schedule", "recompute"):
            assert str(layout[name]) == row[name], name


def test_the_same_answer_in_every_format_and_every_time() -> None:
    first = rows(gpucalc(*PLAN, "-f", "csv").out)
    assert rows(gpucalc(*PLAN, "-f", "csv").out) == first
    lines = [json.loads(line) for line in gpucalc(*PLAN, "-f", "jsonl").out.splitlines()]
    assert [line["layout"] for line in lines] == [row["layout"] for row in first]
    assert [repr(line["pred_step_time_s"]) for line in lines] == [row["pred_step_time_s"] for row in first]
    assert gpucalc(*PLAN, "-f", "md").out.startswith("|")


def test_plan_feeds_eval_and_eval_agrees() -> None:
    planned = gpucalc(*PLAN, "-f", "csv").out
    evaluated = rows(gpucalc("eval", stdin=planned).out)
    for before, after in zip(rows(planned), evaluated, strict=True):
        assert float(after["pred_step_time_s"]) == pytest.approx(float(before["pred_step_time_s"]), rel=1e-9)
        assert float(after["pred_peak_mem_gib"]) == pytest.approx(float(before["pred_peak_mem_gib"]), rel=1e-9)
    assert rows(gpucalc("eval", "-f", "csv", stdin=gpucalc(*PLAN, "-f", "json").out).out)[0]["pred_error"] == ""


def test_columns_top_and_header() -> None:
    ran = gpucalc(*PLAN, "-f", "csv", "--columns", "layout,pred_mfu_pct", "--top", "2", "--no-header")
    assert len(ran.out.splitlines()) == 2
    assert all(len(line.split(",")) == 2 for line in ran.out.splitlines())
    found = json.loads(gpucalc(*PLAN, "-f", "json", "--columns", "layout").out)
    assert list(found["rows"][0]) == ["layout"]
    assert "did you mean pred_mfu_pct" in gpucalc(*PLAN, "--columns", "pred_mfu").sentence()


@pytest.mark.parametrize(
    ("extra", "pinned"),
    [
        ("--set tp=2 --set pp=2", {"tp": "2", "pp": "2"}),
        ("--layout tp4-zero1-sp", {"tp": "4", "zero_stage": "1", "sequence_parallel": "yes"}),
        ("--zero 3 --micro-batch 1", {"zero_stage": "3", "micro_batch": "1"}),
        ("--recompute full", {"recompute": "full"}),
        ("--schedule gpipe --set pp=2", {"schedule": "gpipe"}),
    ],
)
def test_a_restriction_holds_in_every_row(extra: str, pinned: dict[str, str]) -> None:
    found = rows(gpucalc(*PLAN, *extra.split(), "-f", "csv").out)
    assert found
    for row in found:
        assert {name: row[name] for name in pinned} == pinned


def test_objectives() -> None:
    memory = [float(r["pred_peak_mem_gib"]) for r in rows(gpucalc(*PLAN, "--sort", "memory", "-f", "csv").out)]
    assert memory == sorted(memory)
    front = rows(gpucalc(*PLAN, "--objective", "pareto", "-f", "csv").out)
    pairs = [(float(r["pred_step_time_s"]), float(r["pred_peak_mem_gib"])) for r in front]
    assert all(a[0] <= b[0] and a[1] > b[1] for a, b in itertools.pairwise(pairs))


def test_nothing_fits() -> None:
    ran = gpucalc(*IMPOSSIBLE)
    assert (ran.status, ran.out) == (3, "")
    assert "no layout fits" in ran.err
    assert "nearest miss" in ran.err
    assert "GiB more than" in ran.err
    header = gpucalc(*IMPOSSIBLE, "-f", "csv")
    assert (header.status, header.out) == (3, ",".join(COLUMNS_OUT) + "\n")
    found = gpucalc(*IMPOSSIBLE, "-f", "json")
    assert found.status == 3
    document = json.loads(found.out)
    assert document["rows"] == []
    assert "nearest miss" in document["nearest_miss"]
    assert sum(document["rejected"].values()) > 0


def test_a_shape_by_hand() -> None:
    shape = ("--set", "layers=32", "--set", "hidden=4096", "--set", "heads=32", "--set", "vocab=51200")
    job = ("--gpu", "a100-sxm-80gb", "--gpus", "8", "--seq-len", "2048", "--global-batch", "64")
    by_name = gpucalc("plan", "custom", *shape, *job, "-f", "csv")
    assert by_name.status == 0
    assert gpucalc("plan", *shape, *job, "-f", "csv").out == by_name.out
    assert "a MODEL" in gpucalc("plan", "custom", *job).sentence()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "llama-3.1-71b", *JOB), "llama-3.1-70b"),
        (("plan", "llama-3.1-8b", *JOB, "--gpu", "h100-smx-80gb"), "h100-sxm-80gb"),
        (("plan", "llama-3.1-8b", *JOB, "--gpu", "v100-sxm2-32gb", "--precision", "fp8"), "does not support fp8"),
        (("plan", "llama-3.1-8b", *JOB, "--fabric", "ib-nrd"), "ib-ndr"),
        (("plan", "llama-3.1-8b", *JOB, "--profile", "megatronn"), "megatron"),
        (("plan", "llama-3.1-8b", *JOB, "--db", "/nowhere"), "/nowhere"),
        (("plan", "/nowhere/config.json", *JOB), "/nowhere/config.json"),
    ],
)
def test_names_that_are_not_known(arguments: tuple[str, ...], said: str) -> None:
    assert said in gpucalc(*arguments).sentence()


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("tp8-pp4-dp4-mbs1-zero1", "64"),
        ("tp3-mbs1-zero1", "tp"),
        ("tp1-pp64-mbs1-zero1", "layers"),
        ("tp64-mbs1-zero1-sp", "heads"),
    ],
)
def test_a_layout_that_cannot_be(label: str, said: str) -> None:
    assert said in gpucalc("explain", "llama-3.1-8b", *JOB, "--layout", label).sentence()


def test_explain_needs_a_layout() -> None:
    assert "which layout?" in gpucalc("explain", "llama-3.1-8b", *JOB).sentence()
    assert "standard input is empty" in gpucalc("explain", "-").sentence()
    assert "holds no row" in gpucalc("explain", "-", stdin="layout,tp\n").sentence()
    assert "tp is 'x'" in gpucalc("explain", "-", stdin="layout,tp\ntp8,x\n").sentence()


def explained(*arguments: str, **more: Any) -> dict[str, Any]:
    ran = gpucalc("explain", *arguments, "-f", "json", **more)
    assert ran.status == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def value(found: dict[str, Any], path: str) -> float:
    (term,) = [term for term in found["terms"] if term["path"] == path]
    return float(term["value"])


def test_explain_agrees_with_plan_by_label_and_by_row() -> None:
    planned = gpucalc(*PLAN, "-f", "csv", "--top", "1")
    row = rows(planned.out)[0]
    step = float(row["pred_step_time_s"])
    assert value(explained("-", stdin=planned.out), "time/step") == pytest.approx(step, rel=1e-9)
    assert value(explained(*PLAN[1:], "--layout", row["layout"]), "time/step") == pytest.approx(step, rel=1e-9)
    piped = gpucalc(*PLAN, "-f", "json", "--top", "1").out
    assert value(explained("-", stdin=piped), "time/step") == pytest.approx(step, rel=1e-9)


def test_explain_terms_hold_the_contract() -> None:
    found = explained("llama-3.1-70b", *JOB, "--layout", "tp8-pp4-dp2-mbs1-zero1-sp")
    for term in found["terms"]:
        assert {"path", "value", "unit", "formula", "arguments", "citation"} <= set(term)
    paths = {term["path"] for term in found["terms"]}
    assert {"memory/weights", "memory/total", "time/step", "metric/mfu"} <= paths


def test_explain_as_text_and_csv() -> None:
    arguments = ("explain", "llama-3.1-70b", *JOB, "--layout", "tp8-pp4-dp2-mbs1-zero1-sp")
    text = gpucalc(*arguments)
    assert text.status == 0
    assert "989.4 TFLOP/s" in text.out
    assert gpucalc(*arguments, "-f", "csv").out.startswith("path,value,unit,formula,arguments,citation")


def test_depth_limits_the_trees() -> None:
    arguments = ("explain", "llama-3.1-70b", *JOB, "--layout", "tp8-pp4-dp2-mbs1-zero1-sp")
    short = gpucalc(*arguments, "--depth", "1").out.splitlines()
    assert len(short) < len(gpucalc(*arguments).out.splitlines()) / 2
    assert any(line.startswith("time/step") for line in short)
    assert "--depth is '0'" in gpucalc(*arguments, "--depth", "0").sentence()


def test_a_label_that_states_dp_needs_no_number_of_gpus() -> None:
    job = ("--gpu", "h100-sxm-80gb", "--seq-len", "8192", "--global-batch", "128")
    by_label = explained("llama-3.1-70b", *job, "--layout", "tp8-pp4-dp2-mbs1-zero1-sp")
    by_count = explained("llama-3.1-70b", *JOB, "--layout", "tp8-pp4-mbs1-zero1-sp")
    assert value(by_label, "time/step") == value(by_count, "time/step")


def test_a_pipeline_of_plan_and_explain() -> None:
    line = " ".join(PLAN)
    ran = shell(f"set -o pipefail; $G {line} -f csv | $G explain - --set global_batch=128 | head -3")
    assert ran.status == 0
    assert "Traceback" not in ran.err
