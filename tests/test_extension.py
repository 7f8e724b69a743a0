"""What `docs/architecture.md` promises of additions: each is made here, through the public tables, and seen at work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli import gpucalc
from typer.testing import CliRunner

from gpucalc import evaluate
from gpucalc.core.columns import Column
from gpucalc.core.errors import UsageError
from gpucalc.core.formula import formula
from gpucalc.core.units import Count
from gpucalc.formulas import pipeline
from gpucalc.layouts import axes, rules, schedules
from gpucalc.layouts.axes import ACTIVATIONS, CUT, LAYER, STATES, Axis, divisors
from gpucalc.layouts.label import Layout
from gpucalc.layouts.rules import Rule
from gpucalc.layouts.schedules import Condition, Schedule
from gpucalc.questions.timeline import drawn_micro_batches

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


def document(*words: str) -> dict[str, Any]:
    """What a command writes as JSON; notes beside it stand on standard error."""
    from gpucalc.cli.app import app

    found: dict[str, Any] = json.loads(CliRunner().invoke(app, [*words, "-f", "json"]).stdout)
    return found


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
    # A line may end at the hyphen of a name.
    assert "bare-torch" in re.sub(r"-\s+", "-", done.stdout), done.stderr


@pytest.mark.usefixtures("launcher")
def test_a_reader_is_one_module() -> None:
    from gpucalc.launch import read_launch

    cells, notes = read_launch("plain-number", "8", {"n_gpus": 16})
    assert (cells["tp"], cells["n_gpus"]) == (8, 16)
    assert notes == ["read by the reader of a test"]


# --- a pipeline schedule -----------------------------------------------------------------------------------

PLAN = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "4096", "--global-batch", "64")


@pytest.fixture
def eager_pipe() -> Iterator[Schedule]:
    """A schedule of a formula of its own: half the idle passes of 1F1B, every micro-batch in flight."""

    @formula(symbol="i_half", cite="narayanan2021", valid="pp >= 1")
    def idle_passes_eager(pp: Count) -> Count:
        """Idle passes of the schedule of this test: (p-1)/2, as the test's page says."""
        return (pp - 1) / 2

    def holds(c: Mapping[str, Any]) -> Any:
        return c["pp"] >= 4

    condition = Condition("eager-pipe: at least 4 stages", holds, lambda c: f"eager-pipe needs 4 stages, not {c['pp']}")
    row = Schedule(
        "eager-pipe",
        "eager",
        idle=idle_passes_eager,
        in_flight=pipeline.in_flight_gpipe,
        weight_fill=1.0,
        critical_path=True,
        condition=condition,
    )
    with schedules.register(row):
        yield row


@pytest.mark.usefixtures("eager_pipe")
def test_a_schedule_is_one_row() -> None:
    label = "pp4-dp4-mbs1-zero1-eager-full"
    ranked = document("plan", *PLAN, "--layout", "pp*-mbs1-zero1-eager-full")
    assert ranked["rejected"]["eager-pipe: at least 4 stages"] > 0  # pp=2
    assert {row["schedule"] for row in ranked["rows"] if row["pp"] > 1} == {"eager-pipe"}
    (row,) = (row for row in ranked["rows"] if row["layout"] == label)

    def terms(layout: str) -> dict[str, Any]:
        status, text = run("explain", *PLAN, "--layout", layout, "-f", "json")
        assert status == 0, text
        return {term["path"]: term for term in json.loads(text)["terms"]}

    own, usual = terms(label), terms(label.replace("-eager", ""))
    assert own["time/step"]["value"] == row["pred_step_time_s"]
    assert own["pp/idle_passes/eager-pipe"]["value"] == 1.5
    assert "(pp - 1) / 2" in own["pp/idle_passes/eager-pipe"]["formula"]
    assert own["pp/in-flight/first"]["value"] == 16 > usual["pp/in-flight/first"]["value"]
    assert 0 < own["time/pp/bubble"]["value"] < usual["time/pp/bubble"]["value"]
    assert "pp/critical-path" in own
    assert "pp/critical-path" not in usual
    # A stated layout that breaks its condition is priced, and says so.
    said = run("explain", *PLAN, "--layout", label.replace("pp4-dp4", "pp2-dp8"))[1]
    assert "the planner would not list this: eager-pipe needs 4 stages, not 2; pp=4, dp=4 would be legal" in said


