"""Labels and layouts are the same thing, both ways."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import layouts

from gpucalc.core.columns import cell_text, parse_row
from gpucalc.core.errors import UsageError
from gpucalc.layouts.label import Layout, label_cells, parse_label


@given(layouts())
def test_layout_to_label_to_layout(layout: Layout) -> None:
    assert Layout.from_label(layout.label()) == layout


@given(layouts())
def test_label_to_row_to_label(layout: Layout) -> None:
    label = layout.label()
    row = {name: cell_text(value) for name, value in label_cells(label).items()}
    values, problems = parse_row(row)
    assert not problems
    assert Layout.from_cells(values).label() == label


@given(layouts(), st.randoms())
def test_order_and_case_of_tokens_do_not_matter(layout: Layout, shuffle: random.Random) -> None:
    tokens = layout.label().replace("offload-", "offload_").split("-")
    shuffle.shuffle(tokens)
    assert Layout.from_label("-".join(tokens).replace("_", "-").upper()) == layout


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("tp8", {"tp": 8}),
        ("zero0", {"zero_stage": 0}),
        ("tp2-pp4-int", {"tp": 2, "pp": 4, "schedule": "interleaved"}),
        ("zbh1", {"schedule": "zb-h1"}),
        ("dualpipe", {"schedule": "dualpipe"}),
        ("dualpipev", {"schedule": "dualpipe-v"}),
        ("ep8-etp2-shard8", {"ep": 8, "etp": 2, "shard_group": 8}),
        ("cp2-ulysses-none", {"cp": 2, "cp_kind": "ulysses", "recompute": "none"}),
        ("full", {"recompute": "full"}),
        ("full12", {"recompute": "full", "recompute_layers": 12}),
        ("offload-opt-offload-act", {"offload_optimizer": True, "offload_activations": True}),
    ],
)
def test_stated_tokens_alone(label: str, cells: dict[str, object]) -> None:
    assert parse_label(label) == cells


@pytest.mark.parametrize(
    "label",
    [
        "tp8-pp4-dp2-mbs1-zero1-sp",
        "pp4-vpp3-mbs1",
        "pp4-vpp3-mbs1-1f1b",
        "tp1",
        "tp8-pp4-dp16-cp2-ep8-etp2-vpp3-mbs1-zero3-shard8-sp-zb2p-ag-full12-offload-opt-offload-act",
    ],
)
def test_label_is_its_own_normal_form(label: str) -> None:
    assert Layout.from_label(label).label() == label


def test_what_a_label_leaves_out_is_a_default_except_dp() -> None:
    cells = label_cells("tp8-mbs2")
    assert cells["pp"] == 1
    assert cells["sequence_parallel"] is False
    assert cells["schedule"] == "none"
    assert not {"dp", "zero_stage", "shard_group", "recompute"} & set(cells)
    assert label_cells("tp8-dp4")["dp"] == 4


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("", "is empty"),
        ("tp8--pp4", "an empty token"),
        ("tp8-", "an empty token"),
        ("tp", "'tp' lacks its number; write for example tp2"),
        ("tp0", "between 1 and"),
        ("tp-1", "'tp' lacks its number"),
        ("tp99999999999999999999", "between 1 and"),
        ("tp2.5", "unknown token 'tp2.5'"),
        ("zero4", "between 0 and 3"),
        ("tp8-tp4", "'tp4' states tp a second time"),
        ("tp8-gpipe-1f1b", "'1f1b' states schedule a second time"),
        ("none-full3", "states recompute a second time"),
        ("tp8-zbh2", "did you mean zbh1?"),
        ("ulises", "did you mean ulysses?"),
        ("tp８", "unknown token"),
        ("x" * 10_000, "unknown token"),
    ],
)
def test_bad_labels(label: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_label(label)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_every_bad_token_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_label("tp8-pq4-zero7-bogus")
    assert all(word in str(caught.value) for word in ("pq4", "zero7", "bogus"))
    assert "tp8'" not in str(caught.value)
