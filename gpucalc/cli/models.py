"""`gpucalc models`: presets, and the importer of config.json."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.output import emit_object, emit_rows, talk
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError

app = typer.Typer(help="Model presets and the config.json importer.", no_args_is_help=True, rich_markup_mode=None)

LISTED = ("name", "architecture", "parameters_total", "parameters_active", "layers", "hidden", "kv_bytes_per_token")


@app.command("list")
def list_(
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    no_header: opt.NoHeader = False,
) -> None:
    """List the presets."""
    from gpucalc.models.model import describe, load_model, preset_names

    form = opt.chosen_format(form)
    rows = []
    for name in preset_names():
        facts = describe(load_model(name))
        shape = facts["shape"]
        # The name under which it is called, whatever the model calls itself.
        rows.append({**{n: facts[n] if n in facts else shape.get(n) for n in LISTED}, "name": name})
    if form in {"table", "md"}:
        from gpucalc.output import choose_columns
        from gpucalc.output.table import table

        records = [Column(n, "text", n, heading=n.replace("_", " ")) for n in choose_columns(columns, LISTED)]
        shown = [{n: f"{v:,}" if isinstance(v, int) else v for n, v in row.items()} for row in rows]
        sys.stdout.write(table(records, shown, markdown=form == "md", header=not no_header) + "\n")
    else:
        emit_rows(form, LISTED, rows, columns, not no_header)


@app.command("show")
def show(
    name: Annotated[Optional[str], typer.Argument(metavar="MODEL", help="Preset, or a config.json or folder.")] = None,
    form: opt.Format = "table",
) -> None:
    """Show one model: parameters, shape, and which fields were read, derived or defaulted.

    \b
    gpucalc models show mixtral-8x7b
    """
    _describe(name, form, "models show mixtral-8x7b")


@app.command("import")
def import_(
    path: Annotated[Optional[str], typer.Argument(metavar="PATH", help="config.json, or its folder.")] = None,
    form: opt.Format = "table",
) -> None:
    """Read a Hugging Face config.json and show what gpucalc makes of it."""
    import os

    if path is not None and not os.path.exists(path):
        raise UsageError(f"{path or repr(path)} does not exist; name a config.json or the folder that holds it")
    _describe(path, form, "models import path/to/config.json")


def _describe(name: str | None, form: str, example: str) -> None:
    from gpucalc.models.model import describe, load_model

    form = opt.chosen_format(form)
    if name is None:
        raise UsageError(f"missing: a model, such as {example}")
    facts: dict[str, Any] = describe(load_model(name))
    emit_object(form, facts)
    if form != "table":
        talk(*(f"gpucalc: {warning}" for warning in facts["warnings"]))
