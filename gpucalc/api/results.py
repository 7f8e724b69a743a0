"""What a program gets back: rows and terms that turn into frames, files, pictures and notebook tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gpucalc.core.columns import COLUMNS, INPUT, TRAINING_PREDICTIONS, cell_text
from gpucalc.core.errors import UsageError, suggestion
from gpucalc.database.reader import opened
from gpucalc.jobs.context import Context

R = TypeVar("R")


@dataclass(frozen=True)
class Prediction(Mapping[str, Any]):
    """One job, predicted; also a mapping of its row: `row["tp"]`, `dict(row)`."""

    cells: Mapping[str, Any]
    layout: str = ""
    pred_step_time_s: float | None = None
    pred_step_time_low_s: float | None = None
    pred_step_time_high_s: float | None = None
    pred_tokens_per_s_per_gpu: float | None = None
    pred_mfu_pct: float | None = None
    pred_hfu_pct: float | None = None
    pred_peak_mem_gib: float | None = None
    pred_fit: str = ""
    pred_recompute: str = ""
    pred_error: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Prediction:
        """The record of a row: predictions as attributes, the other cells as they were."""
        own = {"layout", *TRAINING_PREDICTIONS}
        values = {name: row[name] for name in own if row.get(name) not in {None, ""}}
        return cls({name: value for name, value in row.items() if name not in own}, **values)

    def _row(self) -> dict[str, Any]:
        shown = ("layout",) if self.layout else ()
        return {
            **{name: getattr(self, name) for name in shown},
            **self.cells,
            **{name: getattr(self, name) for name in TRAINING_PREDICTIONS},
        }

    def __getitem__(self, name: str) -> Any:
        return self._row()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row())

    def __len__(self) -> int:
        return len(self._row())


class Table(Sequence[R], Generic[R]):
    """Rows that can be counted, read, framed, written and shown."""

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries."""
        raise NotImplementedError

    def shown_columns(self) -> Sequence[str]:
        """The columns of the table that a notebook shows."""
        raise NotImplementedError

    def _rows(self) -> Sequence[R]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._rows())

    def __getitem__(self, place: Any) -> Any:
        return self._rows()[place]

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The rows as CSV, as the command line writes it: into a file, or returned as text without a path."""
        import io

        from gpucalc.output.delimited import write_csv

        rows = self.records()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        write_csv(text, columns, [rows])
        if path is None:
            return text.getvalue()
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text.getvalue())
        return None

    def __str__(self) -> str:
        """The table that a notebook shows, as text."""
        from gpucalc.output.table import table

        return table(self.shown_columns(), self.records())

    def _repr_html_(self) -> str:
        import html

        from gpucalc.output.table import significant

        def cell(value: Any) -> str:
            return html.escape(significant(value) if isinstance(value, float) else cell_text(value))

        names = self.shown_columns()
        heads = "".join(f"<th>{html.escape(_heading(name))}</th>" for name in names)
        lines = "".join(
            f"<tr>{''.join(f'<td>{cell(row.get(name))}</td>' for name in names)}</tr>" for row in self.records()
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _heading(name: str) -> str:
    column = COLUMNS.get(name)
    return name if column is None else column.title + (f" [{column.unit}]" if column.unit else "")


@dataclass(frozen=True)
class PlanResult(Table[Prediction]):
    """Ranked layouts, best first, and what became of the others."""

    rows: tuple[Prediction, ...]
    job: Mapping[str, Any]
    candidates: int
    evaluated: int
    feasible: int
    seconds: float
    rejected: Mapping[str, int]
    notes: tuple[str, ...]
    nearest_miss: str | None
    question: Mapping[str, Any] = field(repr=False, default_factory=dict)
    context: Context = field(repr=False, compare=False, default_factory=lambda: Context(opened()))

    @property
    def best(self) -> Prediction:
        """The first row; UsageError where nothing fits."""
        if not self.rows:
            raise UsageError(f"no layout fits; {self.nearest_miss}")
        return self.rows[0]

    def _rows(self) -> Sequence[Prediction]:
        return self.rows

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries, with the columns of `gpucalc plan -f csv`."""
        return [dict(row) for row in self.rows]

    def shown_columns(self) -> Sequence[str]:
        """The columns of the table that a notebook shows."""
        return (
            "layout",
            "pred_step_time_s",
            "pred_tokens_per_s_per_gpu",
            "pred_mfu_pct",
            "pred_peak_mem_gib",
            "pred_fit",
            "pred_recompute",
        )

    def explain(self, place: int = 0) -> Explanation:
        """Why the layout in that place takes the time and memory it does."""
        return explained_job({n: v for n, v in self.rows[place].cells.items() if n in INPUT}, self.context)

    def _front(self) -> Any:
        from gpucalc.output.figures.layouts import Front, pareto_front

        if not self.rows:
            return Front()
        return pareto_front(self.question, self.context, self.candidates)

    def plot(self, path: str) -> None:
        """Draw time and memory by term, and throughput against memory: `--plot`."""
        from gpucalc.output.figures import check_path, save
        from gpucalc.output.figures.layouts import plan_figure
        from gpucalc.output.report import plan_title

        check_path(path, "path")
        _ = self.best
        figure = plan_figure(self.records(), self._front(), self.context, plan_title(self.job))
        save(figure, path)

    def report(self, path: str) -> None:
        """Write the HTML report: `--report`."""
        from gpucalc.output.report import check_report_path, plan_report, write_report

        check_report_path(path)
        plain = _PlainResult(self)
        write_report(plan_report(plain, self.question, self.context, front=self._front()), path)


