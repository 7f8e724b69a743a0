"""Horovod 0.28: pure data parallelism under horovodrun (horovod/runner/launch.py)."""

from __future__ import annotations

from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.starter import HOROVODRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented


def problems(launch: Launch) -> list[str]:
    """Everything that Horovod cannot express: it replicates the model and all-reduces gradients."""
    c = launch
    degrees = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}
    found = [
        f"Horovod has no {kind} parallel degree ({name}={c[name]}); it is data parallel only"
        for kind, name in degrees.items()
        if c[name] > 1
    ]
    if launch.zero_stage:
        found.append(f"Horovod replicates all states; ZeRO-{launch.zero_stage} is not available (write zero0)")
    for name, word in (("offload_optimizer", "offload-opt"), ("offload_activations", "offload-act")):
        if c[name]:
            found.append(f"Horovod has no offload; leave out {word}")
    if c["precision"] not in {"fp32", "tf32", "fp16", "bf16"}:
        found.append(f"Horovod is not written for precision {c['precision']}; it takes fp32, tf32, fp16, bf16")
    return found


def start(launch: Launch) -> LaunchCommand:
    """The command: one process a GPU, on placeholder hosts where there are several."""
    c = launch
    said = [
        *launch.comments,
        f"set in your script: the model, sequences of {c['seq_len']} tokens, {launch.micro_batches} micro-steps a "
        f"step (backward_passes_per_step), {c['precision']}, recompute {c['recompute']}, optimizer {c['optimizer']}",
    ]
    names = ["localhost"] if launch.nodes == 1 else [f"node{i + 1}" for i in range(launch.nodes)]
    if launch.nodes > 1:
        said.append("node1, node2 … stand for the names of your hosts")
    hosts = ",".join(f"{name}:{launch.gpus_per_node}" for name in names)
    program = ["python", "train.py", "--batch-size", str(c["micro_batch"])]
    command = f"horovodrun -np {launch.n_gpus} -H {hosts} \\\n  --fusion-threshold-mb 128 --cycle-time-ms 3.5 \\\n  "
    text = commented(launch, tuple(said)) + command + " ".join(program) + "\n"
    # The same tuning as variables, for starters other than horovodrun.
    environment = {"HOROVOD_FUSION_THRESHOLD": str(128 * 2**20), "HOROVOD_CYCLE_TIME": "3.5"}
    return LaunchCommand(text, [program], environment=environment, comments=tuple(said))


TARGET = Target(("horovod", "horovodrun"), problems, start, "eager", HOROVODRUN)
