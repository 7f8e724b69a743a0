"""Megatron-LM: the arguments of pretrain_gpt.py (names of commit d98e8a64, megatron/training/arguments.py)."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from gpucalc.core.errors import UsageError
from gpucalc.launch import legality, stages
from gpucalc.launch.job import Launch, LaunchCommand, preset_facts
from gpucalc.launch.starter import TORCHRUN
from gpucalc.launch.target import Target

CP_COMM = {"ring": "p2p", "ag": "all_gather", "ulysses": "a2a"}
BACKENDS = {"yes": "flash", "fa1": "flash", "fa2": "flash", "fa3": "flash", "vendor": "fused", "no": "unfused"}
PRECISIONS: dict[str, list[str]] = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp32": [],
    "tf32": [],
    "fp8": ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"],
    "mxfp8": ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format", "e2m1"],
}
DISPATCHERS = {
    "alltoall": ["alltoall"],
    "allgather": ["allgather"],
    "fused": ["flex", "--moe-flex-dispatcher-backend", "deepep"],
}
GRAPHS = {"layer": "transformer_engine", "full": "full_iteration"}
OPTIMIZERS = {"adam": [], "sgd": ["--optimizer", "sgd"], "muon": ["--optimizer", "muon"]}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def problems(launch: Launch) -> list[str]:
    """Everything that Megatron-LM cannot express or refuses, in sentences."""
    c = launch
    found = legality.megatron(launch.rule_cells()) + _model_problems(launch)
    if c["schedule"] not in {"none", "1f1b", "interleaved"}:
        found.append(f"Megatron-LM runs 1F1B, or interleaved with vpp > 1; it has no schedule {c['schedule']}")
    if c["precision"] not in PRECISIONS:
        found.append(f"Megatron-LM has no flag for precision {c['precision']}; it takes {', '.join(PRECISIONS)}")
    if c["optimizer"] not in OPTIMIZERS:
        found.append(f"Megatron-LM has no optimizer {c['optimizer']}; it takes {', '.join(OPTIMIZERS)}")
    if c["offload_activations"]:
        found.append("activation offload is not written for Megatron-LM; leave out offload-act")
    group = c["shard_group"]
    if group and group != launch.replicas and launch.zero_stage == 0:
        found.append(f"shard_group={group} needs ZeRO of at least 1")
    if c["recompute"] == "full" and c["recompute_layers"] and c["recompute_layers"] % c["vpp"]:
        found.append(
            f"Megatron-LM recomputes a number of layers of each of the {c['vpp']} chunks of a stage; "
            f"{c['recompute_layers']} layers are not a multiple of {c['vpp']}"
        )
    if c["cp"] > 1 and c["cp_kind"] == "ulysses":
        each = c["tp"] * c["cp"]
        if launch.model.heads % each or launch.model.kv_heads % each:
            found.append(
                f"Ulysses needs heads and kv heads that tp·cp = {each} divides, not {launch.model.heads} and "
                f"{launch.model.kv_heads}"
            )
    try:
        pipeline_arguments(launch)
    except UsageError as error:
        found += error.problems
    return found


def _model_problems(launch: Launch) -> list[str]:
    m, b = launch.model, launch.model.blueprint
    lacks = {
        "state-space or linear-attention layers": m.linear_layers > 0,
        "an encoder": m.encoder_layers > 0,
        "bidirectional attention": not m.causal,
        "MLPs of different widths": len(set(b.ffn_widths)) > 1,
        "layers without attention": m.attention_layers != m.layers,
        "experts in a latent space": m.expert_latent > 0,
        "experts beside a dense MLP": b.dense_beside_experts,
        "attention layers of different shapes": b.global_kv_heads > 0 or b.global_head_dim > 0,
        "a width of the embedding other than hidden": b.embedding_width not in {0, m.hidden},
    }
    return [f"{m.name} has {what}, which pretrain_gpt.py has no flags for" for what, there in lacks.items() if there]


def start(launch: Launch) -> LaunchCommand:
    """The command that starts the job."""
    program = [["pretrain_gpt.py"], *arguments(launch)]
    environment = {}
    # https://github.com/NVIDIA/Megatron-LM: asserted before Blackwell with tp or cp, refused by Megatron-FSDP.
    early = launch.device.architecture.one_connection
    if early and launch.zero_stage < 2 and (launch["tp"] > 1 or launch["cp"] > 1):
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    result = LaunchCommand("", program, environment=environment, comments=_comments(launch))
    result.text = TORCHRUN.script(launch, result)
    return result


def arguments(launch: Launch) -> list[list[str]]:
    """The arguments of pretrain_gpt.py, a list of words a line."""
    c, m = launch, launch.model
    lines = [
        _model_arguments(launch),
        [*_expert_arguments(launch)],
        ["--seq-length", c["seq_len"], "--max-position-embeddings", c["seq_len"]],
        ["--tensor-model-parallel-size", c["tp"], "--pipeline-model-parallel-size", c["pp"]],
        pipeline_arguments(launch),
    ]
    if c["cp"] > 1:
        lines.append(["--context-parallel-size", c["cp"], "--cp-comm-type", CP_COMM[c["cp_kind"]]])
    if m.experts:
        lines.append(["--expert-model-parallel-size", c["ep"], "--expert-tensor-parallel-size", c["etp"]])
    if c["sequence_parallel"] and c["tp"] > 1:
        lines.append(["--sequence-parallel"])
    lines += [
        _sharding_arguments(launch),
        ["--micro-batch-size", c["micro_batch"], "--global-batch-size", c["global_batch"]],
        [*PRECISIONS[c["precision"]], *(["--grad-reduce-in-bf16"] if _bf16_gradients(launch) else [])],
        _recompute_arguments(launch),
        ["--attention-backend", "auto" if m.is_mla else BACKENDS[c["flash_attention"]], *OPTIMIZERS[c["optimizer"]]],
    ]
    if not c["dropout"]:  # Megatron-LM's own default is 0.1, whose masks take memory
        lines.append(["--attention-dropout", "0.0", "--hidden-dropout", "0.0"])
    if c["tp"] > 1 and c["sequence_parallel"] and launch.setting("tp_overlap", False):
        lines.append(["--tp-comm-overlap"])
    lines.append(_kernel_arguments(launch))
    if c["offload_optimizer"]:
        lines.append(
            ["--optimizer-cpu-offload", "--optimizer-offload-fraction", "1.0", "--use-precision-aware-optimizer"]
        )
    lines.append(["--train-iters", 100, "--lr", "1.5e-4", "--tokenizer-type", "NullTokenizer", "--mock-data"])
    return [[str(word) for word in line] for line in lines if line]


def _kernel_arguments(launch: Launch) -> list[str]:
    """Options of kernels that the question states."""
    c = launch
    words = []
    if c["fused_gate"] is False:
        words.append("--no-bias-swiglu-fusion" if launch.model.gated_mlp else "--no-bias-gelu-fusion")
    if c["fused_rope"] is False:
        words.append("--no-rope-fusion")
    if c["loss_kernel"] in {"compiled", "inplace"}:
        words += ["--cross-entropy-loss-fusion"]
        words += ["--cross-entropy-fusion-impl", "te"] if c["loss_kernel"] == "inplace" else []
    if c["cuda_graphs"] in GRAPHS:
        words += ["--cuda-graph-impl", GRAPHS[c["cuda_graphs"]]]
    if c["precision"] in {"fp8", "mxfp8"} and launch.setting("fp8_params", False):
        words.append("--fp8-param-gather")
    return words


def _bf16_gradients(launch: Launch) -> bool:
    return launch.gradient_bytes <= 2 and launch["precision"] not in {"fp16", "fp32", "tf32"}


def _model_arguments(launch: Launch) -> list[Any]:
    m, b = launch.model, launch.model.blueprint
    facts = preset_facts(launch)
    words: list[Any] = ["--num-layers", m.layers, "--hidden-size", m.hidden, "--num-attention-heads", m.heads]
    if m.is_mla:
        words += ["--multi-latent-attention", "--kv-lora-rank", m.kv_lora_rank]
        words += ["--q-lora-rank", m.q_lora_rank] if m.q_lora_rank else []
        words += ["--qk-head-dim", m.qk_nope_head_dim, "--qk-pos-emb-head-dim", m.qk_rope_head_dim]
        words += ["--v-head-dim", m.v_head_dim]
    else:
        if m.kv_heads != m.heads:
            words += ["--group-query-attention", "--num-query-groups", m.kv_heads]
        words += ["--kv-channels", m.head_dim]
    # A mixture without dense layers has no dense width of its own.
    words += ["--ffn-hidden-size", m.ffn_hidden or m.expert_ffn_hidden]
    words += ["--swiglu"] if (m.gated_mlp if m.dense_layers else m.gated_experts) else []
    words += ["--normalization", "RMSNorm" if b.norm_terms == 1 else "LayerNorm"]
    words += [] if b.mlp_bias or b.out_bias else ["--disable-bias-linear"]
    words += ["--add-qkv-bias"] if b.qkv_bias and not (b.mlp_bias or b.out_bias) else []
    words += ["--qk-layernorm"] if b.qk_norm else []
    if b.positions:
        words += ["--position-embedding-type", "learned_absolute"]
    else:
        words += ["--position-embedding-type", "rope", "--rotary-base", round(float(facts.get("rope_theta") or 10000))]
    depth = b.mtp_layers if launch["mtp_layers"] is None else launch["mtp_layers"]
    words += ["--mtp-num-layers", depth] if depth else []
    words += [] if m.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    return [*words, "--vocab-size", m.vocab, "--make-vocab-size-divisible-by", 128]


def _expert_arguments(launch: Launch) -> list[Any]:
    m, b = launch.model, launch.model.blueprint
    if not m.experts:
        return []
    words: list[Any] = ["--num-experts", m.experts, "--moe-router-topk", m.experts_per_token]
    words += ["--moe-ffn-hidden-size", m.expert_ffn_hidden]
    if m.moe_layers != m.layers:
        words += ["--moe-layer-freq", frequency([kind == "moe" for kind in b.mlps])]
    if m.shared_expert_ffn_hidden:
        words += ["--moe-shared-expert-intermediate-size", m.shared_expert_ffn_hidden]
    if m.experts_per_token == 1:
        words.append("--moe-router-pre-softmax")  # TransformerConfig refuses one expert a token without it
    kind = DISPATCHERS[str(launch["dispatcher"] or "alltoall")]
    grouped = launch["expert_kernel"] in {None, "grouped"}
    return [*words, *(["--moe-grouped-gemm"] if grouped else []), "--moe-token-dispatcher-type", *kind]


def frequency(sparse: list[bool]) -> str:
    """Which layers hold experts, as --moe-layer-freq writes it: runs of a Python list.

    >>> frequency([False, False, False, True, True])
    '([0]*3+[1]*2)'
    """
    runs: list[list[int]] = []
    for kind in sparse:
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([int(kind), 1])
    if len(runs) > 8:
        return "[" + ",".join(str(int(kind)) for kind in sparse) + "]"
    return "(" + "+".join(f"[{kind}]*{count}" for kind, count in runs) + ")"


def pipeline_arguments(launch: Launch) -> list[Any]:
    """How layers are dealt to stages and chunks: even, fewer on the first and last, or a layout string.

    Raises UsageError when the layers cannot be dealt so that no chunk is longer than the estimate's.
    """
    layers, pp, vpp = launch.model.layers, int(launch["pp"]), int(launch["vpp"])
    if pp == 1:
        return []
    found = list(launch.stage_layers) or stages.depths(layers, pp, launch["layers_first"], launch["layers_last"])
    if len(set(found)) == 1 and found[0] % vpp == 0:
        return ["--num-layers-per-virtual-pipeline-stage", found[0] // vpp] if vpp > 1 else []
    if not found or min(found) < 1:
        near = [p for p in range(1, layers + 1) if layers % (p * vpp) == 0]
        best = min(near, key=lambda p: abs(p - pp)) if near else 1
        raise UsageError(
            f"{layers} layers cannot be dealt to pp={pp} stages in Megatron-LM with fewer layers on the first and "
            f"last alone; pp={best} with vpp={vpp} divides them"
        )
    if vpp == 1 and len(set(found[1:-1])) < 2 and not launch.stage_layers:
        return ["--decoder-first-pipeline-num-layers", found[0], "--decoder-last-pipeline-num-layers", found[-1]]
    return ["--pipeline-model-parallel-layout", layout_string(stages.in_chunks(found, vpp))]


def layout_string(chunks: Sequence[int]) -> str:
    """Chunks as Megatron-LM's layout string, runs of equal ones together.

    >>> layout_string([0, 1, 1, 1]), layout_string([1, 2, 2, 2, 1]), layout_string([8, 7])
    ('E|(t|)*2tL', 'Et|(tt|)*3tL', 'Etttttttt|tttttttL')
    """
    inner = ["t" * depth for depth in chunks]
    text = f"E{inner[0]}|"
    for part, run in itertools.groupby(inner[1:-1]):
        count = len(list(run))
        text += f"({part}|)*{count}" if count > 1 else f"{part}|"
    return text + f"{inner[-1]}L"


def _sharding_arguments(launch: Launch) -> list[str]:
    zero = launch.zero_stage
    if max(launch.replicas, launch.expert_replicas) == 1:
        return []
    overlap = ["--overlap-grad-reduce"] if launch.setting("dp_overlap", True) else []
    words = {
        0: overlap,
        1: ["--use-distributed-optimizer", *overlap, *(["--overlap-param-gather"] if overlap else [])],
    }.get(zero) or [
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        SHARDING[zero],
        "--ckpt-format",
        "fsdp_dtensor",
        "--use-distributed-optimizer",
        "--no-gradient-accumulation-fusion",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
    ]
    group = launch["shard_group"]
    if group and group != launch.replicas:
        words += ["--num-distributed-optimizer-instances", str(launch.replicas // group)]
    return words


def _recompute_arguments(launch: Launch) -> list[Any]:
    kind, layers = launch["recompute"], launch["recompute_layers"]
    if kind == "none":
        return []
    if kind == "selective":
        return ["--recompute-granularity", "selective"]
    words = ["--recompute-granularity", "full"]
    if layers:
        return [*words, "--recompute-method", "block", "--recompute-num-layers", layers // launch["vpp"]]
    return [*words, "--recompute-method", "uniform", "--recompute-num-layers", 1]


def _comments(launch: Launch) -> tuple[str, ...]:
    m, b, found = launch.model, launch.model.blueprint, []
    if m.window:
        found.append(f"sliding window of {m.window} tokens is not written: every layer attends to the whole sequence")
    if m.vision_parameters:
        found.append("the vision tower is not written: pretrain_gpt.py trains the language model alone")
    if b.qkv_bias and b.mlp_bias != b.out_bias:
        found.append("biases differ between projections in this model; Megatron-LM has them all or none")
    facts = preset_facts(launch)
    activation = str(facts.get("hidden_activation") or facts.get("hidden_act") or "silu")
    if m.gated_mlp and activation not in {"silu", "swish"}:
        found.append(f"--swiglu stands for a gated MLP with {activation}, which has the same shape and cost")
    if facts.get("alibi") or str(facts.get("model_type")) in {"bloom", "mpt"}:
        found.append("ALiBi positions are not written: rope takes their place")
    if launch["precision"] == "tf32":
        found.append("tf32: set torch.backends.cuda.matmul.allow_tf32 in the script")
    if launch.zero_stage >= 2 and (launch["tp"] > 1 or launch["cp"] > 1):
        found.append("Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1: leave it unset")
    return (*launch.comments, *found, "data, learning rate and number of steps are placeholders")


def quoted(words: list[str]) -> str:
    """Words as a shell reads them."""
    return " ".join(shlex.quote(word) for word in words)


TARGET = Target(("megatron", "megatron-lm", "megatron-core"), problems, start, "megatron-core", TORCHRUN)
