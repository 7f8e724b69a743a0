"""Attention kernels: flash forward and backward, decoding against a KV cache, and attention without flash.

Their constants are arguments; the values per device stand in `hardware_db/calibration/attention.csv`
and are found by `gpucalc.efficiency.kernel_constants`.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Flag, Flop, FlopPerSecond, Ratio, Seconds
from gpucalc.formulas.roofline import smooth_maximum


@formula(symbol="P_att", cite="gpucalc-counting", valid="attention_low_precision 0 or 1")
def attention_peak(peak: FlopPerSecond, half_peak: FlopPerSecond, attention_low_precision: Flag) -> FlopPerSecond:
    """Dense peak at which attention's own products run: that of 16 bit, unless they are quantised too.

    >>> float(attention_peak(2e15, 1e15, 0)), float(attention_peak(2e15, 1e15, 1))
    (1000000000000000.0, 2000000000000000.0)
    """
    return np.where(np.greater(attention_low_precision, 0), peak, half_peak)


@formula(symbol="s̄", cite="dao2022", valid="keys, window >= 1; window = keys where there is none")
def attended_keys(keys: Count, window: Count, causal: Flag) -> Count:
    """Mean number of keys a query attends to, with a sliding window and a causal mask.

    A causal mask halves the square; a window w cuts the rest to w keys per query, fewer for the first w queries.

    >>> float(attended_keys(4096, 4096, 1))
    2048.0
    >>> float(attended_keys(4096, 1024, 1))  # 1024 for 3072 queries, 512 on average for the first 1024
    896.0
    """
    reach = np.minimum(window, keys)
    return causal * (reach - reach**2 / (2 * keys)) + (1 - causal) * reach * 1.0


@formula(symbol="min(s, w)", cite="dao2022", valid="window = keys where there is none")
def reached_keys(keys: Count, window: Count) -> Count:
    """Keys within the window of a query; scores of keys behind a causal mask are formed too, without flash.

    >>> float(reached_keys(4096, 1024))
    1024.0
    """
    return np.minimum(keys, window)


@formula(symbol="F_attn", cite="dao2022", valid="counts >= 1")
def attention_flops(
    batch: Count, queries: Count, attended: Count, heads: Count, head_dim: Count, flop_per_multiply_add: Flop = 2.0
) -> Flop:
    """Work of the two products of attention: scores, and their weighted sum of values.

    >>> attention_flops(1, 4096, 2048.0, 32, 128) / 1e9  # 2 products * 2 * 4096 * 2048 * 32 * 128
    137.438953472
    """
    return 2 * flop_per_multiply_add * batch * queries * attended * heads * head_dim


@formula(symbol="t_c,attn", cite="dao2022", valid="counts >= 1")
def flash_compute_time(
    batch: Count,
    queries: Count,
    attended: Count,
    heads: Count,
    head_dim: Count,
    peak: FlopPerSecond,
    compute_units: Count,
    attention_efficiency: Ratio,
    attention_half: Count,
    attention_tail: Ratio,
    kernel_generation: Ratio = 1.0,
    sustained_clock: Ratio = 1.0,
    attention_tile_rows: Count = 128.0,
    full_head_dim: Count = 128.0,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time the compute units need for flash attention.

    `attention_efficiency` is the plateau of long sequences over the dense `peak`; short rows of keys
    (`attended` of the order of `attention_half`) do not fill the pipeline; small heads (below
    `full_head_dim`) leave the exponentials in charge; and with few tiles of `attention_tile_rows`
    queries per compute unit the last ones run alone (`attention_tail`).
    `kernel_generation` is 1 for the kernels measured, less for older ones.

    >>> args = dict(compute_units=128, attention_efficiency=0.5, attention_half=256, attention_tail=0.0)
    >>> round(float(flash_compute_time(1, 4096, 2048, 32, 128, 1e15, **args)) * 1e6, 2)  # 274.88 us * (1 + 1/8)
    309.24
    """
    flops = attention_flops(batch, queries, attended, heads, head_dim, flop_per_multiply_add)
    small_head = np.sqrt(np.minimum(1.0, head_dim / full_head_dim))
    rate = attention_efficiency * kernel_generation * small_head * sustained_clock * peak
    tail = attention_tail * attention_tile_rows * compute_units / (batch * heads * queries)
    return flops / rate * (1 + attention_half / attended + tail)


@formula(symbol="t_m,attn", cite="gpucalc-calibration", valid="counts >= 1")
def flash_memory_time(
    batch: Count,
    queries: Count,
    keys: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    memory_bandwidth: BytesPerSecond,
    attention_element_bytes: Bytes,
    attention_passes: Ratio,
) -> Seconds:
    """Time to move Q, K, V and the output of flash attention `attention_passes` times, at the datasheet's rate.

    More than once where rotary embedding and the write of the cache belong to the kernel.

    >>> round(flash_memory_time(1, 4096, 4096, 32, 8, 128, 2e12, 2.0, 1.0) * 1e6, 2)  # 83.89 MB
    41.94
    """
    traffic = 2 * attention_element_bytes * batch * head_dim * (queries * heads + keys * kv_heads)
    return attention_passes * traffic / memory_bandwidth


@formula(symbol="t_attn", cite="dao2022", valid="training and prefill")
def flash_attention_time(compute: Seconds, memory: Seconds, attention_launch_seconds: Seconds) -> Seconds:
    """Time of a fused (flash) attention forward pass: launch, compute, and the traffic of Q, K, V and output.

    The parts are `flash_compute_time` and `flash_memory_time`: the kernel loads the first tiles before it computes.

    >>> round(float(flash_attention_time(309.24e-6, 41.94e-6, 10e-6)) * 1e6, 2)
    361.18
    """
    return attention_launch_seconds + compute + memory


