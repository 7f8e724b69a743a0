"""How requests become batches and passes, and what a deployment delivers; times of a pass are given.

Requests are in the system (concurrency), decode in a batch, and arrive as prompts that are computed in chunks.
`prefill_workers` is 0 where the same GPUs prefill and decode.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import BytesPerSecond, Count, Flag, PerSecond, Ranks, Ratio, Seconds, Tokens

# --- lengths ---------------------------------------------------------------------------------------


@formula(symbol="s̄", cite="gpucalc-counting", valid="steady state: a request is half done on average")
def mean_context(isl: Tokens, osl: Tokens) -> Tokens:
    """Tokens that a decoding request holds on average.

    >>> mean_context(1000, 200)
    1100.0
    """
    return isl + osl / 2


@formula(symbol="s_new", cite="gpucalc-counting", valid="")
def computed_prompt(isl: Tokens, cached_prefix: Tokens) -> Tokens:
    """Tokens of a prompt that are not in a prefix cache, at least the last one.

    >>> float(computed_prompt(1000, 600)), float(computed_prompt(1000, 1000))
    (400.0, 1.0)
    """
    return np.maximum(isl - cached_prefix, 1.0)


@formula(symbol="g+1", cite="leviathan2023", valid="")
def verified_tokens(draft_tokens: Tokens) -> Tokens:
    """Tokens of a sequence in one decoding step: those drafted, and the next.

    >>> verified_tokens(3)
    4
    """
    return draft_tokens + 1


@formula(symbol="c", cite="agrawal2024", valid="chunks >= 1")
def chunk_size(prompt_tokens: Tokens, chunks: Count) -> Tokens:
    """Tokens of a prompt in one pass, in chunks of equal size.

    >>> chunk_size(6000, 3)
    2000.0
    """
    return prompt_tokens / chunks


# --- batches ---------------------------------------------------------------------------------------


@formula(symbol="n_dec", cite="patel2023", valid="dp of the GPUs that decode")
def decode_ranks(dp: Ranks) -> Count:
    """Attention ranks that decode, at least one.

    >>> float(decode_ranks(8))
    8.0
    """
    return np.maximum(dp, 1.0)


@formula(symbol="C", cite="gpucalc-counting", valid="fills: the question asks for as many requests as the cache holds")
def requests_in_system(fills: Flag, batch_limit: Count, decode_ranks: Count, concurrency: Count) -> Count:
    """Requests in the system: as stated, or what fills the cache of all ranks.

    >>> float(requests_in_system(1, 128, 4, 0)), float(requests_in_system(0, 128, 4, 32))
    (512.0, 32.0)
    """
    return np.where(np.greater(fills, 0), batch_limit * decode_ranks, concurrency)


@formula(symbol="C/n", cite="gpucalc-counting", valid="decode_ranks >= 1")
def requests_per_rank(concurrency: Count, decode_ranks: Count, decoding_share: Ratio) -> Count:
    """Requests for each rank that decodes: all in the system but those that prefill on other GPUs.

    >>> requests_per_rank(64, 4, 1.0)
    16.0
    """
    return concurrency * decoding_share / decode_ranks


@formula(symbol="B", cite="gpucalc-counting", valid="a closed loop keeps at least one request in each rank")
def decoding_batch(wanted: Count, open_loop: Flag, batch_limit: Count) -> Count:
    """Sequences of one rank that decode together: those in the system, as far as the cache holds them.

    >>> float(decoding_batch(16, 0, 128)), float(decoding_batch(200, 0, 128)), float(decoding_batch(0.2, 1, 128))
    (16.0, 128.0, 0.2)
    """
    least = np.where(np.greater(open_loop, 0), 0.0, 1.0)
    return np.minimum(np.maximum(wanted, least), batch_limit)


@formula(symbol="B/p", cite="gpucalc-counting", valid="pp >= 1")
def stage_batch(batch: Count, pp: Ranks) -> Count:
    """Sequences in one pass, when the stages of a pipeline work on several batches at once; at least one.

    >>> float(stage_batch(64, 4)), float(stage_batch(2, 4))
    (16.0, 1.0)
    """
    return np.maximum(batch / pp, 1.0)


@formula(symbol="n_p", cite="gpucalc-counting", valid="gathers_prompts: attention ranks wait to prefill together")
def prompts_together(arrived: Count, gathers_prompts: Flag, attention_dp: Ranks, replica_batch: Count) -> Count:
    """Prompts that one pass of a replica computes, no more than requests in its batch.

    >>> float(prompts_together(1.2, 0, 8, 64.0)), float(prompts_together(1.2, 1, 8, 64.0))
    (1.2, 8.0)
    """
    waited = np.maximum(arrived, np.where(np.greater(gathers_prompts, 0), attention_dp, 1.0))
    return np.minimum(waited, np.maximum(replica_batch, 1.0))


@formula(symbol="n_p/a", cite="gpucalc-counting", valid="attention_dp >= 1")
def prompts_of_rank(together: Count, attention_dp: Ranks) -> Count:
    """Prompts of one attention rank in a pass, at least one.

    >>> float(prompts_of_rank(12.0, 8)), float(prompts_of_rank(2.0, 8))
    (1.5, 1.0)
    """
    return np.maximum(together / attention_dp, 1.0)


# --- times under load ------------------------------------------------------------------------------


@formula(symbol="t_add,prompt", cite="agrawal2024", valid="together >= 1")
def prompt_interference(interference_of_pass: Seconds, chunks: Count, together: Count) -> Seconds:
    """Time by which one prompt delays all others: its passes, each shared by the prompts computed together.

    >>> prompt_interference(0.01, 4, 2)
    0.02
    """
    return interference_of_pass * (chunks / together)


@formula(symbol="t_felt", cite="patel2023", valid="")
def felt_interference(interference: Seconds, prefill_workers: Count) -> Seconds:
    """What decoding feels of the prompts: nothing where others prefill.

    >>> float(felt_interference(0.02, 0)), float(felt_interference(0.02, 2))
    (0.02, 0.0)
    """
    return np.where(np.greater(prefill_workers, 0), 0.0, interference)


@formula(symbol="t_pass", cite="patel2023", valid="mixes_prefill: prompts and decoding share passes")
def loaded_prefill_pass(mixed: Seconds, alone: Seconds, mixes_prefill: Flag, prefill_workers: Count) -> Seconds:
    """Time of one pass of a prompt under load: shared with decoding sequences where one GPU does both and mixes.

    >>> float(loaded_prefill_pass(0.03, 0.02, 1, 0)), float(loaded_prefill_pass(0.03, 0.02, 1, 2))
    (0.03, 0.02)
    """
    mixed_here = np.equal(prefill_workers, 0) & np.greater(mixes_prefill, 0)
    return np.where(mixed_here, mixed, alone)


@formula(symbol="t_KV", cite="patel2023", valid="")
def transfer_of_apart(exposed: Seconds, prefill_workers: Count) -> Seconds:
    """Time that sending a prompt's cache to a decode worker adds; nothing where one GPU does both.

    >>> float(transfer_of_apart(0.01, 2)), float(transfer_of_apart(0.01, 0))
    (0.01, 0.0)
    """
    return np.where(np.greater(prefill_workers, 0), exposed, 0.0)


@formula(symbol="λ", cite="gpucalc-counting", valid="dp >= 1")
def arrivals_at_one(rate: PerSecond, prefill_workers: Count, dp: Ranks) -> PerSecond:
    """Requests per second that arrive at one replica, or at one worker that prefills.

    >>> float(arrivals_at_one(8.0, 0, 4)), float(arrivals_at_one(8.0, 2, 4))
    (2.0, 4.0)
    """
    places = np.where(np.greater(prefill_workers, 0), np.maximum(prefill_workers, 1.0), dp)
    return np.where(np.greater(rate, 0), rate / places, 0.0)


@formula(symbol="t_wait", cite="gpucalc-counting", valid="")
def closed_loop_wait(wait: Seconds, open_loop: Flag) -> Seconds:
    """Wait for a place in the batch; with arrivals at a rate the queue before the prefill holds all of it.

    >>> float(closed_loop_wait(2.0, 0)), float(closed_loop_wait(2.0, 1))
    (2.0, 0.0)
    """
    return np.where(np.greater(open_loop, 0), 0.0, wait)


# --- rates -----------------------------------------------------------------------------------------


@formula(symbol="μ_pre", cite="patel2023", valid="prefill > 0")
def prefill_rate(
    prefill_workers: Count, prompts: Count, passes: Count, prefill_pass: Seconds, least: Count = 1e-9
) -> PerSecond:
    """Requests per second that workers prefill when prompts wait: those of one pass over the time of their passes.

    >>> float(prefill_rate(2, 8, 1, 0.5))
    32.0
    """
    return np.maximum(prefill_workers, least) * prompts / (passes * prefill_pass)


@formula(symbol="n_p,max", cite="gpucalc-counting", valid="chunk_tokens, prompt_tokens >= 1")
def prompts_of_full_pass(prompt_tokens: Tokens, chunk_tokens: Tokens, attention_dp: Ranks) -> Count:
    """Prompts that one pass of a worker computes when enough of them wait: a budget for each attention rank.

    >>> float(prompts_of_full_pass(1000, 8192, 4)), float(prompts_of_full_pass(9000, 8192, 4))
    (32.0, 4.0)
    """
    return attention_dp * np.maximum(np.floor(chunk_tokens / prompt_tokens), 1.0)


@formula(symbol="n/a", cite="gpucalc-counting", valid="attention_dp >= 1")
def prompts_on_rank(prompts: Count, attention_dp: Ranks) -> Count:
    """Prompts of one attention rank in a full pass.

    >>> prompts_on_rank(32.0, 4)
    8.0
    """
    return prompts / attention_dp


@formula(symbol="R_KV", cite="patel2023", valid="workers of one scale-up domain send over its links")
def cache_sending_rate(
    network_bandwidth: BytesPerSecond,
    link_bandwidth: BytesPerSecond,
    n_gpus: Count,
    domain: Count,
    transfer_efficiency: Ratio,
) -> BytesPerSecond:
    """Rate at which one GPU sends its part of a prompt's cache to a worker that decodes.

    >>> [float(cache_sending_rate(50e9, 450e9, 16, domain, 0.8)) / 1e9 for domain in (8, 72)]
    [40.0, 360.0]
    """
    return transfer_efficiency * np.where(np.less_equal(n_gpus, domain), link_bandwidth, network_bandwidth)


@formula(symbol="ρ_pre", cite="little1961", valid="fed > 0")
def prefill_load(rate: PerSecond, fed: PerSecond) -> Ratio:
    """Share of their time for which the workers that prefill are busy, at most 1.

    >>> float(prefill_load(3.0, 4.0)), float(prefill_load(5.0, 4.0))
    (0.75, 1.0)
    """
    return np.minimum(rate / fed, 1.0)


@formula(symbol="t_wait,pre", cite="little1961", valid="closed loop; workers apart")
def feeding_wait(
    concurrency: Count, fed: PerSecond, others: Seconds, prefill: Seconds, load_of_prefill: Ratio, cap: Ratio = 0.95
) -> Seconds:
    """Wait for a worker that prefills: random arrivals at its load, or all requests that decoding leaves over.

    Where prefilling limits the rate, Little's law gives the wait: concurrency over that rate, less all other times.

    >>> round(float(feeding_wait(100, 5.0, 8.0, 0.2, 1.0)), 6), round(float(feeding_wait(10, 5.0, 8.0, 0.2, 0.25)), 6)
    (12.0, 0.033333)
    """
    busy = np.minimum(load_of_prefill, cap)
    return np.maximum(busy * prefill / (2 * (1 - busy)), concurrency / fed - others)


@formula(symbol="t_others", cite="little1961", valid="osl >= 1")
def other_times(request_overhead: Seconds, prefill: Seconds, transfer: Seconds, tpot: Seconds, osl: Tokens) -> Seconds:
    """Time of a request in the system beside the wait for a worker that prefills.

    >>> round(other_times(0.03, 0.2, 0.01, 0.02, 101), 9)
    2.24
    """
    return request_overhead + prefill + transfer + tpot * (osl - 1)


@formula(symbol="X_held", cite="little1961", valid="others > 0")
def held_rate(concurrency: Count, others: Seconds) -> PerSecond:
    """Requests per second of a closed loop in which none waits.

    >>> held_rate(20, 4.0)
    5.0
    """
    return concurrency / others


@formula(symbol="[prefill]", cite="patel2023", valid="workers apart")
def prefill_limits(fed: PerSecond, held: PerSecond) -> Flag:
    """Whether the workers that prefill finish fewer requests than those that decode could hold.

    >>> float(prefill_limits(3.0, 4.0)), float(prefill_limits(5.0, 4.0))
    (1.0, 0.0)
    """
    return 1.0 * np.less(fed, held)


@formula(symbol="t(apart)", cite="patel2023", valid="")
def of_apart(apart: Seconds, together: Seconds, prefill_workers: Count) -> Seconds:
    """A time on workers that only prefill where there are some, else on the GPUs that do both.

    >>> float(of_apart(1.0, 2.0, 4)), float(of_apart(1.0, 2.0, 0))
    (1.0, 2.0)
    """
    return np.where(np.greater(prefill_workers, 0), apart, together)


@formula(symbol="μ", cite="patel2023", valid="")
def slower_side(held: PerSecond, fed: PerSecond, prefill_workers: Count) -> PerSecond:
    """Requests per second that the replicas finish: as decoding holds them and, where others prefill, feeds them.

    >>> float(slower_side(6.0, 4.0, 2)), float(slower_side(6.0, 4.0, 0))
    (4.0, 6.0)
    """
    return np.where(np.greater(prefill_workers, 0), np.minimum(held, fed), held)


@formula(symbol="max(C, ε)", cite="gpucalc-counting", valid="")
def some_requests(concurrency: Count, least: Count = 1e-9) -> Count:
    """Requests in the system, above 0.

    >>> float(some_requests(8)), float(some_requests(0))
    (8.0, 1e-09)
    """
    return np.maximum(concurrency, least)


@formula(symbol="X", cite="little1961", valid="open_loop: all that arrives is served")
def output_rate(
    rate: PerSecond, osl: Tokens, open_loop: Flag, loop: PerSecond, fed: PerSecond, prefill_workers: Count
) -> PerSecond:
    """Output tokens per second: of what arrives, or of a closed loop, which workers that prefill may limit.

    >>> float(output_rate(2.0, 100, 1, 0.0, 0.0, 0)), float(output_rate(0.0, 100, 0, 900.0, 4.0, 2))
    (200.0, 400.0)
    """
    closed = np.where(np.greater(prefill_workers, 0), np.minimum(loop, fed * osl), loop)
    return np.where(np.greater(open_loop, 0), rate * osl, closed)


@formula(symbol="X/osl", cite="gpucalc-counting", valid="osl >= 1")
def request_rate(output_rate: PerSecond, osl: Tokens) -> PerSecond:
    """Requests per second of an output rate.

    >>> request_rate(400.0, 100)
    4.0
    """
    return output_rate / osl


@formula(symbol="X/n", cite="gpucalc-counting", valid="n_gpus >= 1")
def rate_per_gpu(output_rate: PerSecond, n_gpus: Count) -> PerSecond:
    """Output tokens per second and GPU.

    >>> rate_per_gpu(400.0, 8)
    50.0
    """
    return output_rate / n_gpus


@formula(symbol="1/TPOT", cite="gpucalc-counting", valid="tpot > 0")
def rate_per_user(tpot: Seconds) -> PerSecond:
    """Tokens per second that one user sees.

    >>> rate_per_user(0.02)
    50.0
    """
    return 1 / tpot


@formula(symbol="μ_max", cite="little1961", valid="")
def saturation_rate(fills: Flag, served: PerSecond, saturation: PerSecond) -> PerSecond:
    """Requests per second at which the replicas saturate, where the question is of a rate or of a full cache.

    >>> float(saturation_rate(1, 8.0, 0.0)), float(saturation_rate(0, 8.0, 9.0))
    (8.0, 9.0)
    """
    return np.where(np.greater(fills, 0), served, saturation)


@formula(symbol="n_a", cite="gpucalc-counting", valid="")
def replica_batch(batch: Count, attention_dp: Ranks) -> Count:
    """Sequences that decode on all attention ranks of a replica.

    >>> replica_batch(16.0, 8)
    128.0
    """
    return batch * attention_dp


@formula(symbol="η", cite="gpucalc-counting", valid="")
def cached_tokens_of_prompt(isl: Tokens, prefix_hit: Ratio) -> Tokens:
    """Tokens of a prompt that a prefix cache holds.

    >>> cached_tokens_of_prompt(1000, 0.6)
    600.0
    """
    return isl * prefix_hit
