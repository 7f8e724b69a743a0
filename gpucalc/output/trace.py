"""The predicted step as a trace that Perfetto and chrome://tracing show: a process for each pipeline stage.

Format: the JSON object form of the Trace Event Format (Google, 2016), complete events ("ph": "X") in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucalc.core.errors import UsageError
from gpucalc.layouts.orders import BACKWARD, FORWARD, WEIGHT
from gpucalc.questions.timeline import Timeline, after_pipeline, at, whole_step

if TYPE_CHECKING:
    from gpucalc.core.ledger import Ledger
    from gpucalc.jobs.training import Job

COMPUTE, COMMUNICATION, TRANSFER = range(3)  # threads of a process
THREADS = {COMPUTE: "compute", COMMUNICATION: "communication that compute waits for", TRANSFER: "pipeline transfers"}
NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradients"}
AFTER = {
    "time/dp/exposed": ("gradients and parameters", COMMUNICATION),
    "time/optimizer": ("optimizer", COMPUTE),
    "time/stragglers": ("waiting for the slowest rank", COMPUTE),
}
SHORTEST = 1e-10  # s: shorter gaps are rounding


def trace_document(job: Job, ledger: Ledger) -> dict[str, Any]:
    """The trace of one step, of a detailed ledger of that row.

    On each stage the events of compute, exposed communication and idle time follow each other without gap or overlap
    from 0 to `time/step`.
    """
    found = whole_step(job, ledger)
    events = [event for stage in range(found.stages) for event in _stage(found, stage, ledger)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": job.model.name,
            "gpu": job.cluster.device.key,
            "schedule": job.cells["schedule"],
            "micro_batches": found.micro_batches,
            "step_time_s": at(ledger, "time/step"),
            "note": "Predicted: passes as long as those of the longest stage, in the schedule's order.",
        },
    }


def _stage(found: Timeline, stage: int, ledger: Ledger) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": stage, "name": "process_name", "args": {"name": f"stage {stage}"}}
    yield {"ph": "M", "pid": stage, "name": "process_sort_index", "args": {"sort_index": stage}}
    for thread, name in THREADS.items():
        yield {"ph": "M", "pid": stage, "tid": thread, "name": "thread_name", "args": {"name": name}}
    waits = {kind: _waiting_share(ledger, kind) for kind in NAMES}
    now = sent = 0.0
    for bar in found.of_stage(stage):
        if bar.start - now > SHORTEST:
            yield _event(stage, COMPUTE, "idle", "bubble", now, bar.start)
        work = bar.work
        said = {"micro_batch": work.micro_batch, "chunk": work.chunk}
        computed = bar.end - waits[work.kind] * (bar.end - bar.start)
        yield _event(stage, COMPUTE, NAMES[work.kind], work.kind, bar.start, computed, said)
        if bar.end - computed > SHORTEST:
            yield _event(stage, COMMUNICATION, f"waits of {NAMES[work.kind]}", "communication", computed, bar.end, said)
        if found.transfer > SHORTEST and work.kind != WEIGHT:
            start = max(bar.end, sent)
            sent = start + found.transfer
            yield _event(stage, TRANSFER, "to the next stage", "transfer", start, sent, said)
        now = bar.end
    if found.end - now > SHORTEST:
        yield _event(stage, COMPUTE, "idle", "bubble", now, found.end)
    now = found.end
    for path, seconds in after_pipeline(ledger):
        name, thread = AFTER.get(path, (path, COMPUTE))
        if seconds > SHORTEST:
            yield _event(stage, thread, name, path, now, now + seconds)
        now += seconds


def _waiting_share(ledger: Ledger, kind: str) -> float:
    """The share of a pass in which compute waits for communication."""
    if kind == WEIGHT:
        return 0.0
    name = "forward" if kind == FORWARD else "backward"
    whole = at(ledger, f"layer/{name}/time")
    return min(1.0, at(ledger, f"layer/{name}/exposed") / whole) if whole > 0 else 0.0


def _event(
    stage: int, thread: int, name: str, kind: str, start: float, end: float, said: dict[str, Any] | None = None
) -> dict[str, Any]:
    found = {"ph": "X", "pid": stage, "tid": thread, "name": name, "cat": kind, "ts": start * 1e6}
    return {**found, "dur": (end - start) * 1e6, **({"args": said} if said else {})}


def check_trace_path(path: str) -> str:
    """The path, if a trace can be written there. Raises UsageError."""
    target = Path(path)
    if target.suffix.lower() != ".json":
        raise UsageError(f"--trace is {path!r}, expected a name that ends in .json")
    if not target.parent.is_dir():
        raise UsageError(f"--trace: the folder {str(target.parent)!r} does not exist")
    if target.is_dir():
        raise UsageError(f"--trace: {path!r} is a folder")
    return path


def save_trace(document: dict[str, Any], path: str) -> None:
    """Write a trace. Raises UsageError where it cannot."""
    try:
        Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--trace: cannot write {path!r}: {error.strerror or error}") from None
