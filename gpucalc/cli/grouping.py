"""The commands in the order of what a person wants, for `gpucalc --help`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = (
    ("Plan", ("plan", "fit", "scale", "sweep")),
    ("Understand", ("explain", "whatif", "diagnose", "comm", "roofline")),
    ("Launch", ("export",)),
    ("Check", ("eval", "validate", "claims")),
    ("Serve and tune", ("serve", "tune")),
    ("The whole cluster", ("run", "storage", "power", "hpc", "render", "schedule")),
    ("Data", ("hw", "models")),
    ("Shell", ("completion",)),
)
WHOLE = 200  # characters: the first sentence of a command's help is shown to its end


def grouped(names: list[str]) -> list[tuple[str, list[str]]]:
    """The commands that exist, below the heading of their group; those of no group come last.

    >>> grouped(["hw", "plan", "novel"])
    [('Plan', ['plan']), ('Data', ['hw']), ('Other', ['novel'])]
    """
    known = {name for _, members in GROUPS for name in members}
    found = [(title, [name for name in members if name in names]) for title, members in GROUPS]
    found.append(("Other", [name for name in names if name not in known]))
    return [(title, members) for title, members in found if members]


class GroupedCommands(TyperGroup):
    """A command group whose help shows its commands by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, one section for each purpose, aligned over all of them."""
        names = [name for name, command in self.commands.items() if not command.hidden]
        width = max(map(len, names), default=0)
        for title, members in grouped(names):
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(WHOLE)) for name in members]
                )
