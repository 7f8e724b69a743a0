"""`gpucalc learn`: what a cluster's own runs teach, on made-up clusters whose factors are known."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import random

import numpy as np
import pytest
from cli import gpucalc
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError
from gpucalc.database.reader import Database
from gpucalc.database.tables import MEMORY_BAND, TIME_BAND
from gpucalc.jobs import learned
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve, stack
from gpucalc.questions import learn as learning
from gpucalc.questions.suggest import suggest

CONTEXT = Context(Database())
GPU = "h100-sxm-80gb"
LAYOUTS = [
    {"tp": tp, "pp": pp, "micro_batch": micro, "zero_stage": zero}
    for tp, pp in ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 4), (4, 2))
    for micro in (1, 2)
    for zero in (1, 3)
    if not (zero == 3 and pp > 1)
]


def job_of(layout: dict, n_gpus: int = 32, model: str = "llama-3.1-8b"):
    """A job of 4,096 tokens a sequence on an H100 cluster."""
    cells = {"model": model, "gpu": GPU, "n_gpus": n_gpus, "seq_len": 4096, "global_batch": 256, "recompute": "full"}
    return resolve({**cells, **layout}, CONTEXT)


JOBS = [job_of(layout) for layout in LAYOUTS]


def record(job, **measured) -> dict[str, str]:
    """The job as a row of text with what was measured."""
    names = ("model", "gpu", "n_gpus", "seq_len", "global_batch", "tp", "pp", "micro_batch", "zero_stage", "recompute")
    return {name: str(job.cells[name]) for name in names} | {name: repr(value) for name, value in measured.items()}


def true_times(shifts: dict[str, float], noise: float = 0.0, seed: int = 1) -> list[float]:
    """Step times of the made-up cluster whose ln(factors) are `shifts`."""
    chance = random.Random(seed)
    times = []
    for job in JOBS:
        factors = learned.FACTORS[TIME_BAND]
        changed = dataclasses.replace(job, columns={**job.columns, **learned.scaled(job.columns, factors, shifts)})
        times.append(predict([changed])[0]["pred_step_time_s"] * math.exp(chance.gauss(0.0, noise)))
    return times


def lesson(times: list[float], order: list[int] | None = None) -> learning.Learned:
    """What the runs of JOBS with these times teach of the step time."""
    rows = [record(job, measured_step_time_s=t) for job, t in zip(JOBS, times, strict=True)]
    runs, problems = learning.runs_of([rows[i] for i in order or range(len(rows))], CONTEXT, "runs")
    assert not problems
    return learning.learn(runs)[0]


def test_effects_of_the_whole_make_up_the_step_time() -> None:
    """The estimate is homogeneous in time: slower by one factor everywhere is slower by that factor."""
    _, effects = learned.effects(stack(JOBS), len(JOBS), TIME_BAND)
    whole = effects[:, : len(learned.WHOLE)].sum(axis=1)
    assert whole == pytest.approx(np.ones(len(JOBS)), abs=0.01)


@pytest.mark.parametrize("shifts", [{"products": 0.12}, {"link": 0.2, "products": -0.08}, {"memory": 0.15}])
def test_known_factors_are_found_within_the_stated_error(shifts: dict[str, float]) -> None:
    """Each shift lies within three of the posterior's standard deviations, and the next run is predicted better."""
    found = lesson(true_times(shifts, noise=0.01))
    deviations = np.sqrt(np.diag(found.posterior.covariance))
    for name, mean, doubt in zip(found.posterior.names, found.posterior.mean, deviations, strict=True):
        assert abs(mean - shifts.get(name, 0.0)) <= 3 * doubt + 1e-9, name
    assert found.left_out is not None
    assert found.left_out < 0.5 * found.before


def test_runs_that_agree_change_nothing() -> None:
    """Runs equal to the predictions leave every prediction where it was."""
    found = lesson(true_times({}))
    assert np.abs(found.posterior.mean).max() < 1e-3
    assert found.before < 1e-3
    assert learning.sentences(found) == ["nothing beyond the noise of a run differs from the prediction"]


@given(st.permutations(range(len(JOBS))))
def test_order_and_repeats_do_not_matter(order: list[int]) -> None:
    """The same runs in another order, some told twice, teach the same."""
    times = true_times({"products": 0.1}, noise=0.03)
    one, other = lesson(times), lesson(times, [*order, *order[:4]])
    assert other.posterior.mean == pytest.approx(one.posterior.mean, abs=1e-9)
    assert other.posterior.runs == one.posterior.runs == len(JOBS)


