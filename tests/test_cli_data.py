"""hw, models, comm and roofline through real processes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli import gpucalc


def test_hw_list_has_every_file() -> None:
    keys = {row["key"] for row in csv.DictReader(io.StringIO(gpucalc("hw", "list", "-f", "csv").out))}
    database = Path(__file__).parent.parent / "hardware_db" / "accelerators"
    assert keys == {file.stem for file in database.glob("*.toml")}


@pytest.mark.parametrize("kind", ["accelerators", "nodes", "links", "topologies"])
@pytest.mark.parametrize("form", ["table", "csv", "json", "jsonl", "md"])
def test_hw_list_in_every_format(kind: str, form: str) -> None:
    ran = gpucalc("hw", "list", kind, "-f", form)
    assert (ran.status, ran.err) == (0, "")
    if form == "json":
        assert all(row["key"] for row in json.loads(ran.out))
    else:
        assert len(ran.out.splitlines()) > 2


def test_hw_show_keeps_dense_and_sparse_apart() -> None:
    shown = json.loads(gpucalc("hw", "show", "H100 SXM5 80GB", "-f", "json").out)
    assert shown["key"] == "h100-sxm-80gb"
    assert shown["peak_sparse"]["bf16"] == pytest.approx(2 * shown["peak_dense"]["bf16"], rel=1e-3)
    assert shown["link_bandwidth"] * 2 == shown["link_bidirectional"]
    assert shown["sources"]
    table = gpucalc("hw", "show", "h100-sxm-80gb").out
    assert "989.4 TFLOP/s" in table
    assert "sources.memory" in table


def test_hw_show_finds_nodes_links_and_topologies() -> None:
    for name in ("dgx-h100", "ib-ndr", "fat-tree"):
        assert json.loads(gpucalc("hw", "show", name, "-f", "json").out)["key"] == name


def test_hw_check_and_schema(tmp_path: Path) -> None:
    assert gpucalc("hw", "check").status == 0
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('name = "Mine"\nmemory = 80\nfoo = 1\n')
    ran = gpucalc("hw", "check", str(tmp_path))
    assert ran.status == 2
    assert len(ran.out.splitlines()) > 3
    assert all("mine.toml" in line for line in ran.out.splitlines())
    assert "problems" in ran.err
    assert "peak.dense" in gpucalc("hw", "schema").out


def test_an_overlay_counts(tmp_path: Path) -> None:
    database = Path(__file__).parent.parent / "hardware_db" / "accelerators" / "h100-sxm-80gb.toml"
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text(database.read_text())
    assert gpucalc("hw", "show", "mine", "--db", str(tmp_path)).status == 0
    assert gpucalc("hw", "show", "mine").status == 2


def test_models_list_and_show() -> None:
    listed = gpucalc("models", "list", "-f", "csv").out.splitlines()
    assert listed[0].startswith("name,")
    names = [line.split(",")[0] for line in listed[1:]]
    assert len(names) >= 60
    assert {"llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"} <= set(names)
    shown = json.loads(gpucalc("models", "show", "Meta-Llama/Llama-3.1-70B-Instruct", "-f", "json").out)
    assert shown["parameters_total"] == 70_553_706_496
    assert {"name", "architecture", "parameters_active", "parameters_embedding", "kv_bytes_per_token"} <= set(shown)
    assert {"shape", "origin", "warnings"} <= set(shown)
    assert "70,553,706,496" in gpucalc("models", "show", "llama-3.1-70b").out


def test_models_import_a_folder_and_bad_files(tmp_path: Path) -> None:
    config = Path(__file__).parent.parent / "gpucalc" / "presets" / "llama-3.1-8b.json"
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + config.read_bytes().replace(b"\n", b"\r\n"))
    for place in (tmp_path, tmp_path / "config.json"):
        assert json.loads(gpucalc("models", "import", str(place), "-f", "json").out)["parameters_total"] > 8e9
    bad = tmp_path / "bad.json"
    for content in (
        b"",
        b"{",
        b"\x00\x01",
        b"[]",
        b'{"hidden_size": "\xff"}',
        b"[" * 100_000,
        b'{"model_type": "nope"}',
    ):
        bad.write_bytes(content)
        assert (
            "bad.json" in gpucalc("models", "import", str(bad)).sentence()
            or "nope" in gpucalc("models", "import", str(bad)).sentence()
        )
    (tmp_path / "empty").mkdir()
    assert "config.json" in gpucalc("models", "import", str(tmp_path / "empty")).sentence()


def test_comm_takes_every_spelling_that_eval_takes() -> None:
    same = {gpucalc("comm", op, "1GiB", "--gpu", "h100", "--gpus", "8", "-f", "csv").out for op in ("alltoall", "a2a")}
    assert len(same) == 1
    assert "alltoall" in same.pop()


def test_comm_in_every_format() -> None:
    arguments = ["comm", "all-reduce", "1GiB", "--gpu", "h100-sxm-80gb", "--gpus", "64", "--fabric", "ib-ndr"]
    table = gpucalc(*arguments)
    assert table.status == 0
    assert "400 Gb/s of network per GPU" in table.err
    found = json.loads(gpucalc(*arguments, "-f", "json").out)
    assert [row["algorithm"] for row in found]
    chosen = [row for row in found if row["chosen"] in (True, "yes")]
    assert len(chosen) == 1
    assert chosen[0]["time_us"] == min(row["time_us"] for row in found)
    assert gpucalc(*arguments, "-f", "csv").out.startswith(",".join(found[0]))


def test_a_stated_network_rate_is_per_gpu() -> None:
    question = ("comm", "all_reduce", "1GiB", "--gpu", "a100-sxm-80gb", "--gpus", "16", "-f", "json")
    answers = [json.loads(gpucalc(*question, "--inter-node-gbps", rate).out) for rate in ("25", "200")]
    slow, fast = (min(row["time_us"] for row in rows) for rows in answers)
    assert slow > 3 * fast


@pytest.mark.parametrize(
    "line",
    [
        "gemm 8192 8192 8192 --precision bf16",
        "gemm 8_192 8,192 8192",
        "attention --seq-len 8192 --heads 32 --kv-heads 8",
        "attention --seq-len 8192 --heads 32 --kv-heads 8 --phase decode",
        "kernel --flops 1.1TFLOP --bytes 400MB",
    ],
)
def test_roofline(line: str) -> None:
    for form in ("table", "json", "csv"):
        ran = gpucalc("roofline", *line.split(), "--gpu", "h100-sxm-80gb", "-f", form)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out
