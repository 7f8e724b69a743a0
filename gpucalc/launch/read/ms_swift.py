"""`megatron sft --key value` of ms-swift as a row: Megatron-LM's options in snake case, with other defaults.

Names and defaults at 3602360a: swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.flags import flags, of_use
from gpucalc.launch.read import _values
from gpucalc.launch.read._megatron import Arguments
from gpucalc.launch.read._megatron_options import known
from gpucalc.launch.read.shell.command import Command, find_command, near_flag
from gpucalc.launch.target import Source
from gpucalc.models.model import resolve_preset

TABLE = "ms_swift"
WHO = "ms-swift"
# Its word for a Megatron option that is named otherwise.
RENAMED = {"--virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank"}
# Switches that are on or off by a value, where Megatron-LM has one that turns them off.
POSITIVE = {
    "--bias_activation_fusion": ("--no-bias-swiglu-fusion", True),
    "--apply_rope_fusion": ("--no-rope-fusion", False),
    "--overlap_p2p_comm": ("--no-overlap-p2p-communication", True),
}
DEFAULTS: dict[str, Any] = {
    "micro_batch": 1,
    "global_batch": 16,
    "etp": 1,
    "granularity": "selective",
    "dispatcher": "alltoall",
    "backend": "flash",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "--use-distributed-optimizer": True,
    "--moe-grouped-gemm": True,
    "--cross-entropy-loss-fusion": True,
    "--no-rope-fusion": True,
}
OWN = ("--model", "--max_length", "--packing_length", "--packing", "--tuner_type", "--lora_rank", "--target_modules",
       "--torch_dtype", "--rlhf_type", "--load", "--mcore_model")  # fmt: skip
TARGETS = {"all-linear": "all", "q_proj v_proj": "qv"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command or script means, and remarks."""
    command = find_command(text, of_use(TABLE, "read"), WHO, given)
    problems: list[str] = []
    stated: list[tuple[str, Sequence[str]]] = []
    own: dict[str, list[str]] = {}
    notes = list(command.notes)
    foreign = []
    table = flags(TABLE)
    for flag, values in command.flags():
        entry = table.get(flag)
        if entry is None:
            near = near_flag(flag, table)
            foreign.append(flag + (f" (did you mean {near}?)" if near else ""))
        elif flag in OWN:
            own[flag] = values
        elif entry.use == "refused":
            problems.append(entry.remark(values))
        elif entry.use == "noted":
            if [v.casefold() for v in values] != entry.default.casefold().split():
                notes.append(entry.remark(values))
        elif entry.use == "read":
            stated += _as_megatron(flag, values, problems)
    if foreign:
        notes.append(f"flags that {WHO} does not know are not read: {', '.join(foreign[:20])}")
    cells = _own(own, given, problems, notes)
    world, per_node = _world(command, given, problems)
    beside = {**given, **{name: value for name, value in cells.items() if name in {"model", "seq_len"}}}
    stated += [] if any(flag in {"--fp16", "--bf16"} for flag, _ in stated) else [("--bf16", ())]
    defaults = {name: value for name, value in DEFAULTS.items()}
    arguments = Arguments(
        stated, beside, world, per_node, command.variables, WHO, "megatron-core", defaults, notes, problems
    )
    read_cells, said = arguments.cells()
    # It gives the sequence as the longest sample, and Megatron-LM's own tying as the model's.
    return {**read_cells, **cells}, said


def _as_megatron(flag: str, values: Sequence[str], problems: list[str]) -> list[tuple[str, Sequence[str]]]:
    """An option as Megatron-LM writes it; a switch that is off is left out."""
    if flag in POSITIVE:
        name, _ = POSITIVE[flag]
        return [(name, ["false" if _values.switch(flag, values, problems) else "true"])]
    name = RENAMED.get(flag, "--" + flag.removeprefix("--").replace("_", "-"))
    if name == "--attention-backend" and values and (version := re.fullmatch(r"flash_([234])", values[0])):
        return [(name, ["flash"]), ("--flash-attention-version", [version[1]])]
    if values and values[0].casefold() in {"none", "null"}:
        return [("--recompute-granularity", ["none"])] if name == "--recompute-granularity" else []
    return [(name, values)] if name in known() else []


def _own(own: dict[str, list[str]], given: dict[str, Any], problems: list[str], notes: list[str]) -> dict[str, Any]:
    """Cells of the options that Megatron-LM has not: model, lengths, adapters."""
    cells: dict[str, Any] = {}
    where = next((" ".join(own[name]) for name in ("--load", "--mcore_model") if name in own), "")
    if not given.get("model") and "--model" not in own and where:  # a converted checkpoint bears the model's name
        bare = re.sub(r"[-_]m(core|egatron)$", "", where.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
        own = own | ({"--model": [bare]} if resolve_preset(bare) else {})
    if not given.get("model") and "--model" in own:
        name = _values.text("--model", own["--model"], problems)
        preset = resolve_preset(name) if name else None
        cells["model"] = preset
        if name and preset is None:
            problems.append(f"--model {name[:60]} is not a preset; name the shape with --set model=llama-3.1-8b")
    elif not given.get("model"):
        problems.append("--model is not stated; name it with --set model=llama-3.1-8b")
    for flag in ("--max_length", "--packing_length"):
        if flag in own:
            cells["seq_len"] = _values.integer(flag, own[flag], problems)
    if cells.get("seq_len") is None and not given.get("seq_len"):
        problems.append("--max_length is not stated; state the sequence with --set seq_len=4096")
    packed = _values.switch("--packing", own["--packing"], problems) if "--packing" in own else False
    if not packed:
        notes.append("--packing is off: samples are shorter than --max_length, so faster than predicted")
    kind = (_values.choice("--tuner_type", own.get("--tuner_type", ["full"]), ("full", "lora"), problems)) or "full"
    cells["method"] = kind
    if kind == "lora":
        cells["lora_rank"] = _values.integer("--lora_rank", own.get("--lora_rank", ["8"]), problems)
        words = " ".join(own.get("--target_modules", ["all-linear"]))
        cells["lora_targets"] = TARGETS.get(words)
        if words not in TARGETS:
            notes.append(f"--target_modules {words[:60]}: state them with --set lora_targets=q+k+v+o")
    if "--rlhf_type" in own and own["--rlhf_type"][:1] not in ([], ["None"]):
        problems.append("--rlhf_type: preference and reinforcement learning are questions of gpucalc tune")
    return cells


def _world(command: Command, given: dict[str, Any], problems: list[str]) -> tuple[int | None, int | None]:
    """GPUs: NPROC_PER_NODE and NNODES of the environment, as its launcher reads them."""
    per_node, nodes = command.variables.get("NPROC_PER_NODE", ""), command.variables.get("NNODES", "1")
    stated: int | None = given.get("n_gpus")
    if not per_node.isdigit() or not nodes.isdigit() or len(per_node + nodes) > 12:
        if not stated:
            problems.append("NPROC_PER_NODE is not set in the text; state the GPUs with --gpus N")
        return stated, None
    total = int(per_node) * int(nodes)
    if stated and stated != total:
        problems.append(f"NPROC_PER_NODE·NNODES = {total}, but {stated} GPUs are stated")
    if not 1 <= total <= 10**7:
        raise DataError(f"NPROC_PER_NODE·NNODES = {total} GPUs cannot be")
    return stated or total, int(per_node) if int(nodes) > 1 else None


SOURCE = Source(("ms-swift", "swift", "megatron-swift"), read, "a megatron sft command")
