"""The contract of every formula: units on all of its signature, a citation, a validity range, a worked example."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import textwrap

import pytest

import gpucalc.formulas
from gpucalc.core.formula import FORMULAS, FormulaInfo, formula, info_of
from gpucalc.core.units import Bytes, Count
from gpucalc.database.reader import Database
from gpucalc.database.references import references

for module in pkgutil.iter_modules(gpucalc.formulas.__path__):
    importlib.import_module(f"gpucalc.formulas.{module.name}")

ALL = sorted(FORMULAS.values(), key=lambda info: info.name)
# The best of a table of tile shapes is a loop over the table: the one formula that is not a single expression.
OVER_A_TABLE = {"tile_utilisation": {"TILES", "Any"}}
every_formula = pytest.mark.parametrize("info", ALL, ids=lambda info: info.name)


def body_of(info: FormulaInfo) -> list[ast.stmt]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(info.function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree.body


def test_no_formula_hides_another_of_the_same_name() -> None:
    defined = [
        name
        for module in pkgutil.iter_modules(gpucalc.formulas.__path__)
        for name, value in vars(importlib.import_module(f"gpucalc.formulas.{module.name}")).items()
        if isinstance(getattr(value, "info", None), FormulaInfo) and value.__module__.endswith(f".{module.name}")
    ]
    assert len(defined) == len(set(defined))
    assert set(defined) <= set(FORMULAS)
    assert len(ALL) > 60


@every_formula
def test_every_argument_and_the_result_have_a_unit(info: FormulaInfo) -> None:
    missing = [name for name in (*info.parameters, "return") if name not in info.units]
    assert not missing


@every_formula
def test_its_source_is_cited_and_known(info: FormulaInfo) -> None:
    known = references(Database())
    assert info.cite in known
    assert known[info.cite].title
    assert known[info.cite].authors


@every_formula
def test_it_has_a_symbol_a_sentence_and_a_worked_example(info: FormulaInfo) -> None:
    assert info.symbol.strip()
    assert info.summary.endswith((".", ":")) or "." in (info.function.__doc__ or "")
    assert doctest.DocTestParser().get_examples(info.function.__doc__ or ""), "no doctest"


@every_formula
def test_its_validity_is_stated_where_it_restricts_anything(info: FormulaInfo) -> None:
    """Sums and products hold everywhere; what divides, rounds, takes roots or cases says where it holds."""
    assert isinstance(info.valid, str)
    called = {
        n.func.attr
        for n in ast.walk(ast.Module(body_of(info), []))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    if called & {"sqrt", "log2", "log", "select"}:
        assert info.valid.strip()


@every_formula
def test_its_body_is_named_intermediates_and_one_return(info: FormulaInfo) -> None:
    documentation, *steps = body_of(info)
    assert isinstance(documentation, ast.Expr)
    assert info.name in OVER_A_TABLE or all(isinstance(step, ast.Assign) for step in steps[:-1])
    assert isinstance(steps[-1], ast.Return)
    assert info.expression


@every_formula
def test_it_reads_nothing_but_its_arguments(info: FormulaInfo) -> None:
    """A formula is pure: names it reads are arguments, intermediates, numpy, or other formulas."""
    body = ast.Module(body_of(info), [])
    stored = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert read - stored - set(info.parameters) <= {"np", *FORMULAS, *OVER_A_TABLE.get(info.name, ())}


def test_an_unmarked_function_is_refused_and_a_marked_one_unchanged() -> None:
    def plain(size: Bytes) -> Bytes:
        """Double."""
        return size * 2  # type: ignore[operator]

    with pytest.raises(TypeError, match="plain"):
        info_of(plain)
    before = dict(FORMULAS)
    try:
        marked = formula(symbol="S", cite="hf", valid="")(plain)
        assert marked is plain
        assert info_of(marked).expression == "size * 2"
        assert info_of(marked).units["size"].byte == 1
    finally:
        FORMULAS.clear()
        FORMULAS.update(before)


def test_defaults_are_arguments_with_units_of_their_own() -> None:
    """A constant of a formula is a named argument, so that it shows in explanations and can be questioned."""

    def with_constant(parameters: Count, bytes_each: Bytes = 12.0) -> Bytes:
        """States."""
        return parameters * bytes_each  # type: ignore[operator]

    info = FormulaInfo(with_constant, "M", "hf", "")
    assert info.defaults == {"bytes_each": 12.0}
    assert info.units["bytes_each"].symbol == "B"


@every_formula
def test_what_may_bind_are_arguments_of_one_unit(info: FormulaInfo) -> None:
    assert len(info.bounds) != 1
    assert set(info.bounds) <= set(info.parameters)
    assert len({info.units[name] for name in info.bounds}) <= 1
