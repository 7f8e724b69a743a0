"""What a row states of its job, completed: its model, cluster and software, and the cells that it leaves empty.

Also what is wrong, or has to be said, of the cells together; the layout itself is judged by `layouts/rules.py`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError, nearest, shown
from gpucalc.database.cluster import PLACE_CELLS, Cluster, resolve_cluster
from gpucalc.database.profiles import NEUTRAL, Profile, choose_profile, framework_words, load_profile
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.jobs.context import Context
from gpucalc.jobs.towers import images_of
from gpucalc.layouts import rules
from gpucalc.layouts.axes import AXES, Sizes, degree_axes
from gpucalc.layouts.schedules import SCHEDULES, default_schedule
from gpucalc.models.cells import CELLS, model_with
from gpucalc.models.model import Model, load_model, model_from_shape, resolve_preset

MAX_AUTOMATIC_VPP = 12
WITHOUT_FLASH = ("Volta", "Turing", "Pascal")  # flash kernels need Ampere or later
MOST_HEADS = 4096  # beyond it no divisor of a hidden size is a plausible number of heads


def collect(problems: list[str], function: Any, *arguments: Any) -> Any:
    """The function's result; None and its sentences among `problems` when it finds a mistake."""
    try:
        return function(*arguments)
    except UsageError as error:
        problems.extend(error.problems)
        return None


@functools.lru_cache(maxsize=512)
def _named_model(name: str) -> Model:
    return load_model(name)


@functools.lru_cache(maxsize=4096)
def _shaped_model(name: str | None, shape: tuple[tuple[str, Any], ...]) -> Model:
    stated = dict(shape)
    if name is not None:
        return model_with(_named_model(name), **stated) if stated else _named_model(name)
    return model_from_shape(**stated)


def stated_model(cells: Mapping[str, Any], warnings: list[str]) -> Model:
    """The model that a row states: a preset or file with the row's shape in its place, or the shape alone."""
    shape = {n: cells[n] for n in CELLS if cells.get(n) is not None}
    name = cells.get("model")
    if "hidden" in shape and "heads" not in shape and (name is None or resolve_preset(str(name)) is None):
        shape["heads"] = _usual_heads(shape["hidden"], cells.get("tp") or 1)
        warnings.append(f"heads is not stated; {shape['heads']} of about 128 are taken")
    whole = all(n in shape for n in ("layers", "hidden", "heads"))
    known = name is not None and (resolve_preset(str(name)) is not None or not whole)
    if not known:
        missing = [n for n in ("layers", "hidden", "heads") if n not in shape]
        if missing:
            raise UsageError(f"no model is named, and the shape lacks {', '.join(missing)}")
        if "vocab" not in shape:
            warnings.append("vocab is not stated; 51,200 is taken")
    if name in {"custom", "shape"}:
        known = False
    model = _shaped_model(str(name) if known else None, tuple(sorted(shape.items())))
    warnings.extend(model.warnings)
    if model.encoder_layers:
        warnings.append("an encoder-decoder is estimated as one stack of its encoder and decoder layers")
    if model.vision_parameters and not images_of(cells):
        warnings.append("no images_per_sample is stated: the vision tower counts in memory, the time is that of text")
    return model


def _usual_heads(hidden: int, tp: int) -> int:
    """The number of heads, a multiple of tp, that divides `hidden` into heads of a size nearest 128.

    >>> _usual_heads(14400, 1), _usual_heads(4096, 8)
    (120, 32)
    """
    fitting = [n for n in range(1, min(hidden, MOST_HEADS) + 1) if hidden % n == 0 and n % tp == 0] or [tp]
    return min(fitting, key=lambda n: (abs(hidden / n - 128), -n))


def stated_cluster(cells: Mapping[str, Any], context: Context) -> Cluster:
    """The cluster that a row states."""
    if not cells.get("gpu"):
        raise UsageError("gpu is not stated; `gpucalc hw list` shows the names")
    count = cells.get("n_gpus")
    if count is None:
        count = math.prod(cells.get(name) or 1 for name in degree_axes())
    place = tuple((name, cells[name]) for name in PLACE_CELLS if cells.get(name) is not None)
    return _cached_cluster(context.db, str(cells["gpu"]), int(count), place, context.fabric)


