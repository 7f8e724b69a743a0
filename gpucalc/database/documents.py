"""Files that extend one another: software profiles, engines, recipes. Their shapes, and the chain of one resolved.

A profile and an engine end, over however many others, in a base (`profiles/common.toml`, `engines/neutral.toml`):
the base of the shipped database states every constant there is, with its unit, so it is the schema of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import INPUT, cell_text, parse_cell
from gpucalc.core.errors import DataError, UsageError, suggestion, unknown
from gpucalc.core.vocabulary import SCHEDULES
from gpucalc.database.files import file_label, parse_file, read_text, read_toml
from gpucalc.database.shapes import Each, Either, Flag, Number, Rows, Shape, Table, Text, Texts, problems

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

ORIGINS = ("measured", "published", "fitted", "counted", "assumed")
MEMORY_RULES = ("total", "free", "static")
CONSTANT = Table({"value": Number(), "unit": Text(empty=True), "origin": Text(ORIGINS), "why": Text()})
# What an engine takes on a card where nothing is stated; the first row that the card meets holds.
BUDGET = Table(
    {"why": Text(), "chunk_tokens": Number(1, whole=True)},
    {
        "from_gib": Number(),
        "other_than": Text(),
        "max_seqs": Number(1, whole=True),
        "graph_batch": Number(1, whole=True),
        "graph_batch_wide": Number(1, whole=True),
    },
)
_MONTH = Text(accepts=lambda text: "" if re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text) else "expected YYYY-MM")
_TITLED: dict[str, Shape] = {"title": Text()}
_NAMED: dict[str, Shape] = {"extends": Text(), "frameworks": Texts()}


@dataclass(frozen=True)
class Kind:
    """A folder of such files: the shape of one, its base, and what a file takes over from the one it extends."""

    noun: str
    shape: Shape
    base: str = ""
    inherited: tuple[str, ...] = ()
    required: tuple[str, ...] = ()  # of the resolved file, as "table.key"


# Defaults of cells of the row schema, by their column.
CELL_DEFAULTS = (
    *("fused_gate", "fused_rope", "loss_kernel", "vocab_parallel_loss", "gradient_dtype", "fp8_params"),
    *("attention_precision", "cuda_graphs", "tp_overlap", "dp_overlap", "expert_kernel", "dispatcher"),
)


def _choice(name: str) -> Shape:
    """What a profile may state as the default of a column: yes or no, or one of its words."""
    column = INPUT[name]
    return Flag() if column.kind == "flag" else Text(tuple(column.choices))


PROFILE_DEFAULTS: dict[str, Shape] = {
    "flash_attention": Text(("yes", "no", "fa1", "fa2", "fa3", "vendor")),
    "flash_kernel": Text(("fa1", "fa2", "fa3", "vendor")),
    "fused_norm": Flag(),
    "sequence_parallel": Flag(),
    "vpp": Text(("full", "one")),
    "zero_stage": Number(0, 3, whole=True),
    "dropout": Either((Flag(), Text(("plain",)))),  # "plain": on where the MLP is not gated
    **{name: _choice(name) for name in CELL_DEFAULTS},
    "cuda_graphs_rack": Text(tuple(INPUT["cuda_graphs"].choices)),  # on racks, whose recipes may differ
    "grad_accum_dtype": Text(tuple(INPUT["grad_accum_dtype"].choices)),
    "schedules": Texts(SCHEDULES),
}
OPTIONAL_DEFAULTS = ("schedules", "grad_accum_dtype")


def _cell(name: str, value: Any) -> str:
    """What is wrong with a cell of the row schema, or ""."""
    if name not in INPUT:
        return f"no column of a row{suggestion(name, INPUT, 1, otherwise='')}"
    try:
        parse_cell(INPUT[name], cell_text(value))
    except UsageError as error:
        return str(error)
    return ""


_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_CELL = Either((Text(), Number(), Flag()))
_CELLS = Each(_CELL)
RECIPE_CASES = ("cells", "sharded", "full", "full_alone", "many")
KINDS: dict[str, Kind] = {
    "profiles": Kind(
        "profile",
        Table(
            _TITLED,
            {
                **_NAMED,
                "since": _MONTH,
                "until": _MONTH,
                "constants": Each(CONSTANT),
                "defaults": Table({}, PROFILE_DEFAULTS),
                "stated_by_each": Each(Text(empty=True)),
            },
        ),
        base="common",
        inherited=("constants", "defaults"),
        required=tuple(f"defaults.{n}" for n in PROFILE_DEFAULTS if n not in OPTIONAL_DEFAULTS),
    ),
    "engines": Kind(
        "engine",
        Table(
            _TITLED,
            {
                **_NAMED,
                "dated": _MONTH,
                "version": Text(),
                "memory_rule": Text(MEMORY_RULES),
                "constants": Each(CONSTANT),
                "budgets": Rows(BUDGET),
                "versions": Each(Each(CONSTANT)),
            },
        ),
        base="neutral",
        inherited=("constants", "memory_rule"),
        required=("memory_rule",),
    ),
    "recipes": Kind(
        "recipe",
        Table(
            {**_TITLED, "source": Text(), "frameworks": Texts(), "framework": Text()},
            {
                "extends": Text(),
                "software_date": _MONTH,
                **dict.fromkeys(("packed", "recompute_if_needed"), Flag()),
                **dict.fromkeys(("mean_sample", "longest_sample"), Number(whole=True)),
                **dict.fromkeys(RECIPE_CASES, _CELLS),
            },
        ),
        inherited=RECIPE_CASES,
    ),
}


@dataclass(frozen=True)
class Document:
    """One such file: what it states itself, and the tables and keys that it takes over."""

    name: str
    label: str
    data: Mapping[str, Any] = field(default_factory=dict)
    lineage: tuple[str, ...] = ()  # itself and what it extends, nearest first

    def text(self, key: str, default: str = "") -> str:
        """A text that the file states itself."""
        return str(self.data.get(key, default))

    def table(self, key: str) -> dict[str, Any]:
        """A table with what is taken over."""
        return dict(self.data.get(key, {}))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the framework cell by which the file is chosen: its name and those it states."""
        return (self.name, *(str(word).casefold() for word in self.data.get("frameworks", ())))


