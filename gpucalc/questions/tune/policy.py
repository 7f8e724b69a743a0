"""Preference optimisation and reinforcement learning as questions: sizes, split of the GPUs, and the answer.

A step is resolved into a training job (the update) and a serving job (generation) on their shares of the GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.database.posttraining import policy_constants
from gpucalc.formulas.preference import frozen_models_memory
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import Job, beside, resolve, stack
from gpucalc.models.model import Model

PROMPT_SHARE = 0.2  # of a sample, where a row states only its whole length
ENGINE_SHARE = {"colocated": 0.6, "apart": 0.9}  # of a GPU's memory that a decoding engine takes
WEIGHTS_SHARE = 0.5  # an engine's weights take at most this share of its memory, else it spreads over more GPUs


@dataclass(frozen=True)
class Policy:
    """One step of an algorithm that generates, scores and updates.

    rollouts: responses of a step; samples: responses of one prompt; updates: optimizer steps over them.
    generation_gpus 0: colocated with training on all of them.
    engine_share: of a GPU's memory that a decoding engine takes; 0: what frameworks give it.
    """

    algorithm: str
    cells: dict[str, Any]
    n_gpus: int
    rollouts: int
    samples: int
    prompt: int
    mean_response: float
    longest_response: int
    update_batch: int = 0
    generation_gpus: int = 0
    engine_tp: int = 0
    engine_pp: int = 1
    framework: str = "vllm"
    critic_ratio: float = 0.0
    reward_ratio: float = 0.0
    reference: bool = True
    old_passes: float = 1.0
    constants: Mapping[str, float] = field(default_factory=dict)
    sync_bandwidth: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    engine_share: float = 0.0

    @property
    def training_gpus(self) -> int:
        """GPUs of the update."""
        return self.n_gpus - self.generation_gpus

    @property
    def engine_gpus(self) -> int:
        """GPUs that generate."""
        return self.generation_gpus or self.n_gpus

    @property
    def memory_share(self) -> float:
        """Share of a GPU's memory that a decoding engine takes."""
        return self.engine_share or ENGINE_SHARE["apart" if self.generation_gpus else "colocated"]

    @property
    def frozen_copies(self) -> float:
        """Models of the actor's size held beside it that never train: an adapter's base is its own reference."""
        adapted = self.cells.get("method") in {"lora", "qlora"}
        return float(self.reference and not adapted) + self.reward_ratio


def read_layout(text: str) -> tuple[list[int], list[int]]:
    """Generation [TP, PP] and training [TP, CP, EP, PP, VPP] of a published table.

    >>> read_layout("gen [16,1] train [2,2,16,8,n/a]")
    ([16, 1], [2, 2, 16, 8])
    """
    found = {}
    for name in ("gen", "train"):
        match = re.search(rf"{name}\s*\[([^\]]*)\]", text)
        found[name] = [int(p) for p in match[1].split(",") if p.strip().isdigit()] if match else []
    return found["gen"], found["train"]


