"""Embedding tables of recommenders: lookups, exchange of rows, memory."""

from __future__ import annotations

import numpy as np

from gpucalc.core.formula import formula
from gpucalc.core.units import Bytes, BytesPerSecond, Count, Elements, Ranks, Ratio, Seconds


@formula(symbol="t_emb", cite="naumov2019", valid="tables spread evenly over the shards")
def lookup_time(
    looked_up: Count,
    width: Elements,
    samples: Count,
    row_bytes: Bytes,
    lookup_passes: Ratio,
    memory_bandwidth: BytesPerSecond,
) -> Seconds:
    """Time to read rows and, in training, to write back gradient and optimizer rows.

    `samples`: those of one GPU's share of the batch, which is what its tables answer; `lookup_passes` over the rows.

    >>> round(lookup_time(214.0, 128.0, 6912.0, 4.0, 5.0, 3.35e12) * 1e3, 2)
    1.13
    """
    return looked_up * width * samples * row_bytes * lookup_passes / memory_bandwidth


@formula(symbol="V_a2a", cite="naumov2019", valid="pooled rows of each table; forward and backward")
def exchange_bytes(tables: Count, width: Elements, samples: Count, exchange_bytes_each: Bytes, shards: Ranks) -> Bytes:
    """Bytes that one GPU sends in the all-to-all of pooled rows: all but those it keeps.

    >>> exchange_bytes(26.0, 128.0, 6912.0, 2.0, 8.0) / 1e6
    40.255488
    """
    return tables * width * samples * exchange_bytes_each * (shards - 1) / shards


@formula(symbol="t_a2a", cite="gpucalc-networks", valid="")
def pooled_exchange_time(
    volume: Bytes,
    directions: Count,
    inside_bandwidth: BytesPerSecond,
    card_bandwidth: BytesPerSecond,
    shards: Ranks,
    inside: Ranks,
    exchange_efficiency: Ratio,
) -> Seconds:
    """Time of the all-to-alls: the share inside the domain over its links beside that which leaves it over the card.

    >>> round(float(pooled_exchange_time(40e6, 2.0, 450e9, 50e9, 8.0, 8.0, 0.6)) * 1e3, 3)
    0.296
    """
    leaving = np.maximum(shards - inside, 0) / np.maximum(shards - 1, 1)
    inner = (1 - leaving) * volume / inside_bandwidth
    outer = leaving * volume / card_bandwidth
    return directions * np.maximum(inner, outer) / exchange_efficiency


@formula(symbol="M_emb", cite="naumov2019", valid="")
def table_memory(parameters: Count, row_bytes: Bytes, optimizer_row: Ratio, shards: Ranks) -> Bytes:
    """Tables with the optimizer's state of their rows, spread over the shards.

    >>> round(table_memory(26.1e9, 4.0, 1.0, 8.0) / 2**30, 1)
    24.3
    """
    return parameters * row_bytes * (1 + optimizer_row) / shards
