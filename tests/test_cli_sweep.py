"""`gpucalc sweep` through real processes: interrupted, killed, on a full disk, on a Dask cluster."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli import COMMAND, Ran, gpucalc, shell

SPACE = """
keep = 2
[product]
model = ["llama-3.1-8b", "mixtral-8x7b"]
n_gpus = [16, 32]
seq_len = [4096, 8192]
global_batch = [256, 512]
[[case]]
gpu = "h100-sxm-80gb"
[[case]]
gpu = "a100-sxm-80gb"
precision = ["bf16", "fp8"]
[layout]
tp = [2, 4]
micro_batch = [1, 2]
zero_stage = [1]
cp = [1]
"""
CELLS = 48
SMALL = """
[product]
model = "llama-3.1-8b"
gpu = "h100-sxm-80gb"
n_gpus = [8, 16]
seq_len = 4096
global_batch = 64
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed run writes."""
    path = tmp_path_factory.mktemp("whole") / "space.toml"
    path.write_text(SPACE)
    ran = gpucalc("sweep", str(path), "--jobs", "1")
    assert ran.status == 0
    return ran.out


@pytest.fixture
def space(tmp_path: Path) -> str:
    (tmp_path / "space.toml").write_text(SPACE)
    return str(tmp_path / "space.toml")


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


def cells(path: Path) -> int:
    """Cells whose rows stand in a file."""
    return len({line.split(b",")[0] for line in path.read_bytes().splitlines()[1:]}) if path.exists() else 0


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, "sweep", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(path: Path, least: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while cells(path) < least:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_are_a_table_that_eval_reads(whole: str) -> None:
    rows = list(csv.DictReader(io.StringIO(whole)))
    assert sorted({int(row["cell"]) for row in rows}) == list(range(1, CELLS + 1))
    illegal = [row for row in rows if "does not support fp8" in row["pred_error"]]
    assert len(illegal) == CELLS // 3
    fitting = [row for row in rows if row["rank"]]
    assert len(fitting) + sum(1 for row in rows if row["pred_error"]) == len(rows)
    assert {row["rank"] for row in fitting} == {"1", "2"}
    dense = [row for row in fitting if row["model"] == "llama-3.1-8b"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(dense)
    again = list(csv.DictReader(io.StringIO(gpucalc("eval", "-", stdin=text.getvalue()).out)))
    assert [row["pred_step_time_s"] for row in again] == [row["pred_step_time_s"] for row in dense]


def test_all_cores_write_the_same_file(space: str, whole: str, tmp_path: Path) -> None:
    ran = gpucalc("sweep", space, "-o", str(tmp_path / "out.csv"), "--jobs", "3")
    assert (ran.status, ran.out) == (0, "")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == whole
    assert f"rows of {CELLS} cells ({CELLS // 3} illegal; pred_error says why)" in ran.err
    assert re.search(r"layouts costed in .* layouts/s", ran.err)
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "space.toml"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_keeps_what_is_done(space: str, whole: str, tmp_path: Path, jobs: str) -> None:
    path = tmp_path / "out.csv"
    with running(space, "-o", str(path), "--jobs", jobs) as process:
        wait_for(path, 5, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    kept = re.fullmatch(
        r"gpucalc: interrupted; (\d+) of 48 cells are kept; the same command goes on with the rest\n", said
    )
    assert kept, said
    assert int(kept[1]) >= 4
    ran = gpucalc("sweep", space, "-o", str(path))
    assert ran.status == 0
    assert f"going on with {path}: {kept[1]} of 48 cells are done" in ran.err
    assert path.read_text(encoding="utf-8") == whole


def test_a_killed_run_goes_on_again_and_again(space: str, whole: str, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    for least in (4, 16, 32):
        with running(space, "-o", str(path), "--jobs", "2") as process:
            wait_for(path, least, process)
            process.send_signal(signal.SIGKILL)
        assert path.with_name("out.csv.journal").exists()
    assert gpucalc("sweep", space, "-o", str(path), "--jobs", "2").status == 0
    assert path.read_text(encoding="utf-8") == whole


def test_a_file_size_limit_stands_for_a_full_disk(space: str, whole: str, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    ran = shell(f"ulimit -f 8; $G sweep {space} -o {path} --jobs 2")
    said = ran.sentence(2)
    assert "cannot write" in said
    assert "make room" in said
    assert re.search(r"\d+ of 48 cells are kept; the same command goes on", said)
    assert path.read_text(encoding="utf-8").count("\n") > 3
    assert whole.startswith(path.read_text(encoding="utf-8"))
    assert gpucalc("sweep", space, "-o", str(path)).status == 0
    assert path.read_text(encoding="utf-8") == whole


def test_large_cells_pass_through_files_in_order(tmp_path: Path, small: str) -> None:
    Path(small).write_text('keep = "all"\n' + SMALL)
    one = gpucalc("sweep", small, "--jobs", "1")
    assert one.out.count("\n") > 10_000
    ran = gpucalc("sweep", small, "-o", str(tmp_path / "out.csv"), "--jobs", "2")
    assert ran.status == 0
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == one.out
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "small.toml"]


def test_parquet(small: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert gpucalc("sweep", small, "-o", str(tmp_path / "out.parquet")).status == 0
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    expected = list(csv.DictReader(io.StringIO(gpucalc("sweep", small).out)))
    assert [(r["cell"], r["layout"], r["pred_step_time_s"], r["tp"]) for r in rows] == [
        (int(r["cell"]), r["layout"], float(r["pred_step_time_s"]), int(r["tp"])) for r in expected
    ]
    assert sorted(os.listdir(tmp_path)) == ["out.parquet", "small.toml"]


def test_a_closed_pipe_is_silent(space: str) -> None:
    ran = shell(f"$G sweep {space} --jobs 2 | head -2 | wc -l")
    assert (ran.status, ran.out.strip(), ran.err) == (0, "2", "")


def test_progress_is_shown_in_a_terminal_only(space: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "sweep", space, "-o", str(tmp_path / "out.csv"), "--jobs", "1"]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                piece = terminal.read(4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
    assert process.wait() == 0
    assert re.search(rb"\r\x1b\[K\d+ of 48 cells \(\d+\.\d %\), [\d,]+ layouts/s, \d+:\d\d:\d\d left", shown)
    last = shown.rsplit(b"\x1b[K", 1)[1]
    assert b"rows of 48 cells" in last


def refused(*arguments: str) -> str:
    return gpucalc("sweep", *arguments).sentence(2)


def test_what_is_refused(small: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.csv")
    assert "No such file" in refused(str(tmp_path / "none.toml"))
    assert "ends in .csv or .parquet" in refused(small, "-o", "out.xlsx")
    assert "does not exist" in refused(small, "-o", str(tmp_path / "none" / "out.csv"))
    assert "--jobs is '0'" in refused(small, "--jobs", "0")
    assert "no meaning with --scheduler" in refused(small, "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1")
    Path(out).write_text("mine\n")
    assert "out.csv exists, and no journal" in refused(small, "-o", out)
    assert Path(out).read_text() == "mine\n"
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in refused(small, "-o", str(tmp_path / "folder.csv"))


def test_a_wrong_spec_writes_nothing(small: str, tmp_path: Path) -> None:
    Path(small).write_text(SMALL.replace("n_gpus", "n_gpu").replace("[8, 16]", "[]"))
    said = refused(small, "-o", str(tmp_path / "out.csv"))
    assert "small.toml: [product] unknown key 'n_gpu'; did you mean n_gpus" in said
    Path(small).write_text(SMALL.replace("llama-3.1-8b", "llama-3.1-8c"))
    assert "llama-3.1-8b" in refused(small, "-o", str(tmp_path / "out.csv"))
    assert os.listdir(tmp_path) == ["small.toml"]


def test_a_typing_slip_in_a_list_is_told_before_the_sweep(small: str) -> None:
    Path(small).write_text(SMALL.replace('"llama-3.1-8b"', '["llama-3.1-8b", "llama-3.1-8c"]'))
    ran = gpucalc("sweep", small)
    assert ran.status == 0
    assert "llama-3.1-8c" in ran.err.splitlines()[0]
    assert "its cells will have a pred_error" in ran.err
    assert [bool(row["pred_error"]) for row in csv.DictReader(io.StringIO(ran.out))] == [False, False, True, True]


def test_10_to_the_12_cells_need_a_word(small: str) -> None:
    hundred = list(range(1, 101))
    lists = "".join(
        f"{name} = {hundred}\n" for name in ("micro_batch", "tp", "pp", "seq_len", "global_batch", "n_gpus")
    )
    Path(small).write_text(f'[product]\nmodel = "llama-3.1-8b"\ngpu = "h100-sxm-80gb"\n{lists}')
    said = refused(small)
    assert "1,000,000,000,000 cells" in said
    assert "--yes" in said
    assert "--limit" in said
    ran = gpucalc("sweep", small, "--limit", "3", "--jobs", "1")
    assert ran.status == 0
    assert [row["cell"] for row in csv.DictReader(io.StringIO(ran.out))] == ["1", "2", "3"]


def test_a_changed_spec_or_limit_does_not_go_on(space: str, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with running(space, "-o", str(path), "--jobs", "1") as process:
        wait_for(path, 2, process)
    written = path.read_bytes()
    assert "begun with another --limit" in refused(space, "-o", str(path), "--limit", "5")
    Path(space).write_text(SPACE.replace("512", "1024"))
    assert "another spec, or the spec has changed" in refused(space, "-o", str(path))
    assert path.read_bytes() == written


def test_help_and_a_refusal_load_no_numpy(small: str) -> None:
    code = (
        "import sys\nfrom gpucalc.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted({'numpy', 'pandas', 'distributed'} & set(sys.modules)))"
    )
    for arguments in (["--help"], [small, "-o", "out.xlsx"]):
        done = subprocess.run([sys.executable, "-c", code, "sweep", *arguments], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr


# --- Dask --------------------------------------------------------------------------------------------

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers of one thread each, as processes on this machine."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    dask = [sys.executable, "-m", "dask"]
    told = tmp_path / "scheduler.json"
    where = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]
    processes = [subprocess.Popen([*dask, "scheduler", *where], **quiet)]
    try:
        deadline = time.monotonic() + 60
        address = ""
        while not address:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            try:
                address = json.loads(told.read_text())["address"]
            except (OSError, ValueError):
                continue
        alone = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        processes += [subprocess.Popen([*dask, "worker", address, *alone], **quiet) for _ in range(2)]
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@needs_dask
@pytest.mark.slow
def test_a_dask_cluster_loses_a_worker_and_no_cell(
    space: str, whole: str, tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, processes = cluster
    path = tmp_path / "out.csv"
    with running(space, "-o", str(path), "--scheduler", address) as process:
        wait_for(path, 8, process)
        processes[1].kill()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert path.read_text(encoding="utf-8") == whole
    assert "1 worker was lost; its cells were done by others" in said


@needs_dask
@pytest.mark.slow
def test_an_interrupted_sweep_on_dask_goes_on_at_home(
    space: str, whole: str, tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, _ = cluster
    path = tmp_path / "out.csv"
    with running(space, "-o", str(path), "--scheduler", address) as process:
        wait_for(path, 5, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "cells are kept; the same command goes on" in said
    assert "Traceback" not in said
    assert gpucalc("sweep", space, "-o", str(path)).status == 0
    assert path.read_text(encoding="utf-8") == whole


@needs_dask
@pytest.mark.slow
def test_a_scheduler_that_goes_away_stops_the_sweep_and_keeps_its_cells(
    space: str, tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, processes = cluster
    path = tmp_path / "out.csv"
    with running(space, "-o", str(path), "--scheduler", address) as process:
        wait_for(path, 5, process)
        processes[0].kill()
        _, said = process.communicate(timeout=100)
    ran = Ran(process.returncode, "", said)
    assert "the Dask scheduler" in ran.sentence(2)
    assert "cells are kept; the same command goes on" in said


@needs_dask
@pytest.mark.slow
def test_no_scheduler_there(small: str, tmp_path: Path) -> None:
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:9'" in refused(small, "--scheduler", "tcp://127.0.0.1:9")
    assert "expected an address such as tcp://host:8786" in refused(small, "--scheduler", "nowhere")
    assert os.listdir(tmp_path) == ["small.toml"]


@pytest.mark.slow
def test_the_memory_of_a_sweep_does_not_grow_with_its_layouts(tmp_path: Path) -> None:
    """Every layout is costed, for there is no bound on memory: two million, then nearly ten times as many."""
    peaks, costed = [], []
    for n_gpus in ("[384]", "[384, 768, 1536]"):
        path = tmp_path / "large.toml"
        path.write_text(
            f'objective = "memory"\n[product]\nmodel = "deepseek-v3"\ngpu = "h800-sxm-80gb"\nn_gpus = {n_gpus}\n'
            "seq_len = 32768\nglobal_batch = 18432\n[layout]\nep = [1, 8]\nmicro_batch = [1, 2, 4]\n"
        )
        code = (
            "import resource, subprocess, sys\n"
            "print(subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True).stderr)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        command = [sys.executable, "-c", code, *COMMAND, "sweep", str(path), "--jobs", "1"]
        *said, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        peaks.append(int(peak))
        costed.append(int(re.search(r"([\d,]+) layouts costed", "\n".join(said))[1].replace(",", "")))  # type: ignore[index]
    assert costed[1] > 2.5 * costed[0] > 1_000_000
    assert peaks[1] < 1.15 * peaks[0], (peaks, costed)
