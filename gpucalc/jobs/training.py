"""A job: what a row or a query states, completed with the model's, the cluster's and the profile's values.

`resolve` turns typed cells into the numeric columns of the estimate; `evaluate_rows` does it for a batch.
"""

from __future__ import annotations

import functools
import math
import re
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import KINDS, MEASURED, parse_row
from gpucalc.core.errors import UsageError, nearest, shown
from gpucalc.core.vocabulary import FITS
from gpucalc.database.cluster import PLACE_CELLS, Cluster, resolve_cluster
from gpucalc.database.network import overlay_shares
from gpucalc.database.profiles import NEUTRAL, Profile, choose_profile, framework_words, load_profile
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.database.tables import TIME_BAND
from gpucalc.jobs import learned
from gpucalc.jobs.columns import (
    HGX_DOMAIN,
    cluster_columns,
    device_columns,
    layout_columns,
    model_columns,
)
from gpucalc.jobs.context import Context
from gpucalc.jobs.software import software_columns
from gpucalc.jobs.towers import images_of, tower_columns
from gpucalc.jobs.tuning import tuning_problems
from gpucalc.layouts import rules, verdicts
from gpucalc.layouts.axes import AXES, Sizes, degree_axes
from gpucalc.layouts.label import label_cells, parse_label
from gpucalc.layouts.rules import Facts
from gpucalc.layouts.schedules import SCHEDULES, default_schedule
from gpucalc.models.cells import CELLS, model_with
from gpucalc.models.model import Model, load_model, model_from_shape, resolve_preset

if TYPE_CHECKING:
    from gpucalc.core.ledger import Columns, Ledger

MAX_AUTOMATIC_VPP = 12
WITHOUT_FLASH = ("Volta", "Turing", "Pascal")  # flash kernels need Ampere or later
MOST_HEADS = 4096  # beyond it no divisor of a hidden size is a plausible number of heads


