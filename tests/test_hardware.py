import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import UsageError
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database
from gpucalc.database.records import MATRIX_PEAK

DB = Database()
GBPS = 1e9 / 8


def test_lookup_opens_one_file_only(monkeypatch):
    from gpucalc.database import files

    opened = []
    original = files.read_toml
    monkeypatch.setattr(files, "read_toml", lambda path, root: (opened.append(path.name), original(path, root))[1])
    Database().device("h100-sxm-80gb")
    assert opened == ["h100-sxm-80gb.toml", "hopper.toml"]
    opened.clear()
    resolve_cluster(Database(), "h100", 64, fabric="ib-hdr")
    assert sorted(opened) == [
        "dgx-h100.toml",
        "h100-sxm-80gb.toml",
        "hopper.toml",
        "ib-hdr.toml",
        "nvlink4.toml",
        "rail-optimised.toml",
    ]


@pytest.mark.parametrize(
    "name",
    ["H100", "h100_sxm", "NVIDIA H100 80GB HBM3", "DGX-H100", "H100 SXM5 80GB HBM3", "H100-SXM5-80GB", "nvidia h100"],
)
def test_spellings_of_one_device(name):
    assert DB.device(name).key == "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA Tesla V100", "v100-sxm2-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GeForce RTX 4090", "rtx4090-24gb"),
        ("Google TPU v5e", "tpu-v5e"),
    ],
)
def test_maker_and_line_before_the_name(name, key):
    assert DB.device(name).key == key


@pytest.mark.parametrize("name", ["h100-smx-80gb", "h1000"])
def test_unknown_device_names_near_ones(name):
    with pytest.raises(UsageError, match=r"unknown GPU .*did you mean .*h100"):
        DB.device(name)


@pytest.mark.parametrize("name", ["", "../aliases", "../../etc/passwd", "/etc/passwd", "a\0b", "..", ".", "x" * 10_000])
def test_names_never_become_paths(name):
    for lookup in (DB.device, DB.node, DB.link, DB.topology):
        with pytest.raises(UsageError, match="unknown"):
            lookup(name)


@given(st.text(max_size=30))
def test_any_name_gives_a_device_or_a_usage_error(name):
    try:
        found = DB.device(name).key
    except UsageError as error:
        found = str(error)
    assert found.startswith("unknown GPU") or (DB.dirs[0] / "accelerators" / f"{found}.toml").is_file()


def test_precision_error_names_device_file_and_what_is_supported():
    with pytest.raises(UsageError) as caught:
        DB.device("v100").precision_peak("fp8")
    assert str(caught.value) == (
        "v100-sxm2-32gb does not support fp8 (accelerators/v100-sxm2-32gb.toml states no such peak); "
        "it supports fp32, fp16"
    )
    with pytest.raises(UsageError, match="unknown precision 'bf8'; did you mean"):
        DB.device("h100").precision_peak("bf8")


def test_block_scaled_formats_need_hardware_scales():
    assert DB.device("b200").precision_peak("mxfp8") == DB.device("b200").peak["fp8"]
    assert DB.device("mi355x").precision_peak("mxfp8") == DB.device("mi355x").peak["fp8"]
    with pytest.raises(UsageError, match="h100-sxm-80gb does not support mxfp8"):
        DB.device("h100").precision_peak("mxfp8")


def test_default_precision():
    assert [DB.device(n).default_precision for n in ("v100", "a100", "gaudi3", "tpu-v4")] == [
        "fp16",
        "bf16",
        "bf16",
        "bf16",
    ]
    for device in DB.devices():
        assert device.precision_peak(device.default_precision) > 0
        assert set(device.precisions()) <= set(MATRIX_PEAK)


@pytest.mark.parametrize(
    ("gpu", "options", "gbps"),
    [
        ("h100", {}, 400),
        ("h100", {"fabric": "ib-hdr"}, 200),
        ("h100", {"fabric": "ib-ndr"}, 400),
        ("h100", {"fabric": "IB_HDR", "inter_node_gbps_per_gpu": 50.0}, 50),
        ("a100-40gb", {"node": "aws-p4d"}, 50),
        ("a100-40gb", {"node": "aws-p4d", "fabric": "efa-v1"}, 50),  # the node's own fabric: four ports for eight
        ("h100", {"node": "aws-p5"}, 400),
        ("h100", {"fabric": "eth-1g"}, 1 / 8),  # one Ethernet port a server, not one a GPU
        ("gb200", {}, 400),
        ("gb300", {}, 800),
        ("mi250x-gcd", {}, 100),
        ("tpu-v5e", {}, 25),
        ("h100", {"gpus_per_node": 4}, 400),
    ],
)
def test_network_rate_per_gpu(gpu, options, gbps):
    assert resolve_cluster(DB, gpu, 64, **options).network_bandwidth_per_gpu == pytest.approx(gbps * GBPS)


