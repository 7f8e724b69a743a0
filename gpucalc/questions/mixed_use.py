"""A plan on several kinds of GPU in use: explained, as a run, as power, as rows, as settings of a launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.columns import KINDS, parse_row
from gpucalc.core.errors import GpucalcError, InfeasibleError, UsageError
from gpucalc.core.units import GIB
from gpucalc.database.defaults import HOUR
from gpucalc.jobs.context import Context
from gpucalc.layouts.axes import decided_axes
from gpucalc.questions.mixed import plan_mixed
from gpucalc.questions.mixed_cuts import OF_CUTS, MixedStep, mixed_row, mixed_step, read_cuts, read_micro_batches
from gpucalc.questions.power import Question as PowerQuestion
from gpucalc.questions.power import power
from gpucalc.questions.run import RunResult, run_of_step
from gpucalc.questions.run_scenarios import Question as RunQuestion
from gpucalc.questions.run_step import step_of_mixed

ROOTS = ("time/step", "metric/tokens_per_s_per_gpu")


def stated_step(
    cells: Mapping[str, Any],
    context: Context,
    *,
    parts: Mapping[str, int] | None = None,
    stages: str | None = None,
    micro_batches: str | None = None,
    between_gbps: float | None = None,
    trace: bool = False,
) -> MixedStep:
    """The step of a plan that is stated cut by cut, or of the best one on `parts` (device → GPUs).

    Raises UsageError where stages and parts contradict each other, InfeasibleError where no plan fits.
    """
    if "global_batch" not in cells:
        raise UsageError("--global-batch is not stated; how many sequences has a step?")
    question: dict[str, Any] = {n: v for n, v in cells.items() if n not in OF_CUTS and not _open(v)}
    if stages is None:
        if parts is None:
            raise UsageError("which GPUs? write --gpu a100-sxm-80gb:8,h100-sxm-80gb:8, or --stages")
        found = plan_mixed({**cells, "between_gbps": between_gbps}, parts, context, top=1)
        if not found.rows:
            raise InfeasibleError(found.verdict)
        [best] = found.rows
        stages = best["stages"]
        question |= {n: best[n] for n in decided_axes() if n not in OF_CUTS and n in best}
        micro_batches = micro_batches or best["micro_batches"] or None
    cuts = read_cuts(stages, context.db)
    if parts is not None and dict(cuts.gpus) != dict(parts):
        held = ", ".join(f"{n} {key}" for key, n in cuts.gpus.items())
        raise UsageError(f"the stages hold {held}; --gpu names {', '.join(f'{n} {key}' for key, n in parts.items())}")
    question["between_gbps"] = between_gbps
    if micro_batches is not None:
        question["micro_batches"] = read_micro_batches(micro_batches, context.db)
    return mixed_step(question, cuts, context, trace=trace)


def _open(cell: Any) -> bool:
    """Whether a cell is not stated, or left to the search: several levels, of which the first may be none."""
    return cell is None or isinstance(cell, tuple)


def explained(found: MixedStep, context: Context) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Facts and terms of a plan; every stage's own time is taken apart by `explain` of its kind."""
    from gpucalc.questions.explain import ledger_tree

    row = mixed_row(found)
    facts = [
        ("stages", found.cuts.text()),
        ("replicas", str(found.cuts.replicas)),
        *(
            (f"micro-batches over {', '.join(dict.fromkeys(m.gpu for m in path))}", str(count))
            for path, count in found.micro_batches.items()
        ),
        (
            "step",
            f"{row['pred_step_time_s']:.4g} s, band {row['pred_step_time_low_s']:.4g} to "
            f"{row['pred_step_time_high_s']:.4g}",
        ),
        *((f"memory of {key}", f"{size / GIB:.1f} GiB") for key, size in found.memory.items()),
        ("fit", row["pred_fit"]),
    ]
    return facts, ledger_tree(found.ledger, context.db, ROOTS)


def run_mixed(found: MixedStep, question: RunQuestion, context: Context) -> RunResult:
    """A run on a plan: days, failures, energy and money of all kinds together."""
    return run_of_step(step_of_mixed(found, context), question, context.db)