@dataclass(frozen=True)
class Job:
    """One question, completed: numeric columns for the estimate, and what they were resolved from."""

    cells: dict[str, Any]
    columns: MutableMapping[str, float]
    model: Model
    cluster: Cluster
    profile: Profile
    context: Context
    warnings: tuple[str, ...] = field(default=())
    unlisted: tuple[str, ...] = field(default=())  # why the planner would not list the layout

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said beside an answer about this layout: what was taken, and why no plan lists it."""
        return (*self.warnings, *(f"the planner would not list this: {reason}" for reason in self.unlisted))


def resolve(cells: Mapping[str, Any], context: Context) -> Job:
    """Complete the typed cells of one row.

    Raises UsageError with all violations: unknown names, missing cells, an impossible layout.
    """
    job = resolve_rows([cells], context)[0]
    if isinstance(job, UsageError):
        raise job
    return job


def resolve_rows(rows: Sequence[Mapping[str, Any]], context: Context) -> list[Job | UsageError]:
    """As `resolve`, of several rows: for each its job, or what is wrong with it."""
    drafts: list[tuple[Job, Facts] | UsageError] = []
    for cells in rows:
        try:
            drafts.append(_draft(cells, context))
        except UsageError as error:
            drafts.append(error)
    found = iter(verdicts.judge([draft[1] for draft in drafts if isinstance(draft, tuple)]))
    return [_judged(*draft, next(found)) if isinstance(draft, tuple) else draft for draft in drafts]


def _draft(cells: Mapping[str, Any], context: Context) -> tuple[Job, Facts]:
    """A job whose layout is not judged yet, and what the rules of layouts read of it."""
    problems: list[str] = []
    warnings: list[str] = []
    model = collect(problems, stated_model, cells, warnings)
    cluster = collect(problems, stated_cluster, cells, context)
    software = collect(problems, _profile, cells, context)
    if model is None or cluster is None or software is None:
        raise UsageError(*problems)
    precision = str(cells.get("precision") or cluster.device.default_precision)
    warnings += [*unknown_framework(cells, software, context), *uncounted(cells)]
    if precision in {"int8", "int4"} and cells.get("method", "full") != "full":  # the frozen base is stored so
        cells = {**cells, "quantisation": cells.get("quantisation") or precision}
        precision = cluster.device.default_precision
    full = complete(cells, model, cluster, software, precision, warnings)
    warnings += beyond_positions(model, full["seq_len"])
    chosen = software if context.profile or cells.get("framework") else None
    facts = layout_facts(full | {"batch_follows": cells.get("global_batch") is None}, model, cluster, chosen)
    return Job(full, {}, model, cluster, software, context, tuple(warnings)), facts


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


def _judged(draft: Job, facts: Facts, verdict: verdicts.Verdict) -> Job | UsageError:
    """The job with its columns, if the rules let its layout be."""
    cells, device = draft.cells, draft.cluster.device
    problems = [
        *attention_problems(cells, device),
        *offload_problems(cells),
        *verdict.problems,
        *tuning_problems(cells),
    ]
    collect(problems, device.precision_peak, cells["precision"])
    collect(problems, tower_columns, cells, draft.model)
    if problems:
        return UsageError(*problems)
    stated = tuple((name, value) for name, value in cells.items() if name not in _OF_THE_ROW)
    shared = _shared_columns(stated, draft.model, draft.context)
    own = {
        **layout_columns(cells, {name: facts[name] for name in AXES}),
        "causal_flops": float(draft.context.causal_flops),
    }
    return replace(draft, columns=ChainMap(own, *shared), unlisted=tuple(verdict.unlisted))


# Cells that only the columns of the row itself read: all others decide columns that many rows share.
_OF_THE_ROW = frozenset((*AXES, "global_batch", "seq_len", *MEASURED)) - {"offload_optimizer"}


class _Stated(dict[str, Any]):
    """Cells without those of the row: reading one of them is a mistake, since other rows would get its value."""

    def __missing__(self, name: str) -> Any:
        if name in _OF_THE_ROW:
            raise TypeError(f"{name} is a cell of the row; columns that rows share cannot depend on it")
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The cell, or `default` where it is not stated."""
        return self[name] if name in self or name in _OF_THE_ROW else default


@functools.lru_cache(maxsize=4096)
def _shared_columns(
    stated: tuple[tuple[str, Any], ...], model: Model, context: Context
) -> tuple[dict[str, float], ...]:
    """The columns of software, cluster, device and model: one object each for all rows that state the same."""
    cells = _Stated(stated)
    cluster = stated_cluster(cells, context)
    software = software_columns(
        cells, model, cluster.device, _profile(cells, context), rack=cluster.domain > HGX_DOMAIN
    )
    for name, share in overlay_shares(cluster, context.db).items():
        software[name] = min(1.0, software[name] * share)
    device = device_columns(cluster.device, cells["precision"], context.db)
    parts = (software, cluster_columns(cluster, context.db), device, model_columns(model), tower_columns(cells, model))
    if not context.learned:
        return parts
    own = learned.changed(ChainMap(*parts), cluster.device.key, model.name, context.db)
    return (own, *parts) if own else parts


def beside(job: Job, resting_bytes: float, resting_share: float = 0.0) -> Job:
    """The job with other models at rest on its GPUs: bytes of frozen ones, and a trained one as a share of its own.

    Recomputation is chosen for what they leave.
    """
    own = {"resting_bytes": resting_bytes, "resting_share": resting_share}
    return replace(job, columns=ChainMap(own, *_maps(job.columns)))


def _maps(columns: MutableMapping[str, float]) -> list[MutableMapping[str, float]]:
    return list(columns.maps) if isinstance(columns, ChainMap) else [columns]


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


def _profile(cells: Mapping[str, Any], context: Context) -> Profile:
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


