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
        ("a100-bf16", "true", "312"),
        ("a100-int8", "true only with sparsity", "624"),
        ("h100-fp64-matrix", "partly", "33.5"),
        ("b200-fp4", "true only with sparsity", "9,000"),
        ("h100-pflops", "true", "1,000 PFLOP/s"),
        ("a100-nvlink", "true", "both directions"),
        ("h100-bandwidth", "true", "3.35"),
        ("mi300x-memory", "true", "192"),
        ("dgx-memory", "true", "640"),
        ("h100-limit", "true", "700"),
        ("ndr-bytes", "false", "400"),
        ("pcie-5", "true", "both directions"),
        ("dgx-power", "depends", "the most that dgx-h100 is built for"),
        ("rack-power", "true", "118"),
        ("communication-limit", "false", "2.5"),
        ("serial-limit", "false", "15.4"),
        ("failures-16k", "true", "3.09"),
        ("goodput-16k", "true", "96"),
        ("hourly-checkpoints", "false", "points"),
        ("h100-price", "depends", "1.7"),
        ("weights-70b", "true", "141"),
        ("flop-gpt3", "true", "e+23"),
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
        ("gpu=dgx-h100 precision=fp8 pflops=32", "true only with sparsity"),
        ("gpu=DGX-H100 memory=640GB", "true"),
        ("gpu=h100 precision=fp64 tflops=67", "partly"),
        ("gpu=h100 precision=fp64 tflops=33.5", "true"),
        ("gpu=a100 precision=fp64 tflops=19.5", "partly"),
        ("gpu=h100 n_gpus=8 precision=fp16 tflops=7915", "true"),
        ("gpu=h100 n_gpus=8 memory_gb=640", "true"),
        ("gpu=h100 link_gb_s=900 pcie_gb_s=32", "mixed bases"),
        ("communication_pct=60 speedup=2.5", "true"),
        ("communication=60% speedup=2.6", "false"),
        ("serial=5% gpus=64 speedup=15.4", "true"),
        ("goodput=44% mtbf=18min n_gpus=100000", "depends"),
        ("goodput=99% mtbf=18min n_gpus=100000", "false"),
        ("mtbf=3h n_gpus=16384", "true"),
        ("mtbf=300h n_gpus=16384", "false"),
        ("interval=11min save=20s mtbf=3h", "true"),
        ("interval=5h save=20s mtbf=3h", "false"),
        ("gpu=h100 price=20", "false"),
        ("node=dgx-h100 node_power=6.8kW", "true"),
        ("model=llama-3.1-70b precision=fp16 memory=70GB", "false"),
        ("model=gpt3-175b tokens=300B flop=3.1e23", "true"),
        # 18 trays of 4 GPUs, 10 PFLOP/s of dense fp4 each: what is sold as an NVL72 is the rack.
        ("gpu=gb200-nvl72 precision=fp4 pflops=1440", "true only with sparsity"),
        ("rack=gb200-nvl72 precision=fp8 pflops=360", "true"),
        ("node=gb200-nvl72 precision=fp4 pflops=40", "true"),
        ("gpu=gb200-nvl72 memory=13.4TB", "true"),
        ("rack=gb200-nvl72 power=120kW", "true"),
        ("rack=gb200-nvl72 price_usd=3000000", "depends"),
        ("node=dgx-h100 price_usd=100000", "false"),
        ("gpu=h100 capital=30000", "true"),
        ("gpu=h100 power=700W", "true"),
        ("node=dgx-h100 network=3200Gb/s", "true"),
        ("node=dgx-h100 network=400Gb/s", "partly"),
        ("node=dgx-h100 gbps=800", "false"),
        ("goodput=95% gpus=16384", "true"),
        ("goodput=99% gpus=100000", "false"),
        ("parameters=70B precision=fp16 weights_gb=140", "true"),
        ("params=70B tokens=15T flops=6.3e24", "true"),
        ("gpu=a100 precision=int8 tops=1248", "true only with sparsity"),
        ("communication=0% speedup=1.1", "false"),
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
        ("gpu=h100 precision=fp16 tflops=1 tflops=2", "tflops is stated twice"),
        ("communication_pct=100 speedup=2", "nothing is left"),
        ("goodput_pct=120 mtbf=3h", "share of 100"),
        ("gpu=h800-sxm-80gb price=2", "no dated price"),
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
