"""Measure gpucalc's speed and memory beside its targets.

    python scripts/benchmark.py            # a minute
    python scripts/benchmark.py --large    # also a search of more than 10^8 layouts

Processor time is counted, not wall time, so that a busy machine disturbs little; the best of several runs counts.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PLAN_175B = ("gpt3-175b", "--gpu", "a100-sxm-80gb", "--gpus", "4096", "--seq-len", "2048", "--global-batch", "4096")
PLAN_405B = (
    "llama-3.1-405b",
    "--gpu",
    "h100-sxm-80gb",
    "--gpus",
    "16384",
    "--seq-len",
    "8192",
    "--global-batch",
    "16384",
)
ONE_SHOT = ("llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--gpus", "64", "--seq-len", "8192", "--global-batch", "128")
# No bounds help a search for the least memory: every layout is costed.
LARGE = ("deepseek-v3", "--gpu", "h800-sxm-80gb", "--gpus", "6144", "--seq-len", "32768", "--global-batch", "18432")
ENUMERATED = 100_000_000
START_UP = "import sys; sys.argv[0] = 'gpucalc'; from gpucalc.cli import main; main()"


@dataclass(frozen=True)
class Line:
    """One measurement beside its target; `most` says whether the target is an upper limit."""

    what: str
    value: float
    unit: str
    target: float
    most: bool = True

    @property
    def ratio(self) -> float:
        """How far within the target: above 1 it is met."""
        return self.target / self.value if self.most else self.value / self.target

    def cells(self) -> tuple[str, ...]:
        """The line as a table row."""
        sign = "≤" if self.most else "≥"
        verdict = "met" if self.ratio >= 1 else "MISSED"
        shown = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.3f}"
        return (self.what, f"{shown} {self.unit}", f"{sign} {self.target:,g} {self.unit}", f"{self.ratio:.2f}", verdict)


def layouts_per_second(rounds: int) -> float:
    """Layouts that the full model evaluates per second of one core, enumeration included, in blocks."""
    from gpucalc.database.hardware import Database
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs import training as jobs
    from gpucalc.layouts.space import block_columns, blocks, cuts, make_space

    question = {"model": "gpt3-175b", "gpu": "a100-sxm-80gb", "n_gpus": 1024, "seq_len": 2048, "global_batch": 1536}
    base = jobs.resolve({**question, "dp": 1024, "micro_batch": 1, "zero_stage": 1}, Database())
    c, model = base.columns, base.model
    best = 0.0
    for _ in range(rounds):
        space = make_space(question, int(c["layers"]), model.heads, model.experts, base.cluster.domain, False)
        started, rows = time.process_time(), 0
        for block in blocks(space, cuts(space)):
            ledger = estimate_training(block_columns(c, block))
            rows += len(block["tp"])
            assert float(ledger["time/step"].min()) > 0
            ledger.entries.clear()
        best = max(best, rows / (time.process_time() - started))
    return best


@functools.cache
def environment() -> dict[str, str]:
    """The variables of a user's shell: compiled modules are kept, outside the source tree, after the first run."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def measured(*arguments: str) -> tuple[float, float, bytes]:
    """CPU seconds, peak resident bytes and output of a gpucalc process of its own."""
    # A process in between: the peak of the children counts the largest of all that ever ran.
    watcher = (
        "import resource, subprocess, sys, json;"
        "done = subprocess.run(sys.argv[1:], capture_output=True);"
        "sys.stdout.buffer.write(done.stdout);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss, done.returncode], sys.stderr)"
    )
    command = [sys.executable, "-c", watcher, sys.executable, "-c", START_UP, *arguments]
    done = subprocess.run(command, capture_output=True, check=True, env=environment())
    seconds, kibibytes, status = json.loads(done.stderr)
    if status:
        raise SystemExit(f"gpucalc {' '.join(arguments)} ended with status {status}")
    return seconds, kibibytes * 1024.0, done.stdout


def least(rounds: int, *arguments: str) -> tuple[float, float, bytes]:
    """The run with the least CPU time of several."""
    return min((measured(*arguments) for _ in range(rounds)), key=lambda run: run[0])


def lines(rounds: int, large: bool) -> Iterator[Line]:
    """Every measurement, each as soon as it is known."""
    yield Line("full model, layouts per second on one core", layouts_per_second(rounds), "/s", 1e6, most=False)
    for title, job in (("plan GPT-3 175B, 4,096 GPUs", PLAN_175B), ("plan Llama-3.1-405B, 16,384 GPUs", PLAN_405B)):
        seconds, memory, out = least(rounds, "plan", *job, "-f", "json")
        found: dict[str, Any] = json.loads(out)
        title = f"{title} ({found['candidates']:,} layouts, {found['evaluated']:,} costed)"
        yield Line(f"{title}: CPU time", seconds, "s", 2.0)
        yield Line(f"{title}: peak memory", memory / 1e6, "MB", 400.0)
    label = json.loads(least(1, "plan", *ONE_SHOT, "-f", "json", "--top", "1")[2])["rows"][0]["layout"]
    for what, limit, arguments in (
        ("--version", 0.2, ("--version",)),
        ("--help", 0.2, ("--help",)),
        ("one-shot plan, 64 GPUs", 0.5, ("plan", *ONE_SHOT)),
        ("one-shot explain", 0.5, ("explain", *ONE_SHOT, "--layout", label)),
    ):
        yield Line(f"{what}: CPU time", least(max(rounds, 5), *arguments)[0], "s", limit)
    if large:
        seconds, memory, out = measured("plan", *LARGE, "--objective", "memory", "-f", "json")
        found = json.loads(out)
        yield Line("large search: layouts enumerated", float(found["candidates"]), "", ENUMERATED, most=False)
        yield Line(f"large search, {found['evaluated']:,} costed in {seconds:.0f} s: memory", memory / 1e6, "MB", 400.0)


def main() -> int:
    """Print the table; status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the best counts (default 3)")
    parser.add_argument("--large", action="store_true", help="also search more than 10^8 layouts (minutes)")
    options = parser.parse_args()
    found = list(lines(options.rounds, options.large))
    table = [("measurement", "value", "target", "ratio", ""), *(line.cells() for line in found)]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return int(any(line.ratio < 1 for line in found))


if __name__ == "__main__":
    sys.exit(main())
