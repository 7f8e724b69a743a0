"""What a step of ppo or grpo states beside its training job: columns, defaults, and the step they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucalc.core.columns import Column, parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.questions.tune.policy import Policy
from gpucalc.questions.tune.policy_rows import DEFAULT_PROMPT, SAMPLES

POLICY_COLUMNS = (
    Column("algorithm", "choice", "how the policy is improved", "must be stated", choices=("ppo", "grpo")),
    Column("rollouts", "int", "responses of one step", "64 prompts or one a GPU", minimum=1),
    Column("samples", "int", "responses of one prompt", "8 with grpo, 1 with ppo", minimum=1),
    Column("prompt", "int", "mean tokens of a prompt", "256, at most a quarter of the sequence", minimum=1),
    Column("response", "int", "mean tokens of a response", "a quarter of the longest", minimum=1),
    Column("max_response", "int", "tokens of the longest response", "the sequence less the prompt", minimum=1),
    Column("generation_gpus", "int", "GPUs that only generate; 0 generates on those that train", "0", minimum=0),
    Column("engine", "choice", "engine that generates", "vllm", choices=("vllm", "sglang", "trtllm")),
    Column("engine_tp", "int", "tensor parallel ranks of one engine", "the least that leaves it a cache", minimum=1),
    Column("engine_pp", "int", "pipeline stages of one engine", "1", minimum=1),
    Column("memory_share", "share", "of a GPU's memory that an engine takes", "0.6 where it also trains, 0.9 apart"),
    Column("reference", "flag", "a frozen reference scores each response", "yes"),
    Column("reward", "flag", "a reward model as large as the actor scores each response", "yes with ppo"),
)
POLICY: dict[str, Column] = {column.name: column for column in POLICY_COLUMNS}


def parse_policy(pairs: Mapping[str, str]) -> dict[str, Any]:
    """The typed cells of a step; UsageError with every wrong one."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in pairs.items():
        try:
            found[name] = parse_cell(POLICY[name], text)
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(*problems)
    return {name: value for name, value in found.items() if value is not None}


def split_settings(settings: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The typed cells of a step among KEY=VALUE pairs, and the pairs that are of other columns."""
    pairs = [(pair, *(part.strip() for part in pair.partition("=")[::2])) for pair in settings]
    step = parse_policy({name: value for _, name, value in pairs if name in POLICY})
    return step, tuple(pair for pair, name, _ in pairs if name not in POLICY)


def make_policy(method: str, cells: Mapping[str, Any], step: Mapping[str, Any]) -> Policy:
    """The step of a method: cells of the training job (with n_gpus and seq_len) and the numbers of `POLICY`.

    Raises UsageError where the lengths contradict each other.
    """
    cells = dict(cells)
    n_gpus, longest = cells.pop("n_gpus"), cells.pop("seq_len")
    prompt = step.get("prompt", min(DEFAULT_PROMPT, max(1, longest // 4)))
    if prompt >= longest:
        raise UsageError(
            f"--prompt {prompt} leaves nothing of --seq-len {longest} for a response; --prompt {longest // 2} would"
        )
    most = step.get("max_response", longest - prompt)
    mean = step.get("response", max(1, most // 4))
    if mean > most:
        raise UsageError(
            f"--response {mean} is a mean above the longest response of {most}; --response {most} is the most"
        )
    if step.get("memory_share") == 0:
        raise UsageError("memory_share is 0, which leaves an engine nothing; state a share such as 0.5")
    samples = step.get("samples", SAMPLES if method == "grpo" else 1)
    batch = cells.pop("global_batch", 0)
    cells.setdefault("framework", "FSDP")
    if {"lora_rank", "lora_targets"} & {name for name, value in cells.items() if value is not None}:
        cells.setdefault("method", "lora")
    critic = 1.0 if method == "ppo" else 0.0
    return Policy(
        method,
        cells,
        n_gpus,
        step.get("rollouts", max(n_gpus, 64) * samples),
        samples,
        prompt,
        float(mean),
        most,
        batch,
        step.get("generation_gpus", 0),
        step.get("engine_tp", 0),
        step.get("engine_pp", 1),
        step.get("engine", "vllm"),
        critic_ratio=critic,
        reward_ratio=float(step.get("reward", method == "ppo")),
        reference=step.get("reference", True),
        engine_share=step.get("memory_share", 0.0),
    )
