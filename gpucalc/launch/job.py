"""A completed job as the exporters read it, and what each of them returns: settings, files, a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.records import Device
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import predict, resolve
from gpucalc.models.model import Model, resolve_preset

Profile = str | Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Launch:
    """A job with every cell decided, on whole nodes.

    `comments` are what an export should say beside the settings: values that were assumed.
    """

    cells: Mapping[str, Any]
    model: Model
    device: Device
    nodes: int
    gpus_per_node: int
    columns: Mapping[str, float]
    stage_layers: tuple[int, ...] = ()  # of each pipeline stage, where they are stated one by one
    open_recompute: bool = False  # nobody asked for this recomputation: it is the least that fits
    comments: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """A cell of the row schema; None where it is not stated."""
        return self.cells.get(name)

    @property
    def gradient_bytes(self) -> float:
        """Bytes in which a gradient is kept."""
        return float(self.columns["gradient_bytes"])

    @property
    def reduced_bytes(self) -> float:
        """Bytes in which a gradient is reduced."""
        return float(self.columns["gradient_comm_bytes"])

    def setting(self, name: str, usual: bool) -> bool:
        """A yes-or-no cell of the software: as stated, else as the profile has it, else `usual`."""
        stated = self.cells.get(name)
        return bool(self.columns.get(name, usual) if stated is None else stated)

    @property
    def n_gpus(self) -> int:
        """GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one replica runs in a step."""
        return int(self["global_batch"]) // (int(self["dp"]) * int(self["micro_batch"]))

    @property
    def replicas(self) -> int:
        """Ranks over which states may be sharded."""
        return int(self["dp"]) * int(self["cp"])

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts; 1 without experts."""
        if not self.model.experts:
            return 1
        return max(1, self.replicas * int(self["tp"]) // (int(self["ep"] or 1) * int(self["etp"] or 1)))

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage; where nothing stands twice there is nothing to shard and every stage is the same."""
        return int(self["zero_stage"]) if max(self.replicas, self.expert_replicas) > 1 else 0

    @property
    def depth(self) -> int:
        """Layers of the longest pipeline stage."""
        return -(-self.model.layers // int(self["pp"]))

    def rule_cells(self) -> dict[str, Any]:
        """The cells by which `legality` judges a job."""
        m = self.model
        return {
            **self.cells,
            "n_gpus": self.n_gpus,
            "layers": m.layers,
            "heads": m.heads,
            "kv_heads": m.kv_heads,
            "latent": m.is_mla,
            "experts": m.experts,
            "tied": m.tied_embeddings,
            "micro_batches": self.micro_batches,
        }


@dataclass(frozen=True)
class Placed:
    """Nodes that a job is bound to: their names, and the leaf switches that they hang on."""

    nodes: tuple[str, ...]
    leaves: int
    strategy: str


@dataclass(frozen=True)
class Server:
    """What one server of a serving command takes: GPUs, nodes, and how many such servers share the load.

    meets: words by which its nodes find each other, with {nodes}, {rank} and {head} to be filled in; apart: words of
    all nodes but the first; alone: what is to be done by hand where no scheduler starts the servers.
    """

    gpus: int
    nodes: int
    servers: int
    meets: str = ""
    apart: str = ""
    alone: tuple[str, ...] = ()

    def words(self, nodes: str, rank: str, head: str) -> str:
        """The words that follow the command on each node; none on one node."""
        return " " + self.meets.format(nodes=nodes, rank=rank, head=head) if self.nodes > 1 and self.meets else ""


@dataclass
class LaunchCommand:
    """What starts a job: `program` follows the starter's own options, a list of words a line.

    `text` is what the target prints alone; `files` (name → content) are written beside the command when a
    batch script or a manifest holds the whole. server: what one server of a serving engine takes.
    """

    text: str
    program: list[list[str]]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    comments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    server: Server | None = None


def make_launch(
    cells: Mapping[str, Any],
    context: Context,
    profile: Profile,
    usual: Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]] = MappingProxyType({}),
) -> Launch:
    """Complete the cells of one row; `profile` (`Target.profile`) names the software where they name none.

    usual: further cells that hold where they leave them open (`Target.usual`).

    An open recomputation is decided by the estimate: the least that fits. Where the cells, or a prediction that came
    with them, are those of other software, a warning tells both times. Raises UsageError for a job that is
    impossible, or whose GPUs are not a whole number of nodes.
    """
    stated = {n: v for n, v in cells.items() if v is not None}
    framework = profile if isinstance(profile, str) else profile(stated)
    asked = {"framework": framework, **(usual(stated) if callable(usual) else usual)} | stated
    job = resolve(asked, context)
    problems = _problems(job.cells, job.model)
    per_node = min(job.cluster.gpus_per_node, job.cluster.n_gpus)
    if job.cluster.n_gpus % per_node:
        low = job.cluster.n_gpus // per_node * per_node
        problems.append(
            f"{job.cluster.n_gpus} GPUs are not a whole number of nodes of {per_node}; use {low} or {low + per_node}, "
            f"or state --gpus-per-node"
        )
    if problems:
        raise UsageError(*problems)
    found = predict([job])[0]
    full, comments, warnings = dict(job.cells), [], list(job.remarks)
    time, memory = float(found["pred_step_time_s"]), float(found["pred_peak_mem_gib"])
    comments.append(f"predicted as {job.cells['framework']}: {time:.4g} s a step, {memory:.1f} GiB per GPU")
    undecided = full.get("recompute") is None
    if undecided:
        kind, _, layers = str(found["pred_recompute"]).partition(":")
        full["recompute"] = kind
        if layers:
            full["recompute_layers"] = int(layers)
        comments.append(f"recompute was not stated: {found['pred_recompute']} is the least that is predicted to fit")
    warnings += _other_software(asked, framework, found, context)
    if found["pred_fit"] == "oom":
        warnings.append(f"this layout is predicted not to fit: {found['pred_peak_mem_gib']:.1f} GiB per GPU")
    return Launch(
        cells=full,
        model=job.model,
        device=job.cluster.device,
        nodes=job.cluster.n_gpus // per_node,
        gpus_per_node=per_node,
        columns=job.columns,
        open_recompute=undecided,
        comments=tuple(comments),
        warnings=tuple(warnings),
    )


def _other_software(asked: Mapping[str, Any], framework: str, found: Mapping[str, Any], context: Context) -> list[str]:
    """What is to be said where a layout was costed as other software than that which the settings are for."""
    time = float(found["pred_step_time_s"])
    lines = []
    if asked["framework"] != framework:
        theirs = resolve({**asked, "framework": framework}, context)
        if theirs.profile.name != resolve(asked, context).profile.name:
            there = float(predict([theirs])[0]["pred_step_time_s"])
            lines.append(
                f"costed as {asked['framework']}: {time:.4g} s a step; with the profile of {framework}, for which the "
                f"settings are, {there:.4g} s"
            )
    return lines


def _problems(cells: Mapping[str, Any], model: Model) -> list[str]:
    problems = []
    share = cells["dp"] * cells["micro_batch"]
    if cells["global_batch"] % share:
        problems.append(
            f"dp·micro_batch = {share} does not divide the global batch of {cells['global_batch']}; "
            f"{max(share, cells['global_batch'] // share * share)} is a multiple"
        )
    if not model.heads:
        problems.append(f"{model.name} has no attention layers; launch settings are written for transformers only")
    return problems


def preset_facts(launch: Launch) -> dict[str, Any]:
    """Values of the preset's own configuration that the cost model does not keep, such as rope_theta."""
    from gpucalc.models.presets import preset_config

    name = str(launch["model"] or "")
    preset = resolve_preset(name) if name else None
    if preset is None:
        return {}
    try:
        config = preset_config(preset)
    except (DataError, OSError, json.JSONDecodeError):
        return {}
    inner = config.get("text_config")
    return dict(inner) if isinstance(inner, dict) else dict(config)


def is_llama_type(model: Model) -> bool:
    """Whether a model is a plain decoder: gated MLP, scale-only norms, no biases, one kind of layer."""
    b = model.blueprint
    special = (b.qkv_bias, b.out_bias, b.mlp_bias, b.qk_norm, b.sinks, b.output_gate, b.kv_lora_rank, b.positions)
    whole = model.attention_layers == model.layers and not model.window_layers and not model.experts
    norms = b.norm_terms == 1 and b.norms_per_layer == 2
    return whole and norms and b.gated_mlp and not any(special) and not model.encoder_layers
