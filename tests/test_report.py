"""The HTML report: well formed, everything inside, nothing from outside, everything escaped."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli import JOB, gpucalc

from gpucalc.database.reader import Database
from gpucalc.jobs.context import Context
from gpucalc.output.figures.layouts import pareto_front
from gpucalc.output.report import plan_report, report_html
from gpucalc.questions.plan import plan

CELLS = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 16, "seq_len": 8192, "global_batch": 64}
VOID = {"meta", "br", "img", "link", "input", "hr", "source"}
LOADING = {"script", "link", "iframe", "object", "embed", "img", "video", "audio", "source", "base", "form", "image"}


class Page(html.parser.HTMLParser):
    """A strict reader: tags must close in order; it keeps the texts, attributes and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> inside <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@cache
def page() -> tuple[str, Page]:
    context = Context(Database())
    result = plan(CELLS, context, top=3)
    front = pareto_front(CELLS, context, result.candidates)
    text = plan_report(result, CELLS, context, front=front, command="gpucalc")
    return text, Page(text)


def test_it_holds_question_ranking_pictures_explanation_assumptions_band_and_sources() -> None:
    text, read = page()
    best = plan(CELLS, Context(Database()), top=1).rows[0]
    for wanted in (
        "llama-3.1-8b on 16 × h100-sxm-80gb",
        best["layout"],
        "layouts fit, of",
        "metric/mfu",
        "flops / (step_time * n_gpus * peak)",
        "efficiencies of gemm kernels: measured",
        "four in five measured step times",
        "Memory Optimizations Toward Training Trillion Parameter Models",
    ):
        assert wanted in read.text, wanted
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Question",
        "Ranked layouts",
        "Pictures",
        "The best layout, term by term",
        "Assumptions",
        "Error band",
        "Sources",
    ]
    pytest.importorskip("matplotlib")
    pictures = [attributes for tag, attributes in read.tags if tag == "svg"]
    assert len(pictures) == 2
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)


def test_it_refers_to_nothing_outside() -> None:
    text, read = page()
    for tag, attributes in read.tags:
        assert tag not in LOADING, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name.split(":")[-1] in {"src", "href", "action", "data", "srcset", "poster"}:
                assert (value or "").startswith("#"), f"{tag} {name}={value}"
            assert "//" not in (value or ""), f"{tag} {name}={value}"
            for target in re.findall(r"url\((.*?)\)", value or ""):
                assert target.startswith("#"), target
    style = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    assert "@import" not in style
    assert not re.search(r"url\((?!['\"]?#)", style)
    assert "<!DOCTYPE svg" not in text


def test_names_are_given_once_and_used_where_given() -> None:
    text, read = page()
    given = [attributes["id"] for _, attributes in read.tags if attributes.get("id")]
    assert len(given) == len(set(given))
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    assert used <= set(given)


def test_everything_is_escaped() -> None:
    database = Database()
    result = plan(CELLS, Context(database), top=1)
    evil = '<script>alert("x")</script><!--'
    result.rows[0]["layout"] = evil
    result.job["model"] = evil
    result.notes.append(evil)
    result.rejected[evil] = 3
    text = report_html(result, {"model": evil, evil: evil}, None, {evil: ""}, command=evil, provenance={evil: evil})
    read = Page(text)
    assert "<script" not in text
    assert "<!--" not in text
    assert evil in read.text


def test_a_plan_of_which_nothing_fits_still_has_its_report(tmp_path: Path) -> None:
    file = tmp_path / "none.html"
    ran = gpucalc("plan", "llama-3.1-405b", *JOB[:2], "--gpus", "8", *JOB[4:], "--report", str(file))
    assert ran.status == 3
    read = Page(file.read_text(encoding="utf-8"))
    assert "No layout fits." in read.text
    assert "GiB more than" in read.text


def test_the_command_writes_it_beside_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    ran = gpucalc("plan", "llama-3.1-8b", *JOB, "--top", "2", "-f", "csv", "--report", str(file))
    assert ran.status == 0, ran.err
    assert ran.out.startswith("layout,")
    assert "gpucalc plan llama-3.1-8b --gpu h100-sxm-80gb" in Page(file.read_text(encoding="utf-8")).text
    again = gpucalc("plan", "llama-3.1-8b", *JOB, "--top", "2", "-f", "csv", "--report", str(file))
    assert again.status == 0, "a report may be written again"


def test_no_other_file_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<html>my page</html>", encoding="utf-8")
    ran = gpucalc("plan", "llama-3.1-8b", *JOB, "--report", str(mine))
    assert "is not a report of gpucalc" in ran.sentence()
    assert mine.read_text(encoding="utf-8") == "<html>my page</html>"
    assert "ends in .html" in gpucalc("plan", "llama-3.1-8b", *JOB, "--report", str(tmp_path / "r.txt")).sentence()
    assert "does not exist" in gpucalc("plan", "llama-3.1-8b", *JOB, "--report", str(tmp_path / "a/r.html")).sentence()
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in gpucalc("plan", "llama-3.1-8b", *JOB, "--report", str(tmp_path / "folder.html")).sentence()


def test_without_matplotlib_it_has_no_pictures_and_says_so(tmp_path: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from gpucalc.cli import main; main()"
    arguments = ["plan", "llama-3.1-8b", *JOB, "--top", "1", "-f", "csv", "--report", "r.html"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<svg" not in text
    assert "pip install &#x27;gpucalc[plot]&#x27;" in text


def test_a_browser_opens_it_without_the_network(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    file = tmp_path / "report.html"
    file.write_text(page()[0], encoding="utf-8")
    done = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stdout.count("<svg") == page()[0].count("<svg")
    assert "The best layout, term by term" in done.stdout
