"""`gpucalc tune`: fine-tuning, preference optimisation and reinforcement learning."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli import options as opt
from gpucalc.cli.fit import word_of
from gpucalc.cli.output import emit_document, emit_rows, talk
from gpucalc.core.columns import Column
from gpucalc.core.errors import ExitStatus, UsageError
from gpucalc.jobs.context import Context

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
ONLY_POLICY = {
    "rollouts": "--rollouts",
    "samples": "--samples",
    "prompt": "--prompt",
    "response": "--response",
    "max_response": "--max-response",
    "generation_gpus": "--generation-gpus",
}
Text = Optional[str]


def tune(
    model: opt.Model = None,
    method: Annotated[
        Text, typer.Option("--method", metavar="NAME", help=f"{', '.join(METHODS)}; sft trains all weights.")
    ] = None,
    gpu: opt.Gpu = None,
    gpus: opt.Gpus = None,
    seq_len: opt.SeqLen = None,
    micro_batch: opt.MicroBatch = None,
    global_batch: opt.GlobalBatch = None,
    precision: opt.Precision = None,
    lora_rank: Annotated[Text, typer.Option("--lora-rank", metavar="N", help="Rank of the adapters; 16.")] = None,
    lora_targets: Annotated[
        Text, typer.Option("--lora-targets", metavar="WHAT", help="qv, attention, all, or q, k, v, o, mlp joined by +.")
    ] = None,
    optimizer: Annotated[
        Text, typer.Option("--optimizer", metavar="NAME", help="adam, adam8bit, paged-adam8bit, sgd …")
    ] = None,
    recompute: opt.Recompute = None,
    sample_tokens: Annotated[
        Text,
        typer.Option("--sample-tokens", metavar="N", help="Mean tokens of padded samples; packed without."),
    ] = None,
    precomputed: Annotated[
        bool, typer.Option("--precomputed-reference", help="dpo: log-probabilities of the reference are given.")
    ] = False,
    rollouts: Annotated[Text, typer.Option("--rollouts", metavar="N", help="ppo, grpo: responses of one step.")] = None,
    samples: Annotated[Text, typer.Option("--samples", metavar="N", help="grpo: responses of one prompt; 8.")] = None,
    prompt: Annotated[Text, typer.Option("--prompt", metavar="N", help="Mean tokens of a prompt; 256.")] = None,
    response: Annotated[Text, typer.Option("--response", metavar="N", help="Mean tokens of a response.")] = None,
    max_response: Annotated[
        Text, typer.Option("--max-response", metavar="N", help="Longest response; --seq-len less the prompt.")
    ] = None,
    generation_gpus: Annotated[
        Text, typer.Option("--generation-gpus", metavar="N", help="GPUs that only generate; splits are ranked without.")
    ] = None,
    layout: opt.LayoutLabel = None,
    settings: opt.Settings = None,
    explained: Annotated[bool, typer.Option("--explain", help="The first row term by term, with citations.")] = False,
    asserted: Annotated[
        Text, typer.Option("--assert", metavar="FIT", help="Status 3 unless it fits: fits, or risky too.")
    ] = None,
    gpus_per_node: opt.GpusPerNode = None,
    inter_node_gbps: opt.NetworkRate = None,
    form: opt.Format = "table",
    columns: opt.ColumnList = None,
    top: Annotated[str, typer.Option("--top", metavar="N", help="Rows to print.")] = "8",
    no_header: opt.NoHeader = False,
    db: opt.Databases = None,
) -> int:
    """Say what fine-tuning takes: whether it fits, the largest micro-batch and sequence, time and tokens per second.

    sft, lora, qlora and dpo rank layouts; ppo and grpo rank splits of the GPUs between generation and training.

    \b
    gpucalc tune llama-3.1-8b --method lora --gpu a100-sxm-80gb --gpus 1 --seq-len 4096 --micro-batch 2
    gpucalc tune qwen2.5-7b --method grpo --gpu h100-sxm-80gb --gpus 32 --rollouts 1024 --response 2000 --seq-len 8192
    """
    from gpucalc.layouts.label import label_cells

    form = opt.chosen_format(form)
    chosen = word_of("--method", method, METHODS)
    wanted = word_of("--assert", asserted, ("fits", "risky"))
    count = opt.positive_integer("--top", top)
    if chosen is None:
        raise UsageError(f"missing: --method {', '.join(METHODS)}")
    cells = opt.job_cells(
        {
            "model": model,
            "gpu": gpu,
            "n_gpus": gpus,
            "seq_len": seq_len,
            "micro_batch": micro_batch,
            "global_batch": global_batch,
            "precision": precision,
            "lora_rank": lora_rank,
            "lora_targets": lora_targets,
            "optimizer": optimizer,
            "recompute": recompute,
            "gpus_per_node": gpus_per_node,
            "inter_node_gbps_per_gpu": inter_node_gbps,
        },
        settings,
        label_cells(layout) if layout is not None else None,
    )
    opt.require(cells, "model", "gpu", "n_gpus", "seq_len")
    given = {
        "rollouts": rollouts,
        "samples": samples,
        "prompt": prompt,
        "response": response,
        "max_response": max_response,
        "generation_gpus": generation_gpus,
    }
    numbers = {n: opt.positive_integer(ONLY_POLICY[n], v) for n, v in given.items() if v is not None}
    database = opt.open_database(db)

    from gpucalc.questions.tune import plan as planning

    if chosen in {"ppo", "grpo"}:
        answers = planning.reinforced(_policy(chosen, cells, numbers), Context(database), trace=explained)
        names: tuple[str, ...] = POLICY_OUT
    else:
        if numbers:
            raise UsageError(
                f"{', '.join(ONLY_POLICY[n] for n in numbers)} belong to --method ppo or grpo, not {chosen}"
            )
        if precomputed and chosen != "dpo":
            raise UsageError(f"--precomputed-reference belongs to --method dpo, not {chosen}")
        if chosen == "dpo" and (cells.get("micro_batch") or 2) % 2:
            raise UsageError(
                f"--micro-batch is {cells['micro_batch']}; dpo takes a chosen and a rejected sequence, "
                f"such as {cells['micro_batch'] + 1}"
            )
        if chosen == "dpo":
            cells.setdefault("micro_batch", 2)
        extra: dict[str, Any] = {"precomputed_reference": precomputed}
        if sample_tokens is not None:
            extra["sample_tokens"] = opt.positive_integer("--sample-tokens", sample_tokens)
        answers = planning.supervised(chosen, cells, Context(database), extra)
        names = SUPERVISED_OUT
    _write(chosen, answers, names, count, form, columns, not no_header, explained, database)
    good = {"fits": ("fits",), "risky": ("fits", "risky"), None: ("fits", "risky")}[wanted]
    return ExitStatus.OK if answers[0].row["pred_fit"] in good else ExitStatus.INFEASIBLE


def _policy(method: str, cells: dict[str, Any], numbers: Mapping[str, int]) -> Any:
    from gpucalc.questions.tune.policy import Policy
    from gpucalc.questions.tune.policy_rows import DEFAULT_PROMPT, SAMPLES

    cells = dict(cells)
    n_gpus, longest = cells.pop("n_gpus"), cells.pop("seq_len")
    prompt = numbers.get("prompt", min(DEFAULT_PROMPT, max(1, longest // 4)))
    if prompt >= longest:
        raise UsageError(
            f"--prompt {prompt} leaves nothing of --seq-len {longest} for a response; --prompt {longest // 2} would"
        )
    most = numbers.get("max_response", longest - prompt)
    mean = numbers.get("response", max(1, most // 4))
    if mean > most:
        raise UsageError(
            f"--response {mean} is a mean above the longest response of {most}; --response {most} is the most"
        )
    samples = numbers.get("samples", SAMPLES if method == "grpo" else 1)
    batch = cells.pop("global_batch", 0)
    cells.pop("micro_batch", None)
    cells.setdefault("framework", "FSDP")
    critic = 1.0 if method == "ppo" else 0.0
    return Policy(
        method,
        cells,
        n_gpus,
        numbers.get("rollouts", max(n_gpus, 64) * samples),
        samples,
        prompt,
        float(mean),
        most,
        batch,
        numbers.get("generation_gpus", 0),
        critic_ratio=critic,
        reward_ratio=critic,
    )


def _write(
    method: str,
    answers: Sequence[Any],
    names: tuple[str, ...],
    count: int,
    form: str,
    columns: str | None,
    header: bool,
    explained: bool,
    db: Any,
) -> None:
    from gpucalc.questions.tune import plan as planning

    rows = [{name: answer.row.get(name) for name in names} for answer in answers[:count]]
    said = planning.summary(method, answers)
    if explained:
        facts, terms = _explanation(method, answers[0], db)
        if form == "json":
            emit_document({"facts": dict(facts), "terms": terms, "summary": said})
        elif form == "table" and columns is None:
            from gpucalc.output.explain import tree

            sys.stdout.write(tree(facts, terms, said) + "\n")
        else:
            emit_rows(form, ("path", "value", "unit", "formula", "arguments", "citation"), terms, columns, header)
        return
    if form == "json":
        job = answers[0].job
        shown = {n: job.cells.get(n) for n in ("model", "gpu", "n_gpus", "seq_len", "micro_batch", "global_batch")}
        emit_document({"job": {"method": method, **shown}, "rows": [a.row for a in answers[:count]], "summary": said})
        return
    if form in {"table", "md"} and columns is None:
        from gpucalc.core.columns import COLUMNS
        from gpucalc.output.table import table

        kept = [n for n in names if any(row.get(n) not in (None, "") for row in rows)]
        shown_columns = [_HEADINGS.get(n) or COLUMNS.get(n) or n for n in kept]
        sys.stdout.write(table(shown_columns, rows, markdown=form == "md") + "\n")
    else:
        emit_rows(form, names, rows, columns, header)
    sys.stdout.flush()
    talk(*said, *answers[0].job.warnings)


def _explanation(method: str, answer: Any, db: Any) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Facts and terms of one answer: the step's own terms first, then those of its update."""
    from gpucalc.questions.explain import explain, ledger_tree

    cells = {n: v for n, v in answer.job.cells.items() if n != "etp" or answer.job.model.experts}
    found = explain(cells, Context(db))
    step = answer.ledgers.get("step")
    of_update = {"GPU", "fit"} if "split" in answer.row else set()
    facts = [("method", method), *[(f"{n} of the update" if n in of_update else n, v) for n, v in found.facts]]
    terms = found.terms
    if step is not None:
        own = ledger_tree(step, db, ("time/step", "memory/total"))
        terms = own + [{**t, "path": f"update/{t['path']}"} for t in terms]
    return facts, terms
