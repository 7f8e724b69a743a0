"""Preference optimisation and reinforcement learning: what a step does beside training, and what it holds.

Symbols: O longest response, μ mean response, x tokens generated so far, B sequences of a replica, N parameters.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Ratio, Seconds


@formula(symbol="κ", cite="gpucalc-counting", valid="0 < mean <= longest")
def length_exponent(mean: Count, longest: Count) -> Ratio:
    """Exponent of the share of responses that are still running, (1 - x/O)^κ, which has the mean μ = O/(κ+1).

    >>> float(length_exponent(1024, 4096)), float(length_exponent(4096, 4096))
    (3.0, 0.0)
    """
    return longest / mean - 1


@formula(symbol="S(x)", cite="gpucalc-counting", valid="0 <= generated < longest")
def running_share(generated: Count, longest: Count, exponent: Ratio) -> Ratio:
    """Share of the responses longer than `generated` tokens.

    >>> float(running_share(1024, 4096, 2.0))
    0.5625
    """
    return np.maximum(1 - generated / longest, 0.0) ** exponent


@formula(symbol="P(any)", cite="gpucalc-counting", valid="responses end independently")
def any_running(share: Ratio, sequences: Count) -> Ratio:
    """Probability that at least one of `sequences` responses is still running: the step lasts as long as its longest.

    >>> float(any_running(0.5, 2)), float(any_running(0.0, 100))
    (0.75, 0.0)
    """
    return 1 - (1 - share) ** sequences


@formula(symbol="Δt_gen", cite="sheng2024", valid="batch_limit >= 1")
def decode_span_time(
    steps: Count, step_time: Seconds, running: Count, batch_limit: Count, rollout_ratio: Ratio
) -> Seconds:
    """Time in which all sequences of a replica advance by `steps` tokens; more than fit wait for their turn.

    `rollout_ratio`: a step of a rollout engine over one of a serving engine.

    >>> float(decode_span_time(100, 0.02, 64, 128, 1.0)), float(decode_span_time(100, 0.02, 256, 128, 1.0))
    (2.0, 4.0)
    """
    return rollout_ratio * steps * step_time * np.maximum(running / batch_limit, 1.0)


@formula(symbol="t_pre,all", cite="agrawal2024", valid="")
def prompts_time(pass_time: Seconds, together: Count, sequences: Count, samples_per_prompt: Count) -> Seconds:
    """Time to read all prompts of a replica; samples of one prompt share its cache.

    >>> float(prompts_time(0.1, 2, 64, 8))
    0.4
    """
    return pass_time * sequences / samples_per_prompt / together


@formula(symbol="t_logp", cite="sheng2024", valid="log-probabilities without gradients")
def scoring_time(step_time: Seconds, once: Seconds, forward_share: Ratio, size_ratio: Ratio = 1.0) -> Seconds:
    """Time of a forward pass over the samples of a step, by another model as much larger as `size_ratio`.

    `once` is what the training step spends on optimizer and reduction.

    >>> float(scoring_time(10.0, 1.0, 0.25))
    2.25
    """
    return (step_time - once) * forward_share * size_ratio


@formula(symbol="t_sync", cite="sheng2024", valid="")
def weight_sync_time(weights: Bytes, sync_bandwidth: BytesPerSecond, sync_startup: Seconds) -> Seconds:
    """Time to bring updated weights from their training layout into the engines.

    >>> round(float(weight_sync_time(14e9, 50e9, 0.02)), 3)
    0.3
    """
    return sync_startup + weights / sync_bandwidth


@formula(symbol="T_step", cite="sheng2024", valid="separate = 1: one step off policy, on GPUs of their own")
def policy_step_time(
    generation: Seconds, training: Seconds, sync: Seconds, separate: Ratio, driver_seconds: Seconds
) -> Seconds:
    """Time of a step: phases one after the other on the same GPUs, or generation beside the training of the last batch.

    `driver_seconds` is what the controller adds: moving samples and computing rewards.

    >>> float(policy_step_time(60.0, 40.0, 2.0, 0, 1.0)), float(policy_step_time(60.0, 40.0, 2.0, 1, 1.0))
    (103.0, 63.0)
    """
    phases = (1 - separate) * (generation + training) + separate * np.maximum(generation, training)
    return phases + sync + driver_seconds


@formula(symbol="M_colocated", cite="sheng2024", valid="engines release their cache while others work")
def colocated_memory(engine: Bytes, update: Bytes, resting: Bytes) -> Bytes:
    """Memory of a GPU that takes part in all phases: the largest phase, and what rests there through all of them.

    >>> float(colocated_memory(40.0, 60.0, 5.0))
    65.0
    """
    return np.maximum(engine, update) + resting


@formula(symbol="M_rest", cite="rafailov2023", valid="frozen models, sharded over the GPUs of the update")
def frozen_models_memory(parameters: Count, weight_bytes: Bytes, copies: Count, shards: Count) -> Bytes:
    """Bytes of frozen models on one GPU: reference and reward, sharded over `shards` ranks.

    >>> float(frozen_models_memory(8e9, 2.0, 2, 8))
    4000000000.0
    """
    return copies * parameters * weight_bytes / shards


@formula(
    symbol="M_critic", cite="ouyang2022", valid="a critic of the size of the actor, by another size ratio in proportion"
)
def critic_memory(states: Bytes, size_ratio: Ratio) -> Bytes:
    """Bytes of a critic's training states on one GPU.

    >>> float(critic_memory(20.0, 0.5))
    10.0
    """
    return states * size_ratio
