"""Logs → an overlay: which fits they feed, and where each new constant comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucalc.calibrate.fitted import Calibration, Place
from gpucalc.calibrate.logs import Log
from gpucalc.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from gpucalc.database.reader import Database


def calibrate(
    db: Database, logs: Sequence[Log], place: Place, date: str, *, in_place: bool = False, with_cast: bool = False
) -> Calibration:
    """Constants fitted to the logs of one kind of GPU; DataError where nothing can be fitted.

    `date` goes into the source of each constant. `in_place`: fit the in-place columns of nccl-tests.
    `with_cast`: 8 and 4 bit products were timed together with the cast of their input.
    """
    device = db.device(place.gpu)
    result = Calibration(device.key, warnings=[w for log in logs for w in log.warnings])
    collectives, products = [log for log in logs if log.timings], [log for log in logs if log.products]
    if not collectives and not products:
        raise DataError("nothing to fit: " + ("; ".join(result.warnings) or "the logs hold no rows"))
    result.warnings += _other_devices(db, logs, device.key)
    if collectives:
        from gpucalc.calibrate.collective_fit import fit_collective_logs

        fit_collective_logs(result, db, collectives, place, in_place)
        _describe(result, "collectives", collectives, date)
    if products:
        from gpucalc.calibrate.product_fit import fit_product_logs

        fit_product_logs(result, db, products, device, with_cast)
        _describe(result, "gemm", products, date)
        _describe(result, "memory", products, date)
    if not result.constants:
        raise DataError("nothing to fit: " + "; ".join(result.warnings))
    return result


def _describe(result: Calibration, table: str, logs: Sequence[Log], date: str) -> None:
    """Write into each new constant of a table where it comes from."""
    files = list(dict.fromkeys(log.name for log in logs))
    names = ", ".join(files) if len(files) <= 4 else f"{len(files)} files from {files[0]} to {files[-1]}"
    for i, c in enumerate(result.constants):
        if c.table == table and not c.source:
            fit = "" if c.error_fit is None else f"; median error {100 * c.error_fit:.1f} % fitted"
            held = "" if c.error_held_out is None else f", {100 * c.error_held_out:.1f} % held out"
            result.constants[i] = replace(c, source=f"{names}; {date}; {c.rows} rows{fit}{held}")


def _other_devices(db: Database, logs: Sequence[Log], key: str) -> list[str]:
    found = []
    for log in logs:
        for name in log.devices:
            try:
                named = db.device_key(name)
            except UsageError:
                continue  # spellings of drivers are many, and the user said what it is
            if named != key:
                found.append(f"{log.name} was measured on {name} ({named}), and --gpu is {key}")
    return found
