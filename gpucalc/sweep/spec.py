"""What a sweep covers: a TOML file of lists whose combinations are cells, numbered without listing them.

keep = "best"                      # of each cell: best, a number, pareto, or all

[product]                          # every combination is a cell
model = ["llama-3.1-8b", "llama-3.1-70b"]
n_gpus = [64, 128]
seq_len = 8192
global_batch = 256

[[case]]                           # keys that go together; crossed with the product
gpu = "h100-sxm-80gb"

[[case]]
gpu = "b200-sxm-192gb"
precision = ["bf16", "fp8"]

[layout]                           # what the search of each cell may choose from
tp = [1, 2, 4, 8]
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucalc.core.columns import INPUT, MEASURED, parse_cell
from gpucalc.core.errors import DataError, UsageError, suggestion
from gpucalc.core.files import read_text
from gpucalc.core.toml import parse_toml
from gpucalc.jobs.network import is_network
from gpucalc.layouts.axes import searched_axes

BEST = {"best": 1}
ALL, PARETO = "all", "pareto"
OBJECTIVES = ("throughput", "mfu", "memory")
LARGEST_KEEP = 100_000  # the best k of a cell are held in memory
CHOICES = ("fabric", "profile")  # no columns of a row, but what a cell may differ in
AXES = (*(n for n in INPUT if n not in MEASURED), *CHOICES, "layout")
TABLES = ("product", "case", "layout")
SETTINGS = ("keep", "objective", "causal_flops")
NEEDED = ("gpu", "n_gpus", "seq_len", "global_batch")
SHAPE = ("layers", "hidden", "heads")
LARGEST_FILE = 16 << 20

Axis = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Spec:
    """A sweep: `cases` are products of axes, one after the other; `layout` restricts the search of every cell."""

    cases: tuple[tuple[Axis, ...], ...]
    layout: Mapping[str, tuple[Any, ...]]
    keep: int | str
    objective: str
    causal_flops: bool

    @property
    def count(self) -> int:
        """Number of cells."""
        return sum(_size(case) for case in self.cases)

    def cell(self, index: int) -> dict[str, Any]:
        """The stated values of a cell; the last axis of a case turns fastest."""
        for case in self.cases:
            size = _size(case)
            if index < size:
                return _combination(case, index)
            index -= size
        raise IndexError(index)

    def names(self) -> list[str]:
        """Names of all axes."""
        return list(dict.fromkeys(name for case in self.cases for name, _ in case))

    def values(self, name: str) -> list[Any]:
        """All values of an axis."""
        return list(dict.fromkeys(v for case in self.cases for n, values in case if n == name for v in values))

    def fingerprint(self) -> str:
        """A short hash of everything that decides the cells and their rows."""
        known = [self.cases, dict(self.layout), self.keep, self.objective, self.causal_flops]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]


def _size(case: tuple[Axis, ...]) -> int:
    return math.prod(len(values) for _, values in case)


def _combination(case: tuple[Axis, ...], index: int) -> dict[str, Any]:
    chosen = {}
    for name, values in reversed(case):
        index, place = divmod(index, len(values))
        chosen[name] = values[place]
    return {name: chosen[name] for name, _ in case}


def read_spec(path: str) -> Spec:
    """The sweep of a TOML file.

    Raises DataError for what is no TOML, UsageError with every wrong key and value.
    """
    text = read_text(path, LARGEST_FILE, "a spec, which is a small TOML file")
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not TOML: {str(error)[:200]}") from None
    try:
        return parse_spec(document)
    except UsageError as error:
        raise DataError(f"{path}: {error}") from None


def parse_spec(document: Mapping[str, Any]) -> Spec:
    """The sweep that a TOML document means.

    >>> spec = parse_spec({"product": {"model": ["llama-3.1-8b", "llama-3.1-70b"], "gpu": "h100-sxm-80gb",
    ...     "n_gpus": [8, 16, 32], "seq_len": 4096, "global_batch": 64}})
    >>> spec.count, spec.cell(4)["model"], spec.cell(4)["n_gpus"]
    (6, 'llama-3.1-70b', 16)
    """
    problems = list(_unknown_keys(document))
    keep = _keep(document.get("keep", "best"), problems)
    objective = document.get("objective", OBJECTIVES[0])
    if objective not in OBJECTIVES:
        hint = '; write keep = "pareto"' if objective == PARETO else suggestion(str(objective), OBJECTIVES)
        problems.append(f"objective is {objective!r}{hint}")
    elif keep in (ALL, PARETO) and "objective" in document:
        problems.append(f'objective has no meaning with keep = "{keep}"')
    causal = document.get("causal_flops", False)
    if not isinstance(causal, bool):
        problems.append(f"causal_flops is {causal!r}, expected true or false")
    product = _axes(document.get("product", {}), "product", AXES, problems)
    layout = _axes(document.get("layout", {}), "layout", searched_axes(), problems)
    stated = document.get("case", [{}])
    if not isinstance(stated, list) or not all(isinstance(case, dict) for case in stated):
        problems.append("case is not a list of tables; write [[case]] above each")
        stated = [{}]
    if not stated:
        problems.append("case is empty; leave it out, or write one [[case]] or more")
    cases = []
    for number, table in enumerate(stated, 1):
        where = f"case {number}" if "case" in document else "product"
        own = _axes(table, where, AXES, problems)
        problems += _contradictions(where, product, own, layout)
        cases.append((*product.items(), *own.items()))
    if not problems:  # what is missing is told of a spec that is right otherwise
        missing = [_missing(f"case {i}" if "case" in document else "the spec", dict(c)) for i, c in enumerate(cases, 1)]
        problems += [sentence for sentence in missing if sentence]
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    return Spec(tuple(cases), layout, keep, objective, causal)


def _unknown_keys(document: Mapping[str, Any]) -> Iterator[str]:
    for key in document:
        if key in AXES and key not in TABLES:
            yield f"{key} stands outside of a table; put it under [product]"
        elif key not in (*TABLES, *SETTINGS):
            yield f"unknown key {key!r}{suggestion(str(key), (*TABLES, *SETTINGS))}"


def _keep(value: Any, problems: list[str]) -> int | str:
    if isinstance(value, str) and value in BEST:
        return BEST[value]
    if value in (ALL, PARETO) and isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_KEEP:
        return value
    problems.append(f'keep is {value!r}, expected "best", a number from 1 to {LARGEST_KEEP:,}, "pareto" or "all"')
    return 1


def _axes(table: Any, where: str, known: tuple[str, ...], problems: list[str]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(table, dict):
        problems.append(f"{where} is {type(table).__name__}, expected a table; write [{where}] above its keys")
        return {}
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            note = " is read by validate only" if name in MEASURED else suggestion(str(name), known)
            problems.append(f"[{where}] unknown key {key!r}{note}")
            continue
        values = value if isinstance(value, list) else [value]
        if not values:
            problems.append(
                f"[{where}] {key} is an empty list, so there would be no cell; state a value, or leave it out"
            )
            continue
        parsed = [_value(name, v, where, problems) for v in values]
        doubled = next((v for v, times in Counter(parsed).items() if times > 1 and v is not None), None)
        if doubled is not None:
            problems.append(f"[{where}] {key} holds {doubled} twice")
        found[name] = tuple(parsed)
    return found


def _value(name: str, value: Any, where: str, problems: list[str]) -> Any:
    """One value by the rules of its column: what a cell of a row file takes, a list of a spec takes."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, str | int | float):
        text = str(value)
    else:
        problems.append(f"[{where}] {name} holds a {type(value).__name__}, expected values such as {name} = [a, b]")
        return None
    if name == "recompute" and text.strip().casefold() == "auto":
        return None
    if name in (*CHOICES, "layout"):
        parsed: Any = text.strip() or None
    else:
        try:
            parsed = parse_cell(INPUT[name], text)
        except UsageError as error:
            problems.extend(f"[{where}] {sentence}" for sentence in error.problems)
            return None
    if parsed is None:
        problems.append(f"[{where}] {name} holds an empty text")
    return parsed


