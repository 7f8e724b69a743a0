"""Defaults of the whole cluster with their published spread and origin: `hardware_db/defaults/*.toml`.

Files of a user's database of the same name replace the shipped ones value by value.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import DataError, unknown
from gpucalc.database import files

if TYPE_CHECKING:
    from gpucalc.database.reader import Database
    from gpucalc.database.records import Device

FOLDER = "defaults"
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
    """A price in US dollars, of a GPU hour or of a GPU, when it was so, and who says it."""

    usd: float
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
    threads: float
    wait: tuple[float, float, float]


def _layers(db: Database, name: str) -> list[dict[str, Any]]:
    """The tables of one file, that of the last folder last."""
    found = [table for _, table in db.layers(f"{FOLDER}/{name}")]
    if not found:
        raise DataError(f"{FOLDER}/{name}.toml: the shipped defaults are missing")
    return found


def merged(db: Database, name: str) -> dict[str, Any]:
    """One file with its tables overlaid entry by entry."""
    found: dict[str, Any] = {}
    for table in _layers(db, name):
        for key, entry in table.items():
            below = found.get(key)
            found[key] = {**below, **entry} if isinstance(below, dict) and isinstance(entry, dict) else entry
    return found


def defaults(db: Database, name: str) -> dict[str, Default]:
    """name → default of one file ("run", "power", "training"); a later folder wins value by value."""
    return db.kept(("defaults", name), lambda: _defaults(db, name))


def _defaults(db: Database, name: str) -> dict[str, Default]:
    found: dict[str, Default] = {}
    for label, table in db.layers(f"{FOLDER}/{name}"):
        for key, entry in table.get("values", {}).items():
            low, value, high = (float(entry[n]) for n in ("low", "value", "high"))
            if not low <= value <= high:
                raise DataError(f"{label}: values.{key}: expected low ≤ value ≤ high")
            found[key] = Default(value, low, high, entry["unit"], entry["origin"], entry["why"])
    if not found:
        raise DataError(f"{FOLDER}/{name}.toml: the shipped defaults are missing")
    return found


def of_generation(values: Mapping[str, Default], name: str, device: Device) -> Default:
    """The default `name` of a device's generation where there is one of its own, else the general one."""
    return values.get(f"{name}_{device.architecture.lookup.casefold()}", values[name])


def grid(db: Database, name: str) -> tuple[float, str]:
    """Carbon intensity of a country in g/J, and what it is from."""
    countries: dict[str, tuple[float, str]] = {}
    for table in _layers(db, "grid"):
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


def price(db: Database, gpu: str) -> Price | None:
    """The dated rental price of a device; None where no source lists it."""
    found: Price | None = None
    for table in _layers(db, "prices"):
        for row in table.get("price", []):
            if row.get("gpu") == gpu:
                numbers = (float(row["usd_per_hour"]), float(row["low"]), float(row["high"]))
                found = Price(*numbers, str(row["date"]), str(row["source"]))
                break
    return found


def cost_default(db: Database, name: str) -> tuple[float, str]:
    """A number of the price file and its source: electricity, interest, years, opex."""
    sources = {"electricity_usd_per_kwh": "electricity_source"}
    found: tuple[float, str] | None = None
    for table in _layers(db, "prices"):
        if name in table:
            found = float(table[name]), str(table.get(sources.get(name, f"{name.split('_')[0]}_source"), ""))
    if found is None:
        raise DataError(f"{FOLDER}/prices.toml: {name}: missing")
    return found


def workloads(db: Database) -> dict[str, Workload]:
    """name → kind of samples."""
    table = merged(db, "storage_workloads")
    exponent = float(table["speed_exponent"])
    found: dict[str, Workload] = {}
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
                threads=float(row["threads"]),
                wait=(float(row["wait"]), float(row["wait_low"]), float(row["wait_high"])),
            )
    return found


def capital(db: Database, gpu: str) -> Price | None:
    """The dated price of a device with its share of node and network; None where no source states it."""
    for table in reversed(_layers(db, "prices")):
        for row in table.get("capital", []):
            if row.get("gpu") == gpu:
                usd, low, high = (float(row[n]) for n in ("usd_per_gpu", "low", "high"))
                return Price(usd, low, high, str(row["date"]), str(row["source"]))
    return None


@dataclass(frozen=True)
class Reading:
    """What a host does to read: opening a file, one stream, its cards, and how compute times scale between devices."""

    open_latency: float
    stream_rate: float
    card_rate: float
    exponents: tuple[float, float, float]


def reading(db: Database) -> Reading:
    """The constants of reading that no workload has of its own."""
    table = merged(db, "storage_workloads")
    low, value, high = (float(table[f"speed_exponent{end}"]) for end in ("_low", "", "_high"))
    return Reading(
        float(table["open_latency"]), float(table["stream_rate"]), float(table["card_rate"]), (value, low, high)
    )


def workload(db: Database, name: str) -> Workload:
    """The samples of a name; UsageError with the nearest ones."""
    known = workloads(db)
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
