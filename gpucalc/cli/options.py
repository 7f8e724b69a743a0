"""Options that several commands share, and how they become the cells of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Optional

import typer

from gpucalc.core.columns import INPUT, MEASURED, parse_cell, parse_setting
from gpucalc.core.errors import UsageError, nearest
from gpucalc.output import FORMATS

# Values are taken as text and read by the rules of the row schema, so that an option and a cell of a
# file accept the same and complain alike.
Text = Optional[str]

Model = Annotated[Text, typer.Argument(metavar="MODEL", help="Preset, or a config.json or its folder; custom: --set.")]
Gpu = Annotated[Text, typer.Option("--gpu", metavar="GPU", help="Key or alias of the hardware database.")]
Gpus = Annotated[Text, typer.Option("--gpus", metavar="N", help="GPUs of the job.")]
SeqLen = Annotated[Text, typer.Option("--seq-len", metavar="N", help="Tokens of one sequence.")]
GlobalBatch = Annotated[Text, typer.Option("--global-batch", metavar="N", help="Sequences of one step.")]
MicroBatch = Annotated[Text, typer.Option("--micro-batch", metavar="N", help="Sequences of a micro-step.")]
Precision = Annotated[Text, typer.Option("--precision", metavar="NAME", help="bf16, fp16, fp8, mxfp8, nvfp4 …")]
Fabric = Annotated[Text, typer.Option("--fabric", metavar="LINK", help="Network link of the database, such as ib-ndr.")]
Profile = Annotated[Text, typer.Option("--profile", metavar="NAME", help="Software profile.")]
GpusPerNode = Annotated[Text, typer.Option("--gpus-per-node", metavar="N", help="GPUs of one node.")]
NetworkRate = Annotated[
    Text, typer.Option("--inter-node-gbps", metavar="GBIT/S", help="Network rate per GPU, one direction, in Gb/s.")
]
Recompute = Annotated[Text, typer.Option("--recompute", metavar="KIND", help="none, selective, full or auto.")]
Zero = Annotated[Text, typer.Option("--zero", metavar="STAGE", help="ZeRO stage, 0 to 3; 3 is FSDP.")]
Schedule = Annotated[Text, typer.Option("--schedule", metavar="NAME", help="Pipeline schedule, such as 1f1b.")]
Settings = Annotated[
    Optional[list[str]], typer.Option("--set", metavar="KEY=VALUE", help="Any column of the row schema; repeatable.")
]
LayoutLabel = Annotated[Text, typer.Option("--layout", metavar="LABEL", help="Such as tp8-pp4-dp2-mbs1-zero1-sp.")]
Databases = Annotated[
    Optional[list[str]], typer.Option("--db", metavar="DIR", help="Overlay of the hardware database; repeatable.")
]
CausalFlops = Annotated[bool, typer.Option("--causal-flops", help="Count half of the attention square in MFU.")]
Format = Annotated[str, typer.Option("-f", "--format", metavar="FORMAT", help="table, csv, json, jsonl or md.")]
ColumnList = Annotated[Text, typer.Option("--columns", metavar="A,B,…", help="Columns to print, in this order.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave out the heading.")]
Plot = Annotated[Text, typer.Option("--plot", metavar="FILE", help="Draw it too: .png, .svg or .pdf.")]

FLAGS = {
    "model": "MODEL",
    "gpu": "--gpu",
    "n_gpus": "--gpus",
    "seq_len": "--seq-len",
    "global_batch": "--global-batch",
    "micro_batch": "--micro-batch",
    "precision": "--precision",
    "gpus_per_node": "--gpus-per-node",
    "inter_node_gbps_per_gpu": "--inter-node-gbps",
    "recompute": "--recompute",
    "zero_stage": "--zero",
    "schedule": "--schedule",
    "lora_rank": "--lora-rank",
    "lora_targets": "--lora-targets",
    "optimizer": "--optimizer",
}


def chosen_format(text: str) -> str:
    """One of the output formats."""
    word = text.strip().casefold()
    if word not in FORMATS:
        near = nearest(word, FORMATS, 1)
        raise UsageError(
            f"--format is {text!r}" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(FORMATS)}")
        )
    return word


def option_value(column: str, text: str, flag: str | None = None) -> Any:
    """The value of an option by the rules of a column; complaints name the option."""
    flag = flag or FLAGS.get(column, f"--{column.replace('_', '-')}")
    record = INPUT[column]
    if record.kind == "int":
        text = _without_separators(text)
    try:
        value = parse_cell(record, text)
    except UsageError as error:
        raise UsageError(*(flag + p.removeprefix(column) for p in error.problems)) from None
    if value is None:
        raise UsageError(f"{flag} is empty")
    return value


def _without_separators(text: str) -> str:
    """1_536 and 1,536 as people write them on a command line; anything else is left for the column to judge."""
    import re

    return re.sub(r"[_,]", "", text) if re.fullmatch(r"\d{1,3}([_,]\d{3})+", text.strip()) else text


def positive_integer(flag: str, text: str) -> int:
    """A whole number of at least one, for options that are no column."""
    from gpucalc.core.columns import Column

    record = Column("value", "int", flag)
    try:
        value: int | None = parse_cell(record, _without_separators(text))
    except UsageError as error:
        raise UsageError(*(flag + p.removeprefix("value") for p in error.problems)) from None
    if value is None:
        raise UsageError(f"{flag} is empty")
    return value


def positive_number(flag: str, text: str) -> float:
    """A number above 0, for options that are no column."""
    from gpucalc.core.columns import Column

    try:
        value: float | None = parse_cell(Column("value", "number", flag), text)
    except UsageError as error:
        raise UsageError(*(flag + p.removeprefix("value") for p in error.problems)) from None
    if value is None:
        raise UsageError(f"{flag} is empty")
    return value


def share(flag: str, text: str) -> float:
    """A share between 0 and 1, written as 5% or 0.05; a bare number above 1 is no guess but an error."""
    percent = text.strip().endswith("%")
    value = positive_number(flag, text.strip().removesuffix("%")) / (100 if percent else 1)
    if value >= 1:
        raise UsageError(f"{flag} is {text!r}, expected a share below 1, such as 5% or 0.05")
    return value


# Parameters of the commands that state a job → the cells they state.
STATED = {
    "model": "model",
    "gpu": "gpu",
    "gpus": "n_gpus",
    "seq_len": "seq_len",
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "precision": "precision",
    "gpus_per_node": "gpus_per_node",
    "inter_node_gbps": "inter_node_gbps_per_gpu",
    "recompute": "recompute",
    "zero": "zero_stage",
    "schedule": "schedule",
}


def stated_options(parameters: Mapping[str, Any]) -> dict[str, str | None]:
    """The options of `job_cells` among a command's parameters; the MODEL "-" states none, a row on stdin does."""
    found = {cell: parameters[name] for name, cell in STATED.items() if name in parameters}
    return {**found, "model": None} if found.get("model") == "-" else found


