"""The cells of a launch file, for commands that take `--from`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.cli.output import talk
from gpucalc.core.errors import UsageError

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
    from gpucalc.launch import read_launch
    from gpucalc.launch.source import read_source

    read, notes = read_launch(source, read_source(file), stated)
    cells = {**read, **stated}
    talk(*(f"note: {note}" for note in notes))
    if notes:
        cells["notes"] = "; ".join(notes)  # so that a pipe does not lose them
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [name for name in _EXAMPLES if name not in cells and not (name == "model" and by_hand)]
    if missing:
        raise UsageError("the launch settings do not say " + ", ".join(f"{n} ({_EXAMPLES[n]})" for n in missing))
    return cells
