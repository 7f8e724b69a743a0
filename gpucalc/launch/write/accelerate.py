"""Hugging Face accelerate: the YAML of `accelerate launch --config_file`.

Names at 16cb6eb8: commands/config/config_args.py, commands/launch.py, parallelism_config.py, utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.launch import legality
from gpucalc.launch.job import Launch, LaunchCommand, preset_facts
from gpucalc.launch.starter import ACCELERATE, PORT
from gpucalc.launch.target import Target
from gpucalc.launch.text import commented, yaml_text

FILE = "accelerate.yaml"
# Transformer layers whose class is not the architecture's name and DecoderLayer.
LAYERS = {
    "GPT2LMHeadModel": "GPT2Block",
    "BloomForCausalLM": "BloomBlock",
    "GPTNeoXForCausalLM": "GPTNeoXLayer",
    "GPTJForCausalLM": "GPTJBlock",
    "MPTForCausalLM": "MptBlock",
}
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}


def uses_megatron(launch: Launch) -> bool:
    """Whether the layout needs accelerate's Megatron-LM plugin: a pipeline, or states not sharded as FSDP does."""
    return launch["pp"] > 1 or (launch.zero_stage < 2 and launch["tp"] > 1)


def profile(cells: Mapping[str, Any]) -> str:
    """The software that a layout runs as: Megatron-LM's where it needs the plugin."""
    tp, sharded = cells.get("tp") or 1, cells.get("zero_stage") in {None, 2, 3}
    plugin = (cells.get("pp") or 1) > 1 or (tp > 1 and (not sharded or cells.get("dp") == 1))
    return "megatron-core" if plugin else "accelerate"


def problems(launch: Launch) -> list[str]:
    """Everything that accelerate cannot express or refuses, in sentences."""
    c = launch
    found = []
    if c["precision"] not in PRECISIONS:
        found.append(f"accelerate has no mixed_precision for {c['precision']}; it takes {', '.join(PRECISIONS)}")
    if c["ep"] > 1:
        found.append(f"accelerate's YAML has no expert parallel degree (ep={c['ep']})")
    if c["vpp"] > 1:
        found.append(f"accelerate's Megatron-LM plugin has no virtual pipeline degree (vpp={c['vpp']})")
    if c["offload_activations"]:
        found.append("activation offload is not written for accelerate; leave out offload-act")
    if c["recompute"] == "full" and c["recompute_layers"]:
        found.append("accelerate cannot recompute a part of the layers; write none or full")
    return found + (_plugin_problems(launch) if uses_megatron(launch) else _fsdp_problems(launch))


def _plugin_problems(launch: Launch) -> list[str]:
    c = launch
    found = legality.megatron(launch.rule_cells())
    if c["cp"] > 1:
        found.append(f"accelerate's Megatron-LM plugin has no context parallel degree (cp={c['cp']})")
    if launch.zero_stage >= 2:
        found.append(
            f"accelerate has no ZeRO-{c['zero_stage']} with a pipeline: FSDP has no pipeline degree, the Megatron-LM "
            "plugin shards the optimizer alone (zero1)"
        )
    if c["schedule"] not in {"none", "1f1b"}:
        found.append(f"accelerate's Megatron-LM plugin runs 1F1B, not {c['schedule']}")
    last = c["layers_last"] or 0
    if last and c["pp"] > 1 and (launch.model.layers - last) % (c["pp"] - 1):
        found.append(f"{launch.model.layers - last} layers beside layers_last={last} are no whole share of each stage")
    if launch.model.layers % c["pp"] and not last:
        near = [p for p in range(1, launch.model.layers + 1) if launch.model.layers % p == 0]
        best = min(near, key=lambda p: abs(p - c["pp"]))
        found.append(f"pp={c['pp']} does not divide the {launch.model.layers} layers; pp={best} does")
    if c["layers_first"]:
        found.append("accelerate's Megatron-LM plugin has no layers of the first stage alone; leave out layers_first")
    if c["recompute"] == "full":
        found.append("accelerate's Megatron-LM plugin recomputes selectively or nothing, not full layers")
    if c["offload_optimizer"]:
        found.append("offload is not written for accelerate's Megatron-LM plugin; leave out offload-opt")
    if launch.model.experts:
        found.append("accelerate's Megatron-LM plugin has no experts")
    return found


