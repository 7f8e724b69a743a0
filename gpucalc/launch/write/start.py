"""Scripts around a command: a shell script, an sbatch script, a Kubernetes manifest; on the right number of nodes.

Names as in Slurm's sbatch(1), torchrun, Kubeflow Trainer v2 (TrainJob), the training operator v1 (PyTorchJob) and
the MPI operator v2beta1 (MPIJob).
"""

from __future__ import annotations

import re
import shlex

from gpucalc.core.errors import UsageError, unknown
from gpucalc.launch.job import Launch, Start
from gpucalc.launch.write.text import yaml_text

PORT = 29500
K8S_KINDS = ("TrainJob", "PyTorchJob", "MPIJob")


def headline(launch: Launch) -> str:
    """One line that says what the settings are for."""
    from gpucalc.layouts.label import Layout

    cells = dict(launch.cells)
    if not launch.model.experts:
        cells["etp"] = 1
    label = Layout.from_cells(cells).label()
    name = launch["model"] or launch.model.name
    return (
        f"{name}, {launch.n_gpus} x {launch['gpu']} ({launch.nodes} x {launch.gpus_per_node}), "
        f"sequence {launch['seq_len']}, global batch {launch['global_batch']}, {launch['precision']}: {label}"
    )


def commented(launch: Launch, comments: tuple[str, ...]) -> str:
    """Comment lines, one a remark."""
    return "".join(f"# {' '.join(line.split())}\n" for line in (headline(launch), *comments))


def _joined(first: str, lines: list[list[str]]) -> str:
    rest = [" ".join(shlex.quote(word) for word in line) for line in lines]
    return " \\\n  ".join([first, *rest]) + "\n"


def _torchrun(launch: Launch, head: str, job: str) -> str:
    words = f"torchrun --nnodes={launch.nodes} --nproc-per-node={launch.gpus_per_node}"
    if launch.nodes > 1:
        words += f' --rdzv-id={job} --rdzv-backend=c10d --rdzv-endpoint="{head}:{PORT}"'
    return words


def script(launch: Launch, start: Start) -> str:
    """A shell script for one node, or to be run on each of several with MASTER_ADDR naming the first."""
    comments = start.comments
    if launch.nodes > 1:
        comments = (*comments, f"run on each of the {launch.nodes} nodes, with MASTER_ADDR naming the first of them")
    lines = commented(launch, comments)
    lines += "".join(f"export {name}={shlex.quote(value)}\n" for name, value in start.environment.items())
    first, *rest = start.program
    return lines + _joined(_torchrun(launch, "$MASTER_ADDR", "gpucalc") + " " + shlex.join(first), rest)


def _files(start: Start) -> str:
    parts = []
    for name, content in start.files.items():
        end = "END"
        while re.search(rf"^{end}$", content, re.MULTILINE):
            end += "_"
        parts.append(f"cat > {shlex.quote(name)} <<'{end}'\n{content.rstrip()}\n{end}\n")
    return "".join(parts)


def _job_name(launch: Launch) -> str:
    text = str(launch["model"] or launch.model.name)
    name = re.sub(r"[^a-z0-9]+", "-", text.rsplit("/", 1)[-1].casefold()).strip("-")
    return f"{name or 'model'}-{launch.n_gpus}"[:50].strip("-")


def sbatch(launch: Launch, start: Start) -> str:
    """An sbatch script: one task a node, which starts one process a GPU."""
    text = "#!/bin/bash\n"
    options = {
        "job-name": _job_name(launch),
        "nodes": launch.nodes,
        "ntasks-per-node": launch.gpus_per_node if start.starter == "horovodrun" else 1,
        "gpus-per-node": launch.gpus_per_node,
    }
    text += "".join(f"#SBATCH --{name}={value}\n" for name, value in options.items()) + "#SBATCH --exclusive\n"
    text += commented(launch, start.comments)
    text += "".join(f"export {name}={shlex.quote(value)}\n" for name, value in start.environment.items())
    text += 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n' + _files(start)
    first, *rest = start.program
    if start.starter == "horovodrun":
        # srun starts a task a GPU; Horovod finds its ranks through the MPI library that srun sets up.
        return text + _joined("srun --mpi=pmix " + shlex.join(first), rest)
    if start.starter == "accelerate":
        inner = f'accelerate launch --machine_rank "$SLURM_NODEID" --main_process_ip "$HEAD" {shlex.join(first)}'
        return text + f"export HEAD\nsrun bash -c {shlex.quote(inner)}\n"
    return text + _joined("srun " + _torchrun(launch, "$HEAD", '"$SLURM_JOB_ID"') + " " + shlex.join(first), rest)


