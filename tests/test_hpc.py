"""Scientific codes: the estimate against hand-checked cases, its invariants, and the published figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cli import gpucalc
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database
from gpucalc.estimate.hpc import estimate_kernel, half_efficiency
from gpucalc.formulas import hpc
from gpucalc.questions import hpc as codes
from gpucalc.questions import hpc_list as listed
from gpucalc.validate.metrics import quantile
from gpucalc.validate.science import fit_strong, inconsistent
from gpucalc.validate.workloads import more_report, shipped

DB = Database()
KNOWN = codes.constants(DB)


def curve(
    name: str, counts: list[int], units: float, gpu: str = "h100-sxm-80gb", weak: bool = False, **options: object
):
    kernel = codes.kernel_named(name, KNOWN)
    cluster = resolve_cluster(DB, gpu, max(counts))
    sizes = [units * n if weak else units for n in counts]
    return estimate_kernel(codes.question(kernel, cluster, counts, sizes, KNOWN, **options))  # type: ignore[arg-type]


def test_lattice_boltzmann_on_one_h100_is_its_bandwidth_and_its_arithmetic() -> None:
    ledger = curve("lbm", [1], 256**3)
    expected = 1 / (153 / (0.92 * 3.35e12) + 440 / 66.9e12)
    assert float(ledger["metric/rate"]) == pytest.approx(expected)
    assert expected == pytest.approx(17602e6, rel=0.03)  # measured on this device


def lattice_rows(maker: str, suffix: str) -> np.ndarray:
    """Updates a second, bandwidth and peak of the published devices of a maker."""
    return np.array(
        [
            [float(r[n]) for n in ("value", "device_bw_GBps", "device_fp32_TFs")]
            for r in shipped("hpc")
            if r["bench"] == "FluidX3D" and r["n_gpus"] == "1" and r["vendor"] == maker and r["metric"].endswith(suffix)
        ]
    ) * [1e6, 1e9, 1e12]


@pytest.mark.parametrize(("suffix", "name"), [("FP32/FP32", "lbm"), ("FP32/FP16S", "lbm-fp16")])
@pytest.mark.parametrize("maker", ["NVIDIA", "AMD", "Intel", "Apple"])
def test_shares_of_bandwidth_suit_the_rows_and_the_range_holds_eight_of_ten(maker: str, suffix: str, name: str) -> None:
    kernel = KNOWN["kernel"][name]
    rate, band, peak = lattice_rows(maker, suffix).T

    def ratio(share: float) -> np.ndarray:
        return rate * (kernel["bytes"] / (share * band) + kernel["flops"] / peak)

    key = maker.casefold()
    errors = {share: float(np.median(np.abs(1 / ratio(share) - 1))) for share in np.arange(0.3, 1.3, 0.01)}
    own = float(np.median(np.abs(1 / ratio(kernel["bandwidth"][key]) - 1)))
    assert own <= min(errors.values()) + 0.01
    ends = np.quantile(ratio(kernel["bandwidth"][key]), [0.1, 0.9])
    assert [kernel["low"][key], kernel["high"][key]] == pytest.approx(ends, abs=0.011)


def test_the_shares_of_hpl_and_hpcg_are_those_of_the_list() -> None:
    rows = [
        r for r in shipped("hpc") if r["bench"].startswith("HPL") and not inconsistent(r, float(r["device_fp64_TFs"]))
    ]
    told: dict[tuple[str, str], list[float]] = {}
    conjugate: dict[str, list[float]] = {}
    for r in rows:
        share = float(r["value"]) / float(r["device_fp64_TFs"]) / float(r["n_gpus"])
        network = listed.network_class(r["interconnect"])
        for key in {(r["family"], "any"), (r["family"], network)}:
            told.setdefault(key, []).append(share)
        if r["hpcg_TF"]:
            each = float(r["hpcg_TF"]) * 1e3 / float(r["device_bw_GBps"]) / float(r["n_gpus"])
            conjugate.setdefault(r["family"], []).append(each)
    for (family, network), shares in told.items():
        entry = KNOWN["hpl"]["efficiency"][family][network]
        assert entry["systems"] == len(shares)
        found = [entry["value"], entry["low"], entry["high"]]
        assert found == pytest.approx([quantile(shares, 0.5), min(shares), max(shares)], abs=0.002)
    for family, shares in conjugate.items():
        entry = KNOWN["hpcg"]["intensity"][family]
        found = [entry["value"], entry["low"], entry["high"]]
        assert found == pytest.approx([quantile(shares, 0.5), min(shares), max(shares)], abs=0.002)


def test_hpl_of_a_thousand_h100() -> None:
    ledger, share = listed.list_benchmark("hpl", DB.device("h100-sxm-80gb"), 1024.0, KNOWN, network="infiniband")
    assert share.systems >= 30
    assert share.low < share.value < share.high
    assert float(ledger["metric/rate"]) / 1024 == pytest.approx(44e12, rel=0.05)  # TFLOP/s each, the list's median
    order, time = float(ledger["hpl/order"]), float(ledger["time/run"])
    assert time == pytest.approx(2 / 3 * order**3 / float(ledger["metric/rate"]))
    assert 8 * order**2 <= 0.95 * 1024 * DB.device("h100-sxm-80gb").usable_bytes


def test_hpl_depends_on_the_network_and_says_its_range() -> None:
    """I10: MI250X on Slingshot reach 35 TFLOP/s a module, on cloud networks 28."""
    device = DB.device("mi250x")
    rates = {}
    for network in ("slingshot", "ethernet", "infiniband"):
        ledger, share = listed.list_benchmark("hpl", device, 1.0, KNOWN, network=network)
        rates[network] = float(ledger["metric/rate"]) / 1e12
        assert share.low <= share.value <= share.high
    assert rates["slingshot"] == pytest.approx(35, rel=0.03)
    assert rates["ethernet"] == pytest.approx(28, rel=0.03)
    _, volta = listed.list_benchmark("hpl", DB.device("v100-sxm2-32gb"), 1.0, KNOWN, network="ethernet")
    _, rails = listed.list_benchmark("hpl", DB.device("v100-sxm2-32gb"), 1.0, KNOWN, network="infiniband")
    assert volta.value < rails.value < rails.high
    _, conjugate = listed.list_benchmark("hpcg", DB.device("a100-sxm-40gb"), 1.0, KNOWN)
    assert conjugate.low < 0.18 < 0.21 < conjugate.high


def test_hpl_runs_from_the_hosts_memory_too() -> None:
    """I11: GH200 have 480 GB beside their 96: order and time are a range, the time with the cube of the order."""
    cluster = resolve_cluster(DB, "gh200-96gb", 1024)
    host = listed.host_bytes_of(cluster)
    assert host == pytest.approx(480e9)
    ledger, _ = listed.list_benchmark("hpl", cluster.device, 1024.0, KNOWN, host_bytes=host)
    grown = float(ledger["hpl/order/both"]) / float(ledger["hpl/order"])
    assert grown == pytest.approx(math.sqrt(1 + host / cluster.device.usable_bytes), rel=1e-5)
    assert float(ledger["time/run/both"]) == pytest.approx(float(ledger["time/run"]) * grown**3, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("Slingshot-11", "slingshot"),
        ("ib-ndr", "infiniband"),
        ("100G Ethernet", "ethernet"),
        ("efa-v2", "ethernet"),
        ("Dual-rail Mellanox EDR Infiniband", "infiniband"),
        ("Quad-Rail BXI v2", "any"),
        ("Intel Omni-Path", "infiniband"),
    ],
)
def test_classes_of_networks(text: str, network: str) -> None:
    assert listed.network_class(text) == network


def test_domain_wall_fermions_share_their_links_and_nothing_hides_their_halo() -> None:
    """I13: 576/Ls + 192 B a site; in the logs communication and arithmetic add up."""
    kernel = codes.kernel_named("qcd-dwf", KNOWN)
    assert kernel.bytes == pytest.approx(576 / 16 + 192)
    ledger = curve("qcd-dwf", [16], 1e8, gpu="a100-sxm-40gb")
    step = float(ledger["time/kernel"]) + float(ledger["halo/time"])
    assert float(ledger["time/step"]) == pytest.approx(step, rel=1e-9)
    assert float(curve("qcd", [16], 1e8)["time/halo/exposed"]) > 0


def test_a_lattice_of_four_dimensions_is_cut_in_four() -> None:
    """16 blocks of 64^4 x 16 sites: eight faces of 32^3 x 16 sites, half a spinor of 48 B each."""
    assert codes.grid(16, 4, 4) == (2, 2, 2, 2)
    ledger = curve("qcd-dwf", [16], 64.0**4 * 16, gpu="a100-sxm-40gb")
    assert float(ledger["halo/bytes"]) == pytest.approx(8 * 32**3 * 16 * 48, rel=1e-9)
    assert float(ledger["halo/time"]) >= float(ledger["halo/bytes"]) / 28e9


def test_grid_on_a_node_and_several_as_published() -> None:
    """Grid's logs: 70 % of a call of 16 A100 are communication; 14 rows of A100 and MI250X of 16^4 a GPU and more."""
    ledger = curve("qcd-dwf", [16], 64.0**4 * 16, gpu="a100-sxm-40gb")
    assert float(ledger["time/halo/exposed"]) / float(ledger["time/step"]) == pytest.approx(0.70, abs=0.05)
    report = more_report("hpc", [r for r in shipped("hpc") if r["bench"].startswith("Grid")], DB)
    groups = {line["group"]: line for line in report["by_group"]}
    assert groups["QCD, DWF4 (rows of the fit)"]["median_pct"] <= 10
    assert groups["QCD, Wilson (rows of the fit)"]["median_pct"] <= 12


