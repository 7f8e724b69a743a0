"""`gpucalc completion`: a script that lets a shell complete commands, options and names.

The script holds every name it offers, so that completing takes no time and starts no Python; it is made anew after
an update, or when an overlay of the hardware database changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

from gpucalc.cli.commands import command
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import Option, argument
from gpucalc.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from gpucalc.database.reader import Database

FILES = "files"  # stands for names of files
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Switch:
    """One option of a command, and what may follow it: names, files, or (None) anything."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    values: Sequence[str] | str | None


@dataclass(frozen=True)
class Node:
    """One command: its words, its options, what stands where no option does, and the commands below it."""

    path: str
    help: str
    switches: tuple[Switch, ...]
    values: tuple[str, ...]
    files: bool
    children: Mapping[str, str] = field(default_factory=dict)


@command(group="Shell")
def completion(
    *,
    context: typer.Context,
    shell: str | None = argument("SHELL", ", ".join(SHELLS) + ".", complete=SHELLS),
    database: DatabaseOptions,
) -> None:
    """Print a script that completes commands, options, and names of GPUs, models, fabrics and profiles.

    \b
    bash: gpucalc completion bash > ~/.local/share/bash-completion/completions/gpucalc
    zsh:  gpucalc completion zsh > ~/.zfunc/_gpucalc    (a folder of fpath)
    fish: gpucalc completion fish > ~/.config/fish/completions/gpucalc.fish
    """
    if shell is None:
        raise UsageError(f"for which shell? write one of {', '.join(SHELLS)}")
    if shell.casefold() not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    nodes = list(tree(context.find_root(), Names(database.database())))
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[shell.casefold()](nodes))


class Names:
    """What a shell offers for an option: its choices, those of its column, and names out of the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, name: str, one: Option) -> list[str]:
        """The words that may follow an option, or stand as an argument, of the name that its field has."""
        words = list(one.words) or (self._of_column(name) if one.cell else [])
        if isinstance(one.complete, str):
            return words + self._lists[one.complete]()
        return words + list(one.complete() if callable(one.complete) else one.complete)

    @staticmethod
    def _of_column(name: str) -> list[str]:
        """The words that a column of the row schema takes; of a few numbers, the numbers."""
        from gpucalc.core.columns import INPUT

        column = INPUT.get(name)
        if column is not None and column.kind == "int" and column.maximum < 10:
            return [str(number) for number in range(int(column.minimum), int(column.maximum) + 1)]
        return list(column.choices) if column is not None else []

    @cached_property
    def _lists(self) -> dict[str, Callable[[], list[str]]]:
        from gpucalc.cli.hw import KINDS
        from gpucalc.core.columns import INPUT, MEASURED
        from gpucalc.database.defaults import workloads
        from gpucalc.database.engines import engine_names
        from gpucalc.database.profiles import profile_names
        from gpucalc.jobs.serving_schema import RECORDS
        from gpucalc.models.presets import preset_names
        from gpucalc.validate.claims.check import shipped_claims

        db = self._db
        return {
            "gpus": lambda: list(db.files("accelerators")),
            "network links": lambda: [link.key for link in db.links() if link.kind == "network"],
            "topologies": lambda: list(db.files("topologies")),
            "hardware": lambda: list(dict.fromkeys(key for folder in KINDS for key in db.files(folder))),
            "claims": lambda: list(shipped_claims(db)),
            "models": lambda: list(preset_names()),
            "profiles": lambda: list(profile_names(db)),
            "engines": lambda: list(engine_names(db)),
            "workloads": lambda: list(workloads(db)),
            "settings": lambda: [f"{name}=" for name in INPUT if name not in MEASURED],
            "serving settings": lambda: [f"{name}=" for name in RECORDS],
        }


def known_options(parsed: Any) -> dict[str, Option]:
    """The options of a parsed command by the name of their field, arguments among them."""
    return getattr(parsed.callback, "options", {})


def tree(context: Any, names: Names, path: str = "") -> Iterator[Node]:
    """Every command with its options and arguments, the root first."""
    parsed = context.command
    known = known_options(parsed)
    switches = []
    for parameter in parsed.params:
        one = known.get(parameter.name)
        if parameter.param_type_name != "option" or getattr(parameter, "hidden", False):
            continue
        values: Sequence[str] | str | None = None
        if one is not None and not parameter.is_flag:
            values = FILES if one.files else names.of(parameter.name, one) or None
        switches.append(Switch(tuple(parameter.opts), _line(parameter.help), not parameter.is_flag, values))
    arguments = {name: one for name, one in known.items() if not one.flags}
    below = {}
    if hasattr(parsed, "list_commands"):
        below = {name: parsed.get_command(context, name) for name in parsed.list_commands(context)}
    yield Node(
        path,
        _line(parsed.get_short_help_str(60)),
        (*switches, Switch(("-h", "--help"), "Show help and exit.", False, None)),
        tuple(word for name, one in arguments.items() for word in names.of(name, one)),
        any(one.files for one in arguments.values()),
        {name: _line(child.get_short_help_str(60)) for name, child in below.items()},
    )
    for name, child in below.items():
        yield from tree(typer.Context(child, parent=context, info_name=name), names, f"{path} {name}".strip())


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).rstrip(".")


def _quoted(text: str) -> str:
    """A word for a POSIX shell or fish."""
    import shlex

    return shlex.quote(text)


def _listed(values: Sequence[str]) -> str:
    return " ".join(_quoted(value) for value in values)


def _after_options(nodes: Sequence[Node], indent: str) -> list[str]:
    """Branches of a `case` over "command|option": what may follow the option, each list once."""
    branches: dict[tuple[str, ...] | str, list[str]] = {}
    for node in nodes:
        for switch in node.switches:
            if switch.takes_value:
                values = switch.values if isinstance(switch.values, str) else tuple(switch.values or ())
                patterns = [_quoted(f"{node.path}|{flag}") for flag in switch.flags]
                branches.setdefault(values, []).extend(patterns)
    lines = []
    for values, patterns in branches.items():
        lines.append(f"{indent}{'|'.join(patterns)})")
        lines.append(f"{indent}  {'files=1' if values == FILES else f'names=({_listed(values)})'} ;;")
    return lines


def _after_commands(nodes: Sequence[Node], indent: str) -> list[str]:
    """Branches of a `case` over the command: its options, what may stand after it, and whether files may."""
    lines = []
    for node in nodes:
        flags = [flag for switch in node.switches for flag in switch.flags]
        lines.append(f"{indent}{_quoted(node.path)})")
        lines.append(f"{indent}  flags=({_listed(flags)})")
        lines.append(f"{indent}  names=({_listed([*node.children, *node.values])}); files={int(node.files)} ;;")
    return lines


_SHARED = """\
  for ((i = first; i < last; i++)); do
    word="${line[i]}"
    case "${at:+$at }$word" in
      %(commands)s) at="${at:+$at }$word" ;;
    esac
  done
  case "$at|$before" in
