"""Constants of reinforcement learning that lie beside the serving and training estimates."""

from __future__ import annotations

import csv
import functools
import io
from pathlib import Path

from gpucalc.core.errors import DataError
from gpucalc.database import files

TABLE = "posttraining"


@functools.lru_cache(maxsize=16)
def policy_constants(dirs: tuple[Path, ...], prior: bool = False) -> dict[str, float]:
    """constant → value in SI, the first folder that states it wins; `prior`: as if nothing had been fitted."""
    found: dict[str, float] = {}
    for folder in reversed(dirs):
        path = folder / "calibration" / f"{TABLE}.csv"
        if not path.exists():
            continue
        lines = [line for line in files.read_text(path, folder).splitlines() if not line.startswith("#")]
        for record in csv.DictReader(io.StringIO("\n".join(lines))):
            try:
                found[record["constant"]] = float(record["prior" if prior else "value"])
            except (KeyError, TypeError, ValueError):
                raise DataError(f"calibration/{TABLE}.csv: not a table of constants: {record}") from None
    return found
