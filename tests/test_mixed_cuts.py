"""Plans on several kinds of GPU, cut by cut: agreement with one kind, what decides, every command that takes one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli import gpucalc
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.questions import mixed_cuts as m
from gpucalc.questions.mixed import plan_mixed
from gpucalc.questions.mixed_use import evaluate_mixed, stated_step
from gpucalc.validate.workloads import more_report, shipped

DB = Database()
CONTEXT = Context(DB)
JOB = {"model": "llama-2-7b", "seq_len": 4096, "global_batch": 64, "micro_batch": 1, "zero_stage": 1}
CUTS = "12:a100-sxm-80gbx4*2 | 20:h100-sxm-80gbx4*2"
LINE = "llama-2-7b --seq-len 4096 --global-batch 64"


def step(text: str, **more: object) -> m.MixedStep:
    return m.mixed_step({**JOB, **more}, m.read_cuts(text, DB), CONTEXT)


@pytest.mark.parametrize(
    "text", [CUTS, "16:a100-sxm-80gbx2+h100-sxm-80gbx2*3 | 16:h100-sxm-80gbx4*4", "32:gh200-96gbx1"]
)
def test_a_plan_is_read_as_it_is_written(text: str) -> None:
    cuts = m.read_cuts(text, DB)
    assert cuts.text() == text
    assert m.read_cuts(cuts.text(), DB) == cuts
    assert sum(cuts.gpus.values()) == sum(member.size for stage in cuts.stages for member in stage.members)
    assert sum(cuts.classes().values()) == cuts.replicas


@pytest.mark.parametrize("layout", [(4, 2, 2), (2, 4, 2), (1, 1, 16), (8, 1, 2)])
def test_one_kind_cut_evenly_is_the_estimate_of_one_kind(layout: tuple[int, int, int]) -> None:
    tp, pp, dp = layout
    text = " | ".join([f"{32 // pp}:h100-sxm-80gbx{tp}*{dp}"] * pp)
    cells = {**JOB, "tp": tp, "pp": pp, "dp": dp, "gpu": "h100-sxm-80gb", "n_gpus": 16, "vpp": 1}
    [alone] = predict([resolve({**cells, "schedule": "1f1b" if pp > 1 else "none"}, CONTEXT)])
    found = step(text)
    row = m.mixed_row(found)
    # Stages before the last have no head; the estimate of one kind counts the slowest for all of them.
    assert row["pred_step_time_s"] == pytest.approx(alone["pred_step_time_s"], rel=0.03)
    assert row["pred_mfu_pct"] == pytest.approx(alone["pred_mfu_pct"], rel=0.03)
    assert row["pred_peak_mem_gib"] == pytest.approx(alone["pred_peak_mem_gib"], rel=1e-6)


def test_layers_moved_to_the_faster_kind_speed_the_step_until_it_is_the_slower_one() -> None:
    times = [step(f"{n}:a100-sxm-80gbx4*2 | {32 - n}:h100-sxm-80gbx4*2").step_time for n in (4, 8, 10, 16, 24)]
    best = times.index(min(times))
    assert 0 < best < 3
    assert times[best:] == sorted(times[best:])
    assert times[: best + 1] == sorted(times[: best + 1], reverse=True)


def test_stages_and_replicas_mix_kinds_and_the_slowest_decides() -> None:
    slow, fast = (step(f"32:{key}x4*2").step_time for key in ("a100-sxm-80gb", "h100-sxm-80gb"))
    both = step("32:a100-sxm-80gbx4+h100-sxm-80gbx4").step_time
    assert fast < both
    assert both == pytest.approx(slow, rel=0.05)
    shared = step("32:a100-sxm-80gbx4+h100-sxm-80gbx4", micro_batches={"a100-sxm-80gb": 20, "h100-sxm-80gb": 44})
    assert shared.step_time < both
    assert sorted(shared.micro_batches.values()) == [20, 44]


def test_the_rate_between_kinds_counts_where_they_meet() -> None:
    fast, slow = (step(CUTS, between_gbps=rate).step_time for rate in (200.0, 1.0))
    assert slow > fast * 1.05
    alone = "16:h100-sxm-80gbx4*2 | 16:h100-sxm-80gbx4*2"
    assert step(alone, between_gbps=1.0).step_time == step(alone).step_time


@settings(max_examples=examples(10), deadline=None)
@given(first=st.integers(1, 31), order=st.booleans())
def test_no_plan_is_faster_than_its_parts_allow(first: int, order: bool) -> None:
    one, two = ("a100-sxm-80gb", "h100-sxm-80gb") if order else ("h100-sxm-80gb", "a100-sxm-80gb")
    found = step(f"{first}:{one}x4*2 | {32 - first}:{two}x4*2")
    slowest = max(v for n, v in found.columns.items() if n.endswith("_time"))
    assert found.step_time >= 32 * slowest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("16:a100-sxm-80gbx4 | 20:h100-sxm-80gbx4", "36 layers, the model has 32"),
        ("16:a100-sxm-80gbx4*2 | 16:h100-sxm-80gbx4", "2, 1 replicas"),
        ("a100-sxm-80gbx4", "layers of a stage"),
        ("32:a100-sxm-80gb", "h100-sxm-80gbx4"),
        ("32:h1000x4", "unknown GPU"),
        ("0:h100-sxm-80gbx4", "layers of a stage"),
    ],
)
def test_plans_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step(text)


def test_shares_that_do_not_make_up_the_batch() -> None:
    with pytest.raises(UsageError, match="make up 30"):
        step("32:a100-sxm-80gbx4+h100-sxm-80gbx4", micro_batches={"a100-sxm-80gb": 10, "h100-sxm-80gb": 20})
    with pytest.raises(UsageError, match="says nothing of h100"):
        step("32:a100-sxm-80gbx4+h100-sxm-80gbx4", micro_batches={"a100-sxm-80gb": 64})


@pytest.mark.parametrize("stated", [{}, {"tp": 2, "pp": 2}, {"cp": 2}, {"dp": 4, "sequence_parallel": True}])
def test_every_plan_is_written_cut_by_cut_and_costs_what_plan_said(stated: dict[str, object]) -> None:
    parts = {"v100-sxm2-32gb": 8, "a100-sxm-80gb": 8}
    job = {n: v for n, v in JOB.items() if n not in {"micro_batch", "zero_stage"}} | stated
    rows = plan_mixed(job, parts, CONTEXT, top=6).rows
    assert {row["manner"] for row in rows} <= {"pipeline", "data-parallel"}
    steps = [row["pred_step_time_s"] for row in rows if row["pred_fit"] == "fits"]
    assert steps == sorted(steps)
    found = stated_step(job, CONTEXT, parts=parts)
    assert dict(found.cuts.gpus) == parts
    assert found.step_time == rows[0]["pred_step_time_s"]
    answered = evaluate_mixed(
        [{n: str(v) for n, v in {**JOB, **row}.items() if "pred" not in n} for row in rows], CONTEXT
    )
    assert [r["pred_step_time_s"] for r in answered] == [row["pred_step_time_s"] for row in rows]
    assert all(row["cp"] == stated.get("cp", row["cp"]) for row in rows)


def test_experts_of_a_mixed_plan_stay_where_the_plan_has_them() -> None:
    job = {"model": "mixtral-8x7b", "seq_len": 4096, "global_batch": 64}
    [best] = plan_mixed(job, {"a100-sxm-80gb": 16, "h100-sxm-80gb": 16}, CONTEXT, top=1).rows
    found = stated_step(job, CONTEXT, parts={"a100-sxm-80gb": 16, "h100-sxm-80gb": 16})
    assert best["ep"] > 1
    assert {job.cells["ep"] for job in found.jobs.values()} == {best["ep"]}


def test_context_parallelism_shares_the_gpus_of_a_stage() -> None:
    plain, shared = step("32:h100-sxm-80gbx4*2"), step("32:h100-sxm-80gbx4*2", cp=2)
    assert plain.n_gpus == shared.n_gpus == 8
    assert next(iter(shared.jobs.values())).cells["tp"] == 2
    with pytest.raises(UsageError, match="cp=3 does not divide"):
        step("32:h100-sxm-80gbx4*2", cp=3)


def test_the_order_of_published_layouts() -> None:
    """I16: mixed stages and replicas against Sailor and AMP; one of four clusters is told apart badly, and said so."""
    report = more_report("hetero", shipped("hetero"), DB)
    orders = {line["target"]: line["left_out_pct"] for line in report["targets"]}
    assert orders["order of layouts, mean of the clusters"] >= 60
    assert orders["order of pipelines, mean of the clusters"] >= 60
    missed = {name for name, found in orders.items() if found < 60}
    assert missed <= {f"order of 29 {what}: unequal GPUs, V100 and T4 (AMP)" for what in ("layouts", "pipelines")}


@pytest.mark.parametrize("command", ["explain", "run --tokens 1T", "power", "export --to megatron"])
def test_a_label_leaves_the_rest_of_a_mixed_plan_to_the_search(command: str) -> None:
    verb, *more = command.split()
    ran = gpucalc(
        verb, *LINE.split(), "--gpu", "v100-sxm2-32gb:8,a100-sxm-80gb:8", "--layout", "tp2-pp2-mbs1-zero1", *more
    )
    assert ran.status == 0
    assert ran.out


def test_every_command_takes_a_mixed_plan(tmp_path: Path) -> None:
    explained = json.loads(gpucalc("explain", *LINE.split(), "--stages", CUTS, "-f", "json").out)
    paths = {term["path"] for term in explained["terms"]}
    assert {"time/step", "time/pipelines", "replica/1/slowest"} <= paths
    seconds = next(t["value"] for t in explained["terms"] if t["path"] == "time/step")
    run = json.loads(gpucalc("run", *LINE.split(), "--stages", CUTS, "--tokens", "1T", "-f", "json").out)
    assert run["n_gpus"] == 16
    assert run["run"]["useful_days"] * 86400 == pytest.approx(1e12 / (64 * 4096) * seconds, rel=1e-6)
    assert run["run"]["cost_usd"] > 0
    power = json.loads(gpucalc("power", *LINE.split(), "--stages", CUTS, "-f", "json").out)
    assert power["all"]["site_mw"] == pytest.approx(sum(kind["site_mw"] for kind in power["kinds"]))
    assert power["all"]["j_per_token"] == pytest.approx(power["all"]["site_mw"] * 1e6 * seconds / (64 * 4096), rel=1e-6)
    export = gpucalc("export", *LINE.split(), "--stages", CUTS, "--to", "megatron")
    assert export.status == 0
    assert f"'E{'t' * 12}|{'t' * 20}L'" in export.out
    assert f"{seconds:.4g} s a step" in export.out
    assert "stage 1: 12 layers on 8 x a100-sxm-80gb" in export.out
    path = tmp_path / "plans.csv"
    path.write_text(f'model,seq_len,global_batch,stages\nllama-2-7b,4096,64,"{CUTS}"\nllama-2-7b,4096,64,\n')
    ran = gpucalc("eval", str(path), "--kind", "mixed")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert float(rows[0]["pred_step_time_s"]) == pytest.approx(seconds, rel=1e-6)
    assert "stages must be stated" in rows[1]["pred_error"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"export {LINE} --stages '12:a100-sxm-80gbx4|20:h100-sxm-80gbx4' --to torchtitan", "layers of each stage"),
        (f"explain {LINE} --stages '12:a100-sxm-80gbx4|20:h100-sxm-80gbx4' --layout tp4", "leave --layout out"),
        (f"power {LINE} --stages '32:a100-sxm-80gbx4' --cap 300W", "one kind of GPU"),
        (f"explain {LINE} --stages '32:h100-sxm-80gbx4' --set pp=4", "leave pp out"),
        (f"explain {LINE} --stages '32:h100-sxm-80gbx4' --gpus 8", "names its GPUs"),
        (f"explain {LINE} --stages '32:h100-sxm-80gbx4' --gpu a100-sxm-80gb", "leave --gpu a100-sxm-80gb out"),
        (f"explain {LINE} --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --gpus 12", "which has 16 GPUs"),
        (f"run {LINE} --gpu a100-sxm-80gb --gpus 8 --tokens 1T --between 100", "of several kinds of GPU"),
        (f"plan {LINE} --gpu a100-sxm-80gb:8", "write --gpu a100-sxm-80gb --gpus 8"),
        ("plan resnet-50 --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --global-batch 64", "not modelled"),
        (f"plan {LINE} --gpu a100-sxm-80gb --gpus 8 --between 100", "--gpu names one"),
        (f"explain {LINE} --gpu a100-sxm-80gb:8,h100-sxm-80gb:8 --stages '32:a100-sxm-80gbx4'", "names 8"),
    ],
)
def test_what_a_mixed_plan_cannot_be_asked(line: str, said: str) -> None:
    import shlex

    assert said in gpucalc(*shlex.split(line)).sentence()
