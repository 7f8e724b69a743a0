"""The options that state a job, a cluster and the database, and how they become the cells of a row.

A field that is a `cell` is named after its column of the row schema: `--zero` states `zero_stage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpucalc.cli.option import argument, cell, option, options_of
from gpucalc.cli.output import to_stderr
from gpucalc.cli.piped import row_from_stdin
from gpucalc.cli.values import column_value
from gpucalc.core.columns import MEASURED, parse_setting
from gpucalc.core.errors import UsageError

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.jobs.context import Context

ANY_CARD = "a100-pcie-80gb"  # whose rates stand where only a memory is stated
_EXAMPLES = {
    "model": "a MODEL such as llama-3.1-8b (or --set layers=32 --set hidden=4096 --set heads=32)",
    "gpu": "--gpu h100-sxm-80gb",
    "n_gpus": "--gpus 64",
    "seq_len": "--seq-len 8192",
    "global_batch": "--global-batch 128",
}


@dataclass(frozen=True)
class DatabaseOptions:
    """Where the hardware database lies."""

    db: tuple[str, ...] = option("--db DIR", "Overlay of the hardware database; repeatable.", repeat=True, files=True)

    def database(self) -> Database:
        """The hardware database with its overlays."""
        from gpucalc.database.reader import Database

        return Database(self.db)


@dataclass(frozen=True)
class _ClusterCells:
    gpu: str | None = cell("--gpu GPU", "Key or alias of the hardware database.", complete="gpus")
    gpu_memory_gib: str | None = cell("--gpu-memory SIZE", "Memory of one GPU, such as 24GB; for any card.")
    n_gpus: str | None = cell("--gpus N", "GPUs of the job.")
    gpus_per_node: str | None = cell("--gpus-per-node N", "GPUs of one node.")
    inter_node_gbps_per_gpu: str | None = cell(
        "--inter-node-gbps GBIT/S", "Network rate per GPU, one direction, in Gb/s."
    )
    node: str | None = cell("--node NODE", "Node of the database, such as dgx-h100.")
    domain: str | None = cell("--domain N", "GPUs of one scale-up domain, at most the node's.")
    nics_per_node: str | None = cell("--nics N", "Network cards of one node.")
    topology: str | None = cell(
        "--topology NAME", "Shape of the network, such as fat-tree or dragonfly.", complete="topologies"
    )
    torus_sides: str | None = cell("--torus-sides AxBxC", "Sides of a torus: chips of a slice, or nodes.")
    oversubscription: str | None = cell("--oversubscription X", "Bandwidth below a pod over that above; 4 is 4:1.")
    placement: str | None = cell("--placement KIND", "consecutive or scattered nodes.")
    collective_library: str | None = cell("--collective-library NAME", "nccl, or hierarchical (MSCCL++, XLA).")
    in_switch_reduction: str | None = cell("--in-switch-reduction YES", "yes: the network's switches add up (SHARP).")
    fabric: str | None = option(
        "--fabric LINK", "Network link of the database, such as ib-ndr.", complete="network links"
    )


@dataclass(frozen=True)
class ClusterOptions(DatabaseOptions, _ClusterCells):
    """A cluster: GPUs, nodes and network."""

    def cluster(self, db: Database) -> Cluster:
        """The cluster that the options mean."""
        from gpucalc.database.cluster import resolve_cluster

        cells = cells_of(self)
        require(cells, "gpu", "n_gpus")
        return resolve_cluster(
            db,
            **place_of(cells),
            fabric=self.fabric,
        )


@dataclass(frozen=True)
class _RowCells(_ClusterCells):
    seq_len: str | None = cell("--seq-len N", "Tokens of one sequence.")
    global_batch: str | None = cell("--global-batch N", "Sequences of one step.")
    micro_batch: str | None = cell("--micro-batch N", "Sequences of a micro-step.")
    precision: str | None = cell("--precision NAME", "bf16, fp16, fp8, mxfp8, nvfp4 …")
    resolution: str | None = cell("--resolution HxW", "Pixels of a picture, of models that see or make them.")
    frames: str | None = cell("--frames N", "Pixel frames of a clip.")
    steps: str | None = cell("--steps N", "Denoising steps of a diffusion model.")
    recompute: str | None = cell("--recompute KIND", "none, selective, full or auto.")
    zero_stage: str | None = cell("--zero STAGE", "ZeRO stage, 0 to 3; 3 is FSDP.")
    schedule: str | None = cell("--schedule NAME", "Pipeline schedule, such as 1f1b.")
    layout: str | None = option(
        "--layout LABEL", "Such as tp8-pp4-dp2-mbs1-zero1-sp; tp8-pp* has a search try every pp."
    )
    settings: tuple[str, ...] = option(
        "--set KEY=VALUE", "Any column of the row schema; repeatable.", repeat=True, complete="settings"
    )
    profile: str | None = option("--profile NAME", "Software profile.", complete="profiles")
    causal_flops: bool = option("--causal-flops", "Count half of the attention square in MFU.")


@dataclass(frozen=True)
class RowOptions(DatabaseOptions, _RowCells):
    """What states a training job but for its model, which a row of a file may name."""

    def cells(
        self, *, free: bool = False, base: Mapping[str, Any] | None = None, without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The typed cells: options, `--set` pairs and layout label together, over `base`.

        What the label leaves out is at its default. With `free` it may hold stars, whose axes are left to a search,
        and a default that a rule of the job decides is (None,). The options in `without` are not part of the job.
        Raises UsageError with every wrong value and every contradiction.
        """
        from gpucalc.layouts.label import label_cells, parse_label, read_restriction

        if self.layout is None:
            return cells_of(self, self.settings, None, base, without)
        if not free:
            return cells_of(self, self.settings, parse_label(self.layout), base, without, label_cells(self.layout))
        restriction = read_restriction(self.layout)
        return restriction.closed(cells_of(self, self.settings, restriction.cells, base, without))

    def context(self) -> Context:
        """What stands beside the cells: database, profile, fabric, and how FLOPs are counted."""
        from gpucalc.jobs.context import Context

        return Context(self.database(), self.profile, self.fabric, self.causal_flops)