# Columns of a prediction → path in the ledger and factor.
PREDICTIONS = {
    "pred_step_time_s": ("time/step", 1.0),
    "pred_tokens_per_s_per_gpu": ("metric/tokens_per_s_per_gpu", 1.0),
    "pred_mfu_pct": ("metric/mfu", 100.0),
    "pred_hfu_pct": ("metric/hfu", 100.0),
    "pred_peak_mem_gib": ("memory/total", 1 / 2**30),
}
RISKY_FILL = 0.95  # from here on a job may or may not fit


def fit_code(fill: Any) -> Any:
    """0 fits, 1 risky (within 5 % of the capacity), 2 oom, of memory over capacity: one value or an array.

    Every command that says, ranks or asserts a fit asks here.

    >>> fit_code(0.5), fit_code(1.01), fit_code(1.2)
    (0, 1, 2)
    """
    return 1 * (fill >= RISKY_FILL) + (fill > 2 - RISKY_FILL)


def fit_of(fill: float) -> str:
    """The word for `fit_code`.

    >>> fit_of(0.5), fit_of(1.01), fit_of(1.2)
    ('fits', 'risky', 'oom')
    """
    return FITS[int(fit_code(fill))]


def may_fit(fill: Any) -> Any:
    """Whether memory over capacity fits or is risky: what is listed, those that fit first."""
    return fit_code(fill) < FITS.index("oom")


