"""The uncertainty band: family of a job, the rule's closed form, its coverage, widening where little is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucalc.core.errors import DataError
from gpucalc.database.bands import (
    FAMILIES,
    LEAST_HALF_WIDTH,
    MEMORY,
    TIME,
    UNVALIDATED,
    Residual,
    Rule,
    band,
    bands,
    coverage,
    family_of,
    fitted_rule,
    memory_half_width,
)
from gpucalc.database.reader import Database
from gpucalc.database.tables import parse_table
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
        (UNVALIDATED, {"model": "bert-large", "seq_len": 512}),
        (UNVALIDATED, {"model": "nemotron-3-nano-30b-a3b"}),
    ],
)
def test_family(db: Database, family: str, cells: dict[str, object]) -> None:
    assert family_of(job(db, **cells)) == family


def test_every_quantity_has_a_rule() -> None:
    table = bands(Database())
    for quantity in (TIME, MEMORY):
        rule = table.rules[quantity]
        assert 0 < rule.supported < 0.1
        assert 0 < rule.quantile < 3
        assert set(rule.factors) <= set(FAMILIES)


def test_assumed_kernels_and_unknown_software_widen_the_band(db: Database) -> None:
    """The V100 has no measured kernels, the H100 has; nobody has measured the neutral profile."""
    measured, assumed = band(job(db, n_gpus=8)), band(job(db, n_gpus=8, gpu="v100-sxm2-32gb", precision="fp16"))
    assert measured[2] == assumed[2] == "dense"
    assert assumed[0] < measured[0] < 1 < measured[1] < assumed[1]
    unknown = band(job(db, n_gpus=8, framework="nobody knows"))
    assert unknown[1] > measured[1]
    assert memory_half_width(job(db, framework="nobody knows")) >= memory_half_width(job(db))


def test_a_family_without_a_row_has_the_widest_band(db: Database) -> None:
    known = max(band(job(db, framework="nobody knows", **c))[1] for c in ({}, {"zero_stage": 3}, {"precision": "fp8"}))
    assert band(job(db, model="bert-large", seq_len=512))[1] >= known


@given(st.integers(0, 20), st.sampled_from([*FAMILIES, "no such family"]))
def test_more_sources_never_widen(others: int, family: str) -> None:
    rule = bands(Database()).rules[TIME]
    assert rule.half_width(family, others + 1) <= rule.half_width(family, others)
    assert rule.half_width(family, others, 0.1) >= rule.half_width(family, others) >= LEAST_HALF_WIDTH


def test_deviation_by_hand() -> None:
    """a·(A + u²/(1+n)) + kernels²: 2·(0.01 + 0.03/3) + 0.04 = 0.08."""
    rule = Rule(0.01, 0.03, 0.9, {"moe": 2.0})
    assert rule.deviation("moe", 2, 0.2) == pytest.approx(math.sqrt(0.08))
    assert rule.half_width("moe", 2, 0.2) == pytest.approx(0.9 * math.sqrt(0.08))


def test_the_rule_covers_what_it_is_fitted_to() -> None:
    """Twelve sources of equal spread: at least 80 % of each are inside, with each left out of the constants."""
    values = [(-1) ** k * 0.02 * (1 + k % 7) for k in range(84)]
    rows = [Residual(f"s{k % 12}", "dense", k % 12 % 3, v) for k, v in enumerate(values)]
    shares = coverage(rows)
    assert len(shares) == 12
    assert sum(shares.values()) / 12 >= 0.75
    rule = fitted_rule(rows)
    assert rule.factors["dense"] >= 0.75
    assert rule.factors["moe"] == 4.0  # no row: the largest


@pytest.mark.parametrize(
    "text",
    ["quantity,kind,name,value\ntime,rule,supported,x\n", "quantity,kind,name,value\ntime,rule,supported,-1\n",
     "quantity,kind,name,value\ntime,rule,supported,inf\n", "quantity,kind,name,value\nenergy,rule,supported,1\n"],
)  # fmt: skip
def test_wrong_tables_are_told(text: str) -> None:
    with pytest.raises(DataError, match=r"bands\.csv: row 2"):
        parse_table("bands", text, "bands.csv")