def update_job(policy: Policy, context: Context) -> tuple[Job, float]:
    """The training job of one update, and how many of them a step makes."""
    cells = dict(policy.cells)
    gpus = policy.training_gpus
    length = max(1, round(policy.prompt + policy.mean_response))
    cp = cells.get("cp") or 1
    length = -(-length // (64 * cp)) * 64 * cp
    longest = max(length, policy.prompt + policy.longest_response)
    batch = policy.update_batch or policy.rollouts
    cut = (cells.get("tp") or 1) * (cells.get("pp") or 1) * cp
    while cut > gpus and (cells.get("pp") or 1) > 1:
        cells["pp"] = cells["pp"] // 2
        cut = (cells.get("tp") or 1) * cells["pp"] * cp
    dp = max(1, gpus // cut)
    ranks = dp * cp * (cells.get("tp") or 1)
    while (cells.get("ep") or 1) > ranks:
        cells["ep"] = cells["ep"] // 2
    # Short samples are packed up to the longest one, unless the micro-batch is stated.
    each = max(1, batch // dp)
    most = cells.get("micro_batch") or longest // length
    packed = max(n for n in range(1, max(1, min(most, each)) + 1) if each % n == 0)
    cells |= {
        "n_gpus": gpus,
        "dp": dp,
        "seq_len": length,
        "micro_batch": packed,
        "global_batch": max(batch, dp * packed),
    }
    return resolve(cells, context), policy.rollouts / batch


def engine_rows(policy: Policy, model: Model, context: Context) -> tuple[list[Any], Any, Any, float]:
    """Serving jobs of the prompts and of each span of the responses, the sequences in each, and its steps."""
    import numpy as np

    from gpucalc.estimate.posttraining import span_edges
    from gpucalc.formulas.preference import any_running, length_exponent, running_share
    from gpucalc.jobs.serving import resolve_serving

    tp = policy.engine_tp or engine_tp(policy, model, context)
    replicas = max(1, policy.engine_gpus // (tp * policy.engine_pp))
    sequences = policy.rollouts / replicas
    middles, widths = span_edges(policy.longest_response)
    exponent = length_exponent(min(policy.mean_response, policy.longest_response), policy.longest_response)
    left = running_share(middles, policy.longest_response, exponent)
    widths = widths * any_running(left, policy.rollouts)
    running = np.maximum(sequences * left, 1.0)
    base = {
        "model": policy.cells["model"],
        "gpu": policy.cells["gpu"],
        "n_gpus": tp * policy.engine_pp,
        "tp": tp,
        "pp": policy.engine_pp,
        "dp": 1,
        "attention_dp": 1,
        "framework": policy.framework,
        "memory_share": policy.memory_share,
    }
    limit = (model.max_seq_len or 10**9) - 2
    prompts = {**base, "isl": min(policy.prompt, limit), "osl": 1, "concurrency": max(1, round(sequences))}
    rows = [resolve_serving(prompts, context)]
    for middle, batch in zip(middles, running, strict=True):
        held = max(1, min(round(policy.prompt + middle), limit))
        rows.append(resolve_serving({**base, "isl": held, "osl": 1, "concurrency": max(1, round(batch))}, context))
    return rows, running, widths, sequences


def engine_tp(policy: Policy, model: Model, context: Context) -> int:
    """The least tensor parallelism at which the weights leave an engine half of its memory."""
    from gpucalc.jobs.completion import stated_cluster

    cluster = stated_cluster({"gpu": policy.cells["gpu"], "n_gpus": policy.engine_gpus}, context)
    share = policy.memory_share * WEIGHTS_SHARE
    tp = 1
    while (
        2.0 * model.parameters_total / tp > share * cluster.device.usable_bytes
        and tp < policy.engine_gpus
        and model.heads % (2 * tp) == 0
    ):
        tp *= 2
    return tp


def estimate_policy(policy: Policy, context: Context, *, trace: bool = False) -> tuple[Ledger, Ledger, Job]:
    """The ledger of a step, that of its update, and the update's job. UsageError with what cannot be."""
    from gpucalc.estimate import posttraining
    from gpucalc.estimate.serving import estimate_serving
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs.serving import stack_serving

    if policy.generation_gpus >= policy.n_gpus:
        raise UsageError(
            f"{policy.generation_gpus} of {policy.n_gpus} GPUs generate, which leaves none to train; "
            f"at most {policy.n_gpus - 1}"
        )
    job, updates = update_job(policy, context)
    model = job.model
    frozen = policy.frozen_copies
    resting = float(frozen_models_memory(float(model.parameters_total), 2.0, frozen, float(policy.training_gpus)))
    training = estimate_training(stack([beside(job, resting, policy.critic_ratio)]), trace=trace)
    rows, running, steps, sequences = engine_rows(policy, model, context)
    engine = estimate_serving(stack_serving(rows))
    tuned = job.columns
    ledger = posttraining.new_ledger(
        {
            "sequences": sequences,
            "samples_per_prompt": float(policy.samples),
            "updates": updates,
            "old_passes": policy.old_passes * updates,
            "reference_passes": float(policy.reference) * updates,
            "reward_passes": policy.reward_ratio * updates,
            "critic_ratio": policy.critic_ratio,
            "frozen_models": frozen,
            "parameters": float(model.parameters_total),
            "weights": 2.0 * model.parameters_total,
            "sync_bandwidth": policy.sync_bandwidth or sync_bandwidth(job),
            "sync_startup": 0.1,
            "separate": float(policy.generation_gpus > 0),
            **(policy.constants or policy_constants(context.db)),
            "train_gpus": float(policy.training_gpus),
            "n_gpus": float(policy.n_gpus),
        },
        trace,
    )
    posttraining.add_generation(ledger, engine, running, steps)
    posttraining.add_training(ledger, training)
    posttraining.add_step(ledger)
    posttraining.add_memory(ledger, training, policy.memory_share * tuned["usable_bytes"])
    return ledger, training, job


def sync_bandwidth(job: Job) -> float:
    """The rate at which the weights reach an engine: the network of a node, or the links inside it."""
    cluster = job.cluster
    if cluster.n_gpus > cluster.domain:
        return 0.5 * cluster.network_bandwidth_per_gpu
    return 0.5 * cluster.link_bandwidth


def with_split(policy: Policy, generation_gpus: int) -> Policy:
    """The same step with another number of generating GPUs."""
    return replace(policy, generation_gpus=generation_gpus)
