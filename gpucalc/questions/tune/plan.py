"""The answers of `gpucalc tune`: layouts of a fine-tuning job, or splits of the GPUs of a reinforcement learning step.

Every number is that of the training and the serving estimate; nothing is estimated a second time here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.core.units import GIB
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import Job, fit_of, predict, resolve
from gpucalc.jobs.tuning import quantisation_of
from gpucalc.layouts.label import layout_label
from gpucalc.questions.tune.policy import Policy, estimate_policy, with_split
from gpucalc.questions.tune.preference import preference_ledger, preference_row

MOST_SEQUENCES = 4096
MOST_TOKENS = 1 << 22
SEQUENCE_STEP = 256
ORDER = {"fits": 0, "risky": 1, "oom": 2}
DEFAULT_FRAMEWORK = "HF Trainer + PEFT"


@dataclass(frozen=True)
class Answer:
    """One row of the answer, and the ledger that explains it."""

    row: dict[str, Any]
    job: Job
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def supervised_cells(method: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of the training step of a supervised or preference method."""
    base = "full" if method in {"sft", "full"} else method
    found = {"framework": DEFAULT_FRAMEWORK, **cells}
    if method == "dpo":
        # Adapters where a rank or targets are stated, the whole model where not.
        wanted = (
            "qlora" if cells.get("quantisation") else "lora" if {"lora_rank", "lora_targets"} & set(cells) else "full"
        )
        base = cells.get("method") or wanted
    found["method"] = base
    return found


