"""What serving engines print at start beside what is predicted: tokens of the cache, weights, activations.

Two readings of each row: all that the source states (tokens of a pass, sequences), and the engine's defaults of that
version and card in their place. Rows that name no model or card of the database, or whose share is unknown, are
listed apart (`scored` no).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.jobs.serving import parse_serving, predict_serving, resolve_serving
from gpucalc.validate.metrics import errors_of
from gpucalc.validate.report import Line, percent
from gpucalc.validate.training import shipped_rows

GROUPINGS = ("engine", "engine_version", "model", "gpu", "tp", "source")
STATED, DEFAULTS = "all stated", "defaults"
TARGETS = ((STATED, "median_pct", 2.0), (STATED, "p90_pct", 10.0), (DEFAULTS, "median_pct", 5.0))
_NAMES = {"max_num_batched_tokens": "chunk_tokens", "max_num_seqs": "max_seqs"}
_SAME = ("model", "gpu", "n_gpus", "tp", "pp", "precision", "kv_precision", "memory_share")
_LENGTH = "8192"  # of a model whose source states none; it matters for layers with a window alone


def shipped_kv() -> list[dict[str, str]]:
    """The printed figures that come with the package."""
    return shipped_rows("kv_capacity")


def question(record: Mapping[str, str], view: str) -> dict[str, str]:
    """The serving row of a start-up log; its longest sequence is prompt and one token."""
    cells = {name: record.get(name) or "" for name in _SAME}
    cells |= {"framework": record.get("engine") or "", "framework_version": record.get("engine_version") or ""}
    length = int(float(record.get("max_model_len") or _LENGTH))
    cells |= {"isl": str(length - 1), "osl": "1"}
    if view == STATED:
        cells |= {ours: record.get(theirs) or "" for theirs, ours in _NAMES.items()}
    return cells


def _predicted(record: Mapping[str, str], view: str, db: Database) -> tuple[float | None, str]:
    cells, problems = parse_serving(question(record, view))
    try:
        if problems:
            raise UsageError(*problems)
        row = predict_serving([resolve_serving(cells, Context(db))])[0]
    except UsageError as error:
        return None, "; ".join(error.problems)
    return float(row["pred_kv_tokens"]) or None, ""


def kv_report(records: Sequence[Mapping[str, str]], db: Database, by: Sequence[str] = (), worst: int = 10) -> Line:
    """Errors of the printed tokens: all, and by engine or the keys `by`, in both readings."""
    printed = [r for r in records if (r.get("kv_tokens") or "").strip()]
    if not printed:
        raise UsageError("no row states kv_tokens, the tokens that the engine printed")
    apart = [r for r in printed if (r.get("scored") or "yes") != "yes"]
    scored = [r for r in printed if (r.get("scored") or "yes") == "yes"]
    found: dict[str, list[tuple[Mapping[str, str], float | None, str]]] = {}
    for view in (STATED, DEFAULTS):
        rows = [(r, *_predicted(r, view, db)) for r in scored]
        found[view] = [(r, value and value / float(r["kv_tokens"]), error) for r, value, error in rows]
    lines = [_line("all", view, pairs) for view, pairs in found.items()]
    for key in by or ("engine",):
        for name in sorted({r.get(key) or "not stated" for r in scored}):
            for view, pairs in found.items():
                members = [pair for pair in pairs if (pair[0].get(key) or "not stated") == name]
                lines.append(_line(f"{key} {name}", view, members))
    off = sorted((pair for pair in found[STATED] if pair[1]), key=lambda pair: -abs((pair[1] or 1) - 1))[:worst]
    missed = [
        {"target": f"{view}: {name}", "limit_pct": limit, "reached_pct": _of(lines, view, name)}
        for view, name, limit in TARGETS
    ]
    return {
        "kind": "kv",
        "rows": len(scored),
        "apart": len(apart),
        "by_group": lines,
        "targets": missed,
        "worst": [{**dict(r), "error_pct": percent((ratio or 1) - 1)} for r, ratio, _ in off],
        "no_prediction": [{**dict(r), "pred_error": error} for r, ratio, error in found[STATED] if error],
    }


def _of(lines: Sequence[Line], view: str, name: str) -> Any:
    return next(line[name] for line in lines if line["group"] == "all" and line["view"] == view)


def _line(group: str, view: str, pairs: Sequence[tuple[Mapping[str, str], float | None, str]]) -> Line:
    errors = errors_of(ratio for _, ratio, _ in pairs)
    return {
        "group": group,
        "view": view,
        "rows": len(pairs),
        "unpredicted": len(pairs) - errors.rows,
        "median_pct": percent(errors.median),
        "p90_pct": percent(errors.p90),
        "bias_pct": percent(errors.bias),
    }
