"""Megatron-DeepSpeed as a row: old Megatron-LM's options, DeepSpeed's engine with its JSON.

Names and defaults at 4efb479d: megatron/arguments.py, pretrain_gpt.py, megatron/model/gpt_model.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch.flags import flags
from gpucalc.launch.read import _values
from gpucalc.launch.read._megatron import Arguments
from gpucalc.launch.read._megatron_options import SEVERAL, known
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.target import Source

TABLE = "megatron_deepspeed"
WHO = "Megatron-DeepSpeed"
# Its options as today's Megatron-LM names them.
RENAMED = {
    "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--num-experts": "--num-experts",
    "--fp8-hybrid": "--fp8-format",
    "--fp8-e4m3": "--fp8-format",
    "--recompute-num-layers": "--recompute-num-layers",
}
KERNELS = {
    "--use-flash-attn": "fa1",
    "--use-flash-attn-v2": "fa2",
    "--use-flash-attn-triton": "yes",
    "--use-flash-attn-builder": "yes",
}
FULL = ("--deepspeed-activation-checkpointing", "--checkpoint-activations")
PLAIN = ("--deepspeed", "--no-pipeline-parallel", "--enable-zbh1-pipeline", "--cpu-optimizer",
         "--enable-expert-tensor-parallelism", "--checkpoint-in-cpu")  # fmt: skip
VALUED = ("--deepspeed_config", "--zero-stage", "--pp-partition-method", "--ds-sequence-parallel-size",
          "--num-key-value-heads", "--expert-interval", "--mlp-type", "--transformer-impl")  # fmt: skip


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command or script means, and remarks."""
    mine = {*flags(TABLE), *known()}
    command = find_command(text, mine, WHO, given)
    problems: list[str] = []
    own: dict[str, Sequence[str]] = {}
    stated: list[tuple[str, Sequence[str]]] = []
    notes = list(command.notes)
    for flag, values in command.flags(mine - set(SEVERAL) - {"--num-experts"}):
        if flag in (*PLAIN, *VALUED, *FULL, *KERNELS):
            own[flag] = values
        elif flag in RENAMED:
            stated.append(_renamed(flag, values))
        else:
            stated.append((flag, values))
    stated += _translated(own, stated)
    world, per_node = command.world(given, problems)
    defaults = {"experts_per_token": 1, "partition": True, "hidden_dropout": 0.1}
    arguments = Arguments(
        [(flag, values) for flag, values in stated if flag != "--deepspeed_config"],
        given,
        world,
        per_node,
        {},
        WHO,
        "megatron-deepspeed",
        defaults,
        notes,
        problems,
        {name: flag for name, flag in flags(TABLE).items()},
    )
    document = _document(command, problems)
    later: list[str] = []
    stage = _stage(own, document, later, notes)
    try:
        cells, said = arguments.cells()
    except DataError as error:
        raise DataError(*error.problems, *later) from None
    cells |= {"zero_stage": stage, "dp_overlap": None, "tp_overlap": None}
    cells |= _layout(own, cells, later)
    if stage >= 2 and (cells["pp"] > 1 or "--no-pipeline-parallel" not in own):
        more = "" if cells["pp"] > 1 else "; add --no-pipeline-parallel, without which the pipeline engine runs"
        later.append(f"DeepSpeed refuses ZeRO-{stage} with its pipeline engine{more}")
    if later:
        raise DataError(*later)
    return {name: value for name, value in cells.items() if value is not None}, said


def _renamed(flag: str, values: Sequence[str]) -> tuple[str, Sequence[str]]:
    if flag.startswith("--fp8-"):
        return "--fp8-format", [flag.removeprefix("--fp8-")]
    return RENAMED[flag], values


