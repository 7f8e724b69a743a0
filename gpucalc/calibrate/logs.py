"""Reading what a user measured: the output of nccl-tests or rccl-tests, and tables of matrix product timings.

A log of nccl-tests is text that other programs write into too: lines of the launcher, of NCCL_DEBUG, of
a scheduler. What is read: lines that name the program, the list of ranks, the headings of the table
(which differ between versions) and rows below them. A row that does not fit its heading is an error.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucalc.core.errors import DataError, nearest, unknown
from gpucalc.core.files import read_text

# Programs of nccl-tests → the operation of gpucalc; None: no formula for it.
PROGRAMS: dict[str, str | None] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": None,
    "gather": None,
    "scatter": None,
    "hypercube": None,
    "alltoallv": None,
}
MAX_LOG_BYTES = 64 << 20
MAX_LINE = 1000  # characters; what is longer is not a row of a table
LARGEST_SIZE = 10**15  # bytes
_TYPES = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8"}
_TYPES |= {"char", "int", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "float8_e4m3", "float8_e5m2"}
_PROGRAM = re.compile(r"\b(" + "|".join(sorted(PROGRAMS, key=len, reverse=True)) + r")_perf\b")
_RANK = re.compile(
    r"^#\s+Rank\s+(\d+)\s(?:.*?\bGroup\s+(\d+)\s)?.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$"
)
# "[1,0]<stdout>: " of mpirun --tag-output, "0: " of srun -l.
_TAG = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\s*\d+:\s)")


@dataclass
class Timing:
    """One row of a table: one size of one operation."""

    op: str
    size: int
    ranks: int
    hosts: int | None
    out_of_place: float | None  # seconds
    in_place: float | None
    where: str


@dataclass
class Block:
    """A table of a log: its operation, its ranks, and its rows as they were printed."""

    heading: list[str]
    program: str | None
    ranks: int | None
    hosts: int | None
    names: list[str]
    line: int
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


@dataclass
class Log:
    """What one file holds: collectives or matrix products, and what a reader should be told of it."""

    name: str
    timings: list[Timing] = field(default_factory=list)
    products: list[dict[str, str]] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_log(path: Path, op: str | None = None, ranks: int | None = None) -> Log:
    """The measurements of a file; its kind is found from the content. Raises DataError that names the line."""
    text = _text(path)
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    heading = {cell.strip().casefold() for cell in first.split(",")}
    if {"m", "n", "k"} <= heading:
        return Log(path.name, products=_products(path.name, text))
    return _collectives(path.name, text, op, ranks)


def _text(path: Path) -> str:
    # A host name or a kernel message in another encoding must not spoil a log whose tables are ASCII.
    return read_text(path, MAX_LOG_BYTES, "a log or a CSV of timings, cut to its tables", strict=False)


# --- nccl-tests --------------------------------------------------------------------------------------


def _blocks(text: str) -> list[Block]:
    """The tables of a log with the program and the ranks that stand before each."""
    blocks: list[Block] = []
    program: str | None = None
    devices: dict[int, tuple[int, str, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", line)
        named = _PROGRAM.search(line)
        if named:
            program = named[1]
        if line.startswith("#"):
            cells = line.lstrip("# ").split()
            rank = _RANK.match(line)
            if rank:
                devices[int(rank[1])] = int(rank[2] or 0), rank[3], rank[4]
            elif line.lstrip("# ").startswith(("nThread", "Using devices")):
                devices = {}
            elif cells[:2] == ["size", "count"] and "time" in cells:
                # Ranks that NCCL_TESTS_SPLIT divides run one collective in each group, at the same time.
                first = min((group for group, _, _ in devices.values()), default=0)
                hosts = [host for group, host, _ in devices.values() if group == first]
                names = sorted({name for _, _, name in devices.values() if name})
                blocks.append(Block(cells, program, len(hosts) or None, len(set(hosts)) or None, names, number))
                program = None
            continue
        cells = line.split()
        if len(line) > MAX_LINE or not blocks or len(cells) < 3 or not cells[0].isdecimal():
            continue
        if cells[2] in _TYPES or (cells[1].isdecimal() and len(cells) >= 6):
            blocks[-1].rows.append((number, cells))
    return blocks


def _collectives(name: str, text: str, op: str | None, ranks: int | None) -> Log:
    log = Log(name)
    blocks = _blocks(text)
    if not blocks:
        raise DataError(
            f"{name}: no table of nccl-tests (a line '# size count type … time algbw busbw') "
            "and no CSV with the columns m, n, k"
        )
    problems: list[str] = []
    for block in blocks:
        if not block.rows:
            log.warnings.append(f"{name}: the table of line {block.line} has no rows")
            continue
        log.devices += [n for n in block.names if n not in log.devices]
        try:
            _read_block(log, block, op, ranks)
        except DataError as error:
            problems += error.problems
    if problems:
        more = f"{len(problems) - 5} more lines like these" if len(problems) > 5 else ""
        raise DataError(*problems[:5], *([more] if more else []))
    if not log.timings and not log.warnings:
        raise DataError(f"{name}: the tables hold no rows")
    return log


def _read_block(log: Log, block: Block, stated: str | None, ranks: int | None) -> None:
    where = f"{log.name}, line {block.line}"
    op = _operation(log, block, stated, where)
    if op is None:
        return
    if block.ranks and ranks and block.ranks != ranks:
        raise DataError(f"{where}: the log lists {block.ranks} ranks and --gpus is {ranks}; leave --gpus out")
    count = block.ranks or ranks
    if count is None:
        raise DataError(f"{where}: no list of ranks ('# Rank 0 … device 0') before the table; state --gpus")
    problems: list[str] = []
    wrong = 0
    for number, cells in block.rows:
        try:
            timing, ratio, bad = _row(op, block, cells, count, f"{log.name}, line {number}")
        except DataError as error:
            problems += error.problems
            continue
        if bad:
            wrong += 1
            continue
        expected = _bus_factor(op, count)
        if ratio is not None and abs(ratio - expected) > 0.03 * expected:
            raise DataError(
                f"{timing.where}: busbw is {ratio:.4g} times algbw, and {op} over {count} ranks has "
                f"{expected:.4g}; state the right --op and --gpus"
            )
        if timing.size > 0 and count > 1:
            log.timings.append(timing)
    if problems:
        raise DataError(*problems)
    if wrong:
        log.warnings.append(f"{where}: {wrong} rows report wrong results (#wrong above 0) and are left out")
    if count == 1:
        log.warnings.append(f"{where}: {op} over one rank says nothing of links; left out")


def _operation(log: Log, block: Block, stated: str | None, where: str) -> str | None:
    program = block.program
    if program is not None and PROGRAMS[program] is None:
        log.warnings.append(f"{where}: there is no formula for {program}_perf; its table is left out")
        return None
    found = PROGRAMS[program] if program else None
    if stated and found and stated != found:
        raise DataError(f"{where}: the log is of {program}_perf and --op is {stated}; leave --op out")
    if stated or found:
        return stated or found
    folded = re.sub(r"[^a-z]", "", log.name.casefold())
    spelled = {re.sub("_", "", name): name for name in PROGRAMS}
    named = next((spelled[n] for n in sorted(spelled, key=len, reverse=True) if n in folded), None)
    if named is not None and PROGRAMS[named] is not None:
        return PROGRAMS[named]
    raise DataError(f"{where}: neither the log nor its name says which program ran; state --op, such as all_reduce")


def _bus_factor(op: str, ranks: int) -> float:
    from gpucalc.estimate.collectives import bus_factor

    return float(bus_factor(op, ranks))


def _row(op: str, block: Block, cells: list[str], ranks: int, where: str) -> tuple[Timing, float | None, bool]:
    """One row, its ratio of bus to algorithm bandwidth, and whether its results were wrong."""
    heading = block.heading
    if len(cells) != len(heading):
        raise DataError(f"{where}: {len(cells)} cells where the heading has {len(heading)}; is the line cut off?")
    at = [i for i, name in enumerate(heading) if name == "time"]
    seconds: list[float | None] = []
    for place in at:
        value = _number(cells[place], "time", where)
        if value is not None and value <= 0 and cells[0] != "0":
            raise DataError(f"{where}: time is {cells[place]}, expected more than 0")
        seconds.append(None if value is None else value * 1e-6)
    rate, bus = (_number(cells[at[0] + i], n, where) for i, n in ((1, "algbw"), (2, "busbw")))
    # Two decimals are printed: below 5 GB/s the ratio is too coarse to tell one operation from another.
    ratio = bus / rate if bus is not None and rate is not None and rate >= 5 else None
    bad = False
    for name, cell in zip(heading, cells, strict=True):
        if name.casefold() in {"#wrong", "error", "wrong"} and cell.upper() != "N/A":
            deviation = _number(cell, name, where) or 0.0
            bad |= deviation >= 1 if name.casefold() != "error" else deviation > 1e-2
    timing = Timing(op, int(cells[0]), ranks, block.hosts, seconds[0], seconds[1] if len(seconds) > 1 else None, where)
    return timing, ratio, bad


def _number(cell: str, name: str, where: str) -> float | None:
    if cell.upper() == "N/A":
        return None
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{where}: {name} is {cell!r}, expected a number") from None
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: {name} is {cell}, expected 0 or more")
    return value


# --- matrix products ---------------------------------------------------------------------------------

DTYPES = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "fp8": "fp8",
    "float8": "fp8",
    "e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "tf32": "tf32",
}


def _products(name: str, text: str) -> list[dict[str, str]]:
    """Rows with m, n, k, precision, time_us and, where stated, gpu."""
    numbered = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"]
    reader = csv.reader(io.StringIO("\n".join(line for _, line in numbered)))
    try:
        table = list(reader)
    except csv.Error as error:
        raise DataError(f"{name}: {error}") from None
    heading = [cell.strip().casefold() for cell in table[0]]
    missing = [n for n in ("dtype",) if n not in heading]
    if not {"time_us", "tflops"} & set(heading):
        near = nearest("time_us", heading, 1)
        missing.append("time_us or tflops" + (f" (there is {near[0]})" if near else ""))
    if missing:
        raise DataError(f"{name}: no column {' and no column '.join(missing)}")
    if len(table) == 1:
        raise DataError(f"{name}: a heading without rows")
    rows: list[dict[str, str]] = []
    problems: list[str] = []
    lines: Sequence[int] = [i for i, _ in numbered]
    for number, cells in zip(lines[1:], table[1:], strict=False):
        try:
            rows.append(_product(dict(zip(heading, cells, strict=False)), len(cells), len(heading), name, number))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(*problems[:5], *([f"{len(problems) - 5} more lines like these"] if len(problems) > 5 else []))
    return rows


def _product(record: dict[str, str], cells: int, columns: int, name: str, line: int) -> dict[str, str]:
    where = f"{name}, line {line}"
    if cells != columns:
        raise DataError(f"{where}: {cells} cells where the heading has {columns}")
    shape = {}
    for side in "mnk":
        text = record[side].strip()
        if not text.isdecimal() or len(text) > 9 or int(text) == 0:
            raise DataError(f"{where}: {side} is {text!r}, expected a whole number of at least 1")
        shape[side] = str(int(text))
    said = record["dtype"].strip()
    precision = DTYPES.get(said.casefold().removeprefix("torch."))
    if precision is None:
        raise DataError(f"{where}: {unknown('dtype', said, DTYPES)}")
    microseconds = _positive(record.get("time_us", ""), "time_us", where)
    if microseconds is None:
        rate = _positive(record.get("tflops", ""), "tflops", where)
        if rate is None:
            raise DataError(f"{where}: neither time_us nor tflops is stated")
        microseconds = 2.0 * int(shape["m"]) * int(shape["n"]) * int(shape["k"]) / (rate * 1e12) * 1e6
    if not 1e-3 <= microseconds <= 1e12:
        raise DataError(
            f"{where}: {microseconds:.3g} us is not the time of a product; check the units of time_us or tflops"
        )
    return {**shape, "precision": precision, "time_us": repr(microseconds), "gpu": record.get("gpu", "").strip()}


def _positive(text: str, name: str, where: str) -> float | None:
    if not text.strip():
        return None
    value = _number(text.strip(), name, where)
    if value is None or value <= 0:
        raise DataError(f"{where}: {name} is {text.strip()}, expected more than 0")
    return value
