"""Calibration: constants of known truth are recovered from logs, logs are read as they are, overlays are merged."""

from __future__ import annotations

import csv
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_log import cell, nccl_log

from gpucalc.calibrate.collective_fit import determined
from gpucalc.calibrate.collectives import Collectives, descend
from gpucalc.calibrate.fitted import Calibration, Place, cluster_of
from gpucalc.calibrate.from_logs import calibrate
from gpucalc.calibrate.kernels import gemm_model, gemm_sample
from gpucalc.calibrate.logs import Log, read_log
from gpucalc.calibrate.overlay import write_overlay
from gpucalc.core.errors import DataError, UsageError
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.efficiency import kernel_constants
from gpucalc.database.files import shipped
from gpucalc.database.network import collective_constants
from gpucalc.database.reader import Database
from gpucalc.questions.collectives import comm, evaluate_collective

DATA = Path(__file__).parent / "data" / "calibrate"
H100 = Place("h100-sxm-80gb")
SIZES = [2**i for i in range(3, 34)]


@pytest.fixture(scope="module")
def db() -> Database:
    return Database()


def true_times(
    db: Database, place: Place, truth: dict[str, float], op: str, ranks: int, hosts: int, noise: float, seed: int = 0
) -> list[tuple[int, float]]:
    """Sizes and microseconds of an operation where `truth` replaces the shipped constants."""
    cluster = cluster_of(db, place, ranks, hosts, "")
    rows = [{"op": op, "n_gpus": str(ranks), "bytes": str(size), "time_us": "1"} for size in SIZES]
    constants = {**collective_constants(cluster, db), **truth}
    seconds = Collectives(rows, [cluster] * len(rows), db).seconds(constants)
    spread = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(seconds)))
    return list(zip(SIZES, (seconds * spread * 1e6).tolist(), strict=True))


def write_logs(folder: Path, db: Database, place: Place, truth: dict[str, float], runs: Any, noise: float) -> list[Log]:
    logs = []
    for seed, (op, ranks, hosts) in enumerate(runs):
        path = folder / f"{op}_{ranks}.log"
        path.write_text(nccl_log(op, ranks, true_times(db, place, truth, op, ranks, hosts, noise, seed), hosts))
        logs.append(read_log(path))
    return logs


def after(result: Calibration) -> dict[str, float]:
    return {c.constant: c.after for c in result.constants}


# --- known truth -------------------------------------------------------------------------------------

LINK_TRUTH = {
    "link_efficiency": 0.70,
    "collective_startup": 9e-6,
    "link_step_latency": 1.6e-6,
    "chunk_latency": 5e-6,
    "own_chunk": 0.25,
    "all_to_all_startup": 14e-6,
    "all_to_all_efficiency": 0.85,
    "nvls_efficiency": 0.62,
}
RUNS = [(op, n, 1) for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall") for n in (2, 4, 8)]


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.05), (0.03, 0.15)])
def test_link_constants_of_known_truth_are_recovered(
    tmp_path: Path, db: Database, noise: float, tolerance: float
) -> None:
    result = calibrate(db, write_logs(tmp_path, db, H100, LINK_TRUTH, RUNS, noise), H100, "2026-01-02")
    found = after(result)
    assert set(LINK_TRUTH) <= set(found)
    for name in ("link_efficiency", "collective_startup", "nvls_efficiency", "all_to_all_startup"):
        assert found[name] == pytest.approx(LINK_TRUTH[name], rel=tolerance / 2), name
    for name in ("link_step_latency", "all_to_all_efficiency"):
        assert found[name] == pytest.approx(LINK_TRUTH[name], rel=tolerance), name
    for name in ("chunk_latency", "own_chunk"):  # of little effect each
        assert found[name] == pytest.approx(LINK_TRUTH[name], rel=3 * tolerance), name
    whole = next(c for c in result.comparisons if c.group == "links: all")
    assert whole.held_out_after is not None
    assert whole.held_out_before is not None
    assert whole.held_out_after < max(1.2 * noise, 0.01) < whole.held_out_before


