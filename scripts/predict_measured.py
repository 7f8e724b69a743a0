"""Errors of predictions on measured runs, source by source, as a user of these frameworks would meet them.

    python scripts/predict_measured.py runs.csv [--new-only] [--profile neutral] [--rows]

Nothing is fitted: each row is resolved by the shipped database, its profile chosen by the framework cell alone.
Printed per source: median, 90th percentile and bias of the step time; the same of the peak memory by counter;
fit verdicts of runs that ended out of memory and of runs that ran; share of rows inside the printed band.
--new-only leaves out rows whose id ships with the package; --profile predicts all rows with one profile, as if
their framework were unknown.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from gpucalc.core.rows import read_rows, text_record
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.validate.metrics import MINIMUM_ROWS, errors_of, grouped
from gpucalc.validate.training import SHIPPED, Checked, check_rows, shipped_rows


def percent(value: float | None, sign: bool = False) -> str:
    """A share as per cent, or a dash."""
    if value is None:
        return "–"
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def line(name: str, ratios: Sequence[float | None]) -> str:
    """Rows, median, 90th percentile and bias of predicted / measured."""
    found = errors_of(ratios)
    figures = f"{percent(found.median):>6} {percent(found.p90):>7} {percent(found.bias, True):>7}"
    return f"{name:58.58} {found.rows:4}  {figures}"


def mean_of_medians(groups: Iterable[Sequence[float | None]], least: int = 1) -> str:
    """Mean over groups of `least` rows or more of the median error, in per cent."""
    medians = [e.median for e in map(errors_of, groups) if e.rows >= least and e.median is not None]
    return f"{percent(sum(medians) / len(medians)) if medians else '–'} % over {len(medians)} sources"


def times(rows: Sequence[Checked]) -> None:
    """Print the errors of step times."""
    print(f"step time: {'source':47} rows  median     p90    bias, %")
    sources = grouped([r for r in rows if r.measured_s], "source")
    trusted = {name: [r.ratio() for r in members if r.trusted] for name, members in sources.items()}
    for name, members in sorted(sources.items()):
        print(line(name, [r.ratio() for r in members if r.trusted]))
        if doubtful := [r.ratio() for r in members if not r.trusted]:
            print(line("    not strict", doubtful))
    print(line("all trusted rows", [q for ratios in trusted.values() for q in ratios]))
    print("mean of medians, trusted rows:", mean_of_medians(trusted.values()))
    print(f"  sources of {MINIMUM_ROWS} rows and more:", mean_of_medians(trusted.values(), MINIMUM_ROWS))
    inside = {n: [bool(r.inside()) for r in m if r.trusted and r.ratio()] for n, m in sources.items()}
    shares = [sum(answers) / len(answers) for answers in inside.values() if answers]
    if shares:
        print(f"inside the band, mean over sources: {percent(sum(shares) / len(shares))} %\n")


def memory(rows: Sequence[Checked]) -> None:
    """Print the errors of peak memory by source and counter."""
    print(f"peak memory: {'source, counter':45} rows  median     p90    bias, %")
    found: dict[tuple[str, str], list[float | None]] = {}
    for row in rows:
        if row.measured_gib:
            found.setdefault((row.source, row.counter), []).append(row.memory_ratio())
    for (source, counter), ratios in sorted(found.items()):
        print(line(f"{source}, {counter}", ratios))
    print("mean of medians:", mean_of_medians(found.values()))
    print(f"  of {MINIMUM_ROWS} rows and more:", mean_of_medians(found.values(), MINIMUM_ROWS), "\n")


def verdicts(rows: Sequence[Checked]) -> None:
    """Print what is said of runs that ran and of runs that ended out of memory."""
    counts = {True: Counter[str](), False: Counter[str]()}
    for row in rows:
        if row.job and (row.oom or row.measured_s or row.measured_gib):
            counts[bool(row.oom)][row.predictions[SHIPPED].fit] += 1
    for oom, tally in counts.items():
        total = sum(tally.values())
        said = ", ".join(f"{name} {number}" for name, number in sorted(tally.items()))
        print(f"{'ended out of memory' if oom else 'ran'}: {total} rows: {said}")


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="measured rows, CSV or JSON lines")
    parser.add_argument("--new-only", action="store_true", help="leave out rows that ship with the package")
    parser.add_argument("--profile", help="one profile for all rows")
    parser.add_argument("--rows", action="store_true", help="each row's ratios too")
    given = parser.parse_args()
    records = [text_record(r) for block in read_rows(given.file).blocks for r in block]
    if given.new_only:
        known = {r["id"] for r in shipped_rows()}
        records = [r for r in records if r["id"] not in known]
    rows = check_rows(records, Context(Database(), profile=given.profile))
    for row in rows:
        if row.error:
            print(f"{row.identity}: {row.error}")
    chosen = Counter((r.record.get("framework") or "–", r.job.profile.name) for r in rows if r.job)
    for (framework, profile), number in sorted(chosen.items()):
        print(f"{framework[:50]:50} {number:4} rows: profile {profile}")
    print()
    times(rows)
    memory(rows)
    verdicts(rows)
    if given.rows:
        for row in rows:
            print(
                f"{row.identity:14} {row.source[:24]:24} {row.ratio() or 0:7.3f} {row.memory_ratio() or 0:7.3f} "
                f"{row.predictions[SHIPPED].fit if row.job else '–':6} {'oom' if row.oom else ''}"
            )


if __name__ == "__main__":
    main()