def layouts(cells: Mapping[str, Any], context: Context) -> list[dict[str, Any]]:
    """Layouts to try where none is stated: weights on every GPU or sharded, with tensor parallelism inside a node."""
    if any(name in cells for name in ("tp", "pp", "dp", "zero_stage")):
        return [dict(cells)]
    job = resolve({**cells, "zero_stage": 0, "global_batch": None}, context)
    count, node = job.cluster.n_gpus, job.cluster.gpus_per_node
    found = []
    tp = 1
    while tp <= min(count, node, 8):
        if count % tp == 0 and job.model.heads % tp == 0:
            # Adapters have few gradients: sharding them alone (stages 1, 2) saves next to nothing.
            stages = (0,) if count == tp else (0, 3) if job.cells["method"] != "full" else (1, 3)
            found += [{**cells, "tp": tp, "dp": count // tp, "zero_stage": stage} for stage in stages]
        tp *= 2
    return found


def sharding_text(job: Job) -> str:
    """Whether the weights lie whole on each GPU.

    The frozen weights of adapter methods are told apart from those that train.
    """
    cells = job.cells
    kind = "weights" if cells["method"] == "full" else "frozen weights"
    ranks = cells["dp"] * cells["cp"]
    parts = cells["tp"] * cells["pp"]
    cut = f", each cut over {parts} GPUs by tp and pp" if parts > 1 else ""
    if ranks == 1:
        return f"one copy of the {kind}{cut}"
    if cells["zero_stage"] >= 3:
        return f"{kind} sharded over {cells.get('shard_group') or ranks} GPUs{cut}"
    return f"{kind} replicated on {ranks} GPUs{cut}"


def supervised(method: str, cells: Mapping[str, Any], context: Context, extra: Mapping[str, Any]) -> list[Answer]:
    """The layouts of a supervised or preference job, those that fit first, the fastest first."""
    base = supervised_cells(method, cells)
    problems: list[str] = []
    jobs: list[Job] = []
    for one in layouts(base, context):
        try:
            jobs.append(resolve(_batched(one), context))
        except UsageError as error:
            problems.extend(error.problems)
    if not jobs:
        raise UsageError(*dict.fromkeys(problems))
    found = [_answer(method, job, row, extra) for job, row in zip(jobs, predict(jobs), strict=True)]
    # Replicas multiply the batch where none is stated, so rates are compared and not steps.
    found.sort(key=lambda a: (ORDER[a.row["pred_fit"]], -a.row["pred_tokens_per_s_per_gpu"]))
    best = found[0]
    found[0] = dataclasses.replace(best, row={**best.row, **largest(method, best.job, context, extra)})
    return found


def _batched(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells with a global batch of one micro-batch per replica where none is stated; stated ones are kept."""
    return {name: value for name, value in cells.items() if value is not None}


def _answer(method: str, job: Job, row: Mapping[str, Any], extra: Mapping[str, Any], trace: bool = False) -> Answer:
    cells = job.cells
    names = ("pred_fit", "pred_peak_mem_gib", "pred_step_time_s", "pred_tokens_per_s_per_gpu", "pred_recompute")
    label = layout_label(job.cells, job.model.experts)
    shown = {"layout": label, **{name: row[name] for name in names}, "sharding": sharding_text(job)}
    ledgers: dict[str, Ledger] = {}
    if method == "dpo":
        precomputed = bool(extra.get("precomputed_reference"))
        step, training = preference_ledger(job, precomputed=precomputed, trace=trace)
        ledgers = {"step": step, "update": training}
        shown |= {n: v for n, v in preference_row(job, row, ledgers=(step, training)).items() if n in shown}
    if extra.get("sample_tokens"):
        share = min(1.0, float(extra["sample_tokens"]) / cells["seq_len"])
        shown["pred_tokens_per_s_per_gpu"] *= share
    return Answer(shown, job, ledgers)


def largest(method: str, job: Job, context: Context, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The largest micro-batch at this sequence, and the longest sequence at this micro-batch, that fit.

    All layers are recomputed for it unless the job states otherwise.
    """
    cells = {n: v for n, v in job.cells.items() if n != "vpp" or v > 1}
    cells.setdefault("recompute", "full")
    step = 2 if method == "dpo" else 1

    def fits(trials: Sequence[Mapping[str, Any]]) -> list[bool]:
        found = [resolve({**cells, **trial}, context) for trial in trials]
        rows = predict(found)
        return [_answer(method, j, r, extra).row["pred_fit"] == "fits" for j, r in zip(found, rows, strict=True)]

    def batch(count: int) -> dict[str, Any]:
        return {"micro_batch": count, "global_batch": count * cells["dp"]}

    cp = cells["cp"]
    unit = SEQUENCE_STEP * cp
    # As long as the model takes, but no shorter than what is asked for.
    longest = min(MOST_TOKENS, max(job.model.max_seq_len, cells["seq_len"]) if job.model.max_seq_len else MOST_TOKENS)
    micro = _most(lambda n: batch(n * step), fits, MOST_SEQUENCES // step)
    sequence = _most(lambda n: {"seq_len": n * unit}, fits, max(1, longest // unit))
    return {"largest_micro_batch": micro * step or None, "largest_seq_len": sequence * unit or None}


def _most(trial: Any, fits: Any, limit: int) -> int:
    """The largest count up to `limit` that fits: doubling, then the gap in eighths."""
    low, high = 0, 1
    doubled = []
    while high <= limit:
        doubled.append(high)
        high *= 2
    for count, good in zip(doubled, fits([trial(n) for n in doubled]), strict=True):
        if not good:
            break
        low = count
    top = min(2 * low, limit + 1)
    while low and top - low > 1:
        between = sorted({low + (top - low) * i // 8 for i in range(1, 8)} - {low, top})
        answers = fits([trial(n) for n in between])
        good = [n for n, ok in zip(between, answers, strict=True) if ok]
        bad = [n for n, ok in zip(between, answers, strict=True) if not ok]
        low = max([low, *good])
        top = min([top, *[n for n in bad if n > low]])
    return low


def splits(policy: Policy) -> list[Policy]:
    """The same step colocated, and with one to seven eighths of the GPUs generating."""
    if policy.generation_gpus or policy.n_gpus == 1:
        return [policy]
    eighths = sorted({policy.n_gpus * i // 8 for i in range(1, 8)} - {0, policy.n_gpus})
    return [policy, *[with_split(policy, count) for count in eighths]]


def reinforced(policy: Policy, context: Context, trace: bool = False) -> list[Answer]:
    """The splits of the GPUs of a step, those that fit first, the fastest first."""
    found: list[Answer] = []
    problems: list[str] = []
    for one in splits(policy):
        try:
            ledger, training, job = estimate_policy(one, context, trace=trace)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        found.append(_policy_answer(one, ledger, training, job))
    if not found:
        raise UsageError(*dict.fromkeys(problems))
    found.sort(key=lambda a: (ORDER[a.row["pred_fit"]], a.row["pred_step_time_s"]))
    return found


def one_split(policy: Policy, context: Context) -> Answer:
    """The answer of a step whose split of the GPUs is stated."""
    ledger, training, job = estimate_policy(policy, context)
    return _policy_answer(policy, ledger, training, job)


def _policy_answer(policy: Policy, ledger: Ledger, training: Ledger, job: Job) -> Answer:
    def at(path: str) -> float:
        return float(ledger[path]) if path in ledger else 0.0

    step = at("time/step")
    tokens = policy.rollouts * (policy.prompt + policy.mean_response)
    capacity = job.columns["usable_bytes"]
    extra = at("memory/frozen") + at("memory/critic")
    fill = (float(training["memory/raw"]) + extra) / float(training["memory/capacity"])
    fit = fit_of(max(fill, at("memory/engine") / capacity * 0.9)) if at("generation/holds") >= 1 else "oom"
    row = {
        "split": f"{policy.generation_gpus} generate, {policy.training_gpus} train"
        if policy.generation_gpus
        else "colocated",
        "generation_gpus": policy.engine_gpus,
        "training_gpus": policy.training_gpus,
        "pred_fit": fit,
        "pred_step_time_s": step,
        "generation_s": at("time/generation"),
        "tail_s": at("generation/tail"),
        "scoring_s": at("time/log-probabilities") + at("time/reference") + at("time/reward"),
        "update_s": at("time/update") + at("time/critic"),
        "sync_s": at("time/sync"),
        "controller_s": float(ledger.columns["driver_seconds"]),
        "pred_tokens_per_s_per_gpu": tokens / step / policy.n_gpus,
        "pred_peak_mem_gib": at("memory/total") / GIB,
        "update_gib": at("memory/update") / GIB,
        "engine_gib": at("memory/engine") / GIB,
        "layout": layout_label(job.cells, job.model.experts),
    }
    return Answer(row, job, {"step": ledger, "update": training})


def summary(method: str, answers: Sequence[Answer]) -> list[str]:
    """What the answer says, in sentences."""
    best = answers[0]
    row, job = best.row, best.job
    if "split" in row:
        if row["pred_fit"] == "oom":
            return [_none_fits(answers)]
        other = next((a for a in answers[1:] if a.row["pred_fit"] != "oom"), None)
        ahead = next((a for a in answers[1:] if a.row["pred_fit"] == "risky" and _sooner(a.row, row)), None)
        lines = [
            f"Fastest split{' that fits' if ahead else ''}: {row['split']}; a step takes "
            f"{row['pred_step_time_s']:.1f} s, of which generation "
            f"{row['generation_s']:.1f} s (its tail {row['tail_s']:.1f} s), log-probabilities "
            f"{row['scoring_s']:.1f} s, "
            f"update {row['update_s']:.1f} s, weight synchronisation {row['sync_s']:.1f} s, "
            f"the controller {row['controller_s']:.1f} s."
        ]
        if ahead:
            lines.append(
                f"Faster, but it may or may not fit: {ahead.row['split']}, {ahead.row['pred_step_time_s']:.1f} s with "
                f"{ahead.row['pred_peak_mem_gib']:.1f} GiB on the fullest GPU."
            )
        elif other:
            lines.append(f"Next: {other.row['split']}, {other.row['pred_step_time_s']:.1f} s.")
        return lines
    base = quantisation_of(job.cells) if job.cells["method"] != "full" else ""
    stored = f", the base stored as {base}" if base not in {"", "none"} else ""
    verdict = {"fits": "fits", "risky": "may or may not fit", "oom": "does not fit"}[row["pred_fit"]]
    lines = [
        f"{job.model.name}, {method}: {verdict} with {row['pred_peak_mem_gib']:.1f} GiB on the fullest GPU; "
        f"{row['sharding']}{stored}."
    ]
    if row.get("largest_micro_batch"):
        longest = row["largest_seq_len"] or 0
        whole = ", as many as the model takes" if job.model.max_seq_len and longest >= job.model.max_seq_len else ""
        recomputed = "" if job.cells.get("recompute") else " Both with all layers recomputed."
        lines.append(
            f"Largest micro-batch at {job.cells['seq_len']:,} tokens: {row['largest_micro_batch']:,}; longest sequence "
            f"at micro-batch {job.cells['micro_batch']}: {longest:,} tokens{whole}.{recomputed}"
        )
    return lines


def _sooner(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["pred_step_time_s"] < other["pred_step_time_s"])


def _none_fits(answers: Sequence[Answer]) -> str:
    """What the least split needs, what a GPU has, and what makes room."""
    best = min(answers, key=lambda a: a.row["pred_peak_mem_gib"])
    row, job = best.row, best.job
    have = float(job.columns["usable_bytes"]) / GIB
    side = "the update" if row["update_gib"] >= row["engine_gib"] else "the engine"
    return (
        f"No split fits: {row['split']}, the least, takes {row['pred_peak_mem_gib']:.1f} GiB on the fullest GPU, of "
        f"which {side} {max(row['update_gib'], row['engine_gib']):.1f}, and a {job.cluster.device.key} has {have:.1f}; "
        "more GPUs, --layout with tensor, pipeline or expert parallelism, --recompute full or --offload make room."
    )
