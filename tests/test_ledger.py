"""The ledger: references and where they lead, products and their units, scopes, and what a trace shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.formula import Constant, FormulaInfo
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.core.trace import records
from gpucalc.core.units import NUMBER, Bytes, BytesPerSecond, Count, Ratio, Seconds, Unit, unit_of

SHARE = Constant("SHARE", 0.5, "half of it", "assumed")


def transfer(message: Bytes, link: BytesPerSecond, startup: Seconds = 0.0, share: Ratio = 1.0) -> Seconds:
    """Time of a message."""
    return share * message / link + startup  # type: ignore[operator]


def doubled(ranks: Count) -> Count:
    """Twice."""
    return 2 * ranks  # type: ignore[operator]


for function in (transfer, doubled):  # not in the registry, which holds the formulas of the package
    function.info = FormulaInfo(function, function.__name__, "hf", "")  # type: ignore[attr-defined]


def ledger(trace: bool = True, **columns: Any) -> Ledger:
    values = {"message": 8.0, "link": 2.0, "ranks": np.array([1.0, 2.0, 2.0]), "layers": 4.0}
    return Ledger(Columns({**values, **columns}), trace=trace)


def kinds(found: Ledger, path: str) -> dict[str, tuple[str, str]]:
    return {name: (a.kind, a.name) for name, a in found.entries[path].arguments.items()}


@pytest.mark.parametrize("trace", [False, True])
def test_a_text_is_a_term_or_a_column(trace: bool) -> None:
    found = ledger(trace)
    found.add("time/one", transfer)
    assert found.add("time/two", transfer, startup="time/one", message="layers") == pytest.approx(6.0)
    assert found.add("time/three", transfer, share=SHARE, startup=1.0) == pytest.approx(3.0)
    if not trace:
        assert found.entries["time/two"].arguments == {}


def test_a_trace_tells_where_every_argument_came_from() -> None:
    found = ledger()
    found.add("time/one", transfer, share=SHARE)
    found.add("time/two", transfer, startup="time/one", message="layers", share=0.25, link=np.float64(3.0))
    assert kinds(found, "time/one") == {
        "message": ("column", "message"),
        "link": ("column", "link"),
        "startup": ("default", "startup"),
        "share": ("constant", "SHARE"),
    }
    assert kinds(found, "time/two") == {
        "message": ("column", "layers"),
        "link": ("computed", "link"),
        "startup": ("term", "time/one"),
        "share": ("constant", "share"),
    }


def test_a_defined_column_leads_to_its_term_also_in_scopes_below() -> None:
    found = ledger()
    found.define("ranks", doubled)
    found.add("time/one", transfer, message="ranks")
    inner = found.on("ranks")
    inner.add("time/two", transfer, message="ranks")
    for path in ("time/one", "time/two"):
        assert kinds(found, path)["message"] == ("term", "symbol/ranks")
    found.share("time/one")
    found.product("time/three", "one", "layers")
    assert kinds(found, "time/three")["one"] == ("term", "time/one")


@pytest.mark.parametrize("reference", ["time/none", "nothing", "time"])
def test_a_reference_to_nothing_is_an_error(reference: str) -> None:
    found = ledger()
    for verb in (found.product, found.total, found.maximum):
        with pytest.raises(KeyError, match=reference):
            verb("time/x", reference)
    with pytest.raises(KeyError, match=reference):
        found.add("time/x", transfer, message=reference)
    assert "time/x" not in found


def test_an_argument_that_the_formula_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="transfer has no argument links"):
        ledger().add("time/one", transfer, links="layers")


def test_a_path_is_stored_once() -> None:
    found = ledger()
    found.keep("x", 1.0)
    with pytest.raises(ValueError, match="x is stored twice"):
        found.product("x", "layers")


def test_a_product_has_the_unit_of_its_parts() -> None:
    found = ledger()
    found.add("time/one", transfer)
    assert found.product("moved", "time/one", "time/one", "layers") == pytest.approx(64.0)
    unit = found.unit("moved")
    assert unit is not None
    assert unit.symbol == "s^2"
    assert found.entries["moved"].parts == ("time/one", "time/one", "layers")


def test_a_product_may_replace_the_column_that_it_reads() -> None:
    found = ledger()
    found.add("time/one", transfer)
    found.product("group/link", "link", "layers")
    found.share("group/link")
    assert found.columns["link"] == 8.0
    assert found.unit("link") == found.unit("group/link")
    found.add("time/two", transfer)
    assert kinds(found, "time/two")["link"] == ("term", "group/link")


EXPONENTS = st.tuples(*[st.integers(-2, 2)] * 6)


@given(EXPONENTS, EXPONENTS)
def test_units_multiply_by_their_exponents(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    product = unit_of(first) * unit_of(second)
    assert product.exponents == tuple(a + b for a, b in zip(first, second, strict=True))
    assert unit_of(first) * NUMBER == unit_of(first)
    assert (product.symbol == "") == (not any(product.exponents))


@pytest.mark.parametrize(
    ("exponents", "symbol"),
    [
        ((1, -1, 0, 0, 0, 0), "B/s"),
        ((0, 1, 0, 1, 0, 0), "J"),
        ((0, -1, 0, 0, 0, 0), "1/s"),
        ((2, 0, -1, 0, 0, 0), "B^2/FLOP"),
    ],
)
def test_a_unit_has_its_usual_name(exponents: tuple[int, ...], symbol: str) -> None:
    assert unit_of(exponents).symbol == symbol


def test_terms_of_a_scope_are_computed_once_per_combination_and_read_by_wider_ones() -> None:
    found = ledger()
    inner = found.on("ranks")
    assert np.asarray(inner.add("inner", doubled)).tolist() == [2.0, 4.0]
    assert np.asarray(found.product("outer", "inner", "ranks")).tolist() == [2.0, 8.0, 8.0]
    with pytest.raises(KeyError, match="wider scope"):
        inner.product("again", "outer")


@pytest.mark.parametrize("trace", [False, True])
def test_a_choice_takes_a_reference(trace: bool) -> None:
    found = ledger(trace)
    found.keep("a", 10.0)
    found.keep("b", 20.0)
    assert np.asarray(found.choose("both", "ranks", {1: "a", 2: "b"})).tolist() == [10.0, 20.0, 20.0]
    assert found.choose("one", "layers", {4: "a", 1: "b"}) == 10.0
    with pytest.raises(KeyError, match="no case"):
        found.choose("none", "layers", {1: "a"})


def test_records_follow_references_and_name_what_decides() -> None:
    found = ledger(ranks=2.0)
    found.define("small", doubled)
    found.add("time/one", transfer, message="small")
    found.add("time/two", transfer, startup=5.0)
    found.maximum("time/largest", "time/one", "time/two")
    found.product("time/step", "time/largest", "layers")
    found.choose("time/chosen", "ranks", {2: "time/step", 1: "time/one"})
    terms = {term["path"]: term for term in records(found, ("time/chosen",))}
    assert [(path, term["depth"]) for path, term in terms.items()] == [
        ("time/chosen", 0),
        ("time/step", 1),
        ("time/largest", 2),
        ("time/one", 3),
        ("symbol/small", 4),
        ("time/two", 3),
    ]
    assert terms["time/chosen"]["note"] == "here time/step"
    assert terms["time/largest"]["note"] == "the largest is time/two"
    assert terms["time/step"]["formula"] == "time/largest × layers"
    assert terms["time/step"]["arguments"] == {"layers": {"value": 4.0, "unit": "", "column": "layers"}}
    assert terms["time/one"]["arguments"]["message"] == {"value": 4.0, "unit": "B", "term": "symbol/small"}


def test_a_constant_says_what_it_rests_on() -> None:
    with pytest.raises(ValueError, match="SHARE: the basis is one of"):
        Constant("SHARE", 0.5, "half of it", "guess")
    assert Constant("BYTES", 2.0, "on the wire", "definition", unit=Unit("B", byte=1)).unit.symbol == "B"
