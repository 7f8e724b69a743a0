"""Rows in: every form, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError
from gpucalc.core.rows import LINE_LIMIT, read_rows, text_record


def _read(path: Path, content: bytes | str, block: int = 4096) -> tuple[list[str], list[dict[str, Any]]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    rows = read_rows(str(path), block)
    return rows.columns, [record for part in rows.blocks for record in part]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows"


@pytest.mark.parametrize(
    "content",
    [
        "tp,mine\n8,x\n4,y\n",
        "tp,mine\r\n8,x\r\n4,y\r\n",
        "tp,mine\r8,x\r4,y\r",
        "\ufefftp,mine\n8,x\n4,y",
        '# a comment, with commas\n\n# more\ntp,mine\n"8","x"\n4,y\n\n',
        " tp ,mine\n8,x\n4,y\n",
    ],
    ids=["plain", "crlf", "cr", "bom", "comments and quotes", "spaced header"],
)
def test_csv_forms_read_alike(file: Path, content: str) -> None:
    columns, records = _read(file, content)
    assert columns == ["tp", "mine"]
    assert records == [{"tp": "8", "mine": "x"}, {"tp": "4", "mine": "y"}]


def test_quoted_cells_keep_commas_quotes_and_line_ends(file: Path) -> None:
    _, records = _read(file, 'id,notes\na,"one, ""two""\nthree"\n')
    assert records == [{"id": "a", "notes": 'one, "two"\nthree'}]


@pytest.mark.parametrize(
    "content",
    [
        '{"tp": 8, "mine": null}\n{"tp": 4}\n',
        '[{"tp": 8, "mine": null}, {"tp": 4}]',
        '\n[\n{"tp": 8,\n "mine": null}\n,\n{"tp": 4}\n]\n',
        '{\n "job": {},\n "rows": [{"tp": 8, "mine": null}, {"tp": 4}]\n}',
        '{"rows": [{"tp": 8, "mine": null}, {"tp": 4}], "job": {}}\n',
        '# a comment\n{"tp": 8, "mine": null}\n\n{"tp": 4}',
    ],
    ids=["lines", "array", "array over lines", "plan", "plan on one line", "comment"],
)
def test_json_forms_read_alike(file: Path, content: str) -> None:
    columns, records = _read(file, content)
    assert columns == ["tp", "mine"]
    assert records == [{"tp": 8, "mine": None}, {"tp": 4}]


def test_one_object_over_lines_is_one_row(file: Path) -> None:
    assert _read(file, '{\n "tp": 8\n}')[1] == [{"tp": 8}]


@pytest.mark.parametrize("content", ["[]", " [ ] \n", '{"rows": []}', "tp,pp\n"])
def test_no_rows_is_not_an_error(file: Path, content: str) -> None:
    assert _read(file, content)[1] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n# only a comment\n", "is empty"),
        (b"tp,pp\n1,2\n3\n", "line 3: 1 cells, but the header has 2"),
        (b"tp,pp\n1,2,3\n", "line 2: 3 cells"),
        (b"tp,pp,tp\n1,2,3\n", "the header repeats 'tp'"),
        (b"tp;pp\n1;2\n", "parted by semicolons, expected commas"),
        (b"tp\tpp\n1\t2\n", "parted by tabs"),
        (b"tp,pp\n1,\x002\n", "line 2: holds a NUL byte"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
        (b"tp,notes\n1,caf\xe9\n", "line 2: not UTF-8 text (byte 0xe9 at position 6)"),
        ("tp,pp\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04", "zip"),
        (b'tp,pp\n"1,2\n3,4\n', "line 2: not CSV"),
        (b'tp,pp\n"1"x,2\n', "line 2: not CSV"),
        (b"tp,pp\n1," + b"9" * (LINE_LIMIT + 5) + b"\n", "line 2: longer than"),
        (b",".join(b"c%d" % i for i in range(10_001)) + b"\n", "10,001 columns"),
        (b'{"tp": 8}\n{"tp": \n', "line 2: not JSON"),
        (b'{"tp": 8}\n[1]\n', "line 2: expected a JSON object"),
        (b'{"tp": 8, "tp": 4}\n', "the key 'tp' stands twice"),
        (b'[{"tp": 8, "tp": 4}]', "the key 'tp' stands twice"),
        (b'[{"tp": 8} {"tp": 4}]', "record 2: expected a comma"),
        (b'[{"tp": 8},', "record 2: the JSON array is cut short"),
        (b'[{"tp": 8},]', "record 2"),
        (b'[{"tp": 8}] x', "text after the end"),
        (b"[1, 2]", "record 1: expected a JSON object"),
        (b'[{"tp": ' + b"[" * 100_000, "record 1: nested too deeply"),
        (b'{"tp": ' + b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'[{"tp": "caf\xe9"}]', "not UTF-8"),
        (b'[{"tp": "' + b"x" * (LINE_LIMIT + 70_000), "record 1: not JSON"),
    ],
)
def test_a_bad_file_is_one_sentence(file: Path, content: bytes, said: str) -> None:
    with pytest.raises(DataError) as caught:
        _read(file, content)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_rows(str(tmp_path / "nothing.csv"))
    with pytest.raises(DataError, match="is a directory"):
        read_rows(str(tmp_path))
    with pytest.raises(DataError, match="cannot read"):
        read_rows("a\0b")


def test_a_late_fault_is_found_before_the_first_block(file: Path) -> None:
    file.write_text("tp,pp\n" + "1,1\n" * 100 + "1\n")
    with pytest.raises(DataError, match="line 102"):
        read_rows(str(file), block=10)


def test_memory_is_bounded_by_the_block(file: Path) -> None:
    file.write_text("tp,notes\n" + ("1," + "x" * 100 + "\n") * 50_000)
    tracemalloc.start()
    count = sum(len(part) for part in read_rows(str(file), block=1000).blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 50_000
    assert peak < 3e6


def test_a_long_array_on_one_line_reads_in_linear_time(file: Path) -> None:
    file.write_text(json.dumps([{"tp": 8, "id": f"row {i}"} for i in range(60_000)]))
    start = time.process_time()
    assert sum(len(part) for part in read_rows(str(file)).blocks) == 60_000
    assert time.process_time() - start < 3


cells = st.dictionaries(st.text(min_size=1, max_size=5), st.none() | st.integers() | st.text() | st.booleans())


@given(records=st.lists(cells, min_size=1, max_size=8), gaps=st.sampled_from([None, 0, 1]))
def test_json_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], gaps: int | None
) -> None:
    file = tmp_path_factory.mktemp("json") / "rows"
    assert _read(file, json.dumps(records, indent=gaps))[1] == records
    lines = "\n".join(json.dumps(record) for record in records)
    if not isinstance(records[0].get("rows"), list):
        assert _read(file, lines)[1] == records


def test_text_record_keeps_text_and_spells_the_rest() -> None:
    record = {"a": " x ", "b": 8, "c": False, "d": None, "e": 1e-7, "f": [1]}
    assert text_record(record) == {"a": " x ", "b": "8", "c": "no", "d": "", "e": "1e-07", "f": "[1]"}
