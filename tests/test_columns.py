"""Cells: what each kind of column takes, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core import vocabulary
from gpucalc.core.columns import (
    COLUMNS,
    INPUT,
    KINDS,
    PREDICTED,
    Column,
    cell_text,
    parse_cell,
    parse_row,
    parse_setting,
)
from gpucalc.core.errors import UsageError


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("tp", "8", 8),
        ("tp", "8.0", 8),
        ("tp", " 8 ", 8),
        ("tp", "8e0", 8),
        ("tp", "", None),
        ("experts", "0", 0),
        ("zero_stage", "3.0", 3),
        ("inter_node_gbps_per_gpu", "62.5", 62.5),
        ("gated_mlp", "Yes", True),
        ("gated_mlp", "0", False),
        ("gated_mlp", "False", False),
        ("gated_mlp", "1.0", True),
        ("precision", "BF16", "bf16"),
        ("precision", "bfloat16", "bf16"),
        ("precision", "bf16_true", "bf16-true"),
        ("schedule", "ZB-H1", "zb-h1"),
        ("flash_attention", "True", "yes"),
        ("flash_attention", "no", "no"),
        ("mem_counter", "nvidia_smi", "nvidia-smi"),
        ("software_date", "2024-07", "2024-07"),
        ("software_date", "2024-07-15", "2024-07"),
        ("model", "x/Y", "x/Y"),
    ],
)
def test_cells_that_are_right(column: str, text: str, value: Any) -> None:
    found = parse_cell(column, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("tp", "0", "expected 1 or more"),
        ("tp", "-8", "expected 1 or more"),
        ("tp", "2.5", "expected a whole number such as 2"),
        ("tp", "nan", "expected a number"),
        ("tp", "inf", "expected a number"),
        ("tp", "1e16", "too large"),
        ("tp", "9" * 4000, "too large"),
        ("tp", "eight", "expected a number"),
        ("tp", "8,000", "expected a number"),
        ("tp", "0x10", "expected a number"),
        ("zero_stage", "4", "expected 0 to 3"),
        ("zero_stage", "-1", "expected 0 to 3"),
        ("inter_node_gbps_per_gpu", "0", "expected more than 0"),
        ("inter_node_gbps_per_gpu", "1e999", "too large"),
        ("gated_mlp", "maybe", "expected yes or no"),
        ("precision", "bf61", "did you mean bf16?"),
        ("schedule", "zzz", "known: none, gpipe"),
        ("software_date", "2024-13", "expected a month"),
        ("software_date", "July", "expected a month"),
    ],
)
def test_cells_that_are_wrong(column: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(column, text)
    assert said in str(caught.value)
    assert column in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_row_reports_all_its_violations_and_keeps_the_rest() -> None:
    values, problems = parse_row({"tp": "0", "pp": "x", "dp": "4", "precision": "bf17", "mine": "?"})
    assert values == {"dp": 4}
    assert [p.split()[0] for p in problems] == ["tp", "pp", "precision"]


def test_recompute_takes_the_spelling_of_predictions() -> None:
    assert parse_row({"recompute": "full:3"})[0] == {"recompute": "full", "recompute_layers": 3}
    assert parse_row({"recompute": "auto"}) == ({}, [])
    assert parse_row({"recompute": "full:x"})[1]


@given(st.sampled_from(sorted(INPUT)), st.text(max_size=20))
def test_any_text_is_a_value_or_a_usage_error(column: str, text: str) -> None:
    values, problems = parse_row({column: text})
    if problems:
        assert all(column in problem or "recompute" in column for problem in problems)
    for name, value in values.items():
        assert parse_cell(name, cell_text(value)) == value


def test_records_are_complete_and_follow_the_vocabulary() -> None:
    for column in COLUMNS.values():
        assert column.description, column.name
        assert column.kind in {"text", "int", "number", "size", "choice", "flag", "month"}
        assert bool(column.choices) == (column.kind == "choice")
    assert INPUT["schedule"].choices == vocabulary.SCHEDULES
    assert INPUT["flash_attention"].choices == vocabulary.FLASH_KINDS
    assert all(name in PREDICTED for names in KINDS.values() for name in names)


@pytest.mark.parametrize("pair", ["tp", "=8", "tp=", "tpp=8", "pred_fit=fits", "measured_oom=yes", "layout=tp8"])
def test_bad_settings(pair: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_setting(pair)


def test_settings() -> None:
    assert parse_setting("micro-batch=2") == ("micro_batch", 2)
    assert parse_setting("model=a=b") == ("model", "a=b")


@pytest.mark.parametrize("text", ["0.0038", "0.5", "1e-3"])
def test_a_number_may_be_below_one(text: str) -> None:
    assert parse_cell(Column("rate", "number", "requests per second"), text) == float(text)


def test_a_column_of_numbers_may_have_a_least_one() -> None:
    with pytest.raises(UsageError, match="expected 1 or more"):
        parse_cell("expert_imbalance", "0.5")
