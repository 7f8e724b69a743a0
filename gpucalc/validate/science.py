"""Published figures of scientific codes beside what `gpucalc hpc` says of them, and beside what other rows would say.

Every row is predicted twice: as the command prints it, and with the shares that the other rows of its family give.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.ledger import Columns
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.hpc import estimate_kernel
from gpucalc.formulas import hpc
from gpucalc.questions import hpc as codes
from gpucalc.questions import hpc_list as listed
from gpucalc.validate.metrics import quantile
from gpucalc.validate.report import Line
from gpucalc.validate.rows import compared, number, target

LIMITS = {"HPL": 0.09, "HPCG": 0.12, "LBM NVIDIA FP32": 0.07, "LBM NVIDIA FP16": 0.08}
LIMIT_SEVERAL = 0.30
MATRIX_ELEMENT = 8.0  # B of a number of HPL's matrix
LEAST_SIDE = 16  # of a GPU's lattice, below which starts of messages and kernels are most of a call
SPILT = 1.05  # a matrix may be a little larger than the device memory
RPEAK_RANGE = (0.7, 1.35)  # of the listed peak over ours: outside it the count of GPUs is not what it says
LBM_BYTES = {"FP32/FP32": "lbm", "FP32/FP16S": "lbm-fp16"}
LEAST_ROWS = 4  # a family with fewer rows has a figure but no target
LEFT_OUT = ", left out"
SHARES = np.arange(0.3, 1.3, 0.01)  # of the bandwidth, among which a row's is chosen from the other rows
FILLED = 0.95  # of the memory of each GPU, where several run the largest cube
SEVERAL = "LBM, 2 to 8 GPUs through the host"


def science_report(rows: list[dict[str, str]], db: Database) -> tuple[list[dict[str, Any]], list[Line]]:
    """Rows of every benchmark that is known, and the targets on those that were left out."""
    found = [
        *_listed(rows, db),
        *_lattice(rows, db),
        *_several(rows, db),
        *_grind(rows, db),
        *_qcd(rows, db),
        *_strong(rows),
    ]
    if not found:
        raise UsageError(
            "no row is of a benchmark that is known: HPL, HPCG, FluidX3D, MFC, Grid, GROMACS, Amber, LAMMPS"
        )
    targets = []
    for family in dict.fromkeys(r["family"] for r in found):
        own = family.removesuffix(LEFT_OUT)
        limit = LIMITS.get(own, LIMITS.get(own.split()[0]))
        of = [r for r in found if r["family"] == family and r["ratio"] is not None]
        if family == SEVERAL + LEFT_OUT:
            targets.append(_largest(family, LIMIT_SEVERAL, of))
        elif limit is not None and family.endswith(LEFT_OUT) and len(of) >= LEAST_ROWS:
            targets.append(target(family, limit, of))
    return found, targets


def _largest(name: str, limit: float, rows: Sequence[Mapping[str, Any]]) -> Line:
    """A limit on nine rows of ten."""
    found = quantile([abs(r["ratio"] - 1) for r in rows], 0.9) if rows else None
    line = target(f"{name}: nine of ten rows", limit, rows)
    missed = "left_out" if found is not None and found > limit else ""
    return {**line, "left_out_pct": None if found is None else 100 * found, "missed": missed}


def inconsistent(row: Mapping[str, str], peak: float | None) -> str:
    """Why a listed system's rate per GPU means nothing; empty where its peak agrees with its count of GPUs.

    `peak`: FP64 of one of its GPUs in TFLOP/s, where it is known.
    """
    if "not an integer" in row.get("notes", ""):
        return "its cores are no whole number of GPUs"
    if peak is None or not (row.get("rpeak_TF") or "").strip():
        return ""
    ratio = number(row, "rpeak_TF") / (peak * number(row, "n_gpus"))
    if RPEAK_RANGE[0] <= ratio <= RPEAK_RANGE[1]:
        return ""
    return f"its listed peak is {ratio:.2g} times that of its GPUs: not all of them are counted, or processors too"


def _device(row: Mapping[str, str], db: Database) -> Device | None:
    """The device of a row: its key, or the name that a source gives it."""
    for text in (row.get("device") or "", row.get("gpu") or ""):
        try:
            if text.strip():
                return db.device(re.sub(r"^\d+x ", "", text.strip()))
        except (UsageError, DataError):
            continue
    return None


def _sized(device: Device | None, row: Mapping[str, str], db: Database) -> Device | None:
    """The device of a system whose source leaves its memory open: the smallest of its node that holds HPL's matrix."""
    name = row.get("gpu") or ""
    if device is None or (row.get("device") or "").strip() or not (row.get("nmax") or "").strip():
        return device
    if re.search(r"\d\s*gb?\b", name.casefold()) or not (row.get("n_gpus") or "").strip():
        return device
    held = MATRIX_ELEMENT * number(row, "nmax") ** 2 / number(row, "n_gpus")
    sizes = [one for one in map(db.device, db.node(device.default_node).accelerators) if one.arch == device.arch]
    fitting = [one for one in sizes if SPILT * one.usable_bytes >= held]
    return min(fitting, key=lambda one: one.memory_bytes, default=device)


