"""The constants of the matrix product formula for a user's own timings, by precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.calibrate.fitted import Calibration, Fitted, compare, few_rows, no_better
from gpucalc.calibrate.kernels import (
    GEMM,
    QUANTISED,
    Sample,
    errors,
    evaluate,
    fit,
    gemm_model,
    gemm_sample,
    streaming_efficiency,
)
from gpucalc.calibrate.logs import Log
from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.efficiency import TABLE_PRECISION, kernel_constants, kernel_provenance
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.formulas.roofline import gemm_flops, gemm_traffic

LEAST_ROWS = 5
CAST_ERROR = 0.12  # an error beyond this suggests a cast that the form lacks
CAST = ("cast_bytes_per_element", "cast_launch_seconds")
FITTED_PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4")


def fit_product_logs(result: Calibration, db: Database, logs: Sequence[Log], device: Device, with_cast: bool) -> None:
    """Fit the timings of matrix products; constants, errors and warnings go into `result`."""
    groups = _by_precision(result, db, logs, device)
    shared: dict[str, float] = {}  # launch, memory and cache of 16 bit products hold for the narrower formats
    for precision in sorted(groups, key=FITTED_PRECISIONS.index):
        found = _fit_precision(result, db, device, precision, groups[precision], shared, with_cast)
        if TABLE_PRECISION[precision] == "bf16":
            shared = {n: found[n] for n in GEMM if n not in QUANTISED}


def _by_precision(
    result: Calibration, db: Database, logs: Sequence[Log], device: Device
) -> dict[str, list[dict[str, str]]]:
    groups: dict[str, list[dict[str, str]]] = {}
    others, left = 0, set()
    for log in logs:
        for row in log.products:
            if row["gpu"] and db.device_key(row["gpu"]) != device.key:
                others += 1
            elif row["precision"] not in FITTED_PRECISIONS:
                left.add(row["precision"])
            else:
                groups.setdefault(row["precision"], []).append(row)
    if others:
        result.warnings.append(f"{others} timings are of other GPUs than {device.key} and are left out")
    if left:
        result.warnings.append(f"timings in {', '.join(sorted(left))} are left out: these take the constants of bf16")
    for precision in sorted(groups, key=lambda p: len(groups[p])):  # one format gives the constants of its table row
        rivals = [p for p in groups if p != precision and TABLE_PRECISION[p] == TABLE_PRECISION[precision]]
        if rivals:
            result.warnings.append(f"timings in {precision} are left out: those in {rivals[0]} give the same constants")
            del groups[precision]
    if not groups:
        raise DataError(f"no timing of {device.key} in bf16, fp16, fp8 or nvfp4 to fit")
    return groups


def _fit_precision(
    result: Calibration,
    db: Database,
    device: Device,
    precision: str,
    rows: Sequence[dict[str, str]],
    shared: Mapping[str, float],
    with_cast: bool,
) -> dict[str, float]:
    """Fit one precision; its constants."""
    if not device.supports(precision):
        raise UsageError(f"{device.key} does not support {precision}, which the timings are in; check --gpu")
    table = TABLE_PRECISION[precision]
    force = kernel_constants(device, precision, db)
    bounds = GEMM if table == "bf16" else {n: b for n, b in QUANTISED.items() if with_cast or n not in CAST}
    if table != "bf16" and not with_cast:
        force = {n: v for n, v in force.items() if n not in CAST}
    bounds = {n: b for n, b in bounds.items() if force.get(n, 0.0) > 0}
    sample = gemm_sample(db, device.key, precision, list(rows))
    # As a prediction sees them where the datasheet states no cache or number of units.
    sample.columns |= {n: force[n] for n in ("compute_units", "l2_bytes")}
    if len(rows) - int(np.sum(sample.held)) < LEAST_ROWS:
        sample.held[:] = False
    used = int(np.sum(~sample.held))
    if used < LEAST_ROWS:
        raise DataError(f"{len(rows)} timings in {precision} are too few to fit, expected at least {LEAST_ROWS}")
    name = f"products in {precision}"
    result.warnings += few_rows(name, used, int(np.sum(sample.held))) + _doubts(name, sample)
    fixed = {n: v for n, v in {**force, **shared}.items() if n not in bounds}
    prior = {n: float(np.clip(force[n], least, most)) for n, (_, least, most) in bounds.items()}
    after = fit(gemm_model, sample, bounds, fixed, prior)
    old, new = errors(gemm_model, sample, force), errors(gemm_model, sample, after)
    whole = compare(name, old, new, sample.held)
    result.comparisons.append(whole)
    result.warnings += no_better(whole)
    if table != "bf16" and not with_cast and (whole.fit_after or 0.0) > CAST_ERROR:
        result.warnings.append(f"{name}: the fit is poor; were the inputs cast within the time? Then state --with-cast")
    if np.any(sample.large) and not np.all(sample.large):
        large = sample.large
        result.comparisons.append(compare(f"{name}, m, n, k >= 1024", old[large], new[large], sample.held[large]))
    for constant, (_, least, most) in bounds.items():
        if constant.endswith("efficiency") and not least * 1.01 < after[constant] < most * 0.995:
            result.warnings.append(f"{name}: {constant} lies at its physical bound of {after[constant]:.3g}")
    basis = kernel_provenance(device, precision, db)
    more: dict[str, Any] = {"rows": used, "error_fit": whole.fit_after, "error_held_out": whole.held_out_after}
    for constant in (*bounds, *shared):
        unit = "s" if constant.endswith("seconds") else "B" if constant == CAST[0] else ""
        before = force.get(constant)
        result.constants.append(
            Fitted("gemm", device.key, table, constant, unit, before, basis["gemm"], after[constant], **more)
        )
    if table == "bf16":
        _fit_streaming(result, device, sample, force, after, basis["memory"])
    return after


def _fit_streaming(
    result: Calibration,
    device: Device,
    sample: Sample,
    force: Mapping[str, float],
    after: Mapping[str, float],
    provenance: str,
) -> None:
    """Share of the memory bandwidth of kernels that stream, where products of few rows show it."""
    large = (sample.columns["m"] <= 16) & (evaluate(gemm_traffic, sample.columns) > 0.25e9)
    count = int(np.sum(large))
    if count < 3:
        return
    share = streaming_efficiency(sample, after["gemm_launch_seconds"])
    if not 0 < share <= 1:
        result.warnings.append(f"memory_efficiency would be {share:.2f}, outside physical bounds; not written")
        return
    before = force.get("memory_efficiency")
    result.constants.append(
        Fitted(
            "memory",
            device.key,
            "any",
            "memory_efficiency",
            "",
            before,
            provenance,
            share,
            count,
            None,
            None,
            note="weights of products with at most 16 rows and 0.25 GB or more",
        )
    )


def _doubts(name: str, sample: Sample) -> list[str]:
    said = []
    columns = sample.columns
    share = evaluate(gemm_flops, columns) / columns["peak"] / sample.seconds
    if np.any(share > 1.02):
        count, worst = int(np.sum(share > 1.02)), int(np.argmax(share))
        shape = " x ".join(f"{columns[side][worst]:.0f}" for side in "mnk")
        said.append(
            f"{name}: {count} timings are outside physical bounds, {shape} the most, at {share[worst]:.2f} times the "
            "dense peak; check --gpu, the dtype and the unit of the times"
        )
    if not np.any(sample.large & ~sample.held):
        said.append(
            f"{name}: the sizes are too small (no product with m, n, k >= 1024) to show the peak that is reached"
        )
    return said
