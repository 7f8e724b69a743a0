"""Write docs/accuracy.md and tests/golden/accuracy.csv from what the package predicts now.

    python scripts/make_accuracy_page.py            # write both
    python scripts/make_accuracy_page.py --check    # status 1 when they would change

Figures are computed; the prose beside them stands in accuracy_prose.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_prose import (
    BAND_RULE,
    FITTED,
    INTRODUCTION,
    KNOWN_MISSES,
    PEERS,
    PEERS_NOTE,
    SETTINGS_TRIED,
    STRUCTURE,
    UNTRUSTED,
)

from gpucalc.database import files
from gpucalc.database.bands import FAMILIES, TIME, Bands, bands
from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.validate.kernels import SHIPPED_TABLES, kernel_report, kernel_targets, shipped_kernels
from gpucalc.validate.metrics import listed_groups
from gpucalc.validate.report import report
from gpucalc.validate.training import check_shipped, shipped_rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
GOLDEN = ROOT / "tests" / "golden" / "accuracy.csv"
SECTIONS = ("all", "by_source", "by_family", "memory", "fit", "ranking", "targets")
VIEW_TITLES = {"": "in the fit", "random_": "rows held out", "left_out_": "sources left out"}
Line = Mapping[str, Any]


def figures() -> dict[str, Any]:
    """The report of the shipped training runs."""
    rows = check_shipped(Context(Database()))
    found = report(rows, listed_groups(rows, shipped_rows("ranking_groups")), ("source", "family"), worst=25)
    tables = {kind: shipped_kernels(kind) for kind in SHIPPED_TABLES}
    found["targets"] += kernel_targets(tables, Database())
    return found


def golden_text(found: Mapping[str, Any]) -> str:
    """section, group, figure, value: one line a figure."""
    out = io.StringIO()
    out.write(
        "# Written by scripts/make_accuracy_page.py: what `gpucalc validate` prints for the shipped measurements.\n"
    )
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["section", "group", "figure", "value"])
    for section in SECTIONS:
        for line in found[section]:
            group = line.get("group") or line.get("target")
            for name, value in line.items():
                if isinstance(value, int | float) and not name.startswith("limit_"):
                    writer.writerow([section, group, name, f"{value:.2f}" if isinstance(value, float) else value])
    return out.getvalue()


def cell(value: Any, digits: int = 1) -> str:
    """A cell of a table of the page."""
    if value is None or value == "":
        return "–"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def table(headings: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; columns of numbers are set to the right."""
    body = [[cell(c) for c in line] for line in lines]
    right = [all(isinstance(line[i], int | float) or line[i] is None for line in lines) for i in range(len(headings))]
    marks = ["---:" if r else "---" for r in right]
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(headings), marks, *body])


def error_table(lines: Sequence[Line], title: str) -> str:
    """Median (p90) and bias in each view there is."""
    views = [v for v in VIEW_TITLES if any(line.get(f"{v}median_pct") is not None for line in lines)]
    headings = [title, "rows", *(f"{VIEW_TITLES[v]}: median (p90) bias, %" for v in views)]
    body = []
    for line in lines:
        cells: list[Any] = [line["group"], line["rows"]]
        for view in views:
            median, p90, bias = (line.get(f"{view}{n}_pct") for n in ("median", "p90", "bias"))
            cells.append("–" if median is None else f"{median:.1f} ({p90:.1f}) {bias:+.1f}")
        body.append(cells)
    return table(headings, body)


def target_table(lines: Sequence[Line]) -> str:
    """Figures to reach beside those reached."""
    views = [v for v in ("shipped", "random", "left_out") if any(line.get(f"{v}_pct") is not None for line in lines)]
    titles = {"shipped": "in the fit", "random": "rows held out", "left_out": "sources left out"}
    body = []
    for line in lines:
        limits = f"{line['sense']} {line['limit_random_pct']:g} / {line['limit_left_out_pct']:g}"
        reached = [cell(line.get(f"{v}_pct")) + (" **missed**" if v in line["missed"] else "") for v in views]
        body.append([line["target"], limits, *reached])
    return table(["figure, %", "to reach: rows held out / sources left out", *(titles[v] for v in views)], body)


def constants_table() -> tuple[str, int]:
    """The fitted constants, from the record of the fit, and how many there are."""
    path = files.shipped() / "calibration" / "training_fit.csv"
    if not path.exists():
        return "", 0
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    read = list(csv.DictReader(lines))
    body = [
        [
            f"{c['profile']}.{c['constant']}",
            c["value"] + (f" (at its {c['at']} bound)" if c["at"] else ""),
            f"{c['low']} … {c['high']}",
            f"{c['spread_low']} … {c['spread_high']}",
            int(c["rows"]),
        ]
        for c in read
    ]
    return table(["constant", "value", "bounds", "with one source left out", "rows it touches"], body), len(read)


def kernel_lines() -> str:
    """Errors of kernels and collectives on the shipped samples."""
    body = []
    for kind in SHIPPED_TABLES:
        for line in kernel_report(kind, shipped_kernels(kind), Database(), worst=0)["by_group"]:
            if line["group"] in {"all", "m, n, k ≥ 1024"} or line["group"].startswith(("phase", "dtype", "op")):
                body.append([kind, line["group"], line["rows"], line["median_pct"], line["p90_pct"], line["bias_pct"]])
    return table(["kind", "rows of", "rows", "median, %", "p90, %", "bias, %"], body)


