"""Documents cannot lie: commands of the README are run, generated pages are generated again and compared."""

from __future__ import annotations

import re
from pathlib import Path

import build_reference
import pytest
import update_documents
from update_documents import Block

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


SCREENS = update_documents.blocks("console")


@pytest.mark.parametrize("folder", build_reference.DOCUMENTS)
def test_generated_documents_are_up_to_date(folder: str) -> None:
    assert not build_reference.stale(folder).keys(), "run python scripts/build_reference.py"


@pytest.mark.parametrize("block", SCREENS, ids=str)
def test_screens_are_what_the_commands_print(block: Block) -> None:
    assert update_documents.same(update_documents.screen(block.text), block.text), (
        "run python scripts/update_documents.py"
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", update_documents.blocks("sh"), ids=str)
def test_commands_of_the_pages_run(block: Block, tmp_path: Path) -> None:
    """A folder beside `hardware_db`, in which a block may leave files, as a reader at the root of the repository."""
    (tmp_path / "hardware_db").symlink_to(ROOT / "hardware_db")
    done = update_documents.bash(f"set -euo pipefail\n{block.text}", tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout


@pytest.mark.parametrize("block", update_documents.blocks("toml"), ids=str)
def test_toml_of_the_pages_is_a_sweep(block: Block, tmp_path: Path) -> None:
    from gpucalc.sweep.spec import read_spec

    (tmp_path / "space.toml").write_text(block.text, encoding="utf-8")
    assert read_spec(str(tmp_path / "space.toml")).count > 1


def test_every_block_of_the_pages_is_run_or_says_why_not() -> None:
    ways = {"console", "sh", "toml", "text"}
    for block in update_documents.blocks():
        run = block.language in ways or (block.language == "python" and block.page == "docs/python.md")
        assert run or block.excuse, f"{block}: nothing runs a block of {block.language or 'no language'}"
        command = re.search(r"^(\$ |gpucalc )", block.text, re.M)
        assert block.language != "text" or not command, f"{block}: a command that nothing runs"


def test_the_readme_is_one_page_that_opens_with_what_it_answers_and_a_screen() -> None:
    assert len(README.splitlines()) <= 150
    head = README.split("```console", 1)[0]
    assert "Which parallel layout fits, how fast is it, and why?" in head
    assert len(head.splitlines()) < 15
    assert SCREENS[0].page == "README.md"
    assert "80 % band" in SCREENS[0].text


def test_the_accuracy_table_is_what_validate_prints() -> None:
    stands = update_documents.ACCURACY.search(README)
    assert stands
    assert stands[0].count("|\n") > 8
    assert stands[0] == update_documents.accuracy(), "run python scripts/update_documents.py"


def test_the_job_and_the_tests_are_two_commands_each() -> None:
    job, tests = (b.text.splitlines() for b in update_documents.blocks() if b.page == "README.md" and b.excuse)
    assert len(job) == len(tests) == 2
    assert all(lines[0].startswith("python3 -m venv .venv && .venv/bin/pip install ") for lines in (job, tests))
    assert job[1].startswith(".venv/bin/gpucalc plan ")
    assert tests[1] == ".venv/bin/python -m pytest"


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


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_paths_that_the_pages_for_developers_name_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:gpucalc|hardware_db|tests|scripts|docs|\.ci)/[^`:\s]*)", text)
    assert len(paths) > 4
    for path in paths:
        if not re.search("NAME|…", path):  # a file that is to be written
            assert list(ROOT.glob(path.rstrip("/"))), f"{name}: {path}"


def test_the_tree_names_every_package_in_the_order_of_the_contracts() -> None:
    import tomllib

    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (\d+) \| `gpucalc/(\w+)/` \|", text, re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers = enumerate(contract["layers"], start=1)
    wanted = {(str(number), package) for number, layer in layers for package in re.findall(r"\w+", layer)}
    assert set(named) == wanted


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


def test_every_exit_status_of_the_reference_is_one_of_the_program() -> None:
    from gpucalc.core.errors import ExitStatus

    page = (ROOT / "docs" / "cli" / "README.md").read_text(encoding="utf-8")
    stated = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.M)}
    assert stated == {int(status) for status in ExitStatus}