def test_a_wild_run_is_named_and_moves_little() -> None:
    """One run that is wrong by ten times moves a prediction by less than its share of the runs, and is named."""
    times = true_times({"products": 0.1}, noise=0.01)
    _, effects = learned.effects(stack(JOBS), len(JOBS), TIME_BAND)
    sane = lesson(times)
    wild = lesson([10 * times[0], *times[1:]])
    size = len(learned.FACTORS[TIME_BAND])
    moved = (
        effects @ (wild.posterior.mean - sane.posterior.mean)[:size] + wild.posterior.mean[-1] - sane.posterior.mean[-1]
    )
    assert np.abs(moved[1:]).max() < math.log(10) / len(JOBS)
    assert any(text.startswith("row 1:") for text in wild.wild)
    assert not sane.wild


def test_one_run_moves_less_than_ten() -> None:
    """A lone run is believed less than many that say the same."""
    times = true_times({"products": 0.2})
    rows = [record(job, measured_step_time_s=t) for job, t in zip(JOBS, times, strict=True)]
    shifts = []
    for count in (1, 10):
        runs, _ = learning.runs_of(rows[:count], CONTEXT, "runs")
        shifts.append(learning.learn(runs)[0].posterior.shifts(TIME_BAND, JOBS[0].model.name)["products"])
    assert 0 < shifts[0] < shifts[1] <= 0.2


def test_another_model_is_moved_less_and_is_less_sure() -> None:
    """What is a model's own is not believed of another, whose band is wider."""
    found = lesson([1.1 * t for t in true_times({})]).posterior
    own, other = (sum(found.shifts(TIME_BAND, model).values()) for model in (JOBS[0].model.name, "another"))
    assert other < own
    _, effects = learned.effects(stack(JOBS), len(JOBS), TIME_BAND)
    assert found.deviation(effects[0], "another") > found.deviation(effects[0], JOBS[0].model.name)


def test_memory_is_learned_too() -> None:
    """Peaks that are all 1.2 times as large are predicted so once learned."""
    rows = []
    for job in JOBS:
        peak = predict([job])[0]["pred_peak_mem_gib"]
        rows.append(record(job, measured_peak_mem_gib=1.2 * peak))
    runs, _ = learning.runs_of(rows, CONTEXT, "runs")
    found = learning.learn(runs)[0]
    assert found.quantity == MEMORY_BAND
    assert found.left_out < 0.25 * found.before


def test_suggested_runs_reduce_the_doubt() -> None:
    """Each further run lowers the doubt about the order of the fastest layouts, and no layout is named twice."""
    cells = {"model": "llama-3.1-8b", "gpu": GPU, "n_gpus": 16, "seq_len": 8192, "global_batch": 64}
    found = suggest(cells, CONTEXT, 4)
    assert len({row["layout"] for row in found.rows}) == 4
    assert found.doubts == sorted(found.doubts, reverse=True)
    assert found.doubts[-1] < found.doubts[0]


def test_nothing_to_learn_from() -> None:
    """Rows without a measurement, or none that resolves, are one sentence."""
    with pytest.raises(DataError, match="nothing to learn from: row 1: neither measured_step_time_s nor"):
        learning.runs_of([record(JOBS[0])], CONTEXT, "runs")


def test_an_impossible_time_is_left_out() -> None:
    """A step of 1e-300 s or 1e12 s is no run of the job, and teaches nothing."""
    times = true_times({})
    rows = [record(job, measured_step_time_s=t) for job, t in zip(JOBS, (1e-300, 1e12, *times[2:]), strict=True)]
    runs, problems = learning.runs_of(rows, CONTEXT, "runs")
    assert len(runs) == len(JOBS) - 2
    assert [text.split(":")[0] for text in problems] == ["row 1", "row 2"]


