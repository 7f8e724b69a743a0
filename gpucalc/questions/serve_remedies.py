"""A serving question that does not fit: what it needs, what there is, and how many GPUs or which format would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs.formats import FORMATS
from gpucalc.jobs.serving import resolve_serving, stack_serving
from gpucalc.jobs.serving_rules import layout_rules
from gpucalc.jobs.serving_sides import SIDE_CELLS
from gpucalc.questions.serve_layouts import LAYOUT, layouts

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.jobs.serving import ServingJob

MOST_GPUS = 1024
NARROWER = ("fp8", "int8", "nvfp4", "mxfp4", "int4")  # formats in which checkpoints are published


def does_not_fit(rows: Sequence[Mapping[str, Any]], probe: ServingJob, context: Context) -> tuple[str, dict[str, Any]]:
    """The sentence, and the row that comes nearest."""
    row = min(rows, key=lambda r: (r["pred_least_memory_share"], r["layout"]))
    share = row["pred_least_memory_share"]
    ways = [way for way in (_more_gpus(probe, context), _narrower(probe, context)) if way]
    if share < 1:
        ways.append(f"memory_share={share + 0.0005:.3f} would on these")
    held = row["pred_kv_tokens"]
    if held >= 1:
        ways.append(f"sequences up to {held:,.0f} tokens would")
    text = (
        f"no layout holds its weights and one sequence of {row['isl'] + row['osl']:,.0f} tokens: with {row['layout']}, "
        f"the nearest, {row['pred_needed_gib']:.1f} GiB a GPU are needed ({row['pred_weights_gib']:.1f} of them "
        f"weights in {row['precision']}), and the engine has {row['pred_available_gib']:.1f}"
    )
    return text + (f"; {'; '.join(ways)}" if ways else ""), dict(row)


def _free(probe: ServingJob) -> dict[str, Any]:
    """The question without its layout."""
    gone = {*LAYOUT, *SIDE_CELLS, "n_gpus"}
    return {name: value for name, value in probe.cells.items() if name not in gone}


def _holds(cells: Mapping[str, Any], gpus: int, probe: ServingJob, context: Context) -> bool:
    """Whether some layout of so many GPUs holds a sequence."""
    from gpucalc.estimate.serving import estimate_serving

    found = []
    for layout in layouts({}, probe.model.is_moe, gpus):
        if layout["dp"] != layout["attention_dp"] or layout_rules({**cells, **layout, "n_gpus": gpus}, probe.model):
            continue
        try:
            found.append(resolve_serving({**cells, **layout, "n_gpus": gpus}, context))
        except UsageError:
            return False
    return bool(found) and bool((estimate_serving(stack_serving(found))["memory/sequences"] >= 1).any())


def _more_gpus(probe: ServingJob, context: Context) -> str:
    gpus = 2 * int(probe.cells["n_gpus"])
    while gpus <= MOST_GPUS:
        if _holds(_free(probe), gpus, probe, context):
            return f"{gpus} GPUs would hold it"
        gpus *= 2
    return ""


def _narrower(probe: ServingJob, context: Context) -> str:
    """The widest narrower format of the weights with which the same GPUs hold a sequence."""
    own = FORMATS[probe.cells["precision"]].bytes
    for name in sorted((n for n in NARROWER if FORMATS[n].bytes < own), key=lambda n: (-FORMATS[n].bytes, n)):
        if _holds({**_free(probe), "precision": name}, int(probe.cells["n_gpus"]), probe, context):
            gpus = int(probe.cells["n_gpus"])
            return f"weights in {name} would fit {f'these {gpus}' if gpus > 1 else 'this one'}"
    return ""
