"""A job: what a row or a query states, completed with the model's, the cluster's and the profile's values.

`resolve` turns typed cells into the numeric columns of the estimate; `evaluate_rows` does it for a batch.
"""

from __future__ import annotations

import functools
import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucalc.core.columns import KINDS, MEASURED, parse_row
from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIB
from gpucalc.core.vocabulary import FITS
from gpucalc.database.cluster import Cluster
from gpucalc.database.network import overlay_shares
from gpucalc.database.profiles import Profile
from gpucalc.database.tables import TIME_BAND
from gpucalc.jobs import learned
from gpucalc.jobs.columns import (
    HGX_DOMAIN,
    cluster_columns,
    device_columns,
    layout_columns,
    model_columns,
)
from gpucalc.jobs.completion import (
    attention_problems,
    beyond_positions,
    collect,
    complete,
    layout_facts,
    offload_problems,
    stage_problems,
    stated_cluster,
    stated_model,
    stated_profile,
    uncounted,
    unknown_framework,
)
from gpucalc.jobs.context import Context
from gpucalc.jobs.software import software_columns
from gpucalc.jobs.towers import tower_columns
from gpucalc.jobs.tuning import tuning_problems
from gpucalc.layouts import verdicts
from gpucalc.layouts.axes import AXES, degree_axes
from gpucalc.layouts.label import label_cells, parse_label
from gpucalc.layouts.rules import Facts
from gpucalc.models.model import Model

if TYPE_CHECKING:
    from gpucalc.core.ledger import Columns, Ledger


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
    software = collect(problems, stated_profile, cells, context)
    if model is None or cluster is None or software is None:
        raise UsageError(*problems)
    precision = str(cells.get("precision") or cluster.device.default_precision)
    warnings += [*unknown_framework(cells, software, context), *uncounted(cells)]
    if context.learned:
        warnings += learned.remarks(context.db, cluster.device.key, cluster.n_gpus > cluster.domain)
    if precision in {"int8", "int4"} and cells.get("method", "full") != "full":  # the frozen base is stored so
        cells = {**cells, "quantisation": cells.get("quantisation") or precision}
        precision = cluster.device.default_precision
    full = complete(cells, model, cluster, software, precision, warnings)
    warnings += beyond_positions(model, full["seq_len"])
    chosen = software if context.profile or cells.get("framework") else None
    facts = layout_facts(full | {"batch_follows": cells.get("global_batch") is None}, model, cluster, chosen)
    return Job(full, {}, model, cluster, software, context, tuple(warnings)), facts


def _judged(draft: Job, facts: Facts, verdict: verdicts.Verdict) -> Job | UsageError:
    """The job with its columns, if the rules let its layout be."""
    cells, device = draft.cells, draft.cluster.device
    problems = [
        *attention_problems(cells, device),
        *offload_problems(cells),
        *stage_problems(cells, draft.model),
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
        cells, model, cluster.device, stated_profile(cells, context), rack=cluster.domain > HGX_DOMAIN
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


# Columns of a prediction → path in the ledger and factor.
PREDICTIONS = {
    "pred_step_time_s": ("time/step", 1.0),
    "pred_tokens_per_s_per_gpu": ("metric/tokens_per_s_per_gpu", 1.0),
    "pred_mfu_pct": ("metric/mfu", 100.0),
    "pred_hfu_pct": ("metric/hfu", 100.0),
    "pred_peak_mem_gib": ("memory/total", 1 / GIB),
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
