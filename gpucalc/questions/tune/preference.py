"""Direct preference optimisation: a training step on pairs, beside a reference that only reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.core.ledger import Ledger
from gpucalc.jobs.training import Job, fit_of, stack


def preference_ledger(job: Job, *, precomputed: bool = False, trace: bool = False) -> tuple[Ledger, Ledger]:
    """The ledger of a preference step and that of its update; the batch counts sequences, two to a pair.

    precomputed: the log-probabilities of the reference are in the data, so that it is neither held nor run.
    """
    from gpucalc.estimate import posttraining
    from gpucalc.estimate.training import estimate_training

    training = estimate_training(stack([job]), trace=trace)
    adapters = job.columns["adapters"] > 0
    cells = job.cells
    sharded = cells["dp"] * cells["cp"] if cells["zero_stage"] >= 3 else 1
    ledger = posttraining.new_ledger(
        {
            "reference_passes": 0.0 if precomputed else 1.0,
            # With adapters the reference is the base with its adapters switched off.
            "frozen_models": 0.0 if precomputed or adapters else 1.0,
            "parameters": float(job.model.parameters_total),
            "weight_bytes": 2.0,
            "reference_shards": float(sharded * cells["tp"] * cells["pp"]),
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
        "pred_tokens_per_s_per_gpu": row["pred_tokens_per_s_per_gpu"] * row["pred_step_time_s"] / seconds,
        "pred_peak_mem_gib": row["pred_peak_mem_gib"] + reference / 2**30,
        "pred_fit": fit_of(fill),
    }
