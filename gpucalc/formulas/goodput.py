"""Failures and goodput: how often a job is interrupted, when to save, and what share of the time is useful.

Symbols: M mean time between interruptions of the job, w time that a save blocks, T useful work between two saves,
T* the best such interval, d detection, R restart, n GPUs, φ share of the time that saves may take.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, PerSecond, Ratio, Seconds


@formula(symbol="n_eff", cite="kokolis2024", valid="n_gpus >= 1; 1 <= small_job_factor < 9")
def failing_gpus(n_gpus: Count, small_job_factor: Ratio, small_job_gpus: Count) -> Count:
    """GPUs that a job fails like: small jobs fail more often than their nodes, from causes that node rates leave out.

    The factor falls smoothly from `small_job_factor` to 1 around `small_job_gpus`: n·(1 + (F-1)/(1 + (n/n_0)²)),
    which grows with n for every factor below 9.

    >>> [round(float(failing_gpus(n, 4.0, 2500.0))) for n in (8, 1024, 16384)]
    [32, 3655, 17502]
    """
    return n_gpus * (1 + (small_job_factor - 1) / (1 + (n_gpus / small_job_gpus) ** 2))


@formula(symbol="M", cite="kokolis2024", valid="independent failures at a constant rate")
def job_mtbf(failing_gpus: Count, gpu_failure_rate: PerSecond) -> Seconds:
    """Mean time between interruptions of a job: 1/(n·r).

    >>> round(float(job_mtbf(16384.0, 6.5e-3 / 8 / 86400)) / 3600, 2)
    1.8
    """
    return 1 / (failing_gpus * gpu_failure_rate)


@formula(symbol="C", cite="gpucalc-counting", valid="")
def checkpoint_size(parameters: Count, state_bytes: Bytes) -> Bytes:
    """Bytes of one checkpoint: weights, fp32 master copy and two moments of every parameter.

    >>> round(float(checkpoint_size(405.85e9, 14.0)) / 2**30, 1)
    5291.7
    """
    return parameters * state_bytes


@formula(symbol="C/B", cite="gpucalc-counting", valid="bandwidth > 0")
def transfer_time(size: Bytes, bandwidth: BytesPerSecond) -> Seconds:
    """Time to move bytes at a rate.

    >>> float(transfer_time(2.3e12, 57.5e9))
    40.0
    """
    return size / bandwidth


@formula(symbol="B", cite="gpucalc-counting", valid="per_gpu, most > 0")
def store_bandwidth(n_gpus: Count, per_gpu: BytesPerSecond, most: BytesPerSecond) -> BytesPerSecond:
    """Rate of a store that is bought by the GPU, but no larger than production stores sustain.

    >>> float(store_bandwidth(256.0, 0.24e9, 100e9)) / 1e9, float(store_bandwidth(16384.0, 0.24e9, 100e9)) / 1e9
    (61.44, 100.0)
    """
    return np.minimum(n_gpus * per_gpu, most)


@formula(symbol="R", cite="ft-hsdp2026", valid="members >= 1")
def restart_time(restart: Seconds, members: Count, restart_per_gpu: Seconds) -> Seconds:
    """Scheduling, process start and communicators of a job: a part of its own, and one that grows with its GPUs.

    >>> round(float(restart_time(120.0, 100000.0, 3.6e-3)))
    480
    """
    return restart + members * restart_per_gpu


@formula(symbol="w", cite="wang2023", valid="asynchronous is 0 or 1")
def blocking_time(persist_time: Seconds, staging_time: Seconds, save_overhead: Seconds, asynchronous: Ratio) -> Seconds:
    """Time that a save stops the job: writing it out, or (asynchronous) only the copy to the host's memory.

    >>> float(blocking_time(40.0, 0.5, 0.5, 0.0)), float(blocking_time(40.0, 0.5, 0.5, 1.0))
    (40.5, 1.0)
    """
    return save_overhead + persist_time + asynchronous * (staging_time - persist_time)


@formula(symbol="T_Young", cite="young1974", valid="blocking much smaller than mtbf")
def young_interval(blocking: Seconds, mtbf: Seconds) -> Seconds:
    """First-order best interval between checkpoints: √(2wM).

    >>> float(young_interval(50.0, 10000.0))
    1000.0
    """
    return np.sqrt(2 * blocking * mtbf)


@formula(symbol="T_Daly", cite="daly2006", valid="blocking > 0")
def daly_interval(blocking: Seconds, mtbf: Seconds) -> Seconds:
    """Higher-order best interval, M itself where a save takes twice that or more.

    >>> round(float(daly_interval(50.0, 10000.0)), 1), float(daly_interval(300.0, 100.0))
    (966.9, 100.0)
    """
    ratio = np.sqrt(blocking / (2 * mtbf))
    return np.where(
        blocking < 2 * mtbf,
        np.sqrt(2 * blocking * mtbf) * (1 + ratio / 3 + ratio**2 / 9) - blocking,
        mtbf,
    )


@formula(symbol="T'", cite="daly2006", valid="interval above the root; Newton's method falls to it")
def newton_interval(interval: Seconds, blocking: Seconds, mtbf: Seconds) -> Seconds:
    """One step of Newton's method towards T/M = 1 - e^(-(T+w)/M), where the exact goodput is largest.

    >>> round(float(newton_interval(1000.0, 50.0, 10000.0)), 1)
    967.4
    """
    left = np.exp(-(interval + blocking) / mtbf)
    return interval - (interval / mtbf - 1 + left) * mtbf / (1 - left)


@formula(symbol="T*", cite="daly2006", valid="exponential failures; blocking > 0")
def best_interval(blocking: Seconds, mtbf: Seconds) -> Seconds:
    """The interval that maximises the exact goodput, by four steps of Newton's method from Young's.

    >>> round(float(best_interval(50.0, 10000.0)), 1), round(float(best_interval(1e6, 100.0)), 1)
    (966.9, 100.0)
    """
    second = newton_interval(newton_interval(young_interval(blocking, mtbf), blocking, mtbf), blocking, mtbf)
    return newton_interval(newton_interval(second, blocking, mtbf), blocking, mtbf)


@formula(symbol="T", cite="wang2023", valid="asynchronous is 0 or 1")
def feasible_interval(interval: Seconds, persist_time: Seconds, step_time: Seconds, asynchronous: Ratio) -> Seconds:
    """The interval, no shorter than a step, nor than an asynchronous save needs to reach the store.

    >>> float(feasible_interval(10.0, 40.0, 5.0, 1.0)), float(feasible_interval(10.0, 40.0, 5.0, 0.0))
    (40.0, 10.0)
    """
    return np.maximum(np.maximum(interval, step_time), asynchronous * persist_time)


@formula(symbol="d+R", cite="wang2023", valid="")
def recovery_time(
    detection: Seconds,
    restart_time: Seconds,
    load_time: Seconds,
    persist_time: Seconds,
    asynchronous: Ratio,
    miss: Seconds,
) -> Seconds:
    """Time lost by a failure beside half an interval: detection, restart, loading, and work newer than the last save.

    `miss` is what failures cost on average that leave no copy in memory and go back to the store.

    >>> float(recovery_time(60.0, 300.0, 20.0, 40.0, 1.0, 0.0)), float(recovery_time(60.0, 300.0, 20.0, 40.0, 0.0, 5.0))
    (420.0, 385.0)
    """
    return detection + restart_time + load_time + asynchronous * persist_time + miss


@formula(symbol="p·(t_load+T_s/2)", cite="wang2023", valid="0 <= miss_share <= 1; in_memory is 0 or 1")
def missed_copies(miss_share: Ratio, store_load: Seconds, store_interval: Seconds, in_memory: Ratio) -> Seconds:
    """Mean cost of failures after which no copy in memory is left: load from the store, half its interval again.

    >>> float(missed_copies(0.02, 100.0, 1800.0, 1.0)), float(missed_copies(0.02, 100.0, 1800.0, 0.0))
    (20.0, 0.0)
    """
    return in_memory * miss_share * (store_load + store_interval / 2)


@formula(symbol="n/D", cite="gpucalc-counting", valid="replicas >= 1")
def replica_gpus(n_gpus: Count, replicas: Count) -> Count:
    """GPUs of one data-parallel replica.

    >>> float(replica_gpus(1024.0, 8.0))
    128.0
    """
    return n_gpus / replicas


@formula(symbol="t_a", cite="gpucalc-counting", valid="failing_gpus >= n_gpus; failed_share of the nodes' failures")
def elastic_absence(
    n_gpus: Count, failing_gpus: Count, failed_share: Ratio, repair: Seconds, restarted: Seconds
) -> Seconds:
    """Mean time that a failed replica is away when nothing replaces its node.

    What breaks hardware waits for the repair; the further failures of small jobs are of other causes and restart.
    1,024 GPUs that fail as often as 4,096 would, a day of repair, five minutes to restart: 6.1 h.

    >>> round(float(elastic_absence(1024.0, 4096.0, 1.0, 86400.0, 300.0)) / 3600, 2)
    6.06
    """
    hardware = failed_share * n_gpus / failing_gpus
    return hardware * repair + (1 - hardware) * restarted


@formula(symbol="A", cite="ft-hsdp2026", valid="replicas >= 2; mtbf of the whole job")
def replicas_present(mtbf: Seconds, replicas: Count, absence: Seconds, stall: Seconds) -> Ratio:
    """Share of the replicas at work when a failure takes one of them for `absence`: D·M/(D·M + t_a - s).

    While all stall the failed one costs nothing more.
    24 replicas, a failure every 18 min, ten minutes away each time, three of which all stand still:

    >>> round(float(replicas_present(1080.0, 24.0, 600.0, 180.0)), 4)
    0.9841
    """
    return replicas * mtbf / (replicas * mtbf + np.maximum(absence - stall, 0.0))


@formula(symbol="G_r", cite="ft-hsdp2026", valid="exponential failures; the others go on without rollback")
def goodput_of_survivors(interval: Seconds, blocking: Seconds, stall: Seconds, mtbf: Seconds, present: Ratio) -> Ratio:
    """Goodput where a failure stops one replica and stalls the others for a while: A·e^(-s/M)·T/(T+w).

    >>> round(float(goodput_of_survivors(1800.0, 1.0, 180.0, 1080.0, 0.9841)), 3)
    0.833
    """
    return present * np.exp(-stall / mtbf) * interval / (interval + blocking)


@formula(symbol="G·(1-t_p/t_m)", cite="gpucalc-counting", valid="0 <= maintenance < month")
def goodput_with_maintenance(unplanned: Ratio, maintenance: Seconds, month: Seconds) -> Ratio:
    """Goodput when the cluster also stands still for planned work, so long in every month of 30 days.

    >>> round(float(goodput_with_maintenance(0.95, 14400.0, 2592000.0)), 4)
    0.9447
    """
    return unplanned * (1 - maintenance / month)


@formula(symbol="T_φ", cite="young1974", valid="0 < stall_share < 1")
def stalled_interval(mtbf: Seconds, stall_share: Ratio) -> Seconds:
    """The interval that is best by Young's law when a save takes `stall_share` of it: w = φT and T² = 2wM, so 2φM.

    >>> float(stalled_interval(10900.0, 0.05))
    1090.0
    """
    return 2 * stall_share * mtbf


@formula(symbol="G", cite="daly2006", valid="exponential failures, also during saves and restarts")
def goodput(interval: Seconds, blocking: Seconds, recovery: Seconds, mtbf: Seconds) -> Ratio:
    """Share of the time that is useful: T/(M·e^((d+R)/M)·(e^((T+w)/M) - 1)).

    >>> round(float(goodput(654.0, 20.0, 360.0, 3.09 * 3600)), 3)
    0.911
    """
    return interval / (mtbf * np.exp(recovery / mtbf) * np.expm1((interval + blocking) / mtbf))


@formula(symbol="G_1", cite="kokolis2024", valid="lost time per failure well below mtbf")
def small_loss_goodput(interval: Seconds, blocking: Seconds, recovery: Seconds, mtbf: Seconds) -> Ratio:
    """The same to first order: (1 - (d+R+(T+w)/2)/M)/(1+w/T).

    >>> round(float(small_loss_goodput(654.0, 20.0, 360.0, 3.09 * 3600)), 3)
    0.91
    """
    return (1 - (recovery + (interval + blocking) / 2) / mtbf) / (1 + blocking / interval)


@formula(symbol="(d+R+T/2)/M", cite="kokolis2024", valid="")
def lost_share(interval: Seconds, recovery: Seconds, mtbf: Seconds) -> Ratio:
    """What failures cost to first order, as a share of the time; above a quarter closed forms and simulations part.

    >>> float(lost_share(200.0, 300.0, 4000.0))
    0.1
    """
    return (recovery + interval / 2) / mtbf


@formula(symbol="t", cite="gpucalc-counting", valid="useful_share > 0")
def elapsed_time(useful_time: Seconds, useful_share: Ratio) -> Seconds:
    """Time of the whole run from the time that its steps take.

    >>> float(elapsed_time(90.0, 0.9))
    100.0
    """
    return useful_time / useful_share


@formula(symbol="n_f", cite="gpucalc-counting", valid="")
def expected_failures(elapsed: Seconds, mtbf: Seconds) -> Count:
    """Interruptions of a run.

    >>> round(float(expected_failures(54 * 86400.0, 3.09 * 3600)))
    419
    """
    return elapsed / mtbf


@formula(symbol="C/(φT)", cite="gpucalc-counting", valid="0 < stall_share <= 1")
def save_bandwidth(size: Bytes, interval: Seconds, stall_share: Ratio) -> BytesPerSecond:
    """Rate at which a save must be written: in a share of the interval (blocking), or in all of it (share 1).

    >>> [round(float(save_bandwidth(5.3e12, 1800.0, share)) / 1e9) for share in (0.05, 1.0)]
    [59, 3]
    """
    return size / (stall_share * interval)


@formula(symbol="n·r·t_repair", cite="gpucalc-counting", valid="failed_share: failures that take hardware away")
def units_under_repair(n_gpus: Count, gpu_failure_rate: PerSecond, repair: Seconds, failed_share: Ratio) -> Count:
    """Mean number of failed nodes (or racks, where a failure takes one) away for repair, at most all there are.

    >>> round(float(units_under_repair(16384.0, 3.8e-3 / 8 / 86400, 86400.0, 1.0)), 2)
    7.78
    >>> float(units_under_repair(8.0, 1.0, 1e9, 1.0))
    8.0
    """
    return np.minimum(n_gpus * gpu_failure_rate * repair * failed_share, n_gpus)


@formula(symbol="s", cite="gpucalc-counting", valid="mean >= 0; 0 < availability < 1")
def fewest_spares(mean: Count, availability: Ratio) -> Count:
    """Fewest spares that cover the failures under repair with the target probability: those are Poisson.

    Counts the numbers k whose probability P(X <= k) stays below the target.

    >>> float(fewest_spares(7.78, 0.99)), float(fewest_spares(39.9, 0.99))
    (15.0, 55.0)
    """
    k = np.arange(np.ceil(np.max(mean + 10 * np.sqrt(mean))) + 30)
    terms = np.multiply.outer(np.log(np.maximum(mean, 1e-300)), k) - np.cumsum(np.log(np.maximum(k, 1.0)))
    covered = np.cumsum(np.exp(terms - np.multiply.outer(mean, np.ones_like(k))), axis=-1)
    return 1.0 * np.sum(covered < np.multiply.outer(availability, np.ones_like(k)), axis=-1)


@formula(symbol="(D-1)/D", cite="gpucalc-counting", valid="replicas >= 1")
def shrunk_throughput(replicas: Count) -> Ratio:
    """Throughput of a job that goes on without one replica until it is replaced.

    >>> float(shrunk_throughput(8.0))
    0.875
    """
    return (replicas - 1) / replicas


@formula(symbol="P_pair", cite="wang2023", valid="failed << nodes; each node's state in its own and one other memory")
def pair_loss(failed: Count, nodes: Count) -> Ratio:
    """Chance that simultaneous losses of nodes hit both in-memory copies of some state: k(k-1)/(2(n-1)).

    >>> round(float(pair_loss(2.0, 101.0)), 3)
    0.01
    """
    return np.minimum(failed * (failed - 1) / (2 * np.maximum(nodes - 1, 1)), 1.0)


@formula(symbol="Y", cite="gpucalc-counting", valid="")
def cluster_yield(allocated: Ratio, busy: Ratio, useful_share: Ratio, waiting_share: Ratio, mfu: Ratio) -> Ratio:
    """Share of the cluster's dense peak that trains the model: allocated × busy × goodput × (1 - straggler) × MFU.

    >>> round(float(cluster_yield(0.98, 1.0, 0.9, 0.05, 0.4)), 4)
    0.3352
    """
    return allocated * busy * useful_share * (1 - waiting_share) * mfu


@formula(symbol="t_0", cite="gpucalc-counting", valid="token_rate > 0")
def training_time(training_tokens: Count, token_rate: PerSecond, n_gpus: Count) -> Seconds:
    """Time of all steps of a run, were there neither failures nor saves.

    >>> round(float(training_time(15e12, 400.0, 16384.0)) / 86400, 1)
    26.5
    """
    return training_tokens / (token_rate * n_gpus)


@formula(symbol="n·t", cite="gpucalc-counting", valid="")
def gpu_time(n_gpus: Count, elapsed: Seconds) -> Seconds:
    """GPU seconds of a run.

    >>> float(gpu_time(8.0, 3600.0)) / 3600
    8.0
    """
    return n_gpus * elapsed


@formula(symbol="1-1/s", cite="gpucalc-counting", valid="slowdown >= 1")
def waiting_share(slowdown: Ratio) -> Ratio:
    """Share of a step in which GPUs wait for the slowest one.

    >>> round(float(waiting_share(1.25)), 6)
    0.2
    """
    return 1 - 1 / slowdown


@formula(symbol="MFU_0", cite="chowdhery2022", valid="slowdown >= 1")
def unhindered_mfu(mfu: Ratio, slowdown: Ratio) -> Ratio:
    """Model FLOPs utilisation of a step without stragglers.

    >>> float(unhindered_mfu(0.4, 1.25))
    0.5
    """
    return mfu * slowdown


@formula(symbol="n/(n+s·u)", cite="gpucalc-counting", valid="")
def allocated_share(n_gpus: Count, spares: Count, unit_gpus: Count, spare_racks: Count, rack_gpus: Count) -> Ratio:
    """Share of the GPUs that work while spare nodes of `unit_gpus`, and racks where some faults take one, wait.

    >>> float(allocated_share(96.0, 1.0, 32.0, 0.0, 0.0)), float(allocated_share(576.0, 0.0, 4.0, 2.0, 72.0))
    (0.75, 0.8)
    """
    return n_gpus / (n_gpus + spares * unit_gpus + spare_racks * rack_gpus)


@formula(symbol="w_s", cite="gpucalc-counting", valid="holders >= 1")
def staging_time(size: Bytes, holders: Count, host_bandwidth: BytesPerSecond) -> Seconds:
    """Time to copy a GPU's shard of a checkpoint to the memory of its host.

    >>> float(staging_time(1e12, 100.0, 1e10))
    1.0
    """
    return size / (holders * host_bandwidth)


@formula(symbol="C/t", cite="gpucalc-counting", valid="duration > 0")
def transfer_rate(size: Bytes, duration: Seconds) -> BytesPerSecond:
    """Rate that moves bytes within a time.

    >>> float(transfer_rate(6e12, 60.0))
    100000000000.0
    """
    return size / duration