@formula(symbol="t_attn,b", cite="dao2022", valid="a fused backward kernel of the same generation")
def flash_attention_backward_time(attention_forward: Seconds, attention_backward_ratio: Ratio) -> Seconds:
    """Time of the backward pass of flash attention: five products instead of two, scores computed again.

    >>> flash_attention_backward_time(0.002, 3.0)
    0.006
    """
    return attention_forward * attention_backward_ratio


@formula(symbol="t_score", cite="korthikanti2022", valid="counts >= 1; scores held in memory")
def unfused_attention_time(
    batch: Count,
    queries: Count,
    keys: Count,
    heads: Count,
    head_dim: Count,
    peak: FlopPerSecond,
    memory_bandwidth: BytesPerSecond,
    memory_efficiency: Ratio,
    gemm_efficiency: Ratio,
    score_traffic: Bytes,
    products: Count = 2.0,
    batched_product_share: Ratio = 0.6,
    batched_product_half: Count = 32.0,
    sustained_clock: Ratio = 1.0,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time of attention without flash: batched products on the full square, and traffic of the scores.

    The products are narrow (`head_dim` deep or wide), so they reach `batched_product_share` of a large
    one, less below `batched_product_half`. Per score `score_traffic` bytes pass through memory (scale,
    mask, softmax, dropout). Forward 2 products, backward 4.

    >>> t = unfused_attention_time(1, 2048, 2048, 16, 96, 1e14, 1e12, 0.8, 0.8, 13.0)
    >>> round(float(t) * 1e3, 3)  # 25.77 GFLOP at 36 TFLOP/s = 0.716 ms; 67.1 M scores * 13 B at 0.8 TB/s = 1.091
    1.806
    """
    scores = batch * heads * queries * keys
    depth = head_dim / (head_dim + batched_product_half)
    rate = batched_product_share * depth * gemm_efficiency * sustained_clock * peak
    flops = products * flop_per_multiply_add * scores * head_dim
    return flops / rate + scores * score_traffic / (memory_efficiency * memory_bandwidth)


@formula(symbol="B_KV", cite="gpucalc-counting", valid="counts >= 1")
def decode_traffic(
    batch: Count,
    context: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    kv_bytes: Bytes,
    attention_element_bytes: Bytes,
) -> Bytes:
    """Traffic of one decoding step of attention: the whole cache of keys and values, queries and output.

    >>> decode_traffic(1, 1024, 32, 8, 128, 2.0, 2.0)  # 2 * 2 * 1024 * 8 * 128, and 2 * 2 * 32 * 128
    4210688.0
    """
    return 2 * batch * head_dim * (kv_bytes * context * kv_heads + attention_element_bytes * heads)


@formula(symbol="t_m,dec", cite="gpucalc-calibration", valid="counts >= 1")
def decode_memory_time(
    batch: Count,
    context: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    kv_bytes: Bytes,
    attention_element_bytes: Bytes,
    memory_bandwidth: BytesPerSecond,
    l2_bytes: Bytes,
    decode_memory_efficiency: Ratio,
    decode_l2_read_ratio: Ratio,
) -> Seconds:
    """Time to read the cache in one decoding step; one that fits the second-level cache is read from there.

    >>> t = decode_memory_time(64, 8192, 32, 8, 128, 2.0, 2.0, 2e12, 50e6, 0.9, 0.1)
    >>> round(float(t) * 1e3, 3)  # 2.149 GB at 1.8 TB/s
    1.194
    """
    traffic = decode_traffic(batch, context, heads, kv_heads, head_dim, kv_bytes, attention_element_bytes)
    from_memory = np.minimum(1.0, (traffic / l2_bytes) ** 2)
    slowness = decode_l2_read_ratio * (1 - from_memory) + from_memory
    return traffic / (decode_memory_efficiency * memory_bandwidth) * slowness


@formula(symbol="t_u,dec", cite="gpucalc-calibration", valid="counts >= 1")
def decode_unit_time(
    batch: Count,
    context: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    peak: FlopPerSecond,
    compute_units: Count,
    attention_efficiency: Ratio,
    decode_block_seconds: Seconds,
    flop_per_multiply_add: Flop = 2.0,
) -> Seconds:
    """Time the compute units need in one decoding step: a start per sequence and KV head, and the two products.

    >>> t = decode_unit_time(128, 16, 32, 32, 128, 1e15, 128, 0.5, 1.5e-6)
    >>> round(float(t) * 1e6, 2)  # 32 blocks per unit at 1.5 us; the products take 0.07 us
    48.07
    """
    flops = attention_flops(batch, 1.0, context, heads, head_dim, flop_per_multiply_add)
    return decode_block_seconds * batch * kv_heads / compute_units + flops / (attention_efficiency * peak)


@formula(
    symbol="t_dec",
    cite="gpucalc-calibration",
    valid="compute > 0; memory > 0; decode_overlap_order >= 1",
    bounds=("compute", "memory"),
)
def decode_attention_time(
    compute: Seconds, memory: Seconds, decode_launch_seconds: Seconds, decode_overlap_order: Ratio = 4.0
) -> Seconds:
    """Time of attention in one decoding step: launch, and the smooth maximum of memory and compute units.

    The parts are `decode_memory_time` and `decode_unit_time`; there is one query per sequence.

    >>> round(float(decode_attention_time(0.1e-3, 1.194e-3, 12e-6)) * 1e3, 3)
    1.206
    """
    return decode_launch_seconds + smooth_maximum(memory, compute, decode_overlap_order)
