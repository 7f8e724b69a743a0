"""Memory of the logits and of their loss.

Symbols: T tokens of a micro-batch on a rank, V vocabulary, h hidden.
"""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, Count, Flag


@formula(symbol="t_V", cite="shoeybi2019", valid="tp >= 1")
def loss_ranks(tp: Count, vocab_parallel_loss: Flag) -> Count:
    """Ranks over which the logits are sharded while the loss is computed; one where they are gathered first.

    >>> float(loss_ranks(8, 1)), float(loss_ranks(8, 0))
    (8.0, 1.0)
    """
    return 1.0 + vocab_parallel_loss * (tp - 1)


@formula(symbol="M_logits", cite="pytorch-autograd", valid="on the stage with the head")
def logits_memory(tokens: Count, vocab: Count, ranks: Count, logit_bytes: Bytes) -> Bytes:
    """Bytes of the logits, their loss and gradient, `logit_bytes` each.

    An eager fp32 cross entropy takes 14 B (logits 2, log-softmax 4, two gradients in fp32), 12 with the logits
    deleted before; in place 8, compiled 4.3, in eight chunks of tokens 1.8.

    8,192 tokens, 128,256 words:

    >>> [round(float(logits_memory(8192, 128256, 1, b)) / 2**30, 2) for b in (14.0, 12.0, 8.0, 4.3)]
    [13.7, 11.74, 7.83, 4.21]
    >>> round(float(logits_memory(8192, 128256, 8, 14.0)) / 2**30, 3)
    1.712
    """
    return tokens * vocab / ranks * logit_bytes


@formula(symbol="M_loss", cite="korthikanti2022", valid="holds_head 0 or 1")
def loss_memory(loss: Bytes, holds_head: Flag) -> Bytes:
    """Bytes of the loss on a stage: only the stage with the head has any.

    >>> float(loss_memory(5.0, 1)), float(loss_memory(5.0, 0))
    (5.0, 0.0)
    """
    return loss * holds_head


@formula(symbol="[only]", cite="narayanan2021", valid="pp >= 1")
def only_stage(pp: Count) -> Flag:
    """Whether there is one stage, which then holds the head.

    >>> float(only_stage(1)), float(only_stage(4))
    (1.0, 0.0)
    """
    return 1.0 * np.equal(pp, 1)


@formula(symbol="T_chunk", cite="liger2024", valid="tokens, vocab, hidden >= 1")
def fused_linear_rows(tokens: Count, vocab: Count, hidden: Count) -> Count:
    """Tokens of one chunk of a loss that is fused with the head: the power of 2 above T/⌈V/h⌉.

    >>> float(fused_linear_rows(8192, 128256, 4096))
    256.0
    """
    return np.minimum(2.0 ** np.ceil(np.log2(np.ceil(tokens / np.ceil(vocab / hidden)))), tokens)


@formula(symbol="M_linear", cite="liger2024", valid="the loss and the head's product are one kernel")
def fused_linear_memory(
    rows: Count,
    tokens: Count,
    vocab: Count,
    hidden: Count,
    ranks: Count,
    logit_bytes: Bytes = 2.0,
    gradient_bytes: Bytes = 2.0,
) -> Bytes:
    """Bytes of one chunk of logits, and of the gradients of the tokens and of the head that are made beside it.

    >>> round(float(fused_linear_memory(256, 8192, 128256, 0, 1)) / 2**30, 3)
    0.061
    """
    return rows * vocab / ranks * logit_bytes + gradient_bytes * hidden * (tokens + vocab / ranks)
