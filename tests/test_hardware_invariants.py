"""Physics that every figure of the shipped database obeys, with the exceptions by name."""

import csv

import pytest

from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.database.records import MATRIX_PEAK, Device
from gpucalc.database.schema import CONFIDENCE

DATABASE = Database()
DEVICES = DATABASE.devices()

# Vendors quote the vector rates of these parts at a higher clock than the matrix rates.
VECTOR_AT_HIGHER_CLOCK = {
    *(
        (key, p)
        for key in ("h100-sxm-80gb", "h200-sxm-141gb", "gh200-96gb", "gh200-144gb")
        for p in ("fp64", "fp64_tensor", "fp32")
    ),
    ("h800-sxm-80gb", "fp32"),
    *(("b200-sxm-180gb", p) for p in ("fp64", "fp64_tensor", "fp32")),
    ("b300-sxm-270gb", "fp32"),
}
SPARSE_IS_NOT_TWICE_DENSE = {
    ("l40s-48gb", "fp16"), ("l40s-48gb", "bf16"), ("b300-sxm-270gb", "fp4"), ("gb300", "fp4"),
}  # fmt: skip
BF16_IS_HALF_RATE = {"mi100"}  # the first matrix units of AMD
# Compute cut beside full memory, consumer tensor units at half rate, and vector units alone: FLOP per byte, at least.
LOW_RIDGE = (
    {"h20-sxm-96gb": 30, "h20-sxm-141gb": 30}
    | dict.fromkeys(("rtx2080-8gb", "rtx2080ti-11gb", "rtx3080-10gb", "rtx3090-24gb"), 70)
    | dict.fromkeys(("p100-sxm2-16gb", "p100-pcie-16gb", "k80-12gb", "gtx580-1.5gb"), 8)
)
NO_UNITS_OR_CLOCK = {
    "b100-sxm-192gb", "gb300", "gaudi2", "gaudi3", "h100-sxm-96gb-500w", "h20-sxm-96gb", "h20-sxm-141gb",
    "rtx-pro-6000-server", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
}  # fmt: skip


def by_key(devices: list[Device]) -> list:
    return [pytest.param(d, id=d.key) for d in devices]


def bound(device: Device, precision: str) -> float:
    generation = device.architecture
    widths = generation.multiply_adds_gddr if device.memory_type.startswith("GDDR") else generation.multiply_adds
    return device.compute_units * device.clock_hz * widths[precision] * 2


def test_devices_without_units_or_clock_are_the_named_ones():
    assert {d.key for d in DEVICES if d.compute_units is None or d.clock_hz is None} == NO_UNITS_OR_CLOCK


@pytest.mark.parametrize("device", by_key([d for d in DEVICES if d.key not in NO_UNITS_OR_CLOCK]))
def test_dense_peak_is_within_clock_times_units_times_width(device):
    for precision, peak in device.peak.items():
        above = peak > 1.005 * bound(device, precision)  # datasheets round to three digits
        assert above == ((device.key, precision) in VECTOR_AT_HIGHER_CLOCK), (precision, peak, bound(device, precision))
        assert peak < 1.1 * bound(device, precision)


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_sparse_is_twice_dense(device):
    for precision, sparse in device.sparse_peak.items():
        twice = sparse == pytest.approx(2 * device.peak[precision], rel=0.01)
        assert twice != ((device.key, precision) in SPARSE_IS_NOT_TWICE_DENSE), precision


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_narrower_formats_are_not_slower(device):
    for wide, narrow in (("fp16", "fp8"), ("bf16", "fp8"), ("fp8", "fp4"), ("fp32", "fp16"), ("tf32", "bf16")):
        if wide in device.peak and narrow in device.peak:
            assert device.peak[narrow] >= device.peak[wide]
    if {"fp16", "bf16"} <= set(device.peak) and device.key not in BF16_IS_HALF_RATE:
        assert device.peak["fp16"] == device.peak["bf16"]


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_link_total_is_links_times_rate(device):
    if not device.link:
        assert device.link_bandwidth == 0
        return
    assert device.link_bidirectional == pytest.approx(2 * device.link_bandwidth)
    if device.link_count:  # a GCD of an MI250X shares its module's links and states no count
        assert device.link_bandwidth == pytest.approx(device.link_count * DATABASE.link(device.link).bandwidth)
    else:
        assert device.key == "mi250x-gcd"


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_host_link_rate_is_that_of_the_link(device):
    if device.pcie:
        assert device.host_bandwidth == pytest.approx(DATABASE.link(device.pcie).bandwidth)


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_memory_and_ridge_point_are_plausible(device):
    assert 0.9 < device.usable_bytes / device.memory_bytes < 1.09  # "GB" of a label is 10^9 or 2^30
    ridge = max(device.peak[p] for p in ("fp16", "bf16", "fp32") if p in device.peak) / device.memory_bandwidth
    assert (
        LOW_RIDGE.get(device.key, 90) < ridge < 600
    )  # FLOP per byte of 16-bit matrix products; a bit/byte mix-up is a factor of 8


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_default_node_exists_and_holds_the_device(device):
    node = DATABASE.node(device.default_node)
    assert device.key in node.accelerators
    assert node.scale_up in {device.link, device.pcie}


