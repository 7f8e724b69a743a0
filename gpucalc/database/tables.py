"""The tables of constants: `calibration/*.csv`, each with its schema.

Overlaying them is `Database.table`: a later row replaces the one of the same key below it, and leaves standing the
constants for which its cells are empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucalc.core.errors import DataError, shown, suggestion
from gpucalc.core.vocabulary import PROTOCOLS
from gpucalc.database.files import file_label, read_text

FOLDER = "calibration"
PROVENANCE = ("measured", "published", "assumed")


@dataclass(frozen=True)
class Cell:
    """A column: a number from `low` to `high`, or a text of `choices`; `needed`: not empty in any row."""

    number: bool = True
    low: float = 0.0
    high: float = math.inf
    choices: tuple[str, ...] = ()
    needed: bool = False
    infinite: bool = False


TEXT = Cell(number=False)
NAME = Cell(number=False, needed=True)
SHARE = Cell(high=1.0)
NUMBER = Cell()
_PROVENANCE = Cell(number=False, choices=PROVENANCE, needed=True)


@dataclass(frozen=True)
class Row:
    """One row: its key, the constants that it states, and the other cells as text."""

    key: tuple[str, ...]
    values: Mapping[str, float]
    texts: Mapping[str, str]

    def over(self, below: Row | None) -> Row:
        """The row laid over one of the same key."""
        return Row(self.key, {**(below.values if below else {}), **self.values}, self.texts)


@dataclass(frozen=True)
class Schema:
    """What a table holds: columns that name a row, constants that estimates read, and what describes them.

    `row` returns what is wrong with a whole row, or "".
    """

    keys: Mapping[str, Cell]
    constants: Mapping[str, Cell]
    described: Mapping[str, Cell] = field(default_factory=dict)
    row: Callable[[Row], str] | None = None

    @property
    def columns(self) -> dict[str, Cell]:
        """All columns."""
        return {**self.keys, **self.constants, **self.described}


ERROR = Cell()  # a median of |predicted / measured - 1|
KERNELS = {"key": NAME, "precision": TEXT}
FITTED = {
    "provenance": _PROVENANCE,
    **dict.fromkeys(("rows", "fit_error", "heldout_error", "heldout_error_large", "left_out_error"), ERROR),
    **dict.fromkeys(("source", "note"), TEXT),
}
GEMM = {
    "gemm_launch_seconds": Cell(high=1.0),
    "gemm_efficiency": SHARE,
    "gemm_wave_exponent": NUMBER,
    "gemm_k_half": NUMBER,
    "gemm_memory_efficiency": SHARE,
    "gemm_l2_read_ratio": NUMBER,
    "gemm_l2_miss_penalty": NUMBER,
    "cast_bytes_per_element": NUMBER,
    "cast_launch_seconds": Cell(high=1.0),
    "gemm_misalignment": NUMBER,
}
ATTENTION = {
    "attention_launch_seconds": Cell(high=1.0),
    "attention_efficiency": SHARE,
    "attention_half": NUMBER,
    "attention_tail": NUMBER,
    "attention_passes": NUMBER,
    "decode_launch_seconds": Cell(high=1.0),
    "decode_memory_efficiency": SHARE,
    "decode_l2_read_ratio": NUMBER,
    "decode_block_seconds": Cell(high=1.0),
    "attention_backward_ratio": NUMBER,
    "score_traffic_forward": NUMBER,
    "score_traffic_backward": NUMBER,
    "batched_product_share": SHARE,
    "batched_product_half": NUMBER,
}
MEMORY = {"memory_efficiency": SHARE, "kernel_launch_seconds": Cell(high=1.0)}
# Constant → unit, of the collective formulas: those of a scale-up link, of a network, of expert exchanges.
LINK_CONSTANTS = {
    "link_efficiency": "",
    "collective_startup": "s",
    "all_reduce_startup": "s",
    "link_step_latency": "s",
    "chunk_latency": "s",
    "own_chunk": "",
    "all_to_all_startup": "s",
    "all_to_all_efficiency": "",
    "nvls_efficiency": "",
    "nvls_chunk_latency": "s",
    "nvls_minimum_ranks": "",
    "point_to_point_startup": "s",
    "point_to_point_efficiency": "",
    "bridge_sharing": "",
    "bridge_exponent": "",
    # A collective through several domains: NCCL's protocols and algorithms.
    **{f"{a}_{p}_{c}": "s" for a in ("ring", "tree") for p in PROTOCOLS for c in ("base", "link_step", "network_step")},
    **{f"{a}_{p}_coupling": "" for a in ("ring", "tree") for p in PROTOCOLS},
    **dict.fromkeys(("ring_ll_share", "tree_ll_share", "ll128_share", "ring_simple_plateau", "nvls_tree_coupling"), ""),
    **dict.fromkeys(("ll_pair_rate", "ll_many_rate", "tree_pair_rate", "tree_many_rate"), "B/s"),
    **dict.fromkeys(("nvls_pair_rate", "nvls_many_rate"), "B/s"),
    **dict.fromkeys(("nvls_tree_base", "nvls_tree_network_step"), "s"),
    "through_link_efficiency": "",
}
NETWORK_CONSTANTS = {
    **dict.fromkeys(("network_latency", "exchange_base", "exchange_domain_step", "exchange_peer_latency"), "s"),
    **dict.fromkeys(("lone_card_share", "exchange_card_share", "fabric_waits", "pat_share"), ""),
    **dict.fromkeys(("pat_network_step", "pat_rank_step"), "s"),
    "network_efficiency": "",
    "network_startup": "s",
    "network_step_latency": "s",
    "network_chunk_latency": "s",
}
EXCHANGE_CONSTANTS = {
    "exchange_efficiency": "",
    "exchange_startup": "s",
    "exchange_chunk_latency": "s",
    "exchange_network_efficiency": "",
    "exchange_network_startup": "s",
    "exchange_doubling_latency": "s",
}
EXCHANGE_KERNELS = ("deepep_normal", "deepep_low_latency")
EXCHANGE_PHASES = ("dispatch", "combine")
POLICY_CONSTANTS = ("rollout_ratio", "driver_seconds")
SCOPED = {
    "unit": TEXT,
    "provenance": _PROVENANCE,
    "source": TEXT,
    **dict.fromkeys(("n", "error_fit", "error_held_out"), ERROR),
    "note": TEXT,
}


def _unit_of(units: Mapping[str, str]) -> Callable[[Row], str]:
    """A row's check: its value has the unit of its constant, and shares are shares."""

    def wrong(row: Row) -> str:
        name, unit = row.key[-1], row.texts.get("unit", "")
        if unit != units[name]:
            return f"unit is {shown(unit)}, expected {units[name] or 'none'!r} of {name}"
        if name in {"link_efficiency", "network_efficiency"} and row.values["value"] > 1:
            return f"value is {row.values['value']:g}; {name} is a share of 1"
        return ""

    return wrong


