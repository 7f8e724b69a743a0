"""A step of preference optimisation or reinforcement learning, put together from the training and serving estimates.

The update is a training step, generation a decoding engine whose batch drains as responses end; both come from
their own estimates as ledgers, and this one adds what lies between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucalc.core.ledger import Columns, Ledger
from gpucalc.formulas import layer, preference

SPANS = 12  # pieces of the response length within which the batch of an engine is taken as constant


def span_edges(longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Middle and width of the pieces into which a response is cut, narrower towards its end where the batch drains."""
    edges = longest * (1 - (1 - np.linspace(0.0, 1.0, SPANS + 1)) ** 1.5)
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def forward_share(training: Ledger) -> Any:
    """Share of a training step's compute that its forward passes take."""
    return training["layer/forward/time"] / training["layer/time"]


def add_generation(ledger: Ledger, engine: Ledger, running: Any, steps: Any) -> Any:
    """Store the time to generate: prompts (row 0 of the engine's ledger), then spans with ever fewer sequences."""
    c = ledger.columns
    step = np.atleast_1d(engine["time/step"])
    limit = np.atleast_1d(np.broadcast_to(engine["memory/batch-limit"], step.shape))
    ledger.keep("generation/holds", np.float64(np.min(np.atleast_1d(engine["memory/sequences"]))))
    first = np.atleast_1d(engine["prefill/step"])[0], np.atleast_1d(engine["prefill/together"])[0]
    ledger.add(
        "generation/prompts",
        preference.prompts_time,
        pass_time=np.float64(first[0]),
        together=np.float64(first[1]),
        sequences=c["sequences"],
    )
    names = ["generation/prompts"]
    for at in range(len(steps)):
        path = f"generation/span/{at + 1}"
        ledger.add(
            path,
            preference.decode_span_time,
            steps=np.float64(steps[at]),
            step_time=np.float64(step[at + 1]),
            running=np.float64(running[at]),
            batch_limit=np.float64(limit[at + 1]),
        )
        names.append(path)
    tail = [n for n, r in zip(names[1:], running, strict=True) if r < TAIL * running[0]]
    if tail:
        ledger.total("generation/tail", *tail)
    return ledger.total("time/generation", *names)


TAIL = 0.25  # of the sequences still running: from here on the engine is in its tail


def add_training(ledger: Ledger, training: Ledger) -> Any:
    """Store log-probabilities, reference, reward, critic and update of one step from the training ledger."""
    c = ledger.columns
    step, once = training["time/step"], training["time/optimizer"] + training["time/dp/exposed"]
    share = forward_share(training)
    parts = []
    for name, passes in (
        ("log-probabilities", "old_passes"),
        ("reference", "reference_passes"),
        ("reward", "reward_passes"),
    ):
        ledger.add(
            f"time/{name}",
            preference.scoring_time,
            step_time=step,
            once=once,
            forward_share=share,
            size_ratio=c[passes],
        )
        parts.append(f"time/{name}")
    update = ledger.add("time/update", layer.scaled_time, time=step, factor=c["updates"])
    own = update + ledger["time/log-probabilities"]
    ledger.add("time/critic", layer.scaled_time, time=own, factor=c["critic_ratio"])
    return ledger.total("time/training", *parts, "time/update", "time/critic")


def add_step(ledger: Ledger) -> Any:
    """Store the step: phases in turn, or generation beside training."""
    ledger.add("time/sync", preference.weight_sync_time)
    return ledger.add(
        "time/step",
        preference.policy_step_time,
        generation=ledger["time/generation"],
        training=ledger["time/training"],
        sync=ledger["time/sync"],
    )


def add_memory(ledger: Ledger, training: Ledger, engine_bytes: Any) -> Any:
    """Store the memory of the fullest GPU: the largest phase when colocated, the larger side when apart."""
    c = ledger.columns
    states = training["memory/raw"]
    ledger.add(
        "memory/frozen",
        preference.frozen_models_memory,
        weight_bytes=2.0,
        copies=c["frozen_models"],
        shards=c["train_gpus"],
    )
    ledger.add("memory/critic", preference.critic_memory, states=states, size_ratio=c["critic_ratio"])
    ledger.add("memory/actor", layer.repeated_message, message=training["memory/total"], times=1.0)
    ledger.total("memory/update", "memory/actor", "memory/critic", "memory/frozen")
    ledger.add("memory/engine", layer.repeated_message, message=engine_bytes, times=1.0)
    together = ledger.add(
        "memory/colocated",
        preference.colocated_memory,
        engine=engine_bytes,
        update=ledger["memory/actor"],
        resting=ledger["memory/frozen"] + ledger["memory/critic"],
    )
    apart = ledger.maximum("memory/apart", "memory/update", "memory/engine")
    chosen = np.where(c["separate"] > 0, apart, together)
    return ledger.add("memory/total", layer.repeated_message, message=chosen, times=1.0)


def add_preference(ledger: Ledger, training: Ledger) -> None:
    """Store a step of preference optimisation: the update, and the reference's pass unless it was made before."""
    c = ledger.columns
    step = training["time/step"]
    ledger.add("time/update", layer.scaled_time, time=step, factor=1.0)
    ledger.add(
        "time/reference",
        preference.scoring_time,
        step_time=step,
        once=training["time/optimizer"] + training["time/dp/exposed"],
        forward_share=forward_share(training),
        size_ratio=c["reference_passes"],
    )
    ledger.total("time/step", "time/update", "time/reference")
    ledger.add("memory/policy", layer.repeated_message, message=training["memory/total"], times=1.0)
    ledger.add(
        "memory/frozen",
        preference.frozen_models_memory,
        copies=c["frozen_models"],
        shards=c["reference_shards"],
    )
    ledger.total("memory/total", "memory/policy", "memory/frozen")


def new_ledger(columns: dict[str, float], trace: bool = False) -> Ledger:
    """An empty ledger on the columns of one step."""
    return Ledger(Columns(columns), trace=trace)