@pytest.mark.parametrize("device", by_key(DEVICES))
def test_every_group_states_source_and_confidence(device):
    assert {"peak", "memory"} <= set(device.sources)
    assert set(device.sources) == set(device.confidence)
    assert all(len(text) > 10 for text in device.sources.values())


def test_nodes_links_and_topologies_state_their_source():
    for entry in (*DATABASE.nodes(), *DATABASE.links(), *DATABASE.topologies()):
        assert len(entry.sources[""]) > 10, entry.key
        assert entry.confidence[""] in CONFIDENCE


def test_nodes_are_consistent():
    for node in DATABASE.nodes():
        link, port = DATABASE.link(node.scale_up), DATABASE.link(node.fabric)
        assert port.kind == "network", node.key
        assert link.kind == ("host" if node.scale_up_topology == "pcie" else "scale-up"), node.key
        assert node.nic_bandwidth == pytest.approx(port.bandwidth), node.key
        assert node.domain >= node.gpus_per_node
        for key in node.accelerators:
            assert node.scale_up in {DATABASE.device(key).link, DATABASE.device(key).pcie}, node.key


def test_every_alias_resolves_to_an_existing_device():
    with (files.shipped() / "aliases.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) >= 89
    for row in rows:
        assert DATABASE.device(row["spelling"]).key == row["key"]
        assert DATABASE.device(row["spelling"].upper().replace("-", "_")).key == row["key"]


# Figures that popular tables get wrong by two or more.
@pytest.mark.parametrize(
    ("key", "precision", "dense_tflops"),
    [
        ("h100-sxm-80gb", "bf16", 989.4),
        ("h100-sxm-80gb", "fp8", 1978.9),
        ("h100-nvl-94gb", "bf16", 835.5),
        ("rtx4090-24gb", "bf16", 165.2),
        ("rtx-a6000-48gb", "bf16", 154.8),
        ("a40-48gb", "bf16", 149.7),
        ("b200-sxm-180gb", "nvfp4", 9000),
        ("mi250x-gcd", "bf16", 191.5),
        ("mi355x", "fp8", 5033.2),
        ("mi355x", "mxfp4", 10066),
        ("gaudi3", "bf16", 1677),
    ],
)
def test_known_traps(key, precision, dense_tflops):
    assert DATABASE.device(key).precision_peak(precision) == pytest.approx(dense_tflops * 1e12)


def test_blackwell_ultra_lost_int8_and_fp64():
    for key in ("b300-sxm-270gb", "gb300"):
        device = DATABASE.device(key)
        assert device.peak["int8"] < 0.05 * device.peak["fp8"]
        assert device.peak["fp64"] < 2e12


@pytest.mark.parametrize(
    ("key", "gib"),
    [
        ("h100-sxm-80gb", 79.1),
        ("a100-sxm-80gb", 79.15),
        ("h200-sxm-141gb", 139.7),
        ("b200-sxm-180gb", 178.3),
        ("b300-sxm-270gb", 268.6),
    ],
)
def test_usable_memory_is_what_pytorch_reports(key, gib):
    """The total that CUDA out-of-memory messages print, below what nvidia-smi shows."""
    assert DATABASE.device(key).usable_bytes / 2**30 == pytest.approx(gib, abs=0.05)
    assert DATABASE.device(key).usable_basis == "reported"


def test_unsupported_precisions_stay_absent():
    unsupported = {
        "v100": ["bf16", "tf32", "fp8"],
        "a100": ["fp8", "mxfp8", "nvfp4"],
        "h100": ["mxfp8", "nvfp4", "mxfp4"],
        "mi355x": ["nvfp4"],
    }
    for name, precisions in unsupported.items():
        device = DATABASE.device(name)
        assert not set(precisions) & set(device.precisions())
        assert set(precisions) <= set(MATRIX_PEAK)
