"""Parallel generation of pictures and clips: what each split of a denoiser sends, and the latency of a request."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Elements, Flag, Ranks, Ratio, Seconds, Tokens


@formula(symbol="V_U", cite="fang2024", valid="ulysses divides the heads")
def ulysses_bytes(tokens: Tokens, hidden: Elements, element_bytes: Bytes, ulysses: Ranks) -> Bytes:
    """Bytes that a GPU sends in the four all-to-alls (queries, keys, values, output) of one block.

    >>> ulysses_bytes(4608.0, 3072.0, 2.0, 2.0) / 1e6
    28.311552
    """
    return 4 * tokens * hidden * element_bytes * (ulysses - 1) / ulysses**2


@formula(symbol="V_R", cite="fang2024", valid="")
def ring_bytes(tokens: Tokens, hidden: Elements, element_bytes: Bytes, ring: Ranks, ulysses: Ranks) -> Bytes:
    """Bytes of keys and values that a GPU passes around the ring in one block.

    >>> ring_bytes(4608.0, 3072.0, 2.0, 2.0, 1.0) / 1e6
    28.311552
    """
    return 2 * tokens * hidden * element_bytes * (ring - 1) / (ring * ulysses)


@formula(symbol="V_T", cite="shoeybi2019", valid="")
def tensor_bytes(tokens: Tokens, hidden: Elements, element_bytes: Bytes, tp: Ranks) -> Bytes:
    """Bytes of the two all-reduces of one block split by tensors.

    >>> tensor_bytes(4608.0, 3072.0, 2.0, 2.0) / 1e6
    56.623104
    """
    return 2 * 2 * tokens * hidden * element_bytes * (tp - 1) / tp


@formula(symbol="V_P", cite="fang2024", valid="")
def stage_bytes(tokens: Tokens, hidden: Elements, element_bytes: Bytes, pipefusion: Ranks) -> Bytes:
    """Bytes that cross the boundaries of a displaced pipeline in one forward, seen by one GPU.

    >>> stage_bytes(4608.0, 3072.0, 2.0, 2.0) / 1e6
    28.311552
    """
    return tokens * hidden * element_bytes * (pipefusion > 1)


@formula(symbol="t_S", cite="gpucalc-networks", valid="")
def split_time(
    volume: Bytes,
    samples: Count,
    blocks: Count,
    inside_bandwidth: BytesPerSecond,
    split_efficiency: Ratio,
    collectives: Count,
    collective_seconds: Seconds,
) -> Seconds:
    """Communication of one forward: bytes of all blocks over the links, and a start for every collective.

    On fast links the starts outweigh the bytes.

    >>> round(split_time(28.3e6, 1.0, 57.0, 450e9, 0.7, 228.0, 60e-6) * 1e3, 1)
    18.8
    """
    return volume * samples * blocks / (split_efficiency * inside_bandwidth) + collectives * collective_seconds


@formula(symbol="n_coll", cite="fang2024", valid="")
def split_collectives(blocks: Count, ulysses: Ranks, ring: Ranks, tp: Ranks, pipefusion: Ranks) -> Count:
    """Collectives of one forward: four all-to-alls a block, a pass a ring step, two all-reduces, a patch a stage.

    >>> float(split_collectives(57.0, 2.0, 1.0, 1.0, 1.0)), float(split_collectives(57.0, 1.0, 4.0, 1.0, 1.0))
    (228.0, 171.0)
    """
    sequence = 4 * (ulysses > 1) + (ring - 1)
    return blocks * (sequence + 2 * (tp > 1)) + 2 * pipefusion * (pipefusion > 1)


@formula(symbol="x_P", cite="fang2024", valid="steps > 0")
def displaced_factor(steps: Count, pipefusion: Ranks, warm_up_steps: Count) -> Ratio:
    """Steps of a displaced pipeline over plain ones: the first are synchronous and gain nothing.

    >>> round(float(displaced_factor(28.0, 2.0, 1.0)), 4), float(displaced_factor(28.0, 1.0, 1.0))
    (1.0357, 1.0)
    """
    return 1 + np.minimum(warm_up_steps, steps) / steps * (pipefusion - 1)


@formula(symbol="t_den", cite="fang2024", valid="steps > 0")
def denoising_time(forward: Seconds, forwards: Count, steps: Count, displaced: Ratio) -> Seconds:
    """Time of all denoising steps; `forwards` of the denoiser one after the other in each.

    >>> round(denoising_time(0.15, 1.0, 28.0, 1.0), 2)
    4.2
    """
    return forward * forwards * steps * displaced


@formula(symbol="n_f", cite="ho2022", valid="cfg_parallel 1 or 2; in_turn 0 or 1")
def forwards_of_step(guided: Count, cfg_parallel: Ranks, in_turn: Flag) -> Count:
    """Forwards of the denoiser that follow each other in a step: two with guidance where they run in turn.

    Other pipelines put both halves in one batch (`guided_batch`); two groups of GPUs share them.

    >>> [float(forwards_of_step(1.0, *split)) for split in ((1.0, 1.0), (2.0, 1.0), (1.0, 0.0))]
    [2.0, 1.0, 1.0]
    """
    return 1 + in_turn * ((1 + guided) / np.minimum(cfg_parallel, 1 + guided) - 1)


@formula(symbol="n_g", cite="ho2022", valid="cfg_parallel 1 or 2; in_turn 0 or 1")
def guided_batch(samples: Count, guided: Count, cfg_parallel: Ranks, in_turn: Flag) -> Count:
    """Samples of one forward of the denoiser: each twice, with and without its condition, in one batch.

    >>> [float(guided_batch(4.0, 1.0, *split)) for split in ((1.0, 0.0), (2.0, 0.0), (1.0, 1.0))]
    [8.0, 4.0, 4.0]
    """
    return samples * (1 + (1 - in_turn) * ((1 + guided) / np.minimum(cfg_parallel, 1 + guided) - 1))
