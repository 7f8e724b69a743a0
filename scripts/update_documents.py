"""Run the commands of README.md and docs/ and write what they print; fill the README's accuracy table.

    python scripts/update_documents.py            # write
    python scripts/update_documents.py --check    # compare only; status 1 when a page differs

In a ```console block, a line `$ command` is run by bash and its output follows; the screen shows both streams, as
a terminal does. A ```sh block is commands alone: the tests run it and only ask that it succeeds. A block that neither
can run is preceded by the line <!-- not run by the tests: why -->. Between <!-- accuracy --> and <!-- /accuracy -->
stands the table of measured against predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))  # pages in folders of docs/ are generated
BLOCK = re.compile(
    r"^(?:<!-- not run by the tests: (?P<excuse>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.S | re.M
)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)
ACCURACY = re.compile(r"(?<=<!-- accuracy -->\n).*?(?=<!-- /accuracy -->)", re.S)
SECONDS = re.compile(r"\bin \d+\.\d+ s\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `excuse` says why nothing runs it."""

    page: str
    language: str
    text: str
    excuse: str | None

    def __str__(self) -> str:
        first = next(iter(self.text.splitlines()), "")
        return f"{self.page}: {first[:60]}"


def blocks(language: str | None = None) -> list[Block]:
    """The fenced blocks of all pages that are written by hand, or those of one language that are run."""
    found = [
        Block(str(page.relative_to(ROOT)), match["language"], match["text"], match["excuse"])
        for page in PAGES
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
    return [block for block in found if language is None or (block.language == language and not block.excuse)]


def bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, `gpucalc` being the one of this interpreter; errors stand in its output."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )


def run(command: str) -> str:
    """What a terminal would show of a command, output and errors in the order in which they were written."""
    return "\n".join(line.rstrip() for line in bash(command, ROOT).stdout.rstrip().splitlines())


def screen(block: str) -> str:
    """A console block with the output of its commands as it is now."""
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{output}\n" if (output := run(command)) else f"$ {command}\n" for command in commands)


def same(one: str, other: str) -> bool:
    """Whether two screens show the same but for the time a search took."""
    return SECONDS.sub("in N s", one) == SECONDS.sub("in N s", other)


def accuracy() -> str:
    """The accuracy table: trusted measurements by family."""
    out = subprocess.run(
        [sys.executable, "-m", "gpucalc", "validate", "-f", "json", "--by", "family"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return table(json.loads(out))


# Figures of `gpucalc validate` → heading; those of predictions held out are there once a fit has made them.
FIGURES = {
    "median_pct": "median in the fit",
    "random_median_pct": "rows held out",
    "left_out_median_pct": "source left out",
    "left_out_p90_pct": "its p90",
    "left_out_bias_pct": "its bias",
    "inside_pct": "in band",
}


def table(document: dict[str, Any]) -> str:
    """The sections of a validation that a reader of the README looks for, as Markdown."""
    lines = [*document["all"], *document["by_family"]]
    figures = {key: heading for key, heading in FIGURES.items() if key in lines[0]}
    heads = ["step time", "rows", *figures.values()]
    rows = [
        [line["group"], f"{line['rows']:,}", *(_percent(line[key], sign="bias" in key) for key in figures)]
        for line in lines
    ]
    memory, order = document["memory"][0], document["ranking"][0]
    fit = document["fit"][0]
    sentences = [
        f"Peak memory, {memory['rows']} runs whose counter is stated: median error {_percent(memory['median_pct'])}, "
        f"90th percentile {_percent(memory['p90_pct'])}. Of {fit['ran']} runs that worked {fit['ran_and_fits']} are "
        f"said to fit and {fit['ran_and_risky']} to be risky; of {fit['ended_oom']} that ran out of memory "
        f"{fit['ended_oom_and_oom']} are said not to fit. In {order['pairs']} pairs of layouts of one job "
        f"{_percent(order['right_pct'], 0)} stand in the measured order.",
    ]
    missed = [target for target in document.get("targets", []) if target.get("missed")]
    if missed:
        sentences += [
            "",
            f"{len(missed)} of the {len(document['targets'])} targets that `gpucalc validate` lists are missed.",
        ]
    shown = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in shown), "", *sentences]) + "\n"


def _percent(value: float | None, digits: int = 1, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.{digits}f} %"


def updated(text: str, accuracy_table: Callable[[], str] = accuracy) -> str:
    """A page with its screens and its table as they are now; a screen that only took another time is kept."""

    def renew(found: re.Match[str]) -> str:
        now = screen(found[1])
        return found[0] if same(found[1], now) else f"```console\n{now}```"

    text = CONSOLE.sub(renew, text)
    return ACCURACY.sub(lambda _: accuracy_table(), text)


def main() -> int:
    """Write or compare the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = updated(before)
        if before == after:
            continue
        stale += 1
        if not check:
            page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'out of date' if check else 'written'}")
    if not stale:
        print("all up to date")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