def power_mixed(
    found: MixedStep, question: PowerQuestion, context: Context
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Power of each kind, and of all of them with the energy of a token of the plan."""
    from dataclasses import replace

    rows: list[dict[str, Any]] = []
    for key, count in found.cuts.gpus.items():
        figures = power(replace(question, gpu=key, n_gpus=count), context).figures
        rows.append(
            {
                "gpu": key,
                "n_gpus": count,
                "gpu_w": figures["gpu_w"][0],
                "node_kw": figures["node_kw"][0],
                **{f"site_mw{end}": figures["site_mw"][i] for i, end in enumerate(("", "_low", "_high"))},
                "electricity_usd_per_hour": figures["electricity_usd_per_gpu_hour"][0] * count,
            }
        )
    site = sum(row["site_mw"] for row in rows)
    tokens = found.columns["global_batch"] * found.columns["seq_len"]
    total = {
        "gpu": "all",
        "n_gpus": found.n_gpus,
        **{f"site_mw{end}": sum(row[f"site_mw{end}"] for row in rows) for end in ("", "_low", "_high")},
        "electricity_usd_per_hour": sum(row["electricity_usd_per_hour"] for row in rows),
        "step_kwh": site * 1e3 * found.step_time / HOUR,
        "j_per_token": site * 1e6 * found.step_time / tokens,
    }
    return rows, total


def _recomputed(text: str) -> tuple[bool, bool, float]:
    """How much a recomputation is, for comparison.

    >>> sorted(["full", "selective", "none", "full:12", "full:3"], key=_recomputed)
    ['none', 'selective', 'full:3', 'full:12', 'full']
    """
    kind, _, count = text.partition(":")
    return kind != "none", kind == "full", float(count or "inf")


def launch_cells(found: MixedStep, cells: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The cells of a plan as launchers know them, and what is to be said of its ranks.

    Raises UsageError for plans that no launcher expresses: unequal tensor parallelism or shares of the batch.
    """
    cuts = found.cuts
    cp = int(next(iter(found.jobs.values())).cells["cp"])
    degrees = {m.size // cp for stage in cuts.stages for m in stage.members}
    if len(degrees) > 1:
        raise UsageError(f"no launcher has several tensor-parallel degrees ({', '.join(map(str, sorted(degrees)))})")
    if len(set(found.micro_batches.values())) > 1:
        told = ", ".join(f"{path[0].gpu} {count}" for path, count in found.micro_batches.items())
        raise UsageError(f"no launcher gives replicas unequal shares of the batch ({told}); state even --shares")
    layout: dict[str, Any] = {"tp": degrees.pop(), "pp": len(cuts.stages), "dp": cuts.replicas, "cp": cp, "vpp": 1}
    layout["schedule"] = "1f1b" if layout["pp"] > 1 else "none"
    biggest = max(cuts.gpus, key=lambda key: cuts.gpus[key])
    comments = tuple(
        f"stage {place}: {stage.layers} layers on "
        + ", ".join(f"{sum(m.size for m in stage.members if m.gpu == kind)} x {kind}" for kind in stage.kinds)
        for place, stage in enumerate(cuts.stages, 1)
    )
    stated = {n: v for n, v in cells.items() if not _open(v) and n not in OF_CUTS}
    if "recompute" not in stated:
        most = max(found.recompute.values(), key=_recomputed)
        kind, _, count = most.partition(":")
        stated |= {"recompute": kind, "recompute_layers": int(count) if count else None}
        comments = (*comments, f"recompute was not stated: {most} is the least that is predicted to fit on all kinds")
    return {**stated, **layout, "gpu": biggest, "n_gpus": found.n_gpus}, (
        *comments,
        "the hosts must be listed so that ranks fall on these GPUs: stage by stage, tensor parallelism innermost",
    )


def evaluate_mixed(records: Sequence[Mapping[str, str]], context: Context) -> list[dict[str, Any]]:
    """Predicted columns of rows that state a plan: the cells of a training row with `stages` in place of a layout."""
    found = []
    own = {"stages", "micro_batches", "between_gbps", "layout", *OF_CUTS}
    for record in records:
        try:
            stages = (record.get("stages") or "").strip()
            if not stages:
                raise UsageError("stages must be stated, such as 16:a100-sxm-80gbx4 | 16:h100-sxm-80gbx4")
            cells, problems = parse_row({n: v for n, v in record.items() if n not in own})
            if problems:
                raise UsageError(*problems)
            between = (record.get("between_gbps") or "").strip()
            step = stated_step(
                {n: v for n, v in cells.items() if v is not None},
                context,
                stages=stages,
                micro_batches=(record.get("micro_batches") or "").strip() or None,
                between_gbps=float(between) if between else None,
            )
            row = mixed_row(step)
            found.append({**{name: row.get(name, "") for name in KINDS["mixed"]}, "pred_error": ""})
        except (GpucalcError, ValueError) as error:
            found.append({**dict.fromkeys(KINDS["mixed"], ""), "pred_error": str(error)})
    return found
