"""The application: its commands, and what all of them share."""

from __future__ import annotations

import re

import typer

from gpucalc import __version__
from gpucalc.cli.grouping import GroupedCommands
from gpucalc.core.errors import nearest

app = typer.Typer(
    name="gpucalc",
    cls=GroupedCommands,
    help="Which parallel layout of a large model fits a GPU cluster, how fast it is, and why.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
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
        if said.startswith("no such command"):
            known = list(getattr(context.command, "commands", {}))
        elif said.startswith("no such option"):
            known = [name for parameter in context.command.params for name in parameter.opts]
        else:
            known = []
        near = nearest(word, known, 2)
        said += f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{path}: {said} (see {path} --help)"


from gpucalc.cli import (  # noqa: E402     claims,     comm,     completion,     diagnose,     evaluate,     explain,     export,     fit,     hpc,     hw,     models,     plan,     power,     render,     roofline,     run,     scale,     schedule,     serve,     storage,     sweep,     tune,     validate,     whatif, )
    claims,
    comm,
    completion,
    diagnose,
    evaluate,
    explain,
    export,
    fit,
    hpc,
    hw,
    models,
    plan,
    power,
    render,
    roofline,
    run,
    scale,
    schedule,
    serve,
    storage,
    sweep,
    tune,
    validate,
    whatif,
)

app.command("plan")(plan.plan)
app.command("explain")(explain.explain)
app.command("eval")(evaluate.evaluate)
app.command("validate")(validate.validate)
app.command("fit")(fit.fit)
app.command("scale")(scale.scale)
app.command("whatif")(whatif.whatif)
app.command("serve")(serve.serve)
app.command("tune")(tune.tune)
app.command("diagnose")(diagnose.diagnose)
app.command("sweep")(sweep.sweep)
app.command("hpc")(hpc.hpc)
app.command("render")(render.render)
app.command("schedule")(schedule.schedule)
app.command("export")(export.export)
app.command("comm")(comm.comm)
app.add_typer(roofline.app, name="roofline")
app.add_typer(hw.app, name="hw")
app.add_typer(models.app, name="models")
app.command("run")(run.run)
app.command("storage")(storage.storage)
app.command("power")(power.power)
app.command("claims")(claims.claims)
app.command("completion")(completion.completion)
