"""Measured kernels as columns of the formulas, for `fit_kernels.py`."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.efficiency import ELEMENT_BYTES, OUTPUT_BYTES
from gpucalc.formula import info_of
from gpucalc.formulas.attention import attended_keys, decode_attention_time, flash_attention_time
from gpucalc.formulas.roofline import cast_time, gemm_time, gemm_traffic
from gpucalc.hardware import Database

LARGE = 1024  # m, n, k from here on count as a large product


@dataclass
class Sample:
    """Timings of one device and kind: columns of the formulas, measured seconds, which rows are held out and large."""

    columns: dict[str, Any]
    seconds: np.ndarray
    held: np.ndarray
    large: np.ndarray

    def part(self, mask: np.ndarray) -> Sample:
        """The rows of a mask."""
        chosen = {n: v[mask] if isinstance(v, np.ndarray) else v for n, v in self.columns.items()}
        return Sample(chosen, self.seconds[mask], self.held[mask], self.large[mask])


def evaluate(formula: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """A formula with its arguments taken by name."""
    return formula(**{n: values[n] for n in info_of(formula).parameters if n in values})


def gemm_model(columns: Mapping[str, Any], constants: Mapping[str, float]) -> np.ndarray:
    """Seconds of the products, with the cast of A where the format is quantised."""
    values = {**columns, **constants}
    seconds = evaluate(gemm_time, values)
    if "cast_bytes_per_element" in constants:
        seconds = seconds + evaluate(cast_time, {**values, "elements": columns["m"] * columns["k"]})
    return np.asarray(seconds)


def prefill_model(columns: Mapping[str, Any], constants: Mapping[str, float]) -> np.ndarray:
    """Seconds of causal prefill attention."""
    return np.asarray(evaluate(flash_attention_time, {**columns, **constants}))


def decode_model(columns: Mapping[str, Any], constants: Mapping[str, float]) -> np.ndarray:
    """Seconds of decode attention."""
    return np.asarray(evaluate(decode_attention_time, {**columns, **constants}))


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file whose comment lines begin with #."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def is_held(*shape: str) -> bool:
    """Whether a shape is held out of the fit: one in five, by checksum."""
    return zlib.crc32(",".join(shape).encode()) % 5 == 0


def group(rows: Sequence[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows by the values of some columns."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[n] for n in names), []).append(row)
    return found


def number(rows: Sequence[dict[str, str]], name: str) -> np.ndarray:
    """One column as numbers."""
    return np.array([float(row[name]) for row in rows])


def gemm_sample(db: Database, gpu: str, precision: str, rows: Sequence[dict[str, str]]) -> Sample:
    """Timings of matrix products of one device and precision."""
    device = db.device(gpu)
    columns: dict[str, Any] = {name: number(rows, name) for name in "mnk"}
    large = (columns["m"] >= LARGE) & (columns["n"] >= LARGE) & (columns["k"] >= LARGE)
    columns |= {
        "peak": device.precision_peak(precision),
        "memory_bandwidth": device.memory_bandwidth,
        "compute_units": float(device.compute_units or 1),
        "l2_bytes": float(device.l2_bytes or 1),
        "element_bytes": ELEMENT_BYTES[precision],
        "output_bytes": OUTPUT_BYTES.get(precision, 2.0),
    }
    held = np.array([is_held(r["m"], r["n"], r["k"]) for r in rows])
    return Sample(columns, number(rows, "time_us") * 1e-6, held, large)


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


def streaming_efficiency(sample: Sample, launch: float) -> float:
    """Share of the datasheet bandwidth at which products of few rows read weights far larger than the cache."""
    columns = sample.columns
    traffic = evaluate(gemm_traffic, columns)
    chosen = (columns["m"] <= 16) & (traffic > 0.25e9)
    rate = traffic[chosen] / (sample.seconds[chosen] - launch) / columns["memory_bandwidth"]
    return float(np.median(rate))
