"""`gpucalc completion`: a script that lets a shell complete commands, options and names.

The script holds every name it offers, so that completing takes no time and starts no Python; it is made anew after
an update, or when an overlay of the hardware database changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.core.errors import UsageError, unknown

SHELLS = ("bash", "zsh", "fish")
FILES = "files"  # stands for names of files


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


def completion(
    context: typer.Context,
    shell: Annotated[Optional[str], typer.Argument(metavar="SHELL", help=", ".join(SHELLS) + ".")] = None,
    db: opt.Databases = None,
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
    nodes = list(tree(context.find_root().command, Names(opt.open_database(db))))
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[shell.casefold()](nodes))


class Names:
    """What may follow an option or stand as an argument."""

    def __init__(self, db: Any) -> None:
        from gpucalc.cli import comm, evaluate, hw, plan
        from gpucalc.core.columns import INPUT, MEASURED
        from gpucalc.database.profiles import profile_names
        from gpucalc.launch.target import sources, targets, wrappers
        from gpucalc.models.presets import preset_names
        from gpucalc.output import FORMATS

        gpus = [device.key for device in db.devices()]
        links = [link.key for link in db.links()]
        nodes, topologies = [node.key for node in db.nodes()], [topology.key for topology in db.topologies()]
        choices = {flag: INPUT[name].choices for name, flag in opt.FLAGS.items() if name in INPUT}
        files = ("--plot", "--report", "--db", "--output")
        self.options: dict[str, Sequence[str] | str] = {
            **{flag: values for flag, values in choices.items() if values},
            **dict.fromkeys(files, FILES),
            "--gpu": gpus,
            "--against": gpus,
            "--fabric": [link.key for link in db.links() if link.kind == "network"],
            "--profile": profile_names(db.dirs),
            "--format": FORMATS,
            "--zero": ("0", "1", "2", "3"),
            "--objective": plan.OBJECTIVES,
            "--set": [f"{name}=" for name in INPUT if name not in MEASURED],
            "--to": (*targets(), *wrappers()),
            "--from": sources(),
            "--launcher": targets(),
            "--op": comm.OPERATIONS,
            "--phase": ("prefill", "decode"),
            "--mode": ("strong", "weak", "both"),
            "--assert": ("fits", "risky"),
        }
        self.by_command: dict[tuple[str, str], Sequence[str]] = {
            ("eval", "--kind"): tuple(evaluate.KINDS),
            ("validate", "--kind"): ("training", "gemm", "attention", "collective"),
            ("validate", "--by"): ("source", "family", "gpu", "framework"),
        }
        self.arguments: dict[str, Sequence[str]] = {
            "MODEL": preset_names(),
            "OP": comm.OPERATIONS,
            "SHELL": SHELLS,
            "[KIND]": hw.KINDS,
            "NAME": [*gpus, *nodes, *links, *topologies],
        }

    def after(self, path: str, flags: Sequence[str]) -> Sequence[str] | str | None:
        """What may follow an option of a command."""
        for flag in flags:
            if (path, flag) in self.by_command:
                return self.by_command[path, flag]
        return next((self.options[flag] for flag in flags if flag in self.options), None)


_NO_FILES = {"OP", "SIZE", "M", "N", "K", "SHELL", "[KIND]", "NAME"}


def tree(command: Any, names: Names, path: str = "") -> Iterator[Node]:
    """Every command with its options and arguments, the root first."""
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    arguments = [p.metavar or "" for p in command.params if p.param_type_name == "argument"]
    switches = [
        Switch(
            tuple(p.opts), _line(p.help), not p.is_flag, None if p.is_flag else names.after(path, [*reversed(p.opts)])
        )
        for p in options
    ]
    children = {n: _line(c.get_short_help_str(60)) for n, c in getattr(command, "commands", {}).items() if not c.hidden}
    yield Node(
        path,
        _line(command.get_short_help_str(60)),
        (*switches, Switch(("-h", "--help"), "Show help and exit.", False, None)),
        tuple(value for metavar in arguments for value in names.arguments.get(metavar, ())),
        any(metavar not in _NO_FILES for metavar in arguments),
        children,
    )
    for name in children:
        yield from tree(command.commands[name], names, f"{path} {name}".strip())


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
