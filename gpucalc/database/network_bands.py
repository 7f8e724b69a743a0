"""The 80 % band of networks: how far measured runs of a family lie from predictions of sources left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucalc.database.bands import widened

if TYPE_CHECKING:
    from gpucalc.database.cluster import Cluster
    from gpucalc.database.reader import Database
    from gpucalc.database.stacks import Rates, Stack

UNVALIDATED = "unvalidated"
ACROSS = "across"  # more than one server: widens the band of its family


def network_band(
    net: str, mode: str, stack: Stack, rates: Rates, cluster: Cluster, db: Database
) -> tuple[float, float]:
    """Factors on the predicted time between which 80 % of measured times lie.

    A stack or a kind of net without rows of its own has the widest band.
    """
    table = {row.key[0]: (row.values["low"], row.values["high"]) for row in db.table("network_bands").values()}
    family = f"{mode}/{net}"
    known = family in table and stack.known and rates.own
    band = table[family if known else UNVALIDATED]
    if mode == "training" and cluster.n_gpus > cluster.gpus_per_node:
        band = widened(band, table[ACROSS])
    return band