def test_network_constants_of_known_truth_are_recovered(tmp_path: Path, db: Database) -> None:
    truth = {"network_efficiency": 0.66, "network_latency": 4e-5}
    place = Place("h100-sxm-80gb", fabric="ib-ndr")
    runs = [("all_reduce", 16, 2), ("all_gather", 32, 4), ("reduce_scatter", 64, 8), ("all_gather", 128, 16)]
    result = calibrate(db, write_logs(tmp_path, db, place, truth, runs, 0.02), place, "2026-01-02")
    found = after(result)
    assert found["network_efficiency"] == pytest.approx(0.66, rel=0.04)
    assert found["network_latency"] == pytest.approx(4e-5, rel=0.1)
    assert {c.scope for c in result.constants} == {"ib-ndr"}
    assert not any("link_" in c.constant for c in result.constants)


def test_one_size_on_one_number_of_nodes_says_what_it_cannot_know(tmp_path: Path, db: Database) -> None:
    place, truth = Place("h100-sxm-80gb", fabric="ib-ndr"), {"network_efficiency": 0.66, "network_latency": 4e-5}
    times = true_times(db, place, truth, "all_gather", 16, 2, 0.0)
    path = tmp_path / "all_gather.log"
    path.write_text(nccl_log("all_gather", 16, times[-1:], 2))
    with pytest.raises(DataError, match=r"1 rows of 1 size .* cannot tell network_efficiency from network_latency"):
        calibrate(db, [read_log(path)], place, "2026-01-02")
    path.write_text(nccl_log("all_gather", 16, times, 2))
    result = calibrate(db, [read_log(path)], place, "2026-01-02")
    assert any("all rows are of 2 nodes" in warning for warning in result.warnings)


def test_a_switch_that_adds_nothing_up_is_found(tmp_path: Path, db: Database) -> None:
    runs = [("all_reduce", 8, 1), ("all_gather", 8, 1)]
    logs = write_logs(tmp_path, db, H100, {"nvls_minimum_ranks": math.inf}, runs, 0.02)
    result = calibrate(db, logs, H100, "2026-01-02")
    assert after(result)["nvls_minimum_ranks"] == math.inf
    assert any("NVLS off" in w for w in result.warnings)
    write_overlay(tmp_path / "overlay", result.constants)
    overlay = Database((tmp_path / "overlay",))
    cluster = resolve_cluster(overlay, "h100-sxm-80gb", 8)
    assert {row["algorithm"] for row in comm("all_reduce", 2**30, cluster, overlay)} == {"ring"}


def test_one_operation_on_one_group_leaves_what_it_cannot_tell_apart(tmp_path: Path, db: Database) -> None:
    logs = write_logs(tmp_path, db, H100, LINK_TRUTH, [("all_gather", 8, 1)], 0.02)
    result = calibrate(db, logs, H100, "2026-01-02")
    found = after(result)
    assert "link_efficiency" in found
    assert "collective_startup" in found
    assert not {"link_step_latency", "own_chunk", "nvls_efficiency", "all_to_all_startup"} & set(found)
    assert any("link_step_latency stays as it was" in w and "tell it apart" in w for w in result.warnings)


def test_small_sizes_do_not_determine_a_bandwidth(tmp_path: Path, db: Database) -> None:
    times = [t for t in true_times(db, H100, LINK_TRUTH, "all_gather", 8, 1, 0.01) if t[0] <= 2**16]
    path = tmp_path / "all_gather.log"
    path.write_text(nccl_log("all_gather", 8, times))
    result = calibrate(db, [read_log(path)], H100, "2026-01-02")
    assert "link_efficiency" not in after(result)
    assert any("link_efficiency stays as it was" in w and "too small" in w for w in result.warnings)
    assert any("few rows" in w for w in result.warnings)


@given(st.floats(0.2, 1.0), st.floats(1e-6, 1e-4))
def test_descent_finds_what_a_smooth_cost_hides(share: float, latency: float) -> None:
    sizes = np.logspace(0, 9, 12)

    def cost(c: dict[str, float]) -> float:
        t = latency + sizes / (share * 1e11)
        return float(np.mean(np.abs(np.log((c["latency"] + sizes / (c["link_efficiency"] * 1e11)) / t))))

    found = descend(cost, {"latency": 1e-5, "link_efficiency": 0.5}, ("latency", "link_efficiency"))
    assert found["latency"] == pytest.approx(latency, rel=0.02)
    assert found["link_efficiency"] == pytest.approx(share, rel=0.02)


