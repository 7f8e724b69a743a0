"""Fit the kernel formulas to measured timings and write `hardware_db/calibration/{gemm,attention,memory}.csv`.

    python scripts/fit_kernels.py GEMM.csv ATTENTION.csv [--output hardware_db/calibration]

GEMM.csv: gpu, dtype, m, n, k, time_us. ATTENTION.csv: phase, gpu, batch, seqlen, heads, kv_heads, head_dim, time_us.
One shape in five (by a checksum of the shape, the same on every machine) is held out of each fit. Each
device is also predicted from its relatives alone (its own rows left out) for the column `left_out_error`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_kernels_assumed import ASSUMED, FAMILY, PUBLISHED_PLATEAU, SOURCE
from fit_kernels_samples import attention_sample, decode_model, group, prefill_model, read

from gpucalc.calibrate.kernels import (
    GEMM,
    QUANTISED,
    Model,
    Sample,
    errors,
    fit,
    gemm_model,
    gemm_sample,
    median,
    streaming_efficiency,
)
from gpucalc.database.reader import Database

PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
# constant → (start, least, most); physical, as those of products.
PREFILL = {
    "attention_launch_seconds": (12e-6, 1e-6, 3e-5),
    "attention_efficiency": (0.57, 0.2, 0.95),
    "attention_half": (200.0, 1.0, 2000.0),
    "attention_tail": (0.8, 0.05, 4.0),
    "attention_passes": (2.0, 0.5, 5.0),
}
DECODE = {
    "decode_launch_seconds": (12e-6, 1e-6, 4e-5),
    "decode_memory_efficiency": (0.9, 0.5, 0.97),
    "decode_l2_read_ratio": (0.1, 0.02, 1.0),
    "decode_block_seconds": (1.4e-6, 1e-7, 1e-5),
}


def fit_relatives(
    model: Model,
    samples: Mapping[str, Sample],
    bounds: Mapping[str, tuple[float, float, float]],
    fixed: Mapping[str, Mapping[str, float]],
    rounds: int = 2,
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Constants of all devices, drawn towards their family and the mean of all; and those of each fitted alone."""
    alone = {key: fit(model, sample, bounds, fixed.get(key, {})) for key, sample in samples.items()}
    fits = alone
    for _ in range(rounds):
        families = {family: family_mean(family, fits) for family in {FAMILY[key] for key in fits}}
        common = {name: float(np.mean([c[name] for c in fits.values()])) for name in bounds}
        priors = {k: {n: float(np.sqrt(families[FAMILY[k]][n] * common[n])) for n in bounds} for k in fits}
        fits = {k: fit(model, sample, bounds, fixed.get(k, {}), priors[k]) for k, sample in samples.items()}
    return fits, alone


