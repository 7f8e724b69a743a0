"""Rows of reinforcement learning: rollouts, lengths, split of the GPUs and layouts as published tables print them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.questions.tune.policy import PROMPT_SHARE, Policy, read_layout
from gpucalc.questions.tune.rows import Tuning, read_count

MEAN_SHARE = 0.15  # mean response over the longest, where a row states only that one
DEFAULT_PROMPT = 256
SAMPLES = 8  # responses of one prompt in group-relative methods
FRAMEWORKS = (("nemo", "Megatron-Core"), ("verl", "FSDP"), ("openrlhf", "DeepSpeed"))


def read_rollouts(text: str) -> dict[str, int]:
    """Responses of a step, of a prompt, and of one update.

    >>> read_rollouts("rollouts/step 2048, train gbs 512")
    {'rollouts': 2048, 'update_batch': 512}
    >>> read_rollouts("512 prompts x n=16, mini-batch 32")
    {'rollouts': 8192, 'samples': 16, 'update_batch': 512}
    """
    folded = text.casefold()
    found: dict[str, int] = {}
    direct = re.search(r"rollouts/step (\d+)", folded)
    prompts = re.search(r"(\d+) prompts(?: x n=(\d+))?", folded)
    if direct:
        found["rollouts"] = int(direct[1])
    elif prompts:
        samples = int(prompts[2] or 1)
        found = {"rollouts": int(prompts[1]) * samples, "samples": samples}
    batch = re.search(r"train gbs (\d+)", folded)
    mini = re.search(r"mini-batch (\d+)", folded)
    if batch:
        found["update_batch"] = int(batch[1])
    elif mini:
        found["update_batch"] = int(mini[1]) * found.get("samples", 1)
    return found


def read_split(notes: str, n_gpus: int) -> int:
    """GPUs that generate beside those that train; 0 where all do both in turn.

    >>> read_split("fully async; rollout:train GPUs 32:32", 64), read_split("v0.6; 1-step Off", 16)
    (32, 8)
    >>> read_split("On policy", 8)
    0
    """
    folded = notes.casefold()
    stated = re.search(r"rollout:train gpus (\d+):(\d+)", folded)
    if stated:
        return int(stated[1])
    return n_gpus // 2 if "step off" in folded or "async" in folded else 0


def policy_of(tuning: Tuning) -> Policy:
    """The step that a row of reinforcement learning states."""
    text: Mapping[str, Any] = tuning.facts or {}
    cells = {
        n: v for n, v in tuning.cells.items() if n not in {"global_batch", "micro_batch", "seq_len", "mem_counter"}
    }
    generation, training = read_layout(text.get("tp", ""))
    names = ("tp", "cp", "ep", "pp", "vpp")
    cells |= {name: value for name, value in zip(names, training, strict=False) if value > 0}
    source = str(text.get("framework") or text.get("source") or "").casefold()
    cells["framework"] = next((name for word, name in FRAMEWORKS if word in source), "FSDP")
    cells["software_date"] = ""
    if training:
        cells.pop("zero_stage", None)
    counts = read_rollouts(text.get("grad_accum_or_global_batch", ""))
    if "rollouts" not in counts:
        raise UsageError("rollouts of a step are not stated; write for example 'rollouts/step 512, train gbs 512'")
    longest = read_count(text.get("seq_len", "")) or 2048
    whole = float(text.get("mean_length") or 0)
    if whole:
        prompt = round(min(DEFAULT_PROMPT, PROMPT_SHARE * whole))
        mean, longest = whole - prompt, longest - prompt
    else:
        prompt, mean = DEFAULT_PROMPT, MEAN_SHARE * longest
    n_gpus = int(cells.pop("n_gpus", 1))
    return Policy(
        tuning.algorithm,
        cells,
        n_gpus,
        counts["rollouts"],
        counts.get("samples", SAMPLES if tuning.algorithm == "grpo" else 1),
        prompt,
        mean,
        int(longest),
        counts.get("update_batch", 0),
        read_split(text.get("notes", ""), n_gpus),
        generation[0] if generation else 0,
        generation[1] if len(generation) > 1 else 1,
        critic_ratio=1.0 if tuning.algorithm == "ppo" else 0.0,
        reward_ratio=1.0 if tuning.algorithm == "ppo" else 0.0,
        reference="dapo" not in str(text.get("method", "")).casefold(),
    )
