"""Recommenders: embedding tables, and the dense net on what they return."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gpucalc.models.networks.component import EMBEDDING, MLP, Component, Count


def dlrm(spec: dict[str, Any], sizes: dict[str, Any]) -> list[Component]:
    """DLRM: tables, a bottom net on the dense inputs, an interaction (dot products or cross layers), a top net."""
    tables, width = int(sizes["tables"]), int(sizes["embedding_dim"])
    rows = round(float(sizes["table_rows_m"]) * 1e6)
    embedding = Component(
        "embedding", EMBEDDING, rows * width, looked_up=float(sizes["hotness"]), width=width, tables=tables
    )
    dense, features = Count(), tables + 1
    bottom = [int(spec["dense_inputs"]), *spec["bottom"]]
    for inputs, outputs in pairwise(bottom):
        dense.linear(inputs, outputs)
    if spec.get("cross_layers"):
        joined = features * width
        for _ in range(spec["cross_layers"]):
            dense.linear(joined, spec["cross_rank"], 1, False)
            dense.linear(spec["cross_rank"], joined)
    else:
        joined = features * (features - 1) // 2 + width
        dense.macs += features * features * width
        dense.elements += joined
        dense.launches += 1
    for inputs, outputs in pairwise([joined, *spec["top"]]):
        dense.linear(inputs, outputs)
    return [embedding, dense.component("dense", MLP)]


FAMILIES = {"dlrm": dlrm}