@functools.lru_cache(maxsize=4096)
def _cached_cluster(
    db: Database, gpu: str, count: int, place: tuple[tuple[str, Any], ...], fabric: str | None
) -> Cluster:
    return resolve_cluster(db, gpu, count, fabric=fabric, **dict(place))


def stated_profile(cells: Mapping[str, Any], context: Context) -> Profile:
    """The software profile of a row: the one that stands beside the cells, else by its framework and date."""
    db = context.db
    if context.profile:
        return load_profile(context.profile, db)
    return choose_profile(str(cells.get("framework") or ""), str(cells.get("software_date") or ""), db)


def complete(
    cells: Mapping[str, Any], model: Model, cluster: Cluster, profile: Profile, precision: str, warnings: list[str]
) -> dict[str, Any]:
    """All cells that decide the estimate, empty ones filled by their rule."""
    full = {name: value for name, value in cells.items() if value is not None}
    defaults = profile.defaults
    full["n_gpus"], full["precision"] = cluster.n_gpus, precision
    if "seq_len" not in full:
        full["seq_len"] = min(model.max_seq_len or 2048, 8192)
        warnings.append(f"seq_len is not stated; {full['seq_len']} is taken")
    for name, axis in AXES.items():
        if axis.default == 1 and not axis.follows:
            full.setdefault(name, 1)
    others = math.prod(full[name] for name in degree_axes() if name != "dp")
    full.setdefault("dp", max(1, cluster.n_gpus // others))
    full.setdefault("micro_batch", 1)
    full.setdefault("global_batch", full["dp"] * full["micro_batch"])
    full.setdefault("etp", full["tp"] if full["ep"] <= full["dp"] * full["cp"] or not model.experts else 1)
    full.setdefault("zero_stage", named_stage(str(cells.get("framework") or ""), int(defaults["zero_stage"])))
    full.setdefault("sequence_parallel", bool(defaults["sequence_parallel"]))
    full["sequence_parallel"] = bool(full["sequence_parallel"]) and full["tp"] > 1
    if "vpp" not in full:
        automatic = defaults["vpp"] == "full" and full["pp"] > 1 and not model.experts
        schedule = full.get("schedule", "interleaved")
        depth = -(-model.layers // full["pp"])
        full["vpp"] = min(depth, MAX_AUTOMATIC_VPP) if automatic and schedule in {"interleaved", "none"} else 1
    default = default_schedule(full["pp"], full["vpp"])
    full["schedule"] = default if full.get("schedule") in {None, "none"} or full["pp"] == 1 else full["schedule"]
    if full["schedule"] == "1f1b" and full["vpp"] > 1:
        full["schedule"] = "interleaved"
    full.setdefault("cp_kind", "ring")
    full.setdefault("optimizer", "adam")
    full.setdefault("method", "full")
    unfused = cluster.device.arch in WITHOUT_FLASH
    if unfused and full.get("flash_attention") == "yes":
        full["flash_attention"] = "no"
        warnings.append(f"flash kernels need Ampere or later; on {cluster.device.name} attention forms its scores")
    full.setdefault("flash_attention", "no" if unfused else str(defaults["flash_attention"]))
    # "plain": on where the MLP is not gated, as Megatron-LM's own defaults; recipes of gated models switch it off.
    full.setdefault("dropout", not model.gated_mlp if defaults["dropout"] == "plain" else bool(defaults["dropout"]))
    full.setdefault("mem_counter", "reserved")
    return full


def named_stage(framework: str, default: int) -> int:
    """The ZeRO stage that the text of a framework names, FSDP being 3; the profile's where it names none.

    >>> named_stage("DeepSpeed ZeRO-3", 0), named_stage("in-house FSDP2", 0), named_stage("hf trainer", 0)
    (3, 3, 0)
    """
    text = framework.casefold()
    if match := re.search(r"(?<![a-z0-9])(?:zero|stage)[ -]?([0-3])(?![0-9])", text):
        return int(match[1])
    return 3 if re.search(r"(?<![a-z0-9])fsdp[12]?(?![a-z0-9])", text) else default


def unknown_framework(cells: Mapping[str, Any], profile: Profile, context: Context) -> list[str]:
    """A warning where no profile knows the stated framework, with the nearest names."""
    text = str(cells.get("framework") or "")
    if not text or profile.name != NEUTRAL or text.casefold() == NEUTRAL:
        return []
    near = nearest(text.casefold(), framework_words(context.db), 3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return [f"framework {shown(text)} is not known: a neutral profile and the widest band are taken{hint}"]


def uncounted(cells: Mapping[str, Any]) -> list[str]:
    """What stated cells ask for and the estimate leaves out."""
    found = []
    if cells.get("mtp_layers"):
        found.append("mtp_layers: layers of multi-token prediction are counted neither in time nor in memory")
    if cells.get("offload_parameters"):
        found.append("offload_parameters: memory is counted, the time to fetch parameters over the host link is not")
    return found


def offload_problems(cells: Mapping[str, Any]) -> list[str]:
    """Parameters on the host that are not sharded, which no framework gathers layer by layer."""
    if cells.get("offload_parameters") and cells["zero_stage"] < 3:
        return [
            f"offload_parameters needs zero_stage=3, whose parameters are gathered for use; not {cells['zero_stage']}"
        ]
    return []


def stage_problems(cells: Mapping[str, Any], model: Model) -> list[str]:
    """Layers of the end stages that leave none, or no whole share, to the others; with vpp, to a chunk."""
    ends = {name: int(cells[name]) for name in ("layers_first", "layers_last") if cells.get(name)}
    if cells["pp"] == 1 or not ends:
        return []
    rest, others = model.layers - sum(ends.values()), cells["pp"] - len(ends)
    said = " and ".join(f"{name}={value}" for name, value in ends.items())
    if rest < others or (not others and rest):
        each = f"one or more for each of the {others} other stages" if others else "exactly none"
        return [f"{said} leave {rest} of the {model.layers} layers, expected {each}"]
    return []


def attention_problems(cells: Mapping[str, Any], device: Device) -> list[str]:
    """A stated flash kernel that the GPU has not got."""
    kernel = cells["flash_attention"]
    if kernel in {"fa1", "fa2", "fa3"} and device.arch in WITHOUT_FLASH:
        return [
            f"flash_attention={kernel} needs compute capability 8.0 (Ampere) or later; {device.name} is "
            f"{device.arch}: use flash_attention=no"
        ]
    if kernel == "fa3" and device.vendor == "NVIDIA" and device.arch != "Hopper":
        return [f"flash_attention=fa3 runs on Hopper, not on {device.arch}: use fa2 or vendor"]
    return []


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` up to `limit`, searched from the top over a plausible range.

    >>> largest_divisor(64, 12), largest_divisor(96, 1000)
    (8, 96)
    """
    start = min(number, limit)
    return next((d for d in range(start, max(0, start - MOST_HEADS), -1) if number % d == 0), 1)


def layout_facts(
    cells: Mapping[str, Any], model: Model, cluster: Cluster, profile: Profile | None = None
) -> dict[str, Any]:
    """What the rules of layouts read of completed cells; with a profile that was stated, its schedules too."""
    sizes = layout_sizes(cells, model, cluster)
    return rules.facts(cells, sizes, offered_schedules(profile))


def layout_sizes(cells: Mapping[str, Any], model: Model, cluster: Cluster, *, selective: bool = True) -> Sizes:
    """The numbers of a job that bound its layouts."""
    return Sizes(
        cluster.n_gpus,
        model.layers + model.encoder_layers,
        model.heads,
        model.experts,
        int(cells["seq_len"]),
        int(cells["global_batch"]),
        cluster.domain,
        selective,
    )


def offered_schedules(profile: Profile | None) -> list[bool] | None:
    """By code, whether a software profile has a schedule; None where it does not say, or no profile is stated."""
    names = profile.defaults.get("schedules") if profile is not None else None
    return None if not names else [not row.token or name in names for name, row in SCHEDULES.items()]


def beyond_positions(model: Model, seq_len: int) -> list[str]:
    """What is said of sequences longer than a model's positions; learned ones have no vector there: UsageError."""
    if not model.max_seq_len or seq_len <= model.max_seq_len:
        return []
    if model.parameters_positional:
        raise UsageError(
            f"seq_len is {seq_len:,}, but {model.name} has learned vectors for {model.max_seq_len:,} positions; "
            f"seq_len={model.max_seq_len} is the longest"
        )
    return [f"seq_len {seq_len:,} is beyond the {model.max_seq_len:,} positions of {model.name}; it must be extended"]
