"""Options: what a group states, what is read of it, and that a job is stated alike in every command."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import typer

from gpucalc.api.question import OPTIONS
from gpucalc.cli.app import Application, app
from gpucalc.cli.completion import Names, known_options
from gpucalc.cli.job_options import JobOptions, cells_of
from gpucalc.cli.option import Option, argument, cell, option, options, options_of
from gpucalc.cli.values import positive_integer, quantity
from gpucalc.core.columns import INPUT
from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.serving_schema import RECORDS

JOB_COMMANDS = (
    *("plan", "fit", "scale", "explain", "whatif", "diagnose", "export"),
    *("tune", "run", "storage", "power", "schedule"),
)


@cache
def parsed() -> dict[str, dict[str, Option]]:
    """Command → its options by the name of their field."""
    root: Any = typer.main.get_command(app)
    found = {}
    for name in Application.modules:
        command = root.get_command(None, name)
        found[name] = known_options(command)
        for below in getattr(command, "commands", {}):
            found[f"{name} {below}"] = known_options(command.commands[below])
    return found


@pytest.mark.parametrize("command", JOB_COMMANDS)
def test_a_job_is_stated_alike_in_every_command(command: str) -> None:
    missing = options_of(JobOptions).keys() - parsed()[command].keys()
    assert not missing
    flags = {name: one.flags for name, one in options_of(JobOptions).items()}
    assert {name: parsed()[command][name].flags for name in flags} == flags


def test_a_cell_is_a_column() -> None:
    for command, known in parsed().items():
        for name, one in known.items():
            assert not one.cell or name in INPUT or name in RECORDS, (command, name)


def test_all_that_is_completed_by_name_is_known() -> None:
    names = Names(Database())
    for command, known in parsed().items():
        for name, one in known.items():
            words = names.of(name, one)
            assert words or not one.complete, (command, name)
            assert len(words) == len(set(words)), (command, name)


def test_what_an_option_takes_is_what_a_shell_offers() -> None:
    """Every word offered for an option that has choices is read without a complaint."""
    names = Names(Database())
    for known in parsed().values():
        for name, one in known.items():
            for word in names.of(name, one) if one.choices else ():
                one.value(word)


@dataclass(frozen=True)
class Group:
    """Options of a test."""

    n_gpus: str | None = cell("--gpus N", "GPUs.")
    precision: str | None = cell("--precision NAME", "Precision.")
    rest: float | None = option("--rest TIME", "A time.", read=quantity("s"))
    names: tuple[str, ...] = argument("[NAME]...", "Names.", repeat=True)


def command(
    *,
    group: Group,
    top: int = option("--top N", "Rows.", default="3", read=positive_integer),
    loud: bool = option("--loud", ""),
) -> tuple[Group, int, bool]:
    """Do nothing."""
    return group, top, loud


def test_a_command_gets_values_and_groups() -> None:
    called = options(command)
    nothing = dict.fromkeys(("n_gpus", "precision", "rest", "names"))
    assert called(**nothing, top="3", loud=False) == (Group(names=()), 3, False)
    group, top, loud = called(n_gpus="8", precision="BF16", rest="2min", names=["a", "b"], top="7", loud=True)
    assert (group.rest, group.names, top, loud) == (120.0, ("a", "b"), 7, True)
    assert cells_of(group, ["tp=2"]) == {"n_gpus": 8, "precision": "bf16", "tp": 2}


def test_all_mistakes_are_told_at_once() -> None:
    called = options(command)
    with pytest.raises(UsageError) as caught:
        called(n_gpus=None, precision=None, rest="2", names=None, top="none", loud=False)
    assert [problem.split(":")[0].split()[0] for problem in caught.value.problems] == ["--rest", "--top"]
    with pytest.raises(UsageError, match="--gpus 8 contradicts --set n_gpus=4 on n_gpus"):
        cells_of(Group(n_gpus="8"), ["n_gpus=4"])


def test_the_python_side_knows_the_names_of_the_options() -> None:
    """An argument of Python named as the option is told the column that it means."""
    named = {one.name.removeprefix("--").replace("-", "_"): name for name, one in options_of(JobOptions).items()}
    differing = {flag: column for flag, column in named.items() if flag != column and column in INPUT}
    assert differing.pop("MODEL") == "model"
    assert differing == OPTIONS
