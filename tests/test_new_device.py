"""A card that the database has not: a file made from the nearest one, and a memory stated instead of a card's."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from cli import gpucalc

from gpucalc.core.columns import parse_cell
from gpucalc.core.errors import UsageError
from gpucalc.database.cluster import resolve_cluster
from gpucalc.database.reader import Database

FIGURES = ("--memory", "8GB", "--bandwidth", "448GB/s", "--peak", "40.6TFLOP/s")


def test_a_device_file_is_made_checked_and_used(tmp_path: Path) -> None:
    mine = str(tmp_path / "mine")
    made = gpucalc("hw", "new", "RTX 3070", "--like", "rtx3090", *FIGURES, "--power", "220W", "-o", mine)
    assert made.status == 0, made.err
    assert made.out.strip().endswith("mine/accelerators/rtx-3070.toml")
    own, model = Database((mine,)).device("rtx-3070"), Database().device("rtx3090")
    assert own.usable_bytes == 8 * 2**30
    assert own.memory_bandwidth == 448e9
    assert own.tdp_watts == 220
    assert own.peak["bf16"] == 40.6e12
    # Peaks that are not stated keep their ratio; the rest is the model device's, and its source says so.
    assert own.peak["int8"] / own.peak["bf16"] == pytest.approx(model.peak["int8"] / model.peak["bf16"], rel=1e-4)
    assert "stated by the user" in own.sources["memory"]
    assert own.sources["compute"].startswith("as rtx3090-24gb")
    assert gpucalc("hw", "check", mine).status == 0
    job = ("--gpu", "rtx-3070", "--gpus", "4", "--seq-len", "1024", "--global-batch", "8", "--db", mine)
    ran = gpucalc("plan", "qwen3-0.6b", *job, "--top", "1", "-f", "csv")
    assert ran.status == 0, ran.err
    again = gpucalc("hw", "new", "rtx-3070", "--like", "rtx3090", *FIGURES, "-o", mine)
    assert (again.status, "is there already" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("h100-sxm-80gb", "--like", "rtx3090", *FIGURES), "is in the database"),
        (("mine", "--like", "rtx9999", *FIGURES), "unknown"),
        (("mine", *FIGURES), "missing: --like GPU"),
        (("mine", "--like", "rtx3090"), "missing: --memory, --bandwidth, --peak"),
        (("mine", "--like", "rtx3090", *FIGURES[:4], "--peak", "fp9=1TFLOP/s"), "unknown precision"),
        (("mine", "--like", "rtx3090", *FIGURES[:2], "--bandwidth", "448", "--peak", "1TFLOP/s"), "has no unit"),
        (("mine", "--like", "rtx3090", "--memory", "lots", *FIGURES[2:]), "expected a size such as 24GB"),
        (("///", "--like", "rtx3090", *FIGURES), "names no device"),
        (("mine", "--like", "rtx3090", *FIGURES[:4], "--peak", "fp8=1TFLOP/s"), "has no peak in fp8"),
    ],
)
def test_figures_of_no_device_are_refused_and_nothing_is_written(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    said = gpucalc("hw", "new", *words, "-o", str(tmp_path / "mine"))
    assert said.status == 2
    assert sentence in said.err
    assert not list(tmp_path.rglob("*.toml"))


def test_a_stated_memory_stands_for_any_card() -> None:
    assert parse_cell("gpu_memory_gib", "24GB") == parse_cell("gpu_memory_gib", "24") == 24
    assert parse_cell("gpu_memory_gib", "11264 MiB") == 11
    for text in ("", "0GB", "1e9"):
        if text:
            with pytest.raises(UsageError):
                parse_cell("gpu_memory_gib", text)
    own = resolve_cluster(Database(), "rtx4090", 8, gpu_memory_gib=48)
    usual = resolve_cluster(Database(), "rtx4090", 8)
    assert own.device.usable_bytes == 48 * 2**30
    assert own.device.peak == usual.device.peak
    assert own.link_bandwidth == usual.link_bandwidth


def _fits(*words: str) -> tuple[str, str]:
    ran = gpucalc("plan", "llama-3.1-8b", *words, "--gpus", "8", "--seq-len", "2048", "--global-batch", "8",
                  "--layout", "dp8-mbs1-zero3-full", "-f", "csv")  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    return (rows[0]["pred_fit"] if rows else "none"), ran.err


def test_more_memory_never_fits_less() -> None:
    found = [_fits("--gpu-memory", f"{size}GB")[0] for size in (8, 24, 40, 80)]
    assert found == sorted(found, key=["none", "oom", "risky", "fits"].index)
    assert found[-1] == "fits"
    assert found[0] != "fits"
    assert "no GPU is named" in _fits("--gpu-memory", "80GB")[1]
    assert "no GPU is named" not in _fits("--gpu", "rtx4090", "--gpu-memory", "80GB")[1]
    ran = gpucalc(
        "serve", "llama-3.1-8b", "--gpu-memory", "24GB", "--gpus", "1", "--isl", "999", "--osl", "99", "-f", "csv"
    )
    assert ran.status == 0, ran.err
    assert int(float(next(csv.DictReader(io.StringIO(ran.out)))["pred_kv_tokens"])) > 10_000
