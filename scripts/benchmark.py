"""Measure gpucalc's speed and memory beside its targets, and beside an older commit.

    python scripts/benchmark.py                  # minutes
    python scripts/benchmark.py --large          # also a search of more than 10^8 layouts
    python scripts/benchmark.py --against REV    # also the ratios to a commit, both run in turn

Processor time is counted, not wall time, so that a busy machine disturbs little; the best of several runs counts. Runs
of two commits alternate, so that what slows the machine for a while slows both.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import csv
import functools
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucalc.jobs.context import Context

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
# No bounds help a search for the least memory: every layout of more than 10^8 is costed.
LARGE = ("deepseek-v3", "--gpu", "h800-sxm-80gb", "--gpus", "6144", "--seq-len", "32768", "--global-batch", "18432")
START_UP = "import sys; sys.argv[0] = 'gpucalc'; from gpucalc.cli import main; main()"
ROOT = Path(__file__).parent.parent
FEW, MANY = 1_000, 11_000  # rows of two runs of eval, whose difference has no start-up in it


@dataclass(frozen=True)
class Figure:
    """What a run of one tree measured; `value` is compared with the target, `size` says how much was done."""

    value: float
    size: str = ""


@dataclass(frozen=True)
class Measurement:
    """Something to measure in a tree, with its target; `most` says whether the target is an upper limit."""

    what: str
    unit: str
    target: float
    measure: Callable[[Path], Figure]
    most: bool = True
    rounds: int | None = None

    def best(self, figures: Iterable[Figure]) -> Figure:
        """The least or the most of several runs."""
        choose = min if self.most else max
        return choose(figures, key=lambda figure: figure.value)

    def ratio(self, value: float, other: float) -> float:
        """How many times better a value is than another: above 1 it is better."""
        return other / value if self.most else value / other

    def shown(self, value: float) -> str:
        """A value with its unit."""
        return (f"{value:,.0f}" if value >= 100 else f"{value:.3f}") + f" {self.unit}".rstrip()


def layouts_per_second() -> float:
    """Layouts that the full model evaluates per second of one core, enumeration included, in blocks."""
    from gpucalc.database.reader import Database
    from gpucalc.estimate.training import estimate_training
    from gpucalc.jobs import training as jobs
    from gpucalc.layouts.space import block_columns, blocks, cuts, make_space

    question = {"model": "gpt3-175b", "gpu": "a100-sxm-80gb", "n_gpus": 1024, "seq_len": 2048, "global_batch": 1536}
    base = jobs.resolve({**question, "dp": 1024, "micro_batch": 1, "zero_stage": 1}, Context(Database()))
    c, model = base.columns, base.model
    space = make_space(question, int(c["layers"]), model.heads, model.experts, base.cluster.domain, False)
    started, rows = time.process_time(), 0
    for block in blocks(space, cuts(space)):
        ledger = estimate_training(block_columns(c, block))
        rows += len(block["tp"])
        assert float(ledger["time/step"].min()) > 0
        ledger.entries.clear()
    return rows / (time.process_time() - started)


def _layouts(tree: Path) -> Figure:
    # The tree's own copy of this script knows where its parts stand; an older one takes the number of runs.
    code = (
        "import inspect, sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/scripts']\n"
        "from benchmark import layouts_per_second as run\n"
        "print(run(*[1] * len(inspect.signature(run).parameters)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tree)], capture_output=True, check=True, text=True, env=environment(tree)
    )
    return Figure(float(done.stdout))


@functools.cache
def environment(tree: Path) -> dict[str, str]:
    """The variables of a user's shell: compiled modules are kept, outside the source tree, after the first run."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {**kept, "PYTHONPYCACHEPREFIX": folder, "PYTHONPATH": str(tree)}


def measured(tree: Path, *arguments: str, rows: str = "") -> tuple[float, float, bytes]:
    """CPU seconds, peak resident bytes and output of a gpucalc process of its own, which reads `rows`."""
    # A process in between: the peak of the children counts the largest of all that ever ran.
    watcher = (
        "import resource, subprocess, sys, json;"
        "done = subprocess.run(sys.argv[1:], capture_output=True);"
        "sys.stdout.buffer.write(done.stdout);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss, done.returncode], sys.stderr)"
    )
    command = [sys.executable, "-c", watcher, sys.executable, "-c", START_UP, *arguments]
    done = subprocess.run(
        command, input=rows.encode(), capture_output=True, check=True, env=environment(tree), cwd=tree
    )
    seconds, kibibytes, status = json.loads(done.stderr)
    if status:
        raise SystemExit(f"gpucalc {' '.join(arguments)} of {tree} ended with status {status}")
    return seconds, kibibytes * 1024.0, done.stdout


