"""The spec of a sweep: what it covers, and what it says of a wrong one."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError, UsageError
from gpucalc.layouts.axes import searched_axes
from gpucalc.questions.plan import OBJECTIVES
from gpucalc.sweep.spec import OBJECTIVES as SWEPT
from gpucalc.sweep.spec import PARETO, Spec, parse_spec, read_spec, single

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm-80gb",
    "n_gpus": 8,
    "seq_len": 4096,
    "global_batch": 64,
}


def spec(document: dict[str, Any] | None = None, **product: Any) -> Spec:
    return parse_spec({"product": {**BASE, **product}, **(document or {})})


def problems(document: dict[str, Any] | None = None, **product: Any) -> str:
    with pytest.raises(UsageError) as caught:
        spec(document, **product)
    return str(caught.value)


def test_names_of_the_spec_are_those_of_the_search() -> None:
    every = {name: [2] if name in {"tp", "micro_batch"} else [1] for name in searched_axes()}
    every |= {"schedule": ["1f1b"], "cp_kind": ["ring"], "recompute": ["full"], "sequence_parallel": ["yes"]}
    assert set(spec({"layout": every}).layout) == set(searched_axes())
    assert (*SWEPT, PARETO) == OBJECTIVES


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_cells_are_the_product_in_order(sizes: list[int]) -> None:
    names = ("seq_len", "global_batch", "micro_batch", "tp")[: len(sizes)]
    lists = {name: [2**i for i in range(size)] for name, size in zip(names, sizes, strict=True)}
    # Axes in the order of the document: those of BASE first, of which these replace two.
    document = {"product": {**{n: v for n, v in BASE.items() if n not in lists}, **lists}}
    if "global_batch" not in lists:
        document["product"]["global_batch"] = 64
    found = parse_spec(document)
    assert found.count == math.prod(sizes)
    expected = list(itertools.product(*lists.values()))
    assert [tuple(found.cell(i)[n] for n in names) for i in range(found.count)] == expected
    with pytest.raises(IndexError):
        found.cell(found.count)


def test_cases_are_crossed_with_the_product_one_after_the_other() -> None:
    product = {n: v for n, v in BASE.items() if n != "gpu"} | {"n_gpus": [8, 16]}
    cases = [{"gpu": "h100-sxm-80gb", "fabric": "ib-ndr"}, {"gpu": "a100-sxm-80gb", "precision": ["fp16", "BF16"]}]
    found = parse_spec({"product": product, "case": cases})
    assert found.count == 2 + 4
    assert found.cell(1) == {**product, "n_gpus": 16, "gpu": "h100-sxm-80gb", "fabric": "ib-ndr"}
    assert [(found.cell(i)["n_gpus"], found.cell(i)["precision"]) for i in range(2, 6)] == [
        (8, "fp16"),
        (8, "bf16"),
        (16, "fp16"),
        (16, "bf16"),
    ]


def test_a_cell_of_its_own_keeps_the_columns_of_all() -> None:
    cases = [{"gpu": "h100-sxm-80gb", "id": "new"}, {"gpu": "a100-sxm-80gb", "fabric": "ib-hdr"}]
    whole = parse_spec({"product": {n: v for n, v in BASE.items() if n != "gpu"}, "case": cases})
    one = single(whole, 1)
    assert (one.count, one.names()) == (1, whole.names())
    assert {n: v for n, v in one.cell(0).items() if v is not None} == whole.cell(1)


def test_10_to_the_12_cells_are_counted_and_reached_without_a_list() -> None:
    hundred = list(range(1, 101))
    names = ("n_gpus", "seq_len", "global_batch", "micro_batch", "tp", "pp")
    found = spec(**{name: hundred for name in names})
    assert found.count == 10**12
    assert [found.cell(10**12 - 1)[name] for name in names] == [100] * 6


def test_values_are_read_as_the_cells_of_a_row_file() -> None:
    found = spec({"layout": {"schedule": ["1F1B", "zb_1p"], "sequence-parallel": True}}, recompute=["auto", "full"])
    assert found.layout == {"schedule": ("1f1b", "zb-1p"), "sequence_parallel": (True,)}
    assert found.values("recompute") == [None, "full"]


@pytest.mark.parametrize(("keep", "held"), [("best", 1), (5, 5), ("all", "all"), ("pareto", "pareto")])
def test_keep(keep: Any, held: Any) -> None:
    assert spec({"keep": keep}).keep == held


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "bst", [1], 10**9])
def test_a_wrong_keep(keep: Any) -> None:
    assert "keep is" in problems({"keep": keep})


@pytest.mark.parametrize(
    ("document", "product", "said"),
    [
        ({"prodct": {}}, {}, "unknown key 'prodct'; did you mean product?"),
        ({"n_gpus": [8]}, {}, "n_gpus stands outside of a table; put it under [product]"),
        ({}, {"global_bach": 8}, "[product] unknown key 'global_bach'; did you mean global_batch"),
        ({}, {"measured_step_time_s": 8}, "is read by validate only"),
        ({"layout": {"tpp": 8}}, {}, "[layout] unknown key 'tpp'; did you mean"),
        ({"layout": {"seq_len": 8}}, {}, "[layout] unknown key 'seq_len'"),
        ({}, {"model": []}, "[product] model is an empty list"),
        ({"layout": {"tp": []}}, {}, "[layout] tp is an empty list"),
        ({"case": []}, {}, "case is empty"),
        ({"case": {"gpu": "b"}}, {}, "write [[case]] above each"),
        ({"product": 5}, {}, "write [product] above its keys"),
        ({}, {"tp": [1, "two"]}, "[product] tp is 'two', expected a number"),
        ({}, {"tp": [1.5]}, "tp is '1.5', expected a whole number"),
        ({}, {"tp": [[1]]}, "tp holds a list"),
        ({}, {"n_gpus": float("nan")}, "n_gpus is 'nan', expected a number"),
        ({}, {"precision": ["bf17"]}, "did you mean bf16?"),
        ({}, {"n_gpus": [8, 16, 8]}, "[product] n_gpus holds 8 twice"),
        ({}, {"model": ""}, "model holds an empty text"),
        ({"objective": "speed"}, {}, "objective is 'speed'"),
        ({"objective": "pareto"}, {}, 'write keep = "pareto"'),
        ({"objective": "memory", "keep": "all"}, {}, "objective has no meaning"),
        ({"causal_flops": "yes"}, {}, "expected true or false"),
        ({"layout": {"tp": [1, 2]}}, {"tp": 2}, "tp stands under [layout]"),
        ({"case": [{"gpu": "b200"}]}, {}, "gpu stands under [product] too"),
        ({"layout": {"tp": 1}}, {"layout": ["tp8"]}, "tp cannot be stated beside it"),
        ({}, {"layout": ["tp8-pipe"]}, "[product] layout 'tp8-pipe'"),
    ],
)
def test_a_wrong_spec(document: dict[str, Any], product: dict[str, Any], said: str) -> None:
    found = {"product": {**BASE, **product}, **document}
    with pytest.raises(UsageError) as caught:
        parse_spec(found)
    assert said in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    said = problems({"keep": "bst", "layout": {"tp": []}}, gpux=3)
    assert all(word in said for word in ("keep", "[layout] tp", "gpux"))


def test_what_is_missing() -> None:
    with pytest.raises(UsageError, match="the spec lacks model, gpu, n_gpus, seq_len, global_batch"):
        parse_spec({})
    with pytest.raises(UsageError, match="case 2 lacks gpu"):
        parse_spec({"product": {n: v for n, v in BASE.items() if n != "gpu"}, "case": [{"gpu": "b200"}, {"tp": 1}]})
    shape = {n: v for n, v in BASE.items() if n != "model"} | {"layers": 4, "hidden": 512, "heads": 8}
    assert parse_spec({"product": shape}).count == 1


def test_a_fingerprint_changes_with_what_it_covers_only() -> None:
    one = spec({"keep": 2}, tp=[1, 2]).fingerprint()
    assert spec({"keep": 2}, tp=[1, "2"]).fingerprint() == one
    assert len({one, spec({"keep": 3}, tp=[1, 2]).fingerprint(), spec({"keep": 2}, tp=[2, 1]).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"keep = ", "is not TOML"),
        (b"\xff\xfe\x00", "is UTF-16 text"),
        (b"a = \xff", "is not UTF-8"),
        (b"[product]\nmodel = 'a'\nmodel = 'b'\n", "is not TOML"),
        (b"a = " + b"[" * 5000, "is not TOML"),
    ],
)
def test_a_file_that_is_no_spec(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        read_spec(str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_spec(str(tmp_path / "none.toml"))
    with pytest.raises(DataError, match="directory"):
        read_spec(str(tmp_path))
