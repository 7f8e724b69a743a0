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
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [name for name in _EXAMPLES if name not in cells and not (name == "model" and by_hand)]
    if missing:
        raise UsageError("the launch settings do not say " + ", ".join(f"{n} ({_EXAMPLES[n]})" for n in missing))
    return cells


def served_row(file: str, source: str, options: RowOptions, context: Context) -> dict[str, Any]:
    """The serving row that a server's command means, predicted; `--set` pairs replace what the command says."""
    from gpucalc.cli.serve import serving_cells
    from gpucalc.core.columns import cell_text
    from gpucalc.jobs.serving import predict_serving, resolve_serving
    from gpucalc.questions.serve import serving_label

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


def _read(file: str, source: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from gpucalc.launch import read_launch
    from gpucalc.launch.source import read_source

    read, notes = read_launch(source, read_source(file), given)
    to_stderr(*(f"note: {note}" for note in notes))
    return read, notes
