"""How requests become batches and passes, and what a deployment delivers; times of a pass are given.

Requests are in the system (concurrency), decode in a batch, and arrive as prompts that are computed in chunks.
`prefill_workers` is 0 where the same GPUs prefill and decode.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Flag, PerSecond, Ranks, Ratio, Seconds, Tokens

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


@formula(symbol="n_pre", cite="patel2023", valid="tp, pp >= 1")
def prefill_workers(prefill_gpus: Count, tp: Ranks, pp: Ranks) -> Count:
    """Replicas that only prefill; 0 where all GPUs do both.

    >>> prefill_workers(16, 4, 2)
    2.0
    """
    return prefill_gpus / (tp * pp)


@formula(symbol="n_dec", cite="patel2023", valid="")
def decode_ranks(dp: Ranks, prefill_workers: Count) -> Count:
    """Attention ranks that decode, at least one.

    >>> float(decode_ranks(8, 2)), float(decode_ranks(1, 0))
    (6.0, 1.0)
    """
    return np.maximum(dp - prefill_workers, 1.0)


@formula(symbol="C", cite="gpucalc-counting", valid="fills: the question asks for as many requests as the cache holds")
def requests_in_system(fills: Flag, batch_limit: Count, decode_ranks: Count, concurrency: Count) -> Count:
    """Requests in the system: as stated, or what fills the cache of all ranks.

    >>> float(requests_in_system(1, 128, 4, 0)), float(requests_in_system(0, 128, 4, 32))
    (512.0, 32.0)
    """
    return np.where(np.greater(fills, 0), batch_limit * decode_ranks, concurrency)


@formula(symbol="C/n", cite="gpucalc-counting", valid="decode_ranks >= 1")
def requests_per_rank(concurrency: Count, decode_ranks: Count) -> Count:
    """Requests in the system for each rank that decodes.

    >>> requests_per_rank(64, 4)
    16.0
    """
    return concurrency / decode_ranks


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
def prefill_rate(prefill_workers: Count, prefill: Seconds, least: Count = 1e-9) -> PerSecond:
    """Requests per second that the workers prefill.

    >>> float(prefill_rate(2, 0.5))
    4.0
    """
    return np.maximum(prefill_workers, least) / prefill


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
