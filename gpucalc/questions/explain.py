"""Why a layout takes its time and memory: the ledger of one row as trees, and the facts a reader doubts first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.core.ledger import Ledger
from gpucalc.core.trace import plain, records
from gpucalc.core.units import GIB, GIGABIT
from gpucalc.database.reader import Database
from gpucalc.database.records import MATRIX_PEAK
from gpucalc.database.references import references
from gpucalc.estimate.training import estimate_training
from gpucalc.jobs import training as jobs
from gpucalc.jobs.context import Context
from gpucalc.questions.crossings import crossing_note

# Trees in the order in which people ask; what no tree reaches follows below "layer" and the rest.
ROOTS = (
    "time/step",
    "time/compute/parts",
    "bounds/lower",
    "bounds/upper",
    "memory/parts",
    "memory/total",
    "memory/fill",
    "flops/step",
    "metric/mfu",
    "metric/hfu",
    "metric/tokens_per_s_per_gpu",
    "traffic/step",
    "communication/step",
)


@dataclass(frozen=True)
class Explanation:
    """Facts beside the answer, every term as a record in tree order, sentences that sum it up, and warnings."""

    facts: list[tuple[str, str]]
    terms: list[dict[str, Any]]
    summary: list[str]
    warnings: tuple[str, ...] = ()


def explain(cells: Mapping[str, Any], context: Context) -> Explanation:
    """Explain one completed row; raises UsageError with all violations when it is not a legal job."""
    job = jobs.resolve(cells, context)
    ledger = estimate_training(jobs.stack([job]), trace=True)
    return Explanation(_facts(job, ledger), ledger_tree(ledger, context.db, ROOTS), _summary(job, ledger), job.remarks)


def ledger_tree(ledger: Ledger, db: Database, roots: Sequence[str]) -> list[dict[str, Any]]:
    """The terms of any traced ledger of one row as records in tree order, those of `roots` first."""
    known = references(db)
    return records(ledger, roots, {key: f"{r.authors} ({r.year}). {r.title}" for key, r in known.items()})


def _facts(job: jobs.Job, ledger: Ledger) -> list[tuple[str, str]]:
    c, cluster = job.columns, job.cluster
    precision = job.cells["precision"]
    convention = "causal attention halved" if c["causal_flops"] else "full attention"
    network = cluster.network_bandwidth_per_gpu / GIGABIT
    facts = [
        ("model", f"{job.model.name}, {job.model.parameters_total / 1e9:.2f} B parameters"),
        (
            "GPU",
            f"{cluster.n_gpus} x {cluster.device.name}, {cluster.gpus_per_node} a node, domain of {cluster.domain}",
        ),
        ("peak", f"{c['peak'] / 1e12:.1f} TFLOP/s {MATRIX_PEAK[precision]}, dense"),
        ("FLOP convention", f"model FLOPs, no recomputation, {convention}"),
        ("link", f"{cluster.link_bandwidth / 1e9:.0f} GB/s per GPU, one direction ({cluster.link_key})"),
        ("network", f"{network:.0f} Gb/s per GPU, one direction ({cluster.network_basis})"),
        ("software profile", f"{job.profile.name}: {job.profile.title}"),
        ("fit", jobs.fit_of(float(plain(ledger["memory/fill"])))),
    ]
    if groups := crossing_note(job):
        facts.append(("groups", groups.removeprefix("groups ")))
    low, high = jobs.job_band(job)
    facts.append(("80 % band", f"{100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} % of the step time"))
    return [*facts, *(("note", warning) for warning in job.remarks)]


def _summary(job: jobs.Job, ledger: Ledger) -> list[str]:
    def at(path: str) -> float:
        return float(plain(ledger[path]))

    step = at("time/step")
    parts = {p: at(p) for p in (*ledger.entries["time/compute/parts"].names, *ledger.entries["time/step"].names[1:])}
    largest = sorted(parts, key=lambda p: -parts[p])[:3]
    shares = ", ".join(f"{p.removeprefix('time/')} {100 * parts[p] / step:.0f} %" for p in largest)
    lower, upper = at("bounds/lower"), at("bounds/upper")
    place = (step - lower) / (upper - lower) if upper > lower else 0.0
    bound = "compute" if at("bounds/work") >= at("communication/step") else "communication"
    worst = max(
        ("weights", "gradients", "optimizer", "activations", "working", "logits"), key=lambda p: at(f"memory/{p}")
    )
    return [
        f"The step takes {step:.3f} s; its largest terms are {shares}.",
        f"With all communication hidden it would take {lower:.3f} s (bound by {bound}), with none hidden "
        f"{upper:.3f} s; the estimate lies {100 * place:.0f} % of the way.",
        f"The fullest GPU holds {at('memory/total') / GIB:.1f} GiB, most of it {worst} "
        f"({at(f'memory/{worst}') / GIB:.1f} GiB), {100 * at('memory/fill'):.0f} % of what fits.",
    ]


def explain_label(cells: Mapping[str, Any], label: str, context: Context) -> Explanation:
    """Explain the layout that a label means for a job."""
    from gpucalc.layouts.label import label_cells

    if not label:
        raise UsageError("the layout label is empty")
    return explain({**cells, **label_cells(label)}, context)
