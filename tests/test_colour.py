"""Colours stand on terminals only, and change nothing but the emphasis."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess

import pytest
from cli import COMMAND, JOB, gpucalc

from gpucalc.output import colour

QUESTION = ["plan", "llama-3.1-70b", *JOB, "--top", "3"]


def on_a_terminal(**environment: str) -> str:
    """What a person's terminal receives on standard output."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TERM"}}
    process = subprocess.Popen(
        [*COMMAND, *QUESTION], stdout=theirs, stderr=subprocess.DEVNULL, env={**clean, **environment}
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # how a terminal ends
        pass
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == 0
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_bold_heading_and_the_same_text() -> None:
    shown = on_a_terminal(TERM="xterm-256color")
    assert shown.startswith("\x1b[1m")
    assert re.sub(r"\x1b\[\d*m", "", shown) == gpucalc(*QUESTION).out


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_who_says_no_gets_none(environment: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(**environment)


def test_files_and_pipes_get_none() -> None:
    assert "\x1b" not in gpucalc(*QUESTION, env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"}).out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_cells_that_need_care_are_coloured_and_words_inside_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "id           fit\n-----------  -----\nrisky-room   fits\na            risky\nb            oom"
    shown = colour.dressed(text, _Terminal())
    assert shown.splitlines()[2] == "risky-room   fits"
    assert shown.endswith(
        f"a            {colour.YELLOW}risky{colour.PLAIN}\nb            {colour.RED}oom{colour.PLAIN}"
    )
    assert colour.dressed("a  risky", _Terminal(), header=False) == f"a  {colour.YELLOW}risky{colour.PLAIN}"
