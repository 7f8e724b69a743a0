"""torchtitan 0.3: a recipe of its own with overrides on the command line (torchtitan/config/manager.py)."""

from __future__ import annotations

from typing import Any

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.torchtitan_registry import REGISTRY
from gpucalc.launch.write.torchtitan import batches, comments_on, parallelism, refusals
from gpucalc.launch.write.torchtitan_recipe import RECIPES, USUAL, graphs, loss_problem

# (preset, precision) → a function whose products are of that type.
OF_PRECISION = {
    ("llama-3.1-8b", "mxfp8"): "llama3_8b_mxfp8",
    ("llama-3.1-405b", "fp8"): "llama3_405b",
    ("deepseek-v3", "fp8"): "deepseek_v3_671b_float8",
}


def recipe(launch: Launch) -> str:
    """The function that holds the shape in the precision of the job; nothing where there is none."""
    preset = preset_of(launch.model, RECIPES) or ""
    kind = launch["precision"]
    if kind in {"bf16", "bf16-true"} and preset != "llama-3.1-405b":
        return RECIPES.get(preset, "")
    return OF_PRECISION.get((preset, kind), "")


def problems(launch: Launch) -> list[str]:
    """Everything that the recipes and their overrides cannot express."""
    kinds = ("bf16", "bf16-true", "fp8", "mxfp8")
    found = refusals(launch, RECIPES, kinds, recipe=True) + loss_problem(launch)
    if launch["precision"] in kinds and preset_of(launch.model, RECIPES) and not recipe(launch):
        found.append(
            f"torchtitan has no recipe of {launch.model.name} in {launch['precision']}; --to torchtitan-recipe writes "
            "one"
        )
    return found


def overrides(launch: Launch) -> dict[str, Any]:
    """section.key → value, in the order in which they are written."""
    c = launch
    training = batches(launch)
    if not graphs(launch):
        training["disable_cuda_graphs"] = True
    degrees = parallelism(launch)
    degrees.pop("context_parallel_rotate_method", None)
    if c["pp"] > 1:
        degrees["pipeline_parallel_microbatch_size"] = c["micro_batch"]
    if c["tp"] > 1:
        degrees["enable_sequence_parallel"] = bool(c["sequence_parallel"])
    return {
        **{f"training.{name}": value for name, value in training.items()},
        **{f"parallelism.{name}": value for name, value in degrees.items()},
        "compile.enable": True,
        "compile.components": "model,loss",
    }


def start(launch: Launch) -> LaunchCommand:
    """The command: a recipe, its overrides, and what is recomputed, which stands last."""
    function = recipe(launch)
    words = [_words(f"--{name}", value) for name, value in overrides(launch).items()]
    comments = ["torchtitan 0.3", *comments_on(launch)]
    if launch["cp"] > 1:
        comments.append("how context parallel ranks exchange keys and values is left to the model")
    program = [
        ["-m", "torchtitan.train", "--module", REGISTRY[function][0], "--config", function],
        *words,
        [f"activation-checkpoint:{launch['recompute']}"],
    ]
    made = LaunchCommand("", program, comments=tuple(comments))
    made.text = TORCHRUN.script(launch, made)
    return made


def _words(flag: str, value: Any) -> list[str]:
    """An option with its value; a switch alone, with `no-` where it is off."""
    if isinstance(value, bool):
        section, _, name = flag.rpartition(".")
        return [flag if value else f"{section}.no-{name}"]
    return [flag, str(value)]


TARGET = Target(("torchtitan-flags",), problems, start, "torchtitan", TORCHRUN, usual=USUAL)
