"""Power and its cost as a question: a cluster, perhaps a job that runs on it, and caps on the power of its GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Columns, Ledger
from gpucalc.database import defaults as db_defaults
from gpucalc.database.cluster import Cluster, resolve_cluster
from gpucalc.database.defaults import HOUR, KWH, Default
from gpucalc.database.reader import Database
from gpucalc.database.records import Device
from gpucalc.estimate.power import estimate_power
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context

YEAR = 365 * 86400.0
CAP_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
ROOTS = (
    *("power/site/load", "power/site/idle", "energy/year", "energy/step", "energy/token"),
    *("cost/year/ownership", "cost/year/electricity", "cost/ownership", "cost/electricity"),
)


@dataclass(frozen=True)
class Question:
    """What was asked; None leaves a value to its default. Watts, USD, years."""

    gpu: str
    n_gpus: int
    gpus_per_node: int | None = None
    inter_node_gbps_per_gpu: float | None = None
    cap: float | None = None
    utilisation: float | None = None
    pue: float | None = None
    electricity_price: float | None = None  # USD per kWh
    capital: float | None = None  # USD per GPU, node and network included
    years: float | None = None
    interest: float | None = None


@dataclass
class PowerResult:
    """Figures with their range, the caps where a job was stated, and how it came about."""

    cluster: Cluster
    layout: str
    figures: dict[str, tuple[float, float, float]]
    caps: list[dict[str, Any]]
    terms: list[dict[str, Any]]
    origins: dict[str, str]
    notes: list[str] = field(default_factory=list)


def load_factor(values: Mapping[str, Default], device: Device) -> Default:
    """Wall power of a node under load over the limits of its accelerators, by generation."""
    return db_defaults.of_generation(values, "load_factor", device)


def load_watts(values: Mapping[str, Default], device: Device) -> tuple[float, Default] | None:
    """Watts of an accelerator, and the wall power of a node over those of its accelerators together.

    The board's limit and the load factor of its generation; where no limit is published but the draw in use was
    measured (`drawn_KEY` of the defaults), that draw alone. None where neither is known.
    """
    if device.tdp_watts is not None:
        return device.tdp_watts, load_factor(values, device)
    drawn = values.get(f"drawn_{device.key}")
    if drawn is None:
        return None
    ends = dataclasses.replace(drawn, value=1.0, low=drawn.low / drawn.value, high=drawn.high / drawn.value)
    return drawn.value, ends


def node_load_watts(device: Any, gpus: float, db: Database) -> tuple[float, float, float]:
    """Wall power of a node of so many accelerators under training load, with its range."""
    factor = load_factor(db_defaults.defaults(db, "power"), device)
    board = gpus * device.tdp_watts
    return factor.value * board, factor.low * board, factor.high * board


def power(question: Question, context: Context, cells: Mapping[str, Any] | None = None) -> PowerResult:
    """Power, energy and cost of a cluster; with the cells of a job, of its tokens and steps, and of capped GPUs."""
    db = context.db
    cluster = resolve_cluster(
        db, question.gpu, question.n_gpus, question.gpus_per_node, question.inter_node_gbps_per_gpu, context.fabric
    )
    device = cluster.device
    if device.tdp_watts is None:
        raise UsageError(f"{device.file} states no power limit; add power.tdp to it")
    values = db_defaults.defaults(db, "power")
    _check_cap(question, device.tdp_watts, values["idle_gpu"].value, device.key)
    notes: list[str] = []
    job, layout = None, ""
    if cells is not None:
        from gpucalc.jobs.variations import layout_label
        from gpucalc.questions.completed import complete_cells

        full, notes = complete_cells(cells, context)
        job = jobs.resolve(full, context)
        layout = layout_label(job, jobs.predict([job])[0])
    base, origins, said = _columns(question, cluster, db, values)
    spreads = _spreads(cluster, question, values, base)
    if job is not None:
        step = estimate_training(jobs.stack([_capped(job, base["cap_watts"] / device.tdp_watts)]))
        base |= _paces(step, cluster)
        origins["step_time, cluster_token_rate"] = (
            "estimate of a step of this layout, which gpucalc explain takes apart"
        )
    ledger = estimate_power(Columns({**base, **spreads}))
    # The likeliest case alone, with how it came about.
    alone = {**base, **{n: float(v[0]) for n, v in spreads.items()}}
    traced = estimate_power(Columns(alone), trace=True)
    from gpucalc.questions.explain import ledger_tree

    return PowerResult(
        cluster=cluster,
        layout=layout,
        figures=_figures(ledger, spreads),
        caps=[] if job is None else caps(job, alone, db),
        terms=ledger_tree(traced, db, ROOTS),
        origins=origins,
        notes=[*notes, *said],
    )


def _check_cap(question: Question, board: float, idle_share: float, key: str) -> None:
    if question.cap is None:
        return
    if question.cap > board:
        raise UsageError(f"--cap is {question.cap:g} W, above the limit of {key}; at most {board:g} W")
    if question.cap <= idle_share * board:
        raise UsageError(
            f"--cap is {question.cap:g} W, no more than {key} draws idle ({idle_share * board:.0f} W); "
            f"a cap such as {0.7 * board:.0f}W leaves it room to work"
        )


def _columns(
    question: Question, cluster: Cluster, db: Database, values: Mapping[str, Default]
) -> tuple[dict[str, float], dict[str, str], list[str]]:
    device = cluster.device
    notes: list[str] = []
    factor = load_factor(values, device)
    origins = {"load_factor": f"{factor.origin}: {factor.why}"}
    electricity, source = db_defaults.cost_default(db, "electricity_usd_per_kwh")
    if question.electricity_price is not None:
        electricity, source = question.electricity_price, "stated"
    origins["electricity_price"] = f"{electricity:g} USD/kWh, {source}"
    base = {
        "n_gpus": float(cluster.n_gpus),
        "nodes": cluster.n_gpus / cluster.gpus_per_node,
        "gpus_per_node": float(cluster.gpus_per_node),
        "board_watts": float(device.tdp_watts or 0.0),
        "cap_watts": question.cap or float(device.tdp_watts or 0.0),
        "load_draw": values["load_draw"].value,
        "idle_gpu_share": values["idle_gpu"].value,
        "idle_host_share": values["idle_host_share"].value,
        "network_watts": values["network_watts_per_gpu"].value,
        "utilisation": 1.0 if question.utilisation is None else question.utilisation,
        "electricity_price": electricity / KWH,
        "year": YEAR,
    }
    capital, said = question.capital, "stated"
    if capital is None:
        capital, said = db_defaults.capital(db, device.key)
    if capital is None:
        notes.append(f"no price of {device.key} with its node is known; cost of ownership needs --capital")
    else:
        years, years_said = db_defaults.cost_default(db, "years")
        interest, interest_said = db_defaults.cost_default(db, "interest")
        opex, opex_said = db_defaults.cost_default(db, "opex_share")
        origins |= {"capital": f"{capital:,.0f} USD per GPU, {said}", "opex": f"{opex:.0%} a year, {opex_said}"}
        origins["years"] = "stated" if question.years else f"{years:g}, {years_said}"
        origins["interest"] = "stated" if question.interest is not None else f"{interest:g}, {interest_said}"
        base |= {
            "capital": capital,
            "years": question.years or years,
            "interest": interest if question.interest is None else question.interest,
            "operating_share": opex,
        }
    return base, origins, notes


def _spreads(
    cluster: Cluster, question: Question, values: Mapping[str, Default], base: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """The columns that differ between the likely case and the ends of the range."""
    factor = load_factor(values, cluster.device)
    pue, network = values["pue"], values["network_watts_per_gpu"]
    stated = question.pue
    return {
        "load_factor": np.array([factor.value, factor.low, factor.high]),
        "pue": np.array([stated] * 3 if stated is not None else [pue.value, pue.low, pue.high], dtype=float),
        "network_watts": np.array([network.value, network.low, network.high]),
    }


def _capped(job: jobs.Job, share: float, exponent: float | None = None) -> jobs.Job:
    """The job on GPUs whose power is limited to a share of their own limit."""
    columns = {**job.columns, "power_share": job.columns["power_share"] * share}
    if exponent is not None:
        columns["power_exponent"] = exponent
    return dataclasses.replace(job, columns=columns)


def _paces(step: Ledger, cluster: Cluster) -> dict[str, float]:
    rate = float(np.asarray(step["metric/tokens_per_s_per_gpu"]).flat[0])
    return {
        "step_time": float(np.asarray(step["time/step"]).flat[0]),
        "cluster_token_rate": rate * cluster.n_gpus,
    }


def caps(
    job: jobs.Job, base: Mapping[str, float], db: Database, shares: Sequence[float] = CAP_SHARES
) -> list[dict[str, Any]]:
    """What capped GPUs do to the time of a step and the energy of a token, beside the uncapped ones.

    The range is that of the exponent between power and clock; memory and network keep their rates.
    """
    values = db_defaults.defaults(db, "power")["clock_exponent"]
    exponents = (values.value, values.low, values.high)
    varied = [_capped(job, share, exponent) for exponent in exponents for share in shares]
    step = estimate_training(jobs.stack(varied))
    times = np.asarray(step["time/step"]).reshape(len(exponents), len(shares))
    rates = np.asarray(step["metric/tokens_per_s_per_gpu"]).reshape(times.shape)[0] * base["n_gpus"]
    capped = Columns(
        {
            **base,
            "cap_watts": np.array(shares) * base["board_watts"],
            "cluster_token_rate": rates,
            "step_time": times[0],
        }
    )
    powers = estimate_power(capped)
    token = np.asarray(powers["energy/token"])
    relative = times / times[:, :1]
    return [
        {
            "cap_w": float(share * base["board_watts"]),
            "cap_pct": 100 * share,
            "step_time_s": float(times[0, i]),
            "slower_pct": 100 * float(relative[0, i] - 1),
            "slower_low_pct": 100 * float(relative[:, i].min() - 1),
            "slower_high_pct": 100 * float(relative[:, i].max() - 1),
            "node_kw": float(np.asarray(powers["power/node/load"])[i]) / 1e3,
            "j_per_token": float(token[i]),
            "energy_pct": 100 * float(token[i] / token[0] - 1),
        }
        for i, share in enumerate(shares)
    ]


FIGURES = {
    "gpu_w": ("power/gpu", 1.0),
    "node_kw": ("power/node/load", 1e-3),
    "node_idle_kw": ("power/node/idle", 1e-3),
    "cluster_mw": ("power/cluster/load", 1e-6),
    "cluster_idle_mw": ("power/cluster/idle", 1e-6),
    "site_mw": ("power/site/load", 1e-6),
    "year_mwh": ("energy/year", 1e-3 / KWH),
    "step_kwh": ("energy/step", 1 / KWH),
    "j_per_token": ("energy/token", 1.0),
    "electricity_usd_per_gpu_hour": ("cost/electricity", HOUR),
    "capital_usd_per_gpu_hour": ("cost/capital", HOUR),
    "operating_usd_per_gpu_hour": ("cost/operating", HOUR),
    "ownership_usd_per_gpu_hour": ("cost/ownership", HOUR),
    "capital_usd": ("cost/capital/total", 1.0),
    "electricity_usd_per_year": ("cost/year/electricity", 1.0),
    "ownership_usd_per_year": ("cost/year/ownership", 1.0),
}


def _figures(ledger: Ledger, spreads: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float, float]]:
    found = {}
    for name, (path, factor) in FIGURES.items():
        if path in ledger:
            rows = np.broadcast_to(np.asarray(ledger[path], dtype=float), (3,)) * factor
            found[name] = (float(rows[0]), float(rows.min()), float(rows.max()))
    found["pue"] = tuple(float(v) for v in spreads["pue"])  # type: ignore[assignment]
    return found