def _either(row: Mapping[str, str], names: Sequence[str], known: float | None) -> float | None:
    """The number of the first column of these that a row states, else what the database knows."""
    stated = next((n for n in names if (row.get(n) or "").strip()), None)
    return known if stated is None else number(row, stated)


def _listed(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """HPL and HPCG of systems: by the share of their family and network, and by those of the other systems."""
    known = codes.constants(db)
    found: list[dict[str, Any]] = []
    for name, bench in (("hpl", "HPL"), ("hpcg", "HPCG")):
        systems = [s for r in rows if (s := _system(name, bench, r, db)) is not None]
        for one in systems:
            if one["base"] is None:
                found.append(compared(one["what"], f"{bench} {one['family']}", one["rate"], None, one["why"]))
                continue
            share = listed.share_of(name, one["family"], one["network"], known)
            found.append(_by_share(name, bench, one, share))
            others = [o for o in systems if o is not one and o["family"] == one["family"] and o["base"] is not None]
            near = [o for o in others if name == "hpcg" or o["network"] == one["network"]] or others
            if near:
                reached = [o["rate"] / o["base"] for o in near]
                wide = reached if len(reached) >= listed.FEW else [o["rate"] / o["base"] for o in others]
                held = listed.Share(quantile(reached, 0.5), min(wide), max(wide), len(near), "others")
                found.append(_by_share(name, bench, one, held, LEFT_OUT))
    return found


def _system(name: str, bench: str, row: Mapping[str, str], db: Database) -> dict[str, Any] | None:
    """A row as a system of the list: its rate, and the rate that a share of 1 would be; None for other rows."""
    if not row.get("bench", "").startswith("HPL") and not row.get("bench", "").casefold().startswith(name):
        return None
    column = "hpcg_TF" if name == "hpcg" and row["bench"].startswith("HPL") else "value"
    if not (row.get(column) or "").strip():
        return None
    device = _sized(_device(row, db), row, db)
    fp64 = _either(row, ("device_fp64_TFs",), codes.device_peak(device, "fp64", matrix=True) / 1e12 if device else None)
    group = (row.get("family") or "").strip() or (listed.family(device) if device else "")
    what, rate = row.get("system") or row.get("gpu") or "", number(row, column) * 1e12
    if name == "hpl":
        each, scale = fp64, 1e12
    else:
        known = device.memory_bandwidth / 1e9 if device else None
        each, scale = _either(row, ("device_bw_GBps",), known), 1e9
    why = inconsistent(row, fp64)
    base = None if why or each is None or not group else each * scale * number(row, "n_gpus")
    if base is None and not why:
        why = f"{row.get('gpu') or 'its GPU'} is not in the database; name a device of it, or its columns"
    network = listed.network_class(row.get("interconnect") or row.get("fabric") or "")
    return {"what": what, "family": group or bench, "network": network, "rate": rate, "base": base, "why": why}


def _by_share(name: str, bench: str, one: Mapping[str, Any], share: listed.Share, suffix: str = "") -> dict[str, Any]:
    peak = {"kernel_peak": one["base"], "memory_bandwidth": one["base"], "n_gpus": 1.0}
    peak |= {"usable_bytes": 1.0, "memory_fill": 1.0}
    rate = float(listed.rated(name, peak, share)["metric/rate"])
    row = compared(one["what"], f"{bench} {one['family']}{suffix}", one["rate"], rate)
    reached = one["rate"] / one["base"]
    return {**row, "inside": share.low * (1 - 1e-3) <= reached <= share.high * (1 + 1e-3)}


def _alone(kernel: codes.Kernel, peak: Any, bandwidth: Any, share: Any) -> Any:
    """Units a second of one device, by the estimate of the command."""
    nothing = dict.fromkeys(
        ("halo_bytes_per_unit", "reductions", "overlap", "staged", "exchange_bytes", "exchanges", "halo_latency"), 0.0
    )
    ones = dict.fromkeys(("n_gpus", "domain", "staged_share", "host_bandwidth", "link_rate", "network_rate"), 1.0)
    parts = {f"{node}parts_{axis}": 1.0 for node in ("", "node_") for axis in "xyz"}
    columns = {
        **nothing,
        **ones,
        **parts,
        "units": 1.0,
        "lattice": float(kernel.lattice),
        "depth": kernel.depth,
        "reduction_latency": 0.0,
        "flops_per_unit": kernel.flops,
        "bytes_per_unit": kernel.bytes,
        "memory_per_unit": kernel.memory,
        "added": float(kernel.added),
        "kernel_peak": peak,
        "compute_efficiency": kernel.compute,
        "memory_bandwidth": bandwidth,
        "bandwidth_efficiency": share,
    }
    return np.asarray(estimate_kernel(Columns(columns))["metric/rate"])


def _lattice(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Lattice Boltzmann on one device: by the share of its maker, and by the one that suits the others of it best."""
    known = codes.constants(db)
    found: list[dict[str, Any]] = []
    for suffix, name in LBM_BYTES.items():
        kernel = codes.kernel_named(name, known)
        one = [
            r for r in rows if r.get("bench") == "FluidX3D" and r.get("n_gpus") == "1" and r["metric"].endswith(suffix)
        ]
        devices = [_device(r, db) for r in one]
        makers = [r.get("vendor") or (d.vendor if d else "") for r, d in zip(one, devices, strict=True)]
        for maker in dict.fromkeys(m for m in makers if m and m != "CPU"):
            family = f"LBM {maker} {suffix.partition('/')[2].removesuffix('S')}"
            own = [(r, d) for r, d, m in zip(one, devices, makers, strict=True) if m == maker]
            told = []
            for r, d in own:
                peak = _either(r, ("device_fp32_TFs", "peak_TFs"), d.peak["fp32"] / 1e12 if d else None)
                band = _either(r, ("device_bw_GBps", "peak_bw_GBps"), d.memory_bandwidth / 1e9 if d else None)
                if peak is None or band is None:
                    found.append(
                        compared(r["gpu"], family, number(r, "value") * 1e6, None, "peak or bandwidth not known")
                    )
                else:
                    told.append((f"{r['gpu']} {suffix}", number(r, "value") * 1e6, peak * 1e12, band * 1e9))
            found += _of_maker(family, kernel, maker, told)
    return found


def _of_maker(
    family: str, kernel: codes.Kernel, maker: str, told: Sequence[tuple[str, float, float, float]]
) -> list[dict[str, Any]]:
    if not told:
        return []
    share = kernel.bandwidth.get(maker.casefold(), kernel.bandwidth["other"])
    measured, peak, band = (np.array([row[i] for row in told]) for i in (1, 2, 3))
    printed = np.broadcast_to(_alone(kernel, peak, band, share), measured.shape)
    found = [compared(t[0], family, t[1], float(p)) for t, p in zip(told, printed, strict=True)]
    low, high = (table.get(maker.casefold(), table.get("other", 1.0)) for table in (kernel.low, kernel.high))
    for row in found:
        row["inside"] = low <= 1 / row["ratio"] <= high
    if len(told) < LEAST_ROWS:
        return found
    errors = np.array([np.abs(_alone(kernel, peak, band, s) / measured - 1) for s in SHARES])  # share, row
    for i, t in enumerate(told):
        rest = np.delete(errors, i, axis=1)
        best = SHARES[int(np.argmin(np.median(rest, axis=1)))]
        found.append(compared(t[0], family + LEFT_OUT, t[1], float(_alone(kernel, t[2], t[3], best))))
    return found


def single_rates(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], float]:
    """(device, precision) → updates a second of one GPU in the lattice-Boltzmann tables."""
    found: dict[tuple[str, str], float] = {}
    for r in rows:
        if r.get("bench") == "FluidX3D" and r.get("n_gpus") == "1":
            name = r["gpu"].removeprefix("1x ").replace("GeForce ", "").replace("Data Center", "DC")
            found.setdefault((name, r["metric"].split()[-1]), number(r, "value") * 1e6)
    return found


def multiples(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, str, int, float, float]]:
    """Device, precision, GPUs, rate and share of the single rates, of rows of several equal GPUs."""
    one = single_rates(rows)
    found = []
    for r in rows:
        if r.get("bench") != "FluidX3D" or r.get("n_gpus") in {"", "1"} or "+" in r["gpu"]:
            continue
        name = re.sub(r"^\d+x ", "", r["gpu"]).replace("GeForce ", "")
        precision, n = r["metric"].split()[-1], int(number(r, "n_gpus"))
        if (name, precision) in one:
            rate = number(r, "value") * 1e6
            found.append((name, precision, n, rate, rate / (n * one[name, precision])))
    return found


def _several(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Lattice Boltzmann on several equal GPUs whose memories are full: halos through the host, by a share of its link.

    The share of the command, and the median of those that the other devices' rows imply.
    """
    known = codes.constants(db)
    one = single_rates(rows)
    told = []
    for r in rows:
        name = re.sub(r"^\d+x ", "", r.get("gpu") or "").replace("GeForce ", "")
        precision = (r.get("metric") or "").split()[-1:] or [""]
        if (r.get("host_link_GBps") or "").strip() and (name, precision[0]) in one:
            kernel = codes.kernel_named(LBM_BYTES[precision[0]], known)
            n, rate = int(number(r, "n_gpus")), number(r, "value") * 1e6
            cells = FILLED * number(r, "device_memory_GB") * 1e9 / kernel.memory
            dimensions = sum(p > 1 for p in codes.grid(n, 3))
            sent = 2 * dimensions * cells ** (2 / 3) * kernel.halo
            told.append((name, precision[0], n, rate, cells, sent, number(r, "host_link_GBps") * 1e9))
    shares = [sent / link / max(n * c / rate - c / one[name, p], 1e-9) for name, p, n, rate, c, sent, link in told]
    found = []
    for name, p, n, rate, cells, sent, link in told:
        rest = [s for s, t in zip(shares, told, strict=True) if t[0] != name]
        for share, suffix in ((known["halo"]["staged_share"], ""), (quantile(rest, 0.5) if rest else None, LEFT_OUT)):
            if share is not None:
                halo = hpc.halo_time(sent, hpc.staged_rate(link, share), 0.0, 0.0)
                predicted = float(hpc.update_rate(n * cells, cells / one[name, p] + halo))
                found.append(compared(f"{n} x {name} {p}", SEVERAL + suffix, rate, predicted))
    return found


def _grind(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Grind times of a CFD code on devices of the database; its operations were fitted to them."""
    kernel = codes.kernel_named("cfd", codes.constants(db))
    keys = {"GH200": "gh200-96gb", "H100": "h100-sxm-80gb", "V100": "v100-sxm2-16gb", "L40S": "l40s-48gb"}
    found = []
    for r in rows:
        if r.get("metric") == "grind time" and r.get("gpu") in keys:
            device = db.device(keys[r["gpu"]])
            peak = codes.device_peak(device, "fp64")
            share = kernel.bandwidth.get(device.vendor.casefold(), kernel.bandwidth["other"])
            compute = hpc.kernel_compute_time(1.0, kernel.flops, peak, kernel.compute)
            memory = hpc.kernel_memory_time(1.0, kernel.bytes, device.memory_bandwidth, share)
            predicted = float(np.maximum(compute, memory)) * 1e9
            found.append(compared(r["gpu"], "CFD FP64 (rows of the fit)", number(r, "value"), predicted))
    return found


QCD = {"Wilson": ("qcd", 1), "DWF4": ("qcd-dwf", 12), "per-node rate": ("qcd-dwf", 16)}  # metric → kernel, Ls
QCD_NODES = {
    "JUWELS Booster": ("a100-sxm-40gb", 4),
    "Frontier": ("mi250x-gcd", 8),
    "Perlmutter": ("a100-sxm-40gb", 4),
}
HDR = 200.0  # Gb/s for each GPU of a node of JUWELS Booster


def _qcd(rows: Sequence[Mapping[str, str]], db: Database) -> list[dict[str, Any]]:
    """Dslash of Grid on one node and several, as the command answers it; lattices of 16^4 a GPU and more."""
    known = codes.constants(db)
    found = []
    for r in rows:
        if not r.get("bench", "").startswith("Grid") or r.get("metric") not in QCD or r.get("system") not in QCD_NODES:
            continue
        (name, depth), (gpu, each) = QCD[r["metric"]], QCD_NODES[r["system"]]
        n, sides = int(number(r, "n_gpus")), [int(side) for side in re.findall(r"\d+(?=\^)", r["problem"])]
        local = re.match(r"L=(\d+) local", r["problem"])
        if local is not None:
            points, small = n * int(local[1]) ** 4, int(local[1]) < LEAST_SIDE
        else:
            points, small = sides[0] ** 3 * (256 if "x256" in r["problem"] else sides[0]), False
        kernel = dataclasses.replace(codes.kernel_named(name, known), depth=float(depth))
        cluster = resolve_cluster(db, gpu, n, each, HDR)
        step = estimate_kernel(codes.question(kernel, cluster, [n], [float(points * depth)], known))["time/step"]
        family = f"QCD, {r['metric'].replace('per-node rate', 'DWF4')} (rows of the fit)"
        if small:
            family = "QCD, 8^4 and 12^4 a GPU"
        elif r["system"] == "Perlmutter":
            family = "QCD, Perlmutter at its start"
        rate = kernel.flops * points * depth / float(step) / 1e9 / (n / each)
        found.append(compared(f"{r['system']} {n} {r['metric']} {r['problem']}", family, number(r, "value"), rate))
    return found


def _strong(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Strong scaling of molecular dynamics: each point but the first from a fit to the others."""
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for r in rows:
        if r.get("metric") == "throughput" and r.get("system") == "LUMI" and "2023" not in r["bench"]:
            curves.setdefault((r["bench"], r["problem"]), []).append((number(r, "n_gpus"), number(r, "value")))
    found = []
    for (bench, problem), points in curves.items():
        n, rate = np.array(sorted(points)).T
        for i in range(1, len(n)):
            rest = np.arange(len(n)) != i
            if rest.sum() >= 3:
                terms = fit_strong(n[rest], 1 / rate[rest])
                predicted = 1 / float(hpc.fitted_strong_time(n[i], *terms))
                found.append(
                    compared(f"{bench} {problem} on {n[i]:.0f}", "MD strong scaling", float(rate[i]), predicted)
                )
    return found


def fit_strong(n: np.ndarray, times: np.ndarray) -> tuple[float, float, float]:
    """Divided, serial and logarithmic times, none negative, with the least largest relative error.

    >>> import numpy as np
    >>> n = np.array([1.0, 2.0, 4.0, 8.0])
    >>> [round(x, 6) for x in fit_strong(n, 8 / n + 1)]
    [8.0, 1.0, 0.0]
    """
    matrix = np.stack([1 / n, np.ones_like(n), np.log2(n)], axis=1) / times[:, None]
    best: tuple[float, tuple[float, float, float]] = (np.inf, (0.0, 0.0, 0.0))
    for chosen in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        terms = np.zeros(3)
        terms[list(chosen)] = np.linalg.lstsq(matrix[:, list(chosen)], np.ones(len(n)), rcond=None)[0]
        error = float(np.abs(matrix @ terms - 1).max())
        if (terms >= -1e-12).all() and error < best[0] - 1e-9:
            best = (error, (float(terms[0]), float(terms[1]), float(terms[2])))
    return best[1]
