"""Measured runs beside what is predicted for them.

`check_rows` evaluates measured rows; `Checked` is one of them. What is made of them stands in
`validation_metrics` (errors of groups), `validation_targets` and `validation_report`.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpucalc.core.columns import parse_row
from gpucalc.core.errors import DataError, UsageError
from gpucalc.database import files
from gpucalc.database.bands import LOW_PRECISION, band, launches_from_host, slow_network
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import Job, fit_of, predict, resolve

FOLDER = "measurements"
YOUR_ROWS = "your rows"
# Ways to have predicted a row: with the shipped constants; with the row itself, or its whole source, out of the fit.
SHIPPED, RANDOM, LEFT_OUT = "shipped", "random", "left_out"
VIEWS = (SHIPPED, RANDOM, LEFT_OUT)
FAMILY_TITLES = {
    "megatron": "dense Megatron-type, 16 bit",
    "low-precision": "Megatron-Core FP8/FP4",
    "fsdp": "FSDP",
    "zero3": "DeepSpeed ZeRO-3",
    "moe": "mixture of experts",
    "slow-network": "slow network (at most 60 Gb/s per GPU)",
    "one-node": "one node",
    "small": "small models in PyTorch on one node",
    "adapters": "LoRA, QLoRA, adapters",
    "other": "other",
}


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a row in one view; None where it was not predicted."""

    seconds: float | None = None
    gib: float | None = None
    fit: str = ""


@dataclass(frozen=True)
class Checked:
    """One measured row and its predictions."""

    record: Mapping[str, str]
    job: Job | None
    measured_s: float | None
    measured_gib: float | None
    oom: bool | None
    predictions: Mapping[str, Prediction]
    band: tuple[float, float] = (1.0, 1.0)
    families: tuple[str, ...] = ()
    error: str = ""
    file: str = field(default="")

    @property
    def identity(self) -> str:
        """The row's id, empty when it has none."""
        return self.record.get("id") or ""

    @property
    def source(self) -> str:
        """The source, one name for all rows of a file without that column."""
        return self.record.get("source") or YOUR_ROWS

    @property
    def trusted(self) -> bool:
        """False only where the row says that it does not state all that decides its time."""
        return (self.record.get("strict") or "true").strip().casefold() not in {"false", "no", "0"}

    @property
    def counter(self) -> str:
        """The counter of the measured peak memory, "not stated" without one."""
        return (self.record.get("mem_counter") or "").strip() or "not stated"

    def seconds(self, view: str) -> float | None:
        """Predicted step time in a view."""
        found = self.predictions.get(view)
        return found.seconds if found else None

    def ratio(self, view: str = SHIPPED) -> float | None:
        """Predicted over measured step time."""
        seconds = self.seconds(view)
        return seconds / self.measured_s if seconds and self.measured_s else None

    def memory_ratio(self, view: str = SHIPPED) -> float | None:
        """Predicted over measured peak memory."""
        found = self.predictions.get(view)
        return found.gib / self.measured_gib if found and found.gib and self.measured_gib else None

    def inside(self, view: str = SHIPPED) -> bool | None:
        """Whether the measured time lies in the 80 % band around the prediction."""
        ratio = self.ratio(view)
        return None if ratio is None else self.band[0] * ratio <= 1 <= self.band[1] * ratio


def families_of(job: Job) -> tuple[str, ...]:
    """The families of a job for which errors are reported; most jobs belong to several."""
    cells, cluster, lineage = job.cells, job.cluster, set(job.profile.lineage)
    megatron = bool(lineage & {"megatron-core", "megatron-legacy"})
    found = []
    dense = not job.model.is_moe and cells["method"] == "full"
    if dense and megatron:
        found.append("low-precision" if cells["precision"] in LOW_PRECISION else "megatron")
    if dense and cells["zero_stage"] >= 3 and not megatron:
        found.append("zero3" if "trainer-deepspeed" in lineage else "fsdp")
    if job.model.is_moe:
        found.append("moe")
    if cells["method"] != "full":
        found.append("adapters")
    if slow_network(cluster):
        found.append("slow-network")
    if cluster.n_nodes == 1:
        found.append("one-node")
    if launches_from_host(job) and dense:
        found.append("small")
    return tuple(found) or ("other",)


def check_rows(
    records: Sequence[Mapping[str, str]],
    context: Context,
    held_out: Mapping[str, Mapping[str, Prediction]] | None = None,
    profile: str | None = None,
    fabric: str | None = None,
    file: str = "",
) -> list[Checked]:
    """Each record that holds a measurement, predicted; `held_out` is id → view → prediction."""
    checked: list[Checked] = []
    jobs: list[Job] = []
    places: list[int] = []
    for record in records:
        cells, problems = parse_row(record)
        measured = [cells.pop(f"measured_{name}", None) for name in ("step_time_s", "peak_mem_gib", "oom")]
        if measured == [None, None, None] and not any(p.startswith("measured_") for p in problems):
            continue
        job = None
        try:
            if problems:
                raise UsageError(*problems)
            job = resolve(cells, context)
            places.append(len(checked))
            jobs.append(job)
        except UsageError as error:
            problems = list(error.problems)
        views = dict((held_out or {}).get(record.get("id") or "", {}))
        seconds, gib, oom = measured
        checked.append(
            Checked(record, job, seconds or None, gib or None, oom, views, error="; ".join(problems), file=file)
        )
    for place, job, row in zip(places, jobs, predict(jobs), strict=True):
        known = checked[place]
        shipped = Prediction(row["pred_step_time_s"], row["pred_peak_mem_gib"], row["pred_fit"])
        checked[place] = Checked(
            known.record,
            job,
            known.measured_s,
            known.measured_gib,
            known.oom,
            {SHIPPED: shipped, **known.predictions},
            band(job)[:2],
            families_of(job),
            file=file,
        )
    return checked


def shipped_rows(name: str = "training", db: Database | None = None) -> list[dict[str, str]]:
    """The rows of a table of measurements that ships with the package."""
    root = files.shipped()
    path = root / FOLDER / f"{name}.csv"
    if not path.exists():
        raise DataError(f"{FOLDER}/{name}.csv: the shipped measurements are missing")
    return _table(files.read_text(path, root))


def _table(text: str) -> list[dict[str, str]]:
    lines = io.StringIO(text)
    while (start := lines.tell()) >= 0 and lines.readline().startswith("#"):
        pass
    lines.seek(start)
    return list(csv.DictReader(lines))


@functools.lru_cache(maxsize=1)
def shipped_held_out() -> dict[str, dict[str, Prediction]]:
    """id → view → what was predicted for a shipped row when it was not in the fit."""
    root = files.shipped()
    path = root / "calibration" / "held_out.csv"
    if not path.exists():
        return {}
    found: dict[str, dict[str, Prediction]] = {}
    for cells in _table(files.read_text(path, root)):
        found[cells["id"]] = {
            view: Prediction(
                _number(cells.get(f"{prefix}_s")),
                _number(cells.get(f"{prefix}_mem_gib")),
                fit_of(float(cells[f"{prefix}_fill"])) if cells.get(f"{prefix}_fill") else "",
            )
            for view, prefix in ((RANDOM, "random"), (LEFT_OUT, "loso"))
        }
    return found


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def check_shipped(context: Context) -> list[Checked]:
    """The shipped training runs with all views."""
    held_out = None if context.profile or context.fabric else shipped_held_out()
    return check_rows(shipped_rows(), context, held_out, f"{FOLDER}/training.csv")
