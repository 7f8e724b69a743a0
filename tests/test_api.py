"""The Python side: same numbers as the command line, typed results, errors with sentences, nothing heavy on import."""

from __future__ import annotations

import csv
import doctest
import html.parser
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli import gpucalc

import gpucalc as package
from gpucalc import Cluster, Model, UsageError, comm, evaluate, explain, plan

DOCS = Path(__file__).parent.parent / "docs"
JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 8192, "global_batch": 64}
FLAGS = ["llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "8192", "--global-batch", "64"]


@pytest.fixture(scope="module")
def planned() -> package.PlanResult:
    return plan(**JOB, top=4)  # type: ignore[arg-type]


def loaded(code: str) -> set[str]:
    text = f"{code}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_import_loads_nothing() -> None:
    assert not loaded("import gpucalc") & {"numpy", "pandas", "typer", "gpucalc.api"}
    ready = loaded("from gpucalc import plan, evaluate, explain, Cluster, Model")
    assert not ready & {"pandas", "matplotlib", "typer", "tabulate"}


def test_explain_stays_a_function_whatever_is_imported() -> None:
    code = "import gpucalc, gpucalc.cli.app, gpucalc.api; from gpucalc import explain; assert callable(explain)"
    assert "gpucalc.api" in loaded(code)


def test_every_name_of_the_package_is_there() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        package.plann  # noqa: B018


def test_plan_says_what_the_command_line_says(planned: package.PlanResult) -> None:
    told = json.loads(gpucalc("plan", *FLAGS, "--top", "4", "-f", "json").out)
    assert [row.layout for row in planned] == [row["layout"] for row in told["rows"]]
    for own, theirs in zip(planned, told["rows"], strict=True):
        assert own.pred_step_time_s == theirs["pred_step_time_s"]
        assert own.pred_peak_mem_gib == theirs["pred_peak_mem_gib"]
    assert (planned.candidates, planned.evaluated, planned.feasible) == tuple(
        told[name] for name in ("candidates", "evaluated", "feasible")
    )


def test_rows_come_back_through_evaluate(planned: package.PlanResult) -> None:
    for rows in (planned.to_frame(), planned.records(), list(csv.DictReader(io.StringIO(planned.to_csv() or "")))):
        again = evaluate(rows)
        assert [row.pred_step_time_s for row in again] == pytest.approx([row.pred_step_time_s for row in planned])
        assert [row.layout for row in again] == [row.layout for row in planned]


def test_evaluate_takes_one_row_and_holes_of_a_frame() -> None:
    (one,) = evaluate(JOB, zero_stage=1)
    frame = pd.DataFrame([{**JOB, "tp": 2}, {**JOB, "tp": None, "mine": "x"}])
    two = evaluate(frame, zero_stage=1)
    assert [row.pred_error for row in two] == ["", ""]
    assert two[1].pred_step_time_s == one.pred_step_time_s
    assert (two[1]["mine"], two[0]["tp"]) == ("x", 2)
    assert evaluate([]).to_frame().empty


def test_evaluate_tells_each_wrong_row() -> None:
    rows = evaluate([{**JOB, "tp": 3}, JOB, {**JOB, "gpu": "h100-smx"}])
    assert "tp=3 does not divide the 32 heads" in rows[0].pred_error
    assert rows[0].pred_step_time_s is None
    assert rows[1].pred_error == ""
    assert "h100-sxm-80gb" in rows[2].pred_error
    with pytest.raises(UsageError, match="a row is a str, expected a mapping"):
        evaluate(["tp=3"])


def test_explain_agrees_with_plan(planned: package.PlanResult, tmp_path: Path) -> None:
    why = planned.explain(1)
    assert why.value("time/step") == planned[1].pred_step_time_s
    label = explain(**JOB, layout=planned[1].layout)  # type: ignore[arg-type]
    assert label.value("time/step") == pytest.approx(why.value("time/step"), rel=1e-9)
    assert str(label) + "\n" == gpucalc("explain", *FLAGS, "--layout", planned[1].layout).out
    with pytest.raises(UsageError, match="did you mean time/step"):
        why.value("time/steps")
    frame = why.to_frame()
    assert list(frame.columns) == ["path", "value", "unit", "formula", "arguments", "citation"]
    file = tmp_path / "why.csv"
    assert why.to_csv(file) is None
    assert file.read_text(encoding="utf-8") == why.to_csv()


def test_nothing_feasible_is_an_answer() -> None:
    none = plan("llama-3.1-405b", gpu="h100-sxm-80gb", n_gpus=8, seq_len=8192, global_batch=8)
    assert len(none) == 0
    assert "GiB more than" in (none.nearest_miss or "")
    assert none.to_frame().empty
    with pytest.raises(UsageError, match="no layout fits; nearest miss"):
        _ = none.best


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: plan("llama-3.1-8b", gpu="h100", n_gpu=8), "unknown argument 'n_gpu'; did you mean n_gpus"),
        (lambda: plan("llama-3.1-8b", gpu="h100", n_gpus=8, seq_len=8192), "global_batch is not stated"),
        (lambda: plan(**{**JOB, "n_gpus": 0}), "n_gpus is '0', expected 1 to 1,000,000"),
        (lambda: plan(**JOB, top=0), "top is 0"),
        (lambda: plan(**JOB, objective="speed"), "unknown objective 'speed'"),
        (lambda: plan(**JOB, layout="tp2", tp=4), "tp is 4, which contradicts 2 of the layout"),
        (lambda: plan(**JOB, cluster=Cluster("h100-sxm-80gb", 8)), "n_gpus is 16, which contradicts 8 of the cluster"),
        (lambda: Cluster("h100-smx", 8), "h100-sxm-80gb"),
        (lambda: Cluster("h100-sxm-80gb", -1), "n_gpus is '-1'"),
        (lambda: Model("llama-3.1-7b"), "did you mean"),
        (lambda: Model(layers=2), "the shape lacks hidden, heads"),
        (lambda: Model("llama-3.1-8b", layer=2), "unknown argument 'layer'; did you mean layers"),
        (lambda: explain(**JOB, layout="tq2"), "unknown token 'tq2'"),
    ],
)
def test_a_mistake_is_a_sentence(ask: Any, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask()
    assert told in str(caught.value)


def test_comm_says_what_the_command_line_says() -> None:
    told = json.loads(gpucalc("comm", "all_reduce", "64MiB", "--gpu", "h100", "--gpus", "16", "-f", "json").out)
    rows = comm("all_reduce", 64 * 2**20, Cluster("h100", 16))
    assert rows.records() == told
    assert list(rows.to_frame()["algorithm"]) == [row["algorithm"] for row in told]
    with pytest.raises(UsageError, match="expected more than 0 bytes"):
        comm("all_reduce", 0, Cluster("h100", 16))


def test_a_cluster_carries_its_network_into_the_question() -> None:
    slow = Cluster("h100-sxm-80gb", 16, inter_node_gbps_per_gpu=25)
    fast = Cluster("h100-sxm-80gb", 16, fabric="ib-xdr")
    rest = {"seq_len": 8192, "global_batch": 64, "top": 1}
    assert plan("llama-3.1-8b", cluster=slow, **rest).job["network_gbps_per_gpu"] == 25
    assert plan("llama-3.1-8b", cluster=fast, **rest).job["network_gbps_per_gpu"] == 800


class _Balanced(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_results_show_themselves_in_a_notebook(planned: package.PlanResult) -> None:
    rows = evaluate([{**JOB, "id": "<script>alert(1)</script>"}])
    shown = [planned, planned.explain(), rows, Cluster("h100-sxm-80gb", 8), Model("llama-3.1-8b")]
    for result in shown:
        text = result._repr_html_()
        reader = _Balanced()
        reader.feed(text)
        assert not reader.open
        assert "<script" not in text
    assert planned.best.layout in planned._repr_html_()


def test_the_page_on_python_is_right() -> None:
    result = doctest.testfile(str(DOCS / "python.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 20
    assert result.failed == 0


def test_the_notebook_runs() -> None:
    pytest.importorskip("matplotlib")
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for cell in cells:
        assert cell["outputs"] == [], "outputs are not kept: they would go stale"
        *before, last = "".join(cell["source"]).split("\n")
        exec(compile("\n".join([*before, last]), "notebook", "exec"), names)
    assert sorted(path.name for path in names["folder"].iterdir()) == ["plan.html", "why.svg"]
    assert names["rows"][0].pred_step_time_s >= names["rows"][-1].pred_step_time_s
