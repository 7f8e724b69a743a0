"""Calibration files: every device resolves, overlays win, faults are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucalc.core.errors import DataError, UsageError
from gpucalc.core.formula import FORMULAS
from gpucalc.database.efficiency import TABLES, calibration_rows, kernel_constants, kernel_provenance
from gpucalc.database.reader import Database
from gpucalc.database.tables import parse_table
from gpucalc.questions.kernels import roofline_attention, roofline_gemm

DB = Database()
DEVICES = {device.key: device for device in DB.devices()}


@pytest.mark.parametrize("key", sorted(DEVICES))
def test_every_device_and_precision_has_all_constants(key: str) -> None:
    device = DEVICES[key]
    for precision in device.precisions():
        product = roofline_gemm(8192, 8192, 8192, device, precision, DB)
        assert 0.1 < product["metric/peak_share"] < 0.97, precision
        for phase in ("prefill_causal", "decode"):
            found = roofline_attention(phase, 4, 4096, 32, 8, 128, device, precision, DB)
            assert 0 < found["metric/peak_share"] < 0.9, precision


def test_constants_are_arguments_of_formulas() -> None:
    """A constant that no formula reads would be a dead number."""
    arguments = {name for info in FORMULAS.values() for name in info.parameters}
    known = set(kernel_constants(DEVICES["h100-sxm-80gb"], "fp8", DB))
    # Two values of one argument, chosen by direction.
    assert known - arguments == {"score_traffic_forward", "score_traffic_backward"}


@pytest.mark.parametrize(
    ("key", "precision", "said"),
    [
        ("h100-sxm-80gb", "bf16", "measured"),
        ("h100-sxm-80gb", "bf16-true", "measured"),
        ("mi300x", "bf16", "published"),
        ("h800-sxm-80gb", "fp8", "assumed"),
        ("v100-sxm2-32gb", "fp16", "assumed"),
    ],
)
def test_provenance_reaches_the_caller(key: str, precision: str, said: str) -> None:
    assert kernel_provenance(DEVICES[key], precision, DB)["gemm"] == said


def test_published_plateaus_are_reproduced_by_the_formula() -> None:
    """Best product found on a device (S. Bekman, ML Engineering): what the constant was derived from must return."""
    published = {"mi300x": 0.511, "mi325x": 0.604, "mi355x": 0.622, "gaudi3": 0.741}
    for key, share in published.items():
        found = max(
            roofline_gemm(m, n, 8192, DEVICES[key], "bf16", DB)["metric/peak_share"]
            for m in (8192, 12288, 16384)
            for n in (8192, 12288, 16384)
        )
        assert found == pytest.approx(share, rel=0.06), key


def test_a_relative_of_a_measured_device_takes_over_its_generation() -> None:
    h800, h100, h200 = (
        kernel_constants(DEVICES[k], "bf16", DB)["gemm_efficiency"]
        for k in ("h800-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb")
    )
    assert min(h100, h200) <= h800 <= max(h100, h200)


def test_an_overlay_wins_constant_by_constant(tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    folder.mkdir()
    text = "key,precision,provenance,gemm_efficiency\nh100-sxm-80gb,bf16,measured,0.5\n"
    (folder / "gemm.csv").write_text(text)
    device = DEVICES["h100-sxm-80gb"]
    shipped, overlaid = kernel_constants(device, "bf16", DB), kernel_constants(device, "bf16", Database([tmp_path]))
    assert overlaid["gemm_efficiency"] == 0.5
    assert {n for n in shipped if shipped[n] != overlaid[n]} == {"gemm_efficiency"}


def test_all_rows_name_a_source_and_known_keys() -> None:
    families = {device.arch for device in DEVICES.values()}
    for table in TABLES:
        for device in DEVICES.values():
            for row in calibration_rows(device, "bf16", table, DB):
                assert row.texts["source"], (table, row.key)
                assert row.key[0] in {
                    device.key,
                    device.arch,
                    f"{device.arch} GDDR",
                    device.architecture.lookup,
                    "default",
                }
    assert {"Hopper", "Ampere", "Blackwell"} <= families


def test_faults_of_a_file_are_all_named() -> None:
    text = "key,precision,provenance,gemm_efficiency\na,bf16,guessed,0.5\nb,bf16,measured,fast\nc,bf16,measured,-1\n"
    with pytest.raises(DataError) as caught:
        parse_table("gemm", text, "my.csv")
    assert len(caught.value.problems) == 3
    assert "guessed" in str(caught.value)
    assert "'fast' is not a number" in str(caught.value)
    with pytest.raises(DataError, match="no column provenance"):
        parse_table("gemm", "key,gemm_efficiency\na,1\n", "my.csv")


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean bf16"):
        kernel_constants(DEVICES["h100-sxm-80gb"], "bf17", DB)
