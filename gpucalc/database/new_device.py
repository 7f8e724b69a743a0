"""A device file made from the nearest known device and the figures that differ, checked before it is written.

What is not stated is the model device's; its sources say so, so that no figure claims more than it knows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database

# Fields of `gpucalc hw new` → where they stand in a device file.
PLACES = {
    "memory": ("memory", "label"),
    "bandwidth": ("memory", "bandwidth"),
    "power": ("power", "tdp"),
    "units": ("compute", "units"),
    "clock": ("compute", "clock"),
}
_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")


def device_key(name: str) -> str:
    """The file name of a device.

    >>> device_key("RTX 3070 Ti"), device_key("B300A")
    ('rtx-3070-ti', 'b300a')
    """
    key = re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-.")
    if not _KEY.fullmatch(key):
        raise UsageError(f"{name!r} names no device; write letters and digits, such as rtx-3070")
    return key


def new_device(db: Database, name: str, like: str, stated: Mapping[str, Any], peaks: Mapping[str, str]) -> str:
    """The text of a device file: that of `like` with what is stated in its place.

    stated: fields of `PLACES`, as quantities with units, and year. peaks: precision → dense peak. Where one peak is
    stated the others keep their ratio to it. Raises UsageError for a name that is taken, or figures of no device.
    """
    from gpucalc.core.units import parse_quantity

    key = device_key(name)
    if key in db.files("accelerators"):
        raise UsageError(f"{key} is in the database; gpucalc hw show {key} prints it")
    model = db.device(like)
    document = tomllib.loads(db.files("accelerators")[model.key][0].read_text(encoding="utf-8"))
    borrowed = f"as {model.key}, whose figures stand where none were stated"
    document |= {"name": name, "notes": f"made by hw new like {model.key}"}
    for field, value in stated.items():
        if field == "year":
            document["year"] = int(value)
            continue
        section, entry = PLACES[field]
        document.setdefault(section, {})[entry] = value
    if "memory" in stated:
        gib = parse_quantity(str(stated["memory"]), "B") / 1e9
        document["memory"] |= {"usable": f"{gib:g} GiB", "usable_basis": "derived"}
    if peaks:
        document["peak"]["dense"] = _peaks(document["peak"]["dense"], peaks, model.key)
        document["peak"].pop("sparse", None)
    for section, table in document.items():
        if isinstance(table, dict):
            own = (section == "peak" and peaks) or any(PLACES[f][0] == section for f in stated if f in PLACES)
            table |= {"source": "stated by the user" + (f"; the rest {borrowed}" if own else "")}
            table["source"] = table["source"] if own else borrowed
            table["confidence"] = "low"
    return _toml(document)


def _peaks(own: Mapping[str, Any], stated: Mapping[str, str], like: str) -> dict[str, Any]:
    """Peaks by precision: as stated, the others in the ratio that they have to a stated one in the model device."""
    from gpucalc.core.units import parse_quantity

    def rate(text: Any) -> float:
        return float(parse_quantity(str(text).replace("OP/s", "FLOP/s").replace("FLFLOP", "FLOP"), "FLOP/s"))

    unknown = [precision for precision in stated if precision not in own]
    if len(stated) == 1 and unknown:
        raise UsageError(f"{like} has no peak in {unknown[0]}; it has {', '.join(own)}")
    known = {precision: rate(text) for precision, text in stated.items()}
    first = next(precision for precision in known if precision in own)
    ratio = known[first] / rate(own[first])
    found = {precision: f"{rate(text) * ratio / 1e12:.6g} TFLOP/s" for precision, text in own.items()}
    found |= {precision: f"{value / 1e12:.6g} TFLOP/s" for precision, value in known.items()}
    return {
        p: text.replace("FLOP", "OP") if str(own.get(p, "")).endswith(" TOP/s") else text for p, text in found.items()
    }


def _toml(document: Mapping[str, Any]) -> str:
    import json

    def value(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False) if not isinstance(item, bool) else str(item).lower()

    lines = [f"{name} = {value(item)}" for name, item in document.items() if not isinstance(item, dict)]
    for name, table in document.items():
        if isinstance(table, dict):
            lines += _section(name, table, value)
    return "\n".join(lines) + "\n"


def _section(path: str, table: Mapping[str, Any], value: Any) -> list[str]:
    lines = ["", f"[{path}]"]
    lines += [f"{name} = {value(item)}" for name, item in table.items() if not isinstance(item, dict)]
    for name, inner in table.items():
        if isinstance(inner, dict):
            lines += _section(f"{path}.{name}", inner, value)
    return lines