@pytest.mark.parametrize(
    ("gpu", "options", "domain", "per_node"),
    [
        ("h100", {}, 8, 8),
        ("h100", {"gpus_per_node": 4}, 4, 4),
        ("h100", {"gpus_per_node": 16}, 8, 16),
        ("gb200", {}, 72, 4),
        ("gb200", {"gpus_per_node": 8}, 72, 8),
        ("l40s", {}, 8, 8),
        ("l40s", {"gpus_per_node": 4}, 4, 4),
        ("gh200", {}, 1, 1),
        ("gh200", {"gpus_per_node": 4}, 4, 4),
        ("v100", {"node": "dgx-2-v100"}, 16, 16),
        ("v100", {"gpus_per_node": 16}, 16, 16),  # only the DGX-2 has sixteen
    ],
)
def test_scale_up_domain(gpu, options, domain, per_node):
    cluster = resolve_cluster(DB, gpu, 64, **options)
    assert (cluster.domain, cluster.gpus_per_node) == (domain, per_node)


def test_scale_up_rates_follow_the_wiring():
    h100, mi300x, l40s, gaudi = (resolve_cluster(DB, g, 8) for g in ("h100", "mi300x", "l40s", "gaudi2"))
    assert (h100.link_bandwidth, h100.peer_bandwidth) == (450e9, 450e9)
    assert (mi300x.scale_up_topology, mi300x.link_bandwidth, mi300x.peer_bandwidth) == ("mesh", 448e9, 64e9)
    assert (l40s.scale_up_topology, l40s.link_bandwidth) == ("pcie", 31e9)
    assert gaudi.link_bandwidth == 262.5e9  # 21 of 24 ports stay inside
    assert resolve_cluster(DB, "h800", 8).link_bandwidth == 200e9


def test_four_v100_are_joined_by_two_links_each():
    cluster = resolve_cluster(DB, "v100", 16, gpus_per_node=4)
    assert (cluster.scale_up_topology, cluster.domain, cluster.peer_bandwidth) == ("mesh", 4, 50e9)


def test_peer_rate_of_a_mesh_does_not_depend_on_how_many_take_part():
    assert resolve_cluster(DB, "mi300x", 4, gpus_per_node=4).peer_bandwidth == 64e9


def test_node_count_rounds_up():
    assert [resolve_cluster(DB, "h100", n).n_nodes for n in (1, 8, 9, 64)] == [1, 1, 2, 8]


def test_network_latency_has_the_switches_of_the_topology():
    near, far = (resolve_cluster(DB, "h100", 64, topology=t) for t in ("fat-tree", "fat-tree-7to1"))
    assert near.network_latency == pytest.approx(0.6e-6 + 3 * 100e-9)
    assert far.network_latency > near.network_latency
    assert far.topology.oversubscription == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_gpus": 0}, "number of GPUs must be between 1"),
        ({"n_gpus": -8}, "number of GPUs must be between 1"),
        ({"n_gpus": 2.5}, "must be a whole number"),
        ({"n_gpus": float("nan")}, "must be a whole number"),
        ({"n_gpus": float("inf")}, "must be a whole number"),
        ({"n_gpus": 10**12}, "must be between"),
        ({"gpus_per_node": 0}, "gpus_per_node must be between"),
        ({"inter_node_gbps_per_gpu": 0.0}, "inter_node_gbps_per_gpu must be above 0"),
        ({"inter_node_gbps_per_gpu": float("nan")}, "inter_node_gbps_per_gpu must be above 0"),
        ({"fabric": "ib-ndrr"}, "unknown fabric 'ib-ndrr'; did you mean ib-ndr"),
        ({"fabric": "nvlink4"}, "nvlink4 does not join nodes"),
        ({"node": "dgx-h1000"}, "unknown node .*did you mean dgx-h100"),
        ({"node": "mi300x-platform"}, "joins its accelerators by xgmi3"),
        ({"topology": "fat-treee"}, "unknown topology .*fat-tree"),
    ],
)
def test_bad_clusters(options, message):
    with pytest.raises(UsageError, match=message):
        resolve_cluster(DB, "h100", **{"n_gpus": 64, **options})


@given(st.sampled_from([d.key for d in DB.devices()]), st.integers(1, 10**5), st.none() | st.integers(1, 16))
def test_every_device_forms_a_cluster(key, n_gpus, per_node):
    cluster = resolve_cluster(DB, key, n_gpus, per_node)
    assert cluster.link_bandwidth >= cluster.peer_bandwidth > 0
    assert cluster.network_bandwidth_per_gpu > 0
    assert cluster.n_nodes * cluster.gpus_per_node >= n_gpus


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DB.device("h100").tdp_watts = 1