def _contradictions(
    where: str, product: Mapping[str, Any], own: Mapping[str, Any], layout: Mapping[str, Any]
) -> Iterator[str]:
    both = [name for name in own if name in product]
    if both:
        yield f"[{where}] {', '.join(both)} stands under [product] too; state it in one place"
    axes = {**product, **own}
    both = [name for name in layout if name in axes]
    if both:
        yield (
            f"{', '.join(both)} stands under [layout], which the search chooses from, and as an axis, "
            "of which each value is a cell; state it in one place"
        )
    if "layout" in axes:
        both = [name for name in (*axes, *layout) if name in searched_axes()]
        if both:
            yield f"layout states layouts; {', '.join(dict.fromkeys(both))} cannot be stated beside it"
        from gpucalc.layouts.label import read_restriction

        for text in axes["layout"]:
            try:
                read_restriction(str(text))
            except UsageError as error:
                yield f"[{where}] layout {text!r}: {error}"


def _missing(where: str, axes: Mapping[str, Any]) -> str:
    names = [name for name in NEEDED if name not in axes]
    first = {name: values[0] for name, values in axes.items() if name != "model"}
    if all(is_network({**first, "model": model}) for model in axes.get("model", (None,))):
        names = [name for name in names if name not in {"seq_len", "global_batch"}]
        return f"{where} lacks {', '.join(names)}" if names else ""
    if "model" not in axes and not all(name in axes for name in SHAPE):
        names.insert(0, "model")
    return f"{where} lacks {', '.join(names)}" if names else ""


def single(spec: Spec, index: int) -> Spec:
    """A sweep of one cell of `spec`, with the columns of all; it is small whatever the size of the lists."""
    values = spec.cell(index)
    case = tuple((name, (values.get(name),)) for name in spec.names())
    return Spec((case,), spec.layout, spec.keep, spec.objective, spec.causal_flops)
