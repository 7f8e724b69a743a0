"""`gpucalc models`: presets, and the importer of config.json."""

from __future__ import annotations

from typing import Any

from gpucalc.cli.commands import command, family
from gpucalc.cli.option import argument
from gpucalc.cli.output import OutputOptions, emit_object, format_option, to_stderr
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError

family("models", group="Data", help="Model presets and the config.json importer.")

LISTED = ("name", "architecture", "parameters_total", "parameters_active", "layers", "hidden", "kv_bytes_per_token")


@command("models list")
def list_(*, output: OutputOptions) -> None:
    """List the presets."""
    from gpucalc.models.model import describe, load_model, preset_names
    from gpucalc.models.networks.catalog import describe_network, network_names

    rows = []
    networks = set(network_names())
    for name in sorted({*preset_names(), *networks}):
        if name in networks:
            facts = describe_network(name)
            rows.append({n: facts.get(n) for n in LISTED})
            continue
        facts = describe(load_model(name))
        shape = facts["shape"]
        # The name under which it is called, whatever the model calls itself.
        rows.append({**{n: facts[n] if n in facts else shape.get(n) for n in LISTED}, "name": name})
    if output.form in {"table", "md"}:
        from gpucalc.output import choose_columns

        records = [Column(n, "text", n, heading=n.replace("_", " ")) for n in choose_columns(output.columns, LISTED)]
        output.table(records, [{n: f"{v:,}" if isinstance(v, int) else v for n, v in row.items()} for row in rows])
    else:
        output.rows(LISTED, rows)


@command("models show")
def show(
    *,
    name: str | None = argument("MODEL", "Preset, or a config.json or folder.", complete="models", files=True),
    form: str = format_option(),
) -> None:
    """Show one model: parameters, shape, and which fields were read, derived or defaulted.

    \b
    gpucalc models show mixtral-8x7b
    """
    _describe(name, form, "models show mixtral-8x7b")


@command("models import")
def import_(
    *,
    path: str | None = argument("PATH", "config.json, or its folder.", files=True),
    form: str = format_option(),
) -> None:
    """Read a Hugging Face config.json and show what gpucalc makes of it."""
    import os

    if path is not None and not os.path.exists(path):
        raise UsageError(f"{path or repr(path)} does not exist; name a config.json or the folder that holds it")
    _describe(path, form, "models import path/to/config.json")


def _describe(name: str | None, form: str, example: str) -> None:
    from gpucalc.models.model import describe, load_model
    from gpucalc.models.networks.catalog import describe_network, resolve_network

    if name is None:
        raise UsageError(f"missing: a model, such as {example}")
    network = resolve_network(name)
    facts: dict[str, Any] = describe_network(network) if network else describe(load_model(name))
    emit_object(form, facts)
    if form != "table":
        to_stderr(*(f"gpucalc: {warning}" for warning in facts["warnings"]))
