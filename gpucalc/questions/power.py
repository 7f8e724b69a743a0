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
from gpucalc.formulas import energy
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import is_network
from gpucalc.questions.completed import complete_cells, network_pace

YEAR = 365 * 86400.0
CAP_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
ROOTS = (
    *("power/site/load", "power/site/idle", "energy/year", "energy/step", "energy/token", "energy/sample"),
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
    load: str = "training"  # or inference
    duration: float | None = None  # of one run, whose idle ends then count


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


def load_watts(
    values: Mapping[str, Default], device: Device, *, in_rack: bool = False, load: str = "training"
) -> tuple[float, Default] | None:
    """Watts of an accelerator, and the wall power of a node over those of its accelerators together.

    The board's limit and the factor of its generation for the load, of a rack's trays where `in_rack`; where no limit
    is published but the draw in use was measured (`drawn_KEY` of the defaults), that draw alone. None where neither is
    known.
    """
    if device.tdp_watts is not None:
        if load == "inference":
            return device.tdp_watts, db_defaults.of_generation(values, "inference_factor", device)
        return device.tdp_watts, values["load_factor_rack"] if in_rack else load_factor(values, device)
    drawn = values.get(f"drawn_{device.key}")
    if drawn is None:
        return None
    ends = dataclasses.replace(drawn, value=1.0, low=drawn.low / drawn.value, high=drawn.high / drawn.value)
    return drawn.value, ends


def rack_columns(values: Mapping[str, Default], in_rack: bool) -> dict[str, float]:
    """What a rack holds beside its nodes: switch trays of the scale-up network, shelves and pumps."""
    return {
        "scale_up_watts": values["scale_up_watts"].value if in_rack else 0.0,
        "rack_overhead": values["rack_overhead"].value if in_rack else 1.0,
    }


def is_rack(cluster: Cluster) -> bool:
    """Whether the scale-up domain is a rack of several nodes joined by switches."""
    return cluster.domain > cluster.gpus_per_node and "torus" not in cluster.scale_up_topology


def _draws(values: Mapping[str, Default], device: Device, factor: Default, load: str) -> tuple[float, float, float]:
    """Share of its limit that an accelerator draws beside each end of a load factor; the host draws the rest.

    Under inference the host draws what it does in training.
    """
    most = values["load_draw"].value
    ends = (factor.value, factor.low, factor.high)
    if load == "inference":
        host = load_factor(values, device).value - most
        return tuple(end - host for end in ends)  # type: ignore[return-value]
    return tuple(min(most, most * end) for end in ends)  # type: ignore[return-value]


def node_load_watts(
    device: Device, gpus: float, db: Database, *, load: str = "training", duration: float | None = None
) -> tuple[float, float, float]:
    """Wall power of a node of so many accelerators under a load, with its range; with a duration its mean over a log
    whose ends are idle.

    Raises UsageError for a device whose power is not known.
    """
    values = db_defaults.defaults(db, "power")
    drawn = load_watts(values, device, load=load)
    if drawn is None:
        raise UsageError(f"{device.file} states no power limit; add power.tdp to it")
    board, factor = drawn
    found = []
    ends = values["idle_ends"]
    for share, draw, idle in zip(
        (factor.value, factor.low, factor.high),
        _draws(values, device, factor, load),
        (ends.value, ends.high, ends.low),
        strict=True,
    ):
        watts = float(energy.node_power(gpus, board, share))
        if duration is not None:
            host = energy.host_power(gpus, board, share, draw)
            shares = values["idle_host_share"].value, values["idle_gpu"].value
            watts = float(energy.run_power(watts, energy.idle_node_power(gpus, board, host, *shares), duration, idle))
        found.append(watts)
    return found[0], min(found), max(found)


def power(question: Question, context: Context, cells: Mapping[str, Any] | None = None) -> PowerResult:
    """Power, energy and cost of a cluster; with the cells of a job, of its tokens and steps, and of capped GPUs."""
    db = context.db
    cluster = resolve_cluster(
        db, question.gpu, question.n_gpus, question.gpus_per_node, question.inter_node_gbps_per_gpu, context.fabric
    )
    device = cluster.device
    values = db_defaults.defaults(db, "power")
    drawn = load_watts(values, device, in_rack=is_rack(cluster), load=question.load)
    if drawn is None:
        raise UsageError(f"{device.file} states no power limit; add power.tdp to it")
    _check_cap(question, drawn[0], values["idle_gpu"].value, device.key)
    notes: list[str] = []
    job, layout = None, ""
    pace = network_pace(cells, context) if cells is not None and is_network(cells) else None
    if pace is not None:
        layout, notes = pace.layout, pace.notes
        if question.cap is not None:
            raise UsageError("--cap is not modelled for networks that are no decoder; ask without the MODEL")
    elif cells is not None:
        from gpucalc.jobs.variations import layout_label

        if question.load == "inference":
            raise UsageError(
                "--load inference is of nodes that serve, and a step of MODEL is one of training; leave one out"
            )
        full, notes = complete_cells(cells, context)
        job = jobs.resolve(full, context)
        layout = layout_label(job, jobs.predict([job])[0])
    base, origins, said = _columns(question, cluster, db, values, drawn)
    spreads = _spreads(question, values, device, drawn[1])
    base["load_draw"] = float(spreads["load_draw"][0])
    if job is not None:
        step = estimate_training(jobs.stack([_capped(job, _cap_share(base, base["cap_watts"]))]))
        base |= _paces(step, cluster)
        origins["step_time, cluster_token_rate"] = (
            "estimate of a step of this layout, which gpucalc explain takes apart"
        )
    if pace is not None:
        base |= {"step_time": pace.step_time, "cluster_sample_rate": pace.samples_per_s}
        origins["step_time, cluster_sample_rate"] = (
            "estimate of a step of this network, which gpucalc explain takes apart"
        )
    ledger = estimate_power(Columns({**base, **spreads}))
    # The likeliest case alone, with how it came about.
    alone = {**base, **{n: float(v[0]) for n, v in spreads.items()}}
    traced = estimate_power(Columns(alone), trace=True)
    from gpucalc.questions.explain import ledger_tree

    return PowerResult(
        cluster=cluster,
        layout=layout,
        figures=_figures(ledger, spreads, is_rack(cluster)),
        caps=[] if job is None else caps(job, alone, db, _shares(question, base)),
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
    question: Question, cluster: Cluster, db: Database, values: Mapping[str, Default], drawn: tuple[float, Default]
) -> tuple[dict[str, float], dict[str, str], list[str]]:
    device = cluster.device
    notes: list[str] = []
    watts, factor = drawn
    origins = {"load_factor": f"{factor.origin}: {factor.why}"}
    electricity, source = db_defaults.cost_default(db, "electricity_usd_per_kwh")
    if question.electricity_price is not None:
        electricity, source = question.electricity_price, "stated"
    origins["electricity_price"] = f"{electricity:g} USD/kWh, {source}"
    base = {
        "n_gpus": float(cluster.n_gpus),
        "nodes": cluster.n_gpus / cluster.gpus_per_node,
        "gpus_per_node": float(cluster.gpus_per_node),
        "board_watts": watts,
        "cap_watts": question.cap or watts,
        **rack_columns(values, is_rack(cluster)),
        "idle_gpu_share": values["idle_gpu"].value,
        "idle_host_share": values["idle_host_share"].value,
        "network_watts": values["network_watts_per_gpu"].value,
        "utilisation": 1.0 if question.utilisation is None else question.utilisation,
        "electricity_price": electricity / KWH,
        "year": YEAR,
    }
    if question.duration is not None:
        base["duration"] = question.duration
    capital, said = question.capital, "stated"
    if capital is None and (known := db_defaults.capital(db, device.key)) is not None:
        age = db_defaults.age_in_months(known.date)
        capital = known.usd
        said = f"{known.low:,.0f} to {known.high:,.0f}, as of {known.date}, {age} months old ({known.source})"
        notes.append(
            f"capital of {device.key} with its node and network {capital:,.0f} USD ({known.low:,.0f} to "
            f"{known.high:,.0f}) as of {known.date}, {age} months old; state --capital"
        )
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
    question: Question, values: Mapping[str, Default], device: Device, factor: Default
) -> dict[str, np.ndarray]:
    """The columns that differ between the likely case and the ends of the range."""
    pue, network = values["pue"], values["network_watts_per_gpu"]
    stated = question.pue
    return {
        "load_factor": np.array([factor.value, factor.low, factor.high]),
        "load_draw": np.array(_draws(values, device, factor, question.load)),
        "pue": np.array([stated] * 3 if stated is not None else [pue.value, pue.low, pue.high], dtype=float),
        "network_watts": np.array([network.value, network.low, network.high]),
        # Long idle ends lower the mean of a run.
        "idle_ends": np.array([values["idle_ends"].value, values["idle_ends"].high, values["idle_ends"].low]),
    }


