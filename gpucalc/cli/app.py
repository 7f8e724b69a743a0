"""The application: its commands, and what all of them share."""

from __future__ import annotations

import re

import typer

from gpucalc import __version__
from gpucalc.cli.commands import Commands
from gpucalc.core.errors import suggestion


class Application(Commands):
    """All commands, each the module of its name in this folder, in the order of `gpucalc --help`."""

    modules = (
        *("plan", "fit", "scale", "sweep", "generate"),
        *("explain", "whatif", "diagnose", "comm", "roofline"),
        "export",
        *("eval", "validate", "learn", "claims"),
        *("serve", "tune"),
        *("run", "storage", "power", "hpc", "render", "schedule"),
        *("hw", "models"),
        "completion",
    )


app = typer.Typer(
    name="gpucalc",
    cls=Application,
    help="Which parallel layout of a large model fits a GPU cluster, how fast it is, and why.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    suggest_commands=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

# typer may carry its own copy of click; its exceptions are reached through the one it exports.
_ANCESTRY = {c.__name__: c for c in typer.BadParameter.__mro__}
_ClickException = _ANCESTRY["ClickException"]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gpucalc {__version__}")
        raise typer.Exit


@app.callback()
def shared(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Which parallel layout of a large model fits a GPU cluster, how fast it is, and why."""


def is_usage_error(error: Exception) -> bool:
    """Whether an exception is the option parser's."""
    return isinstance(error, _ClickException)


def usage_sentence(error: Exception) -> str:
    """What the option parser found wrong, as one sentence with the nearest valid name."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gpucalc"
    if type(error).__name__ == "NoArgsIsHelpError":
        return context.get_help() if context else ""
    said = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    said = said[:1].lower() + said[1:]
    # The parser's own suggestions come in several styles; ours are in one.
    said = re.split(r"[.;,]? \(?(?:Did you mean|Possible options|did you mean)", said)[0]
    if context:
        word = said.rsplit(" ", 1)[-1].strip("'\"")
        known: list[str] = []
        if said.startswith("no such command"):
            known = context.command.list_commands(context)
        elif said.startswith("no such option"):
            known = [name for parameter in context.command.params for name in parameter.opts]
        said += suggestion(word, known, 2, "")
    return f"{path}: {said} (see {path} --help)"