def job_cells(
    options: Mapping[str, str | None],
    settings: Iterable[str] | None,
    layout: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The typed cells of one job from options, `--set` pairs (the last of a key wins) and a layout.

    Raises UsageError with every wrong value and every contradiction between them. `base` holds cells
    that all of these replace.
    """
    problems: list[str] = []
    stated: dict[str, tuple[str, Any]] = {}

    def state(name: str, flag: str, value: Any) -> None:
        if name in stated and stated[name][1] != value:
            problems.append(f"{stated[name][0]} contradicts {flag} on {name}")
        stated.setdefault(name, (flag, value))

    for name, text in options.items():
        if text is None or (name == "recompute" and text.strip().casefold() == "auto"):
            continue
        try:
            state(name, f"{FLAGS[name]} {text}", option_value(name, text))
        except UsageError as error:
            problems.extend(error.problems)
    pairs: dict[str, tuple[str, Any]] = {}
    for pair in settings or ():
        try:
            name, value = parse_setting(pair)
            pairs[name] = (f"--set {pair}", value)
        except UsageError as error:
            problems.extend(error.problems)
    for name, (flag, value) in pairs.items():
        state(name, flag, value)
    for name, value in (layout or {}).items():
        state(name, "--layout", value)
    if problems:
        raise UsageError(*problems)
    cells = {**(base or {}), **{name: value for name, (_, value) in stated.items()}}
    if str(cells.get("model", "")).casefold() == "custom":
        del cells["model"]
    return {name: value for name, value in cells.items() if name not in MEASURED}


def require(cells: Mapping[str, Any], *names: str) -> None:
    """Raise UsageError that lists all of `names` that are not stated, each with an example."""
    examples = {
        "model": "a MODEL such as llama-3.1-8b (or --set layers=32 --set hidden=4096 --set heads=32)",
        "gpu": "--gpu h100-sxm-80gb",
        "n_gpus": "--gpus 64",
        "seq_len": "--seq-len 8192",
        "global_batch": "--global-batch 128",
    }
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [n for n in names if n not in cells and not (n == "model" and by_hand)]
    if missing:
        raise UsageError("missing: " + ", ".join(examples[n] for n in missing))


def open_database(dirs: Iterable[str] | None) -> Any:
    """The hardware database with its overlays."""
    from gpucalc.database.reader import Database

    return Database(tuple(dirs or ()))


def check_plot(path: str | None) -> None:
    """Complain about a picture that cannot be made before anything is computed or written."""
    if path is not None:
        from gpucalc.output.figures import check_path

        check_path(path)


def resolved_cluster(
    db: Any,
    gpu: str | None,
    gpus: str | None,
    gpus_per_node: str | None,
    inter_node_gbps: str | None,
    fabric: str | None,
) -> Any:
    """The cluster that the options of `comm` mean."""
    from gpucalc.database.cluster import resolve_cluster

    options = {
        "gpu": gpu,
        "n_gpus": gpus,
        "gpus_per_node": gpus_per_node,
        "inter_node_gbps_per_gpu": inter_node_gbps,
    }
    cells = job_cells(options, None)
    require(cells, "gpu", "n_gpus")
    return resolve_cluster(
        db,
        cells["gpu"],
        cells["n_gpus"],
        gpus_per_node=cells.get("gpus_per_node"),
        inter_node_gbps_per_gpu=cells.get("inter_node_gbps_per_gpu"),
        fabric=fabric,
    )