def _read(db: Database, folder: str, name: str) -> tuple[str, dict[str, Any]]:
    """The label and the table of one file. DataError where it is not of its shape."""
    path, root = db.files(folder)[name]
    label, data = file_label(path, root), read_toml(path, root)
    if found := list(problems(KINDS[folder].shape, data, label)):
        raise DataError(*found)
    return label, data


def _kept(db: Database, folder: str, name: str) -> tuple[str, dict[str, Any]]:
    return db.kept(("file", folder, name), lambda: _read(db, folder, name))


def head(db: Database, folder: str, name: str) -> Document:
    """What a file states before its first table: enough to choose one by its words and dates, and quick to read."""
    path, root = db.files(folder)[name]
    label = file_label(path, root)
    data = parse_file(_FIRST_TABLE.split(read_text(path, root), maxsplit=1)[0], label)
    if found := list(problems(KINDS[folder].shape, data, label)):
        raise DataError(*found)
    return Document(name, label, data)


def constant_units(db: Database, folder: str) -> dict[str, str]:
    """Constant → unit, of everything that a profile or an engine may state: by the shipped base."""
    _, data = _kept(db.shipped(), folder, KINDS[folder].base)
    stated = {name: str(constant["unit"]) for name, constant in data.get("constants", {}).items()}
    return stated | {name: str(unit) for name, unit in data.get("stated_by_each", {}).items()}


def resolve(db: Database, folder: str, name: str) -> Document:
    """A file with what it extends.

    Raises UsageError for an unknown name, DataError with all problems of the file and of those that it extends.
    """
    kind, listed = KINDS[folder], db.files(folder)
    if name not in listed:
        raise unknown(kind.noun, name, [n for n in listed if n != "common"])
    chain: list[tuple[str, dict[str, Any]]] = []
    here, seen = name, [name]
    while True:
        label, data = _kept(db, folder, here)
        chain.append((label, data))
        if "extends" not in data:
            break
        here = data["extends"]
        if here not in listed:
            raise DataError(f"{label}: extends: {unknown(kind.noun, here, listed)}")
        if here in seen:
            raise DataError(f"{chain[0][0]}: extends: {' → '.join([*seen, here])} is a circle")
        seen.append(here)
    whole = dict(chain[0][1])
    for key in kind.inherited:
        layers = [data[key] for _, data in reversed(chain) if key in data]
        if layers:
            tables = all(isinstance(layer, dict) for layer in layers)
            whole[key] = {n: v for layer in layers for n, v in layer.items()} if tables else layers[-1]
    document = Document(name, chain[0][0], whole, tuple(seen))
    said = [*_constants(db, folder, document), *_required(kind, document), *_cells(folder, document)]
    if said:
        raise DataError(*said)
    return document


def _required(kind: Kind, document: Document) -> Iterator[str]:
    for path in kind.required:
        table, _, key = path.rpartition(".")
        if key not in (document.data.get(table, {}) if table else document.data):
            yield f'{document.label}: {path}: missing; state it, or add extends = "{kind.base}"'


def _constants(db: Database, folder: str, document: Document) -> Iterator[str]:
    """Constants that nothing reads, in another unit than the base's, or missing."""
    kind = KINDS[folder]
    if not kind.base:
        return
    units = db.kept((folder, "units"), lambda: constant_units(db, folder))
    families = {one.lookup.casefold() for one in db.architectures()}
    stems = {name.rpartition("_")[0] for name in units if name.rpartition("_")[2] in families}
    stated = document.table("constants")
    versions = [pair for table in document.table("versions").values() for pair in table.items()]
    for name, constant in [*stated.items(), *versions]:
        stem, _, family = name.rpartition("_")
        unit = units.get(name)
        if unit is None and not (stem in stems and family in families):
            yield f"{document.label}: constants.{name}: nothing reads it{suggestion(name, units, 1, otherwise='')}"
        elif unit is not None and constant["unit"] != unit:
            yield f"{document.label}: constants.{name}.unit: {constant['unit']!r}, expected {unit!r}"
        elif name.endswith(("_share", "_residual")) and constant["value"] > 1:
            yield f"{document.label}: constants.{name}.value: {constant['value']:g} is not from 0 to 1"
    missing = [name for name in units if name not in stated]
    if missing and document.name != kind.base:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        yield f'{document.label}: constants: {some} missing; state them, or add extends = "{kind.base}"'


def _cells(folder: str, document: Document) -> Iterator[str]:
    if folder != "recipes":
        return
    for case in RECIPE_CASES:
        for name, value in document.table(case).items():
            if said := _cell(name, value):
                yield f"{document.label}: {case}.{name}: {said}"
