"""A Megatron-LM command, script or recipe as a row (megatron/training/arguments.py, d98e8a64).

A recipe is the YAML of Megatron's functional tests and of Megatron-MoE-ModelZoo: `ENV_VARS` and `MODEL_ARGS`, whose
keys are the options. Text with --deepspeed is read as Megatron-DeepSpeed, whose engine decides the sharding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.read import megatron_deepspeed
from gpucalc.launch.read._megatron import Arguments
from gpucalc.launch.read._megatron_options import SEVERAL, known
from gpucalc.launch.read._settings import parse_yaml
from gpucalc.launch.read.shell.command import find_command
from gpucalc.launch.read.shell.script import read_script
from gpucalc.launch.target import Source

_RECIPE = re.compile(r"^(MODEL_ARGS|ARGS)\s*:", re.MULTILINE)


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command or script means, and remarks."""
    if _RECIPE.search(text):
        return _recipe(text, given)
    command = find_command(text, known(), "Megatron-LM", given)
    if "--deepspeed" in command.words:
        cells, notes = megatron_deepspeed.read(text, given)
        return cells, ["--deepspeed stands in the command: read as Megatron-DeepSpeed", *notes]
    stated = list(command.flags(known() - set(SEVERAL)))
    problems: list[str] = []
    world, per_node = command.world(given, problems)
    return Arguments(stated, given, world, per_node, command.variables, notes=command.notes, problems=problems).cells()


def _recipe(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    document = parse_yaml(text, "Megatron-LM recipe")
    if not isinstance(document, Mapping):
        raise DataError("no settings of Megatron-LM stand in the text")
    block = document.get("MODEL_ARGS") or document.get("ARGS")
    environment = document.get("ENV_VARS") or {}
    if not isinstance(block, Mapping) or not isinstance(environment, Mapping):
        raise DataError("MODEL_ARGS and ENV_VARS have to be blocks of keys and values")
    variables = {str(name): str(value) for name, value in environment.items()}
    stated: list[tuple[str, Sequence[str]]] = []
    notes: list[str] = []
    for name, value in block.items():
        if value is False or value is None:
            continue  # a switch that is off is left out, as the launcher of the recipes does
        words = [] if value is True else [str(v) for v in value] if isinstance(value, list) else [str(value)]
        script = read_script("run " + " ".join(words), variables)
        notes += script.notes
        # Values hold variables of the launcher's environment (${TP}), expanded as in a shell.
        stated.append((str(name), script.commands[-1][1:] if "$" in " ".join(words) else words))
    arguments = Arguments(stated, given, given.get("n_gpus"), None, variables, notes=notes)
    return arguments.cells()


SOURCE = Source(("megatron", "megatron-lm", "megatron-core"), read, "a command, script or recipe")
