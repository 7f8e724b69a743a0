"""Documents cannot lie: commands of the README are run, generated pages are generated again and compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import build_reference
import pytest
import update_readme
from cli import gpucalc

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


SCREENS = update_readme.CONSOLE.findall(README)
SHELL = [line for block in re.findall(r"^```sh\n(.*?)^```$", README, re.S | re.M) for line in block.splitlines()]


@pytest.mark.parametrize("folder", build_reference.DOCUMENTS)
def test_generated_documents_are_up_to_date(folder: str) -> None:
    assert not build_reference.stale(folder).keys(), "run python scripts/build_reference.py"


@pytest.mark.parametrize("block", SCREENS, ids=lambda block: block.splitlines()[0][:60])
def test_screens_of_the_readme_are_what_the_commands_print(block: str) -> None:
    assert update_readme.same(update_readme.screen(block), block), "run python scripts/update_readme.py"


def test_the_readme_opens_with_what_it_answers_and_a_screen() -> None:
    head = README.split("```console", 1)[0]
    assert "Which parallel layout fits, how fast is it, and why?" in head
    assert len(head.splitlines()) < 15
    assert SCREENS
    assert "80 % band" in SCREENS[0]


def test_the_accuracy_table_is_what_validate_prints() -> None:
    stands = update_readme.ACCURACY.search(README)
    assert stands
    assert stands[0].count("|\n") > 8
    assert stands[0] == update_readme.accuracy(), "run python scripts/update_readme.py"


def test_set_up_is_two_commands_and_the_tests_one() -> None:
    assert SHELL[0] == "python3 -m venv .venv"
    assert SHELL[1].startswith(".venv/bin/pip install")
    assert sum(line.endswith("-m pytest") for line in SHELL) == 1


@pytest.mark.parametrize(
    "line", [line for line in SHELL if line.startswith(".venv/bin/gpucalc") and "my-db" not in line]
)
def test_commands_of_the_readme_run(line: str) -> None:
    ran = gpucalc(*shlex.split(line)[1:])
    assert ran.status == 0, ran.err
    assert ran.out


def test_the_readmes_way_to_add_a_device_works(tmp_path: Path) -> None:
    lines = [line for line in SHELL if "my-db" in line]
    assert len(lines) == 3
    copy = shlex.split(lines[0].split("&&")[1])
    (tmp_path / "my-db" / "accelerators").mkdir(parents=True)
    (tmp_path / copy[2]).write_text((ROOT / copy[1]).read_text(encoding="utf-8"), encoding="utf-8")
    for line in lines[1:]:
        ran = gpucalc(*shlex.split(line)[1:], cwd=tmp_path)
        assert ran.status == 0, ran.err


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hardware_db/**/*.md")])


def anchors(page: Path) -> set[str]:
    """What a link into a page can name: its headings, as GitHub spells them, and its own marks."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_places_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target, mark in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not mark or mark in anchors(file), f"{page.name}: {target}#{mark}"


def test_the_glossary_explains_the_words_of_formulas_and_rows() -> None:
    from gpucalc.core.columns import INPUT

    terms = set(re.findall(r"`([a-z0-9_]+)`", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))
    layout = {"seq_len", "micro_batch", "global_batch", "zero_stage", "shard_group", "sequence_parallel"}
    layout |= {"tp", "pp", "dp", "cp", "ep", "etp", "vpp", "schedule", "recompute", "precision"}
    assert layout <= set(INPUT)
    assert layout <= terms
    from gpucalc.core.formula import FORMULAS

    arguments = {name for info in FORMULAS.values() for name in info.parameters}
    shared = {
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "tokens",
        "micro_batches",
        "ranks",
        "shards",
        "replicas",
        "peak",
    }
    assert shared <= arguments
    assert shared <= terms
    # Words of the glossary that stand under "in formulas" are names that formulas use.
    section = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## In formulas")[1].split("\n## ")[0]
    assert {word for word in re.findall(r"^\| `([a-z0-9_]+)`", section, re.M)} <= arguments


def test_every_exit_status_of_the_readme_is_one_of_the_program() -> None:
    from gpucalc.core.errors import ExitStatus

    stated = {int(number) for number in re.findall(r"^\| (\d+) \|", README, re.M)}
    assert stated == {int(status) for status in ExitStatus}
