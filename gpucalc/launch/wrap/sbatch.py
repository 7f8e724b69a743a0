"""Slurm: an sbatch script (options of sbatch(1), Slurm 26.11) with one task a node, or one a GPU for MPI."""

from __future__ import annotations

from gpucalc.launch.job import Launch, LaunchCommand, Placed
from gpucalc.launch.starter import Starter, exports, written_files
from gpucalc.launch.target import Wrapper
from gpucalc.launch.text import commented, job_name


def write(launch: Launch, command: LaunchCommand, starter: Starter, kind: str, placed: Placed | None) -> str:
    """The script; bound to named nodes where they are given."""
    options: dict[str, object] = {
        "job-name": job_name(launch),
        "nodes": launch.nodes,
        "ntasks-per-node": starter.tasks_per_node(launch),
        "gpus-per-node": launch.gpus_per_node,
    }
    text = "#!/bin/bash\n" + "".join(f"#SBATCH --{name}={value}\n" for name, value in options.items())
    text += "#SBATCH --exclusive\n"
    if placed is not None:
        text += f"#SBATCH --nodelist={','.join(placed.nodes)}\n#SBATCH --switches={placed.leaves}\n"
    text += commented(launch, command.comments) + exports(command)
    text += 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n' + written_files(command)
    return text + starter.in_slurm(launch, command)


WRAPPER = Wrapper(("sbatch", "slurm"), write)
