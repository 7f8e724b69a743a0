"""How the processes of a job are started: torchrun, accelerate, horovodrun; in a shell, under Slurm, in Kubernetes.

Names as in torchrun, Slurm's sbatch(1), accelerate's and Horovod's launchers, and the operators' environment.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.text import commented

PORT = 29500


def joined(first: str, lines: list[list[str]]) -> str:
    """A command over several lines, quoted for a shell."""
    rest = [" ".join(shlex.quote(word) for word in line) for line in lines]
    return " \\\n  ".join([first, *rest]) + "\n"


def exports(command: LaunchCommand) -> str:
    """Lines that set the environment."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in command.environment.items())


def written_files(command: LaunchCommand) -> str:
    """Here-documents that write the files of a command."""
    parts = []
    for name, content in command.files.items():
        end = "END"
        while re.search(rf"^{end}$", content, re.MULTILINE):
            end += "_"
        parts.append(f"cat > {shlex.quote(name)} <<'{end}'\n{content.rstrip()}\n{end}\n")
    return "".join(parts)


class Starter(ABC):
    """What starts the processes of a framework.

    mpi: an MPI job, whose launcher starts the ranks of all nodes, instead of one agent a node.
    """

    mpi = False

    def tasks_per_node(self, launch: Launch) -> int:
        """Slurm tasks of a node: one, which starts a process a GPU."""
        return 1

    @abstractmethod
    def in_slurm(self, launch: Launch, command: LaunchCommand) -> str:
        """The lines of an sbatch script that start the job; $HEAD names the first node."""

    @abstractmethod
    def in_pod(self, launch: Launch, command: LaunchCommand) -> list[str]:
        """The words that a pod runs, under an operator that sets the PET_ variables of torchrun."""

    def in_indexed_pod(self, launch: Launch, command: LaunchCommand, head: str) -> str | None:
        """A shell command for a pod that knows its rank as $JOB_COMPLETION_INDEX; None where there is none."""
        return None


class Torchrun(Starter):
    """PyTorch's launcher: one agent a node, with a rendezvous over the nodes."""

    def words(self, launch: Launch, head: str, job: str) -> str:
        """torchrun and its own options."""
        words = f"torchrun --nnodes={launch.nodes} --nproc-per-node={launch.gpus_per_node}"
        if launch.nodes > 1:
            words += f' --rdzv-id={job} --rdzv-backend=c10d --rdzv-endpoint="{head}:{PORT}"'
        return words

    def script(self, launch: Launch, command: LaunchCommand) -> str:
        """A shell script for one node, or to be run on each of several with MASTER_ADDR naming the first."""
        comments = command.comments
        if launch.nodes > 1:
            comments = (
                *comments,
                f"run on each of the {launch.nodes} nodes, with MASTER_ADDR naming the first of them",
            )
        first, *rest = command.program
        start = joined(self.words(launch, "$MASTER_ADDR", "gpucalc") + " " + shlex.join(first), rest)
        return commented(launch, comments) + exports(command) + start

    def in_slurm(self, launch: Launch, command: LaunchCommand) -> str:
        """One torchrun a node."""
        first, *rest = command.program
        return joined("srun " + self.words(launch, "$HEAD", '"$SLURM_JOB_ID"') + " " + shlex.join(first), rest)

    def in_pod(self, launch: Launch, command: LaunchCommand) -> list[str]:
        """torchrun, which reads PET_NNODES, PET_NPROC_PER_NODE and the rendezvous from the operator."""
        words = ["torchrun", *(word for line in command.program for word in line)]
        if command.files:
            return ["bash", "-c", written_files(command) + "exec " + shlex.join(words)]
        return words

    def in_indexed_pod(self, launch: Launch, command: LaunchCommand, head: str) -> str:
        """torchrun with its ranks and the address of the first pod."""
        program = shlex.join([word for line in command.program for word in line])
        ranks = f"--nnodes={launch.nodes} --nproc-per-node={launch.gpus_per_node}"
        if launch.nodes > 1:
            ranks += f" --node-rank=$JOB_COMPLETION_INDEX --master-addr={head} --master-port={PORT}"
        return written_files(command) + f"exec torchrun {ranks} {program}"


class Accelerate(Starter):
    """`accelerate launch`: one a machine, told its rank and the first machine."""

    def in_slurm(self, launch: Launch, command: LaunchCommand) -> str:
        """One `accelerate launch` a node, inside a shell that knows the node's rank."""
        first = command.program[0]
        inner = f'accelerate launch --machine_rank "$SLURM_NODEID" --main_process_ip "$HEAD" {shlex.join(first)}'
        return f"export HEAD\nsrun bash -c {shlex.quote(inner)}\n"

    def in_pod(self, launch: Launch, command: LaunchCommand) -> list[str]:
        """The operator's variables as `accelerate launch`'s options."""
        words = shlex.join([word for line in command.program for word in line])
        inner = f'accelerate launch --machine_rank "$PET_NODE_RANK" --main_process_ip "$PET_MASTER_ADDR" {words}'
        return ["bash", "-c", written_files(command) + "exec " + inner]

    def in_indexed_pod(self, launch: Launch, command: LaunchCommand, head: str) -> str:
        """The pod's index as the rank of the machine."""
        words = shlex.join([word for line in command.program for word in line])
        ranks = f"--machine_rank $JOB_COMPLETION_INDEX --main_process_ip {head}"
        return written_files(command) + f"exec accelerate launch {ranks} {words}"


class Horovodrun(Starter):
    """Horovod over MPI: a rank a GPU."""

    mpi = True

    def tasks_per_node(self, launch: Launch) -> int:
        """A task a GPU: Horovod finds its ranks through the MPI library that srun sets up."""
        return launch.gpus_per_node

    def in_slurm(self, launch: Launch, command: LaunchCommand) -> str:
        """srun as the MPI launcher."""
        first, *rest = command.program
        return joined("srun --mpi=pmix " + shlex.join(first), rest)

    def in_pod(self, launch: Launch, command: LaunchCommand) -> list[str]:
        """mpirun, which the launcher pod runs over all workers."""
        passed = [word for variable in command.environment for word in ("-x", variable)]
        program = [word for line in command.program for word in line]
        return ["mpirun", "-np", str(launch.n_gpus), "-bind-to", "none", "-map-by", "slot", *passed, *program]


TORCHRUN, ACCELERATE, HOROVODRUN = Torchrun(), Accelerate(), Horovodrun()
