"""`gpucalc hw`: the hardware database."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gpucalc.cli.calibrate import calibrate
from gpucalc.cli.commands import command, family
from gpucalc.cli.job_options import DatabaseOptions
from gpucalc.cli.option import argument, option
from gpucalc.cli.output import OutputOptions, emit_object, format_option, to_stderr
from gpucalc.cli.values import positive_integer, quantity
from gpucalc.core.columns import Column
from gpucalc.core.errors import ExitStatus, UsageError, nearest, unknown
from gpucalc.core.units import GIB

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

family("hw", group="Data", help="The hardware database.")

KINDS = ("accelerators", "nodes", "links", "topologies", "architectures")


# What the table of a kind shows: field → column and the divisor to its unit.
_SHOWN: dict[str, tuple[Column, float]] = {
    "usable_bytes": (Column("usable_bytes", "number", "memory", unit="GiB", heading="usable", decimals=1), GIB),
    "memory_bytes": (Column("memory_bytes", "number", "memory", unit="GB", heading="memory", decimals=0), 1e9),
    "memory_bandwidth": (Column("memory_bandwidth", "number", "HBM", unit="GB/s", heading="HBM", decimals=0), 1e9),
    "bf16_dense": (Column("bf16_dense", "number", "bf16", unit="TFLOP/s", heading="bf16 dense", decimals=1), 1e12),
    "fp8_dense": (Column("fp8_dense", "number", "fp8", unit="TFLOP/s", heading="fp8 dense", decimals=1), 1e12),
    "link_bandwidth": (Column("link_bandwidth", "number", "link", unit="GB/s", heading="link", decimals=0), 1e9),
    "network_bandwidth_per_gpu": (
        Column("network_bandwidth_per_gpu", "number", "rate", unit="Gb/s", heading="network/GPU", decimals=2),
        1e9 / 8,
    ),
    "bandwidth": (Column("bandwidth", "number", "rate", unit="GB/s", heading="per direction", decimals=3), 1e9),
    "latency_s": (Column("latency_s", "number", "latency", unit="µs", heading="latency", decimals=2), 1e-6),
    "switch_latency_s": (Column("switch_latency_s", "number", "hop", unit="µs", heading="switch hop"), 1e-6),
    "tdp_watts": (Column("tdp_watts", "number", "power", unit="W", heading="power", decimals=0), 1.0),
}
_LEFT_OUT = {"name", "vendor", "memory_bytes"}  # of the table of accelerators; csv and json have them


def _rows(db: Database, kind: str) -> list[dict[str, Any]]:
    if kind == "accelerators":
        return [
            {
                "key": d.key,
                "name": d.name,
                "vendor": d.vendor,
                "arch": d.arch,
                "year": d.year,
                "memory_bytes": d.memory_bytes,
                "usable_bytes": d.usable_bytes,
                "memory_bandwidth": d.memory_bandwidth,
                "bf16_dense": d.peak.get("bf16"),
                "fp8_dense": d.peak.get("fp8"),
                "link_bandwidth": d.link_bandwidth or None,
                "tdp_watts": d.tdp_watts,
                "default_node": d.default_node,
            }
            for d in db.devices()
        ]
    if kind == "nodes":
        names = "key name gpus_per_node domain scale_up scale_up_topology fabric nic_count network_bandwidth_per_gpu"
        return [{n: getattr(node, n) for n in names.split()} for node in db.nodes()]
    if kind == "links":
        return [{n: getattr(link, n) for n in ["key", "name", "kind", "bandwidth", "latency_s"]} for link in db.links()]
    if kind == "architectures":
        names = "key name vendor year block_scaled weight_only ray_tracing one_connection"
        return [{n: _said(getattr(one, n)) for n in names.split()} for one in db.architectures()]
    names = "key name kind switch_latency_s max_hops oversubscription"
    return [{n: getattr(t, n) for n in names.split()} for t in db.topologies()]


def _said(value: Any) -> Any:
    """A flag or a list as a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, tuple) else value


def _plain(name: str) -> Column:
    return Column(name, "text", name, heading=name.replace("_", " "))


def _scaled(name: str, value: Any) -> Any:
    return value / _SHOWN[name][1] if name in _SHOWN and value is not None else value


def _kind(flag: str, text: str) -> str:
    if text not in KINDS:
        raise unknown("kind", text, KINDS)
    return text


@command("hw list")
def list_(
    *,
    kind: str = argument("[KIND]", ", ".join(KINDS) + ".", default="accelerators", read=_kind, choices=KINDS),
    output: OutputOptions,
    database: DatabaseOptions,
) -> None:
    """List what the database holds: accelerators, nodes, links, topologies or architectures."""
    rows = _rows(database.database(), kind)
    known = list(rows[0]) if rows else ["key"]
    if output.form not in {"table", "md"}:
        output.rows(known, rows)
        return
    from gpucalc.output import choose_columns

    default = [n for n in known if kind != "accelerators" or n not in _LEFT_OUT]
    names = choose_columns(output.columns, known) if output.columns is not None else default
    records = [_SHOWN[n][0] if n in _SHOWN else _plain(n) for n in names]
    output.table(records, [{n: _scaled(n, row[n]) for n in names} for row in rows])


