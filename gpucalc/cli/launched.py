"""The cells of a launch file, for commands that take `--from`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.cli.output import to_stderr
from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    from gpucalc.cli.job_options import RowOptions
    from gpucalc.jobs.context import Context

_EXAMPLES = {
    "model": "--set model=llama-3.1-8b",
    "gpu": "--gpu h100-sxm-80gb",
    "n_gpus": "--gpus 64",
    "seq_len": "--set seq_len=8192",
    "global_batch": "--set global_batch=128",
}


def launched_cells(file: str, source: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch file (or "-") means, with the cells stated beside it in place of its own; remarks are told.

    Raises UsageError with everything that is contradictory, or missing from both.
    """
    read, notes = _read(file, source, stated)
    cells = {**read, **stated}
    if notes:
        cells["notes"] = "; ".join(notes)  # so that a pipe does not lose them
    _require(cells)
    return cells


def served_row(file: str, source: str, options: RowOptions, context: Context) -> dict[str, Any]:
    """The serving row that a server's command means, predicted; `--set` pairs replace what the command says."""
    from gpucalc.cli.serve import serving_cells
    from gpucalc.core.columns import cell_text
    from gpucalc.jobs.serving import predict_serving, resolve_serving
    from gpucalc.questions.serve_layouts import serving_label

    pairs = dict(pair.partition("=")[::2] for pair in options.settings)
    beside = {"gpu": options.gpu, "n_gpus": options.n_gpus}
    stated = {**{n: v for n, v in beside.items() if v is not None}, **pairs}
    gpus = str(stated.get("n_gpus") or "")
    given = {"model": stated.get("model"), "n_gpus": int(gpus) if gpus.isdigit() and len(gpus) < 12 else None}
    read, notes = _read(file, source, given)
    text = {n: cell_text(v) for n, v in read.items() if n not in pairs}
    text |= {n: str(v) for n, v in beside.items() if v is not None and n not in pairs}
    cells = serving_cells(text, options.settings, options.layout)
    job = resolve_serving(cells, context)
    to_stderr(*(f"note: {note}" for note in job.notes))
    row = {"layout": serving_label(job.cells), **cells, "notes": "; ".join(notes)}
    return {**row, **predict_serving([job])[0]}


def policy_row(file: str, source: str, options: RowOptions, context: Context) -> dict[str, Any]:
    """The step of ppo or grpo, or the training step, that a file means, predicted; what is stated replaces its own.

    `--set` pairs state columns of the training row and those of a step (prompt, response, rollouts …).
    """
    from dataclasses import replace

    from gpucalc.questions.tune.plan import one_split
    from gpucalc.questions.tune.policy_cells import POLICY, make_policy, split_settings

    step, others = split_settings(options.settings)
    stated = replace(options, settings=others).cells()
    read, notes = _read(file, source, {**stated, **step})
    said = {"notes": "; ".join(notes)} if notes else {}
    cells = {**read, **stated, **step}
    _require(cells)
    if "algorithm" not in cells:
        return training_row({**cells, **said}, context)
    numbers = {name: cells[name] for name in POLICY if name in cells}
    update = {name: value for name, value in cells.items() if name not in POLICY}
    answer = one_split(make_policy(cells["algorithm"], update, numbers), context)
    to_stderr(*(f"note: {line}" for line in answer.job.remarks))
    return {"layout": answer.row["layout"], **cells, **said, **answer.row}


def training_row(cells: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """A training row, predicted; what was taken for it is told."""
    from gpucalc.jobs.training import predict, resolve
    from gpucalc.jobs.variations import layout_label

    job = resolve(cells, context)
    to_stderr(*(f"note: {warning}" for warning in job.remarks))
    row = predict([job])[0]
    return {"layout": layout_label(job, row), **cells, **row}


def _require(cells: Mapping[str, Any]) -> None:
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [name for name in _EXAMPLES if name not in cells and not (name == "model" and by_hand)]
    if missing:
        raise UsageError("the launch settings do not say " + ", ".join(f"{n} ({_EXAMPLES[n]})" for n in missing))


def _read(file: str, source: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from gpucalc.launch import read_launch
    from gpucalc.launch.source import read_source

    read, notes = read_launch(source, read_source(file), given)
    to_stderr(*(f"note: {note}" for note in notes))
    return read, notes
