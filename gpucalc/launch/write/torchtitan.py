"""torchtitan: the TOML of v0.2.2, the last release that reads it (torchtitan/config/job_config.py at 73a0e697)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.launch import legality
from gpucalc.launch import stages as dealt
from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, toml_text

FILE = "job.toml"

# preset → the model and flavor that hold its shape in torchtitan.
FLAVORS: dict[str, tuple[str, str]] = {
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "llama-4-scout-17b-16e": ("llama4", "17bx16e"),
    "llama-4-maverick-17b-128e": ("llama4", "17bx128e"),
}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "dualpipe-v": "DualPipeV",
}
PRECISIONS = ("bf16", "bf16-true", "fp32", "fp8", "mxfp8")
ROTATE = {"ag": "allgather", "ring": "alltoall"}


def shards(launch: Launch) -> tuple[int, int]:
    """(replicate, shard) degrees of data parallelism.

    Raises UsageError for a stage that torchtitan has not, or a group that it cannot form.
    """
    dp, cp, zero = int(launch["dp"]), int(launch["cp"]), int(launch["zero_stage"])
    if launch.replicas == 1:
        return 1, 1
    if zero == 1:
        raise UsageError(
            "torchtitan has no ZeRO-1: it shards parameters (ZeRO-2 or 3) or nothing; write zero2 or zero3"
        )
    if zero == 0:
        if cp > 1:
            raise UsageError(f"torchtitan shards parameters over the cp={cp} ranks, so ZeRO-0 is not available with cp")
        if launch["tp"] > 1 or launch["pp"] > 1 or launch["ep"] > 1:
            raise UsageError("torchtitan replicates (ZeRO-0) over pure data parallelism only; write zero2 or zero3")
        return dp, 1
    group = int(launch["shard_group"] or launch.replicas)
    if group % cp:
        raise UsageError(f"shard_group={group} is not a multiple of cp={cp}, over whose ranks torchtitan always shards")
    return dp * cp // group, group // cp


def stages(launch: Launch) -> tuple[int, int, int]:
    """(layers a stage, fewer on the first, fewer on the last) that deal the layers as they were costed.

    Where no numbers of torchtitan do exactly that, stages that are nowhere longer.
    """
    layers, pp, count = launch.model.layers, int(launch["pp"]), chunks(launch)
    first, last = launch["layers_first"], launch["layers_last"]
    wanted = dealt.depths(layers, pp, first, last)
    mirrored = launch["schedule"] == "dualpipe-v"
    near = None
    most = min(-(-layers // count), 32)
    for head, tail in sorted(itertools.product(range(most + 1), repeat=2), key=sum):
        found = dealt.of_torchtitan(layers, count, head, tail)
        if not found:
            continue
        if mirrored:
            found = [*found[:pp], *reversed(found[pp:])]
        ranks = dealt.of_ranks(found, pp)
        each = -(-(layers + head + tail) // count)
        if -(-(layers + head + tail) // each) != count:
            continue
        if dealt.ends(ranks) == dealt.ends(wanted) and max(ranks) == max(wanted):
            return each, head, tail
        if near is None and max(ranks) <= max(wanted):
            near = each, head, tail
    if near is None or first or last:
        divides = [p for p in range(1, layers + 1) if layers % (p * (count // pp)) == 0]
        best = min(divides, key=lambda p: abs(p - pp)) if divides else 1
        raise UsageError(
            f"torchtitan cannot deal {layers} layers to {count} stages as costed, {max(wanted)} at most on a rank; "
            f"pp={best} divides them"
        )
    return near


def problems(launch: Launch) -> list[str]:
    """Everything that the TOML cannot express or torchtitan refuses, in sentences."""
    return refusals(launch, FLAVORS, PRECISIONS, recipe=False)


def refusals(launch: Launch, known: Mapping[str, Any], precisions: tuple[str, ...], *, recipe: bool) -> list[str]:
    """What torchtitan refuses, with the shapes and the precisions that a form of its settings knows."""
    c = launch
    found: list[str] = []
    try:
        _, shard = shards(launch)
    except UsageError as error:
        found += error.problems
        shard = int(c["dp"])
    found += legality.torchtitan({**launch.rule_cells(), "dp_shard": shard}, recipe=recipe)
    if preset_of(launch.model, known) is None:
        what = "recipe" if recipe else "flavor"
        found.append(f"torchtitan has no {what} of the shape of {launch.model.name}; it has {', '.join(known)}")
    if c["tp"] > 1 and not c["sequence_parallel"] and not recipe:
        found.append("torchtitan v0.2.2 always runs tp with sequence parallelism; add sp")
    if c["pp"] > 1:
        found += _schedule_problems(launch)
    if c["precision"] not in precisions:
        found.append(f"precision {c['precision']} is not written for torchtitan; it takes {', '.join(precisions)}")
    if launch.model.experts and c["ep"] == 1 and c["etp"] != c["tp"]:
        found.append(f"torchtitan splits experts over tp={c['tp']} where ep is 1, not over etp={c['etp']}")
    if c["cp"] > 1 and c["cp_kind"] == "ulysses":
        found.append("torchtitan has no Ulysses context parallelism; write ring or ag")
    if c["recompute"] == "full" and c["recompute_layers"]:
        layers = int(c["recompute_layers"])
        if recipe or launch.depth % layers:
            found.append(f"torchtitan recomputes every n-th layer, not {layers} of the {launch.depth} of a stage")
    if c["offload_activations"]:
        found.append("torchtitan has no activation offload in its settings; leave out offload-act")
    if c["optimizer"] != "adam":
        found.append(f"torchtitan has no optimizer {c['optimizer']}; it takes adam")
    if recipe and c["offload_optimizer"]:
        found.append("offload is not written for a torchtitan recipe; leave out offload-opt")
    return found


def _schedule_problems(launch: Launch) -> list[str]:
    c = launch
    if c["schedule"] not in SCHEDULES:
        return [f"torchtitan has no schedule {c['schedule']}; it takes {', '.join(SCHEDULES)}"]
    found = []
    if c["schedule"] == "dualpipe-v" and c["vpp"] not in {1, 2}:
        found.append(f"DualPipeV has two chunks a stage, not vpp={c['vpp']}")
    if c["schedule"] == "interleaved" and launch.micro_batches % c["pp"]:
        found.append(
            f"interleaving needs micro-batches that pp={c['pp']} divides, not {launch.micro_batches} "
            f"(global batch {c['global_batch']})"
        )
    try:
        stages(launch)
    except UsageError as error:
        found += error.problems
    return found


def chunks(launch: Launch) -> int:
    """Virtual stages of the whole pipeline."""
    each = 2 if launch["schedule"] == "dualpipe-v" else int(launch["vpp"])
    return int(launch["pp"]) * each


def _pipeline(launch: Launch) -> dict[str, Any]:
    if launch["pp"] == 1:
        return {}
    each, first, last = stages(launch)
    return {
        "pipeline_parallel_schedule": SCHEDULES[launch["schedule"]],
        "pipeline_parallel_layers_per_stage": each,
        "pipeline_parallel_first_stage_less_layers": first,
        "pipeline_parallel_last_stage_less_layers": last,
    }


def parallelism(launch: Launch) -> dict[str, Any]:
    """The section of that name, which both forms share."""
    replicate, shard = shards(launch)
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if launch["zero_stage"] == 2 else "always",
        "tensor_parallel_degree": launch["tp"],
        "pipeline_parallel_degree": launch["pp"],
        **_pipeline(launch),
        "context_parallel_degree": launch["cp"],
    }
    if launch["cp"] > 1:
        values["context_parallel_rotate_method"] = ROTATE[launch["cp_kind"]]
    if launch.model.experts:
        values["expert_parallel_degree"] = launch["ep"]
    return values


def batches(launch: Launch) -> dict[str, Any]:
    """The section `training`: sequences, and the types of the states and products."""
    c = launch
    values: dict[str, Any] = {
        "local_batch_size": c["global_batch"] // c["dp"] if c["pp"] > 1 else c["micro_batch"],
        "global_batch_size": c["global_batch"],
        "seq_len": c["seq_len"],
    }
    if c["precision"] == "bf16-true":
        values["dtype"] = "bfloat16"
    values["mixed_precision_param"] = "float32" if c["precision"] == "fp32" else "bfloat16"
    values["mixed_precision_reduce"] = "float32"
    if c["offload_optimizer"]:
        values["enable_cpu_offload"] = True
    return values


def sections(launch: Launch) -> dict[str, dict[str, Any]]:
    """The sections of the TOML."""
    c = launch
    name, flavor = FLAVORS[preset_of(launch.model, FLAVORS) or ""]
    model: dict[str, Any] = {"name": name, "flavor": flavor}
    more: dict[str, dict[str, Any]] = {}
    if c["precision"] == "fp8":
        model["converters"] = ["quantize.linear.float8"]
        # Tensor-wise scaling under tp is refused for the models with latent attention.
        rowwise = launch.model.is_mla and c["tp"] > 1
        more["quantize.linear.float8"] = (
            {"recipe_name": "rowwise", "filter_fqns": ["output"]}
            if rowwise
            else {
                "enable_fsdp_float8_all_gather": True,
                "precompute_float8_dynamic_scale_for_fsdp": True,
                "filter_fqns": ["output"],
            }
        )
    elif c["precision"] == "mxfp8":
        model["converters"] = ["quantize.linear.mx"]
        more["quantize.linear.mx"] = {"recipe_name": "mxfp8_cublas", "filter_fqns": ["output"]}
    pipelined, training = c["pp"] > 1, batches(launch)
    degrees = parallelism(launch)
    if pipelined:
        degrees["pipeline_parallel_microbatch_size"] = c["micro_batch"]
        if c["schedule"] == "dualpipe-v" and c["ep"] > 1 and c["recompute"] != "none":
            # The overlap is refused beside activation checkpointing.
            degrees["pipeline_parallel_expert_parallel_overlap"] = False
    if launch.model.experts:
        # Without expert parallelism it has no effect: experts are then split over tp (apply_moe_ep_tp).
        degrees["expert_tensor_parallel_degree"] = c["etp"] if c["ep"] > 1 else 1
    checkpoint: dict[str, Any] = {"mode": c["recompute"]}
    if c["recompute"] == "selective":
        checkpoint["selective_ac_option"] = "op"
    elif c["recompute_layers"] and launch.depth // c["recompute_layers"] > 1:
        checkpoint = {"mode": "selective", "selective_ac_option": str(launch.depth // c["recompute_layers"])}
    return {
        "model": model,
        "training": training,
        "parallelism": degrees,
        "activation_checkpoint": checkpoint,
        "compile": {"enable": True},
        **more,
    }


def comments_on(launch: Launch) -> tuple[str, ...]:
    """What is said beside the settings, whichever form they have."""
    found = list(launch.comments)
    if launch["offload_optimizer"]:
        found.append("enable_cpu_offload moves parameters and gradients to the host too, not the optimizer alone")
    if launch["recompute"] == "selective":
        found.append('"op" keeps a part of the matrix products: it is not the selective recomputation of Megatron')
    return (*found, "tokenizer, data set, learning rate and steps are left at their defaults")


def start(launch: Launch) -> LaunchCommand:
    """The TOML for releases up to v0.2.2, and the command that reads it."""
    release = "torchtitan v0.1 to v0.2.2; later releases take Python recipes (--to torchtitan-recipe)"
    comments = (release, *comments_on(launch))
    text = commented(launch, comments) + toml_text(sections(launch))
    program = [["-m", "torchtitan.train", "--job.config_file", FILE]]
    return LaunchCommand(text, program, files={FILE: text}, comments=comments)


TARGET = Target(("torchtitan", "torchtitan-toml"), problems, start, "torchtitan", TORCHRUN)