@command("hw show")
def show(
    *,
    name: str | None = argument("NAME", "Accelerator, node, link, topology or architecture.", complete="hardware"),
    form: str = format_option(),
    database: DatabaseOptions,
) -> None:
    """Show every fact of one accelerator, node, link, topology or architecture with its source; SI units.

    Of an accelerator also the calibration in force: constants of its kernels and, in its usual node, of
    collectives, with what each rests on.

    \b
    gpucalc hw show mi300x
    """
    if name is None:
        raise UsageError("missing: a name, such as hw show mi300x (gpucalc hw list shows all)")
    db = database.database()
    found = _find(db, name)
    facts = _facts(found, form)
    if hasattr(found, "default_node"):
        facts["calibration"] = _in_force(db, found, form)
    emit_object(form, facts)


def _find(db: Database, name: str) -> Any:
    """The record of a name; keys come before aliases, since "dgx-h100" is a node and an alias of its GPU."""
    keys = {folder: list(db.files(folder)) for folder in KINDS}
    lookups = {"nodes": db.node, "links": db.link, "topologies": db.topology, "architectures": db.architecture}
    for folder, lookup in lookups.items():
        if name.casefold() in keys[folder]:
            return lookup(name.casefold())
    try:
        return db.device(name)
    except UsageError as error:
        others = [key for folder in KINDS[1:] for key in keys[folder]]
        if not str(error).startswith("unknown ") or not nearest(name, others, 1):
            raise
        raise unknown(
            "accelerator, node, link, topology or architecture", name, [*keys["accelerators"], *others]
        ) from None


_UNITS = {"bytes": "B", "bandwidth": "B/s", "bidirectional": "B/s", "hz": "1/s", "watts": "W", "s": "s"}


