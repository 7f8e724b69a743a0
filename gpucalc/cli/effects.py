"""Said of every command that asks about a training job: which stated options change nothing, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.cli.job_options import RowOptions, stated
from gpucalc.cli.option import options_of, values_of
from gpucalc.cli.output import to_stderr
from gpucalc.core.columns import COLUMNS, Column, parse_setting
from gpucalc.core.errors import GpucalcError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context

BESIDE = ("profile", "fabric")  # options that decide an answer and are no cells


def written(job: RowOptions) -> dict[str, str]:
    """What was stated besides the layout: name of the cell → as it was written."""
    flags = {name: f"{flag} {text}" for name, (flag, text) in stated(job).items()}
    flags |= {parse_setting(pair)[0]: f"--set {pair}" for pair in job.settings}
    return flags | {name: f"--{name} {getattr(job, name)}" for name in BESIDE if getattr(job, name)}


def laid_out(cells: Mapping[str, Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a search with one layout that it found in the place of the axes that it chose from."""
    from gpucalc.layouts.axes import AXES

    rest = {name: value for name, value in cells.items() if name not in AXES}
    own = {name: layout[name] for name in (*AXES, "n_gpus") if layout.get(name) is not None}
    return {**rest, **own}


def say_effects(job: RowOptions, cells: Mapping[str, Any], context: Context, *, free: Sequence[str] = ()) -> None:
    """Say on standard error which stated cells of a whole job change nothing of its step.

    `free` are cells that a search heeds, of which one layout says nothing.
    """
    from gpucalc.jobs.training import Job, predict, resolve_rows

    def answer(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        jobs = []
        for row in rows:
            jobs += resolve_rows([_cells(row)], _context(row, context))
        found = iter(predict([one for one in jobs if isinstance(one, Job)]))
        return [tuple(next(found).values()) if isinstance(one, Job) else None for one in jobs]

    flags = {name: text for name, text in written(job).items() if name not in free}
    _say(flags, {**cells, **_beside(job)}, answer, _words(context))


def say_idle(
    job: RowOptions,
    given: Any,
    cells: Mapping[str, Any],
    context: Context,
    ask: Callable[[Mapping[str, Any], Mapping[str, Any], Context], Hashable],
    *,
    free: Sequence[str] = (),
    needed: Sequence[str] = (),
    words: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """As `say_effects`, for a question with options of its own: `given`, a group whose fields they are.

    ask: what the question answers, of cells, values of all options, and a context. needed: options without
    which there is no question. words: other values of options that are words of an open list.
    """
    known, values = options_of(given), values_of(given)
    usual = {name: None if one.default is None else one.value(one.default) for name, one in known.items()}
    own = {name: value for name, value in values.items() if value not in {usual[name], False}}

    def answer(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [_asked(row) for row in rows]

    def _asked(row: Mapping[str, Any]) -> Hashable | None:
        options = {name: row.get(name, value) for name, value in usual.items()}
        try:
            return ask({n: v for n, v in _cells(row).items() if n not in known}, options, _context(row, context))
        except GpucalcError:
            return None

    flags = {name: text for name, text in written(job).items() if name not in free}
    flags |= {name: known[name].name for name in own if name not in needed}
    choices = {name: known[name].words for name in own if known[name].words}
    _say(flags, {**cells, **_beside(job), **own}, answer, {**_words(context), **choices, **(words or {})})


def say_serving(flags: Mapping[str, str], cells: Mapping[str, Any], context: Context) -> None:
    """As `say_effects`, of a question about serving: `flags` are its stated cells as they were written."""
    from gpucalc.jobs.serving import ServingJob, predict_serving, resolve_serving
    from gpucalc.jobs.serving_schema import RECORDS

    def answer(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        jobs: list[ServingJob | None] = []
        for row in rows:
            try:
                jobs.append(resolve_serving(row, context))
            except GpucalcError:
                jobs.append(None)
        found = iter(predict_serving([one for one in jobs if one is not None]))
        return [tuple(next(found).values()) if one is not None else None for one in jobs]

    words = {"framework": ("vllm", "sglang", "trtllm"), "precision": ("fp8", "bf16"), "kv_precision": ("fp8", "bf16")}
    _say(flags, cells, answer, words, {**COLUMNS, **RECORDS})


def _say(
    flags: Mapping[str, str],
    whole: Mapping[str, Any],
    answer: Callable[[Sequence[Mapping[str, Any]]], list[Any]],
    words: Mapping[str, Sequence[Any]],
    columns: Mapping[str, Column] = COLUMNS,
) -> None:
    from gpucalc.jobs.effects import sentences, without_effect

    other = {name: [word for word in found if word != whole.get(name)] for name, found in words.items()}
    found = without_effect(whole, [name for name in flags if name in whole], answer, columns, other)
    to_stderr(*(f"note: {line}" for line in sentences(found, flags)))


def _beside(job: RowOptions) -> dict[str, str]:
    return {name: getattr(job, name) for name in BESIDE if getattr(job, name)}


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in BESIDE}


def _context(row: Mapping[str, Any], context: Context) -> Context:
    return dataclasses.replace(context, profile=row.get("profile"), fabric=row.get("fabric"))


def _words(context: Context) -> dict[str, tuple[str, ...]]:
    """Other values of cells that hold a word of an open list."""
    return {
        "topology": tuple(one.key for one in context.db.topologies()),
        "framework": ("torchtitan", "deepspeed", "nemo"),
        "lora_targets": ("qv", "all"),
        "profile": ("fsdp", "megatron-core"),
        "fabric": ("ib-ndr", "eth-100g"),
    }
