"""Collectives against measurements, through the database and the shipped calibration."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.trace import records
from gpucalc.core.vocabulary import OPERATIONS, operation
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.network import calibration, collective_constants, exchange_constants, summary
from gpucalc.database.reader import Database
from gpucalc.questions.collectives import comm, comm_ledger, evaluate_alltoall, evaluate_collective

SAMPLE = Path(__file__).parent / "golden" / "collectives_sample.csv"


@pytest.fixture(scope="module")
def db():
    return Database()


@pytest.fixture(scope="module")
def sample():
    with SAMPLE.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def errors(rows, db):
    predicted = np.array([r["pred_time_us"] for r in evaluate_collective(rows, db)])
    return np.abs(predicted / np.array([float(r["time_us"]) for r in rows]) - 1)


def test_measured_collectives_inside_a_domain(sample, db):
    """Nine constants per link generation, over all GPUs, operations, ranks and 512 B to 512 MiB."""
    assert len(sample) > 100
    found = errors(sample, db)
    assert np.median(found) <= 0.055
    assert np.quantile(found, 0.9) <= 0.21


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_large_messages_are_close(sample, db, op):
    rows = [
        r for r in sample if r["op"] == op and float(r["bytes"]) >= 64 * 2**20 and r["gpu"] != "rtx_pro_6000_server"
    ]
    assert np.median(errors(rows, db)) <= 0.05


@pytest.mark.parametrize(
    ("gpu", "ranks", "busbw"),
    [
        ("a100", 8, 234.9),  # ml-engineering network page: ring, 16 GiB
        ("h200", 8, 480.0),  # in the switch
        ("b200", 8, 845.7),
        ("mi300x", 2, 47.7),  # 4 GiB there: a pair has one link of the mesh
        ("mi300x", 8, 312.9),
    ],
)
def test_published_bus_bandwidth(db, gpu, ranks, busbw):
    size = 2**32 if gpu == "mi300x" else 2**34
    row = {"gpu": gpu, "n_gpus": str(ranks), "nodes": "1", "op": "all_reduce", "bytes": str(size)}
    assert evaluate_collective([row], db)[0]["pred_busbw_GBps"] == pytest.approx(busbw, rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "kernel", "nodes", "gpus", "tokens", "dispatch", "combine"),
    [  # aiconfigurator-core 0.12.0, Apache-2.0, (c) NVIDIA; hidden 7168, 8 of 256 experts
        ("h100_sxm", "deepep_normal", 1, 8, 2048, 269.9, 526.2),
        ("h100_sxm", "deepep_normal", 4, 32, 8192, 3582.0, 7029.6),
        ("h100_sxm", "deepep_low_latency", 1, 8, 256, 62.6, 129.5),
        ("h100_sxm", "deepep_low_latency", 8, 64, 128, 166.8, 304.7),
        ("gb200", "deepep_low_latency", 1, 4, 512, 62.6, 92.0),
    ],
)
def test_expert_exchange(db, gpu, kernel, nodes, gpus, tokens, dispatch, combine):
    row = {"gpu": gpu, "kernel": kernel, "nodes": nodes, "gpus": gpus, "hidden": 7168, "topk": 8, "experts": 256}
    found = evaluate_alltoall([{n: str(v) for n, v in {**row, "tokens_per_gpu": tokens}.items()}], db)[0]
    assert found["pred_dispatch_us"] == pytest.approx(dispatch, rel=0.12)
    # The table's combine reaches 37 GB/s per NIC on 2 nodes and 47 on 4; one constant lies between.
    assert found["pred_combine_us"] == pytest.approx(combine, rel=0.2 if nodes == 4 else 0.12)


def test_a_row_that_cannot_be_evaluated_names_all_its_faults_and_the_others_go_on(db):
    good = {"gpu": "h100", "n_gpus": "8", "nodes": "1", "op": "all_gather", "bytes": "1048576"}
    bad = {"gpu": "h1000", "n_gpus": "0", "op": "all_sum", "bytes": "-1"}
    first, second = evaluate_collective([bad, good], db)
    assert first["pred_time_us"] is None
    for word in ("h1000", "n_gpus is '0'", "all_sum", "bytes is '-1'"):
        assert word in first["pred_error"]
    assert second["pred_error"] is None
    assert second["pred_time_us"] > 0


def test_more_nodes_than_gpus_is_an_error(db):
    row = {"gpu": "h100", "n_gpus": "4", "nodes": "8", "op": "all_reduce", "bytes": "1000"}
    assert "nodes is 8" in evaluate_collective([row], db)[0]["pred_error"]
    assert evaluate_alltoall([{"gpu": "h100"}], db)[0]["pred_error"].count("empty") == 5


def test_rows_do_not_depend_on_their_neighbours(sample, db):
    rows = sample[::10]
    together = [r["pred_time_us"] for r in evaluate_collective(rows, db)]
    assert together == [evaluate_collective([r], db)[0]["pred_time_us"] for r in rows]


def test_a_stated_network_rate_wins(db):
    row = {"gpu": "h100", "n_gpus": "64", "nodes": "8", "op": "all_reduce", "bytes": str(2**30)}
    times = [evaluate_collective([{**row, "inter_node_gbps_per_gpu": g}], db)[0]["pred_time_us"] for g in ("50", "400")]
    assert times[0] > 4 * times[1]


@pytest.mark.parametrize("op", OPERATIONS)
def test_comm_agrees_with_eval(db, op):
    cluster = resolve_cluster(db, "h100", 16)
    rows = comm(op, 2.0**28, cluster, db)
    assert sum(r["chosen"] for r in rows) == 1
    assert rows[0]["chosen"]
    record = {"gpu": "h100", "n_gpus": "16", "nodes": "2", "op": op, "bytes": str(2**28)}
    evaluated = evaluate_collective([record], db)[0]
    assert rows[0]["time_us"] == pytest.approx(evaluated["pred_time_us"])
    assert rows[0]["algorithm"] == evaluated["pred_algorithm"]
    assert rows[0]["time_us"] == min(r["time_us"] for r in rows)


def test_comm_names_what_binds(db):
    assert comm("all_reduce", 2.0**34, resolve_cluster(db, "h100", 64), db)[0]["bound"] == "network"
    assert comm("all_reduce", 2.0**34, resolve_cluster(db, "h100", 8), db)[0]["bound"] == "link"
    assert comm("all_reduce", 8.0, resolve_cluster(db, "h100", 8), db)[0]["bound"] == "latency"
    names = {r["algorithm"] for r in comm("all_reduce", 2.0**30, resolve_cluster(db, "a100", 8), db)}
    assert names == {"ring"}  # no in-switch reduction before Hopper


def test_comm_can_be_explained(db):
    ledger = comm_ledger("all_reduce", 2.0**30, resolve_cluster(db, "h100", 64), db, trace=True)
    assert ledger.entries["time/network/ring/simple/wire"].arguments["ranks"].value == 64
    terms = {term["path"]: term for term in records(ledger, ("time",))}
    assert terms["time"]["note"] == "here time/network"
    assert terms["time/network"]["note"] == "the least is time/network/nvls-tree"
    assert terms["time/network/ring/rate"]["unit"] == "B/s"
    parts = ledger.entries["time/network"].parts
    assert ledger["time"] == min(ledger[part] for part in parts)


def test_one_gpu_takes_no_time(db):
    for op in OPERATIONS[:-1]:
        assert comm(op, 1e9, resolve_cluster(db, "h100", 1), db)[0]["time_us"] == 0


def test_every_device_has_constants_with_a_reason(db):
    for device in db.devices():
        cluster = resolve_cluster(db, device.key, 4096)
        for found in calibration(cluster, db).values():
            assert found.provenance in {"measured", "published", "assumed"}
            assert found.source or found.note, (device.key, found.constant)
        values = collective_constants(cluster, db)
        assert 0 < values["link_efficiency"] <= 1
        in_switch = cluster.link_key in {"nvlink4", "nvlink5"} and cluster.scale_up_topology == "nvswitch"
        assert (values["nvls_minimum_ranks"] < math.inf) == in_switch
        for op in OPERATIONS:
            assert comm(op, 1e9, cluster, db)[0]["time_us"] > 0


def test_overlapped_constants_differ_from_isolated(db):
    cluster = resolve_cluster(db, "h100", 8)
    assert (
        collective_constants(cluster, db, overlapped=True)["nvls_efficiency"]
        < collective_constants(cluster, db)["nvls_efficiency"]
    )


def test_weakest_provenance_is_told(db):
    measured = exchange_constants(resolve_cluster(db, "h100", 8), "deepep_low_latency", "combine", db)
    assert summary({"exchange_efficiency": measured["exchange_efficiency"]})["provenance"] == "measured"
    assert summary(calibration(resolve_cluster(db, "tpu-v5p", 8), db))["provenance"] == "assumed"


def test_a_user_database_overrides_one_constant(tmp_path, db):
    folder = tmp_path / "calibration"
    folder.mkdir()
    header = "scope,constant,value,unit,provenance,source,n,error_fit,error_held_out,note\n"
    (folder / "collectives.csv").write_text(header + "nvlink4,link_efficiency,0.5,,measured,mine,1,,,\n")
    cluster = resolve_cluster(db, "h100", 8)
    assert collective_constants(cluster, Database([tmp_path]))["link_efficiency"] == 0.5
    assert collective_constants(cluster, db)["link_efficiency"] > 0.8
    other = tmp_path / "other"
    (other / "calibration").mkdir(parents=True)
    (other / "calibration" / "collectives.csv").write_text(header + "nvlink4,link_efficiency,fast,,measured,me,1,,,\n")
    with pytest.raises(DataError, match="not a number"):
        collective_constants(cluster, Database([other]))


def test_spellings_of_operations():
    assert operation("All-To-All") == operation("a2a") == "alltoall"
    assert operation("point-to-point") == operation("sendrecv") == "send_recv"
    with pytest.raises(UsageError, match="all_reduce"):
        operation("all_reduc")