def _facts(record: Any, form: str) -> dict[str, Any]:
    """All fields; for people with units and without those that are not stated."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    if "architecture" in fields:
        fields["architecture"] = _facts(fields["architecture"], form)
    if "peak" in fields:
        fields = {
            ("peak_dense" if n == "peak" else "peak_sparse" if n == "sparse_peak" else n): v for n, v in fields.items()
        }
    fields = {n: dict(v) if hasattr(v, "items") else v for n, v in fields.items()}
    if form not in {"table", "md"}:
        return fields
    from gpucalc.output.explain import quantity

    def readable(name: str, value: Any) -> Any:
        if name.startswith("peak_") and isinstance(value, dict):
            return {p: quantity(v, "FLOP/s") for p, v in value.items()}
        unit = _UNITS.get(name.rsplit("_", 1)[-1], "")
        if "bandwidth" in name:
            unit = "B/s"
        if unit in {"1/s", "W"} and isinstance(value, float):
            return f"{value / 1e6:g} MHz" if unit == "1/s" else f"{value:g} W"
        return quantity(value, unit) if unit and isinstance(value, int | float) else value

    return {n: readable(n, v) for n, v in fields.items() if v not in (None, "", {}, ())}


def _in_force(db: Database, device: Device, form: str) -> dict[str, Any]:
    """The constants that predictions take for a device, by table, with what they rest on."""
    from gpucalc.database.cluster import resolve_cluster
    from gpucalc.database.efficiency import TABLE_PRECISION, TABLES, calibration_rows
    from gpucalc.database.network import calibration

    precisions = {t: next((p for p in device.precisions() if TABLE_PRECISION[p] == t), None) for t in ("bf16", "fp8")}
    precisions["nvfp4"] = "nvfp4" if device.supports("nvfp4") else None
    found: dict[str, Any] = {}
    for table in TABLES:
        for row_name, precision in precisions.items() if table == "gemm" else [("", device.default_precision)]:
            rows = calibration_rows(device, precision, table, db) if precision else []
            if not rows:
                continue
            constants: dict[str, float] = {}
            for row in reversed(rows):
                constants |= row.values
            place = f"{table} {row_name}".strip()
            found[place] = {
                "key": rows[0].key[0],
                "provenance": rows[0].texts["provenance"],
                "source": rows[0].texts["source"],
                "constants": constants,
            }
            held = rows[0].texts.get("heldout_error")
            if held:
                found[place]["error_held_out"] = float(held)
    cluster = resolve_cluster(db, device.key, db.node(device.default_node).gpus_per_node)
    found["collectives"] = {
        name: f"{c.value:g} {c.unit}".strip() + f" ({c.provenance}: {c.scope}{f', {c.source}' if c.source else ''})"
        if form in {"table", "md"}
        else dataclasses.asdict(c)
        for name, c in calibration(cluster, db).items()
        if c.value != float("inf")
    }
    return found


@command("hw check")
def check(
    *,
    dirs: tuple[str, ...] = argument("[DIR]...", "Overlays to check too.", repeat=True, files=True),
    database: DatabaseOptions,
) -> int:
    """Check the database and overlays; list all problems at once as file: key: problem."""
    from gpucalc.database.check import check as problems_of
    from gpucalc.validate.claims.check import claim_problems

    wanted = dirs + database.db
    problems = list(dict.fromkeys([*problems_of(wanted), *claim_problems(wanted)]))
    for problem in problems:
        print(problem)
    if problems:
        to_stderr(f"gpucalc: {len(problems)} problem" + ("s" if len(problems) > 1 else ""))
        return ExitStatus.USAGE
    to_stderr("gpucalc: no problems")
    return ExitStatus.OK


def _size(flag: str, text: str) -> str:
    """A memory such as 24GB, as a device file writes it."""
    from gpucalc.core.columns import parse_cell

    try:
        return f"{parse_cell('gpu_memory_gib', text):g} GB"
    except UsageError:
        raise UsageError(f"{flag} is {text!r}, expected a size such as 24GB") from None


def _quantity(dimension: str) -> Any:
    """A quantity, checked, as the text that a device file holds."""

    def read(flag: str, text: str) -> str:
        quantity(dimension)(flag, text)
        return text.strip()

    return read


def _peak(flag: str, text: str) -> tuple[str, str]:
    """A peak: 71TFLOP/s, which is of bf16, or fp8=660TFLOP/s."""
    from gpucalc.core.vocabulary import PRECISIONS

    name, equals, rate = text.partition("=")
    precision, rate = (name.strip().casefold(), rate) if equals else ("bf16", text)
    if precision not in {*PRECISIONS, "int8", "fp64"}:
        raise unknown("precision", precision, [*PRECISIONS, "int8", "fp64"])
    quantity("FLOP/s")(flag, rate)
    return precision, rate.strip()


@command("hw new")
def new(
    *,
    name: str | None = argument("NAME", "Name of the device, such as rtx-3070."),
    like: str | None = option("--like GPU", "The nearest known device; what is not stated is its.", complete="gpus"),
    memory: str | None = option("--memory SIZE", "Memory, such as 8GB.", read=_size),
    bandwidth: str | None = option("--bandwidth RATE", "Of the memory, such as 448GB/s.", read=_quantity("B/s")),
    peak: tuple[tuple[str, str], ...] = option(
        "--peak [PRECISION=]RATE", "Dense peak of bf16, or of another precision; repeatable.", repeat=True, read=_peak
    ),
    power: str | None = option("--power WATTS", "Power limit, such as 220W.", read=_quantity("W")),
    year: int | None = option("--year YEAR", "Year of introduction.", read=positive_integer),
    out: str = option("-o, --output DIR", "Overlay that the file is written to.", default="overlay", files=True),
    database: DatabaseOptions,
) -> None:
    """Write a device file for a card that the database has not, checked, into an overlay.

    \b
    gpucalc hw new rtx-3070 --like rtx3090 --memory 8GB --bandwidth 448GB/s --peak 40.6TFLOP/s -o mine
    gpucalc fit llama-3.2-1b --gpu rtx-3070 --gpus 1 --seq-len 2048 --db mine
    """
    from pathlib import Path

    from gpucalc.database.check import check as problems_of
    from gpucalc.database.new_device import device_key, new_device

    stated = {"memory": memory, "bandwidth": bandwidth, "power": power, "year": year}
    stated = {field: value for field, value in stated.items() if value is not None}
    lacking = [flag for flag, value in (("NAME", name), ("--like GPU", like)) if not value]
    lacking += [f"--{field}" for field in ("memory", "bandwidth") if field not in stated]
    lacking += [] if peak else ["--peak 71TFLOP/s"]
    if lacking or name is None or like is None:
        raise UsageError(f"missing: {', '.join(lacking)}")
    text = new_device(database.database(), name, like, stated, dict(peak))
    folder = Path(out) / "accelerators"
    file = folder / f"{device_key(name)}.toml"
    if file.exists():
        raise UsageError(f"{file} is there already; remove it, or give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None
    problems = [problem for problem in problems_of((out,)) if device_key(name) in problem]
    if problems:
        file.unlink()
        raise UsageError(*problems)
    print(file)
    to_stderr(f"checked; use it with --gpu {device_key(name)} --db {out}")


@command("hw schema")
def schema() -> None:
    """Print the fields that a file of the database may hold."""
    from gpucalc.database.records import schema_table

    print(schema_table().rstrip("\n"))


command("hw calibrate")(calibrate)
