"""Power, energy and cost: published node power, caps on the one estimate, and sums that must add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from gpucalc.core.errors import UsageError
from gpucalc.database import defaults
from gpucalc.database.reader import Database
from gpucalc.formulas import cost, energy
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import predict_networks, resolve_network_job
from gpucalc.jobs.training import predict, resolve
from gpucalc.questions.power import Question, node_load_watts, power
from gpucalc.validate.cluster import cluster_report, shipped

DB = Database()
JOB = {
    **{"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 256, "seq_len": 8192, "global_batch": 256},
    **{"tp": 4, "pp": 4, "dp": 16, "micro_batch": 1, "zero_stage": 1, "sequence_parallel": True},
}


@pytest.fixture(scope="module")
def found():  # type: ignore[no-untyped-def]
    return power(Question("h100-sxm-80gb", 256, pue=1.1, capital=31250.0), Context(DB), JOB)


def test_published_nodes_at_training_load() -> None:
    report = cluster_report("energy", shipped("energy"), DB)
    lines = {line["group"]: line for line in report["by_group"]}
    assert lines["all"]["rows"] >= 8
    assert lines["all"]["median_pct"] <= 8
    assert lines["all"]["p90_pct"] <= 8
    assert lines["load factor from the other architectures alone"]["median_pct"] <= 8
    assert lines["all"]["inside_range"] == "8 of 8"
    assert lines["energy of the GPUs of whole runs"]["p90_pct"] <= 30


def test_what_is_no_training_load_is_reported_apart_and_circular_figures_not_at_all() -> None:
    rows = shipped("energy")
    assert all(r["judged"] == "no" and r["reason"] for r in rows if float(r["duration_s"]) < 600)
    assert all(r["judged"] == "no" for r in rows if r["kind"] == "inference")
    for name in ("BLOOM", "Llama", "Gopher", "DeepSeek", "StarCoder", "MPT"):
        assert not any(r["system"].startswith(name) for r in rows)


def test_a_run_of_mlperf_has_its_energy() -> None:
    """GPT-3 on 64 nodes of eight H100 took 415 kWh in 3,410 s."""
    watts, low, high = node_load_watts(DB.device("h100-sxm-80gb"), 8.0, DB)
    hours = 3409.8 / 3600
    assert 64 * watts * hours / 1e3 == pytest.approx(415.2, rel=0.03)
    assert 64 * low * hours / 1e3 < 415.2 < 64 * high * hours / 1e3


def test_sums_add_up(found) -> None:  # type: ignore[no-untyped-def]
    f = {name: value[0] for name, value in found.figures.items()}
    assert f["cluster_mw"] == pytest.approx((32 * f["node_kw"] + 256 * 0.0108) / 1e3, rel=1e-9)
    assert f["site_mw"] == pytest.approx(1.1 * f["cluster_mw"], rel=1e-12)
    assert f["year_mwh"] == pytest.approx(f["site_mw"] * 8760, rel=1e-9)
    [row] = predict([resolve(JOB, Context(DB))])
    assert f["step_kwh"] == pytest.approx(f["site_mw"] * 1e3 * row["pred_step_time_s"] / 3600, rel=1e-9)
    assert f["j_per_token"] == pytest.approx(f["step_kwh"] * 3.6e6 / (256 * 8192), rel=1e-9)
    parts = ("capital_usd_per_gpu_hour", "operating_usd_per_gpu_hour", "electricity_usd_per_gpu_hour")
    assert f["ownership_usd_per_gpu_hour"] == pytest.approx(sum(f[p] for p in parts), rel=1e-9)
    assert f["capital_usd"] == pytest.approx(256 * 31250)
    assert f["ownership_usd_per_year"] == pytest.approx(f["ownership_usd_per_gpu_hour"] * 256 * 8760, rel=1e-9)
    assert f["electricity_usd_per_year"] == pytest.approx(f["year_mwh"] * 1e3 * 0.08, rel=1e-9)
    for name, (value, low, high) in found.figures.items():
        assert low <= value <= high, name


def test_idle_is_a_fraction_of_load_near_the_measured_fleet() -> None:
    """Servers of eight A100 of a fleet drew 1.5 kW at their 10th percentile and 4.9 kW at their 90th."""
    f = power(Question("a100-sxm-80gb", 8), Context(DB)).figures
    assert f["node_idle_kw"][0] == pytest.approx(1.512, rel=0.15)
    assert f["node_kw"][0] == pytest.approx(4.851, rel=0.08)


@settings(max_examples=examples(50))
@given(used=st.floats(0, 1), more=st.floats(0, 1))
def test_power_grows_with_the_load(used: float, more: float) -> None:
    low, high = sorted((used, more))
    at = [float(energy.node_power_at(8.0, 665.0, 1500.0, 1560.0, u)) for u in (0.0, low, high, 1.0)]
    assert at == sorted(at)


def test_caps_are_the_one_estimate_with_a_lower_clock(found) -> None:  # type: ignore[no-untyped-def]
    first = found.caps[0]
    [row] = predict([resolve(JOB, Context(DB))])
    assert first["step_time_s"] == pytest.approx(row["pred_step_time_s"], rel=1e-12)
    assert first["slower_pct"] == 0
    times, tokens = ([c[name] for c in found.caps] for name in ("step_time_s", "j_per_token"))
    assert times == sorted(times)
    assert tokens == sorted(tokens, reverse=True)
    for cap in found.caps[1:]:
        share = cap["cap_pct"] / 100
        # Only compute slows with the clock, so a step slows less than the clock does.
        assert 0 < cap["slower_pct"] < 100 * ((share / 0.95) ** -0.4 - 1)
        assert cap["slower_low_pct"] <= cap["slower_pct"] <= cap["slower_high_pct"]


def test_a_stated_cap_holds_for_step_and_power(found) -> None:  # type: ignore[no-untyped-def]
    capped = power(Question("h100-sxm-80gb", 256, pue=1.1, capital=31250.0, cap=490.0), Context(DB), JOB)
    assert capped.figures["gpu_w"][0] == 490
    listed = next(c for c in found.caps if c["cap_w"] == pytest.approx(490))
    assert capped.figures["j_per_token"][0] == pytest.approx(listed["j_per_token"], rel=1e-9)


@pytest.mark.parametrize(("cap", "said"), [(900.0, "above the limit"), (90.0, "draws idle")])
def test_caps_outside_their_meaning(cap: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        power(Question("h100-sxm-80gb", 8, cap=cap), Context(DB))


@settings(max_examples=examples(50))
@given(interest=st.floats(0.0, 0.5), years=st.floats(1.0, 20.0))
def test_an_annuity_lies_between_its_parts_and_their_sum(interest: float, years: float) -> None:
    share = float(cost.annuity(interest, years))
    assert 1 / years - 1e-6 <= share <= 1 / years + interest + 1e-6
    assert share >= interest


@pytest.mark.parametrize("years", [1.0, 4.0, 5.0, 10.0])
@pytest.mark.parametrize("interest", [0.0, 0.05, 0.2])
def test_an_annuity_of_whole_years_pays_back_to_the_cent(interest: float, years: float) -> None:
    debt = 1.0
    for _ in range(int(years)):
        debt = debt * (1 + interest) - float(cost.annuity(interest, years))
    assert debt == pytest.approx(0.0, abs=1e-6)


def test_ownership_needs_a_capital_that_is_known_or_stated() -> None:
    without = power(Question("h800-sxm-80gb", 8), Context(DB))
    assert "ownership_usd_per_gpu_hour" not in without.figures
    assert any("--capital" in note for note in without.notes)
    stated = power(Question("mi325x", 8, capital=25000.0, years=5.0, interest=0.0), Context(DB))
    assert stated.figures["capital_usd_per_gpu_hour"][0] == pytest.approx(25000 / 5 / 8760, rel=1e-9)


def test_every_term_and_every_origin_is_told(found) -> None:  # type: ignore[no-untyped-def]
    assert {"power/site/load", "energy/token", "cost/ownership"} <= {t["path"] for t in found.terms}
    assert all(t["formula"] for t in found.terms)
    assert set(found.origins) >= {"load_factor", "electricity_price", "capital", "opex", "years", "interest"}


def test_every_device_with_a_limit_has_a_node_power() -> None:
    for device in DB.devices():
        if device.tdp_watts:
            value, low, high = node_load_watts(device, 8.0, DB)
            assert 8 * device.tdp_watts < low <= value <= high, device.key


def test_measured_load_factors_hold_what_they_were_made_from() -> None:
    values = defaults.defaults(DB, "power")
    rows = [r for r in shipped("energy") if r["judged"] == "yes" and r["side"] == "ac"]
    for family, gpu in (("hopper", "h100-sxm-80gb"), ("blackwell", "b200-sxm-180gb")):
        board = 8 * (DB.device(gpu).tdp_watts or 0)
        factors = [float(r["node_w"]) / board for r in rows if r["gpu"] == gpu]
        one = values[f"load_factor_{family}"]
        assert one.low <= np.min(factors)
        assert np.max(factors) <= one.high


def test_a_cap_at_the_draw_costs_nothing_and_the_asked_one_is_listed() -> None:
    """I4: H100 draw 665 W in training, so a cap there slows nothing; 490 W about 11 %, 500 W is a row."""
    caps = {}
    for watts in (665.0, 500.0):
        answer = power(Question("h100-sxm-80gb", 256, cap=watts), Context(DB), JOB)
        caps |= {round(c["cap_w"]): c for c in answer.caps}
    assert caps[665]["slower_pct"] == 0
    assert caps[665]["j_per_token"] == pytest.approx(caps[700]["j_per_token"], rel=1e-12)
    assert 490 in caps
    assert 500 in caps
    clock = (490 / 665) ** 0.4
    assert 0 < caps[490]["slower_pct"] < 100 * (1 / clock - 1)
    assert caps[500]["slower_pct"] < caps[490]["slower_pct"]


@settings(max_examples=examples(20))
@given(cap=st.floats(120.0, 700.0))
def test_a_lower_cap_never_saves_time(cap: float) -> None:
    higher = min(700.0, cap * 1.1)
    assert float(energy.cap_share(cap, 700.0, 0.95)) <= float(energy.cap_share(higher, 700.0, 0.95)) <= 1


def test_a_rack_counts_its_switch_trays_and_has_a_price() -> None:
    """I19: a GB200 NVL72 is sold and cooled as about 120 kW."""
    f = power(Question("gb200", 72), Context(DB)).figures
    assert f["racks_kw"][0] == pytest.approx(120, rel=0.03)
    assert f["racks_kw"][1] < 120 < f["racks_kw"][2]
    assert f["capital_usd"][0] > 2.5e6
    assert "racks_kw" not in power(Question("h100-sxm-80gb", 72), Context(DB)).figures


def test_inference_and_short_runs_have_a_power_of_their_own() -> None:
    """I22: H200 serving 70B drew 6,153 W, B200 9,011 to 10,442 W; eight H100 in a run of seven minutes 5,713 W."""
    report = cluster_report("energy", shipped("energy"), DB)
    apart = {line["group"]: line for line in report["by_group"] if line["group"].startswith("apart")}
    short = next(line for name, line in apart.items() if "shorter" in name)
    inference = next(line for name, line in apart.items() if "inference" in name)
    assert inference["median_pct"] <= 12
    assert short["median_pct"] <= 16
    for line in (short, inference):
        inside, _, rows = line["inside_range"].split()
        assert int(inside) >= 0.8 * int(rows)
    served = power(Question("h200-sxm-141gb", 8, load="inference"), Context(DB)).figures
    assert served["node_kw"][0] == pytest.approx(6.153, rel=0.02)
    assert 0 < served["node_idle_kw"][1] <= served["node_idle_kw"][0]
    run = power(Question("h100-sxm-80gb", 8, duration=430.5), Context(DB)).figures
    assert run["run_node_kw"][0] == pytest.approx(5.713, rel=0.04)


def test_every_current_device_has_a_dated_price() -> None:
    rented = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "b300-sxm-270gb", "gb200", "gb300", "mi300x")
    for key in (*rented, "mi325x", "mi355x", "l40s-48gb", "tpu-v5p", "tpu-v6e"):
        price = defaults.price(DB, key)
        assert price is not None, key
        assert price.low <= price.usd <= price.high
        assert defaults.age_in_months(price.date) >= 0
    for key in (*rented, "mi325x", "mi355x", "gaudi3"):
        capital = defaults.capital(DB, key)
        assert capital is not None, key
        assert capital.low <= capital.usd <= capital.high


@pytest.mark.parametrize(("country", "grams"), [("australia", 549), ("singapore", 471), ("South Korea", 431)])
def test_grids_of_many_countries(country: str, grams: float) -> None:
    found, said = defaults.grid(DB, country)
    assert found * 3.6e6 == pytest.approx(grams, abs=1)
    assert "CodeCarbon" in said


def test_a_sample_of_a_network_takes_the_power_of_the_site() -> None:
    cells = {"model": "resnet-50", "gpu": "h100-sxm-80gb", "n_gpus": 16, "micro_batch": 256}
    [row] = predict_networks([resolve_network_job(cells, Context(DB))])
    found = power(Question("h100-sxm-80gb", 16), Context(DB), cells)
    watts = 1e6 * found.figures["site_mw"][0]
    assert found.figures["j_per_sample"][0] == pytest.approx(watts / row["pred_samples_per_s"], rel=1e-9)
    assert "j_per_token" not in found.figures
    with pytest.raises(UsageError, match="not modelled"):
        power(Question("h100-sxm-80gb", 16, cap=500.0), Context(DB), cells)


def test_a_step_of_training_is_no_inference() -> None:
    with pytest.raises(UsageError, match="nodes that serve"):
        power(Question("h100-sxm-80gb", 256, load="inference"), Context(DB), JOB)
