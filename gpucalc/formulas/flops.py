"""Floating-point operations of a training step, and utilisation.

Model FLOPs count what the mathematics needs: forward and backward, no recomputation. A product of
(m, k) and (k, n) costs 2·m·n·k.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Count, Flag, Flop, FlopPerSecond, PerSecond, Ratio, Seconds


@formula(symbol="n_pass", cite="chowdhery2022", valid="trains_base 0 or 1")
def matmul_passes(trains_base: Flag, gradient_passes: Count = 2.0) -> Count:
    """Products of each weight matrix: forward and the gradient of its input, and its own where the base trains.

    >>> matmul_passes(1), matmul_passes(0)
    (3.0, 2.0)
    """
    return gradient_passes + trains_base


@formula(symbol="F_mm", cite="chowdhery2022", valid="adapters: no weight gradients of the frozen base")
def matmul_flops_per_token(matmul_parameters_active: Count, passes: Count, flop_per_multiply_add: Flop = 2.0) -> Flop:
    """FLOPs of the weight products of one token: 2·N forward and for each gradient (passes 3, or 2 if frozen).

    >>> float(matmul_flops_per_token(7e9, 3))
    42000000000.0
    """
    return flop_per_multiply_add * passes * matmul_parameters_active


@formula(symbol="s_eff", cite="chowdhery2022", valid="window > 0 for layers with a window")
def attended_length(seq_len: Count, window: Count, window_layers: Count, attention_layers: Count) -> Count:
    """Mean number of keys per query over the attention layers, full square.

    >>> float(attended_length(8192, 1024, 3, 4))
    2816.0
    """
    short = np.minimum(seq_len, np.maximum(window, 1))
    windowed = window_layers / np.maximum(attention_layers, 1)
    return windowed * short + (1 - windowed) * seq_len


@formula(symbol="F_att", cite="chowdhery2022", valid="full square; causal_flops halves it")
def attention_flops_per_token(
    attention_layers: Count,
    attended: Count,
    heads: Count,
    head_dim: Count,
    v_head_dim: Count,
    causal_flops: Flag,
    flop_per_multiply_add: Flop = 2.0,
) -> Flop:
    """FLOPs of scores and of values of one token, forward and backward (three times the forward).

    With equal head sizes this is 12·L·s·a·d.

    >>> float(attention_flops_per_token(32, 2048, 32, 128, 128, 0)) == 12 * 32 * 2048 * 32 * 128
    True
    """
    return (
        3 * flop_per_multiply_add * attention_layers * attended * heads * (head_dim + v_head_dim) / (1 + causal_flops)
    )


@formula(symbol="F_step", cite="chowdhery2022", valid="")
def step_flops(matmul_flops: Flop, attention_flops: Flop, global_batch: Count, seq_len: Count) -> Flop:
    """Model FLOPs of one optimizer step over all GPUs.

    >>> float(step_flops(6e9, 1e9, 2, 10))
    140000000000.0
    """
    return (matmul_flops + attention_flops) * global_batch * seq_len


@formula(symbol="MFU", cite="chowdhery2022", valid="peak is dense")
def model_flops_utilisation(flops: Flop, step_time: Seconds, n_gpus: Count, peak: FlopPerSecond) -> Ratio:
    """Model FLOPs per second over the dense peak of the matrix precision.

    >>> float(model_flops_utilisation(312e12, 2.0, 1, 312e12))
    0.5
    """
    return flops / (step_time * n_gpus * peak)


@formula(symbol="HFU", cite="korthikanti2022", valid="passes 3, or 2 with a frozen base")
def hardware_flops_utilisation(mfu: Ratio, recomputed_share: Ratio, passes: Count = 3.0) -> Ratio:
    """Utilisation with recomputation counted: one more forward pass, a third of the model FLOPs (half if frozen).

    >>> float(hardware_flops_utilisation(0.45, 1.0)), round(float(hardware_flops_utilisation(0.45, 1.0, 2.0)), 3)
    (0.6, 0.675)
    """
    return mfu * (1 + recomputed_share / passes)


@formula(symbol="tokens/s/GPU", cite="chowdhery2022", valid="")
def tokens_per_second_per_gpu(global_batch: Count, seq_len: Count, step_time: Seconds, n_gpus: Count) -> PerSecond:
    """Training throughput of one GPU.

    >>> float(tokens_per_second_per_gpu(8, 1000, 2.0, 4))
    1000.0
    """
    return global_batch * seq_len / (step_time * n_gpus)
