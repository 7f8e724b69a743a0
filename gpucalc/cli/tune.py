"""`gpucalc tune`: fine-tuning, preference optimisation and reinforcement learning."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.cli.commands import command
from gpucalc.cli.fit import ASSERTIONS, assert_option
from gpucalc.cli.job_options import JobOptions, require
from gpucalc.cli.option import cell, option, options_of
from gpucalc.cli.output import OutputOptions, emit_document, to_stderr
from gpucalc.cli.values import positive_integer
from gpucalc.core.columns import Column
from gpucalc.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpucalc.jobs.context import Context
    from gpucalc.launch.target import Target
    from gpucalc.questions.tune.plan import Answer
    from gpucalc.questions.tune.policy import Policy

METHODS = ("sft", "lora", "qlora", "dpo", "ppo", "grpo")
SUPERVISED_OUT = (
    *("layout", "pred_fit", "pred_peak_mem_gib", "pred_step_time_s", "pred_tokens_per_s_per_gpu", "pred_recompute"),
    *("largest_micro_batch", "largest_seq_len", "sharding"),
)
POLICY_OUT = (
    *("split", "pred_fit", "pred_step_time_s", "generation_s", "tail_s", "scoring_s", "update_s", "sync_s"),
    "controller_s",
    *("pred_tokens_per_s_per_gpu", "pred_peak_mem_gib", "update_gib", "engine_gib", "layout"),
)


def _seconds(name: str, heading: str) -> Column:
    return Column(name, "number", "", unit="s", heading=heading, scale="s")


_HEADINGS = {
    "largest_micro_batch": Column("largest_micro_batch", "int", "", heading="largest micro-batch"),
    "largest_seq_len": Column("largest_seq_len", "int", "", unit="tokens", heading="longest sequence"),
    "sharding": Column("sharding", "text", "", heading="weights"),
    "split": Column("split", "text", "", heading="GPUs"),
    "generation_s": _seconds("generation_s", "generation"),
    "tail_s": _seconds("tail_s", "of it tail"),
    "scoring_s": _seconds("scoring_s", "log-probs"),
    "update_s": _seconds("update_s", "update"),
    "sync_s": _seconds("sync_s", "sync"),
    "controller_s": _seconds("controller_s", "controller"),
    "update_gib": Column("update_gib", "number", "", unit="GiB", heading="training", decimals=1),
    "engine_gib": Column("engine_gib", "number", "", unit="GiB", heading="engine", decimals=1),
}


@dataclass(frozen=True)
class TuneOptions(JobOptions):
    """A fine-tuning job: the training job and what its adapters are."""

    lora_rank: str | None = cell("--lora-rank N", "Rank of the adapters; 16.")
    lora_targets: str | None = cell("--lora-targets WHAT", "qv, attention, all, or q, k, v, o, mlp joined by +.")
    optimizer: str | None = cell("--optimizer NAME", "adam, adam8bit, paged-adam8bit, sgd …")


@dataclass(frozen=True)
class PolicyOptions:
    """What only ppo and grpo have: responses that are generated."""

    rollouts: int | None = option("--rollouts N", "ppo, grpo: responses of one step.", read=positive_integer)
    samples: int | None = option("--samples N", "grpo: responses of one prompt; 8.", read=positive_integer)
    prompt: int | None = option("--prompt N", "Mean tokens of a prompt; 256.", read=positive_integer)
    response: int | None = option("--response N", "Mean tokens of a response.", read=positive_integer)
    max_response: int | None = option(
        "--max-response N", "Longest response; --seq-len less the prompt.", read=positive_integer
    )
    generation_gpus: int | None = option(
        "--generation-gpus N", "GPUs that only generate; splits are ranked without.", read=positive_integer
    )

    def stated(self) -> dict[str, int]:
        """The numbers that are stated."""
        return {name: getattr(self, name) for name in options_of(self) if getattr(self, name) is not None}


@command(group="Serve and tune")
def tune(
    *,
    job: TuneOptions,
    method: str | None = option("--method NAME", f"{', '.join(METHODS)}; sft trains all weights.", choices=METHODS),
    sample_tokens: int | None = option(
        "--sample-tokens N", "Mean tokens of padded samples; packed without.", read=positive_integer
    ),
    precomputed: bool = option("--precomputed-reference", "dpo: log-probabilities of the reference are given."),
    policy: PolicyOptions,
    explained: bool = option("--explain", "The first row term by term, with citations."),
    asserted: str | None = assert_option(),
    top: int = option("--top N", "Rows to print.", default="8", read=positive_integer),
    output: OutputOptions,
) -> int:
    """Say what fine-tuning takes: whether it fits, the largest micro-batch and sequence, time and tokens per second.

    sft, lora, qlora and dpo rank layouts; ppo and grpo rank splits of the GPUs between generation and training.

    \b
    gpucalc tune llama-3.1-8b --method lora --gpu a100-sxm-80gb --gpus 1 --seq-len 4096 --micro-batch 2
    gpucalc tune qwen2.5-7b --method grpo --gpu h100-sxm-80gb --gpus 32 --rollouts 1024 --response 2000 --seq-len 8192
    """
    if method is None:
        raise UsageError(f"missing: --method {', '.join(METHODS)}")
    step: dict[str, Any] = {}
    if method in {"ppo", "grpo"}:
        step, job = _step_settings(method, job, policy.stated())
    cells = job.cells()
    require(cells, "model", "gpu", "n_gpus", "seq_len")
    context = job.context()
    numbers = policy.stated()

    from gpucalc.questions.tune import plan as planning

    if method in {"ppo", "grpo"}:
        answers = planning.reinforced(_policy(method, cells, {**step, **numbers}), context, trace=explained)
        names: tuple[str, ...] = POLICY_OUT
    else:
        if numbers:
            flags = ", ".join(options_of(policy)[name].name for name in numbers)
            raise UsageError(f"{flags} belong to --method ppo or grpo, not {method}")
        if precomputed and method != "dpo":
            raise UsageError(f"--precomputed-reference belongs to --method dpo, not {method}")
        if method == "dpo" and (cells.get("micro_batch") or 2) % 2:
            raise UsageError(
                f"--micro-batch counts sequences and is {cells['micro_batch']}; dpo takes a chosen and a rejected "
                f"sequence, such as {cells['micro_batch'] + 1}"
            )
        if method == "dpo":
            cells.setdefault("micro_batch", 2)
        extra: dict[str, Any] = {"precomputed_reference": precomputed}
        if sample_tokens is not None:
            extra["sample_tokens"] = sample_tokens
        answers = planning.supervised(method, cells, context, extra)
        names = SUPERVISED_OUT
    if explained:
        _explain(method, answers, context, output)
    else:
        _write(method, answers, names, top, output)
    good = ASSERTIONS[asserted or "risky"]
    return ExitStatus.OK if answers[0].row["pred_fit"] in good else ExitStatus.INFEASIBLE


def _policy(method: str, cells: dict[str, Any], numbers: Mapping[str, Any]) -> Policy:
    from gpucalc.questions.tune.policy_cells import make_policy

    return make_policy(method, {name: value for name, value in cells.items() if name != "micro_batch"}, numbers)


def _step_settings(method: str, job: TuneOptions, stated: Mapping[str, int]) -> tuple[dict[str, Any], TuneOptions]:
    """The numbers of a step among --set, and the job without them."""
    from dataclasses import replace

    from gpucalc.questions.tune.policy_cells import split_settings

    step, others = split_settings(job.settings)
    options = {"algorithm": method, **stated}
    if wrong := [name for name, value in options.items() if step.get(name, value) != value]:
        flags = ", ".join(
            f"--set {name}={step[name]} contradicts {name}={options[name]} of an option" for name in wrong
        )
        raise UsageError(flags)
    return step, replace(job, settings=others)


def export_policy(target: Target, job: JobOptions) -> None:
    """Write a step of grpo, or of ppo, as the settings of a trainer; `--set` states its numbers beside the columns."""
    from dataclasses import replace

    from gpucalc.launch import export
    from gpucalc.launch.policy import make_policy_launch
    from gpucalc.questions.tune.policy_cells import split_settings

    step, others = split_settings(job.settings)
    cells = replace(job, settings=others).whole()
    if job.layout is None and not job.piped and "tp" not in cells:
        raise UsageError("which layout of the update? write --layout with a label, such as dp8-mbs2-zero3-full")
    require(cells, "model", "gpu", "n_gpus", "seq_len")
    context = job.context()
    launch = make_policy_launch(step.pop("algorithm", "grpo"), cells, step, context, target.profile)
    text, notes = export(launch, target)
    sys.stdout.write(text)
    sys.stdout.flush()
    to_stderr(*(f"note: {line}" for line in (*launch.update.warnings, *notes)))


def _write(method: str, answers: Sequence[Answer], names: tuple[str, ...], top: int, output: OutputOptions) -> None:
    from gpucalc.questions.tune import plan as planning

    rows = [{name: answer.row.get(name) for name in names} for answer in answers[:top]]
    summary = planning.summary(method, answers)
    job = answers[0].job
    if output.json:
        shown = {n: job.cells.get(n) for n in ("model", "gpu", "n_gpus", "seq_len", "micro_batch", "global_batch")}
        document = {"method": method, **shown}
        emit_document({"job": document, "rows": [a.row for a in answers[:top]], "summary": summary})
        return
    if output.for_people:
        from gpucalc.core.columns import COLUMNS

        kept = [n for n in names if any(row.get(n) not in (None, "") for row in rows)]
        output.table([_HEADINGS.get(n) or COLUMNS.get(n) or n for n in kept], rows)
    else:
        output.rows(names, rows)
    sys.stdout.flush()
    to_stderr(*summary, *job.remarks)


def _explain(method: str, answers: Sequence[Answer], context: Context, output: OutputOptions) -> None:
    """The first row term by term."""
    from gpucalc.questions.tune import plan as planning

    summary = planning.summary(method, answers)
    facts, terms = _explanation(method, answers[0], context)
    if output.json:
        emit_document({"facts": dict(facts), "terms": terms, "summary": summary})
    elif output.form == "table" and output.columns is None:
        from gpucalc.output.explain import tree

        sys.stdout.write(tree(facts, terms, summary) + "\n")
    else:
        output.rows(("path", "value", "unit", "formula", "arguments", "citation"), terms)


def _explanation(method: str, answer: Answer, context: Context) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Facts and terms of one answer: the step's own terms first, then those of its update."""
    from gpucalc.questions.explain import explain, ledger_tree

    cells = {n: v for n, v in answer.job.cells.items() if n != "etp" or answer.job.model.experts}
    found = explain(cells, context)
    step = answer.ledgers.get("step")
    of_update = {"GPU", "fit"} if "split" in answer.row else set()
    facts = [("method", method), *[(f"{n} of the update" if n in of_update else n, v) for n, v in found.facts]]
    terms = found.terms
    if step is not None:
        own = ledger_tree(step, context.db, ("time/step", "memory/total"))
        terms = own + [{**t, "path": f"update/{t['path']}"} for t in terms]
    return facts, terms
