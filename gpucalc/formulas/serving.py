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


@formula(symbol="t_host", cite="gpucalc-calibration", valid="sequences >= 0")
def step_overhead(sequences: Count, step_seconds: Seconds, sequence_seconds: Seconds) -> Seconds:
    """Time of a step that the device waits for the engine: scheduling, and sampling and output of each sequence.

    >>> round(step_overhead(100, 1e-3, 5e-6), 9)
    0.0015
    """
    return step_seconds + sequences * sequence_seconds


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


@formula(symbol="t_wait", cite="gpucalc-calibration", valid="closed loop")
def prefill_queue(batch: Count, interference: Seconds, prefill_queue_share: Ratio) -> Seconds:
    """Mean wait behind the prefills of other requests: a share of all of them, from bunched arrivals.

    A closed loop starts with all requests at once and stays partly in step; the share is fitted.

    >>> round(float(prefill_queue(11, 0.020, 0.1)), 9)
    0.02
    """
    return np.maximum(batch - 1, 0.0) * interference * prefill_queue_share


@formula(symbol="TTFT", cite="gpucalc-counting", valid="")
def time_to_first_token(
    request_overhead: Seconds, prefill: Seconds, step: Seconds, queue: Seconds, admission: Seconds, transfer: Seconds
) -> Seconds:
    """From sending a request to its first token: overhead, half a running step, queues, prefill and cache transfer.

    >>> round(time_to_first_token(0.03, 0.1, 0.02, 0.05, 0.0, 0.0), 9)
    0.19
    """
    return request_overhead + prefill + step / 2 + queue + admission + transfer


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
def tokens_per_verification(acceptance: Ratio, draft: Count) -> Count:
    """Tokens that one verification yields: (1-a^(g+1))/(1-a).

    >>> tokens_per_verification(0.5, 1), tokens_per_verification(0.8, 0)
    (1.5, 1.0)
    """
    return (1 - acceptance ** (draft + 1)) / (1 - acceptance)


@formula(symbol="t_spec", cite="leviathan2023", valid="tokens >= 1")
def speculative_step(verify: Seconds, draft: Seconds, draft_tokens: Count, accepted: Count) -> Seconds:
    """Time per token when a verification and its drafts yield `accepted` tokens.

    >>> round(speculative_step(0.012, 0.001, 3, 2.5), 9)
    0.006
    """
    return (verify + draft * draft_tokens) / accepted


@formula(symbol="r_PD", cite="patel2023", valid="prefill and decode on GPUs of their own")
def disaggregated_rate(
    prefill_workers: Count, prefill: Seconds, decode_workers: Count, decode_batch: Count, osl: Count, step: Seconds
) -> PerSecond:
    """Requests per second of x prefill and y decode workers: the slower side decides.

    >>> float(disaggregated_rate(2, 0.5, 1, 64, 100, 0.02))  # 4/s against 64 / 2 s
    4.0
    """
    return np.minimum(prefill_workers / prefill, decode_workers * decode_batch / (osl * step))


@formula(symbol="cost", cite="gpucalc-counting", valid="throughput > 0; price in money per GPU and second")
def cost_per_token(price: PerSecond, gpus: Count, throughput: PerSecond) -> Ratio:
    """Money per output token: what all GPUs cost in a second over the tokens of a second.

    >>> round(cost_per_token(3.6 / 3600, 8, 1000.0) * 1e6, 6)  # 8 GPUs at 3.60 an hour
    8.0
    """
    return price * gpus / throughput