%(after_options)s
    *)
      case "$at" in
%(after_commands)s
      esac
      if [[ "$current" == -* ]]; then names=("${flags[@]}"); files=0; fi ;;
  esac
"""


def _shared(nodes: Sequence[Node]) -> str:
    return _SHARED % {
        "commands": "|".join(_quoted(node.path) for node in nodes if node.path),
        "after_options": "\n".join(_after_options(nodes, "    ")),
        "after_commands": "\n".join(_after_commands(nodes, "        ")),
    }


def bash(nodes: Sequence[Node]) -> str:
    """The script for bash; it needs no other package."""
    return (
        "# Completion of gpucalc for bash; made by: gpucalc completion bash\n"
        "_gpucalc() {\n"
        '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" at="" word i\n'
        '  local -a line=("${COMP_WORDS[@]}") names=() flags=()\n'
        "  local files=0 first=1 last=$COMP_CWORD\n"
        "  # --option=value arrives as three words.\n"
        '  if [[ "$current" == "=" ]]; then current=""; '
        'elif [[ "$before" == "=" ]]; then before="${COMP_WORDS[COMP_CWORD - 2]}"; fi\n'
        + _shared(nodes)
        + "  local IFS=$'\\n'\n"
        '  COMPREPLY=($(compgen -W "${names[*]}" -- "$current"))\n'
        "  if ((files)); then\n"
        "    compopt -o filenames 2>/dev/null\n"
        '    COMPREPLY+=($(compgen -f -- "$current"))\n'
        "  fi\n"
        '  if [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace 2>/dev/null; fi\n'
        "}\n"
        "complete -F _gpucalc gpucalc\n"
    )


def zsh(nodes: Sequence[Node]) -> str:
    """The script for zsh, to lie in a folder of fpath or to be sourced."""
    return (
        "#compdef gpucalc\n"
        "# Completion of gpucalc for zsh; made by: gpucalc completion zsh\n"
        "_gpucalc() {\n"
        '  local current="${words[CURRENT]}" before="${words[CURRENT-1]}" at="" word\n'
        '  local -a line names flags\n  line=("${words[@]}")\n'
        "  local -i i files=0 first=2 last=$CURRENT\n"
        '  if [[ "$current" == --*=* ]]; then before="${current%%=*}"; compset -P "*="; current=""; fi\n'
        + _shared(nodes)
        + "  compadd -S '' -- ${(M)names:#*=}\n"
        "  compadd -- ${names:#*=}\n"
        "  if (( files )); then _files; fi\n"
        "}\n"
        'if [[ "${funcstack[1]}" == _gpucalc ]]; then _gpucalc "$@"; '
        "elif (( $+functions[compdef] )); then compdef _gpucalc gpucalc; fi\n"
    )


def fish(nodes: Sequence[Node]) -> str:
    """The script for fish."""
    paths = _listed([node.path for node in nodes if node.path])
    lines = [
        "# Completion of gpucalc for fish; made by: gpucalc completion fish",
        "function __gpucalc_at",
        "  set -l at ''",
        "  for word in (commandline -opc)[2..-1]",
        '    set -l longer (string trim -- "$at $word")',
        f'    if contains -- "$longer" {paths}',
        "      set at $longer",
        "    end",
        "  end",
        '  test "$at" = "$argv[1]"',
        "end",
        "complete -c gpucalc -f",
    ]
    for node in nodes:
        here = f"complete -c gpucalc -n {_fish(f'__gpucalc_at {_fish(node.path)}')}"
        lines += [f"{here} -a {_fish(name)} -d {_fish(text)}" for name, text in node.children.items()]
        if node.values:
            lines.append(f"{here} -a {_fish(' '.join(node.values))}")
        if node.files:
            lines.append(f"{here} -F")
        lines += [f"{here} {_fish_switch(switch)}" for switch in node.switches]
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    """A word in single quotes, as fish escapes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_switch(switch: Switch) -> str:
    parts = [f"-{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}" for flag in switch.flags]
    if switch.values == FILES:
        parts.append("-r -F")
    elif switch.takes_value:
        parts.append("-x")
        if switch.values:
            parts.append(f"-a {_fish(' '.join(switch.values))}")
    return " ".join([*parts, f"-d {_fish(switch.help)}"])
