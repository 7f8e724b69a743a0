"""DeepSpeed: the JSON configuration (keys of 0.19.6, deepspeed/runtime/config.py and runtime/zero/config.py)."""

from __future__ import annotations

import json
from typing import Any

from gpucalc.launch import legality
from gpucalc.launch.job import Launch, LaunchCommand
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target
from gpucalc.launch.text import headline

FILE = "ds_config.json"
PRECISIONS = ("bf16", "fp16", "fp32", "tf32")


def problems(launch: Launch) -> list[str]:
    """Everything that the JSON cannot express or DeepSpeed refuses, in sentences."""
    c = launch
    found = legality.deepspeed(launch.rule_cells() | {"zero_stage": launch.zero_stage})
    # Combinations that DeepSpeed has not validated (deepspeed/runtime/engine.py) are not written; a file that holds
    # them is read all the same.
    if c["tp"] > 1 and launch.zero_stage == 3:
        found.append("DeepSpeed's AutoTP is validated with ZeRO 0 to 2, not with ZeRO-3")
    if c["tp"] > 1 and c["cp"] > 1:
        found.append("DeepSpeed's AutoTP and Ulysses (sequence_parallel_size) are not validated together")
    if c["cp"] > 1 and c["cp_kind"] != "ulysses":
        kind = {"ring": "ring", "ag": "all-gather"}[c["cp_kind"]]
        found.append(
            f"DeepSpeed JSON has no {kind} context parallelism: cp={c['cp']} is Ulysses there (write ulysses in the "
            "layout)"
        )
    if c["sequence_parallel"] and c["tp"] > 1:
        found.append("DeepSpeed JSON has no sequence parallelism of Megatron's kind beside tp; leave out sp")
    if c["precision"] not in PRECISIONS:
        found.append(f"DeepSpeed JSON has no precision {c['precision']}; it takes {', '.join(PRECISIONS)}")
    if launch.model.experts and c["ep"] > 1 and c["etp"] > 1:
        found.append(f"DeepSpeed JSON has no tensor parallel degree of experts (etp={c['etp']}); write etp1")
    if launch.model.experts and c["ep"] == 1 and c["etp"] != c["tp"]:
        found.append(f"AutoTP splits experts as it splits the rest: etp={c['etp']} is not tp={c['tp']}")
    if c["offload_activations"]:
        found.append("DeepSpeed JSON has no activation offload without its own checkpointing; leave out offload-act")
    if c["offload_optimizer"] and int(c["zero_stage"]) < 1:
        found.append("offload of the optimizer needs ZeRO of at least 1 in DeepSpeed")
    group = c["shard_group"]
    if group and group != launch.replicas and c["zero_stage"] != 3:
        found.append(f"shard_group={group}: DeepSpeed shards over a part of the ranks (MiCS) with ZeRO-3 only")
    return found


def configuration(launch: Launch) -> dict[str, Any]:
    """The configuration as a document."""
    c = launch
    document: dict[str, Any] = {
        "train_batch_size": c["global_batch"],
        "train_micro_batch_size_per_gpu": c["micro_batch"],
        "gradient_accumulation_steps": launch.micro_batches,
    }
    if c["precision"] in {"bf16", "fp16"}:
        document[c["precision"]] = {"enabled": True}
    if c["precision"] == "bf16":
        document["data_types"] = {"grad_accum_dtype": "fp32" if launch.gradient_bytes > 2 else "bf16"}
        if launch.reduced_bytes > 2:  # the engine reduces in the model's type, whatever it accumulates in
            document["communication_data_type"] = "fp32"
    document["gradient_clipping"] = 1.0
    if c["tp"] > 1:
        document["tensor_parallel"] = {"autotp_size": c["tp"]}
    if c["cp"] > 1:
        document["sequence_parallel_size"] = c["cp"]
    if c["ep"] > 1:
        document["expert_parallel"] = {"enabled": True, "autoep_size": c["ep"]}
    stage = int(c["zero_stage"])
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 1:
        zero |= {"overlap_comm": launch.setting("dp_overlap", True), "contiguous_gradients": True}
    if c["shard_group"] and c["shard_group"] != launch.replicas:
        zero["mics_shard_size"] = c["shard_group"]
    if c["offload_optimizer"]:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if c["offload_parameters"]:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    document["zero_optimization"] = zero
    return document


def start(launch: Launch) -> LaunchCommand:
    """The file, and the command that reads it."""
    text = json.dumps(configuration(launch), indent=2) + "\n"
    layers = f" of {launch['recompute_layers']} layers a stage" if launch["recompute_layers"] else ""
    comments = (
        *launch.comments,
        f"not in the file, as your code sets it: the model, sequences of {launch['seq_len']} tokens, recompute "
        f"{launch['recompute']}{layers}, optimizer {launch['optimizer']}, attention kernel {launch['flash_attention']}",
    )
    command = (
        f"start: deepspeed --hostfile HOSTS --num_nodes {launch.nodes} --num_gpus {launch.gpus_per_node} "
        f"train.py --deepspeed --deepspeed_config {FILE}"
    )
    notes = (headline(launch), *comments, command)
    program = [["train.py", "--deepspeed", "--deepspeed_config", FILE]]
    return LaunchCommand(text, program, files={FILE: text}, comments=comments, notes=notes)


TARGET = Target(("deepspeed",), problems, start, "deepspeed", TORCHRUN)
