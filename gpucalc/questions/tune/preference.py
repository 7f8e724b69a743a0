"""Direct preference optimisation: a training step on pairs, beside a reference that only reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.core.ledger import Ledger
from gpucalc.core.units import GIB
from gpucalc.formulas.preference import frozen_models_memory
from gpucalc.jobs.training import Job, beside, fit_of, recompute_text, stack


def preference_ledger(job: Job, *, precomputed: bool = False, trace: bool = False) -> tuple[Ledger, Ledger]:
    """The ledger of a preference step and that of its update; the batch counts sequences, two to a pair.

    precomputed: the log-probabilities of the reference are in the data, so that it is neither held nor run.
    """
    from gpucalc.estimate import posttraining
    from gpucalc.estimate.training import estimate_training

    cells = job.cells
    sharded = cells["dp"] * cells["cp"] if cells["zero_stage"] >= 3 else 1
    # With adapters the reference is the base with its adapters switched off.
    frozen = 0.0 if precomputed or job.columns["adapters"] > 0 else 1.0
    shards = float(sharded * cells["tp"] * cells["pp"])
    parameters, weight_bytes = float(job.model.parameters_total), 2.0
    resting = float(frozen_models_memory(parameters, weight_bytes, frozen, shards))
    training = estimate_training(stack([beside(job, resting)]), trace=trace)
    ledger = posttraining.new_ledger(
        {
            "reference_passes": 0.0 if precomputed else 1.0,
            "frozen_models": frozen,
            "parameters": parameters,
            "weight_bytes": weight_bytes,
            "reference_shards": shards,
        },
        trace,
    )
    posttraining.add_preference(ledger, training)
    return ledger, training


def preference_row(
    job: Job, row: Mapping[str, Any], ledgers: tuple[Ledger, Ledger] | None = None, *, precomputed: bool = False
) -> dict[str, Any]:
    """The predictions of a training step as those of the preference step around it."""
    step, training = ledgers or preference_ledger(job, precomputed=precomputed)
    seconds, reference = float(step["time/step"]), float(step["memory/frozen"])
    fill = (float(training["memory/raw"]) + reference) / float(training["memory/capacity"])
    return {
        **row,
        "pred_step_time_s": seconds,
        "pred_tokens_per_s_per_gpu": float(training["metric/tokens_per_s_per_gpu"] * training["time/step"]) / seconds,
        "pred_peak_mem_gib": (float(training["memory/total"]) + reference) / GIB,
        "pred_recompute": recompute_text(
            job.cells.get("recompute"),
            float(training["symbol/full_share"]),
            float(training["stage/layers/second"]),
        ),
        "pred_fit": fit_of(fill),
    }
