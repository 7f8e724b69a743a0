"""Data and storage: what GPUs read, what decoding costs, and when a store starves them.

Symbols: N accelerators, b samples of a batch, z bytes of a sample, t compute time of a batch, d = b·z/t demand of one
accelerator, B rate of the store, h share of reads that a cache serves.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, PerSecond, Ratio, Seconds


@formula(symbol="d", cite="mlperf-storage", valid="compute_time > 0")
def read_demand(batch: Count, sample_bytes: Bytes, compute_time: Seconds) -> BytesPerSecond:
    """Rate at which one accelerator that never waits reads samples: b·z/t.

    >>> round(float(read_demand(7.0, 146600628.0, 0.323)) / 1e9, 3)
    3.177
    """
    return batch * sample_bytes / compute_time


@formula(symbol="N·d·(1-h)", cite="mlperf-storage", valid="0 <= cache_hit < 1")
def store_demand(accelerators: Count, demand: BytesPerSecond, cache_hit: Ratio) -> BytesPerSecond:
    """Rate at which all accelerators together read from the store; what a cache serves stays out.

    >>> float(store_demand(10.0, 2e9, 0.25))
    15000000000.0
    """
    return accelerators * demand * (1 - cache_hit)


@formula(symbol="B", cite="mlperf-storage", valid="")
def store_rate(
    read_bandwidth: BytesPerSecond, iops: PerSecond, sample_bytes: Bytes, reads_per_sample: Count
) -> BytesPerSecond:
    """Rate that a store gives for samples of a size: its bandwidth, or its operations per second, whichever is less.

    >>> float(store_rate(1e10, 1e4, 1e5, 1.0)), float(store_rate(1e9, 1e6, 1e5, 1.0))
    (1000000000.0, 1000000000.0)
    """
    return np.minimum(read_bandwidth, iops * sample_bytes / reads_per_sample)


@formula(symbol="t_read", cite="mlperf-storage", valid="0 <= cache_hit < 1")
def read_time(
    accelerators: Count, batch: Count, sample_bytes: Bytes, cache_hit: Ratio, store_rate: BytesPerSecond
) -> Seconds:
    """Time in which the store delivers one batch to every accelerator.

    >>> float(read_time(10.0, 5.0, 1e8, 0.0, 1e10))
    0.5
    """
    return accelerators * batch * sample_bytes * (1 - cache_hit) / store_rate


@formula(symbol="t_open", cite="mlperf-storage", valid="reader_threads >= 1; stream_rate > 0")
def reader_time(
    batch: Count,
    sample_bytes: Bytes,
    open_latency: Seconds,
    stream_rate: BytesPerSecond,
    reader_threads: Count,
    reads_per_sample: Count,
) -> Seconds:
    """Time in which the reader threads beside one accelerator open and read a batch: b·(r·latency + z/stream)/threads.

    One CosmoFlow record of 2.8 MB, 0.3 ms to open it, 2 GB/s a thread, four threads: 0.43 ms.

    >>> round(float(reader_time(1.0, 2828486.0, 0.3e-3, 2e9, 4.0, 1.0)) * 1e3, 2)
    0.43
    """
    return batch * (reads_per_sample * open_latency + sample_bytes / stream_rate) / reader_threads


@formula(symbol="t_card", cite="gpucalc-counting", valid="0 <= cache_hit < 1; card_rate > 0")
def card_time(batch: Count, sample_bytes: Bytes, cache_hit: Ratio, card_rate: BytesPerSecond) -> Seconds:
    """Time in which a batch passes an accelerator's share of its host's storage card.

    >>> round(float(card_time(7.0, 146600628.0, 0.0, 6.25e9)) * 1e3)
    164
    """
    return batch * sample_bytes * (1 - cache_hit) / card_rate


@formula(symbol="t_wait", cite="mlperf-storage", valid="wait_share >= 0")
def unhidden_wait(compute_time: Seconds, wait_share: Ratio) -> Seconds:
    """What prefetching does not hide of a batch while the store keeps up: first batches, last step, late files.

    >>> round(float(unhidden_wait(0.0035, 0.37)) * 1e3, 2)
    1.29
    """
    return compute_time * wait_share


@formula(symbol="t_decode", cite="gpucalc-counting", valid="cores > 0")
def decode_time(batch: Count, core_seconds: Seconds, cores: Count) -> Seconds:
    """Time in which the cores beside one accelerator decode a batch.

    >>> round(float(decode_time(400.0, 0.006, 12.0)), 6)
    0.2
    """
    return batch * core_seconds / cores


@formula(symbol="t_copy", cite="gpucalc-counting", valid="")
def copy_time(batch: Count, decoded_bytes: Bytes, host_bandwidth: BytesPerSecond) -> Seconds:
    """Time to copy a decoded batch to the accelerator.

    >>> float(copy_time(400.0, 150e3, 60e9))
    0.001
    """
    return batch * decoded_bytes / host_bandwidth


@formula(symbol="AU", cite="mlperf-storage", valid="loading is prefetched: the longest part decides")
def accelerator_utilisation(compute_time: Seconds, batch_time: Seconds) -> Ratio:
    """Share of the time that accelerators compute: t over the time in which batches arrive.

    >>> round(float(accelerator_utilisation(0.3, 0.4)), 6)
    0.75
    """
    return compute_time / batch_time


@formula(symbol="N·b/t", cite="mlperf-storage", valid="")
def sample_rate(accelerators: Count, batch: Count, batch_time: Seconds) -> PerSecond:
    """Samples per second of all accelerators.

    >>> float(sample_rate(36.0, 7.0, 0.36))
    700.0
    """
    return accelerators * batch / batch_time


@formula(symbol="N_max", cite="mlperf-storage", valid="0 < least_utilisation <= 1; cache_hit < 1")
def accelerators_fed(
    store_rate: BytesPerSecond, demand: BytesPerSecond, cache_hit: Ratio, least_utilisation: Ratio
) -> Count:
    """How many accelerators a store keeps busy for at least such a share of the time.

    >>> float(accelerators_fed(1.5e10, 3e9, 0.0, 1.0)), float(accelerators_fed(1.5e10, 3e9, 0.0, 0.8))
    (5.0, 6.0)
    """
    return np.floor(store_rate / (demand * (1 - cache_hit) * least_utilisation) * (1 + 1e-12))


@formula(symbol="c", cite="gpucalc-counting", valid="")
def decode_cores(batch: Count, core_seconds: Seconds, compute_time: Seconds) -> Count:
    """Cores that decode as fast as one accelerator consumes.

    >>> round(float(decode_cores(400.0, 0.005, 0.25)), 3)
    8.0
    """
    return batch * core_seconds / compute_time


@formula(symbol="h", cite="gpucalc-counting", valid="samples read in random order, all equally often")
def cached_share(cache_bytes: Bytes, dataset_bytes: Bytes) -> Ratio:
    """Share of reads that a cache serves once it is full.

    >>> float(cached_share(1e12, 4e12)), float(cached_share(8e12, 4e12))
    (0.25, 1.0)
    """
    return np.minimum(1.0, cache_bytes / dataset_bytes)


@formula(symbol="t'", cite="gpucalc-calibration", valid="a device without a measured compute time")
def scaled_compute_time(compute_time: Seconds, peak_ratio: Ratio, speed_exponent: Ratio) -> Seconds:
    """Compute time of a batch on another device, by the ratio of the dense 16-bit peaks.

    >>> float(scaled_compute_time(0.4, 4.0, 0.5))
    0.2
    """
    return compute_time / peak_ratio**speed_exponent