def _band(row: Row) -> str:
    low, high = row.values["low"], row.values["high"]
    return "" if 0 < low <= 1 <= high else "expected 0 < low ≤ 1 ≤ high"


def _names(*known: str) -> Cell:
    return Cell(number=False, choices=known, needed=True)


_ANY_NUMBER = Cell(low=-math.inf)
FAMILIES = {
    "adapters": "LoRA, QLoRA and other adapters",
    "moe": "mixtures of experts",
    "slow-network": "more than one node and at most 60 Gb/s per GPU",
    "small": "eager or compiled PyTorch on one node, at most 3 B parameters",
    "low-precision": "8- and 4-bit products",
    "sharded": "FSDP and ZeRO-3",
    "dense": "dense models in 16 bit and more with tensor, pipeline and data parallelism",
}
TIME_BAND, MEMORY_BAND = QUANTITIES = ("time", "memory")  # what the uncertainty of an estimate is stated of
ASSUMED_KERNELS = "assumed-kernels"  # the band that widens that of a device without measured kernels
_VALUE = {"value": Cell(needed=True, infinite=True)}

TABLES: dict[str, Schema] = {
    "gemm": Schema(KERNELS, GEMM, FITTED),
    "attention": Schema(KERNELS, ATTENTION, FITTED),
    "memory": Schema(KERNELS, MEMORY, FITTED),
    "collectives": Schema(
        {"scope": NAME, "constant": _names(*LINK_CONSTANTS, *NETWORK_CONSTANTS)},
        _VALUE,
        SCOPED,
        _unit_of({**LINK_CONSTANTS, **NETWORK_CONSTANTS}),
    ),
    "alltoall": Schema(
        {"scope": NAME, "constant": _names(*EXCHANGE_CONSTANTS)}, _VALUE, SCOPED, _unit_of(EXCHANGE_CONSTANTS)
    ),
    "posttraining": Schema(
        {"constant": _names(*POLICY_CONSTANTS)},
        {"value": Cell(needed=True), "prior": NUMBER},
        {**dict.fromkeys(("unit", "why"), TEXT), "origin": _names("fitted", "counted", *PROVENANCE)},
    ),
    "bands": Schema(
        {"quantity": _names(*QUANTITIES), "kind": _names("rule", "family", "profile"), "name": NAME},
        {"value": Cell(needed=True)},
        dict.fromkeys(("rows", "sources"), ERROR),
    ),
    "stacks": Schema(
        {"factor": NAME},
        dict.fromkeys(("product_efficiency", "traffic_bytes", "launch_seconds", "step_floor"), Cell(needed=True)),
        {"provenance": _PROVENANCE, "rows": NUMBER, "sources": NUMBER, "note": TEXT},
    ),
    "stack_words": Schema({"word": NAME}, {}, {"stack": NAME, "kin": TEXT}),
    "network_bands": Schema(
        {"family": NAME},
        {"low": Cell(needed=True), "high": Cell(needed=True)},
        {"rows": ERROR, "provenance": Cell(number=False, choices=PROVENANCE), "note": TEXT},
        _band,
    ),
    "collectives_held_out": Schema({"id": NAME}, {"ratio": Cell(needed=True)}),
    "networks_held_out": Schema({"id": NAME}, {"ratio": Cell(needed=True)}),
    # What `gpucalc learn` takes from a cluster's own runs: logarithms of factors and their covariance.
    "learned": Schema(
        {
            "gpu": NAME,
            "quantity": _names(*QUANTITIES),
            "kind": _names("rule", "mean", "covariance"),
            "name": NAME,
            "other": TEXT,
        },
        {"value": Cell(low=-math.inf, needed=True)},
        {"source": TEXT, "date": TEXT},
    ),
    # What fits left behind: reports read these, estimates do not.
    "training_fit": Schema(
        {"profile": NAME, "constant": NAME},
        {"value": Cell(needed=True)},
        {**dict.fromkeys(("low", "prior", "high", "rows", "spread_low", "spread_high"), NUMBER), "at": TEXT},
    ),
    "held_out": Schema(
        {"id": NAME},
        dict.fromkeys(
            ("random_s", "random_mem_gib", "random_fill", "loso_s", "loso_mem_gib", "loso_fill"), _ANY_NUMBER
        ),
    ),
    "posttraining_held_out": Schema(
        {"id": NAME},
        {
            f"{left}_pred_{name}": NUMBER
            for left in ("family", "source")
            for name in ("peak_mem_gib", "tokens_per_s_per_gpu", "step_time_s")
        },
    ),
    "serving_errors": Schema(
        {"family": NAME, "quantity": NAME}, {}, dict.fromkeys(("rows", "median_error", "mean_error"), ERROR)
    ),
    "serving_held_out": Schema(
        {"id": NAME}, {}, {"series": TEXT, "left_out_ttft_ms": NUMBER, "left_out_tpot_ms": NUMBER}
    ),
}


