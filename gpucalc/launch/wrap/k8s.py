"""Kubernetes manifests, on the right number of nodes.

Kinds as in Kubeflow Trainer v2 (TrainJob), the training operator v1 (PyTorchJob), the MPI operator v2beta1 (MPIJob)
and JobSet v1alpha2; placement by Kueue's label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucalc.core.errors import UsageError, unknown
from gpucalc.launch.job import Launch, LaunchCommand, Placed
from gpucalc.launch.starter import Starter
from gpucalc.launch.target import Wrapper
from gpucalc.launch.text import GPU_RESOURCES, commented, job_name, yaml_text

IMAGE = "example/training:latest"
JOBSET_JOB = "node"  # the one replicated job of a JobSet, whose name is part of its pods' addresses


def write(launch: Launch, command: LaunchCommand, starter: Starter, kind: str, placed: Placed | None) -> str:
    """A manifest: TrainJob for an agent a node, MPIJob for MPI, or the kind that is asked for."""
    known = {k.casefold(): k for k in KINDS}
    chosen = known.get(kind.casefold()) if kind else ("MPIJob" if starter.mpi else "TrainJob")
    if chosen is None:
        raise unknown("Kubernetes kind", kind, KINDS)
    if (chosen == "MPIJob") != starter.mpi:
        raise UsageError("Horovod runs as an MPIJob, and an MPIJob runs Horovod alone")
    api, spec = KINDS[chosen]
    metadata: dict[str, Any] = {"name": job_name(launch)}
    remarks = ""
    if placed is not None:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": "gpu"}
        remarks = (
            "# The gang is admitted whole by Kueue: create the LocalQueue and label nodes with their leaf switch.\n"
            f"# Placement by {placed.strategy}: {len(placed.nodes)} nodes on {placed.leaves} leaf switches.\n"
        )
    manifest = {"apiVersion": api, "kind": chosen, "metadata": metadata, "spec": spec(launch, command, starter)}
    return remarks + commented(launch, command.comments) + yaml_text(manifest)


def _train_job(launch: Launch, command: LaunchCommand, starter: Starter) -> dict[str, Any]:
    words = starter.in_pod(launch, command)
    # The PET_ variables come from the operator, which refuses them set by hand.
    first = 2 if words[:2] == ["bash", "-c"] else 1
    trainer = {
        "numNodes": launch.nodes,
        "numProcPerNode": launch.gpus_per_node,
        "image": IMAGE,
        "command": words[:first],
        "args": words[first:],
        **_environment(command),
        "resourcesPerNode": _limits(launch),
    }
    return {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}


def _pytorch_job(launch: Launch, command: LaunchCommand, starter: Starter) -> dict[str, Any]:
    container = {
        "name": "pytorch",  # the operator looks for a container of this name
        "image": IMAGE,
        "command": starter.in_pod(launch, command),
        **_environment(command),
        "resources": _limits(launch),
    }
    replica = {"template": {"spec": {"containers": [container]}}}
    replicas = {"Master": {"replicas": 1, **replica}}
    if launch.nodes > 1:
        replicas["Worker"] = {"replicas": launch.nodes - 1, **replica}
    return {"nprocPerNode": str(launch.gpus_per_node), "pytorchReplicaSpecs": replicas}


def _job_set(launch: Launch, command: LaunchCommand, starter: Starter) -> dict[str, Any]:
    name = job_name(launch)
    # Pod 0 of job 0 is reached at SET-JOB-0-0.SET, whose first part must be a DNS label.
    inner = starter.in_indexed_pod(launch, command, f"{name}-{JOBSET_JOB}-0-0.{name}")
    if inner is None:
        raise UsageError("a JobSet starts torchrun or accelerate")
    container = {
        "name": "trainer",
        "image": IMAGE,
        "command": ["bash", "-c", inner],
        **_environment(command),
        "resources": _limits(launch),
    }
    job = {
        "parallelism": launch.nodes,
        "completions": launch.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    jobs = [{"name": JOBSET_JOB, "replicas": 1, "template": {"spec": job}}]
    return {"failurePolicy": {"maxRestarts": 2}, "network": {"enableDNSHostnames": True}, "replicatedJobs": jobs}


def _mpi_job(launch: Launch, command: LaunchCommand, starter: Starter) -> dict[str, Any]:
    image = "example/horovod:latest"
    run = starter.in_pod(launch, command)
    launcher = {"name": "launcher", "image": image, "command": run, **_environment(command)}
    worker = {"name": "worker", "image": image, "resources": _limits(launch)}
    return {
        "slotsPerWorker": launch.gpus_per_node,
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
            "Worker": {"replicas": launch.nodes, "template": {"spec": {"containers": [worker]}}},
        },
    }


def _environment(command: LaunchCommand) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name, value in command.environment.items()]
    return {"env": variables} if variables else {}


def _limits(launch: Launch) -> dict[str, Any]:
    resource = GPU_RESOURCES.get(launch.device.vendor.casefold(), GPU_RESOURCES["nvidia"])
    return {"limits": {resource: launch.gpus_per_node}}


Spec = Callable[[Launch, LaunchCommand, Starter], dict[str, Any]]
KINDS: dict[str, tuple[str, Spec]] = {
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", _train_job),
    "PyTorchJob": ("kubeflow.org/v1", _pytorch_job),
    "MPIJob": ("kubeflow.org/v2beta1", _mpi_job),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", _job_set),
}
WRAPPER = Wrapper(("k8s", "kubernetes"), write, tuple(KINDS))
