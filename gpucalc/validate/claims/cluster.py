"""Claims about runs and clusters as a whole: goodput, failures, intervals, prices, speed-ups, power, sizes."""

from __future__ import annotations

import math

from gpucalc.core.errors import UsageError
from gpucalc.database import defaults
from gpucalc.database.reader import Database
from gpucalc.validate.claims.figures import devices_of
from gpucalc.validate.claims.statements import DEPENDS, FALSE, TRUE, Claim, Verdict, close, factor_said

HOST_LINK = 63e9  # B/s of PCIe 5, over which a state is copied to the host
PARAMETERS = 1e11  # of a model that nobody named: its checkpoint decides little
BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}


def _number(claim: Claim, name: str) -> float | None:
    value = claim.fields.get(name)
    return None if value is None else float(value)


def _ranged(claim: Claim, said: float, span: tuple[float, float, float], unit: str, what: str, source: str) -> Verdict:
    """A figure beside an expected value and its range: true within 5 %, depends inside the range, else false."""
    value, low, high = span
    lines = (
        f"{what}: {_text(value)} {unit}, {_text(low)} to {_text(high)} over the published spread",
        f"said: {_text(said)} {unit}",
    )
    if abs(said - value) <= 0.05 * value:
        return Verdict(claim, TRUE, f"{what} is about {_text(value)} {unit}", lines, source)
    because = f"{what} lies between {_text(low)} and {_text(high)} {unit}"
    return Verdict(claim, DEPENDS if low <= said <= high else FALSE, because, lines, source)