def test_overlay_is_used_by_every_command(tmp_path) -> None:
    """The overlay moves eval towards the runs, narrows its band, passes `hw check`, and plan ranks with it."""
    times = true_times({"products": 0.15, "memory": 0.1}, noise=0.01)
    text = io.StringIO()
    rows = [record(job, measured_step_time_s=t) for job, t in zip(JOBS, times, strict=True)]
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "runs.csv").write_text(text.getvalue(), encoding="utf-8")
    overlay = tmp_path / "mine"
    done = gpucalc("learn", str(tmp_path / "runs.csv"), "-o", str(overlay))
    assert done.status == 0
    assert "error before" in done.out
    assert (overlay / "calibration" / "learned.csv").exists()
    assert gpucalc("hw", "check", str(overlay)).status == 0
    errors, widths = {}, {}
    for name, options in (("before", ()), ("after", ("--db", str(overlay)))):
        found = list(csv.DictReader(io.StringIO(gpucalc("eval", str(tmp_path / "runs.csv"), *options).out)))
        errors[name] = np.median([abs(float(r["pred_step_time_s"]) / t - 1) for r, t in zip(found, times, strict=True)])
        widths[name] = np.median([float(r["pred_step_time_high_s"]) / float(r["pred_step_time_low_s"]) for r in found])
    assert errors["after"] < 0.25 * errors["before"]
    assert widths["after"] < widths["before"]
    job = ("llama-3.1-8b", "--gpu", GPU, "--gpus", "32", "--seq-len", "4096", "--global-batch", "256", "-f", "csv")
    plain, own = gpucalc("plan", *job), gpucalc("plan", *job, "--db", str(overlay))
    assert own.status == 0
    assert plain.out != own.out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("learn", "nowhere.csv", "-o", "OUT"), 2, "cannot read 'nowhere.csv'"),
        (("learn", "llama-3.1-8b", "--suggest", "99"), 2, "--suggest 99 is more than 20"),
        (("learn", "llama-3.1-8b", "--suggest", "3"), 2, "missing: --gpu"),
        (("learn", "runs.csv", "--gpu", "h100"), 2, "--gpu has no meaning without --suggest"),
        (("validate", "--learn", "7"), 2, "--learn 7 leaves too few rows"),
        (("validate", "--learn", "3", "--kind", "gemm"), 2, "--learn scores the shipped training rows"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments: tuple[str, ...], status: int, said: str) -> None:
    """A mistake is one sentence with its status, and leaves no overlay behind."""
    done = gpucalc(*[str(tmp_path / "out") if a == "OUT" else a for a in arguments])
    assert done.status == status, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert not done.out
    assert not (tmp_path / "out").exists()


def test_what_logs_have_fixed_moves_less(tmp_path) -> None:
    """Where the user's own logs fixed the products with a small error, runs that are slower blame something else."""
    place = tmp_path / "calibration"
    place.mkdir()
    usual = CONTEXT.db.table("gemm")[GPU, "bf16"]
    names = [*usual.values, "heldout_error"]
    cells = [*(repr(value) for value in usual.values.values()), "0.02"]
    cells[names.index("gemm_efficiency")] = repr(0.999 * usual.values["gemm_efficiency"])
    head, row = ",".join(["key", "precision", *names, "provenance"]), ",".join([GPU, "bf16", *cells, "measured"])
    (place / "gemm.csv").write_text(f"{head}\n{row}\n", encoding="utf-8")
    own = Context(Database([tmp_path]))
    rows = [
        record(job, measured_step_time_s=t)
        for job, t in zip(JOBS, true_times({"products": 0.2}, noise=0.01), strict=True)
    ][:4]
    shifts = {}
    for name, context in (("shipped", CONTEXT), ("own", own)):
        runs, _ = learning.runs_of(rows, context, "runs")
        shifts[name] = learning.learn(runs)[0].posterior.shifts(TIME_BAND, "another")["products"]
    assert 0 <= shifts["own"] < 0.6 * shifts["shipped"]
    assert learning.calibrated_spreads(runs[0].job) == {"products": 0.02}


def test_an_answer_with_an_overlay_says_what_it_took_from_runs(tmp_path):
    job = "llama-3.1-8b,h100-sxm-80gb,8,1,8192,64"
    rows = "\n".join(f"{job},{mbs},{5.0 + 0.1 * mbs}" for mbs in (1, 2, 4, 8))
    runs = tmp_path / "runs.csv"
    runs.write_text(f"model,gpu,n_gpus,tp,seq_len,global_batch,micro_batch,measured_step_time_s\n{rows}\n")
    overlay = tmp_path / "mine"
    assert gpucalc("learn", str(runs), "-o", str(overlay)).status == 0
    job = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--seq-len", "8192", "--global-batch", "64", "--db", str(overlay))
    inside, across = (gpucalc("plan", *job, "--gpus", n, "--top", "1").err for n in ("8", "64"))
    assert "as 4 own runs on h100-sxm-80gb taught" in inside
    assert "network" not in inside.split("own runs")[1].split("\n")[0]
    assert "none of them tells of the network" in across
