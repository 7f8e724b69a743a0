"""Rows of one file, of decoders and of networks alike: each goes to its estimate and comes back in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.columns import KINDS, NETWORK_INPUT, NETWORK_PREDICTIONS, parse_row
from gpucalc.core.errors import UsageError
from gpucalc.jobs.context import Context
from gpucalc.jobs.network import NetworkJob, is_network, predict_networks, resolve_network_job
from gpucalc.jobs.training import evaluate_rows


def evaluate_any(
    records: Sequence[Mapping[str, str]], context: Context, warned: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """The pred_ columns of each record, whatever kind of model it names; `warned` counts the warnings."""
    results: list[dict[str, Any]] = [{} for _ in records]
    networks = [is_network(record) for record in records]
    decoders = [record for record, other in zip(records, networks, strict=True) if not other]
    found = iter(evaluate_rows(decoders, context, warned) if decoders else ())
    jobs: list[NetworkJob] = []
    places: list[int] = []
    for place, (record, network) in enumerate(zip(records, networks, strict=True)):
        if not network:
            results[place] = next(found)
            continue
        cells, problems = parse_row(record)
        try:
            if problems:
                raise UsageError(*problems)
            jobs.append(resolve_network_job(cells, context))
            places.append(place)
            if warned is not None:
                for warning in jobs[-1].warnings:
                    warned[warning] = warned.get(warning, 0) + 1
        except UsageError as error:
            empty = dict.fromkeys((*KINDS["training"], *NETWORK_PREDICTIONS), "")
            results[place] = {**empty, "pred_error": "; ".join(error.problems)}
    for place, job, row in zip(places, jobs, predict_networks(jobs), strict=True):
        results[place] = {**row, "pred_notes": "; ".join(job.warnings)}
    return results


def appended_columns(columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What `eval` appends to rows: the columns of networks too, where the header or a first row speaks of one."""
    ask = any(name in NETWORK_INPUT for name in columns) or any(is_network(record) for record in records)
    own = KINDS["training"]
    return (*own, *(name for name in NETWORK_PREDICTIONS if name not in own)) if ask else own
