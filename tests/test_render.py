"""Answers as text: full precision for programs, one scale per column for people."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError
from gpucalc.output import choose_columns, write_rows
from gpucalc.output.explain import tree
from gpucalc.output.table import facts, table

values = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)
records = st.lists(st.fixed_dictionaries({"a": values, "b": values}), max_size=5)


def written(form: str, rows: list[dict[str, Any]], columns: Any = ("a", "b"), **more: Any) -> str:
    out = io.StringIO()
    write_rows(out, form, columns, [rows], **more)
    return out.getvalue()


@given(records)
def test_json_keeps_values_exactly(rows: list[dict[str, Any]]) -> None:
    assert json.loads(written("json", rows)) == rows
    assert [json.loads(line) for line in written("jsonl", rows).split("\n") if line] == rows


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.text()), max_size=5))
def test_csv_keeps_numbers_and_text_exactly(pairs: list[tuple[float, str]]) -> None:
    text = written("csv", [{"a": number, "b": word} for number, word in pairs])
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert found[0] == ["a", "b"]
    assert [(float(a), b) for a, b in found[1:]] == pairs


def test_what_json_cannot_say_is_null_and_empty_in_csv() -> None:
    row = {"a": float("nan"), "b": float("inf")}
    assert json.loads(written("json", [row])) == [{"a": None, "b": None}]
    assert written("csv", [row]) == "a,b\n,\n"


def test_numpy_scalars_are_plain_numbers() -> None:
    np = pytest.importorskip("numpy")
    row = {"a": np.float64(0.1), "b": np.bool_(True)}
    assert written("csv", [row]) == "a,b\n0.1,yes\n"
    assert json.loads(written("jsonl", [{"a": np.float32(0.5), "b": np.int64(3)}])) == {"a": 0.5, "b": 3}


def test_a_record_keeps_its_own_columns_without_a_list() -> None:
    assert json.loads(written("jsonl", [{"x": 1}], None)) == {"x": 1}
    with pytest.raises(ValueError, match="csv needs its columns"):
        written("csv", [{"x": 1}], None)


def test_header_can_be_left_out() -> None:
    assert written("csv", [{"a": 1, "b": 2}], header=False) == "1,2\n"
    assert written("table", [{"a": 1, "b": 2}], header=False).split() == ["1", "2"]
    assert written("csv", []) == "a,b\n"
    assert written("json", []) == "[]\n"


def test_a_table_scales_a_column_once_and_says_so() -> None:
    rows = [{"pred_step_time_s": 0.5, "n": 1}, {"pred_step_time_s": 0.0125, "n": 20}]
    text = table(["pred_step_time_s", "n"], rows)
    heading, _, first, second = text.split("\n")
    assert heading.strip().split("  ")[0] == "step [ms]"
    assert first.split() == ["500", "1"]
    assert second.split() == ["12.5", "20"]


def test_a_table_survives_hostile_text() -> None:
    text = table(["id"], [{"id": "a\n\x1b[2Jb | c"}], markdown=True)
    assert "\x1b" not in text
    assert text.count("\n") == 2
    assert "\\|" in text


def test_numbers_that_only_look_like_numbers_stay_text() -> None:
    assert "0012" in table([Column("id", "text", "id")], [{"id": "0012"}])


def test_choose_columns_lists_every_mistake() -> None:
    assert choose_columns("b, a", ("a", "b")) == ["b", "a"]
    with pytest.raises(UsageError) as caught:
        choose_columns("layuot,nothing-like-it,layout,layout", ("layout", "tp"))
    said = str(caught.value)
    assert "did you mean layout?" in said
    assert "'nothing-like-it'" in said
    assert "layout twice" in said
    with pytest.raises(UsageError, match="names no column"):
        choose_columns(" , ", ("a",))


def test_tree_shows_formula_values_and_citation_indented() -> None:
    terms = [
        {"path": "memory/total", "value": 2.0**31, "unit": "B", "depth": 0, "formula": "", "arguments": {}},
        {
            "path": "memory/weights",
            "value": 2.0**30,
            "unit": "B",
            "depth": 1,
            "symbol": "M_w",
            "formula": "parameters * weight_bytes",
            "arguments": {"parameters": 2.0**29, "weight_bytes": 2},
            "citation": "Someone 2020",
        },
        {"path": "time/step", "value": 0.25, "unit": "s", "depth": 0, "note": "compute-bound"},
    ]
    lines = tree([("peak used", "989.4 TFLOP/s, dense")], terms, ["compute dominates"]).split("\n")
    assert lines[0] == "peak used  989.4 TFLOP/s, dense"
    assert lines[2] == "compute dominates"
    assert any(line.startswith("memory/total") and line.endswith("2 GiB") for line in lines)
    assert any(line.startswith("  memory/weights") and "1 GiB" in line for line in lines)
    assert "      M_w = parameters * weight_bytes   [1]" in lines
    assert "      with parameters = 536,870,912, weight_bytes = 2" in lines
    assert any("250 ms" in line and "compute-bound" in line for line in lines)
    assert lines[-1] == "[1] Someone 2020"
    short = tree([], terms, [], deepest=0)
    assert "memory/weights" not in short
    assert "time/step" in short


def test_tree_shortens_a_path_below_itself() -> None:
    terms = [
        {"path": "time/forward", "value": 1.0, "unit": "s", "depth": 0},
        {"path": "time/forward/gemm", "value": 1.0, "unit": "s", "depth": 1},
        {"path": "time/forward/gemm/qkv", "value": 1.0, "unit": "s", "depth": 2},
        {"path": "layer/other", "value": 1.0, "unit": "s", "depth": 1},
    ]
    assert [line.split()[0] for line in tree([], terms, []).split("\n")] == [
        "time/forward",
        "gemm",
        "qkv",
        "layer/other",
    ]


def test_facts_align() -> None:
    assert facts([("a", "1"), ("long", "2")]) == "a     1\nlong  2"
