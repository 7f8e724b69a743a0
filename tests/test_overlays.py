"""A user's database: one rule of what wins in every file, alike for --db and GPUCALC_DB; all of it is checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli import gpucalc

from gpucalc.core.errors import DataError
from gpucalc.database import documents, files
from gpucalc.database.check import check
from gpucalc.database.posttraining import policy_constants
from gpucalc.database.reader import Database
from gpucalc.database.tables import TABLES
from gpucalc.jobs.context import Context
from gpucalc.jobs.training import job_band, resolve

JOB = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "n_gpus": 64, "seq_len": 4096, "global_batch": 128}
PLAN = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096", "--global-batch", "32")
GEMM = "key,precision,provenance,gemm_efficiency\n"


def write(folder: Path, name: str, text: str) -> Path:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("calibration/gemm.csv", f"{GEMM}h100-sxm-80gb,bf16,guess,0.5\n", "'guess' is none of the known"),
        ("calibration/gemm.csv", f"{GEMM}h100-sxm-80gb,bf16,measured,1.5\n", "1.5 is not a number from 0 to 1"),
        ("calibration/gemm.csv", "key,precision,provenance,gemm_efficency\n", "did you mean gemm_efficiency?"),
        ("calibration/gemm.csv", f"{GEMM}h100-smx,bf16,measured,0.5\n", "no such device, generation or link"),
        ("calibration/gem.csv", GEMM, "did you mean gemm.csv?"),
        (
            "calibration/collectives.csv",
            "scope,constant,value,unit,provenance\nnvlink4,chunk_latency,1e-6,us,measured\n",
            "unit is 'us', expected 's'",
        ),
        (
            "calibration/bands.csv",
            "quantity,kind,name,value\ntime,rule,quantile,-1\n",
            "-1 is not a finite number of 0 or more",
        ),
        ("profiles/megatron-core.toml", 'title = "x"\nnonsense = 1\n', "nonsense: unknown key"),
        ("profiles/megatron-core.toml", 'title = "x"\n', 'add extends = "common"'),
        (
            "profiles/mine.toml",
            'title = "x"\nextends = "fsdp"\n[constants]\n'
            'dp_residuel = { value = 0.1, unit = "", origin = "measured", why = "ours" }\n',
            "nothing reads it; did you mean dp_residual",
        ),
        ("engines/vllm.toml", 'title = "x"\nextends = "neutrl"\n', "did you mean neutral"),
        ("recipes/mine.toml", 'title = "x"\nsource = "y"\nframeworks = []\nframework = "z"\n[cells]\ntpp = 2\n', "tpp"),
        (
            "defaults/run.toml",
            '[values]\nrestrat = { value = 1, low = 1, high = 1, unit = "s", origin = "measured", why = "x" }\n',
            "did you mean restart",
        ),
        ("defaults/prices.toml", '[[price]]\ngpu = "mi300x"\nusd_per_hour = -1.0\n', "-1 is not 0 or more"),
        ("claims.toml", '[one]\ntext = "x"\nkind = "peek"\n', "did you mean peak"),
        ("references.toml", '[one]\nauthors = "x"\n', "title: missing"),
        ("architectures/next.toml", 'name = "Next"\nvendor = "X"\nyear = 2030\nblock_scaled = ["mx9"]\n', "mx9"),
        ("profile/x.toml", "", "did you mean profiles?"),
    ],
)
def test_every_folder_is_checked(tmp_path: Path, name: str, text: str, said: str) -> None:
    ran = gpucalc("hw", "check", str(write(tmp_path, name, text)))
    assert ran.status == 2
    assert said in ran.out
    assert name.split("/")[0] in ran.out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("calibration/gemm.csv", f"{GEMM}h100-sxm-80gb,bf16,guess,0.5\n"),
        ("profiles/megatron-core.toml", 'title = "x"\nframeworks = ["megatron-core"]\nnonsense = 1\n'),
        ("profiles/megatron-core.toml", 'title = "x"\nframeworks = ["megatron-core"]\n'),
    ],
)
def test_what_the_check_refuses_no_question_reads(tmp_path: Path, name: str, text: str) -> None:
    said = gpucalc("plan", *PLAN, "--db", str(write(tmp_path, name, text))).sentence()
    assert Path(name).name in said


def test_a_band_counts_however_its_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "calibration/bands.csv", "quantity,kind,name,value\ntime,rule,quantile,3.0\n")
    stated = job_band(resolve(JOB, Context(Database([tmp_path]))))
    shipped = job_band(resolve(JOB, Context(Database())))
    assert stated[0] < shipped[0] < 1 < shipped[1] < stated[1]
    monkeypatch.setenv(files.ENVIRONMENT, str(tmp_path))
    assert job_band(resolve(JOB, Context(Database()))) == stated
    monkeypatch.delenv(files.ENVIRONMENT)
    assert job_band(resolve(JOB, Context(Database()))) != stated


def test_own_measurements_narrow_the_band_of_a_device_without_any(tmp_path: Path) -> None:
    cells = {**JOB, "gpu": "h800-sxm-80gb"}
    text = "key,precision,provenance,{}\nh800-sxm-80gb,{},measured,0.6\n"
    write(tmp_path, "calibration/gemm.csv", text.format("gemm_efficiency", "bf16"))
    write(tmp_path, "calibration/attention.csv", text.format("attention_efficiency", "any"))
    wide, narrow = (job_band(resolve(cells, Context(Database(dirs)))) for dirs in ((), (tmp_path,)))
    assert wide[0] < narrow[0] < 1 < narrow[1] < wide[1]


def test_the_last_folder_wins_in_every_table(tmp_path: Path) -> None:
    header = "constant,value,unit,origin,prior,why\n"
    first = write(tmp_path / "first", "calibration/posttraining.csv", f"{header}driver_seconds,30,s,measured,,ours\n")
    second = write(tmp_path / "second", "calibration/posttraining.csv", f"{header}driver_seconds,40,s,measured,,ours\n")
    assert policy_constants(Database([first]))["driver_seconds"] == 30
    assert policy_constants(Database([first, second]))["driver_seconds"] == 40
    assert policy_constants(Database([second, first]))["driver_seconds"] == 30
    shipped, overlaid = policy_constants(Database()), policy_constants(Database([first]))
    assert overlaid["rollout_ratio"] == shipped["rollout_ratio"]
    assert policy_constants(Database([first]), prior=True) == policy_constants(Database(), prior=True)


@pytest.mark.parametrize("folder", documents.KINDS)
def test_a_copy_of_a_shipped_file_changes_nothing(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    for name, (path, _) in Database().files(folder).items():
        shutil.copy(path, tmp_path / folder / path.name)
        assert Database([tmp_path]).document(folder, name).data == Database().document(folder, name).data
    assert check([tmp_path]) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_laid_over_itself_is_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / "calibration").mkdir()
    shutil.copy(files.shipped() / "calibration" / f"{name}.csv", tmp_path / "calibration")
    assert Database([tmp_path]).table(name) == Database().table(name)
    assert check([tmp_path]) == []


def test_a_profile_that_extends_itself_over_others_is_told(tmp_path: Path) -> None:
    write(tmp_path, "profiles/a.toml", 'title = "a"\nextends = "b"\n')
    write(tmp_path, "profiles/b.toml", 'title = "b"\nextends = "a"\n')
    with pytest.raises(DataError, match="a → b → a is a circle"):
        Database([tmp_path]).document("profiles", "a")
