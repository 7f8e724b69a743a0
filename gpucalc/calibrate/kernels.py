"""Fitting the constants of the matrix product formula to timings: the formulas are gpucalc's own.

Nelder and Mead's simplex over the logarithms of the constants, within physical bounds; one shape in five
is held out. Constants that the timings do not determine are drawn to a prior where there is one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucalc.core.formula import info_of
from gpucalc.database.efficiency import ELEMENT_BYTES, OUTPUT_BYTES
from gpucalc.database.reader import Database
from gpucalc.estimate import products
from gpucalc.formulas.roofline import cast_time, gemm_traffic

LARGE = 1024  # m, n, k from here on count as a large product
# The loss grows as the logarithm of 1 + error / TYPICAL, so that it follows the bulk of the shapes and not the
# few where the library chose a poor kernel; large products count LARGE_WEIGHT times, since they fill a training step.
TYPICAL = 0.05
LARGE_WEIGHT = 1.5
# A cache penalty and a higher plateau nearly cancel: prefer the smaller penalty.
PENALTY_RIDGE = 0.02
# Weight of the mean squared distance, in logarithms, to the mean of the relatives: constants that the timings of one
# device do not determine are then alike on all, and carry over to devices without timings.
RELATIVES_WEIGHT = 0.01


# constant → (start, least, most). Bounds are physical: an efficiency is below 1, a launch above 0.
GEMM = {
    "gemm_launch_seconds": (3e-6, 1e-7, 2e-5),
    "gemm_efficiency": (0.8, 0.3, 1.0),
    "gemm_wave_exponent": (0.5, 0.05, 1.2),
    "gemm_k_half": (80.0, 1.0, 500.0),
    "gemm_memory_efficiency": (0.8, 0.4, 0.95),
    "gemm_l2_read_ratio": (0.9, 0.1, 1.0),
    "gemm_l2_miss_penalty": (0.05, 0.001, 0.25),
}
QUANTISED = {
    "gemm_efficiency": (0.75, 0.3, 1.0),
    "gemm_wave_exponent": (0.6, 0.05, 1.2),
    "gemm_k_half": (100.0, 1.0, 1000.0),
    "gemm_l2_miss_penalty": (0.02, 0.001, 0.25),
    "cast_bytes_per_element": (6.0, 1.0, 12.0),
    "cast_launch_seconds": (10e-6, 1e-7, 3e-5),
}


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
    seconds = products.seconds(products.add_gemm, values)
    if "cast_bytes_per_element" in constants:
        seconds = seconds + evaluate(cast_time, {**values, "elements": columns["m"] * columns["k"]})
    return np.asarray(seconds)


def is_held(*shape: str) -> bool:
    """Whether a shape is held out of the fit: one in five, by checksum."""
    return zlib.crc32(",".join(shape).encode()) % 5 == 0


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


def streaming_efficiency(sample: Sample, launch: float) -> float:
    """Share of the datasheet bandwidth at which products of few rows read weights far larger than the cache."""
    columns = sample.columns
    traffic = evaluate(gemm_traffic, columns)
    chosen = (columns["m"] <= 16) & (traffic > 0.25e9)
    rate = traffic[chosen] / (sample.seconds[chosen] - launch) / columns["memory_bandwidth"]
    return float(np.median(rate))


Model = Callable[[Mapping[str, Any], Mapping[str, float]], np.ndarray]


def simplex(loss: Callable[[np.ndarray], float], start: np.ndarray, steps: int = 1500, restarts: int = 4) -> np.ndarray:
    """Nelder and Mead's downhill simplex, restarted from its own result."""
    best = start
    for _ in range(restarts):
        corners = np.vstack([best, best + 0.15 * np.eye(len(best))])
        values = np.array([loss(c) for c in corners])
        for _ in range(steps):
            order = np.argsort(values)
            corners, values = corners[order], values[order]
            if values[-1] - values[0] < 1e-6:
                break
            centre = corners[:-1].mean(axis=0)
            trial = centre + (centre - corners[-1])
            value = loss(trial)
            if value < values[0]:
                further = centre + 2 * (centre - corners[-1])
                farther = loss(further)
                trial, value = (further, farther) if farther < value else (trial, value)
            elif value >= values[-2]:
                trial = centre + 0.5 * (corners[-1] - centre)
                value = loss(trial)
                if value >= values[-1]:
                    corners = corners[0] + 0.5 * (corners - corners[0])
                    values = np.array([loss(c) for c in corners])
                    continue
            corners[-1], values[-1] = trial, value
        best = corners[np.argmin(values)]
    return best


def fit(
    model: Model,
    sample: Sample,
    bounds: Mapping[str, tuple[float, float, float]],
    fixed: Mapping[str, float],
    prior: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The constants within `bounds` that fit the rows not held out best, by |log(predicted / measured)|.

    With `prior` the search starts there and distance from it costs.
    """
    part = sample.part(~sample.held)
    start, low, high = np.log(np.array(list(bounds.values()))).T
    if prior is not None:
        start = np.log(np.array([prior[name] for name in bounds]))
    weights = np.where(part.large, LARGE_WEIGHT, 1.0) / np.sum(np.where(part.large, LARGE_WEIGHT, 1.0))

    def constants(logs: np.ndarray) -> dict[str, float]:
        values = np.exp(np.clip(logs, low, high))
        return {**fixed, **dict(zip(bounds, values.tolist(), strict=True))}

    def loss(logs: np.ndarray) -> float:
        guess = constants(logs)
        error = np.abs(np.log(model(part.columns, guess) / part.seconds))
        outside = np.sum(np.maximum(0, low - logs) + np.maximum(0, logs - high))
        ridge = PENALTY_RIDGE * guess.get("gemm_l2_miss_penalty", 0.0)
        if prior is not None:
            ridge += RELATIVES_WEIGHT * np.mean(np.minimum(1.0, (logs - start) ** 2))
        return float(np.sum(weights * np.log1p(error / TYPICAL)) * TYPICAL + 0.01 * outside + ridge)

    return constants(simplex(loss, start))


def errors(model: Model, sample: Sample, constants: Mapping[str, float]) -> np.ndarray:
    """|predicted / measured - 1| of all rows."""
    return np.abs(model(sample.columns, constants) / sample.seconds - 1)


def median(values: np.ndarray) -> float:
    """Median, or nan of nothing."""
    return float(np.median(values)) if len(values) else float("nan")
