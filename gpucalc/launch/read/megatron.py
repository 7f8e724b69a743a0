"""A Megatron-LM command or script as a row (names and defaults of megatron/training/arguments.py, d98e8a64)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.read._megatron import SEVERAL, Arguments, known
from gpucalc.launch.read.shell.command import find_command
from gpucalc.launch.target import Source


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command or script means, and remarks."""
    command = find_command(text, known(), "Megatron-LM", given)
    stated = list(command.flags(known() - set(SEVERAL)))
    problems: list[str] = []
    world, per_node = command.world(given, problems)
    return Arguments(stated, given, world, per_node, command.variables, notes=command.notes, problems=problems).cells()


SOURCE = Source(("megatron", "megatron-lm", "megatron-core"), read, "a command or script")
