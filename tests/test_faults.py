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
from gpucalc.database.reader import opened
from gpucalc.jobs.context import Context
from gpucalc.jobs.effects import other_values, without_effect
from gpucalc.jobs.training import predict, resolve
from gpucalc.layouts.label import label_cells

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


# --- labels and positions ----------------------------------------------------------------------------


def test_a_label_in_a_row_is_the_layout_that_explain_prices() -> None:
    head = "model,gpu,n_gpus,seq_len,global_batch,layout"
    job = "llama-3.1-70b,h100-sxm-80gb,64,4096,64"
    labels = ("tp8-pp4-dp2-mbs1-zero1-sp-none", "tp4-pp4-dp4-mbs1-zero1-sp-full")
    columns = "layout,pred_step_time_s,pred_peak_mem_gib,pred_error"
    done = gpucalc("eval", "-", "--columns", columns, stdin="\n".join([head, *(f"{job},{x}" for x in labels)]) + "\n")
    rows = [line.split(",") for line in done.out.splitlines()[1:]]
    cells = {"model": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 4096, "global_batch": 64}
    for row, label in zip(rows, labels, strict=True):
        exact = predict([resolve({**cells, **label_cells(label)}, Context(opened(())))])[0]
        assert row[0] == label
        assert float(row[1]) == pytest.approx(exact["pred_step_time_s"], rel=1e-12)
        assert float(row[2]) == pytest.approx(exact["pred_peak_mem_gib"], rel=1e-12)
        assert row[3] == ""


@pytest.mark.parametrize(
    ("extra", "error"), [("tp8", "layout tp4-pp2 contradicts tp=8"), ("tpp", "unknown token 'tpp'")]
)
def test_a_label_that_contradicts_its_row_or_is_none_is_told(extra: str, error: str) -> None:
    label, tp = ("tp4-pp2", "8") if extra == "tp8" else ("tpp", "")
    text = f"model,gpu,n_gpus,seq_len,tp,layout\nllama-3.1-8b,h100-sxm-80gb,8,4096,{tp},{label}\n"
    done = gpucalc("eval", "-", "--columns", "pred_error", stdin=text)
    assert error in done.out


@pytest.mark.parametrize(
    ("extra", "token"),
    [("offload_optimizer=yes", "offload-opt"), ("schedule=zb-2p", "zb2p"), ("recompute=selective", "sel")],
)
def test_a_cell_that_a_label_is_silent_on_is_taken(extra: str, token: str) -> None:
    job = (*JOB, "--layout", "pp2-dp4-mbs1-zero1", "--set", extra)
    done = gpucalc("fit", *job)
    assert done.status == 0
    assert token in done.out.splitlines()[0]
    refused = gpucalc("fit", *JOB, "--layout", "pp2-dp4-mbs1-zero1", "--zero", "2")
    assert refused.sentence() == "gpucalc: --zero 2 contradicts --layout on zero_stage"


@pytest.mark.parametrize("command", ["plan", "fit", "explain"])
def test_learned_positions_end_and_others_are_extended(command: str) -> None:
    job = ("--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "8192", "--global-batch", "32")
    layout = () if command == "plan" else ("--layout", "dp8-mbs1-zero1")
    longest = "seq_len is 8,192, but gpt2-1.5b has learned vectors for 1,024 positions; seq_len=1024 is the longest"
    assert gpucalc(command, "gpt2-1.5b", *job, *layout).sentence() == f"gpucalc: {longest}"
    extended = gpucalc(command, "llama-2-7b", *job, *layout)
    assert extended.status == 0
    assert "beyond the 4,096 positions of llama-2-7b" in extended.err


@pytest.mark.parametrize("label", ["dp8-mbs1-zero2-none", "dp4-cp2-mbs1-zero1", "tp2-pp*-mbs1", "tp*-zero3-mbs*"])
@pytest.mark.parametrize("command", ["plan", "scale"])
def test_searches_within_a_label_say_what_has_no_effect(command: str, label: str) -> None:
    job = (*JOB, "--layout", label.removeprefix("dp8-").removeprefix("dp4-") if command == "scale" else label)
    done = gpucalc(command, *job, "--set", "experts_per_token=2")
    assert done.status == 0
    assert "--set experts_per_token=2 changes nothing here" in done.err
