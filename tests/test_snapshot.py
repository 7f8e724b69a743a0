"""About a hundred ranked layouts: a change of results must be meant, and said in the changelog."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("build_snapshot", ROOT / "scripts" / "build_snapshot.py")
assert SPEC
assert SPEC.loader
build_snapshot = importlib.util.module_from_spec(SPEC)
sys.modules["build_snapshot"] = build_snapshot
SPEC.loader.exec_module(build_snapshot)

MEANT = 'if this is meant, run: python scripts/build_snapshot.py --because "what moved and why"'
NUMBERS = ("pred_step_time_s", "pred_peak_mem_gib", "pred_mfu_pct")


def test_the_ranking_is_the_snapshot() -> None:
    _, then = build_snapshot.read()
    now = build_snapshot.ranking()
    assert len(then) >= 80
    by_job = {name: [row for row in now if row["job"] == name] for name in build_snapshot.JOBS}
    for name, rows in itertools.groupby(then, key=lambda row: row["job"]):
        before, after = list(rows), by_job[name]
        assert len(before) == len(after), f"{name}: {MEANT}"
        for old, new in zip(before, after, strict=True):
            for column in NUMBERS:
                # Layouts that tie to the last digit may change places between machines.
                assert float(new[column]) == pytest.approx(float(old[column]), rel=1e-5), f"{name}, {column}: {MEANT}"
        assert {row["layout"] for row in before} == {row["layout"] for row in after}, f"{name}: {MEANT}"


def test_the_reason_of_the_snapshot_stands_in_the_changelog() -> None:
    reason, _ = build_snapshot.read()
    assert reason
    assert reason in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