def _translated(
    own: dict[str, Sequence[str]], stated: list[tuple[str, Sequence[str]]]
) -> list[tuple[str, Sequence[str]]]:
    """Own options that mean several of Megatron-LM's."""
    found: list[tuple[str, Sequence[str]]] = []
    names = {flag for flag, _ in stated}
    if "--num-key-value-heads" in own:
        found += [("--group-query-attention", ()), ("--num-query-groups", own["--num-key-value-heads"])]
    if "--ds-sequence-parallel-size" in own:
        found += [("--context-parallel-size", own["--ds-sequence-parallel-size"]), ("--cp-comm-type", ["a2a"])]
    full = [values for flag, values in stated if flag == "--recompute-granularity" and list(values) == ["full"]]
    if any(flag in own for flag in FULL) and "--recompute-granularity" not in names:
        full = [["full"]]
        found.append(("--recompute-granularity", ["full"]))
    if full:
        found += [] if "--recompute-method" in names else [("--recompute-method", ["uniform"])]
        found += [] if "--recompute-num-layers" in names else [("--recompute-num-layers", ["1"])]
    return found


def _document(command: Command, problems: list[str]) -> dict[str, Any]:
    """The DeepSpeed JSON, where the script writes it."""
    for document in command.documents:
        if document.lstrip().startswith("{"):
            try:
                found = json.loads(document)
            except ValueError:
                problems.append("the DeepSpeed configuration in the script is not JSON")
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _stage(own: dict[str, Sequence[str]], document: dict[str, Any], problems: list[str], notes: list[str]) -> int:
    """The ZeRO stage: the JSON's where it is at hand, which the engine uses; else --zero-stage, which defaults to 1."""
    flag = own.get("--zero-stage")
    words = [str(flag[0]).removesuffix(".0")] if flag else []
    stated = _values.integer("--zero-stage", words, problems, least=0) if flag else None
    section = document.get("zero_optimization", {} if document else None)
    if isinstance(section, dict):
        stage = section.get("stage", 0)
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage <= 3:
            problems.append(f"zero_optimization.stage is {str(stage)[:20]}; ZeRO has stages 0 to 3")
            return 0
        if stated is not None and stated != stage:
            notes.append(f"--zero-stage {stated} differs from the JSON's {stage}, which the engine uses")
        return stage
    if "--deepspeed_config" in own:
        notes.append(
            f"the ZeRO stage stands in {' '.join(own['--deepspeed_config'])[:60]}, which is not opened; "
            f"{'--zero-stage' if stated is not None else 'the default of --zero-stage, 1,'} counts"
        )
    stage = 1 if stated is None else stated
    if stage > 3:
        problems.append(f"--zero-stage is {stage}; ZeRO has stages 0 to 3")
    return stage


def _layout(own: dict[str, Sequence[str]], cells: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "--enable-zbh1-pipeline" in own and cells["pp"] > 1:
        found["schedule"] = "zb-h1"
    if "--no-pipeline-parallel" in own and cells["pp"] > 1:
        problems.append(f"--no-pipeline-parallel needs --pipeline-model-parallel-size 1, not {cells['pp']}")
    if "--cpu-optimizer" in own:
        found["offload_optimizer"] = True
    if "--checkpoint-in-cpu" in own:
        found["offload_activations"] = True
    kernel = next((KERNELS[flag] for flag in KERNELS if flag in own), None)
    if kernel:
        found["flash_attention"] = kernel
    if cells.get("experts"):
        found["etp"] = cells["tp"] if "--enable-expert-tensor-parallelism" in own else 1
        found |= {"dispatcher": None, "expert_kernel": None}
        interval = _values.integer("--expert-interval", own.get("--expert-interval", ["2"]), problems)
        if interval != 1 and not cells.get("model"):
            problems.append(
                f"one layer of {interval or 2} holds experts (--expert-interval), a shape that no preset has; name "
                "the model (--set model=…)"
            )
    method = " ".join(own.get("--pp-partition-method", ()))
    if method and cells.get("layers") and cells["pp"] > 1:
        units = cells["layers"] + 2 * ("embedding" in method)
        if units // cells["pp"] < 1:
            problems.append(f"{units} units cannot be dealt to {cells['pp']} stages ({method})")
    return found


SOURCE = Source(("megatron-deepspeed", "megatron-ds"), read, "a command or script with --deepspeed")
