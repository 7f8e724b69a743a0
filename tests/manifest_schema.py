"""Strict schemas of the Kubernetes resources that are written: every key is known, and has its type.

Written from the operators' API types: Kubeflow Trainer 8c0f5059 (TrainJob v1alpha1), the training operator v1.9.0
(PyTorchJob), the MPI operator caa3c47f (MPIJob v2beta1), JobSet 08dfbdfd (v1alpha2), LeaderWorkerSet 060ab4da (v1),
Kubernetes core/v1 and batch/v1.
"""

from __future__ import annotations

import re
from typing import Any


class Required:
    """A key that must stand."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema


class Each:
    """A mapping whose names are free and whose values are of one kind."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema


def dns_label(value: Any) -> bool:
    """A name of an object: at most 63 lower-case letters, digits and hyphens."""
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value) is not None


def count(value: Any) -> bool:
    """A whole number of at least one that int32 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def zero_or_more(value: Any) -> bool:
    """A whole number of at least zero."""
    return (value == 0 and not isinstance(value, bool)) or count(value)


def quantity(value: Any) -> bool:
    """A number of devices: whole, or its text."""
    return count(value) or (isinstance(value, str) and re.fullmatch(r"[1-9]\d*", value) is not None)


def variable(value: Any) -> bool:
    """The name of a variable; the PET_ ones belong to the operator."""
    return isinstance(value, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", value) is not None and value[:4] != "PET_"


ENV = [{"name": Required(variable), "value": Required(str)}]
LIMITS = {"limits": Required(Each(quantity))}
CONTAINER = {
    "name": Required(dns_label),
    "image": Required(str),
    "command": [str],
    "args": [str],
    "env": ENV,
    "resources": LIMITS,
}
POD = {"spec": Required({"containers": Required([CONTAINER]), "restartPolicy": {"Never", "OnFailure"}})}
JOB_POD = {"spec": Required({"containers": Required([CONTAINER]), "restartPolicy": Required({"Never", "OnFailure"})})}
METADATA = {"name": Required(dns_label), "labels": Each(str), "annotations": Each(str)}
REPLICA = {"replicas": Required(count), "template": Required(POD)}
JOB = {
    "parallelism": Required(count),
    "completions": Required(count),
    "completionMode": {"Indexed", "NonIndexed"},
    "backoffLimit": zero_or_more,
    "template": Required(JOB_POD),
}
SPECS: dict[tuple[str, str], Any] = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "runtimeRef": Required({"name": Required(dns_label), "kind": str, "apiGroup": str}),
        "trainer": {
            "image": str,
            "command": [str],
            "args": [str],
            "env": ENV,
            "numNodes": count,
            "numProcPerNode": count,
            "resourcesPerNode": LIMITS,
        },
    },
    ("kubeflow.org/v1", "PyTorchJob"): {
        "nprocPerNode": str,
        "pytorchReplicaSpecs": Required({"Master": Required(REPLICA), "Worker": REPLICA}),
    },
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": count,
        "mpiReplicaSpecs": Required({"Launcher": Required(REPLICA), "Worker": Required(REPLICA)}),
    },
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "failurePolicy": {"maxRestarts": zero_or_more},
        "network": {"enableDNSHostnames": bool},
        "replicatedJobs": Required(
            [{"name": Required(dns_label), "replicas": count, "template": Required({"spec": Required(JOB)})}]
        ),
    },
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": zero_or_more,
        "startupPolicy": {"LeaderCreated", "LeaderReady"},
        "leaderWorkerTemplate": Required(
            {
                "size": count,
                "restartPolicy": {"RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"},
                "leaderTemplate": POD,
                "workerTemplate": Required(POD),
            }
        ),
    },
}


def check_manifest(document: dict[str, Any]) -> None:
    """Assert that a manifest is of its kind, key by key."""
    spec = SPECS[document.get("apiVersion", ""), document.get("kind", "")]
    whole = {"apiVersion": Required(str), "kind": Required(str), "metadata": Required(METADATA), "spec": Required(spec)}
    assert problems(document, whole, "") == []


def problems(value: Any, schema: Any, path: str) -> list[str]:
    """Where a value differs from its schema."""
    if isinstance(schema, Required):
        return problems(value, schema.schema, path)
    if isinstance(schema, Each):
        if not isinstance(value, dict) or not value:
            return [f"{path}: a mapping is expected, not {value!r}"]
        return [p for name, item in value.items() for p in problems(item, schema.schema, f"{path}.{name}")]
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path}: a mapping is expected, not {value!r}"]
        found = [f"{path}.{name}: unknown" for name in value if name not in schema]
        found += [f"{path}.{n}: missing" for n, s in schema.items() if isinstance(s, Required) and n not in value]
        return found + [
            p for name, item in value.items() if name in schema for p in problems(item, schema[name], f"{path}.{name}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{path}: a list is expected, not {value!r}"]
        return [p for place, item in enumerate(value) for p in problems(item, schema[0], f"{path}[{place}]")]
    if isinstance(schema, set):
        return [] if value in schema else [f"{path}: {value!r} is not one of {sorted(schema)}"]
    held = isinstance(value, schema) if isinstance(schema, type) else schema(value)
    return [] if held else [f"{path}: {value!r} is not a {schema.__name__}"]