@pytest.mark.usefixtures("eager_pipe")
def test_a_schedule_stands_in_labels_exports_completion_and_pictures() -> None:
    cells = {"pp": 4, "dp": 4, "schedule": "eager-pipe"}
    assert Layout(**cells).label() == "pp4-dp4-eager"
    assert Layout.from_label("PP4-dp4-Eager") == Layout(**cells)
    assert "did you mean eager?" in run("explain", *PLAN, "--layout", "pp4-eagre")[1]
    for target in ("megatron", "torchtitan", "nanotron"):
        status, text = run("export", *PLAN, "--layout", "pp4-dp4-mbs1-zero1-eager-full", "--to", target)
        assert status != 0
        assert "eager-pipe" in text, text
    assert "eager-pipe" in run("completion", "bash")[1]
    assert drawn_micro_batches("eager-pipe", 32, 4, 1) == 0  # an order is not known: estimated, not drawn


def test_nothing_is_left_of_a_schedule_after_its_block() -> None:
    assert "eager-pipe" not in schedules.SCHEDULES
    with pytest.raises(UsageError, match="unknown token"):
        Layout.from_label("pp4-eager")


# --- a parallel axis ---------------------------------------------------------------------------------------


@pytest.fixture
def hidden_parallel() -> Iterator[Axis]:
    """A degree of its own: ranks that split the hidden width of a layer, at most 4 and a divisor of it."""
    column = Column("hp", "int", "ranks that split the hidden width", "1")
    axis = Axis(
        "hp",
        "hp",
        decides=frozenset({LAYER, ACTIVATIONS, STATES}),
        scope=CUT,
        degree=True,
        levels=lambda sizes: tuple(divisors(sizes.n_gpus, 4)),
        title="hidden parallelism",
    )
    rule = Rule(
        "hp at most tp",
        ("hp", "tp"),
        lambda c: c["hp"] <= c["tp"],
        lambda c: f"hp={c['hp']} is more than tp={c['tp']}",
        ("hp", "tp"),
    )
    with axes.register(axis, column), rules.register(rule):
        yield axis


@pytest.mark.usefixtures("hidden_parallel")
def test_an_axis_is_one_row_and_its_rule_another() -> None:
    ranked = document("plan", *PLAN, "--layout", "tp2-hp*-dp*-mbs1-zero1-sp-none")
    rows = {row["hp"]: row for row in ranked["rows"]}
    assert set(rows) == {1, 2}
    assert ranked["rejected"]["hp at most tp"] == 1  # hp=4
    assert (rows[2]["dp"], rows[2]["layout"]) == (4, "tp2-dp4-mbs1-zero1-sp-none-hp2")
    whole = document("plan", *PLAN, "--top", "30")
    assert whole["candidates"] > document("plan", *PLAN, "--set", "hp=1")["candidates"]

    status, text = run("explain", *PLAN, "--layout", rows[2]["layout"], "-f", "json")
    assert status == 0, text
    terms = {term["path"]: term["value"] for term in json.loads(text)["terms"]}
    assert terms["time/step"] == rows[2]["pred_step_time_s"]
    said = run("explain", *PLAN, "--layout", "tp2-dp2-hp4-mbs1-zero1-sp-none")[1]
    assert "the planner would not list this: hp=4 is more than tp=2; hp=2, dp=4 would be legal" in said
    assert "tp·pp·dp·cp·hp = 1·1·16·1·2 = 32, not the 16 GPUs" in run("explain", *PLAN, "--layout", "dp16-hp2")[1]


