"""`gpucalc export` and `gpucalc eval --from` through real processes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli import JOB, gpucalc, shell

DATA = Path(__file__).parent / "data" / "launch"
LABEL = "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective"
MEGATRON = ("export", "llama-3.1-70b", *JOB, "--layout", LABEL, "--to")


def test_a_layout_by_label() -> None:
    ran = gpucalc(*MEGATRON, "megatron")
    assert ran.status == 0
    assert "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4" in ran.out
    assert "torchrun --nnodes=8 --nproc-per-node=8" in ran.out


def test_plan_into_export_into_eval() -> None:
    ran = shell(
        "set -o pipefail; "
        "$G plan llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8192 --global-batch 128 "
        "--set framework=megatron-core --set recompute=none --set cp=1 -f csv --top 1 | tee /dev/stderr | "
        "$G export - --to megatron | $G eval --from megatron - --gpu h100-sxm-80gb"
    )
    assert ran.status == 0, ran.err
    planned = next(csv.DictReader(io.StringIO("\n".join(ran.err.splitlines()[:2]))))
    found = next(csv.DictReader(io.StringIO(ran.out)))
    assert found["layout"] == planned["layout"]
    assert float(found["pred_step_time_s"]) == pytest.approx(float(planned["pred_step_time_s"]), rel=1e-3)


def test_settings_are_data_alone_and_remarks_are_talk() -> None:
    ran = gpucalc("export", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096",
                  "--global-batch", "64", "--layout", "dp8-mbs1-zero3", "--to", "deepspeed")  # fmt: skip
    assert ran.status == 0
    assert json.loads(ran.out)["zero_optimization"]["stage"] == 3
    assert "deepspeed --hostfile" in ran.err
    ran = gpucalc("export", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--seq-len", "4096",
                  "--global-batch", "64", "--layout", "dp8-mbs1-zero3", "--to", "torchtitan")  # fmt: skip
    assert tomllib.loads(ran.out)["parallelism"]["data_parallel_shard_degree"] == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*MEGATRON, "deepspeed"), "DeepSpeed JSON has no pipeline degree"),
        ((*MEGATRON, "megatrn"), "did you mean megatron"),
        (MEGATRON[:-1], "for which framework?"),
        ((*MEGATRON[:-3], "--to", "megatron"), "which layout?"),
        ((*MEGATRON, "megatron", "--launcher", "nemo"), "--launcher has no meaning"),
        ((*MEGATRON, "sbatch", "--launcher", "k8s"), "value of --launcher"),
        ((*MEGATRON, "k8s", "--kind", "Pod"), "Kubernetes kind"),
        (("export", "llama-3.1-70b", *JOB, "--layout", "tp7-mbs1", "--to", "megatron"), "does not divide the 64 heads"),
        (("export", "-", "--to", "megatron"), "empty"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in gpucalc(*arguments).sentence()


def test_launch_settings_are_predicted() -> None:
    ran = gpucalc("eval", "--from", "megatron", str(DATA / "megatron_70b_64gpu.sh"), "--gpu", "h100-sxm-80gb")
    assert ran.status == 0
    row = next(csv.DictReader(io.StringIO(ran.out)))
    assert row["layout"] == LABEL
    assert float(row["pred_step_time_s"]) > 1
    assert row["pred_error"] == ""


def test_a_cell_beside_the_file_replaces_it() -> None:
    file = str(DATA / "deepspeed_8b_8gpu.json")
    more = ("--set", "model=llama-3.1-8b", "--set", "seq_len=4096", "--set", "recompute=full", "-f", "json")
    ran = gpucalc("eval", "--from", "deepspeed", file, "--gpu", "a100-sxm-80gb", *more)
    assert ran.status == 0
    assert json.loads(ran.out)[0]["pred_recompute"] == "full"


@pytest.mark.parametrize(
    ("arguments", "data", "sentence"),
    [
        (("--from", "megatron", "-"), b"", "is empty"),
        (("--from", "megatron", "-"), b"\0\1\2", "binary"),
        (("--from", "megatron", "-"), b"\xff\xfe--num", "UTF-8"),
        (("--from", "megatron", "-"), b"echo hello", "no flag of Megatron-LM"),
        (("--from", "torchtitan", "-"), b"[job]\n", "no settings of torchtitan"),
        (("--from", "deepspeed", "-"), b"{", "not JSON"),
        (("--from", "deepspeed", "-"), b'{"a": 1, "a": 2}', "stands twice"),
        (("--from", "deepspeed", "-"), b"deepspeed train.py --deepspeed_config ds.json", "pass ds.json"),
        (("--from", "megatron", "/"), b"", "is a directory"),
        (("--from", "megatron", "/nowhere"), b"", "cannot read"),
        (("--from", "megatrn", "-"), b"x", "did you mean megatron"),
        (("--from", "megatron", "-", "--kind", "gemm"), b"x", "no meaning with --kind gemm"),
    ],
)
def test_bad_launch_files(arguments: tuple[str, ...], data: bytes, sentence: str) -> None:
    assert sentence in gpucalc("eval", *arguments, "--set", "n_gpus=8" if "gemm" not in arguments else "tp=1",
                               stdin=data).sentence()  # fmt: skip


def test_what_is_missing_beside_a_file_is_asked_for() -> None:
    said = gpucalc("eval", "--from", "megatron", str(DATA / "megatron_8b_8gpu.sh"))
    assert said.status == 2
    assert "--gpu h100-sxm-80gb" in said.err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['gpucalc', 'export', '--help']\n"
        "from gpucalc.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'pandas', 'tabulate'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "--launcher" in done.stdout
