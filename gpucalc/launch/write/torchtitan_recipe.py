"""torchtitan after v0.2.2: a Python recipe (torchtitan/config/configs.py at b5bcd76c)."""

from __future__ import annotations

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.shapes import preset_of
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented
from gpucalc.launch.torchtitan_registry import REGISTRY
from gpucalc.launch.write.torchtitan import FLAVORS, comments_on, parallelism, refusals

FILE = "recipe.py"
USUAL = {"loss_kernel": "chunked"}  # what every recipe of its own sets
# preset → the function that holds its shape, in 16 bit.
RECIPES = {
    preset: function
    for function, (module, flavor, values) in REGISTRY.items()
    for preset, known in {**FLAVORS, "gpt-oss-20b": ("gpt_oss", "20b"), "gpt-oss-120b": ("gpt_oss", "120b")}.items()
    if known == (module, flavor) and "moe_comm_backend" not in values
    and ("converters" not in values or function == "llama3_405b")
}  # fmt: skip
# precision → converters of the products, and of the experts' products, with what they leave in 16 bit.
CONVERTERS = {
    "fp8": (
        "float8",
        "Float8LinearConverter",
        'filter_fqns=["lm_head", "router.gate"], ',
        "Float8GroupedExpertsConverter",
    ),
    "mxfp8": ("mx", "MXFP8LinearConverter", "", "MXFP8GroupedExpertsConverter"),
    "nvfp4": ("nvfp4", "NVFP4LinearConverter", 'fqns=["layers"], ', ""),
}
CHECKPOINTS = {"selective": "SelectiveAC", "full": "FullAC"}


def problems(launch: Launch) -> list[str]:
    """Everything that a recipe cannot express."""
    found = refusals(launch, RECIPES, ("bf16", "bf16-true", *CONVERTERS), recipe=True)
    if launch["precision"] == "nvfp4" and launch.model.experts:
        found.append("torchtitan has no converter of experts to nvfp4; it has fp8 and mxfp8")
    return found + loss_problem(launch)


def loss_problem(launch: Launch) -> list[str]:
    """Whether the loss is what the recipes compute."""
    kind = launch["loss_kernel"]
    return [] if kind in {None, "chunked"} else [f"torchtitan's recipes compute the loss over pieces, not {kind}"]


def graphs(launch: Launch) -> bool:
    """Whether the step is captured as a graph, which torchtitan refuses beside a pipeline and sent experts."""
    return bool(launch["pp"] == 1 and launch["ep"] == 1)


def start(launch: Launch) -> LaunchCommand:
    """A recipe for torchtitan after v0.2.2."""
    base = RECIPES[preset_of(launch.model, RECIPES) or ""]
    module, flavor, _ = REGISTRY[base]
    c, seq = launch, launch["seq_len"]
    settings: list[tuple[str, str]] = []
    if not graphs(launch):
        settings.append(("training.disable_cuda_graphs", "True"))
    settings += [
        ("training.max_context_length", f"{seq}"),
        ("training.num_tokens_per_microbatch_per_dp_rank", f"{c['micro_batch']} * {seq}"),
        ("training.num_tokens_per_train_step", f"{c['global_batch']} * {seq}"),
    ]
    if c["precision"] == "bf16-true":
        settings.append(("training.dtype", repr("bfloat16")))
    values = parallelism(launch)
    values.pop("context_parallel_rotate_method", None)
    if c["pp"] > 1:
        values["num_pp_microbatches"] = launch.micro_batches
    if c["tp"] > 1:
        values["enable_sequence_parallel"] = bool(c["sequence_parallel"])
    settings += [(f"parallelism.{name}", repr(value)) for name, value in values.items()]
    settings += [("compile.enable", "True"), ("compile.components", repr(["model", "loss"]))]
    kind = CHECKPOINTS.get(c["recompute"])
    settings.append(("activation_checkpoint", f"{kind}.Config()" if kind else "None"))
    imports = [f"from torchtitan.models.{module}.config_registry import {base}"]
    if kind:
        imports.insert(0, f"from torchtitan.distributed.activation_checkpoint import {kind}")
    spec = _converted(launch, flavor)
    if spec:
        names, call = spec
        imports.insert(-1, f"from torchtitan.components.quantization import {', '.join(names)}")
        imports.insert(-1, f"from torchtitan.models.{module} import model_registry")
        settings.append(("model_spec", call))
    body = "".join(f"    c.{name} = {value}\n" for name, value in settings)
    comments = ("a torchtitan recipe, for releases after v0.2.2", *comments_on(launch))
    if c["cp"] > 1:
        comments = (*comments, "how context parallel ranks exchange keys and values is left to the model")
    text = (
        commented(launch, comments)
        + "".join(f"{line}\n" for line in sorted(imports))
        + f"\n\ndef job():\n    c = {base}()\n{body}    return c\n"
    )
    program = [["-m", "torchtitan.train", "--module", "recipe", "--config", "job"]]
    return LaunchCommand(text, program, files={FILE: text}, comments=comments)


def _converted(launch: Launch, flavor: str) -> tuple[list[str], str] | None:
    """(classes, the model's specification) where products are in 8 or 4 bit; the 405B's recipe has FP8 of its own."""
    kind = launch["precision"]
    if kind not in CONVERTERS:
        return None if flavor != "405B" else ([], f'model_registry("{flavor}")')
    _, linear, kept, experts = CONVERTERS[kind]
    parts = [f"{linear}.Config({kept}model_compile_enabled=True)"]
    names = [linear]
    if experts and launch.model.experts:
        parts.append(f"{experts}.Config(model_compile_enabled=True)")
        names.append(experts)
    return names, f'model_registry("{flavor}", converters=[{", ".join(parts)}])'


TARGET = Target(("torchtitan-recipe",), problems, start, "torchtitan", TORCHRUN, usual=USUAL)
