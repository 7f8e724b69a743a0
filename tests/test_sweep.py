"""The cells of a sweep: their rows are those of the planner and of `eval`, and none stops the others."""

from __future__ import annotations

import csv
import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import evaluate_rows
from gpucalc.questions.plan import TIE, plan, row_text
from gpucalc.sweep import rows as sweep_rows
from gpucalc.sweep.dask import remote_cell
from gpucalc.sweep.drive import Tally, _work, data_fingerprint, doubts, local_runner, run_cell, sweep
from gpucalc.sweep.rows import FAULT, FITS, ILLEGAL, NOTHING, Outcome, columns_of
from gpucalc.sweep.spec import Spec, parse_spec, single
from gpucalc.sweep.store import Stream

QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm-80gb",
    "n_gpus": 16,
    "seq_len": 4096,
    "global_batch": 64,
}
DB = Database()


def spec(document: dict[str, Any] | None = None, **product: Any) -> Spec:
    return parse_spec({"product": {**QUESTION, **product}, **(document or {})})


def rows(one: Spec, index: int = 0, spill: Path | None = None) -> tuple[Outcome, list[dict[str, str]]]:
    outcome = run_cell(one, index, DB, lambda layouts: None, spill)
    text = Path(outcome.part).read_text(encoding="utf-8") if outcome.part else outcome.text
    found = list(csv.DictReader(io.StringIO(text), fieldnames=columns_of(one)))
    assert outcome.rows == len(found)
    assert all(None not in row and None not in row.values() for row in found)
    return outcome, found


def without(row: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in row.items() if name not in names and value != ""}


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_the_best_of_a_cell_are_those_of_the_planner(objective: str) -> None:
    outcome, found = rows(spec({"keep": 4, "objective": objective}))
    planned = plan(QUESTION, Context(DB), objective=objective, top=4)
    expected = [{n: v for n, v in row_text(row).items() if v != ""} for row in planned.rows]
    assert [without(row, "cell", "rank") for row in found] == expected
    assert [(row["cell"], row["rank"]) for row in found] == [("1", str(rank)) for rank in range(1, 5)]
    assert (outcome.state, outcome.layouts) == (FITS, planned.evaluated)


def test_the_front_of_a_cell_is_that_of_the_planner() -> None:
    _, found = rows(spec({"keep": "pareto"}))
    assert [row["layout"] for row in found] == [
        row["layout"] for row in plan(QUESTION, Context(DB), objective="pareto").rows
    ]
    assert len(found) > 1


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-moe-16b"])
def test_all_layouts_of_a_cell_are_those_that_a_search_costs(model: str, tmp_path: Path) -> None:
    question = {**QUESTION, "model": model, "n_gpus": 8, "global_batch": 16}
    outcome, found = rows(spec({"keep": "all"}, **question), spill=tmp_path)
    whole = plan(question, Context(DB), objective="memory", top=1)  # no bound shortens it
    assert outcome.layouts == len(found) == whole.evaluated
    assert len({row["layout"] for row in found}) == len(found)
    fitting = [row for row in found if row["pred_fit"] != "oom"]
    assert len(fitting) >= whole.feasible > 0
    # Every hundredth row says what `eval` says of it, to the last digit.
    some = found[::100]
    assert len(some) > 20
    for row, predicted in zip(some, evaluate_rows(some, Context(DB)), strict=True):
        own = {name: value for name, value in predicted.items() if name != "pred_notes"}  # a sweep writes no remarks
        assert {name: row[name] for name in own} == row_text(own), row["layout"]
    fastest = plan(question, Context(DB), top=1).rows[0]
    within = [float(row["pred_step_time_s"]) for row in found if row["pred_fit"] == "fits"]
    assert min(within) <= fastest["pred_step_time_s"] <= min(within) * (1 + TIE)


def test_a_layout_table_restricts_the_search() -> None:
    _, found = rows(spec({"keep": 500, "layout": {"tp": [2, 4], "pp": [1, 2], "schedule": ["none", "1f1b"]}}))
    assert {row["tp"] for row in found} == {"2", "4"}
    assert {(row["pp"], row["schedule"]) for row in found} == {("1", "none"), ("2", "1f1b")}
    _, found = rows(spec({"keep": "all", "layout": {"vpp": [1, 4], "recompute": ["full"], "pp": 2, "dp": [1, 8]}}))
    assert {row["vpp"] for row in found} == {"1", "4"}
    assert {row["dp"] for row in found} == {"1", "8"}
    assert {row["recompute"] for row in found} == {"full"}


