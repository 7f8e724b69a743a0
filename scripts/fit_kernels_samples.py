"""Measured attention as columns of the formulas, for `fit_kernels.py`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.calibrate.kernels import Sample, is_held, number
from gpucalc.database.reader import Database
from gpucalc.estimate import products
from gpucalc.formulas.attention import attended_keys


def prefill_model(columns: Mapping[str, Any], constants: Mapping[str, float]) -> np.ndarray:
    """Seconds of causal prefill attention."""
    return np.asarray(products.seconds(products.add_flash_attention, {**columns, **constants}))


def decode_model(columns: Mapping[str, Any], constants: Mapping[str, float]) -> np.ndarray:
    """Seconds of decode attention."""
    return np.asarray(products.seconds(products.add_decode_attention, {**columns, **constants}))


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file whose comment lines begin with #."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def group(rows: Sequence[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows by the values of some columns."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[n] for n in names), []).append(row)
    return found


def attention_sample(db: Database, gpu: str, rows: Sequence[dict[str, str]]) -> Sample:
    """Timings of attention of one device and phase."""
    device = db.device(gpu)
    length = number(rows, "seqlen")
    columns: dict[str, Any] = {name: number(rows, name) for name in ("batch", "heads", "kv_heads", "head_dim")}
    columns |= {
        "queries": length,
        "keys": length,
        "context": length,
        "attended": attended_keys(length, length, 1),
        "kv_bytes": 2.0,
        "attention_element_bytes": 2.0,
        "peak": device.precision_peak("bf16"),
        "memory_bandwidth": device.memory_bandwidth,
        "compute_units": float(device.compute_units or 1),
        "l2_bytes": float(device.l2_bytes or 1),
        "attention_efficiency": 0.5,  # decode reads it for its products, which never rule here
    }
    held = np.array([is_held(r["batch"], r["seqlen"], r["heads"], r["kv_heads"]) for r in rows])
    return Sample(columns, number(rows, "time_us") * 1e-6, held, length >= 4096)
