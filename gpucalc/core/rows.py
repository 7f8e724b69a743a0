"""Rows in: CSV, JSON lines, a JSON array or a `plan -f json` document, read in blocks of constant memory.

The form is found from the content. A record keeps its values as they were read, so that columns nobody
knows pass through untouched; `text_record` is the same record as the evaluators read it.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from gpucalc.core.columns import COLUMNS
from gpucalc.core.errors import DataError

BLOCK = 4096  # records evaluated and written at a time
LINE_LIMIT = 1 << 20  # bytes of one line, one CSV field or one JSON record
DOCUMENT_LIMIT = 64 << 20  # bytes of a JSON object that is spread over lines and must be read whole
COLUMN_LIMIT = 10_000
PIECE = 1 << 16

Record = dict[str, Any]


@dataclass
class Rows:
    """The columns of a file and its records in blocks; `form` is "csv" or "json"."""

    columns: list[str]
    blocks: Iterator[list[Record]]
    form: str


def text_record(record: Mapping[str, Any]) -> dict[str, str]:
    """A record with every value as the text of a cell.

    >>> text_record({"tp": 8, "sequence_parallel": True, "dp": None, "lr": 0.5})
    {'tp': '8', 'sequence_parallel': 'yes', 'dp': '', 'lr': '0.5'}
    """
    return {name: value if isinstance(value, str) else _text(value) for name, value in record.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        return json.dumps(value)
    return repr(value)


def read_rows(source: str, block: int = BLOCK) -> Rows:
    """The rows of a file, or of standard input for "-".

    What can be read twice is checked to its end first, so that a fault in line 100,000 is found before
    anything is written. Raises DataError, which names the line, for what cannot be read as rows.
    """
    name = "standard input" if source == "-" else source
    stream = _open(source)
    if _seekable(stream):
        start = stream.tell()
        for _ in _parse(stream, name, block).blocks:
            pass
        stream.seek(start)
    return _parse(stream, name, block)


def _open(source: str) -> BinaryIO:
    if source == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise DataError("standard input is closed; name a file")
        if sys.stdin.isatty():
            raise DataError("no FILE, and nothing is piped into standard input")
        return sys.stdin.buffer
    try:
        if os.path.isdir(source):
            raise DataError(f"{source} is a directory, expected a file of rows")
        return open(source, "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {source!r}: {reason}") from None


def _seekable(stream: BinaryIO) -> bool:
    try:
        return stream.seekable() and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """Numbered lines as text with "\\n" at their end; a BOM is dropped. A JSON array comes in pieces instead."""
    started = False
    for number in itertools.count(1):
        try:
            raw = stream.readline(LINE_LIMIT + 1)
        except OSError as error:
            raise DataError(f"cannot read {name}: {error.strerror}") from None
        if not raw:
            return
        if number == 1:
            _refuse_foreign(raw, name)
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if b"\0" in raw:
            raise DataError(f"{name}, line {number}: holds a NUL byte; this is a binary file, not rows of text")
        content = raw.lstrip()
        if not started and content and not content.startswith(b"#"):
            started = True
            if content.startswith(b"["):
                yield from _pieces(raw, stream, name, number)
                return
        if len(raw) > LINE_LIMIT:
            raise DataError(f"{name}, line {number}: longer than {LINE_LIMIT:,} bytes")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: not UTF-8 text (byte {raw[error.start]:#04x} at position {error.start + 1}); "
                "save the file as UTF-8"
            ) from None
        text = text.removesuffix("\n").removesuffix("\r")
        # A file with the line ends of old Macs is one long line to everybody else.
        parts = text.split("\r") if "\r" in text and '"' not in text else [text]
        for part in parts:
            yield number, part + "\n"


def _pieces(head: bytes, stream: BinaryIO, name: str, number: int) -> Iterator[tuple[int, str]]:
    """The rest of a file in pieces that heed no line ends: an array may be one line of any length."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while head:
            yield number, decoder.decode(head)
            head = stream.read(PIECE)
        yield number, decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise DataError(f"{name}: not UTF-8 text; save the file as UTF-8") from None


def _refuse_foreign(head: bytes, name: str) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name} is UTF-16 text; save the file as UTF-8")
    kinds = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive (or a spreadsheet)", b"PAR1": "Parquet"}
    for magic, kind in kinds.items():
        if head.startswith(magic):
            raise DataError(f"{name} is {kind}, expected CSV or JSON lines")


def _parse(stream: BinaryIO, name: str, block: int) -> Rows:
    lines = _lines(stream, name)
    for number, line in lines:
        stripped = line.lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        rest = itertools.chain([(number, line)], lines)
        if stripped[0] in "[{":
            return _json_rows(rest, name, block, stripped[0])
        return _csv_rows(rest, name, block)
    raise DataError(f"{name} is empty; expected a header line and rows, or JSON lines")


# --- CSV ---------------------------------------------------------------------------------------------


