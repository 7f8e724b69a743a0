"""Serving in steady state: continuous batching, queues, speculation, disaggregation and cost.

A replica holds B sequences; each goes through one prefill and O decode steps. Closed loop: a fixed number of
requests is always in the system. Open loop: requests arrive at a rate, at random.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, PerSecond, Ratio, Seconds


@formula(symbol="T_1shot", cite="nccl", valid="ranks in one domain; small messages")
def one_shot_reduce_time(
    message: Bytes, ranks: Count, link_bandwidth: BytesPerSecond, reduce_efficiency: Ratio, reduce_startup: Seconds
) -> Seconds:
    """Time of an all-reduce in which every rank reads the whole message of every other one, as engines use.

    >>> round(float(one_shot_reduce_time(64e3, 8, 450e9, 0.5, 6e-6)) * 1e6, 2)  # 7 * 64 kB at 225 GB/s = 1.99 us
    7.99
    """
    return (ranks > 1) * (reduce_startup + message * (ranks - 1) / (reduce_efficiency * link_bandwidth))


@formula(symbol="s̄_pre", cite="dao2022", valid="prompt >= cached >= 0; window >= 1")
def prefill_attended_keys(prompt: Count, cached: Count, window: Count) -> Count:
    """Mean number of keys that a token of the prompt attends to when the first `cached` tokens are in the cache.

    >>> float(prefill_attended_keys(1000, 0, 1000)), float(prefill_attended_keys(1000, 600, 1000))
    (500.0, 800.0)
    """
    reach = np.minimum(window, prompt)
    from_start = reach - reach**2 / (2 * prompt)
    return np.where(window < prompt, from_start, (prompt + cached) / 2)


@formula(symbol="n_chunk", cite="agrawal2024", valid="tokens, chunk >= 1")
def prefill_chunks(tokens: Count, chunk: Count) -> Count:
    """Passes that a prompt takes when at most `chunk` tokens are computed in one.

    >>> float(prefill_chunks(7373, 2048))
    4.0
    """
    return np.ceil(tokens / chunk)


@formula(symbol="n_p", cite="gpucalc-counting", valid="batch >= 0, osl >= 1; arrivals at random in steady state")
def prompts_per_pass(batch: Count, osl: Count, tokens: Count, chunk: Count, attention_ranks: Count = 1.0) -> Count:
    """Mean number of prompts that are computed together: those that arrive in one step, if any, within the budget.

    A step ends batch/osl requests on average, and a new one takes the place of each. `batch` is that of all
    `attention_ranks` that step together, each with a budget of its own.

    >>> round(float(prompts_per_pass(512, 512, 1000, 8192)), 3), float(prompts_per_pass(512, 512, 9000, 8192))
    (1.582, 1.0)
    """
    arrivals = np.maximum(batch / osl, 1e-9)
    together = arrivals / (1 - np.exp(-arrivals))
    return np.maximum(np.minimum(together, attention_ranks * np.floor(chunk / tokens)), 1.0)


@formula(symbol="n_kernels", cite="gpucalc-counting", valid="layer counts >= 0")
def small_kernels(
    layers: Count,
    moe_layers: Count,
    latent_layers: Count,
    sparse_layers: Count,
    quantised: Flag,
    layer_kernels: Count,
    expert_kernels: Count,
    latent_kernels: Count,
    sparse_kernels: Count,
    quantising_kernels: Count,
) -> Count:
    """Kernels of the average layer beside its products, its attention and its all-reduces.

    >>> small_kernels(10, 8, 0, 0, 1, 5, 8, 4, 7, 3)  # 5 + 0.8 * 8 + 3
    14.4
    """
    kinds = expert_kernels * moe_layers + latent_kernels * latent_layers + sparse_kernels * sparse_layers
    return layer_kernels + quantising_kernels * quantised + kinds / layers


@formula(symbol="t_over", cite="gpucalc-calibration", valid="sequences >= 0")
def step_overhead(sequences: Count, step_seconds: Seconds, sequence_seconds: Seconds) -> Seconds:
    """Time of a step that the device waits for the engine: scheduling, and sampling and output of each sequence.

    >>> round(step_overhead(100, 1e-3, 5e-6), 9)
    0.0015
    """
    return step_seconds + sequences * sequence_seconds


@formula(symbol="t_host", cite="gpucalc-calibration", valid="eager: no captured graphs")
def host_floor(
    layers: Count,
    moe_layers: Count,
    eager: Flag,
    host_step_seconds: Seconds,
    eager_layer_seconds: Seconds,
    eager_expert_seconds: Seconds,
) -> Seconds:
    """Least time of a step, which the host takes to prepare it, and without captured graphs to launch its kernels.

    >>> float(host_floor(36, 0, 0, 2e-3, 3e-4, 1e-3)), round(float(host_floor(36, 36, 1, 2e-3, 3e-4, 1e-3)), 6)
    (0.002, 0.0488)
    """
    return host_step_seconds + eager * (layers * eager_layer_seconds + moe_layers * eager_expert_seconds)


@formula(symbol="t_add", cite="agrawal2024", valid="mixed = 1: prompt and decode tokens share a pass")
def prefill_interference(mixed_pass: Seconds, step: Seconds, alone: Seconds, mixes: Flag) -> Seconds:
    """Time by which the prefill of one request delays all the others.

    An engine that mixes pays the difference between a pass with and without the prompt; others pay a pass of its own.

    >>> [round(float(prefill_interference(0.030, 0.012, 0.025, mixes)), 9) for mixes in (1, 0)]
    [0.018, 0.025]
    """
    return mixes * np.maximum(mixed_pass - step, 0.0) + (1 - mixes) * alone


@formula(symbol="TPOT", cite="gpucalc-counting", valid="steady state; osl >= 1")
def closed_loop_tpot(step: Seconds, batch: Count, interference: Seconds, osl: Count, stages: Count) -> Seconds:
    """Mean time between two tokens of a request: a step, and its share of the others' prefills.

    Within the osl steps of a request each of the other batch-1 is replaced once; stages work on several at once.

    >>> round(float(closed_loop_tpot(0.010, 11, 0.020, 100, 1)), 9)
    0.012
    """
    return step + np.maximum(batch - 1, 0.0) * interference / (osl * stages)


@formula(symbol="X", cite="little1961", valid="steady state; concurrency requests always in the system")
def little_throughput(concurrency: Count, osl: Count, ttft: Seconds, tpot: Seconds) -> PerSecond:
    """Output tokens per second of a closed loop: each request leaves osl tokens in its time of residence.

    >>> little_throughput(10, 101, 1.0, 0.04)
    202.0
    """
    return concurrency * osl / (ttft + tpot * (osl - 1))


@formula(symbol="μ", cite="little1961", valid="residence > 0")
def service_rate(batch: Count, ranks: Count, residence: Seconds) -> PerSecond:
    """Requests per second that `ranks` ranks finish when each holds `batch` of them for `residence`.

    >>> service_rate(32, 2, 16.0)
    4.0
    """
    return batch * ranks / residence


@formula(symbol="T_cycle", cite="gpucalc-counting", valid="steady state; osl >= 1")
def request_time(prefill: Seconds, tpot: Seconds, osl: Count) -> Seconds:
    """Time for which a request holds its place in the batch: its prefill and osl-1 further tokens.

    >>> request_time(1.0, 0.04, 101)
    5.0
    """
    return prefill + tpot * (osl - 1)


@formula(symbol="t_wait,KV", cite="little1961", valid="concurrency >= 1, batch >= 1")
def admission_wait(concurrency: Count, batch: Count, residence: Seconds) -> Seconds:
    """Time a request waits for a place when more are in the system than the cache holds: (C-B) places at B/T each.

    >>> float(admission_wait(64, 40, 100.0)), float(admission_wait(32, 40, 100.0))
    (60.0, 0.0)
    """
    return np.maximum(concurrency - batch, 0.0) / batch * residence


@formula(symbol="t_wait", cite="gpucalc-calibration", valid="closed loop in steady state")
def prefill_queue(batch: Count, interference: Seconds, prefill_queue_share: Ratio) -> Seconds:
    """Mean wait behind the prefills of other requests: a share of all of them, from bunched arrivals.

    >>> round(float(prefill_queue(11, 0.020, 0.1)), 9)
    0.02
    """
    return np.maximum(batch - 1, 0.0) * interference * prefill_queue_share


@formula(symbol="t_burst", cite="gpucalc-counting", valid="waves 0: no burst, only steady state is measured")
def burst_wait(batch: Count, prefill: Seconds, waves: Count) -> Seconds:
    """Mean wait that a load generator adds which sends its first wave at once: (B-1)/2 prefills in one of its waves.

    >>> round(float(burst_wait(11, 0.020, 10)), 9), float(burst_wait(11, 0.020, 0))
    (0.01, 0.0)
    """
    half = np.maximum(batch - 1, 0.0) * prefill / 2
    return np.where(np.greater(waves, 0), half / np.maximum(waves, 1.0), 0.0)


@formula(symbol="t_fellows", cite="trtllm", valid="attention_dp >= 1")
def gathering_wait(step: Seconds, gathers_prompts: Flag, attention_dp: Count, gathering_steps: Count) -> Seconds:
    """Mean wait of a prompt for prompts of the other attention ranks, where an engine holds it back until all have one.

    >>> [float(gathering_wait(0.02, gathers, ranks, 10)) for gathers, ranks in ((1, 8), (1, 1), (0, 8))]
    [0.2, 0.0, 0.0]
    """
    return np.where(np.greater(attention_dp, 1) & np.greater(gathers_prompts, 0), gathering_steps * step, 0.0)


@formula(symbol="TTFT", cite="gpucalc-counting", valid="")
def time_to_first_token(
    request_overhead: Seconds,
    prefill: Seconds,
    step: Seconds,
    queue: Seconds,
    burst: Seconds,
    admission: Seconds,
    transfer: Seconds,
    fellows: Seconds,
    steps: Count = 2.0,
) -> Seconds:
    """From sending a request to its first token: overhead, prefill, two running steps, waits and cache transfer.

    A request is seen at the next schedule, and its token leaves one step after its prefill.

    >>> round(time_to_first_token(0.03, 0.1, 0.02, 0.05, 0.0, 0.0, 0.0, 0.0), 9)
    0.22
    """
    return request_overhead + prefill + steps * step + queue + burst + admission + transfer + fellows


@formula(symbol="ρ", cite="gpucalc-counting", valid="rate >= 0")
def utilisation(rate: PerSecond, saturation: PerSecond) -> Ratio:
    """Arrival rate over the rate at which the replicas saturate.

    >>> utilisation(4.0, 8.0)
    0.5
    """
    return rate / saturation


@formula(symbol="t_M/D/1", cite="kleinrock1975", valid="0 <= rate·service < 1; random arrivals, equal prefills")
def deterministic_queue(rate: PerSecond, service: Seconds) -> Seconds:
    """Mean wait of random arrivals for a server that takes `service` for each: ρ·s/(2(1-ρ)).

    >>> float(deterministic_queue(5.0, 0.1))
    0.05
    """
    load = np.minimum(rate * service, 0.999)
    return load * service / (2 * (1 - load))


@formula(symbol="E", cite="leviathan2023", valid="0 <= acceptance < 1; draft >= 0 tokens, accepted independently")
def tokens_per_verification(
    acceptance: Ratio, draft: Count, accepted_tokens: Count = 0.0, accepted_stated: Flag = 0.0
) -> Count:
    """Tokens that one verification yields: (1-a^(g+1))/(1-a), or one more than the mean number accepted.

    >>> float(tokens_per_verification(0.5, 1)), float(tokens_per_verification(0.8, 0))
    (1.5, 1.0)
    >>> float(tokens_per_verification(0.0, 3, 1.8, 1))
    2.8
    """
    by_chance = (1 - acceptance ** (draft + 1)) / (1 - acceptance)
    return np.where(np.greater(accepted_stated, 0), 1 + accepted_tokens, by_chance)


@formula(symbol="t_spec", cite="leviathan2023", valid="tokens >= 1")
def speculative_step(verify: Seconds, draft: Seconds, draft_tokens: Count, accepted: Count) -> Seconds:
    """Time per token when a verification and its drafts yield `accepted` tokens.

    >>> round(speculative_step(0.012, 0.001, 3, 2.5), 9)
    0.006
    """
    return (verify + draft * draft_tokens) / accepted


@formula(symbol="cost", cite="gpucalc-counting", valid="throughput > 0; price in money per GPU and second")
def cost_per_token(price: PerSecond, gpus: Count, throughput: PerSecond) -> Ratio:
    """Money per output token: what all GPUs cost in a second over the tokens of a second.

    >>> round(cost_per_token(3.6 / 3600, 8, 1000.0) * 1e6, 6)  # 8 GPUs at 3.60 an hour
    8.0
    """
    return price * gpus / throughput


@formula(symbol="t_wave", cite="gpucalc-counting", valid="batch >= 1; all prompts of a replica sent at once")
def wait_in_wave(batch: Count, prefill: Seconds, place: Ratio) -> Seconds:
    """Wait of a prompt behind the others that were sent with it: none for the first, (B-1) prefills for the last.

    place: 0 is the first of the wave, 1/2 its mean and median, 1 the last.

    >>> [round(float(wait_in_wave(11, 0.020, place)), 9) for place in (0.0, 0.5, 1.0)]
    [0.0, 0.1, 0.2]
    """
    return place * np.maximum(batch - 1, 0.0) * prefill


@formula(symbol="t_M/D/1,q", cite="kleinrock1975", valid="0 <= rate·service < 1; exponential tail with the exact mean")
def queue_quantile(wait: Seconds, rate: PerSecond, service: Seconds, quantile: Ratio) -> Seconds:
    """Wait that a share `quantile` of random arrivals does not exceed: P(W > t) = ρ·exp(-ρ·t/W), of mean W.

    >>> round(float(queue_quantile(0.05, 5.0, 0.1, 0.99)), 4), float(queue_quantile(0.05, 5.0, 0.1, 0.5))
    (0.3912, 0.0)
    """
    waits = np.clip(rate * service, 1e-9, 0.999)
    return wait / waits * np.log(np.maximum(waits / (1 - quantile), 1.0))
