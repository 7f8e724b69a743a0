"""Write tests/golden/ranking_snapshot.csv: the first ten layouts of ten jobs as they rank now.

    python scripts/build_snapshot.py --because "MoE layers launch from CUDA graphs: mixtures 12 % faster"
    python scripts/build_snapshot.py --check     # compare only; status 1 when the ranking differs

The reason becomes a line of CHANGELOG.md, and the snapshot names it: a change of results without one fails the tests.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import Any

from gpucalc.jobs.context import Context

ROOT = Path(__file__).parent.parent
SNAPSHOT = ROOT / "tests" / "golden" / "ranking_snapshot.csv"
CHANGELOG = ROOT / "CHANGELOG.md"
REASON = "# reason: "
TOP = 10
COLUMNS = (
    "job",
    "rank",
    "layout",
    "pred_step_time_s",
    "pred_peak_mem_gib",
    "pred_mfu_pct",
    "pred_fit",
    "pred_recompute",
)


def _job(model: str, gpu: str, n_gpus: int, seq_len: int, global_batch: int, **more: Any) -> dict[str, Any]:
    return dict(model=model, gpu=gpu, n_gpus=n_gpus, seq_len=seq_len, global_batch=global_batch, **more)


JOBS = {
    "llama-8b on 8 h100": _job("llama-3.1-8b", "h100-sxm-80gb", 8, 8192, 128),
    "llama-70b on 64 h100": _job("llama-3.1-70b", "h100-sxm-80gb", 64, 8192, 128),
    "llama-70b fp8 on 256 h100": _job("llama-3.1-70b", "h100-sxm-80gb", 256, 8192, 512, precision="fp8"),
    "llama-405b on 1024 h200": _job("llama-3.1-405b", "h200-sxm-141gb", 1024, 8192, 1024),
    "gpt3-175b on 1024 a100": _job("gpt3-175b", "a100-sxm-80gb", 1024, 2048, 1536),
    "gpt-22b on 32 v100": _job("megatron-gpt-22b", "v100-sxm2-32gb", 32, 2048, 64),
    "mixtral on 64 h100": _job("mixtral-8x7b", "h100-sxm-80gb", 64, 4096, 256),
    "deepseek-v3 fp8 on 2048 h800": _job("deepseek-v3", "h800-sxm-80gb", 2048, 4096, 15360, precision="fp8"),
    "llama-70b on 72 gb200": _job("llama-3.1-70b", "gb200", 72, 8192, 144),
    "llama-8b fsdp on 16 mi300x": _job("llama-3.1-8b", "mi300x", 16, 8192, 64, framework="fsdp", zero_stage=3),
}


def ranking() -> list[dict[str, str]]:
    """The rows of the snapshot as text, times and sizes to seven digits."""
    from gpucalc.database.reader import Database
    from gpucalc.questions.plan import plan

    db = Database()
    rows = []
    for name, cells in JOBS.items():
        for rank, row in enumerate(plan(cells, Context(db), top=TOP).rows, 1):
            known = {"job": name, "rank": rank, **row}
            rows.append({c: f"{known[c]:.7g}" if isinstance(known[c], float) else str(known[c]) for c in COLUMNS})
    return rows


def text(rows: list[dict[str, str]], reason: str) -> str:
    """The snapshot as a file."""
    out = io.StringIO()
    out.write(f"{REASON}{reason}\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def read() -> tuple[str, list[dict[str, str]]]:
    """The reason and the rows of the snapshot."""
    with SNAPSHOT.open(encoding="utf-8") as file:
        reason = file.readline().removeprefix(REASON).strip()
        return reason, list(csv.DictReader(file))


def main() -> int:
    """Write or compare the snapshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--because", metavar="TEXT", help="what moved and why; becomes a line of CHANGELOG.md")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    rows = ranking()
    if SNAPSHOT.exists() and read()[1] == rows:
        print("ranking: unchanged")
        return 0
    if options.check or not options.because:
        print("ranking: changed; write it with --because TEXT")
        return 1
    changelog = CHANGELOG.read_text(encoding="utf-8")
    if options.because not in changelog:
        heading = "## Unreleased\n\n"
        CHANGELOG.write_text(
            changelog.replace(heading, f"{heading}* Ranking: {options.because}\n", 1), encoding="utf-8"
        )
    SNAPSHOT.write_text(text(rows, options.because), encoding="utf-8")
    print(f"ranking: {len(rows)} rows written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