def _csv_rows(lines: Iterator[tuple[int, str]], name: str, block: int) -> Rows:
    csv.field_size_limit(LINE_LIMIT)
    last = [0]

    def feed() -> Iterator[str]:
        for number, line in lines:
            last[0] = number
            yield line

    reader = csv.reader(feed(), strict=True)

    def numbered() -> Iterator[tuple[int, list[str]]]:
        while True:
            first = last[0] + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(f"{name}, line {first}: not CSV ({error})") from None
            if cells:
                yield last[0], cells

    rows = numbered()
    number, header = next(rows, (1, []))
    columns = _header(header, name, number)

    def records() -> Iterator[Record]:
        width = len(columns)
        for line, cells in rows:
            if len(cells) != width:
                raise DataError(f"{name}, line {line}: {len(cells)} cells, but the header has {width} columns")
            yield dict(zip(columns, cells, strict=True))

    return Rows(columns, _in_blocks(records(), block), "csv")


def _header(header: list[str], name: str, number: int) -> list[str]:
    if len(header) == 1:
        for mark, spelled in ((";", "semicolons"), ("\t", "tabs")):
            if mark in header[0]:
                raise DataError(f"{name}, line {number}: the columns are parted by {spelled}, expected commas")
    if len(header) > COLUMN_LIMIT:
        raise DataError(f"{name}, line {number}: {len(header):,} columns, at most {COLUMN_LIMIT:,}")
    columns = [c.strip() if c.strip() in COLUMNS else c for c in header]
    doubled = sorted({c for c in columns if columns.count(c) > 1})
    if doubled:
        raise DataError(f"{name}, line {number}: the header repeats " + ", ".join(repr(c) for c in doubled[:5]))
    return columns


def _in_blocks(records: Iterable[Record], block: int) -> Iterator[list[Record]]:
    stream = iter(records)
    while part := list(itertools.islice(stream, block)):
        yield part


# --- JSON --------------------------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [n for n, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _json_rows(lines: Iterator[tuple[int, str]], name: str, block: int, opening: str) -> Rows:
    if opening == "[":
        records = _array(lines, name)
    else:
        number, first = next(lines)
        try:
            found = _DECODER.decode(first)
        except (ValueError, RecursionError):
            found = None
        if found is None:
            records = iter(_document(itertools.chain([(number, first)], lines), name))
        elif isinstance(found.get("rows"), list):
            records = iter(_records(found, name))
        else:
            records = _json_lines(itertools.chain([(number, first)], lines), name)
    blocks = _in_blocks(records, block)
    head = next(blocks, [])
    columns = list(dict.fromkeys(column for record in head for column in record))
    if len(columns) > COLUMN_LIMIT:
        raise DataError(f"{name}: {len(columns):,} columns, at most {COLUMN_LIMIT:,}")
    return Rows(columns, itertools.chain([head] if head else [], blocks), "json")


def _decode(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        raise DataError(f"{where}: not JSON ({reason})") from None


def _json_lines(lines: Iterator[tuple[int, str]], name: str) -> Iterator[Record]:
    for number, line in lines:
        if line.strip():
            yield _record(_decode(line, f"{name}, line {number}"), f"{name}, line {number}")


def _record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, one job a line")
    return value


def _document(lines: Iterator[tuple[int, str]], name: str) -> list[Record]:
    """The records of an object spread over lines: what `plan -f json` writes, or one record."""
    kept, size = [], 0
    for _, line in lines:
        kept.append(line)
        size += len(line)
        if size > DOCUMENT_LIMIT:
            raise DataError(f"{name}: a JSON object larger than {DOCUMENT_LIMIT:,} bytes; write one object a line")
    return _records(_decode("".join(kept), name), name)


def _records(document: Any, name: str) -> list[Record]:
    if isinstance(document, dict) and isinstance(document.get("rows"), list):
        document = document["rows"]
    found = document if isinstance(document, list) else [document]
    return [_record(value, f"{name}, record {i}") for i, value in enumerate(found, 1)]


def _array(pieces: Iterator[tuple[int, str]], name: str) -> Iterator[Record]:
    """The objects of a JSON array, one at a time; `buffer` holds what is read and not yet parsed."""
    buffer, count = "", 0
    state = "open"  # open → first → (after ⇄ next)… → closed
    for _, piece in pieces:
        buffer += piece
        at = 0
        while True:
            at = _skip_space(buffer, at)
            if at == len(buffer):
                break
            mark, where = buffer[at], f"{name}, record {count + 1}"
            if state == "closed":
                raise DataError(f"{name}: text after the end of the JSON array")
            if state == "open" or (state == "after" and mark == ","):
                state, at = ("first" if state == "open" else "next"), at + 1
                continue
            if mark == "]" and state in {"first", "after"}:
                state, at = "closed", at + 1
                continue
            if state == "after":
                raise DataError(f"{where}: expected a comma or the end of the array")
            try:
                value, at = _DECODER.raw_decode(buffer, at)
            except RecursionError:
                raise DataError(f"{where}: nested too deeply") from None
            except ValueError as error:
                if len(buffer) - at > LINE_LIMIT or not isinstance(error, json.JSONDecodeError):
                    raise DataError(f"{where}: not JSON ({getattr(error, 'msg', error)})") from None
                break  # the record goes on in the next piece
            count, state = count + 1, "after"
            yield _record(value, where)
        buffer = buffer[at:]
    if state != "closed":
        raise DataError(f"{name}, record {count + 1}: the JSON array is cut short or holds what is not JSON")


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
