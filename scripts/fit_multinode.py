"""Fit what collectives over several nodes reach to the published rows, every source with the same weight.

    python scripts/fit_multinode.py [--write]

Eleven constants belong to the algorithms, whatever the network. A network has the share of its cards that large
messages reach, one for InfiniBand and RoCE, one for EFA; any other has their mean. What NCCL's source states stays as
it is. A source is then left out, the constants are fitted to the others, and its rows are predicted. `--write` puts
these ratios where `gpucalc validate --kind collective` reads them, and the constants into the calibration.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpucalc.calibrate.collectives import descend
from gpucalc.core.ledger import Columns
from gpucalc.database.network import REFERENCE_LINK, collective_constants, family
from gpucalc.database.reader import Database
from gpucalc.estimate.collectives import collective_ledger
from gpucalc.questions.collectives import clusters_of_rows

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "hardware_db/measurements/collectives_multinode.csv"
CALIBRATION = ROOT / "hardware_db/calibration/collectives.csv"
ASSUMED = ROOT / "scripts/collectives_assumed.csv"
HELD_OUT = ROOT / "hardware_db/calibration/collectives_held_out.csv"
SOURCE = "fit to published multi-node measurements (docs/networks.md)"
GLOBAL = (
    *("ring_ll_coupling", "ring_ll128_coupling", "ring_simple_coupling"),
    *("tree_simple_coupling", "nvls_tree_coupling", "ll128_share"),
    "fabric_waits",
    *("exchange_card_share", "exchange_base", "exchange_domain_step", "exchange_peer_latency"),
)
SHARE, DELAY = "network_efficiency", "network_latency"
# Scopes of the share of the cards; what several sources measured is fitted, the rest has the mean of these.
SHARES = {"ib": "ib", "roce": "ib", "efa": "efa"}
SIZES = (("64 MiB and more", 2**26, float("inf")), ("1 to 64 MiB", 2**20, 2**26), ("below 1 MiB", 0, 2**20))


class Multinode:
    """The published rows as the columns of the formulas, by operation."""

    def __init__(self, rows: Sequence[dict[str, str]], db: Database) -> None:
        """Resolve the cluster of each row once."""
        self.rows = list(rows)
        clusters = clusters_of_rows(rows, db)
        self.scopes = np.array([SHARES.get(family(r["fabric"]), "any") for r in rows])
        self.beyond = np.array([beyond(r["fabric"], db) for r in rows])
        self.sources = np.array([r["source"] for r in rows])
        self.bytes = np.array([float(r["bytes"]) for r in rows])
        self.seconds = np.array([float(r["time_us"]) * 1e-6 for r in rows])
        self.shipped: dict[str, float] = {}
        self.groups: list[tuple[str, np.ndarray, dict[str, Any]]] = []
        for op in sorted({r["op"] for r in rows}):
            index = np.array([i for i, r in enumerate(rows) if r["op"] == op])
            constants = [collective_constants(clusters[i], db) for i in index]
            fixed: dict[str, Any] = {n: np.array([c[n] for c in constants]) for n in constants[0]}
            ranks = np.array([float(rows[i]["n_gpus"]) for i in index])
            fixed |= {"ranks": ranks, "n_gpus": ranks, "message": self.bytes[index]}
            self.groups.append((op, index, fixed))
            for i, own in zip(index, constants, strict=True):
                self.shipped |= {f"{SHARE} {self.scopes[i]}": own[SHARE], **{n: own[n] for n in GLOBAL}}

    def log_ratio(self, point: Mapping[str, float]) -> np.ndarray:
        """log(predicted/measured) of each row."""
        found = np.empty(len(self.rows))
        for op, index, fixed in self.groups:
            own = {SHARE: np.array([point[f"{SHARE} {s}"] for s in self.scopes[index]])}
            own[DELAY] = point["fabric_waits"] * self.beyond[index]
            columns = {**fixed, **own, **{n: np.full(len(index), point[n]) for n in GLOBAL}}
            found[index] = np.log(collective_ledger(op, Columns(columns))["time"])
        return found - np.log(self.seconds)

    def weights(self, keep: np.ndarray) -> np.ndarray:
        """Weights of the kept rows: one for each source and range of sizes, however many rows it has."""
        weights = np.zeros(len(self.rows))
        for source in set(self.sources[keep]):
            for _, least, below in SIZES:
                mine = keep & (self.sources == source) & (self.bytes >= least) & (self.bytes < below)
                if np.any(mine):
                    weights[mine] = 1 / np.sum(mine)
        return weights / np.sum(weights)

    def fit(self, keep: np.ndarray) -> dict[str, float]:
        """The constants of the kept rows."""
        weights = self.weights(keep)
        measured = sorted({s for s in self.scopes[keep] if s != "any"})
        free = [*GLOBAL, *[f"{SHARE} {s}" for s in measured]]
        shares = [n for n in free if "share" in n or SHARE in n]

        def whole(point: Mapping[str, float]) -> dict[str, float]:
            other = mean([point[f"{SHARE} {s}"] for s in measured])
            return {**point, **{f"{SHARE} {s}": other for s in {"ib", "efa", "any"} - set(measured)}}

        def cost(point: dict[str, float]) -> float:
            if max(point[n] for n in shares) > 1:
                return 1e9
            return float(weights @ np.abs(self.log_ratio(whole(point))))

        return whole(descend(cost, self.shipped, free, rounds=40))


def beyond(fabric: str, db: Database) -> float:
    """Seconds that a fabric takes longer than InfiniBand."""
    return max(0.0, db.link(fabric).latency_s - db.link(REFERENCE_LINK).latency_s)


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def report(title: str, data: Multinode, ratios: np.ndarray) -> None:
    """Print the mean over sources of the median error, by size."""
    error = np.abs(np.exp(ratios) - 1)
    for name, least, below in SIZES:
        sized = (data.bytes >= least) & (data.bytes < below)
        medians = {s: float(np.median(error[sized & (data.sources == s)])) for s in sorted(set(data.sources[sized]))}
        shown = ", ".join(f"{s.split(' ')[0][:24]} {100 * m:.1f}" for s, m in medians.items())
        print(f"{title}, {name}: {100 * np.mean(list(medians.values())):.1f} % ({shown})")


def write(data: Multinode, point: Mapping[str, float], ratios: np.ndarray) -> None:
    """Put the constants into both tables of them, and the ratios of rows left out beside the rows."""
    values = {("any", n): point[n] for n in GLOBAL}
    scopes = {**SHARES, "any": "any", "tcpxo-200g": "any"}
    values |= {(scope, SHARE): point[f"{SHARE} {of}"] for scope, of in scopes.items()}
    for path in (CALIBRATION, ASSUMED):
        text = path.read_text(encoding="utf-8")
        head = [line for line in text.splitlines() if line.startswith("#")]
        reader = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
        out = io.StringIO()
        writer = csv.DictWriter(out, list(reader.fieldnames or ()), lineterminator="\n")
        writer.writeheader()
        for row in reader:
            if (value := values.get((row["scope"], row["constant"]))) is not None:
                row |= {"value": f"{value:.3g}", "provenance": "measured", "source": SOURCE}
            writer.writerow(row)
        path.write_text("\n".join([*head, out.getvalue()]), encoding="utf-8")
    with open(HELD_OUT, "w", encoding="utf-8", newline="") as file:
        file.write("# Written by scripts/fit_multinode.py: predicted over measured time, the row's source left out.\n")
        writer = csv.DictWriter(file, ("id", "ratio"), lineterminator="\n")
        writer.writeheader()
        writer.writerows({"id": r["id"], "ratio": f"{np.exp(x):.4g}"} for r, x in zip(data.rows, ratios, strict=True))


def main() -> None:
    """Fit, leave every source out in turn, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(ROWS, encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    data = Multinode(rows, Database())
    everything = np.ones(len(rows), dtype=bool)
    report("as shipped", data, data.log_ratio(data.shipped))
    point = data.fit(everything)
    report("in sample", data, data.log_ratio(point))
    left_out = np.empty(len(rows))
    for source in sorted(set(data.sources)):
        mine = data.sources == source
        left_out[mine] = data.log_ratio(data.fit(~mine))[mine]
    report("left out", data, left_out)
    for name, value in sorted(point.items()):
        print(f"{name:36s} {value:.4g}")
    if options.write:
        write(data, point, left_out)


if __name__ == "__main__":
    main()
