"""The uncertainty band: family of a job, factors, widening where kernels are assumed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError
from gpucalc.database.bands import band, bands, family_of, widened
from gpucalc.database.reader import Database
from gpucalc.database.tables import ASSUMED_KERNELS, FAMILIES, parse_table
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import resolve


@pytest.fixture(scope="module")
def db() -> Database:
    return Database()


def job(db: Database, **cells):
    base = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 4096, "global_batch": 128}
    return resolve({**base, **cells}, Context(db))


@pytest.mark.parametrize(
    ("family", "cells"),
    [
        ("dense", {}),
        ("low-precision", {"precision": "fp8"}),
        ("sharded", {"zero_stage": 3}),
        ("slow-network", {"inter_node_gbps_per_gpu": 50.0}),
        ("dense", {"inter_node_gbps_per_gpu": 50.0, "n_gpus": 8}),  # one node crosses no network
        ("moe", {"model": "mixtral-8x7b", "precision": "fp8"}),
        ("adapters", {"method": "lora", "framework": "litgpt"}),
        ("small", {"model": "llama-3.2-1b", "n_gpus": 8, "framework": "torchtitan"}),
    ],
)
def test_family(db: Database, family: str, cells: dict[str, object]) -> None:
    assert family_of(job(db, **cells)) == family


def test_every_family_has_a_band_around_one(db: Database) -> None:
    table = bands(db)
    assert set(table) == {*FAMILIES, ASSUMED_KERNELS}
    for low, high in table.values():
        assert 0.2 < low < 1 < high < 3


def test_assumed_kernels_widen_the_band(db: Database) -> None:
    """The V100 has no measured kernels, the H100 has."""
    measured, assumed = band(job(db, n_gpus=8)), band(job(db, n_gpus=8, gpu="v100-sxm2-32gb", precision="fp16"))
    assert measured[2] == assumed[2] == "dense"
    assert measured[:2] == bands(db)["dense"]
    assert assumed[0] < measured[0]
    assert assumed[1] > measured[1]


halves = st.tuples(st.floats(0.3, 1.0), st.floats(1.0, 3.0))


@given(halves, halves)
def test_two_bands_are_wider_than_each_and_narrower_than_their_product(one, other) -> None:
    low, high = widened(one, other)
    assert one[0] * other[0] * (1 - 1e-12) <= low <= min(one[0], other[0]) * (1 + 1e-12)
    assert max(one[1], other[1]) * (1 - 1e-12) <= high <= one[1] * other[1] * (1 + 1e-12)


def test_widened_by_hand() -> None:
    """ln 1.1 = 0.09531, ln 1.2 = 0.18232: root of the sum of squares 0.20573, e^0.20573 = 1.22842."""
    assert widened((1 / 1.1, 1.1), (1 / 1.2, 1.2)) == pytest.approx((1 / 1.22842, 1.22842), rel=1e-5)
    assert math.isclose(widened((0.9, 1.2), (1.0, 1.0))[1], 1.2)


@pytest.mark.parametrize(
    "text",
    ["family,low,high\ndense,1.1,1.2\n", "family,low,high\ndense,0.9,x\n", "family,low\ndense,0.9\n",
     "family,low,high\ndense,0,2\n", "family,low,high\ndense,0.9,inf\n"],
)  # fmt: skip
def test_wrong_tables_are_told(text: str) -> None:
    with pytest.raises(DataError, match=r"bands\.csv: (row 2|no column high)"):
        parse_table("bands", text, "bands.csv")