def predictions(ledger: Ledger, jobs: Sequence[Job], band: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """The pred_ columns of each row of a ledger."""
    import numpy as np

    count = len(jobs)
    values = {
        name: np.broadcast_to(np.asarray(ledger[path], dtype=float), (count,)) * factor
        for name, (path, factor) in PREDICTIONS.items()
    }
    fill = np.broadcast_to(ledger["memory/fill"], (count,))
    share = np.broadcast_to(ledger["symbol/full_share"], (count,))
    depth = np.broadcast_to(ledger["stage/layers/second"], (count,))
    rows = []
    for i, job in enumerate(jobs):
        row: dict[str, Any] = {name: float(column[i]) for name, column in values.items()}
        low, high = band[i]
        row["pred_step_time_low_s"] = row["pred_step_time_s"] * low
        row["pred_step_time_high_s"] = row["pred_step_time_s"] * high
        row["pred_fit"] = fit_of(float(fill[i]))
        row["pred_recompute"] = recompute_text(job.cells.get("recompute"), float(share[i]), float(depth[i]))
        row["pred_error"] = ""
        rows.append(row)
    return rows


def recompute_text(stated: str | None, share: float, depth: float) -> str:
    """none, selective, full, or full:LAYERS of the longest stage.

    >>> recompute_text(None, 0.25, 12), recompute_text("selective", 0, 12), recompute_text(None, 1.0, 12)
    ('full:3', 'selective', 'full')
    """
    if stated == "selective":
        return "selective"
    if share <= 0:
        return "none"
    return "full" if share >= 1 else f"full:{round(share * depth)}"


def stack(jobs: Sequence[Job]) -> Columns:
    """The columns of several jobs; what is the same in all of them stays a scalar.

    Columns that jobs share as one object are laid out once, with a code for each object.
    """
    import numpy as np

    from gpucalc.core.ledger import Columns

    if len(jobs) == 1:
        return Columns(jobs[0].columns)
    values: dict[str, Any] = {}
    codes: dict[str, tuple[np.ndarray, int]] = {}
    maps = [job.columns.maps if isinstance(job.columns, ChainMap) else [job.columns] for job in jobs]
    if len({len(parts) for parts in maps}) > 1:
        maps = [[job.columns] for job in jobs]
    for parts in reversed(list(zip(*maps, strict=True))):
        distinct: dict[int, int] = {}
        index = np.array([distinct.setdefault(id(part), len(distinct)) for part in parts])
        one_of_each = list({id(part): part for part in parts}.values())
        for name in dict.fromkeys(name for part in one_of_each for name in part):
            stated = [name in part for part in one_of_each]
            column = np.array([part.get(name, 0.0) for part in one_of_each], dtype=float)
            codes.pop(name, None)
            if not all(stated):  # the others have it from a map behind this one
                values[name] = np.where(np.array(stated)[index], column[index], values[name])
                continue
            if (column == column[0]).all():
                values[name] = float(column[0])
                continue
            values[name] = column[index]
            if len(distinct) < len(jobs):
                codes[name] = (index, len(distinct))
    return Columns(values, codes)


def evaluate_rows(
    records: Sequence[Mapping[str, str]], context: Context, warned: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """The pred_ columns of each record (cells as text); a record with a mistake has them empty and `pred_error`.

    `pred_notes` holds what was taken, and why no plan would list the layout.

    `warned` gathers the warnings of the rows with their counts.
    """
    parsed: dict[tuple[str, str], Any] = {}
    rows = [_with_label(record, *parse_row(record, parsed)) for record in records]
    found = iter(resolve_rows([cells for cells, problems in rows if not problems], context))
    jobs = [UsageError(*problems) if problems else next(found) for _, problems in rows]
    predicted = iter(predict([job for job in jobs if isinstance(job, Job)]))
    results = []
    for job in jobs:
        if isinstance(job, UsageError):
            results.append({**dict.fromkeys(KINDS["training"], ""), "pred_error": "; ".join(job.problems)})
            continue
        results.append({**next(predicted), "pred_notes": "; ".join(job.remarks)})
        if warned is not None:
            for remark in job.remarks:
                warned[remark] = warned.get(remark, 0) + 1
    return results


def _with_label(
    record: Mapping[str, str], cells: dict[str, Any], problems: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """The cells of a row with those that its `layout`, a label, states; what both state must agree.

    The label's defaults fill what the row leaves open, where the row states no degree of its own.
    """
    label = record.get("layout", "").strip()
    if not label:
        return cells, problems
    found = _label_read(label)
    if isinstance(found, UsageError):
        return cells, [*problems, *found.problems]
    stated, whole = found
    differ = [name for name, value in stated.items() if name in cells and cells[name] != value]
    told = [f"layout {label} contradicts {name}={cells[name]}" for name in differ]
    filled = stated if any(name in cells for name in degree_axes()) else whole
    return {**filled, **cells}, [*problems, *told]


@functools.lru_cache(maxsize=4096)
def _label_read(label: str) -> tuple[dict[str, Any], dict[str, Any]] | UsageError:
    try:
        return parse_label(label), label_cells(label)
    except UsageError as error:
        return error


def predict(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The pred_ columns of several jobs."""
    from gpucalc.estimate.training import estimate_training

    if not jobs:
        return []
    return predictions(estimate_training(stack(jobs)), jobs, bands_of(jobs))


def job_band(job: Job) -> tuple[float, float]:
    """The 80 % band of the step time of one job, as factors."""
    return bands_of([job])[0]


def bands_of(jobs: Sequence[Job]) -> list[tuple[float, float]]:
    """The 80 % bands of the step times of jobs, as factors.

    From what the jobs' cluster has taught, where an overlay holds it (`jobs/learned.py`); otherwise from the errors
    of the job's family on sources left out.
    """
    from gpucalc.database.bands import band

    found: list[tuple[float, float]] = []
    taught: dict[int, learned.Posterior] = {}
    for place, job in enumerate(jobs):
        known = learned.posterior(job.context.db, job.cluster.device.key, TIME_BAND) if job.context.learned else None
        found.append((1.0, 1.0) if known else band(job)[:2])
        if known:
            taught[place] = known
    if taught:
        _, slopes = learned.effects(stack([jobs[place] for place in taught]), len(taught), TIME_BAND)
        for (place, known), effects in zip(taught.items(), slopes, strict=True):
            half = learned.QUANTILE * known.deviation(effects, jobs[place].model.name)
            found[place] = (math.exp(-half), math.exp(half))
    return found