def _text(value: float) -> str:
    """A figure with its thousands, such as 31,250 and 3.09."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:,.4g}"


def _failures(claim: Claim, db: Database, path: str, *, share: bool = False) -> tuple[float, float, float]:
    from gpucalc.core.ledger import Columns
    from gpucalc.estimate.run import estimate_failures
    from gpucalc.questions.run_scenarios import Question, failure_columns, span

    hours = None if path == "failures/mtbf" else _number(claim, "mtbf_h")
    question = Question(
        tokens=1.0,
        mtbf=None if hours is None else 3600 * hours,
        interval=_number(claim, "interval_s"),
        save_time=_number(claim, "save_s"),
        restart=_number(claim, "restart_s"),
        save="blocking" if claim.fields.get("save_s") else "async",
    )
    n = _number(claim, "n_gpus") or 1024.0
    columns, _ = failure_columns(question, n, PARAMETERS, n, HOST_LINK, db, replicas=2.0)
    ledger = estimate_failures(Columns({**columns, "step_time": 1.0}))
    return span(ledger[path], len(columns["detection"]), share=share)


def check_mtbf(claim: Claim, db: Database) -> Verdict:
    """Whether so many GPUs fail that often, by the published rates of nodes."""
    span = tuple(v / 3600 for v in _failures(claim, db, "failures/mtbf"))
    what = f"time between interruptions of {int(claim.fields['n_gpus']):,} GPUs"
    return _ranged(claim, float(claim.fields["mtbf_h"]), span, "h", what, "defaults/run.toml")  # type: ignore[arg-type]


def check_goodput(claim: Claim, db: Database) -> Verdict:
    """Whether a goodput is one of a job that fails that often, with published recovery and saves."""
    said = float(claim.fields["goodput_pct"])
    if said > 100:
        raise UsageError(f"goodput_pct is {said:g}, expected a share of 100")
    span = tuple(100 * v for v in _failures(claim, db, "goodput/useful", share=True))
    hours = _number(claim, "mtbf_h")
    what = "goodput of a job " + (
        f"of {int(claim.fields['n_gpus']):,} GPUs" if hours is None else f"that fails every {hours:g} h"
    )
    return _ranged(claim, said, span, "%", what, "daly2006; defaults/run.toml")  # type: ignore[arg-type]


def check_interval(claim: Claim, db: Database) -> Verdict:
    """Whether an interval between checkpoints is near the best one: what it costs beside that."""
    from gpucalc.formulas import goodput

    said, save, mtbf = (
        float(claim.fields["interval_s"]),
        float(claim.fields["save_s"]),
        3600 * float(claim.fields["mtbf_h"]),
    )
    best = float(goodput.best_interval(save, mtbf))
    there, here = (float(goodput.goodput(t, save, 0.0, mtbf)) for t in (best, said))
    lines = (
        f"best interval for saves of {save:g} s and a failure every {mtbf / 3600:g} h: {best:,.0f} s (Young: "
        f"{float(goodput.young_interval(save, mtbf)):,.0f} s)",
        f"goodput of saves and lost work: {100 * there:.2f} % there, {100 * here:.2f} % at {said:,.0f} s",
    )
    because = f"the best interval is {best:,.0f} s; {said:,.0f} s cost {100 * (there - here):.2f} points"
    return Verdict(claim, TRUE if there - here <= 0.005 else FALSE, because, lines, "daly2006")


def check_price(claim: Claim, db: Database) -> Verdict:
    """Whether a GPU hour costs that, by the dated listings."""
    key = db.device_key(str(claim.fields["gpu"]))
    known = defaults.price(db, key)
    if known is None:
        raise UsageError(f"no dated price of {key} is known (defaults/prices.toml)")
    what = f"price of an hour of {key}, as of {known.date}"
    return _ranged(
        claim, float(claim.fields["usd_per_hour"]), (known.usd, known.low, known.high), "USD", what, known.source
    )


def check_capital(claim: Claim, db: Database) -> Verdict:
    """Whether a GPU, or a node with all of its GPUs, costs that with its share of the network, by dated prices."""
    node = db.node(str(claim.fields["node"])) if claim.kind == "node_capital" else None
    key = db.device_key(str(claim.fields.get("gpu") or (node.accelerators[0] if node else "")))
    known = defaults.capital(db, key)
    if known is None:
        raise UsageError(f"no dated price of {key} with its node is known (defaults/prices.toml)")
    count = devices_of(node) if node else 1
    what = f"price of {node.key if node else key} with network ({known.date})"
    span = (count * known.usd, count * known.low, count * known.high)
    return _ranged(claim, float(claim.fields["capital_usd"]), span, "USD", what, known.source)


def check_speedup(claim: Claim, db: Database) -> Verdict:
    """Whether a step whose communication takes a share can become that much faster without it."""
    share, said = float(claim.fields["communication_pct"]) / 100, float(claim.fields["speedup"])
    if share >= 1:
        raise UsageError("communication_pct is 100 or more, so nothing is left to compute")
    most = 1 / (1 - share)
    lines = (f"all of the communication gone: 1/(1 - {share:g}) = {most:.3g} times as fast", f"said: {said:g} times")
    because = f"with {100 * share:g} % of a step in communication at most {most:.3g} times is possible"
    return Verdict(claim, TRUE if said <= most * 1.001 else FALSE, because, lines, "amdahl1967")


def check_amdahl(claim: Claim, db: Database) -> Verdict:
    """Whether so many GPUs make work that much faster of which a share does not parallelise."""
    serial, n, said = (
        float(claim.fields["serial_pct"]) / 100,
        float(claim.fields["n_gpus"]),
        float(claim.fields["speedup"]),
    )
    most = 1 / (serial + (1 - serial) / n)
    lines = (f"1/({serial:g} + {1 - serial:g}/{n:g}) = {most:.4g}", f"said: {said:g}")
    because = f"with {100 * serial:g} % serial {n:g} GPUs bring {most:.3g} times"
    return Verdict(
        claim, TRUE if close(said, most) else FALSE, because + f"; {factor_said(said, most)}", lines, "amdahl1967"
    )


def check_node_power(claim: Claim, db: Database) -> Verdict:
    """Whether a node (or a rack) draws so much under training load."""
    from gpucalc.database.cluster import resolve_cluster
    from gpucalc.jobs.context import Context
    from gpucalc.questions.power import Question, is_rack, power

    node = db.node(str(claim.fields["node"]))
    gpu = str(claim.fields.get("gpu") or node.accelerators[0])
    cluster = resolve_cluster(db, gpu, devices_of(node))
    rack = is_rack(cluster)
    found = power(Question(gpu, cluster.n_gpus), Context(db)).figures["racks_kw" if rack else "node_kw"]
    what = f"{'rack' if rack else 'node'} of {cluster.n_gpus} {gpu} under training load"
    verdict = _ranged(claim, float(claim.fields["node_kw"]), found, "kW", what, "defaults/power.toml")
    if node.power_watts and close(float(claim.fields["node_kw"]), node.power_watts / 1e3) and verdict.verdict == FALSE:
        because = f"{node.power_watts / 1e3:g} kW is the most that {node.key} is built for; {verdict.because}"
        return Verdict(claim, DEPENDS, because, verdict.arithmetic, verdict.source)
    return verdict


def _model(claim: Claim) -> tuple[str, float, float]:
    """Name, parameters and those that work on a token, of the model that is named or of a number of parameters."""
    from gpucalc.models.model import load_model

    stated = _number(claim, "parameters")
    if stated is not None:
        return f"{stated / 1e9:,.4g} billion parameters", stated, stated
    model = load_model(str(claim.fields["model"]))
    return model.name, float(model.parameters_total), float(model.parameters_active)


def check_weights(claim: Claim, db: Database) -> Verdict:
    """Whether the weights of a model take so much memory in a precision."""
    precision = str(claim.fields["precision"]).casefold()
    if precision not in BYTES:
        raise UsageError(f"precision is {precision!r}; known: {', '.join(BYTES)}")
    name, parameters, _ = _model(claim)
    found = parameters * BYTES[precision] / 1e9
    said = float(claim.fields["memory_gb"])
    lines = (f"{parameters / 1e9:,.4g} billion parameters × {BYTES[precision]:g} B = {found:,.4g} GB",)
    what = f"weights of {name} in {precision}"
    if close(said, found):
        return Verdict(claim, TRUE, f"{what} take {found:,.4g} GB", lines, "preset")
    return Verdict(claim, FALSE, f"{what} take {found:,.4g} GB; {factor_said(said, found)}", lines, "preset")


def check_training_flop(claim: Claim, db: Database) -> Verdict:
    """Whether a training run takes so many operations: six a parameter that works and token."""
    (_, _, active), tokens = _model(claim), float(claim.fields["tokens"])
    found, said = 6.0 * active * tokens, float(claim.fields["flop"])
    lines = (f"6 × {active:,.4g} parameters × {tokens:,.4g} tokens = {found:.4g} FLOP",)
    because = f"six operations a parameter and token are {found:.3g} FLOP, without attention"
    off = abs(math.log(said / found))
    return Verdict(claim, TRUE if off <= math.log(1.1) else FALSE, because, lines, "chowdhery2022")