def kubernetes(launch: Launch, start: Start, kind: str = "") -> str:
    """A manifest: TrainJob for torchrun, MPIJob for Horovod, or PyTorchJob when it is asked for."""
    known = {k.casefold(): k for k in K8S_KINDS}
    chosen = known.get(kind.casefold()) if kind else ("MPIJob" if start.starter == "horovodrun" else "TrainJob")
    if chosen is None:
        raise unknown("Kubernetes kind", kind, K8S_KINDS)
    if (chosen == "MPIJob") != (start.starter == "horovodrun"):
        raise UsageError(
            "Horovod runs as an MPIJob, and an MPIJob runs Horovod alone"
            if start.starter == "horovodrun" or chosen == "MPIJob"
            else f"{chosen} does not start this launcher"
        )
    head = commented(launch, start.comments)
    name = _job_name(launch)
    if chosen == "MPIJob":
        return head + yaml_text(_mpi_job(launch, start, name))
    # PET_NNODES, PET_NPROC_PER_NODE and the rendezvous come from the operator; torchrun reads them.
    command = ["torchrun", *(word for line in start.program for word in line)]
    if start.starter == "accelerate":
        words = shlex.join([word for line in start.program for word in line])
        inner = f'accelerate launch --machine_rank "$PET_NODE_RANK" --main_process_ip "$PET_MASTER_ADDR" {words}'
        command = ["bash", "-c", _files(start) + "exec " + inner]
    elif start.files:
        command = ["bash", "-c", _files(start) + "exec " + shlex.join(command)]
    environment = [{"name": n, "value": v} for n, v in start.environment.items()]
    limits = {"limits": {_resource(launch): launch.gpus_per_node}}
    if chosen == "TrainJob":
        trainer = {
            "numNodes": launch.nodes,
            "numProcPerNode": launch.gpus_per_node,
            "image": "example/training:latest",
            "command": command[:1] if command[0] == "torchrun" else command[:2],
            "args": command[1:] if command[0] == "torchrun" else command[2:],
            **({"env": environment} if environment else {}),
            "resourcesPerNode": limits,
        }
        spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
        manifest = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": chosen, "metadata": {"name": name}}
        return head + yaml_text({**manifest, "spec": spec})
    container = {
        "name": "pytorch",
        "image": "example/training:latest",
        "command": command,
        **({"env": environment} if environment else {}),
        "resources": limits,
    }
    replica = {"template": {"spec": {"containers": [container]}}}
    replicas = {"Master": {"replicas": 1, **replica}}
    if launch.nodes > 1:
        replicas["Worker"] = {"replicas": launch.nodes - 1, **replica}
    spec = {"nprocPerNode": str(launch.gpus_per_node), "pytorchReplicaSpecs": replicas}
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": chosen, "metadata": {"name": name}}
    return head + yaml_text({**manifest, "spec": spec})


def _resource(launch: Launch) -> str:
    vendor = launch.device.vendor.casefold()
    return {"amd": "amd.com/gpu", "intel": "habana.ai/gaudi", "google": "google.com/tpu"}.get(vendor, "nvidia.com/gpu")


def _mpi_job(launch: Launch, start: Start, name: str) -> dict[str, object]:
    image = "example/horovod:latest"
    passed = [word for variable in start.environment for word in ("-x", variable)]
    program = [word for line in start.program for word in line]
    run = ["mpirun", "-np", str(launch.n_gpus), "-bind-to", "none", "-map-by", "slot", *passed, *program]
    environment = [{"name": n, "value": v} for n, v in start.environment.items()]
    launcher = {"name": "launcher", "image": image, "command": run, **({"env": environment} if environment else {})}
    worker = {"name": "worker", "image": image, "resources": {"limits": {_resource(launch): launch.gpus_per_node}}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": launch.gpus_per_node,
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
                "Worker": {"replicas": launch.nodes, "template": {"spec": {"containers": [worker]}}},
            },
        },
    }