def test_a_lattice_of_three_dimensions_is_not_cut_in_four() -> None:
    assert "has 3" in gpucalc("hpc", "lbm", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--dimensions", "4").sentence()


def test_a_spectral_code_exchanges_with_all_others() -> None:
    ledger = curve("fft", [1, 8, 64], 1e9)
    inside, beyond = ledger["exchange/inside"], ledger["exchange/beyond"]
    assert list(inside) == pytest.approx([0, 64e9 / 8 * 7 / 8, 64e9 / 64 * 7 / 64])
    assert list(beyond) == pytest.approx([0, 0, 64e9 / 64 * 56 / 64])
    assert ledger["time/exchange"][0] == 0
    assert ledger["time/exchange"][2] > ledger["time/kernel"][2]


def test_eighty_times_a_cpu_node() -> None:
    """An H100 on a kernel of bandwidth is as fast as its bandwidth says, beside two EPYC 9654."""
    kernel = codes.kernel_named("stencil", KNOWN)
    cpu = codes.cpu_step_time(kernel, "epyc-9654", 1e9, 1.0, KNOWN)
    gpu = float(curve("stencil", [1], 1e9)["time/step"])
    assert cpu / gpu == pytest.approx(0.79 * 3.35e12 / (0.8 * 921.6e9), rel=0.01)
    assert codes.cpu_step_time(kernel, "epyc-9654", 1e9, 10.0, KNOWN) == pytest.approx(cpu / 10)
    assert codes.cpu_rate("epyc-9654", "hpl", 2.0, KNOWN) == pytest.approx(2 * 0.7 * 7.37e12)
    rows = [r for r in shipped("hpc") if r["gpu"] == "2x EPYC 9654" and r["metric"].endswith("FP32/FP32")]
    lattice = codes.kernel_named("lbm", KNOWN)
    assert 1 / codes.cpu_step_time(lattice, "epyc-9654", 1.0, 1.0, KNOWN) == pytest.approx(
        float(rows[0]["value"]) * 1e6, rel=0.1
    )
    with pytest.raises(UsageError, match="epyc-9654"):
        codes.cpu_step_time(kernel, "epyc-9655", 1e9, 1.0, KNOWN)


def test_amd_is_counted_by_its_vector_peak_and_nvidia_by_its_matrix_peak() -> None:
    assert codes.device_peak(DB.device("h100-sxm-80gb"), "fp64", matrix=True) == pytest.approx(66.9e12)
    assert codes.device_peak(DB.device("h100-sxm-80gb"), "fp64") == pytest.approx(33.5e12)
    assert codes.device_peak(DB.device("mi250x"), "fp64", matrix=True) == pytest.approx(47.9e12)


@pytest.mark.parametrize("key", ["l40s-48gb", "b300-sxm-270gb", "rtx4090-24gb"])
def test_devices_poor_in_fp64_are_flagged(key: str) -> None:
    assert key in codes.poor_in_fp64(DB.device(key))
    assert "poor in FP64" in codes.poor_in_fp64(DB.device(key))


@pytest.mark.parametrize("key", ["h100-sxm-80gb", "a100-sxm-80gb", "mi300x", "v100-sxm2-16gb"])
def test_devices_rich_in_fp64_are_not(key: str) -> None:
    assert codes.poor_in_fp64(DB.device(key)) == ""


def test_cfd_is_bound_by_memory_where_fp64_is_rich_and_by_arithmetic_where_it_is_poor() -> None:
    rich, poor = (curve("cfd", [1], 1e7, gpu=g) for g in ("gh200-96gb", "l40s-48gb"))
    assert float(rich["time/memory"]) > float(rich["time/compute"])
    assert float(poor["time/compute"]) > float(poor["time/memory"])
    assert float(poor["time/kernel"]) / 1e7 * 1e9 == pytest.approx(1.7, rel=0.1)  # ns, measured


def test_a_peak_that_no_file_states_is_an_error() -> None:
    with pytest.raises(UsageError, match="states no fp64 peak"):
        codes.device_peak(DB.device("h800-sxm-80gb"), "fp64")


def test_halo_of_a_cube_by_hand() -> None:
    ledger = curve("lbm", [8], 1e9)
    assert float(ledger["halo/bytes"]) == pytest.approx(3 * 2 * 500**2 * 20)
    assert float(ledger["halo/beyond"]) == 0  # eight GPUs share a node
    slabs = curve("lbm", [8], 1e9, dimensions=1)
    assert float(slabs["halo/bytes"]) == pytest.approx(2 * 1000**2 * 20)


def test_only_the_surface_of_a_node_uses_the_network() -> None:
    ledger = curve("lbm", [64], 1e9)  # 4·4·4 blocks, 2·2·2 of them in a node
    assert float(ledger["halo/beyond"]) == pytest.approx(float(ledger["halo/bytes"]) / 2)


def test_staged_halos_are_a_share_of_the_host_link() -> None:
    """I12: a constant 2.4 GB/s held for PCIe 3 and 5 alike."""
    for gpu, link in (("h100-sxm-80gb", 63e9), ("a100-sxm-80gb", 31.5e9)):
        ledger = curve("lbm", [8], 8e9, gpu=gpu, staged=True)
        assert float(ledger["halo/rate/link"]) == pytest.approx(0.05 * link, rel=0.02)


def test_through_the_host_eight_gpus_keep_about_half() -> None:
    one, eight = (curve("lbm", [n], 8.4e8, weak=True, staged=True) for n in (1, 8))
    kept = float(one["time/step"]) / float(eight["time/step"])
    assert 0.4 < kept < 0.75  # 0.50 to 0.57 is the median of the published rows


@given(n=st.integers(1, 4096), dimensions=st.sampled_from([1, 2, 3]))
def test_a_grid_uses_all_gpus_in_no_more_dimensions(n: int, dimensions: int) -> None:
    parts = codes.grid(n, dimensions)
    assert math.prod(parts) == n
    assert sum(p > 1 for p in parts) <= dimensions


@given(n=st.sampled_from([2, 4, 6, 8, 12, 16, 64, 96, 128, 1000]), domain=st.sampled_from([1, 2, 4, 8, 72]))
def test_a_node_holds_no_more_blocks_than_gpus(n: int, domain: int) -> None:
    parts = codes.grid(n, 3)
    inside = codes.node_grid(parts, domain)
    assert math.prod(inside) <= domain
    assert all(p % q == 0 for p, q in zip(parts, inside, strict=True))


@settings(max_examples=examples(25), deadline=None)
@given(
    units=st.floats(1e6, 1e11),
    n=st.sampled_from([1, 2, 8, 64, 512, 4096]),
    name=st.sampled_from(["lbm", "stencil", "cfd", "qcd", "md", "fft", "qcd-dwf"]),
)
def test_more_gpus_are_never_more_than_proportionally_faster(units: float, n: int, name: str) -> None:
    ledger = curve(name, [1, n] if n > 1 else [1, 2], units)
    step = ledger["time/step"]
    assert step[1] >= step[0] / max(n, 2) * (1 - 1e-12)


def test_rows_of_a_batch_equal_the_rows_alone() -> None:
    counts = [1, 2, 8, 64, 100, 4096]
    batch = curve("cfd", counts, 1e9)
    for place, n in enumerate(counts):
        kernel, cluster = codes.kernel_named("cfd", KNOWN), resolve_cluster(DB, "h100-sxm-80gb", max(counts))
        alone = estimate_kernel(codes.question(kernel, cluster, [n], [1e9], KNOWN))
        for path in ("time/step", "halo/bytes", "halo/beyond", "memory/resident", "metric/rate"):
            assert np.broadcast_to(batch[path], (len(counts),))[place] == pytest.approx(float(alone[path]), rel=1e-12)


def test_weak_scaling_stays_near_one_where_compute_hides_the_halo() -> None:
    ledger = curve("stencil", [1, 64, 4096], 2e9, weak=True)
    efficiency = hpc.weak_efficiency(ledger["time/step"][0], ledger["time/step"])
    assert efficiency[-1] > 0.95  # MFC keeps 96 % on 65,536 GCDs


def test_a_kernel_of_ones_own_needs_operations_and_bytes() -> None:
    with pytest.raises(UsageError, match="--bytes"):
        codes.kernel_named("custom", KNOWN, {"flops": 8.0})
    assert codes.kernel_named("custom", KNOWN, {"flops": 8.0, "bytes": 16.0}).flops == 8.0


def test_measured_codes_are_met_at_their_points() -> None:
    points = {
        "gromacs-stmv": {1: 18.957, 2: 35.399, 4: 70.085, 8: 110.446},
        "amber-stmv": {1: 41.96, 2: 49.09, 4: 54.91, 8: 57.27},
        "gromacs-benchpep-h": {8: 7.904, 16: 16.656, 32: 26.219, 64: 34.43, 128: 35.042},
    }
    for name, measured in points.items():
        times = codes.fitted_time(KNOWN["scaling"][name], list(measured))["time/step"]
        assert 86400 / times == pytest.approx(list(measured.values()), rel=0.13)


@given(terms=st.tuples(st.floats(0.1, 100), st.floats(0.01, 10), st.just(0.0)))
def test_a_fit_finds_the_terms_that_made_the_points(terms: tuple[float, float, float]) -> None:
    n = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found = fit_strong(n, hpc.fitted_strong_time(n, *terms))
    assert found == pytest.approx(terms, rel=1e-6, abs=1e-6)


def test_half_efficiency_is_where_half_is_left() -> None:
    counts = [1, 2, 4, 8, 16]
    columns = {"n_gpus": np.array(counts, dtype=float), "divided": 8.0, "serial": 1.0, "logarithmic": 0.0}
    assert Columns(columns).rows == 5
    times = [float(hpc.fitted_strong_time(n, 8.0, 1.0, 0.0)) for n in counts]
    assert half_efficiency(times, counts) == 8  # 9/(8·2) = 0.56, 9/(16·1.5) = 0.375


def test_left_out_one_by_one_the_published_figures_are_met() -> None:
    report = more_report("hpc", shipped("hpc"), DB)
    targets = {t["target"]: t for t in report["targets"]}
    # What is missed is known and listed: families of four systems on three networks, and V100 of one and two rails.
    missed = {name.removesuffix(", left out") for name, t in targets.items() if t["missed"]}
    assert missed == {"HPL CDNA3", "HPL CDNA2", "HPL Volta"}
    groups = {line["group"]: line for line in report["by_group"]}
    for name in missed:  # then the row lies inside the range that is printed, which is that of its systems
        count = groups[name]["rows"] - groups[name]["unpredicted"]
        assert groups[name]["inside_range"] == f"{count} of {count}"
    for name in ("HPL Hopper", "HPL A100-40GB", "HPL A100-80GB"):
        assert targets[f"{name}, left out"]["left_out_pct"] <= 9
        inside, _, of = groups[f"{name}, left out"]["inside_range"].split()
        assert int(inside) >= 0.75 * int(of)
    for name in ("HPCG Hopper", "HPCG A100-40GB", "HPCG A100-80GB", "HPCG Volta"):
        assert targets[f"{name}, left out"]["left_out_pct"] <= 12
    assert targets["LBM NVIDIA FP32, left out"]["left_out_pct"] <= 7
    assert targets["LBM NVIDIA FP16, left out"]["left_out_pct"] <= 8
    staged = next(t for name, t in targets.items() if "through the host" in name)
    assert staged["left_out_pct"] <= 30


def test_what_is_scored_is_what_is_printed() -> None:
    """I20: the prediction of a file is that of `hpc`, for a single row and with the columns that sources publish."""
    row = {"bench": "HPL", "system": "ours", "gpu": "h100-sxm-80gb", "n_gpus": "1024", "interconnect": "Infiniband NDR"}
    report = more_report("hpc", [{**row, "value": "45000", "unit": "TFlop/s"}], DB)
    assert report["no_prediction"] == []
    ledger, _ = listed.list_benchmark("hpl", DB.device("h100-sxm-80gb"), 1024.0, KNOWN, network="infiniband")
    assert report["worst"][0]["predicted"] == pytest.approx(float(ledger["metric/rate"]), rel=1e-6)
    lattice = {"bench": "FluidX3D", "gpu": "h100-sxm-80gb", "n_gpus": "1", "metric": "LBM D3Q19 FP32/FP32"}
    found = more_report("hpc", [{**lattice, "value": "17602"}], DB)
    assert found["worst"][0]["predicted"] == pytest.approx(float(curve("lbm", [1], 1e8)["metric/rate"]), rel=1e-9)
    unknown = more_report("hpc", [{**row, "gpu": "a GPU of ours", "value": "45000"}], DB)
    assert "not in the database" in unknown["no_prediction"][0]["pred_error"]


@pytest.mark.parametrize("line", ["hpl --gpu h100-sxm-80gb --staged", "hpcg --gpu h100-sxm-80gb --dimensions 2"])
def test_benchmarks_of_the_list_have_no_halo_to_choose(line: str) -> None:
    assert "has no meaning with hp" in gpucalc("hpc", *line.split()).sentence()


def test_systems_are_known_by_the_names_that_lists_give_their_gpus() -> None:
    """A row of a list alone: device by its name, 40 from 80 GB by the matrix, GPUs that cannot be counted told."""
    bench = {"bench": "HPL (Top500)", "metric": "Rmax", "interconnect": "Infiniband HDR"}

    def row(gpu: str, n: int, rmax: float, rpeak: float, nmax: float) -> dict[str, str]:
        return {**bench, "system": gpu, "gpu": gpu, "n_gpus": str(n), "value": str(rmax), "rpeak_TF": str(rpeak)} | {
            "nmax": str(nmax)
        }

    rows = [
        row("NVIDIA A100", 3744, 44120, 70980, 4.41e6),  # 8 B x nmax^2 over its GPUs: 41.6 GB
        row("NVIDIA A100", 4480, 63460, 79215, 6.6e6),  # 77.8 GB
        row("NVIDIA GH200 Superchip", 384, 16670, 24000, 2.2e6),
        row("Nvidia H100 SXM5 94Gb", 960, 39620, 61601, 3.24e6),
        row("AMD Instinct MI210 64 GB", 800, 9000, 20000, 2.5e6),
        row("Intel Data Center GPU Max", 296, 5390, 12583, 1.87e6),
        row("NVIDIA A100 SXM4 64 GB", 13824, 241200, 306311, 1.02e7),
        row("NVIDIA Tesla V100 SXM2", 640, 9264, 15142, 7.15e6),
    ]
    report = more_report("hpc", rows, DB)
    families = [g["group"] for g in report["by_group"] if "left out" not in g["group"]]
    assert families == [
        *(
            "HPL A100-40GB",
            "HPL A100-80GB",
            "HPL Hopper",
            "HPL CDNA2",
            "HPL Ponte Vecchio",
            "HPL A100-64GB",
            "HPL Volta",
        ),
    ]
    told = {line["what"]: line["pred_error"] for line in report["no_prediction"]}
    assert set(told) == {"NVIDIA Tesla V100 SXM2"}, told
    assert "3 times that of its GPUs" in told["NVIDIA Tesla V100 SXM2"]
