"""Completion scripts, tried in the shells themselves, and the help that groups commands by purpose."""

from __future__ import annotations

import importlib
import os
import pty
import re
import select
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest
from cli import gpucalc

from gpucalc.cli.app import Application
from gpucalc.cli.commands import REGISTERED


@cache
def script(shell: str) -> str:
    ran = gpucalc("completion", shell)
    assert ran.status == 0, ran.err
    assert ran.err == ""
    return ran.out


def needs(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


def bash(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last word of a line."""
    file = tmp_path / "gpucalc.bash"
    file.write_text(script("bash"), encoding="utf-8")
    code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _gpucalc; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [needs("bash"), "--norc", "-c", code, "bash", str(file), *words], capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpucalc pl", ["plan"]),
        ("gpucalc plan llama-3.1-7", ["llama-3.1-70b"]),
        ("gpucalc plan x --gpu h100-p", ["h100-pcie-80gb"]),
        ("gpucalc plan --gpu = h100-p", ["h100-pcie-80gb"]),
        ("gpucalc plan x --fabric ib-nd", ["ib-ndr"]),
        ("gpucalc plan x --profil", ["--profile"]),
        ("gpucalc plan x --profile nemo-2026-0", ["nemo-2026-05"]),
        ("gpucalc plan x -f js", ["json", "jsonl"]),
        ("gpucalc plan x --set seq", ["seq_len=", "sequence_parallel="]),
        ("gpucalc roofline ge", ["gemm"]),
        ("gpucalc roofline gemm --precision nv", ["nvfp4"]),
        ("gpucalc eval --kind g", ["gemm"]),
        ("gpucalc comm all_r", ["all_reduce"]),
        ("gpucalc hw show mi300", ["mi300x"]),
        ("gpucalc completion f", ["fish"]),
        ("gpucalc plan x --gpus 6", []),
    ],
)
def test_bash_completes(tmp_path: Path, line: str, offered: list[str]) -> None:
    found = bash(tmp_path, *line.split())
    if offered and offered[0].startswith("mi300"):
        assert set(offered) <= set(found)
    else:
        assert found == offered


def test_bash_completes_files_where_files_are_meant(tmp_path: Path) -> None:
    (tmp_path / "my runs.csv").touch()
    assert bash(tmp_path, "gpucalc", "eval", f"{tmp_path}/my") == [f"{tmp_path}/my runs.csv"]
    assert bash(tmp_path, "gpucalc", "plan", "x", "--report", f"{tmp_path}/my") == [f"{tmp_path}/my runs.csv"]


def test_fish_completes(tmp_path: Path) -> None:
    file = tmp_path / "gpucalc.fish"
    file.write_text(script("fish"), encoding="utf-8")

    def offered(line: str) -> list[str]:
        done = subprocess.run(
            [needs("fish"), "--no-config", "-c", f"source {file}; complete -C '{line}'"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    assert offered("gpucalc plan --gpu h100-p") == ["h100-pcie-80gb"]
    assert offered("gpucalc pla") == ["plan"]
    assert offered("gpucalc roofline gemm --precision nv") == ["nvfp4"]


def test_zsh_completes(tmp_path: Path) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "_gpucalc").write_text(script("zsh"), encoding="utf-8")
    assert "h100-pcie-80gb" in zsh(tmp_path, "gpucalc plan --gpu h100-p")
    assert "h100-pcie-80gb" in zsh(tmp_path, "gpucalc plan --gpu=h100-p")
    assert "llama-3.1-70b" in zsh(tmp_path, "gpucalc explain llama-3.1-7")


def zsh(folder: Path, line: str) -> str:
    """What a line has become on the screen of an interactive zsh after the tabulator key."""
    shell = needs("zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(HOME=str(folder), ZDOTDIR=str(folder), TERM="dumb", PS1="> ")
        os.execv(shell, [shell, "-f", "-i"])
    said = ""

    def until(wanted: str, seconds: float = 20.0) -> None:
        nonlocal said
        end = time.monotonic() + seconds
        while wanted not in said and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                said += os.read(terminal, 65536).decode(errors="replace").replace("\x07", "")

    try:
        setup = f"fpath=({folder}/functions $fpath); autoload -U compinit; compinit -u -D; print rea''dy\n"
        os.write(terminal, setup.encode())
        until("ready")
        said = ""
        os.write(terminal, f"{line}\t".encode())
        until("80gb" if "h100" in line else "70b", 10.0)
        return said
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_unknown_shell_is_told_the_nearest() -> None:
    assert "did you mean bash" in gpucalc("completion", "bsh").sentence()
    assert "bash, zsh, fish" in gpucalc("completion").sentence()


def test_help_groups_the_commands_by_purpose() -> None:
    text = gpucalc("--help").out
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles[:3] == ["Options", "Plan", "Understand"]
    plan = text.index("\nPlan:"), text.index("  plan "), text.index("\nUnderstand:")
    assert plan[0] < plan[1] < plan[2]
    assert "..." not in text.split("Plan:")[1], "a first sentence was cut off"


def test_every_command_has_a_group_and_a_sentence() -> None:
    for name in Application.modules:
        importlib.import_module(f"gpucalc.cli.{name}")
        one = REGISTERED[name]
        assert one.group, f"{name}: @command(group=…) is missing"
        assert one.help.endswith((".", "?")), one
    assert set(REGISTERED) == set(Application.modules)


def test_a_group_is_one_section_of_the_help() -> None:
    groups = [REGISTERED[name].group for name in Application.modules]
    assert [g for i, g in enumerate(groups) if i == 0 or g != groups[i - 1]] == list(dict.fromkeys(groups))
