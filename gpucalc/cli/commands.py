"""How a function becomes a command: `@command(group=…)`; its module is imported when the command is wanted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpucalc.cli.option import options


@dataclass(frozen=True)
class Command:
    """One command, or a family of them such as `hw list` and `hw show` (which has no function of its own)."""

    name: str
    group: str
    help: str
    function: Callable[..., Any] | None = None
    members: dict[str, Callable[..., Any]] = field(default_factory=dict)


REGISTERED: dict[str, Command] = {}


def command(name: str = "", *, group: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command below the heading `group` of `gpucalc --help`.

    `name` is the function's own unless stated; "hw list" is a member of the family `hw`, which needs no group.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        words = (name or function.__name__).split()
        if len(words) == 2:
            REGISTERED[words[0]].members[words[1]] = function
        else:
            REGISTERED[words[0]] = Command(words[0], group, first_sentence(function.__doc__ or ""), function)
        return function

    return register


def family(name: str, *, group: str, help: str) -> None:
    """Register a command that only has members; `command("NAME MEMBER")` adds each."""
    REGISTERED[name] = Command(name, group, help)


def grouped(commands: Sequence[Command]) -> list[tuple[str, list[Command]]]:
    """The commands below the heading of their group, both in the order in which they come.

    >>> [(title, [c.name for c in own]) for title, own in grouped([Command("b", "X", ""), Command("a", "X", "")])]
    [('X', ['b', 'a'])]
    """
    titles = dict.fromkeys(one.group for one in commands)
    return [(title, [one for one in commands if one.group == title]) for title in titles]


class OneCommand(TyperCommand):
    """A command that tells which options were stated twice, where the parser lets the last one win in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command, and keep the options that are stated twice for `invoke`."""
        if not ctx.resilient_parsing:
            _, _, stated = self.make_parser(ctx).parse_args(args=list(args))
            single = [one for one in stated if one.opts and not one.multiple and not getattr(one, "is_flag", False)]
            ctx.meta["twice"] = {one.name: _long(one.opts) for one in single if single.count(one) > 1}
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and say which value was taken where there were two."""
        twice = {flag: ctx.params[name] for name, flag in ctx.meta.get("twice", {}).items()}
        result = super().invoke(ctx)
        if twice:
            sys.stdout.flush()
        for flag, value in twice.items():
            print(f"note: {flag} is stated twice; the last one, {value}, is taken", file=sys.stderr)
        return result


def _long(flags: Sequence[str]) -> str:
    return next((flag for flag in flags if flag.startswith("--")), flags[0])


class Commands(TyperGroup):
    """A group of commands that imports the module of a command only when that command is asked for."""

    modules: Sequence[str] = ()  # below gpucalc.cli, in the order of `gpucalc --help`; one is named as its command

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None where there is none."""
        if cmd_name not in self.modules:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = built(self.registered(cmd_name))
        return self.commands[cmd_name]

    def registered(self, name: str) -> Command:
        """The record of a command."""
        importlib.import_module(f"gpucalc.cli.{name}")
        return REGISTERED[name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, one section for each purpose, aligned over all of them."""
        width = max(map(len, self.modules), default=0)
        for title, members in grouped([self.registered(name) for name in self.modules]):
            with formatter.section(title):
                formatter.write_dl([(one.name.ljust(width), one.help) for one in members])


def built(one: Command) -> Any:
    """The parser's own object of a command or a family."""
    app = typer.Typer(
        help=one.help or None,
        no_args_is_help=one.function is None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for name, function in one.members.items():
        app.command(name, cls=OneCommand)(options(function))
    if one.function is not None:
        app.command(one.name, cls=OneCommand)(options(one.function))
    elif len(one.members) == 1:
        app.callback()(lambda: None)  # otherwise the only member would stand for its family
    made = typer.main.get_command(app)
    made.name = one.name
    return made


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line.

    >>> first_sentence("Size a store: 2.5 GB/s\\n    is little.\\n\\n    More of it.")
    'Size a store: 2.5 GB/s is little.'
    """
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + "." if stop else paragraph