def test_a_list_of_labels_gives_one_cell_each() -> None:
    labels = ["tp8-dp2-mbs1-zero1-sp-none", "pp4-dp4-mbs2-zero1-1f1b-full3", "tp3"]
    for keep in ("best", "all"):
        whole = spec({"keep": keep}, layout=labels)
        assert whole.count == 3
        assert [rows(whole, i)[1][0]["layout"] for i in range(2)] == [labels[0], labels[1].replace("-1f1b", "")]
        outcome, (row,) = rows(whole, 2)
        assert (outcome.state, row["layout"]) == (ILLEGAL, "tp3")
        assert "tp=3 does not divide" in row["pred_error"]


@pytest.mark.parametrize("keep", ["best", "all"])
@pytest.mark.parametrize(
    ("product", "state", "said"),
    [
        ({"gpu": "a100-sxm-80gb", "precision": "fp8"}, ILLEGAL, "does not support fp8"),
        ({"model": "llama-3.1-8c"}, ILLEGAL, "llama-3.1-8c"),
        ({"tp": 3, "n_gpus": 12}, ILLEGAL, "tp=3 does not divide"),
    ],
)
def test_a_cell_that_cannot_be_has_one_row_that_says_why(
    keep: str, product: dict[str, Any], state: str, said: str
) -> None:
    outcome, found = rows(spec({"keep": keep}, **product))
    assert outcome.state == state
    (row,) = found
    assert said in row["pred_error"]
    assert row["cell"] == "1"
    assert all(row[name] == str(value) for name, value in product.items())
    assert not [name for name, value in row.items() if name.startswith("pred_") and value and name != "pred_error"]


def test_a_cell_that_nothing_fits_names_the_nearest_miss() -> None:
    outcome, (row,) = rows(spec(model="llama-3.1-405b", n_gpus=8))
    assert outcome.state == NOTHING
    assert row["pred_fit"] == "oom"
    assert row["pred_error"].startswith("nearest miss: ")


def test_a_fault_of_ours_costs_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Iterator[str]:
        raise AttributeError("a slip")

    monkeypatch.setattr(sweep_rows, "_lines", broken)
    outcome, (row,) = rows(spec())
    assert outcome.state == FAULT
    assert row["pred_error"] == "internal error: AttributeError: a slip"


def test_an_option_of_hardware_is_an_axis() -> None:
    whole = spec(fabric=["ib-ndr", "ib-hdr"], n_gpus=64)
    rates = [rows(whole, index)[1][0] for index in range(2)]
    assert [row["fabric"] for row in rates] == ["ib-ndr", "ib-hdr"]
    assert float(rates[0]["inter_node_gbps_per_gpu"]) > float(rates[1]["inter_node_gbps_per_gpu"])


def test_doubts_name_what_nobody_knows() -> None:
    assert doubts(spec(), DB) == []
    (said,) = doubts(spec(gpu=["h100-sxm-80gb", "h100-smx-80gb"]), DB)
    assert "h100-sxm-80gb" in said
    with pytest.raises(UsageError, match="h100-smx"):
        doubts(spec(gpu="h100-smx-80gb"), DB)