class _PlainResult:
    """A plan as the report reads it: rows as dictionaries."""

    def __init__(self, found: PlanResult) -> None:
        self.rows = found.records()
        for name in ("job", "candidates", "evaluated", "feasible", "seconds", "rejected", "notes", "nearest_miss"):
            setattr(self, name, getattr(found, name))


@dataclass(frozen=True)
class Evaluation(Table[Prediction]):
    """Rows with predictions, in the order of the question."""

    rows: tuple[Prediction, ...]

    def _rows(self) -> Sequence[Prediction]:
        return self.rows

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries: the cells as given, then the predictions."""
        return [dict(row) for row in self.rows]

    def shown_columns(self) -> Sequence[str]:
        """The columns of the table that a notebook shows."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row if row[name] not in {None, ""}))


@dataclass(frozen=True)
class Records(Table[Mapping[str, Any]]):
    """Rows of a small answer, as mappings."""

    rows: tuple[Mapping[str, Any], ...]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.rows

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries."""
        return [dict(row) for row in self.rows]

    def shown_columns(self) -> Sequence[str]:
        """The columns of the table that a notebook shows."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Term:
    """One term of an explanation."""

    path: str
    value: float
    unit: str
    formula: str
    arguments: Mapping[str, Any]
    citation: str
    note: str = ""


@dataclass(frozen=True)
class Explanation(Table[Term]):
    """Every term of one layout, in tree order; `str()` gives the text of `gpucalc explain`."""

    terms: tuple[Term, ...]
    facts: Mapping[str, str]
    summary: tuple[str, ...]
    text: str = field(repr=False)
    job: Mapping[str, Any] = field(repr=False, default_factory=dict)
    context: Context = field(repr=False, compare=False, default_factory=lambda: Context(opened()))

    def __str__(self) -> str:
        """The trees as text."""
        return self.text

    def value(self, path: str) -> float:
        """The value of a term by its path, such as time/step."""
        for term in self.terms:
            if term.path == path:
                return term.value
        raise UsageError(f"no term {path!r}" + suggestion(path, [term.path for term in self.terms], otherwise=""))

    def _rows(self) -> Sequence[Term]:
        return self.terms

    def records(self) -> list[dict[str, Any]]:
        """The terms as plain dictionaries, with the columns of `gpucalc explain -f csv`."""
        names = ("path", "value", "unit", "formula", "arguments", "citation")
        return [{name: getattr(term, name) for name in names} for term in self.terms]

    def shown_columns(self) -> Sequence[str]:
        """The columns of the table that a notebook shows."""
        return ("path", "value", "unit", "formula")

    def plot(self, path: str) -> None:
        """Draw the pipeline, time by term and memory by stage: `--plot`."""
        from gpucalc.output.figures import check_path, save
        from gpucalc.output.figures.explained import explain_figure

        check_path(path, "path")
        save(explain_figure(self.job, self.context), path)


def explained_job(question: Mapping[str, Any], context: Context) -> Explanation:
    """The explanation of completed cells."""
    from gpucalc.output.explain import tree
    from gpucalc.questions.explain import explain as explained

    found = explained(question, context)
    names = Term.__dataclass_fields__
    return Explanation(
        terms=tuple(Term(**{name: term[name] for name in names}) for term in found.terms),
        facts=dict(found.facts),
        summary=tuple(found.summary),
        text=tree(found.facts, found.terms, found.summary),
        job=dict(question),
        context=context,
    )