def _cap_share(base: Mapping[str, float], cap_watts: float) -> float:
    """A cap over what the accelerators draw: only below that does the clock fall."""
    return float(energy.cap_share(cap_watts, base["board_watts"], base["load_draw"]))


def _shares(question: Question, base: Mapping[str, float]) -> tuple[float, ...]:
    """Caps over the board's limit that are listed, the one that was asked among them."""
    asked = () if question.cap is None else (question.cap / base["board_watts"],)
    return tuple(sorted({*CAP_SHARES, *asked}, reverse=True))


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
    lowered = [_cap_share(base, share * base["board_watts"]) for share in shares]
    varied = [_capped(job, share, exponent) for exponent in exponents for share in lowered]
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
    "run_node_kw": ("power/node/run", 1e-3),
    "run_kwh": ("energy/run", 1 / KWH),
    "racks_kw": ("power/racks/load", 1e-3),
    "cluster_mw": ("power/cluster/load", 1e-6),
    "cluster_idle_mw": ("power/cluster/idle", 1e-6),
    "site_mw": ("power/site/load", 1e-6),
    "year_mwh": ("energy/year", 1e-3 / KWH),
    "step_kwh": ("energy/step", 1 / KWH),
    "j_per_token": ("energy/token", 1.0),
    "j_per_sample": ("energy/sample", 1.0),
    "electricity_usd_per_gpu_hour": ("cost/electricity", HOUR),
    "capital_usd_per_gpu_hour": ("cost/capital", HOUR),
    "operating_usd_per_gpu_hour": ("cost/operating", HOUR),
    "ownership_usd_per_gpu_hour": ("cost/ownership", HOUR),
    "capital_usd": ("cost/capital/total", 1.0),
    "electricity_usd_per_year": ("cost/year/electricity", 1.0),
    "ownership_usd_per_year": ("cost/year/ownership", 1.0),
}


def _figures(ledger: Ledger, spreads: Mapping[str, np.ndarray], in_rack: bool) -> dict[str, tuple[float, float, float]]:
    found = {}
    for name, (path, factor) in FIGURES.items():
        if path in ledger and (name != "racks_kw" or in_rack):
            rows = np.broadcast_to(np.asarray(ledger[path], dtype=float), (3,)) * factor
            found[name] = (float(rows[0]), float(rows.min()), float(rows.max()))
    found["pue"] = tuple(float(v) for v in spreads["pue"])  # type: ignore[assignment]
    return found