def test_a_constant_that_mirrors_another_is_not_determined(db: Database) -> None:
    cluster = resolve_cluster(db, "h100-sxm-80gb", 8)
    rows = [{"op": "alltoall", "n_gpus": "8", "bytes": str(s), "time_us": "1"} for s in SIZES]
    data = Collectives(rows, [cluster] * len(rows), db)
    both = ("link_efficiency", "all_to_all_efficiency")
    free, reasons = determined(data, collective_constants(cluster, db), both)
    assert free == ("link_efficiency",)
    assert "tell it apart from link_efficiency" in reasons["all_to_all_efficiency"]


# --- the measured rows that ship ---------------------------------------------------------------------


def measured(name: str) -> list[dict[str, str]]:
    lines = (shipped() / "measurements" / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_measured_rows_as_logs_give_back_about_what_was_fitted_to_their_tables(tmp_path: Path, db: Database) -> None:
    rows = [r for r in measured("collectives.csv") if r["gpu"] == "a100_sxm" and r["nodes"] == "1"]
    runs: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        runs.setdefault((row["op"], int(row["n_gpus"])), []).append((int(row["bytes"]), float(row["time_us"])))
    logs = []
    for (op, ranks), times in runs.items():
        path = tmp_path / f"run_{op}_{ranks}.txt"
        path.write_text(nccl_log(op, ranks, times, device="NVIDIA A100-SXM4-80GB"))
        logs.append(read_log(path))
    place = Place("a100-sxm-80gb")
    result = calibrate(db, logs, place, "2026-01-02")
    known = collective_constants(resolve_cluster(db, "a100-sxm-80gb", 8), db)
    found = after(result)
    assert found["link_efficiency"] == pytest.approx(known["link_efficiency"], rel=0.05)
    assert found["collective_startup"] == pytest.approx(known["collective_startup"], rel=0.1)
    whole = next(c for c in result.comparisons if c.group == "links: all")
    assert whole.held_out_after is not None
    assert whole.held_out_after < 0.1
    assert not any("outside physical bounds" in w or "was measured on" in w for w in result.warnings)


def test_predictions_with_the_overlay_are_those_of_the_fit(tmp_path: Path, db: Database) -> None:
    result = calibrate(db, write_logs(tmp_path, db, H100, LINK_TRUTH, RUNS, 0.0), H100, "2026-01-02")
    write_overlay(tmp_path / "overlay", result.constants)
    overlay = Database((tmp_path / "overlay",))
    for op, ranks, _ in RUNS:
        times = true_times(db, H100, LINK_TRUTH, op, ranks, 1, 0.0)
        records = [{"gpu": "h100-sxm-80gb", "n_gpus": str(ranks), "op": op, "bytes": str(s)} for s, _ in times]
        predicted = [row["pred_time_us"] for row in evaluate_collective(records, overlay)]
        errors = np.abs(np.array(predicted) / np.array([t for _, t in times]) - 1)
        assert np.max(errors) < 0.08, (op, ranks)


# --- matrix products ---------------------------------------------------------------------------------

SHAPES = [
    (m, n, k)
    for m in (1, 16, 128, 1024, 2048, 4096, 8192)
    for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (1024, 2048))
]


