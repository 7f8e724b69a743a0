"""Writing an answer: data to standard output, all else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.cli.option import option
from gpucalc.core.columns import Column
from gpucalc.output import FORMATS, choose_columns, write_rows


def plot_path(flag: str, text: str) -> str:
    """A name of a picture that can be made; a complaint comes before anything is computed or written."""
    from gpucalc.output.figures import check_path

    check_path(text)
    return text


def format_option() -> Any:
    """The option that names the format of an answer."""
    return option("-f, --format FORMAT", "table, csv, json, jsonl or md.", default="table", choices=FORMATS)


@dataclass(frozen=True)
class OutputOptions:
    """The form of an answer."""

    form: str = format_option()
    columns: str | None = option("--columns A,B,…", "Columns to print, in this order.")
    no_header: bool = option("--no-header", "Leave out the heading.")

    @property
    def header(self) -> bool:
        """Whether the heading is printed."""
        return not self.no_header

    @property
    def json(self) -> bool:
        """Whether the answer is one JSON document."""
        return self.form == "json"

    @property
    def for_people(self) -> bool:
        """Whether the answer is laid out for people: a table, or the same in Markdown, of columns of our choice."""
        return self.form in {"table", "md"} and self.columns is None

    def rows(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows that are all there, in the format and with the columns asked for; `names` are all there are."""
        write_rows(sys.stdout, self.form, choose_columns(self.columns, names), [rows], header=self.header)

    def table(self, columns: Sequence[str | Column], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table of chosen columns for people."""
        from gpucalc.output.table import table

        sys.stdout.write(table(columns, rows, markdown=self.form == "md", header=self.header) + "\n")


@dataclass(frozen=True)
class FigureOptions(OutputOptions):
    """The form of an answer that can be drawn too."""

    plot: str | None = option("--plot FILE", "Draw it too: .png, .svg or .pdf.", read=plot_path, files=True)


def to_stderr(*lines: str) -> None:
    """Say something that is not data."""
    for line in lines:
        if line:
            print(line, file=sys.stderr)


def emit_rows(
    form: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], wanted: str | None = None, header: bool = True
) -> None:
    """Write rows that are all there."""
    write_rows(sys.stdout, form, choose_columns(wanted, columns), [rows], header=header)


def ranged_rows(
    figures: Mapping[str, Sequence[float]], meanings: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """A row of each known figure with its low and high end, unit and meaning, in the order of the meanings."""
    return [
        {
            "quantity": name,
            **dict(zip(("value", "low", "high"), figures[name], strict=True)),
            "unit": unit,
            "meaning": meaning,
        }
        for name, (unit, meaning) in meanings.items()
        if name in figures
    ]


def said(row: dict[str, Any]) -> str:
    """A figure of `ranged_rows` with its unit and range."""
    from gpucalc.output.table import significant

    value, low, high = (significant(float(row[name])) for name in ("value", "low", "high"))
    text = f"{value} {row['unit']}".strip()
    return text if low == high else f"{text}   ({low} to {high})"


def emit_document(value: Any) -> None:
    """Write one JSON document."""
    from gpucalc.output.jsonout import write_json

    write_json(sys.stdout, value)


def emit_object(form: str, value: Mapping[str, Any]) -> None:
    """Write one record of many fields: a document in JSON, else one line a field."""
    if form == "json":
        emit_document(value)
    elif form == "jsonl":
        write_rows(sys.stdout, form, list(value), [[value]])
    elif form == "table":
        from gpucalc.output.table import facts

        sys.stdout.write(facts([(name, shown(field)) for name, field in flat(value)]) + "\n")
    else:
        rows = [{"field": name, "value": field} for name, field in flat(value)]
        write_rows(sys.stdout, form, ("field", "value"), [rows])


def flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested fields under dotted names, in order."""
    found: list[tuple[str, Any]] = []
    for name, field in value.items():
        if isinstance(field, Mapping):
            found += flat(field, f"{prefix}{name}." if name else prefix)
        elif isinstance(field, list | tuple):
            found += [(f"{prefix}{name}", item) for item in field]
        else:
            found.append((f"{prefix}{name}".removesuffix("."), field))
    return found


def shown(value: Any) -> str:
    """A field for people: thousands grouped, floats to six digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        from gpucalc.output.table import significant

        return significant(value, 6)
    return str(value)