def stream(count: int) -> str:
    """Rows of different jobs, as a CSV: each differs from the one before in model, GPU, cluster or layout."""
    models = (
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "mixtral-8x7b",
        "qwen2.5-7b",
        "llama-2-13b",
        "qwen2.5-72b",
    )
    gpus = ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "mi300x")
    shapes = itertools.product((4096, 8192, 2048), (1, 2, 4), (64, 128, 256, 512), (1, 2, 4), (1, 2, 4, 8))
    lines = ["model,gpu,n_gpus,seq_len,global_batch,tp,pp,dp,micro_batch,zero_stage,recompute"]
    for seq_len, micro_batch, n_gpus, pp, tp in itertools.cycle(shapes):
        dp = n_gpus // (tp * pp)
        for model, gpu in itertools.product(models, gpus):
            if len(lines) > count:
                return "\n".join(lines) + "\n"
            lines.append(f"{model},{gpu},{n_gpus},{seq_len},{8 * dp * micro_batch},{tp},{pp},{dp},{micro_batch},1,full")
    raise AssertionError


def _eval(tree: Path) -> Figure:
    (few, _, _), (many, memory, out) = (measured(tree, "eval", "-", rows=stream(n)) for n in (FEW, MANY))
    answered = [row["pred_error"] for row in csv.DictReader(io.StringIO(out.decode()))].count("")
    assert answered > 0.9 * MANY, f"eval answered {answered} rows of {MANY}"
    return Figure((MANY - FEW) / (many - few), f"{memory / 1e6:,.0f} MB")


def _seconds(*arguments: str) -> Callable[[Path], Figure]:
    return lambda tree: Figure(measured(tree, *arguments)[0])


def _plan(*arguments: str, memory: bool) -> Callable[[Path], Figure]:
    def measure(tree: Path) -> Figure:
        seconds, peak, out = measured(tree, "plan", *arguments, "-f", "json")
        found: dict[str, Any] = json.loads(out)
        return Figure(
            peak / 1e6 if memory else seconds, f"{found['candidates']:,} layouts, {found['evaluated']:,} costed"
        )

    return measure


def measurements(large: bool) -> Iterator[Measurement]:
    """Everything that is measured, in the order of the table."""
    yield Measurement("full model, layouts on one core", "/s", 1.5e6, _layouts, most=False)
    yield Measurement("eval, rows of different jobs on one core", "/s", 5e4, _eval, most=False)
    for title, job in (("plan GPT-3 175B, 4,096 GPUs", PLAN_175B), ("plan Llama-3.1-405B, 16,384 GPUs", PLAN_405B)):
        yield Measurement(f"{title}: CPU time", "s", 2.0, _plan(*job, memory=False))
        yield Measurement(f"{title}: peak memory", "MB", 400.0, _plan(*job, memory=True), rounds=1)
    for what, limit, arguments in (
        ("--version", 0.15, ("--version",)),
        ("--help", 0.15, ("--help",)),
        ("one-shot plan, 64 GPUs", 0.45, ("plan", *ONE_SHOT)),
        ("one-shot explain", 0.35, ("explain", *ONE_SHOT, "--layout", "tp4-pp4-dp4-vpp5-mbs1-zero1-sp")),
    ):
        yield Measurement(f"{what}: CPU time", "s", limit, _seconds(*arguments), rounds=5)
    if large:
        search = _plan(*LARGE, "--objective", "memory", memory=True)
        yield Measurement("large search, memory", "MB", 400.0, search, rounds=1)


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A checkout of a commit in a folder of its own, as long as it is needed."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        done = subprocess.run(
            [*git, "worktree", "add", "--detach", str(tree), revision], capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"--against {revision}: {done.stderr.strip().splitlines()[-1]}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True, capture_output=True)


def main() -> int:
    """Print the table, each line as soon as it is known; status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the best counts (default 3)")
    parser.add_argument("--large", action="store_true", help="also search more than 10^8 layouts (minutes)")
    parser.add_argument("--against", metavar="REV", help="a commit to run beside this tree; ratios above 1 are gains")
    parser.add_argument("--only", metavar="WORD", default="", help="measurements whose name holds this word")
    options = parser.parse_args()
    chosen = [m for m in measurements(options.large) if options.only in m.what]
    width = max((len(m.what) for m in chosen), default=0)
    missed = False
    with contextlib.ExitStack() as stack:
        trees = [ROOT, *([stack.enter_context(worktree(options.against))] if options.against else [])]
        for m in chosen:
            runs: list[list[Figure]] = [[] for _ in trees]
            for _ in range(m.rounds or options.rounds):
                for tree, figures in zip(trees, runs, strict=True):
                    figures.append(m.measure(tree))
            here, *there = [m.best(figures) for figures in runs]
            met = m.ratio(here.value, m.target) >= 1
            missed |= not met
            cells = [f"{m.shown(here.value):>16}", f"{'≤' if m.most else '≥'} {m.shown(m.target)}".ljust(16)]
            cells += ["met   " if met else "MISSED"]
            cells += [f"{m.ratio(here.value, o.value):6.2f} × {options.against} ({m.shown(o.value)})" for o in there]
            print("  ".join([m.what.ljust(width), *cells, here.size]).rstrip(), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
