"""What people type goes wrong in words: options without effect, stated twice, empty lists, limits, memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli import gpucalc, shell

from gpucalc import cli
from gpucalc.cli.progress import PATIENCE, REPEAT, Progress
from gpucalc.core.columns import COLUMNS
from gpucalc.core.errors import DataError, ExitStatus
from gpucalc.core.files import read_limited, read_text, text_of
from gpucalc.jobs.effects import other_values, without_effect

JOB = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096", "--global-batch", "64")
LAID_OUT = (*JOB, "--layout", "dp8-mbs1-zero3")
SERVED = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--isl", "1000", "--osl", "100", "--layout", "tp1")
RUN = (*JOB[:4], "64", *JOB[5:7], "--global-batch", "1024", "--tokens", "1T", "--layout", "tp2-dp32-mbs1-zero1-sp")


# --- stated and without effect -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options", "told"),
    [
        ("plan", (*JOB, "--top", "1", "--set", "experts_per_token=2"), "--set experts_per_token=2 changes nothing"),
        ("explain", (*LAID_OUT, "--inter-node-gbps", "100"), "--inter-node-gbps 100 changes nothing here"),
        ("fit", (*LAID_OUT, "--set", "expert_imbalance=1.5"), "--set expert_imbalance=1.5 changes nothing here"),
        ("export", (*LAID_OUT, "--to", "torchtitan", "--nics", "4"), "--nics 4 changes nothing here"),
        ("plan", (*JOB, "--top", "1", "--profile", "fsdp", "--set", "framework=nemo"), "--profile fsdp decides it"),
        ("run", (*RUN, "--grid", "france", "--carbon-intensity", "10"), "--carbon-intensity decides it"),
        ("serve", (*SERVED, "--acceptance", "0.5"), "--acceptance 0.5 changes nothing here"),
    ],
)
def test_an_option_without_effect_is_told_in_one_sentence(command: str, options: tuple[str, ...], told: str) -> None:
    done = gpucalc(command, *options)
    assert done.status == 0
    lines = [line for line in done.err.splitlines() if "changes nothing" in line]
    assert len(lines) == 1
    assert told in lines[0]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("plan", (*JOB, "--top", "1", "--zero", "1", "--precision", "fp8", "--recompute", "full")),
        ("explain", (*LAID_OUT, "--gpus-per-node", "8", "--set", "dropout=yes")),
        ("explain", (*LAID_OUT, "--set", "mem_counter=allocated", "--profile", "fsdp")),
        ("serve", (*SERVED, "--draft", "3", "--acceptance", "0.5", "--set", "prefix_hit=0.5")),
        ("run", (*RUN, "--gpus-per-node", "4", "--recovery", "replica", "--repair", "3h", "--grid", "france")),
    ],
)
def test_options_with_an_effect_or_at_their_default_are_not_told(command: str, options: tuple[str, ...]) -> None:
    done = gpucalc(command, *options)
    assert done.status == 0
    assert "changes nothing" not in done.err


def test_the_rule_finds_what_is_idle_and_what_overrides_it() -> None:
    """A made-up question: a price that a flat fee overrides, and a size that only counts in a box."""

    def answer(rows: object) -> list[object]:
        found: list[object] = []
        for row in rows:  # type: ignore[attr-defined]
            cost = row.get("fee") or row.get("price", 1.0) * row.get("count", 1)
            found.append(None if row.get("count", 1) > 100 else (cost, row.get("size", 2) if row.get("box") else 0))
        return found

    asked = {"price": 3.0, "fee": 7.0, "size": 5, "count": 1}
    assert without_effect(asked, list(asked), answer, {}) == {"price": "fee", "size": "", "count": "fee"}
    assert without_effect({**asked, "box": True}, ["size"], answer, {}) == {}
    assert list(other_values(COLUMNS["zero_stage"], 3)) == [1, 0]
    assert None not in list(other_values(COLUMNS["schedule"], "1f1b"))


# --- stated twice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (("plan", *JOB, "--gpus", "16"), "--gpus"),
        (("serve", *SERVED, "--osl", "50"), "--osl"),
        (("comm", "all_reduce", "1GiB", "--gpu", "h100", "--gpus", "8", "-f", "csv", "--format", "json"), "--format"),
        (("hw", "list", "-f", "csv", "-f", "csv"), "--format"),
    ],
)
def test_an_option_stated_twice_is_told_with_the_value_taken(options: tuple[str, ...], flag: str) -> None:
    done = gpucalc(*options)
    assert done.status == 0
    assert f"note: {flag} is stated twice; the last one, {options[-1]}, is taken" in done.err.splitlines()


def test_settings_that_differ_contradict_and_repeated_options_do_not() -> None:
    done = gpucalc("plan", *JOB, "--set", "tp=2", "--set", "tp=4")
    assert (done.status, done.err.strip()) == (2, "gpucalc: --set tp=2 contradicts --set tp=4 on tp")
    assert gpucalc("plan", *JOB, "--top", "1", "--set", "tp=2", "--set", "pp=2").status == 0


# --- empty lists, limits, memory ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "of"),
    [
        (("render", "--gpu", " ", "--minutes", "90", "--machine-years", "3"), "GPU"),
        (("render", "--gpu", ",", "--minutes", "90", "--machine-years", "3"), "GPU"),
        (("hpc", "hpl", "--gpu", "h100", "--gpus", " ,"), "number of GPUs"),
        (("fit", *JOB, "--strategy", " "), "strategy"),
        (("validate", "--by", ","), "column"),
    ],
)
def test_a_list_that_holds_nothing_is_told(options: tuple[str, ...], of: str) -> None:
    done = gpucalc(*options)
    assert done.status == 2
    assert f"holds no {of}" in done.err
    assert "internal error" not in done.err


@pytest.mark.parametrize(
    "options",
    [
        ("plan", *JOB[:3], "--gpus", "1000000000", "--seq-len", "4096", "--global-batch", "1000000000"),
        ("explain", *JOB[:3], "--seq-len", "4096", "--global-batch", "2000000", "--layout", "dp2000000-mbs1"),
        ("hpc", "hpl", "--gpu", "h100", "--gpus", "8,1000001"),
        ("scale", *JOB[:3], "--gpus", "8,2000000", "--seq-len", "4096", "--global-batch", "64"),
        ("render", "--gpu", "rtx4090:1000001", "--minutes", "90", "--machine-years", "3"),
    ],
)
def test_one_limit_on_gpus_in_every_command(options: tuple[str, ...]) -> None:
    done = gpucalc(*options)
    assert done.status == 2
    assert "1,000,000" in done.err


def test_memory_that_runs_out_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def starved(arguments: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(cli, "_run", starved)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == ExitStatus.USAGE
    assert capsys.readouterr().err.startswith("gpucalc: this takes more memory than the process may have")


def test_no_warning_of_numpy_reaches_a_user() -> None:
    done = gpucalc("run", *RUN[:7], "--global-batch", "999999999968", *RUN[9:])
    assert done.status == 3
    assert len(done.err.splitlines()) == 1
    assert "the job makes no progress" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("schedule", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--state"),
        ("sweep",),
        ("eval",),
        ("eval", "--from", "megatron"),
        ("models", "import"),
        ("hw", "calibrate"),
    ],
)
def test_every_reader_refuses_a_huge_file_without_holding_it(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    file.touch()
    os.truncate(file, 20 << 30)
    done = shell(f"ulimit -v 3000000; $G {' '.join(command)} {file}")
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert "internal error" not in done.err


def test_a_reader_names_what_it_expected(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"12345")
    assert read_limited(file, 5, "a test") == b"12345"
    with pytest.raises(DataError, match=r"larger than 4 bytes; expected a test"):
        read_limited(file, 4, "a test")
    with pytest.raises(DataError, match="is a directory, expected a test"):
        read_limited(tmp_path, 4, "a test")
    with pytest.raises(DataError, match="cannot read"):
        read_text(tmp_path / "none", 4, "a test")
    for raw, fault in ((b"\xff\xfea", "UTF-16"), (b"a\0b", "binary"), (b"a\xff", r"not UTF-8 text \(byte 2\)")):
        with pytest.raises(DataError, match=fault):
            text_of(raw, "x")
    assert text_of(b"a\xff", "x", strict=False) == "a\ufffd"


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress("layouts", clock=lambda: now[0])
    for now[0] in (0.5, PATIENCE - 0.1):
        progress(1)
    assert capsys.readouterr().err == ""
    for now[0] in (PATIENCE + 0.5, PATIENCE + 1, PATIENCE + 0.5 + REPEAT):
        progress(1234)
    progress.end()
    assert capsys.readouterr().err.splitlines() == ["1,234 layouts after 2 s", "1,234 layouts after 12 s"]