def test_the_fingerprint_of_the_data_sees_database_and_model_files(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    found = {data_fingerprint((), ()), data_fingerprint((str(config),), ())}
    data_fingerprint.cache_clear()
    config.write_text("{ }")
    found.add(data_fingerprint((str(tmp_path),), ()))
    (tmp_path / "db" / "nodes").mkdir(parents=True)
    (tmp_path / "db" / "nodes" / "x.toml").write_text("")
    found.add(data_fingerprint((), (str(tmp_path / "db"),)))
    assert len(found) == 4


def test_a_dask_task_gives_the_rows_of_its_cell_or_stops_the_sweep() -> None:
    import zlib

    whole = spec(n_gpus=[8, 16, 32])
    data = data_fingerprint((QUESTION["model"],), ())
    outcome, packed = remote_cell(single(whole, 2), 2, (), data)
    assert zlib.decompress(packed).decode() == run_cell(whole, 2, DB, lambda layouts: None, None).text
    assert (outcome.cell, outcome.state, outcome.rows) == (2, FITS, 1)
    assert "another version" in remote_cell(single(whole, 2), 2, (), "other")[0].fatal


# --- driving -----------------------------------------------------------------------------------------


class _Kept:
    """A store that remembers."""

    def __init__(self, done: set[int]) -> None:
        self.first = 0
        self.spill = Path()
        self.done = done
        self.added: list[Outcome] = []

    def has(self, cell: int) -> bool:
        return cell in self.done

    def add(self, outcome: Outcome) -> None:
        self.added.append(outcome)


def test_cells_that_are_done_are_not_handed_out() -> None:
    store, tally = _Kept({1, 3}), Tally()

    def runner(feed: Any, told: Any) -> Any:
        while (cell := feed()) is not None:
            yield Outcome(cell, layouts=5, rows=1)

    sweep(6, store, runner, tally, lambda layouts: None)
    assert [o.cell for o in store.added] == [0, 2, 4, 5]
    assert (tally.cells, tally.layouts, tally.rows, tally.states) == (4, 20, 4, {FITS: 4})


def test_a_runner_that_cannot_go_on_ends_the_sweep() -> None:
    with pytest.raises(DataError, match="gone"):
        sweep(2, _Kept(set()), lambda feed, told: (o for o in [Outcome(0, fatal="gone")]), Tally(), lambda _: None)


def test_several_processes_write_what_one_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = spec({"layout": {"tp": [1, 2]}}, n_gpus=[8, 16], global_batch=[64, 128], precision=["bf16", "fp8"])
    texts = []
    for workers in (1, 2):
        store, tally = Stream("head\n"), Tally()
        sweep(whole.count, store, local_runner(whole, (), workers, store.spill, tally), tally, lambda _: None)
        store.close()
        texts.append(capsys.readouterr().out)
        assert tally.cells == whole.count == 8
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 9


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """Two workers; the first to be seen is killed, and again, and a cell that ends three is given up."""
    import multiprocessing

    whole = spec(n_gpus=[8, 16, 32, 64])
    store, tally = _Kept(set()), Tally()
    killed: list[int] = []

    def told(layouts: int) -> None:  # a worker has started, or is at work
        child = next((c for c in multiprocessing.active_children() if c.pid not in killed), None)
        if child is not None and len(killed) < 2:
            killed.append(child.pid or 0)
            os.kill(child.pid or 0, signal.SIGKILL)

    sweep(whole.count, store, local_runner(whole, (), 2, tmp_path, tally), tally, told)
    assert sorted(o.cell for o in store.added) == [0, 1, 2, 3]
    assert {o.state for o in store.added} == {FITS}
    assert tally.lost_workers == len(killed) == 2


def test_a_cell_that_ends_every_worker_gets_a_row(tmp_path: Path) -> None:
    whole = spec(n_gpus=[8])
    store, tally = _Kept(set()), Tally()
    deaths = 0

    def told(layouts: int) -> None:
        import multiprocessing

        nonlocal deaths
        for child in multiprocessing.active_children():
            deaths += 1
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()

    runner = local_runner(spec(n_gpus=[8, 16]), (), 2, tmp_path, tally)
    sweep(whole.count, store, runner, tally, told)
    (outcome,) = store.added
    assert outcome.state == FAULT
    assert "3 worker processes ended in this cell (SIGKILL" in outcome.text
    assert deaths >= 3


def test_a_worker_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, spec(), (), tmp_path))
    process.start()
    theirs.close()
    assert mine.recv() == 0
    mine.send(0)
    while isinstance(found := mine.recv(), int):  # it is at work
        pass
    assert found.state == FITS
    mine.close()
    process.join(20)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_sweep_costs_little_more_than_its_searches(tmp_path: Path) -> None:
    """Layouts per second of one core stay within 20 % of the planner's: processor time, best of three."""
    whole = spec(n_gpus=[128, 256], global_batch=[512, 1024])
    ratios = []
    for _ in range(3):
        started = time.process_time()
        costed = sum(plan(whole.cell(index), Context(DB), top=1).evaluated for index in range(whole.count))
        searches = time.process_time() - started
        store, tally = _Kept(set()), Tally()
        started = time.process_time()
        sweep(whole.count, store, local_runner(whole, (), 1, tmp_path, tally), tally, lambda _: None)
        assert tally.layouts == costed
        ratios.append((time.process_time() - started) / searches)
    assert min(ratios) < 1.2, ratios