def product_table(db: Database, truth: dict[str, float], precision: str, noise: float, unit: str = "time_us") -> str:
    rows = [{"m": str(m), "n": str(n), "k": str(k), "time_us": "1"} for m, n, k in SHAPES]
    sample = gemm_sample(db, "h100-sxm-80gb", precision, rows)
    constants = {**kernel_constants(db.device("h100-sxm-80gb"), precision, db), **truth}
    if precision == "fp8":
        constants = {n: v for n, v in constants.items() if not n.startswith("cast_")}
    seconds = gemm_model(sample.columns, constants)
    seconds = seconds * np.exp(np.random.default_rng(1).normal(0.0, noise, len(seconds)))
    lines = [f"m,n,k,dtype,{unit}"]
    for (m, n, k), t in zip(SHAPES, seconds, strict=True):
        value = t * 1e6 if unit == "time_us" else 2 * m * n * k / t / 1e12
        lines.append(f"{m},{n},{k},{precision},{value:.6g}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("unit", ["time_us", "tflops"])
def test_product_constants_of_known_truth_are_recovered(tmp_path: Path, db: Database, unit: str) -> None:
    truth = {"gemm_efficiency": 0.68, "gemm_memory_efficiency": 0.7, "gemm_launch_seconds": 6e-6}
    path = tmp_path / "gemm.csv"
    path.write_text(product_table(db, truth, "bf16", 0.02, unit))
    result = calibrate(db, [read_log(path)], H100, "2026-01-02")
    found = after(result)
    assert found["gemm_efficiency"] == pytest.approx(0.68, rel=0.04)
    assert found["gemm_memory_efficiency"] == pytest.approx(0.7, rel=0.08)
    assert found["gemm_launch_seconds"] == pytest.approx(6e-6, rel=0.1)
    whole = result.comparisons[0]
    assert whole.held_out_after is not None
    assert whole.held_out_before is not None
    assert whole.held_out_after < 0.04 < whole.held_out_before
    write_overlay(tmp_path / "overlay", result.constants)
    now = kernel_constants(db.device("h100-sxm-80gb"), "bf16", Database([tmp_path / "overlay"]))
    assert now["gemm_efficiency"] == pytest.approx(found["gemm_efficiency"], rel=1e-4)
    assert (
        now["attention_efficiency"] == kernel_constants(db.device("h100-sxm-80gb"), "bf16", db)["attention_efficiency"]
    )


def test_eight_bit_products_without_a_cast_leave_the_cast_alone(tmp_path: Path, db: Database) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(product_table(db, {"gemm_efficiency": 0.6}, "fp8", 0.01))
    result = calibrate(db, [read_log(path)], H100, "2026-01-02")
    assert after(result)["gemm_efficiency"] == pytest.approx(0.6, rel=0.05)
    assert not any(c.constant.startswith("cast_") for c in result.constants)
    assert {c.precision for c in result.constants} == {"fp8"}


def test_the_shipped_products_fit_as_they_did(db: Database) -> None:
    log = read_log(shipped() / "measurements" / "gemm.csv")
    result = calibrate(db, [log], Place("a100-sxm-80gb"), "2026-01-02")
    whole = result.comparisons[0]
    assert whole.fit_after is not None
    assert whole.fit_after < 0.06
    assert any("of other GPUs" in w for w in result.warnings)


def test_products_faster_than_the_peak_are_told(tmp_path: Path, db: Database) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("m,n,k,dtype,tflops\n" + "".join(f"{2**i},8192,8192,bf16,1500\n" for i in range(8, 18)))
    result = calibrate(db, [read_log(path)], H100, "2026-01-02")
    assert any("outside physical bounds" in w and "1.52 times the dense peak" in w for w in result.warnings)


# --- logs as they are --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "op", "ranks", "hosts", "rows"),
    [
        ("nccl_all_reduce.log", "all_reduce", 8, 1, 24),
        ("rccl_all_gather.log", "all_gather", 4, 1, 6),
        ("old_reduce_scatter.log", "reduce_scatter", 4, 2, 5),
        ("tagged_alltoall.log", "alltoall", 16, 2, 6),
    ],
)
def test_logs_of_several_versions_are_read(name: str, op: str, ranks: int, hosts: int, rows: int) -> None:
    log = read_log(DATA / name)
    assert {(t.op, t.ranks, t.hosts) for t in log.timings} == {(op, ranks, hosts)}
    assert len(log.timings) == rows
    assert all(t.out_of_place and t.size for t in log.timings)
    if op == "all_reduce":
        timing = next(t for t in log.timings if t.size == 2**27)
        assert timing.out_of_place == pytest.approx(698.1e-6)
        assert timing.in_place == pytest.approx(697.8e-6)


def test_a_file_may_hold_several_operations() -> None:
    log = read_log(DATA / "several.log")
    assert {(t.op, t.ranks) for t in log.timings} == {("all_reduce", 2), ("all_gather", 4)}
    assert any("no formula for scatter_perf" in w for w in log.warnings)
    assert any("wrong results" in w for w in log.warnings)


