"""The output of a sweep: whatever ends the process, no row is lost and none is written twice."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError
from gpucalc.sweep import store as sweep_store
from gpucalc.sweep.rows import Outcome
from gpucalc.sweep.store import Journaled

HEADER = "cell,rank,layout,tp,sequence_parallel,pred_step_time_s,pred_error\n"
IDENTITY = {"spec": "s", "data": "d", "cells": 12}


def lines(cell: int) -> str:
    return "".join(f'{cell + 1},{rank},tp{cell + 1},8,yes,{cell}.5,"é, {cell}"\n' for rank in range(1, cell % 4 + 2))


def outcome(store: Journaled, cell: int, in_part: bool = False) -> Outcome:
    found = Outcome(cell, "fits", rows=cell % 4 + 1, layouts=10 + cell, text=lines(cell))
    if in_part:
        store.spill.mkdir(exist_ok=True)
        part = store.spill / f"{cell}-1.csv"
        part.write_text(lines(cell), encoding="utf-8")
        found.text, found.part = "", str(part)
    return found


@contextmanager
def opened(path: Path, **identity: Any) -> Iterator[Journaled]:
    store = Journaled(path, HEADER, {**IDENTITY, **identity})
    try:
        yield store
    finally:
        store.close()


def whole(cells: int = 12) -> str:
    return HEADER + "".join(lines(cell) for cell in range(cells))


orders = st.permutations(range(12))


@given(order=orders, parts=st.sets(st.integers(0, 11)))
def test_rows_stand_in_the_order_of_cells(order: list[int], parts: set[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out.csv"
        with opened(path) as store:
            for cell in order:
                store.add(outcome(store, cell, cell in parts))
                written = path.read_text(encoding="utf-8")
                assert written == whole(store.first)
            store.finish()
        assert path.read_text(encoding="utf-8") == whole()
        assert os.listdir(folder) == ["out.csv"]


@given(
    order=orders,
    parts=st.sets(st.integers(0, 11)),
    done=st.integers(0, 12),
    journal_left=st.floats(0, 1),
    rows_left=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_a_cut_at_any_byte_loses_and_repeats_nothing(
    order: list[int], parts: set[int], done: int, journal_left: float, rows_left: float, seed: int
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out.csv"
        with opened(path) as store:
            for cell in order[:done]:
                store.add(outcome(store, cell, cell in parts))
        journal = path.with_name("out.csv.journal")
        head = len(journal.read_bytes().splitlines(keepends=True)[0])
        for file, least, share in ((journal, head, journal_left), (path, len(HEADER), rows_left)):
            size = file.stat().st_size
            os.truncate(file, least + round((size - least) * share))
        with opened(path) as store:
            rest = [cell for cell in range(12) if not store.has(cell)]
            assert sum(d.cells for d in store.done.values()) + len(rest) == 12
            random.Random(seed).shuffle(rest)
            for cell in rest:
                store.add(outcome(store, cell, cell in parts))
            store.finish()
        assert path.read_text(encoding="utf-8") == whole()
        assert os.listdir(folder) == ["out.csv"]


def test_what_an_earlier_process_did_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with opened(path) as store:
        for cell in (0, 3, 4):
            store.add(outcome(store, cell))
    with opened(path) as store:
        assert store.resumed
        done = store.done["fits"]
        assert (done.cells, done.rows, done.layouts) == (3, 1 + 4 + 1, 10 + 13 + 14)
        assert [cell for cell in range(6) if store.has(cell)] == [0, 3, 4]


def test_a_part_that_is_gone_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with opened(path) as store:
        store.add(outcome(store, 2, in_part=True))
        store.add(outcome(store, 3))
    (store.spill / "2-1.csv").unlink()
    (store.spill / "9-1.csv").write_text("of a cell that was not finished")
    with opened(path) as store:
        assert [cell for cell in range(6) if store.has(cell)] == [3]
        assert store.done["fits"].cells == 1
        assert os.listdir(store.spill) == []


def test_a_disk_that_fills_up_leaves_whole_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    write = os.write

    def full(file: int, data: Any) -> int:
        room = 170 - os.fstat(file).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, bytes(data)[:room])

    with opened(path) as store:
        monkeypatch.setattr(sweep_store.os, "write", full)
        with pytest.raises(DataError, match="No space left on device; make room"):  # noqa: PT012
            for cell in range(12):
                store.add(outcome(store, cell))
        assert path.read_text(encoding="utf-8") == whole(store.first)
    monkeypatch.setattr(sweep_store.os, "write", write)
    with opened(path) as store:
        assert store.first > 0
        for cell in range(store.first, 12):
            store.add(outcome(store, cell))
        store.finish()
    assert path.read_text(encoding="utf-8") == whole()


@pytest.mark.parametrize(
    ("identity", "said"),
    [({"spec": "x"}, "another spec"), ({"data": "x"}, "another version"), ({"cells": 3}, "another --limit")],
)
def test_only_the_same_sweep_goes_on(tmp_path: Path, identity: dict[str, Any], said: str) -> None:
    path = tmp_path / "out.csv"
    with opened(path) as store:
        store.add(outcome(store, 0))
    with pytest.raises(DataError, match=said):
        Journaled(path, HEADER, {**IDENTITY, **identity})
    assert path.read_text(encoding="utf-8") == whole(1)


def test_an_output_that_is_no_sweep_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine\n")
    with pytest.raises(DataError, match=r"out.csv exists, and no journal"):
        Journaled(path, HEADER, IDENTITY)
    assert path.read_text() == "mine\n"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_journal_that_does_not_fit_its_output(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with opened(path) as store:
        store.add(outcome(store, 0))
    path.unlink()
    with pytest.raises(DataError, match="is gone"):
        Journaled(path, HEADER, IDENTITY)
    path.write_text("mine\n")
    with pytest.raises(DataError, match="is not what"):
        Journaled(path, HEADER, IDENTITY)
    path.with_name("out.csv.journal").write_text("mine too\n")
    with pytest.raises(DataError, match="is not a journal"):
        Journaled(path, HEADER, IDENTITY)


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with opened(path), pytest.raises(DataError, match="another process is writing"):
        Journaled(path, HEADER, IDENTITY)


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*No such file"):
        Journaled(tmp_path / "none" / "out.csv", HEADER, IDENTITY)


def test_a_journal_line_is_json_and_tells_no_more_than_it_must(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with opened(path) as store:
        store.add(outcome(store, 1))
        store.add(outcome(store, 0))
    events = [json.loads(line) for line in path.with_name("out.csv.journal").read_text("utf-8").splitlines()]
    assert events[0] == {"journal": "gpucalc sweep", **IDENTITY}
    assert [(e["cell"], "text" in e, e.get("end")) for e in events[1:]] == [
        (1, True, None),
        (0, False, len(whole(1).encode())),
        (1, False, len(whole(2).encode())),
    ]


def test_parquet_holds_the_same_rows_with_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "out.parquet"
    with opened(path) as store:
        store.add(outcome(store, 1))
        store.add(outcome(store, 0))
        assert not path.exists()
        store.finish()
    assert os.listdir(tmp_path) == ["out.parquet"]
    table = parquet.read_table(path)
    assert {field.name: str(field.type) for field in table.schema} == {
        "cell": "int64",
        "rank": "int64",
        "layout": "string",
        "tp": "int64",
        "sequence_parallel": "bool",
        "pred_step_time_s": "double",
        "pred_error": "string",
    }
    assert table.column("cell").to_pylist() == [1, 2, 2]
    assert table.column("sequence_parallel").to_pylist() == [True] * 3
    assert table.column("pred_error").to_pylist() == ["é, 0", "é, 1", "é, 1"]
