"""The command line as a whole: help, mistakes, statuses, closed streams."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from cli import COMMAND, JOB, gpucalc, shell

from gpucalc import __version__

COMMANDS = ("plan", "explain", "eval", "comm", "roofline", "hw", "models")


def test_version_and_help() -> None:
    assert gpucalc("--version").out == f"gpucalc {__version__}\n"
    ran = gpucalc("--help")
    assert ran.status == 0
    listed = re.findall(r"^  (\w+) ", ran.out[ran.out.index("\nPlan:") :], re.M)
    assert set(COMMANDS) <= set(listed)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    for flag in ("--help", "-h"):
        ran = gpucalc(command, flag)
        assert ran.status == 0
        assert f"gpucalc {command}" in ran.out
        assert not ran.err


def test_no_command_is_help_on_stderr() -> None:
    ran = gpucalc()
    assert ran.status == 2
    assert ran.out == ""
    assert "\nUnderstand:\n" in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pln", "did you mean plan"),
        ("zzzz", "no such command 'zzzz'"),
        ("hw lst", "did you mean list?"),
        ("plan --gpsu 8", "did you mean --gpu or --gpus?"),
        ("plan llama-3.1-8b --gpu", "requires an argument"),
        ("plan", "missing: a MODEL such as"),
        ("plan llama-3.1-8b", "missing: --gpu h100-sxm-80gb, --gpus 64, --seq-len 8192, --global-batch 128"),
        ("plan a b", "unexpected extra argument(s) (b)"),
        ("comm", "missing: an operation and a size"),
        ("comm all_rduce 1GiB --gpu h100-sxm-80gb --gpus 8", "did you mean all_reduce"),
        ("comm all_reduce 1 --gpu h100-sxm-80gb --gpus 8", "has no unit"),
        ("comm all_reduce 1Gb --gpu h100-sxm-80gb --gpus 8", "unknown unit 'Gb'"),
        ("comm all_reduce 0B --gpu h100-sxm-80gb --gpus 8", "must be positive"),
        ("comm all_reduce 1e30GB --gpu h100-sxm-80gb --gpus 8", "too large"),
        ("comm all_reduce 1GiB --gpu h100-smx --gpus 8", "did you mean h100"),
        ("comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 0", "--gpus is '0', expected 1 to 1,000,000"),
        ("comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 8 --fabric ib-ndx", "did you mean ib-"),
        ("roofline gemm 8192 8192", "missing: three sizes"),
        ("roofline gemm 8192 8192 -1 --gpu h100-sxm-80gb", "-1"),
        ("roofline gemm 8 8 2.5 --gpu h100-sxm-80gb", "K is '2.5', expected a whole number"),
        ("roofline gemm 8 8 8 --gpu v100-sxm2-32gb --precision fp8", "does not support fp8"),
        ("roofline gemm 8 8 8 --gpu h100-sxm-80gb --precision bf61", "--precision is 'bf61'; did you mean bf16?"),
        ("roofline attention --seq-len 8 --heads 5 --kv-heads 2 --gpu h100-sxm-80gb", "not a multiple"),
        ("roofline kernel --flops 1GB --bytes 1GB --gpu h100-sxm-80gb", "expected FLOP"),
        ("hw show mi300", "did you mean mi300a or mi300x"),
        ("hw show", "missing: a name"),
        ("hw list device", "unknown kind 'device'"),
        ("hw show mi300x -f yaml", "--format is 'yaml'"),
        ("hw list --columns key,arhc", "did you mean arch"),
        ("hw list --db /nowhere", "/nowhere"),
        ("models show llama-3.1-71b", "did you mean llama-3.1-70b"),
        ("models import /nowhere.json", "/nowhere.json does not exist"),
        ("models show", "missing: a model"),
        ("eval --kind gem x.csv", "did you mean gemm?"),
        ("eval --kind gemm --fabric ib-ndr x.csv", "--fabric has no meaning with --kind gemm"),
        ("eval nothing.csv", "No such file"),
        ("eval /tmp", "is a directory"),
        ("eval -f xml nothing.csv", "--format is 'xml'"),
    ],
)
def test_a_mistake_is_one_sentence(line: str, said: str) -> None:
    assert said in gpucalc(*line.split()).sentence()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("--gpus 0", "--gpus is '0'"),
        ("--gpus -8", "--gpus is '-8'"),
        ("--gpus 1e99", "too large"),
        ("--gpus 2.5", "expected a whole number"),
        ("--gpus nan", "expected a number"),
        ("--top 0", "--top is '0'"),
        ("--zero 4", "--zero is '4', expected 0 to 3"),
        ("--precision int3", "--precision is 'int3'"),
        ("--schedule 1f2b", "did you mean 1f1b?"),
        ("--recompute sometimes", "--recompute is 'sometimes'"),
        ("--objective speed", "--objective is 'speed'"),
        ("--format exel", "--format is 'exel'"),
        ("--layout tp8-qq2", "unknown token 'qq2'"),
        ("--set tp", "is not key=value"),
        ("--set tpp=8", "unknown column 'tpp'"),
        ("--set tp=0", "tp is '0'"),
        ("--gpus 64 --set n_gpus=8", "--gpus 64 contradicts --set n_gpus=8"),
        ("--layout tp8 --set tp=4", "--set tp=4 contradicts --layout on tp"),
        ("--inter-node-gbps 0", "--inter-node-gbps is '0'"),
        ("--inter-node-gbps inf", "expected a number"),
    ],
)
def test_bad_options_of_plan(extra: str, said: str) -> None:
    assert said in gpucalc("plan", "llama-3.1-8b", *JOB, *extra.split()).sentence()


def test_all_violations_at_once() -> None:
    said = gpucalc("plan", "llama-3.1-8b", *JOB, "--zero", "7", "--precision", "x", "--set", "pp=0").sentence()
    assert all(word in said for word in ("--zero", "--precision", "pp is '0'"))


def test_unprintable_and_foreign_arguments() -> None:
    assert "unknown model" in gpucalc("models", "show", "模型\n\x1b[2J").sentence()
    done = subprocess.run([*COMMAND, "models", "show", b"\xff\xfe"], capture_output=True)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


# --- streams -----------------------------------------------------------------------------------------


def test_a_closed_pipe_is_silent() -> None:
    ran = shell(
        "set -o pipefail; $G hw list -f csv | true; $G hw list -f json | head -c 1 >/dev/null; $G --help | true"
    )
    assert (ran.status, ran.err) == (0, "")


def test_closed_standard_streams() -> None:
    ran = shell("$G hw list >&-")
    assert ran.status == 2
    assert ran.err == "gpucalc: standard output is closed; nothing can be written\n"
    ran = shell("$G eval <&-")
    assert ran.status == 2
    assert ran.err == "gpucalc: standard input is closed; name a file\n"
    assert shell("$G hw show mi300x 2>&- | head -1").out.startswith("key")
    assert shell("$G hw show mi300x <&- 2>&- | head -1").out.startswith("key")
    assert shell("$G hw show nothing 2>&-").status == 2
    assert shell("$G hw list >&- 2>&- <&-").status == 2
    assert shell("$G hw show nothing 2> >(true); exit $?").status == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_a_sentence() -> None:
    ran = shell("$G hw list > /dev/full")
    assert ran.status == 2
    assert ran.err == "gpucalc: cannot write: No space left on device\n"


def test_interrupted(tmp_path: Path) -> None:
    fifo = tmp_path / "rows"
    os.mkfifo(fifo)
    process = subprocess.Popen([*COMMAND, "eval", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with fifo.open("w"):  # opens when the process has opened it too
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_output_does_not_depend_on_locale_or_terminal() -> None:
    plain = gpucalc("hw", "list").out
    for change in (
        {"LC_ALL": "C"},
        {"TERM": "dumb", "COLUMNS": "40"},
        {"PYTHONIOENCODING": "latin-1"},
        {"NO_COLOR": "1"},
    ):
        assert gpucalc("hw", "list", env={**os.environ, **change}).out == plain


def test_debug_shows_the_traceback() -> None:
    ran = gpucalc("hw", "show", "nothing", "--debug")
    assert "Traceback" in ran.err
    assert "UsageError" in ran.err


def test_an_internal_error_is_a_sentence_with_status_1() -> None:
    code = (
        "import sys; sys.argv = ['gpucalc', 'hw', 'list']\n"
        "import gpucalc.database.reader\n"
        "gpucalc.database.reader.Database = lambda dirs: 1 / 0\n"
        "from gpucalc.cli import main; main()\n"
    )
    done = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("gpucalc: internal error: ZeroDivisionError")
    assert done.stderr.count("\n") == 1
