"""torchtitan after v0.2.2: a Python recipe (torchtitan/config/configs.py at b5bcd76c)."""

from __future__ import annotations

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented
from gpucalc.launch.write.torchtitan import comments_on, parallelism, refusals

FILE = "recipe.py"
RECIPES = {"llama-3.1-8b": "llama3_8b", "llama-3.1-70b": "llama3_70b", "llama-3.1-405b": "llama3_405b"}
PRECISIONS = ("bf16",)


def problems(launch: Launch) -> list[str]:
    """Everything that a recipe cannot express."""
    return refusals(launch, RECIPES, PRECISIONS, recipe=True)


def start(launch: Launch) -> LaunchCommand:
    """A recipe for torchtitan after v0.2.2."""
    base = RECIPES[preset_of(launch.model, RECIPES) or ""]
    c, seq = launch, launch["seq_len"]
    settings: list[tuple[str, str]] = []
    if c["pp"] > 1:
        settings.append(("training.disable_cuda_graphs", "True"))
    settings += [
        ("training.max_context_length", f"{seq}"),
        ("training.num_tokens_per_microbatch_per_dp_rank", f"{c['micro_batch']} * {seq}"),
        ("training.num_tokens_per_train_step", f"{c['global_batch']} * {seq}"),
    ]
    values = parallelism(launch)
    values.pop("context_parallel_rotate_method", None)
    if c["pp"] > 1:
        values["num_pp_microbatches"] = launch.micro_batches
    if c["tp"] > 1:
        values["enable_sequence_parallel"] = bool(c["sequence_parallel"])
    settings += [(f"parallelism.{name}", repr(value)) for name, value in values.items()]
    kinds = {"selective": "SelectiveAC", "full": "FullAC"}
    kind = kinds.get(c["recompute"])
    settings.append(("activation_checkpoint", f"{kind}.Config()" if kind else "None"))
    imports = f"from torchtitan.distributed.activation_checkpoint import {kind}\n" if kind else ""
    body = "".join(f"    c.{name} = {value}\n" for name, value in settings)
    comments = ("a torchtitan recipe, for releases after v0.2.2", *comments_on(launch))
    if c["cp"] > 1:
        comments = (*comments, "how context parallel ranks exchange keys and values is left to the model")
    text = (
        commented(launch, comments)
        + f"{imports}from torchtitan.models.llama3.config_registry import {base}\n\n\n"
        + f"def job():\n    c = {base}()\n{body}    return c\n"
    )
    program = [["-m", "torchtitan.train", "--module", "recipe", "--config", "job"]]
    return LaunchCommand(text, program, files={FILE: text}, comments=comments)


TARGET = Target(("torchtitan-recipe",), problems, start, "torchtitan", TORCHRUN)