@pytest.mark.usefixtures("hidden_parallel")
def test_an_axis_stands_in_labels_rows_exports_and_completion() -> None:
    assert Layout.from_label("tp2-hp2")["hp"] == 2
    assert Layout(tp=2, hp=2).label() == "tp2-hp2"
    status, text = run("export", *PLAN, "--layout", "tp2-dp4-hp2-mbs1-zero1-sp-full", "--to", "megatron")
    assert status != 0
    assert "megatron has no setting for hidden parallelism (hp=2)" in text
    assert "hp=" in run("completion", "bash")[1]
    (row,) = evaluate(
        [{"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 8, "seq_len": 4096, "hp": 2, "tp": 2}]
    )
    assert not row.pred_error


def test_nothing_is_left_of_an_axis_after_its_block() -> None:
    assert "hp" not in axes.AXES
    assert "hp" in run("plan", *PLAN, "--set", "hp=1")[1]


# --- a generation of accelerators -------------------------------------------------------------------

ARCHITECTURE = """
name = "Mockingbird"
vendor = "NVIDIA"
year = 2031
family = "Blackwell"
block_scaled = ["mxfp8", "nvfp4"]
weight_only = true
source = "made up"
confidence = "low"
"""


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    """A database with a made-up generation: one file of it, and one of an accelerator."""
    from gpucalc.database.files import shipped

    for folder in ("architectures", "accelerators"):
        (tmp_path / folder).mkdir()
    (tmp_path / "architectures" / "mockingbird.toml").write_text(ARCHITECTURE)
    text = (shipped() / "accelerators" / "b200-sxm-180gb.toml").read_text(encoding="utf-8")
    text = text.replace('arch = "Blackwell"', 'arch = "Mockingbird"').replace('"2250 TFLOP/s"', '"4500 TFLOP/s"')
    text = text.replace('fp8 = "4500 TFLOP/s"', 'fp8 = "9000 TFLOP/s"')
    (tmp_path / "accelerators" / "m100-sxm-180gb.toml").write_text(text.replace("B200-SXM-180GB", "M100-SXM-180GB"))
    (tmp_path / "aliases.csv").write_text("spelling,key\nm100,m100-sxm-180gb\n")
    return tmp_path


def test_a_generation_is_one_file(generation: Path) -> None:
    db = ("--db", str(generation))
    job = ("--gpu", "m100", "--gpus", "16", "--seq-len", "8192", "--global-batch", "64", *db)
    assert gpucalc("hw", "check", str(generation)).status == 0
    assert "\nm100-sxm-180gb,M100-SXM-180GB,NVIDIA,Mockingbird," in gpucalc("hw", "list", *db, "-f", "csv").out
    assert "mockingbird" in gpucalc("hw", "list", "architectures", *db).out
    assert "Mockingbird" in gpucalc("hw", "show", "m100-sxm-180gb", *db).out
    for precision in ("bf16", "mxfp8", "nvfp4"):
        ran = gpucalc("plan", "llama-3.1-70b", *job, "--precision", precision, "--top", "1", "-f", "csv")
        assert ran.status == 0, ran.err
        assert ",m100," in ran.out
    assert "does not support mxfp4" in gpucalc("plan", "llama-3.1-70b", *job, "--precision", "mxfp4").sentence()
    assert "4500" in gpucalc("explain", "llama-3.1-8b", *job, "--layout", "tp2-dp8-mbs1-zero1").out
    # Its file says that there are kernels that expand weights of few bits.
    ran = gpucalc("serve", "llama-3.1-8b", "--gpu", "m100", "--gpus", "1", "--isl", "512", "--osl", "64",
                  "--concurrency", "8", "--precision", "int4", *db, "-f", "csv")  # fmt: skip
    assert ran.status == 0, ran.err


def test_a_generation_stands_in_completion(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCALC_DB", str(generation))
    _, script = run("completion", "bash")
    assert "m100-sxm-180gb" in script
    assert "mockingbird" in script


def test_a_device_of_a_generation_that_is_not_there_is_told(generation: Path) -> None:
    (generation / "architectures" / "mockingbird.toml").unlink()
    ran = gpucalc("hw", "check", str(generation))
    assert ran.status == 2
    assert "arch: no architecture 'Mockingbird'" in ran.out
    assert (
        "arch: unknown architecture 'Mockingbird'" in gpucalc("hw", "show", "m100", "--db", str(generation)).sentence()
    )