# Words of a note that say what a source leaves out or contradicts, the weightiest first.
DOUBTS = ("NOT TRUSTED", "NOISY", "not stated", "not in the document", "not usable", "not a fixed", "inferred",
          "approximate", "unverified", "assumed", "from memory", "early iteration", "paged")  # fmt: skip


def reason_of(notes: str) -> str:
    """The one or two clauses of a row's notes that say why it is not trusted; all of them where none is plain."""
    clauses = [clause.strip() for clause in notes.split(";")]
    # "runtime 2.58 min (not a fixed-length step time)": what stands in the brackets is the reason.
    clauses = [re.sub(r"^(?:run)?time .*\((not|iterations) (.*)\)$", r"\1 \2", clause) for clause in clauses]
    doubtful = [clause for word in DOUBTS for clause in clauses if word in clause]
    return "; ".join(list(dict.fromkeys(doubtful))[:2] or clauses[:2])[:200]


def untrusted_table() -> str:
    """Rows that do not state all that decides their time, with their own reasons."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in shipped_rows():
        if row["strict"] == "False":
            found.setdefault((row["source"], reason_of(row["notes"])), []).append(row["id"])
    body = [[source, ", ".join(ids[:6]) + (" …" if len(ids) > 6 else ""), len(ids), reason]
            for (source, reason), ids in found.items()]  # fmt: skip
    return table(["source", "rows", "count", "from their notes"], body)


BAND_SUPPORT = (0, 1, 3, 8)  # other sources fitted with the profile


def band_width(band: Bands, family: str, others: int) -> str:
    """Half of the band of the step time in per cent, upwards."""
    return f"{100 * (math.exp(band.rules[TIME].half_width(family, others)) - 1):.0f}"


def page(found: Mapping[str, Any]) -> str:
    """The whole page."""
    balanced = ", ".join(
        f"{value:.1f} % {title}"
        for view, title in (("shipped", "on rows of the fit"), ("random", "on rows held out at random"),
                            ("left_out", "with whole sources left out in turn"))
        if (value := found["balanced_pct"].get(view)) is not None
    )  # fmt: skip
    constants, count = constants_table()
    ranking = [line for line in found["ranking"] if " groups, " in line["group"]]
    band = bands(Database())
    fit_headings = ["predictions", "ran", "predicted to fit", "risky", "out of memory", "predicted so", "risky",
                    "balanced, %", "found, %"]  # fmt: skip
    fit_keys = ("group", "ran", "ran_and_fits", "ran_and_risky", "ended_oom", "ended_oom_and_oom",
                "ended_oom_and_risky", "balanced_pct", "oom_found_pct")  # fmt: skip
    parts = [
        "# Accuracy",
        "<!-- Written by scripts/make_accuracy_page.py; prose in scripts/accuracy_prose.py. Do not edit here. -->",
        INTRODUCTION,
        f"**Step time, mean over sources of the median error: {balanced}** "
        f"({found['trusted_timed']} trusted timed rows of {found['timed']}).",
        "## What is to be reached",
        target_table(found["targets"]),
        "## Step time by source",
        error_table([*found["all"], *found["by_source"]], "source"),
        "## Step time by family",
        "A row may belong to several families.",
        error_table(found["by_family"], "family"),
        "## Peak memory",
        error_table(found["memory"], "rows of"),
        "## Fits or does not fit",
        "Risky is a prediction within 5 % of what the device can use; it counts neither as right nor as wrong in the "
        "balanced figure, and it does not count as found.",
        table(fit_headings, [[line.get(k) for k in fit_keys] for line in found["fit"]]),
        "## Order of layouts of one job",
        table(
            [
                "groups",
                "rows",
                "pairs more than 3 % apart",
                "right, %",
                "mean loss of the predicted best, %",
                "within 3 % of the best, % of groups",
            ],
            [
                [line[k] for k in ("group", "rows", "pairs", "right_pct", "mean_loss_pct", "best_within_3_pct")]
                for line in ranking
            ],
        ),
        "## Kernels and collectives",
        kernel_lines(),
        "## The 80 % band of an estimate",
        BAND_RULE,
        table(
            ["family", *(f"{n} sources, ±%" for n in BAND_SUPPORT)],
            [[FAMILIES[f], *(band_width(band, f, n) for n in BAND_SUPPORT)] for f in FAMILIES],
        ),
        "## What the structure did",
        STRUCTURE,
        "## What was fitted",
        FITTED.format(count=count),
        constants,
        "## Settings tried",
        SETTINGS_TRIED,
        "## Other tools",
        PEERS_NOTE,
        table(["tool", "what it states", "on what"], PEERS),
        "## Rows that are not trusted",
        UNTRUSTED,
        untrusted_table(),
        "## Known misses",
        KNOWN_MISSES,
        table(
            ["row", "source", "model", "measured, s", "predicted, s", "error, %", "notes of the row"],
            [
                [
                    w["id"],
                    w["source"],
                    w["model"],
                    f"{w['measured_step_time_s']:.4g}",
                    f"{w['pred_step_time_s']:.4g}",
                    f"{w['error_pct']:+.0f}",
                    w["notes"][:140],
                ]
                for w in found["worst"]
            ],
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 when a file would change")
    given = parser.parse_args()
    found = figures()
    changed = []
    for path, text in ((PAGE, page(found)), (GOLDEN, golden_text(found))):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed.append(path.relative_to(ROOT).as_posix())
            if not given.check:
                path.write_text(text, encoding="utf-8")
    print("changed: " + ", ".join(changed) if changed else "nothing changed", file=sys.stderr)
    if given.check and changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