@dataclass(frozen=True)
class JobOptions(RowOptions):
    """A training job on a cluster, whole or in part; the same in every command that asks about one."""

    model: str | None = argument(
        "MODEL", "Preset, or a config.json or its folder; custom: --set.", cell=True, complete="models", files=True
    )

    @property
    def piped(self) -> bool:
        """Whether MODEL is "-": the job is a row on standard input."""
        return self.model == "-"

    @cached_property
    def row(self) -> dict[str, Any] | None:
        """The typed cells of the row on standard input that the MODEL "-" means; what was measured is among them."""
        return row_from_stdin() if self.piped else None

    def whole(self) -> dict[str, Any]:
        """The cells of a job that may be a row on standard input, which the other options change."""
        return self.cells(base=self.row)

    def laid_out(self, command: str) -> dict[str, Any]:
        """The cells of a whole job with its layout, of which `command` asks something; or of a row on stdin."""
        cells = self.whole()
        if not self.piped and self.layout is None and "tp" not in cells:
            raise UsageError(
                "which layout? write --layout with a label of plan, such as tp8-pp4-dp2-mbs1-zero1-sp, or pipe the "
                f"best: gpucalc plan … --top 1 -f csv | gpucalc {command} -"
            )
        require_job(cells)
        return cells

    def refuse_without_model(self, cells: Mapping[str, Any]) -> None:
        """Raise UsageError for options that say something of a model where there is none."""
        if "model" in cells:
            return
        of_cluster = {*options_of(ClusterOptions), "settings"}
        stated = [one.name for name, one in options_of(self).items() if name not in of_cluster and getattr(self, name)]
        if stated:
            raise UsageError(f"{stated[0]} has no meaning without a MODEL")


def stated(group: Any) -> dict[str, tuple[str, str]]:
    """The cells that a group of options states: column → the flag and the text; MODEL "-" states none."""
    return {
        name: (one.name, getattr(group, name))
        for name, one in options_of(group).items()
        if one.cell and getattr(group, name) is not None and (name, getattr(group, name)) != ("model", "-")
    }


def cells_of(
    group: Any,
    settings: Iterable[str] = (),
    layout: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
    silent: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The typed cells that a group of options, `--set` pairs and a layout state together, over those of `base`.

    `silent` is what a layout means by what it leaves out: options and pairs may say otherwise.

    Raises UsageError with every wrong value and every contradiction between them.
    """
    problems: list[str] = []
    found: dict[str, tuple[str, Any]] = {}

    def state(name: str, flag: str, value: Any) -> None:
        if name in found and found[name][1] != value:
            problems.append(f"{found[name][0]} contradicts {flag} on {name}")
        found.setdefault(name, (flag, value))

    for name, (flag, text) in stated(group).items():
        if name in without or (name == "recompute" and text.strip().casefold() == "auto"):
            continue
        try:
            state(name, f"{flag} {text}", column_value(name, flag, text))
        except UsageError as error:
            problems.extend(error.problems)
    for pair in settings:
        try:
            name, value = parse_setting(pair)
            state(name, f"--set {pair}", value)
        except UsageError as error:
            problems.extend(error.problems)
    for name, value in (layout or {}).items():
        state(name, "--layout", value)
    if problems:
        raise UsageError(*problems)
    for name, value in (silent or {}).items():
        found.setdefault(name, ("--layout", value))
    cells = {**(base or {}), **{name: value for name, (_, value) in found.items()}}
    if str(cells.get("model", "")).casefold() == "custom":
        del cells["model"]
    if cells.get("gpu_memory_gib") is not None and "gpu" not in cells:
        cells["gpu"] = any_card()
    return {name: value for name, value in cells.items() if name not in MEASURED}


def any_card() -> str:
    """The card whose rates stand where only a memory is stated, which is told."""
    to_stderr(f"note: no GPU is named: memory alone is answered, times are those of {ANY_CARD} (--gpu NAME)")
    return ANY_CARD


def place_of(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells that say where a job runs: GPUs, nodes and network rate."""
    from gpucalc.database.cluster import PLACE_CELLS

    return {name: cells[name] for name in ("gpu", "n_gpus", *PLACE_CELLS) if name in cells}


def require(cells: Mapping[str, Any], *names: str) -> None:
    """Raise UsageError that lists all of `names` that are not stated, each with an example."""
    by_hand = {"layers", "hidden", "heads"} <= set(cells)
    missing = [n for n in names if n not in cells and not (n == "model" and by_hand)]
    if missing:
        raise UsageError("missing: " + ", ".join(_EXAMPLES[n] for n in missing))


def require_job(cells: Mapping[str, Any], *, step: bool = True) -> None:
    """Raise UsageError unless the cells state a job; a layout with dp says itself how many GPUs there are.

    Without `step` the sequence and the batch may be missing.
    """
    of_step = ("seq_len", "global_batch") if step else ()
    require(cells, "model", "gpu", *(() if "dp" in cells else ("n_gpus",)), *of_step)
