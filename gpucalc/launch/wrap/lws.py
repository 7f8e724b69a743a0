"""LeaderWorkerSet (leaderworkerset.x-k8s.io/v1 at 060ab4da): a serving command as groups of pods, a group a server.

A pod is a node; it learns its place in the group from LWS_GROUP_SIZE, LWS_WORKER_INDEX and LWS_LEADER_ADDRESS.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.jobs.serving import ServingJob
from gpucalc.launch.job import LaunchCommand, Placed
from gpucalc.launch.starter import Starter
from gpucalc.launch.target import Wrapper
from gpucalc.launch.text import GPU_RESOURCES, yaml_text

IMAGE = "example/serving:latest"


def write(job: ServingJob, command: LaunchCommand, starter: Starter | None, kind: str, placed: Placed | None) -> str:
    """The manifest: as many groups as servers, each of the nodes of one server."""
    server = command.server
    if server is None or (server.nodes > 1 and not server.meets):
        raise UsageError("a server over several nodes is started by MPI here, which a LeaderWorkerSet does not run")
    words = " ".join(shlex.quote(word) for line in command.program for word in line)
    words += server.words("$LWS_GROUP_SIZE", "$LWS_WORKER_INDEX", "$LWS_LEADER_ADDRESS")
    if server.nodes > 1 and server.apart:
        words += f" $([ $LWS_WORKER_INDEX = 0 ] || echo {server.apart})"
    resource = GPU_RESOURCES.get(job.cluster.device.vendor.casefold(), GPU_RESOURCES["nvidia"])
    container: dict[str, Any] = {
        "name": "engine",
        "image": IMAGE,
        "command": ["sh", "-c", words],
        "resources": {"limits": {resource: server.gpus // server.nodes}},
    }
    template = {"size": server.nodes, "workerTemplate": {"spec": {"containers": [container]}}}
    manifest = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": _name(job)},
        "spec": {"replicas": server.servers, "leaderWorkerTemplate": template},
    }
    head = "".join(line for line in command.text.splitlines(keepends=True) if line.startswith("#"))
    return head + yaml_text(manifest)


def _name(job: ServingJob) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", str(job.cells.get("model") or job.model.name).rsplit("/", 1)[-1].casefold())
    return f"{text.strip('-') or 'model'}"[:50].strip("-")


WRAPPER = Wrapper(("lws", "leaderworkerset"), write, job="serving", launcher="vllm")