TIMES = [(2**20, 30.0), (2**24, 90.0), (2**28, 900.0)]
ROW = nccl_log("all_reduce", 8, [(2**28, 1500.0)]).splitlines()[-4]


def test_the_row_that_the_cases_below_spoil_is_a_row() -> None:
    assert ROW.split()[0] == str(2**28)
    assert len(ROW.split()) == 13


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table of nccl-tests"),
        ("hello\nworld\n", "no table of nccl-tests"),
        (nccl_log("all_reduce", 8, TIMES).replace("1500.0", "x") + ROW.replace("1500", "fast") + "\n", "'fast"),
        (nccl_log("all_reduce", 8, TIMES) + ROW[:70] + "\n", "cells where the heading has 13; is the line cut off?"),
        (nccl_log("all_reduce", 8, TIMES) + ROW.replace("1500", "-1500") + "\n", "expected 0 or more"),
        (nccl_log("all_reduce", 8, TIMES) + ROW.replace("1500.0", "nan") + "\n", "expected 0 or more"),
        (nccl_log("all_reduce", 8, TIMES, program=False), "state --op"),
        (nccl_log("all_reduce", 8, TIMES).replace("#  Rank", "#  rank"), "state --gpus"),
        (nccl_log("all_gather", 8, TIMES).replace("all_gather_perf", "all_reduce_perf"), "0.875"),
        (nccl_log("all_reduce", 8, []), "has no rows"),
        ("m,n,k,time\n1,2,3,4\n", "no column dtype and no column time_us or tflops"),
        ("m,n,k,dtype,time_us\n", "a heading without rows"),
        ("m,n,k,dtype,time_us\n8,8,x,bf16,4\n", "line 2: k is 'x'"),
        ("m,n,k,dtype,time_us\n8,8,8,bf61,4\n", "did you mean bf16"),
        ("m,n,k,dtype,time_us\n8,8,8,bf16,0\n", "time_us is 0, expected more than 0"),
        ("m,n,k,dtype,time_us\n8,8,8,bf16\n", "4 cells where the heading has 5"),
        ("m,n,k,dtype,time_us,tflops\n8,8,8,bf16,,\n", "neither time_us nor tflops"),
        ("m,n,k,dtype,time_us\n8,8,8,bf16,3\n", "too few to fit"),
        (nccl_log("all_reduce", 8, TIMES[:1]), "too few to fit"),
        (nccl_log("all_reduce", 1, TIMES), "over one rank"),
    ],
)
def test_a_malformed_log_is_one_clear_sentence(tmp_path: Path, db: Database, text: str, said: str) -> None:
    path = tmp_path / "x.out"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        calibrate(db, [read_log(path)], H100, "2026-01-02")
    assert said in str(caught.value)


@given(
    st.lists(
        st.sampled_from([*ROW.split(), "#", "size", "count", "time", "Rank", "N/A", "-5", "1e999", "9" * 40, "\n"])
    )
)
def test_no_text_is_more_than_one_sentence(words: list[str]) -> None:
    text = nccl_log("all_reduce", 8, TIMES) + " ".join(words) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all_reduce.log"
        path.write_text(text)
        try:
            timings = read_log(path).timings
        except UsageError:  # any other exception would be a traceback
            timings = []
    assert all(t.size > 0 and t.ranks == 8 for t in timings)


def test_ranks_that_are_split_count_by_group(tmp_path: Path) -> None:
    lines = nccl_log("all_reduce", 2, TIMES).splitlines()
    ranks = [
        f"#  Rank {r:2d} Group {r % 4:2d} Pid 77 on node{r // 4} device {r % 4} [0000:0{r % 4}:00] NVIDIA H100"
        for r in range(8)
    ]
    at = next(i for i, line in enumerate(lines) if "Rank" in line)
    path = tmp_path / "split.log"
    path.write_text("\n".join([*lines[:at], *ranks, *[line for line in lines[at:] if "Rank" not in line]]) + "\n")
    assert {(t.ranks, t.hosts) for t in read_log(path).timings} == {(2, 2)}


