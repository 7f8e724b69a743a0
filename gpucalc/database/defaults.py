"""Defaults of the whole cluster with their published spread and origin: `hardware_db/defaults/*.toml`.

Files of a user's database of the same name replace the shipped ones value by value.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucalc.core.errors import DataError, unknown
from gpucalc.database import files

FOLDER = "defaults"
ORIGINS = ("measured", "published", "counted", "assumed")
KWH = 3.6e6  # J
HOUR = 3600.0  # s


@dataclass(frozen=True)
class Default:
    """One value in SI, its published spread, and where it comes from."""

    value: float
    low: float
    high: float
    unit: str
    origin: str
    why: str


@dataclass(frozen=True)
class Price:
    """Rental price of a GPU hour in US dollars, when it was so, and who says it."""

    usd_per_hour: float
    low: float
    high: float
    date: str
    source: str


@dataclass(frozen=True)
class Workload:
    """Samples of a kind: what reading and decoding them costs, and how fast accelerators consume them."""

    name: str
    title: str
    batch: float
    sample_bytes: float
    decoded_bytes: float
    core_seconds: float
    reads_per_sample: float
    compute: Mapping[str, float]
    utilisation: float
    source: str
    origin: str
    speed_exponent: float


@functools.lru_cache(maxsize=32)
def _tables(roots: tuple[Path, ...], name: str) -> tuple[dict[str, Any], ...]:
    found = [files.read_toml(path, root) for root in roots if (path := root / FOLDER / f"{name}.toml").exists()]
    if not found:
        raise DataError(f"{FOLDER}/{name}.toml: the shipped defaults are missing")
    return tuple(found)


def defaults(roots: tuple[Path, ...], name: str) -> dict[str, Default]:
    """name → default of one file ("run", "power"); a later folder wins."""
    found: dict[str, Default] = {}
    for table in _tables(roots, name):
        for key, entry in table.get("values", {}).items():
            label = f"{FOLDER}/{name}.toml: {key}"
            if not isinstance(entry, dict) or entry.keys() != Default.__dataclass_fields__.keys():
                raise DataError(f"{label}: must state value, low, high, unit, origin and why")
            try:
                low, value, high = (float(entry[n]) for n in ("low", "value", "high"))
            except (TypeError, ValueError):
                raise DataError(f"{label}: value, low and high must be numbers") from None
            if not 0 <= low <= value <= high < float("inf"):
                raise DataError(f"{label}: expected 0 ≤ low ≤ value ≤ high")
            if entry["origin"] not in ORIGINS:
                raise DataError(f"{label}: origin is none of {', '.join(ORIGINS)}")
            found[key] = Default(value, low, high, str(entry["unit"]), entry["origin"], str(entry["why"]))
    return found


def grid(roots: tuple[Path, ...], name: str) -> tuple[float, str]:
    """Carbon intensity of a country in g/J, and what it is from."""
    countries: dict[str, tuple[float, str]] = {}
    for table in _tables(roots, "grid"):
        said = f"{table.get('source', '')}, {table.get('year', '')}"
        countries |= {key: (float(value), said) for key, value in table["grams_per_kwh"].items()}
    wanted = files.fold(name)
    spellings = {files.fold(key): key for key in countries} | {
        "us": "usa",
        "unitedstates": "usa",
        "uk": "united-kingdom",
    }
    key = spellings.get(wanted)
    if key is None:
        raise unknown("grid", name, countries, "or state --carbon-intensity in g/kWh")
    grams, said = countries[key]
    return grams / KWH, f"{grams:g} g/kWh, {key}; {said}"


def price(roots: tuple[Path, ...], gpu: str) -> Price | None:
    """The dated rental price of a device; None where no source lists it."""
    found: Price | None = None
    for table in _tables(roots, "prices"):
        for row in table.get("price", []):
            if row.get("gpu") == gpu:
                numbers = (float(row["usd_per_hour"]), float(row["low"]), float(row["high"]))
                found = Price(*numbers, str(row["date"]), str(row["source"]))
                break
    return found


def cost_default(roots: tuple[Path, ...], name: str) -> tuple[float, str]:
    """A number of the price file and its source: electricity, interest, years, capital, opex."""
    sources = {"electricity_usd_per_kwh": "electricity_source", "capital_per_gpu_usd": "capital_source"}
    found: tuple[float, str] | None = None
    for table in _tables(roots, "prices"):
        if name in table:
            found = float(table[name]), str(table.get(sources.get(name, f"{name.split('_')[0]}_source"), ""))
    if found is None:
        raise DataError(f"{FOLDER}/prices.toml: {name}: missing")
    return found


def workloads(roots: tuple[Path, ...]) -> dict[str, Workload]:
    """name → kind of samples."""
    found: dict[str, Workload] = {}
    for table in _tables(roots, "storage_workloads"):
        exponent = float(table.get("speed_exponent", 1.0))
        for name, row in table.items():
            if isinstance(row, dict):
                found[name] = Workload(
                    name=name,
                    title=str(row["title"]),
                    batch=float(row["batch"]),
                    sample_bytes=float(row["sample"]),
                    decoded_bytes=float(row["decoded"]),
                    core_seconds=float(row["core_seconds"]),
                    reads_per_sample=float(row["reads_per_sample"]),
                    compute={key: float(value) for key, value in row["compute"].items()},
                    utilisation=float(row["utilisation"]),
                    source=str(row["source"]),
                    origin=str(row["origin"]),
                    speed_exponent=exponent,
                )
    return found


def capital(roots: tuple[Path, ...], gpu: str) -> tuple[float | None, str]:
    """Price of a device with its share of node and network, and its source; None where no source states it."""
    for table in reversed(_tables(roots, "prices")):
        if table.get("capital_gpu") == gpu:
            return float(table["capital_per_gpu_usd"]), str(table["capital_source"])
    return None, ""


def measured_share(roots: tuple[Path, ...]) -> tuple[float, float]:
    """Measured over predicted samples per second, 10th and 90th percentile of published runs."""
    table = _tables(roots, "storage_workloads")[-1]
    return float(table.get("measured_low", 1.0)), float(table.get("measured_high", 1.0))


def workload(roots: tuple[Path, ...], name: str) -> Workload:
    """The samples of a name; UsageError with the nearest ones."""
    known = workloads(roots)
    spellings = {files.fold(key): key for key in known}
    key = spellings.get(files.fold(name))
    if key is None:
        raise unknown("workload", name, known)
    return known[key]


def age_in_months(date: str, today: datetime.date | None = None) -> int:
    """Months since a date written as YYYY or YYYY-MM.

    >>> age_in_months("2025-10", datetime.date(2026, 3, 15)), age_in_months("2025", datetime.date(2026, 3, 15))
    (5, 14)
    """
    now = today or datetime.date.today()
    year, _, month = date.partition("-")
    return 12 * (now.year - int(year)) + now.month - int(month or 1)
