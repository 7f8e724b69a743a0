"""What `docs/architecture.md` promises of additions: each is made here, through the public tables, and seen at work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

LAUNCHER = '''
"""A launcher that people may write: one module of the folder."""

from gpucalc.launch.job import LaunchCommand
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target


def problems(launch):
    return [f"the bare launcher has no pipeline (pp={launch['pp']})"] if launch["pp"] > 1 else []


def start(launch):
    command = LaunchCommand("", [["train.py", "--replicas", str(launch["dp"])]])
    command.text = TORCHRUN.script(launch, command)
    return command


TARGET = Target(("bare-torch", "bare"), problems, start, "megatron-core", TORCHRUN)
'''
READER = '''
"""A reader that people may write: one module of the folder."""

from gpucalc.launch.target import Source


def read(text, given):
    return {"tp": int(text), "framework": "megatron-core", **given}, ["read by the reader of a test"]


SOURCE = Source(("plain-number",), read, "a number")
'''


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher and a reader in a folder that joins those of the package."""
    import gpucalc.launch.read
    import gpucalc.launch.write

    for package, file, text in (
        (gpucalc.launch.write, "bare_torch", LAUNCHER),
        (gpucalc.launch.read, "plain_number", READER),
    ):
        folder = tmp_path / file
        folder.mkdir()
        (folder / f"{file}.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{file}", raising=False)
        monkeypatch.setattr(package, file, None, raising=False)


def run(*words: str) -> tuple[int, str]:
    from gpucalc.cli.app import app

    ran = CliRunner().invoke(app, list(words))
    return ran.exit_code, ran.output if ran.exception is None else f"{ran.output}{ran.exception}"


JOB = ("export", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "4096", "--global-batch", "64")


@pytest.mark.usefixtures("launcher")
def test_a_launcher_is_one_module() -> None:
    layout = ("--layout", "dp16-mbs1-zero1-full")
    status, text = run(*JOB, *layout, "--to", "bare-torch")
    assert status == 0, text
    assert "torchrun --nnodes=2 --nproc-per-node=8" in text
    assert "train.py --replicas 16" in text or "train.py" in text
    for name in ("bare", "Bare_Torch"):
        assert run(*JOB, *layout, "--to", name) == (status, text)
    # It stands inside the scripts of every scheduler without a word about it there.
    assert "#SBATCH --nodes=2" in run(*JOB, *layout, "--to", "sbatch", "--launcher", "bare-torch")[1]
    assert "kind: JobSet" in run(*JOB, *layout, "--to", "k8s", "--kind", "jobset", "--launcher", "bare-torch")[1]
    assert "no pipeline (pp=2)" in run(*JOB, "--layout", "pp2-dp8-mbs1-zero1-full", "--to", "bare-torch")[1]
    assert "did you mean bare-torch" in run(*JOB, *layout, "--to", "bare-torhc")[1]


@pytest.mark.usefixtures("launcher")
def test_a_launcher_stands_in_completion() -> None:
    script = run("completion", "bash")[1]
    for command, option, name in (
        ("export", "--to", "bare-torch"),
        ("export", "--launcher", "bare-torch"),
        ("eval", "--from", "plain-number"),
    ):
        offered = re.search(rf"'{command}\|{option}'.*\n +names=\((.*)\)", script)
        assert offered is not None, (command, option)
        assert name in offered[1].split()
    assert run("export")[1].count("bare-torch") == 1


def test_a_launcher_stands_in_help(tmp_path: Path) -> None:
    """Help is made when the program starts, so the folder has to be there before."""
    (tmp_path / "bare_torch.py").write_text(LAUNCHER, encoding="utf-8")
    code = (
        "import sys, gpucalc.launch.write as write\n"
        f"write.__path__.append({str(tmp_path)!r})\n"
        "sys.argv = ['gpucalc', 'export', '--help']\n"
        "from gpucalc.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "bare-torch" in done.stdout, done.stderr


@pytest.mark.usefixtures("launcher")
def test_a_reader_is_one_module() -> None:
    from gpucalc.launch import read_launch

    cells, notes = read_launch("plain-number", "8", {"n_gpus": 16})
    assert (cells["tp"], cells["n_gpus"]) == (8, 16)
    assert notes == ["read by the reader of a test"]
