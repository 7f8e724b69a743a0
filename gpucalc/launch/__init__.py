"""Launch settings: a layout written for the frameworks that run it, and read back from their settings.

`export` writes; `read_launch` reads. Nothing that is read is executed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.launch.job import Launch, Start

# target → module and the names of its two functions: problems(launch), start(launch).
FRAMEWORK_TARGETS = {
    "megatron": ("megatron", "problems", "start"),
    "nemo": ("nemo", "problems", "start"),
    "deepspeed": ("deepspeed", "problems", "start"),
    "torchtitan": ("torchtitan", "problems", "start"),
    "torchtitan-recipe": ("torchtitan", "recipe_problems", "recipe_start"),
    "accelerate": ("accelerate", "problems", "start"),
    "nanotron": ("nanotron", "problems", "start"),
    "horovod": ("horovod", "problems", "start"),
}
AROUND = ("sbatch", "k8s")  # scripts that hold the launch of one of the above
TARGETS = (*FRAMEWORK_TARGETS, *AROUND)
SOURCES = ("megatron", "deepspeed", "torchtitan")
ALIASES = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "megatron-bridge": "nemo",
    "torchtitan-toml": "torchtitan",
    "horovodrun": "horovod",
    "slurm": "sbatch",
    "kubernetes": "k8s",
    "fsdp": "accelerate",
}


def target_named(name: str, known: tuple[str, ...] = TARGETS, what: str = "--to") -> str:
    """A target or source by its name, case and common other names forgiven."""
    word = name.strip().casefold().replace("_", "-")
    word = ALIASES.get(word, word)
    if word not in known:
        raise unknown(f"value of {what}", name, known)
    return word


def start_of(launch: Launch, target: str) -> Start:
    """The settings of one framework; UsageError with everything that it cannot express."""
    module, problems, start = FRAMEWORK_TARGETS[target]
    loaded = importlib.import_module(f"gpucalc.launch.write.{module}")
    found = getattr(loaded, problems)(launch)
    if found and launch.open_recompute and launch["recompute_layers"]:
        whole = _fully_recomputed(launch)
        if not getattr(loaded, problems)(whole):
            launch, found = whole, []
    if found:
        raise UsageError(*dict.fromkeys(found))
    result: Start = getattr(loaded, start)(launch)
    return result


def _fully_recomputed(launch: Launch) -> Launch:
    """The same job with every layer recomputed, for a framework that cannot recompute a part of them."""
    from dataclasses import replace

    cells = {name: value for name, value in launch.cells.items() if name != "recompute_layers"}
    said = "recompute was not stated: all layers, as a part of them cannot be chosen here"
    return replace(launch, cells=cells, comments=(*launch.comments[:-1], said))


def export(launch: Launch, target: str, launcher: str = "megatron", kind: str = "") -> tuple[str, tuple[str, ...]]:
    """The text of a target, and what is to be said beside it.

    `launcher` is the framework inside an sbatch script or a manifest, `kind` the kind of the manifest.
    """
    if target not in AROUND:
        made = start_of(launch, target)
        return made.text, made.talk
    from gpucalc.launch.write import start as around

    made = start_of(launch, launcher)
    text = around.sbatch(launch, made) if target == "sbatch" else around.kubernetes(launch, made, kind)
    return text, ()


def read_launch(kind: str, text: str, given: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The cells of the row that launch settings mean, and remarks: flags that were not read, values assumed.

    kind: megatron (a command or script), deepspeed (JSON), torchtitan (TOML, or --section.key flags).
    `given` are cells known from elsewhere (n_gpus, model), which the text may need to be understood.
    Raises DataError with every contradiction.
    """
    reader = importlib.import_module(f"gpucalc.launch.read.{target_named(kind, SOURCES, '--from')}")
    cells: dict[str, Any]
    notes: list[str]
    cells, notes = reader.read(text, dict(given or {}))
    return cells, notes
