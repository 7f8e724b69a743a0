"""Common claims: the verdicts, and that they are computed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.database import files
from gpucalc.database.reader import Database
from gpucalc.validate.claims.check import CHECKS, check, check_all, shipped_claims
from gpucalc.validate.claims.statements import KINDS, from_pairs

DB = Database()


@pytest.fixture(scope="module")
def verdicts():  # type: ignore[no-untyped-def]
    return {one.claim.key: one for one in check_all(DB)}


@pytest.mark.parametrize(
    ("key", "verdict", "said"),
    [
        ("h100-fp16", "true only with sparsity", "989.4"),
        ("dgx-h100-fp8", "true only with sparsity", "15.83 PFLOP/s"),
        ("h100-fp64", "false", "33.5"),
        ("a100-fp64", "true", "9.7"),
        ("v100-fp16", "true", "125"),
        ("nvlink-pcie", "mixed bases", "14.5"),
        ("hdr-port", "true", "200"),
        ("ndr-port", "true", "400"),
        ("v100-memory", "true", "32"),
        ("mfu", "partly", "of published runs"),
        ("zero", "partly", "activations stay"),
        ("gigabit", "depends", "by model and batch"),
        ("tuned-ring", "depends", "3.8 times"),
        ("bloom-energy", "circular", "not a measurement"),
    ],
)
def test_the_verdict_on_a_claim(verdicts, key: str, verdict: str, said: str) -> None:  # type: ignore[no-untyped-def]
    one = verdicts[key]
    assert one.verdict == verdict
    assert said in one.because
    assert one.arithmetic
    assert one.source


def test_the_list_is_whole(verdicts) -> None:  # type: ignore[no-untyped-def]
    assert set(verdicts) == set(shipped_claims(DB))
    assert "66.9" in verdicts["h100-fp64"].because
    assert any("7.14" in line for line in verdicts["nvlink-pcie"].arithmetic)


def test_a_verdict_follows_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "accelerators"
    folder.mkdir()
    text = (files.shipped() / "accelerators" / "h100-sxm-80gb.toml").read_text(encoding="utf-8")
    text = text.replace('fp64 = "33.5 TFLOP/s"', 'fp64 = "1.9 TFLOP/s"')
    (folder / "h100-sxm-80gb.toml").write_text(text, encoding="utf-8")
    [one] = check_all(Database((tmp_path,)), ["h100-fp64"])
    assert one.verdict == "true"


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ("gpu=h100 precision=fp16 tflops=989", "true"),
        ("gpu=h100 precision=bf16 tflops=1979", "true only with sparsity"),
        ("gpu=h100 precision=fp16 pflops=2", "true only with sparsity"),
        ("gpu=h100 precision=fp16 tflops=500", "false"),
        ("gpu=h100 precision=fp16 peak=1.979PFLOP/s", "true only with sparsity"),
        ("gpu=h100 memory=80GB", "true"),
        ("gpu=h100 nvlink=900GB/s", "true"),
        ("fabric=ib-ndr rate=400Gb/s", "true"),
        ("gpu=h100 tdp=0.7kW", "true"),
        ("node=dgx-h100 precision=fp8 pflops=15.8", "true"),
        ("gpu=h100 memory_gb=80", "true"),
        ("gpu=h100 memory_gb=96", "false"),
        ("gpu=h100 memory_tb_s=3.35", "true"),
        ("gpu=h100 tdp_w=700", "true"),
        ("gpu=h100 link_gb_s=900", "true"),
        ("gpu=h100 link_gb_s=600", "false"),
        ("gpu=h100 pcie_gb_s=64", "true"),
        ("gpu=h100 link_gb_s=450 pcie=pcie-5 pcie_gb_s=64", "true"),
        ("gpu=h100 link_gb_s=900 pcie_gb_s=64", "mixed bases"),
        ("gpu=h100 link_gb_s=900 pcie_gb_s=500", "false"),
        ("fabric=ib-ndr gbps=800", "false"),
        ("hours=1000 kilowatts=0.4 energy_kwh=400", "circular"),
        ("hours=1000 kilowatts=0.4 energy_kwh=500", "depends"),
        ("before_pct=40 after_pct=15", "depends"),
        ("before_pct=90 after_pct=1", "false"),
        ("mfu_low_pct=1 mfu_high_pct=90", "true"),
        ("mfu_low_pct=80 mfu_high_pct=90", "false"),
    ],
)
def test_a_claim_of_a_user(pairs: str, verdict: str) -> None:
    assert check(from_pairs(pairs.split()), DB).verdict == verdict


def test_a_figure_of_another_part_is_recognised() -> None:
    one = check(from_pairs(["gpu=h100-sxm-80gb", "precision=fp64", "tflops=51.2"]), DB)
    assert one.verdict == "false"
    assert "h100-pcie-80gb" in one.because


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("gpu=h100 tflops=989", "missing precision"),
        ("gpu", "not key=value"),
        ("gpu=h100 precision=fp16 tflop=989", "tflops"),
        ("gpu=h100 precision=fp16 tflops=-1", "above 0"),
        ("gpu=h100 precision=fp16 tflops=many", "not a quantity"),
        ("gpu=h100 memory=80GB/s", "expected B"),
        ("before_pct=many after_pct=1", "above 0"),
        ("gpu=v100-sxm2-32gb precision=fp8 tflops=1", "states no peak of fp8"),
        ("gpu=h1000 precision=fp16 tflops=1", "unknown GPU"),
        ("before_pct=15 after_pct=40", "after_pct < before_pct"),
    ],
)
def test_a_claim_that_is_none_is_told_so(pairs: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(from_pairs(pairs.split()), DB)


def test_every_kind_has_a_check_and_a_broken_list_is_told(tmp_path: Path) -> None:
    assert set(KINDS) <= set(CHECKS)
    (tmp_path / "claims.toml").write_text('[one]\ntext = "x"\nkind = "nothing"\n')
    with pytest.raises(DataError, match=r"claims\.toml: one"):
        shipped_claims(Database((tmp_path,)))
    shutil.rmtree(tmp_path, ignore_errors=True)
