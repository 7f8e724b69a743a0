"""The schema of the records: what a file that describes one device, link, node … may state, and reading it.

It is the metadata of dataclass fields (`fact`): it drives reading, `hw check`, `hw schema` and the table in
`hardware_db/README.md`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpucalc.core.errors import DataError, UsageError, suggestion
from gpucalc.core.units import parse_quantity

CONFIDENCE = ("high", "medium", "low")
PRECISIONS = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8")
KINDS: dict[str, type] = {}  # folder of the database → dataclass of its records
R = TypeVar("R")


def fact(
    path: str, unit: str, doc: str, *, optional: bool = False, default: Any = None, choices: Sequence[str] = ()
) -> Any:
    """A dataclass field read from `path` ("group.key") of a TOML file.

    `unit` is a dimension of `units.parse_quantity` (B, B/s, s, 1/s, W: a string with a unit), "peaks" (a table
    precision → FLOP/s), "counts" (a table precision → number), or a plain kind: "text", "int", "number", "ratio",
    "flag", "keys".
    """
    metadata = {"path": path, "unit": unit, "doc": doc, "optional": optional, "choices": tuple(choices)}
    if not optional:
        return dataclasses.field(metadata=metadata)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def record(folder: str) -> Callable[[type[R]], type[R]]:
    """Register a dataclass as the record of a database folder.

    The class also has `key`, `sources` and `confidence`: the file's name, and what each group states.
    """

    def register(cls: type[R]) -> type[R]:
        KINDS[folder] = cls
        return cls

    return register


@functools.cache
def facts_of(cls: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    """(field, metadata) of each fact of a record."""
    return tuple((f.name, dict(f.metadata)) for f in dataclasses.fields(cls) if "path" in f.metadata)


def group_of(path: str) -> str:
    """The table of a file that a fact stands in; "" at its top."""
    return path.split(".")[0] if "." in path else ""


def _value(raw: Any, unit: str, choices: tuple[str, ...]) -> Any:
    """One value of a file as SI; raises UsageError with what is wrong."""
    if unit in {"text", "keys"}:
        if unit == "keys":
            if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
                raise UsageError("must be a list of texts")
            for item in raw:
                if choices and item not in choices:
                    raise UsageError(f"{item!r} is none of {', '.join(choices)}")
            return tuple(raw)
        if not isinstance(raw, str) or not raw.strip():
            raise UsageError("must be a text that is not empty")
        if choices and raw not in choices:
            raise UsageError(f"{raw!r} is none of {', '.join(choices)}")
        return raw
    if unit == "flag":
        if not isinstance(raw, bool):
            raise UsageError("must be true or false")
        return raw
    if unit == "int":
        if isinstance(raw, bool) or not isinstance(raw, int) or not 0 < raw <= 10**9:
            raise UsageError(f"must be a positive whole number, not {_shown(raw)}")
        return raw
    if unit in {"ratio", "number"}:
        top = 1.0 if unit == "ratio" else 1e9
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 < raw <= top:
            raise UsageError(f"must be a number above 0 and up to {top:g}, not {_shown(raw)}")
        return float(raw)
    if unit == "peaks":
        return _peaks(raw)
    if unit == "counts":
        return _counts(raw)
    if not isinstance(raw, str):
        raise UsageError(
            f"{_shown(raw)} is a bare value; write a quantity with its unit as text, such as {_example(unit)}"
        )
    return parse_quantity(raw, unit)


def _shown(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _example(unit: str) -> str:
    examples = {"B": '"80 GB"', "B/s": '"3.35 TB/s"', "1/s": '"1830 MHz"', "s": '"0.6 us"', "W": '"700 W"'}
    return examples.get(unit, f'"1 {unit}"')


def _counts(raw: Any) -> dict[str, float]:
    if not isinstance(raw, dict) or not raw:
        raise UsageError("must be a table of counts by precision, such as bf16 = 1024")
    problems = []
    for precision, count in raw.items():
        if precision not in PRECISIONS:
            problems.append(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
        elif isinstance(count, bool) or not isinstance(count, int | float) or not 0 < count <= 1e9:
            problems.append(f"{precision}: must be a number above 0, not {_shown(count)}")
    if problems:
        raise UsageError(*problems)
    return {precision: float(count) for precision, count in raw.items()}


def _peaks(raw: Any) -> dict[str, float]:
    if not isinstance(raw, dict) or not raw:
        raise UsageError('must be a table of peaks, such as bf16 = "989.4 TFLOP/s"')
    problems, peaks = [], {}
    for precision, text in raw.items():
        if precision not in PRECISIONS:
            problems.append(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
        elif not isinstance(text, str):
            problems.append(f'{precision}: {_shown(text)} is a bare value; write for example "989.4 TFLOP/s"')
        else:
            try:
                peaks[precision] = parse_quantity(text, "FLOP/s")
            except UsageError as error:
                problems.append(f"{precision}: {error}")
    if problems:
        raise UsageError(*problems)
    return peaks


def parse_record(cls: type[R], key: str, data: dict[str, Any], label: str) -> R:
    """A record of `cls` from the parsed TOML `data`; DataError with all problems as `file: key: problem`."""
    problems: list[str] = []
    values: dict[str, Any] = {"key": key}
    known: dict[str, set[str]] = {"": {"source", "confidence"}}
    used: set[str] = {""}
    schema: Any = cls
    for name, meta in facts_of(schema):
        path = meta["path"]
        group, last = group_of(path), path.rsplit(".", 1)[-1]
        known.setdefault(group, {"source", "confidence"}).add(last)
        table = data.get(group, {}) if group else data
        if not isinstance(table, dict):
            continue  # reported below, once
        if last in table:
            used.add(group)
            try:
                values[name] = _value(table[last], meta["unit"], meta["choices"])
            except UsageError as error:
                problems += [f"{label}: {path}: {problem}" for problem in error.problems]
        elif not meta["optional"]:
            problems.append(f"{label}: {path}: missing ({meta['doc']})")
    sources: dict[str, str] = {}
    confidence: dict[str, str] = {}
    for group, keys in known.items():
        table = data.get(group, {}) if group else data
        if not isinstance(table, dict):
            problems.append(f"{label}: {group}: must be a table [{group}]")
            continue
        prefix = f"{group}." if group else ""
        names = keys if group else keys | (set(known) - {""})
        for entry in table:
            if entry not in names:
                said = suggestion(entry, names, 1, otherwise="")
                problems.append(f"{label}: {prefix}{entry}: unknown key{said}")
        needs_source = group in used if group else "" in used and _plain_record(schema)
        for entry, into, choices in (("source", sources, ()), ("confidence", confidence, CONFIDENCE)):
            if entry in table:
                try:
                    into[group] = _value(table[entry], "text", choices)
                except UsageError as error:
                    problems.append(f"{label}: {prefix}{entry}: {error}")
            elif needs_source:
                problems.append(f"{label}: {prefix}{entry}: missing (each group of facts states its {entry})")
    if problems:
        raise DataError(*problems)
    return cls(**values | {"sources": sources, "confidence": confidence})


@functools.cache
def _plain_record(cls: Any) -> bool:
    """Whether the facts stand at the top of the file, so that its source does too."""
    return not any(group_of(meta["path"]) for _, meta in facts_of(cls))