def relatives(key: str, fitted: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Constants of a device from the others: the mean of its family, else of all families."""
    own = [c for k, c in fitted.items() if k != key and FAMILY[k] == FAMILY[key]]
    families = sorted({FAMILY[k] for k in fitted if k != key})
    chosen = own or [family_mean(f, fitted) for f in families if f != FAMILY[key]]
    names = set.intersection(*(set(c) for c in chosen))
    return {n: float(np.mean([c[n] for c in chosen])) for n in sorted(names)}


def family_mean(family: str, fitted: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Mean of the constants of the measured devices of one family."""
    chosen = [c for k, c in fitted.items() if FAMILY[k] == family]
    names = set.intersection(*(set(c) for c in chosen))
    return {n: float(np.mean([c[n] for c in chosen])) for n in sorted(names)}


def plateau_efficiency(fraction: float, constants: Mapping[str, float], depth: float = 8192) -> float:
    """`gemm_efficiency` such that a large product reaches a published fraction of the peak."""
    return min(1.0, fraction * (1 + constants["gemm_k_half"] / depth) * (1 + constants["gemm_l2_miss_penalty"]))


Row = dict[str, Any]


def summary(samples: Mapping[str, Sample], found: Mapping[str, dict[str, float]], model: Model, key: str) -> Row:
    """Description columns of a fitted row."""
    sample, error = samples[key], errors(model, samples[key], found[key])
    return {
        "key": key,
        "provenance": "measured",
        "source": SOURCE,
        "rows": len(sample.seconds),
        "fit_error": median(error[~sample.held]),
        "heldout_error": median(error[sample.held]),
        "heldout_error_large": median(error[sample.held & sample.large]),
    }


def report(title: str, rows: Sequence[Row], pooled: Mapping[str, np.ndarray]) -> None:
    """Print errors by device and over all rows."""
    for row in rows:
        names = ("fit_error", "heldout_error", "heldout_error_large", "left_out_error")
        cells = "  ".join(f"{n.removesuffix('_error')} {100 * row[n]:5.1f} %" for n in names)
        print(f"{title:8} {row['key']:22} {cells}")
    print(f"{title:8} all rows: " + ", ".join(f"{n} {100 * median(v):.1f} %" for n, v in pooled.items()), "\n")


def fit_all(
    title: str,
    samples: Mapping[str, Sample],
    model: Model,
    fits: Mapping[str, dict[str, float]],
    alone: Mapping[str, dict[str, float]],
    published: bool,
) -> list[Row]:
    """Rows of all measured devices and of their families, with held-out and left-out errors."""
    rows, pool = [], {"fit": [], "held out": [], "held out, large": [], "large": [], "device left out": []}
    for key, sample in samples.items():
        row = summary(samples, fits, model, key)
        guessed = relatives(key, alone)  # fits would know a little of the device left out
        if published and (key, title) in PUBLISHED_PLATEAU:
            guessed["gemm_efficiency"] = plateau_efficiency(PUBLISHED_PLATEAU[key, title][0], guessed)
        out, own = errors(model, sample, guessed), errors(model, sample, fits[key])
        row["left_out_error"] = median(out)
        for name, part in (
            ("fit", own[~sample.held]),
            ("held out", own[sample.held]),
            ("held out, large", own[sample.held & sample.large]),
            ("large", own[sample.large]),
            ("device left out", out),
        ):
            pool[name].append(part)
        rows.append({**row, "precision": title, **fits[key]})
    report(title, rows, {n: np.concatenate(v) for n, v in pool.items()})
    return rows


def family_rows(precision: str, fits: Mapping[str, dict[str, float]]) -> list[Row]:
    """A row for each family of measured devices, and the default of any other device."""
    families = sorted({FAMILY[k] for k in fits})
    means = {f: family_mean(f, fits) for f in families}
    names = set.intersection(*(set(m) for m in means.values()))
    means["default"] = {n: float(np.mean([m[n] for m in means.values()])) for n in sorted(names)}
    result = []
    for family, constants in means.items():
        members = [k for k in fits if FAMILY[k] == family] or families
        source = "mean of " + ", ".join(members)
        result.append({"key": family, "precision": precision, "provenance": "assumed", "source": source, **constants})
    return result


def calibrate_gemm(db: Database, path: Path) -> tuple[list[Row], list[Row]]:
    """Rows of gemm.csv and of memory.csv."""
    rows: list[Row] = []
    memory: list[Row] = []
    base: dict[str, dict[str, float]] = {}
    grouped = group(read(path), "dtype", "gpu")
    for dtype, precision in PRECISION.items():
        timings = {db.device(gpu).key: (gpu, found) for (d, gpu), found in grouped.items() if d == dtype}
        samples = {key: gemm_sample(db, gpu, precision, found) for key, (gpu, found) in timings.items()}
        if precision == "bf16":
            fits, alone = fit_relatives(gemm_model, samples, GEMM, {})
            for key, constants in fits.items():
                share = streaming_efficiency(samples[key], constants["gemm_launch_seconds"])
                base[key] = {**constants, "memory_efficiency": share}
                note = "weights of products with at most 16 rows and 0.25 GB or more"
                memory.append({"key": key, "precision": "any", "provenance": "measured", "source": SOURCE})
                memory[-1] |= {"memory_efficiency": share, "note": note}
        else:  # launch, memory and cache are those of 16 bit
            fits, alone = fit_relatives(gemm_model, samples, QUANTISED, base)
        rows += fit_all(precision, samples, gemm_model, fits, alone, published=True) + family_rows(precision, fits)
    for row in rows:
        row.pop("memory_efficiency", None)
    for family in sorted({FAMILY[key] for key in base}):
        shares = [c["memory_efficiency"] for key, c in base.items() if FAMILY[key] == family]
        memory.append(
            {"key": family, "precision": "any", "provenance": "assumed", "source": "mean of its measured parts"}
        )
        memory[-1]["memory_efficiency"] = float(np.mean(shares))
    return rows, memory


def calibrate_attention(db: Database, path: Path) -> list[Row]:
    """Rows of attention.csv: prefill and decode constants of a device stand in one row."""
    grouped, rows = group(read(path), "phase", "gpu"), {}
    for phase, model, bounds in (("prefill_causal", prefill_model, PREFILL), ("decode", decode_model, DECODE)):
        samples = {db.device(g).key: attention_sample(db, g, r) for (p, g), r in grouped.items() if p == phase}
        fits, alone = fit_relatives(model, samples, bounds, {})
        for row in fit_all(phase, samples, model, fits, alone, published=False) + family_rows("any", fits):
            key = row["key"]
            row["precision"] = "any"
            if key in rows:  # the decode half: keep the description of the prefill half, say its own in the note
                said = row.get("heldout_error")
                row = {n: v for n, v in row.items() if n in bounds}
                if said is not None:
                    row["note"] = f"errors are of prefill; decode held out {100 * said:.1f} %"
            rows[key] = {**rows.get(key, {}), **row}
    return list(rows.values())


def merge_assumed(table: str, rows: list[Row]) -> list[Row]:
    """Rows with the published and assumed ones of `fit_kernels_assumed`; a fitted constant wins."""
    merged = {(r["key"], r["precision"]): r for r in rows}
    for extra in ASSUMED[table]:
        place = extra["key"], extra["precision"]
        merged[place] = {**extra, **merged.get(place, {})}
    if table == "gemm":
        for (key, precision), (fraction, source) in PUBLISHED_PLATEAU.items():
            if (key, precision) not in merged:
                like = merged.get((FAMILY.get(key, "default"), precision)) or merged["default", precision]
                row = {"key": key, "precision": precision, "provenance": "published", "source": source}
                merged[key, precision] = {**row, "gemm_efficiency": plateau_efficiency(fraction, like)}
    return list(merged.values())


def write(path: Path, rows: Sequence[Row], constants: Sequence[str], head: str) -> None:
    """A calibration file: description columns, then constants."""
    first = ["key", "precision", "provenance"]
    last = ["rows", "fit_error", "heldout_error", "heldout_error_large", "left_out_error", "source", "note"]
    last = [n for n in last if any(r.get(n) not in (None, "") for r in rows)]

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    with path.open("w", newline="", encoding="utf-8") as stream:
        stream.write("".join(f"# {line}\n" for line in head.splitlines()))
        out = csv.writer(stream, lineterminator="\n")
        out.writerow([*first, *constants, *last])
        for row in rows:
            out.writerow([cell(row.get(n)) for n in [*first, *constants, *last]])


HEAD = """Written by scripts/fit_kernels.py. Seconds and bytes; shares of the dense peak or of the datasheet bandwidth.
Measured rows are fitted to timings sampled from aiconfigurator-core 0.12.0 (Apache-2.0, (c) NVIDIA).
Errors: median |predicted / measured - 1| of the rows fitted, of shapes held out, and with the device left out."""


def main() -> int:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gemm", type=Path)
    parser.add_argument("attention", type=Path)
    parser.add_argument("--output", type=Path, default=Path("hardware_db/calibration"))
    options = parser.parse_args()
    db = Database()
    gemm, memory = calibrate_gemm(db, options.gemm)
    attention = calibrate_attention(db, options.attention)
    for table, rows, fitted in (
        ("gemm", gemm, [*GEMM, "cast_bytes_per_element", "cast_launch_seconds"]),
        ("attention", attention, [*PREFILL, *DECODE]),
        ("memory", memory, ["memory_efficiency"]),
    ):
        merged = merge_assumed(table, rows)
        described = {"key", "precision", "provenance", "source", "note", "rows"}
        errors_of = {"fit_error", "heldout_error", "heldout_error_large", "left_out_error"}
        extra = [n for r in merged for n in r if n not in described | errors_of and n not in fitted]
        write(options.output / f"{table}.csv", merged, [*fitted, *dict.fromkeys(extra)], HEAD)
    return 0


if __name__ == "__main__":
    sys.exit(main())