def test_what_the_user_states_is_held_against_the_log(tmp_path: Path, db: Database) -> None:
    path = tmp_path / "x.log"
    path.write_text(nccl_log("all_reduce", 8, TIMES))
    with pytest.raises(DataError, match="lists 8 ranks and --gpus is 16"):
        read_log(path, ranks=16)
    with pytest.raises(DataError, match="is of all_reduce_perf and --op is all_gather"):
        read_log(path, op="all_gather")
    with pytest.raises(DataError, match="lists 1 hosts and --nodes is 2"):
        calibrate(db, [read_log(path)], Place("h100-sxm-80gb", nodes=2), "2026-01-02")


def test_faster_than_the_links_is_outside_physical_bounds(tmp_path: Path, db: Database) -> None:
    times = true_times(db, H100, LINK_TRUTH, "all_gather", 8, 1, 0.0)
    path = tmp_path / "all_gather.log"
    path.write_text(nccl_log("all_gather", 8, times, device="NVIDIA A100-SXM4-80GB"))
    result = calibrate(db, [read_log(path)], Place("a100-pcie-80gb"), "2026-01-02")
    assert any("outside physical bounds" in w for w in result.warnings)
    assert any("physical bound of 1" in w for w in result.warnings)
    assert any("was measured on NVIDIA A100-SXM4-80GB (a100-sxm-80gb)" in w for w in result.warnings)


def test_in_place_columns(tmp_path: Path, db: Database) -> None:
    times = true_times(db, H100, LINK_TRUTH, "all_gather", 8, 1, 0.0)
    path = tmp_path / "all_gather.log"
    path.write_text(nccl_log("all_gather", 8, times, in_place=lambda t: 2 * t))
    slow = after(calibrate(db, [read_log(path)], H100, "2026-01-02", in_place=True))
    fast = after(calibrate(db, [read_log(path)], H100, "2026-01-02"))
    assert slow["link_efficiency"] == pytest.approx(fast["link_efficiency"] / 2, rel=0.05)


@given(st.floats(1.0, 1e7))
def test_a_printed_time_is_within_half_a_percent(microseconds: float) -> None:
    assert float(cell(microseconds)) == pytest.approx(microseconds, rel=0.006)


# --- the overlay -------------------------------------------------------------------------------------


def test_an_overlay_keeps_what_it_holds(tmp_path: Path, db: Database) -> None:
    place = tmp_path / "overlay" / "calibration"
    place.mkdir(parents=True)
    (place / "collectives.csv").write_text(
        "scope,constant,value,unit,provenance,source,n,error_fit,error_held_out,note\n"
        "ib-ndr,network_efficiency,0.5,,measured,mine,3,,,\n"
        "h100-sxm-80gb,link_efficiency,0.1,,measured,old,3,,,\n"
    )
    logs = write_logs(tmp_path, db, H100, LINK_TRUTH, [("all_gather", 8, 1)], 0.0)
    (written,) = write_overlay(tmp_path / "overlay", calibrate(db, logs, H100, "2026-01-02").constants)
    constants = collective_constants(resolve_cluster(db, "h100-sxm-80gb", 16), Database([tmp_path / "overlay"]))
    assert constants["network_efficiency"] == 0.5
    assert constants["link_efficiency"] == pytest.approx(0.7, rel=0.1)
    text = written.read_text()
    assert "all_gather_8.log; 2026-01-02; " in text
    assert "% held out" in text
    assert text.count("h100-sxm-80gb,link_efficiency,") == 1


def test_an_overlay_does_not_write_over_a_foreign_file(tmp_path: Path, db: Database) -> None:
    place = tmp_path / "overlay" / "calibration"
    place.mkdir(parents=True)
    (place / "collectives.csv").write_text("a,b\n1,2\n")
    logs = write_logs(tmp_path, db, H100, LINK_TRUTH, [("all_gather", 8, 1)], 0.0)
    with pytest.raises(DataError, match="no column scope"):
        write_overlay(tmp_path / "overlay", calibrate(db, logs, H100, "2026-01-02").constants)
    assert (place / "collectives.csv").read_text() == "a,b\n1,2\n"
