"""Kubernetes manifests: read by PyYAML, held to a strict schema of each resource, on the right number of nodes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from launch_jobs import BIG, SMALL, launch, recorded, text_of, wrapped, yaml_document
from manifest_schema import check_manifest, problems

from gpucalc.core.errors import UsageError
from gpucalc.launch import read_launch
from gpucalc.launch.job import Launch, Placed
from gpucalc.launch.read.shell.script import read_script
from gpucalc.launch.target import all_of

LAYOUT = "tp8-pp4-dp2-vpp4-mbs1-zero1-sp-selective"
LAYOUTS = {
    "trl": "dp64-mbs1-zero3-full",
    "axolotl": "dp64-mbs1-zero3-full",
    "torchtune": "dp64-mbs1-zero3-full",
    "torchtitan-flags": "dp64-mbs1-zero3-full",
    "megatron": LAYOUT,
    "nemo": LAYOUT,
    "deepspeed": "dp64-mbs1-zero3-full",
    "torchtitan": "dp64-mbs1-zero3-full",
    "torchtitan-recipe": "dp64-mbs1-zero3-full",
    "accelerate": "dp64-mbs1-zero3-full",
    "nanotron": "tp8-pp4-dp2-mbs1-zero1-sp-none",
    "horovod": "dp64-mbs1-zero0-full",
}
TRAINING = [target.name for target in all_of("write") if target.job == "training"]


def manifest(target: str, kind: str, made: Launch | None = None) -> dict[str, Any]:
    document = yaml_document(wrapped(made or launch(target, LAYOUTS[target]), "k8s", target, kind))
    check_manifest(document)
    assert document["kind"].casefold() == (kind or document["kind"]).casefold()
    return document


@pytest.mark.parametrize("target", TRAINING)
@pytest.mark.parametrize("kind", ["TrainJob", "PyTorchJob", "JobSet"])
def test_every_framework_in_every_kind(target: str, kind: str) -> None:
    made = launch(target, LAYOUTS[target])
    if target == "horovod":
        with pytest.raises(UsageError, match="MPIJob"):
            manifest(target, kind, made)
        return
    manifest(target, kind, made)
    manifest(target, kind, launch(target, "mbs1-zero0-full", {**SMALL, "n_gpus": 1}))  # one GPU: no Worker, no rank


def test_the_schema_refuses_what_is_wrong() -> None:
    document = manifest("megatron", "TrainJob")
    for change, said in (
        ({"kind": "TrainJob", "apiVersion": "kubeflow.org/v1"}, KeyError),
        ({"spec": {**document["spec"], "nodes": 8}}, AssertionError),
        ({"metadata": {"name": "Not_a_label"}}, AssertionError),
    ):
        with pytest.raises(said):
            check_manifest({**document, **change})
    assert problems("8", int, "x") == ["x: '8' is not a int"]


def test_a_train_job_is_the_recorded_one() -> None:
    job, theirs = manifest("megatron", ""), yaml_document(recorded("k8s_trainjob_70b.yaml"))
    check_manifest(theirs)
    assert (job["apiVersion"], job["kind"]) == (theirs["apiVersion"], theirs["kind"])
    ours, trainer = job["spec"]["trainer"], theirs["spec"]["trainer"]
    for name in ("numNodes", "numProcPerNode", "env", "resourcesPerNode"):
        assert ours[name] == trainer[name], name
    assert ours["args"][0] == "pretrain_gpt.py"
    assert trainer["args"][1:] == ours["args"][ours["args"].index(trainer["args"][0]) :][1 : len(trainer["args"])]


def test_masters_workers_slots_and_ranks() -> None:
    older = manifest("megatron", "pytorchjob")["spec"]
    assert older["nprocPerNode"] == "8"
    assert older["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
    assert older["pytorchReplicaSpecs"]["Worker"]["replicas"] == 7
    mpi = manifest("horovod", "", launch("horovod", "dp64-mbs1-zero0-full", {**BIG, "model": "llama-3.1-8b"}))["spec"]
    assert mpi["slotsPerWorker"] == 8
    assert mpi["mpiReplicaSpecs"]["Worker"]["replicas"] == 8


@pytest.mark.parametrize("target", ["megatron", "accelerate", "torchtitan"])
def test_the_pods_of_a_job_set_find_each_other(target: str) -> None:
    document = manifest(target, "JobSet")
    name, (node,) = document["metadata"]["name"], document["spec"]["replicatedJobs"]
    job = node["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 8
    assert job["completionMode"] == "Indexed"
    head = f"{name}-{node['name']}-0-0.{name}"  # pod 0 of job 0, in the set's headless service
    assert len(head.split(".")[0]) <= 63
    command = job["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["bash", "-c"]
    words = read_script(command[2]).commands[-1]
    address = words[words.index("--main_process_ip") + 1] if target == "accelerate" else f"--master-addr={head}"
    assert address in (head, f"--master-addr={head}")
    assert any("JOB_COMPLETION_INDEX" in word for word in words)
    assert shlex.split(command[2].splitlines()[-1])[0] == "exec"


def test_scripts_are_bound_to_the_nodes_of_a_placement() -> None:
    placed = Placed(("n0", "n3", "n4", "n9"), 2, "packed")
    made = launch("megatron", "tp8-pp4-dp1-mbs1-zero1-sp-none", {**BIG, "n_gpus": 32, "global_batch": 64})
    text = wrapped(made, "sbatch", "megatron", placed=placed)
    assert "#SBATCH --nodelist=n0,n3,n4,n9\n#SBATCH --switches=2\n" in text
    assert "#SBATCH --nodes=4\n" in text
    assert text.index("--nodelist") < text.index("srun")
    document = yaml_document(wrapped(made, "k8s", "megatron", placed=placed))
    check_manifest(document)
    assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpu"}


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "nemo"])
@pytest.mark.parametrize("kind", ["TrainJob", "PyTorchJob", "JobSet"])
def test_a_manifest_reads_back_as_its_command(target: str, kind: str) -> None:
    made = launch(target, LAYOUTS[target])
    beside = {"model": made["model"]} if target == "nemo" else {}
    alone, _ = read_launch(target, text_of(target, LAYOUTS[target]), {**beside, "n_gpus": made.n_gpus})
    cells, _ = read_launch(target, wrapped(made, "k8s", target, kind), beside)
    assert cells["n_gpus"] == made.n_gpus
    differing = {n for n in alone if n != "gpus_per_node" and alone[n] != cells.get(n)}
    assert not differing, {n: (alone[n], cells.get(n)) for n in differing}


POD = """
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: engine
    image: vllm/vllm-openai:latest
    env: [{name: TP, value: "4"}]
    %s
"""


@pytest.mark.parametrize(
    "words",
    [
        'command: [vllm, serve]\n    args: [llama-3.1-70b, "--tensor-parallel-size", "4", "--max-num-seqs", "64"]',
        'args: ["--model", "llama-3.1-70b", "--tensor-parallel-size=$(TP)", "--max-num-seqs", "64"]',
        'command: [sh, -c, "vllm serve llama-3.1-70b -tp ${TP} --max-num-seqs 64"]',
    ],
)
def test_a_pod_of_an_engine_is_its_command(words: str) -> None:
    cells, _ = read_launch("vllm", POD % words)
    assert (cells["model"], cells["tp"], cells["max_seqs"], cells["n_gpus"]) == ("llama-3.1-70b", 4, 64, 4)


def test_a_compose_file_is_its_command() -> None:
    text = (
        "services:\n  engine:\n    image: vllm/vllm-openai\n    command: >\n      --model llama-3.1-70b\n"
        "      --tensor-parallel-size 4\n"
    )
    assert read_launch("vllm", text)[0]["tp"] == 4
    docker = "docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model llama-3.1-70b -tp 4"
    cells, notes = read_launch("vllm", docker)
    assert cells["tp"] == 4
    assert not any("not in the list" in note for note in notes)
