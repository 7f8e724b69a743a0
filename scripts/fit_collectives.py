"""Fit the constants of the collective and expert-exchange formulas to measured tables.

    python scripts/fit_collectives.py COLLECTIVES.csv ALLTOALL.csv [--out hardware_db/calibration]

Two thirds of the rows are fitted, one third (by a hash of the row) is held out; then each GPU is left
out in turn and predicted with the constants of its link from the other GPUs or, where it is the only
one on that link, with the mean over the other NVLink generations. Coordinate descent on the mean
|log(predicted/measured)|. Rows of several nodes, of a PyTorch-level benchmark and of GPUs without a
peer-to-peer path are fitted or reported apart. The formulas are gpucalc's own.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.calibrate.collectives import NVLS, PAIRWISE, RING, START, Collectives, LogRatios, held_out, row_clusters
from gpucalc.core.ledger import Columns
from gpucalc.database.network import EXCHANGE_KERNELS, EXCHANGE_PHASES, FIELDS
from gpucalc.database.reader import Database
from gpucalc.estimate.collectives import BF16_TOKEN, FP8_TOKEN, exchange_ledger
from gpucalc.formulas.topology import ranks_per_domain

AIC = "aiconfigurator-core 0.12.0 (Apache-2.0, (c) NVIDIA)"
NCCL = "NVIDIA/nccl src/graph/tuning.cc @ 01afd20"
# Fewest GPUs of a domain from which NCCL reduces in the switch, as the measured all-reduces show.
NVLS_RANKS = {"nvlink4": 6, "nvlink5": 6, "h200-sxm-141gb": 5}
NOT_FITTED = {
    "exchange_chunk_latency": "copies are written one by one, not pipelined in chunks",
    "exchange_network_startup": "in the latency per doubling of the domains",
}
UNITS = {"startup": "s", "latency": "s"}


def read(path: str) -> list[dict[str, str]]:
    """Rows of a CSV file; lines that begin with # are skipped."""
    with open(path, encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


class Exchanges(LogRatios):
    """Measured dispatch or combine rows of one kernel as the columns of the formulas."""

    def __init__(self, rows: list[dict[str, str]], kernel: str, phase: str, db: Database) -> None:
        """Resolve the clusters of the rows once."""
        self.kernel = kernel
        clusters = row_clusters(db, rows, "gpus")
        ranks = np.array([float(r["gpus"]) for r in rows])
        local = ranks_per_domain(ranks, 1, np.array([float(c.domain) for c in clusters]))
        self.fixed: dict[str, Any] = {
            "tokens": np.array([float(r["tokens_per_gpu"]) for r in rows]),
            "hidden": np.array([float(r["hidden"]) for r in rows]),
            "experts_per_token": np.array([float(r["topk"]) for r in rows]),
            "ranks_per_domain": local,
            "domains": ranks / local,
            "link_bandwidth": np.array([c.link_bandwidth for c in clusters]),
            "network_bandwidth": np.array([c.network_bandwidth_per_gpu for c in clusters]),
            **(FP8_TOKEN if phase == "dispatch" else BF16_TOKEN),
        }
        self.seconds = np.array([float(r[f"{phase}_us"]) * 1e-6 for r in rows])

    def log_ratio(self, constants: dict[str, float]) -> np.ndarray:
        """log(predicted/measured) of each row."""
        ledger = exchange_ledger(self.kernel, Columns({**self.fixed, **constants}))
        found: np.ndarray = np.log(ledger["time"] / self.seconds)
        return found


def collectives(rows: list[dict[str, str]], db: Database) -> Collectives:
    """Measured rows with the clusters that their `gpu`, `n_gpus` and `nodes` mean."""
    return Collectives(rows, row_clusters(db, rows), db)


def line(scope: str, constant: str, value: float, provenance: str, source: str, **more: Any) -> dict[str, Any]:
    """One row of a calibration file."""
    unit = next((u for word, u in UNITS.items() if word in constant), "")
    shown = f"{value:.3g}" if math.isfinite(value) else "inf"
    cells = {"scope": scope, "constant": constant, "value": shown, "unit": unit, "provenance": provenance}
    return {**dict.fromkeys(FIELDS, ""), **cells, "source": source, **more}


def free_constants(link: str) -> tuple[str, ...]:
    """What is fitted for a link."""
    free = (*RING, *PAIRWISE)
    if link in NVLS_RANKS:
        free = (*free, *NVLS)
    return (*free, "bridge_sharing") if link.startswith("pcie") else free


def geometric_mean(points: list[dict[str, float]]) -> dict[str, float]:
    """The mean constants of several links: the default for a link that was not measured."""
    return {
        n: math.exp(sum(math.log(p[n]) for p in points) / len(points))
        if all(0 < p[n] < math.inf for p in points)
        else points[0][n]
        for n in points[0]
    }


def start_for(link: str) -> dict[str, float]:
    """Where the search of a link's constants begins."""
    return {**START, "nvls_minimum_ranks": NVLS_RANKS.get(link, math.inf)}


def fit_links(rows: list[dict[str, str]], db: Database) -> list[dict[str, Any]]:
    """Calibration rows of the links with single-domain measurements; prints the errors."""
    link_of = {r["gpu"]: db.device(r["gpu"]) for r in rows}
    link = {g: d.link or d.pcie for g, d in link_of.items()}
    usable = [r for r in rows if r["nodes"] == "1" and r["source"].startswith("aiconf") and r["gpu"] != "l40s"]
    fitted, lines = {}, []
    for key in sorted(set(link.values())):
        mine = [r for r in usable if link[r["gpu"]] == key]
        if not mine:
            continue
        train = collectives([r for r in mine if not held_out(r)], db)
        test = collectives([r for r in mine if held_out(r)], db)
        fitted[key] = point = train.fit(start_for(key), free_constants(key))
        errors = (train.error(point), test.error(point))
        print(f"{key}: fitted {len(train.rows)} rows {errors[0]:.3f}, held out {len(test.rows)} rows {errors[1]:.3f}")
        for op, index, *_ in test.groups:
            each = np.abs(np.expm1(test.log_ratio(point)))[index]
            print(f"    {op}: held out median {np.median(each):.3f}, 90 % {np.quantile(each, 0.9):.3f}")
        more = {"n": len(train.rows), "error_fit": f"{errors[0]:.4f}", "error_held_out": f"{errors[1]:.4f}"}
        for name in free_constants(key):
            lines.append(line(key, name, point[name], "measured", AIC, **more))
        lines.append(line(key, "all_reduce_startup", point["collective_startup"], "measured", AIC, **more))
    left_out(usable, link, fitted, db)
    nvlink = geometric_mean([p for k, p in fitted.items() if k.startswith("nvlink")])
    why = "geometric mean of the measured NVLink generations"
    for name in (*RING, *PAIRWISE):
        lines.append(line("nvlink", name, nvlink[name], "assumed", AIC, note=why))
    lines.append(line("nvlink", "all_reduce_startup", nvlink["collective_startup"], "assumed", AIC, note=why))
    for scope, least in NVLS_RANKS.items():
        lines.append(line(scope, "nvls_minimum_ranks", least, "measured", AIC))
    pcie = fitted["pcie-5"]
    why = "as measured on PCIe 5 with peer-to-peer"
    for name in (*RING, *PAIRWISE, "bridge_sharing"):
        lines.append(line("pcie", name, pcie[name], "assumed", AIC, note=why))
    lines.append(line("pcie", "all_reduce_startup", pcie["collective_startup"], "assumed", AIC, note=why))
    lines += fit_staged([r for r in rows if r["gpu"] == "l40s"], pcie, db)
    return lines


def fit_staged(rows: list[dict[str, str]], pcie: dict[str, float], db: Database) -> list[dict[str, Any]]:
    """L40S without a peer-to-peer path: traffic staged through host memory, an outlier kept apart."""
    train = collectives([r for r in rows if not held_out(r)], db)
    test = collectives([r for r in rows if held_out(r)], db)
    free = (*RING, *PAIRWISE, "bridge_sharing", "bridge_exponent")
    point = train.fit({**pcie, "bridge_sharing": 0.25, "bridge_exponent": 2.0}, free)
    errors = (train.error(point), test.error(point))
    print(f"L40S without peer-to-peer: fitted {errors[0]:.3f}, held out {errors[1]:.3f}")
    more = {"n": len(train.rows), "error_fit": f"{errors[0]:.4f}", "error_held_out": f"{errors[1]:.4f}"}
    more["note"] = "no peer-to-peer path; outlier"
    lines = [line("l40s-48gb", n, point[n], "measured", AIC, **more) for n in free]
    return [*lines, line("l40s-48gb", "all_reduce_startup", point["collective_startup"], "measured", AIC, **more)]


def left_out(rows: list[dict[str, str]], link: dict[str, str], fitted: dict[str, Any], db: Database) -> None:
    """Print the error on each GPU of constants that never saw it."""
    every = []
    for gpu in sorted({r["gpu"] for r in rows}):
        siblings = [r for r in rows if link[r["gpu"]] == link[gpu] and r["gpu"] != gpu]
        if siblings:
            point = collectives(siblings, db).fit(start_for(link[gpu]), free_constants(link[gpu]))
            basis = "same link"
        else:
            others = [p for k, p in fitted.items() if k.startswith("nvlink") and k != link[gpu]]
            point, basis = geometric_mean(others), "mean of the NVLink generations"
            point["nvls_minimum_ranks"] = math.inf
        errors = np.abs(np.expm1(collectives([r for r in rows if r["gpu"] == gpu], db).log_ratio(point)))
        every.append(errors)
        print(f"left out {gpu} ({basis}): median {np.median(errors):.3f}, 90 % {np.quantile(errors, 0.9):.3f}")
    print(f"left out, all rows: median {np.median(np.concatenate(every)):.3f}")


def contradicted(row: dict[str, str]) -> bool:
    """Rows that a publication of the kernel's authors contradicts: kept in the errors, left out of the fit.

    DeepEP's README states 51 GB/s per GPU for 64 ranks; the table has half of it for 8 nodes, and
    the rate of 43 and 58 GB/s stated for 2 and 4 nodes.
    """
    return row["kernel"] == "deepep_normal" and row["nodes"] == "8"


def fit_exchanges(rows: list[dict[str, str]], db: Database) -> list[dict[str, Any]]:
    """Calibration rows of the expert exchange kernels; prints the errors."""
    lines: list[dict[str, Any]] = []
    rows = [r for r in rows if not (r["gpu"] == "h200_sxm" and r["nodes"] != "1")]  # copies of the H100 rows
    link = {g: db.device(g).link for g in {r["gpu"] for r in rows}}
    start = {
        "exchange_efficiency": 0.6,
        "exchange_startup": 2e-5,
        "exchange_chunk_latency": 1e-6,
        "exchange_network_efficiency": 0.9,
        "exchange_network_startup": 5e-6,
        "exchange_doubling_latency": 1e-5,
    }
    local = tuple(start)[:3]
    for kernel in EXCHANGE_KERNELS:
        for phase in EXCHANGE_PHASES:
            for key in sorted(set(link.values())):
                mine = [r for r in rows if link[r["gpu"]] == key and r["kernel"] == kernel]
                far = any(r["nodes"] != "1" for r in mine)
                free = tuple(start) if far else local
                if kernel == "deepep_low_latency" and not far:  # its latency also grows with the ranks of a domain
                    free = (*free, "exchange_doubling_latency")
                begin = dict(start)
                if far and kernel == "deepep_normal":  # its latency grows by doubling alone
                    free = tuple(n for n in free if n != "exchange_network_startup")
                    begin["exchange_network_startup"] = 0.0
                if kernel == "deepep_low_latency":  # one write per copy: nothing is pipelined in chunks
                    free = tuple(n for n in free if n != "exchange_chunk_latency")
                    begin["exchange_chunk_latency"] = 0.0
                train = Exchanges([r for r in mine if not held_out(r) and not contradicted(r)], kernel, phase, db)
                test = Exchanges([r for r in mine if held_out(r)], kernel, phase, db)
                point = train.fit(begin, free)
                errors = (train.error(point), test.error(point))
                print(f"{kernel} {phase} {key}: fitted {errors[0]:.3f}, held out {errors[1]:.3f}")
                for nodes in sorted({r["nodes"] for r in mine}):
                    part = Exchanges([r for r in mine if r["nodes"] == nodes], kernel, phase, db)
                    print(f"    {nodes} nodes, all rows: {part.error(point):.3f}")
                for gpu in sorted({r["gpu"] for r in mine}):
                    others = [r for r in mine if r["gpu"] != gpu]
                    if {r["nodes"] for r in others} >= {r["nodes"] for r in mine if r["gpu"] == gpu}:
                        own = Exchanges([r for r in mine if r["gpu"] == gpu], kernel, phase, db)
                        spread = own.error(Exchanges(others, kernel, phase, db).fit(begin, free))
                        print(f"    left out {gpu}: {spread:.3f}")
                scope = f"{key}/{kernel}/{phase}"
                more = {"n": len(train.seconds), "error_fit": f"{errors[0]:.4f}", "error_held_out": f"{errors[1]:.4f}"}
                for name in free:
                    lines.append(line(scope, name, point[name], "measured", AIC, **more))
                for name, note in NOT_FITTED.items():
                    if point[name] == 0.0:
                        lines.append(line(scope, name, 0.0, "assumed", AIC, note=note))
                if far:
                    note = "as measured on Hopper"
                    lines += [line(f"any/{kernel}/{phase}", n, point[n], "assumed", AIC, note=note) for n in start]
    return lines


def assumed_collectives() -> list[dict[str, Any]]:
    """Constants without a measurement of their own, each with its reason."""
    path = Path(__file__).with_name("collectives_assumed.csv")
    return [{**dict.fromkeys(FIELDS, ""), **r} for r in read(str(path))]


def write(path: Path, lines: list[dict[str, Any]], title: str) -> None:
    """Write one calibration file."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(
            f"# {title}\n# Made by scripts/fit_collectives.py; errors are medians of |predicted/measured - 1|.\n"
        )
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Fit both tables and write the calibration files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collectives", help="measured collectives, with gpu, n_gpus, nodes, op, bytes, time_us, source")
    parser.add_argument("alltoall", help="measured expert exchanges, with dispatch_us and combine_us")
    parser.add_argument("--out", type=Path, default=Path("hardware_db/calibration"))
    options = parser.parse_args()
    db = Database()
    rows = read(options.collectives)
    links = fit_links(rows, db)
    lines = [*links, *assumed_collectives()]
    write(options.out / "collectives.csv", lines, "Constants of collectives by link and fabric.")
    exchanges = fit_exchanges(read(options.alltoall), db)
    write(options.out / "alltoall.csv", exchanges, "Constants of expert-parallel exchange kernels by link.")


if __name__ == "__main__":
    main()
