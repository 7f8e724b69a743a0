"""Rows of post-training, predicted: supervised ones by the training estimate, the others phase by phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.units import GIB
from gpucalc.database.recipes import choose_recipe
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import Job, fit_of, predict, resolve
from gpucalc.questions.tune.preference import preference_row
from gpucalc.questions.tune.rows import PREFERENCE, SUPERVISED, Tuning, read_tuning

PREDICTIONS = ("pred_peak_mem_gib", "pred_tokens_per_s_per_gpu", "pred_step_time_s", "pred_fit", "pred_error")
ROUNDING = 8  # padded lengths are rounded up to a multiple


def padded_length(mean: float, micro_batch: int, longest: int) -> int:
    """Tokens to which the samples of a micro-batch are padded: its longest, for lengths spread like a data set's.

    >>> padded_length(110, 1, 1024), padded_length(110, 4, 1024)
    (112, 192)
    """
    spread = mean * (1 + 0.5 * math.log(max(micro_batch, 1)))
    return min(longest, ROUNDING * math.ceil(spread / ROUNDING))


def supervised_jobs(tuning: Tuning, context: Context) -> tuple[Job, Job]:
    """The job whose memory and the job whose time stand for a supervised row: the longest and the usual sample."""
    cells = dict(tuning.cells)
    if tuning.recipe.recompute_if_needed and "recompute" not in cells:
        fits = predict([resolve({**cells, "recompute": "none"}, context)])[0]["pred_fit"] == "fits"
        cells["recompute"] = "none" if fits else "full"
    if not tuning.mean_tokens:
        job = resolve(cells, context)
        return job, job
    longest = min(cells.get("seq_len") or tuning.longest_tokens, tuning.longest_tokens or cells.get("seq_len") or 1)
    usual = padded_length(tuning.mean_tokens, cells.get("micro_batch") or 1, longest)
    return resolve({**cells, "seq_len": longest}, context), resolve({**cells, "seq_len": usual}, context)


def evaluate_posttraining(records: Sequence[Mapping[str, str]], context: Context) -> list[dict[str, Any]]:
    """The pred_ columns of each record; a record with a mistake has them empty and `pred_error`."""
    results: list[dict[str, Any]] = [{} for _ in records]
    pairs: list[tuple[int, Tuning, Job, Job]] = []
    for place, record in enumerate(records):
        try:
            tuning = read_tuning(record, lambda text: choose_recipe(text, context.db))
            if tuning.algorithm in SUPERVISED or tuning.algorithm in PREFERENCE:
                pairs.append((place, tuning, *supervised_jobs(tuning, context)))
            else:
                results[place] = policy_row(tuning, context)
        except UsageError as error:
            results[place] = {**dict.fromkeys(PREDICTIONS, ""), "pred_error": "; ".join(error.problems)}
    rows = predict([job for _, _, *jobs in pairs for job in jobs])
    for index, (place, tuning, largest, usual) in enumerate(pairs):
        memory, time = rows[2 * index], rows[2 * index + 1]
        if tuning.algorithm in PREFERENCE:
            memory, time = preference_row(largest, memory), preference_row(usual, time)
        results[place] = supervised_row(tuning, largest, usual, memory, time)
    return results


def supervised_row(
    tuning: Tuning, largest: Job, usual: Job, memory: Mapping[str, Any], time: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer of a supervised row: memory of the longest sample, time of the usual one."""
    cells = usual.cells
    step = time["pred_step_time_s"]
    samples = cells["global_batch"]
    if tuning.per_micro_step:
        steps = samples / (cells["micro_batch"] * cells["dp"])
        step, samples = step / steps, samples / steps
    tokens = tuning.mean_tokens or cells["seq_len"]
    return {
        "pred_peak_mem_gib": memory["pred_peak_mem_gib"],
        "pred_tokens_per_s_per_gpu": samples * tokens / step / cells["n_gpus"],
        "pred_step_time_s": step,
        "pred_fit": memory["pred_fit"],
        "pred_error": "",
    }


def policy_row(tuning: Tuning, context: Context, constants: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The answer of a row that generates, scores and updates; `constants` replace the shipped ones."""
    import dataclasses

    from gpucalc.questions.tune.policy import estimate_policy
    from gpucalc.questions.tune.policy_rows import policy_of

    policy = policy_of(tuning)
    if constants is not None:
        policy = dataclasses.replace(policy, constants=constants)
    ledger, training, _ = estimate_policy(policy, context)
    step = float(ledger["time/step"])
    tokens = policy.rollouts * (policy.prompt + policy.mean_response)
    return {
        "pred_peak_mem_gib": float(ledger["memory/total"]) / GIB,
        "pred_tokens_per_s_per_gpu": tokens / step / policy.n_gpus,
        "pred_step_time_s": step,
        "pred_fit": fit_of(float(training["memory/fill"])) if float(ledger["generation/holds"]) >= 1 else "oom",
        "pred_error": "",
    }