def read_table(name: str, path: Path, root: Path) -> list[Row]:
    """The rows of one file. Raises DataError with all its problems."""
    return parse_table(name, read_text(path, root), file_label(path, root))


def parse_table(name: str, text: str, label: str) -> list[Row]:
    """The rows of a table's text; lines that begin with # and empty ones are left out.

    >>> parse_table("bands", "quantity,kind,name,value\\ntime,family,dense,1.2\\n", "bands.csv")[0].values
    {'value': 1.2}
    """
    schema = TABLES[name]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    reader = csv.reader(io.StringIO("\n".join(lines)))
    header = next(reader, [])
    problems = list(_heading(schema, header, label))
    rows: list[Row] = []
    if not problems:
        for number, cells in enumerate(reader, 2):
            if len(cells) != len(header):
                problems.append(f"{label}: row {number}: {len(cells)} cells, but the header has {len(header)} columns")
                continue
            row, wrong = _row(schema, dict(zip(header, cells, strict=True)))
            problems += [f"{label}: row {number}: {said}" for said in wrong]
            rows.append(row)
    if problems:
        raise DataError(*problems)
    return rows


def _heading(schema: Schema, header: list[str], label: str) -> Iterator[str]:
    columns = schema.columns
    for name in header:
        if name not in columns:
            yield f"{label}: {name}: unknown column{suggestion(name, columns, 1)}"
    needed = [n for n, cell in columns.items() if cell.needed and n not in header]
    if needed:
        yield f"{label}: no column {', '.join(needed)}"
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        yield f"{label}: column {', '.join(doubled)} twice"


def _row(schema: Schema, cells: Mapping[str, str]) -> tuple[Row, list[str]]:
    values: dict[str, float] = {}
    problems: list[str] = []
    for name, cell in schema.columns.items():
        text = cells.get(name, "").strip()
        if not text:
            if cell.needed:
                problems.append(f"{name}: is empty")
        elif not cell.number:
            if cell.choices and text not in cell.choices:
                problems.append(f"{name}: {shown(text)} is none of the known{suggestion(text, cell.choices, 1)}")
        else:
            try:
                value = float(text)
            except ValueError:
                problems.append(f"{name}: {shown(text)} is not a number")
                continue
            if not cell.low <= value <= cell.high or (math.isinf(value) and not cell.infinite):
                problems.append(f"{name}: {text} is not {_span(cell)}")
            if name in schema.constants:
                values[name] = value
    texts = {name: cells.get(name, "").strip() for name in schema.columns if name not in schema.constants}
    row = Row(tuple(texts[name] for name in schema.keys), values, texts)
    if not problems and schema.row and (said := schema.row(row)):
        problems.append(said)
    return row, problems


def _span(cell: Cell) -> str:
    if math.isinf(cell.low):
        return "a finite number"
    return (
        f"a number from {cell.low:g} to {cell.high:g}" if math.isfinite(cell.high) else "a finite number of 0 or more"
    )