def _fsdp_problems(launch: Launch) -> list[str]:
    c = launch
    found = []
    if launch.replicas > 1 and launch.zero_stage == 1:
        found.append("accelerate has no ZeRO-1 without its Megatron-LM plugin and tp: write zero0, zero2 or zero3")
    if c["cp"] > 1 and c["cp_kind"] == "ulysses":
        found.append("Ulysses in accelerate (sp_size) runs under DeepSpeed alone; write ring or ag")
    if c["cp"] > 1 and launch.zero_stage < 2:
        found.append(f"cp={c['cp']} needs FSDP in accelerate: write zero2 or zero3")
    if c["recompute"] == "selective":
        found.append("accelerate's FSDP recomputes whole layers or nothing, not selectively; write none or full")
    if c["sequence_parallel"] and c["tp"] > 1:
        found.append("accelerate's FSDP with tp has no sequence parallelism; leave out sp")
    if launch.model.experts and c["etp"] != c["tp"]:
        found.append(f"accelerate splits experts over tp={c['tp']} as the rest, not over etp={c['etp']}")
    try:
        replicate, shard = groups(launch)
    except UsageError as error:
        return [*found, *error.problems]
    if replicate > 1 and shard == 1 and (c["tp"] > 1 or c["cp"] > 1):
        found.append("dp_replicate > 1 with tp or cp needs dp_shard > 1 in accelerate")
    return found


def groups(launch: Launch) -> tuple[int, int]:
    """(replicate, shard) degrees of data parallelism."""
    if launch.zero_stage < 2:
        return int(launch["dp"]), 1
    group, cp = int(launch["shard_group"] or launch.replicas), int(launch["cp"])
    if group % cp:
        raise UsageError(f"shard_group={group} is not a multiple of cp={cp}, over whose ranks accelerate always shards")
    return launch.replicas // group, group // cp


def configuration(launch: Launch) -> dict[str, Any]:
    """The configuration as a document."""
    c = launch
    plugin = uses_megatron(launch)
    sharded = launch.zero_stage >= 2
    single = launch.n_gpus == 1
    kind = "MEGATRON_LM" if plugin else "FSDP" if sharded else "NO" if single else "MULTI_GPU"
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": PRECISIONS[c["precision"]],
        "num_machines": launch.nodes,
        "num_processes": launch.n_gpus,
        "machine_rank": 0,
    }
    if launch.nodes > 1:
        document |= {"main_process_ip": "10.0.0.1", "main_process_port": PORT, "rdzv_backend": "static"}
        document["same_network"] = True
    if plugin:
        document["megatron_lm_config"] = {
            "megatron_lm_tp_degree": c["tp"],
            "megatron_lm_pp_degree": c["pp"],
            "megatron_lm_num_micro_batches": launch.micro_batches,
            "megatron_lm_sequence_parallelism": bool(c["sequence_parallel"]) and c["tp"] > 1,
            "megatron_lm_use_distributed_optimizer": launch.zero_stage == 1,
            "megatron_lm_recompute_activations": c["recompute"] == "selective",
            "megatron_lm_gradient_clipping": 1.0,
        }
        if c["pp"] > 1 and c["layers_last"]:
            document["megatron_lm_config"]["megatron_lm_decoder_last_pipeline_num_layers"] = c["layers_last"]
    elif sharded:
        document["fsdp_config"] = _fsdp(launch)
        replicate, shard = groups(launch)
        parallel = {"dp_replicate_size": replicate, "dp_shard_size": shard, "tp_size": c["tp"], "cp_size": c["cp"]}
        if c["cp"] > 1:
            parallel["cp_comm_strategy"] = "allgather" if c["cp_kind"] == "ag" else "alltoall"
        document["parallelism_config"] = {f"parallelism_config_{name}": value for name, value in parallel.items()}
    return document


def _fsdp(launch: Launch) -> dict[str, Any]:
    architecture = next(iter(preset_facts(launch).get("architectures") or ()), "")
    layer = LAYERS.get(architecture) or architecture.replace("ForCausalLM", "DecoderLayer")
    known = architecture in LAYERS or architecture.endswith("ForCausalLM")
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": launch.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"fsdp_transformer_layer_cls_to_wrap": layer} if known else {}),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": bool(launch["offload_optimizer"]),
        "fsdp_activation_checkpointing": launch["recompute"] == "full",
    }


def start(launch: Launch) -> LaunchCommand:
    """The YAML, and the command that reads it."""
    c = launch
    said = [
        *launch.comments,
        f"set in your code: the model, sequences of {c['seq_len']} tokens, {c['micro_batch']} a micro-batch, "
        f"{launch.micro_batches} micro-batches of gradient accumulation, attention kernel {c['flash_attention']}",
    ]
    if launch.nodes > 1:
        said.append("main_process_ip is a placeholder; machine_rank is 0 to N-1 on the machines")
    if c["offload_optimizer"]:
        said.append("fsdp_offload_params moves parameters and gradients to the host too, not the optimizer alone")
    if not uses_megatron(launch) and launch.zero_stage < 2 and c["recompute"] != "none":
        said.append(f"recompute {c['recompute']} is set in your code (gradient_checkpointing_enable)")
    text = commented(launch, tuple(said)) + yaml_text(configuration(launch))
    program = [["--config_file", FILE, "train.py"]]
    return LaunchCommand(text, program, files={FILE: text}, comments=tuple(said))


TARGET = Target(("accelerate", "fsdp"), problems, start, profile, ACCELERATE)
